"""Requests to the controller: JSON over `<ns>.api.…`, repeated until one is answered or the time is up.

A change of controller takes part of a second. Meanwhile NATS says that the subject has no listener, or a broker says
that it is not the controller; both pass, so both are asked again. A request that lost its answer may have taken effect;
a refusal that comes after such a request says so with the detail `repeated`, so that "it existed before" can be
distinguished from "this call created it".

One cluster answers. Before its first request a client asks for the cluster's id, and names it in every request from
then on, so that another cluster in the same namespace does not carry it out; answers of another cluster are dropped. A
client that got answers to its first question from two clusters cannot know which one is meant, and raises WrongCluster.

A request that NATS does not permit to this login is not repeated: the call fails as soon as NATS says so.
"""

from __future__ import annotations

import asyncio
import getpass
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import random
from typing import Any, ParamSpec, TypeVar

from google.protobuf.message import DecodeError

from tidelog.client.base.exceptions import NoServer, typed
from wire.error_details import REPEATED
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.internal_records.audit_records import CLIENT_HEADER
from wire.messaging.transport import NO_RESPONDERS, Message, Transport
from wire.messaging.violation import Violation
from wire.operations.api_operations import CLUSTER_ID
from wire.operations.operation import Operation
from wire.protobuf.metadata_pb2 import ClusterClaim
from wire.retry import Retry
from wire.subjects import Subjects


