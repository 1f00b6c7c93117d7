"""What coordinators do when something fails: appends, reads, the shard, answers, and requests that are none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.fake_nats import FakeTransport, Hub, delivered
from tests.tickets import producer_keys
from tests.unit.tidelog.server.coordinators.groups.groups_world import check_ticket, view
from tidelog.server.coordinators.driver import coordinator as module
from tidelog.server.coordinators.driver.coordinator import Coordinator, CoordinatorCounters
from tidelog.server.coordinators.driver.coordinator_kinds import groups_and_cursors
from tidelog.server.coordinators.groups import consumer_group as group_module
from tidelog.server.coordinators.groups.group_shard import GroupShard
from tidelog.server.coordinators.known_streams import StreamsView
from wire.batch import BatchBuilder, EncodedBatch, RecordBatch
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import COMMIT, HEARTBEAT, KINDS, OFFSETS, coordinator_partition
from wire.messaging.transport import Message
from wire.protobuf.groups_pb2 import (
    CommitRequest,
    CommittedOffset,
    HeartbeatRequest,
    HeartbeatResponse,
    OffsetsRequest,
    OffsetsResponse,
    Subscription,
)
from wire.subjects import Subjects
from wire.types import Buffer, Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

SUBJECTS = Subjects()
GROUP = "g"
PARTITION = coordinator_partition(GROUP)
CLUSTER = "c1"
NOT_LEADER = TidelogError(Code.NOT_LEADER, "deposed")


class Led:
    """A led partition whose commits and failures a test decides."""

    def __init__(self, log: list[bytes] | None = None) -> None:
        self.key = PartitionKey(StreamName("__groups"), Incarnation(1), PARTITION, Incarnation(1))
        self.subject = f"tidelog.__groups.{PARTITION}"
        self.leader_epoch = LeaderEpoch(3)
        self.log_start_offset = Offset(0)
        self.max_batch_bytes = 1 << 20
        self.log = log if log is not None else []
        self.committing: list[Callable[[TidelogError | None], None]] = []
        self.committed = len(self.log)
        self.commits_at_once = True
        self.refusal: TidelogError | None = None
        self.refuses_after: int | None = None
        """Appends that are still taken."""
        self.appends = 0
        self.pending: list[Callable[[TidelogError | None], None]] = []
        self.damage: Exception | None = None
        self.ended: list[Callable[[], None]] = []

    @property
    def committed(self) -> int:
        """Batches below the HW."""
        return self._committed

    @committed.setter
    def committed(self, batches: int) -> None:
        self._committed = batches
        if batches == len(self.log):
            waiting, self.committing = self.committing, []
            for done in waiting:
                done(None)

    def _end_of(self, batches: int) -> Offset:
        return Offset(sum(RecordBatch.decode(data).header.record_count for data in self.log[:batches]))

    @property
    def log_end_offset(self) -> Offset:
        return self._end_of(len(self.log))

    @property
    def high_watermark(self) -> Offset:
        return self._end_of(self.committed)

    async def read_committed(self, offset: Offset) -> Sequence[Buffer]:
        if self.damage is not None:
            raise self.damage
        return [data for data in self.log[: self.committed] if RecordBatch.decode(data).header.end_offset > offset][:2]

    def append(self, batch: EncodedBatch, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        self.appends += 1
        if self.refusal is not None or self.refuses_after == 0:
            done(self.refusal or NOT_LEADER)
            return
        if self.refuses_after is not None:
            self.refuses_after -= 1
        parts, header = batch.stamp(self.log_end_offset, self.leader_epoch)
        assert header.size <= self.max_batch_bytes
        self.log.append(b"".join(parts))
        if self.commits_at_once:
            self.committed = len(self.log)
            done(None)
        else:
            self.pending.append(done)

    def commit(self) -> None:
        self.committed = len(self.log)
        pending, self.pending = self.pending, []
        for done in pending:
            done(None)

    def fail(self, error: TidelogError = NOT_LEADER, *, kept: bool) -> None:
        """`kept`: the records stay in the log nevertheless, and are committed."""
        if not kept:
            del self.log[self.committed :]
        self.committed = len(self.log)
        pending, self.pending = self.pending, []
        for done in pending:
            done(error)

    def on_committed(self, end: Offset, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        self.committing.append(done)

    def on_end(self, handler: Callable[[], None]) -> None:
        self.ended.append(handler)

    def end(self) -> None:
        for handler in self.ended:
            handler()

    @property
    def records(self) -> list[tuple[bytes | None, bytes | None]]:
        return [
            record
            for data in self.log
            for batch in [RecordBatch.decode(data)]
            for record in zip(batch.keys, batch.values, strict=True)
        ]


class Ports:
    broker = "b1"
    cluster_id = CLUSTER
    subjects = SUBJECTS

    def __init__(self, hub: Hub) -> None:
        self.clients = FakeTransport(hub)
        self.peers = FakeTransport(hub)
        self.offset = 0.0
        self.has_lease = True
        self.view = view(s=(1, 4))
        self.counters = CoordinatorCounters()

    def now(self) -> float:
        return asyncio.get_running_loop().time() + self.offset

    def time_ns(self) -> int:
        return 10**18

    def agreed_time_ns(self) -> int:
        return self.time_ns()

    def lease_valid(self) -> bool:
        return self.has_lease

    def streams(self) -> StreamsView:
        return self.view


class Scene:
    def __init__(self, led: Led) -> None:
        self.hub = Hub()
        self.led = led
        self.ports = Ports(self.hub)
        self.client = FakeTransport(self.hub)
        self.answers: dict[str, list[Message]] = {}
        self.coordinator = self.begin()

    def begin(self) -> Coordinator:
        def make() -> GroupShard:
            return GroupShard(
                broker="b1", partition=PARTITION, patience=5.0, retention=1000.0, check_ticket=check_ticket
            )

        return Coordinator(self.led, self.ports, groups_and_cursors(make, producer_keys()))

    async def send(self, kind: str, data: bytes, name: str = GROUP, *, reply: bool = True) -> str:
        inbox = self.client.new_inbox()
        heard = self.answers[inbox] = []
        await self.client.subscribe(inbox, heard.append)
        subject = SUBJECTS.coordinator(StreamName("__groups"), PARTITION, kind, name)
        self.client.publish(subject, [data], reply=inbox if reply else None)
        await delivered()
        return inbox

    def answer(self, inbox: str) -> Any:
        """The last; None: there is none."""
        if not self.answers[inbox]:
            return None
        message = self.answers[inbox][-1]
        return TidelogError.from_headers(message.headers) or message.data

    async def join(self, member: str = "a", **more: Any) -> str:
        request = HeartbeatRequest(
            group=GROUP,
            member=member,
            kind=HeartbeatRequest.JOIN,
            subscription=Subscription(streams=["s"]),
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            **more,
        )
        return await self.send(HEARTBEAT, request.SerializeToString())

    async def stay(self, member: str = "a", applied: int = 1) -> str:
        return await self.send(
            HEARTBEAT, HeartbeatRequest(group=GROUP, member=member, applied=applied).SerializeToString()
        )

    async def commit(self, offset: int, *, member: str = "a", generation: int = 1) -> str:
        offsets = [CommittedOffset(stream="s", incarnation=1, partition=0, offset=offset)]
        request = CommitRequest(group=GROUP, member=member, generation=generation, offsets=offsets)
        return await self.send(COMMIT, request.SerializeToString())

    async def offsets(self) -> str:
        return await self.send(OFFSETS, OffsetsRequest(group=GROUP).SerializeToString())

    async def committed(self) -> list[int]:
        return [each.offset for each in OffsetsResponse.FromString(self.answer(await self.offsets())).offsets]

    async def until_active(self) -> None:
        async with asyncio.timeout(30):
            while "ACTIVE" not in str(self.coordinator._state):  # noqa: ASYNC110 - the coordinator has no event for it
                await asyncio.sleep(0.005)


@asynccontextmanager
async def running(led: Led | None = None) -> AsyncIterator[Scene]:
    scene = Scene(led or Led())
    await delivered()
    try:
        yield scene
    finally:
        scene.led.end()
        await delivered()


def code(found: object) -> Code:
    assert isinstance(found, TidelogError), found
    return found.code


@pytest.mark.parametrize("kept", [False, True])
async def test_an_append_that_fails_is_answered_with_an_error_and_the_log_is_read_again(kept: bool) -> None:
    async with running() as scene:
        await scene.join()
        await scene.commit(1)
        scene.led.commits_at_once = False
        commit, later = await scene.commit(5), await scene.stay()
        scene.led.fail(kept=kept)
        scene.led.commits_at_once = True
        await delivered()
        assert code(scene.answer(commit)) is Code.NOT_LEADER
        assert code(scene.answer(later)) is Code.UNAVAILABLE
        await scene.until_active()
        assert await scene.committed() == [5 if kept else 1]


async def test_an_append_that_is_refused_at_once_changes_nothing() -> None:
    async with running() as scene:
        await scene.join()
        scene.led.refusal = TidelogError(Code.NO_SPACE, "full")
        assert code(scene.answer(await scene.commit(5))) is Code.NO_SPACE
        scene.led.refusal = None
        waits = await scene.offsets()  # while the log is read
        await scene.until_active()
        await delivered()
        assert scene.answer(waits) == b""


async def test_an_append_that_meets_a_bug_is_answered_with_internal() -> None:
    async with running() as scene:
        await scene.join()
        scene.led.refusal = TidelogError(Code.INTERNAL, "see the log")
        assert code(scene.answer(await scene.commit(5))) is Code.INTERNAL
        scene.led.refusal = None
        await scene.until_active()
        assert await scene.committed() == []


async def test_a_batch_that_ends_twice_counts_once() -> None:
    """The leader answers what it registered, after a bug behind that."""
    async with running() as scene:
        scene.led.commits_at_once = False
        join = await scene.join()
        (done,) = scene.led.pending
        done(TidelogError(Code.INTERNAL, "a bug"))
        await delivered()
        assert code(scene.answer(join)) is Code.INTERNAL
        scene.led.commit()
        await delivered()
        assert len(scene.answers[join]) == 1
        await scene.until_active()


async def test_a_bug_of_the_shard_is_answered_with_internal_and_the_log_is_read_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running() as scene:
        await scene.join()

        def fails(*_: object) -> None:
            raise KeyError("a bug")

        with monkeypatch.context() as patched:
            patched.setattr(scene.coordinator.shard, "_commit", fails, raising=False)
            patched.setattr(GroupShard, "_commit", fails)
            first = await scene.commit(1)
        assert code(scene.answer(first)) is Code.INTERNAL
        await scene.until_active()
        assert "met a bug" in caplog.text
        assert scene.answer(await scene.commit(2)) == b""


async def test_without_a_lease_nothing_is_told_that_is_no_commit() -> None:
    async with running() as scene:
        await scene.join()
        scene.ports.has_lease = False
        appends = scene.led.appends
        assert code(scene.answer(await scene.stay())) is Code.UNAVAILABLE
        assert scene.led.appends == appends
        scene.ports.has_lease = True
        assert HeartbeatResponse.FromString(scene.answer(await scene.stay())).generation == 1


async def test_offsets_are_told_after_a_commit_that_proves_the_leader_epoch() -> None:
    async with running() as scene:
        await scene.join()
        await scene.commit(7)
        scene.led.commits_at_once = False
        offsets, stranger = await scene.offsets(), await scene.stay("stranger")
        assert scene.answer(offsets) is scene.answer(stranger) is None
        scene.led.fail(kept=False)
        await delivered()
        assert code(scene.answer(offsets)) is Code.NOT_LEADER
        assert code(scene.answer(stranger)) is Code.UNAVAILABLE, "and not UNKNOWN_MEMBER"


async def test_requests_that_wait_when_the_leader_epoch_ends_are_refused() -> None:
    async with running() as scene:
        scene.led.commits_at_once = False
        on_its_way, waits = await scene.join(), await scene.join("b")
        scene.led.end()
        await delivered()
        assert code(scene.answer(waits)) is Code.UNAVAILABLE
        scene.led.fail(kept=False)
        await delivered()
        assert code(scene.answer(on_its_way)) is Code.NOT_LEADER
        assert scene.coordinator.is_over
        silence = await scene.stay()
        assert scene.answers[silence][-1].status is not None, "nobody listens any more"


async def test_a_commit_that_is_heard_of_after_the_end_is_told() -> None:
    async with running() as scene:
        scene.led.commits_at_once = False
        join = await scene.join()
        scene.led.end()
        scene.led.commit()
        await delivered()
        assert HeartbeatResponse.FromString(scene.answer(join)).generation == 1


async def test_loading_waits_until_all_of_the_log_is_committed() -> None:
    async with running() as before:
        await before.join()
        await before.commit(7)
        log = before.led.log
    led = Led(list(log))
    led.committed = 1
    async with running(led) as scene:
        waits = await scene.offsets()
        assert scene.answer(waits) is None
        scene.ports.offset = module.PATIENT_S + 1
        led.committing.pop()(TidelogError(Code.CONFIRM_TIMEOUT, "not yet"))
        async with asyncio.timeout(30):
            while scene.answer(waits) is None:  # noqa: ASYNC110 - the client has no event for it
                await asyncio.sleep(0.005)
        assert code(scene.answer(waits)) is Code.UNAVAILABLE
        assert code(scene.answer(await scene.offsets())) is Code.UNAVAILABLE, "at once, by now"
        led.committed = len(led.log)
        await scene.until_active()
        assert await scene.committed() == [7]


@pytest.mark.parametrize("damage", [TidelogError(Code.NO_KEY, "no key"), KeyError("a bug")])
async def test_a_log_that_cannot_be_read_is_tried_again(damage: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as before:
        await before.join()
        await before.commit(7)
        log = before.led.log
    led = Led(log)
    led.damage = damage
    async with running(led) as scene:
        scene.ports.offset = module.PATIENT_S + 1
        assert code(scene.answer(await scene.offsets())) is Code.UNAVAILABLE
        assert "cannot read its log" in caplog.text
        led.damage = None
        await scene.until_active()
        assert await scene.committed() == [7]


async def test_records_are_appended_in_batches_that_nats_carries() -> None:
    led = Led()
    led.max_batch_bytes = 4000
    async with running(led) as scene:
        led.commits_at_once = False
        await scene.join("first")
        inboxes = [await scene.join("m" * 50 + str(n), client="c" * 200) for n in range(40)]
        led.commit()
        await delivered()
        assert led.appends > 5
        assert not any(scene.answer(inbox) for inbox in inboxes)
        last = led.pending.pop()
        led.commit()
        await delivered()
        assert not any(scene.answer(inbox) for inbox in inboxes), "not before the last of them"
        last(None)
        await delivered()
        assert all(scene.answer(inbox) for inbox in inboxes)


async def test_no_further_batch_is_appended_behind_one_that_was_refused() -> None:
    led = Led()
    led.max_batch_bytes = 2000
    async with running(led) as scene:
        led.commits_at_once = False
        await scene.join("first")
        for n in range(20):
            await scene.join("m" * 50 + str(n))
        led.refusal = NOT_LEADER
        appends = led.appends
        led.commit()
        await delivered()
        assert led.appends == appends + 1
        led.refusal, led.commits_at_once = None, True
        await scene.until_active()
        shard = scene.coordinator.shard
        assert isinstance(shard, GroupShard)
        assert len(shard.groups[GROUP].members) == 1


async def test_what_a_later_batch_was_refused_for_may_have_been_done_by_the_first_one() -> None:
    led = Led()
    led.max_batch_bytes = 2000
    async with running(led) as scene:
        led.commits_at_once = False
        await scene.join("first")
        inboxes = [await scene.join("m" * 50 + str(n)) for n in range(20)]
        led.refuses_after = 1
        led.commit()
        await delivered()
        assert {code(scene.answer(inbox)) for inbox in inboxes} == {Code.OUTCOME_UNKNOWN}
        led.refuses_after, led.commits_at_once = None, True
        led.commit()
        await scene.until_active()
        shard = scene.coordinator.shard
        assert isinstance(shard, GroupShard)
        assert len(shard.groups[GROUP].members) > 1


async def test_the_bytes_of_the_queue_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_WAITING_BYTES", 300)
    async with running() as scene:
        scene.led.commits_at_once = False
        await scene.join()
        await scene.join("b", client="x" * 300)
        refused = await scene.stay()
        assert code(scene.answer(refused)) is Code.BACKPRESSURE
        assert scene.ports.counters.refused_requests == 1
        scene.led.commit()
        await delivered()
        scene.led.commit()
        await delivered()
        assert HeartbeatResponse.FromString(scene.answer(await scene.stay())).generation


async def test_refusals_for_a_limit_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "MAX_MEMBERS", 1)
    async with running() as scene:
        await scene.join()
        for name in ("b", "c"):
            assert code(scene.answer(await scene.join(name))) is Code.LIMIT_REACHED
        assert scene.ports.counters == CoordinatorCounters(refused_limits=2)


async def test_partitions_that_no_member_gets_are_in_the_log_and_in_the_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_module, "MAX_TARGET_BYTES", 33)  # of three partitions
    async with running() as scene:
        assert HeartbeatResponse.FromString(scene.answer(await scene.join())).left_out == 1
        (told,) = [record.message for record in caplog.records if record.levelname == "WARNING"]
        assert "1 partitions that group 'g' has subscribed to are beyond the limit of a group" in told
        await scene.stay()
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1


async def test_an_answer_that_nats_does_not_carry_is_an_error() -> None:
    async with running() as scene:
        await scene.join()
        await scene.commit(1)
        scene.ports.clients.max_payload = 5
        offsets = await scene.offsets()
        assert code(scene.answer(offsets)) is Code.MESSAGE_TOO_LARGE


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data", [b"\xff\xff\xff", b"", b"x" * (module.MAX_REQUEST_BYTES + 1), b"\n\x05other"])
async def test_requests_that_are_none_are_refused(kind: str, data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with running() as scene:
        assert code(scene.answer(await scene.send(kind, data))) is Code.BAD_REQUEST
        assert scene.led.log == []
        assert not [record for record in caplog.records if record.exc_info]


async def test_a_request_about_another_group_than_its_subject_names_is_refused() -> None:
    async with running() as scene:
        request = CommitRequest(
            group="other", offsets=[CommittedOffset(stream="s", incarnation=1, partition=0, offset=5)]
        )
        assert code(scene.answer(await scene.send(COMMIT, request.SerializeToString()))) is Code.BAD_REQUEST
        assert scene.led.log == []


async def test_a_client_of_another_cluster_hears_nothing() -> None:
    async with running() as scene:
        join = await scene.join(cluster_id="another")
        assert scene.answers[join] == []
        assert scene.answer(await scene.join(cluster_id=CLUSTER))


async def test_a_message_without_a_reply_does_nothing() -> None:
    async with running() as scene:
        request = CommitRequest(group=GROUP, offsets=[CommittedOffset(stream="s", incarnation=1, offset=5)])
        await scene.send(COMMIT, request.SerializeToString(), reply=False)
        assert scene.led.log == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{}",
        b'{"operation": "stream.delete", "request": {"stream": "s"}}',
        b'{"operation": "group.list", "request": 5}',
        b'{"operation": ["group.list"], "request": {}}',
        b'{"operation": "group.reset", "request": {"group": "g", "offsets": [{}]}}',
        b"x" * (module.MAX_ADMIN_BYTES + 1),
    ],
)
async def test_requests_of_the_controller_that_are_none_are_refused(data: bytes) -> None:
    async with running() as scene:
        subject = SUBJECTS.coordinate(StreamName("__groups"), PARTITION)
        scene.ports.peers.max_payload = 1 << 20
        answer = await scene.client.request(subject, data, timeout=5)
        assert code(TidelogError.from_headers(answer.headers)) is Code.BAD_REQUEST


async def test_an_error_that_comes_at_once_while_the_log_is_awaited_does_not_hold_up_the_loop() -> None:
    led = Led()
    builder = BatchBuilder()
    builder.add_record(b"v", key=b"k")
    led.commits_at_once = False
    led.append(builder.build(1), 1.0, lambda _: None)
    asked = 0

    def refuse(end: Offset, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        nonlocal asked
        asked += 1
        done(TidelogError(Code.INTERNAL, "a bug, which is in the log"))

    led.on_committed = refuse  # type: ignore[method-assign]
    async with running(led):
        for _ in range(20):
            await asyncio.sleep(0)
        assert asked == 1
