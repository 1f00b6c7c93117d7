"""Bounds on what a stranger can send: attacks by a plain NATS client, or a plain socket, on brokers as `tidelog up`
starts them, under acknowledged load. NATS lets everyone publish everywhere.

After each attack no acknowledged record is lost, all replicas hold the same bytes, no partition is offline, and the
bound that held has counted under its own name. docs/reference.md has the table of bounds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import nats
import pytest
import zstandard
from crc32c import crc32c
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import tidelog
from tests.integration.rig.brokers_status import counters_of_all
from tests.integration.rig.dev_cluster import assert_logs_without, dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import Ledger, acked_load, assert_nothing_lost, wait_in_sync
from tests.peers import peer_link, secrets_of
from tidelog.client.client import Client
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.audit.log_limit import MAX_BYTES
from tidelog.server.devcluster import DevCluster
from wire.batch import BatchBuilder, BatchHeader, Compression, encode_headers
from wire.batch.columns import Column
from wire.batch.header import encode_header
from wire.errors import CLUSTER_HEADER
from wire.internal_records.group_records import HEARTBEAT, KINDS, coordinator_subject
from wire.partition_messages.append import encode_append
from wire.protobuf import metadata_pb2 as pb
from wire.protobuf.groups_pb2 import HeartbeatRequest, Subscription
from wire.protobuf.tidelog_pb2 import AppendRequest, FetchRequest
from wire.subjects import Subjects
from wire.types import LeaderEpoch, Offset

MAX_STALL_S = 6.0
"""Decoding the headers of one such message takes seconds, of all of them several times as long, and a leader without a
lease waits for LEASE; on an idle machine acknowledgements wait for some hundredths of a second."""
LEASE = 15.0
"""Seconds that a leader acts without a controller's probe."""
SETTINGS = {"metadata": {"broker_silence_timeout_s": 12.0, "leader_lease_s": LEASE}}
"""A machine with much else to do is slow, and no broker dead for it."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("hostile") / "cluster", settings=SETTINGS) as running:
        yield running


@dataclass(frozen=True, slots=True)
class Target:
    """A stream under acknowledged load, and the stranger's connection."""

    stream: str
    cluster: DevCluster
    client: Client
    stranger: NatsClient
    ledger: Ledger
    before: Counter[str]

    async def counted(self, name: str) -> int:
        """How far a counter went up since the attack began, of all brokers."""
        return (await counters(self.client))[name] - self.before[name]

    async def goes_on(self, seconds: float = 0.0) -> None:
        """Until a record that is sent `seconds` from now is acknowledged."""
        moment = time.monotonic() + seconds
        await until(lambda: self.ledger.is_acked_after(moment), "an acknowledgement", LIMIT + seconds)


@contextlib.asynccontextmanager
async def under_load(cluster: DevCluster, stream: str) -> AsyncIterator[Target]:
    url = cluster.nats_url
    async with await tidelog.connect(url) as client:
        await client.create_stream(stream, replication_factor=3)
        await wait_in_sync(url, stream)
        stranger = await nats.connect(url)
        try:
            async with acked_load(url, stream) as ledger:
                target = Target(stream, cluster, client, stranger, ledger, await counters(client))
                await target.goes_on()
                yield target
                await target.goes_on()
        finally:
            await stranger.close()
        await assert_nothing_lost(url, ledger, cluster.data_dirs)
        times = ledger.ack_times[0]
        print(f"longest time without an acknowledgement: {max(b - a for a, b in pairwise(times)):.3f} s")
        status = await client.cluster_status()
        assert status["offline_partitions"] == 0
        await client.delete_stream(stream)
    ended = {broker: how for broker in cluster.broker_ids if (how := cluster.exit_status(broker)) is not None}
    assert not ended, "brokers have died"


async def counters(client: Client) -> Counter[str]:
    """Summed over the brokers that live."""
    total: Counter[str] = Counter()
    for counted in (await counters_of_all(client)).values():
        total.update(counted)
    return total


# ---- the controller's messages ------------------------------------------------------------------------------------


async def test_a_probe_of_a_controller_epoch_that_is_not_applied(cluster: DevCluster) -> None:
    """The lease goes on, even if a broker sends the probe. Without a lease a leader acknowledges nothing to publishers
    that name no LeaderEpoch."""
    async with under_load(cluster, "leases") as target:
        status = await target.client.cluster_status()
        as_broker = await NatsConnection.connect(cluster.nats_url, inbox_prefix="tidelog.inbox.stranger")
        link = peer_link(as_broker, secrets_of(cluster))
        for broker in status["brokers"]:
            probe = pb.Probe(
                controller="b1",
                controller_epoch=1 << 63,
                number=1,
                cluster_id=status["cluster_id"],
                incarnation=broker["incarnation"],
            )
            subject = f"tidelog.metadata.probe.{broker['id']}"
            assert (await link.request(subject, probe.SerializeToString(), timeout=LIMIT)).status is None
        await as_broker.close()
        await target.goes_on(LEASE + 1)
        assert await target.counted("dropped_probes_of_unknown_epoch") == len(cluster.broker_ids)


