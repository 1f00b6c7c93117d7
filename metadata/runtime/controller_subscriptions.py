"""Subscriptions of the controller: requests of brokers, and the API. They exist only while this broker is the
controller.

A broker that is the controller no longer and still subscribed stays silent: its successor gets the same messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import random
from typing import Any, Final

from google.protobuf.message import Message as Protobuf

from metadata.cluster.references import key_of
from metadata.controller.controller_effects import Effect
from metadata.raft.types import RaftError
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.namespace import Namespace
from metadata.runtime.proposals import Proposals
from wire.messaging.transport import Message, Subscription
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry
from wire.turns import LOOKS, Steps, in_turns, pieces
from wire.types import BrokerId, LeaderEpoch, LeaderReport, PartitionEpoch

_log = logging.getLogger(__name__)

REPORTS: Final = 250
"""Reports of followers that are decided on before other tasks have their turn."""


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
        self._subscription: Subscription | None = None
        self._under_way: set[bytes] = set()
        """Requests of brokers whose commands have no outcome yet."""

    def start(self) -> None:
        self._context.tasks.spawn(self._keep())

    def want(self, wanted: bool) -> None:
        """This broker is the controller now, or no longer."""
        self._wanted = wanted
        self._changed.set()

    async def _keep(self) -> None:
        serves = False
        retry = Retry(self._context.settings.retry_interval_s, chance=random)
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
                await asyncio.sleep(retry.failed())
                self._changed.set()

    async def _open(self) -> None:
        context = self._context
        if self._subscription is None:
            self._subscription = await context.transport.subscribe(context.subjects.controller(), self._on_request)
        await context.port.on_controller(True)

    async def close(self) -> None:
        await self._context.port.on_controller(False)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await subscription.unsubscribe()

    def _on_request(self, message: Message) -> None:
        context = self._context
        request = context.messages.decode(pb.ControllerRequest, message)
        if (
            request is None
            or not context.is_controller
            or not self._namespace.is_ours(request.cluster_id, request.broker)
        ):
            return
        kind = request.WhichOneof("body")
        if kind is None:
            context.messages.drop(message.subject, message.data, "it asks for nothing")
        elif kind == "report_leaders":
            context.tasks.spawn(in_turns(self._take_reports(request.report_leaders)))
        else:
            context.tasks.spawn(self._forward(kind, getattr(request, kind).items))

    def _take_reports(self, reports: pb.LeaderReports) -> Steps[None]:
        for part in pieces(reports.items, REPORTS):
            if reports.controller_epoch != self._context.core.controller_epoch:
                return  # for an earlier controller, and perhaps copied; its sender repeats it while it holds
            told = [
                LeaderReport(
                    key=key_of(report.partition),
                    replica=BrokerId(report.replica),
                    leader=BrokerId(report.leader),
                    epoch=PartitionEpoch(report.epoch),
                    leader_epoch=LeaderEpoch(report.leader_epoch),
                    refused=report.refused,
                    unopened=report.unopened,
                )
                for report in part
            ]
            self._run(self._context.core.on_reports(told, self._context.monotonic()))
            yield LOOKS

    async def _forward(self, kind: str, items: Sequence[Protobuf]) -> None:
        """Proposes compare-and-sets of another broker. That broker repeats its requests until they are over; where the
        group is slow the repetition would be proposed beside the original, and make it slower."""
        marks = [kind.encode() + item.SerializeToString() for item in items]
        fresh = {mark: item for mark, item in zip(marks, items, strict=True) if mark not in self._under_way}
        if not fresh:
            return
        self._under_way.update(fresh)
        fields: dict[str, Any] = {kind: {"items": [*fresh.values()]}}  # the commands have the names of the requests
        try:
            await self._proposals.attempt(pb.Command(**fields))
        except RaftError as error:
            _log.info("controller %s: a broker's request has no known outcome: %s", self._context.broker_id, error)
        finally:
            self._under_way.difference_update(fresh)
