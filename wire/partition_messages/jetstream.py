"""The interface to publishers written for JetStream: headers that JetStream acts upon, and its form of errors.

A JetStream client publishes to the subject of a stream, with a reply subject, and waits there for a `PubAck` or for
JetStream's form of an error:

    {"stream":"S","seq":5}      {"stream":"S","seq":2,"duplicate":true}
    {"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}

Clients give the three fields of the error to the constructors of their exceptions, so it has no others. Tidelog's own
code, sentence and details stand beside it, in `tidelog`, and in the headers of the answer.

Names of headers are compared as JetStream does: case counts, and the first of several counts. Of a value only leading
blanks are cut: a tab belongs to it, so that an id behind a tab is another one. A header that JetStream acts upon is
obeyed (`PublishHeaders`), or the message is refused: nothing is acknowledged that a publisher asked for otherwise.
An empty value asks for nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypedDict

from wire.error_details import ERR_CODE, LAST_OFFSET
from wire.errors import Code, TidelogError

MESSAGE_ID: Final = "Nats-Msg-Id"
MAY_ACT: Final = b"\r\nNats-"
"""No block of headers without these bytes has one that JetStream acts upon."""

_MESSAGE_ID: Final = b"\r\nNats-Msg-Id: "
_FIELD: Final = re.compile(rb"\r\nNats-([A-Za-z-]+): *(.*?)(?=\r\n|\Z)", re.DOTALL)
"""A value begins behind leading blanks, and ends at a CRLF, as nats-server reads it."""
_DURATION: Final = re.compile(rb"(\d+(\.\d+)?(h|m|s|ms|us|ns))+")

WRONG_SEQUENCE: Final = 10071
_WRONG_STREAM: Final = 10060
_WRONG_MESSAGE_ID: Final = 10070
_ROLLUP: Final = 10111
_NO_SUBJECT_SEQUENCE: Final = 10193


class _Refused(NamedTuple):
    """A header for a feature that streams of Tidelog do not have."""

    err_code: int
    what: str


_REFUSED_FIRST: Final[Mapping[bytes, _Refused]] = {
    b"TTL": _Refused(10166, "records of their own lifetime"),
    b"Incr": _Refused(10168, "counters"),
    b"Batch-Id": _Refused(10174, "batches that are published as a whole"),
    b"Schedule": _Refused(10188, "messages for later"),
    b"Scheduler": _Refused(10212, "messages for later"),
    b"Schedule-Next": _Refused(10212, "messages for later"),
    b"Stream-Source": _Refused(10227, "records of other streams' sequences"),
}
"""Refused headers in the order of JetStream's checks, which come before its check for repetitions."""
_ROLLUPS: Final = _Refused(_ROLLUP, "rollups, which remove the records before")
"""Refused only in a new message: JetStream acknowledges a repetition whatever it says about rollups."""
_ACTING: Final = frozenset(
    {
        *_REFUSED_FIRST,
        b"Msg-Id",
        b"Rollup",
        b"Expected-Stream",
        b"Expected-Last-Sequence",
        b"Expected-Last-Subject-Sequence",
        b"Expected-Last-Subject-Sequence-Subject",
        b"Expected-Last-Msg-Id",
    }
)


def sole_message_id(block: bytes) -> bytes | None:
    """Returns the message id in a block of headers without any other that is acted upon, written as most clients write
    it. None: the block needs `PublishHeaders.of`."""
    at = block.find(MAY_ACT)
    if not block.startswith(_MESSAGE_ID, at) or block.find(MAY_ACT, at + 1) >= 0:
        return None
    start = at + len(_MESSAGE_ID)
    end = block.find(b"\r\n", start)
    message_id = block[start:end] if end >= 0 else b""
    return message_id if message_id[:1] not in (b" ", b"") else None


@dataclass(frozen=True, slots=True)
class PublishHeaders:
    """The headers of one message that are acted upon: names without `Nats-`, values that are not empty."""

    fields: Mapping[bytes, bytes]

    @classmethod
    def of(cls, block: bytes | None) -> PublishHeaders | None:
        """Returns None when the message is stored, whatever else its headers say."""
        if block is None or MAY_ACT not in block:
            return None
        fields: dict[bytes, bytes] = {}
        seen: set[bytes] = set()
        for name, value in _FIELD.findall(block):
            if name in _ACTING and name not in seen:
                seen.add(name)
                if value:
                    fields[name] = value
        return cls(fields) if fields else None

    @property
    def message_id(self) -> bytes | None:
        return self.fields.get(b"Msg-Id")

    @property
    def asks_for_more(self) -> bool:
        """Whether there is more to obey than a message id."""
        return len(self.fields) > (b"Msg-Id" in self.fields)

    @property
    def last_message_id(self) -> bytes | None:
        """The message id that the last record must have."""
        return self.fields.get(b"Expected-Last-Msg-Id")

    def refuse(self, stream: str, subject: str) -> TidelogError | None:
        """Returns the refusal that follows from the message and the stream alone, and comes before all other checks."""
        fields = self.fields
        wanted = fields.get(b"Expected-Stream")
        if wanted is not None and wanted != stream.encode():
            return _error(
                Code.WRONG_STREAM,
                _WRONG_STREAM,
                f"the message expects stream {_shown(wanted)}, and stream {stream!r} owns its subject",
            )
        for name, refused in _REFUSED_FIRST.items():
            if name in fields:
                return _not_supported(name, fields[name], refused, stream)
        other = fields.get(b"Expected-Last-Subject-Sequence-Subject")
        if other is None:
            return None
        if b"Expected-Last-Subject-Sequence" not in fields:
            return _error(
                Code.BAD_REQUEST,
                _NO_SUBJECT_SEQUENCE,
                "Nats-Expected-Last-Subject-Sequence-Subject comes without Nats-Expected-Last-Subject-Sequence;"
                " give both",
            )
        if other != subject.encode():
            return _error(
                Code.NOT_SUPPORTED,
                WRONG_SEQUENCE,
                f"the message expects the last sequence of subject {_shown(other)}, and a partition of {stream!r} has"
                f" one subject, {subject!r}; leave Nats-Expected-Last-Subject-Sequence-Subject out",
            )
        return None

    def refuse_new(self, stream: str) -> TidelogError | None:
        """Returns the refusal of a message that is no repetition."""
        rollup = self.fields.get(b"Rollup")
        return None if rollup is None else _not_supported(b"Rollup", rollup, _ROLLUPS, stream)

    def expected_ends(self) -> tuple[int, ...]:
        """Returns the ends (exclusive) that the log must have: a sequence of JetStream is an offset + 1. -1, which no
        log has, stands for a value that is no number."""
        names = (b"Expected-Last-Sequence", b"Expected-Last-Subject-Sequence")
        return tuple(_sequence(self.fields[name]) for name in names if name in self.fields)


