"""The consumer against a broker in memory."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster, FakeBroker, make
from tidelog.client.base.exceptions import (
    BadRequest,
    Closed,
    CorruptBatch,
    OffsetOutOfRange,
    UnknownStream,
    WrongIncarnation,
)
from tidelog.client.base.read_positions import AtTime
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.consumer.fetcher import Outcome, PartitionFetcher
from wire.errors import Code, TidelogError


@pytest.fixture
async def cluster(cluster: Cluster) -> Cluster:
    """With 100 records in `s`."""
    _, broker, _ = cluster
    for base in range(0, 100, 10):
        broker.seed("s", 0, [b"%d" % (base + i) for i in range(10)], timestamp=base + 1)
    return cluster


async def numbers(consumer: Consumer) -> list[int]:
    return [int(record.value or b"-1") async for record in consumer]


async def test_everything_committed_is_read_in_order(cluster: Cluster) -> None:
    transport, _, client = cluster
    records = [record async for record in client.consume("s", stop="latest")]
    assert [record.offset for record in records] == list(range(100))
    assert [int(record.value or b"") for record in records] == list(range(100))
    first = records[0]
    assert (first.stream, first.partition, first.timestamp, first.key, dict(first.headers)) == ("s", 0, 1, None, {})
    assert first.time == datetime(1970, 1, 1, tzinfo=UTC)
    assert transport.inboxes == {}
    assert not client._consumers


async def test_batches_are_columns(cluster: Cluster) -> None:
    _, _, client = cluster
    batches = [batch async for batch in client.consume("s", start=95, stop=98).batches()]
    (batch,) = batches
    assert (batch.stream, batch.partition, len(batch)) == ("s", 0, 3)
    assert batch.values == [b"95", b"96", b"97"]
    assert batch.offsets.tolist() == [95, 96, 97]
    assert batch.timestamps.tolist() == [91, 91, 91]
    assert batch.keys == [None] * 3
    table = batch.to_arrow()
    assert table.column("offset").to_pylist() == [95, 96, 97]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [
        ("latest", "latest", [99]),
        ("new", "latest", []),
        (97, "latest", [97, 98, 99]),
        (100, "latest", []),
        ({0: 42}, {0: 44}, [42, 43]),
        (AtTime(41), AtTime(51), list(range(40, 50))),
        (datetime(1970, 1, 1, tzinfo=UTC), 3, [0, 1, 2]),
        ("1970-01-01T00:00:00.000000090Z", "latest", list(range(90, 100))),
        (5, 5, []),
    ],
)
async def test_starts_and_stops(cluster: Cluster, start: object, stop: object, expected: list[int]) -> None:
    _, _, client = cluster
    assert await numbers(client.consume("s", start=start, stop=stop)) == expected  # type: ignore[arg-type]


async def test_an_offset_above_the_end_is_refused_where_reading_ends(cluster: Cluster) -> None:
    _, broker, client = cluster
    with pytest.raises(OffsetOutOfRange, match=r"offset 101 of s/0 is above .* 100: start at 100") as caught:
        await numbers(client.consume("s", start=101, stop="latest"))
    assert caught.value.code is Code.OFFSET_AHEAD
    broker.seed("three", 1, [b"%d" % i for i in range(4)])
    assert await numbers(client.consume("three", start=3, stop="latest")) == [3], "too much for some partitions only"


async def test_a_stored_position_above_the_end_of_its_partition_is_refused_where_reading_ends(cluster: Cluster) -> None:
    """As after the stream was deleted and created again."""
    _, broker, client = cluster
    broker.seed("three", 1, [b"%d" % i for i in range(4)])
    with pytest.raises(OffsetOutOfRange, match=r"offset 5 of three/2 is above .* 0: start at 0"):
        await numbers(client.consume("three", start={0: 0, 1: 3, 2: 5}, stop="latest"))
    assert await numbers(client.consume("three", start={0: 0, 1: 3, 2: 0}, stop="latest")) == [3]


async def test_partitions_are_merged_each_in_its_order(cluster: Cluster) -> None:
    _, broker, client = cluster
    for partition in range(3):
        for base in range(5):
            broker.seed("three", partition, [b"%d" % (base * 4 + i) for i in range(4)])
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    async for record in client.consume("three", stop="latest", max_bytes=1):
        seen[record.partition].append(record.offset)
    assert seen == {partition: list(range(20)) for partition in range(3)}
    only = [record async for record in client.consume("three", stop="latest", partitions=[1])]
    assert {record.partition for record in only} == {1}


async def test_it_waits_for_uncommitted_records(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.consume("s", start="new", stop=102) as consumer:
        reading = asyncio.create_task(numbers(consumer))
        broker.seed("s", 0, [b"100", b"101", b"102"])
        assert await reading == [100, 101]


async def test_new_is_fixed_when_the_consumer_starts(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.consume("s", start="new", stop=101) as consumer:
        broker.seed("s", 0, [b"100"])
        assert await numbers(consumer) == [100]


async def test_a_stop_ahead_in_time_ends_the_reading_then(cluster: Cluster) -> None:
    _, _, client = cluster
    began = time.monotonic()
    stop = datetime.now(UTC) + timedelta(seconds=0.2)
    consumer = client.consume("s", start=98, stop=stop)
    assert await numbers(consumer) == [98, 99]
    assert time.monotonic() - began > 0.1


async def test_it_goes_on_after_a_change_of_leader(cluster: Cluster) -> None:
    _, broker, client = cluster
    got: list[int] = []
    async for record in client.consume("s", stop=105, max_bytes=1):
        got.append(record.offset)
        if record.offset == 30:
            broker.kill()
            asyncio.get_running_loop().call_later(0.05, broker.take_over)
            asyncio.get_running_loop().call_later(0.1, broker.seed, "s", 0, [b"x"] * 5)
    assert got == list(range(105))
    assert broker.fetches[-1].leader_epoch == 2


async def test_it_goes_on_after_the_connection_was_lost(cluster: Cluster) -> None:
    transport, _, client = cluster
    got = []
    async for record in client.consume("s", stop="latest", max_bytes=1):
        got.append(record.offset)
        if record.offset == 20:
            transport.lose()
            asyncio.get_running_loop().call_later(0.05, transport.come_back)
    assert got == list(range(100))


async def test_it_fetches_no_further_ahead_than_its_bound(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.consume("s", stop="latest", max_bytes=1) as consumer:
        iterator = aiter(consumer)
        await anext(iterator)
        for _ in range(50):
            await asyncio.sleep(0)
        reads = [request for request in broker.fetches if request.max_bytes]
        assert len(reads) <= 4


async def test_an_offset_below_the_log_is_refused(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.logs["s", 0].start = 40
    with pytest.raises(OffsetOutOfRange, match=r"offset 3 of s/0 .* 40"):
        await numbers(client.consume("s", start=3))
    assert (await numbers(client.consume("s", stop="latest")))[0] == 40


async def test_corrupt_batches_are_never_handed_out(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.corrupt = True
    with pytest.raises(CorruptBatch, match="s/0 at offset 0"):
        await numbers(client.consume("s"))


class Interruption(BaseException):
    """As pytest's, when a test takes too long: no Exception."""


