"""The rules of the protocol, as the code that keeps them states them, with the tests that hold each.

A rule has a number, R1, R2 and so on, and is stated once, in a comment above a function or class that keeps it:

    # R16: A publish that waits ends in one of three ways: ...
    # Hazard: A publisher takes a record for lost that is in the log.
    # Not covered: ...

The statement ends with the comment. `Hazard` says what goes wrong without the rule, `Not covered`, which may be absent,
what the rule does not prevent. Other functions that keep a rule have `# Keeps R16, R35.` above them. Transcripts
(`tests/testdata`) and modules of tests name the rules that they hold in a comment `# Rules: R16, R35.`, mutants
(`tests/simulation`) in `rules=("R16", "R35")`. `scripts/reference/docs_tables.py` makes docs/rules.md of all that;
`tests/unit/project/test_rules.py` fails for a rule without a function or without a test, and for an unknown number.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("dataplane", "metadata", "spark_connector", "tidelog", "wire")

_STATED = re.compile(r"\s*# (R\d+a?): (.*)")
_KEPT = re.compile(r"\s*# Keeps (R\d+a?(?:, R\d+a?)*)\.$")
_HELD = re.compile(r"# Rules: (R\d+a?(?:, R\d+a?)*)\.$", re.MULTILINE)
_GOES_ON = re.compile(r"\s*# (?!R\d+a?: |Keeps R)(.*)")
_PART = re.compile(r"(?:^|\s)(Hazard|Not covered): ")


@dataclass(frozen=True, slots=True)
class Place:
    """A function or class of the product."""

    module: str
    """Path from the root of the repository."""
    name: str
    """With its class: `Leader.on_fetch`."""


@dataclass(slots=True)
class Rule:
    number: str
    """`R13`."""
    statement: str = ""
    hazard: str = ""
    not_covered: str = ""
    stated: list[Place] = field(default_factory=list)
    """Where it is stated: one place."""
    kept: list[Place] = field(default_factory=list)
    """Other places that keep it."""
    transcripts: list[str] = field(default_factory=list)
    """`replication/normal_replication_and_commit`, below `tests/testdata`."""
    tests: list[str] = field(default_factory=list)
    """Paths of modules of tests."""
    mutants: list[str] = field(default_factory=list)

    def state(self, text: str, place: Place) -> None:
        """`text`: the comment, without its number."""
        self.stated.append(place)
        self.statement, *parts = _PART.split(text)
        for name, part in zip(parts[::2], parts[1::2], strict=True):
            if name == "Hazard":
                self.hazard = part
            else:
                self.not_covered = part


def order(number: str) -> tuple[int, str]:
    """Sorts R2 before R12, and R12 before R12a."""
    digits = number.rstrip("a")[1:]
    return int(digits), number


@cache
def rules() -> Mapping[str, Rule]:
    """All rules by their numbers, ascending; a number that is only named somewhere is a rule without a statement."""
    found: dict[str, Rule] = {}

    def rule(number: str) -> Rule:
        return found.setdefault(number, Rule(number))

    for package in PRODUCT:
        for path in sorted((ROOT / package).rglob("*.py")):
            if "_pb2" not in path.name:
                for number, text, place in _marked(path):
                    if text is None:
                        rule(number).kept.append(place)
                    else:
                        rule(number).state(text, place)
    for path in sorted((ROOT / "tests" / "testdata").rglob("*.txt")):
        for number in _held(path):
            rule(number).transcripts.append(str(path.relative_to(ROOT / "tests" / "testdata").with_suffix("")))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for number in _held(path):
            rule(number).tests.append(str(path.relative_to(ROOT)))
    for path in sorted((ROOT / "tests" / "simulation").glob("mutants*.py")):
        for name, numbers in mutants(path):
            for number in numbers:
                rule(number).mutants.append(name)
    return {number: found[number] for number in sorted(found, key=order)}


def _marked(path: Path) -> Iterator[tuple[str, str | None, Place]]:
    """(number, statement or None, place) of each comment about a rule."""
    source = path.read_text(encoding="utf-8")
    if not re.search(r"# (?:R\d|Keeps R)", source):
        return
    lines = source.splitlines()
    module, names = str(path.relative_to(ROOT)), _names(ast.parse(source))
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if kept := _KEPT.match(line):
            for rule in kept[1].split(", "):
                yield rule, None, Place(module, _name_at(names, number))
        elif stated := _STATED.match(line):
            text = [stated[2]]
            while goes_on := _GOES_ON.match(lines[number]):
                text.append(goes_on[1])
                number += 1
            yield stated[1], " ".join(text), Place(module, _name_at(names, number))


def _names(tree: ast.Module) -> list[tuple[int, int, str]]:
    """(first line with decorators, last line, name) of the functions and classes; the inner ones follow the outer."""
    found: list[tuple[int, int, str]] = []

    def walk(body: list[ast.stmt], outer: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
                found.append((first, node.end_lineno or first, f"{outer}{node.name}"))
                if isinstance(node, ast.ClassDef):
                    walk(node.body, f"{outer}{node.name}.")

    walk(tree.body, "")
    return found


def _name_at(names: list[tuple[int, int, str]], line: int) -> str:
    """The function or class that begins below the comment whose last line is `line`, or around it; "" for none."""
    below = min((first for first, _, _ in names if first > line), default=0)
    around = [name for first, last, name in names if first <= line <= last]
    beginning = [name for first, _, name in names if first == below]
    if beginning and (not around or beginning[0].startswith(f"{around[-1]}.")):
        return beginning[0]
    return around[-1] if around else ""


def _held(path: Path) -> list[str]:
    """The rules that a transcript, or a module of tests, names."""
    return [number for held in _HELD.findall(path.read_text(encoding="utf-8")) for number in held.split(", ")]


def mutants(path: Path) -> Iterator[tuple[str, tuple[str, ...]]]:
    """(name, rules) of each mutant of a module, without importing it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "_mutant":
            name = ast.literal_eval(node.args[0])
            numbers = next((ast.literal_eval(each.value) for each in node.keywords if each.arg == "rules"), ())
            yield name, tuple(numbers)
