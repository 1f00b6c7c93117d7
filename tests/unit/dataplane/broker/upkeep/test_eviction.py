"""The segments that a broker may evict when its disk runs full, and their order."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.upkeep.housekeeping import UpkeepCounters, Visit
from dataplane.broker.upkeep.retention import Eviction, oldest
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from wire.errors import CorruptData
from wire.stream_config import StreamConfig
from wire.types import Incarnation, Offset, PartitionKey, StreamName


def visit(
    partition: int, segments: list[tuple[int, int]], *, high_watermark: int = 1000, config: dict[str, str] | None = None
) -> Visit:
    """`segments`: (base offset, newest timestamp)."""
    settings = {"on_under_capacity": "evict_oldest", "retention_max_bytes": "1000000"} | (config or {})
    held = tuple(SimpleNamespace(base_offset=base, max_timestamp=newest) for base, newest in segments)
    return Visit(
        key=PartitionKey(StreamName("s"), Incarnation(1), partition, Incarnation(1)),
        log=cast(Any, SimpleNamespace(segments=held)),
        config=StreamConfig.from_strings(settings),
        high_watermark=Offset(high_watermark),
        time_ns=0,
        agreed_ns=None,
        elapsed_ns=0,
        stop=threading.Event(),
    )


def chosen(*visits: Visit) -> tuple[int, int] | None:
    found = oldest(visits)
    return None if found is None else (found[0].key.partition, found[1])


def test_the_oldest_first_segment_of_all_goes() -> None:
    assert chosen(visit(0, [(0, 50), (10, 60)]), visit(1, [(5, 40), (9, 90)]), visit(2, [(0, 45), (7, 46)])) == (1, 9)


def test_never_the_last_segment() -> None:
    assert chosen(visit(0, [(0, 50)])) is None


@pytest.mark.parametrize(("high_watermark", "goes"), [(9, False), (10, True), (11, True)])
def test_uncommitted_records_are_never_evicted(high_watermark: int, goes: bool) -> None:
    assert (chosen(visit(0, [(0, 50), (10, 60)], high_watermark=high_watermark)) is not None) is goes


@pytest.mark.parametrize(
    "config", [{"on_under_capacity": "withdraw"}, {"retention_max_bytes": "0"}], ids=["withdraws", "has no limit"]
)
def test_never_of_a_stream_that(config: dict[str, str]) -> None:
    assert chosen(visit(0, [(0, 50), (10, 60)], config=config)) is None


@pytest.mark.parametrize("limit", ["retention_max_age_ms", "retention_max_messages", "retention_max_bytes"])
def test_any_limit_will_do(limit: str) -> None:
    assert chosen(visit(0, [(0, 50), (10, 60)], config={"retention_max_bytes": "0", limit: "5"}))


class FakeReplica:
    """Its log has two segments, the first of which is of 100 bytes, or cannot be removed."""

    def __init__(self, partition: int, error: Exception | None) -> None:
        self._visit = visit(partition, [(0, partition), (10, 60)])
        self.key = self._visit.key
        self.error = error
        self.met: list[str] = []
        cast(Any, self._visit.log).remove_before = self.remove_before

    def remove_before(self, _offset: Offset) -> tuple[Any, ...]:
        if self.error is not None:
            raise self.error
        log = cast(Any, self._visit.log)
        log.segments = log.segments[1:]
        return (SimpleNamespace(size=100),)

    def visit(self, _context: object) -> Visit:
        return self._visit

    def on_log_start(self) -> None:
        pass

    def on_damage(self, _reason: str, _context: object) -> None:
        self.met.append("damage")

    def fail(self, _reason: str, _context: object) -> None:
        self.met.append("failure")


def evict(*errors: Exception | None) -> tuple[int, list[list[str]]]:
    replicas = [FakeReplica(partition, error) for partition, error in enumerate(errors)]

    async def run() -> int:
        counters = UpkeepCounters()
        context = SimpleNamespace(loop=asyncio.get_running_loop(), executor=None, the=lambda _: counters)
        return await Eviction(cast(Any, context), cast(Any, {each.key: each for each in replicas})).run(1000)

    return asyncio.run(run()), [each.met for each in replicas]


def test_a_log_that_cannot_give_its_segment_keeps_no_other_from_it() -> None:
    """Else the disk would stay full for all of them."""
    damaged, failed = CorruptData("a bit was flipped"), LogDamaged("the disk failed")
    assert evict(damaged, failed, NoSpace("full"), None) == (100, [["damage"], ["failure"], [], []])


def test_no_room_to_write_down_where_any_log_begins_is_said() -> None:
    with pytest.raises(NoSpace):
        evict(NoSpace("full"), NoSpace("full"))
