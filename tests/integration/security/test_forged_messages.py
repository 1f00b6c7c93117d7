"""A plain NATS client against a cluster, with NATS open to all: it hears everything, and says what it likes on the
subjects of brokers and in their inboxes, while acknowledged records are published.

Each test asserts that no acknowledged record is lost, that all replicas hold the same bytes, that nobody leads
elsewhere, that no acknowledgement took MAX_STALL_S, and that the messages were counted under their own name.
"""

# Rules: R42.

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import nats
import pytest
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import tidelog
from tests.integration.rig.brokers_status import status_of_all
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tidelog.client.client import Client
from tidelog.server.devcluster import DevCluster
from tidelog.server.peers.peer_tags import TRAILER_BYTES
from wire.partition_messages.replication import encode_header
from wire.protobuf import metadata_pb2 as pb
from wire.protobuf.tidelog_pb2 import ReplicationRequest
from wire.types import LeaderEpoch, Offset

STREAM = "orders"
LEASE = 15.0
SETTINGS = {"metadata": {"broker_silence_timeout_s": 12.0, "leader_lease_s": LEASE}}
"""A machine with much else to do is slow, and no broker dead for it."""
MAX_STALL_S = 12.0
"""Of acknowledgements. A leader that believed would wait for ever, or for its lease."""
NOWHERE = "tidelog.inbox.b9.nobody.1"
"""Brokers answer each other in inboxes like this one alone."""
HUGE = (1 << 63) - 1
STATUS_503 = b"NATS/1.0 503\r\n\r\n"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with dev_cluster(tmp_path_factory.mktemp("forged") / "cluster", nodes=3, settings=SETTINGS) as running:
        yield running


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[Client]:
    async with await tidelog.connect(cluster.nats_url) as connected:
        yield connected


@dataclass
class Stranger:
    """`heard`: messages on the subjects that it listens on, in order."""

    nats: NatsClient
    heard: list[Msg] = field(default_factory=list)
    sending: list[asyncio.Future[Any]] = field(default_factory=list)
    partition: Any = None
    layout: Any = None

    async def listen(self, *subjects: str, then: Callable[[Msg], None] | None = None) -> None:
        async def on_message(message: Msg) -> None:
            self.heard.append(message)
            if then is not None:
                then(message)

        for subject in subjects:
            await self.nats.subscribe(subject, cb=on_message)
        await self.nats.flush()

    async def say(self, subject: str, payload: bytes, reply: str = "") -> None:
        await self.nats.publish(subject, payload, reply=reply)

    def refuse(self, inbox: str) -> None:
        """A 503, as NATS sends it. nats-py writes no status: by hand."""
        size = len(STATUS_503)
        self.nats._pending.append(b"HPUB %b %d %d\r\n%b\r\n" % (inbox.encode(), size, size, STATUS_503))
        self.nats._pending_data_size += size
        self.sending.append(asyncio.ensure_future(self.nats._flush_pending()))

    @property
    def reference(self) -> pb.PartitionRef:
        life = self.layout.partitions[0].incarnation
        return pb.PartitionRef(
            stream=STREAM, stream_incarnation=self.layout.incarnation, partition=0, partition_incarnation=life
        )

    @property
    def followers(self) -> list[str]:
        return [broker for broker in self.partition["replicas"] if broker != self.partition["leader"]]


