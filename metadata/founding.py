"""Whether a cluster may be founded in a namespace: only where no other cluster lives, and by one founder at a time.

The Raft leader of a group that has no cluster id yet asks all brokers in the namespace, `QUESTIONS` times in a wait:

    searching ──own question heard, and no other founder for founding_wait_s──> decided ──> TakeOffice
      ^ │ └──a broker of another cluster answers──> taken: this broker stops
      └─┘ another founder with a smaller candidate, or one that has decided: the wait begins anew

Founders that ask at the same moment hear each other, because each listens before it asks: the one with the smaller
candidate id goes on, unless the other has decided. The wait runs from the moment at which the founder has heard its own
question, which shows that NATS delivers; it begins anew with each connection.

Pure: the caller asks, and passes claims and the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

QUESTIONS = 5
"""Number of questions in one wait: an answer may be lost, and a founder that has just begun to listen has not heard
earlier questions.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A broker's statement: the cluster that it belongs to, or the one that it is about to found."""

    broker: str
    cluster_id: str = ""
    """Empty: it knows of none."""
    candidate: str = ""
    """Empty: it founds none."""
    decided: bool = False


class Founding:
    """See the module. `candidate`: the id that the cluster will have; no other founder has the same."""

    def __init__(self, candidate: str, wait_s: float) -> None:
        self.candidate = candidate
        self.decided = False
        self.taken_by: Claim | None = None
        """The first claim of a broker that belongs to another cluster."""
        self._wait_s = wait_s
        self._ask_at = -inf
        self._quiet_since = inf
        """No other founder was heard since then, and own questions are delivered; inf: they are not, yet."""

    @property
    def is_over(self) -> bool:
        return self.decided or self.taken_by is not None

    def on_connection(self) -> None:
        """The NATS connection was lost or made: silence until now proves nothing any more."""
        if not self.decided:
            self._ask_at, self._quiet_since = -inf, inf

    def on_own_question(self, now: float) -> None:
        """This founder's own question was delivered to it."""
        self._quiet_since = min(self._quiet_since, now)

    def on_claim(self, claim: Claim, now: float) -> None:
        """Another broker has asked or answered."""
        if self.decided:
            return
        if claim.cluster_id:
            self.taken_by = self.taken_by or claim
        elif claim.candidate and (claim.decided or claim.candidate < self.candidate) and self._quiet_since < inf:
            self._quiet_since = now

    def tick(self, now: float) -> bool:
        """Whether to ask now. Decides when the wait is over."""
        if self.is_over:
            return False
        if now >= self._quiet_since + self._wait_s:
            self.decided = True
            return False
        if now < self._ask_at:
            return False
        self._ask_at = now + self._wait_s / QUESTIONS
        return True

    def next_deadline(self) -> float:
        return inf if self.is_over else min(self._ask_at, self._quiet_since + self._wait_s)
