"""The answers of a leader's driver, and its reports of the disk."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from dataplane.broker.leading.appending import PublishCounters
from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.broker.leading.leader_driver import LeaderDriver, begin_leader_epoch
from dataplane.broker.replica import Replica
from dataplane.broker.roles.request_prologue import RequestCounters
from dataplane.broker.roles.role import RoleCounters
from dataplane.log.partition_log import LogConfig
from dataplane.log.storage.log_errors import LogDamaged
from dataplane.replica.leader.append_rules import ClientBatch
from dataplane.replica.replica_effects import ProposeIsr
from dataplane.replica.replies import LocalReply
from tests.unit.dataplane.broker.role_bench import EPOCH, HOME, Bench, view
from tests.views import KEY, A, B
from wire.batch import BatchBuilder, Compression, ReceivedBatch
from wire.durability import DURABLE, Durability
from wire.errors import Code, TidelogError
from wire.messaging.transport import BulkHandler, Message
from wire.partition_messages.append import encode_append
from wire.partition_messages.liftbridge_envelope import MAGIC, decode_ack, encode_publish
from wire.partition_messages.replication import HEADER_SIZE, LOG_START_HEADER, encode_header
from wire.protobuf.tidelog_pb2 import AckPolicy, AppendRequest, FetchRequest, PartitionNotification, ReplicationRequest
from wire.protobuf.tidelog_pb2 import Message as Envelope
from wire.types import Incarnation, IsrChange, IsrMember, LeaderEpoch, Offset, PartitionEpoch, PartitionView


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(asyncio.get_running_loop())
    with ThreadPoolExecutor(1) as executor:
        bench.context.executor = bench.context.readers = executor
        yield bench


async def driver(bench: Bench, view: PartitionView) -> LeaderDriver:
    """One that has not been started."""
    await begin_leader_epoch(bench.context, view, bench.log)
    return LeaderDriver(bench.setup(view))


async def lead(bench: Bench, *, durability: Durability = DURABLE) -> LeaderDriver:
    role = await driver(bench, view(A, durability=durability))
    await role.start()
    return role


def publish(bench: Bench, value: bytes, reply: bytes) -> None:
    ingest = bench.ingest.subscribed["s"]
    ingest.on_messages([value], [reply], [None])
    ingest.chunk_done()


def answers(bench: Bench) -> list[bytes]:
    return [data for subject, data, _ in bench.control.sent if not subject]


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_a_durable_publish_is_acknowledged_once_it_is_synced_at_once(bench: Bench) -> None:
    role = await lead(bench)
    publish(bench, b"one", b"reply.1")
    assert answers(bench) == []
    await turn()
    assert bench.log.durable_end == 1
    assert [b"reply.1" in answer for answer in answers(bench)] == [True]
    await role.end("over")


async def test_each_publish_of_a_batch_that_came_in_several_pieces_is_told_its_own_offset(bench: Bench) -> None:
    role = await lead(bench)
    publish(bench, b"before", b"reply.0")
    await turn()
    ingest = bench.ingest.subscribed["s"]
    ingest.on_messages([b"one", b"two"], [b"reply.1", b"reply.2"], [None, None])
    ingest.on_messages([b"plain", b"plain"], [None, None], [None, None])
    ingest.on_messages([b"five"], [b"reply.5"], [None])
    ingest.chunk_done()
    await turn()
    told = b"".join(answers(bench))
    offsets = {
        f"reply.{n}": int(told.split(b"PUB reply.%d " % n)[1].split(b'"offset":')[1].split(b"}")[0])
        for n in (0, 1, 2, 5)
    }
    assert offsets == {"reply.0": 0, "reply.1": 1, "reply.2": 2, "reply.5": 5}
    await role.end("over")


async def test_a_durable_publish_waits_for_the_thread_that_syncs_it(bench: Bench) -> None:
    bench.syncer.is_quick = False
    role = await lead(bench)
    publish(bench, b"one", b"reply.1")
    await turn()
    assert answers(bench) == []
    bench.syncer.asked.pop()(bench.log.sync())
    assert [b"reply.1" in answer for answer in answers(bench)] == [True]
    await role.end("over")


async def test_a_durable_publish_whose_sync_fails_is_never_acknowledged(bench: Bench) -> None:
    role = await lead(bench)
    bench.disk.failing_syncs = 1
    publish(bench, b"one", b"reply.1")
    await turn()
    assert len(bench.withdrawn) == 1
    await role.end("over")
    assert answers(bench) == []
    assert [h["Tidelog-Error"] for subject, _, h in bench.control.sent if subject == "reply.1" and h] == [
        "OUTCOME_UNKNOWN"
    ]


async def test_an_answer_that_no_message_has_room_for_is_an_error_to_the_requester(bench: Bench) -> None:
    """An older version's compaction made batches larger than they were, and max_payload may be lowered."""
    role = await driver(bench, view(A, B))
    await role.start()
    publish(bench, b"." * 5000, b"reply.1")
    await turn()
    bench.control.max_payload = bench.ingest.max_payload = 3000
    key, subjects = role.view.key, bench.context.subjects
    asked = ReplicationRequest(
        replicaID=B,
        leaderEpoch=role.leader_epoch,
        sequence=1,
        broker_incarnation=1,
        stream_incarnation=key.stream_incarnation,
        partition_incarnation=key.partition_incarnation,
    )
    bench.control.subscribed[subjects.replicate(key.stream, key.partition)](
        Message("", asked.SerializeToString(), "inbox.b")
    )
    bench.control.max_payload = bench.ingest.max_payload = 1 << 20
    asked.offset, asked.durable_offset, asked.sequence = 1, 1, 2
    bench.control.subscribed[subjects.replicate(key.stream, key.partition)](
        Message("", asked.SerializeToString(), "inbox.c")
    )
    bench.control.max_payload = bench.ingest.max_payload = 3000
    assert role.high_watermark == 1
    read = FetchRequest(offset=0, max_bytes=1 << 20, max_wait_ms=10)
    bench.ingest.subscribed[subjects.fetch(key.stream, key.partition)](Message("", read.SerializeToString(), "inbox.d"))
    told = {subject: (data, headers) for subject, data, headers in (*bench.control.sent, *bench.ingest.sent)}
    for inbox, body in (("inbox.b", encode_header(role.leader_epoch, Offset(0))), ("inbox.d", b"")):
        data, headers = told[inbox]
        assert data == body
        assert headers is not None
        error = TidelogError.from_headers(headers)
        assert error is not None
        assert error.code is Code.MESSAGE_TOO_LARGE
        assert f"what lies at offset 0 of {key}" in error.message
        assert "raise max_payload" in error.message
    assert bench.context.the(RoleCounters).answers_too_large == 2
    await role.end("over")


