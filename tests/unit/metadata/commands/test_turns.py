"""A command that looks at very many partitions is worked out in turns of bounded work, and takes effect at once."""

# Rules: R28.

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import pytest

from metadata.cluster import election
from metadata.cluster.references import ref_of
from metadata.commands import cluster_state, stream_commands
from metadata.commands.cluster_state import ClusterState
from metadata.commands.ledger import PARTITION, Ledger
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import Code
from wire.layouts import NOT_REPORTED
from wire.protobuf import metadata_pb2 as pb
from wire.turns import LOOKS, Turns
from wire.types import BrokerId, PartitionKey, StreamName

PER_TURN = LOOKS // PARTITION
PARTITIONS = LOOKS + PER_TURN
"""Of each of two streams."""
BROKERS = ("a", "b", "c")


def _streams() -> Cluster:
    cluster = Cluster(*BROKERS)
    for name in ("s", "t"):
        assignments = [
            pb.Assignment(replicas=[(number + place) % 3 for place in range(3)], leader=number % 3)
            for number in range(PARTITIONS)
        ]
        create = pb.CreateStream(
            controller_epoch=1, name=name, subject=name, replication_factor=3, brokers=BROKERS, assignments=assignments
        )
        assert cluster.apply(pb.Command(create_stream=create)).code is None
    return cluster


@pytest.fixture(scope="module")
def before() -> bytes:
    return _streams().state.snapshot()


@pytest.fixture
def cluster(before: bytes) -> Cluster:
    cluster = Cluster()
    cluster.state.restore(before)
    return cluster


def _dead(cluster: Cluster) -> pb.Command:
    life = pb.BrokerLife(broker="b", incarnation=cluster.incarnation("b"))
    return pb.Command(brokers_dead=pb.BrokersDead(controller_epoch=1, brokers=[life]))


def _registration(cluster: Cluster, **fields: Any) -> pb.Command:
    return pb.Command(
        register_broker=pb.RegisterBroker(broker="b", life_id="b-2", cluster_id=cluster.state.cluster_id, **fields)
    )


def _of_stream(cluster: Cluster) -> dict[str, Any]:
    return {"controller_epoch": 1, "name": "s", "incarnation": cluster.state.streams[StreamName("s")].incarnation}


def _created(cluster: Cluster) -> pb.Command:
    assignments = [pb.Assignment(replicas=[0, 1], leader=0)] * PARTITIONS
    return pb.Command(
        create_stream=pb.CreateStream(
            controller_epoch=1, name="u", subject="u", replication_factor=2, brokers=BROKERS, assignments=assignments
        )
    )


def _items(cluster: Cluster) -> list[tuple[PartitionKey, pb.PartitionRef]]:
    stream = cluster.state.streams[StreamName("s")]
    return [
        (
            stream.key(number),
            pb.PartitionRef(
                stream="s",
                stream_incarnation=stream.incarnation,
                partition=number,
                partition_incarnation=stream.incarnation,
            ),
        )
        for number in range(PARTITIONS)
    ]


def _shrunk(cluster: Cluster) -> pb.Command:
    items = []
    for key, ref in _items(cluster):
        partition = cluster.state.partition(key)
        assert partition is not None
        assert partition.leader is not None
        items.append(
            pb.IsrAlteration(
                partition=ref,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                expected_epoch=partition.epoch,
                new_isr=[pb.BrokerLife(broker=partition.leader, incarnation=cluster.incarnation(partition.leader))],
            )
        )
    return pb.Command(alter_isr=pb.AlterIsr(items=items))


def _elected(cluster: Cluster) -> pb.Command:
    items = [pb.Election(partition=ref, leader_epoch=1) for _, ref in _items(cluster)]
    return pb.Command(elect_leaders=pb.ElectLeaders(controller_epoch=1, items=items))


COMMANDS: dict[str, Callable[[Cluster], pb.Command]] = {
    "a death": _dead,
    "a registration": _registration,
    "a registration with an empty folder": lambda cluster: _registration(cluster, replace=False),
    "a stream created": _created,
    "a stream altered": lambda cluster: pb.Command(
        alter_stream=pb.AlterStream(**_of_stream(cluster), set={"min_isr": "1"})
    ),
    "a stream paused": lambda cluster: pb.Command(set_paused=pb.SetPaused(**_of_stream(cluster), paused=True)),
    "a stream without writes": lambda cluster: pb.Command(
        set_readonly=pb.SetReadonly(**_of_stream(cluster), readonly=True)
    ),
    "a stream deleted": lambda cluster: pb.Command(delete_stream=pb.DeleteStream(**_of_stream(cluster))),
    "ISR changes": _shrunk,
    "elections": _elected,
}


