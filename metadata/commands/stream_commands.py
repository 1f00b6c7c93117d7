"""Commands about streams and the settings that new streams get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from metadata.cluster import election, stream_settings
from metadata.cluster.model import Changes, Outcome, Partition, Stream
from metadata.commands.ledger import PARTITION, Ledger
from wire.durability import MAX_REPLICAS
from wire.errors import Code, TidelogError
from wire.layouts import DEFAULT_PARTITIONER, Layout, check_partition_count
from wire.protobuf import metadata_pb2 as pb
from wire.stream_config import StreamConfig
from wire.turns import Steps
from wire.types import BrokerId, Incarnation, LeaderEpoch, Offset, PartitionEpoch, PartitionKey, StreamName

OfStream: TypeAlias = (
    pb.AlterStream
    | pb.AlterReplicationFactor
    | pb.SetReadonly
    | pb.SetPaused
    | pb.DeleteRecords
    | pb.DeleteStream
    | pb.PrepareRepartition
    | pb.CancelRepartition
    | pb.Cutover
    | pb.FinishRepartition
)
"""A controller's command about one incarnation of a stream."""

DEFAULT_KIND = "log"


def create_stream(ledger: Ledger, command: pb.CreateStream) -> Steps[Outcome]:
    refused = ledger.not_controller(command.controller_epoch) or (yield from _check_new_stream(ledger, command))
    if refused is not None:
        return refused
    incarnation = Incarnation(ledger.next_generation())
    made = yield from partitions_of(command.brokers, command.assignments, incarnation)
    partitions = dict(enumerate(made))
    try:
        stream = Stream(
            name=StreamName(command.name),
            subject=command.subject,
            incarnation=incarnation,
            kind=command.kind or DEFAULT_KIND,
            config=stream_settings.with_defaults(command.config, ledger.defaults),
            replication_factor=command.replication_factor,
            partitioner=command.partitioner or DEFAULT_PARTITIONER,
            partitioning_version=1,
            routing_generation=ledger.next_generation(),
            layouts=(Layout(version=1, partitions=len(partitions)),),
            partitions=partitions,
        )
        StreamConfig.from_strings(stream.config).check(stream.replication_factor)
    except TidelogError as error:
        return ledger.refuse(error.code, error.message)
    ledger.contents.streams[stream.name] = stream
    ledger.counts.add_subject(stream.subject, stream.name)
    keys = []
    for number, partition in enumerate(made):
        yield 1
        ledger.counts.count_partition(partition, 1)
        keys.append(stream.key(number))
    return ledger.changed(Changes(partitions=tuple(keys), streams=True), value=incarnation)


def partitions_of(
    brokers: Sequence[str], assignments: Iterable[pb.Assignment], incarnation: Incarnation
) -> Steps[list[Partition]]:
    """Makes partitions of checked assignments."""
    names = [BrokerId(name) for name in brokers]
    made = []
    for assignment in assignments:
        yield PARTITION
        replicas = tuple(names[index] for index in assignment.replicas)
        made.append(
            Partition(
                incarnation=incarnation,
                replicas=replicas,
                leader=names[assignment.leader],
                isr=replicas,
                epoch=PartitionEpoch(1),
                leader_epoch=LeaderEpoch(1),
            )
        )
    return made


def _check_new_stream(ledger: Ledger, command: pb.CreateStream) -> Steps[Outcome | None]:
    if not command.name or not command.subject:
        return ledger.refuse(Code.BAD_NAME, "a stream needs a name and a subject")
    if StreamName(command.name) in ledger.contents.streams:
        return ledger.refuse(
            Code.STREAM_EXISTS, f"stream {command.name} exists; choose another name or delete it first"
        )
    taken_by = ledger.counts.taken_by(command.subject)
    if taken_by is not None:
        other = ledger.contents.streams[taken_by]
        return ledger.refuse(
            Code.SUBJECT_TAKEN,
            f"subject {command.subject} overlaps {other.subject} of stream {other.name}; choose another one",
        )
    try:
        check_partition_count(len(command.assignments))
    except TidelogError as error:
        return ledger.refuse(error.code, error.message)
    factor = command.replication_factor
    if not 1 <= factor <= MAX_REPLICAS:
        return ledger.refuse(Code.BAD_REPLICATION_FACTOR, f"replication factor {factor} is outside 1 to {MAX_REPLICAS}")
    return (yield from check_assignments(ledger, command.brokers, command.assignments, factor))


