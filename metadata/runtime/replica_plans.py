"""Plans of other replicas (`metadata.controller.replica_planning`), as the controller makes them, describes them to
operators, and begins them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from metadata.cluster.model import Outcome, Partition, Stream
from metadata.commands.reassignment_targets import wanted_replicas
from metadata.controller.descriptions import report_of_leader
from metadata.controller.replica_planning import Change, Plan, described, digest, plan
from metadata.runtime.driver_context import MetadataContext
from wire.errors import Code, TidelogError
from wire.operations.reassignment_operations import (
    MAX_MOVES_LISTED,
    MAX_STREAMS_ASKED,
    PlannedCopies,
    PlannedMove,
    ReplicaPlan,
    StuckPartition,
)
from wire.operations.reports import ReplicaReport
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps, in_turns, pieces
from wire.types import BrokerId, PartitionKey, StreamName

MAX_BEGUN: Final = 500
"""Limit of the partitions of one command."""
MOST_TRIES: Final = 3
"""A change that is refused, as its partition has changed meanwhile, is proposed that often."""
_ASKED_AT_ONCE: Final = 16
"""Limit of the streams whose leaders are asked at a time."""
_PIECE: Final = 100
_OF_MOVE: Final = 5
"""Looks that the form of a planned move takes as long as."""


class AskReplicas(Protocol):
    async def __call__(
        self, stream: Stream, brokers: Sequence[BrokerId], *, partitions: Collection[int] = ()
    ) -> dict[int, dict[BrokerId, ReplicaReport]]:
        """Reports of the live brokers that answer, by partition and broker."""
        ...


class ReplicaPlans:
    """`commit` raises TidelogError when a command's outcome cannot be had."""

    def __init__(
        self, context: MetadataContext, *, commit: Callable[[pb.Command], Awaitable[Outcome]], ask: AskReplicas
    ) -> None:
        self._context = context
        self._commit = commit
        self._ask = ask

    async def made(
        self,
        *,
        evacuate: Collection[BrokerId] = (),
        balance: bool = False,
        factors: Mapping[StreamName, int] | None = None,
        of: StreamName | None = None,
    ) -> Plan:
        """Plans changes of all partitions, in turns, from the replicas that they are to have once what is under way is
        over. `evacuate`, `balance`, `of`: as for `plan`; `factors`: replication factors that streams are to have."""
        brokers, partitions = await in_turns(
            described(
                self._context.state,
                without_room=self._context.core.requests.without_room(),
                replicas=wanted_replicas,
                factors=factors,
            )
        )
        return await in_turns(plan(brokers, partitions, evacuate=evacuate, balance=balance, of=of))

    async def begin(self, made: Plan) -> int:
        """Begins the changes, some hundred with each command. Those that have to wait for their turn cost nothing.
        Where this controller's epoch ends before all are begun, a new plan has the rest. Returns how many have begun:
        the others' partitions have changed since the plan was made. Raises TidelogError, too, where only some have
        begun.
        """
        begun = 0
        for piece in pieces(made.changes, MAX_BEGUN):
            left: Sequence[Change] = piece
            for _ in range(MOST_TRIES):
                command, changes = self._context.core.requests.begin_changes(left)
                if not changes:
                    break
                outcome = await self._commit(command)
                outcome.raise_for_refusal()
                refused = [
                    change for change, code in zip(changes, outcome.items, strict=False) if code is not None
                ]  # `items` is empty for a command that was repeated, whose first outcome is not known
                begun += len(changes) - len(refused)
                left = refused
        return begun

    # ---- descriptions ----------------------------------------------------------------------------------------------

    async def form(self, made: Plan) -> ReplicaPlan:
        """Describes a plan. The leaders of the partitions are asked for the sizes."""
        state = self._context.state
        targets: dict[StreamName, dict[int, Sequence[BrokerId]]] = {}
        for change in made.changes:
            targets.setdefault(change.key.stream, {})[change.key.partition] = change.target
        copied = Counter(change.key.stream for change in made.changes if change.added)
        asked = {name for name, _ in copied.most_common(MAX_STREAMS_ASKED)}
        moves: list[PlannedMove] = []
        for names in pieces(targets, _ASKED_AT_ONCE):
            there = [(stream, targets[name]) for name in names if (stream := state.streams.get(name)) is not None]
            found = await asyncio.gather(
                *(self.moves(stream, wanted, asks=stream.name in asked) for stream, wanted in there)
            )
            moves += [move for of_stream in found for move in of_stream]
        return await in_turns(self._summary(moves, made, await in_turns(digest(made))))

    async def moves(
        self, stream: Stream, targets: Mapping[int, Sequence[BrokerId]], *, asks: bool = True
    ) -> list[PlannedMove]:
        """Describes the change of partitions to these replicas, with sizes if it `asks` the leaders."""
        known = {number: stream.partitions[number] for number in targets if number in stream.partitions}
        said: dict[int, dict[BrokerId, ReplicaReport]] = {}
        if asks:
            leaders = sorted({partition.leader for partition in known.values() if partition.leader is not None})
            said = await self._ask(stream, leaders, partitions=known.keys())
        return await in_turns(_move_forms(stream.name, known, targets, said))

    def _summary(self, moves: list[PlannedMove], made: Plan, name: str) -> Steps[ReplicaPlan]:
        pairs: dict[tuple[str | None, str], PlannedCopies] = {}
        by_source: Counter[str | None] = Counter()
        unknown = 0
        for piece in pieces(moves, _PIECE):
            yield 2 * len(piece)
            for move in piece:
                each = None if move["bytes_to_copy"] is None else move["bytes_to_copy"] // max(1, len(move["added"]))
                for broker in move["added"]:
                    pair = pairs.setdefault(
                        (move["leader"], broker), {"source": move["leader"], "target": broker, "copies": 0, "bytes": 0}
                    )
                    pair["copies"] += 1
                    pair["bytes"] += each or 0
                    by_source[move["leader"]] += each or 0
                    unknown += each is None
        budget = self._context.state.cluster_settings.replication_budget
        shown = sorted(moves, key=lambda move: not move["added"])[:MAX_MOVES_LISTED]
        return {
            "partitions": len(moves),
            "copies": sum(pair["copies"] for pair in pairs.values()),
            "plan": shown,
            "sources": sorted(pairs.values(), key=lambda pair: -pair["bytes"])[:MAX_MOVES_LISTED],
            "bytes_to_copy": by_source.total(),
            "sizes_unknown": unknown,
            "budget_bytes_per_s": budget,
            "least_s": max(by_source.values(), default=0) / max(1, budget),
            "stuck": [_stuck_form(key, why) for key, why in made.stuck[:MAX_MOVES_LISTED]],
            "stuck_total": len(made.stuck),
            "digest": name,
            "begun": 0,
        }


