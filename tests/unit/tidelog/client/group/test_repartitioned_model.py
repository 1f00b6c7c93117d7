"""A stream that is written and repartitioned again and again, and a group of members that come, go and are killed.

Whatever happens, the records of each key are processed in the order in which they were written, none is left out, and
nothing hangs as long as somebody commits. Records may be processed again; it counts when they are for the first time.

Runs are on the clock of a simulated world: what happens in one follows from its seed, however busy the machine is.
"""

# Rules: R66.

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from random import Random
from typing import Any

import pytest

from tests.fake_nats import FakeTransport
from tests.simulation.world import Process, inhabited
from tests.simulation.world import World as SimulatedWorld
from tests.unit.tidelog.client.fake_broker import make
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator
from tests.unit.tidelog.client.group.members_world import World
from tidelog.client.base.exceptions import NotAssigned
from tidelog.client.base.records import Record
from tidelog.client.client import Client
from tidelog.client.cluster import route_updates
from tidelog.client.consumer import stream_reading
from tidelog.client.consumer.subscription_state import AssignedStream, SubscriptionState
from tidelog.client.group import group_gate, group_session
from tidelog.client.group.group_consumer import GroupConsumer
from wire.batch import BatchBuilder
from wire.batch.control import control_batch
from wire.internal_records.group_records import StreamPartition
from wire.operations.api_operations import GROUP_COORDINATOR

KEYS = 12
RECORDS = 400
MEMBERS = 3


