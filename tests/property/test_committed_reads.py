"""What a consumer of committed records gets is what a simple model says, whatever becomes of the log.

Batches of several transactional producers and of others lie between one another; transactions commit, abort, or stay
open; the HW moves; the log is cut above it, compacted, opened again with and without its snapshots; its oldest segments
are removed.
"""

# Rules: R50.

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from dataplane.log.derived.log_snapshot import SNAPSHOT_SUFFIX
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.replica.derived.transaction_table import without_aborted
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.log.compacting import append, compact, end, rows
from wire.batch import Marker, iter_batches
from wire.types import Buffer, Offset

HOME = Path("/log")
CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=400)
PRODUCERS = 3


class Stored(NamedTuple):
    """A batch of the model."""

    offset: int
    keys: str
    """A record of each key."""
    producer: int | None = None
    marker: Marker | None = None

    @property
    def end(self) -> int:
        return self.offset + (len(self.keys) or 1)


class Seen(NamedTuple):
    offset: int
    key: str
    timestamp: int


class Model:
    def __init__(self) -> None:
        self.batches: list[Stored] = []
        self.high_watermark = 0
        self.log_start = 0

    @property
    def log_end(self) -> int:
        return self.batches[-1].end if self.batches else self.log_start

    def epoch_of(self, producer: int) -> int:
        return sum(batch.producer == producer and batch.marker is not None for batch in self.batches)

    def open_of(self, producer: int) -> list[Stored]:
        """The batches of its open transaction."""
        found: list[Stored] = []
        for batch in self.batches:
            if batch.producer == producer:
                found = [] if batch.marker is not None else [*found, batch]
        return found

    def _transactions(self) -> list[tuple[list[Stored], Stored | None]]:
        """(its batches, its marker) of each transaction."""
        found: list[tuple[list[Stored], Stored | None]] = []
        for producer in range(PRODUCERS):
            mine: list[Stored] = []
            for batch in self.batches:
                if batch.producer == producer:
                    if batch.marker is None:
                        mine.append(batch)
                    elif mine:
                        found.append((mine, batch))
                        mine = []
            if mine:
                found.append((mine, None))
        return found

    @property
    def last_stable(self) -> int:
        undecided = [
            mine[0].offset
            for mine, marker in self._transactions()
            if marker is None or marker.offset >= self.high_watermark
        ]
        return max(min([self.high_watermark, *undecided]), self.log_start)

    def seen(self, clean_end: int) -> list[Seen]:
        """By a consumer of committed records, from the log start on, in a log that is compacted up to `clean_end`."""
        aborted = {
            batch
            for mine, marker in self._transactions()
            if marker is not None and marker.marker is Marker.ABORT
            for batch in mine
        }
        there = [
            Seen(batch.offset + number, key, 1_000 * (batch.offset + 1))
            for batch in self.batches
            if batch not in aborted
            for number, key in enumerate(batch.keys)
        ]
        newest = {each.key: each.offset for each in there if each.offset < clean_end}
        stable = self.last_stable
        return [
            each
            for each in there
            if self.log_start <= each.offset < stable and (each.offset >= clean_end or newest[each.key] == each.offset)
        ]


