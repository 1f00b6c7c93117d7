"""The stories that a replicated log has to survive, told with real processes: kill -9, SIGSTOP and SIGCONT.

Most of them follow Liftbridge's own tests. Two more are elsewhere: leaders and controllers killed under
load in `test_failover`, leadership that goes round at random in `test_broker_leader_changes`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import tidelog
from dataplane.replica.follower.follower_states import Idle
from dataplane.replica.replica_settings import ReplicaSettings
from tests.integration.failover import test_broker_roles as roles
from tests.integration.failover.test_broker_leader_changes import BROKERS, log_of
from tests.integration.rig.brokers_status import counters_of, described
from tests.integration.rig.replicated_cluster import Replica, ReplicatedCluster, observed, three_brokers
from tests.integration.rig.waiting import LIMIT, until
from tests.integration.rig.workload import Ledger, acked_load, assert_nothing_lost
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.server.devcluster import DevCluster
from wire.errors import Code
from wire.messaging.transport import Message
from wire.types import BrokerId, Incarnation, PartitionView


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with three_brokers(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
async def cluster(processes: DevCluster) -> AsyncIterator[ReplicatedCluster]:
    async with observed(processes) as running:
        yield running


# ---------------------------------------------------------------- acknowledgements
async def test_a_publish_waits_for_a_stopped_member_and_commits_when_the_isr_shrinks(
    cluster: ReplicatedCluster,
) -> None:
    await cluster.create("shrink")
    leader = await cluster.leader("shrink")
    stopped, healthy = cluster.others(leader.broker)
    async with cluster.client.producer("shrink", acks="all") as producer:
        cluster.stop(stopped)
        acknowledged = producer.send_nowait(b"waits")
        seen_waiting = 0

        async def committed() -> Replica | None:
            nonlocal seen_waiting
            before = acknowledged.done()
            found = await cluster.replica("shrink", leader.broker)
            assert found is not None
            if stopped in found.isr:
                assert not before, "acknowledged without a member of the ISR"
                assert found.high_watermark == 0, "committed without a member of the ISR"
                seen_waiting += found.log_end_offset == 1
                return None
            return found if found.high_watermark == 1 else None

        shrunk = await until(committed, "the commit")
        assert seen_waiting, "it was appended while the stopped member was in the ISR"
        assert shrunk.isr == {leader.broker, healthy}
        assert shrunk.leader_epoch == leader.leader_epoch
        assert (await acknowledged).offset == 0
        await cluster.until_alive(*cluster.brokers)  # its leader dropped it, for its lag
    cluster.wake(stopped)
    await cluster.assert_identical("shrink")


async def test_acks_leader_does_not_wait_for_a_stopped_member(cluster: ReplicatedCluster) -> None:
    await cluster.create("local")
    leader = await cluster.leader("local")
    stopped, _ = cluster.others(leader.broker)
    client = cluster.client
    async with client.producer("local", acks="all") as all_of_them, client.producer("local", acks="leader") as one:
        await one.send(b"before")
        cluster.stop(stopped)
        waiting = all_of_them.send_nowait(b"waits")
        await cluster.until_replica("local", leader.broker, lambda r: r.log_end_offset == 2, "the append")
        receipt = await one.send(b"does not wait")
        assert receipt.offset == 2
        assert not waiting.done(), "what lies before it is not committed"
        found = await cluster.replica("local", leader.broker)
        assert found is not None
        assert stopped in found.isr
        assert found.high_watermark < 2
        cluster.wake(stopped)
        assert (await waiting).offset == 1
    await cluster.assert_identical("local")
    assert await cluster.committed("local") == [b"before", b"waits", b"does not wait"]


async def test_a_stopped_follower_leaves_the_isr_and_returns_once_it_has_caught_up(cluster: ReplicatedCluster) -> None:
    """It has missed more than it can fetch at once."""
    await cluster.create("back")
    leader = await cluster.leader("back")
    stopped, healthy = cluster.others(leader.broker)
    await cluster.send("back", b"before")
    cluster.stop(stopped)
    shrunk = await cluster.until_replica("back", leader.broker, lambda r: stopped not in r.isr, "the shrink of the ISR")
    assert shrunk.isr == {leader.broker, healthy}
    await cluster.until_alive(*cluster.brokers)  # its leader dropped it, for its lag
    async with cluster.client.producer("back") as producer:
        await producer.send_many([b"%d" % i + bytes(512 << 10) for i in range(64)])
    (found,) = (await described(cluster.client, "back"))["partitions"]
    assert set(found["isr"]) == shrunk.isr
    assert found["replicas_progress"][stopped]["in_sync"] is False
    assert found["high_watermark"] == 64, "two members are enough"
    cluster.wake(stopped)
    back = await cluster.until_replica("back", leader.broker, lambda r: stopped in r.isr, "its return to the ISR")
    assert back.ends[stopped] >= back.high_watermark == 65, "it was taken in before it held what is committed"
    assert back.leader_epoch == leader.leader_epoch
    await cluster.assert_identical("back")


# ---------------------------------------------------------------- below min ISR
async def test_below_min_isr_acknowledged_publishes_are_refused_and_plain_ones_wait_unseen(
    cluster: ReplicatedCluster,
) -> None:
    await cluster.create("below", min_isr=3)
    await cluster.send("below", b"0", b"1")
    leader = await cluster.leader("below")
    dead, _ = cluster.others(leader.broker)
    seen: list[bytes | None] = []

    async def follow() -> None:
        async for batch in cluster.client.consume("below", start="earliest", stop=7).batches():
            seen.extend(batch.values)

    following = asyncio.create_task(follow())
    cluster.kill(dead)
    await cluster.until_replica("below", leader.broker, lambda r: dead not in r.isr, "the shrink of the ISR")

    refused = await cluster.request("below", b"refused")
    assert refused["tidelog"]["code"] == Code.OUTCOME_UNKNOWN.name, "should another lead by now, that one may store it"
    assert refused["tidelog"]["details"]["reason"] == Code.NOT_ENOUGH_REPLICAS.name
    assert "2 in-sync replicas and needs 3" in refused["tidelog"]["message"]
    async with cluster.client.producer("below", delivery_timeout_ms=6000) as producer:
        with pytest.raises(tidelog.TidelogError, match="2 in-sync replicas and needs 3"):
            await producer.send(b"refused too")
    found = await cluster.replica("below", leader.broker)
    assert found is not None
    assert found.log_end_offset == 2, "what was refused was never appended"

    for number in range(2, 7):
        cluster.nats.publish("below", [b"%d" % number])
    uncommitted = await cluster.until_replica(
        "below", leader.broker, lambda r: r.log_end_offset == 7, "the append of plain publishes"
    )
    assert uncommitted.high_watermark == 2
    assert await cluster.committed("below") == [b"0", b"1"]
    await until(lambda: len(seen) >= 2, "what is committed")
    assert seen == [b"0", b"1"]
    cluster.start(dead)
    await asyncio.wait_for(following, LIMIT)
    assert seen == [b"%d" % i for i in range(7)], "in order, once each, now that the ISR is whole"
    await cluster.assert_identical("below")


async def test_a_member_that_dies_under_a_pending_ack_leaves_its_outcome_unknown_and_its_return_commits_it(
    cluster: ReplicatedCluster,
) -> None:
    await cluster.create("pending", min_isr=3, confirm_timeout_ms=3000)
    await cluster.send("pending", b"first")
    leader = await cluster.leader("pending", isr=3)
    dying, _ = cluster.others(leader.broker)
    cluster.stop(dying)
    answer = asyncio.create_task(cluster.request("pending", b"pending"))
    await cluster.until_replica("pending", leader.broker, lambda r: r.log_end_offset == 2, "the append")
    cluster.kill(dying)
    below = await cluster.until_replica("pending", leader.broker, lambda r: dying not in r.isr, "the shrink")
    assert (await answer)["tidelog"]["code"] == Code.CONFIRM_TIMEOUT.name
    frozen = await cluster.replica("pending", leader.broker)
    assert frozen is not None
    assert (below.high_watermark, frozen.high_watermark) == (1, 1), "nothing commits below min ISR"
    assert await cluster.committed("pending") == [b"first"]
    cluster.start(dying)
    await cluster.assert_identical("pending")
    assert await cluster.committed("pending") == [b"first", b"pending"]


# ---------------------------------------------------------------- records that only a dead leader has
async def leave_an_orphan(cluster: ReplicatedCluster, stream: str, leader: Replica) -> None:
    """The leader, alone with a record, dies; the others come back without it."""
    alone = await cluster.until_replica(stream, leader.broker, lambda r: r.log_end_offset == 2, "the append")
    assert alone.high_watermark == 1
    assert alone.leader_epoch == leader.leader_epoch
    assert b"orphan" in cluster.on_disk(stream, leader.broker)
    cluster.kill(leader.broker)
    cluster.start(*cluster.others(leader.broker))


async def assert_the_orphan_is_cut(cluster: ReplicatedCluster, stream: str, old: Replica) -> None:
    """Another record is at its offset before the old leader returns."""
    new = await cluster.leader(stream, above_epoch=old.leader_epoch)
    assert new.broker != old.broker
    assert await cluster.send(stream, b"another") == [1]
    cluster.start(old.broker)
    await cluster.assert_identical(stream)
    assert await cluster.committed(stream) == [b"first", b"another"]
    for broker in cluster.brokers:
        assert b"orphan" not in cluster.on_disk(stream, broker), f"{broker} keeps what was cut"
    assert (await counters_of(cluster.client, old.broker))["truncated_records"] == 1


async def test_an_orphaned_record_is_cut_when_its_leader_returns(cluster: ReplicatedCluster) -> None:
    """acks=leader promises nothing beyond its leader."""
    await cluster.create("orphan")
    async with cluster.client.producer("orphan", acks="leader") as producer:
        await producer.send(b"first")
        leader = await cluster.leader("orphan", isr=3)
        await cluster.assert_identical("orphan")
        cluster.kill(*cluster.others(leader.broker))
        assert (await producer.send(b"orphan")).offset == 1
    await leave_an_orphan(cluster, "orphan", leader)
    await assert_the_orphan_is_cut(cluster, "orphan", leader)


async def test_a_pending_ack_of_a_record_that_is_cut_ended_as_unknown(cluster: ReplicatedCluster) -> None:
    await cluster.create("unknown", confirm_timeout_ms=1000)
    await cluster.send("unknown", b"first")
    leader = await cluster.leader("unknown", isr=3)
    cluster.stop(*cluster.others(leader.broker))
    answer = asyncio.create_task(cluster.request("unknown", b"orphan"))
    await cluster.until_replica("unknown", leader.broker, lambda r: r.log_end_offset == 2, "the append")
    cluster.kill(*cluster.others(leader.broker))
    assert (await answer)["tidelog"]["code"] == Code.CONFIRM_TIMEOUT.name
    await leave_an_orphan(cluster, "unknown", leader)
    await assert_the_orphan_is_cut(cluster, "unknown", leader)


# ---------------------------------------------------------------- restarts and leader changes
async def test_uncommitted_records_are_committed_after_all_were_killed_and_restarted(
    cluster: ReplicatedCluster,
) -> None:
    """Two of three hold it, below min ISR; the third, which must not lead, starts with the others."""
    await cluster.create("restart", min_isr=3)
    await cluster.send("restart", *(b"%d" % i for i in range(5)))
    leader = await cluster.leader("restart")
    dead, alive = cluster.others(leader.broker)
    cluster.kill(dead)
    await cluster.until_replica("restart", leader.broker, lambda r: dead not in r.isr, "the shrink of the ISR")
    assert await cluster.send("restart", *(b"%d" % i for i in range(5, 10)), acks="leader") == list(range(5, 10))
    await cluster.until_replica("restart", alive, lambda r: r.log_end_offset == 10, "the replication")
    held = await cluster.replica("restart", leader.broker)
    assert held is not None
    assert (held.high_watermark, held.log_end_offset) == (5, 10)
    cluster.kill(leader.broker, alive)
    cluster.start(dead, leader.broker, alive)
    await cluster.assert_identical("restart")
    again = await cluster.leader("restart", above_epoch=leader.leader_epoch, isr=3)
    assert again.high_watermark == 10
    assert await cluster.committed("restart") == [b"%d" % i for i in range(10)]


async def test_fast_leader_changes_with_stale_high_watermarks_lose_nothing_committed(
    cluster: ReplicatedCluster,
) -> None:
    """Each leader is killed right after an acknowledgement, as soon as another member could follow it, and begins
    anew at once: the next leaders do not know the committed end yet."""
    await cluster.create("fast")
    ledger = Ledger("fast")
    stale = epoch = number = 0
    async with cluster.client.producer("fast", delivery_timeout_ms=LIMIT * 1000) as producer:
        for _ in range(6):
            leader = await cluster.leader("fast", above_epoch=epoch, isr=2)
            epoch = leader.leader_epoch
            for _ in range(10):
                number += 1
                value = b"fast:%d:" % number
                ledger.sent.add(value)
                receipt = await producer.send(value)
                ledger.acknowledge(value, receipt.partition, receipt.offset)
            followers = [await cluster.replica("fast", broker) for broker in cluster.others(leader.broker)]
            newest = ledger.acked[b"fast:%d:" % number][1]
            stale += any(f is not None and f.high_watermark <= newest < f.log_end_offset for f in followers)
            cluster.kill(leader.broker)
            cluster.start(leader.broker)
    assert stale, "no high watermark was behind at a change of leader: this has tried nothing"
    await cluster.leader("fast", above_epoch=epoch, isr=3)
    findings = await assert_nothing_lost(cluster.url, ledger, cluster.processes.data_dirs)
    assert findings.acknowledged == 60


async def test_a_leader_that_sleeps_through_its_failover_wakes_up_and_harms_nothing(
    cluster: ReplicatedCluster,
) -> None:
    """It still believes that it leads, and finds publishes of the meantime in its socket."""
    await cluster.create("asleep")
    async with acked_load(cluster.url, "asleep") as ledger:

        async def go_on() -> None:
            wanted = len(ledger.acked) + 300

            await until(lambda: len(ledger.acked) >= wanted, "acknowledged records")

        await go_on()
        old = await cluster.leader("asleep", isr=3)
        cluster.stop(old.broker)
        new = await cluster.leader("asleep", above_epoch=old.leader_epoch)
        assert new.broker != old.broker
        await go_on()
        cluster.wake(old.broker)
        await go_on()
        await cluster.until_replica(
            "asleep", old.broker, lambda r: r.role == "following" and r.leader_epoch > old.leader_epoch, "its new role"
        )
        await cluster.leader("asleep", isr=3)
    await assert_nothing_lost(cluster.url, ledger, cluster.processes.data_dirs)


# ---------------------------------------------------------------- deleted streams
async def test_a_stream_that_was_deleted_while_a_broker_was_down_is_gone_after_its_restart(
    cluster: ReplicatedCluster,
) -> None:
    """A stream created under its name in the meantime is untouched."""
    await cluster.create("gone")
    await cluster.create("again")
    for stream in ("gone", "again"):
        await cluster.send(stream, b"old")
    await cluster.assert_identical("gone")
    await cluster.assert_identical("again")
    down = cluster.brokers[0]
    cluster.kill(down)
    for stream in ("gone", "again"):
        await cluster.client.delete_stream(stream)
    await cluster.until_alive(*cluster.others(down))
    await cluster.client.create_stream("again", replication_factor=2)
    assert await cluster.send("again", b"new") == [0]
    assert b"old" in cluster.on_disk("gone", down)
    assert b"old" in cluster.on_disk("again", down)
    cluster.start(down)

    await until(
        lambda: not cluster.folders("gone", down) and not cluster.folders("again", down),
        "the end of the folders of what was deleted",
    )
    await cluster.heal()
    assert [stream["name"] for stream in await cluster.client.streams()] == ["again"]
    await cluster.assert_identical("again")
    assert await cluster.committed("again") == [b"new"]


async def test_a_recreated_stream_keeps_its_new_records_on_a_broker_that_slept_and_through_a_restart_of_all(
    cluster: ReplicatedCluster,
) -> None:
    """The sleeper hears of the end of the first life and of the second life at once; after the restart every broker
    goes through both again."""
    await cluster.create("twice")
    await cluster.send("twice", b"old")
    await cluster.assert_identical("twice")
    (first,) = cluster.folders("twice", cluster.brokers[0])
    sleeper = (await cluster.leader("twice")).broker
    cluster.stop(sleeper)
    await cluster.client.delete_stream("twice")
    await cluster.client.create_stream("twice", replication_factor=3)
    cluster.wake(sleeper)
    assert await cluster.send("twice", b"new", b"newer") == [0, 1]
    await cluster.assert_identical("twice")
    cluster.kill(*cluster.brokers)
    cluster.start(*cluster.brokers)
    await cluster.heal()
    await cluster.assert_identical("twice")
    assert await cluster.committed("twice") == [b"new", b"newer"]

    async def only_the_new_one() -> bool:
        found = [cluster.folders("twice", broker) for broker in cluster.brokers]
        return all(len(folders) == 1 and first not in folders for folders in found)

    await until(only_the_new_one, "the end of the folders of the first life")


# ---------------------------------------------------------------- brokers in this process, metadata played by the test
A, B, C = BROKERS
PATIENT = ReplicaSettings(
    replica_max_idle_wait=60.0,
    replica_max_leader_timeout=90.0,
    replica_max_lag_time=120.0,
    confirm_timeout=150.0,
    follower_read_max_age=90.0,
)
"""A follower that sleeps learns nothing by itself."""


class Nodes:
    def __init__(self, url: str, directory: Path, settings: ReplicaSettings) -> None:
        self.running: dict[BrokerId, roles.Node] = {}
        self._url = url
        self._directory = directory
        self._settings = settings
        self._incarnation = 10

    async def start(self, name: BrokerId) -> roles.Node:
        node = await roles.Node(name, self._directory / name).start(self._url, self._settings)
        self._incarnation += 1
        node.broker.on_registered(Incarnation(self._incarnation))
        self.running[name] = node
        return node

    async def close(self, *names: BrokerId) -> None:
        for name in names:
            await self.running.pop(name).close()


@asynccontextmanager
async def three_nodes(url: str, directory: Path, settings: ReplicaSettings) -> AsyncIterator[Nodes]:
    nodes = Nodes(url, directory, settings)
    try:
        for name in BROKERS:
            await nodes.start(name)
        yield nodes
    finally:
        await nodes.close(*nodes.running)


def led_by(leader: BrokerId, leader_epoch: int, *isr: BrokerId) -> PartitionView:
    """A view of the partition with three replicas."""
    seen = roles.view(leader=leader, leader_epoch=leader_epoch, epoch=leader_epoch, isr=isr, min_isr=2)
    return replace(seen, replicas=BROKERS)


async def test_followers_with_stale_high_watermarks_that_lead_one_after_the_other_keep_committed_records(
    nats_server: EmbeddedNatsServer, tmp_path: Path
) -> None:
    """One leads right after its restart and dies before it says a word to the other, which then leads. Had either cut
    its log to its own committed end, the second record would be gone."""
    settings = replace(PATIENT, high_watermark_notify_delay=60.0)
    client = await NatsConnection.connect(nats_server.url, name="publisher")
    async with three_nodes(nats_server.url, tmp_path, settings) as nodes:
        a, b, c = (nodes.running[name] for name in BROKERS)
        first = led_by(A, 1, A, B, C)
        await a.leads(first)
        await b.follows(first)
        await c.follows(first)
        for offset in (0, 1):
            assert (await roles.publish(client, timeout=LIMIT))["offset"] == offset
        assert a.replica.high_watermark == 2
        for follower in (b, c):
            assert (follower.replica.high_watermark, follower.replica.log_end_offset) == (1, 2)

        await nodes.close(A, B)
        b = await nodes.start(B)
        assert b.replica.high_watermark == 1
        await b.leads(led_by(B, 2, B, C))
        assert b.replica.log_end_offset == 2
        await nodes.close(B)
        await c.follows(led_by(B, 2, B, C))
        await c.leads(led_by(C, 3, B, C))
        assert c.replica.log_end_offset == 2

        a, b = await nodes.start(A), await nodes.start(B)
        for follower in (a, b):
            await follower.follows(led_by(C, 3, B, C))
        assert (await roles.publish(client, timeout=LIMIT))["offset"] == 2
        assert c.replica.high_watermark == 3
        await until(lambda: a.replica.log_end_offset == b.replica.log_end_offset == 3)
        assert log_of(a.replica) == log_of(b.replica) == log_of(c.replica)
    await client.close()


@pytest.mark.parametrize("push", [True, False], ids=["pushed", "notified"])
async def test_idle_followers_have_a_new_record_long_before_they_would_ask(
    nats_server: EmbeddedNatsServer, tmp_path: Path, push: bool
) -> None:
    """And know that it is committed. With an idle wait of 60 s only the data waiter can have told them."""
    client = await NatsConnection.connect(nats_server.url, name="publisher")
    notified: list[Message] = []
    async with three_nodes(nats_server.url, tmp_path, replace(PATIENT, push_to_waiters=push)) as nodes:
        view = led_by(A, 1, A, B, C)
        await nodes.running[A].leads(view)
        followers = [await nodes.running[name].follows(view) for name in (B, C)]
        for name in (B, C):
            await client.subscribe(roles.SUBJECTS.notify(name), notified.append)

        def all_idle() -> bool:
            return all(isinstance(follower.core.state, Idle) for follower in followers)

        def all_know(end: int) -> bool:
            return all(f.core.log_end_offset == f.core.high_watermark == end for f in followers)

        for end in (1, 2, 3):
            await until(all_idle)
            assert (await roles.publish(client, timeout=LIMIT))["offset"] == end - 1
            await until(partial(all_know, end))
        if not push:
            told = {roles.SUBJECTS.notify(name) for name in (B, C)}
            await until(lambda: {message.subject for message in notified} == told)
    await client.close()
