"""RecordBatch: the unit of appending, replicating, reading, compressing and checking.

A batch is a fixed header and a columnar body. All numbers are little-endian; the batch, and every section of its body,
begins at a multiple of 8 and is padded with zeros to the next one.

    header, 96 bytes
     0  i64 base_offset       stamped by the leader
     8  u64 leader_epoch      stamped by the leader
    16  u32 length            of the body
    20  u8  magic = 1
    21  u8  0
    22  u16 attributes        bits 0-2 compression: 0 none, 1 lz4, 2 zstd; bit 3 control batch,
                           bit 4 encrypted body, bit 5 part of a transaction; of a control batch,
                           bit 6 commits the producer's transaction, bit 7 aborts it
    24  u32 columns           which sections the body has, see below
    28  u32 body_crc          CRC-32C of the body as stored
    32  u32 record_count
    36  u32 offset_span       offsets that the batch covers where compaction left fewer records; 0 = record_count
    40  i64 first_timestamp   smallest, in ns since 1970
    48  i64 last_timestamp    largest
    56  i64 producer_id       -1 = none
    64  i32 producer_epoch
    68  i32 base_sequence
    72  i64 append_time       stamped by the leader: the time of the log, in ns since 1970; 0 = not known
    80  u32 hints             bit 0: records may have message ids; versions before it write 0 and do not read it
    84  u32 partitioning version   stamped by the leader: of the stream (`wire.layouts`); 0 = the first, or not said
    88  u32 sent_crc          body_crc as the producer sent it, noted by the leader; 0 = of no producer, or not said
    92  u32 header_crc        CRC-32C of bytes 0 to 92

    body: the sections that `columns` names, in the order of their bits; n = record_count
     1  VALUE           i32 offsets[n+1], pad, data, pad    absent: every value is null
     2  KEY             the same                            absent: every key is null
     4  TIMESTAMP       i64[n]                              absent: all equal first_timestamp
     8  HEADERS         as VALUE, elements see below        absent: no record has headers
    16  OFFSET_DELTA    i32[n], pad; growing                absent: offsets are dense, or see HOLES
    32  KEY_VALIDITY    bitmap, LSB first, 1 = not null     absent: no key is null (if there is a KEY)
    64  VALUE_VALIDITY  the same for VALUE
   128  HOLES           i32[offset_span - n], growing: the offsets without a record, as deltas. No section of its own:
                        it stands behind the offsets of KEY, before their padding, in the room that the offsets of the
                        removed keys had. In place of OFFSET_DELTA, where that would make a compacted batch larger
                        than it was. Versions before this column refuse it by its number

    body, compressed: u32 size before compression, u32 size of the rest, compressed sections, pad
    body, encrypted: `dataplane.encryption.bodies`; only a leader writes it, and no client ever meets it
    body of a control batch (columns = 0, record_count = 1): u16 type, u16 version, u32 length, payload, pad

    element of HEADERS: nothing = no headers; a raw NATS header block (begins with NATS/1.0), kept as it arrived; or
    0x01 and then for each header u16 key length, key in UTF-8, u32 value length, value; a key may come several times.
    At most 4,096 headers; older versions stored other bytes, too, see `wire.batch.record_headers`

The body's CRC does not cover base_offset and leader_epoch, so a leader stamps a batch by writing 96 bytes; the header's
CRC covers the rest of the header and is computed then. Columns lie as Arrow lays them out, so that a reader's arrays
are views of the body. A log and a follower look at nothing but the header and the CRCs (`parse_header`, `verify_body`):
columns, compressions and control types that they do not know are copied as they are. A reader of the body refuses
unknown ones.

Bytes that are wrong raise `CorruptData`, which names the place; bytes that a client may not send raise `TidelogError`.
"""

from __future__ import annotations

from wire.batch.builder import BatchBuilder, Joined
from wire.batch.columns import Column
from wire.batch.compacting import CompactableBatch, emptied, without_repetitions
from wire.batch.control import ControlRecord, ControlType, control_batch, decode_control, transaction_marker
from wire.batch.encoded import EncodedBatch, ReceivedBatch
from wire.batch.header import (
    HEADER_SIZE,
    MAGIC,
    MAX_BODY_BYTES,
    MAX_RECORDS,
    BatchHeader,
    Compression,
    Marker,
    ScannedBatch,
    holds_encrypted,
    iter_batches,
    parse_header,
    scan_batches,
    verify_body,
)
from wire.batch.message_ids import MAX_MESSAGE_IDS, with_message_id
from wire.batch.reader import RecordBatch
from wire.batch.record_headers import GivenHeaders, decode_headers, encode_headers, header_items

__all__ = [
    "HEADER_SIZE",
    "MAGIC",
    "MAX_BODY_BYTES",
    "MAX_MESSAGE_IDS",
    "MAX_RECORDS",
    "BatchBuilder",
    "BatchHeader",
    "Column",
    "CompactableBatch",
    "Compression",
    "ControlRecord",
    "ControlType",
    "EncodedBatch",
    "GivenHeaders",
    "Joined",
    "Marker",
    "ReceivedBatch",
    "RecordBatch",
    "ScannedBatch",
    "control_batch",
    "decode_control",
    "decode_headers",
    "emptied",
    "encode_headers",
    "header_items",
    "holds_encrypted",
    "iter_batches",
    "parse_header",
    "scan_batches",
    "transaction_marker",
    "verify_body",
    "with_message_id",
    "without_repetitions",
]
