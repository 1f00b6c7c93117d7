"""One partition's half of an idempotent producer: gathered batches, sent batches, and the meaning of answers.

Records gather in the OPEN batch. A batch is SEALED when it is full, or when there is room in the window and it has
lingered long enough. The window holds at most `max_in_flight` batches with an unknown outcome; each has a place in
the sequence of one producer SESSION (producer id, epoch), by which the leader distinguishes a repetition from a new
batch.

Batch:    GATHERING -> SEALED -> SENT <-> RESEND -> RESOLVED (acknowledged or failed)
                         ^                  |
                         +------------------+  on under a new session (rules 4 to 6)

Link:     UP     batches are sent.
          DOWN   NATS said that the subject has no listener (503). Nothing is sent; a tiny probe goes out every few
                 milliseconds, and the first answer to it resends all unresolved batches, in order. Batches are never
                 published on a subject without a listener.

Invariants:

0. No batch begins while one that began `REMEMBERED_BATCHES` before it is unresolved, though all between them may be
   acknowledged: a leader knows that many batches of a producer, and would refuse the repetition of an older one.
1. The window is in sequence order, and a batch is sent only when every batch before it in the window has been sent
   since. So a leader sees a session's batches in order, and repetitions keep their sequence and their bytes.
2. A success counts from any attempt. A refusal counts only from the newest attempt: NATS keeps the order of one
   connection's messages on a subject, so the answer to the newest copy says that no older one is still to come.
3. A leader that never saw an earlier batch answers OUT_OF_ORDER_SEQUENCE to the later ones. While an earlier batch is
   unresolved that is no failure: everything up to the refused batch is sent again, in order. The same after UNAVAILABLE
   with `expected_sequence`: the leader says that while another replica may hold records that its log lacks, and rules 4
   to 6 conclude nothing from it.
4. A session is unsound once one of its batches has ended without success, since the leader waits for that batch's
   sequence for ever. Batches still in the window are sent on under the old session, so that nothing is written twice,
   until the leader refuses the first batch as out of order: then that one is certainly not in the log, hence none
   behind it, and all go on under a new session.
5. OUT_OF_ORDER_SEQUENCE to the first batch of a sound session means that the log has lost acknowledged records. With
   acks=all that batch fails and says so; with acks=leader that may happen, and the batch goes on in a new
   session.
6. UNKNOWN_PRODUCER_ID means that the leader has forgotten the session, or takes it for one that it has forgotten, and
   stored nothing. If no earlier attempt of the first batch can have been written, or the leader remembers every
   producer that wrote since that batch was made, it is not in the log, hence none behind it, and all go on under a new
   session. Else its outcome cannot be known any more: it fails and says so.
   UNPROVEN_PRODUCER, where the brokers do not hold the secret any more from which the key of the session follows, is
   the same: the leader stored nothing, and whether an earlier attempt was stored it does not say.
7. Rules 5 and 6 hold for a leader that can know all stored batches. One of an earlier LeaderEpoch than an attempt
   of the batch named has been deposed, as has one of an earlier LeaderEpoch than a later answer came from: the batch
   waits for its successor. (A client goes back to an earlier LeaderEpoch where the metadata say so, and a controller
   that has been deposed, too, may say it.)
8. While refusals repeat, only the first batch of the window is sent: a leader without enough replicas or room is
   asked, not flooded.
9. A batch that expects an offset is alone in the window: where the next record goes is known only then. Refused with
   INCORRECT_OFFSET it is in no log, unless an earlier attempt is without an answer, and the next batch takes its
   sequence: the session stays sound.
10. The session of a transactional producer is that of its transaction, and comes with a ticket. NOT_IN_TRANSACTION and
    PRODUCER_FENCED ask for another ticket: the coordinator of the transaction names the reason
    (`tidelog.client.transaction.producer_transactions`). It gives no session for rules 4 to 6: there the transaction
    ends, and its records will not be read.

11. A leader compares the partitioning version that a batch names with its own, and whether its partition takes records,
    only for a batch that it does not have: a repetition gets its receipt before, whatever version it names, and a
    producer that the leader may have forgotten gets UNKNOWN_PRODUCER_ID before (rule 6). So when a leader that can
    know (rule 7) refuses a batch for its version (`_is_of_layout`), none of its attempts was stored, also of those
    without an answer.
12. When the stream has a newer layout (`outdate`) no further batch begins. The window is sent on, to the same leader
    and under the same sequences, until its first batch is known not to be stored, or nothing is left. Then everything
    that is not resolved is taken back (`take_back`), and goes to the partitions of the newer layout
    (`tidelog.client.producer.layout_routes`). A transaction cannot go on elsewhere: its batches fail.

An answer can fail to come: the message reached a process that was killed afterwards. So when the oldest batch has
waited for the probe interval of the link, a probe asks the leader for its LeaderEpoch: 503 takes the link down, a newer
epoch than the one the batch was sent under resends, the same epoch means that the leader is at work and is waited for.
After `_resend_after` without an answer everything is sent again anyway (NATS delivers at most once).

Pure: `now` is monotonic seconds, effects are returned. The driver calls `next_send` until it returns None after each
event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tidelog.client.base.exceptions import OutOfOrderSequence, typed
from tidelog.client.producer.batch_failures import as_told, begin_again, forgotten, given_up, too_late
from tidelog.client.producer.batches import BatchState, Gathering, PendingBatch, ProducerSession
from tidelog.client.producer.leader_link import BACKOFF, LeaderLink
from tidelog.client.producer.producer_config import ProducerConfig
from wire.error_details import EXPECTED_SEQUENCE, LEADER_EPOCH, OUTCOME, REMEMBERED_MS, VERSION
from wire.errors import Code, TidelogError
from wire.types import REMEMBERED_BATCHES

MAX_SEQUENCE = (1 << 31) - 1
"""Sequence numbers are i32. Before they run out the partition goes on in a new session."""

_OF_LAYOUTS = (Code.STALE_PARTITIONING, Code.PARTITION_DRAINING, Code.PARTITION_RETIRED)
_CLOCKS_APART = 3600.0
"""Seconds. The clocks of leaders of one partition differ by less; a leader's time is believed only then."""
_RESEND_AFTER = 2.0
"""Seconds after which a batch without an answer is sent again for the first time."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    batch: PendingBatch
    base_offset: int
    originals: Mapping[int, int] = field(default_factory=dict)
    """By place in the batch, of the records that were not written because one with their message id exists: its
    offset, or UNKNOWN_OFFSET."""


@dataclass(frozen=True, slots=True)
class Failed:
    batch: PendingBatch
    error: TidelogError


@dataclass(frozen=True, slots=True)
class Probe:
    """The driver asks the partition's leader for its LeaderEpoch with a request that carries no data."""


