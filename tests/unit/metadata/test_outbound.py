"""Requests of a broker to the controller, in messages that NATS and Raft take."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from metadata.metadata_settings import MetadataSettings
from metadata.runtime.context import MetadataContext
from metadata.runtime.messages import Messages
from metadata.runtime.outbound import OutboundRequests
from metadata.runtime.tasks import Tasks
from tests.fake_nats import FakeTransport
from tests.tickets import producer_keys
from tests.unit.metadata.cluster import Cluster
from wire import metadata_pb2 as pb
from wire.subjects import Subjects
from wire.types import BrokerId, Incarnation, IsrChange, IsrMember, LeaderEpoch, Withdrawal


def requests_of(cluster: Cluster, wire: FakeTransport, incarnation: Incarnation) -> OutboundRequests:
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
            monotonic=lambda: 0.0,
            clock=nothing,
            tasks=Tasks(BrokerId("a")),
            messages=Messages(BrokerId("a"), wire, lambda: 0.0),
            producer_keys=producer_keys(),
            incarnation=incarnation,
        )
    )


async def test_many_large_requests_go_out_in_messages_that_are_not_too_large() -> None:
    brokers = [f"{number:02}-{'x' * 61}" for number in range(16)]
    cluster = Cluster(*brokers)
    cluster.create("s", [" ".join(brokers)] * 500)
    wire = FakeTransport()
    requests = requests_of(cluster, wire, Incarnation(1))
    for number in range(500):
        partition = cluster.partition(number)
        requests.alter_isr(
            IsrChange(
                key=cluster.key(number),
                leader=BrokerId(brokers[0]),
                leader_epoch=partition.leader_epoch,
                expected_epoch=partition.epoch,
                new_isr=tuple(IsrMember(BrokerId(b), Incarnation(cluster.incarnation(b))) for b in brokers),
                reason=f"lagging: {', '.join(brokers)}",
            )
        )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    sent = [item for _, data, _ in wire.sent for item in pb.AlterIsrRequest.FromString(data).items]
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
    requests.withdraw(withdrawal)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not wire.sent, "it asks for nothing that is not so"
    requests.withdraw(replace(withdrawal, leader_epoch=LeaderEpoch(1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(wire.sent) == len(requests) == 1
    cluster.withdraw("b")
    requests.settle()
    assert len(requests) == 0
    requests.close()
