"""Repartitions as operators read them: the answers of `wire.operations.partition_operations`."""

from __future__ import annotations

from math import lcm

from metadata.commands.repartition import missing_partitions
from metadata.model import Repartition, RepartitionPhase, Stream
from metadata.repartitioning import Repartitioning, concerned, not_told
from wire.layouts import MAX_LAYOUTS, sources
from wire.operations.partition_operations import (
    MAX_LISTED,
    PartitionSources,
    RepartitionPlan,
    RepartitionState,
    RepartitionStatus,
)


def plan_form(stream: Stream, partitions: int) -> RepartitionPlan:
    """What a repartition to so many partitions does; it may begin, as `why_not_repartition` says."""
    before = stream.partition_count
    made = missing_partitions(stream, partitions)
    used_again = [number for number in range(before, partitions) if number in stream.partitions]
    left = [*range(partitions, before)]
    waits = _waits(before, partitions)
    return {
        "stream": stream.name,
        "partitioning_version": stream.partitioning_version,
        "partitions": before,
        "to_version": stream.partitioning_version + 1,
        "to_partitions": partitions,
        "made": made,
        "used_again": used_again,
        "left": left,
        # A hash has the same remainder by both counts in that many of the values below their least common multiple.
        "moved_keys": 1 - min(before, partitions) / lcm(before, partitions),
        "sources": waits,
        "effects": _effects(left, waits, forgets=len(stream.layouts) >= MAX_LAYOUTS),
    }


def _waits(before: int, after: int) -> list[PartitionSources]:
    waits: list[PartitionSources] = []
    for partition in range(after):
        others = sources(partition, before, after)
        if len(others) == 1 and others[0] == partition:
            continue  # what it has of before is in its own log
        waits.append(
            {
                "partition": partition,
                "waits_for": [other for other in others[: MAX_LISTED + 1] if other != partition][:MAX_LISTED],
            }
        )
        if len(waits) == MAX_LISTED:
            break
    return waits


def _effects(left: list[int], waits: list[PartitionSources], *, forgets: bool) -> list[str]:
    effects = [
        "producers learn of the new layout and go on by themselves; records of one key stay in their order",
        "a transaction that is open at the cutover and goes on writing is aborted, and has to begin again",
    ]
    if waits:
        one = waits[0]
        others = ", ".join(str(number) for number in one["waits_for"][:5])
        more = ", …" if len(one["waits_for"]) > 5 else ""
        effects.append(
            "groups and consumers that read by key get to the new records of a partition when those of its sources are"
            f" finished: a group that is behind in {others}{more} gets the new records of partition"
            f" {one['partition']} later"
        )
    if left:
        effects.append(
            f"{len(left)} {'partition takes' if len(left) == 1 else 'partitions take'} no records any more; such"
            " a partition can be read until retention has removed all its records, and plain publishes to its subject"
            " go to a partition in its place"
        )
    if forgets:
        effects.append(
            f"the stream has {MAX_LAYOUTS} layouts, and its oldest one is forgotten: who reads from before the change"
            " that followed that one no longer gets each key in order there"
        )
    return effects


def state_form(stream: Stream, driver: Repartitioning, now: float) -> RepartitionState | None:
    """None: no repartition is under way. `driver`: of the controller."""
    marker = stream.repartition
    if marker is None:
        return None
    if marker.phase is RepartitionPhase.PREPARED:
        of, waiting = len(concerned(stream, marker)), driver.not_ready(stream)
    else:
        of, waiting = _have_to_tell(stream, marker), not_told(stream)
    return {
        "version": marker.version,
        "partitions": marker.partitions,
        "phase": marker.phase.value,
        "adoption_generation": marker.adoption_generation,
        "done": of - len(waiting),
        "of": of,
        "waiting": waiting[:MAX_LISTED],
        "adopted": driver.adopted(stream.name),
        "done_for_s": driver.told_for_s(stream.name, now),
        "adoption_timeout_s": driver.timeout_s,
    }


def _have_to_tell(stream: Stream, marker: Repartition) -> int:
    """Each partition of the layout before, and each that is used again: they have records of that layout."""
    return sum(
        number in stream.partitions and stream.partitions[number].incarnation < marker.prepared_generation
        for number in range(len(stream.layouts[-1].starts))
    )


def status_form(stream: Stream, driver: Repartitioning, now: float) -> RepartitionStatus:
    return {
        "stream": stream.name,
        "partitioning_version": stream.partitioning_version,
        "partitions": stream.partition_count,
        "repartition": state_form(stream, driver, now),
    }
