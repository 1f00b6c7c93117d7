"""Checks of the arguments that callers give. A refusal names the argument, its value and the remedy."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from numbers import Real
from pathlib import Path
from types import NoneType

from tidelog.client.base.exceptions import BadRequest, typed
from wire.echo import echo
from wire.errors import Code, TidelogError
from wire.layouts import MAX_PARTITIONS, check_partition_count

_MOST_BITS = 1024
"""Bits of a whole number that a sentence can show."""


def bad(message: str) -> BadRequest:
    return BadRequest(Code.BAD_REQUEST, message)


def shown(value: object) -> str:
    """Returns a wrong value and its type, for a sentence."""
    return f"{echo(value):.80} ({type(value).__name__})"


def whole(value: object) -> int | None:
    """Returns any integer type as int, numpy's too; None for other values, for True and False, and for numbers that
    Python does not spell."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)  # type: ignore[arg-type]  # an object without __index__ raises
    except TypeError:
        return None
    return number if number.bit_length() <= _MOST_BITS else None


def check_text(name: str, value: object, example: str) -> None:
    """Raises BadRequest unless the value is text."""
    if not isinstance(value, str):
        raise bad(f"{name}={shown(value)} is not text; give a text such as {example!r}")


def check_number(name: str, value: object, low: float, high: float) -> None:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise bad(f"{name}={shown(value)} is not a number; give one from {low} to {high}")
    try:
        number = float(value)
    except OverflowError:
        number = inf
    if not low <= number <= high:
        raise bad(f"{name}={echo(value)} is outside {low} to {high}")


def check_whole(name: str, value: object, low: int, high: int) -> None:
    number = whole(value)
    if number is None:
        raise bad(f"{name}={shown(value)} is not a whole number; give one from {low} to {high}")
    if not low <= number <= high:
        raise bad(f"{name}={number} is outside {low} to {high}")


def partition_count(value: object) -> int:
    """Returns the number of partitions for a stream. Raises BadRequest, or BadConfig as a broker would."""
    number = whole(value)
    if number is None:
        raise bad(f"partitions={shown(value)} is not a whole number; give one from 1 to {MAX_PARTITIONS}")
    try:
        check_partition_count(number)
    except TidelogError as error:
        raise typed(error) from None
    return number


def check_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise bad(f"{name}={shown(value)} is neither True nor False")


def check_choice(name: str, value: object, choices: Sequence[object]) -> None:
    if value not in [*choices]:  # a list, so that unhashable values are refused as well
        *first, last = map(repr, choices)
        raise bad(f"{name}={value!r} is none of {', '.join(first)} and {last}")


def check_partitioner(name: str, value: object) -> None:
    if value not in ["crc32c", "murmur2"]:
        raise bad(f"{name}={shown(value)} is neither 'crc32c' nor 'murmur2'")


def check_function(name: str, value: object) -> None:
    """Raises BadRequest unless the value can be called and returns what it makes, not an awaitable."""
    if not callable(value):
        raise bad(f"{name}={shown(value)} cannot be called; give a function of one argument, such as json.loads")
    if inspect.iscoroutinefunction(value):
        raise bad(f"{name}={shown(value)} is a coroutine function; give one that returns its result")


def check_mapping(name: str, value: object, example: str) -> None:
    """Raises BadRequest unless the value is a mapping whose keys are text."""
    if not isinstance(value, Mapping):
        raise bad(f"{name}={shown(value)} is not a mapping; give one such as {example}")
    for key in value:
        if not isinstance(key, str):
            raise bad(f"{name} has the key {shown(key)}, which is not text; give keys as in {example}")


def check_list(name: str, value: object, example: str) -> None:
    if not isinstance(value, Sequence) or isinstance(value, (str, bytes, bytearray, memoryview)):
        raise bad(f"{name}={shown(value)} is not a list; give one such as {example}")


def check_texts(name: str, value: object, example: str) -> None:
    """Raises BadRequest unless the value has several texts; one text is not taken for a list of letters."""
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise bad(f"{name}={shown(value)} is not a list of texts; give one such as {example}")


def check_optional_texts(**given: object) -> None:
    """Raises BadRequest unless each is text or None. The error does not show the values: they may be secrets."""
    for name, value in given.items():
        if not isinstance(value, (str, NoneType)):
            raise bad(f"{name} is {type(value).__name__}, not text; give a text, or leave it out")


def check_optional_paths(**given: object) -> None:
    for name, value in given.items():
        if not isinstance(value, (str, Path, NoneType)):
            raise bad(f"{name}={shown(value)} is no file name; give the path of a file, or leave it out")
