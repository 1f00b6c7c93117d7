"""Views of streams, without Spark."""

from __future__ import annotations

from typing import Any

import pytest

from spark_connector import sql
from tests.unit.spark_connector.reads.fake_log import FakeLogs, FakeStream

SERVERS = {"servers": "nats://127.0.0.1:1"}


class FakeSpark:
    """A session, its reader, and the frame that it loads."""

    def __init__(self) -> None:
        self.views: dict[str, dict[str, str]] = {}
        """The options of each."""
        self.given: dict[str, str] = {}

    @property
    def read(self) -> FakeSpark:
        return self

    def format(self, name: str) -> FakeSpark:
        assert name == "tidelog"
        return self

    def options(self, **options: str) -> FakeSpark:
        self.given = options
        return self

    def load(self) -> FakeSpark:
        return self

    def createOrReplaceTempView(self, name: str) -> None:  # noqa: N802 - Spark's name
        self.views[name] = self.given


def test_every_stream_is_a_view_or_those_that_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    log = FakeLogs({"trains": FakeStream({}), "flights-eu": FakeStream({})})
    monkeypatch.setattr(sql, "open_client_log", lambda _: log)
    spark: Any = FakeSpark()
    assert sql.register(spark, prefix="of_", **SERVERS) == ["of_flights-eu", "of_trains"]
    assert log.closed
    assert spark.views == {
        "`of_flights-eu`": SERVERS | {"subscribe": "flights-eu"},
        "`of_trains`": SERVERS | {"subscribe": "trains"},
    }
    assert sql.register(spark, streams=["trains"], **SERVERS) == ["trains"]