# ---- batches --------------------------------------------------------------------------------------------------------


def dense_batch() -> bytes:
    """An append of 2^20 empty records in some 300 bytes."""
    count = 1 << 20
    sections = bytes(4 * (count + 1) + 4)
    packed = zstandard.ZstdCompressor(level=3).compress(sections)
    body = len(sections).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed
    body += bytes(-len(body) % 8)
    header = BatchHeader(
        Offset(0), LeaderEpoch(0), len(body), int(Compression.ZSTD), int(Column.VALUE), crc32c(body), count, 0,
        1, 1, -1, -1, -1,
    )  # fmt: skip
    return b"".join(map(bytes, encode_append(AppendRequest(acks=AppendRequest.NONE), [encode_header(header), body])))


async def test_batches_of_more_records_than_bytes(cluster: DevCluster) -> None:
    """The stall is printed: on a machine with much else to do the controller may move, whatever the broker is sent."""
    async with under_load(cluster, "dense") as target:
        batch = dense_batch()
        assert len(batch) < 400
        for _ in range(3000):
            await target.stranger.publish("tidelog.dense.0.append", batch)
        await target.stranger.flush()
        await target.goes_on(1.0)
        await until(lambda: _all_counted(target, 3000, "dropped_too_dense"), "a count of each")


def batch_of_headers() -> bytes:
    """An append of 8 MiB of headers, of which the very last does not decode."""
    builder = BatchBuilder()
    headers = encode_headers({"": b""})
    item = headers[1:]
    element = headers[:1] + item * 100_000
    for _ in range(7):
        builder.add_record(b"", headers=element)
    builder.add_record(b"", headers=headers[:1] + b"cut")
    parts = builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0]
    return b"".join(map(bytes, encode_append(AppendRequest(acks=AppendRequest.NONE), parts)))


async def test_batches_whose_headers_take_long(cluster: DevCluster) -> None:
    async with under_load(cluster, "headers") as target:
        batch = batch_of_headers()
        for _ in range(12):
            await target.stranger.publish("tidelog.headers.0.append", batch)
        await target.stranger.flush()
        await until(
            lambda: _all_counted(target, 12, "dropped_corrupt_batch", "dropped_decode_queue"), "a count of each"
        )


async def _all_counted(target: Target, count: int, *names: str) -> bool:
    now = await counters(target.client)
    return sum(now[name] - target.before[name] for name in names) >= count


# ---- headers --------------------------------------------------------------------------------------------------------


async def test_messages_whose_headers_take_long(cluster: DevCluster) -> None:
    """8 MiB of header lines, of which decoding takes seconds: as a request that a consumer may make, to subjects of
    brokers, and to the controller."""
    lines = b"".join(b"%x:\r\n" % number for number in range(1_000_000))
    block = b"NATS/1.0\r\n" + lines + b"\r\n"
    subjects = ["tidelog.lines.0.fetch", "$SRV.PING", "tidelog.metadata.cluster"]
    subjects += [f"tidelog.{kind}.{broker}" for kind in ("notify", "metadata.probe") for broker in cluster.broker_ids]
    async with under_load(cluster, "lines") as target:
        for subject in subjects:
            parts = b"HPUB %b _INBOX.stranger %d %d\r\n" % (subject.encode(), len(block), len(block)), block, b"\r\n"
            await target.stranger._send_command(b"".join(parts))
            await target.stranger.flush()
        # Each is heard by one broker, the leader, the controller or the one that it names; claims by all.
        heard = len(subjects) - 1 + len(cluster.broker_ids)
        await until(lambda: _all_counted(target, heard, "dropped_headers"), "a count of each")
        await target.goes_on(1.0)
        times = target.ledger.ack_times[0]
        assert max(after - before for before, after in pairwise(times)) < MAX_STALL_S


