"""Answers to bare publishes and envelopes that are not stored, and wait all the same.

    a repetition                          until the original is committed
    a refusal that is not certain (R46)   until it is true of every leader (`append_rules.Once`)

An answer that still waits when the leadership ends, or after `confirm_timeout_ms`, becomes the one that needs no proof
(R35). Answers that wait are bounded; one more is answered with BACKPRESSURE.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from dataplane.replica.leader.ack_levels import AckLevel
from dataplane.replica.leader.append_rules import Once, Refuse
from dataplane.replica.replies import BareReplies, EnvelopeReply, ExpectationReply
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError
from wire.types import Offset

if TYPE_CHECKING:
    from dataplane.broker.leading.appending import Appending
    from dataplane.broker.reading.readable_role import ReadableRole
    from dataplane.replica.leader.leader import Leader

MAX_WAITING: Final = 10_000
"""Refusals and repetitions of one partition that wait; one more is answered with BACKPRESSURE."""
_LOOK_EVERY: Final = 0.02
"""Seconds between two looks at whether a controller has counted on this leader."""


@dataclass(frozen=True, slots=True)
class _Unproved:
    reply: bytes
    error: TidelogError
    came_at: float
    until: float


class WaitingAnswers:
    """The waiting answers of one leader."""

    def __init__(self, role: ReadableRole, core: Leader, appending: Appending) -> None:
        self._role = role
        self._context = role.context
        self._core = core
        self._appending = appending
        self._unproved: deque[_Unproved] = deque()
        self._looking = False
        self.waiting = 0
        """Answers that the core completes later."""

    # Keeps R46.
    def refuse(self, reply: bytes, refusal: Refuse) -> None:
        error = refusal.error
        match refusal.once:
            case Once.NOT_KNOWN:
                self._appending.refuse([reply], error)
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
            self._appending.refuse([each.reply], each.error)
        self._unproved.clear()

    def wait(self, level: AckLevel, end: Offset, token: BareReplies | EnvelopeReply | ExpectationReply) -> None:
        """The answer waits until everything below `end` is held as the level says."""
        if self.waiting >= MAX_WAITING:
            self._appending.refuse(token, self._too_many())
            return
        self.waiting += 1
        timeout = self._role.view.config.confirm_timeout_ms / 1000
        self._appending.run(self._core.await_ack(level, end, token, timeout, self._context.now()))
        self._role.timer.schedule()

    def _prove(self, reply: bytes, error: TidelogError) -> None:
        if len(self._unproved) >= MAX_WAITING:
            self._appending.refuse([reply], self._too_many())
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
            if self._context.metadata.led_at(oldest.came_at):
                waiting.popleft()
                self._role.answers.bare_error([oldest.reply], oldest.error)
            elif now >= oldest.until:
                waiting.popleft()
                self._appending.refuse([oldest.reply], oldest.error)
            else:
                break
        if waiting and not self._role.ended:
            self._looking = True
            self._context.loop.call_later(_LOOK_EVERY, self._look)

    def _too_many(self) -> TidelogError:
        return TidelogError(
            Code.BACKPRESSURE,
            f"{MAX_WAITING} refusals and repetitions for {self._role.view.key} wait already; slow down",
            [RETRY_AFTER_MS.of(100), LIMIT.of("waiting_answers")],
        )
