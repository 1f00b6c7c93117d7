"""The cluster state as bytes and back, in turns (`wire.turns`). Equal states give equal bytes: everything is written in
sorted order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

from google.protobuf.message import DecodeError

from metadata.cluster.model import (
    Broker,
    LostDecisions,
    Outcome,
    Partition,
    Reassignment,
    Repartition,
    RepartitionPhase,
    Returned,
    Stream,
    Withdrawn,
)
from wire.errors import Code, CorruptData, TidelogError
from wire.layouts import Layout
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps, pieces
from wire.types import (
    BrokerId,
    Generation,
    Incarnation,
    LeaderEpoch,
    LogEnd,
    Offset,
    PartitionEpoch,
    PartitionState,
    StreamName,
)

VERSION = 1

PIECE: Final = 50
"""Partitions that are handled before `Steps` yield."""
LOOKS_OF_PARTITION: Final = 3
LOOKS_OF_STREAM: Final = 10

_STATES = (PartitionState.ACTIVE, PartitionState.DRAINING, PartitionState.RETIRED)
_PHASES = (RepartitionPhase.PREPARED, RepartitionPhase.CUTOVER)


@dataclass(slots=True, kw_only=True)
class Contents:
    """All parts of the cluster state."""

    generation: Generation
    cluster_id: str
    controller_epoch: int
    controller: BrokerId | None
    controller_life_id: str
    next_producer_id: int
    cluster_config: dict[str, str]
    brokers: dict[BrokerId, Broker]
    streams: dict[StreamName, Stream]
    clients: dict[str, dict[int, Outcome]]
    """Recorded outcomes by sequence; the client without a command for longest first."""
    unclean_elections: int
    """Number of unclean elections, since the cluster began."""
    rules: int
    """See `metadata.cluster.command_rules`."""
    lost: tuple[LostDecisions, ...]
    """One entry for each time that the cluster began anew (`metadata.cluster.cluster_recovery`)."""

    @classmethod
    def empty(cls) -> Contents:
        return cls(
            generation=Generation(0),
            cluster_id="",
            controller_epoch=0,
            controller=None,
            controller_life_id="",
            next_producer_id=1,
            cluster_config={},
            brokers={},
            streams={},
            clients={},
            unclean_elections=0,
            rules=0,
            lost=(),
        )


def encoding(contents: Contents) -> Steps[bytes]:
    """Returns the bytes of a state that does not change meanwhile."""
    found: set[BrokerId] = set()
    for stream in contents.streams.values():
        yield 1
        for part in pieces(stream.partitions.values(), PIECE):
            yield len(part)
            found.update(chain.from_iterable(partition.replicas for partition in part))
            found.update(chain.from_iterable(p.reassignment.target for p in part if p.reassignment is not None))
    names = sorted(found)
    place = {name: index for index, name in enumerate(names)}
    snapshot = pb.Snapshot(
        version=VERSION,
        generation=contents.generation,
        cluster_id=contents.cluster_id,
        controller_epoch=contents.controller_epoch,
        controller=contents.controller or "",
        controller_life_id=contents.controller_life_id,
        next_producer_id=contents.next_producer_id,
        cluster_config=contents.cluster_config,
        brokers=[
            pb.BrokerState(
                id=broker.id,
                life_id=broker.life_id,
                incarnation=broker.incarnation,
                alive=broker.alive,
                raft_address=broker.raft_address,
                earlier_lives=broker.earlier_lives,
                zone=broker.zone,
                tags=broker.tags,
                draining=broker.draining,
            )
            for _, broker in sorted(contents.brokers.items())
        ],
        names=names,
        unclean_elections=contents.unclean_elections,
        rules=contents.rules,
        lost=[pb.Generations(first=each.first, last=each.last) for each in contents.lost],
    )
    for _, stream in sorted(contents.streams.items()):
        yield from _stream_to_pb(stream, place, snapshot.streams.add())
    for client, outcomes in contents.clients.items():
        yield len(outcomes)
        recorded = [
            pb.RecordedOutcome(
                sequence=sequence,
                code=outcome.code.name if outcome.code else "",
                message=outcome.message,
                value=outcome.value,
            )
            for sequence, outcome in sorted(outcomes.items())
        ]
        snapshot.clients.add(client=client, outcomes=recorded)
    return snapshot.SerializeToString(deterministic=True)


def decoding(data: bytes) -> Steps[Contents]:
    """Raises CorruptData when the bytes are not a snapshot that this version can read."""
    try:
        snapshot = pb.Snapshot.FromString(data)
    except DecodeError as error:
        raise CorruptData(f"metadata snapshot of {len(data)} bytes: {error}") from error
    if snapshot.version != VERSION:
        raise CorruptData(
            f"metadata snapshot of version {snapshot.version}, this broker reads version {VERSION}; update the broker"
        )
    try:
        return (yield from _contents_from_pb(snapshot))
    except (IndexError, KeyError, TidelogError) as error:
        raise CorruptData(f"metadata snapshot of generation {snapshot.generation}: {error!r}") from error


def _contents_from_pb(snapshot: pb.Snapshot) -> Steps[Contents]:
    names = [BrokerId(name) for name in snapshot.names]
    streams: dict[StreamName, Stream] = {}
    for stream in snapshot.streams:
        streams[StreamName(stream.name)] = yield from _stream_from_pb(stream, names)
    clients: dict[str, dict[int, Outcome]] = {}
    for client in snapshot.clients:
        yield len(client.outcomes)
        clients[client.client] = {
            recorded.sequence: Outcome(
                code=Code[recorded.code] if recorded.code else None,
                message=recorded.message,
                value=recorded.value,
            )
            for recorded in client.outcomes
        }
    return Contents(
        generation=Generation(snapshot.generation),
        cluster_id=snapshot.cluster_id,
        controller_epoch=snapshot.controller_epoch,
        controller=BrokerId(snapshot.controller) if snapshot.controller else None,
        controller_life_id=snapshot.controller_life_id,
        next_producer_id=snapshot.next_producer_id,
        cluster_config=dict(sorted(snapshot.cluster_config.items())),
        brokers={
            BrokerId(broker.id): Broker(
                id=BrokerId(broker.id),
                life_id=broker.life_id,
                incarnation=Incarnation(broker.incarnation),
                alive=broker.alive,
                raft_address=broker.raft_address,
                earlier_lives=tuple(broker.earlier_lives),
                zone=broker.zone,
                tags=tuple(broker.tags),
                draining=broker.draining,
            )
            for broker in snapshot.brokers
        },
        streams=streams,
        clients=clients,
        unclean_elections=snapshot.unclean_elections,
        rules=snapshot.rules,
        lost=tuple(LostDecisions(Generation(each.first), Generation(each.last)) for each in snapshot.lost),
    )


def _stream_to_pb(stream: Stream, place: Mapping[BrokerId, int], written: pb.StreamState) -> Steps[None]:
    def places(brokers: Iterable[BrokerId]) -> list[int]:
        return [place[broker] for broker in brokers]

    yield LOOKS_OF_STREAM
    head = pb.StreamState(
        name=stream.name,
        subject=stream.subject,
        incarnation=stream.incarnation,
        kind=stream.kind,
        config=stream.config,
        replication_factor=stream.replication_factor,
        partitioner=stream.partitioner,
        partitioning_version=stream.partitioning_version,
        routing_generation=stream.routing_generation,
        layouts=[
            pb.Layout(
                version=layout.version,
                partitions=layout.partitions,
                starts=layout.starts,
                generation=layout.generation,
            )
            for layout in stream.layouts
        ],
        repartition=None if stream.repartition is None else _repartition_to_pb(stream.repartition),
        copies=stream.copies if stream.copies != stream.replication_factor else 0,
    )
    written.MergeFrom(head)
    for part in pieces(sorted(stream.partitions.items()), PIECE):
        yield LOOKS_OF_PARTITION * len(part)
        for number, partition in part:
            written.partitions.add(
                partition=number,
                incarnation=partition.incarnation,
                state=_STATES.index(partition.state),
                replicas=places(partition.replicas),
                leader=0 if partition.leader is None else place[partition.leader] + 1,
                isr=places(partition.isr),
                eligible=places(partition.eligible),
                withdrawn=[
                    pb.Withdrawn(
                        replica=place[entry.replica],
                        reason=entry.reason,
                        sound_incarnation=entry.sound_incarnation,
                        sound_life=entry.sound_life,
                    )
                    for entry in partition.withdrawn
                ],
                epoch=partition.epoch,
                leader_epoch=partition.leader_epoch,
                paused=partition.paused,
                resume_all=partition.resume_all,
                readonly=partition.readonly,
                purged_end=partition.purged_end,
                unclean_epoch=partition.unclean_epoch,
                loss_epoch=partition.loss_epoch,
                returned=[
                    pb.Returned(
                        replica=place[entry.replica],
                        incarnation=entry.incarnation,
                        leader_epoch=entry.log.leader_epoch,
                        end=entry.log.offset,
                    )
                    for entry in partition.returned
                ],
                reassignment=None
                if (moving := partition.reassignment) is None
                else pb.Reassignment(
                    target=places(moving.target),
                    original=places(moving.original),
                    begun=moving.begun,
                    is_started=moving.is_started,
                    is_cancelled=moving.is_cancelled,
                ),
            )


def _repartition_to_pb(repartition: Repartition) -> pb.Repartition:
    return pb.Repartition(
        version=repartition.version,
        partitions=repartition.partitions,
        phase=_PHASES.index(repartition.phase),
        prepared_generation=repartition.prepared_generation,
        adoption_generation=repartition.adoption_generation,
    )


def _stream_from_pb(stream: pb.StreamState, names: list[BrokerId]) -> Steps[Stream]:
    def brokers(places: Iterable[int]) -> tuple[BrokerId, ...]:
        return tuple(names[index] for index in places)

    yield LOOKS_OF_STREAM
    partitions: dict[int, Partition] = {}
    for part in pieces(stream.partitions, PIECE):
        yield LOOKS_OF_PARTITION * len(part)
        for record in part:
            partitions[record.partition] = Partition(
                incarnation=Incarnation(record.incarnation),
                state=_STATES[record.state],
                replicas=brokers(record.replicas),
                leader=names[record.leader - 1] if record.leader else None,
                isr=brokers(record.isr),
                eligible=brokers(record.eligible),
                withdrawn=tuple(
                    Withdrawn(
                        names[entry.replica], entry.reason, Incarnation(entry.sound_incarnation), entry.sound_life
                    )
                    for entry in record.withdrawn
                ),
                epoch=PartitionEpoch(record.epoch),
                leader_epoch=LeaderEpoch(record.leader_epoch),
                paused=record.paused,
                resume_all=record.resume_all,
                readonly=record.readonly,
                purged_end=Offset(record.purged_end),
                unclean_epoch=LeaderEpoch(record.unclean_epoch),
                loss_epoch=LeaderEpoch(max(record.loss_epoch, record.unclean_epoch)),
                returned=tuple(
                    Returned(
                        names[entry.replica],
                        Incarnation(entry.incarnation),
                        LogEnd(LeaderEpoch(entry.leader_epoch), Offset(entry.end)),
                    )
                    for entry in record.returned
                ),
                reassignment=Reassignment(
                    target=brokers(record.reassignment.target),
                    original=brokers(record.reassignment.original),
                    begun=Generation(record.reassignment.begun),
                    is_started=record.reassignment.is_started,
                    is_cancelled=record.reassignment.is_cancelled,
                )
                if record.HasField("reassignment")
                else None,
            )
    return Stream(
        name=StreamName(stream.name),
        subject=stream.subject,
        incarnation=Incarnation(stream.incarnation),
        kind=stream.kind,
        config=dict(sorted(stream.config.items())),
        replication_factor=stream.replication_factor,
        copies=stream.copies,
        partitioner=stream.partitioner,
        partitioning_version=stream.partitioning_version,
        routing_generation=Generation(stream.routing_generation or stream.incarnation),
        layouts=tuple(
            Layout(
                version=layout.version,
                partitions=layout.partitions,
                starts=tuple(layout.starts),
                generation=layout.generation,
            )
            for layout in stream.layouts
        ),
        partitions=partitions,
        repartition=_repartition_from_pb(stream.repartition) if stream.HasField("repartition") else None,
    )


def _repartition_from_pb(repartition: pb.Repartition) -> Repartition:
    return Repartition(
        version=repartition.version,
        partitions=repartition.partitions,
        phase=_PHASES[repartition.phase],
        prepared_generation=Generation(repartition.prepared_generation),
        adoption_generation=Generation(repartition.adoption_generation),
    )
