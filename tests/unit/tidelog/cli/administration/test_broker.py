"""`tidelog broker`: what it shows of the brokers of a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.cli.administration.broker import _given_up, _show_limits, _show_list, life_in_words


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


def drained(**fields: Any) -> Any:
    return {
        "broker": "b4", "draining": False, "replicas": 3, "leaders": 0, "refusal": "", "voter": False,
        "was_draining": False, "given_up": 0, **fields,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (
            drained(was_draining=True, given_up=2),
            "the drain of b4 is given up; it holds 3 replicas; `tidelog cluster rebalance` gives it its share\n",
        ),
        (drained(), "b4 was not draining; nothing has changed\n"),
        (drained(given_up=2), "b4 was not draining; 2 moves away from it are given up\n"),
    ],
)
def test_a_drain_that_is_given_up_is_told_from_one_that_was_none(
    found: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _given_up(found)
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (drained(), ""),
        (drained(voter=True), "b4 votes in the metadata group: it can be drained, but not removed\n"),
        (drained(voter=True, refusal="b4 is not drained"), "this would be refused: b4 is not drained\n"),
    ],
)
def test_a_plan_ends_with_what_the_drain_cannot_do(found: Any, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    _show_limits(found)
    assert capsys.readouterr().out == said


def test_a_draining_broker_is_shown_as_one() -> None:
    status: Any = {"alive": True, "draining": True}
    assert life_in_words(status) == "alive, [yellow]draining[/]"
    status["draining"] = False
    assert life_in_words(status) == "alive"
