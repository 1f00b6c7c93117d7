"""The two systems that are compared, behind one face: three brokers, or three servers, on loopback, in a fresh folder.

    Tidelog      one nats-server and three brokers; a stream has 3 replicas, min_isr 2 and P partitions; of durability
                 `accepted` or `durable`
    JetStream    three nats-servers of the same binary in one cluster; each partition is a stream of its own (that is
                 how a stream is spread over several Raft groups there), with 3 replicas and file storage; `durable`
                 is `sync_interval: always`, `accepted` is the default there

Partition 0 of a stream listens on `<stream>`, partition i on `<stream>.<i>`, in both. A publisher connects to the
server of the partition's leader: of JetStream's that is the one without a hop between servers.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client as NatsClient
from nats.js.api import StorageType, StreamConfig, StreamInfo

import tidelog
from scripts.benchmarks.rig.publisher import PROGRAM
from tidelog.client.client import Client
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import free_addresses
from tidelog.server.devcluster import DevCluster

NODES = 3
REPLICAS = 3
START_TIMEOUT = 30.0
"""Seconds until a cluster serves, and until a new stream has all replicas in sync."""
AT_ONCE = 20
"""At most so many streams are created at the same time."""
_POLL = 0.01
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGESIZE")


class Durability(Enum):
    ACCEPTED = "accepted"
    """In the page caches of all in-sync replicas."""
    DURABLE = "durable"
    """Synced to the disks of all in-sync replicas."""


class System(Protocol):
    """A running cluster. Made with a folder of its own and a durability; used with `async with`."""

    name: str
    publisher: str
    """Module of the program that publishes to it, see `rig/publisher.py`."""

    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def urls(self) -> Sequence[str]:
        """URLs of all servers that clients connect to."""
        ...

    async def add(self, stream: str, partitions: int = 1) -> None:
        """Returns when the stream is made; its partitions may serve a little later."""
        ...

    async def create(self, stream: str, partitions: int = 1) -> None:
        """Returns when every partition has a leader and all replicas are in sync."""
        ...

    async def delete(self, stream: str) -> None: ...

    async def committed(self, stream: str) -> int | None:
        """Records that all replicas of their partitions hold, at this system's durability. None: unknown."""
        ...

    async def leader(self, stream: str, partition: int = 0) -> str | None:
        """The name of the broker, or server, that leads the partition."""
        ...

    async def leader_url(self, stream: str, partition: int = 0) -> str:
        """Of the NATS server to publish to."""
        ...

    def pids(self) -> dict[str, int]:
        """By name, of the servers that run: brokers and nats-servers."""
        ...

    def kill(self, name: str) -> None:
        """kill -9."""
        ...

    def restart(self, name: str) -> None:
        """One that was killed, with the data that it left. Returns when its process runs."""
        ...

    def restart_all(self) -> None:
        """Ends all brokers, or servers, with SIGTERM, and starts them when all have ended. Returns when all run.
        Called by the thread that goes on: a process ends with the thread that started it."""
        ...

    def data_dir(self, name: str) -> Path:
        """Of one broker, or server."""
        ...


def subjects(stream: str, partitions: int) -> list[str]:
    """Of the partitions of a stream, in both systems."""
    return [stream if i == 0 else f"{stream}.{i}" for i in range(partitions)]


def cpu_seconds(system: System) -> float:
    """User and system time of all server processes since they began."""
    return sum(cpu_by_server(system).values())


def cpu_by_server(system: System) -> dict[str, float]:
    found = {}
    for name, pid in system.pids().items():
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()
        found[name] = (int(fields[11]) + int(fields[12])) / _TICKS
    return found


def resident_bytes(system: System) -> dict[str, int]:
    """Memory of the server processes."""
    return {
        name: int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * _PAGE
        for name, pid in system.pids().items()
    }


