"""Nothing on a broker's event loop takes long, at the bounds of docs/reference.md: a step of the loop runs no more than
so many lines of Python, for whatever operation. A line takes some 0.1 to 0.2 µs, so that LINES take 20 to 40 ms.

Lines are counted, and nothing is timed: the count is the same on a machine that is ten times slower. What loads which
operation stands in `tests/loads.py`.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import wire.turns
from metadata.runtime import admin_answers
from scripts.benchmarks import bounds as at_bounds
from tests.loads import LOADS, OF_COORDINATORS, TIMERS, AtCoordinator, Bounds, longest_steps
from tests.loop_steps import Lines
from tests.tickets import producer_keys
from tidelog.server.coordinators.driver.coordinator_kinds import groups_and_cursors, transactional_ids
from tidelog.server.coordinators.groups.group_shard import GroupShard
from tidelog.server.coordinators.transactions.transaction_shard import TransactionShard
from wire.operations.api_operations import OPERATIONS

LINES = 200_000
ROOT = Path(__file__).parents[4]
SCALE = 10
"""By which the bounds, and the turns, are smaller in the quick test."""
OF_COORDINATOR = 600_000
"""The same, of a settlement: a coordinator shares the loop with no other request, and its turns are longer."""


def test_each_operation_says_what_loads_it() -> None:
    assert LOADS.keys() == OPERATIONS.keys()
    made: list[Callable[..., object]] = [GroupShard, TransactionShard]
    kinds = [
        of(make, producer_keys()).kinds  # type: ignore[arg-type]
        for of, make in zip((groups_and_cursors, transactional_ids), made, strict=True)
    ]
    assert OF_COORDINATORS.keys() == kinds[0].keys() | kinds[1].keys()


_TIMER = re.compile(r"\.call_later\(|\.call_at\(|asyncio\.sleep\((?!0\))")


def test_each_module_with_a_timer_says_what_it_looks_at() -> None:
    rooms = ("dataplane", "metadata", "tidelog/nats", "tidelog/server")
    modules = (path for room in rooms for path in (ROOT / room).rglob("*.py"))
    waiting = {str(path.relative_to(ROOT)) for path in modules if _TIMER.search(path.read_text())}
    assert waiting == TIMERS.keys()


def _small(monkeypatch: pytest.MonkeyPatch, looks: int) -> Bounds:
    monkeypatch.setattr(wire.turns, "LOOKS", looks)
    monkeypatch.setattr(admin_answers, "MAX_ASKED", admin_answers.MAX_ASKED // SCALE)
    return Bounds(partitions=10_000 // SCALE, streams=10_000 // SCALE)


async def test_no_step_of_the_loop_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await longest_steps(Lines(), _small(monkeypatch, wire.turns.LOOKS // SCALE))
    assert {name: step.size for name, step in found.items() if step.size > LINES // SCALE} == {}


@pytest.mark.slow
async def test_without_turns_steps_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The count sees what is not done in turns. Some of it is short where partitions have no leaders: so long steps may
    have a broker taken for one that lags, on a slow machine."""
    found = await longest_steps(Lines(), _small(monkeypatch, looks=10**9))
    long = {name for name, step in found.items() if step.size > LINES // SCALE}
    known = {
        "stream.create",
        "stream.describe",
        "stream.list",
        "stream.delete_records",
        "stream.repartition",
        "broker.describe",
        "a page of the topology",
        "the report on a large stream",
        "FetchMetadata of Liftbridge",
        "the connection to NATS is back",
        "the disk is full",
        "the disk hangs",
    }
    assert len(long & known) > len(known) // 2, known - long


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_no_step_of_the_loop_is_long_at_the_bounds() -> None:
    found = await longest_steps(Lines(), Bounds(partitions=10_000, streams=2_000))
    assert {name: step.size for name, step in found.items() if step.size > LINES} == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_settlement_of_a_coordinator_is_long_at_the_bounds() -> None:
    rows = dict(at_bounds.coordinators(Lines()))
    gc.collect()
    assert {row: lines for row, lines in rows.items() if lines > OF_COORDINATOR} == {}
    asked = {load.row for load in LOADS.values() if isinstance(load, AtCoordinator)} | {*OF_COORDINATORS.values()}
    assert asked <= rows.keys()
