"""Pushes of routes, the topology, and reports of adoption, against a broker in memory."""

# Rules: R68.

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from crc32c import crc32c

from tests.fake_nats import delivered
from tests.unit.tidelog.client.fake_broker import CLUSTER, Cluster
from tests.unit.tidelog.client.transactions_world import until
from tidelog.client.base.exceptions import UnknownStream
from tidelog.client.cluster import route_updates
from tidelog.client.cluster.metadata_cache import StreamMetadata
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.messaging.transport import Message
from wire.types import BrokerId, StreamName

S = StreamName("three")


class Brokers:
    """What brokers do beside the controller."""

    def __init__(self, cluster: Cluster) -> None:
        self.transport, self.broker, self.client = cluster
        self.reports: list[dict[str, Any]] = []
        self.asked: list[list[str]] = []
        self.told: dict[str, Any] | None = None
        """None: as the controller knows them."""
        self.home = "b7"
        self.transport.listen(self.broker.subjects.topology("*"), self._on_topology)
        self.listen(True)

    def listen(self, listens: bool) -> None:
        self.transport.listen(self.broker.subjects.adopt(BrokerId("b7")), self._on_report if listens else None)

    def _answer(self, message: Message, answer: dict[str, Any]) -> None:
        assert message.reply is not None
        self.transport.publish(message.reply, [json.dumps(answer).encode()], headers={CLUSTER_HEADER: CLUSTER})

    def _on_topology(self, message: Message) -> None:
        names = json.loads(message.data)["streams"]
        self.asked.append(names)
        known = [self.told or self.broker.streams[name] for name in names if name in self.broker.streams]
        answer = {"cluster_id": CLUSTER, "generation": 9, "home_broker": self.home, "too_large": [], "next": None}
        self._answer(message, {**answer, "streams": known})

    def _on_report(self, message: Message) -> None:
        self.reports.append(json.loads(message.data))
        if message.reply is not None:
            self._answer(message, {"ttl_ms": 15_000})

    def push(self, cluster: str = CLUSTER, **changes: Any) -> None:
        data = json.dumps({**self.broker.streams[S], **changes}).encode()
        self.transport.publish(self.broker.subjects.push(S), [data], headers={CLUSTER_HEADER: cluster})


@pytest.fixture
async def brokers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    monkeypatch.setattr(route_updates, "PUSH_GAP", 0.0)
    monkeypatch.setattr(route_updates, "REPORT_INTERVAL_S", 0.02)
    return Brokers(cluster)


async def test_a_producer_goes_by_a_pushed_layout_before_anything_is_refused(brokers: Brokers) -> None:
    broker = brokers.broker
    async with brokers.client.producer("three") as producer:
        await producer.send(b"0", key=b"k")
        broker.repartition("three", 5)
        brokers.push()
        await delivered()
        receipt = await producer.send(b"1", key=b"k")
        assert receipt.partition == crc32c(b"k") % 5
    assert [request.partitioning_version for request, _ in broker.appends] == [1, 2]


async def test_a_lost_push_is_made_good_by_the_next_look(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 0.02)
    async with brokers.client.producer("three") as producer, brokers.client.producer("s"):
        await producer.send(b"0", key=b"k")
        brokers.broker.repartition("three", 5)
        await until(lambda: producer._routes.newest.version == 2)
        await until(lambda: brokers.reports[-1]["streams"].get("three") == 101)


