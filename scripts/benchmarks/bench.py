"""Measures Tidelog beside JetStream on this machine, or parts of Tidelog by themselves.

    scripts/bench                              every workload, about half an hour
    scripts/bench --quick                      the same with fewer records and one round, about 4 minutes
    scripts/bench plain sync --rounds 5        two workloads
    scripts/bench --json > figures.json        all samples, versions, machine and date, instead of the table
    scripts/bench --from figures.json          the table of that run
    scripts/bench --from figures.json --picture docs/benchmark.svg
    scripts/bench log                          the log on disk against dd (its own options: scripts/bench log --help)
    scripts/bench spark                        the Spark connector, beside Parquet and an Arrow pipe (about 10 minutes)
    scripts/bench routing                      pushes of routes, and how soon a new leader is known (a minute)
    scripts/bench ids                          message ids: memory, and CPU time of each record (half a minute)
    scripts/bench bounds                       the longest steps of coordinators and of the cluster's state (a minute)

{workloads}

Both systems run on loopback with three brokers, or three servers, from the same nats-server, with three replicas on
this disk; each round has fresh clusters, one system at a time, in turn. Progress goes to stderr. Exit
status 1 when a figure misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from scripts.benchmarks import (
    acked,
    bounds,
    catchup,
    failover,
    ids,
    lag,
    log,
    plain,
    read,
    rebalance,
    routing,
    spread,
    sync,
    tags,
    tail,
    transactions,
)
from scripts.benchmarks.rig import picture
from scripts.benchmarks.rig.comparison import Comparison
from scripts.benchmarks.rig.machine import about
from scripts.benchmarks.rig.report import Report
from scripts.benchmarks.rig.running import Run, tell

WORKLOADS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (plain, acked, sync, tail, read, catchup, failover, spread, lag, tags, transactions, rebalance)
}
"""Each has FIGURES and `async run(run)`."""
ROUNDS = 3
KILLS, QUICK_KILLS = 10, 4


def main(words: list[str]) -> int:
    if words[:1] == ["ids"]:
        return _ids(words[1:])
    if words[:1] == ["bounds"]:
        return _bounds(words[1:])
    if words[:1] == ["spark"]:
        return _spark(words[1:])
    if words[:1] == ["routing"]:
        return _routing(words[1:])
    return _log(words[1:]) if words[:1] == ["log"] else _compare(words)


def _ids(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench ids", description=ids.__doc__)
    parser.add_argument("--ids", type=int, default=1_000_000, help="of the window (default: %(default)s)")
    for what, figure in ids.rows(parser.parse_args(words).ids):
        print(f"{what:<70} {figure:>12}", flush=True)
    return 0


def _bounds(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="scripts/bench bounds", description=bounds.__doc__)
    parser.add_argument("--producers", type=int, default=200_000, help="whose memory is measured (%(default)s)")
    parser.add_argument("--partitions", type=int, default=100_000, help="of the cluster (default: %(default)s)")
    options = parser.parse_args(words)
    for what, figure in bounds.rows(options.producers, options.partitions):
        print(f"{what:<90} {figure:>14}", flush=True)
    return 0


def _compare(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=(__doc__ or "").format(workloads=_listed()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="which ones (default: all)")
    parser.add_argument("--rounds", type=int, help=f"of each system, in turn (default {ROUNDS}; with --quick 1)")
    parser.add_argument(
        "--kills", type=int, help=f"of a leader, for failover (default {KILLS}; with --quick {QUICK_KILLS})"
    )
    parser.add_argument("--quick", action="store_true", help="fewer records: a first look, not a measurement")
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    parser.add_argument("--markdown", action="store_true", help="the table as Markdown")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="also draw the main figures, as SVG")
    parser.add_argument("--from", type=Path, metavar="FILE", dest="source", help="a run's --json, instead of running")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure (default: that of temporary files)")
    options = parser.parse_args(words)
    unknown = [name for name in options.workloads if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no workload {unknown[0]!r}; there are log, {', '.join(WORKLOADS)}")
    if options.source is not None:
        comparison = Comparison.from_dict(json.loads(options.source.read_text(encoding="utf-8")))
    else:
        comparison = _measured(options)
    if options.picture is not None:
        options.picture.write_text(picture.svg(comparison), encoding="utf-8")
    if options.json:
        print(json.dumps(comparison.as_dict()))
    else:
        print(comparison.markdown() if options.markdown else comparison)
    return 0 if comparison.ok else 1


def _measured(options: argparse.Namespace) -> Comparison:
    rounds = options.rounds or (1 if options.quick else ROUNDS)
    comparison = Comparison(about(rounds=rounds, quick=options.quick))
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=options.dir) as folder:
        kills = options.kills or (QUICK_KILLS if options.quick else KILLS)
        run = Run(rounds=rounds, kills=kills, quick=options.quick, folder=Path(folder), comparison=comparison)
        for name in options.workloads or WORKLOADS:
            tell(name)
            comparison.expect(WORKLOADS[name].FIGURES)
            asyncio.run(WORKLOADS[name].run(run))
    comparison.about["minutes"] = round((time.monotonic() - began) / 60, 1)
    return comparison


def _listed() -> str:
    """The workloads with the first lines of their docstrings."""
    return "\n".join(f"    {name:<12} {(module.__doc__ or '').splitlines()[0]}" for name, module in WORKLOADS.items())


def _log(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench log", description=log.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    log.add_arguments(parser)
    return _reported(parser, words, log.run)


def _spark(words: list[str]) -> int:
    from scripts.benchmarks import spark  # imports PySpark

    parser = argparse.ArgumentParser(
        prog="scripts/bench spark", description=spark.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    spark.add_arguments(parser)
    return _reported(parser, words, spark.run)


def _routing(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench routing", description=routing.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    routing.add_arguments(parser)
    return _reported(parser, words, routing.run)


def _reported(
    parser: argparse.ArgumentParser, words: list[str], measure: Callable[[argparse.Namespace], Report]
) -> int:
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    options = parser.parse_args(words)
    report = measure(options)
    print(json.dumps(report.as_dict()) if options.json else report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
