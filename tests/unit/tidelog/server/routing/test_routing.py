"""Requests of clients about routing: who is answered, from what, and what is left where too many ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from metadata.cluster.model import Outcome
from tests.fake_nats import FakeTransport, Hub, delivered
from tests.unit.metadata.cluster_bench import CLUSTER_ID, Cluster
from tidelog.nats.request_queue import WAITING_REQUESTS
from tidelog.server.routing.routing_service import QUEUE, RoutingRequests
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.operations.adoption_report import ADOPT, MAX_REPORT_BYTES
from wire.operations.stream_routes import TOPOLOGY
from wire.subjects import Subjects
from wire.types import BrokerId

SUBJECTS = Subjects()


class World:
    def __init__(self) -> None:
        self.cluster = Cluster("a", "b", "c")
        self.hub = Hub()
        self.broker = FakeTransport(self.hub)
        self.client = FakeTransport(self.hub)
        self.has_lease = True
        metadata: Any = SimpleNamespace(
            state=self.cluster.state,
            broker_id=BrokerId("a"),
            cluster_id=CLUSTER_ID,
            stream_changes=0,
            lease_valid=lambda _: self.has_lease,
        )
        self.metadata = metadata
        self.routing = RoutingRequests(metadata, self.broker, SUBJECTS, asyncio.get_running_loop().time, lambda: 0.0)

    def applied(self, outcome: Outcome) -> None:
        assert outcome.code is None, outcome.message
        self.metadata.stream_changes += 1
        self.routing.observe(outcome.changes)

    async def ask(self, headers: dict[str, str] | None = None, **request: Any) -> Any:
        payload = TOPOLOGY.encode_request(**request)
        message = await self.client.request(SUBJECTS.topology(), payload, timeout=5, headers=headers)
        assert message.headers is not None
        assert message.headers[CLUSTER_HEADER] == CLUSTER_ID
        return TOPOLOGY.decode_answer(message.data, message.headers)

    async def adopt(self, client_id: str, **streams: int) -> Any:
        payload = ADOPT.encode_request(client_id=client_id, streams=streams)
        message = await self.client.request(SUBJECTS.adopt(BrokerId("a")), payload, timeout=5)
        return ADOPT.decode_answer(message.data, message.headers)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.routing.start()
    yield made
    await made.routing.close()


async def test_brokers_listen_in_one_queue_for_the_topology_and_each_for_its_own_clients(world: World) -> None:
    assert world.broker.queues == {
        "tidelog.metadata.topology": QUEUE,
        "tidelog.metadata.topology.*": QUEUE,
        "tidelog.metadata.adopt.a": "",
    }
    await world.routing.close()
    assert world.broker.subscribed == {}


async def test_a_broker_without_a_lease_tells_no_routes(world: World) -> None:
    world.applied(world.cluster.create("s"))
    assert [stream["name"] for stream in (await world.ask())["streams"]] == ["s"]
    world.has_lease = False
    with pytest.raises(TidelogError) as refused:
        await world.ask()
    assert refused.value.code is Code.UNAVAILABLE
    assert refused.value.retriable


async def test_requests_for_another_cluster_are_refused(world: World) -> None:
    assert (await world.ask({CLUSTER_HEADER: CLUSTER_ID}))["cluster_id"] == CLUSTER_ID
    with pytest.raises(TidelogError) as refused:
        await world.ask({CLUSTER_HEADER: "other"})
    assert refused.value.code is Code.WRONG_CLUSTER


async def test_streams_count_for_the_label_while_they_are_repartitioned(world: World) -> None:
    cluster = world.cluster
    for name in ("s", "t", "u"):
        world.applied(cluster.create(name, ["a b c"] * 2))
    await world.adopt("c1", s=5, t=5)
    await world.adopt("c2", s=7)
    assert world.routing.adopted() == {}
    for name in ("s", "u"):
        world.applied(cluster.prepare(1, name=name))
    assert world.routing.adopted() == {"s": 5}, "no session names u, and t is not repartitioned"
    assert world.routing.counters()["topology_adoption_min"] == 5
    assert world.routing.counters()["topology_adoption_sessions"] == 2
    world.applied(cluster.cut_over())
    assert world.routing.adopted() == {"s": 5}
    world.applied(cluster.report_cutover(cluster.cutover_at(0, 3), cluster.cutover_at(1, 3)))
    world.applied(cluster.finish())
    assert world.routing.adopted() == {}
    world.applied(cluster.prepare(2))
    assert world.routing.adopted() == {"s": 5}
    world.applied(cluster.delete("s"))
    assert world.routing.adopted() == {}


async def test_a_flood_is_refused_beyond_the_queue(world: World) -> None:
    answers: list[TidelogError | None] = []
    inbox = world.client.new_inbox()
    world.client.on_inbox(inbox, lambda message: answers.append(TidelogError.from_headers(message.headers)))
    for number in range(WAITING_REQUESTS.items + 50):
        world.client.publish(SUBJECTS.adopt(BrokerId("a")), [b"{%d" % number], reply=inbox)
        world.client.publish(SUBJECTS.topology(), [b'{"after": "%d"}' % number], reply=inbox)
    async with asyncio.timeout(30):
        while len(answers) < 2 * WAITING_REQUESTS.items + 100:  # noqa: ASYNC110 - answers come from the service's own tasks
            await asyncio.sleep(0.01)
    refused = [error for error in answers if error is not None and error.code is Code.BACKPRESSURE]
    assert len(refused) == 100 == world.routing.counters()["dropped_routing_requests"]
    assert (await world.ask())["next"] is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"x", b'{"client_id": 3}', b" " * (MAX_REPORT_BYTES + 1)])
async def test_a_report_that_cannot_be_read_is_refused(world: World, data: bytes) -> None:
    message = await world.client.request(SUBJECTS.adopt(BrokerId("a")), data, timeout=5)
    with pytest.raises(TidelogError) as refused:
        ADOPT.decode_answer(message.data, message.headers)
    assert refused.value.code is Code.BAD_REQUEST
    assert len(world.routing.sessions) == 0


async def test_a_report_without_a_reply_counts_as_well(world: World) -> None:
    payload = ADOPT.encode_request(client_id="c", streams={})
    world.client.publish(SUBJECTS.adopt(BrokerId("a")), [payload])
    await delivered()
    assert len(world.routing.sessions) == 1


async def test_on_the_subject_of_a_stream_that_one_alone_is_told(world: World) -> None:
    """NATS lets a client ask there that may see no other stream."""
    for streams in ([], ["payments"], ["orders", "payments"]):
        message = await world.client.request(
            SUBJECTS.topology("orders"), TOPOLOGY.encode_request(streams=streams), timeout=5
        )
        with pytest.raises(TidelogError, match="its subject 'orders'; name that one alone"):
            TOPOLOGY.decode_answer(message.data, message.headers)
    message = await world.client.request(
        SUBJECTS.topology("orders"), TOPOLOGY.encode_request(streams=["orders"]), timeout=5
    )
    TOPOLOGY.decode_answer(message.data, message.headers)
