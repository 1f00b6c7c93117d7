"""Scenarios of the ISR, of the controller, and of brokers that are called dead."""

from __future__ import annotations

from tests.simulation.scenarios.running import ScenarioRun, Steps, Until, adds


def outsider(run: ScenarioRun) -> Steps:
    """Only a replica that is not in sync is left."""
    rng = run.rng
    yield Until(lambda: len(run.isr) == 3)
    out = rng.choice(run.others(run.leader))
    mend = run.cut(out)
    yield Until(lambda: out not in run.isr, 6.0)
    run.flood(0.5)
    yield 0.2 + rng.random() * 0.3
    for name in run.isr:
        run.kill(name)
    mend()
    yield 0.5 + rng.random() * 2.0
    for name in run.replicas:
        run.start(name)


def last_standing(run: ScenarioRun) -> Steps:
    """The last member of the ISR loses its disk: a replica that left the ISR below min ISR holds all committed
    records."""
    rng = run.rng
    last = yield from run.in_sync()
    others = run.others(last)
    for name in others:
        run.kill(name)
    yield Until(lambda: run.isr == (last,))
    yield rng.random() * 0.5
    if not run.wipe(last):
        return
    yield rng.random() * 0.2
    order = [last, *others] if rng.random() < 0.5 else [*others, last]
    for name in order:
        run.start(name)
        yield rng.random() * 0.3


def lowered_min_isr(run: ScenarioRun) -> Steps:
    """Min ISR is lowered to the one member that is left: from then on it commits what the replicas that left the ISR
    below min ISR lack, and it dies before they come back."""
    rng = run.rng
    last = yield from run.in_sync()
    others = run.others(last)
    for name in others:
        run.kill(name)
    yield Until(lambda: run.isr == (last,))
    if run.cluster.fragile:  # the disk that was harmed may be that of the only member
        for name in others:
            run.start(name)
        return
    run.alter_min_isr(1)
    yield Until(lambda: run.min_isr == 1)
    before = run.committed
    run.flood(0.5)
    yield Until(lambda: run.committed > before)
    yield rng.random() * 0.5
    run.kill(last)
    for name in others:
        run.start(name)
        yield rng.random() * 0.5
    yield 3.0 + rng.random() * 2.0
    run.start(last)


def stopped_together(run: ScenarioRun) -> Steps:
    """All replicas of a partition are told to stop, and other brokers stay. Any of them may be the first, and for a
    while the only one, that comes back; it leads then."""
    rng, world = run.rng, run.cluster.world
    yield Until(lambda: run.leader and len(run.isr) == len(run.replicas))
    replicas = rng.sample(run.replicas, len(run.replicas))
    run.flood(1.0)
    for name in replicas:
        run.stop(name)
        yield rng.random() * 0.2
    yield Until(lambda: not any(run.broker(name).is_running for name in replicas), 20.0)
    if run.is_alone and set(run.isr) != set(replicas):
        world.broken("StopsKeepTheIsr", f"{', '.join(replicas)} were stopped, and the ISR is {', '.join(run.isr)}")
    first, *others = rng.sample(replicas, len(replicas))
    run.start(first)
    yield Until(lambda: run.leads(first), 10.0)
    yield rng.random()
    for name in others:
        run.start(name)


def late_expansion(run: ScenarioRun) -> Steps:
    """KIP-903. The expansion of the ISR is applied after the replica that it names has lost its disk."""
    rng = run.rng
    yield from run.in_sync()
    other = rng.choice(run.others(run.leader))
    run.kill(other)
    yield Until(lambda: other not in run.isr)
    run.flood(0.3)
    yield 0.3
    release = run.hold_commands(adds(other))
    run.start(other)
    yield Until(lambda: run.cluster.raft.held)
    if not run.wipe(other):
        release()
        return
    cut = run.cut if rng.random() < 0.5 else None
    run.start(other)
    yield Until(lambda: run.lives(other))
    release()
    if cut is not None:
        mend = cut(other)
        yield rng.random() * 0.5
        leader = run.leader
        if leader is not None:
            run.kill(leader)
        mend()
        yield 0.5
        if leader is not None:
            run.start(leader)


