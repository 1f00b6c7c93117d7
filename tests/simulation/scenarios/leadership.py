"""Scenarios in which leadership changes while leaders, followers or clients know different things."""

from __future__ import annotations

from dataplane.broker.leading.leader_driver import LeaderDriver
from tests.simulation.scenarios.running import CONTROL, LONG, ScenarioRun, Steps, Until


def see_saw(run: ScenarioRun) -> Steps:
    """KIP-279. Two replicas lead in turn, neither ever following the other: each ends with epochs that the other does
    not know."""
    rng = run.rng
    yield Until(lambda: run.leader)
    a = run.leader
    assert a is not None
    b, c = rng.sample(run.others(a), 2)
    run.kill(c)
    yield Until(lambda: c not in run.isr)
    run.kill(b)
    yield Until(lambda: b not in run.isr)
    up, down = a, b
    for _ in range(rng.choice((2, 3, 4))):
        yield Until(lambda: run.leads(up))  # noqa: B023 - looked at before the loop goes on
        run.flood(1.0)
        end = run.end(up)
        yield Until(lambda: run.end(up) > end, 3.0)  # noqa: B023
        yield rng.random() * 0.1
        run.kill(up)
        run.start(down)
        up, down = down, up
    yield Until(lambda: run.leads(up))
    yield rng.random() * 0.3
    run.start(down)
    yield rng.random() * 0.2
    run.start(c)


def stale_follower(run: ScenarioRun) -> Steps:
    """KIP-320. A follower holds records that the new leader lacks. Its fetch of the old LeaderEpoch was sent before the
    election, and arrives when the new leader's log is as long as its own."""
    rng, raft = run.rng, run.cluster.raft
    old = yield from run.in_sync()
    behind, ahead = sorted(run.others(old), key=run.election_rank)
    # The Raft leader applies first: it may be neither the one that dies nor the one that applies late.
    yield Until(lambda: raft.elect(run.broker(behind).raft_address))
    yield Until(lambda: raft.truth.controller == behind)
    run.slow_applies(ahead, 4000.0)
    mend = run.cut(behind, which=CONTROL)
    run.flood(4.0)
    yield Until(lambda: run.end(ahead) > run.end(behind) >= 0, 0.5)
    release = run.hold_requests(ahead)
    yield Until(lambda: run.fetch_is_held(ahead), 1.0)
    run.kill(old)
    mend()
    yield Until(lambda: run.leads(behind) and run.end(behind) >= run.end(ahead))
    release()
    yield 1.0 + rng.random()
    run.start(old)


def rolled_back_producer(run: ScenarioRun) -> Steps:
    """A leader that cannot reach its followers appends, is deposed, follows, truncates, and leads again: the batches
    of its producers are not in its log any more."""
    rng = run.rng
    old = yield from run.in_sync()
    others = run.others(old)
    mend = run.cut(old, which=CONTROL)
    run.flood(0.3)
    yield Until(lambda: run.end(old) > 1 + max(run.end(name) for name in others), 1.0)
    back = run.cut_off_clients()
    yield Until(lambda: run.leader not in (None, old))
    mend()
    new = run.leader
    assert new is not None
    yield Until(lambda: run.follows(old) and run.end(old) <= run.end(new))
    yield rng.random() * 0.1
    run.kill(new)
    yield Until(lambda: run.leader not in (None, new))
    if run.leader != old and run.leader is not None:
        run.kill(run.leader)
        yield Until(lambda: run.leader == old)
    back()
    yield 1.0
    for name in others:
        run.start(name)


def long_zombie(run: ScenarioRun) -> Steps:
    """A leader that Raft does not reach, and NATS does, beyond its lease."""
    rng = run.rng
    yield Until(lambda: run.leader)
    old = run.leader
    assert old is not None
    address = run.broker(old).raft_address
    raft = run.cluster.raft
    raft.cut_off(address)
    run.cluster.lift(LONG, lambda: raft.rejoin(address))
    lease = run.broker(old).metadata_settings.leader_lease_s
    if rng.random() < 0.5:
        yield lease * (0.5 + rng.random() * 1.5)
    else:
        # It does not hear of the change, and is deposed for it; then it leads beyond its lease.
        run.cluster.clients.alter(min(run.cluster.plan.min_isr, 2))
        yield Until(lambda: run.leader != old, 2 * lease)
        yield lease * (1.0 + rng.random() * 0.5)
    run.flood(0.5)
    yield 0.5 + rng.random()
    raft.rejoin(address)


def stale_drain(run: ScenarioRun) -> Steps:
    """A leader stands still with publishes in its socket, and behind them a request to hand over. Another is elected.
    The woken one has an uncommitted tail, hears late of its successor, and reads records that the successor stores."""
    rng, raft = run.rng, run.cluster.raft
    old = yield from run.in_sync()
    target = rng.choice(run.others(old))
    run.slow_applies(old, 4000.0)
    resume = run.pause(old)
    run.flood(5.0)
    yield Until(lambda: raft.truth.controller not in (None, old))
    yield 0.1 + rng.random() * 0.2
    run.move_leader(target)
    yield Until(lambda: run.leader not in (None, old))
    yield rng.random() * 0.3
    resume()
    yield 1.0 + rng.random()


def slow_news(run: ScenarioRun) -> Steps:
    """Leaders change while followers know only an old HW, and readers ask for the end."""
    rng = run.rng
    yield from run.in_sync()
    for _ in range(3):
        leader = run.leader
        if leader is None:
            return
        run.flood(0.5)
        yield 0.1 + rng.random() * 0.3
        run.kill(leader)
        yield Until(lambda: run.leader not in (None, leader))  # noqa: B023 - looked at before the loop goes on
        yield rng.random() * 0.2
        run.start(leader)
        yield Until(lambda: len(run.isr) == 3)


def witnesses(run: ScenarioRun) -> Steps:
    """A leader that lives and answers the controller, but not its followers."""
    rng = run.rng
    yield from run.in_sync()
    for _ in range(2):
        leader = run.leader
        if leader is None:
            return
        role = run.role(leader)
        if not isinstance(role, LeaderDriver):
            return
        asked = ".replicate", ".offset", ".checkpoint", ".parked"
        quiet = run.cluster.nats.deafen(run.broker(leader).connections[1], *asked)
        run.cluster.lift(LONG, quiet)
        yield Until(lambda: run.leader not in (None, leader), 8.0)  # noqa: B023 - looked at before the loop goes on
        quiet()
        yield Until(lambda: len(run.isr) == 3, 8.0)
        yield rng.random()
