"""The publisher program of the benchmarks: pre-encoded protocol lines over bare sockets, for Tidelog and JetStream.

    python -m scripts.benchmarks.rig.publisher < TASK     with TASK as one line of JSON, see `Task`

It encodes everything it will send, says "ready", waits for a line, sends, waits until the servers have taken all of it
(PING, PONG), and reports its result as one line of JSON, see `Sent`. Nothing outside the standard library is used, and
sending a record costs a few hundred nanoseconds, so the servers are measured.
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit

from scripts.benchmarks.rig.fast_batches import BatchFailed, FastBatch, payloads

PROGRAM = "scripts.benchmarks.rig.publisher"
BLOCK_BYTES = 128 << 10
"""Of lines that leave in one write, about."""
BATCH_TIMEOUT = 60.0
"""Seconds without any acknowledgement after which a fast batch has failed."""
ANSWER_TIMEOUT = 10.0
"""Seconds without any answer after which paced requests have failed."""
PING_AFTER = 2.0
"""Seconds without any after which the server is asked for the newest one: an acknowledgement may be lost."""
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
    """Each publish is a request; so many wait for their answers at most, with `rate` too. None: plain publishes."""
    batched: bool = False
    """As JetStream's fast batches, one for each target. Not with `rate`, `window` and `stamped`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    count: int
    bytes: int
    """Of the records themselves."""
    seconds: float
    cpu_seconds: float
    """Of the program, while it sent."""
    answered: int
    """Requests that were answered, or records that a fast batch has acknowledged."""
    refused: int
    """Answers that were errors; they are in `answered` too."""
    percentiles_ms: Sequence[float] = field(default=())
    """Of the time from writing a request to reading its answer, for requests at a rate: the 1st to the 99th."""

    def latency_ms(self, percent: int) -> float:
        return self.percentiles_ms[percent - 1]

    @property
    def rate(self) -> float:
        return self.count / self.seconds


class Publisher:
    """Runs the program. Use it with `async with`: inside, it has encoded everything and waits for `go`."""

    def __init__(self, task: Task, program: str = PROGRAM) -> None:
        self._task = task
        self._program = program
        self._process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            self._program,
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
                line = self._line(number, subject, b"" if reply is None else b" %s.%07d" % (reply.encode(), number))
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

    def batch(self, turn: int, subject: str, batch: FastBatch) -> list[bytes]:
        """The messages of one target's fast batch, each by itself: the server says how many may be on their way."""
        width = len(self._task.targets)
        return [
            self._line(turn + index * width, subject.encode(), b" " + batch.reply(index + 1))
            for index in range(batch.count)
        ]

    def _line(self, number: int, subject: bytes, inbox: bytes) -> bytes:
        """Returns a PUB line with its body. `inbox`: the reply subject after a space, or empty."""
        body = self.bodies[number % len(self.bodies)]
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


def request_paced(task: Task, blocks: Sequence[tuple[Connection, int, bytes]]) -> tuple[list[float], int]:
    """Sends requests at the task's rate, whatever is answered, but for `window`. Returns (seconds of each that was
    answered, error answers). Raises TimeoutError."""
    assert task.rate is not None
    assert task.window is not None
    connection = blocks[0][0]
    times: list[float] = [0.0] * task.count
    taken: list[float] = []
    began = heard = time.perf_counter()
    sent = refused = 0
    waiting = iter(blocks)
    due = next(waiting, None)
    while due is not None or len(taken) < sent:
        now = time.perf_counter()
        while due is not None and began + sent / task.rate <= now and sent - len(taken) < task.window:
            times[sent : sent + due[1]] = [time.perf_counter()] * due[1]
            connection.socket.sendall(due[2])
            sent += due[1]
            due = next(waiting, None)
        wait = ANSWER_TIMEOUT if due is None else max(0.0, began + sent / task.rate - time.perf_counter())
        if not select.select([connection.socket], (), (), min(wait, ANSWER_TIMEOUT))[0]:
            if len(taken) < sent and time.perf_counter() - heard > ANSWER_TIMEOUT:
                raise TimeoutError(f"{sent - len(taken)} requests were not answered for {ANSWER_TIMEOUT:.0f} s")
            continue
        part = connection.socket.recv(RECEIVE_BYTES)
        heard = time.perf_counter()
        if not part:
            raise ConnectionError("the server closed the connection")
        answers, connection.rest = payloads(connection.rest + part)
        for subject, payload in answers:
            taken.append(heard - times[int(subject[len(INBOX) + 1 :])])
            refused += not payload or b'"error"' in payload
    return taken, refused


