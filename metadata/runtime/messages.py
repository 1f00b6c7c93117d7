"""Messages between brokers and controllers: decoded or dropped, and answered."""

from __future__ import annotations

import logging
from typing import TypeVar

from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf

from wire.errors import TidelogError
from wire.transport import Message, Transport, answer_too_large
from wire.types import BrokerId

_log = logging.getLogger(__name__)

_Message = TypeVar("_Message", bound=Protobuf)


class Messages:
    def __init__(self, broker_id: BrokerId, transport: Transport) -> None:
        self._id = broker_id
        self._transport = transport
        self.dropped = 0
        """Messages that did not decode."""

    def decode(self, kind: type[_Message], message: Message) -> _Message | None:
        """None when the message does not decode: it is counted and logged."""
        try:
            return kind.FromString(message.data)
        except DecodeError as error:
            self.drop(message, error)
            return None

    def drop(self, message: Message, error: Exception) -> None:
        self.dropped += 1
        _log.warning("dropped a message of %d bytes on %s: %s", len(message.data), message.subject, error)

    def answer(self, inbox: str, data: bytes, what: str) -> None:
        """Publish an answer. If it is larger than a message may be, the error is published in its place."""
        try:
            self._transport.publish(inbox, [data])
        except TidelogError as error:
            refusal = answer_too_large(error, f"{what} of broker {self._id}")
            _log.error("%s", refusal.message)
            self._transport.publish(inbox, [b""], headers=refusal.to_headers())
