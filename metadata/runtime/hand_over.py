"""A broker that is told to stop hands its leaderships over first (R88), so that nobody waits for its successor.

    SIGTERM ─> stopping ─> its probe answers say so ─> the controller moves its leaderships to others
            ─> it leads nothing that can move ─> if it is the controller: it gives way to another voter
            ─> leaving ─> its probe answers say so ─> the controller declares it dead: no ISR waits for it ─> it closes

Each step has an end: the moves after `hand_over_timeout_s`, giving way after GIVE_WAY_TIMEOUT_S, leaving after
LEAVE_TIMEOUT_S, and each of them when no majority of the metadata group is there. The broker closes as it is then, and
the controller finds it dead, as after a crash. The closing of the logs comes after all that.

Where all live brokers are stopping none leaves: the ISRs stay whole, for whichever returns. Where others stay, a
partition whose replicas are all stopping goes offline with the first that is declared dead, and its ISR stays whole.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from metadata.controller.stopping import Leaderships, leaderships
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.metadata_ports import RaftPort
from wire.turns import in_turns

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 0.1
SAY_EVERY_S = 2.0
"""Pause between lines about the progress."""
GIVE_WAY_TIMEOUT_S = 5.0
"""Limit of the wait for the next controller."""
LEAVE_TIMEOUT_S = 2.0
"""Limit of the wait until this broker counts as dead."""
OTHERS_TIMEOUT_S = 0.5
"""A broker leaves at the earliest so long after it was told to stop: whoever stops all of them tells one after the
other, and each knows of the others by the next probes."""


class HandOver:
    def __init__(self, context: MetadataContext, raft: RaftPort) -> None:
        self._context = context
        self._raft = raft

    # Keeps R88.
    async def run(self) -> None:
        """Returns when this broker may close."""
        context = self._context
        if context.incarnation is None:
            return
        context.is_stopping = True
        began = context.monotonic()
        await self._move_leaderships(began + context.settings.hand_over_timeout_s)
        await self._give_way()
        await self._leave(began + OTHERS_TIMEOUT_S)

    async def _move_leaderships(self, deadline: float) -> None:
        context, broker = self._context, self._context.broker_id
        left = at_first = await self._leaderships()
        if at_first.movable.count:
            _log.info(
                "broker %s hands %d leaderships over before it stops, for %g s at most; a second signal stops it at"
                " once", broker, at_first.movable.count, context.settings.hand_over_timeout_s,
            )  # fmt: skip
        say_at = context.monotonic() + SAY_EVERY_S
        while left.movable.count:
            if not self._raft.status().has_quorum:
                _log.warning(
                    "broker %s stops though it leads %s: it is connected to no majority of the metadata group, and"
                    " nobody can take over", broker, left.movable,
                )  # fmt: skip
                return
            if context.monotonic() >= deadline:
                _log.warning(
                    "broker %s stops though it leads %s: they could not be handed over within hand_over_timeout_s"
                    " (%g s); others lead them when it counts as dead",
                    broker, left.movable, context.settings.hand_over_timeout_s,
                )  # fmt: skip
                return
            if context.monotonic() >= say_at:
                say_at += SAY_EVERY_S
                _log.info("broker %s has %d leaderships left to hand over", broker, left.movable.count)
            await asyncio.sleep(LOOK_INTERVAL_S)
            left = await self._leaderships()
        if at_first.movable.count:
            _log.info("broker %s has handed its leaderships over", broker)
        if left.alone.count:
            _log.info("nobody leads these partitions of one replica until %s is back: %s", broker, left.alone)
        if left.out_of_sync.count:
            _log.warning(
                "nobody can take these partitions over from %s, for no other replica is in sync and stays: %s",
                broker, left.out_of_sync,
            )  # fmt: skip

    async def _leaderships(self) -> Leaderships:
        context = self._context
        if not context.state.led_by(context.broker_id):
            return Leaderships()
        return await in_turns(leaderships(context.state, context.broker_id, context.stopping_brokers))

    async def _give_way(self) -> None:
        """Lets another voter become the controller, if there is one that stays."""
        context, state = self._context, self._context.state
        stays = any(
            known.alive and known.raft_address and broker != context.broker_id
            for broker, known in state.brokers.items()
            if broker not in context.stopping_brokers
        )
        if not (context.is_controller and stays and self._raft.hand_over()):
            return
        _log.info("controller %s gives way to another voter before it stops", context.broker_id)
        await self._until(lambda: state.controller != context.broker_id, GIVE_WAY_TIMEOUT_S)

    async def _leave(self, earliest: float) -> None:
        context = self._context
        await self._until(lambda: not self._others_stay(), earliest - context.monotonic())
        if not self._others_stay():
            return
        context.is_leaving = True
        if not context.is_controller:
            await self._until(
                lambda: not (context.state.is_alive(context.broker_id) and self._others_stay()), LEAVE_TIMEOUT_S
            )

    def _others_stay(self) -> bool:
        context = self._context
        return any(
            known.alive and broker != context.broker_id and broker not in context.stopping_brokers
            for broker, known in context.state.brokers.items()
        )

    async def _until(self, holds: Callable[[], bool], timeout: float) -> None:
        """Returns when `holds()` of the applied state, after `timeout` seconds, or without a majority of the metadata
        group."""
        ends_at = self._context.monotonic() + timeout
        while not holds() and self._raft.status().has_quorum:
            left = ends_at - self._context.monotonic()
            if left <= 0:
                return
            await self._context.applied.until(holds, min(left, LOOK_INTERVAL_S))