def check_assignments(
    ledger: Ledger, brokers: Sequence[str], assignments: Sequence[pb.Assignment], factor: int
) -> Steps[Outcome | None]:
    """Returns the refusal of an impossible placement, or of one with a dead broker; None: it is fine."""
    for name in brokers:
        if not ledger.is_alive(BrokerId(name)):
            return ledger.refuse(Code.UNAVAILABLE, f"broker {name} is not alive any more; try again")
    if len({*brokers}) != len(brokers):
        return ledger.refuse(Code.BAD_REQUEST, "a placement names a broker twice")
    for number, assignment in enumerate(assignments):
        yield 1
        replicas = tuple(assignment.replicas)
        if (
            len(replicas) != factor
            or len({*replicas}) != factor
            or max(replicas) >= len(brokers)
            or assignment.leader not in replicas
        ):
            return ledger.refuse(Code.BAD_REQUEST, f"partition {number} has an impossible placement")
    return None


def alter_stream(ledger: Ledger, command: pb.AlterStream) -> Steps[Outcome]:
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    try:
        config = stream_settings.altered(
            stream.config,
            changes=command.set,
            unset=command.unset,
            defaults=ledger.defaults,
            replication_factor=stream.replication_factor,
        )
    except TidelogError as error:
        return ledger.refuse(error.code, error.message)
    if config == stream.config:
        return ledger.unchanged()
    wrong = why_not_compacted(stream, config)
    wrong = wrong or why_not_min_isr(stream, config)
    if wrong is not None:
        return ledger.refuse(Code.BAD_CONFIG, wrong)
    changed = ledger.contents.streams[stream.name] = replace(stream, config=config)
    keys = []
    for number in sorted(changed.partitions):
        yield PARTITION
        key = changed.key(number)
        keys.append(key)
        # Also where only the settings changed: a replica that sees the new epoch has seen the settings.
        ledger.store(key, election.with_min_isr(changed.partitions[number], changed.min_isr))
    return ledger.changed(Changes(partitions=tuple(keys)))


def why_not_compacted(stream: Stream, config: Mapping[str, str]) -> str | None:
    """Returns the refusal of settings that turn compaction on where it cannot be; None: they are allowed."""
    if stream.settings.compact or not StreamConfig.from_strings(config).compact:
        return None
    if len(stream.layouts) == 1 and stream.repartition is None:
        return None
    return (
        f"stream {stream.name} was repartitioned, and is not compacted: records of one key stand in several partitions,"
        " and compaction looks into one; make another stream with compact=true, and copy this one to it"
    )


# Keeps R91.
def why_not_min_isr(stream: Stream, config: Mapping[str, str]) -> str | None:
    """Returns the refusal of settings that need more replicas than each partition has; None: they are allowed."""
    wanted = StreamConfig.from_strings(config).min_isr
    if wanted <= stream.copies:
        return None
    return (
        f"min_isr={wanted} is above the {stream.copies} replicas that each partition of stream {stream.name} has by"
        " now; wait until `tidelog cluster moves` shows none of it, and set it then"
    )


# R43: A read-only partition takes no records. `readonly` is metadata of the partition, and its change raises the
# partition epoch. A leader whose view says so refuses publishes of every kind before it appends (READONLY),
# repetitions too; what was appended or taken into the open batch before commits and is acknowledged. Followers,
# elections, retention, compaction and consumers are not concerned.
# Hazard: Records that are stored after an operator was told that none are.
# Not covered: A deposed leader that knows neither of its end nor of the partition being writable again may say
# READONLY, inside its lease, of a record that its successor stores.
def set_readonly(ledger: Ledger, command: pb.SetReadonly) -> Steps[Outcome]:
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    wanted = sorted({*command.partitions}) or sorted(stream.partitions)
    changes = {number: {"readonly": command.readonly} for number in wanted}
    return (yield from _change_partitions(ledger, stream, changes))


