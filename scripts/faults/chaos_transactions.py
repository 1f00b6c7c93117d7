"""Producers fill a stream, and workers of a group write one record of output for each of its records, in one
transaction with the group's offsets. Workers, leaders, and the coordinators of the group and of transactions are
killed, stopped, started and ended; a stopped worker may wake beside its successor. Then each record must be in the
output exactly once and in order, the committed offsets must be its end, nothing of an aborted transaction may have been
read, and no transaction may hang.

    scripts/chaos --transactions --minutes 3 --interval 5
    scripts/chaos --transactions --broken offsets-outside     must end in FAIL
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import tidelog
from scripts.faults.chaos_members import (
    GROUP,
    MEMBERS,
    PARTITIONS,
    RECOVERY_S,
    SESSION_S,
    STREAM,
    MemberChaos,
    MemberProcess,
    shown_counts,
)
from tests.integration.groups.group_journals import judge_journals
from tests.integration.groups.group_member import name_of
from tests.integration.rig.workload import Ledger, acked_load, check, read_back, wait_in_sync
from tests.integration.transactions.transaction_journals import Place, judge_transactions
from tests.integration.transactions.transactional_worker import TRANSACTION_TIMEOUT_S
from tidelog.server.devcluster import DevCluster
from wire.internal_records import group_records, transaction_records
from wire.internal_streams import GROUPS, TRANSACTIONS

OUTPUT = "chaos-output"
OUTPUT_PARTITIONS = 6
PRODUCERS = 4
PAUSE = 0.3
FEWEST_MEMBERS = 3
_AGAIN = 0.2


@dataclass(slots=True)
class Counts:
    workers_killed: int = 0
    workers_stopped: int = 0
    workers_replaced: int = 0
    """Stopped, and begun anew under the same transactional id before they woke."""
    workers_ended: int = 0
    workers_started: int = 0
    leaders_killed: int = 0
    leaders_stopped: int = 0
    coordinators_killed: int = 0
    coordinators_stopped: int = 0


@dataclass(slots=True)
class TransactionChaos(MemberChaos):
    counts: Counts = field(default_factory=Counts)

    def start_worker(self, transactional_id: str | None = None) -> None:
        """Under the first transactional id that no worker has."""
        taken = {member.transactional_id for member in self.members}
        name = transactional_id or next(f"id{n}" for n in range(MEMBERS) if f"id{n}" not in taken)
        arguments = ["--output", OUTPUT, "--transactional-id", name]
        arguments += ["--broken", "offsets-outside"] if self.options.broken == "offsets-outside" else []
        self.spawn(
            f"w{self.counts.workers_started}",
            "tests.integration.transactions.transactional_worker",
            *arguments,
            transactional_id=name,
        )
        self.counts.workers_started += 1

    def fill_up(self) -> None:
        """FEWEST_MEMBERS to MEMBERS of them. One that has ended by itself was fenced, or has failed: see its log."""
        for member in [member for member in self.members if member.process.poll() is not None]:
            self.say(f"{member.name} has ended by itself")
            self.forget(member)
        wanted = self.rng.randint(FEWEST_MEMBERS, MEMBERS)
        while len(self.members) < wanted:
            self.start_worker()

    async def strike(self, client: tidelog.Client) -> None:
        dice, member = self.rng.random(), self.rng.choice(self.members)
        if dice < 0.17:
            self.kill(member)
            self.counts.workers_killed += 1
        elif dice < 0.27:
            self.counts.workers_stopped += 1
            await self.stop(member)
        elif dice < 0.37:
            self.counts.workers_replaced += 1
            await self._replace(member)
        elif dice < 0.45:
            self.end(member)
            self.counts.workers_ended += 1
        elif dice < 0.6:
            stream, partitions = self.rng.choice(((STREAM, PARTITIONS), (OUTPUT, OUTPUT_PARTITIONS)))
            await self.kill_broker(client, stream, self.rng.randrange(partitions))
            self.counts.leaders_killed += 1
        elif dice < 0.7:
            await self.stop_broker(client, OUTPUT, self.rng.randrange(OUTPUT_PARTITIONS))
            self.counts.leaders_stopped += 1
        else:
            of_group = (GROUPS.name, group_records.coordinator_partition(GROUP))
            of_worker = (TRANSACTIONS.name, transaction_records.coordinator_partition(member.transactional_id))
            coordinator = self.rng.choice((of_group, of_worker, of_worker))
            if dice < 0.88:
                await self.kill_broker(client, *coordinator)
                self.counts.coordinators_killed += 1
            else:
                await self.stop_broker(client, *coordinator)
                self.counts.coordinators_stopped += 1

    async def _replace(self, member: MemberProcess) -> None:
        """It wakes when its successor has its transactional id, and perhaps its partitions."""
        self.say(f"SIGSTOP {member.name}, and its successor begins")
        member.process.send_signal(signal.SIGSTOP)
        self.forget(member)
        self.start_worker(member.transactional_id)
        try:
            await asyncio.sleep(self.rng.choice((1.0, 1.5 * SESSION_S)))
        finally:
            member.process.send_signal(signal.SIGCONT)


@asynccontextmanager
async def watched(url: str, read_from: Literal["leader", "follower"]) -> AsyncIterator[dict[Place, bytes]]:
    """What a consumer of committed records sees of the output until the block ends."""
    seen: dict[Place, bytes] = {}

    async def watch(client: tidelog.Client) -> None:
        async for batch in client.consume(OUTPUT, start="earliest", read_from=read_from).batches():
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                place = (batch.partition, int(offset))
                assert place not in seen, f"the {read_from} handed out {place} twice"
                seen[place] = value or b""

    async with await tidelog.connect(url) as client:
        watching = asyncio.create_task(watch(client))
        try:
            yield seen
        finally:
            watching.cancel()
            with suppress(asyncio.CancelledError):
                await watching


async def hanging(client: tidelog.Client) -> list[str]:
    """Transactions that are open although all workers have ended, and partitions with records that a transaction holds
    back; those that end within their timeout do not count."""
    deadline = time.monotonic() + TRANSACTION_TIMEOUT_S + RECOVERY_S
    while True:
        try:
            found = await client.transactions()
            left = [f"{each['transactional_id']} is {each['state']}" for each in found["transactions"]]
            left += [f"the coordinator {partition} does not answer" for partition in found["unanswered"]]
            for stream in (STREAM, OUTPUT):
                for each in (await client.describe(stream))["partitions"]:
                    last, stable = each["high_watermark"], each.get("last_stable_offset")
                    if last is None or stable != last + 1:
                        left.append(f"{stream}/{each['partition']}: last stable offset {stable}, last committed {last}")
        except tidelog.TidelogError as error:
            left = [str(error)]
        if not left or time.monotonic() > deadline:
            return left
        await asyncio.sleep(_AGAIN)


async def chaos_transactions(cluster: DevCluster, folder: Path, options: argparse.Namespace) -> bool:
    url = cluster.nats_url
    async with await tidelog.connect(url) as client:
        for stream, partitions in ((STREAM, PARTITIONS), (OUTPUT, OUTPUT_PARTITIONS)):
            await client.create_stream(stream, partitions=partitions, replication_factor=min(options.nodes, 3))
            await wait_in_sync(url, stream)
        driver = TransactionChaos(cluster, folder, options)
        looking = asyncio.create_task(driver.look(client))
        ledger: Ledger
        async with watched(url, "leader") as of_leader, watched(url, "follower") as of_follower:
            try:
                async with acked_load(url, STREAM, producers=PRODUCERS, bare=False, pause=PAUSE) as ledger:
                    driver.fill_up()
                    await driver.until_joined(client)
                    driver.streams = (STREAM, OUTPUT, GROUPS.name, TRANSACTIONS.name)
                    await driver.until_in_sync(client)
                    await driver.run(client)
                await driver.until_read(client)
            finally:
                looking.cancel()
                await asyncio.to_thread(driver.end_members)
            left = await hanging(client)
        findings = await check(url, ledger, cluster.data_dirs, timeout=RECOVERY_S)
        stored = await read_back(url, ledger)
        output = await read_back(url, Ledger(OUTPUT))
        described = await client.describe_group(GROUP)
    committed = {entry["partition"]: entry["offset"] for entry in described["offsets"]}
    journals = driver.journals()
    found = judge_transactions(stored, output, journals, committed, (of_leader, of_follower))
    members = judge_journals(journals, map(name_of, ledger.acked), driver.seen)
    # A worker that was stopped between a poll and its line in the journal seems to share the partition with the next
    # one. That what it makes of these records is refused, the output shows.
    members.shared.clear()
    fenced = sum(line["kind"] == "fenced" for lines in journals.values() for line in lines)
    print(f"{shown_counts(driver.counts)}, workers fenced {fenced}")
    print(f"input: {findings}")
    print(f"group: {members}; {len(driver.seen)} looks at the committed offsets")
    print(f"output: {found}; {len(of_leader)} seen meanwhile at leaders, {len(of_follower)} at followers")
    print(f"hanging: {'; '.join(left[:5]) if left else 'none'}")
    passed = findings.ok and members.ok and found.ok and not left
    if options.json:
        facts = {"passed": passed, "seed": options.seed, "fenced": fenced, "hanging": left}
        print(json.dumps({**facts, **asdict(driver.counts), **found.facts()}))
    return passed
