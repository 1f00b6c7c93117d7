"""The demo's check finds lost, repeated and reordered records."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scripts.demos.demo_ledger import Ledger, ReadBack

KEYS = [b"UA", b"AA", b"UA", b"AA"]
VALUES = [b"row 0", b"row 1", b"row 2", b"row 3"]

Delivered = list[tuple[int, int, bytes | None, bytes | None]]
"""Partition, offset, key, value; UA goes to partition 0, AA to 1."""


def delivered() -> Delivered:
    return [(row % 2, row // 2, KEYS[row], VALUES[row]) for row in range(4)]


@pytest.fixture
def ledger() -> Ledger:
    ledger = Ledger(KEYS, VALUES, partitions=2)
    for row in range(4):
        ledger.acknowledge(row, row % 2, row // 2, now=float(row))
    return ledger


def problems(ledger: Ledger, records: Delivered) -> list[str]:
    found = ReadBack(ledger)
    for partition, offset, key, value in records:
        found.add(partition, [offset], [key], [value])
    assert found.count == len(records)
    return found.problems()


def test_exactly_the_acknowledged_records_are_good(ledger: Ledger) -> None:
    assert problems(ledger, delivered()) == []


def test_a_record_whose_outcome_is_unknown_may_be_there_or_not() -> None:
    ledger = Ledger(KEYS, VALUES, partitions=2)
    for row in range(3):
        ledger.acknowledge(row, row % 2, row // 2, now=0.0)
    ledger.fail(TimeoutError())
    assert ledger.settled == 4
    assert problems(ledger, delivered()) == []
    assert problems(ledger, delivered()[:3]) == []


def lost(records: Delivered) -> None:
    del records[1]


def repeated(records: Delivered) -> None:
    records.append((0, 2, KEYS[0], VALUES[0]))


def misplaced(records: Delivered) -> None:
    records[3] = (1, 5, KEYS[3], VALUES[3])


def foreign_value(records: Delivered) -> None:
    records.append((0, 2, b"UA", b"row 4"))


def foreign_key(records: Delivered) -> None:
    records[3] = (1, 1, b"UA", VALUES[3])


def without_key(records: Delivered) -> None:
    records.append((0, 2, None, b"bare"))


@pytest.mark.parametrize(
    ("break_it", "kinds"),
    [
        (lost, ["lost"]),
        (repeated, ["repeated"]),
        (misplaced, ["misplaced"]),
        (foreign_value, ["foreign"]),
        (foreign_key, ["foreign", "lost"]),
        (without_key, ["foreign"]),
    ],
)
def test_each_kind_of_harm_is_named(ledger: Ledger, break_it: Callable[[Delivered], None], kinds: list[str]) -> None:
    records = delivered()
    break_it(records)
    assert [problem.split()[0] for problem in problems(ledger, records)] == kinds


def test_records_of_a_key_in_another_order_than_sent_are_seen_even_where_the_acknowledgements_agree() -> None:
    ledger = Ledger(KEYS, VALUES, partitions=2)
    for row, offset in ((2, 0), (0, 1), (1, 0), (3, 1)):
        ledger.acknowledge(row, row % 2, offset, now=0.0)
    swapped: Delivered = [(0, 0, KEYS[2], VALUES[2]), (0, 1, KEYS[0], VALUES[0]), *delivered()[1::2]]
    assert problems(ledger, swapped) == ["reordered 1, the first: row 0 of UA came after row 2"]


def test_a_consumer_that_goes_back_is_seen(ledger: Ledger) -> None:
    records = delivered()
    found = problems(ledger, [*records, records[0]])
    assert [problem.split()[0] for problem in found] == ["reordered", "repeated"]


def test_the_longest_pause_is_between_acknowledgements_of_one_partition() -> None:
    ledger = Ledger(KEYS * 2, VALUES * 2, partitions=2)
    times = [(0, 1.0), (1, 1.1), (0, 3.0), (1, 3.1), (0, 3.5), (1, 9.0), (0, 8.0)]
    for row, (partition, now) in enumerate(times):
        ledger.acknowledge(row, partition, row, now)
    assert ledger.busiest_partition() == 0
    # A pause may begin before `since`: records that were under way at a kill belong to it.
    assert ledger.longest_pause(0, since=2.5, until=4.0) == 2.0
    assert ledger.longest_pause(0, since=2.5, until=8.0) == 4.5
    assert ledger.longest_pause(0, since=3.5, until=7.0) is None
