"""The client without asyncio, for scripts, the REPL, notebooks and threads.

    with tidelog.sync.connect("nats://127.0.0.1:4222") as client:
        client.create_stream("flights", subject="flights", partitions=3)
        with client.producer("flights") as producer:
            receipt = producer.send(b"value", key=b"AA")
        for record in client.consume("flights", start="earliest", stop="latest"):
            print(record.partition, record.offset, record.value)

Names, arguments and errors are those of the package `tidelog`; each call blocks until it is done. One thread with an
event loop does the work of a client. A client and its producers may be used by several threads; a consumer is for one
thread at a time.

A call that a signal handler interrupts by an exception (Ctrl-C, an alarm) has given nothing: records that were not
returned come again, and what was begun for a `with` that was not entered is ended. See `tidelog.loop_thread`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Generic, ParamSpec, Self, Unpack, overload

from tidelog.client import client
from tidelog.client.base.exceptions import Closed, UnknownMember
from tidelog.client.base.records import Batch, K, Record, V
from tidelog.client.consumer import consumer
from tidelog.client.group import group_consumer, named_cursor
from tidelog.client.group.subscription import Name
from tidelog.client.producer import producer
from tidelog.client.producer.producer_config import ProducerOptions, TransactionOptions
from tidelog.client.transaction import transactional_producer
from tidelog.facade import (
    Facade,
    Managed,
    Read,
    Reader,
    as_it_is,
    blocking,
    dropped,
    handing_out,
    iterated,
    made,
    next_of,
    passed_on,
)
from tidelog.loop_thread import LoopThread
from wire.errors import TidelogError

_P = ParamSpec("_P")


class Producer(Managed[producer.Producer[K, V]], Generic[K, V]):
    """See `tidelog.Producer`. Make it with `Client.producer`."""

    start = blocking(producer.Producer.start)
    send = blocking(producer.Producer.send)
    send_many = blocking(producer.Producer.send_many)
    outcomes = blocking(producer.Producer.outcomes)
    flush = blocking(producer.Producer.flush)
    close = blocking(producer.Producer.close)

    send_nowait = made(producer.Producer.send_nowait, passed_on)
    delay = made(producer.Producer.delay, as_it_is)

    stream = Read[str](producer.Producer.stream)
    partition_count = Read[int](producer.Producer.partition_count)


def _aborted(
    producer: transactional_producer.TransactionalProducer[Any, Any], task: asyncio.Task[None]
) -> Awaitable[None] | None:
    return producer._session.try_to_abort() if task.exception() is None else None


def _given_again(producer: transactional_producer.TransactionalProducer[Any, Any], _: asyncio.Task[Any]) -> None:
    producer._session.untell()


class TransactionalProducer(Managed[transactional_producer.TransactionalProducer[K, V]], Generic[K, V]):
    """See `tidelog.TransactionalProducer`. Make it with `Client.producer`."""

    def transaction(self) -> AbstractContextManager[None]:
        """A block of a `with` statement that begins a transaction, and at its end commits it, or aborts it after an
        exception. A commit or an abort within it ends it earlier. Raises as `begin` and `commit`."""
        return _Transaction(self._inner, self._thread)

    begin = blocking(transactional_producer.TransactionalProducer.begin, _aborted)
    commit = blocking(transactional_producer.TransactionalProducer.commit, _given_again)
    start = blocking(transactional_producer.TransactionalProducer.start)
    prepare = blocking(transactional_producer.TransactionalProducer.prepare)
    abort = blocking(transactional_producer.TransactionalProducer.abort)
    send = blocking(transactional_producer.TransactionalProducer.send)
    send_many = blocking(transactional_producer.TransactionalProducer.send_many)
    flush = blocking(transactional_producer.TransactionalProducer.flush)
    close = blocking(transactional_producer.TransactionalProducer.close)

    send_nowait = made(transactional_producer.TransactionalProducer.send_nowait, passed_on)
    delay = made(transactional_producer.TransactionalProducer.delay, as_it_is)

    def send_offsets(self, offsets: Mapping[Name, int] | None = None, *, group: GroupConsumer[Any, Any] | str) -> None:
        member = group._inner if isinstance(group, GroupConsumer) else group
        self._thread.run(self._inner.send_offsets(offsets, group=member))

    send_offsets.__doc__ = transactional_producer.TransactionalProducer.send_offsets.__doc__

    transactional_id = Read[str](transactional_producer.TransactionalProducer.transactional_id)
    in_transaction = Read[bool](transactional_producer.TransactionalProducer.in_transaction, on_loop=True)


async def _left(block: AbstractAsyncContextManager[None], task: asyncio.Task[None]) -> None:
    """Aborts what was begun for a block that is not entered."""
    if task.exception() is None:
        error = asyncio.CancelledError()
        with suppress(asyncio.CancelledError):
            await block.__aexit__(type(error), error, None)


class _Transaction(AbstractContextManager[None]):
    """Not a generator: where the interpreter looks for signals, its block is entered, or nothing is open."""

    def __init__(self, inner: transactional_producer.TransactionalProducer[Any, Any], thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread
        self._block = inner.transaction()

    def __enter__(self) -> None:
        block = self._block
        self._thread.run(block.__aenter__(), undo=lambda task: _left(block, task))

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        end = self._block.__aexit__(exc_type, exc, traceback)
        session = self._inner._session
        return self._thread.run(end, undo=None if exc_type is not None else lambda _: session.untell())


class Consumer(Reader[consumer.Consumer[K, V]], Generic[K, V]):
    """See `tidelog.Consumer`. Make it with `Client.consume`."""

    def __iter__(self) -> Iterator[Record[K, V]]:
        """Closes the consumer at its end, as the iteration over `tidelog.Consumer` does."""
        inner, state = self._inner, self._inner._state
        self._thread.call(inner._begin_iteration)
        try:
            self.start()
            while (assigned := self._turns.run(inner._next(), self._take_back)) is not None:
                for record in assigned.records():
                    assigned.last = record
                    yield record
                    if state.is_changed:
                        break
        finally:
            self.close()

    def batches(self) -> Iterator[Batch]:
        """Batches of columns instead of single records."""
        batches = self._inner.batches()
        try:
            while (batch := self._turns.run(next_of(batches), self._take_back)) is not None:
                yield batch
        finally:
            self.close()

    start = blocking(consumer.Consumer.start)
    getone = handing_out(consumer.Consumer.getone)
    getmany = handing_out(consumer.Consumer.getmany)
    seek = blocking(consumer.Consumer.seek)
    pause = made(consumer.Consumer.pause, as_it_is)
    resume = made(consumer.Consumer.resume, as_it_is)
    position = made(consumer.Consumer.position, as_it_is)
    delay = made(consumer.Consumer.delay, as_it_is)
    beginning_offsets = blocking(consumer.Consumer.beginning_offsets)
    end_offsets = blocking(consumer.Consumer.end_offsets)
    offsets_for_times = blocking(consumer.Consumer.offsets_for_times)

    stream = Read[str](consumer.Consumer.stream)
    positions = Read[Mapping[int, int]](consumer.Consumer.positions)
    incarnations = Read[Mapping[int, int]](consumer.Consumer.incarnations, on_loop=True)
    waiting = Read[Mapping[int, Mapping[int, int]]](consumer.Consumer.waiting, on_loop=True)
    lag = Read[Mapping[int, int]](consumer.Consumer.lag)
    paused = Read[frozenset[int]](consumer.Consumer.paused)
    is_at_end = Read[bool](consumer.Consumer.is_at_end)
    missed = Read[Mapping[int, int]](consumer.Consumer.missed)


class GroupConsumer(Reader[group_consumer.GroupConsumer[K, V]], Generic[K, V]):
    """See `tidelog.GroupConsumer`. Make it with `Client.subscribe`. `on_assigned`, `on_revoked` and `on_lost` run in
    threads of their own: they may use the consumer, which blocks."""

    def __init__(self, inner: group_consumer.GroupConsumer[K, V], thread: LoopThread) -> None:
        super().__init__(inner, thread)
        inner._partitions.listeners.in_threads = True

    def _take_back(self, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        if error is None:
            super()._take_back(task)
        elif isinstance(error, UnknownMember) or not isinstance(error, TidelogError):  # which are raised once
            self._wrapped._partitions.listeners.raise_later(error)

    def __iter__(self) -> Iterator[Record[K, V]]:
        inner, stopwatch, state = self._inner, self._inner._stopwatch, self._inner._state
        while (assigned := self._turns.run(inner._next(), self._take_back)) is not None:
            left = inner._session.seconds_left(inner._session.clock())
            look_at = stopwatch() + min(left, _CALL_EVERY)
            try:
                for record in assigned.records():
                    assigned.last = record
                    yield record
                    if state.is_changed or stopwatch() >= look_at:
                        break
            except BaseException:
                state.is_torn = True
                raise

    def batches(self) -> Iterator[Batch]:
        """Batches of columns instead of single records."""
        batches = self._inner.batches()
        while (batch := self._turns.run(next_of(batches), self._take_back)) is not None:
            yield batch

    start = blocking(group_consumer.GroupConsumer.start)
    getone = handing_out(group_consumer.GroupConsumer.getone)
    getmany = handing_out(group_consumer.GroupConsumer.getmany)
    commit = blocking(group_consumer.GroupConsumer.commit)
    committed = blocking(group_consumer.GroupConsumer.committed)
    seek = blocking(group_consumer.GroupConsumer.seek)
    seek_to_committed = blocking(group_consumer.GroupConsumer.seek_to_committed)
    pause = made(group_consumer.GroupConsumer.pause, as_it_is)
    resume = made(group_consumer.GroupConsumer.resume, as_it_is)
    position = made(group_consumer.GroupConsumer.position, as_it_is)
    delay = made(group_consumer.GroupConsumer.delay, as_it_is)

    group = Read[str](group_consumer.GroupConsumer.group)
    member_id = Read[str](group_consumer.GroupConsumer.member_id)
    generation = Read[int](group_consumer.GroupConsumer.generation)
    assignment = Read[frozenset[Name]](group_consumer.GroupConsumer.assignment, on_loop=True)
    positions = Read[Mapping[Name, int]](group_consumer.GroupConsumer.positions, on_loop=True)
    waiting = Read[Mapping[Name, Mapping[Name, int]]](group_consumer.GroupConsumer.waiting, on_loop=True)
    lag = Read[Mapping[Name, int]](group_consumer.GroupConsumer.lag, on_loop=True)
    missed = Read[Mapping[Name, int]](group_consumer.GroupConsumer.missed, on_loop=True)
    paused = Read[frozenset[Name]](group_consumer.GroupConsumer.paused, on_loop=True)


class Cursor(Facade[named_cursor.Cursor]):
    """See `tidelog.Cursor`. Make it with `Client.cursor`."""

    get = blocking(named_cursor.Cursor.get)
    set = blocking(named_cursor.Cursor.set)
    delete = blocking(named_cursor.Cursor.delete)

    name = Read[str](named_cursor.Cursor.name)


_CALL_EVERY = 0.1
"""Seconds after which an iteration calls for records again; its member would pass for one that takes none."""


class Client(Facade[client.Client]):
    """See `tidelog.Client`. Make it with `connect`; use it with `with`, or `close()` it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """As that of `tidelog.Client`, and end the thread. Safe to call twice."""
        try:
            with suppress(Closed):
                self._thread.run(self._inner.close())
        finally:
            self._thread.stop()

    is_connected = Read[bool](client.Client.is_connected)
    delay = made(client.Client.delay, as_it_is)

    create_stream = blocking(client.Client.create_stream)
    ensure_stream = blocking(client.Client.ensure_stream)
    alter_stream = blocking(client.Client.alter_stream)
    delete_stream = blocking(client.Client.delete_stream)
    streams = blocking(client.Client.streams)
    streams_with_usage = blocking(client.Client.streams_with_usage)
    describe = blocking(client.Client.describe)
    move_leader = blocking(client.Client.move_leader)
    elect_unclean = blocking(client.Client.elect_unclean)
    partition_history = blocking(client.Client.partition_history)
    cluster_status = blocking(client.Client.cluster_status)
    restart_order = blocking(client.Client.restart_order)
    replicas = blocking(client.Client.replicas)
    drain_broker = blocking(client.Client.drain_broker)
    remove_broker = blocking(client.Client.remove_broker)
    brokers = blocking(client.Client.brokers)
    describe_broker = blocking(client.Client.describe_broker)
    alter_cluster = blocking(client.Client.alter_cluster)
    rebalance_leaders = blocking(client.Client.rebalance_leaders)
    alter_replication_factor = blocking(client.Client.alter_replication_factor)
    rebalance = blocking(client.Client.rebalance)
    set_readonly = blocking(client.Client.set_readonly)
    pause = blocking(client.Client.pause)
    resume = blocking(client.Client.resume)
    delete_records = blocking(client.Client.delete_records)
    repartition = blocking(client.Client.repartition)
    repartition_status = blocking(client.Client.repartition_status)
    cancel_repartition = blocking(client.Client.cancel_repartition)
    reassign = blocking(client.Client.reassign)
    cancel_reassignment = blocking(client.Client.cancel_reassignment)
    moves = blocking(client.Client.moves)
    copy_stream = blocking(client.Client.copy_stream)
    metadata = blocking(client.Client.metadata)
    offsets = blocking(client.Client.offsets)
    fetch_batches = iterated(client.Client.fetch_batches)
    activity = iterated(client.Client.activity)

    @overload
    def producer(self, stream: str, **options: Unpack[ProducerOptions[K, V]]) -> Producer[K, V]: ...

    @overload
    def producer(
        self, *, transactional_id: str, **options: Unpack[TransactionOptions[K, V]]
    ) -> TransactionalProducer[K, V]: ...

    @wraps(client.Client.producer)
    def producer(self, *args: Any, **kwargs: Any) -> Any:
        inner, thread = self._inner, self._thread

        def make() -> Any:
            new: Any = inner.producer(*args, **kwargs)
            kind = TransactionalProducer if isinstance(new, transactional_producer.TransactionalProducer) else Producer
            return kind(new, thread)

        return thread.call(make, undo=dropped)

    consume = made(client.Client.consume, Consumer, dropped)
    subscribe = made(client.Client.subscribe, GroupConsumer, dropped)
    groups = blocking(client.Client.groups)
    describe_group = blocking(client.Client.describe_group)
    reset_group = blocking(client.Client.reset_group)
    delete_group = blocking(client.Client.delete_group)
    commit_offsets = blocking(client.Client.commit_offsets)
    extents = blocking(client.Client.extents)
    spans = blocking(client.Client.spans)
    transactions = blocking(client.Client.transactions)
    describe_transaction = blocking(client.Client.describe_transaction)
    abort_transaction = blocking(client.Client.abort_transaction)
    commit_prepared = blocking(client.Client.commit_prepared)
    abort_prepared = blocking(client.Client.abort_prepared)
    committed_sequence = blocking(client.Client.committed_sequence)
    last_commit = blocking(client.Client.last_commit)
    cursor = made(client.Client.cursor, Cursor)


def _connecting(connect: Callable[_P, Coroutine[Any, Any, client.Client]]) -> Callable[_P, Client]:
    @wraps(connect)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Client:
        thread = LoopThread("tidelog-client")

        async def connected() -> Client:
            return Client(await connect(*args, **kwargs), thread)

        try:
            return thread.run(connected(), undo=dropped)
        except BaseException:
            thread.stop()
            raise

    return call


connect = _connecting(client.connect)
