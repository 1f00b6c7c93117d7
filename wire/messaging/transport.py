"""The messaging port: the part of NATS that metadata and the data plane need, and nothing more.

The real one is `tidelog.nats.nats_connection.NatsConnection`; a simulator provides its own. Messages are delivered at
most once, in order per publisher connection and subject. Handlers are plain functions called from the event loop as a
message is read; they must not block and must not raise (an exception is logged and counted, the connection goes on).

Brokers speak to each other over `PeerTransport`: NATS, and a proof that a broker of the cluster sent each message. The
real one is `tidelog.server.peers.peer_link.PeerLink`. Its handlers get messages that were verified, without the proof.
The exception is a 503 ("no responders"): the NATS server sends it, and any client that knows the inbox can send one
too. It is a hint: its receiver asks again before it acts, and believes a verified answer more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeAlias

from wire.error_details import MAX_PAYLOAD, SIZE
from wire.errors import Code, TidelogError
from wire.messaging.violation import Violations
from wire.types import BrokerId, Buffer

NO_RESPONDERS = 503
"""Status of the message that NATS puts into the reply inbox of a request to a subject without subscribers."""


class Message(NamedTuple):
    """One message as it arrived. `data` is the payload without the NATS header block; `status` is set on NATS status
    messages only."""

    subject: str
    data: bytes
    reply: str | None = None
    headers: Mapping[str, str] | None = None
    status: int | None = None


MessageHandler: TypeAlias = Callable[[Message], None]
RawHandler: TypeAlias = Callable[[bytes, bytes | None, bytes | None, bytes], None]
"""(subject, reply, header block, payload) of one message as they stood on the wire, not decoded."""


@dataclass(slots=True)
class UniformRun:
    """Messages of equal length, one behind the other."""

    block: memoryview
    count: int
    stride: int
    """Bytes from one message to the next."""
    payload_at: int
    """Place of the payload in each message."""
    payload_size: int
    """May be 0."""
    reply: tuple[int, int] | None
    """(place, length) of the reply subject in each message."""

    def payloads(self) -> Iterator[bytes]:
        for start in range(self.payload_at, self.count * self.stride, self.stride):
            yield bytes(self.block[start : start + self.payload_size])


class BulkHandler(Protocol):
    """Receives whole runs of messages, for subjects where a Python object per message costs too much.

    All three are called from inside the socket's read callback. Everything handed over is valid during the call only,
    except the `bytes` objects of `on_messages`.
    """

    def on_uniform(self, run: UniformRun) -> None: ...

    def on_messages(self, payloads: list[bytes], replies: list[bytes | None], headers: list[bytes | None]) -> None:
        """Messages in order of arrival; the three lists have equal length; `headers` are raw NATS header blocks
        (`NATS/1.0\\r\\n…\\r\\n\\r\\n`)."""

    def chunk_done(self) -> None:
        """All messages of this handler in the bytes that the socket had are delivered."""


class GuardedBulk(BulkHandler):
    """Passes all calls to `handler`; its exceptions go to `on_error`, which may raise them again. This is no context
    manager: one takes longer than some calls that it would guard."""

    def __init__(self, handler: BulkHandler, on_error: Callable[[Exception], None]) -> None:
        self._handler = handler
        self._on_error = on_error

    def on_uniform(self, run: UniformRun) -> None:
        try:
            self._handler.on_uniform(run)
        except Exception as error:  # noqa: BLE001 - `on_error` decides
            self._on_error(error)

    def on_messages(self, payloads: list[bytes], replies: list[bytes | None], headers: list[bytes | None]) -> None:
        try:
            self._handler.on_messages(payloads, replies, headers)
        except Exception as error:  # noqa: BLE001 - `on_error` decides
            self._on_error(error)

    def chunk_done(self) -> None:
        try:
            self._handler.chunk_done()
        except Exception as error:  # noqa: BLE001 - `on_error` decides
            self._on_error(error)


class Subscription(Protocol):
    """A live subscription."""

    async def unsubscribe(self) -> None:
        """Stops delivery. Returns when the server has taken the UNSUB; nothing is delivered afterwards."""


class Transport(Protocol):
    """A NATS connection that reconnects by itself, for ever, and does not buffer while it is disconnected."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def connected_since(self) -> float:
        """Monotonic time in seconds of the last (re)connect; `inf` while disconnected."""
        ...

    @property
    def server_id(self) -> str:
        """Id of the connected NATS server: another one after each start of the server. Empty while disconnected."""
        ...

    @property
    def loss_reason(self) -> str:
        """Why the connection was lost the last time, as far as known; empty: it never was."""
        ...

    @property
    def max_payload(self) -> int:
        """Largest payload in bytes that the server takes."""
        ...

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bool:
        """Writes one message now (payload = the parts joined). Returns False, and sends nothing, when not connected or
        when the outgoing buffer is above its limit.

        Raises TidelogError(MESSAGE_TOO_LARGE), made by `too_large`, for a message above `max_payload`: the server would
        close the connection. A requester whose answer is too large is sent an error, made by `answer_too_large`.
        """
        ...

    def at_turn_end(self, call: Callable[[], None]) -> None:
        """`call` is called once, before the messages of this turn of the loop leave; what it publishes leaves with
        them."""
        ...

    def after_turn(self, call: Callable[[], None]) -> None:
        """`call` is called once, when the messages of this turn of the loop have left."""
        ...

    def publish_raw(self, lines: Sequence[Buffer]) -> bool:
        """Writes ready-made `PUB …` protocol bytes now, as one socket write. For blocks of acknowledgements."""
        ...

    def publish_to_each(self, subjects: Sequence[bytes], payload: Buffer, headers: Mapping[str, str]) -> int:
        """Writes one message to each of these reply subjects, given as received, in few socket writes. Returns how many
        were left out because they are too long."""
        ...

    async def request(
        self,
        subject: str,
        payload: Buffer,
        *,
        timeout: float,
        headers: Mapping[str, str] | None = None,
    ) -> Message:
        """Sends one request, returns the first answer. A 503 comes back as a Message with `status == NO_RESPONDERS`.
        Raises `TimeoutError` (also when the connection is lost meanwhile), TidelogError(NOT_PERMITTED) when NATS does
        not let this login ask there or have the answer, and as `publish`."""
        ...

    async def subscribe(self, subject: str, handler: MessageHandler, *, queue: str = "") -> Subscription:
        """Returns when the server knows the subscription (PING/PONG). Of all subscriptions to `subject` with the same
        `queue`, one gets each message; empty: each of them does."""
        ...

    async def subscribe_raw(self, subject: str, handler: RawHandler) -> Subscription:
        """Subscribes a handler that refuses most messages, which it gets without the cost of decoding."""
        ...

    async def subscribe_bulk(self, subject: str, handler: BulkHandler) -> Subscription: ...

    async def may_subscribe(self, subject: str) -> bool:
        """Whether NATS lets this login subscribe there. Takes no message away: a subscription is made and given up at
        once. True also while disconnected."""
        ...

    def new_inbox(self) -> str:
        """A fresh reply subject under this connection's own wildcard inbox; messages to it go to the handler given to
        `on_inbox`. Any number of answers may arrive."""
        ...

    def on_inbox(self, inbox: str, handler: MessageHandler | None) -> None:
        """Sets or, with None, removes the handler of one inbox."""
        ...

    def on_raw_inbox(self, inbox: str, handler: RawHandler) -> None:
        """Sets the handler of one inbox; `on_inbox` removes it."""
        ...

    def on_connection_change(self, handler: Callable[[bool], None]) -> None:
        """`handler(connected)` is called at every loss and every reconnect."""
        ...

    @property
    def dropped_headers(self) -> int:
        """Number of messages to handlers that were dropped because their headers are too large to be decoded."""
        ...

    @property
    def violations(self) -> Violations:
        """Subjects that NATS refuses this login."""
        ...


