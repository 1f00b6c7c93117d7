"""Members of a group whose stream's number of partitions changes."""

# Rules: R65, R66, R82.

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal

import pytest

from tests.simulation.mutants import SEEN_BY_CLIENTS
from tests.simulation.mutation import Mutant
from tests.unit.tidelog.client.fake_broker import make
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator
from tests.unit.tidelog.client.group.members_world import World, take, until
from tidelog.client.cluster import route_updates
from tidelog.client.consumer.offset_lookup import LogStart
from tidelog.client.group import group_gate, group_partitions
from wire.batch.control import control_batch
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import StreamPartition
from wire.messaging.transport import Message
from wire.operations.api_operations import GROUP_COORDINATOR
from wire.protobuf.groups_pb2 import CommittedOffset, OffsetsRequest
from wire.types import StreamName


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    """With the stream `s` of two partitions, and five records in each."""
    monkeypatch.setattr(route_updates, "LOOK_EVERY", 0.02)
    monkeypatch.setattr(group_gate, "ASK_EVERY", 0.01)
    monkeypatch.setattr(group_gate, "_LOOK_EVERY", 0.01)
    transport, broker, client = make()
    broker._api[GROUP_COORDINATOR.name] = lambda _: {"partition": 0}
    transport.listen(broker.subjects.api(GROUP_COORDINATOR.name), lambda m: broker._on_api(GROUP_COORDINATOR.name, m))
    broker.create("s", 2)
    streams = {name: (made["incarnation"], len(made["partitions"])) for name, made in broker.streams.items()}
    world = World(transport, broker, FakeCoordinator(transport, streams), [client])
    for partition in range(2):
        world.seed("s", partition, 5)
    yield world
    for client in world.clients:
        await client.close()


def repartition(world: World, partitions: int) -> None:
    """The coordinator hears of it, too."""
    world.broker.repartition("s", partitions)
    incarnation = world.broker.streams["s"]["incarnation"]
    world.coordinator.streams["s"] = incarnation, len(world.broker.streams["s"]["partitions"])
    world.coordinator.rebalance("g")


def no_records(world: World, partition: int, count: int) -> None:
    """Control batches, as transactions leave them."""
    for _ in range(count):
        world.broker.write(("s", partition), control_batch(1, 1, b""))


async def test_one_member_reads_in_order_and_commits_at_the_cutover_by_itself(world: World) -> None:
    async with world.client().subscribe("s", group="g", auto_commit_interval=600) as consumer:
        await take(consumer, 10)
        repartition(world, 4)
        for partition in range(4):
            world.seed("s", partition, 2)
        found = await take(consumer, 8)
        assert sorted(found) == [("s", p, offset) for p in range(4) for offset in ((5, 6) if p < 2 else (0, 1))]
        assert world.committed["s", 0] >= 5
        assert world.committed["s", 1] >= 5
        assert consumer.waiting == {}


async def test_a_member_waits_for_what_another_one_has_not_processed(world: World) -> None:
    async with (
        world.client().subscribe("s", group="g", auto_commit=False) as one,
        world.client().subscribe("s", group="g", auto_commit=False) as two,
    ):
        await until(lambda: len(one.assignment) == len(two.assignment) == 1)
        (own,), (other,) = one.assignment, two.assignment
        await take(one, 5)
        await take(two, 5)
        repartition(world, 4)
        for partition in range(4):
            world.seed("s", partition, 1)
        assert await take(one, 1) == [(*own, 5)]
        await until(lambda: len(one.assignment) == len(two.assignment) == 2)
        await until(lambda: bool(one.waiting))
        assert await one.getone(timeout=0.1) is None
        ((waiting, sources),) = one.waiting.items()
        assert sources == {("s", waiting[1] % 2): 5}
        holder = {own: one, other: two}["s", waiting[1] % 2]
        await holder.commit({("s", waiting[1] % 2): 4})
        assert await one.getone(timeout=0.05) is None, "not up to the cutover"
        await holder.commit({("s", waiting[1] % 2): 5})
        assert await take(one, 1) == [(*waiting, 0)]
        assert one.waiting == {}


async def test_with_order_partition_nothing_waits(world: World) -> None:
    repartition(world, 4)
    for partition in range(4):
        world.seed("s", partition, 1)
    async with world.client().subscribe("s", group="g", auto_commit=False, order="partition") as consumer:
        consumer_found = await take(consumer, 14)
        assert len(consumer_found) == 14
        assert world.committed == {}
        assert consumer.waiting == {}


