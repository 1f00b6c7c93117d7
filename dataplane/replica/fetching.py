"""The fetches of a follower: when they leave, what they report, and how long an answer is waited for."""

from __future__ import annotations

import math

from dataplane.replica.backoff import Backoff
from dataplane.replica.effects import FollowerEffect, SendFetch
from dataplane.replica.follower_states import Fetching, Idle, Syncing
from dataplane.replica.followership import Followership
from dataplane.replica.leader_contact import LeaderContact
from dataplane.replica.replica_settings import ReplicaSettings


class Fetcher:
    def __init__(
        self,
        replica: Followership,
        contact: LeaderContact,
        bad_answers: Backoff,
        settings: ReplicaSettings,
        *,
        first_sequence: int,
        no_space: bool,
        disk_hangs: bool,
    ) -> None:
        """`bad_answers`: the wait before a batch that was refused is asked for anew; at first 0."""
        self.no_space = no_space
        """Records cannot be written at present."""
        self.disk_hangs = disk_hangs
        """Records are not synced at present."""
        self.timeout = Backoff(settings.replica_fetch_timeout, settings.replica_max_leader_timeout)
        """It grows with every fetch that is given up, so that slow answers come through."""
        self.refused_batch = ""
        """Why the last answer was refused; the next fetch reports it to the leader."""
        self._replica = replica
        self._contact = contact
        self._bad_answers = bad_answers
        self._settings = settings
        self._sequence = first_sequence

    def fetch(self, now: float) -> list[FollowerEffect]:
        replica = self._replica
        if replica.is_asleep:
            self._contact.on_late_tick(now)  # the leader was not asked for anything meanwhile
        self._sequence += 1
        replica.was_notified = False
        self._contact.no_responders = False
        replica.enter(Fetching(self._sequence, replica.log_end_offset, now + self.timeout.value), now)
        refused, self.refused_batch = self.refused_batch, ""
        fetch = SendFetch(self._sequence, replica.log_end_offset, replica.reported_end, False, refused)
        fetch.no_space, fetch.disk_hangs = self.no_space, self.disk_hangs
        return [fetch]

    def report(self) -> SendFetch:
        """A fetch that asks for nothing and reports progress."""
        self._sequence += 1
        report = SendFetch(self._sequence, self._replica.log_end_offset, self._replica.reported_end, True)
        report.no_space, report.disk_hangs = self.no_space, self.disk_hangs
        return report

    def wait_for_sync(self, now: float) -> None:
        self._replica.enter(Syncing(now + self._settings.replica_fetch_timeout / 2), now)

    def on_good_answer(self) -> None:
        self._bad_answers.reset()
        self.refused_batch = ""

    def on_bad_answer(self, sequence: int, reason: str, now: float) -> list[FollowerEffect]:
        """The answer does not decode: nothing is taken of it, and the leader is told. It verifies its copy each time,
        so the same is asked for again after ever longer waits."""
        state = self._replica.state
        if not isinstance(state, (Fetching, Idle)) or sequence != state.sequence:
            return []
        self.refused_batch = reason
        wait = self._bad_answers.value
        self._bad_answers.grow()
        if wait == 0.0:
            return self.fetch(now)
        self.timeout.reset()
        self._replica.enter(Idle(state.sequence, state.offset, now + wait), now)
        return []

    def pause(self, wait: float, now: float) -> None:
        """The leader refused the fetch that was out: ask again in a while."""
        self._replica.enter(Idle(self._sequence, self._replica.log_end_offset, now + wait), now)

    def pause_longer(self, now: float) -> None:
        """The same answer would come again: it is asked for after ever longer waits."""
        self._bad_answers.grow()
        self.pause(self._bad_answers.value, now)

    def idle(self, state: Fetching | Idle, now: float) -> None:
        """The answer was empty: the leader's data waiter, a notification or the time ends the wait."""
        may_sleep = self._replica.may_sleep and not self.no_space and not self.disk_hangs
        until = math.inf if may_sleep else now + self._settings.replica_max_idle_wait
        self._replica.enter(Idle(state.sequence, state.offset, until), now)
