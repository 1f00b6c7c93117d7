"""Clients' batches on their way to the log: heavy ones are decoded in a thread, and nothing overtakes them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dataplane.broker.leading.append_requests import AppendRequests
from dataplane.broker.leading.appending import PublishCounters
from dataplane.broker.leading.bounds_of_all import HELD_APPENDS, QUEUED_APPENDS, BoundsOfAll, ProducersOfAll
from dataplane.replica.leader.append_rules import ClientBatch
from dataplane.replica.leader.commits import Uncommitted
from dataplane.replica.replica_settings import ReplicaSettings
from wire.batch import BatchBuilder, Compression, EncodedBatch, ReceivedBatch
from wire.batch.encoded import RecordLimit
from wire.budget import Budget
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.types import LeaderEpoch, Offset

LIMIT_OF_RECORDS = RecordLimit(2000)


def received(name: str, *, heavy: bool, size: int = 1000) -> ClientBatch:
    builder = BatchBuilder()
    builder.add_values([bytes(size)] * (1000 if heavy else 1))
    compression = Compression.ZSTD if heavy else Compression.NONE
    encoded = b"".join(builder.build(1, compression=compression).stamp(Offset(0), LeaderEpoch(0))[0])
    batch = ReceivedBatch(encoded)
    assert batch.is_heavy is heavy
    return ClientBatch(name, 1 << 20, AppendRequest(), memoryview(encoded), received=batch)


class Requests(AppendRequests):
    """Those of a leader that decodes, and the outcomes, in order."""

    def __init__(self) -> None:
        self.outcomes: list[str] = []
        self.bugs: dict[str | None, Exception] = {}
        """By name of the batch: what appending it raises."""
        self.tasks: set[asyncio.Task[None]] = set()
        self.counters = PublishCounters()
        self.bounds = BoundsOfAll(
            ProducersOfAll(0),
            Uncommitted(ReplicaSettings()),
            Budget(QUEUED_APPENDS, "b1", of_all=True),
            Budget(HELD_APPENDS, "b1", of_all=True),
        )
        self.role = SimpleNamespace(
            ended=False,
            view=SimpleNamespace(key="s/0"),
            spawn=self._spawn,
            context=SimpleNamespace(
                broker="b1",
                loop=asyncio.get_running_loop(),
                decoders=ThreadPoolExecutor(1),
                the=lambda kind: self.counters if kind is PublishCounters else self.bounds,
            ),
        )
        self.appending = SimpleNamespace(
            rules=None, admit=lambda _: None, has_open_batch=False, record_limit=LIMIT_OF_RECORDS
        )
        self.admitted: list[bool] = []
        """Of each batch whose turn came: whether it counts as admitted in this step."""
        super().__init__(cast(Any, self.role), cast(Any, None), cast(Any, self.appending), lambda _: None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        return task

    def _on_turn(self, batch: ClientBatch, is_admitted: bool) -> None:
        if batch.inbox in self.bugs:
            raise self.bugs[batch.inbox]
        self.admitted.append(is_admitted)
        self.outcomes.append(f"{batch.inbox} {batch.decoded.record_count}")

    def _refuse(self, batch: ClientBatch, error: TidelogError) -> None:
        limit: str | None = error.detail(LIMIT)
        self.outcomes.append(" ".join(filter(None, [batch.inbox, error.code.name, limit])))

    async def settled(self) -> list[str]:
        await asyncio.gather(*self.tasks)
        return self.outcomes


@pytest.fixture
async def requests() -> AsyncIterator[Requests]:
    made = Requests()
    yield made
    made.role.context.decoders.shutdown()


async def test_nothing_overtakes_a_heavy_batch(requests: Requests) -> None:
    requests._take(received("first", heavy=False))
    assert requests.outcomes == ["first 1"], "at once"
    for name, heavy in (("second", True), ("third", False), ("fourth", True), ("fifth", False)):
        requests._take(received(name, heavy=heavy))
    assert requests.outcomes == ["first 1"]
    expected = ["first 1", "second 1000", "third 1", "fourth 1000", "fifth 1"]
    assert await requests.settled() == expected
    requests._take(received("sixth", heavy=False))
    assert requests.outcomes[-1] == "sixth 1", "at once again"


async def test_a_batch_that_is_refused_does_not_stop_those_behind_it(requests: Requests) -> None:
    requests._take(received("large", heavy=True, size=3000))
    requests._take(received("next", heavy=False))
    assert await requests.settled() == ["large RECORD_TOO_LARGE", "next 1"]


async def test_the_queue_is_bounded(requests: Requests) -> None:
    for number in range(QUEUED_APPENDS.items + 2):
        requests._take(received(str(number), heavy=True))
    assert requests.outcomes == [f"{QUEUED_APPENDS.items + more} BACKPRESSURE decode_queue" for more in (0, 1)]
    assert requests.counters.dropped_decode_queue == 2
    assert len(await requests.settled()) == QUEUED_APPENDS.items + 2
    requests._take(received("later", heavy=True))
    assert (await requests.settled())[-1] == "later 1000"


async def test_the_end_of_a_role_does_not_wait_for_the_thread(requests: Requests) -> None:
    """Not for another partition's batch in it, and not for its own."""
    busy = Event()
    requests.role.context.decoders.submit(busy.wait, 10)
    try:
        for name in ("first", "second"):
            requests._take(received(name, heavy=True))
        await asyncio.sleep(0)
        requests.role.ended = True
        requests.abandon("over")
        expected = [f"{name} {Code.NOT_LEADER.name}" for name in ("first", "second")]
        assert requests.outcomes == expected, "at once"
        _, waiting = await asyncio.wait(requests.tasks, timeout=5)
        assert not waiting
        assert not busy.is_set()
    finally:
        busy.set()
    requests.role.context.decoders.shutdown()
    assert requests.outcomes == expected, "once"
    assert requests.bounds.queued.bytes == 0


