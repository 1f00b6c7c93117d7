"""One run of the metadata group alone: shipped Raft nodes in simulated processes, proposers at each, faults, then calm.

start     all voters begin with empty disks, and found the group
faults    for some seconds, while commands are proposed at every node
calm      all is healed and restarted; until a leader is known everywhere and every node has applied everything
last      a command of each node is acknowledged, a barrier sees what was acknowledged before it; then all states are
          compared

Invariants: `tests.simulation.raft.raft_safety`. What is above the group (the controller, brokers) has runs of its own
(`tests.simulation.run`), some of which run on this Raft as well.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from random import Random
from typing import Any
from unittest.mock import patch

from metadata.raft import RaftNode, RaftOutcomeUnknown, RaftRole, RaftStatus, RaftUnavailable, engine, snapshot
from metadata.raft.types import RaftError
from tests.simulation.cpu_limit import CPU_LIMIT, OutOfCpuTime, cpu_limit
from tests.simulation.faults import Fault
from tests.simulation.machines.disk import AMPLE, SURVIVALS, SimDisk, Survival
from tests.simulation.machines.sockets import SimNetwork
from tests.simulation.raft.raft_node import DIRECTORY, engine_of, ip_of, make_node, ordered_sets
from tests.simulation.raft.raft_safety import JOURNAL, SNAPSHOT, RaftSafety
from tests.simulation.run import Result
from tests.simulation.world import InvariantBroken, Process, SimulatedCrash, World, inhabited
from wire.turns import Steps

START_LIMIT = 20.0
CALM_LIMIT = 30.0
LAST_LIMIT = 10.0
LEADER = "leader"
"""In place of a voter: whoever leads at the time of the fault."""

WEIGHTS: dict[str, float] = {
    "kill": 8,
    "power": 8,
    "kill all": 2,
    "power all": 3,
    "crash in a call": 8,
    "stop": 3,
    "pause": 6,
    "cut": 6,
    "cut one way": 6,
    "isolate": 6,
    "slow link": 4,
    "slow disk": 5,
    "full disk": 4,
    "failing fsync": 2,
    "clock jump": 4,
    "hand over": 3,
    "compact": 6,
    "reset connections": 4,
    "lost files": 4,
    "older files": 3,
    "bit flip": 3,
    "forgetful under a deposed leader": 2,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftPlan:
    """What differs from run to run besides the faults, drawn from the seed."""

    voters: int
    duration: float
    latency: float
    """Mean of one way between two machines, in seconds."""
    sync_delay: float
    """A sync of the journal holds the process up so long, in the mean."""
    pause: float
    """Between two commands of a proposer, in the mean."""
    padding: int
    """Bytes of a command, at least."""
    compaction_min_entries: int
    applied_per_tick: int
    chunk_bytes: int
    batch_bytes: int
    """Of the commands in one message."""

    @classmethod
    def drawn(cls, rng: Random) -> RaftPlan:
        return cls(
            voters=rng.choice((3, 3, 3, 5)),
            duration=rng.choice((1.5, 3.0, 6.0)),
            latency=rng.choice((0.0002, 0.0002, 0.002, 0.01)),
            sync_delay=rng.choice((0.0, 0.0002, 0.002, 0.01)),
            pause=rng.choice((0.05, 0.2, 0.4)),
            padding=(padding := rng.choice((8, 8, 300, 30_000))),
            compaction_min_entries=rng.choice((3, 10, 30, 5000)),
            applied_per_tick=rng.choice((1, 3, 100)),
            chunk_bytes=max(padding, rng.choice((100, 1000, 256 << 10))),
            batch_bytes=rng.choice((2 * max(padding, 16), 4 << 20)),
        )


FORGETFUL = ("forgetful under a deposed leader", "forgetful behind its leader")
"""The faults of runs in which one voter forgets, and that matters."""


def draw_forgetful(rng: Random) -> list[Fault]:
    """One fault, by which one of two steps would lose what was committed, if the voter that forgets took it."""
    return [
        Fault(
            at=0.5 + rng.random() * 0.5,
            kind=rng.choice(FORGETFUL),
            broker=LEADER,
            lasts=0.2 + rng.random() * 0.3,
            number=rng.randrange(1, 40),
        )
    ]


def draw(rng: Random, voters: tuple[str, ...], duration: float) -> list[Fault]:
    """Some kinds of fault only, so that runs differ in character."""
    kinds = [kind for kind in WEIGHTS if rng.random() < 0.4] or ["kill"]
    weights = [WEIGHTS[kind] for kind in kinds]
    pause = rng.choice((0.15, 0.4, 1.0, 2.0))
    schedule = []
    at = rng.random() * 0.5
    while at < duration:
        kind = rng.choices(kinds, weights)[0]
        schedule.append(
            Fault(
                at=at,
                kind=kind,
                broker=rng.choice((*voters, LEADER, LEADER)),
                lasts=rng.choice((0.02, 0.3, 1.0, 2.5)) * (0.5 + rng.random()),
                detail=rng.choice(SURVIVALS) if kind.startswith("power") else "",
                number=rng.randrange(1, 40),
            )
        )
        at += rng.expovariate(1.0) * pause
    return schedule


class Register:
    """A state machine that keeps its commands."""

    def __init__(self, voter: str, safety: RaftSafety, rng: Random) -> None:
        self.commands: list[bytes] = []
        self._voter = voter
        self._safety = safety
        self._rng = rng
        self._turns: dict[bytes | None, int] = {}

    def prepare(self, command: bytes | None) -> bool:
        left = self._turns.get(command)
        if left is None:
            left = self._rng.choice((0, 0, 0, 0, 0, 0, 0, 1, 3))
        self._turns = {command: left - 1} if left else {}
        return left == 0

    def apply(self, command: bytes) -> object:
        self._safety.apply(self._voter, len(self.commands), command)
        self.commands.append(command)
        return len(self.commands)

    def snapshot(self) -> Steps[bytes]:
        return self._encoding(self.commands.copy())

    def _encoding(self, commands: list[bytes]) -> Steps[bytes]:
        for _ in range(self._rng.choice((0, 1, 4))):
            yield 1 << 20
        return b"|".join(commands)

    def restore(self, snapshot: bytes) -> Steps[None]:
        for _ in range(self._rng.choice((0, 1, 4))):
            yield 1 << 20
        commands = snapshot.split(b"|") if snapshot else []
        self._safety.restored(self._voter, commands, len(self.commands))
        self.commands = commands


class Voter:
    """One machine, and the process on it."""

    def __init__(self, cluster: RaftCluster, number: int) -> None:
        self.cluster = cluster
        self.name = f"v{number}"
        self.address = f"{self.name}:7400"
        self.host = ip_of(number)
        self.disk = SimDisk(crash=SimulatedCrash)
        self.disk.before_sync = self._syncs
        self.lives = 0
        self.process: Process | None = None
        self.node: RaftNode | None = None
        self.machine: Register | None = None
        self.sync_delay = cluster.plan.sync_delay
        self.restart_after: float | None = None
        self.fails_to_start = ""
        self._stalled_until = 0.0

    @property
    def engine(self) -> engine.RaftEngine | None:
        return None if self.node is None else engine_of(self.node)

    # ---- life

    def start(self) -> None:
        if self.process is not None:
            return
        world, cluster = self.cluster.world, self.cluster
        self.lives += 1
        rng = world.rng
        process = Process.begun(
            world, self.name, rate=1.0 + (rng.random() - 0.5) * 0.02, offset=rng.random() * 1000 * self.lives
        )
        process.disk_delay = max(0.0003, self.sync_delay)
        process.on_crash = self._crash
        self.process = process
        cluster.network.machine_is_up(self.host)
        cluster.safety.started(self.address)
        world.say(f"{self.name} starts, life {self.lives}")
        life = f"{world.seed}-{self.name}-{self.lives}"
        self.machine = Register(self.address, cluster.safety, Random(f"machine of {life}"))
        self.node = make_node(
            process,
            cluster.network,
            cluster.hosts,
            self.address,
            self.disk,
            self.machine,
            on_status=partial(self._on_status, process),
            on_peer_lost=lambda peer: world.say(f"has lost {peer}"),
            on_exit=self._exits,
            rng=Random(f"chance of {life}"),
            compaction_min_entries=cluster.plan.compaction_min_entries,
        )
        with process.running():
            process.create_task(self._live(process, self.node))

    async def _live(self, process: Process, node: RaftNode) -> None:
        try:
            await node.start()
        except RaftError as error:
            self.fails_to_start = str(error)
            self.cluster.world.say(f"cannot start: {error}")
            process.call_soon(self.kill)
            return
        self._watch(node)
        for number in range(2):
            process.create_task(self._propose(node, f"{self.name}.{self.lives}.{number}"))

    def _watch(self, node: RaftNode) -> None:
        """What it sends is looked at first."""
        started = engine_of(node)
        assert started is not None
        transport, safety, world = started.transport, self.cluster.safety, self.cluster.world
        sends = transport._send_now

        def send(to: Any, message: dict[str, Any]) -> bool:
            if not started.journal.stalled:
                safety.sends(self.address, started, str(to.id), message)
            sent = sends(to, message)
            if world.is_traced and sent:
                world.say(f"to {to.id}: {_summary(message)}")
            return sent

        transport._send_now = send  # type: ignore[method-assign,assignment]

    async def _propose(self, node: RaftNode, name: str) -> None:
        cluster = self.cluster
        world, plan = cluster.world, cluster.plan
        number = 0
        while not cluster.is_calm:
            await asyncio.sleep(world.chance_delay(plan.pause))
            number += 1
            if world.rng.random() < 0.1:
                await self.barrier(node)
            await self.propose(node, f"{name}.{number}", plan.padding)

    async def propose(self, node: RaftNode, name: str, padding: int = 8, timeout: float = 1.0) -> bool:
        safety = self.cluster.safety
        command = name.encode().ljust(padding, b".")
        before = safety.newest_acknowledged
        try:
            result = await node.propose(command, timeout=timeout)
        except RaftUnavailable:
            safety.refused(command)
            return False
        except RaftOutcomeUnknown:
            return False
        safety.acknowledge(command, result, before)
        return True

    async def barrier(self, node: RaftNode) -> bool:
        safety = self.cluster.safety
        before = safety.newest_acknowledged
        try:
            await node.barrier(timeout=1.0)
        except (RaftUnavailable, RaftOutcomeUnknown):
            return False
        assert self.machine is not None
        if len(self.machine.commands) < before:
            self.cluster.world.broken(
                "BarriersSee", f"{self.name} has {len(self.machine.commands)} commands, {before} were acknowledged"
            )
        return True

    def _on_status(self, process: Process, status: RaftStatus) -> None:
        process.world.say(f"is {status.role.value} in term {status.term}, leader {status.leader}, {status.has_quorum}")

    def _exits(self, reason: str) -> None:
        if self.restart_after is None:
            self.restart_after = 1.0
        self.cluster.exits.append(reason)

    def _syncs(self) -> None:
        """A sync holds the loop up."""
        world, process = self.cluster.world, self.process
        if self.sync_delay == 0 or process is None or world.current is not process or process.paused:
            return
        until = world.now + world.chance_delay(self.sync_delay)
        process.pause()
        self._stalled_until = until
        world.at(until, self._goes_on, process)

    def _goes_on(self, process: Process) -> None:
        if self.process is process and process.paused and self.cluster.world.now >= self._stalled_until:
            process.resume()

    def pause(self, lasts: float) -> bool:
        process = self.process
        if process is None:
            return False
        process.pause()
        self._stalled_until = self.cluster.world.now + lasts
        self.cluster.world.after(lasts, self._goes_on, process)
        return True

    def _crash(self) -> None:
        """In the middle of a system call."""
        self.kill()

    def kill(self, *, with_machine: bool = False) -> bool:
        process = self.process
        if process is None:
            return False
        process.kill()
        self.process = self.node = self.machine = None
        self.cluster.world.say(f"{self.name} is dead")
        self.disk.kill_process()
        self.cluster.network.process_died(self.host, with_machine=with_machine)
        after, self.restart_after = self.restart_after, None
        # A node that was asked to stop may have been paused until the calm began.
        if after is not None or self.fails_to_start or self.cluster.is_calm:
            self.fails_to_start = ""
            self.cluster.start_later(self, 1.0 if after is None else after)
        return True

    def lose_power(self, how: Survival) -> None:
        self.kill(with_machine=True)
        self.disk.lose_power(how, self.cluster.world.rng)

    def stop(self) -> bool:
        process, node = self.process, self.node
        if process is None or node is None or engine_of(node) is None:
            return False

        async def close() -> None:
            await node.close()
            process.call_soon(self.kill)

        with process.running():
            process.create_task(close())
        return True


def _summary(message: dict[str, Any]) -> str:
    parts = {name: value for name, value in message.items() if name not in ("type", "entries", "serialized")}
    if "entries" in message:
        parts["entries"] = [(index, term) for _, index, term in message["entries"]]
    if message.get("serialized"):
        data, first, last = message["serialized"]
        parts["chunk"] = (len(data), first, last)
    return f"{message['type']} {parts}"


class RaftCluster:
    def __init__(self, world: World, schedule: list[Fault] | None, *, forgetful: bool) -> None:
        rng = Random(f"shape of Raft {world.seed}")
        self.world = world
        plan = RaftPlan.drawn(rng)
        if forgetful:
            plan = replace(plan, duration=6.0)
        self.plan = plan
        self.network = SimNetwork(world)
        self.network.latency = plan.latency
        self.is_calm = False
        self.voters = {f"v{number}": Voter(self, number) for number in range(1, plan.voters + 1)}
        self.hosts = {voter.address: voter.host for voter in self.voters.values()}
        self.safety = RaftSafety(world, {voter.address: voter.disk for voter in self.voters.values()})
        if schedule is None:
            schedule = draw_forgetful(rng) if forgetful else draw(rng, tuple(self.voters), plan.duration)
        self.schedule = schedule
        self.faults: dict[str, int] = {}
        self.exits: list[str] = []
        """Why nodes have ended their processes."""
        self._lifts: list[Callable[[], object]] = []
        world.after_step = self._after_step

    def _after_step(self, process: Process) -> None:
        voter = self.voters[process.name]
        if voter.process is process and (engine := voter.engine) is not None:
            self.safety.look(voter.address, engine)

    # ---- used by faults

    def lift(self, after: float, action: Callable[[], object]) -> Callable[[], None]:
        """When a fault is over: then, or when the calm begins, or when the returned function is called."""
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                action()

        self._lifts.append(once)
        self.world.after(after, once)
        return once

    def start_later(self, voter: Voter, after: float) -> None:
        self.lift(after, voter.start)

    def leader(self) -> Voter:
        """Whoever leads the latest term; any voter where nobody does."""
        leading = [
            (engine.term, name)
            for name, voter in self.voters.items()
            if (engine := voter.engine) is not None and engine.is_leader
        ]
        return self.voters[max(leading)[1] if leading else self.world.rng.choice(sorted(self.voters))]

    def may_forget(self, voter: Voter) -> bool:
        """One voter at a time: those before must have synchronised. The others that may vote, by what is on their
        disks, are a majority without it: a voter that has not synchronised since the group was founded is no help."""
        remaining = [
            other for other in self.voters.values() if other is not voter and self.safety.may_vote(other.address)
        ]
        return (
            bool(self.safety.committed)
            and not self.safety.forgetful - {voter.address}
            and 2 * len(remaining) > len(self.voters)
        )

    # ---- the run

    def run(self) -> None:
        world, plan = self.world, self.plan
        world.say(f"seed {world.seed}: {plan}")
        for fault in self.schedule:
            world.say(f"will be: {fault}")
        for voter in self.voters.values():
            world.after(world.rng.random() * 0.5, voter.start)
        if not world.run_until(START_LIMIT, lambda: bool(self.safety.acknowledged)):
            world.broken("Liveness", f"no command is acknowledged after {START_LIMIT} s")
        for fault in self.schedule:
            world.after(fault.at, self._strike, fault)
        world.run_until(world.now + plan.duration)
        self._heal()
        self._settle("after the faults")
        self._ask_all()
        self._settle("after the last commands")
        self.safety.at_the_end(
            (name, voter.machine.commands) for name, voter in self.voters.items() if voter.machine is not None
        )

    def _strike(self, fault: Fault) -> None:
        if self.is_calm:
            return
        voter = self.leader() if fault.broker == LEADER else self.voters[fault.broker]
        fault = replace(fault, broker=voter.name)
        self.world.say(f"FAULT {fault}")
        if _DO[fault.kind](fault, voter, self):
            self.faults[fault.kind] = self.faults.get(fault.kind, 0) + 1

    def _heal(self) -> None:
        self.is_calm = True
        self.world.say("CALM")
        for voter in self.voters.values():
            voter.disk.crash_at = -1
            voter.disk.capacity = AMPLE
            voter.disk.failing_syncs = 0
            voter.restart_after = None
        lifts, self._lifts = self._lifts, []
        for lift in lifts:
            lift()
        for voter in self.voters.values():
            self.world.after(0.0, voter.start)

    def _settle(self, when: str) -> None:
        world = self.world
        deadline = world.now + CALM_LIMIT
        while world.now < deadline:
            world.run_until(world.now + 0.25)
            if self.unsettled() is None:
                return
        world.broken("Liveness", f"{when}, {CALM_LIMIT:.0f} s later: {self.unsettled()}")

    def unsettled(self) -> str | None:
        leaders = set()
        for voter in self.voters.values():
            engine = voter.engine
            if engine is None or voter.machine is None or voter.node is None:
                return f"{voter.name} does not run"
            status = voter.node.status()
            if status.leader is None:
                return f"{voter.name} knows of no leader: {status.why_no_leader() or 'why is unknown'}"
            leaders.add((status.leader, status.term))
            if len(voter.machine.commands) < len(self.safety.applied):
                return f"{voter.name} has applied {len(voter.machine.commands)} of {len(self.safety.applied)} commands"
            if not engine.journal.joined:
                return f"{voter.name} has not synchronised"
            if status.role is RaftRole.CANDIDATE or len(status.connected) < len(self.voters) - 1:
                return f"{voter.name} is connected with {status.connected} only"
        return None if len(leaders) == 1 else f"there are leaders {leaders}"

    def _ask_all(self) -> None:
        asked: list[str] = []
        for voter in self.voters.values():
            process, node = voter.process, voter.node
            assert process is not None
            assert node is not None

            async def ask(voter: Voter = voter, node: RaftNode = node) -> None:
                # What was sent over a slow link may have to be lost with its connection first.
                numbers = count()
                while not await voter.propose(node, f"last {next(numbers)} of {voter.name}"):
                    pass
                while not await voter.barrier(node):
                    pass
                asked.append(voter.name)

            with process.running():
                process.create_task(ask())
        if not self.world.run_until(self.world.now + LAST_LIMIT, lambda: len(asked) == len(self.voters)):
            self.world.broken("Liveness", f"the last command or barrier ended at {asked} only")


# ---- faults


def _kill(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    done = voter.kill()
    if done:
        cluster.start_later(voter, fault.lasts)
    return done


def _power(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    if voter.disk.flipped_below(DIRECTORY):
        return False  # damage in the last batch cannot be told from a torn write then
    voter.lose_power(next(how for how in SURVIVALS if how == fault.detail))
    cluster.start_later(voter, fault.lasts)
    return True


def _all(
    do: Callable[[Fault, Voter, RaftCluster], bool],
) -> Callable[[Fault, Voter, RaftCluster], bool]:
    def each(fault: Fault, _: Voter, cluster: RaftCluster) -> bool:
        done = False
        for number, voter in enumerate(cluster.voters.values()):
            done |= do(replace(fault, lasts=fault.lasts + number * 0.1), voter, cluster)
        return done

    return each


def _crash(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    if voter.process is None:
        return False
    voter.disk.crash_in(fault.number)
    voter.restart_after = fault.lasts
    return True


def _stop(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    voter.restart_after = fault.lasts
    return voter.stop()


def _pause(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    return voter.pause(fault.lasts)


def _cut_links(voter: Voter, cluster: RaftCluster, lasts: float, links: list[tuple[str, str]]) -> bool:
    for link in links:
        cluster.network.cut(*link)
        cluster.lift(lasts, partial(cluster.network.mend, *link))
    return bool(links)


def _others(voter: Voter, cluster: RaftCluster) -> list[Voter]:
    return [other for other in cluster.voters.values() if other is not voter]


def _cut(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    """Between two voters; the others reach both."""
    others = _others(voter, cluster)
    other = others[fault.number % len(others)]
    return _cut_links(voter, cluster, fault.lasts, [(voter.host, other.host), (other.host, voter.host)])


def _cut_one_way(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    others = _others(voter, cluster)
    if fault.number % 2:
        others = others[: 1 + fault.number % len(others)]
    links = [(voter.host, other.host) for other in others]
    if fault.number % 3 == 0:
        links = [(target, source) for source, target in links]
    return _cut_links(voter, cluster, fault.lasts, links)


def _isolate(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    hosts = [other.host for other in _others(voter, cluster)]
    links = [link for host in hosts for link in ((voter.host, host), (host, voter.host))]
    return _cut_links(voter, cluster, fault.lasts, links)


def _slow_link(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    slowness = cluster.network.slowness
    slowness[voter.host] = (10.0, 100.0, 500.0)[fault.number % 3]
    cluster.lift(fault.lasts, lambda: slowness.pop(voter.host, None))
    return True


def _slow_disk(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    voter.sync_delay = (0.02, 0.1, 0.5)[fault.number % 3]

    def over() -> None:
        voter.sync_delay = cluster.plan.sync_delay

    cluster.lift(fault.lasts, over)
    return True


def _full_disk(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    voter.disk.capacity = voter.disk.used + 40 * (fault.number % 4)

    def over() -> None:
        voter.disk.capacity = AMPLE

    cluster.lift(fault.lasts, over)
    return True


def _failing_fsync(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    """Its writes are dropped, so a voter whose disk does this has lost them: it is stopped by its own hand at once."""
    if voter.process is None:
        return False
    voter.disk.failing_syncs = 1
    voter.restart_after = fault.lasts

    def over() -> None:
        voter.disk.failing_syncs = 0

    cluster.lift(fault.lasts, over)
    return True


def _clock_jump(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    """As of a machine that was suspended: its clock is ahead, and nothing was read meanwhile."""
    if voter.process is None:
        return False
    voter.process.jump((0.3, 1.0, 5.0)[fault.number % 3])
    return True


def _hand_over(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    process, node = voter.process, voter.node
    if process is None or node is None or voter.engine is None or process.paused:
        return False
    process.call_soon(node.hand_over)
    return True


def _compact(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    engine = voter.engine
    if engine is None:
        return False
    engine.forceLogCompaction()
    return True


def _reset_connections(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    """As by a middlebox."""
    for one in [one for one in cluster.network.sockets.values() if one.host == voter.host and one.peer is not None]:
        one.is_reset()
    return True


def _lost_files(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    """Its Raft folder is gone, with the mark beside it or without, when it starts again; soon, or after a while."""
    if not cluster.may_forget(voter):
        return False
    voter.kill()
    path = DIRECTORY.parent if fault.number % 2 else DIRECTORY
    if voter.disk.is_directory(path.parent):  # else it is gone since the last loss
        voter.disk.lose(path)
    cluster.safety.lost_disk(voter.address)
    cluster.start_later(voter, fault.lasts)
    return True


def _older_files(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    """Its Raft folder is put back from a copy, without the mark beside it."""
    older = voter.disk.copy()
    if not older.is_directory(DIRECTORY):
        return False

    def strike() -> None:
        if cluster.is_calm or not cluster.may_forget(voter) or not voter.disk.is_directory(DIRECTORY.parent):
            return
        voter.kill()
        voter.disk.restore(DIRECTORY, older)
        cluster.safety.lost_disk(voter.address)
        cluster.start_later(voter, fault.lasts)

    cluster.world.after(fault.lasts, strike)
    return True


def _bit_flip(fault: Fault, voter: Voter, cluster: RaftCluster) -> bool:
    """In its journal or its snapshot, while no process runs, and none has since the machine lost power."""
    if not cluster.may_forget(voter):
        return False
    voter.kill()
    files = [(path, size) for path, size in voter.disk.files_below(DIRECTORY) if path in (JOURNAL, SNAPSHOT) and size]
    if not files:
        return False
    path, size = files[fault.number % len(files)]
    voter.disk.flip_bit(path, cluster.world.rng.randrange(size), fault.number % 8)
    cluster.safety.lost_disk(voter.address)
    cluster.start_later(voter, fault.lasts)
    return True


def _forgetful(fault: Fault, _: Voter, cluster: RaftCluster) -> bool:
    """The leader is cut off, with as many voters as lack one to a majority. When another one is elected, and has
    committed something, one of those who elected it loses its files, and is back at once, on the old leader's side."""
    old = cluster.leader()
    if old.engine is None or not old.engine.is_leader:
        return False
    term, rest = old.engine.term, _others(old, cluster)
    with_it = rest[: len(cluster.voters) // 2 - 1]
    rest = rest[len(with_it) :]
    sides = [(one, other) for one in (old, *with_it) for other in rest]
    lasts, network, world = fault.lasts + 2.0, cluster.network, cluster.world
    whole: dict[tuple[str, str], Callable[[], None]] = {}
    for one, other in sides:
        for link in ((one.host, other.host), (other.host, one.host)):
            network.cut(*link)
            whole[link] = cluster.lift(lasts, partial(network.mend, *link))

    def look(tries: int) -> None:
        if cluster.is_calm or tries == 0:
            return
        for voter in rest:
            engine = voter.engine
            if engine is None or not engine.is_leader or engine.term == term:
                continue
            if engine.journal.holds(engine.commit_index, engine.term):
                forget(voter)
                return
        world.after(0.01, look, tries - 1)

    def forget(new: Voter) -> None:
        voter = next(voter for voter in rest if voter is not new)
        if not _lost_files(replace(fault, lasts=0.02), voter, cluster):
            return
        for other in rest:
            if other is not voter:
                _cut_links(voter, cluster, lasts, [(voter.host, other.host), (other.host, voter.host)])
        for other in (old, *with_it):
            for link in ((voter.host, other.host), (other.host, voter.host)):
                whole[link]()

    look(150)
    return True


def _forgetful_behind(fault: Fault, _: Voter, cluster: RaftCluster) -> bool:
    """A minority is cut off, and lacks what is committed meanwhile. One of the others loses its files. When it listens
    to leaders again the minority is reached, and elects one that has everything. That one, and whoever else has, are
    killed when the forgetful voter has heard of it: the rest are a majority, and must elect nobody."""
    leader, network, world = cluster.leader(), cluster.network, cluster.world
    if leader.engine is None or not leader.engine.is_leader:
        return False
    others, minority = _others(leader, cluster), len(cluster.voters) // 2
    behind, (forgets, *rest) = others[:minority], others[minority:]
    links = [(one.host, other.host) for one in behind for other in (leader, forgets, *rest)]
    mends = []
    for link in (*links, *((target, source) for source, target in links)):
        network.cut(*link)
        mends.append(cluster.lift(cluster.plan.duration, partial(network.mend, *link)))

    def quick() -> None:
        for voter in (leader, *rest):
            network.slowness.pop(voter.host, None)

    def lacks(voter: Voter, index: int) -> bool:
        return voter.engine is not None and voter.engine.journal.last.index < index

    def commits() -> None:
        engine = leader.engine
        if cluster.is_calm or engine is None or not engine.is_leader:
            return
        committed = engine.commit_index
        if not all(lacks(voter, committed) for voter in behind):
            world.after(0.002, commits)
        elif _lost_files(replace(fault, lasts=0.02), forgets, cluster):
            world.after(0.02, listens, committed)

    def listens(committed: int) -> None:
        if cluster.is_calm:
            return
        if forgets.engine is None or not forgets.engine.may_follow():
            world.after(0.02, listens, committed)
            return
        for voter in (leader, *rest):
            network.slowness[voter.host] = max(1.0, 0.02 / network.latency)
        cluster.lift(cluster.plan.duration, quick)
        for mend in mends:
            mend()
        hears(committed)

    def hears(committed: int) -> None:
        if cluster.is_calm or not all(lacks(voter, committed) for voter in (forgets, *behind)):
            return
        if forgets.engine is None or forgets.engine.leader is None:
            world.after(0.002, hears, committed)
            return
        quick()
        for voter in (leader, *rest):
            _kill(replace(fault, lasts=fault.lasts + 1.0), voter, cluster)

    commits()
    return True


_DO: dict[str, Callable[[Fault, Voter, RaftCluster], bool]] = {
    "kill": _kill,
    "power": _power,
    "kill all": _all(_kill),
    "power all": _all(_power),
    "crash in a call": _crash,
    "stop": _stop,
    "pause": _pause,
    "cut": _cut,
    "cut one way": _cut_one_way,
    "isolate": _isolate,
    "slow link": _slow_link,
    "slow disk": _slow_disk,
    "full disk": _full_disk,
    "failing fsync": _failing_fsync,
    "clock jump": _clock_jump,
    "hand over": _hand_over,
    "compact": _compact,
    "reset connections": _reset_connections,
    "lost files": _lost_files,
    "older files": _older_files,
    "bit flip": _bit_flip,
    "forgetful under a deposed leader": _forgetful,
    "forgetful behind its leader": _forgetful_behind,
}


@contextmanager
def _small_parts(plan: RaftPlan) -> Iterator[None]:
    with (
        patch.object(engine, "APPLIED_PER_TICK", plan.applied_per_tick),
        patch.object(engine, "BATCH_BYTES", plan.batch_bytes),
        patch.object(snapshot, "CHUNK_BYTES", plan.chunk_bytes),
        patch.object(snapshot, "SYNC_BYTES", 3 * plan.chunk_bytes),
        patch.object(snapshot, "RETRY_S", 1.0),
    ):
        yield


def run(
    seed: int,
    *,
    traced: bool = False,
    schedule: list[Fault] | None = None,
    forgetful: bool = False,
    cpu_seconds: float = CPU_LIMIT,
) -> Result:
    """As `tests.simulation.run.run`. `forgetful`: the schedule is drawn by `draw_forgetful`."""
    began = time.perf_counter()
    world = World(seed, traced=traced)
    broken: InvariantBroken | None = None
    with inhabited(world), ordered_sets():
        cluster = RaftCluster(world, schedule, forgetful=forgetful)
        try:
            with cpu_limit(cpu_seconds), _small_parts(cluster.plan):
                cluster.run()
        except InvariantBroken as error:
            broken = error
        except OutOfCpuTime as error:
            broken = InvariantBroken("NoProgress", str(error))
            world.say(f"BROKEN {broken}")
        except Exception as error:  # noqa: BLE001 - a bug of the simulator: the seed is to be named, and others go on
            where = traceback.extract_tb(error.__traceback__)[-1]
            broken = InvariantBroken("Simulator", f"{error!r} in {where.filename}:{where.lineno}")
    return Result(
        seed=seed,
        broken=broken,
        trace=world.trace,
        schedule=cluster.schedule,
        faults=cluster.faults,
        simulated=world.now,
        steps=world.steps,
        sent=len(cluster.safety.applied),
        acknowledged=len(cluster.safety.acknowledged),
        committed_batches=len(cluster.safety.committed),
        seconds=time.perf_counter() - began,
    )