@dataclass(frozen=True, slots=True)
class WantSession:
    """The driver gets a producer id and gives it to `on_session`."""


@dataclass(frozen=True, slots=True)
class WantTicket:
    """The leader does not take the ticket of the transaction; the driver gets another one."""


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    """The metadata of the stream may be out of date."""


Effect: TypeAlias = Acknowledged | Failed | Probe | WantSession | WantTicket | RefreshMetadata


class PartitionAccumulator:
    """The state machine of one partition; see the module's text."""

    def __init__(self, name: str, config: ProducerConfig[Any, Any], leader_epoch: int = 0) -> None:
        self.name = name
        """stream/partition, for sentences."""
        self.leader_epoch = leader_epoch
        """The newest known LeaderEpoch; sent along, so that a deposed leader stays silent."""
        self._doubts_epoch = False
        """A leader has answered with an earlier LeaderEpoch: the metadata decide."""
        self._acknowledged_epoch = 0
        """The newest LeaderEpoch that acknowledged a batch of this session."""
        self._config = config
        self._idempotent = config.acks != "none"
        self._linger = config.linger_ms / 1000
        self.delivery_timeout = config.delivery_timeout
        """Seconds from a batch's first record until the batch fails."""
        self.gathering = Gathering(config.batch_bytes, self.delivery_timeout)
        self._window: deque[PendingBatch] = deque()
        self.session: ProducerSession | None = None
        """The session of the batches that begin now."""
        self._session_sound = True
        self._session_wanted = False
        self._next_sequence = 0
        self._begun = 0
        self.is_outdated = False
        """The stream has a newer layout (rule 12)."""
        self.is_over = False
        """All batches were taken back, and none may be given to this partition any more."""
        self.link = LeaderLink()

    @property
    def is_idle(self) -> bool:
        """All records given to this partition are resolved."""
        return self.gathering.is_empty and not self._window

    @property
    def is_available(self) -> bool:
        return not self.link.is_down

    @property
    def pending_batches(self) -> list[PendingBatch]:
        """Unresolved batches, oldest first."""
        return [*self._window, *self.gathering.batches]

    # Sending

    def next_send(self, now: float) -> PendingBatch | None:
        """The batch to publish now, marked as sent; None when there is none. Repetitions come first, in order."""
        if not self.link.may_send(now) or (self.is_outdated and self.is_drained):
            return None
        for batch in self._window:
            if batch.state is BatchState.RESEND:
                return self._mark_sent(batch, now)
            if self.link.is_cautious:
                return None
        if not self._may_begin:
            return None
        gathering = self.gathering
        if not gathering.sealed and gathering.open is not None and now >= gathering.open.created_at + self._linger:
            gathering.seal()
        if not gathering.sealed:
            return None
        if self._idempotent and self._next_sequence + len(gathering.sealed[0]) > MAX_SEQUENCE:
            self._session_sound = False
            return None
        batch = gathering.sealed.popleft()
        if self._idempotent:
            batch.session = self.session
            batch.base_sequence = self._next_sequence
            self._next_sequence += len(batch)
        batch.place, self._begun = self._begun, self._begun + 1
        self._window.append(batch)
        return self._mark_sent(batch, now)

    @property
    def _may_begin(self) -> bool:
        """Returns whether a batch that was never sent may go out."""
        if self.is_outdated:
            return False
        if self._window and (self.link.is_cautious or _goes_alone(self._window[-1], self.gathering)):
            return False
        if self._idempotent and self._window and self._begun - self._window[0].place >= REMEMBERED_BATCHES:
            return False  # later batches are answered, and the leader is about to forget the first
        return len(self._window) < self._config.max_in_flight and self._has_session

    @property
    def _has_session(self) -> bool:
        return not self._idempotent or (self.session is not None and self._session_sound)

    def on_publish_refused(self, batch: PendingBatch, now: float, retry_in: float) -> None:
        """The connection took nothing: it is down or its buffer is full."""
        if batch.state is BatchState.SENT:
            batch.state = BatchState.RESEND
            self.link.hold_until = now + retry_in

    def _mark_sent(self, batch: PendingBatch, now: float) -> PendingBatch:
        batch.state = BatchState.SENT
        batch.attempts += 1
        batch.sent_at = now
        batch.sent_epoch = self.leader_epoch
        batch.newest_epoch = max(batch.newest_epoch, batch.sent_epoch)
        batch.sent_first = bool(self._window) and self._window[0] is batch
        if self._oldest_sent is batch:
            self.link.expect_answer(now)
        return batch

    # Answers

    def on_published(self, batch: PendingBatch) -> list[Effect]:
        """Resolves a batch with acks=none: nothing is known but that it was written to the connection."""
        self._resolve(batch)
        return [Acknowledged(batch, -1)]

    def on_acknowledged(
        self, batch: PendingBatch, base_offset: int, leader_epoch: int, originals: Mapping[int, int] | None = None
    ) -> list[Effect]:
        if batch.state in (BatchState.RESOLVED, BatchState.MOVED) or not _is_credible(batch, base_offset, leader_epoch):
            return []
        self._acknowledged_epoch = max(self._acknowledged_epoch, leader_epoch)
        self.link.succeeded()
        self._resolve(batch)
        return [Acknowledged(batch, base_offset, originals or {}), *self._renew_session()]

    def on_error(self, batch: PendingBatch, attempt: int, error: TidelogError, now: float) -> list[Effect]:
        """The leader refused attempt number `attempt` of the batch."""
        self.leader_epoch = max(self.leader_epoch, _epoch_of(error))
        code = error.code
        if code.unknown_outcome or code is Code.FENCED_LEADER_EPOCH:
            # A leader of a later LeaderEpoch stores nothing, but that of the attempt's LeaderEpoch may get it, too.
            batch.uncertain = True
        if batch.state is not BatchState.SENT or attempt != batch.attempts:
            return []
        batch.last_error = error
        if code in (Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_PRODUCER_ID) or (
            code is Code.UNPROVEN_PRODUCER and not batch.is_transactional
        ):
            if self._window[0] is not batch:
                return self._resend_up_to(batch, now)
            is_out_of_order = code is Code.OUT_OF_ORDER_SEQUENCE
            if batch.sent_epoch < max(batch.newest_epoch, self._acknowledged_epoch if is_out_of_order else 0):
                batch.state = BatchState.RESEND
                self.link.back_off(now, error)
                return [RefreshMetadata()]
            if code is Code.UNPROVEN_PRODUCER:
                return self._unproven(batch, error, now)
            return self._out_of_order(batch, error, now) if is_out_of_order else self._forgotten(batch, error, now)
        if code is Code.UNAVAILABLE and error.detail(EXPECTED_SEQUENCE) is not None and self._window[0] is not batch:
            return self._resend_up_to(batch, now)
        if _is_of_layout(error):
            return self._of_another_layout(batch, error, now)
        if code is Code.INCORRECT_OFFSET and batch.expected_offset is not None and not batch.uncertain:
            self._next_sequence = batch.base_sequence
            self._resolve(batch)
            return [Failed(batch, typed(error).with_details(OUTCOME.of("not_written")))]
        if code in (Code.NOT_IN_TRANSACTION, Code.PRODUCER_FENCED) and batch.is_transactional:
            batch.state = BatchState.RESEND
            self.link.back_off(now, error)
            return [WantTicket()]
        effects: list[Effect] = [RefreshMetadata()] if code.refresh_metadata else []
        if not code.retriable or (code is Code.CONFIRM_TIMEOUT and self._config.confirm_timeout is not None):
            return [*effects, *self._fail(batch, typed(as_told(error, batch))), *self._renew_session()]
        batch.state = BatchState.RESEND
        if code in (Code.FENCED_LEADER_EPOCH, Code.CONFIRM_TIMEOUT) and batch.sent_epoch != self.leader_epoch:
            return effects  # the answer itself named the newer epoch, so there is no reason to wait
        self.link.back_off(now, error)
        return effects

    def on_no_responders(self, batch: PendingBatch, attempt: int, now: float) -> list[Effect]:
        """The subject had no listener: this attempt reached no broker."""
        if batch.state is not BatchState.SENT or attempt != batch.attempts:
            return []
        batch.state = BatchState.RESEND
        self.link.go_down(now)
        return []

    def on_probe_answer(self, leader_epoch: int) -> list[Effect]:
        """A leader has answered a probe. One of an older LeaderEpoch than is known has been deposed and counts for
        nothing, unless the known one was forged: the metadata decide."""
        if leader_epoch < self.leader_epoch:
            self._doubts_epoch = True
            return [RefreshMetadata()]
        self.leader_epoch = leader_epoch
        was_down = self.link.come_up()
        for batch in self._window:
            if batch.state is BatchState.SENT and (was_down or batch.sent_epoch < self.leader_epoch):
                batch.doubt()
        return []

    def on_metadata(self, leader_epoch: int) -> list[Effect]:
        """Takes the LeaderEpoch of the partition as the controller has just reported it. A leader does not answer
        requests that name a later LeaderEpoch than its own. So where a leader answers a probe with an earlier one than
        is known, the controller's outranks those of answers, which may be forged."""
        if self._doubts_epoch:
            self._doubts_epoch = False
            self.leader_epoch = leader_epoch
            for batch in self._window:
                if batch.state is BatchState.SENT and batch.sent_epoch > leader_epoch:
                    batch.doubt()
        return []

    def on_probe_no_responders(self, now: float) -> list[Effect]:
        self.link.go_down(now)
        return []

    def on_reconnected(self, now: float) -> list[Effect]:
        """The NATS connection was lost and is back: messages that were out may be lost, and so may their answers."""
        for batch in self._window:
            if batch.state is BatchState.SENT:
                batch.doubt()
        self.link.reconnected(now)
        return []

    def on_session(self, session: ProducerSession | None) -> None:
        """Takes the session. None: the transaction of the last session is over, and nothing is unresolved."""
        self.session = session
        self._session_sound = True
        self._session_wanted = False
        self._next_sequence = 0
        self._acknowledged_epoch = 0

    def expect_session(self) -> None:
        """Notes that a session was requested, and comes with `on_session`."""
        self._session_wanted = True

    # A newer layout

    def outdate(self) -> None:
        """The stream has a newer layout. `take_back` is to follow as soon as it `is_drained`."""
        self.is_outdated = True

    @property
    def is_drained(self) -> bool:
        """It is outdated, and no unresolved batch is in the log, or will be."""
        if not self.is_outdated or not self._window:
            return self.is_outdated
        first = self._window[0]
        return first.state is BatchState.RESEND and not first.uncertain

    # Keeps R67.
    def take_back(self) -> list[PendingBatch]:
        """Returns all unresolved batches, in order. None may be given to this partition any more."""
        taken = self.pending_batches
        self._window.clear()
        self.gathering.clear()
        self.is_over = True
        for batch in taken:
            batch.state = BatchState.MOVED
        return taken

    def fail_all(self, error: TidelogError) -> list[Effect]:
        """Gives up all batches, for an error that concerns the whole stream. The errors of batches that may have been
        written say so."""
        effects: list[Effect] = []
        for batch in self.pending_batches:
            effects += self._fail(batch, given_up(error, batch))
        return effects

    # Time

    def tick(self, now: float) -> list[Effect]:
        """Carries out all that is due."""
        effects: list[Effect] = []
        patience = self._config.confirm_timeout
        for batch in self.pending_batches:
            if now >= batch.deadline:
                effects += self._fail(batch, too_late(batch, self.name, self.delivery_timeout, self.link))
                continue
            since = self.link.refuses_since(batch)
            if patience is not None and since is not None and now >= since + patience:
                effects += self._fail(batch, too_late(batch, self.name, patience, self.link))
        effects += self._renew_session()
        sent = self._oldest_sent
        if sent is not None and now >= sent.sent_at + _resend_after(sent):
            for batch in self._window:
                if batch.state is BatchState.SENT:
                    batch.doubt()
        if self.link.probe_is_due(now, waiting=sent is not None):
            effects.append(Probe())
        if self.link.refresh_is_due(now):
            effects.append(RefreshMetadata())
        return effects

    def next_deadline(self) -> float | None:
        """Returns when `tick` or `next_send` has work at the latest; None when nothing is pending."""
        if self.is_idle:
            return None
        if self._needs_session:
            return 0.0
        oldest_waiting = self.gathering.oldest
        ageing = [*self._window, *([] if oldest_waiting is None else [oldest_waiting])]
        due = [batch.deadline for batch in ageing]
        if self._config.confirm_timeout is not None:
            since = [moment for batch in ageing if (moment := self.link.refuses_since(batch)) is not None]
            due += [moment + self._config.confirm_timeout for moment in since]
        link = self.link
        if link.is_down:
            return min(*due, link.probe_at, link.refresh_at)
        sent = self._oldest_sent
        if sent is not None:
            due += (link.probe_at, sent.sent_at + _resend_after(sent))
        resend = next((batch for batch in self._window if batch.state is BatchState.RESEND), None)
        if resend is not None and (resend is self._window[0] or not link.is_cautious):
            due.append(link.hold_until)
        if self._may_begin:
            if self.gathering.sealed:
                due.append(link.hold_until)
            elif self.gathering.open is not None:
                due.append(max(self.gathering.open.created_at + self._linger, link.hold_until))
        return min(due)

    # Inside

    @property
    def _oldest_sent(self) -> PendingBatch | None:
        return next((batch for batch in self._window if batch.state is BatchState.SENT), None)

    def _resend_up_to(self, batch: PendingBatch, now: float) -> list[Effect]:
        for earlier in self._window:
            if earlier is batch:
                break
            if earlier.state is BatchState.SENT:
                earlier.doubt()
        batch.state = BatchState.RESEND
        self.link.hold(now + BACKOFF)
        return []

    def _out_of_order(self, batch: PendingBatch, error: TidelogError, now: float) -> list[Effect]:
        if self._session_sound and self._config.acks == "all":
            if not batch.sent_first:
                # This attempt may have reached the leader before the batches in front of it.
                return self._resend_up_to(batch, now)
            expected = error.detail(EXPECTED_SEQUENCE)
            if expected is not None and expected > batch.base_sequence:
                other = OutOfOrderSequence(
                    Code.OUT_OF_ORDER_SEQUENCE,
                    f"the log of {self.name} has other records in the place of these, under the id of this producer:"
                    f" these were not written ({error.message})",
                    error.details,
                )
                return [*self._fail(batch, other), *self._renew_session()]
            lost = OutOfOrderSequence(
                Code.OUT_OF_ORDER_SEQUENCE,
                f"the log of {self.name} lacks records of this producer that had been acknowledged before this one: "
                f"they were lost ({error.message}); compare your records with the stream",
                error.details,
            )
            return [*self._fail(batch, lost), *self._renew_session()]
        return self._begin_anew()

    def _forgotten(self, batch: PendingBatch, error: TidelogError, now: float) -> list[Effect]:
        remembered = (error.detail(REMEMBERED_MS) or 0) / 1000
        if batch.is_transactional or not batch.uncertain or remembered > now - batch.created_at + _CLOCKS_APART:
            self.link.back_off(now, None)  # the leader may not know the next session either
            return self._begin_anew()
        return [*self._fail(batch, forgotten(batch, self.name)), *self._renew_session()]

    def _unproven(self, batch: PendingBatch, error: TidelogError, now: float) -> list[Effect]:
        if batch.uncertain:
            return [*self._fail(batch, typed(as_told(error, batch))), *self._renew_session()]
        self.link.back_off(now, error)
        return self._begin_anew()

    def _of_another_layout(self, batch: PendingBatch, error: TidelogError, now: float) -> list[Effect]:
        if batch.is_transactional:
            return [RefreshMetadata(), *self._fail(batch, begin_again(error, self.name))]
        batch.state = BatchState.RESEND
        if batch.sent_epoch >= max(batch.newest_epoch, self._acknowledged_epoch):
            batch.uncertain = False
        self.link.back_off(now, error)
        return [RefreshMetadata()]

    def _begin_anew(self) -> list[Effect]:
        """Moves the window to a new session: its first batch is not in the log, hence none behind it."""
        self._session_sound = False
        while self._window:
            later = self._window.pop()
            later.begin_anew()
            self.gathering.sealed.appendleft(later)
        return self._renew_session()

    def _fail(self, batch: PendingBatch, error: TidelogError) -> list[Effect]:
        if batch.session is not None:
            self._session_sound = False
        self._resolve(batch)
        return [Failed(batch, error)]

    def _resolve(self, batch: PendingBatch) -> None:
        batch.state = BatchState.RESOLVED
        if batch in self._window:
            self._window.remove(batch)
        else:
            self.gathering.remove(batch)

    @property
    def _needs_session(self) -> bool:
        """Batches wait to be sent without a session, and none of the old one is unresolved (rules 4 to 6)."""
        if self.is_outdated or self._session_wanted or self._has_session:
            return False
        return not self._window and not self.is_idle

    def _renew_session(self) -> list[Effect]:
        if not self._needs_session:
            return []
        self.session = None
        self._session_wanted = True
        return [WantSession()]