def wrong_message_id(wanted: bytes, last: bytes | None) -> TidelogError:
    """Returns the error when the last record has not the message id that the message expects."""
    told = "no message id" if last is None else f"message id {_shown(last)}"
    return _error(
        Code.INCORRECT_MESSAGE_ID,
        _WRONG_MESSAGE_ID,
        f"the last record has {told}, not the expected {_shown(wanted)}; read what was written, and decide again",
    )


def _error(code: Code, err_code: int, message: str) -> TidelogError:
    return TidelogError(code, message, [ERR_CODE.of(err_code)])


def _not_supported(name: bytes, value: bytes, refused: _Refused, stream: str) -> TidelogError:
    err_code = refused.err_code
    if (name == b"TTL" and not _is_ttl(value)) or (name == b"Incr" and not _is_increment(value)):
        return _error(
            Code.BAD_REQUEST,
            10165 if name == b"TTL" else 10171,
            f"Nats-{name.decode()}: {_shown(value)} is no value of this header; and streams of Tidelog have no"
            f" {refused.what}: leave it out",
        )
    return _error(
        Code.NOT_SUPPORTED,
        err_code,
        f"the message has header Nats-{name.decode()}, and stream {stream!r} has no {refused.what}; leave it out",
    )


def _is_ttl(value: bytes) -> bool:
    """Whether the value is seconds from 1 on, a duration as Go writes it of at least a second, or never."""
    if value == b"never":
        return True
    if value.isdigit():
        return int(value[:20]) > 0
    return _DURATION.fullmatch(value) is not None


def _is_increment(value: bytes) -> bool:
    return value.lstrip(b"+-").isdigit() and len(value) - len(value.lstrip(b"+-")) <= 1


def _sequence(value: bytes) -> int:
    return int(value) if value.isdigit() and len(value) < 20 else -1


def _shown(value: bytes) -> str:
    text = value[:80].decode("utf-8", "replace")
    return repr(text + "…" if len(value) > 80 else text)


# ---- errors ----------------------------------------------------------------------------------------------------------


class ErrorForm(TypedDict):
    """The fields of an error that JetStream's clients know."""

    code: int
    err_code: int
    description: str


_HTTP: Final = {_ROLLUP: 500}
"""HTTP's codes of errors that carry JetStream's number; 400 for the others."""
_BAD_REQUEST: Final = (400, 10003)
_TOO_LARGE: Final = (400, 10054)
_INSUFFICIENT: Final = (503, 10023)
_UNAVAILABLE: Final = (503, 10008)
_NOT_STORED: Final = (503, 10077)
_FORMS: Final[Mapping[Code, tuple[int, int]]] = {
    Code.INCORRECT_OFFSET: (400, WRONG_SEQUENCE),
    Code.RECORD_TOO_LARGE: _TOO_LARGE,
    Code.MESSAGE_TOO_LARGE: _TOO_LARGE,
    Code.NO_SPACE: (500, 10047),
    Code.BACKPRESSURE: _INSUFFICIENT,
    Code.NOT_ENOUGH_REPLICAS: _UNAVAILABLE,
    Code.UNAVAILABLE: _UNAVAILABLE,
    Code.NOT_LEADER: _UNAVAILABLE,
    Code.READONLY: (400, 10109),
    Code.BAD_REQUEST: _BAD_REQUEST,
    Code.LIMIT_REACHED: _BAD_REQUEST,
    Code.CORRUPT_ENVELOPE: _BAD_REQUEST,
}
"""(HTTP's code, JetStream's number) of errors that do not carry a number. Records of all other errors could not be
stored, or may not have been."""


def error_form(error: TidelogError) -> ErrorForm:
    number = None if error.code.unknown_outcome else error.detail(ERR_CODE)
    if number is not None:
        return {"code": _HTTP.get(number, 400), "err_code": number, "description": error.message}
    code, err_code = _FORMS.get(error.code, _NOT_STORED)
    description = error.message
    last = error.detail(LAST_OFFSET)
    if error.code is Code.INCORRECT_OFFSET and last is not None:
        description = f"wrong last sequence: {last + 1}"
    return {"code": code, "err_code": err_code, "description": description}


def refusal(error: TidelogError, stream: str, partition: int) -> dict[str, Any]:
    """Returns the body of the answer to a bare publish that was not stored."""
    return {
        "error": error_form(error),
        "stream": stream,
        "seq": 0,
        "partition": partition,
        "tidelog": error.to_json(),
    }
