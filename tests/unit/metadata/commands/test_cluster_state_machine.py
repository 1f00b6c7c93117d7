"""Any sequence of commands keeps the invariants: epochs never fall, the ISR never empties, leaders are in it, two
states that apply the same bytes are the same bytes, and a restored snapshot is the state it was taken of."""

# Rules: R28.

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from metadata.cluster.model import Outcome, Partition, RepartitionPhase
from metadata.cluster.references import ref_of
from metadata.commands import cluster_state
from metadata.commands.cluster_state import ClusterState
from tests.unit.metadata.cluster_bench import Cluster
from wire.layouts import NOT_REPORTED, sources
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Turns
from wire.types import BrokerId, PartitionKey, PartitionState, PartitionView, StreamName

BROKERS = ("a", "b", "c", "d")
broker_ids = st.sampled_from(BROKERS)
small = st.integers(min_value=0, max_value=3)


class _Twin(Cluster):
    """Applies every command to a second state too, which now and then is restored from its own snapshot, and which
    works commands out in turns first, of another size each time."""

    def __init__(self) -> None:
        self.twin = ClusterState()
        self.commands = 0
        super().__init__(*BROKERS)

    def apply(self, command: pb.Command) -> Outcome:
        before, routes = self._views(), self._routes()
        outcome = super().apply(command)
        assert self._apply_in_turns(command.SerializeToString(deterministic=True)) == outcome
        after = self._views()
        changed = {key for key, view in after.items() if before.get(key) != view}
        assert changed <= {*outcome.changes.partitions}, "a view has changed, and nobody is told"
        assert all(key not in before or after[key].epoch > before[key].epoch for key in changed)
        assert {key for key in before if key not in after} == {*outcome.changes.gone}
        for name, (route, generation) in self._routes().items():
            if routes.get(name, (None, 0))[0] != route:
                assert generation == self.state.generation, "routes have changed, and look as old as before"
            else:
                assert generation == routes[name][1]
        return outcome

    def _apply_in_turns(self, command: bytes) -> Outcome:
        self.commands += 1
        before = self.twin.snapshot()
        with (
            patch.object(cluster_state, "LOOKS", 1 + 3 * (self.commands % 4)),
            patch.object(cluster_state, "SMALL_COMMAND_BYTES", 1000 * (self.commands % 2)),
        ):
            while not self.twin.prepare(command) and self.commands % 5:  # else `apply` finishes
                pass
        assert self.twin.snapshot() == before
        return self.twin.apply(command)

    def _views(self) -> dict[PartitionKey, PartitionView]:
        keys = [key for key, _ in self.state.partitions()]
        return {key: view for key in keys if (view := self.state.view(key)) is not None}

    def _routes(self) -> dict[StreamName, tuple[object, int]]:
        return {
            name: (
                (
                    stream.incarnation,
                    stream.layouts,
                    stream.repartition,
                    {
                        number: (partition.incarnation, partition.leader, partition.leader_epoch, partition.state)
                        for number, partition in stream.partitions.items()
                    },
                ),
                stream.routing_generation,
            )
            for name, stream in self.state.streams.items()
        }


class ClusterStateMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.cluster = _Twin()
        self.snapshots: list[tuple[Turns[bytes], bytes]] = []
        """Of the twin: those that are being made, and what they have to be."""
        self.seen: dict[PartitionKey, Partition] = {}
        self.generation = self.cluster.state.generation

    def _key(self, number: int) -> PartitionKey | None:
        keys = [key for key, _ in self.cluster.state.partitions()]
        return keys[number % len(keys)] if keys else None

    @rule(
        name=st.sampled_from(["s", "t"]),
        order=st.permutations(BROKERS),
        factor=st.integers(1, 4),
        min_isr=st.integers(0, 4),
        durable=st.booleans(),
    )
    def create(self, name: str, order: list[str], factor: int, min_isr: int, durable: bool) -> None:
        config = {"min_isr": str(min_isr), "durability": "durable" if durable else "accepted"}
        first, second = order[:factor], [*order[1:], order[0]][:factor]
        self.cluster.create(name, [" ".join(first), " ".join(second)], config=config)

    @rule(
        name=st.sampled_from(["s", "t"]),
        config=st.dictionaries(
            st.sampled_from(["min_isr", "durability", "segment_bytes", "nonsense"]),
            st.sampled_from(["0", "1", "2", "3", "4", "durable", "replica_durable:3", "majority_durable", "accepted"]),
            max_size=2,
        ),
        unset=st.lists(st.sampled_from(["min_isr", "durability"]), max_size=2),
        back=small,
    )
    def alter_stream(self, name: str, config: dict[str, str], unset: list[str], back: int) -> None:
        stream = self.cluster.state.streams.get(StreamName(name))
        before = self.cluster.state.snapshot()
        incarnation = (stream.incarnation if stream else 0) - back // 3
        outcome = self.cluster.alter_stream(name, config=config, unset=unset, incarnation=max(0, incarnation))
        assert outcome.code is None or self.cluster.state.snapshot() == before
        after = self.cluster.state.streams.get(StreamName(name))
        if stream is None or after is None:
            return
        assert after.durable == stream.durable
        assert after.min_isr <= after.replication_factor
        for number, partition in after.partitions.items():
            old = self.seen[after.key(number)]
            assert (partition.leader, partition.leader_epoch) == (old.leader, old.leader_epoch)
            # A replica comes in only if it held everything, and only into a partition without a leader.
            assert {*partition.isr} <= {*old.isr, *(old.eligible if old.leader is None else ())}
            assert {*partition.eligible} <= {*old.eligible}
            assert {*old.isr} <= {*partition.isr}

    @rule(
        config=st.dictionaries(
            st.sampled_from(["min_isr", "durability", "compact"]), st.sampled_from(["1", "3", "accepted", "true"])
        ),
        unset=st.lists(st.sampled_from(["min_isr", "compact"]), max_size=1),
    )
    def alter_cluster(self, config: dict[str, str], unset: list[str]) -> None:
        self.cluster.alter_cluster(config=config, unset=unset)

    @rule(name=st.sampled_from(["s", "t"]))
    def delete(self, name: str) -> None:
        self.cluster.delete(name)

    @rule(broker=broker_ids, folder=st.booleans(), cache=st.booleans(), same=st.booleans(), unsound=st.booleans())
    def register(self, broker: str, folder: bool, cache: bool, same: bool, unsound: bool) -> None:
        key = self._key(0)
        self.cluster.register(
            broker,
            folder_same=folder,
            page_cache_survived=cache,
            same_life=same,
            unsound=[key] if unsound and key is not None else [],
        )

    @rule(brokers=st.lists(broker_ids, unique=True, min_size=1))
    def die(self, brokers: list[str]) -> None:
        self.cluster.die(*brokers)

    @rule(number=st.integers(0, 3), members=st.lists(broker_ids, max_size=4), back=small, lives=small)
    def alter_isr(self, number: int, members: list[str], back: int, lives: int) -> None:
        key = self._key(number)
        partition = self.cluster.state.partition(key) if key is not None else None
        if key is None or partition is None:
            return
        self.cluster.alter(
            pb.IsrAlteration(
                partition=ref_of(key),
                leader=partition.leader or "",
                leader_epoch=partition.leader_epoch,
                expected_epoch=max(0, partition.epoch - back // 2),
                new_isr=[
                    pb.BrokerLife(broker=member, incarnation=max(0, self.cluster.incarnation(member) - lives // 2))
                    for member in members
                ],
            )
        )

    @rule(number=st.integers(0, 3), planned=st.booleans(), chosen=st.sampled_from(["", *BROKERS]), back=small)
    def elect(self, number: int, planned: bool, chosen: str, back: int) -> None:
        key = self._key(number)
        partition = self.cluster.state.partition(key) if key is not None else None
        if key is None or partition is None:
            return
        item = pb.Election(
            partition=ref_of(key),
            leader_epoch=max(0, partition.leader_epoch - back // 3),
            target=chosen,
            planned=planned,
        )
        self.cluster.apply(
            pb.Command(
                elect_leaders=pb.ElectLeaders(controller_epoch=self.cluster.state.controller_epoch, items=[item])
            )
        )

    @rule(number=st.integers(0, 3), broker=broker_ids)
    def withdraw(self, number: int, broker: str) -> None:
        key = self._key(number)
        partition = self.cluster.state.partition(key) if key is not None else None
        if key is None or partition is None:
            return
        item = pb.WithdrawReplica(
            partition=ref_of(key),
            broker=broker,
            incarnation=self.cluster.incarnation(broker),
            expected_epoch=partition.epoch,
        )
        self.cluster.apply(pb.Command(withdraw=pb.Withdraw(items=[item])))
        after = self.cluster.state.partition(key)
        assert after is not None
        assert after.leader != broker
        assert broker not in after.isr or after.is_withdrawn(BrokerId(broker))

    @rule(number=st.integers(0, 3), broker=broker_ids)
    def unclean(self, number: int, broker: str) -> None:
        key = self._key(number)
        partition = self.cluster.state.partition(key) if key is not None else None
        if key is None or partition is None:
            return
        self.cluster.apply(
            pb.Command(
                unclean_elect=pb.UncleanElect(
                    controller_epoch=self.cluster.state.controller_epoch,
                    partition=ref_of(key),
                    leader_epoch=partition.leader_epoch,
                    broker=broker,
                )
            )
        )

    @rule(name=st.sampled_from(["s", "t"]), partitions=st.integers(1, 5), order=st.permutations(BROKERS), back=small)
    def prepare(self, name: str, partitions: int, order: list[str], back: int) -> None:
        stream = self.cluster.state.streams.get(StreamName(name))
        if stream is None:
            return
        missing = [number for number in range(partitions) if number not in stream.partitions]
        live = [broker for broker in order if self.cluster.state.is_alive(BrokerId(broker))]
        if missing and not live:
            return
        placement = " ".join(live[: stream.replication_factor])
        outcome = self.cluster.prepare(
            partitions, [placement] * len(missing), name=name, version=stream.partitioning_version - back // 3
        )
        if outcome.code is None:
            assert stream.repartition is None
            now = self.cluster.state.streams[StreamName(name)]
            assert now.partition_count == stream.partition_count
            assert all(now.is_made_ready(number) for number in missing)

    @rule(name=st.sampled_from(["s", "t"]), step=st.sampled_from(["cancel", "cut_over", "finish"]))
    def go_on(self, name: str, step: str) -> None:
        if StreamName(name) in self.cluster.state.streams:
            getattr(self.cluster, step)(name)

    @rule(numbers=st.lists(st.integers(0, 9), max_size=4), end=st.integers(-1, 5), back=small)
    def tell_cutovers(self, numbers: list[int], end: int, back: int) -> None:
        reports = []
        for number in numbers:
            key = self._key(number)
            if key is not None:
                report = self.cluster.cutover_at(key.partition, end, name=key.stream)
                reports.append(replace(report, version=max(0, report.version - back // 3)))
        self.cluster.report_cutover(*reports)

    @rule(name=st.sampled_from(["s", "t"]), number=st.integers(0, 5), back=small)
    def remove_retired(self, name: str, number: int, back: int) -> None:
        stream = self.cluster.state.streams.get(StreamName(name))
        if stream is not None and number in stream.partitions:
            epoch = stream.partitions[number].epoch - back // 3
            self.cluster.remove_retired(number, name=name, expected_epoch=epoch)

    @invariant()
    def layouts_are_whole(self) -> None:
        for stream in self.cluster.state.streams.values():
            layouts = stream.layouts
            assert [layout.version for layout in layouts] == [
                *range(layouts[-1].version - len(layouts) + 1, layouts[-1].version + 1)
            ]
            assert stream.partitioning_version == layouts[-1].version
            assert all(layout.is_reported for layout in layouts[:-1])
            assert all(before.generation < layout.generation for before, layout in pairwise(layouts))
            count = layouts[-1].partitions
            assert all(stream.partitions[number].state is PartitionState.ACTIVE for number in range(count))
            beyond = [number for number in stream.partitions if number >= count]
            marker = stream.repartition
            assert not any(stream.is_made_ready(number) for number in beyond) or (
                marker is not None and marker.phase is RepartitionPhase.PREPARED
            )
            for number in range(count):
                expected = any(
                    layouts[-1].start(source) == NOT_REPORTED
                    for source in sources(number, layouts[-2].partitions if len(layouts) > 1 else 1, count)
                )
                assert stream.awaits_sources(number) == expected

    @rule(number=small, order=st.permutations(BROKERS), late=st.booleans())
    def reassign(self, number: int, order: list[str], late: bool) -> None:
        key = self._key(number)
        if key is None:
            return
        factor = self.cluster.state.streams[key.stream].replication_factor
        epoch = self.cluster.partition(key.partition, key.stream).epoch
        self.cluster.reassign({key.partition: " ".join(order[:factor])}, name=key.stream, expected_epoch=epoch - late)

    @rule(number=small, step=st.sampled_from(["start", "complete", "cancel"]), late=st.booleans())
    def step_of_reassignment(self, number: int, step: str, late: bool) -> None:
        key = self._key(number)
        if key is None:
            return
        before = self.cluster.partition(key.partition, key.stream)
        steps = {
            "start": self.cluster.start,
            "complete": self.cluster.complete,
            "cancel": self.cluster.cancel_reassignment,
        }
        outcome = steps[step](key.partition, name=key.stream, expected_epoch=before.epoch - late)
        after = self.cluster.partition(key.partition, key.stream)
        assert not late or outcome.items[0] is not None
        assert {*after.isr} <= {*before.isr}, "a step takes nobody into the ISR"
        assert {*before.replicas} <= {*after.replicas} or after.leader_epoch > before.leader_epoch
        if after.reassignment is None is not before.reassignment and step == "complete":
            moving = before.reassignment
            assert moving is not None
            assert after.replicas == moving.target
            min_isr = self.cluster.state.streams[key.stream].min_isr
            if {*before.isr, *before.eligible} - {*moving.target}:
                assert len(after.isr) >= (min_isr if moving.is_cancelled else len(moving.target))

    @rule(broker=broker_ids)
    def begin_controller_epoch(self, broker: str) -> None:
        self.cluster.begin_controller_epoch(broker)

    @rule(data=st.binary(max_size=60))
    def garbage(self, data: bytes) -> None:
        assert self.cluster.state.apply(data) == self.cluster.twin.apply(data)

    @rule()
    def restore(self) -> None:
        data = self.cluster.twin.snapshot()
        fresh = ClusterState()
        fresh.restore(data)
        assert fresh.snapshot() == data
        self.cluster.twin = fresh

    @rule()
    def begin_a_snapshot(self) -> None:
        self.snapshots.append((Turns(self.cluster.twin.encoding()), self.cluster.twin.snapshot()))

    @rule(looks=st.integers(min_value=1, max_value=30))
    def go_on_with_a_snapshot(self, looks: int) -> None:
        if self.snapshots and self.snapshots[0][0].turn(looks):
            turns, expected = self.snapshots.pop(0)
            assert turns.finish() == expected, "a command that was applied meanwhile shows in it"

    def teardown(self) -> None:
        for turns, expected in self.snapshots:
            assert turns.finish() == expected

    @invariant()
    def both_are_the_same(self) -> None:
        assert self.cluster.state.snapshot() == self.cluster.twin.snapshot()

    @invariant()
    def live_leaders(self) -> None:
        for _, partition in self.cluster.state.partitions():
            assert partition.leader is None or self.cluster.state.is_alive(partition.leader)

    @invariant()
    def epochs_never_fall(self) -> None:
        cluster_state = self.cluster.state
        assert cluster_state.generation >= self.generation
        self.generation = cluster_state.generation
        now = dict(cluster_state.partitions())
        for key, old in self.seen.items():
            new = now.get(key)
            if new is None:
                continue
            assert (new.epoch, new.leader_epoch) >= (old.epoch, old.leader_epoch)
            assert new.leader_epoch >= old.leader_epoch
            assert (new == old) == (new.epoch == old.epoch)
            assert new.leader == old.leader or new.leader_epoch > old.leader_epoch or old.leader is None
        self.seen = now

    @invariant()
    def leaders_are_counted(self) -> None:
        cluster_state = self.cluster.state
        for broker in BROKERS:
            led = [key for key, partition in cluster_state.partitions() if partition.leader == broker]
            assert cluster_state.led_by(BrokerId(broker)) == len(led)
            held = [key for key, partition in cluster_state.partitions() if broker in partition.replicas]
            assert cluster_state.held_by(BrokerId(broker)) == len(held)


TestClusterState = ClusterStateMachine.TestCase
TestClusterState.settings = settings(max_examples=60, stateful_step_count=40)
