"""Amounts with units: what they stand for, and how bytes are shown."""

from __future__ import annotations

import pytest

from wire.notation import BYTES, TIME, Factors, amount, bytes_in_words, port_number


@pytest.mark.parametrize(("text", "port"), [("1", 1), ("7400", 7400), ("007400", 7400), ("65535", 65535)])
def test_digits_name_a_port(text: str, port: int) -> None:
    assert port_number(text) == port


@pytest.mark.parametrize("text", ["", "0", "65536", "0000070000", "-1", "+1", " 1", "1_0", "7²", "٧", "x", "9" * 5000])  # noqa: RUF001
def test_anything_else_names_none(text: str) -> None:
    assert port_number(text) is None


@pytest.mark.parametrize(
    ("text", "factors", "found"),
    [
        ("7d", TIME, 604_800_000),
        ("90s", TIME, 90_000),
        ("15 m", TIME, 900_000),
        ("2h", TIME, 7_200_000),
        ("250ms", TIME, 250),
        ("1.5s", TIME, 1500),
        ("0d", TIME, 0),
        ("10GB", BYTES, 10_000_000_000),
        ("512KiB", BYTES, 524_288),
        ("512kib", BYTES, 524_288),
        ("3 MB", BYTES, 3_000_000),
        ("1.5GiB", BYTES, 1_610_612_736),
        ("7B", BYTES, 7),
        ("1TiB", BYTES, 1 << 40),
    ],
)
def test_an_amount(text: str, factors: Factors, found: int) -> None:
    assert amount(text, factors) == found


@pytest.mark.parametrize(
    ("text", "factors"),
    [
        ("7", TIME),
        ("7 days", TIME),
        ("7w", TIME),
        ("7M", BYTES),
        ("7K", BYTES),
        ("7d", BYTES),
        ("7GB", TIME),
        ("-7d", TIME),
        ("d", TIME),
        ("", TIME),
        ("0.0001ms", TIME),
        ("1.5B", BYTES),
        ("1e3s", TIME),
        ("٣d", TIME),
        ("9" * 19 + "d", TIME),
    ],
)
def test_what_is_no_amount(text: str, factors: Factors) -> None:
    assert amount(text, factors) is None


@pytest.mark.parametrize(
    ("count", "words"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_822_720, "1.8 MB"),
        (35_100_000, "35.1 MB"),
        (99_940_000, "99.9 MB"),
        (99_960_000, "100 MB"),
        (999_600_000, "1.0 GB"),
        (79_900_000_000, "79.9 GB"),
        (5 * 10**15, "5000 TB"),
    ],
)
def test_bytes_in_words(count: int, words: str) -> None:
    assert bytes_in_words(count) == words
