"""Power cuts under acknowledged load, and the checks afterwards.

one machine at a time     durable and accepted streams: nothing acknowledged is lost
all of them at once       durable streams: nothing acknowledged is lost (of accepted ones the page cache was all)
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from random import Random

import tidelog
from tests.integration.rig.waiting import until
from tests.integration.rig.workload import Findings, Ledger, acked_load, check
from tests.power_loss.cluster import PowerLossCluster
from tests.power_loss.disk import Losses
from tidelog.server.devcluster import DevCluster

PARTITIONS = 3
CONFIG = {"segment_bytes": "65536"}
"""Small segments: a new file, and a finished one, every few hundred records."""
PAUSE = 0.01
"""Seconds between bursts of a sender: the machine is busy with the disks."""
RECOVERY_TIMEOUT = 60.0
"""Seconds in which all replicas must be back in sync after a cut."""


@dataclass(frozen=True, slots=True)
class Report:
    what: str
    rounds: int
    cuts: int
    lost: Losses
    """Survival of unsynced writes."""
    findings: dict[str, Findings]

    @property
    def ok(self) -> bool:
        return all(found.ok for found in self.findings.values())

    def __str__(self) -> str:
        streams = "".join(f"\n  {stream}: {found}" for stream, found in self.findings.items())
        return (
            f"{self.what}: {self.rounds} rounds, power cut {self.cuts} times, which took {self.lost.bytes} bytes and"
            f" {self.lost.names} names that were not synced{streams}"
        )


async def one_at_a_time(cluster: PowerLossCluster, rng: Random, seconds: float) -> Report:
    """In every other round the processes of the others are killed too: their page cache survives, and of an
    accepted stream they hold the records that the first one lost. It must not lead. A round ends when all are in
    sync."""
    brokers = cluster.brokers
    before = cluster.cuts, cluster.losses
    rounds = 0
    async with await tidelog.connect(brokers.nats_url) as client:
        await _create(client, "durable", {})
        await _create(client, "accepted", {"durability": "accepted"})
        async with _load(brokers, "durable") as durable, _load(brokers, "accepted") as accepted:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(rng.uniform(0.2, 0.8))
                victim = rng.choice(brokers.broker_ids)
                killed = brokers.broker_ids if rng.random() < 0.5 else [victim]
                await asyncio.to_thread(cluster.cut, [victim], killed=killed)
                await asyncio.sleep(rng.choice((0.0, rng.uniform(0.2, 0.8))))
                await asyncio.to_thread(cluster.start, killed)
                await asyncio.to_thread(brokers.wait_ready, RECOVERY_TIMEOUT)
                await wait_in_isr(client, ["durable", "accepted"])
                rounds += 1
    return await _report("one machine at a time", cluster, rounds, before, [durable, accepted])


async def all_at_once(cluster: PowerLossCluster, rng: Random, seconds: float) -> Report:
    """Often the next cut comes before all are in sync again."""
    brokers = cluster.brokers
    before = cluster.cuts, cluster.losses
    rounds = 0
    async with await tidelog.connect(brokers.nats_url) as client:
        await _create(client, "whole", {})
        async with _load(brokers, "whole") as ledger:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                await asyncio.sleep(rng.uniform(0.2, 1.0))
                await asyncio.to_thread(cluster.cut, brokers.broker_ids)
                await asyncio.to_thread(cluster.start, brokers.broker_ids)
                await _wait_for_more(ledger)
                if rng.random() < 0.5:
                    await wait_in_isr(client, ["whole"])
                rounds += 1
    return await _report("all machines at once", cluster, rounds, before, [ledger])


async def wait_in_isr(client: tidelog.Client, streams: list[str]) -> None:
    """Until all replicas of their partitions are in the ISR."""

    async def in_isr(stream: str) -> bool:
        return all(len(p["isr"]) == len(p["replicas"]) for p in (await client.describe(stream))["partitions"])

    for stream in streams:
        await until(partial(in_isr, stream), f"{stream} in sync after a power cut", RECOVERY_TIMEOUT)


async def _wait_for_more(ledger: Ledger) -> None:
    wanted = len(ledger.acked) + 100
    await until(lambda: len(ledger.acked) >= wanted, "acknowledgements after a power cut", RECOVERY_TIMEOUT)


async def _create(client: tidelog.Client, stream: str, config: dict[str, str]) -> None:
    await client.create_stream(
        stream, subject=stream, partitions=PARTITIONS, replication_factor=3, config={**CONFIG, **config}
    )
    await wait_in_isr(client, [stream])


def _load(brokers: DevCluster, stream: str) -> AbstractAsyncContextManager[Ledger]:
    return acked_load(brokers.nats_url, stream, producers=2, partitions=PARTITIONS, pause=PAUSE)


async def _report(
    what: str, cluster: PowerLossCluster, rounds: int, before: tuple[int, Losses], ledgers: list[Ledger]
) -> Report:
    brokers = cluster.brokers
    findings = {
        ledger.stream: await check(brokers.nats_url, ledger, brokers.data_dirs, timeout=RECOVERY_TIMEOUT)
        for ledger in ledgers
    }
    cuts, losses = before
    lost = Losses(cluster.losses.bytes - losses.bytes, cluster.losses.names - losses.names)
    return Report(what, rounds, cluster.cuts - cuts, lost, findings)
