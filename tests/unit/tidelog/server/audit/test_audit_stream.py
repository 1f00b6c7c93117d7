"""Audit records on their way to the internal stream: what is kept when too many come, or none can be written."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest

from tidelog.server.audit import audit_stream
from tidelog.server.audit.audit_stream import (
    MAX_AT_ONCE,
    MAX_BATCH_BYTES,
    QUEUED_RECORDS,
    REFUSED_PER_S,
    AuditQueue,
    AuditStream,
    QueuedRecord,
)
from wire.errors import Code, TidelogError
from wire.internal_records.audit_records import AuditRecord, audit_record
from wire.operations.api_operations import StreamRef


def record(number: int, *, refused: bool = False, padding: int = 0) -> AuditRecord:
    made = audit_record(
        act=f"1-{number}",
        time_ns=0,
        operation="stream.delete",
        stream="s",
        request=StreamRef("s"),
        error=TidelogError(Code.UNKNOWN_STREAM, "no") if refused else None,
        controller="b1",
        controller_epoch=1,
        headers=None,
        reply=None,
    )
    made["request"] = {"name": "x" * padding}
    return made


def numbers(records: Sequence[QueuedRecord]) -> list[int]:
    return [int(each.id.partition("-")[2]) for each in records]


def drained(queue: AuditQueue) -> list[int]:
    found: list[int] = []
    while queue:
        taken = queue.take(MAX_AT_ONCE)
        assert 1 <= len(taken) <= MAX_AT_ONCE
        assert len(taken) == 1 or sum(len(each.value) for each in taken) <= MAX_BATCH_BYTES
        queue.finished()
        found += numbers(taken)
    return found


def test_records_come_out_in_order_and_what_is_put_back_comes_first() -> None:
    queue = AuditQueue()
    for number in range(2 * MAX_AT_ONCE):
        assert queue.put(record(number), 0.0)
    queue.take(3)
    queue.put_back()
    assert drained(queue) == list(range(2 * MAX_AT_ONCE))


def test_a_flood_of_refused_acts_takes_a_few_places_a_second() -> None:
    queue = AuditQueue()
    kept = [queue.put(record(number, refused=True), 100.0) for number in range(1000)]
    assert (sum(kept), queue.dropped) == (REFUSED_PER_S, 1000 - REFUSED_PER_S)
    kept = [queue.put(record(number, refused=True), 100.5) for number in range(1000)]
    assert sum(kept) == REFUSED_PER_S // 2
    assert queue.put(record(7), 100.5), "an act that was carried out always has a place"


def test_a_full_queue_keeps_acts_that_were_carried_out() -> None:
    queue = AuditQueue()
    for number in range(REFUSED_PER_S):
        queue.put(record(number, refused=True), 0.0)
    carried_out = list(range(100, 100 + QUEUED_RECORDS.items))
    for number in carried_out:
        assert queue.put(record(number), 0.0)
    assert not queue.put(record(1, refused=True), 60.0)
    assert not queue.put(record(2), 60.0)
    assert queue.dropped == queue.overflowed == REFUSED_PER_S + 2
    assert drained(queue) == carried_out


def test_large_records_are_bounded_by_their_bytes_in_the_queue_and_in_a_batch() -> None:
    queue = AuditQueue()
    size = len(json.dumps(record(1000, padding=MAX_BATCH_BYTES // 3)))
    room = QUEUED_RECORDS.bytes // size
    queue.put(record(1, refused=True), 0.0)
    kept = [queue.put(record(1000 + number, padding=MAX_BATCH_BYTES // 3), 0.0) for number in range(2 * room)]
    assert (sum(kept), queue.dropped, queue.overflowed) == (room, room + 1, room + 1)
    assert numbers(queue.take(MAX_AT_ONCE)) == [1000, 1001]
    assert not queue.put(record(2, padding=MAX_BATCH_BYTES // 3), 0.0), "what is taken keeps its room"
    queue.put_back()
    assert drained(queue) == list(range(1000, 1000 + room))
    assert queue.put(record(2, padding=2 * MAX_BATCH_BYTES), 0.0)
    assert drained(queue) == [2], "a record above the limit goes alone"


class Log:
    """Stands for the internal stream; `errors` come first."""

    def __init__(self, *errors: Exception, limit: int = 1 << 60, code: Code = Code.MESSAGE_TOO_LARGE) -> None:
        self.errors = list(errors)
        self.limit = limit
        self.code = code
        self.batches = 0
        self.written: list[dict[str, Any]] = []
        self.hangs = False
        self.came = asyncio.Condition()
        self.stream = AuditStream(self.append, asyncio.get_running_loop().time)

    async def append(self, values: Sequence[bytes]) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        if self.errors:
            raise self.errors.pop(0)
        self.batches += 1
        if sum(map(len, values)) > self.limit:
            raise TidelogError(self.code, "too large")
        self.written += map(json.loads, values)
        async with self.came:
            self.came.notify_all()

    async def until_written(self, count: int) -> None:
        async with asyncio.timeout(30):
            async with self.came:
                await self.came.wait_for(lambda: len(self.written) >= count)


async def test_records_are_written_when_the_stream_takes_them_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_stream, "FIRST_PAUSE_S", 0.001)
    log = Log(TidelogError(Code.NOT_ENOUGH_REPLICAS, "no"), TimeoutError())
    log.stream.on_record(record(1))
    log.stream.on_record(record(2))
    await log.until_written(2)
    log.stream.on_record(record(3))
    await log.until_written(3)
    assert [each["id"] for each in log.written] == ["1-1", "1-2", "1-3"]
    await log.stream.close()
    assert log.stream.queue.dropped == 0


async def test_at_the_end_what_cannot_be_written_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_stream, "LAST_ATTEMPT_S", 0.01)
    log = Log()
    log.hangs = True
    for number in range(3):
        log.stream.on_record(record(number))
    await asyncio.sleep(0)
    await log.stream.close()
    assert (log.written, log.stream.queue.dropped) == ([], 3)


async def test_at_the_end_what_waits_is_written() -> None:
    log = Log()
    log.stream.on_record(record(1))
    await log.stream.close()
    assert [each["id"] for each in log.written] == ["1-1"]


@pytest.mark.parametrize("code", [Code.MESSAGE_TOO_LARGE, Code.RECORD_TOO_LARGE, Code.CORRUPT_BATCH])
async def test_a_batch_that_is_too_large_is_halved_and_a_record_that_is_too_large_is_dropped_by_name(
    code: Code, caplog: pytest.LogCaptureFixture
) -> None:
    log = Log(limit=1500, code=code)
    for number in range(40):
        log.stream.on_record(record(number, padding=2000 if number in (0, 17, 39) else 0))
    log.stream.on_record(record(40))
    await log.until_written(38)
    assert [each["id"] for each in log.written] == [f"1-{n}" for n in range(41) if n not in (0, 17, 39)]
    errors = [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]
    assert [line.split()[2] for line in errors] == ["1-0", "1-17", "1-39"]
    assert "stream.delete" in errors[0]
    assert log.stream.queue.dropped == 3
    batches = log.batches
    log.limit = 1 << 60
    for number in range(1000):
        log.stream.on_record(record(number))
    await log.until_written(1038)
    assert log.batches < batches + 30, "batches grow again"
    await log.stream.close()


async def test_an_exception_that_nobody_expects_does_not_end_the_writer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_stream, "FIRST_PAUSE_S", 0.001)
    log = Log(KeyError("a bug"), ValueError("another"))
    log.stream.on_record(record(1))
    await log.until_written(1)
    log.stream.on_record(record(2))
    await log.until_written(2)
    assert [line.levelname for line in caplog.records if line.exc_info] == ["ERROR", "ERROR"]
    assert log.stream.queue.dropped == 0
    log.errors = [KeyError("a bug at the end")]
    log.stream.on_record(record(3))
    await log.stream.close()
    assert log.stream.queue.dropped == 1


async def test_a_queue_without_room_is_told_once_until_it_is_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_stream, "FIRST_PAUSE_S", 0.001)

    def told() -> int:
        return sum("no more have room" in line.getMessage() for line in caplog.records)

    log = Log()
    for times in (1, 2):
        log.errors = [TimeoutError()]
        for number in range(QUEUED_RECORDS.items + 10):
            log.stream.on_record(record(number))
        assert (told(), log.stream.queue.dropped) == (times, 10 * times)
        await log.until_written(times * QUEUED_RECORDS.items)
    await log.stream.close()


async def test_a_users_stream_of_the_name_is_told_once_and_the_records_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_stream, "FIRST_PAUSE_S", 0.001)
    log = Log(*[TidelogError(Code.STREAM_EXISTS, "a user's")] * 4)
    log.stream.on_record(record(1))
    await log.until_written(1)
    warnings = [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]
    assert warnings == ["administrative acts are recorded in the log only: a user's"]
    await log.stream.close()
