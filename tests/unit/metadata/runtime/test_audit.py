"""The audit trail of a controller's API: every request to an operation that writes, whatever its outcome."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.unit.metadata.brokers import SUBJECTS, running
from wire.errors import CLUSTER_HEADER, TidelogError

CREATE = {"name": "s", "subject": "s", "partitions": 1, "replication_factor": 1}


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [record.getMessage() for record in caplog.records if record.name == "tidelog.server.audit.audit_trail"]
    return [json.loads(line[line.index("{") :]) for line in found]


def summary(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    return [(line["operation"], line["stream"], line["outcome"], line["code"]) for line in lines(caplog)]


async def test_writes_are_told_and_reads_are_not(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with running("a") as world:
        await world.api("stream.create", **CREATE)
        await world.api("stream.describe", name="s")
        await world.api("producer.init")
        await world.api("stream.alter", name="s", config={"compact": "true"})
        await world.api("stream.delete", name="s")
        with pytest.raises(TidelogError, match="'s' does not exist"):
            await world.api("stream.delete", name="s")
    assert summary(caplog) == [
        ("stream.create", "s", "answered", None),
        ("stream.alter", "s", "answered", None),
        ("stream.delete", "s", "answered", None),
        ("stream.delete", "s", "refused", "UNKNOWN_STREAM"),
    ]
    assert lines(caplog)[1]["request"] == {"name": "s", "config": {"compact": "true"}, "unset": []}


async def test_requests_that_cannot_be_read_or_are_for_another_cluster_are_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with running("a") as world:
        await world.api("cluster.status")
        await world.client.request(SUBJECTS.api("stream.delete", "s"), b'{"name": 7}', timeout=5)
        await world.client.request(
            SUBJECTS.api("stream.delete", "s"), b'{"name": "s"}', timeout=5, headers={CLUSTER_HEADER: "another"}
        )
    assert summary(caplog) == [
        ("stream.delete", None, "refused", "BAD_REQUEST"),
        ("stream.delete", None, "refused", "WRONG_CLUSTER"),
    ]
