"""Growth: many partitions of one stream, and many streams of one partition, beside as many streams of JetStream.

Each number has a fresh cluster, once, for any number of rounds. What is measured, in this order: creation until every
partition has acknowledged a record, the slowest answer of the system's status meanwhile, elections of a controller
until then, the idle cluster (CPU time, messages that its nats-servers received, memory), kill -9 of one broker until
every partition acknowledges again, and the end and the start of all brokers until every partition does. Each step has
a limit of time; a system that misses one gets no larger number of its kind, and the run says which.
"""

from __future__ import annotations

import asyncio
import json
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client as NatsClient

from scripts.benchmarks.rig.comparison import Figure, tell
from scripts.benchmarks.rig.running import Run
from scripts.benchmarks.rig.systems import (
    AT_ONCE,
    Durability,
    JetStream,
    System,
    Tidelog,
    cpu_by_server,
    resident_bytes,
    subjects,
)
from tidelog.server.broker_process import raise_limit
from wire.errors import TidelogError

PARTITIONS, QUICK_PARTITIONS = (1, 100, 1_000, 2_500, 5_000, 10_000), (1, 100)
STREAMS, QUICK_STREAMS = (100, 1_000, 2_000), (100,)
CREATE_LIMIT, FAILOVER_LIMIT, RESTART_LIMIT = 180.0, 60.0, 120.0
"""Seconds that the creation, a failover and a restart of all brokers may take."""
QUIET_SECONDS = 5.0
"""Seconds from the last record to the beginning of the idle time."""
IDLE_SECONDS, QUICK_IDLE_SECONDS = 10.0, 3.0
IDLE_AT_MOST = {1: 0.7, 100: 2.0, 1_000: 4.0}
"""Targets, by number of partitions, in percent of one core; with more partitions the target is 10."""
ASK_EVERY = 0.5
"""Seconds from one look at the status to the next, while partitions are made."""
ANSWER_LIMIT = 5.0
"""Seconds, the least that a question for the status counts that has failed: nats-py's limit of a JetStream request."""
PUBLISHERS = 256
"""Partitions that are asked at the same time whether they serve."""
PUBLISH_TIMEOUT = 1.0
RETRIES_A_SECOND = 5_000
"""Of all partitions together, which bounds what the waiting itself costs."""
RECORD = b"x" * 128

_JETSTREAM = "JetStream: one stream each"
FIGURES = tuple(
    figure
    for kind, counts in (("partitions", PARTITIONS), ("streams", STREAMS))
    for count in counts
    for figure in (
        Figure(
            key=f"growth/{kind}/{count}/created",
            what=f"{count:,} {kind}: created, all take records",
            unit="s",
            less_is_better=True,
            at_most=5.0 if kind == "streams" and count == 1_000 else 20.0,
            note=_JETSTREAM,
        ),
        Figure(
            key=f"growth/{kind}/{count}/status",
            what=f"{count:,} {kind}: slowest answer of the status meanwhile",
            unit="s",
            less_is_better=True,
            at_most=1.0,
        ),
        Figure(
            key=f"growth/{kind}/{count}/epochs",
            what=f"{count:,} {kind}: controller epochs until then",
            unit="epochs",
            less_is_better=True,
            at_most=1.0,
        ),
        Figure(
            key=f"growth/{kind}/{count}/idle",
            what=f"{count:,} {kind}: idle, the busiest broker",
            unit="% of a core",
            less_is_better=True,
            at_most=IDLE_AT_MOST.get(count, 10.0),
            note="JetStream: server",
            drawn_as=f"Idle broker, {count:,} partitions" if kind == "partitions" and count in (1, 1_000) else "",
        ),
        Figure(
            key=f"growth/{kind}/{count}/idle-all",
            what=f"{count:,} {kind}: idle, all servers together",
            unit="% of a core",
            less_is_better=True,
        ),
        Figure(
            key=f"growth/{kind}/{count}/messages",
            what=f"{count:,} {kind}: idle, messages that nats-servers receive",
            unit="messages/s",
            less_is_better=True,
        ),
        Figure(
            key=f"growth/{kind}/{count}/memory",
            what=f"{count:,} {kind}: memory of the largest broker",
            unit="MB",
            less_is_better=True,
            at_most=400.0,
            note="JetStream: server",
        ),
        Figure(
            key=f"growth/{kind}/{count}/killed",
            what=f"{count:,} {kind}: kill -9 of a broker, all acknowledge again",
            unit="s",
            less_is_better=True,
            at_most=2.0,
        ),
        Figure(
            key=f"growth/{kind}/{count}/restarted",
            what=f"{count:,} {kind}: all brokers ended and started, all acknowledge",
            unit="s",
            less_is_better=True,
            at_most=30.0,
        ),
    )
)
STREAM = "growth"


