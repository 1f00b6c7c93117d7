"""`tidelog audit`: what it refuses before it asks a cluster, and what it says of no acts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli import audit, main


@pytest.mark.parametrize("since", ["2026", "0", "earliest", "latest", "new", "yesterday", "", "2026-13-01"])
def test_since_is_a_date_or_a_time(since: str) -> None:
    result = CliRunner().invoke(main, ["audit", "--since", since])
    assert result.exit_code == 2
    assert f"{since!r} is no date or time in ISO-8601" in result.stderr


@pytest.mark.parametrize("since", ["2026-11-22", "2026-11-22T08:00Z", "2026-11-22T08:00:00.123456789+01:00"])
def test_dates_and_times_are_taken(since: str) -> None:
    result = CliRunner().invoke(main, ["audit", "--since", since, "--server", "nats://127.0.0.1:1"])
    assert result.exit_code == 1, "nobody is there to ask"


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
