"""Requests of a broker to the controller, in messages that NATS and Raft take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from metadata.controller.metadata_settings import MetadataSettings
from metadata.runtime.driver_context import Messages, MetadataContext, Tasks
from metadata.runtime.outbound import GATHER_S, TURN, OutboundRequests
from tests.fake_nats import FakeTransport
from tests.loop_steps import Lines, steps_measured
from tests.tickets import producer_keys
from tests.unit.metadata.brokers import until
from tests.unit.metadata.cluster_bench import Cluster
from wire.protobuf import metadata_pb2 as pb
from wire.subjects import Subjects
from wire.types import BrokerId, Buffer, Incarnation, IsrChange, IsrMember, LeaderEpoch, LeaderReport, Withdrawal

LINES = 60_000
"""Lines of Python of the longest step of the loop: some 10 ms."""


def requests_of(
    cluster: Cluster, wire: FakeTransport, incarnation: Incarnation, monotonic: Callable[[], float] = lambda: 0.0
) -> OutboundRequests:
    nothing: Any = None
    return OutboundRequests(
        MetadataContext(
            broker_id=BrokerId("a"),
            life_id="a-1",
            state=cluster.state,
            core=nothing,
            port=nothing,
            transport=wire,
            subjects=Subjects(),
            settings=MetadataSettings(),
            monotonic=monotonic,
            clock=nothing,
            tasks=Tasks(BrokerId("a")),
            messages=Messages(BrokerId("a"), wire, lambda: 0.0),
            producer_keys=producer_keys(),
            incarnation=incarnation,
        )
    )


class TimedTransport(FakeTransport):
    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []

    def publish(self, subject: str, parts: Sequence[Buffer], **options: Any) -> bool:
        self.times.append(asyncio.get_running_loop().time())
        return super().publish(subject, parts, **options)


def of_isr(cluster: Cluster, number: int, *members: str, reason: str = "lagging") -> IsrChange:
    partition = cluster.partition(number)
    return IsrChange(
        key=cluster.key(number),
        leader=BrokerId("a"),
        leader_epoch=partition.leader_epoch,
        expected_epoch=partition.epoch,
        new_isr=tuple(IsrMember(BrokerId(b), Incarnation(cluster.incarnation(b))) for b in members),
        reason=reason,
    )


def sent_by(wire: FakeTransport) -> list[pb.ControllerRequest]:
    assert {subject for subject, *_ in wire.sent} <= {Subjects().controller()}
    return [pb.ControllerRequest.FromString(data) for _, data, _ in wire.sent]


def alterations(wire: FakeTransport) -> list[list[int]]:
    """The partitions of each message."""
    changes = [sent.alter_isr for sent in sent_by(wire) if sent.HasField("alter_isr")]
    return [[item.partition.partition for item in change.items] for change in changes]


async def test_as_many_requests_as_there_are_partitions_go_out_in_turns() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"] * 10_000)
    wire = FakeTransport()
    requests = requests_of(cluster, wire, Incarnation(1))
    for number in range(10_000):
        requests.ask(of_isr(cluster, number, "a"))
        requests.report(
            LeaderReport(
                key=cluster.key(number),
                replica=BrokerId("a"),
                leader=BrokerId("b"),
                epoch=cluster.partition(number).epoch,
                leader_epoch=cluster.partition(number).leader_epoch,
                refused=False,
            )
        )
    with steps_measured(Lines()) as longest:
        await until(lambda: len(wire.sent) == 2 * 10_000 // TURN)
    assert longest.size < LINES, longest.of
    sent = alterations(wire)
    assert [len(numbers) for numbers in sent] == [TURN] * (10_000 // TURN)
    assert [number for numbers in sent for number in numbers] == [*range(10_000)]
    told = [item.partition.partition for sent in sent_by(wire) for item in sent.report_leaders.items]
    assert told == [*range(10_000)]
    requests.close()


async def test_what_is_replaced_before_it_is_sent_is_not_sent_and_what_is_over_is_not_asked() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"] * 3, config={"min_isr": "1"})
    wire = FakeTransport()
    requests = requests_of(cluster, wire, Incarnation(1))
    over = of_isr(cluster, 1, "a", "b")
    cluster.alter(cluster.alteration("a c", number=1))
    requests.ask(of_isr(cluster, 0, "a", "b"))
    requests.ask(of_isr(cluster, 0, "a", "b", reason="it lags more"))
    requests.ask(of_isr(cluster, 0, "a", "b", reason="it lags more"))
    requests.ask(over)
    requests.ask(of_isr(cluster, 2, "a", "b"))
    assert len(requests) == 2
    # Answered before its turn: applied state shows it, and no change was told of.
    cluster.alter(cluster.alteration("a c", number=2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert alterations(wire) == [[0]]
    assert [item.reason for item in sent_by(wire)[0].alter_isr.items] == ["it lags more"]
    assert len(requests) == 1
    requests.close()


async def test_requests_that_come_after_a_message_gather_and_reports_do_not() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"] * 40)
    wire = TimedTransport()
    requests = requests_of(cluster, wire, Incarnation(1), asyncio.get_running_loop().time)
    for number in range(40):
        requests.ask(of_isr(cluster, number, "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert alterations(wire) == [[0]], "one that comes alone leaves at once"
    requests.report(
        LeaderReport(
            key=cluster.key(39),
            replica=BrokerId("a"),
            leader=BrokerId("b"),
            epoch=cluster.partition(39).epoch,
            leader_epoch=cluster.partition(39).leader_epoch,
            refused=False,
        )
    )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [sent.WhichOneof("body") for sent in sent_by(wire)][1:] == ["alter_isr", "report_leaders"]
    assert alterations(wire) == [[0], [*range(1, 40)]]
    requests.close()


async def test_what_has_gathered_leaves_by_itself() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"] * 3)
    wire = TimedTransport()
    requests = requests_of(cluster, wire, Incarnation(1), asyncio.get_running_loop().time)
    for number in range(3):
        requests.ask(of_isr(cluster, number, "a"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await until(lambda: len(wire.sent) >= 2)
    assert alterations(wire)[:2] == [[0], [1, 2]]
    assert wire.times[1] - wire.times[0] > GATHER_S / 2
    requests.close()


async def test_a_request_that_is_not_answered_is_repeated_with_longer_pauses() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"])
    wire = TimedTransport()
    requests = requests_of(cluster, wire, Incarnation(1), asyncio.get_running_loop().time)
    requests.ask(of_isr(cluster, 0, "a"))
    await until(lambda: len(wire.sent) >= 4)
    pauses = [later - earlier for earlier, later in pairwise(wire.times)]
    shortest = MetadataSettings().retry_interval_s
    assert all(pause > 0.45 * shortest * 2**number for number, pause in enumerate(pauses)), pauses
    cluster.alter(cluster.alteration("a"))
    requests.settle([cluster.key()])
    assert len(requests) == 0
    requests.close()


async def test_those_who_ask_in_each_turn_of_the_loop_do_not_keep_requests_from_being_sent() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"] * 100)
    wire = FakeTransport()
    requests = requests_of(cluster, wire, Incarnation(1))
    loop = asyncio.get_running_loop()
    asked = 0

    def ask() -> None:
        nonlocal asked
        if asked < 100:
            loop.call_soon(ask)
            requests.ask(of_isr(cluster, asked, "a"))
            asked += 1

    ask()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert wire.sent
    assert asked < 100
    requests.close()


async def test_requests_that_met_an_error_are_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"] * 2)
    wire = FakeTransport()
    loop = asyncio.get_running_loop()
    requests = requests_of(cluster, wire, Incarnation(1), loop.time)
    met: list[str] = []
    loop.set_exception_handler(lambda _, context: met.append(str(context["exception"])))

    def fails(*_: object) -> None:
        raise ValueError("a bug")

    with monkeypatch.context() as broken:
        broken.setattr(requests, "_item", fails)
        requests.ask(of_isr(cluster, 0, "a"))
        await until(lambda: len(met) == 1)
    with monkeypatch.context() as broken:
        broken.setattr(wire, "publish", fails)
        requests.ask(of_isr(cluster, 1, "a"))
        await until(lambda: len(met) == 2)
    await until(lambda: {number for numbers in alterations(wire) for number in numbers} == {0, 1})
    requests.close()


async def test_many_large_requests_go_out_in_messages_that_are_not_too_large() -> None:
    brokers = [f"{number:02}-{'x' * 61}" for number in range(16)]
    cluster = Cluster(*brokers)
    cluster.create("s", [" ".join(brokers)] * 500)
    wire = FakeTransport()
    requests = requests_of(cluster, wire, Incarnation(1))
    for number in range(500):
        partition = cluster.partition(number)
        requests.ask(
            IsrChange(
                key=cluster.key(number),
                leader=BrokerId(brokers[0]),
                leader_epoch=partition.leader_epoch,
                expected_epoch=partition.epoch,
                new_isr=tuple(IsrMember(BrokerId(b), Incarnation(cluster.incarnation(b))) for b in brokers),
                reason=f"lagging: {', '.join(brokers)}",
            )
        )
    await until(lambda: sum(map(len, alterations(wire))) == 500)
    sent = [item for request in sent_by(wire) for item in request.alter_isr.items]
    assert [item.partition.partition for item in sent] == [*range(500)]
    requests.close()


async def test_a_withdrawal_from_outside_the_isr_is_over_in_a_later_leader_epoch() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"], config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a"))
    wire = FakeTransport()
    requests = requests_of(cluster, wire, Incarnation(cluster.incarnation("b")))
    partition = cluster.partition()
    withdrawal = Withdrawal(
        key=cluster.key(), broker=BrokerId("b"), expected_epoch=partition.epoch, reason="a flipped bit"
    )
    requests.ask(withdrawal)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not wire.sent, "it asks for nothing that is not so"
    requests.ask(replace(withdrawal, leader_epoch=LeaderEpoch(1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(wire.sent) == len(requests) == 1
    cluster.withdraw("b")
    requests.settle([cluster.key()])
    assert len(requests) == 0
    requests.close()


async def test_the_first_withdrawal_of_a_replica_is_the_one_that_is_repeated() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"])
    wire = FakeTransport()
    requests = requests_of(cluster, wire, Incarnation(cluster.incarnation("b")))
    first = Withdrawal(
        key=cluster.key(), broker=BrokerId("b"), expected_epoch=cluster.partition().epoch, reason="a flipped bit"
    )
    requests.ask(first)
    requests.ask(replace(first, reason="another"))
    await until(lambda: len(wire.sent) == 1)
    assert [item.reason for item in sent_by(wire)[0].withdraw.items] == ["a flipped bit"]
    requests.close()
