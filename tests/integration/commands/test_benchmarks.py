"""`scripts/bench` on both systems with very little to do: the form of the results, never the speed."""

from __future__ import annotations

import asyncio
import json
import zipfile
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from confluent_kafka import Producer

from scripts.benchmarks.rig import kafka, picture, running
from scripts.benchmarks.rig.comparison import Comparison, Figure
from scripts.benchmarks.rig.kafka import Kafka
from scripts.benchmarks.rig.publisher import Publisher, Task
from scripts.benchmarks.rig.running import Run, burst, new_stream, settled, targets
from scripts.benchmarks.rig.systems import Durability, JetStream, System, cpu_seconds
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
            task = Task(targets=await targets(system, stream, 1), count=100, size=100, rate=1_000.0, window=100)
            async with Publisher(task) as publisher:
                paced = await publisher.go()
            assert (paced.answered, paced.refused) == (100, 0)
            assert 0 < paced.latency_ms(50) <= paced.latency_ms(99)
        if isinstance(system, JetStream):
            batched = await burst(system, 3_000, partitions=3, headers=True, batched=True)
            assert (batched.sent.answered, batched.committed) == (3_000, 3_000)
            run.add(RATE.key, system, batched.rate, way="fast batches")
        assert cpu_seconds(system) > 0

    await run.alternate(measure, tidelog=Durability.ACCEPTED, jetstream=Durability.DURABLE)
    assert order == ["jetstream", "tidelog"]
    assert not list(tmp_path.iterdir())

    document = json.loads(json.dumps(comparison.as_dict()))
    (figure,) = document["figures"]
    assert document["ok"]
    assert document["about"] == ABOUT
    assert figure["key"] == RATE.key
    assert figure["samples"]["tidelog"] == [figure["value"]]
    assert set(figure["samples"]) == {"tidelog", "jetstream", "jetstream, fast batches"}
    assert [figure["strongest"]["value"]] == figure["samples"][figure["strongest"]["name"]]
    again = Comparison.from_dict(document)
    assert again.as_dict() == document
    assert str(again) == str(comparison)
    assert "Tiny ones" in "".join(ET.fromstring(picture.svg(again)).itertext())


async def test_librdkafka_publishes_with_callbacks_without_them_and_at_a_rate() -> None:
    """To the cluster that librdkafka plays itself, for no package brings Kafka's jars."""
    played = Producer({"test.mock.num.brokers": 3, "bootstrap.servers": "unused:1"})
    try:
        brokers = (await asyncio.to_thread(played.list_topics, "t", timeout=LIMIT)).brokers.values()
        servers = ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
        for task, called_back in (
            (Task(targets=[(servers, "t")] * 2, count=2_000, size=100, batched=True), 0),
            (Task(targets=[(servers, "t")] * 2, count=2_000, size=100), 2_000),
            (Task(targets=[(servers, "t")], count=50, size=100, rate=1_000.0), 50),
        ):
            async with Publisher(task, program=Kafka.publisher) as publisher:
                sent = await publisher.go()
            assert (sent.count, sent.answered, sent.refused) == (task.count, called_back, 0)
            assert bool(sent.percentiles_ms) == (task.rate is not None)
    finally:
        del played  # ends the cluster


JAVA = """#!/bin/sh
case "$*" in *StorageTool*) echo "$FORMATS" >&2; exit ${FORMATTED:-0};; esac
echo 'Exception in thread "main": no room'
exit 3
"""


@pytest.mark.parametrize(
    ("formatted", "words"),
    [
        ("1", "Kafka's folder could not be formatted: no such feature"),
        ("0", "node k1 of Kafka ended with 3: Exception"),
    ],
)
async def test_a_node_of_kafka_that_does_not_start_says_why(
    formatted: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(JAVA)
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("FORMATTED", formatted)
    monkeypatch.setenv("FORMATS", "no such feature")
    monkeypatch.setattr(kafka, "_ASK_TIMEOUT", 0.2)
    libs, data = tmp_path / "libs", tmp_path / "data"
    libs.mkdir()
    data.mkdir()
    with zipfile.ZipFile(libs / "kafka-tools-4.3.1.jar", "w") as archive:
        archive.writestr("org/apache/kafka/tools/StorageTool.class", b"")
    cluster = Kafka(libs, data, Durability.DURABLE)
    with pytest.raises(RuntimeError, match=words):
        async with cluster:
            pass
    assert not cluster.pids()
