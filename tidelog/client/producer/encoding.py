"""Records as a producer takes them: those that it refuses, the bytes that a record adds to a batch, and a batch as it
is sent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from tidelog.client.base.arguments import bad, shown
from tidelog.client.base.exceptions import BadRequest, Closed, typed
from tidelog.client.producer.batches import PendingBatch
from wire.batch import (
    HEADER_SIZE,
    BatchBuilder,
    Compression,
    EncodedBatch,
    GivenHeaders,
    encode_headers,
    with_message_id,
)
from wire.durability import Durability
from wire.echo import echo
from wire.errors import Code, TidelogError
from wire.types import StreamName


def closed(stream: StreamName) -> TidelogError:
    return Closed(Code.BAD_REQUEST, f"this producer for {stream!r} is closed; make a new one")


def check_level(durability: Durability | None, stream: StreamName, replicas: int) -> None:
    """Raises BadRequest where no partition has as many replicas as the level needs."""
    if durability is not None and durability.in_sync_floor(replicas) > replicas:
        raise bad(
            f"durability={durability} needs more replicas than the {replicas} of stream {stream!r}; ask for"
            f" {replicas} at most"
        )


def no_key(stream: StreamName) -> BadRequest:
    """Returns the error of a record without a key, which a compacted stream would keep for ever."""
    return bad(
        f"stream {stream!r} is compacted (compact=true): it keeps the newest record of each key, and would keep this"
        " record, which has no key, for ever; give it a key"
    )


def no_partition(stream: StreamName, offset: int) -> BadRequest:
    return bad(
        f"expected_offset={offset} is of one partition, and {stream!r} has several; give the record a partition, or a"
        " key"
    )


RECORD_OVERHEAD = 24
"""Most bytes of a batch that a record costs besides its data: offsets of three columns, a timestamp, two bits of
validity."""
BATCH_OVERHEAD = HEADER_SIZE + 128
"""Most bytes of a batch besides its records: header, first offsets and padding of the columns."""
MESSAGE_OVERHEAD = 1024
"""Bytes of a NATS message that are left for the preamble of an append and the headers of the answer that will carry
the batch.
"""
MAX_BATCH_BYTES = 16 << 20
BYTES_OR_NONE = frozenset({bytes, type(None)})


def size_of(value: bytes | None, key: bytes | None, headers: bytes | None) -> int:
    """Returns an upper bound of the bytes that the record adds to a batch."""
    size = RECORD_OVERHEAD
    if value is not None:
        size += len(value)
    if key is not None:
        size += len(key)
    if headers:
        size += len(headers)
    return size


def checked_size(value: bytes | None, key: bytes | None, headers: bytes | None) -> int:
    """Returns `size_of`. Raises BadRequest for a value or key that cannot be encoded, before it can harm other
    records."""
    if headers is None and type(value) is bytes:
        if key is None:
            return len(value) + RECORD_OVERHEAD
        if type(key) is bytes:
            return len(value) + len(key) + RECORD_OVERHEAD
    for name, given in (("value", value), ("key", key)):
        if type(given) not in BYTES_OR_NONE:
            raise not_bytes(name, given)
    return size_of(value, key, headers)


def not_bytes(name: str, value: object) -> BadRequest:
    """Returns the error for a value or key of another type."""
    if isinstance(value, str):
        how = "text.encode()"
    elif isinstance(value, (bytearray, memoryview)):
        how = "bytes(...)"
    elif isinstance(value, (dict, list)):
        how = "json.dumps(...).encode()"
    else:
        # bytes(5) would be wrong: it makes five zero bytes.
        how = f"str({echo(value)}).encode()" if isinstance(value, (int, float)) else "str(...).encode()"
    return bad(f"{name}={shown(value)} is not bytes or None; encode it, for instance with {how}")


def encoded_headers(headers: GivenHeaders) -> bytes:
    if not isinstance(headers, Mapping):
        raise bad(f"headers={shown(headers)} is not a mapping; give one such as {{'name': b'value'}}")
    try:
        return encode_headers(headers)
    except TidelogError as error:
        raise typed(error) from None


def identified(headers: bytes | None, msg_id: str | bytes) -> bytes:
    """Returns `headers`, encoded, with a message id."""
    if type(msg_id) not in (str, bytes) or not msg_id:
        raise bad(f"msg_id={shown(msg_id)} is no text and no bytes, or empty; give an id such as 'order-17'")
    try:
        return with_message_id(headers or b"", msg_id.encode() if isinstance(msg_id, str) else msg_id)
    except UnicodeEncodeError as error:
        raise bad(f"msg_id={shown(msg_id)} cannot be UTF-8: {error}") from None


def encode_batch(batch: PendingBatch, compression: Compression, *, dedup: bool) -> EncodedBatch:
    builder = BatchBuilder()
    builder.has_message_ids = batch.has_message_ids and dedup
    if batch.has_values_only and None not in batch.values:
        builder.add_values(cast("list[bytes]", batch.values))
    else:
        absent = [None] * len(batch)
        for value, key, headers, timestamp in zip(
            batch.values, batch.keys or absent, batch.headers or absent, batch.timestamps or absent, strict=True
        ):
            builder.add_record(value, key, headers or b"", timestamp)
    session = batch.session
    if batch.is_transactional:
        builder.has_message_ids = False  # the id of an aborted record would hide the repeated one
    if session is None:
        return builder.build(batch.timestamp, compression=compression)
    return builder.build(
        batch.timestamp,
        producer_id=session.producer_id,
        producer_epoch=session.producer_epoch,
        base_sequence=batch.base_sequence,
        compression=compression,
        is_transactional=session.is_transactional,
    )
