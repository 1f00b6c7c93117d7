"""Repeats requests that a cluster could not answer, for as long as the option `retry.timeout` says.

Brokers and NATS servers are restarted while queries run. Whatever talks to the cluster, on the driver and in tasks,
does it through a `Patience`, so that a query waits for the cluster as a producer or a consumer does, and says so in the
log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from random import random
from typing import TypeVar

from tidelog.client.base.exceptions import NoServer
from wire.errors import TidelogError
from wire.retry import Retry

WARN_SECONDS = 10.0
"""Seconds between two warnings of one wait."""
FIRST_PAUSE_SECONDS = 0.1
LONGEST_PAUSE_SECONDS = 2.0
REFUSAL_SECONDS = 3.0
"""Seconds after which a refusal of the login is final: a NATS server that is being stopped may cut connections off
like one that refuses the login."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class WaitedOut(TidelogError):
    """An error that was waited out already: it is final."""


@dataclass(frozen=True, slots=True)
class Patience:
    """`timeout`: seconds from the first failure until an error is raised; 0: at once."""

    timeout: float
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def run(self, what: str, attempt: Callable[[], _T]) -> _T:
        """Returns the result of `attempt`, which is called again while its error may pass. `what` completes "cannot …
        yet" in the log. Raises the error of the last attempt, whose sentence then says how long it was tried."""
        first: float | None = None
        warn_at = 0.0
        retry = Retry(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS, chance=random)
        while True:
            try:
                return attempt()
            except TidelogError as error:
                failed_at = self.now()
                if first is None:
                    first = warn_at = failed_at
                waited = failed_at - first
                left = self._patience(error) - waited
                if left <= 0:
                    if waited >= 1:
                        raise _told_with_time(error, waited) from error
                    raise
                if failed_at >= warn_at:
                    _log.warning(
                        "tidelog: cannot %s yet, and goes on trying for %.0f s (retry.timeout): %s",
                        what, left, error.message,
                    )  # fmt: skip
                    warn_at = failed_at + WARN_SECONDS
                self.sleep(min(retry.failed(at_least_s=error.retry_after or 0.0), left))

    def _patience(self, error: TidelogError) -> float:
        """Returns the seconds for which this error is waited out."""
        if not error.retriable or isinstance(error, WaitedOut):
            return 0.0
        if isinstance(error, NoServer) and error.is_refusal:
            return min(self.timeout, REFUSAL_SECONDS)
        return self.timeout


def _told_with_time(error: TidelogError, waited: float) -> TidelogError:
    return type(error)(error.code, f"{error.message} (tried for {waited:.0f} s; option retry.timeout)", error.details)
