"""Idempotent producers as the log knows them. A function of the log: learned from batch headers, in order.

Each producer numbers its records in a partition from 0. The table remembers the last batches of each, so that a batch
sent again is recognised and answered with the offset of the original. A batch whose sequence does not follow the last
one is refused, so that a lost batch cannot be overtaken by the one after it.

A batch is the one that is remembered under its sequence if it has as many records, and its body the same CRC as the
producer has sent it with (`BatchHeader.sent_crc`). Another batch under a sequence that is taken is refused
(OUT_OF_ORDER_SEQUENCE), and never acknowledged: a client sends the same bytes again. Where the CRC is not known, since
a version before it wrote the batch, the number of records decides.

A producer is forgotten when it has been silent for `expiration_ms`, or when more than `max_producers` others have
written since. The time is that of the log: the newest `append_time` of its batches (R73), so that each replica, and
each recovery, forgets the same producers at the same batch. While nothing is appended no producer is forgotten, and
none by a batch of its own.

A batch of a forgotten producer can be new, or a repetition of one that it wrote before. To tell that from the first
batch of a producer that has never written here, the table keeps the highest id that it has forgotten: ids are handed
out in ascending order, and batches are taken of their owners alone (`wire.security.producer_keys`), so a producer with
a higher id is new, and one with a lower id may have been forgotten (UNKNOWN_PRODUCER_ID). Its client goes on under a
new id. The refusal says for how long back every producer is remembered: batches that its client sent for the first time
since then are not in the log.

The table of a log that begins above 0 can be partial: the state at the log start was lost, so the producers that wrote
before it and not since are unknown. A batch of an unknown producer that is not its first one is then refused in the
same way, since the batches before it may lie below the log start.

Transactional producers, whose ids begin at FIRST_TRANSACTIONAL_ID, are kept apart. A marker ends the transaction of one
and says the epoch of the next: batches of an earlier epoch are refused from then on (PRODUCER_FENCED). A batch of one
that is not known here has a ticket of its coordinator (`wire.security.tickets`), so it is no old one: the producer is
remembered for longer than any ticket is valid, and while its transaction is open. They are forgotten by their silence
alone. When `MAX_TRANSACTIONAL` are known and none may be forgotten, a leader takes no batch of another one.

Beside the producers the table knows their transactions (`dataplane.replica.derived.transaction_table`), and where the
batches with message ids lie (`dataplane.replica.derived.dedup_window`).

The table at an offset can be copied at little cost (`known`: its values are never changed, only replaced),
encoded, and taken up again, by this replica or another one. Encoded, little-endian, in four pieces; earlier versions
know the first one alone, or the first two or three:

    u32 producers       the one that wrote longest ago first
        i64 id, i64 epoch, i64 next sequence, u32 batches       oldest first
            i64 base sequence, i64 base offset, u32 span

    i64 highest id that was forgotten, -1 = none; i64 the newest write of the forgotten ones; i64 time of the log
        both in ns since 1970, 0 = not known
    i64 for each producer, in the same order: the time of the log when it wrote last

    of transactional producers: as the first piece, and then as the last line of the second

    u32 for each batch of the first piece, then of the third, in the same order: its CRC as it was sent; 0: not known
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Final, NamedTuple, Self, TypeAlias

from dataplane.replica.derived.dedup_window import NO_IDS, IdMarks
from dataplane.replica.derived.transaction_table import (
    MAX_ABORTED,
    NO_TRANSACTIONS,
    KnownTransactions,
    TransactionTable,
)
from wire.batch import BatchHeader
from wire.error_details import EXPECTED_SEQUENCE, LIMIT, REMEMBERED_MS, RETRY_AFTER_MS
from wire.errors import Code, CorruptData, TidelogError, require
from wire.types import FIRST_TRANSACTIONAL_ID, NO_PRODUCER, REMEMBERED_BATCHES, Offset

MAX_PRODUCERS = 20_000
EXPIRATION_MS = 7 * 24 * 3_600_000
MAX_TRANSACTIONAL: Final = 20_000
"""Transactional producers of a partition whose batches are taken. Markers are taken of more: their number is bounded by
that of transactional ids, which coordinators bound."""
TRANSACTIONAL_MS: Final = 2 * 3_600_000
"""For so long a transactional producer is remembered at least: twice as long as a ticket is valid."""


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
    is_gap: bool = False
    """Batches of the producer in front of it are missing: this one was never in the log."""


Verdict: TypeAlias = Fresh | Duplicate | Rejected


def may_be_stored(verdict: Verdict) -> bool:
    """The batch may be in the log, or have been."""
    return isinstance(verdict, Duplicate) or (isinstance(verdict, Rejected) and not verdict.is_gap)


class RememberedBatch(NamedTuple):
    base_sequence: int
    base_offset: int
    span: int
    """In offsets, which is records as they were sent: compaction takes some of them, and changes neither."""
    sent_crc: int = 0
    """`BatchHeader.sent_crc`; 0: not known."""


class Producer(bytes):
    """One producer as the log knows it: its fields in one row of bytes, since a table has up to 20,000 of them, in
    several states, and a broker many tables."""

    __slots__ = ()

    def __new__(cls, epoch: int, next_sequence: int, packed: bytes, written: int = 0) -> Self:
        """`packed`: its batches, as `packed_batches` makes them; `written`: the time of the log when it wrote last, in
        ns since 1970; 0: not known."""
        return bytes.__new__(cls, _HEAD.pack(epoch, next_sequence, written) + packed)

    @property
    def epoch(self) -> int:
        return _field(self, 0)

    @property
    def next_sequence(self) -> int:
        return _field(self, 8)

    @property
    def written(self) -> int:
        return _field(self, 16)

    @property
    def packed(self) -> bytes:
        return self[_HEAD.size :]

    @property
    def batches(self) -> tuple[RememberedBatch, ...]:
        """Oldest first, at most REMEMBERED_BATCHES. None where a marker came since."""
        return tuple(map(RememberedBatch._make, _PACKED.iter_unpack(self.packed)))

    def written_at(self, time: int) -> Producer:
        """The same, when it wrote last at that time of the log."""
        return Producer(self.epoch, self.next_sequence, self.packed, time)

    def with_batches(self, packed: bytes) -> Producer:
        return Producer(self.epoch, self.next_sequence, packed, self.written)

    def __repr__(self) -> str:
        return f"Producer({self.epoch}, {self.next_sequence}, {self.batches}, written={self.written})"


def _field(producer: Producer, at: int) -> int:
    value: int = _FIELD.unpack_from(producer, at)[0]
    return value


def packed_batches(batches: Iterable[RememberedBatch]) -> bytes:
    """Oldest first."""
    return b"".join(_PACKED.pack(*batch) for batch in batches)


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
    transactional: Mapping[int, Producer] = MappingProxyType({})
    """As `producers`: those of transactions."""
    transactions: KnownTransactions = NO_TRANSACTIONS

    @property
    def references(self) -> int:
        """The cost of a copy."""
        return len(self.producers) + len(self.transactional) + len(self.transactions.aborted)


NOBODY = KnownProducers({})

_COUNT = struct.Struct("<I")
_PRODUCER = struct.Struct("<qqqI")
_BATCH = struct.Struct("<qqI")
_PACKED = struct.Struct("<qqII")
_HEAD = struct.Struct("<qqq")
_FIELD = struct.Struct("<q")
_DIGEST = struct.Struct("<I")
_FORGOTTEN_AND_TIME = struct.Struct("<qqq")
_WRITTEN = struct.Struct("<q")
_RETRY_LATER_MS = 1000
_NS_PER_MS = 1_000_000
_TRANSACTIONAL_NS = TRANSACTIONAL_MS * _NS_PER_MS


class ProducerTable:
    def __init__(self, headers: Iterable[BatchHeader] = (), *, limits: ProducerLimits = DEFAULT_LIMITS) -> None:
        self._max_producers = limits.max_producers
        self._expiration_ns = limits.expiration_ms * _NS_PER_MS
        self._transactional_ns = max(limits.expiration_ms, TRANSACTIONAL_MS) * _NS_PER_MS
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        self._transactional: OrderedDict[int, Producer] = OrderedDict()
        self.transactions = TransactionTable()
        """The same object for good."""
        self._forgotten = NO_PRODUCER
        self._forgotten_at = 0
        self._credible = NO_PRODUCER
        """The highest id that was forgotten, of those that were ever given out."""
        self._invented: frozenset[int] = frozenset()
        """Known ids that nobody had been given when this replica became the leader."""
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
            dict(self._transactional),
            self.transactions.known,
        )

    @property
    def time(self) -> int:
        """The time of the log, ns since 1970; 0: no batch says."""
        return self._time

    @property
    def id_marks(self) -> IdMarks:
        """Where the batches with message ids lie."""
        return self._id_marks

    def restore(self, known: KnownProducers, headers: Iterable[BatchHeader] = ()) -> None:
        """Forget all, take up the table at some offset, and learn from the batches behind it."""
        self._producers = OrderedDict(known.producers)
        self._transactional = OrderedDict(known.transactional)
        self._forgotten, self._forgotten_at, self._time = known.forgotten, known.forgotten_at, known.time
        self._credible, self._invented = known.forgotten, frozenset()
        self._is_partial, self._id_marks = known.is_partial, known.id_marks
        self.transactions.restore(known.transactions)
        for header in headers:
            self.record(header)

    def begin_leading(self, next_id: int) -> None:
        """`next_id`: nobody had been given this id or a higher one when the leader was elected. Earlier versions took
        batches under any id: one that nobody had is not taken for a forgotten producer, which would make every lower id
        an unknown one for good. What follows from the log stays as it is: only the judgement of a leader is another."""
        self._invented = frozenset(each for each in self._producers if each >= next_id)
        self._credible = min(self._forgotten, next_id - 1)

    def __len__(self) -> int:
        return len(self._producers) + len(self._transactional)

    def grows_with(self, producer_id: int) -> bool:
        """A batch of that producer makes it remember one more: it is not known, and takes the place of no other."""
        if producer_id >= FIRST_TRANSACTIONAL_ID:
            return producer_id not in self._transactional
        return producer_id not in self._producers and len(self._producers) < self._max_producers

    def is_over(self, time: int) -> bool:
        """All would be forgotten with a batch that is appended at that time of the log."""
        return bool(self._time) and max(self._expiration_ns, self._transactional_ns) <= time - self._time

    def validate(self) -> None:
        """Raises InvariantViolation."""
        require(len(self._producers) <= self._max_producers, "no more producers than the limit", len(self._producers))
        require(
            all(each < FIRST_TRANSACTIONAL_ID for each in self._producers), "ids below are of no transactions", None
        )
        require(all(each >= FIRST_TRANSACTIONAL_ID for each in self._transactional), "ids above are of them", None)
        self._validate_each(self._producers, 1)
        self._validate_each(self._transactional, 0)
        for producer_id in self.transactions.known.open:
            require(producer_id in self._transactional, "the producer of an open transaction is known", producer_id)
        self.transactions.validate()

    def _validate_each(self, producers: Mapping[int, Producer], least_batches: int) -> None:
        written = 0
        for producer_id, producer in producers.items():
            found = producer_id, producer
            require(written <= producer.written <= self._time, "the one that wrote longest ago is first", found)
            written = producer.written
            batches = producer.batches
            is_bounded = least_batches <= len(batches) <= REMEMBERED_BATCHES
            require(is_bounded, "the last batches of each producer are remembered", found)
            follows = batches[-1].base_sequence + batches[-1].span if batches else 0
            require(producer.next_sequence == follows, "the last batch says what comes next", found)
            for (sequence, base, span, _), (later_sequence, later_base, _, _) in pairwise(batches):
                in_order = sequence + span <= later_sequence and base + span <= later_base
                require(in_order, "batches of a producer follow one another", found)

    # R33: Producer state is a function of the log: epoch, next sequence and the last five batches of each producer id,
    # learned from batch headers on every replica. A repeated batch is answered with the original's offset once the
    # original is committed; a gap is OUT_OF_ORDER_SEQUENCE, an older epoch PRODUCER_FENCED. A producer that may have
    # been forgotten is told UNKNOWN_PRODUCER_ID, and nothing is stored. Until every member of the ISR has fetched in
    # this LeaderEpoch the leader says UNAVAILABLE instead of either.
    # Hazard: A repetition that is stored twice; an idle producer that is told of lost records; a new producer that is
    # taken for a forgotten one; two writers that both get the offset that they expect.
    # Not covered: A copy of an append that something between client and leader delivers after the producer was
    # forgotten is refused, and its batch may be stored twice. With acks=leader and an ISR below `min_isr`, a batch
    # that only an eligible replica holds may be stored twice.
    def check(self, producer_id: int, epoch: int, base_sequence: int, record_count: int, body_crc: int = 0) -> Verdict:
        """Judge a batch before it is appended. `producer_id` may be NO_PRODUCER: always fresh. `body_crc`: as it was
        sent; 0: not known."""
        if producer_id == NO_PRODUCER:
            return Fresh()
        is_transactional = producer_id >= FIRST_TRANSACTIONAL_ID
        known = (self._transactional if is_transactional else self._producers).get(producer_id)
        may_be_forgotten = producer_id <= self._credible and not is_transactional
        if known is None and (may_be_forgotten or (self._is_partial and base_sequence)):
            return Rejected(_unknown(producer_id, (self._time - self._forgotten_at) // _NS_PER_MS))
        if known is None or epoch > known.epoch:
            if base_sequence == 0:
                return Fresh()
            return Rejected(_out_of_order(producer_id, base_sequence, 0), is_gap=True)
        if epoch < known.epoch:
            return Rejected(
                TidelogError(
                    Code.PRODUCER_FENCED,
                    f"producer {producer_id} has epoch {known.epoch} here and sent {epoch}; make a new producer",
                )
            )
        if base_sequence == known.next_sequence:
            return Fresh()
        for sequence, base, span, sent_crc in _PACKED.iter_unpack(known.packed):
            if sequence == base_sequence and span == record_count:
                if sent_crc and body_crc and sent_crc != body_crc:
                    return Rejected(_other_content(producer_id, base_sequence, known.next_sequence))
                return Duplicate(Offset(base), Offset(base + span))
        error = _out_of_order(producer_id, base_sequence, known.next_sequence)
        return Rejected(error, is_gap=base_sequence > known.next_sequence)

    def epoch_of(self, producer_id: int) -> int | None:
        """The epoch in which a transactional producer may write; None: it is not known here, and may in any."""
        known = self._transactional.get(producer_id)
        return None if known is None else known.epoch

    # Keeps R48.
    def refuse_transaction(self, producer_id: int, epoch: int, now_ns: int) -> TidelogError | None:
        """Why no batch of a transactional producer may be appended, that `check` has found to be fresh. `now_ns`: the
        time of the log (`LogClock`)."""
        known = self._transactional.get(producer_id)
        if self.transactions.opened_at(producer_id) is not None:
            if known is None or known.epoch >= epoch:
                return None
            return TidelogError(
                Code.TRANSACTION_ABORTED,
                f"the transaction of producer {producer_id} in epoch {known.epoch} has no end here; abort this one, of"
                f" epoch {epoch}, and begin again",
            )
        if self.transactions.aborted_count >= MAX_ABORTED:
            return _limit_reached("aborted_transactions", f"{MAX_ABORTED} aborted transactions are remembered here")
        if known is None and len(self._transactional) >= MAX_TRANSACTIONAL and not self._may_forget(now_ns):
            return _limit_reached("transactional_producers", f"{MAX_TRANSACTIONAL} are remembered here")
        return None

    def _may_forget(self, time: int) -> bool:
        """Whether a transactional producer could be forgotten at that time of the log."""
        for producer_id, producer in self._transactional.items():
            if producer.written + _TRANSACTIONAL_NS > time:
                return False
            if self.transactions.opened_at(producer_id) is None:
                return True
        return False

    def remembers(self, header: BatchHeader) -> bool:
        """Whether that batch is one by which a repetition is recognised. Any thread."""
        is_transactional = header.producer_id >= FIRST_TRANSACTIONAL_ID
        known = (self._transactional if is_transactional else self._producers).get(header.producer_id)
        return known is not None and any(
            base == header.base_offset for _, base, _, _ in _PACKED.iter_unpack(known.packed)
        )

    # Keeps R33.
    def record(self, header: BatchHeader) -> None:
        """Take note of an appended batch; called for every batch, in log order, on every replica."""
        if header.append_time > self._time:
            self._go_on_to(header.append_time)
        if header.has_message_ids:
            self._id_marks = self._id_marks.with_batch(self._time, header.base_offset)
        if header.producer_id != NO_PRODUCER:
            if header.producer_id >= FIRST_TRANSACTIONAL_ID:
                self._record_transactional(header)
            else:
                self._learn(header, self._producers)
                while len(self._producers) > self._max_producers:
                    self._forget_oldest()
        while self._producers and self._oldest.written + self._expiration_ns <= self._time:
            self._forget_oldest()
        if self._transactional:
            self._forget_transactional(self._transactional_ns)

    def _learn(self, header: BatchHeader, producers: OrderedDict[int, Producer]) -> None:
        producer_id = header.producer_id
        known = producers.get(producer_id)
        before = known.packed if known is not None and header.producer_epoch <= known.epoch else b""
        epoch = known.epoch if before and known is not None else header.producer_epoch
        span = header.offset_count  # as many as it was sent with: compaction may have taken records since
        batch = _PACKED.pack(header.base_sequence, header.base_offset, span, header.sent_crc)
        packed = before[(1 - REMEMBERED_BATCHES) * _PACKED.size :] + batch
        producers[producer_id] = Producer(epoch, header.base_sequence + span, packed, self._time)
        producers.move_to_end(producer_id)

    def _record_transactional(self, header: BatchHeader) -> None:
        producers = self._transactional
        if header.marker is None:
            self._learn(header, producers)
        else:
            producers[header.producer_id] = Producer(header.producer_epoch, 0, b"", self._time)
            producers.move_to_end(header.producer_id)
        self.transactions.record(header)
        if len(producers) > MAX_TRANSACTIONAL:
            self._forget_transactional(_TRANSACTIONAL_NS, down_to=MAX_TRANSACTIONAL)

    def _forget_transactional(self, kept_ns: int, down_to: int = 0) -> None:
        """Forget those that wrote so long ago, until `down_to` are left. One whose transaction is open counts as if it
        had written now."""
        producers = self._transactional
        while len(producers) > down_to:
            producer_id, producer = next(iter(producers.items()))
            if producer.written + kept_ns > self._time:
                break
            if self.transactions.opened_at(producer_id) is None:
                del producers[producer_id]
            else:
                producers[producer_id] = producer.written_at(self._time)
                producers.move_to_end(producer_id)

    def _go_on_to(self, time: int) -> None:
        if not self._time:  # all that is known was written by a leader that did not say when: the time begins here
            self._forgotten_at = time
            self._id_marks = self._id_marks.dated(time)
            for producers in (self._producers, self._transactional):
                for producer_id, producer in producers.items():
                    producers[producer_id] = producer.written_at(time)
        self._time = time

    @property
    def _oldest(self) -> Producer:
        return next(iter(self._producers.values()))

    def _forget_oldest(self) -> None:
        producer_id, producer = self._producers.popitem(last=False)
        self._forgotten = max(self._forgotten, producer_id)
        if producer_id not in self._invented:
            self._credible = max(self._credible, producer_id)
        self._forgotten_at = producer.written


def encode_producers(known: KnownProducers) -> bytes:
    """The first piece."""
    return _encode_each(known.producers)


def encode_times(known: KnownProducers) -> bytes:
    """The second piece."""
    head = _FORGOTTEN_AND_TIME.pack(known.forgotten, known.forgotten_at, known.time)
    return head + _encode_written(known.producers)


def encode_transactional(known: KnownProducers) -> bytes:
    """The third piece."""
    return _encode_each(known.transactional) + _encode_written(known.transactional)


def encode_digests(known: KnownProducers) -> bytes:
    """The fourth piece."""
    return b"".join(
        _DIGEST.pack(sent_crc)
        for producer in (*known.producers.values(), *known.transactional.values())
        for _, _, _, sent_crc in _PACKED.iter_unpack(producer.packed)
    )


def _encode_each(producers: Mapping[int, Producer]) -> bytes:
    out = bytearray(_COUNT.pack(len(producers)))
    for producer_id, producer in producers.items():
        count = len(producer.packed) // _PACKED.size
        out += _PRODUCER.pack(producer_id, producer.epoch, producer.next_sequence, count)
        for sequence, base, span, _ in _PACKED.iter_unpack(producer.packed):
            out += _BATCH.pack(sequence, base, span)
    return bytes(out)


def _encode_written(producers: Mapping[int, Producer]) -> bytes:
    return b"".join(_WRITTEN.pack(producer.written) for producer in producers.values())


def decode_producers(payload: bytes, times: bytes | None) -> KnownProducers:
    """`times` is None where a version that does not know the second piece wrote the first. Whom that one has forgotten
    is not known; it did so only when it knew MAX_PRODUCERS. Raises CorruptData."""
    producers, end = _decode_each(payload)
    if end != len(payload):
        raise CorruptData(f"the state of {len(producers)} producers takes {end} bytes, and there are {len(payload)}")
    if times is None:
        return KnownProducers(producers, max(producers) if len(producers) >= MAX_PRODUCERS else NO_PRODUCER)
    if len(times) < _FORGOTTEN_AND_TIME.size:
        raise CorruptData(f"the times of producers take {len(times)} bytes")
    forgotten, forgotten_at, time = _FORGOTTEN_AND_TIME.unpack_from(times)
    dated = _with_written(producers, times[_FORGOTTEN_AND_TIME.size :])
    return KnownProducers(dated, forgotten, forgotten_at, time)


def decode_transactional(payload: bytes) -> dict[int, Producer]:
    """Raises CorruptData."""
    producers, end = _decode_each(payload)
    return _with_written(producers, payload[end:])


def with_digests(known: KnownProducers, payload: bytes) -> KnownProducers:
    """`known`, decoded, with the fourth piece. Raises CorruptData."""
    try:
        digests = _DIGEST.iter_unpack(payload)
        producers, transactional = (
            {number: _digested(producer, digests) for number, producer in each.items()}
            for each in (known.producers, known.transactional)
        )
    except (struct.error, StopIteration):
        raise CorruptData(f"{len(payload)} bytes of CRCs do not belong to the batches of the producers") from None
    if next(digests, None) is not None:
        raise CorruptData(f"{len(payload)} bytes of CRCs are more than the producers have batches")
    return known._replace(producers=producers, transactional=transactional)


def _digested(producer: Producer, digests: Iterator[tuple[int]]) -> Producer:
    packed = b"".join(
        _PACKED.pack(sequence, base, span, next(digests)[0])
        for sequence, base, span, _ in list(_PACKED.iter_unpack(producer.packed))
    )
    return producer.with_batches(packed)


def _decode_each(payload: bytes) -> tuple[dict[int, Producer], int]:
    """Producers, and where they end."""
    try:
        (count,) = _COUNT.unpack_from(payload)
        at = _COUNT.size
        known: dict[int, Producer] = {}
        for _ in range(count):
            producer_id, epoch, next_sequence, batch_count = _PRODUCER.unpack_from(payload, at)
            at += _PRODUCER.size
            size = batch_count * _BATCH.size
            packed = b"".join(_PACKED.pack(*batch, 0) for batch in _BATCH.iter_unpack(payload[at : at + size]))
            if len(packed) != batch_count * _PACKED.size:
                found = len(packed) // _PACKED.size
                raise CorruptData(f"producer {producer_id} has {found} batches instead of {batch_count}")
            at += size
            known[producer_id] = Producer(epoch, next_sequence, packed)
    except struct.error as error:
        raise CorruptData(f"the state of producers is cut off: {error}") from error
    return known, at


def _with_written(producers: dict[int, Producer], times: bytes) -> dict[int, Producer]:
    if len(times) != len(producers) * _WRITTEN.size:
        raise CorruptData(f"the times of {len(producers)} producers take {len(times)} bytes")
    written = _WRITTEN.iter_unpack(times)
    return {
        number: producer.written_at(at) for (number, producer), (at,) in zip(producers.items(), written, strict=True)
    }


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


# R75: A repetition has the bytes of its original. The header of each batch of a producer keeps the CRC-32C of the body
# as it was sent (`sent_crc`); a batch under a remembered sequence with as many records and another CRC is
# OUT_OF_ORDER_SEQUENCE, neither stored nor acknowledged. The CRC of a batch of an earlier version is not known, and
# the number of records decides.
# Hazard: A record is acknowledged with the receipt of another one.
def _other_content(producer_id: int, sequence: int, expected: int) -> TidelogError:
    return TidelogError(
        Code.OUT_OF_ORDER_SEQUENCE,
        f"producer {producer_id} sent another batch than the one that is in the log under sequence {sequence}: it was"
        " not stored; whoever sends a batch again sends the same bytes, and records get a sequence of their own",
        [EXPECTED_SEQUENCE.of(expected)],
    )


def _limit_reached(limit: str, why: str) -> TidelogError:
    return TidelogError(
        Code.LIMIT_REACHED,
        f"no transaction can begin in this partition: {why}; try again later",
        [LIMIT.of(limit), RETRY_AFTER_MS.of(_RETRY_LATER_MS)],
    )