# R82: a follower learns the start from whichever answer it gets.
@pytest.mark.parametrize("is_cold", [False, True])
async def test_an_answer_with_records_reports_a_log_start_that_has_risen(bench: Bench, is_cold: bool) -> None:
    role = await driver(bench, view(A, B))
    await role.start()
    for value in (b"one", b"two"):
        publish(bench, value, b"reply")
        await turn()
        bench.log.roll()
    bench.log.sync()
    bench.log.remove_before(Offset(1))
    role.on_log_start()
    if is_cold:
        bench.log._state.tail.empty()
    assert (bench.log.read(Offset(1), max_bytes=1, end_offset=Offset(2)) is None) == is_cold
    key = role.view.key
    asked = ReplicationRequest(
        replicaID=B,
        offset=1,
        durable_offset=1,
        leaderEpoch=role.leader_epoch,
        sequence=1,
        broker_incarnation=1,
        stream_incarnation=key.stream_incarnation,
        partition_incarnation=key.partition_incarnation,
    )
    subject = bench.context.subjects.replicate(key.stream, key.partition)
    bench.control.subscribed[subject](Message(subject, asked.SerializeToString(), "inbox.b"))
    for _ in range(1000):
        if any(inbox == "inbox.b" for inbox, _, _ in bench.control.sent):
            break
        await asyncio.sleep(0.001)
    ((data, headers),) = [(data, headers) for inbox, data, headers in bench.control.sent if inbox == "inbox.b"]
    assert len(data) > HEADER_SIZE, "there are records in it"
    assert headers == {LOG_START_HEADER: "1"}
    await role.end("over")


