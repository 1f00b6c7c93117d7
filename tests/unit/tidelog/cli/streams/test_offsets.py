"""`tidelog offsets` of a stream in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner, Result

from tests.unit.tidelog.client.fake_broker import make
from tidelog.cli import main
from tidelog.cli.terminal import session

NOON = 1_769_860_800_000_000_000


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """`s`, with seven records of 2026-01-31T12:00Z in partition 0, and none in 1."""

    async def connected(_server: object, _namespace: object, work: Any, *_: object) -> None:
        _transport, broker, client = make()
        broker.create("s", 2)
        broker.seed("s", 0, [b"x"] * 7, timestamp=NOON)
        broker.logs["s", 0].start = 2
        async with client:
            await work(client)

    monkeypatch.setattr(session, "_connected", connected)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["offsets", *arguments])


def cells(result: Result) -> list[list[str]]:
    assert result.exit_code == 0, result.stderr
    return [[cell.strip() for cell in row.split("│")[1:-1]] for row in result.stdout.splitlines() if row[:1] == "│"]


def test_where_the_partitions_begin_and_end(stream: None) -> None:
    assert cells(invoke("s")) == [["0", "2", "7", "5"], ["1", "0", "0", "0"]]
    assert cells(invoke("s", "--partition", "1")) == [["1", "0", "0", "0"]]


def test_where_a_time_is(stream: None) -> None:
    result = invoke("s", "--time", "2026-01-31T12:00", "--time-zone", "UTC")
    assert cells(result) == [["0", "2", "7", "5", "0"], ["1", "0", "0", "0", "none yet"]]
    assert "at 2026-01-31T12:00:00.000000000Z" in result.stdout


def test_as_json(stream: None) -> None:
    assert json.loads(invoke("s", "--json").stdout) == {
        "stream": "s",
        "partitions": [
            {"partition": 0, "log_start_offset": 2, "committed_end": 7},
            {"partition": 1, "log_start_offset": 0, "committed_end": 0},
        ],
    }
    found = json.loads(invoke("s", "--json", "--time", "2026-01-31T12:00:01Z").stdout)
    assert found["time"] == "2026-01-31T12:00:01.000000000Z"
    assert [each["offset_at_time"] for each in found["partitions"]] == [None, None]


def test_a_partition_that_there_is_not(stream: None) -> None:
    result = invoke("s", "--partition", "7")
    assert result.exit_code == 1
    assert "there is no partition 7; the stream has 0, 1" in result.stderr
