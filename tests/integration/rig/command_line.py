"""The command `tidelog` as a process of its own, and the form of all its refusals."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

from tidelog.server.devcluster import DevCluster

COMMAND = (sys.executable, "-m", "tidelog")


def tidelog_command(*arguments: str, stdin: str = "", timeout: float = 90.0) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], input=stdin, capture_output=True, text=True, timeout=timeout, check=False
    )


def command(cluster: DevCluster, *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """On a cluster; its exit status, output and error output."""
    done = tidelog_command(*arguments, "--server", cluster.nats_url, stdin=stdin)
    return done.returncode, done.stdout, done.stderr


def start_tidelog(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """A command that goes on; its output goes where `options` (of Popen) say."""
    return subprocess.Popen([*COMMAND, *arguments], text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}, **options)


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit status 1, nothing on stdout, and one sentence on stderr that holds all of `words`."""
    assert done.returncode == 1, done
    assert done.stdout == "", done
    assert done.stderr.startswith("tidelog"), done.stderr
    assert done.stderr.count("\n") == 1, f"one line, not:\n{done.stderr}"
    for word in words:
        assert word in done.stderr, (word, done.stderr)


def assert_usage_error(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Exit status 2: the command line itself is wrong, and stderr names the fault."""
    assert done.returncode == 2, done
    assert "Traceback" not in done.stderr, done.stderr
    for word in words:
        assert word in done.stderr, (word, done.stderr)
