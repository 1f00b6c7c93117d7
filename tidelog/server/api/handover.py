"""Operations of the API on consumer groups and on transactions: the controller hands them over to the coordinators of
an internal stream."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict
from heapq import merge
from typing import Any, TypeVar

from metadata.runtime.metadata_service import MetadataService
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import check_group_name, coordinator_partition
from wire.internal_records.transaction_records import check_transactional_id
from wire.internal_records.transaction_records import coordinator_partition as transactions_partition
from wire.internal_streams import GROUPS, TRANSACTIONS, InternalStream, is_internal
from wire.messaging.transport import NO_RESPONDERS, PeerTransport
from wire.operations import api_operations as op
from wire.operations import json_codec, transaction_operations
from wire.operations.operation import Operation, handles
from wire.subjects import Subjects
from wire.turns import Steps, in_turns, pieces
from wire.types import StreamName

TIMEOUT_S = 2.0
"""Seconds for one coordinator to answer."""

_Answer = TypeVar("_Answer")


class HandingOver:
    def __init__(
        self, stream: InternalStream, metadata: MetadataService, peers: PeerTransport, subjects: Subjects
    ) -> None:
        self._stream = stream
        self._metadata = metadata
        self._peers = peers
        self._subjects = subjects

    @property
    def has_stream(self) -> bool:
        """Returns whether the internal stream has been made."""
        known = self._metadata.state.streams.get(StreamName(self._stream.name))
        return known is not None and is_internal(known.name, known.subject, self._subjects)

    async def make_stream(self) -> None:
        """Makes the internal stream if it is missing. Raises TidelogError."""
        await self._metadata.admin.create_internal(self._stream)

    async def ask(self, operation: Operation[..., Any, _Answer], request: Any, partition: int) -> _Answer:
        """Returns the coordinator's answer. Raises TidelogError: its own, or UNAVAILABLE without an answer."""
        name = self._stream.name
        payload = json_codec.encode({"operation": operation.name, "request": asdict(request)})
        gone = TidelogError(
            Code.UNAVAILABLE,
            f"the coordinator of {name}/{partition} does not answer; see `tidelog stream describe {name}`",
        )
        try:
            subject = self._subjects.coordinate(StreamName(name), partition)
            answer = await self._peers.request(subject, payload, timeout=TIMEOUT_S)
        except TimeoutError:
            if operation.writes:
                raise TidelogError(Code.OUTCOME_UNKNOWN, f"{gone.message}; look whether it was carried out") from None
            raise gone from None
        if answer.status == NO_RESPONDERS:
            raise gone
        refusal = TidelogError.from_headers(answer.headers)
        if refusal is not None:
            raise refusal
        return await in_turns(operation.decoding_answer(answer.data))

    async def ask_each(self, operation: Operation[..., Any, _Answer], request: Any) -> tuple[list[_Answer], list[int]]:
        """Returns the answers of all coordinators, and the partitions whose coordinators did not answer."""
        asked = [self.ask(operation, request, partition) for partition in range(self._stream.partitions)]
        answers: list[_Answer] = []
        unanswered = []
        for partition, answer in enumerate(await asyncio.gather(*asked, return_exceptions=True)):
            if isinstance(answer, TidelogError):
                unanswered.append(partition)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                answers.append(answer)
        return answers, unanswered


_PIECE = 200
"""Groups that are merged before `Steps` yield."""


def _together(answers: Sequence[op.GroupList], unanswered: list[int]) -> Steps[op.GroupList]:
    """Merges the answers, each of which is in the order of names."""
    groups: list[op.GroupSummary] = []
    for piece in pieces(merge(*(answer["groups"] for answer in answers), key=lambda group: group["name"]), _PIECE):
        groups += piece
        yield len(piece)
    return {"groups": groups, "unanswered": unanswered}


