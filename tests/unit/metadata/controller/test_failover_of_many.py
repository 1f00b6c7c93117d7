"""Decisions on very many partitions: none looks at all of them, and each partition is decided on in the end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from metadata.cluster.model import Stream
from metadata.controller.controller_effects import Effect, Propose
from metadata.controller.failover import DECISION_RETRY_S, MAX_ELECTIONS
from metadata.controller.repartitions import Repartitioning
from metadata.runtime.controller_subscriptions import REPORTS, ControllerSubscriptions
from tests.loop_steps import Lines
from tests.unit.metadata.controlling import SETTINGS, Controller
from wire.protobuf import metadata_pb2 as pb
from wire.turns import LOOKS
from wire.types import BrokerId, Generation, LeaderEpoch, LeaderReport, PartitionEpoch, Room

PARTITIONS = 6_000
LINES = 60_000
"""Of Python, some 6 to 12 ms. A decision on all partitions takes several times as many."""
PAUSE_S = 0.002
"""Between two decisions, when there is more to decide: more than that of the driver."""
B = BrokerId("b")


class Deciding(Controller):
    """Brokers a, b and c; a is the controller, b leads all partitions. What it proposes is held."""

    def __init__(self, partitions: int = PARTITIONS, replicas: str = "abc") -> None:
        super().__init__("a", "b", "c")
        self.lines = 0.0
        self._measure = Lines()
        self.lead()
        for name in ("s0", "s1"):
            self.create(name, partitions // 2, replicas)
        self.run(SETTINGS.leader_lease_s)
        self.hold_proposals = True

    def create(self, name: str, partitions: int, replicas: str) -> None:
        order = pb.Assignment(replicas=range(len(replicas)), leader=replicas.index("b"))
        created = pb.CreateStream(
            controller_epoch=self.core.controller_epoch,
            name=name,
            subject=name,
            replication_factor=len(replicas),
            brokers=replicas,
            assignments=[order] * partitions,
        )
        assert self.cluster.apply(pb.Command(create_stream=created)).code is None

    def measured(self, decide: Callable[[], list[Effect]]) -> int:
        """How many elections are proposed, in commands of which none is too large."""
        self._measure.begin()
        try:
            effects = decide()
        finally:
            self.lines = max(self.lines, self._measure.end())
        self.perform(effects)
        proposed = [len(e.command.elect_leaders.items) for e in effects if isinstance(e, Propose)]
        assert max(proposed, default=0) <= MAX_ELECTIONS
        return sum(proposed)

    def tick(self) -> int:
        """The next decision that is due."""
        self.now = max(self.now + PAUSE_S, self.core.next_deadline())
        return self.measured(lambda: self.core.tick(self.now))

    def turns(self) -> list[int]:
        """Elections of all decisions that follow at once."""
        found = []
        while self.core.next_deadline() <= self.now:
            found.append(self.tick())
        return found

    def cut_off(self) -> None:
        """b, from NATS, until the controller says so."""
        self.core.on_raft_peers([B, BrokerId("c")])
        self.behaviour["b"] = "silent"
        while not any("cut off" in note for note in self.notes):
            self.tick()

    def lag(self) -> None:
        """b applies nothing any more."""
        self.behaviour["b"] = "behind"
        while not any("lags" in note for note in self.notes):
            self.tick()

    def probe(self, broker: BrokerId, number: int) -> None:
        if self.behaviour[broker] == "behind":
            self.perform(self.core.on_probe_answer(broker, number, Generation(1), self.now))
        else:
            super().probe(broker, number)

    def elections(self) -> int:
        """Different ones of those that are held."""
        items = (item for proposal in self.held for item in proposal.command.elect_leaders.items)
        return len({(item.partition.stream, item.partition.partition, item.leader_epoch) for item in items})

    def commit_all(self) -> None:
        """What was held, with the checks of the whole state at the end."""
        held, self.held = self.held, []
        for proposal in held:
            outcome = self.cluster.state.apply(proposal.command.SerializeToString(deterministic=True))
            self.perform(self.core.on_applied(outcome.changes, self.now))
            self.perform(self.core.on_outcome(proposal.ticket, outcome, self.now))
        self.cluster.state.check()

    def reports(self, witness: str) -> list[LeaderReport]:
        return [
            LeaderReport(
                key=key, replica=BrokerId(witness), leader=B, epoch=PartitionEpoch(1), leader_epoch=LeaderEpoch(1)
            )
            for key, _ in self.cluster.state.partitions()
        ]


@pytest.fixture
def deciding() -> Deciding:
    return Deciding()


@pytest.mark.parametrize("fault", [Deciding.cut_off, Deciding.lag])
def test_a_broker_that_leads_very_many_partitions_is_replaced_in_turns(fault: Callable[[Deciding], None]) -> None:
    deciding = Deciding(20_000)
    fault(deciding)
    began = deciding.now
    assert 0 < deciding.elections() < 20_000
    deciding.turns()
    assert deciding.elections() == 20_000
    assert deciding.now - began < DECISION_RETRY_S
    deciding.commit_all()
    assert deciding.cluster.state.led_by(B) == 0
    assert deciding.lines < LINES


def test_elections_that_are_lost_hold_up_no_others_and_are_proposed_again(deciding: Deciding) -> None:
    deciding.cut_off()
    lost = deciding.elections()
    deciding.held.clear()
    began = deciding.now
    deciding.turns()
    assert deciding.elections() == PARTITIONS - lost
    deciding.commit_all()
    while not deciding.held:
        deciding.tick()
    deciding.turns()
    assert deciding.elections() == lost
    assert deciding.now - began < 2 * DECISION_RETRY_S
    deciding.commit_all()
    assert deciding.cluster.state.led_by(B) == 0


def test_partitions_that_nobody_else_can_lead_hold_up_no_others() -> None:
    deciding = Deciding(replicas="b")
    deciding.create("z", 1, "abc")
    deciding.lag()
    deciding.turns()
    assert deciding.elections() == 1


@pytest.mark.parametrize("fault", [Deciding.cut_off, Deciding.lag])
def test_partitions_that_are_on_their_way_to_other_leaders_are_not_looked_at_with_each_probe(
    deciding: Deciding, fault: Callable[[Deciding], None]
) -> None:
    fault(deciding)
    deciding.turns()
    deciding.lines = 0
    assert deciding.tick() == 0
    assert deciding.lines < 1_000


def test_a_broker_that_is_heard_again_keeps_what_was_not_moved(deciding: Deciding) -> None:
    deciding.cut_off()
    proposed = deciding.elections()
    deciding.behaviour["b"] = "answers"
    deciding.core.on_connection(True, deciding.now)
    while deciding.core.next_deadline() <= deciding.now:
        deciding.tick()
    assert deciding.elections() == proposed


@pytest.mark.parametrize("witnesses", ["c", "ac"])
def test_leaders_that_most_report_are_replaced_in_turns(deciding: Deciding, witnesses: str) -> None:
    """One of two followers is half of them, and not most."""
    deciding.behaviour["b"] = "silent"
    for witness in witnesses:
        reports = deciding.reports(witness)
        for first in range(0, PARTITIONS, 250):
            deciding.measured(partial(deciding.core.on_reports, reports[first : first + 250], deciding.now))
    assert deciding.elections() == 0
    deciding.now += SETTINGS.probe_timeout_s
    deciding.tick()
    deciding.turns()
    assert deciding.elections() == (PARTITIONS if len(witnesses) == 2 else 0)
    assert deciding.lines < LINES


def test_partitions_for_which_nobody_comes_back_are_elected_in_turns(deciding: Deciding) -> None:
    cluster, expected = deciding.cluster, PARTITIONS
    cluster.die("b", "c")
    cluster.die("a")
    assert cluster.state.led_by(BrokerId("a")) == 0
    cluster.register("a")
    deciding.perform(deciding.core.on_raft(False, True, deciding.now))
    deciding.hold_proposals = False
    deciding.lead()
    deciding.hold_proposals = True
    deciding.turns()
    deciding.now += SETTINGS.election_wait_s
    for _ in range(2):
        deciding.tick()
        deciding.turns()
        assert deciding.elections() == expected
        deciding.held.clear()
        deciding.now += DECISION_RETRY_S
    assert deciding.lines < LINES


def test_moves_away_from_a_disk_that_hangs_are_looked_for_in_turns() -> None:
    deciding = Deciding(replicas="b")
    deciding.create("z", 1, "abc")

    def told(broker: str) -> list[Effect]:
        return deciding.core.on_condition(
            BrokerId(broker), room=Room.AMPLE, disk_hangs=broker == "b", has_master_key=True, now=deciding.now
        )

    rounds = 0
    while not deciding.moves:
        rounds += 1
        for broker in "abc":
            deciding.measured(partial(told, broker))
    assert [str(move.key) for move in deciding.moves] == ["z/0"]
    assert rounds < 20
    assert deciding.lines < LINES


def test_a_message_of_very_many_reports_is_read_in_turns() -> None:
    read: list[int] = []
    core = SimpleNamespace(controller_epoch=1, on_reports=lambda reports, _now: read.append(len(reports)))
    context: Any = SimpleNamespace(core=core, monotonic=lambda: 0.0)
    nothing: Any = None
    subscriptions = ControllerSubscriptions(context, nothing, nothing, lambda _effects: None)
    message = pb.LeaderReports(controller_epoch=1, items=[pb.LeaderReports.Report()] * (2 * REPORTS + 1))
    assert [*subscriptions._take_reports(message)] == [LOOKS] * 3
    assert read == [REPORTS, REPORTS, 1]
    steps = subscriptions._take_reports(message)
    next(steps)
    core.controller_epoch = 2
    assert [*steps] == []
    assert len(read) == 4


def test_streams_that_are_repartitioned_have_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[str] = []

    def not_ready(_: Repartitioning, stream: Stream) -> list[int]:
        looked_at.append(stream.name)
        return [0]

    monkeypatch.setattr("metadata.controller.repartitions.LOOKED_AT", 4)
    monkeypatch.setattr(Repartitioning, "not_ready", not_ready)
    controller = Controller("a")
    controller.lead()
    for name in ("s0", "s1", "s2"):
        controller.cluster.create(name, ["a", "a"])
        controller.cluster.prepare(3, ["a"], name=name)
    controller.core.repartitioning.begin()
    for _ in range(3):
        controller.core.repartitioning.due(controller.now)
    assert looked_at == ["s0", "s1", "s2", "s0", "s1", "s2"]
