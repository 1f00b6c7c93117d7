"""The tokens of effects: the facts for the answer to whoever waits for the state machine of a replica.

A driver gives the token with the event, and gets it back with the effect that completes the event.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from wire.errors import TidelogError
from wire.protobuf.tidelog_pb2 import AppendResponse, Message
from wire.types import DrainAnswer, LeaderMove, Offset

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Replies: TypeAlias = "list[bytes | None] | NDArray[np.void]"
"""Reply subjects of bare publishes at consecutive offsets: one by one, with None where no answer is wanted; or as a
column where all have one length."""


@dataclass(slots=True)
class BareReplies:
    """The bare publishes of a batch that are to be answered."""

    runs: list[tuple[Offset, Replies]]
    """Each with the offset of its first record."""
    needs_lease: bool = False
    """As of `AppendReply`."""
    is_repetition: bool = False
    """The records were in the log already; these publishes did not bring them."""
    is_counted: bool = False
    """It counts among the answers that wait beside the batches (`waiting_answers`)."""


@dataclass(frozen=True, slots=True)
class AppendReply:
    inbox: str
    response: AppendResponse
    needs_lease: bool
    """acks=leader: worth nothing from a leader that may have been replaced."""


@dataclass(frozen=True, slots=True)
class MarkReply:
    """The end of a transaction, to its coordinator."""

    inbox: str


@dataclass(frozen=True, slots=True)
class LocalReply:
    """A batch of this process."""

    done: Callable[[TidelogError | None], None]


@dataclass(frozen=True, slots=True)
class EnvelopeReply:
    message: Message
    subject: str
    offset: Offset
    received_at: int
    """ns since 1970."""
    needs_lease: bool
    is_counted: bool = False
    """As of `BareReplies`."""


@dataclass(frozen=True, slots=True)
class ExpectationReply:
    """The refusal of a message whose expected place is taken: sent once the record there is committed."""

    reply: bytes
    error: TidelogError


ProduceToken: TypeAlias = BareReplies | EnvelopeReply | ExpectationReply | AppendReply | LocalReply | MarkReply


@dataclass(frozen=True, slots=True)
class Reader:
    """A consumer that waits for its answer."""

    inbox: str
    looked_up: bool = False
    read_uncommitted: bool = False


@dataclass(frozen=True, slots=True)
class MoveRequest:
    """The request that a leader drains for."""

    move: LeaderMove
    answer: DrainAnswer
