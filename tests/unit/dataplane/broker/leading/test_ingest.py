"""Bare publishes become records: whole runs at a time, with envelopes, headers, limits and refusals in between."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dataplane.broker.leading.ingest import Ingest
from dataplane.broker.roles.role_answers import each_reply
from dataplane.replica.leader.append_rules import APART, AnswerWith, Decision, PublishRun, Refuse
from dataplane.replica.replies import Replies
from tests.unit.dataplane.replica.append_rules_bench import AppendBench
from tests.unit.dataplane.replica.cores import ALL, Driver
from tests.views import A, partition_view
from wire.batch import Compression, RecordBatch, encode_headers, header_items
from wire.batch.encoded import RecordLimit
from wire.batch.record_headers import MAX_RECORD_HEADERS, RAW_HEADERS
from wire.errors import Code, TidelogError
from wire.messaging.transport import UniformRun
from wire.partition_messages.liftbridge_envelope import MAGIC, encode_publish
from wire.protobuf.tidelog_pb2 import AckPolicy, Message
from wire.types import LeaderEpoch, Offset

LIMIT = 1000
BLOCKS = json.loads((Path(__file__).parents[4] / "testdata/headers/blocks.json").read_text())
"""Header blocks by name, as latin-1: those that no reader could read, and those that readers make the best of."""


@dataclass
class Partition:
    """The driver's side of an Ingest: seals into a list of decoded batches."""

    max_batch: int = 100_000
    refusal: TidelogError | None = None
    refuses: tuple[bool, ...] = (True, False)
    """Of what the refusal is: of acknowledged publishes, of others."""
    wants: bool = True
    compression: Compression = Compression.NONE
    rates: dict[str, Any] = field(default_factory=dict)
    """Quotas of the stream, at a clock that stands still: what comes in the first second."""
    batches: list[RecordBatch] = field(default_factory=list)
    replies: list[tuple[int, list[bytes | None]]] = field(default_factory=list)
    envelopes: list[tuple[int, Message, int]] = field(default_factory=list)
    refused: list[tuple[list[bytes | None], Code, int]] = field(default_factory=list)
    refused_envelopes: list[Code] = field(default_factory=list)
    repetitions: list[tuple[int, bytes | None]] = field(default_factory=list)
    stored: dict[bytes, int] = field(default_factory=dict)
    """Offsets by message ids."""
    answered: list[tuple[bytes | None, int]] = field(default_factory=list)
    """Repetitions of what is in the log."""
    denied: list[tuple[bytes, Code]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.core = Driver(partition_view(A, **self.rates)).leader
        self.bench = AppendBench(self.core)
        self.ingest = Ingest(self, is_inbox=lambda inbox: not inbox.startswith(b"tidelog."), time_ns=lambda: 5)
        self.ingest.configure(
            level=ALL,
            max_batch_bytes=self.max_batch,
            record_limit=RecordLimit(LIMIT),
            with_replies=True,
            seeks_repetitions=True,
        )

    def decide(self, publish: PublishRun) -> Decision:
        error = self._refused(publish.level is not None)
        if publish.is_mixed and (error is None) != (self._refused(False) is None):
            return APART
        return self.bench.decide(publish) if error is None else Refuse(error)

    def _refused(self, acknowledged: bool) -> TidelogError | None:
        return self.refusal if acknowledged in self.refuses else None

    def wants_batch(self) -> bool:
        return self.wants

    def on_refused(self, replies: Replies, error: TidelogError, count: int) -> None:
        self.refused.append((each_reply(replies), error.code, count))

    def on_denied(self, reply: bytes, refusal: Refuse) -> None:
        self.denied.append((reply, refusal.error.code))

    def on_envelope_refused(self, message: Message, error: TidelogError) -> None:
        self.refused_envelopes.append(error.code)

    def on_repetition(self, publisher: bytes | Message | None, answer: AnswerWith) -> None:
        inbox = publisher.ackInbox.encode() if isinstance(publisher, Message) else publisher
        self.answered.append((inbox, answer.repeated[0]))

    def seal(self) -> None:
        taken = self.ingest.take(self.compression)
        replies, envelopes = taken.replies, taken.envelopes
        base = sum(len(b) for b in self.batches)
        self.stored |= {message_id: base + place for place, message_id in taken.ids}
        self.repetitions += [(base + place, each_reply(run)[0]) for place, run in taken.repetitions]
        parts, header = taken.batch.stamp(Offset(base), LeaderEpoch(1), 1_000_000_000)
        self.bench.repetitions.stored(taken.ids, header)
        self.core.on_appended(header.end_offset, header.size, 0.0)
        self.batches.append(RecordBatch.decode(b"".join(bytes(p) for p in parts)))
        self.replies += [(base + index, each_reply(run)) for index, run in replies]
        self.envelopes += [(base + index, message, at) for index, message, at in envelopes]

    def uniform(self, payloads: list[bytes], replies: list[bytes] | None = None) -> None:
        """As the parser hands them over: at a fixed stride, with the protocol's bytes in between."""
        lines = []
        for i, payload in enumerate(payloads):
            head = b"MSG s 1 " + (replies[i] + b" " if replies else b"") + b"%d\r\n" % len(payload)
            lines.append(head + payload + b"\r\n")
        stride = len(lines[0])
        assert all(len(line) == stride for line in lines)
        at = stride - 2 - len(payloads[0])
        reply = (8, len(replies[0])) if replies else None
        block = memoryview(b"".join(lines))
        self.ingest.on_uniform(UniformRun(block, len(lines), stride, at, len(payloads[0]), reply))

    @property
    def values(self) -> list[bytes | None]:
        return [value for batch in self.batches for value in batch.values]


def test_a_uniform_run_becomes_one_batch_with_its_replies() -> None:
    partition = Partition()
    partition.uniform([b"%03d" % i for i in range(50)], [b"_INBOX.%02d" % i for i in range(50)])
    partition.ingest.chunk_done()
    assert partition.values == [b"%03d" % i for i in range(50)]
    assert len(partition.batches) == 1
    assert partition.replies == [(0, [b"_INBOX.%02d" % i for i in range(50)])]


def test_records_of_a_run_stay_when_its_buffer_is_read_into_again() -> None:
    partition = Partition(wants=False)
    for name in (b"a", b"b"):
        lines = b"".join(b"MSG s 1 %b.%02d 1\r\n%b\r\n" % (name, i, name) for i in range(20))
        buffer = bytearray(lines)
        stride = len(lines) // 20
        partition.ingest.on_uniform(UniformRun(memoryview(buffer), 20, stride, stride - 3, 1, (8, 4)))
        buffer[:] = bytes(len(buffer))
    partition.seal()
    assert partition.values == [b"a"] * 20 + [b"b"] * 20
    assert partition.replies == [
        (0, [b"a.%02d" % i for i in range(20)]),
        (20, [b"b.%02d" % i for i in range(20)]),
    ]


def test_replies_stay_with_their_records_over_runs_and_batches_of_one_chunk() -> None:
    partition = Partition(max_batch=600)
    expected: dict[int, bytes] = {}
    values: list[bytes | None] = []
    for number in range(12):
        payloads = [b"%02d.%02d" % (number, i) for i in range(7 + number)]
        replies = [b"r.%02d.%02d" % (number, i) for i in range(7 + number)]
        if number % 3 == 0:
            partition.uniform(payloads, replies)
        elif number % 3 == 1:
            partition.uniform(payloads)
        else:
            partition.ingest.on_messages(payloads, list(replies), [None] * len(payloads))
        if number % 3 != 1:
            expected |= dict(enumerate(replies, len(values)))
        values += payloads
    partition.ingest.chunk_done()
    assert len(partition.batches) > 3
    assert partition.values == values
    assert {base + i: r for base, run in partition.replies for i, r in enumerate(run) if r is not None} == expected


def test_empty_payloads_are_records() -> None:
    partition = Partition()
    partition.uniform([b""] * 3)
    partition.ingest.chunk_done()
    assert partition.values == [b""] * 3


def test_a_chunk_larger_than_a_batch_is_split_between_records() -> None:
    partition = Partition(max_batch=500)
    partition.uniform([b"x" * 84] * 12, [b"r%02d" % i for i in range(12)])
    partition.ingest.on_messages([b"y" * 84, b"z" * 200, b"w" * 300], [None, b"reply", None], [None] * 3)
    partition.ingest.chunk_done()
    assert partition.values == [b"x" * 84] * 12 + [b"y" * 84, b"z" * 200, b"w" * 300]
    assert all(batch.header.length <= 700 for batch in partition.batches)
    acked = {base + i: r for base, run in partition.replies for i, r in enumerate(run) if r is not None}
    assert acked == {**{i: b"r%02d" % i for i in range(12)}, 13: b"reply"}


def test_headers_travel_with_their_record() -> None:
    partition = Partition()
    block = b"NATS/1.0\r\nTrace: 7\r\n\r\n"
    partition.ingest.on_messages([b"a", b"b"], [None, None], [block, None])
    partition.ingest.chunk_done()
    assert [dict(h) for h in partition.batches[0].headers] == [{"Trace": b"7"}, {}]


@pytest.mark.parametrize("around", [0, 1, 50])
@pytest.mark.parametrize("name", BLOCKS["refused"])
def test_a_block_that_no_reader_could_read_is_refused_alone(name: str, around: int) -> None:
    """Its neighbours in the chunk are stored, however many there are, and so however they are looked at."""
    partition = Partition()
    block, good = BLOCKS["refused"][name].encode("latin-1"), b"NATS/1.0\r\nN: 1\r\n\r\n"
    payloads = [*[b"before"] * around, b"bad", b"plain", *[b"after"] * around]
    blocks = [*[good] * around, block, None, *[good] * around]
    partition.ingest.on_messages(payloads, [None] * around + [b"reply", b"other"] + [None] * around, blocks)
    partition.ingest.chunk_done()
    assert partition.values == [value for value in payloads if value != b"bad"]
    assert [dict(h) for batch in partition.batches for h in batch.headers] == (
        [{"N": b"1"}] * around + [{}] + [{"N": b"1"}] * around
    )
    assert partition.refused == [([b"reply"], Code.BAD_REQUEST, 1)]


@pytest.mark.parametrize("around", [0, 50])
@pytest.mark.parametrize("name", BLOCKS["stored"])
def test_a_block_that_readers_make_the_best_of_is_stored(name: str, around: int) -> None:
    partition = Partition()
    block = BLOCKS["stored"][name].encode("latin-1")
    partition.ingest.on_messages([b"x"] * (around + 1), [None] * (around + 1), [None] * around + [block])
    partition.ingest.chunk_done()
    assert partition.values == [b"x"] * (around + 1)
    assert not partition.refused
    assert all(RAW_HEADERS not in h for batch in partition.batches for h in batch.headers)


@pytest.mark.parametrize("around", [0, 50])
def test_the_limits_of_a_producers_headers_hold_for_blocks(around: int) -> None:
    """So a copy can write every record that was stored."""
    partition = Partition(max_batch=10 << 20)
    partition.ingest.configure(
        level=ALL,
        max_batch_bytes=10 << 20,
        record_limit=RecordLimit(100_000),
        with_replies=True,
        seeks_repetitions=True,
    )
    many = b"NATS/1.0\r\n" + b"a:1\r\n" * MAX_RECORD_HEADERS + b"\r\n"
    long = b"NATS/1.0\r\n" + b"a" * 65_535 + b":\r\n\r\n"
    within = [many, long]
    beyond = [many[:-2] + b"a:1\r\n\r\n", b"NATS/1.0\r\na" + long[10:]]
    partition.ingest.on_messages([b""] * around, [None] * around, [None] * around)
    for block in [*within, *beyond]:
        partition.ingest.on_messages([b""] * (around + 1), [None] * (around + 1), [None] * around + [block])
    partition.ingest.chunk_done()
    assert [code for _, code, _ in partition.refused] == [Code.LIMIT_REACHED, Code.BAD_REQUEST]
    stored = [headers for batch in partition.batches for headers in batch.headers if headers]
    assert [len(header_items(headers)) for headers in stored] == [MAX_RECORD_HEADERS, 1]
    for headers in stored:
        encode_headers(headers)


@pytest.mark.parametrize("around", [0, 50])
def test_a_record_counts_as_large_as_a_producer_writes_it(around: int) -> None:
    partition = Partition()
    lines = b"a:1\r\n" * 100
    block = b"NATS/1.0\r\n" + lines + b"\r\n"
    written = len(encode_headers({"a": [b"1"] * 100}))
    assert len(block) < written < LIMIT
    for size in (LIMIT - written, LIMIT - written + 1):
        partition.ingest.on_messages([b"x"] * around + [b"y" * size], [None] * (around + 1), [None] * around + [block])
    partition.ingest.chunk_done()
    assert [value for value in partition.values if value != b"x"] == [b"y" * (LIMIT - written)]
    assert [code for _, code, _ in partition.refused] == [Code.RECORD_TOO_LARGE]


def test_headers_stay_with_their_records_where_a_chunk_is_split() -> None:
    partition = Partition(max_batch=700)
    partition.uniform([b"u"] * 9)
    values = [b"%d" % i * (i % 40) for i in range(60)]
    blocks = [b"NATS/1.0\r\nN: %d\r\n\r\n" % i if i % 3 else None for i in range(60)]
    replies = [b"r%d" % i if i % 5 == 0 else None for i in range(60)]
    partition.ingest.on_messages(values, replies, blocks)
    partition.ingest.on_messages([b"last"], [None], [None])
    partition.ingest.chunk_done()
    assert len(partition.batches) > 3
    assert all(batch.header.length <= 800 for batch in partition.batches)
    assert partition.values == [b"u"] * 9 + values + [b"last"]
    headers = [dict(found) for batch in partition.batches for found in batch.headers]
    assert headers == [{}] * 9 + [{"N": b"%d" % i} if i % 3 else {} for i in range(60)] + [{}]
    acked = {base + i: r for base, run in partition.replies for i, r in enumerate(run) if r is not None}
    assert acked == {9 + i: b"r%d" % i for i in range(0, 60, 5)}


def test_the_magic_of_envelopes_inside_a_payload_and_across_two_of_them_means_nothing() -> None:
    partition = Partition()
    payloads = [b"a" + MAGIC, MAGIC[:2], MAGIC[2:], b"b"]
    partition.ingest.on_messages(payloads, [None] * 4, [None] * 4)
    partition.ingest.chunk_done()
    assert partition.values == payloads
    assert not partition.refused


def test_an_envelope_brings_key_headers_timestamp_and_its_own_acknowledgement() -> None:
    partition = Partition()
    envelope = Message(
        key=b"k", value=b"v", timestamp=77, ackInbox="inbox", ackPolicy=AckPolicy.ALL, headers={"h": b"x"}
    )
    partition.ingest.on_messages([b"plain", encode_publish(envelope)], [None, None], [None, None])
    partition.ingest.chunk_done()
    batch = partition.batches[0]
    assert (batch.values, batch.keys) == ([b"plain", b"v"], [None, b"k"])
    assert list(batch.timestamps) == [5, 77]
    assert dict(batch.headers[1]) == {"h": b"x"}
    assert [(index, m.ackInbox) for index, m, _ in partition.envelopes] == [(1, "inbox")]


def test_an_envelope_is_stored_and_not_acknowledged_where_brokers_do_not_answer() -> None:
    partition = Partition()
    envelope = Message(value=b"v", ackInbox="tidelog.victim.0.append", ackPolicy=AckPolicy.ALL)
    partition.ingest.on_messages([encode_publish(envelope)], [None], [None])
    partition.ingest.chunk_done()
    assert partition.values == [b"v"]
    assert [m.ackInbox for _, m, _ in partition.envelopes] == [""]


def test_envelopes_are_found_in_uniform_runs_too() -> None:
    partition = Partition()
    whole = encode_publish(Message(value=b"v"))
    partition.uniform([b"p" * len(whole), whole, b"q" * len(whole)])
    partition.ingest.chunk_done()
    assert partition.values == [b"p" * len(whole), b"v", b"q" * len(whole)]


def test_an_envelope_that_fails_its_crc_is_never_stored_as_a_plain_payload() -> None:
    partition = Partition()
    damaged = bytearray(encode_publish(Message(value=b"v")))
    damaged[-1] ^= 1
    partition.ingest.on_messages([bytes(damaged), MAGIC, MAGIC + b"rubbish"], [None] * 3, [None] * 3)
    partition.uniform([bytes(damaged)] * 3)
    partition.ingest.chunk_done()
    assert partition.batches == []
    assert [code for _, code, _ in partition.refused] == [Code.CORRUPT_ENVELOPE] * 6


def test_a_record_that_is_too_large_is_dropped_and_counted_alone() -> None:
    partition = Partition()
    partition.ingest.on_messages([b"a", b"x" * (LIMIT + 1), b"b"], [None, b"reply", None], [None] * 3)
    partition.ingest.chunk_done()
    assert partition.values == [b"a", b"b"]
    assert partition.refused == [([b"reply"], Code.RECORD_TOO_LARGE, 1)]
    partition.uniform([b"x" * (LIMIT + 1)] * 4)
    assert partition.refused[1][1:] == (Code.RECORD_TOO_LARGE, 4)


def test_a_refusal_stores_nothing_and_reaches_the_requester() -> None:
    partition = Partition(refusal=TidelogError(Code.NOT_ENOUGH_REPLICAS, "no"))
    partition.uniform([b"abc"] * 2, [b"r1", b"r2"])
    partition.ingest.on_messages([encode_publish(Message(value=b"v"))], [None], [None])
    partition.ingest.chunk_done()
    assert partition.batches == []
    assert partition.refused == [([b"r1", b"r2"], Code.NOT_ENOUGH_REPLICAS, 2)]
    assert partition.refused_envelopes == [Code.NOT_ENOUGH_REPLICAS]


def test_a_refusal_of_one_kind_of_publish_leaves_the_other_in_the_same_chunk_alone() -> None:
    """Below min ISR only acknowledged publishes are refused; without a lease only the others."""
    below = Partition(refusal=TidelogError(Code.NOT_ENOUGH_REPLICAS, "no"), refuses=(True,))
    leaseless = Partition(refusal=TidelogError(Code.UNAVAILABLE, "no"), refuses=(False,))
    for partition in (below, leaseless):
        partition.ingest.on_messages([b"plain", b"asks", b"too"], [None, b"reply", None], [None] * 3)
        partition.ingest.chunk_done()
    assert below.values == [b"plain", b"too"]
    assert below.refused == [([b"reply"], Code.NOT_ENOUGH_REPLICAS, 1)]
    assert leaseless.values == [b"asks"]
    assert leaseless.replies == [(0, [b"reply"])]
    assert leaseless.refused == [([None], Code.UNAVAILABLE, 1)] * 2


def test_a_batch_grows_until_it_is_large_while_it_is_not_taken() -> None:
    partition = Partition(wants=False, max_batch=10 << 20)
    partition.uniform([b"x" * 900] * 100)
    partition.ingest.chunk_done()
    assert partition.batches == []
    partition.uniform([b"x" * 900] * 300)
    partition.ingest.chunk_done()
    assert len(partition.batches) == 1


def test_an_envelope_with_an_unknown_ack_policy_is_dropped_alone() -> None:
    """A newer client may know policies that this broker does not; its neighbours in the chunk must not suffer."""
    partition = Partition()
    odd = Message(value=b"odd", ackInbox="inbox")
    odd.ackPolicy = 7  # type: ignore[assignment]
    partition.ingest.on_messages([encode_publish(odd), b"plain"], [None, None], [None, None])
    partition.ingest.chunk_done()
    assert partition.values == [b"plain"]
    assert partition.refused == [([None], Code.CORRUPT_ENVELOPE, 1)]


def test_an_envelope_whose_headers_cannot_be_stored_is_refused_alone() -> None:
    partition = Partition()
    odd = Message(value=b"odd", ackInbox="inbox", ackPolicy=AckPolicy.ALL)
    odd.headers["k" * 70_000] = b""
    partition.ingest.on_messages([encode_publish(odd), b"plain"], [None, None], [None, None])
    partition.ingest.chunk_done()
    assert partition.values == [b"plain"]
    assert partition.refused_envelopes == [Code.BAD_REQUEST]


def test_plain_publishes_are_compressed_as_the_stream_says() -> None:
    partition = Partition(wants=False)
    for codec in (Compression.ZSTD, Compression.LZ4, Compression.NONE):
        partition.compression = codec
        partition.uniform([b"again and again and again"] * 100)
        partition.seal()
    assert [batch.header.compression for batch in partition.batches] == [
        Compression.ZSTD,
        Compression.LZ4,
        Compression.NONE,
    ]
    assert partition.values == [b"again and again and again"] * 300


def mixed(partition: Partition, count: int, answered: bool = True) -> None:
    payloads = [b"m" * (10 + i % 3) for i in range(count)]
    replies = [b"m.%02d" % i if answered else None for i in range(count)]
    partition.ingest.on_messages(payloads, list(replies), [None] * count)


def test_of_a_run_above_the_quota_the_first_records_are_taken_and_the_rest_are_refused() -> None:
    partition = Partition(rates={"producer_record_rate": 30})
    partition.uniform([b"%02d" % i for i in range(50)], [b"r%02d" % i for i in range(50)])
    partition.ingest.chunk_done()
    assert partition.values == [b"%02d" % i for i in range(30)]
    assert partition.replies == [(0, [b"r%02d" % i for i in range(30)])]
    assert partition.refused == [([b"r%02d" % i for i in range(30, 50)], Code.BACKPRESSURE, 20)]


def test_the_last_record_of_a_second_may_exceed_the_quota_of_bytes() -> None:
    partition = Partition(rates={"producer_byte_rate": 5 * 100 + 1})
    partition.uniform([b"x" * 84] * 12)
    partition.ingest.chunk_done()
    assert len(partition.values) == 6
    assert partition.refused == [([None] * 6, Code.BACKPRESSURE, 6)]


def test_messages_of_mixed_sizes_are_cut_at_the_quota_too() -> None:
    for rates, taken in (({"producer_record_rate": 7}, 7), ({"producer_byte_rate": 26 + 27 + 28}, 3)):
        partition = Partition(rates=rates)
        mixed(partition, 20)
        partition.ingest.chunk_done()
        assert [len(value or b"") for value in partition.values] == [10 + i % 3 for i in range(taken)]
        assert partition.replies == [(0, [b"m.%02d" % i for i in range(taken)])]
        ((replies, code, count),) = partition.refused
        assert (replies, code, count) == (
            [b"m.%02d" % i for i in range(taken, 20)],
            Code.BACKPRESSURE,
            20 - taken,
        )


def test_a_quota_counts_runs_messages_and_envelopes_together() -> None:
    partition = Partition(rates={"producer_record_rate": 40})
    partition.uniform([b"x"] * 10)
    mixed(partition, 10, answered=False)
    partition.ingest.on_messages([encode_publish(Message(value=b"v"))] * 2 + [b"a"], [None] * 3, [None] * 3)
    partition.uniform([b"x"] * 20)
    partition.ingest.chunk_done()
    assert len(partition.values) == 40
    assert [count for _, _, count in partition.refused] == [3]


def test_without_a_quota_nothing_is_counted() -> None:
    partition = Partition()
    assert not partition.core.quota.is_set
    partition.uniform([b"x"] * 10_000)
    partition.ingest.chunk_done()
    assert (len(partition.values), partition.refused) == (10_000, [])


# ---- message ids, and headers that ask for more


def identified(*ids: str | None, extra: str = "") -> list[bytes | None]:
    lines = [None if each is None else f"NATS/1.0\r\nNats-Msg-Id: {each}\r\n{extra}\r\n" for each in ids]
    return [None if line is None else line.encode() for line in lines]


def test_new_ids_of_a_chunk_go_in_as_columns() -> None:
    partition = Partition(max_batch=300)
    replies: list[bytes | None] = [b"_INBOX.%d" % number for number in range(20)]
    ids = [None if number % 3 == 0 else f"i{number}" for number in range(20)]
    partition.ingest.on_messages([b"%02d" % number for number in range(20)], replies, identified(*ids))
    partition.ingest.chunk_done()
    assert len(partition.batches) > 2, "the places count in each batch anew"
    assert partition.values == [b"%02d" % number for number in range(20)]
    assert partition.stored == {f"i{n}".encode(): n for n in range(20) if n % 3}
    assert all(batch.header.has_message_ids for batch in partition.batches)


def test_batches_without_ids_do_not_say_that_they_have_some() -> None:
    partition = Partition()
    other: list[bytes | None] = [b"NATS/1.0\r\nNats-Whatever: 1\r\n\r\n"]
    partition.ingest.on_messages([b"v"] * 9, [None] * 9, other * 9)
    partition.ingest.chunk_done()
    assert not partition.batches[0].header.has_message_ids


def test_repetitions_within_a_chunk_an_open_batch_and_the_log() -> None:
    partition = Partition(wants=False)

    def publish(*ids: str, reply: bytes) -> None:
        count = len(ids)
        partition.ingest.on_messages([b"v"] * count, [reply + b".%d" % n for n in range(count)], identified(*ids))

    publish("a", "b", "a", "c", reply=b"first")
    publish("b", reply=b"open")
    assert partition.ingest.open_records == 3
    partition.seal()
    assert partition.repetitions == [(0, b"first.2"), (1, b"open.0")]
    publish("c", "d", reply=b"log")
    assert partition.answered == [(b"log.0", 2)]
    assert partition.ingest.open_records == 1


def test_an_envelope_has_a_message_id_too() -> None:
    partition = Partition(wants=False)
    first, second = (
        Message(value=b"v", ackInbox=inbox, ackPolicy=AckPolicy.ALL, headers={"Nats-Msg-Id": b"1"})
        for inbox in ("one", "two")
    )
    for message in (first, second):
        partition.ingest.on_messages([encode_publish(message)], [None], [None])
    partition.seal()
    assert partition.values == [b"v"]
    assert partition.batches[0].header.has_message_ids
    partition.ingest.on_messages([encode_publish(second)], [None], [None])
    assert partition.answered == [(b"two", 0)]


def test_an_expected_sequence_seals_the_open_batch_first() -> None:
    partition = Partition(wants=False)
    expecting: list[bytes | None] = [None] * 4 + [
        b"NATS/1.0\r\nNats-Expected-Last-Sequence: %d\r\n\r\n" % number for number in (4, 4)
    ]
    partition.ingest.on_messages([b"v"] * 6, [b"r%d" % number for number in range(6)], expecting)
    assert len(partition.values) == 5
    assert partition.denied == [(b"r5", Code.INCORRECT_OFFSET)]
    assert partition.ingest.open_records == 0


def test_where_nobody_is_told_of_a_refusal_message_ids_alone_are_obeyed() -> None:
    partition = Partition()
    expecting: list[bytes | None] = [b"NATS/1.0\r\nNats-Expected-Last-Sequence: 9\r\nNats-Msg-Id: a\r\n\r\n"]
    partition.ingest.on_messages([b"v"], [None], expecting)
    partition.ingest.on_messages([b"v"], [None], expecting)
    partition.ingest.chunk_done()
    assert (len(partition.values), partition.denied) == (1, [])


def test_the_last_id_is_that_of_the_last_record_of_the_open_batch() -> None:
    partition = Partition(wants=False)

    def expects(message_id: str, reply: bytes) -> None:
        block = f"NATS/1.0\r\nNats-Expected-Last-Msg-Id: {message_id}\r\n\r\n".encode()
        partition.ingest.on_messages([b"v"], [reply], [block])

    partition.ingest.on_messages([b"v"] * 2, [None] * 2, identified(None, "a"))
    expects("b", b"wrong")
    expects("a", b"right")
    expects("a", b"late")
    assert [reply for reply, _ in partition.denied] == [b"wrong", b"late"]
    assert partition.ingest.open_records == 3
