"""Details of errors: values beside the sentence, which a receiver may act on.

Each detail is declared once, here; the rows of `wire.errors.Code` say which codes carry it. Details travel as texts: in
headers of NATS (`log_start` as `Tidelog-Log-Start`) and in the `details` of an error in JSON.

    writing     TidelogError(Code.OFFSET_BEFORE_LOG, "…", [LOG_START.of(17)])
    reading     error.detail(LOG_START)      17; None where there is none, or where a peer sent something else
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")

_MOST_DIGITS = len(str((1 << 63) - 1))


@dataclass(frozen=True, slots=True, eq=False)
class Detail(Generic[_T]):
    name: str
    help: str
    values: str
    """The possible values, in words."""
    encode: Callable[[_T], str]
    decode: Callable[[str], _T | None]
    """Returns None for a text that stands for no value."""

    def of(self, value: _T) -> tuple[str, str]:
        """Returns an entry of an error's details."""
        return self.name, self.encode(value)


def whole_number(text: str) -> int | None:
    """Reads a number from 0 to 2**63 - 1, in ASCII digits; None for any other text that a peer may have sent."""
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return None
    number = int(text)
    return number if number < 1 << 63 else None


def _number(name: str, help: str) -> Detail[int]:  # noqa: A002 - the name of the field
    return Detail(name, help, "whole number", str, whole_number)


def _text(name: str, help: str) -> Detail[str]:  # noqa: A002
    return Detail(name, help, "text", str, str)


def _flag(name: str, help: str) -> Detail[bool]:  # noqa: A002
    return Detail(name, help, "true, or absent", lambda value: "true" if value else "", lambda text: bool(text) or None)


BROKER = _text("broker", "the broker that answers")
CURSOR_VERSION = _number("cursor_version", "of the cursor as it is; 0: it does not exist")
DELETIONS_GONE = _flag(
    "deletions_gone", "the offset is in the log, and yet nothing can be appended to the log below it (R39)"
)
END = _number("end", "the end of the committed log, exclusive")
ERR_CODE = _number("err_code", "JetStream's number of this error, told to bare publishes")
EXPECTED_SEQUENCE = _number("expected_sequence", "the sequence number that comes next for this producer")
LAST_OFFSET = Detail(
    "last_offset",
    "the last offset of the log; -1 where it is empty",
    "whole number, or -1",
    str,
    lambda text: -1 if text == "-1" else whole_number(text),
)
LEADER = _text("leader", "the broker that leads, as far as the one that answers knows; may be empty")
LEADER_EPOCH = _number("leader_epoch", "of the broker that answers")
LIMIT = _text("limit", "the limit that was met, by its name in docs/reference.md; of a quota: the setting")
LOG_START = _number("log_start", "the first offset of the log")
MAX_PAYLOAD = _number("max_payload", "bytes of a message that the NATS server carries")
OFFSET = _number("offset", "where the log of the requester's LeaderEpoch ends")
OUTCOME = _text("outcome", "`not_written`, or `unknown`: it may have been written, or committed")
REASON = _text("reason", "the code for which the broker that answers did not store the record")
REMEMBERED_MS = _number("remembered_ms", "for so long back every producer is remembered")
REPEATED = _flag("repeated", "an earlier attempt lost its answer and may have taken effect")
RETRY_AFTER_MS = _number("retry_after_ms", "how long to wait before the next attempt")
SIZE = _number("size", "bytes of the message that was too large")
VERSION = _number("version", "the partitioning version of the stream")

ADDED_BY_CLIENTS: tuple[Detail[Any], ...] = (OUTCOME, REPEATED)
"""Details that a client adds to the errors of its calls, whatever their codes are. Those alone that a code names
travel."""


def declared_details() -> list[Detail[Any]]:
    """Returns all details of this module, in its order."""
    return [found for found in globals().values() if isinstance(found, Detail)]