@pytest.mark.parametrize("fault", [RuntimeError, Interruption])
async def test_a_fault_of_the_client_is_raised_and_does_not_look_like_the_end(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, fault: type[BaseException]
) -> None:
    _, _, client = cluster
    whole = PartitionFetcher._read

    def read(fetcher: PartitionFetcher, body: bytes) -> Outcome:
        if fetcher.position == 50:
            raise fault("in the middle")
        return whole(fetcher, body)

    monkeypatch.setattr(PartitionFetcher, "_read", read)
    with pytest.raises(fault, match="in the middle"):
        await numbers(client.consume("s", start=50, stop="latest"))
    assert not client._consumers


async def test_leaving_early_stops_the_fetching(cluster: Cluster) -> None:
    transport, _, client = cluster
    async with client.consume("s") as consumer:
        async for record in consumer:
            if record.offset == 5:
                break
    assert transport.inboxes == {}
    with pytest.raises(Closed):
        await numbers(consumer)


async def test_a_stream_that_is_deleted_or_made_anew_ends_its_consumers(cluster: Cluster) -> None:
    _, broker, client = cluster
    with pytest.raises(UnknownStream):
        await numbers(client.consume("nosuch"))
    async with client.consume("s", start="new") as consumer:
        reading = asyncio.create_task(numbers(consumer))
        broker.kill()
        broker.streams["s"]["incarnation"] = 77
        with pytest.raises(WrongIncarnation, match="make a new producer or consumer"):
            await reading
    broker.take_over()
    async with client.consume("three") as consumer:
        reading = asyncio.create_task(numbers(consumer))
        broker.kill()
        del broker.streams["three"]
        with pytest.raises(UnknownStream):
            await reading