class Tidelog:
    """See the module. `client` is a client of it for the measurement."""

    name = "tidelog"
    publisher = PROGRAM
    monitors: Sequence[str]
    """Monitoring addresses of its nats-servers."""
    server_command: Sequence[str] | None = None
    """As `DevCluster` takes it."""

    def __init__(self, folder: Path, durability: Durability) -> None:
        (monitor,) = free_addresses(1)
        self.monitors = [f"http://{monitor}"]
        self._cluster = DevCluster(
            folder, nodes=NODES, port=0, server_command=self.server_command, nats_config=f'http: "{monitor}"'
        )
        self._durability = durability
        self.client: Client

    async def __aenter__(self) -> Self:
        self._cluster.start()
        try:
            self._cluster.wait_ready(START_TIMEOUT)
            self.client = await tidelog.connect(self._cluster.nats_url, api_timeout=START_TIMEOUT)
        except BaseException:
            self._cluster.stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.client.close()
        finally:
            self._cluster.stop()

    @property
    def urls(self) -> Sequence[str]:
        return (self._cluster.nats_url,)

    def urls_without(self, name: str) -> list[str]:  # noqa: ARG002 - clients connect to no broker
        """Of the servers that clients connect to and that run on when that one is killed."""
        return [self._cluster.nats_url]

    async def add(self, stream: str, partitions: int = 1) -> None:
        config = {"durability": self._durability.value, "min_isr": 2}
        await self.client.create_stream(stream, partitions=partitions, replication_factor=REPLICAS, config=config)

    async def create(self, stream: str, partitions: int = 1) -> None:
        await self.add(stream, partitions)
        deadline = time.monotonic() + START_TIMEOUT
        while await self.committed(stream) is None:
            _check_time(deadline, f"stream {stream} of Tidelog")
            await asyncio.sleep(_POLL)

    async def delete(self, stream: str) -> None:
        await self.client.delete_stream(stream)

    async def committed(self, stream: str) -> int | None:
        """Records below the high watermark are on every in-sync replica, so None while some replica is not in sync."""
        total = 0
        for partition in (await self.client.describe(stream))["partitions"]:
            if len(partition["isr"]) < REPLICAS or partition["high_watermark"] is None:
                return None
            total += partition["high_watermark"] + 1
        return total

    async def leader(self, stream: str, partition: int = 0) -> str | None:
        return (await self.client.describe(stream))["partitions"][partition]["leader"]

    async def leader_url(self, stream: str, partition: int = 0) -> str:  # noqa: ARG002 - there is one server
        return self._cluster.nats_url

    def pids(self) -> dict[str, int]:
        found = {broker: self._cluster.pid(broker) for broker in self._cluster.broker_ids}
        found["nats-server"] = self._cluster.nats_pid
        return {name: pid for name, pid in found.items() if pid is not None}

    def kill(self, name: str) -> None:
        self._cluster.kill(name)

    def restart(self, name: str) -> None:
        self._cluster.start_broker(name)

    def restart_all(self) -> None:
        brokers = [broker for broker in self._cluster.broker_ids if self._cluster.pid(broker) is not None]
        with ThreadPoolExecutor(NODES) as each:
            list(each.map(self._end, brokers))
        for broker in self._cluster.broker_ids:
            self._cluster.start_broker(broker)

    def _end(self, broker: str) -> None:
        try:
            self._cluster.kill(broker, signal.SIGTERM)
        except subprocess.TimeoutExpired:
            self._cluster.kill(broker)

    def data_dir(self, name: str) -> Path:
        return self._cluster.broker_dir(name)