@cache
def described_self() -> str:
    """Returns USER@HOST PROGRAM in printable ASCII; other characters become `?`."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name; the class depends on the version of Python
        user = str(os.getuid())
    program = Path(sys.argv[0] if sys.argv else "").name or "python"
    text = f"{user}@{socket.gethostname()} {program}"
    return "".join(character if " " <= character <= "~" else "?" for character in text)


_P = ParamSpec("_P")
_Answer = TypeVar("_Answer")

_RETRY_EVERY = 0.05
_FEW_BROKERS_FIRST_S, _FEW_BROKERS_LONGEST_S = 0.5, 2.0
"""Pauses while brokers are missing: they take seconds to start, and each refused request is in the audit trail."""
_PRESENCE_WAIT = 0.3
"""Seconds for brokers to report their presence, before a call fails for want of a controller."""
_ATTEMPT_TIMEOUT = 2.0
"""Seconds for one request: a controller that was killed with the request in hand never answers."""


_SECOND_CLUSTER_WAIT = 0.01
"""Seconds, once for a client: an answer of another cluster comes as fast as the first one."""


@dataclass(eq=False, slots=True)
class _Wait:
    began: float
    why: str = ""
    """Why the last request got no answer that ends the call; empty: the first request is on its way."""


class Api:
    """`server` is the NATS URL, for sentences; `timeout` the default seconds for a call with all its repetitions."""

    def __init__(self, transport: Transport, subjects: Subjects, *, server: str, timeout: float) -> None:
        self._transport = transport
        self._subjects = subjects
        self._server = server
        self._timeout = timeout
        self._cluster: str | None = None
        """Answers of this cluster are taken; None: no broker has answered yet."""
        self._others: dict[str, None] = {}
        """Other clusters that have answered since."""
        self._ambiguous = False
        """One of the other clusters answered the first question, too."""
        self._unanswered: NoServer | None = None
        """The outcome of the last request for the cluster's id, if no broker answered it."""
        self._identifying = asyncio.Lock()
        self._asked: dict[asyncio.Future[Message], str] = {}
        """Pending answers, with the subjects of their requests."""
        self._waits: list[_Wait] = []
        """The waits of calls that are under way."""
        transport.violations.hear(self._on_violation)

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that this client began with; empty before the first answer."""
        return self._cluster or ""

    def delay(self) -> tuple[float, str] | None:
        """Returns for how many seconds a call is being repeated because no controller answers it, or refuses it for
        the time being, and why, in a sentence; the longest time of all calls. None: none is."""
        now = asyncio.get_running_loop().time()
        return max(((now - wait.began, wait.why) for wait in self._waits if wait.why), default=None)

    async def call(self, operation: Operation[_P, Any, _Answer], *args: _P.args, **kwargs: _P.kwargs) -> _Answer:
        """Returns the answer to an operation; the arguments are those of its request. Raises typed errors; NoServer
        when no broker answers in time."""
        limit = max(self._timeout, operation.time_s)
        deadline = asyncio.get_running_loop().time() + limit
        first_questions: list[str] = []
        try:
            request = operation.encode_request(*args, **kwargs)
            subject = self._subjects.api(operation.name, operation.name_asked(*args, **kwargs))
        except TidelogError as error:
            raise typed(error) from None
        try:
            async with self._identifying:
                if self._cluster is None:
                    await self._identify(deadline, limit, operation.name, first_questions)
            self._check_ambiguous()
            answer = await self._repeat(operation, subject, request, deadline, limit, operation.name)
            self._check_ambiguous()
        finally:
            for inbox in first_questions:
                self._transport.on_inbox(inbox, None)
        return answer

    async def _identify(self, deadline: float, limit: float, called: str, inboxes: list[str]) -> None:
        """Learns the cluster's id; raises like `_repeat`. A call that has waited for another call's request until its
        time was over has the same outcome."""
        if self._unanswered is not None and asyncio.get_running_loop().time() >= deadline:
            raise NoServer(self._unanswered.code, self._unanswered.message, self._unanswered.details)
        self._unanswered = None
        question = self._subjects.api(CLUSTER_ID.name)
        try:
            await self._repeat(CLUSTER_ID, question, CLUSTER_ID.encode_request(), deadline, limit, called, inboxes)
        except NoServer as error:
            self._unanswered = error
            raise
        await asyncio.sleep(_SECOND_CLUSTER_WAIT)

    async def _repeat(
        self,
        operation: Operation[..., Any, _Answer],
        subject: str,
        payload: bytes,
        deadline: float,
        limit: float,
        called: str,
        inboxes: list[str] | None = None,
    ) -> _Answer:
        """Repeats a request until it is answered. `called`: the caller's operation, for sentences. `inboxes`: gets the
        inboxes that stay open for more answers, which the caller closes."""
        clock = asyncio.get_running_loop().time
        retry = Retry(_RETRY_EVERY, chance=random, deadline=deadline)
        few_brokers = Retry(_FEW_BROKERS_FIRST_S, _FEW_BROKERS_LONGEST_S, chance=random, deadline=deadline)
        headers = {CLIENT_HEADER: described_self()} if operation.writes else {}
        repeated = False
        refusal: TidelogError | None = None
        nobody_listens = False
        with self._waiting(clock()) as wait:
            while (left := retry.left_s(clock())) > 0:
                try:
                    message = await self._ask(subject, payload, headers, min(left, _ATTEMPT_TIMEOUT), inboxes)
                except TimeoutError:
                    wait.why = f"the controller has not answered {called} yet"
                    if self._transport.is_connected:
                        # An attempt that the deadline cut short does not show whether anybody listens.
                        repeated, nobody_listens = True, nobody_listens and left < _ATTEMPT_TIMEOUT
                    await asyncio.sleep(retry.failed(clock()))
                    continue
                except TidelogError as not_sent:  # the request is too large for NATS, or not permitted
                    raise typed(_with_repeated(not_sent, repeated)) from None
                if message.status == NO_RESPONDERS:
                    nobody_listens = True
                    wait.why = f"no controller answers {called}"
                    await asyncio.sleep(retry.failed(clock()))
                    continue
                nobody_listens = False
                try:
                    return operation.decode_answer(message.data, message.headers)
                except TidelogError as error:
                    if not error.retriable:
                        raise typed(_with_repeated(error, repeated)) from None
                    refusal, repeated = error, repeated or error.code.unknown_outcome
                    wait.why = f"{called}: {error.message}"
                pauses = few_brokers if refusal.code is Code.NOT_ENOUGH_BROKERS else retry
                await asyncio.sleep(pauses.failed(clock()))
        brokers = await self._connected_brokers() if nobody_listens and self._transport.is_connected else {}
        raise self._nobody(called, limit, nobody_listens, brokers, refusal, repeated)

    @contextmanager
    def _waiting(self, now: float) -> Iterator[_Wait]:
        """The wait of one call, inside the `with`."""
        wait = _Wait(now)
        self._waits.append(wait)
        try:
            yield wait
        finally:
            self._waits.remove(wait)

    async def _ask(
        self,
        subject: str,
        payload: bytes,
        headers: Mapping[str, str],
        timeout: float,
        inboxes: list[str] | None,
    ) -> Message:
        """Sends one request; returns the first answer that is not of another cluster. Raises TimeoutError, also when
        there is no connection; TidelogError when NATS does not carry it. `inboxes`: as in `_repeat`."""
        self._transport.violations.check_answers_arrive()
        cluster = self._cluster
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        inbox = self._transport.new_inbox()

        def on_answer(message: Message) -> None:
            found = (message.headers or {}).get(CLUSTER_HEADER)
            if found is not None and self._cluster is None:
                self._cluster = found
            if found is not None and found != self._cluster:
                self._others[found] = None
                self._ambiguous = self._ambiguous or cluster is None
            elif not answer.done():
                answer.set_result(message)

        self._transport.on_inbox(inbox, on_answer)
        self._asked[answer] = subject
        try:
            if cluster is not None:
                headers = {**headers, CLUSTER_HEADER: cluster}
            if not self._transport.publish(subject, [payload], reply=inbox, headers=headers):
                raise TimeoutError(f"the request to {subject!r} was not sent")
            async with asyncio.timeout(timeout):
                return await answer
        finally:
            del self._asked[answer]
            if inboxes is None:
                self._transport.on_inbox(inbox, None)
            else:
                inboxes.append(inbox)

    def _on_violation(self, violation: Violation) -> None:
        """Fails the calls that wait for an answer on the subject that NATS does not permit."""
        for answer, subject in self._asked.items():
            if violation.ends(subject) and not answer.done():
                answer.set_exception(violation.error())

    def _check_ambiguous(self) -> None:
        """Raises WrongCluster if two clusters answered. The next call begins anew: one may have been stopped."""
        if not self._ambiguous:
            return
        clusters = " and ".join(sorted({self._cluster or "", *self._others}))
        self._cluster, self._others, self._ambiguous = None, {}, False
        raise typed(
            TidelogError(
                Code.WRONG_CLUSTER,
                f"clusters {clusters} both answer in namespace {self._subjects.namespace!r} at {self._server}; stop one"
                " of them, or move it to another namespace (`tidelog server --namespace`)",
            )
        )

    async def _connected_brokers(self) -> dict[str, bool]:
        """Returns the brokers of the namespace that answer within _PRESENCE_WAIT, and whether each is connected to a
        majority of the voters; they answer without a controller, too."""
        inbox, found = self._transport.new_inbox(), dict[str, bool]()

        def on_claim(message: Message) -> None:
            try:
                claim = ClusterClaim.FromString(message.data)
            except DecodeError:
                return
            if claim.broker:
                found[claim.broker] = claim.has_quorum

        self._transport.on_inbox(inbox, on_claim)
        try:
            self._transport.publish(self._subjects.presence(), [b""], reply=inbox)
            await asyncio.sleep(_PRESENCE_WAIT)
        finally:
            self._transport.on_inbox(inbox, None)
        return dict(sorted(found.items()))

    def _nobody(
        self,
        name: str,
        limit: float,
        nobody_listens: bool,
        brokers: Mapping[str, bool],
        refusal: TidelogError | None,
        repeated: bool,
    ) -> TidelogError:
        if not self._transport.is_connected:
            text = f"the connection to NATS at {self._server} is lost; check that nats-server runs there"
        elif nobody_listens and any(brokers.values()):
            reaching = " and ".join(name for name, has_quorum in brokers.items() if has_quorum)
            text = (
                f"the cluster at {self._server} (namespace {self._subjects.namespace!r}) has no controller at the"
                f" moment: {reaching} reached a majority of the voters, which elect one, or are too busy to; call"
                " again, and see the load of the brokers"
            )
        elif nobody_listens and brokers:
            connected = f"{', '.join(brokers)} {'is' if len(brokers) == 1 else 'are'} connected"
            text = (
                f"the cluster at {self._server} (namespace {self._subjects.namespace!r}) has no controller: only"
                f" {connected}, and a majority of the voters must run and reach each other; start the brokers that are"
                " missing, and see the logs"
            )
        elif nobody_listens:
            text = (
                f"no Tidelog broker answers at {self._server} (namespace {self._subjects.namespace!r}): NATS runs, but "
                "no broker is connected; start `tidelog server` or `tidelog up`, or check the "
                "URL"
            )
        elif self._others:
            text = (
                f"cluster {self._cluster}, with which this client began, did not answer {name} at {self._server} within"
                f" {limit:g} s, but cluster {', '.join(self._others)} did; connect again to use that one"
            )
        elif refusal is not None:
            text = f"{name} could not be carried out within {limit:g} s: {refusal.message}"
            if refusal.code is Code.NOT_ENOUGH_BROKERS:
                return typed(_with_repeated(TidelogError(refusal.code, text, refusal.details), repeated))
        else:
            text = (
                f"the controller did not answer {name} at {self._server} within {limit:g} s: it is too busy, or was"
                " lost meanwhile; call again, and see the load of the brokers and their logs"
            )
        return NoServer(Code.UNAVAILABLE, text, [REPEATED.of(True)] if repeated else [])


def _with_repeated(error: TidelogError, repeated: bool) -> TidelogError:
    return error.with_details(REPEATED.of(True)) if repeated else error
