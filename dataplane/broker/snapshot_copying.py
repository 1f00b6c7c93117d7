"""The derived state at a leader's log start, copied from its disk to a follower with a log that ends below it.

    follower                       leader
      │ SnapshotRequest ─────────────> │ subject <ns>.<stream>.<p>.checkpoint
      │ <── 16 bytes, SnapshotResponse │ a piece of the snapshot file at its log start, byte for byte
      │ …                              │ until all of it is there
      │ checks the CRCs, gives its log up for an empty one that begins there

`dataplane.replica` decides when a follower asks, which followers are answered, and how a copy ends whose log start
moves on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from dataplane.log.checkpoints import CompactionPoint
from dataplane.log.snapshot import decode_snapshot
from dataplane.replica.follower_states import SnapshotAnswer
from wire.errors import CorruptData, TidelogError
from wire.partition_messages.replication import HEADER_SIZE, decode_header
from wire.protobuf.tidelog_pb2 import SnapshotRequest, SnapshotResponse
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataplane.broker.context import BrokerContext
    from dataplane.log.partition_log import PartitionLog
    from dataplane.replica.effects import InstallSnapshot, SendSnapshotRequest
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
