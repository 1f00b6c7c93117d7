"""The assignor without turns."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tidelog.server.coordinators.groups.assignor import Assignment, assigning
from wire.internal_records.group_records import StreamPartition


def assign(
    subscribed: Mapping[str, Collection[str]],
    partitions: Mapping[str, Collection[StreamPartition]],
    present: Mapping[str, Collection[StreamPartition]],
) -> Assignment:
    """As `assigning`, in one go."""
    work = assigning(subscribed, partitions, present)
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: Assignment = done.value
            return result
