"""Throw hostile messages at a development cluster under acked load, then look for any harm.

    scripts/fuzz --messages 1000000                      as many, or --seconds, whichever comes first
    scripts/fuzz --seed 7 --corpus FILE                  replays a run: the same messages in the same order
    scripts/fuzz --about __groups                        only on subjects with that text
    scripts/fuzz --stored 20000                          appends of every kind, read in every form (fuzz_stored.py)

Messages that a plain NATS client captured (corpus.jsonl of a folder that is kept) are repeated, changed, cut, mixed
with others, published to other subjects and with other replies, beside random ones: on all subjects of the data plane,
of the brokers, of the controller and of the API. Raft's ports get bytes, too, and the ports of Liftbridge's clients get
calls (`scripts/faults/fuzz_grpc.py`), --grpc-calls at least. What NATS carries for a user who may
write is left out: publishes to the ledger's stream, and API requests that change anything but the stream `fuzzed`. So
are clients' inboxes, which nothing but permissions protects.

The run passes if all brokers live, no log shows a traceback, memory, threads, files and tasks stay bounded, no
partition is offline, and every acknowledged record of the ledger is there, once, in order, the same on all replicas.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import random
import re
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsClient

import tidelog
from scripts.faults.fuzz_grpc import GrpcFuzz
from scripts.faults.fuzz_stored import StoredFuzz
from scripts.faults.verdict import judge
from tests.integration.rig.dev_cluster import assert_logs_without
from tests.integration.rig.workload import acked_load, check, wait_in_sync
from tidelog.server.devcluster import DevCluster
from wire.operations.api_operations import OPERATIONS, BrokerStatus
from wire.subjects import DEFAULT_NAMESPACE

LEDGER, FUZZED = "ledger", "fuzzed"
LIFTBRIDGE_PORT = 19292
CAPTURE_SECONDS = 3.0
KEPT_OF_A_KIND = 40
"""Captured messages whose subjects differ in random names and numbers only."""
BURST = 200
"""Messages between two flushes."""
MOST_GROWTH_MIB = 512
MOST_THREADS, MOST_FILES, MOST_TASKS = 40, 400, 100
"""More than at the begin."""
_OF_ONE_MESSAGE = re.compile(r"[A-Za-z0-9_-]{20,}|[0-9]+")
"""Parts of a subject by which messages of one kind differ: random names, numbers."""
_EXTREMES = (b"\xff" * 9 + b"\x01", b"\xff\xff\xff\xff\x0f", b"\x80" * 9 + b"\x01", b"\0" * 8, b"\xff" * 8, b"\x7f")
"""Varints and integers at their ends."""
_ACTED_UPON = (
    "Nats-Msg-Id", "Nats-Expected-Stream", "Nats-Expected-Last-Sequence", "Nats-Expected-Last-Msg-Id", "Nats-Rollup",
    "Nats-Expected-Last-Subject-Sequence", "Nats-Expected-Last-Subject-Sequence-Subject", "Nats-TTL", "Nats-Incr",
    "Nats-Batch-Id", "Nats-Schedule", "Nats-Stream-Source", "Nats-",
)  # fmt: skip
"""Headers of bare publishes that a leader looks into, and one that has no name."""
_HEADER_VALUES = ("", "0", "1", "-1", "9" * 30, "x" * 3000, "all", "1h", "é", FUZZED, "\x7f")


@dataclass(frozen=True, slots=True)
class Shot:
    subject: str
    data: bytes
    reply: str = ""
    headers: dict[str, str] | None = None


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to go on at most (default 60)")
    parser.add_argument("--messages", type=int, default=1 << 60, help="how many at most")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="replays a run's choices")
    parser.add_argument("--corpus", type=Path, help="captured messages of an earlier run")
    parser.add_argument("--about", default="", metavar="TEXT", help="only messages on subjects that have TEXT")
    parser.add_argument("--grpc-calls", type=int, default=0, help="go on until so many calls were made as well")
    parser.add_argument(
        "--stored", type=int, default=0, metavar="N", help="instead: N appends of every kind, read in every form"
    )
    parser.add_argument("--keep", action="store_true", help="keep the data folder and the logs")
    return parser.parse_args(given)


class Generator:
    """The messages of one seed, made of a corpus."""

    def __init__(self, seed: int, corpus: list[Shot]) -> None:
        self._rng = random.Random(seed)
        kinds: dict[str, list[Shot]] = defaultdict(list)
        for shot in corpus:
            kinds[_kind(shot.subject)].append(shot)
        self._kinds = [shots for _, shots in sorted(kinds.items())]
        self._replies = ["", FUZZED, f"_INBOX.{'x' * 22}.1", "$SYS.x", *(shot.reply for shot in corpus)]

    def shots(self) -> Iterator[Shot]:
        kinds = (self._random, self._changed, self._repeated, self._crossed, self._spliced, self._headed)
        while True:
            shot = self._rng.choice(kinds)()
            if self._rng.random() < 0.3:
                reply = self._rng.choice([self._repeated().subject, self._rng.choice(self._replies)])
                shot = Shot(shot.subject, shot.data, reply, shot.headers)
            if may_be_sent(shot.subject):
                yield shot

    def _random(self) -> Shot:
        size = min(int(self._rng.expovariate(1 / 200)), 100_000)
        return Shot(self._repeated().subject, self._rng.randbytes(size))

    def _headed(self) -> Shot:
        """To a stream's subject, with headers that JetStream acts upon."""
        rng = self._rng
        names = rng.sample(_ACTED_UPON, rng.randint(1, 3))
        headers = {name: rng.choice((*_HEADER_VALUES, f"{rng.randrange(50)}")) for name in names}
        return Shot(FUZZED, rng.choice((b"plain", self._repeated().data)), rng.choice(self._replies), headers)

    def _repeated(self) -> Shot:
        return self._rng.choice(self._rng.choice(self._kinds))

    def _crossed(self) -> Shot:
        shot = self._repeated()
        return Shot(self._repeated().subject, shot.data, shot.reply, shot.headers)

    def _changed(self) -> Shot:
        shot, rng = self._repeated(), self._rng
        data = bytearray(shot.data)
        for _ in range(rng.randint(1, 4)):
            at = rng.randint(0, len(data))
            match rng.randrange(5):
                case 0 if data:
                    data[at % len(data)] ^= 1 << rng.randrange(8)
                case 1:
                    del data[at:]
                case 2:
                    data[at:at] = rng.choice(_EXTREMES)
                case 3:
                    extreme = rng.choice(_EXTREMES)
                    data[at : at + len(extreme)] = extreme
                case _:
                    data[at:at] = data[at : at + rng.randint(1, 64)] * rng.randint(1, 50)
        return Shot(shot.subject, bytes(data), shot.reply, shot.headers)

    def _spliced(self) -> Shot:
        one, other = self._repeated(), self._repeated()
        cut = self._rng.randint(0, len(one.data))
        return Shot(one.subject, one.data[:cut] + other.data[cut:], one.reply, other.headers)


