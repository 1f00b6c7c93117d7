"""Requests of followers to their leader, decoded."""

from __future__ import annotations

from dataclasses import dataclass

from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset


@dataclass(slots=True, kw_only=True)
class FollowerFetch:
    """A ReplicationRequest."""

    replica: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    sequence: int
    offset: Offset
    durable_end: Offset | None
    progress_only: bool
    inbox: str
    max_bytes: int = 0
    refused_batch: str = ""
    no_space: bool = False
    """The follower wants no records: its disk is full."""
    disk_hangs: bool = False
    """The follower's disk has not answered for long."""
    deleted_end: Offset = Offset(0)
    """Records that tombstones below it deleted are not in the follower's log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFetch:
    """A SnapshotRequest."""

    replica: BrokerId
    incarnation: Incarnation
    leader_epoch: LeaderEpoch
    offset: Offset | None
    position: int
    inbox: str
