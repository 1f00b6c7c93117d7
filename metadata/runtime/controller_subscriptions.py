"""Subscriptions of the controller: requests of brokers, and the API. They exist only while this broker is the
controller.

A broker that is the controller no longer and still subscribed stays silent: its successor hears the same messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from metadata.cluster.references import key_of
from metadata.controller.controller_effects import Effect
from metadata.raft.types import RaftError
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.namespace import Namespace
from metadata.runtime.proposals import Proposals
from wire.messaging.transport import Message, MessageHandler, Subscription
from wire.protobuf import metadata_pb2 as pb
from wire.turns import LOOKS, Steps, in_turns, pieces
from wire.types import BrokerId, LeaderEpoch, LeaderReport, PartitionEpoch

_log = logging.getLogger(__name__)

REPORTS: Final = 250
"""Reports of followers that are decided on before others have their turn."""


class ControllerSubscriptions:
    """`run` carries the core's effects out."""

    def __init__(
        self,
        context: MetadataContext,
        namespace: Namespace,
        proposals: Proposals,
        run: Callable[[list[Effect]], None],
    ) -> None:
        self._context = context
        self._namespace = namespace
        self._proposals = proposals
        self._run = run
        self._wanted = False
        self._changed = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    def start(self) -> None:
        self._context.tasks.spawn(self._keep())

    def want(self, wanted: bool) -> None:
        """This broker is the controller now, or no longer."""
        self._wanted = wanted
        self._changed.set()

    async def _keep(self) -> None:
        serves = False
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                if self._wanted and not serves:
                    await self._open()
                    serves = True
                elif not self._wanted:
                    serves = False
                    await self.close()
            except Exception:  # noqa: BLE001 - a cluster without a listening controller would stand still
                _log.exception("controller %s cannot subscribe or unsubscribe yet", self._context.broker_id)
                await asyncio.sleep(self._context.settings.retry_interval_s)
                self._changed.set()

    async def _open(self) -> None:
        subjects = self._context.subjects
        handlers: tuple[tuple[str, MessageHandler], ...] = (
            (subjects.alter_isr(), self._on_alter_isr),
            (subjects.pause(), self._on_pause),
            (subjects.cutover(), self._on_cutover),
            (subjects.retired(), self._on_retired),
            (subjects.report_leader(), self._on_reports),
            (subjects.withdraw(), self._on_withdraw),
        )
        for subject, handler in handlers[len(self._subscriptions) :]:
            self._subscriptions.append(await self._context.transport.subscribe(subject, handler))
        await self._context.port.on_controller(True)

    async def close(self) -> None:
        await self._context.port.on_controller(False)
        while self._subscriptions:
            await self._subscriptions.pop().unsubscribe()

    def _on_alter_isr(self, message: Message) -> None:
        request = self._context.messages.decode(pb.AlterIsrRequest, message)
        if request is None or not self._context.is_controller:
            return
        if self._namespace.is_ours(request.cluster_id, next((item.leader for item in request.items), "")):
            self._context.tasks.spawn(self._forward(pb.Command(alter_isr=pb.AlterIsr(items=request.items))))

    def _on_pause(self, message: Message) -> None:
        request = self._context.messages.decode(pb.PauseRequest, message)
        if request is None or not self._context.is_controller:
            return
        if self._namespace.is_ours(request.cluster_id, next((item.leader for item in request.items), "")):
            self._context.tasks.spawn(self._forward(pb.Command(alter_paused=pb.AlterPaused(items=request.items))))

    def _on_cutover(self, message: Message) -> None:
        request = self._context.messages.decode(pb.CutoverRequest, message)
        if request is None or not self._context.is_controller:
            return
        if self._namespace.is_ours(request.cluster_id, next((item.leader for item in request.items), "")):
            self._context.tasks.spawn(self._forward(pb.Command(report_cutover=pb.ReportCutover(items=request.items))))

    def _on_retired(self, message: Message) -> None:
        request = self._context.messages.decode(pb.RetiredRequest, message)
        if request is None or not self._context.is_controller:
            return
        if self._namespace.is_ours(request.cluster_id, next((item.leader for item in request.items), "")):
            self._context.tasks.spawn(self._forward(pb.Command(remove_retired=pb.RemoveRetired(items=request.items))))

    def _on_withdraw(self, message: Message) -> None:
        request = self._context.messages.decode(pb.WithdrawRequest, message)
        if request is None or not self._context.is_controller:
            return
        if self._namespace.is_ours(request.cluster_id, next((item.broker for item in request.items), "")):
            self._context.tasks.spawn(self._forward(pb.Command(withdraw=pb.Withdraw(items=request.items))))

    def _on_reports(self, message: Message) -> None:
        reports = self._context.messages.decode(pb.LeaderReports, message)
        if reports is None or not self._context.is_controller:
            return
        if not self._namespace.is_ours(reports.cluster_id, next((report.replica for report in reports.items), "")):
            return
        self._context.tasks.spawn(in_turns(self._take_reports(reports)))

    def _take_reports(self, reports: pb.LeaderReports) -> Steps[None]:
        for part in pieces(reports.items, REPORTS):
            if reports.controller_epoch != self._context.core.controller_epoch:
                return  # to an earlier controller, and perhaps copied; its sender repeats it while it holds
            told = [
                LeaderReport(
                    key=key_of(report.partition),
                    replica=BrokerId(report.replica),
                    leader=BrokerId(report.leader),
                    epoch=PartitionEpoch(report.epoch),
                    leader_epoch=LeaderEpoch(report.leader_epoch),
                    refused=report.refused,
                )
                for report in part
            ]
            self._run(self._context.core.on_reports(told, self._context.monotonic()))
            yield LOOKS

    async def _forward(self, command: pb.Command) -> None:
        """Propose a compare-and-set of another broker, once: that broker repeats its request until it is over."""
        try:
            await self._proposals.attempt(command)
        except RaftError as error:
            _log.info("controller %s: a broker's request has no known outcome: %s", self._context.broker_id, error)
