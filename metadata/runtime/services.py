"""NATS services: which of them listen where, asked before a stream is created on a subject that one of them serves.

Requests of that service's clients would be answered twice, by the service and by the stream's leader. NATS shows an
ordinary account only the services' own answers: a subscription that belongs to no NATS service cannot be found without
a message to it.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any

from metadata.runtime.rounds import Rounds
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message, PeerTransport
from wire.subjects import reaches

QUESTION = "$SRV.INFO"
WAIT_S = 0.05
"""Wait for the first answer. This cluster's own service answers too, so one comes where NATS allows it."""
MORE_WAIT_S = 0.01
"""Wait for further answers, after the first one."""
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
    for service in await rounds.join(QUESTION, lambda: _services(transport)):
        if reaches(subject, service.subject):
            raise TidelogError(
                Code.SUBJECT_TAKEN,
                f"the NATS service {service.name[:_SHOWN]!r} serves {service.subject[:_SHOWN]!r}, and its requests on"
                f" {subject!r} would be answered twice; choose another subject, or create the stream with"
                " reply_acks=false to record them without an answer",
            )


async def _services(transport: PeerTransport) -> list[Service]:
    """Returns all endpoints of all services that answer in time."""
    found: dict[str, Service] = {}
    """Endpoints by subject: instances of a service have the same."""
    answered = asyncio.Event()
    answers = size = 0

    def on_answer(message: Message, is_proved: bool) -> None:  # noqa: ARG001 - services are no brokers
        nonlocal answers, size
        answered.set()
        if message.status == NO_RESPONDERS or len(message.data) > MAX_ANSWER_BYTES:
            return
        answers += 1
        size += len(message.data)
        if answers <= MAX_ANSWERS and size <= MAX_BYTES_OF_ALL:
            for service in _endpoints(message.data):
                if len(found) < MAX_ENDPOINTS:
                    found.setdefault(service.subject, service)

    inbox = transport.new_inbox()
    transport.on_claim_inbox(inbox, on_answer)
    try:
        if transport.publish_claim(QUESTION, b"", reply=inbox):
            async with asyncio.timeout(WAIT_S):
                await answered.wait()
            if found:
                await asyncio.sleep(MORE_WAIT_S)
    except TimeoutError:
        pass
    finally:
        transport.on_claim_inbox(inbox, None)
    return [*found.values()]


def _endpoints(data: bytes) -> list[Service]:
    """Returns the endpoints in one answer; empty for any other message."""
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        return []
    match answer:
        case {"name": str(name), "endpoints": list(endpoints)}:
            return [
                Service(name, subject)
                for endpoint in endpoints
                if isinstance(endpoint, dict) and isinstance(subject := endpoint.get("subject"), str)
            ]
        case _:
            return []
