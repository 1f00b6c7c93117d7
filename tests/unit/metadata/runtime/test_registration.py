"""Registrations, lives of a broker that follow one another, and the lease."""

# Rules: R69, R90.

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from metadata.cluster.cluster_recovery import advanced
from metadata.cluster.model import Changes, Outcome
from metadata.cluster.references import log_ends_of, logs_of
from metadata.commands.cluster_state import ClusterState
from metadata.raft.types import (
    MAX_COMMAND_BYTES,
    CommandTooLarge,
    RaftApplyFailed,
)
from metadata.runtime import registration
from metadata.runtime.registration import Registrar, Registration
from tests.fake_nats import FakeTransport
from tests.loop_steps import Lines
from tests.unit.metadata.brokers import CREATE, SETTINGS, SUBJECTS, Group, Member, World, running, until
from tests.unit.metadata.cluster_bench import Cluster
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.protobuf import metadata_pb2 as pb
from wire.turns import LOOKS, Turns
from wire.types import BrokerId, Incarnation, LeaderEpoch, LogEnd, Offset, PartitionKey, StreamName


async def test_brokers_register_and_record_their_incarnation_before_anything_else() -> None:
    async with running("a", "b", "c") as world:
        for name, broker in world.brokers.items():
            assert broker.recorded == [(broker.service.cluster_id, broker.service.incarnation)], name
        assert world.brokers["a"].service.is_controller


async def test_a_killed_leader_is_replaced_and_leaves_the_isr() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["b"].kill()
        await until(lambda: all(view.leader != "b" for view in world.brokers["a"].views.values()))
        await until(lambda: all("b" not in view.isr for view in world.brokers["c"].views.values()))


async def test_a_killed_controller_is_replaced() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["a"].kill()
        await until(lambda: world.brokers["b"].service.is_controller)
        await until(lambda: all(view.leader != "a" for view in world.brokers["c"].views.values()))
        assert (await world.api("cluster.status"))["controller"] == "b"


async def test_a_broker_that_finds_itself_declared_dead_registers_again_with_proof() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        service = world.brokers["b"].service
        first = service.incarnation
        assert first is not None
        state = world.brokers["a"].service.state
        dead = pb.BrokersDead(
            controller_epoch=state.controller_epoch, brokers=[pb.BrokerLife(broker="b", incarnation=first)]
        )
        world.group.commit(pb.Command(brokers_dead=dead).SerializeToString(), world.group.members[0])
        await until(lambda: service.incarnation is not None and service.incarnation > first)
        assert [incarnation for _, incarnation in world.brokers["b"].recorded] == [first, service.incarnation]
        assert world.brokers["b"].fatal == []


async def test_a_broker_declared_dead_before_it_heard_of_its_registration_keeps_its_proof(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **(CREATE | {"partitions": 1, "config": {"min_isr": "3"}}))
        await until(lambda: world.brokers["c"].views)
        _, incarnation = world.brokers["c"].recorded[-1]
        await world.brokers["c"].kill()
        await until(lambda: BrokerId("c") in world.view().eligible)
        commit = Group.commit
        declared_dead: list[object] = []

        def declaring_dead(group: Group, command: bytes, by: Member) -> object:
            result = commit(group, command, by)
            message = pb.Command.FromString(command)
            if message.HasField("register_broker") and not declared_dead:
                state = world.brokers["a"].service.state
                life = pb.BrokerLife(broker="c", incarnation=state.brokers[BrokerId("c")].incarnation)
                dead = pb.Command(brokers_dead=pb.BrokersDead(controller_epoch=state.controller_epoch, brokers=[life]))
                declared_dead.append(commit(group, dead.SerializeToString(), by))
            return result

        monkeypatch.setattr(Group, "commit", declaring_dead)
        returned = await world.start(
            "c",
            Registration(folder_same=True, page_cache_survived=True, last_incarnation=incarnation, raft_address="c:1"),
            life="2",
        )
        await asyncio.wait_for(returned.service.wait_registered(), 30)
        assert declared_dead
        assert BrokerId("c") in world.view(by="c").eligible