class TooLong(Exception):
    """A step did not end within its limit, or a system refused it. The message says which."""


async def run(run: Run) -> None:
    raise_limit()
    partitions = QUICK_PARTITIONS if run.quick else PARTITIONS
    streams = QUICK_STREAMS if run.quick else STREAMS
    await _grow(run, Tidelog, "partitions", partitions, ("partitions",))
    await _grow(run, Tidelog, "streams", streams, ("streams",))
    # A partition of JetStream's is a stream: one cluster serves the rows of both kinds.
    await _grow(run, JetStream, "partitions", sorted({*partitions, *streams}), ("partitions", "streams"))


async def _grow(
    run: Run, kind: type[Tidelog | JetStream], what: str, counts: Sequence[int], rows: Sequence[str]
) -> None:
    """Measures numbers of partitions, or of streams, until one takes too long; the figures go into `rows`."""
    declared = {figure.key for figure in FIGURES}
    for count in counts:
        keys = [key for row in rows if f"{(key := f'growth/{row}/{count}')}/created" in declared]
        tell(f"  {kind.name}: {count:,} {what}")
        try:
            async with run.fresh(kind, Durability.DURABLE) as system:
                assert isinstance(system, (Tidelog, JetStream))
                await _measure(run, system, what, count, keys)
        except (TooLong, TidelogError, TimeoutError) as error:
            missing = f"{kind.name}, {count:,} {what}: {str(error) or type(error).__name__}"
            tell(f"    {missing}")
            run.comparison.about[f"growth/{kind.name}/{what}"] = missing
            return


async def _measure(run: Run, system: Tidelog | JetStream, what: str, count: int, keys: Sequence[str]) -> None:
    def add(figure: str, value: float) -> None:
        for key in keys:
            run.add(f"{key}/{figure}", system, value)

    names = _subjects(what, count)
    await system.create("first")  # a fresh cluster may still be electing the leader that creates streams
    first_epoch = await _epoch(system)
    async with _answers(system) as answers:
        with _limit("created", CREATE_LIMIT) as spent:
            async with asyncio.timeout(CREATE_LIMIT):
                await _create(system, what, names)
                await _acknowledged(system, names)
        add("created", spent())
    add("status", answers.slowest)
    if first_epoch is not None:
        add("epochs", float(await _epoch(system) or 0) - first_epoch + 1)

    await asyncio.sleep(QUIET_SECONDS)
    await _idle(system, QUICK_IDLE_SECONDS if run.quick else IDLE_SECONDS, add)

    victim = await _leads_most(system, names)
    tell(f"    {system.name}: kill -9 {victim}")
    with _limit("led again after a kill -9", FAILOVER_LIMIT) as spent:
        async with asyncio.timeout(FAILOVER_LIMIT):
            system.kill(victim)
            await _acknowledged(system, names, without=victim)
    add("killed", spent())
    system.restart(victim)

    with _limit("led again after the restart of all", RESTART_LIMIT) as spent:
        async with asyncio.timeout(RESTART_LIMIT):
            system.restart_all()
            await _acknowledged(system, names)
    add("restarted", spent())


@contextmanager
def _limit(what: str, seconds: float) -> Iterator[_Spent]:
    """Gives the seconds that the block takes; raises TooLong in place of its TimeoutError."""
    spent = _Spent()
    try:
        yield spent
    except TimeoutError:
        raise TooLong(f"not all were {what} within {seconds:.0f} s") from None
    finally:
        spent.end()


class _Spent:
    """Seconds from when it was made until `end`."""

    def __init__(self) -> None:
        self._began = time.perf_counter()
        self._ended = self._began

    def end(self) -> None:
        self._ended = time.perf_counter()

    def __call__(self) -> float:
        return self._ended - self._began


def _subjects(what: str, count: int) -> list[str]:
    """One for each partition. A stream's name is its subject, and has no dot."""
    return subjects(STREAM, count) if what == "partitions" else [f"{STREAM}-{number}" for number in range(count)]


