"""The blocking client against a broker in memory, which runs on the client's own loop."""

from __future__ import annotations

import asyncio
import inspect
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_type_hints

import pytest

import tidelog
from tests.unit.tidelog.client.fake_broker import FakeBroker, make
from tidelog import sync
from tidelog.client.producer.partitioner import murmur2
from tidelog.loop_thread import LoopThread

OTHER_NAMES = {"aclose": "close"}
"""Of the asyncio classes: the name of the same method here."""


@dataclass
class World:
    client: sync.Client
    broker: FakeBroker
    thread: LoopThread


@pytest.fixture
def world() -> Iterator[World]:
    thread = LoopThread("test")
    _, broker, inner = thread.call(make)

    def fill() -> None:
        broker.create("s")
        broker.create("three", partitions=3)
        for partition in range(3):
            for base in range(0, 30, 10):
                broker.seed("three", partition, [b"%d" % offset for offset in range(base, base + 10)])

    thread.call(fill)
    client = sync.Client(inner, thread)
    yield World(client, broker, thread)
    client.close()


@pytest.mark.parametrize(
    "kind",
    [sync.Client, sync.Consumer, sync.Cursor, sync.GroupConsumer, sync.Producer, sync.TransactionalProducer],
    ids=lambda kind: str(kind.__name__),
)
def test_every_public_name_is_there_with_its_arguments(kind: type) -> None:
    same = getattr(tidelog, kind.__name__)
    names, here = all_names(same), all_names(kind)
    wanted = {OTHER_NAMES.get(name, name) for name in names if not name.startswith("_")}
    assert wanted == {name for name in here if not name.startswith("_")}
    for name in wanted & set(names):
        one, other = names[name], here[name]
        assert isinstance(one, property) == isinstance(other, property), name
        if isinstance(one, property):
            assert get_type_hints(one.fget)["return"] == other.__orig_class__.__args__[0], name
            assert inspect.getdoc(other) == inspect.getdoc(one)
        if inspect.isfunction(one):
            assert inspect.signature(one).parameters == inspect.signature(other).parameters, name
            assert inspect.getdoc(other) == inspect.getdoc(one) or name in {"batches", "close"}


def all_names(kind: type) -> dict[str, Any]:
    return {name: each for cls in reversed(kind.__mro__[:-1]) for name, each in vars(cls).items()}


def test_every_class_that_waits_is_there() -> None:
    """Others, such as Record and the errors, are those of `tidelog`."""
    waiting = {
        name
        for name in dir(tidelog)
        if inspect.isclass(kind := getattr(tidelog, name))
        and any(inspect.iscoroutinefunction(each) for each in vars(kind).values())
    }
    here = {name for name, kind in vars(sync).items() if getattr(kind, "__module__", "") == sync.__name__}
    assert waiting == {name for name in here if name[0].isupper()}


def test_a_producer_goes_by_the_partitioner_of_its_stream(world: World) -> None:
    world.thread.call(lambda: world.broker.create("kafka", 6, partitioner="murmur2"))
    with world.client.producer("kafka") as producer:
        for number in range(20):
            key = b"%d" % number
            assert producer.send(b"", key=key).partition == murmur2(key) % 6


def test_publish_and_read(world: World) -> None:
    with world.client.producer("s") as producer:
        assert [producer.send(b"%d" % number).offset for number in range(3)] == [0, 1, 2]
        waiting = [producer.send_nowait(b"%d" % number, key=b"k") for number in range(3, 6)]
        producer.flush()
        assert [receipt.result(timeout=5).offset for receipt in waiting] == [3, 4, 5]
        assert sum(receipt.record_count for receipt in producer.send_many([b"6", b"7"])) == 2
        assert producer.delay() is None
        assert producer.stream == "s"
    assert [record.value for record in world.client.consume("s", stop="latest")] == [b"%d" % n for n in range(8)]
    (batch,) = world.client.consume("s", start=6, stop="latest").batches()
    assert batch.values == [b"6", b"7"]
    assert world.client.offsets("s", "latest") == {0: 8}
    assert [value for part in world.client.fetch_batches("s", 0, 2, 5) for value in part.values] == [b"2", b"3", b"4"]
    assert next(world.client.fetch_batches("s", 0, 2, 5)).values == [b"2"], "an iteration that is left early"


def test_the_outcome_of_each_record(world: World) -> None:
    with world.client.producer("s") as producer:
        ((indices, receipt),) = producer.outcomes([b"a", b"b"])
    assert list(indices) == [0, 1]
    assert isinstance(receipt, tidelog.BatchReceipt)
    assert receipt.base_offset == 0


