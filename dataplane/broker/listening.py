"""One replica's subscription for consumers, from its first role on, through all of them: a change of role waits for no
subscription."""

from __future__ import annotations

import asyncio
import logging

from dataplane.broker.context import BrokerContext
from wire.messaging.transport import MessageHandler, Subscription
from wire.types import PartitionKey

_log = logging.getLogger(__name__)


class ConsumerListener:
    def __init__(self, key: PartitionKey) -> None:
        self._key = key
        self._listening: asyncio.Task[Subscription] | None = None

    def start(self, context: BrokerContext, handler: MessageHandler) -> None:
        """The subscription waits for the connection, however long that takes."""
        if self._listening is None:
            subject = context.subjects.fetch_from(self._key.stream, self._key.partition, context.broker)
            self._listening = context.loop.create_task(context.ingest.subscribe(subject, handler))

    async def stop(self) -> None:
        listening, self._listening = self._listening, None
        if listening is None:
            return
        listening.cancel()
        await asyncio.wait({listening})
        if listening.cancelled():
            return
        error = listening.exception()
        if error is not None:
            _log.error("partition %s: could not listen to consumers: %r", self._key, error)
            return
        await listening.result().unsubscribe()
