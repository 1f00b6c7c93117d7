"""The leader's service to its followers: it answers fetches, looks LeaderEpoch ends up, sends its derived state.

Batches that are not in memory, and pieces of the derived state, are read in the readers' threads.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from dataplane.broker.leading.appending import Appending
from dataplane.broker.reading.readable_role import ReadableRole
from dataplane.broker.roles.role import RoleCounters
from dataplane.log.partition_log import PartitionLog
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.leader.leader import Leader
from dataplane.replica.leader.leadership import FollowerFetch, SnapshotFetch
from dataplane.replica.replica_effects import LeaderEffect, Respond, SendSnapshot
from dataplane.replica.replica_refusals import deletions_gone
from wire.errors import CorruptData, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.replication import encode_header, follower_headers
from wire.protobuf.tidelog_pb2 import (
    LeaderEpochOffsetRequest,
    LeaderEpochOffsetResponse,
    ReplicationRequest,
    SnapshotRequest,
    SnapshotResponse,
)
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset

_log = logging.getLogger(__name__)

MAX_READS = 4
"""Followers of one partition for which the disk is read at a time; the others ask again."""
_RESPONSE_FIELDS = 80
"""Most bytes of a response but for its piece."""


class FollowerService:
    """`run` carries effects of the core out."""

    def __init__(
        self, role: ReadableRole, core: Leader, appending: Appending, run: Callable[[list[LeaderEffect]], None]
    ) -> None:
        self._role = role
        self._context = role.context
        self._log = role.log
        self._core = core
        self._appending = appending
        self._run = run
        self._snapshot_reads = 0
        """Followers for which the derived state is being read."""

    def on_replicate(self, message: Message) -> None:
        if self._role.ended:
            return
        request = ReplicationRequest()
        if not self._role.requests.decode("replication", request, message, self._role.answer_header):
            return
        fetch = follower_fetch(request, message.reply or "")
        self._core.deletions_end = self._log.compaction_point.deletions_end
        effects = self._core.on_fetch(fetch, self._context.now())
        self._run(effects)
        self._appending.look()
        self._role.timer.schedule()

    def on_offset(self, message: Message) -> None:
        if self._role.ended:
            return
        request = LeaderEpochOffsetRequest()
        if not self._role.requests.decode("offset", request, message):
            return
        answer = self._core.on_offset_request(
            LeaderEpoch(request.leaderEpoch), LeaderEpoch(request.current_leader_epoch)
        )
        if answer is None:
            return
        if isinstance(answer, TidelogError):
            self._role.peer_answers.error(message.reply, answer)
            return
        epoch, end = answer
        response = LeaderEpochOffsetResponse(
            endOffset=end,
            leader_epoch=epoch,
            current_leader_epoch=self._role.leader_epoch,
            log_start_offset=self._core.log_start_offset,
            partition_epoch=self._core.view.epoch,
        )
        if message.reply:
            asker = BrokerId(request.replica_id) or None
            self._context.peers.publish(message.reply, [response.SerializeToString()], to=asker)

    def on_snapshot_request(self, message: Message) -> None:
        if self._role.ended:
            return
        request = SnapshotRequest()
        if self._role.requests.decode("snapshot", request, message, self._role.answer_header) and message.reply:
            fetch = decode_snapshot_fetch(request, message.reply)
            self._run(self._core.on_snapshot_request(fetch, self._context.now()))

    def respond(self, effect: Respond) -> None:
        header = encode_header(self._role.leader_epoch, effect.high_watermark)
        headers = self._headers(effect)
        if effect.max_bytes == 0:
            self._context.peers.publish(effect.inbox, [header], headers=headers, to=effect.replica)
            return
        limit = min(effect.max_bytes, self._appending.max_batch_bytes)
        parts = self._log.read(effect.offset, max_bytes=limit, end_offset=self._log.log_end_offset)
        if parts is not None:
            self._core.on_sent(effect.replica, sum(map(len, parts)), self._context.now())
            body = [header, *parts]
            self._role.send(self._context.peers, effect.inbox, effect.offset, body, headers, header, to=effect.replica)
        else:
            self._role.spawn(self._respond_cold(effect, limit))

    # Keeps R82.
    def _headers(self, effect: Respond) -> dict[str, str] | None:
        return follower_headers(effect.sync_to, self._core.start_to_tell(effect.replica))

    async def _respond_cold(self, effect: Respond, limit: int) -> None:
        try:
            data = await self._role.read_cold(effect.offset, limit, self._log.log_end_offset)
        except TidelogError as e:  # it was removed for its age meanwhile
            self._role.peer_answers.error(
                effect.inbox, e, encode_header(self._role.leader_epoch, effect.high_watermark)
            )
            return
        except CorruptData as e:
            self._role.on_damage(f"{effect.replica} asked for what lies at offset {effect.offset}: {e}")
            return
        except LogDamaged as e:
            self._role.fail(f"a read for follower {effect.replica} at offset {effect.offset} failed: {e}")
            return
        header = encode_header(self._role.leader_epoch, effect.high_watermark)
        self._core.deletions_end = self._log.compaction_point.deletions_end
        if self._core.lacks_deletions(effect.replica, effect.offset):
            # Tombstones may have gone from the log between the request and the reading.
            gone = deletions_gone(self._role.view.key, self._log.log_start_offset, effect.offset)
            self._role.peer_answers.error(effect.inbox, gone, header)
        elif not self._role.ended:
            self._core.on_sent(effect.replica, len(data), self._context.now())
            headers = self._headers(effect)
            self._role.send(self._context.peers, effect.inbox, effect.offset, [header, data], headers, header)

    def send_snapshot(self, effect: SendSnapshot) -> None:
        """The follower asks again where too many are read for already."""
        if self._snapshot_reads < MAX_READS:
            self._role.spawn(self._read_snapshot(effect))

    async def _read_snapshot(self, effect: SendSnapshot) -> None:
        context, limit = self._context, self._context.max_batch_bytes
        header = encode_header(self._role.leader_epoch, effect.high_watermark)
        self._snapshot_reads += 1
        try:
            piece = await context.loop.run_in_executor(context.readers, read_piece, self._log, effect, limit)
        except TidelogError as e:  # the log start has moved on
            self._role.peer_answers.error(effect.inbox, e, header)
        except CorruptData as e:
            self._role.on_damage(f"{effect.replica} asked for the state at offset {effect.offset}: {e}")
        except LogDamaged as e:
            self._role.fail(f"the state at offset {effect.offset} cannot be read for follower {effect.replica}: {e}")
        else:
            if not self._role.ended:
                self._core.on_snapshot_sent(effect.replica, len(piece), context.now())
                self._role.send(context.peers, effect.inbox, effect.offset, [header, piece], None, header)
        finally:
            self._snapshot_reads -= 1

    # Keeps R11.
    async def verify(self, offset: Offset, reason: str) -> None:
        """A follower refused the answer from `offset` on: read our own copy again, which may be damaged."""
        self._context.the(RoleCounters).bad_answers += 1
        _log.warning("partition %s: a follower refused what lies at offset %d: %s", self._role.view.key, offset, reason)
        if offset >= self._log.log_end_offset:
            return
        try:
            await self._role.read_cold(offset, self._context.max_batch_bytes, self._log.log_end_offset)
        except TidelogError as e:  # it was removed for its age meanwhile
            _log.info("partition %s: %s", self._role.view.key, e)
        except CorruptData as e:
            self._role.on_damage(f"a follower refused what lies at offset {offset}: {e}")
        except LogDamaged as e:
            self._role.fail(f"the log cannot be read at offset {offset}: {e}")


def follower_fetch(request: ReplicationRequest, inbox: str) -> FollowerFetch:
    return FollowerFetch(
        replica=BrokerId(request.replicaID),
        incarnation=Incarnation(request.broker_incarnation),
        leader_epoch=LeaderEpoch(request.leaderEpoch),
        sequence=request.sequence,
        offset=Offset(request.offset),
        durable_end=Offset(request.durable_offset) if request.HasField("durable_offset") else None,
        progress_only=request.progress_only,
        inbox=inbox,
        max_bytes=request.max_bytes,
        refused_batch=request.refused_batch,
        no_space=request.no_space,
        disk_hangs=request.disk_hangs,
        deleted_end=Offset(request.deleted_end),
        log_start_offset=Offset(request.log_start_offset),
    )


def decode_snapshot_fetch(request: SnapshotRequest, inbox: str) -> SnapshotFetch:
    return SnapshotFetch(
        replica=BrokerId(request.replica_id),
        incarnation=Incarnation(request.broker_incarnation),
        leader_epoch=LeaderEpoch(request.leader_epoch),
        offset=Offset(request.offset) if request.HasField("offset") else None,
        position=request.position,
        inbox=inbox,
    )


def read_piece(partition_log: PartitionLog, effect: SendSnapshot, limit: int) -> bytes:
    """An encoded response of at most `limit` bytes. Blocking. Raises as `PartitionLog.snapshot_at`."""
    deleted_end = partition_log.compaction_point.copies_deleted_end
    content = partition_log.snapshot_at(effect.offset)
    piece = content[effect.position : effect.position + limit - _RESPONSE_FIELDS]
    response = SnapshotResponse(
        offset=effect.offset, size=len(content), position=effect.position, piece=piece, deleted_end=deleted_end
    )
    return response.SerializeToString()
