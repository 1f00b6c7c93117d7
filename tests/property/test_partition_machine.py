"""Under any fault of network, disks and processes, committed records stay, in one order, on every replica.

A leader and its followers, the production replicas and the production ClusterState, under a network that drops, repeats
and reorders, metadata that arrive late, brokers that are killed, lose power, are declared dead while
they live, and come back in a new life. In the end everything heals, and then all replicas must be the same.

Not covered: a replica that loses records that it reported (its disk, or the page cache of an `accepted` stream), and
unclean elections. These may lose records; the transcripts show how.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from copy import copy

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from dataplane.replica.replica_settings import ReplicaSettings
from tests.protocol.replica_set import ReplicaSet
from tests.protocol.running_broker import META, NATS, Broker, Message, batch_of
from tests.simulation.mutants import MUTANTS
from wire.types import LeaderEpoch, Offset

BROKERS = ("a", "b", "c")
MOST_ON_THEIR_WAY = 60
HEALING_S = 60.0
BATCH_BYTES = batch_of("\u4e00", 1).size

names = st.sampled_from(BROKERS)
picks = st.integers(min_value=0, max_value=MOST_ON_THEIR_WAY)
learning = st.one_of(st.just(frozenset(BROKERS)), st.frozensets(names))
"""Brokers that receive views."""


def _is_network(message: Message) -> bool:
    """May be lost, repeated, overtaken; not so disks and views."""
    return message.source not in (message.target, META)


class PartitionMachine(RuleBasedStateMachine):
    """Rules and invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.written = 0
        self.committed: dict[Offset, tuple[LeaderEpoch, str]] = {}
        self.leaders: dict[LeaderEpoch, str] = {}
        self.high_watermarks: dict[object, Offset] = {}
        """By role."""

    @initialize(
        durable=st.booleans(),
        min_isr=st.integers(1, 3),
        push=st.booleans(),
        batches_in_an_answer=st.integers(1, 3),
    )
    def begin(self, durable: bool, min_isr: int, push: bool, batches_in_an_answer: int) -> None:
        self.durable = durable
        self.world = ReplicaSet(
            config={"durability": "durable" if durable else "accepted", "min_isr": str(min_isr)},
            settings=ReplicaSettings(push_to_waiters=push, fetch_max_bytes=batches_in_an_answer * BATCH_BYTES),
        )
        self.world.after_event = self._watch
        self.world.begin()
        self._settle()

    # ---- invariants --------------------------------------------------------------------------------------------

    def _watch(self, broker: Broker) -> None:
        leader = broker.leading
        if leader is None:
            return
        assert self.leaders.setdefault(leader.leader_epoch, broker.name) == broker.name, (
            f"two leaders in LeaderEpoch {leader.leader_epoch}"
        )
        before = self.high_watermarks.get(broker.role, Offset(0))
        assert leader.high_watermark >= before, f"the HW of {broker.name} went back from {before}"
        self.high_watermarks[broker.role] = leader.high_watermark
        for offset, epoch, value in broker.records():
            if offset >= leader.high_watermark:
                break
            if offset in self.committed:
                continue
            holders = [other for other in self.world.brokers.values() if self._holds(other, offset, epoch, value)]
            assert len(holders) >= leader.view.config.min_isr, f"{offset} committed on {len(holders)} replicas"
            self.committed[offset] = (epoch, value)

    def _holds(self, broker: Broker, offset: Offset, epoch: LeaderEpoch, value: str) -> bool:
        end = broker.log.durable_end if self.durable else broker.log.log_end_offset
        return offset < end and self._record(broker, offset) == (epoch, value)

    @staticmethod
    def _record(broker: Broker, offset: Offset) -> tuple[LeaderEpoch, str] | None:
        return next(((epoch, value) for at, epoch, value in broker.records() if at == offset), None)

    @invariant()
    def no_process_met_a_bug(self) -> None:
        assert self.world.world.failure is None, self.world.world.failure

    @invariant()
    def members_hold_what_is_committed(self) -> None:
        partition = self.world.cluster.partition()
        for name in (*partition.isr, *partition.eligible):
            broker = self.world.brokers[name]
            for offset, (epoch, value) in self.committed.items():
                assert self._holds(broker, offset, epoch, value), f"{name} is in sync and lacks record {offset}"

    @invariant()
    def high_watermarks_tell_the_truth(self) -> None:
        for broker in self.world.brokers.values():
            end = broker.high_watermark
            assert end <= broker.log.log_end_offset
            for offset, epoch, value in broker.records():
                if offset < end:
                    assert self.committed.get(offset) == (epoch, value), f"{broker.name} holds another record {offset}"

    @invariant()
    def logs_that_agree_in_a_record_agree_up_to_it(self) -> None:
        logs = [list(broker.records()) for broker in self.world.brokers.values()]
        for one, log in enumerate(logs):
            for other in logs[one + 1 :]:
                same = [mine[:2] == theirs[:2] for mine, theirs in zip(log, other, strict=False)]
                agreed = len(same) - same[::-1].index(True) if True in same else 0
                assert log[:agreed] == other[:agreed], "the same epoch at the same offset, and another history"

    # ---- events ----------------------------------------------------------------------------------------------

    def _matching(self, which: Callable[[Message], bool]) -> list[Message]:
        return [message for message in self.world.network if which(message)]

    def _settle(self, most: int = 200) -> None:
        for _ in range(most):
            if not self.world.network:
                return
            self.world.receive(self.world.network[0])

    @rule(pick=picks, size=st.integers(1, 2), times=st.integers(1, 3))
    def publish(self, pick: int, size: int, times: int) -> None:
        leading = [broker for broker, _ in self.world.leaders()]
        for _ in range(times if leading else 0):
            values = "".join(chr(0x4E00 + self.written + number) for number in range(size))
            self.written += size
            self.world.publish(leading[pick % len(leading)].name, values)

    @rule(pick=picks, what=st.sampled_from(["deliver", "deliver", "drop", "repeat"]))
    def meddle(self, pick: int, what: str) -> None:
        found = self._matching(_is_network)
        if not found:
            return
        message = found[pick % len(found)]
        if what == "deliver":
            self.world.receive(message)
        elif what == "drop":
            self.world.network.remove(message)
        elif len(found) < MOST_ON_THEIR_WAY:
            self.world.network.append(copy(message))

    @rule(name=names)
    def disk(self, name: str) -> None:
        for message in self._matching(lambda message: message.source == message.target == name):
            self.world.receive(message)

    @rule(name=names, most=st.integers(1, 3))
    def learn(self, name: str, most: int) -> None:
        for message in self._matching(lambda message: message.source == META and message.target == name)[:most]:
            self.world.receive(message)

    @rule()
    def decide(self) -> None:
        for message in self._matching(lambda message: message.target == META):
            self.world.receive(message)

    @rule()
    def settle(self) -> None:
        self._settle()

    @rule(among=st.sets(names, min_size=1, max_size=2), decides=st.booleans(), learners=learning)
    def settle_among(self, among: AbstractSet[str], decides: bool, learners: AbstractSet[str]) -> None:
        """The others are cut off for a while. Messages on their way to them stay there."""
        self._settle_among(among, decides, learners)

    def _settle_among(
        self, among: AbstractSet[str], decides: bool, learners: AbstractSet[str], most: int = 100
    ) -> None:
        def arrives(message: Message) -> bool:
            if message.target == META:
                return decides and message.source in among
            if message.source == META:
                return message.target in among and message.target in learners
            return message.target in among and message.source in {*among, NATS}

        for _ in range(most):
            found = next(filter(arrives, self.world.network), None)
            if found is None:
                return
            self.world.receive(found)

    @rule(name=names, buried=st.booleans(), publishes=st.booleans(), learners=learning)
    def cut_off(self, name: str, buried: bool, publishes: bool, learners: AbstractSet[str]) -> None:
        """It is declared dead, or lags for so long that it leaves the ISR, unless it leads."""
        others = {*BROKERS} - {name}
        if buried:
            self.bury(name)
        self._settle_among(others, decides=True, learners=learners)
        if publishes:
            self.publish(pick=0, size=1, times=2)
        for _ in range(0 if buried else 8):
            self._settle_among(others, decides=True, learners=learners)
            self.world.pass_to(self.world.now + 0.8)
            for other in sorted(others):
                self.world.tick(other)
        self._settle_among(others, decides=True, learners=learners)

    @rule(name=names, learners=learning, publishes=st.booleans(), later=learning, most=st.integers(1, 20))
    def come_back(
        self, name: str, learners: AbstractSet[str], publishes: bool, later: AbstractSet[str], most: int
    ) -> None:
        """It is heard again, and joins; perhaps the leader does not learn of that before it commits more."""
        self.register(name)
        self._settle_among({*BROKERS}, decides=True, learners={name, *learners}, most=most)
        if publishes:
            self.publish(pick=0, size=1, times=1)
        self._settle_among({*BROKERS} - {name}, decides=False, learners=later)

    @rule(name=names, buried=st.booleans(), learners=learning, later=learning, most=st.integers(1, 20))
    def leave_and_come_back(
        self, name: str, buried: bool, learners: AbstractSet[str], later: AbstractSet[str], most: int
    ) -> None:
        self.cut_off(name, buried, True, learners)
        self.come_back(name, learners, True, later, most)

    @rule(seconds=st.sampled_from([0.02, 0.3, 2.5]), who=st.sets(names, min_size=1))
    def time_passes(self, seconds: float, who: set[str]) -> None:
        self.world.pass_to(self.world.now + seconds)
        for name in sorted(who):
            self.world.tick(name)

    @rule(name=names)
    def checkpoint(self, name: str) -> None:
        broker = self.world.brokers[name]
        if broker.running:
            broker.life.replica.checkpoint(broker.high_watermark)

    @rule(name=names, power=st.booleans())
    def kill(self, name: str, power: bool) -> None:
        if self.world.brokers[name].running:
            self.world.kill(name, power=power and self.durable)

    @rule(name=names)
    def bury(self, name: str) -> None:
        """Also one that lives: its metadata tell it, some time."""
        self.world.cluster.die(name)
        self.world.spread()

    @rule(name=names)
    def register(self, name: str) -> None:
        if not self._is_well(name):
            self.world.register(name)

    def _is_well(self, name: str) -> bool:
        return self.world.brokers[name].running and self.world.cluster.state.is_alive(self.world.brokers[name].name)

    @rule(min_isr=st.integers(1, 3))
    def alter(self, min_isr: int) -> None:
        self.world.cluster.alter_stream(config={"min_isr": str(min_isr)})
        self.world.spread()

    @rule(planned=st.booleans())
    def elect(self, planned: bool) -> None:
        self.world.cluster.elect(planned=planned)
        self.world.spread()

    # ---- the end ---------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self._heal()
        finally:
            self.world.close()

    def _heal(self) -> None:
        for name in BROKERS:
            if not self._is_well(name):
                self.world.register(name)
        end = self.world.now + HEALING_S
        while self.world.now < end and not self._healed():
            self._settle()
            due = self.world.next_timer()
            self.world.pass_to(max(self.world.now + 0.001, due if due < math.inf else 0.0))
            for name in BROKERS:
                self.world.tick(name)
            self.members_hold_what_is_committed()
            self.high_watermarks_tell_the_truth()
            self.logs_that_agree_in_a_record_agree_up_to_it()
        assert self._healed(), f"after {HEALING_S} s: {[list(b.records()) for b in self.world.brokers.values()]}"

    def _healed(self) -> bool:
        partition = self.world.cluster.partition()
        logs = [list(broker.records()) for broker in self.world.brokers.values()]
        leading = [leader for _, leader in self.world.leaders()]
        return (
            partition.isr == partition.replicas
            and len(leading) == 1
            and all(log == logs[0] for log in logs)
            and all(
                broker.role is not None and broker.role.high_watermark == broker.log.log_end_offset
                for broker in self.world.brokers.values()
            )
        )


TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(max_examples=120, stateful_step_count=50)


SEEN = (
    "a follower does not truncate at a new LeaderEpoch",
    "a leader adds a follower below the HW to the ISR",
    "the HW follows the committed ISR instead of the maximal one",
    "a leader commits below min ISR",
)


@pytest.mark.parametrize("name", SEEN)
def test_the_machine_sees_a_broken_rule(name: str) -> None:
    (mutant,) = (known for known in MUTANTS if known.name == name)
    searched = settings(
        TestPartition.settings, max_examples=2000, derandomize=True, database=None, phases=[Phase.generate]
    )
    with mutant.applied(), pytest.raises(AssertionError, match=r"is in sync and lacks|committed on|another history"):
        run_state_machine_as_test(PartitionMachine, settings=settings(searched, report_multiple_bugs=False))