async def test_a_member_that_is_killed_before_it_commits_keeps_the_others_waiting(world: World) -> None:
    repartition(world, 4)
    world.seed("s", 2, 1)
    world.seed("s", 3, 1)
    first = world.client().subscribe("s", group="g", auto_commit=False)
    async with world.client().subscribe("s", group="g", auto_commit=False) as second:
        await first.start()
        await until(lambda: len(first.assignment) == len(second.assignment) == 2)
        await take(first, 5)
        world.coordinator.remove("g", first.member_id)
        await first._session.aclose()  # it is killed
        await until(lambda: len(second.assignment) == 4)
        found = await take(second, 10)
        assert {partition for _, partition, _ in found} == {0, 1}
        await until(lambda: len(second.waiting) == 2)
        assert await second.getone(timeout=0.1) is None
        assert second.waiting == {("s", 2): {("s", 0): 5}, ("s", 3): {("s", 1): 5}}
        await second.commit()
        assert sorted(await take(second, 2)) == [("s", 2, 0), ("s", 3, 0)]


async def test_a_cutover_behind_what_is_no_record_is_committed_for_the_program(world: World) -> None:
    """The program commits behind its records, and a control batch or a compacted range lies between."""
    world.broker.logs["s", 1].batches.clear()
    world.broker.logs["s", 1].end = 0
    no_records(world, 0, 2)
    no_records(world, 1, 3)
    repartition(world, 4)
    world.seed("s", 2, 1)
    world.seed("s", 3, 1)
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        found = await take(consumer, 6)
        assert sorted(found) == [*(("s", 0, offset) for offset in range(5)), ("s", 3, 0)]
        assert world.committed == {("s", 1): 3}
        assert await consumer.getone(timeout=0.05) is None
        await consumer.commit({("s", 0): 5}, "mine")
        assert await take(consumer, 1) == [("s", 2, 0)]
        assert world.committed == {("s", 0): 7, ("s", 1): 3}
        assert (await consumer.committed())["s", 0].metadata == "mine"


async def test_what_was_committed_in_front_of_no_record_opens_the_next_partition_after_a_start(world: World) -> None:
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 10)
        await consumer.commit()
    no_records(world, 0, 2)
    repartition(world, 4)
    world.seed("s", 2, 1)
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        assert await take(consumer, 1) == [("s", 2, 0)]


async def test_a_partition_made_later_begins_with_its_first_record(world: World) -> None:
    async with world.client().subscribe("s", group="g", start="latest") as consumer:
        assert len(await take(consumer, 2)) == 2
    repartition(world, 4)
    world.seed("s", 3, 2)
    async with world.client().subscribe("s", group="g", start="latest") as consumer:
        assert await take(consumer, 2) == [("s", 3, 0), ("s", 3, 1)]
    async with world.client().subscribe("s", group="h", start="latest") as fresh:
        found = await take(fresh, 3)
        assert sorted(found) == [("s", 0, 4), ("s", 1, 4), ("s", 3, 1)], "a group that begins now begins at the end"


async def test_a_partition_whose_sources_lost_their_records_waits_no_longer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_gate, "_LOG_STARTS_EVERY", 0.01)
    async with (
        world.client().subscribe("s", group="g", auto_commit=False) as one,
        world.client().subscribe("s", group="g", auto_commit=False) as two,
    ):
        await until(lambda: len(one.assignment) == len(two.assignment) == 1)
        repartition(world, 4)
        world.seed("s", 2, 1)
        world.seed("s", 3, 1)
        await until(lambda: len(one.assignment) == len(two.assignment) == 2)
        await take(one, 5)
        await until(lambda: bool(one.waiting))
        assert await one.getone(timeout=0.05) is None
        waiting = dict(one.waiting)
        ((partition, sources),) = waiting.items()
        assert sources == {("s", partition[1] - 2): 5}
        for source in range(2):
            world.broker.logs["s", source].start = 4
        assert await one.getone(timeout=0.3) is None, "a record is left below the cutover"
        assert one.waiting == waiting
        for source in range(2):
            world.broker.logs["s", source].start = 5
        assert await take(one, 1) == [(*partition, 0)]
        assert one.waiting == {}
        assert world.committed == {}, "nothing else has opened it"


