"""Messages between brokers and controllers: decoded or dropped, and answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from wire.errors import TidelogError
from wire.messaging.transport import Message, PeerTransport, answer_too_large
from wire.types import BrokerId

_log = logging.getLogger(__name__)

MAX_MESSAGE_BYTES = 1 << 20
"""Bytes of a message between brokers and controllers, as of a Raft command: items of messages are looked at one by
one."""

LOG_INTERVAL_S = 10.0
"""At most one line for each subject in so long: a line costs more than all else about a message that is dropped, and on
the subject of claims strangers may send."""
MAX_LOGGED = 64
"""Subjects that are remembered for that; all are forgotten when one more comes."""

_Message = TypeVar("_Message", bound=Protobuf)


class Messages:
    def __init__(self, broker_id: BrokerId, transport: PeerTransport, monotonic: Callable[[], float]) -> None:
        self._id = broker_id
        self._monotonic = monotonic
        self._logged: dict[str, float] = {}
        """By subject: when."""
        self._transport = transport
        self.dropped = 0
        """Messages that did not decode."""

    def decode(self, kind: type[_Message], message: Message) -> _Message | None:
        """None when the message is too large or does not decode: it is counted and logged."""
        return self.decode_data(kind, message.subject, message.data, MAX_MESSAGE_BYTES)

    def decode_data(self, kind: type[_Message], subject: str, data: bytes, most: int) -> _Message | None:
        """As `decode`, of the bytes that came on a subject; `most` of them are allowed."""
        if len(data) > most:
            self.drop(subject, data, f"the limit is {most} bytes")
            return None
        try:
            return kind.FromString(data)
        except DecodeError as error:
            self.drop(subject, data, error)
            return None

    def drop(self, subject: str, data: bytes, error: object) -> None:
        self.dropped += 1
        now = self._monotonic()
        logged = self._logged.get(subject)
        if logged is not None and now - logged < LOG_INTERVAL_S:
            return
        if len(self._logged) >= MAX_LOGGED:
            self._logged.clear()
        self._logged[subject] = now
        _log.warning("dropped a message of %d bytes on %s: %s", len(data), subject, error)

    def answer(self, inbox: str, data: bytes, what: str) -> None:
        """Publish an answer. If it is larger than a message may be, the error is published in its place."""
        try:
            self._transport.publish(inbox, [data])
        except TidelogError as error:
            refusal = answer_too_large(error, f"{what} of broker {self._id}")
            _log.error("%s", refusal.message)
            self._transport.publish(inbox, [b""], headers=refusal.to_headers())
