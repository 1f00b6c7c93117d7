"""One simulated world: one thread, one seed, one clock that jumps to the next thing that happens.

    World        the clock, the queue of what happens when, the source of chance, the story
    Process      one operating system process: an asyncio event loop over the world's clock. It can be killed (nothing
                 of it runs any more), paused and resumed (all that was due runs late), and its clocks may be off

Processes run one turn of their loop at a time, never two at once; which one runs first among those that have something
to do is chance, from the seed. Work for threads (`run_in_executor`) runs whole, at one moment between its call and its
completion; both delays are chance.

The same seed gives the same world, byte for byte: nothing here depends on addresses, on hash seeds or on real time.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import heapq
import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from itertools import count
from random import Random
from typing import Any, NoReturn

EPOCH_NS = 1_700_000_000_000_000_000
"""Wall clock time at which every world begins."""

TIMER_LATENESS = 0.000002
"""As everywhere: a timer fires a little after its time."""


class SimulatedCrash(KeyboardInterrupt):
    """The process dies in the middle of a system call. Of this base, because asyncio lets nothing else out."""


class InvariantBroken(Exception):
    """What must always hold did not. Ends the run."""

    def __init__(self, invariant: str, what: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what


class SimTask(asyncio.Task[Any]):
    """Hashed by number, so that sets of tasks iterate in the same order in every run."""

    _numbers = count(1)

    def __new__(cls, *_: object, **__: object) -> SimTask:  # noqa: PYI034 - a Task's __init__ hashes it already
        task = super().__new__(cls)
        task._number = next(cls._numbers)
        return task

    _number: int

    def __hash__(self) -> int:
        return self._number


class World:
    def __init__(self, seed: int, *, tell: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.story: list[str] = []
        self.failure: InvariantBroken | None = None
        """The first; whoever raises it may be a coroutine of which nobody hears."""
        self.tells = tell
        self.current: Process | None = None
        self.after_step: Callable[[Process], None] = lambda _: None
        self.processes: list[Process] = []
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    # ---- time

    def at(self, when: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (max(when, self.now), next(self._order), action))

    def after(self, delay: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._queue, (self.now + delay, next(self._order), action))

    def run_until(self, deadline: float, done: Callable[[], bool] = lambda: False) -> bool:
        """Until `done` (looked at after every event) or the deadline; whether it was `done`."""
        queue = self._queue
        while queue and queue[0][0] <= deadline:
            when, _, action = heapq.heappop(queue)
            self.now = when
            self.steps += 1
            action()
            if self.failure is not None:
                raise self.failure
            if done():
                return True
        self.now = max(self.now, deadline)
        return done()

    # ---- story

    def say(self, text: str) -> None:
        if self.tells:
            who = self.current.name if self.current is not None else "-"
            self.story.append(f"{self.now:10.6f} {who:<4} {text}")

    def broken(self, invariant: str, what: str) -> NoReturn:
        self.say(f"BROKEN {invariant}: {what}")
        if self.failure is None:
            self.failure = InvariantBroken(invariant, what)
        raise self.failure


class Process(asyncio.AbstractEventLoop):
    """See the module. `on_crash` is called when the process dies inside a system call."""

    def __init__(self, world: World, name: str, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused = False
        self.on_crash: Callable[[], None] = lambda: None
        self.wall_skew_ns = 0
        self.disk_delay = 0.0003
        """Mean of what work for a thread takes, in seconds."""
        self._rate = rate
        self._offset = offset
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._wake_at = float("inf")
        self._number = count()
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept to the end of the world: what the garbage collector would end otherwise, at a time of its own."""
        world.processes.append(self)

    @classmethod
    def begun(cls, world: World, name: str, *, rate: float = 1.0, offset: float = 0.0) -> Process:
        """What a simulated program never asks of its loop (sockets, signals) is left abstract."""
        return cls(world, name, rate=rate, offset=offset)

    # ---- the clocks

    def time(self) -> float:
        return self.world.now * self._rate + self._offset

    def time_ns(self) -> int:
        return EPOCH_NS + int(self.world.now * 1e9) + self.wall_skew_ns

    # ---- life

    def kill(self) -> None:
        self.alive = False

    def _may_run(self) -> bool:
        return self.alive and not self.paused

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake_at = float("inf")
        self._arrange()

    # ---- what an event loop does

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        if self.world.current is not self:
            self._arrange()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, next(self._number), handle))
        if self.world.current is not self:
            self._arrange()
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass  # found when it is due

    def _arrange(self) -> None:
        """Ask the world for the next turn."""
        if not self._may_run():
            return
        world = self.world
        if self._ready:
            due = world.now + world.rng.random() * 0.00005
        else:
            timers = self._timers
            while timers and timers[0][2]._cancelled:
                heapq.heappop(timers)
            if not timers:
                return
            due = max(world.now, (timers[0][0] - self._offset) / self._rate) + TIMER_LATENESS
        if due < self._wake_at:
            self._wake_at = due
            world.at(due, lambda: self._turn(due))

    def _turn(self, due: float) -> None:
        if due != self._wake_at or not self._may_run():
            return
        self._wake_at = float("inf")
        now = self.time() + 1e-9
        timers, ready = self._timers, self._ready
        while timers and timers[0][0] <= now:
            handle = heapq.heappop(timers)[2]
            if not handle._cancelled:
                ready.append(handle)
        with self.running():
            for _ in range(len(ready)):
                handle_now = ready.popleft()
                if not handle_now._cancelled and self._may_run():
                    handle_now._run()
        if self.alive:
            self.world.after_step(self)

    def end_of_the_world(self) -> None:
        self.alive = False
        for task in self.tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]

    @contextmanager
    def running(self) -> Iterator[None]:
        """What happens inside is done by this process."""
        world = self.world
        before, world.current = world.current, self
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)
        try:
            yield
        except SimulatedCrash:
            self.on_crash()
        finally:
            asyncio._set_running_loop(outer)
            world.current = before
            if before is not self:
                self._arrange()

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **kwargs: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = SimTask(coro, loop=self, **kwargs)
        self.tasks.append(task)
        return task

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """In a thread of this process: begins later, and its completion is heard of later still."""
        future = self.create_future()

        def finished(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

        self.in_thread(lambda: func(*args), finished)
        return future

    def in_thread(self, work: Callable[[], Any], finished: Callable[[Any, BaseException | None], None]) -> None:
        """`work` at one moment of this process's life, then `finished(result, error)` on its loop."""

        def run() -> None:
            if not self.alive:
                return
            if self.paused:
                self.world.after(0.001, run)
                return
            result: Any = None
            error: BaseException | None = None
            with self.running():
                try:
                    result = work()
                except Exception as e:  # noqa: BLE001 - goes to whoever waits for it
                    error = e
            if self.alive:
                self.world.after(self._delay() / 4, lambda: self.call_soon(finished, result, error))

        self.world.after(self._delay(), run)

    def _delay(self) -> float:
        return self.world.rng.expovariate(1.0) * self.disk_delay

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.world.current is self

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, InvariantBroken):
            raise error
        if self.alive:
            self.world.broken("NoBugs", f"{self.name}: {context.get('message')}: {error!r}")


class _Listener(logging.Handler):
    """What the code under test logs becomes part of the story; a bug that it meets ends the run."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG)
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self.world
        if world.current is None or not world.current.alive:
            return
        world.say(record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and record.levelno >= logging.ERROR and world.failure is None:
            world.failure = InvariantBroken("NoBugs", f"{world.current.name}: {record.getMessage()}: {error!r}")
            world.say(f"BROKEN {world.failure}")


@contextmanager
def inhabited(world: World) -> Iterator[None]:
    """For the time of a run: logs go to the world, the garbage collector waits."""
    listener = _Listener(world)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers[:] = [listener]
    root.setLevel(logging.INFO if world.tells else logging.ERROR)
    collects = gc.isenabled()
    real_time_ns = time.time_ns
    time.time_ns = lambda: EPOCH_NS + int(world.now * 1e9)
    gc.disable()
    SimTask._numbers = count(1)
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)  # who dies closes nothing
    try:
        yield
    finally:
        time.time_ns = real_time_ns
        sys.set_asyncgen_hooks(*hooks)
        for process in world.processes:
            process.end_of_the_world()
        root.setLevel(level)
        root.handlers[:] = handlers
        if collects:
            gc.enable()
