"""Requests of clients and brokers, and a controller that meets faults."""

# Rules: R33.

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from metadata.cluster.model import Outcome
from metadata.controller.controller import ControllerCore
from metadata.controller.controller_effects import Effect
from tests.unit.metadata.brokers import (
    CREATE,
    SUBJECTS,
    Broker,
    Group,
    Member,
    World,
    isr_change,
    running,
    until,
)
from wire.errors import Code, TidelogError
from wire.operations.api_operations import OPERATIONS, Nothing
from wire.protobuf import metadata_pb2 as pb
from wire.types import (
    BrokerId,
    LeaderReport,
    LossReport,
    Withdrawal,
)


async def test_producer_ids_differ() -> None:
    async with running("a") as world:
        ids = [(await world.api("producer.init"))["producer_id"] for _ in range(3)]
        assert len({*ids}) == 3


async def test_producer_ids_ascend_also_where_a_controller_is_deposed_while_it_takes_a_block() -> None:
    """Leaders that have forgotten a producer refuse all lower ids (R33)."""
    async with running("a", "b") as world:
        ids: list[int] = []

        async def lead(name: str) -> None:
            world.group.elect(next(each for each in world.group.members if each.address == f"{name}:1"))
            await until(
                lambda: [each for each, broker in world.brokers.items() if broker.service.is_controller] == [name]
            )

        async def take() -> None:
            ids.append((await world.api("producer.init"))["producer_id"])

        first = world.group.members[0]
        first.outcomes_may_come.clear()
        waits = asyncio.ensure_future(world.brokers["a"].service.admin.init_producer(Nothing()))
        await until(
            lambda: any(pb.Command.FromString(each).HasField("allocate_producer_ids") for each in world.group.log)
        )
        await lead("b")
        await take()
        first.outcomes_may_come.set()
        with pytest.raises(TidelogError) as raised:
            await waits
        assert raised.value.code is Code.UNAVAILABLE
        for name in ("a", "b", "a"):
            await lead(name)
            await take()
            await take()
        assert ids == sorted({*ids})


@pytest.mark.parametrize(
    "body", [b"{", b"[" * 1_000_000, b"[]", b'{"name": 3, "subject": "x"}', b'{"name": "x", "partitions": true}']
)
async def test_a_request_that_cannot_be_read_is_refused(body: bytes) -> None:
    async with running("a") as world:
        answer = await world.client.request(SUBJECTS.api("stream.create", "x"), body, timeout=5)
        error = TidelogError.from_headers(answer.headers)
        assert error is not None
        assert error.code is Code.BAD_REQUEST


async def test_a_request_is_about_the_stream_that_its_subject_names() -> None:
    """NATS' permissions are for subjects: the body must not lead to another stream."""
    async with running("a") as world:
        await world.api("stream.create", **(CREATE | {"replication_factor": 1}))
        for name, operation in OPERATIONS.items():
            if operation.named:
                given = {"partition": 0, "broker": "a", "offsets": [], "before": {}, operation.named: "s"}
                if name == "stream.repartition":
                    given["partitions"] = 2
                if name == "stream.alter_factor":
                    given["replication_factor"] = 2
                if name == "stream.reassign":
                    given["targets"] = {}
                body = json.dumps(given).encode()
                answer = await world.client.request(SUBJECTS.api(name, "other"), body, timeout=5)
                error = TidelogError.from_headers(answer.headers)
                assert error is not None
                assert error.code is Code.BAD_REQUEST
                assert f"{operation.kind_named} 's' and was sent to 'tidelog.api.{name}.other'" in error.message
        assert [stream["name"] for stream in (await world.api("stream.list"))["streams"]] == ["s"]


async def test_altered_settings_reach_every_replica_and_no_leader_epoch_ends() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await until(lambda: all(broker.views for broker in world.brokers.values()))
        before = {key: view.leader_epoch for key, view in world.brokers["a"].views.items()}
        form = await world.api("stream.alter", name="s", config={"confirm_timeout_ms": "700", "min_isr": "1"})
        assert (form["config"]["confirm_timeout_ms"], form["config"]["min_isr"]) == ("700", "1")
        await until(
            lambda: all(
                (view.config.confirm_timeout_ms, view.config.min_isr) == (700, 1)
                for broker in world.brokers.values()
                for view in broker.views.values()
            )
        )
        assert {key: view.leader_epoch for key, view in world.brokers["a"].views.items()} == before
        form = await world.api("stream.alter", name="s", unset=["min_isr"])
        assert form["config"]["min_isr"] == "2"


