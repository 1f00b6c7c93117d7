"""Brokers that are declared dead, and cases in which the controller doubts itself instead. `Probes` carries probes to
brokers that answer, refuse (no process listens) or are silent, in steps of a heartbeat or less."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest

from metadata.controller.liveness import Liveness, Verdict
from metadata.controller.metadata_settings import MetadataSettings
from tests.unit.metadata.cluster_bench import Cluster
from wire.types import BrokerId, Generation, Incarnation

Behaviour = Literal["answers", "vouches", "refuses", "silent", "refused and answers"]
SETTINGS = MetadataSettings()
A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")


class Probes:
    def __init__(self, *brokers: str, connected_at: float = -10.0) -> None:
        self.brokers = dict(Cluster(*brokers).state.brokers)
        self.liveness = Liveness(BrokerId(brokers[0]), SETTINGS)
        self.behaviour: dict[str, Behaviour] = dict.fromkeys(brokers, "answers")
        self.applied: dict[str, int] = {}
        self.generation = 10
        self.now = 0.0
        self.sent: list[str] = []
        self.liveness.restart(0.0, connected_at)

    def run(self, seconds: float) -> Verdict:
        """Up to `seconds` on, or to the first verdict that says something."""
        end = self.now + seconds
        while True:
            for order in self.liveness.tick(self.now, self.brokers, Generation(self.generation)):
                self.sent.append(order.broker)
                match self.behaviour[order.broker]:
                    case "answers" | "vouches" as how:
                        generation = Generation(self.applied.get(order.broker, self.generation))
                        vouches = how == "vouches"
                        self.liveness.on_answer(order.broker, order.number, generation, self.now, vouches=vouches)
                    case "refuses":
                        self.liveness.on_no_responders(order.broker, order.number, self.now)
                    case "refused and answers":
                        self.liveness.on_no_responders(order.broker, order.number, self.now)
                        assert self.liveness.verdict(self.now) == Verdict()
                        self.liveness.on_answer(order.broker, order.number, Generation(self.generation), self.now)
                    case "silent":
                        pass
            verdict = self.liveness.verdict(self.now)
            if verdict != Verdict() or self.now >= end:
                return verdict
            self.now = min(end, max(self.liveness.next_deadline(), self.now + 0.001))

    def dead(self, *brokers: BrokerId) -> Verdict:
        return Verdict(dead=tuple((broker, self.brokers[broker].incarnation) for broker in brokers))


def test_brokers_that_answer_live() -> None:
    probes = Probes("a", "b", "c")
    assert probes.run(10) == Verdict()
    assert 95 <= probes.sent.count("b") <= 105


def test_two_refusals_ten_milliseconds_apart_and_a_closed_raft_connection_are_death() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour["b"] = "refuses"
    probes.liveness.on_peer_lost(B, probes.now)
    began = probes.now
    assert probes.run(1) == probes.dead(B)
    assert probes.now - began == pytest.approx(0.01, abs=0.005)


def test_refusals_alone_are_death_after_the_probe_timeout() -> None:
    """Anybody who sees a probe can refuse it; only a broker that stands still lets that stand."""
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour["b"] = "refuses"
    probes.liveness.suspect(B, probes.now)
    began = probes.now
    assert probes.run(1) == probes.dead(B)
    assert probes.now - began >= SETTINGS.probe_timeout_s - SETTINGS.heartbeat_interval_s


@pytest.mark.parametrize("raft", ["closed", "never open"])
def test_a_broker_whose_probes_somebody_else_refuses_lives(raft: str) -> None:
    """Each is refused at once, and answered by the broker a little later."""
    probes = Probes("a", "b", "c")
    probes.run(5)
    if raft == "closed":
        probes.liveness.on_peer_lost(B, probes.now)
        probes.run(0.2)
    probes.behaviour["b"] = "refused and answers"
    assert probes.run(5) == Verdict()
    assert not probes.liveness.is_gone(B, probes.now)


@pytest.mark.parametrize("asked", ["before", "after"])
def test_a_controller_that_stood_still_believes_no_refusal_before_it_has_read_the_answers(asked: str) -> None:
    """For longer than the probe timeout, and somebody refuses the probe that it sent before that, or the next one."""
    probes = Probes("a", "b", "c")
    probes.run(5)
    orders = []
    if asked == "before":
        probes.now += SETTINGS.heartbeat_interval_s
        orders = probes.liveness.tick(probes.now, probes.brokers, Generation(10))
    probes.now += SETTINGS.probe_timeout_s + 0.05
    if asked == "after":
        orders = probes.liveness.tick(probes.now, probes.brokers, Generation(10))
    numbers = {order.broker: order.number for order in orders}
    probes.liveness.on_answer(A, numbers[A], Generation(10), probes.now)
    probes.liveness.on_no_responders(B, numbers[B], probes.now)
    assert not probes.liveness.is_gone(B, probes.now)
    probes.liveness.on_answer(B, numbers[B], Generation(10), probes.now)
    assert probes.run(1) == Verdict()


def test_a_broker_whose_leaders_have_not_begun_is_not_behind() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    (order,) = [
        order
        for order in probes.liveness.tick(probes.now + SETTINGS.heartbeat_interval_s, probes.brokers, Generation(10))
        if order.broker == B
    ]
    probes.liveness.on_answer(B, order.number, Generation(10), probes.now, begun=Generation(7))
    assert probes.liveness.begun_generation(B) == 7
    assert probes.liveness.verdict(probes.now).behind == ()


def test_a_raft_connection_that_is_back_proves_nothing() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.liveness.on_peer_lost(B, probes.now)
    probes.liveness.on_raft_peers([B])
    probes.liveness.on_raft_peers([])
    probes.behaviour["b"] = "refuses"
    probes.run(0.05)
    assert probes.liveness.is_refused(B)
    assert not probes.liveness.is_gone(B, probes.now)


@pytest.mark.parametrize("first", [True, False], ids=["first connection", "reconnected"])
@pytest.mark.parametrize("witness", ["vouches", "answers"])
def test_a_young_connection_is_believed_where_another_broker_vouches(first: bool, witness: Behaviour) -> None:
    probes = Probes("a", "b", "c", connected_at=0.0)
    if not first:
        probes.liveness.on_connection(False, 0.0)
    probes.liveness.on_connection(True, 0.0)
    probes.behaviour |= {"b": "refuses", "c": witness}
    probes.liveness.on_peer_lost(B, 0.0)
    assert probes.run(2) == probes.dead(B)
    soon = first and witness == "vouches"
    assert probes.now == pytest.approx(0.01 if soon else SETTINGS.liveness_grace_s, abs=0.12 if not soon else 0.005)


def test_a_controller_does_not_vouch_for_itself() -> None:
    probes = Probes("a", "b", "c", connected_at=0.0)
    probes.liveness.on_connection(True, 0.0)
    probes.behaviour |= {"a": "vouches", "b": "refuses"}
    assert probes.run(0.9) == Verdict()


def test_a_vouched_connection_counts_until_it_ends() -> None:
    probes = Probes("a", "b", "c", connected_at=0.0)
    probes.liveness.on_connection(True, 0.0)
    probes.behaviour["c"] = "vouches"
    probes.run(0.2)
    assert probes.liveness.is_trusted(probes.now)
    probes.liveness.on_connection(False, probes.now)
    probes.liveness.on_connection(True, probes.now)
    probes.behaviour["b"] = "refuses"
    assert probes.run(0.9) == Verdict()


def test_one_refusal_is_not_death() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour["b"] = "refuses"
    probes.liveness.suspect(B, probes.now)
    probes.run(0)
    probes.behaviour["b"] = "answers"
    assert probes.run(5) == Verdict()


def test_a_suspect_is_asked_again_soon_while_nothing_comes_back() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.now += 0.05
    probes.behaviour["b"] = "silent"
    probes.liveness.on_peer_lost(B, probes.now)
    probes.run(0.001)
    probes.behaviour["b"] = "refuses"
    began = probes.now
    assert probes.run(1) == probes.dead(B)
    assert probes.now - began < 0.03


def test_two_refusals_at_the_same_time_are_one() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.now += 0.05
    orders = []
    for _ in range(2):
        probes.liveness.suspect(B, probes.now)
        orders += probes.liveness.tick(probes.now, probes.brokers, Generation(10))
    for order in orders:
        if order.broker == B:
            probes.liveness.on_no_responders(B, order.number, probes.now)
        else:
            probes.liveness.on_answer(order.broker, order.number, Generation(10), probes.now)
    for order in probes.liveness.tick(probes.now + 0.01, probes.brokers, Generation(10)):
        if order.broker != B:
            probes.liveness.on_answer(order.broker, order.number, Generation(10), probes.now + 0.01)
    assert len([order for order in orders if order.broker == B]) == 2
    assert probes.liveness.verdict(probes.now + 0.01) == Verdict()


def test_the_others_do_not_replace_the_controllers_own_probe() -> None:
    probes = Probes("a", "b", "c", "d", "e")
    probes.run(5)
    probes.behaviour |= {"a": "silent", "b": "refuses"}
    probes.liveness.suspect(B, probes.now)
    assert probes.run(0.1) == Verdict()
    probes.behaviour["a"] = "answers"
    assert probes.run(0.2) == probes.dead(B)


def test_silence_is_death_after_its_timeout() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour["b"] = "silent"
    began = probes.now
    assert probes.run(5) == probes.dead(B)
    assert probes.now - began == pytest.approx(SETTINGS.broker_silence_timeout_s, abs=0.15)


def test_a_voter_with_a_live_raft_connection_is_not_dead() -> None:
    probes = Probes("a", "b", "c")
    probes.liveness.on_raft_peers([B, C])
    probes.run(5)
    probes.behaviour |= {"b": "refuses", "c": "silent"}
    assert probes.run(3) == Verdict()
    probes.liveness.on_raft_peers([C])
    assert probes.run(0) == Verdict()
    probes.behaviour["c"] = "answers"
    assert probes.run(0.2) == probes.dead(B)


@pytest.mark.parametrize("behaviour", ["refuses", "silent"])
def test_a_voter_that_is_heard_over_raft_alone_is_cut_off_after_a_lease(behaviour: Behaviour) -> None:
    probes = Probes("a", "b", "c")
    probes.liveness.on_raft_peers([B, C])
    probes.run(5)
    probes.behaviour["b"] = behaviour
    began = probes.now
    assert probes.run(10) == Verdict(cut_off=(B,))
    assert probes.now - began == pytest.approx(SETTINGS.leader_lease_s, abs=0.2)
    probes.behaviour["b"] = "answers"
    probes.now += SETTINGS.heartbeat_interval_s
    assert probes.run(10) == Verdict()


def test_voters_are_not_cut_off_while_the_controllers_own_probes_stay_out() -> None:
    probes = Probes("a", "b", "c")
    probes.liveness.on_raft_peers([B, C])
    probes.run(5)
    probes.behaviour |= {"a": "silent", "b": "silent"}
    assert probes.run(10).cut_off == ()


def test_refusals_count_only_while_own_probes_come_back() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour["a"] = "silent"
    probes.behaviour["b"] = "refuses"
    assert probes.run(1.0).dead == ()
    probes.behaviour["a"] = "answers"
    assert probes.run(1.0) == probes.dead(B)


def test_a_young_connection_is_not_believed() -> None:
    probes = Probes("a", "b", "c", connected_at=0.0)
    probes.behaviour["b"] = "refuses"
    assert probes.run(SETTINGS.liveness_grace_s - 0.01) == Verdict()
    assert probes.run(0.2) == probes.dead(B)


def test_a_nats_restart_is_not_mass_death() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.liveness.on_connection(False, probes.now)
    assert probes.liveness.tick(probes.now, probes.brokers, Generation(probes.generation)) == []
    probes.now += 3
    probes.liveness.on_connection(True, probes.now)
    probes.behaviour |= {"b": "refuses", "c": "refuses"}
    assert probes.run(SETTINGS.liveness_grace_s - 0.1) == Verdict()
    probes.behaviour |= {"b": "answers", "c": "answers"}
    assert probes.run(5) == Verdict()


def test_more_than_half_at_once_make_the_controller_doubt_itself() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour |= {"b": "refuses", "c": "refuses"}
    began = probes.now
    assert probes.run(10) == Verdict(hand_over=True)
    assert probes.now - began >= SETTINGS.broker_silence_timeout_s


def test_a_controller_that_never_heard_most_brokers_believes_its_probes_in_the_end() -> None:
    probes = Probes("a", "b", "c")
    probes.behaviour |= {"b": "refuses", "c": "refuses"}
    assert probes.run(10) == probes.dead(B, C)
    assert probes.now >= 2 * SETTINGS.broker_silence_timeout_s


def test_half_of_the_live_brokers_may_fall_at_once() -> None:
    probes = Probes("a", "b", "c", "d")
    probes.run(5)
    probes.behaviour |= {"b": "refuses", "c": "refuses"}
    assert probes.run(1) == probes.dead(B, C)


def test_a_controller_whose_own_probes_stay_out_hands_over() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour |= {"a": "silent", "b": "silent", "c": "silent"}
    assert probes.run(10) == Verdict(hand_over=True)


def test_a_controller_without_a_connection_hands_over() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.liveness.on_connection(False, probes.now)
    began = probes.now
    assert probes.run(10) == Verdict(hand_over=True)
    assert SETTINGS.broker_silence_timeout_s <= probes.now - began <= SETTINGS.broker_silence_timeout_s + 0.2


def test_a_short_loss_of_the_connection_is_no_reason_to_hand_over() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.liveness.on_connection(False, probes.now)
    assert probes.run(SETTINGS.broker_silence_timeout_s - 0.1) == Verdict()
    probes.liveness.on_connection(True, probes.now)
    assert probes.run(5) == Verdict()


def test_a_process_that_stood_still_does_not_count_the_silence() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour["b"] = "silent"
    probes.now += 4
    began = probes.now
    assert probes.run(5) == probes.dead(B)
    assert probes.now - began >= SETTINGS.broker_silence_timeout_s


def test_a_refusal_of_a_probe_older_than_the_last_answer_does_not_count() -> None:
    probes = Probes("a", "b", "c")
    probes.run(1)
    orders = []
    for _ in range(2):
        probes.liveness.suspect(B, probes.now)
        orders += [o for o in probes.liveness.tick(probes.now, probes.brokers, Generation(1)) if o.broker == B]
        probes.now += 0.02
    old, new = orders
    probes.liveness.on_answer(B, new.number, Generation(1), probes.now)
    probes.liveness.on_no_responders(B, old.number, probes.now)
    assert not probes.liveness.is_refused(B)


def test_a_new_life_starts_with_a_clean_record() -> None:
    probes = Probes("a", "b", "c")
    probes.run(5)
    probes.behaviour["b"] = "refuses"
    assert probes.run(1) == probes.dead(B)
    probes.brokers[B] = replace(probes.brokers[B], incarnation=Incarnation(99))
    probes.behaviour["b"] = "answers"
    assert probes.run(3) == Verdict()


def test_a_broker_that_applies_nothing_for_a_lease_is_behind() -> None:
    probes = Probes("a", "b", "c")
    probes.run(1)
    probes.applied["b"] = 10
    probes.generation = 11
    began = probes.now
    assert probes.run(10) == Verdict(behind=(B,))
    assert probes.now - began == pytest.approx(SETTINGS.leader_lease_s, abs=0.2)