@asynccontextmanager
async def attacked(
    cluster: DevCluster, client: Client, *kinds: str, max_stall: float = MAX_STALL_S
) -> AsyncIterator[Stranger]:
    """A stream under acknowledged load while the block runs, and the checks of the module afterwards. `kinds`: of the
    messages that must have been refused. `max_stall`: seconds; inf: so many messages come that a slow machine may take
    the leader for dead."""
    stream = await client.create_stream(STREAM, replication_factor=3)
    assert stream is not None
    before = await refused(client)
    await wait_in_sync(cluster.nats_url, STREAM)
    connection = await nats.connect(cluster.nats_url)
    try:
        stranger = Stranger(connection)
        async with acked_load(cluster.nats_url, STREAM) as ledger:
            await until(lambda: len(ledger.acked) > 200, "acknowledged load")
            (stranger.partition,) = (await client.describe(STREAM))["partitions"]
            stranger.layout = await client.metadata(STREAM)
            yield stranger
            await connection.flush()
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 1000, "the load goes on", 3 * LIMIT)
        if max_stall == inf:
            await wait_in_sync(cluster.nats_url, STREAM)
        after = (await client.describe(STREAM))["partitions"][0]
        if max_stall < inf:
            assert (after["leader"], after["leader_epoch"]) == (
                stranger.partition["leader"],
                stranger.partition["leader_epoch"],
            )
        assert sorted(after["isr"]) == sorted(stranger.partition["isr"])
        times = ledger.ack_times[0]
        stall = max(later - earlier for earlier, later in pairwise(times))
        print(f"longest time without an acknowledgement: {stall:.2f} s")
        assert stall < max_stall, f"no acknowledgement for {stall:.2f} s"
        await assert_nothing_lost(
            cluster.nats_url, ledger, {broker: cluster.broker_dir(broker) for broker in cluster.broker_ids}
        )
        status = await client.cluster_status()
        assert status["offline_partitions"] == status["under_replicated"] == status["unclean_elections"] == 0
        assert all(broker["alive"] for broker in status["brokers"])

        async def all_refused() -> bool:
            now = await refused(client)
            return all(sum(now.get(kind, {}).values()) > sum(before.get(kind, {}).values()) for kind in kinds)

        await until(all_refused, f"refused messages of each kind of {kinds}")
    finally:
        await connection.close()
        await client.delete_stream(STREAM)


async def refused(client: Client) -> dict[str, dict[str, int]]:
    """By kind and reason, over all brokers."""
    found: dict[str, dict[str, int]] = {}
    for broker in (await status_of_all(client))["brokers"]:
        for kind, faults in (broker["refused_messages"] or {}).items():
            for fault, times in faults.items():
                found.setdefault(kind, {})[fault] = found.get(kind, {}).get(fault, 0) + times
    return found


async def test_a_copied_fetch_with_a_huge_sequence_number(cluster: DevCluster, client: Client) -> None:
    """Believed, the leader would take all of its log for copied and synced, commit alone, and hear the follower no
    more."""
    async with attacked(cluster, client, "replicate") as stranger:
        await stranger.listen(f"tidelog.{STREAM}.0.replicate")
        await until(lambda: len(stranger.heard) > 20, "fetches")
        for message in stranger.heard[:20]:
            proof = message.data[-TRAILER_BYTES:]
            request = ReplicationRequest.FromString(message.data[:-TRAILER_BYTES])
            request.sequence = request.durable_offset = request.offset = HUGE
            for trailer in (b"", proof):
                await stranger.say(message.subject, request.SerializeToString() + trailer, message.reply)


async def test_captured_messages_are_sent_again_and_elsewhere(cluster: DevCluster, client: Client) -> None:
    async with attacked(cluster, client, "replicate", "offset", "probe", "notify") as stranger:
        await stranger.listen("tidelog.>")
        await until(lambda: len(stranger.heard) > 2000, "messages of brokers")
        captured = [m for m in stranger.heard if not m.subject.startswith("tidelog.api.")][:2000]
        named = {m.subject for m in captured if not m.subject.startswith("tidelog.inbox.")}
        named |= {f"tidelog.{STREAM}.0.offset", *(f"tidelog.notify.{broker}" for broker in cluster.broker_ids)}
        others = sorted(subject for subject in named if not subject.endswith((".append", ".fetch")))
        for number, message in enumerate(captured):
            await stranger.say(message.subject, message.data, message.reply)
            await stranger.say(others[number % len(others)], message.data, message.reply)

        async def tag_is_refused() -> bool:
            return (await refused(client)).get("replicate", {}).get("tag", 0) > 0

        await until(tag_is_refused, "fetches whose tag is of another message")


