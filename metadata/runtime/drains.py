"""Brokers that are drained: the controller begins reassignments of what they hold, and of what they get meanwhile,
until they hold nothing.

The mark of a broker is in the cluster state, and each reassignment is, once it is begun; nothing is remembered here. So
another controller goes on where this one ended. What is drained is looked for every LOOK_INTERVAL_S, and a plan is made
only where something is found that is not on its way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

from metadata.cluster.cluster_view import PIECE
from metadata.cluster.model import Outcome, Partition
from metadata.commands.reassignment_targets import wanted_replicas
from metadata.controller.replica_planning import Change, Plan
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.replica_plans import ReplicaPlans
from wire.errors import TidelogError
from wire.operations.reassignment_operations import MAX_REASSIGNED
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry
from wire.turns import Steps, in_turns, pieces
from wire.types import BrokerId, PartitionKey

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S: Final = 2.0
LONGEST_PAUSE_S: Final = 60.0
"""Pause between two plans, while the last ones have found no other broker for what is left."""


class Drains:
    """`commit` raises TidelogError when a command's outcome cannot be had."""

    def __init__(
        self, context: MetadataContext, plans: ReplicaPlans, commit: Callable[[pb.Command], Awaitable[Outcome]]
    ) -> None:
        self._context = context
        self._plans = plans
        self._commit = commit

    def start(self) -> None:
        self._context.tasks.spawn(self._keep_draining())

    async def plan(self, brokers: Collection[BrokerId]) -> Plan:
        """Returns the changes after which these brokers hold nothing, and the partitions of theirs that no other broker
        can take."""
        return await in_turns(self._of(brokers, await self._plans.made(evacuate=brokers)))

    def _of(self, brokers: Collection[BrokerId], made: Plan) -> Steps[Plan]:
        """Returns the part of the plan that is about partitions which these brokers are to have."""
        changes: list[Change] = []
        stuck: list[tuple[PartitionKey, str]] = []
        for piece in pieces(made.changes, PIECE):
            yield 2 * len(piece)
            changes += [change for change in piece if any(broker in change.before for broker in brokers)]
        is_theirs = _is_to_have_one_of(brokers)
        for some in pieces(made.stuck, PIECE):
            yield 2 * len(some)
            found = [(known, each) for each in some if (known := self._context.state.partition(each[0])) is not None]
            stuck += [each for known, each in found if is_theirs(known)]
        return Plan(changes, stuck)

    async def begin(self, made: Plan) -> None:
        """Begins the changes. Partitions that have changed since are left to the next look."""
        await self._plans.begin(made)

    async def give_up(self, broker: BrokerId) -> int:
        """Partitions that are about to leave that broker keep it. Its mark has been taken away. Returns of how many the
        moves were given up."""

        def leaves(partition: Partition) -> bool:
            moving = partition.reassignment
            return moving is not None and broker in moving.original and broker not in moving.target

        count = 0
        for keys in pieces(await in_turns(self._found(leaves)), MAX_REASSIGNED):
            command = self._context.core.requests.give_back(keys)
            await self._commit(command)
            count += len(command.cancel_reassignments.items)
        return count

    # Keeps R93.
    async def _keep_draining(self) -> None:
        retry = Retry(LOOK_INTERVAL_S, LONGEST_PAUSE_S, chance=None)
        pause = LOOK_INTERVAL_S
        while True:
            await asyncio.sleep(pause)
            pause = LOOK_INTERVAL_S
            if not self._context.is_controller:
                continue
            brokers = [broker for broker, known in sorted(self._context.state.brokers.items()) if known.draining]
            if not brokers or not await in_turns(self._found(_is_to_have_one_of(brokers))):
                retry = Retry(LOOK_INTERVAL_S, LONGEST_PAUSE_S, chance=None)
                continue
            try:
                made = await self.plan(brokers)
                await self.begin(made)
            except TidelogError as error:
                _log.info("what is left on %s is planned again: %s", ", ".join(brokers), error)
                continue
            if not made.changes:
                pause = retry.failed()

    def _found(self, wanted: Callable[[Partition], bool]) -> Steps[list[PartitionKey]]:
        found: list[PartitionKey] = []
        for keys in self._context.state.walk(wanted):
            yield PIECE
            found += keys
        return found


def _is_to_have_one_of(brokers: Collection[BrokerId]) -> Callable[[Partition], bool]:
    return lambda partition: any(broker in wanted_replicas(partition) for broker in brokers)
