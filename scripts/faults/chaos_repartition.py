"""Five producers write records with keys, and a group reads them in the order of their keys, while the stream goes
from 3 to 6, 12 and 5 partitions; leaders, the controller and members are killed meanwhile. Then each acknowledged
record must be where its acknowledgement says, once, and in the order of its key: in the log, and as it was given to the
members.

    scripts/chaos --repartition --minutes 3 --interval 5
    scripts/chaos --repartition --broken no-fence             must end in FAIL

One producer gets no pushes: it learns of another layout when a leader refuses it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import tidelog
from scripts.faults.chaos_members import RECOVERY_S, STREAM, MemberChaos, shown_counts
from tests.integration.groups.group_member import name_of
from tests.integration.rig.workload import diverging, wait_in_sync
from tidelog.server.devcluster import DevCluster
from wire.layouts import Layout
from wire.types import StreamName

COUNTS = (3, 6, 12, 5)
PRODUCERS = 5
RATE = 5000
"""Records per second, of all producers together."""
BURST_S = 0.02
KEYS = 40
"""Of each producer; a record's number says which."""
MEMBERS = 3
MOST_WAITING = 5000
"""Records of one producer that have no answer; it writes no more then."""
STEP_S = 180.0
"""In which a repartition has to end."""
_LOOK_INTERVAL_S = 0.1


def key_of(name: str) -> str:
    """`name`: of a record, `<producer>:<number>`."""
    producer, number = name.split(":")
    return f"{producer}-{int(number) % KEYS}"


