"""A batch that loses records: what is left is what it was, at the offsets at which it was."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wire.batch import (
    BatchBuilder,
    BatchHeader,
    CompactableBatch,
    Compression,
    ControlType,
    EncodedBatch,
    RecordBatch,
    control_batch,
    decode_control,
    emptied,
    encode_headers,
    parse_header,
)
from wire.errors import CorruptData
from wire.types import LeaderEpoch, Offset

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


def identity(header: BatchHeader) -> tuple[object, ...]:
    return (
        header.base_offset, header.end_offset, header.leader_epoch, header.offset_count,
        header.producer_id, header.producer_epoch, header.base_sequence,
    )  # fmt: skip


@settings(deadline=None)
@given(records, st.data(), st.sampled_from(Compression))
def test_what_is_kept_stays_as_it_was_and_twice_is_as_once(
    content: Content, data: st.DataObject, how: Compression
) -> None:
    original = encoded(content, how)
    before = rows(original)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(content), max_size=len(content))), np.bool_)
    kept[data.draw(st.integers(0, len(content) - 1))] = True
    once = placed(opened(original).keep(kept))
    assert rows(once) == [row for row, keep in zip(before, kept, strict=True) if keep]
    header = parse_header(once)
    assert identity(header) == identity(parse_header(original))
    assert header.size == len(once)
    again = np.array([data.draw(st.booleans()) for _ in range(int(kept.sum()))], np.bool_)
    again[-1] = True
    twice = placed(opened(once).keep(again))
    positions = np.flatnonzero(kept)[again]
    directly = np.zeros(len(content), np.bool_)
    directly[positions] = True
    assert rows(twice) == [before[position] for position in positions]
    assert rows(placed(opened(original).keep(directly))) == rows(twice)
    arrow = RecordBatch.decode(once).to_arrow()
    assert arrow.column("offset").to_pylist() == [row[0] for row in rows(once)]
    assert arrow.column("key").to_pylist() == [row[1] for row in rows(once)]
    assert arrow.column("value").to_pylist() == [row[2] for row in rows(once)]


@settings(deadline=None)
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
    left = placed(opened(original).keep(np.arange(40) % 2 == 1))
    assert parse_header(left).compression is how
    assert len(left) < 1000


def test_the_last_record_may_go() -> None:
    original = encoded([(b"a", b"1", None, None), (b"b", b"2", None, None)])
    left = placed(opened(original).keep(np.array([True, False])))
    assert [row[0] for row in rows(left)] == [BASE]
    assert parse_header(left).end_offset == BASE + 2


@pytest.mark.parametrize("count", [1, 3])
def test_an_emptied_batch_keeps_its_place_and_holds_nothing(count: int) -> None:
    original = encoded([(b"a", b"1", None, 9)] * count, Compression.ZSTD)
    left = placed(emptied(parse_header(original)))
    header = parse_header(left)
    assert identity(header) == identity(parse_header(original))
    assert len(RecordBatch.decode(left)) == 0
    assert decode_control(left).type == ControlType.EMPTIED
    assert CompactableBatch.decode(left, 0, header) is None


def test_what_cannot_be_looked_into_is_left_alone() -> None:
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
    left = placed(opened(original).keep(np.array([True, False])))
    with pytest.raises(CorruptData, match="holes"):
        EncodedBatch.from_bytes(left)