async def test_pushes_are_subscribed_to_before_the_stream_is_asked_for(brokers: Brokers) -> None:
    asked: list[bool] = []
    metadata = brokers.broker._api["metadata"]
    subject = brokers.broker.subjects.push(S)

    def on_metadata(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(subject in brokers.transport.subscribed)
        return metadata(body)

    brokers.broker._api["metadata"] = on_metadata
    async with brokers.client.producer("three"):
        assert asked == [True]
    await delivered()
    assert subject not in brokers.transport.subscribed


@pytest.mark.parametrize(
    "forged",
    [
        {"incarnation": 1},
        {"routing_generation": 0},
        {"name": "s"},
        {"layouts": [{"version": 2, "partitions": 20_000, "generation": 1, "starts": []}], "partitioning_version": 2},
        {"layouts": [{"version": 2, "partitions": 5, "generation": 1, "starts": []}], "partitioning_version": 2},
        {"partitioning_version": 77},
        {"partitions": "none"},
        {"cluster": "another"},
    ],
)
async def test_a_push_that_cannot_be_of_the_stream_changes_nothing(brokers: Brokers, forged: dict[str, Any]) -> None:
    heard: list[StreamMetadata] = []
    cache = brokers.client._metadata
    await cache.updates.watch(S, heard.append, lambda: None).subscribed()
    known = await cache.get("three")
    brokers.push(**{"routing_generation": 50, **forged})
    await delivered()
    assert cache.last_seen(S) == known
    assert heard == [known]


async def test_a_later_life_of_the_stream_is_asked_for(brokers: Brokers) -> None:
    cache = brokers.client._metadata
    await cache.updates.watch(S, lambda _: None, lambda: None).subscribed()
    known = await cache.get("three")
    brokers.push(incarnation=known.incarnation + 9, routing_generation=50)
    await delivered()
    assert cache.last_seen(S) == known
    assert len(brokers.asked) >= 1


async def test_a_fetched_answer_takes_the_place_of_a_pushed_one(brokers: Brokers) -> None:
    cache = brokers.client._metadata
    await cache.updates.watch(S, lambda _: None, lambda: None).subscribed()
    await cache.get("three")
    brokers.push(routing_generation=1 << 60)
    await delivered()
    assert (await cache.get("three")).routing_generation == 1 << 60
    assert (await cache.refresh("three")).routing_generation == 1


async def test_a_push_that_contradicts_an_invented_one_leads_to_the_controller(brokers: Brokers) -> None:
    cache = brokers.client._metadata
    await cache.updates.watch(S, lambda _: None, lambda: None).subscribed()
    await cache.get("three")
    brokers.push(routing_generation=1 << 60)
    await delivered()
    brokers.broker.repartition("three", 4)
    brokers.push()
    await until(lambda: (known := cache.last_seen(S)) is not None and known.partitioning_version == 2)


async def test_a_producer_without_permission_for_pushes_works_and_says_so_once(
    brokers: Brokers, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("three", "s"):
        brokers.transport.violations.subscriptions[brokers.broker.subjects.push(name)] = 0
    with caplog.at_level(logging.WARNING):
        async with brokers.client.producer("three") as producer, brokers.client.producer("s") as other:
            await other.send(b"0")
            await producer.send(b"0", key=b"k")
            brokers.broker.repartition("three", 5)
            assert (await producer.send(b"1", key=b"k")).partition == crc32c(b"k") % 5
    assert [record.message for record in caplog.records if "does not let this login subscribe" in record.message] == [
        caplog.records[0].message
    ]


async def test_routes_are_asked_of_any_broker_once_the_cluster_is_known(brokers: Brokers) -> None:
    client = brokers.client
    await client._metadata.refresh("three")
    assert not brokers.asked
    await client._metadata.refresh("three")
    assert brokers.asked == [["three"]]


async def test_the_controller_is_asked_by_the_program_and_for_racks(brokers: Brokers) -> None:
    brokers.broker.racks = {"b1": "east"}
    client = brokers.client
    for _ in range(2):
        assert (await client.metadata("three")).racks == {"b1": "east"}
    client._metadata.forget("three")
    assert (await client._metadata.refresh("three")).racks == {}, "a broker tells none"
    assert brokers.asked == [["three"]]
    async with client.consume("three", read_from="nearest", rack="east"):
        assert (await client._metadata.get("three")).racks == {"b1": "east"}
    assert brokers.asked == [["three"]]


async def test_the_controller_is_asked_where_a_broker_is_behind(brokers: Brokers) -> None:
    client = brokers.client
    await client._metadata.refresh("three")
    brokers.told = dict(brokers.broker.streams["three"])
    brokers.broker.repartition("three", 5)
    brokers.broker.streams["three"]["routing_generation"] = 300
    client._metadata.forget("three")
    first = await client._metadata.refresh("three")
    assert first.partitioning_version == 1, "nothing newer is known"
    brokers.told = {**brokers.told, "routing_generation": 0}
    assert (await client._metadata.refresh("three")).partitioning_version == 2


async def test_the_routes_of_a_stream_that_this_client_made_anew_are_not_those_of_its_first_life(
    brokers: Brokers,
) -> None:
    """The broker that is asked has applied neither the deletion nor the creation yet."""
    broker, client = brokers.broker, brokers.client
    first = await client._metadata.refresh("three")
    brokers.told = dict(broker.streams["three"])
    await client.delete_stream("three")
    made = await client.create_stream("three", partitions=1)
    assert made["incarnation"] > first.incarnation
    assert (await client._metadata.refresh("three")).incarnation == made["incarnation"]
    assert brokers.asked == [["three"]], "it was asked, and was not believed"
    async with client.producer("three") as producer:
        await producer.send(b"new")
    ((request, _),) = broker.appends
    assert request.stream_incarnation == made["incarnation"]


async def test_a_broker_that_has_not_heard_of_a_stream_does_not_decide(brokers: Brokers) -> None:
    await brokers.client._metadata.refresh("three")
    with pytest.raises(TidelogError) as caught:
        await brokers.client._metadata.refresh("nowhere")
    assert caught.value.code is Code.UNKNOWN_STREAM


async def test_reports_tell_what_the_producers_go_by_and_a_client_that_goes_says_so(brokers: Brokers) -> None:
    broker, client = brokers.broker, brokers.client
    async with client.producer("three") as producer:
        await producer.send(b"0", key=b"k")
        await until(lambda: bool(brokers.reports))
        assert brokers.reports[-1]["streams"] == {"three": 1}
        broker.repartition("three", 5)
        brokers.push()
        generation = broker.streams["three"]["routing_generation"]
        await until(lambda: brokers.reports[-1]["streams"] == {"three": generation})
        assert len({report["client_id"] for report in brokers.reports}) == 1
        await client.close()
    await delivered()
    assert brokers.reports[-1]["streams"] == {}


async def test_a_client_that_reads_and_writes_no_more_says_so(brokers: Brokers) -> None:
    """A repartition would wait for it until its broker forgets it."""
    async with brokers.client.producer("three") as producer:
        await producer.send(b"0", key=b"k")
        await until(lambda: bool(brokers.reports))
        assert brokers.reports[-1]["streams"] == {"three": 1}
    await until(lambda: brokers.reports[-1]["streams"] == {})
    count = len(brokers.reports)
    await asyncio.sleep(0.1)
    assert len(brokers.reports) == count, "once is enough"


async def test_a_report_waits_for_the_one_who_goes_by_the_oldest_routes(brokers: Brokers) -> None:
    cache = brokers.client._metadata
    slow, fast = (cache.updates.watch(S, lambda _: None, lambda: None) for _ in range(2))
    await cache.get("three")
    slow.applied, fast.applied = 3, 8
    assert cache.updates.applied() == {"three": 3}
    slow.applied = 0
    assert cache.updates.applied() == {}
    cache.updates.end(slow)
    assert cache.updates.applied() == {"three": 8}


async def test_a_change_that_comes_while_a_report_is_on_its_way_is_reported_at_once(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = brokers.broker
    unanswered: list[Message] = []
    async with brokers.client.producer("three") as producer:
        await producer.send(b"0")
        await until(lambda: len(brokers.reports) > 0)
        monkeypatch.setattr(route_updates, "REPORT_INTERVAL_S", 60.0)
        await asyncio.sleep(0.05)  # the next report is on the long interval
        brokers.transport.listen(broker.subjects.adopt(BrokerId("b7")), unanswered.append)
        broker.repartition("three", 5)
        brokers.push()
        await until(lambda: len(unanswered) == 1)
        broker.repartition("three", 6)
        brokers.push()
        await delivered()
        brokers.listen(True)
        brokers._on_report(unanswered[0])
        newest = broker.streams[S]["routing_generation"]
        await until(lambda: brokers.reports[-1]["streams"] == {"three": newest})


async def test_another_home_broker_is_found_when_the_first_is_gone(brokers: Brokers) -> None:
    async with brokers.client.producer("three") as producer:
        await producer.send(b"0")
        await until(lambda: bool(brokers.reports))
        brokers.listen(False)
        asked = len(brokers.asked)
        await until(lambda: len(brokers.asked) > asked + 1)
        brokers.listen(True)
        told = len(brokers.reports)
        await until(lambda: len(brokers.reports) > told)


async def test_the_home_broker_is_kept_when_another_one_tells_routes(brokers: Brokers) -> None:
    async with brokers.client.producer("three") as producer:
        await producer.send(b"0")
        await until(lambda: bool(brokers.reports))
        brokers.home = "b8"
        await brokers.client._metadata.refresh("three")
        told = len(brokers.reports)
        await until(lambda: len(brokers.reports) > told)


async def test_many_pushes_at_once_are_decoded_a_few_times(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route_updates, "PUSH_GAP", 0.01)
    heard: list[int] = []
    cache = brokers.client._metadata
    await cache.updates.watch(S, lambda told: heard.append(told.routing_generation), lambda: None).subscribed()
    await cache.get("three")
    for generation in range(2, 200):
        brokers.push(routing_generation=generation)
    await until(lambda: heard[-1] == 199)
    assert len(heard) < 10
    await asyncio.sleep(0)


async def test_an_invented_layout_with_invented_leaders_holds_a_producer_for_a_moment(brokers: Brokers) -> None:
    broker = brokers.broker
    async with brokers.client.producer("three") as producer:
        await producer.send(b"0", key=b"k")
        stream = broker.streams["three"]
        layout = {"version": 2, "partitions": 2, "generation": 5, "starts": [1, 1, 1]}
        partitions = [{**each, "leader_epoch": 1000} for each in stream["partitions"]]
        brokers.push(
            routing_generation=1 << 40,
            partitioning_version=2,
            layouts=[*stream["layouts"], layout],
            partitions=partitions,
        )
        await delivered()
        assert producer._routes.newest.version == 2
        async with asyncio.timeout(20):
            receipt = await producer.send(b"1", key=b"k")
        assert producer._routes.newest.version == 1
    assert (receipt.partition, receipt.offset) == (crc32c(b"k") % 3, 1)


@pytest.mark.parametrize("code", [Code.INTERNAL, Code.NOT_PERMITTED, Code.MESSAGE_TOO_LARGE])
async def test_a_look_that_is_refused_ends_no_producer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, code: Code
) -> None:
    """Its leader takes records all the same."""
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 0.01)
    _, broker, client = cluster
    looks = 0

    def refuse(_: dict[str, Any]) -> dict[str, Any]:
        nonlocal looks
        looks += 1
        raise TidelogError(code, "not now")

    async with client.producer("three") as producer:
        monkeypatch.setitem(broker._api, "metadata", refuse)
        await until(lambda: looks >= 2)
        await producer.send(b"0", key=b"k")


async def test_a_look_that_finds_the_stream_gone_ends_its_producer(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 0.01)
    _, broker, client = cluster
    producer = client.producer("three")
    await producer.start()
    del broker.streams["three"]
    await until(lambda: producer._fatal is not None)
    with pytest.raises(UnknownStream):
        await producer.send(b"0", key=b"k")
    await producer.close()


async def test_each_stream_is_looked_at_within_the_time_since_its_watch_began(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 0.05)
    _, _, client = cluster
    loop, updates = asyncio.get_running_loop(), client._metadata.updates
    timers = []
    for stream in ("s", "three"):
        watch = updates.watch(StreamName(stream), lambda _: None, lambda: None)
        timer = updates._watched[watch.stream].look_timer
        assert timer is not None
        timers.append(timer)
        assert 0.02 < timer.when() - loop.time() <= 0.05
        updates.end(watch)
    assert all(timer.cancelled() for timer in timers)
