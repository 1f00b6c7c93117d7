"""Members of a consumer group against brokers and a coordinator in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.fake_nats import FakeTransport, delivered
from tests.unit.tidelog.client.group.members_world import S0, S1, World, members_world, take, until
from tidelog.client.base.exceptions import BadRequest, Closed, FencedInstance, NoServer, NotAssigned, UnknownMember
from tidelog.client.cluster import coordinator_link
from tidelog.client.consumer import partition_reader
from tidelog.client.group import group_session
from tidelog.client.group.group_consumer import Committed
from tidelog.client.group.group_session import session_clock
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import COMMIT, StreamPartition
from wire.messaging.transport import Message
from wire.operations.api_operations import GROUP_COORDINATOR
from wire.protobuf.groups_pb2 import HeartbeatRequest
from wire.types import StreamName


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with members_world() as made:
        yield made


async def test_one_member_reads_everything_and_commits_what_it_finished(world: World) -> None:
    async with world.client().subscribe("s", group="g") as consumer:
        records = await take(consumer, 20)
        assert consumer.assignment == {S0, S1}
        assert sorted(records) == [("s", partition, offset) for partition in range(2) for offset in range(10)]
        assert consumer.positions == {S0: 10, S1: 10}
        assert consumer.lag == {S0: 0, S1: 0}
        assert await consumer.getone(timeout=0) is None
    assert world.committed == {S0: 10, S1: 10}
    assert [offset.partition_incarnation for _, offset in sorted(world.group.offsets.items())] == [20, 21]
    assert not world.group.members


async def test_a_member_says_that_partitions_are_beyond_the_limit_of_its_group(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.group.left_out = 7
    async with world.client().subscribe("s", group="g") as consumer:
        await take(consumer, 20)
        world.coordinator.rebalance("g")
        await until(lambda: consumer.generation == world.group.generation)
    told = [record.message for record in caplog.records if "beyond the limit of a group" in record.message]
    assert len(told) == 1
    assert told[0].startswith("7 partitions that group 'g' has subscribed to")


async def test_the_next_member_goes_on_where_the_last_one_stopped(world: World) -> None:
    async with world.client().subscribe("s", group="g") as consumer:
        first = await take(consumer, 7)
    async with world.client().subscribe("s", group="g") as consumer:
        second = await take(consumer, 13)
        assert await consumer.getone(timeout=0.05) is None
    assert sorted(first + second) == [("s", partition, offset) for partition in range(2) for offset in range(10)]


async def test_what_was_not_finished_is_handed_out_again_after_an_exception(world: World) -> None:
    async def fail() -> None:
        async with world.client().subscribe("s", group="g") as consumer:
            taken.extend(await take(consumer, 5))
            raise RuntimeError("the program failed on the last one")

    taken: list[tuple[str, int, int]] = []
    with pytest.raises(RuntimeError):
        await fail()
    async with world.client().subscribe("s", group="g") as consumer:
        assert taken[-1] in await take(consumer, 16)


async def test_a_second_member_gets_half_and_the_first_reads_on(world: World) -> None:
    async with world.client().subscribe("s", group="g") as one:
        await take(one, 20)
        assert await one.getone(timeout=0) is None
        asked = len(world.broker.fetches)
        async with world.client().subscribe("s", group="g") as two:
            await until(lambda: two.assignment == {S1})
            assert one.assignment == {S0}
            for partition in range(2):
                world.seed("s", partition, 1)
            assert await take(one, 1) == [("s", 0, 10)]
            assert await take(two, 1) == [("s", 1, 10)]
            assert await one.getone(timeout=0.05) is None
        kept = [fetch for fetch in world.broker.fetches[asked:] if fetch.partition_incarnation == 20]
        assert all(fetch.WhichOneof("position") == "offset" for fetch in kept), "it was not begun anew"


async def test_a_partition_with_a_record_in_hand_is_given_up_at_the_next_call(world: World) -> None:
    told: list[set[tuple[str, int]]] = []
    async with world.client().subscribe("s", group="g", on_revoked=told.append) as one:
        async for record in one:
            if record.partition == 1:
                break
        async with world.client().subscribe("s", group="g") as two:
            await until(lambda: one.assignment == {S0})
            await delivered()
            assert told == []
            assert two.assignment == frozenset()
            assert S1 not in world.committed or world.committed[S1] <= record.offset
            following = await one.getone(timeout=5)
            assert following is None or following.partition == 0
            await until(lambda: two.assignment == {S1})
            assert told == [{S1}]
            assert world.committed[S1] == record.offset + 1
            assert await take(two, 1) == [("s", 1, record.offset + 1)]


async def test_a_partition_of_which_all_is_finished_is_given_up_without_a_call(world: World) -> None:
    told: list[set[tuple[str, int]]] = []
    async with world.client().subscribe("s", group="g", on_revoked=told.append) as one:
        async for record in one:
            if record.partition == 0:
                break
        async with world.client().subscribe("s", group="g") as two:
            await until(lambda: two.assignment == {S1})
            assert told == [{S1}]
            world.seed("s", 1, 1)
            assert (await take(two, 1))[0][:2] == S1


async def test_functions_are_told_and_may_wait(world: World) -> None:
    told: list[tuple[str, set[tuple[str, int]]]] = []

    async def assigned(partitions: set[tuple[str, int]]) -> None:
        await asyncio.sleep(0)
        told.append(("assigned", partitions))

    async def revoked(partitions: set[tuple[str, int]]) -> None:
        await consumer.commit({next(iter(partitions)): 3}, "by hand")
        told.append(("revoked", partitions))

    async with world.client().subscribe(
        "s", group="g", on_assigned=assigned, on_revoked=revoked, auto_commit=False
    ) as consumer:
        await take(consumer, 1)
    assert told == [("assigned", {S0, S1}), ("revoked", {S0, S1})]
    assert list(world.committed.values()) == [3]
    (offset,) = world.group.offsets.values()
    assert offset.metadata == "by hand"
    assert offset.partition_incarnation in (20, 21)


async def test_what_a_function_raises_the_next_call_raises(world: World) -> None:
    def fails(partitions: set[tuple[str, int]]) -> None:
        raise TimeoutError("not ready")

    async with world.client().subscribe("s", group="g", on_assigned=fails) as consumer:
        with pytest.raises(TimeoutError, match="not ready"):
            await consumer.getone(timeout=5)
        assert len(await take(consumer, 20)) == 20


async def test_on_assigned_may_say_where_to_begin(world: World) -> None:
    async def assigned(partitions: set[tuple[str, int]]) -> None:
        for stream, partition in partitions:
            await consumer.seek(stream, partition, 8)

    consumer = world.client().subscribe("s", group="g", on_assigned=assigned)
    async with consumer:
        assert sorted(await take(consumer, 4)) == [("s", 0, 8), ("s", 0, 9), ("s", 1, 8), ("s", 1, 9)]


async def test_a_removed_member_drops_everything_and_joins_anew(world: World) -> None:
    lost: list[set[tuple[str, int]]] = []
    async with world.client().subscribe("s", group="g", on_lost=lost.append) as consumer:
        await take(consumer, 3)
        before = consumer.member_id
        world.coordinator.remove("g", before)
        with pytest.raises(UnknownMember):
            await consumer.commit()
        await until(lambda: consumer.member_id != before and len(consumer.assignment) == 2)
        assert lost == [{S0, S1}]
        assert len(await take(consumer, 20)) == 20


async def test_a_coordinator_that_moves_is_ridden_out(world: World) -> None:
    async with world.client().subscribe("s", group="g") as consumer:
        await take(consumer, 3)
        world.coordinator.kill()
        committing = asyncio.create_task(consumer.commit())
        await delivered()
        assert len(await take(consumer, 17)) == 17
        world.coordinator.take_over()
        await committing
        assert sum(world.committed.values()) == 3
    assert sum(world.committed.values()) == 20


async def test_nobody_listens_so_the_controller_is_asked_to_make_the_stream(world: World) -> None:
    world.coordinator.kill()
    subject = world.broker.subjects.api(GROUP_COORDINATOR.name)

    def make(message: Message) -> None:
        world.coordinator.take_over()
        world.broker._on_api(GROUP_COORDINATOR.name, message)

    world.transport.listen(subject, make)
    async with world.client().subscribe("s", group="g") as consumer:
        assert len(await take(consumer, 20)) == 20


async def test_without_a_coordinator_joining_fails(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_session, "JOIN_TIMEOUT", 0.1)
    monkeypatch.setattr(group_session, "LEAVE_TIMEOUT", 0.1)
    world.coordinator.kill()
    with pytest.raises(NoServer, match="no coordinator took a member of group 'g' in"):
        await world.client().subscribe("s", group="g").start()


async def test_an_answer_that_was_lost_is_asked_for_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_link, "ATTEMPT_TIMEOUT", 0.3)
    async with world.client().subscribe("s", group="g") as consumer:
        await take(consumer, 20)
        await until(lambda: world.committed == {S0: 0, S1: 0})  # where the member has begun
        world.coordinator.swallow[COMMIT] = 2
        await consumer.commit()
        assert [sum(o.offset for o in request.offsets) for request in world.group.commits[-3:]] == [20] * 3


async def test_a_stale_generation_is_repeated_with_the_new_one(world: World) -> None:
    async with world.client().subscribe("s", group="g") as consumer:
        await take(consumer, 20)
        before = consumer.generation
        world.group.generation += 1
        world.group.members[consumer.member_id].generation += 1
        await consumer.commit()
        assert consumer.generation == before + 1
        assert world.committed == {S0: 10, S1: 10}


async def test_a_partition_of_another_member_cannot_be_committed(world: World) -> None:
    async with world.client().subscribe("s", group="g") as one:
        await take(one, 1)
        async with world.client().subscribe("s", group="g") as two:
            await one.getone(timeout=0.01)
            await until(lambda: two.assignment == {S1})
            with pytest.raises(NotAssigned, match="s/1 is not assigned to this member"):
                await one.commit({S1: 5})
            world.coordinator.refusals[COMMIT].append(TidelogError(Code.NOT_ASSIGNED, "s/0 is not assigned to it"))
            with pytest.raises(NotAssigned):
                await one.commit({S0: 5})


async def test_commits_are_one_at_a_time(world: World) -> None:
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 1)
        world.coordinator.refusals[COMMIT].append(TidelogError(Code.UNAVAILABLE, "the first one has to wait"))
        await asyncio.gather(*(consumer.commit({S0: offset}) for offset in range(1, 8)))
        assert [request.offsets[0].offset for request in world.group.commits] == list(range(1, 8))
        assert await consumer.committed() == {S0: Committed(7, "", 0)}


async def test_only_what_is_finished_is_committed_at_the_interval(world: World) -> None:
    async with world.client().subscribe("s", group="g", auto_commit_interval=0.01) as consumer:
        for number in range(1, 20):
            await take(consumer, 1)
            done = number - 1
            await until(lambda done=done: sum(world.committed.values()) == done)  # type: ignore[misc]


async def test_the_next_record_finishes_the_one_before(world: World) -> None:
    async with world.client().subscribe("s", group="g", auto_commit_interval=0.01) as consumer:
        number = 0
        async for _ in consumer:
            await until(lambda: sum(world.committed.values()) == number)  # noqa: B023
            number += 1
            if number == 15:
                break
    assert sum(world.committed.values()) == 15


async def test_a_fenced_instance_raises_for_good(world: World) -> None:
    lost: list[set[tuple[str, int]]] = []
    one = world.client().subscribe("s", group="g", instance_id="i", on_lost=lost.append)
    async with one:
        await take(one, 5)
        async with world.client().subscribe("s", group="g", instance_id="i") as two:
            one._session.hurry()
            await until(lambda: lost == [{S0, S1}])
            for _ in range(2):
                with pytest.raises(FencedInstance):
                    await one.getone()
            assert len(await take(two, 15)) >= 15


async def test_a_static_member_parts(world: World) -> None:
    async with world.client().subscribe("s", group="g", instance_id="i") as consumer:
        await take(consumer, 1)
    assert world.coordinator.heartbeats[-1].kind == HeartbeatRequest.PART


async def test_a_program_that_takes_nothing_hears_of_it_and_joins_anew(world: World) -> None:
    lost: list[set[tuple[str, int]]] = []
    async with world.client().subscribe("s", group="g", max_poll_interval=2.0, on_lost=lost.append) as consumer:
        await take(consumer, 1)
        before = consumer.member_id
        await until(lambda: not world.group.members)
        assert lost == [{S0, S1}]
        with pytest.raises(UnknownMember, match=r"took no records for 2 s"):
            await consumer.getone()
        assert len(await take(consumer, 20)) == 20
        assert consumer.member_id != before


async def test_after_its_session_it_hands_out_nothing_until_it_is_answered(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.coordinator.interval_ms = 50
    now = 0.0
    consumer = world.client().subscribe("s", group="g", session_timeout=10)
    consumer._session.clock = lambda: session_clock() + now
    async with consumer:
        await take(consumer, 1)
        world.coordinator.kill()
        now = 20.0  # the process was stopped so long
        assert await consumer.getone(timeout=0.05) is None
        assert caplog.text.count("no records are handed out until it does") == 1
        world.coordinator.take_over()
        assert len(await take(consumer, 19)) == 19


async def test_an_iteration_stops_in_the_middle_of_an_answer_when_its_session_ends(world: World) -> None:
    now = 0.0
    consumer = world.client().subscribe("s", group="g", session_timeout=10)
    consumer._session.clock = consumer._stopwatch = lambda: session_clock() + now
    async with consumer:
        found = []
        async for record in consumer:
            found.append(record.offset)
            if len(found) == 3:
                world.coordinator.remove("g", consumer.member_id)
                now = 20.0
            if len(found) == 4:
                break
        assert consumer.member_id in world.group.members, "it has joined anew in between"
        assert found[3] == 0, "what was not committed is read again"


async def test_streams_take_turns(world: World) -> None:
    for partition in range(2):
        for stream in ("s", "t"):
            for _ in range(20):
                world.seed(stream, partition, 10)
    async with world.client().subscribe(patterns="*", group="g", max_bytes=1) as consumer:
        await until(lambda: len(consumer.positions) == 4)
        await consumer.getone(timeout=1)
        order = []
        async for batch in consumer.batches():
            order.append(batch.stream)
            if len(order) == 40:
                break
        assert 15 <= order.count("s") <= 25


async def test_pause_and_resume_and_seek(world: World) -> None:
    async with world.client().subscribe(["s", "t"], group="g") as consumer:
        await until(lambda: len(consumer.positions) == 4)
        consumer.pause(S0, ("t", 1))
        assert consumer.paused == {S0, ("t", 1)}
        assert {(stream, partition) for stream, partition, _ in await take(consumer, 20)} == {S1, ("t", 0)}
        assert await consumer.getone(timeout=0.01) is None
        consumer.resume()
        await take(consumer, 20)
        await consumer.seek("t", 0, 7)
        assert consumer.position("t", 0) == 7
        assert await take(consumer, 3) == [("t", 0, 7), ("t", 0, 8), ("t", 0, 9)]
        with pytest.raises(BadRequest, match="s/7 is not assigned to this member, which has s/0, s/1, t/0, t/1"):
            await consumer.seek("s", 7, 1)


async def test_a_start_at_new_is_committed_before_anything_is_read(world: World) -> None:
    async with world.client().subscribe("s", group="g", start="new"):
        await until(lambda: world.committed == {S0: 10, S1: 10})
    world.seed("s", 0, 1)
    async with world.client().subscribe("s", group="g", start="new") as consumer:
        assert await take(consumer, 1) == [("s", 0, 10)]


@pytest.mark.parametrize("offset", [2, 50])
async def test_a_committed_offset_outside_of_the_log(
    world: World, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 1)
        await consumer.commit({S0: offset})
    log = world.broker.logs["s", 0]
    log.batches, log.start = [], 5
    log.end = 5
    world.seed("s", 0, 5)
    async with world.client().subscribe("s", group="g") as consumer:
        assert [r for r in await take(consumer, 15) if r[1] == 0] == [("s", 0, number) for number in range(5, 10)]
    assert "reading starts at its earliest" in caplog.text
    assert world.committed[S0] == 10


async def test_a_stream_that_is_created_anew_is_read_from_its_beginning(world: World) -> None:
    async with world.client().subscribe("s", group="g") as consumer:
        await take(consumer, 20)
        await consumer.getone(timeout=0)
        for partition in range(2):
            del world.broker.logs["s", partition]
        world.broker.create("s", 2)
        world.seed("s", 0, 3)
        world.coordinator.streams["s"] = (world.broker.streams["s"]["incarnation"], 2)
        world.coordinator.rebalance("g")
        assert await take(consumer, 3) == [("s", 0, 0), ("s", 0, 1), ("s", 0, 2)]
    incarnation, _ = world.coordinator.streams["s"]
    assert world.group.offsets[StreamPartition("s", incarnation, 0)].offset == 3


async def test_a_partition_without_a_leader_does_not_keep_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reader, "LOOK_UP_TIMEOUT", 0.05)
    fetch = world.broker.subjects.fetch(StreamName("s"), 1)
    world.transport.listen(fetch, None)
    async with world.client().subscribe("s", group="g") as consumer:
        assert len(await take(consumer, 10)) == 10
        assert await consumer.getone(timeout=0.1) is None
        world.broker._listen("s")
        assert len(await take(consumer, 10)) == 10


async def test_closing_twice_and_using_it_afterwards(world: World) -> None:
    consumer = world.client().subscribe("s", group="g")
    async with consumer:
        await take(consumer, 1)
    await consumer.aclose()
    with pytest.raises(Closed, match="this consumer of group 'g' is closed"):
        await consumer.getone()


async def test_a_call_that_waits_ends_when_it_is_closed(world: World) -> None:
    async with world.client().subscribe("s", group="g") as consumer:
        await take(consumer, 20)
        waiting = asyncio.create_task(consumer.getone())
        await delivered()
    with pytest.raises(Closed):
        await waiting


async def test_its_own_functions_cannot_close_it(world: World) -> None:
    async def revoked(partitions: set[tuple[str, int]]) -> None:
        await consumer.aclose()

    consumer = world.client().subscribe("s", group="g", on_revoked=revoked)
    await consumer.start()
    await take(consumer, 1)
    with pytest.raises(BadRequest, match="cannot be closed by its own"):
        await consumer.aclose()


async def test_nothing_is_left_behind(world: World) -> None:
    client = world.client()
    async with client.subscribe("s", group="g") as consumer:
        await take(consumer, 1)
    transport = client._transport
    assert isinstance(transport, FakeTransport)
    await delivered()
    assert transport.inboxes == {}
    assert not client._consumers
    await client.close()
    await delivered()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({}, "no stream to subscribe to"),
        ({"streams": "a b"}, "stream name 'a b'"),
        ({"streams": "s", "group": "a.b"}, "group name 'a.b'"),
        ({"streams": "s", "instance_id": ""}, "instance id ''"),
        ({"streams": "s", "start": "5"}, "start='5' is no position|start='5' is none of"),
        ({"streams": "s", "session_timeout": 0}, "session_timeout=0 is outside"),
        ({"streams": [1]}, "one of streams=1"),
        ({"patterns": [""]}, "the pattern ''"),
        ({"streams": "s", "on_lost": 3}, "on_lost=3"),
    ],
)
async def test_arguments_that_cannot_be(world: World, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TidelogError, match=sentence):
        world.client().subscribe(**{"group": "g", **arguments})