def set_paused(ledger: Ledger, command: pb.SetPaused) -> Steps[Outcome]:
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    wanted = sorted({*command.partitions}) or sorted(stream.partitions)
    fields = {"paused": command.paused, "resume_all": command.paused and command.resume_all}
    return (yield from _change_partitions(ledger, stream, dict.fromkeys(wanted, fields)))


# R44: `purged_end` is metadata of the partition, and consumers are served nothing below it. DeleteRecords raises it,
# never lowers it, to an end that a leader told as committed, and compares that leader's LeaderEpoch. Whole segments
# below it and the replica's own HW go with retention. A leader whose log ends below `purged_end` begins, empty, at
# `purged_end` before its LeaderEpoch begins.
# Hazard: Records that come back with a failover, a restart, or a replica that was away; a deletion above the HW.
# Not covered: A broker that the metadata group cannot reach goes on serving consumers that know no newer LeaderEpoch
# than it does.
def delete_records(ledger: Ledger, command: pb.DeleteRecords) -> Steps[Outcome]:
    """A leader of the named LeaderEpoch has reported that all records below each end are committed: another one may
    lead with fewer, after an unclean election. An end at or below the present one changes nothing: the command may be
    repeated, and come after a later one."""
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    ends: dict[int, Offset] = {}
    for item in command.items:
        yield PARTITION
        known = stream.partitions.get(item.partition)
        if known is not None and item.leader_epoch != known.leader_epoch:
            return ledger.refuse(
                Code.FENCED_LEADER_EPOCH,
                f"partition {stream.name}/{item.partition} is at LeaderEpoch {known.leader_epoch} by now; look again",
            )
        before = known.purged_end if known is not None else Offset(0)
        ends[item.partition] = max(ends.get(item.partition, before), Offset(item.end))
    changes = {number: {"purged_end": end} for number, end in sorted(ends.items())}
    return (yield from _change_partitions(ledger, stream, changes))


def _change_partitions(ledger: Ledger, stream: Stream, changes: Mapping[int, Mapping[str, Any]]) -> Steps[Outcome]:
    """`changes`: new values of fields, by partition, in the order of the numbers."""
    unknown = next((number for number in changes if number not in stream.partitions), None)
    if unknown is not None:
        return ledger.refuse(
            Code.BAD_REQUEST, f"stream {stream.name} has partitions {stream.partitions_in_words}, not {unknown}"
        )
    changed: list[PartitionKey] = []
    for number, fields in changes.items():
        yield PARTITION
        before = stream.partitions[number]
        after = replace(before, **fields)
        if after != before:
            ledger.store(stream.key(number), after)
            changed.append(stream.key(number))
    return ledger.changed(Changes(partitions=tuple(changed))) if changed else ledger.unchanged()


def alter_cluster(ledger: Ledger, command: pb.AlterCluster) -> Outcome:
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    try:
        defaults = stream_settings.altered_defaults(ledger.cluster_config, changes=command.set, unset=command.unset)
    except TidelogError as error:
        return ledger.refuse(error.code, error.message)
    if defaults == ledger.cluster_config:
        return ledger.unchanged()
    ledger.contents.cluster_config = defaults
    return ledger.changed()


def delete_stream(ledger: Ledger, command: pb.DeleteStream) -> Steps[Outcome]:
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    if stream.settings.delete_protection:
        return ledger.refuse(
            Code.BAD_REQUEST,
            f"stream {stream.name} has delete_protection=true, so that it is not deleted by mistake;"
            f" `tidelog stream alter {stream.name} --config delete_protection=false` lifts that",
        )
    gone = []
    for number, partition in sorted(stream.partitions.items()):
        yield 1
        gone.append(stream.key(number))
        ledger.counts.count_partition(partition, -1)
    del ledger.contents.streams[stream.name]
    ledger.counts.remove_subject(stream.subject)
    return ledger.changed(Changes(gone=tuple(gone), streams=True))


def stream_of(ledger: Ledger, command: OfStream) -> Stream | Outcome:
    """Returns the command's stream, or the refusal of the command."""
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    stream = ledger.contents.streams.get(StreamName(command.name))
    if stream is None or stream.incarnation != command.incarnation:
        return ledger.refuse(
            Code.UNKNOWN_STREAM, f"stream {command.name} does not exist; `tidelog stream list` shows those that do"
        )
    return ledger.own(stream.name)
