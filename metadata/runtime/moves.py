"""Planned moves of leaders: a request of an operator, or of a controller that relieves a broker (`rebalancing`).

    operator            controller                          leader
      │ move_leader ──────> │ checks; drain(target) ──────────> │ sequences nothing more
      │                     │                                   │ … the target holds everything, all is committed
      │                     │ <────────────────────────── ready │
      │                     │ ElectLeaders(planned, target), a compare-and-set on the LeaderEpoch
      │ <────────── the new │                                   │ follows, and is in the ISR still
      │              leader │

The election decides, whatever happens on the way: a leader that died, or lost its leadership otherwise, has another
LeaderEpoch, and the compare-and-set fails. A leader that drained in vain sequences again by itself after
`drain_timeout_s`. So nothing is remembered of a move that ended, and a new controller needs nothing of the old one's
moves.

The request to drain names the controller epoch, and the newest probe that the leader has answered. The leader knows by
its own clock when it answered that probe. So a leader that stood still with the request unread recognises it: beyond
its timeout it is refused, for another may lead by then (`lease`).

One move per partition at a time. A request for the one that is under way, as a client repeats it, gets its outcome.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from metadata.cluster.model import Outcome
from metadata.cluster.references import ref_of
from metadata.runtime.driver_context import MetadataContext
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId, LeaderMove

_log = logging.getLogger(__name__)

ANSWER_MARGIN_S = 0.5
"""Time for the leader's answer to travel, beyond its time to drain."""


HEARTBEATS_TO_HEAR = 5
"""Limit of the heartbeats for which a new controller waits until the leader has answered a probe."""


class LeaderMoves:
    """Carries out planned moves. `commit` raises TidelogError when a command's outcome cannot be had."""

    def __init__(self, context: MetadataContext, commit: Callable[[pb.Command], Awaitable[Outcome]]) -> None:
        self._context = context
        self._commit = commit
        self._under_way: dict[tuple[str, int], tuple[LeaderMove, asyncio.Task[None]]] = {}
        """Moves under way, by stream name and partition number."""

    # Keeps R30.
    async def move(self, name: str, partition: int, target: BrokerId, *, disk_hangs: bool = False) -> None:
        """Returns when `target` leads. Raises TidelogError: BAD_REQUEST (it cannot lead), LEADER_NOT_MOVED (the move
        failed), and those of a commit."""
        known = self._under_way.get((name, partition))
        if known is None:
            move = replace(self._context.core.requests.plan_move(name, partition, target), disk_hangs=disk_hangs)
            work = asyncio.get_running_loop().create_task(self._carry(move))
            self._under_way[name, partition] = (move, work)
            work.add_done_callback(lambda ended: self._ended(move, ended))
        else:
            move, work = known
            if move.target != target:
                raise TidelogError(
                    Code.BAD_REQUEST, f"the leadership of {move.key} is moving to {move.target}; wait until that ends"
                )
        await asyncio.shield(work)

    async def close(self) -> None:
        tasks = [work for _, work in self._under_way.values()]
        for work in tasks:
            work.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, move: LeaderMove, work: asyncio.Task[None]) -> None:
        del self._under_way[move.key.stream, move.key.partition]
        if not work.cancelled() and (error := work.exception()) is not None:  # the client may be gone
            _log.info("the leadership of %s stays: %s", move.key, error)

    async def _carry(self, move: LeaderMove) -> None:
        _log.info("the leadership of %s is to move from %s to %s", move.key, move.leader, move.target)
        try:
            await self._drain(move)
        except TidelogError:
            if self._is_done(move):  # the leader died on the way, and its failover chose as the operator did
                return
            raise
        outcome = await self._commit(self._context.core.requests.carry_out(move))
        outcome.raise_for_refusal()
        # A repeated command's items are read from the state.
        if not (outcome.items == (None,) or self._is_done(move)):
            raise self._not_moved(move, f"the election of {move.target} was refused")

    def _is_done(self, move: LeaderMove) -> bool:
        partition = self._context.state.partition(move.key)
        return partition is not None and partition.leader == move.target

    async def _drain(self, move: LeaderMove) -> None:
        """Returns when the target holds everything that the leader has. Raises TidelogError."""
        timeout = self._context.settings.drain_timeout_s
        await self._until_heard(move.leader)
        request = pb.DrainRequest(
            partition=ref_of(move.key),
            leader_epoch=move.leader_epoch,
            target=move.target,
            timeout_ms=round(timeout * 1000),
            controller_epoch=self._context.core.controller_epoch,
            answered=self._context.core.newest_answer(move.leader),
            cluster_id=self._context.state.cluster_id,
        )
        try:
            answer = await self._context.transport.request(
                self._context.subjects.drain(move.leader),
                request.SerializeToString(),
                timeout=timeout + ANSWER_MARGIN_S,
            )
        except TimeoutError:
            raise self._not_moved(
                move, f"its leader {move.leader} did not answer within {timeout + ANSWER_MARGIN_S:g} s"
            ) from None
        if answer.status == NO_RESPONDERS:
            raise self._not_moved(move, f"its leader {move.leader} does not listen")
        error = TidelogError.from_headers(answer.headers)
        if error is not None:
            raise error

    async def _until_heard(self, leader: BrokerId) -> None:
        """A leader takes no request of a controller that has not received an answer of it yet. Probes go out all the
        time: the first answer comes within a heartbeat, or the leader is not there."""
        for _ in range(HEARTBEATS_TO_HEAR):
            if self._context.core.newest_answer(leader):
                return
            await asyncio.sleep(self._context.settings.heartbeat_interval_s)

    def _not_moved(self, move: LeaderMove, why: str) -> TidelogError:
        partition = self._context.state.partition(move.key)
        if partition is None:
            now = "it was deleted"
        elif partition.leader is None:
            now = "nobody leads it now"
        else:
            now = f"{partition.leader} leads it, in LeaderEpoch {partition.leader_epoch}"
        return TidelogError(
            Code.LEADER_NOT_MOVED, f"the leadership of {move.key} did not move to {move.target}: {why}; {now}"
        )