CREATE_TWO = CREATE | {"replication_factor": 2}
IMPATIENT = replace(SETTINGS, broker_silence_timeout_s=0.2)
LABELS = {"host": "h1", "pid": "77"}


@pytest.mark.parametrize("folder", ["another", "empty", "copied"])
async def test_a_second_process_under_the_id_of_a_living_one_is_refused(folder: str) -> None:
    async with running("a") as world:
        first = await world.start(
            "b",
            Registration(
                folder_same=False, page_cache_survived=False, raft_address="b:1", labels=LABELS, folder="/data/b"
            ),
        )
        await asyncio.wait_for(first.service.wait_registered(), 30)
        await world.api("stream.create", **CREATE_TWO)
        incarnation = first.service.incarnation
        assert incarnation is not None
        newcomer = Registration(
            folder_same=folder != "empty",
            page_cache_survived=folder != "empty",
            last_incarnation={"another": Incarnation(1), "empty": Incarnation(0), "copied": incarnation}[folder],
            cluster_id="" if folder == "empty" else first.service.cluster_id,
            raft_address="b:1",
            replace=True,
            folder="/data/copy",
        )
        with pytest.raises(TidelogError, match=r"process 77 on h1 .* data folder /data/b") as refused:
            await world.start("b", newcomer, life="2")
        assert refused.value.code is Code.ID_IN_USE
        assert (first.fatal, world.brokers["a"].service.state.brokers[BrokerId("b")].incarnation) == ([], incarnation)
        world.brokers["b"] = first


async def test_of_two_processes_that_start_at_once_the_second_is_refused() -> None:
    """Neither is registered yet when the other one asks."""
    async with running("a") as world:
        world.group.unavailable = 1
        first, second = [
            await world.start(
                "b",
                Registration(folder_same=False, page_cache_survived=False, folder=f"/data/b-{life}"),
                life=life,
                settings=IMPATIENT,
            )
            for life in ("1", "2")
        ]
        await until(lambda: first.fatal or second.fatal)
        refused, served = (first, second) if first.fatal else (second, first)
        assert refused.fatal[0].code is Code.ID_IN_USE
        assert f"data folder /data/{served.service._context.life_id}" in refused.fatal[0].message
        assert served.fatal == []
        world.brokers["b"] = served
        await refused.service.close()


async def test_a_broker_with_another_folder_takes_its_id_once_the_registered_life_is_silent() -> None:
    """It died just now: nobody has declared it dead."""
    async with running("a", "b") as world:
        await world.api("stream.create", **CREATE_TWO)
        await world.brokers["b"].kill()
        state = world.brokers["a"].service.state
        assert state.is_alive(BrokerId("b"))
        another = Registration(folder_same=False, page_cache_survived=False, replace=True)
        again = await world.start("b", another, life="2", settings=IMPATIENT)
        await asyncio.wait_for(again.service.wait_registered(), 30)
        assert again.fatal == []


async def test_an_empty_folder_where_partitions_should_be_ends_the_broker() -> None:
    async with running("a", "b") as world:
        await world.api("stream.create", **CREATE_TWO)
        await world.brokers["b"].kill()
        before = world.brokers["a"].service.state.brokers[BrokerId("b")]
        empty = Registration(folder_same=False, page_cache_survived=False, raft_address="b:1", folder="/mnt/wrong")
        again = await world.start("b", empty, life="2")
        await until(lambda: again.fatal)
        (error,) = again.fatal
        assert error.code is Code.EMPTY_FOLDER
        for words in ("/mnt/wrong", "of b is empty", "3, of which 0", "mount its disk", "--data-dir", "--replace"):
            assert words in error.message
        assert world.brokers["a"].service.state.brokers[BrokerId("b")].life_id == before.life_id
        await again.service.close()


async def test_a_folder_of_another_cluster_is_fatal() -> None:
    async with running("a") as world:
        registration = Registration(folder_same=True, page_cache_survived=True, cluster_id="elsewhere")
        stranger = await world.start("b", registration)
        await until(lambda: stranger.fatal)
        assert "elsewhere" in stranger.fatal[0].message