async def test_subjects_and_replies_of_control_characters(cluster: DevCluster) -> None:
    """NATS passes nearly all of them on, a carriage return too. No broker loses its connection for one."""
    async with under_load(cluster, "controls") as target:
        for code in (*range(9), *range(11, 32), 0x7F, 0x85, 0xFF):
            record = b"control:%d:" % code
            target.ledger.sent.add(record)
            lines = [b"PUB controls re%cply %d\r\n%b\r\n" % (code, len(record), record)]
            named = b"controls.a%cb", b"tidelog.api.metadata.a%cb", b"tidelog.controls.0.fetch.b%c1"
            lines += [b"PUB %b 1\r\nx\r\n" % (subject % code) for subject in named]
            asked = b"tidelog.controls.0.fetch", b"tidelog.controls.0.replicate", b"$SRV.PING"
            lines += [b"PUB %b re%cply 1\r\nx\r\n" % (subject, code) for subject in asked]
            await target.stranger._send_command(b"".join(lines))
        await target.stranger.flush()
        await target.goes_on(1.0)
        times = target.ledger.ack_times[0]
        assert max(after - before for before, after in pairwise(times)) < MAX_STALL_S
    assert_logs_without(cluster, "line of the NATS protocol")


# ---- consumers ------------------------------------------------------------------------------------------------------


async def test_many_fetches_at_once(cluster: DevCluster) -> None:
    """Five thousand requests of one client for a large record in memory: some 300 KB that ask for gigabytes."""
    async with under_load(cluster, "gulps") as target:
        async with target.client.producer(target.stream) as producer:
            value = b"fill:0:" + bytes(500_000)
            target.ledger.sent.add(value)
            receipt = await producer.send(value)
            target.ledger.acknowledge(value, receipt.partition, receipt.offset)
        request = FetchRequest(offset=receipt.offset, max_bytes=1 << 30).SerializeToString()
        for number in range(5_000):
            await target.stranger.publish("tidelog.gulps.0.fetch", request, reply=f"_INBOX.gulps.{number}")
        await target.stranger.flush()
        await target.goes_on(1.0)
        await until(lambda: _all_counted(target, 1, "dropped_hot_reads"), "reads that are refused")
        (partition,) = (await target.client.describe(target.stream))["partitions"]
        assert partition["leader_epoch"] == 1
        assert all(broker["alive"] for broker in (await target.client.cluster_status())["brokers"])


async def test_long_polls_for_ever(cluster: DevCluster) -> None:
    """One client takes its share of the places, and gives them back in time."""
    async with under_load(cluster, "polls") as target:
        request = FetchRequest(offset=1 << 60, max_bytes=1, max_wait_ms=(1 << 32) - 1).SerializeToString()
        inbox = target.stranger.new_inbox()
        refused: list[str] = []

        async def on_answer(message: object) -> None:
            headers = getattr(message, "headers", None) or {}
            refused.append(headers.get("Tidelog-Limit", ""))

        await target.stranger.subscribe(f"{inbox}.*", cb=on_answer)
        for number in range(10_001):
            await target.stranger.publish("tidelog.polls.0.fetch", request, reply=f"{inbox}.{number}")
        await target.stranger.flush()
        await until(lambda: len(refused) >= 9_001, "refusals")
        assert set(refused) == {"max_waiting_fetches_per_client"}
        assert await target.counted("dropped_waiting_fetches") >= 9_001
        # Another client waits for its records as ever.
        async with target.client.consume(target.stream, start="new") as consumer:
            await anext(aiter(consumer))


# ---- the API --------------------------------------------------------------------------------------------------------


async def test_many_connections_that_ask_the_same(cluster: DevCluster) -> None:
    """Each is answered, and what brokers ask one another for it is not as much."""
    connections, each = 20, 25
    async with under_load(cluster, "asked") as target:
        before = await target.client.cluster_status()
        expected = await target.client.describe("asked")
        questions = 0

        async def on_question(_: object) -> None:
            nonlocal questions
            questions += 1

        await target.stranger.subscribe("tidelog.metadata.status.*", cb=on_question)
        await target.stranger.flush()

        async def ask() -> list[tuple[Any, Any]]:
            """Pairs of answers: the status of the cluster, and the description of the stream."""
            connection = await nats.connect(cluster.nats_url)
            asked = ("tidelog.api.cluster.status", b""), ("tidelog.api.stream.describe.asked", b'{"name": "asked"}')
            try:
                answers = await asyncio.gather(
                    *(connection.request(*question, timeout=LIMIT) for question in asked for _ in range(each))
                )
            finally:
                await connection.close()
            forms = [json.loads(answer.data) for answer in answers]
            return list(zip(forms[:each], forms[each:], strict=True))

        for pairs in await asyncio.gather(*(ask() for _ in range(connections))):
            for status, described in pairs:
                assert (status["cluster_id"], status["controller_epoch"]) == (
                    before["cluster_id"],
                    before["controller_epoch"],
                )
                assert {broker["id"] for broker in status["brokers"]} == {*cluster.broker_ids}
                assert (described["name"], described["config"]) == ("asked", expected["config"])
                assert [partition["replicas"] for partition in described["partitions"]] == [
                    partition["replicas"] for partition in expected["partitions"]
                ]
        await target.stranger.flush()
        requests = 2 * connections * each
        print(f"{questions} questions between brokers for {requests} requests")
        assert questions < requests / 4, "three for each request, if none shared an answer"
        assert (await target.client.cluster_status())["controller_epoch"] == before["controller_epoch"]


