"""Operators change the number of partitions of a living stream."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.commands.cluster_state import ClusterState
from metadata.controller.descriptions import plan_form
from metadata.controller.repartitions import concerned
from metadata.runtime.registration import Registration
from tests.unit.metadata.brokers import CREATE, SETTINGS, SUBJECTS, running, until
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import Code, TidelogError
from wire.layouts import MAX_LAYOUTS, NOT_REPORTED, KeyOrder, Layout
from wire.operations.adoption_report import ADOPTION_LABEL, encode_label
from wire.operations.partition_operations import MAX_LISTED
from wire.types import BrokerId, Incarnation, Offset, PartitionState, RetiredReport, StreamName

NAME = StreamName("s")


async def test_a_stream_grows_and_keys_go_to_all_of_it() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        plan = (await world.api("stream.repartition", name="s", partitions=6, dry_run=True))["plan"]
        assert plan["made"] == [3, 4, 5]
        assert plan["moved_keys"] == 0.5
        assert plan["sources"][0] == {"partition": 3, "waits_for": [0]}
        assert (await world.api("stream.describe", name="s"))["repartition"] is None, "nothing was changed"
        answer = await world.api("stream.repartition", name="s", partitions=6)
        assert answer["plan"] == plan
        assert answer["status"]["partitions"] == 6
        assert answer["status"]["partitioning_version"] == 2
        await until(lambda: world.view(5).is_routed)
        await until(lambda: not any(world.view(number).awaits_sources for number in range(6)))
        stream = world.brokers["b"].service.state.streams[NAME]
        assert stream.layouts[-1].starts == (7, 7, 7)
        assert not any(broker.service.status()["outbound_requests"] for broker in world.brokers.values())
        leaders = [stream.partitions[number].leader for number in range(6)]
        assert [leaders.count(BrokerId(name)) for name in "abc"] == [2, 2, 2], "as if it had been made with six"

        status = (await world.api("stream.repartition_status", name="s"))["repartition"]
        assert (status["phase"], status["done"], status["of"], status["waiting"]) == ("cutover", 3, 3, [])
        assert (status["adopted"], status["adoption_timeout_s"]) == (None, 30.0)
        assert status["done_for_s"] is not None
        routes = (await world.api("metadata", stream="s"))["streams"][0]
        assert [layout["partitions"] for layout in routes["layouts"]] == [3, 6]
        form = await world.api("cluster.status")
        assert [each["stream"] for each in form["repartitions"]] == ["s"]
        assert form["topology_generation"] == stream.routing_generation
        assert (await world.api("stream.list"))["streams"][0]["partitions"] == 6
        described = await world.api("stream.describe", name="s")
        assert described["layouts"] == routes["layouts"]
        assert described["repartition"]["version"] == 2


async def test_it_is_over_when_clients_of_all_brokers_that_tell_have_applied_it() -> None:
    async with running("a", "b") as world:
        labels = {"zone": "c"}
        registration = Registration(folder_same=True, page_cache_survived=True, raft_address="c:1", labels=labels)
        await (await world.start("c", registration)).service.wait_registered()
        await world.api("stream.create", **CREATE)
        await world.api("stream.repartition", name="s", partitions=2)
        state = world.brokers["a"].service.state
        await until(lambda: state.streams[NAME].layouts[-1].is_reported)
        marker = state.streams[NAME].repartition
        assert marker is not None
        labels[ADOPTION_LABEL] = encode_label({"s": marker.adoption_generation})
        await until(lambda: state.streams[NAME].repartition is None)
        await until(lambda: world.view(2).state is PartitionState.RETIRED)
        assert world.view(0).further_subjects == ("s.2",)


async def test_a_retired_partition_without_records_goes() -> None:
    async with running() as world:
        broker = await world.start("a", settings=replace(SETTINGS, repartition_adoption_timeout_s=0.1))
        await world.api("stream.create", name="s", partitions=2, replication_factor=1)
        await world.api("stream.repartition", name="s", partitions=1)
        await until(lambda: world.view(1).state is PartitionState.RETIRED)
        lost: list[str] = []

        def lose(subject: str) -> bool:
            if subject != SUBJECTS.controller() or len(lost) == 3:
                return False
            lost.append(subject)
            return True

        world.hub.lose = lose
        view = world.view(1)
        broker.service.report_retired(
            RetiredReport(key=view.key, leader=broker.id, leader_epoch=view.leader_epoch, expected_epoch=view.epoch)
        )
        await until(lambda: broker.gone == [view.key])
        assert world.view(0).further_subjects == ("s.1",)  # publishers may not know of its end
        assert len(lost) == 3
        assert broker.service.status()["outbound_requests"] == 0
        plan = (await world.api("stream.repartition", name="s", partitions=2))["plan"]
        assert (plan["made"], plan["used_again"]) == ([1], [])


async def test_it_is_over_after_some_time_when_no_client_tells() -> None:
    async with running() as world:
        await world.start("a", settings=replace(SETTINGS, repartition_adoption_timeout_s=0.2))
        await world.api("stream.create", name="s", partitions=3, replication_factor=1)
        await world.api("stream.repartition", name="s", partitions=1)
        await until(lambda: world.brokers["a"].service.state.streams[NAME].repartition is None)
        assert (await world.api("stream.repartition_status", name="s")) == {
            "stream": "s", "partitioning_version": 2, "partitions": 1, "repartition": None
        }  # fmt: skip


async def test_a_cutover_is_told_until_it_is_known() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        lost: list[str] = []

        def lose(subject: str) -> bool:
            if subject != SUBJECTS.controller() or len(lost) == 5:
                return False
            lost.append(subject)
            return True

        world.hub.lose = lose
        await world.api("stream.repartition", name="s", partitions=4)
        await until(lambda: not any(world.view(number).awaits_cutover for number in range(3)))
        assert len(lost) == 5
        assert not any(broker.service.status()["outbound_requests"] for broker in world.brokers.values())


async def test_it_is_cancelled_as_long_as_keys_are_spread_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.runtime.admin_answers.CUTOVER_WAIT_S", 1.0)
    monkeypatch.setattr("metadata.controller.repartitions.Repartitioning.not_ready", lambda *_: [1])
    async with running("a") as world:
        await world.api("stream.create", name="s", replication_factor=1)
        answer = await world.api("stream.repartition", name="s", partitions=2)
        assert answer["status"]["partitions"] == 1
        prepared = answer["status"]["repartition"]
        assert (prepared["phase"], prepared["done"], prepared["of"], prepared["waiting"]) == ("prepared", 1, 2, [1])
        await until(lambda: len(world.brokers["a"].views) == 2)
        assert not world.view(1).is_routed
        assert (await world.api("stream.repartition_cancel", name="s"))["repartition"] is None
        await until(lambda: len(world.brokers["a"].views) == 1)
        with pytest.raises(TidelogError, match="stream s is not being repartitioned"):
            await world.api("stream.repartition_cancel", name="s")


async def test_a_repartition_that_cannot_be_is_refused() -> None:
    async with running() as world:
        await world.start("a", settings=replace(SETTINGS, max_partitions=6))
        await world.api("stream.create", name="s", partitions=2, replication_factor=1)
        await world.api("stream.create", name="c", replication_factor=1, config={"compact": "true"})
        for name, partitions, code, sentence in (
            ("t", 2, Code.UNKNOWN_STREAM, "stream 't' does not exist"),
            ("s", 2, Code.BAD_REQUEST, "stream s has 2 partitions already; give another number"),
            ("s", 0, Code.BAD_CONFIG, "partitions=0 is outside 1 to 10000"),
            ("s", 10_001, Code.BAD_CONFIG, "partitions=10001 is outside 1 to 10000"),
            ("s", 6, Code.LIMIT_REACHED, "the cluster would have 7 partitions, and max_partitions is 6"),
            ("c", 2, Code.BAD_REQUEST, "stream c is compacted"),
        ):
            for dry_run in (True, False):
                with pytest.raises(TidelogError, match=sentence) as refused:
                    await world.api("stream.repartition", name=name, partitions=partitions, dry_run=dry_run)
                assert refused.value.code is code
        await world.api("stream.repartition", name="s", partitions=3)
        with pytest.raises(TidelogError, match=r"to 3 partitions already; wait until .*: `tidelog .* watch s`"):
            await world.api("stream.repartition", name="s", partitions=2)
        with pytest.raises(TidelogError, match="cannot be cancelled any more"):
            await world.api("stream.repartition_cancel", name="s")
        with pytest.raises(TidelogError, match="stream s was repartitioned") as refused:
            await world.api("stream.alter", name="s", config={"compact": "true"})
        assert refused.value.code is Code.BAD_CONFIG


async def test_brokers_for_new_partitions_must_live() -> None:
    async with running("a", "b") as world:
        await world.api("stream.create", name="s", partitions=2, replication_factor=2)
        await world.brokers["b"].kill()
        await until(lambda: not world.brokers["a"].service.state.is_alive(BrokerId("b")))
        with pytest.raises(TidelogError, match="above the number of live brokers") as refused:
            await world.api("stream.repartition", name="s", partitions=3)
        assert refused.value.code is Code.NOT_ENOUGH_BROKERS
        answer = await world.api("stream.repartition", name="s", partitions=1)
        assert answer["status"]["partitions"] == 1, "nothing is made for fewer partitions"


async def test_tidelogs_own_streams_are_not_repartitioned() -> None:
    async with running("a") as world:
        await world.api("group.coordinator", group="g")
        with pytest.raises(TidelogError, match="is Tidelog's own"):
            await world.api("stream.repartition", name="__groups", partitions=9)


async def test_streams_that_take_no_records_get_partitions_that_take_none() -> None:
    async with running("a") as world:
        await world.api("stream.create", name="s", replication_factor=1)
        await world.api("stream.set_readonly", name="s")
        await world.api("stream.repartition", name="s", partitions=2)
        await until(lambda: world.view(1).is_routed)
        assert world.view(1).readonly


async def test_so_do_partitions_that_are_used_again() -> None:
    async with running() as world:
        await world.start("a", settings=replace(SETTINGS, repartition_adoption_timeout_s=0.1))
        await world.api("stream.create", name="s", partitions=2, replication_factor=1)
        await world.api("stream.repartition", name="s", partitions=1)
        await until(lambda: world.view(1).state is PartitionState.RETIRED)
        await world.api("stream.set_readonly", name="s", partitions=[0])
        await world.api("stream.repartition", name="s", partitions=2)
        await until(lambda: world.view(1).is_routed)
        assert world.view(1).readonly


def test_a_plan_that_makes_the_stream_forget_a_layout_says_so() -> None:
    cluster = Cluster("a")
    cluster.create("s", ["a"])
    stream = cluster.state.streams[NAME]
    assert not any("is forgotten" in effect for effect in plan_form(stream, 2)["effects"])
    stream.layouts = tuple(Layout(version=at + 1, partitions=1 + at % 2) for at in range(MAX_LAYOUTS))
    assert any("32 layouts, and its oldest one is forgotten" in effect for effect in plan_form(stream, 1)["effects"])


def test_a_plan_of_very_many_partitions_is_short() -> None:
    cluster = Cluster("a")
    cluster.create("s", ["a"] * 300)
    plan = plan_form(cluster.state.streams[NAME], 299)
    assert plan["left"] == [299]
    assert len(plan["sources"]) == MAX_LISTED
    assert {len(each["waits_for"]) for each in plan["sources"]} == {MAX_LISTED}
    assert plan["moved_keys"] == pytest.approx(1 - 1 / 300)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (3, 6), (6, 4), (4, 6), (5, 7), (7, 1)])
def test_the_share_of_keys_that_move_is_that_of_their_hashes(before: int, after: int) -> None:
    cluster = Cluster("a")
    cluster.create("s", ["a"] * before)
    hashes = range(before * after)
    moved = sum(each % before != each % after for each in hashes) / len(hashes)
    plan = plan_form(cluster.state.streams[NAME], after)
    assert plan["moved_keys"] == pytest.approx(moved)
    for entry in plan["sources"]:
        come_from = {each % before for each in hashes if each % after == entry["partition"]}
        assert {*entry["waits_for"]} == come_from - {entry["partition"]}
    assert {entry["partition"] for entry in plan["sources"]} == {
        each % after for each in hashes if each % before != each % after
    }


def test_only_the_newest_layouts_are_kept() -> None:
    cluster = Cluster("a")
    cluster.create("s", ["a"])
    count = 1
    for _ in range(MAX_LAYOUTS + 3):
        count = 3 - count
        cluster.prepare(count, [] if 1 in cluster.state.streams[NAME].partitions else ["a"])
        cluster.cut_over()
        layout = cluster.state.streams[NAME].layouts[-1]
        cluster.report_cutover(*(cluster.cutover_at(number, 5) for number in range(len(layout.starts))))
        assert cluster.finish().code is None
    layouts = cluster.state.streams[NAME].layouts
    assert len(layouts) == MAX_LAYOUTS
    assert layouts[-1].version == cluster.state.streams[NAME].partitioning_version == MAX_LAYOUTS + 4


def test_a_snapshot_has_the_repartition_and_tells_what_it_changed() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c", "b c a", "c a b"])
    other = ClusterState()
    other.restore(cluster.state.snapshot())
    cluster.prepare(2)
    changes = other.restore(cluster.state.snapshot())
    assert (changes.partitions, changes.repartitioned) == ((), ("s",)), "no view has changed"
    assert other.streams[NAME] == cluster.state.streams[NAME]
    cluster.cut_over()
    changes = other.restore(cluster.state.snapshot())
    assert changes.partitions == tuple(cluster.key(number) for number in range(3))
    cluster.report_cutover(cluster.cutover_at(2, 9))
    assert other.restore(cluster.state.snapshot()).repartitioned == ("s",)
    assert other.streams[NAME].layouts[-1] == Layout(version=2, partitions=2, generation=7, starts=(-1, -1, 9))
    assert other.view(cluster.key(0)) == cluster.state.view(cluster.key(0))


def test_a_loss_in_a_partition_that_left_long_ago_is_told_too() -> None:
    """Readers by key would wait for ever for records below its cutover that are lost."""
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"] * 5)
    for count, ends in ((2, (10, 20, 30, 40, 50)), (1, (15, 25))):
        cluster.prepare(count)
        cluster.cut_over()
        cluster.report_cutover(*(cluster.cutover_at(number, end) for number, end in enumerate(ends)))
        cluster.finish()
    assert cluster.remove_retired(2).items == (None,)
    cluster.die("b")
    cluster.die("c")
    cluster.die("a")
    cluster.register("b")
    cluster.unclean("b", 4)
    stream = cluster.state.streams[NAME]
    assert stream.layouts[-1].starts == (15, 25, 0, 40, NOT_REPORTED)
    assert [number for number in (0, 1, 3, 4) if stream.view(number).awaits_cutover] == [4]
    assert not stream.awaits_sources(0)
    assert cluster.remove_retired(4).items == (Code.BAD_REQUEST,), "nobody could tell then"
    cluster.prepare(2)
    marker = cluster.state.streams[NAME].repartition
    assert marker is not None
    assert concerned(cluster.state.streams[NAME], marker) == [0, 1, 4]
    assert cluster.cut_over().code is Code.STALE_EPOCH
    assert cluster.report_cutover(cluster.cutover_at(4, 12)).items == (None,)
    stream = cluster.state.streams[NAME]
    order = KeyOrder(stream.layouts, {number: each.incarnation for number, each in stream.partitions.items()})
    read = {1: 25, 3: 40, 4: 11}
    assert order.waits_for(0, lambda number: read.get(number, 0)) == (10, {4: 12})
    read[4] = 12
    assert order.waits_for(0, lambda number: read.get(number, 0)) is None
    assert cluster.remove_retired(4).items == (Code.BAD_REQUEST,), "a repartition is under way"
    cluster.cancel()
    assert cluster.remove_retired(4).items == (None,)


def test_a_loss_in_a_partition_that_was_made_anew_is_none_of_its_earlier_life() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c"] * 3)
    cluster.prepare(1)
    cluster.cut_over()
    cluster.report_cutover(*(cluster.cutover_at(number, end) for number, end in enumerate((10, 20, 30))))
    cluster.finish()
    assert cluster.remove_retired(2).items == (None,)
    cluster.prepare(3, ["a b c"])
    cluster.die("b")
    cluster.die("c")
    cluster.die("a")
    cluster.register("b")
    cluster.unclean("b", 2)
    assert cluster.partition(2).leader == BrokerId("b")
    assert cluster.state.streams[NAME].layouts[-1].starts == (10, 20, 30)


def test_items_of_one_report_are_decided_one_by_one() -> None:
    cluster = Cluster("a", "b", "c")
    cluster.create("s", ["a b c", "b c a", "c a b"])
    cluster.create("t", ["a b c"])
    cluster.prepare(2)
    cluster.cut_over()
    first = cluster.cutover_at(0, 4)
    gone = replace(first, key=replace(first.key, partition_incarnation=Incarnation(1)))
    outcome = cluster.report_cutover(
        first,
        replace(first, end_offset=Offset(5)),
        gone,
        cluster.cutover_at(0, 0, name="t"),
        replace(cluster.cutover_at(1, 5), leader=BrokerId("c")),
        cluster.cutover_at(2, 6),
    )
    assert outcome.items == (
        None,
        Code.STALE_PARTITIONING,
        Code.UNKNOWN_STREAM,
        Code.STALE_PARTITIONING,
        Code.FENCED_LEADER_EPOCH,
        None,
    )
    assert cluster.state.streams[NAME].layouts[-1].starts == (4, -1, 6)


async def test_new_partitions_go_where_the_stream_has_fewest() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", name="s", partitions=1, replication_factor=1)
        await world.api("stream.repartition", name="s", partitions=3)
        stream = world.brokers["a"].service.state.streams[NAME]
        assert {stream.partitions[number].leader for number in range(3)} == {"a", "b", "c"}
