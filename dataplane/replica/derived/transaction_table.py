"""Transactions as the log of one partition knows them. A function of the log: learned from batch headers, in order.

    none ──a transactional batch──> open ──marker──> ended ──HW above the marker──> committed, or aborted: settled

A producer has one transaction at a time in a partition. It is open from its first batch on (one that compaction has
emptied counts as well), until a marker of that producer. Each marker ends what is open of its producer, and does
nothing where nothing is open.

What always holds
* The last stable offset is at or below the first batch of every transaction that is open, or whose marker may still be
  lost because it is not committed. So whatever lies below it is decided, and stays so.
* A transaction that was aborted is remembered as long as the log may hold records of it. Compaction and retention take
  these away; whoever knows that says so with `forget_aborted`. One that has no record left when the log is read again
  is not remembered at all.

Which marker is committed is no fact of the log. `on_committed` brings it, and only takes away what needs no memory:
`last_stable` is right without it.

The state at an offset can be copied (`known`: its values are never changed, only replaced), encoded, and taken up again
by this replica or another one. Encoded, little-endian:

    u32 open            the one that began first comes first
        i64 producer, i64 offset of the first batch, u8 1: it has records
    u32 ended           in the order of their markers
        i64 first batch, i64 marker
    u32 aborted         the same
        i64 producer, i64 first batch, i64 marker, i64 first batch of those that end later, or more

Threads: `record`, `restore`, `known`, `on_committed` and `forget_aborted` by the thread that appends, or while nobody
appends; `last_stable` and `aborted` by any.

## Batches of aborted transactions

Batches of aborted transactions: which they are, and an answer to a consumer without their records.

A transaction is one producer's, and its producer has no other one at the same time. So a batch of data belongs to an
aborted transaction if it is transactional, and lies between the first batch and the marker of an aborted transaction of
its producer.

In an answer a control batch over the same offsets stands in its place (`wire.batch.emptied`): readers pass over it as
they do over any control batch, and need not know that there are transactions.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from wire.batch import BatchHeader, Marker, emptied, parse_header, scan_batches
from wire.batch.header import INT64_MAX
from wire.errors import CorruptData, require
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from wire.batch import BatchHeader, ScannedBatch
    from wire.types import Buffer, Offset


class AbortedBatches:
    """Those of some aborted transactions, given in the order of their markers."""

    def __init__(self, transactions: Iterable[Aborted] = ()) -> None:
        self._ranges: dict[int, list[tuple[float, float]]] = {}
        """(first batch, marker) by producer id, in the order of the log."""
        for each in transactions:
            self._ranges.setdefault(each.producer_id, []).append((each.first, each.marker))

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def has(self, producer_id: int, base_offset: int) -> bool:
        """Whether a transactional batch of data is one of them."""
        ranges = self._ranges.get(producer_id)
        if ranges is None:
            return False
        number = bisect_right(ranges, (base_offset, math.inf)) - 1
        return number >= 0 and base_offset < ranges[number][1]

    def has_batch(self, header: BatchHeader) -> bool:
        """Whether the batch with this header is one of them."""
        return header.is_transactional and not header.is_control and self.has(header.producer_id, header.base_offset)


def is_aborted(header: BatchHeader, transactions: TransactionTable) -> bool:
    """Whether the batch with this header belongs to an aborted transaction."""
    return header.is_transactional and AbortedBatches(
        transactions.aborted(header.base_offset, header.end_offset)
    ).has_batch(header)


# Keeps R50.
def without_aborted(
    batches: Sequence[Buffer], offset: Offset, transactions: TransactionTable, max_bytes: int
) -> list[Buffer]:
    """Whole batches from the one with `offset` on, in parts split anywhere, with an empty one in the place of each that
    belongs to an aborted transaction. Their headers were checked before.

    A batch without a single key, value and header is smaller than an empty one. So the result may end before the last
    batch, for it has no more than `max_bytes`, unless it is one batch.
    """
    if not batches or not transactions.has_aborted_above(offset):
        return [*batches]
    data = memoryview(batches[0] if len(batches) == 1 else b"".join(batches))
    scanned = [*scan_batches(data)]
    if not scanned:
        return []
    aborted = AbortedBatches(transactions.aborted(offset, parse_header(data, scanned[-1].at).end_offset))
    return _emptied(data, scanned, aborted, max_bytes) if aborted else [data]


def _emptied(
    data: memoryview, scanned: Sequence[ScannedBatch], aborted: AbortedBatches, max_bytes: int
) -> list[Buffer]:
    parts: list[Buffer] = []
    copied = size = 0
    end = len(data)
    for batch in scanned:
        replaced: list[Buffer] | None = None
        if batch.is_transactional_data and aborted.has(batch.producer_id, batch.base_offset):
            header = parse_header(data, batch.at)
            replaced = emptied(header).restamp()[0]
        added = batch.size if replaced is None else sum(map(len, replaced))
        if size and size + added > max_bytes:
            end = batch.at
            break
        size += added
        if replaced is not None:
            if copied < batch.at:
                parts.append(data[copied : batch.at])
            parts += replaced
            copied = batch.at + batch.size
    if copied < end:
        parts.append(data[copied:end])
    return parts


MAX_ABORTED: Final = 100_000
"""Aborted transactions that are remembered. With so many a leader begins no new transaction here."""

_NONE_OPEN: Final = Offset(INT64_MAX)


class Open(NamedTuple):
    first: Offset
    """Where its first batch begins."""
    has_records: bool
    """False: compaction has emptied all batches of it."""


class Ended(NamedTuple):
    first: Offset
    marker: Offset


class Aborted(NamedTuple):
    """An aborted transaction: all data batches of its producer from `first` on and below `marker` belong to it."""

    producer_id: int
    first: Offset
    marker: Offset
    stable: Offset
    """No transaction that ends later has a batch below it."""


class KnownTransactions(NamedTuple):
    """All transactions as a log knows them."""

    open: Mapping[int, Open] = MappingProxyType({})
    """By producer; the one that began first comes first."""
    ended: Sequence[Ended] = ()
    """Those whose marker is not known to be committed, and that no later one makes superfluous. In the order of their
    markers, which is that of their first batches."""
    aborted: Sequence[Aborted] = ()
    """In the order of their markers."""


NO_TRANSACTIONS: Final = KnownTransactions()


class TransactionTable:
    def __init__(self, headers: Iterable[BatchHeader] = ()) -> None:
        self._open: OrderedDict[int, Open] = OrderedDict()
        self._first_open = _NONE_OPEN
        self._ended: list[Ended] = []
        self._aborted: list[Aborted] = []
        for header in headers:
            self.record(header)

    @property
    def known(self) -> KnownTransactions:
        """All of it, now: a copy that later batches do not change."""
        if not (self._open or self._ended or self._aborted):
            return NO_TRANSACTIONS
        return KnownTransactions(dict(self._open), tuple(self._ended), tuple(self._aborted))

    def restore(self, known: KnownTransactions) -> None:
        """Forget all, and take up the state at some offset."""
        self._open = OrderedDict(known.open)
        self._ended = list(known.ended)
        self._aborted = list(known.aborted)
        self._note_first()

    @property
    def aborted_count(self) -> int:
        return len(self._aborted)

    def opened_at(self, producer_id: int) -> Offset | None:
        """Where the first batch of its open transaction begins; None: it has none open."""
        found = self._open.get(producer_id)
        return None if found is None else found.first

    def record(self, header: BatchHeader) -> None:
        """Take note of an appended batch; called for every batch of a transactional producer, in log order, on every
        replica."""
        marker = header.marker
        if marker is not None:
            self._end(header, marker)
        elif header.is_transactional:
            known = self._open.get(header.producer_id)
            if known is None:
                self._open[header.producer_id] = Open(header.base_offset, not header.is_control)
                self._note_first()
            elif not known.has_records and not header.is_control:
                self._open[header.producer_id] = Open(known.first, True)

    def _end(self, header: BatchHeader, marker: Marker) -> None:
        opened = self._open.get(header.producer_id)
        if opened is None:
            return
        first, at = opened.first, header.base_offset
        while self._ended and self._ended[-1].first >= first:  # what holds this one back holds that one back
            self._ended.pop()
        self._ended.append(Ended(first, at))
        del self._open[header.producer_id]  # now that it holds `last_stable` back as an ended one: other threads ask
        self._note_first()
        if marker is Marker.ABORT and opened.has_records:
            stable = Offset(min(self._first_open, at + 1))
            self._aborted.append(Aborted(header.producer_id, first, at, stable))

    def _note_first(self) -> None:
        self._first_open = next(iter(self._open.values())).first if self._open else _NONE_OPEN

    def on_committed(self, high_watermark: Offset) -> None:
        """Everything below it is committed."""
        ended = self._ended
        if ended and ended[0].marker < high_watermark:
            self._ended = ended[bisect_left(ended, high_watermark, key=_marker_of) :]

    def forget_aborted(self, below: Offset) -> None:
        """No batch below this offset has records of an aborted transaction any more."""
        aborted = self._aborted
        if aborted and aborted[0].marker < below:
            self._aborted = aborted[bisect_left(aborted, below, key=_marker_of) :]

    # R50: Consumers get committed transactions, whole or not yet, and nothing of aborted ones. Unless a FetchRequest
    # says `read_uncommitted`, the last stable offset of the replica takes the place of its HW: the smallest of its HW,
    # the first batch of each open transaction, and the first batch of each one whose marker is not below the HW. Below
    # it a batch of an aborted transaction is sent as an EMPTIED control batch over the same offsets.
    # Hazard: Records that are read and then taken back; half of a transaction; consumers that wait for ever.
    # Not covered: Where the first records of an open transaction were removed, consumers wait at the first record that
    # is left. Records outside of the transaction that lie between its records are read between them. A marker takes an
    # offset.
    def last_stable(self, high_watermark: Offset) -> Offset:
        """The end, exclusive, of what is committed and belongs to no transaction that may turn out either way. It may
        lie below the log start, where a transaction began there that is open."""
        first, all_ended = self._first_open, self._ended
        if all_ended and all_ended[-1].marker >= high_watermark:
            for ended in all_ended:  # seldom more than one below the HW
                if ended.marker >= high_watermark:
                    first = min(first, ended.first)
                    break
        return min(high_watermark, first)

    def has_aborted_above(self, offset: Offset) -> bool:
        """Whether an aborted transaction may have a batch that ends above `offset`."""
        aborted = self._aborted
        return bool(aborted) and aborted[-1].marker > offset

    def aborted(self, start: Offset, end: Offset) -> list[Aborted]:
        """The aborted transactions that may have a batch which holds an offset from `start` to `end`, exclusive, in the
        order of their markers."""
        aborted = self._aborted
        if not aborted or aborted[-1].marker <= start:
            return []
        found = []
        for at in range(bisect_right(aborted, start, key=_marker_of), len(aborted)):
            each = aborted[at]
            if each.first < end:
                found.append(each)
            if each.stable >= end:
                break
        return found

    def validate(self) -> None:
        """Raises InvariantViolation."""
        firsts = [each.first for each in self._open.values()]
        require(firsts == sorted(firsts), "the transaction that began first is first", self._open)
        require(self._first_open == min(firsts, default=_NONE_OPEN), "the first open one is known", self._open)
        require(all(each.first < each.marker for each in self._ended), "a marker follows its batches", self._ended)
        for ended, later in pairwise(self._ended):
            in_order = ended.first < later.first and ended.marker < later.marker
            require(in_order, "ended transactions hold back the end one after the other", (ended, later))
        for aborted in self._aborted:
            require(aborted.first < aborted.marker, "a marker follows its batches", aborted)
        for before, after in pairwise(self._aborted):
            in_order = before.marker < after.marker and before.stable <= after.stable and before.stable <= after.first
            require(in_order, "aborted transactions are in the order of their markers", (before, after))


def _marker_of(each: Ended | Aborted) -> Offset:
    return each.marker


_COUNT = struct.Struct("<I")
_OPEN = struct.Struct("<qqB")
_ENDED = struct.Struct("<qq")
_ABORTED = struct.Struct("<qqqq")


def encode_transactions(known: KnownTransactions) -> bytes:
    out = bytearray(_COUNT.pack(len(known.open)))
    for producer_id, opened in known.open.items():
        out += _OPEN.pack(producer_id, opened.first, opened.has_records)
    out += _COUNT.pack(len(known.ended))
    for ended in known.ended:
        out += _ENDED.pack(*ended)
    out += _COUNT.pack(len(known.aborted))
    for aborted in known.aborted:
        out += _ABORTED.pack(*aborted)
    return bytes(out)


def decode_transactions(payload: bytes) -> KnownTransactions:
    """Raises CorruptData."""
    at = 0
    pieces: list[list[tuple[int, ...]]] = []
    for form in (_OPEN, _ENDED, _ABORTED):
        try:
            (count,) = _COUNT.unpack_from(payload, at)
        except struct.error as error:
            raise CorruptData(f"the state of transactions is cut off: {error}") from error
        begin = at + _COUNT.size
        at = begin + count * form.size
        if at > len(payload):
            raise CorruptData(f"the state of transactions is cut off: {count} of {form.size} bytes at byte {begin}")
        pieces.append(list(form.iter_unpack(payload[begin:at])))
    if at != len(payload):
        raise CorruptData(f"the state of transactions takes {at} bytes, and there are {len(payload)}")
    opened, ended, aborted = pieces
    return KnownTransactions(
        {producer_id: Open(Offset(first), bool(has_records)) for producer_id, first, has_records in opened},
        tuple(Ended(Offset(first), Offset(marker)) for first, marker in ended),
        tuple(
            Aborted(producer_id, Offset(first), Offset(marker), Offset(stable))
            for producer_id, first, marker, stable in aborted
        ),
    )
