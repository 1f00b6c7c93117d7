"""Messages on the subjects of brokers that no broker of the cluster has sent: counted, and logged now and then."""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf

_log = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
"""At most one line for each kind of subject in so long."""
MAX_SHOWN = 120
"""Bytes of a subject in the log."""
_NEVER = (-inf, 0)


class Refusals:
    """`owner`: the broker, for the log."""

    def __init__(self, owner: str, monotonic: Callable[[], float]) -> None:
        self._owner = owner
        self.monotonic = monotonic
        self._counts: dict[str, dict[str, int]] = {}
        self._logged: dict[str, tuple[float, int]] = {}
        """By kind: when, and how many there were then."""

    def count(self, kind: str, fault: str, subject: bytes) -> None:
        """`kind`: of the subject, one of few. `subject` may be anybody's text."""
        faults = self._counts.get(kind)
        if faults is None:
            faults = self._counts[kind] = {}
        faults[fault] = faults.get(fault, 0) + 1
        now = self.monotonic()
        at, before = self._logged.get(kind, _NEVER)
        if now - at >= LOG_INTERVAL_S:
            total = sum(faults.values())
            self._logged[kind] = now, total
            _log.warning(
                "broker %s refused %d messages of kind %s that no broker of its cluster has sent, the last one on %r"
                " (%s); somebody else publishes there, or a broker has another raft_secret",
                self._owner, total - before, kind, subject[:MAX_SHOWN].decode(errors="replace"), fault,
            )  # fmt: skip

    def counts(self) -> dict[str, dict[str, int]]:
        """By kind of subject and reason."""
        return {kind: dict(faults) for kind, faults in sorted(self._counts.items())}
