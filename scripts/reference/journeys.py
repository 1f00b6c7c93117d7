"""Count the files of the product that take part in three journeys, on real processes.

Usage: python -m scripts.reference.journeys [--files]

    send      from `Producer.send` of one record to its receipt, acks=all, three replicas
    fetch     a member of a group takes the next record and commits its offset
    alter     `alter --partitions 6` of a stream with 3, until all its new partitions have a leader

A file takes part if a function of it is called during the journey, in the client or in a broker, and not during as
long a time in which nothing is asked.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType

import tidelog
from scripts.reference.code_report import PRODUCT, ROOT
from tidelog.server.devcluster import DevCluster

FOLDERS = tuple(f"{ROOT / package}{os.sep}" for package in PRODUCT)
WARM_UP_S = 6.0
"""Elections and registrations are over by then."""


class Recorder:
    """Collects the files of functions that are called, in all threads of this process, while it is on."""

    def __init__(self) -> None:
        self.is_on = False
        self.files: set[str] = set()
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def _hook(self, frame: FrameType, event: str, _: object) -> None:
        if self.is_on and event == "call" and frame.f_code.co_filename.startswith(FOLDERS):
            self.files.add(frame.f_code.co_filename)


def run_broker(arguments: list[str]) -> None:
    """Runs one broker. SIGUSR1 empties the record and begins; SIGUSR2 ends it and writes it to `PID.files`."""
    recorder, folder = Recorder(), Path(arguments[0])

    def begin(*_: object) -> None:
        recorder.files.clear()
        recorder.is_on = True

    def end(*_: object) -> None:
        recorder.is_on = False
        written = folder / f"{os.getpid()}.new"
        written.write_text(json.dumps(sorted(recorder.files)), encoding="utf-8")
        written.rename(folder / f"{os.getpid()}.files")

    signal.signal(signal.SIGUSR1, begin)
    signal.signal(signal.SIGUSR2, end)
    from tidelog.cli import main as command_line

    sys.argv = ["tidelog", "server", *arguments[1:]]
    command_line()


class Journeys:
    def __init__(self, folder: Path, pids: list[int]) -> None:
        self._folder = folder
        self._pids = pids
        self._recorder = Recorder()

    async def files_of(self, journey: Callable[[], Awaitable[object]]) -> set[str]:
        """Returns the files that take part in `journey` and not in a wait of the same length."""
        began = time.monotonic()
        busy = await self._record(journey)
        length = time.monotonic() - began
        idle: set[str] = set()
        for _ in range(3):
            idle |= await self._record(lambda: asyncio.sleep(length))
        return busy - idle

    async def _record(self, journey: Callable[[], Awaitable[object]]) -> set[str]:
        self._recorder.files.clear()
        self._signal(signal.SIGUSR1)
        await asyncio.sleep(0.05)
        self._recorder.is_on = True
        await journey()
        self._recorder.is_on = False
        self._signal(signal.SIGUSR2)
        files = set(self._recorder.files)
        for pid in self._pids:
            written = self._folder / f"{pid}.files"
            while not written.exists():  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
            files |= set(json.loads(written.read_text(encoding="utf-8")))
            written.unlink()
        return files

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            os.kill(pid, number)


async def take_one(member: tidelog.GroupConsumer[bytes, bytes]) -> None:
    async for _ in member:
        return
    raise AssertionError("the member has left")


async def travel(nats_url: str, folder: Path, pids: list[int]) -> dict[str, set[str]]:
    journeys = Journeys(folder, pids)
    async with await tidelog.connect(nats_url) as client:
        await client.create_stream("s", partitions=3, replication_factor=3)
        async with client.producer("s") as producer, client.subscribe("s", group="g") as member:
            await producer.send(b"first")
            await take_one(member)
            await member.commit()
            await asyncio.sleep(WARM_UP_S)

            async def send() -> None:
                await producer.send(b"second")

            async def fetch() -> None:
                await take_one(member)
                await member.commit()

            async def alter() -> None:
                await client.repartition("s", 6)

            return {
                "send": await journeys.files_of(send),
                "fetch": await journeys.files_of(fetch),
                "alter": await journeys.files_of(alter),
            }


def main() -> None:
    if sys.argv[1:2] == ["--broker"]:
        run_broker(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", action="store_true", help="name the files, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidelog-journeys-") as name:
        folder = Path(name)
        command = ["-m", "scripts.reference.journeys", "--broker", str(folder)]
        with DevCluster(folder / "cluster", nodes=3, port=0, server_command=command) as cluster:
            cluster.wait_ready()
            pids = [broker["pid"] for broker in json.loads((folder / "cluster/cluster.json").read_text())["brokers"]]
            found = asyncio.run(travel(cluster.nats_url, folder, pids))
    for journey, files in found.items():
        print(f"{journey}: {len(files)} files")
        if options.files:
            print("\n".join(f"  {Path(file).relative_to(ROOT)}" for file in sorted(files)))


if __name__ == "__main__":
    main()
