"""One simulated world: one thread, one seed, one clock that jumps to the next thing that happens.

    World        the clock, the queue of events, the source of chance, the trace
    Process      one operating system process: an asyncio event loop over the world's clock. It can be killed (nothing
                 of it runs any more), paused and resumed (all that was due runs late), and its clocks may be off

Processes run one turn of their loop at a time, never two at once; the order among the processes that have something
to do is chance, from the seed. Work for threads (`run_in_executor`) runs whole, at one moment between its call and its
completion; both delays are chance.

The same seed gives the same world, byte for byte: nothing here depends on addresses, on hash seeds or on real time.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
import random
import secrets
import socket
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf, log
from random import Random
from typing import Any, NoReturn, Self

EPOCH_NS = 1_700_000_000_000_000_000
"""Wall clock time at which every world begins."""

MAX_STEPS = 2_000_000
"""A hundred times the steps of a run."""
TIMER_LATENESS = 0.000002
"""As everywhere: a timer fires a little after its time."""

WAKE_DELAY = 0.00005
"""At most so long after it has something to do a process does it, in seconds."""


class SimulatedCrash(KeyboardInterrupt):
    """The process dies in the middle of a system call. Of this base, because asyncio lets nothing else out."""


class InvariantBroken(Exception):
    """An invariant does not hold. Ends the run."""

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
    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.now = 0.0
        self.steps = 0
        self.trace: list[str] = []
        self.failure: InvariantBroken | None = None
        """The first; it may be raised in a coroutine that is never awaited."""
        self.is_traced = traced
        self.current: Process | None = None
        self.after_step: Callable[[Process], None] = lambda _: None
        self.processes: list[Process] = []
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = count()

    # ---- time

    def at(self, when: float, action: Callable[..., object], *args: Any) -> None:
        """`when`: not before now."""
        heappush(self._queue, (when, next(self._order), action, args))

    def after(self, delay: float, action: Callable[..., object], *args: Any) -> None:
        heappush(self._queue, (self.now + delay, next(self._order), action, args))

    def chance_delay(self, mean: float) -> float:
        """Exponentially distributed."""
        return -log(1.0 - self.rng.random()) * mean

    def run_until(self, deadline: float, done: Callable[[], bool] | None = None) -> bool:
        """Until `done` (looked at after every event) or the deadline; whether it was `done`."""
        queue = self._queue
        while queue and queue[0][0] <= deadline:
            self.now, _, action, args = heappop(queue)
            self.steps += 1
            if self.steps > MAX_STEPS:
                self.broken("NoProgress", f"{MAX_STEPS} steps, and the run is at {self.now:.6f} s")
            action(*args)
            if self.failure is not None:
                raise self.failure
            if done is not None and done():
                return True
        self.now = max(self.now, deadline)
        return done is not None and done()

    # ---- trace

    def say(self, text: str) -> None:
        if self.is_traced:
            who = self.current.name if self.current is not None else "-"
            self.trace.append(f"{self.now:10.6f} {who:<4} {text}")

    def broken(self, invariant: str, what: str) -> NoReturn:
        raise self.fails(invariant, what)

    def fails(self, invariant: str, what: str) -> InvariantBroken:
        """As `broken`, for callers that cannot raise: the run ends after this step."""
        self.say(f"BROKEN {invariant}: {what}")
        if self.failure is None:
            self.failure = InvariantBroken(invariant, what)
        return self.failure


class _Handle(asyncio.TimerHandle):
    """Handle of a callback, timed or not: without asyncio's debugging aids, since most of the work of a world is
    callbacks."""

    __slots__ = ()

    _when: float
    _repr: str | None

    def __init__(
        self, callback: Callable[..., object], args: Sequence[Any], context: contextvars.Context | None
    ) -> None:
        self._callback = callback
        self._args = args
        self._context = contextvars.copy_context() if context is None else context
        self._cancelled = False
        self._repr = None

    def cancel(self) -> None:
        """It leaves the queue when it is due."""
        self._cancelled = True
        self._callback = self._args = None  # type: ignore[assignment]


class Process(asyncio.AbstractEventLoop):
    """See the module. `on_crash` is called when the process dies inside a system call. It has more than thirty methods
    because it is an event loop of asyncio."""

    def __init__(self, world: World, name: str, *, rate: float = 1.0, offset: float = 0.0) -> None:
        self.world = world
        self.name = name
        self.alive = True
        self.paused = False
        self.on_crash: Callable[[], None] = lambda: None
        self.wall_skew_ns = 0
        self.disk_delay = 0.0003
        """Mean duration of work for a thread, in seconds."""
        self._hangs: Callable[[object], bool] | None = None
        """Whether work for that executor waits until the disk answers."""
        self._hanging: list[Callable[[], None]] = []
        self._rate = rate
        self._offset = offset
        self._ready: deque[_Handle] = deque()
        self._timers: list[tuple[float, int, _Handle]] = []
        self._arrivals: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        """Messages from outside, by the time at which it can be read."""
        self.descriptors: dict[int, Callable[[], bool]] = {}
        """Those that `add_reader` takes, and whether each can be read now."""
        self._readers: dict[int, Callable[[], object]] = {}
        self._reading: set[int] = set()
        """Descriptors whose reader is about to be called."""
        self.addresses: dict[str, str] = {}
        """Host name -> IP address."""
        self._wake_at = inf
        """When the next turn is due."""
        self._wakes: list[float] = []
        """Its events in the world's queue, the latest first."""
        self._number = count()
        self.tasks: list[asyncio.Task[Any]] = []
        """Kept to the end of the world: objects that the garbage collector would otherwise end at a time of its own."""
        world.processes.append(self)

    @classmethod
    def begun(cls, world: World, name: str, *, rate: float = 1.0, offset: float = 0.0) -> Self:
        """Methods of a loop that a simulated program never calls (sockets, signals) are left abstract."""
        return cls(world, name, rate=rate, offset=offset)

    # ---- the clocks

    def time(self) -> float:
        return self.world.now * self._rate + self._offset

    def time_ns(self) -> int:
        return EPOCH_NS + int(self.world.now * 1e9) + self.wall_skew_ns

    # ---- life

    def kill(self) -> None:
        self.alive = False

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self._wake_at = inf
        self._arrange()

    def hang(self, hangs: Callable[[object], bool] | None) -> None:
        """The disk hangs for work of those executors; None: it answers, and the waiting work begins."""
        self._hangs = hangs
        waited, self._hanging = self._hanging, []
        for run in waited:
            self.world.after(self.world.chance_delay(self.disk_delay), run)

    @property
    def disk_hangs(self) -> bool:
        return self._hangs is not None

    # ---- event loop

    def call_soon(
        self, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, context)
        ready = self._ready
        ready.append(handle)
        if len(ready) == 1 and self.world.current is not self:
            self._arrange()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at(self.time() + delay, _Handle(callback, args, context))

    def call_at(
        self, when: float, callback: Callable[..., object], *args: object, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        return self._call_at(when, _Handle(callback, args, context))

    def _call_at(self, when: float, handle: _Handle) -> _Handle:
        handle._when = when
        heappush(self._timers, (when, next(self._number), handle))
        if self.world.current is not self:
            self._arrange()
        return handle

    def arrives(self, when: float, callback: Callable[..., object], *args: object) -> None:
        """To be called when a socket can be read: in a turn at that time (the world's) or later."""
        heappush(self._arrivals, (when, next(self._number), callback, args))
        if when < self._wake_at and self.world.current is not self:
            self._arrange()

    def add_reader(self, fd: Any, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        """Called again and again while the descriptor can be read."""
        assert not args
        self._readers[fd] = callback
        if self.descriptors[fd]():
            self.descriptor_is_ready(fd)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def descriptor_is_ready(self, descriptor: int) -> None:
        if descriptor in self._readers and descriptor not in self._reading:
            self._reading.add(descriptor)
            self.arrives(self.world.now, self._read, descriptor)

    def _read(self, descriptor: int) -> None:
        self._reading.discard(descriptor)
        reader = self._readers.get(descriptor)
        if reader is not None:
            reader()
            if self.alive and self.descriptors[descriptor]():
                self.descriptor_is_ready(descriptor)

    async def getaddrinfo(self, host: Any, port: Any, **_: Any) -> list[Any]:
        """Raises OSError."""
        if host not in self.addresses:
            raise OSError(f"{host} is unknown")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (self.addresses[host], port))]

    def jump(self, seconds: float) -> None:
        """Its clocks are ahead by so much more, as after a machine was suspended."""
        self._offset += seconds
        self._wake_at = inf
        self._arrange()

    def _arrange(self) -> None:
        """Ask the world for the next turn."""
        if not self.alive or self.paused:
            return
        world = self.world
        now = world.now
        if self._ready:
            due = now + world.rng.random() * WAKE_DELAY
        else:
            due = inf
            timers = self._timers
            while timers and timers[0][2]._cancelled:
                heappop(timers)
            if timers:
                due = max(now, (timers[0][0] - self._offset) / self._rate) + TIMER_LATENESS
            if self._arrivals and self._arrivals[0][0] < due:
                due = max(now, self._arrivals[0][0]) + world.rng.random() * WAKE_DELAY
        if due < self._wake_at:
            self._wake_at = due
            self._ask_to_wake()

    def _ask_to_wake(self) -> None:
        wakes = self._wakes
        if not wakes or self._wake_at < wakes[-1]:
            wakes.append(self._wake_at)
            self.world.at(self._wake_at, self._wake)

    def _wake(self) -> None:
        self._wakes.pop()
        if not self.alive or self.paused:
            return
        if self.world.now >= self._wake_at:
            self._turn()
        elif self._wake_at < inf:
            self._ask_to_wake()

    def _turn(self) -> None:
        self._wake_at = inf
        world = self.world
        timers, ready, arrivals = self._timers, self._ready, self._arrivals
        arrived = None
        while arrivals and arrivals[0][0] <= world.now:
            _, _, callback, args = heappop(arrivals)
            if arrived is None:
                arrived = contextvars.copy_context()
            ready.append(_Handle(callback, args, arrived))
        now = world.now * self._rate + self._offset + 1e-9
        while timers and timers[0][0] <= now:
            handle = heappop(timers)[2]
            if not handle._cancelled:
                ready.append(handle)
        self._run_ready()

    def _run_ready(self) -> None:
        world, ready = self.world, self._ready
        world.current = self
        asyncio._set_running_loop(self)
        try:
            for _ in range(len(ready)):
                handle = ready.popleft()
                if handle._cancelled:
                    continue
                try:
                    handle._context.run(handle._callback, *handle._args)
                except (SystemExit, KeyboardInterrupt):
                    raise
                except BaseException as error:  # noqa: BLE001 - as asyncio's loops do
                    name = getattr(handle._callback, "__qualname__", type(handle._callback).__name__)
                    self.call_exception_handler({"message": f"exception in callback {name}", "exception": error})
                if not self.alive or self.paused:
                    break
        except SimulatedCrash:
            self.on_crash()
        finally:
            asyncio._set_running_loop(None)
            world.current = None
            self._arrange()
        if self.alive:
            world.after_step(self)

    def end_of_the_world(self) -> None:
        """The rest of the process is dropped, at once, and not when the garbage collector comes to it."""
        self.alive = False
        with self.running():
            for task in self.tasks:
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                coroutine = task.get_coro()
                if not task.done() and coroutine is not None:
                    with suppress(BaseException):
                        coroutine.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Code inside runs as this process."""
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

        self.in_thread(partial(func, *args), finished, executor)
        return future

    def in_thread(
        self, work: Callable[[], Any], finished: Callable[[Any, BaseException | None], None], executor: object = None
    ) -> None:
        """`work` at one moment of this process's life, then `finished(result, error)` on its loop."""

        def run() -> None:
            if not self.alive:
                return
            if self.paused:
                self.world.after(0.001, run)
                return
            if self._hangs is not None and self._hangs(executor):
                self._hanging.append(run)
                return
            result: Any = None
            error: BaseException | None = None
            with self.running():
                try:
                    result = work()
                except Exception as e:  # noqa: BLE001 - goes to the waiting caller
                    error = e
            if self.alive:
                self.world.after(self.world.chance_delay(self.disk_delay / 4), self.call_soon, finished, result, error)

        self.world.after(self.world.chance_delay(self.disk_delay), run)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self.world.current is self

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if self.alive and not isinstance(error, InvariantBroken):
            self.world.fails("NoBugs", f"{self.name}: {context.get('message')}: {error!r}")


