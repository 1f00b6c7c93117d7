"""Clients' batches that name a partitioning version which has not begun here yet, or is not known to have ended: they
wait for the view (R61).

    judged Held ──> here ──view by which it is judged otherwise──> checked again, and decoded
                     └──HOLD_S, or the time after which its client gives up──> UNAVAILABLE: try again

They are neither decoded nor in the log, and leave in the order in which they came. Their number and bytes are bounded,
of one partition and of all; a batch that finds no room is refused at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from dataplane.broker.leading.bounds_of_all import BoundsOfAll
from dataplane.replica.leader.partitioning import not_applied
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from dataplane.broker.leading.decoding import ReceivedAppend
    from dataplane.broker.roles.role import Role

HOLD_S: Final = 0.25
"""Views of one command come to all brokers within some ms; a broker that is later than this may be cut off."""
MAX_HELD: Final = 256
MAX_HELD_BYTES: Final = 16 << 20
"""Bytes of batches of one partition, as they came."""
MAX_HELD_BYTES_OF_ALL: Final = 64 << 20
"""The same of all partitions that a broker leads."""


@dataclass(frozen=True, slots=True)
class _Waiting:
    received: ReceivedAppend
    until: float

    @property
    def version(self) -> int:
        return self.received.request.partitioning_version

    @property
    def size(self) -> int:
        return self.received.batch.header.size


class HeldAppends:
    """One leader's. `holds`: whether batches of that version wait still. `go_on` and `refuse` settle a batch that
    waited."""

    def __init__(
        self,
        role: Role,
        holds: Callable[[int], bool],
        go_on: Callable[[ReceivedAppend], None],
        refuse: Callable[[ReceivedAppend, TidelogError], None],
    ) -> None:
        self._role = role
        self._context = role.context
        self._bounds = role.context.the(BoundsOfAll)
        self._holds = holds
        self._go_on = go_on
        self._refuse = refuse
        self._waiting: list[_Waiting] = []
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def take(self, received: ReceivedAppend, timeout: float) -> None:
        """`timeout`: seconds after which its client gives up."""
        size = received.batch.header.size
        full = self._why_full(size)
        if full is not None:
            details = [RETRY_AFTER_MS.of(50), LIMIT.of("held_appends")]
            self._refuse(received, TidelogError(Code.BACKPRESSURE, full, details))
            return
        self._context.counters.held_appends += 1
        self._waiting.append(_Waiting(received, self._context.now() + min(HOLD_S, timeout)))
        self._count(size)
        self._schedule()

    def on_view(self) -> None:
        self._settle(
            lambda waiting: not self._holds(waiting.version),
            lambda waiting: self._go_on(waiting.received),
        )

    def abandon(self, error: TidelogError) -> None:
        """The role ends."""
        self._settle(lambda _: True, lambda waiting: self._refuse(waiting.received, error))

    def _expire(self) -> None:
        self._timer = None
        now, view = self._context.now(), self._role.view
        self._settle(
            lambda waiting: waiting.until <= now,
            lambda waiting: self._refuse(waiting.received, not_applied(view, waiting.version)),
        )

    def _settle(self, is_due: Callable[[_Waiting], bool], settle: Callable[[_Waiting], None]) -> None:
        if not self._waiting:
            return
        due: list[_Waiting] = []
        left: list[_Waiting] = []
        for waiting in self._waiting:
            (due if is_due(waiting) else left).append(waiting)
        self._waiting = left
        self._count(-sum(waiting.size for waiting in due))
        self._schedule()
        for waiting in due:
            settle(waiting)

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            first = min(waiting.until for waiting in self._waiting)
            self._timer = self._context.loop.call_at(first, lambda: self._role.carefully(self._expire))

    def _count(self, size: int) -> None:
        self._bytes += size
        self._bounds.bytes_held += size

    def _why_full(self, size: int) -> str | None:
        if len(self._waiting) >= MAX_HELD or self._bytes + size > MAX_HELD_BYTES:
            return (
                f"{len(self._waiting)} batches for {self._role.view.key}, {self._bytes} bytes, wait for another"
                " partitioning version already; try again"
            )
        if self._bounds.bytes_held + size > MAX_HELD_BYTES_OF_ALL:
            return (
                f"batches of {self._bounds.bytes_held} bytes wait for other partitioning versions on"
                f" {self._context.broker} already; try again"
            )
        return None
