"""Apache Kafka as a peer: three KRaft nodes on loopback, each broker and controller, from the jars of a distribution.

`accepted` is Kafka's default (nothing synced before it is acknowledged); `durable` syncs after each message
(`log.flush.interval.messages=1`). Topics have three replicas and `min.insync.replicas=2`, and producers ask for all
in-sync replicas (`acks=all`) and are idempotent, as Tidelog's are.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
import uuid
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from scripts.benchmarks.rig.systems import NODES, REPLICAS, START_TIMEOUT, Durability
from spark_connector.java import NoJavaError, ensure_java
from tidelog.nats.nats_server import ends_with_us
from tidelog.process.loopback import free_addresses

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient, ClusterMetadata

STORAGE_TOOLS = ("kafka.tools.StorageTool", "org.apache.kafka.tools.StorageTool")
"""The class that formats the folder of a node. Its package differs between releases of Kafka."""
SERVER = "kafka.Kafka"
HEAP = ("-Xms512M", "-Xmx1G")
STOP_TIMEOUT = 20.0
_ASK_TIMEOUT = 5.0
_POLL = 0.05


def why_not(libs: Path | None) -> str | None:
    """Returns the sentence that says what is missing and what to give; None: Kafka can be measured."""
    if libs is None:
        return "not measured: give --kafka-libs DIR, the folder libs/ of a Kafka distribution (4.0 or newer)"
    if _class_path_entry(libs, (SERVER,)) is None or _class_path_entry(libs, STORAGE_TOOLS) is None:
        return (
            f"not measured: no jar in {libs} has {SERVER}; give --kafka-libs the folder libs/ of a Kafka distribution"
        )
    if find_spec("confluent_kafka") is None:
        return "not measured: librdkafka is missing; install confluent-kafka (scripts/bootstrap does)"
    try:
        ensure_java()
    except NoJavaError as error:
        return f"not measured: {error}"
    return None


def server_properties(
    node: int, brokers: Sequence[str], controllers: Sequence[str], folder: Path, durability: Durability
) -> str:
    """Returns the configuration of a node, the first being 1. `brokers`, `controllers`: addresses of all nodes."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": node,
        "controller.quorum.voters": ",".join(f"{i}@{address}" for i, address in enumerate(controllers, 1)),
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "listeners": f"PLAINTEXT://{brokers[node - 1]},CONTROLLER://{controllers[node - 1]}",
        "advertised.listeners": f"PLAINTEXT://{brokers[node - 1]}",
        "log.dirs": folder,
        "default.replication.factor": REPLICAS,
        "min.insync.replicas": 2,
        "offsets.topic.replication.factor": REPLICAS,
        "transaction.state.log.replication.factor": REPLICAS,
        "transaction.state.log.min.isr": 2,
        "auto.create.topics.enable": "false",
        **({"log.flush.interval.messages": 1} if durability is Durability.DURABLE else {}),
    }
    return "".join(f"{name}={value}\n" for name, value in settings.items())


def java_command(libs: Path, main: str, *arguments: str) -> list[str]:
    java = Path(os.environ["JAVA_HOME"]) / "bin" / "java"
    return [str(java), *HEAP, "-cp", f"{libs}/*", main, *arguments]


def storage_tool(libs: Path) -> str:
    """Returns the class that formats the folder of a node. Raises LookupError."""
    found = _class_path_entry(libs, STORAGE_TOOLS)
    if found is None:
        raise LookupError(f"no jar in {libs} has one of {', '.join(STORAGE_TOOLS)}")
    return found


def _class_path_entry(libs: Path, classes: Sequence[str]) -> str | None:
    """The first of the classes that a jar of Kafka's own has."""
    for jar in sorted(libs.glob("kafka*.jar")):
        with zipfile.ZipFile(jar) as archive:
            names = set(archive.namelist())
        for name in classes:
            if f"{name.replace('.', '/')}.class" in names:
                return name
    return None


