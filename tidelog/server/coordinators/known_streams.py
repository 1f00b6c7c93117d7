"""The streams of the cluster as a coordinator knows them, from the applied metadata of its broker.

That may lag behind what a member or an earlier coordinator knew. Incarnations are generations of the metadata, so a
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
    """Those of them that wait for a layout to come: nothing is written to them or read from them yet."""


@dataclass(frozen=True, slots=True)
class StreamsView:
    generation: int = 0
    """The generation of the applied metadata."""
    streams: Mapping[str, StreamLife] = field(default_factory=dict)
    """By name, without Tidelog's own."""
    _partitions: dict[str, frozenset[StreamPartition]] = field(default_factory=dict, compare=False, repr=False)
    """By stream, what `partitions` has given."""

    def partition_incarnation(self, of: StreamPartition) -> int | None:
        """None: there is no such partition, in that life of the stream."""
        stream = self.streams.get(of.stream)
        if stream is None or stream.incarnation != of.incarnation:
            return None
        return stream.partitions.get(of.partition)

    def is_unknown(self, of: StreamPartition, partition_incarnation: int = 0) -> bool:
        """It may exist: metadata of its time is not applied here yet. `partition_incarnation`: 0: not known."""
        return max(of.incarnation, partition_incarnation) > self.generation

    def is_gone(self, of: StreamPartition, partition_incarnation: int = 0) -> bool:
        """Its stream was deleted, or this life of the partition is over."""
        if self.is_unknown(of, partition_incarnation):
            return False
        known = self.partition_incarnation(of)
        return known is None or partition_incarnation not in (0, known)

    def partition_count(self, name: str) -> int:
        """How many partitions of the stream can be read."""
        stream = self.streams[name]
        return len(stream.partitions) - len(stream.made_ready)

    def partitions(self, name: str) -> frozenset[StreamPartition]:
        """Those that can be read."""
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
"""What a pattern of a subscription may look like."""


def compiled(pattern: str) -> re.Pattern[str]:
    """For `fullmatch`. Each part between two stars is taken where it is found first, and never elsewhere afterwards,
    which is right as stars take anything: so no pattern takes more than its length times that of a name."""
    first, *others = (re.escape(part).replace(r"\?", ".") for part in pattern.split("*"))
    if not others:
        return re.compile(first)
    *between, last = others
    return re.compile(first + "".join(f"(?>.*?{part})" for part in between if part) + ".*" + last)
