"""What leaves a broker for the controller: in messages that NATS and Raft take."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

from metadata.settings import MetadataSettings
from metadata.wishes import Wishes
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


async def test_many_large_wishes_go_out_in_messages_that_are_not_too_large() -> None:
    brokers = [f"{number:02}-{'x' * 61}" for number in range(16)]
    cluster = Cluster(*brokers)
    cluster.create("s", [" ".join(brokers)] * 500)
    wire = Wire()
    wishes = Wishes(
        state=cluster.state,
        transport=cast(Transport, wire),
        subjects=Subjects(),
        settings=MetadataSettings(),
        monotonic=lambda: 0.0,
        incarnation=lambda: Incarnation(1),
    )
    for number in range(500):
        partition = cluster.partition(number)
        wishes.alter_isr(
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
    wishes.close()


async def test_a_withdrawal_from_outside_the_isr_is_over_in_a_later_leader_epoch() -> None:
    cluster = Cluster("a", "b")
    cluster.create("s", ["a b"], config={"min_isr": "1"})
    cluster.alter(cluster.alteration("a"))
    wire = Wire()
    wishes = Wishes(
        state=cluster.state,
        transport=cast(Transport, wire),
        subjects=Subjects(),
        settings=MetadataSettings(),
        monotonic=lambda: 0.0,
        incarnation=lambda: Incarnation(cluster.incarnation("b")),
    )
    partition = cluster.partition()
    withdrawal = Withdrawal(
        key=cluster.key(), broker=BrokerId("b"), expected_epoch=partition.epoch, reason="a flipped bit"
    )
    wishes.withdraw(withdrawal)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not wire.messages, "it asks for nothing that is not so"
    wishes.withdraw(replace(withdrawal, leader_epoch=LeaderEpoch(1)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(wire.messages) == len(wishes) == 1
    cluster.withdraw("b")
    wishes.settle()
    assert len(wishes) == 0
    wishes.close()