@dataclass(slots=True, kw_only=True)
class OpenBatch:
    """A fast batch on its way: its messages, and where they go."""

    state: FastBatch
    connection: Connection
    inbox: bytes
    subject: bytes
    lines: list[bytes]

    def send(self) -> None:
        """Sends what there is room for."""
        if room := self.state.room:
            start = self.state.sent
            self.state.sent += room
            self.connection.socket.sendall(b"".join(self.lines[start : self.state.sent]))


def publish_batches(batches: Sequence[OpenBatch]) -> int:
    """Sends all batches side by side. Returns the number of records that they have acknowledged. Raises BatchFailed."""
    by_socket = {batch.connection.socket: batch.connection for batch in batches}
    by_inbox = {batch.inbox: batch for batch in batches}
    heard = time.monotonic()
    for batch in batches:
        batch.send()
    while not all(batch.state.is_committed for batch in batches):
        ready, _, _ = select.select(list(by_socket), (), (), PING_AFTER)
        if not ready:
            if time.monotonic() - heard > BATCH_TIMEOUT:
                raise BatchFailed(f"a fast batch was not acknowledged for {BATCH_TIMEOUT:.0f} s")
            for batch in batches:
                if not batch.state.is_committed:
                    batch.connection.socket.sendall(b"PUB %s %s 0\r\n\r\n" % (batch.subject, batch.state.ping))
            continue
        heard = time.monotonic()
        for each in ready:
            connection = by_socket[each]
            part = each.recv(RECEIVE_BYTES)
            if not part:
                raise ConnectionError("the server closed the connection")
            answers, connection.rest = payloads(connection.rest + part)
            for subject, payload in answers:
                inbox = subject[: subject.index(b".", len(INBOX) + 1)]
                by_inbox[inbox].state.on_answer(payload)
                by_inbox[inbox].send()
    return sum(batch.state.acknowledged for batch in batches)


def _prepared_batches(task: Task) -> list[OpenBatch]:
    lines = Lines(task)
    connections = {url: Connection(url) for url in dict.fromkeys(url for url, _ in task.targets)}
    batches = []
    for turn, (url, subject) in enumerate(task.targets):
        count = len(range(turn, task.count, len(task.targets)))
        if not count:
            continue
        # A batch is known by the last part of its inbox, and a run may send many of them to one stream.
        inbox = f"{INBOX}.{time.monotonic_ns():x}{turn:x}"
        state = FastBatch(inbox, count)
        connections[url].socket.sendall(f"SUB {inbox}.> {turn + 1}\r\n".encode())
        connections[url].settle()
        batches.append(
            OpenBatch(
                state=state,
                connection=connections[url],
                inbox=inbox.encode(),
                subject=subject.encode(),
                lines=lines.batch(turn, subject, state),
            )
        )
    return batches


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
    batches = _prepared_batches(task) if task.batched else []
    blocks = [] if task.batched else _prepared(task)
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
    percentiles: Sequence[float] = ()
    if task.batched:
        answered = publish_batches(batches)
    elif task.window is not None and task.rate is not None:
        taken, refused = request_paced(task, blocks)
        answered = len(taken)
        percentiles = statistics.quantiles([1e3 * each for each in taken], n=100, method="inclusive")
    elif task.window is None:
        publish(task, blocks)
    else:
        answered, refused = request(task, blocks)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu
    sent = Sent(
        count=task.count,
        bytes=size,
        seconds=seconds,
        cpu_seconds=cpu_seconds,
        answered=answered,
        refused=refused,
        percentiles_ms=percentiles,
    )
    print(json.dumps(asdict(sent)), flush=True)


if __name__ == "__main__":
    main(sys.stdin)
