"""`tidelog broker`: what it shows of the brokers of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli.administration.broker import _show_list


def listed(broker: str, **fields: Any) -> Any:
    return {
        "id": broker, "state": "alive", "dead_for_s": None, "draining": False, "zone": "", "tags": [], "replicas": 4,
        "leaders": 2, "bytes_on_disk": 4_600_000, "voter": True, "is_controller": False, **fields,
    }  # fmt: skip


def test_the_list_has_a_row_for_each_broker(capsys: pytest.CaptureFixture[str]) -> None:
    _show_list(
        [
            listed("b1", is_controller=True, zone="eu-1a", tags=["ssd", "eu"]),
            listed("b2", state="dead", dead_for_s=3725.5, leaders=0, bytes_on_disk=None, voter=False),
        ]
    )
    first, second = (line for line in capsys.readouterr().out.splitlines() if "b1" in line or "b2" in line)
    for shown in ("alive", "eu-1a", "ssd eu", "4.6 MB", "yes"):
        assert shown in first
    for shown in ("dead for 1:02:05", "?", "no"):
        assert shown in second
