"""A NATS micro service: request subjects that `nats micro ls`, `info` and `stats` can find.

The answers to `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS` have the form that nats-py's own services give. They put every
endpoint into a queue group, so that NATS picks one instance per request; here every instance gets every request, and an
endpoint that answers None stays silent (only the one that is in charge answers). A refusal travels in three forms:
NATS's service headers, `Tidelog-Error…` headers, and `{"error": {…}}`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeAlias

from nats.micro.service import EndpointInfo, EndpointStats, ServiceInfo, ServicePing, ServiceStats
from nats.nuid import NUID

from wire.errors import Code, TidelogError
from wire.transport import Message, MessageHandler, Subscription, Transport, answer_too_large

_log = logging.getLogger(__name__)

Answer: TypeAlias = tuple[bytes, Mapping[str, str] | None] | None
"""(body, headers), or None for no answer at all."""
Endpoint: TypeAlias = Callable[[Message], Awaitable[Answer]]

MAX_IN_FLIGHT = 1024
"""Requests of one service that are worked on at once; a further one is refused with error 503."""

MAX_ERROR_CHARACTERS = 1000
"""Longest text of an endpoint's error in an answer."""

ERROR_CODE_HEADER = "Nats-Service-Error-Code"
ERROR_HEADER = "Nats-Service-Error"

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")


class Service:
    """One instance of a service. `start` subscribes, `stop` ends it."""

    def __init__(
        self, transport: Transport, name: str, version: str, description: str, endpoints: Mapping[str, Endpoint]
    ) -> None:
        self.id = NUID().next().decode()
        self.name = name
        self._version = version
        self._description = description
        self._endpoints = dict(endpoints)
        self._transport = transport
        self._started = datetime.now(UTC)
        self._subscriptions: list[Subscription] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._stats = {
            subject: EndpointStats(_endpoint_name(subject), subject, "", 0, 0, 0, 0) for subject in self._endpoints
        }

    async def start(self) -> None:
        handlers: dict[str, MessageHandler] = {
            subject: self._request_handler(subject, endpoint) for subject, endpoint in self._endpoints.items()
        }
        for verb, describe in (("PING", self._ping), ("INFO", self._info), ("STATS", self._statistics)):
            for scope in ("", f".{self.name}", f".{self.name}.{self.id}"):
                handlers[f"$SRV.{verb}{scope}"] = self._verb_handler(describe)
        self._subscriptions += await asyncio.gather(
            *(self._transport.subscribe(subject, handler) for subject, handler in handlers.items())
        )

    async def stop(self) -> None:
        """Take no more requests; cancel the ones in work."""
        subscriptions, self._subscriptions = self._subscriptions, []
        await asyncio.gather(*(subscription.unsubscribe() for subscription in subscriptions))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- requests

    def _request_handler(self, subject: str, endpoint: Endpoint) -> MessageHandler:
        def on_request(message: Message) -> None:
            if len(self._tasks) >= MAX_IN_FLIGHT:
                sentence = f"{MAX_IN_FLIGHT} requests are in work here already; ask again later"
                self._refuse(message, 503, TidelogError(Code.BACKPRESSURE, sentence))
                return
            task = asyncio.get_running_loop().create_task(self._work(subject, endpoint, message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        return on_request

    async def _work(self, subject: str, endpoint: Endpoint, message: Message) -> None:
        stats = self._stats[subject]
        began = time.perf_counter_ns()
        stats.num_requests += 1
        try:
            answer = await endpoint(message)
            if answer is not None and message.reply is not None:
                self._answer(message, message.reply, answer[0], answer[1], stats)
        except Exception as error:  # noqa: BLE001 - logged, and answered as an error
            _log.exception("the service endpoint %s raised", subject)
            stats.num_errors += 1
            stats.last_error = repr(error)[:MAX_ERROR_CHARACTERS]
            self._refuse(message, 500, TidelogError(Code.INTERNAL, f"{subject}: {stats.last_error}"))
        finally:
            stats.processing_time += time.perf_counter_ns() - began
            stats.average_processing_time = stats.processing_time // stats.num_requests

    def _answer(
        self, message: Message, inbox: str, body: bytes, headers: Mapping[str, str] | None, stats: EndpointStats
    ) -> None:
        try:
            self._transport.publish(inbox, (body,), headers=headers)
        except TidelogError as error:
            refusal = answer_too_large(error, f"the answer to {message.subject}")
            _log.error("%s", refusal.message)
            stats.num_errors += 1
            stats.last_error = refusal.message
            self._refuse(message, 500, refusal)

    def _refuse(self, message: Message, code: int, error: TidelogError) -> None:
        if message.reply is not None:
            headers = {ERROR_CODE_HEADER: str(code), ERROR_HEADER: " ".join(error.message.split())}
            body = json.dumps({"error": error.to_json()}).encode()
            self._transport.publish(message.reply, (body,), headers={**headers, **error.to_headers()})

    # ---- discovery

    def _verb_handler(self, describe: Callable[[], dict[str, Any]]) -> MessageHandler:
        def on_verb(message: Message) -> None:
            if message.reply is not None:
                self._transport.publish(message.reply, (json.dumps(describe()).encode(),))

        return on_verb

    def _ping(self) -> dict[str, Any]:
        return ServicePing(self.id, self.name, self._version).to_dict()

    def _info(self) -> dict[str, Any]:
        endpoints = [EndpointInfo(_endpoint_name(subject), subject, "") for subject in self._endpoints]
        return ServiceInfo(self.name, self.id, self._version, self._description, endpoints).to_dict()

    def _statistics(self) -> dict[str, Any]:
        return ServiceStats(self.id, self.name, self._version, self._started, list(self._stats.values())).to_dict()


def _endpoint_name(subject: str) -> str:
    return _NOT_IN_NAMES.sub("-", subject).strip("-") or "all"
