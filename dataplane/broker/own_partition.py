"""The `LedPartition` of one leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dataplane.broker.acks import LocalReply
from dataplane.broker.appending import Appending
from dataplane.broker.reading import ReadableRole
from dataplane.encryption.bodies import OVERHEAD
from dataplane.replica.leader import Leader
from wire.batch import EncodedBatch
from wire.errors import Code, TidelogError
from wire.types import Buffer, LeaderEpoch, Offset, PartitionKey


class OwnPartition:
    """See `dataplane.broker.led_partition`."""

    def __init__(self, role: ReadableRole, core: Leader, appending: Appending) -> None:
        self._role = role
        self._core = core
        self._appending = appending
        self._on_end: list[Callable[[], None]] = []

    @property
    def key(self) -> PartitionKey:
        return self._role.view.key

    @property
    def subject(self) -> str:
        return self._role.view.subject

    @property
    def leader_epoch(self) -> LeaderEpoch:
        return self._role.leader_epoch

    @property
    def log_start_offset(self) -> Offset:
        return self._role.log.log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._core.log_end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._core.high_watermark

    @property
    def max_batch_bytes(self) -> int:
        return self._role.context.max_batch_bytes - OVERHEAD

    async def read_committed(self, offset: Offset) -> Sequence[Buffer]:
        return await self._role.read_committed(offset)

    def append(self, batch: EncodedBatch, timeout: float, done: Callable[[TidelogError | None], None]) -> None:
        if batch.size > self.max_batch_bytes:  # it could be sent to no follower
            done(
                TidelogError(
                    Code.RECORD_TOO_LARGE,
                    f"a batch of {batch.size} bytes for {self.key}; {self.max_batch_bytes} are taken",
                )
            )
            return
        is_taken = False

        def append() -> None:
            nonlocal is_taken
            self._appending.append_local(batch, timeout, LocalReply(done))
            is_taken = True

        self._role.carefully(append)
        if not is_taken:  # a bug, which is in the log
            done(TidelogError(Code.INTERNAL, f"{self.key} cannot be appended to; see the log"))

    def on_end(self, handler: Callable[[], None]) -> None:
        self._on_end.append(handler)

    def end(self) -> None:
        handlers, self._on_end = self._on_end, []
        for handler in handlers:
            handler()
