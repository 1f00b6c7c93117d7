"""The delivery of a write task's rows: it sends them, and returns a summary.

Exactly once: the task is a producer under a child of the write's family (docs/transactions.md). It prepares its
transaction, and returns a message that names it. The driver commits the transactions of all tasks as one, by a number
that is committed once. So a task that runs twice, a task that was taken for dead, and a micro-batch that Spark runs
again because it does not know that it is committed, write nothing that is read. A task whose number is committed
already writes nothing at all: it counts its rows, and the driver compares (`spark_connector.writes.committed_batch`).

At least once: it sends, and waits for the acknowledgements.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from spark_connector.shared.connections import Cluster, Connection
from spark_connector.writes.committed_batch import CommittedBatch, Rows, added, family_of_query, rows_of
from spark_connector.writes.sink_options import SinkOptions
from spark_connector.writes.sink_rows import Records, Target, chunks, records_of
from tidelog.client.base.exceptions import ProducerFenced
from tidelog.client.client import Client
from tidelog.client.producer.producer import Producer
from tidelog.client.transaction.prepared_transactions import FamilyCommit, PreparedTransaction
from tidelog.client.transaction.transactional_producer import TransactionalProducer
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import child_id
from wire.types import Incarnation, StreamName

CHUNKS_UNDER_WAY: Final = 3
"""Chunks that are sent while their acknowledgements are pending. They fit into a producer's buffer, so that none waits
for room in it, where a later one could overtake it."""
MAX_NAMES: Final = 100
"""Names for the transactions of one task: attempts that Spark gives the same number."""
ANSWER_SECONDS: Final = 10.0
"""Seconds for the answer of a coordinator, which holds a commit for a moment; then it is asked again."""
_SLACK_SECONDS: Final = 30.0
"""Seconds that a call of the client may take beyond its own timeout."""


class Place(NamedTuple):
    """The name and number under which the rows of a task are committed."""

    name: str
    """The id of a streaming query, or the transactionalId of a batch write."""
    stream: StreamName | None
    """The stream of the query whose family it is. None: the family is `name`."""
    sequence: int
    child: str
    writer: str
    """The writer's name for those who find the number committed."""


@dataclass(frozen=True, slots=True)
class Sent(WriterCommitMessage):
    """The summary of one task."""

    family: str | None
    """The family of the commit; None: at least once."""
    sequence: int
    transaction: PreparedTransaction | None
    """The prepared transaction; None: there were no rows, or `was_committed`."""
    was_committed: bool = False
    """No row was sent, since the sequence is committed."""
    rows: Mapping[StreamName, Rows] = field(default_factory=dict)
    """Rows given to the task, by stream."""
    name: str = ""
    writer: str = ""
    """`name` and `writer` are those of the place."""


def send_rows(options: SinkOptions, batches: Iterable[pa.RecordBatch], place: Place | None) -> Sent:
    """Sends the rows of a task. Raises TidelogError; then no row of a `place` is read."""
    cluster = Cluster.of(options)
    family = None if place is None else _family_of(cluster, place)
    if place is not None and family is not None:
        found = _last_commit(cluster, place, family)
        if found is not None and found[1].sequence > place.sequence:
            raise _stale(place, found[1])
        if found is not None and found[1].sequence == place.sequence:
            # The rows are read to the end, because Spark takes a task that leaves rows for one that has failed.
            rows = added(_counted(records_of(chunk, options.stream)) for batch in batches for chunk in chunks(batch))
            return Sent(found[0], place.sequence, None, True, rows, place.name, place.writer)
    connection = cluster.retry.run("connect", cluster.connection)
    task = _Task(cluster, connection, options.stream, counts=place is not None)
    try:
        if place is None or family is None:
            task.send(batches, lambda: _AtLeastOnce(options, connection.client))
            return Sent(None, 0, None)
        child = child_id(family, place.child)
        transaction = task.send(batches, lambda: _ExactlyOnce(options, connection.client, child))
        return Sent(family, place.sequence, transaction, False, task.rows, place.name, place.writer)
    except BaseException:
        cluster.discard(connection)  # the next task of this process does not share records left in this connection
        raise


def _family_of(cluster: Cluster, place: Place) -> str:
    if place.stream is None:
        return place.name
    return family_of_query(place.name, place.stream, incarnation_of(cluster, place.stream))


def incarnation_of(cluster: Cluster, stream: StreamName) -> Incarnation:
    found = cluster.ask(f"ask for stream {stream}", lambda client: client.metadata(stream))
    return Incarnation(found.incarnation)


def last_commit(cluster: Cluster, family: str) -> FamilyCommit | None:
    return cluster.ask(
        f"ask what {family} has committed", lambda client: client.last_commit(family, timeout=ANSWER_SECONDS)
    )


def _last_commit(cluster: Cluster, place: Place, family: str) -> tuple[str, FamilyCommit] | None:
    """Returns the family that has committed last, with its commit. Earlier versions committed a query's writes under
    its id alone, which counts if nothing is committed since."""
    for each in dict.fromkeys((family, place.name)):
        last = last_commit(cluster, each)
        if last is not None:
            return each, last
    return None


