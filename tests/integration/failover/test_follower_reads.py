"""Consumers that read from followers: data planes and processes that are real, and stop, hang and die.

A consumer gets committed records, each once and in order, from any replica; a follower that does not know the
committed end sends it elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tidelog
from dataplane.broker.following.follower_driver import CACHED_BYTES, FollowerDriver
from dataplane.broker.roles.role import Role
from dataplane.replica.replica_settings import ReplicaSettings
from tests.integration.failover.test_broker_roles import KEY, SUBJECTS, Node, fetch, publish, view
from tests.integration.rig.command_line import tidelog_command
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import wait_in_sync
from tests.views import A, B
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.devcluster import DevCluster
from wire.errors import Code, TidelogError
from wire.messaging.transport import NO_RESPONDERS, Message
from wire.partition_messages.replication import HEADER_SIZE, decode_header
from wire.protobuf.tidelog_pb2 import FetchRequest
from wire.types import BrokerId

BOTH = (A, B)


# ---------------------------------------------------------------- one leader, one follower, metadata played by the test
@pytest.fixture
async def client(nats_server: EmbeddedNatsServer) -> AsyncIterator[NatsConnection]:
    connection = await NatsConnection.connect(nats_server.url)
    yield connection
    await connection.close()


@pytest.fixture
async def a(nats_server: EmbeddedNatsServer, tmp_path: Path) -> AsyncIterator[Node]:
    node = await Node(A, tmp_path / "a").start(nats_server.url)
    yield node
    await asyncio.wait_for(node.close(), LIMIT)


@pytest.fixture
async def b(nats_server: EmbeddedNatsServer, tmp_path: Path) -> AsyncIterator[Node]:
    node = await Node(B, tmp_path / "b").start(nats_server.url)
    yield node
    await asyncio.wait_for(node.close(), LIMIT)


async def ask(client: NatsConnection, replica: BrokerId, timeout: float = LIMIT, **fields: Any) -> Message:
    """A fetch at one replica."""
    request = FetchRequest(**{"max_bytes": 1 << 20, **fields})
    subject = SUBJECTS.fetch_from(KEY.stream, 0, replica)
    return await client.request(subject, request.SerializeToString(), timeout=timeout)


def refusal(answer: Message) -> TidelogError:
    error = TidelogError.from_headers(answer.headers)
    assert error is not None
    return error


async def waits(client: NatsConnection, replica: BrokerId, node: Node, offset: int, ms: int) -> asyncio.Task[Message]:
    """A long poll that has arrived there."""
    asking = asyncio.create_task(ask(client, replica, timeout=ms / 1000 + LIMIT, offset=offset, max_wait_ms=ms))
    role = node.replica.role
    assert isinstance(role, FollowerDriver)
    await until(lambda: role.core._reads._consumers._waiting)
    return asking


async def in_sync(a: Node, b: Node, count: int, client: NatsConnection) -> tuple[Role, FollowerDriver]:
    """a leads, b follows, `count` records are committed, and both know it."""
    leader = await a.leads(view(isr=BOTH))
    follower = await b.follows(view(isr=BOTH))
    for number in range(count):
        await publish(client, b"%d" % number)
    await until(lambda: follower.high_watermark == count)
    await until(lambda: follower.core._reads.refusal(b.context.now()) is None)
    return leader, follower


async def test_a_follower_serves_the_same_records_as_the_leader(a: Node, b: Node, client: NatsConnection) -> None:
    await in_sync(a, b, 5, client)
    for offset in (0, 3):
        of_leader, of_follower = await fetch(client, offset=offset), await ask(client, B, offset=offset)
        assert TidelogError.from_headers(of_follower.headers) is None
        assert len(of_follower.data) > HEADER_SIZE
        assert of_follower.data == of_leader.data == (await ask(client, A, offset=offset)).data
        assert decode_header(of_follower.data) == (1, 5)


async def test_a_followers_log_leaves_the_page_cache_until_somebody_reads_it(
    a: Node, b: Node, client: NatsConnection
) -> None:
    leader, follower = await in_sync(a, b, 1, client)
    assert (leader.log.cached_bytes, follower.log.cached_bytes) == (None, CACHED_BYTES)
    await ask(client, B, offset=0)
    assert follower.log.cached_bytes is None
    follower = await b.follows(view(leader_epoch=2, epoch=2, isr=BOTH))
    assert follower.log.cached_bytes == CACHED_BYTES
    leader = await b.leads(view(leader=B, leader_epoch=3, epoch=3, isr=(B,)))
    assert leader.log.cached_bytes is None


async def test_a_long_poll_at_a_follower_ends_with_the_next_commit(a: Node, b: Node, client: NatsConnection) -> None:
    await in_sync(a, b, 1, client)
    asking = await waits(client, B, b, 1, 60_000)
    await publish(client, b"next")
    answer = await asking
    assert len(answer.data) > HEADER_SIZE
    assert decode_header(answer.data)[1] == 2


async def test_records_outside_of_memory_come_from_the_followers_disk(a: Node, b: Node, client: NatsConnection) -> None:
    _, follower = await in_sync(a, b, 5, client)
    follower.log._state.forget_tail()
    assert (await ask(client, B, offset=0)).data == (await fetch(client, offset=0)).data


async def test_only_the_leader_looks_positions_up(a: Node, b: Node, client: NatsConnection) -> None:
    await in_sync(a, b, 1, client)
    for position in ({"latest": True}, {"earliest": True}, {"timestamp": 1}):
        error = refusal(await ask(client, B, **position))
        assert (error.code, error.details["leader"]) == (Code.NOT_LEADER, A)
        assert TidelogError.from_headers((await ask(client, A, **position)).headers) is None


async def test_requests_of_another_life_or_of_none_are_refused(a: Node, b: Node, client: NatsConnection) -> None:
    await in_sync(a, b, 1, client)
    wrong = await ask(client, B, offset=0, stream_incarnation=1, partition_incarnation=1)
    assert refusal(wrong).code is Code.WRONG_INCARNATION
    garbage = await client.request(SUBJECTS.fetch_from(KEY.stream, 0, B), b"\xff\xff", timeout=LIMIT)
    assert refusal(garbage).code is Code.BAD_REQUEST
    assert refusal(await ask(client, B)).code is Code.BAD_REQUEST


async def test_a_follower_that_meets_damage_says_so_and_withdraws(a: Node, b: Node, client: NatsConnection) -> None:
    _, follower = await in_sync(a, b, 3, client)
    await until(lambda: follower.log.durable_end == 3)
    path = next(follower.log.directory.glob("*.log"))
    with path.open("r+b") as file:
        file.seek(40)
        file.write(b"\xff\xff")
    follower.log._state.forget_tail()
    assert refusal(await ask(client, B, offset=0)).code is Code.UNAVAILABLE
    await until(lambda: b.metadata.withdrawals)
    await until(lambda: follower.ended)
    assert refusal(await ask(client, B, offset=0)).code is Code.UNAVAILABLE


async def test_a_read_from_the_disk_that_ends_when_the_follower_serves_nobody_is_refused(
    a: Node, b: Node, client: NatsConnection
) -> None:
    """Its process stood still meanwhile: its leader may have settled a later log start."""
    _, follower = await in_sync(a, b, 3, client)
    await until(lambda: follower.log.durable_end == 3)
    follower.log._state.forget_tail()
    assert len((await ask(client, B, offset=0)).data) > HEADER_SIZE
    stale = TidelogError(Code.UNAVAILABLE, "it has asked its leader for nothing lately")
    follower.core.read_refusal = lambda now: stale  # type: ignore[method-assign]  # noqa: ARG005
    assert refusal(await ask(client, B, offset=0)).message == stale.message


async def test_a_replica_is_asked_under_its_name_through_all_its_roles(
    a: Node, b: Node, client: NatsConnection
) -> None:
    await in_sync(a, b, 2, client)
    asking = await waits(client, B, b, 2, 60_000)
    await b.leads(view(leader=B, leader_epoch=2, epoch=2, isr=(B,)))
    error = refusal(await asking)
    assert (error.code, error.retriable) == (Code.UNAVAILABLE, True)
    answer = await ask(client, B, offset=0, leader_epoch=2)
    assert decode_header(answer.data) == (2, 2)
    await a.follows(view(leader=B, leader_epoch=2, epoch=2, isr=(B,)))
    assert "not in sync" in refusal(await ask(client, A, offset=0)).message
    a.broker.on_partitions([view(leader=B, leader_epoch=2, epoch=3, isr=BOTH)])
    role = a.replica.role
    assert isinstance(role, FollowerDriver)
    await until(lambda: role.core._reads.refusal(a.context.now()) is None)
    assert decode_header((await ask(client, A, offset=0)).data)[0] == 2


async def test_a_follower_whose_leader_is_silent_sends_its_consumers_elsewhere(
    nats_server: EmbeddedNatsServer, tmp_path: Path, a: Node, client: NatsConnection
) -> None:
    """Cut off from the leader, and reachable: its records are committed, but others have more."""
    settings = ReplicaSettings(replica_max_idle_wait=0.1, replica_fetch_timeout=0.1, follower_read_max_age=0.4)
    b = await Node(B, tmp_path / "b").start(nats_server.url, settings)
    try:
        leader, follower = await in_sync(a, b, 1, client)
        leader.core.on_fetch = lambda *_: []  # type: ignore[attr-defined]
        leader.core.on_parked = lambda *_: False  # type: ignore[attr-defined]
        asking = asyncio.create_task(ask(client, B, timeout=30, offset=1, max_wait_ms=60_000))
        assert refusal(await asking).code is Code.UNAVAILABLE
        # For good: it refuses for a moment, too, each time that it asks where the logs part.
        await until(lambda: b.context.now() >= follower.core._reads.fetched_at + settings.follower_read_max_age)
        assert refusal(await ask(client, B, offset=0)).code is Code.UNAVAILABLE
    finally:
        await asyncio.wait_for(b.close(), LIMIT)


async def test_a_replica_without_a_lease_sends_consumers_elsewhere(a: Node, b: Node, client: NatsConnection) -> None:
    """A deposed leader and its last follower would tell them for ever that nothing is new, while others commit."""
    await in_sync(a, b, 1, client)
    for name, node in ((A, a), (B, b)):
        node.metadata.lease = False
        error = refusal(await ask(client, name, offset=0))
        assert (error.code, "lease" in str(error)) == (Code.UNAVAILABLE, True)
        node.metadata.lease = True
        assert len((await ask(client, name, offset=0)).data) > HEADER_SIZE


async def test_a_change_of_role_waits_for_no_subscription_of_consumers(
    nats_server: EmbeddedNatsServer, tmp_path: Path, a: Node, client: NatsConnection
) -> None:
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    subscribe = b.ingest.subscribe

    async def hangs(subject: str, handler: Any) -> Any:
        if subject.endswith(".fetch.b"):
            await asyncio.Event().wait()
        return await subscribe(subject, handler)

    b.ingest.subscribe = hangs  # type: ignore[method-assign, assignment]
    try:
        await in_sync(a, b, 1, client)
        assert (await ask(client, B, offset=0)).status == NO_RESPONDERS
        await b.leads(view(leader=B, leader_epoch=2, epoch=2, isr=(B,)))
    finally:
        await asyncio.wait_for(b.close(), LIMIT)


async def test_a_closed_replica_has_no_subscriptions(
    nats_server: EmbeddedNatsServer, tmp_path: Path, a: Node, client: NatsConnection
) -> None:
    b = await Node(B, tmp_path / "b").start(nats_server.url)
    try:
        await in_sync(a, b, 1, client)
        await b.broker.close()
        assert (await ask(client, B, offset=0)).status == NO_RESPONDERS
    finally:
        await asyncio.wait_for(b.close(), LIMIT)


# ---------------------------------------------------------------- three processes
def source_of(consumer: tidelog.Consumer) -> str | None:
    """The follower that partition 0 was fetched from last; None: its leader."""
    assigned = consumer._assigned.get(0)
    return None if assigned is None or assigned.fetcher is None else assigned.fetcher._source


class Reading:
    """A consumer of partition 0 that reads from followers, and its records."""

    def __init__(self, client: tidelog.Client, stream: str, total: int) -> None:
        self.consumer = client.consume(stream, start=0, stop=total, read_from="follower", max_bytes=64 << 10)
        self.offsets: list[int] = []
        self.values: list[bytes | None] = []
        self.sources: set[str | None] = set()
        """Brokers that answered; None: the leader."""
        self.task = asyncio.create_task(self._read())

    @property
    def source(self) -> str | None:
        return source_of(self.consumer)

    async def _read(self) -> None:
        async for batch in self.consumer.batches():
            self.sources.add(self.source)
            self.offsets.extend(int(offset) for offset in batch.offsets)
            self.values.extend(batch.values)

    async def come_to(self, count: int) -> None:
        async with asyncio.timeout(2 * LIMIT):
            while len(self.values) < count:
                assert not self.task.done() or not self.task.exception(), self.task.exception()
                await asyncio.sleep(0.005)


@asynccontextmanager
async def streaming(cluster: DevCluster, stream: str) -> AsyncIterator[tuple[tidelog.Client, tidelog.Producer, str]]:
    """A stream for the time of a test: a client, a producer, and its leader's name."""
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(stream, partitions=1, replication_factor=3)
        description = await wait_in_sync(cluster.nats_url, stream)
        async with client.producer(stream) as producer:
            yield client, producer, str(description["partitions"][0]["leader"])
        await wait_in_sync(cluster.nats_url, stream)
        await client.delete_stream(stream)


