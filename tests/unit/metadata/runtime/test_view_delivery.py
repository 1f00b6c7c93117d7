"""Views of very many partitions are handed over in turns: leaders first, always the newest, and no lease is proved
before those have heard of it that lead no more."""

# Rules: R29.

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from metadata.cluster.model import Changes
from metadata.runtime import applied_state, views
from metadata.runtime.applied_state import ChangesInTurns
from metadata.runtime.views import HANDED_OVER, ViewDelivery
from tests.unit.metadata.brokers import CREATE, running, until
from tests.unit.metadata.cluster_bench import Cluster
from wire.protobuf import metadata_pb2 as pb
from wire.turns import LOOKS
from wire.types import BrokerId, Incarnation, PartitionGone, PartitionKey, PartitionView, StreamName

BROKERS = ("a", "b", "c")
A_TURN = LOOKS // HANDED_OVER
PARTITIONS = 6 * A_TURN


class Delivery:
    """That of broker "b", turn by turn."""

    def __init__(self) -> None:
        self.cluster = Cluster(*BROKERS)
        self.turns: list[list[PartitionView | PartitionGone]] = []
        context = SimpleNamespace(broker_id="b", state=self.cluster.state, port=SimpleNamespace(on_partitions=self._on))
        self.views = ViewDelivery(cast(Any, context))

    def _on(self, changes: Sequence[PartitionView | PartitionGone]) -> None:
        self.turns[-1].extend(changes)

    def create(self, name: str, partitions: int) -> None:
        assignments = [
            pb.Assignment(replicas=[(number + place) % 3 for place in range(3)], leader=number % 3)
            for number in range(partitions)
        ]
        create = pb.CreateStream(
            controller_epoch=1, name=name, subject=name, replication_factor=3, brokers=BROKERS, assignments=assignments
        )
        self.cluster.apply(pb.Command(create_stream=create))

    def followed(self) -> list[PartitionKey]:
        return [key for key, _ in self.cluster.state.partitions(lambda partition: "b" in partition.replicas)]

    def first(self) -> None:
        self.views.begin()
        while not self.views.is_done:
            self.turn()

    def turn(self) -> list[PartitionView | PartitionGone]:
        self.turns.append([])
        self.views.deliver()
        return self.turns[-1]


@pytest.fixture
def delivery() -> Delivery:
    made = Delivery()
    made.create("s", PARTITIONS)
    made.first()
    return made


def test_the_first_views_come_in_turns_and_in_the_order_of_all_brokers(delivery: Delivery) -> None:
    assert max(map(len, delivery.turns)) <= A_TURN
    views = [view for turn in delivery.turns for view in turn if isinstance(view, PartitionView)]
    assert len({view.key for view in views}) == len(views) == PARTITIONS
    assert [view.key for view in views] == delivery.followed()


def test_until_the_first_views_have_come_no_lease_is_proved() -> None:
    delivery = Delivery()
    delivery.create("s", PARTITIONS)
    delivery.views.begin()
    assert not delivery.views.has_told_leaders
    delivery.turn()
    assert not delivery.views.has_begun_leaders


def test_partitions_that_are_made_while_the_first_views_come_are_not_missed() -> None:
    delivery = Delivery()
    delivery.create("s", PARTITIONS)
    delivery.create("z", PARTITIONS)
    delivery.views.begin()
    delivery.turn()
    delivery.create("a", 3)
    delivery.views.changed(key for key in delivery.followed() if key.stream == "a")
    while not delivery.views.is_done:
        delivery.turn()
    told = [view.key for turn in delivery.turns for view in turn if isinstance(view, PartitionView)]
    assert sorted(told) == delivery.followed()


def test_changed_ones_come_in_turns_and_those_first_that_were_led_here(delivery: Delivery) -> None:
    first = (view for turn in delivery.turns for view in turn if isinstance(view, PartitionView))
    led = {view.key for view in first if view.leader == "b"}
    changes = delivery.cluster.die("b").changes
    changes = Changes(partitions=(*changes.partitions, *delivery.cluster.register("b").changes.partitions))
    delivery.views.changed(changes.partitions)
    order: list[PartitionKey] = []
    while not delivery.views.is_done:
        assert delivery.views.has_told_leaders == (led <= {*order})
        turn = delivery.turn()
        assert len(turn) <= A_TURN
        order += [change.key for change in turn if isinstance(change, PartitionView)]
    assert {*order[: len(led)]} == led
    assert sorted(order) == delivery.followed()


def test_partitions_that_are_led_here_now_come_before_those_that_are_followed(delivery: Delivery) -> None:
    delivery.views.changed(delivery.cluster.die("a").changes.partitions)
    leads: list[bool] = []
    while not delivery.views.is_done:
        leads += [view.leader == "b" for view in delivery.turn() if isinstance(view, PartitionView)]
    assert leads == sorted(leads, reverse=True)
    assert len({*leads}) == 2


