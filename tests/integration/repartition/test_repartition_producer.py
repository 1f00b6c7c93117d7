"""Five producers of keyed records, one of which hears no pushes, while their stream goes from 3 to 6, 12 and 5
partitions: each record is stored once, and those of a key are in order over the logs."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterable

import pytest
from crc32c import crc32c

import tidelog
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.cluster.route_updates import RouteUpdates
from tidelog.server.devcluster import DevCluster
from wire.layouts import Layout

STREAM = "keyed"
PRODUCERS = 5
KEYS = 16
"""Of each producer."""
LATEST = 6
"""Records of a key that are on their way at once."""


class Writer:
    """Sends numbers in order under each of its keys, in every way that a producer has."""

    def __init__(self, name: str, client: tidelog.Client) -> None:
        self._name = name
        self._client = client
        self.is_over = False
        self.count = 0
        """Of values under each key."""
        self.receipts: dict[tuple[int, int], bytes] = {}
        """By partition and offset, the value that is said to be there."""
        self.seen: Counter[int] = Counter()
        """Records by partition, since it was last cleared."""

    async def run(self) -> None:
        async with self._client.producer(STREAM, delivery_timeout_ms=LIMIT * 1000) as producer:
            turn = 0
            while not self.is_over:
                await getattr(self, ("_one_by_one", "_at_once", "_as_a_list")[turn % 3])(producer)
                turn += 1
                await asyncio.sleep(0.01)

    def _next(self) -> list[tuple[bytes, bytes]]:
        """Key and value of the next record of each key."""
        number = self.count
        self.count += 1
        keys = [f"{self._name}-{key}" for key in range(KEYS)]
        return [(key.encode(), f"{key} {number}".encode()) for key in keys]

    async def _one_by_one(self, producer: tidelog.Producer) -> None:
        for key, value in self._next():
            self._note(await producer.send(value, key=key), value)

    async def _at_once(self, producer: tidelog.Producer) -> None:
        records = [record for _ in range(LATEST) for record in self._next()]
        futures = [producer.send_nowait(value, key=key) for key, value in records]
        for future, (_, value) in zip(futures, records, strict=True):
            self._note(await future, value)

    async def _as_a_list(self, producer: tidelog.Producer) -> None:
        records = [record for _ in range(LATEST) for record in self._next()]
        values = [value for _, value in records]
        receipts = await producer.send_many(values, keys=[key for key, _ in records])
        assert sorted(at for receipt in receipts for at in receipt.indices) == [*range(len(records))]
        for receipt in receipts:
            for place, at in enumerate(receipt.indices):
                self.receipts[receipt.partition, receipt.base_offset + place] = values[at]
                self.seen[receipt.partition] += 1

    def _note(self, receipt: tidelog.Receipt, value: bytes) -> None:
        self.receipts[receipt.partition, receipt.offset] = value
        self.seen[receipt.partition] += 1


def layout_of(layouts: Iterable[Layout], partition: int, offset: int) -> Layout:
    """Under which the record there was stored."""
    return [each for each in layouts if partition < each.partitions and offset >= each.start(partition)][-1]


async def test_producers_keep_the_order_of_keys_while_partitions_come_and_go(
    cluster: DevCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients = [await tidelog.connect(cluster.nats_url) for _ in range(PRODUCERS)]
    admin = clients[0]
    await admin.create_stream(STREAM, partitions=3, replication_factor=3)
    subscribe = RouteUpdates._subscribe

    async def unless_deaf(updates: RouteUpdates, *given: object) -> None:
        if updates is not clients[-1]._metadata.updates:
            await subscribe(updates, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(RouteUpdates, "_subscribe", unless_deaf)
    writers = [Writer(f"p{number}", client) for number, client in enumerate(clients)]
    writing = [asyncio.create_task(writer.run()) for writer in writers]
    for partitions in (6, 12, 5):
        await until(lambda: all(writer.count > 10 for writer in writers), "records of all producers")
        await admin.repartition(STREAM, partitions)

        async def is_finished(count: int = partitions) -> bool:
            status = await admin.repartition_status(STREAM)
            return status["repartition"] is None and status["partitions"] == count

        await until(is_finished, f"the end of the repartition to {partitions}", 2 * LIMIT)
        for writer in writers:
            writer.seen.clear()

        def is_everywhere(count: int = partitions) -> bool:
            return all(writer.seen for writer in writers) and {n for w in writers for n in w.seen} >= {*range(count)}

        await until(is_everywhere, f"records of all producers, in all {partitions} partitions")
    for writer in writers:
        writer.is_over = True
    await asyncio.gather(*writing)

    metadata = await admin.metadata(STREAM)
    assert [layout.partitions for layout in metadata.layouts] == [3, 6, 12, 5]
    found: dict[bytes, list[tuple[int, int, int]]] = defaultdict(list)
    stored: dict[tuple[int, int], bytes] = {}
    async for record in admin.consume(STREAM, start="earliest", stop="latest"):
        assert record.key is not None
        assert record.value is not None
        layout = layout_of(metadata.layouts, record.partition, record.offset)
        assert crc32c(record.key) % layout.partitions == record.partition
        found[record.key].append((layout.version, record.offset, int(record.value.split()[1])))
        stored[record.partition, record.offset] = record.value
    for number, writer in enumerate(writers):
        for key in range(KEYS):
            numbers_of_key = [value for _, _, value in sorted(found[f"p{number}-{key}".encode()])]
            assert numbers_of_key == [*range(writer.count)]
        assert writer.receipts.items() <= stored.items()
        assert len(writer.receipts) == writer.count * KEYS
    for client in clients:
        await client.close()
