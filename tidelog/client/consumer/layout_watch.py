"""What a reading knows of the layouts of its stream (`wire.layouts`), and when it has to ask again.

Metadata are pushed. They are asked for when a batch has a later partitioning version than is known, and now and then,
since no batch tells that a partition drains, and pushes may not arrive. The caller asks, and hands answers to `learn`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from tidelog.client.cluster.metadata_cache import StreamMetadata
from tidelog.client.consumer.key_limits import KeyLimits, Order
from wire.layouts import KeyOrder

_log = logging.getLogger(__name__)

LOOK_EVERY = 15.0
"""Seconds between two looks at the metadata, which are pushed as well."""
LOOK_SOON = 0.25
"""The same, while a partition waits for another whose cutover is not known."""
VERSION_TIMEOUT = 5.0
"""Seconds for which metadata may not know the version of a batch. The broker that tells them may be that far behind."""
DOUBT = 10.0
"""Seconds for which older metadata than are known are not believed."""
_LOOK_AGAIN = 0.1


class LayoutWatch:
    def __init__(self, stream: str, order: Order) -> None:
        self._stream = stream
        self._order = order
        self.known: StreamMetadata | None = None
        """The newest metadata that are believed."""
        self.key_order: KeyOrder | None = None
        """By these."""
        self._doubted_since: float | None = None
        """Since then, metadata were older than those that are known."""
        self._heard = 0
        """Metadata that came."""
        self._patience = VERSION_TIMEOUT
        self._handed_out: dict[int, int] = {}
        """By partition, the highest version that was not known and did not keep its batches back."""

    def learn(self, told: StreamMetadata) -> bool:
        """Whether layouts or partitions have changed. A broker that lags behind would have them forgotten again, so
        that older metadata are believed only when no others come."""
        now = asyncio.get_running_loop().time()
        known = self.known
        self._heard += 1
        if known is not None and told.routing_generation < known.routing_generation:
            self._doubted_since = now if self._doubted_since is None else self._doubted_since
            if now < self._doubted_since + DOUBT:
                return False
        self._doubted_since = None
        self.known = told
        if known is not None and (known.layouts, known.partitions.keys()) == (told.layouts, told.partitions.keys()):
            return False
        self.key_order = told.key_order
        return True

    @property
    def has_changed(self) -> bool:
        """The stream has had another layout before."""
        return self.known is not None and len(self.known.layouts) > 1

    def cutovers(self, partition: int) -> Sequence[int]:
        """The cutovers of the partition, where others may wait for it."""
        return () if self.key_order is None else self.key_order.ends(partition)

    def knows(self, partition: int, version: int) -> bool:
        """Batches of the partition that have this version can be handed out, and give no reason to ask."""
        if self.known is None or self.key_order is None or version <= self._handed_out.get(partition, 0):
            return True
        if self._order is Order.PARTITION:
            return version <= self.known.partitioning_version
        return version <= self.key_order.known_version(partition)

    async def watch(self, look: Callable[[], object], limits: KeyLimits) -> None:
        """Asks again and again."""
        clock = asyncio.get_running_loop().time
        looked_at = clock()
        while True:
            await asyncio.sleep(LOOK_SOON)
            if clock() >= looked_at + LOOK_EVERY or limits.lacks_cutover:
                looked_at = clock()
                look()

    async def hear_of(self, partition: int, version: int, look: Callable[[], Awaitable[object]]) -> None:
        """A batch has this version, which is not known. `look` asks for the metadata. In the order of keys, returns
        when they know it, or have not for a while: somebody may have invented it."""
        if self._order is Order.PARTITION:
            self._handed_out[partition] = version
            await look()
            return
        clock, before, until = asyncio.get_running_loop().time, self._heard, None
        while not self.knows(partition, version):
            await look()
            if until is None and self._heard > before:
                until = clock() + self._patience
            if self.knows(partition, version):
                return
            if until is not None and clock() >= until:
                break
            await asyncio.sleep(_LOOK_AGAIN)
        else:
            return
        self._patience = 0.0
        self._handed_out[partition] = version
        _log.warning(
            "%s/%d has a batch of partitioning version %d, which the metadata do not know; it is handed out, and its"
            " keys may be out of order; see `tidelog stream describe %s`",
            self._stream, partition, version, self._stream,
        )  # fmt: skip