@pytest.mark.parametrize(("is_crowded", "ends"), [(False, [1, 2, 2]), (True, [1, 1, 2])])
async def test_where_many_logs_wait_for_the_disk_a_batch_grows_until_the_last_one_is_synced(
    bench: Bench, is_crowded: bool, ends: list[int]
) -> None:
    bench.syncer.is_quick, bench.syncer.is_crowded = False, is_crowded
    role = await driver(bench, view(A, B))
    await role.start()
    key = role.view.key
    seen = []
    publish(bench, b"one", b"reply.1")
    await turn()
    seen.append(bench.log.log_end_offset)
    publish(bench, b"two", b"reply.2")
    request = ReplicationRequest(
        replicaID=B,
        offset=1,
        durable_offset=0,
        leaderEpoch=role.leader_epoch,
        sequence=1,
        broker_incarnation=1,
        stream_incarnation=key.stream_incarnation,
        partition_incarnation=key.partition_incarnation,
    )
    subject = bench.context.subjects.replicate(key.stream, key.partition)
    bench.control.subscribed[subject](Message(subject, request.SerializeToString(), "inbox.b"))
    seen.append(bench.log.log_end_offset)
    bench.syncer.asked.pop(0)(bench.log.sync())
    seen.append(bench.log.log_end_offset)
    assert seen == ends
    await role.end("over")


def serves(role: LeaderDriver) -> bool:
    """As of now; a type checker takes a property for constant."""
    return role.is_serving


async def test_a_leader_serves_once_it_is_heard_and_while_it_has_a_lease(bench: Bench) -> None:
    role = await driver(bench, view(A))
    asked, heard = asyncio.Event(), asyncio.Event()
    subscribe = bench.ingest.subscribe_bulk

    async def slow(subject: str, handler: BulkHandler) -> Any:
        asked.set()
        await heard.wait()
        return await subscribe(subject, handler)

    bench.ingest.subscribe_bulk = slow  # type: ignore[method-assign]
    beginning = asyncio.get_running_loop().create_task(role.start())
    await asked.wait()
    await turn()
    assert not serves(role)
    heard.set()
    await beginning
    assert serves(role)
    bench.has_lease = False
    assert not serves(role)
    bench.has_lease = True
    await role.end("over")
    assert not serves(role)


async def test_a_leader_without_a_lease_tells_no_progress(bench: Bench) -> None:
    replica = Replica(KEY, HOME, LogConfig(), files=bench.disk)
    replica.role = await lead(bench)
    assert replica.status()["replicas_progress"] is not None
    bench.has_lease = False
    assert replica.status()["replicas_progress"] is None
    await replica.role.end("over")


async def test_a_leader_says_so_when_it_begins_and_when_its_connection_is_back(bench: Bench) -> None:
    role = await driver(bench, view(A, B))
    await role.start()
    notify = bench.context.subjects.notify(B)
    assert [subject for subject, _, _ in bench.control.sent] == [notify]
    assert PartitionNotification.FromString(bench.control.sent[0][1]).leader_epoch == role.leader_epoch
    role.on_connection(False)
    assert len(bench.control.sent) == 1
    role.on_connection(True)
    assert [subject for subject, _, _ in bench.control.sent] == [notify, notify]
    await role.end("over")


def refusals(bench: Bench) -> list[tuple[str, str, str | None]]:
    """(address, code, reason) of every error that was sent, in order."""
    told = []
    for subject, data, headers in bench.control.sent:
        if headers and "Tidelog-Error" in headers:
            told.append((subject, headers["Tidelog-Error"], headers.get("Tidelog-Reason")))
        elif data.startswith(MAGIC):
            told.append((subject, decode_ack(data).errorCode, None))
    return told


