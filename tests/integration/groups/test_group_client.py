"""Consumer groups and cursors as programs and operators use them, on real brokers."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import select
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

import tidelog
import tidelog.sync
from tests.integration.rig.command_line import command, start_tidelog
from tests.integration.rig.waiting import LIMIT
from tidelog.server.devcluster import DevCluster
from wire.internal_records.group_records import coordinator_partition
from wire.internal_streams import GROUPS


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url) as running:
        yield running


async def until(condition: Callable[[], bool] | Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT):
        while True:
            found = condition()
            if await found if isinstance(found, Awaitable) else found:
                return
            await asyncio.sleep(0.01)


async def fill(client: tidelog.Client, stream: str, partitions: int, each: int) -> None:
    await client.create_stream(stream, partitions=partitions)
    async with client.producer(stream) as producer:
        for partition in range(partitions):
            await producer.send_many([b"%d" % number for number in range(each)], partition=partition)


async def read(consumer: tidelog.GroupConsumer, count: int) -> list[tuple[int, int]]:
    """(partition, offset)."""
    found: list[tuple[int, int]] = []
    while len(found) < count:
        records = await consumer.getmany(timeout=LIMIT)
        assert records, f"{len(found)} of {count} records came"
        found += [(record.partition, record.offset) for record in records]
    return found


async def test_members_share_and_go_on_over_the_death_of_the_coordinator(
    cluster: DevCluster, client: tidelog.Client
) -> None:
    await fill(client, "shared", 4, 1000)
    async with (
        client.subscribe("shared", group="workers") as one,
        await tidelog.connect(cluster.nats_url) as second,
        second.subscribe(patterns="shar*", group="workers") as two,
    ):
        await until(lambda: len(one.assignment) == 2 == len(two.assignment))
        first = await asyncio.gather(read(one, 500), read(two, 500))
        described = await client.describe(GROUPS.name)
        leader = described["partitions"][coordinator_partition("workers")]["leader"]
        assert leader is not None
        cluster.kill(leader)
        rest = await asyncio.gather(read(one, 2000 - len(first[0])), read(two, 2000 - len(first[1])))
        await asyncio.gather(one.commit(), two.commit())
        cluster.start_broker(leader)
        assert len(one.assignment) == 2 == len(two.assignment)
        assert sorted([*first[0], *first[1], *rest[0], *rest[1]]) == [(p, o) for p in range(4) for o in range(1000)]

        async def all_is_read() -> bool:
            """As soon as the leaders tell where their logs end."""
            found = await client.describe_group("workers")
            assert found["members"] == 2
            assert {entry["member"] for entry in found["progress"]} == {one.member_id, two.member_id}
            return [entry["lag"] for entry in found["progress"]] == [0] * 4

        await until(all_is_read)
        with pytest.raises(tidelog.GroupNotEmpty):
            await client.reset_group("workers", to="earliest")
        with pytest.raises(tidelog.GroupNotEmpty):
            await client.delete_group("workers")
    cluster.wait_ready(2 * LIMIT)
    assert (await client.describe_group("workers"))["members"] == 0


async def test_a_static_member_comes_back_without_a_rebalance(cluster: DevCluster, client: tidelog.Client) -> None:
    await fill(client, "static", 2, 10)
    told: list[str] = []
    async with client.subscribe(
        "static", group="static", on_revoked=lambda _: told.append("revoked"), on_assigned=lambda _: told.append("new")
    ) as one:
        async with client.subscribe("static", group="static", instance_id="b") as two:
            await until(lambda: len(one.assignment) == 1 == len(two.assignment))
            had, generation = two.assignment, two.generation
        told.clear()
        async with client.subscribe("static", group="static", instance_id="b") as two:
            await until(lambda: two.assignment == had)
            assert two.generation == generation
            assert told == []
            async with client.subscribe("static", group="static", instance_id="b") as three:
                await until(lambda: three.assignment == had)
                await until(lambda: two.assignment == frozenset())
                with pytest.raises(tidelog.FencedInstance):
                    await two.getone(timeout=LIMIT)


async def test_offsets_are_reset_and_groups_deleted(client: tidelog.Client) -> None:
    await fill(client, "orders", 2, 100)
    with pytest.raises(tidelog.UnknownGroup):
        await client.reset_group("later", to="earliest")
    assert [change["after"] for change in await client.reset_group("later", to="latest", streams="orders")] == [100] * 2
    shifted = await client.reset_group("later", shift=-30, partitions=[1])
    assert shifted == [{"stream": "orders", "partition": 1, "before": 100, "after": 70}]
    planned = await client.reset_group("later", to=7, dry_run=True)
    assert [(change["before"], change["after"]) for change in planned] == [(100, 7), (70, 7)]
    found = (await client.describe_group("later"))["progress"]
    assert [(entry["committed"], entry["lag"]) for entry in found] == [(100, 0), (70, 30)]
    assert [each["after"] for each in await client.reset_group("later", shift=10**9)] == [100, 100]
    an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
    assert [each["after"] for each in await client.reset_group("later", to=an_hour_ago)] == [0, 0]
    assert [each["after"] for each in await client.reset_group("later", to={("orders", 1): 4})] == [4]
    async with client.subscribe("orders", group="later") as consumer:
        assert len(await read(consumer, 196)) == 196
    groups = {group["name"]: group for group in (await client.groups())["groups"]}
    assert groups["later"]["state"] == "empty"
    await client.delete_group("later")
    with pytest.raises(tidelog.UnknownGroup):
        await client.describe_group("later")


async def test_programs_that_choose_their_partitions_commit(client: tidelog.Client) -> None:
    await fill(client, "chosen", 2, 10)
    await client.commit_offsets("chooser", {("chosen", 0): 4}, "half")
    entry, other = (await client.describe_group("chooser"))["progress"]
    assert (entry["partition"], entry["committed"], entry["lag"], entry["metadata"]) == (0, 4, 6, "half")
    assert (other["partition"], other["committed"], other["end"], other["lag"]) == (1, None, 10, None)
    with pytest.raises(tidelog.BadRequest, match="there is no partition 9 in stream 'chosen'"):
        await client.commit_offsets("chooser", {("chosen", 9): 4})


async def test_cursors(client: tidelog.Client) -> None:
    cursor = client.cursor("import")
    assert await cursor.get() is None
    version = await cursor.set(b"file 1", expected_version=0)
    with pytest.raises(tidelog.CursorChanged) as raised:
        await cursor.set(b"file 1", expected_version=0)
    assert raised.value.version == version
    newer = await cursor.set(b"file 2", expected_version=version)
    assert await cursor.get() == (b"file 2", newer)
    await cursor.delete(expected_version=newer)
    assert await cursor.get() is None


async def test_of_those_that_set_a_cursor_at_once_one_wins(client: tidelog.Client) -> None:
    async def add() -> None:
        cursor = client.cursor("counter")
        while True:
            found = await cursor.get()
            value, version = (int(found.value), found.version) if found is not None else (0, 0)
            try:
                await cursor.set(b"%d" % (value + 1), expected_version=version)
            except tidelog.CursorChanged:
                continue
            return

    await asyncio.gather(*(add() for _ in range(20)))
    found = await client.cursor("counter").get()
    assert found is not None
    assert found.value == b"20"


async def test_the_command_line(cluster: DevCluster, client: tidelog.Client) -> None:
    await fill(client, "typed", 2, 10)

    async def tidelog_(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        return await asyncio.to_thread(command, cluster, *arguments, stdin=stdin)

    async def committed() -> list[int | None]:
        return [entry["committed"] for entry in (await client.describe_group("cli"))["progress"]]

    status, out, err = await tidelog_("subscribe", "typed", "--group", "cli", "--limit", "13", "--format", "raw")
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 13
    assert sum(offset or 0 for offset in await committed()) == 13
    status, out, _ = await tidelog_("subscribe", "--pattern", "type?", "--group", "cli", "--limit", "7")
    assert (status, len(out.splitlines())) == (0, 7)
    assert await committed() == [10, 10]

    status, out, _ = await tidelog_("group", "list")
    assert status == 0
    assert "cli" in out
    status, out, _ = await tidelog_("group", "describe", "cli")
    assert status == 0
    assert "typed" in out
    status, out, err = await tidelog_("group", "reset", "cli", "--to", "4")
    assert status == 2
    assert "10" in out, "the plan is shown"
    assert "add --yes" in err
    assert await committed() == [10, 10]
    status, out, _ = await tidelog_("group", "reset", "cli", "--to", "4", "--partition", "1", "--yes")
    assert (status, await committed()) == (0, [10, 4])
    status, out, _ = await tidelog_("group", "reset", "cli", "--shift", "-3", "--yes", "--json")
    assert [change["after"] for change in json.loads(out)] == [7, 1]
    async with client.subscribe("typed", group="cli"):
        status, _, err = await tidelog_("group", "reset", "cli", "--to", "earliest", "--yes")
        assert status == 1
        assert "has 1 members" in err
    assert (await tidelog_("group", "delete", "cli"))[0] == 2
    assert (await tidelog_("group", "delete", "cli", "--yes"))[0] == 0
    status, _, err = await tidelog_("group", "describe", "cli")
    assert status == 1
    assert "no consumer group 'cli'" in err

    assert (await tidelog_("cursor", "get", "typed"))[0] == 1
    status, version, _ = await tidelog_("cursor", "set", "typed", "-", "--expect-version", "0", stdin="a\nb")
    assert status == 0
    status, out, _ = await tidelog_("cursor", "get", "typed", "--json")
    assert json.loads(out) == {"value": "a\nb", "version": int(version)}
    status, _, err = await tidelog_("cursor", "set", "typed", "x", "--expect-version", "0")
    assert status == 1
    assert version.strip() in err
    assert (await tidelog_("cursor", "delete", "typed"))[0] == 0


async def test_records_that_a_member_printed_are_committed_when_it_is_interrupted(
    cluster: DevCluster, client: tidelog.Client
) -> None:
    await fill(client, "pressed", 1, 10)
    member = start_tidelog(
        "subscribe", "pressed", "--group", "pressed", "--format", "raw", "--server", cluster.nats_url,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert member.stdout is not None
    for _ in range(10):
        assert await asyncio.to_thread(member.stdout.readline)
    member.send_signal(signal.SIGINT)
    assert await asyncio.to_thread(member.wait, LIMIT) == 130
    found = await client.describe_group("pressed")
    assert (found["members"], [entry["committed"] for entry in found["progress"]]) == (0, [10])
    member.stdout.close()
    assert member.stderr is not None
    member.stderr.close()


async def test_a_pipe_that_is_closed_commits_what_was_read_from_it(cluster: DevCluster, client: tidelog.Client) -> None:
    await fill(client, "piped", 1, 4000)
    member = start_tidelog(
        "subscribe", "piped", "--group", "piped", "--format", "raw", "--server", cluster.nats_url,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert member.stdout is not None
    assert member.stderr is not None
    read = b""
    while read.count(b"\n") < 5:
        read += await asyncio.to_thread(os.read, member.stdout.fileno(), 7)
    member.stdout.close()
    assert await asyncio.to_thread(member.wait, LIMIT) == 0
    assert not member.stderr.read()
    member.stderr.close()
    found = await client.describe_group("piped")
    assert (found["members"], [entry["committed"] for entry in found["progress"]]) == (0, [read.count(b"\n")])


@pytest.mark.parametrize("group", [("--group", "full"), ()])
async def test_an_interruption_while_the_pipe_is_full(
    cluster: DevCluster, client: tidelog.Client, group: tuple[str, ...]
) -> None:
    stream = "".join(("full", *group[1:]))
    await fill(client, stream, 1, 4000)
    reading, pipe = os.pipe()
    fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, select.PIPE_BUF)
    room = select.poll()
    room.register(pipe, select.POLLOUT)
    member = start_tidelog(
        "subscribe", stream, *group, "--format", "{value} more", "--server", cluster.nats_url,
        stdout=pipe, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert member.stderr is not None
        read = b""
        while len(read) < 17:
            read += await asyncio.to_thread(os.read, reading, 17 - len(read))
        await until(lambda: not room.poll(0))
        member.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(member.wait, LIMIT) == 130
        assert (read, member.stderr.read()) == (b"0 more\n1 more\n2 m", "")
        member.stderr.close()
    finally:
        member.kill()
        os.close(reading)
        os.close(pipe)
    if group:
        found = await client.describe_group("full")
        assert (found["members"], [entry["committed"] for entry in found["progress"]]) == (0, [2])


async def test_without_asyncio(cluster: DevCluster, client: tidelog.Client) -> None:
    await fill(client, "blocking", 2, 500)
    told: list[str] = []

    def work() -> None:
        with tidelog.sync.connect(cluster.nats_url) as blocking:

            def revoked(_: set[tuple[str, int]]) -> None:
                consumer.commit()
                told.append("revoked")

            consumer = blocking.subscribe("blocking", group="blocking", on_revoked=revoked, auto_commit=False)
            with consumer:
                for number, record in enumerate(consumer, 1):
                    assert record.value == b"%d" % record.offset
                    if number == 1000:
                        break
                assert consumer.positions == {("blocking", 0): 500, ("blocking", 1): 500}
            assert told == ["revoked"]
            assert [entry["lag"] for entry in blocking.describe_group("blocking")["progress"]] == [0, 0]
            cursor = blocking.cursor("blocking")
            assert cursor.set(b"x") == (cursor.get() or (b"", 0))[1]

    await asyncio.to_thread(work)