class Log:
    """The production log, and the model of it."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.log, _ = PartitionLog.open(HOME, CONFIG, files=self.disk)
        self.model = Model()

    def write(self, producer: int, keys: str) -> None:
        """The producer with the highest number writes outside of transactions."""
        model, records = self.model, [(key.encode(), b"v") for key in keys]
        if producer == PRODUCERS:
            model.batches.append(Stored(model.log_end, keys))
            append(self.log, records)
            return
        sequence = sum(len(batch.keys) for batch in model.open_of(producer))
        transaction = producer, model.epoch_of(producer), sequence
        model.batches.append(Stored(model.log_end, keys, producer))
        append(self.log, records, transaction=transaction)

    def end(self, producer: int, marker: Marker) -> None:
        epoch = self.model.epoch_of(producer)
        self.model.batches.append(Stored(self.model.log_end, "", producer, marker))
        end(self.log, producer, epoch, marker)

    def commit(self, count: int) -> None:
        """The HW lies at the end of a batch."""
        model = self.model
        ends = [batch.end for batch in model.batches if batch.end <= model.high_watermark + count]
        model.high_watermark = max([model.high_watermark, *ends])
        self.log.transactions.on_committed(Offset(model.high_watermark))

    def cut(self, count: int) -> None:
        """The last batches, as far as they are not committed."""
        self.log.sync()
        target = max(self.model.high_watermark, self.model.log_end - count)
        new_end = self.log.truncate(Offset(target))
        self.model.batches = [batch for batch in self.model.batches if batch.end <= new_end]

    def compact(self) -> None:
        self.log.roll()
        self.log.sync()
        compact(self.log, self.model.high_watermark)
        self.log.swapping.forget_compacted()

    def retain(self, count: int) -> None:
        self.log.sync()
        model = self.model
        self.log.remove_before(Offset(min(model.log_start + count, model.high_watermark)))
        model.log_start = self.log.log_start_offset
        self.log.transactions.forget_aborted(Offset(model.log_start))

    def reopen(self, *, loses_snapshots: bool) -> None:
        self.log.close()
        if loses_snapshots and not self.model.log_start:
            for path, _ in self.disk.files_below(HOME):
                if path.suffix == SNAPSHOT_SUFFIX:
                    self.disk.remove(path)
        self.log, report = PartitionLog.open(HOME, CONFIG, files=self.disk)
        assert report.damaged is None

    def read(self, start: int, max_bytes: int) -> list[tuple[int, str]]:
        """As a consumer reads that goes on from answer to answer."""
        stable = self.log.last_stable(Offset(self.model.high_watermark))
        position, found = Offset(start), []
        while position < stable:
            parts = self.log.read(position, max_bytes=max_bytes, end_offset=stable)
            if parts is None:
                cold: Buffer = self.log.read_from_disk(position, max_bytes=max_bytes, end_offset=stable)
                parts = [cold]
            data = b"".join(without_aborted(parts, position, self.log.transactions, max_bytes))
            if not data:
                break  # what follows was compacted away
            found += [(row.offset, (row.key or b"").decode()) for row in rows(data) if row.offset >= position]
            *_, (_, last) = iter_batches(data)
            assert position < last.end_offset <= stable
            position = last.end_offset
        return found

    def check(self, start: int, max_bytes: int) -> None:
        model, log = self.model, self.log
        log.transactions.validate()
        assert log.log_end_offset == model.log_end
        assert log.last_stable(Offset(model.high_watermark)) == model.last_stable
        seen = model.seen(log.compaction_point.clean_end)
        start = max(start, model.log_start)
        assert self.read(start, max_bytes) == [(each.offset, each.key) for each in seen if each.offset >= start]
        timestamp = 1_000 * (start + 1)
        first = next((each.offset for each in seen if each.timestamp >= timestamp), None)
        assert log.offset_for_timestamp(timestamp, Offset(model.last_stable)) == first


counts = st.integers(0, 12)
steps = st.one_of(
    st.tuples(st.just("write"), st.integers(0, PRODUCERS), st.text("abc", min_size=1, max_size=3)),
    st.tuples(st.just("write"), st.integers(0, PRODUCERS), st.text("abc", min_size=1, max_size=3)),
    st.tuples(st.just("end"), st.integers(0, PRODUCERS - 1), st.sampled_from(Marker)),
    st.tuples(st.just("commit"), counts, st.none()),
    st.tuples(st.just("cut"), counts, st.none()),
    st.tuples(st.just("compact"), st.none(), st.none()),
    st.tuples(st.just("retain"), counts, st.none()),
    st.tuples(st.just("reopen"), st.booleans(), st.none()),
    st.tuples(st.just("read"), counts, st.sampled_from([1, 300, 1 << 20])),
)

AN_ABORTED_VALUE = [
    ("write", PRODUCERS, "a"),
    ("write", 0, "a"),
    ("end", 0, Marker.ABORT),
    ("commit", 3, None),
    ("compact", None, None),
    ("read", 0, 300),
]
A_MARKER_THAT_IS_NOT_COMMITTED = [
    ("write", PRODUCERS, "a"),
    ("write", 0, "b"),
    ("write", PRODUCERS, "c"),
    ("end", 0, Marker.COMMIT),
    ("commit", 3, None),
    ("read", 0, 300),
    ("cut", 1, None),
    ("end", 0, Marker.ABORT),
    ("read", 0, 300),
]
AN_OPEN_TRANSACTION_IN_A_LOG_THAT_IS_COMPACTED = [
    ("write", PRODUCERS, "a"),
    ("write", 0, "a"),
    ("commit", 2, None),
    ("compact", None, None),
    ("end", 0, Marker.ABORT),
    ("commit", 1, None),
    ("read", 0, 300),
]


@settings(max_examples=150, deadline=None)
@given(st.lists(steps, max_size=40))
@example(AN_ABORTED_VALUE)
@example(A_MARKER_THAT_IS_NOT_COMMITTED)
@example(AN_OPEN_TRANSACTION_IN_A_LOG_THAT_IS_COMPACTED)
def test_a_consumer_of_committed_records_gets_what_the_model_says(script: list) -> None:  # type: ignore[type-arg]
    log = Log()
    for what, first, second in script:
        match what:
            case "write":
                log.write(first, second)
            case "end":
                log.end(first, second)
            case "commit":
                log.commit(first)
            case "cut":
                log.cut(first)
            case "compact":
                log.compact()
            case "retain":
                log.retain(first)
            case "reopen":
                log.reopen(loses_snapshots=first)
            case _:
                log.check(first, second)
    log.commit(1 << 20)
    log.check(0, 300)
