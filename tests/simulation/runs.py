"""The two kinds of run: a whole cluster, or the metadata group alone, which is asked for as scenarios are."""

from __future__ import annotations

from tests.simulation import run as cluster_run
from tests.simulation.cpu_limit import CPU_LIMIT
from tests.simulation.faults import Fault
from tests.simulation.raft import raft_run
from tests.simulation.run import Result
from tests.simulation.scenarios.catalog import ASKED_SCENARIOS, LATER_SCENARIOS

RAFT_ALONE = "the metadata group alone"
RAFT_FORGETFUL = "a voter of the metadata group forgets"
ASKED: frozenset[str] = frozenset({*ASKED_SCENARIOS, RAFT_ALONE, RAFT_FORGETFUL})
"""No seed draws them by itself."""
TO_ASK_FOR: frozenset[str] = frozenset({*LATER_SCENARIOS, *ASKED})


def run(
    seed: int,
    *,
    traced: bool = False,
    schedule: list[Fault] | None = None,
    scenario: str | None = None,
    cpu_seconds: float = CPU_LIMIT,
) -> Result:
    """As `tests.simulation.run.run`."""
    if scenario in (RAFT_ALONE, RAFT_FORGETFUL):
        forgetful = scenario == RAFT_FORGETFUL
        return raft_run.run(seed, traced=traced, schedule=schedule, forgetful=forgetful, cpu_seconds=cpu_seconds)
    return cluster_run.run(seed, traced=traced, schedule=schedule, scenario=scenario, cpu_seconds=cpu_seconds)
