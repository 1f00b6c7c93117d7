"""What leaves for one broker in one turn of the loop leaves as one message.

    publish(…, to=B) ─> frames for B ─end of the turn─> one frame:  the message itself, on its own subject
                                                   └──> several:    a pack, on `<ns>.notify.B.packed`

A message costs the NATS server, the sockets and the two tags far more than its bytes do, and the partitions that one
broker leads and another follows have much to say to each other at the same moment.

A pack asks for an answer only so that NATS says when nobody listens there (503): its frames then leave as single
messages, as do all others to that broker for PAUSE_S, and twice as long after each further pack that nobody hears, up
to MAX_PAUSE_S. So a broker that has gone is found as without packs, and one that NATS does not let listen for packs
loses only their saving. A pack is taken for heard when another one leaves PAUSE_S later and no 503 has come.

Where NATS does not let this broker publish packs it says so of the subject, and the pack is lost: all messages leave
one by one for REFUSED_PAUSE_S.

Bounded: a pack holds MAX_FRAMES, and at most MAX_BYTES or what NATS carries; a fuller one leaves at once. Larger
messages than MAX_FRAME_BYTES travel alone. The last MAX_REMEMBERED packs are remembered for a 503.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

from wire.messaging.packed import HEAD_BYTES, Frame
from wire.types import BrokerId

_log = logging.getLogger(__name__)

MAX_FRAMES: Final = 64
"""A receiver carries them out in one turn of its loop: a few milliseconds."""
MAX_BYTES: Final = 64 << 10
MAX_FRAME_BYTES: Final = 16 << 10
SMALL_BYTES: Final = 1 << 10
"""NATS carries messages of this size and ROOM_BESIDE for any broker."""
ROOM_BESIDE: Final = 1024
"""Bytes of a message for the trailer, the head of a frame, its subjects and headers."""
MAX_REMEMBERED: Final = 32
"""A 503 comes within milliseconds."""
PAUSE_S: Final = 1.0
MAX_PAUSE_S: Final = 60.0
REFUSED_PAUSE_S: Final = 600.0
"""Permissions change seldom, and each attempt loses the messages of a turn."""


class Gathered(NamedTuple):
    """A message that waits for the end of the turn, as it was given: most leave alone."""

    subject: str
    reply: str | None
    headers: Mapping[str, str] | None
    block: bytes
    """The NATS header block of `headers`; empty: there are none."""
    payload: bytes
    nobody_listens: bool = False
    """As of `Frame`."""

    def frame(self) -> Frame:
        reply = b"" if self.reply is None else self.reply.encode()
        return Frame(self.subject.encode(), reply, self.block, self.payload, self.nobody_listens)

    @property
    def size(self) -> int:
        """Bytes in a pack."""
        if not self.subject.isascii() or not (self.reply is None or self.reply.isascii()):
            return self.frame().size
        return HEAD_BYTES + len(self.subject) + len(self.reply or "") + len(self.block) + len(self.payload)


@dataclass(slots=True)
class _Unheard:
    """A broker where the last pack but those since `tried_at` was not heard."""

    pause: float
    tried_at: float = inf
    """When the first pack after the pause left."""


class Packs:
    """Gathers frames. `send(to, frames)`: called with what leaves, in the order in which it was added. `at_turn_end`:
    has a function called before the messages of this turn of the loop leave. `limit`: bytes that a message may have."""

    def __init__(
        self,
        send: Callable[[BrokerId, list[Gathered]], None],
        at_turn_end: Callable[[Callable[[], None]], None],
        limit: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._send = send
        self._at_turn_end = at_turn_end
        self._limit = limit
        self._now = monotonic
        self._waiting: dict[BrokerId, list[Gathered]] = {}
        self._sizes: dict[BrokerId, int] = {}
        """Bytes of the frames that wait for a broker, where there are several."""
        self._paused_until: dict[BrokerId, float] = {}
        """Brokers to which messages leave one by one."""
        self._unheard: dict[BrokerId, _Unheard] = {}
        self.unheard = 0
        """Packs that nobody listened to, or that NATS refused."""
        self._remembered: dict[str, tuple[BrokerId, list[Gathered]]] = {}
        """By inbox, the packs sent last; the oldest comes first."""

    def takes(self, to: BrokerId, size: int) -> bool:
        """Whether a message of `size` bytes may be added now."""
        if size > SMALL_BYTES and (size > MAX_FRAME_BYTES or size > self._limit() - ROOM_BESIDE):
            return False
        if self._paused_until:
            until = self._paused_until.get(to)
            if until is not None:
                if self._now() < until:
                    return False
                del self._paused_until[to]
        return True

    def add(self, to: BrokerId, message: Gathered) -> None:
        frames = self._waiting.get(to)
        if frames is None:  # most are alone: that costs little
            if not self._waiting:
                self._at_turn_end(self.end_turn)
            self._waiting[to] = [message]
            return
        before, size = self._sizes.get(to, 0) or frames[0].size, message.size
        if len(frames) >= MAX_FRAMES or before + size > min(MAX_BYTES, self._limit() - ROOM_BESIDE):
            self._waiting[to], self._sizes[to] = [message], size
            try:
                self._send(to, frames)
            except Exception:  # noqa: BLE001 - it is logged: they are not the caller's messages
                self._log_lost(to, frames)
            return
        frames.append(message)
        self._sizes[to] = before + size

    def end_turn(self) -> None:
        """Sends everything that has gathered."""
        gathered, self._waiting = self._waiting, {}
        if self._sizes:
            self._sizes = {}
        for to, frames in gathered.items():
            try:
                self._send(to, frames)
            except Exception:  # noqa: BLE001 - it is logged, and what goes to other brokers leaves
                self._log_lost(to, frames)

    def _log_lost(self, to: BrokerId, frames: list[Gathered]) -> None:
        _log.exception("%d messages to broker %s are lost", len(frames), to)

    # ---- packs that reach nobody

    def remember(self, inbox: str, to: BrokerId, frames: list[Gathered]) -> str | None:
        """The pack was sent with `inbox`. Returns the inbox that is forgotten for it."""
        if self._unheard:
            self._look_whether_heard(to)
        self._remembered[inbox] = to, frames
        if len(self._remembered) <= MAX_REMEMBERED:
            return None
        oldest = next(iter(self._remembered))
        del self._remembered[oldest]
        return oldest

    def on_no_responders(self, inbox: str) -> list[Gathered]:
        """Nobody listens for packs where the one with that inbox was sent. Returns its frames: they are to leave as
        single messages. Empty: it is remembered no more, or this was said before."""
        found = self._remembered.pop(inbox, None)
        if found is None:
            return []
        to, frames = found
        self.unheard += 1
        now = self._now()
        if now < self._paused_until.get(to, 0.0):
            return frames  # it left before the pause
        unheard = self._unheard.get(to)
        if unheard is None:
            unheard = self._unheard[to] = _Unheard(PAUSE_S)
            _log.warning(
                "nobody listens where messages to broker %s leave together; they leave one by one for %g s, and for up"
                " to %g s while that is so: it is down, or NATS does not let it subscribe there",
                to, PAUSE_S, MAX_PAUSE_S,
            )  # fmt: skip
        else:
            unheard.pause, unheard.tried_at = min(2 * unheard.pause, MAX_PAUSE_S), inf
        self._paused_until[to] = now + unheard.pause
        return frames

    def _look_whether_heard(self, to: BrokerId) -> None:
        """A pack to that broker leaves now."""
        unheard = self._unheard.get(to)
        if unheard is None:
            return
        now = self._now()
        if unheard.tried_at == inf:
            unheard.tried_at = now
        elif now - unheard.tried_at >= PAUSE_S:
            del self._unheard[to]

    def on_refused(self, to: BrokerId) -> None:
        """NATS does not let this broker publish packs to that one."""
        self.unheard += 1
        until = self._now() + REFUSED_PAUSE_S
        if self._paused_until.get(to, 0.0) < until - MAX_PAUSE_S:
            _log.error(
                "NATS does not let this broker publish where messages to broker %s leave together, and some are lost;"
                " they leave one by one for %g s",
                to, REFUSED_PAUSE_S,
            )  # fmt: skip
        self._paused_until[to] = until