async def test_more_requests_than_may_wait(cluster: DevCluster) -> None:
    """Of streams that do not exist, so that no two of them share an answer: each is refused, for one reason or for the
    other, and the controller epoch stays."""
    count = 5_000
    async with under_load(cluster, "unknown") as target:
        status = await target.client.cluster_status()
        epoch = status["controller_epoch"]
        codes: Counter[str] = Counter()
        clusters: Counter[str] = Counter()

        async def on_answer(message: Msg) -> None:
            headers = message.headers or {}
            codes[headers.get("Tidelog-Error", "")] += 1
            clusters[headers.get(CLUSTER_HEADER, "")] += 1

        inbox = target.stranger.new_inbox()
        await target.stranger.subscribe(f"{inbox}.*", cb=on_answer)
        for number in range(count):
            name = f"u{number}"
            subject, body = f"tidelog.api.stream.describe.{name}", json.dumps({"name": name}).encode()
            await target.stranger.publish(subject, body, reply=f"{inbox}.{number}")
        await target.stranger.flush()
        await until(lambda: codes.total() == count, "an answer to each")
        print(codes)
        assert {*codes} <= {"UNKNOWN_STREAM", "BACKPRESSURE"}
        assert {*clusters} == {status["cluster_id"]}, "a client of another cluster would take it for its own's answer"
        assert await target.counted("dropped_api_requests") >= codes["BACKPRESSURE"]
        assert (await target.client.cluster_status())["controller_epoch"] == epoch


async def _past_backpressure(stranger: NatsClient, subject: str, body: bytes) -> Msg:
    """The answer to a request that is repeated while earlier ones fill the queue."""

    async def ask() -> Msg | None:
        answer = await stranger.request(subject, body, timeout=LIMIT)
        return None if (answer.headers or {}).get("Tidelog-Error") == "BACKPRESSURE" else answer

    return await until(ask, "an answer")


