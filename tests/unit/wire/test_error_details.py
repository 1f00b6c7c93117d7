"""Details of errors: each is declared with its codes, and what a peer makes of one is never an exception."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

import wire.error_details
from wire.error_details import ADDED_BY_CLIENTS, DELETIONS_GONE, LEADER, LOG_START, Detail, declared_details
from wire.errors import Code, TidelogError

ROOT = Path(wire.error_details.__file__).parents[1]
PACKAGES = ("wire", "metadata", "dataplane", "tidelog", "spark_connector")
NONSENSE = ["", "x", "-1", "1.5", "9" * 5000, "\u0663", "\ud800", "true", "null"]


@pytest.mark.parametrize("detail", declared_details(), ids=lambda detail: detail.name)
@pytest.mark.parametrize("text", NONSENSE)
def test_nonsense_of_a_peer_is_read_as_absent_or_as_a_value_of_the_kind(detail: Detail[Any], text: str) -> None:
    error = TidelogError(Code.INTERNAL, "refused", {detail.name: text})
    value = error.detail(detail)
    assert value is None or isinstance(value, (int, str))
    if detail.values == "whole number":
        assert value is None


def test_details_travel_in_headers_and_in_json() -> None:
    error = TidelogError(Code.OFFSET_BEFORE_LOG, "gone", [LOG_START.of(17), DELETIONS_GONE.of(True), LEADER.of("")])
    headers = error.to_headers()
    assert headers == {
        "Tidelog-Error": "OFFSET_BEFORE_LOG", "Tidelog-Message": "gone", "Tidelog-Log-Start": "17",
        "Tidelog-Deletions-Gone": "true", "Tidelog-Leader": "",
    }  # fmt: skip
    for read in (TidelogError.from_headers(headers), TidelogError.from_json(error.to_json())):
        assert read is not None
        assert (read.detail(LOG_START), read.detail(DELETIONS_GONE), read.detail(LEADER)) == (17, True, "")


def test_a_detail_that_is_not_there_is_none() -> None:
    error = TidelogError(Code.INTERNAL, "refused")
    assert {error.detail(detail) for detail in declared_details()} == {None}


def test_each_detail_is_of_some_code() -> None:
    of_codes = {detail for code in Code for detail in code.details}
    assert of_codes | {*ADDED_BY_CLIENTS} == {*declared_details()}
    assert len({detail.name for detail in declared_details()}) == len(declared_details())


def test_errors_are_raised_with_the_details_that_their_codes_declare() -> None:
    """In `TidelogError(Code.X, …, [DETAIL.of(…)])`, and in the exceptions of the client."""
    seen: set[str] = set()
    for path in (path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text())):
            if not isinstance(call, ast.Call) or not call.args or not (code := _code_of(call.args[0])):
                continue
            for argument in call.args[2:]:
                assert not isinstance(argument, ast.Dict), f"{path}:{call.lineno}: write details with `of`"
                for name in _details_in(argument):
                    detail = getattr(wire.error_details, name)
                    assert detail in (*Code[code].details, *ADDED_BY_CLIENTS), f"{path}:{call.lineno}: {code}, {name}"
                    seen.add(name)
    assert {"LOG_START", "RETRY_AFTER_MS", "REASON", "LEADER_EPOCH", "OUTCOME"} <= seen


def _code_of(argument: ast.expr) -> str | None:
    is_code = isinstance(argument, ast.Attribute) and ast.unparse(argument.value) == "Code"
    return argument.attr if is_code and isinstance(argument, ast.Attribute) else None


def _details_in(argument: ast.expr) -> list[str]:
    return [
        ast.unparse(node.func.value)
        for node in ast.walk(argument)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "of"
    ]
