"""Batches to fill logs with, and the content of a log, read back."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import pytest

from wire.batch import BatchBuilder, iter_batches, verify_body
from wire.types import LeaderEpoch, Offset

if TYPE_CHECKING:
    from collections.abc import Iterable

    from dataplane.log.partition_log import PartitionLog
    from wire.batch import BatchHeader
    from wire.types import Buffer


class Stamped(NamedTuple):
    parts: list[Buffer]
    header: BatchHeader

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


@cache
def _stamped(offset: int, epoch: int, size: int, timestamps: tuple[int, ...]) -> Stamped:
    builder = BatchBuilder()
    for number, timestamp in enumerate(timestamps):
        builder.add_record(f"{offset + number} of {epoch} ".encode().ljust(size, b"."), timestamp=timestamp)
    return Stamped(*builder.build(0).stamp(Offset(offset), LeaderEpoch(epoch)))


class Batches:
    """Makes stamped batches of small records."""

    def one(
        self, offset: int, count: int = 1, *, epoch: int = 1, size: int = 40, timestamps: Iterable[int] | None = None
    ) -> Stamped:
        """`count` records from `offset` on; timestamp = 1000 x offset unless given."""
        return _stamped(offset, epoch, size, tuple(timestamps or [1000 * (offset + n) for n in range(count)]))

    def append(self, log: PartitionLog, count: int = 1, *, epoch: int = 1, size: int = 40) -> Stamped:
        batch = self.one(log.log_end_offset, count, epoch=epoch, size=size)
        log.append(batch.parts, [batch.header])
        return batch

    def fill(self, log: PartitionLog, end_offset: int, *, epoch: int = 1, each: int = 1, size: int = 40) -> None:
        while log.log_end_offset < end_offset:
            self.append(log, each, epoch=epoch, size=size)

    def stored(self, log: PartitionLog) -> bytes:
        """Everything from disk; each batch's CRCs checked, offsets growing without a gap."""
        found = bytearray()
        offset = log.log_start_offset
        while offset < log.log_end_offset:
            block = log.read_from_disk(offset, max_bytes=4000, end_offset=log.log_end_offset)
            assert block
            for at, header in iter_batches(block):
                verify_body(block, at, header)
                assert header.base_offset == offset
                offset = header.end_offset
            found += block
        return bytes(found)


@pytest.fixture
def batches() -> Batches:
    return Batches()