@pytest.mark.parametrize("what", COMMANDS)
def test_it_takes_turns_of_bounded_work_and_takes_effect_at_once(cluster: Cluster, what: str) -> None:
    command = COMMANDS[what](cluster).SerializeToString(deterministic=True)
    before = cluster.state.snapshot()
    expected = ClusterState()
    expected.restore(before)
    outcome = expected.apply(command)
    turns = 1
    while not cluster.state.prepare(command):
        turns += 1
    assert turns >= PARTITIONS / LOOKS
    assert cluster.state.snapshot() == before, "it shows before it is applied"
    with patch.object(Ledger, "store", side_effect=AssertionError("work is left for `apply`")):
        assert cluster.state.apply(command) == outcome
    assert cluster.state.snapshot() == expected.snapshot()
    assert {broker: cluster.state.led_by(BrokerId(broker)) for broker in BROKERS} == {
        broker: expected.led_by(BrokerId(broker)) for broker in BROKERS
    }


@pytest.mark.parametrize(
    ("what", "looked_at"),
    [("a death", "after_death"), ("a registration", "after_registration"), ("a stream altered", "with_min_isr")],
)
def test_a_turn_looks_at_few_partitions(cluster: Cluster, what: str, looked_at: str) -> None:
    command = COMMANDS[what](cluster).SerializeToString()
    looks: list[int] = []
    original = getattr(election, looked_at)

    def counted(*arguments: Any, **fields: Any) -> Any:
        looks[-1] += 1
        return original(*arguments, **fields)

    with patch.object(election, looked_at, counted):
        looks.append(0)
        while not cluster.state.prepare(command):
            looks.append(0)
        assert max(looks) <= PER_TURN
        assert sum(looks) >= PARTITIONS
        looks.append(0)
        cluster.state.apply(command)
    assert looks[-1] == 0


def test_a_repartition_takes_turns_at_each_step(cluster: Cluster) -> None:
    stream = cluster.state.streams[StreamName("s")]

    def turns(command: pb.Command) -> int:
        encoded, count = command.SerializeToString(), 1
        while not cluster.state.prepare(encoded):
            count += 1
        assert cluster.state.apply(encoded).code is None
        return count

    more = 2 * PARTITIONS
    added = [pb.Assignment(replicas=[0, 1, 2], leader=0)] * PARTITIONS
    prepare = pb.PrepareRepartition(
        **_of_stream(cluster), partitions=more, expected_version=1, brokers=BROKERS, assignments=added
    )
    step: dict[str, Any] = {**_of_stream(cluster), "version": 2}
    assert turns(pb.Command(prepare_repartition=prepare)) > 1
    assert turns(pb.Command(cancel_repartition=pb.CancelRepartition(**step))) > 1
    assert turns(pb.Command(prepare_repartition=prepare)) > 1
    assert turns(pb.Command(cutover=pb.Cutover(**step))) >= PARTITIONS / PER_TURN
    reports = [
        pb.CutoverReport(partition=ref, leader=BROKERS[key.partition % 3], leader_epoch=1, version=2, end_offset=0)
        for key, ref in _items(cluster)
    ]
    assert turns(pb.Command(report_cutover=pb.ReportCutover(items=reports))) >= PARTITIONS / PER_TURN
    assert NOT_REPORTED not in cluster.state.streams[stream.name].layouts[-1].starts


@pytest.fixture(scope="module")
def growing() -> bytes:
    """A stream of `PARTITIONS` partitions, each of which is to get a third replica."""
    cluster = Cluster(*BROKERS)
    assert cluster.create(assignments=["a b"] * PARTITIONS).code is None
    assert cluster.alter_factor(3, dict.fromkeys(range(PARTITIONS), "a b c")).code is None
    return cluster.state.snapshot()


