"""A batch that loses records keeps the others unchanged, at their offsets."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wire.batch import (
    BatchBuilder,
    BatchHeader,
    CompactableBatch,
    Compression,
    ControlType,
    EncodedBatch,
    Marker,
    RecordBatch,
    control_batch,
    decode_control,
    emptied,
    encode_headers,
    iter_batches,
    parse_header,
    scan_batches,
    transaction_marker,
)
from wire.batch.header import MAX_BODY_BYTES
from wire.errors import CorruptData
from wire.types import FIRST_TRANSACTIONAL_ID, LeaderEpoch, Offset

if TYPE_CHECKING:
    from wire.batch.compacting import BoolArray

BASE = 1000
Content: TypeAlias = list[tuple[bytes | None, bytes | None, dict[str, bytes] | None, int | None]]
small = st.binary(max_size=9)
records = st.lists(
    st.tuples(
        st.none() | small,  # key
        st.none() | small,  # value
        st.none() | st.dictionaries(st.text(max_size=3), small, min_size=1, max_size=2),
        st.none() | st.integers(min_value=-5, max_value=5),  # timestamp
    ),
    min_size=1,
    max_size=20,
)


def stamped(batch: EncodedBatch) -> bytes:
    return b"".join(batch.stamp(Offset(BASE), LeaderEpoch(7))[0])


def encoded(content: Content, compression: Compression = Compression.NONE, producer_id: int = 5) -> bytes:
    builder = BatchBuilder()
    for key, value, headers, timestamp in content:
        builder.add_record(value, key, encode_headers(headers) if headers else b"", timestamp)
    return stamped(
        builder.build(3, producer_id=producer_id, producer_epoch=2, base_sequence=40, compression=compression)
    )


def placed(batch: EncodedBatch) -> bytes:
    return b"".join(batch.stamp(batch.header.base_offset, batch.header.leader_epoch)[0])


def opened(data: bytes) -> CompactableBatch:
    batch = CompactableBatch.decode(data, 0, parse_header(data))
    assert batch is not None
    return batch


def rows(data: bytes) -> list[tuple[object, ...]]:
    batch = RecordBatch.decode(data)
    return list(
        zip(batch.offsets.tolist(), batch.keys, batch.values, batch.headers, batch.timestamps.tolist(), strict=True)
    )


def kept_of(data: bytes, kept: BoolArray) -> bytes:
    """Larger than it was only where no form of it is as small."""
    batch = opened(data)
    left = batch.keep(kept) or batch.keep(kept, MAX_BODY_BYTES)
    assert left is not None
    return placed(left)


def identity(header: BatchHeader) -> tuple[object, ...]:
    return (
        header.base_offset, header.end_offset, header.leader_epoch, header.offset_count,
        header.producer_id, header.producer_epoch, header.base_sequence,
    )  # fmt: skip


@given(records, st.data(), st.sampled_from(Compression))
def test_kept_records_are_unchanged_and_compacting_twice_is_as_once(
    content: Content, data: st.DataObject, how: Compression
) -> None:
    original = encoded(content, how)
    before = rows(original)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(content), max_size=len(content))), np.bool_)
    kept |= np.array([key is None for key, *_ in content])
    kept[data.draw(st.integers(0, len(content) - 1))] = True
    assume(not kept.all())
    once = kept_of(original, kept)
    assert rows(once) == [row for row, keep in zip(before, kept, strict=True) if keep]
    header = parse_header(once)
    assert identity(header) == identity(parse_header(original))
    assert header.size == len(once)
    again = np.array([data.draw(st.booleans()) for _ in range(int(kept.sum()))], np.bool_)
    again |= ~opened(once).keyed
    again[-1] = True
    twice = kept_of(once, again)
    positions = np.flatnonzero(kept)[again]
    directly = np.zeros(len(content), np.bool_)
    directly[positions] = True
    assert rows(twice) == [before[position] for position in positions]
    assert rows(kept_of(original, directly)) == rows(twice)
    arrow = RecordBatch.decode(once).to_arrow()
    assert arrow.column("offset").to_pylist() == [row[0] for row in rows(once)]
    assert arrow.column("key").to_pylist() == [row[1] for row in rows(once)]
    assert arrow.column("value").to_pylist() == [row[2] for row in rows(once)]


@settings(max_examples=300)
@given(
    st.lists(st.tuples(small, st.none() | small, st.none(), st.none() | st.integers(0, 3)), min_size=2, max_size=40),
    st.data(),
    st.sampled_from(Compression),
)
def test_a_batch_that_loses_records_is_never_larger(content: Content, data: st.DataObject, how: Compression) -> None:
    stored = encoded(content, how)
    while (left := len(opened(stored).offsets)) > 1:
        lost = data.draw(st.sets(st.integers(0, left - 1), min_size=1, max_size=left - 1))
        kept = np.ones(left, np.bool_)
        kept[list(lost)] = False
        batch = opened(stored).keep(kept)
        if batch is None:
            assert parse_header(stored).compression is not Compression.NONE
            return
        assert batch.size <= len(stored)
        stored = placed(batch)
    assert len(placed(emptied(parse_header(stored)))) <= len(stored)


@pytest.mark.parametrize("how", Compression)
@pytest.mark.parametrize("value_bytes", [0, 1, 20, 116])
def test_a_batch_as_large_as_a_message_does_not_grow(how: Compression, value_bytes: int) -> None:
    """One record of thousands goes: with an offset for each of the others it would be larger by 4 bytes each."""
    random = Random(5)
    room = (1 << 20) - 1024
    count = min(room // (value_bytes + 20), 30_000)
    content: Content = [(b"%09d" % n, random.randbytes(value_bytes), None, None) for n in range(count)]
    original = encoded(content, how)
    kept = np.ones(count, np.bool_)
    kept[count // 3] = False
    left = opened(original).keep(kept)
    assert left is not None
    assert left.size <= len(original)
    assert [row[1] for row in rows(placed(left))] == [
        key for (key, *_), keep in zip(content, kept, strict=True) if keep
    ]


def test_a_batch_that_an_older_version_made_larger_can_be_made_to_fit() -> None:
    random = Random(6)
    content: Content = [(b"%09d" % n, random.randbytes(110), None, None) for n in range(7000)]
    original = encoded(content)
    kept = np.ones(len(content), np.bool_)
    kept[17] = False
    older = opened(original).keep(kept, MAX_BODY_BYTES)
    assert older is not None
    grown = placed(older)
    assert len(grown) > len(original)
    batch = opened(grown)
    assert batch.has_offset_deltas
    left = batch.keep(np.ones(len(content) - 1, np.bool_), parse_header(original).length)
    assert left is not None
    assert left.size <= len(original)
    assert rows(placed(left)) == rows(grown)
    assert not opened(placed(left)).has_offset_deltas


@given(records)
def test_keys_and_tombstones(content: Content) -> None:
    batch = opened(encoded(content))
    assert batch.keyed.tolist() == [key is not None for key, *_ in content]
    assert batch.tombstones.tolist() == [key is not None and value is None for key, value, *_ in content]
    keys = [key for key, *_ in content if key is not None]
    hashes = list(map(tuple, batch.key_hashes().tolist()))
    assert len(hashes) == len(keys)
    assert len(set(hashes)) == len(set(keys))
    assert len(set(zip(keys, hashes, strict=True))) == len(set(keys))


@pytest.mark.parametrize("how", [Compression.LZ4, Compression.ZSTD])
def test_a_compressed_batch_stays_compressed(how: Compression) -> None:
    original = encoded([(b"key", b"value" * 50, None, None)] * 40, how)
    left = kept_of(original, np.arange(40) % 2 == 1)
    assert parse_header(left).compression is how
    assert len(left) < 1000


def test_the_last_record_may_go() -> None:
    original = encoded([(b"a", b"1", None, None), (b"b", b"2", None, None)])
    left = kept_of(original, np.array([True, False]))
    assert [row[0] for row in rows(left)] == [BASE]
    assert parse_header(left).end_offset == BASE + 2


@pytest.mark.parametrize("how", Compression)
def test_a_batch_of_a_transaction_stays_one(how: Compression) -> None:
    builder = BatchBuilder()
    for value in (b"1" * 50, b"2" * 50, b"3" * 50):
        builder.add_record(value, value[:1])
    ids = {"producer_id": FIRST_TRANSACTIONAL_ID, "producer_epoch": 2, "base_sequence": 40}
    original = stamped(builder.build(3, is_transactional=True, compression=how, **ids))
    left = parse_header(kept_of(original, np.array([True, False, True])))
    assert (left.is_transactional, left.is_control, left.compression) == (
        True,
        False,
        parse_header(original).compression,
    )
    assert identity(left) == identity(parse_header(original))
    assert parse_header(placed(emptied(left))).is_transactional


def test_only_a_batch_without_a_body_grows_when_it_is_emptied() -> None:
    smallest = encoded([(None, None, None, None)])
    assert len(placed(emptied(parse_header(smallest)))) == len(smallest) + 8
    for content in [(b"", None, None, None), (None, b"", None, None), (None, None, {"": b""}, None)]:
        for how in Compression:
            batch = encoded([content], how)
            assert len(placed(emptied(parse_header(batch)))) <= len(batch)


@given(st.lists(st.tuples(records, st.sampled_from(Compression), st.booleans()), max_size=5))
def test_scanned_batches_are_the_batches(contents: list[tuple[Content, Compression, bool]]) -> None:
    data = b""
    for content, how, is_transactional in contents:
        builder = BatchBuilder()
        for key, value, headers, timestamp in content:
            builder.add_record(value, key, encode_headers(headers) if headers else b"", timestamp)
        batch = builder.build(
            3, producer_id=9, producer_epoch=0, base_sequence=0, compression=how, is_transactional=is_transactional
        )
        data += stamped(batch)
        data += placed(emptied(parse_header(stamped(batch))))
        data += stamped(transaction_marker(9, 1, Marker.ABORT))
    assert [(each.at, each.size, each.base_offset, each.producer_id) for each in scan_batches(data)] == [
        (at, header.size, header.base_offset, header.producer_id) for at, header in iter_batches(data)
    ]
    assert [each.is_transactional_data for each in scan_batches(data)] == [
        header.is_transactional and not header.is_control for _, header in iter_batches(data)
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_an_emptied_batch_keeps_its_place_and_holds_nothing(count: int) -> None:
    original = encoded([(b"a", b"1", None, 9)] * count, Compression.ZSTD)
    left = placed(emptied(parse_header(original)))
    header = parse_header(left)
    assert identity(header) == identity(parse_header(original))
    assert len(RecordBatch.decode(left)) == 0
    assert decode_control(left).type == ControlType.EMPTIED
    assert CompactableBatch.decode(left, 0, header) is None


def test_a_batch_that_cannot_be_read_is_left_alone() -> None:
    control = stamped(control_batch(77, 1, b"later"))
    assert CompactableBatch.decode(control, 0, parse_header(control)) is None
    original = encoded([(b"a", b"1", None, None)])
    changes: tuple[dict[str, Any], ...] = (
        {"attributes": 1 << 9},
        {"columns": 1 << 20},
        {"attributes": 5},
        {"attributes": 16},
    )
    for change in changes:
        newer = parse_header(original)._replace(**change)
        assert CompactableBatch.decode(original, 0, newer) is None


def test_a_damaged_body_is_no_ground_to_compact_on() -> None:
    original = bytearray(encoded([(b"a", b"1", None, None)]))
    original[-3] ^= 1
    with pytest.raises(CorruptData):
        CompactableBatch.decode(original, 0, parse_header(original))


def test_a_client_may_not_send_holes() -> None:
    original = encoded([(b"a", b"1", None, None), (b"b", b"2", None, None)])
    left = kept_of(original, np.array([True, False]))
    with pytest.raises(CorruptData, match="holes"):
        EncodedBatch.from_bytes(left)
