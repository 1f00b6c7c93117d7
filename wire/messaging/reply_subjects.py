"""Reply subjects: on which of them a broker answers.

A publisher on NATS can put any subject into a request's reply. A broker that answered there would write into streams,
call NATS services, or send to other brokers in the place of a client that may do none of this itself. So:

    a request of a client is answered on a subject that can be a client's inbox: plain, outside the cluster's namespace
                          (which has the brokers' inboxes), not in `$…`, and owned by no stream of the cluster
    a request of a broker is answered in a broker's inbox, `<ns>.inbox.<broker>.…`

Nearly all clients' inboxes begin with `_INBOX.`, which no stream can own. A run of messages with such replies costs a
few passes of numpy over the column. Other replies are judged by the part before their last dot, and the verdicts are
kept until streams are created or deleted; a connection has one such part for all of its requests.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import numpy as np

from wire.messaging.transport import UniformRun
from wire.subjects import Subjects, ingest_owner

MAX_VERDICTS = 4096
"""Limit of the prefixes whose verdicts are kept; all are forgotten when one more comes."""

_CLIENTS = b"_INBOX."
_CLIENTS_WORD = np.frombuffer(_CLIENTS + b"\0", "<u8")[0]
_CLIENTS_MASK = np.frombuffer(b"\xff" * len(_CLIENTS) + b"\0", "<u8")[0]
_WORD = 8
_DOT = ord(".")
_OF_PLAIN = bytes(byte for byte in range(ord(" ") + 1, 256) if byte not in b"\x7f*>")
"""The bytes that a plain subject may have."""
_COLUMN_FROM = 4096
"""Length in bytes from which on numpy finds other bytes faster; its calls cost more for shorter texts."""


class _Prefix(enum.Enum):
    """The verdict on all subjects that begin with a prefix."""

    FREE = enum.auto()
    """Each plain subject can be a client's inbox."""
    FORBIDDEN = enum.auto()
    MIXED = enum.auto()
    """Streams own some of the subjects."""


