"""What a member of a group does with partitions that come and go.

    assigned   on_assigned; committed offsets are asked for; each partition is begun by itself, so that none waits for
               another that has no leader at the moment
    revoked    nothing more is handed out; at once, or at the program's next call if it has records of the partition
               that it has not finished: on_revoked, a commit, and the coordinator hears that it is given up
    lost       dropped at once, on_lost
    made anew  lost, and assigned again. The coordinator takes such a partition away, but not if it sees neither that it
               was removed nor that it was missing, as after a failover: it assigns numbers

A partition of which on_assigned was not told yet goes silently.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.client.base.arguments import bad
from tidelog.client.base.exceptions import Closed, NoServer, NotAssigned
from tidelog.client.base.read_positions import Anchor, AtOffset, Position, Start, start_positions
from tidelog.client.cluster.metadata_cache import MetadataCache, StreamMetadata
from tidelog.client.group.group_claims import GroupClaims
from tidelog.client.group.group_commits import GroupCommits, Mark
from tidelog.client.group.group_reading import GONE, GroupReading
from tidelog.client.group.group_session import GroupSession
from tidelog.client.group.membership import Partitions
from tidelog.client.group.subscription import GroupListeners, Listeners, Name
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.protobuf.groups_pb2 import CommittedOffset

_log = logging.getLogger(__name__)

_AGAIN = 0.5
"""Seconds until a partition that cannot be begun is tried again."""
_OFFSETS_TIMEOUT = 10.0


@dataclass(slots=True)
class _Held:
    """A partition that this member has."""

    is_told: bool = False
    """on_assigned has been called."""
    is_leaving: bool = False
    """It is being given up."""
    position: Position | None = None
    """Where to begin, if `seek` was called before that."""
    beginning: asyncio.Task[None] | None = None


class GroupPartitions:
    """A `Holder`. `start`: of partitions of which nothing is committed. `commit_timeout`: seconds for the commit of
    what is given up."""

    def __init__(
        self,
        reading: GroupReading,
        metadata: MetadataCache,
        *,
        start: Anchor,
        auto_commit: bool,
        commit_timeout: float,
        listeners: Listeners,
    ) -> None:
        self._reading = reading
        self._metadata = metadata
        self._start = start
        self._auto_commit = auto_commit
        self._commit_timeout = commit_timeout
        self.listeners = GroupListeners(listeners, reading.progress.set)
        reading.on_made_anew = self._begin_anew
        self._held: dict[StreamPartition, _Held] = {}
        self.claims = GroupClaims(self._held, reading)
        self._busy: set[StreamPartition] = set()
        """To be given up at the program's next call."""
        self._failures: dict[StreamPartition, TidelogError] = {}
        """Why a partition cannot be begun."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.commit_soon = asyncio.Event()
        """A partition was begun of which nothing is committed, or others wait for what was finished."""

    def serve(self, session: GroupSession, commits: GroupCommits) -> None:
        """Whose partitions they are."""
        self._session = session
        self._commits = commits

    # ---- what the member does

    def assign(self, partitions: Partitions) -> None:
        for of in sorted(partitions):
            self._held[of] = _Held()
        self._spawn(self._begin(partitions))

    def revoke(self, partitions: Partitions) -> None:
        unfinished = self._reading.unfinished
        busy = partitions & {unfinished} if unfinished is not None else frozenset()
        for of in busy:
            self._held[of].is_leaving = True
            self._reading.look_again(of)
        self._busy |= busy
        if partitions - busy:
            self._leave_now(partitions - busy)

    def lose(self, partitions: Partitions) -> None:
        told = {of for of in partitions if self._drop(of)}
        if told:
            _log.warning("lost %s: others may read them now", _listed(told))
            self._spawn(self._tell_lost(told))
        self._spawn(self._reading.close_unread())

    # ---- what the program does

    def app_calls(self) -> None:
        """It asks for records: all that was handed out before is finished."""
        self._reading.finish()
        if self._busy:
            busy, self._busy = frozenset(self._busy), set()
            self._leave_now(busy)

    def raise_failure(self) -> None:
        """What one of the program's functions raised, or why a partition cannot be read."""
        self.listeners.raise_raised()
        for failure in self._failures.values():
            raise failure from None
        self._reading.raise_failure()

    @property
    def assignment(self) -> frozenset[StreamPartition]:
        """What is read, or about to be read."""
        return frozenset(of for of, held in self._held.items() if not held.is_leaving)

    @property
    def owned(self) -> frozenset[StreamPartition]:
        """With what is being given up: of these it commits."""
        return frozenset(self._held)

    def find(self, name: Name) -> StreamPartition | None:
        """The partition of the newest life of the stream."""
        return max((of for of in self._held if (of.stream, of.partition) == name), default=None)

    def found(self, name: Name) -> StreamPartition:
        """Raises BadRequest for a partition that this member does not have."""
        of = self.find(name)
        if of is None:
            raise bad(f"{name[0]}/{name[1]} is not assigned to this member, which has {_listed(self.assignment)}")
        return of

    async def given_marks(self, offsets: Mapping[Name, int]) -> dict[StreamPartition, Mark]:
        """Raises BadRequest, NotAssigned."""
        marks = {}
        for name, offset in offsets.items():
            of = self.find(name)
            if of is None:
                raise NotAssigned(
                    Code.NOT_ASSIGNED,
                    f"{name[0]}/{name[1]} is not assigned to this member, so it cannot commit an offset of it",
                )
            incarnation = self._reading.partition_incarnation(of)
            if incarnation is None:
                incarnation = (await self._metadata.get(of.stream)).partitions[of.partition].incarnation
            marks[of] = Mark(offset, incarnation)
        return marks

    async def seek(self, of: StreamPartition, position: Start) -> None:
        held = self._held[of]
        if self._reading.is_read(of):
            try:
                await self._reading.seek(of, position)
            except Closed:  # with the last partition of a stream, its reading is closed
                if self._held.get(of) is held:
                    raise
                raise bad(f"{of} is not read any more; it was taken away while seek waited") from None
            self.claims.sought(of)
            return
        held.position = start_positions(position, (of.partition,), (of.partition,))[of.partition]
        has_failed = self._failures.pop(of, None) is not None
        beginning, held.beginning = held.beginning, None
        if beginning is not None:
            beginning.cancel()
            await asyncio.wait((beginning,))
        if (has_failed or beginning is not None) and self._held.get(of) is held and held.beginning is None:
            held.beginning = self._spawn(self._begin_reading(of, held, None))

    def marks(
        self, partitions: Iterable[StreamPartition] | None = None, *, again: bool = False
    ) -> dict[StreamPartition, Mark]:
        """What is finished and not committed, of these (None: of all). `again`: also what is committed already."""
        wanted = self._held.keys() if partitions is None else {*partitions} & self._held.keys()
        finished = self._reading.finished
        return {
            of: Mark(finished[of], self._reading.partition_incarnation(of) or 0)
            for of in wanted
            if of in finished and not self._reading.is_gone(of) and (again or self._commits.is_new(of, finished[of]))
        }

    # ---- the end

    async def give_up_all(self, timeout: float) -> None:
        """What is finished is committed, if that is to be done."""
        for of in tuple(self._held):
            self._leave(of)
        self._busy.clear()
        async with self.listeners.one_at_a_time:
            told = {of for of, held in self._held.items() if held.is_told}
            for of in told:
                self._held[of].is_told = False
            await self.listeners.revoked(told)
        if self._auto_commit:
            await self._commits.try_to_commit(self.marks(), timeout)

    async def aclose(self) -> None:
        self._held.clear()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._reading.aclose()

    # ----

    async def _begin(self, partitions: Partitions) -> None:
        async with self.listeners.one_at_a_time:
            present = self._present(partitions)
            for of in present:
                self._held[of].is_told = True
            await self.listeners.assigned(present)
        committed: dict[StreamPartition, CommittedOffset] = {}
        while present := self._present(partitions):
            try:
                found = await self._commits.fetch(present, _OFFSETS_TIMEOUT)
            except TidelogError as error:
                if not error.retriable:
                    for of in self._present(partitions):
                        self._fail(of, error)
                    return
                _log.warning("committed offsets are not known at present: %s", error.message)
                await asyncio.sleep(_AGAIN)
                continue
            committed = {StreamPartition(o.stream, o.incarnation, o.partition): o for o in found if o.offset >= 0}
            break
        for of in sorted(self._present(partitions)):
            known = committed.get(of)
            self._commits.forget((of,))
            if known is not None:
                self._commits.know(of, known.offset)
            held = self._held[of]
            if held.beginning is None:
                held.beginning = self._spawn(self._begin_reading(of, held, known))

    async def _begin_reading(self, of: StreamPartition, held: _Held, committed: CommittedOffset | None) -> None:
        """`committed` None: nothing is."""
        told, sought, has_gone = "", held.position, False
        while True:
            try:
                stream = await self._life(of, anew=has_gone)
                if stream is not None:
                    if committed is not None and not _is_of_life(committed, stream):
                        self._commits.forget((of,))
                        committed = None
                    start = sought or (None if committed is None else AtOffset(committed.offset))
                    await self._reading.add(
                        of, start or await _first_start(of, stream, self._start, self._commits), stream
                    )
                    break
                why = "the stream has another life"  # the coordinator is about to take the partition away
            except TidelogError as error:
                if not error.retriable and error.code not in GONE:
                    self._fail(of, error)
                    break
                why, has_gone = error.message, error.code in GONE
            if why != told:
                _log.warning("%s cannot be begun at present: %s", of, why)
                told = why
            await asyncio.sleep(_AGAIN)
        held.beginning = None
        if self._reading.is_read(of) and self._commits.is_new(of, self._reading.finished[of]):
            self.commit_soon.set()

    def _begin_anew(self, of: StreamPartition) -> None:
        held = self._held.get(of)
        if held is None or held.is_leaving:
            return
        _log.warning("%s was removed, and made anew by a repartition: it is begun anew", of)
        if self._drop(of):
            self._spawn(self._tell_lost({of}))
        self.assign(frozenset((of,)))

    async def _life(self, of: StreamPartition, *, anew: bool) -> StreamMetadata | None:
        """The stream, if it is in that life, and has the partition. `anew`: what was last seen may be too old."""
        stream = await (self._metadata.refresh(of.stream) if anew else self._metadata.get(of.stream))
        if stream.incarnation != of.incarnation or of.partition not in stream.partitions:
            stream = await self._metadata.refresh(of.stream)
        return stream if stream.incarnation == of.incarnation and of.partition in stream.partitions else None

    async def _give_up(self, partitions: Partitions) -> None:
        async with self.listeners.one_at_a_time:
            present = self._leaving(partitions)
            told = {of for of in present if self._held[of].is_told}
            for of in told:
                self._held[of].is_told = False  # so that it is not told as lost, too
            await self.listeners.revoked(told)
        if self._auto_commit:
            await self._commits.try_to_commit(self.marks(self._leaving(partitions)), self._commit_timeout)
        given = frozenset(self._leaving(partitions))
        for of in given:
            self._drop(of)
        await self._reading.close_unread()
        self._session.given_up(given)

    def _present(self, partitions: Iterable[StreamPartition]) -> set[StreamPartition]:
        return {of for of in partitions if of in self._held and not self._held[of].is_leaving}

    def _leaving(self, partitions: Iterable[StreamPartition]) -> set[StreamPartition]:
        return {of for of in partitions if of in self._held and self._held[of].is_leaving}

    def _leave_now(self, partitions: Partitions) -> None:
        for of in partitions:
            self._leave(of)
        self._spawn(self._give_up(partitions))

    def _leave(self, of: StreamPartition) -> None:
        """Nothing more of it is handed out."""
        held = self._held[of]
        held.is_leaving = True
        if held.beginning is not None:
            held.beginning.cancel()
        self._failures.pop(of, None)
        self._reading.cease(of)

    def _drop(self, of: StreamPartition) -> bool:
        """Whether the program has been told that it has it."""
        held = self._held.pop(of, None)
        self._busy.discard(of)
        self.claims.goes(of, self._commits.known(of))
        self._commits.forget((of,))
        if held is not None and held.beginning is not None:
            held.beginning.cancel()
        self._failures.pop(of, None)
        self._reading.remove(of)
        return held is not None and held.is_told

    async def _tell_lost(self, partitions: set[StreamPartition]) -> None:
        async with self.listeners.one_at_a_time:
            await self.listeners.lost(partitions)

    def _fail(self, of: StreamPartition, error: TidelogError) -> None:
        self._failures[of] = error
        self._reading.progress.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.listeners.raise_later(error)


def _is_of_life(committed: CommittedOffset, stream: StreamMetadata) -> bool:
    """Not of a partition of that number that was removed since, which the coordinator may not know yet."""
    return committed.partition_incarnation in (0, stream.partitions[committed.partition].incarnation)


async def _first_start(of: StreamPartition, stream: StreamMetadata, start: Anchor, commits: GroupCommits) -> Position:
    """Where a partition begins of which nothing is committed: at `start`, unless a repartition has made it after the
    group had begun. Then its first record is newer than the group's start. Raises as `GroupCommits.fetch`."""
    order = stream.key_order
    if start is Anchor.EARLIEST or not order.has_begun_later(of.partition):
        return start
    origins = {StreamPartition(of.stream, of.incarnation, number) for number in order.origins(of.partition)}
    found = await commits.fetch_some(origins, _OFFSETS_TIMEOUT) if origins else []
    if any(one.offset >= 0 for one in found):
        return Anchor.EARLIEST
    if len(found) < len(origins):
        raise NoServer(Code.UNAVAILABLE, "what is committed in the partitions that its keys come from is not known")
    return start


def _listed(partitions: Iterable[StreamPartition]) -> str:
    return ", ".join(map(str, sorted(partitions))) or "nothing"
