"""What a task of a write does with its rows: it sends them, and says what it has sent.

Exactly once: the task is a producer under a child of the write's family (docs/transactions.md). It prepares its
transaction, and what it returns names that. The driver commits the transactions of all tasks as one, under a number
that is committed once. So a task that runs twice, a task that was taken for dead, and a micro-batch that Spark runs
again because it does not know that it is committed, write nothing that is read. A task whose number is committed
already writes nothing at all.

At least once: it sends, and waits for the acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from spark_connector.cluster import Cluster
from spark_connector.connections import Connection
from spark_connector.sink_options import SinkOptions
from spark_connector.sink_rows import Records, Target, chunks, records_of
from tidelog.client.connection import Client
from tidelog.client.prepared import PreparedTransaction
from tidelog.client.producer import Producer
from tidelog.client.transactional_producer import TransactionalProducer
from wire.errors import Code, TidelogError
from wire.transactions import child_id
from wire.types import StreamName

CHUNKS_UNDER_WAY: Final = 3
"""That are sent while their acknowledgements are waited for. They fit into a producer's buffer, so that none waits for
room in it, where a later one could overtake it."""
ANSWER_SECONDS: Final = 10.0
"""For the answer of a coordinator, which holds a commit for a moment; then it is asked again."""
_SLACK_SECONDS: Final = 30.0
"""For which a call of the client may take longer than the timeout that it keeps itself."""


class Place(NamedTuple):
    """Where the rows of a task are committed."""

    family: str
    sequence: int
    child: str


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """By one task."""

    family: str | None
    """None: at least once."""
    sequence: int
    transaction: PreparedTransaction | None
    """None: there were no rows, or `was_committed`."""
    was_committed: bool = False
    """Nothing was sent, since the sequence is committed."""


def send_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch], place: Place | None) -> Sent:
    """Raises TidelogError; then nothing of a `place` is read."""
    cluster = Cluster.of(options)
    last = None if place is None else _last_of(cluster, place)
    if place is not None and last is not None and last > place.sequence:
        raise _stale(place, last)
    if place is not None and last == place.sequence:
        for _ in batches:  # Spark takes a task that leaves rows for one that has failed
            pass
        return Sent(place.family, place.sequence, None, was_committed=True)
    connection = cluster.retry.run("connect", cluster.connection)
    task = _Task(cluster, connection, options.stream)
    try:
        if place is None:
            task.send(batches, lambda: _AtLeastOnce(options, connection.client))
            return Sent(None, 0, None)
        transaction = task.send(batches, lambda: _ExactlyOnce(options, connection.client, place))
        return Sent(place.family, place.sequence, transaction)
    except BaseException:
        cluster.discard(connection)  # the next task of this process does not meet what is left of this one
        raise


def _last_of(cluster: Cluster, place: Place) -> int | None:
    return cluster.ask(
        f"ask what {place.family} has committed",
        lambda client: client.committed_sequence(place.family, timeout=ANSWER_SECONDS),
    )


def _stale(place: Place, last: int) -> TidelogError:
    return TidelogError(
        Code.STALE_COMMIT,
        f"{place.family!r} has committed number {last}, and this write has number {place.sequence}: another query"
        " writes under the same name, or this one has begun from an older checkpoint. Give it a new checkpoint, or a"
        " transactionalId of its own",
    )


class _Delivery(Protocol):
    async def open(self, targets: Iterable[Target]) -> None: ...

    def give(self, target: Target, records: Records) -> Coroutine[Any, Any, object]: ...

    async def end(self) -> PreparedTransaction | None:
        """All is acknowledged."""

    async def close(self) -> None: ...


class _Task:
    """Rows to one connection."""

    def __init__(self, cluster: Cluster, connection: Connection, stream: StreamName | None) -> None:
        self._cluster = cluster
        self._connection = connection
        self._stream = stream
        self._timeout = cluster.retry.timeout + _SLACK_SECONDS

    def send(self, batches: Iterable[pa.RecordBatch], make: Callable[[], _Delivery]) -> PreparedTransaction | None:
        run, timeout = self._connection.run, self._timeout
        sender: _Sender | None = None
        try:
            for batch in batches:
                for chunk in chunks(batch):
                    records = records_of(chunk, self._stream)
                    sender = sender or run(_sender(make))
                    self._open(sender, records)
                    run(sender.send(records), timeout)
            transaction = None if sender is None else run(sender.end(), timeout)
        except BaseException:
            if sender is not None:
                with suppress(TidelogError):
                    run(sender.give_up(), timeout)
            raise
        if sender is not None:
            run(sender.close(), timeout)
        return transaction

    def _open(self, sender: _Sender, targets: Iterable[Target]) -> None:
        new = sender.not_opened(targets)
        if not new:
            return
        run = self._connection.run
        run(sender.drain(), self._timeout)  # what has failed is not tried again
        names = ", ".join(sorted({target.stream for target in new}))
        self._cluster.retry.run(f"write to {names:.200}", lambda: run(sender.open(new), self._timeout))


async def _sender(make: Callable[[], _Delivery]) -> _Sender:
    """In the thread of the connection."""
    return _Sender(make())


class _Sender:
    """Chunks on their way, in the order of the rows."""

    def __init__(self, delivery: _Delivery) -> None:
        self._delivery = delivery
        self._under_way: deque[asyncio.Future[Any]] = deque()
        self._opened: set[Target] = set()

    def not_opened(self, targets: Iterable[Target]) -> list[Target]:
        return [target for target in targets if target not in self._opened]

    async def open(self, targets: Collection[Target]) -> None:
        """Before anything is sent to them. May be called again when it has failed."""
        await self._delivery.open(targets)
        self._opened.update(targets)

    async def send(self, records: dict[Target, Records]) -> None:
        """Returns when there is room for the next chunk. Raises the failure of an earlier one."""
        given = [self._delivery.give(target, of_target) for target, of_target in records.items()]
        self._under_way.append(asyncio.gather(*given))
        while len(self._under_way) >= CHUNKS_UNDER_WAY:
            await self._under_way.popleft()

    async def end(self) -> PreparedTransaction | None:
        """All is acknowledged."""
        await self.drain()
        return await self._delivery.end()

    async def close(self) -> None:
        await self._delivery.close()

    async def give_up(self) -> None:
        for future in self._under_way:
            future.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._delivery.close()

    async def drain(self) -> None:
        """All is acknowledged. Raises the first failure."""
        while self._under_way:
            await self._under_way.popleft()


class _AtLeastOnce:
    def __init__(self, options: SinkOptions, client: Client) -> None:
        self._options = options
        self._client = client
        self._producers: dict[str, Producer[Any, Any]] = {}

    async def open(self, targets: Iterable[Target]) -> None:
        for stream in {target.stream for target in targets} - self._producers.keys():
            producer: Producer[Any, Any] = self._client.producer(
                stream,
                acks=self._options.acks,
                linger_ms=self._options.linger * 1000,
                delivery_timeout_ms=max(1000.0, self._options.retry_seconds * 1000),
                compression=self._options.compression,
                partitioner=self._options.partitioner,
            )
            try:
                await producer.start()
            except BaseException:
                await producer.close()
                raise
            self._producers[stream] = producer

    async def give(self, target: Target, records: Records) -> None:
        producer = self._producers[target.stream]
        if records.headers is None and records.timestamps_ns is None:
            await producer.send_many(records.values, keys=records.keys, partition=target.partition)
            return
        await asyncio.gather(
            *(producer.send_nowait(value, partition=target.partition, **more) for value, more in _one_by_one(records))
        )

    async def end(self) -> None:
        for producer in self._producers.values():
            await producer.flush()

    async def close(self) -> None:
        for producer in self._producers.values():
            await producer.close()


class _ExactlyOnce:
    def __init__(self, options: SinkOptions, client: Client, place: Place) -> None:
        self._producer: TransactionalProducer[Any, Any] = client.producer(
            transactional_id=child_id(place.family, place.child),
            transaction_timeout=options.transaction_timeout,
            linger_ms=options.linger * 1000,
            delivery_timeout_ms=max(1000.0, options.retry_seconds * 1000),
            compression=options.compression,
            partitioner=options.partitioner,
        )

    async def open(self, targets: Iterable[Target]) -> None:
        if not self._producer.in_transaction:
            await self._producer.begin()
        for stream in {target.stream for target in targets}:
            await self._producer.send_many(stream, [])  # it knows the stream's partitions from then on

    async def give(self, target: Target, records: Records) -> None:
        producer, (stream, partition) = self._producer, target
        if records.headers is None and records.timestamps_ns is None:
            await producer.send_many(stream, records.values, keys=records.keys, partition=partition)
            return
        await asyncio.gather(
            *(producer.send_nowait(stream, value, partition=partition, **more) for value, more in _one_by_one(records))
        )

    async def end(self) -> PreparedTransaction | None:
        return await self._producer.prepare()

    async def close(self) -> None:
        await self._producer.close()


def _one_by_one(records: Records) -> Iterable[tuple[bytes | None, dict[str, Any]]]:
    for at, value in enumerate(records.values):
        yield (
            value,
            {
                "key": None if records.keys is None else records.keys[at],
                "headers": None if records.headers is None else records.headers[at],
                "timestamp": None if records.timestamps_ns is None else records.timestamps_ns[at],
            },
        )
