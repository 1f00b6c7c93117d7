"""One sync serves all that wait; each waits for a sync that began after its request."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import pytest

from dataplane.log import log_sync
from dataplane.log.log_sync import LogSync
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage import group_commit
from dataplane.log.storage.group_commit import SyncScheduler
from dataplane.log.storage.log_errors import LogDamaged
from wire.errors import Code, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.unit.dataplane.log.conftest import Batches

WAIT = 10


class Loop:
    """Runs the posted callbacks, in order, when asked to."""

    def __init__(self) -> None:
        self.posted: deque[Callable[[], None]] = deque()
        self.arrived = threading.Semaphore(0)
        self.posts = 0
        self.closed = False

    def post(self, function: Callable[[], None], /) -> None:
        if self.closed:
            raise RuntimeError("Event loop is closed")
        self.posted.append(function)
        self.posts += 1
        self.arrived.release()

    def run_one(self) -> None:
        assert self.arrived.acquire(timeout=WAIT)
        self.posted.popleft()()


class SlowLog:
    """A log whose syncs begin and end when the test says so."""

    def __init__(self) -> None:
        self.end = 0
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.syncs = 0
        self.running = 0
        self.error: Exception | None = None

    def sync_small(self, most_bytes: int) -> Offset | None:
        raise AssertionError("nobody asked for it")

    def begin_sync(self) -> int | None:
        raise AssertionError("nobody asked for it")

    def end_sync(self, error: OSError | None) -> Offset:
        raise AssertionError("nobody asked for it")

    def sync(self) -> Offset:
        self.running += 1
        assert self.running == 1, "two syncs of one log at a time"
        end = self.end
        self.begun.release()
        assert self.may_end.acquire(timeout=WAIT)
        self.syncs += 1
        self.running -= 1
        if self.error is not None:
            raise self.error
        return Offset(end)


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def scheduler(loop: Loop) -> Iterator[SyncScheduler]:
    scheduler = SyncScheduler(loop.post, threads=2)
    yield scheduler
    scheduler.close()


def test_requests_that_come_during_a_sync_share_the_next_one(scheduler: SyncScheduler, loop: Loop) -> None:
    log = SlowLog()
    done: list[tuple[int, Offset | Exception]] = []
    log.end = 10
    scheduler.request(log, lambda end: done.append((0, end)))
    assert log.begun.acquire(timeout=WAIT)
    for number in range(1, 100):
        log.end += 1
        scheduler.request(log, lambda end, number=number: done.append((number, end)))  # type: ignore[misc]
    log.may_end.release()
    loop.run_one()
    assert done == [(0, 10)]
    log.may_end.release()
    loop.run_one()
    assert done[1:] == [(number, 109) for number in range(1, 100)]
    assert (log.syncs, loop.posts) == (2, 2)


def test_whoever_waits_already_is_called_once_for_all_of_its_requests(scheduler: SyncScheduler, loop: Loop) -> None:
    log = SlowLog()
    told: list[Offset | Exception] = []
    assert scheduler.request(log, told.append)
    assert log.begun.acquire(timeout=WAIT)
    log.end = 1
    assert [scheduler.request(log, told.append) for _ in range(3)] == [True, False, False], "the first one has begun"
    for synced in ([0], [0, 1]):
        log.may_end.release()
        loop.run_one()
        assert told == synced
    assert log.syncs == 2


def test_logs_do_not_wait_for_each_other(scheduler: SyncScheduler, loop: Loop) -> None:
    slow, quick = SlowLog(), SlowLog()
    done: list[str] = []
    scheduler.request(slow, lambda _: done.append("slow"))
    assert slow.begun.acquire(timeout=WAIT)
    scheduler.request(quick, lambda _: done.append("quick"))
    quick.may_end.release()
    loop.run_one()
    assert done == ["quick"]
    slow.may_end.release()
    loop.run_one()
    assert done == ["quick", "slow"]


def test_a_failure_reaches_all_that_wait_and_the_workers_go_on(scheduler: SyncScheduler, loop: Loop) -> None:
    log, other = SlowLog(), SlowLog()
    log.error = LogDamaged("the disk")
    done: list[Offset | Exception] = []
    for _ in range(4):
        scheduler.request(log, done.append)
        log.may_end.release()
        loop.run_one()
    assert done == [log.error] * 4
    other.may_end.release()
    scheduler.request(other, done.append)
    loop.run_one()
    assert done[-1] == 0


def test_one_call_tells_all_outcomes_that_are_there(scheduler: SyncScheduler, loop: Loop) -> None:
    logs = [SlowLog() for _ in range(10)]
    done: list[int] = []

    def told(number: int) -> None:
        done.append(number)
        if number == 3:
            raise ZeroDivisionError  # the others hear all the same

    for number, log in enumerate(logs):
        log.may_end.release()
        scheduler.request(log, lambda _, number=number: told(number))  # type: ignore[misc]
    scheduler.close()
    assert loop.posts == 1
    loop.run_one()
    assert sorted(done) == list(range(10))
    assert not loop.posted


def test_too_many_requests_are_refused(scheduler: SyncScheduler, loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_commit, "MAX_WAITING_PER_LOG", 3)
    log = SlowLog()
    done: list[Offset | Exception] = []
    scheduler.request(log, done.append)
    assert log.begun.acquire(timeout=WAIT)
    for _ in range(3):
        scheduler.request(log, partial(done.append))
    with pytest.raises(TidelogError) as caught:
        scheduler.request(log, partial(done.append))
    assert caught.value.code is Code.BACKPRESSURE
    log.may_end.release()
    loop.run_one()
    log.may_end.release()
    loop.run_one()
    assert len(done) == 4


def test_close_finishes_the_requested_syncs(loop: Loop) -> None:
    scheduler = SyncScheduler(loop.post, threads=1)
    logs = [SlowLog() for _ in range(5)]
    done: list[Offset | Exception] = []
    for log in logs:
        log.may_end.release(2)
        scheduler.request(log, done.append)
        scheduler.request(log, partial(done.append))
    scheduler.close()
    while loop.posted:
        loop.run_one()
    assert done == [0] * 10
    with pytest.raises(TidelogError, match="stopping"):
        scheduler.request(logs[0], done.append)


def test_a_closed_event_loop_does_not_stop_the_workers(loop: Loop) -> None:
    scheduler = SyncScheduler(loop.post, threads=1)
    loop.closed = True
    log = SlowLog()
    log.may_end.release(2)
    scheduler.request(log, lambda _: None)
    scheduler.request(log, lambda _: None)
    scheduler.close()
    assert log.syncs >= 1


async def test_a_real_log_on_a_real_loop(tmp_path: Path, batches: Batches) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig(segment_bytes=2000))
    loop = asyncio.get_running_loop()
    scheduler = SyncScheduler(loop.call_soon_threadsafe)
    waiting: list[asyncio.Future[None]] = []
    for _ in range(300):
        batches.append(log)
        future: asyncio.Future[None] = loop.create_future()

        def done(
            end: Offset | Exception, appended: int = log.log_end_offset, future: asyncio.Future[None] = future
        ) -> None:
            assert not isinstance(end, Exception)
            assert end >= appended
            future.set_result(None)

        scheduler.request(log, done)
        waiting.append(future)
        await asyncio.sleep(0)
    await asyncio.gather(*waiting)
    assert log.durable_end == 300
    scheduler.close()


class Together:
    """The files of many logs, synced when the test says so."""

    def __init__(self) -> None:
        self.most = 16
        self.asked: list[list[int]] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.errors: dict[int, OSError] = {}
        self.bug: Exception | None = None

    def most_synced_at_once(self) -> int:
        return self.most

    def sync_data_of_each(self, handles: Sequence[int]) -> list[OSError | None]:
        self.asked.append(list(handles))
        self.begun.release()
        assert self.may_end.acquire(timeout=WAIT)
        if self.bug is not None:
            raise self.bug
        return [self.errors.get(handle) for handle in handles]


class OneOfMany:
    """A log that is synced together with others. `handle`: None where that is not enough."""

    def __init__(self, handle: int | None) -> None:
        self.handle = handle
        self.end = 1
        self.begun: list[int] = []
        self.alone = 0
        self.is_synced = threading.Event()
        self.bug: Exception | None = None

    def sync_small(self, most_bytes: int) -> Offset | None:
        raise AssertionError("nobody asked for it")

    def begin_sync(self) -> int | None:
        if self.bug is not None:
            raise self.bug
        if self.handle is not None:
            self.begun.append(self.end)
        return self.handle

    def end_sync(self, error: OSError | None) -> Offset:
        end = self.begun.pop()
        if error is not None:
            raise LogDamaged(str(error))
        return Offset(end)

    def sync(self) -> Offset:
        self.alone += 1
        self.is_synced.set()
        return Offset(self.end)


@pytest.fixture
def together() -> Together:
    return Together()


@pytest.fixture
def joining(loop: Loop, together: Together) -> Iterator[tuple[SyncScheduler, SlowLog]]:
    """One thread, which is at the sync of that log until the test lets it end."""
    scheduler = SyncScheduler(loop.post, threads=1, together=together)
    first = SlowLog()
    scheduler.request(first, lambda _: None)
    assert first.begun.acquire(timeout=WAIT)
    yield scheduler, first
    for _ in range(10):
        together.may_end.release()
    first.may_end.release()
    scheduler.close()


def test_logs_that_wait_are_synced_together_and_each_for_what_it_held_then(
    joining: tuple[SyncScheduler, SlowLog], together: Together, loop: Loop
) -> None:
    scheduler, first = joining
    logs = [OneOfMany(3), OneOfMany(None), OneOfMany(4)]
    done: list[tuple[int, Offset | Exception]] = []
    for number, log in enumerate(logs):
        scheduler.request(log, lambda end, number=number: done.append((number, end)))  # type: ignore[misc]
    first.may_end.release()
    assert together.begun.acquire(timeout=WAIT)
    logs[0].end = 7
    scheduler.request(logs[0], lambda end: done.append((0, end)))
    together.may_end.release()
    scheduler.close()
    while loop.posted:
        loop.run_one()
    assert together.asked == [[3, 4]]
    assert sorted(done) == [(0, 1), (0, 7), (1, 1), (2, 1)]
    assert [log.alone for log in logs] == [1, 1, 0], "the last request, and the log that needs more than one fdatasync"


def test_a_failure_is_that_of_its_log_alone(
    joining: tuple[SyncScheduler, SlowLog], together: Together, loop: Loop
) -> None:
    scheduler, first = joining
    together.errors[4] = OSError(5, "Input/output error")
    done: dict[int, Offset | Exception] = {}
    for handle in (3, 4, 5):
        scheduler.request(OneOfMany(handle), partial(done.__setitem__, handle))
    first.may_end.release()
    together.may_end.release()
    scheduler.close()
    while loop.posted:
        loop.run_one()
    assert (done[3], done[5]) == (1, 1)
    assert isinstance(done[4], LogDamaged)


def test_where_nothing_is_known_of_a_sync_together_all_of_them_have_failed(
    joining: tuple[SyncScheduler, SlowLog], together: Together, loop: Loop
) -> None:
    scheduler, first = joining
    together.bug = ZeroDivisionError("a bug")
    done: list[Offset | Exception] = []
    logs = [OneOfMany(3), OneOfMany(4)]
    for log in logs:
        scheduler.request(log, partial(done.append))
    first.may_end.release()
    together.may_end.release()
    scheduler.close()
    while loop.posted:
        loop.run_one()
    assert [type(each) for each in done] == [LogDamaged, LogDamaged]
    assert [log.begun for log in logs] == [[], []], "none of them stays begun"


def test_a_bug_at_the_beginning_of_a_sync_is_that_of_its_log_alone(
    joining: tuple[SyncScheduler, SlowLog], together: Together, loop: Loop
) -> None:
    scheduler, first = joining
    done: dict[int, Offset | Exception] = {}
    logs = [OneOfMany(handle) for handle in (3, 4, 5)]
    logs[1].bug = IndexError("tuple index out of range")
    for number, log in enumerate(logs):
        scheduler.request(log, partial(done.__setitem__, number))
    first.may_end.release()
    together.may_end.release()
    scheduler.close()
    while loop.posted:
        loop.run_one()
    assert together.asked == [[3, 5]]
    assert done == {0: 1, 1: logs[1].bug, 2: 1}


def test_a_log_that_is_synced_by_itself_does_not_wait_for_those_that_are_synced_together(
    loop: Loop, together: Together
) -> None:
    scheduler = SyncScheduler(loop.post, threads=2, together=together)
    busy = [SlowLog(), SlowLog()]
    for log in busy:
        scheduler.request(log, lambda _: None)
        assert log.begun.acquire(timeout=WAIT)
    small, large = [OneOfMany(3), OneOfMany(4)], OneOfMany(None)
    for each in (small[0], large, small[1]):
        scheduler.request(each, lambda _: None)
    busy[0].may_end.release()
    assert together.begun.acquire(timeout=WAIT)
    assert together.asked == [[3, 4]]
    busy[1].may_end.release()
    assert large.is_synced.wait(WAIT), "while the others are being synced"
    together.may_end.release()
    scheduler.close()


def test_where_nothing_is_synced_side_by_side_each_thread_takes_one_log(loop: Loop, together: Together) -> None:
    together.most = 1
    scheduler = SyncScheduler(loop.post, threads=2, together=together)
    logs = [SlowLog() for _ in range(4)]
    for log in logs:
        scheduler.request(log, lambda _: None)
    for log in logs[:2]:
        assert log.begun.acquire(timeout=WAIT)
    for log in logs:
        log.may_end.release()
    scheduler.close()
    assert together.asked == []
    assert [log.syncs for log in logs] == [1, 1, 1, 1]


class Disk:
    """A log on a disk that takes as long as the test says; its own clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.takes = 0.0002
        self.small = True

    def sync(self) -> Offset:
        raise AssertionError("a thread was asked")

    def begin_sync(self) -> int | None:
        raise AssertionError("a thread was asked")

    def end_sync(self, error: OSError | None) -> Offset:
        raise AssertionError("a thread was asked")

    def sync_small(self, most_bytes: int) -> Offset | None:
        assert most_bytes == group_commit.SMALL_BYTES
        if not self.small:
            return None
        self.now += self.takes
        return Offset(5)