def require_shown(expected: str, form: ReplicaPlan) -> None:
    """Raises TidelogError if the plan is not the one that was shown, of this digest. Empty: any will do."""
    if expected and expected != form["digest"]:
        raise TidelogError(
            Code.BAD_REQUEST,
            f"the plan has changed since it was shown as {expected}, and this request begins nothing: it is"
            f" {form['digest']} now; look at it again with --dry-run, and at what is under way with `tidelog cluster"
            " moves`",
        )


def _stuck_form(key: PartitionKey, why: str) -> StuckPartition:
    return {"partition": f"{key.stream}/{key.partition}", "why": why}


def _move_forms(
    name: StreamName,
    known: Mapping[int, Partition],
    targets: Mapping[int, Sequence[BrokerId]],
    said: Mapping[int, Mapping[BrokerId, ReplicaReport]],
) -> Steps[list[PlannedMove]]:
    found: list[PlannedMove] = []
    for piece in pieces(known.items(), _PIECE):
        yield _OF_MOVE * len(piece)
        for number, partition in piece:
            moving, target = partition.reassignment, targets[number]
            before = partition.replicas if moving is None else moving.original
            added = [broker for broker in target if broker not in before]
            size = report_of_leader(partition, said.get(number, {})).get("bytes_on_disk")
            found.append(
                {
                    "stream": name,
                    "partition": number,
                    "replicas": [*before],
                    "target": [*target],
                    "added": [*added],
                    "removed": [broker for broker in before if broker not in target],
                    "leader": partition.leader,
                    "bytes_to_copy": None if size is None and added else (size or 0) * len(added),
                }
            )
    return found
