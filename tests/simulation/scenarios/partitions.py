"""Scenarios of streams that are repartitioned."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation.scenarios.running import ScenarioRun, Steps, Until
from wire import metadata_pb2 as pb

SOURCES = (1, 2)
"""From these all producers' common keys go elsewhere when three partitions become six."""


def repartitioned_under_kills(run: ScenarioRun) -> Steps:
    """From three partitions to six, and to four. At each change a leader dies whose report of the cutover lies about;
    then its successor reports. In most of them the controller dies between the cutover and the finish, too."""
    rng, cluster = run.rng, run.cluster
    yield from run.in_sync()
    yield 0.2 + rng.random() * 0.3
    for count in (6, 4):
        yield Until(lambda: run.are_in_sync, 8.0)
        release = run.hold_commands(_is("report_cutover"))
        cluster.repartitioner.ask_for(count, cancels=False)
        yield Until(lambda: run.stream.partition_count == count, 8.0)  # noqa: B023 - looked at before the loop goes on
        run.flood(0.5)
        yield Until(lambda: cluster.raft.held, 8.0)
        victim = run.leader_of(rng.choice(run.untold()))
        if victim is not None:
            run.kill(victim)
        yield rng.random() * 0.2
        release()
        controller = cluster.raft.truth.controller
        if rng.random() < 0.7 and controller is not None and controller != victim:
            yield rng.random() * 0.3
            if victim is not None:
                run.start(victim)
                yield Until(lambda: run.lives(victim), 8.0)  # noqa: B023
            run.kill(controller)
            yield Until(lambda: cluster.raft.truth.controller not in (None, controller), 8.0)  # noqa: B023
            run.start(controller)
        elif victim is not None:
            yield rng.random()
            run.start(victim)
        yield Until(lambda: run.stream.layouts[-1].is_told, 10.0)
        yield Until(lambda: run.stream.repartition is None, 12.0)
    other = run.leader_of(rng.choice(sorted(run.stream.partitions)))
    if other is not None:
        run.kill(other)
        yield 0.5
        run.start(other)


def late_source(run: ScenarioRun) -> Steps:
    """The leader of a partition from which keys go elsewhere hears late of the cutover: it goes on with the old layout
    for producers that know no other, while the leaders of the others, and other producers, know the new one."""
    rng, cluster = run.rng, run.cluster
    raft = cluster.raft
    yield from run.in_sync()
    yield Until(lambda: run.are_in_sync, 8.0)
    release = run.hold_commands(_is("cutover"))
    cluster.repartitioner.ask_for(6)
    yield Until(lambda: raft.held, 8.0)
    leaders = {run.leader_of(partition) for partition in SOURCES} - {raft.truth.controller, None}
    over = run.slow_applies(rng.choice(sorted(filter(None, leaders))), 4000.0) if leaders else None
    release()
    yield Until(lambda: run.stream.partition_count == 6)
    run.flood(0.5)
    yield 0.5 + rng.random()
    if over is not None:
        over()
    yield Until(lambda: run.stream.layouts[-1].is_told, 10.0)


def _is(kind: str) -> Callable[[pb.Command], bool]:
    return lambda command: command.WhichOneof("body") == kind
