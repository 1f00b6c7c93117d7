"""Clients' batches on their way to the log: heavy ones are decoded in a thread, and nothing overtakes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.leading.append_queue import MAX_QUEUED_BATCHES, MAX_QUEUED_BYTES_OF_ALL, AppendQueue, QueuedAppend
from dataplane.broker.leading.bounds_of_all import BoundsOfAll, ProducersOfAll
from dataplane.broker.roles.broker_context import Counters
from dataplane.broker.roles.role import Role
from dataplane.replica.leader.append_rules import Asked, ClientBatch
from dataplane.replica.leader.commits import Uncommitted
from dataplane.replica.replica_settings import ReplicaSettings
from wire.batch import BatchBuilder, Compression, EncodedBatch, ReceivedBatch
from wire.batch.encoded import RecordLimit
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.types import LeaderEpoch, Offset


def received(name: str, *, heavy: bool, limit: int = 1 << 20) -> QueuedAppend:
    builder = BatchBuilder()
    builder.add_values([bytes(1000)] * (1000 if heavy else 1))
    compression = Compression.ZSTD if heavy else Compression.NONE
    encoded = b"".join(builder.build(1, compression=compression).stamp(Offset(0), LeaderEpoch(0))[0])
    batch = ReceivedBatch(encoded)
    assert batch.is_heavy is heavy
    client_batch = ClientBatch(request=AppendRequest(), buffer=memoryview(encoded), open=ReceivedBatch, received=batch)
    return QueuedAppend(Asked(level=None, batch=client_batch), client_batch, RecordLimit(limit), name, timeout=5.0)


class Leader:
    """A role that decodes, and the outcomes, in order."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.bugs: dict[str | None, Exception] = {}
        """By name of the batch: what appending it raises."""
        self.tasks: set[asyncio.Task[None]] = set()
        bounds = BoundsOfAll(ProducersOfAll(0), Uncommitted(ReplicaSettings()))
        self.role = SimpleNamespace(
            ended=False,
            view=SimpleNamespace(key="s/0"),
            spawn=self._spawn,
            context=SimpleNamespace(
                broker="b1",
                loop=asyncio.get_running_loop(),
                decoders=ThreadPoolExecutor(1),
                counters=Counters(),
                the=lambda _: bounds,
            ),
        )
        self.queue = AppendQueue(cast(Role, self.role), self)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    def admit(self, append: QueuedAppend) -> None:
        return None

    def holds(self, version: int) -> bool:
        return False

    def on_turn(self, append: QueuedAppend, content: EncodedBatch, *, waited: bool) -> None:
        if append.inbox in self.bugs:
            raise self.bugs[append.inbox]
        self.outcomes.append(f"{append.inbox} {content.record_count}{' waited' if waited else ''}")

    def refuse_unread(self, append: QueuedAppend, error: TidelogError) -> None:
        limit: str | None = error.detail(LIMIT)
        self.outcomes.append(" ".join(filter(None, [append.inbox, error.code.name, limit])))

    refuse = refuse_unread

    async def settled(self) -> list[str]:
        await asyncio.gather(*self.tasks)
        return self.outcomes


@pytest.fixture
async def leader() -> AsyncIterator[Leader]:
    made = Leader()
    yield made
    made.role.context.decoders.shutdown()


async def test_nothing_overtakes_a_heavy_batch(leader: Leader) -> None:
    leader.queue.take(received("first", heavy=False))
    assert leader.outcomes == ["first 1"], "at once"
    for name, heavy in (("second", True), ("third", False), ("fourth", True), ("fifth", False)):
        leader.queue.take(received(name, heavy=heavy))
    assert leader.outcomes == ["first 1"]
    expected = ["first 1", "second 1000 waited", "third 1 waited", "fourth 1000 waited", "fifth 1 waited"]
    assert await leader.settled() == expected
    leader.queue.take(received("sixth", heavy=False))
    assert leader.outcomes[-1] == "sixth 1", "at once again"


async def test_a_batch_that_is_refused_does_not_stop_those_behind_it(leader: Leader) -> None:
    leader.queue.take(received("large", heavy=True, limit=10))
    leader.queue.take(received("next", heavy=False))
    assert await leader.settled() == ["large RECORD_TOO_LARGE", "next 1 waited"]


