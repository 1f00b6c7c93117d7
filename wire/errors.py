"""The error table: every refusal a client or a peer can get, and the reaction to it.

Errors have no place in the 16 bytes of a replication answer and are never an empty success: they travel in NATS headers
(`Tidelog-Error: CODE`, one header per detail) and, in JSON answers, as `{"error": {"code", "message", "retriable",
…}}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any, NamedTuple, Self, TypedDict, TypeVar

from wire.error_details import (
    BROKER,
    CURSOR_VERSION,
    DELETIONS_GONE,
    END,
    ERR_CODE,
    EXPECTED_SEQUENCE,
    LAST_OFFSET,
    LEADER,
    LEADER_EPOCH,
    LIMIT,
    LOG_START,
    MAX_PAYLOAD,
    OFFSET,
    OUTCOME,
    REASON,
    REMEMBERED_MS,
    RETRY_AFTER_MS,
    SIZE,
    VERSION,
    Detail,
)

_T = TypeVar("_T")

ERROR_HEADER = "Tidelog-Error"
MESSAGE_HEADER = "Tidelog-Message"
DETAIL_PREFIX = "Tidelog-"
MAX_HEADER_CHARACTERS = 2000
MAX_MESSAGE_CHARACTERS = 8000
"""Limit of the sentence of an error in JSON."""
CLUSTER_HEADER = "Tidelog-Cluster"
"""Id of the cluster that answers, on every answer of the API; on a request: of the cluster that should answer."""
_NO_DETAILS = (ERROR_HEADER, MESSAGE_HEADER, CLUSTER_HEADER)


MOST_RETRY_AFTER = 10.0
"""Seconds. Brokers ask for some ms; a longer pause does not come from a broker."""


class Entry(NamedTuple):
    retriable: bool
    """The same request may succeed later, unchanged."""
    refresh_metadata: bool
    """The client's metadata on leaders or partitions is out of date."""
    unknown_outcome: bool = False
    """The request may have taken effect."""
    details: tuple[Detail[Any], ...] = ()
    """That the error may carry. An OUTCOME_UNKNOWN carries those of its reason as well."""


class Code(Enum):
    """Codes and their rows. The names are the wire spelling."""

    NOT_LEADER = Entry(True, True, details=(LEADER,))
    FENCED_LEADER_EPOCH = Entry(True, True, details=(LEADER_EPOCH, LEADER))
    OFFSET_BEFORE_LOG = Entry(False, False, details=(LOG_START, DELETIONS_GONE))
    OFFSET_AHEAD = Entry(False, False, details=(END,))
    LOG_TRUNCATED = Entry(False, False, details=(OFFSET,))
    DAMAGED = Entry(False, False, details=(BROKER,))
    BACKPRESSURE = Entry(True, False, details=(RETRY_AFTER_MS, LIMIT))
    LIMIT_REACHED = Entry(False, False, details=(LIMIT, RETRY_AFTER_MS))
    NO_SPACE = Entry(True, False, details=(RETRY_AFTER_MS,))
    NO_KEY = Entry(False, True)
    NOT_ENOUGH_REPLICAS = Entry(True, False)
    CONFIRM_TIMEOUT = Entry(True, False, True)
    OUTCOME_UNKNOWN = Entry(True, True, True, details=(REASON, RETRY_AFTER_MS, LEADER))
    STALE_PARTITIONING = Entry(True, True, details=(VERSION, LEADER))
    PARTITION_DRAINING = Entry(True, True)
    PARTITION_RETIRED = Entry(False, True)
    WRONG_KIND = Entry(False, False)
    WRONG_INCARNATION = Entry(False, True)
    OUT_OF_ORDER_SEQUENCE = Entry(False, False, details=(EXPECTED_SEQUENCE,))
    UNKNOWN_PRODUCER_ID = Entry(False, False, details=(REMEMBERED_MS,))
    UNPROVEN_PRODUCER = Entry(False, False)
    PRODUCER_FENCED = Entry(False, False)
    INCORRECT_OFFSET = Entry(False, False, details=(LAST_OFFSET,))
    INCORRECT_MESSAGE_ID = Entry(False, False, details=(ERR_CODE,))
    WRONG_STREAM = Entry(False, False, details=(ERR_CODE,))
    NOT_SUPPORTED = Entry(False, False, details=(ERR_CODE,))
    RECORD_TOO_LARGE = Entry(False, False)
    MESSAGE_TOO_LARGE = Entry(False, False, details=(SIZE, MAX_PAYLOAD))
    CORRUPT_BATCH = Entry(False, False)
    CORRUPT_ENVELOPE = Entry(False, False)
    BAD_REQUEST = Entry(False, False, details=(ERR_CODE,))
    READONLY = Entry(False, False)
    UNKNOWN_STREAM = Entry(False, True)
    STREAM_EXISTS = Entry(False, False)
    SUBJECT_TAKEN = Entry(False, False)
    BAD_NAME = Entry(False, False)
    BAD_SUBJECT = Entry(False, False)
    BAD_CONFIG = Entry(False, False)
    BAD_REPLICATION_FACTOR = Entry(False, False)
    NOT_ENOUGH_BROKERS = Entry(True, False)
    NOT_CONTROLLER = Entry(True, True)
    NOT_COORDINATOR = Entry(True, True)
    EMPTY_FOLDER = Entry(False, False)
    ID_IN_USE = Entry(False, False)
    WRONG_CLUSTER = Entry(False, False)
    UNKNOWN_GROUP = Entry(False, False)
    GROUP_NOT_EMPTY = Entry(False, False)
    UNKNOWN_MEMBER = Entry(False, False)
    FENCED_INSTANCE = Entry(False, False)
    STALE_GENERATION = Entry(True, False)
    STALE_COMMIT = Entry(False, False, details=(OUTCOME,))
    NOT_ASSIGNED = Entry(False, False)
    NOT_IN_TRANSACTION = Entry(False, False)
    TRANSACTION_ABORTED = Entry(False, False)
    TRANSACTION_COMMITTED = Entry(False, False)
    UNKNOWN_TRANSACTION = Entry(False, False)
    CURSOR_CHANGED = Entry(False, False, details=(CURSOR_VERSION,))
    STALE_EPOCH = Entry(False, True)
    LEADER_NOT_MOVED = Entry(False, True)
    NOT_PERMITTED = Entry(False, False)
    UNAVAILABLE = Entry(True, True, details=(RETRY_AFTER_MS, LEADER, VERSION, EXPECTED_SEQUENCE))
    INTERNAL = Entry(False, False)

    # Equal rows must stay distinct members, so the name takes part in the value.
    def __new__(cls, *_row: Any) -> Code:
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member

    def __init__(
        self,
        retriable: bool,
        refresh_metadata: bool,
        unknown_outcome: bool = False,
        details: tuple[Detail[Any], ...] = (),
    ) -> None:
        self.retriable = retriable
        self.refresh_metadata = refresh_metadata
        self.unknown_outcome = unknown_outcome
        self.details = details


