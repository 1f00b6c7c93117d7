"""Topology, pushes and adoption against a real cluster, asked by a plain NATS client without any tag."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import tidelog
from tests.integration.rig.brokers_status import counters_of
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster
from wire.error_details import LIMIT as WHICH_LIMIT
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.operations.adoption_report import ADOPT, SESSION_TTL_S, AdoptionTaken
from wire.operations.api_operations import METADATA, StreamRoutes, Topology
from wire.operations.stream_routes import TOPOLOGY
from wire.subjects import Subjects
from wire.types import BrokerId

SUBJECTS = Subjects()
STREAMS = ("flights", "orders", "payments")


@pytest.fixture
async def stranger(cluster: DevCluster) -> AsyncIterator[NatsClient]:
    connected = await nats.connect(cluster.nats_url)
    yield connected
    await connected.close()


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[Client]:
    async with await tidelog.connect(cluster.nats_url) as connected:
        for stream in STREAMS:
            await connected.ensure_stream(stream, partitions=2, replication_factor=3)
        yield connected


async def ask(stranger: NatsClient, headers: dict[str, str] | None = None, **request: Any) -> Topology:
    message = await stranger.request(
        SUBJECTS.topology(), TOPOLOGY.encode_request(**request), timeout=LIMIT, headers=headers
    )
    return TOPOLOGY.decode_answer(message.data, message.headers)


async def routes(stranger: NatsClient, stream: str) -> StreamRoutes:
    """As the controller tells them."""
    message = await stranger.request(SUBJECTS.api("metadata", stream), METADATA.encode_request(stream), timeout=LIMIT)
    return METADATA.decode_answer(message.data, message.headers)["streams"][0]


async def adopt(stranger: NatsClient, broker: str, client_id: str, **streams: int) -> AdoptionTaken:
    payload = ADOPT.encode_request(client_id=client_id, streams=streams)
    message = await stranger.request(SUBJECTS.adopt(BrokerId(broker)), payload, timeout=LIMIT)
    return ADOPT.decode_answer(message.data, message.headers)


async def test_one_broker_answers_each_question_and_all_brokers_do_in_turn(
    cluster: DevCluster, client: Client, stranger: NatsClient
) -> None:
    del client
    answers: list[Msg] = []

    async def on_answer(message: Msg) -> None:
        answers.append(message)

    inbox = stranger.new_inbox()
    await stranger.subscribe(inbox, cb=on_answer)
    for number in range(60):
        await stranger.publish(SUBJECTS.topology(), b'{"after": "%d"}' % number, reply=inbox)
    await until(lambda: len(answers) >= 60)
    await asyncio.sleep(0.2)
    assert len(answers) == 60, "one answer to each question"
    pages = [TOPOLOGY.decode_answer(answer.data, answer.headers) for answer in answers]
    assert {page["home_broker"] for page in pages} == {*cluster.broker_ids}
    ids = {page["cluster_id"] for page in pages}
    assert len(ids) == 1
    assert all(answer.headers is not None and answer.headers[CLUSTER_HEADER] in ids for answer in answers)


async def test_routes_are_those_that_the_controller_tells(client: Client, stranger: NatsClient) -> None:
    del client
    told = {stream: await routes(stranger, stream) for stream in STREAMS}
    for _ in range(10):
        page = await ask(stranger, streams=list(STREAMS))
        for found in page["streams"]:
            assert found == {**told[found["name"]], "generation": found["generation"]}
    assert [stream["name"] for stream in (await ask(stranger, after="flights", limit=1))["streams"]] == ["orders"]


async def test_a_question_for_another_cluster_is_refused(client: Client, stranger: NatsClient) -> None:
    del client
    with pytest.raises(TidelogError) as refused:
        await ask(stranger, headers={CLUSTER_HEADER: "another"})
    assert refused.value.code is Code.WRONG_CLUSTER


async def test_a_change_of_leader_is_pushed_and_a_change_of_settings_is_not(
    client: Client, stranger: NatsClient
) -> None:
    pushed: list[StreamRoutes] = []

    async def on_push(message: Msg) -> None:
        pushed.append(json.loads(message.data))

    await stranger.subscribe(SUBJECTS.push("orders"), cb=on_push)
    await stranger.flush()
    before = await routes(stranger, "orders")
    await client.alter_stream("orders", config={"retention_max_age_ms": "3600000"})
    first = before["partitions"][0]
    target = next(broker for broker in first["isr"] if broker != first["leader"])
    await client.move_leader("orders", 0, target)
    # Those that a young controller repeats are of the generation before.
    await until(lambda: any(routes["routing_generation"] > before["routing_generation"] for routes in pushed))
    newest = pushed[-1]
    assert newest["partitions"][0]["leader"] == target
    assert newest["config"]["retention_max_age_ms"] == "3600000"
    assert len([routes for routes in pushed if routes["routing_generation"] > before["routing_generation"]]) == 1
    assert newest == {**await routes(stranger, "orders"), "generation": newest["generation"]}


async def test_a_home_broker_takes_reports_and_refuses_those_beyond_its_limits(
    client: Client, stranger: NatsClient
) -> None:
    home = (await ask(stranger))["home_broker"]
    before = await counters_of(client, home)
    assert await adopt(stranger, home, "c1", orders=7) == {"ttl_ms": int(1000 * SESSION_TTL_S)}
    refusals = []
    for number in range(101):
        try:
            await adopt(stranger, home, f"forged-{number}", orders=1)
        except TidelogError as error:
            refusals.append(error)
    # nats-py has one inbox for all of its requests, and `c1` came over it, too.
    assert [error.detail(WHICH_LIMIT) for error in refusals] == ["adoption_sessions_of_client"] * 2
    for data in (b"nonsense", b"{}", b'{"client_id": "", "streams": {}}'):
        message = await stranger.request(SUBJECTS.adopt(BrokerId(home)), data, timeout=LIMIT)
        with pytest.raises(TidelogError) as refused:
            ADOPT.decode_answer(message.data, message.headers)
        assert refused.value.code is Code.BAD_REQUEST
    after = await counters_of(client, home)
    # Those of clients that have gone end meanwhile.
    assert 100 <= after["topology_adoption_sessions"] <= before["topology_adoption_sessions"] + 100
    assert after["refused_adoption_reports"] == before["refused_adoption_reports"] + 3
    assert after["topology_adoption_min"] == 0, "no stream is being repartitioned"


async def test_a_client_of_a_broker_that_is_away_hears_so_at_once(client: Client, stranger: NatsClient) -> None:
    del client
    with pytest.raises(nats.errors.NoRespondersError):
        await adopt(stranger, "b9", "c1")


async def test_a_stranger_still_speaks_for_no_broker_beside_these_subjects(
    client: Client, stranger: NatsClient
) -> None:
    """Of the subjects of metadata, topology, push and adopt alone are open."""
    before = {routes["name"]: routes for routes in [await routes(stranger, stream) for stream in STREAMS]}
    status = await client.cluster_status()
    ids = [broker["id"] for broker in status["brokers"]]
    subjects = ["controller"]
    for broker in ids:
        subjects += [f"probe.{broker}", f"status.{broker}", f"drain.{broker}"]
    reply = "tidelog.inbox.b1.x.1"
    for subject in subjects:
        for _ in range(3):
            await stranger.publish(f"tidelog.metadata.{subject}", b"x" * 64, reply=reply)
    await stranger.flush()

    async def kinds() -> set[str]:
        told = await client.cluster_status()
        return {kind for broker in told["brokers"] for kind in broker["refused_messages"] or {}}

    async with asyncio.timeout(LIMIT):
        while not await kinds() >= {subject.split(".")[0] for subject in subjects}:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    for stream in STREAMS:
        assert (await routes(stranger, stream))["partitions"] == before[stream]["partitions"]
