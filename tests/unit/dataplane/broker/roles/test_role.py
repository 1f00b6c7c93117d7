"""Every role: its timer and its syncs."""

from __future__ import annotations

import asyncio
import math

import pytest

from dataplane.broker.roles.role import BEAT, NEAR, Role
from tests.unit.dataplane.broker.role_bench import Bench, Loop, view
from tests.unit.dataplane.log.conftest import Batches
from tests.views import A
from wire.messaging.transport import Message
from wire.types import LeaderEpoch, Offset, PartitionView


class Idle(Role):
    """A role whose deadline is `due`, and that notes its ticks and syncs."""

    title = "idle"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.setup(view(A)))
        self.due = math.inf
        self.ticked: list[float] = []
        self.synced: list[Offset] = []

    @property
    def high_watermark(self) -> Offset:
        return Offset(0)

    async def start(self) -> None: ...

    def on_view(self, view: PartitionView) -> None: ...

    def on_log_start(self) -> None: ...

    def on_connection(self, connected: bool) -> None: ...

    def on_space(self, no_space: bool) -> None: ...

    def on_disk(self, hangs: bool) -> None: ...

    def on_read(self, message: Message) -> None: ...

    async def _let_go(self, reason: str) -> None: ...

    def _tick(self) -> None:
        self.ticked.append(self.context.now())
        self.due = math.inf

    def _next_deadline(self) -> float:
        return self.due

    def _on_synced(self, durable_end: Offset) -> None:
        self.synced.append(durable_end)

    def is_due(self, due: float) -> None:
        self.due = due
        self.timer.schedule()

    def wants_sync(self) -> None:
        self._syncs.request()


@pytest.fixture
def bench(bench: Bench) -> Bench:
    bench.log.assign_epoch(LeaderEpoch(1), Offset(0))
    return bench


@pytest.fixture
def role(bench: Bench) -> Idle:
    return Idle(bench)


# ---- the timer


def test_far_deadlines_are_met_together_at_the_next_beat_and_never_before(loop: Loop, bench: Bench) -> None:
    roles = [Idle(bench) for _ in range(10)]
    for number, role in enumerate(roles):
        role.is_due(loop.now + 1.0 + number / 1000)
    assert len(set(loop.wakes_at)) <= 2
    loop.run_to(loop.now + 2.0)
    for number, role in enumerate(roles):
        (met,) = role.ticked
        assert 0 <= met - (101.0 + number / 1000) <= BEAT + 1e-6


def test_a_near_deadline_is_met_exactly(loop: Loop, role: Idle) -> None:
    role.is_due(loop.now + NEAR - 0.0037)
    assert loop.wakes_at == [loop.now + NEAR - 0.0037]


def test_a_deadline_that_comes_closer_is_met_in_time(loop: Loop, role: Idle) -> None:
    role.is_due(loop.now + 3.0)
    role.is_due(loop.now + 0.01)
    loop.run_to(loop.now + 1.0)
    assert role.ticked == pytest.approx([100.01])


def test_a_deadline_that_was_put_off_is_met_then(loop: Loop, role: Idle) -> None:
    role.is_due(loop.now + 0.01)
    role.is_due(loop.now + 1.0)
    loop.run_to(loop.now + 2.0)
    assert len(role.ticked) == 1
    assert 0 <= role.ticked[0] - 101.0 <= BEAT + 1e-6


def test_a_timer_that_fires_within_a_beat_is_not_armed_anew(loop: Loop, role: Idle) -> None:
    role.is_due(loop.now + BEAT)
    armed = list(loop.wakes_at)
    role.is_due(loop.now + BEAT / 4)
    assert loop.wakes_at == armed, "it would be asked for after every message"
    loop.run_to(loop.now + 1.0)
    assert role.ticked == pytest.approx([100.0 + BEAT])


# ---- syncs


def test_a_sync_begins_when_the_messages_before_it_have_left(
    loop: Loop, bench: Bench, role: Idle, batches: Batches
) -> None:
    batches.append(bench.log)
    role.wants_sync()
    assert (bench.log.durable_end, role.synced) == (0, [])
    batches.append(bench.log)
    role.wants_sync()
    loop.turn()
    assert (bench.log.durable_end, role.synced, bench.syncer.asked) == (2, [2], [])
    batches.append(bench.log)
    role.wants_sync()
    loop.turn()
    assert role.synced == [2, 3]


def test_a_sync_in_a_thread_is_told_when_it_is_done(loop: Loop, bench: Bench, role: Idle, batches: Batches) -> None:
    bench.syncer.is_quick = False
    batches.append(bench.log)
    role.wants_sync()
    loop.turn()
    (done,) = bench.syncer.asked
    assert role.synced == []
    done(bench.log.sync())
    assert role.synced == [1]


def test_a_sync_that_has_not_begun_serves_what_comes_until_then_and_the_next_one_the_rest(
    loop: Loop, bench: Bench, role: Idle, batches: Batches
) -> None:
    bench.syncer.is_quick = False

    def append() -> None:
        batches.append(bench.log)
        role.wants_sync()
        role.wants_sync()
        loop.turn()

    append()
    append()
    begun, end = bench.syncer.asked.pop(), bench.log.sync()
    append()
    assert (end, len(bench.syncer.asked), role._syncs.out) == (2, 1, 2)
    begun(end)
    bench.syncer.asked.pop()(bench.log.sync())
    assert (role.synced, role._syncs.out) == ([2, 3], 0)


def test_a_sync_of_records_cut_meanwhile_is_told_up_to_the_present_durable_end(
    loop: Loop, bench: Bench, role: Idle, batches: Batches
) -> None:
    bench.syncer.is_quick = False
    batches.fill(bench.log, 5)
    role.wants_sync()
    loop.turn()
    end = bench.log.sync()
    bench.log.truncate(Offset(2))
    batches.fill(bench.log, 5)
    bench.syncer.asked[0](end)
    assert role.synced == [2]


async def test_a_sync_at_once_that_fails_ends_the_replica_and_tells_of_nothing(
    loop: Loop, bench: Bench, role: Idle, batches: Batches
) -> None:
    batches.append(bench.log)
    bench.disk.failing_syncs = 1
    role.wants_sync()
    loop.turn()
    assert len(bench.withdrawn) == 1
    assert "fdatasync failed" in bench.withdrawn[0].reason
    assert (role.synced, bench.syncer.asked, bench.log.durable_end) == ([], [], 0)
    await asyncio.gather(*loop.tasks)
    assert role.ended


async def test_a_role_that_has_ended_begins_no_sync(loop: Loop, bench: Bench, role: Idle, batches: Batches) -> None:
    batches.append(bench.log)
    role.wants_sync()
    await role.end("over")
    loop.turn()
    assert (bench.log.durable_end, role.synced, bench.syncer.asked) == (0, [], [])
