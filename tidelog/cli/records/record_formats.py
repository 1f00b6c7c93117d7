"""The output formats of `tidelog subscribe --format`.

    text       PARTITION:OFFSET, time, key and value, with tabs between them
    json       an object, see `tidelog.cli.records.records_json`
    raw        the value alone
    lengths    four bytes that say how long the value is, big-endian, and the value; nothing follows
    template   any text with fields, such as '{partition}:{offset} {key} {value}'

A newline follows each of the others, unless a template ends with \\n or \\0 itself.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, TypeAlias

import click

from tidelog.cli.terminal.shown import Cleaner

if TYPE_CHECKING:
    from tidelog.client.base.records import Record

RecordFormat: TypeAlias = Callable[["Record"], bytes]

_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}
_ENDS = (b"\n", b"\0")


def record_format(text: str, shown_time: Callable[[int], str], clean: Cleaner = bytes) -> RecordFormat:
    """Returns the format. `shown_time`: of ns since 1970; json has UTC. `clean`: applied to keys, values and headers,
    but in json, which escapes them, and lengths, which counts bytes. Raises click.BadParameter."""

    def time(record: Record) -> bytes:
        return shown_time(record.timestamp).encode()

    def key(record: Record) -> bytes:
        return clean(_key(record))

    def value(record: Record) -> bytes:
        return clean(_value(record))

    def line(record: Record) -> bytes:
        return b"%d:%d\t%s\t%s\t%s\n" % (record.partition, record.offset, time(record), key(record), value(record))

    named: dict[str, RecordFormat] = {
        "text": line,
        "json": _json_line,
        "raw": lambda record: value(record) + b"\n",
        "lengths": _counted_value,
    }
    if text in named:
        return named[text]
    if "{" not in text:
        raise click.BadParameter(
            f"{text!r} is neither {', '.join(named)} nor a template with a field, such as '{{offset}} {{value}}'"
        )
    return _template(text, {**_FIELDS, "time": time, "key": key, "value": value}, clean)


def _json_line(record: Record) -> bytes:
    from tidelog.cli.records.records_json import to_json

    return to_json(record).encode() + b"\n"


def _counted_value(record: Record) -> bytes:
    value = _value(record)
    return struct.pack(">I", len(value)) + value


def _template(text: str, fields: Mapping[str, RecordFormat], clean: Cleaner) -> RecordFormat:
    parts: list[bytes | RecordFormat] = []
    try:
        for literal, name, detail, conversion in Formatter().parse(text):
            parts.append(_unescaped(literal).encode())
            if name is not None:
                parts.append(_field(name, detail or "", conversion, fields, clean))
    except ValueError as error:
        raise click.BadParameter(
            f"{text!r}: {error}; a brace that is no field is written twice, {{{{ or }}}}"
        ) from None
    ends = isinstance(parts[-1], bytes) and parts[-1].endswith(_ENDS)
    if not ends:
        parts.append(b"\n")

    def formatted(record: Record) -> bytes:
        return b"".join([part if isinstance(part, bytes) else part(record) for part in parts])

    return formatted


def _unescaped(literal: str) -> str:
    def meant(escape: re.Match[str]) -> str:
        if escape[0] not in _ESCAPES:
            raise click.BadParameter(f"there is no {escape[0]!r}; a template knows {', '.join(_ESCAPES)}")
        return _ESCAPES[escape[0]]

    return re.sub(r"\\.?", meant, literal, flags=re.DOTALL)


def _field(
    name: str, detail: str, conversion: str | None, fields: Mapping[str, RecordFormat], clean: Cleaner
) -> RecordFormat:
    if name == "header" and detail and not conversion:
        return lambda record: clean(b",".join(record.header_values(detail)))
    field = fields.get(name)
    if field is None or detail or conversion:
        known = ", ".join(f"{{{field}}}" for field in fields)
        given = name + (f"!{conversion}" if conversion else "") + (f":{detail}" if detail else "")
        raise click.BadParameter(f"there is no field {{{given}}}; there are {known} and {{header:NAME}}")
    return field


def _key(record: Record) -> bytes:
    return record.key or b""


def _value(record: Record) -> bytes:
    return record.value or b""


def _headers(record: Record) -> bytes:
    from tidelog.cli.records.records_json import headers_to_json

    return headers_to_json(record).encode()


_FIELDS: dict[str, RecordFormat] = {
    "stream": lambda record: record.stream.encode(),
    "partition": lambda record: b"%d" % record.partition,
    "offset": lambda record: b"%d" % record.offset,
    "timestamp": lambda record: b"%d" % record.timestamp,
    "headers": _headers,
}
"""Fields beside `time`, `key` and `value`. `time` is ISO-8601, `timestamp` ns since 1970, `headers` a JSON object; a
null key or value is empty."""
