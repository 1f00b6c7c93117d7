"""An operation of the API: what its declaration says, and the calls and handlers that are made from it.

The operations themselves are declared in `wire.operations.api_operations`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, ParamSpec, TypedDict, TypeVar

from wire.errors import Code, ErrorForm, TidelogError
from wire.operations import json_codec
from wire.turns import Steps

_P = ParamSpec("_P")
_Request = TypeVar("_Request")
_Answer = TypeVar("_Answer")
_Owner = TypeVar("_Owner")

MAX_REQUEST_BYTES = 256 << 10
MAX_READING_REQUEST_BYTES = 4 << 10
"""Bytes of a request whose answer is shared: it is decoded as it arrives."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Operation(Generic[_P, _Request, _Answer]):
    name: str
    """Its subject is `<ns>.api.<name>`, with the stream, the group or the transactional id behind it where it is about
    one; a broker's log names it, too."""
    request: Callable[_P, _Request]
    """The dataclass."""
    answer: type[_Answer]
    help: str
    writes: bool
    """It changes streams, partitions, or the cluster."""
    gives_once: bool = False
    """Each answer holds something that no other may, though nothing is changed."""
    stream: str = ""
    """The field of the request that names a stream, where it is about one."""
    group: str = ""
    """The field that names a consumer group, where it is about one."""
    transaction: str = ""
    """The field that has a transactional id, where it is about one."""
    refusals: tuple[Code, ...] = ()
    """Besides ALWAYS_POSSIBLE."""
    time_s: float = 0.0
    """Longest time of the operation with all that it waits for; the client waits so long where its own limit is
    shorter."""

    @property
    def request_kind(self) -> type[Any]:
        """`request`, which the type checker knows by its parameters only."""
        kind: type[Any] = self.request  # type: ignore[assignment] # it is one
        return kind

    @property
    def is_shared(self) -> bool:
        """Requests that ask the same may have one answer together. Such a request is hashable."""
        return not (self.writes or self.gives_once)

    @property
    def max_request_bytes(self) -> int:
        return MAX_READING_REQUEST_BYTES if self.is_shared else MAX_REQUEST_BYTES

    def stream_of(self, request: _Request) -> str | None:
        return getattr(request, self.stream) if self.stream else None

    @property
    def named(self) -> str:
        """The field whose value stands behind the operation in the subject; empty where none does."""
        return self.stream or self.group or self.transaction

    @property
    def kind_named(self) -> str:
        """What `named` names."""
        return "stream" if self.stream else "group" if self.group else "transactional id"

    def name_in(self, request: _Request) -> str | None:
        return getattr(request, self.named) if self.named else None

    def name_asked(self, *args: _P.args, **kwargs: _P.kwargs) -> str | None:
        """`name_in` the request with these arguments."""
        return self.name_in(self.request(*args, **kwargs))

    def encode_request(self, *args: _P.args, **kwargs: _P.kwargs) -> bytes:
        """The arguments are those of the request. Raises TidelogError(BAD_REQUEST) for one of another kind."""
        request = self.request(*args, **kwargs)
        given = {entry.name: getattr(request, entry.name) for entry in fields(self.request_kind)}
        try:
            json_codec.checked(self.request_kind, given, self.name)
        except ValueError as error:
            raise TidelogError(Code.BAD_REQUEST, str(error)) from None
        return json_codec.encode(given)

    def decode_request(self, data: bytes) -> _Request:
        """Raises TidelogError(BAD_REQUEST)."""
        if len(data) > self.max_request_bytes:
            raise TidelogError(Code.BAD_REQUEST, f"a request of {len(data)} bytes is above {self.max_request_bytes}")
        try:
            made: _Request = json_codec.decode(self.request_kind, data, "the request")
        except ValueError as error:
            raise TidelogError(Code.BAD_REQUEST, str(error)) from None
        return made

    def decode_answer(self, data: bytes, headers: Mapping[str, str] | None) -> _Answer:
        """Raises TidelogError: the refusal that the answer carries; INTERNAL for an answer of another kind."""
        what = f"the answer to {self.name}"
        try:
            answer = json_codec.decode(dict[str, Any], data, what)
            if "error" in answer:
                raise TidelogError.from_json(json_codec.checked(dict[str, Any], answer["error"], f"{what}'s error"))
            refused = TidelogError.from_headers(headers)
            if refused is not None:
                raise refused
            return json_codec.checked(self.answer, answer, what)
        except ValueError as error:
            raise TidelogError(Code.INTERNAL, str(error)) from None

    def decoding_answer(self, data: bytes) -> Steps[_Answer]:
        """`decode_answer` of an answer that is no refusal, and may be large."""
        try:
            return (yield from json_codec.decoding(self.answer, data, f"the answer to {self.name}"))
        except ValueError as error:
            raise TidelogError(Code.INTERNAL, str(error)) from None


class Refusal(TypedDict):
    """Stands in place of the answer; the same stands in the NATS headers."""

    error: ErrorForm


ALWAYS_POSSIBLE = (
    Code.BAD_REQUEST,
    Code.NOT_CONTROLLER,
    Code.WRONG_CLUSTER,
    Code.BACKPRESSURE,
    Code.UNAVAILABLE,
    Code.OUTCOME_UNKNOWN,
    Code.MESSAGE_TOO_LARGE,
    Code.INTERNAL,
)
"""Refusals of every operation."""


Handler = Callable[[Any], Awaitable[Mapping[str, Any]]]
"""Takes the operation's request and gives its answer, or raises TidelogError."""

_HANDLES = "__tidelog_operation__"


def handles(
    operation: Operation[_P, _Request, _Answer],
) -> Callable[[Callable[[_Owner, _Request], Awaitable[_Answer]]], Callable[[_Owner, _Request], Awaitable[_Answer]]]:
    """Marks the method that carries an operation out."""

    def mark(
        method: Callable[[_Owner, _Request], Awaitable[_Answer]],
    ) -> Callable[[_Owner, _Request], Awaitable[_Answer]]:
        setattr(method, _HANDLES, operation)
        return method

    return mark


def handlers_of(owner: object) -> dict[Operation[..., Any, Any], Handler]:
    """Its methods that were marked with `handles`."""
    return {
        operation: getattr(owner, name)
        for name, method in vars(type(owner)).items()
        if (operation := getattr(method, _HANDLES, None)) is not None
    }
