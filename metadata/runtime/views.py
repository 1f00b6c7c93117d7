"""Views of the partitions that this broker replicates, delivered to the data plane when they change."""

from __future__ import annotations

from collections.abc import Iterable

from metadata.runtime.context import MetadataContext
from wire.types import PartitionGone, PartitionKey, PartitionView


class ViewDelivery:
    def __init__(self, context: MetadataContext) -> None:
        self._context = context
        self._delivered: dict[PartitionKey, PartitionView] = {}

    def deliver(self, keys: Iterable[PartitionKey], *, first: bool = False) -> None:
        """Hand over the partitions whose view differs from the one delivered last. `first`: call the data
        plane even if there is none."""
        changes: list[PartitionView | PartitionGone] = []
        for key in sorted({*keys}):
            view = self._context.state.view(key)
            if view is not None and self._context.broker_id in view.replicas:
                if self._delivered.get(key) != view:
                    self._delivered[key] = view
                    changes.append(view)
            elif self._delivered.pop(key, None) is not None:
                changes.append(PartitionGone(key))
        if changes or first:
            self._context.port.on_partitions(changes)
