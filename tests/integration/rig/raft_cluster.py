"""Three real Raft processes on loopback, and the kill test: acknowledged commands survive kill -9 and power cuts.

Run as a module this file is one of these processes: a RaftNode with a state machine that counts, and a unix socket on
which it is asked to commit. A power cut is a kill -9 after which everything that the journal had not synced is dropped,
torn or turned to garbage; the processes note the synced length after each real fdatasync."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import statistics
import struct
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import msgpack

from metadata.raft import RaftConfig, RaftError, RaftNode, RaftRole
from tidelog.process.loopback import free_addresses
from wire.security.cluster_secrets import public_secrets
from wire.turns import LOOKS, Steps

VOTERS = 3
CLIENTS = 6
ROOT = Path(__file__).parents[3]
SYNCED_RECORD = struct.Struct("<QQ")
_LENGTH = struct.Struct("<I")
_log = logging.getLogger(__name__)

Request = dict[str, Any]


async def read_message(reader: asyncio.StreamReader) -> Any:
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return msgpack.unpackb(await reader.readexactly(length))


def write_message(writer: asyncio.StreamWriter, message: object) -> None:
    body: bytes = msgpack.packb(message)
    writer.write(_LENGTH.pack(len(body)) + body)


class SequenceSet:
    """Numbers of one client's commands, kept as ranges: they come nearly in order."""

    def __init__(self, ranges: list[list[int]] | None = None) -> None:
        self.ranges = ranges if ranges is not None else []

    def add(self, number: int) -> bool:
        """False when it was there already."""
        position = len(self.ranges)
        while position and self.ranges[position - 1][0] > number:
            position -= 1
        if position and number <= self.ranges[position - 1][1]:
            return False
        if position and self.ranges[position - 1][1] == number - 1:
            self.ranges[position - 1][1] = number
        else:
            self.ranges.insert(position, [number, number])
        return True

    def numbers(self) -> set[int]:
        return {number for first, last in self.ranges for number in range(first, last + 1)}


class CountingMachine:
    """Remembers which commands it has seen, how often one came twice, and a digest of their order."""

    def __init__(self) -> None:
        self.seen: dict[str, SequenceSet] = {}
        self.applied = 0
        self.twice = 0
        self.digest = b""

    def prepare(self, command: bytes | None) -> bool:
        return True

    def apply(self, command: bytes) -> object:
        client, number, _payload = msgpack.unpackb(command)
        if not self.seen.setdefault(client, SequenceSet()).add(number):
            self.twice += 1
        self.applied += 1
        self.digest = hashlib.sha256(self.digest + command).digest()
        return self.applied

    def snapshot(self) -> Steps[bytes]:
        seen = {client: numbers.ranges for client, numbers in self.seen.items()}
        packed: bytes = msgpack.packb([seen, self.applied, self.twice, self.digest])
        return self._encoding(packed)

    def _encoding(self, packed: bytes) -> Steps[bytes]:
        for _ in range(3):  # commands are applied meanwhile
            yield LOOKS
        return packed

    def restore(self, snapshot: bytes) -> Steps[None]:
        for _ in range(3):
            yield LOOKS
        seen, self.applied, self.twice, self.digest = msgpack.unpackb(snapshot)
        self.seen = {client: SequenceSet(ranges) for client, ranges in seen.items()}


# ---------------------------------------------------------------------------- the process