def values_of(total: int) -> list[bytes]:
    return [b"%08d" % i + b"x" * 120 for i in range(total)]


async def send_slowly(producer: tidelog.Producer, values: list[bytes], stopped: asyncio.Event) -> None:
    """Some at a time, until the last; so that reading goes on while things happen."""
    for at in range(0, len(values), 200):
        await producer.send_many(values[at : at + 200])
        if not stopped.is_set():
            await asyncio.sleep(0.02)


@pytest.mark.timeout(900)
async def test_the_replica_in_the_consumers_rack_is_read_from(tmp_path: Path) -> None:
    racks = {"b1": "east", "b2": "west", "b3": "north"}
    settings: dict[str, dict[str, Any]] = {broker: {"rack": rack} for broker, rack in racks.items()}
    with DevCluster(tmp_path, port=0, settings_of=settings) as cluster:
        cluster.wait_ready(2 * LIMIT)
        async with streaming(cluster, "near") as (client, producer, leader):
            await producer.send_many(values_of(1000))
            assert (await client.metadata("near")).racks == racks
            for broker, rack in racks.items():

                async def is_read_from(rack: str = rack, broker: str | None = broker) -> bool:
                    """A follower whose last fetch is old sends its consumers elsewhere."""
                    async with client.consume("near", read_from="nearest", rack=rack) as consumer:
                        assert len(await consumer.getmany(1, timeout=LIMIT)) == 1
                        return source_of(consumer) == (None if broker == leader else broker)

                await until(is_read_from, f"records from {broker}")
            follower = next(broker for broker in racks if broker != leader)
            async with client.consume("near", start="new", read_from="nearest", rack=racks[follower]) as consumer:
                cluster.kill(follower)
                await producer.send_many(values_of(10))
                assert await consumer.getone(timeout=60) is not None
                assert source_of(consumer) is None, "the leader"
            cluster.start_broker(follower)