@pytest.fixture
def quick(loop: Loop) -> Iterator[tuple[SyncScheduler, Disk]]:
    disk = Disk()
    scheduler = SyncScheduler(loop.post, threads=1, quick_below=0.001, monotonic=lambda: disk.now)
    yield scheduler, disk
    scheduler.close()


def test_a_quick_sync_stands_on_the_loop_half_of_the_time_at_most(quick: tuple[SyncScheduler, Disk]) -> None:
    scheduler, disk = quick
    assert scheduler.at_once(disk) == 5
    assert scheduler.at_once(disk) is None
    disk.now += disk.takes
    assert scheduler.at_once(disk) == 5


def test_a_large_sync_is_left_to_the_threads(quick: tuple[SyncScheduler, Disk]) -> None:
    scheduler, disk = quick
    disk.small = False
    assert scheduler.at_once(disk) is None
    disk.small = True
    assert scheduler.at_once(disk) == 5


def test_a_slow_disk_is_tried_ever_more_rarely_and_a_quick_sync_ends_that(quick: tuple[SyncScheduler, Disk]) -> None:
    scheduler, disk = quick
    disk.takes = 0.05
    waits = []
    for _ in range(10):
        assert scheduler.at_once(disk) == 5
        began = disk.now
        while scheduler.at_once(disk) is None:
            disk.now += 0.01
        waits.append((disk.now - disk.takes - began) / disk.takes)
        disk.now += 10_000
    assert waits[0] == pytest.approx(8, rel=0.1)
    assert waits[1:4] == pytest.approx([32, 128, 512], rel=0.1)
    assert waits[5:] == pytest.approx([1024] * 5, rel=0.1)
    disk.takes = 0.0002
    assert scheduler.at_once(disk) == 5
    disk.now += disk.takes
    assert scheduler.at_once(disk) == 5


