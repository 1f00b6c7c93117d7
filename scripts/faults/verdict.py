"""The end of a script that looks for lost records: PASS, or FAIL with the reason, and the folder that remains."""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import tidelog


def judge(name: str, options: argparse.Namespace, check: Callable[[Path], bool]) -> int:
    """Returns the exit status. `check` works in a temporary folder, which is kept when it fails or with `--keep`."""
    print(f"seed {options.seed}", flush=True)
    folder = Path(tempfile.mkdtemp(prefix=f"tidelog-{name}-"))
    passed, why = False, "see the findings above"
    try:
        passed = check(folder)
    except (AssertionError, tidelog.TidelogError) as error:
        why = str(error)
    except KeyboardInterrupt:
        why = "interrupted"
    if options.keep or not passed:
        print(f"data and logs: {folder}")
    else:
        shutil.rmtree(folder)
    print("PASS" if passed else f"FAIL: {why} (seed {options.seed})")
    return 0 if passed else 1
