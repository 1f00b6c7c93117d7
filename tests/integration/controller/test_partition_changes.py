"""Partitions that take no records, and records that an operator deletes: on real brokers that are killed meanwhile."""

# Rules: R44.

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

import tidelog
from tests.integration.rig.command_line import command
from tests.integration.rig.dev_cluster import dev_cluster
from tests.integration.rig.replicated_cluster import SETTINGS, observed
from tests.integration.rig.waiting import LIMIT, until
from tidelog.client.base.exceptions import OffsetOutOfRange, ReadOnly
from tidelog.server.devcluster import DevCluster

STREAM = "shortened"
SIZE = 1000


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    settings = {**SETTINGS, "storage": {"housekeeping_interval": 0.1}}
    with dev_cluster(tmp_path_factory.mktemp("cluster"), settings=settings) as running:
        yield running


async def values_of(client: tidelog.Client, start: int | str = "earliest", **options: object) -> list[bytes]:
    return [
        record.value or b""
        async for record in client.consume(STREAM, start=start, stop="latest", **options)  # type: ignore[arg-type]
    ]


async def test_deleted_records_stay_deleted_through_kills_and_restarts(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        client = cluster.client
        await cluster.create(STREAM, segment_bytes=8192)
        values = [b"%03d " % number + b"." * SIZE for number in range(60)]
        await cluster.send(STREAM, *values)
        with pytest.raises(OffsetOutOfRange, match="is committed up to offset 60"):
            await client.delete_records(STREAM, {0: 61})
        (changed,) = await client.delete_records(STREAM, {0: 37})
        assert (changed["log_start_offset"], changed["not_yet"]) == (37, [])
        assert await client.offsets(STREAM, "earliest") == {0: 37}
        assert await values_of(client) == values[37:]
        with pytest.raises(OffsetOutOfRange):
            await values_of(client, 36, on_out_of_range="fail")

        async def freed() -> bool:
            return all(values[20] not in cluster.on_disk(STREAM, broker) for broker in cluster.brokers)

        await until(freed, "segments with deleted records to leave the disks")

        first = await cluster.leader(STREAM, isr=3)
        cluster.kill(first.broker)
        second = await cluster.leader(STREAM, above_epoch=first.leader_epoch)
        assert await values_of(client) == values[37:]
        (changed,) = await client.delete_records(STREAM, {0: 45})
        assert changed["log_start_offset"] == 45
        cluster.start(first.broker)
        await cluster.leader(STREAM, isr=3)
        while (await cluster.leader(STREAM)).broker != first.broker:
            await client.move_leader(STREAM, 0, first.broker)
        assert await values_of(client) == values[45:], "it was away when they were deleted"
        assert await values_of(client, read_from="follower") == values[45:]

        cluster.kill(*cluster.brokers)
        await cluster.heal()
        await cluster.leader(STREAM, above_epoch=second.leader_epoch, isr=3)
        assert await values_of(client) == values[45:]
        (changed,) = await client.delete_records(STREAM, {0: "latest"})
        assert changed["log_start_offset"] == 60
        assert await values_of(client) == []

        async def empty() -> bool:
            return not any(cluster.on_disk(STREAM, broker) for broker in cluster.brokers)

        await until(empty, "the last segment to leave the disks, too")
        assert await cluster.send(STREAM, b"new") == [60]
        assert await values_of(client) == [b"new"]
        await cluster.assert_identical(STREAM)


async def test_a_read_only_stream_takes_nothing_and_is_read(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        client = cluster.client
        await cluster.create(STREAM)
        assert await cluster.send(STREAM, b"before") == [0]
        async with client.producer(STREAM) as producer:
            await client.set_readonly(STREAM)
            with pytest.raises(ReadOnly):
                await producer.send(b"refused")
        answer = await cluster.request(STREAM, b"refused")
        assert answer["tidelog"]["code"] == "READONLY"
        first = await cluster.leader(STREAM, isr=3)
        cluster.kill(first.broker)
        await cluster.leader(STREAM, above_epoch=first.leader_epoch)
        with pytest.raises(ReadOnly):
            await cluster.send(STREAM, b"refused")
        assert await values_of(client) == [b"before"]
        cluster.kill(*cluster.others(first.broker))
        await cluster.heal()
        with pytest.raises(ReadOnly):
            await cluster.send(STREAM, b"refused")
        await client.set_readonly(STREAM, False)
        assert await cluster.send(STREAM, b"after") == [1]
        assert await values_of(client) == [b"before", b"after"]


async def test_some_partitions_of_a_stream(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        await cluster.client.create_stream(STREAM, partitions=3)
        async with cluster.client.producer(STREAM) as producer:
            for number in range(3):
                await producer.send(b"%d" % number, partition=number)
            status, out, err = command(processes, "stream", "set-readonly", STREAM, "--partition", "1")
            assert (status, err) == (0, "")
            assert out == f"partition 1 of stream {STREAM} takes no records\n"
            assert (await producer.send(b"0", partition=0)).offset == 1
            with pytest.raises(ReadOnly):
                await producer.send(b"1", partition=1)
        status, out, err = command(processes, "stream", "describe", STREAM)
        assert f"partition 1 of stream {STREAM} takes no records (read-only)" in out
        status, out, err = command(processes, "stream", "set-readonly", STREAM, "--off")
        assert out == f"partitions 0, 1, 2 of stream {STREAM} take records again\n"

        status, out, err = command(processes, "stream", "delete-records", STREAM, "--before", "1")
        assert status == 2
        assert "add --yes" in err
        status, out, err = command(processes, "stream", "delete-records", STREAM, "--before", "1", "--yes")
        assert status == 2
        assert f"offset 1 is one of one partition, and stream {STREAM} has 3" in err
        status, out, err = command(
            processes, "stream", "delete-records", STREAM, "--before", "1", "--partition", "0", "--yes"
        )
        assert (status, out, err) == (0, f"{STREAM}/0 starts at offset 1\n", "")
        status, out, err = command(
            processes, "stream", "delete-records", STREAM, "--before", "latest", "--yes", "--json"
        )
        assert [part["log_start_offset"] for part in json.loads(out)] == [2, 1, 1]
        status, out, err = command(
            processes, "stream", "delete-records", STREAM, "--before", "3", "--partition", "0", "--yes"
        )
        assert status == 1
        assert f"{STREAM}/0 is committed up to offset 2" in err


async def test_a_paused_partition_wakes_with_the_next_record_of_any_kind(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        client = cluster.client
        await cluster.create(STREAM)
        await cluster.send(STREAM, b"first")

        async def paused() -> bool:
            return (await client.describe(STREAM))["partitions"][0]["paused"]

        async def resumed() -> bool:
            return not await paused()

        (changed,) = await client.pause(STREAM)
        assert (changed["paused"], changed["not_yet"]) == (True, [])
        assert await values_of(client) == [b"first"], "it is read while it is paused"
        await asyncio.sleep(4.0)  # longer than the idle wait, the leader timeout and the lag time
        assert await paused(), "reading and waiting leave it so"
        assert len((await cluster.leader(STREAM)).isr) == 3
        assert (await cluster.request(STREAM, b"bare"))["offset"] == 1
        await until(resumed, "the end of the pause by a bare publish")

        await client.pause(STREAM)
        await asyncio.sleep(4.0)
        assert await cluster.send(STREAM, b"batch") == [2]
        await until(resumed, "the end of the pause by a producer")

        await client.pause(STREAM)
        await asyncio.sleep(4.0)
        first = await cluster.leader(STREAM, isr=3)
        cluster.kill(first.broker)
        await cluster.leader(STREAM, above_epoch=first.leader_epoch)
        assert await cluster.send(STREAM, b"after the kill") == [3]
        cluster.start(first.broker)
        await cluster.leader(STREAM, isr=3)
        assert await values_of(client) == [b"first", b"bare", b"batch", b"after the kill"]
        await cluster.assert_identical(STREAM)


async def test_idle_partitions_are_paused_by_themselves_and_resumed_together(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        client = cluster.client
        await client.create_stream(STREAM, partitions=3, config={"auto_pause_time_ms": 500})

        async def how_many() -> int:
            return sum(partition["paused"] for partition in (await client.describe(STREAM))["partitions"])

        async def all_paused() -> bool:
            return await how_many() == 3

        async def none_paused() -> bool:
            return await how_many() == 0

        await until(all_paused, "idle partitions to be paused")
        status, out, err = command(processes, "stream", "alter", STREAM, "--unset", "auto_pause_time_ms")
        assert (status, err) == (0, "")
        status, out, err = command(processes, "stream", "resume", STREAM)
        assert (status, out, err) == (0, f"partitions 0, 1, 2 of stream {STREAM} are not paused\n", "")
        status, out, err = command(processes, "stream", "pause", STREAM, "--resume-all")
        assert (status, out, err) == (0, f"partitions 0, 1, 2 of stream {STREAM} are paused\n", "")
        await asyncio.sleep(1.0)
        async with client.producer(STREAM) as producer:
            assert (await producer.send(b"x", partition=1)).offset == 0
        await until(none_paused, "a record of one partition to resume all")


async def test_operators_acts_are_in_the_audit_trail(processes: DevCluster) -> None:
    async with observed(processes) as cluster:
        await cluster.create(STREAM)
        await cluster.client.set_readonly(STREAM)
        await cluster.client.delete_records(STREAM, {0: "latest"})

        async def told() -> set[str]:
            status, out, _ = command(processes, "audit", "--stream", STREAM, "--json")
            return {json.loads(line)["operation"] for line in out.splitlines()} if status == 0 else set()

        async def complete() -> bool:
            return {"stream.set_readonly", "stream.delete_records"} <= await told()

        await until(complete, "both acts", timeout=LIMIT)
