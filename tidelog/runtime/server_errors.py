"""What a NATS server says is wrong (-ERR): a missing permission, or something that may end the connection."""

from __future__ import annotations

import logging
from collections.abc import Callable

from tidelog.runtime.counters import Counters
from tidelog.runtime.delivery import Guard
from tidelog.runtime.nats_errors import LossReason
from wire.messaging.violation import Violation, Violations

_log = logging.getLogger(__name__)


class ServerErrors:
    """`login_name`: who is connected. `inboxes`: the subject that the connection subscribes to for its answers."""

    def __init__(self, counters: Counters, loss: LossReason, login_name: Callable[[], str], inboxes: str) -> None:
        self.violations = Violations(on_error=Guard("what NATS does not permit", counters).met)
        self._counters = counters
        self._loss = loss
        self._login_name = login_name
        self._inboxes = inboxes

    def take(self, text: str) -> None:
        self._counters.server_errors += 1
        found = Violation.parse(text)
        if found is None:
            self._loss.on_server_error(text)
            return
        violation = found.seen_by(self._login_name(), self._inboxes)
        _log.debug("%s", violation.sentence)
        self.violations.tell(violation)
