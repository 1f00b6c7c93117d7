"""What Liftbridge's clients hear of the partitions of a stream that is repartitioned, and where they may publish."""

from __future__ import annotations

from typing import Any, cast

import pytest
from grpc import StatusCode

from metadata.controller.descriptions import routes_form
from metadata.runtime.applied_state import AppliedWaits
from tests.turns import finished
from tests.unit.metadata.cluster_bench import CLUSTER_ID, Cluster
from tidelog.client.cluster.metadata_cache import StreamMetadata
from tidelog.server.liftbridge.consumer_calls import GroupCalls
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.gateway_producers import Place
from tidelog.server.liftbridge.grpc_statuses import Refused, refusal
from tidelog.server.liftbridge.metadata_calls import MetadataCalls
from tidelog.server.liftbridge.publish_calls import PublishCalls
from wire.errors import Code, TidelogError
from wire.protobuf import liftbridge_pb2 as pb
from wire.subjects import Subjects
from wire.types import BrokerId, StreamName

STREAM = StreamName("s")


class Controller:
    """Stands for the client of a broker, and what it is told."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.asked = 0

    async def cluster_status(self) -> dict[str, Any]:
        return {"brokers": []}

    async def describe(self, name: str) -> dict[str, Any]:
        stream = self._cluster.state.streams[StreamName(name)]
        partitions = [
            {"partition": number, "state": partition.state.value, "high_watermark": None, "log_end_offset": None}
            for number, partition in stream.partitions.items()
        ]
        return {"partitions": partitions, "layouts": [{"partitions": each.partitions} for each in stream.layouts]}

    async def metadata(self, name: str) -> StreamMetadata:
        self.asked += 1
        state = self._cluster.state
        return StreamMetadata.of(finished(routes_form(state, state.streams[StreamName(name)])), CLUSTER_ID, {})


class Producer:
    def __init__(self, partition_count: int) -> None:
        self.partition_count = partition_count


class World:
    """A broker whose state is what the controller has told it, unless it is `behind`."""

    def __init__(self) -> None:
        self.cluster = Cluster("a")
        self.cluster.create(assignments=["a"] * 3)
        self.controller = Controller(self.cluster)
        self.behind: Cluster | None = None
        transport: Any = type("Transport", (), {"max_payload": 1 << 20})()
        self.gateway = Gateway(
            BrokerId("a"),
            cast("Any", self.controller),
            transport,
            Subjects(),
            lambda: (self.behind or self.cluster).state,
            "127.0.0.1:9292",
            AppliedWaits().until,
        )
        self.metadata = MetadataCalls(self.gateway, cast("GroupCalls", NoGroups()))
        self.publishing = PublishCalls(self.gateway, cast("Any", None))

    async def told(self) -> dict[int, bool]:
        """By partition, whether it is read-only."""
        answer = await self.metadata.fetch(pb.FetchMetadataRequest(streams=["s"]))
        return {number: each.readonly for number, each in answer.streamMetadata[0].partitions.items()}

    async def target(self, partition: int, *, known: int, expected: int = 0) -> int:
        """Where a record for `partition` goes, by a producer that knows `known` partitions."""
        layout = StreamMetadata.of(
            finished(routes_form(self.cluster.state, self.cluster.state.streams[STREAM])), CLUSTER_ID, {}
        )
        place = Place(cast("Any", Producer(known)), layout)
        request = pb.PublishRequest(stream="s", partition=partition, expectedOffset=expected)
        return await self.publishing._target(place, request)

    def cut_over(self, partitions: int, made: int = 0) -> None:
        self.cluster.prepare(partitions, ["a"] * made)
        self.cluster.cut_over()
        stream = self.cluster.state.streams[STREAM]
        untold = len(stream.layouts[-1].starts)
        self.cluster.report_cutover(*(self.cluster.cutover_at(number, 5) for number in range(untold)))
        self.cluster.finish()


class NoGroups:
    async def metadata(self, _groups: list[str]) -> list[pb.ConsumerGroupMetadata]:
        return []


async def test_partitions_that_are_made_ready_are_not_told_and_those_that_are_left_are_read_only() -> None:
    world = World()
    world.cluster.prepare(5, ["a"] * 2)
    assert await world.told() == dict.fromkeys(range(3), False)
    with pytest.raises(Refused) as refused:
        await world.metadata.fetch_partition(pb.FetchPartitionMetadataRequest(stream="s", partition=4))
    assert refused.value.status is StatusCode.NOT_FOUND
    world.cluster.cancel()
    world.cut_over(5, made=2)
    assert await world.told() == dict.fromkeys(range(5), False)
    world.cut_over(2)
    assert await world.told() == {number: number >= 2 for number in range(5)}


async def test_a_publish_goes_to_the_partition_whose_leader_takes_plain_messages_in_its_place() -> None:
    world = World()
    world.cut_over(6, made=3)
    world.cut_over(4)
    assert [await world.target(number, known=4) for number in range(6)] == [0, 1, 2, 3, 0, 1]
    assert world.controller.asked == 0, "this broker knows it"
    with pytest.raises(TidelogError, match="the expected offset means nothing in another one") as refused:
        await world.target(5, known=4, expected=7)
    assert refused.value.code is Code.PARTITION_RETIRED
    assert refusal(refused.value).status is StatusCode.FAILED_PRECONDITION
    for strange in (6, -1):
        with pytest.raises(Refused) as missing:
            await world.target(strange, known=4)
        assert missing.value.status is StatusCode.NOT_FOUND


async def test_what_the_producer_has_not_heard_of_is_asked_of_the_controller() -> None:
    world = World()
    world.behind = Cluster("a")
    world.behind.create(assignments=["a"] * 3)
    world.cut_over(6, made=3)
    assert await world.target(4, known=6) == 4
    assert world.controller.asked == 0
    with pytest.raises(TidelogError, match="is being repartitioned; try again") as refused:
        await world.target(4, known=3)
    assert refused.value.retriable
    assert world.controller.asked == 1
    assert await world.target(1, known=3) == 1
