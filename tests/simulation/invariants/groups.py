"""Promises of consumer groups, to their members and to programs that ask what was committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.simulation.invariants.base import Commit, Invariant, Scene
from wire.internal_records.group_records import StreamPartition
from wire.types import Incarnation


@dataclass(frozen=True, slots=True)
class Assigned:
    """A member began to read a partition."""

    member: str
    at: float


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """By a member, of the next offset to read."""

    member: str
    of: StreamPartition
    offset: int
    sent_at: float
    before: Assigned | None
    """Who had begun to read the partition last when it was sent."""


class OneReaderPerPartition(Invariant):
    """To members of a group: no two of them hand out records of a partition at one moment, each by its own clock."""

    def on_readers(self, readers: Mapping[StreamPartition, Sequence[str]]) -> None:
        for of, members in readers.items():
            if len(members) > 1:
                self.broken(f"{of} of incarnation {of.incarnation} is read by {' and '.join(members)}")


class OnlyHoldersCommit(Invariant):
    """To members of a group: once a partition is theirs, no commit of an earlier holder is taken any more."""

    def on_offset_committed(self, commit: OffsetCommit) -> None:
        before = commit.before
        if before is not None and before.member != commit.member:
            self.broken(
                f"{commit.member} committed {commit.of}, which {before.member} has read since {before.at:.6f}; it was"
                f" sent at {commit.sent_at:.6f}"
            )


class CommittedOffsetsStay(Invariant):
    """To members of a group: what they are told to be committed is not below what was acknowledged before they asked.
    An earlier commit that comes late, or again, takes nothing back."""

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._acknowledged: dict[StreamPartition, int] = {}

    def on_offset_committed(self, commit: OffsetCommit) -> None:
        if self._exists(commit.of):
            self._acknowledged[commit.of] = max(self._acknowledged.get(commit.of, -1), commit.offset)

    def _exists(self, of: StreamPartition) -> bool:
        """What was committed of a partition goes with it, where a retired one is removed, also what a coordinator takes
        that has not heard of that yet."""
        streams = {stream.incarnation: stream.partitions for stream in self.raft.truth.streams.values()}
        return of.partition in streams.get(Incarnation(of.incarnation), {})

    def _floor_of(self, of: StreamPartition) -> int:
        """Below this nothing may be told from now on."""
        return self._acknowledged.get(of, -1)

    def on_commit(self, commit: Commit) -> None:
        if commit.kind == "remove_retired":
            self._acknowledged = {of: offset for of, offset in self._acknowledged.items() if self._exists(of)}

    def on_offset_told(self, of: StreamPartition, offset: int, floor: int) -> None:
        if offset < min(floor, self._floor_of(of)):
            self.broken(f"{of} of incarnation {of.incarnation}: {offset} is told to be committed, and {floor} was")
