"""Measures Tidelog beside JetStream and Kafka on this machine, or parts of Tidelog by themselves.

    scripts/bench                              every workload, about an hour
    scripts/bench --quick                      the same with fewer records and one round, about 8 minutes
    scripts/bench plain sync --rounds 5        two workloads
    scripts/bench --kafka-libs DIR             with Kafka as a peer in acked, rates and spread
    scripts/bench --record                     every workload, 5 rounds, into docs/: figures, picture, tables of docs
    scripts/bench --json > figures.json        all samples, versions, machine and date, instead of the table
    scripts/bench --from figures.json          the table of that run
    scripts/bench --from figures.json --picture docs/benchmark.svg
    scripts/bench log                          the log on disk against dd (its own options: scripts/bench log --help)
    scripts/bench spark                        the Spark connector, beside Parquet and an Arrow pipe (about 10 minutes)
    scripts/bench ids                          message ids: memory, and CPU time of each record (half a minute)
    scripts/bench bounds                       the longest steps of coordinators and of the cluster's state (a minute)

{workloads}

The systems run on loopback with three brokers, or three servers, Tidelog and JetStream from the same nats-server, with
three replicas on this disk; each round has fresh clusters, one system at a time, in turn. A figure is judged against
the strongest peer in it. Progress goes to stderr. Exit status 1 when a figure misses its target.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

from scripts.benchmarks import (
    acked,
    bounds,
    catchup,
    failover,
    growth,
    ids,
    lag,
    log,
    plain,
    rates,
    read,
    rebalance,
    spread,
    sync,
    tags,
    tail,
    transactions,
)
from scripts.benchmarks.rig import picture
from scripts.benchmarks.rig.comparison import Comparison, tell
from scripts.benchmarks.rig.kafka import Kafka, why_not
from scripts.benchmarks.rig.machine import about
from scripts.benchmarks.rig.running import Run

WORKLOADS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        plain, acked, sync, rates, tail, read, catchup, failover, spread, growth, lag, tags, transactions, rebalance,
    )
}  # fmt: skip
"""Each has FIGURES and `async run(run)`."""
ALONE: dict[str, ModuleType | None] = {"log": log, "ids": ids, "bounds": bounds, "spark": None}
"""Each has `add_arguments(parser)` and `run(options)`, which returns a Comparison. `spark`, which imports PySpark, is
imported when it is asked for."""
ROUNDS, RECORDED_ROUNDS = 3, 5
KILLS, QUICK_KILLS, RECORDED_KILLS = 10, 4, 20
DOCS = Path(__file__).parents[2] / "docs"


def main(words: list[str]) -> int:
    return _alone(words[0], words[1:]) if words and words[0] in ALONE else _compare(words)


def _alone(name: str, words: list[str]) -> int:
    module = ALONE[name] or import_module(f"scripts.benchmarks.{name}")
    parser = argparse.ArgumentParser(
        prog=f"scripts/bench {name}", description=module.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    module.add_arguments(parser)
    parser.add_argument("--json", action="store_true", help="the figures as one JSON object")
    options = parser.parse_args(words)
    found: Comparison = module.run(options)
    print(json.dumps(found.as_dict()) if options.json else found)
    return 0 if found.ok else 1


def _compare(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/bench",
        description=(__doc__ or "").format(workloads=_listed()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help="which ones (default: all)")
    parser.add_argument(
        "--rounds",
        type=int,
        help=f"of each system, in turn (default {ROUNDS}; with --quick 1, with --record {RECORDED_ROUNDS})",
    )
    parser.add_argument(
        "--kills",
        type=int,
        help=f"of a leader, for failover (default {KILLS}; with --quick {QUICK_KILLS}, with --record {RECORDED_KILLS})",
    )
    parser.add_argument("--kafka-libs", type=Path, metavar="DIR", help="the folder libs/ of a Kafka distribution")
    parser.add_argument(
        "--record", action="store_true", help="write docs/benchmark.json, docs/benchmark.svg and the tables of docs/"
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
        parser.error(f"there is no workload {unknown[0]!r}; there are {', '.join((*WORKLOADS, *ALONE))}")
    if options.record and (options.quick or options.workloads):
        parser.error("--record takes a whole run: give neither --quick nor workloads")
    if options.source is not None:
        comparison = Comparison.from_dict(json.loads(options.source.read_text(encoding="utf-8")))
    else:
        comparison = _measured(options)
    if options.record:
        _record(comparison)
    if options.picture is not None:
        options.picture.write_text(picture.svg(comparison), encoding="utf-8")
    if options.json:
        print(json.dumps(comparison.as_dict()))
    else:
        print(comparison.markdown() if options.markdown else comparison)
    return 0 if comparison.ok else 1


def _record(comparison: Comparison) -> None:
    """Writes the results of this run into docs/."""
    from scripts.reference import docs_tables  # imports the whole server

    (DOCS / "benchmark.json").write_text(json.dumps(comparison.as_dict()) + "\n", encoding="utf-8")
    (DOCS / "benchmark.svg").write_text(picture.svg(comparison), encoding="utf-8")
    for path in docs_tables.write():
        tell(f"wrote {path}")


def _measured(options: argparse.Namespace) -> Comparison:
    quick, recorded = options.quick, options.record
    rounds = options.rounds or (1 if quick else RECORDED_ROUNDS if recorded else ROUNDS)
    kills = options.kills or (QUICK_KILLS if quick else RECORDED_KILLS if recorded else KILLS)
    comparison = Comparison(about(rounds=rounds, quick=quick))
    without_kafka = why_not(options.kafka_libs)
    if without_kafka is not None:
        comparison.about[Kafka.name] = without_kafka
        tell(f"Kafka is {without_kafka}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tidelog-bench-", dir=options.dir) as folder:
        run = Run(
            rounds=rounds,
            kills=kills,
            quick=quick,
            folder=Path(folder),
            comparison=comparison,
            kafka_libs=None if without_kafka else options.kafka_libs,
        )
        for name in options.workloads or WORKLOADS:
            tell(name)
            comparison.expect(WORKLOADS[name].FIGURES)
            asyncio.run(WORKLOADS[name].run(run))
    comparison.about["minutes"] = round((time.monotonic() - began) / 60, 1)
    return comparison


def _listed() -> str:
    """The workloads with the first lines of their docstrings."""
    return "\n".join(f"    {name:<12} {(module.__doc__ or '').splitlines()[0]}" for name, module in WORKLOADS.items())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
