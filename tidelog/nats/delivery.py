"""Delivery of messages to handlers: inboxes, and guards around handlers that raise.

Headers are decoded before a handler is called, and any NATS client may send them: a million lines would take seconds,
in which the event loop does nothing else. So a message with more than MAX_HEADER_BYTES of headers is dropped here, and
counted. (Plain publishes to streams are not looked into: their headers are stored as they came.)
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass

from nats.nuid import NUID

from tidelog.nats.header_block import decode_headers
from tidelog.nats.nats_parser import ReadCounters
from wire.messaging.transport import Message, MessageHandler, RawHandler


@dataclass(slots=True)
class Counters:
    """Totals since `connect`."""

    read: ReadCounters
    messages_out: int = 0
    """Messages and blocks of `publish_raw`."""
    dropped_publishes: int = 0
    """Publishes that returned False: not connected, or the outgoing buffer above its limit."""
    handler_errors: int = 0
    """Exceptions that handlers raised; each is logged."""
    dropped_headers: int = 0
    """Messages that were dropped because of the size of their headers."""
    server_errors: int = 0
    """-ERR lines, for example a missing permission; each is logged."""
    losses: int = 0


_log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 16 << 10
"""Limit of the headers of a message to a handler. Those of Tidelog's own messages have some hundred bytes."""

_SUBJECT = re.compile(r"[^\x00-\x20\x7f]+")


class Guard:
    """Logs and counts the errors that handlers raise; the connection goes on. It is not a context manager, which takes
    longer than some of the handlers that it would guard."""

    def __init__(self, what: str, counters: Counters) -> None:
        self._what = what
        self._counters = counters

    def lets_pass(self, headers: bytes) -> bool:
        """Whether the headers of a message may be decoded; too large ones are counted."""
        if len(headers) <= MAX_HEADER_BYTES:
            return True
        self._counters.dropped_headers += 1
        return False

    def met(self, error: Exception) -> None:
        self._counters.handler_errors += 1
        _log.error("a handler of %s raised; the connection goes on", self._what, exc_info=error)


def guarded(handler: RawHandler, guard: Guard) -> RawHandler:
    """A handler of single messages behind a guard: the parser's sinks must not raise."""

    def deliver(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        if headers is not None and not guard.lets_pass(headers):
            return
        try:
            handler(subject, reply, headers, payload)
        except Exception as error:  # noqa: BLE001 - any error of a handler
            guard.met(error)

    return deliver


def decoding(handler: MessageHandler) -> RawHandler:
    """Gives `handler` each message decoded. Bytes of the subject that are not UTF-8 become U+FFFD: below a wildcard any
    client may send them, and an exception with its traceback in the log would cost more than a refusal."""

    def deliver(subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        fields, status = (None, None) if headers is None else decode_headers(headers)
        address = None if reply is None else _address(reply)
        handler(Message(subject.decode(errors="replace"), payload, address, fields, status))

    return deliver


class Inboxes:
    """Reply subjects of one connection, all below one subscription."""

    def __init__(self, prefix: str, counters: Counters) -> None:
        self._base = f"{prefix}.{NUID().next().decode()}."
        self._count = 0
        self._handlers: dict[bytes, RawHandler] = {}
        self._guard = Guard("answers", counters)

    @property
    def subject(self) -> str:
        """The subject that the connection subscribes to."""
        return self._base + "*"

    def new(self) -> str:
        self._count += 1
        return f"{self._base}{self._count:x}"

    def on(self, inbox: str, handler: RawHandler | None) -> None:
        """Sets the inbox's handler; None removes it. Raises ValueError for an inbox of another connection."""
        if not inbox.startswith(self._base):
            raise ValueError(f"{inbox!r} is not an inbox of this connection; take one from new_inbox()")
        if handler is None:
            self._handlers.pop(inbox.encode(), None)
        else:
            self._handlers[inbox.encode()] = handler

    def deliver(self, subject: bytes, reply: bytes | None, headers: bytes | None, payload: bytes) -> None:
        handler = self._handlers.get(subject)
        if handler is not None and (headers is None or self._guard.lets_pass(headers)):
            try:
                handler(subject, reply, headers, payload)
            except Exception as error:  # noqa: BLE001 - any error of a handler
                self._guard.met(error)


def checked_subject(subject: str) -> str:
    """Raises ValueError for text that is no NATS subject."""
    if subject.isascii():  # this takes half the time of the pattern
        is_one = subject.isprintable() and " " not in subject and subject != ""
    else:
        is_one = _SUBJECT.fullmatch(subject) is not None
    if not is_one:
        raise ValueError(f"{subject!r} cannot be a NATS subject: it is empty or holds blanks or control characters")
    return subject


def checked_address(subject: str, reply: str) -> str:
    """Returns both with a blank in between. Raises as `checked_subject`."""
    address = f"{subject} {reply}"
    if address.isascii() and address.isprintable() and address.count(" ") == 1 and subject and reply:
        return address
    return f"{checked_subject(subject)} {checked_subject(reply)}"


def _address(reply: bytes) -> str | None:
    """Returns None for a reply that is no subject: NATS passes on any text that a client gives as one."""
    try:
        return checked_subject(reply.decode())
    except ValueError as error:
        _log.debug("a reply subject that is none: %s", error)
        return None
