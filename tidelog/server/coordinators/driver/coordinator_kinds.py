"""The kinds of coordinators: the state each of them keeps, and the requests it takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidelog.server.coordinators.shard import Shard
from wire.errors import Code, TidelogError
from wire.internal_records import group_records, transaction_records
from wire.operations import api_operations as op
from wire.operations.operation import Operation
from wire.operations.transaction_operations import TRANSACTION_ABORT, TRANSACTION_DESCRIBE, TRANSACTION_LIST
from wire.protobuf import groups_pb2, transactions_pb2
from wire.security.producer_keys import ProducerKeys
from wire.security.transaction_proofs import proven_of, proven_of_member


@dataclass(frozen=True, slots=True, kw_only=True)
class Coordinated:
    make_shard: Callable[[], Shard]
    """Makes an empty shard."""
    kinds: Mapping[str, Callable[[bytes], Any]]
    """Decoders of clients' requests, by the kind in their subject. Their messages have a `cluster_id`. Each
    raises DecodeError, or TidelogError for a request that is not allowed under that kind."""
    name_of: Callable[[Any], str]
    """Returns the group, cursor or id of such a request, which must equal the part of its subject behind the kind."""
    added_by: Mapping[str, Callable[[Any], Iterable[str]]] = field(default_factory=dict)
    """By kind, the streams and groups that such a request adds, where the subject has a second name, by which NATS
    permits adding: each of them must equal it. Raises TidelogError for one that is not added under that kind."""
    partition_of: Callable[[str], int]
    """Returns the partition whose coordinator answers for that name. Any other refuses it: it would keep state beside
    the one that all others ask, and each limit would hold once per partition."""
    handed: Mapping[str, Operation[..., Any, Any]]
    """Operations that other brokers request, by name."""
    check: Callable[[Any], None]
    """Raises TidelogError where the request is not proven to come from the producer that it names."""
    limit: str
    """Name of the limit of requests that wait."""


def groups_and_cursors(make_shard: Callable[[], Shard], keys: ProducerKeys) -> Coordinated:
    def check(request: Any) -> None:
        if isinstance(request, groups_pb2.CommitRequest) and request.producer_id:
            keys.check(request.proof, request.producer_id, proven_of(request))

    return Coordinated(
        make_shard=make_shard,
        kinds={
            group_records.HEARTBEAT: _heartbeat_without_patterns,
            group_records.DISCOVER: groups_pb2.HeartbeatRequest.FromString,
            group_records.COMMIT: groups_pb2.CommitRequest.FromString,
            group_records.OFFSETS: groups_pb2.OffsetsRequest.FromString,
            group_records.CURSOR: groups_pb2.CursorRequest.FromString,
        },
        name_of=_group_or_cursor,
        partition_of=group_records.coordinator_partition,
        handed=_by_name(
            op.GROUP_LIST, op.GROUP_DESCRIBE, op.GROUP_RESET, op.GROUP_DELETE, transaction_records.GROUP_END
        ),
        check=check,
        limit="group_requests",
    )


def transactional_ids(make_shard: Callable[[], Shard], keys: ProducerKeys) -> Coordinated:
    def check(request: Any) -> None:
        match request:
            case transactions_pb2.AddRequest() | transactions_pb2.EndRequest():
                keys.check(request.proof, request.producer_id, proven_of(request))
            case transactions_pb2.EndFamilyRequest():
                for member in request.members:
                    keys.check(member.proof, member.producer_id, proven_of_member(request.family, member))
            case _:
                pass

    return Coordinated(
        make_shard=make_shard,
        kinds={
            transaction_records.INIT: transactions_pb2.InitRequest.FromString,
            **dict.fromkeys(transaction_records.ADDS, transactions_pb2.AddRequest.FromString),
            transaction_records.END: transactions_pb2.EndRequest.FromString,
            transaction_records.END_FAMILY: transactions_pb2.EndFamilyRequest.FromString,
            transaction_records.FAMILY: transactions_pb2.FamilyRequest.FromString,
        },
        name_of=_family,
        added_by={transaction_records.ADD_PARTITIONS: _added_streams, transaction_records.ADD_OFFSETS: _added_groups},
        partition_of=transaction_records.coordinator_partition,
        handed=_by_name(TRANSACTION_LIST, TRANSACTION_DESCRIBE, TRANSACTION_ABORT),
        check=check,
        limit="transaction_requests",
    )


def _heartbeat_without_patterns(data: bytes) -> groups_pb2.HeartbeatRequest:
    request = groups_pb2.HeartbeatRequest.FromString(data)
    if request.subscription.patterns:
        raise TidelogError(
            Code.BAD_REQUEST,
            f"a subscription by pattern is sent as {group_records.DISCOVER!r} in place of"
            f" {group_records.HEARTBEAT!r}, because it needs a permission of its own",
        )
    return request


def _group_or_cursor(request: Any) -> str:
    name: str = request.cursor if isinstance(request, groups_pb2.CursorRequest) else request.group
    return name


def _family(request: Any) -> str:
    ends_family = isinstance(request, transactions_pb2.EndFamilyRequest | transactions_pb2.FamilyRequest)
    name: str = request.family if ends_family else request.transactional_id
    return transaction_records.family_of(name)


def _added_streams(request: transactions_pb2.AddRequest) -> set[str]:
    if request.groups:
        raise _added_elsewhere(
            f"group {request.groups[0]!r:.80}", transaction_records.ADD_OFFSETS, transaction_records.ADD_PARTITIONS
        )
    return {each.stream for each in request.partitions}


def _added_groups(request: transactions_pb2.AddRequest) -> set[str]:
    if request.partitions:
        stream = f"stream {request.partitions[0].stream!r:.80}"
        raise _added_elsewhere(stream, transaction_records.ADD_PARTITIONS, transaction_records.ADD_OFFSETS)
    return {*request.groups}


def _added_elsewhere(what: str, kind: str, sent_as: str) -> TidelogError:
    return TidelogError(Code.BAD_REQUEST, f"{what} is added by {kind!r}, and was sent as {sent_as!r}")


def _by_name(*operations: Operation[..., Any, Any]) -> dict[str, Operation[..., Any, Any]]:
    return {operation.name: operation for operation in operations}
