"""A producer across repartitions, against a model of leaders that apply them at different times."""

# Rules: R67.

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

import pytest
from crc32c import crc32c

from dataplane.replica.derived.producer_table import Duplicate, ProducerLimits, ProducerTable, Rejected
from tidelog.client.producer.accumulator import (
    Acknowledged,
    Effect,
    Failed,
    PartitionAccumulator,
    RefreshMetadata,
    WantSession,
)
from tidelog.client.producer.batches import PendingBatch, ProducerSession
from tidelog.client.producer.encoding import size_of
from tidelog.client.producer.layout_routes import Moved, RoutedLayout, Routes, Split
from tidelog.client.producer.partitioner import Partitioner
from tidelog.client.producer.producer_config import ProducerConfig
from tidelog.client.producer.runs import Run
from wire.batch import BatchHeader
from wire.error_details import EXPECTED_SEQUENCE, LEADER_EPOCH, VERSION
from wire.errors import Code, TidelogError
from wire.types import LeaderEpoch, Offset

FORGED = 999
FOREIGN = b"foreign"


class Leader:
    """Of one partition: its log, with the version that the leader had applied at each record."""

    def __init__(self, partition: int, world: World) -> None:
        self.partition = partition
        self.world = world
        self.applied = world.version
        self.epoch = 1
        self.log: list[tuple[int, bytes]] = []
        self.table = ProducerTable(limits=ProducerLimits(max_producers=2))

    def append(self, copy: Copy) -> int | TidelogError:
        verdict = self.table.check(
            copy.session.producer_id, copy.session.producer_epoch, copy.sequence, len(copy.values)
        )
        if copy.epoch < self.epoch:
            return TidelogError(Code.FENCED_LEADER_EPOCH, "an older epoch", [LEADER_EPOCH.of(self.epoch)])
        if isinstance(verdict, Duplicate):
            return verdict.base_offset
        is_gap = False
        if isinstance(verdict, Rejected):
            expected = verdict.error.detail(EXPECTED_SEQUENCE)
            is_gap = expected is not None and copy.sequence > expected
            if not is_gap:
                return verdict.error
        if copy.version < self.applied:
            return TidelogError(Code.STALE_PARTITIONING, "stale", [VERSION.of(self.applied)])
        if copy.version > self.applied:
            return TidelogError(Code.UNAVAILABLE, "not applied yet", [VERSION.of(self.applied)])
        if self.partition >= self.world.counts[self.applied]:
            return TidelogError(self.world.left_over, "it takes no records")
        if isinstance(verdict, Rejected):
            return verdict.error
        if copy.expected_offset is not None and copy.expected_offset != len(self.log):
            return TidelogError(Code.INCORRECT_OFFSET, "another one")
        self.store(copy.session, copy.sequence, copy.values)
        return len(self.log) - len(copy.values)

    def store(self, session: ProducerSession, sequence: int, values: list[bytes]) -> None:
        base = len(self.log)
        self.log += [(self.applied, value) for value in values]
        self.table.record(
            BatchHeader(
                base_offset=Offset(base), leader_epoch=LeaderEpoch(1), length=0, attributes=0, columns=1, body_crc=0,
                record_count=len(values), offset_span=0, first_timestamp=0, last_timestamp=0,
                producer_id=session.producer_id, producer_epoch=session.producer_epoch, base_sequence=sequence,
            )
        )  # fmt: skip


class Copy:
    """A message with a batch."""

    def __init__(self, target: Target, batch: PendingBatch) -> None:
        assert batch.session is not None
        self.target, self.batch, self.attempt = target, batch, batch.attempts
        self.version, self.epoch = target.version, batch.sent_epoch
        self.session, self.sequence = batch.session, batch.base_sequence
        self.values = [value or b"" for value in batch.values]
        self.expected_offset = batch.expected_offset


class Target:
    def __init__(self, partition: int, version: int, epoch: int) -> None:
        self.partition = partition
        self.version = version
        self.core = PartitionAccumulator(f"s/{partition}", CONFIG, epoch)


CONFIG: ProducerConfig = ProducerConfig(batch_bytes=130, delivery_timeout_ms=24 * 3_600_000)


