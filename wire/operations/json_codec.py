"""JSON as typed values, and back: the one codec of requests and answers of the API.

A kind is the type that a value must have:

- `str`, `int`, `float`, `bool`, `Any`; a NewType of those; `K | None`;
- `list[K]`, `dict[str, K]`;
- a TypedDict: an object with these fields; the ones marked NotRequired may be missing, and all of them
  with `total=False`;
- a dataclass: an object of which an instance is made. A field with a default may be left out, or be null.

Fields that a kind does not name are tolerated, because a newer peer may send them: a TypedDict keeps them, a dataclass
drops them. Anything else is refused with a sentence that names the field and the value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, NotRequired, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from wire.echo import echo
from wire.turns import Steps, pieces

_T = TypeVar("_T")
_Decode: TypeAlias = Callable[[Any], Any]

MAX_DEPTH = 32
"""Objects and lists inside one another: no message needs more than a few."""
MAX_BITS = 64
"""Bits of a whole number, without its sign."""
_SMALL = 32
"""Entries of an object or a list that are encoded at once."""
_CHECKED = 16
"""The same, that are checked at once."""
_LOOKED_INTO = 500
"""Values that are looked into before `Steps` yield."""
_LOOK_CHARACTERS = 50
"""That are encoded in the time of a look."""
_DECODED_CHARACTERS = 1000
"""That are read in the time of a look."""
MAX_SHOWN = 80
"""Characters of a wrong value that a refusal shows."""

_SIMPLE: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    NoneType: "null",
}


def decode(kind: type[_T], data: bytes, what: str) -> _T:
    """Empty data stand for `{}`. Raises ValueError with a sentence about `what`, such as "the request"."""
    value = _loaded(data, what)
    looking = _looking_for_depth(value)
    while True:
        try:
            next(looking)
        except StopIteration as end:
            if end.value:
                raise ValueError(_too_deep(what)) from None
            return checked(kind, value, what)


def decoding(kind: type[_T], data: bytes, what: str) -> Steps[_T]:
    """`decode` of a TypedDict that may be large: of which some fields are long."""
    value = _loaded(data, what)
    yield 1 + len(data) // _DECODED_CHARACTERS
    if (yield from _looking_for_depth(value)):
        raise ValueError(_too_deep(what))
    fields_of: Any = get_type_hints(kind)
    long = {}
    if isinstance(value, dict):
        long = {
            name: entries
            for name, entries in value.items()
            if isinstance(entries, dict | list)
            and len(entries) > _CHECKED
            and get_origin(fields_of.get(name)) is type(entries)
        }
        value = {name: type(entries)() if name in long else entries for name, entries in value.items()}
    made: Any = checked(kind, value, what)
    for name, entries in long.items():
        decode_entry = _decoder(get_args(fields_of[name])[-1])
        for key, entry in entries.items() if isinstance(entries, dict) else enumerate(entries):
            try:
                decoded = decode_entry(entry)
            except _Wrong as wrong:
                within = wrong.within(str(key) if isinstance(entries, dict) else f"[{key}]").within(name)
                raise ValueError(within.sentence(what)) from None
            if isinstance(entries, dict):
                made[name][key] = decoded
            else:
                made[name].append(decoded)
            yield 1 + _count(entry) // 2
    found: _T = made
    return found


def _count(value: Any) -> int:
    """Values in it, two levels deep."""
    if not isinstance(value, dict | list):
        return 0
    inner = value.values() if isinstance(value, dict) else value
    return len(value) + sum(len(each) for each in inner if isinstance(each, dict | list))


def _loaded(data: bytes, what: str) -> Any:
    try:
        return json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from None


def _too_deep(what: str) -> str:
    return f"{what} is nested more than {MAX_DEPTH} deep"


def _looking_for_depth(value: object) -> Steps[bool]:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[object] = []
        for entries in pieces(level, _LOOKED_INTO):
            for entry in entries:
                if isinstance(entry, dict):
                    inner += entry.values()
                elif isinstance(entry, list):
                    inner += entry
            yield 1 + len(entries) // 5
        if not inner:
            return False
        level = inner
    return True


def checked(kind: type[_T], value: object, what: str) -> _T:
    """A value of that kind, made of what `json.loads` gave. Raises ValueError with a sentence about `what`."""
    hashable: Any = kind
    try:
        made: _T = _decoder(hashable)(value)
    except _Wrong as wrong:
        raise ValueError(wrong.sentence(what)) from None
    return made


def encode(value: object) -> bytes:
    """The JSON of a dataclass or a TypedDict."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {entry.name: getattr(value, entry.name) for entry in fields(value)}
    return json.dumps(value).encode()


def encoding(value: Any) -> Steps[bytes]:
    """`encode` of a TypedDict that may be large. Nothing of it may change meanwhile."""
    parts: list[str] = []
    yield from _write(value, parts)
    return "".join(parts).encode()


def _write(value: Any, parts: list[str]) -> Steps[None]:
    if not _is_large(value):
        yield _written(json.dumps(value), parts)
        return
    is_object = isinstance(value, dict)
    opened, closed = "{}" if is_object else "[]"
    separator = opened
    for piece in pieces(value.items() if is_object else value, _SMALL):
        if any(_is_large(each[1] if is_object else each) for each in piece):
            for each in piece:
                key = f"{json.dumps(str(each[0]))}: " if is_object else ""
                parts.append(separator + key)
                yield from _write(each[1] if is_object else each, parts)
                separator = ", "
        else:
            text = json.dumps(dict(piece) if is_object else piece)
            parts.append(separator)
            yield _written(text[1:-1], parts)
            separator = ", "
    parts.append(closed)