class _Listener(logging.Handler):
    """Log lines of the code under test become part of the trace; a bug that it reports ends the run."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG)
        self.world = world

    def emit(self, record: logging.LogRecord) -> None:
        world = self.world
        if world.current is None or not world.current.alive:
            return
        world.say(record.getMessage())
        error = record.exc_info[1] if record.exc_info else None
        is_bug = error is not None and not isinstance(error, SimulatedCrash) and record.levelno >= logging.ERROR
        if is_bug and world.failure is None:
            world.failure = InvariantBroken("NoBugs", f"{world.current.name}: {record.getMessage()}: {error!r}")
            world.say(f"BROKEN {world.failure}")


@contextmanager
def _warned_of_coroutines(world: World) -> Iterator[None]:
    """A coroutine that a live process made and never awaited is a bug of its."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", "coroutine .* was never awaited", RuntimeWarning)
        usual = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if "was never awaited" not in str(message):
                usual(message, category, *where, **more)
            elif world.current is not None and world.current.alive:
                world.fails("NoBugs", f"{world.current.name}: {message}")

        warnings.showwarning = show
        yield


@contextmanager
def inhabited(world: World) -> Iterator[None]:
    """For the time of a run: logs go to the world, `time.time_ns` is the world's clock, `secrets.token_hex` and
    `random.random` follow from the seed, the garbage collector waits.

    Code under test must look `time.time_ns` up at each call: one that it bound at its import is the real clock."""
    listener = _Listener(world)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    root.handlers[:] = [listener]
    root.setLevel(logging.INFO if world.is_traced else logging.ERROR)
    collects = gc.isenabled()
    real_time_ns = time.time_ns
    time.time_ns = lambda: EPOCH_NS + int(world.now * 1e9)
    random.seed(f"pauses of {world.seed}")
    tokens = Random(f"tokens of {world.seed}")
    real_token_hex = secrets.token_hex
    secrets.token_hex = lambda nbytes=32: tokens.randbytes(nbytes or 32).hex()
    gc.disable()
    SimTask._numbers = count(1)
    hooks = sys.get_asyncgen_hooks()
    sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda _: None)  # a killed process closes nothing
    try:
        with _warned_of_coroutines(world):
            try:
                yield
            finally:
                for process in world.processes:
                    process.end_of_the_world()
    finally:
        time.time_ns = real_time_ns
        secrets.token_hex = real_token_hex
        sys.set_asyncgen_hooks(*hooks)
        root.setLevel(level)
        root.handlers[:] = handlers
        if collects:
            gc.enable()