class GroupRequests:
    def __init__(self, metadata: MetadataService, peers: PeerTransport, subjects: Subjects) -> None:
        self._coordinators = HandingOver(GROUPS, metadata, peers, subjects)

    @handles(op.GROUP_COORDINATOR)
    async def coordinator(self, request: op.GroupRef) -> op.GroupCoordinator:
        partition = coordinator_partition(check_group_name(request.group))
        await self._coordinators.make_stream()
        return {"partition": partition}

    @handles(op.GROUP_LIST)
    async def list_(self, request: op.Nothing) -> op.GroupList:
        if not self._coordinators.has_stream:
            return {"groups": [], "unanswered": []}
        answers, unanswered = await self._coordinators.ask_each(op.GROUP_LIST, request)
        return await in_turns(_together(answers, unanswered))

    @handles(op.GROUP_DESCRIBE)
    async def describe(self, request: op.GroupRef) -> op.GroupDescription:
        return await self._ask_of(op.GROUP_DESCRIBE, request, request.group)

    @handles(op.GROUP_RESET)
    async def reset(self, request: op.ResetGroupRequest) -> op.GroupDescription:
        check_group_name(request.group)
        await self._coordinators.make_stream()
        return await self._ask_of(op.GROUP_RESET, request, request.group)

    @handles(op.GROUP_DELETE)
    async def delete(self, request: op.GroupRef) -> op.Done:
        return await self._ask_of(op.GROUP_DELETE, request, request.group)

    async def _ask_of(self, operation: Operation[..., Any, _Answer], request: Any, group: str) -> _Answer:
        partition = coordinator_partition(check_group_name(group))
        if not self._coordinators.has_stream:
            raise TidelogError(
                Code.UNKNOWN_GROUP, f"there is no consumer group {group!r}: no group has been made in this cluster"
            )
        return await self._coordinators.ask(operation, request, partition)


class TransactionRequests:
    def __init__(self, metadata: MetadataService, peers: PeerTransport, subjects: Subjects) -> None:
        self._coordinators = HandingOver(TRANSACTIONS, metadata, peers, subjects)
        self._coordinators_of_groups = HandingOver(GROUPS, metadata, peers, subjects)

    @handles(transaction_operations.TRANSACTION_COORDINATOR)
    async def coordinator(
        self, request: transaction_operations.TransactionRef
    ) -> transaction_operations.TransactionCoordinator:
        """Makes the streams first: a transaction with a group whose stream is not made yet would never end."""
        partition = transactions_partition(check_transactional_id(request.transactional_id))
        await self._coordinators_of_groups.make_stream()
        await self._coordinators.make_stream()
        return {"partition": partition}

    @handles(transaction_operations.TRANSACTION_LIST)
    async def list_(
        self, request: transaction_operations.ListTransactionsRequest
    ) -> transaction_operations.TransactionList:
        if not self._coordinators.has_stream:
            return {"transactions": [], "left_out": 0, "unanswered": []}
        answers, unanswered = await self._coordinators.ask_each(transaction_operations.TRANSACTION_LIST, request)
        found = sorted(
            (each for answer in answers for each in answer["transactions"]), key=transaction_operations.place_in_list
        )
        left_out = sum(answer["left_out"] for answer in answers) + max(
            0, len(found) - transaction_operations.MAX_LISTED
        )
        return {
            "transactions": found[: transaction_operations.MAX_LISTED],
            "left_out": left_out,
            "unanswered": unanswered,
        }

    @handles(transaction_operations.TRANSACTION_DESCRIBE)
    async def describe(
        self, request: transaction_operations.TransactionRef
    ) -> transaction_operations.TransactionDescription:
        return await self._ask_of(transaction_operations.TRANSACTION_DESCRIBE, request)

    @handles(transaction_operations.TRANSACTION_ABORT)
    async def abort(
        self, request: transaction_operations.TransactionRef
    ) -> transaction_operations.TransactionDescription:
        return await self._ask_of(transaction_operations.TRANSACTION_ABORT, request)

    async def _ask_of(
        self, operation: Operation[..., Any, _Answer], request: transaction_operations.TransactionRef
    ) -> _Answer:
        partition = transactions_partition(check_transactional_id(request.transactional_id))
        if not self._coordinators.has_stream:
            raise TidelogError(
                Code.UNKNOWN_TRANSACTION,
                f"there is no transactional id {request.transactional_id!r}: no transaction has been made in this"
                " cluster",
            )
        return await self._coordinators.ask(operation, request, partition)
