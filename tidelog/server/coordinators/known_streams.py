"""The streams of the cluster as a coordinator knows them, from the applied metadata of its broker.

The view may lag behind that of a member or an earlier coordinator. Incarnations are generations of the metadata, so a
stream whose incarnation is above the generation that is applied here is not known yet, and one whose incarnation is at
or below it, and which is not there, was deleted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from wire.internal_records.group_records import StreamPartition


@dataclass(frozen=True, slots=True)
class StreamLife:
    incarnation: int
    partitions: Mapping[int, int]
    """Number -> incarnation of the partition."""
    made_ready: frozenset[int] = frozenset()
    """Partitions that wait for the next layout: nothing is written to them or read from them yet."""


@dataclass(frozen=True, slots=True)
class StreamsView:
    generation: int = 0
    """The generation of the applied metadata."""
    streams: Mapping[str, StreamLife] = field(default_factory=dict)
    """Streams by name, without internal ones."""
    _partitions: dict[str, frozenset[StreamPartition]] = field(default_factory=dict, compare=False, repr=False)
    """Results of `partitions`, by stream."""

    def partition_incarnation(self, of: StreamPartition) -> int | None:
        """Returns the incarnation of the partition; None: this incarnation of the stream has no such partition."""
        stream = self.streams.get(of.stream)
        if stream is None or stream.incarnation != of.incarnation:
            return None
        return stream.partitions.get(of.partition)

    def is_unknown(self, of: StreamPartition, partition_incarnation: int = 0) -> bool:
        """The partition may exist: its metadata is not applied here yet. `partition_incarnation`: 0: not known."""
        return max(of.incarnation, partition_incarnation) > self.generation

    def is_gone(self, of: StreamPartition, partition_incarnation: int = 0) -> bool:
        """The stream was deleted, or this incarnation of the partition has ended."""
        if self.is_unknown(of, partition_incarnation):
            return False
        known = self.partition_incarnation(of)
        return known is None or partition_incarnation not in (0, known)

    def partition_count(self, name: str) -> int:
        """Returns the number of partitions of the stream that can be read."""
        stream = self.streams[name]
        return len(stream.partitions) - len(stream.made_ready)

    def partitions(self, name: str) -> frozenset[StreamPartition]:
        """Returns the partitions of the stream that can be read."""
        found = self._partitions.get(name)
        if found is None:
            stream = self.streams[name]
            found = self._partitions[name] = frozenset(
                StreamPartition(name, stream.incarnation, number)
                for number in stream.partitions
                if number not in stream.made_ready
            )
        return found


PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,64}")
"""The syntax of a pattern of a subscription."""


def compiled(pattern: str) -> re.Pattern[str]:
    """Compiles a pattern for `fullmatch`. Each part between two stars is taken where it is found first, and never
    elsewhere afterwards, which is right as stars take anything: so no pattern takes more than its length times that of
    a name."""
    first, *others = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not others:
        return re.compile(first)
    *between, last = others
    return re.compile(first + "".join(f"(?>.*?{part})" for part in between if part) + ".*" + last)
