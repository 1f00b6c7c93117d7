"""The command that gives a stream another number of replicas, and what follows in its settings when they are there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from metadata.cluster import election, reassignment
from metadata.cluster.model import Changes, Outcome, Partition, Stream
from metadata.commands.ledger import PARTITION, Ledger
from metadata.commands.reassignment_targets import wanted_replicas, why_not_target
from metadata.commands.stream_commands import stream_of
from wire.durability import MAX_REPLICAS
from wire.errors import Code, TidelogError
from wire.placement import Strategy
from wire.protobuf import metadata_pb2 as pb
from wire.stream_config import StreamConfig
from wire.turns import Steps
from wire.types import BrokerId, PartitionKey, StreamName


# R91: One command sets the replication factor of a stream and begins the reassignments of its partitions, or refuses
# both. What is derived from the factor (min ISR, the floor of `majority_durable`) follows the replicas that each
# partition has and keeps, `Partition.copies`: a smaller one counts at once, a larger one when the last partition has
# its replicas. A min ISR that was given stays, and neither the factor nor it may be set so that it is above what each
# partition has.
# Hazard: Writes that wait for replicas which have not copied the log yet; a factor that counts as reached while some
# partition has fewer replicas.
def alter(ledger: Ledger, command: pb.AlterReplicationFactor) -> Steps[Outcome]:
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    factor = command.replication_factor
    try:
        check_factor(stream, factor)
    except TidelogError as error:
        return ledger.refuse(error.code, error.message)
    names = [BrokerId(name) for name in command.brokers]
    targets: dict[int, tuple[BrokerId, ...]] = {}
    for item in command.items:
        yield 1
        if any(index >= len(names) for index in item.replicas):
            return ledger.refuse(Code.BAD_REQUEST, f"partition {item.partition} has an impossible placement")
        targets[item.partition] = tuple(names[index] for index in item.replicas)
    begun: dict[int, Partition] = {}
    copies = factor
    for number, partition in sorted(stream.partitions.items()):
        yield PARTITION
        wanted = wanted_replicas(partition)
        target = targets.get(number, wanted)
        if target != wanted and why_not_target(ledger, partition, target, factor) is None:
            generation = ledger.next_generation()
            begun[number] = reassignment.begin(partition, target, generation, min_isr=stream.min_isr)
        elif target != wanted or len(wanted) != factor:
            return ledger.refuse(
                Code.UNAVAILABLE,
                f"the brokers, or partition {number} of stream {stream.name}, have changed meanwhile; ask again",
            )
        copies = min(copies, begun.get(number, partition).copies)
    if not begun and factor == stream.replication_factor:
        return ledger.unchanged()
    keys = yield from _put(ledger, replace(stream, replication_factor=factor, copies=copies), begun)
    return ledger.changed(Changes(partitions=tuple(keys)))


def check_factor(stream: Stream, factor: int) -> None:
    """Raises TidelogError when the stream cannot have so many replicas: BAD_REPLICATION_FACTOR, BAD_CONFIG."""
    if not 1 <= factor <= MAX_REPLICAS:
        raise TidelogError(Code.BAD_REPLICATION_FACTOR, f"replication_factor={factor} is outside 1 to {MAX_REPLICAS}")
    policy = stream.settings.placement
    if policy.strategy is not Strategy.STANDARD:
        what = "names its brokers" if policy.brokers else f"has as many replicas as {policy.stream} allows"
        raise TidelogError(
            Code.BAD_CONFIG,
            f"stream {stream.name} has placement={policy}, which {what}; let it be standard first (`tidelog stream"
            f" alter {stream.name} --config placement=standard`), alter the replication factor, and set the placement"
            " that fits it",
        )
    StreamConfig.from_strings(stream.config).check(factor)


# Keeps R91.
def follow(ledger: Ledger, names: Iterable[StreamName]) -> Steps[list[PartitionKey]]:
    """Partitions of these streams have got other replicas: those of their settings that follow from the number of
    replicas are derived anew, if the last partition has them now. Returns the partitions that have changed."""
    changed: list[PartitionKey] = []
    for name in names:
        stream = ledger.contents.streams.get(name)
        if stream is None or not stream.is_growing:
            continue
        copies = stream.replication_factor
        for partition in stream.partitions.values():
            yield 1
            copies = min(copies, partition.copies)
        if copies != stream.copies:
            changed += yield from _put(ledger, replace(ledger.own(name), copies=copies), {})
    return changed


def _put(ledger: Ledger, stream: Stream, begun: Mapping[int, Partition]) -> Steps[list[PartitionKey]]:
    ledger.contents.streams[stream.name] = stream
    keys = []
    for number in sorted(stream.partitions):
        yield PARTITION
        key = stream.key(number)
        keys.append(key)
        # Also where only the settings changed: a replica that sees the new epoch has seen the settings.
        ledger.store(key, election.with_min_isr(begun.get(number, stream.partitions[number]), stream.min_isr))
    return keys
