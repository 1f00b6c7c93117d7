"""Watches the free room on the broker's disk, and carries out the decisions of `dataplane.replica.disk_guards`.

Looked at every `space_check_interval`, and when there seems to be less room than there was. In between the records that
are written are counted. All methods belong to the loop thread; calls that touch the disk run in `executor`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, assert_never

from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.log.partition_log import PartitionLog
from dataplane.log.storage.files import FileSystem
from dataplane.log.storage.log_errors import NoSpace
from dataplane.replica.disk_guards import (
    EvictOldest,
    KeepReserve,
    ReleaseReserve,
    RoomChanged,
    SpaceEffect,
    SpaceGuard,
)
from wire.batch import BatchHeader
from wire.notation import bytes_in_words
from wire.operations.api_operations import SpaceStatus
from wire.types import Buffer, Room

_log = logging.getLogger(__name__)

RESERVE_FILE = "reserve"
"""In the data folder."""


class Reserve:
    """A file that takes up room, so that there is some to give back when the disk is full.

    Others fill the same disk. What must be written even then (checkpoints, leader epochs, the Raft journal) is small,
    and finds its room where this file was. Blocking.
    """

    def __init__(self, files: FileSystem, directory: Path) -> None:
        self._files = files
        self._path = directory / RESERVE_FILE

    def keep(self, size: int) -> None:
        """Takes `size` bytes, unless that many are taken. A disk that cannot give them leaves the broker without."""
        try:
            handle = self._files.open(self._path, write=True, create=True)
            try:
                taken = self._files.size(handle)
                if taken < size:
                    self._files.preallocate(handle, taken, size - taken)
                elif taken > size:
                    self._files.truncate(handle, size)
            finally:
                self._files.close(handle)
        except OSError as error:
            _log.info("no reserve is kept in %s: %s", self._path, error)
            self.release()

    def release(self) -> None:
        with suppress(OSError):
            self._files.remove(self._path)


_T = TypeVar("_T")

NO_SPACE_RETRY = 0.5
"""Seconds after which a necessary write that found no room is tried again."""


class SpaceWatch:
    """`on_room(room)`: called in a turn of its own when the room has changed. `evict(wanted)`: remove about so many
    bytes of the oldest segments of streams that evict; returns how many went."""

    def __init__(
        self,
        files: FileSystem,
        directory: Path,
        settings: StorageSettings,
        *,
        executor: Executor,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.on_room: Callable[[Room], None] = lambda _: None
        self.evict: Callable[[int], Awaitable[int]] = self._evict_nothing
        self._files = files
        self._directory = directory
        self._interval = settings.space_check_interval
        self._reserve = Reserve(files, directory)
        self._guard = SpaceGuard(settings.min_free_bytes)
        self._executor = executor
        self._loop = loop
        self._reported = Room.AMPLE
        self._reporting = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._evicting = False
        self._closed = False

    # ------------------------------------------------------------------ beginning and end
    def start(self) -> None:
        self._spawn(self._look_for_ever())

    async def close(self) -> None:
        self._closed = True
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    # ------------------------------------------------------------------ questions
    @property
    def room(self) -> Room:
        return self._guard.room

    @property
    def is_full(self) -> bool:
        return self._guard.room is Room.FULL

    def append(self, partition_log: PartitionLog, parts: Sequence[Buffer], headers: Sequence[BatchHeader]) -> None:
        """`PartitionLog.append`, where there is room for it. Raises NoSpace, and as that does."""
        admitted, effects = self._guard.admit(sum(map(len, parts)), self._loop.time())
        if effects:
            self._carry_out(effects)
        if not admitted:
            guard = self._guard
            raise NoSpace(
                f"{self._directory} has {bytes_in_words(guard.free)} free, and keeps {bytes_in_words(guard.min_free)}"
            )
        try:
            partition_log.append(parts, headers)
        except NoSpace as error:
            self.refused(error)
            raise

    def refused(self, error: NoSpace) -> None:
        """Something was not written for want of room."""
        if not self.is_full:
            _log.warning("the disk refuses to write: %s", error)
        self._carry_out(self._guard.on_refused(self._loop.time()))

    async def when_there_is_room(self, work: Callable[[], Awaitable[_T]]) -> _T:
        """Wait for room at the start of a broker: no other broker relies on it yet."""
        while True:
            try:
                return await work()
            except NoSpace as error:
                _log.warning("%s; waiting until there is room", error)
                self.refused(error)
                await asyncio.sleep(NO_SPACE_RETRY)

    def look_soon(self) -> None:
        """A write that can wait found no room."""
        self._spawn(self.look())

    def status(self) -> SpaceStatus:
        guard = self._guard
        return {
            "room": guard.room.value,
            "free_bytes": guard.free,
            "total_bytes": guard.total,
            "min_free_bytes": guard.min_free,
        }

    async def look(self) -> None:
        try:
            found = await self._loop.run_in_executor(self._executor, self._files.space, self._directory)
        except OSError as error:
            _log.warning("cannot tell how much room %s has: %s", self._directory, error)
            return
        self._carry_out(self._guard.on_look(found.total, found.free, self._loop.time()))

    # ------------------------------------------------------------------ inside
    async def _look_for_ever(self) -> None:
        while True:
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - it is logged
                _log.exception("watching the disk met a bug; it goes on")
            await asyncio.sleep(self._interval)

    def _carry_out(self, effects: list[SpaceEffect]) -> None:
        for effect in effects:
            match effect:
                case RoomChanged(room):
                    if room is not Room.AMPLE:
                        self._spawn(self.look())  # found by counting; the look decides on eviction
                    if not self._reporting:
                        self._reporting = True
                        self._loop.call_soon(self._report)
                case EvictOldest(wanted):
                    if not self._evicting:
                        self._evicting = True
                        self._spawn(self._evict(wanted))
                case ReleaseReserve():
                    self._spawn(self._in_executor(self._reserve.release))
                case KeepReserve(size):
                    self._spawn(self._in_executor(partial(self._reserve.keep, size)))
                case _:
                    assert_never(effect)

    def _report(self) -> None:
        """Look in a later turn of the loop, not inside the call that found the disk full."""
        self._reporting = False
        room = self.room
        if room is self._reported:
            return
        guard = self._guard
        _log.log(
            logging.INFO if room is Room.AMPLE else logging.WARNING,
            "room on the disk of %s: %s, was %s (%s free of %s, and keeps %s)",
            self._directory, room.value, self._reported.value,
            bytes_in_words(guard.free), bytes_in_words(guard.total), bytes_in_words(guard.min_free),
        )  # fmt: skip
        self._reported = room
        self.on_room(room)

    async def _evict(self, wanted: int) -> None:
        try:
            freed = await self.evict(wanted)
            if freed:
                await self.look()
        except NoSpace as error:
            self.refused(error)
        except Exception:  # noqa: BLE001 - it is logged
            _log.exception("evicting met a bug; it is tried again")
        finally:
            self._evicting = False

    @staticmethod
    async def _evict_nothing(_wanted: int) -> int:
        return 0

    async def _in_executor(self, work: Callable[[], None]) -> None:
        await self._loop.run_in_executor(self._executor, work)

    def _spawn(self, work: Any) -> None:
        if self._closed:
            work.close()
            return
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
