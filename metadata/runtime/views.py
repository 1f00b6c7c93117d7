"""Views of the partitions that this broker replicates, delivered to the data plane when they change.

A command may change very many of them, so they are handed over in turns. A view is made when it is handed over, of the
state that is applied then: a role never receives an earlier state after a later one. In this order:

    held        partitions that this broker believes to lead: another may lead them, or it leads in a new LeaderEpoch
    gained      partitions that it leads now, and whose followers wait for it
    new         partitions of which it had no view: it opens their logs first. Leaders and followers come in one order,
                which is that of the other brokers as well, so that the replicas of a partition begin at about the same
                time
    followed    all others
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from metadata.runtime.driver_context import MetadataContext
from wire.turns import LOOKS
from wire.types import Generation, PartitionGone, PartitionKey, PartitionView

HANDED_OVER: Final = 20
"""Cost of a view handed to the data plane, in looks: its role takes a step, and may begin a task."""


class Told(NamedTuple):
    """The generations up to which the roles of this broker have been notified."""

    ended: Generation
    """Every role that does not lead by this generation has stopped leading."""
    begun: Generation
    """And every role that leads by this generation has been notified of it."""


class ViewDelivery:
    """Delivers the views, in turns."""

    def __init__(self, context: MetadataContext) -> None:
        self._context = context
        self._delivered: dict[PartitionKey, PartitionView] = {}
        self._walk: Iterator[list[PartitionKey]] | None = None
        """The rest of a walk through all partitions, for the first views."""
        self._changed: deque[PartitionKey] = deque()
        """Partitions that were not looked at yet."""
        self._held: deque[PartitionKey] = deque()
        self._gained: deque[PartitionKey] = deque()
        self._new: deque[PartitionKey] = deque()
        self._followed: deque[PartitionKey] = deque()

    def changed(self, keys: Iterable[PartitionKey]) -> None:
        """These partitions may have other views."""
        self._changed.extend(keys)

    @property
    def has_told_leaders(self) -> bool:
        """Every role that does not lead, or leads in another LeaderEpoch, by the applied state has been notified."""
        return self._walk is None and not self._changed and not self._held

    @property
    def has_begun_leaders(self) -> bool:
        """And every role that leads by the applied state has been notified of it."""
        return self.has_told_leaders and not self._gained and not self._new

    @property
    def is_done(self) -> bool:
        return self.has_begun_leaders and not self._followed

    def begin(self) -> None:
        """Begins with the first views: those of all partitions that this broker replicates."""
        self._walk = self._context.state.walk(lambda partition: self._context.broker_id in partition.replicas)

    # Keeps R29.
    def deliver(self) -> None:
        """Hands over one turn's partitions whose view differs from the one delivered last."""
        changes = self._turn()
        if changes:
            self._context.port.on_partitions(changes)

    def _turn(self) -> list[PartitionView | PartitionGone]:
        looks = 0
        while self._walk is not None and looks < LOOKS:
            keys = next(self._walk, None)
            if keys is None:
                self._walk = None
            else:
                looks += 1 + len(keys)
                self._changed.extend(keys)
        while self._changed and looks < LOOKS:
            looks += 1
            self._sort(self._changed.popleft())
        changes: list[PartitionView | PartitionGone] = []
        while looks < LOOKS and not self._changed:
            waiting = self._held or self._gained or self._new or self._followed
            if not waiting:
                break
            change = self._change(waiting.popleft())
            looks += 1 if change is None else HANDED_OVER
            if change is not None:
                changes.append(change)
        return changes

    def _sort(self, key: PartitionKey) -> None:
        known, partition = self._delivered.get(key), self._context.state.partition(key)
        if known is not None and known.leader == self._context.broker_id:
            self._held.append(key)
        elif known is None:
            if partition is not None and self._context.broker_id in partition.replicas:
                self._new.append(key)
        elif partition is not None and partition.leader == self._context.broker_id:
            self._gained.append(key)
        else:
            self._followed.append(key)

    def _change(self, key: PartitionKey) -> PartitionView | PartitionGone | None:
        """Returns None when the data plane has this view already."""
        view = self._context.state.view(key)
        if view is not None and self._context.broker_id in view.replicas:
            if self._delivered.get(key) == view:
                return None
            self._delivered[key] = view
            return view
        return PartitionGone(key) if self._delivered.pop(key, None) is not None else None
