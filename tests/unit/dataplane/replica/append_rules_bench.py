"""The rules of appends over a leader without a driver: an empty log, whose ids and producers are known."""

from __future__ import annotations

from dataclasses import dataclass, field

from dataplane.replica.derived.dedup_window import MessageIds
from dataplane.replica.derived.producer_table import ProducerTable
from dataplane.replica.leader.append_rules import AppendRules, ClientBatch, Decision, PublishRun
from dataplane.replica.leader.leader import Leader
from dataplane.replica.leader.log_clock import LogClock
from dataplane.replica.leader.repetitions import IdsOfAll, Repetitions
from dataplane.replica.replica_settings import ReplicaSettings
from tests.tickets import producer_keys, tickets
from wire.errors import TidelogError
from wire.types import Offset


@dataclass
class Ids:
    """The message ids of the log."""

    table: MessageIds = field(default_factory=lambda: MessageIds(0, 0))
    lacks: TidelogError | None = None

    def configure(self, window_ms: int, most: int) -> None:
        self.table = MessageIds(window_ms, most)


@dataclass
class AppendBench:
    core: Leader
    settings: ReplicaSettings = field(default_factory=ReplicaSettings)
    ids: Ids = field(default_factory=Ids)
    producers: ProducerTable = field(default_factory=ProducerTable)
    no_producer: TidelogError | None = None
    """Why no further producer is remembered."""

    def __post_init__(self) -> None:
        view = self.core.view
        clock = LogClock(0, 0.0, lambda: 1_000_000_000)
        self.repetitions = Repetitions(
            view.key,
            self.core.view.replicas[0],
            self.settings,
            self.ids,
            clock,
            IdsOfAll(),
            first_record=lambda: Offset(0),
            read=lambda *_: None,
        )
        self.repetitions.configure(view.config)
        self.repetitions.begin()
        self.rules = AppendRules(
            self.core,
            self.repetitions,
            self.producers,
            clock,
            is_internal=False,
            tickets=tickets(),
            producer_keys=producer_keys(),
            refuse_producer=lambda *_: self.no_producer,
        )

    def decide(
        self, publish: PublishRun | ClientBatch, *, lease_valid: bool = True, unable: TidelogError | None = None
    ) -> Decision:
        return self.rules.decide(publish, 0.0, lease_valid=lease_valid, unable=unable)