def test_a_view_is_the_newest_one_and_comes_once(delivery: Delivery) -> None:
    delivery.views.changed(delivery.cluster.die("a").changes.partitions)
    seen = [*delivery.turn()]
    assert 0 < len(seen) < PARTITIONS
    delivery.views.changed(delivery.cluster.die("c").changes.partitions)
    told: dict[PartitionKey, int] = {}
    while not delivery.views.is_done:
        for view in delivery.turn():
            assert isinstance(view, PartitionView)
            assert view == delivery.cluster.state.view(view.key)
            told[view.key] = told.get(view.key, 0) + 1
    assert {*told.values()} == {1}
    assert {view.key for view in seen if isinstance(view, PartitionView)} <= told.keys()


def test_leaders_have_begun_when_each_of_them_was_told(delivery: Delivery) -> None:
    delivery.create("t", PARTITIONS)
    delivery.views.changed(key for key in delivery.followed() if key.stream == "t")
    led = {
        key
        for key, partition in delivery.cluster.state.partitions(lambda partition: partition.leader == "b")
        if key.stream == "t"
    }
    told: set[PartitionKey] = set()
    while not delivery.views.has_begun_leaders:
        assert not led <= told
        told |= {view.key for view in delivery.turn() if isinstance(view, PartitionView)}
    assert led <= told


def test_a_deleted_stream_goes_in_turns(delivery: Delivery) -> None:
    delivery.views.changed(delivery.cluster.delete("s").changes.gone)
    gone: list[PartitionView | PartitionGone] = []
    while not delivery.views.is_done:
        turn = delivery.turn()
        assert len(turn) <= A_TURN
        gone += turn
    assert len(gone) == PARTITIONS
    assert all(isinstance(change, PartitionGone) for change in gone)


def test_changes_are_looked_at_in_parts() -> None:
    def key(number: int) -> PartitionKey:
        return PartitionKey(StreamName("s"), Incarnation(1), number, Incarnation(1))

    keys = tuple(map(key, range(25)))
    changes = ChangesInTurns()
    changes.add(Changes(partitions=keys[:2], streams=True))
    changes.add(Changes(partitions=keys[2:20], gone=keys[20:], brokers=(BrokerId("a"),), controller=True))
    with patch.object(applied_state, "LOOKS", 40):
        parts = []
        while changes:
            parts.append(changes.take())
    assert tuple(each for part in parts for each in part.partitions) == keys[:20]
    assert tuple(each for part in parts for each in part.gone) == keys[20:]
    assert all(len(part.partitions) <= 10 for part in parts)
    assert [part.brokers for part in parts] == [("a",), ()]
    assert (parts[0].streams, parts[0].controller) == (True, True)
    assert changes.take() == Changes()


async def test_a_probe_proves_no_lease_before_all_have_heard_that_lead_no_more() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **(CREATE | {"partitions": 30}))
        broker = world.brokers["b"]
        await until(lambda: len(broker.views) == 30)
        state, service = broker.service.state, broker.service
        await until(lambda: service._deliver_applied().ended == state.generation)
        items = [
            pb.Election(
                partition=pb.PartitionRef(
                    stream="s",
                    stream_incarnation=key.stream_incarnation,
                    partition=key.partition,
                    partition_incarnation=key.partition_incarnation,
                ),
                leader_epoch=partition.leader_epoch,
            )
            for key, partition in state.partitions(lambda partition: partition.leader == "b")
        ]
        elections = pb.ElectLeaders(controller_epoch=state.controller_epoch, items=items)
        with patch.object(views, "LOOKS", 2 * HANDED_OVER), patch.object(applied_state, "LOOKS", 8):
            world.group.commit(pb.Command(elect_leaders=elections).SerializeToString(), world.group.members[0])
            turns = 0
            while service._deliver_applied().ended < state.generation:
                turns += 1
            still = [view for view in broker.views.values() if view.leader == "b" != state.view(view.key).leader]  # type: ignore[union-attr]
        assert turns >= len(items) / 2 - 1
        assert still == []


async def test_keys_go_to_no_leader_that_was_not_told_that_it_leads() -> None:
    """Its broker has applied the Prepare, which made the partition that it is to lead."""
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        broker, core, name = world.brokers["b"], world.brokers["a"].service._context.core, StreamName("s")
        await until(lambda: len(broker.views) == 3)
        state = broker.service.state
        with patch.object(broker.service._views, "deliver"):
            await world.api("stream.repartition", name="s", partitions=6)
            before = core._liveness.newest_answer(broker.id)
            await until(lambda: core._liveness.newest_answer(broker.id) > before + 3)
            stream = state.streams[name]
            assert stream.partitioning_version == 1
            led = [number for number, partition in stream.partitions.items() if partition.leader == "b"]
            assert core.repartitioning.not_ready(stream) == led != []
        await until(lambda: state.streams[name].partitioning_version == 2)
