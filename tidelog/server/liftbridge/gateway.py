"""Shared by the calls: the client of the cluster, the cluster state that this broker has applied, and the addresses
of the brokers' ports.

A broker publishes the address of its port in its labels, with its answers to the controller's probes; `cluster status`
has them all. They are asked for at most once in ADDRESSES_FOR seconds, and the last ones count while no controller
answers. Where the port's login may not ask, only this broker has an address, and answers for all leaders.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Stream
from tidelog.client.client import Client
from tidelog.server.liftbridge.port_settings import ADDRESS_LABEL
from wire.errors import Code, TidelogError
from wire.internal_streams import is_internal
from wire.messaging.transport import Transport
from wire.subjects import Subjects
from wire.types import BrokerId, StreamName

_log = logging.getLogger(__name__)

ADDRESSES_FOR = 2.0
"""Seconds."""
KNOWN_WITHIN = 2.0
"""Seconds that a created stream waits to be known to this broker with its leaders."""


class Gateway:
    """`transport` is that of `client`. `state()`: the applied state at the time of the call. `until_applied(holds,
    timeout)` waits for it to be so."""

    def __init__(
        self,
        broker: BrokerId,
        client: Client,
        transport: Transport,
        subjects: Subjects,
        state: Callable[[], Cluster],
        own_address: str,
        until_applied: Callable[[Callable[[], bool], float], Awaitable[None]],
    ) -> None:
        self.broker = broker
        self.client = client
        self.transport = transport
        self.subjects = subjects
        self._state = state
        self._until_applied = until_applied
        self._addresses: dict[BrokerId, str] = {broker: own_address}
        self._addresses_until = 0.0
        self._asking = asyncio.Lock()
        self.is_closing = False

    @property
    def state(self) -> Cluster:
        return self._state()

    def stream(self, name: str) -> Stream | None:
        """Returns the stream; None: there is none, or it is internal."""
        stream = self.state.streams.get(StreamName(name))
        return None if stream is None or is_internal(name, stream.subject, self.subjects) else stream

    def streams(self) -> list[Stream]:
        """Returns all streams but internal ones."""
        return [each for each in self.state.streams.values() if not is_internal(each.name, each.subject, self.subjects)]

    async def until_known(self, name: str) -> None:
        """Waits until this broker knows the stream and a leader of each of its partitions; for KNOWN_WITHIN at most:
        the stream exists in any case."""

        def is_known() -> bool:
            stream = self.stream(name)
            return stream is not None and all(each.leader is not None for each in stream.partitions.values())

        await self._until_applied(is_known, KNOWN_WITHIN)

    async def addresses(self) -> Mapping[BrokerId, str]:
        """Returns the addresses of the brokers that are alive and have the port: `host:port`."""
        loop = asyncio.get_running_loop()
        if loop.time() >= self._addresses_until:
            async with self._asking:
                if loop.time() >= self._addresses_until:
                    await self._ask_for_addresses()
                    self._addresses_until = loop.time() + ADDRESSES_FOR
        state = self.state
        return {
            broker: address
            for broker, address in self._addresses.items()
            if broker == self.broker or state.is_alive(broker)
        }

    async def _ask_for_addresses(self) -> None:
        try:
            status = await self.client.cluster_status()
        except TidelogError as error:
            if not error.retriable and error.code is not Code.NOT_PERMITTED:
                raise
            _log.info("the addresses of other brokers are those of before: %s", error)
            return
        found = {
            BrokerId(each["id"]): each["labels"][ADDRESS_LABEL]
            for each in status["brokers"]
            if ADDRESS_LABEL in each["labels"]
        }
        self._addresses = {**found, self.broker: self._addresses[self.broker]}