def _written(text: str, parts: list[str]) -> int:
    """Returns the looks that it took."""
    parts.append(text)
    return 1 + len(text) // _LOOK_CHARACTERS


def _is_large(value: Any) -> bool:
    """It, or something in it, has more than _SMALL entries."""
    if not isinstance(value, dict | list):
        return False
    return len(value) > _SMALL or any(map(_is_large, value.values() if isinstance(value, dict) else value))


def in_words(kind: Any) -> str:
    """Describes a kind: "a text", "a whole number or null", "a list of texts"."""
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " or ".join(in_words(argument) for argument in arguments)
    if origin is list:
        return f"a list, each of it {in_words(arguments[0])}"
    if origin is dict:
        return f"an object, each value {in_words(arguments[1])}"
    return _SIMPLE.get(kind, "anything" if kind is Any else "an object")


class _Wrong(Exception):
    """`problem` is read after the path of the value; the path grows while the refusal travels outwards."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.path = ""

    def within(self, step: str) -> _Wrong:
        self.path = step + (self.path if self.path.startswith("[") or not self.path else f".{self.path}")
        return self

    def sentence(self, what: str) -> str:
        return f"{what}'s {self.path} {self.problem}" if self.path else f"{what} {self.problem}"


def _not(value: object, kind: Any) -> _Wrong:
    try:
        shown = json.dumps(value, default=repr)
    except (ValueError, RecursionError):
        shown = echo(value)
    if len(shown) > MAX_SHOWN:
        shown = f"{shown[:MAX_SHOWN]}…"
    return _Wrong(f"is {shown}, not {in_words(kind)}")


@cache
def _decoder(kind: Any) -> _Decode:
    while hasattr(kind, "__supertype__"):
        kind = kind.__supertype__
    origin = get_origin(kind)
    if kind is Any:
        return lambda value: value
    if kind in _SIMPLE:
        return _simple(kind)
    if origin in (Union, UnionType):
        return _optional(kind)
    if origin is list:
        return _list(kind)
    if origin is dict:
        return _dict(kind)
    if is_typeddict(kind):
        return _typed_dict(kind)
    if is_dataclass(kind):
        return _dataclass(kind)
    raise TypeError(f"{kind!r} is no kind of JSON value that this codec knows")


def _simple(kind: type[Any]) -> _Decode:
    kinds = (int, float) if kind is float else (kind,)

    def run(value: Any) -> Any:
        if type(value) not in kinds:  # a bool is no whole number
            raise _not(value, kind)
        if type(value) is int and value.bit_length() > MAX_BITS:
            raise _Wrong(f"is {echo(value)}, beyond {MAX_BITS} bits")
        return value

    return run


def _optional(kind: Any) -> _Decode:
    (inner,) = (argument for argument in get_args(kind) if argument is not NoneType)
    decode_inner = _decoder(inner)

    def run(value: Any) -> Any:
        if value is None:
            return None
        try:
            return decode_inner(value)
        except _Wrong as wrong:
            raise wrong if wrong.path else _not(value, kind) from None

    return run


def _list(kind: Any) -> _Decode:
    (inner,) = get_args(kind)
    decode_inner = _decoder(inner)

    def run(value: Any) -> Any:
        if not isinstance(value, list):
            raise _not(value, kind)
        made = []
        for number, entry in enumerate(value):
            try:
                made.append(decode_inner(entry))
            except _Wrong as wrong:
                raise wrong.within(f"[{number}]") from None
        return made

    return run


def _dict(kind: Any) -> _Decode:
    decode_inner = _decoder(get_args(kind)[1])

    def run(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _not(value, kind)
        made = {}
        for key, entry in value.items():
            try:
                made[key] = decode_inner(entry)
            except _Wrong as wrong:
                raise wrong.within(key) from None
        return made

    return run


def _typed_dict(kind: Any) -> _Decode:
    hints = get_type_hints(kind)
    decoders = {name: _decoder(hint) for name, hint in hints.items()}
    # `__required_keys__` does not see through annotations that are not evaluated.
    marked = get_type_hints(kind, include_extras=True)
    required = {name for name, hint in marked.items() if kind.__total__ and get_origin(hint) is not NotRequired}

    def run(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _not(value, kind)
        made = dict(value)
        for name, decode_field in decoders.items():
            if name not in value:
                if name in required:
                    raise _Wrong(f"is missing; it must be {in_words(hints[name])}").within(name)
                continue
            try:
                made[name] = decode_field(value[name])
            except _Wrong as wrong:
                raise wrong.within(name) from None
        return made

    return run


def _dataclass(kind: Any) -> _Decode:
    hints = get_type_hints(kind)
    decoders = {entry.name: _decoder(hints[entry.name]) for entry in fields(kind)}
    required = {entry.name for entry in fields(kind) if entry.default is MISSING and entry.default_factory is MISSING}

    def run(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _not(value, kind)
        made: dict[str, Any] = {}
        for name, decode_field in decoders.items():
            given = value.get(name)
            if given is None and name not in required:
                continue
            if name not in value:
                raise _Wrong(f"is missing; it must be {in_words(hints[name])}").within(name)
            try:
                made[name] = decode_field(given)
            except _Wrong as wrong:
                raise wrong.within(name) from None
        return kind(**made)

    return run
