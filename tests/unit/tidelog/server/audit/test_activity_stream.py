"""The writer of the activity stream: who writes, from where on, and what becomes of failures."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.unit.metadata.cluster_bench import Cluster
from tidelog.server.audit import activity_stream
from tidelog.server.audit.activity_stream import ActivityStream
from wire.errors import Code, TidelogError


class World:
    """The stream as its leader has it, and brokers that all see the same commands."""

    def __init__(self, *brokers: str) -> None:
        self.written: list[bytes] = []
        self.failures: list[Exception] = []
        self.controller: str | None = None
        self.epoch = 0
        self.cluster = Cluster()
        self.streams = {
            name: ActivityStream(
                self.append,
                self.last,
                epoch=lambda name=name: self.epoch if self.controller == name else 0,  # type: ignore[misc]
                time_ns=lambda: 1_700_000_000_123_456_789,
                is_live=lambda: True,
            )
            for name in brokers
        }
        self.cluster.begin_controller_epoch("a")
        self.observed("a", self.cluster.register)

    def observed(self, broker: str, act: Callable[[str], object]) -> None:
        before = self.cluster.state.snapshot()
        act(broker)
        self.tell(before)

    def tell(self, before: bytes) -> None:
        """The last command to all brokers."""
        from metadata.commands.cluster_state import ClusterState

        old = ClusterState()
        old.restore(before)
        changes = old.restore(self.cluster.state.snapshot())
        for stream in self.streams.values():
            deque(stream.observe(self.cluster.state, changes, from_snapshot=False), maxlen=0)

    def lead(self, broker: str | None) -> None:
        self.controller = broker
        self.epoch += 1
        if broker is not None:
            self.streams[broker].look()

    async def append(self, values: Sequence[bytes]) -> None:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        self.written += values

    async def last(self) -> bytes | None:
        await asyncio.sleep(0)
        return self.written[-1] if self.written else None

    def generations(self) -> list[int]:
        return [json.loads(value)["generation"] for value in self.written]

    async def until(self, number: int) -> None:
        async with asyncio.timeout(30):
            while len(self.written) < number:  # noqa: ASYNC110 - the condition is another component's state
                await asyncio.sleep(0.001)


@asynccontextmanager
async def running(*brokers: str) -> AsyncIterator[World]:
    world = World(*brokers)
    try:
        yield world
    finally:
        for stream in world.streams.values():
            await stream.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity_stream, "FIRST_PAUSE_S", 0.001)


async def test_the_controller_writes_and_the_next_one_goes_on() -> None:
    async with running("a", "b") as world:
        await asyncio.sleep(0)
        assert world.written == [], "nobody is the controller"
        world.lead("a")
        world.observed("b", world.cluster.register)
        await world.until(2)
        assert json.loads(world.written[-1])["time"] == "2023-11-14T22:13:20.123+00:00"
        world.lead("b")
        world.observed("c", world.cluster.register)
        await world.until(3)
        world.lead("a")
        world.observed("d", world.cluster.register)
        await world.until(4)
        generations = world.generations()
        assert generations == sorted(set(generations)), "each once, in order"


async def test_an_outcome_that_is_not_known_is_tried_again() -> None:
    async with running("a") as world:
        world.failures = [TidelogError(Code.UNAVAILABLE, "no leader"), TimeoutError(), ValueError("a bug")]
        world.lead("a")
        await world.until(1)
        assert world.failures == []
        assert len(world.streams["a"].log) == 0


async def test_events_that_the_stream_cannot_take_are_counted() -> None:
    async with running("a") as world:
        for name in ("b", "c", "d"):
            world.observed(name, world.cluster.register)
        world.failures = [TidelogError(Code.MESSAGE_TOO_LARGE, "too large") for _ in range(3)]
        world.lead("a")
        await world.until(3)
        assert world.streams["a"].dropped == 1, "halves, until one is left alone"
        assert len(world.streams["a"].log) == 0


async def test_a_stream_with_a_record_that_is_no_event_gets_all_of_them_again() -> None:
    async with running("a") as world:
        world.written = [b"[]"]
        world.lead("a")
        await world.until(2)
