"""The log start of a partition that all its replicas go by, as its leader knows it.

Each replica removes old records by itself, so a follower may hold records that its leader has removed. It serves them
to nobody once it knows the leader's log start, which comes with the answers to its fetches; its next fetch reports
where it serves from. A group that reads keys in order waits for no record below the settled start: nobody can be given
one any more, but those who have fetched it before.

    start      the first offset that the leader serves
    settled    the newest start that every follower has reported to go by, or that is so old that no follower serves
               consumers without knowing it: it does so only for `follower_read_max_age` after it sent a fetch that was
               answered without it
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataplane.replica.leader.leadership import Leadership

from wire.types import Offset


class SettledStart:
    def __init__(self, state: Leadership) -> None:
        self.settled = Offset(0)
        self._state = state
        self._rising = Offset(0)
        """A start that waits for its time; settled, if none does."""
        self._since = 0.0
        settings = state.settings
        self._age = settings.follower_read_max_age + settings.replica_fetch_timeout
        """Seconds. A fetch that was answered before left earlier; the rest is for clocks that run at other rates."""

    # R82: A follower serves consumers nothing below the highest log start that a leader has reported to it; the log
    # start comes with the answers to its fetches until it reports it. Readers of keys go on past records that were
    # removed when the leader's log start is settled: every follower knows it, or serves nobody without knowing it.
    # Hazard: A member that reads from a follower is given a record that the leader has removed, when others have gone
    # on to later records of its key.
    # Not covered: What a member has fetched before. A replica that leads before it knows the log start of the leader
    # before it, because it was restarted or stood still, may serve what it holds.
    def at(self, now: float) -> Offset:
        """Returns the settled start. To be asked again: time passes, and followers report."""
        start = self._state.first_record
        if all(follower.log_start_offset >= start for follower in self._state.followers.values()):
            self.settled = self._rising = max(self.settled, start)
            return self.settled
        if self._rising > self.settled and now >= self._since + self._age:
            self.settled = self._rising
        if self._rising <= self.settled < start:
            self._rising, self._since = start, now
        return self.settled
