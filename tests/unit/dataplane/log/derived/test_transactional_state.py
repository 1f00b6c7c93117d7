"""What a log knows of transactions is what its batches say, however it was opened, cut, or begun anew."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from dataplane.log.derived import derived_state
from dataplane.log.derived.log_snapshot import SNAPSHOT_SUFFIX, decode_snapshot
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.replica.derived.producer_table import KnownProducers, ProducerTable
from tests.unit.dataplane.replica.derived.test_producers import header as plain_header
from tests.unit.dataplane.replica.derived.test_transactions import ONE, THREE, TWO
from wire.batch import BatchBuilder, EncodedBatch, Marker, transaction_marker
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from wire.batch import BatchHeader

CONFIG = LogConfig(segment_bytes=1500, index_interval_bytes=300, tail_bytes=0)
PRODUCERS = (ONE, TWO, THREE)


class Written:
    """A log, and the headers of all that was written to it and not cut off."""

    def __init__(self, directory: Path, random: Random) -> None:
        self.log, _ = PartitionLog.open(directory, CONFIG)
        self.headers: list[BatchHeader] = []
        self._random = random

    def append(self, batch: EncodedBatch) -> None:
        parts, header = batch.stamp(self.log.log_end_offset, LeaderEpoch(1), 1 + len(self.headers))
        self.headers.append(header)
        self.log.append(parts, [header])

    def batch(self, producer: int) -> None:
        table, builder = self.log.producers, BatchBuilder()
        builder.add_values([b"v" * 40] * self._random.randint(1, 3))
        if producer < ONE:
            self.append(builder.build(1))
            return
        known = table.known.transactional.get(producer)
        epoch, sequence = (known.epoch, known.next_sequence) if known is not None else (0, 0)
        self.append(
            builder.build(1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=True)
        )

    def mark(self, producer: int, marker: Marker) -> None:
        self.append(transaction_marker(producer, (self.log.producers.epoch_of(producer) or 0) + 1, marker))

    def step(self) -> None:
        random, log = self._random, self.log
        chance = random.random()
        if chance < 0.6:
            self.batch(random.choice([0, *PRODUCERS]))
        elif chance < 0.8:
            self.mark(random.choice(PRODUCERS), random.choice(list(Marker)))
        elif chance < 0.86:
            log.sync()
            log.write_snapshots()
        elif chance < 0.92:
            log.truncate(Offset(random.randint(log.log_start_offset, log.log_end_offset)))
            self.headers = [each for each in self.headers if each.end_offset <= log.log_end_offset]
        elif chance < 0.95:
            log.sync()
            log.checkpoint_high_watermark(log.log_end_offset)
            log.remove_before(Offset(random.randint(log.log_start_offset, log.log_end_offset)))
        else:
            if random.random() < 0.5:
                log.close()
            self.log, report = PartitionLog.open(log.directory, CONFIG)
            assert report.damaged is None

    def expected(self, end: int | None = None) -> KnownProducers:
        table = ProducerTable(each for each in self.headers if end is None or each.end_offset <= end)
        table.transactions.forget_aborted(self.log.log_start_offset)
        return table.known

    def found(self) -> KnownProducers:
        table = ProducerTable()
        table.restore(self.log.producers.known)
        table.transactions.forget_aborted(self.log.log_start_offset)
        return table.known


@pytest.mark.parametrize("seed", range(15))
def test_a_random_story_ends_with_what_the_batches_say(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(derived_state, "STATE_INTERVAL", 5)
    random = Random(seed)
    written = Written(tmp_path, random)
    for _ in range(120):
        written.step()
        written.log.producers.validate()
        assert written.found() == written.expected()


def test_a_follower_begins_with_the_transactions_before_the_log_start(tmp_path: Path) -> None:
    written = Written(tmp_path / "leader", Random(1))
    for producer in PRODUCERS:
        written.batch(producer)
    written.mark(TWO, Marker.ABORT)
    written.mark(THREE, Marker.COMMIT)
    end = written.log.log_end_offset
    follower, _ = PartitionLog.open(tmp_path / "follower", CONFIG)
    follower.install(decode_snapshot(written.log.snapshot_at(end)))
    assert follower.log_start_offset == end
    assert follower.last_stable(end) == end, "the open transaction begins below the log"
    assert follower.transactions.last_stable(end) == 0
    known, before = follower.producers.known, written.log.producers.known
    assert (known.transactional, known.transactions.open) == (before.transactional, before.transactions.open)
    assert follower.transactions.aborted(end, Offset(end + 1)) == [], "no record of it is in this log"


def test_a_log_that_lost_its_snapshots_is_read_from_its_beginning(tmp_path: Path) -> None:
    written = Written(tmp_path, Random(1))
    for _ in range(20):
        written.batch(ONE)
        written.batch(TWO)
        written.mark(TWO, Marker.ABORT)
    written.log.close()
    lost = [path for path in tmp_path.iterdir() if path.suffix == SNAPSHOT_SUFFIX]
    assert lost
    for path in lost:
        path.unlink()
    log, report = PartitionLog.open(tmp_path, CONFIG)
    assert report.replayed_from == 0
    assert log.producers.known == written.expected()


def test_a_snapshot_of_a_version_without_transactions_is_neither_gone_on_from_nor_sent(tmp_path: Path) -> None:
    """It took the producer for an ordinary one, and the marker for a batch."""
    written = Written(tmp_path, Random(1))
    written.batch(ONE)
    written.mark(ONE, Marker.ABORT)
    written.log.close()
    end = written.log.log_end_offset
    log, _ = PartitionLog.open(tmp_path, CONFIG)
    content = decode_snapshot(log.snapshot_at(end))
    earlier = ProducerTable([plain_header(0, 0, producer=5)]).known
    misread = {**earlier.producers, ONE: content.producers.transactional[ONE]}
    by_earlier = type(content)(end, content.epochs, earlier._replace(producers=misread))
    log._state.derived.write(by_earlier)
    log.close()
    log, report = PartitionLog.open(tmp_path, CONFIG)
    assert report.replayed_from == 0
    assert log.producers.known == written.expected()
    assert decode_snapshot(log.snapshot_at(end)).producers == written.expected(), "it is made anew"
