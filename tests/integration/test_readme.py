"""The README's own text, carried out as it stands: only ports and folders are others."""

from __future__ import annotations

import ast
import asyncio
import os
import re
import shlex
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.integration.command_line import COMMAND

README = Path(__file__).parents[2] / "README.md"
URL = "nats://127.0.0.1:4222"
FOLDER = "/tmp/tide"
LIMIT = 90.0


def block(heading: str) -> str:
    """The first code block after a heading in bold."""
    text = README.read_text()
    found = re.compile(r"```\w+\n(.*?)```", re.DOTALL).search(text, text.index(f"**{heading}**"))
    assert found is not None
    return found[1]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


async def run_python(source: str, **names: Any) -> None:
    """A snippet with `await` at its top level, as in `python -m asyncio`."""
    code = compile(source, str(README), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    outcome = eval(code, names)
    if outcome is not None:
        await outcome


def test_the_first_blocks_work_when_they_are_pasted(tmp_path: Path) -> None:
    """Also on a machine where the brokers take long to start: nothing waits between the lines."""
    port = free_port()
    url = f"nats://127.0.0.1:{port}"
    script = block("A cluster to develop against")
    first, rest = script.split("\n", 1)
    assert first.endswith(f"up --nodes 3 --data-dir {FOLDER} &")
    script = f"{first.removesuffix('&')} --port {port} 2> {shlex.quote(str(tmp_path / 'up.err'))} & echo $!\n{rest}"
    script = script.replace(".venv/bin/tidelog", shlex.join(COMMAND)).replace(FOLDER, str(tmp_path / "tide"))
    shell = subprocess.Popen(
        ["/bin/sh", "-eu"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"TIDELOG_SERVER": url, "PATH": "/usr/bin:/bin"},
        start_new_session=True,
    )  # fmt: skip
    assert shell.stdin is not None
    assert shell.stdout is not None
    pid = None
    try:
        shell.stdin.write(f"set -m\n{script}\necho done\nwait\n")
        shell.stdin.close()
        pid = int(shell.stdout.readline())
        said = []
        for line in shell.stdout:
            said.append(line)
            if line == "done\n":
                break
        text = "".join(said)
        assert said[-1:] == ["done\n"], f"{text}\n{(tmp_path / 'up.err').read_text()}"
        assert "created stream flights" in text
        assert re.search(r"^\d:0\t.*\tAA\thello$", text, re.MULTILINE), text
        assert "0 offline, 0 under-replicated" in text

        async def go_on() -> None:
            async with asyncio.timeout(LIMIT):
                await run_python(block("Python").replace(URL, url))
                await run_python(block("Any NATS client").replace(URL, url) + "\nawait connection.close()")

        asyncio.run(go_on())
    finally:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        shell.wait(LIMIT)
        shell.stdout.close()
    assert shell.returncode == 0
