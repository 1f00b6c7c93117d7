"""One replica of one partition on this broker: its log, and the role that it has in the present LeaderEpoch.

    closed ──open──> idle ──view──> Leading | Following ──view of another LeaderEpoch──> the next role
                                        └──a failed log──> failed: no role any more in this life of the process

Views arrive at any time; the newest wins. A role ends completely, blocking work included, before the next one begins.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from dataplane.broker.context import BrokerContext
from dataplane.broker.following import Following
from dataplane.broker.leading import Leading
from dataplane.broker.role import Role
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.recovery import RecoveryReport
from dataplane.replica.producers import ProducerTable
from wire.types import Offset, PartitionKey, PartitionView, high_watermark_to_wire

log = logging.getLogger(__name__)

START_RETRY = 0.1
"""A role that could not begin (no connection, say) is begun again after this long, in seconds."""


class Replica:
    def __init__(self, key: PartitionKey, directory: Path, config: LogConfig) -> None:
        self.key = key
        self.directory = directory
        self.failed: str | None = None
        self.view: PartitionView | None = None
        self.role: Role | None = None
        self._config = config
        self._log: PartitionLog | None = None
        self._producers = ProducerTable()
        self._high_watermark = Offset(0)
        self._checkpointed = Offset(-1)
        self._sequence = 0
        self._transition: asyncio.Task[None] | None = None
        self._closing = False

    # ------------------------------------------------------------------ the log
    def open(self) -> RecoveryReport:
        """Open and recover the log. Blocking; called in a thread. Raises LogDamaged when there is nothing to work with."""
        self._log, report = PartitionLog.open(self.directory, self._config)
        self._producers.rebuild(self._log.producer_batches(self._log.log_start_offset))
        self._high_watermark = self._checkpointed = self._log.high_watermark
        if report.damaged is not None:
            self.failed = report.damaged
        return report

    @property
    def high_watermark(self) -> Offset:
        return self.role.high_watermark if self.role is not None else self._high_watermark

    @property
    def log_end_offset(self) -> Offset:
        return self._log.log_end_offset if self._log is not None else Offset(0)

    def checkpoint(self) -> None:
        """Write the HW down when it has moved. Blocking; called in a thread."""
        high_watermark = self.high_watermark
        if self._log is not None and self.failed is None and high_watermark != self._checkpointed:
            self._log.checkpoint_high_watermark(high_watermark)
            self._checkpointed = high_watermark

    # ------------------------------------------------------------------ roles
    def on_view(self, view: PartitionView, context: BrokerContext) -> None:
        if self.view is not None and view.epoch < self.view.epoch:
            return
        self.view = view
        if self._transition is not None:
            return  # it looks at self.view again before it ends
        role = self.role
        if role is not None and not role.ended and self._fits(role, view, context):
            role.on_view(view)
        elif self.failed is None:
            self._transition = context.loop.create_task(self._change_role(context))

    @staticmethod
    def _fits(role: Role, view: PartitionView, context: BrokerContext) -> bool:
        leads = view.leader == context.broker
        return role.leader_epoch == view.leader_epoch and leads == isinstance(role, Leading) and role.view.leader == view.leader

    async def _change_role(self, context: BrokerContext) -> None:
        try:
            while not self._closing and self.failed is None:
                view = self.view
                assert view is not None
                role = self.role
                if role is not None and self._fits(role, view, context) and not role.ended:
                    if role.view is not view:
                        role.on_view(view)
                    if self.view is view:
                        return
                    continue
                await self._end_role(f"LeaderEpoch {view.leader_epoch} of {self.key} has begun")
                if self._log is None:
                    await context.loop.run_in_executor(context.executor, self.open)
                try:
                    await self._begin_role(view, context)
                except (OSError, TimeoutError, ConnectionError) as e:
                    log.warning("partition %s: cannot take its role yet: %s", self.key, e)
                    await self._end_role("it could not begin")
                    await asyncio.sleep(START_RETRY)
        except Exception as e:
            log.exception("partition %s: cannot go on", self.key)
            self.failed = repr(e)
        finally:
            self._transition = None

    async def _begin_role(self, view: PartitionView, context: BrokerContext) -> None:
        assert self._log is not None
        if view.leader == context.broker:
            self.role = Leading(context, view, self._log, self._producers, self._high_watermark)
        else:
            self.role = Following(context, view, self._log, self._producers, self._high_watermark, self._sequence)
        await self.role.start()

    async def _end_role(self, reason: str) -> None:
        role = self.role
        if role is None:
            return
        await role.end(reason)
        self._high_watermark = min(role.high_watermark, self.log_end_offset)
        if isinstance(role, Following):
            self._sequence = role.sequence
        self.failed = self.failed or role.failed
        self.role = None

    def on_connection(self, connected: bool) -> None:
        if self.role is not None and not self.role.ended:
            self.role.on_connection(connected)

    # ------------------------------------------------------------------ end
    async def close(self, context: BrokerContext, reason: str) -> None:
        self._closing = True
        if self._transition is not None:
            await asyncio.wait({self._transition})
        await self._end_role(reason)
        if self._log is not None:
            partition_log, self._log = self._log, None
            if self.failed is None:
                high_watermark = self._high_watermark
                await context.loop.run_in_executor(context.executor, partition_log.checkpoint_high_watermark, high_watermark)
            await context.loop.run_in_executor(context.executor, partition_log.close)

    # ------------------------------------------------------------------ status
    def status(self) -> dict[str, Any]:
        """For `describe`: ends and progress as far as this replica knows them. HW inclusive, -1 for none."""
        partition_log, role = self._log, self.role
        out: dict[str, Any] = {
            "partition": self.key.partition,
            "incarnation": self.key.partition_incarnation,
            "role": "failed" if self.failed else type(role).__name__.lower() if role is not None else "none",
            "failed": self.failed,
            "leader_epoch": role.leader_epoch if role is not None else None,
            "high_watermark": high_watermark_to_wire(self.high_watermark),
            "log_start_offset": partition_log.log_start_offset if partition_log is not None else None,
            "log_end_offset": partition_log.log_end_offset if partition_log is not None else None,
            "replicas_progress": None,
        }
        if isinstance(role, Leading) and role.core is not None and not role.ended:
            out["replicas_progress"] = {
                replica: {"log_end_offset": end, "in_sync": in_sync} for replica, (end, in_sync) in role.core.progress().items()
            }
        return out
