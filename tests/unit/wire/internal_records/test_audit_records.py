"""Audit records: where their fields come from, and that what strangers send is cut."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from wire.errors import Code, TidelogError
from wire.internal_records.audit_records import (
    MAX_ENTRIES,
    MAX_REQUEST_BYTES,
    MAX_TEXT_BYTES,
    AuditRecord,
    audit_record,
    cut,
    nats_identity,
)
from wire.operations.api_operations import AlterStreamRequest, StreamRef


def record(**changes: Any) -> AuditRecord:
    given: dict[str, Any] = {
        "act": "b1-x-7",
        "time_ns": 1_700_000_000_123_456_789,
        "operation": "stream.delete",
        "stream": "s",
        "request": StreamRef("s"),
        "error": None,
        "controller": "b1",
        "controller_epoch": 3,
        "headers": {"Tidelog-Client": "anna@host tidelog"},
        "reply": "_INBOX.abc.17",
    }
    return audit_record(**(given | changes))


def test_an_answered_act() -> None:
    assert record() == {
        "id": "b1-x-7",
        "time": "2023-11-14T22:13:20.123+00:00",
        "operation": "stream.delete",
        "stream": "s",
        "request": {"name": "s"},
        "outcome": "answered",
        "code": None,
        "message": None,
        "controller": "b1",
        "controller_epoch": 3,
        "nats": None,
        "claimed": "anna@host tidelog",
        "connection": "_INBOX.abc",
    }


@pytest.mark.parametrize(
    ("error", "outcome", "code", "message"),
    [
        (TidelogError(Code.UNKNOWN_STREAM, "no"), "refused", "UNKNOWN_STREAM", "no"),
        (TidelogError(Code.OUTCOME_UNKNOWN, "no"), "unknown", "OUTCOME_UNKNOWN", "no"),
        (RuntimeError("a bug"), "unknown", "INTERNAL", "RuntimeError: a bug"),
        (asyncio.CancelledError(), "unknown", "OUTCOME_UNKNOWN", "CancelledError"),
    ],
)
def test_an_act_that_was_not_answered(error: BaseException, outcome: str, code: str, message: str) -> None:
    found = record(error=error)
    assert (found["outcome"], found["code"], found["message"]) == (outcome, code, message)


def test_what_nats_says_of_the_client_is_kept_without_its_credentials() -> None:
    info = {
        "acc": "A",
        "user": "anna",
        "host": "10.0.0.7",
        "id": 12,
        "name": "ops",
        "jwt": "eyJ",
        "server": "n1",
        "rtt": 5,
    }
    found = record(headers={"Nats-Request-Info": json.dumps(info)})
    assert found["nats"] == {
        "account": "A",
        "user": "anna",
        "host": "10.0.0.7",
        "connection": 12,
        "name": "ops",
        "server": "n1",
    }
    assert found["claimed"] is None
    assert "eyJ" not in json.dumps(found)


@pytest.mark.parametrize("text", ["{", "[]", '"acc"', '{"acc":1}', "{}", "[" * 100_000, '{"id":1e999}'])
def test_a_request_info_that_no_server_writes_is_none(text: str) -> None:
    assert nats_identity(text) is None


def test_everything_from_outside_is_cut() -> None:
    long = "ä" * 100_000
    request = AlterStreamRequest(
        name="s", config={f"{number}{'x' * 1000}": "y" for number in range(1000)}, unset=[long] * 1000
    )
    found = record(request=AlterStreamRequest(name=long, config={}, unset=["x"] * 1000))
    assert (found["request"] or {}).keys() == {"name", "config", "unset"}
    assert len((found["request"] or {})["unset"]) == MAX_ENTRIES + 1
    found = record(
        stream=long,
        request=request,
        error=TidelogError(Code.BAD_CONFIG, long),
        headers={"Tidelog-Client": long, "Nats-Request-Info": json.dumps({"acc": long, "user": long})},
        reply=f"{long}.1",
    )
    assert len(json.dumps(found)) < MAX_REQUEST_BYTES + 60 * MAX_TEXT_BYTES
    assert "bytes, left out" in (found["request"] or {})["…"]


def test_a_line_of_the_log_cannot_be_forged() -> None:
    text = json.dumps(record(stream="s\n2026 INFO audit answered {}\x1b[2J\u2028"))
    assert all(" " <= character <= "~" for character in text)


@pytest.mark.parametrize(("text", "kept"), [("", ""), ("a" * 200, "a" * 200), ("ä" * 101, "ä" * 100 + "…")])
def test_a_text_is_cut_between_characters(text: str, kept: str) -> None:
    assert cut(text) == kept
    assert cut("\ud800") == "?"
