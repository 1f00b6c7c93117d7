"""The driver's questions, as calls of the client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Self

import pytest

from spark_connector.reads.client_log import ClientLog, Isolation
from spark_connector.reads.log_port import PartitionExtent, Span, StreamExtent
from spark_connector.shared.connections import Address, Cluster, Connection, KeptConnections
from spark_connector.shared.retrying import Patience
from tidelog.client.base.exceptions import UnknownStream
from tidelog.client.base.read_positions import AtTime
from tidelog.client.consumer.offset_lookup import LogExtent, StreamExtents
from tidelog.client.consumer.offset_lookup import Span as ClientSpan
from wire.errors import Code
from wire.types import Incarnation, Offset, StreamName

FLIGHTS, TRAINS = StreamName("flights"), StreamName("trains")


class FakeClient:
    """Of two streams with one partition each; everything is asked with uncommitted records."""

    def __init__(self) -> None:
        self.committed: list[tuple[str, Mapping[tuple[str, int], int]]] = []

    async def streams(self) -> list[dict[str, Any]]:
        return [{"name": FLIGHTS}, {"name": TRAINS}]

    async def extents(self, stream: str, *, read_uncommitted: bool, knows_layouts: bool) -> StreamExtents:
        assert read_uncommitted
        assert not knows_layouts
        if stream not in (FLIGHTS, TRAINS):
            raise UnknownStream(Code.UNKNOWN_STREAM, f"there is no stream {stream!r}")
        return StreamExtents(3, {0: LogExtent(4, 1, 5, 6)})

    async def spans(
        self, stream: str, wanted: Mapping[int, tuple[int, int]], *, read_uncommitted: bool
    ) -> dict[int, ClientSpan]:
        assert read_uncommitted
        assert stream in (FLIGHTS, TRAINS)
        return {partition: ClientSpan(offset + 1, size) for partition, (offset, size) in wanted.items()}

    def consume(self, stream: str, *, read_uncommitted: bool) -> Self:
        assert read_uncommitted
        assert stream == FLIGHTS
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def offsets_for_times(self, times: Mapping[int, AtTime]) -> dict[int, int | None]:
        return {partition: None if time.timestamp_ns > 10 else 2 for partition, time in times.items()}

    async def commit_offsets(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        self.committed.append((group, offsets))

    async def close(self) -> None:
        pass


@pytest.fixture
def client() -> FakeClient:
    return FakeClient()


@pytest.fixture
def log(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientLog]:
    async def connect(*_: object, **__: object) -> FakeClient:
        return client

    monkeypatch.setattr("tidelog.connect", connect)
    pool = KeptConnections(Connection)
    yield ClientLog(Cluster(Address(None, "tidelog", None, ()), Patience(0), pool), Isolation(read_uncommitted=True))
    pool.close()


def test_streams_that_do_not_exist_are_left_out(log: ClientLog) -> None:
    assert log.streams() == [FLIGHTS, TRAINS]
    held = {0: PartitionExtent(Incarnation(4), Offset(1), Offset(5), Offset(6))}
    extent = StreamExtent(FLIGHTS, Incarnation(3), held)
    assert log.extents((FLIGHTS, StreamName("buses"))) == {FLIGHTS: extent}
    assert log.extents(()) == {}


def test_times_and_sizes(log: ClientLog) -> None:
    assert log.offsets_at({FLIGHTS: {0: 10, 1: 11}}) == {FLIGHTS: {0: 2, 1: None}}
    wanted = {(FLIGHTS, 0): (Offset(1), 7), (TRAINS, 0): (Offset(2), 8), (FLIGHTS, 1): (Offset(3), 9)}
    assert log.spans(wanted) == {
        (FLIGHTS, 0): Span(Offset(2), 7),
        (TRAINS, 0): Span(Offset(3), 8),
        (FLIGHTS, 1): Span(Offset(4), 9),
    }


def test_a_commit_for_a_group(log: ClientLog, client: FakeClient) -> None:
    log.commit_group("billing", {(FLIGHTS, 0): Offset(5)})
    assert client.committed == [("billing", {("flights", 0): 5})]
