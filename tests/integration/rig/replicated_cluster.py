"""Three broker processes whose replicas a test watches one by one, kills, stops and wakes.

`stream describe` joins the state of the controller with the report of the leader, at two moments. What a test claims
about a replica is read in one piece from the broker that holds it (`Replica`), by the request that the controller uses.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tidelog
from tests.integration.rig.dev_cluster import assert_logs_without, dev_cluster
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import diverging, wait_in_sync
from tests.peers import peer_link, secrets_of
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.subjects import Subjects
from wire.types import BrokerId

SETTINGS: dict[str, dict[str, Any]] = {
    "replica": {
        "replica_max_idle_wait": 0.5,
        "replica_max_leader_timeout": 1.5,
        "replica_max_lag_time": 2.5,
        # Followers hear of a commit with their next fetch only: at a failover their high watermarks are behind.
        "high_watermark_notify_delay": 10.0,
    },
    # A stopped broker is dropped by its leaders, for its lag, long before the controller declares it dead.
    "metadata": {"clock_settle_s": 0.5, "broker_silence_timeout_s": 20.0, "leader_lease_s": 25.0},
}
UNCLEAN = "(unclean election)"
"""Log line of a follower that has to truncate below its own high watermark."""


@dataclass(frozen=True, slots=True)
class Replica:
    """One replica of partition 0 at one moment, as its own broker tells it. Offsets are exclusive ends."""

    broker: str
    role: str
    leader_epoch: int
    high_watermark: int
    log_end_offset: int
    isr: frozenset[str]
    """The committed ISR that a leader goes by; empty on followers."""
    ends: Mapping[str, int]
    """LEO of each replica that the leader has heard of; empty on followers."""

    @property
    def leads(self) -> bool:
        return self.role == "leading" and bool(self.isr)


class ReplicatedCluster:
    def __init__(
        self, processes: DevCluster, client: tidelog.Client, nats: NatsConnection, as_broker: NatsConnection
    ) -> None:
        self.processes = processes
        self.client = client
        self.nats = nats
        self.peers = peer_link(as_broker, secrets_of(processes))
        """As a broker of this cluster."""
        self._stopped: set[str] = set()
        self._subjects = Subjects()

    @property
    def url(self) -> str:
        return self.processes.nats_url

    @property
    def brokers(self) -> list[str]:
        return self.processes.broker_ids

    # ------------------------------------------------------------------ processes
    def kill(self, *brokers: str) -> None:
        """kill -9, all before the first of them is waited for: no majority is left to hear of one death alone."""
        for broker in brokers:
            pid = self.processes.pid(broker)
            assert pid is not None, f"{broker} does not run"
            os.kill(pid, signal.SIGKILL)
        for broker in brokers:
            self.processes.kill(broker)
            self._stopped.discard(broker)

    def start(self, *brokers: str) -> None:
        for broker in brokers:
            self.processes.start_broker(broker)

    def stop(self, *brokers: str) -> None:
        """SIGSTOP: connected, counted, and silent."""
        for broker in brokers:
            self.processes.kill(broker, signal.SIGSTOP)
            self._stopped.add(broker)

    def wake(self, *brokers: str) -> None:
        for broker in brokers:
            self.processes.kill(broker, signal.SIGCONT)
            self._stopped.discard(broker)

    async def heal(self) -> None:
        """Until all brokers run, serve, and are alive to the controller."""
        self.wake(*self._stopped)
        self.start(*self.brokers)
        await asyncio.to_thread(self.processes.wait_ready, 2 * LIMIT)

        await self.until_alive(*self.brokers)

    async def until_alive(self, *brokers: str) -> None:
        """Until these brokers, and no others, are alive to the controller: streams are placed on them."""

        async def alive() -> bool:
            status = await self.client.cluster_status()
            return {broker["id"] for broker in status["brokers"] if broker["alive"]} == set(brokers)

        await until(alive, f"a cluster of {', '.join(brokers)}")

    # ------------------------------------------------------------------ replicas
    async def create(self, stream: str, **config: str | int) -> None:
        """One partition on all three."""
        await self.client.create_stream(stream, replication_factor=len(self.brokers), config=config)
        await wait_in_sync(self.url, stream, timeout=LIMIT)

    async def replica(self, stream: str, broker: str) -> Replica | None:
        """None while its broker is down, stopped, or holds none."""
        if self.processes.pid(broker) is None or broker in self._stopped:
            return None
        subject = self._subjects.broker_status(BrokerId(broker))
        try:
            answer = await self.peers.request(subject, json.dumps({"stream": stream}).encode(), timeout=LIMIT / 3)
        except TimeoutError:
            return None
        if answer.status is not None:
            return None
        for said in json.loads(answer.data)["partitions"]:
            progress = said["replicas_progress"] or {}
            return Replica(
                broker=broker,
                role=said["role"],
                leader_epoch=said["leader_epoch"] or 0,
                high_watermark=said["high_watermark"] + 1,
                log_end_offset=said["log_end_offset"] or 0,
                isr=frozenset(member for member, known in progress.items() if known["in_sync"]),
                ends={member: known["log_end_offset"] or 0 for member, known in progress.items()},
            )
        return None

    async def leader(self, stream: str, *, above_epoch: int = 0, isr: int = 1) -> Replica:
        """Waits for one of a later LeaderEpoch than `above_epoch` with at least `isr` members in sync."""

        async def found() -> Replica | None:
            replicas = await asyncio.gather(*(self.replica(stream, broker) for broker in self.brokers))
            leaders = [r for r in replicas if r is not None and r.leads and r.leader_epoch > above_epoch]
            newest = max(leaders, key=lambda r: r.leader_epoch, default=None)
            return newest if newest is not None and len(newest.isr) >= isr else None

        return await until(found, f"a leader of {stream} above LeaderEpoch {above_epoch} with an ISR of {isr}")

    async def until_replica(self, stream: str, broker: str, condition: Callable[[Replica], bool], what: str) -> Replica:
        async def found() -> Replica | None:
            replica = await self.replica(stream, broker)
            return replica if replica is not None and condition(replica) else None

        return await until(found, what)

    def others(self, *brokers: str) -> list[str]:
        return [broker for broker in self.brokers if broker not in brokers]

    # ------------------------------------------------------------------ records
    async def send(self, stream: str, *values: bytes, acks: Any = "all") -> list[int]:
        """The offsets at which they were acknowledged, one after the other."""
        async with self.client.producer(stream, acks=acks, delivery_timeout_ms=LIMIT * 1000) as producer:
            return [(await producer.send(value)).offset for value in values]

    async def request(self, stream: str, value: bytes) -> dict[str, Any]:
        """The answer to a bare NATS request."""
        return dict(json.loads((await self.nats.request(stream, value, timeout=LIMIT)).data))

    async def committed(self, stream: str) -> list[bytes | None]:
        """The records that a consumer can read now, from the first to the latest."""
        return [record.value async for record in self.client.consume(stream, start="earliest", stop="latest")]

    async def assert_identical(self, stream: str) -> None:
        """All replicas in sync at one end, all of it committed, and the same bytes on every disk."""
        description = await wait_in_sync(self.url, stream, timeout=LIMIT)
        assert diverging(description, self.processes.data_dirs) == []

    def on_disk(self, stream: str, broker: str) -> bytes:
        """All segments of all its folders."""
        files = sorted(self.processes.broker_dir(broker).glob(f"{stream}-*/*/*.log"))
        found = []
        for file in files:
            with contextlib.suppress(FileNotFoundError):  # removed since the folder was listed
                found.append(file.read_bytes())
        return b"".join(found)

    def folders(self, stream: str, broker: str) -> list[str]:
        """One for each life of the stream."""
        return sorted(path.name for path in self.processes.broker_dir(broker).glob(f"{stream}-*"))


@contextmanager
def three_brokers(directory: Path) -> Iterator[DevCluster]:
    """Afterwards their logs must show no exception, and no cut below a high watermark."""
    with dev_cluster(directory, settings=SETTINGS) as running:
        yield running
        assert_logs_without(running, UNCLEAN)


@asynccontextmanager
async def observed(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    """For one test: its streams are deleted and its brokers brought back when it ends."""
    nats = await NatsConnection.connect(processes.nats_url, name="observer")
    as_broker = await NatsConnection.connect(processes.nats_url, inbox_prefix="tidelog.inbox.observer")
    async with await tidelog.connect(processes.nats_url, api_timeout=LIMIT) as client:
        cluster = ReplicatedCluster(processes, client, nats, as_broker)
        try:
            yield cluster
        finally:
            await cluster.heal()
            for stream in await client.streams():
                await client.delete_stream(stream["name"])
    await nats.close()
    await as_broker.close()
