"""Commands that change the number of partitions of a stream in use (R58 to R60).

    Prepare    a marker (`Stream.repartition`) is set, and the partitions that are missing are made; keys stay
    Cutover    one entry begins the layout: version, count, adoption generation, and the partitions that leave drain
    Report     by each leader of a partition with earlier records: where the layout before ends there
    Finish     when all have reported: DRAINING becomes RETIRED, and the marker goes
    Cancel     before the cutover: the marker goes, and the partitions that were made for it
    Remove     a RETIRED partition without records goes, when its leader has reported it

A RETIRED partition whose number the new layout has again is used again as it is: its log goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from metadata.cluster.model import Changes, Outcome, Partition, Repartition, RepartitionPhase, Stream
from metadata.cluster.references import key_of
from metadata.commands import replication_factor
from metadata.commands.ledger import PARTITION, Ledger
from metadata.commands.stream_commands import check_assignments, partitions_of, stream_of
from wire.errors import Code, TidelogError
from wire.layouts import MAX_LAYOUTS, NOT_REPORTED, Layout, check_partition_count
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps
from wire.types import KEY_ORDER, BrokerId, Incarnation, PartitionKey, PartitionState, StreamName


def prepare(ledger: Ledger, command: pb.PrepareRepartition) -> Steps[Outcome]:
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    wrong = why_not_repartition(stream, command.partitions)
    if wrong is not None:
        return ledger.refuse(*wrong)
    if command.expected_version != stream.partitioning_version:
        return ledger.refuse(
            Code.STALE_EPOCH,
            f"stream {stream.name} is at partitioning version {stream.partitioning_version} by now; look again",
        )
    missing = missing_partitions(stream, command.partitions)
    if len(command.assignments) != len(missing):
        return ledger.refuse(
            Code.STALE_EPOCH, f"stream {stream.name} lacks {len(missing)} partitions by now; look again"
        )
    refused = yield from check_assignments(ledger, command.brokers, command.assignments, stream.replication_factor)
    if refused is not None:
        return refused
    generation = ledger.next_generation()
    made = yield from partitions_of(command.brokers, command.assignments, Incarnation(generation))
    readonly = _is_readonly(stream)
    for number, partition in zip(missing, made, strict=True):
        yield PARTITION
        stream.partitions[number] = replace(partition, readonly=readonly)
        ledger.counts.count_partition(partition, 1)
    marker = Repartition(
        version=stream.partitioning_version + 1,
        partitions=command.partitions,
        phase=RepartitionPhase.PREPARED,
        prepared_generation=generation,
    )
    changed = _put(ledger, stream, repartition=marker)
    return ledger.changed(
        Changes(partitions=tuple(changed.key(number) for number in missing), repartitioned=(stream.name,)),
        value=marker.version,
    )


def _is_readonly(stream: Stream) -> bool:
    """Whether all partitions take no records; new ones do not either then."""
    return all(stream.partitions[number].readonly for number in range(stream.partition_count))


def why_not_repartition(stream: Stream, partitions: int) -> tuple[Code, str] | None:
    """Returns the refusal of a repartition to so many partitions; None where it can begin."""
    try:
        check_partition_count(partitions)
    except TidelogError as error:
        return error.code, error.message
    if stream.repartition is not None:
        sentence = (
            f"stream {stream.name} is being repartitioned to {stream.repartition.partitions} partitions already; wait"
            f" until that is finished: `tidelog stream repartition watch {stream.name}` shows how far it is"
        )
        return Code.BAD_REQUEST, sentence
    if stream.settings.compact:
        sentence = (
            f"stream {stream.name} is compacted (compact=true): the newest record of a key would stand in one partition"
            " and older ones in another, where compaction does not find them; make a stream with the partitions that"
            " are wanted, copy this one to it, and use that one"
        )
        return Code.BAD_REQUEST, sentence
    if partitions == stream.partition_count:
        return Code.BAD_REQUEST, f"stream {stream.name} has {partitions} partitions already; give another number"
    return None


def missing_partitions(stream: Stream, partitions: int) -> list[int]:
    """Returns the partitions that a layout of so many needs and that do not exist."""
    return [number for number in range(stream.partition_count, partitions) if number not in stream.partitions]


def cancel(ledger: Ledger, command: pb.CancelRepartition) -> Steps[Outcome]:
    found = _under_way(ledger, command)
    if isinstance(found, Outcome):
        return found
    stream, marker = found
    wrong = why_not_cancelled(stream)
    if wrong is not None:
        return ledger.refuse(Code.BAD_REQUEST, wrong)
    made = [number for number in sorted(stream.partitions) if stream.is_made_ready(number)]
    gone = tuple(stream.key(number) for number in made)
    for number in made:
        yield 1
        ledger.counts.count_partition(stream.partitions.pop(number), -1)
    _put(ledger, stream, repartition=None)
    # Keeps R91.
    kept = yield from replication_factor.follow(ledger, [stream.name])
    return ledger.changed(
        Changes(partitions=tuple(kept), gone=gone, repartitioned=(stream.name,)), value=marker.version
    )


def why_not_cancelled(stream: Stream) -> str | None:
    """Returns why the repartition cannot be cancelled; None: it can."""
    marker = stream.repartition
    if marker is None:
        return (
            f"stream {stream.name} is not being repartitioned; to go back to an earlier number of partitions,"
            " repartition it once more"
        )
    if marker.phase is not RepartitionPhase.PREPARED:
        return (
            f"the repartition of stream {stream.name} to {marker.partitions} partitions cannot be cancelled any more:"
            " keys go to the new layout already; wait until it is finished, and repartition it back instead"
        )
    return None


# R58: A layout begins in one entry. Cutover, a compare-and-set on the stream's incarnation and on the version that was
# prepared, sets partitioning version, count, states of all partitions and the adoption generation. The controller
# proposes it when the leader of each concerned partition has answered a probe with the generation of the Prepare and
# each has `min_isr` members in its ISR. A layout follows one whose cutovers are all known. A compacted stream is not
# repartitioned, nor a repartitioned one compacted.
# Hazard: A state with half of a change; keys that go to a partition that cannot be written.
def cut_over(ledger: Ledger, command: pb.Cutover) -> Steps[Outcome]:
    found = _under_way(ledger, command)
    if isinstance(found, Outcome):
        return found
    stream, marker = found
    if marker.phase is not RepartitionPhase.PREPARED:
        return ledger.unchanged(value=marker.version)
    if not stream.layouts[-1].is_reported:
        return ledger.refuse(
            Code.STALE_EPOCH, f"not all partitions of stream {stream.name} have told of the last cutover; look again"
        )
    generation = ledger.next_generation()
    before, count = stream.partition_count, marker.partitions
    layout = Layout(
        version=marker.version, partitions=count, generation=generation, starts=_starts(stream, before, count)
    )
    readonly = _is_readonly(stream)
    for number, partition in sorted(stream.partitions.items()):
        yield PARTITION
        changed_partition = partition
        if number < count and partition.state is PartitionState.RETIRED:
            changed_partition = replace(partition, state=PartitionState.ACTIVE, readonly=readonly)
        elif number >= count and partition.state is PartitionState.ACTIVE:
            changed_partition = replace(partition, state=PartitionState.DRAINING)
        # Also an unchanged partition: a replica that sees the new partition epoch has seen the cutover.
        ledger.store(stream.key(number), changed_partition)
    changed = _put(
        ledger,
        stream,
        partitioning_version=marker.version,
        layouts=(*stream.layouts, layout)[-MAX_LAYOUTS:],
        repartition=replace(marker, phase=RepartitionPhase.CUTOVER, adoption_generation=generation),
    )
    keys = tuple(changed.key(number) for number in sorted(changed.partitions))
    return ledger.changed(Changes(partitions=keys, repartitioned=(stream.name,)), value=marker.version)


def _starts(stream: Stream, before: int, count: int) -> tuple[int, ...]:
    """The starts of a layout of `count` partitions that follows one of `before`: each partition of that one, and each
    that is used again, has to report."""
    starts = [NOT_REPORTED] * before
    for number in range(before, count):
        used_again = stream.partitions[number].state is PartitionState.RETIRED
        starts.append(NOT_REPORTED if used_again else 0)
    while starts[-1] != NOT_REPORTED:
        starts.pop()
    return tuple(starts)


def report_cutover(ledger: Ledger, command: pb.ReportCutover) -> Steps[Outcome]:
    """Each item is decided on its own. A repeated or late one is refused and changes nothing."""
    codes: list[Code | None] = []
    told: dict[StreamName, dict[int, int]] = {}
    for item in command.items:
        yield PARTITION
        partition = ledger.partition(key_of(item.partition))
        if partition is None:
            codes.append(Code.UNKNOWN_STREAM)
            continue
        name, number = StreamName(item.partition.stream), item.partition.partition
        code = _why_not_reported(ledger.contents.streams[name], partition, item)
        if code is None and number in told.get(name, ()):
            code = Code.STALE_PARTITIONING
        codes.append(code)
        if code is None:
            told.setdefault(name, {})[number] = item.end_offset
    if not told:
        return ledger.unchanged(items=tuple(codes))
    keys: list[PartitionKey] = []
    for name, ends in sorted(told.items()):
        keys += yield from _tell(ledger, name, ends)
    return ledger.changed(Changes(partitions=tuple(keys), repartitioned=tuple(sorted(told))), items=tuple(codes))


def _tell(ledger: Ledger, name: StreamName, ends: Mapping[int, int]) -> Steps[list[PartitionKey]]:
    """Stores where the newest layout starts in these partitions. Returns the partitions whose views changed, sorted."""
    stream = ledger.own(name)
    layout = stream.layouts[-1]
    starts = [*layout.starts]
    for number, end in ends.items():
        starts[number] = end
    changed = _put(ledger, stream, layouts=(*stream.layouts[:-1], replace(layout, starts=tuple(starts))))
    # The leader with the same number modulo the count listens in the place of a partition that is left out.
    seen = {*ends, *(number % layout.partitions for number in ends)}
    for number in stream.partitions:
        yield 1
        if stream.awaits_sources(number) != changed.awaits_sources(number):
            seen.add(number)
    keys = []
    for number in sorted(seen):
        yield PARTITION
        keys.append(changed.key(number))
        ledger.store(keys[-1], changed.partitions[number])
    return keys


# R59: The leader of the present LeaderEpoch reports where the old layout ends in its partition, once, and for the
# newest version; any other report is refused and changes nothing. After an unclean election a partition that had
# reported has to report again. `awaits_sources` of a view says that not all partitions from which keys come have
# reported.
# Hazard: A cutover that is not the end of the layout: readers wait for ever, or read the records of a key in another
# order than they were acknowledged in.
def _why_not_reported(stream: Stream, partition: Partition, item: pb.CutoverReport) -> Code | None:
    if partition.leader != BrokerId(item.leader) or item.leader_epoch != partition.leader_epoch:
        return Code.FENCED_LEADER_EPOCH
    if (
        item.version != stream.partitioning_version
        or stream.layouts[-1].start(item.partition.partition) != NOT_REPORTED
    ):
        return Code.STALE_PARTITIONING
    return None if item.end_offset >= 0 else Code.BAD_REQUEST


# Keeps R59.
def forget_reports(ledger: Ledger, key: PartitionKey) -> Steps[list[PartitionKey]]:
    """The partition's log may end below the reported cutover, for an operator has let a replica lead that lacks
    committed records: its new leader has to report again. Returns the partitions whose views changed, sorted."""
    stream = ledger.own(key.stream)
    if _last_start(stream, key.partition) <= 0:  # no log ends below 0
        return []
    *before, newest = stream.layouts
    # A partition may be retired since an earlier layout. The starts of the newest one are extended up to it.
    others = (_last_start(stream, number) for number in range(len(newest.starts), key.partition + 1))
    _put(ledger, stream, layouts=(*before, replace(newest, starts=(*newest.starts, *others))))
    return (yield from _tell(ledger, key.stream, {key.partition: NOT_REPORTED}))


def _last_start(stream: Stream, number: int) -> int:
    """Returns where the newest layout begins in this incarnation of the partition, or the last one with it ended."""
    partition = stream.partitions.get(number)
    for layout in reversed(stream.layouts):
        if partition is None or layout.generation < partition.incarnation:
            break
        if number < max(layout.partitions, len(layout.starts)):
            return layout.start(number)
    return 0


# R60: A repartition is over when all partitions have reported, and clients know: when the smallest routing generation
# that clients of live brokers report is at or above the adoption generation, or after
# `repartition_adoption_timeout_s`. Nothing that is written depends on it (R61). A RETIRED partition goes when its
# leader reports an empty log, with `min_isr` members in the ISR, none eligible, and every member fetched to that end,
# unless a repartition is under way.
# Hazard: A repartition that never ends; readers without a cutover.
def finish(ledger: Ledger, command: pb.FinishRepartition) -> Steps[Outcome]:
    found = _under_way(ledger, command)
    if isinstance(found, Outcome):
        return found
    stream, marker = found
    if marker.phase is not RepartitionPhase.CUTOVER or not stream.layouts[-1].is_reported:
        return ledger.refuse(
            Code.STALE_EPOCH, f"not all partitions of stream {stream.name} have told of the cutover; look again"
        )
    retired = [
        stream.key(number)
        for number, partition in sorted(stream.partitions.items())
        if partition.state is PartitionState.DRAINING
    ]
    for key in retired:
        yield PARTITION
        ledger.store(key, replace(stream.partitions[key.partition], state=PartitionState.RETIRED))
    _put(ledger, stream, repartition=None)
    return ledger.changed(Changes(partitions=tuple(retired), repartitioned=(stream.name,)), value=marker.version)


def remove_retired(ledger: Ledger, command: pb.RemoveRetired) -> Steps[Outcome]:
    """Each item is decided on its own. While a repartition is under way no partition goes that it may use again."""
    codes: list[Code | None] = []
    gone: list[PartitionKey] = []
    for item in command.items:
        yield PARTITION
        key = key_of(item.partition)
        partition = ledger.partition(key)
        if partition is None:
            codes.append(Code.UNKNOWN_STREAM)
        elif partition.leader != BrokerId(item.leader) or item.leader_epoch != partition.leader_epoch:
            codes.append(Code.FENCED_LEADER_EPOCH)
        elif item.expected_epoch != partition.epoch:
            codes.append(Code.STALE_EPOCH)
        elif not _may_go(ledger.streams[key.stream], key.partition):
            codes.append(Code.BAD_REQUEST)
        else:
            codes.append(None)
            gone.append(key)
            del ledger.own(key.stream).partitions[key.partition]
            ledger.counts.count_partition(partition, -1)
    if not gone:
        return ledger.unchanged(items=tuple(codes))
    names = tuple(sorted({key.stream for key in gone}))
    for name in names:
        _put(ledger, ledger.contents.streams[name])
    # Keeps R91.
    kept = tuple((yield from replication_factor.follow(ledger, names)))
    changes = Changes(partitions=kept, gone=tuple(sorted(gone, key=KEY_ORDER)), repartitioned=names)
    return ledger.changed(changes, items=tuple(codes))


# Keeps R60.
def _may_go(stream: Stream, number: int) -> bool:
    """Whether the partition can be removed when it has no records. One that has to report a cutover stays until then:
    nobody else could report it."""
    is_retired = stream.partitions[number].state is PartitionState.RETIRED
    return is_retired and stream.repartition is None and stream.layouts[-1].start(number) != NOT_REPORTED


def _under_way(
    ledger: Ledger, command: pb.CancelRepartition | pb.Cutover | pb.FinishRepartition
) -> tuple[Stream, Repartition] | Outcome:
    """Returns the stream, and its repartition of that version; or the refusal of the command."""
    stream = stream_of(ledger, command)
    if isinstance(stream, Outcome):
        return stream
    marker = stream.repartition
    if marker is None or marker.version != command.version:
        return ledger.refuse(
            Code.STALE_EPOCH,
            f"no repartition of stream {stream.name} to version {command.version} is under way; look again",
        )
    return stream, marker


def _put(ledger: Ledger, stream: Stream, **fields: object) -> Stream:
    """Puts the stream with new values of these fields in the old one's place, and returns it."""
    changed = replace(stream, routing_generation=ledger.next_generation(), **fields)  # type: ignore[arg-type]
    ledger.contents.streams[stream.name] = changed
    return changed
