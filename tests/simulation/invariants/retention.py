"""Promises of retention: it removes no more than its limits allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.simulation.invariants.base import Invariant
from tests.simulation.invariants.history import may_be_compacted
from tests.simulation.world import EPOCH_NS
from wire.batch import iter_batches

if TYPE_CHECKING:
    from dataplane.broker.replica import Replica
    from tests.simulation.machines.broker import SimBroker

CLOCK_SLACK_NS = 1_000_000_000
"""The clock may have been set between the decision and the moment at which its outcome is seen."""


class OnlyCommittedIsRemoved(Invariant):
    """To all clients: an uncommitted record is not removed at any age."""

    def on_log_start(self, broker: SimBroker, replica: Replica, before: int, start: int) -> None:
        committed = self.history.history(replica.key).end
        if start > committed:
            self.broken(f"{replica.key}: {broker.id} removed {before} to {start}, committed is {committed}")


class OnlyWhatHasOutlivedItsLimitsIsRemoved(Invariant):
    """To users: records within the limits of a stream are kept."""

    def on_log_start(self, broker: SimBroker, replica: Replica, before: int, start: int) -> None:
        log, view = replica._log, replica.view
        if log is None or view is None or broker.process is None:
            return
        config = view.config
        end = log.log_end_offset
        if start <= view.purged_end:
            return
        if start == end:
            return  # it may have been dropped, to begin where the leader's log begins
        if 0 < config.retention_max_messages <= end - start or 0 < config.retention_max_bytes <= log.size_bytes:
            return
        newest = max(
            (
                header.last_timestamp
                for base, data in self.history.history(replica.key).batches
                if before <= base < start
                for _, header in iter_batches(data)
                if header.end_offset > view.purged_end  # else it was deleted
            ),
            default=0,
        )
        now = EPOCH_NS + int(self.world.now * 1e9)  # whatever the broker's own clock says
        if config.retention_max_age_ms:
            if newest > now or may_be_compacted(replica):
                return  # its file counts, not the timestamps of its records; or the newest of them had gone before
            if newest <= now - config.retention_max_age_ms * 1_000_000 + CLOCK_SLACK_NS:
                return
        self.broken(
            f"{replica.key}: {broker.id} removed {before} to {start} of {end}, and kept {log.size_bytes} bytes;"
            f" the newest record was of {newest}, the clock is at {now}"
        )
