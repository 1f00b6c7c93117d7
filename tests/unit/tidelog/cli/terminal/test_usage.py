"""How bytes on disks and traffic are shown."""

from __future__ import annotations

import pytest

from tidelog.cli.terminal.tables import in_words, rates, sizes


@pytest.mark.parametrize(
    ("by_replica", "shown"),
    [
        ({"b1": 1_200_000, "b2": 1_210_000, "b3": 1_200_000}, "3 x 1.2 MB"),
        ({"b1": 5}, "5 B"),
        ({"b1": 1_200_000, "b2": 0, "b3": None}, "b1 1.2 MB\nb2 0 B\nb3 ?"),
        ({}, ""),
    ],
)
def test_sizes_of_the_replicas_of_a_partition(by_replica: dict[str, int | None], shown: str) -> None:
    assert sizes(by_replica.items()) == shown


def test_traffic_that_nobody_tells() -> None:
    assert (in_words(None), rates(None)) == ([], ("?", "?"))
