"""The queue of one leader's client batches: each has its turn in the order in which they came, once it is decoded.

                     ┌─ light, nothing in front of it: decoded at once ─┐
    comes ──admitted─┤                                                  ├─> its turn: decided, stored or answered
      ^              └─ else: waits until it is decoded, in the thread ─┘     │
      │                                                                       │
      └── held: aside until a view lets its partitioning version in (R61) <───┘

Whether a batch is admitted, held, stored or refused is decided in `dataplane.replica.leader.append_rules`; here are the
order, the bounds, the decoding and the time that a batch is held.

A batch of few bytes may take long to decode, and an event loop that stands still loses the broker its leaderships. So
heavy batches (`wire.batch.ReceivedBatch.is_heavy`) are decoded by one thread for the whole broker, and what comes
behind one waits for it. The batches that wait are bounded in number and in bytes, those of all partitions together in
bytes: a batch that finds no room is refused with BACKPRESSURE, before any of the work.

Batches that are held wait for HOLD_S, or until their client gives up, then they are refused: try again. They leave in
the order in which they came, and hold up no other batch. They are bounded in the same way.

A role that ends does not wait for the thread: what is in the queue is refused at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.roles.role import Role
from dataplane.replica.leader.append_rules import Asked, ClientBatch, Hold, Refuse, corrupt_batch
from dataplane.replica.leader.partitioning import not_applied
from wire.batch import EncodedBatch
from wire.batch.encoded import RecordLimit
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError

_log = logging.getLogger(__name__)

MAX_QUEUED_BATCHES: Final = 64
MAX_QUEUED_BYTES: Final = 32 << 20
"""Bytes of batches of one partition, as they came, that wait for the decoding thread or behind one that does."""
MAX_QUEUED_BYTES_OF_ALL: Final = 64 << 20
"""The same of all partitions that a broker leads."""
HOLD_S: Final = 0.25
"""Views of one command come to all brokers within some ms; a broker that is later than this may be cut off."""
MAX_HELD: Final = 256
MAX_HELD_BYTES: Final = 16 << 20
"""Bytes of batches of one partition, as they came, that are held."""
MAX_HELD_BYTES_OF_ALL: Final = 64 << 20
"""The same of all partitions that a broker leads."""


@dataclass(frozen=True, slots=True)
class QueuedAppend:
    """An `.append` request on its way."""

    asked: Asked
    batch: ClientBatch
    record_limit: RecordLimit
    inbox: str | None
    timeout: float
    """Seconds after which its client gives up."""

    @property
    def size(self) -> int:
        return self.batch.opened.header.size


class Turns(Protocol):
    """Carries out what is decided about the batches of a queue."""

    def admit(self, append: QueuedAppend) -> Hold | Refuse | None:
        """It comes, or was held until now."""
        ...

    def on_turn(self, append: QueuedAppend, content: EncodedBatch, *, waited: bool) -> None:
        """All batches in front of it are settled. `waited`: since it was admitted."""
        ...

    def refuse_unread(self, append: QueuedAppend, error: TidelogError) -> None:
        """It was not admitted, or does not decode."""
        ...

    def refuse(self, append: QueuedAppend, error: TidelogError) -> None: ...

    def holds(self, version: int) -> bool:
        """Whether batches of that partitioning version are held still."""
        ...


@dataclass(frozen=True, slots=True)
class _Held:
    append: QueuedAppend
    until: float


class AppendQueue:
    def __init__(self, role: Role, turns: Turns) -> None:
        self._role = role
        self._context = role.context
        self._bounds = role.context.the(BoundsOfAll)
        self._turns = turns
        self._queue: deque[QueuedAppend] = deque()
        """The first one is being decoded."""
        self._queued_bytes = 0
        self._worker: asyncio.Task[None] | None = None
        self._held: list[_Held] = []
        self._held_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, append: QueuedAppend) -> None:
        match self._turns.admit(append):
            case Refuse(error):
                self._turns.refuse_unread(append, error)
            case Hold():
                self.hold(append)
            case None:
                self._queue_up(append)

    def abandon(self, reason: str) -> None:
        """The role ends. The thread may be busy with one of the batches: nothing comes of it."""
        error = TidelogError(Code.NOT_LEADER, f"{reason}; the batch was not stored, try again")
        self._release(lambda _: True, lambda append: self._turns.refuse(append, error))
        if self._worker is not None:
            self._worker.cancel()
        abandoned = list(self._queue)
        self._queue.clear()
        self._count_queued(-self._queued_bytes)
        for append in abandoned:
            self._turns.refuse_unread(append, self._leads_no_more())

    # ------------------------------------------------------------------ until its turn
    def _queue_up(self, append: QueuedAppend) -> None:
        if not self._queue and not append.batch.opened.is_heavy:
            self._decode_here(append, waited=False)
            return
        full = self._why_full(append.size)
        if full is not None:
            self._context.counters.dropped_decode_queue += 1
            details = [RETRY_AFTER_MS.of(50), LIMIT.of("decode_queue")]
            self._turns.refuse_unread(append, TidelogError(Code.BACKPRESSURE, full, details))
            return
        self._queue.append(append)
        self._count_queued(append.size)
        if self._worker is None or self._worker.done():
            self._worker = self._role.spawn(self._work())

    def _why_full(self, size: int) -> str | None:
        if len(self._queue) >= MAX_QUEUED_BATCHES or self._queued_bytes + size > MAX_QUEUED_BYTES:
            return (
                f"{len(self._queue)} batches for {self._role.view.key}, {self._queued_bytes} bytes, wait to be decoded"
                " already; try again"
            )
        if self._bounds.bytes_to_decode + size > MAX_QUEUED_BYTES_OF_ALL:
            return (
                f"batches of {self._bounds.bytes_to_decode} bytes wait to be decoded on {self._context.broker}"
                " already; try again"
            )
        return None

    def _count_queued(self, size: int) -> None:
        self._queued_bytes += size
        self._bounds.bytes_to_decode += size

    def _leave(self, append: QueuedAppend) -> None:
        """It is settled, or was abandoned with the whole queue."""
        if self._queue and self._queue[0] is append:
            self._queue.popleft()
            self._count_queued(-append.size)

    async def _work(self) -> None:
        """Until the queue is empty. A batch leaves it when it is settled: what comes meanwhile queues behind it."""
        while self._queue:
            append = self._queue[0]
            try:
                await self._settle(append)
            except InvariantViolation:
                raise
            except Exception:  # noqa: BLE001 - it is logged, and the next batch has its turn
                _log.exception("partition %s: a batch that was decoded met a bug", self._role.view.key)
            finally:
                self._leave(append)

    async def _settle(self, append: QueuedAppend) -> None:
        if self._role.ended:
            self._turns.refuse_unread(append, self._leads_no_more())
        elif append.batch.opened.is_heavy:
            await self._decode_there(append)
        else:
            self._decode_here(append, waited=True)

    def _decode_here(self, append: QueuedAppend, *, waited: bool) -> None:
        try:
            content = append.batch.opened.decode(append.record_limit)
        except Exception as error:  # noqa: BLE001 - a bug is logged, and the broker goes on
            self._not_decoded(append, error)
        else:
            self._turns.on_turn(append, content, waited=waited)

    async def _decode_there(self, append: QueuedAppend) -> None:
        try:
            content = await self._context.loop.run_in_executor(
                self._context.decoders, append.batch.opened.decode, append.record_limit
            )
        except Exception as error:  # noqa: BLE001 - a bug is logged, and the broker goes on
            self._not_decoded(append, error)
            return
        if self._role.ended:
            self._turns.refuse_unread(append, self._leads_no_more())
        else:
            self._turns.on_turn(append, content, waited=True)

    def _not_decoded(self, append: QueuedAppend, error: Exception) -> None:
        if isinstance(error, CorruptData):
            error = corrupt_batch(error)
        elif not isinstance(error, TidelogError):
            key = self._role.view.key
            _log.error("partition %s: a batch met a bug when it was decoded", key, exc_info=error)
            error = TidelogError(
                Code.INTERNAL,
                f"{self._context.broker} could not decode a batch for {key}, by a bug; it was not stored",
            )
        self._turns.refuse_unread(append, error)

    def _leads_no_more(self) -> TidelogError:
        return TidelogError(
            Code.NOT_LEADER, f"{self._context.broker} does not lead {self._role.view.key} any more; try again"
        )

    # ------------------------------------------------------------------ held
    def hold(self, append: QueuedAppend) -> None:
        full = self._why_none_is_held(append.size)
        if full is not None:
            details = [RETRY_AFTER_MS.of(50), LIMIT.of("held_appends")]
            self._turns.refuse(append, TidelogError(Code.BACKPRESSURE, full, details))
            return
        self._context.counters.held_appends += 1
        self._held.append(_Held(append, self._context.now() + min(HOLD_S, append.timeout)))
        self._count_held(append.size)
        self._schedule()

    def on_view(self) -> None:
        """The view is newer."""
        self._release(lambda held: not self._turns.holds(held.append.asked.version), self._take_again)

    def _take_again(self, append: QueuedAppend) -> None:
        self.take(append)
        self._role.timer.schedule()

    def _expire(self) -> None:
        self._timer = None
        now, view = self._context.now(), self._role.view
        self._release(
            lambda held: held.until <= now,
            lambda append: self._turns.refuse(append, not_applied(view, append.asked.version)),
        )

    def _release(self, is_due: Callable[[_Held], bool], settle: Callable[[QueuedAppend], None]) -> None:
        if not self._held:
            return
        due: list[_Held] = []
        left: list[_Held] = []
        for held in self._held:
            (due if is_due(held) else left).append(held)
        self._held = left
        self._count_held(-sum(held.append.size for held in due))
        self._schedule()
        for held in due:
            settle(held.append)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            first = min(held.until for held in self._held)
            self._timer = self._context.loop.call_at(first, lambda: self._role.carefully(self._expire))

    def _count_held(self, size: int) -> None:
        self._held_bytes += size
        self._bounds.bytes_held += size

    def _why_none_is_held(self, size: int) -> str | None:
        if len(self._held) >= MAX_HELD or self._held_bytes + size > MAX_HELD_BYTES:
            return (
                f"{len(self._held)} batches for {self._role.view.key}, {self._held_bytes} bytes, wait for another"
                " partitioning version already; try again"
            )
        if self._bounds.bytes_held + size > MAX_HELD_BYTES_OF_ALL:
            return (
                f"batches of {self._bounds.bytes_held} bytes wait for other partitioning versions on"
                f" {self._context.broker} already; try again"
            )
        return None
