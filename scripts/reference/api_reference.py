"""The API reference as HTML, made by pdoc from the docstrings of what users import.

    python -m scripts.reference.api_reference [FOLDER]

What is not for users has a name that begins with an underscore, or is a constructor of a class that other objects make;
neither is shown.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pdoc
import pdoc.render

import tidelog
import tidelog.sync

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "reference"
MODULES = (tidelog, tidelog.sync)
FIRST = ("connect", "Client", "Producer", "Consumer", "Record", "Batch", "Receipt", "BatchReceipt")


def public(module: ModuleType) -> dict[str, Any]:
    """What users import from it, by name: what they begin with, then the rest, then the errors."""
    names = tidelog._HOMES if module is tidelog else [name for name in vars(module) if _is_own(module, name)]
    found = {name: getattr(module, name) for name in sorted(names)}
    return {
        **{name: found[name] for name in FIRST if name in found},
        **{name: each for name, each in found.items() if not _is_error(each)},
        **found,
    }


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties that users may call, also those of its bases here."""
    seen = set()
    for base in _own(kind):
        for name, member in vars(base).items():
            is_callable = inspect.isfunction(member) or isinstance(member, (property, classmethod, staticmethod))
            if not name.startswith("_") and is_callable and name not in seen:
                seen.add(name)
                yield name, member


def _own(kind: type) -> list[type]:
    """The class and its bases in this project."""
    return [base for base in kind.__mro__ if base.__module__.partition(".")[0] in ("tidelog", "wire")]


def build(folder: Path) -> None:
    shown = {kind for module in MODULES for kind in public(module).values() if inspect.isclass(kind)}
    for kind in shown:
        _hide_constructor(kind)
        bases = {member for base in kind.__mro__[1:] if base in shown for _, member in members(base)}
        for name, member in members(kind):
            if name not in vars(kind) and member not in bases:
                setattr(kind, name, member)  # pdoc leaves out what a base has that is not shown
    for module in MODULES:
        module.__all__ = list(public(module))  # type: ignore[attr-defined]
    pdoc.render.configure(docformat="markdown", show_source=False, footer_text=f"Tidelog {_version()}")
    pdoc.pdoc(*(module.__name__ for module in MODULES), output_directory=folder)


def _hide_constructor(kind: type) -> None:
    for base in _own(kind):
        for name in {"__init__", "__new__"} & vars(base).keys():
            constructor = getattr(base, name)
            constructor.__doc__ = "@private"
            constructor.__module__ = base.__module__  # where pdoc evaluates the annotations of a NamedTuple's


def _is_error(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, Exception)


def _is_own(module: ModuleType, name: str) -> bool:
    value = vars(module)[name]
    is_made_here = getattr(value, "__module__", "") == module.__name__ or name == "connect"
    return not name.startswith("_") and is_made_here and callable(value)


def _version() -> str:
    from importlib.metadata import version

    return version("tidelog")


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    build(folder)
    print(f"open {folder / 'index.html'}")


if __name__ == "__main__":
    main()
