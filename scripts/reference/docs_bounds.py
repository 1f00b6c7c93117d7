"""The bounds on what a stranger can send, for the table in docs/reference.md: each `Bound` that a module declares, and
the rows of `bounds.md`, whose limits are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from wire.budget import Bound

ROOT = Path(__file__).resolve().parents[2]
ROWS = Path(__file__).with_name("bounds.md")
ROOMS = ("dataplane", "metadata", "tidelog", "wire")
HEADINGS = 2


def bounds() -> list[tuple[str, ...]]:
    """Returns the cells of each row: what is bounded, limit, module, what the sender hears, counter."""
    rows = [line.strip("| ").split(" | ") for line in ROWS.read_text().splitlines() if line.startswith("|")]
    return sorted([*(_filled(cells) for cells in rows[HEADINGS:]), *_declared()], key=lambda cells: cells[2])


def _filled(cells: list[str]) -> tuple[str, ...]:
    module = _module(cells[2].strip("`"))

    def value(named: re.Match[str]) -> str:
        for other in re.findall(r"((?:\w+\.)+)[A-Z]", named[0]):
            import_module(other.rstrip("."))
        return str(eval(f"f{named[0]!r}", {room: import_module(room) for room in ROOMS} | vars(module)))  # noqa: S307 - our own file

    return tuple(re.sub(r"\{[^}]*\}", value, cell) for cell in cells)


def _declared() -> Iterator[tuple[str, ...]]:
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*.py")):
            where, source = path.relative_to(ROOT).as_posix(), path.read_text()
            for name in re.findall(r"^(\w+)(?:: Final)? = Bound\(", source, re.MULTILINE):
                bound: Bound = getattr(_module(where), name)
                counter = f"`{bound.counter}`" if bound.counter else "none"
                yield bound.what, bound.limits, f"`{where}`", bound.answer, counter


def _module(where: str) -> ModuleType:
    return import_module(where.removesuffix(".py").replace("/", ".").removesuffix(".__init__"))
