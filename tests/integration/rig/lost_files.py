"""What a loss of files costs, with real processes: all brokers are killed, and one of them comes back without some of
its files, with empty ones, or with those that it had some time before.

RF 3, `durable`, min_isr 2: the two others hold every record that was acknowledged. So none may be missing afterwards,
whichever broker is started first, and the one that was harmed comes back into the ISR by itself. What is put back is
older than the last checkpoint; of a younger copy the broker itself does not know (docs/storage.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import tidelog
from dataplane.log.storage.data_dir import COPY_FILE, IDENTITY_FILE
from dataplane.log.storage.files import REAL_FILES
from dataplane.log.storage.manifest import read_manifest
from tests.integration.rig.waiting import until
from tidelog.server.devcluster import DevCluster

PARTS = ("partition", "stream", "broker.json", "raft")
HARMED = "b2"
RECORDS = 1000
LIMIT = 60.0
"""Seconds until the cluster is whole again: a voter without a journal is introduced first."""


class Harm(NamedTuple):
    how: str
    part: str
    first: str
    """The broker that is started before the others."""

    def __str__(self) -> str:
        return f"{self.part} {self.how}, {self.first} starts first"


def all_harms(brokers: Sequence[str]) -> Iterator[Harm]:
    return (Harm(*each) for each in product(("missing", "emptied", "older"), PARTS, brokers))


async def records_lost(cluster: DevCluster, harm: Harm, stream: str, copies: Path) -> list[int]:
    """Acknowledged records that are missing afterwards. `copies`: a folder for what is put back."""
    async with await tidelog.connect(cluster.nats_url) as client:
        await client.create_stream(stream, subject=stream, replication_factor=3, config={"min_isr": "2"})
        for half in (range(RECORDS // 2), range(RECORDS // 2, RECORDS)):
            async with client.producer(stream, acks="all") as producer:
                await producer.send_many([b"%d" % number for number in half])
            await until(lambda: _is_whole(client, stream), f"an ISR of three of {stream}", LIMIT)
            if harm.how == "older" and not copies.exists():
                for path in _harmed(cluster, harm, stream):
                    _copy(path, copies / path.name)
        if harm.how == "older":
            await until(lambda: _checkpointed(cluster, stream) == RECORDS, "the last checkpoint")
    for broker in cluster.broker_ids:
        cluster.kill(broker)
    for path in _harmed(cluster, harm, stream):
        _harm(path, harm.how, copies / path.name)
    before = _identity(cluster, harm.first)
    is_new_folder = (harm.how, harm.part) == ("missing", "broker.json")
    cluster.start_broker(harm.first, replace=is_new_folder and harm.first == HARMED)
    await until(lambda: _identity(cluster, harm.first) not in (before, b""), f"a new life of {harm.first}", LIMIT)
    for broker in cluster.broker_ids:
        cluster.start_broker(broker, replace=is_new_folder and broker == HARMED)
    cluster.wait_ready(LIMIT)
    async with await tidelog.connect(cluster.nats_url) as client:
        await until(lambda: _is_whole(client, stream), f"an ISR of three of {stream} after {harm}", LIMIT)
        async with client.consume(stream, stop="latest") as records:
            found = {int(record.value or b"-1") async for record in records}
        await client.delete_stream(stream)
    return [number for number in range(RECORDS) if number not in found]


async def _is_whole(client: Any, stream: str) -> bool:
    partitions = (await client.describe(stream))["partitions"]
    return all(p["leader"] is not None and len(p["isr"]) == 3 for p in partitions)


def _identity(cluster: DevCluster, broker: str) -> bytes:
    """It is written anew when a life of the broker begins."""
    path = cluster.data_dirs[broker] / IDENTITY_FILE
    return path.read_bytes() if path.exists() else b""


def _checkpointed(cluster: DevCluster, stream: str) -> int:
    entries = read_manifest(REAL_FILES, cluster.data_dirs[HARMED]) or {}
    return max((entry.high_watermark for name, entry in entries.items() if name.startswith(f"{stream}-")), default=0)


def _harmed(cluster: DevCluster, harm: Harm, stream: str) -> list[Path]:
    data = cluster.data_dirs[HARMED]
    match harm.part:
        case "raft":
            return [data / "raft"]
        case "broker.json" if harm.how == "emptied":
            return [data / IDENTITY_FILE]  # without the copy the broker does not start
        case "broker.json":
            return [data / IDENTITY_FILE, data / COPY_FILE]
        case part:
            (folder,) = data.glob(f"{stream}-*")
            return [folder] if part == "stream" else [*folder.iterdir()]


def _harm(path: Path, how: str, copy: Path) -> None:
    if how == "emptied":
        if path.is_file():
            path.write_bytes(b"")
        for file in [file for file in path.rglob("*") if file.is_file()]:
            file.unlink()
        return
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
    if how == "older":
        _copy(copy, path)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