def too_large(subject: str, size: int, max_payload: int) -> TidelogError:
    """Returns the error that `Transport.publish` raises for a message of `size` bytes, headers included."""
    return TidelogError(
        Code.MESSAGE_TOO_LARGE,
        f"a message of {size} bytes to {subject!r} is larger than max_payload={max_payload} of the NATS server; send"
        " less at once or raise max_payload in its configuration",
        [SIZE.of(size), MAX_PAYLOAD.of(max_payload)],
    )


def answer_too_large(error: TidelogError, what: str) -> TidelogError:
    """Returns the error for a requester whose answer raised `error` when it was published; it names the remedy.
    `what` begins the sentence: "the answer to tidelog.api.stream.list". Raises `error` unless it is MESSAGE_TOO_LARGE.
    """
    if error.code is not Code.MESSAGE_TOO_LARGE:
        raise error
    size, limit = error.detail(SIZE), error.detail(MAX_PAYLOAD)
    return TidelogError(
        Code.MESSAGE_TOO_LARGE,
        f"{what} takes a message of {size} bytes, and the NATS server carries {limit}: raise max_payload in its"
        " configuration above that, and start it again",
        error.details,
    )


REFUSAL_GRACE = 0.2
"""Seconds for which a 503 does not end a request. A running broker answers sooner."""
TAG_HEADER: Final = "Tidelog-Peer"
"""Header with the trailer, in hex, of a message that others than brokers read, too."""