async def _create(system: System, what: str, names: Sequence[str]) -> None:
    if what == "partitions":
        await system.add(STREAM, len(names))
        return
    room = asyncio.Semaphore(AT_ONCE)

    async def add(name: str) -> None:
        async with room:
            await system.add(name)

    await asyncio.gather(*map(add, names))


async def _acknowledged(system: Tidelog | JetStream, names: Sequence[str], *, without: str = "") -> None:
    """Returns when each subject has acknowledged a record. `without`: a server that has been killed; the cost to find
    another one is in no figure."""
    left = list(reversed(names))
    pause = max(0.01, min(PUBLISHERS, len(names)) / RETRIES_A_SECOND)
    connection = await nats.connect(
        system.urls_without(without), max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_expected
    )

    async def ask() -> None:
        while left:
            name = left.pop()
            while not await _is_acknowledged(connection, name):  # noqa: ASYNC110 - servers that elect tell no event
                await asyncio.sleep(pause)

    try:
        async with asyncio.TaskGroup() as asking:
            for _ in range(min(PUBLISHERS, len(names))):
                asking.create_task(ask())
    finally:
        await connection.close()


async def _is_acknowledged(connection: NatsClient, subject: str) -> bool:
    try:
        answer = await connection.request(subject, RECORD, timeout=PUBLISH_TIMEOUT)
    except (nats.errors.Error, TimeoutError):
        return False
    return b'"error"' not in answer.data


async def _expected(_: Exception) -> None:
    """Errors of a connection while servers end and start."""


@dataclass
class _Answers:
    """Of a system to the question for its status."""

    slowest: float = 0.0
    """In seconds. A question that is open at the end counts by its age, and one that fails as ANSWER_LIMIT at least."""


@asynccontextmanager
async def _answers(system: System) -> AsyncIterator[_Answers]:
    """Asks from the beginning of the block to its end."""
    answers = _Answers()

    async def ask() -> None:
        while True:
            began, at_least = time.perf_counter(), 0.0
            try:
                if isinstance(system, Tidelog):
                    await system.client.cluster_status()
                elif isinstance(system, JetStream):
                    await system.connection.jetstream().account_info()
            except (TidelogError, nats.errors.Error, nats.js.errors.Error, TimeoutError) as error:
                tell(f"    {system.name}: no status: {error!r}")
                at_least = ANSWER_LIMIT
            finally:
                answers.slowest = max(answers.slowest, time.perf_counter() - began, at_least)
            await asyncio.sleep(ASK_EVERY)

    asking = asyncio.create_task(ask())
    await asyncio.sleep(0)  # the first question is asked before the block begins
    try:
        yield answers
    finally:
        asking.cancel()
        await asyncio.wait([asking])


async def _epoch(system: System) -> int | None:
    """The epoch of Tidelog's controller; JetStream shows none."""
    return (await system.client.cluster_status())["controller_epoch"] if isinstance(system, Tidelog) else None


async def _idle(system: Tidelog | JetStream, seconds: float, add: Callable[[str, float], None]) -> None:
    cpu, messages, began = cpu_by_server(system), _messages(system), time.perf_counter()
    await asyncio.sleep(seconds)
    later, spent = cpu_by_server(system), time.perf_counter() - began
    used = {name: 100 * (later[name] - cpu[name]) / spent for name in later}
    memory = resident_bytes(system)
    add("idle-all", sum(used.values()))
    for each in (used, memory):
        each.pop("nats-server", None)
    add("idle", max(used.values()))
    add("messages", (_messages(system) - messages) / spent)
    add("memory", max(memory.values()) / 1e6)


def _messages(system: Tidelog | JetStream) -> int:
    """That all nats-servers have received, from clients and from each other."""
    total = 0
    for url in system.monitors:
        with urllib.request.urlopen(f"{url}/varz", timeout=5.0) as answer:  # noqa: S310 - our own server on loopback
            total += json.load(answer)["in_msgs"]
    return total


async def _leads_most(system: Tidelog | JetStream, names: Sequence[str]) -> str:
    """The broker, or server, that leads most of the partitions that can be looked at quickly."""
    found: Counter[str] = Counter()
    if isinstance(system, Tidelog):
        for broker in (await system.client.cluster_status())["brokers"]:
            found[broker["id"]] = broker["leaders"]
    else:
        for at in range(0, len(names), max(1, len(names) // 100)):
            if (leader := await system.leader(STREAM, at)) is not None:
                found[leader] += 1
    return found.most_common(1)[0][0] if found else next(name for name in system.pids() if name != "nats-server")
