"""Layouts of a stream: over how many partitions keys are spread, and where in each partition that changed.

A repartition begins a layout. In each partition that exists by then, the layout before it ends at an offset, the
CUTOVER, and records of the new layout follow:

    layout 1: 2 partitions      partition 0   |--- 1 ---|----- 2 -----      starts of layout 2: [4, 3, 0]
    layout 2: 3 partitions      partition 1   |-- 1 -|------- 2 -------
                                partition 2   |------- 2 ------

A key is in partition hash mod n of a layout of n partitions. So records of one key that are in partition q of a layout
of m partitions go on in a partition p of the next one, of n, where q = p modulo gcd(m, n). A reader that wants the
records of each key in order reads a partition p beyond the start of a layout only when it has read all records of the
layout before it in those partitions q (`KeyOrder`). Where n is a multiple of m, that is p mod m alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Final

from wire.echo import echo
from wire.errors import Code, TidelogError

MAX_PARTITIONS: Final = 10_000
"""Limit per stream; a stream is created by one Raft command of bounded size."""
DEFAULT_PARTITIONER: Final = "crc32c"
PARTITIONERS: Final = (DEFAULT_PARTITIONER, "murmur2")
"""Names of the hashes of keys, of which a stream has one for good: CRC-32C, and MurmurHash2 as Kafka's Java clients
use it. `tidelog.client.producer.partitioner` computes them."""
NOT_REPORTED: Final = -1
"""Stands for an unknown offset: the leader of that partition has not reported yet where the layout before ends."""
MAX_LAYOUTS: Final = 32
"""Limit of the layouts that a stream keeps; older ones are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    version: int
    """The partitioning version; grows by one with each repartition."""
    partitions: int
    """Keys are spread over partitions 0 to here, exclusive."""
    generation: int = 0
    """The generation of the command that began it; 0: the stream's first layout."""
    starts: tuple[int, ...] = ()
    """The offset at which it begins in each partition, or where the layout before it ends in partitions that it does
    not have; NOT_REPORTED. Partitions beyond these have no records of earlier layouts."""

    def start(self, partition: int) -> int:
        return self.starts[partition] if partition < len(self.starts) else 0

    @property
    def is_reported(self) -> bool:
        """Whether all cutovers are known."""
        return NOT_REPORTED not in self.starts


def check_partition_count(partitions: int) -> None:
    """Checks that a stream can have so many partitions. Raises TidelogError(BAD_CONFIG)."""
    if not 1 <= partitions <= MAX_PARTITIONS:
        raise TidelogError(Code.BAD_CONFIG, f"partitions={partitions} is outside 1 to {MAX_PARTITIONS}")


def check_partitioner(name: str) -> None:
    """Checks that a stream can have this partitioner. Raises TidelogError(BAD_CONFIG)."""
    if name not in PARTITIONERS:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"partitioner={echo(name)} is neither {' nor '.join(map(repr, PARTITIONERS))}; give one of them",
        )


def sources(partition: int, before: int, after: int) -> range:
    """The partitions of a layout of `before` partitions from which keys come to `partition` of the next one, of
    `after`."""
    step = gcd(before, after)
    return range(partition % step, before, step)


def takes_in_place(layouts: Sequence[Layout], partition: int) -> int | None:
    """Returns the partition that takes the publishes of a client that chose this one by itself: this one, or another
    one where the newest layout does not have it. None: no layout has had it."""
    count = layouts[-1].partitions
    return partition % count if 0 <= partition < max(layout.partitions for layout in layouts) else None


def end_of_life(
    layouts: Sequence[Layout], partition: int, incarnation: int, next_incarnation: int | None = None
) -> int | None:
    """Returns the cutover of the last layout that left this incarnation of the partition out. None: the newest layout
    has the partition, or the end is not known, also because layouts since that incarnation began are forgotten.

    `next_incarnation`: the partition's present one; None where it does not exist. A later layout that has the partition
    again goes on with its log, at or beyond that cutover; one that begins at 0 is of a partition that was removed and
    made anew.
    """
    if not layouts or layouts[0].generation > incarnation:
        return None
    end: int | None = None
    for layout in layouts:
        if layout.generation <= incarnation:
            continue
        if next_incarnation is not None and layout.generation > next_incarnation:
            break
        start = layout.starts[partition] if partition < len(layout.starts) else None
        if partition >= layout.partitions:
            # Of successive layouts without the partition, only the first has its end.
            end = end if start is None else start
        elif end is not None and (start is None or (start == 0 and end != 0)):
            break
        else:
            end = None
    return None if end == NOT_REPORTED else end


