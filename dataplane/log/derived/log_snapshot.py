"""The derived state of a log at an offset: what follows from all batches below it, in one file, so that nobody has to
read them again.

    00000000000000004096.snapshot      the state at offset 4096: of the records below it, and of none above

A row of sections, each with a name and a version of its own. Little-endian:

    8s magic "tlgstate", u32 version 1, u32 sections, i64 offset, u64 bytes of the whole file
    for each section
        u16 bytes of the name, u16 0, u32 version, i64 offset, u64 bytes of the payload, u32 CRC-32C, u32 0
        name, payload            the CRC is of both and of the five numbers before it
    u32 CRC-32C of everything before

    leader-epochs 1     for each epoch that began below the offset: u64 epoch, i64 start
    producers 1         see `dataplane.replica.derived.producer_table`: the first piece
    producer-times 1    the second piece; a version that does not know it carries it on, and then it is not used
    message-ids 1       see `dataplane.replica.derived.dedup_window`; it is there where some batch had message ids
    producer-digests 1  the fourth piece; it is there where a CRC is known; as with the times
    transactional-producers 1   the third piece; it is there, with the next one, where such producers have written
    transactions 1      see `dataplane.replica.derived.transaction_table`
    producers-partial 1     empty; it is there where the producers are not all of them (`KnownProducers.is_partial`)

A section that this version does not know, by its name or by its version, is kept as it is: it is shipped on to
followers, and goes into later snapshots with the offset at which it holds, so that a version that knows it can go on
from there. A file says nothing unless all of it is sound.

A version that does not know transactions takes transactional producers for others, and markers for batches. What it
wrote after the first of them is no state to go on from (`Snapshot.is_whole`).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from dataplane.replica.derived.dedup_window import NO_IDS, decode_marks, encode_marks
from dataplane.replica.derived.epochs import EpochEntry, LeaderEpochCache
from dataplane.replica.derived.producer_table import (
    NOBODY,
    decode_producers,
    decode_transactional,
    encode_digests,
    encode_producers,
    encode_times,
    encode_transactional,
    with_digests,
)
from dataplane.replica.derived.transaction_table import NO_TRANSACTIONS, decode_transactions, encode_transactions
from wire.errors import CorruptData, InvariantViolation
from wire.types import FIRST_TRANSACTIONAL_ID, LeaderEpoch, Offset

if TYPE_CHECKING:
    from dataplane.replica.derived.dedup_window import IdMarks
    from dataplane.replica.derived.producer_table import KnownProducers

SNAPSHOT_SUFFIX = ".snapshot"
LEADER_EPOCHS = "leader-epochs"
PRODUCERS = "producers"
PRODUCER_TIMES = "producer-times"
PRODUCER_DIGESTS = "producer-digests"
PRODUCERS_PARTIAL = "producers-partial"
MESSAGE_IDS = "message-ids"
TRANSACTIONAL_PRODUCERS = "transactional-producers"
TRANSACTIONS = "transactions"

_USED_AT_THEIR_OFFSET = [(name, 1) for name in (PRODUCER_TIMES, PRODUCER_DIGESTS, MESSAGE_IDS)]
"""Sections, with their versions, that say nothing at a later offset, to which an earlier version has carried them."""
_MAGIC = b"tlgstate"
_FILE_VERSION = 1
_SECTION_VERSION = 1
_HEADER = struct.Struct("<8sIIqQ")
_SECTION = struct.Struct("<HHIqQ")
_SECTION_CRC = struct.Struct("<II")
_EPOCH = struct.Struct("<Qq")
_CRC = struct.Struct("<I")


class Section(NamedTuple):
    """`offset`: where it holds; not above that of its snapshot."""

    name: str
    version: int
    offset: Offset
    payload: bytes


@dataclass(frozen=True, slots=True)
class Snapshot:
    """See the module's text."""

    offset: Offset
    epochs: tuple[EpochEntry, ...] = ()
    """Those that began below `offset`, oldest first."""
    producers: KnownProducers = NOBODY
    carried: tuple[Section, ...] = ()
    """Sections that this version does not know."""
    is_whole: bool = True
    """All sections of ours were there: a state to go on from."""


