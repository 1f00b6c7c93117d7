"""A follower's driver reports its disk to the leader."""

from __future__ import annotations

import asyncio

import pytest

from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.roles.role import RoleCounters
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.follower.follower_states import Fetching, Reconciling
from tests.unit.dataplane.broker.role_bench import EPOCH, Bench, Loop, view
from tests.unit.dataplane.log.conftest import Batches
from tests.unit.wire.test_errors import MALFORMED
from tests.views import A, B
from wire.durability import ACCEPTED, DURABLE, Durability
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.replication import encode_header
from wire.protobuf.tidelog_pb2 import LeaderEpochOffsetResponse, ReplicationRequest
from wire.types import Offset


async def follow(bench: Bench, *, durability: Durability = DURABLE) -> FollowerDriver:
    followed = view(A, B, leader=B, durability=durability)
    role = FollowerDriver(bench.setup(followed), 0)
    await role.start()
    return role


def told(bench: Bench) -> list[tuple[int, int | None, bool]]:
    """(offset, durable end, progress only) of each request."""
    out = []
    for _, data, _ in bench.control.sent:
        request = ReplicationRequest.FromString(data)
        durable = request.durable_offset if request.HasField("durable_offset") else None
        out.append((request.offset, durable, request.progress_only))
    return out


def send(bench: Bench, batches: Batches) -> None:
    """The leader's answer with one record more."""
    data = batches.one(bench.log.log_end_offset, epoch=EPOCH).data
    bench.control.answer(encode_header(EPOCH, Offset(0)) + data)


