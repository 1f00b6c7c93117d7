"""Commits of a member of a group: one at a time, and numbered.

One without an answer is sent again, and NATS may carry what was sent first later than the commits that follow. The
coordinator refuses that by its number.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from tidelog.client.base.exceptions import NoServer
from tidelog.client.cluster.coordinator_link import CoordinatorLink
from tidelog.client.group.group_session import GroupSession
from tidelog.client.producer.batches import ProducerSession
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import COMMIT, MAX_COMMITTED, OFFSETS, StreamPartition, to_stream_partitions
from wire.protobuf.groups_pb2 import CommitRequest, CommitResponse, CommittedOffset, OffsetsRequest, OffsetsResponse
from wire.security.transaction_proofs import add_proof

_log = logging.getLogger(__name__)

_MOST_ASKED_SINGLY = 64
"""Partitions of which some are not told, so that each is asked for by itself."""
COMMIT_TIMEOUT = 30.0
"""Seconds that a commit may take, with all its repetitions."""


class Mark(NamedTuple):
    """What is to be committed of a partition."""

    offset: int
    partition_incarnation: int


class TransactionPart(NamedTuple):
    """What makes a commit of offsets a part of a transaction."""

    session: ProducerSession
    ticket: bytes
    """For the group."""
    numbers: Iterator[int]
    """Each commit of the producer takes the next one, whichever consumer it is of."""


class GroupCommits:
    def __init__(self, link: CoordinatorLink, session: GroupSession, group: str) -> None:
        self._link = link
        self._session = session
        self._group = group
        self._one_at_a_time = asyncio.Lock()
        self._number = 0
        """The number of the newest commit."""
        self._committed: dict[StreamPartition, int] = {}
        """Offsets that are committed as far as this member knows, of the partitions that it has."""
        self.on_committed: Callable[[Iterable[StreamPartition]], object] | None = None
        """Called after a commit that is of no transaction."""

    def know(self, of: StreamPartition, offset: int) -> None:
        """It is committed."""
        self._committed[of] = offset

    def forget(self, partitions: Iterable[StreamPartition]) -> None:
        """They are not this member's any more."""
        for of in partitions:
            self._committed.pop(of, None)

    def known(self, of: StreamPartition) -> int | None:
        """What is committed, as far as this member knows."""
        return self._committed.get(of)

    def is_new(self, of: StreamPartition, offset: int) -> bool:
        return self._committed.get(of) != offset

    async def fetch(self, partitions: Collection[StreamPartition], timeout: float) -> list[CommittedOffset]:
        """What is committed, -1 for nothing. Raises typed errors."""
        request = OffsetsRequest(
            group=self._group,
            partitions=to_stream_partitions(partitions),
            cluster_id=await self._link.cluster_id(),
        )
        answer = await self._link.ask(OFFSETS, self._group, request, OffsetsResponse, timeout=timeout)
        return [*answer.offsets]

    async def fetch_some(self, partitions: Collection[StreamPartition], timeout: float) -> list[CommittedOffset]:
        """As `fetch`, without those of which it cannot be told at present, as while a transaction commits there."""
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
        life: str | None = None,
        part: TransactionPart | None = None,
    ) -> None:
        """Returns when it is committed on the in-sync replicas. Raises NotAssigned, UnknownMember, NoServer, and what
        has ended the membership; of up to MAX_COMMITTED partitions, nothing or everything is committed then. `life`:
        id of the member that the marks are of; None: of this one now. `part`: they are committed when its transaction
        is."""
        if not marks:
            return
        life = self._session.member_id if life is None else life
        limit = asyncio.timeout(timeout)
        try:
            async with limit, self._one_at_a_time:
                cluster_id = await self._link.cluster_id()
                for request in commit_requests(self._group, marks, metadata, part):
                    request.member, request.cluster_id = life, cluster_id
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
            for of, mark in marks.items():
                self._committed[of] = mark.offset
            if self.on_committed is not None:
                self.on_committed(marks)

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
