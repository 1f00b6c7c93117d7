"""Clients' `.append` requests at the leader: each is read, waits for its turn, and its batch goes into the log.

    request ──> the life of the partition ──> admitted ──> `AppendQueue` ──its turn──> decided ──> log ──> the core

What becomes of a batch is decided in `dataplane.replica.leader.append_rules`; it is carried out here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dataplane.broker.leading.append_queue import AppendQueue, QueuedAppend
from dataplane.broker.roles.role_answers import AppendReply
from dataplane.replica.leader.ack_levels import AckLevel, ack_level
from dataplane.replica.leader.append_rules import AnswerWith, Asked, ClientBatch, Hold, Refuse, Store, corrupt_batch
from dataplane.replica.leader.quota import is_over_quota
from dataplane.replica.replica_effects import LeaderEffect
from wire.batch import HEADER_SIZE, EncodedBatch, ReceivedBatch, parse_header, without_repetitions
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

_BY_VERSION = (Code.STALE_PARTITIONING, Code.PARTITION_DRAINING, Code.PARTITION_RETIRED)


class AppendRequests:
    """The `.append` requests of one leader. `run` carries effects of the core out."""

    def __init__(
        self, role: ReadableRole, core: Leader, appending: Appending, run: Callable[[list[LeaderEffect]], None]
    ) -> None:
        self._role = role
        self._context = role.context
        self._core = core
        self._appending = appending
        self._rules = appending.rules
        self._run = run
        self._queue = AppendQueue(role, self)

    def on_view(self) -> None:
        """The view is newer."""
        self._rules.on_view()
        self._queue.on_view()

    def abandon(self, reason: str) -> None:
        """The role ends."""
        self._queue.abandon(reason)

    def on_append(self, message: Message) -> None:
        if self._role.ended:
            return
        request = AppendRequest()
        try:
            request, buffer = decode_append(message.data)
            if self._role.requests.is_for_another(request):
                return
            self._role.requests.check_client(request)
            if request.leader_epoch > self._role.leader_epoch:
                return  # we are the zombie
            level = self._asked_level(request)
        except CorruptData as e:
            self._refuse_unread(request, message.reply, corrupt_batch(e))
            return
        except TidelogError as e:
            self._refuse_unread(request, message.reply, e)
            return
        largest = self._context.max_batch_bytes - HEADER_SIZE
        batch = ClientBatch(request=request, buffer=buffer, open=partial(ReceivedBatch, max_body_bytes=largest))
        asked = Asked(
            level=level,
            leader_epoch=request.leader_epoch,
            version=request.partitioning_version,
            expected_end=request.expected_last_offset + 1 if request.HasField("expected_last_offset") else None,
            batch=batch,
        )
        self._queue.take(
            QueuedAppend(asked, batch, self._appending.record_limit, message.reply, self._timeout(request))
        )

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
        return asked_ms / 1000 if asked_ms else self._role.view.config.confirm_timeout_ms / 1000

    # ------------------------------------------------------------------ `append_queue.Turns`
    def admit(self, append: QueuedAppend) -> Hold | Refuse | None:
        return self._rules.admit(append.asked, self._appending.here())

    def holds(self, version: int) -> bool:
        return self._rules.holds(version)

    def on_turn(self, append: QueuedAppend, content: EncodedBatch, *, waited: bool) -> None:
        self._appending.seal()  # it came before
        decision = self._rules.decide(append.asked, self._appending.here(), content, waited=waited)
        match decision:
            case Store():
                self._store(append, content, decision)
            case AnswerWith():
                self._answer(append, decision)
            case Hold():
                self._queue.hold(append)
            case Refuse(error):
                self._context.counters.stale_partitioning_total += error.code in _BY_VERSION
                self._count_over_quota(append, error)
                self.refuse(append, error)
            case _:
                raise InvariantViolation(f"nothing of the kind can be decided of a batch: {decision}")
        self._role.timer.schedule()

    def refuse_unread(self, append: QueuedAppend, error: TidelogError) -> None:
        try:
            self._count_over_quota(append, error)
        except CorruptData as e:
            error = corrupt_batch(e)
        self._refuse_unread(append.batch.request, append.inbox, error)

    def refuse(self, append: QueuedAppend, error: TidelogError) -> None:
        self._refuse(append.asked.leader_epoch, append.inbox, error)

    # ------------------------------------------------------------------ decisions carried out
    def _store(self, append: QueuedAppend, content: EncodedBatch, store: Store) -> None:
        sent = content.header
        header = self._appending.append(without_repetitions(content, store.repeated) if store.repeated else content)
        if isinstance(header, TidelogError):
            self.refuse(append, header)
            return
        now = self._context.now()
        self._rules.stored(store, header, sent.record_count, sent.size, now)
        response = AppendResponse(base_offset=header.base_offset, leader_epoch=self._role.leader_epoch)
        if store.repeated:
            self._context.counters.repeated_records += len(store.repeated)
            _name_originals(response, store.repeated)
        effects = self._await(append, header.end_offset, response, now)
        self._run([*effects, *self._core.on_appended(header.end_offset, header.size, now)])

    def _answer(self, append: QueuedAppend, answer: AnswerWith) -> None:
        """When the originals are committed."""
        response = AppendResponse(
            base_offset=answer.base, leader_epoch=self._role.leader_epoch, duplicate=answer.is_duplicate
        )
        if not answer.is_duplicate:
            self._context.counters.repeated_records += len(answer.repeated)
        _name_originals(response, answer.repeated)
        self._run(self._await(append, answer.end, response, self._context.now()))

    def _await(self, append: QueuedAppend, end: Offset, response: AppendResponse, now: float) -> list[LeaderEffect]:
        level, inbox = append.asked.level, append.inbox
        if level is None or not inbox:
            return []
        token = AppendReply(inbox, response, needs_lease=level.is_local)
        return self._core.await_ack(level, end, token, append.timeout, now)

    def _refuse_unread(self, request: AppendRequest, inbox: str | None, error: TidelogError) -> None:
        if error.code is Code.CORRUPT_BATCH:
            self._context.counters.dropped_corrupt_batch += 1
            _log.warning("partition %s: dropped a corrupt batch: %s", self._role.view.key, error)
        elif error.code is Code.LIMIT_REACHED:
            self._context.counters.dropped_too_dense += 1
            _log.warning("partition %s: dropped a batch: %s", self._role.view.key, error)
        elif error.code is Code.UNPROVEN_PRODUCER:
            self._context.counters.unproven_appends += 1
            _log.warning("partition %s: refused a batch: %s", self._role.view.key, error)
        self._refuse(request.leader_epoch, inbox, error)

    def _refuse(self, leader_epoch: int, inbox: str | None, error: TidelogError) -> None:
        """A request that names its LeaderEpoch is stored by no other leader: `error` is all that comes of it."""
        answer = error if leader_epoch else self._appending.told_without_epoch(error)
        if answer is not None:
            self._appending.answers.error(inbox, answer)

    def _count_over_quota(self, append: QueuedAppend, error: TidelogError) -> None:
        """Raises CorruptData."""
        if not is_over_quota(error):
            return
        if append.inbox:
            self._context.counters.appends_over_quota += 1
        else:  # it gets no answer, so it is not sent again
            self._context.counters.dropped_over_quota += parse_header(append.batch.buffer).record_count


def _name_originals(response: AppendResponse, repeated: Mapping[int, Offset]) -> None:
    response.repeated_records.extend(repeated.keys())
    response.original_offsets.extend(repeated.values())