def _kind(subject: str) -> str:
    return _OF_ONE_MESSAGE.sub("0", subject)


def may_be_sent(subject: str) -> bool:
    """Whether nobody may do harm by it: see the module."""
    if subject.startswith("_INBOX.") or subject in {LEDGER, f"{DEFAULT_NAMESPACE}.{LEDGER}.0.append"}:
        return False
    return not any(
        subject.startswith(f"{DEFAULT_NAMESPACE}.api.{operation.name}") and not subject.endswith(f".{FUZZED}")
        for operation in OPERATIONS.values()
        if operation.writes
    )


async def captured(url: str, client: tidelog.Client) -> list[Shot]:
    """What travels while all kinds of requests are made."""
    kinds: dict[str, list[Shot]] = defaultdict(list)

    async def on_message(message: Any) -> None:
        kept = kinds[_kind(message.subject)]
        if len(kept) < KEPT_OF_A_KIND:
            kept.append(Shot(message.subject, message.data, message.reply, message.headers))

    listener = await nats.connect(url)
    try:
        await listener.subscribe(">", cb=on_message)
        await listener.flush()
        end = time.monotonic() + CAPTURE_SECONDS
        async with client.producer(FUZZED) as producer, client.subscribe(FUZZED, group=FUZZED) as member:
            while time.monotonic() < end:
                await producer.send(b"value", key=b"key", headers={"a": b"b"})
                await producer.send(b"value", msg_id="1")
                await client.describe(FUZZED)
                await client.cluster_status()
                await client.alter_stream(FUZZED, config={"retention_max_bytes": 1_000_000_000})
                await client.streams()
                _ = [record async for record in client.consume(FUZZED, start="earliest", stop="latest")]
                await listener.publish(FUZZED, b"plain", reply=listener.new_inbox())
                await member.getmany(timeout=1)
                await member.commit()
                await client.describe_group(FUZZED)
    finally:
        await listener.close()
    return [shot for _, shots in sorted(kinds.items()) for shot in shots]


async def fire(connection: NatsClient, shots: Iterator[Shot], options: argparse.Namespace) -> int:
    """Returns how many were sent."""
    end, sent = time.monotonic() + options.seconds, 0
    while sent < options.messages and time.monotonic() < end:
        for _ in range(min(BURST, options.messages - sent)):
            shot = next(shots)
            sent += 1
            with contextlib.suppress(ValueError, nats.errors.Error):  # a subject, reply or header that NATS refuses
                await connection.publish(shot.subject, shot.data, reply=shot.reply or "", headers=shot.headers)
        await connection.flush(30)
    return sent


async def poke_raft(addresses: list[str], seed: int) -> None:
    """Bytes for Raft's ports, until it is cancelled."""
    rng = random.Random(seed)
    while True:
        host, _, port = rng.choice(addresses).rpartition(":")
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            begin = rng.choice((b"", b"TLRAFT01" + rng.randbytes(16), b"TLRAFT01"))
            writer.write(begin + rng.randbytes(rng.randrange(2000)))
            await asyncio.sleep(rng.random() * 0.05)
            writer.close()
        await asyncio.sleep(0.01)