class ReplySubjects:
    """Judges reply subjects. `streams`: the subjects of all streams; `version`: changes whenever they may have."""

    def __init__(self, subjects: Subjects, streams: Callable[[], Iterable[str]], version: Callable[[], int]) -> None:
        self._namespace = subjects.namespace
        self._brokers = subjects.broker_inboxes().encode()
        self._inboxes_of_brokers: set[bytes] = set()
        """Replies on which brokers are answered, without their last tokens: one entry per connection."""
        self._streams = streams
        self._version = version
        self._known_version: int | None = None
        self._owned: frozenset[str] = frozenset()
        self._above_owned: frozenset[bytes] = frozenset()
        """Every prefix, with its dot, below which a stream owns a subject."""
        self._verdicts: dict[bytes, _Prefix] = {}
        self.refused = 0
        """Number of requests and publishes with a reply subject on which a broker does not answer."""

    # ---- one by one

    def is_brokers(self, reply: bytes) -> bool:
        """Whether a request between brokers is answered on `reply`; a refused one is counted."""
        end = reply.rfind(b".")
        if reply[:end] in self._inboxes_of_brokers and reply[end + 1 :].isalnum():
            return True
        allowed = reply.startswith(self._brokers) and _is_plain(reply)
        if allowed:
            if len(self._inboxes_of_brokers) >= MAX_VERDICTS:
                self._inboxes_of_brokers.clear()
            self._inboxes_of_brokers.add(reply[:end])
        self.refused += not allowed
        return allowed

    def is_clients(self, reply: bytes) -> bool:
        """Whether a client's request is answered on `reply`; a refused one is counted."""
        allowed = self._may_be_clients(reply)
        self.refused += not allowed
        return allowed

    def is_clients_not_brokers(self, reply: bytes) -> bool:
        """`is_clients` for questions that brokers ask, too: they get no answer, and are not counted."""
        return not reply.startswith(self._brokers) and self.is_clients(reply)

    def _may_be_clients(self, reply: bytes) -> bool:
        if not _is_plain(reply):
            return False
        if reply.startswith(_CLIENTS):
            return True
        verdict = self._verdict(reply[: reply.rfind(b".") + 1])
        if verdict is _Prefix.MIXED:
            text = reply.decode(errors="replace")
            if text == self._namespace or text.startswith("$"):  # a single token
                return False
            return ingest_owner(text, self._owned) is None
        return verdict is _Prefix.FREE

    def _verdict(self, prefix: bytes) -> _Prefix:
        """Returns the verdict on `prefix`, which ends with a dot, or is empty."""
        self._refresh()
        verdict = self._verdicts.get(prefix)
        if verdict is None:
            if len(self._verdicts) >= MAX_VERDICTS:
                self._verdicts.clear()
            verdict = self._verdicts[prefix] = self._judge(prefix)
        return verdict

    def _judge(self, prefix: bytes) -> _Prefix:
        try:
            first = prefix.decode().partition(".")[0]
        except UnicodeDecodeError:
            return _Prefix.FORBIDDEN
        if first.startswith("$") or first == self._namespace:
            return _Prefix.FORBIDDEN
        if not prefix or prefix in self._above_owned or prefix[:-1].decode() in self._owned:
            return _Prefix.MIXED
        return _Prefix.FREE

    def _refresh(self) -> None:
        version = self._version()
        if version == self._known_version:
            return
        self._known_version = version
        self._verdicts.clear()
        self._owned = frozenset(self._streams())
        above = set()
        for subject in self._owned:
            encoded = subject.encode()
            at = encoded.find(b".")
            while at >= 0:
                above.add(encoded[: at + 1])
                at = encoded.find(b".", at + 1)
        self._above_owned = frozenset(above)

    # ---- many at once

    def checked(self, replies: list[bytes | None]) -> list[bytes | None]:
        """Returns the replies, with None in place of each on which a broker does not answer; counts those."""
        given = [reply for reply in replies if reply is not None]
        if not given or self._all_share_a_free_prefix(given):
            return replies
        kept = [reply if reply is None or self._may_be_clients(reply) else None for reply in replies]
        self.refused += kept.count(None) - replies.count(None)
        return kept

    def _all_share_a_free_prefix(self, replies: list[bytes]) -> bool:
        """Whether all replies are surely clients'. False: each must be looked at."""
        prefix = _CLIENTS
        if not replies[0].startswith(prefix):
            prefix = replies[0][: replies[0].rfind(b".") + 1]
            if not _is_plain(replies[0]) or self._verdict(prefix) is not _Prefix.FREE:
                return False
        if len(replies) == 1:
            return prefix is not _CLIENTS or _is_plain(replies[0])
        joined = b"\n".join(replies)  # NATS carries no reply with a line end in it
        return (
            joined.count(b"\n" + prefix) == len(replies) - 1
            and _is_plain_but_for(joined, len(replies) - 1)
            and b".." not in joined
            and b".\n" not in joined
            and not joined.endswith(b".")
        )

    def allows_run(self, run: UniformRun) -> bool:
        """Whether all replies of a run are surely clients'. False: each must be looked at."""
        if run.reply is None:
            return True
        at, size = run.reply
        column = np.ndarray((run.count, size), np.uint8, run.block, at, (run.stride, 1))
        words = np.ndarray((run.count,), "<u8", run.block, at, (run.stride,)) if size >= _WORD else None
        if words is None or not ((words & _CLIENTS_MASK) == _CLIENTS_WORD).all():
            first = column[0].tobytes()
            shared = first.rfind(b".") + 1
            if not _is_plain(first) or not (column[:, :shared] == column[0, :shared]).all():
                return False
            if self._verdict(first[:shared]) is not _Prefix.FREE:
                return False
        return _all_plain(np.ascontiguousarray(column))


def _is_plain(subject: bytes) -> bool:
    """Whether it is a plain subject: tokens without wildcards, blanks and control characters, with dots in between."""
    return (
        subject != b""
        and not subject.translate(None, _OF_PLAIN)
        and b".." not in subject
        and not subject.startswith(b".")
        and not subject.endswith(b".")
    )


def _is_plain_but_for(text: bytes, line_ends: int) -> bool:
    """Whether it consists of bytes of plain subjects and exactly this many line ends."""
    if len(text) < _COLUMN_FROM:
        return len(text.translate(None, _OF_PLAIN)) == line_ends
    column = np.frombuffer(text, np.uint8)
    return bool(
        np.count_nonzero(column <= ord(" ")) == line_ends
        and column.max() < 0x7F
        and b"*" not in text
        and b">" not in text
    )


def _all_plain(column: np.ndarray[tuple[int, int], np.dtype[np.uint8]]) -> bool:
    """Whether each row is a plain subject, provided that none of them begins with a dot."""
    text = column.reshape(-1)
    dots = text == _DOT
    return bool(
        text.min() > ord(" ")
        and text.max() < 0x7F
        and not (text == ord("*")).any()
        and not (text == ord(">")).any()
        and not (dots[1:] & dots[:-1]).any()
        and not dots[column.shape[1] - 1 :: column.shape[1]].any()
    )