async def test_answers_to_a_followers_inbox(cluster: DevCluster, client: Client) -> None:
    """Before the leader's own: with records of the stranger's, an empty answer, an error, and copies of what the other
    follower got. Believed, the follower would store them."""
    batches: list[bytes] = []

    def answer(message: Msg) -> None:
        inbox = message.reply
        if not inbox:
            if len(message.data) > 200:
                batches.append(message.data)
            return
        epoch = LeaderEpoch(stranger.partition["leader_epoch"])
        header = encode_header(epoch, Offset(HUGE))
        told: list[tuple[bytes, dict[str, str] | None]] = [
            (header, None),
            (header + bytes(TRAILER_BYTES), None),
            (header, {"Tidelog-Error": "OFFSET_AHEAD", "Tidelog-Message": "forged"}),
            (
                header,
                {"Tidelog-Error": "OFFSET_BEFORE_LOG", "Tidelog-Message": "forged", "Tidelog-Log-Start": "1000000"},
            ),
            *[(data, None) for data in batches[-2:]],
        ]
        for payload, headers in told:
            sending.append(asyncio.ensure_future(stranger.nats.publish(inbox, payload, headers=headers)))

    sending: list[asyncio.Future[None]] = []
    async with attacked(cluster, client, "answer") as stranger:
        await stranger.listen(f"tidelog.{STREAM}.0.replicate", "tidelog.inbox.>", then=answer)
        await until(lambda: len(sending) > 3000, "answers")
        await asyncio.gather(*sending)
        assert batches


async def test_forged_refusals_of_nats(cluster: DevCluster, client: Client) -> None:
    """A 503 to every request between brokers, as quickly as it is heard. Believed, followers would report a leader that
    lives, and the controller would declare its brokers dead."""
    refusals = 0

    def answer(message: Msg) -> None:
        nonlocal refusals
        if message.reply:
            stranger.refuse(message.reply)
            refusals += 1

    async with attacked(cluster, client) as stranger:
        await stranger.listen(f"tidelog.{STREAM}.0.replicate", f"tidelog.{STREAM}.0.offset", then=answer)
        await stranger.listen("tidelog.metadata.probe.*", "tidelog.metadata.status.*", then=answer)
        await until(lambda: refusals > 500, "refusals")


async def test_a_probe_of_a_controller_to_come(cluster: DevCluster, client: Client) -> None:
    """16 bytes to each broker. Believed, no lease would ever be renewed again."""
    async with attacked(cluster, client, "probe") as stranger:
        status = await client.cluster_status()
        for broker in cluster.broker_ids:
            for probe in (
                pb.Probe(controller_epoch=HUGE),
                pb.Probe(controller=broker, controller_epoch=HUGE, number=HUGE, cluster_id=status["cluster_id"]),
            ):
                await stranger.say(f"tidelog.metadata.probe.{broker}", probe.SerializeToString(), NOWHERE)
        lease_is_over = time.monotonic() + LEASE + 1

        async def is_told_the_latest() -> bool:
            """Outside its lease a leader refuses to."""
            assert (await client.offsets(STREAM, "latest"))[0] > 0
            return time.monotonic() > lease_is_over

        await until(is_told_the_latest, timeout=LEASE + LIMIT)


async def test_a_forged_withdrawal(cluster: DevCluster, client: Client) -> None:
    """Believed, the partition would be offline for good."""
    async with attacked(cluster, client, "controller") as stranger:
        status = await client.cluster_status()
        items = [
            pb.WithdrawReplica(
                partition=stranger.reference,
                broker=broker["id"],
                incarnation=broker["incarnation"],
                expected_epoch=epoch,
                reason="forged",
            )
            for broker in status["brokers"]
            for epoch in range(1, 6)
        ]
        request = pb.ControllerRequest(
            broker=status["brokers"][0]["id"], cluster_id=status["cluster_id"], withdraw=pb.Withdraw(items=items)
        ).SerializeToString()
        for payload in (request, request + bytes(TRAILER_BYTES - 1) + b"\x01"):
            await stranger.say("tidelog.metadata.controller", payload)


