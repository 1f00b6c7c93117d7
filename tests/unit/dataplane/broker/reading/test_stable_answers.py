"""What the driver of a leader sends of a log with transactions: from memory and from the disk, and look-ups."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from dataplane.broker.leading.leader_driver import LeaderDriver, begin_leader_epoch
from dataplane.log.partition_log import PartitionLog
from tests.unit.dataplane.broker.role_bench import Bench, view
from tests.unit.dataplane.log.compacting import append, compact, end, rows
from tests.views import A
from wire.batch import Marker
from wire.messaging.transport import Message
from wire.partition_messages.replication import (
    BYTES_HEADER,
    HEADER_SIZE,
    LOG_END_HEADER,
    LOG_START_HEADER,
    OFFSET_HEADER,
    decode_header,
)
from wire.protobuf.tidelog_pb2 import FetchRequest
from wire.types import Offset


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(asyncio.get_running_loop())
    with ThreadPoolExecutor(1) as executor, ThreadPoolExecutor(1) as readers:
        bench.context.executor, bench.context.readers = executor, readers
        yield bench


def fill(log: PartitionLog) -> None:
    """Offset 0 plain, 1 aborted, 2 committed, 3 and 4 markers, 5 aborted, 6 plain, 7 marker, 8 open, 9 plain."""
    append(log, [(b"k", b"zero")])
    append(log, [(b"k", b"one")], transaction=(1, 0, 0))
    append(log, [(b"k", b"two")], transaction=(2, 0, 0))
    end(log, 1, 0, Marker.ABORT)
    end(log, 2, 0, Marker.COMMIT)
    append(log, [(b"k", b"five")], transaction=(1, 1, 0))
    append(log, [(b"k", b"six")])
    end(log, 1, 1, Marker.ABORT)
    append(log, [(b"k", b"eight")], transaction=(2, 1, 0))
    append(log, [(b"k", b"nine")])
    log.sync()


@pytest.fixture
async def leader(bench: Bench) -> AsyncIterator[LeaderDriver]:
    fill(bench.log)
    role_view = view(A)
    await begin_leader_epoch(bench.context, role_view, bench.log)
    role = LeaderDriver(bench.setup(role_view))
    await role.start()
    assert role.high_watermark == 10
    yield role
    await role.end("over")


async def fetched(
    bench: Bench, role: LeaderDriver, **request: object
) -> tuple[int, dict[int, bytes | None], dict[str, str]]:
    """(end in the header, values by offset, headers) of the answer."""
    key, before = role.view.key, len(bench.ingest.sent)
    options = {"max_bytes": 1 << 20, **request}
    subject = bench.context.subjects.fetch(key.stream, key.partition)
    bench.ingest.subscribed[subject](Message(subject, FetchRequest(**options).SerializeToString(), "inbox"))  # type: ignore[arg-type]
    for _ in range(1000):
        if len(bench.ingest.sent) > before:
            break
        await asyncio.sleep(0.001)
    ((_, data, headers),) = bench.ingest.sent[before:]
    assert headers is not None
    body = bytes(data)[HEADER_SIZE:]
    return decode_header(data)[1], {row.offset: row.value for row in rows(body)}, dict(headers)


COMMITTED = {0: b"zero", 2: b"two", 6: b"six"}
ALL = {**COMMITTED, 1: b"one", 5: b"five", 8: b"eight", 9: b"nine"}


@pytest.mark.parametrize("is_cold", [False, True])
async def test_records_of_aborted_and_open_transactions_are_left_out_unless_they_are_asked_for(
    bench: Bench, leader: LeaderDriver, is_cold: bool
) -> None:
    if is_cold:
        bench.log._state.tail.empty()
        assert bench.log.read(Offset(0), max_bytes=1, end_offset=Offset(9)) is None
    found_end, found, headers = await fetched(bench, leader, offset=0)
    assert (found_end, found, headers[LOG_START_HEADER]) == (8, COMMITTED, "0")
    assert (await fetched(bench, leader, offset=5))[:2] == (8, {6: b"six"})
    assert (await fetched(bench, leader, offset=8))[:2] == (8, {})
    assert (await fetched(bench, leader, offset=0, read_uncommitted=True))[:2] == (10, ALL)


@pytest.mark.parametrize("is_cold", [False, True])
async def test_coordinators_in_the_same_process_read_what_is_committed(
    bench: Bench, leader: LeaderDriver, is_cold: bool
) -> None:
    if is_cold:
        bench.log._state.tail.empty()
    data = b"".join(await leader._own.read_committed(Offset(0)))
    assert {row.offset: row.value for row in rows(data)} == COMMITTED
    assert list(await leader._own.read_committed(Offset(8))) == []


async def test_latest_is_the_last_stable_offset(bench: Bench, leader: LeaderDriver) -> None:
    for options, latest in [({}, 8), ({"read_uncommitted": True}, 10)]:
        found_end, found, headers = await fetched(bench, leader, latest=True, max_bytes=0, **options)
        assert (found_end, found, headers[OFFSET_HEADER]) == (latest, {}, str(latest))
        assert headers[LOG_END_HEADER] == "10"


async def test_a_span_of_bytes_ends_at_the_last_stable_offset(
    bench: Bench, leader: LeaderDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options, latest in [({}, 8), ({"read_uncommitted": True}, 10)]:
        found_end, found, headers = await fetched(bench, leader, offset=0, span_bytes=1 << 30, max_bytes=0, **options)
        assert (found_end, found, headers[OFFSET_HEADER]) == (latest, {}, str(latest))
        assert 0 < int(headers[BYTES_HEADER]) <= leader.log.size_bytes
    assert (await fetched(bench, leader, offset=0, span_bytes=1, max_bytes=0))[2][OFFSET_HEADER] == "1"
    from_five = (await fetched(bench, leader, offset=5, span_bytes=1, max_bytes=0))[2][BYTES_HEADER]
    monkeypatch.setattr(LeaderDriver, "first_record", property(lambda _: Offset(5)))
    removed = (await fetched(bench, leader, offset=0, span_bytes=1, max_bytes=0))[2]
    assert (removed[OFFSET_HEADER], removed[BYTES_HEADER]) == ("6", from_five), "from where the log begins"
    nothing = (await fetched(bench, leader, offset=9, span_bytes=1, max_bytes=0))[2]
    assert (nothing[OFFSET_HEADER], nothing[BYTES_HEADER]) == ("8", "0")


@pytest.mark.parametrize(
    ("after", "committed", "uncommitted"),
    [(0, 0, 0), (1, 2, 1), (2, 2, 2), (4, 6, 5), (6, 6, 6), (7, 8, 8), (8, 8, 8), (100, 8, 10)],
)
async def test_a_time_is_looked_up_among_the_records_that_are_served(
    bench: Bench, leader: LeaderDriver, after: int, committed: int, uncommitted: int
) -> None:
    """The record at offset n, if it is one, is of the time 1000 * (n + 1)."""
    for options, offset in [({}, committed), ({"read_uncommitted": True}, uncommitted)]:
        found = await fetched(bench, leader, timestamp=1000 * (after + 1), max_bytes=0, **options)
        assert found[2][OFFSET_HEADER] == str(offset)


async def test_a_cold_answer_that_a_compaction_overtakes_is_read_again(
    bench: Bench, leader: LeaderDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the batches have been read, and not looked at, a pass empties them and the transactions are forgotten."""
    log = bench.log
    end(log, 2, 1, Marker.COMMIT)
    log.roll()
    log.sync()
    log._state.tail.empty()
    read = PartitionLog.read_from_disk
    compacted: list[object] = []

    def overtaken(self: PartitionLog, offset: Offset, *, max_bytes: int, end_offset: Offset) -> object:
        data = bytes(read(self, offset, max_bytes=max_bytes, end_offset=end_offset))
        if not compacted:
            compacted.append(compact(log, 11))
            log.swapping.forget_compacted()
            assert log.transactions.aborted_count == 0
        return data

    monkeypatch.setattr(PartitionLog, "read_from_disk", overtaken)
    assert b"one" not in (await fetched(bench, leader, offset=0))[1].values()
    assert compacted


@pytest.mark.parametrize("is_cold", [False, True])
async def test_what_consumers_are_sent_is_counted(bench: Bench, leader: LeaderDriver, is_cold: bool) -> None:
    """Once for the partition and once for the broker; an answer without batches counts nothing."""
    if is_cold:
        bench.log._state.tail.empty()
    await fetched(bench, leader, offset=8)
    assert leader.traffic.report(0.0)["records_out"] == 0
    await fetched(bench, leader, offset=6, read_uncommitted=True)
    sent = len(bytes(bench.ingest.sent[-1][1])) - HEADER_SIZE
    now = bench.context.now()
    for meter in (leader.traffic, bench.context.traffic):
        told = meter.report(now)
        assert (told["records_out"], told["bytes_out"], told["records_in"]) == (4, sent, 0)
