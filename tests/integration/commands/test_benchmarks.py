"""`scripts/bench` on both systems with very little to do: the form of the results, never the speed."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from scripts.benchmarks import routing
from scripts.benchmarks.plain import STEP, Search
from scripts.benchmarks.rig import picture, running
from scripts.benchmarks.rig.comparison import Comparison, Figure
from scripts.benchmarks.rig.publisher import Publisher, Sent, Task
from scripts.benchmarks.rig.running import Burst, Run, burst, new_stream, settled, targets
from scripts.benchmarks.rig.systems import Durability, System, cpu_seconds
from tests.integration.rig.waiting import LIMIT

RATE = Figure(key="plain/tiny", what="tiny", unit="records/s", ratio_at_least=1e-9, drawn_as="Tiny ones")
ABOUT = {"machine": "here", "date": "today", "rounds": 1, "versions": {"nats-server": "", "nats-py": "", "python": ""}}


@pytest.fixture
def comparison() -> Comparison:
    comparison = Comparison({**ABOUT})
    comparison.expect([RATE])
    return comparison


async def test_a_burst_and_requests_reach_all_replicas_of_both_systems(
    tmp_path: Path, comparison: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "SETTLE", LIMIT)  # what a slow machine stores late is not lost
    run = Run(rounds=1, quick=True, folder=tmp_path, comparison=comparison)
    order = []

    async def measure(system: System) -> None:
        order.append(system.name)
        plain = await burst(system, 3_000, partitions=3, headers=True)
        assert (plain.committed, plain.lost) == (3_000, 0)
        run.add(RATE.key, system, plain.rate)
        async with new_stream(system) as stream:
            task = Task(targets=await targets(system, stream, 1), count=500, size=100, window=100)
            async with Publisher(task) as publisher:
                sent = await publisher.go()
            assert (sent.answered, sent.refused, sent.bytes) == (500, 0, 50_000)
            assert (await settled(system, stream, 500))[0] == 500
        assert cpu_seconds(system) > 0

    await run.alternate(measure, tidelog=Durability.ACCEPTED, jetstream=Durability.DURABLE)
    assert order == ["jetstream", "tidelog"]
    assert not list(tmp_path.iterdir())

    document = json.loads(json.dumps(comparison.as_dict()))
    (figure,) = document["figures"]
    assert document["ok"]
    assert document["about"] == ABOUT
    assert figure["key"] == RATE.key
    assert figure["tidelog"]["samples"] == [figure["tidelog"]["value"]]
    assert figure["jetstream"]["samples"] == [figure["jetstream"]["value"]]
    again = Comparison.from_dict(document)
    assert again.as_dict() == document
    assert str(again) == str(comparison)
    assert "Tiny ones" in "".join(ET.fromstring(picture.svg(again)).itertext())


@pytest.mark.parametrize("capacity", [9_000, 130_000, 2_000_000])
async def test_the_search_ends_near_the_highest_rate_without_loss(capacity: int, tmp_path: Path) -> None:
    async def store(rate: float) -> Burst:
        """Published rate of a system that keeps up to 1.2 times its limit, and then loses records."""
        count = 1_000_000
        lost = 0 if rate <= 1.2 * capacity else count // 2
        sent = Sent(count=count, bytes=0, seconds=count / rate, cpu_seconds=0.0, answered=0, refused=0)
        return Burst(sent=sent, committed=count - lost, seconds=count / min(rate, capacity), cpu={})

    search = Search(Run(rounds=1, quick=False, folder=tmp_path, comparison=Comparison()))
    for found in (await search.highest(store), await search.highest(store)):
        assert 1.2 * capacity / (STEP * 1.01) <= found.published <= 1.2 * capacity * 1.001
        assert found.committed <= capacity * 1.001


async def test_the_search_goes_on_where_a_system_falls_behind_without_losing_anything(tmp_path: Path) -> None:
    """As JetStream does: 100,000 records/s took it longer than 150,000, and it lost neither."""

    async def store(rate: float) -> Burst:
        count = 1_000_000
        sent = Sent(count=count, bytes=0, seconds=count / rate, cpu_seconds=0.0, answered=0, refused=0)
        committed = count if rate <= 150_000 else count // 2
        return Burst(
            sent=sent, committed=committed, seconds=count / (rate * (0.7 if rate == 100_000 else 0.85)), cpu={}
        )

    found = await Search(Run(rounds=1, quick=False, folder=tmp_path, comparison=Comparison())).highest(store)
    assert 150_000 / (STEP * 1.01) <= found.published <= 150_000


@pytest.mark.parametrize(
    ("limits", "ok"),
    [
        ({"ratio_at_least": 2.0}, True),
        ({"ratio_at_least": 2.1}, False),
        ({"ratio_at_most": 1.9}, False),
        ({"at_least": 20.0, "at_most": 20.0}, True),
        ({"at_most": 19.0, "ratio_at_least": 1.0}, False),
        ({"statistic": "max", "at_most": 29.0}, False),
        ({}, None),
    ],
)
def test_targets_judge_the_statistic_or_its_ratio(limits: dict[str, Any], ok: bool | None) -> None:
    comparison = Comparison()
    comparison.expect([Figure(key="x/y", what="y", unit="s", **limits)])
    comparison.add("x/y", "tidelog", 10.0, 20.0, 30.0)
    comparison.add("x/y", "jetstream", 9.0, 10.0, 11.0)
    assert comparison.findings[0].ok is ok
    assert comparison.ok is (ok is not False)


def test_pushes_are_counted_at_both_ends(tmp_path: Path) -> None:
    few = argparse.Namespace(clients=3, streams=4, changes=10, kills=0, dir=tmp_path)
    report = routing.run(few)
    values = [round(figure.value, 3) for figure in report.figures]
    assert values[:2] == [1, 3], "one message of each change, to each client"
    assert values[4:6] == [4 * (1 + routing.OTHERS), 12 * (1 + routing.OTHERS)]
    assert not list(tmp_path.iterdir())
