"""A disk that hangs for seconds and fails nothing. Another member leads, and acknowledges, while it hangs, and the
broker comes back when the disk answers.

    syncs        the syncs of the logs hang; the loop answers probes and fetches all the while, so the broker itself
                 must name the fault
    journal      the same, and the syncs of the Raft journal, for which the loop waits: with the election that takes
                 its leadership the broker falls silent
    everything   each fsync on a mounted file system hangs, and with it each write to the same file, so the loop stands
                 still with the first append or Raft entry; the others find the broker silent
"""

# Rules: R40.

from __future__ import annotations

import asyncio
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

import tidelog
from metadata.raft.node import EXIT_STATUS
from tests.integration.rig.brokers_status import status_of_all
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.hanging_broker import hanging_file
from tests.integration.rig.small_disks import partition, until_isr, until_led_by_another
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import acked_load, assert_nothing_lost, wait_in_sync
from tests.power_loss.cluster import PowerLossCluster, why_not
from tidelog.server.devcluster import DevCluster

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

LAG = 2.5
"""`replica_max_lag_time`: so long may a sync take before its disk counts as one that hangs."""
SETTINGS = {
    "replica": {"replica_max_idle_wait": 0.5, "replica_max_leader_timeout": 1.5, "replica_max_lag_time": LAG},
    # A small sync on the loop would stop the whole process: that is another fault, a broker that is silent.
    "storage": {"quick_sync_below": 0.0},
}
PAUSE = 0.02
"""Of the load."""


@dataclass
class Disks:
    processes: DevCluster
    let_hang: Callable[[str, bool], None]


@contextmanager
def disks(folder: Path, kind: str) -> Iterator[Disks]:
    if kind == "everything" and (reason := why_not()) is not None:
        pytest.skip(reason)

    def let_hang(broker: str, hangs: bool) -> None:
        file = hanging_file(folder / f"{broker}.toml")
        if hangs:
            file.touch()
        else:
            file.unlink(missing_ok=True)

    with ExitStack() as stack:
        if kind == "everything":
            running = stack.enter_context(PowerLossCluster(folder, rng=Random(1), settings=SETTINGS)).brokers
        else:
            command = ["-m", "tests.integration.rig.hanging_broker", *(["--journal"] if kind == "journal" else [])]
            running = stack.enter_context(dev_cluster(folder, settings=SETTINGS, server_command=command))
        try:
            yield Disks(running, let_hang)
        finally:
            for broker in running.broker_ids:
                let_hang(broker, False)


async def leader_that(client: tidelog.Client, is_controller: bool) -> str:
    """Leads stream `s`, and is the controller as well, or is not."""
    leader = str((await partition(client, "s"))["leader"])
    status = await client.cluster_status()
    controller = str(status["controller"])
    if (leader == controller) is not is_controller:
        brokers = [broker["id"] for broker in status["brokers"]]
        leader = controller if is_controller else next(b for b in brokers if b not in (controller, leader))
        await client.move_leader("s", 0, leader)
    return leader


@pytest.mark.parametrize("is_controller", [False, True], ids=["", "controller"])
@pytest.mark.parametrize("kind", ["syncs", "journal", "everything"])
async def test_while_the_disk_of_a_leader_hangs_another_one_acknowledges(
    tmp_path: Path, kind: str, is_controller: bool
) -> None:
    with disks(tmp_path / "cluster", kind) as cluster:
        url = cluster.processes.nats_url
        brokers = cluster.processes.broker_ids
        async with await tidelog.connect(url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=3)
            await wait_in_sync(url, "s")
            hung = await leader_that(client, is_controller)
            async with acked_load(url, "s", pause=PAUSE) as ledger:
                await asyncio.sleep(1.0)
                cluster.let_hang(hung, True)
                began = time.monotonic()
                await asyncio.sleep(0.5)  # records synced before are acknowledged
                before = len(ledger.acked)

                await until(lambda: len(ledger.acked) > before + 50, "acknowledgements while the disk hangs")
                # It hangs until the test lets it answer.
                print(f"\n{kind}: acknowledged again {time.monotonic() - began:.2f} s after the disk began to hang")
                await until_led_by_another(client, "s", hung)
                if kind == "syncs":
                    await is_reported(client, hung)
                await asyncio.sleep(2.0)
                assert hung not in (await partition(client, "s"))["isr"]
                cluster.let_hang(hung, False)
                await until_isr(client, "s", *brokers)
            await assert_nothing_lost(url, ledger, cluster.processes.data_dirs)
        assert all(cluster.processes.pid(broker) is not None for broker in brokers)
        log = cluster.processes.log_file(hung).read_text()
        if kind != "everything":
            assert "the disk hangs" in log
            assert "the disk answers again" in log
        assert "Traceback" not in log


async def test_a_broker_whose_disk_hangs_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with disks(tmp_path / "cluster", "syncs") as cluster:
        processes, url = cluster.processes, cluster.processes.nats_url
        async with await tidelog.connect(url, api_timeout=LIMIT) as client:
            await client.create_stream("s", replication_factor=3)
            await wait_in_sync(url, "s")
            hung = str((await partition(client, "s"))["leader"])
            async with acked_load(url, "s", pause=PAUSE) as ledger:
                await asyncio.sleep(0.5)
                cluster.let_hang(hung, True)
                await asyncio.sleep(0.5)  # a sync waits
                await asyncio.to_thread(processes.kill, hung, signal.SIGTERM)
                assert processes.exit_status(hung) == EXIT_STATUS
                log = processes.log_file(hung).read_text()
                # The audit trail has a replica here too, and may have something to sync.
                left_open = r"nothing has come of closing the logs of (__audit/0, )?s/0 for 2\.5 s"
                assert re.search(left_open, log), log
                assert "Traceback" not in log
                cluster.let_hang(hung, False)
                processes.start_broker(hung)
                await until_isr(client, "s", *processes.broker_ids)
            await assert_nothing_lost(url, ledger, processes.data_dirs)


async def is_reported(client: tidelog.Client, hung: str) -> None:
    async def is_named() -> bool:
        brokers = (await status_of_all(client))["brokers"]
        return any(each["id"] == hung and each["disk"] is not None and each["disk"]["hangs"] for each in brokers)

    await until(is_named, f"the disk of {hung} that hangs")
    for broker in (await status_of_all(client))["brokers"]:
        disk, counters = broker["disk"], broker["counters"]
        assert disk is not None
        assert counters is not None
        assert disk["hangs"] is (broker["id"] == hung), broker
        assert counters["times_disk_hung"] == int(broker["id"] == hung)
