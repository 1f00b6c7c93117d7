"""Headers that JetStream acts upon, and errors in its form. Beside a real JetStream: tests/integration."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.error_details import ERR_CODE, LAST_OFFSET, REASON
from wire.errors import Code, TidelogError
from wire.partition_messages.jetstream import (
    MAY_ACT,
    PublishHeaders,
    error_form,
    refusal,
    sole_message_id,
    wrong_message_id,
)


def block(*lines: str) -> bytes:
    return "".join(f"{line}\r\n" for line in ("NATS/1.0", *lines, "")).encode()


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Trace: 1",),
        ("Nats-Msg-Id: ",),
        ("nats-msg-id: 1",),
        ("NATS-MSG-ID: 1",),
        ("X-Nats-Msg-Id: 1",),
        ("Nats-Whatever: 1",),
        ("Nats-Schedule-Target: s",),
        ("Nats-Msg-Id",),
    ],
)
def test_headers_that_ask_for_nothing(lines: tuple[str, ...]) -> None:
    assert PublishHeaders.of(block(*lines)) is None
    assert PublishHeaders.of(None) is None


def test_the_first_of_several_counts() -> None:
    wanted = PublishHeaders.of(block("Nats-Msg-Id:  a b", "Nats-Msg-Id: c", "Nats-Rollup: all"))
    assert wanted is not None
    assert wanted.message_id == b"a b"
    assert wanted.asks_for_more


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("Nats-Expected-Last-Sequence: 0", (0,)),
        ("Nats-Expected-Last-Sequence: 17", (17,)),
        ("Nats-Expected-Last-Sequence: -1", (-1,)),
        ("Nats-Expected-Last-Sequence: 1e3", (-1,)),
        ("Nats-Expected-Last-Sequence: ٣", (-1,)),
        ("Nats-Expected-Last-Sequence: " + "9" * 500, (-1,)),
        ("Nats-Expected-Last-Subject-Sequence: 4", (4,)),
        ("Nats-Expected-Last-Msg-Id: 4", ()),
    ],
)
def test_expected_ends(line: str, ends: tuple[int, ...]) -> None:
    wanted = PublishHeaders.of(block(line))
    assert wanted is not None
    assert wanted.expected_ends() == ends
    assert wanted.refuse("s", "s") is None


@pytest.mark.parametrize(
    ("line", "code", "err_code"),
    [
        ("Nats-Expected-Stream: other", Code.WRONG_STREAM, 10060),
        ("Nats-TTL: 1s", Code.NOT_SUPPORTED, 10166),
        ("Nats-TTL: 1h30m", Code.NOT_SUPPORTED, 10166),
        ("Nats-TTL: " + "9" * 5000, Code.NOT_SUPPORTED, 10166),
        ("Nats-TTL: soon", Code.BAD_REQUEST, 10165),
        ("Nats-Incr: -17", Code.NOT_SUPPORTED, 10168),
        ("Nats-Incr: +-1", Code.BAD_REQUEST, 10171),
        ("Nats-Batch-Id: b", Code.NOT_SUPPORTED, 10174),
        ("Nats-Schedule: @every 1s", Code.NOT_SUPPORTED, 10188),
        ("Nats-Expected-Last-Subject-Sequence-Subject: s", Code.BAD_REQUEST, 10193),
    ],
)
def test_refused_by_the_message_alone(line: str, code: Code, err_code: int) -> None:
    wanted = PublishHeaders.of(block(line))
    assert wanted is not None
    error = wanted.refuse("s", "s")
    assert error is not None
    assert (error.code, error.detail(ERR_CODE)) == (code, err_code)
    assert error_form(error) == {"code": 400, "err_code": err_code, "description": error.message}
    assert wanted.refuse_new("s") is None


def test_a_rollup_is_refused_unless_it_is_a_repetition() -> None:
    wanted = PublishHeaders.of(block("Nats-Rollup: sub"))
    assert wanted is not None
    assert wanted.refuse("s", "s") is None
    error = wanted.refuse_new("s")
    assert error is not None
    assert error_form(error)["code"] == 500
    assert error_form(error)["err_code"] == 10111


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=60), max_size=5), st.binary())
def test_whatever_a_publisher_sends_is_read_or_passed_over(lines: list[str], more: bytes) -> None:
    found = PublishHeaders.of(block(*(f"Nats-{line}" for line in lines)) + more)
    if found is not None:
        found.refuse("s", "s")
        found.refuse_new("s")
        found.expected_ends()


_LINES = st.lists(
    st.sampled_from(
        [
            "Nats-Msg-Id: a",
            "Nats-Msg-Id:a",
            "Nats-Msg-Id:  a",
            "Nats-Msg-Id:\ta",
            "Nats-Msg-Id: ",
            "Nats-Msg-Id: b c ",
            "Nats-Rollup: all",
            "Nats-Expected-Stream: s",
            "X: Nats-Msg-Id: q",
            "Trace: 1",
        ]
    ),
    max_size=4,
)


@given(_LINES)
def test_the_quick_look_says_what_the_close_one_says(lines: list[str]) -> None:
    headers = block(*lines)
    quick = sole_message_id(headers) if MAY_ACT in headers else None
    if quick is not None:
        close = PublishHeaders.of(headers)
        assert close is not None
        assert (quick, False) == (close.message_id, close.asks_for_more)


@pytest.mark.parametrize("code", Code)
def test_each_error_has_jetstreams_form(code: Code) -> None:
    body = refusal(TidelogError(code, "what and how to mend it"), "s", 3)
    assert body["error"].keys() == {"code", "err_code", "description"}
    assert body["error"]["code"] in (400, 500, 503)
    assert 10000 <= body["error"]["err_code"] < 11000
    assert (body["stream"], body["seq"], body["partition"]) == ("s", 0, 3)
    assert body["tidelog"]["code"] == code.name


def test_a_wrong_sequence_is_told_as_jetstream_tells_it() -> None:
    error = TidelogError(Code.INCORRECT_OFFSET, "our sentence", [LAST_OFFSET.of(4)])
    assert error_form(error) == {"code": 400, "err_code": 10071, "description": "wrong last sequence: 5"}


def test_an_unknown_outcome_is_no_refusal_whatever_its_reason_was() -> None:
    wrong = wrong_message_id(b"x" * 300, None)
    assert error_form(wrong)["err_code"] == 10070
    assert re.search(r"no message id, not the expected 'x{80}…'", wrong.message)
    unknown = TidelogError(Code.OUTCOME_UNKNOWN, "…", [*wrong.details.items(), REASON.of(wrong.code.name)])
    assert (error_form(unknown)["code"], error_form(unknown)["err_code"]) == (503, 10077)
