"""What consumers are served by the last copy of a partition, which is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dataplane.broker.reading.damaged_replica import DamagedReplica
from tests.unit.dataplane.broker.role_bench import Bench, view
from tests.unit.dataplane.log.compacting import append
from tests.views import A
from wire.error_details import LOG_START
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.replication import OFFSET_HEADER, SETTLED_START_HEADER
from wire.protobuf.tidelog_pb2 import FetchRequest
from wire.types import Offset


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(asyncio.get_running_loop())
    with ThreadPoolExecutor(1) as executor:
        bench.context.executor = bench.context.readers = executor
        yield bench


def fetched(bench: Bench, role: DamagedReplica, **request: object) -> tuple[TidelogError | None, dict[str, str]]:
    """(error, headers) of the answer."""
    key, sent = role.view.key, (bench.ingest.sent, bench.control.sent)
    for each in sent:
        each.clear()
    subject = bench.context.subjects.fetch(key.stream, key.partition)
    asked = FetchRequest(**{"max_bytes": 1 << 20, **request})  # type: ignore[arg-type]
    bench.ingest.subscribed[subject](Message(subject, asked.SerializeToString(), "inbox"))
    ((_, _, headers),) = (*bench.ingest.sent, *bench.control.sent)
    return TidelogError.from_headers(headers), dict(headers or {})


# R82: what a leader had removed, and this replica withheld as its follower, is not served because it is the last copy.
async def test_nothing_is_served_below_the_start_that_is_called_settled(bench: Bench) -> None:
    for value in (b"zero", b"one", b"two"):
        append(bench.log, [(b"k", value)])
    bench.log.sync()
    bench.log.withheld_below = Offset(2)
    role = DamagedReplica(replace(bench.setup(view(A, leader=None)), high_watermark=Offset(3)))
    await role.start()
    error, headers = fetched(bench, role, earliest=True)
    assert (error, headers[OFFSET_HEADER], headers[SETTLED_START_HEADER]) == (None, "2", "2")
    assert fetched(bench, role, offset=2)[0] is None
    error, _ = fetched(bench, role, offset=1)
    assert error is not None
    assert (error.code, error.detail(LOG_START)) == (Code.OFFSET_BEFORE_LOG, 2)
    await role.end("over")