async def test_a_forged_drain(cluster: DevCluster, client: Client) -> None:
    """Believed, the leader would sequence nothing for days."""
    async with attacked(cluster, client, "drain") as stranger:
        status = await client.cluster_status()
        for number in range(2000):
            request = pb.DrainRequest(
                partition=stranger.reference,
                leader_epoch=stranger.partition["leader_epoch"],
                target=stranger.followers[0],
                timeout_ms=(1 << 31) - 1,
                controller_epoch=1,
                answered=number,
                cluster_id=status["cluster_id"],
            )
            subject = f"tidelog.metadata.drain.{stranger.partition['leader']}"
            await stranger.say(subject, request.SerializeToString(), NOWHERE)


async def test_forged_isr_changes_and_reports(cluster: DevCluster, client: Client) -> None:
    """Believed, the followers would leave the ISR, or depose their leader."""
    async with attacked(cluster, client, "controller", "notify") as stranger:
        status = await client.cluster_status()
        lives = {broker["id"]: broker["incarnation"] for broker in status["brokers"]}
        leader = stranger.partition["leader"]
        for epoch in range(1, 6):
            alteration = pb.IsrAlteration(
                partition=stranger.reference,
                leader=leader,
                leader_epoch=stranger.partition["leader_epoch"],
                expected_epoch=epoch,
                new_isr=[pb.BrokerLife(broker=leader, incarnation=lives[leader])],
                reason="forged",
            )
            altered = pb.ControllerRequest(
                broker=leader, cluster_id=status["cluster_id"], alter_isr=pb.AlterIsr(items=[alteration])
            )
            await stranger.say("tidelog.metadata.controller", altered.SerializeToString())
            reports = [
                pb.LeaderReports.Report(
                    partition=stranger.reference,
                    replica=follower,
                    leader=leader,
                    epoch=epoch,
                    leader_epoch=stranger.partition["leader_epoch"],
                )
                for follower in stranger.followers
            ]
            reported = pb.ControllerRequest(
                broker=stranger.followers[0],
                cluster_id=status["cluster_id"],
                report_leaders=pb.LeaderReports(items=reports, controller_epoch=1),
            )
            await stranger.say("tidelog.metadata.controller", reported.SerializeToString())
        for broker in cluster.broker_ids:
            await stranger.say(f"tidelog.notify.{broker}", b"")


