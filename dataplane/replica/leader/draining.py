"""A planned move of leadership.

Asked to drain, the leader sequences nothing more and goes on answering followers. When the target's LEO and
acknowledged end, and the HW, are its own LEO, it completes the request, and waits for the LeaderEpoch in which the
target leads: all that was published at the stream's own level has its answer by then. (Where the leader's own disk
hangs the HW stays behind: then the target's ends are enough, and what waits for its commit ends as outcome unknown.)
Should the target not get so far, or that LeaderEpoch not come, the leader sequences again after a while. Safety does
not depend on its waiting: an election that comes later than that is one like any other.

    sequencing ──drain──> draining ──target has all──> drained ──new LeaderEpoch──> resigned
        ^                    │ timeout, the target       │ timeout, the target
        └────────────────────┴──── left the ISR ─────────┘ left the ISR
"""

from __future__ import annotations

from dataclasses import dataclass

from dataplane.replica.leader.leadership import Leadership
from dataplane.replica.replica_effects import CompleteDrain, LeaderEffect
from dataplane.replica.replies import MoveRequest
from wire.error_details import RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.types import BrokerId


@dataclass(slots=True)
class _Drain:
    """Nothing is sequenced, so that `target` can take over."""

    target: BrokerId
    token: MoveRequest
    timeout: float
    deadline: float
    is_done: bool = False
    """The target holds everything, and the request has its answer: another leader may have been elected by now."""


class Draining:
    def __init__(self, state: Leadership) -> None:
        self._state = state
        self._drain: _Drain | None = None

    @property
    def deadline(self) -> float | None:
        return self._drain.deadline if self._drain is not None else None

    def refuse_publish(self) -> TidelogError | None:
        drain = self._drain
        if drain is None:
            return None
        moving = f"the leadership of {self._state.view.key} is moving from {self._state.broker} to {drain.target}"
        if drain.is_done:  # the new leader may get the same publish, and answers it
            return TidelogError(Code.NOT_LEADER, f"{moving}; try again")
        return TidelogError(Code.UNAVAILABLE, f"{moving}; try again", [RETRY_AFTER_MS.of(10)])

    # R30: A planned move keeps the old leader in the ISR. The controller asks it to drain: it sequences nothing more
    # until the target's LEO and acknowledged end and the HW have reached its own LEO, and the controller then commits
    # the election, a compare-and-set on the LeaderEpoch. Both halves are bounded by `drain_timeout_s`. A request of
    # another controller epoch, or one that may be too old by the leader's own clock, is refused with LEADER_NOT_MOVED.
    # Hazard: A leader that wakes up and refuses records which its successor stores.
    def begin(self, target: BrokerId, token: MoveRequest, timeout: float, now: float, out: list[LeaderEffect]) -> None:
        """`timeout` bounds the way there, and again the wait for the new LeaderEpoch. A newer request replaces an older
        one."""
        if self._drain is not None:
            self.end(f"a later request names {target}", now, out)
        self._drain = _Drain(target, token, timeout, now + timeout)
        self._state.history.add(f"drains for {target}, within {timeout:g} s", now)
        self.look(now, out)

    def look(self, now: float, out: list[LeaderEffect]) -> None:
        """Complete or end the drain where progress or time has decided it."""
        drain, state = self._drain, self._state
        if drain is None:
            return
        follower = state.followers.get(drain.target)
        if follower is None or drain.target not in state.isr.members:
            self.end(f"{drain.target} is not in its ISR, {', '.join(sorted(state.isr.members))}", now, out)
            return
        if follower.no_space:
            self.end(f"{drain.target} has no room on its disk", now, out)
            return
        if follower.disk_hangs:
            self.end(f"the disk of {drain.target} hangs", now, out)
            return
        end = state.log_end_offset
        held = state.acknowledged(drain.target)
        committed = state.high_watermark == end or state.disk_hangs
        if not drain.is_done and committed and follower.log_end_offset == held == end:
            drain.is_done = True
            drain.deadline = now + drain.timeout
            state.history.add(f"drained: {drain.target} holds everything below {end}", now)
            out.append(CompleteDrain(drain.token))
        elif now >= drain.deadline:
            self.end(
                f"{drain.target} did not get to its end in {drain.timeout:g} s: the log ends at {end}, {drain.target}"
                f" holds it to {max(0, held)}, it is committed to {state.high_watermark}",
                now,
                out,
            )

    def end(self, why: str, now: float, out: list[LeaderEffect]) -> None:
        """Sequence again, or resign; a request without an answer is answered with `why`."""
        drain, self._drain = self._drain, None
        if drain is None:
            return
        state = self._state
        state.history.add(f"drains no more: {why}", now)
        if not drain.is_done:
            error = TidelogError(
                Code.LEADER_NOT_MOVED, f"{state.broker} did not hand {state.view.key} over to {drain.target}: {why}"
            )
            out.append(CompleteDrain(drain.token, error))