async def test_the_queue_is_bounded(leader: Leader) -> None:
    for number in range(MAX_QUEUED_BATCHES + 2):
        leader.queue.take(received(str(number), heavy=True))
    assert leader.outcomes == [f"{MAX_QUEUED_BATCHES + more} BACKPRESSURE decode_queue" for more in (0, 1)]
    assert leader.role.context.counters.dropped_decode_queue == 2
    assert len(await leader.settled()) == MAX_QUEUED_BATCHES + 2
    leader.queue.take(received("later", heavy=True))
    assert (await leader.settled())[-1] == "later 1000 waited"


async def test_a_role_that_ends_refuses_what_waits(leader: Leader) -> None:
    leader.queue.take(received("first", heavy=True))
    leader.queue.take(received("second", heavy=True))
    leader.role.ended = True
    assert await leader.settled() == [f"{name} {Code.NOT_LEADER.name}" for name in ("first", "second")]


async def test_the_end_of_a_role_does_not_wait_for_the_thread(leader: Leader) -> None:
    """Not for another partition's batch in it, and not for its own."""
    busy = Event()
    leader.role.context.decoders.submit(busy.wait, 10)
    try:
        for name in ("first", "second"):
            leader.queue.take(received(name, heavy=True))
        await asyncio.sleep(0)
        leader.role.ended = True
        leader.queue.abandon("over")
        expected = [f"{name} {Code.NOT_LEADER.name}" for name in ("first", "second")]
        assert leader.outcomes == expected, "at once"
        _, waiting = await asyncio.wait(leader.tasks, timeout=5)
        assert not waiting
        assert not busy.is_set()
    finally:
        busy.set()
    leader.role.context.decoders.shutdown()
    assert leader.outcomes == expected, "once"
    assert leader.role.context.the(BoundsOfAll).bytes_to_decode == 0


async def test_the_queues_of_all_partitions_are_bounded_together(leader: Leader) -> None:
    batch = received("refused", heavy=True)
    size = batch.size
    leader.role.context.the(BoundsOfAll).bytes_to_decode = others = MAX_QUEUED_BYTES_OF_ALL - size
    leader.queue.take(received("last", heavy=True))
    leader.queue.take(batch)
    assert leader.outcomes == ["refused BACKPRESSURE decode_queue"]
    assert await leader.settled() == ["refused BACKPRESSURE decode_queue", "last 1000 waited"]
    assert leader.role.context.the(BoundsOfAll).bytes_to_decode == others


class Broken:
    """A batch that our decoder stumbles on."""

    def __init__(self, batch: ReceivedBatch) -> None:
        self.header, self.is_heavy = batch.header, batch.is_heavy

    def decode(self, record_limit: RecordLimit) -> EncodedBatch:
        raise IndexError(f"a bug, {record_limit}")


@pytest.mark.parametrize("heavy", [True, False])
async def test_a_bug_stops_no_batch_but_its_own(leader: Leader, heavy: bool) -> None:
    broken = received("broken", heavy=heavy)
    broken.batch.received = cast(ReceivedBatch, Broken(broken.batch.opened))
    leader.bugs["unstored"] = KeyError("a bug in appending")
    leader.queue.take(received("first", heavy=True))
    leader.queue.take(broken)
    leader.queue.take(received("unstored", heavy=heavy))
    leader.queue.take(received("next", heavy=True))
    assert await leader.settled() == ["first 1000 waited", "broken INTERNAL", "next 1000 waited"]
    leader.queue.take(received("later", heavy=True))
    assert (await leader.settled())[-1] == "later 1000 waited"


async def test_a_worker_that_is_gone_is_replaced(leader: Leader) -> None:
    leader.queue.take(received("first", heavy=True))
    leader.queue.take(received("second", heavy=True))
    for task in leader.tasks:
        task.cancel()
    await asyncio.wait(leader.tasks)
    leader.tasks.clear()
    leader.queue.take(received("third", heavy=True))
    assert (await leader.settled())[-1] == "third 1000 waited"
