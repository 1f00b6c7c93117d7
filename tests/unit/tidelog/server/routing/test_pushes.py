"""Pushes of routes: what brings one about and what does not, in which order they come, and how many."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable

import pytest

from metadata.cluster.model import Outcome, Stream
from tests.fake_nats import FakeTransport, Hub
from tests.unit.metadata.cluster_bench import CLUSTER_ID, Cluster
from tidelog.server.routing import pushes
from tidelog.server.routing.pushes import DuePushes, Pushes
from tidelog.server.routing.topology_pages import TopologyPages
from wire.errors import CLUSTER_HEADER
from wire.internal_streams import GROUPS
from wire.messaging.transport import Message
from wire.operations import json_codec
from wire.operations.api_operations import StreamRoutes
from wire.subjects import Subjects
from wire.turns import LOOKS, Steps
from wire.types import BrokerId, Generation, StreamName

PATIENCE_S = 10.0


class World:
    def __init__(self) -> None:
        self.cluster = Cluster("a", "b", "c")
        self.transport = FakeTransport(Hub())
        loop = asyncio.get_running_loop()
        pages = TopologyPages(self.cluster.state, "a", Subjects(), lambda: 0, 1 << 20)
        self.on_changes = pages.on_changes
        self.pushes = Pushes(
            BrokerId("a"), self.cluster.state, self.transport, Subjects(), pages.routes, loop.time, lambda: 0.0
        )

    def applied(self, *outcomes: Outcome) -> None:
        for outcome in outcomes:
            assert outcome.code is None, outcome.message
            self.on_changes(outcome.changes)
            self.pushes.observe(outcome.changes)

    def create(self, name: str, partitions: int = 1) -> None:
        self.applied(self.cluster.create(name, ["a b c"] * partitions))

    @property
    def streams(self) -> list[str]:
        prefix = "tidelog.metadata.push."
        return [subject.removeprefix(prefix) for subject, _, _ in self.transport.sent if subject.startswith(prefix)]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():  # noqa: ASYNC110 - of any kind
                await asyncio.sleep(0.001)

    async def quiet(self) -> list[str]:
        """All that is due is published; the streams of the pushes since the last time."""
        await self.until(lambda: self.pushes._due.next() is None)
        found = self.streams
        self.transport.sent.clear()
        return found


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.pushes.close()


async def test_a_push_has_the_routes_and_names_the_cluster(world: World) -> None:
    world.pushes.on_controller(True)
    world.create("s", 2)
    await world.until(lambda: world.streams == ["s"])
    _, body, headers = world.transport.sent[0]
    routes = json_codec.decode(StreamRoutes, body, "the push")
    assert headers == {CLUSTER_HEADER: CLUSTER_ID}
    assert routes["routing_generation"] == world.cluster.state.streams[StreamName("s")].routing_generation
    assert [partition["leader"] for partition in routes["partitions"]] == ["a", "a"]


async def test_what_moves_no_routes_is_not_pushed(world: World) -> None:
    world.create("s")
    world.create("t")
    world.pushes.on_controller(True)
    assert sorted(await world.quiet()) == ["s", "t"]
    cluster = world.cluster
    world.applied(
        cluster.die("c"),  # a follower of both: their ISRs shrink
        cluster.register("c"),
        cluster.alter_stream(config={"retention_max_age_ms": "5000"}),
        cluster.set_readonly(),
    )
    await asyncio.sleep(5 * pushes.COALESCE_S)
    assert await world.quiet() == []
    world.applied(cluster.die("a"))
    assert await world.quiet() == ["s", "t"]


async def test_changes_at_a_time_are_one_push_of_each_stream(world: World) -> None:
    world.pushes.on_controller(True)
    world.create("s", 500)
    world.create("t", 500)
    assert await world.quiet() == ["s", "t"]
    for broker in ("a", "b", "a", "c"):
        world.applied(world.cluster.die(broker), world.cluster.register(broker))
    assert await world.quiet() == ["s", "t"], "thousands of changes of leader"


async def test_nobody_but_the_controller_pushes(world: World) -> None:
    world.create("s")
    await asyncio.sleep(5 * pushes.COALESCE_S)
    assert world.streams == []
    world.pushes.on_controller(True)
    assert await world.quiet() == ["s"]
    world.pushes.on_controller(False)
    world.applied(world.cluster.die("a"))
    await asyncio.sleep(5 * pushes.COALESCE_S)
    assert world.streams == []
    world.pushes.on_controller(True)
    assert await world.quiet() == ["s"]


async def test_a_new_controller_repeats_the_newest_change_first_and_at_a_pace(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "REPEATED_PER_S", 100)
    for number in range(20):
        world.create(f"s{number:02}")
    began = asyncio.get_running_loop().time()
    world.pushes.on_controller(True)
    await world.until(lambda: len(world.streams) >= 3)
    world.create("new")
    found = await world.quiet()
    assert asyncio.get_running_loop().time() - began >= 19 / 100
    found.remove("new")
    assert found == [f"s{number:02}" for number in reversed(range(20))]


async def test_a_change_overtakes_what_is_repeated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "REPEATED_PER_S", 0.01)
    world.create("s")
    world.create("t")
    world.pushes.on_controller(True)
    await world.until(lambda: world.streams == ["t"])
    world.create("new")
    await world.until(lambda: world.streams == ["t", "new"])


async def test_bytes_are_paced(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.pushes.on_controller(True)
    world.create("s")
    await world.until(lambda: world.streams == ["s"])
    size = len(world.transport.sent[0][1])
    monkeypatch.setattr(pushes, "MAX_BYTES_PER_S", 20 * size)
    began = asyncio.get_running_loop().time()
    for number in range(15):
        world.create(f"s{number:02}")
    await world.quiet()
    least = (15 - 1) / 20 - pushes.BURST_S
    assert asyncio.get_running_loop().time() - began >= least > 0.2


async def test_no_more_leave_than_nats_has_handed_out_but_for_a_window(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes, "WINDOW", 3)
    hub = world.transport.hub
    assert hub is not None
    hub.lose = lambda subject: not subject.startswith("tidelog.metadata.push.")
    world.pushes.on_controller(True)
    for number in range(10):
        world.create(f"s{number}")
    await world.until(lambda: len(world.streams) == 3)
    await asyncio.sleep(5 * pushes.COALESCE_S)
    assert len(world.streams) == 3, "NATS is silent"
    world.transport.inboxes.popitem()[1](Message("", b""))
    await world.until(lambda: len(world.streams) == 6)
    hub.lose = lambda _: False
    world.transport.inboxes.popitem()[1](Message("", b""))
    await world.until(lambda: len(world.streams) == 10)


async def test_a_window_without_an_answer_ends_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "WINDOW", 1)
    monkeypatch.setattr(pushes, "WINDOW_S", 0.01)
    hub = world.transport.hub
    assert hub is not None
    hub.lose = lambda _: True
    world.pushes.on_controller(True)
    for number in range(5):
        world.create(f"s{number}")
    assert await world.quiet() == [f"s{number}" for number in range(5)]
    await world.until(lambda: not world.transport.inboxes)


async def test_tidelogs_own_streams_are_not_pushed(world: World) -> None:
    world.pushes.on_controller(True)
    world.applied(world.cluster.create(GROUPS.name, subject=Subjects().internal(GROUPS.name)))
    world.create("s")
    assert await world.quiet() == ["s"]


async def test_nothing_is_pushed_for_a_deleted_stream(world: World) -> None:
    world.pushes.on_controller(True)
    world.create("s")
    world.applied(world.cluster.delete("s"))
    await asyncio.sleep(5 * pushes.COALESCE_S)
    assert await world.quiet() == []
    world.create("s")
    assert await world.quiet() == ["s"], "another one with that name"


async def test_routes_that_nats_cannot_carry_are_left_out_and_said_once(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.transport.max_payload = 3000
    world.pushes.on_controller(True)
    world.create("large", 100)
    world.create("small")
    assert await world.quiet() == ["small"]
    world.applied(world.cluster.die("a"))
    assert await world.quiet() == ["small"]
    assert world.pushes.left_out == 2
    assert caplog.text.count("pushes no routes of stream large") == 1


async def test_what_nats_does_not_take_stays_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushes, "RETRY_S", 0.01)
    world.transport.is_connected = False
    world.pushes.on_controller(True)
    world.create("s")
    await asyncio.sleep(0.05)
    world.applied(world.cluster.die("a"))
    assert world.streams == []
    world.transport.is_connected = True
    await world.until(lambda: world.streams == ["s"])
    assert json.loads(world.transport.sent[0][1])["partitions"][0]["leader"] == "b"


def test_a_stream_that_was_pushed_is_not_repeated() -> None:
    due = DuePushes()
    s, t = StreamName("s"), StreamName("t")
    due.begin({s: Generation(3), t: Generation(5)})
    due.on_applied([(s, Generation(6))])
    assert due.next() == (s, False)
    due.published(s, Generation(6))
    due.on_applied([(s, Generation(6))])
    assert due.next() == (t, True)
    due.published(t, Generation(5))
    assert due.next() is None


async def test_each_step_of_a_repartition_is_pushed_that_changes_routes(world: World) -> None:
    cluster = world.cluster
    world.create("s", 2)
    world.pushes.on_controller(True)
    assert await world.quiet() == ["s"]
    pushed: list[tuple[int, list[int], list[str]]] = []
    steps: list[Callable[[], Outcome]] = [
        lambda: cluster.prepare(1),
        cluster.cut_over,
        lambda: cluster.report_cutover(cluster.cutover_at(0, 17)),
        lambda: cluster.report_cutover(cluster.cutover_at(1, 4)),
        cluster.finish,
    ]
    for step in steps:
        world.applied(step())
        await world.until(lambda: world.pushes._due.next() is None)
        assert len(world.transport.sent) <= 1
        for _, body, _ in world.transport.sent:
            routes = json_codec.decode(StreamRoutes, body, "the push")
            states = [partition["state"] for partition in routes["partitions"]]
            pushed.append((routes["partitioning_version"], routes["layouts"][-1]["starts"], states))
        world.transport.sent.clear()
    assert pushed[-4:] == [
        (2, [-1, -1], ["active", "draining"]),
        (2, [17, -1], ["active", "draining"]),
        (2, [17, 4], ["active", "draining"]),
        (2, [17, 4], ["active", "retired"]),
    ]
    world.applied(cluster.prepare(2))
    assert await world.quiet() == ["s"], "no partition is made or changed, and the generation of the routes has moved"


async def test_a_stream_that_changes_while_its_routes_are_encoded_is_pushed_again(world: World) -> None:
    world.create("s", 2 * LOOKS)
    world.pushes.on_controller(True)
    assert await world.quiet() == ["s"]
    began = asyncio.Event()
    encoded = world.pushes._routes

    def noted(stream: Stream) -> Steps[bytes]:
        began.set()
        return encoded(stream)

    world.pushes._routes = noted
    world.applied(world.cluster.die("a"))
    async with asyncio.timeout(PATIENCE_S):
        await began.wait()
    world.applied(world.cluster.die("b"))
    await world.until(lambda: len(world.streams) == 2)
    assert world.pushes._due.next() is None
    routes = world.cluster.state.streams[StreamName("s")].routing_generation
    assert world.pushes._due._pushed[StreamName("s")] == routes