@pytest.mark.parametrize("why", ["some replica may serve them still", "the look has failed"])
async def test_a_look_at_a_log_start_that_settles_nothing_is_soon_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr(group_gate, "_LOG_STARTS_AGAIN", 0.02)
    logs = [world.broker.logs["s", source] for source in range(2)]
    async with (
        world.client().subscribe("s", group="g", auto_commit=False) as one,
        world.client().subscribe("s", group="g", auto_commit=False) as two,
    ):
        await until(lambda: len(one.assignment) == len(two.assignment) == 1)
        repartition(world, 4)
        world.seed("s", 2, 1)
        world.seed("s", 3, 1)
        await until(lambda: len(one.assignment) == len(two.assignment) == 2)
        await take(one, 5)
        for log in logs:
            log.start, log.settled = 5, 4
        looks = 0
        if why == "the look has failed":
            gate = one._partitions.gate
            assert gate is not None
            look = gate._log_starts

            async def fail_first(stream: str, partitions: Iterable[int]) -> Mapping[int, LogStart]:
                nonlocal looks
                looks += 1
                if looks <= 3:
                    raise TidelogError(Code.UNAVAILABLE, "no leader")
                return await look(stream, partitions)

            monkeypatch.setattr(gate, "_log_starts", fail_first)
        await until(lambda: bool(one.waiting))
        assert await one.getone(timeout=0.1) is None
        assert one.waiting
        for log in logs:
            log.settled = 5
        assert len(await asyncio.wait_for(take(one, 1), 2)) == 1, "the next look in turn comes after 5 s"
        assert one.waiting == {}


@pytest.mark.parametrize(("mutant", "why"), SEEN_BY_CLIENTS, ids=[mutant.name for mutant, _ in SEEN_BY_CLIENTS])
async def test_a_mutant_of_the_look_at_log_starts_is_caught(
    world: World, monkeypatch: pytest.MonkeyPatch, mutant: Mutant, why: str
) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        await test_a_look_at_a_log_start_that_settles_nothing_is_soon_repeated(world, monkeypatch, why)


async def test_a_long_wait_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_gate, "LONG_WAIT", 0.05)
    repartition(world, 4)
    world.seed("s", 2, 1)
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 10)
        assert await consumer.getone(timeout=0.3) is None
        told = [record.message for record in caplog.records if record.levelno == logging.WARNING]
        assert len([message for message in told if "s/2 has waited for" in message]) == 1
        assert any("until the group has committed s/0 up to 5;" in message for message in told)


