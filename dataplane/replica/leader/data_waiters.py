"""How a leader answers fetches, and how a follower that has everything is notified of more.

follower                              leader
  │ fetch(offset, epoch, seq) ────────> │ progress: acknowledged end of that follower, grows only
  │ <──────── header + batches          │ offset < LEO
  │ <──────── header alone              │ offset = LEO: caught up; a DATA WAITER is registered
  │                                     │ … something is appended: the waiter fires, once:
  │ <──────── header + batches          │     a second answer on the same inbox, or
  │ <──────── PartitionNotification     │     a notification (repeated until that follower fetches)
"""

from __future__ import annotations

import math
from typing import Final

from dataplane.replica.leader.commits import Commits
from dataplane.replica.leader.leadership import FollowerFetch, FollowerProgress, Leadership
from dataplane.replica.replica_effects import LeaderEffect, Notify, Respond
from wire.errors import InvariantViolation
from wire.types import BrokerId

UNCOMMITTED_DELAYS: Final = 10
"""An empty answer waits for the commit of its follower's records for so many times `empty_answer_delay` at most."""


class DataWaiters:
    def __init__(self, state: Leadership, commits: Commits) -> None:
        self._state = state
        self._commits = commits

    # R32: A follower that is caught up gets an empty answer, which the leader may put off while records come in, and
    # sleeps for `replica_max_idle_wait` at most, or while its leader holds the fetch (R83). The leader registers a data
    # waiter for it: data go out as a second answer on the same inbox, or a PartitionNotification does, repeated ever
    # more slowly until the follower fetches. A notification that crosses a fetch is remembered. A leader that begins
    # notifies every follower.
    # Hazard: A lost wake-up; a thousand partitions that begin together and whose followers ask fifty times a second.
    def answer(self, fetch: FollowerFetch, follower: FollowerProgress, now: float, out: list[LeaderEffect]) -> None:
        state = self._state
        most = state.settings.fetch_max_bytes
        limit = min(fetch.max_bytes or most, most)
        sync_to = self._commits.sync_wanted_of(fetch.replica, follower)
        if fetch.no_space:
            out.append(Respond(fetch.replica, fetch.inbox, fetch.offset, 0, state.high_watermark, sync_to))
        elif fetch.offset < state.log_end_offset:
            out.append(Respond(fetch.replica, fetch.inbox, fetch.offset, limit, state.high_watermark, sync_to))
        else:
            follower.waiter_inbox = fetch.inbox
            follower.waiter_max_bytes = limit
            follower.waiter_sequence = fetch.sequence
            delay = 0.0 if sync_to else self._empty_answer_delay(now)
            if delay:
                follower.answer_due = now + delay
                return
            out.append(Respond(fetch.replica, fetch.inbox, fetch.offset, 0, state.high_watermark, sync_to))
        follower.known_high_watermark = state.high_watermark

    def _empty_answer_delay(self, now: float) -> float:
        """For how long an empty answer is put off; 0: not at all. While more records are expected soon, it is wasted
        work, for the follower too. Before the records are committed, another answer would have to follow that says so.
        Where data do not go to waiters, the answer is what makes the follower listen to notifications."""
        state = self._state
        delay = state.settings.empty_answer_delay
        if not state.settings.push_to_waiters or not delay:
            return 0.0
        if state.high_watermark < state.log_end_offset:
            return max(delay, min(UNCOMMITTED_DELAYS * delay, state.settings.replica_fetch_timeout / 2))
        return delay if now - state.appended_at < delay else 0.0

    def fire_all(self, now: float, out: list[LeaderEffect]) -> None:
        """Something was appended."""
        for replica, follower in self._state.followers.items():
            if follower.waiter_inbox is not None:
                self._fire(replica, follower, now, out)

    def fire_to_sync(self, now: float, out: list[LeaderEffect]) -> None:
        """A publish waits for syncs of records that were appended before."""
        for replica, follower in self._state.followers.items():
            if follower.waiter_inbox is not None and self._commits.sync_wanted_of(replica, follower):
                self._fire(replica, follower, now, out)

    def _fire(self, replica: BrokerId, follower: FollowerProgress, now: float, out: list[LeaderEffect]) -> None:
        """A waiter fires once: it is unregistered before anything is sent."""
        state = self._state
        inbox, follower.waiter_inbox = follower.waiter_inbox, None
        follower.answer_due = None
        if inbox is None:
            raise InvariantViolation(f"{state.view.key}: no data waiter of {replica} to fire")
        follower.notified_at = follower.fired_at = now
        if state.settings.push_to_waiters:
            limit = follower.waiter_max_bytes if follower.log_end_offset < state.log_end_offset else 0
            sync_to = self._commits.sync_wanted_of(replica, follower)
            out.append(Respond(replica, inbox, follower.log_end_offset, limit, state.high_watermark, sync_to))
            follower.known_high_watermark = state.high_watermark
        else:
            out.append(Notify(replica))

    @property
    def has_any(self) -> bool:
        """Some follower would take a batch at once."""
        for follower in self._state.followers.values():  # noqa: SIM110 - asked for every chunk, and half the time of any()
            if follower.waiter_inbox is not None:
                return True
        return False

    # ------------------------------------------------------------------ time
    # Keeps R32.
    def tick(self, now: float, out: list[LeaderEffect]) -> None:
        state = self._state
        settings = state.settings
        for replica, follower in state.followers.items():
            # A follower of a paused partition may have asked for nothing for long, and is notified of records now.
            active_at = max(follower.last_fetch_at, follower.fired_at)
            if follower.notified_at is not None and now - active_at > settings.replica_max_lag_time:
                follower.notified_at = None  # it seems dead; should it live, it asks after its idle wait anyway
            elif follower.notified_at is not None and now - follower.notified_at >= self._patience(follower):
                follower.patience = 2 * self._patience(follower)
                follower.notified_at = now
                out.append(Notify(replica))
            elif follower.answer_due is not None:
                if now >= self._answer_due_at(follower):
                    self._answer_late(replica, follower, out)
            elif (
                follower.waiter_inbox is not None
                and follower.known_high_watermark < state.high_watermark
                and now - state.high_watermark_at >= settings.high_watermark_notify_delay
            ):
                self._fire(replica, follower, now, out)

    def next_deadline(self) -> float:
        """inf: none of the followers waits for a time."""
        due = math.inf
        state = self._state
        for follower in state.followers.values():
            if follower.notified_at is not None:
                due = min(due, follower.notified_at + self._patience(follower))
            elif follower.answer_due is not None:
                due = min(due, self._answer_due_at(follower))
            elif follower.waiter_inbox is not None and follower.known_high_watermark < state.high_watermark:
                due = min(due, state.high_watermark_at + state.settings.high_watermark_notify_delay)
        return due

    def _patience(self, follower: FollowerProgress) -> float:
        settings = self._state.settings
        return max(settings.notify_retry, min(follower.patience, settings.replica_max_lag_time / 5))

    def _answer_due_at(self, follower: FollowerProgress) -> float:
        """Time of an answer that is put off: sooner when all is committed."""
        state = self._state
        due = math.inf if follower.answer_due is None else follower.answer_due
        if state.high_watermark < state.log_end_offset:
            return due
        return min(due, max(state.high_watermark_at, follower.last_fetch_at) + state.settings.empty_answer_delay)

    def _answer_late(self, replica: BrokerId, follower: FollowerProgress, out: list[LeaderEffect]) -> None:
        """No data came; the waiter stays."""
        state = self._state
        follower.answer_due = None
        inbox, end = follower.waiter_inbox, follower.log_end_offset
        if inbox is None:
            raise InvariantViolation(f"{state.view.key}: {replica} waits for nothing")
        sync_to = self._commits.sync_wanted_of(replica, follower)
        out.append(Respond(replica, inbox, end, 0, state.high_watermark, sync_to))
        follower.known_high_watermark = state.high_watermark
