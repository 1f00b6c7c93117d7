"""A Raft group as its users see it, with everything that may go wrong above the agreement itself. The shipped Raft
takes its place in some runs (`tests.simulation.raft.shipped_group`), and has runs of its own
(`tests.simulation.raft.raft_run`).

One log, in which committed commands stay. Around it: leaders that are elected late, that are deposed and do not know it
yet, nodes that apply late, in several turns, or get a snapshot in place of the commands, commands whose proposer never
learns the outcome of them, and commands of a deposed leader that are lost, or applied long after.

`truth` is the state after all committed commands. No broker can know it; invariants are checked against it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING

from metadata.cluster.model import Outcome
from metadata.commands.cluster_state import ClusterState
from metadata.raft.types import RaftOutcomeUnknown, RaftRole, RaftStatus, RaftUnavailable, StateMachine
from tests.simulation.world import Process, World
from wire.turns import Turns

if TYPE_CHECKING:
    from tests.simulation.machines.disk import SimDisk

CONNECTION_TIMEOUT = 1.0
LOOKS = 20
"""In place of those of a turn, for a snapshot that is taken up."""
SNAPSHOT_EVERY = 8
"""Commands between two snapshots that a node may get in place of older commands."""


class RaftGroup:
    def __init__(self, world: World, voters: tuple[str, ...]) -> None:
        self.world = world
        self.rng = world.rng
        self.voters = voters
        self.log: list[bytes] = []
        self._committed_at: list[float] = []
        self.truth = ClusterState()
        self.on_commit: Callable[[bytes], Callable[[Outcome], None]] = lambda _: lambda _: None
        """Called with a command before it is applied to `truth`; the returned function is called with the outcome."""
        self.nodes: dict[str, RaftMember] = {}
        """Of live processes, by address."""
        self.cut: set[str] = set()
        """Addresses that are cut off."""
        self.leader: str | None = None
        self.term = 0
        self.commit_delay = 0.0015
        self.apply_delay = 0.0005
        """Mean, in seconds."""
        self.lose_outcomes = 0.0
        """Share of commands that are committed without an answer to the proposer."""
        self.snapshot_share = 0.0
        """How often a node that is behind gets a snapshot."""
        self.holds: Callable[[bytes], bool] | None = None
        """Commands for which it is true are held under any leader until `release_held`, without an answer."""
        self.held: list[bytes] = []
        self.is_late = False
        """The command that is being applied was decided long ago."""
        self._snapshots: list[tuple[int, bytes]] = [(0, self.truth.snapshot())]
        self._electing = False
        self._last_commit = 0.0

    def make_member(
        self,
        process: Process,
        address: str,
        disk: SimDisk,
        state_machine: StateMachine,
        on_status: Callable[[RaftStatus], None],
        on_peer_lost: Callable[[str], None],
        on_exit: Callable[[str], None],
    ) -> RaftMember:
        """`on_exit`: called when the node ends its process, which this one never does."""
        return RaftMember(self, process, address, state_machine, on_status, on_peer_lost)

    # ---- leadership

    def reaches(self, address: str) -> bool:
        return address in self.nodes and address not in self.cut

    def _standing(self) -> list[str]:
        return [a for a in self.voters if self.reaches(a) and not self.nodes[a].process.paused]

    def is_behind(self, address: str) -> bool:
        """It does not receive committed commands, or did not a moment ago."""
        node = self.nodes.get(address)
        if node is None or address in self.cut or node.was_behind_at > self.world.now - 0.5:
            return True
        return node.applied < len(self.log) and self._committed_at[node.applied] < self.world.now - 0.1

    def has_applied_all(self, address: str) -> bool:
        return address in self.nodes and self.nodes[address].applied == len(self.log)

    def committed_at(self, index: int) -> float:
        return self._committed_at[index]

    def has_majority(self, address: str) -> bool:
        """The true state, which the node may not know."""
        if not self.reaches(address):
            return len(self.voters) == 1 and address in self.nodes
        return 2 * len([a for a in self.voters if self.reaches(a)]) > len(self.voters)

    def check(self) -> None:
        """Something happened to a node or to its links."""
        if self.leader is not None and self.leader in self._standing() and self.has_majority(self.leader):
            return
        self._start_election(0.05, 0.9)

    def depose(self) -> None:
        """The leader is replaced although it lives."""
        if len(self._standing()) > 1:
            self._start_election(0.0, 0.3, other=True)

    def elect(self, address: str) -> bool:
        """That voter leads from now on, if it can."""
        if address not in self._standing() or not self.has_majority(address):
            return False
        if self.leader != address:
            self._take_lead(address)
        return True

    def _start_election(self, shortest: float, longest: float, *, other: bool = False) -> None:
        if self._electing:
            return
        self._electing = True

        def elect() -> None:
            self._electing = False
            able = self._standing()
            if 2 * len(able) <= len(self.voters):
                self.leader = None
                self._start_election(0.2, 0.8)
                return
            if self.leader in able and not other:
                return
            others = [a for a in able if a != self.leader] or able
            self._take_lead(others[self.rng.randrange(len(others))])

        self.world.after(shortest + self.rng.random() * (longest - shortest), elect)

    def _take_lead(self, address: str) -> None:
        self.leader = address
        self.term += 1
        self.world.say(f"Raft: {address} leads term {self.term}")
        self.nodes[address].hears_at = self.world.now
        self._announce(self.nodes[address])
        for node in self.nodes.values():
            if self.reaches(node.address):
                self.world.after(self.rng.random() * 0.005, lambda node=node: node.hear(self.term, address))

    # ---- faults

    def cut_off(self, address: str) -> None:
        self.cut.add(address)
        self.check()
        for node in self.nodes.values():

            def lost(node: RaftMember = node) -> None:
                if address in self.cut:
                    for peer in self.voters if node.address == address else (address,):
                        if peer != node.address:
                            node.lost_peer(peer)
                    node.tell()

            self.world.after(CONNECTION_TIMEOUT + self.rng.random() * 0.3, lost)

    def rejoin(self, address: str) -> None:
        self.cut.discard(address)
        self.world.after(self.rng.random() * 0.2, self._catch_up_all)
        self.check()

    def process_died(self, address: str) -> None:
        self.nodes.pop(address, None)
        for node in self.nodes.values():
            if self.reaches(node.address) and address not in self.cut:
                self.world.after(0.0005 + self.rng.random() * 0.003, lambda node=node: node.lost_peer(address))
        self.check()

    def joined(self, node: RaftMember) -> None:
        self.nodes[node.address] = node
        self.world.after(0.001 + self.rng.random() * 0.1, self._catch_up_all)
        self.check()

    def _catch_up_all(self) -> None:
        for node in self.nodes.values():
            if self.reaches(node.address):
                if self.leader is not None and self.reaches(self.leader):
                    node.hear(self.term, self.leader)
                node.tell()
                self._announce(node)

    # ---- commands

    def submit(self, node: RaftMember, command: bytes, ended: asyncio.Future[Outcome]) -> None:
        """From a node to the node that it takes for the leader."""
        target = node.known_leader
        travel = self.rng.random() * (0.0003 if target == node.address else 0.002)
        term = node.term

        def arrived() -> None:
            if self.holds is not None and self.holds(command):
                self.world.say("Raft: a command is held up")
                self.held.append(command)
                return
            if (
                target is None
                or target not in self.nodes
                or (target != node.address and not self._linked(node, target))
            ):
                self._orphan(node, command, ended)
                return
            when = max(self._last_commit, self.world.now + self.rng.expovariate(1.0) * self.commit_delay)
            self._last_commit = when
            self.world.at(when, lambda: self._commit(node, target, term, command, ended))

        self.world.after(travel, arrived)

    def _linked(self, node: RaftMember, target: str) -> bool:
        return self.reaches(node.address) and self.reaches(target)

    def _commit(self, node: RaftMember, target: str, term: int, command: bytes, ended: asyncio.Future[Outcome]) -> None:
        if (
            target != self.leader
            or term != self.term
            or not self.has_majority(target)
            or target not in self._standing()
        ):
            self._orphan(node, command, ended)
            return
        index = self._append(command)
        if self.rng.random() >= self.lose_outcomes:
            node.waiting[index] = ended

    def _append(self, command: bytes) -> int:
        self.log.append(command)
        self._committed_at.append(self.world.now)
        committed = self.on_commit(command)
        outcome = self.truth.apply(command)
        index = len(self.log)
        if index % SNAPSHOT_EVERY == 0:
            self._snapshots.append((index, self.truth.snapshot()))
        committed(outcome)
        for member in self.nodes.values():
            if self.reaches(member.address):
                self._announce(member)
        return index

    def _announce(self, member: RaftMember) -> None:
        """It hears, some time later, of all that is committed now."""
        index = len(self.log)
        slowness = 1.0 if member.address == self.leader else member.slowness  # the leader applies first
        when = max(member.hears_at, self.world.now + self.rng.expovariate(1.0) * self.apply_delay * slowness)
        member.hears_at = when

        def heard() -> None:
            if self.reaches(member.address):
                member.process.call_soon(member.apply_to, index)

        self.world.at(when, heard)

    def _orphan(self, node: RaftMember, command: bytes, ended: asyncio.Future[Outcome]) -> None:
        """Its leader is none any more: lost, or taken over by a later one."""
        if self.rng.random() < 0.5:
            self.world.after(0.05 + self.rng.random() * 2.0, lambda: self._commit_late(command))
        if self.rng.random() < 0.7:
            node.process.call_soon(_fail, ended, RaftOutcomeUnknown("the leader changed"))

    def _commit_late(self, command: bytes) -> None:
        if self.leader is None or not self.has_majority(self.leader):
            self.world.after(0.2, lambda: self._commit_late(command))
            return
        self.world.say("Raft: a command of a deposed leader is committed late")
        self.is_late = True
        self._append(command)
        self.is_late = False

    def release_held(self) -> None:
        held, self.held = self.held, []
        for command in held:
            self._commit_late(command)

    def newest_snapshot(self, upto: int) -> tuple[int, bytes]:
        return next(found for found in reversed(self._snapshots) if found[0] <= upto)


def _fail(future: asyncio.Future[Outcome], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


class RaftMember:
    """A `metadata.runtime.metadata_ports.RaftPort`, of one life of one process."""

    def __init__(
        self,
        group: RaftGroup,
        process: Process,
        address: str,
        state_machine: StateMachine,
        on_status: Callable[[RaftStatus], None],
        on_peer_lost: Callable[[str], None],
    ) -> None:
        self.group = group
        self.process = process
        self.address = address
        self.machine = state_machine
        self.term = 0
        self.known_leader: str | None = None
        self.applied = 0
        self.hears_at = 0.0
        self.was_behind_at = -inf
        self.slowness = 1.0
        self.waiting: dict[int, asyncio.Future[Outcome]] = {}
        self._restoring: Turns[None] | None = None
        """A snapshot that is being taken up."""
        self._on_status = on_status
        self._on_peer_lost = on_peer_lost
        self._told: tuple[object, ...] | None = None
        self._running = False
        self._known = asyncio.Event()

    async def start(self) -> None:
        self._running = True
        group = self.group
        index, snapshot = group.newest_snapshot(int(group.rng.random() * (len(group.log) + 1)))
        if index:
            Turns(self.machine.restore(snapshot)).finish()
            self.applied = index
        group.joined(self)

    async def close(self) -> None:
        self._running = False
        self.group.process_died(self.address)
        for future in self.waiting.values():
            _fail(future, RaftOutcomeUnknown("this node was closed"))

    def status(self) -> RaftStatus:
        group = self.group
        leads = self.known_leader == self.address
        connected = tuple(
            sorted(a for a in group.nodes if a != self.address and group.reaches(a) and group.reaches(self.address))
        )
        return RaftStatus(
            role=RaftRole.LEADER if leads else RaftRole.FOLLOWER,
            leader=self.known_leader,
            term=self.term,
            commit_index=self.applied,
            applied_index=self.applied,
            has_quorum=self._running and group.has_majority(self.address),
            connected=connected,
        )

    def hand_over(self) -> bool:
        if self.known_leader != self.address:
            return False
        self.group.depose()
        return True

    async def propose(self, command: bytes, *, timeout: float) -> object:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._known.wait()
        except TimeoutError:
            raise RaftUnavailable("no leader in time") from None
        if not self._running:
            raise RaftUnavailable("closed")
        ended: asyncio.Future[Outcome] = loop.create_future()
        self.group.submit(self, command, ended)
        try:
            async with asyncio.timeout_at(deadline):
                return await ended
        except TimeoutError:
            raise RaftOutcomeUnknown("not seen applied in time") from None

    # ---- calls of the group

    def hear(self, term: int, leader: str) -> None:
        self.process.call_soon(self._hear, term, leader)

    def _hear(self, term: int, leader: str) -> None:
        if not self._running or term < self.term or not self.group.reaches(self.address):
            return
        self.term, self.known_leader = term, leader
        self._known.set()
        self._tell()

    def tell(self) -> None:
        self.process.call_soon(self._tell)

    def _tell(self) -> None:
        if not self._running:
            return
        status = self.status()
        seen = (status.role, status.leader, status.has_quorum)
        if seen != self._told:
            self._told = seen
            self._on_status(status)

    def lost_peer(self, address: str) -> None:
        self.process.call_soon(self._lost_peer, address)

    def _lost_peer(self, address: str) -> None:
        if not self._running:
            return
        if address == self.known_leader:
            self.known_leader = None
            self._known.clear()
        self._tell()
        self._on_peer_lost(address)

    def apply_to(self, index: int) -> None:
        group = self.group
        if not self._running:
            return
        if index - self.applied > 1 and group.rng.random() < group.snapshot_share:
            at, snapshot = group.newest_snapshot(index)
            if at > self.applied:
                self._restoring = Turns(self.machine.restore(snapshot))
                self.applied = at
        if self._restoring is not None and not self._restoring.turn(LOOKS):
            self.process.call_soon(self.apply_to, index)
            return
        self._restoring = None
        if self.applied < index and group.committed_at(self.applied) < group.world.now - 0.1:
            self.was_behind_at = group.world.now
        while self.applied < index:
            if not self.machine.prepare(group.log[self.applied]):
                self.process.call_soon(self.apply_to, index)
                return
            outcome = self.machine.apply(group.log[self.applied])
            self.applied += 1
            waiting = self.waiting.pop(self.applied, None)
            if waiting is not None and not waiting.done():
                assert isinstance(outcome, Outcome)
                waiting.set_result(outcome)
        for late in [at for at in self.waiting if at <= self.applied]:
            _fail(self.waiting.pop(late), RaftOutcomeUnknown("its place in the log was covered by a snapshot"))
        if not self.machine.prepare(None):
            self.process.call_soon(self.apply_to, self.applied)