async def test_a_stream_that_is_deleted_while_positions_are_looked_up_ends_the_look_up(cluster: Cluster) -> None:
    _, broker, client = cluster
    await client.metadata("three")
    broker.kill()
    asyncio.get_running_loop().call_later(0.1, broker.streams.pop, "three")
    with pytest.raises(UnknownStream):
        await numbers(client.consume("three"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"partitions": [4]}, "no partition 4; the stream has 0"),
        ({"partitions": 0}, r"partitions=0 is no list of partitions, such as \[0, 2\]"),
        ({"partitions": "0"}, "partitions='0' is no list"),
        ({"start": "sometime"}, "'sometime' is no position"),
        ({"start": -1}, "offset -1"),
        ({"start": {0: 1}, "partitions": [0], "stop": {}}, "stop names no offset for partition 0"),
        ({"stop": "new"}, "no end"),
        ({"start": datetime(2026, 1, 1)}, "no time zone"),  # noqa: DTZ001 - that is the point
    ],
)
async def test_positions_that_cannot_be_are_refused(cluster: Cluster, arguments: dict[str, object], text: str) -> None:
    _, _, client = cluster
    with pytest.raises(BadRequest, match=text):
        await numbers(client.consume("s", **arguments))  # type: ignore[arg-type]


async def test_offsets_for_callers_that_plan_their_reads(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.seed("three", 1, [b"a", b"b"])
    assert await client.offsets("three", "latest") == {0: 0, 1: 2, 2: 0}
    assert await client.offsets("s", "earliest") == {0: 0}
    assert await client.offsets("s", AtTime(11)) == {0: 10}
    with pytest.raises(BadRequest, match=r"1700000000 is 1970-.* which is hardly meant: seconds, ms"):
        await client.offsets("s", 1_700_000_000)
    assert await client.offsets("s", 10**18) == {0: 100}
    broker.logs["s", 0].end = 100
    assert await client.offsets("s", "latest") == {0: 100}
    broker.logs["s", 0].end = 90
    assert await client.offsets("s", "latest") == {0: 100}, "latest never goes back"


async def test_a_range_is_fetched_exactly(cluster: Cluster) -> None:
    _, _, client = cluster
    batches = [batch async for batch in client.fetch_batches("s", 0, 15, 33)]
    assert [int(offset) for batch in batches for offset in batch.offsets] == list(range(15, 33))
    with pytest.raises(WrongIncarnation):
        async for _ in client.fetch_batches("s", 0, 0, 1, stream_incarnation=3):
            pass
    with pytest.raises(BadRequest, match="no partition 9"):
        async for _ in client.fetch_batches("s", 9, 0, 1):
            pass


# ---------------------------------------------------------------- going on where reading stopped
async def fill_three(broker: FakeBroker) -> set[tuple[int, int]]:
    for partition in range(3):
        for _ in range(30):
            broker.seed("three", partition, [b"x"] * 10)
    return {(partition, offset) for partition in range(3) for offset in range(300)}


@pytest.mark.parametrize("taken", [0, 1, 9, 10, 11, 395, 900])
async def test_a_consumer_resumed_at_the_positions_reads_each_record_once(cluster: Cluster, taken: int) -> None:
    """Also after a break, with much fetched ahead, and through JSON."""
    _, broker, client = cluster
    expected = await fill_three(broker)
    seen: list[tuple[int, int]] = []
    async with client.consume("three", stop="latest") as consumer:
        assert consumer.positions == {0: 0, 1: 0, 2: 0}
        async for record in consumer:
            if len(seen) == taken:
                seen_before = dict(consumer.positions)
                assert seen_before[record.partition] == record.offset + 1, "this one was handed out, too"
                seen.append((record.partition, record.offset))
                break
            seen.append((record.partition, record.offset))
    stored = json.loads(json.dumps(consumer.positions))
    seen += [(record.partition, record.offset) async for record in client.consume("three", start=stored, stop="latest")]
    assert len(seen) == len(expected)
    assert set(seen) == expected


async def test_positions_of_batches_are_after_the_last_one_handed_out(cluster: Cluster) -> None:
    _, broker, client = cluster
    expected = await fill_three(broker)
    seen: list[tuple[int, int]] = []
    consumer = client.consume("three", stop="latest")
    async for batch in consumer.batches():
        seen += [(batch.partition, int(offset)) for offset in batch.offsets]
        assert consumer.positions[batch.partition] == batch.offsets[-1] + 1
        if len(seen) >= 350:
            break
    async for batch in client.consume("three", start=consumer.positions, stop="latest").batches():
        seen += [(batch.partition, int(offset)) for offset in batch.offsets]
    assert len(seen) == len(expected)
    assert set(seen) == expected


async def test_positions_are_kept_when_reading_has_come_to_its_end(cluster: Cluster) -> None:
    _, _, client = cluster
    consumer = client.consume("s", start=90, stop=95)
    assert await numbers(consumer) == [90, 91, 92, 93, 94]
    assert consumer.positions == {0: 95}
    latest = client.consume("s", start="latest", stop="latest")
    await latest.start()
    assert latest.positions == {0: 99}
    await latest.aclose()
    assert latest.positions == {0: 99}


async def test_positions_move_over_removed_records(cluster: Cluster) -> None:
    """A consumer that stores them while nothing new comes begins at a record that is there."""
    _, broker, client = cluster
    async with client.consume("s", start=3, on_gap="skip", stop=101) as consumer:
        broker.logs["s", 0].start = 100
        reading = asyncio.create_task(numbers(consumer))
        async with asyncio.timeout(30):
            while consumer.positions != {0: 100}:  # noqa: ASYNC110 - positions are no event
                await asyncio.sleep(0.01)
        broker.seed("s", 0, [b"100"])
        assert await reading == [100]


async def test_a_consumer_is_iterated_over_once(cluster: Cluster) -> None:
    """The second iteration would begin behind the records fetched for the first."""
    _, _, client = cluster
    async with client.consume("s", stop="latest") as consumer:
        first = aiter(consumer)
        assert (await anext(first)).offset == 0
        with pytest.raises(Closed, match=r"start=consumer\.positions"):
            await numbers(consumer)
        assert (await anext(first)).offset == 1, "the first is as it was"


# ---------------------------------------------------------------- reading from followers
@pytest.fixture
async def replicated() -> Cluster:
    transport, broker, client = make()
    broker.followers = {"b2": None, "b3": None}
    broker.create("s", 1)
    for base in range(0, 100, 10):
        broker.seed("s", 0, [b"%d" % (base + i) for i in range(10)])
    return transport, broker, client


def of_followers(broker: FakeBroker) -> set[str]:
    return {asked for asked in broker.asked if asked is not None}


async def test_records_come_from_a_follower_and_positions_from_the_leader(replicated: Cluster) -> None:
    _, broker, client = replicated
    assert await numbers(client.consume("s", stop="latest", read_from="follower")) == list(range(100))
    assert broker.asked[:2] == [None, None], "the start and the stop"
    (follower,) = set(broker.asked[2:])
    assert follower in ("b2", "b3")


async def test_a_range_comes_from_a_follower_and_tells_how_far_it_is(replicated: Cluster) -> None:
    _, broker, client = replicated
    seen: list[int] = []
    told: list[int] = []
    async for batch in client.fetch_batches("s", 0, 5, 95, max_bytes=1, read_from="follower", on_position=told.append):
        seen += [int(offset) for offset in batch.offsets]
        assert told[-1] == seen[-1] + 1
    assert seen == list(range(5, 95))
    assert set(broker.asked) <= {"b2", "b3"}
    with pytest.raises(BadRequest, match="needs a rack"):
        async for _ in client.fetch_batches("s", 0, 5, 95, read_from="nearest"):
            pass


async def test_consumers_are_spread_over_the_followers(replicated: Cluster) -> None:
    _, broker, client = replicated
    for _ in range(2):
        await numbers(client.consume("s", stop="latest", read_from="follower"))
    assert of_followers(broker) == {"b2", "b3"}


async def test_the_leader_is_read_by_default(replicated: Cluster) -> None:
    _, broker, client = replicated
    assert await numbers(client.consume("s", stop="latest")) == list(range(100))
    assert of_followers(broker) == set()


@pytest.mark.parametrize("end", ["refuses", "is gone", "is silent"])
async def test_reading_goes_on_without_a_gap_when_followers_fail(replicated: Cluster, end: str) -> None:
    _, broker, client = replicated
    seen: list[int] = []
    async with client.consume("s", stop="latest", read_from="follower", max_bytes=1, prefetch_bytes=1) as consumer:
        async for record in consumer:
            seen.append(record.offset)
            if record.offset not in (30, 60):
                continue
            follower = [asked for asked in broker.asked if asked is not None][-1]
            if end == "refuses":
                broker.followers[follower] = TidelogError(Code.UNAVAILABLE, "is not in sync")
            elif end == "is gone":
                broker.gone(follower)
            else:
                broker.silent.add(follower)
    assert seen == list(range(100))
    assert of_followers(broker) == {"b2", "b3"}
    assert broker.asked[-1] is None, "the leader at last"


async def test_a_follower_that_comes_into_sync_is_read_from(
    replicated: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, broker, client = replicated
    monkeypatch.setattr("tidelog.client.consumer.follower_sources.REST_NS", 0)
    (partition,) = broker.streams["s"]["partitions"]
    partition["isr"] = ["b1"]
    async with client.consume("s", stop=101, read_from="follower") as consumer:
        reading = asyncio.create_task(numbers(consumer))
        partition["isr"] = ["b1", "b2"]
        async with asyncio.timeout(30):
            while "b2" not in broker.asked:  # noqa: ASYNC110 - a list is no event
                await asyncio.sleep(0.01)
        broker.seed("s", 0, [b"100"])
        assert await reading == list(range(101))


@pytest.mark.parametrize(
    ("rack", "asked"),
    [("west", {"b2"}), ("north", {"b3"}), ("east", set()), ("elsewhere", set())],
    ids=["a follower", "another", "the leader", "nobody"],
)
async def test_the_nearest_replica_is_read_from(replicated: Cluster, rack: str, asked: set[str]) -> None:
    _, broker, client = replicated
    broker.racks = {"b1": "east", "b2": "west", "b3": "north", "b4": "west"}
    for _ in range(3):
        found = await numbers(client.consume("s", stop="latest", read_from="nearest", rack=rack))
        assert found == list(range(100))
    assert of_followers(broker) == asked


async def test_the_leader_is_read_from_while_the_nearest_replica_does_not_serve(replicated: Cluster) -> None:
    _, broker, client = replicated
    broker.racks = {"b1": "east", "b2": "west", "b3": "north"}
    broker.followers["b2"] = TidelogError(Code.UNAVAILABLE, "is not in sync")
    assert await numbers(client.consume("s", stop="latest", read_from="nearest", rack="west")) == list(range(100))
    assert of_followers(broker) == {"b2"}


async def test_a_rack_that_becomes_known_is_read_from(replicated: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new controller knows the racks once brokers have answered it."""
    _, broker, client = replicated
    monkeypatch.setattr("tidelog.client.consumer.follower_sources.REST_NS", 0)
    async with client.consume("s", stop=101, read_from="nearest", rack="west") as consumer:
        reading = asyncio.create_task(numbers(consumer))
        broker.racks = {"b2": "west"}
        async with asyncio.timeout(30):
            while "b2" not in broker.asked:  # noqa: ASYNC110 - a list is no event
                await asyncio.sleep(0.01)
        broker.seed("s", 0, [b"100"])
        assert await reading == list(range(101))


async def test_a_slip_in_read_from_is_named(replicated: Cluster) -> None:
    _, _, client = replicated
    with pytest.raises(BadRequest, match="read_from='isr' is none of 'leader', 'follower' and 'nearest'"):
        client.consume("s", read_from="isr")  # type: ignore[arg-type]
