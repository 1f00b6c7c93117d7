"""One replica of one partition on this broker: its log, its role, and the effects of its state machine.

Views arrive at any time; the newest wins. `dataplane.replica.replica_state_machine` decides, this module carries its
effects out: one step at a time, and the recording of damage beside it.

## Repair

The repair of a replica with a damaged log, without a restart.

    met ──marked on disk──> withdraws ──out of the ISR and of `eligible`, and ─────────> COPY: cut, then follow
                               │         the LeaderEpoch in which it was met is over
                               │
                               └──the last copy, no leader──> read only (`dataplane.broker.reading.damaged_replica`)
                                                                      │
                                                                      └──an operator──> ACCEPT: cut, then lead

Nothing is cut before. In the LeaderEpoch in which the damage was met the leader goes by the fetches of this log: it may
have proposed to take the replica into the ISR, and would again. `PartitionView.loss_accepted` distinguishes an
operator's election from one by a controller that does not know of the damage yet. Before it cuts, the replica reads its
whole log: it does not come back with a second damage.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dataplane.broker.disk.space_watch import NO_SPACE_RETRY
from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver, begin_leader_epoch, report_if_retired
from dataplane.broker.reading.damaged_replica import DamagedReplica
from dataplane.broker.reading.readable_role import ConsumerListener
from dataplane.broker.roles.broker_context import BrokerContext
from dataplane.broker.roles.counters import Counters, counter
from dataplane.broker.roles.id_keeper import IdKeeper
from dataplane.broker.roles.role import Role, RoleCounters, RoleSetup
from dataplane.broker.roles.role_changes import Gated, RoleChanges
from dataplane.broker.upkeep.housekeeping import Visit
from dataplane.broker.upkeep.hw_checkpoints import CheckpointDue
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.recovery.damage import MAX_EVENTS, Quarantine, set_mark
from dataplane.log.recovery.log_recovery import RecoveryReport
from dataplane.log.storage.files import REAL_FILES, FileSystem
from dataplane.log.storage.log_errors import LogDamaged, NoSpace
from dataplane.log.storage.manifest import ManifestEntry
from dataplane.log.storage.pool import LogPool
from dataplane.replica.history import History
from dataplane.replica.replica_state_machine import (
    BeginRole,
    EndRole,
    FailRole,
    GiveUpStarting,
    OpenLog,
    PrepareLog,
    RecordDamage,
    Repair,
    RepairMode,
    ReplicaEffect,
    ReplicaStateMachine,
    RoleKind,
    Step,
    StopRole,
    TellRole,
    WaitToRetry,
    Withdraw,
)
from dataplane.replica.traffic import TrafficMeter
from wire.errors import Code, CorruptData, TidelogError
from wire.messaging.transport import Message
from wire.operations.api_operations import Damage
from wire.operations.reports import ReplicaReport
from wire.types import (
    Generation,
    LogEnd,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    Withdrawal,
    high_watermark_to_wire,
)

if TYPE_CHECKING:
    from pathlib import Path

    from dataplane.log.partition_log import PartitionLog
    from dataplane.log.storage.files import FileSystem
    from wire.types import PartitionKey

_log = logging.getLogger(__name__)


def mark(files: FileSystem, directory: Path, reason: str, key: PartitionKey) -> None:
    """So that no restart forgets it. Blocking."""
    try:
        set_mark(files, directory, reason)
    except OSError as error:
        _log.error("partition %s: that it is damaged cannot be written down: %s", key, error)


def repair(partition_log: PartitionLog, key: PartitionKey, mode: RepairMode, *, time_ns: int) -> dict[str, Any]:
    """Cut the damage and all behind it; the report of that. Blocking; in a thread. Raises LogDamaged."""
    lost = mode is RepairMode.ACCEPT
    damage = partition_log.checking.examine(without_beginning=lost)
    report = partition_log.checking.cut_damage(damage, when_ns=time_ns, lost=lost)
    if mode is RepairMode.COPY and partition_log.is_without_past():
        partition_log.drop_all(Offset(0))  # the leader sends the log start, and its derived state there
    _log.warning(
        "partition %s: cut a damaged log to offset %d, it went up to %d (%s): %s",
        key, damage.sound_end, damage.known_end, mode.value, damage.reason,
    )  # fmt: skip
    return report


@dataclass
class DamageCounters(Counters):
    damage_found: int = counter("logs", "logs that were found [damaged](operations.md#damage), at a start or later")
    damage_repaired: int = counter("logs", "damaged logs that were repaired")


class Replica:
    """Hands the broker's events to the state machine of the replica and carries out its effects; answers the broker's
    questions about log, role and health."""

    def __init__(
        self,
        key: PartitionKey,
        directory: Path,
        config: LogConfig,
        *,
        files: FileSystem = REAL_FILES,
        pool: LogPool | None = None,
        entry: ManifestEntry | None = None,
    ) -> None:
        self.key = key
        self.directory = directory
        self.machine = ReplicaStateMachine(key)
        self.role: Role | None = None
        self.assigned_at: Generation | None = None
        """A generation of the cluster state by which this broker has the replica; None: only an earlier process may
        have had it, by a state that is not known."""
        self.take_back: Callable[[], Path | None] = lambda: None
        """Called before the log is opened, where the log of an earlier time may take its place: renames that one, and
        returns the name that it had. Blocking."""
        self.is_taken_back = False
        """The log, which is open, was taken back, and has not counted as a copy of the partition since then."""
        self.history = History()
        self.traffic = TrafficMeter()
        """That of clients with this replica, whatever its roles."""
        self._config = config
        self._files = files
        self._pool = pool
        self.entry = entry
        """That of the log in the manifest of the data folder."""
        self._quarantined: list[dict[str, Any]] = []
        """Reports of the bytes that were cut out of the log, oldest first."""
        self._log: PartitionLog | None = None
        self._high_watermark = Offset(0)
        self._sequence = 0
        self._stepping: asyncio.Task[None] | None = None
        self._recording: asyncio.Task[None] | None = None
        self._listener = ConsumerListener(key)
        self._ids = IdKeeper()

    # ------------------------------------------------------------------ the log
    def open(self, *, page_cache_survived: bool = False, left_in_order: bool = False) -> RecoveryReport:
        """Open and recover the log, before the first view. Blocking; called in a thread. Raises LogDamaged when there
        is nothing to work with."""
        partition_log, report = self._open_log(page_cache_survived=page_cache_survived, left_in_order=left_in_order)
        self._take_log(partition_log)
        self.machine.on_opened(report.damaged)
        return report

    def _open_log(
        self, *, page_cache_survived: bool = False, left_in_order: bool = False
    ) -> tuple[PartitionLog, RecoveryReport]:
        """Blocking. Damage is recorded. Raises LogDamaged, NoSpace, DataDirError."""
        kept = self.take_back()
        if kept is not None:
            _log.warning("partition %s: nobody leads it, so its log in %s is taken back", self.key, kept)
        partition_log, report = PartitionLog.open(
            self.directory,
            self._config,
            files=self._files,
            pool=self._pool,
            page_cache_survived=page_cache_survived,
            left_in_order=left_in_order,
            entry=self.entry,
        )
        self._quarantined = Quarantine(self._files, self.directory).reports() if report.has_quarantine else []
        if report.damaged is not None:
            mark(self._files, self.directory, report.damaged, self.key)
        self.is_taken_back = report.is_taken_back
        return partition_log, report

    def _take_log(self, partition_log: PartitionLog) -> None:
        self._log = partition_log
        self._high_watermark = partition_log.high_watermark

    @property
    def log(self) -> PartitionLog | None:
        """None until it is opened, and once it is closed."""
        return self._log

    @property
    def view(self) -> PartitionView | None:
        return self.machine.view

    @property
    def is_damaged(self) -> bool:
        return self.machine.is_damaged

    @property
    def failure(self) -> str | None:
        return self.machine.failure

    @property
    def high_watermark(self) -> Offset:
        role = self.role  # read once: threads that write checkpoints ask, too
        return role.high_watermark if role is not None else self._high_watermark

    @property
    def log_end_offset(self) -> Offset:
        return self._log.log_end_offset if self._log is not None else Offset(0)

    @property
    def reach(self) -> LogEnd | None:
        """None: the log is not open, or unsound."""
        partition_log = self._log
        if partition_log is None or self.failure is not None:
            return None
        return partition_log.reach

    @property
    def bytes_on_disk(self) -> int:
        return self._log.size_bytes if self._log is not None else 0

    @property
    def owed(self) -> CheckpointDue:
        partition_log = self._log
        if partition_log is None or self.machine.closing or self.failure is not None:
            return CheckpointDue.NOTHING
        if _is_accepted(self.view) and partition_log.needs_sync:
            return CheckpointDue.SYNC
        durable = min(self.high_watermark, partition_log.durable_end)
        if durable == partition_log.checkpointed_high_watermark and not partition_log.index_is_due:
            return CheckpointDue.NOTHING
        return CheckpointDue.HIGH_WATERMARK

    def checkpoint_at_once(self) -> bool:
        """Takes the HW over into the manifest, without waiting for the disk. Returns False where more is to be written
        down: `keep_checkpoint`."""
        partition_log = self._log
        if partition_log is None:
            return True
        return partition_log.checkpoint_at_once(min(self.high_watermark, partition_log.durable_end))

    def keep_checkpoint(self, *, syncs_only: bool) -> Offset:
        """Called periodically, in a thread: an `accepted` stream is synced, and unless `syncs_only` the HW is written
        down when it has moved. Returns the HW. Blocking. Raises LogDamaged, NoSpace; `on_checkpoint` is told the
        outcome, on the loop."""
        known = self.high_watermark
        partition_log = self._log
        if self.owed is not CheckpointDue.NOTHING and partition_log is not None:
            if not syncs_only:
                self.checkpoint(known)
            elif _is_accepted(self.view):
                partition_log.sync()
        return known

    def on_checkpoint(self, outcome: Offset | Exception, context: BrokerContext) -> None:
        """`outcome`: what `keep_checkpoint` returned or raised."""
        if isinstance(outcome, NoSpace):
            context.space.refused(outcome)
        elif isinstance(outcome, LogDamaged):
            if not self.machine.closing:
                self.fail(f"the checkpoint cannot be written: {outcome}", context)
        elif isinstance(outcome, Exception):
            _log.error("partition %s: the checkpoint met a bug", self.key, exc_info=outcome)

    def checkpoint(self, high_watermark: Offset) -> None:
        """Blocking; called in a thread. The checkpoint never vouches for what a loss of power may take: that would look
        like damage. Raises LogDamaged."""
        partition_log = self._log
        if partition_log is None:
            return
        if _is_accepted(self.view) and partition_log.needs_sync:
            partition_log.sync()
        durable = min(high_watermark, partition_log.durable_end)
        if durable != partition_log.checkpointed_high_watermark or partition_log.index_is_due:
            partition_log.checkpoint_high_watermark(durable)

    # ------------------------------------------------------------------ events
    def on_view(self, view: PartitionView, context: BrokerContext) -> None:
        effects = self.machine.on_view(view, context.broker)
        if self._log is not None and self.view is view and self._log.config.segment_bytes != view.config.segment_bytes:
            # Logs are opened at start, before the settings of their streams are known.
            self._log.config = replace(self._log.config, segment_bytes=view.config.segment_bytes)
        self._run(effects, context)

    def on_damage(self, reason: str, context: BrokerContext) -> None:
        """The log is damaged: this replica serves no requests from now on, writes that down, withdraws, and is repaired
        when no replica relies on it any more."""
        effects = self.machine.on_damage(reason)
        if effects:
            self.history.add(f"its log is damaged: {reason}", context.now())
            _log.error("partition %s: the log on %s is damaged: %s", self.key, context.broker, reason)
            context.the(DamageCounters).damage_found += 1
        self._run(effects, context)

    def fail(self, reason: str, context: BrokerContext) -> None:
        """This replica cannot go on until the process is started again: it leaves the ISR."""
        self._run(self.machine.on_failed(reason), context)

    def on_space(self, no_space: bool) -> None:
        if self.role is not None and not self.role.ended:
            self.role.on_space(no_space)

    def on_disk(self, hangs: bool) -> None:
        if self.role is not None and not self.role.ended:
            self.role.on_disk(hangs)

    def on_connection(self, connected: bool) -> None:
        if self.role is not None and not self.role.ended:
            self.role.on_connection(connected)

    def on_log_start(self) -> None:
        """The oldest segments may have been removed."""
        if self.role is not None and not self.role.ended:
            self.role.on_log_start()

    def _on_read(self, message: Message, context: BrokerContext) -> None:
        role = self.role
        if role is not None and not role.ended:
            role.on_read(message)
        elif message.reply:
            error = TidelogError(
                Code.UNAVAILABLE, f"{context.broker} has no part in {self.key} at the moment; read from another replica"
            )
            context.control.publish(message.reply, [b""], headers=error.to_headers())

    # ------------------------------------------------------------------ effects
    def _run(self, effects: list[ReplicaEffect], context: BrokerContext) -> None:
        role = self.role
        for effect in effects:
            match effect:
                case Withdraw():
                    self._withdraw(effect, context)
                case RecordDamage(reason):
                    self._recording = context.loop.create_task(self._record_damage(reason, context))
                case BeginRole(kind, view):
                    # The role is there from now on: an effect of the next event must find it.
                    self._make_role(kind, view, context)
                    if self.machine.step is effect:
                        self._take_in_turn(effect, context)
                case EndRole(reason):
                    # At once: the lease is proved for leaders that know that they are deposed.
                    if role is not None:
                        role.begin_to_end(reason)
                    self._stepping = context.loop.create_task(self._take(effect, context))
                case OpenLog() | PrepareLog():
                    self._take_in_turn(effect, context)
                case Repair() | WaitToRetry():
                    self._stepping = context.loop.create_task(self._take(effect, context))
                case TellRole(view) if role is not None:
                    role.on_view(view)
                case StopRole(reason) if role is not None:
                    role.stop(reason)
                case FailRole(reason) if role is not None:
                    role.fail(reason)
                case GiveUpStarting() if role is not None:
                    role.give_up_starting()

    def _withdraw(self, effect: Withdraw, context: BrokerContext) -> None:
        self.history.add(f"withdraws: {effect.reason}", context.now())
        _log.error(
            "partition %s: replica on %s withdraws: %s; its last events:\n%s",
            self.key, context.broker, effect.reason, self.history,
        )  # fmt: skip
        context.the(RoleCounters).withdrawals += 1
        context.metadata.withdraw(
            Withdrawal(
                key=self.key,
                broker=context.broker,
                expected_epoch=self.view.epoch if self.view is not None else PartitionEpoch(0),
                reason=effect.reason,
                leader_epoch=effect.leader_epoch,
            )
        )

    async def _record_damage(self, reason: str, context: BrokerContext) -> None:
        await context.loop.run_in_executor(context.executor, mark, self._files, self.directory, reason, self.key)
        self._run(self.machine.on_damage_recorded(reason), context)

    def _take_in_turn(self, step: Gated, context: BrokerContext) -> None:
        """When its turn comes among the steps of all replicas."""

        def start() -> asyncio.Task[None]:
            stepping = self._stepping = context.loop.create_task(self._take(step, context))
            return stepping

        context.the(RoleChanges).begin(self.key, step, start)

    async def _take(self, step: Step, context: BrokerContext) -> None:
        machine = self.machine
        try:
            self._run(await self._carry_out(step, context), context)
        except NoSpace as e:
            context.space.refused(e)
            machine.on_no_space()
            context.loop.call_later(NO_SPACE_RETRY, self._try_again, context)
        except (LogDamaged, CorruptData) as e:
            self._run(machine.on_step_failed(str(e)), context)
        except Exception as e:  # noqa: BLE001 - it is logged, and the replica withdraws
            _log.exception("partition %s: cannot go on", self.key)
            self._run(machine.on_step_failed(repr(e)), context)

    def _try_again(self, context: BrokerContext) -> None:
        """A step could not be taken for want of room."""
        if self.view is not None and not self.machine.closing:
            self.on_view(self.view, context)

    async def _carry_out(self, step: Step, context: BrokerContext) -> list[ReplicaEffect]:
        """Raises LogDamaged, CorruptData, NoSpace."""
        machine = self.machine
        match step:
            case OpenLog():
                if self._log is None:  # else it was opened, and the manifest found no room
                    partition_log, report = await context.loop.run_in_executor(context.executor, self._open_log)
                    self._take_log(partition_log)
                    if report.damaged is not None:  # the manifest comes with the repair
                        return machine.on_opened(report.damaged)
                await self._write_manifest(context)  # before anything is appended
                return machine.on_opened(None)
            case PrepareLog(kind, view):
                await self._prepare(kind, view, context)
                return machine.on_prepared()
            case BeginRole():
                return await self._start_role(context)
            case EndRole(reason):
                await self._end_role(reason)
                return machine.on_role_ended()
            case WaitToRetry(seconds):
                await asyncio.sleep(seconds)
                return machine.on_waited()
            case Repair(mode):
                await self._repair(mode, context)
                return machine.on_repaired()

    async def leave_manifest(self, context: BrokerContext) -> None:
        """Before the folder of the log is removed. One that could not leave is looked for at the next start, and leaves
        then."""
        if self.entry is not None:
            self.entry.remove()
            with suppress(LogDamaged, NoSpace):
                await self._write_manifest(context)

    async def _write_manifest(self, context: BrokerContext) -> None:
        """Raises LogDamaged, NoSpace."""
        if self.entry is None:
            return
        written = context.loop.create_future()

        def done(outcome: Offset | Exception) -> None:
            if isinstance(outcome, Exception):
                written.set_exception(outcome)
            else:
                written.set_result(None)

        context.checkpoints.request(self.entry.manifest, done)
        await written

    async def _prepare(self, kind: RoleKind, view: PartitionView, context: BrokerContext) -> None:
        partition_log = self._log
        assert partition_log is not None
        if kind is RoleKind.DAMAGED_READ_ONLY:
            return
        if partition_log.swapping.is_copy_of_another(view.leader_epoch):
            await context.loop.run_in_executor(context.executor, partition_log.swapping.begin_role, view.leader_epoch)
        if kind is RoleKind.LEADER and self.view is view and self.failure is None and not self.machine.closing:
            if partition_log.log_end_offset < view.purged_end:
                # After an unclean election: all that it holds was deleted, and what it will write is not.
                await context.loop.run_in_executor(context.executor, partition_log.drop_all, view.purged_end)
                self._high_watermark = partition_log.high_watermark
            await begin_leader_epoch(context, view, partition_log)

    def _make_role(self, kind: RoleKind, view: PartitionView, context: BrokerContext) -> None:
        assert self._log is not None
        self._listener.start(context, lambda message: self._on_read(message, context))
        setup = RoleSetup(
            context,
            view,
            self._log,
            self._high_watermark,
            partial(self.on_damage, context=context),
            self.machine.on_role_failed,
            self._on_quarantined,
            self.history,
            self._ids,
            self.traffic,
        )
        try:
            match kind:
                case RoleKind.DAMAGED_READ_ONLY:
                    self.role = DamagedReplica(setup)
                case RoleKind.LEADER:
                    self.role = LeaderDriver(setup)
                case RoleKind.FOLLOWER:
                    self.role = FollowerDriver(setup, self._sequence)
        except Exception as e:  # noqa: BLE001 - it is logged, and the replica withdraws
            _log.exception("partition %s: its role cannot be made", self.key)
            self._run(self.machine.on_role_not_made(repr(e)), context)

    async def _start_role(self, context: BrokerContext) -> list[ReplicaEffect]:
        role = self.role
        assert role is not None
        if role.failed is not None:  # since it was made
            return self.machine.on_role_begun()
        try:
            await role.start()
        except (OSError, NoSpace) as e:
            if isinstance(e, NoSpace):
                context.space.refused(e)
            _log.warning("partition %s: cannot take its role yet: %s", self.key, e)
            return self.machine.on_role_not_begun()
        return self.machine.on_role_begun()

    async def _end_role(self, reason: str) -> None:
        role = self.role
        if role is None:
            return
        await role.end(reason)
        start = self._log.log_start_offset if self._log is not None else Offset(0)
        self._high_watermark = max(start, min(role.high_watermark, self.log_end_offset))
        if isinstance(role, FollowerDriver):
            self._sequence = role.sequence
        self.role = None

    async def _repair(self, mode: RepairMode, context: BrokerContext) -> None:
        partition_log = self._log
        assert partition_log is not None
        report = await context.loop.run_in_executor(
            context.executor,
            self._ids.cutting,
            partition_log,
            partial(repair, partition_log, self.key, mode, time_ns=context.time_ns()),
        )
        self._on_quarantined(report)
        self._high_watermark = partition_log.high_watermark
        context.the(DamageCounters).damage_repaired += 1

    def _on_quarantined(self, report: dict[str, Any]) -> None:
        self._quarantined = [*self._quarantined, report][-MAX_EVENTS:]

    # ------------------------------------------------------------------ end
    async def close(self, context: BrokerContext, reason: str) -> None:
        self._run(self.machine.on_closing(), context)
        if context.the(RoleChanges).give_up(self.key):
            self.machine.on_step_given_up()
        if self._recording is not None:
            await asyncio.wait({self._recording})
        while self.machine.step is not None and self._stepping is not None:
            await asyncio.wait({self._stepping})
        await self._end_role(reason)
        self.machine.on_closed()
        await self._listener.stop()
        partition_log, self._log = self._log, None
        if partition_log is None:
            return
        try:
            await context.loop.run_in_executor(
                context.executor, _close_log, partition_log, self._high_watermark, self.failure is None
            )
        except (LogDamaged, NoSpace) as e:
            self.machine.on_unusable(str(e))
            _log.error("partition %s: the log was not closed in order: %s", self.key, e)

    # ------------------------------------------------------------------ housekeeping and status
    def visit(self, context: BrokerContext) -> Visit | None:
        """None: there is nothing to work on at present."""
        partition_log, view = self._log, self.view
        if partition_log is None or view is None or self.machine.closing or self.failure is not None:
            return None
        if isinstance(self.role, LeaderDriver):
            report_if_retired(self.role)
        return Visit(
            key=self.key,
            log=partition_log,
            config=view.config,
            high_watermark=self.high_watermark,
            purged_end=view.purged_end,
            time_ns=context.time_ns(),
            agreed_ns=context.metadata.agreed_time_ns(),
            elapsed_ns=int(context.now() * 1_000_000_000),
            stop=threading.Event(),
        )

    def status(self) -> ReplicaReport:
        """For `describe`: ends and progress as far as this replica knows them. HW inclusive, -1 for none."""
        partition_log, role, view = self._log, self.role, self.view
        start = None
        if partition_log is not None:
            start = partition_log.log_start_offset
            if view is not None:
                start = min(view.first_record(start), partition_log.log_end_offset)
        out: ReplicaReport = {
            "partition": self.key.partition,
            "incarnation": self.key.partition_incarnation,
            "role": "failed" if self.failure else role.title if role is not None else "none",
            "doing": self._doing(),
            "failed": self.failure,
            "damage": _damage_form(self),
            "quarantined": {"events": len(self._quarantined), "latest": next(iter(self._quarantined[-1:]), None)},
            "leader_epoch": role.leader_epoch if role is not None else None,
            "partition_epoch": role.view.epoch if role is not None else None,
            "committed_end": None,
            "high_watermark": high_watermark_to_wire(self.high_watermark),
            "last_stable_offset": partition_log.last_stable(self.high_watermark) if partition_log is not None else None,
            "log_start_offset": start,
            "log_end_offset": partition_log.log_end_offset if partition_log is not None else None,
            "compacted_to": partition_log.compaction_point.clean_end if partition_log is not None else None,
            "replicas_progress": None,
            "stopped": role.core.stopped.message if isinstance(role, FollowerDriver) and role.core.stopped else None,
        }
        if isinstance(role, LeaderDriver) and role.is_serving:
            latest = role.latest(read_uncommitted=False)
            out["committed_end"] = None if isinstance(latest, TidelogError) else latest
            out["replicas_progress"] = {
                replica: {
                    "log_end_offset": end,
                    "in_sync": in_sync,
                    "lag_bytes": None if end is None else role.log.bytes_from(end),
                    "lag_s": round(role.core.lag_s(replica, role.context.now()), 3),
                }
                for replica, (end, in_sync) in role.core.progress().items()
            }
        return out

    def _doing(self) -> str:
        """As of `ReplicaReport`."""
        role = self.role
        if isinstance(role, LeaderDriver):
            return "leading" if role.is_serving else "starting"
        if isinstance(role, FollowerDriver):
            return type(role.core.state).__name__.lower()
        return "opening" if self._log is None else "no role"


def _is_accepted(view: PartitionView | None) -> bool:
    return view is not None and not view.config.is_durable


def _close_log(partition_log: PartitionLog, high_watermark: Offset, is_sound: bool) -> None:
    try:
        if is_sound:
            partition_log.sync()
            partition_log.checkpoint_high_watermark(high_watermark)
    finally:
        partition_log.close()


def _damage_form(replica: Replica) -> Damage | None:
    """Offsets exclusive; null while the log was not read to the end."""
    if not replica.is_damaged:
        return None
    role = replica.role
    found = role.damage if isinstance(role, DamagedReplica) else None
    return {
        "reason": found.reason if found is not None else replica.failure or "",
        "sound_end": found.sound_end if found is not None else None,
        "known_end": found.known_end if found is not None else None,
    }