AnswerHandler: TypeAlias = Callable[[Message, bool], None]
"""(message, whether a broker of this cluster has sent it). A 503 comes as it is, and is not proved."""

ClaimHandler: TypeAlias = Callable[[bytes, str | None, Callable[[], bool]], None]
"""(payload, reply, `is_proved`). `is_proved()`: whether a broker of this cluster has sent the message. It costs several
times as much as a refusal, so a handler calls it only for a message of which it matters."""


class PeerTransport(Protocol):
    """Messages between brokers. As `Transport` where the docstrings say nothing else."""

    @property
    def is_connected(self) -> bool: ...

    @property
    def connected_since(self) -> float: ...

    @property
    def server_id(self) -> str: ...

    def on_connection_change(self, handler: Callable[[bool], None]) -> None: ...

    def publish(
        self,
        subject: str,
        parts: Sequence[Buffer],
        *,
        reply: str | None = None,
        headers: Mapping[str, str] | None = None,
        to: BrokerId | None = None,
    ) -> bool:
        """`to`: the broker that it is for, where only that one is meant. Messages of one turn of the loop to the same
        broker may leave as one; they arrive as if each had been sent alone, but nowhere else."""
        ...

    def after_turn(self, call: Callable[[], None]) -> None: ...

    async def request(
        self,
        subject: str,
        payload: Buffer,
        *,
        timeout: float,
        on_refused: Callable[[], None] | None = None,
    ) -> Message:
        """Sends one request, returns the first verified answer. Raises TimeoutError, also when the connection is lost.

        A 503 ends the request only after `REFUSAL_GRACE`, in which a verified answer still counts; it comes back as a
        Message with `status == NO_RESPONDERS`. With `on_refused` it does not end it: `on_refused()` is called, and the
        answer is waited for until `timeout`."""
        ...

    async def subscribe(self, subject: str, handler: MessageHandler) -> Subscription: ...

    async def may_subscribe(self, subject: str) -> bool: ...

    def new_inbox(self) -> str: ...

    def on_inbox(self, inbox: str, handler: MessageHandler | None, *, as_view: bool = False) -> None:
        """Sets or, with None, removes the handler of one inbox. A 503 comes to it only as the first message. `as_view`:
        its messages hold a memoryview of the payload, which is not copied."""
        ...

    # ---- messages that clients may send and read, too

    def publish_claim(self, subject: str, payload: Buffer, *, reply: str | None = None) -> bool:
        """Publishes a message that anybody may read: its proof is in a NATS header."""
        ...

    @property
    def hears_claims(self) -> bool:
        """Whether the connection is up over which claims come, and the requests of clients; it need not be that of the
        messages between brokers."""
        ...

    def on_claims_connection_change(self, handler: Callable[[bool], None]) -> None: ...

    async def subscribe_claims(self, subject: str, handler: ClaimHandler) -> Subscription:
        """Subscribes `handler` to messages that are not decoded. Status messages do not come to it."""
        ...

    def on_claim_inbox(self, inbox: str, handler: AnswerHandler | None) -> None: ...
