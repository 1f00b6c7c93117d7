"""The leader of one partition during one LeaderEpoch.

It sequences (the driver stamps and appends, and reports it with `on_appended`), answers followers, commits,
keeps the ISR, and completes the publishes and consumers that wait. `Leader` takes the events and passes them
to its parts, which share one `Leadership`:

    admission       whether publishes are taken now; `append_rules` decides about each of them
    commits         the high watermark, the secondary watermark, the publishes that wait for them
    data_waiters    answers to fetches, data waiters, notifications
    isr_keeper      which replicas are dropped from the ISR and which join it
    draining        a planned move of leadership
    Pausing         a pause of the partition (below)
    Cutover         where the layout before the newest one ends here (below)
    consumers       consumers that read here

Invariants, beside those of the parts
* Progress of followers is known from fetches of THIS LeaderEpoch only, and per broker incarnation.
* "Latest" is not answered before HW >= the epoch's start: a new leader's HW lags behind its predecessor's commits.
* Asked with a LeaderEpoch above its own, it says nothing (it is the zombie); with one below, FENCED with its own.

## Pauses (R47)

The leader of a paused partition, and when it asks for a pause or for its end (R47).

A pause changes nothing in what a leader does with records: it takes them, its followers are woken as idle followers
always are, and commits go on. While it lasts, followers that have everything ask for nothing
(`Followership.may_sleep`), so the leader does not take their silence for lag. The first record that comes has the
leader ask the controller to end it.

With `auto_pause_time_ms` the leader asks for a pause when no record came for so long, all is committed and in every
member of the ISR, and, with `auto_pause_disable_if_subscribers`, no consumer waits here. A leader that has just begun
counts from then on.

## Cutovers (R62)

Where the layout before the newest one ends in a partition, and how its leader reports it (R62).

    view awaits the cutover to V ──> end := LEO ──HW ≥ end, and all that may lead have fetched──> ReportCutover(end)
             ^                                                       view with the cutover told ──> over <──┤
             └─ a new leader, in its own LeaderEpoch             said again by each view that still awaits it

From that view on the leader appends nothing that names an older version, and nothing that names V before the view with
the cutover told. So whichever leader's report is applied, all records that name an older version lie below the end that
it tells, and all that name V at or above it. A report is a compare-and-set on the LeaderEpoch: the one of a deposed
leader, whose successor may have less, is refused, and the successor reports the end of its own log as it found it, once
it is committed. Records without a version that come meanwhile stand behind the end.

A replica of the ISR, or an eligible one, may hold records of an earlier LeaderEpoch behind the end that never were
committed, and if it led they would be committed there. It cuts them before it fetches in the leader's LeaderEpoch, so
the report waits until each of these replicas has.
"""

from __future__ import annotations

from dataplane.replica.consumers import ConsumerFetch, Consumers
from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.derived.transaction_table import TransactionTable
from dataplane.replica.history import History
from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.admission import Admission
from dataplane.replica.leader.catch_up_budget import CatchUpBudget
from dataplane.replica.leader.commits import Commits, Uncommitted
from dataplane.replica.leader.data_waiters import DataWaiters
from dataplane.replica.leader.draining import Draining
from dataplane.replica.leader.isr import CommittedIsr, IsrState
from dataplane.replica.leader.isr_keeper import IsrKeeper
from dataplane.replica.leader.leadership import FollowerFetch, FollowerProgress, Leadership, SnapshotFetch
from dataplane.replica.leader.quota import Quota
from dataplane.replica.leader.settled_start import SettledStart
from dataplane.replica.replica_effects import (
    CompleteProduce,
    LeaderEffect,
    Notify,
    ProposePause,
    Refuse,
    ReportCutover,
    RequestSync,
    SendSnapshot,
    VerifyOwnCopy,
)
from dataplane.replica.replica_refusals import before_log, deletions_gone, fenced, over_budget
from dataplane.replica.replica_settings import ReplicaSettings
from dataplane.replica.replies import MoveRequest, ProduceToken
from wire.echo import one_line
from wire.error_details import RETRY_AFTER_MS
from wire.errors import Code, InvariantViolation, TidelogError, require
from wire.types import (
    BrokerId,
    CutoverReport,
    Incarnation,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionView,
    PauseChange,
)


