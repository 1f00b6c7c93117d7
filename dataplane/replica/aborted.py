"""Batches of aborted transactions: which they are, and an answer to a consumer without their records.

A transaction is one producer's, and its producer has no other one at the same time. So a batch of data belongs to an
aborted transaction if it is transactional, and lies between the first batch and the marker of an aborted transaction of
its producer.

In an answer a control batch over the same offsets stands in its place (`wire.batch.emptied`): readers pass over it as
they do over any control batch, and need not know that there are transactions.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from typing import TYPE_CHECKING

from wire.batch import emptied, parse_header, scan_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dataplane.replica.transactions import Aborted, TransactionTable
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
