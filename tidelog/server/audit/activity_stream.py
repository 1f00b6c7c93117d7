"""Writes the events of the cluster into the internal stream `__activity`, where `[metadata] activity_stream` says so.

Every broker keeps the newest events (`metadata.cluster.cluster_events`); the controller writes them, in their order,
some milliseconds after they were applied. Nothing waits for them. At the begin of its controller epoch it asks the
leader of the stream for the last event, and goes on behind that.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from random import random

from metadata.cluster.cluster_events import MAX_AT_ONCE, ActivityLog, ActivityWatch
from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Changes
from wire.errors import Code, TidelogError
from wire.internal_records.activity_events import NOWHERE, Position, position_of
from wire.retry import Retry
from wire.turns import Steps

_log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
"""Seconds between two attempts, at most."""

_TOO_LARGE = frozenset({Code.MESSAGE_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.CORRUPT_BATCH})


class ActivityStream:
    """See the module. `append` writes events as a batch; `last` gives the last record of the stream, None where there
    is none. Both raise TidelogError or TimeoutError. `epoch()`: the controller epoch of this broker; 0: it is not the
    controller. `time_ns()`: since 1970. `is_live()`: this process is registered; changes applied before are older.
    """

    def __init__(
        self,
        append: Callable[[Sequence[bytes]], Awaitable[None]],
        last: Callable[[], Awaitable[bytes | None]],
        *,
        epoch: Callable[[], int],
        time_ns: Callable[[], int],
        is_live: Callable[[], bool],
    ) -> None:
        self.log = ActivityLog()
        self.dropped = 0
        """Events that the stream cannot take, such as too large ones."""
        self._watch = ActivityWatch()
        self._append = append
        self._last = last
        self._epoch = epoch
        self._time_ns = time_ns
        self._is_live = is_live
        self._known_epoch = 0
        """The controller epoch in which this broker knows the last written event."""
        self._at_once = MAX_AT_ONCE
        self._came = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False

    def observe(self, state: Cluster, changes: Changes, *, from_snapshot: bool) -> Steps[None]:
        """Observes the applied state, as a `StateObserver`."""
        try:
            if from_snapshot and not self._has_begun:
                yield from self._watch.begin_at(state)
            else:
                for event in self._watch.on_applied(state, changes, self._now(), merged=from_snapshot):
                    if event is not None:
                        self.log.add((event,))
                    yield 1
            self._has_begun = True
        except Exception:  # noqa: BLE001 - it is logged: applying goes on without its events
            _log.exception("the events of a change met a bug")
        self.look()

    def _now(self) -> str | None:
        if not self._is_live():
            return None
        return datetime.fromtimestamp(self._time_ns() / 1e9, UTC).isoformat(timespec="milliseconds")

    def look(self) -> None:
        """Wakes the writer: there are new events, or this broker is the controller now."""
        if not self._epoch() or not self.log:
            return
        self._came.set()
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._write_for_ever())

    async def _write_for_ever(self) -> None:
        retry = Retry(FIRST_PAUSE_S, LONGEST_PAUSE_S, chance=random)
        while True:
            await self._came.wait()
            self._came.clear()
            while self.log and self._epoch():
                try:
                    await self._write_some()
                    retry.succeeded()
                except Exception as error:  # noqa: BLE001 - without this task writing would silently end
                    self._tell(error)
                    await asyncio.sleep(retry.failed())

    def _tell(self, error: Exception) -> None:
        if isinstance(error, (TidelogError, TimeoutError)):
            _log.info("%d events wait to be written into the activity stream: %s", len(self.log), error)
        else:
            _log.error("%d events wait because of a bug", len(self.log), exc_info=error)

    async def _write_some(self) -> None:
        epoch = self._epoch()
        if epoch != self._known_epoch:
            self.log.goes_on(_position_in(await self._last()))
            self._known_epoch = epoch
        values, position = self.log.take(self._at_once)
        if not values:
            return
        try:
            await self._append(values)
        except TidelogError as error:
            if error.code not in _TOO_LARGE:
                raise
            if len(values) > 1:
                self._at_once = len(values) // 2
                return
            _log.error("an event of %d bytes is not in the activity stream: %s", len(values[0]), error)
            self.dropped += 1
        else:
            self._at_once = min(MAX_AT_ONCE, 2 * self._at_once)
        self.log.finished(position)

    async def close(self) -> None:
        """Stops writing. The next controller writes the events that are left."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


def _position_in(value: bytes | None) -> Position:
    """Returns the position of an event; a record that is no event has position zero, so that events are repeated."""
    try:
        event = json.loads(value or b"{}")
    except ValueError:
        return NOWHERE
    return position_of(event) if isinstance(event, dict) else NOWHERE
