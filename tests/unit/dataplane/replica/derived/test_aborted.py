"""Answers to consumers without the records of aborted transactions."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from dataplane.replica.derived.transaction_table import AbortedBatches, TransactionTable, is_aborted, without_aborted
from wire.batch import (
    BatchBuilder,
    BatchHeader,
    Marker,
    RecordBatch,
    decode_control,
    iter_batches,
    parse_header,
    transaction_marker,
)
from wire.types import FIRST_TRANSACTIONAL_ID, Buffer, LeaderEpoch, Offset

ROOM = 1 << 20


class Written(NamedTuple):
    """A log in memory: its batches in order, and its transactions."""

    batches: list[bytes]
    transactions: TransactionTable

    @property
    def end(self) -> Offset:
        return parse_header(self.batches[-1]).end_offset if self.batches else Offset(0)

    def add(self, parts: list[Buffer], header: BatchHeader) -> None:
        self.batches.append(b"".join(parts))
        self.transactions.record(header)

    def data(self, values: str, producer: int | None = None) -> None:
        """A record for each character; `producer`: the number of a transactional one. "." is a record without value."""
        builder = BatchBuilder()
        for value in values:
            builder.add_record(None if value == "." else value.encode())
        if producer is None:
            batch = builder.build(1)
        else:
            batch = builder.build(
                1,
                producer_id=FIRST_TRANSACTIONAL_ID + producer,
                producer_epoch=0,
                base_sequence=0,
                is_transactional=True,
            )
        self.add(*batch.stamp(self.end, LeaderEpoch(3), 7))

    def marker(self, producer: int, marker: Marker) -> None:
        batch = transaction_marker(FIRST_TRANSACTIONAL_ID + producer, 1, marker)
        self.add(*batch.stamp(self.end, LeaderEpoch(3), 7))

    def from_batch(self, number: int, max_bytes: int = ROOM) -> bytes:
        """An answer with all batches from that one on."""
        offset = parse_header(self.batches[number]).base_offset
        return b"".join(without_aborted(self.batches[number:], offset, self.transactions, max_bytes))


@pytest.fixture
def log() -> Written:
    return Written([], TransactionTable())


def values(answer: bytes) -> dict[int, str]:
    """By offset."""
    out: dict[int, str] = {}
    for at, _ in iter_batches(answer):
        batch = RecordBatch.decode(answer, at)
        out |= {o: "." if v is None else v.decode() for o, v in zip(batch.offsets.tolist(), batch.values, strict=True)}
    return out


def covered(answer: bytes) -> list[tuple[int, int]]:
    return [(header.base_offset, header.end_offset) for _, header in iter_batches(answer)]


def test_an_empty_batch_stands_in_the_place_of_an_aborted_one(log: Written) -> None:
    log.data("ab")
    log.data("xyz", producer=1)
    log.data("c")
    log.data("w", producer=1)
    log.marker(1, Marker.ABORT)
    log.data("d")
    answer = log.from_batch(0)
    assert values(answer) == {0: "a", 1: "b", 5: "c", 8: "d"}
    assert covered(answer) == covered(b"".join(log.batches))
    (at, header), *_ = [(at, header) for at, header in iter_batches(answer) if header.base_offset == 2]
    assert decode_control(answer[at : at + header.size]).payload == b""
    stored = parse_header(log.batches[1])
    kept = ("base_offset", "leader_epoch", "producer_id", "producer_epoch", "base_sequence", "append_time")
    assert [getattr(header, name) for name in kept] == [getattr(stored, name) for name in kept]


def test_all_else_is_sent_as_it_lies_there(log: Written) -> None:
    log.data("ab")
    log.data("c", producer=1)
    log.marker(1, Marker.COMMIT)
    log.data("d", producer=2)
    log.data("e", producer=1)
    log.marker(2, Marker.ABORT)
    answer = log.from_batch(0)
    at = sum(map(len, log.batches[:3]))
    assert answer[:at] == b"".join(log.batches[:3])
    assert answer.endswith(b"".join(log.batches[4:]))
    assert values(answer) == {0: "a", 1: "b", 2: "c", 5: "e"}


def test_transactions_of_one_producer_are_told_apart(log: Written) -> None:
    for value, marker in [("a", Marker.ABORT), ("b", Marker.COMMIT), ("c", Marker.ABORT), ("d", Marker.COMMIT)]:
        log.data(value, producer=1)
        log.marker(1, marker)
    for number in range(len(log.batches)):
        left = {2: "b", 6: "d"}
        assert values(log.from_batch(number)) == {offset: left[offset] for offset in left if offset >= number}


def test_a_transaction_that_began_before_the_answer_is_known(log: Written) -> None:
    log.data("a", producer=1)
    log.data("b", producer=2)
    log.data("c", producer=1)
    log.marker(2, Marker.COMMIT)
    log.marker(1, Marker.ABORT)
    assert values(log.from_batch(2)) == {}
    assert values(log.from_batch(1)) == {1: "b"}


def test_an_answer_is_no_copy_where_nothing_was_aborted_from_there_on(log: Written) -> None:
    log.data("a", producer=1)
    log.marker(1, Marker.ABORT)
    log.data("b")
    log.data("c")
    parts: list[Buffer] = [*log.batches[2:]]
    found = without_aborted(parts, Offset(2), log.transactions, ROOM)
    assert [id(part) for part in found] == [id(part) for part in parts]


def test_an_answer_does_not_outgrow_its_bound(log: Written) -> None:
    """A batch of records without key, value and header is smaller than the empty one in its place."""
    for _ in range(10):
        log.data(".", producer=1)
    log.marker(1, Marker.ABORT)
    room = sum(map(len, log.batches[:10]))
    answer = log.from_batch(0, room)
    assert len(answer) <= room
    assert covered(answer) == [(n, n + 1) for n in range(room // 104)]
    assert covered(log.from_batch(0, 1)) == [(0, 1)], "one batch at least"


def test_single_batches_are_looked_up(log: Written) -> None:
    log.data("a", producer=1)
    log.data("b")
    log.data("c", producer=2)
    log.marker(1, Marker.ABORT)
    log.data("d", producer=1)
    found = [is_aborted(parse_header(batch), log.transactions) for batch in log.batches]
    assert found == [True, False, False, False, False]
    aborted = AbortedBatches(log.transactions.aborted(Offset(0), log.end))
    assert [aborted.has_batch(parse_header(batch)) for batch in log.batches] == found
