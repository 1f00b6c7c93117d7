"""One replica of one partition on this broker: its log, and the role that it has in the present LeaderEpoch.

    closed ──open──> idle ──view──> leading | following ──view of another LeaderEpoch──> the next role
             │                          └──a disk that fails, a broken rule──> failed: it withdraws, and has no role any
             │                                                                 more in this life of the process
             any ──damage found──> damaged ──withdrawn──> repaired, idle (`dataplane.broker.repair`)

Views arrive at any time; the newest wins. A role ends completely, blocking work included, before the next one begins.
First a damaged replica leaves the ISR (it withdraws, or its registration names it), then it is cut, and copies from the
leader what it lacks.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from dataplane.broker.context import BrokerContext
from dataplane.broker.damaged_replica import DamagedReplica
from dataplane.broker.follower_driver import FollowerDriver
from dataplane.broker.housekeeping import Visit
from dataplane.broker.leader_driver import LeaderDriver, begin_leader_epoch
from dataplane.broker.repair import WayBack, mark, repair, way_back
from dataplane.broker.role import Role
from dataplane.broker.space import NO_SPACE_RETRY
from dataplane.log.errors import LogDamaged, NoSpace
from dataplane.log.files import REAL_FILES, FileSystem
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.pool import LogPool
from dataplane.log.quarantine import MAX_EVENTS, Quarantine
from dataplane.log.recovery import RecoveryReport
from dataplane.replica.story import Story
from wire.errors import Code, CorruptData, TidelogError
from wire.operations import Damage
from wire.reports import ReplicaReport
from wire.transport import Message, Subscription
from wire.types import (
    BrokerId,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    Withdrawal,
    high_watermark_to_wire,
)

log = logging.getLogger(__name__)

START_RETRY = 0.1
"""A role that could not begin (no connection, say) is begun again after this long, in seconds."""


class Replica:
    def __init__(
        self,
        key: PartitionKey,
        directory: Path,
        config: LogConfig,
        *,
        files: FileSystem = REAL_FILES,
        pool: LogPool | None = None,
    ) -> None:
        self.key = key
        self.directory = directory
        self.failed: str | None = None
        self.view: PartitionView | None = None
        self.role: Role | None = None
        self.story = Story()
        self._config = config
        self._files = files
        self._pool = pool
        self._damaged = False
        """The log is not what was written: it may be cut and written anew, once nobody counts on it."""
        self._damage_met_in = LeaderEpoch(0)
        self._confession: asyncio.Task[None] | None = None
        """That it is damaged is being written down."""
        self._quarantined: list[dict[str, Any]] = []
        """Reports of what was cut out of the log, oldest first."""
        self._log: PartitionLog | None = None
        self._high_watermark = Offset(0)
        self._checkpointed = Offset(-1)
        self._sequence = 0
        self._transition: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[Subscription] | None = None
        """To consumers, from the first role on, through all of them: a change of role waits for no subscription."""
        self._closing = False

    # ------------------------------------------------------------------ the log
    def open(self, *, page_cache_survived: bool = False) -> RecoveryReport:
        """Open and recover the log. Blocking; called in a thread. Raises LogDamaged when there is nothing to work
        with."""
        self._log, report = PartitionLog.open(
            self.directory, self._config, files=self._files, pool=self._pool, page_cache_survived=page_cache_survived
        )
        self._high_watermark = self._checkpointed = self._log.high_watermark
        self._quarantined = Quarantine(self._files, self.directory).reports()
        if report.damaged is not None:
            self.mark(report.damaged)
            self.failed = report.damaged
            self._damaged = True
        return report

    def mark(self, reason: str) -> None:
        """That it is damaged, so that no restart forgets it. Blocking."""
        mark(self._files, self.directory, reason, self.key)

    def on_damage(self, reason: str, context: BrokerContext) -> None:
        """Somebody found that the log is not what was written: this replica serves nobody from now on, writes that
        down, withdraws, and is repaired when nobody counts on it any more."""
        if isinstance(self.role, DamagedReplica) or self.failure is not None or self._closing:
            return
        self.story.tell(f"its log is damaged: {reason}", context.now())
        log.error("partition %s: the log on %s is damaged: %s", self.key, context.broker, reason)
        context.counters.damage_found += 1
        self.failed = reason
        self._damaged = True
        if self.view is not None:
            self._damage_met_in = self.view.leader_epoch
        if self.role is not None:
            self.role.stop(reason)
        self._confession = context.loop.create_task(self._confess(reason, context))

    async def _confess(self, reason: str, context: BrokerContext) -> None:
        await context.loop.run_in_executor(context.executor, self.mark, reason)
        self._confession = None
        self._withdraw(reason, context)
        if self.view is not None and self._has_something_to_do(self.view, context):
            self._begin_transition(context)

    async def _repair(self, way: WayBack, context: BrokerContext) -> None:
        """Raises LogDamaged, CorruptData."""
        partition_log = self._log
        assert partition_log is not None

        report = await context.loop.run_in_executor(
            context.executor, partial(repair, partition_log, self.key, way, time_ns=context.time_ns())
        )
        self._quarantined = [*self._quarantined, report][-MAX_EVENTS:]
        self._high_watermark = self._checkpointed = partition_log.high_watermark
        context.counters.damage_repaired += 1
        self.failed = None
        self._damaged = False

    def _way_back(self, view: PartitionView, broker: BrokerId) -> WayBack | None:
        if not self._damaged or self._log is None or self._confession is not None:
            return None
        return way_back(view, broker, self._damage_met_in)

    def _is_remnant(self, view: PartitionView, broker: BrokerId) -> bool:
        """It is damaged, and nobody else can lead: what can be read of it must be read here."""
        told = self._damaged and self._log is not None and self._confession is None
        return told and view.leader is None and broker in view.isr

    def _has_something_to_do(self, view: PartitionView, context: BrokerContext) -> bool:
        if self._transition is not None or self._closing:
            return False
        if self.failure is None:
            return True
        return self._is_remnant(view, context.broker) or self._way_back(view, context.broker) is not None

    @property
    def log(self) -> PartitionLog | None:
        """None until it is opened, and once it is closed."""
        return self._log

    @property
    def is_damaged(self) -> bool:
        return self._damaged

    @property
    def high_watermark(self) -> Offset:
        return self.role.high_watermark if self.role is not None else self._high_watermark

    @property
    def log_end_offset(self) -> Offset:
        return self._log.log_end_offset if self._log is not None else Offset(0)

    @property
    def failure(self) -> str | None:
        return self.failed or (self.role.failed if self.role is not None else None)

    @property
    def owes_checkpoint(self) -> bool:
        """The HW has moved since it was written down, or an `accepted` stream is to be synced."""
        partition_log = self._log
        if partition_log is None or self._closing or self.failure is not None:
            return False
        return self.high_watermark != self._checkpointed or (self._is_accepted and partition_log.needs_sync)

    async def keep_checkpoint(self, context: BrokerContext) -> None:
        """Called periodically: the HW is written down when it has moved, an `accepted` stream is synced."""
        if not self.owes_checkpoint:
            return
        known = self.high_watermark
        try:
            with context.disk.waiting():
                await context.loop.run_in_executor(context.checkpoints, self.checkpoint, known)
        except NoSpace as e:
            context.space.refused(e)
        except LogDamaged as e:
            if not self._closing:
                self.fail(f"the checkpoint cannot be written: {e}", context)
        if self.high_watermark < known:  # cut meanwhile: what was written may be above it
            self._checkpointed = Offset(-1)

    def checkpoint(self, high_watermark: Offset) -> None:
        """Blocking; called in a thread. The checkpoint never vouches for what a loss of power may take: that would look
        like damage. Raises LogDamaged."""
        partition_log = self._log
        if partition_log is None:
            return
        if self._is_accepted and partition_log.needs_sync:
            partition_log.sync()
        durable = min(high_watermark, partition_log.durable_end)
        if durable != self._checkpointed:
            partition_log.checkpoint_high_watermark(durable)
            self._checkpointed = durable

    @property
    def _is_accepted(self) -> bool:
        return self.view is not None and not self.view.config.is_durable

    # ------------------------------------------------------------------ roles
    def on_view(self, view: PartitionView, context: BrokerContext) -> None:
        if self.view is not None and view.epoch < self.view.epoch:
            return
        self.view = view
        if self._log is not None:
            self._configure(self._log, view)
        role = self.role
        if self._transition is not None:  # it looks at self.view again before it ends
            if role is not None and not self._fits(role, view, context):
                role.give_up_starting()
            return
        if role is not None and not role.ended and role.failed is None and self._fits(role, view, context):
            role.on_view(view)
        elif self._closing:
            return
        elif self._has_something_to_do(view, context):
            self._begin_transition(context)
        elif self._confession is None and context.broker in (*view.isr, *view.eligible):
            # It withdrew while nobody counted on it, which changed nothing, and an expansion on its way took it in.
            self._withdraw(self.failure or "unsound", context)

    @staticmethod
    def _configure(partition_log: PartitionLog, view: PartitionView) -> None:
        """Logs are opened at start, before anybody knows what their streams were told."""
        if partition_log.config.segment_bytes != view.config.segment_bytes:
            partition_log.config = replace(partition_log.config, segment_bytes=view.config.segment_bytes)

    @staticmethod
    def _fits(role: Role, view: PartitionView, context: BrokerContext) -> bool:
        leads = view.leader == context.broker
        return (
            role.leader_epoch == view.leader_epoch
            and leads == isinstance(role, LeaderDriver)
            and role.view.leader == view.leader
        )

    def _begin_transition(self, context: BrokerContext) -> None:
        self._transition = context.loop.create_task(self._change_role(context))

    async def _change_role(self, context: BrokerContext) -> None:
        try:
            while not self._closing:
                view = self.view
                assert view is not None
                if self.failed is not None and not self._is_remnant(view, context.broker):
                    way = self._way_back(view, context.broker)
                    if way is None:
                        return
                    await self._end_role(f"the log of {self.key} is repaired")
                    if self.view is view:
                        await self._repair(way, context)
                    continue
                role = self.role
                if role is not None and self._fits(role, view, context) and not role.ended:
                    if role.view is not view:
                        role.on_view(view)
                    if self.view is view:
                        return
                    continue
                await self._end_role(f"LeaderEpoch {view.leader_epoch} of {self.key} has begun")
                if self._log is None:
                    report = await context.loop.run_in_executor(context.executor, self.open)
                    if report.damaged is not None:
                        self._withdraw(report.damaged, context)
                await self._stop_trusting_copy(view.leader_epoch, context)
                if self._is_overtaken(view, context):
                    continue
                self._listen(context)
                try:
                    await self._begin_role(view, context)
                except (OSError, TimeoutError, ConnectionError, NoSpace) as e:
                    if isinstance(e, NoSpace):
                        context.space.refused(e)
                    log.warning("partition %s: cannot take its role yet: %s", self.key, e)
                    await self._end_role("it could not begin")
                    await asyncio.sleep(START_RETRY)
        except NoSpace as e:
            context.space.refused(e)
            context.loop.call_later(NO_SPACE_RETRY, self._try_again, context)
        except (LogDamaged, CorruptData) as e:
            self.fail(str(e), context)
        except Exception as e:
            log.exception("partition %s: cannot go on", self.key)
            self.fail(repr(e), context)
        finally:
            self._transition = None

    async def _stop_trusting_copy(self, leader_epoch: LeaderEpoch, context: BrokerContext) -> None:
        """Before the role begins. Raises LogDamaged, NoSpace."""
        partition_log = self._log
        if partition_log is None or self._damaged or not partition_log.swapping.is_copy_of_another(leader_epoch):
            return
        await context.loop.run_in_executor(context.executor, partition_log.swapping.begin_role, leader_epoch)

    def _try_again(self, context: BrokerContext) -> None:
        """The log could not be opened, or repaired, for want of room."""
        if self.view is not None and not self._closing:
            self.on_view(self.view, context)

    def on_space(self, no_space: bool) -> None:
        if self.role is not None and not self.role.ended:
            self.role.on_space(no_space)

    def on_disk(self, hangs: bool) -> None:
        if self.role is not None and not self.role.ended:
            self.role.on_disk(hangs)

    def _is_overtaken(self, view: PartitionView, context: BrokerContext) -> bool:
        """While something was awaited."""
        has_failed = self.failed is not None and not self._is_remnant(view, context.broker)
        return self._closing or has_failed or self.view is not view

    def fail(self, reason: str, context: BrokerContext) -> None:
        """This replica cannot go on in this life of the process: it leaves the ISR."""
        self._damaged = False
        if self.role is not None and not self.role.ended:
            self.role.fail(reason)
        elif self.failure is None:
            self.story.tell(f"withdraws: {reason}", context.now())
            log.error(
                "partition %s: replica on %s withdraws: %s; its last events:\n%s",
                self.key, context.broker, reason, self.story,
            )  # fmt: skip
            self._withdraw(reason, context)
        self.failed = self.failed or reason

    def _withdraw(self, reason: str, context: BrokerContext) -> None:
        context.counters.withdrawals += 1
        epoch = self.view.epoch if self.view is not None else PartitionEpoch(0)
        context.metadata.withdraw(
            Withdrawal(
                key=self.key,
                broker=context.broker,
                expected_epoch=epoch,
                reason=reason,
                leader_epoch=self._damage_met_in if self._damaged else LeaderEpoch(0),
            )
        )

    async def _begin_role(self, view: PartitionView, context: BrokerContext) -> None:
        """Where a newer view comes before there is a role, none begins. Raises LogDamaged and what a start raises."""
        assert self._log is not None
        if view.leader == context.broker and not self._damaged:
            await begin_leader_epoch(context, view, self._log)
            if self._is_overtaken(view, context):
                return
        common = context, view, self._log, self._high_watermark
        on_damage = partial(self.on_damage, context=context)
        if self._damaged:
            self.role = DamagedReplica(*common, on_damage, self.story)
        elif view.leader == context.broker:
            self.role = LeaderDriver(*common, on_damage, self.story)
        else:
            self.role = FollowerDriver(*common, self._sequence, on_damage, self.story)
        await self.role.start()

    async def _end_role(self, reason: str) -> None:
        role = self.role
        if role is None:
            return
        await role.end(reason)
        start = self._log.log_start_offset if self._log is not None else Offset(0)
        self._high_watermark = max(start, min(role.high_watermark, self.log_end_offset))
        if isinstance(role, FollowerDriver):
            self._sequence = role.sequence
        self.failed = self.failed or role.failed
        self.role = None

    # ------------------------------------------------------------------ consumers
    def _listen(self, context: BrokerContext) -> None:
        """The subscription waits for the connection, however long that takes."""
        if self._listening is None:
            subject = context.subjects.fetch_from(self.key.stream, self.key.partition, context.broker)
            self._listening = context.loop.create_task(
                context.ingest.subscribe(subject, lambda message: self._on_read(message, context))
            )

    def _on_read(self, message: Message, context: BrokerContext) -> None:
        role = self.role
        if role is not None and not role.ended:
            role.on_read(message)
        elif message.reply:
            error = TidelogError(
                Code.UNAVAILABLE, f"{context.broker} has no part in {self.key} at the moment; read from another replica"
            )
            context.control.publish(message.reply, [b""], headers=error.to_headers())

    async def _stop_listening(self) -> None:
        listening, self._listening = self._listening, None
        if listening is None:
            return
        listening.cancel()
        await asyncio.wait({listening})
        if listening.cancelled():
            return
        error = listening.exception()
        if error is not None:
            log.error("partition %s: could not listen to consumers: %r", self.key, error)
            return
        await listening.result().unsubscribe()

    def on_connection(self, connected: bool) -> None:
        if self.role is not None and not self.role.ended:
            self.role.on_connection(connected)

    # ------------------------------------------------------------------ end
    async def close(self, context: BrokerContext, reason: str) -> None:
        self._closing = True
        if self._confession is not None:
            await asyncio.wait({self._confession})
        if self._transition is not None:
            if self.role is not None:
                self.role.give_up_starting()
            await asyncio.wait({self._transition})
        await self._end_role(reason)
        await self._stop_listening()
        partition_log, self._log = self._log, None
        if partition_log is None:
            return
        try:
            await context.loop.run_in_executor(context.executor, self._close_log, partition_log, self._high_watermark)
        except (LogDamaged, NoSpace) as e:
            self.failed = self.failed or str(e)
            log.error("partition %s: the log was not closed in order: %s", self.key, e)

    def _close_log(self, partition_log: PartitionLog, high_watermark: Offset) -> None:
        try:
            if self.failed is None:
                partition_log.sync()
                partition_log.checkpoint_high_watermark(high_watermark)
        finally:
            partition_log.close()

    # ------------------------------------------------------------------ housekeeping
    def visit(self, context: BrokerContext) -> Visit | None:
        """None: there is nothing to work on, for now."""
        partition_log, view = self._log, self.view
        if partition_log is None or view is None or self._closing or self.failure is not None:
            return None
        return Visit(
            key=self.key,
            log=partition_log,
            config=view.config,
            high_watermark=self.high_watermark,
            time_ns=context.time_ns(),
            stop=threading.Event(),
        )

    def on_log_start(self) -> None:
        """The oldest segments may have been removed."""
        if self.role is not None and not self.role.ended:
            self.role.on_log_start()

    # ------------------------------------------------------------------ status
    def _damage_form(self) -> Damage | None:
        """Offsets exclusive; null while the log was not read to the end."""
        if not self._damaged:
            return None
        role = self.role
        found = role.damage if isinstance(role, DamagedReplica) else None
        return {
            "reason": found.reason if found is not None else self.failed or "",
            "sound_end": found.sound_end if found is not None else None,
            "known_end": found.known_end if found is not None else None,
        }

    def status(self) -> ReplicaReport:
        """For `describe`: ends and progress as far as this replica knows them. HW inclusive, -1 for none."""
        partition_log, role = self._log, self.role
        out: ReplicaReport = {
            "partition": self.key.partition,
            "incarnation": self.key.partition_incarnation,
            "role": "failed" if self.failure else role.title if role is not None else "none",
            "failed": self.failure,
            "damage": self._damage_form(),
            "quarantined": {"events": len(self._quarantined), "latest": next(iter(self._quarantined[-1:]), None)},
            "leader_epoch": role.leader_epoch if role is not None else None,
            "high_watermark": high_watermark_to_wire(self.high_watermark),
            "log_start_offset": partition_log.log_start_offset if partition_log is not None else None,
            "log_end_offset": partition_log.log_end_offset if partition_log is not None else None,
            "compacted_to": partition_log.compaction_point.clean_end if partition_log is not None else None,
            "replicas_progress": None,
            "stopped": role.core.stopped.message if isinstance(role, FollowerDriver) and role.core.stopped else None,
        }
        if isinstance(role, LeaderDriver) and role.is_serving:
            out["replicas_progress"] = {
                replica: {"log_end_offset": end, "in_sync": in_sync}
                for replica, (end, in_sync) in role.core.progress().items()
            }
        return out