@pytest.mark.parametrize(
    ("request_", "code", "text"),
    [
        ({"name": "nosuch", "config": {"compact": "true"}}, Code.UNKNOWN_STREAM, "nosuch"),
        ({"name": "s"}, Code.BAD_REQUEST, "name a setting"),
        ({"name": "s", "config": {"compact": True}}, Code.BAD_REQUEST, "config.compact is true, not a text"),
        ({"name": "s", "unset": "compact"}, Code.BAD_REQUEST, 'unset is "compact", not a list'),
        ({"name": "s", "config": {"min_isr": "4"}}, Code.BAD_CONFIG, "replication factor 3"),
        ({"name": "s", "config": {"durability": "accepted"}}, Code.BAD_CONFIG, "while the stream lives"),
    ],
)
async def test_an_alteration_that_cannot_be_is_refused(request_: dict[str, Any], code: Code, text: str) -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        with pytest.raises(TidelogError, match=text) as refused:
            await world.api("stream.alter", **request_)
        assert refused.value.code is code


async def test_defaults_of_the_cluster_are_for_streams_to_come() -> None:
    async with running("a", "b", "c") as world:
        answer = await world.api("cluster.alter", config={"durability": "majority_durable"})
        assert answer == {"config": {"durability": "majority_durable"}}
        form = await world.api("stream.create", **CREATE)
        assert form["config"]["durability"] == "majority_durable"
        assert (await world.api("cluster.status"))["config"] == {"durability": "majority_durable"}
        assert await world.api("cluster.alter", unset=["durability"]) == {"config": {}}


async def test_a_create_whose_outcome_was_lost_is_not_repeated() -> None:
    async with running("a", "b", "c") as world:
        world.group.lose_outcomes = 1
        form = await world.api("stream.create", **CREATE)
        assert form["name"] == "s"


async def test_an_isr_change_is_repeated_until_it_is_applied() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        lost: list[str] = []

        def lose(subject: str) -> bool:
            if subject != SUBJECTS.controller() or len(lost) == 3:
                return False
            lost.append(subject)
            return True

        world.hub.lose = lose
        others = [broker for broker in "abc" if broker != view.leader]
        leader.service.alter_isr(
            isr_change(view, *((name, world.brokers[name].service.incarnation) for name in (leader.id, others[0])))
        )
        await until(lambda: others[1] not in world.view().isr)
        assert len(lost) == 3
        assert leader.service.status()["outbound_requests"] == 0


async def test_a_stale_isr_change_is_forgotten() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        world.hub.lose = lambda subject: subject == SUBJECTS.controller()
        leader.service.alter_isr(isr_change(view, (leader.id, leader.service.incarnation)))
        state = world.brokers["a"].service.state
        follower = next(broker for broker in view.replicas if broker != view.leader)
        withdrawal = pb.WithdrawReplica(
            partition=pb.PartitionRef(
                stream="s",
                stream_incarnation=view.key.stream_incarnation,
                partition_incarnation=view.key.partition_incarnation,
            ),
            broker=follower,
            incarnation=state.brokers[follower].incarnation,
            expected_epoch=view.epoch,
        )
        command = pb.Command(withdraw=pb.Withdraw(items=[withdrawal]))
        world.group.commit(command.SerializeToString(), world.group.members[0])
        await until(lambda: leader.service.status()["outbound_requests"] == 0)


async def test_a_repeated_request_is_not_proposed_beside_the_original() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        controller = world.group.members[0]

        def ask(*numbers: int) -> None:
            items = [
                pb.IsrAlteration(
                    partition=pb.PartitionRef(
                        stream="s",
                        stream_incarnation=view.key.stream_incarnation,
                        partition=number,
                        partition_incarnation=view.key.partition_incarnation,
                    ),
                    leader=leader.id,
                )
                for number in numbers
            ]
            request = pb.ControllerRequest(
                broker=leader.id, cluster_id=leader.service.state.cluster_id, alter_isr=pb.AlterIsr(items=items)
            )
            world.client.publish(SUBJECTS.controller(), [request.SerializeToString()])

        def proposed() -> list[list[int]]:
            commands = (pb.Command.FromString(each) for each in world.group.log)
            return [[item.partition.partition for item in command.alter_isr.items] for command in commands][before:]

        before = len(world.group.log)
        controller.outcomes_may_come.clear()
        ask(0)
        await until(lambda: proposed() == [[0]])
        ask(0)
        ask(0, 1)
        await until(lambda: proposed() == [[0], [1]])
        controller.outcomes_may_come.set()

        def is_asked_again() -> bool:
            ask(0)
            return len(proposed()) > 2

        await until(is_asked_again)
        assert proposed()[2] == [0]


