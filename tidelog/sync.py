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
returned come again, and what was begun for a `with` that was not entered is ended. See `client.loop_thread`.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, suppress
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, Unpack, overload

from tidelog.client import client
from tidelog.client.base.exceptions import Closed, UnknownMember
from tidelog.client.base.records import Batch, K, Record, V
from tidelog.client.consumer import consumer
from tidelog.client.group import group_consumer, named_cursor
from tidelog.client.group.subscription import Listener, Name
from tidelog.client.producer import producer
from tidelog.client.producer.producer_config import ProducerOptions, TransactionOptions
from tidelog.client.transaction import transactional_producer
from tidelog.loop_thread import LoopThread, Turns, Undo
from wire.errors import TidelogError

_Inner = TypeVar("_Inner")
_Inner_co = TypeVar("_Inner_co", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")


class _Blocking(Protocol[_Inner_co]):
    _thread: LoopThread

    @property
    def _inner(self) -> _Inner_co: ...


class _HandingOut(_Blocking[_Inner_co], Protocol[_Inner_co]):
    _turns: Turns

    def _take_back(self, task: asyncio.Task[Any], /) -> None: ...


def _blocking(
    method: Callable[Concatenate[_Inner, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[_Blocking[_Inner], _P], _R]:
    """The method of the same name, which returns when it is done."""

    @wraps(method)
    def call(self: _Blocking[_Inner], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return call


def _handing_out(
    method: Callable[Concatenate[_Inner, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[_HandingOut[_Inner], _P], _R]:
    """As `_blocking`, of a method that gives records once: those that do not come to the caller come again."""

    @wraps(method)
    def call(self: _HandingOut[_Inner], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._turns.run(method(self._inner, *args, **kwargs), self._take_back)

    return call


def _made(
    method: Callable[Concatenate[_Inner, _P], _R],
    made: Callable[[_R, LoopThread], _S],
    undo: Undo[_S] | None = None,
) -> Callable[Concatenate[_Blocking[_Inner], _P], _S]:
    """The method of the same name, which does not wait; it returns what `made` makes of the result, on the loop."""

    @wraps(method)
    def call(self: _Blocking[_Inner], /, *args: _P.args, **kwargs: _P.kwargs) -> _S:
        thread, inner = self._thread, self._inner
        return thread.call(lambda: made(method(inner, *args, **kwargs), thread), undo=undo)

    return call


def _iterated(
    method: Callable[Concatenate[_Inner, _P], AsyncIterator[_R]],
) -> Callable[Concatenate[_Blocking[_Inner], _P], Iterator[_R]]:
    """The method of the same name, whose iterator waits for what comes next."""

    @wraps(method)
    def call(self: _Blocking[_Inner], /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        items = method(self._inner, *args, **kwargs)
        try:
            while (item := self._thread.run(_next(items))) is not None:
                yield item
        finally:
            if isinstance(items, AsyncGenerator):
                with suppress(Closed):
                    self._thread.run(items.aclose())

    return call


def _as_it_is(result: _R, _: LoopThread) -> _R:
    return result


async def _after(work: Coroutine[Any, Any, object], given: _R) -> _R:
    await work
    return given


def _dropped(task: asyncio.Task[Any]) -> Awaitable[None] | None:
    """Closes what a call has made, or started for a `with`, and has not given to its caller."""
    if task.exception() is not None:
        return None
    inner = task.result()._inner
    is_reader = isinstance(inner, consumer.Consumer | group_consumer.GroupConsumer)
    closed: Awaitable[None] = inner.aclose() if is_reader else inner.close()
    return closed


def _passed_on(future: asyncio.Future[_R], _: LoopThread) -> concurrent.futures.Future[_R]:
    """For callers in other threads."""
    result: concurrent.futures.Future[_R] = concurrent.futures.Future()

    def pass_on(done: asyncio.Future[_R]) -> None:
        if not result.set_running_or_notify_cancel():
            return
        error = concurrent.futures.CancelledError() if done.cancelled() else done.exception()
        if error is None:
            result.set_result(done.result())
        else:
            result.set_exception(error)

    future.add_done_callback(pass_on)
    return result


class Producer(Generic[K, V]):
    """See `tidelog.Producer`. Make it with `Client.producer`."""

    def __init__(self, inner: producer.Producer[K, V], thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __enter__(self) -> Self:
        return self._thread.run(_after(self._inner.start(), self), undo=_dropped)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    start = _blocking(producer.Producer.start)
    send = _blocking(producer.Producer.send)
    send_many = _blocking(producer.Producer.send_many)
    outcomes = _blocking(producer.Producer.outcomes)
    flush = _blocking(producer.Producer.flush)
    close = _blocking(producer.Producer.close)

    send_nowait = _made(producer.Producer.send_nowait, _passed_on)
    delay = _made(producer.Producer.delay, _as_it_is)

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._inner.stream

    @property
    def partition_count(self) -> int:
        """Over how many partitions it spreads keys, once it has started."""
        return self._inner.partition_count


class TransactionalProducer(Generic[K, V]):
    """See `tidelog.TransactionalProducer`. Make it with `Client.producer`."""

    def __init__(self, inner: transactional_producer.TransactionalProducer[K, V], thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    def __enter__(self) -> Self:
        return self._thread.run(_after(self._inner.start(), self), undo=_dropped)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def transaction(self) -> AbstractContextManager[None]:
        """A block of a `with` statement that begins a transaction, and at its end commits it, or aborts it after an
        exception. A commit or an abort within it ends it earlier. Raises as `begin` and `commit`."""
        return _Transaction(self._inner, self._thread)

    def begin(self) -> None:
        session = self._inner._session

        def unbegin(task: asyncio.Task[None]) -> Awaitable[None] | None:
            return session.try_to_abort() if task.exception() is None else None

        self._thread.run(self._inner.begin(), undo=unbegin)

    begin.__doc__ = transactional_producer.TransactionalProducer.begin.__doc__

    def commit(self) -> None:
        session = self._inner._session
        self._thread.run(self._inner.commit(), undo=lambda _: session.untell())

    commit.__doc__ = transactional_producer.TransactionalProducer.commit.__doc__

    start = _blocking(transactional_producer.TransactionalProducer.start)
    prepare = _blocking(transactional_producer.TransactionalProducer.prepare)
    abort = _blocking(transactional_producer.TransactionalProducer.abort)
    send = _blocking(transactional_producer.TransactionalProducer.send)
    send_many = _blocking(transactional_producer.TransactionalProducer.send_many)
    flush = _blocking(transactional_producer.TransactionalProducer.flush)
    close = _blocking(transactional_producer.TransactionalProducer.close)

    send_nowait = _made(transactional_producer.TransactionalProducer.send_nowait, _passed_on)
    delay = _made(transactional_producer.TransactionalProducer.delay, _as_it_is)

    def send_offsets(self, offsets: Mapping[Name, int] | None = None, *, group: GroupConsumer[Any, Any] | str) -> None:
        member = group._inner if isinstance(group, GroupConsumer) else group
        self._thread.run(self._inner.send_offsets(offsets, group=member))

    send_offsets.__doc__ = transactional_producer.TransactionalProducer.send_offsets.__doc__

    @property
    def transactional_id(self) -> str:
        """As it was given."""
        return self._inner.transactional_id

    @property
    def in_transaction(self) -> bool:
        """A transaction is open, which `commit` or `abort` ends: also one that can only be aborted."""
        return self._thread.call(lambda: self._inner.in_transaction)


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


class Consumer(Generic[K, V]):
    """See `tidelog.Consumer`. Make it with `Client.consume`."""

    def __init__(self, inner: consumer.Consumer[K, V], thread: LoopThread) -> None:
        self._reader = inner
        self._thread = thread
        self._turns = Turns(thread)

    @property
    def _inner(self) -> consumer.Consumer[K, V]:
        """Without what an interrupted call has taken."""
        self._turns.settle()
        return self._reader

    def _take_back(self, task: asyncio.Task[Any]) -> None:
        if task.exception() is None:
            self._reader._state.put_back()

    def __enter__(self) -> Self:
        return self._thread.run(_after(self._inner.start(), self), undo=_dropped)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

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
            while (batch := self._turns.run(_next(batches), self._take_back)) is not None:
                yield batch
        finally:
            self.close()

    start = _blocking(consumer.Consumer.start)
    getone = _handing_out(consumer.Consumer.getone)
    getmany = _handing_out(consumer.Consumer.getmany)
    seek = _blocking(consumer.Consumer.seek)
    pause = _made(consumer.Consumer.pause, _as_it_is)
    resume = _made(consumer.Consumer.resume, _as_it_is)
    position = _made(consumer.Consumer.position, _as_it_is)
    beginning_offsets = _blocking(consumer.Consumer.beginning_offsets)
    end_offsets = _blocking(consumer.Consumer.end_offsets)
    offsets_for_times = _blocking(consumer.Consumer.offsets_for_times)

    def close(self) -> None:
        """Stop fetching. Safe to call twice, and after the client was closed."""
        with suppress(Closed):
            self._thread.run(self._inner.aclose())

    @property
    def stream(self) -> str:
        """The name of the stream."""
        return self._inner.stream

    @property
    def positions(self) -> Mapping[int, int]:
        """By partition, the offset after the last record that was handed out. See `tidelog.Consumer`, as for all."""
        return self._inner.positions

    @property
    def incarnations(self) -> Mapping[int, int]:
        """By partition, the life of it to which its position belongs."""
        return self._thread.call(lambda: self._inner.incarnations)

    @property
    def waiting(self) -> Mapping[int, Mapping[int, int]]:
        """With `order="key"`, the partitions of which nothing is handed out before others are read further: by
        partition, those others, and up to which offset each (-1: that is not known yet)."""
        return self._thread.call(lambda: self._inner.waiting)

    @property
    def lag(self) -> Mapping[int, int]:
        """By partition, the committed records from its position on, as of the newest answer of a broker."""
        return self._inner.lag

    @property
    def paused(self) -> frozenset[int]:
        """The partitions that `pause` has named."""
        return self._inner.paused

    @property
    def is_at_end(self) -> bool:
        """All records below the stop were handed out."""
        return self._inner.is_at_end

    @property
    def missed(self) -> Mapping[int, int]:
        """By partition, the records that retention removed before they were read."""
        return self._inner.missed


class GroupConsumer(Generic[K, V]):
    """See `tidelog.GroupConsumer`. Make it with `Client.subscribe`. `on_assigned`, `on_revoked` and `on_lost` run in
    threads of their own."""

    def __init__(self, inner: group_consumer.GroupConsumer[K, V], thread: LoopThread) -> None:
        self._member = inner
        self._thread = thread
        self._turns = Turns(thread)

    @property
    def _inner(self) -> group_consumer.GroupConsumer[K, V]:
        """Without what an interrupted call has taken."""
        self._turns.settle()
        return self._member

    def _take_back(self, task: asyncio.Task[Any]) -> None:
        error = task.exception()
        if error is None:
            self._member._state.put_back()
        elif isinstance(error, UnknownMember) or not isinstance(error, TidelogError):  # which are raised once
            self._member._partitions.listeners.raise_later(error)

    def __enter__(self) -> Self:
        return self._thread.run(_after(self._inner.start(), self), undo=_dropped)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(Closed):
            self._thread.run(self._inner.__aexit__(exc_type, exc, traceback))

    def __iter__(self) -> Iterator[Record[K, V]]:
        inner, stopwatch, state = self._inner, self._inner._stopwatch, self._inner._state
        while (assigned := self._turns.run(inner._next(), self._take_back)) is not None:
            assert inner._session is not None
            left = inner._session.seconds_left(inner._clock())
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
        while (batch := self._turns.run(_next(batches), self._take_back)) is not None:
            yield batch

    start = _blocking(group_consumer.GroupConsumer.start)
    getone = _handing_out(group_consumer.GroupConsumer.getone)
    getmany = _handing_out(group_consumer.GroupConsumer.getmany)
    commit = _blocking(group_consumer.GroupConsumer.commit)
    committed = _blocking(group_consumer.GroupConsumer.committed)
    seek = _blocking(group_consumer.GroupConsumer.seek)
    seek_to_committed = _blocking(group_consumer.GroupConsumer.seek_to_committed)
    pause = _made(group_consumer.GroupConsumer.pause, _as_it_is)
    resume = _made(group_consumer.GroupConsumer.resume, _as_it_is)
    position = _made(group_consumer.GroupConsumer.position, _as_it_is)

    def close(self) -> None:
        """As `aclose` of `tidelog.GroupConsumer`. Safe to call twice, and after the client was closed."""
        with suppress(Closed):
            self._thread.run(self._inner.aclose())

    @property
    def group(self) -> str:
        """The name of the group."""
        return self._inner.group

    @property
    def member_id(self) -> str:
        """See `tidelog.GroupConsumer`, as for all of these."""
        return self._inner.member_id

    @property
    def generation(self) -> int:
        """That this member has reached."""
        return self._inner.generation

    @property
    def assignment(self) -> frozenset[Name]:
        """The partitions that it reads now."""
        return self._thread.call(lambda: self._inner.assignment)

    @property
    def positions(self) -> Mapping[Name, int]:
        """By partition, the offset after the last record that was handed out."""
        return self._thread.call(lambda: self._inner.positions)

    @property
    def waiting(self) -> Mapping[Name, Mapping[Name, int]]:
        """With `order="key"`, the partitions of which nothing is handed out before the group has committed more of
        others: by partition, those others, and up to which offset each (-1: that is not known yet)."""
        return self._thread.call(lambda: self._inner.waiting)

    @property
    def lag(self) -> Mapping[Name, int]:
        """By partition, the committed records from the position on."""
        return self._thread.call(lambda: self._inner.lag)

    @property
    def missed(self) -> Mapping[Name, int]:
        """By partition, the records that retention removed before they were read."""
        return self._thread.call(lambda: self._inner.missed)

    @property
    def paused(self) -> frozenset[Name]:
        """The partitions that `pause` has named."""
        return self._thread.call(lambda: self._inner.paused)


class Cursor:
    """See `tidelog.Cursor`. Make it with `Client.cursor`."""

    def __init__(self, inner: named_cursor.Cursor, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

    get = _blocking(named_cursor.Cursor.get)
    set = _blocking(named_cursor.Cursor.set)
    delete = _blocking(named_cursor.Cursor.delete)

    @property
    def name(self) -> str:
        """As it was given."""
        return self._inner.name


_CALL_EVERY = 0.1
"""Seconds after which an iteration calls for records again; its member would pass for one that takes none."""


def _in_thread(listener: Listener | None) -> Listener | None:
    """It may use the consumer, which blocks, so it is not for the thread with the event loop."""
    if not callable(listener) or asyncio.iscoroutinefunction(listener):
        return listener
    function = listener

    async def call(partitions: set[Name]) -> None:
        await asyncio.to_thread(function, partitions)

    return call


def _subscribed(
    method: Callable[Concatenate[client.Client, _P], group_consumer.GroupConsumer[Any, Any]],
) -> Callable[Concatenate[_Blocking[client.Client], _P], GroupConsumer[Any, Any]]:
    @wraps(method)
    def call(self: _Blocking[client.Client], /, *args: _P.args, **kwargs: _P.kwargs) -> GroupConsumer[Any, Any]:
        thread = self._thread
        for name in ("on_assigned", "on_revoked", "on_lost"):
            if name in kwargs:
                kwargs[name] = _in_thread(kwargs[name])  # type: ignore[arg-type]
        return thread.call(lambda: GroupConsumer(method(self._inner, *args, **kwargs), thread), undo=_dropped)

    return call


async def _next(items: AsyncIterator[_R]) -> _R | None:
    return await anext(items, None)


class Client:
    """See `tidelog.Client`. Make it with `connect`; use it with `with`, or `close()` it."""

    def __init__(self, inner: client.Client, thread: LoopThread) -> None:
        self._inner = inner
        self._thread = thread

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

    @property
    def is_connected(self) -> bool:
        """To NATS, at this moment. A lost connection comes back by itself."""
        return self._inner.is_connected

    create_stream = _blocking(client.Client.create_stream)
    ensure_stream = _blocking(client.Client.ensure_stream)
    alter_stream = _blocking(client.Client.alter_stream)
    delete_stream = _blocking(client.Client.delete_stream)
    streams = _blocking(client.Client.streams)
    streams_with_usage = _blocking(client.Client.streams_with_usage)
    describe = _blocking(client.Client.describe)
    move_leader = _blocking(client.Client.move_leader)
    elect_unclean = _blocking(client.Client.elect_unclean)
    partition_history = _blocking(client.Client.partition_history)
    cluster_status = _blocking(client.Client.cluster_status)
    describe_broker = _blocking(client.Client.describe_broker)
    alter_cluster = _blocking(client.Client.alter_cluster)
    set_readonly = _blocking(client.Client.set_readonly)
    pause = _blocking(client.Client.pause)
    resume = _blocking(client.Client.resume)
    delete_records = _blocking(client.Client.delete_records)
    repartition = _blocking(client.Client.repartition)
    repartition_status = _blocking(client.Client.repartition_status)
    cancel_repartition = _blocking(client.Client.cancel_repartition)
    copy_stream = _blocking(client.Client.copy_stream)
    metadata = _blocking(client.Client.metadata)
    offsets = _blocking(client.Client.offsets)
    fetch_batches = _iterated(client.Client.fetch_batches)
    activity = _iterated(client.Client.activity)

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
            made: Any = inner.producer(*args, **kwargs)
            kind = TransactionalProducer if isinstance(made, transactional_producer.TransactionalProducer) else Producer
            return kind(made, thread)

        return thread.call(make, undo=_dropped)

    consume = _made(client.Client.consume, Consumer, _dropped)
    subscribe = _subscribed(client.Client.subscribe)
    groups = _blocking(client.Client.groups)
    describe_group = _blocking(client.Client.describe_group)
    reset_group = _blocking(client.Client.reset_group)
    delete_group = _blocking(client.Client.delete_group)
    commit_offsets = _blocking(client.Client.commit_offsets)
    extents = _blocking(client.Client.extents)
    spans = _blocking(client.Client.spans)
    transactions = _blocking(client.Client.transactions)
    describe_transaction = _blocking(client.Client.describe_transaction)
    abort_transaction = _blocking(client.Client.abort_transaction)
    commit_prepared = _blocking(client.Client.commit_prepared)
    abort_prepared = _blocking(client.Client.abort_prepared)
    committed_sequence = _blocking(client.Client.committed_sequence)
    last_commit = _blocking(client.Client.last_commit)
    cursor = _made(client.Client.cursor, Cursor)


def _connecting(connect: Callable[_P, Coroutine[Any, Any, client.Client]]) -> Callable[_P, Client]:
    @wraps(connect)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Client:
        thread = LoopThread("tidelog-client")

        async def connected() -> Client:
            return Client(await connect(*args, **kwargs), thread)

        try:
            return thread.run(connected(), undo=_dropped)
        except BaseException:
            thread.stop()
            raise

    return call


connect = _connecting(client.connect)
