"""The producer against a broker in memory."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Literal

import numpy as np
import pytest
from crc32c import crc32c

from dataplane.replica.derived.producer_table import ProducerLimits, ProducerTable
from tests.fake_nats import delivered
from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.base.exceptions import (
    BadRequest,
    BufferFull,
    Closed,
    DeliveryTimeout,
    MessageTooLarge,
    NotEnoughReplicas,
    RecordTooLarge,
    UnknownStream,
    WrongIncarnation,
)
from tidelog.client.base.read_positions import AtTime
from tidelog.client.base.records import Receipt
from tidelog.client.producer.partitioner import murmur2
from wire.batch import Compression, RecordBatch, parse_header
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.protobuf.tidelog_pb2 import AppendRequest


async def test_send_gives_partition_offset_and_timestamp(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        first = await producer.send(b"a")
        second = await producer.send(b"b", timestamp=AtTime(77))
    assert (first.partition, first.offset) == (0, 0)
    assert abs(first.timestamp - time.time_ns()) < 60e9
    assert second == Receipt(0, 1, 77)
    assert broker.logs["s", 0].values() == [b"a", b"b"]


@pytest.mark.parametrize("acks", ["all", "none"])
async def test_a_batch_that_nats_carries_no_more_fails_and_the_next_one_is_sent(
    cluster: Cluster, acks: Literal["all", "none"]
) -> None:
    """The connection was made anew, to a server with a lower max_payload."""
    transport, _, client = cluster
    async with client.producer("s", acks=acks) as producer:
        await producer.send(b"one", key=b"k")
        transport.max_payload = 3000
        with pytest.raises(MessageTooLarge, match="raise max_payload"):
            await producer.send(b"x" * 5000, key=b"k")
        await producer.send(b"small", key=b"k")
        await producer.flush()


async def test_records_of_one_turn_share_a_batch_and_get_their_own_offsets(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        futures = [producer.send_nowait(b"%d" % i) for i in range(1000)]
        receipts = await asyncio.gather(*futures)
    assert [receipt.offset for receipt in receipts] == list(range(1000))
    assert len(broker.appends) == 1


async def test_keys_go_to_their_partition_and_keep_their_order(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three", batch_bytes=400) as producer:
        for i in range(300):
            producer.send_nowait(b"%d" % i, key=b"k%d" % (i % 7))
        await producer.flush()
    seen: dict[bytes, list[int]] = {}
    for partition in range(3):
        for _, data in broker.logs["three", partition].batches:
            batch = RecordBatch.decode(data)
            for key, value in zip(batch.keys, batch.values, strict=True):
                assert key is not None
                assert value is not None
                seen.setdefault(key + b"@%d" % partition, []).append(int(value))
    assert len(seen) == 7, "each key in one partition"
    assert all(numbers == sorted(numbers) for numbers in seen.values())


async def test_records_without_a_key_are_spread_over_the_partitions(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("three") as producer:
        for i in range(9):
            await producer.send(b"%d" % i)
    assert [broker.logs["three", p].end for p in range(3)] == [3, 3, 3]


async def test_key_value_headers_and_tombstones_arrive(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s", compression="lz4") as producer:
        producer.send_nowait(b"v", key=b"k", headers={"h": b"x"})
        producer.send_nowait(None, key=b"k")
        producer.send_nowait(b"", headers={})
        await producer.flush()
    records = [record async for record in client.consume("s", stop="latest")]
    assert [(r.key, r.value, dict(r.headers)) for r in records] == [
        (b"k", b"v", {"h": b"x"}),
        (b"k", None, {}),
        (None, b"", {}),
    ]


async def test_a_producer_puts_keys_where_clients_of_kafka_do(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.create("six", 6)
    keys = [b"%d" % number for number in range(50)]
    async with client.producer("six", partitioner="murmur2") as producer:
        receipts = [await producer.send(b"one", key=key) for key in keys]
        await producer.send_many(keys, keys=keys)
    expected = [murmur2(key) % 6 for key in keys]
    assert [receipt.partition for receipt in receipts] == expected
    found = {record.value: record.partition async for record in client.consume("six", stop="latest")}
    assert [found[key] for key in keys] == expected


async def test_a_producer_that_chooses_no_partitioner_has_that_of_the_stream(cluster: Cluster) -> None:
    """Two hashes on one stream would give a key two homes, and its records no order."""
    _, broker, client = cluster
    broker.create("kafka", 6, partitioner="murmur2")
    keys = [b"%d" % number for number in range(50)]
    async with client.producer("kafka") as producer:
        receipts = [await producer.send(b"one", key=key) for key in keys]
        await producer.send_many(keys, keys=keys)
        futures = [producer.send_nowait(b"two", key=key) for key in keys]
        receipts += [await future for future in futures]
        assert [receipt.partition for receipt in receipts] == [murmur2(key) % 6 for key in keys] * 2
        broker.repartition("kafka", 4)
        receipts = [await producer.send(b"three", key=key) for key in keys]
        assert [receipt.partition for receipt in receipts] == [murmur2(key) % 4 for key in keys]
    found = {record.value: record.partition async for record in client.consume("kafka", stop="latest")}
    assert [found[key] for key in keys] == [murmur2(key) % 6 for key in keys]
    async with client.producer("kafka", partitioner="crc32c") as producer:
        receipts = [await producer.send(b"four", key=key) for key in keys]
    assert [receipt.partition for receipt in receipts] == [crc32c(key) % 4 for key in keys]


async def test_a_producer_does_not_guess_a_partitioner_of_a_later_version(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.create("later", 6, partitioner="xxh3")
    producer = client.producer("later")
    for _ in range(2):
        with pytest.raises(BadRequest, match="stream 'later' spreads keys by partitioner 'xxh3', which this version"):
            await producer.send(b"one", key=b"k")
    await producer.close()
    async with client.producer("later", partitioner="crc32c") as producer:
        assert (await producer.send(b"one", key=b"k")).partition == crc32c(b"k") % 6


async def test_records_of_every_kind_share_a_batch_and_get_their_own_receipts(cluster: Cluster) -> None:
    """The columns of a batch begin with the first record that has a cell in them."""
    _, broker, client = cluster
    async with client.producer("s", linger_ms=20) as producer:
        futures = [
            producer.send_nowait(b"0"),
            producer.send_nowait(b"1"),
            producer.send_nowait(b"2", timestamp=AtTime(77)),
            producer.send_nowait(b"3"),
            producer.send_nowait(b"4", key=b"k"),
        ]
        many = asyncio.create_task(producer.send_many([b"5", None]))
        keyed = asyncio.create_task(producer.send_many([b"7", b"8"], keys=[None, b"k"]))
        await asyncio.sleep(0)
        futures += [producer.send_nowait(b"9", headers={"h": b"x"}), producer.send_nowait(b"10")]
        futures[1].cancel()
        receipts = await asyncio.gather(*futures, return_exceptions=True)
        assert [(r.base_offset, list(r.indices)) for r in await many] == [(5, [0, 1])]
        assert [(r.base_offset, list(r.indices)) for r in await keyed] == [(7, [0, 1])]
    assert len(broker.appends) == 1
    assert [r.offset for r in receipts if isinstance(r, Receipt)] == [0, 2, 3, 4, 9, 10]
    assert [r.timestamp == 77 for r in receipts if isinstance(r, Receipt)] == [False, True, *[False] * 4]
    records = [record async for record in client.consume("s", stop="latest")]
    assert [r.value for r in records] == [b"0", b"1", b"2", b"3", b"4", b"5", None, b"7", b"8", b"9", b"10"]
    assert [r.offset for r in records if r.key] == [4, 8]
    assert [r.offset for r in records if r.headers] == [9]
    assert [r.offset for r in records if r.timestamp == 77] == [2]


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        (1_700_000_000_123_456_789, 1_700_000_000_123_456_789),
        (-(10**17), -(10**17)),
        (np.int64(1_700_000_000_123_456_789), 1_700_000_000_123_456_789),
        (datetime(2026, 1, 31, 12, 0, 0, 5, tzinfo=UTC), 1_769_860_800_000_005_000),
        (datetime(2026, 1, 31, 14, 0, 0, 5, tzinfo=timezone(timedelta(hours=2))), 1_769_860_800_000_005_000),
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (AtTime(0), 0),
        (AtTime(1_700_000_000), 1_700_000_000),
    ],
)
async def test_timestamps_are_ns_or_a_datetime(cluster: Cluster, given: Any, stored: int) -> None:
    _, _, client = cluster
    async with client.producer("s") as producer:
        assert (await producer.send(b"a", timestamp=given)).timestamp == stored
        assert (await producer.send_nowait(b"b", timestamp=given)).timestamp == stored
    assert [record.timestamp async for record in client.consume("s", stop="latest")] == [stored, stored]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (1_700_000_000.5, r"timestamp=1700000000\.5 \(float\) is no point in time; give ns since 1970"),
        (datetime(2026, 1, 31), "2026-01-31T00:00:00 has no time zone"),  # noqa: DTZ001 - that is the point
        (1_700_000_000, "timestamp=1700000000 is 1970-01-01T00:00:01.7"),
        (1_700_000_000_000, "hardly meant"),
        (1_700_000_000_000_000, "seconds, ms and µs are not taken"),
        (0, r"use time\.time_ns\(\), or AtTime\(0\)"),
        (True, r"timestamp=True \(bool\)"),
        ("2026-01-31T12:00:00Z", "is no point in time; give ns"),
        (1 << 70, "64 bits"),
        (AtTime(1 << 70), "64 bits"),
    ],
)
async def test_timestamps_that_are_probably_slips_are_refused(cluster: Cluster, given: Any, says: str) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        with pytest.raises(BadRequest, match=says):
            await producer.send(b"a", timestamp=given)
        with pytest.raises(BadRequest, match=says):
            producer.send_nowait(b"a", timestamp=given)
    assert broker.logs["s", 0].end == 0


async def test_several_values_of_one_header_are_kept(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s") as producer:
        await producer.send(b"a", headers={"one": b"1", "two": [b"x", b"y"], "none": ()})
    (record,) = [record async for record in client.consume("s", stop="latest")]
    assert record.headers == {"one": b"1", "two": b"y"}
    assert record.header_values("two") == (b"x", b"y")
    assert record.header_values("one") == (b"1",)
    assert record.header_values("three") == ()
    assert record.header_items == (("one", b"1"), ("two", b"x"), ("two", b"y"))
    async with client.producer("s") as producer:
        await producer.send(b"b", headers=record.headers)
    copied = [record async for record in client.consume("s", start=1, stop="latest")]
    assert copied[0].header_items == record.header_items, "what was read is written with all its values"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"a": "1"}, r"header 'a' is str '1'; values are bytes, or a list of them, such as b'1'"),
        ({"a": 1}, "header 'a' is int 1"),
        ({"a": None}, "header 'a' is NoneType None"),
        ({"a": [b"1", "2"]}, "header 'a' is str '2'"),
        ({b"a": b"1"}, "header name b'a' is bytes b'a'; names are text"),
        ([("a", b"1")], "is not a mapping"),
        ("a: 1", "is not a mapping"),
    ],
)
async def test_headers_that_are_no_headers_are_refused_by_name(cluster: Cluster, given: Any, says: str) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        with pytest.raises(BadRequest, match=says):
            await producer.send(b"a", headers=given)
        with pytest.raises(BadRequest, match=says):
            producer.send_nowait(b"a", headers=given)
        await producer.send(b"b")
    assert broker.logs["s", 0].end == 1, "and harm no other record"


async def test_headers_are_taken_at_the_moment_of_sending(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s", linger_ms=20) as producer:
        headers = {}
        for number in range(3):
            headers["n"] = b"%d" % number
            producer.send_nowait(b"a", headers=headers)
        await producer.flush()
    assert [record.headers["n"] async for record in client.consume("s", stop="latest")] == [b"0", b"1", b"2"]


async def test_batches_are_compressed_as_the_producer_says_else_as_the_stream_does(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.create("dense", compression="zstd")
    broker.create("newer", compression="of-the-future")
    found = []
    choices: list[tuple[str, Literal["none", "lz4", "zstd"] | None]] = [
        ("dense", None), ("dense", "lz4"), ("dense", "none"), ("s", None), ("newer", None),
    ]  # fmt: skip
    for stream, choice in choices:
        async with client.producer(stream, compression=choice) as producer:
            await producer.send(b"again and again " * 100)
        found.append(parse_header(broker.logs[stream, 0].batches[-1][1]).compression)
    assert found == [Compression.ZSTD, Compression.LZ4, Compression.NONE, Compression.NONE, Compression.NONE]


async def test_a_producer_asks_for_its_level_and_its_time_with_every_batch(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        await producer.send(b"a")
    async with client.producer("s", durability="replica_accepted:1", confirm_timeout=30.0) as producer:
        await producer.send(b"b")
    plain, asked = (request for request, _ in broker.appends)
    assert (plain.durability, plain.confirm_timeout_ms) == (AppendRequest.STREAM, 0)
    assert (asked.durability, asked.durability_replicas, asked.confirm_timeout_ms) == (
        AppendRequest.REPLICA_ACCEPTED, 1, 30_000,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"durability": "sturdy"}, "none of durable"),
        ({"durability": "durable", "acks": "none"}, "acks='none'"),
        ({"durability": "majority_durable", "acks": "leader"}, "acks='leader'"),
        ({"confirm_timeout": 0.0}, "confirm_timeout"),
        ({"confirm_timeout": 4000.0}, "confirm_timeout"),
    ],
)
async def test_a_level_or_time_that_cannot_be_is_refused_at_once(
    cluster: Cluster, arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadRequest, match=words):
        cluster[2].producer("s", **arguments)


async def test_a_level_of_more_replicas_than_there_are_is_refused_at_start(cluster: Cluster) -> None:
    with pytest.raises(BadRequest, match="ask for 1 at most"):
        await cluster[2].producer("s", durability="replica_durable:4").start()


async def test_send_many_says_where_each_value_went(cluster: Cluster) -> None:
    _, broker, client = cluster
    values = [b"%d" % i for i in range(5000)]
    async with client.producer("three", batch_bytes=20_000) as producer:
        receipts = await producer.send_many(values)
        keyed = await producer.send_many(values, keys=[b"k%d" % (i % 11) for i in range(5000)])
    for run in (receipts, keyed):
        assert sorted(index for receipt in run for index in receipt.indices) == list(range(5000))
        for receipt in run:
            log = broker.logs["three", receipt.partition].values()
            for place, index in enumerate(receipt.indices):
                assert log[receipt.base_offset + place] == values[index]


async def test_a_leader_killed_with_batches_in_hand_costs_no_record_and_repeats_none(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s", batch_bytes=200) as producer:
        await producer.send(b"before")
        broker.mute, broker.swallow = 1, 4  # the first is written and not answered, the others are lost
        futures = [producer.send_nowait(b"%d" % i) for i in range(40)]
        await delivered()
        broker.kill()
        await delivered()
        broker.take_over()
        receipts = await asyncio.gather(*futures)
    assert broker.logs["s", 0].values() == [b"before", *(b"%d" % i for i in range(40))]
    assert [receipt.offset for receipt in receipts] == list(range(1, 41))


async def test_without_a_leader_only_probes_are_sent(cluster: Cluster) -> None:
    transport, broker, client = cluster
    async with client.producer("s") as producer:
        broker.kill()
        began = time.monotonic()
        future = producer.send_nowait(b"x" * 100_000)
        await asyncio.sleep(0.3)
        assert not future.done()
        assert len(transport.sent) < 25 * (time.monotonic() - began) / 0.3
        broker.take_over()
        assert (await future).offset == 0


async def test_it_goes_on_after_the_connection_was_lost(cluster: Cluster) -> None:
    transport, broker, client = cluster
    async with client.producer("s") as producer:
        broker.mute = 1
        future = producer.send_nowait(b"a")
        await delivered()
        transport.lose()
        later = producer.send_nowait(b"b")
        await delivered()
        transport.come_back()
        assert (await future).offset == 0
        assert (await later).offset == 1
    assert broker.logs["s", 0].values() == [b"a", b"b"]


async def test_an_answer_that_does_not_decode_tells_nothing_and_the_batch_is_sent_again(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        broker.garbled = 1
        assert (await producer.send(b"a")).offset == 0
    assert broker.logs["s", 0].values() == [b"a"]
    assert [header.base_sequence for _, header in broker.appends] == [0, 0]


@pytest.mark.parametrize("identity", [(-1, 0), (1 << 63, 0), (1, -1), (1, 1 << 31)])
async def test_an_identity_that_no_controller_gives_out_is_refused(cluster: Cluster, identity: tuple[int, int]) -> None:
    _, broker, client = cluster
    broker.identity = identity
    with pytest.raises(TidelogError, match=f"producer.init gives out id {identity[0]}, epoch {identity[1]}"):
        async with client.producer("s") as producer:
            await producer.send(b"a")


async def test_it_waits_for_the_connections_buffer(cluster: Cluster) -> None:
    transport, _, client = cluster
    async with client.producer("s") as producer:
        transport.is_full = True
        future = producer.send_nowait(b"a")
        await delivered()
        assert not future.done()
        transport.is_full = False
        assert (await future).offset == 0


async def test_calls_that_wait_for_room_hear_of_the_end_of_their_stream(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s", buffer_bytes=1000, max_in_flight=1) as producer:
        broker.kill()
        del broker.streams["s"]
        producer.send_nowait(b"x" * 900)
        waiting = [asyncio.create_task(producer.send_many([b"x" * 900])) for _ in range(3)]
        for call in waiting:
            with pytest.raises(UnknownStream):
                await call


async def test_a_call_that_fails_after_it_was_given_room_leaves_it_to_the_next_one(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s", buffer_bytes=1000) as producer:
        first = producer.send_nowait(b"x" * 900)
        wrong = asyncio.create_task(producer.send(b"x" * 900, partition=7))
        right = asyncio.create_task(producer.send(b"x" * 900))
        await first
        with pytest.raises(BadRequest):
            await wrong
        assert (await right).offset == 1


async def test_a_compacted_stream_takes_records_with_a_key_only(cluster: Cluster) -> None:
    """Compaction would keep a record without a key for ever."""
    _, broker, client = cluster
    broker.create("c", 2, compact="true")
    async with client.producer("c") as producer:
        for given in (b"v", None):
            with pytest.raises(BadRequest, match=r"'c' is compacted .* give it a key"):
                await producer.send(given)
            with pytest.raises(BadRequest, match="'c' is compacted"):
                producer.send_nowait(given, partition=1)
        with pytest.raises(BadRequest, match="'c' is compacted"):
            await producer.send_many([b"v"])
        with pytest.raises(BadRequest, match="'c' is compacted"):
            await producer.send_many([b"v", b"w"], keys=[b"k", None])
        assert await producer.send_many([]) == []
        await producer.send(b"v", key=b"")
        await producer.send(None, key=b"k")
        await producer.send_many([b"v", None], keys=[b"k", b"l"])
        producer.send_nowait(b"v", key=b"k")
        with pytest.raises(BadRequest, match="'c' is compacted"):
            producer.send_nowait(b"v")
        await producer.flush()
    assert broker.logs["c", 0].end + broker.logs["c", 1].end == 5


@pytest.mark.parametrize("data", [b"", b"+ACK", b'{"stream":"s","seq":1}'])
async def test_the_answer_of_another_service_is_no_acknowledgement(cluster: Cluster, data: bytes) -> None:
    """A service that listens on all subjects, and is faster than the leader, which has not stored the record yet."""
    transport, broker, client = cluster
    async with client.producer("s") as producer:
        broker.swallow = 1

        def answer(message: Message) -> None:
            transport.publish(message.reply or "", [data])

        transport.listen("tidelog.s.0.append", answer)
        future = producer.send_nowait(b"v")
        for _ in range(20):
            await asyncio.sleep(0)
        assert not future.done()
        assert broker.logs["s", 0].end == 0
        producer._abort(Closed(Code.BAD_REQUEST, "given up"))
        with pytest.raises(Closed, match="given up; these records were sent, and may or may not have been written"):
            await future


async def test_no_answer_at_all_ends_in_a_timeout_of_unknown_outcome(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s", delivery_timeout_ms=1000) as producer:
        broker.swallow = 1000
        with pytest.raises(DeliveryTimeout) as caught:
            await producer.send(b"a")
        assert caught.value.outcome_unknown
        broker.swallow = 0
        assert (await producer.send(b"b")).partition == 0, "the next one goes on in a new session"
    assert broker.producers_made == 2


async def test_too_few_replicas_until_the_timeout_is_that_error(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.refusals = [TidelogError(Code.NOT_ENOUGH_REPLICAS, "s/0 has 1 of 2")] * 10_000
    async with client.producer("s", delivery_timeout_ms=4000) as producer:
        with pytest.raises(NotEnoughReplicas, match=r"given up after .* s, not written"):
            await producer.send(b"a")
    broker.refusals = []


async def test_flush_raises_an_unawaited_error_once(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        broker.refusals = [TidelogError(Code.READONLY, "s is read-only")]
        producer.send_nowait(b"a").add_done_callback(lambda future: future.exception())
        with pytest.raises(TidelogError, match="read-only"):
            await producer.flush()
        await producer.flush()
        broker.refusals = [TidelogError(Code.READONLY, "s is read-only")]
        with pytest.raises(TidelogError, match="read-only"):
            await producer.send(b"b")
        await producer.flush()


async def test_a_record_above_a_limit_is_refused_before_it_is_sent(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.create("small", 1, max_record_bytes="100")
    async with client.producer("small") as producer:
        await producer.send(b"x" * 100)
        with pytest.raises(RecordTooLarge, match=r"101 bytes .* above 100, the stream's max_record_bytes"):
            await producer.send(b"x" * 101)
        with pytest.raises(RecordTooLarge):
            await producer.send_many([b"", b"x" * 101])
    async with client.producer("s", batch_bytes=1 << 30) as producer:
        with pytest.raises(RecordTooLarge, match="NATS"):
            await producer.send(b"x" * (1 << 20))
        largest = producer._record_limit.max_bytes
        await producer.send(b"x" * largest)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
async def test_full_batches_fit_into_a_message(cluster: Cluster, compression: str | None) -> None:
    _, broker, client = cluster
    async with client.producer("s", batch_bytes=1 << 30, compression=compression) as producer:  # type: ignore[arg-type]
        for i in range(30_000):
            producer.send_nowait(b"%d" % i, key=b"k", headers={"h": b""}, timestamp=10**18 + i)
            if i % 5000 == 0:
                await asyncio.sleep(0)
        await producer.flush()
    assert broker.logs["s", 0].end == 30_000


async def test_a_full_buffer_refuses_nowait_and_makes_send_wait(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s", buffer_bytes=1000) as producer:
        broker.mute = 1
        held = producer.send_nowait(b"x" * 900)
        with pytest.raises(BufferFull):
            producer.send_nowait(b"y" * 100)
        waiting = asyncio.create_task(producer.send(b"y" * 100))
        many = asyncio.create_task(producer.send_many([b"z" * 700, b"z" * 200, b"z"]))
        await delivered()
        assert not waiting.done()
        broker.take_over()
        await held
        await waiting
        await many
    assert [value[:1] for value in broker.logs["s", 0].values() if value] == [b"x", b"y", b"z", b"z", b"z"]


async def test_acks_none_asks_for_no_answer(cluster: Cluster) -> None:
    transport, broker, client = cluster
    async with client.producer("s", acks="none") as producer:
        assert (await producer.send(b"a")).offset == -1
        await producer.send_many([b"b", b"c"])
        assert transport.inboxes == {}
    assert broker.producers_made == 0
    assert broker.logs["s", 0].values() == [b"a", b"b", b"c"]


async def test_nothing_is_left_behind(cluster: Cluster) -> None:
    transport, broker, client = cluster
    async with client.producer("three") as producer:
        broker.mute = 3
        for i in range(100):
            producer.send_nowait(b"%d" % i, key=b"%d" % i)
        await delivered()
        transport.lose()
        transport.come_back()
        await producer.flush()
        assert producer._buffer.used == 0
        assert transport.inboxes == {}
    assert not client._producers


async def test_a_stream_that_is_made_anew_ends_its_producers(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        await producer.send(b"a")
        broker.streams["s"]["incarnation"] = 99
        broker.refusals = [TidelogError(Code.WRONG_INCARNATION, "s/0 was created again")]
        with pytest.raises(WrongIncarnation):
            await producer.send(b"b")
        await delivered()
        with pytest.raises(WrongIncarnation, match="make a new producer"):
            await producer.send(b"c")


async def test_a_stream_that_is_deleted_ends_its_producers(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        broker.kill()
        del broker.streams["s"]
        with pytest.raises(UnknownStream):
            await producer.send(b"a")


async def test_bad_arguments_are_refused_in_a_sentence(cluster: Cluster) -> None:
    _, _, client = cluster
    with pytest.raises(UnknownStream):
        await client.producer("nosuch").start()
    with pytest.raises(BadRequest, match="'some'"):
        client.producer("s", acks="some")  # type: ignore[call-overload]
    with pytest.raises(BadRequest, match="max_in_flight=6"):
        client.producer("s", max_in_flight=6)
    with pytest.raises(BadRequest, match="compression='gzip'"):
        client.producer("s", compression="gzip")  # type: ignore[call-overload]
    producer = client.producer("s")
    with pytest.raises(BadRequest, match="not started"):
        producer.send_nowait(b"a")
    async with producer:
        with pytest.raises(BadRequest, match=r"\(generator\) is not a list"):
            await producer.send_many(b"%d" % i for i in range(3))  # type: ignore[arg-type]
        with pytest.raises(BadRequest, match="no partition 5"):
            await producer.send(b"a", partition=5)
        with pytest.raises(BadRequest, match="2 keys"):
            await producer.send_many([b"a"], keys=[b"a", b"b"])
        with pytest.raises(BadRequest, match="64 bits"):
            await producer.send(b"a", timestamp=1 << 70)
        with pytest.raises(TidelogError, match="header key"):
            await producer.send(b"a", headers={"h" * 70_000: b""})
    with pytest.raises(Closed):
        await producer.send(b"a")


async def test_a_producer_that_was_forgotten_goes_on_and_nothing_is_said_to_be_lost(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.logs["s", 0].producers = ProducerTable(limits=ProducerLimits(max_producers=1))
    async with client.producer("s") as idle, client.producer("s") as other:
        await idle.send(b"a")
        await other.send(b"b")
        futures = [idle.send_nowait(b"c"), idle.send_nowait(b"d")]
        assert [(await future).offset for future in futures] == [2, 3]
    assert broker.logs["s", 0].values() == [b"a", b"b", b"c", b"d"]
