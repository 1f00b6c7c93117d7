"""Durability levels of single publishes, with real processes: kill -9 and SIGSTOP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator

import pytest

import tidelog
from tests.integration.rig.replicated_cluster import ReplicatedCluster, observed, three_brokers
from tests.integration.rig.waiting import until
from tidelog.server.devcluster import DevCluster

LEVELS = [
    "durable", "accepted", "local_durable", "majority_durable", "replica_durable:3", "replica_accepted:3",
]  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def cluster(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    async with observed(processes) as running:
        yield running


@pytest.mark.parametrize("stream_level", ["durable", "accepted", "local_durable", "replica_accepted:2"])
async def test_every_level_is_acknowledged_on_every_stream_and_all_of_it_is_committed(
    cluster: ReplicatedCluster, stream_level: str
) -> None:
    await cluster.create("levels", durability=stream_level)
    wanted: list[bytes] = []
    for level in [None, *LEVELS]:
        async with cluster.client.producer("levels", durability=level) as producer:
            values = [b"%b %d" % (str(level).encode(), number) for number in range(50)]
            waits = []
            for number, value in enumerate(values[:3]):
                began = time.monotonic()
                assert (await producer.send(value)).offset == len(wanted) + number
                waits.append(time.monotonic() - began)
            # One may be slow on a machine with much else to do; all three would wait.
            assert min(waits) < 2, f"{level} waited until a follower that hears of nothing asks again, or longer"
            for value in values[3:]:
                producer.send_nowait(value)
            await producer.flush()
            wanted += values
    async with cluster.client.producer("levels", acks="leader", durability="accepted") as producer:
        await producer.send(b"own copy")
    assert "offset" in await cluster.request("levels", b"bare")
    await cluster.assert_identical("levels")
    assert await cluster.committed("levels") == [*wanted, b"own copy", b"bare"]


async def test_a_publish_that_asks_for_three_is_refused_with_two_and_others_are_not(
    cluster: ReplicatedCluster,
) -> None:
    await cluster.create("floor", min_isr=1)
    leader = await cluster.leader("floor", isr=3)
    dead = cluster.others(leader.broker)[0]
    cluster.kill(dead)
    await cluster.until_replica("floor", leader.broker, lambda r: dead not in r.isr, "the shrink of the ISR")
    async with cluster.client.producer("floor", durability="replica_durable:3", delivery_timeout_ms=6000) as producer:
        with pytest.raises(tidelog.TidelogError, match="2 in-sync replicas and needs 3"):
            await producer.send(b"refused")
    async with cluster.client.producer("floor", durability="majority_durable") as producer:
        assert (await producer.send(b"two are enough")).offset == 0
    cluster.start(dead)
    async with cluster.client.producer("floor", durability="replica_durable:3") as producer:
        assert (await producer.send(b"three again")).offset == 1


async def test_a_confirm_timeout_ends_the_wait_for_a_member_that_keeps_silent(cluster: ReplicatedCluster) -> None:
    await cluster.create("silent")
    leader = await cluster.leader("silent", isr=3)
    cluster.stop(cluster.others(leader.broker)[0])
    async with cluster.client.producer("silent", confirm_timeout=0.3) as producer:
        began = time.monotonic()
        with pytest.raises(tidelog.DeliveryTimeout) as ended:
            await producer.send(b"waits")
        assert ended.value.outcome_unknown
        assert time.monotonic() - began > 0.25
    async with cluster.client.producer("silent", durability="local_durable") as producer:
        assert (await producer.send(b"the leader's disk is enough")).offset == 1
    await cluster.heal()
    await cluster.assert_identical("silent")


async def test_min_isr_changes_under_a_publisher_and_nothing_acknowledged_is_lost(cluster: ReplicatedCluster) -> None:
    await cluster.create("alters", min_isr=3)
    leader = await cluster.leader("alters", isr=3)
    acked: list[bytes] = []
    done = asyncio.Event()

    async def publish() -> None:
        number = 0
        async with cluster.client.producer("alters") as producer:
            while not done.is_set():
                value = b"%d" % number
                await producer.send(value)
                acked.append(value)
                number += 1

    publishing = asyncio.create_task(publish())

    async def until_more(count: int) -> None:
        wanted = len(acked) + count
        await until(lambda: publishing.done() or len(acked) >= wanted, f"{count} acknowledgements")
        assert not publishing.done(), publishing.result()

    await until_more(50)
    dead = cluster.others(leader.broker)[0]
    cluster.kill(dead)
    await cluster.until_replica("alters", leader.broker, lambda r: dead not in r.isr, "the shrink of the ISR")
    await cluster.client.alter_stream("alters", config={"min_isr": 2})
    await until_more(50)
    cluster.start(dead)
    await cluster.client.alter_stream("alters", config={"min_isr": 3})
    await until_more(50)
    await cluster.client.alter_stream("alters", unset=["min_isr"])
    await until_more(50)
    assert (await cluster.leader("alters")).leader_epoch == leader.leader_epoch
    done.set()
    await publishing
    await cluster.assert_identical("alters")
    assert await cluster.committed("alters") == acked


async def test_levels_that_cannot_be_are_refused_by_name(cluster: ReplicatedCluster) -> None:
    await cluster.create("named")
    for durability, acks, words in (
        ("replica_durable:4", "all", "more replicas than the 3"),
        ("replica_durable", "all", "number of replicas"),
        ("durable:2", "all", "does not take"),
        ("sturdy", "all", "none of durable, accepted"),
        ("durable", "none", "acks='none'"),
        ("replica_durable:2", "leader", "acks='leader'"),
    ):
        with pytest.raises(tidelog.TidelogError, match=words):
            async with cluster.client.producer("named", acks=acks, durability=durability):  # type: ignore[call-overload]
                pass
