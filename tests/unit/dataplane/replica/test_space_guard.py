"""The room on a broker's disk: limits there and back, counting between two looks, refusals."""

from __future__ import annotations

import pytest

from dataplane.replica.disk_guards import (
    LONGEST_HOLD,
    MIB,
    EvictOldest,
    KeepReserve,
    ReleaseReserve,
    RoomChanged,
    SpaceGuard,
)
from wire.types import Room

TOTAL = 1000
LIMIT = 100


@pytest.fixture
def guard() -> SpaceGuard:
    guard = SpaceGuard(LIMIT)
    assert guard.on_look(TOTAL, 900, 0.0) == [KeepReserve(LIMIT // 4)]
    return guard


@pytest.mark.parametrize(("total", "limit"), [(20 * MIB, MIB), (100 * MIB, 5 * MIB), (1 << 40, 256 * MIB), (MIB, MIB)])
def test_the_limit_of_a_disk_by_its_size(total: int, limit: int) -> None:
    guard = SpaceGuard()
    guard.on_look(total, total, 0.0)
    assert guard.min_free == limit


def test_there_and_back_are_different_limits(guard: SpaceGuard) -> None:
    rooms = []
    for number, free in enumerate((250, 200, 199, 250, 299, 101, 100, 99, 150, 199, 200, 299, 300, 99, 300)):
        guard.on_look(TOTAL, free, number)
        rooms.append((free, guard.room))
    ample, short, full = Room.AMPLE, Room.SHORT, Room.FULL
    assert rooms == [
        (250, ample), (200, ample), (199, short), (250, short), (299, short), (101, short), (100, short),
        (99, full), (150, full), (199, full), (200, short), (299, short), (300, ample), (99, full), (300, ample),
    ]  # fmt: skip


def test_writes_between_two_looks_are_counted(guard: SpaceGuard) -> None:
    assert guard.admit(700, 1.0) == (True, [])
    assert guard.admit(50, 1.0) == (True, [RoomChanged(Room.SHORT)])
    assert guard.admit(50, 1.0) == (True, [])
    assert guard.admit(1, 1.0) == (False, [RoomChanged(Room.FULL)])
    assert guard.admit(1, 1.0) == (False, [])
    assert guard.free == LIMIT


def test_a_record_too_large_for_the_room_stops_all(guard: SpaceGuard) -> None:
    """Later records may depend on it."""
    assert guard.admit(801, 1.0) == (False, [RoomChanged(Room.FULL)])
    assert not guard.admit(1, 1.0)[0]


def test_streams_that_evict_are_asked_for_the_room_missing_to_ample(guard: SpaceGuard) -> None:
    assert guard.on_look(TOTAL, 150, 1.0) == [RoomChanged(Room.SHORT), EvictOldest(150)]
    assert guard.on_look(TOTAL, 250, 2.0) == [EvictOldest(50)]
    assert guard.on_look(TOTAL, 350, 3.0) == [RoomChanged(Room.AMPLE), KeepReserve(25)]


def test_a_refusal_gives_the_reserve_back(guard: SpaceGuard) -> None:
    assert guard.on_refused(1.0) == [RoomChanged(Room.FULL), ReleaseReserve()]
    assert guard.on_refused(1.1) == [ReleaseReserve()]


def test_so_does_a_look_at_a_disk_with_next_to_nothing(guard: SpaceGuard) -> None:
    assert guard.on_look(TOTAL, LIMIT // 8, 1.0)[-1] == EvictOldest(3 * LIMIT - LIMIT // 8)
    assert guard.on_look(TOTAL, LIMIT // 8 - 1, 1.0)[-1] == ReleaseReserve()


def test_a_refusal_on_a_disk_that_shows_room_counts_for_longer_each_time(guard: SpaceGuard) -> None:
    now, holds = 100.0, []
    for _ in range(8):
        guard.on_refused(now)
        refused_at = now
        while guard.room is Room.FULL:
            now += 0.5
            guard.on_look(TOTAL, 900, now)
        holds.append(now - refused_at)
    assert holds == [1, 2, 4, 8, 16, 30, 30, 30]
    now += 2 * LONGEST_HOLD
    guard.on_refused(now)
    guard.on_look(TOTAL, 900, now + 1)
    assert guard.room is Room.AMPLE


def test_a_refusal_on_a_disk_that_is_full_counts_until_there_is_room(guard: SpaceGuard) -> None:
    guard.on_look(TOTAL, 120, 1.0)
    guard.on_refused(1.0)
    assert guard.on_look(TOTAL, 500, 1.1)[0] == RoomChanged(Room.AMPLE)


def test_before_the_first_look_everything_is_taken() -> None:
    assert SpaceGuard(LIMIT).admit(1 << 40, 0.0) == (True, [])