def publish_in_all_ways(bench: Bench, role: LeaderDriver, leader_epoch: int) -> None:
    """One bare request, one envelope, one `.append`."""
    publish(bench, b"one", b"bare")
    publish(bench, encode_publish(Envelope(value=b"two", ackInbox="envelope", ackPolicy=AckPolicy.ALL)), b"unused")
    builder = BatchBuilder()
    builder.add_record(b"three")
    key = role.view.key
    request = encode_append(
        AppendRequest(leader_epoch=leader_epoch), builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0]
    )
    subject = bench.context.subjects.append(key.stream, key.partition)
    bench.ingest.subscribed[subject](Message(subject, b"".join(request), "append"))


@pytest.mark.parametrize("reply", ["append", None])
async def test_of_appends_above_the_quota_records_are_dropped_where_nobody_is_told(
    bench: Bench, reply: str | None
) -> None:
    led = view(A)
    role = await driver(bench, replace(led, config=replace(led.config, producer_record_rate=3)))
    await role.start()
    subject = bench.context.subjects.append(role.view.key.stream, role.view.key.partition)
    for _ in range(3):
        builder = BatchBuilder()
        for _ in range(5):
            builder.add_record(b"x")
        batch = builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0]
        request = b"".join(encode_append(AppendRequest(acks=AppendRequest.NONE), batch))
        bench.ingest.subscribed[subject](Message(subject, request, reply))
    counters = bench.context.the(PublishCounters)
    assert bench.log.log_end_offset == 5
    assert (counters.dropped_over_quota, counters.appends_over_quota) == ((0, 2) if reply else (10, 0))
    for told in (bench.context.traffic.report(bench.context.now()), role.traffic.report(bench.context.now())):
        assert (told["records_in"], told["bytes_in"]) == (5, bench.log.size_bytes), "what was refused came not in"
    await role.end("over")


@pytest.mark.parametrize("leader_epoch", [0, EPOCH])
async def test_a_leader_that_may_be_deposed_never_says_that_nothing_was_stored(bench: Bench, leader_epoch: int) -> None:
    """A bare request and an envelope reach a successor as well, an `.append` if it does not name its LeaderEpoch."""
    role = await driver(bench, view(A, B, min_isr=2))
    await role.start()
    role.on_view(replace(view(A, B, min_isr=2), isr=(A,), epoch=PartitionEpoch(2)))
    publish_in_all_ways(bench, role, leader_epoch)
    unknown = ("append", "OUTCOME_UNKNOWN", "NOT_ENOUGH_REPLICAS")
    assert refusals(bench) == [
        ("bare", "OUTCOME_UNKNOWN", "NOT_ENOUGH_REPLICAS"),
        ("envelope", "OUTCOME_UNKNOWN", None),
        ("append", "NOT_ENOUGH_REPLICAS", None) if leader_epoch else unknown,
    ]
    assert bench.log.log_end_offset == 0
    await role.end("over")


async def test_without_a_lease_only_an_append_that_names_its_leader_epoch_is_refused(bench: Bench) -> None:
    role = await driver(bench, view(A, B, min_isr=2))
    await role.start()
    role.on_view(replace(view(A, B, min_isr=2), isr=(A,), epoch=PartitionEpoch(2)))
    bench.has_lease = False
    publish_in_all_ways(bench, role, 0)
    publish(bench, MAGIC + b"nothing that decodes", b"corrupt")
    assert refusals(bench) == []
    publish_in_all_ways(bench, role, EPOCH)
    assert refusals(bench) == [("append", "NOT_ENOUGH_REPLICAS", None)]
    await role.end("over")


async def test_refusals_common_to_all_leaders_are_final_inside_the_lease(bench: Bench) -> None:
    role = await driver(bench, view(A, B))
    await role.start()
    publish(bench, b"x" * (2 << 20), b"bare")
    publish(bench, MAGIC + b"nothing that decodes", b"corrupt")
    assert refusals(bench) == [("bare", "RECORD_TOO_LARGE", None), ("corrupt", "CORRUPT_ENVELOPE", None)]
    await role.end("over")


