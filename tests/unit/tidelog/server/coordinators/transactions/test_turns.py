"""A coordinator of transactions does in turns what takes long: it shares its event loop with leaders."""

from __future__ import annotations

from itertools import pairwise

import pytest

import tidelog.server.coordinators.transactions.transaction_shard as shard_module
from tests.unit.tidelog.server.coordinators.groups.groups_world import view
from tests.unit.tidelog.server.coordinators.transactions.transactions_world import Producer, World, init_request
from tidelog.server.coordinators.shard import Admin, Settled
from tidelog.server.coordinators.transactions.transaction_shard import KEPT_S
from wire.operations.transaction_operations import TRANSACTION_DESCRIBE, TRANSACTION_LIST
from wire.protobuf.transactions_pb2 import FamilyRequest


@pytest.fixture(autouse=True)
def _short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_module, "MAX_ASKED", 30)
    monkeypatch.setattr(shard_module, "MAX_REQUESTS", 3)
    monkeypatch.setattr(shard_module, "MAX_WRITTEN", 2)


def begun(world: World, count: int, **more: float) -> list[Producer]:
    """Transactions that are open, of four partitions each."""
    producers = [world.init(f"t{number}", **more) for number in range(count)]
    for producer in producers:
        world.ask(producer.add_request(0, 1, 2, 3))
    return producers


def settlements(world: World) -> list[Settled]:
    """Until nothing waits."""
    found: list[Settled] = []
    while world.shard.is_waiting or not found:
        settled = world.shard.settle(world.now, world.times)
        world.shard.validate()
        world.log += settled.records
        found.append(settled)
    return found


def test_requests_are_carried_out_in_turns() -> None:
    world = World()
    begun(world, 8)
    for number in range(10):
        world.shard.take(number, FamilyRequest(family="f"))
    assert [len(each.answers) for each in settlements(world)] == [3, 3, 3, 1]
    for number in range(8):
        world.shard.take(number, Admin(TRANSACTION_LIST, TRANSACTION_LIST.request_kind(with_stream="s")))
    assert {len(each.answers) for each in settlements(world)} == {0, 1}
    for number in range(8):
        world.shard.take(number, Admin(TRANSACTION_DESCRIBE, TRANSACTION_DESCRIBE.request_kind(transactional_id="t1")))
    assert max(len(each.answers) for each in settlements(world)) == 3


def test_adds_and_ends_are_carried_out_in_turns_of_participants() -> None:
    world = World()
    producers = [world.init(f"t{number}") for number in range(6)]
    for producer in producers:
        world.shard.take(producer.name, producer.add_request(0, 1, 2, 3))
    assert [len(each.answers) for each in settlements(world)] == [2, 2, 2]
    for producer in producers:
        world.shard.take(producer.name, producer.end_request())
    told = [len(each.deliveries) for each in settlements(world)]
    assert (max(told), sum(told)) == (12, 24)


def test_a_new_coordinator_tells_of_decisions_in_turns_and_carries_out_nothing_before() -> None:
    world = World()
    producers = begun(world, 9)
    world.confirms = False
    for producer in producers[:8]:
        world.send(producer.end_request())
    world.shard = world.successor()
    world.shard.take("list", Admin(TRANSACTION_LIST, TRANSACTION_LIST.request_kind()))
    world.shard.take("init", init_request("new"))
    found = settlements(world)
    told = [len(each.deliveries) for each in found]
    assert (max(told), sum(told)) == (12, 32)
    assert not any(each.answers for each, more in pairwise(found) if more.deliveries)
    assert sorted(str(token) for each in found for token, _ in each.answers) == ["init", "list"]
    for each in found:
        for delivery in each.deliveries:
            world.shard.on_delivered(delivery)
    settlements(world)
    assert list(world.shard._decisions.active) == ["t8"]


def test_transactions_that_are_open_for_too_long_are_aborted_in_turns() -> None:
    world = World()
    begun(world, 10, timeout=1.0)
    world.now += 2
    found = settlements(world)
    told = [len(each.deliveries) for each in found]
    assert (max(told), sum(told)) == (12, 40)


def test_a_stream_that_goes_is_taken_out_of_transactions_that_end_in_turns() -> None:
    world = World()
    world.confirms = False
    for producer in begun(world, 10):
        world.send(producer.end_request())
    world.shard.on_streams(view(20, r=(2, 1)))
    assert len(settlements(world)) >= 2
    assert not world.shard._decisions.active
    assert world.shard._decisions.participants == 0


def test_ids_are_forgotten_and_records_are_caught_up_with_in_turns() -> None:
    world = World()
    for producer in begun(world, 7):
        world.send(producer.end_request())
    world.now += 1
    world.time_ns += 10**9
    assert max(len(each.records) for each in settlements(world)) == 2, "records of transactions that have ended"
    world.now += 100
    world.time_ns += (KEPT_S + 100) * 10**9
    found = settlements(world)
    assert max(len(each.records) for each in found) <= 2
    assert sum(value is None for each in found for _, value in each.records) == 7
    assert not world.shard.transactions
