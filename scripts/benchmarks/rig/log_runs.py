"""The runs of `scripts/bench log`: operations on a log, and their durations."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.broker.upkeep.hw_checkpoints import INTERVAL as CHECKPOINT_INTERVAL
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.group_commit import SyncScheduler
from wire.batch import BatchBuilder, EncodedBatch, iter_batches
from wire.types import LeaderEpoch, Offset

UNSYNCED_BYTES = 64 << 20
"""Appended and not yet durable, at most: a leader's bound is of that kind (`max_uncommitted_bytes`)."""
HOUSEKEEPING_INTERVAL = StorageSettings().housekeeping_interval
"""Seconds."""
WARM_UP_BYTES = 256 << 20
"""Read before the memory is watched."""
_RECORD_BYTES = 1024
_WATCH_EVERY = 64
"""Reads from one look at the memory to the next."""


def batch_of(size: int) -> EncodedBatch:
    """About so many bytes, never more."""
    builder = BatchBuilder()
    value = os.urandom(_RECORD_BYTES)
    while builder.size_bytes + _RECORD_BYTES + 256 < size:
        builder.add_record(value)
    return builder.build(time.time_ns())


def open_log(folder: Path) -> PartitionLog:
    return PartitionLog.open(folder, LogConfig())[0]


def append_one_by_one(folder: Path, block: int, total: int) -> float:
    """Seconds."""
    log, batch = open_log(folder), batch_of(block)
    began = time.perf_counter()
    for _ in range(total // block):
        parts, header = batch.stamp(log.log_end_offset, LeaderEpoch(1))
        log.append(parts, [header])
        log.sync()
    seconds = time.perf_counter() - began
    log.close()
    return seconds


def append_grouped(folder: Path, block: int, total: int, *, housekeeping: bool = False) -> float:
    """Seconds until all of it is durable."""
    log, batch = open_log(folder), batch_of(block)
    if housekeeping:
        threading.Thread(target=_keep_house, args=(log,), daemon=True).start()
    calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    syncer = SyncScheduler(calls.put, threads=1)
    durable_end = log.log_end_offset

    def durable(outcome: Offset | Exception) -> None:
        nonlocal durable_end
        if isinstance(outcome, Exception):
            raise outcome
        durable_end = max(durable_end, outcome)

    began = time.perf_counter()
    batches: deque[Offset] = deque()
    """Ends of the batches that are not durable yet."""
    for _ in range(total // block):
        parts, header = batch.stamp(log.log_end_offset, LeaderEpoch(1))
        log.append(parts, [header])
        batches.append(log.log_end_offset)
        syncer.request(log, durable)
        while len(batches) * block > UNSYNCED_BYTES or not calls.empty():
            calls.get()()
            while batches and batches[0] <= durable_end:
                batches.popleft()
    while durable_end < log.log_end_offset:
        calls.get()()
    seconds = time.perf_counter() - began
    syncer.close()
    log.close()
    return seconds


class Killed(NamedTuple):
    bytes: int
    """Of the partition that the killed process has left."""

    @classmethod
    def while_appending(cls, folder: Path, block: int, total: int) -> Killed:
        """Appends `total` bytes in a process of its own, and kills it while it goes on appending."""
        process = multiprocessing.get_context("spawn").Process(target=_append_for_ever, args=(folder, block))
        process.start()
        assert process.pid is not None
        while process.is_alive() and _bytes_of(folder) < total:
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL, f"it ended by itself: {process.exitcode}"
        return cls(_bytes_of(folder))


def _append_for_ever(folder: Path, block: int) -> None:
    append_grouped(folder, block, 1 << 50, housekeeping=True)


def _keep_house(log: PartitionLog) -> None:
    """Does the periodic work of a broker for its logs, in threads of its own."""
    snapshots_at = time.monotonic() + HOUSEKEEPING_INTERVAL
    while True:
        time.sleep(CHECKPOINT_INTERVAL)
        log.checkpoint_high_watermark(log.durable_end)
        if time.monotonic() >= snapshots_at and log.snapshot_is_due:
            log.write_snapshots()
            snapshots_at += HOUSEKEEPING_INTERVAL


def _bytes_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def forget_cached(folder: Path) -> None:
    """The share of these files that is in the page cache."""
    os.sync()
    for path in folder.iterdir():
        handle = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)


class Opened(NamedTuple):
    seconds: float
    scanned: int
    truncated: int
    segments: int


def open_again(folder: Path) -> Opened:
    began = time.perf_counter()
    log, report = PartitionLog.open(folder, LogConfig())
    seconds = time.perf_counter() - began
    assert report.damaged is None, report.damaged
    log.close()
    return Opened(seconds, report.scanned_bytes, report.truncated_bytes, len(list(folder.glob("*.log"))))


class Reading(NamedTuple):
    bytes: int
    seconds: float
    memory_least: int
    memory_most: int

    @property
    def memory_spread(self) -> int:
        return self.memory_most - self.memory_least


def read_all(folder: Path, block: int, total: int | None = None) -> Reading:
    """From the beginning, as a consumer that goes on where the last answer ended; all of it, or `total` bytes."""
    log = open_log(folder)
    end = log.log_end_offset
    offset, done, reads = log.log_start_offset, 0, 0
    least, most = 1 << 62, 0
    began = time.perf_counter()
    while offset < end and (total is None or done < total):
        data = log.read_from_disk(offset, max_bytes=block, end_offset=end)
        for _, header in iter_batches(data):
            offset = header.end_offset
        done += len(data)
        reads += 1
        if done >= WARM_UP_BYTES and reads % _WATCH_EVERY == 0:
            resident = _resident_bytes()
            least, most = min(least, resident), max(most, resident)
    seconds = time.perf_counter() - began
    log.close()
    return Reading(done, seconds, min(least, most), most)


def _resident_bytes() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")
