"""Ports as people write them."""

from __future__ import annotations

import pytest

from wire.ports import port_number


@pytest.mark.parametrize(("text", "port"), [("1", 1), ("7400", 7400), ("007400", 7400), ("65535", 65535)])
def test_digits_name_a_port(text: str, port: int) -> None:
    assert port_number(text) == port


@pytest.mark.parametrize("text", ["", "0", "65536", "0000070000", "-1", "+1", " 1", "1_0", "7²", "٧", "x", "9" * 5000])  # noqa: RUF001
def test_anything_else_names_none(text: str) -> None:
    assert port_number(text) is None
