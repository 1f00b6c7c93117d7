"""Which ranges a Spark task reads.

A task costs Spark 10 to 40 ms of its own, so a micro-batch of a few thousand records in 128 partitions must not be 128
tasks; and a range that holds much must not wait behind others while slots are idle. So ranges are put together until a
task has `TASK_RECORDS` to read, and more once there are `TASKS_OF_LEAST` times `least` tasks, up to
`LARGE_TASK_RECORDS`; into no fewer tasks than `least`, large ranges with small ones.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Sequence

from spark_connector.log_port import OffsetRange

TASK_RECORDS = 16_384
"""Offsets that are worth a task of their own: reading them takes about as long as Spark needs to run a task."""
TASKS_OF_LEAST = 8
"""So many for each slot that is known of: for a cluster with more slots than that, and to balance unequal tasks."""
LARGE_TASK_RECORDS = 262_144
"""Offsets that take so long to read that Spark's own time for a task hardly counts."""


def pack(ranges: Sequence[OffsetRange], least: int, most_records: int | None = None) -> list[tuple[OffsetRange, ...]]:
    """The ranges of each task, every range in one of them, in no fewer tasks than `least` where there are as many
    ranges. `most_records`: of a task; a range that has more is a task of its own.

    Depends on its arguments alone: a micro-batch that runs again has the same tasks.
    """
    total = sum(len(each) for each in ranges)
    few, many = -(-total // LARGE_TASK_RECORDS), -(-total // TASK_RECORDS)
    tasks = min(len(ranges), max(least, few, min(many, TASKS_OF_LEAST * least)))
    # The largest first, each to the task that has least to read.
    loads = [(0, number) for number in range(tasks)]
    packed: list[list[OffsetRange]] = [[] for _ in range(tasks)]
    for each in sorted(ranges, key=len, reverse=True):
        load, number = loads[0]
        if packed[number] and most_records is not None and load + len(each) > most_records:
            heapq.heappush(loads, (len(each), len(packed)))
            packed.append([each])
        else:
            heapq.heapreplace(loads, (load + len(each), number))
            packed[number].append(each)
    in_order = [tuple(sorted(task, key=lambda each: (each.stream, each.partition, each.start))) for task in packed]
    return sorted(in_order, key=lambda task: (task[0].stream, task[0].partition, task[0].start))


def default_tasks() -> int:
    """`least` where the user gives none. Spark does not tell a data source how many slots there are, so it is the
    processors of this machine."""
    return os.cpu_count() or 1
