"""Whether a cluster may be founded in a namespace: only where there is no other one, and by one founder at a time.

The Raft leader of a group that has no cluster id yet asks all brokers in the namespace, one question after the other,
at distances of `bootstrap_wait_s / QUESTIONS`:

    searching ──QUESTIONS questions came back, and no other founder was seen───> decided ──> BeginControllerEpoch
      ^ │ └──a broker of another cluster answers──> taken: this broker stops
      └─┘ another founder with a smaller candidate, or one that has decided; a lost connection; a step that comes late;
          a flood; a BeginControllerEpoch whose outcome is not known: the count begins anew

Founders that ask at the same moment see each other, because each listens before it asks: the one with the smaller
candidate id goes on, unless the other has decided. One whose BeginControllerEpoch has no known outcome asks again, and
still says that it has decided: that BeginControllerEpoch may be committed later.

Silence proves something only while this founder listens. NATS brings each question to its own founder too: a question
that came back was carried, and its answers with it. A founder whose process stood still notices that by its next step,
which comes late; it has missed the founders of that time, and asks all its questions again. While a process stands
still for less than that, no other founder with the same `bootstrap_wait_s` gets through its questions. Where a
flood keeps brokers busy, the answers of an existing cluster may be late: while that lasts, silence proves nothing
either.

Pure: the caller asks, and passes claims and the time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

QUESTIONS = 5
"""Number of questions that must come back: an answer may be lost, and a founder that has just begun to listen has
missed earlier questions.
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


class Bootstrap:
    """The search of one founder. `candidate`: the id that the cluster will have; no other founder has the same."""

    def __init__(self, candidate: str, wait_s: float, *, is_proposed: bool = False) -> None:
        self.candidate = candidate
        self.decided = False
        self.is_proposed = is_proposed
        """A BeginControllerEpoch with this candidate was proposed, perhaps after an earlier search, and may still be
        committed: other founders are to give way."""
        self.taken_by: Claim | None = None
        """The first claim of a broker that belongs to another cluster."""
        self._interval_s = wait_s / QUESTIONS
        self._late_s = wait_s / 2
        self._due = -inf
        """When the next question is to be asked, or the decision is due; -inf: at once."""
        self.asked = 0
        """Number of questions asked in all."""
        self._out = 0
        """Number of questions asked since the last one came back."""
        self._is_flooded = False
        """The count began anew the last time because of a flood."""
        self._rival: Claim | None = None
        """The last claim of another founder that goes first."""
        self._came_back = 0
        """Number of questions that came back since another founder was seen or this one did not listen."""

    @property
    def is_over(self) -> bool:
        return self.decided or self.taken_by is not None

    def on_connection(self) -> None:
        """A NATS connection, for questions or for claims, was lost or made: silence until now proves nothing any
        more."""
        self._begin_anew()
        self._due = -inf

    def on_own_question(self) -> None:
        """A question of this founder was delivered to it. Several that come at once, after a delay, count as one."""
        if self._out:
            self._out = 0
            self._came_back += 1

    def on_flood(self) -> None:
        """More messages come than the founders and brokers of a namespace send."""
        if not self.is_over:
            self._begin_anew()
            self._is_flooded = True

    # R41: A namespace has one cluster. A Raft leader whose group has no cluster id asks on `<ns>.metadata.cluster`
    # until five of its questions have come back, one after the other, over `bootstrap_wait_s`; every broker that knows
    # its cluster answers, and an answer of another cluster stops it. Of two founders the one that has decided, then
    # the smaller candidate id, goes first. Every message names its cluster, and those of another one are not carried
    # out.
    # Hazard: Two controllers that lead, probe and create in one namespace.
    # Not covered: A BeginControllerEpoch whose proposer died may be committed by its group after another group has
    # founded; two founders with different `bootstrap_wait_s`, of which the one with the longer wait stands still for
    # less than half of it.
    def on_claim(self, claim: Claim) -> None:
        """Another broker has asked or answered."""
        if self.decided:
            return
        if claim.cluster_id:
            self.taken_by = self.taken_by or claim
        elif claim.candidate and (not claim.decided, claim.candidate) < (not self.is_proposed, self.candidate):
            self._rival = claim
            self._begin_anew()

    # Keeps R41.
    def tick(self, now: float) -> bool:
        """Returns whether to ask now. Decides when enough questions have come back."""
        if self.is_over or now < self._due:
            return False
        if -inf < self._due < now - self._late_s:  # the process stood still
            self._begin_anew()
        if self._came_back >= QUESTIONS:
            self.decided = self.is_proposed = True
            return False
        self.asked += 1
        self._out += 1
        self._due = now + self._interval_s
        return True

    def next_deadline(self) -> float:
        return inf if self.is_over else self._due

    def obstacle(self, subject: str) -> str:
        """Returns a sentence on why this founder still asks on `subject`."""
        if self._out > QUESTIONS:
            return (
                f"its questions on {subject} do not come back to it; allow its NATS login to publish to this subject"
                " and to subscribe to it"
            )
        if self._is_flooded:
            return f"so much is sent on {subject} that a cluster which lives may answer too late; keep strangers off it"
        if self._rival is not None:
            return f"broker {self._rival.broker} is about to found a cluster in this namespace, too, and goes first"
        return "its process stands still between its questions, or one of its NATS connections is lost again and again"

    def _begin_anew(self) -> None:
        self._out = 0
        self._came_back = 0
        self._is_flooded = False
