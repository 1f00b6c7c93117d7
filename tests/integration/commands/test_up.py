"""`tidelog up` as a process: its files and processes, and a second start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import tidelog
from tests.integration.rig.command_line import assert_refused, start_tidelog, tidelog_command
from tests.integration.rig.waiting import until, wait_until
from tests.integration.rig.workload import Ledger, acked_load, assert_nothing_lost, wait_in_sync
from tidelog.nats.nats_server import EmbeddedNatsServer
from tidelog.process.loopback import HOST
from tidelog.server.devcluster import NatsKeeper
from wire.errors import TidelogError

STOP_TIMEOUT = 60.0
"""Seconds; a stop is a matter of one or two on an idle machine."""
RECORDS = 300


class Up:
    """One run of `tidelog up` on a folder."""

    def __init__(self, folder: Path, process: subprocess.Popen[str]) -> None:
        self.folder = folder
        self.process = process

    @property
    def document(self) -> dict[str, Any]:
        """The content of cluster.json."""
        return dict(json.loads((self.folder / "cluster.json").read_text()))

    @property
    def url(self) -> str:
        return str(self.document["nats_url"])

    def wait_ready(self) -> dict[str, Any]:
        """Returns its output once all brokers serve."""
        assert self.process.stdout is not None
        lines = []
        while True:
            line = self.process.stdout.readline()
            assert line, f"it ended with status {self.process.wait(STOP_TIMEOUT)}: {self.said()}"
            lines.append(line)
            if line == "}\n":
                return dict(json.loads("".join(lines)))

    def said(self) -> str:
        return self.folder.with_suffix(".err").read_text()

    def processes(self) -> set[int]:
        """The live processes that it started."""
        found = set()
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                command = (entry / "cmdline").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if os.fsencode(self.folder) + b"/" in command and state != "Z":
                found.add(int(entry.name))
        return found

    def interrupt(self) -> int:
        """Ctrl-C; returns the exit status."""
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.said()}") from None


@contextmanager
def up(folder: Path, *arguments: str) -> Iterator[Up]:
    with folder.with_suffix(".err").open("w") as errors:
        process = start_tidelog(
            "up", "--port", "0", "--json", "--data-dir", str(folder), *arguments,
            stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
        )  # fmt: skip
    running = Up(folder, process)
    try:
        yield running
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        try:
            wait_until(lambda: not running.processes(), "the end of all processes")
        finally:
            for pid in running.processes():
                os.kill(pid, signal.SIGKILL)


async def publish(url: str, replication_factor: int) -> None:
    async with await tidelog.connect(url) as client:
        await client.create_stream("kept", partitions=2, replication_factor=replication_factor)
        async with client.producer("kept") as producer:
            await producer.send_many(
                [b"%d" % i for i in range(RECORDS)], keys=[b"%d" % (i % 7) for i in range(RECORDS)]
            )


async def read_back(url: str) -> None:
    async with await tidelog.connect(url, api_timeout=20) as client:
        found = [int(record.value or b"-1") async for record in client.consume("kept", stop="latest")]
    assert sorted(found) == list(range(RECORDS))


def test_ctrl_c_stops_everything_and_a_second_start_recovers(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    with up(folder) as first:
        printed = first.wait_ready()
        assert printed == first.document
        assert [broker["id"] for broker in printed["brokers"]] == ["b1", "b2", "b3"]
        for broker in printed["brokers"]:
            assert sorted(broker) == ["config", "data_dir", "id", "pid", "raft"]
            assert Path(broker["data_dir"]) == folder / broker["id"]
            assert (folder / broker["id"] / "ready").read_text().strip() == str(broker["pid"])
            assert Path(broker["config"]).is_file()
        assert {broker["pid"] for broker in printed["brokers"]} < first.processes()
        asyncio.run(publish(printed["nats_url"], 3))
        assert first.interrupt() == 0, first.said()
        assert first.processes() == set()
        assert not (folder / "cluster.json").exists(), "it names processes that are gone"
        for broker in ("b1", "b2", "b3"):
            assert json.loads((folder / broker / "broker.json").read_text())["clean"] is True
            assert "Traceback" not in (folder / f"{broker}.log").read_text()

    wrong = tidelog_command("up", "--port", "0", "--nodes", "1", "--data-dir", str(folder))
    assert_refused(wrong, str(folder), "has the configurations of 3 nodes (b1.toml, …), not 1", "--nodes 3")

    with up(folder) as second:
        again = second.wait_ready()
        assert [b["raft"] for b in again["brokers"]] == [b["raft"] for b in printed["brokers"]]
        asyncio.run(read_back(again["nats_url"]))
        assert second.interrupt() == 0


def test_what_happens_is_recorded_where_that_is_asked_for(tmp_path: Path) -> None:
    with up(tmp_path / "cluster", "--nodes", "1", "--activity") as running:
        url = running.wait_ready()["nats_url"]
        assert tidelog_command("stream", "create", "s", "--replication-factor", "1", "--server", url).returncode == 0
        activity = ("activity", "--stream", "s", "--json", "--server", url)
        wait_until(lambda: '"stream_created"' in tidelog_command(*activity).stdout, "the event")
        assert running.interrupt() == 0, running.said()


def test_kill_9_leaves_no_orphan_and_the_next_start_recovers(tmp_path: Path) -> None:
    with up(tmp_path / "cluster") as first:
        asyncio.run(publish(first.wait_ready()["nats_url"], 3))
        assert len(first.processes()) == 4, "nats-server and three brokers"
        first.process.kill()
        first.process.wait()
        wait_until(lambda: not first.processes(), "the end of the brokers and of nats-server")
    with up(tmp_path / "cluster") as second:
        asyncio.run(read_back(second.wait_ready()["nats_url"]))
        assert second.interrupt() == 0


def test_a_killed_broker_comes_back_after_the_time_that_was_asked_for(tmp_path: Path) -> None:
    """With two nodes: one voter and one observer."""
    with up(tmp_path / "cluster", "--nodes", "2", "--restart-after", "0.3") as running:
        printed = running.wait_ready()
        assert [broker["raft"] is not None for broker in printed["brokers"]] == [True, False]
        asyncio.run(publish(printed["nats_url"], 2))
        for index, broker in enumerate(printed["brokers"]):
            killed_at = time.monotonic()
            os.kill(broker["pid"], signal.SIGKILL)
            ready = running.folder / broker["id"] / "ready"

            def is_back(index: int = index, ready: Path = ready, before: int = broker["pid"]) -> bool:
                pid = running.document["brokers"][index]["pid"]
                return pid != before and ready.is_file() and ready.read_text().strip() == str(pid)

            wait_until(is_back, f"the return of {broker['id']}")
            assert time.monotonic() - killed_at >= 0.3
            assert f"{broker['id']} was killed by signal 9" in running.said()
        asyncio.run(read_back(printed["nats_url"]))
        assert running.interrupt() == 0


def nats_pid(running: Up) -> int:
    (pid,) = [
        pid for pid in running.processes() if b"nats-server" in (Path("/proc") / str(pid) / "cmdline").read_bytes()
    ]
    return pid


def test_a_killed_nats_server_is_started_again_and_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    with up(tmp_path / "cluster") as running:
        printed = running.wait_ready()
        brokers = {broker["id"]: broker["pid"] for broker in printed["brokers"]}
        data_dirs = {broker["id"]: Path(broker["data_dir"]) for broker in printed["brokers"]}

        async def kill_nats(ledger: Ledger, kills: int) -> None:
            acknowledged, pid = len(ledger.acked), nats_pid(running)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: running.said().count("nats-server runs again") == kills, "the start")
            assert nats_pid(running) != pid
            began = time.monotonic()
            await until(lambda: len(ledger.acked) >= acknowledged + 500, "acknowledgements")
            await until(lambda: all(ledger.is_acked_after(began, partition) for partition in (0, 1)))

        async def main() -> None:
            url = printed["nats_url"]
            async with await tidelog.connect(url) as client:
                await client.create_stream("kept", partitions=2, replication_factor=3)
            async with acked_load(url, "kept", partitions=2) as ledger:
                for kills in (1, 2):
                    await asyncio.sleep(1.0)
                    await kill_nats(ledger, kills)
            await wait_in_sync(url, "kept")
            await assert_nothing_lost(url, ledger, data_dirs)

        asyncio.run(main())
        assert "nats-server was killed by signal 9" in running.said()
        assert {broker["id"]: broker["pid"] for broker in running.document["brokers"]} == brokers, "none was restarted"
        assert running.interrupt() == 0, running.said()
        for broker in brokers:
            assert "Traceback" not in (running.folder / f"{broker}.log").read_text()


def test_a_nats_server_that_dies_before_the_brokers_are_ready_is_waited_for(tmp_path: Path) -> None:
    def nats_pid() -> int:
        own = os.fsencode(tmp_path / "cluster" / "nats" / "nats-server.conf")
        return next((pid for pid in running.processes() if own in Path(f"/proc/{pid}/cmdline").read_bytes()), 0)

    with up(tmp_path / "cluster", "--nodes", "1") as running:
        log = running.folder / "b1.log"
        wait_until(log.exists, "the first broker")
        killed = 0

        def broker_waits() -> bool:
            nonlocal killed
            if nats_pid() not in (0, killed):  # from the second time on it is started again after a pause
                killed = nats_pid()
                os.kill(killed, signal.SIGKILL)
            said = log.read_text()
            return "waits for NATS" in said or "the connection to NATS was lost" in said

        wait_until(broker_waits, "a broker that is without NATS as it starts")
        running.wait_ready()
        assert "nats-server was killed by signal 9" in running.said()
        assert running.interrupt() == 0, running.said()


def test_two_dead_brokers_of_three_are_not_told_as_none(tmp_path: Path) -> None:
    with up(tmp_path / "cluster") as running:
        printed = running.wait_ready()
        for broker in printed["brokers"][:2]:
            os.kill(broker["pid"], signal.SIGKILL)
        wait_until(lambda: running.said().count("was killed by signal 9") == 2, "the word of both ends")
        status = ("cluster", "status", "--server", printed["nats_url"])
        # If b3 is the controller, it answers until it has heard no majority for an election's time.
        wait_until(lambda: tidelog_command(*status).returncode != 0, "the end of the last controller")
        assert_refused(
            tidelog_command(*status), "has no controller: only b3 is connected", "a majority of the voters must run"
        )
        assert running.interrupt() == 0


def test_a_nats_server_whose_port_was_taken_meanwhile_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.server.devcluster.NATS_GIVE_UP", 0.5)
    said: list[str] = []
    with EmbeddedNatsServer(store_dir=tmp_path / "nats") as server, socket.socket() as thief:
        keeper = NatsKeeper(server, said.append)
        pid = server.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not server.is_running, "the end of nats-server")
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        thief.bind((HOST, server.port))
        thief.listen()

        def look_forever() -> None:
            while True:
                keeper.look()
                time.sleep(0.05)

        with pytest.raises(TidelogError, match=rf"cannot be started again.*port {server.port} on .* is taken"):
            look_forever()
    assert any("does not start, trying again" in line for line in said)


def test_without_it_a_killed_broker_stays_dead_until_it_is_started_by_hand(tmp_path: Path) -> None:
    """With one node, by the command that `tidelog up --help` names."""
    with up(tmp_path / "cluster", "--nodes", "1") as running:
        (broker,) = running.wait_ready()["brokers"]
        asyncio.run(publish(running.url, 1))
        os.kill(broker["pid"], signal.SIGKILL)
        wait_until(lambda: "b1 was killed by signal 9" in running.said(), "the word of the end of b1")
        assert running.process.poll() is None
        with (tmp_path / "by-hand.log").open("w") as log:
            by_hand = start_tidelog("server", "--config", broker["config"], stderr=log)
        try:
            asyncio.run(read_back(running.url))
        finally:
            by_hand.terminate()
            assert by_hand.wait(STOP_TIMEOUT) == 0
        assert running.interrupt() == 0
