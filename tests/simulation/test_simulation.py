"""Tests of the simulator: the same seed gives the same trace, a run without faults is calm, a few seeds and mutants.

Thousands of seeds, and all mutants, are run by scripts/simulate.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from itertools import count, zip_longest
from pathlib import Path

import pytest

from scripts.faults import simulate
from scripts.faults.simulate import shrink
from tests.simulation.faults import Fault
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import Mutant
from tests.simulation.run import Cluster, Result, plan_of, run, scenario_of
from tests.simulation.world import InvariantBroken, Process, World, inhabited

ROOT = Path(__file__).parents[2]


def test_without_faults_everything_is_acknowledged_but_what_expects_another_offset() -> None:
    result = run(2, schedule=[])
    assert result.broken is None
    assert result.sent > 50
    assert result.acknowledged + result.refused == result.sent
    assert result.refused < result.sent / 10


_TRACE = """
import sys, time
seed, rate = map(int, sys.argv[1:])

def advanced(clock):
    began = clock()
    return lambda: began + (clock() - began) * rate

for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "thread_time"):
    setattr(time, name, advanced(getattr(time, name)))

from tests.simulation.run import run
print("\\n".join(run(seed, traced=True).trace))
"""
"""A program that runs a seed and prints its trace; every real clock runs at `rate` times its rate, from before the code
under test is imported, so that a clock that was bound at an import shows as well."""


@pytest.mark.parametrize("seed", [1, 4, 8, 22, 26, 36, 76])
def test_the_same_seed_gives_the_same_trace_whatever_the_hash_seed_and_the_real_time(seed: int) -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", _TRACE, str(seed), rate],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
        )
        for hash_seed, rate in (("1", "1"), ("2", "1000"))
    ]
    one, other = [run.communicate()[0].splitlines() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert len(one) > 100
    first_difference = next((lines for lines in zip_longest(one, other) if lines[0] != lines[1]), None)
    assert first_difference is None


def test_tracing_changes_nothing() -> None:
    traced, plain = run(11, traced=True), run(11)
    assert (traced.steps, traced.acknowledged, traced.simulated) == (plain.steps, plain.acknowledged, plain.simulated)


def test_a_run_that_computes_for_ever_within_one_step_fails_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the interruption is caught."""

    def spins(_: object) -> None:
        try:
            while True:
                pass
        except KeyboardInterrupt:
            spins_on()

    def spins_on() -> None:
        while True:
            pass

    monkeypatch.setattr(Cluster, "run", spins)
    result = run(1, cpu_seconds=0.05)
    assert result.broken is not None
    assert result.broken.invariant == "NoProgress"
    assert "in spins_on" in result.broken.what


async def _forgotten() -> None:
    """Nobody awaits it."""


def test_a_coroutine_that_a_live_process_never_awaits_ends_the_run() -> None:
    world = World(1)
    process = Process.begun(world, "p")

    async def work() -> None:
        _forgotten()  # type: ignore[unused-coroutine]  # noqa: RUF100

    with inhabited(world):
        with process.running():
            process.create_task(work())
        with pytest.raises(InvariantBroken, match="_forgotten' was never awaited"):
            world.run_until(1.0)


@pytest.mark.filterwarnings("error")
def test_callbacks_of_a_killed_process_do_not_run() -> None:
    def live_and_die() -> None:
        world = World(1)
        process = Process.begun(world, "p")

        async def wait() -> None:
            try:
                await process.create_future()
            finally:
                process.create_task(_forgotten())

        with inhabited(world):
            with process.running():
                process.create_task(wait())
            world.run_until(1.0)
            with process.running():
                process.create_task(_forgotten())
            process.kill()
            world.run_until(2.0)

    heard: list[object] = []
    hook, sys.unraisablehook = sys.unraisablehook, heard.append
    try:
        live_and_die()
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert not heard


@pytest.mark.parametrize("seed", range(1, 11))
def test_a_seed_holds(seed: int) -> None:
    result = run(seed)
    assert result.broken is None, f"scripts/simulate --seed {seed}"


