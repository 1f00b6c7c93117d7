"""The controller's answers to operators who change the number of partitions of a stream: handlers of the operations in
`wire.operations.partition_operations`, beside those of `metadata.runtime.admin`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from metadata.describe import find_stream
from metadata.describe_repartition import plan_form, status_form
from metadata.model import Outcome, Stream
from metadata.runtime.context import MetadataContext
from wire.operations.operation import handles
from wire.operations.partition_operations import (
    STREAM_REPARTITION,
    STREAM_REPARTITION_CANCEL,
    STREAM_REPARTITION_STATUS,
    Repartitioned,
    RepartitionRef,
    RepartitionRequest,
    RepartitionStatus,
)
from wire.protobuf import metadata_pb2 as pb
from wire.turns import in_turns

CUTOVER_WAIT_S = 3.0
"""The cutover is waited for so long; it comes either way."""


class RepartitionAdmin:
    """`commit` raises TidelogError when a command's outcome cannot be had; `voters`: of the metadata group;
    `check_new_partitions(stream, partitions)` raises TidelogError where a stream cannot have so many."""

    def __init__(
        self,
        context: MetadataContext,
        *,
        commit: Callable[[pb.Command], Awaitable[Outcome]],
        voters: Callable[[], int],
        check_new_partitions: Callable[[Stream, int], Awaitable[None]],
    ) -> None:
        self._context = context
        self._commit = commit
        self._voters = voters
        self._check_new_partitions = check_new_partitions

    @handles(STREAM_REPARTITION)
    async def repartition(self, request: RepartitionRequest) -> Repartitioned:
        """Answers when new records go to the new layout, or after CUTOVER_WAIT_S."""
        requests, voters = self._context.core.requests, self._voters()
        command = await in_turns(requests.prepare_repartition(request.name, request.partitions, voters=voters))
        stream = find_stream(self._context.state, request.name)
        plan = plan_form(stream, request.partitions)
        if request.partitions > stream.partition_count:
            await self._check_new_partitions(stream, request.partitions)
        if not request.dry_run:
            outcome = await self._commit(command)
            outcome.raise_for_refusal()
            await self._cut_over(request.name, outcome.value)
        return {"plan": plan, "status": self.status(request.name)}

    async def _cut_over(self, name: str, version: int) -> None:
        deadline = self._context.monotonic() + CUTOVER_WAIT_S
        while self._context.monotonic() < deadline:
            stream = find_stream(self._context.state, name)
            if stream.partitioning_version >= version or stream.repartition is None:
                return
            await asyncio.sleep(0.01)

    @handles(STREAM_REPARTITION_STATUS)
    async def repartition_status(self, request: RepartitionRef) -> RepartitionStatus:
        return self.status(request.name)

    @handles(STREAM_REPARTITION_CANCEL)
    async def cancel_repartition(self, request: RepartitionRef) -> RepartitionStatus:
        (await self._commit(self._context.core.requests.cancel_repartition(request.name))).raise_for_refusal()
        return self.status(request.name)

    def status(self, name: str) -> RepartitionStatus:
        """Raises TidelogError(UNKNOWN_STREAM)."""
        stream = find_stream(self._context.state, name)
        return status_form(stream, self._context.core.repartitioning, self._context.monotonic())
