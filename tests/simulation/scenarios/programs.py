"""Scenarios of programs: members of a consumer group, and programs with transactions."""

from __future__ import annotations

from tests.simulation.scenarios.running import ScenarioRun, Steps, Until
from tests.simulation.users.members import MEMBERS
from tidelog.client.group.membership import State

TIMES = 3
"""Each scenario brings its situation about so many times."""


def stopped_while_it_joins(run: ScenarioRun) -> Steps:
    """The process of a member is stopped when its JOIN is sent, until its session is over and the others have its
    partitions. When the process goes on, the assignment of before lies in its socket."""
    rng, group = run.rng, run.cluster.group
    assert group is not None
    for _ in range(TIMES):
        yield Until(lambda: group.unsettled() is None, 10.0)
        number = rng.randrange(MEMBERS)
        before = group.members[number]
        run.restart_member(number)
        yield Until(lambda: group.members[number] is not before)  # noqa: B023 - looked at before the loop goes on
        joining = group.members[number]
        yield Until(lambda: joining.membership.state is not State.AWAY)  # noqa: B023
        goes_on = run.stop_member(joining)
        yield Until(lambda: not group.is_read_without(number))  # noqa: B023
        yield Until(lambda: group.is_read_without(number), 12.0)  # noqa: B023
        yield rng.random() * 0.5
        goes_on()
        yield 0.5


def ends_that_groups_hear_late(run: ScenarioRun) -> Steps:
    """Transactions with offsets of groups are committed, and the coordinator of the groups does not hear of it yet,
    when a program asks where its group is."""
    rng, programs = run.rng, run.cluster.transactors
    assert programs is not None
    yield from run.in_sync()
    for _ in range(TIMES):
        hears = run.keep_ends_from_groups()
        before = programs.committed_offsets
        for _ in range(20):
            yield 0.05
            if programs.committed_offsets != before:
                break
        for group, of in sorted(dict(programs.committed_offsets.items() - before.items())):
            programs.look(group, of)
        yield rng.random() * 0.5
        hears()
        yield 2.5 + rng.random()  # the coordinator of transactions waits that long for an answer, and tells again
