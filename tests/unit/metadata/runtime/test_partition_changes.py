"""Operators change some or all partitions of a stream: they take no records, or lose their first ones."""

from __future__ import annotations

import pytest

from tests.unit.metadata.brokers import CREATE, SUBJECTS, running, until
from wire.errors import Code, TidelogError
from wire.operations.partition_operations import LATEST
from wire.types import BrokerId, PauseChange


async def test_some_or_all_partitions_take_no_records() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await until(lambda: all(len(broker.views) == 3 for broker in world.brokers.values()))
        changed = await world.api("stream.set_readonly", name="s", partitions=[2, 0, 2])
        assert [(part["partition"], part["readonly"], part["not_yet"]) for part in changed["partitions"]] == [
            (0, True, []), (2, True, [])
        ]  # fmt: skip
        assert [world.view(number, by="b").readonly for number in range(3)] == [True, False, True]
        form = await world.api("stream.describe", name="s")
        assert [partition["readonly"] for partition in form["partitions"]] == [True, False, True]
        changed = await world.api("stream.set_readonly", name="s", readonly=False)
        assert [part["readonly"] for part in changed["partitions"]] == [False] * 3
        for body, sentence in (
            ({"name": "s", "partitions": [3]}, "stream s has partitions 0 to 2, not 3"),
            ({"name": "t"}, "stream 't' does not exist"),
            ({"name": "s", "partitions": ["0"]}, "partitions"),
        ):
            with pytest.raises(TidelogError, match=sentence):
                await world.api("stream.set_readonly", **body)


async def test_some_or_all_partitions_are_paused_and_resumed() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        changed = await world.api("stream.pause", name="s", partitions=[1], resume_all=True)
        assert [(part["partition"], part["paused"], part["not_yet"]) for part in changed["partitions"]] == [
            (1, True, [])
        ]  # fmt: skip
        assert [world.view(number, by="c").paused for number in range(3)] == [False, True, False]
        changed = await world.api("stream.resume", name="s")
        assert [part["paused"] for part in changed["partitions"]] == [False] * 3
        with pytest.raises(TidelogError, match="stream s has partitions 0 to 2, not 3"):
            await world.api("stream.pause", name="s", partitions=[3])


async def test_a_leader_is_heard_until_its_partition_is_resumed() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.api("stream.pause", name="s", resume_all=True)
        view = world.view(0)
        leader = world.brokers[str(view.leader)]
        lost: list[str] = []

        def lose(subject: str) -> bool:
            if subject != SUBJECTS.controller() or len(lost) == 3:
                return False
            lost.append(subject)
            return True

        world.hub.lose = lose
        leader.service.alter_paused(
            PauseChange(
                key=view.key,
                leader=leader.id,
                leader_epoch=view.leader_epoch,
                expected_epoch=view.epoch,
                paused=False,
            )
        )
        await until(lambda: not any(world.view(number).paused for number in range(3)))
        assert len(lost) == 3
        assert leader.service.status()["outbound_requests"] == 0


async def test_records_are_deleted_below_an_offset_or_all_that_are_committed() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        changed = await world.api("stream.delete_records", name="s", before={"0": 3, "2": LATEST})
        assert [(part["partition"], part["log_start_offset"], part["not_yet"]) for part in changed["partitions"]] == [
            (0, 3, []), (2, 7, [])
        ]  # fmt: skip
        assert [world.view(number, by="c").purged_end for number in range(3)] == [3, 0, 7]
        changed = await world.api("stream.delete_records", name="s", before={"0": 2})
        assert changed["partitions"][0]["log_start_offset"] == 3, "it never moves back"
        for before, code, sentence in (
            ({"0": 8}, Code.OFFSET_AHEAD, "s/0 is committed up to offset 7, or has a transaction open there"),
            ({"1": 5, "0": 8}, Code.OFFSET_AHEAD, "nothing was deleted"),
            ({"3": 1}, Code.BAD_REQUEST, "stream s has partitions 0 to 2, not 3"),
            ({"0": -2}, Code.BAD_REQUEST, "partition s/0 has no offset -2"),
            ({"x": 1}, Code.BAD_REQUEST, "'x' is no partition"),
            ({"\u0669": 1}, Code.BAD_REQUEST, "is no partition"),
            ({}, Code.BAD_REQUEST, "name a partition"),
        ):
            with pytest.raises(TidelogError, match=sentence) as refused:
                await world.api("stream.delete_records", name="s", before=before)
            assert refused.value.code is code
        assert world.view(1).purged_end == 0, "all of a request is done, or nothing"


async def test_a_leader_that_does_not_tell_what_is_committed_keeps_its_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.runtime.admin_answers.READY_TIMEOUT_S", 1.0)
    async with running("a") as world:
        await world.api("stream.create", name="s", replication_factor=1)
        world.brokers["a"].reports = []
        with pytest.raises(TidelogError, match="the leader of s/0 does not tell now what is committed") as refused:
            await world.api("stream.delete_records", name="s", before={"0": LATEST})
        assert refused.value.code is Code.UNAVAILABLE
        assert world.view().purged_end == 0


async def test_replicas_that_have_not_heard_of_a_change_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.runtime.admin_answers.READY_TIMEOUT_S", 1.0)
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        late = next(broker for broker in world.brokers.values() if broker is not leader)
        late.reports = [{"partition": 0, "incarnation": view.key.partition_incarnation, "partition_epoch": 1}]
        changed = await world.api("stream.delete_records", name="s", before={"0": 5})
        assert changed["partitions"] == [
            {"partition": 0, "readonly": False, "paused": False, "log_start_offset": 5, "not_yet": [BrokerId(late.id)]}
        ]


async def test_streams_of_tidelogs_own_are_left_as_they_are() -> None:
    from wire.internal_streams import AUDIT

    async with running("a") as world:
        await world.brokers["a"].service.admin.create_internal(AUDIT)
        for operation, body in (
            ("stream.set_readonly", {}),
            ("stream.pause", {}),
            ("stream.resume", {}),
            ("stream.delete_records", {"before": {"0": LATEST}}),
        ):
            with pytest.raises(TidelogError, match="is Tidelog's own"):
                await world.api(operation, name=AUDIT.name, **body)
