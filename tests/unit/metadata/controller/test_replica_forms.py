"""Replicas as an operator sees them: states, ends, lags, and the pages in which they come."""

from __future__ import annotations

from typing import Any

import pytest

from metadata.controller.replica_forms import asked_partitions, replica_forms
from tests.unit.metadata.brokers import CREATE, running
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import TidelogError
from wire.operations.replica_operations import STREAMS_OF_PAGE, ListReplicasRequest, ReplicaForm
from wire.operations.reports import ReplicaReport
from wire.subjects import Subjects
from wire.turns import Turns
from wire.types import BrokerId, StreamName


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"])
    return cluster


def forms(cluster: Cluster, broker: str = "", **reports: Any) -> dict[str, ReplicaForm]:
    """`reports`: by broker, of partition 0."""
    said: dict[int, dict[BrokerId, ReplicaReport]] = {0: {BrokerId(each): report for each, report in reports.items()}}
    stream = cluster.state.streams[StreamName("s")]
    return {form["broker"]: form for form in Turns(replica_forms(cluster.state, stream, [0], said, broker)).finish()}


def leader(**progress: Any) -> dict[str, Any]:
    return {
        "doing": "leading",
        "leader_epoch": 1,
        "log_start_offset": 0,
        "log_end_offset": 100,
        "high_watermark": 89,
        "bytes_on_disk": 5000,
        "replicas_progress": {"a": {"log_end_offset": 100, "in_sync": True, "lag_bytes": 0, "lag_s": 0.0}, **progress},
    }


def test_lags_are_those_that_the_leader_knows(cluster: Cluster) -> None:
    behind = {"log_end_offset": 90, "in_sync": True, "lag_bytes": 512, "lag_s": 2.5}
    unheard = {"log_end_offset": None, "in_sync": True, "lag_bytes": None, "lag_s": 9.0}
    follower = {"doing": "fetching", "leader_epoch": 1, "log_end_offset": 95, "high_watermark": 80}
    found = forms(cluster, a=leader(b=behind, c=unheard), b=follower)
    a, b, c = found["a"], found["b"], found["c"]
    assert (a["state"], a["leads"], a["lag_records"], a["lag_bytes"], a["lag_s"]) == ("leading", True, 0, 0, 0.0)
    assert (b["state"], b["lag_records"], b["lag_bytes"], b["lag_s"]) == ("in sync", 10, 512, 2.5)
    assert (b["log_end_offset"], b["high_watermark"]) == (95, 80), "its own ends are as it reports them"
    assert (c["state"], c["lag_records"], c["lag_bytes"], c["log_end_offset"]) == ("unknown", None, None, None)
    assert [*forms(cluster, "b", a=leader(b=behind), b=follower)] == ["b"]


@pytest.mark.parametrize(
    ("report", "state", "reason"),
    [
        ({"doing": "fetching"}, "catching up", None),
        ({"doing": "no role"}, "idle", None),
        ({"doing": "idle"}, "catching up", None),
        ({"doing": "opening"}, "opening", None),
        ({"doing": "reconciling"}, "reconciling", None),
        ({"doing": "truncating"}, "reconciling", None),
        ({"doing": "installing"}, "installing", None),
        ({"doing": "diverged", "stopped": "the leader lacks records"}, "diverged", "the leader lacks records"),
        ({"doing": "syncing", "stopped": "MESSAGE_TOO_LARGE"}, "catching up", "MESSAGE_TOO_LARGE"),
        ({"doing": "idle", "failed": "EIO"}, "failed", "EIO"),
        ({"failed": "x", "damage": {"reason": "a bad CRC", "sound_end": 1, "known_end": 2}}, "damaged", "a bad CRC"),
    ],
)
def test_states_of_a_follower_outside_the_isr(
    cluster: Cluster, report: dict[str, Any], state: str, reason: str | None
) -> None:
    cluster.alter(cluster.alteration("a b"))
    found = forms(cluster, a=leader(), c=report)["c"]
    assert (found["state"], found["reason"], found["in_sync"]) == (state, reason, False)


def test_states_that_the_metadata_know(cluster: Cluster) -> None:
    cluster.die("c")
    assert forms(cluster, c={"doing": "fetching"})["c"]["state"] == "offline"
    assert (
        forms(cluster, a={"doing": "starting", "leader_epoch": 1, "replicas_progress": None})["a"]["state"]
        == "starting"
    )
    alone = Cluster("a")
    alone.create("s", ["a"])
    alone.withdraw("a")
    found = forms(alone, a={"doing": "idle"})["a"]
    assert found["state"] == "withdrawn"
    assert found["reason"]


def pages(cluster: Cluster, limit: int, **asked: Any) -> list[list[str]]:
    found: list[list[str]] = []
    after: dict[str, Any] = {}
    while True:
        request = ListReplicasRequest(**asked, **after)
        page, has_more = Turns(asked_partitions(cluster.state, Subjects(), request, limit)).finish()
        found.append([f"{name}/{number}" for name, numbers in page for number in numbers])
        if not has_more:
            return found
        name, numbers = page[-1]
        after = {"after_stream": name, "after_partition": numbers[-1]}


def test_pages_follow_one_another_without_a_gap(cluster: Cluster) -> None:
    cluster.create("t", ["a b", "b a", "c a"])
    cluster.create("u", ["b"])
    everything = ["s/0", "t/0", "t/1", "t/2", "u/0"]
    for limit in range(1, 7):
        found = pages(cluster, limit)
        assert [each for page in found for each in page] == everything
        assert all(len(page) <= limit for page in found)
    assert pages(cluster, 5) == [everything], "nothing follows a page that ends with the last one"
    assert pages(cluster, 9, broker="c") == [["s/0", "t/2"]]
    assert pages(cluster, 9, of_stream="t", partition=1) == [["t/1"]]


def test_a_page_has_few_streams(cluster: Cluster) -> None:
    for number in range(STREAMS_OF_PAGE + 3):
        cluster.create(f"x{number:03}", ["a"])
    assert [len(page) for page in pages(cluster, 100)] == [STREAMS_OF_PAGE, 4]


async def test_replicas_are_listed_with_what_their_brokers_report() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        found = await world.api("replica.list", of_stream="s")
        assert len(found["replicas"]) == 9
        assert found["unanswered"] == []
        assert "next" not in found
        assert [form["state"] for form in found["replicas"] if form["leads"]] == ["leading"] * 3
        assert {form["broker"] for form in (await world.api("replica.list", broker="b"))["replicas"]} == {"b"}
        page = await world.api("replica.list", limit=1)
        assert page["next"] == {"stream": "s", "partition": 0}
        for wrong, said in (
            ({"of_stream": "t"}, "'t' does not exist"),
            ({"of_stream": "s", "partition": 7}, "has no partition 7"),
            ({"broker": "d"}, "broker 'd' is not registered; those that are: a, b, c"),
        ):
            with pytest.raises(TidelogError, match=said):
                await world.api("replica.list", **wrong)


async def test_the_restart_order_is_an_answer_of_the_controller() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        found = (await world.api("cluster.restart_order"))["brokers"]
        assert {verdict["broker"] for verdict in found} == {"a", "b", "c"}
        assert [verdict["broker"] for verdict in (await world.api("cluster.restart_order", broker="b"))["brokers"]] == [
            "b"
        ]
        with pytest.raises(TidelogError, match="broker 'd' is not registered"):
            await world.api("cluster.restart_order", broker="d")
