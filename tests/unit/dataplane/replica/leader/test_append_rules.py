"""Whether a publish is stored: the rules in their order, for every way in which publishes come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.append_rules import (
    APART,
    HOLD,
    STORE,
    AnswerTogether,
    AnswerWith,
    ClientBatch,
    Decision,
    Once,
    PublishRun,
    Refuse,
    Store,
)
from tests.tickets import add_proof_of, tickets
from tests.unit.dataplane.replica.append_rules_bench import AppendBench
from tests.unit.dataplane.replica.cores import ALL, LOCAL, Driver
from tests.views import KEY, A, B, partition_view
from wire.batch import BatchBuilder, with_message_id
from wire.errors import Code, TidelogError
from wire.partition_messages.jetstream import PublishHeaders
from wire.protobuf.tidelog_pb2 import AppendRequest
from wire.security.tickets import partition_target
from wire.types import FIRST_TRANSACTIONAL_ID, NO_PRODUCER, LeaderEpoch, Offset, PartitionEpoch, PartitionView


@dataclass
class Open:
    """The open batch."""

    open_records: int = 0
    open_ids: Mapping[bytes, int] = field(default_factory=dict)
    last_id: bytes | None = None


NO_KEY = TidelogError(Code.NO_KEY, "no key")
TARGET = partition_target(KEY.stream, KEY.stream_incarnation, KEY.partition, KEY.partition_incarnation)


class Scene:
    """A leader of a log, and the publishes that come to it."""

    def __init__(self, first: PartitionView | None = None) -> None:
        self.driver = Driver(first or partition_view(A, leader_epoch=3))
        self.bench = AppendBench(self.driver.leader)
        self.rules = self.bench.rules

    def sees(self, **changes: Any) -> None:
        core = self.driver.leader
        core.on_view(replace(core.view, epoch=PartitionEpoch(core.view.epoch + 1), **changes), 0.0)

    def batch(
        self,
        *ids: bytes | None,
        producer: tuple[int, int, int] = (NO_PRODUCER, 0, 0),
        proven: bool = True,
        transactional: bool = False,
        ticket: bytes = b"",
        level: AckLevel | None = ALL,
        **asked: Any,
    ) -> ClientBatch:
        """One record for each of `ids`, None: without an id."""
        builder = BatchBuilder()
        for message_id in ids or (None,):
            builder.add_record(b"v", headers=b"" if message_id is None else with_message_id(b"", message_id))
        builder.has_message_ids = any(ids)
        producer_id, epoch, sequence = producer
        parts, _ = builder.build(
            5, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, is_transactional=transactional
        ).stamp(Offset(0), LeaderEpoch(0))
        buffer = memoryview(b"".join(map(bytes, parts)))
        request = AppendRequest(ticket=ticket, **asked)
        if producer_id != NO_PRODUCER and proven:
            add_proof_of(request, KEY, parts, producer_id)
        return ClientBatch("inbox", 1 << 20, request, buffer, level)

    def decide(self, batch: ClientBatch, unable: TidelogError | None = None) -> Decision:
        """The batch comes, and has its turn at once."""
        return self.admit(batch, unable) or self.bench.decide(batch, unable=unable)

    def admit(self, batch: ClientBatch, unable: TidelogError | None = None) -> Decision | None:
        """The batch comes, and is decoded."""
        refused = self.rules.admit(batch, 0.0, lease_valid=True, unable=unable)
        if refused is None:
            batch.content = batch.opened.decode()
        return refused

    def store(self, batch: ClientBatch) -> None:
        decision = self.decide(batch)
        assert isinstance(decision, Store)
        core, sent = self.driver.leader, batch.decoded.header
        _, header = batch.decoded.stamp(core.log_end_offset, core.leader_epoch, 1_000_000_000)
        self.bench.producers.record(header)
        self.driver.append(sent.record_count)
        self.bench.repetitions.stored(decision.ids, header)
        core.quota.take(sent.record_count, sent.size, 0.0)

    def message(self, block: bytes = b"", *, ahead: Open | None = None, message_id: bytes | None = None) -> Decision:
        ids = () if message_id is None else ((0, message_id),)
        headers = PublishHeaders.of(b"NATS/1.0\r\n" + block + b"\r\n\r\n")
        return self.bench.decide(PublishRun(ALL, 1, None, ids, headers, ahead or Open()))


def code(decision: Decision | None) -> str:
    assert isinstance(decision, Refuse), decision
    return decision.error.code.name


def at(offsets: dict[int, int]) -> dict[int, Offset]:
    """Offsets of originals, by the places of their repetitions."""
    return {place: Offset(offset) for place, offset in offsets.items()}


@pytest.fixture
def scene() -> Scene:
    return Scene()


# ---- what refuses every publish


def test_the_leader_epoch_comes_before_the_key_and_the_key_before_the_rest(scene: Scene) -> None:
    scene.sees(readonly=True)
    assert code(scene.decide(scene.batch(leader_epoch=2), unable=NO_KEY)) == "FENCED_LEADER_EPOCH"
    assert code(scene.decide(scene.batch(leader_epoch=3), unable=NO_KEY)) == "NO_KEY"
    assert code(scene.decide(scene.batch(leader_epoch=3))) == "READONLY"


def test_a_refused_batch_is_not_even_opened(scene: Scene) -> None:
    scene.sees(readonly=True)
    batch = scene.batch()
    batch.buffer = memoryview(b"no batch")
    assert code(scene.decide(batch)) == "READONLY"
    assert batch.received is None
    scene.sees(readonly=False)
    assert code(scene.decide(batch)) == "CORRUPT_BATCH"


def test_a_batch_that_waited_is_looked_at_again(scene: Scene) -> None:
    batch = scene.batch()
    assert scene.admit(batch) is None
    scene.sees(readonly=True)
    assert code(scene.bench.decide(batch)) == "READONLY"


def test_plain_publishes_are_left_to_the_partition_that_takes_them(scene: Scene) -> None:
    scene.sees(partition_count=0)
    assert code(scene.bench.decide(PublishRun(ALL), unable=NO_KEY)) == "NOT_LEADER"
    assert code(scene.decide(scene.batch(), unable=NO_KEY)) == "NO_KEY"


# ---- producers, transactions, versions


def test_a_stranger_learns_nothing_of_a_producer(scene: Scene) -> None:
    scene.store(scene.batch(producer=(7, 0, 0)))
    for sequence in (0, 1, 9):
        assert code(scene.decide(scene.batch(producer=(7, 0, sequence), proven=False))) == "UNPROVEN_PRODUCER"


def test_a_repetition_is_answered_with_its_original_and_a_gap_is_refused(scene: Scene) -> None:
    scene.store(scene.batch(producer=(7, 0, 0)))
    assert scene.decide(scene.batch(producer=(7, 0, 0))) == AnswerWith(Offset(0), Offset(1), {}, is_duplicate=True)
    assert code(scene.decide(scene.batch(producer=(7, 0, 5)))) == "OUT_OF_ORDER_SEQUENCE"


def test_no_further_producer_is_taken_where_too_many_are_remembered(scene: Scene) -> None:
    scene.store(scene.batch(producer=(7, 0, 0)))
    scene.bench.no_producer = TidelogError(Code.BACKPRESSURE, "too many")
    assert isinstance(scene.decide(scene.batch(producer=(7, 0, 1))), Store)
    assert isinstance(scene.decide(scene.batch()), Store)
    assert code(scene.decide(scene.batch(producer=(8, 0, 0)))) == "BACKPRESSURE"


def test_a_transactional_batch_shows_a_ticket_and_waits_for_the_commit(scene: Scene) -> None:
    producer = (FIRST_TRANSACTIONAL_ID, 0, 0)
    made = tickets().make(producer[0], 0, TARGET)
    batch = scene.batch(producer=producer, transactional=True, ticket=made, level=LOCAL)
    assert isinstance(scene.decide(batch), Store)
    assert batch.level == ALL
    without = scene.batch(producer=producer, transactional=True)
    assert code(scene.decide(without)) == "NOT_IN_TRANSACTION"
    for wrong in (
        scene.batch(producer=producer, ticket=made),
        scene.batch(producer=(7, 0, 0), transactional=True, ticket=made),
        scene.batch(b"id", producer=producer, transactional=True, ticket=made),
        scene.batch(producer=producer, transactional=True, ticket=made, level=None),
    ):
        assert code(scene.decide(wrong)) == "BAD_REQUEST"


@pytest.mark.parametrize("level", [ALL, LOCAL])
def test_a_transactional_batch_is_admitted_for_the_level_at_which_it_is_acknowledged(level: AckLevel) -> None:
    scene = Scene(partition_view(A, B, leader_epoch=3, min_isr=2))
    producer = (FIRST_TRANSACTIONAL_ID, 0, 0)
    made = tickets().make(producer[0], 0, TARGET)
    scene.sees(isr=(A,))
    assert code(scene.admit(scene.batch(producer=producer, transactional=True, ticket=made, level=level))) == (
        "NOT_ENOUGH_REPLICAS"
    )
    assert scene.admit(scene.batch(level=LOCAL)) is None, "one that only the leader acknowledges"


def test_a_version_is_judged_behind_the_repetition_and_before_a_gap(scene: Scene) -> None:
    scene.store(scene.batch(producer=(7, 0, 0), partitioning_version=1))
    scene.sees(partitioning_version=2)
    assert isinstance(scene.decide(scene.batch(producer=(7, 0, 0), partitioning_version=1)), AnswerWith)
    assert isinstance(scene.decide(scene.batch(producer=(7, 0, 0), partitioning_version=9)), AnswerWith)
    assert code(scene.decide(scene.batch(producer=(7, 0, 5), partitioning_version=1))) == "STALE_PARTITIONING"
    assert scene.decide(scene.batch(producer=(7, 0, 1), partitioning_version=3)) is HOLD
    assert isinstance(scene.decide(scene.batch(producer=(7, 0, 1), partitioning_version=2)), Store)


def test_a_held_batch_is_held_until_the_view_knows_its_version(scene: Scene) -> None:
    batch = scene.batch(partitioning_version=2)
    assert scene.decide(batch) is HOLD
    assert scene.rules.holds(2)
    scene.sees(partitioning_version=2, awaits_cutover=True)
    assert scene.rules.holds(2)
    scene.sees(awaits_cutover=False)
    assert not scene.rules.holds(2)
    assert isinstance(scene.decide(batch), Store)


def test_a_batch_whose_version_is_awaited_when_its_turn_comes_is_held(scene: Scene) -> None:
    batch = scene.batch(partitioning_version=1)
    assert scene.admit(batch) is None
    scene.sees(awaits_sources=True)
    assert scene.bench.decide(batch) is HOLD
    scene.sees(awaits_sources=False)
    assert isinstance(scene.bench.decide(batch), Store)


# ---- message ids and expectations of batches


def test_known_ids_of_a_batch_are_left_out_and_a_batch_of_nothing_else_is_answered(scene: Scene) -> None:
    scene.store(scene.batch(b"a", b"b"))
    assert scene.decide(scene.batch(b"b", b"a")) == AnswerWith(Offset(2), Offset(2), at({0: 1, 1: 0}))
    assert scene.decide(scene.batch(b"c", b"a", b"c")) == Store([(0, b"c")], at({1: 0, 2: 2}))
    own = scene.decide(scene.batch(b"a", producer=(7, 0, 0)))
    assert own == Store([], at({0: 0})), "its place is taken, so that its sequence counts"


def test_a_version_that_is_over_is_no_reason_where_all_ids_are_known(scene: Scene) -> None:
    scene.store(scene.batch(b"a", partitioning_version=1))
    scene.sees(partitioning_version=2)
    assert scene.decide(scene.batch(b"a", partitioning_version=1)) == AnswerWith(Offset(1), Offset(1), at({0: 0}))
    assert code(scene.decide(scene.batch(b"a", b"b", partitioning_version=1))) == "STALE_PARTITIONING"


def test_an_expected_end_is_compared_unless_all_records_are_repetitions(scene: Scene) -> None:
    scene.store(scene.batch(b"a", expected_last_offset=-1))
    assert code(scene.decide(scene.batch(b"b", expected_last_offset=-1))) == "INCORRECT_OFFSET"
    assert isinstance(scene.decide(scene.batch(b"a", expected_last_offset=-1)), AnswerWith)
    assert isinstance(scene.decide(scene.batch(b"b", expected_last_offset=0)), Store)


# ---- messages


def test_a_message_with_a_known_id_is_answered_and_one_that_is_ahead_together_with_its_original(scene: Scene) -> None:
    scene.store(scene.batch(b"a"))
    assert scene.message(message_id=b"a") == AnswerWith(Offset(1), Offset(1), at({0: 0}))
    ahead = Open(5, {b"b": 3}, None)
    assert scene.message(message_id=b"b", ahead=ahead) == AnswerTogether(3)
    assert scene.message(message_id=b"c", ahead=ahead) == STORE


@pytest.mark.parametrize(
    ("expected", "replicas", "once", "end"),
    [
        (b"0", (A, B), Once.COMMITTED, 1),
        (b"9", (A, B), Once.LED, 0),
        (b"none", (A, B), Once.NOW, 0),
        (b"0", (A,), Once.NOW, 0),
    ],
)
def test_another_end_is_denied_once_that_is_true_of_every_leader(
    expected: bytes, replicas: tuple[Any, ...], once: Once, end: int
) -> None:
    scene = Scene(partition_view(*replicas))
    scene.store(scene.batch())
    refusal = scene.message(b"Nats-Expected-Last-Sequence: " + expected)
    assert code(refusal) == "INCORRECT_OFFSET"
    assert isinstance(refusal, Refuse)
    assert (refusal.once, refusal.end) == (once, end)
    assert scene.message(b"Nats-Expected-Last-Sequence: 1") == STORE


def test_the_expected_sequence_comes_before_the_id_and_the_last_id_behind_it() -> None:
    scene = Scene(partition_view(A, B))
    scene.store(scene.batch(b"a"))
    both = b"Nats-Expected-Last-Sequence: 9\r\nNats-Expected-Last-Msg-Id: b"
    assert code(scene.message(both, message_id=b"a")) == "INCORRECT_OFFSET"
    last = b"Nats-Expected-Last-Msg-Id: b"
    assert isinstance(scene.message(last, message_id=b"a"), AnswerWith)
    refusal = scene.message(last, message_id=b"c")
    assert code(refusal) == "INCORRECT_MESSAGE_ID"
    assert isinstance(refusal, Refuse)
    assert refusal.once is Once.LED
    assert scene.message(last, ahead=Open(1, {}, b"b")) == STORE, "the last record is ahead"
    assert scene.message(b"Nats-Expected-Last-Msg-Id: a") == STORE


def test_headers_that_streams_do_not_obey_are_refused_and_a_rollup_only_where_it_is_new(scene: Scene) -> None:
    scene.store(scene.batch(b"a"))
    assert code(scene.message(b"Nats-TTL: 5", message_id=b"a")) == "NOT_SUPPORTED"
    assert isinstance(scene.message(b"Nats-Rollup: all", message_id=b"a"), AnswerWith)
    assert code(scene.message(b"Nats-Rollup: all", message_id=b"b")) == "NOT_SUPPORTED"


def test_new_ids_are_refused_where_no_more_are_remembered(scene: Scene) -> None:
    scene.store(scene.batch(b"a"))
    scene.bench.ids.lacks = TidelogError(Code.NO_KEY, "the ids of the log cannot be read")
    assert code(scene.message(message_id=b"b")) == "NO_KEY"
    assert code(scene.decide(scene.batch(b"b"))) == "NO_KEY"
    assert isinstance(scene.message(message_id=b"a"), AnswerWith)
    assert scene.message() == STORE


# ---- runs of messages


def test_a_run_is_decided_message_by_message_where_one_of_them_is_not_like_the_others(scene: Scene) -> None:
    scene.store(scene.batch(b"a"))
    run = partial(PublishRun, ALL, 2)
    decide = scene.bench.decide
    ahead = Open(1, {b"b": 0}, b"b")
    assert decide(run(ids=((0, b"c"), (1, b"d")), ahead=ahead)) == STORE
    for ids in ((b"c", b"c"), (b"c", b"a"), (b"b", b"c")):
        assert decide(run(ids=tuple(enumerate(ids)), ahead=ahead)) is APART
    assert scene.bench.decide(run(is_mixed=True), lease_valid=False) is APART
    assert scene.bench.decide(run(), lease_valid=False) == STORE
    assert code(scene.bench.decide(PublishRun(None, 2), lease_valid=False)) == "UNAVAILABLE"


def test_of_a_run_above_the_quota_the_first_records_are_stored() -> None:
    scene = Scene(partition_view(A, producer_record_rate=10))
    sizes = np.full(4, 100)
    run = partial(PublishRun, ALL)
    assert scene.bench.decide(run(records=8, sizes=100)) == STORE
    some = scene.bench.decide(run(records=4, sizes=sizes))
    assert isinstance(some, Store)
    assert some.taken == 2
    assert some.over_quota is not None
    assert some.over_quota.code is Code.BACKPRESSURE
    assert code(scene.bench.decide(run(sizes=1))) == "BACKPRESSURE"
    scene = Scene(partition_view(A, producer_record_rate=1))
    scene.store(scene.batch(None, None))
    assert code(scene.decide(scene.batch())) == "BACKPRESSURE", "batches count when they are in the log"