async def test_a_full_disk_of_the_only_replica_is_said_as_it_is(bench: Bench) -> None:
    """No other broker can lead."""
    for replicas, code in (((A,), "NO_SPACE"), ((A, B), "OUTCOME_UNKNOWN")):
        bench.control.sent.clear()
        role = await driver(bench, view(*replicas))
        await role.start()
        role.on_space(True)
        publish(bench, b"one", b"bare")
        assert [code for _, code, _ in refusals(bench)] == [code]
        await role.end("over")


async def test_at_the_end_of_leadership_bare_publishes_have_an_unknown_outcome_inside_the_lease_only(
    bench: Bench,
) -> None:
    for has_lease in (True, False):
        bench.control.sent.clear()
        bench.has_lease = has_lease
        role = await driver(bench, view(A, B, min_isr=2))
        await role.start()
        publish_in_all_ways(bench, role, EPOCH)
        await role.end("over")
        told = {(to, code) for to, code, _ in refusals(bench)}
        everybody = {(to, "OUTCOME_UNKNOWN") for to in ("bare", "envelope", "append")}
        assert told == (everybody if has_lease else {("append", "OUTCOME_UNKNOWN")})


async def test_records_that_were_not_appended_are_refused_and_counted_at_the_end_of_leadership(bench: Bench) -> None:
    bench.syncer.is_quick = False
    role = await lead(bench)
    publish(bench, b"first", b"first")
    assert bench.log.log_end_offset == 1
    ingest = bench.ingest.subscribed["s"]
    ingest.on_messages([b"id", b"again"], [b"id", b"again"], identified("i", "i"))
    ingest.on_messages([b"plain"] * 20, [None] * 20, [None] * 20)
    envelope = encode_publish(Envelope(value=b"two", ackInbox="envelope", ackPolicy=AckPolicy.ALL))
    ingest.on_messages([envelope], [None], [None])
    await role.end("over")
    assert bench.log.log_end_offset == 1
    refused = [(to, code) for to, code, _ in refusals(bench) if to != "first"]
    assert refused == [(to, "OUTCOME_UNKNOWN") for to in ("id", "again", "envelope")]
    assert bench.context.the(PublishCounters).dropped_refused == 23


async def test_requests_of_another_clusters_clients_are_left_to_its_leader(bench: Bench) -> None:
    """Both clusters are in one namespace; stream and incarnations are the same by chance."""
    bench.context.cluster_id = "ours"
    role = await driver(bench, view(A))
    await role.start()
    key, subjects = role.view.key, bench.context.subjects
    builder = BatchBuilder()
    builder.add_record(b"v")
    batch = builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0]
    for cluster, answers in (("theirs", 0), ("ours", 3), ("", 6)):
        fetch = FetchRequest(cluster_id=cluster, earliest=True).SerializeToString()
        append = b"".join(encode_append(AppendRequest(cluster_id=cluster, acks=AppendRequest.LEADER), batch))
        bench.ingest.subscribed[subjects.fetch(key.stream, key.partition)](Message("", fetch, "inbox.f"))
        bench.ingest.subscribed[subjects.leader(key.stream, key.partition)](Message("", fetch, "inbox.l"))
        bench.ingest.subscribed[subjects.append(key.stream, key.partition)](Message("", append, "inbox.a"))
        await turn()
        told = [subject for subject, _, _ in (*bench.control.sent, *bench.ingest.sent) if subject.startswith("inbox.")]
        assert len(told) == answers, cluster
    assert bench.context.the(RequestCounters).requests_of_other_clusters == 3
    assert bench.log.log_end_offset == 2
    await role.end("over")


