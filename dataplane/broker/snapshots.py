"""Housekeeping of the derived state: a log's captures of it are written down, so that the next open begins there."""

from __future__ import annotations

from dataplane.broker.housekeeping import Progress, Visit


class SnapshotJob:
    name = "writing snapshots of the derived state"

    def is_due(self, visit: Visit) -> bool:
        return visit.log.snapshot_is_due

    def run(self, visit: Visit) -> Progress:
        visit.log.write_snapshots()
        return Progress()
