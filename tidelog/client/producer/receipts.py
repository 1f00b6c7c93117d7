"""Receipts and failures of a producer's batches, given to the futures of its callers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from typing import Final

from tidelog.client.base.records import BatchReceipt, Receipt
from tidelog.client.producer.batches import PendingBatch
from tidelog.client.producer.layout_routes import Split
from wire.errors import TidelogError

NO_ORIGINALS: Final[Mapping[int, int]] = {}


class Receipts:
    """Remembers the first failure that no caller has seen, for `flush`."""

    def __init__(self, *, is_quiet: bool = False) -> None:
        """`is_quiet`: failures are raised elsewhere as well, so asyncio need not report those that no caller has
        read."""
        self.awaited: set[asyncio.Future[Receipt]] = set()
        """Futures of `send`: it raises their failures, and `flush` does not raise them again."""
        self._is_quiet = is_quiet
        self._first_failure: TidelogError | None = None

    def acknowledge(
        self, batch: PendingBatch, partition: int, base_offset: int, originals: Mapping[int, int] = NO_ORIGINALS
    ) -> None:
        """`base_offset` is negative where offsets are not known (acks=none). `originals`: those of `Acknowledged`."""
        step = 0 if base_offset < 0 else 1
        for first, indices, waiting in batch.claims:
            offset = base_offset + first * step
            if indices is None:
                if originals:
                    _give_originals(batch, partition, first, originals, waiting)
                _give(batch, partition, first, offset, step, waiting)
            elif not waiting.done():
                own = range(first, first + len(indices))
                found = {indices[place - first]: at for place, at in originals.items() if place in own}
                waiting.set_result(BatchReceipt(partition, offset, batch.timestamp, indices, found))

    def fail(self, batch: PendingBatch, error: TidelogError) -> None:
        is_reported = False
        for _, indices, waiting in batch.claims:
            for future in waiting if indices is None else [waiting]:
                if future.done():
                    continue
                future.set_exception(error)
                is_first = indices is None and not is_reported
                if is_first:
                    is_reported = True
                    if self._first_failure is None and future not in self.awaited:
                        self._first_failure = error
                if not is_first or self._is_quiet:
                    future.exception()  # asyncio reports exceptions that are never read, and one per batch is enough

    def take_failure(self) -> TidelogError | None:
        """Returns the first failure since the last call of this."""
        failure, self._first_failure = self._first_failure, None
        return failure


async def all_of(
    positions: Sequence[Sequence[int]], futures: Sequence[asyncio.Future[BatchReceipt | Split]]
) -> list[tuple[Sequence[int], BatchReceipt | TidelogError]]:
    """Returns the outcomes of runs with these positions in the caller's list, and of the parts of those that were
    split. Raises errors that are no failures of the records, such as CancelledError."""
    outcomes: list[tuple[Sequence[int], BatchReceipt | TidelogError]] = []
    for at, result in zip(positions, await asyncio.gather(*futures, return_exceptions=True), strict=True):
        if isinstance(result, Split):
            outcomes += await all_of(*zip(*result.parts, strict=True))
        elif isinstance(result, BatchReceipt | TidelogError):
            outcomes.append((at, result))
        else:
            raise result
    return outcomes


def _give_originals(
    batch: PendingBatch,
    partition: int,
    first: int,
    originals: Mapping[int, int],
    futures: list[asyncio.Future[Receipt]],
) -> None:
    """Gives receipts to the records among these, from place `first` of the batch on, that existed already."""
    for place, future in enumerate(futures, first):
        offset = originals.get(place)
        if offset is not None and not future.done():
            own = None if batch.timestamps is None else batch.timestamps[place]
            future.set_result(Receipt(partition, offset, batch.timestamp if own is None else own, duplicate=True))


def _give(
    batch: PendingBatch, partition: int, first: int, offset: int, step: int, futures: list[asyncio.Future[Receipt]]
) -> None:
    """Gives receipts to records given one by one, from place `first` of the batch on: offsets `offset`, `offset +
    step`, …"""
    count = len(futures)
    offsets = range(offset, offset + count) if step else repeat(offset, count)
    stamps: Iterable[int] = repeat(batch.timestamp)
    if batch.timestamps is not None:
        own = batch.timestamps[first : first + count]
        stamps = [batch.timestamp if stamp is None else stamp for stamp in own]
    # Receipt(…) itself takes more than twice as long, and there is one per record.
    fields = zip(repeat(partition), offsets, stamps, repeat(False), strict=False)
    receipts = map(tuple.__new__, repeat(Receipt), fields)
    for future, receipt in zip(futures, receipts, strict=True):
        if not future.done():
            future.set_result(receipt)
