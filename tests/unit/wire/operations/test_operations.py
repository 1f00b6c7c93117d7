"""Every operation is complete: a request and an answer that the codec knows, a handler, a line of help."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from metadata.runtime.admin_answers import Admin, RepartitionAdmin
from metadata.runtime.membership_answers import MembershipAdmin
from metadata.runtime.reassignment_answers import ReassignmentAdmin
from tidelog.server.api.handover import GroupRequests, TransactionRequests
from wire.errors import Code, TidelogError
from wire.operations import json_codec
from wire.operations.api_operations import METADATA, OPERATIONS, PRODUCER_INIT, STREAM_CREATE, STREAM_LIST
from wire.operations.operation import Operation, handlers_of

EACH = pytest.mark.parametrize("operation", OPERATIONS.values(), ids=OPERATIONS)


def test_each_operation_has_one_handler() -> None:
    marked = [
        each
        for kind in (Admin, RepartitionAdmin, ReassignmentAdmin, MembershipAdmin, GroupRequests, TransactionRequests)
        for each in handlers_of(object.__new__(kind))
    ]
    assert sorted(operation.name for operation in marked) == sorted(OPERATIONS)


@EACH
def test_requests_and_answers_are_of_kinds_that_the_codec_knows(operation: Operation[..., Any, Any]) -> None:
    for kind in (operation.request_kind, operation.answer):
        with pytest.raises(ValueError, match="it is 3, not an object"):
            json_codec.checked(kind, 3, "it")


@EACH
def test_the_stream_that_an_operation_is_about_is_a_field_of_its_request(operation: Operation[..., Any, Any]) -> None:
    names = {entry.name for entry in fields(operation.request_kind)}
    assert (operation.stream in names) if operation.stream else not names & {"stream", "name"}
    assert (operation.stream != "") == (Code.UNKNOWN_STREAM in operation.refusals or operation is STREAM_CREATE)


def test_a_request_that_cannot_be_read_is_refused_with_its_field_and_value() -> None:
    for data, sentence in (
        (b'{"name": 3}', "the request's name is 3, not a text"),
        (b'{"name": "s", "config": {"min_isr": 2}}', "the request's config.min_isr is 2, not a text"),
        (b"x" * (256 << 10) + b"x", "a request of 262145 bytes is above 262144"),
    ):
        with pytest.raises(TidelogError) as refused:
            STREAM_CREATE.decode_request(data)
        assert (refused.value.code, refused.value.message) == (Code.BAD_REQUEST, sentence)


@EACH
def test_requests_that_share_answers_can_be_told_apart(operation: Operation[..., Any, Any]) -> None:
    """By equality, and in a short time."""
    assert operation.is_shared == (not operation.writes and operation is not PRODUCER_INIT)
    limit = 4096 if operation.is_shared else 256 << 10
    if operation.is_shared:
        values: dict[Any, Any] = {"str": "a", "int": 3, "bool": True}
        request = operation.request_kind(**{entry.name: values[entry.type] for entry in fields(operation.request_kind)})
        assert len({request, replace(request)}) == 1
    with pytest.raises(TidelogError, match=f"a request of {limit + 1} bytes is above {limit}") as refused:
        operation.decode_request(b" " * (limit + 1))
    assert refused.value.code is Code.BAD_REQUEST


def test_an_answer_carries_a_refusal_in_its_body_or_in_its_headers() -> None:
    error = TidelogError(Code.UNKNOWN_STREAM, "stream 's' does not exist", {"a": "b"})
    for data, headers in (
        (json_codec.encode({"error": error.to_json()}), None),
        (b"", error.to_headers()),
        (json_codec.encode({"error": {**error.to_json(), "colour": "red"}}), error.to_headers()),
    ):
        with pytest.raises(TidelogError) as refused:
            METADATA.decode_answer(data, headers)
        told = refused.value
        assert (told.code, told.message, told.details) == (error.code, error.message, error.details)


def test_a_malformed_answer_is_refused() -> None:
    for data, sentence in (
        (b"nonsense", "the answer to stream.list is not JSON"),
        (b"[]", "the answer to stream.list is [], not an object"),
        (b"{}", "the answer to stream.list's streams is missing"),
        (b'{"streams": [{"name": 1}]}', "the answer to stream.list's streams[0].name is 1, not a text"),
        (b'{"error": "no"}', 'the answer to stream.list\'s error is "no", not an object'),
    ):
        with pytest.raises(TidelogError) as refused:
            STREAM_LIST.decode_answer(data, None)
        assert refused.value.code is Code.INTERNAL
        assert refused.value.message.startswith(sentence)
