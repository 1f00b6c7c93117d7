"""Ten producers and a consumer group, whose members, leaders and coordinator are killed, stopped, started and ended.
Then every acknowledged record must have been handed out, in order, no partition to two members at a time, and no
committed offset may have moved back or ahead of what was handed out.

    scripts/chaos --groups --minutes 3 --interval 5
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import tidelog
from tests.integration.group_journals import Seen, judge_journals, read_journal
from tests.integration.group_member import name_of
from tests.integration.workload import Ledger, acked_load, check, wait_in_isr, wait_in_sync
from tidelog.server.devcluster import DevCluster
from wire.groups import coordinator_partition
from wire.internal_streams import GROUPS

STREAM = "chaos"
GROUP = "workers"
PARTITIONS = 12
PRODUCERS = 10
MEMBERS = 5
PAUSE = 0.3
"""Of a producer between two bursts: members in Python must keep up."""
SESSION_S = 4.0
LOOK_INTERVAL_S = 0.25
RECOVERY_S = 60.0
DRAIN_S = 90.0
"""For the members to read what is left in the end."""


@dataclass(slots=True)
class MemberProcess:
    name: str
    journal: Path
    process: subprocess.Popen[bytes]
    stopped_until: float = 0.0


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
class GroupChaos:
    cluster: DevCluster
    folder: Path
    options: argparse.Namespace
    counts: Counts = field(default_factory=Counts)
    members: list[MemberProcess] = field(default_factory=list)
    gone: list[MemberProcess] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.options.seed)

    def start_member(self) -> None:
        number = len(self.members) + len(self.gone)
        name = f"m{number}"
        journal = self.folder / f"{name}.journal"
        instance = f"static-{number % 2}" if number < 2 else ""
        command = [sys.executable, "-m", "tests.integration.group_member", "--server", self.cluster.nats_url]
        command += ["--stream", STREAM, "--group", GROUP, "--journal", str(journal), "--session", str(SESSION_S)]
        command += ["--instance", instance] if instance else []
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.members.append(MemberProcess(name, journal, process))
        self.counts.members_started += 1

    async def run(self, client: tidelog.Client) -> None:
        end = time.monotonic() + self.options.minutes * 60
        while time.monotonic() < end:
            began = time.monotonic()
            await self._round(client)
            while len(self.members) < MEMBERS:
                self.start_member()
            await asyncio.sleep(max(0.0, began + self.options.interval - time.monotonic()))

    async def _round(self, client: tidelog.Client) -> None:
        dice, member = self.rng.random(), self.rng.choice(self.members)
        if dice < 0.2:
            self._say(f"kill -9 member {member.name}")
            member.process.kill()
            self._forget(member)
            self.counts.members_killed += 1
        elif dice < 0.4:
            self._say(f"SIGSTOP member {member.name}")
            member.process.send_signal(signal.SIGSTOP)
            self.counts.members_stopped += 1
            await asyncio.sleep(self.rng.choice((1.0, 1.5 * SESSION_S)))
            member.process.send_signal(signal.SIGCONT)
        elif dice < 0.55:
            self._say(f"end member {member.name} in good order")
            member.process.terminate()
            self._forget(member)
            self.counts.members_ended += 1
        elif dice < 0.65:
            self._say("one more member")
            self.start_member()
        elif dice < 0.8:
            partition = self.rng.randrange(PARTITIONS)
            await self._kill_broker(client, STREAM, partition)
            self.counts.leaders_killed += 1
        elif dice < 0.92:
            await self._kill_broker(client, GROUPS.name, coordinator_partition(GROUP))
            self.counts.coordinators_killed += 1
        else:
            await self._stop_broker(client, GROUPS.name, coordinator_partition(GROUP))
            self.counts.coordinators_stopped += 1

    def _say(self, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)

    def _forget(self, member: MemberProcess) -> None:
        self.members.remove(member)
        self.gone.append(member)

    async def _leader(self, client: tidelog.Client, stream: str, partition: int) -> str:
        leader = (await client.describe(stream))["partitions"][partition]["leader"]
        return leader or self.cluster.broker_ids[0]

    async def _kill_broker(self, client: tidelog.Client, stream: str, partition: int) -> None:
        victim = await self._leader(client, stream, partition)
        self._say(f"kill -9 {victim}, leader of {stream}/{partition}")
        self.cluster.kill(victim)
        await asyncio.sleep(1.0)
        self.cluster.start_broker(victim)
        await wait_in_isr(client, STREAM, self.options.nodes, timeout=RECOVERY_S)

    async def _stop_broker(self, client: tidelog.Client, stream: str, partition: int) -> None:
        victim = await self._leader(client, stream, partition)
        self._say(f"SIGSTOP {victim}, leader of {stream}/{partition}")
        self.cluster.kill(victim, signal.SIGSTOP)
        try:
            await asyncio.sleep(self.rng.choice((1.0, 4.0)))
        finally:
            self.cluster.kill(victim, signal.SIGCONT)
        await wait_in_isr(client, STREAM, self.options.nodes, timeout=RECOVERY_S)

    async def look(self, client: tidelog.Client) -> None:
        """Notes what is committed, again and again."""
        while True:
            with contextlib.suppress(tidelog.TidelogError):
                found = await client.describe_group(GROUP)
                offsets = {entry["partition"]: entry["offset"] for entry in found["offsets"]}
                self.seen.append(Seen(time.monotonic(), offsets))
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def until_joined(self, client: tidelog.Client) -> None:
        """Until the coordinator knows all members, and all partitions are assigned."""
        async with asyncio.timeout(RECOVERY_S):
            while True:
                with contextlib.suppress(tidelog.UnknownGroup):
                    found = await client.describe_group(GROUP)
                    if found["members"] == MEMBERS and found["state"] == "stable":
                        return
                await asyncio.sleep(LOOK_INTERVAL_S)

    async def until_read(self, client: tidelog.Client) -> None:
        """Until the group has committed all that is in the stream."""
        ends = await client.offsets(STREAM, "latest")
        deadline = time.monotonic() + DRAIN_S
        newest: dict[int, int] = {}
        while time.monotonic() < deadline:
            newest = self.seen[-1].offsets if self.seen else {}
            if all(newest.get(partition, 0) >= end for partition, end in ends.items()):
                return
            await asyncio.sleep(LOOK_INTERVAL_S)
        print(f"not all was read and committed within {DRAIN_S:.0f} s: {newest} of {ends}")

    def end_members(self) -> None:
        for member in self.members:
            member.process.terminate()
        for member in (*self.members, *self.gone):
            try:
                member.process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                print(f"member {member.name} does not end")
                member.process.kill()


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
                while len(driver.members) < MEMBERS:
                    driver.start_member()
                await driver.until_joined(client)
                await driver.run(client)
            await driver.until_read(client)
        finally:
            looking.cancel()
            await asyncio.to_thread(driver.end_members)
    findings = await check(url, ledger, cluster.data_dirs, timeout=60.0)
    everyone = [*driver.members, *driver.gone]
    journals = {member.name: read_journal(member.journal) for member in everyone if member.journal.exists()}
    acknowledged = map(name_of, ledger.acked)
    group = judge_journals(journals, acknowledged, driver.seen)
    counts = {name: getattr(driver.counts, name) for name in Counts.__slots__}
    print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in counts.items()))
    print(findings)
    print(f"group: {group}; {len(driver.seen)} looks at the committed offsets")
    return findings.ok and group.ok
