"""Consumers of one partition at one replica: whether they are served, wait, or are refused. The leader and its
followers follow the same rules:

* Only what lies below THIS replica's HW is served. Everything below any HW is committed, so it is the same everywhere
  and stays. A consumer that does not ask for uncommitted transactions is served what lies below the last stable offset
  (LSO): the HW, or the first record of a transaction whose end is not committed yet. The LSO is a function of the log
  below the HW, so that it moves only when the HW does.
* A position at or above that end waits, and is answered with nothing when its time is up, `max_fetch_wait` at the
  latest.
  `max_waiting_fetches` may wait, and of one client `max_waiting_fetches_per_client`; one more is refused with
  BACKPRESSURE.
* Asked with a LeaderEpoch above its own, or by a consumer that has read a record of one, a replica says nothing; asked
  with one below, FENCED. A position below its log, or below the records that an operator deleted (R44), is
  OFFSET_BEFORE_LOG.
* When the epoch of the consumer's last record ended below its position, that record was cut away: LOG_TRUNCATED. The
  leader's log is the one that counts, so there an epoch also ends where the log does. A follower's log may just not be
  that long yet: there only a later epoch ends an earlier one. It may come while the consumer waits, so a consumer
  that waited is judged once more before it is served.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.replica_effects import RefuseConsumer, ServeConsumer
from dataplane.replica.replica_refusals import before_log, fenced
from dataplane.replica.replica_settings import ReplicaSettings
from dataplane.replica.replies import Reader
from wire.error_details import LIMIT, OFFSET, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset, PartitionView


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerFetch:
    """A FetchRequest for a known offset, decoded."""

    offset: Offset
    leader_epoch: LeaderEpoch
    """0: of any."""
    max_bytes: int
    max_wait: float
    last_record_epoch: LeaderEpoch
    token: Reader
    client: str = ""
    """The client that asks, as far as its inbox names it."""
    read_uncommitted: bool = False
    """Records of open and of aborted transactions too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Readable:
    """The part of a log that consumers can read, as of now."""

    view: PartitionView
    log_start_offset: Offset
    log_end_offset: Offset
    high_watermark: Offset
    last_stable_offset: Offset
    """Never above the HW."""
    refusal: TidelogError | None = None
    """Why nothing of it may be read at the moment."""

    def end_for(self, fetch: ConsumerFetch) -> Offset:
        """Exclusive end of the records that the consumer may read."""
        return self.high_watermark if fetch.read_uncommitted else self.last_stable_offset


@dataclass(frozen=True, slots=True)
class _Waiting:
    fetch: ConsumerFetch
    deadline: float


ConsumerEffect: TypeAlias = ServeConsumer | RefuseConsumer