async def test_a_restarted_broker_acts_on_no_partition_before_its_registration() -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["c"].kill()
        world.group.unavailable = 3
        again = await world.start("c", life="2")
        await asyncio.wait_for(again.service.wait_registered(), 30)
        assert len(again.views) == 3
        assert not again.too_early
        assert all(view.leader != "c" for view in again.views.values())


async def test_a_broker_that_registers_tells_where_its_logs_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more logs than a command has room for, those of the first streams."""
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        broker = world.brokers["b"]
        service, (key, *_) = broker.service, sorted(broker.views)
        other = replace(key, stream=StreamName("t"))
        broker.logs = {other: LogEnd(LeaderEpoch(2), Offset(5)), key: LogEnd(LeaderEpoch(1), Offset(7))}

        def tell() -> Sequence[pb.LogEnds]:
            return Turns(service._registrar._command()).finish().register_broker.logs

        told = tell()
        assert {key: end for logs in told for key, end in log_ends_of(logs)} == broker.logs
        monkeypatch.setattr(registration, "MOST_LOGS_BYTES", told[0].ByteSize())
        assert [logs.stream for logs in Turns(service._registrar._command()).finish().register_broker.logs] == [
            key.stream
        ]


async def test_a_broker_looks_in_turns_for_the_logs_that_it_should_hold() -> None:
    """Those of 20,000 partitions of which it has none, and then as many of which it tells the ends."""
    async with running("a") as world:
        broker = world.brokers["a"]
        registrar = broker.service._registrar
        cluster = Cluster("a")
        for name in ("large", "larger"):
            cluster.create(name, ["a"] * 10_000)
        keys = [key for key, _ in cluster.state.partitions()]
        assert len(keys) == 20_000
        registrar._context = replace(registrar._context, state=cluster.state, incarnation=None)
        for held in (frozenset[PartitionKey](), frozenset(keys)):
            registrar._registration = replace(registrar._registration, held=held, manifest_is_lost=True)
            broker.logs = dict.fromkeys(held, LogEnd(LeaderEpoch(1), Offset(7)))
            command, lines, done = Turns(registrar._command()), Lines(), False
            while not done:
                lines.begin()
                done = command.turn(LOOKS)
                assert lines.end() < 60_000, "some 10 ms"
            told = command.finish().register_broker
            assert [key for logs in told.missing_logs for key in logs_of(logs)] == ([] if held else keys)
            assert {key for logs in told.logs for key, _ in log_ends_of(logs)} == held


async def test_a_broker_that_has_lost_very_many_logs_can_tell_all_of_them() -> None:
    """Where its other logs end is left out for that. A larger command would never be taken, and it would wait for
    ever."""
    async with running("a") as world:
        registrar = world.brokers["a"].service._registrar
        keys = [
            PartitionKey(
                StreamName(f"a-stream-with-a-long-name-{stream}"), Incarnation(10**6), number, Incarnation(10**6)
            )
            for stream in range(1000)
            for number in range(100)
        ]
        world.brokers["a"].logs = {key: LogEnd(LeaderEpoch(300), Offset(10**12)) for key in keys[50_000:]}
        for lost in (keys[:50_000], keys):
            registrar._unsound = partial(list, lost)
            command = Turns(registrar._command()).finish()
            told = command.register_broker
            assert command.ByteSize() < MAX_COMMAND_BYTES - 1024
            assert sorted(key for logs in told.unsound_logs for key in logs_of(logs)) == sorted(lost)
            assert told.logs


async def test_a_broker_whose_streams_were_deleted_while_it_was_down_is_told_that_it_has_none() -> None:
    """Else their folders would stay: folders of which no view has come by then are removed."""
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["c"].kill()
        await world.api("stream.delete", name="s")
        again = await world.start("c", life="2")
        await asyncio.wait_for(again.service.wait_registered(), 30)
        assert (again.knows_all, again.views, again.gone) == (1, {}, [])
        assert not again.too_early


async def test_a_registration_survives_lost_outcomes_and_a_missing_leader() -> None:
    world = World()
    world.group.lose_outcomes, world.group.unavailable = 2, 2
    broker = await world.start("a")
    await asyncio.wait_for(broker.service.wait_registered(), 30)
    assert len(broker.recorded) == 1
    await broker.service.close()


async def test_a_broker_that_is_probed_has_a_lease_until_it_is_not_probed_any_more() -> None:
    async with running("a", "b") as world:
        service = world.brokers["b"].service
        now = asyncio.get_running_loop().time
        await until(lambda: service.lease_valid(now()))
        assert not service.lease_valid(now() + SETTINGS.leader_lease_s)


async def test_a_probe_that_proves_the_lease_finds_roles_that_have_heard_of_all_that_is_applied() -> None:
    """Applied and told to the roles in one turn of the loop each: a probe may come between."""
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        broker, state = world.brokers["b"], world.brokers["a"].service.state
        led = [key for key, view in broker.views.items() if view.leader == "b"]
        assert led
        life = pb.BrokerLife(broker="b", incarnation=state.brokers[broker.id].incarnation)
        dead = pb.BrokersDead(controller_epoch=state.controller_epoch, brokers=[life])
        world.group.commit(pb.Command(brokers_dead=dead).SerializeToString(), world.group.members[0])
        assert all(broker.views[key].leader == "b" for key in led)
        probe = pb.Probe(
            controller="a", controller_epoch=state.controller_epoch, number=1 << 20, cluster_id=state.cluster_id
        )
        broker.service._requests._on_probe(Message(SUBJECTS.probe(broker.id), probe.SerializeToString(), "inbox"))
        assert all(broker.views[key].leader != "b" for key in led)


async def test_answers_of_a_process_that_is_not_registered_do_not_keep_the_life_before_it_alive() -> None:
    async with running("a", "b", "c") as world:
        state = world.brokers["a"].service.state
        await world.brokers["b"].kill()
        stranger = FakeTransport(world.hub)

        def answer(message: Message) -> None:
            number = pb.Probe.FromString(message.data).number
            said = pb.ProbeAnswer(broker="b", life_id="b-2", number=number, generation=1)
            assert message.reply is not None
            stranger.publish(message.reply, [said.SerializeToString()])

        await stranger.subscribe(SUBJECTS.probe(BrokerId("b")), answer)
        await until(lambda: not state.brokers[BrokerId("b")].alive)


async def test_a_process_whose_id_was_taken_ends_although_the_other_has_died_since() -> None:
    async with running("a", "b") as world:
        first, leader = world.brokers["b"], world.group.members[0]
        state = world.brokers["a"].service.state
        register = pb.RegisterBroker(broker="b", life_id="b-2", cluster_id=state.cluster_id)
        world.group.commit(pb.Command(register_broker=register).SerializeToString(), leader)
        life = pb.BrokerLife(broker="b", incarnation=state.brokers[BrokerId("b")].incarnation)
        dead = pb.BrokersDead(controller_epoch=state.controller_epoch, brokers=[life])
        world.group.commit(pb.Command(brokers_dead=dead).SerializeToString(), leader)
        await until(lambda: first.fatal)
        assert "another process" in first.fatal[0].message


async def test_a_registration_that_raft_refuses_for_good_is_tried_again() -> None:
    world = World()
    world.group.refusals = [RaftApplyFailed("a bug"), CommandTooLarge("too large")]
    broker = await world.start("a")
    await asyncio.wait_for(broker.service.wait_registered(), 30)
    await broker.service.close()


@pytest.mark.parametrize("step", ["on_registered", "on_partitions"])
async def test_a_broker_that_cannot_take_its_registration_or_its_partitions_over_ends(step: str) -> None:
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["c"].kill()
        again = world.make("c", life="2")

        def fail(*_: object) -> None:
            raise OSError("the disk is gone")

        setattr(again, step, fail)
        await again.service.start()
        await until(lambda: again.fatal)
        assert "the disk is gone" in again.fatal[0].message


async def test_a_broker_whose_folder_has_no_room_for_its_registration_takes_part_when_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("metadata.runtime.metadata_service.ROOM_RETRY_S", 0.01)
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **CREATE)
        await world.brokers["c"].kill()
        again = world.make("c", life="2")
        attempts: list[int] = []
        has_room = False

        def record(cluster_id: str, incarnation: Incarnation) -> None:
            attempts.append(incarnation)
            if not has_room:
                raise TidelogError(Code.NO_SPACE, "broker.json cannot be written")
            again.recorded.append((cluster_id, incarnation))

        again.on_registered = record  # type: ignore[method-assign]
        await again.service.start()
        await until(lambda: len(attempts) > 3)
        assert again.service.incarnation == attempts[-1], "it answers probes, so it is not dead"
        assert not again.fatal
        assert (again.knows_all, again.views) == (0, {}), "no partition is handed over before"
        has_room = True
        await asyncio.wait_for(again.service.wait_registered(), 30)
        assert again.views
        tried = len(attempts)
        await asyncio.sleep(0.05)
        assert len(attempts) == tried


async def test_what_a_person_may_have_to_mend_is_a_warning_once(caplog: pytest.LogCaptureFixture) -> None:
    def warnings(text: str) -> list[str]:
        return [each.getMessage() for each in caplog.records if each.levelname == "WARNING" and text in each.message]

    async with running("a", "b", "c") as world:
        await world.brokers["c"].kill()
        await until(lambda: warnings("dead: c"))
        service = world.brokers["b"].service
        lost = replace(service._raft.status(), has_quorum=False)
        for _ in range(3):
            service._on_raft_status(lost)
        assert len(warnings("broker b is connected to no majority")) == 1
        service._on_raft_status(replace(lost, has_quorum=True))
        service._on_raft_status(lost)
        assert len(warnings("broker b is connected to no majority")) == 2


async def test_a_broker_that_cannot_tell_which_logs_it_has_lost_leaves_the_isr_of_those_it_does_not_hold() -> None:
    """Its manifest is lost; the logs that are there prove themselves."""
    async with running("a", "b", "c") as world:
        await world.api("stream.create", **(CREATE | {"partitions": 2}))
        await until(lambda: len(world.brokers["c"].views) == 2)
        held, lost = sorted(world.brokers["c"].views)
        incarnation = world.brokers["c"].service.incarnation
        assert incarnation is not None
        await world.brokers["c"].kill()
        registration = Registration(
            folder_same=True,
            page_cache_survived=True,
            last_incarnation=incarnation,
            held=frozenset({held}),
            manifest_is_lost=True,
        )
        await world.start("c", registration, life="2")
        await until(lambda: "c" not in world.view(lost.partition).isr)
        assert "c" in world.view(held.partition).isr


async def test_a_broker_that_hears_of_its_registration_while_it_makes_another_one_proves_that_it_is_the_same() -> None:
    """The outcome of the first was unknown. With the second it would count as one with another folder, were it declared
    dead in between; what it had lost is named already."""
    async with running("a") as world:
        registrar = world.brokers["a"].service._registrar
        lost = PartitionKey(StreamName("lost"), Incarnation(1), 0, Incarnation(1))
        context = replace(registrar._context, incarnation=None)
        registrar._context = context
        registrar._registration = replace(registrar._registration, folder_same=False, unsound=(lost,))
        command = Turns(registrar._command())
        assert not command.turn(1)
        context.incarnation = Incarnation(7)
        told = command.finish().register_broker
        assert (told.folder_same, told.page_cache_survived, told.last_incarnation) == (True, True, 7)
        assert told.cluster_id == world.brokers["a"].service.state.cluster_id
        assert not told.unsound_logs


async def test_a_registration_that_takes_long_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(registration, "SAY_EVERY_S", 0.1)
    async with running("a") as world:
        commit = Group.commit
        is_refused = True

        def refusing(group: Group, command: bytes, by: Member) -> object:
            if is_refused and pb.Command.FromString(command).HasField("register_broker"):
                return Outcome(code=Code.UNAVAILABLE, message="the controller has just changed")
            return commit(group, command, by)

        monkeypatch.setattr(Group, "commit", refusing)
        late = await world.start("b", Registration(folder_same=False, page_cache_survived=False))
        await until(lambda: "not registered yet, and tries again: the controller has just changed" in caplog.text)
        is_refused = False
        await asyncio.wait_for(late.service.wait_registered(), 30)


def recovered(state: ClusterState) -> None:
    """The cluster begins anew with it."""
    state.restore(advanced(state.snapshot()))


async def missing_logs(registrar: Registrar) -> list[tuple[str, int]]:
    told = Turns(registrar._command()).finish().register_broker
    return [(key.stream, key.partition) for logs in told.missing_logs for key in logs_of(logs)]


async def test_after_the_cluster_began_anew_a_broker_names_the_logs_that_it_does_not_have() -> None:
    async with running("a") as world:
        registrar = world.brokers["a"].service._registrar
        cluster = Cluster("a", "b")
        cluster.create("moved", ["a b"])
        cluster.create("kept", ["a b"])
        cluster.create("elsewhere", ["b"])
        state, folder = cluster.state, Incarnation(cluster.incarnation("a"))
        held = frozenset({cluster.key(name="kept")})
        registrar._context = replace(registrar._context, state=state, incarnation=None)
        registrar._registration = replace(registrar._registration, held=held, last_incarnation=folder)
        assert await missing_logs(registrar) == [], "a partition may have been made a moment ago"
        recovered(state)
        cluster.begin_controller_epoch("b")
        cluster.register("a")
        cluster.register("b")
        cluster.create("later", ["a b"])
        assert await missing_logs(registrar) == [("moved", 0)]
        told = Turns(registrar._command()).finish().register_broker
        assert told.recovered_at == state.recovered_at < state.streams[StreamName("later")].incarnation
        # The folder of a broker that was registered by a decision that was lost, and that of one that is since then.
        registrar._registration = replace(registrar._registration, last_incarnation=Incarnation(state.recovered_at))
        assert await missing_logs(registrar) == [("moved", 0)]
        since = Incarnation(cluster.incarnation("a"))
        registrar._registration = replace(registrar._registration, last_incarnation=since)
        assert await missing_logs(registrar) == []


async def test_a_broker_that_knows_the_metadata_of_before_registers_when_it_knows_the_new_ones() -> None:
    async with running("a", "b") as world:
        await world.api("stream.create", **(CREATE | {"partitions": 1, "replication_factor": 2}))
        await until(lambda: len(world.brokers["b"].views) == 1)
        incarnation = world.brokers["b"].service.incarnation
        assert incarnation is not None
        await world.brokers["b"].kill()
        here = world.brokers["a"].service.state
        broker = world.make("b", Registration(folder_same=True, page_cache_survived=True, last_incarnation=incarnation))
        old, new = broker.service.state, ClusterState()
        old.restore(here.snapshot())
        new.restore(advanced(here.snapshot()))
        known = [Turns(broker.service._registrar._command()).finish()]
        recovered(old)
        known.append(Turns(broker.service._registrar._command()).finish())
        outcomes = [new.apply(command.SerializeToString()) for command in known]
        assert [outcome.code for outcome in outcomes] == [Code.UNAVAILABLE, None]
        assert outcomes[0].code is not None
        assert outcomes[0].code.retriable


async def test_a_process_that_was_registered_before_the_cluster_began_anew_is_over() -> None:
    """It would open empty logs in the place of those that it has to name."""
    async with running("a") as world:
        broker = world.brokers["a"]
        await world.api("stream.create", **(CREATE | {"partitions": 1, "replication_factor": 1}))
        await until(lambda: len(broker.views) == 1)
        views = dict(broker.views)
        recovered(broker.service.state)
        broker.service._on_changes(Changes(partitions=tuple(views)))
        await until(lambda: bool(broker.fatal))
        assert "start the broker again" in broker.fatal[0].message
        assert broker.views == views
