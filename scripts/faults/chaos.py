"""Kill leaders with -9 under acked load on a development cluster, then look for records that are lost, repeated,
reordered, never sent, or different on replicas.

    scripts/chaos --minutes 3 --interval 5
    scripts/chaos --groups                                a consumer group reads meanwhile; its members are killed, too
    scripts/chaos --transactions                          a group's workers write in transactions, and are killed, too
    scripts/chaos --spark                                 a Spark query writes each record to another stream once
    scripts/chaos --repartition                           the stream gets more partitions, and fewer
    scripts/chaos --seed 7                                replays a run's choices (broker, time, number)
    scripts/chaos --broken ack-before-commit              must end in FAIL, or the check would not see a loss
    scripts/chaos --transactions --broken offsets-outside    so must workers that commit offsets by themselves
    scripts/chaos --repartition --broken no-fence         so must leaders that take records of any layout
    scripts/chaos --spark --broken at-least-once          so must a query that writes micro-batches again
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import sys
import time
from pathlib import Path

import tidelog
from scripts.faults.chaos_groups import chaos_groups
from scripts.faults.chaos_repartition import chaos_repartition
from scripts.faults.chaos_spark import chaos_spark
from scripts.faults.chaos_transactions import chaos_transactions
from scripts.faults.verdict import judge
from tests.integration.rig.workload import Ledger, acked_load, check, wait_in_isr, wait_in_sync
from tidelog.server.devcluster import DevCluster

STREAM = "chaos"
BROKEN_BROKERS = ("ack-before-commit", "no-fence")
BROKEN_WORKERS = ("offsets-outside",)
BROKEN_QUERIES = ("at-least-once",)
RECOVERY_TIMEOUT = 60.0
"""Seconds in which all replicas must be back in sync after the last kill."""


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=3.0, help="how long to go on (default 3)")
    parser.add_argument("--interval", type=float, default=5.0, help="seconds from one kill to the next (default 5)")
    parser.add_argument("--nodes", type=int, default=3, help="brokers (default 3)")
    parser.add_argument("--partitions", type=int, default=3, help="partitions (default 3)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="replays a run's choices")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--groups", action="store_true", help="a consumer group reads; members are killed, too")
    what.add_argument("--transactions", action="store_true", help="a group's workers write in transactions")
    what.add_argument("--spark", action="store_true", help="a Spark query writes to another stream, exactly once")
    what.add_argument("--repartition", action="store_true", help="the number of partitions changes meanwhile")
    parser.add_argument(
        "--json", action="store_true", help="with --transactions: end with a line of JSON before the verdict"
    )
    parser.add_argument(
        "--broken", choices=[*BROKEN_BROKERS, *BROKEN_WORKERS, *BROKEN_QUERIES], help="run with this rule broken"
    )
    parser.add_argument("--keep", action="store_true", help="keep the data folder and the logs")
    options = parser.parse_args()
    if options.broken in BROKEN_WORKERS and not options.transactions:
        parser.error(f"--broken {options.broken} is about workers; give --transactions, too")
    if options.broken in BROKEN_QUERIES and not options.spark:
        parser.error(f"--broken {options.broken} is about queries; give --spark, too")
    if options.json and not options.transactions:
        parser.error("--json goes with --transactions")
    return options


class Chaos:
    """Chooses victims, kills them, starts them again."""

    def __init__(self, cluster: DevCluster, ledger: Ledger, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._options = options
        self._rng = random.Random(options.seed)
        self.kills = 0
        self.gaps: list[float] = []
        self.majorities = 0

    async def run(self, client: tidelog.Client) -> None:
        end = time.monotonic() + self._options.minutes * 60
        while time.monotonic() < end:
            began = time.monotonic()
            await self._round(client)
            await asyncio.sleep(max(0.0, began + self._options.interval - time.monotonic()))

    async def _round(self, client: tidelog.Client) -> None:
        """The dice are thrown in the same order in every run of a seed, for any answers of the cluster."""
        dice, number, wait = self._rng.random(), self._rng.randrange(1 << 16), self._rng.uniform(0.1, 0.4)
        description = await client.describe(STREAM)
        partitions = description["partitions"]
        chosen = partitions[number % len(partitions)]
        leader = chosen["leader"] or self._cluster.broker_ids[number % len(self._cluster.broker_ids)]
        if dice < 0.75:
            victims, what = [leader], f"leader of partition {chosen['partition']}"
        elif dice < 0.9:
            controller = (await client.cluster_status())["controller"]
            victims, what = [controller or leader], "controller"
        else:
            others = [b for b in self._cluster.broker_ids if b != leader]
            victims, what = [leader, others[number % len(others)]], "a majority"
            self.majorities += 1
        print(
            f"{time.strftime('%H:%M:%S')} kill -9 {', '.join(victims)} ({what}),"
            f" {len(self._ledger.acked)} acknowledged",
            flush=True,
        )
        moment = time.monotonic()
        for victim in victims:
            self._cluster.kill(victim)
            self.kills += 1
        await asyncio.sleep(self._options.interval * wait)
        for victim in victims:
            self._cluster.start_broker(victim)
        if len(victims) == 1:
            gap = self._ledger.gap_after(chosen["partition"], moment)
            if gap is not None and victims == [leader]:
                self.gaps.append(gap)
        await wait_in_isr(client, STREAM, self._options.nodes, timeout=RECOVERY_TIMEOUT)


async def chaos(cluster: DevCluster, options: argparse.Namespace) -> bool:
    url = cluster.nats_url
    async with await tidelog.connect(url) as client:
        await client.create_stream(
            STREAM, subject=STREAM, partitions=options.partitions, replication_factor=min(options.nodes, 3)
        )
        await wait_in_sync(url, STREAM)
        async with acked_load(url, STREAM, partitions=options.partitions) as ledger:
            await asyncio.sleep(1.0)
            driver = Chaos(cluster, ledger, options)
            await driver.run(client)
    findings = await check(url, ledger, cluster.data_dirs, timeout=RECOVERY_TIMEOUT)
    gaps = [g * 1e3 for g in driver.gaps]
    print(f"kills {driver.kills} (of a majority at once: {driver.majorities}), unknown outcomes {ledger.unknown}")
    if gaps:
        print(
            f"writes stood still after a leader's kill: median {statistics.median(gaps):.0f} ms,"
            f" worst {max(gaps):.0f} ms"
        )
    print(findings)
    return findings.ok


def main() -> int:
    options = arguments()
    command = (
        ["-m", "tests.integration.rig.broken_broker", options.broken] if options.broken in BROKEN_BROKERS else None
    )

    def check_in(folder: Path) -> bool:
        with DevCluster(folder, nodes=options.nodes, port=0, server_command=command) as cluster:
            cluster.wait_ready()
            if options.groups:
                return asyncio.run(chaos_groups(cluster, folder, options))
            if options.spark:
                return asyncio.run(chaos_spark(cluster, folder, options))
            if options.repartition:
                return asyncio.run(chaos_repartition(cluster, folder, options))
            if options.transactions:
                return asyncio.run(chaos_transactions(cluster, folder, options))
            return asyncio.run(chaos(cluster, options))

    return judge("chaos", options, check_in)


if __name__ == "__main__":
    sys.exit(main())
