"""Requests about a transaction that come while the one before is decided, and not everybody was told."""

from __future__ import annotations

import pytest

from tests.unit.tidelog.server.coordinators.transactions.transactions_world import Producer, World, code, init_request
from wire.errors import Code
from wire.protobuf.transactions_pb2 import EndResponse


def decided_and_not_told() -> tuple[World, Producer]:
    """A transaction is committed, its partition does not confirm, and its producer has gone on to the next epoch."""
    world = World()
    producer = world.init()
    producer.add(0)
    world.confirms = False
    token = world.send(producer.end_request())
    world.pass_(2.0)
    answer = world.answers[token]
    assert isinstance(answer, EndResponse)
    assert answer.waits_for
    producer.epoch = answer.next_epoch
    return world, producer


@pytest.mark.parametrize("adds_first", [False, True])
@pytest.mark.parametrize("moves", [False, True])
def test_an_end_of_the_next_transaction_waits_while_the_one_before_is_being_told(adds_first: bool, moves: bool) -> None:
    world, producer = decided_and_not_told()
    if moves:
        world.fail_over()
    add = world.send(producer.add_request(1)) if adds_first else None
    end = world.send(producer.end_request(commits=False))
    assert end not in world.answers
    world.confirm()
    world.settle()
    assert world.answers[end] == EndResponse(next_epoch=producer.epoch + 1)
    if add is not None:
        assert code(world.answers[add]) is Code.TRANSACTION_ABORTED, "its producer has given it up"
    producer.epoch += 1
    world.confirms = True
    producer.add(2)
    producer.end()


def test_an_end_that_cannot_be_carried_out_yet_is_refused_so_that_it_comes_again() -> None:
    world, producer = decided_and_not_told()
    end = world.send(producer.end_request(commits=False))
    world.pass_(2.0)
    assert code(world.answers[end]) is Code.UNAVAILABLE
    world.confirm()
    assert producer.end(commits=False).next_epoch == 2


def test_an_end_of_a_fenced_producer_does_not_wait() -> None:
    world, producer = decided_and_not_told()
    held = world.send(init_request())
    assert held not in world.answers
    world.confirm()
    world.settle()
    assert producer.refused(producer.end_request(commits=False)) is Code.PRODUCER_FENCED
