"""A NATS micro service: request subjects that `nats micro ls`, `info` and `stats` can find.

The answers to `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` have the form that nats-py's own services give. They put every
endpoint into a queue group, so that NATS picks one instance per request; here every instance gets every request, and an
endpoint that answers None stays silent (only the controller answers). A refusal travels in three forms:
NATS's service headers, `Tidelog-Error…` headers, and `{"error": {…}}`.

A request costs its sender nothing. So requests wait in a queue for each endpoint (`request_queue`), requests that ask
the same share one answer, and all of them together get a bounded share of the loop's time (`pace`). A request that
finds its queue full is refused with BACKPRESSURE; refusals leave together, once in a turn of the loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import thread_time
from typing import Any, TypeAlias

from nats.micro.service import EndpointInfo, EndpointStats, ServiceInfo, ServicePing, ServiceStats
from nats.nuid import NUID

from tidelog.nats.header_block import encode_headers
from tidelog.nats.pace import Pace
from tidelog.nats.request_queue import MAX_QUESTIONS_IN_WORK, MAX_WAITING_ALIKE, WAITING_REQUESTS, Asked, RequestQueue
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message, MessageHandler, Subscription, Transport, answer_too_large, too_large

_log = logging.getLogger(__name__)

Answer: TypeAlias = tuple[bytes, Mapping[str, str] | None] | None
"""(body, headers), or None for no answer at all."""


MAX_IN_WORK = 1024
"""Requests of one endpoint in work at once, where each has an answer of its own."""
MAX_BURST_BYTES = 256 << 10
"""Limit of one answer to many, in bytes; before the next part other tasks have their turn."""
RETRY_AFTER_S = 0.1
"""Pause that a refused sender is asked to make."""

MAX_ERROR_CHARACTERS = 1000
"""Longest text of an endpoint's error in an answer, in characters."""

ERROR_CODE_HEADER = "Nats-Service-Error-Code"
ERROR_HEADER = "Nats-Service-Error"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


