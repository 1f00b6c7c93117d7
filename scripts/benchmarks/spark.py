"""Spark on Tidelog: rows/s and CPU time of batch queries and of writes, and the time of a micro-batch with little data.

    scripts/bench spark [--quick] [--rows N] [--rounds N] [--only reads|sinks] [--json]

Records of 128 B in 1, 4 and 64 partitions, Spark with two slots, everything warm; medians of the rounds. Beside them
the same rows from Parquet, from `range`, as tuples, and from memory as Arrow batches (the Arrow pipe: what no Python
source can beat). CPU seconds are of the JVM, of Spark's Python processes, and of the servers. Rows that are written
come from `range` and go to 4 partitions, with and without keys, at least once and exactly once. At last 10 GB of
records of 1 MiB are read, and the most memory that a Python process of Spark ever had is told.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import tidelog
from scripts.benchmarks.rig.comparison import Comparison, Figure, tell
from scripts.benchmarks.rig.machine import about
from scripts.benchmarks.spark_sources import VALUE, ArrowPipe, Counting, Tuples
from spark_connector.java import ensure_java
from spark_connector.reads.plans import default_tasks
from tidelog.server.devcluster import DevCluster

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, QUICK_ROWS = 5_000_000, 500_000
PARTITIONS = (1, 4, 64)
ROUNDS = 3
WARM_UP = 5
ROOT = Path(__file__).parents[2]
MICRO_BATCHES = 12
READY_SECONDS = 60.0

VALUE_ROWS_AT_LEAST = 2e6
SHARE_OF_PIPE_AT_LEAST = 0.75
"""Of rows for each CPU second of JVM and Python."""
MICRO_BATCH_MORE_AT_MOST_MS = 60.0
LARGE_BYTES = 1 << 20
LARGE_RECORDS, QUICK_LARGE_RECORDS = 1_000, 100
LARGE_PASSES = 10
LARGE_PARTITIONS = 16
"""So many that a task fetches several of them at once."""
WORKER_MB_AT_MOST = 300.0
SINK_PARTITIONS = 4
SINK_SHARE = 5
"""A write has this part of the rows of a read: it takes longer."""
SINK_ROWS_AT_LEAST = 300e3
EXACTLY_ONCE_AT_LEAST = 0.75
"""Of the rows/s at least once."""
READS, SINKS = "reads", "sinks"
MAX_PAYLOAD = 8 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quick", action="store_true", help="fewer rows and one round: a first look")
    parser.add_argument("--rows", type=int, help=f"in each stream (default {ROWS:,}; with --quick {QUICK_ROWS:,})")
    parser.add_argument("--rounds", type=int, help=f"of each query (default {ROUNDS}; with --quick 1)")
    parser.add_argument("--only", choices=(READS, SINKS), help="a part of it")


def run(options: argparse.Namespace) -> Comparison:
    rows = options.rows or (QUICK_ROWS if options.quick else ROWS)
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    found = Comparison(about(rounds=rounds, quick=options.quick) | {"rows": rows})
    with (
        tempfile.TemporaryDirectory(prefix="tidelog-bench-") as folder,
        DevCluster(Path(folder) / "cluster", nodes=1, port=0, max_payload=MAX_PAYLOAD) as cluster,
    ):
        cluster.wait_ready(READY_SECONDS)
        for partitions in PARTITIONS if options.only != SINKS else ():
            tell(f"{rows:,} records into {partitions} partitions")
            asyncio.run(_fill(cluster.nats_url, _name(partitions), partitions, rows))
        with _spark() as spark:
            bench = _Bench(spark, cluster, Path(folder), rows, rounds, found)
            if options.only != READS:
                bench.sinks()
            if options.only != SINKS:
                bench.run()
                bench.memory(QUICK_LARGE_RECORDS if options.quick else LARGE_RECORDS)
    return found


def _name(partitions: int) -> str:
    return f"bench{partitions}"


async def _fill(url: str, stream: str, partitions: int, rows: int) -> None:
    async with await tidelog.connect(url) as client:
        await client.ensure_stream(stream, subject=stream, partitions=partitions, replication_factor=1)
        async with client.producer(stream, acks="all") as producer:
            for partition in range(partitions):
                share = rows // partitions
                for begun in range(0, share, 50_000):
                    await producer.send_many([VALUE] * min(50_000, share - begun), partition=partition)


async def _create(url: str, stream: str, partitions: int) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream(stream, subject=stream, partitions=partitions, replication_factor=1)


async def _delete(url: str, stream: str) -> None:
    async with await tidelog.connect(url) as client:
        await client.delete_stream(stream)


async def _fill_large(url: str, records: int) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream(
            "large",
            subject="large",
            partitions=LARGE_PARTITIONS,
            replication_factor=1,
            config={"max_record_bytes": 2 * LARGE_BYTES},
        )
        async with client.producer("large", acks="all") as producer:
            for number in range(records):
                await producer.send(os.urandom(64).ljust(LARGE_BYTES, b"."), partition=number % LARGE_PARTITIONS)


@contextmanager
def _spark() -> Iterator[SparkSession]:
    from pyspark.sql import SparkSession

    ensure_java()
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "spark_connector" / "autoload"), path])
    session = (
        SparkSession.builder.master("local[2]")
        .appName("tidelog-bench")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    for source in (ArrowPipe, Tuples, Counting):
        session.dataSource.register(source)
    try:
        yield session
    finally:
        session.stop()
        os.environ["PYTHONPATH"] = path


_Cpu = Mapping[tuple[str, int], float]
"""Seconds by what it is (JVM, Python, servers), and process."""


def _used(before: _Cpu, after: _Cpu, what: str) -> float:
    """Processes that have ended meanwhile are left out."""
    return sum(seconds - before.get(key, 0.0) for key, seconds in after.items() if key[0] == what)


class _Queried(NamedTuple):
    rate: float
    """Rows per second."""
    rows_per_cpu: float
    """Rows for each CPU second of JVM and Python."""


@dataclass(slots=True)
class _Bench:
    spark: SparkSession
    cluster: DevCluster
    folder: Path
    rows: int
    rounds: int
    found: Comparison

    def run(self) -> None:
        pipe = self._pipe()
        for partitions in PARTITIONS:
            of = f"{partitions} partition{'s' if partitions > 1 else ''}"
            whole, narrow = self._stream(partitions), self._stream(partitions, columns="value")
            self._query(f"{of}: count()", whole.count)
            self._query(f"{of}: sum(length(value))", partial(_sum, narrow))
            self._query(f"{of}: all columns to noop", partial(_noop, whole))
            wanted = VALUE_ROWS_AT_LEAST if partitions > 1 else None
            self._query(f"{of}: value alone to noop", partial(_noop, narrow), wanted, pipe)
        self._others()
        for partitions in PARTITIONS:
            self._micro_batches(partitions)

    def sinks(self) -> None:
        rows = self.rows // SINK_SHARE
        tell(f"{rows:,} rows written")
        value = f"X'{VALUE.hex()}' AS value"
        for kind, columns in (("rows", [value]), ("rows with keys", ["CAST(id AS STRING) AS key", value])):
            frame = self.spark.range(rows).selectExpr(*columns)
            rates = []
            for guarantee, at_least in (("at_least_once", SINK_ROWS_AT_LEAST), ("exactly_once", None)):
                stream = f"{guarantee}-{len(columns)}"
                asyncio.run(_create(self.cluster.nats_url, stream, SINK_PARTITIONS))
                write = partial(_write, frame, self.cluster.nats_url, stream, guarantee)
                rates.append(self._query(f"write {kind}: {guarantee}", write, at_least, rows=rows).rate)
                asyncio.run(_delete(self.cluster.nats_url, stream))
            what = f"write {kind}: exactly_once beside at_least_once"
            self._record(what, rates[1] / rates[0], "", at_least=EXACTLY_ONCE_AT_LEAST)

    def memory(self, records: int) -> None:
        """Of Spark's Python processes, when they have read large records, too."""
        tell(f"{LARGE_PASSES} times {records:,} records of {LARGE_BYTES:,} B")
        asyncio.run(_fill_large(self.cluster.nats_url, records))
        before = self._most_memory()
        frame = self.spark.read.format("tidelog").options(servers=self.cluster.nats_url, subscribe="large").load()
        for _ in range(LARGE_PASSES):
            _noop(frame)
        most = self._most_memory()
        note = f"{before / 1e6:.0f} MB before the records of {LARGE_BYTES:,} B"
        what = "memory of a Python worker at most"
        self._record(what, most / 1e6, "MB", at_most=WORKER_MB_AT_MOST, note=note)

    def _record(self, what: str, value: float, unit: str, **of_figure: Any) -> None:
        self.found.record(Figure(key=f"spark/{what}", what=what, unit=unit, **of_figure), value)

    def _most_memory(self) -> int:
        jvm = _jvm()
        return max(_peak_bytes(pid) for pid in _descendants(jvm))

    def _pipe(self) -> float:
        """Rows for each CPU second of JVM and Python. Measured once the JVM has compiled what it runs."""
        frame = self.spark.read.format("bench_arrow").options(rows=self.rows, partitions=2).load()
        for _ in range(WARM_UP):
            _noop(frame)
        return self._query("Arrow pipe from memory: value to noop", lambda: _noop(frame)).rows_per_cpu

    def _others(self) -> None:
        parquet = str(self.folder / "parquet")
        self._stream(4, columns="value").write.parquet(parquet)
        stored = self.spark.read.parquet(parquet)
        self._query("Parquet: value to noop", lambda: _noop(stored))
        numbers = self.spark.range(self.rows)
        self._query("range: to noop", lambda: _noop(numbers))
        few = self.rows // 10
        tuples = self.spark.read.format("bench_tuples").options(rows=few, partitions=2).load()
        self._query("tuples from memory: value to noop", lambda: _noop(tuples), rows=few)

    def _stream(self, partitions: int, **options: str) -> DataFrame:
        reader = self.spark.read.format("tidelog").option("servers", self.cluster.nats_url)
        return reader.options(subscribe=_name(partitions), **options).load()

    def _query(
        self,
        what: str,
        query: Callable[[], Any],
        at_least: float | None = None,
        pipe: float | None = None,
        *,
        rows: int | None = None,
    ) -> _Queried:
        count = rows or self.rows
        query()
        walls, used = [], []
        for _ in range(self.rounds):
            gc.collect()
            before, began = self._cpu(), time.perf_counter()
            query()
            walls.append(time.perf_counter() - began)
            after = self._cpu()
            used.append([_used(before, after, what) for what in ("JVM", "Python", "servers")])
        jvm, python, servers = (statistics.median(each) for each in zip(*used, strict=True))
        note = f"CPU seconds: JVM {jvm:.2f}, Python {python:.2f}, servers {servers:.2f}"
        queried = _Queried(count / statistics.median(walls), count / max(jvm + python, 1e-9))
        self._record(what, queried.rate / 1e6, "M/s", at_least=at_least and at_least / 1e6, note=note)
        if pipe is not None:
            beside = f"{what}, beside the Arrow pipe, by CPU"
            self._record(beside, queried.rows_per_cpu / pipe, "", at_least=SHARE_OF_PIPE_AT_LEAST)
        return queried

    def _micro_batches(self, partitions: int) -> None:
        """With a row in each partition, beside a source of fifteen lines."""
        plain = self.spark.readStream.format("bench_counting").options(
            rows=0, partitions=min(partitions, default_tasks())
        )
        counting = self._durations(plain.load(), lambda: None)
        reader = self.spark.readStream.format("tidelog").option("servers", self.cluster.nats_url)
        frame = reader.options(subscribe=_name(partitions), startingOffsets="latest").load()

        def publish() -> None:
            asyncio.run(_fill(self.cluster.nats_url, _name(partitions), partitions, partitions))

        ours = self._durations(frame, publish)
        what = f"micro-batch, a row in each of {partitions} partitions, more than a source of fifteen lines"
        note = f"{ours:.0f} ms, and {counting:.0f} with as many tasks"
        self._record(what, ours - counting, "ms", at_most=MICRO_BATCH_MORE_AT_MOST_MS, note=note)

    def _durations(self, frame: DataFrame, publish: Callable[[], None]) -> float:
        """Median of a micro-batch, ms; the first ones are not counted."""
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            query = frame.writeStream.format("noop").option("checkpointLocation", folder).start()
            try:
                deadline = time.monotonic() + READY_SECONDS
                found: list[int] = []
                while len(found) < MICRO_BATCHES and time.monotonic() < deadline:
                    publish()
                    time.sleep(0.3)
                    found = [int(each.batchDuration) for each in query.recentProgress if each.numInputRows]
            finally:
                query.stop()
        return float(statistics.median(found[MICRO_BATCHES // 3 :]))

    def _cpu(self) -> _Cpu:
        jvm = _jvm()
        servers = [self.cluster.pid(broker) for broker in self.cluster.broker_ids] + [self.cluster.nats_pid]
        pids = [("JVM", jvm), *(("Python", pid) for pid in _descendants(jvm))]
        pids += [("servers", pid) for pid in servers if pid is not None]
        return {(what, pid): _cpu_of(pid) for what, pid in pids}


def _sum(frame: DataFrame) -> object:
    return frame.selectExpr("sum(length(value))").collect()


def _noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _write(frame: DataFrame, url: str, stream: str, guarantee: str) -> None:
    options = {"servers": url, "stream": stream, "guarantee": guarantee}
    frame.write.format("tidelog").options(**options).mode("append").save()


_TICKS = os.sysconf("SC_CLK_TCK")


def _cpu_of(pid: int) -> float:
    """Seconds."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _jvm() -> int:
    return next(pid for pid in _descendants(os.getpid()) if _command(pid).endswith("java"))


def _peak_bytes(pid: int) -> int:
    """The most memory that a process has had."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM")), 0)


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()
    except OSError:
        return ""


def _descendants(pid: int) -> Iterator[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for process in Path("/proc").glob("[0-9]*"):
        try:
            parent = (process / "stat").read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()[1]
        except OSError:
            continue
        children[int(parent)].append(int(process.name))
    waiting = list(children[pid])
    while waiting:
        found = waiting.pop()
        yield found
        waiting += children[found]
