"""A follower of one partition during one LeaderEpoch.

    start ──> Reconciling ──cut known──> Truncating ──done──> Fetching <──────────┐
                  ^  │ no epoch known: nothing to reconcile ────^  │              │
                  │  └──503, silence: ask again, suspect           ├─ batches: append, fetch on at once, or Syncing,
                  │                                                │  then fetch
                  └────── OFFSET_AHEAD, fetch unanswered ──────────┤              │
                                                                   ├─ empty ──> Idle ── idle wait over, notification,
                                                                   │                    second answer on the same inbox
             Truncating <──all pieces are there── Installing <─────┴─ OFFSET_BEFORE_LOG
                                                  │       ^
                                                  └───────┘ piece by piece; the leader's log start moved on: again
What always holds
* Before the first fetch of a LeaderEpoch the log is reconciled with the leader over `.offset`, by leader epochs alone
  (KIP-101, KIP-279). The log is never cut to the HW, and never without an answer: if the leader is silent, ask again.
* The log is cut once, when the walk over the epochs has ended.
* A log that ends below the leader's log start is given up for an empty one that begins there, with the leader epochs
  and the producers of the records before: never without them. Who is told OFFSET_BEFORE_LOG is not in the ISR, for the
  log start is committed; so what it gives up is committed elsewhere, or never was.
* An answer is used only if it belongs to the newest data request, that request asked for our present LEO, it comes from
  the LeaderEpoch we expect, and its first offset is not below our LEO. Everything else is dropped.
* The HW adopted is min(leader's HW, own LEO); it only grows, but for a truncation.
* A durable end is reported only after the sync that covers it. On a `durable` stream everything is synced; on an
  `accepted` one what the leader asks for, because a publish waits for it.
* Without room on its disk it goes on fetching, and says that it wants no records: it holds all that it reported, and
  the leader knows at once that nothing may wait for it. While its disk hangs it goes on fetching, records too, and says
  that nothing should wait for it.
* Consumers are served, below this replica's HW, only by a member of the ISR that is fetching, and whose last good fetch
  in this LeaderEpoch is fresh: what it serves is committed whenever that was, but who has lost the leader would keep
  its consumers waiting for records that others have.

Suspicion. A 503 means that nobody listens: grounds to report the leader NOW, if it has answered us in this epoch and
our own connection is not fresh. Else only silence beyond `replica_max_leader_timeout` is. Reports are repeated while
they hold.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeAlias

from dataplane.replica.consumers import ConsumerFetch, Consumers, Readable
from dataplane.replica.effects import (
    AppendReplicated,
    FollowerEffect,
    InstallCheckpoint,
    ReportLeader,
    RequestSync,
    SendCheckpointRequest,
    SendFetch,
    SendOffsetRequest,
    StartOver,
    Truncate,
)
from dataplane.replica.epochs import LeaderEpochCache
from dataplane.replica.refusals import DELETIONS_GONE
from dataplane.replica.settings import ReplicaSettings
from wire.errors import Code, InvariantViolation, TidelogError
from wire.types import BrokerId, LeaderEpoch, LeaderReport, Offset, PartitionView


@dataclass(slots=True, kw_only=True)
class FetchAnswer:
    """An answer to a fetch, decoded and its CRCs checked."""

    sequence: int
    """Of the request on whose inbox it came."""
    leader_epoch: LeaderEpoch
    high_watermark: Offset
    first_offset: Offset | None = None
    """None: no batches."""
    sync_to: Offset = Offset(0)
    """The leader waits until what is here below is synced; 0: for nothing."""
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetAnswer:
    """An answer to a LeaderEpochOffsetRequest. `epoch` 0: the leader has no epoch at or below the asked one."""

    number: int
    leader_epoch: LeaderEpoch
    epoch: LeaderEpoch = LeaderEpoch(0)
    end: Offset = Offset(0)
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointAnswer:
    """A piece of the leader's derived state at its log start `offset`, `size` bytes in all."""

    number: int
    leader_epoch: LeaderEpoch
    offset: Offset = Offset(0)
    size: int = 0
    position: int = 0
    piece: bytes = b""
    deleted_end: Offset = Offset(0)
    error: TidelogError | None = None


