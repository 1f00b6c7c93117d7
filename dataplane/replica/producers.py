"""Idempotent producers as the log knows them. A function of the log: learned from batch headers, in order.

Each producer numbers its records in a partition from 0. The table remembers the last batches of each, so that a batch
sent again is recognised and answered with the offset of the original. A batch whose sequence does not follow the last
one is refused, so that a lost batch cannot be overtaken by the one after it.

A producer is forgotten when it has been silent for `expiration_ms`, or when more than `max_producers` others have
written since. The time is that of the log: the newest `append_time` of its batches, so that each replica, and each
recovery, forgets the same producers at the same batch. While nothing is appended no producer is forgotten, and
none by a batch of its own.

A batch of a forgotten producer can be new, or a repetition of one that it wrote before. To tell that from the first
batch of a producer that has never written here, the table keeps the highest id that it has forgotten: ids are handed
out in ascending order, so a producer with a higher id is new, and one with a lower id may have been forgotten
(UNKNOWN_PRODUCER_ID). Its client goes on under a new id. The refusal says for how long back every producer is
remembered: batches that its client sent for the first time since then are not in the log.

The table of a log that begins above 0 can be partial: the state at the log start was lost, so the producers that wrote
before it and not since are unknown. A batch of an unknown producer that is not its first one is then refused in the
same way, since the batches before it may lie below the log start.

Beside the producers the table knows where the batches with message ids lie (`dataplane.replica.id_marks`).

The table at an offset can be copied at little cost (`known`: its values are never changed, only replaced),
encoded, and taken up again, by this replica or another one. Encoded, little-endian, in two pieces; earlier versions
know the first one alone:

    u32 producers       the one that wrote longest ago first
        i64 id, i64 epoch, i64 next sequence, u32 batches       oldest first
            i64 base sequence, i64 base offset, u32 span

    i64 highest id that was forgotten, -1 = none; i64 the newest write of the forgotten ones; i64 time of the log
        both in ns since 1970, 0 = not known
    i64 for each producer, in the same order: the time of the log when it wrote last
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from dataplane.replica.id_marks import NO_IDS, IdMarks
from dataplane.replica.validation import require
from wire.batch import BatchHeader
from wire.error_details import EXPECTED_SEQUENCE, REMEMBERED_MS
from wire.errors import Code, CorruptData, TidelogError
from wire.types import NO_PRODUCER, REMEMBERED_BATCHES, Offset

MAX_PRODUCERS = 20_000
EXPIRATION_MS = 7 * 24 * 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLimits:
    """How many producers of a partition are remembered, and for how long."""

    max_producers: int = MAX_PRODUCERS
    """The one that wrote longest ago is forgotten first."""
    expiration_ms: int = EXPIRATION_MS
    """Since it wrote last."""


DEFAULT_LIMITS = ProducerLimits()


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
    """One producer as the log knows it."""

    epoch: int
    next_sequence: int
    batches: tuple[RememberedBatch, ...]
    """Oldest first, at most REMEMBERED_BATCHES."""
    written: int = 0
    """The time of the log when it wrote last, in ns since 1970; 0: not known."""


class KnownProducers(NamedTuple):
    """All producers as a log knows them."""

    producers: Mapping[int, Producer]
    """By id; the one that wrote longest ago first."""
    forgotten: int = NO_PRODUCER
    """The highest id that was forgotten."""
    forgotten_at: int = 0
    """The time of the log when the last forgotten producer wrote last."""
    time: int = 0
    """The newest time of an append, in ns since 1970; 0: no batch says."""
    is_partial: bool = False
    """Producers that wrote before the log start and not since are not among them, because the state there was lost."""
    id_marks: IdMarks = NO_IDS
    """Where the batches with message ids lie, of whatever producer."""


NOBODY = KnownProducers({})

_COUNT = struct.Struct("<I")
_PRODUCER = struct.Struct("<qqqI")
_BATCH = struct.Struct("<qqI")
_FORGOTTEN_AND_TIME = struct.Struct("<qqq")
_WRITTEN = struct.Struct("<q")
_NS_PER_MS = 1_000_000


class ProducerTable:
    def __init__(self, headers: Iterable[BatchHeader] = (), *, limits: ProducerLimits = DEFAULT_LIMITS) -> None:
        self._max_producers = limits.max_producers
        self._expiration_ns = limits.expiration_ms * _NS_PER_MS
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        self._forgotten = NO_PRODUCER
        self._forgotten_at = 0
        self._time = 0
        self._is_partial = False
        self._id_marks = NO_IDS
        self.rebuild(headers)

    def rebuild(self, headers: Iterable[BatchHeader]) -> None:
        """Forget all and learn it anew from the log."""
        self.restore(NOBODY, headers)

    @property
    def known(self) -> KnownProducers:
        """All of it, now: a copy that later batches do not change."""
        return KnownProducers(
            dict(self._producers),
            self._forgotten,
            self._forgotten_at,
            self._time,
            self._is_partial,
            self._id_marks,
        )

    @property
    def id_marks(self) -> IdMarks:
        """Where the batches with message ids lie."""
        return self._id_marks

    def restore(self, known: KnownProducers, headers: Iterable[BatchHeader] = ()) -> None:
        """Forget all, take up the table at some offset, and learn from the batches behind it."""
        self._producers = OrderedDict(known.producers)
        _, self._forgotten, self._forgotten_at, self._time, self._is_partial, self._id_marks = known
        for header in headers:
            self.record(header)

    def __len__(self) -> int:
        return len(self._producers)

    def validate(self) -> None:
        """Raises InvariantViolation."""
        require(len(self._producers) <= self._max_producers, "no more producers than the limit", len(self._producers))
        written = 0
        for producer_id, producer in self._producers.items():
            found = producer_id, producer
            require(written <= producer.written <= self._time, "the one that wrote longest ago is first", found)
            written = producer.written
            batches = producer.batches
            require(0 < len(batches) <= REMEMBERED_BATCHES, "the last batches of each producer are remembered", found)
            require(
                producer.next_sequence == batches[-1][0] + batches[-1][2], "the last batch says what comes next", found
            )
            for (sequence, base, span), (later_sequence, later_base, _) in pairwise(batches):
                in_order = sequence + span <= later_sequence and base + span <= later_base
                require(in_order, "batches of a producer follow one another", found)

    def check(self, producer_id: int, epoch: int, base_sequence: int, record_count: int) -> Verdict:
        """Judge a batch before it is appended. `producer_id` may be NO_PRODUCER: always fresh."""
        if producer_id == NO_PRODUCER:
            return Fresh()
        known = self._producers.get(producer_id)
        if known is None and (producer_id <= self._forgotten or (self._is_partial and base_sequence)):
            return Rejected(_unknown(producer_id, (self._time - self._forgotten_at) // _NS_PER_MS))
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
        if header.append_time > self._time:
            self._go_on_to(header.append_time)
        if header.has_message_ids:
            self._id_marks = self._id_marks.with_batch(self._time, header.base_offset)
        if header.producer_id != NO_PRODUCER:
            self._learn(header)
            while len(self._producers) > self._max_producers:
                self._forget_oldest()
        while self._producers and self._oldest.written + self._expiration_ns <= self._time:
            self._forget_oldest()

    def _learn(self, header: BatchHeader) -> None:
        producer_id = header.producer_id
        known = self._producers.get(producer_id)
        before = known.batches if known is not None and header.producer_epoch <= known.epoch else ()
        epoch = known.epoch if before and known is not None else header.producer_epoch
        span = header.offset_count  # as many as it was sent with: compaction may have taken records since
        batches = (*before[1 - REMEMBERED_BATCHES :], (header.base_sequence, header.base_offset, span))
        self._producers[producer_id] = Producer(epoch, header.base_sequence + span, batches, self._time)
        self._producers.move_to_end(producer_id)

    def _go_on_to(self, time: int) -> None:
        if not self._time:  # all that is known was written by a leader that did not say when: the time begins here
            self._forgotten_at = time
            for producer_id, producer in self._producers.items():
                self._producers[producer_id] = producer._replace(written=time)
        self._time = time

    @property
    def _oldest(self) -> Producer:
        return next(iter(self._producers.values()))

    def _forget_oldest(self) -> None:
        producer_id, producer = self._producers.popitem(last=False)
        self._forgotten = max(self._forgotten, producer_id)
        self._forgotten_at = producer.written


def encode_producers(known: KnownProducers) -> bytes:
    """The first piece."""
    out = bytearray(_COUNT.pack(len(known.producers)))
    for producer_id, producer in known.producers.items():
        out += _PRODUCER.pack(producer_id, producer.epoch, producer.next_sequence, len(producer.batches))
        for batch in producer.batches:
            out += _BATCH.pack(*batch)
    return bytes(out)


def encode_times(known: KnownProducers) -> bytes:
    """The second piece."""
    written = b"".join(_WRITTEN.pack(producer.written) for producer in known.producers.values())
    return _FORGOTTEN_AND_TIME.pack(known.forgotten, known.forgotten_at, known.time) + written


def decode_producers(payload: bytes, times: bytes | None) -> KnownProducers:
    """`times` is None where a version that does not know the second piece wrote the first. Whom that one has forgotten
    is not known; it did so only when it knew MAX_PRODUCERS. Raises CorruptData."""
    producers = _decode_producers(payload)
    if times is None:
        return KnownProducers(producers, max(producers) if len(producers) >= MAX_PRODUCERS else NO_PRODUCER)
    if len(times) != _FORGOTTEN_AND_TIME.size + len(producers) * _WRITTEN.size:
        raise CorruptData(f"the times of {len(producers)} producers take {len(times)} bytes")
    forgotten, forgotten_at, time = _FORGOTTEN_AND_TIME.unpack_from(times)
    written = _WRITTEN.iter_unpack(times[_FORGOTTEN_AND_TIME.size :])
    dated = {
        number: producer._replace(written=at)
        for (number, producer), (at,) in zip(producers.items(), written, strict=True)
    }
    return KnownProducers(dated, forgotten, forgotten_at, time)


def _decode_producers(payload: bytes) -> dict[int, Producer]:
    try:
        (count,) = _COUNT.unpack_from(payload)
        at = _COUNT.size
        known: dict[int, Producer] = {}
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


def _unknown(producer_id: int, remembered_ms: int) -> TidelogError:
    return TidelogError(
        Code.UNKNOWN_PRODUCER_ID,
        f"producer {producer_id} is not known here and may have been forgotten: it was silent for longer than"
        f" producer_id_expiration_ms, too many others wrote since, or the state at the log start was lost;"
        f" go on under a new id",
        [REMEMBERED_MS.of(remembered_ms)],
    )


def _out_of_order(producer_id: int, sequence: int, expected: int) -> TidelogError:
    return TidelogError(
        Code.OUT_OF_ORDER_SEQUENCE,
        f"producer {producer_id} sent sequence {sequence} where {expected} comes next;"
        f" send the missing batches again first",
        [EXPECTED_SEQUENCE.of(expected)],
    )
