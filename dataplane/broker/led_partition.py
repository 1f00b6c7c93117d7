"""A partition that this broker leads, for coordinators in the same process (`tidelog.server.coordinator`).

A coordinator reads what is committed and appends, beside the leader and without a message. Its LeaderEpoch is the
leader's: what it appends is stored by no other leader, and after `on_end` nothing is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from wire.batch import EncodedBatch
from wire.errors import TidelogError
from wire.types import Buffer, LeaderEpoch, Offset, PartitionKey


class LedPartition(Protocol):
    @property
    def key(self) -> PartitionKey: ...

    @property
    def subject(self) -> str:
        """The subject of the partition."""
        ...

    @property
    def leader_epoch(self) -> LeaderEpoch: ...

    @property
    def log_start_offset(self) -> Offset: ...

    @property
    def log_end_offset(self) -> Offset: ...

    @property
    def high_watermark(self) -> Offset: ...

    @property
    def max_batch_bytes(self) -> int:
        """Most bytes of a batch that `append` takes."""
        ...

    async def read_committed(self, offset: Offset) -> Sequence[Buffer]:
        """Whole batches below the last stable offset, from the one with `offset` on, those of aborted transactions
        without their records; none: there are no more at present. Raises TidelogError, LogDamaged, CorruptData."""
        ...

    def append(self, batch: EncodedBatch, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        """`done(None)`: it is committed. An error: as of an acks=all publish."""
        ...

    def on_end(self, handler: Callable[[], None]) -> None:
        """To be called when this broker leads it no more in this LeaderEpoch."""
        ...
