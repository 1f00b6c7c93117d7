"""What the log says about idempotent producers. A function of the log: rebuilt from batch headers, never kept beside
it.

Each producer numbers its records in a partition from 0. The table remembers the last batches of each, so that a batch
sent again is recognised and answered with the offset of the original. A batch whose sequence does not follow the last
one is refused, so that a lost batch cannot be overtaken by the one after it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from wire.batch import BatchHeader
from wire.errors import Code, TidelogError
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


@dataclass(slots=True)
class _Producer:
    epoch: int
    next_sequence: int
    batches: list[tuple[int, int, Offset, Offset]] = field(default_factory=list)
    """(base sequence, record count, base offset, end offset), oldest first, at most REMEMBERED_BATCHES."""


class ProducerTable:
    def __init__(self, headers: Iterable[BatchHeader] = ()) -> None:
        self._producers: OrderedDict[int, _Producer] = OrderedDict()
        self.rebuild(headers)

    def rebuild(self, headers: Iterable[BatchHeader]) -> None:
        """Forget all and learn it anew from the log: at start and after a truncation."""
        self._producers.clear()
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
        for sequence, count, base, end in known.batches:
            if sequence == base_sequence and count == record_count:
                return Duplicate(base, end)
        return Rejected(_out_of_order(producer_id, base_sequence, known.next_sequence))

    def record(self, header: BatchHeader) -> None:
        """Take note of an appended batch; called for every batch, in log order, on every replica."""
        producer_id = header.producer_id
        if producer_id == NO_PRODUCER:
            return
        known = self._producers.get(producer_id)
        if known is None or header.producer_epoch > known.epoch:
            known = self._producers[producer_id] = _Producer(header.producer_epoch, 0)
        # As many as it was sent with: compaction may have taken records since.
        known.next_sequence = header.base_sequence + header.offset_count
        known.batches.append((header.base_sequence, header.offset_count, header.base_offset, header.end_offset))
        del known.batches[:-REMEMBERED_BATCHES]
        self._producers.move_to_end(producer_id)
        if len(self._producers) > MAX_PRODUCERS:
            self._producers.popitem(last=False)


def _out_of_order(producer_id: int, sequence: int, expected: int) -> TidelogError:
    return TidelogError(
        Code.OUT_OF_ORDER_SEQUENCE,
        f"producer {producer_id} sent sequence {sequence} where {expected} comes next;"
        f" send the missing batches again first",
        {"expected_sequence": str(expected)},
    )
