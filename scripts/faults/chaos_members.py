"""What the chaos scripts with a consumer group share: its members are processes, which are killed, stopped and started
beside the brokers, and an observer notes what the group has committed.
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
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import tidelog
from tests.integration.groups.group_journals import Seen, read_journal
from tests.integration.rig.workload import wait_in_isr
from tidelog.server.devcluster import DevCluster

STREAM = "chaos"
GROUP = "workers"
PARTITIONS = 12
MEMBERS = 5
SESSION_S = 4.0
RECOVERY_S = 60.0
DRAIN_S = 90.0
"""For the members to read what is left in the end."""
END_S = 20.0
"""For a member to end in good order."""
_LOOK_INTERVAL_S = 0.25


@dataclass(slots=True)
class MemberProcess:
    name: str
    journal: Path
    process: subprocess.Popen[bytes]
    transactional_id: str = ""


def shown_counts(counts: Any) -> str:
    """Of a dataclass of numbers."""
    numbers = {each.name: getattr(counts, each.name) for each in fields(counts)}
    return ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in numbers.items())


@dataclass(slots=True)
class MemberChaos:
    cluster: DevCluster
    folder: Path
    options: argparse.Namespace
    streams: Sequence[str] = (STREAM,)
    """All their replicas are in sync before the next blow."""
    members: list[MemberProcess] = field(default_factory=list)
    gone: list[MemberProcess] = field(default_factory=list)
    """Killed, ended, or not looked after any more."""
    seen: list[Seen] = field(default_factory=list)
    rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.options.seed)

    async def run(self, client: tidelog.Client) -> None:
        end = time.monotonic() + self.options.minutes * 60
        while time.monotonic() < end:
            began = time.monotonic()
            await self.strike(client)
            self.fill_up()
            await asyncio.sleep(max(0.0, began + self.options.interval - time.monotonic()))

    async def strike(self, client: tidelog.Client) -> None:
        """Kill or stop something, or start a member."""
        raise NotImplementedError

    def fill_up(self) -> None:
        """Start members where some are missing."""
        raise NotImplementedError

    def spawn(self, name: str, module: str, *arguments: str, transactional_id: str = "") -> None:
        """A member that reads STREAM: `python -m module` with the options that all members have, and `arguments`."""
        journal = self.folder / f"{name}.journal"
        command = [sys.executable, "-m", module, "--server", self.cluster.nats_url, "--stream", STREAM]
        command += ["--group", GROUP, "--journal", str(journal), "--session", str(SESSION_S), *arguments]
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self.members.append(MemberProcess(name, journal, process, transactional_id))

    def say(self, what: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)

    def kill(self, member: MemberProcess) -> None:
        self.say(f"kill -9 {member.name}")
        member.process.kill()
        self.forget(member)

    def end(self, member: MemberProcess) -> None:
        self.say(f"end {member.name} in good order")
        member.process.terminate()
        self.forget(member)

    async def stop(self, member: MemberProcess) -> None:
        """For a moment, or for longer than its session."""
        self.say(f"SIGSTOP {member.name}")
        member.process.send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.rng.choice((1.0, 1.5 * SESSION_S)))
        member.process.send_signal(signal.SIGCONT)

    def forget(self, member: MemberProcess) -> None:
        self.members.remove(member)
        self.gone.append(member)

    async def leader(self, client: tidelog.Client, stream: str, partition: int) -> str:
        leader = (await client.describe(stream))["partitions"][partition]["leader"]
        return leader or self.cluster.broker_ids[0]

    async def kill_broker(self, client: tidelog.Client, stream: str, partition: int) -> None:
        victim = await self.leader(client, stream, partition)
        self.say(f"kill -9 {victim}, leader of {stream}/{partition}")
        self.cluster.kill(victim)
        await asyncio.sleep(1.0)
        self.cluster.start_broker(victim)
        await self.until_in_sync(client)

    async def stop_broker(self, client: tidelog.Client, stream: str, partition: int) -> None:
        victim = await self.leader(client, stream, partition)
        self.say(f"SIGSTOP {victim}, leader of {stream}/{partition}")
        self.cluster.kill(victim, signal.SIGSTOP)
        try:
            await asyncio.sleep(self.rng.choice((1.0, 4.0)))
        finally:
            self.cluster.kill(victim, signal.SIGCONT)
        await self.until_in_sync(client)

    async def until_in_sync(self, client: tidelog.Client) -> None:
        for stream in self.streams:
            await wait_in_isr(client, stream, self.options.nodes, timeout=RECOVERY_S)

    async def look(self, client: tidelog.Client) -> None:
        """Notes what is committed, again and again."""
        while True:
            with contextlib.suppress(tidelog.TidelogError):
                found = await client.describe_group(GROUP)
                offsets = {entry["partition"]: entry["offset"] for entry in found["offsets"]}
                self.seen.append(Seen(time.monotonic(), offsets))
            await asyncio.sleep(_LOOK_INTERVAL_S)

    async def until_joined(self, client: tidelog.Client) -> None:
        """Until the coordinator knows all members, and all partitions are assigned."""
        async with asyncio.timeout(RECOVERY_S):
            while True:
                with contextlib.suppress(tidelog.UnknownGroup):
                    found = await client.describe_group(GROUP)
                    if found["members"] == len(self.members) and found["state"] == "stable":
                        return
                await asyncio.sleep(_LOOK_INTERVAL_S)

    async def until_read(self, client: tidelog.Client) -> None:
        """Until the group has committed all that is in the stream."""
        ends = await client.offsets(STREAM, "latest")
        deadline = time.monotonic() + DRAIN_S
        newest: dict[int, int] = {}
        while time.monotonic() < deadline:
            newest = self.seen[-1].offsets if self.seen else {}
            if all(newest.get(partition, 0) >= end for partition, end in ends.items()):
                return
            await asyncio.sleep(_LOOK_INTERVAL_S)
        print(f"not all was read and committed within {DRAIN_S:.0f} s: {newest} of {ends}")

    def end_members(self) -> None:
        everyone = (*self.members, *self.gone)
        for member in everyone:
            member.process.terminate()
        for member in everyone:
            try:
                member.process.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                print(f"{member.name} does not end")
                member.process.kill()

    def journals(self) -> dict[str, list[dict[str, Any]]]:
        """By the name of the process."""
        everyone = (*self.members, *self.gone)
        return {member.name: read_journal(member.journal) for member in everyone if member.journal.exists()}
