"""Message ids of a producer: what is sent, and receipts of records that were there already. What leaders do with them
is tested on real ones (tests/integration/producers/test_message_ids.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.base.exceptions import BadRequest
from tidelog.client.base.records import BatchReceipt, Receipt
from tidelog.client.producer.batches import Gathering, PendingBatch
from tidelog.client.producer.receipts import Receipts
from wire.batch import MAX_MESSAGE_IDS, RecordBatch, with_message_id
from wire.partition_messages.append import UNKNOWN_OFFSET


async def test_ids_travel_as_the_header_of_jetstream_and_the_batch_says_so(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s") as producer:
        await producer.send(b"a")
        await producer.send(b"b", msg_id="1", headers={"h": b"v"})
        await producer.send(b"c", headers={"Nats-Msg-Id": b"2"})
        await producer.send(b"d", msg_id=b"\xff")
    hints = [header.has_message_ids for header, _ in broker.logs["s", 0].batches]
    assert hints == [False, True, True, True]
    batches = [RecordBatch.decode(data) for _, data in broker.logs["s", 0].batches]
    assert [batch.headers[0] for batch in batches] == [
        {},
        {"Nats-Msg-Id": b"1", "h": b"v"},
        {"Nats-Msg-Id": b"2"},
        {"Nats-Msg-Id": b"\xff"},
    ]


@pytest.mark.parametrize("msg_id", ["", b"", 17, "\ud800", ["a"]])
async def test_a_slip_is_named(cluster: Cluster, msg_id: Any) -> None:
    _, _, client = cluster
    async with client.producer("s") as producer:
        with pytest.raises(BadRequest, match="msg_id="):
            await producer.send(b"a", msg_id=msg_id)
        with pytest.raises(BadRequest, match="msg_id="):
            producer.send_nowait(b"a", msg_id=msg_id)


def test_a_batch_with_ids_ends_at_the_leaders_limit() -> None:
    gathering = Gathering(1 << 30, 60.0)
    identified = with_message_id(b"", b"1")
    sealed = [gathering.append(b"v", None, identified, None, 10, None, 0.0) for _ in range(MAX_MESSAGE_IDS + 1)]
    assert sealed == [False] * MAX_MESSAGE_IDS + [True]
    assert [len(batch) for batch in gathering.batches] == [MAX_MESSAGE_IDS, 1]
    many = range(10_000)
    assert gathering.append_run([b"v"] * 10_000, None, None, 1000, many, None, 0.0), "a run has a batch of its own"
    assert gathering.append(b"v", None, identified, None, 10, None, 0.0), "and so has an id behind a long one"
    assert gathering.append_run([b"v"], None, [identified], 10, [0], None, 0.0), "and a run with ids"
    assert [batch.has_message_ids for batch in gathering.batches] == [True, True, False, True, True]


async def test_receipts_of_records_that_were_there_already() -> None:
    batch = PendingBatch(0.0, 1.0)
    batch.timestamp = 5
    loop = asyncio.get_running_loop()
    futures: list[asyncio.Future[Receipt]] = [loop.create_future() for _ in range(4)]
    for number, future in enumerate(futures):
        batch.add(b"v", None, None, 77 if number == 2 else None, 10, future)
    many: list[asyncio.Future[BatchReceipt]] = [loop.create_future() for _ in range(2)]
    batch.add_run([b"v", b"v"], None, None, 10, [0, 1], many[0])
    batch.add_run([b"v", b"v"], None, [b"h", None], 10, [6, 8], many[1])
    Receipts().acknowledge(batch, 4, 100, {0: 17, 2: 3, 3: UNKNOWN_OFFSET, 6: UNKNOWN_OFFSET, 7: 50})
    assert [future.result() for future in futures] == [
        Receipt(4, 17, 5, duplicate=True),
        Receipt(4, 101, 5),
        Receipt(4, 3, 77, duplicate=True),
        Receipt(4, -1, 5, duplicate=True),
    ]
    assert [future.result() for future in many] == [
        BatchReceipt(4, 104, 5, [0, 1]),
        BatchReceipt(4, 106, 5, [6, 8], {6: -1, 8: 50}),
    ]


async def test_a_leader_may_have_forgotten_where_the_original_is(cluster: Cluster) -> None:
    _, broker, client = cluster
    broker.originals = {0: 7, 1: UNKNOWN_OFFSET, 5: 8}
    async with client.producer("s") as producer:
        (receipt,) = await producer.send_many([b"a", b"b", b"c"], keys=[b"k"] * 3, msg_ids=["1", "2", "3"])
    assert (receipt.base_offset, receipt.duplicates) == (0, {0: 7, 1: -1})


@pytest.mark.parametrize("keys", [None, [b"k"] * 5000])
async def test_ids_of_many_records_travel_with_them(cluster: Cluster, keys: list[bytes] | None) -> None:
    _, broker, client = cluster
    ids = [None if number % 7 == 0 else str(number) for number in range(5000)]
    async with client.producer("s") as producer:
        receipts = await producer.send_many([b"%d" % number for number in range(5000)], keys=keys, msg_ids=ids)
        await producer.send_many([b"without"], partition=0)
    assert all(len(receipt.indices) <= MAX_MESSAGE_IDS for receipt in receipts)
    assert sorted(index for receipt in receipts for index in receipt.indices) == [*range(5000)]
    found: dict[bytes | None, bytes | None] = {}
    for partition in range(3):
        for header, data in broker.logs["s", partition].batches:
            batch = RecordBatch.decode(data)
            assert header.has_message_ids == (batch.values != [b"without"])
            found |= {value: h.get("Nats-Msg-Id") for value, h in zip(batch.values, batch.headers, strict=True)}
    wanted = {b"%d" % number: None if each is None else each.encode() for number, each in enumerate(ids)}
    assert found == {**wanted, b"without": None}


@pytest.mark.parametrize("msg_ids", [["a"], [1, 2], ["", "b"], "ab", {"a": 1, "b": 2}])
async def test_a_slip_in_a_list_of_ids_is_named(cluster: Cluster, msg_ids: Any) -> None:
    _, _, client = cluster
    async with client.producer("s") as producer:
        with pytest.raises(BadRequest, match="msg_id"):
            await producer.send_many([b"a", b"b"], msg_ids=msg_ids)
