"""Refusals in gRPC: the statuses that Liftbridge's clients know, and the codes of PublishAsync."""

from __future__ import annotations

from collections.abc import Mapping

from grpc import StatusCode

from wire.errors import Code, TidelogError
from wire.protobuf.liftbridge_pb2 import PublishAsyncError

MAX_CHARACTERS = 1000
"""Characters of a sentence: it travels in a trailer of HTTP/2, which has little room."""

_STATUS: Mapping[Code, StatusCode] = {
    Code.UNKNOWN_STREAM: StatusCode.NOT_FOUND,
    Code.STREAM_EXISTS: StatusCode.ALREADY_EXISTS,
    Code.SUBJECT_TAKEN: StatusCode.FAILED_PRECONDITION,
    Code.BAD_NAME: StatusCode.INVALID_ARGUMENT,
    Code.BAD_SUBJECT: StatusCode.INVALID_ARGUMENT,
    Code.BAD_CONFIG: StatusCode.INVALID_ARGUMENT,
    Code.BAD_REPLICATION_FACTOR: StatusCode.INVALID_ARGUMENT,
    Code.BAD_REQUEST: StatusCode.INVALID_ARGUMENT,
    Code.OFFSET_AHEAD: StatusCode.INVALID_ARGUMENT,
    Code.OFFSET_BEFORE_LOG: StatusCode.OUT_OF_RANGE,
    Code.CORRUPT_ENVELOPE: StatusCode.INVALID_ARGUMENT,
    Code.READONLY: StatusCode.FAILED_PRECONDITION,
    Code.PARTITION_RETIRED: StatusCode.FAILED_PRECONDITION,
    Code.WRONG_INCARNATION: StatusCode.NOT_FOUND,
    Code.UNKNOWN_GROUP: StatusCode.NOT_FOUND,
    Code.UNKNOWN_MEMBER: StatusCode.FAILED_PRECONDITION,
    Code.NOT_ASSIGNED: StatusCode.FAILED_PRECONDITION,
    Code.STALE_GENERATION: StatusCode.FAILED_PRECONDITION,
    Code.STALE_COMMIT: StatusCode.FAILED_PRECONDITION,
    Code.NOT_PERMITTED: StatusCode.PERMISSION_DENIED,
    # A client that gets RESOURCE_EXHAUSTED for a publish takes the message for too large and drops it.
    Code.RECORD_TOO_LARGE: StatusCode.RESOURCE_EXHAUSTED,
    Code.MESSAGE_TOO_LARGE: StatusCode.RESOURCE_EXHAUSTED,
    Code.LIMIT_REACHED: StatusCode.FAILED_PRECONDITION,
    Code.CONFIRM_TIMEOUT: StatusCode.DEADLINE_EXCEEDED,
    Code.OUTCOME_UNKNOWN: StatusCode.DEADLINE_EXCEEDED,
    # Liftbridge has no status of its own for INCORRECT_OFFSET.
    Code.INCORRECT_OFFSET: StatusCode.UNKNOWN,
}

_ASYNC: Mapping[StatusCode, PublishAsyncError.Code.ValueType] = {
    StatusCode.NOT_FOUND: PublishAsyncError.NOT_FOUND,
    StatusCode.INVALID_ARGUMENT: PublishAsyncError.BAD_REQUEST,
    StatusCode.RESOURCE_EXHAUSTED: PublishAsyncError.BAD_REQUEST,
    StatusCode.PERMISSION_DENIED: PublishAsyncError.PERMISSION_DENIED,
}
_ASYNC_OF_CODES: Mapping[Code, PublishAsyncError.Code.ValueType] = {
    Code.READONLY: PublishAsyncError.READONLY,
    Code.PARTITION_RETIRED: PublishAsyncError.READONLY,
    Code.INCORRECT_OFFSET: PublishAsyncError.INCORRECT_OFFSET,
    Code.NO_KEY: PublishAsyncError.ENCRYPTION_FAILED,
    Code.LIMIT_REACHED: PublishAsyncError.BAD_REQUEST,
}


class Refused(Exception):
    """Ends a call with this status."""

    def __init__(self, status: StatusCode, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def refusal(error: TidelogError | Refused) -> Refused:
    """Returns the refusal for `error`. Retriable ones without an own status are UNAVAILABLE: clients retry."""
    if isinstance(error, Refused):
        return error
    default = StatusCode.UNAVAILABLE if error.retriable else StatusCode.INTERNAL
    return Refused(_STATUS.get(error.code, default), error.message[:MAX_CHARACTERS])


def async_error(error: TidelogError | Refused) -> PublishAsyncError:
    refused = refusal(error)
    code = _ASYNC.get(refused.status, PublishAsyncError.INTERNAL)
    if isinstance(error, TidelogError):
        code = _ASYNC_OF_CODES.get(error.code, code)
    return PublishAsyncError(code=code, message=refused.sentence)
