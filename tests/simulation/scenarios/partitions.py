"""Scenarios of streams that are repartitioned."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.scenarios.running import CONTROL, LONG, ScenarioRun, Steps, Until
from wire.protobuf import metadata_pb2 as pb

if TYPE_CHECKING:
    from tests.simulation.users.keyed import KeyReader
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
        yield Until(lambda: run.stream.layouts[-1].is_reported, 10.0)
        yield Until(lambda: run.stream.repartition is None, 12.0)
    other = run.leader_of(rng.choice(sorted(run.stream.partitions)))
    if other is not None:
        run.kill(other)
        yield 0.5
        run.start(other)


def late_source(run: ScenarioRun) -> Steps:
    """The leader of a partition from which keys go elsewhere hears late of the cutover. It goes on with the old layout
    for a producer that stood still and is kept from knowing another one, when a second producer has written records of
    the same keys by the new layout, to a leader that has heard of it."""
    rng, cluster = run.rng, run.cluster
    raft, (_, unaware) = cluster.raft, cluster.key_producers
    yield from run.in_sync()
    yield Until(lambda: run.are_in_sync, 8.0)
    release = run.hold_commands(_is("cutover"))
    cluster.repartitioner.ask_for(6)
    yield Until(lambda: raft.held, 8.0)
    leaders = [
        leader
        for source in SOURCES
        if (leader := run.leader_of(source)) not in (None, raft.truth.controller, run.leader_of(source + 3))
    ]
    if not leaders:
        return
    over = run.slow_applies(rng.choice(leaders), 8000.0)
    learns = run.keep_from_routes(unaware)
    unaware.process.pause()
    cluster.lift(LONG, unaware.process.resume)
    release()
    yield Until(lambda: run.stream.partition_count == 6)
    run.flood(1.5)
    yield 0.4 + rng.random() * 0.4
    unaware.process.resume()
    yield 0.2 + rng.random() * 0.3
    over()
    learns()
    yield Until(lambda: run.stream.layouts[-1].is_reported, 10.0)


def tail_behind_the_cutover(run: ScenarioRun) -> Steps:
    """A leader dies between the cutover and its report. A member of the ISR holds records of it that its successor
    lacks, and does not get to ask the successor before that one has died, too: it leads, and keeps these records."""
    rng, cluster = run.rng, run.cluster
    raft = cluster.raft
    yield from run.in_sync()
    yield Until(lambda: run.are_in_sync, 8.0)
    release = run.hold_commands(_is("cutover"))
    cluster.repartitioner.ask_for(6)
    yield Until(lambda: raft.held, 8.0)
    old = run.leader
    assert old is not None
    behind, ahead = sorted(run.others(old), key=run.election_rank)
    if raft.truth.controller != ahead:
        proposed = len(raft.held)
        yield Until(lambda: raft.elect(run.broker(ahead).raft_address))
        yield Until(lambda: raft.truth.controller == ahead and len(raft.held) > proposed)
    yield Until(lambda: run.end(behind) == run.end(old) == run.high_watermark(behind))
    mend = run.cut(behind, which=CONTROL)
    run.flood(1.0)
    yield Until(lambda: run.end(ahead) > run.end(behind) >= 0, 1.0)
    release()
    yield Until(lambda: run.stream.partition_count == 6)
    let_ask = run.keep_from_leaders(ahead)
    yield rng.random() * 0.1
    run.kill(old)
    run.lose_connection(behind, which=CONTROL)
    mend()
    yield Until(lambda: run.leads(behind))
    yield 0.05 + rng.random() * 0.1
    run.start(old)
    yield Until(lambda: run.lives(old))
    run.kill(behind)
    yield Until(lambda: run.leads(ahead))
    let_ask()
    yield rng.random()
    run.start(behind)


def repartitioned_while_records_go(run: ScenarioRun) -> Steps:
    """Records go by retention, and an operator deletes some, while one member of the group reads no further: log starts
    pass what the group has committed, also before a cutover is reported, and the cutover itself, and leaders die. In
    the end nothing else happens: the other member goes on without what was deleted, whoever has it."""
    rng, cluster = run.rng, run.cluster
    readers, raft = cluster.readers, cluster.raft
    assert readers is not None
    yield from run.in_sync()
    yield 0.2 + rng.random() * 0.3
    for count in rng.choice(((6, 4), (5, 2), (2, 6), (6,))):
        yield Until(lambda: run.are_in_sync, 8.0)
        before = len(run.stream.partitions)
        slow = rng.randrange(len(readers.members))
        _slow_down(run, readers.members[slow])
        release = run.hold_commands(_is("report_cutover"))
        cluster.repartitioner.ask_for(count, cancels=False)
        yield Until(lambda: run.stream.partition_count == count, 8.0)  # noqa: B023 - looked at before the loop goes on
        run.flood(0.7)
        yield Until(lambda: raft.held, 8.0)
        victim = run.leader_of(rng.choice(run.untold())) if rng.random() < 0.5 else None
        if victim is not None:
            run.kill(victim)
        for partition in run.untold():
            if rng.random() < 0.4:
                run.delete_records(partition, run.acked_end(partition))
        yield rng.random() * 0.5
        release()
        if victim is not None:
            yield rng.random() * 0.5
            run.start(victim)
        yield Until(lambda: run.stream.layouts[-1].is_reported, 10.0)
        for partition in range(before):
            if rng.random() < 0.7:
                run.delete_records(partition, run.stream.layouts[-1].start(partition) + rng.choice((-1, 0, 0, 3)))
        yield rng.random() * 1.5
        if rng.random() < 0.4:
            readers.restart(slow)
        else:
            readers.members[slow].go_on()
        yield Until(lambda: run.stream.repartition is None, 12.0)
    yield Until(lambda: run.are_in_sync, 10.0)
    yield 1.0 + rng.random()
    slow = rng.randrange(len(readers.members))
    _slow_down(run, readers.members[slow])
    run.flood(0.5)
    before = run.stream.partition_count
    cluster.repartitioner.ask_for(before + rng.choice((1, before)), cancels=False)
    yield Until(lambda: run.stream.partition_count != before and run.stream.layouts[-1].is_reported, 10.0)
    ends = {partition: run.stream.layouts[-1].start(partition) for partition in range(before)}
    run.flood(0.5)
    for partition, end in ends.items():
        run.delete_records(partition, end)
    yield Until(lambda: all(run.start_of(partition) >= end for partition, end in ends.items()), 10.0)
    for step in range(100):
        yield 0.1
        if not readers.look_at_waits() and step > 10:
            break
    readers.members[slow].go_on()


def _slow_down(run: ScenarioRun, member: KeyReader) -> None:
    """Its program reads no further until the calm, though the member lives."""
    if run.rng.random() < 0.5:
        member.stand_still()
    else:
        member.pause()
    run.cluster.lift(LONG, member.go_on)


def _is(kind: str) -> Callable[[pb.Command], bool]:
    return lambda command: command.WhichOneof("body") == kind
