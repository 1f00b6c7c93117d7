"""Leaderships that an operator moves, or gives up records for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from metadata.cluster.references import ref_of
from tests.unit.metadata.brokers import (
    SETTINGS,
    SUBJECTS,
    Broker,
    World,
    isr_change,
    running,
    until,
)
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.protobuf import metadata_pb2 as pb
from wire.types import (
    BrokerId,
    Withdrawal,
)


@asynccontextmanager
async def moving() -> AsyncIterator[tuple[World, Broker, str]]:
    """A stream of one partition on three brokers: its leader, and the broker that is to lead."""
    async with running("a", "b", "c") as world:
        _, leader = await world.one_partition()
        target = next(broker for broker in "cba" if broker != leader.id)
        yield world, leader, target


async def test_a_leader_drains_before_the_target_of_a_move_is_elected() -> None:
    async with moving() as (world, leader, target):
        before = world.view()
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        ((move, timeout),) = leader.asked
        assert (move.key, move.leader_epoch, move.target) == (before.key, before.leader_epoch, target)
        assert SETTINGS.drain_timeout_s - 1 < timeout < SETTINGS.drain_timeout_s, "what is left of it"
        assert world.view() == before, "nothing is decided before the leader is ready"
        leader.answers[0](None)
        form = await asking
        assert (form["stream"], form["leader"], form["leader_epoch"]) == ("s", target, before.leader_epoch + 1)
        assert form["log_end_offset"] == 7, "the new leader serves"
        assert world.view().isr == before.isr
        assert leader.id in before.isr


@pytest.mark.parametrize("stood_still", [SETTINGS.drain_timeout_s, SETTINGS.leader_lease_s])
async def test_a_request_to_drain_that_lay_unread_is_refused(stood_still: float) -> None:
    async with moving() as (world, leader, target):
        now = asyncio.get_running_loop().time
        unread: list[Message] = []
        subject = SUBJECTS.drain(leader.id)
        ((_, handler),) = world.hub.handlers[subject]
        world.hub.handlers[subject] = [(None, unread.append)]
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: unread)
        leader.service._context.monotonic = lambda: now() + stood_still
        handler(unread[0])
        with pytest.raises(TidelogError, match=f"{leader.id} read the request to hand over s/0 too late") as refused:
            await asking
        assert refused.value.code is Code.LEADER_NOT_MOVED
        assert leader.asked == []
        leader.service._context.monotonic = now


@pytest.mark.parametrize("lacks", ["controller_epoch", "answered"])
async def test_a_request_to_drain_that_cannot_be_told_from_an_old_one_is_refused(lacks: str) -> None:
    async with moving() as (world, leader, target):
        service = leader.service
        controller = next(broker.service for broker in world.brokers.values() if broker.service.is_controller)
        request = pb.DrainRequest(
            partition=ref_of(world.view().key),
            leader_epoch=1,
            target=target,
            timeout_ms=2000,
            controller_epoch=controller.state.controller_epoch - (lacks == "controller_epoch"),
            answered=0 if lacks == "answered" else controller._context.core.newest_answer(BrokerId(leader.id)),
            cluster_id=controller.cluster_id,
        )
        service._requests._on_drain_request(Message("drain", request.SerializeToString(), "_INBOX.x"))
        assert leader.asked == []


async def test_a_leader_that_cannot_hand_over_is_the_operators_error_and_nothing_changes() -> None:
    async with moving() as (world, leader, target):
        before, log = world.view(), len(world.group.log)
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        leader.answers[0](TidelogError(Code.LEADER_NOT_MOVED, "the target did not get to its end"))
        with pytest.raises(TidelogError, match="did not get to its end") as refused:
            await asking
        assert refused.value.code is Code.LEADER_NOT_MOVED
        assert (world.view(), len(world.group.log)) == (before, log)


@pytest.mark.parametrize("silence", ["nobody listens", "no answer"])
async def test_a_leader_that_says_nothing_is_not_waited_for_for_ever(
    silence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.runtime.moves.ANSWER_MARGIN_S", 0.1 - SETTINGS.drain_timeout_s)
    async with moving() as (world, leader, target):
        subject = SUBJECTS.drain(leader.id)
        if silence == "nobody listens":
            world.hub.handlers[subject].clear()
        with pytest.raises(TidelogError, match=rf"its leader {leader.id} .*; {leader.id} leads it, in LeaderEpoch 1"):
            await world.api("partition.move_leader", stream="s", partition=0, broker=target)


async def test_a_failover_to_the_target_while_the_leader_drains_is_a_move_that_came_about() -> None:
    async with moving() as (world, leader, target):
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        state = world.brokers["a"].service.state
        ref = ref_of(world.view().key)
        election = pb.Election(partition=ref, leader_epoch=1, target=target)
        command = pb.Command(elect_leaders=pb.ElectLeaders(controller_epoch=state.controller_epoch, items=[election]))
        world.group.commit(command.SerializeToString(), world.group.members[0])
        leader.answers[0](TidelogError(Code.LEADER_NOT_MOVED, f"{leader.id} leads no more"))
        assert (await asking)["leader"] == target


async def test_a_leader_that_was_deposed_while_it_drained_does_not_hand_over() -> None:
    async with moving() as (world, leader, target):
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        third = next(broker for broker in "abc" if broker not in (leader.id, target))
        state = world.brokers["a"].service.state
        election = pb.Election(partition=ref_of(world.view().key), leader_epoch=1, target=third)
        command = pb.Command(elect_leaders=pb.ElectLeaders(controller_epoch=state.controller_epoch, items=[election]))
        world.group.commit(command.SerializeToString(), world.group.members[0])
        leader.answers[0](None)
        with pytest.raises(TidelogError, match=f"the election of {target} was refused; {third} leads it") as refused:
            await asking
        assert refused.value.code is Code.LEADER_NOT_MOVED


async def test_a_request_for_the_move_that_is_under_way_gets_its_outcome_and_another_one_is_refused() -> None:
    async with moving() as (world, leader, target):
        body = {"stream": "s", "partition": 0, "broker": target}
        asking = [asyncio.ensure_future(world.api("partition.move_leader", **body)) for _ in range(2)]
        await until(lambda: leader.asked)
        third = next(broker for broker in "abc" if broker not in (leader.id, target))
        with pytest.raises(TidelogError, match=f"s/0 is moving to {target}; wait"):
            await world.api("partition.move_leader", **(body | {"broker": third}))
        leader.answers[0](None)
        assert [form["leader"] for form in await asyncio.gather(*asking)] == [target, target]
        assert len(leader.asked) == 1
        with pytest.raises(TidelogError, match=f"{target} leads s/0 already"):
            await world.api("partition.move_leader", **body)


async def test_a_move_whose_election_had_an_unknown_outcome_is_found_done() -> None:
    async with moving() as (world, leader, target):
        asking = asyncio.ensure_future(world.api("partition.move_leader", stream="s", partition=0, broker=target))
        await until(lambda: leader.asked)
        world.group.lose_outcomes = 1
        leader.answers[0](None)
        assert (await asking)["leader"] == target


async def test_an_unclean_election_names_the_records_given_up_and_needs_accept_loss() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition(min_isr="1")
        chosen = next(broker for broker in "abc" if broker != leader.id)
        body = {"stream": "s", "partition": 0, "broker": chosen}
        with pytest.raises(TidelogError, match=f"is led by {leader.id}"):
            await world.api("partition.unclean_elect", **body)
        leader.service.alter_isr(isr_change(view, (leader.id, leader.service.incarnation)))
        await until(lambda: world.view().isr == (leader.id,))
        leader.service.withdraw(
            Withdrawal(key=view.key, broker=leader.id, expected_epoch=world.view().epoch, reason="bad CRC")
        )
        await until(lambda: world.view().leader is None)

        world.brokers[chosen].reports = [
            {
                "partition": 0,
                "incarnation": view.key.partition_incarnation,
                "log_start_offset": 0,
                "log_end_offset": 4,
                "high_watermark": 3,
            }
        ]
        before = world.view()
        told = await world.api("partition.unclean_elect", **body)
        assert (told["elected"], told["log_end_offset"]) == (False, 4)
        assert told["loss"].startswith("records from offset 4 on, which only ")
        assert f"{leader.id} (withdrawn, alive)" in told["loss"]
        assert (world.view(), world.brokers["a"].service.status()["unclean_elections"]) == (before, 0)
        done = await world.api("partition.unclean_elect", accept_loss=True, **body)
        assert done == {**told, "elected": True}
        assert (world.view().leader, world.view().isr) == (chosen, (chosen,))
        assert (await world.api("cluster.status"))["unclean_elections"] == 1
        assert [b.service.status()["unclean_elections"] for b in world.brokers.values()] == [1, 1, 1]
