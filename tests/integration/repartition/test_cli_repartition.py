"""`tidelog stream alter --partitions` on a real cluster, and the reports of clients that end a repartition."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import nats
import pytest

import tidelog
from tests.integration.rig.brokers_status import counters_of
from tests.integration.rig.command_line import command
from tests.integration.rig.waiting import LIMIT
from tidelog.server.devcluster import DevCluster
from wire.operations.adoption_report import ADOPT
from wire.operations.api_operations import Topology
from wire.operations.stream_routes import TOPOLOGY
from wire.subjects import Subjects
from wire.types import BrokerId

SUBJECTS = Subjects()


def printed(cluster: DevCluster, *arguments: str) -> Any:
    status, out, err = command(cluster, "stream", *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


async def topology(client: Any, *streams: str) -> Topology:
    answer = await client.request(SUBJECTS.topology(), TOPOLOGY.encode_request(streams=[*streams]), timeout=LIMIT)
    return TOPOLOGY.decode_answer(answer.data, answer.headers)


async def adopt(client: Any, home: str, **streams: int) -> None:
    payload = ADOPT.encode_request(client_id="a client", streams=streams)
    ADOPT.decode_answer(*_parts(await client.request(SUBJECTS.adopt(BrokerId(home)), payload, timeout=LIMIT)))


async def keep_telling(client: Any, home: str, **streams: int) -> None:
    """As clients do, which a broker would forget otherwise, however slow the commands are that come in between."""
    while True:
        await adopt(client, home, **streams)
        await asyncio.sleep(1.0)


def _parts(message: Any) -> tuple[bytes, Any]:
    return message.data, message.headers


async def test_a_repartition_waits_for_its_clients_and_ends_when_they_have_heard(cluster: DevCluster) -> None:
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream("watched", partitions=2, replication_factor=3)
        stranger = await nats.connect(cluster.nats_url)
        page = await topology(stranger, "watched")
        home, before = page["home_broker"], page["streams"][0]["routing_generation"]
        telling = asyncio.create_task(keep_telling(stranger, home, watched=before))
        plan = await asyncio.to_thread(printed, cluster, "alter", "watched", "--partitions", "5", "--dry-run")
        assert (plan["made"], plan["to_version"]) == ([2, 3, 4], 2)
        begun = await asyncio.to_thread(printed, cluster, "alter", "watched", "--partitions", "5", "--yes", "--no-wait")
        assert (begun["partitions"], begun["partitioning_version"]) == (5, 2)
        async with asyncio.timeout(LIMIT):
            while True:
                state = (await client.repartition_status("watched"))["repartition"]
                assert state is not None, "it waits for the client"
                if state["done"] == state["of"] and state["adopted"] is not None:
                    break
                await asyncio.sleep(0.05)
        assert state["adopted"] == before < state["adoption_generation"]
        assert (await counters_of(client, home))["topology_adoption_min"] == before
        words = (await asyncio.to_thread(command, cluster, "stream", "repartition", "status", "watched"))[1]
        assert f"still has the routes of generation {before}, before {state['adoption_generation']}" in words
        newest = (await topology(stranger, "watched"))["streams"][0]["routing_generation"]
        assert newest >= state["adoption_generation"]
        telling.cancel()
        with suppress(asyncio.CancelledError):
            await telling
        began = time.monotonic()
        await adopt(stranger, home, watched=newest)
        watching = asyncio.create_task(asyncio.to_thread(printed, cluster, "repartition", "watch", "watched"))
        async with asyncio.timeout(LIMIT):
            while (await client.repartition_status("watched"))["repartition"] is not None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert time.monotonic() - began < 0.5 * state["adoption_timeout_s"]
        assert await watching == {
            "stream": "watched", "partitioning_version": 2, "partitions": 5, "repartition": None,
        }  # fmt: skip
        described = await asyncio.to_thread(command, cluster, "stream", "describe", "watched")
        assert "│ 2                    │ 5          │ 0: 0  1: 0" in described[1]
        await stranger.close()


def test_what_cannot_be_done_is_one_sentence(cluster: DevCluster) -> None:
    assert command(cluster, "stream", "create", "once", "--partitions", "2")[0] == 0
    for arguments, words in (
        (("alter", "once", "--partitions", "2", "--yes"), "2 partitions"),
        (("alter", "nowhere", "--partitions", "2", "--dry-run"), "nowhere"),
        (("repartition", "cancel", "once"), "once"),
        (("repartition", "watch", "nowhere"), "nowhere"),
    ):
        status, out, err = command(cluster, "stream", *arguments)
        assert (status, out, len(err.splitlines())) == (1, "", 1), arguments
        assert words in err
    status, out, err = command(cluster, "stream", "alter", "once", "--partitions", "3")
    assert status == 2
    assert "keys that move to another partition" in out, "the plan is shown before the question"
    assert "add --yes" in err


@pytest.mark.parametrize(("typed", "goes_on"), [("y", False), ("asked", True)])
def test_on_a_terminal_the_name_is_asked_for(cluster: DevCluster, typed: str, goes_on: bool) -> None:
    command(cluster, "stream", "create", "asked", "--partitions", "1", "--if-not-exists")
    before = printed(cluster, "repartition", "status", "asked")["partitions"]
    ours, theirs = pty.openpty()
    arguments = ["stream", "alter", "asked", "--partitions", str(before + 1), "--no-wait", "--server", cluster.nats_url]
    with subprocess.Popen(
        [sys.executable, "-m", "tidelog", *arguments],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.write(ours, f"{typed}\n".encode())
        _, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode == 0) is goes_on
    assert "This spreads the keys of stream asked over" in err
    assert printed(cluster, "repartition", "status", "asked")["partitions"] == before + goes_on
