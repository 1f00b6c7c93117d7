"""The machine and the software of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tidelog.nats.nats_server import find_nats_server


def about(*, rounds: int, quick: bool) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {_memory_bytes() / (1 << 30):.0f} GiB, {platform.system()}"
        f" {platform.release()}",
        "versions": {
            "tidelog": version("tidelog"),
            "commit": _commit(),
            "python": platform.python_version(),
            "nats-py": version("nats-py"),
            "nats-server": _told(str(find_nats_server()), "--version").rpartition("v")[2],
        },
        "rounds": rounds,
        **({"quick": "fewer records and repetitions: a first look"} if quick else {}),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _commit() -> str:
    """Of the checkout, with a plus when it was changed; "-" without git."""
    commit = _told("git", "rev-parse", "--short", "HEAD")
    return commit + ("+" if commit and _told("git", "status", "--porcelain", "--untracked-files=no") else "") or "-"


def _told(*command: str) -> str:
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return told.stdout.strip()
