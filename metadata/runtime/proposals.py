"""Commands for the metadata group.

commit   a command of this broker: sealed with its process's id and a number, and sent until its outcome is known;
         applied once, however often it is sent
attempt  a decision of the controller or a request of another broker: sent once; its sender makes it anew
"""

from __future__ import annotations

import asyncio
from random import random

from metadata.cluster.model import Outcome
from metadata.raft.types import RaftError, RaftOutcomeUnknown, RaftUnavailable
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.metadata_ports import RaftPort
from wire.errors import Code, TidelogError
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry

MAX_PROPOSALS = 256
"""Limit of attempts on their way at once; one more is not sent."""
ATTEMPT_TIMEOUT_S = 1.0
"""A committed command without an outcome by then is sent again."""
RETRY_PAUSE_S = 0.01


class Proposals:
    def __init__(self, context: MetadataContext, raft: RaftPort) -> None:
        self._context = context
        self._raft = raft
        self._sequence = 0
        self._attempts = 0

    async def commit(self, command: pb.Command) -> Outcome:
        """Returns the command's outcome. Raises TidelogError: UNAVAILABLE (not applied), OUTCOME_UNKNOWN, BAD_REQUEST
        (too large)."""
        self._sequence += 1
        command.client = self._context.life_id
        command.sequence = self._sequence
        data = _encode(command)
        monotonic, timeout = self._context.monotonic, self._context.settings.command_timeout_s
        retry = Retry(RETRY_PAUSE_S, chance=random, deadline=monotonic() + timeout)
        code, trouble = Code.UNAVAILABLE, "no time was left"
        while (left := retry.left_s(monotonic())) > 0:
            try:
                return await self._propose(data, min(left, ATTEMPT_TIMEOUT_S))
            except RaftUnavailable as error:
                trouble = str(error)
            except RaftOutcomeUnknown as error:
                code, trouble = Code.OUTCOME_UNKNOWN, str(error)
            except RaftError as error:
                raise TidelogError(Code.BAD_REQUEST, str(error)) from error
            await asyncio.sleep(retry.failed(monotonic()))
        raise TidelogError(code, f"the metadata group did not answer in {timeout} s: {trouble}")

    async def attempt(self, command: pb.Command) -> Outcome | None:
        """Returns the outcome; None when MAX_PROPOSALS are on their way. Raises RaftError."""
        if self._attempts >= MAX_PROPOSALS:
            return None
        self._attempts += 1
        try:
            return await self._propose(_encode(command), self._context.settings.command_timeout_s)
        finally:
            self._attempts -= 1

    async def _propose(self, data: bytes, timeout: float) -> Outcome:
        outcome = await self._raft.propose(data, timeout=timeout)
        if not isinstance(outcome, Outcome):
            raise TypeError(f"the metadata group gave {outcome!r} as an outcome")
        return outcome


def _encode(command: pb.Command) -> bytes:
    return command.SerializeToString(deterministic=True)
