"""The shipped Raft node (`metadata.raft.RaftNode`, with PySyncObj below it) in a simulated process.

Its ports lead to the world's clock and chance, to a simulated disk and to simulated sockets. All else is production
code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, NoReturn
from unittest.mock import patch
from zlib import crc32

from pysyncobj.node import Node

from metadata.raft import RaftConfig, RaftNode, RaftStatus, StateMachine
from metadata.raft.connection import FramedConnection
from metadata.raft.ports import RaftPorts
from tests.simulation.machines.sockets import SimNetwork, SimPoller, SimSocket
from tests.simulation.world import Process, SimulatedCrash
from wire.security.cluster_secrets import public_secrets

if TYPE_CHECKING:
    from metadata.raft.engine import RaftEngine
    from tests.simulation.machines.disk import SimDisk

DIRECTORY = Path("/raft/files")
"""On each machine."""
PORT = 7400


def ip_of(number: int) -> str:
    """A loopback address: public secrets are allowed there only."""
    return f"127.0.0.{number}"


class _SimThread:
    """`metadata.raft.ports.Work`."""

    def __init__(self, process: Process, work: Callable[[], None]) -> None:
        self._has_ended = False
        process.in_thread(work, self._ended)

    def _ended(self, _result: object, error: BaseException | None) -> None:
        assert error is None
        self._has_ended = True

    def is_alive(self) -> bool:
        return not self._has_ended

    def join(self, timeout: float | None = None) -> None:
        """Simulated time does not pass in a call: as if the disk took longer."""
        assert timeout is not None


def ports_of(process: Process, network: SimNetwork, host: str, disk: SimDisk, rng: Random) -> RaftPorts:
    return RaftPorts(
        monotonic=process.time,
        rng=rng,
        files=disk,
        make_socket=lambda _family, _type: SimSocket(network, host),
        make_poller=lambda: SimPoller(network, process),
        start_thread=lambda work, _name: _SimThread(process, work),
    )


def make_node(
    process: Process,
    network: SimNetwork,
    hosts: dict[str, str],
    address: str,
    disk: SimDisk,
    machine: StateMachine,
    *,
    on_status: Callable[[RaftStatus], None],
    on_peer_lost: Callable[[str], None],
    on_exit: Callable[[str], None],
    rng: Random,
    compaction_min_entries: int,
    group: str = "",
) -> RaftNode:
    """`hosts`: IP address of each voter, by its address. `on_exit`: called when the node ends its process."""
    process.addresses = {voter.rpartition(":")[0]: host for voter, host in hosts.items()}

    def exit_process(reason: str, /) -> NoReturn:
        process.world.say(f"ends its process: {reason}")
        on_exit(reason)
        disk.crash_at = 0  # nothing reaches the disk any more, whoever catches this
        raise SimulatedCrash

    config = RaftConfig(
        address=address,
        peers=tuple(voter for voter in hosts if voter != address),
        directory=DIRECTORY,
        secrets=public_secrets(),
        compaction_min_entries=compaction_min_entries,
        boot_id=disk.boot_id(),
        group=group,
    )
    return RaftNode(
        config,
        machine,
        on_status=on_status,
        on_peer_lost=on_peer_lost,
        exit_process=exit_process,
        ports=ports_of(process, network, hosts[address], disk, rng),
    )


def engine_of(node: RaftNode) -> RaftEngine | None:
    """None: it has not started."""
    return node._engine


@contextmanager
def ordered_sets() -> Iterator[None]:
    """PySyncObj keeps nodes and connections in sets, whose order follows from hash seeds and from addresses in memory:
    inside, it follows from their names and from the order in which they were made."""
    numbers = count(1)

    def number(connection: FramedConnection) -> int:
        found: int = connection.__dict__.setdefault("_number", next(numbers))
        return found

    hashes: dict[str, int] = {}

    def hash_of(node: Node) -> int:
        found = hashes.get(node._id)
        if found is None:
            found = hashes[node._id] = crc32(node._id.encode())
        return found

    with (
        patch.object(Node, "__hash__", hash_of),
        patch.object(FramedConnection, "__hash__", number),
    ):
        yield
