"""Requests to the coordinator of a group, a cursor or a transactional id, repeated while it moves to another broker.

The coordinator is the leader of a partition of an internal stream: `__groups` or `__transactions`. While that partition
has no leader, NATS says that nobody listens; then the controller is asked once, which makes the stream if it is
missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from random import random
from typing import Any, Final, NamedTuple, Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from tidelog.client.base.exceptions import NoServer, typed
from tidelog.client.cluster.controller_api import Api
from wire.errors import Code, TidelogError
from wire.internal_records import group_records, transaction_records
from wire.internal_streams import GROUPS, TRANSACTIONS
from wire.messaging.transport import NO_RESPONDERS, Transport
from wire.operations.api_operations import CLUSTER_ID, GROUP_COORDINATOR
from wire.operations.operation import Operation
from wire.operations.transaction_operations import TRANSACTION_COORDINATOR
from wire.retry import Retry
from wire.subjects import Subjects

_log = logging.getLogger(__name__)

ATTEMPT_TIMEOUT = 2.0
"""Seconds for one request: a broker that was killed with the request in hand never answers. A running one answers
earlier, also where it waits for others."""
_BACKOFF = 0.05
_BACKOFF_MAX = 1.0


class _Request(Protocol):
    def SerializeToString(self) -> bytes: ...  # noqa: N802 - protobuf's name


class _Answer(Protocol):
    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...  # noqa: N802 - protobuf's name


_Answered = TypeVar("_Answered", bound=_Answer)


class Coordinators(NamedTuple):
    """The coordinators of one kind of names."""

    stream: str
    """The internal stream whose partition leaders are the coordinators."""
    subject: Callable[[Subjects, str, str], str]
    """Returns the subject on which the coordinator of a name takes requests of a kind."""
    find: Operation[[str], Any, Any]
    """The operation that locates the coordinator of a name, and makes the stream if need be."""


OF_GROUPS: Final = Coordinators(GROUPS.name, group_records.coordinator_subject, GROUP_COORDINATOR)
OF_TRANSACTIONS: Final = Coordinators(
    TRANSACTIONS.name, transaction_records.coordinator_subject, TRANSACTION_COORDINATOR
)


class Attempts:
    """Reports to the caller of `CoordinatorLink.ask` whether an attempt before the last one may have been carried
    out."""

    def __init__(self) -> None:
        self.repeated = False


class CoordinatorLink:
    def __init__(
        self, transport: Transport, subjects: Subjects, api: Api, coordinators: Coordinators = OF_GROUPS
    ) -> None:
        self._transport = transport
        self._subjects = subjects
        self._api = api
        self._coordinators = coordinators

    async def cluster_id(self) -> str:
        """Returns the id of the cluster that the client uses. Raises NoServer when no broker answers."""
        if not self._api.cluster_id:
            await self._api.call(CLUSTER_ID)
        return self._api.cluster_id

    async def ask(
        self,
        kind: str,
        name: str,
        request: _Request,
        answer: type[_Answered],
        *,
        timeout: float,
        attempts: Attempts | None = None,
        added: str = "",
    ) -> _Answered:
        """Returns the answer. Raises typed errors; NoServer when no coordinator has answered for `timeout` seconds.
        `added`: the stream or the group that the request adds to a transaction, whose name its subject ends with."""
        clock = asyncio.get_running_loop().time
        retry = Retry(_BACKOFF, _BACKOFF_MAX, factor=1.5, chance=random, deadline=clock() + timeout)
        subject = self._coordinators.subject(self._subjects, kind, name) + (f".{added}" if added else "")
        payload = request.SerializeToString()
        attempts = attempts or Attempts()
        refusal: TidelogError | None = None
        has_looked = False
        while (left := retry.left_s(clock())) > 0:
            at_least_s, was_connected = 0.0, self._transport.is_connected
            try:
                message = await self._transport.request(subject, payload, timeout=min(left, ATTEMPT_TIMEOUT))
            except TimeoutError:
                attempts.repeated = attempts.repeated or was_connected or self._transport.is_connected
                if not has_looked:  # a listener on `>` keeps NATS from saying that nobody coordinates
                    await self.look(name)
                has_looked = True
            except TidelogError as not_sent:  # the request is too large for NATS, or not permitted
                raise typed(not_sent) from None
            else:
                error = TidelogError.from_headers(message.headers)
                if message.status == NO_RESPONDERS:
                    if not has_looked:
                        await self.look(name)
                    has_looked = True
                elif error is None:
                    return _decoded(answer, message.data, kind)
                elif not error.retriable or error.code is Code.STALE_GENERATION:
                    raise typed(error)
                else:
                    refusal, at_least_s = error, error.retry_after or 0.0
                    attempts.repeated = attempts.repeated or error.code.unknown_outcome
            await asyncio.sleep(retry.failed(clock(), at_least_s=at_least_s))
        because = "" if refusal is None else f": {refusal.message}"
        raise NoServer(
            Code.UNAVAILABLE,
            f"the coordinator of {name!r} did not carry out the {kind} request within {timeout:g} s{because}; see"
            f" `tidelog stream describe {self._coordinators.stream}`",
        )

    async def look(self, name: str) -> None:
        """Lets the controller make the internal stream if it is missing. Raises errors that will not pass."""
        try:
            await self._api.call(self._coordinators.find, name)
        except TidelogError as error:
            if not error.retriable:
                raise
            _log.info("the coordinator of %r is not known at present: %s", name, error.message)


def _decoded(answer: type[_Answered], data: bytes, kind: str) -> _Answered:
    try:
        return answer.FromString(data)
    except DecodeError:
        raise TidelogError(Code.INTERNAL, f"the answer to a {kind} request does not decode; see the log") from None