class Pausing:
    def __init__(self, state: Leadership, now: float) -> None:
        self._state = state
        self._active_at = now
        """When a record last came, or the pause ended, or this leader began."""
        self._asked = PartitionEpoch(0)
        """The partition epoch for which the last request was made: it is repeated below until that is over."""
        self._has_records = False
        """Some came in this pause."""

    def on_append(self, now: float, out: list[LeaderEffect]) -> None:
        """To be called before the log end moves: followers that had everything until now were caught up until now."""
        self._active_at = now
        if self._state.view.paused:
            self.excuse_sleepers(now)
            self._has_records = True
            self._ask(False, out)

    @property
    def is_automatic(self) -> bool:
        """The partition is paused when no record has come for a while."""
        return bool(self._state.view.config.auto_pause_time_ms)

    def excuse_sleepers(self, now: float) -> None:
        state = self._state
        if not state.view.paused:
            return
        for replica, follower in state.followers.items():
            if replica in state.isr.members and state.acknowledged(replica) >= state.log_end_offset:
                follower.caught_up_at = max(follower.caught_up_at, now)

    def on_view(self, was_paused: bool, now: float, out: list[LeaderEffect]) -> None:
        """The view is newer."""
        if not self._state.view.paused:
            self._has_records = False
            if was_paused:
                self._active_at = now
        elif self._has_records:
            self._ask(False, out)  # something else has outdated the request

    # Keeps R47.
    def tick(self, now: float, has_consumers: bool, out: list[LeaderEffect]) -> None:
        state = self._state
        self.excuse_sleepers(now)
        config = state.view.config
        if not self.is_automatic or state.view.paused:
            return
        if config.auto_pause_disable_if_subscribers and has_consumers:
            self._active_at = now
        is_quiet = now - self._active_at >= config.auto_pause_time_ms / 1000
        if is_quiet and isinstance(state.isr, CommittedIsr) and self._all_have_everything():
            self._ask(True, out)

    def _all_have_everything(self) -> bool:
        state = self._state
        if state.high_watermark < state.log_end_offset:
            return False
        return all(state.acknowledged(member) >= state.log_end_offset for member in state.isr.members)

    def _ask(self, paused: bool, out: list[LeaderEffect]) -> None:
        state = self._state
        if self._asked == state.view.epoch:
            return
        self._asked = state.view.epoch
        out.append(
            ProposePause(
                PauseChange(
                    key=state.view.key,
                    leader=state.broker,
                    leader_epoch=state.leader_epoch,
                    expected_epoch=state.view.epoch,
                    paused=paused,
                )
            )
        )


class Cutover:
    def __init__(self, state: Leadership, now: float) -> None:
        self._state = state
        self.version = 0
        """That the view awaits the cutover to; 0: to none."""
        self._end = Offset(0)
        """LEO at the first view that awaits the cutover."""
        self._is_reported = False
        self._begin(now)

    def on_view(self, now: float, out: list[LeaderEffect]) -> None:
        """The view is newer."""
        self._is_reported = False
        self._begin(now)
        self.look(now, out)

    # R62: The end of a layout is reported when it is committed and no replica that may lead has anything else behind
    # it. With the first view that awaits the cutover the leader appends its open batch and notes E = LEO; when HW ≥ E
    # and every member of the ISR and every eligible replica has fetched in this LeaderEpoch, it reports E, a
    # compare-and-set, until a view has it. A successor notes E anew, at its LEO as it begins.
    # Hazard: An end above what the next leader has: readers wait for records that do not come. An end below what it
    # has: old records are taken for new ones.
    def look(self, now: float, out: list[LeaderEffect]) -> None:
        """Report the end if all below it is committed, and nothing else can ever be behind it."""
        if not self.version or self._is_reported:
            return
        state = self._state
        if state.high_watermark < self._end or not state.have_cut_to_this_log():
            return
        self._is_reported = True
        state.history.add(f"reports that version {self.version} begins at {self._end}", now)
        report = CutoverReport(
            key=state.view.key,
            leader=state.broker,
            leader_epoch=state.leader_epoch,
            version=self.version,
            end_offset=self._end,
        )
        out.append(ReportCutover(report))

    def _begin(self, now: float) -> None:
        state = self._state
        version = state.view.partitioning_version if state.view.awaits_cutover else 0
        if version == self.version:
            return
        self.version = version
        if version:
            self._end = state.log_end_offset
            state.history.add(f"the layout before version {version} ends at {self._end}", now)


