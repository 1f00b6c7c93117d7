"""What the benchmarks compute: comparisons, the search for a rate, fast batches, Kafka's configuration."""

from __future__ import annotations

import asyncio
import json
import math
import zipfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from scripts.benchmarks import growth
from scripts.benchmarks.bench import DOCS, WORKLOADS
from scripts.benchmarks.plain import STEP, Search
from scripts.benchmarks.rig import kafka, picture
from scripts.benchmarks.rig.comparison import Comparison, Figure, percentile
from scripts.benchmarks.rig.fast_batches import FLOW, OUTSTANDING, BatchFailed, FastBatch, payloads
from scripts.benchmarks.rig.publisher import Sent
from scripts.benchmarks.rig.running import Burst, Run
from scripts.benchmarks.rig.systems import Durability, JetStream, Tidelog

LESS = Figure(key="x/less", what="less", unit="ms", less_is_better=True)
MORE = Figure(key="x/more", what="more", unit="records/s")


def test_each_figure_belongs_to_its_workload_and_stands_once() -> None:
    keys = [figure.key for module in WORKLOADS.values() for figure in module.FIGURES]
    assert len(keys) == len(set(keys))
    for name, module in WORKLOADS.items():
        assert {figure.workload for figure in module.FIGURES} == {name}


def test_the_picture_is_of_the_recorded_run() -> None:
    recorded = Comparison.from_dict(json.loads((DOCS / "benchmark.json").read_text(encoding="utf-8")))
    drawn = (DOCS / "benchmark.svg").read_text(encoding="utf-8")
    assert picture.svg(recorded) == drawn, "scripts/bench --from docs/benchmark.json --picture docs/benchmark.svg"


# ---- comparisons ---------------------------------------------------------------------------------------------------


def compared(figure: Figure, **samples: list[float]) -> Comparison:
    comparison = Comparison()
    comparison.expect([figure])
    for system, values in samples.items():
        comparison.add(figure.key, system, *values)
    return comparison


@pytest.mark.parametrize(
    ("figure", "strongest", "ratio", "times_better"), [(MORE, "kafka", 0.75, 0.75), (LESS, "jetstream", 1.5, 2 / 3)]
)
def test_a_figure_is_judged_against_the_strongest_peer(
    figure: Figure, strongest: str, ratio: float, times_better: float
) -> None:
    comparison = compared(figure, tidelog=[29.0, 30.0, 90.0], jetstream=[20.0], kafka=[40.0])
    (finding,) = comparison.findings
    assert finding.strongest is not None
    assert finding.strongest.name == strongest
    assert finding.ratio == pytest.approx(ratio)
    assert finding.times_better == pytest.approx(times_better)
    assert comparison.behind == [finding]
    assert Comparison.from_dict({**comparison.as_dict(), "about": {}}).as_dict() == comparison.as_dict()


@pytest.mark.parametrize(
    ("tidelog", "peer", "times_better"), [(0.0, 64.0, math.inf), (0.0, 0.0, None), (2.0, 0.0, 0.0)]
)
def test_a_loss_of_nothing_is_ahead_of_any_loss(tidelog: float, peer: float, times_better: float | None) -> None:
    (finding,) = compared(LESS, tidelog=[tidelog], jetstream=[peer]).findings
    assert finding.times_better == times_better


def test_without_a_peer_there_is_no_ratio() -> None:
    comparison = compared(MORE, tidelog=[1.0])
    (finding,) = comparison.findings
    assert (finding.strongest, finding.ratio, finding.times_better) == (None, None, None)
    assert not comparison.behind
    assert "| more | records/s | 1 | - |" in comparison.markdown()


def test_a_run_of_its_own_shows_each_figure_at_once_and_judges_it(capsys: pytest.CaptureFixture[str]) -> None:
    comparison = Comparison()
    comparison.record(
        Figure(key="log/read", what="read", unit="MiB/s", ratio_at_least=0.7), 60.0, 70.0, 80.0, dd=[100.0]
    )
    assert capsys.readouterr().err == "  read: 70 MiB/s, dd 100\n"
    assert comparison.ok
    comparison.record(Figure(key="log/open", what="open", unit="s", at_most=2.0, note="4 segments"), 3.0)
    assert capsys.readouterr().err == "  open: 3 s, 4 segments\n"
    assert not comparison.ok


