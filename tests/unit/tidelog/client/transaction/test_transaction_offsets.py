"""Offsets of consumer groups in transactions, against brokers and coordinators in memory."""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_nats import FakeTransport, delivered
from tests.unit.tidelog.client.transactions_world import World, until
from tidelog.client.base.exceptions import (
    BadRequest,
    NotAssigned,
    TransactionAborted,
)
from tidelog.client.client import Client
from tidelog.client.cluster.metadata_cache import StreamMetadata
from tidelog.client.group.group_commits import Mark
from tidelog.client.group.group_consumer import Committed
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import COMMIT, OFFSETS
from wire.types import FIRST_TRANSACTIONAL_ID


def another_client(world: World) -> Client:
    transport = FakeTransport(world.transport.hub)
    return Client(transport, world.broker.subjects, server="nats://fake:4222", name="other", api_timeout=0.5)


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


async def test_offsets_of_a_transaction_open_the_next_partition(world: World) -> None:
    world.broker.seed("s", 0, [b"%d" % number for number in range(5)])
    world.broker.repartition("s", 2)
    world.groups.streams["s"] = world.groups.streams["s"][0], 2
    world.broker.seed("s", 1, [b"5"])
    async with (
        world.client.subscribe("s", group="g", auto_commit=False) as consumer,
        world.producer() as producer,
    ):
        while len(consumer.positions) < 2 or consumer.positions["s", 0] < 5:
            await consumer.getmany(5, timeout=0.05)
        assert await consumer.getone(timeout=0.05) is None
        assert consumer.waiting == {("s", 1): {("s", 0): 5}}
        async with producer.transaction():
            await producer.send_offsets(group=consumer)
        record = await consumer.getone(timeout=5)
        assert record is not None
        assert record.partition == 1


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


@pytest.mark.parametrize("offsets", [None, {("s", 0): 3}])
async def test_records_of_a_partition_that_was_lost_are_not_committed(
    world: World, offsets: dict[tuple[str, int], int] | None
) -> None:
    """Nor where the member has it again: another one may have processed them meanwhile."""
    world.broker.seed("s", 0, [b"%d" % number for number in range(5)])
    async with (
        world.client.subscribe("s", group="g", auto_commit=False) as consumer,
        world.producer() as producer,
    ):
        records = await consumer.getmany(3, timeout=5)
        before = consumer.member_id
        world.groups.remove("g", before)
        await until(lambda: consumer.member_id != before and consumer.assignment == {("s", 0)})
        await producer.begin()
        await producer.send("three", records[0].value, partition=0)
        with pytest.raises(NotAssigned, match="seek_to_committed"):
            await producer.send_offsets(offsets, group=consumer)
        with pytest.raises(TransactionAborted, match="taken away"):
            await producer.commit()
        assert not world.readable("three", 0)
        assert world.ends == [False]
        await consumer.seek_to_committed()
        again = await consumer.getmany(3, timeout=5)
        assert [record.offset for record in again] == [0, 1, 2]
        async with producer.transaction():
            await producer.send_offsets(offsets, group=consumer)
        assert [each.offset for each in world.groups.group("g").commits[-1].offsets] == [3]


async def test_records_of_a_partition_that_was_revoked_between_two_polls_are_not_committed(world: World) -> None:
    for partition in range(3):
        world.broker.seed("three", partition, [b"-"])
    async with (
        world.client.subscribe("three", group="g", auto_commit=False) as consumer,
        world.producer() as producer,
    ):
        taken = await consumer.getmany(1, timeout=5)
        while len(taken) < 3:
            taken += await consumer.getmany(1, timeout=5)
        async with another_client(world).subscribe("three", group="g", auto_commit=False) as other:
            while len(other.assignment) != 1:
                await consumer.getmany(1, timeout=0.01)
            await until(lambda: len(consumer.assignment) == 2)
            with pytest.raises(NotAssigned):
                async with producer.transaction():
                    await producer.send_offsets(group=consumer)
            (kept, _) = sorted(consumer.assignment)
            await producer.begin()
            await producer.send_offsets({kept: 1}, group=consumer)  # what the program names is its own affair
            await producer.abort()


async def test_offsets_that_were_sent_outlive_their_partition(world: World) -> None:
    """They are pending at the coordinator: nobody reads on before they are committed."""
    world.broker.seed("s", 0, [b"-"])
    async with (
        world.client.subscribe("s", group="g", auto_commit=False) as consumer,
        world.producer() as producer,
    ):
        await consumer.getmany(1, timeout=5)
        async with producer.transaction():
            await producer.send_offsets(group=consumer)
        before = consumer.member_id
        world.groups.remove("g", before)
        await until(lambda: consumer.member_id != before and consumer.assignment == {("s", 0)})
        async with producer.transaction():
            await producer.send_offsets(group=consumer)
    # The second one has the same offset again, if reading has begun by then; else nothing.
    assert world.ends in ([True], [True, True])


async def test_offsets_are_refused_where_the_partition_went_before_they_were_taken(world: World) -> None:
    """It went to another member, and came back, while the coordinator was asked."""
    world.broker.seed("s", 0, [b"-"])
    async with world.client.subscribe("s", group="g", auto_commit=False) as consumer:
        await consumer.getmany(1, timeout=5)
        commits = consumer._commits
        assert commits is not None
        (of,) = claim = commits.claim()
        commits.settle({of: Mark(1, 1)}, claim)
        before = consumer.member_id
        world.groups.remove("g", before)
        await until(lambda: consumer.member_id != before and consumer.assignment == {("s", 0)})
        with pytest.raises(NotAssigned):
            commits.settle({of: Mark(1, 1)}, claim)


async def test_a_partition_that_comes_back_is_not_sought(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another member has committed meanwhile stays ahead of what was asked for before."""
    world.broker.seed("s", 0, [b"%d" % number for number in range(5)])
    async with world.client.subscribe("s", group="g", auto_commit=False) as consumer:
        await consumer.getmany(2, timeout=5)
        await consumer.commit({("s", 0): 1})
        ask = consumer.committed

        async def ask_slowly() -> dict[tuple[str, int], Committed]:
            found = await ask()
            (offset,) = world.groups.group("g").offsets.values()
            offset.offset = 3
            before = consumer.member_id
            world.groups.remove("g", before)
            await until(lambda: consumer.member_id != before and consumer.positions == {("s", 0): 3})
            return found

        monkeypatch.setattr(consumer, "committed", ask_slowly)
        await consumer.seek_to_committed()
        assert [record.offset for record in await consumer.getmany(5, timeout=5)] == [3, 4]


async def test_a_partition_that_goes_while_it_is_sought(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that seek it hear that; those that go back to what is committed have nothing to go back to."""
    for partition in range(3):
        world.broker.seed("three", partition, [b"-"])
    async with world.client.subscribe("three", group="g", auto_commit=False) as consumer:
        await until(lambda: len(consumer.positions) == 3)
        metadata = consumer._metadata
        get = metadata.get

        async def lose(stream: str) -> StreamMetadata:
            consumer._partitions.lose(frozenset(consumer._state.partitions))
            return await get(stream)

        monkeypatch.setattr(metadata, "get", lose)
        with pytest.raises(BadRequest, match="taken away"):
            await consumer.seek("three", 0, "earliest")
        monkeypatch.setattr(metadata, "get", get)
        before = consumer.member_id
        world.groups.remove("g", before)
        await until(lambda: consumer.member_id != before and len(consumer.positions) == 3)
        monkeypatch.setattr(metadata, "get", lose)
        await consumer.seek_to_committed()