def unheard_expansion(run: ScenarioRun) -> Steps:
    """The ISR has grown and its leader does not know: the new member counts already."""
    rng = run.rng
    leader = yield from run.in_sync()
    other = rng.choice(run.others(leader))
    run.kill(other)
    yield Until(lambda: other not in run.isr)
    release = run.hold_commands(adds(other))
    run.start(other)
    yield Until(lambda: run.cluster.raft.held)
    mend = run.cut(other)
    if rng.random() < 0.7:
        run.slow_applies(leader, 4000.0)
        release()
    else:
        yield rng.random() * 1.0  # longer than a proposal waits
        release()
    run.flood(0.5)
    yield 0.3 + rng.random() * 0.7
    if rng.random() < 0.5:
        run.kill(leader)
        mend()
        yield 0.5
        run.start(leader)
    else:
        mend()


def two_controllers(run: ScenarioRun) -> Steps:
    """A command of a deposed controller is committed in the controller epoch of its successor."""
    rng, raft = run.rng, run.cluster.raft
    yield Until(lambda: run.leader and raft.truth.controller)
    controller = raft.truth.controller
    victim = rng.choice([name for name in run.cluster.brokers if name != controller])
    release = run.hold_commands(lambda command: command.WhichOneof("body") in ("brokers_dead", "elect_leaders"))
    run.kill(victim)
    yield Until(lambda: raft.held)
    epoch = raft.truth.controller_epoch
    raft.depose()
    yield Until(lambda: raft.truth.controller_epoch > epoch)
    release()
    yield rng.random()
    run.start(victim)


def recreated_unheard(run: ScenarioRun) -> Steps:
    """A stream is deleted and made again under its name, and one replica does not hear of it: it goes on fetching,
    under the same subjects and in the same LeaderEpoch."""
    rng = run.rng
    yield from run.in_sync()
    yield Until(lambda: run.leader is not None and run.end(run.leader) >= 1)
    unheard = rng.choice(run.others(run.leader))
    run.slow_applies(unheard, 3000.0)
    before = run.key
    if not run.cluster.recreate():
        return
    yield Until(lambda: run.key is not None and run.key != before)
    run.flood(1.5)
    yield 1.5


def nats_restarts(run: ScenarioRun) -> Steps:
    """All brokers are silent for longer than the limit, and none is declared dead."""
    rng = run.rng
    yield from run.in_sync()
    for _ in range(2):
        broker = next(iter(run.cluster.brokers.values()))
        run.cluster.nats.restart(broker.metadata_settings.broker_silence_timeout_s * 1.5)
        yield 1.0 + rng.random() * 3


def nats_restarts_and_the_controller_too(run: ScenarioRun) -> Steps:
    """The controller begins anew with a NATS server that has just been started: the others come back to that server
    later than it asks for them, and none is declared dead."""
    rng, raft = run.rng, run.cluster.raft
    yield from run.in_sync()
    for _ in range(2):
        controller = raft.truth.controller
        if controller is None:
            return
        run.kill(controller)
        run.cluster.nats.restart(0.05)
        mends = [run.cut(name) for name in run.cluster.brokers if name != controller]
        yield 0.1
        run.start(controller)
        yield Until(lambda: raft.elect(run.broker(controller).raft_address))  # noqa: B023 - looked at before the loop goes on
        yield Until(lambda: raft.truth.controller_life_id.startswith(f"{controller}-"), 1.0)  # noqa: B023
        yield 0.05 + rng.random() * 0.3
        for mend in mends:
            mend()
            yield rng.random() * 0.1
        yield Until(lambda: len(run.isr) == 3, 8.0)
        yield rng.random()
