"""Interfaces of the metadata service: the Raft node below it, and the broker above it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol, TypeAlias

from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Changes
from metadata.raft.types import RaftStatus, StateMachine
from wire.errors import TidelogError
from wire.operations.reports import BrokerReport, StreamReport, UsageReport
from wire.turns import Steps
from wire.types import (
    DrainAnswer,
    Incarnation,
    LeaderMove,
    LogEnd,
    PartitionGone,
    PartitionKey,
    PartitionView,
    RoleProgress,
    Room,
    StreamName,
)


class RaftPort(Protocol):
    """The part of `metadata.raft.RaftNode` that the service uses."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def propose(self, command: bytes, *, timeout: float) -> object: ...

    def status(self) -> RaftStatus: ...

    def hand_over(self) -> bool: ...


RaftFactory: TypeAlias = Callable[[StateMachine, Callable[[RaftStatus], None], Callable[[str], None]], RaftPort]
"""Makes the node from (state machine, on_status, on_peer_lost)."""


class StateObserver(Protocol):
    """Is called while Raft applies, after each command that changed something, and must not raise. Its steps are taken
    to their end before anything else is applied. `from_snapshot`: the changes are all differences of a snapshot."""

    def __call__(self, state: Cluster, changes: Changes, *, from_snapshot: bool) -> Steps[None]: ...


class BrokerPort(Protocol):
    """The broker that the service serves. Nothing is called before `MetadataService.start`."""

    def on_registered(self, cluster_id: str, incarnation: Incarnation) -> None:
        """Write both into the data folder. Called in each new incarnation, before `on_partitions`. Raises TidelogError
        NO_SPACE where the first one of a process cannot be written: it is called again until it can."""

    def on_partitions(self, changes: Sequence[PartitionView | PartitionGone]) -> None:
        """Take over new and changed partitions that this broker replicates, and partitions that it no longer
        replicates."""

    def on_all_partitions(self) -> None:
        """Called once in a process, when all partitions that this broker replicates were handed over: other logs in the
        data folder belong to streams that were deleted while the broker was down."""

    def on_fatal(self, error: TidelogError) -> None:
        """End the process: another cluster's folder, another process under this id, another cluster in the namespace,
        or `on_registered` or `on_partitions` raised anything else."""

    def log_ends(self) -> Steps[Mapping[PartitionKey, LogEnd]]:
        """Returns the ends of this broker's logs, as they are now."""

    def stream_report(
        self, stream: StreamName, partitions: Collection[int], history_of: int | None
    ) -> Steps[StreamReport]:
        """The state of this broker's replicas of a stream, with the last events of the partition `history_of`.
        `partitions`: only these; empty: all."""

    def usage_report(self, after: str = "", upto: str | None = None) -> Steps[UsageReport]:
        """The bytes of each stream's replicas on this broker's disk, and their traffic. Only of streams whose names
        come after `after`, up to `upto`; None: up to the last one."""

    def broker_report(self) -> Steps[BrokerReport]:
        """The state of the broker as a whole."""

    def room(self) -> Room:
        """Room on the broker's disk."""

    def disk_hangs(self) -> bool: ...

    def role_progress(self) -> RoleProgress: ...

    def drain_leader(self, move: LeaderMove, timeout: float, answer: DrainAnswer) -> None:
        """Get ready for a planned move of a leadership held here: stop sequencing, call `answer(None)` when the target
        holds everything, `answer(error)` when it does not within `timeout` seconds. Not called for requests that lay
        unread for longer than that, or than the lease."""

    async def on_controller(self, is_controller: bool) -> None:
        """Begin or cease to serve the API: this broker is the controller now, or no longer. After an exception it is
        called again."""
