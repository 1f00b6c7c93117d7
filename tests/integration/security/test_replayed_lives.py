"""Messages of more lives than a broker remembers: a living broker's messages are not taken twice, and replication goes
on."""

from __future__ import annotations

from pathlib import Path

import nats
from nats.aio.msg import Msg

import tidelog
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tests.peers import secrets_of
from tidelog.server.peers.peer_tags import MAX_SENDERS, PEER, Signer

STREAM = "orders"
LIVES = 3 * MAX_SENDERS


async def test_a_thousand_lives_have_no_message_of_a_living_broker_taken_twice(tmp_path: Path) -> None:
    settings = {
        "metadata": {"broker_silence_timeout_s": 12.0, "leader_lease_s": 15.0},
        "replica": {"replica_max_lag_time": 9.0},
    }  # a slow machine is no dead broker
    with dev_cluster(tmp_path / "cluster", settings=settings) as cluster:
        secrets = secrets_of(cluster)
        async with await tidelog.connect(cluster.nats_url) as client:
            stranger = await nats.connect(cluster.nats_url)
            status = await client.cluster_status()
            target = next(name for name in cluster.broker_ids if name != status["controller"])

            async def replayed() -> int:
                (known,) = (b for b in (await client.cluster_status())["brokers"] if b["id"] == target)
                return int((known["refused_messages"] or {}).get("probe", {}).get("replayed", 0))

            async def over() -> None:
                """One message of each life; the next ones wait behind them."""
                for subject, payload in messages:
                    await stranger.publish(subject, payload)
                await stranger.flush()

            subject = f"tidelog.metadata.status.{target}"
            messages = [
                (subject, b"{}" + Signer(secrets, f"over {number}").trailer(PEER, subject, None, None, [b"{}"]))
                for number in range(LIVES)
            ]
            heard: list[Msg] = []

            async def on_probe(message: Msg) -> None:
                heard.append(message)

            probes = await stranger.subscribe(f"tidelog.metadata.probe.{target}", cb=on_probe)
            await until(lambda: len(heard) >= 20, "probes of the controller")
            await probes.unsubscribe()
            await over()
            for message in heard:
                await stranger.publish(message.subject, message.data, reply=message.reply)
            await stranger.flush()

            async def all_refused() -> bool:
                return await replayed() == len(heard)

            await until(all_refused, "the refusal of each copy")

            await client.create_stream(STREAM, replication_factor=3)
            await wait_in_sync(cluster.nats_url, STREAM)
            (before,) = (await client.describe(STREAM))["partitions"]
            async with acked_load(cluster.nats_url, STREAM) as ledger:
                await until(lambda: len(ledger.acked) > 200, "acknowledged load")
                await over()
                acked = len(ledger.acked)
                await until(lambda: len(ledger.acked) > acked + 1000, "the load goes on", 3 * LIMIT)
            (after,) = (await client.describe(STREAM))["partitions"]
            assert (after["leader_epoch"], after["isr"]) == (before["leader_epoch"], before["isr"])
            assert ledger.unknown == 0, "acknowledged publishes failed"
            await assert_nothing_lost(cluster.nats_url, ledger, cluster.data_dirs)
            await stranger.close()
