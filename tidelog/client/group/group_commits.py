"""Commits of a member of a group: one at a time, and numbered.

A commit without an answer is sent again, and NATS may carry what was sent first later than the commits that follow. The
coordinator refuses that by its number.

A transaction with results of a partition's records must have its offset, too. So a partition that goes after records of
it were handed out, and before their offset was sent as a part of a transaction, is remembered: until the program goes
back to what is committed, a transaction gets no offsets. The same partition may have come back meanwhile, and another
member may have processed its records. Where offsets are committed without a transaction, the next commit of all that
was handed out names the partitions that have gone with records that were handed out and not committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from tidelog.client.base.exceptions import NoServer, NotAssigned
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.consumer.subscription_state import AssignedPartition, Phase, SubscriptionState
from tidelog.client.group.group_session import GroupSession
from tidelog.client.group.subscription import Name
from tidelog.client.producer.batches import ProducerSession
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import COMMIT, MAX_COMMITTED, OFFSETS, StreamPartition, to_stream_partitions
from wire.protobuf.groups_pb2 import CommitRequest, CommitResponse, CommittedOffset, OffsetsRequest, OffsetsResponse
from wire.security.transaction_proofs import add_proof

_log = logging.getLogger(__name__)

_MOST_ASKED_SINGLY = 64
"""Partitions that are asked for one by one, where the coordinator cannot answer for all of them together."""
COMMIT_TIMEOUT = 30.0
"""Seconds that a commit may take, with all its repetitions."""


class Mark(NamedTuple):
    """An offset to commit."""

    offset: int
    partition_incarnation: int


Claim: TypeAlias = Mapping[StreamPartition, AssignedPartition]
"""The partitions that a member has at some moment. One that goes and comes back is another record."""


class TransactionPart(NamedTuple):
    """The transaction that a commit of offsets is a part of."""

    session: ProducerSession
    ticket: bytes
    """For the group."""
    numbers: Iterator[int]
    """Each commit of the producer takes the next one, whichever consumer it is of."""


class GroupCommits:
    """Commits offsets of the partitions of `state`, and sets `progress` then: others may have waited for that."""

    def __init__(
        self,
        link: CoordinatorLink,
        session: GroupSession,
        group: str,
        state: SubscriptionState,
        progress: asyncio.Event,
    ) -> None:
        self._link = link
        self._session = session
        self._group = group
        self._one_at_a_time = asyncio.Lock()
        self._number = 0
        """The number of the newest commit."""
        self._state = state
        self._progress = progress

    # ---- offsets to commit

    def marks(
        self, partitions: Iterable[AssignedPartition] | None = None, *, again: bool = False
    ) -> dict[StreamPartition, Mark]:
        """The offsets that are finished and not committed, of these (None: of all) partitions. `again`: also those that
        are committed already."""
        wanted = self._state.partitions.values() if partitions is None else partitions
        return {
            assigned.of: Mark(assigned.finished, assigned.incarnation)
            for assigned in wanted
            if assigned.is_read and not assigned.is_removed and assigned.finished is not None
            if again or assigned.finished != assigned.committed
        }

    def claim(self) -> Claim:
        """The partitions that the member has at present."""
        return self._state.partitions.copy()

    def check_claims(self, partitions: Collection[Name] | None) -> None:
        """Raises NotAssigned where one of `partitions` (None: any) has gone with records whose offset was not sent as a
        part of a transaction."""
        gone = {of for of in self._state.unsettled if partitions is None or (of.stream, of.partition) in partitions}
        if gone:
            raise _taken_away(gone)

    def settle(self, marks: Mapping[StreamPartition, Mark], claim: Claim) -> None:
        """The group's coordinator has these offsets as a part of a transaction; they were taken in `claim`. Raises
        NotAssigned where a partition has gone since: another member may have been ahead of them."""
        gone = {of for of in marks if of not in claim or claim[of].phase is Phase.DROPPED}
        if gone:
            raise _taken_away(gone)
        for of, mark in marks.items():
            claim[of].settled = mark.offset

    def check_committed(self) -> None:
        """Raises NotAssigned, once, where partitions have gone with records that were not committed."""
        gone, self._state.uncommitted = self._state.uncommitted, set()
        if gone:
            listed = ", ".join(map(str, sorted(gone)))
            raise NotAssigned(
                Code.NOT_ASSIGNED,
                f"{listed} went to others before what was handed out was committed, so that it is read again; what this"
                " member has is committed. Commit in on_revoked, or give a longer max_poll_interval",
            )

    # ---- requests

    async def fetch(self, partitions: Collection[StreamPartition], timeout: float) -> list[CommittedOffset]:
        """The committed offsets, -1 where there is none. Raises typed errors."""
        request = OffsetsRequest(
            group=self._group,
            partitions=to_stream_partitions(partitions),
            cluster_id=await self._link.cluster_id(),
        )
        answer = await self._link.ask(OFFSETS, self._group, request, OffsetsResponse, timeout=timeout)
        return [*answer.offsets]

    async def fetch_some(self, partitions: Collection[StreamPartition], timeout: float) -> list[CommittedOffset]:
        """As `fetch`, without those that the coordinator cannot answer for at present, as while a transaction commits
        there."""
        try:
            return await self.fetch(partitions, timeout)
        except TidelogError as error:
            if not error.retriable or len(partitions) == 1:
                raise
        one_by_one = (self.fetch((of,), timeout) for of in sorted(partitions)[:_MOST_ASKED_SINGLY])
        found = await asyncio.gather(*one_by_one, return_exceptions=True)
        return [offset for answer in found if not isinstance(answer, BaseException) for offset in answer]

    async def commit(
        self,
        marks: Mapping[StreamPartition, Mark],
        metadata: str = "",
        timeout: float = COMMIT_TIMEOUT,
        *,
        member_id: str | None = None,
        part: TransactionPart | None = None,
    ) -> None:
        """Returns when it is committed on the in-sync replicas. Raises NotAssigned, UnknownMember, NoServer, and
        the error that has ended the membership; of up to MAX_COMMITTED partitions, nothing or everything is committed
        then. `member_id`: of the member when the marks were taken; None: now. `part`: they are committed when its
        transaction is."""
        if not marks:
            return
        member_id = self._session.member_id if member_id is None else member_id
        limit = asyncio.timeout(timeout)
        try:
            async with limit, self._one_at_a_time:
                cluster_id = await self._link.cluster_id()
                for request in commit_requests(self._group, marks, metadata, part):
                    request.member, request.cluster_id = member_id, cluster_id
                    if part is None:
                        self._number += 1
                        request.number = self._number
                    await self._commit(request, timeout)
        except TimeoutError:
            if not limit.expired():
                raise
            raise NoServer(
                Code.UNAVAILABLE, f"a commit of group {self._group!r} was not answered within {timeout:g} s"
            ) from None
        if part is None:
            self._state.on_committed({of: mark.offset for of, mark in marks.items()})
            self._progress.set()

    async def try_to_commit(self, marks: Mapping[StreamPartition, Mark], timeout: float) -> None:
        """A failure is logged."""
        try:
            await self.commit(marks, timeout=timeout)
        except TidelogError as error:
            _log.warning("group %r: a commit failed, so that records may be read again: %s", self._group, error.message)

    async def _commit(self, request: CommitRequest, timeout: float) -> None:
        session = self._session
        while True:
            session.check_member(request.member)
            request.generation = session.generation
            try:
                await self._link.ask(COMMIT, self._group, request, CommitResponse, timeout=timeout)
            except TidelogError as error:
                if error.code in (Code.UNKNOWN_MEMBER, Code.FENCED_INSTANCE):
                    session.hurry()
                if error.code is not Code.STALE_GENERATION:
                    raise
                if session.generation == request.generation:
                    await session.answered()
            else:
                return


def _taken_away(partitions: Iterable[StreamPartition]) -> NotAssigned:
    listed = ", ".join(map(str, sorted(partitions)))
    return NotAssigned(
        Code.NOT_ASSIGNED,
        f"{listed} was taken away after records of it were handed out, and before their offsets were sent: another"
        " member may process them; abort the transaction, and call seek_to_committed()",
    )


def commit_requests(
    group: str, marks: Mapping[StreamPartition, Mark], metadata: str, part: TransactionPart | None = None
) -> Iterator[CommitRequest]:
    """As many as it takes."""
    offsets = [
        CommittedOffset(
            stream=of.stream,
            incarnation=of.incarnation,
            partition=of.partition,
            partition_incarnation=mark.partition_incarnation,
            offset=mark.offset,
            metadata=metadata,
        )
        for of, mark in sorted(marks.items())
    ]
    for first in range(0, len(offsets), MAX_COMMITTED):
        request = CommitRequest(group=group, offsets=offsets[first : first + MAX_COMMITTED])
        if part is not None:
            request.producer_id, request.producer_epoch = part.session.producer_id, part.session.producer_epoch
            request.ticket, request.number = part.ticket, next(part.numbers)
            add_proof(request, part.session.key)
        yield request
