"""NATS header blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.nats.header_block import decode_headers, encode_headers

NAMES = st.text("abcXYZ019-_", min_size=1, max_size=20)
VALUES = st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"]), max_size=40).map(str.strip)


@given(st.dictionaries(NAMES, VALUES, min_size=1))
def test_decoding_gives_the_encoded_headers(headers: dict[str, str]) -> None:
    decoded, status = decode_headers(encode_headers(headers))
    assert decoded == headers
    assert status is None


@pytest.mark.parametrize(
    ("block", "headers", "status"),
    [
        (b"NATS/1.0 503\r\n\r\n", None, 503),
        (b"NATS/1.0 503 No Responders\r\nNats-Subject: a.b\r\n\r\n", {"Nats-Subject": "a.b"}, 503),
        (b"NATS/1.0\r\nA:b\r\nA:  c \r\nno header\r\n\r\n", {"A": "c"}, None),
        (b"NATS/1.0\r\nA: x:y\r\n\r\n", {"A": "x:y"}, None),
        (b"NATS/1.0\r\nA: \xff\r\n\r\n", {"A": "\N{REPLACEMENT CHARACTER}"}, None),
        (b"NATS/1.0\r\n\r\n", None, None),
        (b"NATS/1.0 " + b"5" * 5000 + b"\r\nA: b\r\n\r\n", {"A": "b"}, None),
    ],
)
def test_blocks_as_servers_and_other_clients_write_them(
    block: bytes, headers: dict[str, str] | None, status: int | None
) -> None:
    assert decode_headers(block) == (headers, status)


@pytest.mark.parametrize("headers", [{"A B": "x"}, {"": "x"}, {"A": "x\r\nPUB evil 0"}, {"Ä": "x"}])
def test_headers_that_would_break_the_protocol_are_refused(headers: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="NATS header"):
        encode_headers(headers)