async def test_a_batch_that_no_message_has_room_for_is_counted_and_logged(
    bench: Bench, loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    role = await follow(bench)
    refusal = TidelogError(Code.MESSAGE_TOO_LARGE, "what lies at offset 0 of s/0 takes a message of 2000000 bytes")
    for wait in (0.25, 0.45, 0.85):
        inbox, handler = list(bench.control.inboxes.items())[-1]
        handler(Message(inbox, encode_header(EPOCH, Offset(0)), headers=refusal.to_headers()))
        loop.run_to(loop.now + wait)
    assert bench.context.the(RoleCounters).answers_too_large == 3
    assert role.core.stopped is not None
    assert role.core.stopped.message == refusal.message
    assert [record.message for record in caplog.records if record.levelname == "ERROR"] == [
        f"partition {role.view.key}: nothing is copied from the leader: {refusal.message}"
    ]


@pytest.mark.parametrize("text", [None, *MALFORMED])
@pytest.mark.parametrize(
    ("code", "detail"), [(Code.OFFSET_BEFORE_LOG, "log_start"), (Code.BACKPRESSURE, "retry_after_ms")]
)
async def test_a_refusal_whose_details_make_no_sense_is_asked_for_again_in_a_while(
    bench: Bench, loop: Loop, caplog: pytest.LogCaptureFixture, code: Code, detail: str, text: str | None
) -> None:
    role = await follow(bench)
    name = "Tidelog-" + "-".join(part.capitalize() for part in detail.split("_"))
    headers = {"Tidelog-Error": code.name} | ({} if text is None else {name: text})
    for _ in range(4):
        inbox, handler = list(bench.control.inboxes.items())[-1]
        handler(Message(inbox, encode_header(EPOCH, Offset(0)), headers=headers))
    assert len(bench.control.sent) <= 2, "it asks at network speed"
    loop.run_to(loop.now + 0.3)
    assert len(bench.control.sent) in (2, 3)
    assert bench.context.the(RoleCounters).bad_answers == (4 if code is Code.OFFSET_BEFORE_LOG else 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert not role.ended


async def test_a_repeated_question_for_an_offset_is_answered_at_the_same_inbox(
    bench: Bench, loop: Loop, batches: Batches
) -> None:
    batches.append(bench.log, epoch=EPOCH - 1)
    role = await follow(bench)
    (first,) = bench.control.inboxes
    loop.run_to(loop.now + 0.1)
    assert len(bench.control.sent) > 1
    assert [*bench.control.inboxes] == [first]
    response = LeaderEpochOffsetResponse(
        endOffset=bench.log.log_end_offset, leader_epoch=EPOCH - 1, current_leader_epoch=EPOCH
    )
    bench.control.inboxes[first](Message(first, response.SerializeToString()))
    assert isinstance(role.core.state, Fetching)


@pytest.mark.parametrize("text", MALFORMED)
async def test_an_answer_about_epochs_whose_details_make_no_sense_changes_nothing(
    bench: Bench, batches: Batches, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    batches.append(bench.log, epoch=EPOCH - 1)
    role = await follow(bench)
    state = role.core.state
    assert isinstance(state, Reconciling)
    inbox, handler = list(bench.control.inboxes.items())[-1]
    refusal = {"Tidelog-Error": "FENCED_LEADER_EPOCH", "Tidelog-Leader-Epoch": text}
    handler(Message(inbox, b"", headers=refusal))
    assert role.core.state is state
    assert bench.context.the(RoleCounters).bad_answers == 1
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_the_next_fetch_reports_a_sync_on_the_loop(bench: Bench, loop: Loop, batches: Batches) -> None:
    await follow(bench)
    send(bench, batches)
    send(bench, batches)
    assert told(bench) == [(0, 0, False), (1, 1, False), (2, 2, False)]
    assert bench.log.durable_end == 2
    loop.turn()
    assert bench.syncer.asked == []


async def test_a_sync_in_a_thread_is_reported_when_it_is_done(bench: Bench, loop: Loop, batches: Batches) -> None:
    bench.syncer.is_quick = False
    await follow(bench)
    send(bench, batches)
    loop.turn()
    assert told(bench) == [(0, 0, False), (1, 0, False)]
    bench.syncer.asked.pop()(bench.log.sync())
    assert told(bench)[-1] == (1, 1, True)


async def test_where_many_logs_wait_for_the_disk_the_next_fetch_leaves_after_the_sync_and_reports_it(
    bench: Bench, loop: Loop, batches: Batches
) -> None:
    bench.syncer.is_quick, bench.syncer.is_crowded = False, True
    await follow(bench)
    send(bench, batches)
    loop.turn()
    assert told(bench) == [(0, 0, False)]
    bench.syncer.asked.pop()(bench.log.sync())
    assert told(bench) == [(0, 0, False), (1, 1, False)]


async def test_on_an_accepted_stream_nothing_is_waited_for_where_many_logs_wait(bench: Bench, batches: Batches) -> None:
    bench.syncer.is_crowded = True
    await follow(bench, durability=ACCEPTED)
    send(bench, batches)
    assert told(bench) == [(0, None, False), (1, None, False)]


async def test_on_an_accepted_stream_nothing_is_synced_by_itself(bench: Bench, loop: Loop, batches: Batches) -> None:
    await follow(bench, durability=ACCEPTED)
    bench.log.sync()
    send(bench, batches)
    loop.turn()
    assert told(bench) == [(0, None, False), (1, None, False)]
    assert (bench.log.durable_end, bench.syncer.asked) == (0, [])


async def test_a_sync_at_once_that_fails_ends_the_replica_and_is_reported_by_no_fetch(
    bench: Bench, loop: Loop, batches: Batches
) -> None:
    await follow(bench)
    send(bench, batches)
    bench.log.sync()
    before = told(bench)
    bench.disk.failing_syncs = 1
    send(bench, batches)
    assert told(bench) == before
    assert len(bench.withdrawn) == 1
    with pytest.raises(LogDamaged):
        bench.log.sync()
    await asyncio.gather(*loop.tasks)
    assert bench.control.inboxes == {}


async def test_a_role_that_has_ended_takes_no_answer_about_its_fetch(bench: Bench, loop: Loop) -> None:
    role = await follow(bench)
    bench.control.answer(encode_header(EPOCH, Offset(0)))
    number = role.parked
    assert number is not None
    ending = role.begin_to_end("another LeaderEpoch begins")
    assert role.parked is None
    count = len(bench.control.sent)
    role.on_parked_answer(number, False, loop.now)
    assert len(bench.control.sent) == count
    await ending