async def test_the_queues_of_all_partitions_are_bounded_together(requests: Requests) -> None:
    batch = received("refused", heavy=True)
    size = batch.size
    requests.bounds.queued.take(others := QUEUED_APPENDS.bytes_of_all - size)
    requests._take(received("last", heavy=True))
    requests._take(batch)
    assert requests.outcomes == ["refused BACKPRESSURE decode_queue"]
    assert await requests.settled() == ["refused BACKPRESSURE decode_queue", "last 1000"]
    assert requests.bounds.queued.bytes == others


class Broken:
    """A batch that our decoder stumbles on."""

    def __init__(self, batch: ReceivedBatch) -> None:
        self.header, self.is_heavy = batch.header, batch.is_heavy

    def decode(self, record_limit: RecordLimit) -> EncodedBatch:
        raise IndexError(f"a bug, {record_limit}")


@pytest.mark.parametrize("heavy", [True, False])
async def test_a_bug_stops_no_batch_but_its_own(requests: Requests, heavy: bool) -> None:
    broken = received("broken", heavy=heavy)
    broken.received = cast(ReceivedBatch, Broken(broken.opened))
    requests.bugs["unstored"] = KeyError("a bug in appending")
    requests._take(received("first", heavy=True))
    requests._take(broken)
    requests._take(received("unstored", heavy=heavy))
    requests._take(received("next", heavy=True))
    assert await requests.settled() == ["first 1000", "broken INTERNAL", "next 1000"]
    requests._take(received("later", heavy=True))
    assert (await requests.settled())[-1] == "later 1000"


async def test_a_worker_that_is_gone_is_replaced(requests: Requests) -> None:
    requests._take(received("first", heavy=True))
    requests._take(received("second", heavy=True))
    for task in requests.tasks:
        task.cancel()
    await asyncio.wait(requests.tasks)
    requests.tasks.clear()
    requests._take(received("third", heavy=True))
    assert (await requests.settled())[-1] == "third 1000"


async def test_a_batch_is_judged_again_unless_its_turn_comes_at_once_and_nothing_is_appended_before_it(
    requests: Requests,
) -> None:
    requests._take(received("alone", heavy=False))
    requests.appending.has_open_batch = True
    requests._take(received("behind plain publishes", heavy=False))
    requests.appending.has_open_batch = False
    requests._take(received("heavy", heavy=True))
    requests._take(received("behind it", heavy=False))
    await requests.settled()
    assert requests.admitted == [True, False, False, False]
