"""Group commit: one fdatasync serves every batch that waits for it, and only a quick one stands on the event loop.

    request(log, done)     loop      done joins the callbacks that wait for `log`, unless it is one of them; the log is
                                     queued unless it is already
                           worker    takes ALL that wait for the log, log.sync(), puts their outcome to the others
    done(durable end)      loop      or done(the exception); one call for all outcomes that are there by then

A sync serves the requests that were there when it began: their records were appended before. Requests that come while
it runs wait for the next one of that log, so a log is synced by one worker at a time, and a busy log has at most one
sync running and one queued, however many requests there are. Logs are served in the order in which they were queued.

A worker takes as many logs as wait, up to the number of files that it can sync side by side, and syncs them so: that
costs it one call and one wait, whereas a worker for each log has to get the interpreter's lock back each time. Each log
has an outcome of its own, and all of them are reported when the last one is there; what comes meanwhile is served by
the other workers. A log that needs more than one fdatasync, or has much to sync, goes back to the queue before the
others are synced, and is synced by itself. Where the system syncs nothing side by side, each log is.

    at_once(log)           loop      syncs here and now where that is quick, or says that it is not

To hand a sync to a thread and its outcome back costs as much as a quick disk takes for it. So a small one is done on
the loop, while no other log waits for the disk and the disk is quick. The cost of that is bounded: after a quick one
the loop does none for as long as it took, so that many logs that are written to at once go to the threads; after one
that took `quick_below` or longer for SLOW_REST times as long, and twice that with each further one in a row: a disk
that stays slow holds up the loop for a thousandth of the time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from wire.types import Offset

    Done: TypeAlias = Callable[[Offset | Exception], None]

MAX_WAITING_PER_LOG = 65_536
"""Requests that wait for one log; one more is refused with BACKPRESSURE."""

SMALL_BYTES = 16 << 10
"""Most that is synced at once."""
SLOW_REST = 8
MOST_SLOW_REST = 1024

CROWD = 4
"""Logs that wait for a sync, or are being synced, at once."""
CROWDED_FOR = 0.05
"""Seconds: those of a crowd are likely to come again."""

_log = logging.getLogger(__name__)


class Syncable(Protocol):
    """The log that a scheduler syncs: a `PartitionLog`; or the periodic checkpoint of one."""

    def sync(self) -> Offset: ...


class QuickSyncable(Syncable, Protocol):
    """A `PartitionLog`: a small sync of it may stand on the loop, and it may be synced together with others."""

    def sync_small(self, most_bytes: int) -> Offset | None: ...

    def begin_sync(self) -> int | None:
        """The handle of the file that one fdatasync makes durable; `end_sync` must follow. None: `sync` it."""
        ...

    def end_sync(self, error: OSError | None) -> Offset:
        """The outcome of that fdatasync. Otherwise as `sync`."""
        ...


class SyncsTogether(Protocol):
    """The part of a `dataplane.log.storage.files.FileSystem` that syncs the files of many logs."""

    def sync_data_of_each(self, handles: Sequence[int]) -> list[OSError | None]: ...

    def most_synced_at_once(self) -> int: ...


class Syncer(Protocol):
    """The part of a `SyncScheduler` that a broker needs."""

    def request(self, log: Syncable, done: Done) -> bool: ...

    def at_once(self, log: QuickSyncable) -> Offset | None: ...

    @property
    def is_crowded(self) -> bool:
        """Many logs wait, or did a moment ago: a log with few records to write does well to gather more."""
        ...

    @property
    def waiting_since(self) -> float:
        """When the oldest sync that is running began; inf: none is. Syncs that wait for a thread do not count."""
        ...


class Post(Protocol):
    """Runs a function on the event loop, from any thread: `loop.call_soon_threadsafe`. RuntimeError: the loop is
    closed."""

    def __call__(self, function: Callable[[], None], /) -> object: ...


if TYPE_CHECKING:
    _Taken: TypeAlias = tuple[Syncable, list[Done]]
    """A log, and the callbacks that wait for it."""


class SyncScheduler:
    """Worker threads that sync logs. `request` and `close` belong to the loop thread."""

    def __init__(
        self,
        post: Post,
        *,
        threads: int = 2,
        name: str = "sync",
        quick_below: float = 0.0,
        together: SyncsTogether | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`quick_below`: in seconds, of a sync that may stand on the loop; 0: none may. `together`: all logs
        are `QuickSyncable`, and are synced together by it; None: each log is synced by itself."""
        self._post = post
        self._together = together
        self._quick_below = quick_below
        self._monotonic = monotonic
        self._at_once_from = -math.inf if quick_below else math.inf
        """When the loop may sync next."""
        self._rest = SLOW_REST
        """How long it is to leave that, in terms of what a slow one took."""
        self._wake = threading.Condition()
        self._waiting: dict[Syncable, list[Done]] = {}
        """The callbacks that wait for a sync that has not begun. A log is a key while it is queued or being synced."""
        self._queue: deque[Syncable] = deque()
        """Logs that are waited for and are not being synced. At most one entry per log."""
        self._alone: set[Syncable] = set()
        """Logs of the queue that cannot be synced with others."""
        self._running: dict[Syncable, float] = {}
        """When the sync of a log began that a thread is at."""
        self._crowded_until = -math.inf
        self._outcomes: list[tuple[list[Done], Offset | Exception]] = []
        """Outcomes that are not delivered to the loop; while there are any, a call that delivers them is posted."""
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tidelog-{name}-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: Syncable, done: Done) -> bool:
        """Syncs `log`, then calls `done` on the loop with its durable end, or with the exception. Returns False where
        `done` waits already for a sync that has not begun: that one call serves this request as well.

        Raises TidelogError(BACKPRESSURE) when too many wait for that log, TidelogError(UNAVAILABLE) once closed.
        """
        with self._wake:
            if self._closed:
                raise TidelogError(Code.UNAVAILABLE, "the sync scheduler is closed: the broker is stopping")
            waiting = self._waiting.get(log)
            if waiting is None:
                self._waiting[log] = [done]
                self._queue.append(log)
                if len(self._waiting) >= CROWD:
                    self._crowded_until = self._monotonic() + CROWDED_FOR
                self._wake.notify()
            elif done in waiting[-1:]:
                return False
            elif len(waiting) < MAX_WAITING_PER_LOG:
                waiting.append(done)
            else:
                raise TidelogError(
                    Code.BACKPRESSURE, f"{len(waiting)} requests wait for the disk to sync one log; try again later"
                )
            return True

    @property
    def is_crowded(self) -> bool:
        return self._monotonic() < self._crowded_until

    @property
    def waiting_since(self) -> float:
        with self._wake:
            return min(self._running.values(), default=math.inf)

    def at_once(self, log: QuickSyncable) -> Offset | None:
        """The durable end of `log`, synced now; None: nothing was done, `request` it. Raises as `log.sync` does."""
        began = self._monotonic()
        if began < self._at_once_from or self._waiting or began < self._crowded_until:
            return None
        end = log.sync_small(SMALL_BYTES)
        if end is not None:
            ended = self._monotonic()
            took = ended - began
            if took < self._quick_below:
                self._at_once_from, self._rest = ended + took, SLOW_REST
            else:
                self._at_once_from = ended + took * self._rest
                self._rest = min(2 * self._rest, MOST_SLOW_REST)
        return end

    def close(self) -> None:
        """Finishes all requests, then ends the threads. Blocks until then."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while taken := self._take():
            outcomes = self._sync_together(taken) if len(taken) > 1 else []
            if not outcomes:
                # All but the first go back: other threads serve them.
                self._put_back(taken[1:])
                outcomes = [(*taken[0], self._sync_alone(taken[0][0]))]
            self._finished([log for log, _, _ in outcomes])
            self._report([(served, outcome) for _, served, outcome in outcomes])

    def _take(self) -> list[_Taken]:
        """Logs to be synced, and the callbacks that wait for each; empty: the thread is to end."""
        most = 1 if self._together is None else self._together.most_synced_at_once()
        with self._wake:
            while not self._queue:
                if self._closed and not self._waiting:
                    return []
                self._wake.wait()
            taken: list[_Taken] = []
            now = self._monotonic()
            while self._queue and len(taken) < most:
                log = self._queue[0]
                if log in self._alone:
                    if taken:
                        break
                    self._alone.discard(log)
                    most = 1
                self._queue.popleft()
                taken.append((log, self._waiting[log]))
                self._waiting[log] = []
                self._running[log] = now
            return taken

    def _put_back(self, taken: list[_Taken]) -> None:
        """These have to be synced by themselves."""
        if not taken:
            return
        with self._wake:
            for log, served in reversed(taken):
                del self._running[log]
                self._waiting[log] = served + self._waiting[log]
                self._queue.appendleft(log)
                self._alone.add(log)
            self._wake.notify(len(taken))

    @staticmethod
    def _sync_alone(log: Syncable) -> Offset | Exception:
        try:
            return log.sync()
        except Exception as error:  # noqa: BLE001 - whatever it is, the waiting callbacks must get it
            return error

    # Keeps R12.
    def _sync_together(self, taken: list[_Taken]) -> list[tuple[Syncable, list[Done], Offset | Exception]]:
        """Returns the outcomes of those that can be synced together, and puts the others back first. Empty: none can,
        and none was put back."""
        assert self._together is not None
        outcomes: list[tuple[Syncable, list[Done], Offset | Exception]] = []
        begun: list[_Taken] = []
        handles: list[int] = []
        others: list[_Taken] = []
        for log, served in taken:
            try:
                handle = cast("QuickSyncable", log).begin_sync()
            except Exception as error:  # noqa: BLE001 - whatever it is, the waiting callbacks must get it
                outcomes.append((log, served, error))
                continue
            if handle is None:
                others.append((log, served))
            else:
                begun.append((log, served))
                handles.append(handle)
        if len(others) == len(taken):
            return []
        self._put_back(others)
        try:
            errors = self._together.sync_data_of_each(handles)
        except Exception as error:  # noqa: BLE001 - a bug: nothing is known of any of them
            errors = [OSError(f"a sync met a bug: {error!r}")] * len(handles)
        for (log, served), failed in zip(begun, errors, strict=True):
            try:
                outcomes.append((log, served, cast("QuickSyncable", log).end_sync(failed)))
            except Exception as error:  # noqa: BLE001 - whatever it is, the waiting callbacks must get it
                outcomes.append((log, served, error))
        return outcomes

    def _finished(self, logs: list[Syncable]) -> None:
        with self._wake:
            again = 0
            for log in logs:
                del self._running[log]
                if self._waiting[log]:
                    self._queue.append(log)
                    again += 1
                else:
                    del self._waiting[log]
            if self._closed:
                self._wake.notify_all()
            elif again:
                self._wake.notify()

    def _report(self, outcomes: list[tuple[list[Done], Offset | Exception]]) -> None:
        with self._wake:
            self._outcomes += outcomes
            if len(self._outcomes) > len(outcomes):
                return
        try:
            self._post(self._deliver)
        except RuntimeError:
            _log.warning("the event loop is closed: requests for syncs end unanswered")

    def _deliver(self) -> None:
        with self._wake:
            outcomes, self._outcomes = self._outcomes, []
        for served, outcome in outcomes:
            for done in served:
                try:
                    done(outcome)
                except Exception:  # noqa: BLE001 - it is logged, and the callbacks of other logs are called nevertheless
                    _log.exception("what waited for a sync met a bug")
