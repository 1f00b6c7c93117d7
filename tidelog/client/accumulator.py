"""One partition's half of an idempotent producer: what is gathered, what is out, and what an answer means.

Records gather in the OPEN batch. A batch is SEALED when it is full, or when there is room in the window and it has
lingered long enough. The window holds at most `max_in_flight` batches whose outcome is not known; each has a place in
the sequence of one producer SESSION (producer id, epoch), which the leader uses to tell a repetition from a new
batch.

Batch:    GATHERING -> SEALED -> SENT <-> RESEND -> RESOLVED (acknowledged or failed)
                         ^                  |
                         +------------------+  on under a new session (rules 4 to 6)

Link:     UP     batches are sent.
          DOWN   NATS said that nobody listens (503). Nothing is sent; a tiny probe goes out every few milliseconds, and
                 the first answer to it resends what is unresolved, in order. Batches are never thrown at a subject
                 without a listener.

What holds:

0. No batch begins while one that began `REMEMBERED_BATCHES` before it is unresolved, though all between them may be
   acknowledged: a leader knows that many batches of a producer, and would refuse the repetition of an older one.
1. The window is in sequence order, and a batch is sent only when every batch before it in the window has been sent
   since. So a leader sees a session's batches in order, and repetitions keep their sequence and their bytes.
2. A success counts from any attempt. A refusal counts only from the newest attempt: NATS keeps the order of one
   connection's messages on a subject, so the answer to the newest copy says that no older one is still to come.
3. A leader that never saw an earlier batch answers OUT_OF_ORDER_SEQUENCE to the later ones. While an earlier batch is
   unresolved that is no failure: everything up to the refused batch is sent again, in order.
4. A session is unsound once one of its batches has ended without success, since the leader waits for that batch's
   sequence for ever. What is still in the window is sent on under the old session, so that nothing is written twice,
   until the leader refuses the first batch as out of order: then that one is certainly not in the log, hence none
   behind it, and all go on under a new session.
5. OUT_OF_ORDER_SEQUENCE to the first batch of a sound session means that the log has lost acknowledged records. With
   acks=all that batch fails and says so; with acks=leader it is what was asked for, and the batch goes on in a new
   session.
6. UNKNOWN_PRODUCER_ID means that the leader has forgotten the session, or takes it for one that it has forgotten, and
   stored nothing. If no earlier attempt of the first batch can have been written, or the leader remembers every
   producer that wrote since that batch was made, it is not in the log, hence none behind it, and all go on under a new
   session. Else its outcome cannot be known any more: it fails and says so.
7. While refusals repeat, only the first batch of the window is sent: a leader without enough replicas or room is
   asked, not flooded.

An answer can fail to come: the message reached a process that was killed afterwards. So when the oldest batch has
waited `probe_after` a probe asks the leader for its LeaderEpoch: 503 takes the link down, a newer epoch than the one
the batch was sent under resends, the same epoch means that the leader is at work and is waited for. After
`resend_after` without an answer everything is sent again anyway (NATS delivers at most once).

Pure: `now` is monotonic seconds, effects are returned. The driver calls `next_send` until it returns None after each
event.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias, TypeVar

from tidelog.client.errors import DeliveryTimeout, OutOfOrderSequence, typed
from wire.errors import Code, TidelogError
from wire.types import REMEMBERED_BATCHES, Acks

_T = TypeVar("_T")

MAX_SEQUENCE = (1 << 31) - 1
"""Sequence numbers are i32. Before they run out the partition goes on in a new session."""

_CLOCKS_APART = 3600.0
"""Seconds. The clocks of leaders of one partition differ by less; only then is the time believed that one tells."""

_CAUTIOUS_AFTER = 3
"""Setbacks in a row after which only the first batch of the window is sent."""


class ProducerSession(NamedTuple):
    """What `producer.init` hands out. Sequences begin at 0 in each session, per partition."""

    producer_id: int
    producer_epoch: int


class BatchState(Enum):
    GATHERING = "gathering"
    SEALED = "sealed"
    SENT = "sent"
    RESEND = "resend"
    RESOLVED = "resolved"


Claim: TypeAlias = tuple[int, Sequence[int] | None, Any]
"""Who waits for a run of a batch's records: the place of the first in the batch, and
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
        "headers",
        "keys",
        "last_error",
        "place",
        "sent_at",
        "sent_epoch",
        "session",
        "size",
        "state",
        "timestamp",
        "timestamps",
        "uncertain",
        "values",
    )

    def __init__(self, created_at: float, deadline: float) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] | None = None
        self.headers: list[bytes | None] | None = None
        self.timestamps: list[int | None] | None = None
        self.claims: list[Claim] = []
        self.place = 0
        """How many batches of this partition began before it."""
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
        self.uncertain = False
        """Some attempt may have been written without our knowing."""
        self.last_error: TidelogError | None = None
        self.timestamp = 0
        """ns since 1970; the driver sets it at the first attempt."""
        self.encoded: Any = None
        """The driver's encoding of these records under `session`."""

    def __len__(self) -> int:
        return len(self.values)

    @property
    def has_values_only(self) -> bool:
        return self.keys is None and self.headers is None and self.timestamps is None

    def __repr__(self) -> str:
        return f"<PendingBatch {len(self)} records seq={self.base_sequence} {self.state.value} attempt={self.attempts}>"