def test_percentiles_are_interpolated() -> None:
    assert percentile([7.0], 99.9) == 7.0
    assert percentile([*map(float, range(101))], 50) == 50.0
    assert percentile([*map(float, range(101))], 99.9) == pytest.approx(99.9)


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


# ---- the search for the highest rate without loss --------------------------------------------------------------------


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


# ---- fast batches --------------------------------------------------------------------------------------------------


def ack(sequence: int, flow: int) -> bytes:
    return b'{"type":"ack","seq":%d,"msgs":%d}' % (sequence, flow)


def send(batch: FastBatch) -> int:
    """Sends what there is room for, and returns how many messages that were."""
    room = batch.room
    batch.sent += room
    return room


def test_the_reply_subject_says_what_a_message_does_to_its_batch() -> None:
    batch = FastBatch("_INBOX.bench.7", 3)
    assert [batch.reply(sequence) for sequence in (1, 2, 3)] == [
        b"_INBOX.bench.7.%d.fail.1.0.$FI" % FLOW,
        b"_INBOX.bench.7.%d.fail.2.1.$FI" % FLOW,
        b"_INBOX.bench.7.%d.fail.3.2.$FI" % FLOW,
    ]
    assert FastBatch("i", 1).reply(1) == b"i.%d.fail.1.2.$FI" % FLOW, "it begins and commits"
    batch.sent = 2
    assert batch.ping == b"_INBOX.bench.7.%d.fail.2.4.$FI" % FLOW, "a ping names the newest message that was sent"


def test_a_batch_waits_for_its_first_acknowledgement_and_then_keeps_to_the_flow() -> None:
    batch = FastBatch("i", 1_000)
    assert (send(batch), send(batch)) == (1, 0)
    batch.on_answer(ack(1, 10))
    assert send(batch) == 10 * OUTSTANDING
    assert send(batch) == 0
    batch.on_answer(ack(11, 20))
    assert batch.sent + send(batch) == 11 + 20 * OUTSTANDING
    batch.on_answer(ack(5, 1))
    assert (batch.acknowledged, send(batch)) == (11, 0), "a late one takes nothing back, and the server slows down"


def test_a_lost_acknowledgement_is_covered_by_the_next_one() -> None:
    batch = FastBatch("i", 31)
    send(batch)
    batch.on_answer(ack(1, 10))
    send(batch)
    batch.on_answer(ack(21, 10))
    assert send(batch) == 10
    assert batch.sent == 31
    batch.on_answer(b'{"stream":"s","seq":99,"batch":"i","count":31}')
    assert batch.is_committed
    assert batch.acknowledged == 31


def test_a_batch_of_one_message_is_answered_like_any_publish() -> None:
    batch = FastBatch("i", 1)
    send(batch)
    batch.on_answer(b'{"stream":"s","seq":4}')
    assert batch.is_committed


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "needs allow_batched"),
        (b'{"type":"gap","last_seq":3,"seq":5}', "messages 3 to 4 of the batch were lost"),
        (
            b'{"type":"err","seq":2,"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"}}',
            "wrong",
        ),
        (b'{"error":{"code":400,"err_code":10205,"description":"not enabled"},"stream":"s","seq":0}', "not enabled"),
        (b'{"stream":"s","seq":9,"batch":"i","count":9}', "ended with 9 of 10 messages"),
    ],
)
def test_a_batch_that_is_not_stored_whole_fails(answer: bytes, words: str) -> None:
    batch = FastBatch("i", 10)
    send(batch)
    with pytest.raises(BatchFailed, match=words):
        batch.on_answer(answer)
    assert not batch.is_committed


def test_messages_are_read_whole_however_they_arrive() -> None:
    stream = b"PING\r\nMSG i.1 1 2\r\n{}\r\n+OK\r\n"
    stream += b"HMSG i.2 2 16 16\r\nNATS/1.0 503\r\n\r\n\r\nMSG i.3 1 out.4 4\r\n\r\nab\r\n"
    wanted = [(b"i.1", b"{}"), (b"i.2", b""), (b"i.3", b"\r\nab")]
    assert payloads(stream) == (wanted, b"")
    for cut in range(len(stream)):
        first, rest = payloads(stream[:cut])
        second, rest = payloads(rest + stream[cut:])
        assert (first + second, rest) == (wanted, b""), cut


def test_an_error_of_the_connection_is_raised() -> None:
    with pytest.raises(ConnectionError, match="Maximum Payload"):
        payloads(b"-ERR 'Maximum Payload Violation'\r\n")


