"""Members of consumer groups against brokers and a coordinator in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.fake_nats import FakeTransport
from tests.unit.tidelog.client.fake_broker import FakeBroker, make
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator, ModelGroup
from tidelog.client.client import Client
from tidelog.client.group.group_consumer import GroupConsumer
from wire.operations.api_operations import GROUP_COORDINATOR

S0, S1 = ("s", 0), ("s", 1)


@dataclass
class World:
    transport: FakeTransport
    broker: FakeBroker
    coordinator: FakeCoordinator
    clients: list[Client] = field(default_factory=list)

    @property
    def group(self) -> ModelGroup:
        return self.coordinator.group("g")

    @property
    def committed(self) -> dict[tuple[str, int], int]:
        return {(of.stream, of.partition): offset.offset for of, offset in self.group.offsets.items()}

    def client(self) -> Client:
        """Each member has a connection of its own."""
        transport = FakeTransport(self.transport.hub)
        client = Client(transport, self.broker.subjects, server="nats://fake:4222", name="test", api_timeout=1.0)
        self.clients.append(client)
        return client

    def seed(self, stream: str, partition: int, count: int) -> None:
        end = self.broker.logs[stream, partition].end
        self.broker.seed(stream, partition, [b"%d" % offset for offset in range(end, end + count)])


@asynccontextmanager
async def members_world() -> AsyncIterator[World]:
    """With ten records in each of the two partitions of `s`, and `t`."""
    transport, broker, client = make()
    broker._api[GROUP_COORDINATOR.name] = lambda _: {"partition": 0}
    transport.listen(broker.subjects.api(GROUP_COORDINATOR.name), lambda m: broker._on_api(GROUP_COORDINATOR.name, m))
    broker.create("s", 2)
    broker.create("t", 2)
    streams = {name: (made["incarnation"], len(made["partitions"])) for name, made in broker.streams.items()}
    world = World(transport, broker, FakeCoordinator(transport, streams), [client])
    for stream in ("s", "t"):
        for partition in range(2):
            world.seed(stream, partition, 10)
    yield world
    for client in world.clients:
        await client.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - many things may change it
            await asyncio.sleep(0.001)


async def take(consumer: GroupConsumer, count: int) -> list[tuple[str, int, int]]:
    found: list[tuple[str, int, int]] = []
    while len(found) < count:
        record = await consumer.getone(timeout=5)
        assert record is not None, f"only {found} came"
        found.append((record.stream, record.partition, record.offset))
    return found
