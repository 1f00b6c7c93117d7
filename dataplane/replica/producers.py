"""What the log says about idempotent producers. A function of the log: learned from batch headers, in order.

Each producer numbers its records in a partition from 0. The table remembers the last batches of each, so that a batch
sent again is recognised and answered with the offset of the original. A batch whose sequence does not follow the last
one is refused, so that a lost batch cannot be overtaken by the one after it.

What is known at an offset can be copied at little cost (`known`: what it holds is never changed, only replaced),
encoded, and taken up again, by this replica or another one. Encoded, little-endian:

    u32 producers       the one that wrote longest ago first
        i64 id, i64 epoch, i64 next sequence, u32 batches       oldest first
            i64 base sequence, i64 base offset, u32 span
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from wire.batch import BatchHeader
from wire.errors import Code, CorruptData, TidelogError
from wire.types import NO_PRODUCER, REMEMBERED_BATCHES, Offset

MAX_PRODUCERS = 20_000
"""Per partition. The producer that wrote longest ago is forgotten first, and must begin anew under a new id."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """The batch comes next."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The batch is in the log already."""

    base_offset: Offset
    end_offset: Offset


@dataclass(frozen=True, slots=True)
class Rejected:
    error: TidelogError


Verdict: TypeAlias = Fresh | Duplicate | Rejected


RememberedBatch: TypeAlias = tuple[int, int, int]
"""(base sequence, base offset, span). The span is in offsets, which is records as they were sent: compaction takes some
of them, and changes neither. No class of its own: there are up to 100,000 of them to take up when a log is opened."""


class Producer(NamedTuple):
    """What the log says of one producer."""

    epoch: int
    next_sequence: int
    batches: tuple[RememberedBatch, ...]
    """Oldest first, at most REMEMBERED_BATCHES."""


KnownProducers: TypeAlias = Mapping[int, Producer]
"""By id; the one that wrote longest ago first."""

_COUNT = struct.Struct("<I")
_PRODUCER = struct.Struct("<qqqI")
_BATCH = struct.Struct("<qqI")


class ProducerTable:
    def __init__(self, headers: Iterable[BatchHeader] = ()) -> None:
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        self.rebuild(headers)

    def rebuild(self, headers: Iterable[BatchHeader]) -> None:
        """Forget all and learn it anew from the log."""
        self.restore({}, headers)

    @property
    def known(self) -> KnownProducers:
        """All of it, now: a copy that later batches do not change."""
        return dict(self._producers)

    def restore(self, known: KnownProducers, headers: Iterable[BatchHeader] = ()) -> None:
        """Forget all, take up what was known at some offset, and learn from the batches behind it."""
        self._producers = OrderedDict(known)
        for header in headers:
            self.record(header)

    def __len__(self) -> int:
        return len(self._producers)

    def check(self, producer_id: int, epoch: int, base_sequence: int, record_count: int) -> Verdict:
        """Judge a batch before it is appended. `producer_id` may be NO_PRODUCER: always fresh."""
        if producer_id == NO_PRODUCER:
            return Fresh()
        known = self._producers.get(producer_id)
        if known is None or epoch > known.epoch:
            if base_sequence == 0:
                return Fresh()
            return Rejected(_out_of_order(producer_id, base_sequence, 0))
        if epoch < known.epoch:
            return Rejected(
                TidelogError(
                    Code.PRODUCER_FENCED,
                    f"producer {producer_id} has epoch {known.epoch} here and sent {epoch}; make a new producer",
                )
            )
        if base_sequence == known.next_sequence:
            return Fresh()
        for sequence, base, span in known.batches:
            if sequence == base_sequence and span == record_count:
                return Duplicate(Offset(base), Offset(base + span))
        return Rejected(_out_of_order(producer_id, base_sequence, known.next_sequence))

    def remembers(self, header: BatchHeader) -> bool:
        """Whether that batch is one by which a repetition is recognised. Any thread."""
        known = self._producers.get(header.producer_id)
        return known is not None and any(base == header.base_offset for _, base, _ in known.batches)

    def record(self, header: BatchHeader) -> None:
        """Take note of an appended batch; called for every batch, in log order, on every replica."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        known = self._producers.get(producer_id)
        before = known.batches if known is not None and header.producer_epoch <= known.epoch else ()
        epoch = known.epoch if before and known is not None else header.producer_epoch
        span = header.offset_count  # as many as it was sent with: compaction may have taken records since
        batches = (*before[1 - REMEMBERED_BATCHES :], (header.base_sequence, header.base_offset, span))
        self._producers[producer_id] = Producer(epoch, header.base_sequence + span, batches)
        self._producers.move_to_end(producer_id)
        if len(self._producers) > MAX_PRODUCERS:
            self._producers.popitem(last=False)


def encode_producers(known: KnownProducers) -> bytes:
    out = bytearray(_COUNT.pack(len(known)))
    for producer_id, producer in known.items():
        out += _PRODUCER.pack(producer_id, producer.epoch, producer.next_sequence, len(producer.batches))
        for batch in producer.batches:
            out += _BATCH.pack(*batch)
    return bytes(out)


def decode_producers(payload: bytes) -> KnownProducers:
    """Raises CorruptData."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        at = _COUNT.size
        known = {}
        for _ in range(count):
            producer_id, epoch, next_sequence, batch_count = _PRODUCER.unpack_from(payload, at)
            at += _PRODUCER.size
            size = batch_count * _BATCH.size
            batches = tuple(_BATCH.iter_unpack(payload[at : at + size]))
            if len(batches) != batch_count:
                raise CorruptData(f"producer {producer_id} has {len(batches)} batches instead of {batch_count}")
            at += size
            known[producer_id] = Producer(epoch, next_sequence, batches)
    except struct.error as error:
        raise CorruptData(f"the state of producers is cut off: {error}") from error
    if at != len(payload):
        raise CorruptData(f"the state of {count} producers takes {at} bytes, and there are {len(payload)}")
    return known


def _out_of_order(producer_id: int, sequence: int, expected: int) -> TidelogError:
    return TidelogError(
        Code.OUT_OF_ORDER_SEQUENCE,
        f"producer {producer_id} sent sequence {sequence} where {expected} comes next;"
        f" send the missing batches again first",
        {"expected_sequence": str(expected)},
    )
