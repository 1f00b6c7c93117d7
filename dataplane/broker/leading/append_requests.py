"""Clients' `.append` requests at the leader: each is checked, and its batch goes into the log.

    request ──> life, LeaderEpoch, admission, proof ──> decoded ──> producer ──> version ──> log ──> the core
                  ^                          │                                     │
                  └─────── HeldAppends <─────┴─ that partitioning version has not begun here yet, or not ended

A batch with a producer id carries the proof that its sender was given the id (R76). It is checked before anything that
is known of the id is looked at, so that a stranger can neither write under the id nor learn its sequence.

A repetition gets the receipt of its original whatever partitioning version it names, and whether or not the partition
takes records (R61): its client would write the records to other partitions otherwise, a second time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.leading.decoding import Decoding, ReceivedAppend
from dataplane.broker.leading.held_appends import HeldAppends
from dataplane.broker.leading.transaction_rules import TransactionRules
from dataplane.broker.roles.role_answers import AppendReply
from dataplane.replica.derived.producer_table import Duplicate, Rejected, Verdict, may_be_stored
from dataplane.replica.leader.ack_levels import AckLevel, ack_level
from dataplane.replica.leader.partitioning import Held
from dataplane.replica.leader.quota import is_over_quota
from dataplane.replica.replica_effects import LeaderEffect
from dataplane.replica.replica_refusals import fenced
from wire.batch import HEADER_SIZE, BatchHeader, EncodedBatch, ReceivedBatch, parse_header, without_repetitions
from wire.error_details import LAST_OFFSET
from wire.errors import Code, CorruptData, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.append import asked_durability, decode_append
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse
from wire.security.batch_proofs import check_batch_proof
from wire.security.tickets import partition_target
from wire.stream_config import MAX_CONFIRM_TIMEOUT_MS
from wire.types import FIRST_TRANSACTIONAL_ID, NO_PRODUCER, LeaderEpoch, Offset

if TYPE_CHECKING:
    from dataplane.broker.leading.appending import Appending
    from dataplane.broker.reading.readable_role import ReadableRole
    from dataplane.replica.leader.leader import Leader

_log = logging.getLogger(__name__)


class AppendRequests:
    """The `.append` requests of one leader. `run` carries effects of the core out."""

    def __init__(
        self, role: ReadableRole, core: Leader, appending: Appending, run: Callable[[list[LeaderEffect]], None]
    ) -> None:
        self._role = role
        self._context = role.context
        self._bounds = role.context.the(BoundsOfAll)
        self._log = role.log
        self._core = core
        self._appending = appending
        self._repetitions = appending.repetitions
        self._run = run
        self._transactions = TransactionRules(role.view.key, role.context, is_internal=appending.is_internal)
        self._decoding = Decoding(
            role,
            self._on_decoded,
            lambda received, error: self._refuse_batch(received.request, received.inbox, error),
        )
        self._held = HeldAppends(
            role,
            lambda version: core.admission.judge(version) is Held.HELD,
            self._take_checked,
            lambda received, error: self._refuse_append(received.request.leader_epoch, received.inbox, error),
        )
        key = role.view.key
        self._target = partition_target(key.stream, key.stream_incarnation, key.partition, key.partition_incarnation)
        self._open_versions: tuple[int, ...] = ()
        """Partitioning versions of requests that are taken without a closer look."""
        self.on_view()

    def on_view(self) -> None:
        """The view is newer."""
        newest = self._role.view.partitioning_version
        self._open_versions = tuple(each for each in (0, newest) if self._core.admission.judge(each) is None)
        self._held.on_view()

    def abandon(self, reason: str) -> None:
        """The role ends."""
        self._held.abandon(TidelogError(Code.NOT_LEADER, f"{reason}; the batch was not stored, try again"))
        self._decoding.abandon()

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
            self._check_append(request, level, message.reply, lambda: parse_header(buffer).record_count)
            batch = ReceivedBatch(buffer, max_body_bytes=self._context.max_batch_bytes - HEADER_SIZE)
            if batch.header.producer_id != NO_PRODUCER:
                check_batch_proof(self._context.producer_keys, request, batch.header.producer_id, self._target, buffer)
            is_durable = self._role.view.config.is_durable
            level = self._transactions.checked_level(request, level, batch.header, is_durable=is_durable)
        except (CorruptData, TidelogError) as e:
            self._refuse_batch(request, message.reply, e)
            return
        received = ReceivedAppend(request, level, batch, self._appending.record_limit, message.reply)
        if request.partitioning_version not in self._open_versions and self._is_early(received):
            self._held.take(received, self._timeout(request))
        else:
            self._decoding.take(received)

    def _is_early(self, received: ReceivedAppend) -> bool:
        """Its partitioning version has not begun here yet, or is not known to have ended."""
        if self._core.admission.judge(received.request.partitioning_version) is not Held.HELD:
            return False
        return not may_be_stored(self._verdict(received.batch.header))

    def _take_checked(self, received: ReceivedAppend) -> None:
        """It was held."""
        if self._is_still_taken(received):
            self._decoding.take(received)
            self._role.timer.schedule()

    def _refuse_batch(self, request: AppendRequest, inbox: str | None, error: CorruptData | TidelogError) -> None:
        if isinstance(error, CorruptData):
            self._context.counters.dropped_corrupt_batch += 1
            _log.warning("partition %s: dropped a corrupt batch: %s", self._role.view.key, error)
            error = TidelogError(Code.CORRUPT_BATCH, f"the batch does not decode: {error}; send it again")
        elif error.code is Code.LIMIT_REACHED:
            self._context.counters.dropped_too_dense += 1
            _log.warning("partition %s: dropped a batch: %s", self._role.view.key, error)
        elif error.code is Code.UNPROVEN_PRODUCER:
            self._context.counters.unproven_appends += 1
            _log.warning("partition %s: refused a batch: %s", self._role.view.key, error)
        self._refuse_append(request.leader_epoch, inbox, error)

    def _on_decoded(self, received: ReceivedAppend, batch: EncodedBatch, waited: bool) -> None:
        if not waited or self._is_still_taken(received):
            self._append_batch(received, batch)
            self._role.timer.schedule()

    def _is_still_taken(self, received: ReceivedAppend) -> bool:
        """It waited; if it is not, it is refused."""
        try:
            self._check_append(
                received.request, received.level, received.inbox, lambda: received.batch.header.record_count
            )
        except TidelogError as e:
            self._refuse_append(received.request.leader_epoch, received.inbox, e)
            return False
        return True

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

    def _check_append(
        self, request: AppendRequest, level: AckLevel | None, inbox: str | None, records: Callable[[], int]
    ) -> None:
        """Check everything but the batch, of which `records` says how many it holds, and the partitioning version.
        Raises TidelogError, and what `records` raises."""
        if request.leader_epoch and request.leader_epoch < self._role.leader_epoch:
            raise fenced(self._role.view, LeaderEpoch(request.leader_epoch))
        now = self._context.now()
        error = self._appending.lacks_key() or self._core.refuse_publish(
            level, lease_valid=self._context.metadata.lease_valid(now), now=now
        )
        if error is None:
            return
        if is_over_quota(error):
            if inbox:
                self._context.counters.appends_over_quota += 1
            else:  # nobody is told, so nobody sends it again
                self._context.counters.dropped_over_quota += records()
        raise error

    def _verdict(self, sent: BatchHeader) -> Verdict:
        return self._log.producers.check(
            sent.producer_id, sent.producer_epoch, sent.base_sequence, sent.record_count, sent.body_crc
        )

    def _append_batch(self, received: ReceivedAppend, batch: EncodedBatch) -> None:
        request, level, inbox = received.request, received.level, received.inbox
        self._appending.seal()
        now, epoch, sent = self._context.now(), self._role.leader_epoch, batch.header
        verdict = self._verdict(sent)
        if request.partitioning_version not in self._open_versions and not may_be_stored(verdict):
            judged = self._core.admission.judge(request.partitioning_version)
            if judged is Held.HELD:
                self._held.take(received, self._timeout(request))
                return
            if judged is not None:
                self._refuse_by_version(received, batch, judged)
                return
        if isinstance(verdict, Rejected):
            self._refuse_append(request.leader_epoch, inbox, self._core.admission.told(verdict))
            return
        if sent.producer_id >= FIRST_TRANSACTIONAL_ID and not isinstance(verdict, Duplicate):
            error = self._log.producers.refuse_transaction(
                sent.producer_id, sent.producer_epoch, self._appending.log_clock.time(now)
            )
            if error is not None:
                self._refuse_append(request.leader_epoch, inbox, error)
                return
        if (
            sent.producer_id != NO_PRODUCER
            and not isinstance(verdict, Duplicate)
            and self._log.producers.grows_with(sent.producer_id)
        ):
            error = self._bounds.producers.refuse(now, self._appending.log_clock.time(now))
            if error is not None:
                self._refuse_append(request.leader_epoch, inbox, error)
                return
        ids = self._repetitions.ids_of(batch) if sent.has_message_ids else []
        if isinstance(verdict, Duplicate):
            base, end = verdict.base_offset, verdict.end_offset
            response = AppendResponse(base_offset=base, leader_epoch=epoch, duplicate=True)
            _tell_repetitions(response, self._repetitions.left_out(ids, base, end))
            self._run(self._await(request, level, end, response, inbox, now))
            return
        base = self._core.log_end_offset
        repeated = self._repetitions.among(ids, base) if ids else {}
        if len(repeated) == sent.record_count and sent.producer_id == NO_PRODUCER:
            response = AppendResponse(base_offset=base, leader_epoch=epoch)
            self._answer_repetitions(request, level, response, repeated, inbox, now)
            return
        # A batch of one producer that was sent again by another call: its place is taken by itself.
        is_repeated = len(repeated) == sent.record_count
        error = self._repetitions.refuse(len(ids) - len(repeated)) if ids else None
        if error is not None:
            self._refuse_append(request.leader_epoch, inbox, error)
            return
        expects = request.HasField("expected_last_offset") and not is_repeated
        if expects and request.expected_last_offset != self._core.log_end_offset - 1:
            last = self._core.log_end_offset - 1
            error = TidelogError(
                Code.INCORRECT_OFFSET,
                f"the next record of {self._role.view.key} gets offset {last + 1}, not the expected"
                f" {request.expected_last_offset + 1}; read what was written, and decide again",
                [LAST_OFFSET.of(last)],
            )
            self._refuse_append(request.leader_epoch, inbox, error)
            return
        header = self._appending.append(without_repetitions(batch, repeated) if repeated else batch)
        if isinstance(header, TidelogError):
            self._refuse_append(request.leader_epoch, inbox, header)
            return
        if ids:
            self._repetitions.stored([each for each in ids if each[0] not in repeated], header)
        self._core.quota.take(sent.record_count, sent.size, now)
        end = header.end_offset
        response = AppendResponse(base_offset=header.base_offset, leader_epoch=epoch)
        if repeated:
            self._context.counters.repeated_records += len(repeated)
            _tell_repetitions(response, repeated)
        effects = self._await(request, level, end, response, inbox, now)
        self._run([*effects, *self._core.on_appended(end, header.size, now)])

    def _refuse_by_version(self, received: ReceivedAppend, batch: EncodedBatch, error: TidelogError) -> None:
        """The producer table does not know the batch. All of its message ids may be known."""
        sent = batch.header
        if sent.has_message_ids and sent.producer_id == NO_PRODUCER:
            base = self._core.log_end_offset
            repeated = self._repetitions.among(self._repetitions.ids_of(batch), base)
            if len(repeated) == sent.record_count and max(repeated.values()) < base:
                response = AppendResponse(base_offset=base, leader_epoch=self._role.leader_epoch)
                now = self._context.now()
                self._answer_repetitions(received.request, received.level, response, repeated, received.inbox, now)
                return
        self._context.counters.stale_partitioning_total += 1
        self._refuse_append(received.request.leader_epoch, received.inbox, error)

    def _answer_repetitions(
        self,
        request: AppendRequest,
        level: AckLevel | None,
        response: AppendResponse,
        repeated: dict[int, Offset],
        inbox: str | None,
        now: float,
    ) -> None:
        """To a batch of which nothing is new, when the originals are committed."""
        self._context.counters.repeated_records += len(repeated)
        _tell_repetitions(response, repeated)
        self._run(self._await(request, level, Offset(max(repeated.values()) + 1), response, inbox, now))

    def _await(
        self,
        request: AppendRequest,
        level: AckLevel | None,
        end: Offset,
        response: AppendResponse,
        inbox: str | None,
        now: float,
    ) -> list[LeaderEffect]:
        if level is None or not inbox:
            return []
        token = AppendReply(inbox, response, needs_lease=level.is_local)
        return self._core.await_ack(level, end, token, self._timeout(request), now)

    def _timeout(self, request: AppendRequest) -> float:
        """Seconds after which its client gives up."""
        asked_ms = min(request.confirm_timeout_ms, MAX_CONFIRM_TIMEOUT_MS)
        return asked_ms / 1000 if asked_ms else self._role.view.config.confirm_timeout_ms / 1000

    def _refuse_append(self, leader_epoch: int, inbox: str | None, error: TidelogError) -> None:
        """A request that names its LeaderEpoch is stored by no other leader: `error` is all that comes of it."""
        told = error if leader_epoch else self._appending.told_without_epoch(error)
        if told is not None:
            self._appending.answers.error(inbox, told)


def _tell_repetitions(response: AppendResponse, repeated: Mapping[int, Offset]) -> None:
    response.repeated_records.extend(repeated.keys())
    response.original_offsets.extend(repeated.values())
