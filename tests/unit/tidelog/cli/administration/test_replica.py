"""`tidelog replica` and `tidelog cluster restart-order`: what they show."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli.administration.cluster import _show as show_status
from tidelog.cli.administration.cluster import _show_order
from tidelog.cli.administration.replica import _show, _show_list


def form(**fields: Any) -> Any:
    return {
        "stream": "s", "partition": 0, "broker": "b1", "leads": False, "in_sync": True, "state": "in sync",
        "reason": None, "leader_epoch": 3, "log_start_offset": 0, "log_end_offset": 90, "high_watermark": 80,
        "lag_records": 10, "lag_bytes": 512, "lag_s": 2.5, "bytes_on_disk": 5000, "quarantined": 0, **fields,
    }  # fmt: skip


UNKNOWN = form(
    broker="b2", in_sync=False, state="unknown", leader_epoch=None, log_start_offset=None, log_end_offset=None,
    high_watermark=None, lag_records=None, lag_bytes=None, lag_s=None, bytes_on_disk=None, quarantined=None,
)  # fmt: skip
FAILED = form(broker="b3", state="failed", reason="its disk [EIO]", quarantined=2)


def test_the_list_has_a_row_for_each_and_the_reasons_below(capsys: pytest.CaptureFixture[str]) -> None:
    _show_list({"replicas": [form(), UNKNOWN, FAILED], "unanswered": ["b2"]})
    out = capsys.readouterr().out
    row = next(line for line in out.splitlines() if "b1" in line)
    for shown in ("s/0", "in sync", "90", "10", "2.5"):
        assert shown in row
    assert next(line for line in out.splitlines() if "unknown" in line).count("?") == 5
    assert "s/0 on b3: its disk [EIO]\n" in out
    assert "without an answer: b2\n" in out


def test_a_replica_is_described_with_all_that_is_known(capsys: pytest.CaptureFixture[str]) -> None:
    _show({"replicas": [form(leads=True, state="leading"), UNKNOWN, FAILED], "unanswered": []})
    out = capsys.readouterr().out
    assert "b1  leading, leader, in LeaderEpoch 3\n" in out
    assert "log from offset 0 to 90, last known committed offset 80" in out
    assert "b2  unknown, not in the ISR, in LeaderEpoch ?\n" in out
    assert "behind the leader: ? records, ?, ? s\n" in out
    assert "its disk [EIO]\n" in out
    assert "2 times records went into its quarantine\n" in out


def test_the_restart_order_names_obstacles_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    verdict: Any = {
        "broker": "b1", "may_restart": False, "is_controller": True, "leaders": 2, "replicas": 5,
        "waits_for": ["b2 is not alive: one broker at a time"], "costs": ["offline while it is down: 1 (one/0)"],
    }  # fmt: skip
    _show_order([verdict])
    out = capsys.readouterr().out
    assert "b1: b2 is not alive: one broker at a time\n" in out
    assert "b1: offline while it is down: 1 (one/0)\n" in out


def test_the_status_shows_the_worst_lags(capsys: pytest.CaptureFixture[str]) -> None:
    found: Any = {
        "cluster_id": "c", "controller": None, "generation": 1, "config": {}, "brokers": [], "streams": 1,
        "partitions": 1, "unclean_elections": 0, "offline_partitions": 0, "under_replicated": 0,
        "lags": [
            {"stream": "s", "partition": 3, "broker": "b2", "leader": "b1", "lag_records": 12345,
             "lag_bytes": 2_000_000, "lag_s": 34.6},
        ],
    }  # fmt: skip
    show_status(found)
    assert "behind: s/3 on b2, 12,345 records (2.0 MB) and 35 s behind b1\n" in capsys.readouterr().out
