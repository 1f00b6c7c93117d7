"""An operator who gives a stream more partitions, or fewer, while it is written and read, whatever else happens: to a
multiple of what it has, to any other number, to fewer; one repartition after the other; or he takes one back."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Final

from wire.errors import Code, TidelogError
from wire.types import StreamName

if TYPE_CHECKING:
    from metadata.cluster.model import Stream
    from tests.simulation.users.clients import Workload

MOST_PARTITIONS: Final = 8
CHANGES: Final = ("multiple", "other", "fewer", "fewer", "cancel", "chain", "chain")
AGAIN_AFTER: Final = 0.2
"""Seconds after which a repartition is asked for again that was refused because another one is not finished."""
MOST_TIMES: Final = 40


class Repartitioner:
    """Of one stream."""

    def __init__(self, clients: Workload) -> None:
        self._clients = clients
        self._rng = Random(f"repartitioner of {clients.world.seed}-{clients.process.name}")
        self.waits = 0
        """Changes that were asked for and not answered yet."""

    @property
    def stream(self) -> Stream | None:
        return self._clients.invariants.raft.truth.streams.get(StreamName(self._clients.stream))

    def change(self, how: str) -> bool:
        """Ask for a change of that kind."""
        stream = self.stream
        if stream is None or not self._clients.incarnation:
            return False
        count = stream.layouts[-1].partitions
        counts = self._counts(how, count)
        self.ask_for(*counts, cancels=how == "cancel")
        return True

    def _counts(self, how: str, count: int) -> list[int]:
        """The numbers of partitions to come to, one after the other."""
        rng = self._rng
        match how:
            case "multiple" | "cancel":
                return [min(count * rng.choice((2, 2, 3)), MOST_PARTITIONS)]
            case "other":
                return [min(count + rng.randrange(1, 4), MOST_PARTITIONS)]
            case "fewer":
                return [rng.randrange(1, max(count, 2))]
            case _:
                return [rng.randrange(1, MOST_PARTITIONS + 1) for _ in range(rng.choice((2, 3)))]

    def ask_for(self, *counts: int, cancels: bool = False) -> None:
        self.waits += 1
        self._clients.spawn(partial(self._go_to, counts, cancels=cancels))

    async def _go_to(self, counts: tuple[int, ...], *, cancels: bool) -> None:
        for count in counts:
            for _ in range(MOST_TIMES if len(counts) > 1 else 1):
                if await self._repartition(count) or self._clients.stopped:
                    break
                await asyncio.sleep(AGAIN_AFTER)
        if cancels:
            await asyncio.sleep(self._rng.choice((0.0, 0.002, 0.02)))
            await self._cancel()
        self.waits -= 1

    async def _repartition(self, count: int) -> bool:
        """Whether it was taken, or came to that number already."""
        clients = self._clients
        try:
            await clients.client.repartition(clients.stream, count)
        except TidelogError as error:
            clients.world.say(f"{clients.stream} does not get {count} partitions: {error}")
            stream = self.stream
            return error.code is Code.UNKNOWN_STREAM or (stream is not None and stream.layouts[-1].partitions == count)
        clients.world.say(f"{clients.stream} gets {count} partitions")
        return True

    async def _cancel(self) -> None:
        clients = self._clients
        try:
            await clients.client.cancel_repartition(clients.stream)
            clients.world.say(f"the repartition of {clients.stream} is cancelled")
        except TidelogError as error:
            clients.world.say(f"the repartition of {clients.stream} is not cancelled: {error}")

    # ---- calm

    def unsettled(self) -> str | None:
        if self.waits:
            return f"{self.waits} repartitions of {self._clients.stream} have no answer"
        stream = self.stream
        if stream is not None and stream.repartition is not None:
            return f"a repartition is not finished: {stream.repartition}, layouts {stream.layouts}"
        if stream is not None and not stream.layouts[-1].is_reported:
            return f"cutovers are not known: {stream.layouts}"
        return None