_FULL = TidelogError(
    Code.BACKPRESSURE,
    f"{WAITING_REQUESTS.items} requests, or {MAX_WAITING_ALIKE} that ask the same, wait here already; ask again later",
    [LIMIT.of("api_requests"), RETRY_AFTER_MS.of(int(1000 * RETRY_AFTER_S))],
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    serve: Callable[[Message], Awaitable[Answer]]
    question: Callable[[Message], Hashable] | None = None
    """Requests for which it is equal get the same answer: waiting ones share one call of `serve`. None: each request
    has a call of its own."""
    queue: str = ""
    """NATS delivers each request to one of the processes with this subject and queue; empty: to all of them."""


class Service:
    """One instance of a service. `start` subscribes, `stop` ends it. `on_refused`: a request found its queue full.
    `work_time`: see `Pace`. `headers`: of every refusal that is made here; endpoints give those of their answers.
    `is_listed`: it answers `$SRV.PING` and the like."""

    def __init__(
        self,
        transport: Transport,
        name: str,
        version: str,
        description: str,
        endpoints: Mapping[str, Endpoint],
        on_refused: Callable[[], None] = lambda: None,
        work_time: Callable[[], float] = thread_time,
        headers: Callable[[], Mapping[str, str]] = dict,
        *,
        is_listed: bool = True,
    ) -> None:
        self.id = NUID().next().decode()
        self.name = name
        self._version = version
        self._description = description
        self._endpoints = dict(endpoints)
        self._transport = transport
        self._started = datetime.now(UTC)
        self._subscriptions: list[Subscription] = []
        self._on_refused = on_refused
        self._headers = headers
        self._is_listed = is_listed
        self._pace = Pace(asyncio.get_running_loop().time, work_time)
        self._queues: list[RequestQueue] = []
        self._refused: list[bytes] = []
        """Reply subjects of requests that found their queue full in this turn of the loop."""
        self._stats = {
            subject: EndpointStats(_endpoint_name(subject), subject, "", 0, 0, 0, 0) for subject in self._endpoints
        }

    async def start(self) -> None:
        handlers = [
            (subject, self._endpoint_handler(subject, endpoint), endpoint.queue)
            for subject, endpoint in self._endpoints.items()
        ]
        verbs = (("PING", self._ping), ("INFO", self._info), ("STATS", self._statistics)) if self._is_listed else ()
        for verb, describe in verbs:
            handler = self._verb_handler(describe)
            handlers += [
                (f"$SRV.{verb}{scope}", handler, "") for scope in ("", f".{self.name}", f".{self.name}.{self.id}")
            ]
        self._subscriptions += await asyncio.gather(
            *(self._transport.subscribe(subject, handler, queue=queue) for subject, handler, queue in handlers)
        )

    async def stop(self) -> None:
        """Takes no more requests; cancels the ones in work."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.unsubscribe() for subscription in subscriptions))
        await asyncio.gather(*(queue.close() for queue in self._queues))

    # ---- requests

    def _endpoint_handler(self, subject: str, endpoint: Endpoint) -> MessageHandler:
        work = partial(self._carry_out, subject, endpoint)
        if endpoint.question is None:
            return self._queued(lambda _: object(), work, at_once=MAX_IN_WORK)
        return self._queued(endpoint.question, work, at_once=MAX_QUESTIONS_IN_WORK)

    def _queued(
        self, question: Callable[[Message], Hashable], work: Callable[[Asked], Awaitable[None]], *, at_once: int
    ) -> MessageHandler:
        queue = RequestQueue(self._pace, question, work, at_once=at_once)
        self._queues.append(queue)

        def on_request(message: Message) -> None:
            if not queue.add(message):
                self._refuse_soon(message)

        return on_request

    async def _carry_out(self, subject: str, endpoint: Endpoint, asked: Asked) -> None:
        stats = self._stats[subject]
        began = self._pace.time()
        stats.num_requests += asked.requests
        try:
            answer = await endpoint.serve(asked.first)
            if answer is not None:
                await self._answer(asked, *answer, stats)
        except Exception as error:  # noqa: BLE001 - logged, and answered as an error
            _log.exception("the service endpoint %s raised", subject)
            stats.num_errors += asked.requests
            stats.last_error = repr(error)[:MAX_ERROR_CHARACTERS]
            self._refuse(asked.replies, 500, TidelogError(Code.INTERNAL, f"{subject}: {stats.last_error}"))
        finally:
            stats.processing_time += int(1e9 * (self._pace.time() - began))
            stats.average_processing_time = stats.processing_time // stats.num_requests

    async def _answer(self, asked: Asked, body: bytes, headers: Mapping[str, str] | None, stats: EndpointStats) -> None:
        size = len(body) + (len(encode_headers(headers)) if headers else 0)
        if size > self._transport.max_payload:
            refusal = answer_too_large(
                too_large(asked.first.subject, size, self._transport.max_payload),
                f"the answer to {asked.first.subject}",
            )
            _log.error("%s", refusal.message)
            stats.num_errors += asked.requests
            stats.last_error = refusal.message
            self._refuse(asked.replies, 500, refusal)
            return
        await self._send(asked.replies, body, size, headers)

    async def _send(self, replies: Sequence[bytes], body: bytes, size: int, headers: Mapping[str, str] | None) -> None:
        at_once = max(1, MAX_BURST_BYTES // max(1, size))
        for first in range(0, len(replies), at_once):
            burst = replies[first : first + at_once]
            if first:
                async with self._pace.turn():
                    self._send_now(burst, body, headers)
            else:
                self._send_now(burst, body, headers)
            self._pace.sent(size * len(burst))

    def _send_now(self, replies: Sequence[bytes], body: bytes, headers: Mapping[str, str] | None) -> None:
        if headers:
            self._transport.publish_to_each(replies, body, headers)
            return
        for reply in replies:
            with suppress(ValueError):  # too long for NATS, as those that `publish_to_each` leaves out
                self._transport.publish(reply.decode(), (body,))

    def _refuse(self, replies: Sequence[bytes], code: int, error: TidelogError) -> None:
        headers = {ERROR_CODE_HEADER: str(code), ERROR_HEADER: " ".join(error.message.split())}
        body = json.dumps({"error": error.to_json()}).encode()
        self._transport.publish_to_each(replies, body, {**headers, **error.to_headers(), **self._headers()})

    def _refuse_soon(self, message: Message) -> None:
        self._on_refused()
        if message.reply is not None:
            if not self._refused:
                asyncio.get_running_loop().call_soon(self._refuse_all)
            self._refused.append(message.reply.encode())

    def _refuse_all(self) -> None:
        replies, self._refused = self._refused, []
        self._refuse(replies, 503, _FULL)

    # ---- discovery

    def _verb_handler(self, describe: Callable[[], dict[str, Any]]) -> MessageHandler:
        async def answer(asked: Asked) -> None:
            body = json.dumps(describe()).encode()
            await self._send(asked.replies, body, len(body), None)

        return self._queued(lambda _: None, answer, at_once=1)

    def _ping(self) -> dict[str, Any]:
        return ServicePing(self.id, self.name, self._version).to_dict()

    def _info(self) -> dict[str, Any]:
        endpoints = [EndpointInfo(_endpoint_name(subject), subject, "") for subject in self._endpoints]
        return ServiceInfo(self.name, self.id, self._version, self._description, endpoints).to_dict()

    def _statistics(self) -> dict[str, Any]:
        return ServiceStats(self.id, self.name, self._version, self._started, list(self._stats.values())).to_dict()


def _endpoint_name(subject: str) -> str:
    return _NOT_IN_NAMES.sub("-", subject).strip("-") or "all"
