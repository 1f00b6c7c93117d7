"""The secret of a running cluster is replaced, while acknowledged records are published."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

import tidelog
from tests.integration.rig.brokers_status import status_of_all
from tests.integration.rig.command_line import assert_refused, tidelog_command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tests.peers import as_broker
from tidelog.server.secret_file import SecretFile
from wire.messaging.transport import NO_RESPONDERS

STREAM = "orders"


async def test_a_secret_is_replaced_under_load(tmp_path: Path) -> None:
    # A slow machine is no dead broker.
    settings = {"metadata": {"broker_silence_timeout_s": 8.0, "leader_lease_s": 10.0}}
    with dev_cluster(tmp_path / "cluster", nodes=3, settings=settings) as cluster:
        url, file = cluster.nats_url, cluster.data_dir / "raft-secret"
        old = SecretFile.read(file)
        async with await tidelog.connect(url) as client, as_broker(cluster) as spy:
            await client.create_stream(STREAM, replication_factor=3)
            await wait_in_sync(url, STREAM)
            (before,) = (await client.describe(STREAM))["partitions"]
            status = f"tidelog.metadata.status.{cluster.broker_ids[0]}"
            assert (await spy.request(status, b"{}", timeout=LIMIT)).status != NO_RESPONDERS
            async with acked_load(url, STREAM) as ledger:
                await until(lambda: len(ledger.acked) > 200, "acknowledged load")
                done = await asyncio.to_thread(
                    tidelog_command, "cluster", "rotate-secret", "--all", str(cluster.data_dir), "--server", url
                )
                assert done.returncode == 0, done.stderr
                acked = len(ledger.acked)
                await until(lambda: len(ledger.acked) > acked + 2000, "the load goes on", 3 * LIMIT)
            new = SecretFile.read(file)
            assert len(new.secrets) == 1
            assert new.secrets != old.secrets

            async def settled() -> bool:
                brokers = (await client.cluster_status())["brokers"]
                return all(broker["alive"] and broker["secrets"] == new.fingerprints for broker in brokers)

            await until(settled, "all brokers with the new secret alone")
            (after,) = (await client.describe(STREAM))["partitions"]
            assert (after["leader_epoch"], after["isr"]) == (before["leader_epoch"], before["isr"])
            stall = max(later - earlier for earlier, later in pairwise(ledger.ack_times[0]))
            print(f"\n{done.stdout}longest time without an acknowledgement: {stall * 1000:.0f} ms")
            assert ledger.unknown == 0, "acknowledged publishes failed"
            assert stall < 9.0, "the lease of a leader that hears of no controller is ten seconds"
            await assert_nothing_lost(url, ledger, {b: cluster.broker_dir(b) for b in cluster.broker_ids})
            with pytest.raises(TimeoutError):  # the old secret is worth nothing now
                await spy.request(status, b"{}", timeout=0.5)

            async def refused_for_their_secret() -> set[str]:
                told = [broker["refused_messages"] or {} for broker in (await status_of_all(client))["brokers"]]
                return {kind for kinds in told for kind, faults in kinds.items() if faults.get("secret")}

            found = await until(refused_for_their_secret, "the refusal of the old secret")
            assert found == {"status"}, "at no time did brokers refuse each other"
        # A broker that starts has the new one.
        cluster.kill(cluster.broker_ids[0])
        cluster.start_broker(cluster.broker_ids[0])
        await asyncio.to_thread(cluster.wait_ready, 2 * LIMIT)


def test_each_step_waits_for_the_brokers(tmp_path: Path) -> None:
    with dev_cluster(tmp_path / "cluster", nodes=3) as cluster:
        file = cluster.data_dir / "raft-secret"
        old = file.read_bytes()
        rotate = ("cluster", "rotate-secret", str(file), "--server", cluster.nats_url)
        done = tidelog_command(*rotate)
        assert "added a new secret" in done.stdout
        assert "next: use" in done.stdout
        copy = tmp_path / "copy"
        copy.write_bytes(file.read_bytes())
        # Another machine's file is still the one of before.
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_bytes(old)
        assert_refused(tidelog_command(*rotate, str(elsewhere)), "differ")
        assert file.read_bytes() == copy.read_bytes()
        assert "is in use" in tidelog_command(*rotate).stdout
        assert "only the new secret" in tidelog_command(*rotate).stdout
