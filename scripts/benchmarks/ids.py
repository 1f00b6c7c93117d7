"""Message ids: what a window of them takes in memory, and what they cost a leader and a broker that reads its log.

In one process, without NATS and disks, in CPU time, so that other processes on the machine matter less. `rows` gives
the lines of the table.
"""

from __future__ import annotations

import gc
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from itertools import count
from pathlib import Path

from dataplane.broker.leading.ingest import Ingest
from dataplane.broker.roles.id_keeper import IdKeeper
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.replica.derived.dedup_window import MessageIds
from dataplane.replica.leader.quota import Quota
from wire.batch import BatchBuilder, Compression
from wire.batch.encoded import RecordLimit
from wire.errors import TidelogError
from wire.messaging.transport import UniformRun
from wire.partition_messages.jetstream import PublishHeaders
from wire.protobuf.tidelog_pb2 import Message
from wire.stream_config import StreamConfig
from wire.types import Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

WINDOW_MS = 120_000
CHUNK = 500
"""Messages that a leader reads at a time, and records of a batch."""
ROUNDS = 15


def rows(ids: int) -> Iterator[tuple[str, str]]:
    """(what, figure). `ids`: of the window."""
    yield f"memory of a window of {ids:,} ids of 22 bytes", f"{_memory(ids) / 1e6:,.0f} MB"
    leader = _Leader()
    for what, publish, messages in leader.workloads():
        yield what, f"{_best(publish, messages):,.1f} ns"
    for size in (CHUNK, 10, 1):
        yield f"reading an id from the log, in batches of {size}", f"{_read(size, min(ids, 20_000 * size)):,.1f} µs"


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


class _Rules:
    """A leader that has the ids, and is asked for nothing else."""

    def __init__(self, table: MessageIds) -> None:
        self._table = table

    def before(self, ingest: Ingest, wanted: PublishHeaders, reply: bytes | None) -> bool:  # noqa: ARG002
        return False

    def after(self, ingest: Ingest, wanted: PublishHeaders, reply: bytes | None) -> bool:  # noqa: ARG002
        return False

    def may_know(self, message_ids: Collection[bytes]) -> bool:
        return self._table.may_hold(message_ids, 0)

    def repeated(self, message_id: bytes, reply: bytes | None) -> bool:  # noqa: ARG002
        return self._table.find(message_id, 0) is not None

    def repeated_envelope(self, message_id: bytes, message: Message) -> bool:  # noqa: ARG002
        return False

    def refuse_ids(self, new: int) -> TidelogError | None:  # noqa: ARG002
        return None


class _Leader:
    """The way of a publish from the parser to a sealed batch."""

    def __init__(self) -> None:
        self._end = 0
        self._ids = MessageIds(WINDOW_MS, 10_000_000)
        key = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))
        self._ingest = Ingest(
            seal=self._seal,
            wants_batch=lambda: True,
            refuse=lambda _: None,
            on_refused=lambda *_: None,
            on_corrupt=lambda *_: None,
            on_envelope_refused=lambda *_: None,
            is_inbox=lambda _: True,
            rules=_Rules(self._ids),
            time_ns=lambda: 0,
            quota=Quota(key, StreamConfig(), 0.0),
            now=lambda: 0.0,
        )
        self._ingest.configure(
            max_batch_bytes=1 << 20, record_limit=RecordLimit(1 << 20), with_replies=True, seeks_repetitions=True
        )

    def _seal(self) -> None:
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
