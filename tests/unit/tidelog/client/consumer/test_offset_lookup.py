"""Where partitions begin and end, and where a time is, with Kafka's meanings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.base.exceptions import BadRequest, Closed, UnknownStream
from tidelog.client.base.read_positions import AtTime
from wire.layouts import Layout

SECOND = 1_000_000_000
NOON = 1_769_860_800 * SECOND


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    """With `three`: ten records a second from NOON on in partition 0, five later in 1, none in 2."""
    _, broker, _ = cluster
    for second in range(3):
        broker.seed("three", 0, [b"x"] * 10, timestamp=NOON + second * SECOND)
    broker.seed("three", 1, [b"x"] * 5, timestamp=NOON + 60 * SECOND)
    broker.logs["three", 0].start = 4
    return cluster


async def test_beginnings_and_ends(cluster: Cluster) -> None:
    _, broker, client = cluster
    consumer = client.consume("three")
    assert await consumer.beginning_offsets() == {0: 4, 1: 0, 2: 0}
    assert await consumer.end_offsets() == {0: 30, 1: 5, 2: 0}
    assert await consumer.end_offsets([1]) == {1: 5}
    broker.logs["three", 1].end = 3
    assert await client.consume("three").end_offsets() == {0: 30, 1: 5, 2: 0}, "an end never goes back"
    assert await client.offsets("three", "latest", partitions=[1, 2]) == {1: 5, 2: 0}


async def test_extents_are_what_the_leaders_tell_now(cluster: Cluster) -> None:
    _, broker, client = cluster
    life = broker.streams["three"]["incarnation"]
    found = await client.extents("three")
    assert (found.incarnation, found.partitions) == (life, {0: (20, 4, 30, 30), 1: (21, 0, 5, 5), 2: (22, 0, 0, 0)})
    assert found.layouts == (Layout(version=1, partitions=3),)
    broker.logs["three", 1].end, broker.logs["three", 1].uncommitted = 3, 2
    assert (await client.extents("three")).partitions[1] == (21, 0, 3, 5), "a new leader has not committed the rest yet"
    broker.fetches.clear()
    await client.extents("three")
    assert len(broker.fetches) == 3, "a request for each partition"
    with pytest.raises(UnknownStream):
        await client.extents("four")


async def test_spans_of_bytes(cluster: Cluster) -> None:
    _, _, client = cluster
    assert await client.spans("three", {0: (10, 55), 1: (0, 1 << 40)}) == {0: (15, 200), 1: (5, 50)}
    for wanted, said in [
        ({0: (-1, 1)}, "the offset of partition 0"),
        ({0: (0, 0)}, "the bytes of partition 0"),
        ({7: (0, 1)}, "there is no partition 7"),
    ]:
        with pytest.raises(BadRequest, match=said):
            await client.spans("three", wanted)


async def test_of_the_partitions_that_are_read(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.consume("three", partitions=[0, 2]) as consumer:
        assert await consumer.beginning_offsets() == {0: 4, 2: 0}
        assert await consumer.end_offsets() == {0: 30, 2: 0}
        assert await consumer.offsets_for_times(AtTime(0)) == {0: 0, 2: None}
        assert await consumer.end_offsets([1]) == {1: 5}
        assert consumer.positions == {0: 4, 2: 0}, "looking up moves nothing"


async def test_times(cluster: Cluster) -> None:
    _, _, client = cluster
    consumer = client.consume("three")
    assert await consumer.offsets_for_times(NOON) == {0: 0, 1: 0, 2: None}
    assert await consumer.offsets_for_times(NOON + SECOND) == {0: 10, 1: 0, 2: None}
    assert await consumer.offsets_for_times(datetime(2026, 1, 31, 12, 0, 2, tzinfo=UTC)) == {0: 20, 1: 0, 2: None}
    assert await consumer.offsets_for_times(NOON + 3 * SECOND) == {0: None, 1: 0, 2: None}
    assert await consumer.offsets_for_times({1: NOON + 61 * SECOND, 0: NOON + 2 * SECOND}) == {0: 20, 1: None}
    assert await client.offsets("three", NOON + 3 * SECOND, partitions=[0]) == {0: 30}, "the end where there is none"


@pytest.mark.parametrize(
    ("call", "given", "said"),
    [
        ("beginning_offsets", [3], "there is no partition 3; the stream has 0, 1, 2"),
        ("end_offsets", 0, "partitions=0 (int) is no list of partitions"),
        ("end_offsets", "0", "partitions='0' (str) is no list of partitions"),
        ("end_offsets", [1.5], "partitions=[1.5] (list) is no list of whole numbers"),
        ("offsets_for_times", None, "times=None (NoneType) is no point in time"),
        ("offsets_for_times", 1_700_000_000, "times=1700000000 is 1970-01-01T00:00:01.700000000Z in ns"),
        ("offsets_for_times", {0: "now"}, "times[0]='now' (str) is no point in time"),
        ("offsets_for_times", {7: NOON}, "there is no partition 7"),
    ],
)
async def test_wrong_arguments(cluster: Cluster, call: str, given: Any, said: str) -> None:
    _, _, client = cluster
    with pytest.raises(BadRequest) as refusal:
        await getattr(client.consume("three"), call)(given)
    assert said in str(refusal.value)


async def test_a_stream_that_is_not_there_and_a_consumer_that_is_closed(cluster: Cluster) -> None:
    _, _, client = cluster
    with pytest.raises(UnknownStream):
        await client.consume("nothing").end_offsets()
    consumer = client.consume("three")
    await consumer.aclose()
    with pytest.raises(Closed):
        await consumer.offsets_for_times(NOON)
