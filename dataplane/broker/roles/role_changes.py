"""The steps of replicas that open logs, prepare them and begin roles: AT_ONCE at a time, over all replicas of a broker.

A change of the metadata may concern ten thousand partitions, and each step wakes a dozen tasks: when NATS knows a
subscription, when a thread has synced a file. If all of them were under way together, one pass of the event loop would
run all that are awake, for seconds, and Raft and the lease would miss their deadlines. A replica that has begun comes
before others that have not, so that partitions serve one after the other:

    BeginRole    its log is open and prepared
    PrepareLog   its log is open
    OpenLog      in the order in which the views came

The end of a role waits for nothing.

`pending` and `done` also tell the controller that this broker is taking up roles, and goes on doing so (R27).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from dataplane.replica.replica_state_machine import BeginRole, OpenLog, PrepareLog
from wire.types import PartitionKey

if TYPE_CHECKING:
    from dataplane.broker.roles.broker_context import BrokerContext

AT_ONCE: Final = 32

Gated: TypeAlias = OpenLog | PrepareLog | BeginRole

_ORDER: Final = (BeginRole, PrepareLog, OpenLog)


class RoleChanges:
    """Begins steps in their order. A replica has one step at most."""

    def __init__(self) -> None:
        self._waiting: dict[type[Gated], dict[PartitionKey, Callable[[], asyncio.Task[None]]]] = {
            kind: {} for kind in _ORDER
        }
        """Steps that wait, by kind; those of one kind begin in the order in which they came."""
        self._under_way = 0
        self.done = 0
        """Number of steps that have ended in this process."""

    @classmethod
    def of_broker(cls, context: BrokerContext) -> RoleChanges:  # noqa: ARG003 - as all of its kind
        return cls()

    @property
    def pending(self) -> int:
        """Number of steps that wait or are under way."""
        return self._under_way + sum(map(len, self._waiting.values()))

    def begin(self, key: PartitionKey, step: Gated, start: Callable[[], asyncio.Task[None]]) -> None:
        """Calls `start` now, or when other steps have ended."""
        self._waiting[type(step)][key] = start
        self._go_on()

    def give_up(self, key: PartitionKey) -> bool:
        """Returns whether a step of that replica waited, which does not begin any more."""
        return any(waiting.pop(key, None) is not None for waiting in self._waiting.values())

    def _go_on(self) -> None:
        for waiting in self._waiting.values():
            while waiting and self._under_way < AT_ONCE:
                start = waiting.pop(next(iter(waiting)))
                self._under_way += 1
                start().add_done_callback(self._on_done)

    def _on_done(self, _: asyncio.Task[None]) -> None:
        self._under_way -= 1
        self.done += 1
        self._go_on()
