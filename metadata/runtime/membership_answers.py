"""The controller's answers to requests about the brokers of the cluster: see `wire.operations.broker_operations`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from metadata.cluster.model import Outcome
from metadata.cluster.named_partitions import MAX_NAMED
from metadata.controller.broker_forms import listed_brokers
from metadata.controller.replica_planning import Plan
from metadata.runtime.drains import Drains
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.replica_plans import ReplicaPlans, require_shown
from wire.errors import Code, TidelogError
from wire.operations.broker_operations import (
    BROKER_DRAIN,
    BROKER_LIST,
    BROKER_REMOVE,
    BrokerDrain,
    BrokerList,
    BrokerRemoval,
    DrainBrokerRequest,
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
        drains: Drains,
        plans: ReplicaPlans,
        *,
        commit: Callable[[pb.Command], Awaitable[Outcome]],
        ask: Callable[[BrokerId], Awaitable[BrokerReport | TidelogError]],
        raft_peers: Callable[[], Collection[str]],
    ) -> None:
        self._context = context
        self._drains = drains
        self._plans = plans
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

    @handles(BROKER_DRAIN)
    async def drain_broker(self, request: DrainBrokerRequest) -> BrokerDrain:
        """Answers when all reassignments are begun."""
        context, broker = self._context, BrokerId(request.broker)
        context.core.requests.require_controller()
        if broker not in context.state.brokers:
            raise TidelogError(
                Code.BAD_REQUEST,
                f"broker {broker!r} is not registered; those that are: {', '.join(sorted(context.state.brokers))}",
            )
        was_draining, given_up = context.state.is_draining(broker), 0
        made = Plan([], []) if request.cancel else await self._drains.plan([broker])
        form = await self._plans.form(made)
        refusal = _why_not_drained(broker, made) if made.stuck else ""
        if not request.dry_run:
            if refusal:
                raise TidelogError(Code.BAD_REQUEST, refusal)
            require_shown(request.plan, form)
            await self._mark(broker, draining=not request.cancel)
            if request.cancel:
                given_up = await self._drains.give_up(broker)
            await self._drains.begin(made)
        state = context.state
        return {
            "broker": broker,
            "draining": state.is_draining(broker),
            "replicas": state.held_by(broker),
            "leaders": state.led_by(broker),
            "plan": form,
            "refusal": refusal,
            "voter": context.core.requests.votes(broker, self._raft_peers()),
            "was_draining": was_draining,
            "given_up": given_up,
        }

    async def _mark(self, broker: BrokerId, *, draining: bool) -> None:
        _log.info("an operator %s of broker %s", "begins a drain" if draining else "gives up the drain", broker)
        command = self._context.core.requests.set_draining(broker, draining)
        (await self._commit(command)).raise_for_refusal()


def _why_not_drained(broker: BrokerId, made: Plan) -> str:
    named = "; ".join(f"{key}: {why}" for key, why in made.stuck[:MAX_NAMED])
    more = f"; and {len(made.stuck) - MAX_NAMED} more" if len(made.stuck) > MAX_NAMED else ""
    return (
        f"broker {broker} is not drained, for {len(made.stuck)} of its partitions cannot live without it: {named}"
        f"{more}. Start more brokers, ask for fewer replicas, or change the policies of these streams"
    )
