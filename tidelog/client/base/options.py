"""Options of producers and consumers.

Each is one field of a frozen dataclass, which has its type, default and check. The docstring of the class lists the
meaning of each. `help` and the tables of docs/ are made of that."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import Field, field, fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeAlias, TypeVar, cast, get_type_hints

_T = TypeVar("_T")
_Function = TypeVar("_Function", bound=Callable[..., Any])

Check: TypeAlias = Callable[[str, Any], object]
"""Called with the name and the value of an option. Raises BadRequest, which names them and the remedy."""
_ENTRY = re.compile(r"^- `(\w+)`: (.*?)(?=\n- `|\n\n|\Z)", re.MULTILINE | re.DOTALL)


def option(default: _T, check: Check | None = None) -> _T:
    """Returns a field of a configuration. `check` is not asked where the default is None and the value, too."""
    return field(default=default, metadata={"check": check})


def check_options(config: Any) -> None:
    """Checks each option by itself. Raises BadRequest."""
    for each in fields(config):
        value = getattr(config, each.name)
        check = each.metadata["check"]
        if check is not None and (value is not None or each.default is not None):
            check(each.name, value)


def options(config: type[Any]) -> dict[str, tuple[Field[Any], str]]:
    """Returns the options of a configuration by name, each with its meaning, wrapped as in the docstring."""
    docs = "\n\n".join(inspect.cleandoc(each.__doc__ or "") for each in reversed(config.__mro__[:-1]))
    meanings = dict(_ENTRY.findall(docs))
    return {each.name: (each, meanings.get(each.name, "")) for each in fields(config)}


def takes(config: type[Any]) -> Callable[[_Function], _Function]:
    """Gives a function that has the fields of `config` as its `**options` the signature and docstring that says so, and
    a TypeError that names the function, the unknown option and the nearest known one."""

    def document(function: _Function) -> _Function:
        known, types = options(config), get_type_hints(config)
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=types[name])
            for name, (each, _) in known.items()
        ]
        taken = {*known, *(each.name for each in own)}

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs.keys() - taken:
                nearest = "".join(f"; did you mean {each!r}?" for each in get_close_matches(name, taken, 1))
                raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{nearest}")
            return function(*args, **kwargs)

        call.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        listed = "\n".join(f"- `{name}`: {meaning}" for name, (_, meaning) in known.items())
        call.__doc__ = f"{inspect.getdoc(function)}\n\nOptions:\n\n{listed}"
        return cast("_Function", call)

    return document
