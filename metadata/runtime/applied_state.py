"""The cluster state as the Raft node drives it, and its two readers.

An observer sees the state as each command left it, so nothing is applied while it still looks. Work that needs the
newest state only is notified by `on_changes`, and runs in turns when the loop is free (`ChangesInTurns`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import NOTHING, Changes, Outcome
from metadata.commands.cluster_state import ClusterState
from metadata.commands.ledger import PARTITION
from metadata.runtime.metadata_ports import StateObserver
from wire.turns import LOOKS, Steps, Turns


class AppliedState:
    """The state machine of the metadata group."""

    def __init__(self, state: ClusterState, on_changes: Callable[[Changes], None], observe: StateObserver) -> None:
        self._state = state
        self._on_changes = on_changes
        self._observe = observe
        self._observing = Turns(observe_nothing(state, NOTHING, from_snapshot=False))
        """Rest of the observer's look at the last command's changes. The state stays as it is until then."""

    def prepare(self, command: bytes | None) -> bool:
        return self._look() and (command is None or self._state.prepare(command))

    def apply(self, command: bytes) -> Outcome:
        self._observing.finish()
        outcome = self._state.apply(command)
        if outcome.changes:
            self._changed(outcome.changes, from_snapshot=False)
        return outcome

    def snapshot(self) -> Steps[bytes]:
        return self._state.encoding()

    def restore(self, snapshot: bytes) -> Steps[None]:
        while not self._look():
            yield LOOKS
        changes = yield from self._state.restoring(snapshot)
        self._changed(changes, from_snapshot=True)

    def _changed(self, changes: Changes, *, from_snapshot: bool) -> None:
        self._observing = Turns(self._observe(self._state, changes, from_snapshot=from_snapshot))
        self._look()
        self._on_changes(changes)

    def _look(self) -> bool:
        """Returns True when the observer has seen everything."""
        return self._observing.turn(LOOKS)


def observe_nothing(state: Cluster, changes: Changes, *, from_snapshot: bool) -> Steps[None]:  # noqa: ARG001
    """A `StateObserver` that ignores all changes."""
    yield from ()


class AppliedWaits:
    """Tasks that wait until the applied state is as they need it."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def wake(self) -> None:
        """Something has been applied."""
        self._changed.set()
        self._changed.clear()

    async def until(self, holds: Callable[[], bool], timeout: float) -> None:
        """Returns when `holds()`, which is called after each change, or after `timeout` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while not holds():
                    await self._changed.wait()


class ChangesInTurns:
    """Changes that wait to be looked at, merged: acting on the newest state needs no command boundaries."""

    def __init__(self) -> None:
        self._left: deque[Changes] = deque()
        """Oldest first."""

    def __bool__(self) -> bool:
        return bool(self._left)

    def add(self, changes: Changes) -> None:
        self._left.append(changes)

    def take(self) -> Changes:
        """Removes and returns the next changes, of as many partitions as a turn looks at."""
        taken: list[Changes] = []
        room = max(1, LOOKS // PARTITION)
        while self._left and room > 0:
            oldest = self._left.popleft()
            part = replace(oldest, partitions=oldest.partitions[:room], gone=oldest.gone[:room])
            taken.append(part)
            rest = Changes(partitions=oldest.partitions[room:], gone=oldest.gone[room:])
            if rest:
                self._left.appendleft(rest)
            room -= max(1, len(part.partitions) + len(part.gone))
        return Changes(
            partitions=tuple(chain.from_iterable(part.partitions for part in taken)),
            gone=tuple(chain.from_iterable(part.gone for part in taken)),
            brokers=tuple(chain.from_iterable(part.brokers for part in taken)),
            controller=any(part.controller for part in taken),
            streams=any(part.streams for part in taken),
            repartitioned=tuple(chain.from_iterable(part.repartitioned for part in taken)),
        )