def test_nothing_is_synced_at_once_while_somebody_waits_for_a_thread(loop: Loop) -> None:
    scheduler = SyncScheduler(loop.post, threads=1, quick_below=0.001)
    log, disk = SlowLog(), Disk()
    scheduler.request(log, lambda _: None)
    assert log.begun.acquire(timeout=WAIT)
    assert scheduler.at_once(disk) is None
    log.may_end.release()
    scheduler.close()


def test_it_is_crowded_from_the_moment_when_many_logs_wait_until_a_while_later(loop: Loop) -> None:
    now = 10.0
    scheduler = SyncScheduler(loop.post, threads=2, monotonic=lambda: now)
    logs = [SlowLog() for _ in range(group_commit.CROWD)]
    crowded: list[bool] = []
    for log in logs:
        crowded.append(scheduler.is_crowded)
        scheduler.request(log, lambda _: None)
    for log in logs:
        log.may_end.release()
    scheduler.close()
    crowded.append(scheduler.is_crowded)
    now += group_commit.CROWDED_FOR
    assert [*crowded, scheduler.is_crowded] == [False] * group_commit.CROWD + [True, False]


def test_nothing_is_synced_at_once_in_a_crowd(loop: Loop) -> None:
    now = 10.0
    scheduler = SyncScheduler(loop.post, threads=1, quick_below=0.001, monotonic=lambda: now)
    logs, disk = [SlowLog() for _ in range(group_commit.CROWD)], Disk()
    for log in logs:
        log.may_end.release()
        scheduler.request(log, lambda _: None)
    scheduler.close()
    assert scheduler.at_once(disk) is None
    now += group_commit.CROWDED_FOR
    assert scheduler.at_once(disk) == 5