async def test_offsets_that_a_transaction_keeps_back_hold_up_no_other_partition(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a transaction commits in one partition, a question about several is refused."""

    def refuse(message: Message) -> bytes:
        if any(1 in each.partitions for each in OffsetsRequest.FromString(message.data).partitions):
            raise TidelogError(Code.UNAVAILABLE, "s/1 has pending offsets")
        return tell(message)

    monkeypatch.setattr(group_gate, "_ASK_TIMEOUT", 0.1)
    repartition(world, 4)
    world.seed("s", 2, 1)
    world.seed("s", 3, 1)
    tell = world.coordinator._on_offsets
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 10)
        await consumer.getone(timeout=0.05)
        monkeypatch.setattr(world.coordinator, "_on_offsets", refuse)
        world.coordinator._listen()
        world.group.offsets[StreamPartition("s", world.broker.streams["s"]["incarnation"], 0)] = CommittedOffset(
            stream="s", incarnation=world.broker.streams["s"]["incarnation"], partition=0, offset=5
        )
        assert await take(consumer, 1) == [("s", 2, 0)]
        assert consumer.waiting == {("s", 3): {("s", 1): 5}}


async def test_paused_and_sought_while_it_waits(world: World) -> None:
    repartition(world, 4)
    world.seed("s", 2, 3)
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 10)
        assert await consumer.getone(timeout=0.05) is None
        await consumer.seek("s", 2, 1)
        assert await consumer.getone(timeout=0.05) is None
        consumer.pause(("s", 2))
        await consumer.commit()
        assert await consumer.getone(timeout=0.05) is None
        consumer.resume()
        assert await take(consumer, 2) == [("s", 2, 1), ("s", 2, 2)]


async def test_members_that_come_and_go_while_partitions_wait_hang_nobody(world: World) -> None:
    repartition(world, 4)
    for partition in range(4):
        world.seed("s", partition, 20)
    found: list[tuple[str, int, int]] = []

    async def read() -> None:
        async with world.client().subscribe("s", group="g", auto_commit_interval=0.02) as member:
            while len(set(found)) < 90:
                record = await member.getone(timeout=0.1)
                if record is not None:
                    found.append((record.stream, record.partition, record.offset))

    async with asyncio.timeout(20):
        await asyncio.gather(*(read() for _ in range(3)))
    for partition in (2, 3):
        assert found.index(("s", partition, 0)) > found.index(("s", partition - 2, 4))


@pytest.mark.parametrize(
    ("counts", "committed", "log_starts", "waits_for"),
    [
        pytest.param([4], {0: 4, 1: 5}, {}, [{}, {}, {"0": 5}, {}], id="where nothing is committed"),
        pytest.param([4], {0: 4, 1: 5, 2: 0}, {}, [{}, {}, {"0": 5}, {}], id="at the limit"),
        pytest.param([4], {0: 4, 1: 5, 2: 7}, {}, [{}, {}, {"0": 5}, {}], id="beyond the limit"),
        pytest.param([4], {0: 4}, {0: 5, 1: 5}, [{}, {}, {}, {}], id="not for what retention has removed"),
        pytest.param([1, 2], {0: 4, 1: 4}, {}, [{}, {}], id="not in front of the limit"),
        pytest.param([1, 2], {0: 4}, {}, [{}, {}], id="not at the start of the log"),
        pytest.param([1, 2], {0: 4}, {1: 5}, [{}, {"0": 5}], id="at the start of the log, where that is the limit"),
    ],
)
async def test_a_description_tells_what_waits(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    counts: list[int],
    committed: dict[int, int],
    log_starts: dict[int, int],
    waits_for: list[dict[str, int]],
) -> None:
    for count in counts:
        repartition(world, count)
    for partition, start in log_starts.items():
        world.broker.logs["s", partition].start = start
    client = world.client()
    assigned = [*range(len(waits_for))]
    monkeypatch.setattr(client._groups, "_describe", described(committed, {"s": assigned}))
    progress = (await client.describe_group("g"))["progress"]
    assert [entry["waits_for"] for entry in progress] == waits_for


def described(committed: dict[int, int], *assigned: dict[str, list[int]]) -> Callable[[str], Awaitable[dict[str, Any]]]:
    """A group that has committed these offsets in stream s, with members that have these partitions."""

    async def run(_: str) -> dict[str, Any]:
        offsets = [
            {"stream": "s", "partition": p, "offset": offset, "metadata": "", "committed_at_ns": 1}
            for p, offset in committed.items()
        ]
        members = [{"id": f"m{number}", "assigned": held, "revoking": {}} for number, held in enumerate(assigned)]
        return {"details": members, "offsets": offsets, "streams": ["s"]}

    return run


async def test_a_description_has_the_partitions_that_wait_and_that_nobody_has(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator sees them before the members come back."""
    repartition(world, 4)
    world.seed("s", 2, 7)
    client = world.client()
    monkeypatch.setattr(client._groups, "_describe", described({0: 4, 1: 5}))
    progress = (await client.describe_group("g"))["progress"]
    assert [(entry["partition"], entry["committed"], entry["waits_for"]) for entry in progress] == [
        (0, 4, {}),
        (1, 5, {}),
        (2, None, {"0": 5}),
        (3, None, {}),
    ]
    assert progress[2] == {
        "stream": "s", "partition": 2, "committed": None, "end": 7, "lag": None, "member": None, "metadata": "",
        "committed_at_ns": 0, "waits_for": {"0": 5},
    }  # fmt: skip
    monkeypatch.setattr(client._groups, "_describe", described({0: 5, 1: 5}))
    progress = (await client.describe_group("g"))["progress"]
    assert not any(entry["waits_for"] for entry in progress), "nothing waits any more"


async def test_what_is_gone_keeps_nothing_else_from_being_committed(world: World) -> None:
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 10)
        world.broker.repartition("s", 1)
        world.broker.streams["s"]["partitions"].pop()
        await until(lambda: any(assigned.is_removed for assigned in consumer._state.partitions.values()))
        await consumer.commit()
        assert world.committed == {("s", 0): 5}