@pytest.mark.parametrize("seed", [seed for seed in range(1, 110) if scenario_of(seed) == "repartitioned under kills"])
def test_a_stream_goes_from_three_partitions_to_six_and_to_four_under_kills(seed: int) -> None:
    result = run(seed)
    assert result.broken is None, f"scripts/simulate --seed {seed}"
    assert result.faults["scenario repartitioned under kills"] == 1


def test_a_group_goes_on_where_records_go_before_it_has_read_them() -> None:
    """What one seed meets changes with each operation that brokers listen for; some of these meet it."""
    name = "repartitioned while records go"
    passed_committed = passed_cutovers = 0
    for seed in (2, 4, 7):
        result = run(seed, scenario=name)
        assert result.broken is None, f"scripts/simulate --seed {seed} --scenario '{name}'"
        assert result.faults[f"scenario {name}, to its end"] == 1
        passed_committed += result.passed_committed
        passed_cutovers += result.passed_cutovers
    assert passed_committed > 0
    assert passed_cutovers > 0


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_a_cutover_is_exact_where_a_replica_has_records_that_its_leader_lacks(seed: int) -> None:
    name = "tail behind the cutover"
    result = run(seed, scenario=name)
    assert result.broken is None, f"scripts/simulate --seed {seed} --scenario '{name}'"
    assert result.faults[f"scenario {name}, to its end"] == 1


@pytest.mark.parametrize("name", ["stopped while it joins", "ends that groups hear late"])
@pytest.mark.parametrize("seed", [1, 3, 4])
def test_members_and_transactions_hold_where_answers_and_ends_come_late(name: str, seed: int) -> None:
    result = run(seed, scenario=name)
    assert result.broken is None, f"scripts/simulate --seed {seed} --scenario '{name}'"
    assert result.faults[f"scenario {name}, to its end"] == 1


@pytest.mark.parametrize("seed", [1, 6])
def test_all_replicas_of_a_partition_are_stopped_and_any_of_them_leads_when_it_is_back(seed: int) -> None:
    name = "stopped together"
    result = run(seed, scenario=name)
    assert result.broken is None, f"scripts/simulate --seed {seed} --scenario '{name}'"
    assert result.faults[f"scenario {name}, to its end"] == 1


@pytest.mark.parametrize("seed", [1, 2])
def test_a_replica_that_lost_its_page_cache_does_not_lead_because_it_is_back_first(seed: int) -> None:
    name = "first back without its page cache"
    result = run(seed, scenario=name)
    assert result.broken is None, f"scripts/simulate --seed {seed} --scenario '{name}'"
    assert result.faults[f"scenario {name}, to its end"] == 1


@pytest.mark.parametrize(
    "name",
    [
        "leader dies beside a learner",
        "reassigned under two controllers",
        "cancelled when the added are needed",
        "back before its log is removed",
    ],
)
@pytest.mark.parametrize("seed", [1, 3])
def test_a_reassignment_holds_when_brokers_die_and_controllers_change(name: str, seed: int) -> None:
    result = run(seed, scenario=name)
    assert result.broken is None, f"scripts/simulate --seed {seed} --scenario '{name}'"
    assert result.faults[f"scenario {name}, to its end"] == 1


def test_a_repartition_is_finished_when_clients_have_adopted_it() -> None:
    """Nothing else brings a push."""
    seed = next(seed for seed in count(1) if (plan := plan_of(seed)).has_repartitions and plan.adoption_timeout_s > 10)
    result = run(seed, traced=True, schedule=[Fault(at=0.2, kind="repartition", detail="multiple")])
    assert result.broken is None
    assert [line for line in result.trace if "is over: clients have applied it" in line]


def test_a_subscription_in_the_turn_of_a_connection_loss_waits_for_the_next_connection() -> None:
    assert run(224443).broken is None  # it once turned for ever


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant: Mutant) -> None:
    """Its texts are found in the code of today, and are there again afterwards."""
    with mutant.applied():
        pass
    with mutant.applied():
        pass


