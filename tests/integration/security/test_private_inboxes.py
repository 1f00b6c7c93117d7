"""Requests whose reply subject is not the requester's inbox, on a cluster with NATS open to all.

A broker answers none of them: nothing is written to another stream, no NATS service and no broker is asked in its name.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator

import nats
import nats.micro
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from nats.micro.request import Request

import tidelog
from tests.integration.rig.brokers_status import counters_of_all, described
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import wait_in_sync
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder
from wire.partition_messages.append import encode_append
from wire.partition_messages.liftbridge_envelope import encode_publish
from wire.protobuf.tidelog_pb2 import AckPolicy, AppendRequest, FetchRequest, LeaderEpochOffsetRequest, Message
from wire.types import LeaderEpoch, Offset

OPEN = "open"
VICTIM = "victim"

REFUSED = [VICTIM, f"{VICTIM}.1", f"tidelog.{VICTIM}.0.append", f"tidelog.api.stream.delete.{VICTIM}",
           "tidelog.inbox.b1.x.1", "$JS.API.INFO", "$SRV.PING", "_INBOX.>", "_INBOX.a..b"]  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("replies") / "cluster") as running:
        asyncio.run(_create_streams(running.nats_url))
        yield running


async def _create_streams(url: str) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream(OPEN, replication_factor=3)
        await client.create_stream(VICTIM, partitions=2, replication_factor=3)
    await wait_in_sync(url, OPEN)
    await wait_in_sync(url, VICTIM)


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[Client]:
    async with await tidelog.connect(cluster.nats_url) as connected:
        yield connected


@pytest.fixture
async def attacker(cluster: DevCluster) -> AsyncIterator[NatsClient]:
    connection = await nats.connect(cluster.nats_url)
    yield connection
    await connection.close()


async def refused(client: Client) -> int:
    return sum(counted["refused_replies"] for counted in (await counters_of_all(client)).values())


async def ends(client: Client, stream: str) -> list[int]:
    found = (partition["log_end_offset"] for partition in (await described(client, stream))["partitions"])
    return [end for end in found if end is not None]


def batch() -> bytes:
    builder = BatchBuilder()
    builder.add_record(b"appended")
    request = AppendRequest()
    return b"".join(encode_append(request, builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0]))


@pytest.mark.parametrize("reply", REFUSED)
async def test_no_broker_answers_where_no_client_has_its_inbox(
    cluster: DevCluster, client: Client, attacker: NatsClient, reply: str
) -> None:
    heard: list[Msg] = []

    async def listen(message: Msg) -> None:
        heard.append(message)

    before, stored, victim = await refused(client), (await ends(client, OPEN))[0], await ends(client, VICTIM)
    if not reply.startswith("$SRV"):
        await attacker.subscribe("_INBOX.>" if reply.startswith("_INBOX") else reply, cb=listen)
    requests = {
        f"tidelog.{OPEN}.0.fetch": FetchRequest(offset=0, max_bytes=1, max_wait_ms=1).SerializeToString(),
        f"tidelog.{OPEN}.0.append": batch(),
        "tidelog.api.cluster.id": b"{}",
        "tidelog.api.presence": b"",
        "$SRV.PING.tidelog": b"",
    }
    for subject, payload in requests.items():
        await attacker.publish(subject, payload, reply=reply)
    for payload in (b"a", b"b", b"other length", b"x" * 100):  # runs of one length, and mixed
        for _ in range(20):
            await attacker.publish(OPEN, payload, reply=reply)
    envelope = encode_publish(Message(value=b"e", ackInbox=reply, ackPolicy=AckPolicy.ALL))
    await attacker.publish(OPEN, envelope)
    await attacker.flush()

    async def all_stored() -> bool:
        return (await ends(client, OPEN))[0] == stored + 81

    await until(all_stored, "plain records, stored as if without a reply,")
    assert await ends(client, VICTIM) == victim, "an answer was written to another stream"
    assert [m for m in heard if m.subject == reply] == [], "a broker answered"
    each_broker = len(cluster.broker_ids) - 1  # all of them hear the question which brokers there are

    async def all_refused() -> bool:
        counted = await refused(client) - before
        assert counted <= 81 + len(requests) + each_broker
        return counted == 81 + len(requests) + each_broker

    await until(all_refused, "a count of each refused reply")


@pytest.mark.parametrize("reply", ["_INBOX.client.1", VICTIM, f"tidelog.{VICTIM}.0.append"])
async def test_requests_between_brokers_are_answered_in_inboxes_of_brokers_only(
    client: Client, attacker: NatsClient, reply: str
) -> None:
    heard: list[Msg] = []

    async def listen(message: Msg) -> None:
        heard.append(message)

    victim = await ends(client, VICTIM)
    await attacker.subscribe(reply, cb=listen)
    for subject, payload in {
        f"tidelog.{OPEN}.0.offset": LeaderEpochOffsetRequest(leaderEpoch=1).SerializeToString(),
        f"tidelog.{OPEN}.0.replicate": b"",
        f"tidelog.{OPEN}.0.checkpoint": b"\xff",
        "tidelog.metadata.cluster": b"",
        "tidelog.metadata.status.b1": b"{}",
        "tidelog.metadata.drain.b1": b"",
    }.items():
        await attacker.publish(subject, payload, reply=reply)
    await attacker.flush()
    await client.cluster_status()  # all brokers have read what came before this
    await attacker.flush()
    assert heard == [], "a broker answered"
    assert await ends(client, VICTIM) == victim


async def test_the_prefix_of_a_client_may_come_from_the_environment(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDELOG_INBOX_PREFIX", "_INBOX.alice")
    for given, prefix in ((None, "_INBOX.alice."), ("_INBOX.bob", "_INBOX.bob.")):
        async with await tidelog.connect(cluster.nats_url, inbox_prefix=given) as client:
            assert client._transport.new_inbox().startswith(prefix)
            assert await client.streams()


async def test_answers_on_other_inboxes_than_the_default(client: Client, cluster: DevCluster) -> None:
    connection = await nats.connect(cluster.nats_url, inbox_prefix=b"_INBOX.alice")
    other = await nats.connect(cluster.nats_url, inbox_prefix=b"apps.bob.inbox")
    before = await refused(client)
    for asker in (connection, other):
        answers = await asyncio.gather(*(asker.request(OPEN, b"%03d" % number, timeout=LIMIT) for number in range(50)))
        assert all(json.loads(answer.data)["stream"] == OPEN for answer in answers)
        answer = await asker.request("tidelog.api.cluster.id", b"{}", timeout=LIMIT)
        assert json.loads(answer.data)["cluster_id"]
        await asker.close()
    assert await refused(client) == before


async def test_an_inbox_becomes_a_stream_and_is_answered_no_longer(client: Client, cluster: DevCluster) -> None:
    asker = await nats.connect(cluster.nats_url, inbox_prefix=b"late.inbox")
    assert (await asker.request(OPEN, b"before", timeout=LIMIT)).data
    prefix = asker.new_inbox().rpartition(".")[0]
    await client.create_stream("late", subject=f"{prefix}.1", replication_factor=3)
    await wait_in_sync(cluster.nats_url, "late")
    await asker.publish(OPEN, b"after", reply=f"{prefix}.1")
    await asker.flush()
    before = await refused(client)
    assert before > 0
    assert await ends(client, "late") == [0]
    await asker.close()


async def test_a_subject_that_a_nats_service_serves_is_no_streams(client: Client, cluster: DevCluster) -> None:
    asked: list[bytes] = []

    async def serve(request: Request) -> None:
        asked.append(request.data)
        await request.respond(b"4.20")

    connection = await nats.connect(cluster.nats_url)
    service = await nats.micro.add_service(connection, name="prices", version="1.0.0")
    await service.add_endpoint(name="quote", subject="shop.quote", handler=serve)
    await service.add_endpoint(name="history", subject="shop.history.*", handler=serve)
    for subject in ("shop.quote", "shop.history.all", "shop.history", "shop.history.7"):

        async def is_refused(subject: str = subject) -> tidelog.TidelogError | None:
            """A service that does not tell of itself within some hundredths of a second is not seen."""
            try:
                await client.create_stream("shop", subject=subject)
            except tidelog.TidelogError as error:
                return error
            await client.delete_stream("shop")
            return None

        refused = await until(is_refused, f"the refusal of {subject}")
        assert refused.code.name == "SUBJECT_TAKEN"
        assert "'prices' serves 'shop" in refused.message
        assert "reply_acks=false" in refused.message
    assert asked == [], "a service got a message for the question"
    await client.create_stream("shop", subject="shop.quote", config={"reply_acks": False})
    await wait_in_sync(cluster.nats_url, "shop")
    assert (await connection.request("shop.quote", b"?", timeout=LIMIT)).data == b"4.20"
    await client.create_stream("other", subject="shop.quotes")
    await service.stop()
    await connection.close()


async def test_the_creation_of_a_stream_is_no_refused_reply(client: Client) -> None:
    before = await refused(client)
    await client.create_stream("created")
    assert await refused(client) == before
