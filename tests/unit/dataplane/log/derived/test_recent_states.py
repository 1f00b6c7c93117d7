"""A truncation costs what it cuts off, and leaves the producer table that the batches make which are left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dataplane.log.derived import derived_state
from dataplane.log.derived.derived_state import MAX_REFERENCES, MAX_STATES, RecentState, RecentStates
from dataplane.log.derived.log_snapshot import Section, Snapshot
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.log_errors import NoSpace
from dataplane.replica.derived.producer_table import (
    Duplicate,
    Fresh,
    KnownProducers,
    Producer,
    ProducerLimits,
    ProducerTable,
    RememberedBatch,
)
from tests.simulation.machines.disk import AMPLE, SimDisk
from tests.unit.dataplane.log.derived.test_derived_state import HOME, SECOND, Counting, Written, snapshots
from wire.batch import BatchBuilder, BatchHeader
from wire.types import NO_PRODUCER, LeaderEpoch, Offset


class TestCost:
    def test_a_cut_reads_about_as_many_headers_as_it_removes(self, tmp_path: Path) -> None:
        files = Counting()
        config = LogConfig(index_interval_bytes=2000)
        written = Written(PartitionLog.open(tmp_path, config, files=files)[0])
        written.append(5000, count=1)
        batch = written.headers[-1].size
        for cut in (1, 10, 300, 1000):
            files.bytes = 0
            written.cut(written.log.log_end_offset - cut)
            assert files.bytes < (2 * 128 + 3 * cut) * batch + 5 * (16 << 10), f"{cut} batches are cut"
            assert written.log.producers.known == written.known()

    def test_a_snapshot_that_was_captured_below_the_cut_is_written_all_the_same(self, written: Written) -> None:
        written.append(5)
        assert written.log.roll()
        written.append(2)
        written.cut(13)
        written.log.sync()
        written.log.write_snapshots()
        assert snapshots(written.log) == [10]

    def test_cuts_do_not_put_snapshots_off(self, written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
        """An open reads at most the headers of so many bytes, however often the log was cut."""
        monkeypatch.setattr(derived_state, "SNAPSHOT_INTERVAL_BYTES", 1500)
        monkeypatch.setattr(derived_state, "STATE_INTERVAL", 2)
        for _ in range(20):
            written.append(3)
            written.cut(written.log.log_end_offset - 2)
            written.log.sync()
            written.log.write_snapshots()
        size = written.headers[-1].size
        assert (written.log.log_end_offset - written.reopen()) // 2 * size < 1500 + 3 * size


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(PartitionLog.open(tmp_path, LogConfig(tail_bytes=0))[0])


def state(batches: int, producers: int = 1) -> RecentState:
    known = KnownProducers({number: Producer(0, 0, b"") for number in range(producers)})
    return RecentState(Offset(batches), batches, known, (), Offset(0), 0)


class TestWhichStatesAreKept:
    def test_the_distance_to_the_one_below_a_cut_is_no_more_than_a_few_times_the_cut(self) -> None:
        states = RecentStates()
        for end in range(1, 30_000):
            if end >= states.due:
                states.keep(state(end))
                assert len(states._states) <= MAX_STATES
        assert states._states[0].batches < 20_000
        kept = [each.batches for each in states._states]
        for below, above in zip(kept, [*kept[1:], 30_000], strict=True):
            assert above - below <= max(128, 3 * (30_000 - above)), kept

    def test_with_many_producers_there_are_fewer_states_and_at_least_two(self) -> None:
        states = RecentStates()
        for producers, expected in ((5_000, 8), (19_999, 2), (90_000, 2)):
            known = state(0, producers).producers
            for _ in range(20):
                states.keep(state(states.due)._replace(producers=known))
            assert len(states._states) <= expected
            assert sum(len(each.producers.producers) for each in states._states) <= max(MAX_REFERENCES, 2 * producers)
            newest = states._states[-1].batches
            assert states.due == newest + producers

    def test_states_above_a_cut_are_forgotten_and_one_below_the_log_start_is_not_used(self) -> None:
        states = RecentStates()
        for batches in (10, 20, 30):
            states.keep(state(batches))
        found = states.back_to(Offset(5), Offset(25))
        assert found is not None
        assert (found.offset, states.due) == (20, 20 + 128)
        assert states.back_to(Offset(21), Offset(40)) is None
        assert states.back_to(Offset(0), Offset(9)) is None
        assert states.due == 0


def test_of_a_copy_of_a_compacted_log_a_cut_leaves_known_what_comes_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own table never knew the batches that the leader had compacted away: none of them is sent again."""
    monkeypatch.setattr(derived_state, "STATE_INTERVAL", 1)
    disk = SimDisk(crash=SystemExit)
    log = PartitionLog.open(HOME, LogConfig(tail_bytes=0), files=disk)[0]
    for number in (0, 4, 5, 6, 7, 8, 9):  # 1 to 3 have five later ones
        builder = BatchBuilder()
        builder.add_values([b"v"] * 10)
        built = builder.build(1, producer_id=5, producer_epoch=0, base_sequence=10 * number)
        parts, header = built.stamp(Offset(10 * number), LeaderEpoch(1), SECOND)
        log.append(parts, [header])
    log.truncate(Offset(50))
    for _ in range(2):
        table = log.producers
        assert table.known.producers[5].batches == (RememberedBatch(0, 0, 10), RememberedBatch(40, 40, 10))
        assert table.check(5, 0, 50, 10) == Fresh()
        assert table.check(5, 0, 40, 10) == Duplicate(Offset(40), Offset(50))
        log.close()
        log = PartitionLog.open(HOME, LogConfig(tail_bytes=0), files=disk)[0]


