"""Each rule of the protocol is stated once, beside the function that keeps it, and a test holds it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.reference.rules import PRODUCT, ROOT, Rule, mutants, order, rules

RULES = rules()
_NUMBER = re.compile(r"(?<![\w.#-])R[1-9]\d?a?\b")
_MADE = ("_pb2.py", "_pb2.pyi")


def files() -> list[Path]:
    """Code, tests, and pages: where rules are cited."""
    folders = (*PRODUCT, "scripts", "tests", "docs")
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*")))
    return [path for path in found if path.suffix in (".py", ".md", ".proto", ".txt") and not path.name.endswith(_MADE)]


def test_rules_are_found_and_sorted() -> None:
    assert len(RULES) > 70
    assert [*RULES] == sorted(RULES, key=order)


@pytest.mark.parametrize("rule", RULES.values(), ids=lambda rule: rule.number)
def test_a_rule_is_stated_once_and_held_by_a_test(rule: Rule) -> None:
    assert len(rule.stated) == 1, f"{rule.number} is stated in {rule.stated}; named in {rule}"
    assert rule.statement.endswith("."), rule.statement
    assert rule.hazard, f"{rule.number} names no hazard"
    assert all(place.name for place in (*rule.stated, *rule.kept)), f"a marker of {rule.number} stands at no function"
    assert rule.transcripts or rule.tests or rule.mutants, f"no test holds {rule.number}"


def test_each_mutant_breaks_a_rule() -> None:
    named = [each for path in sorted((ROOT / "tests" / "simulation").glob("mutants*.py")) for each in mutants(path)]
    assert named
    assert not [name for name, numbers in named if not numbers]


def test_each_rule_that_is_cited_is_stated() -> None:
    this = Path(__file__).resolve()
    unknown = [
        f"{path.relative_to(ROOT)}: {number}"
        for path in files()
        if path != this
        for number in dict.fromkeys(_NUMBER.findall(path.read_text(encoding="utf-8")))
        if number not in RULES
    ]
    assert not unknown, unknown
