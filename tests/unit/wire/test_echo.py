"""Values of others in sentences and log lines."""

from __future__ import annotations

import pytest

from wire.echo import MOST_ECHOED, echo, one_line


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("orders", "'orders'"),
        ("a\nb\x1b", r"'a\nb\x1b'"),
        (b"\xff", r"b'\xff'"),
        (3, "3"),
        ("x" * 100_000, "'" + "x" * (MOST_ECHOED - 1) + "…"),
    ],
)
def test_a_value_is_quoted_and_cut(value: object, shown: str) -> None:
    assert echo(value) == shown


def test_a_number_of_too_many_digits() -> None:
    assert echo(10**5000) == "a number of thousands of digits"


def test_a_value_that_is_nested_too_deep() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert echo(deep) == "a value nested hundreds deep"
    while deep:  # level by level: to free them at once would go as deep
        (deep,) = deep  # type: ignore[assignment]


def test_a_text_stays_one_line() -> None:
    assert one_line("it's plain: ä, 漢") == "it's plain: ä, 漢"
    assert one_line("a\r\n12:00 ERROR b\u2028c\x9b") == r"a\r\n12:00 ERROR b\u2028c\x9b"
    assert one_line("x" * 500, 10) == "x" * 10 + "…"
