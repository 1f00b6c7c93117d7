"""Message ids: what a window of them takes in memory, and what they cost a leader and a broker that reads its log.

In one process, without NATS and disks, in CPU time, so that other processes on the machine matter less.
"""

from __future__ import annotations

import argparse
import gc
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

from dataplane.broker.leading.ingest import Ingest
from dataplane.broker.roles.id_keeper import IdKeeper
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.replica.derived.dedup_window import MessageIds
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.append_rules import APART, STORE, AnswerWith, Decision, PublishRun
from scripts.benchmarks.rig.comparison import Comparison, Figure
from wire.batch import BatchBuilder, Compression
from wire.batch.encoded import RecordLimit
from wire.messaging.transport import UniformRun
from wire.types import LeaderEpoch, Offset

WINDOW_MS = 120_000
CHUNK = 500
"""Messages that a leader reads at a time, and records of a batch."""
ROUNDS = 15


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ids", type=int, default=1_000_000, help="of the window (default: %(default)s)")


def run(options: argparse.Namespace) -> Comparison:
    ids: int = options.ids
    found = Comparison()

    def record(what: str, value: float, unit: str) -> None:
        found.record(Figure(key=f"ids/{what}", what=what, unit=unit, less_is_better=True), value)

    record(f"memory of a window of {ids:,} ids of 22 bytes", _memory(ids) / 1e6, "MB")
    leader = _Leader()
    for what, publish, messages in leader.workloads():
        record(what, _best(publish, messages), "ns")
    for size in (CHUNK, 10, 1):
        record(f"reading an id from the log, in batches of {size}", _read(size, min(ids, 20_000 * size)), "µs")
    return found


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _memory(ids: int) -> int:
    gc.collect()
    before = _resident()
    table = MessageIds(WINDOW_MS, ids)
    for base in range(0, ids, CHUNK):
        table.add_all([(place, os.urandom(11).hex().encode()) for place in range(CHUNK)], Offset(base), base)
    return _resident() - before


def _best(work: Callable[[], None], messages: int) -> float:
    """ns of each message."""
    took = []
    for _ in range(ROUNDS):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return min(took) / messages * 1e9


class _Leader:
    """The way of a publish from the parser to a sealed batch."""

    def __init__(self) -> None:
        self._end = 0
        self._ids = MessageIds(WINDOW_MS, 10_000_000)
        self._ingest = Ingest(self, is_inbox=lambda _: True, time_ns=lambda: 0)
        self._ingest.configure(
            level=AckLevel(is_local=False, is_synced=True),
            max_batch_bytes=1 << 20,
            record_limit=RecordLimit(1 << 20),
            with_replies=True,
            seeks_repetitions=True,
        )

    # ---- `ingest.Publishes`
    def decide(self, publish: PublishRun) -> Decision:
        if publish.records > 1:
            is_known = publish.ids and self._ids.may_hold({message_id for _, message_id in publish.ids}, 0)
            return APART if is_known else STORE
        found = self._ids.find(publish.ids[0][1], 0) if publish.ids else None
        return STORE if found is None else AnswerWith(found, found, {0: found})

    def wants_batch(self) -> bool:
        return True

    def _nothing(self, *_: object) -> None: ...

    on_refused = on_denied = on_envelope_refused = on_repetition = _nothing

    def seal(self) -> None:
        taken = self._ingest.take(Compression.NONE)
        if taken.ids:
            self._ids.add_all(taken.ids, Offset(self._end), 0)
        self._end += taken.batch.record_count

    def _publish(self, chunks: Iterator[list[bytes | None]], payloads: list[bytes], times: int) -> None:
        for _ in range(times):
            self._ingest.on_messages(payloads, [None] * CHUNK, next(chunks))
            self._ingest.chunk_done()

    def workloads(self) -> Iterator[tuple[str, Callable[[], None], int]]:
        """(what, the work, messages)."""
        line = b"MSG s 1 128\r\n" + os.urandom(128) + b"\r\n"
        run = UniformRun(memoryview(line * 4096), 4096, len(line), 13, 128, None)

        def uniform() -> None:
            for _ in range(10):
                self._ingest.on_uniform(run)
                self._ingest.chunk_done()

        yield "a publish of 128 B, messages of one size, no headers", uniform, 40_960
        payloads = [os.urandom(100 + number % 60) for number in range(CHUNK)]
        numbers = count()

        def always(chunk: list[bytes | None]) -> Iterator[list[bytes | None]]:
            while True:
                yield chunk

        def named(name: str) -> list[bytes | None]:
            return [f"NATS/1.0\r\n{name}: {next(numbers):022d}\r\n\r\n".encode() for _ in range(CHUNK)]

        new = iter([named("Nats-Msg-Id") for _ in range(40 * ROUNDS)])
        again = named("Nats-Msg-Id")
        for what, chunks, times in (
            ("mixed sizes, no headers", always([None] * CHUNK), 40),
            ("mixed sizes, other headers", always(named("Trace")), 40),
            ("mixed sizes, a new id each", new, 40),
            ("mixed sizes, all repetitions", always(again), 4),
        ):
            if chunks is not new:
                self._publish(chunks, payloads, 1)
            yield what, lambda c=chunks, t=times: self._publish(c, payloads, t), times * CHUNK  # type: ignore[misc]


def _read(size: int, ids: int) -> float:
    """µs of each id."""
    with tempfile.TemporaryDirectory() as folder:
        log, _ = PartitionLog.open(Path(folder), LogConfig(segment_bytes=256 << 20))
        for base in range(0, ids, size):
            builder = BatchBuilder()
            builder.has_message_ids = True
            for number in range(base, base + size):
                builder.add_record(b"v" * 100, headers=b"NATS/1.0\r\nNats-Msg-Id: %022d\r\n\r\n" % number)
            parts, header = builder.build(1).stamp(log.log_end_offset, LeaderEpoch(1), 1)
            log.append(parts, [header])
        keeper = IdKeeper()
        keeper.configure(WINDOW_MS, ids)
        began = time.process_time()
        keeper.catch_up(log, bytes)
        took = time.process_time() - began
        log.close()
    return took / ids * 1e6
