"""The follower of production code, fed by a leader's log, until it holds the same records."""

from __future__ import annotations

from dataplane.broker.following.leader_answers import install_snapshot
from dataplane.log.partition_log import PartitionLog
from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import FetchAnswer, OffsetAnswer, SnapshotAnswer
from dataplane.replica.replica_effects import (
    AppendReplicated,
    FollowerEffect,
    InstallSnapshot,
    SendFetch,
    SendOffsetRequest,
    SendSnapshotRequest,
    StartOver,
    Truncate,
)
from dataplane.replica.replica_settings import ReplicaSettings
from tests.bit_flips.folder import BROKER
from tests.views import partition_view
from wire.batch import iter_batches
from wire.types import BrokerId, LeaderEpoch, Offset

LEADER = BrokerId("b2")
EPOCH = LeaderEpoch(7)
MAX_EXCHANGES = 500


def copy_from(leader: PartitionLog, log: PartitionLog, high_watermark: Offset) -> None:
    """Raises the errors of the log, and AssertionError when it does not come to an end."""
    core = Follower(
        view=partition_view(BROKER, LEADER, leader=LEADER, isr=(LEADER,), leader_epoch=EPOCH),
        broker=BROKER,
        log_start_offset=log.log_start_offset,
        log_end_offset=log.log_end_offset,
        durable_end=log.durable_end,
        high_watermark=high_watermark,
        epochs=log.epochs,
        transactions=log.transactions,
        settings=ReplicaSettings(),
        first_sequence=0,
        connected_since=0.0,
        now=0.0,
    )
    effects: list[FollowerEffect] = core.start(0.0)
    for _ in range(MAX_EXCHANGES):
        if log.log_end_offset == leader.log_end_offset and not any(
            isinstance(effect, (Truncate, StartOver, SendSnapshotRequest, SendOffsetRequest)) for effect in effects
        ):
            log.sync()
            return
        effects = [following for effect in effects for following in _carry_out(effect, core, leader, log)]
    raise AssertionError(f"no end: {core.state}, {effects}")


def _carry_out(effect: FollowerEffect, core: Follower, leader: PartitionLog, log: PartitionLog) -> list[FollowerEffect]:
    match effect:
        case SendOffsetRequest(asked, number):
            found = leader.epochs.end_offset_for(asked, leader.log_end_offset)
            epoch, end = found if found is not None else (LeaderEpoch(0), leader.log_start_offset)
            answer = OffsetAnswer(number=number, leader_epoch=EPOCH, epoch=epoch, end=end)
            return core.on_offset_answer(answer, 0.0)
        case Truncate(offset):
            return core.on_truncated(log.log_start_offset, log.truncate(offset), 0.0)
        case SendSnapshotRequest(number):
            content = leader.snapshot_at(leader.log_start_offset)
            piece = SnapshotAnswer(
                number=number, leader_epoch=EPOCH, offset=leader.log_start_offset, size=len(content), piece=content
            )
            return core.on_snapshot_answer(piece, 0.0)
        case InstallSnapshot():
            install_snapshot(log, effect, EPOCH)
            return core.on_truncated(log.log_start_offset, log.log_end_offset, 0.0)
        case StartOver():
            log.drop_all(Offset(0))
            return core.on_truncated(log.log_start_offset, log.log_end_offset, 0.0)
        case SendFetch() if not effect.progress_only:
            return _fetch(effect, core, leader, log)
        case _:
            return []


def _fetch(effect: SendFetch, core: Follower, leader: PartitionLog, log: PartitionLog) -> list[FollowerEffect]:
    data = leader.read_from_disk(effect.offset, max_bytes=1500, end_offset=leader.log_end_offset)
    headers = [header for _, header in iter_batches(data)]
    answered = core.on_answer(
        FetchAnswer(
            sequence=effect.sequence,
            leader_epoch=EPOCH,
            high_watermark=leader.log_end_offset,
            first_offset=headers[0].base_offset if headers else None,
        ),
        0.0,
    )
    out: list[FollowerEffect] = []
    for each in answered:
        if isinstance(each, AppendReplicated):
            log.append([data], headers)
            out += core.on_appended(log.log_end_offset, each.high_watermark, 0.0)
        else:
            out.append(each)
    return out
