"""Cursors against a coordinator in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from tests.unit.tidelog.client.fake_broker import make
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator
from tidelog.client.base.exceptions import BadName, BadRequest, CursorChanged, DeliveryTimeout, NoServer
from tidelog.client.client import Client
from tidelog.client.cluster import coordinator_link
from tidelog.client.group import named_cursor
from tidelog.client.group.named_cursor import CursorValue
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import CURSOR


@dataclass
class World:
    client: Client
    coordinator: FakeCoordinator


@pytest.fixture
async def world() -> AsyncIterator[World]:
    transport, _, client = make()
    yield World(client, FakeCoordinator(transport, {}))
    await client.close()


async def test_it_is_not_there_then_set_then_deleted(world: World) -> None:
    cursor = world.client.cursor("c")
    assert await cursor.get() is None
    version = await cursor.set(b"one")
    assert await cursor.get() == CursorValue(b"one", version)
    assert await cursor.set(b"two") > version
    await cursor.delete()
    assert await cursor.get() is None


async def test_compare_and_set(world: World) -> None:
    cursor = world.client.cursor("c")
    version = await cursor.set(b"one", expected_version=0)
    with pytest.raises(CursorChanged) as raised:
        await cursor.set(b"other", expected_version=0)
    assert raised.value.version == version
    newer = await cursor.set(b"two", expected_version=version)
    with pytest.raises(CursorChanged):
        await cursor.delete(expected_version=version)
    await cursor.delete(expected_version=newer)
    assert await cursor.get() is None


async def test_a_lost_answer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_link, "ATTEMPT_TIMEOUT", 0.3)
    cursor = world.client.cursor("c")
    world.coordinator.swallow[CURSOR] = 1
    await cursor.set(b"one")
    world.coordinator.swallow[CURSOR] = 1
    found = await cursor.get()
    assert found is not None
    world.coordinator.swallow[CURSOR] = 1
    with pytest.raises(DeliveryTimeout, match="may be that of this write") as raised:
        await cursor.set(b"two", expected_version=found.version)
    assert raised.value.outcome_unknown
    now = await cursor.get()
    assert now is not None
    assert now.value == b"two"
    world.coordinator.swallow[CURSOR] = 1
    await cursor.delete(expected_version=now.version)
    assert await cursor.get() is None


async def test_refusals_that_pass_are_waited_out(world: World) -> None:
    world.coordinator.refusals[CURSOR] = [TidelogError(Code.UNAVAILABLE, "it moves")] * 2
    assert await world.client.cursor("c").set(b"one")


async def test_nobody_answers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(named_cursor, "_TIMEOUT", 1.0)
    world.coordinator.refusals[CURSOR] = [TidelogError(Code.UNAVAILABLE, "it moves")] * 99
    with pytest.raises(NoServer, match=r"did not carry out the cursor request within 1 s: it moves"):
        await world.client.cursor("c").get()


async def test_arguments_that_cannot_be(world: World) -> None:
    with pytest.raises(BadName, match=r"cursor name 'a\.b'"):
        world.client.cursor("a.b")
    cursor = world.client.cursor("c")
    with pytest.raises(BadRequest, match="value='text'"):
        await cursor.set("text")  # type: ignore[arg-type]
    with pytest.raises(BadRequest, match="at most 4096 bytes, and this one has 4097"):
        await cursor.set(bytes(4097))
    with pytest.raises(BadRequest, match="expected_version=-1"):
        await cursor.set(b"", expected_version=-1)
