"""Encrypted streams on three real brokers: the bytes on their disks, their readers, and keys that change or are
missing.

Keys are files of this test; each broker has the keys in its own file.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.command_line import assert_refused, tidelog_command
from tests.integration.rig.dev_cluster import assert_logs_without, dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.batch import iter_batches
from wire.partition_messages.liftbridge_envelope import encode_publish
from wire.protobuf.tidelog_pb2 import AckPolicy
from wire.protobuf.tidelog_pb2 import Message as EnvelopeMessage

OLD = "2026-05 " + "05" * 32
NEW = "2026-11 " + "11" * 32
FAKE = "2026-05 " + "66" * 32
SECRET = b"the-crown-jewels"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[DevCluster]:
    keys = tmp_path / "keys"
    keys.write_text(OLD + "\n")
    with dev_cluster(tmp_path / "cluster", master_key_file=keys) as running:
        for broker in running.broker_ids:  # from now on each has a file of its own
            own = tmp_path / f"keys-{broker}"
            own.write_text(OLD + "\n")
            config = running.data_dir / f"{broker}.toml"
            config.write_text(config.read_text().replace(str(keys), str(own)))
        yield running
        assert_logs_without(running, *(key.split()[1][:16] for key in (OLD, NEW, FAKE)))


def give_keys(cluster: DevCluster, broker: str, *lines: str) -> None:
    (cluster.data_dir.parent / f"keys-{broker}").write_text("\n".join(lines) + "\n")


async def until_keys(client: tidelog.Client, broker: str, *lines: str) -> None:
    """Until the controller has heard that the broker has these keys."""
    ids = ",".join(line.split()[0] for line in lines)

    async def told() -> bool:
        labels = {each["id"]: each["labels"] for each in (await client.cluster_status())["brokers"]}
        return labels[broker].get("master_keys") == ids

    await until(told, f"the keys {ids} on {broker}")


def restart(cluster: DevCluster, *brokers: str) -> None:
    for broker in brokers:
        cluster.kill(broker, signal.SIGTERM)
    for broker in brokers:
        cluster.start_broker(broker)
    cluster.wait_ready(2 * LIMIT)


def segments(cluster: DevCluster, broker: str, stream: str) -> list[Path]:
    return sorted(cluster.broker_dir(broker).glob(f"{stream}-*/*/*.log"))


def files_holding(cluster: DevCluster, *needles: bytes) -> list[str]:
    """Content of all files under the brokers' folders, with their logs."""
    return [
        str(path.relative_to(cluster.data_dir))
        for path in sorted(cluster.data_dir.rglob("*"))
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]


@asynccontextmanager
async def connected(cluster: DevCluster) -> AsyncIterator[tuple[tidelog.Client, NatsConnection]]:
    async with await tidelog.connect(cluster.nats_url, api_timeout=LIMIT) as client:
        nats = await NatsConnection.connect(cluster.nats_url)
        try:
            yield client, nats
        finally:
            await nats.close()


async def values(client: tidelog.Client, stream: str, **options: Any) -> list[bytes | None]:
    return [r.value async for r in client.consume(stream, **{"start": "earliest", "stop": "latest", **options})]


async def leader_of(client: tidelog.Client, stream: str) -> str | None:
    partition = (await client.describe(stream))["partitions"][0]
    return partition["leader"] if partition["log_end_offset"] is not None else None


async def until_leader(client: tidelog.Client, stream: str, *allowed: str) -> str:
    async def one_of_them() -> str | None:
        leader = await leader_of(client, stream)
        return leader if leader in allowed else None

    return await until(one_of_them, f"a leader of {stream} among {allowed}")


