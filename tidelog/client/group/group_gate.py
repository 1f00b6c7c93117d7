"""Keeps the records of each key in order over all members of a group, where the number of partitions changes.

A member reads a partition up to a limit, and beyond it when the group has committed what has to be processed before in
other partitions (`wire.layouts.KeyOrder`): those may be another member's, which may fail with records in hand.

    limited    it has not come to the limit yet: nothing is asked
    waiting    it has; the coordinator is asked again and again what is committed in the partitions that it waits for
    open       they are committed up to their cutovers, or their logs begin behind them

A member that has come to a cutover of a partition commits at once, since others may wait for it. Where commits are the
program's, the member commits by itself only what is no record: control batches, and what compaction has left out. The
program knows of no such offsets, so that it could not commit them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from tidelog.client.group.group_commits import GroupCommits, Mark
from tidelog.client.group.group_reading import GroupReading
from wire.errors import TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.layouts import NOT_TOLD
from wire.protobuf.groups_pb2 import CommittedOffset

_log = logging.getLogger(__name__)

ASK_EVERY = 0.25
"""Seconds between two questions of what is committed, while a partition waits."""
_LOOK_EVERY = 1.0
"""As long as no partition waits, and the program has not committed what it has read up to a cutover."""
_ASK_TIMEOUT = 2.0
_LOG_STARTS_EVERY = 5.0
"""Seconds between two looks at where logs begin for which a partition waits."""
LONG_WAIT = 30.0
"""Seconds after which the log tells of a wait."""
_TELL_AGAIN = 300.0
_MOST_TOLD = 10
"""Partitions of one line of the log."""


class GroupGate:
    """`commit_soon` makes a member whose commits are automatic commit; None: they are the program's. `log_starts`: as
    `OffsetLookup.beginnings`."""

    def __init__(
        self,
        group: str,
        reading: GroupReading,
        commits: GroupCommits,
        commit_soon: Callable[[], object] | None,
        log_starts: Callable[[str, Iterable[int]], Awaitable[Mapping[int, int]]],
    ) -> None:
        self._group = group
        self._reading = reading
        self._commits = commits
        self._commit_soon = commit_soon
        self._log_starts = log_starts
        self._read_to: dict[StreamPartition, tuple[int, int]] = {}
        """(incarnation of the partition, offset): what the group has committed, as far as it was asked."""
        self._ends: dict[StreamPartition, Sequence[int]] = {}
        """Cutovers of partitions that are read, as far as they are not known to be committed; ascending."""
        self._wakes = asyncio.Event()
        self._since: dict[StreamPartition, float] = {}
        """When partitions began to wait."""
        self._told_at: dict[StreamPartition, float] = {}
        """When the log told of them last."""
        self._log_starts_at = 0.0
        reading.committed = self._committed
        reading.on_layout = self.on_layout
        reading.on_partition = self.on_partition

    @property
    def waiting(self) -> dict[StreamPartition, Mapping[StreamPartition, int]]:
        """By partition of which nothing more can be handed out, those that it waits for, and up to which offset each
        has to be committed; NOT_TOLD: that is not known yet."""
        return {
            StreamPartition(*life, partition): {StreamPartition(*life, number): end for number, end in sources.items()}
            for life, reading in self._reading.readings.items()
            for partition, sources in reading.limits.waiting().items()
        }

    def on_layout(self) -> None:
        """The layouts of a stream have changed."""
        for life, reading in self._reading.readings.items():
            for partition in reading.readers:
                self._keep_ends(StreamPartition(*life, partition), reading.layout.cutovers(partition))
        self._check()

    def on_partition(self, of: StreamPartition) -> None:
        """It is read from now on, or not any more."""
        reading = self._reading.readings.get((of.stream, of.incarnation))
        is_read = reading is not None and of.partition in reading.readers
        self._keep_ends(of, reading.layout.cutovers(of.partition) if reading is not None and is_read else ())
        if of in self._ends or (reading is not None and reading.limits):
            self._check()

    def on_committed(self, partitions: Iterable[StreamPartition]) -> None:
        """This member has committed something in these."""
        lives = set()
        for of in partitions:
            if of in self._ends:
                self._keep_ends(of, self._ends[of])
            lives.add((of.stream, of.incarnation))
        self._look(lives)

    def on_head(self) -> None:
        """The program asks for records. What it had is finished."""
        if not self._ends and not any(reading.limits for reading in self._reading.readings.values()):
            return
        has_moved = False
        for reading in self._reading.readings.values():
            has_moved = has_moved or reading.ahead.has_moved
            reading.ahead.has_moved = False
        if has_moved:
            self._check()

    async def run(self) -> None:
        """Asks while something waits."""
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            while (waiting := self.waiting) or self._uncommitted():
                try:
                    await self._ask(waiting)
                except TidelogError as error:
                    _log.debug("group %r: what it has committed is not known at present: %s", self._group, error)
                self._tell(self.waiting)
                await asyncio.sleep(ASK_EVERY if waiting else _LOOK_EVERY)
            self._tell({})

    # ----

    def _committed(self, of: StreamPartition) -> int:
        incarnation, offset = self._read_to.get(of, (0, 0))
        return max(offset if incarnation == self._incarnation(of) else 0, self._commits.known(of) or 0)

    def _incarnation(self, of: StreamPartition) -> int | None:
        """The incarnation of the partition, which may be another member's. None: it does not exist, as far as is
        known."""
        reading = self._reading.readings.get((of.stream, of.incarnation))
        stream = None if reading is None else reading.layout.known
        known = None if stream is None else stream.partitions.get(of.partition)
        return None if known is None else known.incarnation

    def _know(self, of: StreamPartition, incarnation: int, offset: int) -> None:
        self._read_to[of] = max(self._read_to.get(of, (0, 0)), (incarnation, offset))

    def _keep_ends(self, of: StreamPartition, ends: Sequence[int]) -> None:
        known = self._commits.known(of)
        left = [end for end in ends if known is None or known < end]
        if left:
            self._ends[of] = left
        else:
            self._ends.pop(of, None)

    def _check(self) -> None:
        """Whether the member has come to a cutover, or to a limit."""
        if self._uncommitted():
            if self._commit_soon is not None:
                self._commit_soon()
            else:
                self._wakes.set()
        if any(reading.limits.waiting() for reading in self._reading.readings.values()):
            self._wakes.set()

    def _look(self, lives: Iterable[tuple[str, int]]) -> None:
        """More is committed in these."""
        for life in lives:
            reading = self._reading.readings.get(life)
            if reading is not None and reading.limits:
                reading.look()
                reading.progress.set()

    def _uncommitted(self) -> list[StreamPartition]:
        """Partitions that were read, and finished, up to a cutover that is not committed."""
        if not self._ends:
            return []
        finished = self._reading.finished
        return [of for of, ends in self._ends.items() if finished.get(of, -1) >= ends[0]]

    async def _ask(self, waiting: Mapping[StreamPartition, Mapping[StreamPartition, int]]) -> None:
        own = self._uncommitted() if self._commit_soon is None else []
        sources: dict[StreamPartition, int] = {}
        for ends in waiting.values():
            for of, end in ends.items():
                if end != NOT_TOLD:
                    sources[of] = max(end, sources.get(of, 0))
        if not sources and not own:
            return
        for found in await self._commits.fetch_some({*sources, *own}, _ASK_TIMEOUT):
            of = StreamPartition(found.stream, found.incarnation, found.partition)
            self._know(of, found.partition_incarnation, found.offset)
            if of in own:
                await self._settle(of, found)
        await self._ask_log_starts({of for of in sources if self._committed(of) < sources[of]})
        self._look({(of.stream, of.incarnation) for of in sources})

    async def _settle(self, of: StreamPartition, found: CommittedOffset) -> None:
        """The program has read the partition up to a cutover. Commit it, if only what is no record lies between."""
        known = self._commits.known(of)
        if known is None or known < found.offset:
            self._commits.know(of, found.offset)
            self._keep_ends(of, self._ends.get(of, ()))
        reached = self._reading.finished.get(of)
        if of not in self._ends or reached is None or reached < self._ends[of][0]:
            return
        first, end = self._reading.gap(of) or (reached, reached)
        first = first if end == reached else reached
        if first <= (found.offset if found.offset >= 0 else self._reading.beginnings.get(of, -1)):
            mark = Mark(reached, self._reading.partition_incarnation(of) or 0)
            await self._commits.commit({of: mark}, found.metadata, _ASK_TIMEOUT)

    async def _ask_log_starts(self, sources: Collection[StreamPartition]) -> None:
        """Where retention has removed what was not committed, there is nothing left to wait for."""
        now = asyncio.get_running_loop().time()
        if now < self._log_starts_at:
            return
        self._log_starts_at = now + _LOG_STARTS_EVERY
        by_life = defaultdict(list)
        for of in sources:
            by_life[of.stream, of.incarnation].append(of.partition)
        incarnations = {of: self._incarnation(of) for of in sources}
        for life, partitions in by_life.items():
            try:
                async with asyncio.timeout(_ASK_TIMEOUT):
                    starts = await self._log_starts(life[0], partitions)
            except (TidelogError, TimeoutError):
                continue
            for partition, start in starts.items():
                of = StreamPartition(*life, partition)
                incarnation = incarnations[of]
                if incarnation is not None and incarnation == self._incarnation(of):
                    self._know(of, incarnation, start)

    def _tell(self, waiting: Mapping[StreamPartition, Mapping[StreamPartition, int]]) -> None:
        now = asyncio.get_running_loop().time()
        self._since = {of: self._since.get(of, now) for of in waiting}
        self._told_at = {of: at for of, at in self._told_at.items() if of in waiting}
        due = sorted(
            of
            for of, since in self._since.items()
            if now >= max(since + LONG_WAIT, self._told_at.get(of, -_TELL_AGAIN) + _TELL_AGAIN)
        )
        for of in due[:_MOST_TOLD]:
            self._told_at[of] = now
            _log.warning(
                "group %r: %s has waited for %g s, so that keys keep their order, until the group has committed %s; it"
                " goes on when the members that read these have committed them (`tidelog group describe %s`)",
                self._group, of, now - self._since[of], _listed(waiting[of]), self._group,
            )  # fmt: skip


def _listed(sources: Mapping[StreamPartition, int]) -> str:
    told = [
        f"{of} up to {'its cutover, which its leader has not told yet' if end == NOT_TOLD else end}"
        for of, end in sorted(sources.items())
    ]
    more = f", and {len(told) - _MOST_TOLD} more" if len(told) > _MOST_TOLD else ""
    return ", ".join(told[:_MOST_TOLD]) + more