class ErrorForm(TypedDict):
    """An error in JSON."""

    code: str
    message: str
    retriable: bool
    details: dict[str, str]


class TidelogError(Exception):
    """A refusal from the error table. `str(error)` is one sentence that names the thing, the value and the remedy.

    `details` are texts by name, as they travel; `detail` reads one that `wire.error_details` declares.
    """

    def __init__(self, code: Code, message: str, details: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = dict(details)

    @property
    def retriable(self) -> bool:
        """Whether the fault passes by itself, so that the same request may be sent again."""
        return self.code.retriable

    def detail(self, wanted: Detail[_T]) -> _T | None:
        """Returns the detail; None when there is none, or when a peer sent something else."""
        text = self.details.get(wanted.name)
        return None if text is None else wanted.decode(text)

    def with_details(self, *added: tuple[str, str]) -> Self:
        """Returns the same error with more details."""
        return type(self)(self.code, self.message, [*self.details.items(), *added])

    @property
    def retry_after(self) -> float | None:
        """Seconds that the sender asks to wait before the next attempt, MOST_RETRY_AFTER at most; None: it asks for
        none."""
        wait_ms = self.detail(RETRY_AFTER_MS)
        return None if wait_ms is None else min(wait_ms / 1000, MOST_RETRY_AFTER)

    def to_headers(self) -> dict[str, str]:
        """Returns NATS headers; detail `log_start` becomes `Tidelog-Log-Start`. Line breaks in texts become blanks, and
        texts longer than MAX_HEADER_CHARACTERS are cut: a refusal fits any message."""
        headers = {ERROR_HEADER: self.code.name, MESSAGE_HEADER: _one_line(self.message)}
        for name, value in self.details.items():
            headers[DETAIL_PREFIX + "-".join(part.capitalize() for part in name.split("_"))] = _one_line(value)
        return headers

    @classmethod
    def from_headers(cls, headers: Mapping[str, str] | None) -> TidelogError | None:
        """Returns the error that an answer carries, None for a success. An unknown code (of a newer broker) reads as
        INTERNAL."""
        if not headers or ERROR_HEADER not in headers:
            return None
        name = headers[ERROR_HEADER]
        details = {
            key[len(DETAIL_PREFIX) :].replace("-", "_").lower(): value
            for key, value in headers.items()
            if key.startswith(DETAIL_PREFIX) and key not in _NO_DETAILS
        }
        code = Code.__members__.get(name)
        message = headers.get(MESSAGE_HEADER, name)
        return cls(code, message, details) if code else cls(Code.INTERNAL, f"{name}: {message}", details)

    def to_json(self) -> ErrorForm:
        """Returns the form in which answers of the API carry it."""
        return {
            "code": self.code.name,
            "message": self.message[:MAX_MESSAGE_CHARACTERS],
            "retriable": self.code.retriable,
            "details": self.details,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TidelogError:
        """Reads the form that `to_json` makes; an unknown code reads as INTERNAL."""
        code = Code.__members__.get(str(value.get("code")), Code.INTERNAL)
        details = value.get("details")
        texts = {str(key): str(text) for key, text in details.items()} if isinstance(details, Mapping) else {}
        return cls(code, str(value.get("message", code.name)), texts)


# R36: Everything that waits or is kept for others has a limit and a refusal: uncommitted bytes, long polls, cold
# reads, producers, witnesses, probes and commands in flight, publishes above a quota.
# Hazard: A stranger, or a burst, that takes up a broker's memory or time.
def limit_reached(limit: str, sentence: str) -> TidelogError:
    """Returns a LIMIT_REACHED error. `limit`: its name in docs/reference.md."""
    return TidelogError(Code.LIMIT_REACHED, sentence, [LIMIT.of(limit)])


class CorruptData(Exception):
    """Bytes that do not decode: a bad CRC, magic, length or unknown column. Names the error and the place."""


class InvariantViolation(Exception):
    """A bug of ours, found by our own check. Never caught on the way: the process or the partition stops loudly."""


def require(holds: bool, invariant: str, found: object) -> None:
    """Raises InvariantViolation, with `invariant` and the facts found, unless it holds."""
    if not holds:
        raise InvariantViolation(f"{invariant}: {found}")


def _one_line(text: str) -> str:
    return " ".join(str(text).split())[:MAX_HEADER_CHARACTERS]
