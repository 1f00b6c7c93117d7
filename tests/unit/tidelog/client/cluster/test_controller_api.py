"""Requests to the controller, and streams as an operator makes them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

import tidelog
from tests.fake_nats import FakeTransport
from tests.unit.tidelog.client.fake_broker import Cluster, api_subject, blank, make
from tidelog.client.base.exceptions import (
    BadConfig,
    BadName,
    BadReplicationFactor,
    BadRequest,
    BadSubject,
    Closed,
    NoServer,
    StreamExists,
    UnknownStream,
    WrongCluster,
    typed,
)
from tidelog.client.client import connect
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.messaging.transport import Message
from wire.operations.api_operations import (
    ClusterStatus,
    LayoutForm,
    MovedPartition,
    PartitionDescription,
    StreamDescription,
    StreamList,
    StreamSummary,
    UncleanElection,
)
from wire.protobuf.metadata_pb2 import ClusterClaim


@pytest.fixture
async def cluster() -> Cluster:
    transport, broker, client = make()
    broker.create("s", 2)
    return transport, broker, client


def answer(transport: FakeTransport, name: str, *answers: dict[str, Any] | None) -> list[dict[str, Any]]:
    """`<ns>.api.<name>` gives these answers in turn, None = none at all. Returns the requests as they come in."""
    left = list(answers)
    seen: list[dict[str, Any]] = []

    def handle(message: Message) -> None:
        seen.append(json.loads(message.data))
        given = left.pop(0) if len(left) > 1 else left[0]
        if given is not None:
            assert message.reply is not None
            transport.publish(message.reply, [json.dumps(given).encode()])

    transport.listen(api_subject(name), handle)
    return seen


def refusal(code: Code, text: str = "refused") -> dict[str, Any]:
    return {"error": TidelogError(code, text).to_json()}


async def test_no_nats_server_names_the_url_and_the_remedy() -> None:
    with pytest.raises(NoServer, match=r"nats://127\.0\.0\.1:1 .*tidelog up"):
        await connect("nats://127.0.0.1:1", connect_timeout=0.5)
    with pytest.raises(BadConfig, match="is no URL and no list of URLs"):
        await connect(" , ")
    with pytest.raises(BadName, match="namespace"):
        await connect("nats://127.0.0.1:1", namespace="a.b")


async def test_nats_without_a_broker_says_so(cluster: Cluster) -> None:
    _, _, client = cluster
    with pytest.raises(NoServer, match=r"no Tidelog broker answers at nats://fake:4222 .*tidelog server"):
        await client.cluster_status()


async def test_each_of_several_calls_says_that_no_broker_is_connected(cluster: Cluster) -> None:
    transport, _, client = cluster
    transport.listen(api_subject("cluster.id"), None)
    calls = (client.cluster_status(), client.streams(), client.describe("s"))
    found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(error) for error in found] == [NoServer] * 3
    assert all("no broker is connected" in str(error) for error in found), found


async def test_brokers_without_a_controller_are_named(cluster: Cluster) -> None:
    """Two of three voters are dead, say: the third one is connected, and no broker serves the API."""
    transport, broker, client = cluster

    def claim(message: Message) -> None:
        assert message.reply is not None
        for name in ("b3", "b1"):
            transport.publish(message.reply, [ClusterClaim(broker=name, cluster_id="c").SerializeToString()])

    transport.listen(broker.subjects.presence(), claim)
    for name in ("cluster.id", "cluster.status"):
        transport.listen(api_subject(name), None)
    with pytest.raises(NoServer, match=r"has no controller: only b1, b3 are connected, and a majority of the voters"):
        await client.cluster_status()


async def test_a_controller_that_is_being_elected_is_no_missing_broker(cluster: Cluster) -> None:
    transport, broker, client = cluster

    def claim(message: Message) -> None:
        assert message.reply is not None
        for name in ("b3", "b1", "b2"):
            told = ClusterClaim(broker=name, cluster_id="c", has_quorum=name != "b2")
            transport.publish(message.reply, [told.SerializeToString()])

    transport.listen(broker.subjects.presence(), claim)
    for name in ("cluster.id", "cluster.status"):
        transport.listen(api_subject(name), None)
    with pytest.raises(NoServer, match=r"no controller at the moment: b1 and b3 reached a majority .* too busy"):
        await client.cluster_status()


async def test_why_a_call_is_repeated_is_known_while_it_is(cluster: Cluster) -> None:
    transport, _, client = cluster
    assert client.delay() is None
    transport.listen(api_subject("cluster.id"), None)
    asked = asyncio.ensure_future(client.cluster_status())
    async with asyncio.timeout(30):
        while (waits := client.delay()) is None:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.001)
    assert waits[0] >= 0
    assert waits[1] == "no controller answers cluster.status"
    with pytest.raises(NoServer):
        await asked
    assert client.delay() is None


async def test_streams_and_partitions_come_by_pages(cluster: Cluster) -> None:
    transport, _, client = cluster
    pages = [blank(StreamList, streams=[blank(StreamSummary, name=name)], unanswered=[name]) for name in "ab"]
    pages[0]["next"] = "a"
    seen = answer(transport, "stream.list", *pages)
    found = await client.streams_with_usage()
    assert ([stream["name"] for stream in found["streams"]], found["unanswered"]) == (["a", "b"], ["a", "b"])
    assert [(request["after"], request["limit"]) for request in seen] == [("", 250), ("a", 250)]

    def page(number: int, **more: Any) -> dict[str, Any]:
        partitions = [blank(PartitionDescription, partition=number)]
        return blank(StreamDescription, name="s", partitions=partitions, bytes_on_disk=number, **more)

    # Between two pages the stream is made anew: all of it is asked for once more.
    seen = answer(
        transport,
        "stream.describe",
        page(0, next=1, incarnation=5),
        page(1, incarnation=7),
        page(0, next=1, incarnation=7),
        page(1, next=2, incarnation=7),
        page(2, incarnation=7, refusals={"b": "its disk"}),
    )
    described = await client.describe("s")
    assert [each["partition"] for each in described["partitions"]] == [0, 1, 2]
    assert (described["bytes_on_disk"], described["refusals"]) == (3, {"b": "its disk"})
    assert "next" not in described
    assert [request["first"] for request in seen] == [0, 1, 0, 1, 2]


async def test_a_last_attempt_that_the_deadline_cuts_short_does_not_hide_that_nobody_listens(cluster: Cluster) -> None:
    transport, _, client = cluster
    transport.listen(api_subject("cluster.id"), None)
    swallowed: list[Message] = []
    asyncio.get_running_loop().call_later(0.35, transport.listen, api_subject("cluster.id"), swallowed.append)
    with pytest.raises(NoServer, match="no broker is connected"):
        await client.cluster_status()
    assert swallowed, "the last attempt was answered"


async def test_a_lost_connection_says_so(cluster: Cluster) -> None:
    transport, _, client = cluster
    transport.lose()
    with pytest.raises(NoServer, match="connection to NATS at nats://fake:4222 is lost"):
        await client.streams()


async def test_a_change_of_controller_is_waited_for(cluster: Cluster) -> None:
    transport, _, client = cluster
    seen = answer(transport, "cluster.status", refusal(Code.NOT_CONTROLLER), blank(ClusterStatus, controller="b2"))
    assert (await client.cluster_status())["controller"] == "b2"
    assert len(seen) == 2


async def test_missing_brokers_are_not_asked_for_many_times_a_second(cluster: Cluster) -> None:
    transport, _, client = cluster
    seen = answer(transport, "stream.create", refusal(Code.NOT_ENOUGH_BROKERS, "b3 is dead"))
    with pytest.raises(BadReplicationFactor, match="within 1 s: b3 is dead"):
        await client.create_stream("s", partitions=2)
    assert len(seen) <= 4, "pauses of 0.25 s and 0.5 s at least, and of 1 s from then on"


async def test_brokers_on_their_way_are_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidelog.client.cluster.controller_api._FEW_BROKERS_FIRST_S", 0.05)
    transport, _, client = cluster
    few = refusal(Code.NOT_ENOUGH_BROKERS, "b3 has not started")
    seen = answer(transport, "stream.create", few, few, blank(StreamDescription))
    await client.create_stream("s", partitions=2)
    assert len(seen) == 3
    answer(transport, "stream.create", few)
    with pytest.raises(BadReplicationFactor, match=r"stream\.create could not .* within 1 s: b3 has not started"):
        await client.create_stream("s", partitions=2)


def two_clusters(transport: FakeTransport, name: str, *clusters: str) -> list[str | None]:
    """Each of these clusters answers `<ns>.api.<name>`, with its id. Returns the cluster that each request names."""
    asked: list[str | None] = []

    def handle(message: Message) -> None:
        wanted = (message.headers or {}).get(CLUSTER_HEADER)
        asked.append(wanted)
        assert message.reply is not None
        for cluster in clusters:
            form: dict[str, Any] = {
                "cluster_id": cluster,
                "streams": [blank(StreamSummary, name=cluster)],
                "unanswered": [],
            }
            headers = {CLUSTER_HEADER: cluster}
            if wanted not in (None, cluster):
                error = TidelogError(Code.WRONG_CLUSTER, f"this is {cluster}")
                form, headers = {"error": error.to_json()}, {**error.to_headers(), **headers}
            transport.publish(message.reply, [json.dumps(form).encode()], headers=headers)

    transport.listen(api_subject(name), handle)
    return asked


async def test_two_clusters_in_one_namespace_are_an_error(cluster: Cluster) -> None:
    transport, _, client = cluster
    for name in ("cluster.id", "stream.list"):
        two_clusters(transport, name, "x", "y")
    with pytest.raises(WrongCluster, match=r"clusters x and y both answer in namespace 'tidelog'.*stop one"):
        await client.streams()
    two_clusters(transport, "cluster.id", "y")
    assert [stream["name"] for stream in await client.streams()] == ["y"]
    assert transport.inboxes == {}


async def test_a_client_stays_with_the_cluster_that_it_began_with(cluster: Cluster) -> None:
    transport, _, client = cluster
    two_clusters(transport, "cluster.id", "x")
    asked = two_clusters(transport, "stream.list", "y", "x")
    for _ in range(3):
        assert [stream["name"] for stream in await client.streams()] == ["x"]
    assert asked == ["x"] * 3
    two_clusters(transport, "stream.list", "y")
    with pytest.raises(NoServer, match=r"cluster x, with which this client began, .* but cluster y did; connect again"):
        await client.streams()


async def test_refusals_become_their_types(cluster: Cluster) -> None:
    transport, _, client = cluster
    answer(transport, "stream.delete", refusal(Code.UNKNOWN_STREAM, "there is no stream 'x'"))
    with pytest.raises(UnknownStream, match="there is no stream 'x'") as caught:
        await client.delete_stream("x")
    assert caught.value.code is Code.UNKNOWN_STREAM
    assert isinstance(caught.value, tidelog.TidelogError)
    with pytest.raises(StreamExists):
        await client.create_stream("s")


async def test_a_stream_that_our_own_lost_request_made_is_no_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, _, client = cluster
    monkeypatch.setattr("tidelog.client.cluster.controller_api._ATTEMPT_TIMEOUT", 0.3)
    answer(transport, "stream.create", None, refusal(Code.STREAM_EXISTS))
    two = [blank(PartitionDescription, partition=number) for number in range(2)]
    ours = blank(
        StreamDescription,
        name="n",
        subject="n",
        partitions=two,
        partitioner="crc32c",
        layouts=[blank(LayoutForm, partitions=2)],
    )
    answer(transport, "stream.describe", ours)
    assert (await client.create_stream("n", partitions=2))["subject"] == "n"
    answer(transport, "stream.create", None, refusal(Code.STREAM_EXISTS))
    with pytest.raises(StreamExists):
        await client.create_stream("n", partitions=3)
    answer(transport, "stream.create", None, refusal(Code.STREAM_EXISTS))
    with pytest.raises(StreamExists):
        await client.create_stream("n", partitions=2, partitioner="murmur2")
    answer(transport, "stream.delete", None, refusal(Code.UNKNOWN_STREAM))
    await client.delete_stream("n")


async def test_a_move_that_our_own_lost_request_made_is_no_error(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, _, client = cluster
    monkeypatch.setattr("tidelog.client.cluster.controller_api._ATTEMPT_TIMEOUT", 0.3)
    seen = answer(transport, "partition.move_leader", blank(MovedPartition, leader="b2"))
    assert (await client.move_leader("s", 0, "b2"))["leader"] == "b2"
    assert seen == [{"stream": "s", "partition": 0, "broker": "b2"}]
    answer(transport, "partition.move_leader", None, refusal(Code.BAD_REQUEST, "b2 leads s/0 already"))
    answer(
        transport, "stream.describe", blank(StreamDescription, partitions=[blank(PartitionDescription, leader="b2")])
    )
    assert (await client.move_leader("s", 0, "b2"))["leader"] == "b2"
    answer(transport, "partition.move_leader", None, refusal(Code.BAD_REQUEST, "b3 is not in the ISR"))
    with pytest.raises(BadRequest, match="b3 is not in the ISR"):
        await client.move_leader("s", 0, "b3")
    answer(transport, "partition.move_leader", refusal(Code.BAD_REQUEST, "b2 leads s/0 already"))
    with pytest.raises(BadRequest, match="already"):
        await client.move_leader("s", 0, "b2")


async def test_a_move_that_does_not_come_about_is_not_asked_for_again(cluster: Cluster) -> None:
    transport, _, client = cluster
    seen = answer(transport, "partition.move_leader", refusal(Code.LEADER_NOT_MOVED, "b2 did not get to its end"))
    with pytest.raises(tidelog.LeaderNotMoved, match="did not get to its end"):
        await client.move_leader("s", 0, "b2")
    assert len(seen) == 1


async def test_a_loss_is_accepted_by_name_only(cluster: Cluster) -> None:
    transport, _, client = cluster
    seen = answer(transport, "partition.unclean_elect", blank(UncleanElection))
    await client.elect_unclean("s", 0, "b2")
    await client.elect_unclean("s", 0, "b2", accept_loss=True)
    assert [body["accept_loss"] for body in seen] == [False, True]


async def test_impossible_requests_are_refused_before_they_are_sent(cluster: Cluster) -> None:
    transport, _, client = cluster
    seen = answer(transport, "stream.create", blank(StreamDescription))
    with pytest.raises(BadName):
        await client.create_stream("a.b")
    with pytest.raises(BadSubject):
        await client.create_stream("a", subject="tidelog.x")
    with pytest.raises(BadConfig, match="unknown stream setting 'colour'"):
        await client.create_stream("a", config={"colour": "red"})
    with pytest.raises(BadRequest, match=r"partitions=True \(bool\) is not a whole number; give one from 1 to 10000"):
        await client.create_stream("a", partitions=True)
    with pytest.raises(BadRequest, match=r"stream\.create's replication_factor is true, not a whole number or null"):
        await client.create_stream("a", replication_factor=True)
    assert seen == []
    await client.create_stream("a", config={"min_isr": 2, "reply_acks": False})
    assert seen[0] == {
        "name": "a",
        "subject": "a",
        "partitions": 1,
        "replication_factor": None,
        "config": {"min_isr": "2", "reply_acks": "false"},
        "partitioner": None,
    }


async def test_metadata_requests_that_come_together_share_an_answer(cluster: Cluster) -> None:
    transport, broker, client = cluster
    seen = answer(transport, "metadata", broker._api["metadata"]({"stream": "s"}))
    layouts = await asyncio.gather(*(client.metadata("s") for _ in range(20)))
    assert len(seen) == 1
    assert list(layouts[0].partitions) == [0, 1]


async def test_a_closed_client_says_so(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client:
        pass
    with pytest.raises(Closed):
        await client.streams()
    with pytest.raises(Closed):
        client.producer("s")


def test_programs_tell_the_outcomes_of_a_repartition_by_class() -> None:
    """A partition that drains will be retired: to a program that has chosen it both are one thing."""
    classes = {code: type(typed(TidelogError(code, "text"))) for code in Code}
    assert classes[Code.PARTITION_RETIRED] is classes[Code.PARTITION_DRAINING] is tidelog.PartitionRetired
    assert classes[Code.STALE_PARTITIONING] is tidelog.StalePartitioning


def test_every_error_class_belongs_to_one_code_and_is_public() -> None:
    for code in Code:
        error = typed(TidelogError(code, "text", {"a": "b"}))
        assert (error.code, error.message, error.details) == (code, "text", {"a": "b"})
        assert getattr(tidelog, type(error).__name__) is type(error)
        assert typed(error) is error
