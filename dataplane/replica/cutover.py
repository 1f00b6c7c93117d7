"""Where the layout before the newest one ends in a partition, and how its leader reports it (R62).

    view awaits the cutover to V ──> end := LEO ──HW ≥ end, and all that may lead have fetched──> ReportCutover(end)
             ^                                                       view with the cutover told ──> over <──┤
             └─ a new leader, in its own LeaderEpoch             said again by each view that still awaits it

From that view on the leader appends nothing that names an older version, and nothing that names V before the view with
the cutover told. So whichever leader's report is applied, all records that name an older version lie below the end that
it tells, and all that name V at or above it. A report is a compare-and-set on the LeaderEpoch: the one of a deposed
leader, whose successor may have less, is refused, and the successor reports the end of its own log as it found it, once
it is committed. Records without a version that come meanwhile stand behind the end.

A replica of the ISR, or an eligible one, may hold records of an earlier LeaderEpoch behind the end that never were
committed, and if it led they would be committed there. It cuts them before it fetches in the leader's LeaderEpoch, so
the report waits until each of these replicas has.
"""

from __future__ import annotations

from dataplane.replica.effects import LeaderEffect, ReportCutover
from dataplane.replica.leadership import Leadership
from wire.types import CutoverReport, Offset


class Cutover:
    def __init__(self, state: Leadership, now: float) -> None:
        self._state = state
        self._version = 0
        """That the view awaits the cutover to; 0: to none."""
        self._end = Offset(0)
        """LEO when this leader first heard of it."""
        self._is_reported = False
        self._begin(now)

    def on_view(self, now: float, out: list[LeaderEffect]) -> None:
        """The view is newer."""
        self._is_reported = False
        self._begin(now)
        self.look(now, out)

    def look(self, now: float, out: list[LeaderEffect]) -> None:
        """Report the end if all below it is committed, and nothing else can ever be behind it."""
        if not self._version or self._is_reported:
            return
        state = self._state
        if state.high_watermark < self._end or not state.have_cut_to_this_log():
            return
        self._is_reported = True
        state.story.tell(f"reports that version {self._version} begins at {self._end}", now)
        report = CutoverReport(
            key=state.view.key,
            leader=state.broker,
            leader_epoch=state.leader_epoch,
            version=self._version,
            end_offset=self._end,
        )
        out.append(ReportCutover(report))

    def _begin(self, now: float) -> None:
        state = self._state
        version = state.view.partitioning_version if state.view.awaits_cutover else 0
        if version == self._version:
            return
        self._version = version
        if version:
            self._end = state.log_end_offset
            state.story.tell(f"the layout before version {version} ends at {self._end}", now)