async def test_what_was_committed_in_an_earlier_life_of_a_partition_opens_nothing(world: World) -> None:
    broker, coordinator = world.broker, world.coordinator
    async with world.client().subscribe("s", group="g", auto_commit=False) as consumer:
        await take(consumer, 10)
        repartition(world, 1)
        world.seed("s", 0, 1)
        incarnation = broker.streams["s"]["incarnation"]
        of = StreamPartition("s", incarnation, 1)
        coordinator.group("g").offsets[of] = CommittedOffset(
            stream="s", incarnation=incarnation, partition=1, partition_incarnation=incarnation, offset=5
        )
        assert await take(consumer, 1) == [("s", 0, 5)], "another member has committed partition 1"
        await consumer.commit()
        broker.streams["s"]["partitions"].pop()
        del coordinator.group("g").offsets[of]
        coordinator.streams["s"] = incarnation, 1
        coordinator.rebalance("g")
        await until(lambda: consumer.assignment == {("s", 0)})
        broker.logs["s", 1].batches.clear()
        broker.logs["s", 1].end = 0
        repartition(world, 2)
        world.seed("s", 1, 3)
        assert await take(consumer, 3) == [("s", 1, offset) for offset in range(3)]
        repartition(world, 1)
        world.seed("s", 0, 1)
        assert await consumer.getone(timeout=0.2) is None
        assert consumer.waiting == {("s", 0): {("s", 1): 3}}
        await consumer.commit()
        assert await take(consumer, 1) == [("s", 0, 6)]


def make_anew(world: World, partition: int) -> None:
    """The last partition of `s`, all of whose records were removed. The coordinator sees no view between the two, so
    that it assigns nothing anew."""
    broker = world.broker
    broker.repartition("s", partition)
    broker.streams["s"]["partitions"].pop()
    log = broker.logs["s", partition]
    log.batches.clear()
    log.start = log.end = 0
    broker.repartition("s", partition + 1)


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_a_partition_that_was_made_anew_between_two_views_of_the_coordinator_is_begun_anew(
    world: World, order: Literal["key", "partition"]
) -> None:
    told: list[tuple[str, set[tuple[str, int]]]] = []
    async with world.client().subscribe(
        "s",
        group="g",
        order=order,
        on_assigned=lambda partitions: told.append(("assigned", {*partitions})),
        on_lost=lambda partitions: told.append(("lost", {*partitions})),
    ) as consumer:
        await take(consumer, 10)
        await consumer.commit()
        generation = consumer.generation
        make_anew(world, 1)
        world.seed("s", 1, 8)
        # The coordinator still has the offset of before.
        assert await take(consumer, 8) == [("s", 1, offset) for offset in range(8)]
        assert consumer.generation == generation
    assert world.committed == {("s", 0): 5, ("s", 1): 8}
    assert told == [("assigned", {("s", 0), ("s", 1)}), ("lost", {("s", 1)}), ("assigned", {("s", 1)})]


async def test_older_metadata_do_not_bring_an_earlier_life_of_a_partition_back(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_partitions, "_AGAIN", 0.01)
    lost: list[set[tuple[str, int]]] = []
    client = world.client()
    before = await client._metadata.get("s")

    def lag(_: object) -> None:
        client._metadata._known[StreamName("s")] = before

    async with client.subscribe(
        "s", group="g", order="partition", on_assigned=lag, on_lost=lambda partitions: lost.append({*partitions})
    ) as consumer:
        await take(consumer, 10)
        await consumer.commit()
        make_anew(world, 1)
        world.seed("s", 1, 3)
        assert await take(consumer, 3) == [("s", 1, offset) for offset in range(3)]
    assert lost == [{("s", 1)}]


@pytest.mark.parametrize("order", ["key", "partition"])
async def test_a_partition_that_the_member_has_seen_go_is_begun_anew(
    world: World, order: Literal["key", "partition"]
) -> None:
    async with world.client().subscribe("s", group="g", order=order) as consumer:
        await take(consumer, 10)
        await consumer.commit()
        world.broker.repartition("s", 1)
        world.broker.streams["s"]["partitions"].pop()
        consumer._partitions._readings["s", 10]._refresh()
        await until(lambda: any(assigned.is_removed for assigned in consumer._state.partitions.values()))
        log = world.broker.logs["s", 1]
        log.batches.clear()
        log.start = log.end = 0
        world.broker.repartition("s", 2)
        world.seed("s", 1, 3)
        assert await take(consumer, 3) == [("s", 1, offset) for offset in range(3)]