@dataclass(frozen=True, slots=True)
class Usage:
    mib: int
    threads: int
    files: int
    tasks: int

    @classmethod
    def of(cls, broker: BrokerStatus, pid: int | None) -> Usage:
        if pid is None or broker["tasks"] is None:
            raise AssertionError(f"{broker['id']} has died")
        status = Path(f"/proc/{pid}/status").read_text()
        found = dict(line.split()[:2] for line in status.splitlines() if line.startswith(("VmRSS:", "Threads:")))
        files = len(list(Path(f"/proc/{pid}/fd").iterdir()))
        return cls(int(found["VmRSS:"]) >> 10, int(found["Threads:"]), files, broker["tasks"])


async def usage(client: tidelog.Client, cluster: DevCluster) -> dict[str, Usage]:
    """By broker."""
    status = await client.cluster_status()
    return {broker["id"]: Usage.of(broker, cluster.pid(broker["id"])) for broker in status["brokers"]}


async def fuzz(cluster: DevCluster, options: argparse.Namespace) -> bool:
    """Raises AssertionError for any harm but to the ledger, whose findings decide."""
    url = cluster.nats_url
    brokers = json.loads((cluster.data_dir / "cluster.json").read_text())["brokers"]
    async with await tidelog.connect(url) as client:
        for stream in (LEDGER, FUZZED):
            await client.create_stream(stream, replication_factor=3)
            await wait_in_sync(url, stream)
        async with acked_load(url, LEDGER, producers=1) as ledger:
            corpus = _read(options.corpus) if options.corpus else await captured(url, client)
            _write(cluster.data_dir / "corpus.jsonl", corpus)
            before = await usage(client, cluster)
            stranger = await nats.connect(url)
            poking = asyncio.create_task(poke_raft([broker["raft"] for broker in brokers], options.seed))
            grpc = GrpcFuzz([address for each in brokers if (address := each.get("liftbridge"))], options.seed)
            calling = asyncio.create_task(grpc.run())
            try:
                aimed = [shot for shot in corpus if options.about in shot.subject]
                sent = await fire(stranger, Generator(options.seed, aimed).shots(), options)
                while grpc.sent < options.grpc_calls:
                    assert not calling.done(), calling
                    await asyncio.sleep(0.1)
            finally:
                poking.cancel()
                calling.cancel()
                await asyncio.gather(calling, return_exceptions=True)
                await grpc.close()
                await stranger.close()
        print(f"{sent} messages, made of {len(aimed)} captured ones; {grpc.sent} calls of gRPC: {dict(grpc.statuses)}")
        findings = await check(url, ledger, cluster.data_dirs, timeout=60.0)
        after = await usage(client, cluster)
        for broker, used in after.items():
            known = before[broker]
            print(f"{broker}: {known} before, {used} after")
            assert used.mib - known.mib < MOST_GROWTH_MIB, f"{broker} has grown from {known} to {used}"
            assert used.threads - known.threads < MOST_THREADS, f"{broker} has grown from {known} to {used}"
            assert used.files - known.files < MOST_FILES, f"{broker} has grown from {known} to {used}"
            assert used.tasks - known.tasks < MOST_TASKS, f"{broker} has grown from {known} to {used}"
        status = await client.cluster_status()
        counted = dict.fromkeys(sorted(status["brokers"][0]["counters"] or {}), 0)
        for known_broker in status["brokers"]:
            for name, count in (known_broker["counters"] or {}).items():
                counted[name] = counted.get(name, 0) + count
        print(", ".join(f"{name} {count}" for name, count in counted.items() if count))
        assert status["offline_partitions"] == 0, status["offline"]
    assert_logs_without(cluster, "Traceback", "met a bug")
    print(findings)
    return findings.ok


def _write(path: Path, corpus: list[Shot]) -> None:
    with path.open("w") as file:
        for shot in corpus:
            data = base64.b64encode(shot.data).decode()
            file.write(json.dumps([shot.subject, data, shot.reply, shot.headers]) + "\n")


def _read(path: Path) -> list[Shot]:
    return [
        Shot(subject, base64.b64decode(data), reply, headers)
        for subject, data, reply, headers in map(json.loads, path.read_text().splitlines())
    ]


def main() -> int:
    options = arguments()

    def check_in(folder: Path) -> bool:
        with DevCluster(folder / "cluster", nodes=3, port=0, liftbridge_port=LIFTBRIDGE_PORT) as cluster:
            cluster.wait_ready(60)
            if options.stored:
                return asyncio.run(StoredFuzz(cluster, options.seed).run(options.stored))
            return asyncio.run(fuzz(cluster, options))

    return judge("fuzz", options, check_in)


if __name__ == "__main__":
    sys.exit(main())
