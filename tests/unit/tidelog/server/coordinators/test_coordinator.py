"""The coordinator of one partition of `__groups`: what it answers, when, and what it does when the log does not take
what it writes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import pytest

from tests.fake_nats import FakeTransport, Hub, delivered
from tests.peers import peer_link
from tests.tickets import producer_keys
from tests.unit.tidelog.server.coordinators.groups.groups_world import check_ticket, view
from tidelog.server.coordinators.driver import coordinator as module
from tidelog.server.coordinators.driver.coordinator import Coordinator, CoordinatorCounters
from tidelog.server.coordinators.driver.coordinator_kinds import groups_and_cursors
from tidelog.server.coordinators.groups.consumer_group import Group
from tidelog.server.coordinators.groups.group_shard import GroupShard
from tidelog.server.coordinators.known_streams import StreamsView
from wire.batch import BatchBuilder, EncodedBatch
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import CursorKey, coordinator_partition
from wire.messaging.transport import Message, PeerTransport, Transport
from wire.operations import api_operations as op
from wire.operations import json_codec
from wire.protobuf.groups_pb2 import (
    CursorRecord,
    CursorRequest,
    CursorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetsRequest,
)
from wire.subjects import Subjects
from wire.types import Buffer, Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

SUBJECTS = Subjects()
KEY = PartitionKey(StreamName("__groups"), Incarnation(7), 3, Incarnation(7))
GROUP = "g0"
"""Its name hashes to partition 3."""


class Led:
    """A led partition whose appends are committed when the test says so."""

    def __init__(self) -> None:
        self.key = KEY
        self.subject = "tidelog.__groups.3"
        self.leader_epoch = LeaderEpoch(4)
        self.max_batch_bytes = 1 << 20
        self.log_start_offset = Offset(0)
        self.high_watermark = Offset(0)
        self.batches: list[bytes] = []
        self.waiting: list[tuple[EncodedBatch, Callable[[TidelogError | None], None]]] = []
        self.at_once = True
        self.refusal: TidelogError | None = None
        self.ends: list[Callable[[], None]] = []
        self.committing: list[Callable[[TidelogError | None], None]] = []
        self._end = 0

    @property
    def log_end_offset(self) -> Offset:
        return Offset(self._end)

    async def read_committed(self, offset: Offset) -> Sequence[Buffer]:
        return [b"".join(self.batches)] if offset < self.high_watermark else []

    def store(self, batch: EncodedBatch, *, committed: bool = True) -> None:
        parts, header = batch.stamp(Offset(self._end), self.leader_epoch, append_time=1)
        self.batches.append(b"".join(parts))
        self._end = header.end_offset
        if committed:
            self.high_watermark = Offset(self._end)

    def append(self, batch: EncodedBatch, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        assert timeout > 0
        assert not self.waiting, "one batch at a time is on its way"
        if self.refusal is not None:
            done(self.refusal)
            return
        self.waiting.append((batch, done))
        if self.at_once:
            asyncio.get_running_loop().call_soon(self.commit)

    def commit(self) -> None:
        batch, done = self.waiting.pop()
        self.store(batch)
        done(None)

    def on_committed(self, end: Offset, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        self.committing.append(done)

    def look(self, error: TidelogError | None = None) -> None:
        """All of the log is committed, or not in time."""
        if error is None:
            self.high_watermark = self.log_end_offset
        while self.committing:
            self.committing.pop()(error)

    def on_end(self, handler: Callable[[], None]) -> None:
        self.ends.append(handler)

    def end(self) -> None:
        for handler in self.ends:
            handler()
        self.look(TidelogError(Code.OUTCOME_UNKNOWN, "resigned"))


class Ports:
    broker = "b1"
    cluster_id = "c"

    def __init__(self, hub: Hub) -> None:
        self.clients: Transport = FakeTransport(hub)
        self.peers: PeerTransport = peer_link(FakeTransport(hub))
        self.subjects = SUBJECTS
        self.has_lease = True
        self.view = view(s=(1, 2))
        self.later = 0.0
        self.counters = CoordinatorCounters()

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.later

    def time_ns(self) -> int:
        return 10**18

    def agreed_time_ns(self) -> int:
        return self.time_ns()

    def lease_valid(self) -> bool:
        return self.has_lease

    def streams(self) -> StreamsView:
        return self.view


def make_shard() -> GroupShard:
    return GroupShard(broker="b1", partition=3, patience=5, retention=100, check_ticket=check_ticket)


class World:
    def __init__(self, led: Led | None = None) -> None:
        self.hub = Hub()
        self.led = led or Led()
        self.ports = Ports(self.hub)
        self.client = FakeTransport(self.hub)
        self.asking = peer_link(FakeTransport(self.hub))
        self.coordinator = Coordinator(self.led, self.ports, groups_and_cursors(make_shard, producer_keys()))

    @property
    def groups(self) -> dict[str, Group]:
        shard = self.coordinator.shard
        assert isinstance(shard, GroupShard)
        return shard.groups

    def send(self, kind: str, request: Any, name: str = GROUP) -> list[Message]:
        """What is answered stands in the list."""
        answers: list[Message] = []
        inbox = self.client.new_inbox()
        self.client.on_inbox(inbox, answers.append)
        data = request if isinstance(request, bytes) else request.SerializeToString()
        self.client.publish(f"tidelog.__groups.3.{kind}.{name}", [data], reply=inbox)
        return answers

    async def ask(self, kind: str, request: Any, name: str = GROUP) -> Message:
        answers = self.send(kind, request, name)
        await delivered()
        (answer,) = answers
        return answer

    async def join(self, member: str = "m") -> Message:
        return await self.ask("heartbeat", joining(member))

    async def until_active(self) -> None:
        await delivered()
        answer = await self.ask("offsets", OffsetsRequest(group=GROUP))
        assert TidelogError.from_headers(answer.headers) is None


def joining(member: str, group: str = GROUP) -> HeartbeatRequest:
    request = HeartbeatRequest(
        group=group,
        member=member,
        kind=HeartbeatRequest.JOIN,
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
    )
    request.subscription.streams.append("s")
    return request


def refusal(message: Message) -> Code:
    error = TidelogError.from_headers(message.headers)
    assert error is not None, message
    return error.code


def cursor_batch(value: bytes) -> EncodedBatch:
    builder = BatchBuilder()
    builder.add_record(value, CursorKey(GROUP).encode())
    return builder.build(1)


async def test_an_answer_leaves_when_its_records_are_committed_and_not_before() -> None:
    world = World()
    await world.until_active()
    world.led.at_once = False
    answers = world.send("heartbeat", joining("m"))
    await delivered()
    assert not answers
    assert len(world.led.waiting) == 1
    later = world.send("offsets", OffsetsRequest(group=GROUP))
    await delivered()
    assert not later, "it would tell of a state that may be lost"
    world.led.commit()
    await delivered()
    assert HeartbeatResponse.FromString(answers[0].data).assigned[0].partitions == [0, 1]
    assert not later, "a record proves first that no other broker leads"
    world.led.commit()
    await delivered()
    assert len(later) == 1


async def test_requests_that_come_while_a_batch_is_on_its_way_share_the_next_one() -> None:
    world = World()
    await world.until_active()
    world.led.at_once = False
    answers = [world.send("heartbeat", joining(f"m{n}")) for n in range(5)]
    await delivered()
    world.led.commit()
    await delivered()
    world.send("heartbeat", joining("x"))
    world.send("heartbeat", joining("y"))
    await delivered()
    assert all(answers)
    assert len(world.led.waiting) == 1


async def test_without_a_lease_nothing_is_answered_that_is_not_committed_just_now() -> None:
    world = World()
    await world.until_active()
    world.ports.has_lease = False
    assert TidelogError.from_headers((await world.join()).headers) is None
    beat = HeartbeatRequest(group=GROUP, member="m", applied=1)
    assert refusal(await world.ask("heartbeat", beat)) is Code.UNAVAILABLE


async def test_after_an_append_that_failed_the_answers_are_errors_and_the_log_is_read_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RELOAD_PAUSE_S", 0.0)
    world = World()
    await world.until_active()
    world.led.refusal = TidelogError(Code.NOT_ENOUGH_REPLICAS, "too few")
    assert refusal(await world.join()) is Code.NOT_ENOUGH_REPLICAS
    assert not world.groups, "the state before the failed append"
    world.led.refusal = None
    assert TidelogError.from_headers((await world.join()).headers) is None


async def test_what_an_append_of_unknown_outcome_has_left_is_read_once_it_is_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RELOAD_PAUSE_S", 0.0)
    world = World()
    await world.until_active()
    world.led.at_once = False
    answers = world.send("cursor", CursorRequest(cursor=GROUP, writes=True, value=b"v"))
    await delivered()
    batch, done = world.led.waiting.pop()
    world.led.store(batch, committed=False)
    done(TidelogError(Code.CONFIRM_TIMEOUT, "who knows"))
    await delivered()
    assert refusal(answers[0]) is Code.CONFIRM_TIMEOUT
    later = world.send("cursor", CursorRequest(cursor=GROUP))
    await delivered()
    assert not later, "the record may be committed yet"
    world.led.look()
    world.led.at_once = True
    await delivered()
    assert CursorResponse.FromString(later[0].data).value == b"v"


async def test_a_coordinator_begins_when_all_of_the_log_is_committed() -> None:
    led = Led()
    led.store(cursor_batch(b"\x08\x01\x12\x01a"))
    led.store(cursor_batch(b"\x08\x02\x12\x01b"), committed=False)
    world = World(led)
    await delivered()
    answers = world.send("cursor", CursorRequest(cursor=GROUP))
    await delivered()
    await delivered()
    assert not answers
    led.look()
    await delivered()
    await delivered()
    assert CursorResponse.FromString(answers[0].data).value == b"b"


async def test_while_the_log_is_not_committed_for_long_requests_are_refused() -> None:
    led = Led()
    led.store(cursor_batch(b"\x08\x01"), committed=False)
    world = World(led)
    await delivered()
    early = world.send("cursor", CursorRequest(cursor=GROUP))
    await delivered()
    world.ports.later = 10.0
    assert refusal(await world.ask("cursor", CursorRequest(cursor=GROUP))) is Code.UNAVAILABLE
    led.look(TidelogError(Code.CONFIRM_TIMEOUT, "not yet"))
    await delivered()
    assert refusal(early[0]) is Code.UNAVAILABLE


async def test_when_the_leader_epoch_ends_requests_that_wait_are_refused_and_nothing_is_listened_to() -> None:
    world = World()
    await world.until_active()
    world.led.at_once = False
    first = world.send("heartbeat", joining("m"))
    await delivered()
    second = world.send("heartbeat", joining("n"))
    await delivered()
    world.led.end()
    world.led.waiting.pop()[1](TidelogError(Code.OUTCOME_UNKNOWN, "resigned"))
    await delivered()
    assert refusal(first[0]) is Code.OUTCOME_UNKNOWN
    assert refusal(second[0]) is Code.UNAVAILABLE
    assert world.coordinator.is_over
    assert (await world.ask("offsets", OffsetsRequest(group=GROUP))).status == 503


async def test_an_epoch_that_ends_before_the_log_is_read_leaves_nothing_behind() -> None:
    led = Led()
    led.store(cursor_batch(b"\x08\x01"), committed=False)
    world = World(led)
    led.end()
    await delivered()
    assert world.coordinator.is_over
    assert (await world.ask("offsets", OffsetsRequest(group=GROUP))).status == 503


async def test_records_of_kinds_that_this_version_does_not_know_are_passed_over() -> None:
    led = Led()
    builder = BatchBuilder()
    builder.add_record(b"?", b"z\0what")
    builder.add_record(b"?", b"\xff\xfe")
    builder.add_record(b"\x08\x05", CursorKey(GROUP).encode())
    led.store(builder.build(1))
    world = World(led)
    await delivered()
    answer = await world.ask("cursor", CursorRequest(cursor=GROUP))
    assert CursorResponse.FromString(answer.data).version == 5
    assert world.coordinator.shard.unknown_records == 2


async def test_more_than_so_many_requests_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 3)
    world = World()
    await world.until_active()
    world.led.at_once = False
    answers = [world.send("heartbeat", joining("m"))]
    await delivered()
    answers += [world.send("heartbeat", joining(f"m{n}")) for n in range(5)]
    await delivered()
    refused = [answer[0] for answer in answers if answer]
    assert [refusal(message) for message in refused] == [Code.BACKPRESSURE] * 2
    error = TidelogError.from_headers(refused[0].headers)
    assert error is not None
    assert error.detail(LIMIT) == "group_requests"


@pytest.mark.parametrize(
    ("kind", "data", "name", "expected"),
    [
        ("heartbeat", b"\xff" * 20, GROUP, Code.BAD_REQUEST),
        ("commit", b"x" * (65 << 10), GROUP, Code.BAD_REQUEST),
        ("offsets", OffsetsRequest(group="other").SerializeToString(), GROUP, Code.BAD_REQUEST),
        ("offsets", OffsetsRequest(group="a.b").SerializeToString(), "a.b", None),
        ("cursor", CursorRequest(cursor="other").SerializeToString(), GROUP, Code.BAD_REQUEST),
        ("offsets", OffsetsRequest(group=GROUP, cluster_id="other").SerializeToString(), GROUP, None),
        ("heartbeat", b"", GROUP, Code.BAD_REQUEST),
    ],
)
async def test_what_cannot_be_is_refused_or_not_answered(
    kind: str, data: bytes, name: str, expected: Code | None
) -> None:
    world = World()
    await world.until_active()
    answers = world.send(kind, data, name)
    await delivered()
    assert [refusal(answer) for answer in answers if answer.status is None] == ([expected] if expected else [])
    assert not world.groups


async def test_a_group_that_belongs_to_another_coordinator_is_refused_and_not_kept() -> None:
    world = World()
    await world.until_active()
    written = len(world.led.batches)
    name = next(f"g{n}" for n in range(100) if coordinator_partition(f"g{n}") != KEY.partition)
    for kind, request in {
        "offsets": OffsetsRequest(group=name),
        "cursor": CursorRequest(cursor=name),
        "heartbeat": joining("m", name),
    }.items():
        assert refusal(await world.ask(kind, request, name)) is Code.NOT_COORDINATOR, kind
    assert name not in world.groups
    assert len(world.led.batches) == written


async def test_a_subscription_by_pattern_needs_a_subject_of_its_own() -> None:
    """NATS gives permission for it apart: whoever may join a group is not told the names of all streams by that."""
    world = World()
    await world.until_active()
    request = joining("m")
    request.subscription.patterns.append("*")
    assert refusal(await world.ask("heartbeat", request)) is Code.BAD_REQUEST
    answer = await world.ask("discover", request)
    assert HeartbeatResponse.FromString(answer.data).assigned[0].partitions == [0, 1]


async def test_an_operation_of_the_controller_is_carried_out_and_one_that_cannot_be_read_is_refused() -> None:
    world = World()
    await world.until_active()
    await world.join()
    subject = SUBJECTS.coordinate(KEY.stream, KEY.partition)

    async def asked(payload: bytes) -> Message:
        return await world.asking.request(subject, payload, timeout=5)

    described = {"operation": op.GROUP_DESCRIBE.name, "request": asdict(op.GroupRef(GROUP))}
    answer = await asked(json_codec.encode(described))
    assert op.GROUP_DESCRIBE.decode_answer(answer.data, None)["members"] == 1
    for wrong in (b"{}", b"[", b'{"operation": "no", "request": {}}', b'{"operation": "group.describe", "request": 3}'):
        assert refusal(await asked(wrong)) is Code.BAD_REQUEST


async def test_members_are_told_of_changes_unasked() -> None:
    world = World()
    await world.until_active()
    first = world.send("heartbeat", joining("m"))
    await delivered()
    await world.join("n")
    told = HeartbeatResponse.FromString(first[1].data)
    assert told.unasked
    assert told.assigned[0].partitions == [0]


async def test_a_bug_in_the_leader_is_an_error_for_whoever_asked() -> None:
    world = World()
    await world.until_active()
    world.led.refusal = TidelogError(Code.INTERNAL, "a bug")
    assert refusal(await world.join()) is Code.INTERNAL


async def test_a_long_log_is_read_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch of it has more records than are taken up in one turn of the loop."""
    led = Led()
    builder = BatchBuilder()
    for number in range(3000):
        record = CursorRecord(version=1, value=b"x" * 100)
        builder.add_record(record.SerializeToString(), CursorKey(f"c{number}").encode())
    led.store(builder.build(1))
    replayed: list[int] = [0]
    replay = GroupShard.replay

    def counted(shard: GroupShard, key: bytes, value: bytes | None) -> None:
        replayed[-1] += module.RECORD_BYTES + len(value or b"")
        replay(shard, key, value)

    monkeypatch.setattr(GroupShard, "replay", counted)
    world = World(led)
    while not world.coordinator.shard.cursors.known:  # type: ignore[attr-defined] # it is one of groups
        await asyncio.sleep(0)
        replayed.append(0)
    assert sum(replayed) > 5 * module.REPLAYED_AT_ONCE
    assert max(replayed) < module.REPLAYED_AT_ONCE + 1000
    led.end()
