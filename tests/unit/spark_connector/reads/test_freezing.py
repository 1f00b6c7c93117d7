from __future__ import annotations

import gc
from typing import Any

import pytest

from spark_connector.reads import batch_reader
from spark_connector.reads.batch_reader import TidelogBatchReader
from spark_connector.reads.log_port import OffsetRange
from spark_connector.reads.read_options import SourceOptions
from spark_connector.shared.arrow_rows import spark_schema
from tests.unit.spark_connector.reads.test_reading import OneLog
from wire.types import Incarnation, Offset, StreamName

WANTED = OffsetRange(StreamName("flights"), Incarnation(1), 0, Incarnation(1), Offset(0), Offset(3))


class Task:
    """Spark's InputPartition."""

    value = (WANTED,)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_worker_freezes_once_and_behind_its_first_task(monkeypatch: pytest.MonkeyPatch, is_wanted: bool) -> None:
    calls: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append("freeze"))
    monkeypatch.setattr(batch_reader, "_is_done", False)
    log = OneLog()
    log.add(3)
    given = {"servers": "nats://a:1", "subscribe": "flights"} | ({} if is_wanted else {"gc.freeze": "false"})
    reader = TidelogBatchReader(SourceOptions.parse(given), spark_schema(include_headers=False), lambda _: log)
    task: Any = Task()
    rows = reader.read(task)
    next(rows)
    assert calls == [], "before what the task needs is loaded"
    assert list(rows) == []
    list(reader.read(task))
    assert calls == (["freeze"] if is_wanted else [])