class World:
    def __init__(self, count: int, *, forgets: bool) -> None:
        self.version = 1
        self.counts = {1: count, FORGED: 4}
        self.left_over = Code.PARTITION_DRAINING
        self.leaders: dict[int, Leader] = {}
        self.make_leaders()
        self.forgets = forgets
        self.now = 0.0
        self.sessions = 7
        self.wire: list[Copy] = []
        self.answers: list[tuple[Copy, int | TidelogError, int]] = []
        self.refresh = False
        self.owed: dict[object, Any] = {}
        """By what a record or a run is owed: its value, or values."""
        self.receipts: dict[bytes, tuple[int, int]] = {}
        self.failed: dict[bytes, Code] = {}
        self.used = 0
        self.given = 0
        self.routes: Routes[Target] = Routes("s", self.layout(1), object)

    def make_leaders(self) -> None:
        for partition in range(self.counts[self.version]):
            self.leaders.setdefault(partition, Leader(partition, self))

    def layout(self, version: int) -> RoutedLayout[Target]:
        numbers = range(self.counts[version])
        epochs = {p: self.leaders[p].epoch if p in self.leaders else 1 for p in numbers}
        targets = {p: Target(p, version, epochs[p]) for p in numbers}
        return RoutedLayout(version, Partitioner(numbers), targets)

    # ---- the producer

    def learn(self, version: int) -> None:
        if not self.routes.wants(version) or self.routes.is_full:
            return
        self.routes.switch(self.layout(version))
        self.go_on()

    def go_on(self) -> None:
        """What a driver does after each event."""
        busy = True
        while busy:
            busy = False
            for target in [*self.routes.targets]:
                if target.core.is_drained:
                    if not target.core.is_over:
                        self.moved(target.partition, self.routes.hand_over(target))
                    busy = True
                    continue
                while (batch := target.core.next_send(self.now)) is not None:
                    self.wire.append(Copy(target, batch))

    def moved(self, partition: int, moved: Moved[Target]) -> None:
        for effect in moved.effects:
            if isinstance(effect, Split):
                values, positions = self.owed.pop(effect.waiting)
                told = [position for part, _ in effect.parts for position in part]
                assert sorted(told) == sorted(positions)
                by_position = dict(zip(positions, values, strict=True))
                for part, owed in effect.parts:
                    self.owed[owed] = [by_position[position] for position in part], part
            else:
                self.settle(partition, effect)

    def run(self, target: Target, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Acknowledged():
                    if self.routes.on_acknowledged(target.version):
                        self.learn(target.version)
                    self.settle(target.partition, effect)
                case Failed():
                    self.settle(target.partition, effect)
                case WantSession():
                    self.sessions += 1
                    target.core.on_session(ProducerSession(self.sessions, 0))
                case RefreshMetadata():
                    self.refresh = True
                case _:
                    pass  # probes come when the test says so
        self.go_on()

    def settle(self, partition: int, effect: Acknowledged | Failed) -> None:
        batch = effect.batch
        self.used -= batch.size
        for first, indices, waiting in batch.claims:
            if indices is None:
                owed = [[self.owed.pop(each)] for each in waiting]
                told = [value for one in owed for value in one]
            else:
                told, positions = self.owed.pop(waiting)
                assert [*indices] == [*positions]
            assert told == batch.values[first : first + len(told)]
            for place, value in enumerate(told, first):
                if isinstance(effect, Acknowledged):
                    self.receipts[value] = partition, effect.base_offset + place
                else:
                    self.failed[value] = effect.error.code

    # ---- what the program does

    def value(self, key: int | None, chosen: int | None) -> bytes:
        self.given += 1
        return f"{'-' if key is None else key}.{'-' if chosen is None else chosen}.{self.given}".encode()

    def send(self, key: int | None, chosen: int | None, *, expects: bool = False) -> None:
        target = self.target_of(key, chosen)
        if target is None:
            return
        value, name = self.value(key, chosen), None if key is None else str(key).encode()
        owed, size = object(), size_of(value, name, None)
        self.owed[owed] = value
        self.used += size
        gathering = target.core.gathering
        if expects:
            gathering.append_expecting(3, value, name, None, None, size, owed, self.now)
            return
        if gathering.append(value, name, None, None, size, owed, self.now):
            self.routes.left(target)
        if chosen is not None:
            gathering.pin(1)

    def target_of(self, key: int | None, chosen: int | None) -> Target | None:
        if chosen is not None:
            return self.routes.for_partition(chosen)
        if key is not None:
            return self.routes.for_key(str(key).encode())
        return self.routes.newest.targets[self.routes.newest.partitioner.sticky]

    def cut_run(self, keys: list[int], chosen: int | None) -> Run[Target] | None:
        """Of records that go to the partition of the first one."""
        target = self.target_of(keys[0], chosen)
        if target is None:
            return None
        own = [key for key in keys if self.target_of(key, chosen) is target][:2]
        values, names = [self.value(key, chosen) for key in own], [str(key).encode() for key in own]
        size = sum(size_of(value, name, None) for value, name in zip(values, names, strict=True))
        return Run(target, values, names, None, size, range(10, 10 + len(own)), chosen is not None)

    def give_run(self, run: Run[Target]) -> None:
        owed = object()
        self.owed[owed] = [*run.values], [*run.indices]
        self.used += run.size
        if run.target.core.is_over:
            self.moved(run.target.partition, self.routes.place_run(run, owed, self.now))
            return
        gathering = run.target.core.gathering
        gathering.append_run(run.values, run.keys, run.headers, run.size, run.indices, owed, self.now)
        if run.is_pinned:
            gathering.pin(len(run.values))

    # ---- the network and the cluster

    def deliver(self) -> None:
        while self.wire:
            copy = self.wire.pop(0)
            leader = self.leaders.get(copy.target.partition)
            if leader is None:
                self.run(copy.target, copy.target.core.on_no_responders(copy.batch, copy.attempt, self.now))
            elif copy.epoch <= leader.epoch:
                self.answers.append((copy, leader.append(copy), leader.epoch))

    def answer(self) -> None:
        while self.answers:
            copy, outcome, epoch = self.answers.pop(0)
            core = copy.target.core
            if isinstance(outcome, TidelogError):
                self.run(copy.target, core.on_error(copy.batch, copy.attempt, outcome, self.now))
            else:
                self.run(copy.target, core.on_acknowledged(copy.batch, outcome, epoch))

    def probe(self) -> None:
        for target in [*self.routes.targets]:
            leader = self.leaders.get(target.partition)
            if leader is not None and not target.core.is_over:
                self.run(target, target.core.on_probe_answer(leader.epoch))

    def tick(self) -> None:
        for target in [*self.routes.targets]:
            if not target.core.is_over:
                self.run(target, target.core.tick(self.now))

    def repartition(self, count: int) -> None:
        self.version += 1
        self.counts[self.version] = count
        self.make_leaders()


STEPS = [
    "send", "send", "run", "late run", "chosen", "unkeyed", "deliver", "deliver", "answer", "answer", "lose", "drop",
    "refuse", "tick", "reconnect", "repartition", "apply", "push", "fetch", "elect", "probe",
]  # fmt: skip


SEEDS = 150


@pytest.mark.parametrize("pushes", [True, False])
@pytest.mark.parametrize("special", ["", "forget", "forge", "expect"])
def test_each_record_is_written_once_and_those_of_a_key_in_order_across_layouts(pushes: bool, special: str) -> None:
    for seed in range(SEEDS):
        try:
            _run(Random(seed), pushes=pushes, special=special)
        except Exception as error:
            error.add_note(f"with seed {seed}")
            raise


def _run(random: Random, *, pushes: bool, special: str) -> None:
    world = World(random.randint(1, 4), forgets=special == "forget")
    late: list[Run[Target]] = []
    most_keys = random.randint(0, 7)
    chance = random.choice([0.3, 1.0])
    """Of each kind of step to be among those of this run."""
    kinds = [kind for kind in (*STEPS, *([special] if special else [])) if random.random() < chance] or STEPS
    for step in random.choices(kinds, k=random.randint(10, 100)):
        world.now += 0.3
        if late and step in ("send", "run", "late run", "chosen", "expect"):
            world.give_run(late.pop())
        match step:
            case "send":
                world.send(random.randint(0, most_keys), None)
            case "run" | "late run":
                run = world.cut_run([random.randint(0, most_keys) for _ in range(random.randint(1, 4))], None)
                if run is not None and step == "run":
                    world.give_run(run)
                elif run is not None:
                    late.append(run)  # its call waits for room; the next steps come before
            case "chosen":
                world.send(random.randint(0, most_keys), random.randint(0, 4))
            case "unkeyed":
                world.send(None, None)
            case "expect":
                world.send(random.randint(0, most_keys), None, expects=True)
            case "deliver":
                world.deliver()
            case "lose" if world.wire:
                world.wire.pop(0)
            case "drop" if world.answers:
                world.answers.pop(0)
            case "answer":
                world.answer()
            case "refuse" if world.wire:
                copy = world.wire.pop(0)
                world.answers.append((copy, TidelogError(Code.BACKPRESSURE, "later"), 1))
            case "tick":
                world.tick()
            case "reconnect":
                for target in [*world.routes.targets]:
                    target.core.on_reconnected(world.now)
            case "repartition" if world.version < 5:
                world.repartition(random.randint(1, 5))
            case "apply":
                leader = random.choice([*world.leaders.values()])
                leader.applied = random.randint(leader.applied, world.version)
            case "push" if pushes:
                world.learn(world.version)
            case "fetch" if world.refresh:  # from a broker that may be behind
                world.learn(random.randint(1, world.version))
                world.refresh = False
            case "forge":
                world.learn(FORGED)
            case "elect":
                random.choice([*world.leaders.values()]).epoch += 1
            case "probe":
                world.probe()
            case "forget":
                for leader in world.leaders.values():
                    for _ in range(2):
                        world.sessions += 1
                        leader.store(ProducerSession(world.sessions, 0), 0, [FOREIGN])
            case _:
                pass
        world.go_on()
    if late:
        world.give_run(late.pop())
    world.left_over = Code.PARTITION_RETIRED
    for leader in world.leaders.values():
        leader.applied = world.version
    for target in [*world.routes.targets]:
        target.core.on_reconnected(world.now)
    for target in [*world.routes.targets]:
        if target.partition not in world.leaders:  # invented; in place of the delivery timeout
            world.run(target, target.core.fail_all(TidelogError(Code.OUTCOME_UNKNOWN, "too late")))
    for _ in range(150):
        world.now += 3.0
        for event in (world.tick, world.probe, world.go_on, world.deliver, world.answer):
            event()
        if world.refresh:
            world.learn(world.version)
            world.refresh = False
        if all(target.core.is_idle for target in world.routes.targets):
            break
    assert all(target.core.is_idle for target in world.routes.targets)
    assert not world.owed
    assert world.used == 0
    _check(world, special)


def _check(world: World, special: str) -> None:
    stored: dict[bytes, tuple[int, int, int]] = {}
    for partition, leader in world.leaders.items():
        for offset, (version, value) in enumerate(leader.log):
            if value != FOREIGN:
                assert value not in stored, "each record is written once"
                stored[value] = version, partition, offset
    for value, (partition, offset) in world.receipts.items():
        assert stored[value][1:] == (partition, offset)
    may_fail = {Code.PARTITION_RETIRED}
    may_fail |= {Code.OUTCOME_UNKNOWN} if special in ("forget", "forge") else set()
    may_fail |= {Code.STALE_PARTITIONING, Code.INCORRECT_OFFSET, Code.OUTCOME_UNKNOWN} if special == "expect" else set()
    assert set(world.failed.values()) <= may_fail
    for value, code in world.failed.items():
        assert code is Code.OUTCOME_UNKNOWN or value not in stored, "what is told as not written is not"
    assert len(world.receipts) + len(world.failed) == world.given
    numbers: dict[tuple[bytes, bytes], list[tuple[tuple[int, int], int]]] = defaultdict(list)
    for value, (version, partition, offset) in stored.items():
        key, chosen, number = value.split(b".")
        if chosen != b"-":
            assert partition == int(chosen)
            numbers[b"chosen", chosen].append(((0, offset), int(number)))
        elif key != b"-":
            assert partition == crc32c(key) % world.counts[version]
            numbers[b"key", key].append(((version, offset), int(number)))
    for found in numbers.values():
        in_order = [number for _, number in sorted(found)]
        assert in_order == sorted(in_order)