class Kafka:
    """A cluster of Kafka brokers, as a `System` of the benchmark."""

    name = "kafka"
    publisher = "scripts.benchmarks.rig.kafka_publisher"

    def __init__(self, libs: Path, folder: Path, durability: Durability) -> None:
        self._libs = libs
        self._folder = folder
        self._brokers = free_addresses(NODES)
        self._names = [f"k{i}" for i in range(1, NODES + 1)]
        controllers = free_addresses(NODES)
        for node, name in enumerate(self._names, 1):
            settings = server_properties(node, self._brokers, controllers, self.data_dir(name), durability)
            self._properties(name).write_text(settings, encoding="ascii")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._partitions: dict[str, int] = {}
        self._admin: AdminClient

    async def __aenter__(self) -> Self:
        from confluent_kafka.admin import AdminClient

        cluster = urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        tool = storage_tool(self._libs)
        try:
            for name in self._names:
                command = java_command(self._libs, tool, "format", "-t", cluster, "-c", str(self._properties(name)))
                await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True, timeout=START_TIMEOUT)
            for name in self._names:
                self.restart(name)
            self._admin = AdminClient({"bootstrap.servers": ",".join(self._brokers)})
            deadline = time.monotonic() + START_TIMEOUT
            while await self._serving() < NODES:
                self._check(deadline, "the cluster")
                await asyncio.sleep(_POLL)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"Kafka's folder could not be formatted: {error.stderr.decode()[-1000:]}") from error
        except BaseException:
            self._stop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._stop)

    @property
    def urls(self) -> Sequence[str]:
        return self._brokers

    async def add(self, stream: str, partitions: int = 1) -> None:
        from confluent_kafka.admin import NewTopic

        topic = NewTopic(stream, num_partitions=partitions, replication_factor=REPLICAS)
        (future,) = self._admin.create_topics([topic], operation_timeout=START_TIMEOUT).values()
        await asyncio.to_thread(future.result)
        self._partitions[stream] = partitions

    async def create(self, stream: str, partitions: int = 1) -> None:
        await self.add(stream, partitions)
        deadline = time.monotonic() + START_TIMEOUT
        while await self.committed(stream) is None:
            self._check(deadline, f"topic {stream}")
            await asyncio.sleep(_POLL)

    async def delete(self, stream: str) -> None:
        (future,) = self._admin.delete_topics([stream], operation_timeout=START_TIMEOUT).values()
        await asyncio.to_thread(future.result)
        del self._partitions[stream]

    async def committed(self, stream: str) -> int | None:
        """Sums the high watermarks. None while some replica is not in sync."""
        from confluent_kafka import KafkaException, TopicPartition
        from confluent_kafka.admin import OffsetSpec

        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        count = self._partitions[stream]
        asked = {TopicPartition(stream, partition): latest for partition in range(count)}
        try:
            topic = (await self._metadata(stream)).topics[stream]
            if len(topic.partitions) < count or any(len(each.isrs) < REPLICAS for each in topic.partitions.values()):
                return None
            futures = self._admin.list_offsets(asked, request_timeout=_ASK_TIMEOUT).values()
            ends: list[int] = [(await asyncio.to_thread(future.result)).offset for future in futures]
        except KafkaException:
            return None
        return sum(ends)

    async def leader(self, stream: str, partition: int = 0) -> str | None:
        found = (await self._metadata(stream)).topics[stream].partitions.get(partition)
        return None if found is None or found.leader < 1 else self._names[found.leader - 1]

    async def leader_url(self, stream: str, partition: int = 0) -> str:  # noqa: ARG002 - the client finds the leader
        return ",".join(self._brokers)

    def pids(self) -> dict[str, int]:
        return {name: process.pid for name, process in self._processes.items() if process.poll() is None}

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()

    def restart(self, name: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                java_command(self._libs, SERVER, str(self._properties(name))),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
                preexec_fn=ends_with_us(),  # noqa: PLW1509 - see there
            )

    def restart_all(self) -> None:
        self._stop()
        for name in self._names:
            self.restart(name)

    def data_dir(self, name: str) -> Path:
        return self._folder / name

    async def _serving(self) -> int:
        """How many nodes the cluster has, as far as one of them says."""
        from confluent_kafka import KafkaException

        try:
            return len((await self._metadata()).brokers)
        except KafkaException:
            return 0

    async def _metadata(self, stream: str | None = None) -> ClusterMetadata:
        """Of all topics, or of one."""
        if stream is None:
            return await asyncio.to_thread(partial(self._admin.list_topics, timeout=_ASK_TIMEOUT))
        return await asyncio.to_thread(partial(self._admin.list_topics, stream, timeout=_ASK_TIMEOUT))

    def _check(self, deadline: float, what: str) -> None:
        """Raises RuntimeError when a node has ended, TimeoutError after `deadline`."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = (self._folder / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"node {name} of Kafka ended with {process.returncode}: {log[-1000:]}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} of Kafka does not serve with all replicas after {START_TIMEOUT:.0f} s")

    def _properties(self, name: str) -> Path:
        return self._folder / f"{name}.properties"

    def _stop(self) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in self._processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
