"""Scenarios of partitions that get other replicas."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.scenarios.running import ScenarioRun, Steps, Until
from wire.protobuf import metadata_pb2 as pb


def leader_dies_beside_a_learner(run: ScenarioRun) -> Steps:
    """A replica is added that is to be the first of all and has copied nothing. Then the leader dies."""
    rng = run.rng
    leader = yield from run.in_sync()
    yield Until(lambda: run.committed)
    learner = rng.choice(_outside(run))
    over = run.keep_from_leaders(learner)
    run.reassign((learner, *run.others(leader)))
    yield Until(lambda: learner in run.replicas)
    yield rng.random() * 0.2
    run.kill(leader)
    yield Until(lambda: run.leader not in (None, leader), 8.0)
    yield rng.random() * 0.5
    over()
    run.start(leader)
    yield Until(lambda: run.is_reassigned, 10.0)


def reassigned_under_two_controllers(run: ScenarioRun) -> Steps:
    """The command that starts a reassignment lies about while its controller gives way to another one. It is refused
    then, and nothing but the new controller brings the reassignment on."""
    rng, raft = run.rng, run.cluster.raft
    leader = yield from run.in_sync()
    yield rng.random() * 0.3
    release = run.hold_commands(_is("start_reassignments"))
    run.reassign((*run.others(leader), rng.choice(_outside(run))))
    yield Until(lambda: raft.held)
    epoch = raft.truth.controller_epoch
    raft.depose()
    yield Until(lambda: raft.truth.controller_epoch > epoch)
    release()
    yield Until(lambda: run.is_reassigned, 10.0)


def cancelled_when_the_added_are_needed(run: ScenarioRun) -> Steps:
    """Two of the three original replicas die when those that take their places are in the ISR, and the move is
    cancelled. The one original replica that is left is fewer than min ISR."""
    rng = run.rng
    leader = yield from run.in_sync()
    originals, added = run.others(leader), _outside(run)
    release = run.hold_commands(_is("complete_reassignments"))
    run.reassign((leader, *added))
    yield Until(lambda: run.cluster.raft.held, 8.0)
    for name in originals:
        run.kill(name)
    yield Until(lambda: set(run.isr) == {leader, *added})
    run.cancel_reassignment()
    yield Until(lambda: run.goes_back)
    release()
    run.flood(0.5)
    yield 0.3 + rng.random() * 0.5
    for name in originals:
        run.start(name)
        yield rng.random() * 0.3
    yield Until(lambda: run.is_reassigned, 10.0)


def back_before_its_log_is_removed(run: ScenarioRun) -> Steps:
    """A replica is removed while its disk hangs, so its log stays, and is added again before the disk answers. It joins
    the ISR, and then begins anew with what is on its disk."""
    rng = run.rng
    leader = yield from run.in_sync()
    yield Until(lambda: run.committed)
    back, kept = rng.sample(run.others(leader), 2)
    release = run.hold_commands(_is("complete_reassignments"))
    run.reassign((leader, kept, rng.choice(_outside(run))))
    yield Until(lambda: run.cluster.raft.held, 8.0)
    answer = run.hang(back)
    release()
    yield Until(lambda: back not in run.replicas)
    yield Until(lambda: run.role(back) is None)
    run.reassign((leader, kept, back))
    yield Until(lambda: back in run.replicas)
    yield rng.random() * 0.1
    answer()
    yield Until(lambda: back in run.isr and run.is_reassigned, 10.0)
    yield rng.random() * 0.3
    run.kill(back)
    yield rng.random() * 0.5
    run.start(back)
    yield Until(lambda: run.is_reassigned and back in run.isr, 10.0)


def _outside(run: ScenarioRun) -> list[str]:
    """Brokers that are no replicas."""
    return [name for name in run.cluster.brokers if name not in run.replicas]


def _is(kind: str) -> Callable[[pb.Command], bool]:
    return lambda command: command.WhichOneof("body") == kind
