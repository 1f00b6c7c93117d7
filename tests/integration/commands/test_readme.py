"""The code blocks of README, docs/python.md, docs/cli.md and docs/clients.md, run as they stand; only ports and folders
are replaced. That of docs/jetstream.md, whose leader is killed, is in `test_jetstream_publishers.py`."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from spark_connector.java import NoJavaError, ensure_java
from tests.integration.rig.command_line import COMMAND
from tidelog.server.devcluster import DevCluster

ROOT = Path(__file__).parents[3]
README = ROOT / "README.md"
PYTHON = ROOT / "docs" / "python.md"
COMMAND_LINE = ROOT / "docs" / "cli.md"
CLIENTS = ROOT / "docs" / "clients.md"
URL = "nats://127.0.0.1:4222"
FOLDER = "/tmp/tide"
LIMIT = 120.0
SPARK_LIMIT = 240.0
SPARK_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
}


def block(heading: str) -> str:
    """The first code block after a heading, in bold or of a section."""
    text = README.read_text()
    begin = re.compile(rf"^(?:\*\*|## ){re.escape(heading)}", re.MULTILINE).search(text)
    assert begin is not None, heading
    found = re.compile(r"```\w+\n(.*?)```", re.DOTALL).search(text, begin.end())
    assert found is not None
    return found[1]


def blocks(page: Path, language: str) -> dict[str, str]:
    """The first block in `language` of each section, by heading."""
    found = re.findall(
        rf"^## ([^\n]+)\n((?:(?!^## ).)*?)```{language}\n(.*?)```", page.read_text(), re.DOTALL | re.MULTILINE
    )
    return {heading: source for heading, _, source in found}


def run_file(folder: Path, name: str, source: str, limit: float = LIMIT, **environment: str) -> str:
    """Save a block as a file and run it; returns its output."""
    path = folder / f"{name}.py"
    path.write_text(source)
    # Python and Spark's processes find the packages when they are not installed.
    packages = os.pathsep.join((str(ROOT), str(ROOT / "spark_connector" / "autoload")))
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=limit, check=False, cwd=folder,
        env={**os.environ, "PYTHONPATH": packages, **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.timeout(900)
def test_the_first_blocks_work_when_they_are_pasted(free_port: int, tmp_path: Path) -> None:
    """Also on a machine where the brokers take long to start: nothing waits between the lines."""
    url = f"nats://127.0.0.1:{free_port}"
    script = block("A cluster to develop against")
    first, rest = script.split("\n", 1)
    assert first.endswith(f"up --nodes 3 --data-dir {FOLDER} &")
    errors = shlex.quote(str(tmp_path / "up.err"))
    script = f"{first.removesuffix('&')} --port {free_port} 2> {errors} & echo $!\n{rest}"
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

        said_by_python = run_file(tmp_path, "first_client", block("Python").replace(URL, url))
        assert re.search(r"^committed at \d:1$", said_by_python, re.MULTILINE), said_by_python
        assert said_by_python.count(" b'AA' b'") == 2, said_by_python
        shared = run_file(tmp_path, "member", block("Share the work").replace(URL, url))
        assert re.search(r"^\d [01] b'(hello|value)'$", shared, re.MULTILINE), shared
        settings = block("What becomes of old records").replace(".venv/bin/tidelog", shlex.join(COMMAND))
        altered = subprocess.run(
            ["/bin/sh", "-eu", "-c", settings],
            capture_output=True, text=True, timeout=LIMIT, check=False,
            env={"TIDELOG_SERVER": url, "PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        assert altered.returncode == 0, altered.stderr
        assert "created stream prices" in altered.stdout
        assert '"stream":"flights"' in run_file(tmp_path, "any_client", block("Any NATS client").replace(URL, url))
        try:
            ensure_java()
        except NoJavaError as missing:
            pytest.skip(f"all blocks but that of Spark work: {missing}")
        spark = block("Spark").replace(URL, url)
        for folder in ("/tmp/out", "/tmp/ckpt"):
            assert folder in spark
            spark = spark.replace(folder, str(tmp_path / Path(folder).name))
        options = " ".join(f"--conf {name}={value}" for name, value in SPARK_OPTIONS.items())
        counts = run_file(tmp_path, "spark_job", spark, SPARK_LIMIT, PYSPARK_SUBMIT_ARGS=f"{options} pyspark-shell")
        assert sum(int(count) for count in re.findall(r"^\| *\d+\| *(\d+)\|$", counts, re.MULTILINE)) == 4, counts
        assert list((tmp_path / "out").glob("*.parquet"))
    finally:
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGINT)
        shell.wait(LIMIT)
        shell.stdout.close()
    assert shell.returncode == 0


@pytest.mark.timeout(900)  # some fifteen programs
def test_the_python_page(cluster: DevCluster, tmp_path: Path) -> None:
    said = {
        heading: run_file(tmp_path, f"task_{number}", source.replace(URL, cluster.nats_url)).splitlines()
        for number, (heading, source) in enumerate(blocks(PYTHON, "python").items())
    }
    assert "readings" in said["Connect, and make a stream"][0]
    assert re.fullmatch(r"committed at \d:0", said["Publish"][0])
    assert said["Publish much"][0].startswith("1000 in ")
    assert said["Consume"][0].endswith("b'21.5' {'unit': b'celsius'}")
    assert said["Consume"][1] == "1101 values in batches"
    assert said["Columns for Arrow"] == ["1101 ['key', 'value', 'offset', 'timestamp']"]
    assert said["Take records as you need them"] == ["behind: True", "paused: True others: True", "again: True"]
    again = "Go on where the last run stopped"
    assert said[again] == ["did 1101"]
    assert said["Share the work: consumer groups"] == ["read 1101 lag 0"]
    assert said["Transactions"] == ["aborted: bob has 5", "[b'5 from ada to bob']"]
    assert said["Read, process, and write: each record once"][-1].endswith(" totals of 4950")
    assert said["Remember a value: cursors"] == ["imports: 1"]
    assert said["Write only if nothing came in between"] == ["balance 10"]
    assert said["Keep, cut, rest and copy a stream"][0].startswith("refused: stream letters is read-only")
    assert said["Keep, cut, rest and copy a stream"][1] == "partition 0 begins at 50"
    assert "records=51" in said["Keep, cut, rest and copy a stream"][2]
    assert said["Send again what may have been written"] == [
        "order 17 is at 0 now",
        "2 more, 0 of them already there",
        "order 17 is at 0 already",
        "2 more, 2 of them already there",
    ]
    assert said["Keys and values that are not bytes"] == ["ada 1815"]
    assert said["Without asyncio"][0].startswith("offset ")
    assert any(line.endswith(" b'19.0'") for line in said["Without asyncio"])
    assert run_file(tmp_path, "again", blocks(PYTHON, "python")[again].replace(URL, cluster.nats_url)) == "did 1\n"


def shell_environment(cluster: DevCluster, folder: Path) -> dict[str, str]:
    """In which `tidelog` is a command that finds the cluster."""
    tidelog = folder / "bin" / "tidelog"
    tidelog.parent.mkdir()
    tidelog.write_text(f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n')
    tidelog.chmod(0o755)
    return os.environ | {
        "PATH": f"{tidelog.parent}:{os.environ['PATH']}", "TIDELOG_SERVER": cluster.nats_url, "PYTHONPATH": str(ROOT),
        "XDG_CONFIG_HOME": str(folder / "config"),
    }  # fmt: skip


def run_in_shell(folder: Path, heading: str, source: str, environment: dict[str, str]) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", source],
        capture_output=True, text=True, timeout=LIMIT, check=False, cwd=folder, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, f"{heading}: {done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


@pytest.mark.timeout(900)  # some fifty commands
def test_the_command_line_page(cluster: DevCluster, tmp_path: Path) -> None:
    """Each block by itself, in order, in one folder."""
    environment = shell_environment(cluster, tmp_path)
    said = {
        heading: run_in_shell(tmp_path, heading, source.replace(URL, cluster.nats_url), environment)
        for heading, source in blocks(COMMAND_LINE, "sh").items()
    }
    assert [line.split(",")[0] for line in said["Copy"][1:]] == ["published 5 records"] * 2
    first_offsets = [line.split("│")[5].strip() for line in said["Times and offsets"] if line.startswith("│ ")]
    assert len(first_offsets) == 2
    assert {*first_offsets} <= {"0", "none yet"}, "all records are of the last hour"
    reading = said["Read"]
    assert reading.count('{"item": "tea"}') == 1, "raw"
    assert len(reading) == 4 * 5 + 1
    assert any(line.endswith(' alice  {"item": "tea"}') for line in reading)
    assert any(line.endswith("  shell a") for line in reading)
    first, published, second = 5, 1, 1
    assert "commands use the context dev" in said["Name clusters"]
    resumed = said["Go on where the last run stopped"]
    assert len(resumed) == first + published + second
    assert sorted(resumed[:first]) == ["a", "b", "c", "x", '{"item": "tea"}']
    assert resumed[first].startswith("published 1 record, ")
    assert resumed[-1] == "more"
    assert set(said["Share the work"][:4]) <= {"a", "b", "c", "x", "more", '{"item": "tea"}'}
    assert said["Share the work"][-1] == "deleted group billing"
    assert said["Remember a value"][1] == "17"
    assert said["Delete"] == ["deleted stream orders"]


def test_the_page_of_clients(cluster: DevCluster, tmp_path: Path) -> None:
    environment = shell_environment(cluster, tmp_path)
    python, shell = blocks(CLIENTS, "python"), blocks(CLIENTS, "sh")

    def run(heading: str) -> list[str]:
        source = python[heading].replace(URL, cluster.nats_url)
        return run_file(tmp_path, "".join(filter(str.isalnum, heading)), source).splitlines()

    assert run("Python") == ["stored at 1 after 0", "run 0 read 1002", "run 1 read 0"]
    printed = run_in_shell(tmp_path, "sh", shell.pop("The command line"), environment)
    assert printed[:2] == ["parcels/0 sent, not acknowledged", "parcels/0 offset 1003"]
    assert printed[2].startswith("published 1000 records, ")
    assert printed[3:] == ["997", "998", "999", "1000", "1000", "parcels/0 offset 2004", "new"]
    assert run("Any NATS client") == ["stored at 2006 None", "refused: 0"]
    assert run("A JetStream client") == ["stored as 3008 again: True True"]
    assert run("A Liftbridge envelope") == ["stored: 1000 the last as 999"]
    assert not shell
