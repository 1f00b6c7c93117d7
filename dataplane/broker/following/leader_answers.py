"""Answers of a leader to its followers, decoded and checked before the follower's state machine sees them.

## Copies of the derived state

The derived state at a leader's log start, copied from its disk to a follower with a log that ends below it.

    follower                       leader
      │ SnapshotRequest ─────────────> │ subject <ns>.<stream>.<p>.checkpoint
      │ <── 16 bytes, SnapshotResponse │ a piece of the snapshot file at its log start, byte for byte
      │ …                              │ until all of it is there
      │ checks the CRCs, gives its log up for an empty one that begins there

`dataplane.replica` decides when a follower asks, which followers are answered, and how a copy ends whose log start
moves on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

from dataplane.log.derived.log_snapshot import decode_snapshot
from dataplane.log.storage.checkpoints import CompactionPoint
from dataplane.replica.follower.follower_states import FetchAnswer, OffsetAnswer, SnapshotAnswer
from wire.batch import BatchHeader, iter_batches, verify_body
from wire.error_details import LEADER_EPOCH, LOG_START
from wire.errors import Code, CorruptData, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.replication import (
    HEADER_SIZE,
    LOG_START_HEADER,
    SYNC_HEADER,
    decode_header,
    offset_of,
)
from wire.protobuf.tidelog_pb2 import LeaderEpochOffsetResponse, SnapshotRequest, SnapshotResponse
from wire.types import LeaderEpoch, Offset, PartitionEpoch

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataplane.broker.roles.broker_context import BrokerContext
    from dataplane.log.partition_log import PartitionLog
    from dataplane.replica.replica_effects import InstallSnapshot, SendSnapshotRequest
    from wire.messaging.transport import Message
    from wire.types import PartitionKey


def encode_snapshot_request(
    effect: SendSnapshotRequest, key: PartitionKey, epoch: LeaderEpoch, context: BrokerContext
) -> bytes:
    request = SnapshotRequest(
        replica_id=context.broker,
        leader_epoch=epoch,
        broker_incarnation=context.incarnation,
        stream_incarnation=key.stream_incarnation,
        partition_incarnation=key.partition_incarnation,
        position=effect.position,
    )
    if effect.offset is not None:
        request.offset = effect.offset
    return request.SerializeToString()


def decode_snapshot_answer(number: int, message: Message) -> SnapshotAnswer:
    """Raises CorruptData."""
    leader_epoch, _ = decode_header(message.data)
    error = TidelogError.from_headers(message.headers)
    response = SnapshotResponse()
    if error is None:
        try:
            response.ParseFromString(bytes(message.data[HEADER_SIZE:]))
        except DecodeError as e:
            raise CorruptData(f"a piece of a snapshot that does not decode: {e}") from e
    return SnapshotAnswer(
        number=number,
        leader_epoch=leader_epoch,
        offset=Offset(response.offset),
        size=response.size,
        position=response.position,
        piece=response.piece,
        deleted_end=Offset(response.deleted_end),
        error=error,
    )


def install_snapshot(
    partition_log: PartitionLog,
    effect: InstallSnapshot,
    leader_epoch: LeaderEpoch,
    before: Callable[[], None] = lambda: None,
) -> Offset:
    """The log's start and end now. It goes on as a copy of the log of the leader of `leader_epoch`. `before`: is called
    when the snapshot is found sound, before anything is removed.

    Blocking; no append may run meanwhile. Raises CorruptData (nothing was changed), LogDamaged, NoSpace (the same call
    goes on where this one stopped), and what `before` raises.
    """
    snapshot = decode_snapshot(b"".join(effect.pieces))
    if snapshot.offset != effect.offset:
        raise CorruptData(f"the leader's state at offset {effect.offset} is that at {snapshot.offset}")
    if not snapshot.is_whole:
        raise CorruptData(f"the leader's state at offset {effect.offset} lacks a part: another version wrote it")
    before()
    partition_log.install(snapshot, CompactionPoint.of_copy(effect.deleted_end, leader_epoch))
    return snapshot.offset


class Batches(NamedTuple):
    """The batches of an answer: their bytes, and their headers in order."""

    data: memoryview
    headers: list[BatchHeader]


def decode_fetch_answer(sequence: int, message: Message) -> tuple[FetchAnswer, Batches | None] | None:
    """None: a refusal without the state of the leader. Raises CorruptData."""
    error = TidelogError.from_headers(message.headers)
    try:
        leader_epoch, high_watermark = decode_header(message.data)
    except CorruptData:
        if error is None:
            raise
        return None
    if error is not None and error.code is Code.OFFSET_BEFORE_LOG and error.detail(LOG_START) is None:
        raise CorruptData(f"{error.code.name} without a log start that is a number")
    batches = None
    if error is None and len(message.data) > HEADER_SIZE:
        data = memoryview(message.data)[HEADER_SIZE:]
        batches = Batches(data, _checked_headers(data, leader_epoch))
    answer = FetchAnswer(
        sequence=sequence,
        leader_epoch=leader_epoch,
        high_watermark=high_watermark,
        first_offset=batches.headers[0].base_offset if batches is not None else None,
        sync_to=offset_of(message.headers, SYNC_HEADER),
        log_start=offset_of(message.headers, LOG_START_HEADER) if error is None else Offset(0),
        error=error,
    )
    return answer, batches


# R11: A follower checks both CRCs of every batch, takes nothing of a bad answer, and says so in its next fetch
# (`refused_batch`), at once the first time and then ever more slowly. The leader then reads its own copy from disk,
# and withdraws if that is damaged. A batch above the limit is sent alone. A batch that NATS does not carry is answered
# with MESSAGE_TOO_LARGE; the follower asks ever more slowly, shows it in its status, and does not report the leader.
# Hazard: Damaged bytes that spread to other replicas; a reader that gets stuck at a large batch.
def _checked_headers(data: memoryview, leader_epoch: LeaderEpoch) -> list[BatchHeader]:
    """Checks both CRCs of every batch, and that they follow one another."""
    headers: list[BatchHeader] = []
    for at, header in iter_batches(data):
        verify_body(data, at, header)
        if headers and header.base_offset < headers[-1].end_offset:
            raise CorruptData(f"batch at offset {header.base_offset} begins before {headers[-1].end_offset}")
        if header.leader_epoch > leader_epoch or (headers and header.leader_epoch < headers[-1].leader_epoch):
            raise CorruptData(
                f"batch at offset {header.base_offset} has LeaderEpoch {header.leader_epoch} out of order"
            )
        headers.append(header)
    return headers


def decode_offset_answer(number: int, message: Message, asked_in: LeaderEpoch) -> OffsetAnswer:
    """`asked_in`: the epoch of an answer that names none. Raises CorruptData."""
    error = TidelogError.from_headers(message.headers)
    response = LeaderEpochOffsetResponse()
    epoch = asked_in
    if error is None:
        try:
            response.ParseFromString(message.data)
        except DecodeError as e:
            raise CorruptData(f"it is no LeaderEpochOffsetResponse: {e}") from None
        epoch = LeaderEpoch(response.current_leader_epoch)
    elif LEADER_EPOCH.name in error.details:
        named = error.detail(LEADER_EPOCH)
        if named is None:
            raise CorruptData("its LeaderEpoch is no number")
        epoch = LeaderEpoch(named)
    return OffsetAnswer(
        number=number,
        leader_epoch=epoch,
        epoch=LeaderEpoch(response.leader_epoch),
        end=Offset(response.endOffset),
        log_start_offset=Offset(response.log_start_offset),
        partition_epoch=PartitionEpoch(response.partition_epoch),
        error=error,
    )
