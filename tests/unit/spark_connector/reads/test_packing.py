from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_connector.reads.log_port import OffsetRange
from spark_connector.reads.plans import LARGE_TASK_RECORDS, TASK_RECORDS, pack
from wire.types import Incarnation, Offset, StreamName


def ranges_of(*sizes: int) -> list[OffsetRange]:
    life = Incarnation(1)
    return [
        OffsetRange(StreamName("s"), life, partition, life, Offset(7), Offset(7 + size))
        for partition, size in enumerate(sizes)
    ]


def sizes(tasks: list[tuple[OffsetRange, ...]]) -> list[int]:
    return [sum(map(len, task)) for task in tasks]


@pytest.mark.parametrize(
    ("held", "least", "expected"),
    [
        ([40] * 128, 2, [64 * 40] * 2),
        # Much to read: a task for each.
        ([TASK_RECORDS] * 5, 2, [TASK_RECORDS] * 5),
        # More than the slots have use for: larger tasks, though not too large.
        ([TASK_RECORDS] * 64, 2, [4 * TASK_RECORDS] * 16),
        ([LARGE_TASK_RECORDS // 2] * 64, 2, [LARGE_TASK_RECORDS] * 32),
        # A large one and many small ones.
        ([10_000, *[100] * 20], 2, [10_000, 2_000]),
        ([5, 6], 8, [5, 6]),
        ([], 4, []),
    ],
)
def test_a_task_has_something_to_do(held: list[int], least: int, expected: list[int]) -> None:
    assert sizes(pack(ranges_of(*held), least)) == expected


def test_no_task_reads_more_than_the_user_allows() -> None:
    tasks = pack(ranges_of(50, 10, 10, 10, 10, 25), 1, 25)
    assert sorted(sizes(tasks)) == [20, 20, 25, 50]


@given(
    st.lists(st.integers(1, 3 * TASK_RECORDS), max_size=40),
    st.integers(1, 20),
    st.none() | st.integers(1, 2 * TASK_RECORDS),
)
def test_every_range_is_in_one_task(held: list[int], least: int, most: int | None) -> None:
    given_ranges = ranges_of(*held)
    tasks = pack(given_ranges, least, most)
    assert sorted((each for task in tasks for each in task), key=lambda each: each.partition) == given_ranges
    assert min(least, len(held)) <= len(tasks) <= max(len(held), 0)
    assert all(tasks), "a task has nothing to read"
    assert pack(given_ranges, least, most) == tasks
    if most is not None:
        assert all(len(task) == 1 or sum(map(len, task)) <= most for task in tasks)
