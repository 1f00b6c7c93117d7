"""The cluster state: every broker holds the same one, because every broker applies the same commands in the same order.

`apply(bytes)` is total and deterministic: no clock, no chance, no I/O, no order taken from a set. A command that it
cannot read or must refuse gives an outcome, the same on every node, and changes nothing. Each command that changes
something raises `generation` by one; that number also names the things that the command creates (an incarnation of a
broker, of a stream, of its partitions).

Every decision is a compare-and-set, checked here and nowhere else:
- a controller's carries its controller epoch and is refused in a later one (a decision that a deposed controller queued
  does nothing);
- a leader's ISR change names the leader, its LeaderEpoch, the partition epoch that it saw and the incarnation of each
  member (KIP-903). One that fails on a member ends in a new partition epoch with the ISR unchanged, so that the leader
  sees in the state that its proposal is over; a stale one changes nothing at all;
- a broker's death names the incarnation that died;
- the steps of a repartition name the partitioning version, and a leader's report of a cutover its LeaderEpoch, too.

A command may carry (client, sequence): repeated, as when its proposer could not know the outcome, it is answered with
its first outcome.

A command that looks at very many partitions is carried out in turns, between which the broker does other work, and
takes effect at once. `prepare` computes on a fork of the state, and `apply` puts that in the state's place. Nothing
else is applied in between, so `apply` alone comes to the same state, and takes the whole time. Small commands are
carried out by `apply`, on the state itself.

    prepare(command) ──False──> prepare(command) … ──True──> apply(command)
                                       └────── restore: the fork is dropped
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from google.protobuf.message import DecodeError

from metadata.cluster import state_snapshot
from metadata.cluster.cluster_view import Cluster
from metadata.cluster.counts import Counts
from metadata.cluster.model import Changes, Outcome, Stream
from metadata.commands import (
    broker_commands,
    broker_removal,
    partition_commands,
    repartition_commands,
    replication_factor,
    stream_commands,
)
from metadata.commands.ledger import Ledger
from wire.errors import Code
from wire.protobuf import metadata_pb2 as pb
from wire.turns import LOOKS, Steps, Turns, pieces
from wire.types import KEY_ORDER, Incarnation, PartitionKey, StreamName

MAX_CLIENTS = 1024
"""Clients whose outcomes are kept; the client whose last command is the oldest is forgotten."""
OUTCOMES_PER_CLIENT = 64
"""Outcomes kept per client; a sequence number that is older than all of them is refused."""

SMALL_COMMAND_BYTES: Final = 16 << 10
"""A command that looks only at partitions which it names needs no turns if it is of at most this size, and names
`SMALL_COMMAND_ITEMS` at most."""
SMALL_COMMAND_ITEMS: Final = 100
"""A change of one of them takes 50 µs."""

PIECE: Final = 50
"""Partitions that are compared before `Steps` yield."""

_AT_ONCE: Final = frozenset({"begin_controller_epoch", "alter_cluster", "allocate_producer_ids", "set_draining"})
"""Commands that look at no partition."""
_OF_NAMED: Final = frozenset(
    {
        "alter_isr",
        "elect_leaders",
        "withdraw",
        "remove_retired",
        "begin_reassignments",
        "start_reassignments",
        "complete_reassignments",
        "cancel_reassignments",
    }
)
"""Commands that look at the partitions that they name, their `items`, and at all others of a stream whose replication
factor grows (R91). All others may look at all of a stream, or of the cluster."""


@dataclass(slots=True)
class _Prepared:
    """The next command, and the work for it so far."""

    command: bytes
    message: pb.Command
    ledger: Ledger
    """A fork of the state for a command in turns, else the state's own."""
    turns: Turns[Outcome] | None
    """None: the command needs no turns."""


