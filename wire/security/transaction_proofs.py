"""Proofs by the key of a transactional producer (`wire.security.producer_keys`) that its requests come from the owner
of the id, with these values.

    add        the transactional id, the epoch, and each partition and group that it adds
    end        the transactional id, the epoch, and whether it commits
    prepared   the transactional id and the epoch: whoever has this proof may commit or abort the transaction
    offsets    the group, the epoch, the number of the commit, and each offset
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from wire.internal_records.transaction_records import child_id
from wire.protobuf.groups_pb2 import CommitRequest
from wire.protobuf.transactions_pb2 import AddRequest, EndRequest, FamilyMember
from wire.security.producer_keys import prove, request_proof_of
from wire.security.tickets import group_target, partition_target

Proven: TypeAlias = AddRequest | EndRequest | CommitRequest
"""Each has a `producer_id` and a `proof`."""


def proven_of(request: Proven) -> bytes:
    """Returns the data that its proof covers."""
    match request:
        case AddRequest():
            return request_proof_of("add", [request.transactional_id, request.producer_epoch, *_targets(request)])
        case EndRequest():
            values = request.transactional_id, request.producer_epoch, int(request.commits)
            return request_proof_of("end", values)
        case CommitRequest():
            return request_proof_of(
                "offsets", [request.group, request.producer_epoch, request.number, *_offsets(request)]
            )


def proven_of_member(family: str, member: FamilyMember) -> bytes:
    """Returns the data that the proof of one transaction covers in an end of a family."""
    return proven_of_prepared(child_id(family, member.child), member.producer_epoch)


def proven_of_prepared(transactional_id: str, producer_epoch: int) -> bytes:
    return request_proof_of("prepared", [transactional_id, producer_epoch])


def add_proof(request: Proven, key: bytes) -> None:
    request.proof = prove(key, proven_of(request))


def _targets(request: AddRequest) -> Iterator[str]:
    for of in request.partitions:
        yield partition_target(of.stream, of.stream_incarnation, of.partition, of.partition_incarnation)
    yield from map(group_target, request.groups)


def _offsets(request: CommitRequest) -> Iterator[str]:
    for of in request.offsets:
        target = partition_target(of.stream, of.incarnation, of.partition, of.partition_incarnation)
        yield f"{target} {of.offset} {of.metadata.encode().hex()}"
