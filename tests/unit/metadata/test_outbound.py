"""Requests of a broker to the controller, in messages that NATS and Raft take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

from metadata.runtime.context import MetadataContext
from metadata.runtime.messages import Messages
from metadata.runtime.outbound import OutboundRequests
from metadata.runtime.tasks import Tasks
from metadata.settings import MetadataSettings
from tests.unit.metadata.cluster import Cluster
from wire import metadata_pb2 as pb
from wire.subjects import Subjects
from wire.transport import Transport, too_large
from wire.types import BrokerId, Incarnation, IsrChange, IsrMember, LeaderEpoch, Withdrawal

MAX_PAYLOAD = 1 << 20


class Wire:
    def __init__(self) -> None:
        self.messages: list[bytes] = []

    def publish(self, subject: str, parts: Sequence[bytes]) -> bool:
        data = b"".join(parts)
        if len(data) > MAX_PAYLOAD:
            raise too_large(subject, len(data), MAX_PAYLOAD)
        self.messages.append(data)
        return True


def requests_of(cluster: Cluster, wire: Wire, incarnation: Incarnation) -> OutboundRequests:
    nothing: Any = None
    transport = cast(Transport, wire)
    return OutboundRequests(
        MetadataContext(
            broker_id=BrokerId("a"),
            life_id="a-1",
            state=cluster.state,
            core=nothing,
            port=nothing,
            transport=transport,
            subjects=Subjects(),
            settings=MetadataSettings(),
            monotonic=lambda: 0.0,
            tasks=Tasks(BrokerId("a")),
            messages=Messages(BrokerId("a"), transport),
            incarnation=incarnation,
        )
    )


async def test_many_large_requests_go_out_in_messages_that_are_not_too_large() -> None:
    brokers = [f"{number:02}-{'x' * 61}" for number in range(16)]
    cluster = Cluster(*brokers)
    cluster.create("s", [" ".join(brokers)] * 500)
    wire = Wire()
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
    sent = [item for message in wire.messages for item in pb.AlterIsrRequest.FromString(message).items]
    assert [item.partition.partition for item in sent] == [*range(500)]
    requests.close()


async def test_a_withdrawal_from_outside_the_isr_is_over_in_a_later_leader_epoch() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"], config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a"))
    wire = Wire()
    requests = requests_of(cluster, wire, Incarnation(cluster.incarnation("b")))
    partition = cluster.partition()
    withdrawal = Withdrawal(
        key=cluster.key(), broker=BrokerId("b"), expected_epoch=partition.epoch, reason="a flipped bit"
    )
    requests.withdraw(withdrawal)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not wire.messages, "it asks for nothing that is not so"
    requests.withdraw(replace(withdrawal, leader_epoch=LeaderEpoch(1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(wire.messages) == len(requests) == 1
    cluster.withdraw("b")
    requests.settle()
    assert len(requests) == 0
    requests.close()
