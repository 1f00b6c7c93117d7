"""Publishers that were written for JetStream, unchanged, on real processes: nats-py's `js.publish`, beside a real
JetStream that is given the same messages."""

# Rules: R46.

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.js.api import PubAck
from nats.js.errors import APIError, BadRequestError, ServerError

import tidelog
from tests.integration.commands.test_readme import ROOT, URL, blocks
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import ReplicatedCluster, observed, three_brokers
from tests.integration.rig.waiting import LIMIT, until
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.devcluster import DevCluster

SUBJECT = "s"
STREAM = "S"
Headers = dict[str, str]

SPECIAL: list[Headers] = [
    {},
    {"Nats-Msg-Id": "a"},
    {"Nats-Msg-Id": "a"},
    {"Nats-Msg-Id": ""},
    {"nats-msg-id": "a"},
    {"Nats-Msg-Id": "x" * 3000},
    {"Nats-Msg-Id": "x" * 3000},
    {"Nats-Expected-Stream": STREAM},
    {"Nats-Expected-Stream": "T"},
    {"Nats-Expected-Stream": ""},
    {"Nats-Expected-Last-Sequence": "3"},
    {"Nats-Expected-Last-Sequence": "7"},
    {"Nats-Expected-Last-Sequence": "700"},
    {"Nats-Expected-Last-Sequence": "abc"},
    {"Nats-Expected-Last-Sequence": "-1"},
    {"Nats-Expected-Last-Sequence": ""},
    {"Nats-Expected-Last-Sequence": "99999999999999999999999"},
    {"Nats-Expected-Last-Msg-Id": "zzz"},
    {"Nats-Msg-Id": "c"},
    {"Nats-Expected-Last-Msg-Id": "c"},
    {"Nats-Expected-Last-Msg-Id": "c"},
    {"Nats-Expected-Last-Msg-Id": ""},
    {"Nats-Expected-Last-Subject-Sequence": "2"},
    {"Nats-Expected-Last-Subject-Sequence": "x"},
    {"Nats-Expected-Last-Subject-Sequence-Subject": SUBJECT},
    {"Nats-Expected-Last-Subject-Sequence": "2", "Nats-Expected-Last-Subject-Sequence-Subject": SUBJECT},
    {"Nats-Rollup": "all"},
    {"Nats-Rollup": "sub"},
    {"Nats-Rollup": "what"},
    {"Nats-Rollup": ""},
    {"Nats-TTL": "10"},
    {"Nats-TTL": "abc"},
    {"Nats-TTL": "never"},
    {"Nats-TTL": "0"},
    {"Nats-TTL": ""},
    {"Nats-Schedule": "@at 2030-01-01T00:00:00Z", "Nats-Schedule-Target": "s.t"},
    {"Nats-Schedule-Target": "s"},
    {"Nats-Scheduler": "x"},
    {"Nats-Schedule-Next": "x"},
    {"Nats-Incr": "+1"},
    {"Nats-Incr": "x"},
    {"Nats-Batch-Id": "u", "Nats-Batch-Sequence": "1"},
    {"Nats-Batch-Id": "u", "Nats-Batch-Sequence": "1", "Nats-Batch-Commit": "1"},
    {"Nats-Stream-Source": "X"},
    {"Nats-Whatever": "x"},
    {"Nats-Msg-Id": "a", "Nats-Expected-Last-Sequence": "3"},
    {"Nats-Msg-Id": "a", "Nats-Expected-Stream": "T"},
    {"Nats-Msg-Id": "a", "Nats-Rollup": "all"},
    {"Nats-Msg-Id": "a", "Nats-TTL": "10"},
    {"Nats-Msg-Id": "a", "Nats-Expected-Last-Msg-Id": "qqq"},
    {"Nats-Expected-Last-Sequence": "3", "Nats-Expected-Last-Msg-Id": "qqq"},
    {"Nats-Expected-Stream": "T", "Nats-Expected-Last-Sequence": "3"},
]
"""Given one after the other: what one message is answered depends on those before it."""
RAW = [
    b"NATS/1.0\r\nNats-Msg-Id: raw\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id:raw\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id:   raw\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id:\traw\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: \traw\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: raw \r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: raw\nraw\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id: raw\rraw\r\n\r\n",
    b"NATS/1.0\r\nNats-Msg-Id : raw\r\n\r\n",
    b"NATS/1.0\r\n Nats-Msg-Id: raw\r\n\r\n",
    b"NATS/1.0\r\nNats-Expected-Last-Msg-Id:\traw\r\n\r\n",
]
"""Header blocks as they stand on the wire, which clients do not write like that."""


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def cluster(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    async with observed(processes) as running:
        yield running


@pytest.fixture
async def publisher(processes: DevCluster) -> AsyncIterator[NatsClient]:
    connection = await nats.connect(processes.nats_url)
    yield connection
    await connection.close()


async def answers(url: str) -> list[dict[str, Any]]:
    """What each of the special messages is answered: the fields that JetStream's clients read."""
    connection = await nats.connect(url)
    told = []
    for number, headers in enumerate([*SPECIAL, {}]):
        payload = b"x" * (6000 if number == len(SPECIAL) else 1)
        answer = json.loads((await connection.request(SUBJECT, payload, timeout=LIMIT, headers=headers or None)).data)
        error = answer.get("error", {})
        told.append(
            {
                "headers": headers,
                "stream": answer["stream"],
                "seq": answer["seq"],
                "duplicate": answer.get("duplicate", False),
                "code": error.get("code"),
                "err_code": error.get("err_code"),
                "unknown to clients": error.keys() - {"code", "err_code", "description"},
            }
        )
    inbox = await connection.subscribe("told")
    for block in RAW:
        await connection._send_command(
            b"HPUB %b told %d %d\r\n%bx\r\n" % (SUBJECT.encode(), len(block), len(block) + 1, block)
        )
        await connection._flush_pending()
        answer = json.loads((await inbox.next_msg(timeout=LIMIT)).data)
        told.append({name: answer.get(name, {}) for name in ("seq", "duplicate")} | {"block": block})
    await connection.close()
    return told


async def until_published(publisher: NatsClient, stream: str, number: int) -> PubAck:
    """As a publisher does that sends its message again until it is acknowledged."""

    async def published() -> PubAck | None:
        headers = {"Nats-Msg-Id": f"id-{number}"}
        try:
            return await publisher.jetstream().publish(stream, b"%d" % number, headers=headers, timeout=2)
        except (APIError, TimeoutError, nats.errors.Error):
            return None

    return await until(published, f"an acknowledgement of {number}")


@pytest.mark.parametrize("replicas", [1, 3])
async def test_special_messages_are_answered_as_jetstream_answers_them(
    cluster: ReplicatedCluster, tmp_path: Path, replicas: int
) -> None:
    server = EmbeddedNatsServer(store_dir=tmp_path, config=f'jetstream {{ store_dir: "{tmp_path}/jetstream" }}')
    server.start()
    try:
        connection = await nats.connect(server.url)
        await connection.jetstream().add_stream(name=STREAM, subjects=[SUBJECT], max_msg_size=5000)
        await connection.close()
        theirs = await answers(server.url)
    finally:
        server.stop()
    settings = {"max_record_bytes": 5000}
    await cluster.client.create_stream(STREAM, subject=SUBJECT, replication_factor=replicas, config=settings)
    ours = await answers(cluster.url)
    await cluster.client.delete_stream(STREAM)
    for mine, real in zip(ours, theirs, strict=True):
        assert mine == real


async def test_nats_pys_publisher_raises_its_own_exceptions(cluster: ReplicatedCluster, publisher: NatsClient) -> None:
    await cluster.create("orders")
    js = publisher.jetstream(timeout=LIMIT)
    first = await js.publish("orders", b"1", headers={"Nats-Msg-Id": "1"})
    assert (first.stream, first.seq, first.duplicate) == ("orders", 1, None)
    again = await js.publish("orders", b"1", headers={"Nats-Msg-Id": "1"})
    assert (again.seq, again.duplicate) == (1, True)
    assert (await js.publish("orders", b"2", headers={"Nats-Expected-Last-Sequence": "1"})).seq == 2
    with pytest.raises(BadRequestError) as refused:
        await js.publish("orders", b"2", headers={"Nats-Expected-Last-Sequence": "1"})
    assert (refused.value.err_code, refused.value.description) == (10071, "wrong last sequence: 2")
    with pytest.raises(BadRequestError, match="expects stream 'shipments'"):
        await js.publish("orders", b"3", stream="shipments")
    with pytest.raises(ServerError, match="rollups"):
        await js.publish("orders", b"3", headers={"Nats-Rollup": "all"})
    with pytest.raises(BadRequestError, match="lifetime"):
        await js.publish("orders", b"3", msg_ttl=5)
    futures = [await js.publish_async("orders", b"%d" % i, headers={"Nats-Msg-Id": str(i % 50)}) for i in range(100)]
    acks = await asyncio.gather(*futures)
    assert len({ack.seq for ack in acks}) == 50
    assert sum(bool(ack.duplicate) for ack in acks) == 51, "id 1 was there before"
    offsets = await cluster.client.offsets("orders", "latest")
    assert offsets[0] == 2 + 49


async def test_a_repetition_is_recognised_by_the_next_leader(cluster: ReplicatedCluster, publisher: NatsClient) -> None:
    await cluster.create("payments")
    js = publisher.jetstream(timeout=LIMIT)
    seqs = {}
    for number in range(60):
        if number in (20, 40):
            leader = await cluster.leader("payments")
            cluster.kill(leader.broker)
        seqs[number] = (await until_published(publisher, "payments", number)).seq
        if number in (30, 50):
            await cluster.heal()
    for number, seq in seqs.items():
        ack = await js.publish("payments", b"again", headers={"Nats-Msg-Id": f"id-{number}"})
        assert (ack.seq, ack.duplicate) == (seq, True)
    values = [r.value async for r in cluster.client.consume("payments", start="earliest", stop="latest")]
    assert values == [b"%d" % number for number in range(60)]


@pytest.mark.timeout(900)  # 5,000 publishes on a slow machine
async def test_the_program_of_the_page_stores_each_record_once_though_its_leader_is_killed(
    cluster: ReplicatedCluster, tmp_path: Path
) -> None:
    await cluster.create("invoices")
    leader = await cluster.leader("invoices")
    program = tmp_path / "publisher.py"
    page = blocks(ROOT / "docs" / "jetstream.md", "python")
    program.write_text(page["Programs that store each record once"].replace(URL, cluster.url))
    process = await asyncio.create_subprocess_exec(sys.executable, program, stdout=asyncio.subprocess.PIPE)
    try:

        async def publishes() -> bool:
            return (await cluster.client.offsets("invoices", "latest"))[0] > 0

        await until(publishes, "the first record")
        cluster.kill(leader.broker)
        said, _ = await asyncio.wait_for(process.communicate(), 6 * LIMIT)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert said.startswith(b"5000 stored, sent again: "), said
    values = await cluster.committed("invoices")
    assert Counter(values) == Counter(b"%d" % number for number in range(5_000))
    await cluster.heal()


async def test_after_a_restart_of_all_brokers_ids_are_known(cluster: ReplicatedCluster, publisher: NatsClient) -> None:
    await cluster.create("restarted")
    js = publisher.jetstream(timeout=LIMIT)
    for number in range(10):
        await js.publish("restarted", b"%d" % number, headers={"Nats-Msg-Id": f"id-{number}"})
    cluster.kill(*cluster.brokers)
    await cluster.heal()

    ack = await until_published(publisher, "restarted", 9)
    assert (ack.seq, ack.duplicate) == (10, True)
    ack = await js.publish("restarted", b"next", headers={"Nats-Expected-Last-Msg-Id": "id-9"})
    assert ack.seq == 11


def test_a_subject_that_jetstream_captures_is_refused(tmp_path: Path) -> None:
    config = f'jetstream {{ store_dir: "{tmp_path}/jetstream" }}'
    with dev_cluster(tmp_path / "cluster", nodes=1, nats_config=config) as cluster:

        async def create() -> None:
            connection = await nats.connect(cluster.nats_url)
            async with await tidelog.connect(cluster.nats_url) as client:
                await client.create_stream("before", replication_factor=1)
                await connection.jetstream().add_stream(name="ORDERS", subjects=["orders.>"])
                with pytest.raises(tidelog.SubjectTaken, match=r"'ORDERS' captures 'orders\.new' too"):
                    await client.create_stream("new", subject="orders.new", replication_factor=1)
                with pytest.raises(tidelog.SubjectTaken, match=r"'ORDERS' captures 'orders\.\*' too"):
                    await client.create_stream("orders", partitions=2, replication_factor=1)
                await client.create_stream("orders", replication_factor=1)
                beside = {"reply_acks": False}
                await client.create_stream("new", subject="orders.new", replication_factor=1, config=beside)
                ack = await connection.jetstream().publish("orders.new", b"v", stream="ORDERS")
                assert (ack.stream, ack.seq) == ("ORDERS", 1)

                async def stored() -> bool:
                    return (await client.offsets("new", "latest"))[0] == 1

                await until(stored, "the record beside JetStream")
            await connection.close()

        asyncio.run(create())


async def test_a_stream_without_acknowledgements_obeys_message_ids_alone(
    cluster: ReplicatedCluster, publisher: NatsClient
) -> None:
    await cluster.create("beside", reply_acks="false")
    for _ in range(2):
        await publisher.publish("beside", b"v", headers={"Nats-Rollup": "all", "Nats-Expected-Stream": "OTHER"})
        await publisher.publish("beside", b"id", headers={"Nats-Msg-Id": "1"})
    await publisher.flush()

    async def stored() -> bool:
        return (await cluster.client.offsets("beside", "latest"))[0] == 3

    await until(stored, "three records")
    assert [r.value async for r in cluster.client.consume("beside", start="earliest", stop="latest")] == [
        b"v",
        b"id",
        b"v",
    ]
