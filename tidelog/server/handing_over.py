"""The controller hands operations of the API over to the coordinators of an internal stream."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any, TypeVar

from metadata.runtime.service import MetadataService
from wire.errors import Code, TidelogError
from wire.internal_streams import InternalStream, is_internal
from wire.messaging.transport import NO_RESPONDERS, PeerTransport
from wire.operations import json_codec
from wire.operations.operation import Operation
from wire.subjects import Subjects
from wire.turns import in_turns
from wire.types import StreamName

TIMEOUT_S = 2.0
"""For one coordinator to answer."""

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
        """The internal stream has been made."""
        known = self._metadata.state.streams.get(StreamName(self._stream.name))
        return known is not None and is_internal(known.name, known.subject, self._subjects)

    async def make_stream(self) -> None:
        """Unless it is there. Raises TidelogError."""
        await self._metadata.admin.create_internal(self._stream)

    async def ask(self, operation: Operation[..., Any, _Answer], request: Any, partition: int) -> _Answer:
        """Raises TidelogError: the coordinator's, or UNAVAILABLE where it does not answer."""
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
        """The answers of all coordinators, and the partitions whose coordinators did not answer."""
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
