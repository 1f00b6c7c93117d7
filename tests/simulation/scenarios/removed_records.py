"""Scenarios in which retention or compaction removes records while a follower is away."""

from __future__ import annotations

from tests.simulation.scenarios.running import ScenarioRun, Steps, Until


def below_the_log_start(run: ScenarioRun) -> Steps:
    """A follower is away while retention removes the records that it lacks. It begins at the leader's log start, and
    then it leads: its log holds no record of earlier producers."""
    rng = run.rng
    yield from run.in_sync()
    away = rng.choice(run.others(run.leader))
    end = run.end(away)
    run.kill(away)
    yield Until(lambda: away not in run.isr)
    run.flood(2.0)
    yield Until(lambda: run.leader is not None and run.log_start(run.leader) > end + 20, 6.0)
    run.start(away)
    if rng.random() < 0.5:
        run.flood(1.0)  # the log start moves on while it begins there
    yield Until(lambda: away in run.isr, 6.0)
    back = run.cut_off_clients()
    yield rng.random() * 0.2
    fallen = []
    while run.leader not in (None, away):
        fallen.append(run.leader)
        run.kill(run.leader)
        yield Until(lambda: run.leader not in (None, *fallen))
    back()
    run.flood(0.5)
    yield 0.5 + rng.random()
    for name in fallen:
        run.start(name)


def copy_under_two_leaders(run: ScenarioRun) -> Steps:
    """A follower was away while tombstones were compacted away, and begins anew as a copy of its leader's log. In the
    middle of that another leads that still holds the deleted records; it compacts when the copy has some of it."""
    rng = run.rng
    first = yield from run.in_sync()
    second, away = rng.sample(run.others(first), 2)
    release = run.hold_compaction(second)
    run.flood(0.5)
    yield 0.3
    end = run.end(away)
    run.kill(away)
    yield Until(lambda: away not in run.isr, 6.0)
    run.flood(1.0)
    yield Until(lambda: run.compaction_point(first).deletions_end > end + 40, 6.0)
    back = run.cut_off_clients()
    yield Until(lambda: run.end(second) == run.end(first))
    yield 0.3
    run.start(away)
    yield Until(lambda: 0 <= run.end(away) < run.compaction_point(away).deleted_end, 6.0)
    yield rng.random() * 0.05
    run.kill(first)
    yield Until(lambda: run.leads(second) and run.follows(away))
    copied = run.end(away) + rng.randrange(10, 40)
    yield Until(lambda: run.end(away) >= copied)
    mend = run.cut(away)
    release()
    yield Until(lambda: run.compaction_point(second).deletions_end > copied, 6.0)
    mend()
    yield Until(lambda: away in run.isr, 8.0)
    run.start(first)
    back()


def compacted_below_a_tail_that_is_cut(run: ScenarioRun) -> Steps:
    """A leader compacts while its followers have none of its last batches. Another leads, and the old leader's log is
    cut, while producers send nothing new: it is known by the batches that compaction has kept."""
    rng = run.rng
    first = yield from run.in_sync()
    release = run.hold_compaction(first)
    run.flood(1.0)
    yield 0.6 + rng.random() * 0.4
    mends = [run.cut(name) for name in run.others(first)]
    end = run.end(first)
    yield Until(lambda: run.end(first) >= end + 10)
    yield 0.05 + rng.random() * 0.1
    clean = run.compaction_point(first).clean_end
    release()
    yield Until(lambda: run.compaction_point(first).clean_end > clean, 1.0)
    back = run.cut_off_clients()
    mends.append(run.cut(first))
    for mend in mends[:-1]:
        mend()
    yield Until(lambda: run.leader not in (None, first), 6.0)
    mends[-1]()
    yield Until(lambda: first in run.isr, 6.0)
    yield 0.2
    back()