def _step(cluster: Cluster, *numbers: int) -> dict[str, Any]:
    items = [
        pb.ReassignmentStep(partition=ref_of(cluster.key(number)), expected_epoch=cluster.partition(number).epoch)
        for number in numbers
    ]
    return {"controller_epoch": 1, "items": items}


def _last_completed(cluster: Cluster) -> pb.Command:
    """The settings of all partitions follow."""
    last = PARTITIONS - 1
    assert cluster.start(*range(PARTITIONS)).code is None
    for number in range(PARTITIONS):
        assert cluster.alter(cluster.alteration("a b c", number=number)).items == (None,)
    assert cluster.complete(*range(last)).items == (None,) * last
    return pb.Command(complete_reassignments=pb.CompleteReassignments(**_step(cluster, last)))


def _former_factor(cluster: Cluster) -> pb.Command:
    assert cluster.cancel_reassignment(*range(PARTITIONS)).items == (None,) * PARTITIONS
    return pb.Command(
        alter_replication_factor=pb.AlterReplicationFactor(**_of_stream(cluster), replication_factor=2, brokers=BROKERS)
    )


@pytest.mark.parametrize("what", [_last_completed, _former_factor])
def test_a_short_command_that_rewrites_a_whole_stream_takes_turns(
    growing: bytes, what: Callable[[Cluster], pb.Command]
) -> None:
    cluster = Cluster()
    cluster.state.restore(growing)
    command = what(cluster).SerializeToString(deterministic=True)
    expected = ClusterState()
    expected.restore(cluster.state.snapshot())
    turns = 1
    while not cluster.state.prepare(command):
        turns += 1
    assert turns >= PARTITIONS / PER_TURN
    with patch.object(Ledger, "store", side_effect=AssertionError("work is left for `apply`")):
        outcome = cluster.state.apply(command)
    assert outcome.code is None
    assert len(outcome.changes.partitions) == PARTITIONS
    assert outcome == expected.apply(command)
    assert cluster.state.snapshot() == expected.snapshot()
    assert not cluster.state.streams[StreamName("s")].is_growing
    again = pb.Command(alter_isr=pb.AlterIsr(items=[cluster.alteration("a b")])).SerializeToString()
    assert cluster.state.prepare(again), "one of a stream that does not grow is small"


def test_a_command_for_one_partition_of_a_stream_that_grows_takes_turns(growing: bytes) -> None:
    """It looks whether the last one has its replicas by now."""
    cluster = Cluster()
    cluster.state.restore(growing)
    command = pb.Command(start_reassignments=pb.StartReassignments(**_step(cluster, 0))).SerializeToString()
    assert not cluster.state.prepare(command)
    assert cluster.state.apply(command).items == (None,)


