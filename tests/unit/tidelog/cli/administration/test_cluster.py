"""`tidelog cluster status`: what it shows of a broker's disk."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli.administration.cluster import _disk


@pytest.mark.parametrize(
    ("room", "free", "shown"),
    [
        ("ample", 35_100_000, "35.1 MB"),
        ("ample", 79_900_000_000, "79.9 GB"),
        ("full", 1_822_720, "[red]full[/] 1.8 MB, keeps 2.1 MB"),
    ],
)
def test_free_bytes_are_shown_in_a_unit_that_fits(room: str, free: int, shown: str) -> None:
    space = {"room": room, "free_bytes": free, "total_bytes": 10 * free, "min_free_bytes": 2_097_152}
    broker: Any = {"space": space, "disk": {"hangs": False, "waited_s": 0.0}}
    assert _disk(broker) == shown
