"""Tidelog on real data: a year of flights published while a broker is killed, read back, and counted by Spark.

    start       three brokers and a nats-server, in a temporary folder
    publish     every row of the flights table as JSON, keyed by carrier, acks=all, many at once;
                at a third of them kill -9 the leader of the busiest partition, at two thirds start that broker again
    read back   every acknowledged record once, where its acknowledgement said, each carrier's in the order of the table
    bare NATS   a few records from plain nats-py, which knows nothing of Tidelog
    Spark       flights and mean departure delay per carrier, in batch, against the same figures from the table; Spark
                was started when publishing began
    streaming   the same in a streaming query
    security    with --secure: what must be refused is tried (scripts/demos/demo_security.py)

The last line is `PASS`, or `FAIL: why`; the exit status is 0 or 1, and 130 when it was interrupted. Run it as
scripts/demo, which makes the environment first.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import math
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

import nats
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

import tidelog
from scripts.demos.demo_flights import CarrierFigures, Flights, load_flights
from scripts.demos.demo_jobs import SparkFailed, SparkJobs
from scripts.demos.demo_ledger import Ledger, ReadBack
from scripts.demos.demo_security import Access, NotRefused, Refusal, attempts, secure
from tidelog.server.devcluster import DevCluster
from wire.operations.api_operations import PartitionDescription, StreamDescription

STREAM = "flights"
PARTITIONS = 3
BROKERS = 3
WINDOW = 40_000
"""Records that may be out at once. Large enough that a partition without a leader leaves work for the others."""
TURN = 256
"""Records given to the producer before the event loop comes round."""
FAILOVER_TIMEOUT = 30.0
RECOVERY_TIMEOUT = 60.0
BARE_TIMEOUT = 10.0
TIME_LIMIT = 300.0
"""Seconds for everything once the cluster runs; a step that hangs is a FAIL too."""
INTERRUPTED = 130


class DemoFailed(Exception):
    """An expectation of the demo does not hold; the text names it."""


class Display:
    """Progress bars on a terminal; elsewhere one line when a step ends."""

    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self._console = Console(width=None if terminal else 110, highlight=False)
        self._bars = Progress(
            SpinnerColumn("line", finished_text="[green]*"),
            TextColumn("{task.description:<11}"),
            BarColumn(32),
            TimeElapsedColumn(),
            TextColumn("{task.fields[said]}"),
            console=self._console,
            disable=not terminal,
        )
        self._is_live = terminal
        self.current = ""
        """The step that is under way."""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    @contextlib.contextmanager
    def step(self, name: str, total: int | None = None) -> Iterator[Step]:
        """A bar of `total` units; without a total it only moves."""
        self.current = name
        began = time.monotonic()
        step = Step(self._bars, self._bars.add_task(name, total=total, said=""))
        yield step
        step.seconds = time.monotonic() - began
        self._bars.update(step.task, total=total or 1, completed=total or 1, said=step.said)
        if not self._is_live:
            self.say(f"{name:<11} {step.said} ({step.seconds:.1f} s)")

    def say(self, line: str) -> None:
        self._console.print(line, markup=False, soft_wrap=True)

    def table(self, table: Table) -> None:
        self._console.print(table)


@dataclass
class Step:
    bars: Progress
    task: TaskID
    said: str = ""
    """Stands behind the bar."""
    seconds: float = 0.0
    """How long the step took; known at its end."""

    def at(self, completed: int, said: str) -> None:
        self.said = said
        self.bars.update(self.task, completed=completed, said=said)


@dataclass
class Figures:
    """Figures of the table at the end."""

    records: int
    size_bytes: int
    publish_seconds: float = 0.0
    read_seconds: float = 0.0
    spark_seconds: float = 0.0
    streaming_seconds: float = 0.0
    partition: int = 0
    victim: str = ""
    successor: str = ""
    election_seconds: float = 0.0
    pause_seconds: float = 0.0
    recovery_seconds: float = 0.0
    bare: int = 0
    spark: dict[str, CarrierFigures] = field(default_factory=dict)
    refused: list[Refusal] = field(default_factory=list)


class Load:
    """Publishes all records of a ledger, and says when so many are acknowledged."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._milestones: dict[int, asyncio.Event] = {}
        self._room = asyncio.Event()
        self._sent = 0
        self._now = asyncio.get_running_loop().time

    async def reached(self, settled: int) -> None:
        if self._ledger.settled < settled:
            await self._milestones.setdefault(settled, asyncio.Event()).wait()

    async def run(self, client: tidelog.Client, step: Step) -> None:
        """Raises DemoFailed when a record was refused or given up."""
        ledger = self._ledger
        began = self._now()
        async with client.producer(STREAM, acks="all") as producer:
            for row, (key, value) in enumerate(zip(ledger.keys, ledger.values, strict=True)):
                producer.send_nowait(value, key=key).add_done_callback(partial(self._on_settled, row))
                self._sent += 1
                if self._sent % TURN == 0:
                    await asyncio.sleep(0)
                    step.at(ledger.settled, self._rate(began))
                    while self._sent - ledger.settled >= WINDOW:
                        self._room.clear()
                        await self._room.wait()
            with contextlib.suppress(tidelog.TidelogError):  # the ledger has it, and how many more there are
                await producer.flush()
            await self.reached(len(ledger.values))
            step.at(ledger.settled, self._rate(began))
        if ledger.first_failure is not None:
            raise DemoFailed(f"{ledger.failed:,} records were not acknowledged: {ledger.first_failure}")

    def _rate(self, began: float) -> str:
        settled = self._ledger.settled
        return f"{settled:,} records, {settled / (self._now() - began):,.0f}/s"

    def _on_settled(self, row: int, future: asyncio.Future[tidelog.Receipt]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._ledger.fail(error)
        else:
            receipt = future.result()
            self._ledger.acknowledge(row, receipt.partition, receipt.offset, self._now())
        settled = self._ledger.settled
        if settled in self._milestones:
            self._milestones[settled].set()
        if self._sent - settled < WINDOW:
            self._room.set()


class Demo:
    """The steps, on a cluster that runs."""

    def __init__(self, cluster: DevCluster, access: Access, flights: Flights, display: Display) -> None:
        self._cluster = cluster
        self._access = access
        self._flights = flights
        self._display = display
        self._ledger = Ledger(flights.keys, flights.values, PARTITIONS)
        self.figures = Figures(len(flights.values), flights.size_bytes)

    async def run(self) -> None:
        """Raises DemoFailed, TidelogError, or any other error."""
        url, access = self._cluster.nats_url, self._access
        try:
            async with (
                asyncio.timeout(TIME_LIMIT),
                await access.connect(url, "admin") as admin,
                await access.connect(url, "producer") as producer,
                await access.connect(url, "consumer") as consumer,
            ):
                if access.is_secure:  # the default of all streams from now on, the audit trail's too
                    await admin.alter_cluster(config={"encryption": "true"})
                await admin.create_stream(STREAM, subject=STREAM, partitions=PARTITIONS, replication_factor=BROKERS)
                # Spark starts while records are published.
                login = access.of_spark("spark")
                async with SparkJobs(url, STREAM, login, self._cluster.data_dir) as jobs:
                    await self._publish(admin, producer)
                    await self._read_back(consumer)
                    await self._bare_nats(consumer)
                    await self._spark(jobs)
                if access.is_secure:
                    await self._attempts()
        except TimeoutError as error:
            raise DemoFailed(
                f"{self._display.current} did not end: {str(error) or f'over {TIME_LIMIT:.0f} s'}"
            ) from error

    # Publish, with a failure on the way

    async def _publish(self, admin: tidelog.Client, producer: tidelog.Client) -> None:
        await self._wait_in_sync(admin)
        with self._display.step("publish", total=len(self._flights.values)) as step:
            load = Load(self._ledger)
            async with asyncio.TaskGroup() as tasks:
                failure = tasks.create_task(self._fail_over(admin, load))
                await load.run(producer, step)
            victim = failure.result()
        self.figures.publish_seconds = step.seconds
        with self._display.step("recover") as step:
            self.figures.recovery_seconds = await victim
            step.said = f"{self.figures.victim} is in every ISR again"

    async def _fail_over(self, client: tidelog.Client, load: Load) -> asyncio.Task[float]:
        """Returns, once the broker starts again, the task that waits until it is back in sync; its result is how many
        seconds that took.
        """
        figures, ledger = self.figures, self._ledger
        now = asyncio.get_running_loop().time
        await load.reached(figures.records // 3)
        description = await self._wait_in_sync(client)
        figures.partition = ledger.busiest_partition()
        victim = description["partitions"][figures.partition]["leader"]
        if victim is None:
            raise DemoFailed(f"partition {figures.partition} has no leader, though no broker was killed yet")
        figures.victim = victim
        self._display.say(
            f"kill -9 {victim}, leader of partition {figures.partition}, after {ledger.acknowledged:,} acknowledgements"
        )
        killed = now()
        await asyncio.to_thread(self._cluster.kill, victim, signal.SIGKILL)
        figures.successor = await self._new_leader(client, figures.partition, victim, killed + FAILOVER_TIMEOUT)
        figures.election_seconds = now() - killed
        self._display.say(f"{figures.successor} leads it {figures.election_seconds * 1000:,.0f} ms later")
        await load.reached(figures.records * 2 // 3)
        # Or the broker could be found in sync before it has done anything.
        await self._wait(client, f"{victim} out of its ISR", lambda p: victim not in p["isr"])
        started = now()
        pause = ledger.longest_pause(figures.partition, since=killed, until=started)
        if pause is None:
            raise DemoFailed(f"nothing of partition {figures.partition} was acknowledged after its leader was killed")
        figures.pause_seconds = pause
        self._display.say(
            f"acknowledged writes of partition {figures.partition} stood still for {pause * 1000:,.0f} ms"
        )
        # Here, not in a thread: the kernel ends a broker when the thread that started it ends.
        self._cluster.start_broker(victim)
        self._display.say(f"{victim} starts again after {ledger.acknowledged:,} acknowledgements")

        async def recovery() -> float:
            await self._wait_in_sync(client)
            return now() - started

        return asyncio.create_task(recovery())

    async def _new_leader(self, client: tidelog.Client, partition: int, old: str, deadline: float) -> str:
        while True:
            leader = (await client.metadata(STREAM)).partitions[partition].leader
            if leader is not None and leader != old:
                return leader
            if asyncio.get_running_loop().time() > deadline:
                raise DemoFailed(
                    f"partition {partition} has no new leader {FAILOVER_TIMEOUT:.0f} s after {old} was killed"
                )
            await asyncio.sleep(0.01)

    async def _wait_in_sync(self, client: tidelog.Client) -> StreamDescription:
        return await self._wait(client, "all replicas in its ISR", lambda p: p["leader"] and len(p["isr"]) == BROKERS)

    async def _wait(
        self, client: tidelog.Client, what: str, wanted: Callable[[PartitionDescription], object]
    ) -> StreamDescription:
        """Until every partition is as wanted."""
        deadline = asyncio.get_running_loop().time() + RECOVERY_TIMEOUT
        while True:
            description = await client.describe(STREAM)
            other = [p for p in description["partitions"] if not wanted(p)]
            if not other:
                return description
            if asyncio.get_running_loop().time() > deadline:
                raise DemoFailed(
                    f"partition {other[0]['partition']} does not have {what} after {RECOVERY_TIMEOUT:.0f} s: "
                    f"its leader is {other[0]['leader']}, its ISR {', '.join(other[0]['isr'])}"
                )
            await asyncio.sleep(0.05)

    # Expected results

    async def _read_back(self, client: tidelog.Client) -> None:
        found = ReadBack(self._ledger)
        with self._display.step("read back", total=len(self._flights.values)) as step:
            async for batch in client.consume(STREAM, start="earliest", stop="latest").batches():
                found.add(batch.partition, batch.offsets.tolist(), batch.keys, batch.values)
                step.at(found.count, f"{found.count:,} records")
            problems = found.problems()
        self.figures.read_seconds = step.seconds
        if problems:
            raise DemoFailed("; ".join(problems))

    async def _bare_nats(self, client: tidelog.Client) -> None:
        """Requests to each partition's subject, which are answered after the commit, and one publish, which is not."""
        subjects = [STREAM, *(f"{STREAM}.{partition}" for partition in range(1, PARTITIONS))]
        ends = await client.offsets(STREAM, "latest")
        with self._display.step("bare NATS") as step:
            bare = await nats.connect(self._cluster.nats_url, **self._access.of_bare_nats("producer"))
            try:
                expected: dict[tuple[int, bytes], int | None] = {}
                for partition, subject in enumerate(subjects):
                    value = f"asked on {subject}".encode()
                    answer = json.loads((await bare.request(subject, value, timeout=BARE_TIMEOUT)).data)
                    wanted = {
                        "stream": STREAM,
                        "partition": partition,
                        "offset": ends[partition],
                        "seq": ends[partition] + 1,
                    }
                    if {name: answer.get(name) for name in wanted} != wanted:
                        raise DemoFailed(f"a request on {subject} was answered with {answer} in place of {wanted}")
                    expected[partition, value] = ends[partition]
                await bare.publish(STREAM, b"told, not asked")
                await bare.flush()
                expected[0, b"told, not asked"] = ends[0] + 1
            finally:
                await bare.close()
            found: dict[tuple[int, bytes], int | None] = {}
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BARE_TIMEOUT), client.consume(STREAM, start=ends) as consumer:
                    async for record in consumer:
                        found[record.partition, record.value or b""] = record.offset
                        if len(found) == len(expected):
                            break
            if found != expected:
                raise DemoFailed(f"of the bare records {expected} the log has {found}")
            self.figures.bare = len(found)
            step.said = f"{len(found)} records published, answered and read"

    async def _spark(self, jobs: SparkJobs) -> None:
        figures = self.figures
        with self._display.step("Spark") as step:
            figures.spark = await jobs.run("batch")
            step.said = f"{sum(carrier.flights for carrier in figures.spark.values()):,} flights counted in batch"
        figures.spark_seconds = step.seconds
        self._check_carriers("Spark", figures.spark)
        with self._display.step("streaming") as step:
            streamed = await jobs.run("streaming")
            step.said = f"{sum(carrier.flights for carrier in streamed.values()):,} flights counted in micro-batches"
        figures.streaming_seconds = step.seconds
        self._check_carriers("a streaming query", streamed)

    def _check_carriers(self, what: str, found: dict[str, CarrierFigures]) -> None:
        wanted = self._flights.figures
        unlike = [
            f"{carrier}: {what} has {found.get(carrier)}, the table {wanted.get(carrier)}"
            for carrier in sorted({*found, *wanted})
            if not is_same(found.get(carrier), wanted.get(carrier))
        ]
        if unlike:
            raise DemoFailed(f"{len(unlike)} carriers have other figures in Spark, the first is {unlike[0]}")

    async def _attempts(self) -> None:
        with self._display.step("security") as step:
            # Named in every record.
            self.figures.refused = await attempts(self._cluster, self._access, STREAM, b'"dep_delay"')
            step.said = f"{len(self.figures.refused)} attempts, all refused"


def is_same(one: CarrierFigures | None, other: CarrierFigures | None) -> bool:
    """Flights are counted, so they are equal; a mean may differ by the order in which it was summed."""
    if one is None or other is None:
        return False
    return one.flights == other.flights and math.isclose(
        one.mean_departure_delay, other.mean_departure_delay, rel_tol=1e-9
    )


def results(figures: Figures, seconds: float) -> Table:
    table = Table("", "", title=f"{figures.records:,} flights through {BROKERS} brokers", show_header=False)
    megabytes = figures.size_bytes / 1e6

    def rate(taken: float) -> str:
        return f"{taken:.1f} s = {figures.records / taken:,.0f} records/s, {megabytes / taken:.0f} MB/s"

    table.add_row(
        "published", f"{figures.records:,} records, {megabytes:.0f} MB in {rate(figures.publish_seconds)}, acks=all"
    )
    table.add_row("killed", f"{figures.victim} with -9, leader of partition {figures.partition}")
    table.add_row("new leader", f"{figures.successor} after {figures.election_seconds * 1000:,.0f} ms")
    table.add_row(
        "writes stood still",
        f"{figures.pause_seconds * 1000:,.0f} ms from one acknowledgement of partition {figures.partition} to the next",
    )
    table.add_row("back in every ISR", f"{figures.recovery_seconds:.1f} s after {figures.victim} was started again")
    table.add_row("read back", f"each acknowledged record once, in order, in {rate(figures.read_seconds)}")
    table.add_row("bare NATS", f"{figures.bare} records published, answered and read")
    table.add_row(
        "Spark",
        f"{len(figures.spark)} carriers as in the table: batch {figures.spark_seconds:.1f} s, "
        f"streaming {figures.streaming_seconds:.1f} s",
    )
    table.add_row("all of it", f"{seconds:.1f} s")
    return table


def comparison(flights: Flights, spark: dict[str, CarrierFigures]) -> Table:
    table = Table(title="Departure delay in minutes, mean per carrier")
    for name in ("carrier", "flights: Spark", "table", "delay: Spark", "table"):
        table.add_column(name, justify="left" if name == "carrier" else "right")
    for carrier, known in sorted(flights.figures.items(), key=lambda item: -item[1].flights):
        found = spark[carrier]
        table.add_row(
            carrier,
            *(f"{found.flights:,}", f"{known.flights:,}"),
            *(f"{found.mean_departure_delay:.6f}", f"{known.mean_departure_delay:.6f}"),
        )
    return table


def refusals(figures: Figures) -> Table:
    table = Table("attempt", "answer", title="Tried, and refused")
    for refusal in figures.refused:
        table.add_row(*refusal)
    return table


def run(folder: Path, display: Display, *, is_secure: bool) -> None:
    """The whole demo with its files in `folder`. Raises the first error; the processes have ended then."""
    began = time.monotonic()
    brokers = [f"b{number}" for number in range(1, BROKERS + 1)]
    access = secure(folder, STREAM, brokers, partitions=PARTITIONS) if is_secure else Access()
    cluster = DevCluster(folder, nodes=BROKERS, port=0, **access.cluster)
    try:
        with display:
            with display.step("start") as step:
                cluster.start()
                flights = load_flights()  # while the brokers start
                cluster.wait_ready()
                step.said = f"{BROKERS} brokers, {len(flights.values):,} rows"
            demo = Demo(cluster, access, flights, display)
            asyncio.run(demo.run())
            display.current = "stop"
    finally:
        with uninterrupted():
            cluster.stop()
    display.table(comparison(flights, demo.figures.spark))
    if is_secure:
        display.table(refusals(demo.figures))
    display.table(results(demo.figures, time.monotonic() - began))


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A second Ctrl-C does not stop the tidying up."""
    before = {
        number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def drop_data(folder: Path) -> None:
    """Leaves the logs and the configuration: files at the top, and nats-server's."""
    for entry in folder.iterdir():
        if entry.is_dir() and entry.name != "nats":
            shutil.rmtree(entry, ignore_errors=True)


def first_cause(error: BaseException) -> BaseException:
    """The first error of a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/demo", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--keep", action="store_true", help="keep the brokers' data and logs, and say where")
    parser.add_argument(
        "--secure",
        action="store_true",
        help="the same with TLS on every connection (NATS and Raft), a login with the least permissions for each role,"
        " and streams encrypted on disk; then tries what must be refused. With --keep, the folder has all files of such"
        " a cluster",
    )
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # it warns of how plain nats-py ends a TLS connection
    display = Display()
    folder = Path(tempfile.mkdtemp(prefix="tidelog-demo-"))
    status, verdict = 0, "PASS"
    try:
        run(folder, display, is_secure=options.secure)
    except KeyboardInterrupt:
        status, verdict = INTERRUPTED, "FAIL: interrupted"
    except Exception as error:  # noqa: BLE001 - after any error the demo has failed
        cause = first_cause(error)
        status, verdict = 1, f"FAIL: {cause}"
        (folder / "demo.log").write_text("".join(traceback.format_exception(error)))
        if not isinstance(cause, (DemoFailed, NotRefused, SparkFailed, tidelog.TidelogError)):
            verdict = f"FAIL: {display.current}: {type(cause).__name__}: {cause}"
    with uninterrupted():
        if options.keep:
            display.say(f"data and logs: {folder}")
        elif status == 1:
            drop_data(folder)
            display.say(f"logs: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    display.say(verdict.replace("\n", " "))
    return status


if __name__ == "__main__":
    sys.exit(main())
