"""The log on disk: sequential append and read against dd, opening after a kill -9, memory while reading.

Each run of the log is followed by one of dd with the same block size on the same disk, so that both see the same
weather; medians are compared. A block is one batch.

    append, synced one by one    append, fdatasync, append, …        dd oflag=dsync append, group commit         as a
    leader does it: appends go on while a worker syncs the appended records, and everything
                                 is durable at the end              dd conv=fdatasync
    read, from the disk          nothing in the page cache           dd the same files, likewise
    read, from the page cache    the cost of the log's own work       dd the same files again; no target

Then a partition of --size is appended by a process that is killed -9 in the middle of it, opened (nothing in the page
cache), and read from beginning to end while the resident memory of the reader is watched.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.benchmarks.rig.comparison import Comparison, Figure, tell
from scripts.benchmarks.rig.log_runs import (
    Killed,
    append_grouped,
    append_one_by_one,
    forget_cached,
    open_again,
    read_all,
)

MIB = 1 << 20
TARGET = 0.7
"""Share of the rate of dd."""
OPEN_TARGET = 2.0
"""Seconds."""
MEMORY_TARGET = 32.0
"""MiB between the least and the most while reading."""
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def size(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].upper() in _UNITS else (text, "")
    try:
        return int(float(number) * _UNITS.get(unit, 1))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write 512M or 10G") from None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", type=size, default=10 << 30, help="of the large partition (default 10G)")
    parser.add_argument("--append-size", type=size, default=1 << 30, help="appended in each run (default 1G)")
    parser.add_argument("--synced-size", type=size, default=32 << 20, help="appended one by one in each run (32M)")
    parser.add_argument(
        "--blocks", type=size, nargs="+", default=[64 << 10, 256 << 10, 1 << 20], help="bytes of a batch"
    )
    parser.add_argument("--runs", type=int, default=5, help="of each, alternating with dd (default 5)")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: that of temporary files)")


def run(options: argparse.Namespace) -> Comparison:
    found = Comparison()
    with _workplace(options) as folder:
        for block in options.blocks:
            _append(found, options, folder, block)
        _large_partition(found, options, folder)
    return found


@contextmanager
def _workplace(options: argparse.Namespace) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="tidelog-bench-", dir=options.dir))
    try:
        needed = options.size + 2 * options.append_size
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise SystemExit(f"bench: {needed >> 20} MiB are needed in {folder.parent}, {free >> 20} MiB are free")
        yield folder
    finally:
        shutil.rmtree(folder)


def _append(found: Comparison, options: argparse.Namespace, folder: Path, block: int) -> None:
    ways: list[tuple[str, int, Callable[[Path, int, int], float], str]] = [
        ("synced one by one", options.synced_size, append_one_by_one, "oflag=dsync"),
        ("group commit", options.append_size, append_grouped, "conv=fdatasync"),
    ]
    for name, total, way, flag in ways:
        what = f"append {_shown(block)}, {name}"

        def ours(way: Callable[[Path, int, int], float] = way, total: int = total) -> float:
            with _emptied(folder / "log") as log:
                return total / way(log, block, total) / MIB

        def dds(flag: str = flag, total: int = total) -> float:
            with _emptied(folder / "dd") as place:
                target = f"of={place / 'file'}"
                return total / _timed_dd(["if=/dev/zero", target, f"bs={block}", f"count={total // block}", flag]) / MIB

        _compare(found, what, options.runs, ours, dds)


def _large_partition(found: Comparison, options: argparse.Namespace, folder: Path) -> None:
    log = folder / "large"
    tell(f"appending {_shown(options.size)}, to be killed in the middle of it")
    killed = Killed.while_appending(log, max(options.blocks), options.size)
    forget_cached(log)
    opened = open_again(log)
    found.record(
        Figure(
            key="log/open",
            what=f"open {_shown(killed.bytes)} after kill -9",
            unit="s",
            less_is_better=True,
            at_most=OPEN_TARGET,
            note=f"{opened.scanned >> 10} KiB scanned, {opened.truncated} bytes cut, {opened.segments} segments",
        ),
        opened.seconds,
    )
    for block in options.blocks:
        _read(found, options, log, block)
    tell("reading all of it, with an eye on the memory")
    forget_cached(log)
    reading = read_all(log, max(options.blocks))
    found.record(
        Figure(
            key="log/memory",
            what=f"memory, most - least, reading {_shown(reading.bytes)}",
            unit="MiB",
            less_is_better=True,
            at_most=MEMORY_TARGET,
            note=f"most {reading.memory_most >> 20} MiB",
        ),
        reading.memory_spread / MIB,
    )


def _read(found: Comparison, options: argparse.Namespace, log: Path, block: int) -> None:
    """Of the large partition as much as an append run writes."""
    total = min(options.append_size, options.size)

    def dds() -> float:
        rest, seconds, done = total, 0.0, 0
        for path in sorted(log.glob("*.log")):
            here = min(rest, path.stat().st_size)
            seconds += _timed_dd([f"if={path}", "of=/dev/null", f"bs={block}", f"count={-(-here // block)}"])
            rest, done = rest - here, done + here
            if rest <= 0:
                break
        return done / seconds / MIB

    def ours() -> float:
        reading = read_all(log, block, total)
        return reading.bytes / reading.seconds / MIB

    def cold(way: Callable[[], float]) -> Callable[[], float]:
        def measure() -> float:
            forget_cached(log)
            return way()

        return measure

    _compare(found, f"read {_shown(block)}, from the disk", options.runs, cold(ours), cold(dds))
    dds()  # the files are in the page cache now
    what = f"read {_shown(block)}, from the page cache"
    _compare(found, what, options.runs, ours, dds, target=None)


def _compare(
    found: Comparison,
    what: str,
    runs: int,
    ours: Callable[[], float],
    dds: Callable[[], float],
    *,
    target: float | None = TARGET,
) -> None:
    mine, theirs = [], []
    for _ in range(runs):
        mine.append(ours())
        theirs.append(dds())
    found.record(Figure(key=f"log/{what}", what=what, unit="MiB/s", ratio_at_least=target), *mine, dd=theirs)


@contextmanager
def _emptied(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _timed_dd(arguments: list[str]) -> float:
    """Seconds, as dd itself took them."""
    environment = {**os.environ, "LC_ALL": "C"}
    told = subprocess.run(["dd", *arguments], capture_output=True, text=True, check=True, env=environment)
    return float(told.stderr.rsplit("copied, ", 1)[1].split(" s,", 1)[0])


def _shown(number: int) -> str:
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if number >= factor:
            return f"{number / factor:.3g} {unit}"
    return f"{number} B"