class Consumers:
    def __init__(self, epochs: LeaderEpochCache, settings: ReplicaSettings, *, leads: bool) -> None:
        self._epochs = epochs
        self._settings = settings
        self._leads = leads
        self._waiting: list[_Waiting] = []
        self._waiting_of: Counter[str] = Counter()
        """By client."""
        self._due = math.inf
        """No waiting consumer has an earlier deadline."""

    # R34: Consumers see what lies below the HW of the replica that they ask, and below its last stable offset (R50). A
    # position above waits for `max_wait_ms`; one below the log start is refused. If the epoch of the consumer's last
    # record ended below its position, the answer is LOG_TRUNCATED. A follower serves while it is in the ISR and its
    # last fetch that was answered well left less than `follower_read_max_age` ago. A replica that is asked by name
    # refuses without a lease (R29).
    # Hazard: Records are read that are not committed; consumers are told for ever that nothing is new.
    def on_fetch(self, fetch: ConsumerFetch, log: Readable, now: float) -> list[ConsumerEffect]:
        """Committed batches from `fetch.offset` on, now or when there are some."""
        if max(fetch.leader_epoch, fetch.last_record_epoch) > log.view.leader_epoch:
            return []  # a deposed leader: its log says nothing of where later epochs end
        error = self._refuse(fetch, log)
        if error is not None:
            return [RefuseConsumer(fetch.token, error)]
        end = log.end_for(fetch)
        if fetch.offset < end:
            return [self._serve(fetch, end)]
        if fetch.max_wait <= 0:
            return [ServeConsumer(fetch.token, fetch.offset, 0, end)]
        full = self._full(fetch.client)
        if full is not None:
            waits, limit = full
            error = TidelogError(
                Code.BACKPRESSURE,
                f"{waits} wait at partition {log.view.key} already; try again",
                [RETRY_AFTER_MS.of(500), LIMIT.of(limit)],
            )
            return [RefuseConsumer(fetch.token, error)]
        waiting = _Waiting(fetch, now + min(fetch.max_wait, self._settings.max_fetch_wait))
        self._waiting.append(waiting)
        self._waiting_of[fetch.client] += 1
        self._due = min(self._due, waiting.deadline)
        return []

    def _full(self, client: str) -> tuple[str, str] | None:
        """Who waits in place of one more consumer of the client, and the name of the limit."""
        if self._waiting_of[client] >= self._settings.max_waiting_fetches_per_client:
            return f"{self._waiting_of[client]} consumers of this client", "max_waiting_fetches_per_client"
        if len(self._waiting) >= self._settings.max_waiting_fetches:
            return f"{len(self._waiting)} consumers", "max_waiting_fetches"
        return None

    # Keeps R44.
    def _refuse(self, fetch: ConsumerFetch, log: Readable) -> TidelogError | None:
        view = log.view
        if fetch.leader_epoch and fetch.leader_epoch < view.leader_epoch:
            return fenced(view, fetch.leader_epoch)
        if log.refusal is not None:
            return log.refusal
        start = view.first_record(log.log_start_offset)
        if fetch.offset < start:
            return before_log(view.key, start, fetch.offset)
        if fetch.last_record_epoch:
            found = self._epochs.end_offset_for(fetch.last_record_epoch, log.log_end_offset)
            end = found[1] if found is not None else start
            if end < fetch.offset and (self._leads or end < log.log_end_offset):
                return TidelogError(
                    Code.LOG_TRUNCATED,
                    f"the log of {view.key} was cut at offset {end} below the position {fetch.offset}"
                    " (unclean election); decide where to go on",
                    [OFFSET.of(end)],
                )
        return None

    def _serve(self, fetch: ConsumerFetch, end: Offset) -> ServeConsumer:
        limit = min(fetch.max_bytes, self._settings.fetch_max_bytes)
        return ServeConsumer(fetch.token, fetch.offset, limit, end)

    def on_high_watermark(self, log: Readable) -> list[ConsumerEffect]:
        """It has moved up, and the LSO may have."""
        over = [w.fetch for w in self._waiting if w.fetch.offset < log.end_for(w.fetch)]
        if not over:
            return []
        self._keep([w for w in self._waiting if w.fetch.offset >= log.end_for(w.fetch)])
        out: list[ConsumerEffect] = []
        for fetch in over:
            error = self._refuse(fetch, log)
            out.append(self._serve(fetch, log.end_for(fetch)) if error is None else RefuseConsumer(fetch.token, error))
        return out

    @property
    def has_waiting(self) -> bool:
        return bool(self._waiting)

    def are_due(self, now: float) -> bool:
        """The time of some is up: `expire`."""
        return now >= self._due

    def expire(self, now: float, log: Readable) -> list[ConsumerEffect]:
        """Consumers whose time is up get an answer without records."""
        over = [w.fetch for w in self._waiting if w.deadline <= now]
        self._keep([w for w in self._waiting if w.deadline > now])
        return [ServeConsumer(fetch.token, fetch.offset, 0, log.end_for(fetch)) for fetch in over]

    def refuse_all(self, error: TidelogError) -> list[ConsumerEffect]:
        over = self._waiting
        self._keep([])
        return [RefuseConsumer(waiting.fetch.token, error) for waiting in over]

    def _keep(self, waiting: list[_Waiting]) -> None:
        self._waiting = waiting
        self._waiting_of.clear()
        if waiting:
            self._waiting_of.update(kept.fetch.client for kept in waiting)
        self._due = min((w.deadline for w in waiting), default=math.inf)

    def next_deadline(self) -> float:
        """inf: no consumer waits."""
        return self._due
