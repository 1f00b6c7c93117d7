"""Mutants: production code with another text in place of one in a function's source, compiled and patched in memory."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Edit:
    """Another text in place of one in a function's source."""

    owner: Any
    name: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Mutant:
    name: str
    edits: tuple[Edit, ...]
    scenario: str | None = None
    """Scenario in which only the broken rule prevents a loss: the mutant is hunted in runs of that scenario."""

    @contextmanager
    def applied(self) -> Iterator[None]:
        targets = {(id(edit.owner), edit.name): (edit.owner, edit.name) for edit in self.edits}
        before = [(owner, name, inspect.getattr_static(owner, name)) for owner, name in targets.values()]
        try:
            for owner, name, found in before:
                setattr(owner, name, self._changed(owner, name, found))
            yield
        finally:
            for owner, name, found in before:
                setattr(owner, name, found)

    def _changed(self, owner: Any, name: str, found: Any) -> Any:
        is_property = isinstance(found, property)
        function = found.fget if is_property else found
        source = textwrap.dedent(inspect.getsource(function))
        for edit in self.edits:
            if edit.owner is owner and edit.name == name:
                if edit.before not in source:
                    raise LookupError(f"{name} has no {edit.before!r} any more: bring mutant {self.name!r} up to date")
                source = source.replace(edit.before, edit.after, 1)
        made: dict[str, Any] = {}
        exec(compile(source, f"<mutant of {name}>", "exec"), vars(inspect.getmodule(function)), made)
        return made[name]
