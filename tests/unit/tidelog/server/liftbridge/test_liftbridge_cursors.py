"""What a stored cursor of a Liftbridge client says, which any client that may write cursors may have written."""

from __future__ import annotations

import json

import pytest

from tidelog.server.liftbridge.stream_calls import NEVER_SET, _offset

LIVES = {"incarnation": 3, "partition_incarnation": 5}


def test_an_offset_of_these_lives() -> None:
    assert _offset(json.dumps({**LIVES, "offset": 7}).encode(), LIVES) == 7
    assert _offset(json.dumps({**LIVES, "offset": NEVER_SET}).encode(), LIVES) == NEVER_SET


@pytest.mark.parametrize("offset", [1 << 63, -2, 7.0, True, "7", None])
def test_what_is_no_offset_is_none(offset: object) -> None:
    assert _offset(json.dumps({**LIVES, "offset": offset}).encode(), LIVES) == NEVER_SET


@pytest.mark.parametrize("value", [b"", b"7", b"[]", b"{}", b"\xff", b'{"incarnation": 3, "partition_incarnation": 5}'])
def test_what_was_not_written_here_is_none(value: bytes) -> None:
    assert _offset(value, LIVES) == NEVER_SET


def test_an_offset_of_another_life_of_the_partition_is_none() -> None:
    assert _offset(json.dumps({**LIVES, "partition_incarnation": 4, "offset": 7}).encode(), LIVES) == NEVER_SET
