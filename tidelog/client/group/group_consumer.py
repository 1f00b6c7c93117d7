"""A member of a consumer group: records of the partitions that the group's coordinator assigns to it, and commits.

    async with client.subscribe(["orders", "returns"], group="billing") as consumer:
        async for record in consumer:
            ...

A record that was handed out counts as finished when the program asks for more, or commits, or leaves `async with`
without an exception. Automatic commits are of finished records only, so that a record is read again rather than left
out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import TracebackType
from typing import Any, Generic, NamedTuple, Self

from tidelog.client.base.arguments import bad, check_number, check_text, check_whole
from tidelog.client.base.exceptions import BadRequest, Closed
from tidelog.client.base.read_positions import AtTime
from tidelog.client.base.records import Batch, K, Record, V
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.lifetime import Closing, HomeLoop, Started, close_all
from tidelog.client.cluster.metadata_cache import MetadataCache
from tidelog.client.consumer.consumer import MOST_SECONDS
from tidelog.client.consumer.offset_lookup import OffsetLookup
from tidelog.client.consumer.subscription_state import AssignedPartition, Phase
from tidelog.client.group.group_commits import COMMIT_TIMEOUT, TransactionPart
from tidelog.client.group.group_partitions import GroupPartitions
from tidelog.client.group.group_session import GroupSession
from tidelog.client.group.membership import MemberSettings
from tidelog.client.group.subscription import GroupConfig, Name, checked_name, checked_names
from wire.errors import Code
from wire.internal_records.group_records import StreamPartition
from wire.messaging.transport import Transport
from wire.subjects import Subjects

_log = logging.getLogger(__name__)

_BREATH = 0.02
"""Seconds after which a program that takes records without waiting lets the event loop work: heartbeats leave then."""
_CLOSE_TIMEOUT = 5.0
"""Seconds for the last commit."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Committed(NamedTuple):
    """A committed offset of a group."""

    offset: int
    """The next one to read."""
    metadata: str
    """The committer's own text."""
    timestamp: int
    """The time of the commit, ns since 1970."""

    @property
    def time(self) -> datetime:
        """`timestamp` in UTC, cut to microseconds."""
        return _EPOCH + timedelta(microseconds=self.timestamp // 1000)


class GroupConsumer(Generic[K, V]):
    """Reads the partitions that the coordinator of its group assigns to it. Make it with `Client.subscribe`, and use it
    with `async with`.

    Partitions are named (stream, partition). They come and go while records are taken: `on_assigned` and `on_revoked`
    tell, and `on_lost` where others may have them already. Those that stay are read on meanwhile. Records are for one
    task at a time.

    It goes on through changes of leaders and of the coordinator, and lost connections. Raised where records are taken:
    what ends its membership (FencedInstance, NotPermitted); UnknownMember once after `max_poll_interval` without a
    call; what keeps a partition from being read (OffsetOutOfRange, LogTruncated, CorruptBatch); DeserializationFailed,
    with the position at the record that it is about; and what `on_assigned`, `on_revoked` and `on_lost` have raised.
    """

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        metadata: MetadataCache,
        link: CoordinatorLink,
        lookup: OffsetLookup,
        settings: MemberSettings,
        config: GroupConfig[K, V],
        *,
        spread: int,
        started: Started[Any],
    ) -> None:
        """`spread` differs from consumer to consumer: they read from different followers."""
        self._settings = settings
        self._config = config
        self._metadata = metadata
        self._started = started
        self._stopwatch: Callable[[], float] = time.monotonic
        """Quicker than the clock, which is looked at again soon: it runs on while the process is stopped, though not
        while the machine sleeps."""
        self._partitions = GroupPartitions(transport, subjects, metadata, link, lookup, settings, config, spread=spread)
        self._state = self._partitions.state
        self._progress = self._partitions.progress
        self._session = self._partitions.session
        self._commits = self._partitions.commits
        self._gate = self._partitions.gate
        self._tasks: list[asyncio.Task[None]] = []
        """The tasks of automatic commits and of the gate."""
        self._starting = asyncio.Lock()
        self._closing = Closing(f"a consumer of group {self.group!r}", self._close_once)
        self._breathed = 0.0
        """When the event loop has worked last."""
        self._look_at = 0.0
        """When an iteration is to ask for the head again, by `_stopwatch`."""
        self._is_withheld = False
        """The log says that nothing is handed out."""
        self._is_closed = False
        self._home = HomeLoop(f"this consumer of group {self.group!r}")

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if exc_type is None:
            self._state.finish()
        await self._close()
        if exc_type is None:
            self._partitions.listeners.raise_raised()

    async def __aiter__(self) -> AsyncIterator[Record[K, V]]:
        stopwatch, state = self._stopwatch, self._state
        while (assigned := await self._next()) is not None:
            look_at = self._look_at
            for record in assigned.records():
                assigned.last = record
                yield record
                if state.is_changed or stopwatch() >= look_at:
                    break

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._settings.group

    @property
    def member_id(self) -> str:
        """The id of this member, a new one each time that it joins; empty before it has begun."""
        return self._session.member_id

    @property
    def generation(self) -> int:
        """The generation of the group, that this member has reached; it grows with each change of the group."""
        return self._session.generation

    @property
    def assignment(self) -> frozenset[Name]:
        """The partitions that are read, or are about to be."""
        return _names(self._partitions.assignment)

    @property
    def positions(self) -> Mapping[Name, int]:
        """Per partition read, the offset after the last record that was handed out, or where reading begins."""
        return _by_name(self._state.each(lambda assigned: assigned.position))

    @property
    def lag(self) -> Mapping[Name, int]:
        """Per partition read, the committed records from its position on, as of the newest answer of a broker."""
        return _by_name(self._state.each(lambda assigned: assigned.lag))

    def delay(self) -> tuple[float, str] | None:
        """As `Consumer.delay`, of the partitions that are assigned to this member."""
        now_ns = time.time_ns()
        return max((waits for one in self._state.partitions.values() if (waits := one.delay(now_ns))), default=None)

    @property
    def missed(self) -> Mapping[Name, int]:
        """Per partition read, the number of records that retention removed before they were read (see `on_gap`)."""
        return _by_name(self._state.each(lambda assigned: assigned.missed if assigned.is_read else None))

    @property
    def paused(self) -> frozenset[Name]:
        """The partitions that `pause` has named, and that are assigned still."""
        return _names(of for of, assigned in self._state.partitions.items() if assigned.is_paused)

    @property
    def waiting(self) -> Mapping[Name, Mapping[Name, int]]:
        """With `order="key"`, the partitions of which nothing is handed out before the group has committed more of
        others, in which records of the same keys were: by partition, those others, and up to which offset each (-1:
        that is not known yet). It goes on when they are committed, by whichever member reads them."""
        waiting = {assigned.of: sources for assigned, sources in self._state.waiting.items()}
        return {(of.stream, of.partition): _by_name(sources) for of, sources in sorted(waiting.items())}

    def position(self, stream: str, partition: int) -> int:
        """As `positions`, of one partition."""
        assigned = self._partitions.found(checked_name((stream, partition)))
        if assigned.position is None:
            raise bad(f"where {assigned.of} begins is not known yet; take records first, or ask again")
        return assigned.position

    async def start(self) -> None:
        """Join the group. Iterating and taking records do this.

        Raises NoServer when no coordinator answers, BadRequest, NotPermitted.
        """
        async with self._starting:
            self._check_open()
            if self._session.has_begun:
                return
            self._started.add(self)
            try:
                await self._session.find_cluster()
            except BaseException:
                self._started.discard(self)
                raise
            try:
                await self._session.join()
            except BaseException:
                await self._close()
                raise
            if self._config.auto_commit:
                interval = self._config.auto_commit_interval
                self._tasks.append(asyncio.create_task(self._commit_again_and_again(interval)))
            if self._gate is not None:
                self._tasks.append(asyncio.create_task(self._gate.run()))

    async def getone(self, timeout: float | None = None) -> Record[K, V] | None:
        """The next record; None after `timeout` seconds without one (0: none is here; None: wait for one)."""
        records = await self.getmany(1, timeout)
        return records[0] if records else None

    async def getmany(self, max_records: int = 500, timeout: float | None = None) -> list[Record[K, V]]:
        """The next records of one partition, `max_records` at most: those that are here, or else the first that come.
        Empty as `getone` gives None.
        """
        check_whole("max_records", max_records, 1, 1 << 31)
        if timeout is not None:
            check_number("timeout", timeout, 0, MOST_SECONDS)
        assigned = await self._next(timeout)
        return [] if assigned is None else self._state.take(assigned, max_records)

    async def batches(self) -> AsyncIterator[Batch]:
        """Batches of columns instead of single records."""
        while (assigned := await self._next()) is not None:
            yield self._state.take_batch(assigned)

    async def commit(self, offsets: Mapping[Name, int] | None = None, metadata: str = "") -> None:
        """Commit {(stream, partition): the next offset to read}. None: all that was handed out, which is finished with
        this call. Returns when the in-sync replicas have it. `metadata`: a text of your own, which `committed` tells.

        Raises NotAssigned (of `offsets`, a partition is another member's, and nothing is committed; or, without them,
        partitions went with records that were handed out and not committed: it names these, once, when the others are
        committed), UnknownMember (this member was removed, and joins anew), NoServer.
        """
        check_text("metadata", metadata, "")
        await self.start()
        if offsets is None:
            self._state.finish()
            marks = self._commits.marks(again=bool(metadata))
        else:
            marks = await self._partitions.given_marks(checked_names(offsets))
        await self._commits.commit(marks, metadata)
        if offsets is None:
            self._commits.check_committed()

    async def _prepare_commit(
        self, offsets: Mapping[Name, int] | None
    ) -> Callable[[TransactionPart], Awaitable[None]] | None:
        """As `commit` takes them. What it returns commits them as a part of a transaction; None: there is nothing to
        commit. Raises BadRequest where commits are automatic; NotAssigned where records were handed out of a partition
        that has gone since; and as `commit`."""
        if self._config.auto_commit:
            raise bad(
                f"this consumer of group {self.group!r} commits by itself, whether a transaction is committed or not;"
                " subscribe with auto_commit=False"
            )
        await self.start()
        commits, member_id = self._commits, self.member_id
        claim, given = commits.claim(), None if offsets is None else checked_names(offsets)
        commits.check_claims(given)
        if given is None:
            self._state.finish()
            marks = commits.marks(again=True)
        else:
            marks = await self._partitions.given_marks(given)

        async def commit(part: TransactionPart) -> None:
            await commits.commit(marks, member_id=member_id, part=part)
            commits.settle(marks, claim)

        return commit if marks else None

    async def committed(self, partitions: Iterable[Name] | None = None) -> dict[Name, Committed]:
        """What the group has committed of these partitions (None: of those assigned to this member); those of which
        nothing is committed are left out. Raises UnknownStream, NoServer."""
        await self.start()
        named = None if partitions is None else [await _life(self._metadata, name) for name in partitions]
        wanted = {*(self._state.partitions if named is None else named)}
        found = [] if not wanted else await self._commits.fetch(wanted, COMMIT_TIMEOUT)
        return {
            (one.stream, one.partition): Committed(one.offset, one.metadata, one.committed_at)
            for one in found
            if one.offset >= 0
        }

    async def seek(self, stream: str, partition: int, position: str | int | datetime | AtTime) -> None:
        """The next record of the partition is the one at `position`, spelled as the start of `Client.consume`. In
        `on_assigned`, it is where reading begins.

        Raises as `Client.consume`; the partition is then read on as before.
        """
        self._check_open()
        await self._partitions.seek(self._partitions.found(checked_name((stream, partition))), position)

    async def seek_to_committed(self) -> None:
        """Go back to what the group has committed, in each partition that is read; to where this member began, where
        nothing is committed. After a transaction that was aborted, its records are read again so. Raises as `seek`,
        NoServer."""
        claim = self._state.partitions.copy()  # one that comes meanwhile begins at what is committed by itself
        committed = await self.committed()
        for of, assigned in sorted(claim.items()):
            if assigned.phase is not Phase.READING or assigned.began is None:
                continue
            found = committed.get((of.stream, of.partition))
            try:
                await self._partitions.seek(assigned, assigned.began if found is None else found.offset)
            except BadRequest:
                if assigned.phase is Phase.READING:
                    raise
        self._state.unsettled.clear()

    def pause(self, *partitions: Name) -> None:
        """Hand out no records of these (none given: of all that are assigned) until they are resumed. In `on_assigned`,
        it holds from the first record on. What was fetched ahead stays, and no more than that is fetched. Partitions
        that stay through a rebalance stay paused; one that goes and comes back is not paused any more."""
        self._state.pause(self._named(partitions))

    def resume(self, *partitions: Name) -> None:
        """Hand out records of these (none given: of all) again."""
        self._state.pause(self._named(partitions), is_paused=False)
        self._progress.set()

    async def aclose(self) -> None:
        """Give up all partitions (`on_revoked`), commit what is finished if commits are automatic, and leave the group.
        A static member keeps its place in the group until its session ends. Safe to call twice. Goes on when the caller
        is cancelled; another call waits for it."""
        await self._close()
        self._partitions.listeners.raise_raised()

    # ----

    def _check_closable(self) -> None:
        """Raises BadRequest within its own functions, and in tasks that these have begun and may wait for."""
        if not self._closing.is_over:
            self._partitions.listeners.check_not_calling()

    async def _close(self) -> None:
        self._check_closable()
        await self._closing.run()

    async def _close_once(self) -> None:
        await self._end_tasks()  # whose commits would be in the way of the last one
        session = self._session
        if session.is_member:
            await self._partitions.give_up_all(_CLOSE_TIMEOUT)
        self._is_closed = True
        self._started.discard(self)
        left = (session.leave, session.aclose) if session.has_begun else ()
        await close_all((*left, self._partitions.aclose, self._progress.set))

    async def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _next(self, timeout: float | None = None) -> AssignedPartition | None:
        """The partition to hand out from, until `_look_at`. None: nothing came within `timeout` seconds."""
        session = self._session
        if not session.has_begun or self._is_closed:
            await self.start()
        self._home.check()
        now = self._session.clock()
        session.app_calls(now)
        self._partitions.app_calls()
        try:
            if now >= self._breathed + _BREATH:
                await asyncio.sleep(0)
                now = self._breathed = self._session.clock()
            found = self._next_here(session, now)
            if found is None:
                try:
                    found = await self._wait(session, timeout)
                finally:
                    now = self._session.clock()
            return found
        finally:
            session.app_returns(now)

    async def _wait(self, session: GroupSession, timeout: float | None) -> AssignedPartition | None:
        limit = asyncio.timeout(timeout)
        try:
            async with limit:
                while True:
                    self._progress.clear()
                    await self._progress.wait()
                    self._check_open()
                    self._breathed = self._session.clock()
                    found = self._next_here(session, self._breathed)
                    if found is not None:
                        return found
        except TimeoutError:
            if not limit.expired():
                raise  # one of the program's functions has raised it
            return None

    def _next_here(self, session: GroupSession, now: float) -> AssignedPartition | None:
        session.raise_failure()
        self._partitions.raise_failure()
        left = session.seconds_left(now)
        if left <= 0:
            if session.is_member and not self._is_withheld:
                self._is_withheld = True
                _log.warning(
                    "the coordinator of group %r has not answered for %g s (session_timeout): no records are handed out"
                    " until it does",
                    self.group,
                    self._settings.session_timeout,
                )
            return None
        self._is_withheld = False
        assigned = self._state.next()
        if self._gate is not None:
            self._gate.on_next()
        self._look_at = self._stopwatch() + min(left, _BREATH)
        return assigned

    async def _commit_again_and_again(self, interval: float) -> None:
        commit_soon = self._partitions.commit_soon
        while True:
            try:
                async with asyncio.timeout(interval):
                    await commit_soon.wait()
            except TimeoutError:
                pass
            commit_soon.clear()
            if self._session.is_member:
                await self._commits.try_to_commit(self._commits.marks(), COMMIT_TIMEOUT)

    def _named(self, partitions: tuple[Name, ...]) -> Iterable[AssignedPartition]:
        """Returns these (none given: all that are assigned). Raises BadRequest for one that is not."""
        if not partitions:
            return [assigned for assigned in self._state.partitions.values() if not assigned.is_leaving]
        return [self._partitions.found(checked_name(name)) for name in partitions]

    def _check_open(self) -> None:
        if self._is_closed:
            raise Closed(Code.BAD_REQUEST, f"this consumer of group {self.group!r} is closed; make a new one")
        self._home.check()


async def _life(metadata: MetadataCache, name: Name) -> StreamPartition:
    """The partition of that name, in the present incarnation of its stream. Raises UnknownStream, BadRequest."""
    stream, partition = checked_name(name)
    known = await metadata.get(stream)
    if partition not in known.partitions:
        raise bad(f"there is no partition {partition} in stream {stream!r}")
    return StreamPartition(stream, known.incarnation, partition)


def _names(partitions: Iterable[StreamPartition]) -> frozenset[Name]:
    return frozenset((of.stream, of.partition) for of in partitions)


def _by_name(numbers: Mapping[StreamPartition, int]) -> dict[Name, int]:
    """By name, the number of the newest incarnation of the stream."""
    return {(of.stream, of.partition): number for of, number in sorted(numbers.items())}