class KeyOrder:
    """How far partitions of a stream can be read so that the records of each key come in their order.

    `layouts`: oldest first, without gaps. `incarnations`: of the partitions that exist; one that was deleted since, or
    made anew, has no records of earlier layouts.
    """

    def __init__(self, layouts: Sequence[Layout], incarnations: Mapping[int, int]) -> None:
        self._layouts = layouts
        self._incarnations = incarnations
        self._starts = _starts(layouts)

    @property
    def newest(self) -> int:
        """The newest partitioning version."""
        return self._layouts[-1].version

    def known_version(self, partition: int) -> int:
        """The newest version whose start in the partition is known. A batch of a later one
        (`BatchHeader.partitioning_version`) can be judged when newer metadata are there."""
        for at, layout in enumerate(self._layouts[1:], 1):
            if self._start(at, partition) == NOT_REPORTED:
                return layout.version - 1
        return self.newest

    # R66: With `order="key"`, a partition is read beyond a cutover when what its keys come from was processed up to
    # its own: by a consumer without a group up to its position, by a member up to what the group has committed, or to
    # where the log begins if that is higher. A batch of a version whose start is not known waits for metadata, for 5 s
    # at most. A member that comes to a cutover commits at once, if commits are not the program's.
    # Hazard: A member processes a record of a key while another member, which may fail, has an earlier one; members
    # that wait for each other.
    def waits_for(self, partition: int, read_to: Callable[[int], int]) -> tuple[int, Mapping[int, int]] | None:
        """Returns the offset at which reading `partition` has to stop for now, and {partition: offset} to read before
        (NOT_REPORTED: the offset is not known yet). None: nothing has to wait.

        `read_to(q)`: offset of the next record of partition q that was not read, and processed, yet.
        """
        for at, layout in enumerate(self._layouts[1:], 1):
            if partition >= layout.partitions or self._start(at, partition) == NOT_REPORTED:
                continue
            if self._incarnations.get(partition, 0) > layout.generation:
                continue  # this incarnation was made for a later layout
            missing = self._missing(at, partition, read_to)
            if missing:
                return self._start(at, partition), missing
        return None

    def _missing(self, at: int, partition: int, read_to: Callable[[int], int]) -> dict[int, int]:
        """Returns {partition: offset} to read before layout `at` begins in `partition`. A partition may have no records
        of a layout, or none any more: so those from which its keys came are looked at as well."""
        missing: dict[int, int] = {}
        receivers = {partition}
        for later in range(at, 0, -1):
            layout, before = self._layouts[later], self._layouts[later - 1].partitions
            step = gcd(before, layout.partitions)
            residues = {receiver % step for receiver in receivers if receiver < layout.partitions}
            receivers = {source for residue in residues for source in range(residue, before, step)}
            for source in receivers:
                end = self._start(later, source)
                if source == partition or source in missing or not self._was_there(source, layout):
                    continue
                if end == NOT_REPORTED or read_to(source) < end:
                    missing[source] = end
        return missing

    def ends(self, partition: int) -> list[int]:
        """The known cutovers of the partition, ascending. A reader reports each one that it reaches, since other
        partitions wait for it."""
        return [
            start
            for at, layout in enumerate(self._layouts[1:], 1)
            if partition < len(layout.starts)
            and (start := self._start(at, partition)) != NOT_REPORTED
            and self._was_there(partition, layout)
        ]

    # R65: What a repartition has made is read from its first record. A consumer of all partitions begins a new
    # partition with its first record, wherever it began itself. A member of a group begins one of which nothing is
    # committed with its oldest record, if the group has committed something in a partition that its keys come from.
    # Hazard: Records between the cutover and the moment at which a reader learns of the partition are left out.
    def has_begun_later(self, partition: int) -> bool:
        """Whether a repartition made the partition: its records follow those of other partitions."""
        first, *later = self._layouts
        return bool(later) and not (partition < first.partitions and self._was_there(partition, later[0]))

    def origins(self, partition: int) -> set[int]:
        """The partitions that had records of its keys before it was made, directly or through others."""
        found = {partition}
        for at in range(len(self._layouts) - 1, 0, -1):
            before, layout = self._layouts[at - 1], self._layouts[at]
            for number in [number for number in found if number < layout.partitions]:
                is_new = number >= len(layout.starts) or 0 < before.generation < self._incarnations.get(number, 0)
                if is_new and self._was_there(number, layout):
                    found.update(sources(number, before.partitions, layout.partitions))
        return {number for number in found if number in self._incarnations} - {partition}

    def _start(self, at: int, partition: int) -> int:
        starts = self._starts[at]
        return starts[partition] if partition < len(starts) else 0

    def _was_there(self, partition: int, layout: Layout) -> bool:
        """Whether this incarnation of the partition is older than `layout`."""
        incarnation = self._incarnations.get(partition)
        return incarnation is not None and incarnation < layout.generation


def _starts(layouts: Sequence[Layout]) -> list[tuple[int, ...]]:
    """The starts of each layout, corrected: after an unclean election a log may end below the cutovers reported before,
    and the new leader reports only the last one again. No layout ends behind the end of a later one."""
    corrected: list[tuple[int, ...]] = []
    lowest: dict[int, int] = {}
    for layout in reversed(layouts):
        starts = tuple(
            start if start == NOT_REPORTED else min(start, lowest.get(number, start))
            for number, start in enumerate(layout.starts)
        )
        lowest.update((number, start) for number, start in enumerate(starts) if start != NOT_REPORTED)
        corrected.insert(0, starts)
    return corrected
