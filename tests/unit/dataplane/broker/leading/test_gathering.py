"""Where many partitions wait for commits, records gather in the open batch of a leader, and for how long."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.roles.role import BEAT
from tests.unit.dataplane.broker.role_bench import EPOCH, Bench, Loop, view
from tests.views import A, B
from wire.durability import DURABLE, Durability, DurabilityKind
from wire.messaging.transport import Message
from wire.protobuf.tidelog_pb2 import ReplicationRequest
from wire.types import Offset

SLACK = 0.001
"""Seconds. A timer counts as due a moment before its time."""


class Scene:
    """A leads, B follows, and other partitions that A leads wait for commits."""

    def __init__(self, bench: Bench, loop: Loop, role: LeaderDriver) -> None:
        self.bench, self.loop, self.role = bench, loop, role
        self.gather = bench.context.settings.gather_time
        self.looks = 0
        """How often the timer called."""
        self._uncommitted = bench.context.the(BoundsOfAll).uncommitted
        self._others = [object() for _ in range(bench.context.settings.gather_from - 1)]
        self._rest = False
        self._sequence = 0
        self._tick = role._tick
        role._tick = self._counted_tick  # type: ignore[method-assign]

    def _counted_tick(self) -> None:
        self.looks += 1
        if self.looks == 100:
            self.role.timer.stop()  # a timer that is always due would let no time pass
        self._tick()

    def others_move(self, count: int | None = None) -> None:
        for other in self._others[:count]:
            self._uncommitted.moves(other, self.loop.now)

    def others_rest(self) -> None:
        self._rest = True
        for other in self._others:
            self._uncommitted.rests(other)

    def publish(self, value: bytes) -> None:
        ingest = self.bench.ingest.subscribed["s"]
        ingest.on_messages([value], [b"reply." + value], [None])
        ingest.chunk_done()

    def fetches(self, offset: int, *, durable: int | None = None) -> None:
        """The follower has all up to there."""
        self._sequence += 1
        key, subjects = self.role.view.key, self.bench.context.subjects
        request = ReplicationRequest(
            replicaID=B,
            offset=offset,
            durable_offset=offset if durable is None else durable,
            leaderEpoch=EPOCH,
            sequence=self._sequence,
            broker_incarnation=1,
            stream_incarnation=key.stream_incarnation,
            partition_incarnation=key.partition_incarnation,
        )
        subject = subjects.replicate(key.stream, key.partition)
        self.bench.control.subscribed[subject](Message(subject, request.SerializeToString(), f"inbox.{self._sequence}"))
        self.loop.turn()

    @property
    def end(self) -> int:
        return self.bench.log.log_end_offset

    def appended_at(self, end: int) -> float:
        """When the log ends there. The other partitions get one commit after the other meanwhile, unless they rest."""
        limit = self.loop.now + 20 * self.gather
        while self.end < end and self.loop.now < limit:
            if not self._rest:
                self.others_move()
            self.loop.run_to(min(limit, self.loop.now + 0.01, self.loop.wakes_at[0]))
            self.loop.turn()
        assert self.end == end
        return self.loop.now


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async for each in _scene():
        yield each


async def _scene(durability: Durability = DURABLE) -> AsyncIterator[Scene]:
    loop = Loop()
    bench = Bench(loop)
    bench.log.assign_epoch(EPOCH, Offset(0))
    role = LeaderDriver(bench.setup(view(A, B, durability=durability)))
    await role.start()
    scene = Scene(bench, loop, role)
    scene.others_move()
    yield scene
    await role.end("over")


async def test_in_a_crowd_records_gather_until_the_batch_before_them_is_committed(scene: Scene) -> None:
    scene.publish(b"one")
    assert scene.end == 1, "nothing is on its way"
    scene.loop.turn()
    scene.publish(b"two")
    scene.publish(b"three")
    seen = [scene.end]
    scene.fetches(0)  # it waits for nothing less
    seen.append(scene.end)
    scene.fetches(1)
    seen.append(scene.end)
    assert (seen, scene.role.high_watermark) == ([1, 1, 3], 1)


async def test_without_a_crowd_a_batch_does_not_wait_for_the_one_before_it(scene: Scene) -> None:
    scene.others_rest()
    scene.others_move(2)
    scene.publish(b"one")
    scene.loop.turn()
    scene.publish(b"two")
    assert (scene.end, scene.role.high_watermark) == (2, 0)


async def test_a_publisher_that_waits_for_the_leader_alone_does_not_wait_for_followers_in_a_crowd() -> None:
    async for scene in _scene(Durability(DurabilityKind.LOCAL_DURABLE)):
        scene.publish(b"one")
        scene.loop.turn()
        scene.publish(b"two")
        assert scene.end == 2


def behind_a_silent_follower(scene: Scene) -> None:
    scene.publish(b"one")
    scene.loop.turn()
    scene.publish(b"two")


def behind_a_silent_follower_until_the_crowd_goes(scene: Scene) -> None:
    behind_a_silent_follower(scene)
    scene.loop.run_to(scene.loop.now + 0.01)
    scene.others_rest()


def behind_a_follower_with_a_slow_disk(scene: Scene) -> None:
    scene.fetches(0)
    scene.publish(b"zero")
    scene.fetches(1)
    scene.publish(b"one")
    scene.fetches(2, durable=1)
    scene.publish(b"two")


@pytest.mark.parametrize(
    "begin",
    [behind_a_silent_follower, behind_a_silent_follower_until_the_crowd_goes, behind_a_follower_with_a_slow_disk],
)
async def test_records_gather_for_a_while_and_then_no_more(scene: Scene, begin: Callable[[Scene], None]) -> None:
    began = scene.loop.now
    begin(scene)
    end, looks = scene.end, scene.looks
    waited = scene.appended_at(end + 1) - began
    assert scene.gather - SLACK <= waited <= scene.gather + BEAT
    assert scene.looks - looks <= 2
    scene.others_move()
    scene.publish(b"more")
    assert scene.end == end + 2, "the oldest has waited for too long already"


async def test_a_batch_that_has_gathered_for_long_enough_waits_for_a_sync_without_a_look_in_between(
    scene: Scene,
) -> None:
    scene.bench.syncer.is_quick = False
    scene.publish(b"one")
    scene.loop.turn()
    scene.publish(b"two")
    scene.loop.run_to(scene.loop.now + 2 * scene.gather)
    assert (scene.end, scene.looks <= 2) == (1, True)
    scene.bench.syncer.asked.pop()(scene.bench.log.sync())
    assert scene.end == 2


async def test_partitions_that_are_stuck_are_no_crowd(scene: Scene) -> None:
    scene.loop.run_to(scene.loop.now + scene.gather)
    scene.publish(b"one")
    scene.loop.turn()
    scene.publish(b"two")
    assert scene.end == 2
    scene.fetches(2)
    scene.others_move()
    scene.publish(b"three")
    scene.loop.turn()
    scene.publish(b"four")
    assert scene.end == 3, "they have got commits again"
