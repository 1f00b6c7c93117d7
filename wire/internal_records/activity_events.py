"""The records of the activity stream: the events of a cluster, as the metadata group applied them.

One record is one event, in JSON. Its position is (`generation`, `index`): the generation of the command that caused it,
and its number among the events of that command. Records are written in the order of their positions, at least once:
after a change of the controller the same ones may come again, and so may older ones, later. A reader that takes only
records above the last position it has taken gets each event once, in order (`EventFilter`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypedDict

CONTROLLER_CHANGED = "controller_changed"
BROKER_JOINED = "broker_joined"
BROKER_DIED = "broker_died"
BROKER_REMOVED = "broker_removed"
STREAM_CREATED = "stream_created"
STREAM_ALTERED = "stream_altered"
STREAM_DELETED = "stream_deleted"
LEADER_CHANGED = "leader_changed"
PARTITION_OFFLINE = "partition_offline"
PARTITION_ONLINE = "partition_online"
ISR_SHRUNK = "isr_shrunk"
ISR_EXPANDED = "isr_expanded"
REPLICA_WITHDRAWN = "replica_withdrawn"
READONLY_SET = "readonly_set"
READONLY_LIFTED = "readonly_lifted"
PAUSED = "paused"
RESUMED = "resumed"
RECORDS_DELETED = "records_deleted"
REPARTITION_PREPARED = "repartition_prepared"
REPARTITION_CANCELLED = "repartition_cancelled"
REPARTITION_CUTOVER = "repartition_cutover"
REPARTITION_FINISHED = "repartition_finished"
REASSIGNMENT_BEGUN = "reassignment_begun"
REASSIGNMENT_STARTED = "reassignment_started"
REASSIGNMENT_COMPLETED = "reassignment_completed"
REASSIGNMENT_CANCELLED = "reassignment_cancelled"
EVENTS_LOST = "events_lost"


class Position(NamedTuple):
    generation: int
    number: int
    """`index` of the event."""


NOWHERE = Position(0, -1)
"""The position before every event."""


class ActivityEvent(TypedDict, total=False):
    """Every event has the first five fields."""

    id: str
    """GENERATION-INDEX."""
    generation: int
    index: int
    time: str | None
    """ISO-8601, when the broker that wrote it applied it; null: before that broker was started."""
    event: str
    merged: bool
    """The broker that wrote it took over a snapshot: there may have been several changes, of which this is the sum."""
    stream: str
    stream_incarnation: int
    partition: int
    partitions: list[int]
    """Partitions that one command changed alike."""
    broker: str
    incarnation: int
    controller: str
    controller_epoch: int
    """The epoch of `controller`."""
    subject: str
    partition_count: int
    """The number of partitions of a new stream; of the layout that a repartition begins."""
    partitioning_version: int
    """The version of that layout."""
    replication_factor: int
    config: dict[str, str]
    """Settings of a new stream, or the changed settings of an altered one; "" where one is unset."""
    before: dict[str, str]
    """The values that the settings of `config` had; "" where they had none."""
    leader: str
    old_leader: str | None
    leader_epoch: int
    unclean: bool
    """An operator let a replica lead that may lack committed records."""
    isr: list[str]
    replicas: list[str]
    """The replicas of a partition that gets others, after the event."""
    target: list[str]
    """The replicas that it is to have."""
    changed: list[str]
    """The members that left the ISR, or joined it."""
    reason: str
    log_start_offset: int
    after: str
    """`events_lost`: the id of the last event before those that were lost; "" where there is none."""


def position_of(event: Mapping[str, Any]) -> Position:
    """Returns NOWHERE for a record that is no event."""
    generation, index = event.get("generation"), event.get("index")
    if type(generation) is int and type(index) is int:
        return Position(generation, index)
    return NOWHERE


class EventFilter:
    """Lets each event pass once, in order."""

    def __init__(self) -> None:
        self._last = NOWHERE

    def takes(self, event: Mapping[str, Any]) -> bool:
        position = position_of(event)
        if position <= self._last:
            return False
        self._last = position
        return True
