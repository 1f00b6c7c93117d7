"""Tickets for transactions, and keys of producers, as the brokers of a cluster give them that has no secret."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.security.batch_proofs import add_batch_proof
from wire.security.cluster_secrets import public_secrets
from wire.security.producer_keys import ProducerKeys
from wire.security.tickets import Tickets, partition_target
from wire.types import Buffer, PartitionKey

CLUSTER_ID = "a cluster"


def tickets(time_s: Callable[[], float] = lambda: 0.0) -> Tickets:
    """`time_s()`: seconds since 1970."""
    return Tickets(public_secrets(), lambda: CLUSTER_ID, time_s)


def add_proof_of(
    request: AppendRequest,
    key: PartitionKey,
    batch: Sequence[Buffer],
    producer_id: int,
    *,
    cluster_id: str = CLUSTER_ID,
) -> None:
    """That the batch, as it is sent to the partition, is of that producer."""
    target = partition_target(key.stream, key.stream_incarnation, key.partition, key.partition_incarnation)
    add_batch_proof(request, producer_keys(cluster_id).key_of(producer_id), target, batch)


def producer_keys(cluster_id: str = CLUSTER_ID) -> ProducerKeys:
    return ProducerKeys(public_secrets(), lambda: cluster_id)
