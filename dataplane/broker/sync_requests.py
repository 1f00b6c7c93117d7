"""The fdatasyncs that one role asks for: at most two are out, one that runs, and one that has not begun and covers all
that is appended until it does."""

from __future__ import annotations

from collections.abc import Callable

from dataplane.broker.context import BrokerContext
from dataplane.broker.space import NO_SPACE_RETRY
from dataplane.log.errors import LogDamaged, NoSpace
from dataplane.log.partition_log import PartitionLog
from wire.types import Offset


class SyncRequests:
    """`on_synced` hears the durable end after each sync, `fail` the reason why one has failed."""

    def __init__(
        self,
        context: BrokerContext,
        partition_log: PartitionLog,
        on_synced: Callable[[Offset], None],
        fail: Callable[[str], None],
    ) -> None:
        self.out = 0
        """Syncs that were asked for and have not returned."""
        self._context = context
        self._log = partition_log
        self._on_synced = on_synced
        self._fail = fail
        self._due = False
        """One is asked for at the end of this turn of the loop."""
        self._missed = False
        """A sync was asked for that none of the syncs that are out may cover."""
        self._stopped = False

    def request(self) -> None:
        """The sync begins at the end of this turn of the loop, after the messages of this turn have left."""
        if self._due:
            return
        if self.out < 2:
            self.out += 1
            self._due = True
            self._context.loop.call_soon(self._begin)
        else:
            self._missed = True

    def stop(self) -> None:
        """Results are no longer told."""
        self._stopped = True

    def _begin(self) -> None:
        self._due = False
        if self._stopped:
            self.out -= 1
            return
        try:
            durable_end = self._context.syncer.at_once(self._log)
        except LogDamaged as e:
            self._done(e)
            return
        if durable_end is None:
            self._context.syncer.request(self._log, self._done)
        else:
            self._done(durable_end)

    def _done(self, result: Offset | Exception) -> None:
        self.out -= 1
        if self._stopped:
            return
        if isinstance(result, NoSpace):
            self._context.space.refused(result)
            self._context.loop.call_later(NO_SPACE_RETRY, self._again)
            return
        if isinstance(result, Exception):
            self._fail(f"fdatasync failed: {result}")
            return
        # The log may have been cut and written anew since that sync.
        durable_end = min(result, self._log.durable_end)
        if self._missed and self.out == 0:
            self._missed = False
            if durable_end < self._log.log_end_offset:
                self.request()
        self._on_synced(durable_end)

    def _again(self) -> None:
        if not self._stopped:
            self.request()
