"""One member of a consumer group, as a process that others kill, stop and start.

    python -m tests.integration.groups.group_member --server URL --stream STREAM --group GROUP --journal FILE

It writes a journal, a line of JSON for each thing that happens, at once and before anything else is done:

    {"at", "kind": "read", "generation", "partition", "first", "next", "values"}    records that were handed out
    {"at", "kind": "assigned" | "revoked" | "lost", "partitions"}
    {"at", "kind": "committed", "positions"}                                        an acknowledged commit

`at` is CLOCK_MONOTONIC in seconds, which all processes of a machine share. SIGTERM ends it in good order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tidelog

MOST_RECORDS = 500
"""Between two commits, about; a member works on them for PAUSE."""
PAUSE = 0.01


def name_of(value: bytes | None) -> str:
    """Sender and number, without the filling: see `tests.integration.rig.workload`."""
    return ":".join((value or b"").decode().split(":")[:2])


class Journal:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, kind: str, **facts: Any) -> None:
        os.write(self._file, json.dumps({"at": time.monotonic(), "kind": kind, **facts}).encode() + b"\n")


def hear_partitions(journal: Journal, kind: str) -> Callable[[Iterable[tuple[str, int]]], None]:
    """A listener of a subscription to one stream."""
    return lambda partitions: journal.write(kind, partitions=sorted(partition for _, partition in partitions))


async def work(options: argparse.Namespace) -> None:
    journal = Journal(options.journal)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async with (
        await tidelog.connect(options.server) as client,
        client.subscribe(
            [options.stream],
            group=options.group,
            start="earliest",
            auto_commit=False,
            session_timeout=options.session,
            instance_id=options.instance or None,
            on_assigned=hear_partitions(journal, "assigned"),
            on_revoked=hear_partitions(journal, "revoked"),
            on_lost=hear_partitions(journal, "lost"),
        ) as consumer,
    ):
        while not stop.is_set():
            positions: dict[int, int] = {}
            count, wait = 0, 0.2
            while count < MOST_RECORDS and (records := await consumer.getmany(MOST_RECORDS, timeout=wait)):
                count, wait = count + len(records), 0.0
                positions[records[0].partition] = records[-1].offset + 1
                journal.write(
                    "read",
                    generation=consumer.generation,
                    partition=records[0].partition,
                    first=records[0].offset,
                    next=records[-1].offset + 1,
                    values=[name_of(record.value) for record in records],
                )
            if not positions:
                continue
            await asyncio.sleep(PAUSE)
            try:
                await consumer.commit({(options.stream, partition): at for partition, at in positions.items()})
            except tidelog.TidelogError as error:
                journal.write("not committed", error=str(error))
            else:
                journal.write("committed", positions=positions)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--session", type=float, default=4.0, help="session timeout, seconds")
    parser.add_argument("--instance", default="", help="instance id of a static member")
    asyncio.run(work(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