async def test_nothing_that_was_published_can_be_read_on_any_disk_and_all_of_it_by_consumers(
    cluster: DevCluster,
) -> None:
    async with connected(cluster) as (client, nats):
        await client.create_stream("vault", replication_factor=3, config={"encryption": "true"})
        await client.create_stream("open", replication_factor=3)
        sent: list[bytes] = []
        async with client.producer("vault") as producer:
            for n in range(20):
                sent.append(SECRET + b" %d" % n)
                await producer.send(sent[-1], key=b"key-" + SECRET, headers={"h": b"header-" + SECRET})
        async with client.producer("vault", compression="zstd") as producer:
            sent += [SECRET * 40 + b" %d" % n for n in range(300)]
            began = time.time_ns()
            for n, value in enumerate(sent[20:]):
                producer.send_nowait(value, timestamp=began + n)
            await producer.flush()
        for n in range(5):
            sent.append(SECRET + b" bare %d" % n)
            answer = await nats.request("vault", sent[-1], timeout=LIMIT)
            assert json.loads(answer.data)["offset"] == len(sent) - 1
        middle = dt.datetime.now(dt.UTC)
        envelope = EnvelopeMessage(
            value=SECRET + b" envelope", key=SECRET, ackInbox=nats.new_inbox(), ackPolicy=AckPolicy.ALL
        )
        acknowledged = asyncio.Event()
        nats.on_inbox(envelope.ackInbox, lambda _: acknowledged.set())
        nats.publish("vault", [encode_publish(envelope)])
        await asyncio.wait_for(acknowledged.wait(), LIMIT)
        sent.append(SECRET + b" envelope")
        async with client.producer("open") as producer:
            await producer.send(SECRET)

        for source in ("leader", "follower"):
            assert await values(client, "vault", read_from=source) == sent  # from memory
        await wait_in_sync(cluster.nats_url, "vault")
        replicas = [b"".join(p.read_bytes() for p in segments(cluster, b, "vault")) for b in cluster.broker_ids]
        assert replicas[0] == replicas[1] == replicas[2]
        assert all(header.is_encrypted for _, header in iter_batches(replicas[0]))

        restart(cluster, *cluster.broker_ids)
        await wait_in_sync(cluster.nats_url, "vault")
        for source in ("leader", "follower"):
            assert await values(client, "vault", read_from=source) == sent  # from the disk
        assert await values(client, "vault", start=middle) == sent[-1:]
        assert await values(client, "vault", start=tidelog.AtTime(began + 150)) == sent[170:]  # within a batch
        records = [r async for r in client.consume("vault", start="earliest", stop="latest")]
        assert records[3].key == b"key-" + SECRET
        assert records[3].headers == {"h": b"header-" + SECRET}
        shown = tidelog_command(
            "subscribe", "vault", "--json", "--stop", "latest", "--server", cluster.nats_url
        ).stdout.splitlines()
        assert [json.loads(line)["value"].encode() for line in shown] == sent

    open_files = {
        str(p.relative_to(cluster.data_dir)) for b in cluster.broker_ids for p in segments(cluster, b, "open")
    }
    assert {*files_holding(cluster, SECRET)} == open_files  # the search finds unencrypted bytes


async def test_keys_are_rotated_under_load(cluster: DevCluster) -> None:
    async with connected(cluster) as (client, _):
        await client.create_stream("vault", replication_factor=3, config={"encryption": "true"})
        restart(cluster, *cluster.broker_ids)  # onto files of their own
        await wait_in_sync(cluster.nats_url, "vault")
        async with acked_load(cluster.nats_url, "vault", producers=2) as ledger:
            await until(lambda: len(ledger.acked) > 200, "records under the old key")
            # First every broker learns the new key, then it is used: under any leader the others can read it.
            for lines in ((OLD, NEW), (NEW, OLD)):
                for broker in cluster.broker_ids:
                    give_keys(cluster, broker, *lines)
                    if broker == "b2":
                        restart(cluster, broker)
                    else:
                        cluster.kill(broker, signal.SIGHUP)
                    await until_keys(client, broker, *lines)
            acked = len(ledger.acked)
            await until(lambda: len(ledger.acked) > acked + 500, "records under the new key")
        await assert_nothing_lost(cluster.nats_url, ledger, cluster.data_dirs)
        stored = b"".join(p.read_bytes() for p in segments(cluster, "b1", "vault"))
        used = [stored[at + 96 + 24 : at + 96 + 31] for at, _ in iter_batches(stored)]
        assert used == sorted(used), "once the new key is in use everywhere, the old one is used no more"
        assert {*used} == {b"2026-05", b"2026-11"}
        give_keys(cluster, "b1", "rubbish")  # a file that cannot be used changes nothing
        cluster.kill("b1", signal.SIGHUP)
        log = cluster.log_file("b1")
        await until(lambda: "b1 goes on with the master keys it has" in log.read_text(), "the refusal of the file")
        brokers = (await client.cluster_status())["brokers"]
        assert {broker["labels"]["master_keys"] for broker in brokers} == {"2026-11,2026-05"}