# ---- Kafka ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("durability", "is_synced"), [(Durability.ACCEPTED, False), (Durability.DURABLE, True)])
def test_the_configuration_of_a_node(durability: Durability, is_synced: bool) -> None:
    brokers, controllers = [f"127.0.0.1:{port}" for port in (1, 2, 3)], [f"127.0.0.1:{port}" for port in (4, 5, 6)]
    text = kafka.server_properties(2, brokers, controllers, Path("/data/k2"), durability)
    settings = dict(line.split("=", 1) for line in text.splitlines())
    assert settings["node.id"] == "2"
    assert settings["process.roles"] == "broker,controller"
    assert settings["controller.quorum.voters"] == "1@127.0.0.1:4,2@127.0.0.1:5,3@127.0.0.1:6"
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:2,CONTROLLER://127.0.0.1:5"
    assert settings["advertised.listeners"] == "PLAINTEXT://127.0.0.1:2"
    assert settings["log.dirs"] == "/data/k2"
    assert (settings["default.replication.factor"], settings["min.insync.replicas"]) == ("3", "2")
    assert ("log.flush.interval.messages" in settings) == is_synced


def jar(folder: Path, name: str, *classes: str) -> None:
    with zipfile.ZipFile(folder / name, "w") as archive:
        for each in classes:
            archive.writestr(f"{each.replace('.', '/')}.class", b"")


@pytest.mark.parametrize("tool", kafka.STORAGE_TOOLS)
def test_the_tool_that_formats_folders_is_found_where_it_is(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "ensure_java", lambda: None)  # it would set JAVA_HOME for all tests
    jar(tmp_path, "kafka_2.13-4.3.1.jar", kafka.SERVER)
    jar(tmp_path, "kafka-tools-4.3.1.jar", tool)
    assert kafka.storage_tool(tmp_path) == tool
    assert kafka.why_not(tmp_path) is None


def test_what_is_missing_for_kafka_is_said_in_a_sentence(tmp_path: Path) -> None:
    assert "--kafka-libs DIR" in str(kafka.why_not(None))
    jar(tmp_path, "kafka-clients-4.3.0.jar", "org.apache.kafka.clients.producer.KafkaProducer")
    assert f"no jar in {tmp_path} has kafka.Kafka" in str(kafka.why_not(tmp_path))
    with pytest.raises(LookupError, match="StorageTool"):
        kafka.storage_tool(tmp_path)


def test_a_node_runs_all_jars_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/java")
    command = kafka.java_command(tmp_path, kafka.SERVER, "k1.properties")
    assert command == ["/java/bin/java", *kafka.HEAP, "-cp", f"{tmp_path}/*", "kafka.Kafka", "k1.properties"]


# ---- growth --------------------------------------------------------------------------------------------------------


class _Status:
    """A Tidelog cluster of which only the status is asked."""

    def __init__(self, answer: Callable[[], Awaitable[object]]) -> None:
        self.system = Tidelog.__new__(Tidelog)
        self.system.client = cast(Any, SimpleNamespace(cluster_status=answer))

    async def slowest(self, meanwhile: float) -> float:
        async with growth._answers(self.system) as answers:
            await asyncio.sleep(meanwhile)
        return answers.slowest


async def test_a_status_that_is_still_asked_for_at_the_end_counts_by_its_age() -> None:
    assert await _Status(asyncio.Event().wait).slowest(0.05) >= 0.05
    assert await _Status(asyncio.Event().wait).slowest(0.0) > 0


async def test_a_status_that_fails_at_once_is_no_fast_answer() -> None:
    async def fails() -> None:
        raise TimeoutError

    assert await _Status(fails).slowest(0.01) >= growth.ANSWER_LIMIT


async def test_a_status_that_was_answered_counts_by_its_time() -> None:
    assert 0 < await _Status(lambda: asyncio.sleep(0)).slowest(0.01) < growth.ANSWER_LIMIT


def test_after_a_kill_jetstream_is_asked_by_a_connection_to_another_server() -> None:
    system = JetStream.__new__(JetStream)
    system._servers = {name: cast(Any, SimpleNamespace(url=f"nats://{name}")) for name in "abc"}
    assert system.urls_without("b") == ["nats://a", "nats://c"]
    assert system.urls_without("") == system.urls
