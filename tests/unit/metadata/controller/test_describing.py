"""What brokers tell of streams, partitions, brokers and the cluster."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any

import pytest

from metadata.cluster.model import Stream
from metadata.runtime import admin_answers as admin_module
from metadata.runtime.admin_answers import Admin
from metadata.runtime.namespace import MAX_PRESENCE_ANSWERS
from tests.unit.metadata.brokers import CREATE, LED, SUBJECTS, Broker, running, until
from wire.errors import CLUSTER_HEADER, Code, TidelogError
from wire.operations.reports import StreamReport
from wire.turns import Steps
from wire.types import BrokerId, StreamName


async def test_a_new_stream_reaches_its_replicas_and_is_described_with_progress() -> None:
    async with running("a", "b", "c") as world:
        form = await world.api("stream.create", **CREATE)
        assert [partition["log_end_offset"] for partition in form["partitions"]] == [7, 7, 7]
        assert sorted(partition["leader"] for partition in form["partitions"]) == ["a", "b", "c"]
        await until(lambda: all(len(broker.views) == 3 for broker in world.brokers.values()))
        assert (await world.api("stream.list"))["streams"][0]["name"] == "s"
        known = (await world.api("metadata", stream="s"))["streams"][0]
        assert [partition["leader_epoch"] for partition in known["partitions"]] == [1, 1, 1]
        assert await world.api("stream.delete", name="s") == {}
        await until(lambda: all(len(broker.gone) == 3 for broker in world.brokers.values()))
        with pytest.raises(TidelogError, match="'s' does not exist"):
            await world.api("stream.describe", name="s")


async def test_a_partition_that_is_removed_while_its_replicas_are_asked_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask = Admin._ask_status
    removed: set[int] = set()

    async def asked(admin: Admin, broker: BrokerId, stream: Stream, *more: Any) -> Any:
        for number in removed:
            stream.partitions.pop(number, None)  # as the state does with a retired one
        return await ask(admin, broker, stream, *more)

    monkeypatch.setattr(Admin, "_ask_status", asked)
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **(CREATE | {"partitions": 5}))
        removed.add(4)
        form = await world.api("stream.describe", name="s")
        assert [each["partition"] for each in form["partitions"]] == [0, 1, 2, 3]
        removed.add(3)
        changed = await world.api("stream.set_readonly", name="s", readonly=True, partitions=[2, 3])
        assert [each["partition"] for each in changed["partitions"]] == [2]


async def test_a_leader_that_does_not_answer_leaves_nulls_in_a_description() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        world.hub.lose = lambda subject: subject == SUBJECTS.broker_status(BrokerId("b"))
        form = await world.api("stream.describe", name="s")
        assert {p["leader"]: p["high_watermark"] for p in form["partitions"]} == {"a": 6, "b": None, "c": 6}


async def test_a_broker_whose_status_no_message_has_room_for_says_so() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        b = world.brokers["b"]
        b.reports = [{"partition": n, "failed": "." * 1000} for n in range(2000)]
        b.totals = {"failed": ["s/0" * 1000] * 1000}
        form = await world.api("stream.describe", name="s")
        assert {p["leader"]: p["high_watermark"] for p in form["partitions"]} == {"a": 6, "b": None, "c": 6}
        assert list(form["refusals"]) == ["b"]
        assert "the status of broker b takes a message of" in form["refusals"]["b"]
        brokers = {broker["id"]: broker for broker in (await world.api("cluster.status"))["brokers"]}
        assert {name: broker["counters"] is None for name, broker in brokers.items()} == {
            "a": False, "b": True, "c": False
        }  # fmt: skip
        assert "raise max_payload" in brokers["b"]["refusal"]


async def test_a_description_that_no_message_has_room_for_is_an_error_to_the_requester() -> None:
    async with running("a") as world:
        await world.api("stream.create", name="s", partitions=8, replication_factor=1)
        world.brokers["a"].transport.max_payload = 2000
        with pytest.raises(TidelogError, match=r"the answer to tidelog\.api\.stream\.describe\.s takes") as caught:
            await world.api("stream.describe", name="s")
        assert caught.value.code is Code.MESSAGE_TOO_LARGE
        assert "raise max_payload" in caught.value.message


async def test_many_that_ask_the_same_are_answered_by_few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """However they spell it."""
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        expected = await world.api("stream.describe", name="s")
        rounds = 0
        describe = Admin._describe

        async def counted(admin: Admin, *asked: Any) -> Any:
            nonlocal rounds
            rounds += 1
            return await describe(admin, *asked)

        monkeypatch.setattr(Admin, "_describe", counted)
        world.hub.seen.clear()
        forms = await asyncio.gather(*(world.api("stream.describe", name="s", also=n) for n in range(300)))
        assert forms == [expected] * 300
        assert rounds <= 2, "the first of them, and all that came while it was answered"
        asked = [subject for subject in world.hub.seen if subject.startswith(SUBJECTS.broker_status(BrokerId("")))]
        assert len(asked) == 3 * rounds


async def test_each_producer_has_an_id_of_its_own_however_many_ask_at_a_time() -> None:
    async with running("a") as world:
        identities = await asyncio.gather(*(world.api("producer.init") for _ in range(300)))
        assert len({identity["producer_id"] for identity in identities}) == 300


async def test_requests_of_different_content_share_no_answer() -> None:
    async with running("a") as world:
        await world.api("stream.create", name="s", replication_factor=1)
        answers = await asyncio.gather(
            *(world.api("stream.describe", name=name) for name in ("s", "t", "s", "t")), return_exceptions=True
        )
        assert [isinstance(answer, TidelogError) for answer in answers] == [False, True, False, True]
        subject = SUBJECTS.api("cluster.id")
        right, wrong = await asyncio.gather(
            *(
                world.client.request(subject, b"", timeout=5, headers={CLUSTER_HEADER: cluster})
                for cluster in (world.brokers["a"].service.cluster_id, "another")
            )
        )
        assert TidelogError.from_headers(right.headers) is None
        refusal = TidelogError.from_headers(wrong.headers)
        assert refusal is not None
        assert refusal.code is Code.WRONG_CLUSTER


async def test_so_many_questions_which_brokers_are_connected_are_answered_in_a_second() -> None:
    async with running("a") as world:
        namespace = world.brokers["a"].service.namespace
        sent = world.brokers["a"].transport.sent
        namespace._context.monotonic = lambda: 100.0
        before = len(sent)
        for number in range(MAX_PRESENCE_ANSWERS + 7):
            namespace.on_presence(b"", f"_INBOX.{number}", lambda: False)
        assert (len(sent) - before, namespace.dropped_presence) == (MAX_PRESENCE_ANSWERS, 7)
        namespace._context.monotonic = lambda: 101.0
        namespace.on_presence(b"", "_INBOX.later", lambda: False)
        assert sent[-1][0] == "_INBOX.later"


async def test_the_cluster_status_counts_and_carries_labels() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await until(lambda: len(world.brokers["a"].service._controller._labels) == 3)
        status = await world.api("cluster.status")
        assert status["controller"] == "a"
        assert (status["streams"], status["partitions"], status["offline_partitions"]) == (1, 3, 0)
        assert [broker["labels"] for broker in status["brokers"]] == [{"zone": "a"}, {"zone": "b"}, {"zone": "c"}]
        assert [broker["leaders"] for broker in status["brokers"]] == [1, 1, 1]


async def test_the_cluster_status_counts_the_dropped_messages_of_each_broker() -> None:
    async with running("a", "b", "c") as world:
        world.brokers["b"].totals = {"failed": ["s/0"], "counters": {"dropped_too_large": 3}}
        for subject in (SUBJECTS.probe(BrokerId("b")), SUBJECTS.broker_status(BrokerId("b"))):
            with contextlib.suppress(TimeoutError):
                await world.client.request(subject, b"\xff", timeout=0.05)
        await world.client.request(SUBJECTS.api("stream.create", "s"), b"{", timeout=5)
        world.hub.lose = lambda subject: subject == SUBJECTS.broker_status(BrokerId("c"))
        a, b, c = (await world.api("cluster.status"))["brokers"]
        assert a["counters"] == {
            "dropped_probes_of_unknown_epoch": 0,
            "dropped_raft_introductions": 0,
            "dropped_metadata_messages": 0,
            "dropped_of_other_clusters": 0,
            "dropped_claims": 0,
            "dropped_presence_questions": 0,
            "clock_off": 0,
            "clocks_apart": 0,
            "clock_jumps": 0,
            "refused_api_requests": 1,
            "dropped_api_requests": 0,
        }
        assert b["counters"] == {
            "dropped_too_large": 3,
            "dropped_probes_of_unknown_epoch": 0,
            "dropped_raft_introductions": 0,
            "dropped_metadata_messages": 2,
            "dropped_of_other_clusters": 0,
            "dropped_claims": 0,
            "dropped_presence_questions": 0,
            "clock_off": 0,
            "clocks_apart": 0,
            "clock_jumps": 0,
            "refused_api_requests": 0,
            "dropped_api_requests": 0,
        }
        assert b["failed"] == ["s/0"]
        assert (c["alive"], c["counters"], c["failed"]) == (True, None, None), "it did not answer"


async def test_a_report_that_is_none_counts_for_nothing() -> None:
    async with running("a", "b") as world:
        await world.api("stream.create", **{**CREATE, "partitions": 2, "replication_factor": 2})
        wrong: Any = {"partitions": [{"partition": "zero"}], "counters": {"records_in": "many"}}
        world.brokers["b"].reports, world.brokers["b"].totals = wrong["partitions"], wrong
        partitions = (await world.api("stream.describe", name="s"))["partitions"]
        assert {part["leader"]: part["log_end_offset"] for part in partitions} == {"a": 7, "b": None}
        told = {each["id"]: each["counters"] for each in (await world.api("cluster.status"))["brokers"]}
        assert told["a"] is not None
        assert told["b"] is None


async def test_a_broker_is_described_with_every_replica_that_it_holds() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **{**CREATE, "partitions": 2, "config": {"min_isr": "1"}})
        (listed,) = [each for each in (await world.api("cluster.status"))["brokers"] if each["id"] == "b"]
        form = await world.api("broker.describe", broker="b")
        held = form.pop("held")
        assert form.keys() == listed.keys()
        assert [(each["stream"], each["partition"], each["state"]) for each in held] == [
            ("s", 0, "isr"),
            ("s", 1, "isr"),
        ]
        assert [each["leads"] for each in held] == [world.view(number).leader == "b" for number in range(2)]
        assert all((sorted(each["isr"]), each["min_isr"]) == (["a", "b", "c"], 1) for each in held)
        await world.brokers["c"].kill()
        await until(lambda: not world.brokers["a"].service.state.is_alive(BrokerId("c")))
        dead = await world.api("broker.describe", broker="c")
        assert (dead["alive"], dead["counters"], [each["state"] for each in dead["held"]]) == (
            False,
            None,
            ["out of sync"] * 2,
        )
        with pytest.raises(TidelogError, match="broker 'd' is not registered; those that are: a, b, c"):
            await world.api("broker.describe", broker="d")


async def test_the_story_of_a_partition_is_that_of_each_replica() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **{**CREATE, "partitions": 2, "config": {"min_isr": "1"}})
        form = await world.api("partition.history", stream="s", partition=1)
        leader = world.view(1).leader
        assert {(each["broker"], each["leads"], each["state"]) for each in form["replicas"]} == {
            (broker, broker == leader, "isr") for broker in "abc"
        }
        told = {each["broker"]: each["events"] for each in form["replicas"]}
        assert told.pop(leader) == [LED]
        assert set(told.values()) == {None}, "the fakes of followers report nothing"
        with pytest.raises(TidelogError, match="stream s has no partition 2"):
            await world.api("partition.history", stream="s", partition=2)


async def test_of_a_large_stream_a_broker_is_asked_about_those_partitions_alone_that_are_wanted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", name="s", partitions=30, replication_factor=3)
        asked: list[list[int]] = []
        report = Broker.stream_report

        def noted(
            broker: Broker, name: StreamName, partitions: Collection[int], history_of: int | None
        ) -> Steps[StreamReport]:
            asked.append([*partitions])
            return report(broker, name, partitions, history_of)

        monkeypatch.setattr(Broker, "stream_report", noted)
        history = await world.api("partition.history", stream="s", partition=7)
        assert [len(replica["events"] or []) for replica in history["replicas"]] == [1, 0, 0]
        await world.api("stream.pause", name="s", partitions=[3, 4])
        assert asked == [[7]] * 3 + [[3, 4]] * 3
        asked.clear()
        monkeypatch.setattr(admin_module, "MAX_ASKED", 20)
        form = await world.api("stream.describe", name="s")
        assert sorted(asked) == sorted([[*range(20)], [*range(20, 30)]] * 3)
        assert [partition["high_watermark"] for partition in form["partitions"]] == [6] * 30
