"""Operations of the API on consumer groups: the controller hands them over to the groups' coordinators."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, TypeVar

from metadata.runtime.service import MetadataService
from wire import json_codec
from wire import operations as op
from wire.errors import Code, TidelogError
from wire.groups import check_group_name, coordinator_partition
from wire.internal_streams import GROUPS, is_internal
from wire.operation import Operation, handles
from wire.peers import PeerTransport
from wire.subjects import Subjects
from wire.transport import NO_RESPONDERS
from wire.types import StreamName

TIMEOUT_S = 2.0
"""For one coordinator to answer."""

_Answer = TypeVar("_Answer")


class GroupRequests:
    def __init__(self, metadata: MetadataService, peers: PeerTransport, subjects: Subjects) -> None:
        self._metadata = metadata
        self._peers = peers
        self._subjects = subjects

    @handles(op.GROUP_COORDINATOR)
    async def coordinator(self, request: op.GroupRef) -> op.GroupCoordinator:
        partition = coordinator_partition(check_group_name(request.group))
        await self._metadata.admin.create_internal(GROUPS)
        return {"partition": partition}

    @handles(op.GROUP_LIST)
    async def list_(self, request: op.Nothing) -> op.GroupList:
        if not self._has_stream:
            return {"groups": [], "unanswered": []}
        asked = [self._ask(op.GROUP_LIST, request, partition) for partition in range(GROUPS.partitions)]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        groups: list[op.GroupSummary] = []
        unanswered = []
        for partition, answer in enumerate(answers):
            if isinstance(answer, TidelogError):
                unanswered.append(partition)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                groups += answer["groups"]
        return {"groups": sorted(groups, key=lambda group: group["name"]), "unanswered": unanswered}

    @handles(op.GROUP_DESCRIBE)
    async def describe(self, request: op.GroupRef) -> op.GroupDescription:
        return await self._ask_of(op.GROUP_DESCRIBE, request, request.group)

    @handles(op.GROUP_RESET)
    async def reset(self, request: op.ResetGroupRequest) -> op.GroupDescription:
        check_group_name(request.group)
        await self._metadata.admin.create_internal(GROUPS)
        return await self._ask_of(op.GROUP_RESET, request, request.group)

    @handles(op.GROUP_DELETE)
    async def delete(self, request: op.GroupRef) -> op.Done:
        return await self._ask_of(op.GROUP_DELETE, request, request.group)

    async def _ask_of(self, operation: Operation[..., Any, _Answer], request: Any, group: str) -> _Answer:
        partition = coordinator_partition(check_group_name(group))
        if not self._has_stream:
            raise TidelogError(
                Code.UNKNOWN_GROUP, f"there is no consumer group {group!r}: no group has been made in this cluster"
            )
        return await self._ask(operation, request, partition)

    async def _ask(self, operation: Operation[..., Any, _Answer], request: Any, partition: int) -> _Answer:
        """Raises TidelogError: the coordinator's, or UNAVAILABLE where it does not answer."""
        subject = self._subjects.coordinate(StreamName(GROUPS.name), partition)
        payload = json_codec.encode({"operation": operation.name, "request": asdict(request)})
        gone = TidelogError(
            Code.UNAVAILABLE,
            f"the coordinator of {GROUPS.name}/{partition} does not answer; see `tidelog stream describe"
            f" {GROUPS.name}`",
        )
        try:
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
        return operation.decode_answer(answer.data, None)

    @property
    def _has_stream(self) -> bool:
        known = self._metadata.state.streams.get(StreamName(GROUPS.name))
        return known is not None and is_internal(known.name, known.subject, self._subjects)
