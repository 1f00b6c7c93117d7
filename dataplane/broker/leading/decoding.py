"""Clients' batches on their way to the log: checked one after the other, in the order in which they came.

    light batch, nothing in front of it ──────────────────────────────> appended at once
    heavy batch ──> queue ──> decoded in the one decoding thread ──> appended
    any batch behind a heavy one ──> queue ──> decoded when its turn comes

A batch of few bytes may take long to decode, and an event loop that stands still loses the broker its leaderships. So
heavy batches (`wire.batch.ReceivedBatch.is_heavy`) are decoded by one thread for the whole broker. The queue of a
partition is bounded in batches and in bytes, those of all partitions together in bytes: a batch that finds no room is
refused with BACKPRESSURE, before any of the work.

A role that ends does not wait for the thread: what is in the queue is refused at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.roles.role import Role
from dataplane.replica.leader.ack_levels import AckLevel
from wire.batch import EncodedBatch, ReceivedBatch
from wire.batch.encoded import RecordLimit
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.protobuf.tidelog_pb2 import AppendRequest

_log = logging.getLogger(__name__)

MAX_QUEUED_BATCHES = 64
MAX_QUEUED_BYTES = 32 << 20
"""Bytes of batches of one partition, as they came, that wait for the decoding thread or behind one that does."""
MAX_QUEUED_BYTES_OF_ALL = 64 << 20
"""The same of all partitions that a broker leads."""


@dataclass(frozen=True, slots=True)
class ReceivedAppend:
    """An `.append` request whose preamble has been found in order."""

    request: AppendRequest
    level: AckLevel | None
    batch: ReceivedBatch
    record_limit: RecordLimit
    inbox: str | None


class Decoding:
    """One leader's. `append` is called with each batch that is in order, and whether it had to wait; `refuse` with the
    error of another one."""

    def __init__(
        self,
        role: Role,
        append: Callable[[ReceivedAppend, EncodedBatch, bool], None],
        refuse: Callable[[ReceivedAppend, CorruptData | TidelogError], None],
    ) -> None:
        self._role = role
        self._context = role.context
        self._bounds = role.context.the(BoundsOfAll)
        self._append = append
        self._refuse = refuse
        self._queue: deque[ReceivedAppend] = deque()
        """The first one is being decoded."""
        self._queued_bytes = 0
        self._worker: asyncio.Task[None] | None = None

    def take(self, received: ReceivedAppend) -> None:
        if not self._queue and not received.batch.is_heavy:
            self._decode_here(received, waited=False)
            return
        full = self._why_full(received.batch.header.size)
        if full is not None:
            self._context.counters.dropped_decode_queue += 1
            details = [RETRY_AFTER_MS.of(50), LIMIT.of("decode_queue")]
            self._refuse(received, TidelogError(Code.BACKPRESSURE, full, details))
            return
        self._queue.append(received)
        self._count(received.batch.header.size)
        if self._worker is None or self._worker.done():
            self._worker = self._role.spawn(self._work())

    def abandon(self) -> None:
        """The role ends. The thread may be busy with one of the batches: nothing comes of it."""
        if self._worker is not None:
            self._worker.cancel()
        abandoned = list(self._queue)
        self._queue.clear()
        self._count(-self._queued_bytes)
        for received in abandoned:
            self._refuse(received, self._leads_no_more())

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

    def _count(self, size: int) -> None:
        self._queued_bytes += size
        self._bounds.bytes_to_decode += size

    def _leave(self, received: ReceivedAppend) -> None:
        """It is settled, or was abandoned with the whole queue."""
        if self._queue and self._queue[0] is received:
            self._queue.popleft()
            self._count(-received.batch.header.size)

    def _decode_here(self, received: ReceivedAppend, *, waited: bool) -> None:
        try:
            batch = received.batch.decode(received.record_limit)
        except Exception as error:  # noqa: BLE001 - a bug is logged, and the broker goes on
            self._not_decoded(received, error)
        else:
            self._append(received, batch, waited)

    def _not_decoded(self, received: ReceivedAppend, error: Exception) -> None:
        if not isinstance(error, (CorruptData, TidelogError)):
            key = self._role.view.key
            _log.error("partition %s: a batch met a bug when it was decoded", key, exc_info=error)
            error = TidelogError(
                Code.INTERNAL,
                f"{self._context.broker} could not decode a batch for {key}, by a bug; it was not stored",
            )
        self._refuse(received, error)

    async def _work(self) -> None:
        """Until the queue is empty. A batch leaves it when it is settled: what comes meanwhile queues behind it."""
        while self._queue:
            received = self._queue[0]
            try:
                await self._settle(received)
            except InvariantViolation:
                raise
            except Exception:  # noqa: BLE001 - it is logged, and the next batch has its turn
                _log.exception("partition %s: a batch that was decoded met a bug", self._role.view.key)
            finally:
                self._leave(received)

    async def _settle(self, received: ReceivedAppend) -> None:
        if self._role.ended:
            self._refuse(received, self._leads_no_more())
        elif received.batch.is_heavy:
            await self._decode_there(received)
        else:
            self._decode_here(received, waited=True)

    async def _decode_there(self, received: ReceivedAppend) -> None:
        try:
            batch = await self._context.loop.run_in_executor(
                self._context.decoders, received.batch.decode, received.record_limit
            )
        except Exception as error:  # noqa: BLE001 - a bug is logged, and the broker goes on
            self._not_decoded(received, error)
            return
        if self._role.ended:
            self._refuse(received, self._leads_no_more())
        else:
            self._append(received, batch, True)

    def _leads_no_more(self) -> TidelogError:
        return TidelogError(
            Code.NOT_LEADER, f"{self._context.broker} does not lead {self._role.view.key} any more; try again"
        )
