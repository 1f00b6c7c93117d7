"""The way of a publish at the leader: into the open batch, the log, and the acknowledgements that wait for the HW.

    bare publish, envelope ──> `Ingest`, the open batch ──seal──┐
                                                                ├──> log ──> the core: pending acknowledgement
    `.append` request ──> `AppendRequests` ─────────────────────┘                │ committed, refused or timed out
    publisher <──────────────────────────────────────────────────────────── complete

An answer to a request that names no LeaderEpoch passes `answer_without_epoch` (R35).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final, assert_never

from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.leading.ingest import SEAL_BYTES, Ingest, OpenBatch, envelope_waits, envelope_waits_for_all
from dataplane.broker.leading.waiting_answers import WaitingAnswers
from dataplane.broker.reading.readable_role import ReadableRole
from dataplane.broker.roles.counters import Counters, counter
from dataplane.broker.roles.id_keeper import IdKeeper
from dataplane.broker.roles.role import RoleCounters
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.replica.leader.ack_levels import AckLevel, ack_level
from dataplane.replica.leader.append_rules import (
    AnswerWith,
    AppendRules,
    ClientBatch,
    Decision,
    Hold,
    PublishRun,
    Refuse,
)
from dataplane.replica.leader.leader import Leader
from dataplane.replica.leader.log_clock import LogClock
from dataplane.replica.leader.partitioning import stamped_version
from dataplane.replica.leader.quota import is_over_quota
from dataplane.replica.leader.repetitions import Repetitions
from dataplane.replica.replica_effects import LeaderEffect
from dataplane.replica.replica_refusals import answer_without_epoch
from dataplane.replica.replies import (
    AppendReply,
    BareReplies,
    EnvelopeReply,
    ExpectationReply,
    LocalReply,
    MarkReply,
    ProduceToken,
    Replies,
)
from wire.batch import (
    HEADER_SIZE,
    BatchHeader,
    Compression,
    EncodedBatch,
)
from wire.batch.encoded import RecordLimit
from wire.errors import Code, InvariantViolation, TidelogError
from wire.internal_streams import is_of_internal
from wire.messaging.transport import BulkHandler
from wire.protobuf.tidelog_pb2 import Message as EnvelopeMessage
from wire.types import Offset

_log = logging.getLogger(__name__)

REPLY_BYTES: Final = 128
"""Memory that a bare request takes while it waits for its answer; it counts among the uncommitted bytes, beside its
record."""
ENVELOPE_BYTES: Final = 2048
"""The same for an envelope."""


@dataclass
class PublishCounters(Counters):
    records_in: int = counter("records", "records of clients that were stored by leaders here")
    batches_in: int = counter("batches", "batches of clients that were stored by leaders here")
    bytes_in: int = counter("bytes", "bytes of the batches that `batches_in` counts")
    dropped_refused: int = counter(
        "records",
        "plain publishes that were not stored, by back-pressure, a read-only stream, want of a lease, or for another"
        " reason without a counter; publishers without a reply subject are not told",
    )
    dropped_too_large: int = counter("records", "plain publishes and envelopes above the [bound](#bounds) of a record")
    dropped_corrupt_envelope: int = counter("messages", "envelopes that do not decode")
    dropped_corrupt_batch: int = counter("batches", "batches of clients that do not decode")
    dropped_too_dense: int = counter(
        "messages",
        "batches of clients that say too much in too few bytes, and plain publishes and envelopes with too"
        " many headers ([bounds](#bounds))",
    )
    dropped_bad_headers: int = counter("records", "plain publishes and envelopes whose headers nobody could read")
    dropped_decode_queue: int = counter(
        "batches",
        "batches of clients that found too many waiting for the decoding thread",
    )
    dropped_over_quota: int = counter(
        "records",
        'plain publishes, and records of producers with `acks="none"`, above a [quota](security.md#quotas);'
        " they are lost",
    )
    appends_over_quota: int = counter("batches", "batches of other producers above a quota, which are sent again")
    repeated_records: int = counter(
        "records",
        "records that were not stored again, because one with their [message id](jetstream.md#ids) is in the log",
    )
    stale_partitioning_total: int = counter(
        "batches",
        "batches of producers that had not heard of a [repartition](routing.md), and were sent again to the"
        " new partitions",
    )
    held_appends: int = counter(
        "batches",
        "batches that came before this broker had heard of a repartition, and waited",
    )
    unproven_appends: int = counter("batches", "batches under a producer id that is not proven to be the sender's own")


class Appending:
    """One leader's publishes. `run` carries effects of the core out."""

    def __init__(
        self, role: ReadableRole, core: Leader, keeper: IdKeeper, run: Callable[[list[LeaderEffect]], None]
    ) -> None:
        self._role = role
        self._context = role.context
        self._counters = role.context.the(PublishCounters)
        self._log = role.log
        self._core = core
        self.run = run
        self.is_internal = is_of_internal(role.view.key, role.view.subject, role.context.subjects)
        self.answers = role.peer_answers if self.is_internal else role.answers
        """To `.append` requests."""
        self.syncing = False
        """A sync is out that covers the newest records."""
        self._gathers_until = inf
        """When the timer is to look at the open batch, which gathers."""
        context = role.context
        self.log_clock = LogClock(role.log.producers.time, context.now(), context.metadata.agreed_time_ns)
        self._keeper = keeper
        bounds, log = context.the(BoundsOfAll), role.log
        self.repetitions = Repetitions(
            role.view.key,
            context.broker,
            context.settings,
            keeper,
            self.log_clock,
            bounds.message_ids,
            first_record=lambda: role.first_record,
            read=lambda base, end: log.read(base, max_bytes=1, end_offset=end),
        )
        """They begin when the message ids of the log are known, before the first publish comes."""
        self.rules = AppendRules(
            core,
            self.repetitions,
            log.producers,
            self.log_clock,
            is_internal=self.is_internal,
            tickets=context.tickets,
            producer_keys=context.producer_keys,
            refuse_producer=bounds.refuse_producer,
        )
        self._waiting = WaitingAnswers(role, core, self)
        self._ingest = Ingest(self, is_inbox=context.replies.is_clients, time_ns=context.time_ns)
        self.configure()

    def configure(self) -> None:
        """Take over the settings of the newest view, and the largest message of NATS; both change while the stream is
        used."""
        view = self._role.view
        self.max_batch_bytes = self._context.max_batch_bytes
        config, room = view.config, self.max_batch_bytes - HEADER_SIZE - 64
        self._compression = Compression[config.compression.name]
        self.record_limit = RecordLimit.within(self.max_batch_bytes, config.max_record_bytes)
        self._confirm_timeout = config.confirm_timeout_ms / 1000
        self._level = ack_level(view)
        self._stamped_version = stamped_version(view)
        self._encrypts = bool(config.encryption)
        self.repetitions.configure(config)
        self._ingest.configure(
            level=self._level,
            max_batch_bytes=min(4 * SEAL_BYTES, room),
            record_limit=self.record_limit,
            with_replies=config.reply_acks,
            seeks_repetitions=self.repetitions.are_sought,
        )

    @property
    def ingest(self) -> BulkHandler:
        """Takes the messages that are published to the stream's subject."""
        return self._ingest

    def abandon(self, reason: str) -> None:
        """The role ends. Another leader may have received, and stored, the same publishes: their outcome is not known
        here."""
        self._drop_open_batch(reason)
        self._waiting.abandon()
        if self.repetitions.end():
            self._keeper.on_led(self._log)

    def look(self) -> None:
        """Something has changed: perhaps the open batch need not grow any more."""
        if self._ingest.open_records and self.wants_batch():
            self.seal()

    def next_deadline(self) -> float:
        """When the open batch has gathered for long enough; inf: none gathers."""
        return self._gathers_until if self._ingest.open_records else inf

    def wants_batch(self) -> bool:
        until = self._core.gathers_until(self._context.now())
        if until and not self._level.is_local and not self._ingest.has_envelopes:
            if until != self._gathers_until:
                self._gathers_until = until
                self._role.timer.schedule()
            return False
        self._gathers_until = inf
        if not self.syncing:
            return True
        # Where many logs wait for the disk the batch grows until this one has been synced.
        return self._core.has_waiting_follower and not self._context.syncer.is_crowded

    def seal(self) -> None:
        """The open batch of bare publishes goes into the log. It is empty afterwards in any case, since the rest of the
        messages that were received together needs room."""
        if self._role.ended:
            self._drop_open_batch("this leadership has ended")
        if not self._ingest.open_records:
            return
        self._gathers_until = inf
        taken = self._ingest.take(self._compression)
        header = self.append(taken.batch)
        if isinstance(header, TidelogError):
            self._on_not_stored(taken, header)
            return
        self.repetitions.stored(taken.ids, header)
        now, level = self._context.now(), self._level
        base, end = header.base_offset, header.end_offset
        self._counters.repeated_records += taken.repeated
        effects: list[LeaderEffect] = []
        for runs in filter(None, (taken.replies, taken.repetitions)):
            token = BareReplies([(Offset(base + place), run) for place, run in runs], level.is_local)
            token.is_repetition = runs is taken.repetitions
            effects += self._core.await_ack(level, end, token, self._confirm_timeout, now)
        envelopes = [waiting for waiting in taken.envelopes if envelope_waits(waiting[1])]
        for place, message, received in envelopes:
            answer = self._envelope_reply(message, Offset(base + place), received)
            asked = self._envelope_level(message)
            effects += self._core.await_ack(asked, end, answer, self._confirm_timeout, now)
        answers = sum(len(run) for _, run in (*taken.replies, *taken.repetitions))
        waiting = answers * REPLY_BYTES + len(envelopes) * ENVELOPE_BYTES
        self.run([*effects, *self._core.on_appended(end, header.size + waiting, now)])
        self._role.timer.schedule()

    def _drop_open_batch(self, reason: str) -> None:
        if self._ingest.open_records:
            error = TidelogError(Code.OUTCOME_UNKNOWN, f"{reason}; the record was not stored here")
            self._on_not_stored(self._ingest.take(Compression.NONE), error)

    def _on_not_stored(self, taken: OpenBatch, error: TidelogError) -> None:
        """Nothing of the open batch is in the log."""
        dropped = taken.batch.record_count + taken.repeated
        self._counters.dropped_refused += dropped
        _log.warning("partition %s: dropped %d published records: %s", self._role.view.key, dropped, error)
        for _, run in (*taken.replies, *taken.repetitions):
            self.refuse(run, error)
        for _, message, _ in taken.envelopes:
            self._refuse_envelope(message, error)

    def append(self, batch: EncodedBatch) -> BatchHeader | TidelogError:
        """Stamp, encrypt where the stream asks for it (control batches hold no records, and stay as they are), and
        append; the caller reports it to the core. An error: nothing was stored for want of room, or the log has failed,
        and this replica withdraws."""
        parts, header = batch.stamp(
            self._log.log_end_offset,
            self._role.leader_epoch,
            self.log_clock.time(self._context.now()),
            self._stamped_version,
        )
        if self._encrypts and not header.is_control:
            parts, header = self._role.cipher.encrypt(header, batch.parts)
        try:
            self._context.space.append(self._log, parts, [header])
        except NoSpace as e:
            self._context.the(RoleCounters).refused_no_space += 1
            return TidelogError(Code.NO_SPACE, f"{self._context.broker} has no room for {self._role.view.key}: {e}")
        except LogDamaged as e:
            self._role.fail(f"append failed: {e}")
            # It is unknown how much of it the disk took; this replica may find it whole after a restart.
            return TidelogError(
                Code.OUTCOME_UNKNOWN,
                f"{self._context.broker} could not write to the log of {self._role.view.key}: {self._role.failed}",
            )
        if not header.is_control:
            now = self._context.now()
            self._role.traffic.on_in(batch.record_count, header.size, now)
            if not self.is_internal:
                counters = self._counters
                counters.batches_in += 1
                counters.records_in += batch.record_count
                counters.bytes_in += header.size
                self._context.traffic.on_in(batch.record_count, header.size, now)
        return header

    def on_synced(self, durable_end: Offset) -> None:
        self.syncing = self._role.syncs_out > 0 and durable_end < self._core.log_end_offset
        self.run(self._core.on_synced(durable_end, self._context.now()))
        self.look()

    # ------------------------------------------------------------------ `ingest.Publishes`
    def decide(self, publish: PublishRun | ClientBatch) -> Decision:
        now = self._context.now()
        lease_valid = self._context.metadata.lease_valid(now)
        unable = self._unable() if self._role.ended or self._encrypts else None
        return self.rules.decide(publish, now, lease_valid=lease_valid, unable=unable)

    def decide_admitted(self, batch: ClientBatch) -> Decision:
        """As `decide`, of a batch that was admitted in this step, since which nothing was appended."""
        return self.rules.decide_admitted(batch, self._context.now())

    @property
    def has_open_batch(self) -> bool:
        return self._ingest.open_records > 0

    def admit(self, batch: ClientBatch) -> Hold | Refuse | None:
        now = self._context.now()
        return self.rules.admit(batch, now, lease_valid=self._context.metadata.lease_valid(now), unable=self._unable())

    def _unable(self) -> TidelogError | None:
        """A leader without the master key leads nevertheless: following and being followed need no key. The controller
        gives the leadership to a member of the ISR that has one; until then, or for good if none has, publishes are
        refused."""
        if self._role.ended:
            return TidelogError(
                Code.NOT_LEADER, f"{self._context.broker} does not lead {self._role.view.key} now; try again"
            )
        if not self._encrypts or self._role.cipher.can_encrypt:
            return None
        return self._role.until_another_leads(
            self._context.keyring.lacks_a_key(f"cannot encrypt what is published to {self._role.view.key}")
        )

    def on_refused(self, replies: Replies, error: TidelogError, count: int) -> None:
        self._counters.add(_counter_of(error), count)
        _log.warning("partition %s: dropped %d published records: %s", self._role.view.key, count, error)
        if self._role.view.config.reply_acks and not self._role.ended:
            self.refuse(replies, error)

    def on_envelope_refused(self, message: EnvelopeMessage, error: TidelogError) -> None:
        self._counters.add(_counter_of(error), 1)
        _log.warning("partition %s: dropped an envelope: %s", self._role.view.key, error)
        self._refuse_envelope(message, error)

    def on_denied(self, reply: bytes, refusal: Refuse) -> None:
        over_quota = is_over_quota(refusal.error)
        self._counters.add("dropped_over_quota" if over_quota else "dropped_refused", 1)
        self._waiting.refuse(reply, refusal)

    def on_repetition(self, publisher: bytes | EnvelopeMessage | None, answer: AnswerWith) -> None:
        self._counters.repeated_records += 1
        original = answer.repeated[0]
        if isinstance(publisher, bytes):
            token = BareReplies([(original, [publisher])], self._level.is_local, is_repetition=True, is_counted=True)
            self._waiting.wait(self._level, answer.end, token)
        elif publisher is not None and envelope_waits(publisher):
            reply = self._envelope_reply(publisher, original, self._context.time_ns(), is_counted=True)
            self._waiting.wait(self._envelope_level(publisher), answer.end, reply)

    def _envelope_level(self, message: EnvelopeMessage) -> AckLevel:
        return self._level if envelope_waits_for_all(message) else ack_level(self._role.view, by_leader=True)

    def _envelope_reply(
        self, message: EnvelopeMessage, offset: Offset, received: int, *, is_counted: bool = False
    ) -> EnvelopeReply:
        needs_lease = self._envelope_level(message).is_local
        return EnvelopeReply(message, self._role.view.subject, offset, received, needs_lease, is_counted)

    # Every publish without a LeaderEpoch that gets an error gets it by one of these, or by `AppendRequests`.

    def answer_without_epoch(self, error: TidelogError) -> TidelogError | None:
        """By the clock of this moment: the process may have stood still since the message came."""
        lease_valid = self._context.metadata.lease_valid(self._context.now())
        return answer_without_epoch(error, self._context.broker, self._role.view, lease_valid=lease_valid)

    def refuse(self, token: Replies | BareReplies | ExpectationReply | EnvelopeReply, error: TidelogError) -> None:
        """Another leader may contradict the error."""
        answer = self.answer_without_epoch(error)
        if answer is None:
            return
        match token:
            case BareReplies():
                for _, replies in token.runs:
                    self._role.answers.bare_error(replies, answer)
            case ExpectationReply():
                self._role.answers.bare_error([token.reply], answer)
            case EnvelopeReply():
                self._role.answers.envelope(token, self._context.time_ns(), answer)
            case _:
                self._role.answers.bare_error(token, answer)

    def _refuse_envelope(self, message: EnvelopeMessage, error: TidelogError) -> None:
        received = self._context.time_ns()
        self.refuse(EnvelopeReply(message, self._role.view.subject, Offset(-1), received, needs_lease=False), error)

    # ------------------------------------------------------------------ this process
    def append_local(self, batch: EncodedBatch, timeout: float, reply: LocalReply) -> None:
        """A batch of this process, acknowledged as acks=all. `timeout`: seconds, after which the outcome is unknown."""
        now = self._context.now()
        decision = self.decide(PublishRun(self._level))
        header = decision.error if isinstance(decision, Refuse) else self.append(batch)
        if isinstance(header, TidelogError):
            reply.done(header)
            return
        effects = self._core.await_ack(self._level, header.end_offset, reply, timeout, now)
        self.run([*effects, *self._core.on_appended(header.end_offset, header.size, now)])
        self._role.timer.schedule()

    def await_committed(self, end: Offset, timeout: float, reply: LocalReply) -> None:
        level = AckLevel(is_local=False, is_synced=self._role.view.config.is_durable)  # the HW
        self.run(self._core.await_ack(level, end, reply, timeout, self._context.now()))
        self._role.timer.schedule()

    def complete(self, token: ProduceToken, error: TidelogError | None) -> None:
        match token:
            case ExpectationReply(reply, refusal):
                self._waiting.waiting.release()
                if error is None:  # the record at the expected place is committed: the refusal is true of every leader
                    self._role.answers.bare_error([reply], refusal)
                else:
                    self.refuse(token, refusal)
            case BareReplies() | EnvelopeReply():
                if token.is_counted:
                    self._waiting.waiting.release()
                error = error or self._no_lease(token.needs_lease)
                if error is not None:
                    self.refuse(token, error)
                elif isinstance(token, BareReplies):
                    self._role.answers.bare(token)
                else:
                    self._role.answers.envelope(token, self._context.time_ns())
            case AppendReply():
                error = error or self._no_lease(token.needs_lease)
                if error is None:
                    self.answers.append(token)
                else:
                    self.answers.error(token.inbox, error)
            case LocalReply():
                token.done(error or self._no_lease(self._level.is_local))
            case MarkReply():
                raise InvariantViolation("ends of transactions are completed by TransactionMarks")
            case _:
                assert_never(token)

    def _no_lease(self, needed: bool) -> TidelogError | None:
        if not needed or self._context.metadata.lease_valid(self._context.now()):
            return None
        return TidelogError(
            Code.OUTCOME_UNKNOWN,
            f"{self._context.broker} may lead {self._role.view.key} no more; the record may or may not survive",
        )


_COUNTERS = {
    Code.CORRUPT_ENVELOPE: "dropped_corrupt_envelope",
    Code.RECORD_TOO_LARGE: "dropped_too_large",
    Code.LIMIT_REACHED: "dropped_too_dense",
    Code.BAD_REQUEST: "dropped_bad_headers",
}


def _counter_of(error: TidelogError) -> str:
    """The counter of records that are dropped for it."""
    return "dropped_over_quota" if is_over_quota(error) else _COUNTERS.get(error.code, "dropped_refused")