async def test_a_broker_without_the_key_follows_and_does_not_lead(cluster: DevCluster) -> None:
    async with connected(cluster) as (client, _):
        await client.create_stream("vault", replication_factor=3, config={"encryption": "true"})
        async with client.producer("vault") as producer:
            await producer.send(SECRET)
            leader = await until_leader(client, "vault", *cluster.broker_ids)
            others = [broker for broker in cluster.broker_ids if broker != leader]
            config = cluster.data_dir / f"{others[0]}.toml"
            lines = config.read_text().splitlines()
            config.write_text("\n".join(line for line in lines if "master_key_file" not in line) + "\n")
            restart(cluster, others[0])
            await wait_in_sync(cluster.nats_url, "vault")
            # It is asked to lead: another one does before long, and clients wait for that.
            await client.move_leader("vault", 0, others[0])
            assert await values(client, "vault") == [SECRET]
            await producer.send(SECRET + b" 2")
            await until_leader(client, "vault", leader, others[1])
        await wait_in_sync(cluster.nats_url, "vault")  # it follows, and is back in the ISR
        assert await values(client, "vault") == [SECRET, SECRET + b" 2"]
        assert await values(client, "vault", read_from="follower") == [SECRET, SECRET + b" 2"]
        refused = tidelog_command(
            "stream", "create", "second", "--config", "encryption=true", "--server", cluster.nats_url
        )
        assert_refused(refused, "encryption=true needs a master key on every broker", others[0], "--master-key-file")


async def test_the_only_replica_without_the_key_refuses_both_publishes_and_reads(cluster: DevCluster) -> None:
    async with connected(cluster) as (client, nats):
        await client.create_stream("vault", replication_factor=1, config={"encryption": "true"})
        async with client.producer("vault") as producer:
            await producer.send(SECRET)
        leader = await until_leader(client, "vault", *cluster.broker_ids)
        config = cluster.data_dir / f"{leader}.toml"
        with_key = config.read_text()
        config.write_text("".join(line for line in with_key.splitlines(True) if "master_key_file" not in line))
        restart(cluster, leader)
        await until_leader(client, "vault", leader)
        with pytest.raises(tidelog.NoKey, match=f"broker {leader} has no master key and cannot encrypt"):
            async with client.producer("vault") as producer:
                await producer.send(b"refused")
        answer = json.loads((await nats.request("vault", b"refused", timeout=LIMIT)).data)
        assert answer["tidelog"]["code"] == "NO_KEY"
        with pytest.raises(tidelog.NoKey, match=f"broker {leader} does not have the master key '2026-05'"):
            await values(client, "vault")
        config.write_text(with_key)
        restart(cluster, leader)
        await until_leader(client, "vault", leader)
        assert await values(client, "vault") == [SECRET]


async def test_where_a_broker_lacks_a_key_no_stream_is_made_encrypted(tmp_path: Path) -> None:
    with dev_cluster(tmp_path, nodes=1) as running:
        async with connected(running) as (client, _):
            for change in (
                client.alter_cluster(config={"encryption": "true"}),
                client.create_stream("t", replication_factor=1, config={"encryption": "true"}),
            ):
                with pytest.raises(tidelog.BadConfig, match="needs a master key on every broker, and b1 has none"):
                    await change


async def test_a_wrong_key_gives_no_garbage(cluster: DevCluster) -> None:
    async with connected(cluster) as (client, _):
        await client.create_stream("vault", replication_factor=3, config={"encryption": "true"})
        async with client.producer("vault") as producer:
            await producer.send(SECRET)
        for broker in cluster.broker_ids:
            give_keys(cluster, broker, FAKE)
        restart(cluster, *cluster.broker_ids)
        await wait_in_sync(cluster.nats_url, "vault")
        with pytest.raises(tidelog.NoKey, match=r"the master key '2026-05' of broker b[123] is not the one of that id"):
            await values(client, "vault")
        async with client.producer("vault") as producer:
            receipt = await producer.send(b"with the other key")
        assert await values(client, "vault", start=receipt.offset) == [b"with the other key"]
        for broker in cluster.broker_ids:
            give_keys(cluster, broker, OLD)
            cluster.kill(broker, signal.SIGHUP)
        found = await until(lambda: values(client, "vault", stop=receipt.offset), "a broker that has read its keys")
        assert found == [SECRET]
        with pytest.raises(tidelog.NoKey, match="2026-05"):
            await values(client, "vault")
