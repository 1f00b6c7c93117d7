from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from spark_connector.reads import client_log
from spark_connector.reads.client_log import CHUNK_BYTES, Ahead, ClientLog
from spark_connector.reads.log_port import OffsetRange
from spark_connector.shared import connections
from spark_connector.shared.connections import Address, Cluster, Connection, KeptConnections
from spark_connector.shared.retrying import Patience, WaitedOut
from tidelog.client.base.exceptions import NoServer
from tidelog.client.consumer.offset_lookup import LogExtent, StreamExtents
from wire.batch import BatchBuilder, RecordBatch
from wire.errors import Code, TidelogError
from wire.types import Incarnation, LeaderEpoch, Offset, StreamName

WANTED = OffsetRange(StreamName("flights"), Incarnation(1), 0, Incarnation(1), Offset(0), Offset(10))


def batch(size: int, offset: int = 0) -> RecordBatch:
    builder = BatchBuilder()
    builder.add_values([b"x" * size])
    parts, _ = builder.build(1).stamp(Offset(offset), LeaderEpoch(1))
    return RecordBatch.decode(b"".join(bytes(part) for part in parts))


class Batches:
    """`fetch_batches` with batches of a given size; counts the taken batches, and holds on when there are no more."""

    def __init__(self, sizes: list[int], *, hangs: bool = False) -> None:
        self.taken = 0
        self.started = asyncio.Event()
        self.closed = False
        self._sizes = sizes
        self._hangs = hangs

    async def generate(self, _: Callable[[int], None]) -> AsyncGenerator[RecordBatch, None]:
        try:
            for size in self._sizes:
                self.taken += 1
                self.started.set()
                yield batch(size)
            if self._hangs:
                self.started.set()
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def test_one_chunk_is_fetched_ahead_and_no_more() -> None:
    source = Batches([CHUNK_BYTES] * 5)
    ahead = Ahead(source.generate)
    await ahead.begin()
    chunk = await ahead.take(10)
    assert chunk is not None
    assert len(chunk) == 1
    for _ in range(20):
        await asyncio.sleep(0)
    assert source.taken == 2
    sizes = []
    while chunk:
        sizes.append(len(chunk))
        chunk = await ahead.take(10)
    assert sizes == [1] * 5
    await ahead.abandon()
    assert source.closed


async def test_a_reader_that_stops_early_leaves_nothing_running() -> None:
    source = Batches([10], hangs=True)
    ahead = Ahead(source.generate)
    await ahead.begin()
    await source.started.wait()
    assert await ahead.take(0) is None
    await ahead.abandon()
    assert source.closed


@dataclass
class Script:
    """Answers of the client's `fetch_batches`, call by call: batches at offsets, an error, a silence, or the end."""

    calls: Sequence[Sequence[int | TidelogError | str]]
    begun_at: list[int] = field(default_factory=list)
    connections: int = 0
    extent: LogExtent | None = None

    async def fetch_batches(
        self, _stream: str, _partition: int, start: int, end: int, *, on_position: Callable[[int], object], **_: Any
    ) -> AsyncGenerator[RecordBatch, None]:
        self.begun_at.append(start)
        self.calls, steps = self.calls[1:], self.calls[0]
        for step in steps:
            if isinstance(step, TidelogError):
                raise step
            if step == "silence":
                await asyncio.Event().wait()
            elif step == "at 8":
                on_position(8)
            elif step == "slow":
                await asyncio.sleep(0.06)
                on_position(0)
            else:
                assert isinstance(step, int)
                yield batch(10, step)

    async def extents(self, _stream: str, *, read_uncommitted: bool, knows_layouts: bool) -> StreamExtents:
        assert not read_uncommitted
        assert not knows_layouts
        return StreamExtents(1, {} if self.extent is None else {0: self.extent})

    async def close(self) -> None:
        pass


@pytest.fixture
def make_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Script, float], ClientLog]]:
    pools: list[KeptConnections] = []

    def make(script: Script, timeout: float) -> ClientLog:
        async def connect(*_: object, **__: object) -> Script:
            script.connections += 1
            return script

        monkeypatch.setattr("tidelog.connect", connect)
        pools.append(KeptConnections(Connection))
        clock = itertools.count()
        retry = Patience(timeout, now=lambda: float(next(clock)), sleep=lambda _: None)
        return ClientLog(Cluster(Address(None, "tidelog", None, ()), retry, pools[-1]))

    yield make
    for pool in pools:
        pool.close()


Make = Callable[[Script, float], ClientLog]


def offsets(batches: Iterator[RecordBatch]) -> list[int]:
    return [int(each.header.base_offset) for each in batches]


PASSES = NoServer(Code.UNAVAILABLE, "the controller did not answer")


