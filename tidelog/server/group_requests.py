"""Operations of the API on consumer groups: the controller hands them over to the groups' coordinators."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import merge
from typing import Any, TypeVar

from metadata.runtime.service import MetadataService
from tidelog.server.handing_over import HandingOver
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import check_group_name, coordinator_partition
from wire.internal_streams import GROUPS
from wire.messaging.transport import PeerTransport
from wire.operations import api_operations as op
from wire.operations.operation import Operation, handles
from wire.subjects import Subjects
from wire.turns import Steps, in_turns, pieces

_Answer = TypeVar("_Answer")


_PIECE = 200
"""Groups that are sorted in before `Steps` yield."""


def _together(answers: Sequence[op.GroupList], unanswered: list[int]) -> Steps[op.GroupList]:
    """Each of them is in the order of names."""
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
