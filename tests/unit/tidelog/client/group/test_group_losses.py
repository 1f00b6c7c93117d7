"""What a member of a group holds while partitions come and go: its commits say what they left out, and pauses stay."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.tidelog.client.group.members_world import S0, S1, World, members_world, take, until
from tidelog.client.base.exceptions import NotAssigned, UnknownMember


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with members_world() as made:
        yield made


@pytest.mark.parametrize("auto_commit", [True, False])
async def test_a_commit_says_of_which_partitions_nothing_is_committed(world: World, auto_commit: bool) -> None:
    """Work that took longer than `max_poll_interval`: the partitions are another member's."""
    options: Any = {"group": "g", "max_poll_interval": 3.0, "auto_commit": auto_commit}
    async with world.client().subscribe("s", **options) as one:
        assert {record.partition for _ in range(2) for record in await one.getmany(timeout=30)} == {0, 1}
        await until(lambda: not world.group.members)
        before = {**world.committed}
        with pytest.raises(NotAssigned, match="s/0, s/1 went to others before"):
            await one.commit()
        assert world.committed == before
        with pytest.raises(UnknownMember):
            await one.getone()
        assert len(await take(one, 20)) == 20
        await one.commit()
        assert world.committed == {S0: 10, S1: 10}


async def test_a_commit_of_a_part_raises_too(world: World) -> None:
    async with world.client().subscribe("s", group="g", auto_commit=False) as one:
        await take(one, 20)
        async with world.client().subscribe("s", group="g", auto_commit=False) as two:
            await until(lambda: len(two.assignment) == 1)
            (gone,), (kept,) = two.assignment, one.assignment
            with pytest.raises(NotAssigned, match=f"^{gone[0]}/{gone[1]} went"):
                await one.commit()
            assert world.committed.get(kept) == 10, "what it has is committed"
            assert world.committed.get(gone, 0) in (-1, 0)
            await one.commit()


async def test_a_commit_in_on_revoked_is_in_time(world: World) -> None:
    async def commit(_: object) -> None:
        await one.commit()

    one = world.client().subscribe("s", group="g", auto_commit=False, on_revoked=commit)
    async with one:
        await take(one, 20)
        async with world.client().subscribe("s", group="g", auto_commit=False) as two:
            await until(lambda: len(two.assignment) == 1)
            assert world.committed == {S0: 10, S1: 10}
            await one.commit()


@pytest.mark.parametrize("which", [(), (S0,)], ids=["all", "one"])
async def test_a_pause_in_on_assigned_holds_from_the_first_record_on(world: World, which: tuple[Any, ...]) -> None:
    one = world.client().subscribe("s", group="g", on_assigned=lambda _: one.pause(*which))
    async with one:
        await until(lambda: len(one.positions) == 2)
        assert one.paused == set(which or (S0, S1))
        await until(lambda: min(one.lag.values()) == 10)
        for _ in range(0 if not which else 10):
            record = await one.getone(timeout=30)
            assert record is not None
            assert record.partition == 1
        assert await one.getone(timeout=0.05) is None
        one.resume()
        assert len(await take(one, 10)) == 10


async def test_a_pause_of_what_is_assigned_and_not_begun_holds(world: World) -> None:
    async with world.client().subscribe("s", group="g") as one:
        assert one.assignment == {S0, S1}
        assert not one.positions, "it has not begun"
        one.pause()
        await until(lambda: len(one.positions) == 2)
        assert await one.getone(timeout=0.05) is None
        async with world.client().subscribe("s", group="g") as two:
            await until(lambda: len(two.assignment) == 1 == len(one.assignment))
            assert one.paused == one.assignment, "of what stays"
            assert await one.getone(timeout=0.05) is None
        await until(lambda: len(one.assignment) == 2)
        assert len(one.paused) == 1, "what has come back is read"
        assert len(await take(one, 10)) == 10
        assert await one.getone(timeout=0.05) is None