@dataclass(frozen=True, slots=True)
class Reconciling:
    asked: LeaderEpoch
    cut: Offset
    """Smallest end agreed on so far; the LEO at first."""
    number: int
    ask_again_at: float


@dataclass(frozen=True, slots=True)
class Truncating:
    pass


@dataclass(slots=True)
class Fetching:
    sequence: int
    offset: Offset
    unanswered_at: float
    """When silence becomes a reason to probe."""


@dataclass(slots=True)
class Idle:
    sequence: int
    offset: Offset
    until: float


@dataclass(frozen=True, slots=True)
class Syncing:
    """No fetch is out: one leaves when all that is here is synced, and tells that; at `until` it leaves anyway."""

    until: float


@dataclass(frozen=True, slots=True)
class Leaderless:
    """The partition is offline, or this follower has nobody to ask until metadata changes."""


@dataclass(frozen=True, slots=True)
class Installing:
    """The derived state at the leader's log start is on its way. `offset`: None before the first piece has come."""

    number: int
    ask_again_at: float
    offset: Offset | None = None
    pieces: tuple[bytes, ...] = ()

    @property
    def position(self) -> int:
        return sum(map(len, self.pieces))


FollowerState: TypeAlias = Reconciling | Truncating | Installing | Fetching | Idle | Syncing | Leaderless

MAX_CHECKPOINT_BYTES = 64 << 20
"""Of derived state that a follower takes: 20,000 producers are 3 MB, a million of leader epochs 16 MB."""