async def test_a_consumer_of_followers_gets_committed_records(cluster: DevCluster) -> None:
    async with streaming(cluster, "plain") as (client, producer, leader):
        values = values_of(50_000)
        reading = Reading(client, "plain", len(values))
        await producer.send_many(values)
        await asyncio.wait_for(reading.task, 2 * LIMIT)
        assert reading.values == values
        assert reading.offsets == list(range(len(values)))
        assert reading.sources - {None}, "followers served"
        assert leader not in reading.sources
        done = tidelog_command(
            "subscribe", "plain", "--stop", "latest", "--read-from", "follower", "--server", cluster.nats_url
        )
        assert (done.returncode, len(done.stdout.splitlines())) == (0, len(values))


@pytest.mark.parametrize("killed", ["source", "leader"])
async def test_reading_goes_on_when_a_broker_is_killed(cluster: DevCluster, killed: str) -> None:
    """The follower that serves; or the leader, and for a moment no follower serves, because another of them leads."""
    async with streaming(cluster, f"kill-{killed}") as (client, producer, leader):
        values = values_of(40_000)
        reading = Reading(client, f"kill-{killed}", len(values))
        hurry = asyncio.Event()
        sending = asyncio.create_task(send_slowly(producer, values, hurry))
        await reading.come_to(2_000)
        victim = reading.source if killed == "source" else leader
        assert victim is not None
        cluster.kill(victim)
        try:
            await reading.come_to(len(reading.values) + 2_000)
            hurry.set()
            await sending
            await asyncio.wait_for(reading.task, 2 * LIMIT)
        finally:
            cluster.start_broker(victim)
        assert reading.values == values, "each record once, in order"
        assert reading.offsets == list(range(len(values)))


async def test_a_paused_follower_is_left_for_another_replica(cluster: DevCluster) -> None:
    """NATS goes on taking messages for it."""
    async with streaming(cluster, "pause") as (client, producer, _):
        values = values_of(40_000)
        reading = Reading(client, "pause", len(values))
        hurry = asyncio.Event()
        sending = asyncio.create_task(send_slowly(producer, values, hurry))
        await reading.come_to(2_000)
        victim = reading.source
        assert victim is not None
        pid = cluster.pid(victim)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            # All of the ISR must have a record before it commits: commits wait until the paused one is dropped. It
            # stands still until this is over.
            await reading.come_to(len(reading.values) + 2_000)
            assert reading.source != victim
        finally:
            os.kill(pid, signal.SIGCONT)
        hurry.set()
        await sending
        await asyncio.wait_for(reading.task, 2 * LIMIT)
        assert reading.values == values, "each record once, in order"
        assert reading.offsets == list(range(len(values)))
