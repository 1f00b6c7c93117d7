"""`tidelog partition history`: events with their times."""

from __future__ import annotations

from datetime import timedelta, timezone
from typing import Any

import pytest

from tidelog.cli.streams.partition import _show_history
from tidelog.cli.terminal import session

HISTORY: Any = {
    "stream": "s", "partition": 0, "replicas": [
        {"broker": "b1", "leads": True, "state": "isr", "events": [
            {"seconds_ago": 38.934, "time": "2026-01-31T12:00:00.250+00:00", "event": "leads", "times": 1},
            {"seconds_ago": 1.5, "time": "2026-01-31T12:00:37.684+00:00", "event": "resigns", "times": 2},
        ]},
    ],
}  # fmt: skip


def test_events_have_absolute_times_with_their_zone(capsys: pytest.CaptureFixture[str]) -> None:
    session.console.cache_clear()
    _show_history(HISTORY, None)
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  2026-01-31T12:00:00.250Z        38.934 s ago  leads",
        "  2026-01-31T12:00:37.684Z         1.500 s ago  resigns (2 times)",
    ]
    _show_history(HISTORY, timezone(timedelta(hours=1)))
    assert "2026-01-31T13:00:00.250+01:00" in capsys.readouterr().out
