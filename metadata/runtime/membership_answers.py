"""The controller's answers to requests about the brokers of the cluster: see `wire.operations.broker_operations`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from metadata.cluster.model import Outcome
from metadata.controller.broker_forms import listed_brokers
from metadata.runtime.driver_context import MetadataContext
from wire.errors import TidelogError
from wire.operations.broker_operations import (
    BROKER_LIST,
    BROKER_REMOVE,
    BrokerList,
    BrokerRemoval,
    ListBrokersRequest,
    RemoveBrokerRequest,
)
from wire.operations.operation import handles
from wire.operations.reports import BrokerReport
from wire.protobuf import metadata_pb2 as pb
from wire.turns import in_turns
from wire.types import BrokerId

_log = logging.getLogger(__name__)


class MembershipAdmin:
    """Handlers. `commit` raises TidelogError when a command's outcome cannot be had; `ask(broker)`: the report of a
    live broker, {} when it does not answer; `raft_peers`: addresses of the other voters of the metadata group."""

    def __init__(
        self,
        context: MetadataContext,
        *,
        commit: Callable[[pb.Command], Awaitable[Outcome]],
        ask: Callable[[BrokerId], Awaitable[BrokerReport | TidelogError]],
        raft_peers: Callable[[], Collection[str]],
    ) -> None:
        self._context = context
        self._commit = commit
        self._ask = ask
        self._raft_peers = raft_peers

    @handles(BROKER_LIST)
    async def list_brokers(self, _: ListBrokersRequest) -> BrokerList:
        state, core = self._context.state, self._context.core
        alive = [broker for broker, known in sorted(state.brokers.items()) if known.alive]
        reports = await asyncio.gather(*map(self._ask, alive))
        sizes = {
            broker: None if isinstance(report, TidelogError) else report.get("bytes_on_disk")
            for broker, report in zip(alive, reports, strict=True)
        }
        dead_for = core.dead_for(self._context.monotonic())
        stopping = core.stopping_brokers()
        return {"brokers": listed_brokers(state, stopping=stopping, dead_for=dead_for, bytes_on_disk=sizes)}

    @handles(BROKER_REMOVE)
    async def remove_broker(self, request: RemoveBrokerRequest) -> BrokerRemoval:
        requests = self._context.core.requests
        command = await in_turns(requests.remove_broker(BrokerId(request.broker), self._raft_peers()))
        if not request.dry_run:
            _log.info("an operator removes broker %s from the cluster", request.broker)
            (await self._commit(command)).raise_for_refusal()
        return {"broker": request.broker, "removed": not request.dry_run}