def snapshot_name(offset: int) -> str:
    return f"{offset:020d}{SNAPSHOT_SUFFIX}"


def encode_snapshot(snapshot: Snapshot) -> bytes:
    offset = snapshot.offset
    epochs = b"".join(_EPOCH.pack(*entry) for entry in snapshot.epochs)
    digests = encode_digests(snapshot.producers)
    sections = (
        Section(LEADER_EPOCHS, _SECTION_VERSION, offset, epochs),
        Section(PRODUCERS, _SECTION_VERSION, offset, encode_producers(snapshot.producers)),
        Section(PRODUCER_TIMES, _SECTION_VERSION, offset, encode_times(snapshot.producers)),
        *([Section(PRODUCER_DIGESTS, _SECTION_VERSION, offset, digests)] if any(digests) else ()),
        *([Section(MESSAGE_IDS, _SECTION_VERSION, offset, encode_marks(marks))] if (marks := _marks(snapshot)) else ()),
        *_transactions(snapshot),
        *([Section(PRODUCERS_PARTIAL, _SECTION_VERSION, offset, b"")] if snapshot.producers.is_partial else ()),
        *snapshot.carried,
    )
    body = b"".join(map(_encode_section, sections))
    size = _HEADER.size + len(body) + _CRC.size
    content = _HEADER.pack(_MAGIC, _FILE_VERSION, len(sections), offset, size) + body
    return content + _CRC.pack(crc32c(content))


def _marks(snapshot: Snapshot) -> IdMarks | None:
    marks = snapshot.producers.id_marks
    return marks if marks.marks else None


def _transactions(snapshot: Snapshot) -> tuple[Section, ...]:
    known = snapshot.producers
    if not known.transactional and known.transactions == NO_TRANSACTIONS:
        return ()
    return (
        Section(TRANSACTIONAL_PRODUCERS, _SECTION_VERSION, snapshot.offset, encode_transactional(known)),
        Section(TRANSACTIONS, _SECTION_VERSION, snapshot.offset, encode_transactions(known.transactions)),
    )


def _encode_section(section: Section) -> bytes:
    name = section.name.encode(errors="surrogateescape")
    facts = _SECTION.pack(len(name), 0, section.version, section.offset, len(section.payload))
    crc = crc32c(section.payload, crc32c(name, crc32c(facts)))
    return b"".join((facts, _SECTION_CRC.pack(crc, 0), name, section.payload))


def decode_snapshot(content: bytes) -> Snapshot:
    """Raises CorruptData. A section of ours that is missing, or of another version, leaves its part empty."""
    if len(content) < _HEADER.size + _CRC.size:
        raise CorruptData(f"a snapshot of {len(content)} bytes is cut off")
    magic, version, count, offset, size = _HEADER.unpack_from(content)
    if magic != _MAGIC:
        raise CorruptData("it does not begin as a snapshot does")
    if version != _FILE_VERSION:
        raise CorruptData(f"a snapshot of version {version}, this Tidelog reads version {_FILE_VERSION}")
    end = len(content) - _CRC.size
    if size != len(content) or _CRC.unpack_from(content, end) != (crc32c(content[:end]),):
        raise CorruptData(f"a snapshot of {len(content)} bytes does not have its CRC")
    at = _HEADER.size
    sections = []
    for _ in range(count):
        section, at = _decode_section(content, at, end)
        if not 0 <= section.offset <= offset:
            raise CorruptData(f"section {section.name!r} holds at {section.offset}, its snapshot at {offset}")
        sections.append(section)
    if at != end:
        raise CorruptData(f"{end - at} bytes follow the last section")
    return _understood(Offset(offset), sections)


