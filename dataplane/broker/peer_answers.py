"""Answers to other brokers that are not replication: refusals, and acknowledgements of what a broker appends or
ends."""

from __future__ import annotations

import logging

from dataplane.broker.acks import AppendReply
from wire.errors import TidelogError
from wire.messaging.transport import PeerTransport
from wire.types import Buffer, PartitionKey

_log = logging.getLogger(__name__)


class PeerAnswers:
    def __init__(self, peers: PeerTransport, key: PartitionKey) -> None:
        self._peers = peers
        self._key = key

    def append(self, token: AppendReply) -> None:
        self._peers.publish(token.inbox, [token.response.SerializeToString()])

    def done(self, inbox: str) -> None:
        """What was asked for is done: the answer is empty."""
        self._peers.publish(inbox, [b""])

    def error(self, inbox: str | None, error: TidelogError, body: Buffer = b"") -> None:
        """The answer is lost when there is no connection, or when NATS does not carry it: it asks again."""
        if inbox:
            try:
                self._peers.publish(inbox, [body], headers=error.to_headers())
            except TidelogError as e:
                _log.warning("partition %s: a refusal cannot be sent: %s", self._key, e)
