"""Acked load on a real cluster, and the checks afterwards.

Every value that is sent is unique and names its sender and its place in that sender's order. The ledger knows the
acknowledged values and their places; afterwards everything is read back and compared:

    lost        acknowledged, and not at the place that the acknowledgement named
    repeated    one value at two places
    reordered   values of one sender and partition in another order than sent
    phantom     never sent
    diverging   replicas whose batches differ below the high watermark, byte for byte
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import tidelog
from tidelog.nats.nats_connection import NatsConnection
from wire.batch import iter_batches
from wire.errors import CorruptData

IN_FLIGHT = 200
"""Records that each sender has out at once."""
PAUSE = 0.002
"""Seconds between bursts of a sender: load enough to matter, with the machine left to the brokers."""


@dataclass(slots=True)
class Ledger:
    stream: str
    sent: set[bytes] = field(default_factory=set)
    acked: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    """value -> (partition, offset)"""
    unknown: int = 0
    ack_times: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    """partition -> monotonic times of acknowledgements, in order"""

    def acknowledge(self, value: bytes, partition: int, offset: int) -> None:
        self.acked[value] = (partition, offset)
        self.ack_times[partition].append(time.monotonic())

    def is_acked_after(self, moment: float, partition: int = 0) -> bool:
        times = self.ack_times[partition]
        return bool(times) and times[-1] >= moment

    def gap_after(self, partition: int, moment: float) -> float | None:
        """Seconds from `moment` to the first acknowledgement of the partition after a pause that covers it; None when
        there was none yet. Acknowledgements that were on their way at `moment` do not count as the end of the gap."""
        times = [t for t in self.ack_times[partition] if t >= moment - 1.0]
        if not times or times[-1] < moment:
            return None
        best = 0.0
        for before, after in pairwise(times):
            if after > moment:
                best = max(best, after - max(before, moment))
        return best or times[-1] - moment


@dataclass(frozen=True, slots=True)
class Findings:
    acknowledged: int
    stored: int
    lost: list[str]
    repeated: list[str]
    reordered: list[str]
    phantom: list[str]
    diverging: list[str]

    @property
    def ok(self) -> bool:
        return not (self.lost or self.repeated or self.reordered or self.phantom or self.diverging)

    def __str__(self) -> str:
        parts = [f"{self.acknowledged} acknowledged, {self.stored} stored"]
        for name in ("lost", "repeated", "reordered", "phantom", "diverging"):
            found = getattr(self, name)
            parts.append(f"{len(found)} {name}" + (f" ({'; '.join(found[:3])})" if found else ""))
        return ", ".join(parts)


@contextlib.asynccontextmanager
async def acked_load(
    url: str,
    stream: str,
    *,
    producers: int = 3,
    bare: bool = True,
    partitions: int = 1,
    pause: float = PAUSE,
) -> AsyncIterator[Ledger]:
    """Publish acknowledged records until the block ends; then wait for the open ones. `bare`: one more sender is a
    plain NATS client that publishes requests, and never sends anything twice. `pause`: see PAUSE."""
    ledger = Ledger(stream)
    stop = asyncio.Event()
    async with await tidelog.connect(url) as client:
        senders = [asyncio.create_task(_produce(client, ledger, stop, f"p{i}", pause)) for i in range(producers)]
        if bare:
            senders.append(asyncio.create_task(_request(url, ledger, stop, stream, partitions)))
        try:
            yield ledger
        finally:
            stop.set()
            for outcome in await asyncio.gather(*senders, return_exceptions=True):
                if isinstance(outcome, BaseException):
                    raise outcome


async def _produce(client: Any, ledger: Ledger, stop: asyncio.Event, name: str, pause: float) -> None:
    number = 0
    out: set[asyncio.Future[Any]] = set()

    def done(future: asyncio.Future[Any], value: bytes) -> None:
        out.discard(future)
        if future.cancelled() or future.exception() is not None:
            ledger.unknown += 1
        else:
            receipt = future.result()
            ledger.acknowledge(value, receipt.partition, receipt.offset)

    async with client.producer(ledger.stream, acks="all", delivery_timeout_ms=60_000) as producer:
        while not stop.is_set():
            while len(out) < IN_FLIGHT and not stop.is_set():
                number += 1
                value = b"%s:%d:%s" % (name.encode(), number, b"x" * (number % 200))
                ledger.sent.add(value)
                future = producer.send_nowait(value, key=b"%s-%d" % (name.encode(), number % 16))
                out.add(future)
                future.add_done_callback(lambda f, v=value: done(f, v))
                if number % 20 == 0:
                    break
            await asyncio.sleep(pause)
        if out:
            await asyncio.wait(set(out), timeout=60)


async def _request(url: str, ledger: Ledger, stop: asyncio.Event, subject: str, partitions: int) -> None:
    import json

    connection = await NatsConnection.connect(url, name="bare load")
    number = 0

    async def one(number: int) -> None:
        partition = number % partitions
        value = b"bare%d:%d:" % (number % 8, number)
        ledger.sent.add(value)
        try:
            answer = await connection.request(subject if partition == 0 else f"{subject}.{partition}", value, timeout=5)
        except TimeoutError:
            ledger.unknown += 1
            return
        if answer.status is not None:
            ledger.sent.discard(value)  # no broker listened: it is not stored
            return
        said = json.loads(answer.data)
        if "error" in said:
            ledger.unknown += 1
            return
        assert said["seq"] == said["offset"] + 1
        ledger.acknowledge(value, said["partition"], said["offset"])

    running: set[asyncio.Task[None]] = set()
    while not stop.is_set():
        while len(running) < 8:
            number += 1
            task = asyncio.create_task(one(number))
            running.add(task)
            task.add_done_callback(running.discard)
        await asyncio.sleep(0.005)
    if running:
        await asyncio.wait(running)
    await connection.close()


async def read_back(url: str, ledger: Ledger) -> dict[tuple[int, int], bytes]:
    """(partition, offset) -> value, of everything committed."""
    stored: dict[tuple[int, int], bytes] = {}
    async with await tidelog.connect(url) as client:
        async for batch in client.consume(ledger.stream, start="earliest", stop="latest").batches():
            for offset, value in zip(batch.offsets, batch.values, strict=True):
                place = (batch.partition, int(offset))
                assert place not in stored, f"offset {place} was delivered twice"
                stored[place] = value or b""
    return stored


async def check(url: str, ledger: Ledger, data_dirs: dict[str, Path], *, timeout: float = 60.0) -> Findings:
    """Wait until all replicas are in sync and at the same end, read everything back, and compare."""
    description = await wait_in_sync(url, ledger.stream, timeout=timeout)
    stored = await read_back(url, ledger)
    lost = [
        f"{value[:40]!r} acknowledged at {place}, found {stored.get(place, b'nothing')[:40]!r}"
        for value, place in ledger.acked.items()
        if stored.get(place) != value
    ]
    seen: dict[bytes, tuple[int, int]] = {}
    repeated = []
    for place, value in stored.items():
        if value in seen:
            repeated.append(f"{value[:40]!r} at {seen[value]} and {place}")
        seen[value] = place
    last: dict[tuple[bytes, int], int] = {}
    reordered = []
    for (partition, offset), value in sorted(stored.items()):
        sender, number, _ = value.split(b":", 2)
        if sender.startswith(b"bare"):
            continue  # requests of their own, all out at once: no order is promised
        if int(number) < last.get((sender, partition), 0):
            reordered.append(f"{value[:40]!r} at {(partition, offset)} after {last[sender, partition]}")
        last[sender, partition] = int(number)
    phantom = [f"{value[:40]!r} at {place}" for place, value in stored.items() if value not in ledger.sent]
    return Findings(
        len(ledger.acked), len(stored), lost, repeated, reordered, phantom, diverging(description, data_dirs)
    )


async def assert_nothing_lost(url: str, ledger: Ledger, data_dirs: dict[str, Path]) -> Findings:
    """`check`, with an AssertionError unless all is well; the findings are printed."""
    findings = await check(url, ledger, data_dirs)
    print(f"\n{findings}")
    assert findings.ok, findings
    return findings


async def wait_in_isr(client: tidelog.Client, stream: str, factor: int, *, timeout: float) -> None:
    """The next kill finds every replica in sync: a second broker lost meanwhile would only stop all writes."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            description = await client.describe(stream)
        except tidelog.TidelogError as error:
            if time.monotonic() > deadline:
                raise
            print(f"         {error}", flush=True)
            continue
        if all(len(p["isr"]) == min(factor, 3) for p in description["partitions"]):
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"not all replicas are back in the ISR after {timeout:.0f} s: {description}")
        await asyncio.sleep(0.05)


