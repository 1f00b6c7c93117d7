"""What the output of transactional workers (`tests.integration.transactions.transactional_worker`) says, with their
journals and the offsets that their group has committed.

missing     records of the input that are not in the output
twice       records of the input that are in the output more than once
phantom     records of the output that stand for no record of the input
reordered   records of one input partition that stand in another order in a partition of the output
aborted     records of a transaction that its worker knows to be aborted
torn        transactions of which a part is in the output, or which are committed and are not there
offsets     partitions whose committed offset is not the end of what is in the output
unsteady    records that a consumer saw during the run, and that are not there in the end, or are others
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Place = tuple[int, int]
"""Partition and offset."""

_KINDS = ("missing", "twice", "phantom", "reordered", "aborted", "torn", "offsets", "unsteady")


@dataclass(slots=True)
class TransactionFindings:
    inputs: int = 0
    outputs: int = 0
    committed: int = 0
    """Transactions, as the workers know."""
    rolled_back: int = 0
    unknown: int = 0
    missing: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    phantom: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    aborted: list[str] = field(default_factory=list)
    torn: list[str] = field(default_factory=list)
    offsets: list[str] = field(default_factory=list)
    unsteady: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not any(getattr(self, kind) for kind in _KINDS)

    def __str__(self) -> str:
        known = f"{self.committed} committed, {self.rolled_back} aborted, {self.unknown} without an outcome"
        parts = [f"{self.inputs} records in, {self.outputs} out, transactions: {known}"]
        for kind in _KINDS:
            found = getattr(self, kind)
            parts.append(f"{len(found)} {kind}" + (f" ({'; '.join(found[:3])})" if found else ""))
        return ", ".join(parts)

    def facts(self) -> dict[str, Any]:
        """As JSON has them; each kind of finding as its number."""
        return {name: len(value) if name in _KINDS else value for name, value in asdict(self).items()}


def judge_transactions(
    stored: Collection[Place],
    output: Mapping[Place, bytes],
    journals: Mapping[str, Sequence[dict[str, Any]]],
    committed: Mapping[int, int],
    looks: Iterable[Mapping[Place, bytes]] = (),
) -> TransactionFindings:
    """`stored`: the places of the input's records. `output`: as a consumer of committed records reads it in the end,
    `looks`: what others saw of it. `committed`: offsets of the group, by partition of the input."""
    found = TransactionFindings(len(stored), len(output))
    places: dict[str, list[Place]] = defaultdict(list)
    """Of the input, by transaction, as the output has them."""
    newest: dict[Place, int] = {}
    for (partition, offset), value in sorted(output.items()):
        source, at, transaction = _parse(value)
        places[transaction].append((source, at))
        if at <= newest.get((partition, source), -1):
            found.reordered.append(
                f"{value!r} at {partition}/{offset} behind {source}:{newest[partition, source]}",
            )
        newest[partition, source] = at
    counts = Counter(place for each in places.values() for place in each)
    found.missing = [_shown(place) for place in sorted({*stored} - counts.keys())]
    found.phantom = [_shown(place) for place in sorted(counts.keys() - {*stored})]
    repeated = {place for place, count in counts.items() if count > 1}
    by_place: dict[Place, list[str]] = defaultdict(list)
    for transaction, each in places.items():
        for place in repeated.intersection(each):
            by_place[place].append(transaction)
    found.twice = [f"{_shown(place)} by {' and '.join(by_place[place])}" for place in sorted(repeated)]
    _judge_outcomes(found, places, journals)
    ends: dict[int, int] = defaultdict(int)
    for source, at in counts:
        ends[source] = max(ends[source], at + 1)
    found.offsets = [
        f"partition {source}: {committed.get(source, 0)} is committed, {ends.get(source, 0)} is the end of the output"
        for source in sorted({*ends, *committed})
        if committed.get(source, 0) != ends.get(source, 0)
    ]
    for look in looks:
        found.unsteady += [
            f"{value!r} at {_shown(place)}, where {output.get(place, b'nothing')!r} is in the end"
            for place, value in sorted(look.items())
            if output.get(place) != value
        ]
    return found


def _judge_outcomes(
    found: TransactionFindings, places: Mapping[str, list[Place]], journals: Mapping[str, Sequence[dict[str, Any]]]
) -> None:
    lines = [line for journal in journals.values() for line in journal if "transaction" in line]
    outcomes = {line["transaction"]: line["kind"] for line in lines if line["kind"] != "writes"}
    for line in lines:
        if line["kind"] != "writes":
            continue
        name = line["transaction"]
        inputs = {(source, at) for source, first, end in line["inputs"] for at in range(first, end)}
        outcome, there = outcomes.get(name, "unknown"), {*places.get(name, ())}
        if outcome == "committed":
            found.committed += 1
        elif outcome == "aborted":
            found.rolled_back += 1
        else:
            found.unknown += 1
        if outcome == "aborted" and there:
            found.aborted.append(f"{len(there)} records of {name}")
        elif there != inputs and (there or outcome == "committed"):
            found.torn.append(f"{len(there)} of {len(inputs)} records of {name} ({outcome})")


def _parse(value: bytes) -> tuple[int, int, str]:
    source, at, transaction = value.split(b":", 2)
    return int(source), int(at), transaction.decode()


def _shown(place: Place) -> str:
    return f"{place[0]}/{place[1]}"