@dataclass(slots=True)
class Writer:
    """What one producer has sent and was told."""

    name: str
    is_old: bool = False
    sent: int = 0
    acked: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Name of the record -> (partition, offset)."""
    failed: list[str] = field(default_factory=list)
    waiting: int = 0
    longest: float = 0.0
    """Seconds without an acknowledgement, while one was awaited."""
    longest_at: float = 0.0
    _since: float = 0.0

    def sends(self) -> None:
        if not self.waiting:
            self._since = time.monotonic()
        self.waiting += 1
        self.sent += 1

    def answered(self, name: str, future: asyncio.Future[Any]) -> None:
        self.waiting -= 1
        now = time.monotonic()
        if future.cancelled() or future.exception() is not None:
            self.failed.append(f"{name}: {'cancelled' if future.cancelled() else future.exception()}")
            return
        if now - self._since > self.longest:
            self.longest, self.longest_at = now - self._since, time.time()
        self._since = now
        receipt = future.result()
        self.acked[name] = receipt.partition, receipt.offset

    def __str__(self) -> str:
        at = time.strftime("%H:%M:%S", time.localtime(self.longest_at))
        return (
            f"{self.name}{' (without pushes)' if self.is_old else ''}: {len(self.acked)} of {self.sent} acknowledged,"
            f" {len(self.failed)} failed; longest time without an acknowledgement {self.longest:.2f} s, until {at}"
        )


async def write(client: tidelog.Client, writer: Writer, stop: asyncio.Event) -> None:
    per_burst = RATE * BURST_S / PRODUCERS
    owed = 0.0
    began = time.monotonic()
    async with client.producer(STREAM, acks="all", delivery_timeout_ms=120_000) as producer:
        while not stop.is_set():
            await asyncio.sleep(BURST_S)
            owed = min(owed + per_burst * ((now := time.monotonic()) - began) / BURST_S, 10 * per_burst)
            began = now
            while owed >= 1 and writer.waiting < MOST_WAITING:
                owed -= 1
                name = f"{writer.name}:{writer.sent}"
                future = producer.send_nowait(f"{name}:{'x' * (writer.sent % 100)}".encode(), key=key_of(name).encode())
                writer.sends()
                future.add_done_callback(partial(writer.answered, name))
        with suppress(tidelog.TidelogError):
            await producer.flush()


@asynccontextmanager
async def writing(url: str) -> AsyncIterator[list[Writer]]:
    """Until the block ends; then what is open is waited for."""
    writers = [Writer(f"p{number}", is_old=number == PRODUCERS - 1) for number in range(PRODUCERS)]
    clients = [await tidelog.connect(url) for _ in writers]
    for writer, client in zip(writers, clients, strict=True):
        if writer.is_old:
            forget_pushes(client)
    stop = asyncio.Event()
    tasks = [asyncio.create_task(write(client, writer, stop)) for client, writer in zip(clients, writers, strict=True)]
    try:
        yield writers
    finally:
        stop.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        for client in clients:
            await client.close()
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome


def forget_pushes(client: tidelog.Client) -> None:
    """Keeps the client from subscribing to pushes, and from reporting what it has applied."""

    async def nothing(*_: object) -> None:
        """Of what it does in a client of today."""

    updates = client._metadata.updates
    updates._subscribe = nothing  # type: ignore[method-assign, assignment]
    updates._report = nothing  # type: ignore[method-assign]


@dataclass(slots=True)
class Counts:
    leaders_killed: int = 0
    controllers_killed: int = 0
    members_killed: int = 0
    members_started: int = 0


@dataclass(slots=True)
class RepartitionChaos(MemberChaos):
    counts: Counts = field(default_factory=Counts)
    steps: list[str] = field(default_factory=list)
    is_over: bool = False

    def fill_up(self) -> None:
        while len(self.members) < MEMBERS:
            self.spawn(f"m{self.counts.members_started}", "tests.integration.groups.group_member")
            self.counts.members_started += 1

    async def strike(self, client: tidelog.Client) -> None:
        dice, number = self.rng.random(), self.rng.randrange(1 << 16)
        if dice < 0.6:
            described = (await client.describe(STREAM))["partitions"]
            await self.kill_broker(client, STREAM, described[number % len(described)]["partition"])
            self.counts.leaders_killed += 1
        elif dice < 0.85:
            await self._kill_controller(client)
            self.counts.controllers_killed += 1
        else:
            self.kill(self.members[number % len(self.members)])
            self.counts.members_killed += 1

    async def leader(self, client: tidelog.Client, stream: str, partition: int) -> str:
        described = (await client.describe(stream))["partitions"]
        found = next((each["leader"] for each in described if each["partition"] == partition), None)
        return found or self.cluster.broker_ids[0]

    async def _kill_controller(self, client: tidelog.Client) -> None:
        victim = (await client.cluster_status())["controller"] or self.cluster.broker_ids[0]
        self.say(f"kill -9 {victim}, controller")
        self.cluster.kill(victim)
        await asyncio.sleep(1.0)
        self.cluster.start_broker(victim)
        await self.until_in_sync(client)

    async def repartition(self, client: tidelog.Client, count: int) -> None:
        """Returns when it is finished."""
        before = (await self._status(client))["partitions"]
        began = time.monotonic()
        self.say(f"repartition from {before} to {count}")
        cutover = None
        while time.monotonic() < began + STEP_S:
            status = await self._status(client)
            if cutover is None and status["partitions"] == count:
                cutover = time.monotonic() - began
                self.say(f"cutover to {count} after {cutover:.2f} s")
            if cutover is None and status["repartition"] is None:
                with suppress(tidelog.TidelogError):
                    await client.repartition(STREAM, count)
            elif cutover is not None and status["repartition"] is None:
                took = time.monotonic() - began
                self.say(f"the repartition to {count} is finished after {took:.2f} s")
                self.steps.append(f"{before} to {count}: cutover after {cutover:.2f} s, finished after {took:.2f} s")
                return
            await asyncio.sleep(_LOOK_INTERVAL_S)
        raise AssertionError(f"the repartition to {count} has not ended after {STEP_S:.0f} s")

    async def _status(self, client: tidelog.Client) -> dict[str, Any]:
        while True:
            with suppress(tidelog.TidelogError):
                return dict(await client.repartition_status(STREAM))
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def all_steps(self, client: tidelog.Client) -> None:
        pause = self.options.minutes * 60 / (len(COUNTS) + 1)
        for count in COUNTS[1:]:
            await asyncio.sleep(pause)
            await self.repartition(client, count)
        await asyncio.sleep(pause / 2)
        self.is_over = True

    async def run(self, client: tidelog.Client) -> None:
        """Blows, until all steps are done."""
        steps = asyncio.create_task(self.all_steps(client))
        try:
            while not steps.done():
                began = time.monotonic()
                with suppress(tidelog.TidelogError):
                    await self.strike(client)
                self.fill_up()
                await asyncio.wait([steps], timeout=max(0.1, began + self.options.interval - time.monotonic()))
            await steps
        finally:
            steps.cancel()


# ---- the verdict


@dataclass(slots=True)
class Findings:
    acknowledged: int = 0
    stored: int = 0
    lost: list[str] = field(default_factory=list)
    repeated: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    """Per key, in the log."""
    missed: list[str] = field(default_factory=list)
    """By the group."""
    given_out_of_order: list[str] = field(default_factory=list)
    diverging: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(getattr(self, name) for name in self._named())

    @staticmethod
    def _named() -> tuple[str, ...]:
        return "lost", "repeated", "out_of_order", "missed", "given_out_of_order", "diverging"

    def __str__(self) -> str:
        parts = [f"{self.acknowledged} acknowledged, {self.stored} stored"]
        for name in self._named():
            found = getattr(self, name)
            shown = f" ({'; '.join(found[:3])})" if found else ""
            parts.append(f"{len(found)} {name.replace('_', ' ')}{shown}")
        return ", ".join(parts)


def judge_log(
    found: Findings,
    acked: Mapping[str, tuple[int, int]],
    stored: Mapping[tuple[int, int], str],
    layouts: Sequence[Layout],
) -> None:
    """`stored`: (partition, offset) -> name of the record."""
    found.acknowledged, found.stored = len(acked), len(stored)
    for name, place in acked.items():
        if stored.get(place) != name:
            found.lost.append(f"{name} acknowledged at {place}, there is {stored.get(place)}")
    places: dict[str, tuple[int, int]] = {}
    newest: dict[str, tuple[int, str]] = {}
    for _, partition, offset in sorted((_layout_of(layouts, *place), *place) for place in stored):
        name = stored[partition, offset]
        if name in places:
            found.repeated.append(f"{name} at {places[name]} and {(partition, offset)}")
            continue
        places[name] = partition, offset
        key, number = key_of(name), int(name.split(":")[1])
        before = newest.get(key)
        if before is not None and number < before[0]:
            found.out_of_order.append(f"{name} at {(partition, offset)} after number {before[0]} at {before[1]}")
        newest[key] = number, str((partition, offset))


def _layout_of(layouts: Sequence[Layout], partition: int, offset: int) -> int:
    """Place of the layout under which the record was written. (No partition is removed in these runs.)"""
    return max(place for place, layout in enumerate(layouts) if offset >= layout.start(partition))


def judge_group(found: Findings, acked: Iterable[str], journals: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    reads = sorted(
        ((line["at"], member, line) for member, lines in journals.items() for line in lines if line["kind"] == "read"),
        key=lambda read: read[0],
    )
    given: set[str] = set()
    newest: dict[str, tuple[int, str]] = {}
    for at, member, line in reads:
        for name in line["values"]:
            key, number = key_of(name), int(name.split(":")[1])
            before = newest.get(key)
            if name in given:
                continue
            given.add(name)
            if before is not None and number < before[0]:
                found.given_out_of_order.append(
                    f"{name} of partition {line['partition']} to {member} at {at:.3f} after number {before[0]} to"
                    f" {before[1]}"
                )
            else:
                newest[key] = number, f"{member} at {at:.3f}"
    found.missed = sorted(set(acked) - given)


async def read_back(url: str) -> tuple[dict[tuple[int, int], str], tuple[Layout, ...]]:
    """(partition, offset) -> name, of everything committed; and the layouts of the stream."""
    stored: dict[tuple[int, int], str] = {}
    async with await tidelog.connect(url) as client:
        async for batch in client.consume(STREAM, start="earliest", stop="latest").batches():
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                stored[batch.partition, int(offset)] = name_of(value)
        return stored, (await client._metadata.refresh(StreamName(STREAM))).layouts


async def chaos_repartition(cluster: DevCluster, folder: Path, options: argparse.Namespace) -> bool:
    url = cluster.nats_url
    async with await tidelog.connect(url) as client:
        await client.create_stream(STREAM, partitions=COUNTS[0], replication_factor=min(options.nodes, 3))
        await wait_in_sync(url, STREAM)
        driver = RepartitionChaos(cluster, folder, options)
        looking = asyncio.create_task(driver.look(client))
        try:
            async with writing(url) as writers:
                driver.fill_up()
                await driver.until_joined(client)
                await driver.run(client)
            await driver.until_read(client)
        finally:
            looking.cancel()
            await asyncio.to_thread(driver.end_members)
    description = await wait_in_sync(url, STREAM, timeout=RECOVERY_S)
    stored, layouts = await read_back(url)
    found = Findings(diverging=diverging(description, cluster.data_dirs))
    acked = {name: place for writer in writers for name, place in writer.acked.items()}
    judge_log(found, acked, stored, layouts)
    judge_group(found, acked, driver.journals())
    print(shown_counts(driver.counts))
    for line in (*driver.steps, *writers):
        print(line)
    print(found)
    return found.ok and len(driver.steps) == len(COUNTS) - 1