@dataclass(frozen=True, slots=True)
class Acknowledged:
    batch: PendingBatch
    base_offset: int


@dataclass(frozen=True, slots=True)
class Failed:
    batch: PendingBatch
    error: TidelogError


@dataclass(frozen=True, slots=True)
class Probe:
    """Ask the partition's leader for its LeaderEpoch with a request that carries no data."""


@dataclass(frozen=True, slots=True)
class WantSession:
    """Get a producer id and give it to `on_session`."""


@dataclass(frozen=True, slots=True)
class RefreshMetadata:
    """What is known of the stream may be out of date."""


Effect: TypeAlias = Acknowledged | Failed | Probe | WantSession | RefreshMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class AccumulatorSettings:
    """Times in seconds, sizes in bytes."""

    acks: Acks = Acks.ALL
    batch_bytes: int = 1 << 20
    linger: float = 0.0
    max_in_flight: int = 5
    """Leaders remember the last five batches of a producer; a larger window could not be told from repetitions."""
    delivery_timeout: float = 30.0
    ends_unconfirmed: bool = False
    """A leader's CONFIRM_TIMEOUT ends a batch: its owner has said how long to wait. Else it is sent again."""
    probe_after: float = 0.1
    probe_every: float = 0.1
    resend_after: float = 2.0
    backoff: float = 0.01
    """The first wait after a refusal; each further one is half as long again."""
    probe_backoff_max: float = 0.05
    refusal_backoff_max: float = 0.25
    refresh_after: float = 1.0
    """Metadata is asked for again when the link has been down this long."""


