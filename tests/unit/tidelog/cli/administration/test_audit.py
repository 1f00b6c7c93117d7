"""`tidelog audit`: what it refuses before it asks a cluster, and what it says of no acts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta, timezone
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.administration import audit


@pytest.mark.parametrize("since", ["2026", "0", "earliest", "latest", "new", "yesterday", "", "2026-13-01"])
def test_since_is_a_time(since: str) -> None:
    result = CliRunner().invoke(main, ["audit", "--since", since])
    assert result.exit_code == 2
    assert f"--since: {since!r} is no point in time; give ISO-8601 with a zone" in result.stderr


@pytest.mark.parametrize(
    "given",
    [
        ["2026-11-22", "--time-zone", "UTC"],
        ["2026-11-22"],
        ["2026-11-22T08:00Z"],
        ["2026-11-22T08:00:00.123456789+01:00"],
        ["3d"],
    ],
)
def test_times_are_taken(given: list[str]) -> None:
    result = CliRunner().invoke(main, ["audit", "--server", "nats://127.0.0.1:1", "--since", *given])
    assert result.exit_code == 1, "nobody is there to ask"


def test_times_are_shown_in_the_zone_that_is_asked_for() -> None:
    record = {"time": "2026-01-31T12:00:00.5Z"}
    assert audit._row(record, None)[0] == "2026-01-31T12:00:00.500Z"
    assert audit._row(record, timezone(timedelta(hours=1)))[0] == "2026-01-31T13:00:00.500+01:00"
    assert audit._row({"time": "2026-01-31T12:00:00.0000005Z"}, None)[0] == "2026-01-31T12:00:00.000000500Z"
    assert audit._row({"time": "soon"}, None)[0] == "soon"


@pytest.mark.parametrize("stream", ["a b", "a.b", "*", "", "inbox"])
def test_names_that_no_stream_has_are_refused(stream: str) -> None:
    result = CliRunner().invoke(main, ["audit", "--stream", stream])
    assert result.exit_code == 2
    assert f"stream name {stream!r}" in result.stderr


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_stream_without_an_act_is_told(monkeypatch: pytest.MonkeyPatch, more: list[str]) -> None:
    async def records(*_: object, **__: object) -> AsyncIterator[dict[str, Any]]:
        yield {"id": "1", "stream": "flights", "operation": "stream.create"}

    def run(_server: str | None, _namespace: str, work: Callable[[object], Awaitable[None]]) -> None:
        asyncio.run(work(None))  # type: ignore[arg-type]

    monkeypatch.setattr(audit, "_records", records)
    monkeypatch.setattr(audit, "run", run)
    done = CliRunner().invoke(main, ["audit", "--stream", "nosuch", *more])
    assert (done.exit_code, done.stdout) == (0, "")
    assert done.stderr == "no act on a stream 'nosuch' is among the 1 that are recorded\n"
    assert "flights" in CliRunner().invoke(main, ["audit", "--stream", "flights", *more]).stdout