def _counted(records: Mapping[Target, Records]) -> dict[StreamName, Rows]:
    return added({target.stream: rows_of(each)} for target, each in records.items())


def _stale(place: Place, last: FamilyCommit) -> TidelogError:
    known = CommittedBatch.of_metadata(last.metadata)
    return TidelogError(
        Code.STALE_COMMIT,
        f"{place.name!r} has committed number {last.sequence}{'' if known is None else f' ({known.writer})'}, and this"
        f" write has number {place.sequence}: another query writes under the same name, or this one has begun from an"
        " older checkpoint. This run writes nothing; an earlier one may have written that number, so look what is"
        " there. Give it a new checkpoint, with startingOffsets where it is to go on, or a transactionalId of its own",
    )


class _Delivery(Protocol):
    async def open(self, targets: Iterable[Target]) -> None: ...

    def give(self, target: Target, records: Records) -> Coroutine[Any, Any, object]: ...

    async def end(self) -> PreparedTransaction | None:
        """Ends the delivery: all records are acknowledged."""

    async def close(self) -> None: ...


class _Task:
    """Sends rows through one connection."""

    def __init__(self, cluster: Cluster, connection: Connection, stream: StreamName | None, *, counts: bool) -> None:
        self._cluster = cluster
        self._connection = connection
        self._stream = stream
        self._timeout = cluster.retry.timeout + _SLACK_SECONDS
        self._counts = counts
        self.rows: dict[StreamName, Rows] = {}
        """Rows that were sent, by stream, where they are counted."""

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
                    if self._counts:
                        self.rows = added((self.rows, _counted(records)))
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
        run(sender.drain(), self._timeout)  # failed records are not retried
        names = ", ".join(sorted({target.stream for target in new}))
        self._cluster.retry.run(f"write to {names:.200}", lambda: run(sender.open(new), self._timeout))


async def _sender(make: Callable[[], _Delivery]) -> _Sender:
    """Makes the sender in the thread of the connection."""
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
        """Opens targets before records are sent to them. May be called again when it has failed."""
        await self._delivery.open(targets)
        self._opened.update(targets)

    async def send(self, records: dict[Target, Records]) -> None:
        """Returns when there is room for the next chunk. Raises the failure of an earlier one."""
        given = [self._delivery.give(target, of_target) for target, of_target in records.items()]
        self._under_way.append(asyncio.gather(*given))
        while len(self._under_way) >= CHUNKS_UNDER_WAY:
            await self._under_way.popleft()

    async def end(self) -> PreparedTransaction | None:
        """Waits for all acknowledgements, and ends the delivery."""
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
        """Waits until all records are acknowledged. Raises the first failure."""
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
    def __init__(self, options: SinkOptions, client: Client, child: str) -> None:
        self._client = client
        self._child = child
        self._producer: TransactionalProducer[Any, Any] | None = None
        self._settings: dict[str, Any] = {
            "transaction_timeout": options.transaction_timeout,
            "linger_ms": options.linger * 1000,
            "delivery_timeout_ms": max(1000.0, options.retry_seconds * 1000),
            "compression": options.compression,
            "partitioner": options.partitioner,
        }

    async def open(self, targets: Iterable[Target]) -> None:
        if self._producer is None:
            self._producer = await self._start()
        if not self._producer.in_transaction:
            await self._producer.begin()
        for stream in {target.stream for target in targets}:
            await self._producer.send_many(stream, [])  # after this the producer knows the stream's partitions

    async def _start(self) -> TransactionalProducer[Any, Any]:
        """Starts under the first name without an open transaction. Spark may have accepted the records of an attempt of
        the same number, for it counts attempts anew when it submits a stage again; so such a transaction is not aborted
        here. Those that are not committed are aborted with the commit."""
        for number in range(1, MAX_NAMES + 1):
            name = self._child if number == 1 else f"{self._child}-{number}"
            producer: TransactionalProducer[Any, Any] = self._client.producer(transactional_id=name, **self._settings)
            try:
                await producer.start(fences=False)
            except ProducerFenced:
                await producer.close()
            except BaseException:
                await producer.close()
                raise
            else:
                return producer
        raise TidelogError(
            Code.LIMIT_REACHED,
            f"{MAX_NAMES} attempts of one task have open transactions, {self._child} and those that follow: wait until"
            " their transaction.timeout is over",
        )

    async def give(self, target: Target, records: Records) -> None:
        assert self._producer is not None
        producer, (stream, partition) = self._producer, target
        if records.headers is None and records.timestamps_ns is None:
            await producer.send_many(stream, records.values, keys=records.keys, partition=partition)
            return
        await asyncio.gather(
            *(producer.send_nowait(stream, value, partition=partition, **more) for value, more in _one_by_one(records))
        )

    async def end(self) -> PreparedTransaction | None:
        assert self._producer is not None
        return await self._producer.prepare()

    async def close(self) -> None:
        if self._producer is not None:
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
