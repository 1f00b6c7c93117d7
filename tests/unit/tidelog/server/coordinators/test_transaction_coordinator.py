"""The coordinator of one partition of `__transactions`: what leaves when, over a transport."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
from google.protobuf.message import Message as Protobuf

from tests.fake_nats import FakeTransport, Hub, delivered
from tests.peers import peer_link
from tests.tickets import producer_keys
from tests.unit.tidelog.server.coordinators.groups.groups_world import make_ticket
from tests.unit.tidelog.server.coordinators.test_coordinator import Led, Ports, refusal
from tests.unit.tidelog.server.coordinators.transactions.transactions_world import partition
from tidelog.server.coordinators.driver import coordinator as module
from tidelog.server.coordinators.driver import deliveries
from tidelog.server.coordinators.driver.coordinator import Coordinator
from tidelog.server.coordinators.driver.coordinator_kinds import transactional_ids
from tidelog.server.coordinators.shard import Shard
from tidelog.server.coordinators.transactions.transaction_shard import TransactionShard
from wire.batch import EncodedBatch
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import (
    ADD_OFFSETS,
    ADD_PARTITIONS,
    END,
    END_FAMILY,
    FAMILY,
    INIT,
    coordinator_partition,
    coordinator_subject,
)
from wire.messaging.transport import Message
from wire.operations import json_codec
from wire.protobuf.tidelog_pb2 import EndTransactionRequest
from wire.protobuf.transactions_pb2 import (
    AddRequest,
    AddResponse,
    EndFamilyRequest,
    EndFamilyResponse,
    EndRequest,
    EndResponse,
    FamilyMember,
    FamilyRequest,
    FamilyResponse,
    InitRequest,
    InitResponse,
)
from wire.security.producer_keys import prove
from wire.security.tickets import group_target, partition_target
from wire.security.transaction_proofs import add_proof, proven_of, proven_of_prepared
from wire.subjects import Subjects
from wire.types import Incarnation, PartitionKey, StreamName

SUBJECTS = Subjects()
ID = "t"
PARTITION = coordinator_partition(ID)
GROUP_SUBJECT = "tidelog.__groups.3.coordinate"
"""Of the group g0, whose name hashes to partition 3."""


def make_shard() -> Shard:
    return TransactionShard(
        broker="b1", partition=PARTITION, patience=5.0, make_ticket=make_ticket, producer_keys=producer_keys()
    )


class World:
    """The leader of s/0, and the coordinator of a group, answer when the test says so."""

    def __init__(self) -> None:
        self.hub = Hub()
        self.led = Led()
        self.led.key = PartitionKey(StreamName("__transactions"), Incarnation(7), PARTITION, Incarnation(7))
        self.ports = Ports(self.hub)
        self.client = FakeTransport(self.hub)
        self.peers = peer_link(FakeTransport(self.hub))
        self.told: list[Message] = []
        self.coordinator = Coordinator(self.led, self.ports, transactional_ids(make_shard, producer_keys()))

    async def listen(self) -> None:
        await self.peers.subscribe(SUBJECTS.mark(StreamName("s"), 0), self.told.append)
        await self.peers.subscribe(GROUP_SUBJECT, self.told.append)
        await delivered()

    async def confirm(self, error: TidelogError | None = None) -> None:
        told, self.told[:] = [*self.told], []
        for message in told:
            assert message.reply is not None
            self.peers.publish(message.reply, [b""], headers=None if error is None else error.to_headers())
        await delivered()

    async def send(self, kind: str, request: Protobuf, *added: str) -> list[Message]:
        """What is answered stands in the list."""
        answers: list[Message] = []
        inbox = self.client.new_inbox()
        self.client.on_inbox(inbox, answers.append)
        subject = coordinator_subject(SUBJECTS, kind, ID, *added)
        self.client.publish(subject, [request.SerializeToString()], reply=inbox)
        await delivered()
        return answers

    async def opened(self) -> InitResponse:
        """A transaction with a partition and a group."""
        (answer,) = await self.send(INIT, InitRequest(transactional_id=ID, timeout_ms=60_000))
        producer = InitResponse.FromString(answer.data)
        of_s = await self.add(producer, ADD_PARTITIONS, "s", partitions=[partition(0)])
        of_g0 = await self.add(producer, ADD_OFFSETS, "g0", groups=["g0"])
        targets = [partition_target("s", 1, 0, 1), group_target("g0")]
        assert [*AddResponse.FromString(of_s.data).tickets, *AddResponse.FromString(of_g0.data).tickets] == [
            make_ticket(producer.producer_id, producer.producer_epoch, target) for target in targets
        ]
        return producer

    async def add(self, producer: InitResponse, kind: str, *added: str, **what: Any) -> Message:
        request = AddRequest(
            transactional_id=ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            **what,
        )
        add_proof(request, producer.key)
        (answer,) = await self.send(kind, request, *added)
        return answer

    async def end(self, producer: InitResponse) -> list[Message]:
        request = EndRequest(
            transactional_id=ID,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            commits=True,
        )
        add_proof(request, producer.key)
        return await self.send(END, request)


@pytest.fixture
async def world(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(deliveries, "PAUSE_S", 0.0)
    monkeypatch.setattr(module, "RELOAD_PAUSE_S", 0.0)
    world = World()
    await world.listen()
    yield world
    world.led.end()
    await delivered()


async def test_a_decision_is_told_when_it_is_committed_and_not_before(world: World) -> None:
    producer = await world.opened()
    world.led.at_once = False
    answers = await world.end(producer)
    assert not world.told, "a coordinator that loses this record may decide otherwise"
    world.led.commit()
    await delivered()
    marked, told = sorted(world.told, key=lambda message: message.subject, reverse=True)
    assert EndTransactionRequest.FromString(marked.data) == EndTransactionRequest(
        producer_id=producer.producer_id,
        producer_epoch=0,
        commits=True,
        stream_incarnation=1,
        partition_incarnation=1,
    )
    assert json_codec.decode(dict[str, Any], told.data, "it") == {
        "operation": "group.end",
        "request": {"group": "g0", "producer_id": producer.producer_id, "producer_epoch": 0, "commits": True},
    }
    assert not answers
    await world.confirm()
    assert EndResponse.FromString(answers[0].data).next_epoch == 1, "its record follows"


async def test_what_is_refused_is_told_again(world: World) -> None:
    producer = await world.opened()
    answers = await world.end(producer)
    for _ in range(3):
        assert len(world.told) == 2
        await world.confirm(TidelogError(Code.NOT_ENOUGH_REPLICAS, "too few"))
        assert not answers
    await world.confirm()
    assert EndResponse.FromString(answers[0].data).next_epoch == 1


async def test_a_decision_that_is_not_committed_is_told_to_nobody(world: World) -> None:
    producer = await world.opened()
    world.led.refusal = TidelogError(Code.NOT_ENOUGH_REPLICAS, "too few")
    (answer,) = await world.end(producer)
    assert refusal(answer) is Code.OUTCOME_UNKNOWN, "it is held until all are told, and may be decided by then"
    world.led.refusal = None
    await delivered()
    assert not world.told
    answers = await world.end(producer)
    await world.confirm()
    assert EndResponse.FromString(answers[0].data).next_epoch == 1


async def test_an_end_whose_decision_is_committed_is_never_refused_as_if_it_were_not(world: World) -> None:
    producer = await world.opened()
    held = await world.end(producer)
    world.ports.has_lease = False
    await world.confirm()
    assert [refusal(message) for message in held] == [Code.OUTCOME_UNKNOWN], "everybody was told of the commit"


async def test_after_a_failed_append_the_decisions_of_the_log_are_told_again(world: World) -> None:
    producer = await world.opened()
    held = await world.end(producer)
    assert len(world.told) == 2
    world.told.clear()
    world.led.refusal = TidelogError(Code.NOT_ENOUGH_REPLICAS, "too few")
    (refused,) = await world.send(INIT, InitRequest(transactional_id="t", timeout_ms=0))
    assert refusal(refused) is Code.BAD_REQUEST
    unknown = EndRequest(transactional_id="t", producer_id=1)
    add_proof(unknown, producer_keys().key_of(1))
    (refused,) = await world.send(END, unknown)
    assert refusal(refused) is Code.NOT_ENOUGH_REPLICAS, "the barrier"
    assert [refusal(message) for message in held] == [Code.OUTCOME_UNKNOWN], "it is committed"
    world.led.refusal = None
    await delivered()
    assert len(world.told) == 2
    answers = await world.end(producer)
    await world.confirm()
    assert EndResponse.FromString(answers[0].data).next_epoch == 1


async def test_a_coordinator_that_is_over_tells_nobody_any_more(world: World) -> None:
    producer = await world.opened()
    answers = await world.end(producer)
    world.led.end()
    await delivered()
    assert [refusal(message) for message in answers] == [Code.OUTCOME_UNKNOWN]
    await world.confirm(TidelogError(Code.NOT_ENOUGH_REPLICAS, "too few"))
    assert not world.told


async def prepared(world: World, child: str) -> FamilyMember:
    """Under the family t."""
    (answer,) = await world.send(INIT, InitRequest(transactional_id=f"{ID}~{child}", timeout_ms=60_000))
    producer = InitResponse.FromString(answer.data)
    request = AddRequest(transactional_id=f"{ID}~{child}", producer_id=producer.producer_id, partitions=[partition(0)])
    add_proof(request, producer.key)
    await world.send(ADD_PARTITIONS, request, "s")
    proof = prove(producer.key, proven_of_prepared(f"{ID}~{child}", 0))
    return FamilyMember(child=child, producer_id=producer.producer_id, proof=proof)


async def test_what_is_not_proven_to_come_from_the_producer_is_refused_and_changes_nothing(world: World) -> None:
    """A stranger knows the id and the epoch."""
    producer = await world.opened()
    mine, other = producer.key, producer_keys().key_of(producer.producer_id + 1)
    for commits in (False, True):
        end = EndRequest(transactional_id=ID, producer_id=producer.producer_id, commits=commits)
        turned = EndRequest(transactional_id=ID, producer_id=producer.producer_id, commits=not commits)
        add_proof(turned, mine)
        for proof in (b"", prove(other, proven_of(end)), turned.proof, b"x" * 20):
            end.proof = proof
            (refused,) = await world.send(END, end)
            assert refusal(refused) is Code.UNPROVEN_PRODUCER
    add = AddRequest(transactional_id=ID, producer_id=producer.producer_id, partitions=[partition(1)])
    add_proof(add, mine)
    add.partitions.append(partition(2))
    (refused,) = await world.send(ADD_PARTITIONS, add, "s")
    assert refusal(refused) is Code.UNPROVEN_PRODUCER
    family = EndFamilyRequest(family=ID, commits=True, sequence=1)
    member = await prepared(world, "a")
    member.proof = prove(mine, proven_of_prepared(f"{ID}~a", 0))
    family.members.append(member)
    (refused,) = await world.send(END_FAMILY, family)
    assert refusal(refused) is Code.UNPROVEN_PRODUCER
    assert not world.told, "all are open"
    await world.end(producer)
    assert world.told


@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_a_commit_of_a_family_whose_records_are_committed_in_part_is_complete_or_none(
    world: World, lost: int
) -> None:
    """Its records take three batches; the one numbered `lost` and those behind it are refused."""
    members = [await prepared(world, child) for child in ("a", "b")]
    world.led.max_batch_bytes = 2
    append, number = world.led.append, count()

    def append_some(batch: EncodedBatch, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        if next(number) < lost:
            world.led.store(batch)
            done(None)
        else:
            done(TidelogError(Code.NOT_ENOUGH_REPLICAS, "too few"))

    world.led.append = append_some  # type: ignore[method-assign]
    request = EndFamilyRequest(family=ID, members=members, commits=True, sequence=5)
    (answer,) = await world.send(END_FAMILY, request)
    assert refusal(answer) is Code.OUTCOME_UNKNOWN
    world.led.append = append  # type: ignore[method-assign]
    world.led.max_batch_bytes = 1 << 20
    await delivered()
    (told,) = await world.send(FAMILY, FamilyRequest(family=ID))
    assert FamilyResponse.FromString(told.data) == (FamilyResponse(sequence=5) if lost else FamilyResponse())
    if lost == 0:
        assert not world.told
        return
    marks = [EndTransactionRequest.FromString(message.data) for message in world.told]
    assert {(mark.producer_id, mark.commits) for mark in marks} == {(each.producer_id, True) for each in members}
    answers = await world.send(END_FAMILY, request)
    await world.confirm()
    assert EndFamilyResponse.FromString(answers[0].data) == EndFamilyResponse()


async def test_a_request_of_a_child_comes_on_the_subject_of_its_family(world: World) -> None:
    request = InitRequest(transactional_id="u~a", timeout_ms=60_000)
    (answer,) = await world.send(INIT, request)
    assert refusal(answer) is Code.BAD_REQUEST, "permissions are given for subjects"
    (answer,) = await world.send(END_FAMILY, EndFamilyRequest(family="u"))
    assert refusal(answer) is Code.BAD_REQUEST


@pytest.mark.parametrize(
    ("kind", "added", "what", "named"),
    [
        (ADD_PARTITIONS, "s", {"partitions": [partition(1, "r", 2, 2)]}, "'r'"),
        (ADD_PARTITIONS, "s", {"partitions": [partition(1), partition(0, "r", 2, 2)]}, "'r'"),
        (ADD_PARTITIONS, "s", {"groups": ["s"]}, "group 's'"),
        (ADD_PARTITIONS, "s", {"partitions": [partition(1)], "groups": ["g1"]}, "group 'g1'"),
        (ADD_OFFSETS, "g0", {"groups": ["g1"]}, "'g1'"),
        (ADD_OFFSETS, "g0", {"groups": ["g0", "g1"]}, "'g1'"),
        (ADD_OFFSETS, "s", {"partitions": [partition(1)]}, "stream 's'"),
        (ADD_OFFSETS, "g0", {"partitions": [partition(1)], "groups": ["g0"]}, "stream 's'"),
    ],
)
async def test_an_add_takes_in_what_its_subject_names_and_nothing_else(
    world: World, kind: str, added: str, what: dict[str, Any], named: str
) -> None:
    """NATS lets a producer send to the subjects of its own streams and groups."""
    producer = await world.opened()
    before = len(world.led.batches)
    answer = await world.add(producer, kind, added, **what)
    error = TidelogError.from_headers(answer.headers)
    assert error is not None
    assert error.code is Code.BAD_REQUEST
    assert named in error.message
    assert added in error.message or kind in error.message
    assert len(world.led.batches) == before, "nothing was added"


async def test_an_add_for_another_family_is_refused(world: World) -> None:
    add = AddRequest(transactional_id="u", producer_id=1, partitions=[partition(0)])
    (answer,) = await world.send(ADD_PARTITIONS, add, "s")
    assert refusal(answer) is Code.BAD_REQUEST
