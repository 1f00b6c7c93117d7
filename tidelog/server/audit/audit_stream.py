"""Writes audit records into the internal stream `__audit`, some time after the act: no act waits for its record.

Records wait in a queue that is bounded (QUEUED_RECORDS). When it is full, records of refused acts give way to
one of an act that may have changed something, and anything else that comes is dropped; refused acts take REFUSED_PER_S
places a second at most. Dropped records are counted, and their lines in the log are written all the same.

    queue ──take──> one batch ──append──> written
      ^                 │ refused as too large: half as many at the next attempt; a single record is dropped (ERROR)
      └───put back──────┘ any other failure: again after a pause
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import random
from typing import Final

from wire.budget import Bound, Budget
from wire.errors import Code, TidelogError
from wire.internal_records.audit_records import REFUSED, AuditRecord
from wire.retry import Retry

_log = logging.getLogger(__name__)

QUEUED_RECORDS: Final = Bound(
    on="audit records that wait to be written",
    items=1000,
    bytes=8 << 20,
    limit="those of a batch on its way included; records of refused acts give way",
    answer="the usual answer; the record is in the log only",
    counter="dropped_audit_records",
)
MAX_AT_ONCE: Final = 100
"""Records of one batch."""
MAX_BATCH_BYTES: Final = 128 << 10
"""JSON of the records of one batch; a larger record goes alone."""
REFUSED_PER_S = 10
"""Records of refused acts in a second; as many come at once after a pause."""
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
"""Seconds between two attempts, at most."""
LAST_ATTEMPT_S = 1.0
"""Seconds for the queued records when the broker ends."""

_TOO_LARGE: Final = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.CORRUPT_BATCH})
"""Refusals by NATS, and by the leader for a record and for the body of a batch. The same batch would be refused for
ever."""


@dataclass(frozen=True, slots=True)
class QueuedRecord:
    id: str
    operation: str
    is_refused: bool
    value: bytes
    """The record, as JSON."""


class AuditQueue:
    """The records to write. Pure. `dropped`: records left out or given up; `overflowed`: those that found it full."""

    def __init__(self) -> None:
        self.dropped = 0
        self.overflowed = 0
        self._records: deque[QueuedRecord] = deque()
        self._taken: list[QueuedRecord] = []
        self._room = Budget(QUEUED_RECORDS, "the queue")
        self._places = float(REFUSED_PER_S)
        self._filled_at = 0.0

    def __len__(self) -> int:
        """Number of records that wait and that are taken."""
        return self._room.items

    def put(self, record: AuditRecord, now: float) -> bool:
        """Queues a record. False: it was dropped. `now`: monotonic seconds."""
        is_refused = record["outcome"] == REFUSED
        if is_refused:
            elapsed, self._filled_at = max(0.0, now - self._filled_at), now
            self._places = min(REFUSED_PER_S, self._places + elapsed * REFUSED_PER_S)
            if self._places < 1.0:
                self.dropped += 1
                return False
        queued = QueuedRecord(record["id"], record["operation"], is_refused, json.dumps(record).encode())
        if not self._make_room(len(queued.value), evict=not is_refused):
            self._overflow()
            return False
        self._places -= is_refused
        self._records.append(queued)
        self._room.take(len(queued.value))
        return True

    def _make_room(self, size: int, *, evict: bool) -> bool:
        """Returns whether a record of `size` bytes has room. `evict`: records of refused acts give way."""
        while self._room.full(size):
            refused = next((old for old in self._records if old.is_refused), None) if evict else None
            if refused is None:
                return False
            self._records.remove(refused)
            self._room.release(len(refused.value))
            self._overflow()
        return True

    def _overflow(self) -> None:
        self.dropped += 1
        self.overflowed += 1

    def take(self, most: int) -> list[QueuedRecord]:
        """Takes the oldest records, at most `most` and MAX_BATCH_BYTES, but at least one; they keep their room until
        they are `put_back` or `finished`."""
        size = 0
        while self._records and len(self._taken) < most:
            size += len(self._records[0].value)
            if self._taken and size > MAX_BATCH_BYTES:
                break
            self._taken.append(self._records.popleft())
        return list(self._taken)

    def put_back(self) -> None:
        """Puts the taken records in front again."""
        self._records.extendleft(reversed(self._taken))
        self._taken.clear()

    def finished(self) -> None:
        """Drops the taken records: they are written, or given up."""
        self._room.release(sum(len(record.value) for record in self._taken), len(self._taken))
        self._taken.clear()


class AuditStream:
    """See the module. `append` writes records as a batch, and raises TidelogError or TimeoutError when it is uncertain
    that they are written; STREAM_EXISTS: a user's stream has the name. `monotonic`: seconds."""

    def __init__(self, append: Callable[[Sequence[bytes]], Awaitable[None]], monotonic: Callable[[], float]) -> None:
        self.queue = AuditQueue()
        self._append = append
        self._monotonic = monotonic
        self._at_once = MAX_AT_ONCE
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_told_overflow = False
        self._has_told_name = False
        """These two are reset when a batch is written."""

    def on_record(self, record: AuditRecord) -> None:
        overflowed = self.queue.overflowed
        if self.queue.put(record, self._monotonic()):
            self._came.set()
            if self._task is None:
                self._task = asyncio.get_running_loop().create_task(self._write_for_ever())
        if self.queue.overflowed > overflowed and not self._has_told_overflow:
            self._has_told_overflow = True
            _log.warning(
                "%d audit records wait to be written, and no more have room: until they are written others are in the"
                " log only, and counted in dropped_audit_records",
                len(self.queue),
            )

    async def _write_for_ever(self) -> None:
        retry = Retry(FIRST_PAUSE_S, LONGEST_PAUSE_S, chance=random)
        while True:
            await self._came.wait()
            self._came.clear()
            while self.queue:
                try:
                    await self._write_some()
                    retry.succeeded()
                except Exception as error:  # noqa: BLE001 - without this task writing would silently end
                    self._tell(error)
                    await asyncio.sleep(retry.failed())

    def _tell(self, error: Exception) -> None:
        waiting = len(self.queue)
        if not isinstance(error, (TidelogError, TimeoutError)):
            _log.error("%d audit records wait because of a bug", waiting, exc_info=error)
        elif not isinstance(error, TidelogError) or error.code is not Code.STREAM_EXISTS:
            _log.info("%d audit records wait: %s", waiting, error)
        elif not self._has_told_name:
            self._has_told_name = True
            _log.warning("administrative acts are recorded in the log only: %s", error)

    async def _write_some(self) -> None:
        records = self.queue.take(self._at_once)
        try:
            await self._append([record.value for record in records])
        except BaseException as error:
            if not isinstance(error, TidelogError) or error.code not in _TOO_LARGE:
                self.queue.put_back()
                raise
            if len(records) > 1:
                self._at_once = len(records) // 2
                self.queue.put_back()
                return
            _log.error(
                "audit record %s of a %s, %d bytes of JSON, is in the log only: %s",
                records[0].id, records[0].operation, len(records[0].value), error,
            )  # fmt: skip
            self.queue.dropped += 1
        else:
            self._at_once = min(MAX_AT_ONCE, 2 * self._at_once)
            self._has_told_overflow = self._has_told_name = False
        self.queue.finished()

    async def close(self) -> None:
        """Tries the queued records once more; those that are left then are counted, and only in the log."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        try:
            async with asyncio.timeout(LAST_ATTEMPT_S):
                while self.queue:
                    await self._write_some()
        except Exception as error:  # noqa: BLE001 - the broker's end must not fail for it
            self._tell(error)
        if left := len(self.queue):
            self.queue.dropped += left
            _log.warning("%d audit records are in the log only: the broker ends before they could be written", left)
