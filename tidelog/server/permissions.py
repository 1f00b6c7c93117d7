"""What NATS does not let this broker's login do: in its log, and in its status.

Answers go where clients ask for them, so anybody can have NATS refuse an answer on a subject of his choice. What the
broker says on its own account (to other brokers, in the namespace, and to `$SRV.INFO`) is counted apart, so that no
flood of the others hides it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf

from wire.echo import one_line
from wire.messaging.transport import Transport
from wire.messaging.violation import Act, Violation
from wire.operations.api_operations import MissingPermissions

_log = logging.getLogger(__name__)

LOG_INTERVAL_S = 10.0
"""At most one line on refused messages in so long; each refused subscription has one of its own."""
REMEMBERED_S = 60.0
"""A refused message is shown in the status for so long."""
MAX_SHOWN = 20
"""Subjects of a kind."""


class _Refused:
    """Messages of one kind that NATS has refused."""

    def __init__(self) -> None:
        self.subjects: dict[str, float] = {}
        """The newest ones, with the times when."""
        self.logged_at = -inf
        self.unlogged = 0


class PermissionWatch:
    """`owner`: the broker, of a cluster in `namespace`. It hears of all that its connections meet."""

    def __init__(
        self, owner: str, namespace: str, transports: Sequence[Transport], monotonic: Callable[[], float]
    ) -> None:
        self._owner = owner
        self._own_subjects = (f"{namespace}.", "$")
        """No client has its inbox there (`wire.messaging.reply_subjects`)."""
        self._transports = transports
        self._monotonic = monotonic
        self._own, self._answers = _Refused(), _Refused()
        for transport in transports:
            transport.violations.hear(self._on_violation)

    def _on_violation(self, violation: Violation) -> None:
        if violation.act is Act.SUBSCRIBE:
            self._say(violation, "what is published or asked there does not arrive")
            return
        is_own = violation.subject.startswith(self._own_subjects)
        refused, what = (self._own, "messages") if is_own else (self._answers, "answers to clients")
        now = self._monotonic()
        refused.subjects.pop(violation.subject, None)
        refused.subjects[violation.subject] = now
        if len(refused.subjects) > MAX_SHOWN:
            del refused.subjects[next(iter(refused.subjects))]
        refused.unlogged += 1
        if now - refused.logged_at >= LOG_INTERVAL_S:
            self._say(violation, f"{refused.unlogged} {what} since the last such line did not leave")
            refused.logged_at, refused.unlogged = now, 0

    def _say(self, violation: Violation, consequence: str) -> None:
        _log.error(
            "broker %s: %s; %s. `tidelog security nats-config --role broker --broker %s --subject SUBJECT` prints the"
            " permissions that it needs, with each SUBJECT that streams capture",
            self._owner, violation.sentence, consequence, self._owner,
        )  # fmt: skip

    def _refused_subscriptions(self) -> set[str]:
        return {subject for transport in self._transports for subject in transport.violations.subscriptions}

    def status(self) -> MissingPermissions:
        since = self._monotonic() - REMEMBERED_S
        subscribe = sorted(self._refused_subscriptions())
        return {
            "subscriptions": len(subscribe),
            "subscribe": [one_line(subject) for subject in subscribe[:MAX_SHOWN]],
            "publish": [
                one_line(subject)
                for refused in (self._own, self._answers)
                for subject, at in refused.subjects.items()
                if at >= since
            ],
        }
