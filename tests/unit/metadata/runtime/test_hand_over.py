"""A broker hands over what it leads, and what it decides, before it stops."""

# Rules: R88.

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace

import pytest

from tests.unit.metadata.brokers import SETTINGS, SUBJECTS, Broker, World, running, until
from wire.messaging.transport import Message
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, StreamName


async def answering(world: World) -> None:
    """All leaders are ready for their moves at once."""
    told: dict[str, int] = {}
    while True:
        for broker in world.brokers.values():
            for answer in broker.answers[told.get(broker.id, 0) :]:
                answer(None)
            told[broker.id] = len(broker.answers)
        await asyncio.sleep(0.001)


def led_by(world: World, broker: Broker) -> int:
    return broker.service.state.led_by(broker.id)


async def test_all_leaderships_go_then_the_broker_leaves_every_isr_and_does_not_register_again() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", name="s", subject="s", partitions=6, replication_factor=3, config={})
        leaving = next(broker for broker in world.brokers.values() if not broker.service.is_controller)
        await until(lambda: led_by(world, leaving))
        moving = asyncio.ensure_future(answering(world))
        try:
            await asyncio.wait_for(leaving.service.hand_over(), 10)
        finally:
            moving.cancel()
        state = next(broker.service.state for broker in world.brokers.values() if broker is not leaving)
        assert not state.is_alive(leaving.id)
        for partition in state.streams[StreamName("s")].partitions.values():
            assert partition.leader not in (leaving.id, None)
            assert leaving.id not in partition.isr
            assert len(partition.isr) == 2
        life = state.brokers[leaving.id].incarnation
        await asyncio.sleep(0.05)
        assert state.brokers[leaving.id].incarnation == life
        assert not leaving.fatal


async def test_brokers_that_are_all_stopped_at_once_stay_in_every_isr() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", name="s", subject="s", partitions=6, replication_factor=3, config={})
        brokers = list(world.brokers.values())
        await until(lambda: all(len(broker.views) == 6 for broker in brokers))
        moving = asyncio.ensure_future(answering(world))
        try:
            await asyncio.wait_for(asyncio.gather(*(broker.service.hand_over() for broker in brokers)), 30)
        finally:
            moving.cancel()
        for broker in brokers:
            assert not broker.service._context.is_leaving
            for partition in broker.service.state.streams[StreamName("s")].partitions.values():
                assert len(partition.isr) == 3


async def test_only_the_current_controller_says_who_else_is_stopping() -> None:
    async with running("a", "b", "c") as world:
        controller = next(broker for broker in world.brokers.values() if broker.service.is_controller)
        broker = next(broker for broker in world.brokers.values() if broker is not controller)
        context, requests = broker.service._context, broker.service._requests
        state = context.state

        def probed(epoch: int, incarnation: int) -> frozenset[BrokerId]:
            probe = pb.Probe(
                controller=controller.id,
                controller_epoch=epoch,
                number=10**6,
                cluster_id=state.cluster_id,
                incarnation=incarnation,
                stopping=["x"],
            )
            requests._on_probe(Message(SUBJECTS.probe(broker.id), probe.SerializeToString(), "inbox"))
            return context.stopping_brokers

        assert context.incarnation is not None
        for epoch in (state.controller_epoch - 1, state.controller_epoch + 1):
            assert probed(epoch, context.incarnation) == frozenset()
        assert probed(state.controller_epoch, context.incarnation + 1) == frozenset()
        assert probed(state.controller_epoch, context.incarnation) == {"x"}


async def test_it_stops_after_its_time_though_leaderships_are_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running("a", "b", "c") as world:
        _, leader = await world.one_partition()
        context = leader.service._context
        context.settings = replace(SETTINGS, hand_over_timeout_s=0.3)
        await asyncio.wait_for(leader.service.hand_over(), 20)
        assert leader.asked, "the move was tried"
        assert f"broker {leader.id} stops though it leads 1 (s/0)" in caplog.text
        assert "hand_over_timeout_s (0.3 s)" in caplog.text


async def test_without_a_majority_it_waits_for_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running("a", "b", "c") as world:
        _, leader = await world.one_partition()
        raft = leader.service._raft
        status = raft.status()
        monkeypatch.setattr(raft, "status", lambda: replace(status, has_quorum=False))
        await asyncio.wait_for(leader.service.hand_over(), 5)
        assert f"broker {leader.id} stops though it leads 1 (s/0): it is connected to no majority" in caplog.text


async def test_what_cannot_move_is_named_and_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running("a", "b", "c") as world:
        await world.api("stream.create", name="s", subject="s", partitions=3, replication_factor=1, config={})
        leaving = next(broker for broker in world.brokers.values() if not broker.service.is_controller)
        await until(lambda: led_by(world, leaving))
        await asyncio.wait_for(leaving.service.hand_over(), 10)
        assert f"nobody leads these partitions of one replica until {leaving.id} is back: 1 (s/" in caplog.text
        assert not leaving.asked


async def test_a_controller_asks_its_group_to_elect_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("a", "b", "c") as world:
        controller = next(broker for broker in world.brokers.values() if broker.service.is_controller)
        other = next(broker for broker in world.brokers.values() if broker is not controller)
        given_way: list[str] = []

        def hand_over() -> bool:
            given_way.append(controller.id)
            world.group.elect(other.service._raft)  # type: ignore[arg-type]
            return True

        monkeypatch.setattr(controller.service._raft, "hand_over", hand_over)
        await asyncio.wait_for(controller.service.hand_over(), 10)
        assert given_way == [controller.id]
        assert other.service.is_controller
        assert not other.service.state.is_alive(controller.id)