class Follower:
    def __init__(
        self,
        *,
        view: PartitionView,
        broker: BrokerId,
        log_start_offset: Offset,
        log_end_offset: Offset,
        durable_end: Offset,
        high_watermark: Offset,
        epochs: LeaderEpochCache,
        settings: ReplicaSettings,
        first_sequence: int,
        connected_since: float,
        now: float,
        no_space: bool = False,
        disk_hangs: bool = False,
    ) -> None:
        if view.leader == broker:
            raise InvariantViolation(f"{view.key}: {broker} made follower of itself")
        self.view = view
        self.broker = broker
        self.leader_epoch = view.leader_epoch
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
        self.durable_end = durable_end
        self.high_watermark = min(high_watermark, log_end_offset)
        self.settings = settings
        self.state: FollowerState = Leaderless()
        self._epochs = epochs
        self._durable = view.config.is_durable
        self._sync_to = Offset(0)
        """How far the leader has asked for a sync."""
        self._sequence = first_sequence
        self._number = first_sequence
        self._connected_since = connected_since
        self._last_good = now
        self._answered = False
        """The leader has answered us in this LeaderEpoch."""
        self._notified = False
        """Since the last fetch left; while it reconciles: since the last question that was due."""
        self._suspected = False
        self._fetch_timeout = settings.replica_fetch_timeout
        """Doubles with every fetch that is given up, so that slow answers come through; an answer ends that."""
        self._ask_wait = settings.no_leader_retry
        """The same for `.offset`. It begins low: after a planned move the first request is often lost, because the old
        leader still listens, and is silent, and the new one does not listen yet."""
        self._refused_batch = ""
        """Why the last answer was refused; the next fetch tells the leader."""
        self._bad_wait = 0.0
        """How long to wait before asking anew for what was refused: at first not at all, then longer each time; a good
        answer ends that."""
        self.stopped: TidelogError | None = None
        """Why nothing can be copied until an operator does something; a good answer ends that."""
        self._nobody_listens = False
        """NATS answered the request that is out with 503: it is sent again soon, and no slow answer is to be waited
        for."""
        self._nobody_wait = settings.no_leader_retry
        """How soon. It doubles from one 503 to the next: a leader that begins says so, and of a thousand that begin
        together most are asked many times. A good answer ends that."""
        self._no_space = no_space
        """Records cannot be written at present."""
        self._disk_hangs = disk_hangs
        """Records are not synced at present."""
        self._reported_at = -math.inf
        self._ticked_at = now
        self._consumers = Consumers(epochs, settings, leads=False)
        self._fetched_at = -math.inf
        """Of the last good answer to a fetch in this LeaderEpoch, and since the log was cut."""

    # ------------------------------------------------------------------ begin
    def start(self, now: float) -> list[FollowerEffect]:
        if self.view.leader is None:
            self.state = Leaderless()
            return []
        return self._reconcile(now)

    def _reconcile(self, now: float) -> list[FollowerEffect]:
        newest = self._epochs.latest
        if newest is None or not self.log_end_offset:
            return self._fetch(now)
        self._ask_wait = self.settings.no_leader_retry
        return [*self._ask(newest, self.log_end_offset, now), *self._refuse_waiting(now)]

    def _ask(self, epoch: LeaderEpoch, cut: Offset, now: float) -> list[FollowerEffect]:
        self._number += 1
        self._notified = False
        self._nobody_listens = False
        self.state = Reconciling(epoch, cut, self._number, now + self._ask_wait)
        return [SendOffsetRequest(epoch, self._number)]

    # ------------------------------------------------------------------ reconciliation
    def on_offset_answer(self, answer: OffsetAnswer, now: float) -> list[FollowerEffect]:
        state = self.state
        if (
            not isinstance(state, Reconciling)
            or answer.number != state.number
            or answer.leader_epoch < self.leader_epoch
        ):
            return []
        if answer.error is not None or answer.leader_epoch > self.leader_epoch:
            # Metadata will tell us of the newer epoch. Until then we ask again: nothing is fetched unreconciled.
            self.state = Reconciling(state.asked, state.cut, state.number, now + self.settings.offset_retry)
            return []
        self._good(now)
        if not answer.epoch:
            return self._nothing_so_old(state.cut, answer.end, now)
        mine = self._epochs.end_offset_for(answer.epoch, self.log_end_offset)
        if mine is None:
            return self._cut_to(Offset(0), now)  # nothing in common
        cut = min(state.cut, answer.end, mine[1])
        if mine[0] != answer.epoch:
            return self._ask(mine[0], cut, now)
        return self._cut_to(cut, now)

    def _cut_to(self, cut: Offset, now: float) -> list[FollowerEffect]:
        """Below the log start: what the leader has there is not what was here, so the leader epochs and the producers
        that are known of it are wrong, and no record that is left could follow."""
        if cut < self.log_start_offset and not self._is_relied_on:
            return self._begin_installing(now)
        if cut >= self.log_end_offset:
            return self._fetch(now)
        self.state = Truncating()
        return [Truncate(max(cut, self.log_start_offset))]

    def _nothing_so_old(self, cut: Offset, leaders_start: Offset, now: float) -> list[FollowerEffect]:
        """All that the leader holds is of newer epochs than all that is here: from its log start on nothing is in
        common. What it held below, nobody can tell any more. A member of the ISR (or an eligible one) need not ask:
        what is committed lies below, and it keeps that, for it answers for it. Anybody else may have what was never
        committed there, and begins anew where the leader's log begins."""
        if self._is_relied_on:
            return self._cut_to(min(cut, max(leaders_start, self.log_start_offset)), now)
        if leaders_start <= self.log_start_offset:
            return self._cut_to(Offset(0), now)
        return self._begin_installing(now)

    @property
    def _is_relied_on(self) -> bool:
        """It is in the ISR, or eligible: it holds all that is committed, and answers for it."""
        return self.broker in (*self.view.isr, *self.view.eligible)

    def on_log_start(self, log_start: Offset) -> None:
        """The oldest segments were removed here. All of them were committed."""
        self.log_start_offset = log_start

    def on_truncated(self, log_start: Offset, log_end: Offset, now: float) -> list[FollowerEffect]:
        """The log was cut (or dropped) and that is on disk."""
        if not isinstance(self.state, Truncating):
            raise InvariantViolation(f"{self.view.key}: truncated while {self.state}")
        self.log_start_offset = log_start
        self.log_end_offset = self.durable_end = log_end
        self.high_watermark = max(min(self.high_watermark, log_end), log_start)
        self._fetched_at = -math.inf
        return self._fetch(now)

    # ------------------------------------------------------------------ beginning at the leader's log start
    def _begin_installing(self, now: float) -> list[FollowerEffect]:
        self._ask_wait = self.settings.replica_fetch_timeout
        return [*self._ask_for_piece(None, (), now), *self._refuse_waiting(now)]

    def _ask_for_piece(self, offset: Offset | None, pieces: tuple[bytes, ...], now: float) -> list[FollowerEffect]:
        self._number += 1
        self._nobody_listens = False
        self.state = state = Installing(self._number, now + self._ask_wait, offset, pieces)
        return [SendCheckpointRequest(self._number, offset, state.position)]

    def on_checkpoint_answer(self, answer: CheckpointAnswer, now: float) -> list[FollowerEffect]:
        state = self.state
        if (
            not isinstance(state, Installing)
            or answer.number != state.number
            or answer.leader_epoch < self.leader_epoch
        ):
            return []
        error = answer.error
        if error is not None and error.code is Code.OFFSET_BEFORE_LOG and answer.leader_epoch == self.leader_epoch:
            self._good(now)
            return self._ask_for_piece(None, (), now)
        if error is not None or answer.leader_epoch > self.leader_epoch:
            self.state = replace(state, ask_again_at=now + self.settings.offset_retry)
            return []
        self._good(now)
        whole = state.position + len(answer.piece)
        if (
            state.offset not in (None, answer.offset)
            or answer.position != state.position
            or not answer.piece
            or not whole <= answer.size <= MAX_CHECKPOINT_BYTES
        ):
            return self.on_bad_checkpoint(now)
        self._ask_wait = self.settings.replica_fetch_timeout
        pieces = (*state.pieces, answer.piece)
        if whole < answer.size:
            return self._ask_for_piece(answer.offset, pieces, now)
        self.state = Truncating()
        return [InstallCheckpoint(answer.offset, pieces, answer.deleted_end)]

    def on_bad_checkpoint(self, now: float) -> list[FollowerEffect]:
        """What came is not the state at a log start; nothing was changed. It is asked for anew, in a while."""
        settings = self.settings
        self._bad_wait = min(max(2 * self._bad_wait, settings.offset_retry), settings.replica_max_idle_wait)
        self._number += 1
        self.state = Installing(self._number, now + self._bad_wait)
        return []

    # ------------------------------------------------------------------ fetching
    def _fetch(self, now: float) -> list[FollowerEffect]:
        self._sequence += 1
        self._notified = False
        self._nobody_listens = False
        self.state = Fetching(self._sequence, self.log_end_offset, now + self._fetch_timeout)
        refused, self._refused_batch = self._refused_batch, ""
        fetch = SendFetch(self._sequence, self.log_end_offset, self._reported_end(), False, refused)
        fetch.no_space, fetch.disk_hangs = self._no_space, self._disk_hangs
        return [fetch]

    def _reported_end(self) -> Offset | None:
        return self.durable_end if self._durable or self._sync_to else None

    @property
    def owes_a_sync(self) -> bool:
        """Somebody waits for what is here and not synced."""
        return self.durable_end < self.log_end_offset and (self._durable or self.durable_end < self._sync_to)

    def on_answer(self, answer: FetchAnswer, now: float) -> list[FollowerEffect]:
        state = self.state
        if not isinstance(state, (Fetching, Idle)) or answer.sequence != state.sequence:
            return []  # late, or not ours any more
        if answer.leader_epoch < self.leader_epoch:
            return []  # a zombie's; the leader's own may still come on this inbox
        if answer.leader_epoch > self.leader_epoch:
            self._pause(now)
            return []
        self._fetch_timeout = self.settings.replica_fetch_timeout
        if answer.error is not None:
            return self._on_error(answer.error, now)
        if state.offset != self.log_end_offset:
            return []
        if answer.first_offset is not None and answer.first_offset < self.log_end_offset:
            return []
        self._good(now)
        self._fetched_at = now
        self._bad_wait, self._refused_batch, self.stopped = 0.0, "", None
        asked_to_sync = answer.sync_to > self._sync_to
        self._sync_to = max(self._sync_to, answer.sync_to)
        if answer.first_offset is not None and not self._no_space:
            return [AppendReplicated(answer.high_watermark)]
        served = self._adopt(answer.high_watermark, now)
        if asked_to_sync and self.owes_a_sync:
            served.append(RequestSync())
        if isinstance(state, Idle) or self._notified:
            return [*self._fetch(now), *served]
        self.state = Idle(state.sequence, state.offset, now + self.settings.replica_max_idle_wait)
        if asked_to_sync and not self.owes_a_sync:
            return [self._progress(), *served]  # all of it is synced, and the leader waits to hear that
        return served

    def on_appended(
        self,
        log_end: Offset,
        high_watermark: Offset,
        now: float,
        *,
        durable_end: Offset | None = None,
        sync_first: bool = False,
    ) -> list[FollowerEffect]:
        """The batches of the answer are in the log (page cache), and everything below `durable_end` is synced where
        the driver knows already. Fetch on at once; a sync that is still owed goes on beside it. `sync_first`: they are
        small, and many logs wait for the disk. Then one request after the sync does for two, and finds more."""
        if log_end <= self.log_end_offset:
            raise InvariantViolation(f"{self.view.key}: appended up to {log_end} at LEO {self.log_end_offset}")
        self.log_end_offset = log_end
        if durable_end is not None:
            self.durable_end = max(self.durable_end, min(durable_end, log_end))
        served = self._adopt(high_watermark, now)
        if not self.owes_a_sync:
            return [*self._fetch(now), *served]
        if sync_first:
            self.state = Syncing(now + self.settings.replica_fetch_timeout / 2)
            return [RequestSync(), *served]
        return [*self._fetch(now), RequestSync(), *served]

    def on_bad_answer(self, sequence: int, reason: str, now: float) -> list[FollowerEffect]:
        """What came does not decode: nothing is taken of it, and the leader is told. It verifies its copy each time, so
        the same once more is asked for ever more slowly."""
        state = self.state
        if not isinstance(state, (Fetching, Idle)) or sequence != state.sequence:
            return []
        self._refused_batch = reason
        wait, settings = self._bad_wait, self.settings
        self._bad_wait = min(max(2 * wait, settings.offset_retry), settings.replica_max_idle_wait)
        if wait == 0.0:
            return self._fetch(now)
        self._fetch_timeout = settings.replica_fetch_timeout
        self.state = Idle(state.sequence, state.offset, now + wait)
        return []

    def on_synced(self, durable_end: Offset, now: float) -> list[FollowerEffect]:
        if durable_end <= self.durable_end:
            return []
        owed = self.owes_a_sync
        self.durable_end = min(durable_end, self.log_end_offset)
        if isinstance(self.state, Syncing):
            return [] if self.owes_a_sync else self._fetch(now)
        if not owed or not isinstance(self.state, (Fetching, Idle)):
            return []
        return [self._progress()]

    def _progress(self) -> SendFetch:
        self._sequence += 1
        report = SendFetch(self._sequence, self.log_end_offset, self._reported_end(), True)
        report.no_space, report.disk_hangs = self._no_space, self._disk_hangs
        return report

    def on_space(self, no_space: bool, now: float) -> list[FollowerEffect]:
        """The disk has no room for records any more, or has some again. The leader hears of it at once. An answer that
        could not be appended is asked for anew when there is room."""
        if no_space == self._no_space:
            return []
        self._no_space = no_space
        return self._fetch(now) if isinstance(self.state, (Fetching, Idle, Syncing)) else []

    def on_disk(self, hangs: bool, now: float) -> list[FollowerEffect]:
        """The disk has begun to hang, or answers again. The leader hears of it at once."""
        if hangs == self._disk_hangs:
            return []
        self._disk_hangs = hangs
        return self._fetch(now) if isinstance(self.state, (Fetching, Idle, Syncing)) else []

    def on_notification(self, leader_epoch: LeaderEpoch, now: float) -> list[FollowerEffect]:
        """New data at the leader, or it has just begun. While a fetch is out it is remembered: an empty answer may have
        crossed it."""
        if leader_epoch != self.leader_epoch:
            return []
        state = self.state
        if isinstance(state, Idle) and not self._refused_batch and self.stopped is None:
            return self._fetch(now)
        if isinstance(state, Fetching) and self._nobody_listens:
            return self._reconcile(now)
        asked: list[FollowerEffect] = []
        if isinstance(state, Reconciling) and (self._nobody_listens or not self._notified):
            # It has begun, and did not hear us before. If it did, its answer is given up: once only.
            asked = self._ask(state.asked, state.cut, now)
        elif isinstance(state, Fetching) and not (self._answered or self._notified):
            asked = self._fetch(now)  # the same, with an empty log
        self._notified = True
        return asked

    def _adopt(self, high_watermark: Offset, now: float) -> list[FollowerEffect]:
        self.high_watermark = max(self.high_watermark, min(high_watermark, self.log_end_offset))
        return [*self._consumers.on_high_watermark(self._readable(now))] if self._consumers.is_anybody_waiting else []

    def _on_error(self, error: TidelogError, now: float) -> list[FollowerEffect]:
        match error.code:
            case Code.OFFSET_AHEAD:
                self._good(now)
                if self.log_end_offset == self.log_start_offset:
                    # Nothing to reconcile by; it began where an earlier leader's log began. Begin where any log does.
                    self.state = Truncating()
                    return [StartOver(), *self._refuse_waiting(now)]
                return self._reconcile(now)
            case Code.OFFSET_BEFORE_LOG:
                self._good(now)
                log_start = error.number("log_start")
                is_in_log = log_start is None or log_start <= self.log_end_offset
                if is_in_log and (DELETIONS_GONE not in error.details or self._is_relied_on):
                    self._pause(now)  # what the leader says cannot be; its log start, or ours, may be moving
                    return []
                return self._begin_installing(now)
            case Code.BACKPRESSURE:
                self._good(now)
                asked = error.number("retry_after_ms")
                wait = min((50 if asked is None else asked) / 1000, self.settings.replica_max_idle_wait)
                self.state = Idle(self._sequence, self.log_end_offset, now + wait)
                return []
            case Code.MESSAGE_TOO_LARGE:
                self._good(now)
                self.stopped = error
                self._ask_slowly(now)
                return []
            case _:
                self._pause(now)
                return []

    def _ask_slowly(self, now: float) -> None:
        """What came will come again: ask ever more slowly."""
        settings = self.settings
        self._bad_wait = min(max(2 * self._bad_wait, settings.offset_retry), settings.replica_max_idle_wait)
        self.state = Idle(self._sequence, self.log_end_offset, now + self._bad_wait)

    def _pause(self, now: float) -> None:
        """Somebody knows better than we do: wait for metadata, ask again in a while."""
        self.state = Idle(self._sequence, self.log_end_offset, now + self.settings.offset_retry)

    # ------------------------------------------------------------------ consumers
    def on_consumer_fetch(self, fetch: ConsumerFetch, now: float) -> list[FollowerEffect]:
        """Committed batches from `fetch.offset` on, now or when this replica knows of some."""
        return [*self._consumers.on_fetch(fetch, self._readable(now), now)]

    def _readable(self, now: float) -> Readable:
        return Readable(
            view=self.view,
            log_start_offset=self.log_start_offset,
            log_end_offset=self.log_end_offset,
            high_watermark=self.high_watermark,
            refusal=self._refuse_reads(now),
        )

    def _refuse_reads(self, now: float) -> TidelogError | None:
        """Why consumers should go elsewhere; None while they are served here."""
        if self.broker not in self.view.isr:
            why = "is not in sync"
        elif not isinstance(self.state, (Fetching, Idle, Syncing)):
            why = "is finding out where its log and the leader's part"
        elif self._fetched_at == -math.inf:
            why = f"has not fetched in LeaderEpoch {self.leader_epoch} yet"
        elif now >= self._fetched_at + self.settings.follower_read_max_age:
            why = f"has not heard from its leader for {now - self._fetched_at:.1f} s"
        else:
            return None
        view = self.view
        return TidelogError(
            Code.UNAVAILABLE,
            f"the replica of {view.key} on {self.broker} {why}; read from another one: its leader is"
            f" {view.leader or 'nobody'}, in sync are {', '.join(view.isr)}",
            {"leader": view.leader or ""},
        )

    def _refuse_waiting(self, now: float) -> list[FollowerEffect]:
        """Those who wait are sent elsewhere, if this replica serves nobody any more."""
        error = self._refuse_reads(now)
        return [] if error is None else [*self._consumers.refuse_all(error)]

    def resign(self, reason: str) -> list[FollowerEffect]:
        """This role is over: consumers that wait are sent elsewhere."""
        return [*self._consumers.refuse_all(TidelogError(Code.UNAVAILABLE, f"{reason}; read from another replica"))]

    # ------------------------------------------------------------------ suspicion
    def _good(self, now: float) -> None:
        self._last_good = now
        self._nobody_wait = self.settings.no_leader_retry
        self._answered = True
        self._suspected = False

    def on_no_responders(self, now: float) -> list[FollowerEffect]:
        """NATS says that nobody listens on the leader's subjects."""
        if self._answered and now - self._connected_since >= self.settings.liveness_grace:
            self._suspected = True
        state = self.state
        self._nobody_listens = True
        again_at = now + self._nobody_wait
        self._nobody_wait = max(self._nobody_wait, min(2 * self._nobody_wait, self.settings.offset_retry))
        if isinstance(state, Reconciling):
            self.state = Reconciling(state.asked, state.cut, state.number, again_at)
        elif isinstance(state, Installing):
            self.state = replace(state, ask_again_at=again_at)
        elif isinstance(state, (Fetching, Idle)):
            self.state = Fetching(state.sequence, state.offset, again_at)
        return self._maybe_report(now)

    def _maybe_report(self, now: float) -> list[FollowerEffect]:
        leader = self.view.leader
        if leader is None:
            return []
        if (
            now - self._last_good >= self.settings.replica_max_leader_timeout
            and self._connected_since <= self._last_good
        ):
            self._suspected = True
        if not self._suspected or now - self._reported_at < self.settings.report_interval:
            return []
        self._reported_at = now
        report = LeaderReport(
            key=self.view.key,
            replica=self.broker,
            leader=leader,
            epoch=self.view.epoch,
            leader_epoch=self.leader_epoch,
        )
        return [ReportLeader(report)]

    def on_connection(self, connected_since: float, now: float) -> list[FollowerEffect]:
        """Our own connection came back (`inf`: it is down): silence before it proves nothing."""
        self._connected_since = connected_since
        if connected_since == math.inf:
            return []
        self._last_good = now
        self._suspected = False
        return [] if isinstance(self.state, (Truncating, Leaderless)) else self._reconcile(now)

    # ------------------------------------------------------------------ views and time
    def on_view(self, view: PartitionView, now: float) -> list[FollowerEffect]:
        """Newer metadata of the same LeaderEpoch."""
        if view.leader_epoch != self.leader_epoch:
            raise InvariantViolation(
                f"{view.key}: view of epoch {view.leader_epoch} given to follower of {self.leader_epoch}"
            )
        if view.epoch >= self.view.epoch:
            self.view = view
        return self._refuse_waiting(now)

    def tick(self, now: float) -> list[FollowerEffect]:
        state = self.state
        if now - self.next_deadline() > self.settings.late_tick:
            self._last_good = now  # we slept: the silence may be our own
        self._ticked_at = now
        out: list[FollowerEffect] = []
        match state:
            case Reconciling() if now >= state.ask_again_at:
                if not self._nobody_listens:
                    self._ask_wait = min(2 * self._ask_wait, self.settings.replica_max_leader_timeout)
                out += self._ask(state.asked, state.cut, now)
            case Installing() if now >= state.ask_again_at:
                if not self._nobody_listens:
                    self._ask_wait = min(2 * self._ask_wait, self.settings.replica_max_leader_timeout)
                out += self._ask_for_piece(state.offset, state.pieces, now)
            case Fetching() if now >= state.unanswered_at:
                if not self._nobody_listens:
                    self._fetch_timeout = min(2 * self._fetch_timeout, self.settings.replica_max_leader_timeout)
                out += self._reconcile(now)  # the probe: it finds a leader that is gone, and does no harm
            case Idle() | Syncing() if now >= state.until:
                out += self._fetch(now)
            case _:
                pass
        if not isinstance(state, (Leaderless, Truncating)) and self._connected_since < math.inf:
            out += self._maybe_report(now)
        out += self._refuse_waiting(now)
        out += self._consumers.expire(now, self.high_watermark)
        return out

    def next_deadline(self) -> float:
        state = self.state
        match state:
            case Fetching():
                due = state.unanswered_at
            case Idle() | Syncing():
                due = state.until
            case Reconciling() | Installing():
                due = state.ask_again_at
            case _:
                return math.inf
        suspicion = 0.0 if self._suspected else self._last_good + self.settings.replica_max_leader_timeout
        earliest = max(self._reported_at, self._ticked_at) + self.settings.report_interval
        due = min(due, max(suspicion, earliest))
        expiry = self._consumers.next_deadline()
        return due if expiry == math.inf else min(due, expiry, self._fetched_at + self.settings.follower_read_max_age)