async def test_a_flood(cluster: DevCluster, client: Client) -> None:
    """Of each kind of forged message, to the leader and to each broker, as quickly as NATS takes them. Each is counted
    as what it is; how long acknowledgements wait depends on the machine, and docs/security.md has figures."""
    many = 20_000
    async with attacked(cluster, client, "replicate", "notify", max_stall=inf) as stranger:
        await stranger.listen(f"tidelog.{STREAM}.0.replicate")
        await until(lambda: len(stranger.heard) > 20, "fetches")
        genuine = stranger.heard[10]
        request, life = genuine.data[:-TRAILER_BYTES], genuine.data[-TRAILER_BYTES : 16 - TRAILER_BYTES]
        rest = genuine.data[16 - TRAILER_BYTES :]
        random = Random(1)
        forged: dict[str, Callable[[int], bytes]] = {
            "short": lambda number: random.randbytes(number % TRAILER_BYTES),
            "version": lambda number: random.randbytes(60 + number % 40) + b"\x02",
            "secret": lambda number: random.randbytes(60 + number % 40) + b"\x01",
            "another life": lambda _: request + random.randbytes(16) + rest,
            "another number": lambda _: request + life + rest[:4] + random.randbytes(8) + rest[12:],
            "a copy": lambda _: genuine.data,
        }
        before = await refused(client)
        for subject in (genuine.subject, *(f"tidelog.notify.{broker}" for broker in cluster.broker_ids)):
            for make in forged.values():
                block = bytearray()
                for number in range(many if subject == genuine.subject else many // 4):
                    data = make(number)
                    reply = genuine.reply if number % 2 or make is forged["a copy"] else ""
                    block += b"PUB %b %b %d\r\n%b\r\n" % (subject.encode(), reply.encode(), len(data), data)
                await stranger.nats._send_command(bytes(block))
        await stranger.nats.flush(60)

        async def found() -> dict[str, dict[str, int]]:
            now = await refused(client)
            return {
                kind: {fault: count - before.get(kind, {}).get(fault, 0) for fault, count in now.get(kind, {}).items()}
                for kind in ("replicate", "notify")
            }

        async def all_counted() -> bool:
            return sum(sum(faults.values()) for faults in (await found()).values()) >= 6 * (many + 3 * (many // 4))

        await until(all_counted, "a count of each")
        counted = await found()
        for faults in counted.values():  # of these the first thousands are `tag`, the others `unheard`
            faults["tag"] += faults.pop("unheard", 0)
        each, fewer = many, 3 * (many // 4)
        assert counted["replicate"] == {
            "short": each,
            "version": each,
            "secret": each,
            "tag": 2 * each,
            "replayed": each,
        }
        counted["notify"].pop("replayed", None)
        assert counted["notify"] == {"short": fewer, "version": fewer, "secret": fewer, "tag": 3 * fewer}


async def test_claims_of_another_cluster(cluster: DevCluster, client: Client) -> None:
    """Anybody may speak there. Nobody moves for it; and a broker that is started meanwhile hears that its folder is of
    another cluster, and believes its own."""
    async with attacked(cluster, client) as stranger:
        status = await client.cluster_status()

        def claim(message: Msg) -> None:
            forged = pb.ClusterClaim(broker="b9", life_id="x", cluster_id="feedfeedfeedfeed", decided=True)
            if message.reply:
                sending.append(asyncio.ensure_future(stranger.nats.publish(message.reply, forged.SerializeToString())))

        sending: list[asyncio.Future[None]] = []
        await stranger.listen("tidelog.metadata.cluster", then=claim)
        for life in ("x", "y"):
            forged = pb.ClusterClaim(broker="b9", life_id=life, cluster_id="feedfeedfeedfeed", decided=True)
            await stranger.say("tidelog.metadata.cluster", forged.SerializeToString())
        assert status["cluster_id"] != "feedfeedfeedfeed"
    connection = await nats.connect(cluster.nats_url)
    try:
        stranger = Stranger(connection)
        await stranger.listen("tidelog.metadata.cluster", then=claim)
        controller = (await client.cluster_status())["controller"]
        victim = next(broker for broker in cluster.broker_ids if broker != controller)
        cluster.kill(victim)
        cluster.start_broker(victim)
        await asyncio.to_thread(cluster.wait_ready, 2 * LIMIT)
        assert sending
        other = (await client.cluster_status())["other_clusters"]
        assert [found["cluster_id"] for found in other] == ["feedfeedfeedfeed"]
    finally:
        await connection.close()


async def test_what_was_refused_is_told(cluster: DevCluster, client: Client) -> None:
    """In the broker's log, a line for each kind in ten seconds at most, and in `cluster status`."""
    before = cluster.log_file("b1").stat().st_size
    stranger = await nats.connect(cluster.nats_url)
    for _ in range(300):
        await stranger.publish("tidelog.notify.b1", b"forged\nERROR: a line of its own" * 2)
    await stranger.flush()
    await stranger.close()

    async def counted() -> bool:
        return (await refused(client)).get("notify", {}).get("version", 0) >= 1

    await until(counted)
    log = Path(cluster.log_file("b1")).read_bytes()
    words = b"no broker of its cluster has sent", b"kind notify"
    assert any(all(word in line for word in words) for line in log.splitlines())
    assert sum(all(word in line for word in words) for line in log[before:].splitlines()) < 10
    assert b"a line of its own" not in log