class Leader:
    def __init__(
        self,
        *,
        view: PartitionView,
        broker: BrokerId,
        incarnation: Incarnation,
        log_start_offset: Offset,
        log_end_offset: Offset,
        durable_end: Offset,
        high_watermark: Offset,
        epochs: LeaderEpochCache,
        transactions: TransactionTable,
        settings: ReplicaSettings,
        now: float,
        withheld_below: Offset = Offset(0),
        no_space: bool = False,
        disk_hangs: bool = False,
        shared: Uncommitted | None = None,
        budget: CatchUpBudget | None = None,
        history: History | None = None,
    ) -> None:
        """`shared`: the uncommitted bytes of all partitions that this broker leads; `budget`: of the replicas that
        catch up with them, None: without a limit. `history`: event log of the
        replica, shared by its roles."""
        if view.leader != broker:
            raise InvariantViolation(f"{view.key}: {broker} made leader under a view whose leader is {view.leader}")
        self.leader_epoch = view.leader_epoch
        self.epoch_start = log_end_offset
        """First offset of this epoch: the exclusive end of the earlier ones."""
        self.settings = settings
        self.deletions_end = Offset(0)
        """Tombstones below it may be gone from the log. The driver sets it before it asks."""
        self._state = state = Leadership(
            view=view,
            broker=broker,
            incarnation=incarnation,
            leader_epoch=view.leader_epoch,
            epoch_start=self.epoch_start,
            log_start_offset=log_start_offset,
            withheld_below=withheld_below,
            log_end_offset=log_end_offset,
            durable_end=durable_end,
            high_watermark=min(high_watermark, log_end_offset),
            high_watermark_at=now,
            isr=CommittedIsr(frozenset(view.isr)),
            settings=settings,
            transactions=transactions,
            is_durable=view.config.is_durable,
            no_space=no_space,
            disk_hangs=disk_hangs,
            followers={r: FollowerProgress(caught_up_at=now) for r in view.replicas if r != broker},
            history=history or History(),
        )
        state.history.add(
            f"leads LeaderEpoch {view.leader_epoch} from offset {log_end_offset}, committed end {state.high_watermark},"
            f" ISR {','.join(view.isr)}, partition epoch {view.epoch}",
            now,
        )
        self._epochs = epochs
        self._consumers = Consumers(epochs, settings, leads=True)
        self._settled_start = SettledStart(state)
        self._cutover = Cutover(state, now)
        self._commits = Commits(state, self._consumers, shared or Uncommitted(settings))
        self._waiters = DataWaiters(state, self._commits)
        self._budget = budget or CatchUpBudget(lambda: 0, now)
        self._isr_keeper = IsrKeeper(state)
        self._draining = Draining(state)
        self._pausing = Pausing(state, now)
        self.quota = Quota(view.key, view.config, now)
        self.admission = Admission(state, self._isr_keeper, self._draining, self._commits, self.quota)
        self._last_tick = now
        self._tick_interval = settings.replica_max_lag_time / 4
        self._tick_due = now + self._tick_interval
        """When the next tick is due at the latest, whatever else happens."""

    @property
    def view(self) -> PartitionView:
        return self._state.view

    @property
    def isr(self) -> IsrState:
        return self._state.isr

    @property
    def log_start_offset(self) -> Offset:
        return self._state.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._state.log_end_offset

    @property
    def durable_end(self) -> Offset:
        return self._state.durable_end

    @property
    def high_watermark(self) -> Offset:
        return self._state.high_watermark

    # ------------------------------------------------------------------ begin
    def announce(self) -> list[LeaderEffect]:
        """All that is asked of this leader reaches it from now on. Followers that asked before, in vain, need not wait
        until they ask again."""
        return [Notify(replica) for replica in self._state.followers]

    # ------------------------------------------------------------------ publishes
    def on_appended(self, end: Offset, size: int, now: float) -> list[LeaderEffect]:
        """The log holds everything below `end` (page cache); `size` bytes wait with it."""
        state, commits = self._state, self._commits
        if end <= state.log_end_offset:
            raise InvariantViolation(f"{state.view.key}: appended up to {end} at LEO {state.log_end_offset}")
        out: list[LeaderEffect] = []
        self._pausing.on_append(now, out)
        state.log_end_offset = end
        state.appended_at = now
        state.appended_bytes += size
        commits.add(end, size, now)
        self._waiters.fire_all(now, out)
        if state.is_durable or commits.sync_wanted_here() > state.durable_end:
            out.append(RequestSync())
        commits.on_own_copy(out)
        if len(state.isr.maximal) == 1:  # else a follower holds the watermarks back, and has got nothing more
            commits.advance(now, out)
        return out

    def on_synced(self, durable_end: Offset, now: float) -> list[LeaderEffect]:
        """Everything below `durable_end` is synced here."""
        out: list[LeaderEffect] = []
        if durable_end > self._state.durable_end:
            self._state.durable_end = durable_end
            self._commits.on_own_copy(out)
            self._commits.advance(now, out)
            self._cutover.look(now, out)
            self._draining.look(now, out)
        return out

    def await_ack(
        self, level: AckLevel, end: Offset, token: ProduceToken, timeout: float, now: float
    ) -> list[LeaderEffect]:
        """Complete `token` once everything below `end` is held as the level says (at once when it is). A publish is
        announced here before it is appended, so that its followers are asked with its records how far to sync."""
        state, commits = self._state, self._commits
        if end <= commits.reached(level):
            return [CompleteProduce(token)]
        commits.acks.add(level, end, now + timeout, token)
        out: list[LeaderEffect] = []
        if end <= state.log_end_offset:
            # A repetition of a batch in the log: nothing is appended that would ask for the syncs.
            if not state.is_durable and level.is_synced:
                if commits.sync_wanted_here() > state.durable_end:
                    out.append(RequestSync())
                self._waiters.fire_to_sync(now, out)
            commits.advance(now, out)
        return out

    # ------------------------------------------------------------------ followers
    # R1: Every request carries the LeaderEpoch. A broker that is asked in a higher epoch than its own stays silent,
    # since the true leader listens on the same subject; it answers a lower one with FENCED_LEADER_EPOCH. A receiver
    # drops answers of a lower epoch, and waits for metadata after one of a higher epoch. Clients may leave the epoch
    # out (0). What leaves in a pack goes to one broker, and reaches no successor that the sender does not know of.
    # Hazard: Unfenced requests and zombie leaders (KIP-320).
    # Keeps R9.
    def on_fetch(self, fetch: FollowerFetch, now: float) -> list[LeaderEffect]:
        state = self._state
        if fetch.leader_epoch > self.leader_epoch:
            return []  # a later leader listens on this subject, too, and answers
        if fetch.leader_epoch < self.leader_epoch:
            return [Refuse(fetch.inbox, fenced(state.view, fetch.leader_epoch))]
        refused = state.refuse_stranger(fetch.replica, fetch.incarnation)
        if refused is not None:
            return [Refuse(fetch.inbox, refused)]
        follower = state.followers[fetch.replica]
        if fetch.incarnation > follower.incarnation:
            follower = state.followers[fetch.replica] = FollowerProgress(
                incarnation=fetch.incarnation, caught_up_at=follower.caught_up_at
            )
            state.history.add(f"{fetch.replica} fetches in life {fetch.incarnation}, from offset {fetch.offset}", now)
        if fetch.sequence <= follower.sequence:
            return []  # late or repeated
        follower.sequence = fetch.sequence
        if fetch.offset > state.log_end_offset:
            state.history.add(f"{fetch.replica} asks for {fetch.offset}, the log ends at {state.log_end_offset}", now)
            return [
                Refuse(
                    fetch.inbox,
                    TidelogError(
                        Code.OFFSET_AHEAD,
                        f"{fetch.replica} asks for offset {fetch.offset} of {state.view.key}, whose log ends at"
                        f" {state.log_end_offset}; reconcile again",
                    ),
                )
            ]
        out: list[LeaderEffect] = []
        if now - follower.last_fetch_at > self.settings.replica_max_lag_time:
            follower.credited_at = state.appended_bytes  # what came while it was away is not free
        to_sync = Offset(0) if state.is_durable else self._commits.acks.furthest_everywhere(is_synced=True)
        follower.on_fetch(fetch, state.log_end_offset, to_sync, now, is_durable=state.is_durable)
        if fetch.refused_batch:
            state.history.add(
                f"{fetch.replica} refuses the batch at {fetch.offset}: {one_line(fetch.refused_batch)}", now
            )
            out.append(VerifyOwnCopy(fetch.offset, one_line(fetch.refused_batch)))
        self._commits.advance(now, out)
        if self._cutover.version:
            self._cutover.look(now, out)
        if self._draining.deadline is not None:
            self._draining.look(now, out)
        self._isr_keeper.on_fetch(fetch.replica, follower, now, out)
        if not fetch.progress_only:
            log_start = state.log_start_offset
            if fetch.offset < log_start:
                out.append(Refuse(fetch.inbox, before_log(state.view.key, log_start, fetch.offset)))
                return out
            if self.deletions_end and self.lacks_deletions(fetch.replica, fetch.offset):
                out.append(Refuse(fetch.inbox, deletions_gone(state.view.key, log_start, fetch.offset)))
                return out
            if fetch.offset < state.log_end_offset and (wait := self._wait_of(fetch.replica, fetch.offset, now)):
                out.append(Refuse(fetch.inbox, over_budget(state.view.key, fetch.replica, wait)))
                return out
            self._waiters.answer(fetch, follower, now, out)
        return out

    # Keeps R89.
    def _wait_of(self, replica: BrokerId, offset: Offset, now: float) -> float:
        """Seconds for which a replica has to wait with its request for what lies at `offset`; 0: it need not."""
        state = self._state
        if replica in state.isr.maximal or offset >= state.high_watermark:
            return 0.0
        if self._credit(state.followers[replica]) >= self.settings.fetch_max_bytes:
            return 0.0
        return self._budget.wait_s(now, self.settings.fetch_max_bytes)

    def _credit(self, follower: FollowerProgress) -> int:
        """Bytes that were appended since it fetches here, and that no answer since then has had room for."""
        return self._state.appended_bytes - follower.credited_at

    # Keeps R89.
    def on_sent(self, replica: BrokerId, size: int, now: float) -> None:
        """So many bytes of records were sent to a follower."""
        state = self._state
        follower = state.followers.get(replica)
        if follower is None:
            return
        credit = self._credit(follower)
        if replica not in state.isr.maximal:
            self._budget.charge(max(0, size - credit), now, self.settings.fetch_max_bytes)
            follower.credited_at = state.appended_bytes - max(0, credit - size)
        else:
            follower.credited_at = state.appended_bytes

    def on_snapshot_sent(self, replica: BrokerId, size: int, now: float) -> None:
        """So many bytes of the derived state were sent to a follower."""
        if replica not in self._state.isr.maximal:
            self._budget.charge(size, now, size)

    # R83: A follower in step asks for nothing while its leader holds its fetch. Its broker asks about all such fetches
    # at a broker in one message, each with the incarnations of stream and partition, LeaderEpoch and number, and the
    # follower's incarnation. A leader holds one only if that very fetch was answered with nothing and has its data
    # waiter, of that incarnation and in its own LeaderEpoch, and the follower is in the ISR, has acknowledged
    # everything, serves nothing below the leader's start, and has no trouble with its disk. Held counts as a fetch with
    # an empty answer, for the follower as one at the time when its broker asked. If it does not hold it, the follower
    # fetches at once; without an answer, when its idle wait is over. Where nobody listens a few fetch at once.
    # Hazard: A broker that lives is taken for a leader, or a follower, that does its work. A report, or a wake-up, that
    # is lost and never repeated.
    # Keeps R1, R10, R82.
    def on_parked(
        self, replica: BrokerId, incarnation: Incarnation, leader_epoch: LeaderEpoch, sequence: int, now: float
    ) -> bool:
        """Whether the fetch of `replica` with that number waits here, and counts as fetched again."""
        state = self._state
        follower = state.followers.get(replica)
        if follower is None or leader_epoch != self.leader_epoch or incarnation != follower.incarnation:
            return False
        if follower.waiter_inbox is None or follower.answer_due is not None or sequence != follower.waiter_sequence:
            return False
        if replica not in state.isr.members or follower.log_start_offset < state.first_record:
            return False
        to_sync = Offset(0) if state.is_durable else self._commits.acks.furthest_everywhere(is_synced=True)
        return follower.on_parked(state.log_end_offset, to_sync, now, is_durable=state.is_durable)

    # R39: A tombstone that is gone is known to be gone. A leader whose log may lack tombstones below `deletions_end`
    # answers a follower whose log ends below it with OFFSET_BEFORE_LOG, and the follower begins anew, unless it says
    # (`deleted_end`) that it holds no record that they deleted. A tombstone goes only in a pass after the one that
    # removed what it deletes, and `deletions_end` is durable before. A `deleted_end` above the LEO counts only in the
    # LeaderEpoch of that installation.
    # Hazard: A replica that was away keeps a deleted key for ever, and leads with it.
    def lacks_deletions(self, replica: BrokerId, offset: Offset) -> bool:
        """Whether the follower, going on from `offset`, may keep for ever a record whose tombstone is gone from this
        log."""
        return max(offset, self._state.followers[replica].deleted_end) < self.deletions_end

    def on_offset_request(
        self, asked: LeaderEpoch, current: LeaderEpoch
    ) -> tuple[LeaderEpoch, Offset] | TidelogError | None:
        """(largest epoch <= asked, its exclusive end), (0, log start) when there is none; None = stay silent."""
        if current > self.leader_epoch:
            return None
        if current < self.leader_epoch:
            return fenced(self._state.view, current)
        found = self._epochs.end_offset_for(asked, self._state.log_end_offset)
        return found if found is not None else (LeaderEpoch(0), self._state.log_start_offset)

    def on_snapshot_request(self, fetch: SnapshotFetch, now: float) -> list[LeaderEffect]:
        """A follower lacks the records below the log start: it is sent the snapshot there. The log start may move on
        while it asks for one piece after the other; then it begins again."""
        state = self._state
        if fetch.leader_epoch > self.leader_epoch:
            return []  # a later leader listens on this subject, too, and answers
        if fetch.leader_epoch < self.leader_epoch:
            return [Refuse(fetch.inbox, fenced(state.view, fetch.leader_epoch))]
        start = state.log_start_offset
        refused = state.refuse_stranger(fetch.replica, fetch.incarnation)
        if refused is None and fetch.offset is not None and fetch.offset != start:
            refused = before_log(state.view.key, start, fetch.offset)
        is_member = fetch.replica in state.isr.maximal
        if refused is None and not is_member and (wait := self._budget.wait_s(now, self.settings.fetch_max_bytes)):
            refused = over_budget(state.view.key, fetch.replica, wait)
        if refused is not None:
            return [Refuse(fetch.inbox, refused)]
        return [SendSnapshot(fetch.replica, fetch.inbox, start, fetch.position, state.high_watermark)]

    # ------------------------------------------------------------------ consumers
    def on_consumer_fetch(self, fetch: ConsumerFetch, now: float) -> list[LeaderEffect]:
        """Committed batches from `fetch.offset` on, now or when there are some."""
        return [*self._consumers.on_fetch(fetch, self._state.readable(), now)]

    # Keeps R15.
    def latest(self, *, read_uncommitted: bool = False) -> Offset | TidelogError:
        """Exclusive end of the records that consumers may read, or why that is not known yet."""
        state = self._state
        if state.high_watermark < state.epoch_start:
            return TidelogError(
                Code.UNAVAILABLE,
                f"the new leader of {state.view.key} does not know yet what is committed; try again",
                [RETRY_AFTER_MS.of(20)],
            )
        if read_uncommitted:
            return state.high_watermark
        return max(state.last_stable_offset, state.first_record)

    def settled_start(self, now: float) -> Offset:
        """Returns the offset below which no replica serves consumers."""
        return self._settled_start.at(now)

    def start_to_tell(self, replica: BrokerId) -> Offset:
        """Returns the first offset that is served here, if that follower may serve what is below; else 0."""
        follower, start = self._state.followers.get(replica), self._state.first_record
        return start if follower is not None and follower.log_start_offset < start else Offset(0)

    # ------------------------------------------------------------------ metadata, disks and connection
    def on_view(self, view: PartitionView, now: float) -> list[LeaderEffect]:
        """Newer metadata of the same LeaderEpoch and leader. Anything else ends the leadership (`resign`)."""
        state = self._state
        if view.leader_epoch != self.leader_epoch or view.leader != state.broker:
            raise InvariantViolation(
                f"{view.key}: view of epoch {view.leader_epoch} given to leader of {self.leader_epoch}"
            )
        if view.epoch < state.view.epoch:
            return []
        moved, was_paused = view.epoch > state.view.epoch, state.view.paused
        self._tick_soon(now)
        self._pausing.excuse_sleepers(now)
        state.view = view
        self.quota.configure(view.config, now)
        for replica in view.replicas:
            if replica != state.broker and replica not in state.followers:
                state.followers[replica] = FollowerProgress(caught_up_at=now)
        for replica in list(state.followers):
            if replica not in view.replicas:
                del state.followers[replica]
        out: list[LeaderEffect] = []
        if moved:
            self._pausing.on_view(was_paused, now, out)
            self._isr_keeper.on_view(view, now)
            self._commits.advance(now, out)
            self._cutover.on_view(now, out)
            self._draining.look(now, out)
            self._isr_keeper.drop_for_their_disks(now, out)
            self._isr_keeper.expand_by_any(now, out)
        return out

    def on_log_start(self, log_start: Offset) -> None:
        """The oldest segments were removed. All of them were committed."""
        self._state.log_start_offset = log_start
        self._state.transactions.forget_aborted(log_start)

    def on_space(self, no_space: bool, now: float) -> list[LeaderEffect]:
        """This replica's disk has no room for records any more, or has some again."""
        out: list[LeaderEffect] = []
        self._state.no_space = no_space
        self._state.history.add("its disk is full" if no_space else "its disk has room", now)
        self._isr_keeper.drop_for_their_disks(now, out)
        return out

    def on_disk(self, hangs: bool, now: float) -> list[LeaderEffect]:
        """This replica's disk has begun to hang, or answers again."""
        out: list[LeaderEffect] = []
        self._state.disk_hangs = hangs
        self._state.history.add("its disk hangs" if hangs else "its disk answers", now)
        self._isr_keeper.drop_for_their_disks(now, out)
        self._draining.look(now, out)
        return out

    def on_connection(self, connected: bool, now: float) -> None:
        """Lag clocks stand while our own connection is down and begin anew when it is back."""
        self._state.is_connected = connected
        self._state.history.add("it is connected" if connected else "it has lost its connection", now)
        if connected:
            self._state.restart_lag_clocks(now)

    # ------------------------------------------------------------------ time
    def tick(self, now: float) -> list[LeaderEffect]:
        out: list[LeaderEffect] = []
        settings = self.settings
        if now - self._tick_due > settings.late_tick:
            self._state.history.add(f"it slept for {now - self._last_tick:.1f} s: lag clocks begin anew", now)
            self._state.restart_lag_clocks(now)
        self._last_tick = now
        self._pausing.tick(now, self._consumers.has_waiting, out)
        self._commits.advance(now, out)  # a leader without followers gets no fetch that would move its HW
        self._cutover.look(now, out)
        self._draining.look(now, out)
        out.extend(self._commits.acks.expire(now))
        self._waiters.tick(now, out)
        if self._consumers.are_due(now):
            out.extend(self._consumers.expire(now, self._state.readable()))
        self._isr_keeper.tick(now, out)
        self._tick_due = now + self._tick_interval
        if not (self._pausing.is_automatic or self._state.view.awaits_cutover or self._draining.deadline is not None):
            # Few ticks are due for a thousand idle partitions. One that is at most `late_tick` late still comes before
            # the first member lags, so a tick that finds a lag has one before it, an interval ago: this process was
            # awake meanwhile (R17).
            early = max(self._tick_interval, settings.late_tick)
            self._tick_due = max(self._tick_due, self._isr_keeper.earliest_lag() - early)
        return out

    def _tick_soon(self, now: float) -> None:
        self._tick_due = min(self._tick_due, now + self._tick_interval)

    def next_deadline(self) -> float:
        """When `tick` is due at the latest (monotonic seconds)."""
        due = min(
            self._tick_due,
            self._waiters.next_deadline(),
            self._commits.acks.next_deadline(),
            self._consumers.next_deadline(),
            self._isr_keeper.next_deadline(self._last_tick),
        )
        draining = self._draining.deadline
        return due if draining is None else min(due, draining)

    # ------------------------------------------------------------------ end of leadership
    def drain(self, target: BrokerId, token: MoveRequest, timeout: float, now: float) -> list[LeaderEffect]:
        """Sequence nothing more until `target` has everything, then complete `token`; see `draining`."""
        out: list[LeaderEffect] = []
        self._tick_soon(now)
        self._draining.begin(target, token, timeout, now, out)
        return out

    def resign(self, reason: str, now: float) -> list[LeaderEffect]:
        """Leadership of this epoch is over. Publishes that wait end as outcome unknown; consumers are sent
        elsewhere."""
        out: list[LeaderEffect] = []
        self._state.history.add(f"resigns: {reason}", now)
        self._commits.resign(reason, out)
        out.extend(self._consumers.refuse_all(TidelogError(Code.NOT_LEADER, reason)))
        self._draining.end(reason, now, out)
        return out

    # ------------------------------------------------------------------ questions of drivers
    def validate(self) -> None:
        """Raises InvariantViolation, with the last events, where an invariant of the leader or its parts is broken."""
        try:
            self._state.validate()
            self._commits.validate()
            self._epochs.validate()
            newest = self._epochs.latest
            require(newest is None or newest <= self.leader_epoch, "no record is of a later LeaderEpoch", self._epochs)
        except InvariantViolation as broken:
            raise InvariantViolation(f"{self.view.key}, leader: {broken}\n{self._state.history}") from broken

    @property
    def has_waiting_follower(self) -> bool:
        """Some follower would take a batch at once."""
        return self._waiters.has_any

    def gathers_until(self, now: float) -> float:
        """See `Commits.gathers_until`."""
        return self._commits.gathers_until(now)

    def progress(self) -> dict[BrokerId, tuple[Offset | None, bool]]:
        """Replica -> (its LEO, None when not known in this epoch; in the committed ISR)."""
        state = self._state
        out: dict[BrokerId, tuple[Offset | None, bool]] = {state.broker: (state.log_end_offset, True)}
        for replica, follower in state.followers.items():
            end = follower.log_end_offset if follower.log_end_offset >= 0 else None
            out[replica] = (end, replica in state.isr.members)
        return out

    def lag_s(self, replica: BrokerId, now: float) -> float:
        """Seconds since the follower had acknowledged all that was here; 0: it has, or it is this replica."""
        follower = self._state.followers.get(replica)
        if follower is None or self._state.acknowledged(replica) >= self._state.log_end_offset:
            return 0.0
        return max(0.0, now - follower.caught_up_at)
