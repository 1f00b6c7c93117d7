"""Publishes that wait take memory only while they wait."""

from __future__ import annotations

import math

from dataplane.replica.leader.ack_levels import AckLevel, PendingAcks, WaitingAcks
from dataplane.replica.replies import MarkReply
from wire.types import Offset


def test_done_publishes_are_forgotten_though_some_publish_always_waits() -> None:
    """Pipelined publishers never let the queue run empty; a confirm timeout of an hour must not keep an hour's."""
    pending = PendingAcks()
    for offset in range(1, 20_001):
        pending.add(Offset(offset), 3600.0, MarkReply(f"publish {offset}"))
        pending.commit(Offset(offset - 1))
    assert len(pending) == 1
    assert pending.remembered < 5_000


def test_deadlines_of_waiting_publishes_survive_the_forgetting() -> None:
    pending = PendingAcks()
    pending.add(Offset(10**9), 5.0, MarkReply("waits"))
    for offset in range(1, 20_001):
        pending.add(Offset(offset), 3600.0, MarkReply(str(offset)))
        pending.commit(Offset(offset))
    assert pending.next_deadline() == 5.0
    assert [done.token for done in pending.expire(5.0)] == [MarkReply("waits")]


def test_a_publish_that_times_out_is_told_the_offset_of_its_last_record() -> None:
    pending = PendingAcks()
    pending.add(Offset(26), 5.0, MarkReply("the record at 25"))
    (late,) = pending.expire(5.0)
    assert late.error is not None
    assert late.error.message.startswith("records up to offset 25 were not committed within the confirm timeout")


def test_a_publish_that_is_through_hides_no_later_deadline() -> None:
    waiting = WaitingAcks()
    level = AckLevel(is_local=False, is_synced=True)
    waiting.add(level, Offset(10), 5.0, MarkReply("through"))
    waiting.add(level, Offset(20), 7.0, MarkReply("late"))
    assert waiting.next_deadline() == 5.0
    assert [done.token for done in waiting.everywhere[True].commit(Offset(10), 2)] == [MarkReply("through")]
    assert waiting.expire(5.0) == []
    assert waiting.next_deadline() == 7.0
    assert [done.token for done in waiting.expire(7.0)] == [MarkReply("late")]
    assert waiting.next_deadline() == math.inf
