"""Bounds the producers that a broker remembers, of all partitions whose logs it has.

What each partition remembers follows from its log, so that all replicas remember the same (R33): no replica can forget
a producer because its broker has too many. So the bound is kept where they come: above it, a leader on that broker
takes no batch of a producer that is new in its partition, and refuses it with BACKPRESSURE. Nothing is forgotten, and
nothing was stored: producers that are known go on, and the new one's client sends again until there is room.

A partition that remembers as many as it may takes new ones as ever, since each takes the place of another one there.
Partitions in which nothing was appended for the time that a producer is remembered do not count: their producers go
with the next batch there, and until then nothing would make room.

The count is made anew after RECOUNT_S at most, and what leaders have taken since is added: followers' producers come
late to it, so that it is exceeded by what they bring in that time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from dataplane.broker.roles.counters import Counters, counter
from dataplane.replica.derived.producer_table import ProducerTable
from dataplane.replica.leader.catch_up_budget import CatchUpBudget
from dataplane.replica.leader.commits import Uncommitted
from dataplane.replica.leader.repetitions import IdsOfAll
from wire.budget import Bound, Budget
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from dataplane.broker.roles.broker_context import BrokerContext

RECOUNT_S: Final = 1.0
WARNING_S: Final = 60.0
"""Seconds from one sentence in the broker's log to the next, as long as producers are refused."""
_RETRY_MS: Final = 1000

HOLD_S: Final = 0.25
"""Views of one command come to all brokers within some ms; a broker that is later than this may be cut off."""
QUEUED_APPENDS: Final = Bound(
    on="batches that wait to be decoded",
    name="decode_queue",
    per="a partition",
    items=64,
    bytes=32 << 20,
    bytes_of_all=64 << 20,
    answer="BACKPRESSURE",
    counter="dropped_decode_queue",
    retry_after_ms=50,
)
"""Those behind a batch that is decoded wait, too. Bytes as they came."""
HELD_APPENDS: Final = Bound(
    on="batches that wait until their partitioning version is applied",
    name="held_appends",
    per="a partition",
    items=256,
    bytes=16 << 20,
    bytes_of_all=64 << 20,
    limit=f"{HOLD_S:g} s each",
    answer="BACKPRESSURE; UNAVAILABLE after that time",
    retry_after_ms=50,
)

_log = logging.getLogger(__name__)


class ProducersOfAll:
    """`most`: `max_producers_of_all`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.tables: Callable[[], Iterable[ProducerTable]] = tuple
        """Those of all logs that are open."""
        self._count = 0
        self._counted_at: float | None = None
        self._warned_at: float | None = None

    def count(self, now: float, time: int) -> int:
        """How many are remembered. `now`: monotonic seconds; `time`: of any log that is led here, ns since 1970."""
        if self._counted_at is None or now >= self._counted_at + RECOUNT_S:
            self._counted_at = now
            self._count = sum(0 if table.is_over(time) else len(table) for table in self.tables())
        return self._count

    # Keeps R33.
    def refuse(self, now: float, time: int) -> TidelogError | None:
        """Why no batch can be taken with which a partition remembers one producer more. Otherwise it counts at once.
        `time`: of the log of that partition."""
        if self.count(now, time) < self._most:
            self._count += 1
            return None
        if self._warned_at is None or now >= self._warned_at + WARNING_S:
            self._warned_at = now
            _log.warning(
                "%d producers are remembered, and max_producers_of_all is %d: no new one is taken in any partition"
                " that this broker leads",
                self._count, self._most,
            )  # fmt: skip
        return TidelogError(
            Code.BACKPRESSURE,
            f"the leader remembers {self._count} producers in its partitions, and takes no new one here: use fewer"
            " producers, and longer; or raise max_producers_of_all, or lower producer_id_expiration_ms, of all brokers",
            [RETRY_AFTER_MS.of(_RETRY_MS), LIMIT.of("producers")],
        )


@dataclass
class CatchUpCounters(Counters):
    catch_up_bytes: int = counter(
        "bytes", "sent to replicas outside the ISR beyond what came meanwhile, within the replication budget (R89)"
    )
    catch_up_waits: int = counter(
        "requests",
        "of replicas outside the ISR that had to wait for the replication budget; they ask again by themselves",
    )


@dataclass(slots=True)
class BoundsOfAll:
    """The bounds that all partitions which a broker leads share."""

    producers: ProducersOfAll
    """The producers that are remembered of all partitions."""
    uncommitted: Uncommitted
    """Bytes of all led partitions that are not committed yet."""
    queued: Budget
    held: Budget
    message_ids: IdsOfAll = field(default_factory=IdsOfAll)
    """The message ids that are remembered of all led partitions."""
    catching_up: CatchUpBudget | None = None
    """Bytes a second for the replicas outside the ISR of all led partitions; None: without a limit."""

    def refuse_producer(self, now: float, time: int) -> TidelogError | None:
        """As `ProducersOfAll.refuse`."""
        return self.producers.refuse(now, time)

    @classmethod
    def of_broker(cls, context: BrokerContext) -> BoundsOfAll:
        return cls(
            ProducersOfAll(context.storage.max_producers_of_all),
            Uncommitted(context.settings),
            Budget(QUEUED_APPENDS, context.broker, of_all=True),
            Budget(HELD_APPENDS, context.broker, of_all=True),
            catching_up=CatchUpBudget(context.replication_budget, context.now(), context.the(CatchUpCounters)),
        )
