"""Messages between brokers, where a forger is about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tidelog.server.peers.peer_tags import TRAILER_BYTES

if TYPE_CHECKING:
    from tests.simulation.world import World
    from wire.messaging.transport import Message


class OnlyBrokersAreBelieved:
    """R42: what a broker takes as a broker's message was sent by one, to this subject and with this reply, and is taken
    once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sent: set[tuple[str, bytes, str | None]] = set()
        self._taken: set[tuple[str, bytes]] = set()

    def sent(self, message: Message) -> None:
        """By a broker."""
        self._sent.add((message.subject, message.data, message.reply))

    def taken(self, broker: str, message: Message) -> None:
        """By the handlers of this life of a broker."""
        trailer = message.data[-TRAILER_BYTES:]
        if (message.subject, message.data, message.reply) not in self._sent:
            self._world.broken(
                type(self).__name__,
                f"{broker} takes {message.data[:40]!r} on {message.subject} with reply {message.reply} for a broker's",
            )
        if (broker, trailer) in self._taken:
            self._world.broken(type(self).__name__, f"{broker} takes a message on {message.subject} twice")
        self._taken.add((broker, trailer))
