"""What leaves for one broker in one turn of the loop leaves as one message.

    publish(…, to=B) ─> frames for B ─end of the turn─> one frame:  the message itself, on its own subject
                                                   └──> several:    a pack, on `<ns>.notify.B.packed`

A message costs the NATS server, the sockets and the two tags far more than its bytes do, and the partitions that one
broker leads and another follows have much to say to each other at the same moment.

A pack asks for an answer only so that NATS says when nobody listens there (503): its frames then leave as single
messages, as do all others to that broker for PAUSE_S. So a broker that has gone is found as without packs, and one that
NATS does not let listen for packs loses only their saving.

Bounded: a pack holds MAX_FRAMES, and at most MAX_BYTES or what NATS carries; a fuller one leaves at once. Larger
messages than MAX_FRAME_BYTES travel alone. The last MAX_REMEMBERED packs are remembered for a 503.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wire.messaging.packed import Frame
from wire.types import BrokerId

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


class Packs:
    """Gathers frames. `send(to, frames)`: called with what leaves, in the order in which it was added. `at_turn_end`:
    has a function called before the messages of this turn of the loop leave. `limit`: bytes that a message may have."""

    def __init__(
        self,
        send: Callable[[BrokerId, list[Frame]], None],
        at_turn_end: Callable[[Callable[[], None]], None],
        limit: Callable[[], int],
        monotonic: Callable[[], float],
    ) -> None:
        self._send = send
        self._at_turn_end = at_turn_end
        self._limit = limit
        self._now = monotonic
        self._waiting: dict[BrokerId, list[Frame]] = {}
        self._sizes: dict[BrokerId, int] = {}
        """Bytes of the frames that wait for a broker, where there are several."""
        self._paused_until: dict[BrokerId, float] = {}
        """Brokers that had nobody who listens for packs."""
        self._remembered: dict[str, tuple[BrokerId, list[Frame]]] = {}
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

    def add(self, to: BrokerId, frame: Frame) -> None:
        frames = self._waiting.get(to)
        if frames is None:  # most are alone: that costs little
            if not self._waiting:
                self._at_turn_end(self.end_turn)
            self._waiting[to] = [frame]
            return
        before, size = self._sizes.get(to, 0) or frames[0].size, frame.size
        if len(frames) >= MAX_FRAMES or before + size > min(MAX_BYTES, self._limit() - ROOM_BESIDE):
            self._waiting[to], self._sizes[to] = [frame], size
            self._send(to, frames)
            return
        frames.append(frame)
        self._sizes[to] = before + size

    def end_turn(self) -> None:
        """Sends everything that has gathered."""
        gathered, self._waiting = self._waiting, {}
        if self._sizes:
            self._sizes = {}
        for to, frames in gathered.items():
            self._send(to, frames)

    # ---- packs that reach nobody

    def remember(self, inbox: str, to: BrokerId, frames: list[Frame]) -> str | None:
        """The pack was sent with `inbox`. Returns the inbox that is forgotten for it."""
        self._remembered[inbox] = to, frames
        if len(self._remembered) <= MAX_REMEMBERED:
            return None
        oldest = next(iter(self._remembered))
        del self._remembered[oldest]
        return oldest

    def on_no_responders(self, inbox: str) -> list[Frame]:
        """Nobody listens for packs where the one with that inbox was sent. Returns its frames: they are to leave as
        single messages. Empty: it is remembered no more, or this was said before."""
        found = self._remembered.pop(inbox, None)
        if found is None:
            return []
        to, frames = found
        self._paused_until[to] = self._now() + PAUSE_S
        return frames
