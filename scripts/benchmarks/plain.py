"""Bare NATS publishes: the rate at which all replicas have committed, and the number of lost records.

Both are judged by the same figure: records over the seconds from the first byte sent to the last commit on all
replicas, of a burst without loss. Each gets everything as fast as its nats-server takes it. A system that loses part of
that is given paced bursts, of as many records: the highest rate without loss is searched for, and the best of them that
were stored whole counts. JetStream, at its default (nothing synced), always needs that; Tidelog, `durable`, does where
records are large. The rate of publishing, higher as buffers hold the end of a burst, is in a row of its own, and so is
the loss of an unpaced burst. With --quick buffers hold a good part of a burst, and JetStream looks better than it is.

JetStream's fast batches store the same records without loss, for the server says how many may be on their way: they
are a peer of their own, to the last commit on all replicas.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts.benchmarks.rig.comparison import NOT_SYNCED, Figure
from scripts.benchmarks.rig.running import Burst, Run, burst
from scripts.benchmarks.rig.systems import Durability, JetStream, System
from scripts.demos.demo_flights import load_flights

FIRST_RATE = 100_000.0
"""Records/s where the search for the highest rate without loss begins."""
STEP, QUICK_STEP = 1.15, 1.4
"""Between the highest rate without loss and the lowest with it, in the end."""
KEPT_PACE = 0.9
"""Of the rate that was asked for: a publisher that falls below was held up by the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    name: str
    what: str
    count: int
    """Records of a burst."""
    partitions: int = 1
    size: int = 128
    flights: bool = False
    headers: bool = False
    at_least: float | None = None
    """Target of the ratio."""

    @property
    def key(self) -> str:
        return f"plain/{self.name}"


VARIANTS = (
    Variant(name="128", what="128 B", count=1_000_000, at_least=5.0),
    Variant(name="1024", what="1 KiB", count=500_000, size=1024, at_least=3.0),
    Variant(name="flights", what="flights rows as JSON", count=1_000_000, flights=True, at_least=4.0),
    Variant(name="headers", what="128 B with headers", count=300_000, headers=True),
    Variant(name="128x8", what="128 B, 8 partitions", count=300_000, partitions=8, at_least=3.0),
    Variant(
        name="flightsx8", what="flights rows, 8 partitions", count=300_000, flights=True, partitions=8, at_least=3.0
    ),
)
FIGURES = tuple(
    figure
    for variant in VARIANTS
    for figure in (
        Figure(
            key=variant.key,
            what=variant.what,
            unit="records/s",
            note=NOT_SYNCED,
            ratio_at_least=variant.at_least,
            drawn_as=f"Plain publishes, {variant.what}" if variant.at_least is not None else "",
        ),
        Figure(
            key=f"{variant.key}/published",
            what=f"{variant.what}: published meanwhile",
            unit="records/s",
        ),
        Figure(
            key=f"{variant.key}/lost",
            what=f"{variant.what}: lost of an unpaced burst",
            unit="%",
            statistic="max",
            at_most=0.0,
            less_is_better=True,
        ),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Of the bursts of a search that lost nothing, records/s."""

    published: float
    """The highest rate of publishing: the server may have stored the last of them a little later."""
    committed: float
    """The highest rate to the last commit on all replicas."""


class Search:
    """For the highest rate that a system stores without loss. A search begins where the one before it ended.

    Only a loss ends the way up, or a server that reads no faster: a system that falls behind at one rate may well keep
    a higher one.
    """

    def __init__(self, run: Run) -> None:
        self._step = QUICK_STEP if run.quick else STEP
        self._rate = FIRST_RATE
        self._width = 2.0
        """Of the first steps; later searches know about where to look."""

    async def highest(self, store: Callable[[float], Awaitable[Burst]]) -> Kept:
        """`store` sends at that rate: many records, or else the buffers at the end decide."""
        kept: list[Burst] = []
        low, high, rate = 0.0, math.inf, self._rate
        while not (low and high / low <= self._step * 1.001):
            burst = await store(rate)
            if burst.lost:
                high = rate
            else:
                low = rate
                kept.append(burst)
                if burst.sent.rate < KEPT_PACE * rate:
                    break
            if not low:
                rate = high / self._width
            elif high == math.inf:
                rate = low * self._width
            else:
                rate = math.sqrt(low * high)
        self._rate, self._width = low, self._step
        return Kept(published=max(b.sent.rate for b in kept), committed=max(b.rate for b in kept))


async def run(run: Run) -> None:
    with flights_file(run) as lines:
        searches: dict[tuple[str, str], Search] = {}

        async def measure(system: System) -> None:
            for variant in VARIANTS:

                async def store(rate: float | None, variant: Variant = variant) -> Burst:
                    return await burst(
                        system,
                        run.scaled(variant.count),
                        partitions=variant.partitions,
                        size=variant.size,
                        lines=lines if variant.flights else None,
                        headers=variant.headers,
                        rate=rate,
                    )

                unpaced = await store(None)
                run.add(f"{variant.key}/lost", system, 100 * unpaced.lost / unpaced.sent.count)
                if unpaced.lost:
                    search = searches.setdefault((system.name, variant.name), Search(run))
                    kept = await search.highest(store)
                else:
                    kept = Kept(published=unpaced.sent.rate, committed=unpaced.rate)
                run.add(variant.key, system, kept.committed)
                run.add(f"{variant.key}/published", system, kept.published)
                if isinstance(system, JetStream):
                    batched = await burst(
                        system,
                        run.scaled(variant.count),
                        partitions=variant.partitions,
                        size=variant.size,
                        lines=lines if variant.flights else None,
                        headers=variant.headers,
                        batched=True,
                    )
                    run.add(variant.key, system, batched.rate, way="fast batches")

        await run.alternate(measure, tidelog=Durability.DURABLE, jetstream=Durability.ACCEPTED)


@contextmanager
def flights_file(run: Run) -> Iterator[Path]:
    """The rows of the flights table, one a line."""
    path = run.folder / "flights.jsonl"
    path.write_bytes(b"\n".join(load_flights().values) + b"\n")
    try:
        yield path
    finally:
        path.unlink()
