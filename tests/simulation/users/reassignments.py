"""An operator who gives partitions other replicas while they are written and read, whatever else happens: all of a
stream or some, one change in the place of another, or he takes them back."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from wire.errors import TidelogError
from wire.types import StreamName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from metadata.cluster.model import Stream
    from tests.simulation.users.clients import Workload

CHANGES: Final = ("move", "move", "move", "replace", "cancel", "cancel", "there and back")
AGAIN_AFTER: Final = 0.3
"""Seconds after which something is asked for again that was refused, as where a broker is not alive."""
MOST_TIMES: Final = 20


class Reassigner:
    """Of the streams of these clients, between these brokers."""

    def __init__(self, workloads: Sequence[Workload], brokers: Sequence[str]) -> None:
        self._workloads = workloads
        self._brokers = [*brokers]
        self._world = workloads[0].world
        self._rng = Random(f"reassigner of {self._world.seed}")
        self.waits = 0
        """Changes that were asked for and not answered yet."""

    def change(self, how: str) -> bool:
        """Ask for a change of that kind."""
        clients = self._rng.choice(self._workloads)
        stream = self._stream(clients)
        if stream is None or not clients.incarnation:
            return False
        self.waits += 1
        clients.spawn(partial(self._change, clients, how))
        return True

    @staticmethod
    def _stream(clients: Workload) -> Stream | None:
        return clients.invariants.raft.truth.streams.get(StreamName(clients.stream))

    def ask_for(self, clients: Workload, targets: dict[int, list[str]]) -> None:
        """Ask for these replicas, by the number of the partition."""
        self.waits += 1
        clients.spawn(partial(self._go_to, clients, targets))

    def ask_to_cancel(self, clients: Workload) -> None:
        """Ask for the former replicas, in all partitions of the stream that move."""
        self.waits += 1
        clients.spawn(partial(self._go_back, clients))

    async def _go_to(self, clients: Workload, targets: dict[int, list[str]]) -> None:
        await self._move(clients, targets)
        self.waits -= 1

    async def _go_back(self, clients: Workload) -> None:
        await self._cancel(clients)
        self.waits -= 1

    async def _change(self, clients: Workload, how: str) -> None:
        before = await self._move(clients, None)
        if how == "move":
            self.waits -= 1
            return
        await asyncio.sleep(self._rng.choice((0.0, 0.01, 0.1, 0.5)) * (0.5 + self._rng.random()))
        match how:
            case "replace":
                await self._move(clients, None)
            case "cancel":
                await self._cancel(clients)
            case _:
                await self._move(clients, before)
        self.waits -= 1

    async def _move(self, clients: Workload, wanted: dict[int, list[str]] | None) -> dict[int, list[str]]:
        """`wanted`: None: others by chance. Returns the replicas that the partitions had."""
        for _ in range(MOST_TIMES):
            stream = self._stream(clients)
            if stream is None or clients.stopped:
                break
            numbers = [number for number in sorted(stream.partitions) if self._rng.random() < 0.8]
            before: dict[int, list[str]] = {number: [*stream.partitions[number].replicas] for number in numbers}
            targets = wanted
            if targets is None:
                factor = stream.replication_factor
                targets = {number: self._rng.sample(self._brokers, factor) for number in numbers}
            if not targets:
                return {}
            try:
                await clients.client.reassign(clients.stream, targets)
            except TidelogError as error:
                clients.world.say(f"{clients.stream} does not move to {targets}: {error}")
                await asyncio.sleep(AGAIN_AFTER)
                continue
            clients.world.say(f"{clients.stream} moves to {targets}")
            return before
        return {}

    async def _cancel(self, clients: Workload) -> None:
        try:
            await clients.client.cancel_reassignment(clients.stream)
            clients.world.say(f"the moves of {clients.stream} are cancelled")
        except TidelogError as error:
            clients.world.say(f"the moves of {clients.stream} are not cancelled: {error}")

    # ---- calm

    def unsettled(self) -> str | None:
        if self.waits:
            return f"{self.waits} reassignments have no answer"
        for key, partition in self._workloads[0].invariants.raft.truth.partitions():
            if partition.reassignment is not None:
                return f"{key} is not where it is to be: {partition}"
        return None