async def test_whoever_asks_for_the_leader_gets_no_records(bench: Bench) -> None:
    role = await lead(bench)
    publish(bench, b"secret", b"reply.1")
    await turn()
    assert role.high_watermark == 1
    key, subjects = role.view.key, bench.context.subjects
    for asked in (
        FetchRequest(earliest=True),
        FetchRequest(offset=0, max_bytes=1 << 20),
        FetchRequest(earliest=True, max_bytes=1 << 20, max_wait_ms=100),
        FetchRequest(timestamp=0, max_bytes=1 << 20),
    ):
        bench.ingest.subscribed[subjects.leader(key.stream, key.partition)](
            Message("", asked.SerializeToString(), "inbox.l")
        )
    told = [data for subject, data, _ in (*bench.control.sent, *bench.ingest.sent) if subject == "inbox.l"]
    assert told == [encode_header(role.leader_epoch, Offset(1))] * 4
    await role.end("over")


async def test_a_batch_that_waits_for_the_decoding_thread_keeps_no_role_from_its_end(bench: Bench) -> None:
    role = await lead(bench)
    builder = BatchBuilder()
    builder.add_values([bytes(1000)] * 1000)
    heavy = builder.build(1, compression=Compression.ZSTD).stamp(Offset(0), LeaderEpoch(0))[0]
    request = encode_append(AppendRequest(leader_epoch=EPOCH, acks=AppendRequest.LEADER), heavy)
    subject = bench.context.subjects.append(KEY.stream, KEY.partition)
    busy = Event()
    with ThreadPoolExecutor(1) as decoders:
        bench.context.decoders = decoders
        decoders.submit(busy.wait, 10)
        try:
            bench.ingest.subscribed[subject](Message(subject, b"".join(map(bytes, request)), "inbox"))
            await turn()
            await asyncio.wait_for(role.end("over"), 5)
            assert not busy.is_set()
        finally:
            busy.set()
    await turn()
    assert refusals(bench) == [("inbox", "NOT_LEADER", None)]
    assert bench.log.log_end_offset == 0


async def test_a_leadership_that_has_ended_stores_nothing_more(bench: Bench) -> None:
    """Also not what comes before the end is carried out: the batch whose turn comes, and those of this process."""
    role = await lead(bench)
    builder = BatchBuilder()
    builder.add_record(b"late")
    parts = builder.build(1).stamp(Offset(0), LeaderEpoch(0))[0]
    ending = role.begin_to_end("over")
    publish(bench, b"late", b"bare")
    batch = ClientBatch("append", 1 << 20, AppendRequest(leader_epoch=EPOCH), memoryview(b"".join(map(bytes, parts))))
    role._append_requests._take(batch)
    outcomes: list[TidelogError | None] = []
    role._appending.append_local(ReceivedBatch(batch.buffer).decode(), 5.0, LocalReply(outcomes.append))
    assert refusals(bench) == [("append", "NOT_LEADER", None)], "another leader answers the bare publish"
    assert [error and error.code for error in outcomes] == [Code.NOT_LEADER]
    assert bench.log.log_end_offset == 0
    await ending


def identified(*ids: str) -> list[bytes | None]:
    return [f"NATS/1.0\r\nNats-Msg-Id: {each}\r\n\r\n".encode() for each in ids]


async def test_new_ids_above_the_bound_are_refused_and_repetitions_are_answered(bench: Bench) -> None:
    bench.context.settings = replace(bench.context.settings, max_message_ids=3, max_message_ids_of_all=2)
    role = await lead(bench)
    ingest = bench.ingest.subscribed["s"]
    ingest.on_messages([b"v"] * 4, [b"a", b"b", b"c", b"d"], identified("1", "2", "3", "1"))
    ingest.chunk_done()
    role._run(role.core.on_synced(role.log.log_end_offset, 0.0))
    assert role.log.log_end_offset == 2
    assert bench.context.the(BoundsOfAll).message_ids.count == 2
    refused = [(subject, headers) for subject, _, headers in bench.control.sent if subject]
    assert [(subject, (headers or {})["Tidelog-Limit"]) for subject, headers in refused] == [("c", "message_ids")]
    await role.end("it is over")
    assert bench.context.the(BoundsOfAll).message_ids.count == 0, "the next leader counts them"


