"""A controller with a method for each event of a test. It carries out effects: proposals are applied to a real
ClusterState at once (unless held), probes reach brokers that answer, refuse or are silent."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from metadata.controller.controller import ControllerCore
from metadata.controller.controller_effects import (
    AskForClusters,
    BecomeController,
    Effect,
    HandOver,
    MoveLeader,
    Note,
    Propose,
    RefuseToFound,
    ResignController,
    SendProbe,
)
from metadata.controller.metadata_settings import MetadataSettings
from tests.unit.metadata.cluster_bench import Cluster
from wire.types import BrokerId, Generation, LeaderMove, LeaderReport

SETTINGS = MetadataSettings()


class Controller:
    def __init__(self, *brokers: str, controller: str = "a") -> None:
        self.cluster = Cluster(*brokers)
        self.core = ControllerCore(
            BrokerId(controller),
            f"{controller}-life",
            self.cluster.state,
            SETTINGS,
            Random(1),
            namespace="tidelog",
            new_cluster_id="new",
        )
        self.behaviour = dict.fromkeys(brokers, "answers")
        self.now = 100.0
        self.story: list[str] = []
        self.kinds: list[str] = []
        self.moves: list[LeaderMove] = []
        self.notes: list[str] = []
        self.hold_proposals = False
        self.held: list[Propose] = []
        self.successors = True
        self.perform(self.core.on_connection(True, 0.0))

    def perform(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Propose() if self.hold_proposals:
                    self.held.append(effect)
                case Propose():
                    self.commit(effect)
                case SendProbe(broker, number, _, epoch):
                    assert epoch == self.core.controller_epoch
                    self.probe(broker, number)
                case BecomeController(epoch):
                    self.story.append(f"begin {epoch}")
                case ResignController():
                    self.story.append("resign")
                case HandOver():
                    self.story.append("hand over")
                    if not self.successors:
                        self.perform(self.core.on_hand_over_refused(self.now))
                case MoveLeader(move):
                    self.moves.append(move)
                case AskForClusters() | RefuseToFound():
                    raise AssertionError(f"{effect} of a group that has a cluster")
                case Note(text):
                    self.notes.append(text)

    def commit(self, proposal: Propose) -> None:
        kind = proposal.command.WhichOneof("body")
        self.kinds.append(str(kind))
        outcome = self.cluster.apply(proposal.command)
        if outcome.changes:
            self.perform(self.core.on_applied(outcome.changes, self.now))
        self.perform(self.core.on_outcome(proposal.ticket, outcome, self.now))

    def probe(self, broker: BrokerId, number: int) -> None:
        if self.behaviour[broker] == "answers":
            generation = Generation(self.cluster.state.generation)
            self.perform(self.core.on_probe_answer(broker, number, generation, self.now))
        elif self.behaviour[broker] == "refuses":
            self.perform(self.core.on_no_responders(broker, number, self.now))

    def lead(self) -> None:
        self.perform(self.core.on_raft(True, True, self.now))

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.core.next_deadline() <= end:
            self.now = max(self.now + 0.001, self.core.next_deadline())
            self.perform(self.core.tick(self.now))
        self.now = max(self.now, end)

    def report(self, witness: str, number: int = 0, **different: Any) -> None:
        partition = self.cluster.partition(number)
        assert partition.leader is not None
        report: dict[str, Any] = {
            "key": self.cluster.key(number),
            "replica": BrokerId(witness),
            "leader": partition.leader,
            "epoch": partition.epoch,
            "leader_epoch": partition.leader_epoch,
        }
        self.perform(self.core.on_reports([LeaderReport(**(report | different))], self.now))
