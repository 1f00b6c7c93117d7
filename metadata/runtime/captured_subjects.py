"""JetStream streams that capture a subject, asked before a stream is created on it.

Both would store the messages published there, and both would acknowledge them: a publisher takes whichever answer comes
first, and may believe its message in the wrong one. JetStream lists the streams that capture a subject. Where there is
no JetStream NATS answers so at once; one in another account, or one that brokers may not ask, is not seen.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from metadata.runtime.rounds import Rounds
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message, PeerTransport

QUESTION = "$JS.API.STREAM.NAMES"
WAIT_S = 0.25
"""Wait for the answer: a cluster of JetStream servers asks its leader."""
MAX_ANSWER_BYTES = 64 << 10
"""Limit of an answer; a larger one is not read."""
_SHOWN = 80


async def check_subject_uncaptured(rounds: Rounds, transport: PeerTransport, subject: str, partitions: int) -> None:
    """Raises TidelogError(SUBJECT_TAKEN) when a stream of JetStream captures an ingest subject of this stream."""
    subjects = [subject] if partitions == 1 else [subject, f"{subject}.*"]
    for asked in subjects:
        names = await rounds.join((QUESTION, asked), lambda asked=asked: _names(transport, asked))  # type: ignore[misc]
        if names:
            raise TidelogError(
                Code.SUBJECT_TAKEN,
                f"the JetStream stream {names[0][:_SHOWN]!r} captures {asked!r} too, and both would acknowledge what is"
                " published there; delete it, choose another subject, or create the stream with reply_acks=false to"
                " store what JetStream stores, and leave the acknowledgements to it",
            )


async def _names(transport: PeerTransport, subject: str) -> list[str]:
    answered: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

    def on_answer(message: Message, is_proved: bool) -> None:  # noqa: ARG001 - JetStream is no broker
        if not answered.done():
            answered.set_result([] if message.status == NO_RESPONDERS else _streams(message.data))

    inbox = transport.new_inbox()
    transport.on_claim_inbox(inbox, on_answer)
    try:
        if not transport.publish_claim(QUESTION, json.dumps({"subject": subject}).encode(), reply=inbox):
            return []
        async with asyncio.timeout(WAIT_S):
            return await answered
    except TimeoutError:
        return []
    finally:
        transport.on_claim_inbox(inbox, None)


def _streams(data: bytes) -> list[str]:
    """Returns the names of the streams in an answer; empty for any other message."""
    if len(data) > MAX_ANSWER_BYTES:
        return []
    try:
        answer: Any = json.loads(data)
    except (ValueError, RecursionError):
        return []
    match answer:
        case {"streams": list(names)}:
            return [name for name in names if isinstance(name, str)]
        case _:
            return []
