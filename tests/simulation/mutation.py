"""Mutants: production code with another text in place of one in a function's source, compiled and patched in memory."""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Edit:
    """Another text in place of one in a function's source."""

    target: Any
    """A function, a method or a property."""
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    edits: tuple[Edit, ...]
    rules: tuple[str, ...]
    """Numbers of the rules that it breaks (`scripts/reference/rules.py`)."""
    scenario: str | None = None
    """Scenario in which only the broken rule prevents a loss: the mutant is hunted in runs of that scenario."""
    in_transactions: bool = False
    """It is hunted in runs with transactions."""
    in_repartitions: bool = False
    """It is hunted in runs with repartitions."""
    in_reassignments: bool = False
    """It is hunted in runs with reassignments."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        patched: list[tuple[Any, str, Any]] = []
        try:
            for target in dict.fromkeys(edit.target for edit in self.edits):
                changed = self._changed(target)
                for owner, name in _places(target):
                    patched.append((owner, name, inspect.getattr_static(owner, name)))
                    setattr(owner, name, changed)
            yield
        finally:
            for owner, name, found in patched:
                setattr(owner, name, found)

    def _changed(self, target: Any) -> Any:
        function = _function(target)
        source = textwrap.dedent(inspect.getsource(function))
        for edit in self.edits:
            if edit.target is target:
                if edit.before not in source:
                    raise LookupError(
                        f"{function.__name__} has no {edit.before!r} any more: bring mutant {self.name!r} up to date"
                    )
                source = source.replace(edit.before, edit.after, 1)
        if "super()" in source:  # as in the body of its class
            body = textwrap.indent(source, "    ")
            source = f"def made(__class__):\n{body}\n    return {function.__name__}\n"
        made: dict[str, Any] = {}
        exec(compile(source, f"<mutant of {function.__name__}>", "exec"), vars(inspect.getmodule(function)), made)
        if "made" in made:
            return made["made"](_places(target)[0][0])
        return made[function.__name__]


def _function(target: Any) -> Any:
    return target.fget if isinstance(target, property) else target


def _places(target: Any) -> list[tuple[Any, str]]:
    """(owner, name) of a target: its class, or all modules that define or import it."""
    *classes, name = _function(target).__qualname__.split(".")
    if not classes:
        return [(module, name) for module in [*sys.modules.values()] if vars(module).get(name) is target]
    owner: Any = inspect.getmodule(_function(target))
    for each in classes:
        owner = getattr(owner, each)
    return [(owner, name)]
