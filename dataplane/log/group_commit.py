"""Group commit: one fdatasync serves every batch that waits for it, and none of them stands on the event loop.

    request(log, done)     loop      done joins those that wait for `log`; the log is queued unless it is already
                           worker    takes ALL that wait for the log, log.sync(), posts one call with their outcome
    done(durable end)      loop      or done(the exception)

A sync serves the requests that were there when it began: what they wait for was appended before. Those that come while
it runs wait for the next one of that log, so a log is synced by one worker at a time, and a busy log has at most one
sync running and one queued, however many requests there are. Logs are served in the order in which they were queued.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Protocol, TypeAlias

from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from collections.abc import Callable

    from wire.types import Offset

    Done: TypeAlias = Callable[[Offset | Exception], None]

MAX_WAITING_PER_LOG = 65_536
"""Requests that wait for one log; one more is refused with BACKPRESSURE."""

logger = logging.getLogger(__name__)


class Syncable(Protocol):
    """What a scheduler syncs: a `PartitionLog`."""

    def sync(self) -> Offset: ...


class Syncer(Protocol):
    """What a broker needs of a `SyncScheduler`."""

    def request(self, log: Syncable, done: Done) -> None: ...


class Post(Protocol):
    """Runs a function on the event loop, from any thread: `loop.call_soon_threadsafe`. RuntimeError: the loop is
    closed."""

    def __call__(self, function: Callable[[], None], /) -> object: ...


class SyncScheduler:
    """Worker threads that sync logs. `request` and `close` belong to the loop thread."""

    def __init__(self, post: Post, *, threads: int = 2) -> None:
        self._post = post
        self._wake = threading.Condition()
        self._waiting: dict[Syncable, list[Done]] = {}
        """Who waits for a sync that has not begun. A log is a key while it is queued or being synced."""
        self._queue: deque[Syncable] = deque()
        """Logs that nobody is syncing and somebody waits for. At most one entry per log."""
        self._closed = False
        self._threads = [
            threading.Thread(target=self._work, name=f"tidelog-sync-{number}", daemon=True) for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def request(self, log: Syncable, done: Done) -> None:
        """Syncs `log`, then calls `done` on the loop with its durable end, or with the exception.

        Raises TidelogError(BACKPRESSURE) when too many wait for that log, TidelogError(UNAVAILABLE) once closed.
        """
        with self._wake:
            if self._closed:
                raise TidelogError(Code.UNAVAILABLE, "the sync scheduler is closed: the broker is stopping")
            waiting = self._waiting.get(log)
            if waiting is None:
                self._waiting[log] = [done]
                self._queue.append(log)
                self._wake.notify()
            elif len(waiting) < MAX_WAITING_PER_LOG:
                waiting.append(done)
            else:
                raise TidelogError(
                    Code.BACKPRESSURE, f"{len(waiting)} requests wait for the disk to sync one log; try again later"
                )

    def close(self) -> None:
        """Finishes what was requested, then ends the threads. Blocks until then."""
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            log, served = taken
            outcome: Offset | Exception
            try:
                outcome = log.sync()
            except Exception as error:  # noqa: BLE001 - whatever it is, those that wait must hear of it
                outcome = error
            self._finished(log)
            self._report(served, outcome)

    def _take(self) -> tuple[Syncable, list[Done]] | None:
        with self._wake:
            while not self._queue:
                if self._closed and not self._waiting:
                    return None
                self._wake.wait()
            log = self._queue.popleft()
            served = self._waiting[log]
            self._waiting[log] = []
            return log, served

    def _finished(self, log: Syncable) -> None:
        with self._wake:
            if self._waiting[log]:
                self._queue.append(log)
                self._wake.notify()
            else:
                del self._waiting[log]
                if self._closed:
                    self._wake.notify_all()

    def _report(self, served: list[Done], outcome: Offset | Exception) -> None:
        def tell() -> None:
            for done in served:
                done(outcome)

        try:
            self._post(tell)
        except RuntimeError:
            logger.warning("the event loop is closed: %d requests for a sync end unanswered", len(served))
