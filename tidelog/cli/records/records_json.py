"""Records as lines of JSON: `subscribe --json` prints them, `publish --format jsonl` takes them.

    {"stream": "s", "partition": 0, "offset": 12, "timestamp": "2026-01-31T12:00:00.000000000Z", "key": "k", "value":
    "v",
     "headers": {"h": "x", "several": ["1", "2"]}}

Key, value and header values are text; a header with several values is a list of them. When any of them is not UTF-8,
all of them are base64 and the line has `"encoding": "base64"`. A null key or value is null. On input only
`value` is needed; `stream`, `partition` and `offset` are not looked at; a field that is none of these is refused, for
it may be a misspelled one; a value that is an object or a list stands for its own compact JSON; `msg_id` is the message
id, which is printed as the header that it becomes. A number, true or false is refused, as a value, a key, a header or
an id: several texts spell the same number, and a key must be the very bytes that other publishers of that key send.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from tidelog.cli.terminal.shown import plain_json
from tidelog.client.base.exceptions import BadRequest
from tidelog.client.base.read_positions import AtTime, UnclearTime, timestamp_from_text, timestamp_ns, timestamp_to_text
from tidelog.client.base.records import Record

_FIELDS = ("value", "key", "headers", "timestamp", "msg_id", "encoding", "stream", "partition", "offset")


class Parsed(NamedTuple):
    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes | list[bytes]]
    timestamp: int | AtTime | None
    msg_id: bytes | None = None


def to_json(record: Record) -> str:
    out: dict[str, Any] = {
        "stream": record.stream,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": timestamp_to_text(record.timestamp),
    }
    try:
        out["key"] = None if record.key is None else record.key.decode()
        out["value"] = None if record.value is None else record.value.decode()
        out["headers"] = _headers(record, bytes.decode)
    except UnicodeDecodeError:
        out["key"] = _base64(record.key)
        out["value"] = _base64(record.value)
        out["headers"] = _headers(record, _base64)
        out["encoding"] = "base64"
    return plain_json(json.dumps(out, ensure_ascii=False))


def headers_to_json(record: Record) -> str:
    """Returns the headers as an object of text; a byte that is no UTF-8 becomes \\xff."""
    return plain_json(
        json.dumps(_headers(record, lambda value: value.decode(errors="backslashreplace")), ensure_ascii=False)
    )


def _headers(record: Record, text_of: Callable[[bytes], str | None]) -> dict[str, Any]:
    values: dict[str, list[str | None]] = {}
    for name, value in record.header_items:
        values.setdefault(name, []).append(text_of(value))
    return {name: found[0] if len(found) == 1 else found for name, found in values.items()}


def from_json(line: bytes) -> Parsed:
    """Parses a line. Raises ValueError that names its fault."""
    try:
        found = json.loads(line, parse_constant=_no_json)
    except ValueError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError('it is no object with a "value"')
    for name in found:
        if name not in _FIELDS:
            raise ValueError(_unknown(name))
    if "value" not in found:
        raise ValueError('it is no object with a "value"')
    encoding = found.get("encoding")
    if encoding not in (None, "base64"):
        raise ValueError(f'"encoding" is {encoding!r}, not "base64"')
    as_base64 = encoding == "base64"
    headers = found.get("headers") or {}
    if not isinstance(headers, dict):
        raise ValueError('"headers" is no object')
    value = found["value"]
    if isinstance(value, (dict, list)) and not as_base64:
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Parsed(
        _bytes("value", value, as_base64),
        _bytes("key", found.get("key"), as_base64),
        {name: _header(name, value, as_base64) for name, value in headers.items()},
        _timestamp(found.get("timestamp")),
        _bytes("msg_id", found.get("msg_id"), as_base64),
    )


def _unknown(name: str) -> str:
    nearest = difflib.get_close_matches(name.lower(), _FIELDS, 1)
    meant = f' (did you mean "{nearest[0]}"?)' if nearest else ""
    return f"{json.dumps(name)[:80]} is no field{meant}; the fields are {', '.join(_FIELDS)}"


def _no_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")


def _header(name: str, value: Any, as_base64: bool) -> bytes | list[bytes]:
    if isinstance(value, list):
        return [_bytes(name, one, as_base64) or b"" for one in value]
    return _bytes(name, value, as_base64) or b""


def _bytes(name: str, value: Any, as_base64: bool) -> bytes | None:
    if value is None:
        return None
    if not isinstance(value, str):
        shown = json.dumps(value, ensure_ascii=False)
        raise ValueError(f'"{name}" is {shown[:80]}, which is no text; give it as text, such as "{name}": "..."')
    if not as_base64:
        return value.encode("utf-8", "surrogatepass")
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"its base64 does not decode ({error})") from None


def _timestamp(value: Any) -> int | AtTime | None:
    """Returns the time. A text is exactly the time that it names; a number must be plausible as ns."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        try:
            return timestamp_ns(value)
        except BadRequest:
            raise ValueError(
                f'"timestamp" {value} is no plausible time in ns since 1970; seconds, ms and µs are not taken, ISO-8601'
                " text is"
            ) from None
    try:
        return AtTime(timestamp_from_text(value))
    except UnclearTime as unclear:
        raise ValueError(f'"timestamp" {unclear}') from None
    except (TypeError, ValueError):
        raise ValueError(f'"timestamp" {value!r} is neither ISO-8601 nor ns since 1970') from None


def _base64(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
