"""Simulated clusters by the thousand: production code, one seed each, faults drawn from the seed.

    scripts/simulate --seeds 2000              seeds 1 to 2000 on all cores, then a summary
    scripts/simulate --minutes 60              as many as fit
    scripts/simulate --seed 17                 one, with its trace
    scripts/simulate --seed 17 --shrink        the same with as few faults as still break it
    scripts/simulate --scenario NAME           seeds with that scenario, some of which no seed draws by itself; "the
                                               metadata group alone" is one of those
    scripts/simulate --mutants                 defects made on purpose: which invariant finds each, after how many seeds
                                               (those that are broken without the defect, too, do not count)
    scripts/simulate --mutants --only TEXT     only the mutants with TEXT in their name
    scripts/simulate --mutants --record        the same, and writes the seed that caught each to
                                               tests/simulation/mutant_seeds.json; a recorded seed is tried first

With --json the summary, or the table of mutants, is one JSON object on stdout; progress goes to stderr. A run that
fails, or uses a minute of CPU time, prints its seed, the commit, and the command that replays it. The exit status is 1
when a run failed, a mutant was not caught, or a seed is broken without a mutant.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import multiprocessing.pool
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain, count, islice
from pathlib import Path
from typing import NamedTuple

from tests.simulation.faults import Fault
from tests.simulation.mutants import MUTANTS
from tests.simulation.run import Result, has_transactions, plan_of, scenario_of
from tests.simulation.runs import ASKED, TO_ASK_FOR, run

SEEDS = Path(__file__).resolve().parents[2] / "tests" / "simulation" / "mutant_seeds.json"
MAX_SHRUNK = 3
"""Of that many failures the faults that matter are looked for."""
MAX_FAILURES = 10
"""A longer run ends after so many."""


class Verdict(NamedTuple):
    """Result of a run that a worker sends to the parent."""

    seed: int
    broken: str | None
    faults: dict[str, int]
    simulated: float
    steps: int
    sent: int
    acknowledged: int
    committed_batches: int
    passed_committed: int
    passed_cutovers: int


def settle_in() -> None:
    """Prepares a worker: the garbage collector need not look at its present objects after every world, and prints
    nothing of coroutines that a killed process left in the middle of their closing."""
    gc.collect()
    gc.freeze()
    print_unraisable = sys.unraisablehook

    def print_but_killed(unraisable: sys.UnraisableHookArgs) -> None:
        if str(unraisable.exc_value) != "coroutine ignored GeneratorExit":
            print_unraisable(unraisable)

    sys.unraisablehook = print_but_killed


def judge(seed: int, scenario: str | None) -> Verdict:
    result = run(seed, scenario=scenario)
    gc.collect()  # a finished world is full of reference cycles
    return Verdict(
        seed,
        str(result.broken) if result.broken is not None else None,
        result.faults,
        result.simulated,
        result.steps,
        result.sent,
        result.acknowledged,
        result.committed_batches,
        result.passed_committed,
        result.passed_cutovers,
    )


def commit() -> str:
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return told.stdout.strip()


def seeds(first: int, number: int | None, deadline: float | None) -> Iterator[int]:
    for seed in count(first) if number is None else range(first, first + number):
        if deadline is not None and time.monotonic() >= deadline:
            return
        yield seed


def tell(text: str, *, as_json: bool) -> None:
    """On the way."""
    print(text, file=sys.stderr if as_json else sys.stdout, flush=True)


def run_many(
    first: int, number: int | None, minutes: float | None, jobs: int, *, scenario: str | None, as_json: bool
) -> int:
    began = time.monotonic()
    deadline = None if minutes is None else began + 60 * minutes
    faults: Counter[str] = Counter()
    failures: list[Verdict] = []
    runs = steps = sent = acknowledged = batches = passed_committed = passed_cutovers = 0
    simulated = 0.0
    with multiprocessing.Pool(jobs, initializer=settle_in) as pool:
        for verdict in _judged(pool, seeds(first, number, deadline), jobs, scenario):
            runs += 1
            faults.update(verdict.faults)
            simulated += verdict.simulated
            steps += verdict.steps
            sent += verdict.sent
            acknowledged += verdict.acknowledged
            batches += verdict.committed_batches
            passed_committed += verdict.passed_committed
            passed_cutovers += verdict.passed_cutovers
            if verdict.broken is not None:
                failures.append(verdict)
                tell(
                    f"seed {verdict.seed} at commit {commit()} breaks {verdict.broken}\n"
                    f"  replay: {replay(verdict.seed, scenario)}",
                    as_json=as_json,
                )
                if len(failures) >= MAX_FAILURES:
                    break
            if runs % 500 == 0:
                tell(f"{runs} seeds, {len(failures)} failed, {time.monotonic() - began:.0f} s", as_json=as_json)
    for verdict in failures[:MAX_SHRUNK]:
        tell_smallest(verdict.seed, scenario, as_json=as_json)
    if as_json:
        summary = {
            "commit": commit(),
            "seeds": runs,
            "failed": {verdict.seed: verdict.broken for verdict in failures},
            "simulated_hours": round(simulated / 3600, 3),
            "seconds": round(time.monotonic() - began, 1),
            "steps": steps,
            "records_sent": sent,
            "records_acknowledged": acknowledged,
            "batches_committed": batches,
            "log_starts_past_committed": passed_committed,
            "log_starts_past_cutovers": passed_cutovers,
            "faults": faults,
        }
        print(json.dumps(summary))
        return 1 if failures else 0
    print(
        f"\n{runs} seeds, {len(failures)} failed; {simulated / 3600:.2f} simulated hours in"
        f" {time.monotonic() - began:.0f} s; {steps} steps; {sent} records sent, {acknowledged} acknowledged,"
        f" {batches} batches committed; log starts passed what a group had committed {passed_committed} times, and"
        f" ends of layouts that it had not read to {passed_cutovers} times\nfaults: "
        + ", ".join(f"{kind} {times}" for kind, times in sorted(faults.items(), key=lambda found: -found[1]))
    )
    return 1 if failures else 0


def replay(seed: int, scenario: str | None) -> str:
    """The command that runs it again."""
    return f"scripts/simulate --seed {seed}" + (f" --scenario '{scenario}'" if scenario is not None else "")


def _judged(
    pool: multiprocessing.pool.Pool, wanted: Iterable[int], jobs: int, scenario: str | None
) -> Iterator[Verdict]:
    """As `imap_unordered`, but asks for a seed when there is a worker for it."""
    asked: list[multiprocessing.pool.AsyncResult[Verdict]] = []
    rest = iter(wanted)
    while True:
        while len(asked) < 2 * jobs and (seed := next(rest, None)) is not None:
            asked.append(pool.apply_async(judge, (seed, scenario)))
        if not asked:
            return
        asked[0].wait(0.02)
        ready = [answer for answer in asked if answer.ready()]
        for answer in ready:
            asked.remove(answer)
            yield answer.get()


def tell_smallest(seed: int, scenario: str | None, *, as_json: bool) -> None:
    result = run(seed, scenario=scenario)
    if result.broken is None:
        return
    schedule = shrink(result, scenario)
    what = f"seed {seed}: {len(schedule)} of its {len(result.schedule)} faults break {result.broken.invariant}:"
    tell("\n  ".join([what, *map(str, schedule)]), as_json=as_json)


def run_one(seed: int, scenario: str | None, *, smallest: bool) -> int:
    result = run(seed, traced=True, scenario=scenario)
    if smallest and result.broken is not None:
        schedule = shrink(result, scenario)
        result = run(seed, traced=True, schedule=schedule, scenario=scenario)
    print("\n".join(result.trace))
    print(f"\nfaults that were due: {len(result.schedule)}")
    for fault in result.schedule:
        print(f"  {fault}")
    if result.broken is None:
        print(f"seed {seed} holds: {result.acknowledged} records acknowledged in {result.simulated:.1f} simulated s")
        return 0
    print(f"seed {seed} at commit {commit()} breaks {result.broken}")
    return 1


def shrink(failed: Result, scenario: str | None = None) -> list[Fault]:
    """A part of the schedule that breaks the same invariant: halves are left out, then quarters, then single faults."""
    assert failed.broken is not None
    wanted = failed.broken.invariant
    schedule = failed.schedule
    size = max(1, len(schedule) // 2)
    while schedule:
        at = 0
        while at < len(schedule):
            fewer = schedule[:at] + schedule[at + size :]
            result = run(failed.seed, schedule=fewer, scenario=scenario)
            if result.broken is not None and result.broken.invariant == wanted:
                schedule = fewer
            else:
                at += size
        if size == 1:
            break
        size //= 2
    return schedule


class Sight(NamedTuple):
    mutant: int
    invariant: str | None
    seeds: int
    """So many were tried."""
    caught_by: int | None
    """The seed whose run breaks the invariant."""
    broken_anyway: list[int]
    """Seeds that break an invariant without the mutant, too."""


def recorded_seeds() -> dict[str, int]:
    """By the name of a mutant, the seed that caught it when the table was last recorded."""
    found: dict[str, int] = json.loads(SEEDS.read_text())
    return found


def hunt(order: tuple[int, int, int | None]) -> Sight:
    """`order`: the number of the mutant, how many seeds are tried, and the recorded seed."""
    number, budget, recorded = order
    mutant = MUTANTS[number]
    asked = mutant.scenario if mutant.scenario in ASKED else None
    others = (
        seed
        for seed in count(1)
        if seed != recorded
        and (mutant.scenario is None or scenario_of(seed, asked) == mutant.scenario)
        and (not mutant.in_transactions or has_transactions(seed))
        and (not mutant.in_repartitions or plan_of(seed).has_repartitions)
        and (not mutant.in_reassignments or plan_of(seed).has_reassignments)
    )
    seeds = others if recorded is None else chain([recorded], others)
    broken_anyway: list[int] = []
    for tried, seed in enumerate(islice(seeds, budget), 1):
        with mutant.applied():
            result = run(seed, scenario=asked)
        gc.collect()
        if result.broken is None:
            continue
        sound = run(seed, scenario=asked).broken is None
        gc.collect()
        if sound:
            return Sight(number, result.broken.invariant, tried, seed, broken_anyway)
        broken_anyway.append(seed)
    return Sight(number, None, budget, None, broken_anyway)


def mutants_with(text: str) -> list[int]:
    """Numbers of the mutants whose name contains `text`, in upper or lower case."""
    return [number for number, mutant in enumerate(MUTANTS) if text.lower() in mutant.name.lower()]


def record(caught: dict[str, int]) -> None:
    """Adds seeds to the recorded ones, and drops those of mutants that are no more."""
    known = recorded_seeds() | caught
    names = sorted(mutant.name for mutant in MUTANTS if mutant.name in known)
    SEEDS.write_text(json.dumps({name: known[name] for name in names}, indent=1) + "\n")


def run_mutants(numbers: list[int], budget: int, jobs: int, *, keep: bool, as_json: bool) -> int:
    """`keep`: the seed of each mutant that is caught is recorded at once."""
    unseen = 0
    broken: set[int] = set()
    width = max(len(MUTANTS[number].name) for number in numbers)
    tell(f"{'mutant':<{width}}  caught by                 after seeds  seed", as_json=as_json)
    sights = []
    known = recorded_seeds()
    orders = [(number, budget, known.get(MUTANTS[number].name)) for number in numbers]
    with multiprocessing.Pool(jobs, initializer=settle_in) as pool:
        for sight in pool.imap_unordered(hunt, orders):
            unseen += sight.invariant is None
            broken.update(sight.broken_anyway)
            name = MUTANTS[sight.mutant].name
            if keep and sight.caught_by is not None:
                record({name: sight.caught_by})
            sights.append(
                {
                    "mutant": name,
                    "caught_by": sight.invariant,
                    "seeds": sight.seeds,
                    "seed": sight.caught_by,
                    "broken_anyway": sight.broken_anyway,
                }
            )
            told = f"{name:<{width}}  {sight.invariant or 'NOT CAUGHT':<24}  {sight.seeds:<11}  {sight.caught_by or ''}"
            if sight.broken_anyway:
                told += f"  seeds that are broken without it: {', '.join(map(str, sight.broken_anyway))}"
            tell(told, as_json=as_json)
    tell(f"{len(numbers) - unseen} of {len(numbers)} caught", as_json=as_json)
    if as_json:
        print(json.dumps({"commit": commit(), "mutants": sights}))
    return 1 if unseen or broken else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the production code in simulated worlds.")
    parser.add_argument("--seeds", type=int, metavar="N", help="so many seeds")
    parser.add_argument("--minutes", type=float, metavar="M", help="as many seeds as fit into M minutes")
    parser.add_argument("--first", type=int, default=1, metavar="S", help="the first seed (default 1)")
    parser.add_argument("--seed", type=int, metavar="S", help="one seed, with its trace")
    parser.add_argument("--scenario", choices=sorted(TO_ASK_FOR), help="runs with that scenario")
    parser.add_argument("--shrink", action="store_true", help="with --seed: as few faults as still break it")
    parser.add_argument("--mutants", action="store_true", help="defects made on purpose: which invariant finds them?")
    parser.add_argument("--only", default="", metavar="TEXT", help="with --mutants: those with TEXT in their name")
    parser.add_argument("--record", action="store_true", help="with --mutants: write down the seed that caught each")
    parser.add_argument("--budget", type=int, default=200, metavar="N", help="with --mutants: seeds for each (200)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="processes (default: cores)")
    parser.add_argument("--json", action="store_true", help="the summary, or the mutants, as JSON")
    given = parser.parse_args(arguments)
    if given.seed is not None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a trace is read with head and less
        return run_one(given.seed, given.scenario, smallest=given.shrink)
    if given.mutants:
        numbers = mutants_with(given.only)
        if not numbers:
            parser.error(f"no mutant has {given.only!r} in its name")
        return run_mutants(numbers, given.budget, given.jobs, keep=given.record, as_json=given.json)
    number = given.seeds if given.seeds is not None or given.minutes is not None else 200
    return run_many(given.first, number, given.minutes, given.jobs, scenario=given.scenario, as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
