"""Batches of one partition before they are acknowledged, and the records that gather in the newest one.

GATHERING -> SEALED -> SENT <-> RESEND -> RESOLVED (acknowledged or failed)
                ^                  |
                +------------------+  on under a new session

Every state but RESOLVED can become MOVED: the batch is in no log, and its records are in other batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from wire.batch.message_ids import MAX_MESSAGE_IDS
from wire.batch.message_ids import NAME as MESSAGE_ID
from wire.errors import TidelogError
from wire.types import FIRST_TRANSACTIONAL_ID

_T = TypeVar("_T")


class ProducerSession(NamedTuple):
    """Answer of `producer.init`, or of the coordinator of a transactional producer. Sequences begin at 0 in each
    session, per partition."""

    producer_id: int
    producer_epoch: int
    key: bytes = b""
    """Proves that the id is this producer's (`wire.security.producer_keys`)."""

    @property
    def is_transactional(self) -> bool:
        return self.producer_id >= FIRST_TRANSACTIONAL_ID


class BatchState(Enum):
    GATHERING = "gathering"
    SEALED = "sealed"
    SENT = "sent"
    RESEND = "resend"
    RESOLVED = "resolved"
    MOVED = "moved"


Claim: TypeAlias = tuple[int, Sequence[int] | None, Any]
"""A claim: the receipts due for a run of a batch's records. The place of the first in the batch, and
- for a run of `send_many`, the positions in the caller's list, and the driver's future for all of them;
- for records given one by one, None, and the list of the driver's futures, one per record.
Futures are not looked at here."""


class PendingBatch:
    """Records on their way to one partition, as columns. `keys`, `headers` and `timestamps` are None as long as no
    record has any."""

    __slots__ = (
        "attempts",
        "base_sequence",
        "claims",
        "created_at",
        "deadline",
        "encoded",
        "expected_offset",
        "has_message_ids",
        "headers",
        "keys",
        "last_error",
        "moved_to",
        "newest_epoch",
        "pinned",
        "place",
        "sent_at",
        "sent_epoch",
        "sent_first",
        "session",
        "size",
        "state",
        "timestamp",
        "timestamps",
        "uncertain",
        "values",
    )

    def __init__(self, created_at: float, deadline: float, expected_offset: int | None = None) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes | None] | None = None
        self.timestamps: list[int | None] | None = None
        self.claims: list[Claim] = []
        self.expected_offset = expected_offset
        """The offset that its first record must get; None: any."""
        self.pinned: list[int] | None = None
        """Places of the records for which the program has chosen this partition, ascending; None: there are none."""
        self.moved_to: dict[PendingBatch, None] | None = None
        """Once it is MOVED, the batches that its records are in; None: not moved, or in none."""
        self.has_message_ids = False
        """Some header may be a message id; then there are at most MAX_MESSAGE_IDS records."""
        self.place = 0
        """The number of batches of this partition that began before it."""
        self.size = 0
        """Upper bound of the encoded size of the records, in bytes."""
        self.created_at = created_at
        self.deadline = deadline
        self.state = BatchState.GATHERING
        self.session: ProducerSession | None = None
        self.base_sequence = -1
        self.attempts = 0
        self.sent_at = 0.0
        self.sent_epoch = 0
        self.newest_epoch = 0
        """The newest LeaderEpoch of all attempts in its session."""
        self.sent_first = False
        """All batches before it were resolved when its newest attempt was sent."""
        self.uncertain = False
        """Some attempt may have been written although this producer has no answer."""
        self.last_error: TidelogError | None = None
        self.timestamp = 0
        """ns since 1970; the driver sets it at the first attempt."""
        self.encoded: Any = None
        """The driver's encoding of these records under `session`."""

    def add(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        timestamp: int | None,
        size: int,
        future: Any,
    ) -> None:
        """Takes one record that was given alone."""
        place = len(self.values)
        if self.claims and self.claims[-1][1] is None:
            self.claims[-1][2].append(future)
        else:
            self.claims.append((place, None, [future]))
        self.values.append(value)
        self.keys = _extended(self.keys, place, key)
        self.headers = _extended(self.headers, place, headers)
        if headers is not None and _may_identify(headers):
            self.has_message_ids = True
        self.timestamps = _extended(self.timestamps, place, timestamp)
        self.size += size

    def add_run(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes | None] | None,
        size: int,
        indices: Sequence[int],
        future: Any,
    ) -> None:
        """Takes records that share one claim; `size` bounds all of them together. `headers`: with message ids."""
        place, count = len(self.values), len(values)
        self.claims.append((place, indices, future))
        self.values.extend(values)
        if keys is not None and self.keys is None:
            self.keys = [None] * place
        if self.keys is not None:
            self.keys.extend([None] * count if keys is None else keys)
        if headers is not None:
            self.has_message_ids = True
            self.headers = [None] * place if self.headers is None else self.headers
        if self.headers is not None:
            self.headers.extend([None] * count if headers is None else headers)
        if self.timestamps is not None:
            self.timestamps.extend([None] * count)
        self.size += size

    def pin(self, count: int) -> None:
        """Notes that the program has chosen the partition of the last `count` records."""
        places = range(len(self.values) - count, len(self.values))
        if self.pinned is None:
            self.pinned = []
        self.pinned += places

    def doubt(self) -> None:
        """Marks it to be sent again; the attempt before may have been written."""
        self.state = BatchState.RESEND
        self.uncertain = True

    def begin_anew(self) -> None:
        """Resets it: it is not in the log, and sequence and encoding of its session are void."""
        self.state = BatchState.SEALED
        self.session = None
        self.base_sequence = -1
        self.encoded = None
        self.uncertain = False
        self.newest_epoch = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def is_settled(self) -> bool:
        """Each of its records is acknowledged or has failed."""
        if self.state is BatchState.MOVED:
            return all(batch.is_settled for batch in self.moved_to or ())
        return self.state is BatchState.RESOLVED

    @property
    def may_be_written(self) -> bool:
        """An attempt is out, or an earlier one was left without an answer."""
        return self.uncertain or self.state is BatchState.SENT

    @property
    def is_transactional(self) -> bool:
        """It was sent as a part of a transaction."""
        return self.session is not None and self.session.is_transactional

    @property
    def has_values_only(self) -> bool:
        return self.keys is None and self.headers is None and self.timestamps is None

    def __repr__(self) -> str:
        return f"<PendingBatch {len(self)} records seq={self.base_sequence} {self.state.value} attempt={self.attempts}>"


