"""The leader-epoch cache."""

from __future__ import annotations

import pytest

from dataplane.replica.derived.epochs import EpochEnd, EpochEntry, LeaderEpochCache
from wire.errors import InvariantViolation
from wire.types import LeaderEpoch, Offset


def entries(*pairs: tuple[int, int]) -> tuple[EpochEntry, ...]:
    return tuple(EpochEntry(LeaderEpoch(epoch), Offset(start)) for epoch, start in pairs)


def cache(*pairs: tuple[int, int]) -> LeaderEpochCache:
    return LeaderEpochCache(entries(*pairs))


def assign(epochs: LeaderEpochCache, epoch: int, start: int) -> bool:
    return epochs.assign(LeaderEpoch(epoch), Offset(start))


def test_epochs_are_appended_in_order() -> None:
    epochs = LeaderEpochCache()
    assert epochs.latest is None
    assert assign(epochs, 1, 0)
    assert assign(epochs, 3, 40)
    assert epochs.entries == entries((1, 0), (3, 40))
    assert epochs.latest == 3


def test_the_next_batch_of_the_same_epoch_changes_nothing() -> None:
    epochs = cache((1, 0), (3, 40))
    assert not assign(epochs, 3, 50)
    assert not assign(epochs, 3, 40)
    assert epochs.entries == entries((1, 0), (3, 40))


def test_an_epoch_without_records_is_replaced_by_the_one_assigned_at_its_offset() -> None:
    epochs = cache((1, 0), (3, 40))
    assert assign(epochs, 4, 40)
    assert epochs.entries == entries((1, 0), (4, 40))


def test_an_older_epoch_may_write_where_a_newer_one_began_without_writing() -> None:
    epochs = cache((4, 0), (5, 100))
    assert assign(epochs, 4, 100)
    assert epochs.entries == entries((4, 0))


def test_an_epoch_that_began_at_the_logs_end_goes_when_the_next_record_begins_above_it() -> None:
    epochs = cache((4, 0), (5, 100))
    assert epochs.assign(LeaderEpoch(4), Offset(109), Offset(100))
    assert epochs.entries == entries((4, 0))
    epochs = cache((4, 0), (5, 100))
    assert epochs.assign(LeaderEpoch(6), Offset(109), Offset(100))
    assert epochs.entries == entries((4, 0), (6, 109))


def test_assigning_removes_epochs_that_begin_at_or_after_it() -> None:
    epochs = cache((1, 0), (3, 40), (4, 90))
    assert assign(epochs, 5, 40)
    assert epochs.entries == entries((1, 0), (5, 40))


def test_a_log_never_goes_back_in_epochs() -> None:
    epochs = cache((1, 0), (3, 40))
    with pytest.raises(InvariantViolation, match="2 cannot begin at offset 60"):
        assign(epochs, 2, 60)
    assert epochs.entries == entries((1, 0), (3, 40))


def test_truncation_removes_epochs_that_begin_at_or_after_the_cut() -> None:
    epochs = cache((1, 0), (3, 40), (4, 90))
    assert not epochs.truncate_from(Offset(91))
    assert epochs.truncate_from(Offset(90))
    assert epochs.entries == entries((1, 0), (3, 40))
    assert epochs.truncate_from(Offset(0))
    assert epochs.entries == ()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(0, None), (1, (1, 40)), (2, (1, 40)), (3, (3, 90)), (4, (4, 120)), (9, (4, 120))],
)
def test_the_end_of_an_epoch_is_the_start_of_the_next_known_one(asked: int, expected: tuple[int, int] | None) -> None:
    end = cache((1, 0), (3, 40), (4, 90)).end_offset_for(LeaderEpoch(asked), Offset(120))
    assert end == (None if expected is None else EpochEnd(LeaderEpoch(expected[0]), Offset(expected[1])))


@pytest.mark.parametrize("pairs", [[(1, 0), (1, 5)], [(2, 0), (1, 5)], [(1, 5), (2, 5)], [(1, 5), (2, 4)]])
def test_entries_grow_strictly_in_both(pairs: list[tuple[int, int]]) -> None:
    with pytest.raises(InvariantViolation):
        cache(*pairs)


class TestRebuilding:
    def rebuild(
        self, vouched: list[tuple[int, int]], batches: list[tuple[int, int]], scanned_from: int, end: int
    ) -> tuple[EpochEntry, ...]:
        scanned = [(LeaderEpoch(epoch), Offset(base)) for epoch, base in batches]
        return LeaderEpochCache.rebuilt(entries(*vouched), scanned, Offset(scanned_from), Offset(end)).entries

    def test_the_checkpoint_is_believed_below_the_scan_and_the_batches_from_there_on(self) -> None:
        assert self.rebuild([(1, 0), (2, 30)], [(2, 50), (4, 60)], 50, 70) == entries((1, 0), (2, 30), (4, 60))

    def test_entries_beyond_the_end_of_the_log_are_dropped(self) -> None:
        assert self.rebuild([(1, 0), (2, 30), (3, 80)], [(2, 50)], 50, 70) == entries((1, 0), (2, 30))

    def test_the_batches_overrule_the_checkpoint(self) -> None:
        assert self.rebuild([(1, 0), (3, 55)], [(1, 50), (2, 60)], 50, 70) == entries((1, 0), (2, 60))

    def test_a_leader_that_had_not_written_yet_keeps_its_epoch(self) -> None:
        assert self.rebuild([(1, 0), (5, 70)], [(1, 50)], 50, 70) == entries((1, 0), (5, 70))
        assert self.rebuild([(1, 0), (5, 70)], [], 70, 70) == entries((1, 0), (5, 70))

    def test_an_epoch_below_that_of_the_last_batch_does_not_begin_at_the_end(self) -> None:
        assert self.rebuild([(1, 0), (3, 70)], [(1, 50), (4, 60)], 50, 70) == entries((1, 0), (4, 60))


@pytest.mark.parametrize(
    ("start", "kept"),
    [
        (0, ((1, 0), (3, 40), (4, 90))),
        (39, ((1, 0), (3, 40), (4, 90))),
        (40, ((1, 0), (3, 40), (4, 90))),
        (41, ((3, 40), (4, 90))),
        (90, ((3, 40), (4, 90))),
        (200, ((4, 90),)),
    ],
)
def test_at_the_front_the_epoch_of_the_record_before_is_the_last_that_is_kept(
    start: int, kept: tuple[tuple[int, int], ...]
) -> None:
    epochs = cache((1, 0), (3, 40), (4, 90))
    assert epochs.truncate_before(Offset(start)) is (len(kept) < 3)
    assert epochs.entries == entries(*kept)


def test_an_epoch_that_ended_at_the_log_start_is_known_also_when_another_begins_there() -> None:
    epochs = cache((1, 0), (3, 40))
    epochs.truncate_before(Offset(90))
    epochs.assign(LeaderEpoch(5), Offset(90))
    assert epochs.end_offset_for(LeaderEpoch(3), Offset(90)) == (3, 90)
