"""CPU seconds of all server processes together for a million 128 B records, published plainly.

nats-servers and brokers count, the publisher does not. Both systems at a rate that JetStream, at its default, stores
without loss; Tidelog, `durable`, also at the full rate, where a batch has more records.
"""

from __future__ import annotations

from scripts.benchmarks.plain import Search
from scripts.benchmarks.rig.comparison import NOT_SYNCED, Figure
from scripts.benchmarks.rig.running import Burst, Run, burst
from scripts.benchmarks.rig.systems import Durability, System, Tidelog

COUNT = 1_000_000
SECONDS = 5.0
"""Of a paced burst."""
BELOW = 0.8
"""Of the highest rate that JetStream kept."""

FIGURES = (
    Figure(
        key="lag/paced",
        what="both at a rate that JetStream keeps",
        unit="CPU s",
        less_is_better=True,
        ratio_at_most=0.25,
    ),
    Figure(
        key="lag/full",
        what="Tidelog at its full rate",
        unit="CPU s",
        less_is_better=True,
        ratio_at_most=0.25,
        note=NOT_SYNCED,
        drawn_as="CPU time of all servers, 1 M plain",
    ),
    Figure(
        key="lag/lost",
        what="lost at the rate that JetStream keeps",
        unit="records",
        statistic="max",
        less_is_better=True,
        at_most=0.0,
    ),
)


async def run(run: Run) -> None:
    kept = 0.0

    async def measure(system: System) -> None:
        nonlocal kept
        if not kept:  # JetStream comes first
            kept = await _highest(run, system)
        paced = await _paced(run, system, kept)
        while paced.lost and not isinstance(system, Tidelog):
            kept *= BELOW
            paced = await _paced(run, system, kept)
        run.add("lag/lost", system, float(paced.lost))
        run.add("lag/paced", system, paced.cpu_per_million)
        if isinstance(system, Tidelog):
            run.add("lag/full", system, (await burst(system, run.scaled(COUNT))).cpu_per_million)
        else:
            run.add("lag/full", system, paced.cpu_per_million)

    await run.alternate(measure, tidelog=Durability.DURABLE, jetstream=Durability.ACCEPTED)


async def _paced(run: Run, system: System, kept: float) -> Burst:
    return await burst(system, run.scaled(int(BELOW * kept * SECONDS)), rate=BELOW * kept)


async def _highest(run: Run, system: System) -> float:
    async def store(rate: float) -> Burst:
        return await burst(system, run.scaled(COUNT), rate=rate)

    return (await Search(run).highest(store)).published
