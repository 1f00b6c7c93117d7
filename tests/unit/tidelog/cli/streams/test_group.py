"""`tidelog group describe`: what it shows."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.streams import group
from tidelog.cli.streams.group import _show_description
from tidelog.cli.terminal import session
from tidelog.client.base.exceptions import UnknownGroup
from wire.errors import Code


def test_a_partition_that_waits_and_that_nobody_has_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    progress = {
        "stream": "orders", "partition": 2, "committed": None, "end": 7, "lag": None, "member": None, "metadata": "",
        "committed_at_ns": 0, "waits_for": {"0": 41, "1": -1},
    }  # fmt: skip
    found: Any = {
        "name": "billing", "state": "empty", "generation": 3, "coordinator": "b1", "partition": 0, "left_out": 0,
        "details": [], "offsets": [], "pending": [], "progress": [progress],
    }  # fmt: skip
    session.console.cache_clear()
    _show_description(found)
    words = " ".join(capsys.readouterr().out.split())
    assert (
        "orders/2 waits, where keys keep their order, until the group has committed 0 up to 41, 1 up to its cutover"
        in words
    )
    assert "│ orders │ 2 │ nothing │ 7 │ ? │" in words


class _Groups:
    """Three groups: one with lag, one of which nothing is known, one that is gone when it is asked for."""

    async def groups(self) -> Any:
        summary = {"state": "empty", "generation": 1, "members": 0, "streams": ["orders"]}
        return {"groups": [{**summary, "name": name} for name in ("billing", "fresh", "gone")], "unanswered": []}

    async def describe_group(self, name: str) -> Any:
        if name == "gone":
            raise UnknownGroup(Code.UNKNOWN_GROUP, "it is gone")
        return {"progress": [{"lag": lag} for lag in ((7, None, 35) if name == "billing" else (None,))]}


def test_groups_are_listed_with_their_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connected(_server: object, _namespace: object, work: Any, *_: object) -> None:
        await work(_Groups())

    monkeypatch.setattr(session, "_connected", connected)
    listed = CliRunner().invoke(main, ["group", "list"]).stdout
    rows = [[cell.strip() for cell in row.split("│")] for row in listed.splitlines() if row[:1] == "│"]
    assert [(row[1], row[5]) for row in rows] == [("billing", "42"), ("fresh", "?"), ("gone", "?")]
    told = json.loads(CliRunner().invoke(main, ["group", "list", "--json"]).stdout)
    assert [each["lag"] for each in told["groups"]] == [42, None, None]
    told = json.loads(CliRunner().invoke(main, ["group", "describe", "billing", "--json"]).stdout)
    assert (told["lag"], told["lag_unknown"]) == (42, 1)
    monkeypatch.setattr(group, "MOST_LAGS", 1)
    listed = CliRunner().invoke(main, ["group", "list"]).stdout
    assert "the lag is shown of the first 1 group;" in listed
