"""Events of the cluster: the differences that applied commands make, as events, and those that wait to be written into
the activity stream.

`ActivityWatch` keeps the state as it was before, and compares only the objects that a command changed.
A command may have changed very many partitions, so the comparison can be interrupted at each of them; the state must
stay as it is until then.
All brokers apply the same commands, so each of them makes the same events, with the same positions
(`wire.internal_records.activity_events`). A snapshot takes the place of commands: its differences are one set of events
that are `merged`.

`ActivityLog` keeps the newest MAX_EVENTS of a broker. Only the controller writes them; a new one asks for the last
event that is written, and goes on behind it:

    every broker    add ──> kept, the oldest go when there are too many
    controller      goes_on(behind the last one written) ──> take ──append──> finished
                                                              ^                  │ failed: taken again
                                                              └──────────────────┘

Where events were dropped before they were written, the next ones begin with `events_lost`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any, Final

from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Broker, Changes, Partition, Stream
from wire.internal_records import activity_events
from wire.internal_records.activity_events import NOWHERE, ActivityEvent, Position, position_of
from wire.turns import Steps, pieces
from wire.types import BrokerId, PartitionKey, StreamName

MAX_EVENTS: Final = 20_000
"""Limit of the events that a broker keeps. A command may cause more (the death of a broker with very many partitions);
the oldest are lost then."""
MAX_AT_ONCE: Final = 200
"""Limit of the events of one batch."""
MAX_BATCH_BYTES: Final = 128 << 10
"""Limit of the JSON of one batch; a larger event goes alone."""
MAX_REASON: Final = 500
"""Limit of a reason, in characters."""
PIECE: Final = 50
"""Partitions that are taken over before `Steps` yield."""
MAX_NUMBERS: Final = 1000
"""Limit of the partitions that one event names; several events follow each other where there are more."""


class ActivityWatch:
    """Turns changes of the state into events."""

    def __init__(self) -> None:
        self._brokers: dict[BrokerId, Broker] = {}
        self._streams: dict[StreamName, Stream] = {}
        self._partitions: dict[PartitionKey, Partition] = {}
        self._controller_epoch = 0
        self._generation = 0
        self._count = 0
        """Number of events of that generation so far."""

    def begin_at(self, state: Cluster) -> Steps[None]:
        """Takes the present state as known, without events. The state must stay as it is meanwhile."""
        self._brokers = dict(state.brokers)
        self._streams = dict(state.streams)
        self._partitions = {}
        for found in pieces(state.partitions(), PIECE):
            yield len(found)
            self._partitions.update(found)
        self._controller_epoch = state.controller_epoch
        self._generation, self._count = state.generation, 0

    def on_applied(
        self, state: Cluster, changes: Changes, time: str | None, *, merged: bool = False
    ) -> Iterator[ActivityEvent | None]:
        """Yields events. `state`: after the command; `time`: now, as text for the events. None stands for a partition
        that was looked at: the iterator may be left there for a while."""
        if state.generation != self._generation:
            self._generation, self._count = state.generation, 0
        for event in self._differences(state, changes):
            if event is None:
                yield None
                continue
            index = self._count
            self._count += 1
            made: ActivityEvent = {
                "id": f"{state.generation}-{index}", "generation": state.generation, "index": index, "time": time
            }  # fmt: skip
            if merged:
                made["merged"] = True
            made.update(event)
            yield made

    def _differences(self, state: Cluster, changes: Changes) -> Iterator[ActivityEvent | None]:
        if changes.controller and state.controller_epoch != self._controller_epoch:
            self._controller_epoch = state.controller_epoch
            yield {
                "event": activity_events.CONTROLLER_CHANGED,
                "controller": state.controller or "",
                "controller_epoch": state.controller_epoch,
            }
        for broker in changes.brokers:
            yield from self._of_broker(state.brokers.get(broker), self._brokers.get(broker))
            if (known := state.brokers.get(broker)) is not None:
                self._brokers[broker] = known
            else:
                self._brokers.pop(broker, None)
        for stream, gone in groupby(changes.gone, key=lambda key: (key.stream, key.stream_incarnation)):
            for key in gone:
                yield None
                self._partitions.pop(key, None)
            name, incarnation = stream
            left = state.streams.get(name)
            if left is None or left.incarnation != incarnation:  # else only partitions of it are gone
                self._streams.pop(name, None)
                yield {"event": activity_events.STREAM_DELETED, "stream": name, "stream_incarnation": incarnation}
        changed = {name: [*keys] for name, keys in groupby(changes.partitions, key=lambda key: key.stream)}
        for name in sorted({*changed, *changes.repartitioned}):
            yield from self._of_stream(state, name, changed.get(name, []))

    @staticmethod
    def _of_broker(new: Broker | None, old: Broker | None) -> Iterator[ActivityEvent]:
        event = None
        if new is None:
            if old is not None:
                yield {"event": activity_events.BROKER_REMOVED, "broker": old.id, "incarnation": old.incarnation}
            return
        if new.alive and (old is None or not old.alive or old.incarnation != new.incarnation):
            event = activity_events.BROKER_JOINED
        elif not new.alive and (old is None or old.alive):
            event = activity_events.BROKER_DIED
        if event is not None:
            yield {"event": event, "broker": new.id, "incarnation": new.incarnation}

    def _of_stream(self, state: Cluster, name: StreamName, keys: list[PartitionKey]) -> Iterator[ActivityEvent | None]:
        stream = state.streams.get(name)
        if stream is None:
            return
        old = self._streams.get(name)
        self._streams[name] = stream
        about: ActivityEvent = {"stream": name, "stream_incarnation": stream.incarnation}
        if old is None or old.incarnation != stream.incarnation:
            for key in keys:
                yield None
                self._partitions[key] = stream.partitions[key.partition]
            yield {
                "event": activity_events.STREAM_CREATED,
                **about,
                "subject": stream.subject,
                "partition_count": len(stream.partitions),
                "replication_factor": stream.replication_factor,
                "config": dict(stream.config),
            }
            return
        if old.config != stream.config:
            names = sorted(
                key for key in {**old.config, **stream.config} if old.config.get(key) != stream.config.get(key)
            )
            yield {
                "event": activity_events.STREAM_ALTERED,
                **about,
                "config": {key: stream.config.get(key, "") for key in names},
                "before": {key: old.config.get(key, "") for key in names},
            }
        if old.replication_factor != stream.replication_factor:
            yield {
                "event": activity_events.STREAM_ALTERED,
                **about,
                "replication_factor": stream.replication_factor,
            }
        for step in _of_repartition(stream, old):
            yield {**about, **step}
        together: dict[str, list[int]] = {}
        each: list[ActivityEvent] = []
        for key in keys:
            yield None
            new = stream.partitions[key.partition]
            before = self._partitions.get(key)
            self._partitions[key] = new
            if before is None:
                continue
            each += [{**about, "partition": key.partition, **event} for event in _of_partition(new, before)]
            if new.readonly != before.readonly:
                event = activity_events.READONLY_SET if new.readonly else activity_events.READONLY_LIFTED
                together.setdefault(event, []).append(key.partition)
            if new.paused != before.paused:
                together.setdefault(activity_events.PAUSED if new.paused else activity_events.RESUMED, []).append(
                    key.partition
                )
        for event, numbers in together.items():
            for first in range(0, len(numbers), MAX_NUMBERS):
                yield {**about, "event": event, "partitions": numbers[first : first + MAX_NUMBERS]}
        yield from each


def _of_repartition(new: Stream, old: Stream) -> Iterator[ActivityEvent]:
    marker, before = new.repartition, old.repartition
    if before is not None and (marker is None or marker.version != before.version):
        is_over = new.partitioning_version >= before.version
        yield {
            "event": activity_events.REPARTITION_FINISHED if is_over else activity_events.REPARTITION_CANCELLED,
            "partition_count": before.partitions,
            "partitioning_version": before.version,
        }
    if marker is not None and (before is None or marker.version != before.version):
        yield {
            "event": activity_events.REPARTITION_PREPARED,
            "partition_count": marker.partitions,
            "partitioning_version": marker.version,
        }
    if new.partitioning_version != old.partitioning_version:
        yield {
            "event": activity_events.REPARTITION_CUTOVER,
            "partition_count": new.partition_count,
            "partitioning_version": new.partitioning_version,
        }


def _of_partition(new: Partition, old: Partition) -> Iterator[ActivityEvent]:
    unclean: ActivityEvent = {"unclean": True} if new.unclean_epoch != old.unclean_epoch else {}
    if new.leader is None and old.leader is not None:
        yield {
            "event": activity_events.PARTITION_OFFLINE, "old_leader": old.leader, "leader_epoch": new.leader_epoch
        }  # fmt: skip
    elif new.leader is not None and new.leader_epoch != old.leader_epoch:
        event = activity_events.LEADER_CHANGED if old.leader is not None else activity_events.PARTITION_ONLINE
        yield {
            "event": event,
            "leader": new.leader,
            "old_leader": old.leader,
            "leader_epoch": new.leader_epoch,
            **unclean,
        }
    for event, changed in (
        (activity_events.ISR_SHRUNK, [broker for broker in old.isr if broker not in new.isr]),
        (activity_events.ISR_EXPANDED, [broker for broker in new.isr if broker not in old.isr]),
    ):
        if changed:
            yield {"event": event, "isr": [*new.isr], "changed": [*changed]}
    for entry in new.withdrawn:
        if not old.is_withdrawn(entry.replica):
            yield {
                "event": activity_events.REPLICA_WITHDRAWN,
                "broker": entry.replica,
                "reason": entry.reason[:MAX_REASON],
            }
    if new.purged_end != old.purged_end:
        yield {"event": activity_events.RECORDS_DELETED, "log_start_offset": new.purged_end}
    if new.reassignment != old.reassignment:
        yield from _of_reassignment(new, old)


def _of_reassignment(new: Partition, old: Partition) -> Iterator[ActivityEvent]:
    moving, before = new.reassignment, old.reassignment
    replicas: ActivityEvent = {"replicas": [*new.replicas]}
    if moving is not None and moving.is_cancelled:
        yield {"event": activity_events.REASSIGNMENT_CANCELLED, **replicas, "target": [*moving.target]}
        return
    if moving is not None:
        if before is None or before.begun != moving.begun:
            yield {"event": activity_events.REASSIGNMENT_BEGUN, **replicas, "target": [*moving.target]}
        if moving.is_started:
            yield {"event": activity_events.REASSIGNMENT_STARTED, **replicas, "target": [*moving.target]}
        return
    if before is not None and not before.is_cancelled and new.replicas != before.target:
        yield {"event": activity_events.REASSIGNMENT_CANCELLED, **replicas, "target": [*before.original]}
    yield {"event": activity_events.REASSIGNMENT_COMPLETED, **replicas}


class ActivityLog:
    """The newest events of a broker, and how far they are written."""

    def __init__(self) -> None:
        self._events: deque[ActivityEvent] = deque()
        self._written = NOWHERE
        """Position of the last event that is written."""
        self._dropped = NOWHERE
        """Position of the newest event that was dropped because there were too many."""

    def __len__(self) -> int:
        return len(self._events)

    def add(self, events: Iterable[ActivityEvent]) -> None:
        self._events.extend(event for event in events if position_of(event) > self._written)
        while len(self._events) > MAX_EVENTS:
            self._dropped = position_of(self._events.popleft())

    def goes_on(self, written: Position) -> None:
        """`written`: the position of the last event that is written."""
        self._written = written
        self._forget_written()

    def _forget_written(self) -> None:
        while self._events and position_of(self._events[0]) <= self._written:
            self._events.popleft()

    def take(self, most: int = MAX_AT_ONCE) -> tuple[list[bytes], Position]:
        """Returns the next events as JSON, at most `most` and MAX_BATCH_BYTES but at least one, and the position of the
        last of them. They stay until they are `finished`."""
        values: list[bytes] = []
        position, size = self._written, 0
        for event in self._next(most):
            value = json.dumps(event).encode()
            size += len(value)
            if values and size > MAX_BATCH_BYTES:
                break
            values.append(value)
            position = position_of(event)
        return values, position

    def _next(self, most: int) -> Iterator[Mapping[str, Any]]:
        if self._dropped > self._written:
            generation, index = self._dropped
            lost: ActivityEvent = {
                "id": f"{generation}-{index}",
                "generation": generation,
                "index": index,
                "time": None,
                "event": activity_events.EVENTS_LOST,
                "after": "" if self._written == NOWHERE else "{}-{}".format(*self._written),
            }
            yield lost
        for number, event in enumerate(self._events):
            if number >= most:
                return
            yield event

    def finished(self, position: Position) -> None:
        """All events up to `position` are written."""
        self._written = max(self._written, position)
        self._forget_written()
