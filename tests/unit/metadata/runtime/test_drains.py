"""Brokers that are drained: what the controller begins, refuses, and gives up."""

# Rules: R93.

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from metadata.runtime import drains
from tests.unit.metadata.brokers import CREATE, World, isr_change, running, until
from wire.errors import Code, TidelogError
from wire.types import BrokerId, Incarnation, IsrChange, PartitionView


def caught_up(view: PartitionView, world: World) -> IsrChange:
    """All replicas are in the ISR, as their leader knows."""
    brokers = world.brokers["a"].service.state.brokers
    return isr_change(view, *((each, Incarnation(brokers[each].incarnation)) for each in view.replicas))


async def copies(world: World) -> None:
    """Replicas that are added catch up at once, and leaders that are asked to hand over have drained."""
    for broker in world.brokers.values():
        for view in [*broker.views.values()]:
            if view.leader == broker.id and {*view.isr} != {*view.replicas}:
                broker.service.alter_isr(caught_up(view, world))
        while broker.answers:
            broker.answers.pop()(None)


async def test_a_broker_gives_its_replicas_and_leaderships_away_and_gets_none() -> None:
    async with running("a", "b", "c", "d") as world:
        await world.api("stream.create", **(CREATE | {"config": {"placement": "pinned:a,b,c"}}))
        await world.api("stream.alter", name="s", unset=["placement"])
        state = world.brokers["a"].service.state
        form = await world.api("broker.drain", broker="c", dry_run=True)
        assert (form["draining"], form["replicas"], form["plan"]["partitions"]) == (False, 3, 3)
        assert [(move["added"], move["removed"]) for move in form["plan"]["plan"]] == [(["d"], ["c"])] * 3
        assert not state.is_draining(BrokerId("c"))
        form = await world.api("broker.drain", broker="c")
        assert (form["draining"], form["replicas"]) == (True, 3)

        async def is_empty() -> bool:
            await copies(world)
            return state.held_by(BrokerId("c")) == 0

        await eventually(is_empty)
        assert state.led_by(BrokerId("c")) == 0
        with pytest.raises(TidelogError, match="c is draining"):
            await world.api("stream.create", **(CREATE | {"name": "t", "subject": "t", "replication_factor": 4}))
        await world.api("stream.create", **(CREATE | {"name": "t", "subject": "t"}))
        assert state.held_by(BrokerId("c")) == 0
        form = await world.api("broker.drain", broker="c", cancel=True)
        assert (form["draining"], form["plan"]["partitions"]) == (False, 0)


async def test_where_a_partition_finds_no_other_broker_nothing_is_begun() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        with pytest.raises(TidelogError) as refused:
            await world.api("broker.drain", broker="c")
        assert "broker c is not drained, for 3 of its partitions cannot live without it: s/0: " in refused.value.message
        assert not world.brokers["a"].service.state.is_draining(BrokerId("c"))
        form = await world.api("broker.drain", broker="c", dry_run=True)
        assert (form["plan"]["stuck_total"], form["refusal"]) == (3, refused.value.message)
        assert (await world.api("broker.drain", broker="a", dry_run=True))["voter"], "it is the controller"
        with pytest.raises(TidelogError, match="broker 'x' is not registered; those that are: a, b, c"):
            await world.api("broker.drain", broker="x")


async def test_what_is_begun_is_the_plan_that_was_shown() -> None:
    async with running("a", "b", "c", "d") as world:
        await world.api("stream.create", **(CREATE | {"config": {"placement": "pinned:a,b,c"}}))
        await world.api("stream.alter", name="s", unset=["placement"])
        state = world.brokers["a"].service.state
        requests: dict[str, dict[str, Any]] = {
            "broker.drain": {"broker": "c"},
            "cluster.rebalance": {},
            "stream.alter_factor": {"name": "s", "replication_factor": 4},
        }
        for kind, body in requests.items():
            with pytest.raises(TidelogError, match="the plan has changed since it was shown as 0123, and this request"):
                await world.api(kind, **body, plan="0123")
            assert not state.is_draining(BrokerId("c"))
            assert (await world.api("cluster.moves"))["total"] == 0
        shown = (await world.api("broker.drain", broker="c", dry_run=True))["plan"]["digest"]
        await world.api("broker.drain", broker="c", plan=shown)
        assert (await world.api("cluster.moves"))["total"] == 3
        with pytest.raises(TidelogError, match=f"shown as {shown}"):
            await world.api("broker.drain", broker="c", plan=shown)


async def test_another_replication_factor_counts_no_draining_broker_and_a_plan_never_waits() -> None:
    wanted: dict[str, Any] = {"name": "s", "replication_factor": 4}
    async with running("a", "b", "c", "d") as world:
        await world.api("stream.create", **(CREATE | {"config": {"placement": "pinned:a,b,c"}}))
        await world.api("stream.alter", name="s", unset=["placement"])
        await world.api("broker.drain", broker="d")
        for dry_run in (False, True):
            with pytest.raises(TidelogError, match="d is draining; `tidelog broker drain d --cancel`, ") as refused:
                await world.api("stream.alter_factor", **wanted, dry_run=dry_run)
            assert refused.value.code is Code.BAD_REPLICATION_FACTOR
        await world.api("broker.drain", broker="d", cancel=True)
        await world.brokers["d"].kill()
        await until(lambda: not world.brokers["a"].service.state.is_alive(BrokerId("d")))
        for dry_run, code in ((False, Code.NOT_ENOUGH_BROKERS), (True, Code.BAD_REPLICATION_FACTOR)):
            with pytest.raises(TidelogError, match="d is dead; start what is missing") as refused:
                await world.api("stream.alter_factor", **wanted, dry_run=dry_run)
            assert refused.value.code is code


async def test_a_drain_that_is_given_up_leaves_what_was_on_its_way() -> None:
    async with running("a", "b", "c", "d") as world:
        await world.api("stream.create", **(CREATE | {"config": {"placement": "pinned:a,b,c"}}))
        await world.api("stream.alter", name="s", unset=["placement"])
        await world.api("broker.drain", broker="c")
        assert (await world.api("cluster.moves"))["total"] == 3
        form = await world.api("broker.drain", broker="c", cancel=True)
        assert (form["was_draining"], form["given_up"], form["refusal"]) == (True, 3, "")
        form = await world.api("broker.drain", broker="c", cancel=True)
        assert (form["was_draining"], form["given_up"]) == (False, 0)
        await until(lambda: not any(part.reassignment for _, part in world.brokers["a"].service.state.partitions()))
        assert world.brokers["a"].service.state.held_by(BrokerId("c")) == 3


async def test_what_a_drained_broker_is_to_have_is_found_whoever_is_the_controller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drains, "LOOK_INTERVAL_S", 0.05)
    async with running("a", "b", "c", "d") as world:
        await world.api("stream.create", **(CREATE | {"config": {"placement": "pinned:a,b,c"}}))
        await world.api("stream.alter", name="s", unset=["placement"])
        requests: Any = world.brokers["a"].service._context.core.requests
        await world.brokers["a"].service.admin.drains._commit(requests.set_draining(BrokerId("c"), True))
        world.group.elect(world.group.members[1])
        state = world.brokers["b"].service.state
        await until(lambda: all(part.reassignment for _, part in state.partitions()))
        moving = [part.reassignment for _, part in state.partitions()]
        assert not any(each is None or BrokerId("c") in each.target for each in moving)


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - of other brokers
            await asyncio.sleep(0.005)
