"""Coordinators of groups on real brokers, asked by members that are messages: kills, and brokers that stand still."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

import tidelog
from tests.integration.rig.waiting import LIMIT
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.errors import TidelogError
from wire.internal_records.group_records import COMMIT, HEARTBEAT, OFFSETS, coordinator_partition, coordinator_subject
from wire.internal_streams import GROUPS
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommitResponse,
    CommittedOffset,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetsRequest,
    OffsetsResponse,
    Subscription,
)
from wire.subjects import Subjects

GROUP = "raw"
SUBJECTS = Subjects()


class Asker:
    """Asks until it is answered; refusals that pass are asked again."""

    def __init__(self, nats: NatsConnection, client: tidelog.Client) -> None:
        self.nats = nats
        self.client = client

    async def ask(self, kind: str, request: Any, answer: Any) -> Any:
        subject = coordinator_subject(SUBJECTS, kind, GROUP)
        async with asyncio.timeout(2 * LIMIT):
            while True:
                try:
                    message = await self.nats.request(subject, request.SerializeToString(), timeout=1)
                except TimeoutError:
                    continue
                error = TidelogError.from_headers(message.headers)
                if message.status is None and error is None:
                    return answer.FromString(message.data)
                assert error is None or error.retriable, error
                await asyncio.sleep(0.02)

    async def join(self, member: str) -> HeartbeatResponse:
        request = HeartbeatRequest(
            group=GROUP,
            member=member,
            kind=HeartbeatRequest.JOIN,
            subscription=Subscription(streams=["read"]),
            session_timeout_ms=300_000,
            rebalance_timeout_ms=300_000,
        )
        found: HeartbeatResponse = await self.ask(HEARTBEAT, request, HeartbeatResponse)
        return found

    async def commit(self, member: str, generation: int, incarnation: int, offset: int) -> None:
        offsets = [CommittedOffset(stream="read", incarnation=incarnation, partition=0, offset=offset)]
        request = CommitRequest(group=GROUP, member=member, generation=generation, offsets=offsets)
        await self.ask(COMMIT, request, CommitResponse)

    async def committed(self) -> int:
        answer = await self.ask(OFFSETS, OffsetsRequest(group=GROUP), OffsetsResponse)
        return int(answer.offsets[0].offset)

    async def coordinator(self) -> str:
        async with asyncio.timeout(LIMIT):
            while True:
                described = await self.client.describe(GROUPS.name)
                leader = described["partitions"][coordinator_partition(GROUP)]["leader"]
                if leader is not None:
                    return leader
                await asyncio.sleep(0.05)


@pytest.fixture
async def asker(cluster: DevCluster) -> AsyncIterator[Asker]:
    nats = await NatsConnection.connect(cluster.nats_url)
    async with await tidelog.connect(cluster.nats_url) as client:
        yield Asker(nats, client)
    await nats.close()


async def test_what_was_acknowledged_survives_the_coordinators_death_and_the_death_of_all(
    cluster: DevCluster, asker: Asker
) -> None:
    await asker.client.create_stream("read")
    incarnation = (await asker.client.metadata("read")).incarnation
    await asker.client.reset_group(GROUP, to={("read", 0): 0})  # makes the internal stream
    joined = await asker.join("a")
    await asker.commit("a", joined.generation, incarnation, 5)
    leader = await asker.coordinator()
    cluster.kill(leader)
    assert await asker.committed() == 5
    await asker.commit("a", joined.generation, incarnation, 6)
    cluster.start_broker(leader)
    cluster.wait_ready(2 * LIMIT)
    for broker in [*cluster.data_dirs]:
        cluster.kill(broker)
    for broker in [*cluster.data_dirs]:
        cluster.start_broker(broker)
    cluster.wait_ready(2 * LIMIT)
    assert await asker.committed() == 6
    await asker.commit("a", joined.generation, incarnation, 7)  # it is a member still
    assert await asker.committed() == 7

    # A coordinator that stands still while another one takes commits gives no older answer when it wakes.
    stopped = await asker.coordinator()
    cluster.kill(stopped, signal.SIGSTOP)
    try:
        await asker.commit("a", joined.generation, incarnation, 20)
    finally:
        cluster.kill(stopped, signal.SIGCONT)
    told = [await asker.committed() for _ in range(200)]
    assert set(told) == {20}