async def nothing_moves(client: tidelog.Client) -> bool:
    """Whether no partition is about to get other replicas."""
    return (await client.moves())["total"] == 0


async def wait_in_sync(url: str, stream: str, *, timeout: float = 60.0) -> dict[str, Any]:
    """Until every replica of every partition is in the ISR and at the leader's end, all of it committed.

    There may be no controller at first, because brokers were just started.
    """
    deadline = time.monotonic() + timeout
    async with await tidelog.connect(url, api_timeout=timeout) as client:
        while True:
            description: dict[str, Any] = dict(await client.describe(stream))
            behind = [p for p in description["partitions"] if not _is_in_sync(p)]
            if not behind:
                return description
            if time.monotonic() > deadline:
                raise AssertionError(f"not in sync after {timeout} s: {behind[0]}")
            await asyncio.sleep(0.05)


def _is_in_sync(partition: dict[str, Any]) -> bool:
    end = partition["log_end_offset"]
    return (
        end is not None
        and sorted(partition["isr"]) == sorted(partition["replicas"])
        and partition["high_watermark"] == end - 1
        and all(p["log_end_offset"] == end for p in partition["replicas_progress"].values())
    )


def diverging(description: dict[str, Any], data_dirs: dict[str, Path]) -> list[str]:
    """Replicas whose logs differ below the HW, byte for byte."""
    out = []
    for partition in description["partitions"]:
        name = f"{description['name']}-{description['incarnation']}/{partition['partition']}-{partition['incarnation']}"
        end = partition["high_watermark"] + 1
        copies = {broker: committed_bytes(data_dirs[broker] / name, end) for broker in partition["replicas"]}
        first = copies[partition["replicas"][0]]
        out += [
            f"partition {partition['partition']}: {broker} has {len(copy)} bytes,"
            f" {partition['replicas'][0]} {len(first)}"
            for broker, copy in copies.items()
            if copy != first
        ]
    return out


def committed_bytes(directory: Path, end: int) -> bytes:
    """Whole batches below offset `end`, as they lie in the segments."""
    parts = []
    for segment in sorted(directory.glob("*.log")):
        data = segment.read_bytes()
        with contextlib.suppress(CorruptData):  # space allocated ahead, or a batch that is being written
            for at, header in iter_batches(data):
                if header.end_offset > end:
                    break
                parts.append(data[at : at + header.size])
    return b"".join(parts)
