"""Refusals as they travel, also malformed ones of a peer."""

from __future__ import annotations

from typing import Any

import pytest

from wire.error_details import LEADER_EPOCH, RETRY_AFTER_MS, whole_number
from wire.errors import MAX_HEADER_CHARACTERS, MOST_RETRY_AFTER, Code, TidelogError

MALFORMED = ["", "x", "-1", "1.5", " 7", "\u0663", "\u00b2", "9" * 19, "9" * 5000]
"""The last but one is above 64 bits; of the last one `int` raises ValueError."""


@pytest.mark.parametrize("text", MALFORMED)
def test_a_text_that_is_no_whole_number_is_none(text: str) -> None:
    assert whole_number(text) is None
    assert TidelogError(Code.BACKPRESSURE, "wait", {"retry_after_ms": text}).detail(RETRY_AFTER_MS) is None


def test_whole_numbers_are_read() -> None:
    assert [whole_number(text) for text in ("0", "7", "007", str((1 << 63) - 1))] == [0, 7, 7, (1 << 63) - 1]
    assert TidelogError(Code.BACKPRESSURE, "wait").detail(RETRY_AFTER_MS) is None


def test_a_refusal_fits_any_message() -> None:
    headers = TidelogError(Code.INTERNAL, "m" * 100_000, {"leader": "l" * 100_000}).to_headers()
    assert {len(headers[name]) for name in ("Tidelog-Message", "Tidelog-Leader")} == {MAX_HEADER_CHARACTERS}


@pytest.mark.parametrize(
    ("text", "seconds"), [("50", 0.05), ("0", 0.0), ("", None), ("soon", None), (str(1 << 62), MOST_RETRY_AFTER)]
)
def test_a_pause_that_a_peer_asks_for_is_bounded(text: str, seconds: float | None) -> None:
    assert TidelogError(Code.BACKPRESSURE, "wait", {"retry_after_ms": text}).retry_after == seconds


@pytest.mark.parametrize("details", [None, [], ["a"], "text", 5, {"leader_epoch": 7}, {"leader_epoch": None}])
def test_details_in_json_are_texts_whatever_they_were(details: Any) -> None:
    error = TidelogError.from_json({"code": "FENCED_LEADER_EPOCH", "message": "old", "details": details})
    assert all(isinstance(text, str) for text in error.details.values())
    assert error.detail(LEADER_EPOCH) == (7 if details == {"leader_epoch": 7} else None)
