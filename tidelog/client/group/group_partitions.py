"""Reads, for a member of a group, partitions that come and go. `SubscriptionState` has the phases of each, and decides
that a partition was removed from its stream (`SubscriptionState.learn`).

    assigned   on_assigned; committed offsets are asked for; each partition is begun by itself, so that none waits for
               another that has no leader at the moment
    revoked    nothing more is handed out; at once, or at the program's next call if it has records of the partition
               in hand: on_revoked, a commit, and the session reports to the coordinator that it is given up
    lost       dropped at once, on_lost
    made anew  lost, and assigned again. The coordinator assigns numbers: it takes such a partition away, unless it saw
               neither its removal nor the time without it, as after a failover of the coordinator

No listener is called for a partition that goes before its on_assigned. There is one `StreamReading` for each
incarnation of a stream of which the member has partitions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Mapping
from random import random
from typing import Any

from tidelog.client.base.arguments import bad
from tidelog.client.base.exceptions import Closed, NoServer, NotAssigned
from tidelog.client.base.read_positions import Anchor, AtOffset, Position, Start, start_positions
from tidelog.client.base.serialization import Deserializers
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.cluster.lifetime import close_all
from tidelog.client.cluster.metadata_cache import MetadataCache, StreamMetadata
from tidelog.client.consumer.offset_lookup import OffsetLookup
from tidelog.client.consumer.stream_reading import StreamReading
from tidelog.client.consumer.subscription_state import AssignedPartition, AssignedStream, Phase, SubscriptionState
from tidelog.client.group.group_commits import COMMIT_TIMEOUT, GroupCommits, Mark
from tidelog.client.group.group_gate import GroupGate
from tidelog.client.group.group_session import GroupSession
from tidelog.client.group.membership import MemberSettings, Partitions
from tidelog.client.group.subscription import GroupConfig, GroupListeners, Name
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.messaging.transport import Transport
from wire.protobuf.groups_pb2 import CommittedOffset
from wire.retry import Retry
from wire.subjects import Subjects
from wire.types import StreamName

_log = logging.getLogger(__name__)

TAKEN_AWAY_SOON = (Code.UNKNOWN_STREAM, Code.WRONG_INCARNATION, Code.PARTITION_RETIRED)
"""Refusals of a partition that the coordinator is about to take away."""
_AGAIN = 0.5
"""Seconds until a partition that cannot be begun is tried again."""
_OFFSETS_TIMEOUT = 10.0
_Life = tuple[str, int]
"""A stream's name and incarnation."""