class PartitionAccumulator:
    """The state machine of one partition; see the module's text."""

    def __init__(self, name: str, settings: AccumulatorSettings, leader_epoch: int = 0) -> None:
        self.name = name
        """stream/partition, for sentences."""
        self.leader_epoch = leader_epoch
        """The newest that any answer carried; sent along, so that a deposed leader stays silent."""
        self._settings = settings
        self._idempotent = settings.acks is not Acks.NONE
        self._open: PendingBatch | None = None
        self._sealed: deque[PendingBatch] = deque()
        self._window: deque[PendingBatch] = deque()
        self._session: ProducerSession | None = None
        self._session_sound = True
        self._session_wanted = False
        self._next_sequence = 0
        self._begun = 0
        self._is_down = False
        self._down_since = 0.0
        self._hold_until = 0.0
        """Nothing is sent before this time, after a refusal that passes."""
        self._setbacks = 0
        """Refusals, or probes that reached nobody, since the last success: the exponent of the backoff."""
        self._probe_at = 0.0
        self._refresh_at = 0.0

    # What is gathered

    @property
    def open_batch(self) -> PendingBatch | None:
        """The batch that the next record goes into, if it fits."""
        return self._open

    @property
    def is_idle(self) -> bool:
        """Everything given to this partition is resolved."""
        return self._open is None and not self._sealed and not self._window

    @property
    def is_available(self) -> bool:
        return not self._is_down

    @property
    def pending_batches(self) -> list[PendingBatch]:
        """Unresolved batches, oldest first."""
        return [*self._window, *self._sealed, *([self._open] if self._open is not None else [])]

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
        """Take one record; `size` bounds its encoded size. True when a batch was sealed."""
        batch = self._open
        sealed = False
        if batch is None or batch.size + size > self._settings.batch_bytes:
            batch, sealed = self._room(size, now)
        place = len(batch.values)
        if batch.claims and batch.claims[-1][1] is None:
            batch.claims[-1][2].append(future)
        else:
            batch.claims.append((place, None, [future]))
        batch.values.append(value)
        batch.keys = _extended(batch.keys, place, key)
        batch.headers = _extended(batch.headers, place, headers)
        batch.timestamps = _extended(batch.timestamps, place, timestamp)
        batch.size += size
        return sealed

    def append_run(
        self,
        values: Sequence[bytes | None],
        keys: Sequence[bytes | None] | None,
        size: int,
        indices: Sequence[int],
        future: Any,
        now: float,
    ) -> bool:
        """Take records that lie in one batch: `size` bounds all of them together and must not exceed a batch."""
        batch, sealed = self._room(size, now)
        place, count = len(batch.values), len(values)
        batch.claims.append((place, indices, future))
        batch.values.extend(values)
        if keys is not None and batch.keys is None:
            batch.keys = [None] * place
        if batch.keys is not None:
            batch.keys.extend([None] * count if keys is None else keys)
        if batch.headers is not None:
            batch.headers.extend([None] * count)
        if batch.timestamps is not None:
            batch.timestamps.extend([None] * count)
        batch.size += size
        return sealed

    def room_for(self, size: int) -> int:
        """Bytes that still fit into the batch that a record of `size` bytes would go into."""
        room = self._settings.batch_bytes - (self._open.size if self._open is not None else 0)
        return room if size <= room else self._settings.batch_bytes

    def _room(self, size: int, now: float) -> tuple[PendingBatch, bool]:
        sealed = False
        batch = self._open
        if batch is not None and batch.size + size > self._settings.batch_bytes:
            self._seal()
            batch, sealed = None, True
        if batch is None:
            batch = self._open = PendingBatch(now, now + self._settings.delivery_timeout)
        return batch, sealed

    def _seal(self) -> None:
        if self._open is not None:
            self._open.state = BatchState.SEALED
            self._sealed.append(self._open)
            self._open = None

    def flush(self) -> None:
        """Do not linger with what is gathered now."""
        self._seal()

    # What is sent

    def next_send(self, now: float) -> PendingBatch | None:
        """The batch to publish now, marked as sent; None when there is none. Repetitions come first, in order."""
        if self._is_down or now < self._hold_until:
            return None
        for batch in self._window:
            if batch.state is BatchState.RESEND:
                return self._mark_sent(batch, now)
            if self._setbacks >= _CAUTIOUS_AFTER:
                return None
        if not self._may_begin:
            return None
        if not self._sealed and self._open is not None and now >= self._open.created_at + self._settings.linger:
            self._seal()
        if not self._sealed:
            return None
        if self._idempotent and self._next_sequence + len(self._sealed[0]) > MAX_SEQUENCE:
            self._session_sound = False
            return None
        batch = self._sealed.popleft()
        if self._idempotent:
            batch.session = self._session
            batch.base_sequence = self._next_sequence
            self._next_sequence += len(batch)
        batch.place, self._begun = self._begun, self._begun + 1
        self._window.append(batch)
        return self._mark_sent(batch, now)

    @property
    def _may_begin(self) -> bool:
        """A batch that was never sent may go out."""
        if self._window and self._setbacks >= _CAUTIOUS_AFTER:
            return False
        if self._idempotent and self._window and self._begun - self._window[0].place >= REMEMBERED_BATCHES:
            return False  # answers to later ones have come, and the leader is about to forget the first
        return len(self._window) < self._settings.max_in_flight and self._has_session

    @property
    def _has_session(self) -> bool:
        return not self._idempotent or (self._session is not None and self._session_sound)

    def on_publish_refused(self, batch: PendingBatch, now: float, retry_in: float) -> None:
        """The connection took nothing: it is down or its buffer is full."""
        if batch.state is BatchState.SENT:
            batch.state = BatchState.RESEND
            self._hold_until = now + retry_in

    def _mark_sent(self, batch: PendingBatch, now: float) -> PendingBatch:
        batch.state = BatchState.SENT
        batch.attempts += 1
        batch.sent_at = now
        batch.sent_epoch = self.leader_epoch
        if self._oldest_sent is batch:
            self._probe_at = max(self._probe_at, now + self._settings.probe_after)
        return batch

    # What comes back

    def on_published(self, batch: PendingBatch) -> list[Effect]:
        """acks=none: written to the connection is all there is to know."""
        self._resolve(batch)
        return [Acknowledged(batch, -1)]

    def on_acknowledged(self, batch: PendingBatch, base_offset: int, leader_epoch: int) -> list[Effect]:
        if batch.state is BatchState.RESOLVED:
            return []
        self._saw_epoch(leader_epoch)
        self._setbacks = 0
        self._resolve(batch)
        return [Acknowledged(batch, base_offset), *self._renew_session()]

    def on_error(self, batch: PendingBatch, attempt: int, error: TidelogError, now: float) -> list[Effect]:
        """The leader refused attempt number `attempt` of the batch."""
        self._saw_epoch(_epoch_of(error))
        if batch.state is not BatchState.SENT or attempt != batch.attempts:
            return []
        batch.last_error = error
        code = error.code
        if code in (Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_PRODUCER_ID):
            if self._window[0] is not batch:
                return self._resend_up_to(batch, now)
            if code is Code.OUT_OF_ORDER_SEQUENCE:
                return self._out_of_order(batch, error)
            return self._forgotten(batch, error, now)
        effects: list[Effect] = [RefreshMetadata()] if code.refresh_metadata else []
        if code.unknown_outcome:
            batch.uncertain = True
        if not code.retriable or (code is Code.CONFIRM_TIMEOUT and self._settings.ends_unconfirmed):
            return [*effects, *self._fail(batch, typed(error)), *self._renew_session()]
        batch.state = BatchState.RESEND
        if code in (Code.FENCED_LEADER_EPOCH, Code.CONFIRM_TIMEOUT) and batch.sent_epoch != self.leader_epoch:
            return effects  # the answer itself said whom to ask: no reason to wait
        self._back_off(now, _retry_after(error))
        return effects

    def on_no_responders(self, batch: PendingBatch, attempt: int, now: float) -> list[Effect]:
        """Nobody listened: this attempt reached no one."""
        if batch.state is not BatchState.SENT or attempt != batch.attempts:
            return []
        batch.state = BatchState.RESEND
        return self._go_down(now)

    def on_probe_answer(self, leader_epoch: int) -> list[Effect]:
        """The leader lives. One of an older LeaderEpoch than is known has been deposed and counts for nothing."""
        if leader_epoch < self.leader_epoch:
            return []
        self._saw_epoch(leader_epoch)
        was_down, self._is_down = self._is_down, False
        if was_down:
            self._hold_until = 0.0
            self._setbacks = 0
        for batch in self._window:
            if batch.state is BatchState.SENT and (was_down or batch.sent_epoch < self.leader_epoch):
                self._doubt(batch)
        return []

    def on_probe_no_responders(self, now: float) -> list[Effect]:
        return self._go_down(now)

    def on_reconnected(self, now: float) -> list[Effect]:
        """The NATS connection was lost and is back: what was out may be lost, and so may its answers."""
        for batch in self._window:
            if batch.state is BatchState.SENT:
                self._doubt(batch)
        self._hold_until = now
        self._probe_at = now
        return []

    def on_session(self, session: ProducerSession) -> None:
        self._session = session
        self._session_sound = True
        self._session_wanted = False
        self._next_sequence = 0

    def fail_all(self, error: TidelogError) -> list[Effect]:
        """Give everything up, for an error that concerns the whole stream. What may have been written says so."""
        effects: list[Effect] = []
        for batch in self.pending_batches:
            effects += self._fail(batch, error)
        return effects

    # Time

    def tick(self, now: float) -> list[Effect]:
        """Do what is due."""
        effects: list[Effect] = []
        for batch in self.pending_batches:
            if now >= batch.deadline:
                effects += self._fail(batch, self._too_late(batch))
        effects += self._renew_session()
        sent = self._oldest_sent
        if sent is not None and now >= sent.sent_at + self._resend_after(sent):
            for batch in self._window:
                if batch.state is BatchState.SENT:
                    self._doubt(batch)
        if (self._is_down or sent is not None) and now >= self._probe_at:
            self._probe_at = now + (self._probe_backoff() if self._is_down else self._settings.probe_every)
            effects.append(Probe())
        if self._is_down and now >= self._refresh_at:
            self._refresh_at = now + self._settings.refresh_after
            effects.append(RefreshMetadata())
        return effects

    def next_deadline(self) -> float | None:
        """When `tick` or `next_send` has something to do at the latest; None when nothing is pending."""
        if self.is_idle:
            return None
        if self._needs_session:
            return 0.0
        due = [batch.deadline for batch in self._window]
        oldest_waiting = self._sealed[0] if self._sealed else self._open
        if oldest_waiting is not None:
            due.append(oldest_waiting.deadline)
        if self._is_down:
            due += (self._probe_at, self._refresh_at)
            return min(due)
        sent = self._oldest_sent
        if sent is not None:
            due += (self._probe_at, sent.sent_at + self._resend_after(sent))
        resend = next((batch for batch in self._window if batch.state is BatchState.RESEND), None)
        if resend is not None and (resend is self._window[0] or self._setbacks < _CAUTIOUS_AFTER):
            due.append(self._hold_until)
        if self._may_begin:
            if self._sealed:
                due.append(self._hold_until)
            elif self._open is not None:
                due.append(max(self._open.created_at + self._settings.linger, self._hold_until))
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
                self._doubt(earlier)
        batch.state = BatchState.RESEND
        self._hold_until = max(self._hold_until, now + self._settings.backoff)
        return []

    def _out_of_order(self, batch: PendingBatch, error: TidelogError) -> list[Effect]:
        if self._session_sound and self._settings.acks is Acks.ALL:
            lost = OutOfOrderSequence(
                Code.OUT_OF_ORDER_SEQUENCE,
                f"the log of {self.name} lacks records of this producer that had been acknowledged before this one: "
                f"they were lost ({error.message}); compare what you sent with what the stream holds",
                error.details,
            )
            return [*self._fail(batch, lost), *self._renew_session()]
        return self._begin_anew()

    def _forgotten(self, batch: PendingBatch, error: TidelogError, now: float) -> list[Effect]:
        remembered = (error.number("remembered_ms") or 0) / 1000
        if not batch.uncertain or remembered > now - batch.created_at + _CLOCKS_APART:
            self._back_off(now, None)  # where the next one is not known either
            return self._begin_anew()
        unknown = DeliveryTimeout(
            Code.OUTCOME_UNKNOWN,
            f"{len(batch)} records for {self.name} were sent again for want of an answer, and the leader has forgotten "
            "this producer: they may or may not have been written; read the stream to find out before sending them "
            "again",
            {"outcome": "unknown"},
        )
        return [*self._fail(batch, unknown), *self._renew_session()]

    def _begin_anew(self) -> list[Effect]:
        """The first batch of the window is not in the log, hence none behind it."""
        self._session_sound = False
        while self._window:
            later = self._window.pop()
            later.state = BatchState.SEALED
            later.session = None
            later.base_sequence = -1
            later.encoded = None
            later.uncertain = False
            self._sealed.appendleft(later)
        return self._renew_session()

    def _fail(self, batch: PendingBatch, error: TidelogError) -> list[Effect]:
        if batch.session is not None:
            self._session_sound = False
        self._resolve(batch)
        return [Failed(batch, error)]

    def _resolve(self, batch: PendingBatch) -> None:
        batch.state = BatchState.RESOLVED
        if batch is self._open:
            self._open = None
        elif batch in self._window:
            self._window.remove(batch)
        elif batch in self._sealed:
            self._sealed.remove(batch)

    @property
    def _needs_session(self) -> bool:
        """Something is to be sent, it has no session, and nothing of the old one is unresolved (rules 4 to 6)."""
        return not self._has_session and not self._session_wanted and not self._window and not self.is_idle

    def _renew_session(self) -> list[Effect]:
        if not self._needs_session:
            return []
        self._session = None
        self._session_wanted = True
        return [WantSession()]

    def _doubt(self, batch: PendingBatch) -> None:
        batch.state = BatchState.RESEND
        batch.uncertain = True

    def _go_down(self, now: float) -> list[Effect]:
        self._setbacks += 1
        if not self._is_down:
            self._is_down = True
            self._down_since = now
            self._refresh_at = now + self._settings.refresh_after
            self._probe_at = now + self._probe_backoff()
        return []

    def _back_off(self, now: float, at_least: float | None) -> None:
        self._setbacks += 1
        wait = min(self._growing_wait(), self._settings.refusal_backoff_max)
        self._hold_until = max(self._hold_until, now + max(wait, at_least or 0.0))

    def _probe_backoff(self) -> float:
        return min(self._growing_wait(), self._settings.probe_backoff_max)

    def _growing_wait(self) -> float:
        return self._settings.backoff * 1.5 ** min(self._setbacks, 20)

    def _resend_after(self, batch: PendingBatch) -> float:
        return self._settings.resend_after * min(1 << min(batch.attempts - 1, 3), 8)

    def _saw_epoch(self, leader_epoch: int) -> None:
        self.leader_epoch = max(self.leader_epoch, leader_epoch)

    def _too_late(self, batch: PendingBatch) -> TidelogError:
        seconds = self._settings.delivery_timeout
        if batch.uncertain or batch.state is BatchState.SENT:
            return DeliveryTimeout(
                Code.OUTCOME_UNKNOWN,
                f"{len(batch)} records for {self.name} were not acknowledged within {seconds:g} s: they may or may not "
                "have been written; read the stream to find out before sending them again",
                {"outcome": "unknown"},
            )
        why = batch.last_error
        if why is not None and why.code not in (Code.OUT_OF_ORDER_SEQUENCE, Code.UNKNOWN_PRODUCER_ID):
            message = f"{why.message} (given up after {seconds:g} s, nothing written)"
            return typed(TidelogError(why.code, message, {**why.details, "outcome": "not_written"}))
        if self._is_down:
            reason = f"the partition has no leader for {seconds:g} s"
        elif why is not None and batch.session is None:
            reason = f"for {seconds:g} s the leader took each new id of this producer for one that it has forgotten"
        elif why is not None:
            reason = (
                f"for {seconds:g} s an earlier batch of this producer, which they must follow, was not acknowledged"
            )
        else:
            reason = f"the partition could not be reached for {seconds:g} s"
        return DeliveryTimeout(
            Code.OUTCOME_UNKNOWN,
            f"{len(batch)} records for {self.name} were not written: {reason}; see `tidelog cluster status`",
            {"outcome": "not_written"},
        )


def _extended(column: list[_T | None] | None, place: int, cell: _T | None) -> list[_T | None] | None:
    """A column that begins with the first record that has a cell in it; `place` is that of the new record."""
    if column is None:
        if cell is None:
            return None
        column = [None] * place
    column.append(cell)
    return column


def _epoch_of(error: TidelogError) -> int:
    return error.number("leader_epoch") or 0


def _retry_after(error: TidelogError) -> float | None:
    wait_ms = error.number("retry_after_ms")
    return None if wait_ms is None else wait_ms / 1000
