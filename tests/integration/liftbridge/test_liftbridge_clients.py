"""Liftbridge's Python clients as they are published, against a cluster: in an environment of their own, because one of
them needs what our own protobuf no longer has."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import venv
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.liftbridge.liftbridge_stub import cluster_with_port
from tests.integration.rig.waiting import LIMIT
from tidelog.server.devcluster import DevCluster

PACKAGES = ("python-liftbridge==0.0.7", "gufo-liftbridge==0.2.0")
SESSIONS = Path(__file__).parent / "liftbridge_clients"
INSTALL_WITHIN = 100.0
RECORDS = 300

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """That of an environment with the clients."""
    folder = tmp_path_factory.mktemp("clients")
    venv.create(folder, with_pip=True)
    found = folder / "bin" / "python"
    command = [str(found), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_WITHIN, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"no package index gave {', '.join(PACKAGES)} within {INSTALL_WITHIN:.0f} s")
    if done.returncode:
        pytest.skip(f"{', '.join(PACKAGES)} cannot be installed here: {done.stderr.strip().splitlines()[-1:]}")
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevCluster]:
    with cluster_with_port(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@asynccontextmanager
async def session(python: Path, script: str, *arguments: str) -> AsyncIterator[Process]:
    environment = {**os.environ, "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"}
    if script.startswith("gufo"):
        del environment["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"]
    process = await asyncio.create_subprocess_exec(
        python, SESSIONS / script, *arguments, stdout=PIPE, stderr=sys.stderr, env=environment
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def steps(process: Process) -> AsyncIterator[dict[str, Any]]:
    assert process.stdout is not None
    async for line in process.stdout:
        try:
            yield json.loads(line)
        except ValueError:
            raise AssertionError(f"the client said {line.decode(errors='replace')}") from None


def addresses(cluster: DevCluster) -> list[str]:
    return [str(cluster.liftbridge_address(broker)) for broker in cluster.broker_ids]


async def test_python_liftbridge_does_what_its_readme_shows(python: Path, cluster: DevCluster) -> None:
    async with session(python, "python_liftbridge_session.py", addresses(cluster)[1]) as client:
        told = [step async for step in steps(client)]
        assert await asyncio.wait_for(client.wait(), LIMIT) == 0
    by_step = {step.pop("step"): step for step in told}
    everything = [[0, "hello", ""], [1, "acknowledged", "key"], [2, "by subject", ""], [3, "last", ""]]
    assert by_step == {
        "create": {"again": "exists"},
        "earliest": {"read": everything},
        "latest": {"read": everything[3:]},
        "offset": {"read": everything[2:3]},
        "time": {"read": everything[:2]},
        "unknown": {"refused": "no such stream"},
        "metadata": {"brokers": ["b1", "b2", "b3"]},
    }


async def test_gufo_liftbridge_goes_on_while_leaders_are_killed(python: Path, cluster: DevCluster) -> None:
    """Everything that the publisher heard to be committed is read, in order, and no offset twice with another value."""
    read: dict[int, str] = {}
    published: list[int] = []
    resumed: list[int] = []
    kills = 0
    names = ("gufo", str(RECORDS), *addresses(cluster))
    async with session(python, "gufo_session.py", *names) as client, await tidelog.connect(cluster.nats_url) as own:
        async for step in steps(client):
            match step.pop("step"):
                case "metadata":
                    assert step == {"brokers": ["b1", "b2", "b3"], "partitions": [1], "high_watermark": -1}
                case "bulk":
                    assert sorted(step["offsets"]) == [*range(10)]
                case "read":
                    assert read.setdefault(step["offset"], step["value"]) == step["value"]
                case "cursor":
                    assert step["stored"] == step["expected"]
                case "resumed":
                    resumed += step["offsets"]
                case "published":
                    published.append(step["number"])
                    if step["number"] in (RECORDS // 3, 2 * RECORDS // 3):
                        kills += 1
                        leader = (await own.describe("gufo"))["partitions"][0]["leader"]
                        assert leader is not None
                        await asyncio.to_thread(kill_and_start, cluster, leader)
                case _:
                    pass
        assert await asyncio.wait_for(client.wait(), LIMIT) == 0
    assert (kills, published) == (2, [*range(RECORDS)])
    values = [read[offset] for offset in sorted(read)]
    first = list(dict.fromkeys(value for value in values if value.startswith("record")))
    assert first == [f"record{number}" for number in range(RECORDS)]
    assert [*sorted(read)] == [*range(len(read))], "no gap"
    assert resumed == [*range(10)], "by the cursor, without a gap or a repeat"


def kill_and_start(cluster: DevCluster, broker: str) -> None:
    cluster.kill(broker)
    cluster.start_broker(broker)
    cluster.wait_ready(2 * LIMIT)
