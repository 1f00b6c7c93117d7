"""Objects of the client for callers that block: each call of a facade runs the method of the same name on the loop of a
`LoopThread`, and returns when it is done.

A class of `tidelog.sync` names the methods and properties of the class of `tidelog` that it stands for, one a line:

    send = blocking(producer.Producer.send)                      a coroutine function
    getone = handing_out(consumer.Consumer.getone)               one that gives records once
    delay = made(producer.Producer.delay, as_it_is)              a function that does not wait
    activity = iterated(client.Client.activity)                  an asynchronous iterator
    lag = Read[Mapping[int, int]](consumer.Consumer.lag)         a property

Signatures and docstrings are theirs, for `help` and for type checkers.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import wraps
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar, cast, overload

from tidelog.client.base.exceptions import Closed
from tidelog.client.consumer.subscription_state import SubscriptionState
from tidelog.loop_thread import LoopThread, Turns, Undo

_Inner_co = TypeVar("_Inner_co", covariant=True)
_P = ParamSpec("_P")
_R = TypeVar("_R")
_S = TypeVar("_S")


class _Starting(Protocol):
    async def start(self) -> None: ...

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class _Reading(_Starting, Protocol):
    _state: SubscriptionState

    async def aclose(self) -> None: ...


_Starting_co = TypeVar("_Starting_co", bound=_Starting, covariant=True)
_Reading_co = TypeVar("_Reading_co", bound=_Reading, covariant=True)


class Facade(Generic[_Inner_co]):
    """An object of `tidelog`, whose calls run on the loop of `thread`."""

    def __init__(self, inner: _Inner_co, thread: LoopThread) -> None:
        self._wrapped = inner
        self._thread = thread

    @property
    def _inner(self) -> _Inner_co:
        return self._wrapped


def blocking(
    method: Callable[Concatenate[_Inner_co, _P], Coroutine[Any, Any, _R]],
    undo: Callable[[_Inner_co, asyncio.Task[_R]], Awaitable[object] | None] | None = None,
) -> Callable[Concatenate[Facade[_Inner_co], _P], _R]:
    """The method of the same name, which returns when it is done. `undo`: as that of `LoopThread.run`."""

    @wraps(method)
    def call(self: Facade[_Inner_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        inner = self._inner
        work = method(inner, *args, **kwargs)
        return self._thread.run(work, undo=None if undo is None else lambda task: undo(inner, task))

    return call


def handing_out(
    method: Callable[Concatenate[_Reading_co, _P], Coroutine[Any, Any, _R]],
) -> Callable[Concatenate[Reader[_Reading_co], _P], _R]:
    """As `blocking`, of a method that gives records once: those that do not come to the caller come again."""

    @wraps(method)
    def call(self: Reader[_Reading_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        return self._turns.run(method(self._inner, *args, **kwargs), self._take_back)

    return call


def made(
    method: Callable[Concatenate[_Inner_co, _P], _R],
    make: Callable[[_R, LoopThread], _S],
    undo: Undo[Any] | None = None,
) -> Callable[Concatenate[Facade[_Inner_co], _P], _S]:
    """The method of the same name, which does not wait; it returns what `make` makes of the result, on the loop."""

    @wraps(method)
    def call(self: Facade[_Inner_co], /, *args: _P.args, **kwargs: _P.kwargs) -> _S:
        thread, inner = self._thread, self._inner
        result: _S = thread.call(lambda: make(method(inner, *args, **kwargs), thread), undo=undo)
        return result

    return call


def iterated(
    method: Callable[Concatenate[_Inner_co, _P], AsyncIterator[_R]],
) -> Callable[Concatenate[Facade[_Inner_co], _P], Iterator[_R]]:
    """The method of the same name, whose iterator waits for what comes next."""

    @wraps(method)
    def call(self: Facade[_Inner_co], /, *args: _P.args, **kwargs: _P.kwargs) -> Iterator[_R]:
        items = method(self._inner, *args, **kwargs)
        try:
            while (item := self._thread.run(next_of(items))) is not None:
                yield item
        finally:
            if isinstance(items, AsyncGenerator):
                with suppress(Closed):
                    self._thread.run(items.aclose())

    return call


class Read(property, Generic[_R]):
    """The property of the same name, read on the loop if another thread may change what it is made of."""

    def __init__(self, source: object, *, on_loop: bool = False) -> None:
        read: Any = cast("property", source).fget

        @wraps(read)
        def get(self: Facade[Any]) -> Any:
            inner = self._inner
            return self._thread.call(lambda: read(inner)) if on_loop else read(inner)

        super().__init__(get)

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type | None = None) -> Self: ...

        @overload
        def __get__(self, instance: object, owner: type | None = None) -> _R: ...

        def __get__(self, instance: object | None, owner: type | None = None) -> Any: ...


def as_it_is(result: _R, _: LoopThread) -> _R:
    return result


async def _after(work: Coroutine[Any, Any, object], given: _R) -> _R:
    await work
    return given


async def next_of(items: AsyncIterator[_R]) -> _R | None:
    return await anext(items, None)


def dropped(task: asyncio.Task[Any]) -> Awaitable[None] | None:
    """Closes what a call has made, or started for a `with`, and has not given to its caller."""
    if task.exception() is not None:
        return None
    inner = task.result()._inner
    closed: Awaitable[None] = inner.aclose() if hasattr(inner, "aclose") else inner.close()
    return closed


def passed_on(future: asyncio.Future[_R], _: LoopThread) -> concurrent.futures.Future[_R]:
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


class Managed(Facade[_Starting_co]):
    """One that a `with` starts and closes."""

    def __enter__(self) -> Self:
        return self._thread.run(_after(self._inner.start(), self), undo=dropped)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._thread.run(self._inner.__aexit__(exc_type, exc, traceback))


class Reader(Managed[_Reading_co]):
    """One that gives records once: those of a call that was interrupted are taken back before the next one begins."""

    def __init__(self, inner: _Reading_co, thread: LoopThread) -> None:
        super().__init__(inner, thread)
        self._turns = Turns(thread)

    @property
    def _inner(self) -> _Reading_co:
        self._turns.settle()
        return self._wrapped

    def _take_back(self, task: asyncio.Task[Any]) -> None:
        if task.exception() is None:
            self._wrapped._state.put_back()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(Closed):
            super().__exit__(exc_type, exc, traceback)

    def close(self) -> None:
        """Stop fetching. Safe to call twice, and after the client was closed."""
        with suppress(Closed):
            self._thread.run(self._inner.aclose())
