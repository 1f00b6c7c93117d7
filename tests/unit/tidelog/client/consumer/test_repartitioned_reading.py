"""Consumers of a stream whose number of partitions changes."""

# Rules: R65, R66.

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Literal

import pytest

from tests.unit.tidelog.client.fake_broker import CLUSTER, Cluster, FakeBroker
from tidelog.client.base.exceptions import BadRequest, OffsetOutOfRange
from tidelog.client.base.read_positions import AtTime
from tidelog.client.cluster import route_updates
from tidelog.client.consumer import stream_reading
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.consumer.subscription_state import DOUBT, AssignedStream
from wire.errors import CLUSTER_HEADER
from wire.types import StreamName


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 0.02)


def seed(broker: FakeBroker, partition: int, count: int, stream: str = "three") -> None:
    first = broker.logs[stream, partition].end
    broker.seed(stream, partition, [b"%d" % offset for offset in range(first, first + count)])


async def take(consumer: Consumer, count: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < count:
        record = await consumer.getone(timeout=5)
        assert record is not None, f"only {found} came"
        found.append((record.partition, record.offset))
    return found


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - many things may change it
            await asyncio.sleep(0.001)


async def test_new_partitions_are_read_from_their_beginning_while_it_runs(cluster: Cluster) -> None:
    _, broker, client = cluster
    for partition in range(3):
        seed(broker, partition, 5)
    async with client.consume("three", start="new") as consumer:
        broker.repartition("three", 6)
        for partition in range(6):
            seed(broker, partition, 2)
        found = await take(consumer, 12)
        assert sorted(found) == [(p, offset) for p in range(6) for offset in ((5, 6) if p < 3 else (0, 1))]
        assert consumer.positions == {0: 7, 1: 7, 2: 7, 3: 2, 4: 2, 5: 2}
        assert consumer.waiting == {}


@pytest.mark.parametrize(("on_gap", "is_reported"), [(None, False), ("skip", False), ("raise", True)])
async def test_what_was_removed_of_a_new_partition_before_it_was_read_is_missed(
    cluster: Cluster, on_gap: Literal["raise", "skip"] | None, is_reported: bool
) -> None:
    _, broker, client = cluster
    async with client.consume("three", start={0: 0, 1: 0, 2: 0}, on_gap=on_gap) as consumer:
        broker.repartition("three", 4)
        seed(broker, 3, 5)
        broker.logs["three", 3].start = 3
        if is_reported:
            with pytest.raises(OffsetOutOfRange, match="offset 0 of three/3 is below the start of its log, 3"):
                await consumer.getone(timeout=5)
        else:
            assert await take(consumer, 2) == [(3, 3), (3, 4)]
            assert consumer.missed == {0: 0, 1: 0, 2: 0, 3: 3}


async def test_a_batch_of_a_later_version_is_looked_up_at_once(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 600)
    _, broker, client = cluster
    async with client.consume("three") as consumer:
        broker.repartition("three", 4)
        seed(broker, 3, 1)
        assert await consumer.getone(timeout=0.1) is None
        seed(broker, 0, 1)
        assert sorted(await take(consumer, 2)) == [(0, 0), (3, 0)]


async def test_what_ends_at_the_present_end_picks_nothing_up(cluster: Cluster) -> None:
    _, broker, client = cluster
    seed(broker, 0, 3)
    async with client.consume("three", stop="latest") as consumer:
        broker.repartition("three", 6)
        seed(broker, 4, 3)
        await asyncio.sleep(0.05)
        assert await take(consumer, 3) == [(0, 0), (0, 1), (0, 2)]
        assert await consumer.getone() is None
        assert consumer.is_at_end


async def test_up_to_a_time_new_partitions_count(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 600)
    _, broker, client = cluster
    seed(broker, 0, 3)
    async with client.consume("three", stop=AtTime(1000)) as consumer:
        broker.repartition("three", 4)
        seed(broker, 3, 2)
        found = [(record.partition, record.offset) async for record in consumer]
    assert found == [(0, 0), (0, 1), (0, 2), (3, 0), (3, 1)]


async def test_chosen_partitions_stay_the_chosen_ones(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.consume("three", partitions=[0, 1], order="key") as consumer:
        broker.repartition("three", 6)
        seed(broker, 3, 1)
        seed(broker, 0, 1)
        assert await take(consumer, 1) == [(0, 0)]
        assert consumer.positions == {0: 1, 1: 0}


async def test_keys_in_order_wait_for_the_partitions_they_come_from(cluster: Cluster) -> None:
    _, broker, client = cluster
    for partition in range(3):
        seed(broker, partition, 5)
    async with client.consume("three", order="key") as consumer:
        assert len(await take(consumer, 15)) == 15
        consumer.pause(1)
        for partition in range(3):
            seed(broker, partition, 1)
        broker.repartition("three", 6)
        for partition in range(6):
            seed(broker, partition, 2)
        found = await take(consumer, 10)
        assert {partition for partition, _ in found} == {0, 2, 3, 5}
        assert found.index((0, 5)) < found.index((3, 0))
        assert found.index((2, 5)) < found.index((5, 0))
        await until(lambda: consumer.waiting == {4: {1: 6}})
        assert await consumer.getone(timeout=0.05) is None
        consumer.resume(1)
        found = await take(consumer, 5)
        assert found.index((1, 5)) < found.index((4, 0))
        assert consumer.waiting == {}


async def test_fewer_partitions_wait_in_the_midst_of_an_answer(cluster: Cluster) -> None:
    _, broker, client = cluster
    for partition in range(3):
        seed(broker, partition, 5)
    broker.repartition("three", 1)
    seed(broker, 0, 5)
    broker.repartition("three", 2)
    seed(broker, 0, 5)
    seed(broker, 1, 5)
    async with client.consume("three", order="key") as consumer:
        consumer.pause(2)
        found = [(r.partition, r.offset) for _ in range(2) for r in await consumer.getmany(100, timeout=5)]
        assert sorted(found) == [(p, offset) for p in range(2) for offset in range(5)]
        assert await consumer.getone(timeout=0.05) is None
        assert consumer.waiting == {0: {2: 5}, 1: {0: 10, 2: 5}}
        consumer.resume()
        found = await take(consumer, 20)
        assert found[:5] == [(2, offset) for offset in range(5)]
        assert found.index((0, 9)) < found.index((1, 5))
        assert broker.streams["three"]["partitions"][2]["state"] == "draining"


async def test_the_first_partitions_wait_for_later_ones_from_the_beginning(cluster: Cluster) -> None:
    _, broker, client = cluster
    for partition in range(3):
        seed(broker, partition, 5)
    broker.repartition("three", 1)
    seed(broker, 0, 5)
    async with client.consume("three", start={0: 5, 1: 0, 2: 0}, order="key") as consumer:
        found = await take(consumer, 15)
        assert sorted(found[:10]) == [(p, offset) for p in (1, 2) for offset in range(5)]
        assert found[10:] == [(0, offset) for offset in range(5, 10)]


async def test_batches_come_in_order_too(cluster: Cluster) -> None:
    _, broker, client = cluster
    seed(broker, 0, 5, "s")
    broker.repartition("s", 2)
    seed(broker, 1, 5, "s")
    async with client.consume("s", order="key", stop="latest") as consumer:
        assert [batch.partition async for batch in consumer.batches()] == [0, 1]


async def test_a_cutover_that_is_not_told_yet_is_waited_for(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No push says when it is known, and no other look."""
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 600)
    _, broker, client = cluster
    seed(broker, 0, 5, "s")
    broker.repartition("s", 2, told=False)
    seed(broker, 1, 1, "s")
    async with client.consume("s", order="key") as consumer:
        await take(consumer, 5)
        assert await consumer.getone(timeout=0.05) is None
        assert consumer.waiting == {1: {0: -1}}
        broker.tell("s", 0)
        assert await take(consumer, 1) == [(1, 0)]


async def test_a_version_that_nobody_knows_does_not_hang_a_reader(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stream_reading, "VERSION_TIMEOUT", 0.05)
    _, broker, client = cluster
    broker.streams["s"]["partitioning_version"] = 9
    seed(broker, 0, 3, "s")
    broker.streams["s"]["partitioning_version"] = 1
    async with client.consume("s", order="key") as consumer:
        assert len(await take(consumer, 3)) == 3
    assert "partitioning version 9, which the metadata do not know" in caplog.text


async def test_older_metadata_do_not_take_layouts_back_at_once(cluster: Cluster) -> None:
    _, broker, client = cluster
    before = await client._metadata.refresh("s")
    broker.repartition("s", 2)
    after = await client._metadata.refresh("s")
    stream = AssignedStream("s", "key")
    assert stream.learn(after, 100.0)
    assert not stream.learn(before, 101.0), "a broker that lags behind sent it"
    assert stream.metadata is after
    assert stream.learn(before, 101.0 + DOUBT), "an invented answer does not stay for ever"


async def test_stored_positions_serve_after_a_repartition(cluster: Cluster) -> None:
    _, broker, client = cluster
    for partition in range(3):
        seed(broker, partition, 4)
    async with client.consume("three") as consumer:
        await take(consumer, 12)
        stored = consumer.positions
    broker.repartition("three", 2)
    seed(broker, 0, 1)
    broker.repartition("three", 5)
    for partition in range(5):
        seed(broker, partition, 1)
    async with client.consume("three", start=stored) as consumer:
        found = await take(consumer, 6)
        assert sorted(found) == [(0, 4), (0, 5), (1, 4), (2, 4), (3, 0), (4, 0)]
        assert sorted(consumer.positions) == [0, 1, 2, 3, 4]
    with pytest.raises(BadRequest, match="no offset for partition 1"):
        await client.consume("three", start={0: 1, 2: 3}).start()


async def test_partitions_that_are_gone_have_nothing_left_to_read(cluster: Cluster) -> None:
    _, broker, client = cluster
    seed(broker, 0, 4)
    seed(broker, 2, 4)
    broker.repartition("three", 2)
    consumer = client.consume("three", order="key")
    async with consumer:
        await take(consumer, 8)
        stored = consumer.positions
        broker.streams["three"]["partitions"].pop()
        broker.streams["three"]["routing_generation"] += 1
        seed(broker, 0, 1)
        assert await take(consumer, 1) == [(0, 4)]
        assert consumer.positions == {0: 5, 1: 0, 2: 4}
    async with client.consume("three", start=stored) as consumer:
        assert await take(consumer, 1) == [(0, 4)]
        assert consumer.positions == {0: 5, 1: 0}
    with pytest.raises(BadRequest, match="there is no partition 7"):
        await client.consume("three", start={**stored, 7: 1}).start()
    with pytest.raises(BadRequest, match="order='keys' is none of 'partition' and 'key'"):
        client.consume("three", order="keys")  # type: ignore[arg-type] # that is the point


async def test_a_push_tells_of_new_partitions(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 600)
    transport, broker, client = cluster
    async with client.consume("three") as consumer:
        broker.repartition("three", 4)
        seed(broker, 3, 1)
        assert await consumer.getone(timeout=0.1) is None
        push = json.dumps(broker.streams["three"]).encode()
        transport.publish(broker.subjects.push(StreamName("three")), [push], headers={CLUSTER_HEADER: CLUSTER})
        assert await take(consumer, 1) == [(3, 0)]


async def test_a_partition_that_was_said_to_be_gone_is_read_on(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.repartition("three", 2)
    async with client.consume("three", order="key") as consumer:
        seed(broker, 2, 3)
        assert len(await take(consumer, 2)) == 2
        partitions = broker.streams["three"]["partitions"]
        gone = partitions.pop()
        broker.streams["three"]["routing_generation"] += 1
        await until(lambda: consumer._assigned[2].is_removed)
        seed(broker, 2, 2)
        partitions.append(gone)
        broker.streams["three"]["routing_generation"] += 1
        assert await take(consumer, 3) == [(2, 2), (2, 3), (2, 4)]


@pytest.mark.parametrize(("on_gap", "is_reported"), [(None, False), ("raise", True)])
async def test_a_partition_that_was_said_to_be_gone_keeps_what_is_done_about_gaps(
    cluster: Cluster, on_gap: Literal["raise"] | None, is_reported: bool
) -> None:
    _, broker, client = cluster
    broker.repartition("three", 2)
    seed(broker, 2, 2)
    async with client.consume("three", on_gap=on_gap) as consumer:
        await take(consumer, 2)
        partitions = broker.streams["three"]["partitions"]
        gone = partitions.pop()
        broker.streams["three"]["routing_generation"] += 1
        await until(lambda: consumer._assigned[2].is_removed)
        seed(broker, 2, 3)
        broker.logs["three", 2].start = 4
        partitions.append(gone)
        broker.streams["three"]["routing_generation"] += 1
        if is_reported:
            with pytest.raises(OffsetOutOfRange, match="offset 2 of three/2 is below the start of its log, 4"):
                await consumer.getone(timeout=5)
        else:
            assert await take(consumer, 1) == [(2, 4)]
            assert consumer.missed[2] == 2


async def test_a_partition_that_was_made_anew_between_two_looks_is_read_from_its_beginning(cluster: Cluster) -> None:
    _, broker, client = cluster
    seed(broker, 2, 3)
    async with client.consume("three") as consumer:
        await take(consumer, 3)
        before = consumer.incarnations
        stream = broker.streams["three"]
        broker.repartition("three", 2)
        stream["partitions"].pop()
        del broker.logs["three", 2]
        broker.repartition("three", 3)
        seed(broker, 2, 2)
        assert await take(consumer, 2) == [(2, 0), (2, 1)]
        changed = {number for number, life in consumer.incarnations.items() if life != before[number]}
        assert (changed, consumer.positions[2]) == ({2}, 2)


async def test_the_end_of_a_partition_that_was_made_anew_is_that_of_its_new_log(cluster: Cluster) -> None:
    _, broker, client = cluster
    seed(broker, 2, 3)
    assert await client.offsets("three", "latest", partitions=[2]) == {2: 3}
    broker.repartition("three", 2)
    broker.streams["three"]["partitions"].pop()
    del broker.logs["three", 2]
    broker.repartition("three", 3)
    seed(broker, 2, 1)
    assert await client.offsets("three", "latest", partitions=[2]) == {2: 1}