def _decode_section(content: bytes, at: int, end: int) -> tuple[Section, int]:
    try:
        name_size, _, version, offset, payload_size = _SECTION.unpack_from(content, at)
        crc, _ = _SECTION_CRC.unpack_from(content, at + _SECTION.size)
    except struct.error as error:
        raise CorruptData(f"a section at byte {at} is cut off: {error}") from error
    begin = at + _SECTION.size + _SECTION_CRC.size
    middle = begin + name_size
    if middle + payload_size > end:
        raise CorruptData(f"a section at byte {at} goes beyond the end")
    if crc != crc32c(content[begin : middle + payload_size], crc32c(content[at : at + _SECTION.size])):
        raise CorruptData(f"the section at byte {at} does not have its CRC")
    name = content[begin:middle].decode("utf-8", "surrogateescape")
    payload = content[middle : middle + payload_size]
    return Section(name, version, Offset(offset), payload), middle + payload_size


def _understood(offset: Offset, sections: list[Section]) -> Snapshot:
    epochs: tuple[EpochEntry, ...] | None = None
    producers: bytes | None = None
    times: bytes | None = None
    digests: bytes | None = None
    of_transactions: dict[str, bytes] = {}
    is_partial = False
    marks = NO_IDS
    carried = []
    is_whole = True
    for section in sections:
        kind = section[:3]
        if kind == (LEADER_EPOCHS, _SECTION_VERSION, offset):
            epochs = _decode_epochs(section.payload, offset)
        elif kind == (PRODUCERS, _SECTION_VERSION, offset):
            producers = section.payload
        elif kind == (PRODUCER_TIMES, _SECTION_VERSION, offset):
            times = section.payload
        elif kind == (PRODUCER_DIGESTS, _SECTION_VERSION, offset):
            digests = section.payload
        elif kind == (MESSAGE_IDS, _SECTION_VERSION, offset):
            marks = decode_marks(section.payload)
        elif kind[:2] in ((TRANSACTIONAL_PRODUCERS, _SECTION_VERSION), (TRANSACTIONS, _SECTION_VERSION)):
            of_transactions[section.name] = section.payload
            is_whole &= section.offset == offset
        elif kind[:2] == (PRODUCERS_PARTIAL, _SECTION_VERSION):  # it holds at every later offset, too
            is_partial = True
        elif kind[:2] not in _USED_AT_THEIR_OFFSET:
            carried.append(section)
            is_whole &= section.name not in (TRANSACTIONAL_PRODUCERS, TRANSACTIONS)
    known = NOBODY if producers is None else decode_producers(producers, times)
    known = known._replace(is_partial=is_partial, id_marks=marks)
    is_whole &= epochs is not None and producers is not None
    is_whole &= len(of_transactions) in (0, 2) and max(known.producers, default=0) < FIRST_TRANSACTIONAL_ID
    if is_whole and of_transactions:
        known = known._replace(
            transactional=decode_transactional(of_transactions[TRANSACTIONAL_PRODUCERS]),
            transactions=decode_transactions(of_transactions[TRANSACTIONS]),
        )
    if is_whole and digests is not None:
        known = with_digests(known, digests)
    return Snapshot(offset, epochs or (), known, tuple(carried), is_whole)


def _decode_epochs(payload: bytes, offset: Offset) -> tuple[EpochEntry, ...]:
    try:
        pairs = _EPOCH.iter_unpack(payload)
        entries = LeaderEpochCache(EpochEntry(LeaderEpoch(e), Offset(start)) for e, start in pairs).entries
    except (struct.error, InvariantViolation) as error:
        raise CorruptData(f"the leader epochs of a snapshot: {error}") from error
    if entries and entries[-1].start >= offset:
        raise CorruptData(f"{entries[-1]} begins at or above the snapshot's offset {offset}")
    return entries
