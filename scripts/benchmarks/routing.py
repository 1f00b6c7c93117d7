"""How clients hear of new leaders: messages and CPU time of the controller for a change, and the time after a kill -9.

First the pushes of a controller, in one process with a real nats-server and clients in another one, each subscribed to
all streams. Every change of a leader comes with other commands of the metadata group that change no route. Pushes that
follow the content of routes are compared with pushes of all streams at every generation.

Then a cluster of three brokers: from kill -9 of a leader until its successor is known, by push, and by a program that
publishes every few milliseconds, finds that nobody listens, and asks for the metadata until they name another leader.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any, Final

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg

import tidelog
from metadata.cluster.command_rules import RULES
from metadata.cluster.model import Changes, Outcome
from metadata.cluster.references import ref_of
from metadata.commands.cluster_state import ClusterState
from scripts.benchmarks.rig.machine import about
from scripts.benchmarks.rig.report import Figure, Report
from scripts.benchmarks.rig.running import tell
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.broker_process import raise_limit
from tidelog.server.devcluster import DevCluster
from tidelog.server.routing.pushes import Pushes
from tidelog.server.routing.topology_pages import TopologyPages
from wire.errors import TidelogError
from wire.operations.api_operations import METADATA
from wire.protobuf import metadata_pb2 as pb
from wire.subjects import Subjects
from wire.types import BrokerId, StreamName

SUBJECTS: Final = Subjects()
PARTITIONS: Final = 3
OTHERS: Final = 5
"""Commands that change no route, for each that does."""
LIMIT: Final = 120.0
"""Seconds for anything."""
ASK_EVERY: Final = 0.005
"""Seconds from one publish, and from one question for the metadata, to the next."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--clients", type=int, default=1_000, help="(default: %(default)s)")
    parser.add_argument(
        "--streams", type=int, default=100, help="that each client subscribes to (default: %(default)s)"
    )
    parser.add_argument("--changes", type=int, default=20, help="of leaders (default: %(default)s)")
    parser.add_argument("--kills", type=int, default=5, help="of a leader (default: %(default)s)")
    parser.add_argument("--dir", type=Path, help="for the cluster's folders (default: that of temporary files)")


def run(options: argparse.Namespace) -> Report:
    raise_limit()
    report = Report(about={**about(rounds=1, quick=False), "clients": options.clients, "streams": options.streams})
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=options.dir) as folder:
        asyncio.run(_pushes(options, Path(folder) / "nats", report))
        if options.kills:
            asyncio.run(_kills(options.kills, Path(folder) / "cluster", report))
    return report


# ---- pushes --------------------------------------------------------------------------------------------------------


class _TimedPushes(Pushes):
    cpu_s = 0.0
    """Of all but what waiting takes."""

    def observe(self, changes: Changes) -> None:
        began = time.thread_time()
        super().observe(changes)
        self.cpu_s += time.thread_time() - began

    async def _publish(self, name: StreamName, is_repeated: bool) -> bool:
        began = time.thread_time()
        is_taken = await super()._publish(name, is_repeated)
        self.cpu_s += time.thread_time() - began
        return is_taken


class _Controller:
    """The state of a cluster and its pushes, without Raft."""

    def __init__(self, connection: NatsConnection, streams: int) -> None:
        self.state = ClusterState()
        self._pages = TopologyPages(self.state, "b1", SUBJECTS, lambda: 0, connection.max_payload)
        loop = asyncio.get_running_loop()
        self.pushes = _TimedPushes(BrokerId("b1"), self.state, connection, SUBJECTS, self._pages.routes, loop.time)
        self.apply(
            begin_controller_epoch=pb.BeginControllerEpoch(
                controller="b1", life_id="b1", cluster_id="bench", rules=RULES
            )
        )
        brokers = [f"b{number + 1}" for number in range(PARTITIONS)]
        for broker in brokers:
            self.apply(
                register_broker=pb.RegisterBroker(
                    broker=broker, life_id=broker, cluster_id="bench", folder_same=True, page_cache_survived=True,
                    raft_address=f"{broker}:1",
                )
            )  # fmt: skip
        self.names = [StreamName(f"stream-{number:04}") for number in range(streams)]
        for name in self.names:
            assignments = [
                pb.Assignment(replicas=[(first + at) % PARTITIONS for at in range(PARTITIONS)], leader=first)
                for first in range(PARTITIONS)
            ]
            self.apply(
                create_stream=pb.CreateStream(
                    controller_epoch=self.state.controller_epoch, name=name, subject=name,
                    replication_factor=PARTITIONS, brokers=brokers, assignments=assignments,
                )
            )  # fmt: skip

    def apply(self, **body: Any) -> Outcome:
        outcome = self.state.apply(pb.Command(**body).SerializeToString())
        outcome.raise_for_refusal()
        self._pages.on_changes(outcome.changes)
        self.pushes.observe(outcome.changes)
        return outcome

    def change_leader(self, number: int) -> None:
        stream = self.state.streams[self.names[number % len(self.names)]]
        partition = stream.partitions[number % PARTITIONS]
        target = next(replica for replica in partition.isr if replica != partition.leader)
        election = pb.Election(
            partition=ref_of(stream.key(number % PARTITIONS)), leader_epoch=partition.leader_epoch, target=target,
            planned=True,
        )  # fmt: skip
        self.apply(elect_leaders=pb.ElectLeaders(controller_epoch=self.state.controller_epoch, items=[election]))

    def change_nothing_of_routes(self, number: int) -> None:
        stream = self.state.streams[self.names[number % len(self.names)]]
        self.apply(
            alter_stream=pb.AlterStream(
                controller_epoch=self.state.controller_epoch, name=stream.name, incarnation=stream.incarnation,
                set={"retention_max_age_ms": str(1_000_000 + number)},
            )
        )  # fmt: skip