async def test_a_change_of_the_isr_is_logged_once_however_often_it_is_proposed(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level("INFO")
    role = await lead(bench)
    asked: list[IsrChange] = []
    monkeypatch.setattr(bench.context.metadata, "alter_isr", asked.append, raising=False)
    change = IsrChange(
        key=KEY,
        leader=A,
        leader_epoch=EPOCH,
        expected_epoch=PartitionEpoch(3),
        new_isr=(IsrMember(A, Incarnation(1)),),
        reason="B lags",
    )
    for proposed in (change, change, replace(change, expected_epoch=PartitionEpoch(4)), change):
        role._run([ProposeIsr(proposed)])
    told = [each.getMessage() for each in caplog.records if "proposes ISR" in each.getMessage()]
    assert (len(told), len(asked)) == (3, 4)


async def test_an_id_is_forgotten_with_its_record(bench: Bench) -> None:
    """An answer that names a record which was deleted would acknowledge what is not there. Every replica knows by the
    metadata which records were deleted, so the next leader says the same."""
    role = await lead(bench)
    ingest = bench.ingest.subscribed["s"]

    def publish(*ids: str) -> None:
        ingest.on_messages([b"v"] * len(ids), [b"r"] * len(ids), identified(*ids))
        role._appending.seal()

    publish("1", "2", "1")
    assert role.log.log_end_offset == 2
    role.on_view(replace(role.view, purged_end=Offset(2), epoch=PartitionEpoch(2)))
    expecting = b"NATS/1.0\r\nNats-Expected-Last-Msg-Id: 2\r\n\r\n"
    ingest.on_messages([b"v"], [b"r"], [expecting])
    assert role.log.log_end_offset == 2, "the last record has no id: it was deleted"
    publish("1")
    assert role.log.log_end_offset == 3
    publish("1", "1", "2", "2")
    assert role.log.log_end_offset == 4


@pytest.mark.parametrize("sizes", [[1000], [1000, 1001]])
async def test_a_disk_that_fails_amid_messages_received_together_drops_the_rest_of_them(
    bench: Bench, sizes: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The batch that fails is not the last that they fill: the next one is never appended, and makes room all the
    same. Records without a reply have no other word of their loss than the log."""
    bench.ingest.max_payload = bench.control.max_payload = 64 << 10
    role = await lead(bench)
    appends = 0

    def fails(*_: object) -> None:
        nonlocal appends
        appends += 1
        raise LogDamaged("EIO")

    bench.context.space.append = fails  # type: ignore[method-assign, assignment]
    payloads = [b"x" * size for size in sizes] * 500
    bench.ingest.subscribed["s"].on_messages(payloads, [None] * len(payloads), [None] * len(payloads))
    bench.ingest.subscribed["s"].chunk_done()
    assert role.ended
    assert appends == 1
    assert bench.context.the(PublishCounters).dropped_refused == len(payloads)
    lines = [record for record in caplog.messages if "published records" in record]
    assert sum(int(re.findall(r"dropped (\d+)", line)[0]) for line in lines) == len(payloads)
    await role.end("over")


async def test_an_end_of_leadership_that_meets_a_bug_ends_what_waits_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = await lead(bench)
    monkeypatch.setattr(role._appending, "abandon", lambda _: 1 / 0)
    ended: list[str] = []
    monkeypatch.setattr(role._append_requests, "abandon", ended.append)
    with pytest.raises(ZeroDivisionError):
        await role._let_go("over")
    assert ended == ["over"]
    assert "resigns: over" in str(role.core._state.history)


async def test_only_a_leader_that_hears_its_followers_holds_their_fetches(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = await driver(bench, view(A, B))
    asked: list[int] = []

    def on_parked(*numbers: Any) -> bool:
        asked.append(numbers[3])
        return True

    monkeypatch.setattr(role.core, "on_parked", on_parked)
    assert not role.holds(B, Incarnation(1), EPOCH, 1)
    await role.start()
    assert role.holds(B, Incarnation(1), EPOCH, 2)
    ending = role.begin_to_end("deposed")
    assert not role.holds(B, Incarnation(1), EPOCH, 3)
    await ending
    assert asked == [2]
