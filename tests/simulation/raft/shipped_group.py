"""The metadata group of a simulated cluster on the shipped Raft, in place of the model
(`tests.simulation.raft.group_model`).

Each broker's process has a Raft node (`tests.simulation.raft.raft_node`), whose files are on the broker's disk.
Faults that the model has as such come about by what causes them: a node that is cut off has its links cut, a stall is a
slow network, a late apply a slow link, a deposed leader hands over.

`truth` is the state after all commands that some node has applied: nobody can have seen one that is not there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from random import Random
from typing import TYPE_CHECKING
from unittest.mock import patch

from metadata.raft import RaftNode, RaftStatus, StateMachine, snapshot
from tests.simulation.machines.sockets import SimNetwork
from tests.simulation.raft.group_model import RaftGroup, RaftMember
from tests.simulation.raft.raft_node import engine_of, ip_of, make_node
from wire.turns import Steps

if TYPE_CHECKING:
    from tests.simulation.machines.disk import SimDisk
    from tests.simulation.world import Process, World

COMPACTION_MIN_ENTRIES = 25
CHUNK_BYTES = 2000
LATENCY = 0.0003
_COUNT = struct.Struct("<Q")
_USUAL_COMMIT_DELAY = 0.0015


class ShippedGroup(RaftGroup):
    def __init__(self, world: World, voters: tuple[str, ...]) -> None:
        self.network = SimNetwork(world)
        self.hosts = {voter: ip_of(number) for number, voter in enumerate(voters, 1)}
        self._disks: dict[str, SimDisk] = {}
        self._commit_delay = _USUAL_COMMIT_DELAY
        super().__init__(world, voters)
        self.network.latency = LATENCY

    @property
    def commit_delay(self) -> float:
        return self._commit_delay

    @commit_delay.setter
    def commit_delay(self, delay: float) -> None:
        """A multiple of the usual one makes the network so much slower."""
        self._commit_delay = delay
        self.network.latency = LATENCY * min(50.0, delay / _USUAL_COMMIT_DELAY)

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
        self._disks[address] = disk
        return ShippedMember(self, process, address, disk, state_machine, on_status, on_peer_lost, on_exit)

    # ---- faults

    def check(self) -> None:
        """The nodes find out by themselves."""

    def depose(self) -> None:
        for node in self.nodes.values():
            if isinstance(node, ShippedMember) and node.leads and not node.process.paused:
                node.process.call_soon(node.hand_over)

    def cut_off(self, address: str) -> None:
        self.cut.add(address)
        for source, target in self._links(address):
            self.network.cut(source, target)

    def rejoin(self, address: str) -> None:
        if address in self.cut:
            self.cut.discard(address)
            for source, target in self._links(address):
                self.network.mend(source, target)

    def _links(self, address: str) -> list[tuple[str, str]]:
        host = self.hosts[address]
        others = [other for voter, other in self.hosts.items() if voter != address]
        return [link for other in others for link in ((host, other), (other, host))]

    def process_died(self, address: str) -> None:
        self.nodes.pop(address, None)
        self.network.process_died(self.hosts[address])

    def joined(self, node: RaftMember) -> None:
        self.nodes[node.address] = node

    # ---- what the nodes apply

    def applies(self, member: ShippedMember, command: bytes) -> None:
        place = member.applied
        if place == len(self.log):
            self._append(command)
        elif place > len(self.log) or self.log[place] != command:
            self.world.broken("StateMachineSafety", f"{member.address} applies another command {place}")
        elif self._committed_at[place] < self.world.now - 0.1:
            member.was_behind_at = self.world.now

    def _announce(self, member: RaftMember) -> None:
        """The nodes tell each other."""


class ShippedMember(RaftMember):
    """A `metadata.runtime.ports.RaftPort`, of one life of one process."""

    def __init__(
        self,
        group: ShippedGroup,
        process: Process,
        address: str,
        disk: SimDisk,
        state_machine: StateMachine,
        on_status: Callable[[RaftStatus], None],
        on_peer_lost: Callable[[str], None],
        on_exit: Callable[[str], None],
    ) -> None:
        self._network = group.network
        self._host = group.hosts[address]
        super().__init__(group, process, address, state_machine, on_status, on_peer_lost)
        self._shipped = group
        self.was_behind_at = -inf
        self.node: RaftNode = make_node(
            process,
            group.network,
            group.hosts,
            address,
            disk,
            _Counted(group, self, state_machine),
            on_status=on_status,
            on_peer_lost=on_peer_lost,
            on_exit=on_exit,
            rng=Random(f"Raft of {process.name} at {group.world.now} in {group.world.seed}"),
            compaction_min_entries=COMPACTION_MIN_ENTRIES,
        )

    @property
    def slowness(self) -> float:
        return self._network.slowness.get(self._host, 1.0)

    @slowness.setter
    def slowness(self, factor: float) -> None:
        self._network.slowness[self._host] = factor

    @property
    def leads(self) -> bool:
        engine = engine_of(self.node)
        return engine is not None and engine.is_leader

    async def start(self) -> None:
        self._shipped.joined(self)
        await self.node.start()

    async def close(self) -> None:
        await self.node.close()
        self._shipped.nodes.pop(self.address, None)

    def status(self) -> RaftStatus:
        return self.node.status()

    def hand_over(self) -> bool:
        return self.node.hand_over()

    async def propose(self, command: bytes, *, timeout: float) -> object:
        return await self.node.propose(command, timeout=timeout)


class _Counted:
    """A state machine that knows how many commands it has applied, also after it was restored."""

    def __init__(self, group: ShippedGroup, member: ShippedMember, machine: StateMachine) -> None:
        self._group = group
        self._member = member
        self._machine = machine

    def prepare(self, command: bytes | None) -> bool:
        return self._machine.prepare(command)

    def apply(self, command: bytes) -> object:
        self._group.applies(self._member, command)
        outcome = self._machine.apply(command)
        self._member.applied += 1
        return outcome

    def snapshot(self) -> Steps[bytes]:
        return self._encoding(self._member.applied, self._machine.snapshot())

    def _encoding(self, count: int, steps: Steps[bytes]) -> Steps[bytes]:
        state = yield from steps
        return _COUNT.pack(count) + state

    def restore(self, snapshot: bytes) -> Steps[None]:
        yield from self._machine.restore(snapshot[_COUNT.size :])
        self._member.applied = _COUNT.unpack_from(snapshot)[0]


@contextmanager
def small_snapshots() -> Iterator[None]:
    with patch.object(snapshot, "CHUNK_BYTES", CHUNK_BYTES):
        yield