async def test_questions_of_founders_are_answered_together(cluster: DevCluster) -> None:
    """Each broker hears them all; it looks into 200 a second, and says to which cluster it belongs for the others. How
    long acknowledgements wait depends on the machine, and docs/security.md has figures."""
    many = 50_000
    async with under_load(cluster, "questions") as target:
        heard: list[str] = []
        cluster_id = (await target.client.cluster_status())["cluster_id"]
        led = (await target.client.describe("questions"))["partitions"][0]

        async def on_claim(message: Msg) -> None:
            claim = pb.ClusterClaim.FromString(message.data)
            if claim.cluster_id == cluster_id and not message.reply:
                heard.append(claim.broker)

        listener = await nats.connect(cluster.nats_url, pending_size=1 << 30)
        await listener.subscribe("tidelog.metadata.cluster", cb=on_claim, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await listener.flush()
        block = bytearray()
        for number in range(many):
            question = pb.ClusterClaim(broker=f"z{number}", life_id=f"z{number}").SerializeToString()
            block += b"PUB tidelog.metadata.cluster tidelog.inbox.z.z.%d %d\r\n%b\r\n" % (
                number,
                len(question),
                question,
            )
        await target.stranger._send_command(bytes(block))
        await target.stranger.flush(60)
        await until(lambda: {*heard} == {*cluster.broker_ids}, "an answer of each broker on the subject of claims")

        async def is_counted() -> bool:
            return await target.counted("dropped_claims") > 3 * many // 2

        await until(is_counted, "the count of most of them")
        await listener.close()
        now = (await target.client.describe("questions"))["partitions"][0]
        assert (now["leader"], now["leader_epoch"]) == (led["leader"], led["leader_epoch"])


# ---- logs -----------------------------------------------------------------------------------------------------------


async def test_texts_that_would_fill_or_forge_the_log(cluster: DevCluster) -> None:
    """A name with line breaks begins no line; a flood of refusals is a few lines."""
    async with under_load(cluster, "logs") as target:
        began = time.monotonic()
        sizes = {broker: cluster.log_file(broker).stat().st_size for broker in cluster.broker_ids}
        forged = "b1\n12:00:00.000 ERROR forged: all is lost"
        claim = pb.ClusterClaim(broker=forged, life_id="x", cluster_id="of another\ncluster")
        await target.stranger.publish("tidelog.metadata.cluster", claim.SerializeToString())
        deep = b'{"name": ' + b"[" * 900 + b"]" * 900 + b"}"
        huge = json.dumps({"name": forged * 1000, "config": {forged * 1000: forged * 1000}}).encode()
        for body in (deep, huge):
            answer = await _past_backpressure(target.stranger, "tidelog.api.stream.create.orders", body)
            assert json.loads(answer.data)["error"]["code"] in ("BAD_REQUEST", "BAD_NAME")
            assert len(answer.data) < 1000
            for _ in range(2000):
                await target.stranger.publish("tidelog.api.stream.create.orders", body)
        await target.stranger.flush()
        await target.goes_on(1.0)
        for broker in cluster.broker_ids:
            with cluster.log_file(broker).open(errors="replace") as log:
                log.seek(sizes[broker])
                lines = log.read().splitlines()
            assert not [line for line in lines if line.startswith("12:00:00.000 ERROR forged")]
            most = (20 + 4 * (time.monotonic() - began)) * MAX_BYTES
            assert sum(map(len, lines)) < most, "some bytes of each kind in a second"


# ---- Raft's port -----------------------------------------------------------------------------------------------------


async def test_sockets_that_drip_on_the_raft_port(cluster: DevCluster) -> None:
    """A restarted broker registers among them."""
    async with under_load(cluster, "drips") as target:
        brokers = json.loads((cluster.data_dir / "cluster.json").read_text())["brokers"]
        ports = [int(broker["raft"].rpartition(":")[2]) for broker in brokers]
        stop = asyncio.Event()
        dripping = [asyncio.create_task(_drip(port, stop)) for port in ports for _ in range(40)]
        await asyncio.sleep(1.0)
        # Of two voters the one with the greater address connects to the other.
        victim = max(brokers, key=lambda broker: str(broker["raft"]))["id"]
        cluster.kill(victim)
        began = time.monotonic()
        cluster.start_broker(victim)
        await until(lambda: cluster.is_ready(victim), "the broker")
        print(f"registered after {time.monotonic() - began:.1f} s")

        async def dropped() -> bool:
            return await target.counted("dropped_raft_introductions") > 0

        await until(dropped, "the end of introductions that take too long")
        stop.set()
        await asyncio.gather(*dripping)


async def _drip(port: int, stop: asyncio.Event) -> None:
    """A byte now and then, on one connection after the other."""
    while not stop.is_set():
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                for byte in b"TLRAFT01" + bytes(200):
                    writer.write(bytes([byte]))
                    await writer.drain()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(stop.wait(), 0.5)
                    if stop.is_set():
                        break
            finally:
                writer.close()
        await asyncio.sleep(0.01)


# ---- coordinators of groups -----------------------------------------------------------------------------------------


async def test_requests_to_coordinators_that_no_member_would_send(cluster: DevCluster) -> None:
    """A group that is in use goes on, and keeps what it has committed."""
    async with under_load(cluster, "grouped") as target:
        subjects = Subjects()
        async with target.client.subscribe("grouped", group="used") as consumer:
            read = await consumer.getmany(timeout=LIMIT)
            await consumer.commit()
            position = read[-1].offset + 1
            names = [f"{'s' * 55}{number}" for number in range(900)]
            large = HeartbeatRequest(
                kind=HeartbeatRequest.JOIN,
                subscription=Subscription(streams=names),
                session_timeout_ms=1000,
                rebalance_timeout_ms=1000,
            )
            for number in range(3000):
                for kind in KINDS:
                    subject = coordinator_subject(subjects, kind, "used")
                    await target.stranger.publish(subject, b"\xff" * (number % 50), reply="_INBOX.stranger.1")
                    await target.stranger.publish(subject, b"\n\x04used\x12\x01x", reply="grouped")
            for number in range(200):
                large.group, large.member = "used", f"m{number}"
                subject = coordinator_subject(subjects, HEARTBEAT, "used")
                await target.stranger.publish(subject, large.SerializeToString(), reply="_INBOX.stranger.2")
            await target.stranger.flush()
            # The members that were made are removed when their sessions end.
            await until(lambda: consumer.assignment, "the partition")
            assert (await consumer.getmany(timeout=LIMIT))[0].offset >= position
            await consumer.commit()

            async def alone() -> bool:
                return (await target.client.describe_group("used"))["members"] == 1

            await until(alone, "the end of the stranger's members")