class ClusterState(Cluster):
    """The state machine of the metadata group."""

    def __init__(self) -> None:
        self._become(state_snapshot.Contents.empty(), Counts())

    def _become(self, contents: state_snapshot.Contents, counts: Counts) -> None:
        Cluster.__init__(self, contents, counts)
        self._ledger = Ledger(contents, counts)
        self._prepared: _Prepared | None = None

    def snapshot(self) -> bytes:
        return Turns(state_snapshot.encoding(self._contents)).finish()

    def encoding(self) -> Steps[bytes]:
        """Encodes a snapshot of the state as it is now; commands may be applied meanwhile."""
        return state_snapshot.encoding(self._ledger.picture())

    def restore(self, data: bytes) -> Changes:
        """Does all steps of `restoring` at once."""
        return Turns(self.restoring(data)).finish()

    def restoring(self, data: bytes) -> Steps[Changes]:
        """Becomes the state of that snapshot, with the last step; returns the differences from the state until now, to
        which nothing is applied meanwhile. Raises CorruptData."""
        old, new = self._contents, (yield from state_snapshot.decoding(data))
        partition_commands: list[PartitionKey] = []
        gone: list[PartitionKey] = []
        counts = Counts()
        for name in sorted({**old.streams, **new.streams}):
            changed, left = yield from _differences(old.streams.get(name), new.streams.get(name), counts)
            partition_commands += changed
            gone += left
        repartitioned = []
        for name, stream in sorted(new.streams.items()):
            yield 1 + len(stream.partitions) // 10
            known = old.streams.get(name)
            if known is not None and _routing(known) != _routing(stream):
                repartitioned.append(name)
        self._become(new, counts)
        return Changes(
            partitions=tuple(partition_commands),
            gone=tuple(gone),
            brokers=tuple(
                sorted(
                    broker
                    for broker in {**old.brokers, **new.brokers}
                    if old.brokers.get(broker) != new.brokers.get(broker)
                )
            ),
            controller=old.controller_epoch != new.controller_epoch,
            streams=_incarnations(old) != _incarnations(new),
            repartitioned=tuple(repartitioned),
        )

    def prepare(self, command: bytes) -> bool:
        """Does a turn of the work for `apply(command)`, which must be the next one. True: `apply` has little left to
        do. The state that readers see stays unchanged."""
        if self._prepared is None or self._prepared.command != command:
            try:
                self._prepared = self._begin(command)
            except DecodeError:
                return True
        try:
            return self._prepared.turns is None or self._prepared.turns.turn(LOOKS)
        except BaseException:
            self._prepared = None
            raise

    def _begin(self, command: bytes) -> _Prepared:
        """Raises DecodeError."""
        message = pb.Command.FromString(command)
        if self._is_small(message, len(command)) or self._recorded(message) is not None:
            return _Prepared(command, message, self._ledger, None)
        fork = self._ledger.fork()
        return _Prepared(command, message, fork, Turns(_in_steps(fork, message)))

    def _is_small(self, message: pb.Command, size: int) -> bool:
        kind = message.WhichOneof("body")
        if kind is None or kind in _AT_ONCE:
            return True
        if kind not in _OF_NAMED or size > SMALL_COMMAND_BYTES:
            return False
        items = getattr(message, kind).items
        if len(items) > SMALL_COMMAND_ITEMS:
            return False
        streams = (self._contents.streams.get(name) for name in {item.partition.stream for item in items})
        return not any(stream is not None and stream.is_growing for stream in streams)

    def apply(self, command: bytes) -> Outcome:
        """Applies a command. Never raises, whatever the bytes."""
        prepared, self._prepared = self._prepared, None
        try:
            if prepared is None or prepared.command != command:
                prepared = self._begin(command)
        except DecodeError as error:
            return self._ledger.refuse(
                Code.BAD_REQUEST, f"a metadata command of {len(command)} bytes cannot be read: {error}"
            )
        recorded = self._recorded(prepared.message)
        if recorded is not None:
            return recorded
        if prepared.turns is None:
            outcome = Turns(_in_steps(self._ledger, prepared.message)).finish()
        else:
            outcome = prepared.turns.finish()
            self._ledger.take_over(prepared.ledger)
            Cluster.__init__(self, self._ledger.contents, self._ledger.counts)
        self._record(prepared.message, outcome)
        return outcome

    def _recorded(self, message: pb.Command) -> Outcome | None:
        outcomes = self._contents.clients.get(message.client) if message.client else None
        if not outcomes:
            return None
        known = outcomes.get(message.sequence)
        if known is not None:
            return replace(known, generation=self.generation, repeated=True)
        if len(outcomes) >= OUTCOMES_PER_CLIENT and message.sequence < min(outcomes):
            return self._ledger.refuse(
                Code.OUTCOME_UNKNOWN, f"command {message.sequence} of {message.client} is older than what is remembered"
            )
        return None

    def _record(self, message: pb.Command, outcome: Outcome) -> None:
        if not message.client:
            return
        clients = self._contents.clients
        # Taken out and put back at the end: the order of this dict is the order of last use, and part of the snapshot.
        outcomes = clients.pop(message.client, {})
        outcomes[message.sequence] = Outcome(code=outcome.code, message=outcome.message, value=outcome.value)
        if len(outcomes) > OUTCOMES_PER_CLIENT:
            del outcomes[min(outcomes)]
        clients[message.client] = outcomes
        if len(clients) > MAX_CLIENTS:
            del clients[next(iter(clients))]


