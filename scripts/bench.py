"""Measures parts of the product on this machine.

    scripts/bench log                          the log on disk against dd; opening and reading a partition of 10 GB
    scripts/bench log --size 1G --json         smaller, and as one JSON object

What is said on the way goes to stderr. Exit status 1 when a figure misses its target.
"""

from __future__ import annotations

import argparse
import json
import sys

from scripts.benchmarks import log
from scripts.benchmarks.report import Report


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for benchmark in (log,):
        name = benchmark.__name__.rpartition(".")[2]
        command = commands.add_parser(name, help=(benchmark.__doc__ or "").splitlines()[0])
        command.add_argument("--json", action="store_true", help="the figures as one JSON object")
        benchmark.add_arguments(command)
        command.set_defaults(run=benchmark.run)
    return parser.parse_args()


def main() -> int:
    options = arguments()
    report: Report = options.run(options)
    if options.json:
        print(json.dumps(report.as_dict()))
    else:
        print(report)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
