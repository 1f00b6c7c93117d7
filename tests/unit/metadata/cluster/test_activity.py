"""Events of the cluster, made of what commands changed, and those that wait to be written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from metadata.cluster import cluster_events
from metadata.cluster.cluster_events import MAX_AT_ONCE, MAX_BATCH_BYTES, ActivityLog, ActivityWatch
from metadata.cluster.model import Outcome
from metadata.commands.cluster_state import ClusterState
from tests.turns import finished
from tests.unit.metadata.cluster_bench import Cluster
from wire.internal_records.activity_events import NOWHERE, ActivityEvent, EventFilter, Position


class Watched(Cluster):
    """A cluster whose events are noted."""

    def __init__(self, *brokers: str) -> None:
        self.watch = ActivityWatch()
        self.events: list[ActivityEvent] = []
        super().__init__(*brokers)

    def apply(self, command: Any) -> Outcome:
        outcome = super().apply(command)
        if outcome.changes:
            self.events += filter(None, self.watch.on_applied(self.state, outcome.changes, "now"))
        return outcome

    def told(self) -> list[dict[str, Any]]:
        """Since the last call, without what all events have."""
        events, self.events = self.events, []
        common = {"id", "generation", "index", "time", "stream_incarnation"}
        return [{key: value for key, value in event.items() if key not in common} for event in events]


def test_brokers_and_controllers() -> None:
    cluster = Watched("a", "b")
    assert cluster.told() == [
        {"event": "controller_changed", "controller": "a", "controller_epoch": 1},
        {"event": "broker_joined", "broker": "a", "incarnation": 2},
        {"event": "broker_joined", "broker": "b", "incarnation": 3},
    ]
    cluster.die("b")
    cluster.register("b", same_life=True)
    cluster.register("b")
    cluster.begin_controller_epoch("b")
    assert cluster.told() == [
        {"event": "broker_died", "broker": "b", "incarnation": 3},
        {"event": "broker_joined", "broker": "b", "incarnation": 5},
        {"event": "broker_joined", "broker": "b", "incarnation": 6},
        {"event": "controller_changed", "controller": "b", "controller_epoch": 2},
    ]
    cluster.die("a")
    cluster.remove("a")
    cluster.register("a")
    assert cluster.told() == [
        {"event": "broker_died", "broker": "a", "incarnation": 2},
        {"event": "broker_removed", "broker": "a", "incarnation": 2},
        {"event": "broker_joined", "broker": "a", "incarnation": 10},
    ]


def test_repartitions() -> None:
    cluster = Watched("a", "b", "c")
    cluster.create("s", ["a b c", "b c a"])
    cluster.told()
    cluster.prepare(3, ["c a b"])
    cluster.cancel()
    cluster.prepare(1)
    cluster.cut_over()
    cluster.report_cutover(cluster.cutover_at(0, 3), cluster.cutover_at(1, 4))
    cluster.finish()
    assert [(event["event"], event["partition_count"], event["partitioning_version"]) for event in cluster.told()] == [
        ("repartition_prepared", 3, 2),
        ("repartition_cancelled", 3, 2),
        ("repartition_prepared", 1, 2),
        ("repartition_cutover", 1, 2),
        ("repartition_finished", 1, 2),
    ]


def test_another_replication_factor_and_the_moves_of_its_partitions() -> None:
    cluster = Watched("a", "b", "c")
    cluster.create("s", ["a b"])
    cluster.told()
    cluster.alter_factor(3, {0: "a b c"})
    altered, begun = cluster.told()
    assert altered == {"event": "stream_altered", "stream": "s", "replication_factor": 3}
    assert (begun["event"], begun["target"]) == ("reassignment_begun", ["a", "b", "c"])


def test_the_life_of_a_stream() -> None:
    cluster = Watched("a", "b", "c")
    cluster.told()
    cluster.create("s", ["a b c", "b c a"], config={"min_isr": "1"})
    assert cluster.told() == [
        {
            "event": "stream_created", "stream": "s", "subject": "s", "partition_count": 2, "replication_factor": 3,
            "config": {"min_isr": "1"},
        }
    ]  # fmt: skip
    cluster.alter_stream("s", config={"compact": "true"}, unset=["min_isr"])
    cluster.set_readonly("s")
    cluster.set_readonly("s", 1, readonly=False)
    cluster.set_paused("s")
    cluster.set_paused("s", 1, paused=False)
    cluster.delete_records({0: 5, 1: 7})
    cluster.delete_records({0: 5, 1: 8})
    cluster.delete("s")
    cluster.create("s", ["a b"])
    assert cluster.told() == [
        {
            "event": "stream_altered", "stream": "s", "config": {"compact": "true", "min_isr": ""},
            "before": {"compact": "", "min_isr": "1"},
        },
        {"event": "readonly_set", "stream": "s", "partitions": [0, 1]},
        {"event": "readonly_lifted", "stream": "s", "partitions": [1]},
        {"event": "paused", "stream": "s", "partitions": [0, 1]},
        {"event": "resumed", "stream": "s", "partitions": [1]},
        {"event": "records_deleted", "stream": "s", "partition": 0, "log_start_offset": 5},
        {"event": "records_deleted", "stream": "s", "partition": 1, "log_start_offset": 7},
        {"event": "records_deleted", "stream": "s", "partition": 1, "log_start_offset": 8},
        {"event": "stream_deleted", "stream": "s"},
        {
            "event": "stream_created", "stream": "s", "subject": "s", "partition_count": 1, "replication_factor": 2,
            "config": {},
        },
    ]  # fmt: skip


def test_leaders_and_isrs() -> None:
    cluster = Watched("a", "b", "c")
    cluster.create("s", ["a b c"], config={"min_isr": "1"})
    cluster.told()
    about = {"stream": "s", "partition": 0}
    cluster.die("a")
    assert cluster.told() == [
        {"event": "broker_died", "broker": "a", "incarnation": 2},
        {"event": "leader_changed", **about, "leader": "b", "old_leader": "a", "leader_epoch": 2},
        {"event": "isr_shrunk", **about, "isr": ["b", "c"], "changed": ["a"]},
    ]
    cluster.register("a")
    cluster.alter(cluster.alteration("a b c"))
    cluster.withdraw("c")
    assert cluster.told()[1:] == [
        {"event": "isr_expanded", **about, "isr": ["a", "b", "c"], "changed": ["a"]},
        {"event": "leader_changed", **about, "leader": "b", "old_leader": "b", "leader_epoch": 3},
        {"event": "isr_shrunk", **about, "isr": ["a", "b"], "changed": ["c"]},
    ]
    cluster.die("a", "b")
    assert {event["event"] for event in cluster.told()} == {"broker_died", "partition_offline"}
    cluster.unclean("c")
    assert cluster.told()[0] == {
        "event": "partition_online", **about, "leader": "c", "old_leader": None, "leader_epoch": 5, "unclean": True
    }  # fmt: skip


def test_positions_ascend_and_name_the_generation() -> None:
    cluster = Watched("a", "b", "c")
    cluster.create("s", ["a b c", "a b c"])
    cluster.die("a")
    positions = [(event["generation"], event["index"]) for event in cluster.events]
    assert positions == sorted(set(positions))
    assert [event["id"] for event in cluster.events] == [f"{generation}-{index}" for generation, index in positions]
    assert positions[-1][0] == cluster.state.generation
    assert {event["time"] for event in cluster.events} == {"now"}


def test_all_brokers_make_the_same_events() -> None:
    one, other = Watched("a", "b", "c"), Watched("a", "b", "c")
    for cluster in (one, other):
        cluster.create("s", ["a b c", "c b a"])
        cluster.die("a")
    assert one.events == other.events


def test_a_snapshot_takes_the_place_of_the_commands_that_it_covers() -> None:
    cluster = Watched("a", "b", "c")
    cluster.create("s", ["a b c"])
    watch, state = ActivityWatch(), ClusterState()
    state.restore(cluster.state.snapshot())
    finished(watch.begin_at(state))
    cluster.told()
    cluster.die("a")
    cluster.create("t", ["b c"])
    behind = cluster.told()
    changes = state.restore(cluster.state.snapshot())
    merged = [*filter(None, watch.on_applied(state, changes, None, merged=True))]
    assert all(event["merged"] and event["generation"] == state.generation for event in merged)
    common = {"id", "generation", "index", "time", "stream_incarnation", "merged"}
    told = [{key: value for key, value in event.items() if key not in common} for event in merged]
    assert sorted(map(str, told)) == sorted(map(str, behind))


# ---- those that wait


def event(generation: int, index: int = 0, **fields: Any) -> ActivityEvent:
    return cast("ActivityEvent", {"id": f"{generation}-{index}", "generation": generation, "index": index, **fields})


def taken(log: ActivityLog, most: int = MAX_AT_ONCE) -> list[Mapping[str, Any]]:
    values, position = log.take(most)
    log.finished(position)
    return [json.loads(value) for value in values]


def test_events_are_taken_in_order_until_they_are_written() -> None:
    log = ActivityLog()
    log.add([event(1), event(1, 1), event(2)])
    log.goes_on(NOWHERE)
    values, position = log.take(2)
    assert [json.loads(value)["id"] for value in values] == ["1-0", "1-1"]
    assert position == (1, 1)
    assert log.take(2)[0] == values, "they could not be written"
    assert [found["id"] for found in taken(log, 2)] == ["1-0", "1-1"]
    assert [found["id"] for found in taken(log)] == ["2-0"]
    assert not log
    assert log.take() == ([], Position(2, 0))


def test_a_new_controller_goes_on_behind_what_is_written() -> None:
    log = ActivityLog()
    log.add([event(1), event(1, 1), event(2), event(5)])
    log.goes_on(Position(1, 1))
    assert [found["id"] for found in taken(log)] == ["2-0", "5-0"]
    log.goes_on(Position(9, 3))
    log.add([event(7), event(10)])
    assert [found["id"] for found in taken(log)] == ["10-0"], "another controller wrote the others"


def test_what_went_for_want_of_room_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_events, "MAX_EVENTS", 3)
    log = ActivityLog()
    log.add(event(number) for number in range(1, 8))
    log.goes_on(Position(2, 0))
    found = taken(log)
    assert [each.get("event", each["id"]) for each in found] == ["events_lost", "5-0", "6-0", "7-0"]
    assert (found[0]["id"], found[0]["after"]) == ("4-0", "2-0")
    log.add(event(number) for number in range(8, 12))
    log.goes_on(Position(8, 0))
    assert [each["id"] for each in taken(log)] == ["9-0", "10-0", "11-0"], "all that went was written"


def test_batches_are_bounded() -> None:
    log = ActivityLog()
    log.add(event(number, text="x" * 10_000) for number in range(1, 40))
    log.add([event(50, text="x" * 2 * MAX_BATCH_BYTES), event(51)])
    sizes = []
    while log:
        values, position = log.take()
        sizes.append(sum(map(len, values)))
        log.finished(position)
    assert len(sizes) == 5
    assert sum(size > MAX_BATCH_BYTES for size in sizes) == 1, "the large one goes alone"


def test_a_reader_takes_each_event_once_and_in_order() -> None:
    events = EventFilter()
    found = [event(1), event(1, 1), event(1), event(3), event(2), {"id": "x"}, event(3), event(4)]
    assert [each.get("id") for each in found if events.takes(each)] == ["1-0", "1-1", "3-0", "4-0"]
