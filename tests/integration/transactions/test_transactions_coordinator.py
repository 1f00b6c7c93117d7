"""Coordinators of transactions on real brokers, asked by a producer that is messages: kills between a decision and its
markers, the death of all, timeouts, and offsets of a group."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator

import pytest

import tidelog
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.transactions.told_transactions import until_told
from tests.integration.transactions.transactional_messages import SUBJECTS, MessageProducer
from tidelog.nats.nats_connection import NatsConnection
from tidelog.server.devcluster import DevCluster
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import END, coordinator_subject


@pytest.fixture
async def nats(cluster: DevCluster) -> AsyncIterator[NatsConnection]:
    connection = await NatsConnection.connect(cluster.nats_url)
    yield connection
    await connection.close()


@pytest.fixture
async def client(cluster: DevCluster) -> AsyncIterator[tidelog.Client]:
    async with await tidelog.connect(cluster.nats_url) as client:
        yield client


async def values(client: tidelog.Client, stream: str) -> list[bytes]:
    """That consumers see, by partition and offset."""
    found = [record async for record in client.consume(stream, stop="latest")]
    return [record.value or b"" for record in sorted(found, key=lambda record: (record.partition, record.offset))]


async def until_seen(client: tidelog.Client, stream: str, expected: list[bytes]) -> None:
    async def seen() -> bool:
        return await values(client, stream) == expected

    await until(seen, f"{expected} in {stream}", 2 * LIMIT)


async def test_a_decision_outlives_the_coordinator_that_could_not_tell_it(
    cluster: DevCluster, nats: NatsConnection, client: tidelog.Client
) -> None:
    await client.create_stream("decided", partitions=3)
    producer = MessageProducer(cluster, nats, client, "decided")
    await producer.make_streams()
    await producer.init()
    await producer.add(("decided", 0), ("decided", 1), ("decided", 2))
    for partition in range(3):
        await producer.write("decided", partition, f"a{partition}", f"b{partition}")
    assert await values(client, "decided") == [], "it is open"

    # The leader of one partition stands still: the decision is committed, and its marker is missing.
    coordinator = await producer.coordinator()
    leaders = [await producer.leader("decided", partition) for partition in range(3)]
    stopped = next(leader for leader in leaders if leader != coordinator)
    cluster.kill(stopped, signal.SIGSTOP)
    try:
        nats.publish(coordinator_subject(SUBJECTS, END, "decided"), [producer.end_request()], reply=nats.new_inbox())

        async def decided() -> bool:
            return (await client.describe_transaction("decided"))["state"] in ("committing", "idle")

        await until(decided, "the decision", 2 * LIMIT)
        cluster.kill(coordinator)
    finally:
        cluster.kill(stopped, signal.SIGCONT)
    assert (await producer.end()).next_epoch == 1
    expected = [f"{letter}{partition}".encode() for partition in range(3) for letter in "ab"]
    await until_seen(client, "decided", expected)
    cluster.start_broker(coordinator)
    cluster.wait_ready(2 * LIMIT)
    assert await values(client, "decided") == expected


async def test_what_was_decided_and_what_is_open_survive_the_death_of_all_brokers(
    cluster: DevCluster, nats: NatsConnection, client: tidelog.Client
) -> None:
    await client.create_stream("all")
    committed, aborted, open_ = (MessageProducer(cluster, nats, client, f"all-{name}") for name in ("c", "a", "o"))
    await committed.make_streams()
    for number, producer in enumerate((committed, aborted, open_)):
        await producer.init()
        await producer.add(("all", 0))
        await producer.write("all", 0, f"v{number}")
    for producer, commits in ((committed, True), (aborted, False)):
        subject = coordinator_subject(SUBJECTS, END, producer.name)
        nats.publish(subject, [producer.end_request(commits=commits)], reply=nats.new_inbox())

    async def decided() -> bool:
        found = await client.transactions()
        return {each["transactional_id"] for each in found["transactions"] if each["state"] == "open"} == {"all-o"}

    await until(decided, "both decisions", 2 * LIMIT)
    for broker in [*cluster.data_dirs]:
        cluster.kill(broker)
    for broker in [*cluster.data_dirs]:
        cluster.start_broker(broker)
    cluster.wait_ready(2 * LIMIT)
    assert (await committed.end()).next_epoch == 1
    assert await aborted.refused(commits=True) is Code.TRANSACTION_ABORTED
    assert (await aborted.end(commits=False)).next_epoch == 1
    await open_.write("all", 0, "more")
    await open_.end()
    await until_seen(client, "all", [b"v0", b"v2", b"more"])


async def test_a_transaction_that_is_open_for_too_long_is_aborted_and_what_is_behind_it_is_seen(
    cluster: DevCluster, nats: NatsConnection, client: tidelog.Client
) -> None:
    await client.create_stream("late")
    producer = MessageProducer(cluster, nats, client, "late")
    await producer.make_streams()
    await producer.init(timeout=6.0)
    await producer.add(("late", 0))
    await producer.write("late", 0, "lost")
    async with client.producer("late") as plain:
        await plain.send(b"behind", partition=0)
    await until_seen(client, "late", [b"behind"])
    assert (await client.describe_transaction("late"))["last"] == "timed out"
    with pytest.raises(TidelogError) as refused:
        await producer.write("late", 0, "later")
    assert refused.value.code is Code.PRODUCER_FENCED
    assert await producer.refused(commits=True) is Code.TRANSACTION_ABORTED
    assert (await producer.end(commits=False)).next_epoch == 1
    await producer.add(("late", 0))
    await producer.write("late", 0, "again")
    await producer.end()
    await until_seen(client, "late", [b"behind", b"again"])


async def test_a_new_producer_fences_the_older_one(
    cluster: DevCluster, nats: NatsConnection, client: tidelog.Client
) -> None:
    await client.create_stream("fenced")
    old, new = (MessageProducer(cluster, nats, client, "fenced") for _ in range(2))
    await old.make_streams()
    await old.init()
    await old.add(("fenced", 0))
    await old.write("fenced", 0, "old")
    await new.init()
    with pytest.raises(TidelogError) as refused:
        await old.write("fenced", 0, "older")
    assert refused.value.code is Code.PRODUCER_FENCED
    assert await old.refused(commits=True) is Code.PRODUCER_FENCED
    await new.add(("fenced", 0))
    await new.write("fenced", 0, "new")
    await new.end()
    await until_seen(client, "fenced", [b"new"])


async def test_offsets_of_a_group_are_committed_with_the_records(
    cluster: DevCluster, nats: NatsConnection, client: tidelog.Client
) -> None:
    await client.create_stream("in")
    await client.create_stream("out")
    producer = MessageProducer(cluster, nats, client, "moved")
    await producer.make_streams()
    await producer.init()

    async def committed() -> list[int]:
        return [entry["offset"] for entry in (await client.describe_group("movers"))["offsets"]]

    for commits, offset, expected in ((True, 3, [3]), (False, 5, [3]), (True, 7, [7])):
        await producer.add(("out", 0), groups=("movers",))
        await producer.write("out", 0, f"to {offset}")
        await producer.commit_offset("movers", "in", 0, offset)
        found = await client.describe_group("movers")
        assert [entry["offset"] for entry in found["pending"]] == [offset]
        await producer.end(commits=commits)
        await until_told(client)
        assert await committed() == expected
    await until_seen(client, "out", [b"to 3", b"to 7"])


async def test_an_operator_aborts_a_transaction_that_hangs(
    cluster: DevCluster, nats: NatsConnection, client: tidelog.Client
) -> None:
    await client.create_stream("hung")
    producer = MessageProducer(cluster, nats, client, "hung")
    await producer.make_streams()
    await producer.init(timeout=900.0)
    await producer.add(("hung", 0))
    await producer.write("hung", 0, "hung")
    async with client.producer("hung") as plain:
        await plain.send(b"behind", partition=0)
    assert await values(client, "hung") == []
    assert (await client.describe_transaction("hung"))["waits_for_partitions"][0]["stream"] == "hung"
    await client.abort_transaction("hung")
    await until_seen(client, "hung", [b"behind"])
    assert await producer.refused(commits=True) is Code.PRODUCER_FENCED
    with pytest.raises(TidelogError) as refused:
        await client.describe_transaction("nobody")
    assert refused.value.code is Code.UNKNOWN_TRANSACTION


async def test_a_transaction_ends_without_the_stream_that_was_deleted(
    cluster: DevCluster, nats: NatsConnection, client: tidelog.Client
) -> None:
    for name in ("kept", "gone"):
        await client.create_stream(name)
    producer = MessageProducer(cluster, nats, client, "gone")
    await producer.make_streams()
    await producer.init()
    await producer.add(("kept", 0), ("gone", 0))
    await producer.write("kept", 0, "kept")
    await producer.write("gone", 0, "gone")
    await client.delete_stream("gone")
    assert (await producer.end()).next_epoch == 1
    await until_seen(client, "kept", [b"kept"])
