"""Transactional batches and the ends of transactions at one leader."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dataplane.broker.leading import transaction_marks
from dataplane.broker.leading.appending import PublishCounters
from dataplane.broker.leading.bounds_of_all import BoundsOfAll, ProducersOfAll
from dataplane.broker.leading.leader_driver import LeaderDriver, begin_leader_epoch
from dataplane.broker.roles.request_prologue import RequestCounters
from dataplane.encryption.keyring import Keyring
from tests.tickets import add_proof_of, tickets
from tests.unit.dataplane.broker.role_bench import Bench, view
from tests.views import KEY, A, B
from wire.batch import BatchBuilder, ControlType, EncodedBatch, Marker, decode_control, iter_batches, with_message_id
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.messaging.transport import Message
from wire.partition_messages.append import encode_append
from wire.protobuf.tidelog_pb2 import AppendRequest, AppendResponse, EndTransactionRequest
from wire.security.tickets import partition_target
from wire.subjects import Subjects
from wire.types import (
    FIRST_TRANSACTIONAL_ID,
    NO_PRODUCER,
    LeaderEpoch,
    Offset,
    PartitionEpoch,
    PartitionKey,
    PartitionView,
    StreamName,
)

ONE = FIRST_TRANSACTIONAL_ID
TARGET = partition_target(KEY.stream, KEY.stream_incarnation, KEY.partition, KEY.partition_incarnation)


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    bench = Bench(asyncio.get_running_loop())
    with ThreadPoolExecutor(1) as executor:
        bench.context.executor = executor
        yield bench


async def lead(bench: Bench, seen: PartitionView) -> LeaderDriver:
    await begin_leader_epoch(bench.context, seen, bench.log)
    role = LeaderDriver(bench.setup(seen))
    await role.start()
    return role


async def turn() -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def batch(
    value: bytes = b"x", *, producer: int = ONE, epoch: int = 0, sequence: int = 0, transactional: bool = True
) -> EncodedBatch:
    builder = BatchBuilder()
    builder.add_values([value])
    return builder.build(
        1, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional
    )


def append(
    bench: Bench,
    sent: EncodedBatch,
    inbox: str,
    *,
    ticket: bytes | None = None,
    acks: AppendRequest.Acks.ValueType = AppendRequest.ALL,
    leader_epoch: int = 0,
) -> None:
    header = sent.header
    if ticket is None:
        ticket = tickets().make(header.producer_id, header.producer_epoch, TARGET)
    parts, _ = sent.stamp(Offset(0), LeaderEpoch(0))
    request = AppendRequest(acks=acks, ticket=ticket, leader_epoch=leader_epoch)
    if header.producer_id != NO_PRODUCER:
        add_proof_of(request, KEY, parts, header.producer_id)
    subject = bench.context.subjects.append(KEY.stream, KEY.partition)
    data = b"".join(encode_append(request, parts))
    bench.ingest.subscribed[subject](Message(subject, data, inbox))


def mark(bench: Bench, inbox: str | None, *, epoch: int = 0, commits: bool = True, producer: int = ONE) -> None:
    request = EndTransactionRequest(
        producer_id=producer,
        producer_epoch=epoch,
        commits=commits,
        stream_incarnation=KEY.stream_incarnation,
        partition_incarnation=KEY.partition_incarnation,
    )
    subject = bench.context.subjects.mark(KEY.stream, KEY.partition)
    bench.control.subscribed[subject](Message(subject, request.SerializeToString(), inbox))


def told(bench: Bench, inbox: str) -> list[Code | str]:
    """ "done" for an empty answer, "stored" for that to an append."""
    found: list[Code | str] = []
    for subject, data, headers in bench.control.sent:
        if subject == inbox:
            error = TidelogError.from_headers(headers)
            found.append(error.code if error else "stored" if AppendResponse.FromString(data).leader_epoch else "done")
    return found


async def test_a_transaction_is_written_and_ended(bench: Bench) -> None:
    role = await lead(bench, view(A))
    append(bench, batch(), "append")
    mark(bench, "mark")
    await turn()
    assert (told(bench, "append"), told(bench, "mark")) == (["stored"], ["done"])
    data = bytes(bench.log.read_from_disk(Offset(0), max_bytes=1 << 20, end_offset=Offset(2)))
    at, header = list(iter_batches(data))[1]
    assert header.marker is Marker.COMMIT
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (ONE, 1, 0)
    assert decode_control(data[at:]).type == ControlType.TRANSACTION_END
    counters = bench.context.the(PublishCounters)
    assert (counters.batches_in, counters.records_in) == (1, 1), "a marker is no record of a client"
    await role.end("over")


@pytest.mark.parametrize("acks", [AppendRequest.ALL, AppendRequest.LEADER])
async def test_too_few_replicas_refuse_a_transactional_batch_at_once_whatever_acknowledgement_it_asks_for(
    bench: Bench, acks: AppendRequest.Acks.ValueType
) -> None:
    before = view(A, B, min_isr=2)
    role = await lead(bench, before)
    role.on_view(replace(before, isr=(A,), epoch=PartitionEpoch(2)))
    append(bench, batch(), "append", acks=acks, leader_epoch=before.leader_epoch)
    await turn()
    assert (told(bench, "append"), bench.log.log_end_offset) == ([Code.NOT_ENOUGH_REPLICAS], 0)
    await role.end("over")


async def test_the_end_of_a_transaction_comes_behind_the_publishes_before_it(bench: Bench) -> None:
    role = await lead(bench, view(A, B))
    bench.syncer.is_quick = False
    role._appending.syncing = True
    ingest = bench.ingest.subscribed["s"]
    ingest.on_messages([b"plain"], [None], [None])
    ingest.chunk_done()
    assert bench.log.log_end_offset == 0, "it is in the open batch"
    mark(bench, "mark", commits=False)
    assert bench.log.log_end_offset == 2
    data = bytes(bench.log.read_from_disk(Offset(0), max_bytes=1 << 20, end_offset=Offset(2)))
    assert [header.marker for _, header in iter_batches(data)] == [None, Marker.ABORT]
    await role.end("over")


async def test_a_marker_is_written_in_the_clear_and_without_the_master_key(bench: Bench) -> None:
    encrypted = view(A)
    encrypted = replace(encrypted, config=replace(encrypted.config, encryption=True))
    bench.context.keyring = Keyring()
    role = await lead(bench, encrypted)
    append(bench, batch(), "append")
    mark(bench, "mark", commits=False)
    await turn()
    assert (told(bench, "append"), told(bench, "mark")) == ([Code.NO_KEY], ["done"])
    data = bytes(bench.log.read_from_disk(Offset(0), max_bytes=1 << 20, end_offset=Offset(1)))
    assert decode_control(data).type == ControlType.TRANSACTION_END
    await role.end("over")


async def test_what_waits_for_a_commit_is_bounded_and_told_when_the_leader_resigns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction_marks, "WAITING_MARKS", replace(transaction_marks.WAITING_MARKS, items=2))
    role = await lead(bench, view(A, B))
    mark(bench, "first")
    mark(bench, "again")
    mark(bench, "once-more")
    assert [told(bench, inbox) for inbox in ("first", "again", "once-more")] == [[], [], [Code.BACKPRESSURE]]
    (refused,) = [TidelogError.from_headers(h) for subject, _, h in bench.control.sent if subject == "once-more"]
    assert refused is not None
    assert refused.detail(LIMIT) == "waiting_marks"
    assert bench.log.log_end_offset == 1, "the repetition is no other marker"
    await role.end("over")
    assert told(bench, "first") == told(bench, "again") == [Code.OUTCOME_UNKNOWN]
    assert role._marking._waiting.items == 0


async def test_a_request_that_names_no_transaction_or_wants_no_answer_changes_nothing(bench: Bench) -> None:
    role = await lead(bench, view(A))
    mark(bench, "ordinary", producer=7)
    mark(bench, "negative", epoch=-1)
    mark(bench, "beyond", epoch=(1 << 31) - 1)
    mark(bench, None)
    subject = bench.context.subjects.mark(KEY.stream, KEY.partition)
    bench.control.subscribed[subject](Message(subject, b"\xff", "garbage"))
    for inbox in ("ordinary", "negative", "beyond", "garbage"):
        assert told(bench, inbox) == [Code.BAD_REQUEST]
    assert bench.log.log_end_offset == 0
    assert bench.context.the(RequestCounters).bad_requests == 4
    handler = bench.control.subscribed[subject]
    role.begin_to_end("over")
    handler(Message(subject, EndTransactionRequest().SerializeToString(), "late"))
    assert told(bench, "late") == [], "another broker leads, and answers"
    await role.end("over")


async def test_a_batch_of_another_kind_than_its_producer_is_refused(bench: Bench) -> None:
    role = await lead(bench, view(A))
    append(bench, batch(producer=7), "no-transactional-producer")
    append(bench, batch(producer=NO_PRODUCER, epoch=-1, sequence=-1), "no-producer")
    append(bench, batch(transactional=False), "no-bit")
    append(bench, batch(), "unheard", acks=AppendRequest.NONE)
    builder = BatchBuilder()
    builder.has_message_ids = True
    builder.add_record(b"x", None, with_message_id(b"", b"id"))
    with_ids = builder.build(1, producer_id=ONE, producer_epoch=0, base_sequence=0, is_transactional=True)
    append(bench, with_ids, "ids")
    for inbox in ("no-transactional-producer", "no-producer", "no-bit", "unheard", "ids"):
        assert told(bench, inbox) == [Code.BAD_REQUEST], inbox
    append(bench, batch(), "forged", ticket=b"x" * 28)
    append(bench, batch(epoch=1), "of-another-epoch", ticket=tickets().make(ONE, 0, TARGET))
    assert told(bench, "forged") == told(bench, "of-another-epoch") == [Code.NOT_IN_TRANSACTION]
    assert bench.log.log_end_offset == 0
    await role.end("over")


async def test_no_transaction_writes_to_an_internal_stream(bench: Bench) -> None:
    name = StreamName("__groups")
    key = PartitionKey(name, KEY.stream_incarnation, 0, KEY.partition_incarnation)
    subjects = Subjects("tidelog")
    internal = replace(view(A, key=key), subject=f"tidelog.{name}")
    role = await lead(bench, internal)
    assert subjects.mark(name, 0) not in bench.control.subscribed
    await role.end("over")


async def test_a_leader_takes_known_producers_and_refuses_new_ones(bench: Bench) -> None:
    """Those that are known go on, whatever the bound is, and repetitions are answered."""
    bench.context.the(BoundsOfAll).producers = ProducersOfAll(2)
    bench.context.the(BoundsOfAll).producers.tables = lambda: [bench.log.producers]
    role = await lead(bench, view(A))
    append(bench, batch(producer=7, transactional=False), "first")
    append(bench, batch(), "of-transactions")
    append(bench, batch(producer=8, transactional=False), "new")
    append(bench, batch(producer=ONE + 1), "new-of-transactions")
    append(bench, batch(producer=7, sequence=1, transactional=False), "known")
    role._run(role.core.on_synced(role.log.log_end_offset, 0.0))
    assert role.log.log_end_offset == 3
    assert told(bench, "new") == told(bench, "new-of-transactions") == [Code.BACKPRESSURE]
    assert Code.BACKPRESSURE not in (*told(bench, "first"), *told(bench, "of-transactions"), *told(bench, "known"))
    append(bench, batch(producer=7, transactional=False), "repeated")
    assert told(bench, "repeated") != [Code.BACKPRESSURE]
    await role.end("over")
