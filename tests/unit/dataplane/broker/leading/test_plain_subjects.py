"""The subjects of plain messages: they follow what is wanted, however long subscribing takes."""

from __future__ import annotations

import asyncio

import pytest

from dataplane.broker.leading.leader_driver import PlainSubjects
from wire.messaging.transport import Subscription


class Nats:
    def __init__(self) -> None:
        self.held: list[str] = []
        self.connected = asyncio.Event()
        self.connected.set()
        self.error: OSError | None = None
        self.subjects = PlainSubjects(asyncio.get_running_loop(), self._subscribe)

    async def _subscribe(self, subject: str) -> Subscription:
        await self.connected.wait()
        if self.error is not None:
            raise self.error
        self.held.append(subject)
        return _Subscription(self, subject)

    async def settle(self) -> list[str]:
        for _ in range(8):
            await asyncio.sleep(0)
        return sorted(self.held)


class _Subscription:
    def __init__(self, nats: Nats, subject: str) -> None:
        self._nats, self._subject = nats, subject

    async def unsubscribe(self) -> None:
        self._nats.held.remove(self._subject)


async def test_nothing_is_subscribed_before_the_role_begins() -> None:
    nats = Nats()
    nats.subjects.follow(("s",))
    assert await nats.settle() == []
    assert await nats.subjects.begin()
    assert nats.held == ["s"]


async def test_what_is_wanted_when_the_connection_is_back_counts() -> None:
    nats = Nats()
    nats.subjects.follow(("s", "s.2"))
    await nats.subjects.begin()
    nats.connected.clear()
    nats.subjects.follow(("s", "s.4"))
    assert await nats.settle() == ["s"]
    nats.subjects.follow(("s.6",))
    nats.connected.set()
    assert await nats.settle() == ["s.6"]


async def test_a_beginning_that_is_given_up_releases_what_it_made() -> None:
    nats = Nats()
    nats.subjects.follow(("s",))
    nats.connected.clear()
    begins = asyncio.create_task(nats.subjects.begin())
    await nats.settle()
    nats.subjects.give_up()
    assert not await begins
    await nats.subjects.drop()
    nats.connected.set()
    nats.subjects.follow(("s", "s.2"))
    assert await nats.settle() == []


async def test_all_are_released_in_the_end() -> None:
    nats = Nats()
    nats.subjects.follow(("s", "s.2"))
    await nats.subjects.begin()
    await nats.subjects.drop()
    assert nats.held == []


async def test_a_subscription_that_fails_is_raised_in_the_beginning_and_tried_again_with_the_next_view(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nats = Nats()
    nats.error = ConnectionError("closed")
    nats.subjects.follow(("s",))
    with pytest.raises(ConnectionError, match="closed"):
        await nats.subjects.begin()
    nats.subjects.follow(("s",))
    assert await nats.settle() == []
    assert "subscribing to s" in caplog.text
    nats.error = None
    nats.subjects.follow(("s",))
    assert await nats.settle() == ["s"]