def test_positions_are_behind_what_the_caller_has(world: World) -> None:
    with world.client.consume("three", stop="latest") as consumer:
        seen: dict[int, int] = {}
        for record in consumer:
            seen[record.partition] = record.offset + 1
            assert consumer.positions == {0: 0, 1: 0, 2: 0} | seen
        assert seen == dict.fromkeys(range(3), 30)
    assert not list(world.client.consume("three", start=consumer.positions, stop="latest"))


def test_an_iteration_obeys_pause_and_seek(world: World) -> None:
    with world.client.consume("three", stop="latest") as consumer:
        seen = []
        for record in consumer:
            seen.append((record.partition, record.offset))
            if len(seen) == 1:
                consumer.pause(record.partition)
            if len(seen) == 61:
                consumer.seek(seen[0][0], 25)
                consumer.resume()
    held = seen[0][0]
    assert held not in {partition for partition, _ in seen[1:61]}
    assert seen[61:] == [(held, offset) for offset in range(25, 30)]


def test_one_and_many(world: World) -> None:
    with world.client.consume("three", stop="latest", partitions=[1]) as consumer:
        first = consumer.getone(timeout=5)
        assert first is not None
        assert first.offset == 0
        assert [record.offset for record in consumer.getmany(3)] == [1, 2, 3]
        assert consumer.position(1) == 4
        assert consumer.lag == {1: 26}
        consumer.pause()
        assert consumer.getone(timeout=0.02) is None
        assert not consumer.is_at_end


def test_keys_and_values_through_callables(world: World) -> None:
    def number(data: bytes) -> int:
        return int(data)

    with world.client.producer("s", key_serializer=str.encode) as producer:
        producer.send(b"1", key="a")
    with world.client.consume("s", stop="latest", key_deserializer=bytes.decode, value_deserializer=number) as consumer:
        assert [(record.key, record.value) for record in consumer] == [("a", 1)]


def test_errors_are_those_of_the_client(world: World) -> None:
    with pytest.raises(tidelog.UnknownStream):
        list(world.client.consume("nothing"))
    with pytest.raises(tidelog.BadRequest, match="acks"):
        world.client.producer("s", acks="some")  # type: ignore[call-overload]
    producer = world.client.producer("s", buffer_bytes=200)
    producer.start()
    world.broker.swallow = 1
    producer.send_nowait(b"x" * 100)
    with pytest.raises(tidelog.BufferFull):
        producer.send_nowait(b"x" * 100)
    world.client.close()
    for late in (world.client.streams, producer.flush, lambda: world.client.producer("s")):
        with pytest.raises(tidelog.Closed):
            late()
    world.client.close()


def test_it_works_where_a_loop_runs(world: World) -> None:
    """As in a notebook."""

    async def cell() -> int:
        return len(list(world.client.consume("three", stop="latest")))

    assert asyncio.run(cell()) == 90


def test_after_a_fork_it_says_so_and_the_parent_goes_on(world: World) -> None:
    with world.client.producer("s") as producer:
        producer.send(b"before")
        read, write = os.pipe()
        child = os.fork()
        if child == 0:  # no test runs on here, whatever happens
            try:
                for call in (
                    world.client.streams,
                    lambda: producer.send(b"child"),
                    lambda: world.client.offsets("s", 0),
                ):
                    try:
                        call()
                    except tidelog.Closed as error:
                        os.write(write, f"{error}\n".encode())
                world.client.close()
                os.write(write, b"closed")
            finally:
                os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read().splitlines()
        os.waitpid(child, 0)
        assert [line.partition(";")[2] for line in said[:3]] == [" connect again in this process"] * 3
        assert said[3] == "closed"
        producer.send(b"after")
    assert world.client.offsets("s", "latest") == {0: 2}


def test_several_threads_publish(world: World) -> None:
    with world.client.producer("s") as producer:
        threads = [threading.Thread(target=lambda: [producer.send(b"x") for _ in range(20)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert world.client.offsets("s", "latest") == {0: 80}


def test_a_call_from_its_own_thread_does_not_wait_for_itself(world: World) -> None:
    with pytest.raises(tidelog.Closed, match="waits for itself"):
        world.thread.call(world.client.streams)


def test_nobody_there_leaves_no_thread() -> None:
    before = threading.active_count()
    with pytest.raises(tidelog.NoServer):
        sync.connect("nats://127.0.0.1:1", connect_timeout=0.5)
    assert threading.active_count() == before
