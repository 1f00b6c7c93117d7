"""Loss of power at every moment of a workload, with every kind of outcome for the unsynced writes.

A workload is run once. Before each of its system calls that changes something the disk is copied, once for each
outcome; the log is recovered on the copy and compared with the promises made by then. Two such calls enclose every
other moment.

Outcomes: the process alone dies; of the unsynced writes none survive, or all, or other combinations of each file whole
or not at all (so that files are written back in any order) and the names in each folder up to some point; the last
write is torn; or chance keeps any subset of the writes of each file, torn anywhere.

    scripts/crash-points --seeds 100            longer, with workloads drawn by chance
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from dataplane.log.partition_log import LogConfig
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.log.crash_workload import Promises, Workload, check, open_log

if TYPE_CHECKING:
    from tests.unit.dataplane.log.crash_workload import Step

CONFIG = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300)
PREALLOCATING = LogConfig(segment_bytes=700, index_interval_bytes=200, tail_bytes=300, preallocate_bytes=256)
COMBINATIONS = 4
"""Of surviving pieces that are tried at one moment, nothing and everything among them; the others are drawn."""


@dataclass(frozen=True, slots=True)
class Outcome:
    what: str
    happens: Callable[[SimDisk], None]
    page_cache_survives: bool = False


def outcomes(disk: SimDisk, seed: int, combinations: int) -> Iterator[Outcome]:
    rng = Random(seed)
    yield Outcome("the process dies", SimDisk.kill_process, page_cache_survives=True)
    pieces = disk.unsynced()
    nothing, everything = [0] * len(pieces), pieces
    drawn = [[rng.randint(0, piece) for piece in pieces] for _ in range(combinations - 2)]
    for kept in dict.fromkeys(map(tuple, [nothing, everything, *drawn])):
        yield Outcome(f"of {pieces} survives {kept}", lambda disk, kept=kept: disk.lose_power_leaving(kept))  # type: ignore[misc]
    if pieces:
        number = rng.randrange(1 << 32)
        yield Outcome("the last write is torn", lambda disk: disk.lose_power("all but half of the last write", rng))
        yield Outcome(f"chance {number}", lambda disk: disk.lose_power("random", Random(number)))


def try_every_crash(
    steps: list[Step], config: LogConfig = CONFIG, *, seed: int = 0, combinations: int = COMBINATIONS
) -> int:
    """The number of crashes tried. Raises AssertionError that says which crash it was."""
    tried = 0

    def at_this_moment(disk: SimDisk, workload: Workload) -> None:
        nonlocal tried
        for what, left, page_cache_survived in _crashed(disk, seed, combinations):
            _check(left, config, workload.promises, page_cache_survived=page_cache_survived, where=what)
            tried += 1

    _run(steps, config, at_this_moment)
    return tried


def try_second_crashes(
    steps: list[Step], config: LogConfig = CONFIG, *, seed: int = 0, every: int = 1, combinations: int = COMBINATIONS
) -> int:
    """After every so many of the crashes power is lost again, before each call of the recovery. As above."""
    tried = 0
    first = 0

    def at_this_moment(disk: SimDisk, workload: Workload) -> None:
        nonlocal first
        for what, left, _ in _crashed(disk, seed, combinations):
            first += 1
            if first % every == 0:
                left.before_call = lambda: in_recovery(left, workload.promises, what)  # noqa: B023 - called here
                open_log(left, config)

    def in_recovery(disk: SimDisk, promises: Promises, what: str) -> None:
        nonlocal tried
        for then, left, _ in _crashed(disk, seed, combinations):
            _check(left, config, promises, page_cache_survived=False, where=f"{what}; in recovery, {then}")
            tried += 1

    _run(steps, config, at_this_moment)
    return tried


def _run(steps: list[Step], config: LogConfig, at_this_moment: Callable[[SimDisk, Workload], None]) -> None:
    disk = SimDisk()
    workload = Workload(disk, config)
    disk.before_call = lambda: at_this_moment(disk, workload)
    workload.run(steps)
    at_this_moment(disk, workload)


def _crashed(disk: SimDisk, seed: int, combinations: int) -> Iterator[tuple[str, SimDisk, bool]]:
    """(the event, the disk after it, whether the page cache survived)."""
    for outcome in outcomes(disk, seed * 1_000_003 + disk.calls, combinations):
        left = disk.copy()
        outcome.happens(left)
        yield f"before call {disk.calls} {outcome.what}", left, outcome.page_cache_survives


def _check(disk: SimDisk, config: LogConfig, promises: Promises, *, page_cache_survived: bool, where: str) -> None:
    try:
        check(disk, config, promises, page_cache_survived=page_cache_survived)
    except Exception as error:
        raise AssertionError(f"{where}: {error!r}") from error


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Lose power at every system call of workloads that are drawn by chance, and in every recovery."
    )
    parser.add_argument("--seeds", type=int, default=20, metavar="N", help="so many workloads (default 20)")
    parser.add_argument("--first", type=int, default=1, metavar="S", help="the first seed (default 1)")
    parser.add_argument("--steps", type=int, default=25, metavar="N", help="of each workload (default 25)")
    parser.add_argument("--combinations", type=int, default=8, metavar="N", help="of what survives, at each call (8)")
    parser.add_argument(
        "--second", type=int, default=50, metavar="N", help="every so many crashes, one in recovery (50)"
    )
    given = parser.parse_args()
    crashes = 0
    for seed in range(given.first, given.first + given.seeds):
        steps: list[Step] = [("by_chance", seed, given.steps)]
        for config in (CONFIG, PREALLOCATING):
            crashes += try_every_crash(steps, config, seed=seed, combinations=given.combinations)
            crashes += try_second_crashes(steps, config, seed=seed, every=given.second, combinations=given.combinations)
        print(f"seed {seed}: {crashes} crashes so far, nothing lost, nothing invented", flush=True)


if __name__ == "__main__":
    main()
