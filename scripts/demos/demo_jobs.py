"""The process that runs the demo's Spark jobs (scripts/demos/demo_spark.py), started early and asked job by job."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from scripts.demos.demo_flights import CarrierFigures

JOB_TIMEOUT = 120.0


class SparkFailed(Exception):
    """A Spark job did not end well; the text says why."""


class SparkJobs:
    """`async with` starts the process, which then starts Spark by itself, and ends it with its Java."""

    def __init__(self, nats_url: str, stream: str, login: Mapping[str, str], folder: Path) -> None:
        """`login`: options of the source. `folder`: for Spark's files and its log."""
        self._arguments = (nats_url, stream, str(folder / "spark"), *map("=".join, login.items()))
        self._folder = folder
        self._log_file = folder / "spark.log"
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> Self:
        with self._log_file.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "scripts.demos.demo_spark", *self._arguments),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "SPARK_LOCAL_DIRS": str(self._folder / "spark"), "TMPDIR": str(self._folder)},
                start_new_session=True,
            )
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None:
            # Java too, which would live on for a moment and keep its files.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    async def run(self, job: str) -> dict[str, CarrierFigures]:
        """By carrier. Raises SparkFailed."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise SparkFailed("Spark was not started")
        try:
            async with asyncio.timeout(JOB_TIMEOUT):
                with contextlib.suppress(ConnectionError):  # it has ended, which its output tells
                    process.stdin.write(f"{job}\n".encode())
                    await process.stdin.drain()
                output = await process.stdout.readline()
                if not output:
                    raise SparkFailed(f"the {job} job of Spark ended with status {await process.wait()}: {self._why()}")
        except TimeoutError:
            raise SparkFailed(f"the {job} job of Spark did not end within {JOB_TIMEOUT:.0f} s") from None
        return {carrier: CarrierFigures(*figures) for carrier, figures in json.loads(output).items()}

    def _why(self) -> str:
        """Python's own last words, which stand at the margin: "tidelog.client.base.exceptions.NoServer: no NATS server
        ..."."""
        log = self._log_file.read_text(errors="replace")
        words = re.findall(r"^[A-Za-z_][\w.]*: .*(?<!last\):)$", log, re.MULTILINE)
        return words[-1] if words else "it said nothing"