class JetStream:
    """See the module. `connection` leads to any of the servers, for the measurement."""

    name = "jetstream"
    publisher = PROGRAM

    def __init__(self, folder: Path, durability: Durability) -> None:
        names = [f"n{i}" for i in range(1, NODES + 1)]
        routes = dict(zip(names, free_addresses(NODES), strict=True))
        monitors = dict(zip(names, free_addresses(NODES), strict=True))
        self.monitors = [f"http://{monitor}" for monitor in monitors.values()]
        listed = ", ".join(f"nats://{address}" for address in routes.values())
        self._folder = folder
        self._servers = {
            name: EmbeddedNatsServer(
                store_dir=folder / name,
                max_payload=1 << 20,
                config="\n".join(
                    (
                        f"server_name: {name}",
                        f'http: "{monitors[name]}"',
                        "jetstream {",
                        f'  store_dir: "{self.data_dir(name)}"',
                        "  max_file_store: 100GB",
                        *(("  sync_interval: always",) if durability is Durability.DURABLE else ()),
                        "}",
                        f'cluster {{ name: bench, listen: "{address}", routes: [{listed}] }}',
                    )
                ),
            )
            for name, address in routes.items()
        }
        self._partitions: dict[str, int] = {}
        self.connection: NatsClient

    async def __aenter__(self) -> Self:
        try:
            for server in self._servers.values():
                server.start()
            self.connection = await nats.connect(
                list(self.urls), max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_killed_on_purpose
            )
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.connection.close()
        finally:
            self._stop()

    def _stop(self) -> None:
        for server in self._servers.values():
            server.stop()

    @property
    def urls(self) -> Sequence[str]:
        return [server.url for server in self._servers.values()]

    def urls_without(self, name: str) -> list[str]:
        """Of the servers that run on when that one is killed."""
        return [server.url for other, server in self._servers.items() if other != name]

    async def add(self, stream: str, partitions: int = 1) -> None:
        self._partitions[stream] = partitions
        room = asyncio.Semaphore(AT_ONCE)

        async def add(partition: int, subject: str) -> None:
            config = StreamConfig(
                name=_stream_of(stream, partition),
                subjects=[subject],
                num_replicas=REPLICAS,
                storage=StorageType.FILE,
                allow_batched=True,
            )
            async with room:
                await self._add(config, time.monotonic() + START_TIMEOUT)

        await asyncio.gather(*(add(*each) for each in enumerate(subjects(stream, partitions))))

    async def create(self, stream: str, partitions: int = 1) -> None:
        await self.add(stream, partitions)
        deadline = time.monotonic() + START_TIMEOUT
        while await self.committed(stream) is None:
            _check_time(deadline, f"stream {stream} of JetStream")
            await asyncio.sleep(_POLL)

    async def _add(self, config: StreamConfig, deadline: float) -> None:
        """Until there is a meta leader that knows all servers, JetStream is unavailable or lacks peers."""
        while True:
            try:
                await self.connection.jetstream().add_stream(config)
            except (nats.js.errors.APIError, nats.js.errors.NoStreamResponseError, nats.errors.Error) as error:
                _check_time(deadline, f"stream {config.name} of JetStream ({error})")
                await asyncio.sleep(0.05)
            else:
                return

    async def delete(self, stream: str) -> None:
        for partition in range(self._partitions.pop(stream)):
            await self.connection.jetstream().delete_stream(_stream_of(stream, partition))

    async def committed(self, stream: str) -> int | None:
        """Records that the leader has applied, once no follower lags."""
        total = 0
        for partition in range(self._partitions[stream]):
            info = await self._info(stream, partition)
            if info is None or info.cluster is None or not info.cluster.leader:
                return None
            followers = info.cluster.replicas or []
            if len(followers) < REPLICAS - 1 or not all(peer.current and not peer.lag for peer in followers):
                return None
            total += info.state.messages
        return total

    async def leader(self, stream: str, partition: int = 0) -> str | None:
        info = await self._info(stream, partition)
        return None if info is None or info.cluster is None else info.cluster.leader

    async def leader_url(self, stream: str, partition: int = 0) -> str:
        leader = await self.leader(stream, partition)
        if leader is None:
            raise RuntimeError(f"nobody leads partition {partition} of {stream}")
        return self._servers[leader].url

    async def _info(self, stream: str, partition: int) -> StreamInfo | None:
        try:
            return await self.connection.jetstream(timeout=1.0).stream_info(_stream_of(stream, partition))
        except (nats.js.errors.APIError, nats.js.errors.NoStreamResponseError, nats.errors.Error):
            return None

    def pids(self) -> dict[str, int]:
        return {name: server.pid for name, server in self._servers.items() if server.pid is not None}

    def kill(self, name: str) -> None:
        self._servers[name].kill()

    def restart(self, name: str) -> None:
        self._servers[name].start()

    def restart_all(self) -> None:
        with ThreadPoolExecutor(NODES) as each:
            list(each.map(EmbeddedNatsServer.stop, self._servers.values()))
        for server in self._servers.values():
            server.start()

    def data_dir(self, name: str) -> Path:
        return self._folder / name / "data"


async def _killed_on_purpose(_: Exception) -> None:
    """Servers that are; nats-py would print each attempt to get back to one."""


def _stream_of(stream: str, partition: int) -> str:
    return f"{stream}-{partition}"


def _check_time(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"{what} does not serve with all replicas after {START_TIMEOUT:.0f} s")