class Scenario:
    """`seen`: of each key, its records in the order in which they were processed for the first time."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        transport, broker, client = make()
        self.broker = broker
        broker._api[GROUP_COORDINATOR.name] = lambda _: {"partition": 0}
        subject = broker.subjects.api(GROUP_COORDINATOR.name)
        transport.listen(subject, lambda m: broker._on_api(GROUP_COORDINATOR.name, m))
        broker.create("s", self.rng.randint(1, 4))
        self.world = World(transport, broker, FakeCoordinator(transport, {}, interval_ms=20), [client])
        self._coordinate()
        self.written = 0
        self.is_written = False
        self.sent: dict[int, int] = defaultdict(int)
        self.seen: dict[int, list[int]] = defaultdict(list)

    @property
    def is_read(self) -> bool:
        return self.is_written and sum(map(len, self.seen.values())) == self.written

    def _coordinate(self) -> None:
        stream = self.broker.streams["s"]
        self.world.coordinator.streams["s"] = stream["incarnation"], len(stream["partitions"])
        self.world.coordinator.rebalance("g")

    async def write(self) -> None:
        while self.written < RECORDS:
            builders: dict[int, BatchBuilder] = defaultdict(BatchBuilder)
            count = self.broker.streams["s"]["layouts"][-1]["partitions"]
            for _ in range(self.rng.randint(1, 10)):
                key = self.rng.randrange(KEYS)
                builders[key % count].add_record(b"%d" % self.sent[key], b"%d" % key)
                self.sent[key] += 1
                self.written += 1
            for partition, builder in builders.items():
                self.broker.write(("s", partition), builder.build(1))
            if self.rng.random() < 0.2:
                self.broker.write(("s", self.rng.randrange(count)), control_batch(1, 1, b""))
            await asyncio.sleep(self.rng.random() * 0.01)
            if self.rng.random() < 0.12:
                await self._repartition()
        self.is_written = True

    async def _repartition(self) -> None:
        before = len(self.broker.streams["s"]["partitions"])
        count = self.rng.choice([n for n in range(1, 8) if n != self.broker.streams["s"]["layouts"][-1]["partitions"]])
        self.broker.repartition("s", count, told=False)
        self._coordinate()
        for partition in self.rng.sample(range(before), before):
            self.broker.tell("s", partition)
            if self.rng.random() < 0.3:
                await asyncio.sleep(self.rng.random() * 0.01)
        self._remove_what_is_read()

    def _remove_what_is_read(self) -> None:
        """Retention has removed all records of a partition that keys are not spread over any more."""
        partitions, offsets = self.broker.streams["s"]["partitions"], self.world.group.offsets
        of = StreamPartition("s", self.broker.streams["s"]["incarnation"], len(partitions) - 1)
        log = self.broker.logs["s", of.partition]
        if partitions[-1]["state"] == "draining" and of in offsets and offsets[of].offset >= log.end:
            log.start = log.end
            if self.rng.random() < 0.5:
                partitions.pop()
                del self.broker.logs["s", of.partition], offsets[of]
                self.broker.streams["s"]["routing_generation"] += 1
                self._coordinate()

    async def read(self) -> None:
        rng = Random(self.rng.random())
        while not self.is_read:
            by_hand = rng.random() < 0.4
            consumer = self._client().subscribe(
                "s",
                group="g",
                auto_commit=not by_hand,
                auto_commit_interval=0.02 + rng.random() * 0.2,
            )
            consumer._session.clock = consumer._stopwatch = asyncio.get_running_loop().time
            await self._life(consumer, rng, by_hand)

    def _client(self) -> Client:
        transport = FakeTransport(self.world.transport.hub)
        client = Client(transport, self.broker.subjects, server="nats://fake:4222", name="test", api_timeout=10)
        self.world.clients.append(client)
        return client

    async def _life(self, consumer: GroupConsumer[Any, Any], rng: Random, by_hand: bool) -> None:
        until = rng.random() * 120
        calls = 0
        while not self.is_read:
            calls += 1
            if calls > until:
                break
            self._process(await consumer.getmany(rng.randint(1, 8), timeout=0.02))
            if by_hand and rng.random() < 0.3:
                with suppress(NotAssigned):  # a partition has just gone
                    await consumer.commit()
            if consumer.assignment and rng.random() < 0.05:
                consumer.pause()
                await asyncio.sleep(0.005)
                consumer.resume()
        if rng.random() < 0.5 or not consumer.member_id:
            await consumer.aclose()
        else:
            await self._kill(consumer)

    async def _kill(self, consumer: GroupConsumer[Any, Any]) -> None:
        """Nothing leaves it any more, and it hears nothing."""
        transport, session = consumer._partitions._transport, consumer._session
        assert isinstance(transport, FakeTransport)
        transport.cut()
        transport.publish = lambda *_, **__: False  # type: ignore[method-assign] # it is killed
        for task in consumer._tasks:
            task.cancel()
        await consumer._partitions.aclose()
        await session.aclose()
        self.world.coordinator.remove("g", session.member_id)
        consumer._started.discard(consumer)

    async def read_alone(self) -> None:
        """Without a group."""
        async with self._client().consume("s", order="key") as consumer:
            while not self.is_read:
                self._process(await consumer.getmany(self.rng.randint(1, 8), timeout=0.02))
                if self.rng.random() < 0.1:
                    consumer.resume()
                elif self.rng.random() < 0.1:
                    consumer.pause(self.rng.choice([*consumer.positions]))

    def _process(self, records: list[Record[Any, Any]]) -> None:
        for record in records:
            key, number = int(record.key or b""), int(record.value or b"")
            if number not in self.seen[key]:
                self.seen[key].append(number)

    async def run(self, *, alone: bool) -> None:
        readers = [self.read_alone()] if alone else [self.read() for _ in range(MEMBERS)]
        try:
            async with asyncio.timeout(30):
                await asyncio.gather(self.write(), *readers)
        finally:
            for client in self.world.clients:
                await client.close()

    def check(self) -> None:
        for key, count in self.sent.items():
            assert self.seen[key] == list(range(count)), f"key {key}"


def ran(seed: int, *, alone: bool = False) -> Scenario:
    """The scenario at its end. Raises TimeoutError if it hangs."""
    world = SimulatedWorld(seed)
    with inhabited(world):
        process = Process.begun(world, "clients")
        with process.running():
            scenario = Scenario(seed)
            running = process.create_task(scenario.run(alone=alone))
        world.run_until(60, running.done)
        running.result()
    return scenario


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_session, "LEAVE_TIMEOUT", 0.2)
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(stream_reading, "_LOOK_AGAIN", 0.01)
    monkeypatch.setattr(group_gate, "ASK_EVERY", 0.01)
    monkeypatch.setattr(group_gate, "_LOOK_EVERY", 0.02)
    monkeypatch.setattr(group_gate, "_LOG_STARTS_EVERY", 0.05)


@pytest.mark.parametrize("seed", range(5))
def test_each_key_is_processed_in_the_order_in_which_it_was_written(seed: int) -> None:
    ran(seed).check()


@pytest.mark.parametrize("seed", range(5))
def test_a_consumer_without_a_group_hands_out_each_key_in_order(seed: int) -> None:
    ran(seed, alone=True).check()


def test_a_run_follows_from_its_seed_however_slow_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    process, runs = Scenario._process, []
    for pause in (0.0, 0.001):
        handed_out: list[tuple[float, list[tuple[int, int]]]] = []
        runs.append(handed_out)

        def process_slowly(
            self: Scenario, records: list[Record[Any, Any]], pause: float = pause, told: list[Any] = handed_out
        ) -> None:
            time.sleep(pause)
            told.append((asyncio.get_running_loop().time(), [(r.partition, r.offset) for r in records]))
            process(self, records)

        monkeypatch.setattr(Scenario, "_process", process_slowly)
        ran(0)
    assert runs[0] == runs[1]


@contextmanager
def broken(monkeypatch: pytest.MonkeyPatch, of: type[Any], name: str, instead: Callable[..., Any]) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(of, name, instead)
        yield


@pytest.mark.parametrize(
    ("of", "name", "instead"),
    [
        pytest.param(SubscriptionState, "look", lambda *_: None, id="nothing waits"),
        pytest.param(SubscriptionState, "committed_to", lambda *_: 1 << 62, id="what is not committed counts"),
        pytest.param(AssignedStream, "knows_version", lambda *_: True, id="later versions are not looked up"),
    ],
)
def test_without_the_gate_the_order_is_lost(
    monkeypatch: pytest.MonkeyPatch, of: type[Any], name: str, instead: Callable[..., Any]
) -> None:
    with broken(monkeypatch, of, name, instead):
        for seed in range(20):
            scenario = ran(seed)
            try:
                scenario.check()
            except AssertionError:
                return
    pytest.fail("every run was in order")
