"""Keys and values through the callables of users, and what becomes of records that these refuse."""

from __future__ import annotations

import json
from typing import Any, assert_type

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.base.exceptions import BadRequest, BufferFull, Closed, DeserializationFailed, SerializationFailed
from tidelog.client.base.records import Record
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.producer.producer import Producer
from wire.errors import Code


def as_json(value: dict[str, int]) -> bytes:
    return json.dumps(value).encode()


def from_json(data: bytes) -> dict[str, int]:
    found: dict[str, int] = json.loads(data)
    return found


def text(data: bytes) -> str:
    return data.decode()


async def test_both_ways(cluster: Cluster) -> None:
    _, broker, client = cluster
    async with client.producer("s", key_serializer=str.encode, value_serializer=as_json) as producer:
        assert_type(producer, Producer[str, dict[str, int]])
        await producer.send({"a": 1}, key="k")
        await producer.send_nowait({"b": 2})
        await producer.send_many([{"c": 3}, None], keys=["l", "m"])
        (outcome,) = await producer.outcomes([{"d": 4}])
        assert list(outcome[0]) == [0]
    assert broker.logs["s", 0].values() == [b'{"a": 1}', b'{"b": 2}', b'{"c": 3}', None, b'{"d": 4}']
    consumer = client.consume("s", stop="latest", key_deserializer=text, value_deserializer=from_json)
    assert_type(consumer, Consumer[str, dict[str, int]])
    seen = [(record.key, record.value) async for record in consumer]
    assert seen == [("k", {"a": 1}), (None, {"b": 2}), ("l", {"c": 3}), ("m", None), (None, {"d": 4})]


async def test_one_side_alone(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s", key_serializer=str.encode) as producer:
        await producer.send(b"v", key="k")
    async with client.consume("s", stop="latest", key_deserializer=text) as consumer:
        record = await consumer.getone()
        assert_type(record, Record[str, bytes] | None)
        assert record is not None
        assert (record.key, record.value) == ("k", b"v")
    async with client.consume("s", stop="latest", value_deserializer=text) as other:
        assert [(record.key, record.value) for record in await other.getmany()] == [(b"k", "v")]


async def test_equal_keys_share_the_partition_that_their_bytes_have(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("three", key_serializer=str.encode) as one, client.producer("three") as other:
        for key in ("a", "b", "c", "d"):
            receipt = await one.send(b"v", key=key)
            assert receipt.partition == (await other.send(b"v", key=key.encode())).partition


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": object()}, "the value_serializer refuses {'a': <object object"),
        (5, "the value_serializer made '5' (str) of 5 (int); it has to return bytes"),
    ],
)
async def test_what_a_serializer_refuses_is_not_written(cluster: Cluster, value: Any, said: str) -> None:
    _, broker, client = cluster

    def serializer(value: Any) -> Any:
        return str(value) if isinstance(value, int) else json.dumps(value).encode()

    async with client.producer("s", value_serializer=serializer, buffer_bytes=200) as producer:
        for _ in range(20):  # more than the buffer would hold
            with pytest.raises(SerializationFailed) as refusal:
                await producer.send(value)
            assert str(refusal.value).startswith(said)
            with pytest.raises(SerializationFailed):
                producer.send_nowait(value)
            with pytest.raises(SerializationFailed):
                await producer.send_many([{"a": 1}, value])
        assert not broker.logs["s", 0].values()
        await producer.send({"a": 1})
    assert broker.logs["s", 0].values() == [b'{"a": 1}']


async def test_the_cause_is_what_the_serializer_raised(cluster: Cluster) -> None:
    _, _, client = cluster
    async with client.producer("s", key_serializer=str.encode) as producer:
        with pytest.raises(SerializationFailed, match=r"the key_serializer refuses 5 \(int\): TypeError") as refusal:
            await producer.send(b"v", key=5)  # type: ignore[arg-type]
    assert isinstance(refusal.value.__cause__, TypeError)


async def test_the_buffer_counts_what_serializers_make(cluster: Cluster) -> None:
    _, broker, client = cluster

    def padding(size: int) -> bytes:
        return b"x" * size

    async with client.producer("s", value_serializer=padding, buffer_bytes=200) as producer:
        broker.swallow = 1
        producer.send_nowait(100)
        with pytest.raises(BufferFull):
            producer.send_nowait(100)
        producer._abort(Closed(Code.UNAVAILABLE, "given up"))


async def fill(cluster: Cluster, values: list[bytes]) -> None:
    _, broker, _ = cluster
    broker.seed("s", 0, values)


async def test_a_record_that_cannot_be_read_keeps_the_position(cluster: Cluster) -> None:
    _, _, client = cluster
    await fill(cluster, [b"1", b"x", b"3"])
    async with client.consume("s", stop="latest", value_deserializer=int) as consumer:
        first = await consumer.getone()
        assert first is not None
        assert first.value == 1
        for _ in range(2):
            with pytest.raises(DeserializationFailed, match="the value of s/0 at offset 1 cannot be read") as failure:
                await consumer.getone()
            assert consumer.positions == {0: 1}
            found = failure.value.record
            assert found is not None
            assert (found.partition, found.offset, found.value) == (0, 1, b"x")
            assert isinstance(failure.value.__cause__, ValueError)
        await consumer.seek(0, 2)
        last = await consumer.getone()
        assert last is not None
        assert (last.offset, last.value) == (2, 3)
        assert await consumer.getone() is None
        assert consumer.is_at_end


async def test_those_before_it_are_handed_out_first(cluster: Cluster) -> None:
    _, _, client = cluster
    await fill(cluster, [b"1", b"2", b"x", b"4"])
    async with client.consume("s", stop="latest", value_deserializer=int) as consumer:
        assert [record.value for record in await consumer.getmany()] == [1, 2]
        assert consumer.positions == {0: 2}
        with pytest.raises(DeserializationFailed, match="offset 2"):
            await consumer.getmany()
        await consumer.seek(0, 3)
        assert [record.value for record in await consumer.getmany()] == [4]


async def test_an_iteration_ends_in_front_of_it(cluster: Cluster) -> None:
    _, _, client = cluster
    await fill(cluster, [b"k", b"l"])

    def refusing(data: bytes) -> bytes:
        if data == b"l":
            raise LookupError("no such thing")
        return data

    consumer = client.consume("s", stop="latest", value_deserializer=refusing)
    records = aiter(consumer)
    assert (await anext(records)).value == b"k"
    with pytest.raises(DeserializationFailed, match="LookupError: no such thing"):
        await anext(records)
    assert consumer.positions == {0: 1}


async def test_batches_are_bytes(cluster: Cluster) -> None:
    _, _, client = cluster
    await fill(cluster, [b"1", b"x"])
    (batch,) = [batch async for batch in client.consume("s", stop="latest", value_deserializer=int).batches()]
    assert batch.values == [b"1", b"x"]


async def test_what_cannot_be_called_is_refused(cluster: Cluster) -> None:
    _, _, client = cluster

    async def later(data: bytes) -> bytes:
        return data

    calls: list[tuple[Any, str]] = [(client.producer, "serializer"), (client.consume, "deserializer")]
    for name in ("key", "value"):
        for call, side in calls:
            with pytest.raises(BadRequest, match=f"{name}_{side}='json' .str. cannot be called; give a function"):
                call("s", **{f"{name}_{side}": "json"})
            with pytest.raises(BadRequest, match=f"{name}_{side}=.* is a coroutine function"):
                call("s", **{f"{name}_{side}": later})
