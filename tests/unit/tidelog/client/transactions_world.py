"""Transactional producers and consumers against brokers and coordinators in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tests.fake_nats import FakeTransport
from tests.unit.tidelog.client.fake_broker import FakeBroker
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator
from tests.unit.tidelog.client.fake_transactions import FakeTransactions
from tidelog.client.client import Client
from tidelog.client.transaction.transactional_producer import TransactionalProducer
from wire.protobuf.transactions_pb2 import AddRequest, EndRequest


@dataclass
class World:
    transport: FakeTransport
    broker: FakeBroker
    transactions: FakeTransactions
    groups: FakeCoordinator
    client: Client

    def producer(self, name: str = "billing", **options: float) -> TransactionalProducer:
        made: TransactionalProducer = self.client.producer(transactional_id=name, **options)  # type: ignore[call-overload]
        return made

    def readable(self, stream: str = "s", partition: int = 0) -> list[bytes | None]:
        return self.transactions.readable(stream, partition)

    @property
    def adds(self) -> list[AddRequest]:
        return [request for request in self.transactions.requests if isinstance(request, AddRequest)]

    @property
    def ends(self) -> list[bool]:
        """Of each transaction that was ended: whether by a commit. A request may be sent again."""
        ends = [request for request in self.transactions.requests if isinstance(request, EndRequest)]
        return [*{(end.transactional_id, end.producer_id, end.producer_epoch): end.commits for end in ends}.values()]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 - many things may change it
            await asyncio.sleep(0.001)