def test_it_tells_since_when_the_oldest_sync_has_been_running(loop: Loop) -> None:
    now = 10.0
    scheduler = SyncScheduler(loop.post, threads=2, monotonic=lambda: now)
    logs = [SlowLog() for _ in range(3)]
    told = [scheduler.waiting_since]
    for log in logs[:2]:
        scheduler.request(log, lambda _: None)
        assert log.begun.acquire(timeout=WAIT)
        told.append(scheduler.waiting_since)
        now += 5
    scheduler.request(logs[2], lambda _: None)  # both threads are at work: that it waits is not the disk's doing
    for log in logs[:2]:
        log.may_end.release()
        loop.run_one()
        told.append(scheduler.waiting_since)
    logs[2].may_end.release()
    scheduler.close()
    assert [*told[:4], scheduler.waiting_since] == [math.inf, 10.0, 10.0, 15.0, math.inf]


def test_nothing_is_synced_at_once_when_that_is_off(scheduler: SyncScheduler) -> None:
    assert scheduler.at_once(Disk()) is None


def test_a_small_sync_leaves_the_rest_to_a_thread(tmp_path: Path, batches: Batches) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig())
    batches.append(log)
    assert log.sync_small(1 << 20) == 1
    size = batches.append(log, 3).header.size
    assert log.sync_small(size - 1) is None
    assert log.durable_end == 1
    assert log.sync_small(size) == 4
    assert log.durable_end == 4
    log.close()


