"""The loss that an unclean election reports, and the broker whose report on a partition counts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from metadata.controller.descriptions import (
    cluster_form,
    describe_form,
    find_stream,
    list_form,
    listed_names,
    loss_form,
    report_of_leader,
)
from tests.turns import finished
from tests.unit.metadata.cluster_bench import Cluster
from wire.operations import api_operations as op
from wire.operations.api_operations import Loss, Traffic
from wire.operations.reports import ReplicaReport, ReportedProgress, UsageReport
from wire.subjects import Subjects
from wire.types import BrokerId

SUBJECTS = Subjects()


def loss(cluster: Cluster, chosen: str, **held: ReplicaReport) -> Loss:
    known = {BrokerId(replica): said for replica, said in held.items()}
    return loss_form(cluster.state, cluster.key(), cluster.partition(), BrokerId(chosen), known)


def three() -> Cluster:
    """c is out of sync, b eligible, a was alone in the ISR; a and b are dead."""
    cluster = Cluster("a", "b", "c")
    cluster.create(config={"min_isr": "2"})
    cluster.alter(cluster.alteration("a b"))
    cluster.alter(cluster.alteration("a"))
    cluster.die("a", "b")
    assert cluster.shown() == "- | a | b | @2"
    return cluster


def listing(
    cluster: Cluster,
    usage: Mapping[BrokerId, UsageReport] | None = None,
    *,
    internal: bool = False,
    after: str = "",
    limit: int = 0,
) -> op.StreamList:
    names, is_last = listed_names(cluster.state, SUBJECTS, internal=internal, after=after, limit=limit)
    return finished(list_form(cluster.state, names, is_last=is_last, usage=usage))


def test_it_names_replicas_that_may_hold_more_and_from_which_offset_on() -> None:
    form = loss(three(), "c", c={"log_start_offset": 2, "log_end_offset": 10, "high_watermark": 9})
    assert form["others"] == [
        {"broker": "a", "alive": False, "state": "isr", "log_end_offset": None},
        {"broker": "b", "alive": False, "state": "eligible", "log_end_offset": None},
    ]
    assert (form["state"], form["log_start_offset"], form["log_end_offset"]) == ("out of sync", 2, 10)
    assert (
        form["loss"] == "records from offset 10 on, which only a (isr, dead), b (eligible, dead) may hold, are given up"
    )


def test_records_that_the_chosen_replica_may_hold_in_another_version_are_named() -> None:
    form = loss(three(), "c", c={"log_end_offset": 10, "high_watermark": 6})
    assert form["loss"].endswith(
        "; of those from offset 7 to 9 c holds versions that may differ from what was committed"
    )


def test_a_live_replica_that_reaches_further_shows() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    cluster.alter(cluster.alteration("a"))
    cluster.withdraw("a")
    form = loss(
        cluster, "b", a={"log_end_offset": 12, "high_watermark": 11}, b={"log_end_offset": 3, "high_watermark": 2}
    )
    assert "only a (withdrawn, alive, log to offset 12) may hold" in form["loss"]


def test_a_replica_that_does_not_tell_its_end_may_lose_anything() -> None:
    form = loss(three(), "c")
    assert form["log_end_offset"] is None
    assert form["loss"].startswith("c does not tell what it holds")
    assert "a (isr, dead), b (eligible, dead)" in form["loss"]


@pytest.mark.parametrize(
    ("broker", "replicas_progress", "epochs_off", "counts"),
    [
        ("a", {}, 0, True),
        ("a", None, 0, False),  # it does not serve yet, or has no lease
        ("a", {}, -1, False),  # it has not heard that it leads anew
        ("a", {}, 1, False),
        ("b", {}, 0, False),
    ],
)
def test_only_the_report_of_a_serving_leader_counts(
    broker: str, replicas_progress: dict[str, ReportedProgress] | None, epochs_off: int, counts: bool
) -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    (stream,) = cluster.state.streams.values()
    partition = cluster.partition()
    assert partition.leader == "a"
    said: ReplicaReport = {"leader_epoch": partition.leader_epoch + epochs_off, "replicas_progress": replicas_progress}
    assert report_of_leader(stream.partitions[0], {BrokerId(broker): said}) == (said if counts else {})


def test_the_cluster_status_names_partitions_in_trouble_and_the_brokers_that_they_wait_for() -> None:
    form = finished(cluster_form(three().state, SUBJECTS, {}, {}))
    assert (form["offline_partitions"], form["under_replicated"]) == (1, 1)
    assert form["offline"] == [{"partition": "s/0", "waits_for": ["a", "b"], "other_folder": [], "reasons": []}]
    assert form["under_replicated_partitions"] == ["s/0"]


@pytest.mark.parametrize(
    ("subject", "users", "internal"), [("tidelog.__audit", (1, 1), (1, 2)), ("__audit", (2, 3), (0, 0))]
)
def test_tidelogs_own_streams_are_counted_apart_and_listed_when_asked_for(
    subject: str, users: tuple[int, int], internal: tuple[int, int]
) -> None:
    cluster = Cluster("a")
    cluster.create("__x", ["a"])
    cluster.create("__audit", ["a", "a"], subject=subject)
    form = finished(cluster_form(cluster.state, SUBJECTS, {}, {}))
    assert (form["streams"], form["partitions"]) == users
    assert (form["internal_streams"], form["internal_partitions"]) == internal
    broker = form["brokers"][0]
    assert (broker["leaders"], broker["replicas"]) == (users[1], users[1])
    assert (broker["internal_leaders"], broker["internal_replicas"]) == (internal[1], internal[1])
    listed = [stream["name"] for stream in listing(cluster)["streams"]]
    assert listed == ["__audit", "__x"][2 - users[0] :]
    everything = listing(cluster, internal=True)["streams"]
    assert [stream["name"] for stream in everything] == ["__audit", "__x"]


def test_an_offline_partition_does_not_wait_for_an_unsound_replica() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"])
    cluster.die("b")
    cluster.register("a", unsound=[cluster.key()])
    assert finished(cluster_form(cluster.state, SUBJECTS, {}, {}))["offline"] == [
        {
            "partition": "s/0",
            "waits_for": [],
            "other_folder": [],
            "reasons": ["the replica's log is unsound"],
        }
    ]


def test_an_offline_partition_waits_for_the_folder_that_its_broker_had() -> None:
    cluster = Cluster("a")
    cluster.create(assignments=["a"])
    cluster.register("a", folder_same=False)
    offline = finished(cluster_form(cluster.state, SUBJECTS, {}, {}))["offline"]
    assert offline == [{"partition": "s/0", "waits_for": ["a"], "other_folder": ["a"], "reasons": []}]


def test_a_loss_without_another_replica_is_told_without_a_hole() -> None:
    cluster = Cluster("a")
    cluster.create(assignments=["a"])
    held: ReplicaReport = {"log_start_offset": 0, "log_end_offset": 5, "high_watermark": 4}
    assert loss(cluster, "a", a=held)["loss"] == "records from offset 5 on, which no other replica holds, are given up"
    assert loss(cluster, "a")["loss"] == (
        "a does not tell what it holds: records that it does not hold are given up, however many"
    )
    cluster.register("a", folder_same=False)
    assert loss(cluster, "a", a=held)["loss"] == (
        "records from offset 5 on, which only the earlier data folder of a may hold, are given up"
    )


def test_the_cluster_status_names_no_more_than_a_page_holds() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b"] * 150)
    cluster.die("a", "b")
    form = finished(cluster_form(cluster.state, SUBJECTS, {}, {}))
    assert (form["offline_partitions"], len(form["offline"])) == (150, 100)


def _traffic(records: int) -> Traffic:
    return {
        "records_in": records, "bytes_in": 10 * records, "records_out": 1, "bytes_out": 2,
        "records_in_per_s": 0.5, "bytes_in_per_s": 5.0, "records_out_per_s": 0.0, "bytes_out_per_s": 0.0,
    }  # fmt: skip


def test_what_streams_take_up_is_the_sum_of_their_replicas() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create(assignments=["a b", "b a"])
    usage: dict[BrokerId, UsageReport] = {
        BrokerId("a"): {"streams": {"s": {"bytes_on_disk": {"0": 100, "1": 20}, "traffic": _traffic(3)}}},
        BrokerId("c"): {"streams": {"other": {"bytes_on_disk": {"0": 7}, "traffic": _traffic(9)}}},
    }
    found = listing(cluster, usage)
    assert found["unanswered"] == ["b"], "c holds nothing of it"
    (stream,) = found["streams"]
    assert (stream["bytes_on_disk"], stream["traffic"]) == (120, _traffic(3))
    usage[BrokerId("b")] = {"streams": {"s": {"bytes_on_disk": {"0": 90, "1": 30}, "traffic": _traffic(4)}}}
    (stream,) = listing(cluster, usage)["streams"]
    assert stream["bytes_on_disk"] == 240
    assert (told := stream["traffic"]) is not None
    assert (told["records_in"], told["bytes_in"], told["records_in_per_s"], told["bytes_out"]) == (7, 70, 1.0, 4)
    (silent,) = listing(cluster, {})["streams"]
    assert (silent["bytes_on_disk"], silent["traffic"]) == (None, None)


def test_what_a_stream_takes_up_is_told_by_replica_partition_and_stream() -> None:
    cluster = Cluster("a", "b")
    cluster.create(assignments=["a b", "b a"])
    stream = find_stream(cluster.state, "s")
    said: dict[int, dict[BrokerId, ReplicaReport]] = {
        0: {
            BrokerId("a"): {"bytes_on_disk": 100, "traffic": _traffic(3)},
            BrokerId("b"): {"bytes_on_disk": 90, "traffic": _traffic(0)},
        },
        1: {BrokerId("b"): {"bytes_on_disk": 5, "traffic": _traffic(4)}},
    }
    found = finished(describe_form(stream, said, {}, numbers=[0, 1]))
    assert [partition["bytes_on_disk"] for partition in found["partitions"]] == [190, 5]
    assert found["partitions"][1]["replicas_progress"]["a"]["bytes_on_disk"] is None
    assert found["partitions"][1]["replicas_progress"]["b"]["traffic"] == _traffic(4)
    assert found["bytes_on_disk"] == 195
    assert (told := found["traffic"]) is not None
    assert (told["records_in"], told["records_out"]) == (7, 3)
    nothing = finished(describe_form(stream, {}, {}, numbers=[0, 1]))
    assert (nothing["bytes_on_disk"], nothing["traffic"], nothing["partitions"][0]["bytes_on_disk"]) == (None,) * 3


def test_streams_are_listed_by_pages() -> None:
    cluster = Cluster("a")
    for name in "dbeca":
        cluster.create(name, ["a"], subject=name)
    pages = [listing(cluster, limit=2)]
    while (after := pages[-1].get("next")) is not None:
        pages.append(listing(cluster, after=after, limit=2))
    assert [[stream["name"] for stream in page["streams"]] for page in pages] == [["a", "b"], ["c", "d"], ["e"]]
    assert "next" not in listing(cluster)
    assert listing(cluster, after="e", limit=2) == {"streams": [], "unanswered": []}


def test_a_page_of_partitions_names_the_one_that_follows() -> None:
    cluster = Cluster("a")
    cluster.create(assignments=["a"] * 4)
    stream = find_stream(cluster.state, "s")
    page = finished(describe_form(stream, {}, {}, numbers=[1, 2], following=3))
    assert ([each["partition"] for each in page["partitions"]], page["next"]) == ([1, 2], 3)
