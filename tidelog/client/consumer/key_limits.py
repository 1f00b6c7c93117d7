"""In which order a reader wants the records of a stream, and how far it may go, where the number of partitions changes.

`KeyOrder` (`wire.layouts`) says where a partition has to wait for which others; here that becomes limits of what is
fetched ahead. A partition waits only when its position has come to its limit. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from enum import Enum

from tidelog.client.base.arguments import bad
from tidelog.client.consumer.fetched_ahead import FetchedAhead
from wire.layouts import NOT_TOLD, KeyOrder


class Order(Enum):
    """What is in order where records are handed out, besides the records of each partition."""

    PARTITION = "partition"
    """Nothing else: partitions that a repartition has made are read beside the others."""
    KEY = "key"
    """The records of each key, also those before and after a repartition."""


def checked_order(text: str) -> Order:
    """Raises BadRequest."""
    try:
        return Order(text)
    except ValueError:
        raise bad(f"order={text!r} is none of 'partition' and 'key'") from None


class KeyLimits:
    """The limits of one reading, whose records are in `ahead`."""

    def __init__(self, ahead: FetchedAhead) -> None:
        self._ahead = ahead
        self._waits: dict[int, tuple[int, Mapping[int, int]]] = {}

    def __bool__(self) -> bool:
        """Some partition has to wait, now or when it gets there."""
        return bool(self._waits)

    def look(self, order: KeyOrder, partitions: Iterable[int], read_to: Callable[[int], int]) -> None:
        """At these partitions. `read_to`: see `KeyOrder.waits_for`."""
        waits = self._waits.copy()
        for partition in partitions:
            wait = order.waits_for(partition, read_to)
            if wait is not None:
                waits[partition] = wait
            else:
                waits.pop(partition, None)
        self._set(waits)

    def forget(self, partition: int) -> None:
        """It is not read any more."""
        self._set({number: wait for number, wait in self._waits.items() if number != partition})

    @property
    def lacks_cutover(self) -> bool:
        """A partition waits for another whose cutover is not known yet."""
        return any(NOT_TOLD in sources.values() for sources in self.waiting().values())

    def waiting(self) -> dict[int, Mapping[int, int]]:
        """By partition of which nothing more can be handed out, those that it waits for, and up to which offset each
        has to be read; NOT_TOLD: that is not known yet."""
        if not self._waits:
            return {}
        positions = self._ahead.positions
        return {
            partition: sources
            for partition, (limit, sources) in self._waits.items()
            if positions.get(partition, -1) >= limit
        }

    def _set(self, waits: dict[int, tuple[int, Mapping[int, int]]]) -> None:
        if waits != self._waits:
            self._waits = waits
            self._ahead.limit({partition: limit for partition, (limit, _) in waits.items()})
