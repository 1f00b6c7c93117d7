"""The port over which brokers speak to each other: NATS, and a proof that a broker of the cluster sent each message.

The real one is `tidelog.server.peers.link.PeerLink`. Its handlers get messages that were verified, without what proves
them, so that nobody above needs to know. The exception is a 503 ("no responders"): the NATS server says it, and anybody
who knows the inbox can say it too. It is a hint: whoever acts on it asks again, and believes a verified answer more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from wire.transport import Message, MessageHandler, Subscription
from wire.types import Buffer

TAG_HEADER: Final = "Tidelog-Peer"
"""In hex, the trailer of a message that others read, too."""

AnswerHandler: TypeAlias = Callable[[Message, bool], None]
"""(message, whether a broker of this cluster has sent it). A 503 comes as it is, and is not proved."""

ClaimHandler: TypeAlias = Callable[[bytes, str | None, Callable[[], bool]], None]
"""(payload, reply, `is_proved`). `is_proved()` says whether a broker of this cluster has sent the message. It costs
several times as much as a refusal, so a handler asks it only about a message of which it matters."""


class PeerTransport(Protocol):
    """Messages between brokers. As `wire.transport.Transport` where nothing else is said."""

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
    ) -> bool: ...

    async def request(
        self,
        subject: str,
        payload: Buffer,
        *,
        timeout: float,
        on_refused: Callable[[], None] | None = None,
    ) -> Message:
        """One request, first verified answer. Raises TimeoutError, also when the connection is lost meanwhile.

        A 503 ends the request only after `REFUSAL_GRACE`, in which a verified answer still counts; it comes back as a
        Message with `status == NO_RESPONDERS`. With `on_refused` it does not end it: that is called, and the answer is
        waited for until `timeout`."""
        ...

    async def subscribe(self, subject: str, handler: MessageHandler) -> Subscription: ...

    async def may_subscribe(self, subject: str) -> bool: ...

    def new_inbox(self) -> str: ...

    def on_inbox(self, inbox: str, handler: MessageHandler | None, *, as_view: bool = False) -> None:
        """Set or, with None, remove the handler of one inbox. A 503 comes to it only as the first message. `as_view`:
        its messages hold a memoryview of the payload, which is not copied."""
        ...

    # ---- messages that others may send and read, too

    def publish_claim(self, subject: str, payload: Buffer, *, reply: str | None = None) -> bool:
        """A message for everybody: its proof is in a NATS header."""
        ...

    @property
    def hears_claims(self) -> bool:
        """The connection stands over which claims come, and the requests of clients; it need not be that of the
        messages between brokers."""
        ...

    def on_claims_connection_change(self, handler: Callable[[bool], None]) -> None: ...

    async def subscribe_claims(self, subject: str, handler: ClaimHandler) -> Subscription:
        """Nothing of a message is decoded before `handler` has it. Status messages do not come to it."""
        ...

    def on_claim_inbox(self, inbox: str, handler: AnswerHandler | None) -> None: ...


REFUSAL_GRACE = 0.2
"""Seconds. A broker that lives answers sooner, unless it stands still."""
