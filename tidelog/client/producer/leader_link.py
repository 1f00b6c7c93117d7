"""A partition's link to its leader: whether batches may be sent now, and when the next probe is due.

    UP     batches are sent, from `hold_until` on. While an answer is waited for, a probe goes out now and then.
    DOWN   NATS said that the subject has no listener (503). Only probes are sent, every few milliseconds, and metadata
           is asked for again from time to time.

Waits grow with the setbacks in a row: refusals, and probes without a listener.
"""

from __future__ import annotations

from random import random

from tidelog.client.producer.batches import BatchState, PendingBatch
from wire.errors import TidelogError
from wire.retry import Retry

BACKOFF = 0.01
"""Seconds of the first wait after a refusal; each further one is half as long again."""
_CAUTIOUS_AFTER = 3
"""Setbacks in a row after which only the first batch of the window is sent."""
_MAX_PROBE_BACKOFF = 0.05
_MAX_REFUSAL_BACKOFF = 0.25
_PROBE_INTERVAL = 0.1
"""Seconds from a batch that is not answered to the first probe, and between two of them."""
_REFRESH_INTERVAL = 1.0
"""Seconds that the link has been down when metadata are asked for, and between two such requests."""


class LeaderLink:
    """`now` is monotonic seconds."""

    def __init__(self) -> None:
        self.is_down = False
        self.hold_until = 0.0
        """Nothing is sent before this time, after a refusal that passes."""
        self.probe_at = 0.0
        self.refresh_at = 0.0
        self._refusals = Retry(BACKOFF, _MAX_REFUSAL_BACKOFF, factor=1.5, chance=random)
        """Since the last success."""
        self._probes = Retry(BACKOFF, _MAX_PROBE_BACKOFF, factor=1.5, chance=random)
        """Messages without a listener, since the last success."""
        self.troubled_since: float | None = None
        """Time of the first refusal or 503 since the last success."""
        self.refusal: TidelogError | None = None
        """The newest refusal by a running leader since the last success: nothing was written."""

    @property
    def is_cautious(self) -> bool:
        """Whether only the first batch of the window is sent."""
        return self._refusals.failures + self._probes.failures >= _CAUTIOUS_AFTER

    def may_send(self, now: float) -> bool:
        return not self.is_down and now >= self.hold_until

    def refuses_since(self, batch: PendingBatch) -> float | None:
        """Returns since when the leader has refused the batch, or those that it must follow. None: it does not at
        present, or an answer is pending."""
        if self.troubled_since is None or self.refusal is None or batch.state is BatchState.SENT:
            return None
        return max(self.troubled_since, batch.created_at)

    def expect_answer(self, now: float) -> None:
        """Notes that the oldest batch was sent just now."""
        self.probe_at = max(self.probe_at, now + _PROBE_INTERVAL)

    def succeeded(self) -> None:
        self._refusals.succeeded()
        self._probes.succeeded()
        self.troubled_since = self.refusal = None

    def come_up(self) -> bool:
        """Notes that the leader answers. True when the link was down."""
        was_down, self.is_down = self.is_down, False
        if was_down:
            self.hold_until = 0.0
            self._refusals.succeeded()
            self._probes.succeeded()
            self.troubled_since = None
        return was_down

    def go_down(self, now: float) -> None:
        """Takes the link down: a message had no listener."""
        pause_s = self._probes.failed()
        self._note_trouble(now, None)
        if not self.is_down:
            self.is_down = True
            self.refresh_at = now + _REFRESH_INTERVAL
            self.probe_at = now + pause_s

    def reconnected(self, now: float) -> None:
        self.hold_until = now
        self.probe_at = now

    def hold(self, until: float) -> None:
        self.hold_until = max(self.hold_until, until)

    def back_off(self, now: float, refusal: TidelogError | None) -> None:
        """Waits after a refusal that passes, as long as the leader said if it did. None: it is about the session
        alone."""
        if refusal is not None:
            self._note_trouble(now, None if refusal.code.unknown_outcome else refusal)
        self.hold(now + self._refusals.failed(at_least_s=(refusal and refusal.retry_after) or 0.0))

    def probe_is_due(self, now: float, *, waiting: bool) -> bool:
        """Returns True once per interval while the link is down or `waiting` for an answer; the next time is set."""
        if not (self.is_down or waiting) or now < self.probe_at:
            return False
        self.probe_at = now + (self._probes.pause_s() if self.is_down else _PROBE_INTERVAL)
        return True

    def refresh_is_due(self, now: float) -> bool:
        """Returns True once per interval while the link is down; the next time is set."""
        if not self.is_down or now < self.refresh_at:
            return False
        self.refresh_at = now + _REFRESH_INTERVAL
        return True

    def _note_trouble(self, now: float, refusal: TidelogError | None) -> None:
        self.refusal = refusal
        if self.troubled_since is None:
            self.troubled_since = now
