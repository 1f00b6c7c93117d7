"""Prepared transactions of several processes, committed by another one, on real brokers."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest

import tidelog
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.transactions.test_transactions import coordinator_of, values
from tidelog.server.devcluster import DevCluster

WRITER = """
import asyncio, pickle, sys, tidelog

async def main(server, name, stream, first, timeout):
    async with await tidelog.connect(server) as client:
        options = {"transactional_id": name, "transaction_timeout": float(timeout), "streams": stream}
        async with client.producer(**options) as producer:
            await producer.begin()
            for number in range(int(first), int(first) + 100):
                producer.send_nowait(stream, b"%03d" % number, partition=number % 3)
            sys.stdout.buffer.write(pickle.dumps(await producer.prepare()))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url) as running:
        yield running


async def prepared(
    cluster: DevCluster, name: str, stream: str, first: int, timeout: float = 60.0
) -> tidelog.PreparedTransaction:
    """Of a process that has ended."""
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", WRITER, cluster.nats_url, name, stream, str(first), str(timeout)],
        capture_output=True,
        check=True,
        timeout=4 * LIMIT,
    )
    found = pickle.loads(done.stdout)
    assert isinstance(found, tidelog.PreparedTransaction)
    return found


async def test_processes_that_have_ended_are_committed_as_one_while_their_coordinator_is_killed(
    cluster: DevCluster, client: tidelog.Client
) -> None:
    await client.create_stream("whole", partitions=3)
    parts = await asyncio.gather(*(prepared(cluster, f"whole~{n}", "whole", n * 100) for n in range(3)))
    losing = await prepared(cluster, "whole~2-again", "whole", 200)
    assert await values(client, "whole") == []
    coordinator = await coordinator_of(client, "whole")
    commit = asyncio.ensure_future(client.commit_prepared("whole", parts, sequence=1))
    await asyncio.sleep(0.005)
    cluster.kill(coordinator)
    assert await commit is True
    assert await client.committed_sequence("whole") == 1
    assert await client.commit_prepared("whole", parts, sequence=1) is True
    assert await client.commit_prepared("whole", [*parts[:2], losing], sequence=1) is False
    assert await values(client, "whole") == [b"%03d" % number for number in range(300)]
    cluster.start_broker(coordinator)
    cluster.wait_ready(2 * LIMIT)
    assert await values(client, "whole") == [b"%03d" % number for number in range(300)]


async def test_one_that_was_prepared_for_too_long_keeps_all_from_being_committed(
    cluster: DevCluster, client: tidelog.Client
) -> None:
    await client.create_stream("late", partitions=3)
    late = await prepared(cluster, "late~0", "late", 0, timeout=6.0)
    good = await prepared(cluster, "late~1", "late", 100)

    async def is_over() -> bool:
        return (await client.describe_transaction("late~0"))["last"] == "timed out"

    await until(is_over, "the end of its time")
    with pytest.raises(tidelog.TransactionAborted, match="'late~0' cannot be committed"):
        await client.commit_prepared("late", [late, good], sequence=0)
    again = [await prepared(cluster, f"late~{n}", "late", n * 100) for n in range(2)]
    assert await client.commit_prepared("late", again, sequence=0) is True
    assert await values(client, "late") == [b"%03d" % number for number in range(200)]


async def test_what_is_prepared_is_given_up(cluster: DevCluster, client: tidelog.Client) -> None:
    await client.create_stream("given-up", partitions=3)
    one = await prepared(cluster, "given-up~0", "given-up", 0)
    assert await client.abort_prepared("given-up", [one]) is True
    await prepared(cluster, "given-up~0", "given-up", 100)
    assert await client.abort_prepared("given-up", [one], abort_others=True) is False, "a newer producer has begun"
    async with client.producer("given-up") as producer:
        await producer.send(b"end")
    assert await values(client, "given-up") == [b"end"], "nothing is open"
