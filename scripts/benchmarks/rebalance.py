"""A group of 100 members over 1,000 partitions: how long until all is assigned again after a join, and after a leave.

The members have connections of their own, in one process, and follow the end of the stream. A change is over when each
partition belongs to one of the members, and none has two partitions more than another. Meanwhile a record is published
every 10 ms to a partition that stays with its member: the longest time between two of these that arrive says what those
members notice that keep their partitions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import pairwise
from typing import TypeAlias

import tidelog
from scripts.benchmarks.rig.comparison import Figure, tell
from scripts.benchmarks.rig.running import Run, new_stream
from scripts.benchmarks.rig.systems import Durability, Tidelog
from tidelog.client.group.group_consumer import GroupConsumer

MEMBERS, PARTITIONS = 100, 1_000
TURNS = 5
"""Of each change, in each round."""
PAUSE = 0.01
LIMIT = 60.0
"""Seconds for a change."""

FIGURES = tuple(
    figure
    for change, what in (("join", "one more joins"), ("leave", "it leaves"))
    for figure in (
        Figure(
            key=f"rebalance/{change}",
            what=f"{MEMBERS} members of a group, {PARTITIONS:,} partitions, {what}: until all is assigned",
            unit="s",
            less_is_better=True,
            at_most=2.0,
        ),
        Figure(
            key=f"rebalance/{change}/gap",
            what="meanwhile, at a partition that stays: longest time between records of every 10 ms",
            unit="ms",
            less_is_better=True,
        ),
    )
)

Member: TypeAlias = GroupConsumer[bytes, bytes]


async def run(run: Run) -> None:
    members, partitions = run.scaled(MEMBERS), run.scaled(PARTITIONS)
    for number in range(run.rounds):
        tell(f"  round {number + 1}: {members} members, {partitions} partitions")
        async with (
            run.fresh(Tidelog, Durability.ACCEPTED) as system,
            new_stream(system, partitions) as stream,
            AsyncExitStack() as stack,
        ):
            times: list[float] = []
            group = [await stack.enter_async_context(_member(system, stream, times))]
            group += [await stack.enter_async_context(_member(system, stream)) for _ in range(members - 1)]
            await _balanced(group, partitions)
            for _ in range(run.scaled(TURNS)):
                await _change(run, system, stream, group, partitions, times)


@asynccontextmanager
async def _member(system: Tidelog, stream: str, times: list[float] | None = None) -> AsyncIterator[Member]:
    """It takes what comes. `times`: when it got each record."""

    async def take(member: Member) -> None:
        while True:
            records = await member.getmany(timeout=10)
            if times is not None:
                times.extend(time.perf_counter() for _ in records)

    async with (
        await tidelog.connect(system.urls[0]) as client,
        client.subscribe(stream, group="bench", start="latest") as member,
    ):
        taking = asyncio.create_task(take(member))
        try:
            yield member
        finally:
            taking.cancel()
            await asyncio.gather(taking, return_exceptions=True)


async def _change(
    run: Run, system: Tidelog, stream: str, group: Sequence[Member], partitions: int, times: list[float]
) -> None:
    """One more member joins, and leaves. `times`: when the first one got each record."""
    watched = min(group[0].assignment)
    async with system.client.producer(stream) as producer, AsyncExitStack() as stack:

        async def feed() -> None:
            while True:
                producer.send_nowait(b"x", partition=watched[1])
                await asyncio.sleep(PAUSE)

        async def measured(change: str, how: Callable[[], Awaitable[Sequence[Member]]]) -> None:
            times.clear()
            began = time.perf_counter()
            members = await how()
            await _balanced(members, partitions)
            run.add(f"rebalance/{change}", system, time.perf_counter() - began)
            if watched in group[0].assignment and len(times) > 1:
                gap = max(later - earlier for earlier, later in pairwise(times))
                run.add(f"rebalance/{change}/gap", system, 1000 * gap)

        async def join() -> Sequence[Member]:
            return [*group, await stack.enter_async_context(_member(system, stream))]

        async def leave() -> Sequence[Member]:
            await stack.aclose()
            return group

        feeding = asyncio.create_task(feed())
        try:
            await asyncio.sleep(0.5)
            await measured("join", join)
            await asyncio.sleep(0.5)
            await measured("leave", leave)
        finally:
            feeding.cancel()


async def _balanced(members: Sequence[Member], partitions: int) -> None:
    """Returns when each partition belongs to one of them, and they have as many. Raises TimeoutError."""
    async with asyncio.timeout(LIMIT):
        while True:
            sizes = [len(member.assignment) for member in members]
            if sum(sizes) == partitions and max(sizes) - min(sizes) <= 1:
                owned = frozenset().union(*(member.assignment for member in members))
                if len(owned) == partitions:
                    return
            await asyncio.sleep(PAUSE)
