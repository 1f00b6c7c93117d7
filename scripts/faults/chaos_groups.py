"""Ten producers and a consumer group, whose members, leaders and coordinator are killed, stopped, started and ended.
Then every acknowledged record must have been handed out, in order, no partition to two members at a time, and no
committed offset may have moved back or ahead of what was handed out.

    scripts/chaos --groups --minutes 3 --interval 5
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import tidelog
from scripts.faults.chaos_members import GROUP, MEMBERS, PARTITIONS, STREAM, MemberChaos, shown_counts
from tests.integration.groups.group_journals import judge_journals
from tests.integration.groups.group_member import name_of
from tests.integration.rig.workload import Ledger, acked_load, check, wait_in_sync
from tidelog.server.devcluster import DevCluster
from wire.internal_records.group_records import coordinator_partition
from wire.internal_streams import GROUPS

PRODUCERS = 10
PAUSE = 0.3
"""Of a producer between two bursts: members in Python must keep up."""


@dataclass(slots=True)
class Counts:
    members_killed: int = 0
    members_stopped: int = 0
    members_ended: int = 0
    members_started: int = 0
    leaders_killed: int = 0
    coordinators_killed: int = 0
    coordinators_stopped: int = 0


@dataclass(slots=True)
class GroupChaos(MemberChaos):
    counts: Counts = field(default_factory=Counts)

    def start_member(self) -> None:
        number = self.counts.members_started
        arguments = ["--instance", f"static-{number}"] if number < 2 else []
        self.spawn(f"m{number}", "tests.integration.groups.group_member", *arguments)
        self.counts.members_started += 1

    def fill_up(self) -> None:
        while len(self.members) < MEMBERS:
            self.start_member()

    async def strike(self, client: tidelog.Client) -> None:
        dice, member = self.rng.random(), self.rng.choice(self.members)
        if dice < 0.2:
            self.kill(member)
            self.counts.members_killed += 1
        elif dice < 0.4:
            self.counts.members_stopped += 1
            await self.stop(member)
        elif dice < 0.55:
            self.end(member)
            self.counts.members_ended += 1
        elif dice < 0.65:
            self.say("one more member")
            self.start_member()
        elif dice < 0.8:
            await self.kill_broker(client, STREAM, self.rng.randrange(PARTITIONS))
            self.counts.leaders_killed += 1
        elif dice < 0.92:
            await self.kill_broker(client, GROUPS.name, coordinator_partition(GROUP))
            self.counts.coordinators_killed += 1
        else:
            await self.stop_broker(client, GROUPS.name, coordinator_partition(GROUP))
            self.counts.coordinators_stopped += 1


async def chaos_groups(cluster: DevCluster, folder: Path, options: argparse.Namespace) -> bool:
    url = cluster.nats_url
    async with await tidelog.connect(url) as client:
        await client.create_stream(STREAM, partitions=PARTITIONS, replication_factor=min(options.nodes, 3))
        await wait_in_sync(url, STREAM)
        driver = GroupChaos(cluster, folder, options)
        looking = asyncio.create_task(driver.look(client))
        ledger: Ledger
        try:
            async with acked_load(url, STREAM, producers=PRODUCERS, bare=False, pause=PAUSE) as ledger:
                driver.fill_up()
                await driver.until_joined(client)
                await driver.run(client)
            await driver.until_read(client)
        finally:
            looking.cancel()
            await asyncio.to_thread(driver.end_members)
    findings = await check(url, ledger, cluster.data_dirs, timeout=60.0)
    acknowledged = map(name_of, ledger.acked)
    group = judge_journals(driver.journals(), acknowledged, driver.seen)
    print(shown_counts(driver.counts))
    print(findings)
    print(f"group: {group}; {len(driver.seen)} looks at the committed offsets")
    return findings.ok and group.ok