def record_syncs(directory: Path, *, really: bool) -> None:
    """From now on note inode and size after each sync of this process; `really=False`: neither sync nor note."""
    log = os.open(directory / "synced", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def recording(sync: Callable[[int], None]) -> Callable[[int], None]:
        def replacement(descriptor: int) -> None:
            if not really:
                return
            sync(descriptor)
            status = os.fstat(descriptor)
            os.write(log, SYNCED_RECORD.pack(status.st_ino, status.st_size))

        return replacement

    os.fdatasync = recording(os.fdatasync)  # type: ignore[assignment]
    os.fsync = recording(os.fsync)  # type: ignore[assignment]


class NodeProcess:
    """Serves requests {"do": …} of the harness, one answer {"ok": …} or {"error": name} each, in any order per
    connection.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        self.directory = Path(settings["directory"])
        self.machine = CountingMachine()
        record_syncs(self.directory, really=settings["sync"])
        config = RaftConfig(
            address=settings["address"],
            peers=tuple(settings["peers"]),
            directory=self.directory / "raft",
            secrets=public_secrets(),
            compaction_min_entries=settings["compaction_min_entries"],
            **settings["times"],
        )
        self.node = RaftNode(
            config, self.machine, on_status=lambda status: _log.info("%s", status), on_peer_lost=_log.info
        )

    async def run(self) -> None:
        await self.node.start()
        control = self.directory / "control"
        control.unlink(missing_ok=True)
        await asyncio.start_unix_server(self._serve, control)
        await asyncio.Event().wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await read_message(reader)
                try:
                    answer = {"ok": await self._answer(request)}
                except RaftError as error:
                    answer = {"error": type(error).__name__}
                write_message(writer, answer)

    async def _answer(self, request: Request) -> object:
        match request["do"]:
            case "commit":
                return await self.node.propose(request["command"], timeout=request["timeout"])
            case "status":
                status = self.node.status()
                machine = self.machine
                return {
                    "leads": status.role is RaftRole.LEADER,
                    "leader": status.leader,
                    "applied_index": status.applied_index,
                    "state": [machine.applied, machine.twice, machine.digest],
                    "cpu": sum(os.times()[:2]),
                }
            case "seen":
                return {client: numbers.ranges for client, numbers in self.machine.seen.items()}
            case "latencies":
                return await self._latencies(request["count"])
            case unknown:
                raise ValueError(f"unknown request {unknown}")

    async def _latencies(self, count: int) -> list[float]:
        """Seconds that each of `count` commands took, one after the other."""
        taken = []
        for number in range(count):
            command: bytes = msgpack.packb([f"latency {os.getpid()}", number, b"x" * 200])
            began = time.perf_counter()
            await self.node.propose(command, timeout=10)
            taken.append(time.perf_counter() - began)
        return taken


# ---------------------------------------------------------------------------- the harness


@dataclass
class RaftCluster:
    """Starts, asks, kills and cuts the power of the processes. Node numbers are 0, 1, 2."""

    root: Path
    compaction_min_entries: int = 5000
    sync: bool = True
    times: dict[str, float] = field(default_factory=dict)
    """Fields of RaftConfig."""
    addresses: list[str] = field(default_factory=lambda: sorted(free_addresses(VOTERS)))
    processes: dict[int, asyncio.subprocess.Process] = field(default_factory=dict)

    def directory(self, number: int) -> Path:
        return self.root / f"node{number}"

    async def start(self, number: int) -> None:
        directory = self.directory(number)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "control").unlink(missing_ok=True)
        address = self.addresses[number]
        settings = {
            "directory": str(directory),
            "address": address,
            "peers": [other for other in self.addresses if other != address],
            "compaction_min_entries": self.compaction_min_entries,
            "sync": self.sync,
            "times": self.times,
        }
        command = [sys.executable, "-m", "tests.integration.rig.raft_cluster", json.dumps(settings)]
        with (directory / "log").open("ab") as log:
            self.processes[number] = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=log, stderr=log)

    async def kill(self, *numbers: int) -> None:
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                self.processes[number].kill()
        for number in numbers:
            await self.processes[number].wait()

    async def ask(self, number: int, request: Request) -> Any:
        """The answer; raises ConnectionError, asyncio.IncompleteReadError or FileNotFoundError when the process is
        not there.
        """
        async with self.connection(number) as (reader, writer):
            write_message(writer, request)
            return (await read_message(reader))["ok"]

    @contextlib.asynccontextmanager
    async def connection(self, number: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        reader, writer = await asyncio.open_unix_connection(self.directory(number) / "control", limit=1 << 24)
        try:
            yield reader, writer
        finally:
            writer.close()

    async def until(self, what: str, condition: Callable[[list[Any]], Any], timeout: float = 30) -> Any:
        """Ask all for their status until the condition gives something true; that."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            states: list[Any] = []
            for number in range(VOTERS):
                try:
                    states.append(await self.ask(number, {"do": "status"}))
                except (OSError, asyncio.IncompleteReadError):
                    states.append(None)
            if (result := condition(states)) is not None and result is not False:
                return result
            await asyncio.sleep(0.01)
        logs = "\n".join(self.directory(number).joinpath("log").read_text()[-1500:] for number in range(VOTERS))
        raise TimeoutError(f"After {timeout:g} s not: {what}. The ends of the logs:\n{logs}")

    async def leader(self) -> int:
        def only(states: list[Any]) -> int | None:
            leading = [number for number, state in enumerate(states) if state and state["leads"]]
            return leading[0] if len(leading) == 1 else None

        number: int = await self.until("one leader", only)
        return number

    async def all_up(self) -> None:
        await self.until("all processes answer", all)

    def cut_power(self, number: int, rng: random.Random) -> bool:
        """Damage the unsynced part of the journal of the killed process. True when there was something."""
        journal = self.directory(number) / "raft" / "journal"
        if not journal.exists():
            return False
        status = journal.stat()
        synced = 0
        for inode, size in SYNCED_RECORD.iter_unpack((self.directory(number) / "synced").read_bytes()):
            if inode == status.st_ino:
                synced = size
        if not self.sync:
            synced = rng.randrange(status.st_size + 1)
        lost = status.st_size - synced
        if lost <= 0:
            return False
        with journal.open("r+b") as file:
            match rng.choice(["dropped", "torn", "garbage"]):
                case "dropped":
                    file.truncate(synced)
                case "torn":
                    file.truncate(synced + rng.randrange(lost))
                case _:
                    file.seek(synced)
                    file.write(rng.randbytes(lost))
        return True

    async def __aenter__(self) -> Self:
        shutil.rmtree(self.root, ignore_errors=True)
        try:
            for number in range(VOTERS):
                await self.start(number)
            await self.all_up()
            await self.leader()
        except BaseException:
            await self.kill(*self.processes)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kill(*self.processes)


# ---------------------------------------------------------------------------- the kill test


@dataclass
class KillReport:
    rounds: int = 0
    whole_group: int = 0
    torn_journals: int = 0
    acknowledged: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    lost: int = 0
    applied_twice: int = 0
    converged: bool = False

    @property
    def passed(self) -> bool:
        return self.acknowledged > 0 and self.lost == 0 and self.applied_twice == 0 and self.converged

    def __str__(self) -> str:
        return (
            f"{self.rounds} kill rounds ({self.whole_group} of the whole group, {self.torn_journals} journals cut): "
            f"{self.acknowledged} acknowledged, {self.lost} lost, {self.applied_twice} applied twice, "
            f"{sum(self.unknown.values())} of unknown outcome or refused {dict(self.unknown)}, converged: "
            f"{self.converged} "
            f"-> {'PASS' if self.passed else 'FAIL'}"
        )


class _Client:
    """Commits numbered commands through one node after the other and remembers the acknowledged ones.

    No number is used twice.
    """

    def __init__(self, cluster: RaftCluster, name: str, report: KillReport, rng: random.Random) -> None:
        self.cluster = cluster
        self.name = name
        self.report = report
        self.rng = rng
        self.number = 0
        self.acknowledged: set[int] = set()

    async def run(self, first_node: int) -> None:
        node = first_node
        while True:
            try:
                async with self.cluster.connection(node) as (reader, writer):
                    while True:
                        await self._commit(reader, writer)
            except (OSError, asyncio.IncompleteReadError):
                self.report.unknown["connection lost"] += 1
                node = (node + 1) % VOTERS
                await asyncio.sleep(0.03)

    async def _commit(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.number += 1
        payload = self.rng.randbytes(self.rng.choice([20, 200, 2000]))
        command: bytes = msgpack.packb([self.name, self.number, payload])
        write_message(writer, {"do": "commit", "command": command, "timeout": 3})
        answer = await read_message(reader)
        if "ok" in answer:
            self.acknowledged.add(self.number)
            self.report.acknowledged += 1
        else:
            self.report.unknown[answer["error"]] += 1
            await asyncio.sleep(0.02)


def _victims(rng: random.Random, leader: int) -> list[int]:
    draw = rng.random()
    if draw < 0.4:
        return [leader]
    if draw < 0.65:
        return [rng.randrange(VOTERS)]
    if draw < 0.75:
        return rng.sample(range(VOTERS), 2)
    return list(range(VOTERS))


async def run_kill_rounds(
    root: Path, *, rounds: int, seed: int, sync: bool = True, progress: Callable[[KillReport], None] = lambda _: None
) -> KillReport:
    """Kill processes under load `rounds` times, then compare the acknowledged commands with the state of every node."""
    rng = random.Random(seed)
    report = KillReport()
    async with RaftCluster(root, compaction_min_entries=400, sync=sync) as cluster:
        clients = [_Client(cluster, f"client{k}", report, random.Random(rng.random())) for k in range(CLIENTS)]
        tasks = [asyncio.create_task(client.run(k % VOTERS)) for k, client in enumerate(clients)]
        try:
            for _ in range(rounds):
                await _kill_round(cluster, rng, report)
                progress(report)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        def same(states: list[Any]) -> bool:
            return all(states) and len({(*state["state"], state["applied_index"]) for state in states}) == 1

        with contextlib.suppress(TimeoutError):
            report.converged = await cluster.until("all nodes have the same state", same, 15)
        for number in range(VOTERS):
            seen = {
                client: SequenceSet(r).numbers() for client, r in (await cluster.ask(number, {"do": "seen"})).items()
            }
            lost = sum(len(client.acknowledged - seen.get(client.name, set())) for client in clients)
            report.lost = max(report.lost, lost)
            twice = (await cluster.ask(number, {"do": "status"}))["state"][1]
            report.applied_twice = max(report.applied_twice, twice)
    return report


async def _kill_round(cluster: RaftCluster, rng: random.Random, report: KillReport) -> None:
    await asyncio.sleep(rng.uniform(0.2, 0.9))
    victims = _victims(rng, await cluster.leader())
    report.rounds += 1
    report.whole_group += len(victims) == VOTERS
    await cluster.kill(*victims)
    report.torn_journals += sum(cluster.cut_power(victim, rng) for victim in victims)
    await asyncio.sleep(rng.uniform(0, 0.4))
    for victim in victims:
        await cluster.start(victim)
    if rng.random() < 0.15:
        # Once more, while it starts.
        await asyncio.sleep(rng.uniform(0.1, 0.4))
        victim = rng.choice(victims)
        await cluster.kill(victim)
        report.torn_journals += cluster.cut_power(victim, rng)
        await cluster.start(victim)
    await cluster.all_up()
    await cluster.leader()


# ---------------------------------------------------------------------------- figures


@dataclass(frozen=True)
class Figures:
    """Seconds, sorted."""

    through_leader: list[float]
    through_follower: list[float]
    failovers: list[float]
    idle_cpu: list[float]
    """Share of a core per node."""

    def __str__(self) -> str:
        def ms(values: list[float], share: float) -> str:
            return f"{values[min(len(values) - 1, int(len(values) * share))] * 1e3:.2f}"

        leader, follower, failovers = self.through_leader, self.through_follower, self.failovers
        return (
            f"command through the leader p50 {ms(leader, 0.5)} p99 {ms(leader, 0.99)} ms; through a follower p50 "
            f"{ms(follower, 0.5)} p99 {ms(follower, 0.99)} ms; kill -9 of the leader to the next commit median "
            f"{statistics.median(failovers) * 1e3:.0f} max {failovers[-1] * 1e3:.0f} ms (of {len(failovers)}); idle "
            "CPU "
            f"{', '.join(f'{share:.1%}' for share in self.idle_cpu)} per node"
        )


async def measure(root: Path, *, commands: int, failovers: int, times: dict[str, float] | None = None) -> Figures:
    async with RaftCluster(root, times=times or {}) as cluster:
        leader = await cluster.leader()
        through_leader = await cluster.ask(leader, {"do": "latencies", "count": commands})
        through_follower = await cluster.ask((leader + 1) % VOTERS, {"do": "latencies", "count": commands})
        before = [(await cluster.ask(number, {"do": "status"}))["cpu"] for number in range(VOTERS)]
        began = time.monotonic()
        await asyncio.sleep(1)
        after = [(await cluster.ask(number, {"do": "status"}))["cpu"] for number in range(VOTERS)]
        idle = [(b - a) / (time.monotonic() - began) for a, b in zip(before, after, strict=True)]
        gaps = [await _failover(cluster, number) for number in range(failovers)]
        return Figures(sorted(through_leader), sorted(through_follower), sorted(gaps), idle)


async def _failover(cluster: RaftCluster, number: int) -> float:
    """Seconds from kill -9 of the leader until a command offered to a follower is committed."""
    leader = await cluster.leader()
    async with cluster.connection((leader + 1) % VOTERS) as (reader, writer):

        async def commit(attempt: int, timeout: float) -> bool:
            command: bytes = msgpack.packb([f"failover {number}", attempt, b""])
            write_message(writer, {"do": "commit", "command": command, "timeout": timeout})
            return "ok" in await read_message(reader)

        assert await commit(0, 5)
        cluster.processes[leader].send_signal(signal.SIGKILL)
        began = time.monotonic()
        attempt = 1
        while not await commit(attempt, 0.25):
            attempt += 1
        gap = time.monotonic() - began
    await cluster.processes[leader].wait()
    await cluster.start(leader)
    await cluster.all_up()
    await cluster.until(
        "the killed node follows", lambda states: len({state["applied_index"] for state in states if state}) == 1
    )
    return gap


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(name)s %(levelname)s %(message)s")
    asyncio.run(NodeProcess(json.loads(sys.argv[1])).run())