class GroupPartitions:
    """A `Holder`: reads the partitions of a member into `state`, and commits what is finished of those that go."""

    def __init__(
        self,
        transport: Transport,
        subjects: Subjects,
        metadata: MetadataCache,
        link: CoordinatorLink,
        lookup: OffsetLookup,
        settings: MemberSettings,
        config: GroupConfig[Any, Any],
        *,
        spread: int,
    ) -> None:
        """As those of `GroupConsumer`."""
        self.state = SubscriptionState(Deserializers(config.key_deserializer, config.value_deserializer).read)
        self.progress = asyncio.Event()
        """There may be records to hand out, or something to raise."""
        self.commit_soon = asyncio.Event()
        """A partition was begun of which nothing is committed, or others wait for what was finished."""
        self.session = GroupSession(transport, subjects, link, settings, holder=self, on_change=self.progress.set)
        self.commits = GroupCommits(link, self.session, settings.group, self.state, self.progress)
        self.gate: GroupGate | None = None
        """None: keys are not kept in order."""
        if config.order == "key":
            soon = self.commit_soon.set if config.auto_commit else None
            self.gate = GroupGate(settings.group, self.state, self.progress, self.commits, soon, lookup.log_starts)
        self._on_change: Callable[[], object] = _nothing if self.gate is None else self.gate.check
        self._transport = transport
        self._subjects = subjects
        self._metadata = metadata
        self._config = config
        self._spread = spread
        self._commit_timeout = min(COMMIT_TIMEOUT, settings.rebalance_timeout / 2)
        """Seconds for the commit of partitions that are given up."""
        self.listeners = GroupListeners(config, self.progress.set)
        self._readings: dict[_Life, StreamReading] = {}
        self._beginning: dict[AssignedPartition, asyncio.Task[None]] = {}
        """Tasks that begin partitions."""
        self._tasks: set[asyncio.Task[None]] = set()
        """With these, all tasks."""

    # ---- effects of the membership

    def assign(self, partitions: Partitions) -> None:
        self._spawn(self._begin([self.state.assign(of) for of in sorted(partitions)]))

    def revoke(self, partitions: Partitions) -> None:
        self._leave(self.state.revoke(partitions))

    def lose(self, partitions: Partitions) -> None:
        lost = [self.state.partitions[of] for of in partitions if of in self.state.partitions]
        self._drop(lost)
        announced = self._report_lost(lost)
        if announced:
            _log.warning("lost %s: others may read them now", _listed(announced))
        self._spawn(self._close_unread())

    # ---- calls of the program

    def app_calls(self) -> None:
        """It asks for records: all that was handed out before is finished."""
        revoked = self.state.finish()
        if revoked is not None:
            self._leave([revoked])

    def raise_failure(self) -> None:
        """Raises what one of the program's functions raised, or why a partition cannot be begun, or read on. One that
        the coordinator is about to take away is not read any more, which the log says."""
        self.listeners.raise_raised()
        for one, error in self.state.failures.items():
            is_begun = isinstance(one, AssignedStream) or one.phase is not Phase.BEGINNING
            if not (is_begun and isinstance(error, TidelogError) and error.code in TAKEN_AWAY_SOON):
                raise error from None
            if not one.is_reported:
                one.is_reported = True
                name = one.name if isinstance(one, AssignedStream) else one.of
                _log.warning("%s is read no more: %s", name, error.message)

    @property
    def assignment(self) -> frozenset[StreamPartition]:
        """The partitions that are read, or about to be."""
        return frozenset(of for of, assigned in self.state.partitions.items() if not assigned.is_leaving)

    def find(self, name: Name) -> AssignedPartition | None:
        """The partition of that name, of the newest incarnation of the stream; None: the member does not have it."""
        found = max((of for of in self.state.partitions if (of.stream, of.partition) == name), default=None)
        return None if found is None else self.state.partitions[found]

    def found(self, name: Name) -> AssignedPartition:
        """The same. Raises BadRequest for a partition that this member does not have."""
        assigned = self.find(name)
        if assigned is None:
            raise bad(f"{name[0]}/{name[1]} is not assigned to this member, which has {_listed(self.assignment)}")
        return assigned

    async def given_marks(self, offsets: Mapping[Name, int]) -> dict[StreamPartition, Mark]:
        """Raises BadRequest, NotAssigned."""
        marks = {}
        for name, offset in offsets.items():
            assigned = self.find(name)
            if assigned is None:
                raise NotAssigned(
                    Code.NOT_ASSIGNED,
                    f"{name[0]}/{name[1]} is not assigned to this member, so it cannot commit an offset of it",
                )
            of, incarnation = assigned.of, assigned.incarnation
            if not incarnation:
                incarnation = (await self._metadata.get(of.stream)).partitions[of.partition].incarnation
            marks[of] = Mark(offset, incarnation)
        return marks

    async def seek(self, assigned: AssignedPartition, position: Start) -> None:
        if assigned.is_read:
            try:
                await self._readings[_life_of(assigned)].seek(assigned, position)
            except Closed:  # with the last partition of a stream, its reading is closed
                if assigned.phase is not Phase.DROPPED:
                    raise
                raise bad(f"{assigned.of} is not read any more; it was taken away while seek waited") from None
            assigned.settled = assigned.position
            return
        number = assigned.number
        assigned.start = start_positions(position, (number,), (number,))[number]
        has_failed = self.state.failures.pop(assigned, None) is not None
        beginning = self._beginning.pop(assigned, None)
        if beginning is not None:
            beginning.cancel()
            await asyncio.wait((beginning,))
        is_due = (has_failed or beginning is not None) and assigned not in self._beginning
        if is_due and assigned.phase is Phase.BEGINNING:
            self._begin_soon(assigned, None)

    # ---- the end

    async def give_up_all(self, timeout: float) -> None:
        """Calls on_revoked, and commits what is finished, if commits are automatic."""
        leaving = [*self.state.partitions.values()]
        for assigned in leaving:
            self._cease(assigned)
        await self._announce_revoked(leaving)
        if self._config.auto_commit:
            await self.commits.try_to_commit(self.commits.marks(), timeout)

    async def aclose(self) -> None:
        for assigned in tuple(self.state.partitions.values()):
            self.state.drop(assigned)
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._close([*self._readings])

    # ----

    async def _begin(self, partitions: list[AssignedPartition]) -> None:
        async with self.listeners.one_at_a_time:
            present = _present(partitions)
            for assigned in present:
                assigned.is_announced = True
            await self.listeners.assigned(assigned.of for assigned in present)
        committed: dict[StreamPartition, CommittedOffset] = {}
        retry = Retry(_AGAIN, chance=random)
        while present := _present(partitions):
            try:
                found = await self.commits.fetch([assigned.of for assigned in present], _OFFSETS_TIMEOUT)
            except TidelogError as error:
                if not error.retriable:
                    for assigned in _present(partitions):
                        self._fail(assigned, error)
                    return
                _log.warning("committed offsets are not known at present: %s", error.message)
                await asyncio.sleep(retry.failed())
                continue
            committed = {StreamPartition(o.stream, o.incarnation, o.partition): o for o in found if o.offset >= 0}
            break
        for assigned in _present(partitions):
            known = committed.get(assigned.of)
            assigned.committed = None if known is None else known.offset
            if assigned not in self._beginning:
                self._begin_soon(assigned, known)

    def _begin_soon(self, assigned: AssignedPartition, committed: CommittedOffset | None) -> None:
        self._beginning[assigned] = self._spawn(self._begin_reading(assigned, committed))

    async def _begin_reading(self, assigned: AssignedPartition, committed: CommittedOffset | None) -> None:
        """`committed` None: nothing is."""
        of, reported, has_gone = assigned.of, "", False
        retry = Retry(_AGAIN, chance=random)
        while True:
            try:
                stream = await self._life(of, anew=has_gone)
                if stream is not None:
                    if committed is not None and not _is_of_life(committed, stream):
                        assigned.committed = committed = None
                    start = assigned.start or (None if committed is None else AtOffset(committed.offset))
                    start = start or await _first_start(of, stream, Anchor(self._config.start), self.commits)
                    await self._read(assigned, start, stream)
                    break
                why = "the stream has another life"  # the coordinator is about to take the partition away
            except TidelogError as error:
                if not error.retriable and error.code not in TAKEN_AWAY_SOON:
                    self._fail(assigned, error)
                    break
                why, has_gone = error.message, error.code in TAKEN_AWAY_SOON
            if why != reported:
                _log.warning("%s cannot be begun at present: %s", of, why)
                reported = why
            await asyncio.sleep(retry.failed())
        self._beginning.pop(assigned, None)
        if assigned.is_read and assigned.finished != assigned.committed:
            self.commit_soon.set()

    async def _read(self, assigned: AssignedPartition, start: Position, stream: StreamMetadata) -> None:
        """Returns once the partition is read. Raises as `StreamReading.add`; then it stays until it is dropped."""
        reading = self._readings.get(_life_of(assigned))
        if reading is None:
            reading = self._readings[_life_of(assigned)] = StreamReading(
                self._transport,
                self._subjects,
                self._metadata,
                StreamName(assigned.of.stream),
                self.state,
                self._config,
                spread=self._spread,
                progress=self.progress,
            )
            reading.stream.is_shared = True
            reading.on_layout = self._on_change
            reading.on_made_anew = self._begin_anew
        assigned.stream, assigned.incarnation = reading.stream, stream.partitions[assigned.number].incarnation
        self._share()
        await reading.add(assigned, start, stream)
        self._on_change()

    def _begin_anew(self, assigned: AssignedPartition) -> None:
        if assigned.is_leaving:
            return
        _log.warning("%s was removed, and made anew by a repartition: it is begun anew", assigned.of)
        self._drop([assigned])
        self._report_lost([assigned])
        self.assign(frozenset((assigned.of,)))

    async def _life(self, of: StreamPartition, *, anew: bool) -> StreamMetadata | None:
        """The stream, if it is of that incarnation, and has the partition. `anew`: cached metadata may be too old."""
        stream = await (self._metadata.refresh(of.stream) if anew else self._metadata.get(of.stream))
        if stream.incarnation != of.incarnation or of.partition not in stream.partitions:
            stream = await self._metadata.refresh(of.stream)
        return stream if stream.incarnation == of.incarnation and of.partition in stream.partitions else None

    async def _give_up(self, partitions: list[AssignedPartition]) -> None:
        await self._announce_revoked(partitions)
        if self._config.auto_commit:
            await self.commits.try_to_commit(self.commits.marks(_leaving(partitions)), self._commit_timeout)
        given = _leaving(partitions)
        self._drop(given)
        await self._close_unread()
        self.session.given_up(frozenset(assigned.of for assigned in given))

    async def _announce_revoked(self, partitions: list[AssignedPartition]) -> None:
        async with self.listeners.one_at_a_time:
            announced = [assigned for assigned in _leaving(partitions) if assigned.is_announced]
            for assigned in announced:
                assigned.is_announced = False  # so that on_lost is not called for it, too
            await self.listeners.revoked(assigned.of for assigned in announced)

    def _leave(self, partitions: list[AssignedPartition]) -> None:
        for assigned in partitions:
            self._cease(assigned)
        if partitions:
            self._spawn(self._give_up(partitions))

    def _cease(self, assigned: AssignedPartition) -> None:
        """Begins or fetches it no more, and hands out nothing more of it."""
        self._end(assigned)
        self.state.leave(assigned)

    def _drop(self, partitions: Iterable[AssignedPartition]) -> None:
        for assigned in partitions:
            self._end(assigned)
            self._beginning.pop(assigned, None)
            self.state.drop(assigned)
        self._share()
        self._on_change()

    def _end(self, assigned: AssignedPartition) -> None:
        if assigned in self._beginning:
            self._beginning[assigned].cancel()
        if (reading := self._readings.get(_life_of(assigned))) is not None:
            reading.end(assigned)

    def _share(self) -> None:
        """The partitions that are read, or are about to be, share the bytes that may be fetched ahead."""
        count = sum(assigned.stream is not None for assigned in self.state.partitions.values())
        for reading in self._readings.values():
            reading.share_prefetch(max(count, 1))

    async def _close_unread(self) -> None:
        """Closes readings of which no partition is left."""
        read = {assigned.stream for assigned in self.state.partitions.values()}
        await self._close([life for life, reading in self._readings.items() if reading.stream not in read])

    async def _close(self, lives: list[_Life]) -> None:
        closing = [self._readings.pop(life) for life in lives]
        for reading in closing:
            self.state.failures.pop(reading.stream, None)
        await close_all(reading.aclose for reading in closing)

    def _report_lost(self, partitions: Iterable[AssignedPartition]) -> set[StreamPartition]:
        """Has on_lost called of those for which on_assigned was called, and returns these."""
        announced = {assigned.of for assigned in partitions if assigned.is_announced}
        if announced:
            self._spawn(self._call_lost(announced))
        return announced

    async def _call_lost(self, partitions: set[StreamPartition]) -> None:
        async with self.listeners.one_at_a_time:
            await self.listeners.lost(partitions)

    def _fail(self, assigned: AssignedPartition, error: TidelogError) -> None:
        self.state.fail(assigned, error)
        self.progress.set()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.listeners.raise_later(error)


def _nothing() -> None:
    """No gate has to act on it."""


def _life_of(assigned: AssignedPartition) -> _Life:
    return assigned.of.stream, assigned.of.incarnation


def _present(partitions: Iterable[AssignedPartition]) -> list[AssignedPartition]:
    return [assigned for assigned in partitions if assigned.phase in (Phase.BEGINNING, Phase.READING)]


def _leaving(partitions: Iterable[AssignedPartition]) -> list[AssignedPartition]:
    return [assigned for assigned in partitions if assigned.phase is Phase.LEAVING]


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
