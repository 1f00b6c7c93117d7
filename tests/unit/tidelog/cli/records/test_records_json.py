"""Records as JSON lines: printed records can be published again."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.records.records_json import Parsed, from_json, to_json
from tidelog.client.base.read_positions import AtTime
from tidelog.client.base.records import Record
from wire.batch import decode_headers, encode_headers

bytes_or_none = st.none() | st.binary(max_size=20) | st.text(max_size=10).map(str.encode)


@given(bytes_or_none, bytes_or_none, st.dictionaries(st.text(max_size=5), st.binary(max_size=5), max_size=2))
def test_printed_records_can_be_published(key: bytes | None, value: bytes | None, headers: dict[str, bytes]) -> None:
    line = to_json(Record("s", 1, 2, 1_700_000_000_123_456_789, key, value, headers))
    assert from_json(line.encode()) == Parsed(value, key, {**headers}, AtTime(1_700_000_000_123_456_789))


@pytest.mark.parametrize("values", [[b"1", b"2"], [b"1", b"\xff"]])
def test_several_values_of_a_header_are_a_list(values: list[bytes]) -> None:
    headers = decode_headers(encode_headers({"one": b"0", "h": values}))
    line = to_json(Record("s", 1, 2, 10**18, None, b"v", headers))
    assert from_json(line.encode()).headers == {"one": b"0", "h": values}


def test_lists_of_headers_are_their_values() -> None:
    parsed = from_json(b'{"value": "v", "headers": {"several": ["1", "2"], "none": []}}')
    assert parsed.headers == {"several": [b"1", b"2"], "none": []}


def test_a_text_is_the_very_time_and_a_number_is_ns() -> None:
    assert from_json(b'{"value": "v", "timestamp": "1970-01-01T00:00:01Z"}').timestamp == AtTime(10**9)
    assert from_json(b'{"value": "v", "timestamp": 1700000000123456789}').timestamp == 1_700_000_000_123_456_789


def test_the_form_is_the_documented_one() -> None:
    record = Record("flights", 1, 7, 10**9, b"AA", "é".encode(), {"h": b"v"})
    assert json.loads(to_json(record)) == {
        "stream": "flights",
        "partition": 1,
        "offset": 7,
        "timestamp": "1970-01-01T00:00:01.000000000Z",
        "key": "AA",
        "value": "é",
        "headers": {"h": "v"},
    }
    binary = json.loads(to_json(record._replace(value=b"\xff")))
    assert (binary["encoding"], binary["value"], binary["key"]) == ("base64", "/w==", "QUE=")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (b'{"value": "v"}', b"v"),
        (b'{"value": null, "key": "k"}', None),
        (b'{"value": {"a": [1, 2]}}', b'{"a":[1,2]}'),
        (b'{"value": [1.5, null, "\xc3\xa9"]}', b'[1.5,null,"\xc3\xa9"]'),
    ],
)
def test_objects_and_lists_are_stored_as_json(line: bytes, value: bytes | None) -> None:
    assert from_json(line).value == value


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"nonsense", "no JSON"),
        (b"[1]", 'no object with a "value"'),
        (b'{"key": "k"}', 'no object with a "value"'),
        (
            b'{"value": "v", "keey": "k"}',
            '"keey" is no field (did you mean "key"?); the fields are value,',
        ),
        (b'{"Value": "v"}', '"Value" is no field (did you mean "value"?)'),
        (b'{"value": "v", "xyz": 1}', '"xyz" is no field; the fields are'),
        (b'{"value": "!", "encoding": "base64"}', "base64 does not decode"),
        (b'{"value": "v", "encoding": "rot13"}', "rot13"),
        (b'{"value": "v", "timestamp": "noon"}', "'noon' is neither"),
        (b'{"value": "v", "timestamp": 1700000000}', "1700000000 is no plausible time in ns"),
        (b'{"value": "v", "timestamp": 1700000000.5}', "1700000000.5 is neither"),
        (b'{"value": "v", "headers": [1]}', "headers"),
        (b'{"value": 5}', '"value" is 5, which is no text; give it as text, such as "value": "..."'),
        (b'{"value": true}', '"value" is true, which is no text'),
        (b'{"value": NaN}', "NaN is no JSON value"),
        (b'{"value": [1e400]}', "not JSON compliant"),
        (b'{"value": "v", "key": 5}', '"key" is 5, which is no text'),
        (b'{"value": "v", "key": {"id": 5}}', '"key" is {"id": 5}, which is no text'),
        (b'{"value": "v", "headers": {"h": 3}}', '"h" is 3, which is no text'),
        (b'{"value": {"a": 1}, "encoding": "base64"}', '"value" is {"a": 1}, which is no text'),
    ],
)
def test_lines_that_are_no_record_say_why(line: bytes, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        from_json(line)