class Histories:
    """A log, the batches that were written to it, and random steps."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(crash=SystemExit)
        self.random = Random(seed)
        self.config = LogConfig(
            segment_bytes=self.random.choice((1500, 1 << 20)),
            index_interval_bytes=300,
            tail_bytes=0,
            producers=ProducerLimits(
                max_producers=self.random.choice((2, 4, 100)), expiration_ms=self.random.choice((3000, 10**9))
            ),
        )
        self.log = PartitionLog.open(HOME, self.config, files=self.disk)[0]
        self.headers: list[BatchHeader] = []
        self.base = Snapshot(Offset(0))
        """The log began with it."""
        self.seconds = self.random.choice((0, 100))

    def append(self) -> None:
        parts, headers = [], []
        end = self.log.log_end_offset
        for _ in range(self.random.randint(1, 5)):
            builder = BatchBuilder()
            builder.add_values([b"v"] * self.random.randint(1, 3))
            producer = self.random.choice((NO_PRODUCER, 1, 2, 3, 4, 5, 6))
            built = builder.build(
                1,
                producer_id=producer,
                producer_epoch=self.random.choice((0, 0, 0, 1)),
                base_sequence=self.random.randint(0, 9),
            )
            self.seconds += self.random.choice((0, 0, 1, 1, 4, -2)) if self.seconds else self.random.choice((0, 0, 9))
            stamped, header = built.stamp(end, LeaderEpoch(1), max(0, self.seconds) * SECOND)
            parts += stamped
            headers.append(header)
            end = header.end_offset
        self.log.append(parts, headers)
        self.headers += headers

    def cut(self) -> None:
        span = self.log.log_end_offset - self.log.log_start_offset
        deepest = self.random.choice((0, 3, 20, span))
        offset = Offset(max(self.log.log_start_offset, self.log.log_end_offset - deepest))
        if self.random.random() < 0.2:
            self.disk.capacity = 0
            with suppress(NoSpace):
                self.log.truncate(offset)
            self._forget_cut()
            self.check()
            self.disk.capacity = AMPLE
        self.log.truncate(offset)
        self._forget_cut()

    def _forget_cut(self) -> None:
        self.headers = [header for header in self.headers if header.end_offset <= self.log.log_end_offset]

    def remove(self) -> None:
        self.log.remove_before(Offset(self.random.randint(0, self.log.log_end_offset)))

    def snapshot(self) -> None:
        self.log.sync()
        self.log.write_snapshots()

    def install(self) -> None:
        carried = (Section("queues", 1, Offset(0), bytes([self.random.randint(0, 9)])),)
        end = Offset(self.log.log_end_offset + self.random.randint(1, 9))
        self.base = Snapshot(end, producers=self.expected(), carried=carried)
        self.headers = []
        self.log.install(self.base)

    def reopen(self) -> None:
        if self.random.random() < 0.5:
            self.log.close()
        self.log = PartitionLog.open(HOME, self.config, files=self.disk)[0]

    def expected(self) -> KnownProducers:
        table = ProducerTable(limits=self.config.producers)
        table.restore(self.base.producers, self.headers)
        return table.known

    def check(self) -> None:
        known, expected = self.log.producers.known, self.expected()
        assert known == expected
        assert list(known.producers) == list(expected.producers), "the order in which they are forgotten"
        derived = self.log._state.derived
        assert derived._carried == self.base.carried
        for kept in derived._recent._states:
            assert kept.offset <= self.log.log_end_offset


@settings(max_examples=80)
@given(seed=st.integers(0, 1 << 32), interval=st.sampled_from([1, 2, 3, 10]), steps=st.integers(1, 50))
def test_after_any_cut_the_producers_agree_with_the_batches_that_are_left(seed: int, interval: int, steps: int) -> None:
    with patch.object(derived_state, "STATE_INTERVAL", interval):
        histories = Histories(seed)
        weights = {
            histories.append: 12,
            histories.cut: 6,
            histories.remove: 1,
            histories.snapshot: 1,
            histories.install: 0.3,
            histories.reopen: 0.5,
        }
        for _ in range(steps):
            (step,) = histories.random.choices(list(weights), list(weights.values()))
            step()
            histories.check()
        histories.log.close()