def test_after_an_error_that_passes_it_goes_on_where_it_was(make_log: Make) -> None:
    script = Script([[PASSES], [PASSES], [0, 1, PASSES], [0, 1, 2]])
    assert offsets(make_log(script, 60).fetch(WANTED, 1 << 20)) == [0, 1, 2]
    # A chunk that is not complete is fetched again as a whole.
    assert script.begun_at == [0, 0, 0, 0]


def test_chunks_that_were_handed_out_are_not_fetched_again(make_log: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_log, "CHUNK_BYTES", 1)
    script = Script([[0, 1, PASSES], [2, 3]])
    assert offsets(make_log(script, 60).fetch(WANTED, 1 << 20)) == [0, 1, 2, 3]
    assert script.begun_at == [0, 2]


def test_an_error_that_stays_is_raised_with_the_time(make_log: Make) -> None:
    script = Script([[PASSES] for _ in range(20)])
    with pytest.raises(NoServer, match=r"tried for 5 s"):
        offsets(make_log(script, 5).fetch(WANTED, 1 << 20))


def test_a_final_error_is_raised_at_once_and_leaves_the_connection(make_log: Make) -> None:
    script = Script([[TidelogError(Code.WRONG_INCARNATION, "created again")]] * 2 + [[7]])
    log = make_log(script, 60)
    with pytest.raises(TidelogError, match="created again"):
        offsets(log.fetch(WANTED, 1 << 20))
    script.calls = [[7]]
    assert offsets(log.fetch(WANTED, 1 << 20)) == [7]
    assert script.connections == 1


def test_a_range_without_an_answer_fails_instead_of_waiting_for_ever(
    make_log: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_log, "LEAST_STALL_SECONDS", 0.01)
    with pytest.raises(WaitedOut, match=r"flights/0 \[0, 10\) has not been answered") as caught:
        offsets(make_log(Script([["silence"]]), 0).fetch(WANTED, 1 << 20))
    assert caught.value.code is Code.UNAVAILABLE


def test_the_limit_is_of_progress_and_not_of_a_chunk(make_log: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_log, "LEAST_STALL_SECONDS", 3.0)
    # 3.9 s in which no record comes, but answers do.
    assert offsets(make_log(Script([["slow"] * 65 + [3]]), 0).fetch(WANTED, 1 << 20)) == [3]


def test_a_connection_that_another_fetch_gave_up_is_replaced(make_log: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_log, "CHUNK_BYTES", 1)
    script = Script([[0, "silence"], [1]])
    log = make_log(script, 60)
    fetch = log.fetch(WANTED, 1 << 20)
    assert int(next(fetch).header.base_offset) == 0
    log.cluster.connection().is_broken = True
    log.cluster.connection()
    assert offsets(fetch) == [1]
    assert script.begun_at == [0, 1]


def test_records_that_an_unclean_election_cost_are_told(make_log: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_log, "CUT_SECONDS", 0.01)
    script = Script([["at 8", "silence"]], extent=LogExtent(1, 0, 8, 8))
    with pytest.raises(
        TidelogError, match=r"\[0, 10\) was committed .* ends at 8 now: its last 2 records are gone"
    ) as cut:
        offsets(make_log(script, 60).fetch(WANTED, 1 << 20))
    assert cut.value.code is Code.LOG_TRUNCATED


@pytest.mark.parametrize(
    "extent",
    [
        # Committed soon: a new leader does not know yet what is committed.
        LogExtent(1, 0, 0, 10),
        # There is more to read before the end.
        LogExtent(1, 0, 9, 9),
        # Another life, which the fetch itself is told of.
        LogExtent(2, 0, 0, 0),
    ],
)
def test_a_leader_that_is_slow_has_lost_nothing(
    make_log: Make, monkeypatch: pytest.MonkeyPatch, extent: LogExtent
) -> None:
    monkeypatch.setattr(client_log, "CUT_SECONDS", 0.01)
    monkeypatch.setattr(client_log, "LEAST_STALL_SECONDS", 0.1)
    with pytest.raises(WaitedOut):
        offsets(make_log(Script([["at 8", "silence"]], extent=extent), 0).fetch(WANTED, 1 << 20))


def test_a_range_that_is_left_early_is_given_up(make_log: Make) -> None:
    fetch = make_log(Script([[0, 1, "silence"]]), 60).fetch(WANTED, 1 << 20)
    fetch.close()


def test_a_connection_that_gets_no_answer_for_long_is_replaced(make_log: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "RENEW_SECONDS", -1.0)
    script = Script([[PASSES], [PASSES], [4]])
    assert offsets(make_log(script, 60).fetch(WANTED, 1 << 20)) == [4]
    assert script.connections == 3
