"""Views of a partition as the metadata group would have applied them; every test takes its views from here."""

from __future__ import annotations

from typing import Any

from wire.durability import DURABLE, Durability
from wire.stream_config import StreamConfig
from wire.types import (
    BrokerId,
    Incarnation,
    LeaderEpoch,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    StreamName,
)

A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")
KEY = PartitionKey(StreamName("s"), Incarnation(1), 0, Incarnation(1))


def partition_view(
    *replicas: BrokerId,
    leader: BrokerId | None = A,
    isr: tuple[BrokerId, ...] | None = None,
    epoch: int = 1,
    leader_epoch: int = 1,
    key: PartitionKey = KEY,
    loss_accepted: bool = False,
    loss_epoch: int = 0,
    min_isr: int = 1,
    durability: Durability = DURABLE,
    **config: Any,
) -> PartitionView:
    """`isr` None: all replicas. The stream's subject is its name. Files with other defaults make a `partial`."""
    return PartitionView(
        key=key,
        subject=key.stream,
        config=StreamConfig(min_isr=min_isr, durability=durability, **config),
        replicas=replicas,
        leader=leader,
        isr=replicas if isr is None else isr,
        eligible=(),
        epoch=PartitionEpoch(epoch),
        leader_epoch=LeaderEpoch(leader_epoch),
        loss_accepted=loss_accepted,
        loss_epoch=LeaderEpoch(loss_epoch),
    )
