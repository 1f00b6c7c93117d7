"""The controller's answers to requests about the replicas of partitions in use: see
`wire.operations.reassignment_operations`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from metadata.cluster.cluster_view import PIECE
from metadata.cluster.model import Outcome, Partition
from metadata.cluster.reassignment import in_sync, what_it_waits_for
from metadata.controller.admin_requests import partition_targets, unknown_stream
from metadata.controller.descriptions import find_stream, report_of_leader
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.replica_plans import AskReplicas, ReplicaPlans, require_shown
from wire.errors import Code, TidelogError
from wire.operations.operation import handles
from wire.operations.reassignment_operations import (
    CLUSTER_MOVES,
    CLUSTER_REBALANCE,
    MAX_MOVES_LISTED,
    STREAM_ALTER_FACTOR,
    STREAM_REASSIGN,
    STREAM_REASSIGN_CANCEL,
    AlteredFactor,
    AlterFactorRequest,
    CancelReassignmentRequest,
    Move,
    Moves,
    MovesRequest,
    Reassigned,
    ReassignRequest,
    RebalanceRequest,
    ReplicaMove,
    ReplicaPlan,
)
from wire.operations.reports import ReplicaReport
from wire.protobuf import metadata_pb2 as pb
from wire.stream_config import StreamConfig
from wire.turns import Steps, in_turns
from wire.types import BrokerId, PartitionKey, StreamName

_OF_MOVE = 10
"""Looks that the form of a move takes as long as."""


class ReassignmentAdmin:
    """Handlers. `commit` raises TidelogError when an outcome cannot be had; `voters`: of the metadata group."""

    def __init__(
        self,
        context: MetadataContext,
        *,
        commit: Callable[[pb.Command], Awaitable[Outcome]],
        ask: AskReplicas,
        voters: Callable[[], int],
    ) -> None:
        self._context = context
        self._commit = commit
        self._ask = ask
        self._voters = voters
        self._plans = ReplicaPlans(context, commit=commit, ask=ask)

    @handles(STREAM_REASSIGN)
    async def reassign(self, request: ReassignRequest) -> Reassigned:
        targets = partition_targets(request.targets)
        command = self._context.core.requests.reassign(request.name, targets)
        stream = find_stream(self._context.state, request.name)
        wanted = [item.partition.partition for item in command.begin_reassignments.items]
        plan = await self._plans.moves(stream, {number: targets[number] for number in wanted})
        if not request.dry_run and wanted:
            _raise_for_items(request.name, wanted, await self._commit(command))
        found = await self._moves(request.name, {*targets}, asks=False)
        return {"plan": plan, "moves": found["moves"]}

    @handles(STREAM_ALTER_FACTOR)
    async def alter_factor(self, request: AlterFactorRequest) -> AlteredFactor:
        try:
            return await self._alter_factor(request)
        except TidelogError as error:
            if request.dry_run and error.code is Code.NOT_ENOUGH_BROKERS:
                # Who looks at a plan wants to read at once which brokers are missing: the refusal is not retriable.
                raise TidelogError(Code.BAD_REPLICATION_FACTOR, error.message, error.details) from None
            raise

    async def _alter_factor(self, request: AlterFactorRequest) -> AlteredFactor:
        requests, factor = self._context.core.requests, request.replication_factor
        stream = requests.check_factor(request.name, factor, self._voters())
        made = await self._plans.made(factors={stream.name: factor}, of=stream.name)
        if made.stuck:
            key, why = made.stuck[0]
            # The cluster has changed since `check_factor`, which says of the repeated request whether waiting helps.
            raise TidelogError(
                Code.NOT_ENOUGH_BROKERS,
                f"replication_factor={factor} finds too few brokers for {len(made.stuck)} partitions, of which"
                f" {key.stream}/{key.partition} is the first: {why}",
            )
        form = await self._plans.form(made)
        if not request.dry_run:
            require_shown(request.plan, form)
            command = requests.alter_factor(stream, factor, made.changes)
            (await self._commit(command)).raise_for_refusal()
            form["begun"] = len(made.changes)
        there = self._context.state.streams.get(stream.name, stream)
        given = StreamConfig.from_strings(there.config)
        now = min(there.copies, factor)
        return {
            "replication_factor": factor,
            "min_isr": given.resolved(now).min_isr,
            "min_isr_then": given.resolved(factor).min_isr,
            "plan": form,
        }

    @handles(CLUSTER_REBALANCE)
    async def rebalance(self, request: RebalanceRequest) -> ReplicaPlan:
        self._context.core.requests.require_controller()
        made = await self._plans.made(balance=True)
        form = await self._plans.form(made)
        if not request.dry_run:
            require_shown(request.plan, form)
            form["begun"] = await self._plans.begin(made)
        return form

    @handles(STREAM_REASSIGN_CANCEL)
    async def cancel_reassignment(self, request: CancelReassignmentRequest) -> Moves:
        commands = await in_turns(self._context.core.requests.cancel_reassignments(request.name, request.partitions))
        for command in commands:
            wanted = [item.partition.partition for item in command.cancel_reassignments.items]
            _raise_for_items(request.name, wanted, await self._commit(command))
        return await self._moves(request.name, {*request.partitions}, asks=False)

    @handles(CLUSTER_MOVES)
    async def moves(self, request: MovesRequest) -> Moves:
        """Brokers that do not answer leave nulls."""
        if request.of_stream and StreamName(request.of_stream) not in self._context.state.streams:
            raise TidelogError(Code.BAD_REQUEST, unknown_stream(request.of_stream).message)
        return await self._moves(request.of_stream, set(), asks=True)

    async def _moves(self, name: str, numbers: Collection[int], *, asks: bool) -> Moves:
        """`numbers`: only of these partitions; none: of all."""
        state = self._context.state
        found = await in_turns(self._under_way(name, numbers))
        shown = found[:MAX_MOVES_LISTED]
        said: dict[StreamName, dict[int, dict[BrokerId, ReplicaReport]]] = {}
        copying = [key for key, partition in shown if _is_started(partition)] if asks else []
        for stream_name in sorted({key.stream for key in copying}):
            stream = state.streams.get(stream_name)
            if stream is not None:
                asked = [key.partition for key in copying if key.stream == stream_name]
                there = [stream.partitions[number] for number in asked if number in stream.partitions]
                brokers = sorted({broker for partition in there for broker in partition.replicas})
                said[stream_name] = await self._ask(stream, brokers, partitions=asked)
        moves = [
            form
            for key, partition in shown
            if (form := self._move_form(key, partition, said.get(key.stream, {}).get(key.partition))) is not None
        ]
        return {"moves": moves, "total": len(found)}

    def _under_way(self, name: str, numbers: Collection[int]) -> Steps[list[tuple[PartitionKey, Partition]]]:
        """Those that copy come first, and those that are cancelled last."""
        found: list[tuple[PartitionKey, Partition]] = []
        for keys in self._context.state.walk(lambda partition: partition.reassignment is not None):
            yield PIECE + 2 * len(keys)
            for key in keys:
                partition = self._context.state.partition(key)
                if partition is not None and name in ("", key.stream) and (not numbers or key.partition in numbers):
                    found.append((key, partition))
        return sorted(found, key=lambda each: (_is_cancelled(each[1]), not _is_started(each[1])))

    def _move_form(
        self, key: PartitionKey, partition: Partition, said: Mapping[BrokerId, ReplicaReport] | None
    ) -> Move | None:
        moving, stream = partition.reassignment, self._context.state.streams.get(key.stream)
        if moving is None or stream is None:
            return None
        missing = what_it_waits_for(partition, stream.min_isr, self._context.state.is_alive)
        if missing and (obstacles := self._context.core.requests.why_no_new_leader(key, partition)):
            missing += f", and no other may lead: {obstacles}"
        is_in_sync = len(in_sync(partition)) == len(moving.target)
        if moving.is_cancelled:
            phase = "going back"
        elif not moving.is_started:
            phase = "waiting"
        else:
            phase = "in sync" if is_in_sync else "copying"
        added = [broker for broker in moving.target if broker not in moving.original]
        return {
            "stream": key.stream,
            "partition": key.partition,
            "state": phase,
            "original": [*moving.original],
            "target": [*moving.target],
            "leader": partition.leader,
            "waits_for": missing or "the controller's next step",
            "copies": [] if said is None else [_copy_form(partition, broker, said) for broker in added],
        }


def _is_started(partition: Partition) -> bool:
    return partition.reassignment is not None and partition.reassignment.is_started


def _is_cancelled(partition: Partition) -> bool:
    return partition.reassignment is not None and partition.reassignment.is_cancelled


def _copy_form(partition: Partition, broker: BrokerId, said: Mapping[BrokerId, ReplicaReport]) -> ReplicaMove:
    leader = report_of_leader(partition, said)
    end = leader.get("log_end_offset")
    progress = (leader.get("replicas_progress") or {}).get(broker)
    reached = None if progress is None else progress["log_end_offset"]
    if reached is not None and reached < 0:
        reached = None  # it has not fetched in this LeaderEpoch
    size, own = leader.get("bytes_on_disk"), said.get(broker, {}).get("bytes_on_disk")
    return {
        "broker": broker,
        "in_sync": broker in partition.isr,
        "log_end_offset": reached,
        "offsets_behind": None if end is None or reached is None else max(0, end - reached),
        "bytes_behind": None if size is None or own is None else max(0, size - own),
    }


def _raise_for_items(name: str, numbers: Sequence[int], outcome: Outcome) -> None:
    """Raises TidelogError where some of the partitions were refused: they have changed since they were looked at."""
    outcome.raise_for_refusal()
    refused = [(number, code) for number, code in zip(numbers, outcome.items, strict=False) if code is not None]
    if refused:
        number, code = refused[0]
        retried = code if code is Code.STALE_EPOCH else Code.UNAVAILABLE
        raise TidelogError(
            retried,
            f"{len(refused)} of {len(numbers)} partitions of {name} have changed meanwhile and stay as they are, the"
            f" first is {number}; ask again",
        )
