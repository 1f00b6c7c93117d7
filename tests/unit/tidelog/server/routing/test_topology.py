"""Pages of the topology: what is in them, how they go on, and their bounds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from metadata.cluster.model import Outcome
from metadata.controller.descriptions import routes_form
from tests.turns import finished
from tests.unit.metadata.cluster_bench import CLUSTER_ID, Cluster
from tidelog.server.routing.topology_pages import HEAD_BYTES, TopologyPages
from wire.errors import Code, TidelogError
from wire.internal_streams import GROUPS
from wire.operations import json_codec
from wire.operations.api_operations import Topology
from wire.operations.stream_routes import MAX_PAGE, MAX_STREAMS_ASKED, MAX_TOPOLOGY_REQUEST_BYTES, TOPOLOGY
from wire.subjects import Subjects
from wire.turns import LOOKS
from wire.types import StreamName


class Pages:
    def __init__(self, max_payload: int = 1 << 20) -> None:
        self.cluster = Cluster("a", "b", "c")
        self.changes = 0
        self.max_payload = max_payload
        self.pages = TopologyPages(self.cluster.state, "a", Subjects(), lambda: self.changes, max_payload)

    def create(self, *names: str, partitions: int = 1) -> None:
        for name in names:
            outcome = self.cluster.create(name, ["a b c"] * partitions)
            self.changes += 1
            self.pages.on_changes(outcome.changes)

    async def ask(self, **request: Any) -> Topology:
        body = await self.pages.page(json.dumps(request).encode() if request else b"")
        assert len(body) <= self.max_payload - HEAD_BYTES // 2, "the headers have room"
        return TOPOLOGY.decode_answer(body, None)

    async def all(self, **request: Any) -> list[list[str]]:
        """The names of each page, to the last one."""
        after: str | None = ""
        found = []
        while after is not None:
            page = await self.ask(after=after, **request)
            found.append([stream["name"] for stream in page["streams"]])
            after = page["next"]
        return found


async def test_routes_are_those_of_the_controllers_operation() -> None:
    world = Pages()
    world.create("s", partitions=3)
    page = await world.ask()
    form = finished(routes_form(world.cluster.state, world.cluster.state.streams[StreamName("s")]))
    assert page["streams"] == [form]
    assert (page["cluster_id"], page["generation"], page["home_broker"]) == (
        CLUSTER_ID,
        world.cluster.state.generation,
        "a",
    )
    assert (page["too_large"], page["next"]) == ([], None)


async def test_a_change_is_in_the_next_answer_and_so_is_the_generation() -> None:
    world = Pages()
    world.create("s")
    before = (await world.ask())["streams"][0]
    world.pages.on_changes(world.cluster.die("a").changes)
    after = (await world.ask())["streams"][0]
    assert (before["partitions"][0]["leader"], after["partitions"][0]["leader"]) == ("a", "b")
    assert after["routing_generation"] > before["routing_generation"]
    cluster = world.cluster
    changes: list[Callable[[], Outcome]] = [
        lambda: cluster.register("a"),
        lambda: cluster.create("t"),
        lambda: cluster.alter_stream(config={"retention_max_age_ms": "5000"}),
        cluster.set_readonly,
        lambda: cluster.die("b"),
        lambda: cluster.register("b"),
        lambda: cluster.alter_stream(unset=["retention_max_age_ms"]),
    ]
    for change in changes:
        outcome = change()
        assert outcome.code is None
        world.pages.on_changes(outcome.changes)
        page = await world.ask(streams=["s"])
        form = finished(routes_form(cluster.state, cluster.state.streams[StreamName("s")]))
        assert page["streams"] == [form]
        assert page["generation"] == cluster.state.generation


async def test_steps_of_a_repartition_are_in_the_next_answer() -> None:
    world = Pages()
    world.create("s", partitions=2)
    cluster = world.cluster
    steps: list[Callable[[], Outcome]] = [
        lambda: cluster.prepare(1),
        cluster.cut_over,
        lambda: cluster.report_cutover(cluster.cutover_at(0, 17), cluster.cutover_at(1, 4)),
        cluster.finish,
        lambda: cluster.prepare(2),
        cluster.cancel,
    ]
    for step in steps:
        await world.ask()
        outcome = step()
        assert outcome.code is None
        world.pages.on_changes(outcome.changes)
        form = finished(routes_form(cluster.state, cluster.state.streams[StreamName("s")]))
        assert (await world.ask())["streams"] == [form]


async def test_pages_go_on_where_the_one_before_ended() -> None:
    world = Pages()
    world.create("e", "b", "d", "a", "c")
    assert await world.all(limit=2) == [["a", "b"], ["c", "d"], ["e"]]
    assert await world.all(limit=5) == [["a", "b", "c", "d", "e"]]
    assert await world.all(streams=["e", "a", "missing", "c"], limit=2) == [["a", "c"], ["e"]]
    assert await world.all(streams=["missing"]) == [[]]
    world.pages.on_changes(world.cluster.delete("c").changes)
    world.changes += 1
    assert await world.all(limit=2) == [["a", "b"], ["d", "e"]]


async def test_tidelogs_own_streams_are_told_to_those_alone_that_name_them() -> None:
    world = Pages()
    world.create("s")
    world.cluster.create(GROUPS.name, subject=Subjects().internal(GROUPS.name))
    world.changes += 1
    assert await world.all() == [["s"]]
    assert await world.all(streams=[GROUPS.name, "s"]) == [[GROUPS.name, "s"]]


async def test_a_page_has_no_more_than_nats_carries() -> None:
    world = Pages(max_payload=8000)
    names = [f"s{number:02}" for number in range(20)]
    world.create(*names, partitions=3)
    pages = await world.all(limit=1000)
    assert [name for page in pages for name in page] == names
    assert 3 <= len(pages) <= 20


async def test_a_stream_that_is_too_large_is_named_and_stops_nothing() -> None:
    world = Pages(max_payload=8000)
    world.create("a", "c")
    world.create("b", partitions=100)
    page = await world.ask()
    assert ([stream["name"] for stream in page["streams"]], page["too_large"], page["next"]) == (
        ["a", "c"],
        ["b"],
        None,
    )
    assert (await world.ask(limit=2))["next"] == "b"


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense",
        b'{"streams": 3}',
        b'{"limit": 0}',
        b'{"limit": %d}' % (MAX_PAGE + 1),
        json.dumps({"streams": [str(number) for number in range(MAX_STREAMS_ASKED + 1)]}).encode(),
        b'{"after": "%s"}' % (b"x" * MAX_TOPOLOGY_REQUEST_BYTES),
    ],
)
async def test_a_request_that_cannot_be_read_is_refused(data: bytes) -> None:
    world = Pages()
    with pytest.raises(TidelogError) as refused:
        await world.pages.page(data)
    assert refused.value.code is Code.BAD_REQUEST
    assert len(refused.value.message) < 300


def test_the_answer_is_of_a_kind_that_the_codec_knows() -> None:
    with pytest.raises(ValueError, match="it is 3, not an object"):
        json_codec.checked(Topology, 3, "it")


async def test_routes_that_change_while_they_are_encoded_are_of_one_generation_and_are_not_kept() -> None:
    world = Pages()
    partitions = 2 * LOOKS
    world.create("s", partitions=partitions)
    asked = asyncio.create_task(world.ask())
    await asyncio.sleep(0)
    assert not asked.done(), "it takes more than one turn"
    before = world.cluster.state.generation
    world.pages.on_changes(world.cluster.die("a").changes)
    page = await asked
    (stream,) = page["streams"]
    assert {partition["leader"] for partition in stream["partitions"]} == {"a"}
    assert (page["generation"], stream["routing_generation"]) == (before, before)
    (stream,) = (await world.ask())["streams"]
    assert "a" not in {partition["leader"] for partition in stream["partitions"]}


async def test_of_two_requests_that_a_change_comes_between_the_later_ones_routes_are_kept() -> None:
    world = Pages(max_payload=16 << 20)
    world.create("s", partitions=4 * LOOKS)
    asked = [asyncio.create_task(world.ask())]
    await asyncio.sleep(0)
    world.pages.on_changes(world.cluster.die("a").changes)
    asked.append(asyncio.create_task(world.ask()))
    await asyncio.sleep(0)
    assert not asked[0].done(), "both are at work"
    await asyncio.gather(*asked)
    (stream,) = (await world.ask())["streams"]
    assert "a" not in {partition["leader"] for partition in stream["partitions"]}