async def _pushes(options: argparse.Namespace, folder: Path, report: Report) -> None:
    with EmbeddedNatsServer(store_dir=folder) as server:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(
            target=_be_clients, args=(server.port, options.clients, options.streams, theirs), daemon=True
        )
        process.start()
        connection = await NatsConnection.connect(server.url)
        controller = _Controller(connection, options.streams)
        await asyncio.to_thread(ours.recv)  # they are subscribed
        tell(f"{options.clients} clients of {options.streams} streams, {options.changes} changes of leaders")
        await _measure(controller, connection, ours, options, report, "by content", everything=False)
        few = max(1, options.changes // 10)
        tell(f"the same with pushes at every generation, {few} changes")
        few_options = argparse.Namespace(**{**vars(options), "changes": few})
        await _measure(controller, connection, ours, few_options, report, "at every generation", everything=True)
        ours.send(None)
        await controller.pushes.close()
        await connection.close()
        process.join(10)


async def _measure(
    controller: _Controller,
    connection: NatsConnection,
    clients: Connection,
    options: argparse.Namespace,
    report: Report,
    how: str,
    *,
    everything: bool,
) -> None:
    """`everything`: all streams are pushed after each command, whatever it changes."""
    pushes = controller.pushes
    pushes.on_controller(True)
    await _quiet(pushes)
    await connection.flush(LIMIT)
    clients.send("begin")
    await asyncio.to_thread(clients.recv)
    published, cpu = pushes.published, pushes.cpu_s
    began = time.perf_counter()
    for change in range(options.changes):
        for other in range(OTHERS + 1):
            if other:
                controller.change_nothing_of_routes(OTHERS * change + other)
            else:
                controller.change_leader(change)
            if everything:
                pushes.on_controller(False)
                pushes.on_controller(True)
                # What a controller pushes at an ordinary pace when it begins is pushed at once here.
                pushes._due.on_applied((name, controller.state.generation) for name in controller.names)
                pushes._came.set()
            await _quiet(pushes)
    await connection.flush(LIMIT)
    cpu = pushes.cpu_s - cpu
    elapsed = time.perf_counter() - began
    published = pushes.published - published
    expected = published * options.clients
    clients.send("count")
    delivered = await asyncio.wait_for(asyncio.to_thread(_counted, clients, expected), LIMIT)
    pushes.on_controller(False)
    each = 1 / options.changes
    report.figures += [
        Figure(
            f"pushes {how}, for each change of a leader and {OTHERS} others: published", each * published, "messages"
        ),
        Figure("    delivered to clients", each * delivered, "messages"),
        Figure("    CPU time of the controller", 1000 * each * cpu, "ms"),
        Figure("    until all are published", 1000 * each * elapsed, "ms"),
    ]


async def _quiet(pushes: Pushes) -> None:
    async with asyncio.timeout(LIMIT):
        while pushes._due.next() is not None:  # noqa: ASYNC110 - a task of the pushes' own
            await asyncio.sleep(0.001)


def _counted(clients: Connection, expected: int) -> int:
    while True:
        delivered: int = clients.recv()
        if delivered >= expected:
            return delivered
        time.sleep(0.05)
        clients.send("count")


def _be_clients(port: int, clients: int, streams: int, pipe: Connection) -> None:
    raise_limit()
    asyncio.run(_count_messages(port, clients, streams, pipe))


async def _count_messages(port: int, clients: int, streams: int, pipe: Connection) -> None:
    """Sockets that speak the least of NATS' protocol: thousands of whole clients would measure themselves."""
    counts = [0]
    subscribed = [0]
    wanted = "".join(f"SUB {SUBJECTS.push(f'stream-{number:04}')} {number + 1}\r\n" for number in range(streams))
    hello = f'CONNECT {{"verbose":false,"headers":true}}\r\n{wanted}PING\r\n'.encode()

    class Client(asyncio.Protocol):
        def __init__(self) -> None:
            self.rest = b""

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            transport.write(hello)

        def data_received(self, data: bytes) -> None:
            data = self.rest + data
            counts[0] += data.count(b"\r\nHMSG ") + data.startswith(b"HMSG ") * (not self.rest)
            if b"PONG\r\n" in data:
                subscribed[0] += 1
            if b"PING\r\n" in data:
                self.transport.write(b"PONG\r\n")
            self.rest = data[-6:] if not data.endswith(b"\r\n") else data[-2:]

    loop = asyncio.get_running_loop()
    for _ in range(clients):
        await loop.create_connection(Client, "127.0.0.1", port)
    while subscribed[0] < clients:  # noqa: ASYNC110 - the sockets' own callbacks
        await asyncio.sleep(0.01)
    pipe.send("subscribed")
    while True:
        word = await asyncio.to_thread(pipe.recv)
        if word is None:
            return
        if word == "begin":
            await asyncio.sleep(0.5)
            counts[0] = 0
        pipe.send(counts[0])


# ---- kill -9 of a leader -------------------------------------------------------------------------------------------


async def _kills(kills: int, folder: Path, report: Report) -> None:
    by_push: list[float] = []
    by_failure: list[float] = []
    by_asking: list[float] = []
    with DevCluster(folder, nodes=3, port=0) as cluster:
        await asyncio.to_thread(cluster.wait_ready, LIMIT)
        async with await tidelog.connect(cluster.nats_url, api_timeout=30.0) as client:
            await client.create_stream("bench", partitions=1, replication_factor=3)
            for number in range(kills):
                tell(f"kill {number + 1} of {kills}")
                await _in_sync(client)
                pushed, failed, asked = await _kill(cluster, client)
                by_push.append(1000 * pushed)
                by_failure.append(1000 * failed)
                by_asking.append(1000 * asked)
    report.figures += [
        Figure("kill -9 of a leader: until its successor is known by push, median", median(by_push), "ms"),
        Figure("    until a publish finds nobody, median", median(by_failure), "ms"),
        Figure("    until the successor is known by asking from then on, median", median(by_asking), "ms"),
    ]


async def _kill(cluster: DevCluster, client: tidelog.Client) -> tuple[float, float, float]:
    """Seconds after the kill: the push, the first publish without a listener, the metadata with another leader."""
    leader = (await client.describe("bench"))["partitions"][0]["leader"]
    assert leader is not None
    watcher = await nats.connect(cluster.nats_url)
    heard: asyncio.Future[float] = asyncio.get_running_loop().create_future()

    async def on_push(message: Msg) -> None:
        if json.loads(message.data)["partitions"][0]["leader"] not in (leader, None) and not heard.done():
            heard.set_result(time.perf_counter())

    try:
        await watcher.subscribe(SUBJECTS.push("bench"), cb=on_push)
        await watcher.flush()
        moment = time.perf_counter()
        await asyncio.to_thread(cluster.kill, leader)
        failed, asked = await _publish_until_known(watcher, leader)
        pushed = await asyncio.wait_for(heard, LIMIT)
    finally:
        await watcher.close()
        await asyncio.to_thread(cluster.start_broker, leader)
    return pushed - moment, failed - moment, asked - moment


async def _publish_until_known(watcher: NatsClient, leader: str) -> tuple[float, float]:
    """When a publish first found nobody, and when the metadata first named another leader after that."""
    async with asyncio.timeout(LIMIT):
        while True:
            try:
                await watcher.request("bench", b"x", timeout=0.5)
            except (nats.errors.NoRespondersError, nats.errors.TimeoutError):
                break
            await asyncio.sleep(ASK_EVERY)
        failed = time.perf_counter()
        while True:
            with suppress(nats.errors.NoRespondersError, nats.errors.TimeoutError, TidelogError):
                question = METADATA.encode_request("bench")
                answer = await watcher.request(SUBJECTS.api("metadata", "bench"), question, timeout=0.5)
                (stream,) = METADATA.decode_answer(answer.data, answer.headers)["streams"]
                if stream["partitions"][0]["leader"] not in (leader, None):
                    return failed, time.perf_counter()
            await asyncio.sleep(ASK_EVERY)


async def _in_sync(client: tidelog.Client) -> None:
    async with asyncio.timeout(LIMIT):
        while len((await client.describe("bench"))["partitions"][0]["isr"]) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