async def test_a_withdrawal_is_repeated_in_whatever_epoch_until_the_replica_is_out() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        stale = Withdrawal(key=view.key, broker=leader.id, expected_epoch=view.epoch, reason="bad CRC")
        follower = next(broker for broker in "abc" if broker != leader.id)
        world.brokers[follower].service.withdraw(
            Withdrawal(key=view.key, broker=BrokerId(follower), expected_epoch=view.epoch, reason="bad CRC")
        )
        leader.service.withdraw(stale)
        await until(lambda: len(world.view().isr) == 1)
        assert world.view().leader not in (None, leader.id, follower)


async def test_a_report_reaches_the_controller() -> None:
    async with running("a", "b", "c") as world:
        view, _ = await world.one_partition()
        assert view.leader is not None
        for follower in (broker for broker in "abc" if broker != view.leader):
            world.brokers[follower].service.report_leader(
                LeaderReport(
                    key=view.key,
                    replica=BrokerId(follower),
                    leader=view.leader,
                    epoch=view.epoch,
                    leader_epoch=view.leader_epoch,
                )
            )
        await until(lambda: world.view().leader != view.leader)


async def test_a_report_of_a_loss_is_repeated_until_another_leads() -> None:
    async with running("a", "b", "c") as world:
        view, leader = await world.one_partition()
        follower = next(broker for broker in "abc" if broker != leader.id)
        service = world.brokers[follower].service
        lost: list[str] = []

        def lose(subject: str) -> bool:
            if subject != SUBJECTS.controller() or len(lost) == 2:
                return False
            lost.append(subject)
            return True

        world.hub.lose = lose
        service.report_loss(
            LossReport(key=view.key, leader=leader.id, leader_epoch=view.leader_epoch, reason="its log ends at 0")
        )
        await until(lambda: world.view().leader == follower)
        assert (len(lost), leader.id in world.view().isr) == (2, False)
        await until(lambda: service.status()["outbound_requests"] == 0)


async def test_a_controller_that_failed_to_subscribe_tries_again() -> None:
    world = World()
    broker = Broker(world, "a")
    serve, failures = broker.serve, [OSError("no room"), OSError("no room")]

    async def on_controller(is_controller: bool) -> None:
        if is_controller and failures:
            raise failures.pop()
        await serve(is_controller)

    broker.serve = on_controller
    await broker.service.start()
    assert (await world.api("cluster.status"))["controller"] == "a"
    assert len(world.hub.handlers[SUBJECTS.controller()]) == 1
    await broker.service.close()


async def test_a_controller_that_meets_a_bug_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running("a", "b", "c") as world:
        tick, failures = ControllerCore.tick, [ValueError("a bug"), ValueError("a bug")]

        def failing(core: ControllerCore, now: float) -> list[Effect]:
            if failures:
                raise failures.pop()
            return tick(core, now)

        # Probes whose answers would wake the controller come no more, so that its timer alone does.
        world.hub.lose = lambda subject: bool(failures) and ".probe" in subject
        monkeypatch.setattr(ControllerCore, "tick", failing)
        await until(lambda: not failures)
        world.hub.seen.clear()
        await until(lambda: SUBJECTS.probe(BrokerId("b")) in world.hub.seen)


async def test_an_epoch_whose_command_met_a_bug_is_proposed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    commit, failures = Group.commit, [ValueError("a bug")]

    def failing(group: Group, command: bytes, by: Member) -> object:
        if failures and pb.Command.FromString(command).HasField("begin_controller_epoch"):
            raise failures.pop()
        return commit(group, command, by)

    monkeypatch.setattr(Group, "commit", failing)
    world = World()
    broker = await world.start("a")
    await until(lambda: broker.service.is_controller)
    await broker.service.close()


@pytest.mark.parametrize("asks_for_nothing", [False, True])
async def test_garbage_on_the_controllers_subject_is_dropped(asks_for_nothing: bool) -> None:
    async with running("a") as world:
        subject, broker = SUBJECTS.controller(), world.brokers["a"]
        await until(lambda: world.hub.handlers.get(subject))
        request = pb.ControllerRequest(broker="b", cluster_id=broker.service.state.cluster_id)
        world.client.publish(subject, [request.SerializeToString() if asks_for_nothing else b"\xff\xff"])
        await until(lambda: broker.service._context.messages.dropped == 1)
        await world.api("cluster.status")


def test_an_outcome_that_refuses_raises_its_code() -> None:
    with pytest.raises(TidelogError) as refused:
        Outcome(code=Code.STREAM_EXISTS, message="stream s exists").raise_for_refusal()
    assert refused.value.code is Code.STREAM_EXISTS
