"""Offsets of consumer groups in transactions, against brokers and coordinators in memory."""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_nats import delivered
from tests.unit.tidelog.client.transactions_world import World
from tidelog.client.errors import (
    BadRequest,
    NotAssigned,
    TransactionAborted,
)
from wire.errors import Code, TidelogError
from wire.groups import COMMIT, OFFSETS
from wire.types import FIRST_TRANSACTIONAL_ID


async def test_offsets_of_a_consumer_go_with_the_transaction(world: World) -> None:
    world.broker.seed("s", 0, [b"%d" % number for number in range(5)])
    async with (
        world.client.subscribe("s", group="g", auto_commit=False) as consumer,
        world.producer() as producer,
    ):
        records = await consumer.getmany(3, timeout=5)
        async with producer.transaction():
            for record in records:
                await producer.send("three", record.value, partition=0)
            await producer.send_offsets(group=consumer)
        (commit,) = world.groups.group("g").commits
        assert commit.member == consumer.member_id
        assert commit.generation == consumer.generation
        assert (commit.producer_id, commit.producer_epoch) == (FIRST_TRANSACTIONAL_ID, 0)
        world.transactions.check_commit(commit)
        assert [(each.stream, each.partition, each.offset) for each in commit.offsets] == [("s", 0, 3)]
    assert [*world.adds[-1].groups] == ["g"]


async def test_a_consumer_that_commits_by_itself_is_refused(world: World) -> None:
    async with world.client.subscribe("s", group="g") as consumer, world.producer() as producer:
        with pytest.raises(BadRequest, match="auto_commit=False"):
            async with producer.transaction():
                await producer.send_offsets(group=consumer)


async def test_offsets_of_a_group_without_members(world: World) -> None:
    async with world.producer() as producer, producer.transaction():
        await producer.send_offsets({("three", 1): 17}, group="g")
        await producer.send_offsets({}, group="other")
    (commit,) = world.groups.group("g").commits
    assert [(each.stream, each.partition, each.offset) for each in commit.offsets] == [("three", 1, 17)]
    assert not commit.member
    assert world.ends == [True]


async def test_the_commits_of_a_transaction_are_numbered_whichever_consumer_they_are_of(world: World) -> None:
    """A group's coordinator takes none that comes behind a later one of the same transaction."""
    world.broker.seed("three", 0, [b"0"])
    world.broker.seed("three", 1, [b"1"])
    async with (
        world.client.subscribe("three", group="g", auto_commit=False) as first,
        world.client.subscribe("three", group="other", auto_commit=False) as second,
        world.producer() as producer,
        producer.transaction(),
    ):
        for consumer in (first, second, first):
            await consumer.start()
            await producer.send_offsets({("three", 0): 1}, group=consumer)
        await producer.send_offsets({("s", 0): 1}, group="memberless")
        await asyncio.gather(*(producer.send_offsets({("s", 0): n}, group="memberless") for n in (2, 3)))
    numbers = [[each.number for each in world.groups.group(name).commits] for name in ("g", "other", "memberless")]
    assert numbers == [[1, 3], [2], [4, 5, 6]]


async def test_offsets_that_are_refused_doom_the_transaction(world: World) -> None:
    world.broker.seed("s", 0, [b"0"])
    async with (
        world.client.subscribe("s", group="g", auto_commit=False) as consumer,
        world.producer() as producer,
    ):
        await consumer.getmany(1, timeout=5)
        await producer.begin()
        await producer.send("three", b"-", partition=0)
        world.groups.refusals[COMMIT] = [TidelogError(Code.NOT_ASSIGNED, "it is another member's")]
        with pytest.raises(NotAssigned):
            await producer.send_offsets(group=consumer)
        with pytest.raises(TransactionAborted, match="another member's"):
            await producer.commit()
    assert not world.readable("three", 0)


async def test_a_commit_waits_for_offsets_on_their_way(world: World) -> None:
    async with world.producer() as producer:
        await producer.begin()
        world.groups.refusals[COMMIT] = [TidelogError(Code.UNAVAILABLE, "not now")] * 2
        sending = asyncio.create_task(producer.send_offsets({("s", 0): 3}, group="g"))
        await delivered()
        await producer.commit()
        assert sending.done()
        await sending
    assert len(world.groups.group("g").commits) == 1


async def test_after_an_abort_the_records_are_read_again(world: World) -> None:
    world.broker.seed("three", 0, [b"%d" % number for number in range(5)])
    world.broker.seed("three", 1, [b"%d" % number for number in range(5)])
    async with world.client.subscribe("three", group="g", auto_commit=False) as consumer:
        first = {
            (record.partition, record.offset) for _ in range(10) if (record := await consumer.getone(5)) is not None
        }
        assert len(first) == 10
        await consumer.commit({("three", 0): 2})
        await consumer.seek_to_committed()
        again = [record for _ in range(8) if (record := await consumer.getone(5)) is not None]
    assert sorted((record.partition, record.offset) for record in again) == sorted(first - {(0, 0), (0, 1)})


async def test_a_new_member_waits_for_pending_offsets(world: World) -> None:
    """The answer would be the old offset, and records would be processed twice."""
    world.broker.seed("s", 0, [b"%d" % number for number in range(5)])
    pending = TidelogError(Code.UNAVAILABLE, "offsets are pending", {"retry_after_ms": "1"})
    world.groups.refusals[OFFSETS] = [pending] * 3
    async with world.client.subscribe("s", group="g", auto_commit=False) as consumer:
        assert len(await consumer.getmany(5, timeout=5)) == 5
    assert not world.groups.refusals[OFFSETS]
