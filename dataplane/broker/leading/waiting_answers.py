"""Answers to bare publishes and envelopes that are not stored, and wait all the same.

    a repetition                          until the original is committed
    a refusal that is not certain (R46)   until it is true of every leader (`append_rules.Once`)

An answer that still waits when the leadership ends, or after `confirm_timeout_ms`, becomes the one that needs no proof
(R35). Answers that wait are bounded; one more is answered with BACKPRESSURE.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol, assert_never

from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.append_rules import Once, Refuse
from dataplane.replica.replies import BareReplies, EnvelopeReply, ExpectationReply, Replies
from wire.budget import Bound, Budget
from wire.errors import TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Callable

    from dataplane.broker.reading.readable_role import ReadableRole
    from dataplane.replica.leader.leader import Leader
    from dataplane.replica.replica_effects import LeaderEffect

WAITING_ANSWERS: Final = Bound(
    on="bare publishes that were repetitions, or not as they expect, and wait for their answers",
    name="waiting_answers",
    per="a partition",
    items=10_000,
    limit="of either kind",
    answer="BACKPRESSURE",
)
_LOOK_EVERY: Final = 0.02
"""Seconds between two looks at whether a controller has counted on this leader."""


@dataclass(frozen=True, slots=True)
class _Unproved:
    reply: bytes
    error: TidelogError
    came_at: float
    until: float


class Publishes(Protocol):
    """The publishes of the leader: `dataplane.broker.leading.appending.Appending`."""

    run: Callable[[list[LeaderEffect]], None]

    def refuse(self, token: Replies | BareReplies | ExpectationReply | EnvelopeReply, error: TidelogError) -> None: ...


class WaitingAnswers:
    """The waiting answers of one leader."""

    def __init__(self, role: ReadableRole, core: Leader, publishes: Publishes) -> None:
        self._role = role
        self._context = role.context
        self._core = core
        self._publishes = publishes
        self._unproved: deque[_Unproved] = deque()
        self._proving = Budget(WAITING_ANSWERS, role.view.key)
        self._looking = False
        self.waiting = Budget(WAITING_ANSWERS, role.view.key)
        """Answers that the core completes later."""

    # Keeps R46.
    def refuse(self, reply: bytes, refusal: Refuse) -> None:
        error = refusal.error
        match refusal.once:
            case Once.NOT_KNOWN:
                self._publishes.refuse([reply], error)
            case Once.NOW:
                self._role.answers.bare_error([reply], error)
            case Once.COMMITTED:
                level = AckLevel(is_local=False, is_synced=self._role.view.config.is_durable)  # the HW
                self.wait(level, refusal.end, ExpectationReply(reply, error))
            case Once.LED:
                self._prove(reply, error)
            case _:
                assert_never(refusal.once)

    def abandon(self) -> None:
        """The role ends."""
        for each in self._unproved:
            self._publishes.refuse([each.reply], each.error)
        self._unproved.clear()

    def wait(self, level: AckLevel, end: Offset, token: BareReplies | EnvelopeReply | ExpectationReply) -> None:
        """The answer waits until everything below `end` is held as the level says."""
        if (full := self.waiting.admit()) is not None:
            self._publishes.refuse(token, full)
            return
        timeout = self._role.view.config.confirm_timeout_ms / 1000
        self._publishes.run(self._core.await_ack(level, end, token, timeout, self._context.now()))
        self._role.timer.schedule()

    def _prove(self, reply: bytes, error: TidelogError) -> None:
        if (full := self._proving.admit()) is not None:
            self._publishes.refuse([reply], full)
            return
        now = self._context.now()
        self._unproved.append(_Unproved(reply, error, now, now + self._role.view.config.confirm_timeout_ms / 1000))
        if not self._looking:
            self._looking = True
            self._context.loop.call_later(_LOOK_EVERY, self._look)

    def _look(self) -> None:
        self._looking = False
        now, waiting = self._context.now(), self._unproved
        while waiting and not self._role.ended:
            oldest = waiting[0]
            is_true = self._context.metadata.led_at(oldest.came_at)
            if not is_true and now < oldest.until:
                break
            waiting.popleft()
            self._proving.release()
            if is_true:
                self._role.answers.bare_error([oldest.reply], oldest.error)
            else:
                self._publishes.refuse([oldest.reply], oldest.error)
        if waiting and not self._role.ended:
            self._looking = True
            self._context.loop.call_later(_LOOK_EVERY, self._look)
