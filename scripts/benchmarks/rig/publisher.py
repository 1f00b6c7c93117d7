"""The publisher program of the benchmarks: pre-encoded protocol lines over bare sockets, the same for both systems.

    python -m scripts.benchmarks.rig.publisher < TASK     with TASK as one line of JSON, see `Task`

It encodes everything it will send, says "ready", waits for a line, sends, waits until the servers have taken all of it
(PING, PONG), and reports its result as one line of JSON, see `Sent`. Only the standard library is imported, and sending
a record costs a few hundred nanoseconds, so the servers are measured.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit

BLOCK_BYTES = 128 << 10
"""Of lines that leave in one write, about."""
PACE = 0.002
"""Seconds from one write to the next where the rate is limited."""
BODY_POOL = 4096
"""Different records that are made of one size; longer tasks repeat them."""
RECEIVE_BYTES = 1 << 20
STAMP = b"#" * 20
"""Where the time is written when a stamped record leaves: CLOCK_MONOTONIC, ns, as decimal digits."""
INBOX = "_INBOX.bench"
ANSWER = b"MSG _INBOX.bench."
REFUSALS = (b'"error"', b"NATS/1.0 503")
"""No longer than 32 bytes, as ANSWER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    targets: Sequence[tuple[str, str]]
    """(URL of the NATS server, subject) of each partition; records go to them in turn."""
    count: int
    size: int = 0
    """Of each record, bytes. Not used with `lines`."""
    lines: str | None = None
    """A file with one record per line."""
    headers: bool = False
    """Each record with NATS headers, three of them, one with a number of its own."""
    rate: float | None = None
    """Records/s; None: as fast as the servers take them."""
    stamped: bool = False
    """Each record begins with the time at which it left, see STAMP. With `rate` and `size`."""
    window: int | None = None
    """Each publish is a request; so many wait for their answers at most. None: plain publishes. Not with `rate`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    count: int
    bytes: int
    """Of the records themselves."""
    seconds: float
    cpu_seconds: float
    """Of the program, while it sent."""
    answered: int
    refused: int
    """Answers that were errors; they are in `answered` too."""

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class Publisher:
    """Runs the program. Use it with `async with`: inside, it has encoded everything and waits for `go`."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "scripts.benchmarks.rig.publisher",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            cwd=Path(__file__).parents[3],
        )
        await self._say(json.dumps(asdict(self._task)))
        await self._hear()
        return self

    async def go(self) -> Sent:
        """Send all of it. Raises RuntimeError when the program fails."""
        await self._say("go")
        return Sent(**json.loads(await self._hear()))

    async def __aexit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _say(self, text: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{text}\n".encode())
        await self._process.stdin.drain()

    async def _hear(self) -> str:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise RuntimeError("the publisher ended before its work was done; its words are above")
        return line.decode()


# ---- the program -------------------------------------------------------------------------------------------------


class Lines:
    """The records of a task, as the protocol lines of one connection."""

    def __init__(self, task: Task) -> None:
        self._task = task

    @cached_property
    def bodies(self) -> list[bytes]:
        if self._task.lines is not None:
            with Path(self._task.lines).open("rb") as file:
                return [line.rstrip(b"\n") for line, _ in zip(file, range(self._task.count), strict=False)]
        if self._task.stamped:
            return [STAMP.ljust(self._task.size, b".")]
        pool = min(BODY_POOL, self._task.count)
        return [b"%08x" % i * (self._task.size // 8) + b"." * (self._task.size % 8) for i in range(pool)]

    def encoded(self, subjects: Sequence[tuple[int, str]], reply: str | None) -> list[tuple[int, bytes]]:
        """(records, lines) in blocks, for the partitions of one connection, given with their numbers."""
        count, width = self._task.count, len(self._task.targets)
        heads = [(turn, subject.encode()) for turn, subject in subjects]
        most = self._records_of_block()
        blocks: list[tuple[int, bytes]] = []
        lines: list[bytes] = []
        size = 0
        for start in range(0, count, width):
            for turn, subject in heads:
                number = start + turn
                if number >= count:
                    break
                line = self._line(number, subject, reply)
                lines.append(line)
                size += len(line)
            if size >= BLOCK_BYTES or len(lines) >= most:
                blocks.append((len(lines), b"".join(lines)))
                lines, size = [], 0
        if lines:
            blocks.append((len(lines), b"".join(lines)))
        return blocks

    def _records_of_block(self) -> int:
        """At most, so that a limited rate is even and a window is not sent in one go."""
        if self._task.rate is not None:
            return max(1, int(self._task.rate * PACE))
        if self._task.window is not None:
            return max(1, self._task.window // 16)
        return self._task.count

    def _line(self, number: int, subject: bytes, reply: str | None) -> bytes:
        body = self.bodies[number % len(self.bodies)]
        inbox = b"" if reply is None else b" %s.%07d" % (reply.encode(), number)
        if not self._task.headers:
            return b"PUB %s%s %d\r\n%s\r\n" % (subject, inbox, len(body), body)
        head = (
            b"NATS/1.0\r\nSource: benchmark\r\nContent-Type: application/octet-stream\r\nNumber: %08d\r\n\r\n" % number
        )
        return b"HPUB %s%s %d %d\r\n%s%s\r\n" % (subject, inbox, len(head), len(head) + len(body), head, body)


class Connection:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.socket = socket.create_connection((parts.hostname, parts.port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.rest = b""
        self.socket.sendall(
            b'CONNECT {"verbose":false,"pedantic":false,"lang":"python","version":"0","protocol":1,"headers":true,'
            b'"no_responders":true}\r\n'
        )
        self.settle()

    def settle(self) -> None:
        """Until the server has taken everything that was sent."""
        self.socket.sendall(b"PING\r\n")
        received = b""
        while b"PONG\r\n" not in received:
            part = self.socket.recv(RECEIVE_BYTES)
            if not part:
                raise ConnectionError("the server closed the connection")
            if b"-ERR" in part:
                raise ConnectionError(part.decode(errors="replace"))
            received = received[-8:] + part


def publish(task: Task, blocks: Sequence[tuple[Connection, int, bytes]]) -> int:
    """Sends all blocks, at the task's rate if it has one. Returns the number of records."""
    began, sent = time.perf_counter(), 0
    for connection, records, lines in blocks:
        if task.rate is not None:
            wait = began + sent / task.rate - time.perf_counter()
            if wait > 0:
                time.sleep(wait)
        connection.socket.sendall(lines.replace(STAMP, b"%020d" % time.monotonic_ns()) if task.stamped else lines)
        sent += records
    for connection in {id(connection): connection for connection, _, _ in blocks}.values():
        connection.settle()
    return sent


def request(task: Task, blocks: Sequence[tuple[Connection, int, bytes]]) -> tuple[int, int]:
    """Sends requests with no more than `window` out at once. Returns (answers, error answers)."""
    assert task.window is not None
    connection = blocks[0][0]
    sent = answered = refused = 0
    tail = b""
    blocks_left = iter(blocks)
    waiting = next(blocks_left, None)
    while waiting is not None or answered < sent:
        while waiting is not None and sent - answered + waiting[1] <= task.window:
            connection.socket.sendall(waiting[2])
            sent += waiting[1]
            waiting = next(blocks_left, None)
        part = connection.socket.recv(RECEIVE_BYTES)
        if not part:
            raise ConnectionError("the server closed the connection")
        seen = tail + part
        answered += seen.count(ANSWER) - tail.count(ANSWER)
        refused += sum(seen.count(mark) - tail.count(mark) for mark in REFUSALS)
        tail = seen[-32:]
    return answered, refused


def _prepared(task: Task) -> list[tuple[Connection, int, bytes]]:
    lines = Lines(task)
    reply = None if task.window is None else INBOX
    by_server: dict[str, list[tuple[int, str]]] = {}
    for turn, (url, subject) in enumerate(task.targets):
        by_server.setdefault(url, []).append((turn, subject))
    streams = []
    for url, subjects in by_server.items():
        connection = Connection(url)
        if reply is not None:
            connection.socket.sendall(f"SUB {reply}.* 1\r\n".encode())
            connection.settle()
        streams.append([(connection, *block) for block in lines.encoded(subjects, reply)])
    if task.window is not None and len(streams) > 1:
        raise SystemExit("requests go to one server only")
    # In turn, so that all connections end together.
    return [block for turn in range(max(map(len, streams))) for stream in streams for block in stream[turn : turn + 1]]


def main(words: IO[str]) -> None:
    task = Task(**json.loads(words.readline()))
    blocks = _prepared(task)
    lines = Lines(task)
    size = (
        task.count * task.size
        if task.lines is None
        else sum(len(lines.bodies[i % len(lines.bodies)]) for i in range(task.count))
    )
    print("ready", flush=True)
    words.readline()
    cpu, began = time.process_time(), time.perf_counter()
    answered = refused = 0
    if task.window is None:
        publish(task, blocks)
    else:
        answered, refused = request(task, blocks)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    sent = Sent(
        count=task.count, bytes=size, seconds=seconds, cpu_seconds=cpu_seconds, answered=answered, refused=refused
    )
    print(json.dumps(asdict(sent)), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
