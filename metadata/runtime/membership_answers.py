"""The controller's answers to requests about the brokers of the cluster: see `wire.operations.broker_operations`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from metadata.controller.broker_forms import listed_brokers
from metadata.runtime.driver_context import MetadataContext
from wire.errors import TidelogError
from wire.operations.broker_operations import BROKER_LIST, BrokerList, ListBrokersRequest
from wire.operations.operation import handles
from wire.operations.reports import BrokerReport
from wire.types import BrokerId


class MembershipAdmin:
    """Handlers. `ask(broker)`: the report of a live broker; {} when it does not answer."""

    def __init__(
        self,
        context: MetadataContext,
        *,
        ask: Callable[[BrokerId], Awaitable[BrokerReport | TidelogError]],
    ) -> None:
        self._context = context
        self._ask = ask

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
