"""Whether a follower believes that its leader is alive.

A 503 means that no subscriber listens: grounds to report the leader NOW, if it has answered in this epoch and our own
connection is not fresh. Anybody who sees the inbox can send one, so such a report only has the controller look.
Otherwise silence beyond `replica_max_leader_timeout` is. Reports are repeated while the grounds hold, ever more rarely
where the leader has not answered in this epoch: it may be one of thousands that a broker opens.
"""

from __future__ import annotations

import math
from typing import Final

from dataplane.replica.history import History
from dataplane.replica.replica_effects import ReportLeader
from dataplane.replica.replica_settings import ReplicaSettings
from wire.retry import Retry
from wire.types import BrokerId, LeaderReport, PartitionView

RARELY: Final = 2.0
"""Seconds between two reports, at the longest. The controller counts reports of several followers together only within
its `witness_window_s`."""


class LeaderContact:
    def __init__(self, settings: ReplicaSettings, history: History, *, connected_since: float, now: float) -> None:
        self.has_answered = False
        """The leader has answered in this LeaderEpoch."""
        self.no_responders = False
        """NATS answered the request that is out with 503: it is sent again soon, and no slow answer is to be waited
        for."""
        self._settings = settings
        self._history = history
        self._connected_since = connected_since
        self._last_good = now
        self._suspected = False
        self._no_responders_wait = Retry(
            settings.no_leader_retry, max(settings.no_leader_retry, settings.replica_max_idle_wait), chance=None
        )
        """Until the next request after a 503. A leader that begins announces itself, and of a thousand partitions that
        begin together most are asked many times."""
        rarely = max(settings.report_interval, min(RARELY, settings.replica_max_idle_wait))
        self._report_wait = Retry(settings.report_interval, rarely, chance=None)
        """Until a leader that has not answered is reported again."""
        self._report_again_at = -math.inf

    @property
    def is_connected(self) -> bool:
        return self._connected_since < math.inf

    def on_good_answer(self, now: float) -> None:
        self._last_good = now
        self._no_responders_wait.succeeded()
        self._report_wait.succeeded()
        self.has_answered = True
        self._suspected = False

    def on_no_responders(self, now: float) -> float:
        """Returns when to ask again."""
        if self.has_answered and now - self._connected_since >= self._settings.liveness_grace:
            self._suspected = True
        self.no_responders = True
        return now + self._no_responders_wait.failed()

    def on_connection(self, connected_since: float, now: float) -> None:
        """Our own connection came back (`inf`: it is down): silence before it proves nothing."""
        self._connected_since = connected_since
        if self.is_connected:
            self._last_good = now
            self._suspected = False

    def on_late_tick(self, now: float) -> None:
        """This process slept: the silence may be its own."""
        self._last_good = now

    # Keeps R27.
    def report(self, view: PartitionView, broker: BrokerId, now: float) -> list[ReportLeader]:
        """The report that is due, if one is."""
        if view.leader is None:
            return []
        settings = self._settings
        silent = (
            now - self._last_good >= settings.replica_max_leader_timeout and self._connected_since <= self._last_good
        )
        if silent:
            self._suspected = True
        if not self._suspected or now < self._report_again_at:
            return []
        self._report_again_at = now + (settings.report_interval if self.has_answered else self._report_wait.failed())
        self._history.add(f"it reports {view.leader}, its leader, as dead or silent", now)
        report = LeaderReport(
            key=view.key,
            replica=broker,
            leader=view.leader,
            epoch=view.epoch,
            leader_epoch=view.leader_epoch,
            refused=not silent,
            unopened=not self.has_answered,
        )
        return [ReportLeader(report)]

    def next_deadline(self, ticked_at: float) -> float:
        """When a report may be due."""
        settings = self._settings
        suspicion = 0.0 if self._suspected else self._last_good + settings.replica_max_leader_timeout
        return max(suspicion, self._report_again_at, ticked_at + settings.report_interval)
