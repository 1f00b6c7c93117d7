"""The report to an operator before he accepts the loss of damaged records."""

from __future__ import annotations

import pytest

from metadata.controller.descriptions import loss_form
from tests.unit.metadata.cluster_bench import Cluster
from wire.operations.api_operations import Damage
from wire.operations.reports import ReplicaReport
from wire.types import BrokerId


def told(others: str, damage: Damage) -> str:
    cluster = Cluster("a", "b")
    cluster.create(assignments=[f"a {others}".strip()])
    partition = cluster.state.partition(cluster.key())
    assert partition is not None
    held: dict[BrokerId, ReplicaReport] = {
        BrokerId("a"): {"log_end_offset": 100, "high_watermark": 99, "damage": damage}
    }
    return str(loss_form(cluster.state, cluster.key(), partition, BrokerId("a"), held)["loss"])


@pytest.mark.parametrize(
    ("others", "sound", "known", "sentence"),
    [
        (
            "",
            10,
            100,
            "records from offset 10 to 99 are given up; what a has of it is kept in its quarantine (a bit was flipped)",
        ),
        (
            "b",
            10,
            100,
            (
                "records from offset 10 to 99, and those from 100 on, which only b (isr, alive) may hold, are given up;"
                " what a has of it is kept in its quarantine (a bit was flipped)"
            ),
        ),
        ("", 100, 100, "the log of a is sound up to its end, 100; no record of it is given up"),
        ("", None, None, "the log of a is damaged, and it is still reading how far it is sound; ask again in a moment"),
    ],
)
def test_the_offsets_that_are_given_up(others: str, sound: int | None, known: int | None, sentence: str) -> None:
    assert told(others, {"reason": "a bit was flipped", "sound_end": sound, "known_end": known}) == sentence