def test_a_command_in_few_bytes_that_names_many_partitions_takes_turns(cluster: Cluster) -> None:
    most = cluster_state.SMALL_COMMAND_ITEMS
    assert most * PARTITION < LOOKS
    items = [pb.Election(partition=ref, leader_epoch=1) for _, ref in _items(cluster)[: LOOKS // PARTITION + 1]]

    def is_ready_at_once(count: int) -> bool:
        elect = pb.ElectLeaders(controller_epoch=1, items=items[:count])
        command = pb.Command(elect_leaders=elect).SerializeToString()
        assert len(command) <= cluster_state.SMALL_COMMAND_BYTES
        return cluster.state.prepare(command)

    assert is_ready_at_once(most)
    assert not is_ready_at_once(len(items))


def test_a_small_command_is_ready_at_once(cluster: Cluster) -> None:
    items = _shrunk(cluster).alter_isr.items[:3]
    command = pb.Command(alter_isr=pb.AlterIsr(items=items)).SerializeToString()
    assert cluster.state.prepare(command)
    assert cluster.state.apply(command).items == (None, None, None)


def test_work_for_another_command_is_dropped(cluster: Cluster) -> None:
    dead = _dead(cluster).SerializeToString()
    assert not cluster.state.prepare(dead)
    paused = COMMANDS["a stream paused"](cluster).SerializeToString()
    cluster.state.apply(paused)
    expected = cluster.state.snapshot()
    while not cluster.state.prepare(dead):
        assert cluster.state.snapshot() == expected
    cluster.state.apply(dead)
    stream = cluster.state.streams[StreamName("s")]
    assert all(partition.paused for partition in stream.partitions.values())


def test_work_that_began_before_a_snapshot_was_taken_up_is_dropped(cluster: Cluster, before: bytes) -> None:
    dead = _dead(cluster).SerializeToString()
    other = Cluster()
    other.state.restore(before)
    other.state.apply(COMMANDS["a stream paused"](cluster).SerializeToString())
    while not cluster.state.prepare(dead):
        pass
    cluster.state.restore(other.state.snapshot())
    cluster.state.apply(dead)
    other.state.apply(dead)
    assert cluster.state.snapshot() == other.state.snapshot()


@pytest.mark.parametrize("what", COMMANDS)
def test_a_snapshot_is_of_the_state_at_its_beginning(cluster: Cluster, before: bytes, what: str) -> None:
    command = COMMANDS[what](cluster).SerializeToString()
    earlier, looks = Turns(cluster.state.encoding()), 0
    assert not earlier.turn(LOOKS)
    assert not cluster.state.prepare(command)
    later = Turns(cluster.state.encoding())
    cluster.state.apply(command)
    expected = cluster.state.snapshot()
    if what != "a stream deleted":  # and a small one, on the state itself
        small = pb.AlterIsr(items=_shrunk(cluster).alter_isr.items[:3])
        cluster.state.apply(pb.Command(alter_isr=small).SerializeToString())
        assert cluster.state.snapshot() != expected
    while not earlier.turn(LOOKS):
        looks += LOOKS
    assert looks >= 2 * PARTITIONS
    assert earlier.finish() == before
    assert later.finish() == before


def test_a_snapshot_is_taken_up_in_turns_and_at_once(cluster: Cluster, before: bytes) -> None:
    cluster.state.apply(_dead(cluster).SerializeToString())
    dead = cluster.state.snapshot()
    restoring, turns = Turns(cluster.state.restoring(before)), 1
    while not restoring.turn(LOOKS):
        turns += 1
        assert cluster.state.snapshot() == dead
    assert turns >= 2 * PARTITIONS / PER_TURN
    changes = restoring.finish()
    assert len(changes.partitions) == 2 * PARTITIONS
    assert changes.brokers == ("b",)
    assert cluster.state.snapshot() == before
    assert sum(cluster.state.led_by(BrokerId(broker)) for broker in BROKERS) == 2 * PARTITIONS


def test_a_repeated_command_is_answered_without_work(cluster: Cluster) -> None:
    command = pb.Command(client="x", sequence=1, set_paused=pb.SetPaused(**_of_stream(cluster), paused=True))
    encoded = command.SerializeToString()
    assert not cluster.state.prepare(encoded)
    cluster.state.apply(encoded)
    assert cluster.state.prepare(encoded)
    assert cluster.state.apply(encoded).repeated


def test_a_refused_command_changes_nothing(cluster: Cluster, before: bytes) -> None:
    paused = pb.SetPaused(**{**_of_stream(cluster), "controller_epoch": 7}, paused=True)
    command = pb.Command(set_paused=paused).SerializeToString()
    assert cluster.state.prepare(command)
    assert cluster.state.apply(command).code is Code.NOT_CONTROLLER
    assert cluster.state.snapshot() == before


def test_a_bug_while_it_is_prepared_leaves_nothing_behind(cluster: Cluster, before: bytes) -> None:
    command = COMMANDS["a stream altered"](cluster).SerializeToString()

    def fails(*_: Any, **__: Any) -> Iterator[int]:
        yield 1
        raise ValueError("a bug")

    with patch.object(stream_commands, "alter_stream", fails), pytest.raises(ValueError, match="a bug"):
        cluster.state.prepare(command)
    assert cluster.state._prepared is None, "it is begun anew"
    assert cluster.state.snapshot() == before
    assert not cluster.state.prepare(command)


def test_the_looks_of_a_turn_can_be_seen_to_matter(cluster: Cluster) -> None:
    """Guards the tests above: with one look in a turn there are as many turns as partitions."""
    command = _dead(cluster).SerializeToString()
    with patch.object(cluster_state, "LOOKS", 1):
        turns = 1
        while not cluster.state.prepare(command):
            turns += 1
    assert turns > 2 * PARTITIONS
