"""Print figures of the product's code, for review: nothing here fails a test.

Usage: python -m scripts.reference.code_report [--folders] [--json]

Code lines are counted without comments, docstrings and blank lines. An arrow of a folder is an import from one of its
modules to another; floors are the longest chain of such imports; a circle is a set of modules, or of folders, that
import one another. Words are counted in comments and docstrings, per 1,000 of them, and the identifiers that
have one of them as a part.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
PRODUCT = ("wire", "metadata", "dataplane", "spark_connector", "tidelog")
LARGEST = 10
# Words of comments that readers could not understand without the code beside them, and what counts as one of them.
WORDS = {
    "tell": r"tell|tells|told|telling|untell",
    "hear": r"hear|hears|heard|hearing",
    "what": r"what",
    "owe": r"owe|owes|owed|owing",
    "life": r"life|lives",
    "office": r"office",
    "standing": r"standing",
    "story": r"story|stories",
    "founding": r"founding|found(?:ed|er|ers) (?:a|the|its) cluster",
    "relief": r"relief|relieve[sd]?",
    "doom": r"doom|doomed",
    "stranger": r"stranger|strangers",
}


@dataclass(frozen=True, kw_only=True)
class Module:
    name: str  # dotted
    folder: str  # dotted name of the package
    code_lines: int
    import_lines: int
    imports: frozenset[str]  # dotted names, as they stand in the code
    classes: tuple[tuple[str, int, int], ...]  # name, lines, methods
    prose: str  # comments and docstrings
    names: frozenset[str]  # all identifiers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folders", action="store_true", help="one line for each folder, too")
    parser.add_argument("--json", action="store_true", help="all figures as JSON")
    options = parser.parse_args()
    figures = report(read_product())
    if options.json:
        print(json.dumps(figures, indent=2))
        return
    whole = figures["whole"]
    print(
        f"{whole['files']} files, {whole['code_lines']:,} code lines, {whole['mean_file']} a file, "
        f"{whole['import_share']} % imports; circles: {whole['circles']} of modules, "
        f"{whole['folder_circles']} of folders"
    )
    for circle in figures["circles"]:
        print("a circle of imports:", ", ".join(circle))
    print("largest modules:", ", ".join(f"{name} {lines}" for name, lines in figures["largest_modules"]))
    print("largest classes:", ", ".join(f"{name} {methods}" for name, methods in figures["largest_classes"]), "methods")
    print("identifiers with such a word:", ", ".join(f"{word} {count}" for word, count in figures["names"].items()))
    print("words per 1,000:", ", ".join(f"{word} {share}" for word, share in figures["words"].items()))
    if options.folders:
        print(f"{'folder':44}{'files':>6}{'lines':>8}{'arrows':>8}{'floors':>8}")
        for name, row in figures["folders"].items():
            print(f"{name:44}{row['files']:>6}{row['code_lines']:>8,}{row['arrows']:>8}{row['floors']:>8}")


def report(modules: Mapping[str, Module]) -> dict[str, Any]:
    """Returns all figures, ready for JSON."""
    arrows = {name: {each for each in module.imports if each != name} for name, module in modules.items()}
    folders: dict[str, list[Module]] = defaultdict(list)
    for module in modules.values():
        folders[module.folder].append(module)
    between: dict[str, set[str]] = {name: set() for name in folders}
    for name, targets in arrows.items():
        between[modules[name].folder] |= {modules[each].folder for each in targets} - {modules[name].folder}
    names = frozenset[str]().union(*(module.names for module in modules.values()))
    prose = " ".join(module.prose for module in modules.values()).lower()
    count = len(re.findall(r"[a-z']+", prose))
    circles, folder_circles = _circles(arrows), _circles(between)
    code_lines = sum(module.code_lines for module in modules.values())
    return {
        "whole": {
            "files": len(modules),
            "code_lines": code_lines,
            "mean_file": round(code_lines / len(modules)),
            "import_share": round(100 * sum(module.import_lines for module in modules.values()) / code_lines, 1),
            "circles": len(circles),
            "folder_circles": len(folder_circles),
            "words": count,
        },
        "circles": [sorted(circle) for circle in (*circles, *folder_circles)],
        "largest_modules": _largest((module.name, module.code_lines) for module in modules.values()),
        "largest_classes": _largest(
            (f"{module.name}.{name}", methods) for module in modules.values() for name, _, methods in module.classes
        ),
        "words": {
            word: round(1000 * len(re.findall(rf"\b(?:{pattern})\b", prose)) / count, 2)
            for word, pattern in WORDS.items()
        },
        "names": {
            word: sum(bool(re.search(rf"(?:^|_)(?:{pattern})(?:_|$)", name)) for name in names)
            for word, pattern in WORDS.items()
        },
        "folders": {
            folder: {
                "files": len(inside),
                "code_lines": sum(module.code_lines for module in inside),
                "arrows": sum(len(arrows[module.name] & names) for module in inside),
                "floors": _floors({module.name: arrows[module.name] & names for module in inside}),
            }
            for folder, inside in sorted(folders.items())
            for names in [{module.name for module in inside}]
        },
    }


def read_product() -> dict[str, Module]:
    """Returns all modules that were written by hand, by their dotted names."""
    paths = {
        _dotted(path): path
        for package in PRODUCT
        for path in sorted((ROOT / package).rglob("*.py"))
        if not path.name.endswith("_pb2.py") and "autoload" not in path.parts
    }
    return {name: _read(name, path, paths) for name, path in paths.items()}


def _dotted(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(name: str, path: Path, known: Iterable[str]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    docstrings = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]
    prose = {line for node in docstrings for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)}
    comments, code = [], set()
    for token in _tokens(text):
        if token.type == tokenize.COMMENT:
            comments.append(token.string.lstrip("# "))
        elif token.type not in {
            tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
        }:  # fmt: skip
            code |= set(range(token.start[0], token.end[0] + 1))
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    return Module(
        name=name,
        folder=name if path.name == "__init__.py" else name.rpartition(".")[0],
        code_lines=len(code - prose),
        import_lines=sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in imports),
        imports=frozenset(target for node in imports for target in _targets(node, known)),
        classes=tuple(
            (node.name, (node.end_lineno or node.lineno) - node.lineno + 1, _methods(node))
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        ),
        names=frozenset(token.string.lower() for token in _tokens(text) if token.type == tokenize.NAME),
        prose=" ".join([*comments, *(node.value.value for node in docstrings)]),  # type: ignore[attr-defined]
    )


def _tokens(text: str) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(text).readline)


def _targets(node: ast.Import | ast.ImportFrom, known: Iterable[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (each.name for each in node.names if each.name in known)
        return
    for each in node.names:
        inner = f"{node.module}.{each.name}"
        target = inner if inner in known else node.module or ""
        if target in known:
            yield target


def _methods(node: ast.ClassDef) -> int:
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


def _largest(sized: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    return sorted(sized, key=lambda each: (-each[1], each[0]))[:LARGEST]


def _circles(arrows: Mapping[str, set[str]]) -> list[set[str]]:
    """Returns the sets of nodes that reach one another."""
    reached = {node: _reach(node, arrows) for node in arrows}
    circles: list[set[str]] = []
    for node in arrows:
        circle = {other for other in reached[node] if node in reached[other]}
        if node in circle and circle not in circles:
            circles.append(circle)
    return circles


def _reach(start: str, arrows: Mapping[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    rest = list(arrows[start])
    while rest:
        node = rest.pop()
        if node not in seen:
            seen.add(node)
            rest += arrows[node]
    return seen


def _floors(arrows: Mapping[str, set[str]]) -> int:
    """Returns the length, in nodes, of the longest chain of arrows; a node of a circle counts once."""
    heights: dict[str, int] = {}

    def height(node: str, above: frozenset[str]) -> int:
        if node not in heights:
            below = arrows[node] - above
            heights[node] = 1 + max((height(each, above | {node}) for each in below), default=0)
        return heights[node]

    return max((height(node, frozenset()) for node in arrows), default=0)


if __name__ == "__main__":
    main()