def _in_steps(ledger: Ledger, message: pb.Command) -> Steps[Outcome]:
    outcome = _dispatch(ledger, message)
    return outcome if isinstance(outcome, Outcome) else (yield from outcome)


def _dispatch(ledger: Ledger, message: pb.Command) -> Outcome | Steps[Outcome]:
    match message.WhichOneof("body"):
        case "begin_controller_epoch":
            return broker_commands.begin_controller_epoch(ledger, message.begin_controller_epoch)
        case "register_broker":
            return broker_commands.register_broker(ledger, message.register_broker)
        case "brokers_dead":
            return broker_commands.brokers_dead(ledger, message.brokers_dead)
        case "remove_broker":
            return broker_removal.remove_broker(ledger, message.remove_broker)
        case "set_draining":
            return broker_commands.set_draining(ledger, message.set_draining)
        case "create_stream":
            return stream_commands.create_stream(ledger, message.create_stream)
        case "alter_stream":
            return stream_commands.alter_stream(ledger, message.alter_stream)
        case "set_readonly":
            return stream_commands.set_readonly(ledger, message.set_readonly)
        case "set_paused":
            return stream_commands.set_paused(ledger, message.set_paused)
        case "alter_paused":
            return partition_commands.alter_paused(ledger, message.alter_paused)
        case "delete_records":
            return stream_commands.delete_records(ledger, message.delete_records)
        case "alter_cluster":
            return stream_commands.alter_cluster(ledger, message.alter_cluster)
        case "delete_stream":
            return stream_commands.delete_stream(ledger, message.delete_stream)
        case "alter_isr":
            return partition_commands.alter_isr(ledger, message.alter_isr)
        case "elect_leaders":
            return partition_commands.elect_leaders(ledger, message.elect_leaders)
        case "withdraw":
            return partition_commands.withdraw(ledger, message.withdraw)
        case "allocate_producer_ids":
            return broker_commands.allocate_producer_ids(ledger, message.allocate_producer_ids)
        case "unclean_elect":
            return partition_commands.elect_unclean(ledger, message.unclean_elect)
        case "prepare_repartition":
            return repartition_commands.prepare(ledger, message.prepare_repartition)
        case "cancel_repartition":
            return repartition_commands.cancel(ledger, message.cancel_repartition)
        case "cutover":
            return repartition_commands.cut_over(ledger, message.cutover)
        case "report_cutover":
            return repartition_commands.report_cutover(ledger, message.report_cutover)
        case "finish_repartition":
            return repartition_commands.finish(ledger, message.finish_repartition)
        case "remove_retired":
            return repartition_commands.remove_retired(ledger, message.remove_retired)
        case "begin_reassignments":
            return partition_commands.begin_reassignments(ledger, message.begin_reassignments)
        case "start_reassignments":
            return partition_commands.start_reassignments(ledger, message.start_reassignments)
        case "complete_reassignments":
            return partition_commands.complete_reassignments(ledger, message.complete_reassignments)
        case "cancel_reassignments":
            return partition_commands.cancel_reassignments(ledger, message.cancel_reassignments)
        case "alter_replication_factor":
            return replication_factor.alter(ledger, message.alter_replication_factor)
        case None:
            return ledger.refuse(
                Code.BAD_REQUEST, "a metadata command of a kind that this version does not know; update the broker"
            )


def _differences(
    old: Stream | None, new: Stream | None, counts: Counts
) -> Steps[tuple[list[PartitionKey], list[PartitionKey]]]:
    """Returns partitions of one name whose views have changed, and those that are gone, sorted; counts those of
    `new`."""
    known = {} if old is None else {old.key(number): partition for number, partition in old.partitions.items()}
    is_alike = old is not None and new is not None and old.shared == new.shared
    changed: list[PartitionKey] = []
    if new is not None:
        counts.add_subject(new.subject, new.name)
        for part in pieces(sorted(new.partitions.items()), PIECE):
            yield 2 * len(part)
            for number, partition in part:
                key = new.key(number)
                if known.pop(key, None) != partition or not is_alike:
                    changed.append(key)
                counts.count_partition(partition, 1)
    return changed, sorted(known, key=KEY_ORDER)


def _routing(stream: Stream) -> tuple[object, ...]:
    """The part of a stream that repartitions change."""
    return stream.layouts, stream.repartition, {number: part.incarnation for number, part in stream.partitions.items()}


def _incarnations(contents: state_snapshot.Contents) -> dict[StreamName, Incarnation]:
    return {name: stream.incarnation for name, stream in contents.streams.items()}
