"""Clients' `.append` requests at the leader: each is read, waits for its turn, and its batch goes into the log.

                        ┌─ light, and nothing waits: decoded at once ──┐
    request ──admitted──┤                                              ├─> its turn: stored, answered or refused
                 ^      └─ else: queued until a thread has decoded it ─┘      │
                 │                                                            │
                 └── held until a view has its partitioning version (R61) <───┘

`dataplane.replica.leader.append_rules` decides whether a batch is admitted, held, stored or refused. This module keeps
the order and the bounds of the queue, decodes the batches, and carries the decisions out.

A batch of few bytes may take long to decode, and a broker whose event loop stands still loses its leaderships. So heavy
batches (`wire.batch.ReceivedBatch.is_heavy`) are decoded by one thread of the broker, and later batches of the
partition wait behind them. The batches that wait are bounded in number and in bytes, and in bytes over all partitions.
A batch that finds no room is refused with BACKPRESSURE before any work is done for it.

A held batch waits for HOLD_S, or until its client gives up, and is then refused: its client tries again. Held batches
leave in the order in which they came, hold up no other batch, and are bounded in the same way.

When the role ends, the batches that wait are refused at once; the thread is not waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dataplane.broker.leading.appending import PublishCounters
from dataplane.broker.leading.bounds_of_all import HELD_APPENDS, HOLD_S, QUEUED_APPENDS, BoundsOfAll
from dataplane.replica.leader.ack_levels import AckLevel, ack_level
from dataplane.replica.leader.append_rules import AnswerWith, ClientBatch, Hold, Refuse, Store, corrupt_batch
from dataplane.replica.leader.partitioning import not_applied
from dataplane.replica.leader.quota import is_over_quota
from dataplane.replica.replica_effects import LeaderEffect
from dataplane.replica.replies import AppendReply
from wire.batch import HEADER_SIZE, parse_header, without_repetitions
from wire.budget import Budget
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.append import asked_durability, decode_append
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse
from wire.stream_config import MAX_CONFIRM_TIMEOUT_MS
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.broker.leading.appending import Appending
    from dataplane.broker.reading.readable_role import ReadableRole
    from dataplane.replica.leader.leader import Leader

_log = logging.getLogger(__name__)

_BY_VERSION = "stale_partitioning_total"
_COUNTERS = {
    Code.CORRUPT_BATCH: "dropped_corrupt_batch",
    Code.LIMIT_REACHED: "dropped_too_dense",
    Code.UNPROVEN_PRODUCER: "unproven_appends",
    Code.STALE_PARTITIONING: _BY_VERSION,
    Code.PARTITION_DRAINING: _BY_VERSION,
    Code.PARTITION_RETIRED: _BY_VERSION,
}
"""The counters of requests that are refused with these codes."""


class AppendRequests:
    """The `.append` requests of one leader. `run` carries effects of the core out."""

    def __init__(
        self, role: ReadableRole, core: Leader, appending: Appending, run: Callable[[list[LeaderEffect]], None]
    ) -> None:
        self._role = role
        self._context = role.context
        self._counters = role.context.the(PublishCounters)
        of_all, key = role.context.the(BoundsOfAll), role.view.key
        self._core = core
        self._appending = appending
        self._rules = appending.rules
        self._run = run
        self._queue: deque[ClientBatch] = deque()
        """The first batch is being decoded."""
        self._room_in_queue = Budget(QUEUED_APPENDS, key, parent=of_all.queued, counters=self._counters)
        self._worker: asyncio.Task[None] | None = None
        self._held: list[tuple[float, ClientBatch]] = []
        """(until when, monotonic seconds; the batch)."""
        self._room_to_hold = Budget(HELD_APPENDS, key, parent=of_all.held)
        self._timer: asyncio.TimerHandle | None = None

    # Keeps R1.
    def on_append(self, message: Message) -> None:
        if self._role.ended:
            return
        batch = ClientBatch(message.reply, self._context.max_batch_bytes - HEADER_SIZE)
        try:
            batch.request, batch.buffer = decode_append(message.data)
            if self._role.requests.is_for_another(batch.request):
                return
            self._role.requests.check_incarnation(batch.request)
            if batch.request.leader_epoch > self._role.leader_epoch:
                return  # the sender knows a later leader, which listens on this subject and answers
            batch.level = self._asked_level(batch.request)
        except CorruptData as e:
            self._refuse(batch, corrupt_batch(e))
        except TidelogError as e:
            self._refuse(batch, e)
        else:
            self._take(batch)

    def on_view(self) -> None:
        """The view is newer."""
        for batch in self._release(lambda _, batch: not self._rules.holds(batch.request.partitioning_version)):
            self._take(batch)
            self._role.timer.schedule()

    def abandon(self, reason: str) -> None:
        """The role ends. The thread may be decoding one of the batches; its result is dropped."""
        if self._worker is not None:
            self._worker.cancel()
        waiting = [*self._release(lambda *_: True), *self._queue]
        self._queue.clear()
        self._room_in_queue.release(self._room_in_queue.bytes, self._room_in_queue.items)
        for batch in waiting:
            self._refuse(batch, TidelogError(Code.NOT_LEADER, f"{reason}; the batch was not stored, try again"))

    def _asked_level(self, request: AppendRequest) -> AckLevel | None:
        """None: no acknowledgement is wanted. Raises TidelogError(BAD_REQUEST)."""
        asked = asked_durability(request)
        if request.acks != AppendRequest.NONE:
            return ack_level(self._role.view, asked, by_leader=request.acks == AppendRequest.LEADER)
        if asked is not None:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"durability={asked} says when to acknowledge, and acks=none never to; leave one out",
            )
        return None

    def _timeout(self, request: AppendRequest) -> float:
        """Seconds after which its client gives up."""
        asked_ms = min(request.confirm_timeout_ms, MAX_CONFIRM_TIMEOUT_MS)
        return (asked_ms or self._role.view.config.confirm_timeout_ms) / 1000

    # ------------------------------------------------------------------ until its turn
    def _take(self, batch: ClientBatch) -> None:
        """Refuses, holds, queues or settles the batch: when it comes, and when it is no longer held."""
        match self._appending.admit(batch):
            case Refuse(error):
                self._refuse(batch, error)
            case Hold():
                self._hold(batch)
            case None if self._queue or (batch.opened.is_heavy and batch.content is None):
                self._queue_up(batch)
            case None:
                self._settle(batch, is_admitted=not self._appending.has_open_batch)

    def _queue_up(self, batch: ClientBatch) -> None:
        if (full := self._room_in_queue.admit(batch.size)) is not None:
            self._refuse(batch, full)
            return
        self._queue.append(batch)
        if self._worker is None or self._worker.done():
            self._worker = self._role.spawn(self._work())

    async def _work(self) -> None:
        """Returns when the queue is empty. A batch stays in it until it is settled: later ones queue behind it."""
        while self._queue:
            batch = self._queue[0]
            try:
                if batch.opened.is_heavy and batch.content is None:
                    batch.content = await self._context.loop.run_in_executor(
                        self._context.decoders, batch.opened.decode, self._appending.record_limit
                    )
                self._settle(batch)
            except InvariantViolation:
                raise
            except Exception as error:  # noqa: BLE001 - a bug is logged, and the next batch has its turn
                if batch.content is None:
                    self._not_decoded(batch, error)
                else:
                    _log.exception("partition %s: a batch that was decoded met a bug", self._role.view.key)
            finally:
                if self._queue and self._queue[0] is batch:  # the queue was not abandoned meanwhile
                    self._queue.popleft()
                    self._room_in_queue.release(batch.size)

    def _settle(self, batch: ClientBatch, *, is_admitted: bool = False) -> None:
        """Decodes the batch, unless it is decoded, and has it decided. All earlier batches are settled. `is_admitted`:
        it was admitted in this step, and nothing is appended before it."""
        if batch.content is None:
            try:
                batch.content = batch.opened.decode(self._appending.record_limit)
            except Exception as error:  # noqa: BLE001 - a bug is logged, and the broker goes on
                self._not_decoded(batch, error)
                return
        self._on_turn(batch, is_admitted)

    def _not_decoded(self, batch: ClientBatch, error: Exception) -> None:
        if isinstance(error, CorruptData):
            error = corrupt_batch(error)
        elif not isinstance(error, TidelogError):
            key = self._role.view.key
            _log.error("partition %s: a batch met a bug when it was decoded", key, exc_info=error)
            error = TidelogError(
                Code.INTERNAL,
                f"{self._context.broker} could not decode a batch for {key}, by a bug; it was not stored",
            )
        self._refuse(batch, error)

    # ------------------------------------------------------------------ held
    def _hold(self, batch: ClientBatch) -> None:
        if (full := self._room_to_hold.admit(batch.size)) is not None:
            self._refuse(batch, full)
            return
        self._counters.held_appends += 1
        self._held.append((self._context.now() + min(HOLD_S, self._timeout(batch.request)), batch))
        self._schedule()

    def _expire(self) -> None:
        self._timer = None
        now, view = self._context.now(), self._role.view
        for batch in self._release(lambda until, _: until <= now):
            self._refuse(batch, not_applied(view, batch.request.partitioning_version))

    def _release(self, is_due: Callable[[float, ClientBatch], bool]) -> list[ClientBatch]:
        """Removes the batches that are due, and returns them in the order in which they came."""
        due: list[ClientBatch] = []
        left: list[tuple[float, ClientBatch]] = []
        for until, batch in self._held:
            if is_due(until, batch):
                due.append(batch)
            else:
                left.append((until, batch))
        self._held = left
        self._room_to_hold.release(sum(batch.size for batch in due), len(due))
        self._schedule()
        return due

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._held:
            first = min(until for until, _ in self._held)
            self._timer = self._context.loop.call_at(first, lambda: self._role.carefully(self._expire))

    # ------------------------------------------------------------------ decisions carried out
    def _on_turn(self, batch: ClientBatch, is_admitted: bool) -> None:
        self._appending.seal()  # its records came before
        match self._appending.decide_admitted(batch) if is_admitted else self._appending.decide(batch):
            case Store() as store:
                self._store(batch, store)
            case AnswerWith() as answer:
                self._answer(batch, answer)
            case Hold():
                self._hold(batch)
            case Refuse(error):
                self._refuse(batch, error)
            case decision:
                raise InvariantViolation(f"nothing of the kind can be decided of a batch: {decision}")
        self._role.timer.schedule()

    def _store(self, batch: ClientBatch, store: Store) -> None:
        content = batch.decoded
        header = self._appending.append(without_repetitions(content, store.repeated) if store.repeated else content)
        if isinstance(header, TidelogError):
            self._refuse(batch, header)
            return
        now = self._context.now()
        self._appending.repetitions.stored(store.ids, header)
        # The quota counts the batch as it came, with the records that were left out.
        self._core.quota.take(content.header.record_count, content.header.size, now)
        response = AppendResponse(base_offset=header.base_offset, leader_epoch=self._role.leader_epoch)
        if store.repeated:
            self._counters.repeated_records += len(store.repeated)
            _name_originals(response, store.repeated)
        effects = self._await(batch, header.end_offset, response, now)
        self._run([*effects, *self._core.on_appended(header.end_offset, header.size, now)])

    def _answer(self, batch: ClientBatch, answer: AnswerWith) -> None:
        """The client is answered when the originals are committed."""
        response = AppendResponse(
            base_offset=answer.base, leader_epoch=self._role.leader_epoch, duplicate=answer.is_duplicate
        )
        if not answer.is_duplicate:
            self._counters.repeated_records += len(answer.repeated)
        _name_originals(response, answer.repeated)
        self._run(self._await(batch, answer.end, response, self._context.now()))

    def _await(self, batch: ClientBatch, end: Offset, response: AppendResponse, now: float) -> list[LeaderEffect]:
        if batch.level is None or not batch.inbox:
            return []
        token = AppendReply(batch.inbox, response, needs_lease=batch.level.is_local)
        return self._core.await_ack(batch.level, end, token, self._timeout(batch.request), now)

    def _refuse(self, batch: ClientBatch, error: TidelogError) -> None:
        counter = _COUNTERS.get(error.code)
        if is_over_quota(error):
            counter, count = "appends_over_quota", 1
            if not batch.inbox:  # no client will send it again
                try:
                    counter, count = "dropped_over_quota", parse_header(batch.buffer).record_count
                except CorruptData as e:
                    self._refuse(batch, corrupt_batch(e))
                    return
            self._counters.add(counter, count)
        elif counter is not None:
            self._counters.add(counter, 1)
            if counter != _BY_VERSION:
                _log.warning("partition %s: refused a batch: %s", self._role.view.key, error)
        # A request that names its LeaderEpoch is stored by no other leader: the refusal is its outcome.
        answer = error if batch.request.leader_epoch else self._appending.answer_without_epoch(error)
        if answer is not None:
            self._appending.answers.error(batch.inbox, answer)


def _name_originals(response: AppendResponse, repeated: Mapping[int, Offset]) -> None:
    response.repeated_records.extend(repeated.keys())
    response.original_offsets.extend(repeated.values())
