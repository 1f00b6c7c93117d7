"""Keeps the records of each key in order over all members of a group, where the number of partitions changes.

A member reads a partition up to a limit, and beyond it when the group has committed the records of other partitions
that have to be processed before (`wire.layouts.KeyOrder`). Another member may have these, and may fail with records in
hand.

    limited    it has not come to the limit yet: nothing is asked
    waiting    it has; the coordinator is asked again and again for the offsets of the partitions that it waits for
    open       they are committed up to their cutovers, or their logs begin behind them, for whichever replica a
               member reads from (R82)

A member that has come to a cutover of a partition commits at once, since others may wait for it. Where commits are the
program's, the member itself commits only offsets without a record: control batches, and offsets that compaction has
left empty. The program does not see them, so that it could not commit them.

`SubscriptionState` has the limits, and the offsets that are known.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from random import random

from tidelog.client.consumer.offset_lookup import LogStart
from tidelog.client.consumer.subscription_state import AssignedPartition, AssignedStream, SubscriptionState
from tidelog.client.group.group_commits import GroupCommits, Mark
from wire.errors import TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.layouts import NOT_REPORTED
from wire.protobuf.groups_pb2 import CommittedOffset
from wire.retry import Retry

_log = logging.getLogger(__name__)

ASK_EVERY = 0.25
"""Seconds between two requests for committed offsets, while a partition waits."""
_LOOK_EVERY = 1.0
"""The same, while no partition waits, and the program has not committed a partition that is read up to a cutover."""
_ASK_TIMEOUT = 2.0
_LOG_STARTS_EVERY = 5.0
"""Seconds between two looks at where logs begin for which a partition waits."""
_LOG_STARTS_AGAIN = 0.5
"""Seconds until the next look, at first, after one that has failed, or at records that some replica may serve still."""
LONG_WAIT = 30.0
"""Seconds after which a wait is written into the log."""
_REPORT_AGAIN = 300.0
_MOST_REPORTED = 10
"""Partitions of which one look at the waits writes, and that one line names."""


class GroupGate:
    """Asks for the group's offsets while partitions of this member wait for others. `commit_soon` makes a member
    whose commits are automatic commit; None: they are the program's. `log_starts`: as `OffsetLookup.log_starts`."""

    def __init__(
        self,
        group: str,
        state: SubscriptionState,
        progress: asyncio.Event,
        commits: GroupCommits,
        commit_soon: Callable[[], object] | None,
        log_starts: Callable[[str, Iterable[int]], Awaitable[Mapping[int, LogStart]]],
    ) -> None:
        self._group = group
        self._state = state
        self._progress = progress
        self._commits = commits
        self._commit_soon = commit_soon
        self._log_starts = log_starts
        self._wakes = asyncio.Event()
        self._log_starts_at = 0.0
        self._looks_again = Retry(_LOG_STARTS_AGAIN, _LOG_STARTS_EVERY, chance=random)

    def check(self) -> None:
        """Positions have moved, or partitions or layouts have changed: the member may have come to a cutover, or to a
        limit."""
        if self._state.at_cutovers:
            if self._commit_soon is not None:
                self._commit_soon()
            else:
                self._wakes.set()
        if self._state.waiting:
            self._wakes.set()

    def on_next(self) -> None:
        """The program asks for records, so that those before are finished."""
        if self._state.has_moved:
            self._state.has_moved = False
            self.check()

    async def run(self) -> None:
        """Asks while something waits."""
        while True:
            await self._wakes.wait()
            self._wakes.clear()
            while (waiting := self._state.waiting) or self._state.at_cutovers:
                try:
                    await self._ask(waiting)
                except TidelogError as error:
                    _log.debug("group %r: what it has committed is not known at present: %s", self._group, error)
                self._report()
                await asyncio.sleep(ASK_EVERY if waiting else _LOOK_EVERY)
            self._report()

    # ----

    async def _ask(self, waiting: Mapping[AssignedPartition, Mapping[StreamPartition, int]]) -> None:
        own = {one.of: one for one in self._state.at_cutovers} if self._commit_soon is None else {}
        sources: dict[StreamPartition, int] = {}
        for ends in waiting.values():
            for of, end in ends.items():
                if end != NOT_REPORTED:
                    sources[of] = max(end, sources.get(of, 0))
        if not sources and not own:
            return
        streams = {(one.of.stream, one.of.incarnation): one.stream for one in (*waiting, *own.values())}
        for found in await self._commits.fetch_some({*sources, *own}, _ASK_TIMEOUT):
            of = StreamPartition(found.stream, found.incarnation, found.partition)
            if (stream := streams.get((of.stream, of.incarnation))) is not None:
                stream.on_group_committed(of.partition, found.partition_incarnation, found.offset)
            if of in own:
                await self._settle(own[of], found)
        is_due, has_failed = asyncio.get_running_loop().time() >= self._log_starts_at, False
        for life, stream in streams.items():
            numbers = {of.partition: end for of, end in sources.items() if (of.stream, of.incarnation) == life}
            if stream is not None and numbers:
                missing = {n: end for n, end in numbers.items() if self._state.committed_to(stream, n) < end}
                if missing and is_due:
                    has_failed |= not await self._ask_log_starts(stream, missing)
                self._state.look(stream)
        if is_due:
            if not has_failed:
                self._looks_again.succeeded()
            now = asyncio.get_running_loop().time()
            self._log_starts_at = now + (self._looks_again.failed() if has_failed else _LOG_STARTS_EVERY)
        self._progress.set()

    async def _settle(self, assigned: AssignedPartition, found: CommittedOffset) -> None:
        """The program has read the partition up to a cutover. Commits it, if no record lies between."""
        if found.offset >= 0 and (assigned.committed is None or assigned.committed < found.offset):
            self._state.on_committed({assigned.of: found.offset})
        if not assigned.is_read or not assigned.is_at_cutover or assigned.finished is None or assigned.began is None:
            return
        committed = found.offset if found.offset >= 0 else assigned.began
        if assigned.before_gap(assigned.finished) <= committed:
            mark = Mark(assigned.finished, assigned.incarnation)
            await self._commits.commit({assigned.of: mark}, found.metadata, _ASK_TIMEOUT)

    # Keeps R82.
    async def _ask_log_starts(self, stream: AssignedStream, missing: Mapping[int, int]) -> bool:
        """Where retention has removed what was not committed, there is nothing left to wait for. `missing`: the
        partitions, with the ends that are waited for. False: it is not known yet whether they are gone."""
        incarnations = {number: stream.incarnation_of(number) for number in missing}
        try:
            async with asyncio.timeout(_ASK_TIMEOUT):
                starts = await self._log_starts(stream.name, missing)
        except (TidelogError, TimeoutError):
            return False
        for number, start in starts.items():
            incarnation = incarnations[number]
            if incarnation is not None and incarnation == stream.incarnation_of(number):
                stream.on_group_committed(number, incarnation, start.settled)
        return not any(start.settled < missing[number] <= start.first for number, start in starts.items())

    def _report(self) -> None:
        """Writes the partitions that have waited for long into the log."""
        now, waiting = asyncio.get_running_loop().time(), self._state.waiting
        due = []
        for assigned in self._state.partitions.values():
            if assigned not in waiting:
                assigned.waits_since = assigned.wait_reported_at = None
                continue
            assigned.waits_since = now if assigned.waits_since is None else assigned.waits_since
            before = assigned.wait_reported_at
            if now >= assigned.waits_since + LONG_WAIT and (before is None or now >= before + _REPORT_AGAIN):
                due.append(assigned)
        for assigned in sorted(due, key=lambda one: one.of)[:_MOST_REPORTED]:
            assigned.wait_reported_at = now
            _log.warning(
                "group %r: %s has waited for %g s, so that keys keep their order, until the group has committed %s; it"
                " goes on when the members that read these have committed them (`tidelog group describe %s`)",
                self._group, assigned.of, now - (assigned.waits_since or now), _listed(waiting[assigned]), self._group,
            )  # fmt: skip


def _listed(sources: Mapping[StreamPartition, int]) -> str:
    listed = [
        f"{of} up to {'its cutover, which its leader has not told yet' if end == NOT_REPORTED else end}"
        for of, end in sorted(sources.items())
    ]
    more = f", and {len(listed) - _MOST_REPORTED} more" if len(listed) > _MOST_REPORTED else ""
    return ", ".join(listed[:_MOST_REPORTED]) + more
