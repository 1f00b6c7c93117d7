"""An event loop in a thread of its own, for callers that block.

A signal handler may raise in the thread of a caller, wherever the interpreter looks for signals: while it waits, and
also when the work is done and its result is on the way. Such a call is left, and has given its caller nothing:

    waiting   the work goes on
    left      its caller has gone, by an exception that is not the work's own: the work is cancelled
    undone    it has ended; what it gives only once was taken back by its `undo`

What must not overlap, such as the calls of a consumer, goes through one `Turns`: before the next call, one that was
left is undone. A result is handed over by a return without a call or a jump behind it, where no signal is looked for.

A process that is forked gets neither the thread nor, for its own use, the connections of the loop: whoever calls there
is told so.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, Generic, TypeAlias, TypeVar

from tidelog.client.base.exceptions import Closed
from wire.errors import Code

_log = logging.getLogger(__name__)

_T = TypeVar("_T")

Undo: TypeAlias = Callable[[asyncio.Task[_T]], Awaitable[object] | None]
"""Takes back, on the loop, what the work has given. The task has ended, and was not cancelled."""

_UNDO_SECONDS = 5.0
"""For which a loop that is to stop waits for calls that are being undone."""


class _Call(Generic[_T]):
    """Work on the loop, for one caller, which waits for `done`. But for `is_left`, the loop's thread writes it."""

    def __init__(self, work: Coroutine[Any, Any, _T], undo: Undo[_T] | None) -> None:
        self._work = work
        self._undo = undo
        self._task: asyncio.Task[_T] | None = None
        self._undoing: asyncio.Task[None] | None = None
        self.done = threading.Lock()
        """Held until the work has ended. Nobody else waits for it: an interrupted caller leaves nothing locked."""
        self.done.acquire()
        self.result: _T
        self.error: BaseException | None = None
        self._has_ended = False
        self.thread = threading.get_ident()
        self.is_left = False
        self.is_undone = False

    def begin(self) -> asyncio.Task[_T]:
        self._task = asyncio.get_running_loop().create_task(self._work)
        self._task.add_done_callback(self._end)
        return self._task

    def end(self, error: BaseException) -> None:
        """The caller waits no longer."""
        if not self._has_ended:
            self._has_ended, self.error = True, error
            self.done.release()

    def undo(self) -> asyncio.Task[None]:
        """Its caller has left it. Safe to call twice."""
        if self._undoing is None:
            self._undoing = asyncio.get_running_loop().create_task(self._take_back())
        return self._undoing

    def _end(self, task: asyncio.Task[_T]) -> None:
        if task.cancelled():
            self.end(concurrent.futures.CancelledError())
        elif (error := task.exception()) is not None:
            self.end(error)
        elif not self._has_ended:
            self._has_ended, self.result = True, task.result()
            self.done.release()

    async def _take_back(self) -> None:
        task = self._task
        if task is None:  # the caller was interrupted before it had handed the work over
            self._work.close()
        else:
            task.cancel()
            await asyncio.wait((task,))
            if self._undo is not None and not task.cancelled():
                try:
                    undone = self._undo(task)
                    if inspect.isawaitable(undone):
                        await undone
                except Exception as error:  # noqa: BLE001 - nobody waits for it
                    _log.warning("what an interrupted call had begun could not be taken back: %s", error)
        self.is_undone = True


class LoopThread:
    """The thread is a daemon: a program ends without it."""

    def __init__(self, name: str) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._calls: dict[asyncio.Task[Any], _Call[Any]] = {}
        """Whose work has not ended."""
        self._undoing: set[asyncio.Task[None]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._is_running = True
        """`Thread.is_alive` says no for good, once an exception has interrupted it."""
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def run(
        self,
        work: Coroutine[Any, Any, _T],
        timeout: float | None = None,
        *,
        undo: Undo[_T] | None = None,
        turns: Turns | None = None,
    ) -> _T:
        """Do it on the loop and wait for it, at most `timeout` seconds. It is cancelled when the caller is interrupted.
        Raises Closed, TimeoutError, and what `work` raises."""
        if os.getpid() != self._process:
            work.close()
            raise Closed(
                Code.BAD_REQUEST,
                "this client belongs to the process that this one was forked from; connect again in this process",
            )
        if not self._is_running or threading.get_ident() == self._thread.ident:
            work.close()
            raise Closed(Code.BAD_REQUEST, "this client is closed, or waits for itself; connect again")
        call = _Call(work, undo)
        try:
            if turns is not None:
                turns.newest = call
            self._loop.call_soon_threadsafe(self._begin, call)
            if not call.done.acquire(timeout=-1 if timeout is None else timeout):
                raise TimeoutError
            if call.error is None:
                return call.result
            raise call.error
        except BaseException as error:
            if error is not call.error:
                call.is_left = True
                with suppress(RuntimeError):  # the loop has been closed
                    self._loop.call_soon_threadsafe(self._undo, call)
            call.error = None  # which has this frame in its traceback
            raise

    def call(self, function: Callable[[], _T], *, undo: Undo[_T] | None = None) -> _T:
        """As `run`, of a function that does not wait."""

        async def work() -> _T:
            return function()

        return self.run(work(), undo=undo)

    def stop(self, timeout: float | None = None) -> None:
        """Calls that other threads wait for raise Closed. Safe to call twice. A loop that is held up for longer than
        `timeout` seconds is left to end by itself."""
        if self._is_running and os.getpid() == self._process:
            with suppress(RuntimeError):  # it has been closed
                self._loop.call_soon_threadsafe(self._begin_to_stop)
            self._thread.join(timeout)

    # ---- on the loop

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._is_running = False
            self._loop.close()

    def _begin(self, call: _Call[Any]) -> None:
        task = call.begin()
        self._calls[task] = call
        task.add_done_callback(self._calls.pop)

    def _undo(self, call: _Call[Any]) -> None:
        task = call.undo()
        self._undoing.add(task)
        task.add_done_callback(self._undoing.discard)

    def _begin_to_stop(self) -> None:
        if self._stopping is None:
            self._stopping = self._loop.create_task(self._stop())

    async def _stop(self) -> None:
        if self._undoing:
            await asyncio.wait(self._undoing, timeout=_UNDO_SECONDS)
        for task, call in tuple(self._calls.items()):
            call.end(Closed(Code.BAD_REQUEST, "the client was closed while this call waited; connect again"))
            task.cancel()
        await asyncio.sleep(0)
        self._loop.stop()


class Turns:
    """Calls of one object, of which the next one begins when the one before has ended, or was undone. Each thread that
    uses the object waits for its own calls."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self.newest: _Call[Any] | None = None

    def run(self, work: Coroutine[Any, Any, _T], undo: Undo[_T] | None = None) -> _T:
        """As `LoopThread.run`."""
        return self._thread.run(work, undo=undo, turns=self)

    def settle(self) -> None:
        """Returns when the newest call is undone, if this thread has left it."""
        call = self.newest
        if call is None or not call.is_left or call.is_undone or call.thread != threading.get_ident():
            return
        with suppress(Closed):
            self._thread.run(_settled(call))


async def _settled(call: _Call[Any]) -> None:
    await asyncio.shield(call.undo())