@pytest.mark.parametrize(
    ("name", "invariants"),
    [
        ("a leader acknowledges before the commit", {"AckedIsCommitted"}),
        ("a leader commits below min ISR", {"NoCommitBelowMinIsr"}),
        (
            "a leader takes batches of an older partitioning version",
            {"CutoversAreExact", "KeysAreStoredInOrder", "KeysAreGivenInOrder"},
        ),
        ("fsync is skipped", {"CommittedIsHeldByIsr", "SyncedStays", "Liveness"}),
        ("a member takes an assignment that comes after the session of its heartbeat", {"OnlyHoldersCommit"}),
        ("offsets that a transaction has committed are not told before its end is", {"OffsetsMoveWithTransactions"}),
        (
            "a follower truncates to the HW without asking the leader",
            {
                "CommittedIsHeldByIsr",
                "CommittedIsNotCut",
                "HeldByAllStays",
                "IsrMembersHoldCommitted",
                "KnownCommittedIsNotCut",
                "LeaderCompleteness",
            },
        ),
    ],
)
def test_a_mutant_is_caught(name: str, invariants: set[str]) -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    with mutant.applied():
        seeds = [seed for seed in range(1, 90) if not mutant.in_repartitions or plan_of(seed).has_repartitions]
        found = next(
            (it for seed in seeds[:30] if (it := run(seed, scenario=mutant.scenario).broken) is not None), None
        )
    assert found is not None
    assert found.invariant in invariants


def test_only_mutants_with_a_text_in_their_name_are_hunted(capsys: pytest.CaptureFixture[str]) -> None:
    assert simulate.main(["--mutants", "--only", "ACKNOWLEDGES before", "--budget", "30", "--jobs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["mutants"]
    assert [mutant["mutant"] for mutant in found] == ["a leader acknowledges before the commit"]
    assert found[0]["caught_by"] == "AckedIsCommitted"


def _is_met_by_any_seed(mutant: Mutant) -> bool:
    is_of_some = mutant.in_transactions or mutant.in_repartitions or mutant.in_reassignments
    return mutant.scenario is None and not is_of_some


def test_a_seed_that_is_broken_without_the_mutant_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    number = next(number for number, mutant in enumerate(MUTANTS) if _is_met_by_any_seed(mutant))
    asked: list[int] = []

    def judged(seed: int, *, scenario: str | None) -> Result:
        """Seed 2 is broken whatever runs, seed 4 when it is asked first, with the mutant."""
        assert scenario is None
        asked.append(seed)
        is_broken = seed == 2 or (seed == 4 and asked.count(4) == 1)
        return Result(seed, InvariantBroken("AckedIsCommitted", "a history") if is_broken else None)

    monkeypatch.setattr(simulate, "run", judged)
    assert simulate.hunt((number, 10, None)) == simulate.Sight(number, "AckedIsCommitted", 4, 4, [2])
    assert asked == [1, 2, 2, 3, 4, 4]
    # The seed that caught it the last time is tried first; the rest follows where it catches it no more.
    asked.clear()
    assert simulate.hunt((number, 10, 4)) == simulate.Sight(number, "AckedIsCommitted", 1, 4, [])
    asked.clear()
    assert simulate.hunt((number, 10, 3)) == simulate.Sight(number, "AckedIsCommitted", 4, 4, [2])
    assert asked == [3, 1, 2, 2, 4, 4]


def test_each_recorded_seed_is_of_a_mutant() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len({*names}) == len(names)
    assert {*simulate.recorded_seeds()} <= {*names}


def test_a_text_that_no_mutant_has_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        simulate.main(["--mutants", "--only", "no such mutant"])
    assert ended.value.code == 2
    assert "no mutant has 'no such mutant' in its name" in capsys.readouterr().err


def test_a_failure_is_made_small() -> None:
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "a restarted leader keeps its LeaderEpoch")
    with mutant.applied():
        failed = next(result for seed in range(1, 30) if (result := run(seed)).broken and len(result.schedule) > 5)
        assert failed.broken is not None
        smallest = shrink(failed)
        again = run(failed.seed, schedule=smallest)
    assert 0 < len(smallest) <= 5
    assert len(smallest) < len(failed.schedule)
    assert again.broken is not None
    assert again.broken.invariant == failed.broken.invariant
