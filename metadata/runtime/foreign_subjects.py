"""Who else listens on a subject, asked before a stream is created on it: NATS services, and streams of JetStream.

Requests of a service's clients would be answered twice, by the service and by the stream's leader. NATS shows an
ordinary account only the services' own answers: a subscription that belongs to no NATS service cannot be found without
a message to it.

A stream of JetStream would store the messages published there, and acknowledge them, as Tidelog's does: a publisher
takes whichever answer comes first, and may believe its message in the wrong one. JetStream lists the streams that
capture a subject. Where there is no JetStream NATS answers so at once; one in another account, or one that brokers may
not ask, is not seen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from metadata.runtime.rounds import Rounds
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message, PeerTransport
from wire.subjects import reaches

SERVICES = "$SRV.INFO"
SERVICES_WAIT_S = 0.05
"""Wait for the first answer. This cluster's own service answers too, so one comes where NATS allows it."""
MORE_WAIT_S = 0.01
"""Wait for further answers, after the first one."""
JETSTREAM = "$JS.API.STREAM.NAMES"
JETSTREAM_WAIT_S = 0.25
"""Wait for the answer: a cluster of JetStream servers asks its leader."""
MAX_ANSWERS = 1000
MAX_ANSWER_BYTES = 64 << 10
"""Limit of an answer; a larger one is not read."""
MAX_BYTES_OF_ALL = 256 << 10
"""Limit of all answers together; further ones are not read."""
MAX_ENDPOINTS = 2000
"""Limit of the endpoints of all services together, on different subjects."""
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Service:
    name: str
    subject: str
    """The subject of an endpoint; may hold wildcards."""


async def check_subject_unserved(rounds: Rounds, transport: PeerTransport, subject: str) -> None:
    """Raises TidelogError(SUBJECT_TAKEN) when a NATS service has an endpoint that messages to the stream reach.
    `rounds`: streams that are created at the same time share a question."""
    for service in await rounds.join(SERVICES, lambda: _services(transport)):
        if reaches(subject, service.subject):
            raise TidelogError(
                Code.SUBJECT_TAKEN,
                f"the NATS service {service.name[:_SHOWN]!r} serves {service.subject[:_SHOWN]!r}, and its requests on"
                f" {subject!r} would be answered twice; choose another subject, or create the stream with"
                " reply_acks=false to record them without an answer",
            )


async def check_subject_uncaptured(rounds: Rounds, transport: PeerTransport, subject: str, partitions: int) -> None:
    """Raises TidelogError(SUBJECT_TAKEN) when a stream of JetStream captures an ingest subject of this stream."""
    subjects = [subject] if partitions == 1 else [subject, f"{subject}.*"]
    for asked in subjects:
        names = await rounds.join((JETSTREAM, asked), lambda asked=asked: _names(transport, asked))  # type: ignore[misc]
        if names:
            raise TidelogError(
                Code.SUBJECT_TAKEN,
                f"the JetStream stream {names[0][:_SHOWN]!r} captures {asked!r} too, and both would acknowledge what is"
                " published there; delete it, choose another subject, or create the stream with reply_acks=false to"
                " store what JetStream stores, and leave the acknowledgements to it",
            )


async def _services(transport: PeerTransport) -> list[Service]:
    """Returns all endpoints of all services that answer in time."""
    found: dict[str, Service] = {}
    """Endpoints by subject: instances of a service have the same."""
    answers = size = 0

    def on_answer(message: Message) -> None:
        nonlocal answers, size
        if message.status == NO_RESPONDERS or len(message.data) > MAX_ANSWER_BYTES:
            return
        answers += 1
        size += len(message.data)
        if answers <= MAX_ANSWERS and size <= MAX_BYTES_OF_ALL:
            for service in _endpoints(message.data):
                if len(found) < MAX_ENDPOINTS:
                    found.setdefault(service.subject, service)

    await _ask(transport, SERVICES, b"", on_answer, SERVICES_WAIT_S, lambda: MORE_WAIT_S if found else 0.0)
    return [*found.values()]


async def _names(transport: PeerTransport, subject: str) -> list[str]:
    first: list[list[str]] = []

    def on_answer(message: Message) -> None:
        is_read = message.status != NO_RESPONDERS and len(message.data) <= MAX_ANSWER_BYTES
        first.append(_streams(message.data) if is_read and not first else [])

    await _ask(transport, JETSTREAM, json.dumps({"subject": subject}).encode(), on_answer, JETSTREAM_WAIT_S)
    return first[0] if first else []


async def _ask(
    transport: PeerTransport,
    question: str,
    data: bytes,
    on_answer: Callable[[Message], None],
    wait_s: float,
    more_wait_s: Callable[[], float] = lambda: 0.0,
) -> None:
    """Returns `more_wait_s()` after the first answer, or after `wait_s`. Who answers is no broker."""
    answered = asyncio.Event()

    def take(message: Message, is_proved: bool) -> None:  # noqa: ARG001 - see above
        on_answer(message)
        answered.set()

    inbox = transport.new_inbox()
    transport.on_claim_inbox(inbox, take)
    try:
        if transport.publish_claim(question, data, reply=inbox):
            async with asyncio.timeout(wait_s):
                await answered.wait()
            if (more := more_wait_s()) > 0:
                await asyncio.sleep(more)
    except TimeoutError:
        pass
    finally:
        transport.on_claim_inbox(inbox, None)


def _parsed(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None


def _endpoints(data: bytes) -> list[Service]:
    """Returns the endpoints in one answer; empty for any other message."""
    match _parsed(data):
        case {"name": str(name), "endpoints": list(endpoints)}:
            return [
                Service(name, subject)
                for endpoint in endpoints
                if isinstance(endpoint, dict) and isinstance(subject := endpoint.get("subject"), str)
            ]
        case _:
            return []


def _streams(data: bytes) -> list[str]:
    """Returns the names of the streams in an answer; empty for any other message."""
    match _parsed(data):
        case {"streams": list(names)}:
            return [name for name in names if isinstance(name, str)]
        case _:
            return []
