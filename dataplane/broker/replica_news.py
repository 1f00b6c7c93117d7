"""What all replicas of a broker are told: its connection, the room on its disk, a disk that hangs.

A role may answer with a request to another broker, and 20,000 of them take a second. So replicas are told in turns, one
change after the other. Nothing rests on their being told at once:

    connection   a leader that has not heard of a loss proposes to shrink its ISR for lags of `replica_max_lag_time`
                 alone, which is much longer; one that has not heard that it is back proposes nothing. Acknowledgements
                 depend on the lease, not on the connection
    room         appends ask `SpaceWatch`, which is the first to know
    disk         a disk has hung for `replica_max_lag_time` when anybody is told

What is told is what changed, and not the newest state: a follower whose append found no room asks for the records again
once it has heard that there was none, and then that there is some.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from dataplane.broker.replica import Replica
from wire.turns import Steps, in_turns
from wire.types import PartitionKey

_log = logging.getLogger(__name__)

OF_REPLICA: Final = 4
"""Looks that a replica takes which is told."""


class ReplicaNews:
    """`replicas`: of the broker. One that is added later knows."""

    def __init__(self, loop: asyncio.AbstractEventLoop, replicas: Mapping[PartitionKey, Replica]) -> None:
        self._loop = loop
        self._replicas = replicas
        self._untold: deque[tuple[Sequence[Replica], Callable[[Replica], None]]] = deque()
        """Oldest change first. Changes are seconds apart."""
        self._telling: asyncio.Task[None] | None = None

    def tell(self, change: Callable[[Replica], None]) -> None:
        """Calls `change` for each replica."""
        self._untold.append(([*self._replicas.values()], change))
        if self._telling is None:
            self._telling = self._loop.create_task(in_turns(self._tell_all()))

    def close(self) -> None:
        """Tells nothing more."""
        if self._telling is not None:
            self._telling.cancel()

    def _tell_all(self) -> Steps[None]:
        while self._untold:
            replicas, change = self._untold.popleft()
            for replica in replicas:
                try:
                    change(replica)
                except Exception:  # noqa: BLE001 - it is logged, and the others are told
                    _log.exception("partition %s met a bug", replica.key)
                yield OF_REPLICA
        self._telling = None
