"""Awaited publishes by rate, 50 to 20,000/s: p50, p90 and p99 until acknowledged, and the CPU time of all servers.

Bare requests of 128 B from the publisher program, on a connection to the server of the leader, each sent when it is
due, whatever has been answered. CPU time is of brokers and nats-servers together, in percent of one core.
"""

from __future__ import annotations

from scripts.benchmarks.rig.comparison import Figure
from scripts.benchmarks.rig.publisher import Publisher, Sent, Task
from scripts.benchmarks.rig.running import Run, new_stream, targets
from scripts.benchmarks.rig.systems import Durability, System, cpu_seconds

RATES = (50, 200, 1_000, 5_000, 20_000)
SIZE = 128
SECONDS, QUICK_SECONDS = 4.0, 1.5
SAMPLES = 600
"""Each rate sends at least so many records, for its p99."""
WARM_UP = 0.5
"""Seconds at the beginning of each rate that are not measured."""
WINDOW = 100_000
"""At most so many requests wait for their answers."""
PERCENTILES = (50, 90, 99)
TARGETS = {Durability.ACCEPTED: (1.8, 1.5), Durability.DURABLE: (1.5, 1.5)}
"""Targets of (ratio of p50, ratio of p99) at the rates JUDGED."""
JUDGED = (1_000, 5_000)

FIGURES = tuple(
    figure
    for level, targets_of_level in TARGETS.items()
    for rate in RATES
    for figure in (
        *(
            Figure(
                key=f"rates/{level.value}/{rate}/p{percent}",
                what=f"{level.value}, {rate:,}/s: p{percent}",
                unit="ms",
                less_is_better=True,
                ratio_at_most=dict(zip((50, 99), targets_of_level, strict=True)).get(percent)
                if rate in JUDGED
                else None,
                drawn_as=f"Publishes at {rate:,}/s, {level.value}, median" if rate in JUDGED and percent == 50 else "",
            )
            for percent in PERCENTILES
        ),
        Figure(
            key=f"rates/{level.value}/{rate}/cpu",
            what=f"{level.value}, {rate:,}/s: CPU of all servers",
            unit="% of a core",
            less_is_better=True,
        ),
    )
)


async def run(run: Run) -> None:
    for level in TARGETS:

        async def measure(system: System, level: Durability = level) -> None:
            async with new_stream(system) as stream:
                for rate in RATES:
                    await _paced(system, stream, rate, WARM_UP)
                    seconds = max(QUICK_SECONDS if run.quick else SECONDS, run.scaled(SAMPLES) / rate)
                    sent, cpu = await _paced(system, stream, rate, seconds)
                    key = f"rates/{level.value}/{rate}"
                    for percent in PERCENTILES:
                        run.add(f"{key}/p{percent}", system, sent.latency_ms(percent))
                    run.add(f"{key}/cpu", system, 100 * cpu / sent.seconds)

        await run.alternate(measure, tidelog=level, jetstream=level, kafka=level)


async def _paced(system: System, stream: str, rate: int, seconds: float) -> tuple[Sent, float]:
    """Returns what was sent, and the CPU seconds of all servers meanwhile. Raises RuntimeError for a refused record."""
    count = max(2, int(rate * seconds))
    task = Task(targets=await targets(system, stream, 1), count=count, size=SIZE, rate=rate, window=WINDOW)
    async with Publisher(task, program=system.publisher) as publisher:
        before = cpu_seconds(system)
        sent = await publisher.go()
        cpu = cpu_seconds(system) - before
    if sent.refused:
        raise RuntimeError(f"{system.name} refused {sent.refused} of {sent.count} records at {rate:,}/s")
    return sent, cpu
