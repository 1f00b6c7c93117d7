"""The leader of a paused partition, and when it asks for a pause or for its end (R47).

A pause changes nothing in what a leader does with records: it takes them, its followers are woken as idle followers
always are, and commits go on. While it lasts, followers that have everything ask for nothing
(`Followership.may_sleep`), so the leader does not take their silence for lag. The first record that comes has the
leader ask the controller to end it.

With `auto_pause_time_ms` the leader asks for a pause when no record came for so long, all is committed and in every
member of the ISR, and, with `auto_pause_disable_if_subscribers`, no consumer waits here. A leader that has just begun
counts from then on.
"""

from __future__ import annotations

from dataplane.replica.effects import LeaderEffect, ProposePause
from dataplane.replica.isr import CommittedIsr
from dataplane.replica.leadership import Leadership
from wire.types import PartitionEpoch, PauseChange


class Pausing:
    def __init__(self, state: Leadership, now: float) -> None:
        self._state = state
        self._active_at = now
        """When a record last came, or the pause ended, or this leader began."""
        self._asked = PartitionEpoch(0)
        """The partition epoch for which the last request was made: it is repeated below until that is over."""
        self._has_records = False
        """Some came in this pause."""

    def on_append(self, now: float, out: list[LeaderEffect]) -> None:
        """Before the records count: until now those that had everything were caught up."""
        self._active_at = now
        if self._state.view.paused:
            self.excuse_sleepers(now)
            self._has_records = True
            self._ask(False, out)

    def excuse_sleepers(self, now: float) -> None:
        state = self._state
        if not state.view.paused:
            return
        for replica, follower in state.followers.items():
            if replica in state.isr.members and state.acknowledged(replica) >= state.log_end_offset:
                follower.caught_up_at = max(follower.caught_up_at, now)

    def on_view(self, was_paused: bool, now: float, out: list[LeaderEffect]) -> None:
        """The view is newer."""
        if not self._state.view.paused:
            self._has_records = False
            if was_paused:
                self._active_at = now
        elif self._has_records:
            self._ask(False, out)  # something else has outdated the request

    def tick(self, now: float, has_consumers: bool, out: list[LeaderEffect]) -> None:
        state = self._state
        self.excuse_sleepers(now)
        config = state.view.config
        if not config.auto_pause_time_ms or state.view.paused:
            return
        if config.auto_pause_disable_if_subscribers and has_consumers:
            self._active_at = now
        is_quiet = now - self._active_at >= config.auto_pause_time_ms / 1000
        if is_quiet and isinstance(state.isr, CommittedIsr) and self._all_have_everything():
            self._ask(True, out)

    def _all_have_everything(self) -> bool:
        state = self._state
        if state.high_watermark < state.log_end_offset:
            return False
        return all(state.acknowledged(member) >= state.log_end_offset for member in state.isr.members)

    def _ask(self, paused: bool, out: list[LeaderEffect]) -> None:
        state = self._state
        if self._asked == state.view.epoch:
            return
        self._asked = state.view.epoch
        out.append(
            ProposePause(
                PauseChange(
                    key=state.view.key,
                    leader=state.broker,
                    leader_epoch=state.leader_epoch,
                    expected_epoch=state.view.epoch,
                    paused=paused,
                )
            )
        )
