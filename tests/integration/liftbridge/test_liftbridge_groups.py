"""Cursors and consumer groups of Liftbridge's API, with raw gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from grpc import StatusCode
from grpc.aio import AioRpcError

import tidelog
from tests.integration.liftbridge.liftbridge_stub import Stub, cluster_with_port, stub
from tests.integration.rig.waiting import LIMIT, until
from tidelog.server.devcluster import DevCluster
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import Message

PARTITIONS = 4


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with cluster_with_port(tmp_path_factory.mktemp("cluster")) as running:
        yield running


async def made(calls: Stub, name: str) -> str:
    request = pb.CreateStreamRequest(subject=f"on.{name}", name=name, partitions=PARTITIONS, replicationFactor=3)
    await calls.call(request)
    return name


async def test_a_cursor_is_kept_for_its_partition_and_life_of_the_stream(cluster: DevCluster) -> None:
    addresses = [cluster.liftbridge_address(broker) for broker in cluster.broker_ids]
    async with stub(addresses[0]) as b1, stub(addresses[1]) as b2:
        await made(b1, "marked")

        async def stored(partition: int = 0, cursor: str = "mine") -> int:
            request = pb.FetchCursorRequest(stream="marked", partition=partition, cursorId=cursor)
            return int((await b2.call(request)).offset)

        assert await stored() == -1
        for offset in (0, 7, 1 << 60, -1, 5):
            await b1.call(pb.SetCursorRequest(stream="marked", cursorId="mine", offset=offset))
            assert await stored() == offset
        await b1.call(pb.SetCursorRequest(stream="marked", cursorId="a b.*>/é", offset=3))
        assert [await stored(), await stored(1), await stored(cursor="other")] == [5, -1, -1]
        assert await stored(cursor="a b.*>/é") == 3
        told = await b2.call(pb.FetchMetadataRequest(streams=["__cursors"]))
        assert told.streamMetadata[0].partitions[0].leader in {each.id for each in told.brokers}
        await b1.call(pb.DeleteStreamRequest(name="marked"))
        await made(b1, "marked")
        assert await stored() == -1, "another stream"


class Worker:
    """A consumer of a group, as a client is one: what it was told is what it reads until it is told otherwise."""

    def __init__(self, calls: Stub, group: str, name: str) -> None:
        self.calls, self.group, self.name = calls, group, name
        self.epoch = 0
        self.reads: frozenset[int] = frozenset()

    async def join(self, stream: str) -> pb.JoinConsumerGroupResponse:
        request = pb.JoinConsumerGroupRequest(groupId=self.group, consumerId=self.name, streams=[stream])
        answer: pb.JoinConsumerGroupResponse = await self.calls.call(request)
        return answer

    async def ask(self) -> frozenset[int]:
        request = pb.FetchConsumerGroupAssignmentsRequest(groupId=self.group, consumerId=self.name, epoch=self.epoch)
        answer = await self.calls.call(request)
        self.epoch = answer.epoch
        self.reads = frozenset(number for each in answer.assignments for number in each.partitions)
        return self.reads

    async def leave(self) -> None:
        await self.calls.call(pb.LeaveConsumerGroupRequest(groupId=self.group, consumerId=self.name))
        self.reads = frozenset()

    def subscription(self, stream: str, partition: int) -> pb.SubscribeRequest:
        return pb.SubscribeRequest(
            stream=stream,
            partition=partition,
            startPosition=pb.EARLIEST,
            consumer=pb.Consumer(groupId=self.group, groupEpoch=self.epoch, consumerId=self.name),
        )


async def converge(*workers: Worker) -> list[int]:
    """How many partitions each of them reads in the end, fewest first. No two read one partition at any time."""

    async def is_shared_out() -> bool:
        for worker in workers:
            await worker.ask()
            total = sum(len(each.reads) for each in workers)
            assert total == len(frozenset().union(*(each.reads for each in workers))), "two read one partition"
        counts = [len(each.reads) for each in workers]
        return sum(counts) == PARTITIONS and max(counts) - min(counts) <= 1

    await until(is_shared_out, "an assignment to all")
    return sorted(len(each.reads) for each in workers)


async def test_consumers_share_partitions_whatever_broker_they_ask(cluster: DevCluster) -> None:
    addresses = [cluster.liftbridge_address(broker) for broker in cluster.broker_ids]
    async with stub(addresses[0]) as b1, stub(addresses[1]) as b2, stub(addresses[2]) as b3:
        await made(b1, "shared")
        one, two, three = (Worker(each, "workers", f"w{n}") for n, each in enumerate((b1, b2, b3), 1))
        joined = await one.join("shared")
        assert joined.coordinator in cluster.broker_ids
        assert joined.epoch > 0
        assert joined.consumerTimeout == joined.coordinatorTimeout == 15_000_000_000, "nanoseconds"
        assert await converge(one) == [PARTITIONS]
        await two.join("shared")
        assert await converge(one, two) == [2, 2]
        await three.join("shared")
        assert await converge(one, two, three) == [1, 1, 2]
        await two.leave()
        assert await converge(one, three) == [2, 2]
        told = await b2.call(pb.FetchMetadataRequest(groups=["workers", "nobodys"]))
        found, unknown = told.groupMetadata
        assert (found.groupId, found.epoch, found.coordinator) == ("workers", one.epoch, joined.coordinator)
        assert (unknown.groupId, unknown.error) == ("nobodys", pb.ConsumerGroupMetadata.UNKNOWN_GROUP)
        request = pb.FetchConsumerGroupAssignmentsRequest(groupId="workers", consumerId="w2")
        assert (await b1.refusal(request))[0] is StatusCode.FAILED_PRECONDITION, "it has left"
        report = pb.ReportConsumerGroupCoordinatorRequest(groupId="workers", consumerId="w1", coordinator="b1")
        await b1.call(report)
        one.calls, three.calls = three.calls, one.calls
        assert await converge(one, three) == [2, 2], "at other brokers, which know nothing of them"
        await two.join("shared")
        assert await converge(one, two, three) == [1, 1, 2], "back under its name"
        for worker in (one, two, three):
            await worker.leave()


async def test_a_consumer_of_a_group_reads_its_own_partitions_alone(cluster: DevCluster) -> None:
    async with (
        stub(cluster.liftbridge_address("b1")) as calls,
        await tidelog.connect(cluster.nats_url) as client,
    ):
        await made(calls, "read")
        for partition in range(PARTITIONS):
            request = pb.PublishRequest(stream="read", partition=partition, value=b"%d" % partition)
            await calls.call(request)
        one, two = Worker(calls, "readers", "r1"), Worker(calls, "readers", "r2")
        await one.join("read")
        await converge(one)
        reading = calls.subscription(one.subscription("read", 0))
        assert await reading.read() == Message()
        message = await reading.read()
        assert isinstance(message, Message)
        assert message.value == b"0"
        assert dict(message.headers) == {"subject": b"on.read", "reply": b""}
        again = calls.subscription(one.subscription("read", 0))
        assert await again.read() == Message()
        with pytest.raises(AioRpcError) as replaced:
            await asyncio.wait_for(reading.read(), LIMIT)
        assert replaced.value.code() is StatusCode.CANCELLED
        await two.join("read")
        await converge(one, two)
        for number in range(PARTITIONS):
            owner, other = (one, two) if number in one.reads else (two, one)
            _, code, _ = await calls.records(other.subscription("read", number))
            assert code is StatusCode.FAILED_PRECONDITION
            allowed = calls.subscription(owner.subscription("read", number))
            assert await allowed.read() == Message()
            allowed.cancel()
        nobody = Worker(calls, "readers", "")
        assert (await calls.records(nobody.subscription("read", 0)))[1] is StatusCode.INVALID_ARGUMENT
        follower = one.subscription("read", 0)
        follower.readISRReplica = True
        assert (await calls.records(follower))[1] is StatusCode.INVALID_ARGUMENT
        running = calls.subscription(one.subscription("read", next(iter(one.reads))))
        assert await running.read() == Message()
        await one.leave()

        async def ends() -> StatusCode:
            try:
                while True:
                    await running.read()
            except AioRpcError as error:
                return error.code()

        assert await asyncio.wait_for(ends(), LIMIT) is StatusCode.CANCELLED, "it has left its group"
        await two.leave()
        description = await client.describe_group("readers")
        assert not description["members"]


async def test_groups_and_cursors_outlive_their_coordinator(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b1")) as b1, await tidelog.connect(cluster.nats_url) as client:
        await made(b1, "outlived")
        one = Worker(b1, "outliving", "o1")
        joined = await one.join("outlived")
        await converge(one)
        await b1.call(pb.SetCursorRequest(stream="outlived", cursorId="c", offset=9))
        victim = joined.coordinator if joined.coordinator != "b1" else "b2"
        if victim != joined.coordinator:
            groups = (await client.describe_group("outliving"))["partition"]
            await client.move_leader("__groups", groups, victim)
        await asyncio.to_thread(cluster.kill, victim)
        try:
            assert await converge(one) == [PARTITIONS]
            assert (await b1.call(pb.FetchCursorRequest(stream="outlived", cursorId="c"))).offset == 9
        finally:
            cluster.start_broker(victim)
            await asyncio.to_thread(cluster.wait_ready, 2 * LIMIT)