def test_a_small_sync_does_not_wait_for_a_sync_in_a_thread(
    tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at a time, the error of the one's fdatasync would be the other's success."""
    log, _ = PartitionLog.open(tmp_path, LogConfig())
    batches.append(log)
    log.sync()
    begun, may_end = threading.Event(), threading.Event()
    sync_data = log.files.sync_data

    def slow(handle: int) -> None:
        begun.set()
        assert may_end.wait(WAIT)
        sync_data(handle)

    batches.append(log)
    with monkeypatch.context() as patch:
        patch.setattr(log.files, "sync_data", slow)
        thread = threading.Thread(target=log.sync)
        thread.start()
        assert begun.wait(WAIT)
        patch.setattr(log.files, "sync_data", sync_data)
        batches.append(log)
        assert log.sync_small(1 << 20) is None
        assert log.durable_end == 1
        may_end.set()
        thread.join()
    assert log.durable_end == 2
    assert log.sync_small(1 << 20) == 3
    log.close()


@pytest.mark.parametrize("at_once", [True, False])
def test_no_sync_follows_one_that_failed(
    tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    """The kernel tells of an error once; after that the lost pages count as clean."""
    log, _ = PartitionLog.open(tmp_path, LogConfig())
    batches.append(log)
    log.sync()
    batches.append(log)

    def broken(handle: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(log.files, "sync_data", broken)
        with pytest.raises(LogDamaged):
            log.sync_small(1 << 20) if at_once else log.sync()
    for _ in range(2):  # the first leaves the disk to others
        with pytest.raises(LogDamaged):
            log.sync_small(1 << 20)
        with pytest.raises(LogDamaged):
            log.sync()
    assert (log.durable_end, log.refusal is not None) == (1, True)
    log.close()


def test_a_log_is_synced_together_with_others_where_one_fdatasync_is_enough(tmp_path: Path, batches: Batches) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig())
    assert log.begin_sync() is None, "nothing is to be synced"
    batches.append(log)
    handle = log.begin_sync()
    assert handle is not None
    batches.append(log)
    assert (log.begin_sync(), log.sync_small(1 << 20)) == (None, None), "one sync of a log at a time"
    assert log.files.sync_data_of_each([handle]) == [None]
    assert log.end_sync(None) == log.durable_end == 1
    assert log.sync_small(1 << 20) == 2
    log.close()


def test_a_log_with_much_to_sync_is_synced_by_itself(
    tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig())
    batches.append(log)
    log.sync()
    size = batches.append(log, 3).header.size
    monkeypatch.setattr(log_sync, "MOST_BYTES_TOGETHER", size - 1)
    assert log.begin_sync() is None
    monkeypatch.setattr(log_sync, "MOST_BYTES_TOGETHER", size)
    assert log.begin_sync() is not None
    assert log.end_sync(None) == 4
    log.close()


def test_a_bug_at_the_beginning_of_a_sync_leaves_the_log_to_others(
    tmp_path: Path, batches: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig())
    batches.append(log)
    with monkeypatch.context() as patch:
        patch.setattr(LogSync, "_needs_data_alone", Mock(side_effect=IndexError))
        with pytest.raises(IndexError):
            log.begin_sync()
    assert log.sync() == 1
    log.close()


def test_no_sync_follows_one_together_with_others_that_failed(tmp_path: Path, batches: Batches) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig())
    batches.append(log)
    log.sync()
    batches.append(log)
    assert log.begin_sync() is not None
    with pytest.raises(LogDamaged):
        log.end_sync(OSError(5, "Input/output error"))
    assert log.begin_sync() is None
    with pytest.raises(LogDamaged):
        log.sync()
    assert (log.durable_end, log.refusal is not None) == (1, True)
    log.close()


def test_segments_that_began_and_ended_are_no_small_sync(tmp_path: Path, batches: Batches) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig(segment_bytes=1000))
    batches.append(log)
    log.sync()
    while len(log.segments) < 2:
        batches.append(log)
    assert log.sync_small(1 << 20) is None
    end = log.sync()
    batches.append(log)
    assert log.sync_small(1 << 20) == end + 1
    log.close()
