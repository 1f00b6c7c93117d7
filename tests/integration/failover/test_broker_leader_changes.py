"""Leadership goes round at random under acknowledged load: three brokers' data planes, and a controller played by the
test.

At the end every acknowledged record lies at the offset that its acknowledgement named, on every
replica, and the logs are equal byte for byte.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dataplane.broker.replica import Replica
from tests.integration.failover.test_broker_roles import SUBJECT, Node, view
from tests.integration.rig.waiting import until
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_server import EmbeddedNatsServer
from wire.batch import RecordBatch, iter_batches
from wire.durability import ACCEPTED, DURABLE, Durability
from wire.types import BrokerId, Incarnation, IsrChange, LeaderEpoch, Offset, PartitionEpoch

BROKERS = tuple(BrokerId(name) for name in ("a", "b", "c"))


class Controller:
    """Applies ISR changes as compare-and-sets, moves the leadership within the ISR; views arrive in any order of
    brokers."""

    def __init__(self, nodes: dict[BrokerId, Node], durability: Durability, rng: Random) -> None:
        self.nodes = nodes
        self.rng = rng
        self.view = replace(view(isr=BROKERS, min_isr=2, durability=durability), replicas=BROKERS)
        for node in nodes.values():
            node.metadata.alter_isr = self.alter_isr  # type: ignore[method-assign]

    def deliver(self) -> None:
        nodes = [*self.nodes.values()]
        self.rng.shuffle(nodes)
        for node in nodes:
            delay = self.rng.choice((0.0, 0.0, 0.003, 0.03))
            asyncio.get_running_loop().call_later(delay, node.broker.on_partitions, [self.view])

    def alter_isr(self, change: IsrChange) -> None:
        current = self.view
        if (change.leader, change.leader_epoch, change.expected_epoch) == (
            current.leader,
            current.leader_epoch,
            current.epoch,
        ):
            isr = tuple(broker for broker in BROKERS if broker in {member.broker for member in change.new_isr})
            self.view = replace(current, isr=isr, epoch=PartitionEpoch(current.epoch + 1))
            self.deliver()

    def move(self) -> None:
        """As after a failure: the old leader leaves the ISR, if two others remain."""
        old = self.view
        leader = self.rng.choice([broker for broker in old.isr if broker != old.leader] or [*old.isr])
        isr = tuple(b for b in old.isr if b != old.leader or len(old.isr) < 3)
        self.view = replace(
            old,
            leader=leader,
            isr=isr,
            epoch=PartitionEpoch(old.epoch + 1),
            leader_epoch=LeaderEpoch(old.leader_epoch + 1),
        )
        self.deliver()


def log_of(replica: Replica) -> bytes:
    log = replica._log
    assert log is not None
    out, offset = b"", Offset(0)
    while offset < log.log_end_offset:
        block = log.read_from_disk(offset, max_bytes=1 << 20, end_offset=log.log_end_offset)
        out += block
        offset = [header for _, header in iter_batches(block)][-1].end_offset
    return out


class Cluster:
    """Three brokers under load: eight publishers that wait for each acknowledgement."""

    def __init__(self, nodes: dict[BrokerId, Node], client: NatsConnection, controller: Controller) -> None:
        self.nodes = nodes
        self.client = client
        self.controller = controller
        self.acked: dict[int, bytes] = {}
        self._stop = asyncio.Event()
        self._publishers = [asyncio.create_task(self._publish(name)) for name in range(8)]

    async def _publish(self, name: int) -> None:
        number = 0
        while not self._stop.is_set():
            number += 1
            payload = b"%d of %d " % (number, name) + b"." * (number % 50)
            try:
                answer = json.loads((await self.client.request(SUBJECT, payload, timeout=0.3)).data or b"{}")
            except TimeoutError:
                await asyncio.sleep(0.005)
                continue
            if "offset" in answer:
                assert answer["offset"] not in self.acked, "one offset for two records"
                self.acked[answer["offset"]] = payload
            else:
                await asyncio.sleep(0.005)

    async def goes_on(self) -> None:
        before = len(self.acked)
        await until(lambda: len(self.acked) > before + 20)

    async def check(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._publishers)
        replicas = [node.replica for node in self.nodes.values()]
        await until(lambda: len({replica.log_end_offset for replica in replicas}) == 1)
        await until(lambda: all(replica.high_watermark == replica.log_end_offset for replica in replicas))
        logs = [log_of(replica) for replica in replicas]
        assert logs[0] == logs[1] == logs[2]
        stored: dict[int, bytes | None] = {}
        for at, _ in iter_batches(logs[0]):
            batch = RecordBatch.decode(logs[0], at)
            stored.update(zip(batch.offsets.tolist(), batch.values, strict=True))
        assert {offset: stored.get(offset) for offset in self.acked} == self.acked
        assert not any(node.metadata.withdrawals for node in self.nodes.values())
        print(
            f"\n{len(self.acked)} acknowledged, {len(stored)} stored, {self.controller.view.leader_epoch} leaderships"
        )

    async def close(self) -> None:
        self._stop.set()
        await asyncio.gather(*self._publishers, return_exceptions=True)
        await self.client.close()
        for node in self.nodes.values():
            await node.close()


@asynccontextmanager
async def cluster(url: str, directory: Path, durability: Durability, rng: Random) -> AsyncIterator[Cluster]:
    nodes = {name: await Node(name, directory / name).start(url) for name in BROKERS}
    for number, node in enumerate(nodes.values()):
        node.broker.on_registered(Incarnation(10 + number))
    controller = Controller(nodes, durability, rng)
    controller.deliver()
    running = Cluster(nodes, await NatsConnection.connect(url), controller)
    try:
        yield running
    finally:
        await running.close()


@pytest.mark.parametrize("durability", [DURABLE, ACCEPTED])
async def test_no_acknowledged_record_is_lost_and_no_replica_diverges(
    nats_server: EmbeddedNatsServer, tmp_path: Path, durability: Durability
) -> None:
    rng = Random(7)
    async with cluster(nats_server.url, tmp_path, durability, rng) as running:
        for _ in range(30):
            await asyncio.sleep(rng.uniform(0.0, 0.2))
            running.controller.move()
        await running.goes_on()
        await running.check()


async def test_a_nats_server_that_comes_and_goes_loses_nothing(nats_server: EmbeddedNatsServer, tmp_path: Path) -> None:
    async with cluster(nats_server.url, tmp_path, DURABLE, Random(1)) as running:
        for moved in (False, True, False):
            await running.goes_on()
            nats_server.stop()
            await until(lambda: not any(node.control.is_connected for node in running.nodes.values()))
            if moved:
                running.controller.move()
            nats_server.start()
        await running.goes_on()
        await running.check()
