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

_T = TypeVar("_T")
_Decode: TypeAlias = Callable[[Any], Any]

MAX_DEPTH = 32
"""Objects and lists inside one another: no message needs more than a few."""
MAX_BITS = 64
"""Bits of a whole number, without its sign."""
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
    try:
        value = json.loads(data) if data else {}
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is not JSON: {error}") from None
    if _is_deep(value):
        raise ValueError(f"{what} is nested more than {MAX_DEPTH} deep")
    return checked(kind, value, what)


def _is_deep(value: object) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        inner: list[object] = []
        for entry in level:
            if isinstance(entry, dict):
                inner += entry.values()
            elif isinstance(entry, list):
                inner += entry
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
