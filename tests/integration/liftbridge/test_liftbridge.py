"""Liftbridge's API on the brokers' port: every call with raw gRPC, refusals, hostile input, and what happens to streams
of calls that are left, not read, or cut off."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode
from grpc.aio import EOF, AioRpcError

import tidelog
from tests.integration.liftbridge.liftbridge_stub import SECONDS, UNARY, Stub, cluster_with_port, stub
from tests.integration.rig.brokers_status import status_of
from tests.integration.rig.waiting import LIMIT, until
from tidelog.server.devcluster import DevCluster
from tidelog.server.liftbridge.port import MAX_MESSAGE_BYTES
from tidelog.server.liftbridge.publish_calls import MAX_IN_FLIGHT
from wire.partition_messages.liftbridge_envelope import decode_ack
from wire.protobuf import liftbridge_pb2 as pb
from wire.protobuf.tidelog_pb2 import AckPolicy, Message


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with cluster_with_port(tmp_path_factory.mktemp("cluster")) as running:
        yield running


async def made(calls: Stub, name: str, partitions: int = 1, replicas: int = 3) -> str:
    await calls.call(
        pb.CreateStreamRequest(subject=f"on.{name}", name=name, partitions=partitions, replicationFactor=replicas)
    )
    return name


async def test_offsets_and_times_of_partitions(cluster: DevCluster) -> None:
    addresses = [cluster.liftbridge_address(broker) for broker in cluster.broker_ids]
    async with stub(addresses[0]) as b1, stub(addresses[1]) as b2:
        await b1.call(pb.CreateStreamRequest(subject="dated", name="dated", replicationFactor=3, partitions=2))
        acks = [
            (await b1.call(pb.PublishRequest(stream="dated", value=b"x", ackPolicy=AckPolicy.ALL))).ack
            for _ in range(3)
        ]

        async def told() -> pb.StreamMetadata | None:
            (stream,) = (await b2.call(pb.FetchMetadataRequest(streams=["dated"]))).streamMetadata
            partitions = stream.partitions
            return stream if 0 in partitions and partitions[0].highWatermark == 2 else None

        partitions = (await until(told, "the offsets")).partitions
        offsets = [(each.highWatermark, each.newestOffset) for _, each in sorted(partitions.items())]
        assert offsets == [(2, 2), (-1, -1)]
        told_by_leader = (await b2.call(pb.FetchPartitionMetadataRequest(stream="dated"))).metadata
        times = told_by_leader.messagesReceivedTimestamps
        assert acks[0].receptionTimestamp <= times.firstTimestamp <= acks[0].commitTimestamp
        assert acks[2].receptionTimestamp <= times.latestTimestamp <= acks[2].commitTimestamp
        empty = (await b2.call(pb.FetchPartitionMetadataRequest(stream="dated", partition=1))).metadata
        assert not empty.HasField("messagesReceivedTimestamps")
        await b1.call(pb.DeleteStreamRequest(name="dated"))


async def test_a_stream_is_created_described_and_deleted_at_any_broker(cluster: DevCluster) -> None:
    addresses = {broker: cluster.liftbridge_address(broker) for broker in cluster.broker_ids}
    async with stub(addresses["b1"]) as b1, stub(addresses["b2"]) as b2, stub(addresses["b3"]) as b3:
        await b1.call(pb.CreateStreamRequest(subject="all", name="everywhere", replicationFactor=-1, partitions=2))

        async def known() -> pb.StreamMetadata | None:
            answer = await b2.call(pb.FetchMetadataRequest(streams=["everywhere"]))
            assert {each.id: f"{each.host}:{each.port}" for each in answer.brokers} == addresses
            (told,) = answer.streamMetadata
            return told if told.error == pb.StreamMetadata.OK else None

        told = await until(known, "the stream at the other broker")
        assert (told.name, told.subject, [*told.partitions]) == ("everywhere", "all", [0, 1])
        for partition in told.partitions.values():
            assert {*partition.replicas} == {*partition.isr} == {*addresses}, "-1 replicas are all brokers"
            assert partition.leader in addresses

        async def whole() -> bool:
            answer = await b3.call(pb.FetchMetadataRequest())
            names = [each.name for each in answer.streamMetadata]
            return names == ["__cursors", "everywhere"] and sum(each.leaderCount for each in answer.brokers) == 2

        await until(whole, "the stream at the third broker, and none of Tidelog's own")
        empty = await b3.call(pb.FetchPartitionMetadataRequest(stream="everywhere", partition=1))
        assert (empty.metadata.highWatermark, empty.metadata.newestOffset, empty.metadata.id) == (-1, -1, 1)
        await b3.call(pb.DeleteStreamRequest(name="everywhere"))

        async def gone() -> bool:
            answer = await b3.call(pb.FetchMetadataRequest(streams=["everywhere"]))
            return bool(answer.streamMetadata[0].error == pb.StreamMetadata.UNKNOWN_STREAM)

        await until(gone, "the end of the stream")


async def test_settings_of_a_stream_are_tidelogs_or_do_nothing(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b1")) as calls, await tidelog.connect(cluster.nats_url) as client:
        await calls.call(
            pb.CreateStreamRequest(
                subject="s",
                name="settings",
                retentionMaxBytes=pb.NullableInt64(value=1 << 20),
                retentionMaxMessages=pb.NullableInt64(value=1000),
                retentionMaxAge=pb.NullableInt64(value=60_000),
                segmentMaxBytes=pb.NullableInt64(value=8192),
                segmentMaxAge=pb.NullableInt64(value=30_000),
                compactEnabled=pb.NullableBool(value=True),
                minIsr=pb.NullableInt32(value=1),
                encryption=pb.NullableBool(value=False),
                autoPauseTime=pb.NullableInt64(value=90_000),
                optimisticConcurrencyControl=pb.NullableBool(value=True),
                cleanerInterval=pb.NullableInt64(value=1000),
                compactMaxGoroutines=pb.NullableInt32(value=2),
                group="workers",
            )
        )
        description = await client.describe("settings")
        assert description["replication_factor"] == 1, "Liftbridge's default"
        config = description["config"]
        wanted = {
            "retention_max_bytes": "1048576", "retention_max_messages": "1000", "retention_max_age_ms": "60000",
            "segment_bytes": "8192", "segment_max_age_ms": "30000", "compact": "true", "min_isr": "1",
            "auto_pause_time_ms": "90000",
        }  # fmt: skip
        assert {key: config[key] for key in wanted} == wanted
        refused = {
            "segmentMaxBytes": pb.NullableInt64(value=1),
            "retentionMaxAge": pb.NullableInt64(value=-1),
        }
        for name, value in refused.items():
            request = pb.CreateStreamRequest(subject="t", name="never", **{name: value})  # type: ignore[arg-type]
            code, sentence = await calls.refusal(request)
            assert (code, sentence.startswith(name)) == (StatusCode.INVALID_ARGUMENT, True), sentence
        assert "never" not in {each["name"] for each in await client.streams()}


async def test_a_paused_stream_is_resumed_by_a_publish(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b1")) as calls, await tidelog.connect(cluster.nats_url) as client:
        await made(calls, "resting", 2)

        async def paused() -> list[bool]:
            return [each["paused"] for each in (await client.describe("resting"))["partitions"]]

        async def resumed() -> bool:
            return not any(await paused())

        await calls.call(pb.PauseStreamRequest(name="resting", resumeAll=True))
        assert await paused() == [True, True]
        answer = await calls.call(pb.PublishRequest(stream="resting", partition=1, value=b"x", ackPolicy=AckPolicy.ALL))
        assert answer.ack.offset == 0
        await until(resumed, "a publish to one partition to resume both")


async def test_wrong_requests_have_the_status_that_clients_know(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b2")) as calls:
        await made(calls, "there", 2)
        sub = pb.SubscribeRequest
        wrong = [
            (pb.CreateStreamRequest(subject="x", name="there"), StatusCode.ALREADY_EXISTS),
            (pb.CreateStreamRequest(subject="on.there", name="other"), StatusCode.FAILED_PRECONDITION),
            (pb.CreateStreamRequest(subject="x"), StatusCode.INVALID_ARGUMENT),
            (pb.CreateStreamRequest(name="x"), StatusCode.INVALID_ARGUMENT),
            (pb.CreateStreamRequest(subject="x.*", name="x"), StatusCode.INVALID_ARGUMENT),
            (pb.CreateStreamRequest(subject="tidelog.x", name="x"), StatusCode.INVALID_ARGUMENT),
            (pb.CreateStreamRequest(subject="x", name="a.b"), StatusCode.INVALID_ARGUMENT),
            (pb.CreateStreamRequest(subject="x", name="x", partitions=-1), StatusCode.INVALID_ARGUMENT),
            (pb.CreateStreamRequest(subject="x", name="x", replicationFactor=-2), StatusCode.INVALID_ARGUMENT),
            (pb.DeleteStreamRequest(name="nowhere"), StatusCode.NOT_FOUND),
            (pb.DeleteStreamRequest(name="__audit"), StatusCode.INVALID_ARGUMENT),
            (pb.SetStreamReadonlyRequest(name="nowhere", readonly=True), StatusCode.NOT_FOUND),
            (pb.SetStreamReadonlyRequest(name="there", partitions=[7], readonly=True), StatusCode.NOT_FOUND),
            (pb.FetchPartitionMetadataRequest(stream="nowhere"), StatusCode.NOT_FOUND),
            (pb.FetchPartitionMetadataRequest(stream="there", partition=2), StatusCode.NOT_FOUND),
            (pb.PublishRequest(stream="nowhere", value=b"x"), StatusCode.NOT_FOUND),
            (pb.PublishRequest(stream="nowhere", value=b"x", ackPolicy=AckPolicy.NONE), StatusCode.NOT_FOUND),
            (pb.PublishRequest(stream="there", partition=2), StatusCode.NOT_FOUND),
            (pb.PublishRequest(stream="there", partition=-1), StatusCode.NOT_FOUND),
            (pb.PublishRequest(stream="__audit", value=b"x"), StatusCode.INVALID_ARGUMENT),
            (pb.PublishRequest(value=b"x"), StatusCode.INVALID_ARGUMENT),
            (pb.PublishRequest(stream="there", ackPolicy=9), StatusCode.INVALID_ARGUMENT),  # type: ignore[arg-type]
            (pb.PublishRequest(stream="there", value=b"x", expectedOffset=7), StatusCode.UNKNOWN),
            (pb.PublishRequest(stream="there", value=bytes(1_048_577)), StatusCode.RESOURCE_EXHAUSTED),
            (pb.PublishToSubjectRequest(subject="tidelog.api.stream.list"), StatusCode.INVALID_ARGUMENT),
            (pb.PublishToSubjectRequest(subject="$SYS.x"), StatusCode.INVALID_ARGUMENT),
            (pb.PublishToSubjectRequest(subject="_INBOX.x"), StatusCode.INVALID_ARGUMENT),
            (pb.PublishToSubjectRequest(subject="a b"), StatusCode.INVALID_ARGUMENT),
            (pb.PauseStreamRequest(name="nowhere"), StatusCode.NOT_FOUND),
            (pb.PauseStreamRequest(name="there", partitions=[7]), StatusCode.NOT_FOUND),
            (pb.SetCursorRequest(stream="there"), StatusCode.INVALID_ARGUMENT),
            (pb.SetCursorRequest(cursorId="c"), StatusCode.INVALID_ARGUMENT),
            (pb.SetCursorRequest(stream="nowhere", cursorId="c"), StatusCode.NOT_FOUND),
            (pb.FetchCursorRequest(stream="there", partition=2, cursorId="c"), StatusCode.NOT_FOUND),
            (pb.FetchCursorRequest(stream="there", cursorId="c" * 1025), StatusCode.INVALID_ARGUMENT),
            (pb.JoinConsumerGroupRequest(groupId="g", consumerId="c"), StatusCode.INVALID_ARGUMENT),
            (pb.JoinConsumerGroupRequest(groupId="g", streams=["there"]), StatusCode.INVALID_ARGUMENT),
            (pb.JoinConsumerGroupRequest(consumerId="c", streams=["there"]), StatusCode.INVALID_ARGUMENT),
            (pb.JoinConsumerGroupRequest(groupId="g.x", consumerId="c", streams=["x"]), StatusCode.INVALID_ARGUMENT),
            (pb.JoinConsumerGroupRequest(groupId="g", consumerId="c", streams=["nowhere"]), StatusCode.NOT_FOUND),
            (pb.LeaveConsumerGroupRequest(consumerId="c"), StatusCode.INVALID_ARGUMENT),
            (pb.FetchConsumerGroupAssignmentsRequest(groupId="g"), StatusCode.INVALID_ARGUMENT),
            (pb.ReportConsumerGroupCoordinatorRequest(groupId="g", consumerId="c"), StatusCode.INVALID_ARGUMENT),
            (
                pb.ReportConsumerGroupCoordinatorRequest(groupId="nobodys", consumerId="c", coordinator="b1"),
                StatusCode.NOT_FOUND,
            ),
            (pb.FetchMetadataRequest(groups=[str(number) for number in range(101)]), StatusCode.INVALID_ARGUMENT),
        ]
        for request, status in wrong:
            code, sentence = await calls.refusal(request)
            assert (code, bool(sentence)) == (status, True), f"{type(request).__name__} {request}: {code} {sentence}"
        subscriptions = [
            (sub(stream="nowhere"), StatusCode.NOT_FOUND),
            (sub(stream="there", partition=2), StatusCode.NOT_FOUND),
            (sub(stream="there", partition=-1), StatusCode.NOT_FOUND),
            (sub(stream="there", startPosition=9), StatusCode.INVALID_ARGUMENT),  # type: ignore[arg-type]
            (sub(stream="there", stopPosition=9), StatusCode.INVALID_ARGUMENT),  # type: ignore[arg-type]
            (sub(stream="there", stopPosition=pb.STOP_OFFSET, stopOffset=-1), StatusCode.INVALID_ARGUMENT),
            (sub(stream="there", stopPosition=pb.STOP_LATEST), StatusCode.RESOURCE_EXHAUSTED),
            (
                sub(stream="there", startPosition=pb.OFFSET, startOffset=5, stopPosition=pb.STOP_OFFSET, stopOffset=4),
                StatusCode.INVALID_ARGUMENT,
            ),
        ]
        for request, status in subscriptions:
            messages, code, sentence = await calls.records(request)
            assert (messages, code) == ([], status), f"{request}: {sentence}"


async def test_publishes_are_acknowledged_as_their_policy_says(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b3")) as calls, await tidelog.connect(cluster.nats_url) as client:
        await made(calls, "published", 2)
        for policy in (AckPolicy.LEADER, AckPolicy.ALL):
            answer = await calls.call(
                pb.PublishRequest(
                    stream="published",
                    key=b"k",
                    value=b"v",
                    partition=1,
                    headers={"h": b"\x00\xff"},
                    correlationId="mine",
                    ackPolicy=policy,
                ),
                seconds=None,
            )
            ack = answer.ack
            assert (ack.stream, ack.partitionSubject, ack.correlationId) == ("published", "on.published.1", "mine")
            assert (ack.offset, ack.ackPolicy, answer.correlationId) == (policy, policy, "mine")
            assert 0 < ack.receptionTimestamp <= ack.commitTimestamp
        bare = await calls.call(pb.PublishRequest(stream="published", value=b"", ackPolicy=AckPolicy.NONE))
        assert not bare.HasField("ack")
        right = await calls.call(pb.PublishRequest(stream="published", partition=1, value=b"2", expectedOffset=2))
        assert right.ack.offset == 2

        async def arrived() -> bool:
            return await client.offsets("published", "latest") == {0: 1, 1: 3}

        await until(arrived, "the commit of records that their leader alone has acknowledged, or nobody")
        records = [record async for record in client.consume("published", stop="latest", partitions=[1])]
        assert [(record.key, record.value, dict(record.headers)) for record in records] == [
            (b"k", b"v", {"h": b"\x00\xff"}), (b"k", b"v", {"h": b"\x00\xff"}), (None, b"2", {}),
        ]  # fmt: skip


async def test_acks_go_to_a_clients_inbox_and_nowhere_else(cluster: DevCluster) -> None:
    from tidelog.nats.nats_connection import NatsConnection

    async with stub(cluster.liftbridge_address("b1")) as calls, await tidelog.connect(cluster.nats_url) as client:
        await made(calls, "acked")
        await made(calls, "other")
        nats = await NatsConnection.connect(cluster.nats_url)
        try:
            inbox = nats.new_inbox()
            heard: list[bytes] = []
            nats.on_inbox(inbox, lambda message: heard.append(message.data))
            await calls.call(pb.PublishRequest(stream="acked", value=b"x", ackInbox=inbox, correlationId="c"))
            await calls.call(pb.PublishToSubjectRequest(subject="on.acked", value=b"y", ackInbox=inbox))
            await until(lambda: len(heard) == 2, "two acks")
            acks = [decode_ack(each) for each in heard]
            assert [(ack.offset, ack.stream) for ack in acks] == [(0, "acked"), (1, "acked")]
            for forbidden in ("on.other", "tidelog.notify.b1", "$SYS.x", "a b", "*"):
                await calls.call(pb.PublishRequest(stream="acked", value=b"x", ackInbox=forbidden))
            assert (await client.offsets("other", "latest"))[0] == 0
        finally:
            await nats.close()


async def test_a_message_to_a_subject_waits_for_an_ack_as_long_as_it_may(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b2")) as calls:
        await made(calls, "onsubject", 2)
        answer = await calls.call(
            pb.PublishToSubjectRequest(subject="on.onsubject.1", value=b"x", key=b"k", correlationId="c")
        )
        assert (answer.ack.stream, answer.ack.partition, answer.ack.correlationId) == ("onsubject", 1, "c")
        assert not (await calls.call(pb.PublishToSubjectRequest(subject="nobody"), seconds=None)).HasField("ack")
        with pytest.raises(AioRpcError) as late:
            await calls.call(pb.PublishToSubjectRequest(subject="nobody", value=b"x"), seconds=0.5)
        assert late.value.code() is StatusCode.DEADLINE_EXCEEDED


async def test_async_publishes_are_answered_by_their_correlation_ids(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b1")) as calls:
        await made(calls, "streamed", 2)
        call = calls.publish_async()
        count = 3 * MAX_IN_FLIGHT
        responses: dict[str, pb.PublishResponse] = {}

        async def read() -> None:
            async for response in call:
                assert response.correlationId not in responses
                responses[response.correlationId] = response

        reading = asyncio.create_task(read())
        for number in range(count):
            await call.write(
                pb.PublishRequest(
                    stream="streamed", partition=number % 2, value=b"%d" % number, correlationId=str(number)
                )
            )
        wrong = {
            "stream": (pb.PublishRequest(stream="nowhere"), pb.PublishAsyncError.NOT_FOUND),
            "partition": (pb.PublishRequest(stream="streamed", partition=2), pb.PublishAsyncError.NOT_FOUND),
            "offset": (pb.PublishRequest(stream="streamed", expectedOffset=1), pb.PublishAsyncError.INCORRECT_OFFSET),
            "none": (pb.PublishRequest(), pb.PublishAsyncError.BAD_REQUEST),
            "large": (pb.PublishRequest(stream="streamed", value=bytes(1_048_577)), pb.PublishAsyncError.BAD_REQUEST),
            "largest": (pb.PublishRequest(stream="streamed", value=bytes(4 << 20)), pb.PublishAsyncError.BAD_REQUEST),
        }
        for name, (request, _) in wrong.items():
            request.correlationId = name
            await call.write(request)
        await call.write(pb.PublishRequest(stream="streamed", value=b"silent", ackPolicy=AckPolicy.NONE))
        await call.done_writing()
        await asyncio.wait_for(reading, SECONDS)
        assert await call.code() is StatusCode.OK
        for name, (_, code) in wrong.items():
            response = responses.pop(name)
            assert (response.asyncError.code, bool(response.asyncError.message)) == (code, True), name
            assert response.ack.correlationId == "", "clients from before asyncError find no publish of theirs in it"
        assert {*responses} == {str(number) for number in range(count)}
        by_partition = [[responses[str(n)].ack.offset for n in range(count) if n % 2 == p] for p in (0, 1)]
        assert by_partition == [[*range(count // 2)]] * 2, "in the order in which they were sent"


async def test_subscriptions_start_and_stop_where_they_should(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b2")) as calls:
        await made(calls, "read")
        for number in range(10):
            request = pb.PublishRequest(stream="read", value=b"%d" % number, key=b"k", ackPolicy=AckPolicy.ALL)
            await calls.call(request)
        everything, code, sentence = await calls.records(
            pb.SubscribeRequest(stream="read", startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST)
        )
        assert (code, sentence) == (StatusCode.RESOURCE_EXHAUSTED, "Stop offset reached")
        first = everything[0]
        assert (first.stream, first.subject, first.key, first.value) == ("read", "on.read", b"k", b"0")
        stamps = [message.timestamp for message in everything]
        assert [message.offset for message in everything] == [*range(10)]
        assert stamps == sorted(stamps)
        sub = pb.SubscribeRequest
        ranges = [
            (sub(startPosition=pb.OFFSET, startOffset=7, stopPosition=pb.STOP_LATEST), [7, 8, 9]),
            (sub(startPosition=pb.OFFSET, startOffset=-5, stopPosition=pb.STOP_OFFSET, stopOffset=1), [0, 1]),
            (sub(startPosition=pb.LATEST, stopPosition=pb.STOP_LATEST), [9]),
            (sub(startPosition=pb.EARLIEST, stopPosition=pb.STOP_OFFSET, stopOffset=2), [0, 1, 2]),
            (sub(startPosition=pb.TIMESTAMP, startTimestamp=stamps[6], stopPosition=pb.STOP_LATEST), [6, 7, 8, 9]),
            (sub(startPosition=pb.EARLIEST, stopPosition=pb.STOP_TIMESTAMP, stopTimestamp=stamps[3]), [0, 1, 2, 3]),
            (
                sub(startPosition=pb.EARLIEST, stopPosition=pb.STOP_LATEST, readISRReplica=True, resume=True),
                [*range(10)],
            ),
        ]
        for wanted, offsets in ranges:
            wanted.stream = "read"
            messages, code, _ = await calls.records(wanted)
            assert ([message.offset for message in messages], code) == (offsets, StatusCode.RESOURCE_EXHAUSTED), wanted
        live = calls.subscription(sub(stream="read"))
        assert await live.read() == Message(), "the subscription stands"
        await calls.call(pb.PublishRequest(stream="read", value=b"new"))
        message = await live.read()
        assert isinstance(message, Message)
        assert (message.offset, message.value) == (10, b"new"), "NEW_ONLY, and goes on for ever"
        live.cancel()


async def test_a_read_only_partition_takes_no_records_and_ends_its_subscriptions(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b3")) as calls:
        await made(calls, "closed", 2)
        await calls.call(pb.PublishRequest(stream="closed", value=b"x", ackPolicy=AckPolicy.ALL))
        running = asyncio.create_task(calls.records(pb.SubscribeRequest(stream="closed", startPosition=pb.EARLIEST)))
        await calls.call(pb.SetStreamReadonlyRequest(name="closed", partitions=[0], readonly=True))
        code, _ = await calls.refusal(pb.PublishRequest(stream="closed", value=b"x"))
        assert code is StatusCode.FAILED_PRECONDITION
        await calls.call(pb.PublishRequest(stream="closed", partition=1, value=b"x"))
        for reading in (running, calls.records(pb.SubscribeRequest(stream="closed", startPosition=pb.EARLIEST))):
            messages, code, sentence = await asyncio.wait_for(reading, LIMIT)
            assert [message.offset for message in messages] == [0]
            assert (code, sentence) == (StatusCode.RESOURCE_EXHAUSTED, "End of readonly partition")

        async def told() -> bool:
            answer = await calls.call(pb.FetchMetadataRequest(streams=["closed"]))
            partitions = answer.streamMetadata[0].partitions
            return bool(partitions[0].readonly and not partitions[1].readonly)

        await until(told, "the read-only partition in the metadata")
        call = calls.publish_async()
        await call.write(pb.PublishRequest(stream="closed", value=b"x", correlationId="c"))
        response = await call.read()
        assert isinstance(response, pb.PublishResponse)
        assert response.asyncError.code == pb.PublishAsyncError.READONLY
        await call.done_writing()
        await calls.call(pb.SetStreamReadonlyRequest(name="closed", readonly=False))
        assert (await calls.call(pb.PublishRequest(stream="closed", value=b"x"))).ack.offset == 1


async def test_a_stream_that_is_deleted_and_created_anew_takes_publishes_and_ends_subscriptions(
    cluster: DevCluster,
) -> None:
    async with stub(cluster.liftbridge_address("b1")) as calls:
        await made(calls, "again")
        assert (await calls.call(pb.PublishRequest(stream="again", value=b"x"))).ack.offset == 0
        reading = asyncio.create_task(calls.records(pb.SubscribeRequest(stream="again")))
        await asyncio.sleep(0)
        await calls.call(pb.DeleteStreamRequest(name="again"))
        _, code, _ = await asyncio.wait_for(reading, LIMIT)
        assert code is StatusCode.NOT_FOUND
        assert (await calls.refusal(pb.PublishRequest(stream="again", value=b"x")))[0] is StatusCode.NOT_FOUND
        await made(calls, "again")
        assert (await calls.call(pb.PublishRequest(stream="again", value=b"x"))).ack.offset == 0


async def test_bytes_that_are_no_request_are_refused_and_harm_nobody(cluster: DevCluster) -> None:
    rng = random.Random(14)
    async with stub(cluster.liftbridge_address("b2")) as calls:
        await made(calls, "unharmed")
        whole = pb.PublishRequest(
            stream="unharmed", key=b"k", value=b"v" * 20, headers={"a": b"b"}, ackInbox="x", correlationId="c"
        ).SerializeToString()
        names = [*UNARY, "Subscribe", "PublishAsync"]
        allowed = {*StatusCode} - {StatusCode.INTERNAL, StatusCode.DEADLINE_EXCEEDED, StatusCode.UNAVAILABLE}
        for name in names:
            forms = [bytes(rng.randbytes(rng.randrange(1, 60))) for _ in range(200)]
            forms += [whole[:cut] for cut in range(len(whole))]
            forms += [b"\x0a\xff\xff\xff\xff\x0f", b"\x12\x02\xff\xfe", b"\x0a" * 500, b"\xff" * 40]
            statuses = [await calls.raw(name, data) for data in forms]
            assert {*statuses} <= allowed, (name, {*statuses} - allowed)
        assert await calls.raw("NoSuchCall", b"") is StatusCode.UNIMPLEMENTED
        assert await calls.raw("Publish", bytes(MAX_MESSAGE_BYTES + 1)) is StatusCode.RESOURCE_EXHAUSTED
        for broker in cluster.broker_ids:
            async with stub(cluster.liftbridge_address(broker)) as other:
                answer = await other.call(pb.PublishRequest(stream="unharmed", value=b"fine"))
                assert answer.ack.stream == "unharmed"


async def test_calls_that_are_left_leave_nothing_behind(cluster: DevCluster) -> None:
    async with stub(cluster.liftbridge_address("b1")) as calls, await tidelog.connect(cluster.nats_url) as client:
        await made(calls, "left")

        async def tasks() -> int:
            return (await status_of(client, "b1"))["tasks"] or 0

        before = await tasks()
        open_calls = [calls.subscription(pb.SubscribeRequest(stream="left")) for _ in range(40)]
        for call in open_calls:
            assert await call.read() == Message()
        publishing = [calls.publish_async() for _ in range(10)]
        for both in publishing:
            await both.write(pb.PublishRequest(stream="left", value=b"x"))
            assert isinstance(await both.read(), pb.PublishResponse)

        async def open_() -> bool:
            return await tasks() > before + 40

        await until(open_, "tasks of the calls")
        for each in (*open_calls, *publishing):
            each.cancel()

        async def over() -> bool:
            return await tasks() <= before + 5

        await until(over, "the end of the calls that were left")


@pytest.mark.slow
async def test_clients_that_do_not_read_cost_a_broker_little(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream("unread", replication_factor=1)
        leader = (await client.describe("unread"))["partitions"][0]["leader"]
        other = next(broker for broker in cluster.broker_ids if broker != leader)
        async with client.producer("unread") as producer:
            for _ in range(24):
                await producer.send_many([bytes(100_000)] * 10)
        async with stub(cluster.liftbridge_address(other)) as calls:
            before = resident(cluster, other)
            unread = []
            for _ in range(30):
                call = calls.subscription(pb.SubscribeRequest(stream="unread", startPosition=pb.EARLIEST))
                assert await call.read() == Message()
                unread.append(call)
            publishing = calls.publish_async()
            written = 0
            try:  # responses are not read, so requests stop being taken
                async with asyncio.timeout(5):
                    while True:
                        await publishing.write(pb.PublishRequest(stream="unread", value=bytes(10_000)))
                        written += 1
            except TimeoutError:
                pass
            await until(lambda: resident(cluster, other) < before + (200 << 20), "little memory")
            grown = resident(cluster, other) - before
            assert grown < 200 << 20, f"{grown >> 20} MiB; 30 subscriptions to 24 MB would be 720 MB"
            async with stub(cluster.liftbridge_address(other)) as reading:
                messages, _, _ = await reading.records(
                    pb.SubscribeRequest(
                        stream="unread", stopPosition=pb.STOP_OFFSET, stopOffset=200, startPosition=pb.EARLIEST
                    )
                )
                assert len(messages) == 201, "others are served"
            for each in (*unread, publishing):
                each.cancel()


def resident(cluster: DevCluster, broker: str) -> int:
    """Bytes of memory of that process."""
    pages = int(Path(f"/proc/{cluster.pid(broker)}/statm").read_text().split()[1])
    return pages * 4096


async def status(call: Any) -> StatusCode:
    """Of a call with an endless answer, when it ends."""
    try:
        while await call.read() is not EOF:
            pass
    except AioRpcError as error:
        return error.code()
    return StatusCode.OK


async def test_a_broker_that_stops_ends_its_calls_and_hangs_in_none(cluster: DevCluster) -> None:
    async with (
        stub(cluster.liftbridge_address("b1")) as other,
        stub(cluster.liftbridge_address("b3")) as calls,
    ):
        await made(other, "stopped")
        live = [calls.subscription(pb.SubscribeRequest(stream="stopped")) for _ in range(5)]
        for call in live:
            assert await call.read() == Message()
        publishing = calls.publish_async()
        await publishing.write(pb.PublishRequest(stream="stopped", value=b"x"))
        assert isinstance(await publishing.read(), pb.PublishResponse)
        began = time.monotonic()
        await asyncio.to_thread(cluster.kill, "b3", signal.SIGTERM)
        try:
            for call in live:
                assert await asyncio.wait_for(status(call), LIMIT) is StatusCode.UNAVAILABLE, "clients try again"
            assert await asyncio.wait_for(status(publishing), LIMIT) is StatusCode.UNAVAILABLE
            await until(lambda: cluster.pid("b3") is None, "the end of the process")
            assert time.monotonic() - began < LIMIT
            assert (await other.call(pb.PublishRequest(stream="stopped", value=b"y"))).ack.stream == "stopped"
            answer = await other.call(pb.FetchMetadataRequest())

            async def gone() -> bool:
                answer = await other.call(pb.FetchMetadataRequest())
                return "b3" not in {each.id for each in answer.brokers}

            assert answer.brokers
            await until(gone, "metadata without the broker that stopped")
        finally:
            cluster.start_broker("b3")
            await asyncio.to_thread(cluster.wait_ready, 2 * LIMIT)