class Gathering:
    """Batches that were never sent: the open one, which takes records, and before it the sealed ones.

    `batch_bytes` bounds a batch; a batch fails `delivery_timeout` seconds after its first record.
    """

    __slots__ = ("_batch_bytes", "_delivery_timeout", "open", "sealed")

    def __init__(self, batch_bytes: int, delivery_timeout: float) -> None:
        self._batch_bytes = batch_bytes
        self._delivery_timeout = delivery_timeout
        self.open: PendingBatch | None = None
        """The batch that the next record goes into, if it fits."""
        self.sealed: deque[PendingBatch] = deque()

    @property
    def is_empty(self) -> bool:
        return self.open is None and not self.sealed

    @property
    def batches(self) -> list[PendingBatch]:
        """All batches, oldest first."""
        return [*self.sealed, *([self.open] if self.open is not None else [])]

    @property
    def oldest(self) -> PendingBatch | None:
        return self.sealed[0] if self.sealed else self.open

    def append(
        self,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        timestamp: int | None,
        size: int,
        future: Any,
        now: float,
    ) -> bool:
        """Takes one record; `size` bounds its encoded size. True when a batch was sealed."""
        batch = self.open
        sealed = False
        if (
            batch is not None
            and len(batch) >= MAX_MESSAGE_IDS
            and (batch.has_message_ids or (headers is not None and _may_identify(headers)))
        ):
            self.seal()
            batch, sealed = None, True
        if batch is None or batch.size + size > self._batch_bytes:
            batch, full = self._batch_for(size, now)
            sealed = sealed or full
        batch.add(value, key, headers, timestamp, size, future)
        return sealed

    def append_expecting(
        self,
        offset: int,
        value: bytes | None,
        key: bytes | None,
        headers: bytes | None,
        timestamp: int | None,
        size: int,
        future: Any,
        now: float,
    ) -> None:
        """Takes one record that must get that offset: it has a batch of its own."""
        self.seal()
        batch = PendingBatch(now, now + self._delivery_timeout, offset)
        batch.add(value, key, headers, timestamp, size, future)
        batch.state = BatchState.SEALED
        self.sealed.append(batch)

    def append_run(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        headers: Sequence[bytes | None] | None,
        size: int,
        indices: Sequence[int],
        future: Any,
        now: float,
    ) -> bool:
        """Takes records that lie in one batch: `size` bounds all of them together and must not exceed a batch.
        `headers`: with message ids, of MAX_MESSAGE_IDS records at most. True when a batch was sealed."""
        ends_open = self.open is not None and (headers is not None or self.open.has_message_ids)
        if ends_open:
            self.seal()
        batch, sealed = self._batch_for(size, now)
        batch.add_run(values, keys, headers, size, indices, future)
        return sealed or ends_open

    def pin(self, count: int) -> None:
        """Notes that the program has chosen this partition for the last `count` records of the open batch."""
        assert self.open is not None
        self.open.pin(count)

    def has_room(self, size: int) -> bool:
        """Returns whether the open batch has room for `size` bytes, or no batch is open."""
        return self.open is None or self.open.size + size <= self._batch_bytes

    def room_for(self, size: int) -> int:
        """Returns the bytes that still fit into the batch that a record of `size` bytes would go into."""
        room = self._batch_bytes - (self.open.size if self.open is not None else 0)
        return room if size <= room else self._batch_bytes

    def _batch_for(self, size: int, now: float) -> tuple[PendingBatch, bool]:
        sealed = False
        batch = self.open
        if batch is not None and batch.size + size > self._batch_bytes:
            self.seal()
            batch, sealed = None, True
        if batch is None:
            batch = self.open = PendingBatch(now, now + self._delivery_timeout)
        return batch, sealed

    def seal(self) -> None:
        """Seals the open batch: it takes no more records."""
        if self.open is not None:
            self.open.state = BatchState.SEALED
            self.sealed.append(self.open)
            self.open = None

    def clear(self) -> None:
        self.open = None
        self.sealed.clear()

    def remove(self, batch: PendingBatch) -> None:
        if batch is self.open:
            self.open = None
        elif batch in self.sealed:
            self.sealed.remove(batch)


def _may_identify(headers: bytes) -> bool:
    return MESSAGE_ID in headers


def _extended(column: list[_T | None] | None, place: int, cell: _T | None) -> list[_T | None] | None:
    """Returns the column with the cell. A column begins with the first record that has one; `place`: of the new
    record."""
    if column is None:
        if cell is None:
            return None
        column = [None] * place
    column.append(cell)
    return column