def _goes_alone(newest: PendingBatch, gathering: Gathering) -> bool:
    """The newest batch of the window, or the one that is to be sent next, expects an offset (rule 9)."""
    sealed = gathering.sealed
    return newest.expected_offset is not None or bool(sealed and sealed[0].expected_offset is not None)


def _is_of_layout(error: TidelogError) -> bool:
    """Returns whether the partition refuses the batch for the version that it names (rule 11). UNAVAILABLE with a
    version: the leader has not applied that of the batch yet."""
    return error.code in _OF_LAYOUTS or (error.code is Code.UNAVAILABLE and error.detail(VERSION) is not None)


def _is_credible(batch: PendingBatch, base_offset: int, leader_epoch: int) -> bool:
    """Returns whether the receipt can be a leader's: only one of the LeaderEpoch that the request named stores the
    batch, and an earlier attempt may have named an earlier one."""
    if batch.sent_epoch and leader_epoch > batch.sent_epoch:
        return False
    return 0 <= base_offset < (1 << 63) - len(batch)


def _resend_after(batch: PendingBatch) -> float:
    return _RESEND_AFTER * min(1 << min(batch.attempts - 1, 3), 8)


def _epoch_of(error: TidelogError) -> int:
    return error.detail(LEADER_EPOCH) or 0


def delay(core: PartitionAccumulator, now: float) -> tuple[float, str] | None:
    """Returns for how many seconds batches have waited because the leader refuses them or is missing, and why, in a
    sentence. None: none waits for that."""
    link = core.link
    if link.troubled_since is None or core.is_idle:
        return None
    if link.refusal is not None:
        why = link.refusal.message
    elif link.is_down:
        why = f"partition {core.name} has no leader"
    else:
        why = f"the leader of {core.name} could not confirm records in time, and is asked again"
    return now - max(link.troubled_since, core.pending_batches[0].created_at), why
