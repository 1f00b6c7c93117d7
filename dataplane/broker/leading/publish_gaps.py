"""When plain publishes may have been lost on their way to this broker.

A record that reaches the broker is counted, whether it is stored or refused. A record that does not cannot be counted:
while the connection on which clients publish is down, NATS has no subscriber for a plain publish, and the messages that
nats-server held for a connection that it cuts off (a slow consumer: the broker read more slowly than was published, for
longer than `max_pending` or `write_deadline` of the server allow) are gone. So each loss of that connection is reported
as a gap: when, for how long, how many partitions were led, and the cause as far as it is known. Publishes with an
acknowledgement are not lost by it: they were not acknowledged. Partitions of internal streams do not count, nor do
those that take no plain publishes before or after a repartition.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dataplane.broker.roles.counters import Counters, counter
from dataplane.replica.leader.partitioning import takes_plain
from wire.internal_streams import is_of_internal
from wire.operations.api_operations import PublishGap
from wire.types import PartitionView

if TYPE_CHECKING:
    from dataplane.broker.roles.broker_context import BrokerContext

_log = logging.getLogger(__name__)

KEPT = 16
"""The newest gaps, to look at."""


@dataclass
class GapCounters(Counters):
    publish_gaps: int = counter(
        "times",
        "times at which plain publishes may have been missed, because the connection was lost",
    )


@dataclass(slots=True)
class Gap:
    began_ns: int
    """Wall clock. Records published shortly before may be missing, too: nats-server held them."""
    ended_ns: int | None
    """None: it lasts."""
    partitions: int
    """Led at its beginning; only those that take plain publishes."""
    reason: str


class PublishGaps:
    """`led`: views of the partitions that this broker leads."""

    def __init__(self, context: BrokerContext, led: Callable[[], Iterable[PartitionView]]) -> None:
        self._context = context
        self._led = led
        self._gaps: deque[Gap] = deque(maxlen=KEPT)

    def on_connection(self, connected: bool) -> None:
        """The connection on which clients publish was made or lost."""
        gap = self._gaps[-1] if self._gaps and self._gaps[-1].ended_ns is None else None
        if not connected:
            if gap is None and (partitions := sum(map(self._is_published_to, self._led()))):
                self._context.the(GapCounters).publish_gaps += 1
                self._gaps.append(Gap(self._context.time_ns(), None, partitions, "the connection was lost"))
        elif gap is not None:
            gap.ended_ns = self._context.time_ns()
            gap.reason = self._context.ingest.loss_reason
            _log.warning(
                "plain publishes to %d partitions led here may have been lost: for %.3f s there was no connection to"
                " NATS: %s",
                gap.partitions, (gap.ended_ns - gap.began_ns) / 1e9, gap.reason,
            )  # fmt: skip

    def _is_published_to(self, view: PartitionView) -> bool:
        return takes_plain(view) and not is_of_internal(view.key, view.subject, self._context.subjects)

    def status(self) -> list[PublishGap]:
        """Oldest first."""
        return [
            {
                "began_ns": gap.began_ns,
                "ended_ns": gap.ended_ns,
                "partitions": gap.partitions,
                "reason": gap.reason,
            }
            for gap in self._gaps
        ]
