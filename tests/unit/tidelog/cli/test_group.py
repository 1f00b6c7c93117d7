"""`tidelog group describe`: what it shows."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli import session
from tidelog.cli.group import _show_description


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
