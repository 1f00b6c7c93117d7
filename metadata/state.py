"""The cluster state: every broker holds the same one, because every broker applies the same commands in the same order.

`apply(bytes)` is total and deterministic: no clock, no chance, no I/O, no order taken from a set. A command that it
cannot read or must refuse gives an outcome, the same on every node, and changes nothing. Each command that changes
something raises `generation` by one; that number also names the things that the command creates (an incarnation of a
broker, of a stream, of its partitions).

Every decision is a compare-and-set, checked here and nowhere else:
- a controller's carries its controller epoch and is refused in a later one (a decision that a deposed controller queued
  does nothing);
- a leader's ISR change names the leader, its LeaderEpoch, the partition epoch that it saw and the life of each member
  (KIP-903). One that fails on a member ends in a new partition epoch with the ISR unchanged, so that the leader sees in
  the state that its proposal is over; a stale one changes nothing at all;
- a broker's death names the incarnation that died;
- the steps of a repartition name the partitioning version, and a leader's report of a cutover its LeaderEpoch, too.

A command may carry (client, sequence): repeated, as when its proposer could not know the outcome, it is answered with
its first outcome.
"""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import DecodeError

from metadata import snapshot
from metadata.cluster import Cluster
from metadata.commands import brokers, partitions, producers, repartition, streams
from metadata.commands.ledger import Ledger
from metadata.model import Changes, Outcome, Stream
from wire import metadata_pb2 as pb
from wire.errors import Code
from wire.types import Incarnation, PartitionKey, StreamName

MAX_CLIENTS = 1024
"""Clients whose outcomes are kept; the client not heard for the most commands is forgotten."""
OUTCOMES_PER_CLIENT = 64
"""Outcomes kept per client; a sequence number that is older than all of them is refused."""


class ClusterState(Cluster):
    """See the module."""

    def __init__(self) -> None:
        self._become(snapshot.Contents.empty())

    def _become(self, contents: snapshot.Contents) -> None:
        super().__init__(contents, {})
        self._ledger = Ledger(self._contents, self._led)
        for _, partition in self.partitions():
            self._ledger.count_leader(partition.leader, 1)

    def snapshot(self) -> bytes:
        return snapshot.encode(self._contents)

    def restore(self, data: bytes) -> Changes:
        """Become the state of that snapshot; returns the differences from the state until now. Raises CorruptData."""
        old, new = self._contents, snapshot.decode(data)
        before = self._seen_by_views()
        self._become(new)
        after = self._seen_by_views()
        return Changes(
            partitions=tuple(sorted(key for key, found in after.items() if before.get(key) != found)),
            gone=tuple(sorted(key for key in before if key not in after)),
            brokers=tuple(
                sorted(
                    broker
                    for broker in {**old.brokers, **new.brokers}
                    if old.brokers.get(broker) != new.brokers.get(broker)
                )
            ),
            controller=old.controller_epoch != new.controller_epoch,
            streams=_incarnations(old) != _incarnations(new),
            repartitioned=tuple(
                name
                for name, stream in sorted(new.streams.items())
                if (known := old.streams.get(name)) is not None and _routing(known) != _routing(stream)
            ),
        )

    def _seen_by_views(self) -> dict[PartitionKey, tuple[object, ...]]:
        shared = {name: stream.shared for name, stream in self.streams.items()}
        return {key: (partition, shared[key.stream]) for key, partition in self.partitions()}

    def apply(self, command: bytes) -> Outcome:
        """Never raises, whatever the bytes."""
        try:
            message = pb.Command.FromString(command)
        except DecodeError as error:
            return self._ledger.refuse(
                Code.BAD_REQUEST, f"a metadata command of {len(command)} bytes cannot be read: {error}"
            )
        recorded = self._recorded(message)
        if recorded is not None:
            return recorded
        outcome = self._dispatch(message)
        self._record(message, outcome)
        return outcome

    def _dispatch(self, message: pb.Command) -> Outcome:
        ledger = self._ledger
        match message.WhichOneof("body"):
            case "begin_controller_epoch":
                return brokers.begin_controller_epoch(ledger, message.begin_controller_epoch)
            case "register_broker":
                return brokers.register_broker(ledger, message.register_broker)
            case "brokers_dead":
                return brokers.brokers_dead(ledger, message.brokers_dead)
            case "create_stream":
                return streams.create_stream(ledger, message.create_stream)
            case "alter_stream":
                return streams.alter_stream(ledger, message.alter_stream)
            case "set_readonly":
                return streams.set_readonly(ledger, message.set_readonly)
            case "set_paused":
                return streams.set_paused(ledger, message.set_paused)
            case "alter_paused":
                return partitions.alter_paused(ledger, message.alter_paused)
            case "delete_records":
                return streams.delete_records(ledger, message.delete_records)
            case "alter_cluster":
                return streams.alter_cluster(ledger, message.alter_cluster)
            case "delete_stream":
                return streams.delete_stream(ledger, message.delete_stream)
            case "alter_isr":
                return partitions.alter_isr(ledger, message.alter_isr)
            case "elect_leaders":
                return partitions.elect_leaders(ledger, message.elect_leaders)
            case "withdraw":
                return partitions.withdraw(ledger, message.withdraw)
            case "allocate_producer_ids":
                return producers.allocate_producer_ids(ledger, message.allocate_producer_ids)
            case "unclean_elect":
                return partitions.elect_unclean(ledger, message.unclean_elect)
            case "prepare_repartition":
                return repartition.prepare(ledger, message.prepare_repartition)
            case "cancel_repartition":
                return repartition.cancel(ledger, message.cancel_repartition)
            case "cutover":
                return repartition.cut_over(ledger, message.cutover)
            case "report_cutover":
                return repartition.report_cutover(ledger, message.report_cutover)
            case "finish_repartition":
                return repartition.finish(ledger, message.finish_repartition)
            case "remove_retired":
                return repartition.remove_retired(ledger, message.remove_retired)
            case None:
                return ledger.refuse(
                    Code.BAD_REQUEST, "a metadata command of a kind that this version does not know; update the broker"
                )

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


def _routing(stream: Stream) -> tuple[object, ...]:
    """The part of a stream that repartitions change."""
    return stream.layouts, stream.repartition, {number: part.incarnation for number, part in stream.partitions.items()}


def _incarnations(contents: snapshot.Contents) -> dict[StreamName, Incarnation]:
    return {name: stream.incarnation for name, stream in contents.streams.items()}
