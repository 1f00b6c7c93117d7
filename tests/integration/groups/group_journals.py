"""What the journals of a group's members (`tests.integration.groups.group_member`) and the committed offsets say
together.

missed      acknowledged records that no member was given
shared      a partition from which a member was given records in an older generation than another one before it
reordered   records of one partition that a member was given out of order, while it kept the partition
moved back  a committed offset below an earlier one
beyond      a committed offset above everything that was given out before
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(slots=True)
class GroupFindings:
    read: int = 0
    """Records that were given out, repetitions too."""
    distinct: int = 0
    missed: list[str] = field(default_factory=list)
    shared: list[str] = field(default_factory=list)
    reordered: list[str] = field(default_factory=list)
    moved_back: list[str] = field(default_factory=list)
    beyond: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not (self.missed or self.shared or self.reordered or self.moved_back or self.beyond)

    def __str__(self) -> str:
        parts = [f"{self.read} records handed out, {self.distinct} of them different"]
        for name in ("missed", "shared", "reordered", "moved_back", "beyond"):
            found = getattr(self, name)
            parts.append(f"{len(found)} {name.replace('_', ' ')}" + (f" ({'; '.join(found[:3])})" if found else ""))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Seen:
    """Committed offsets as an observer saw them."""

    at: float
    """Monotonic seconds, when the answer had come."""
    offsets: dict[int, int]


def read_journal(path: Path) -> list[dict[str, Any]]:
    """A member that was killed may have left half of a line."""
    lines = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines[:-1]]


def judge_journals(
    journals: Mapping[str, Sequence[dict[str, Any]]], acknowledged: Iterable[str], seen: Sequence[Seen]
) -> GroupFindings:
    """`journals`: by the name of the process."""
    found = GroupFindings()
    reads = sorted(
        ((line["at"], member, line) for member, lines in journals.items() for line in lines if line["kind"] == "read"),
        key=lambda read: read[0],
    )
    given: set[str] = set()
    for _, _, line in reads:
        given.update(line["values"])
        found.read += len(line["values"])
    found.distinct = len(given)
    found.missed = sorted(set(acknowledged) - given)
    _judge_order(found, reads)
    _judge_members(found, journals)
    _judge_commits(found, reads, seen)
    return found


def _judge_order(found: GroupFindings, reads: list[tuple[float, str, dict[str, Any]]]) -> None:
    newest: dict[int, tuple[int, str, float]] = {}
    for at, member, line in reads:
        partition, generation = line["partition"], line["generation"]
        known = newest.get(partition)
        if known is not None and known[1] != member and generation < known[0]:
            found.shared.append(
                f"partition {partition}: {member} in generation {generation} at {at:.3f}, {known[1]} in {known[0]} at"
                f" {known[2]:.3f}"
            )
        if known is None or generation >= known[0]:
            newest[partition] = (generation, member, at)


def _judge_members(found: GroupFindings, journals: Mapping[str, Sequence[dict[str, Any]]]) -> None:
    for member, lines in journals.items():
        ends: dict[int, int] = {}
        for line in lines:
            if line["kind"] in ("assigned", "revoked", "lost"):
                for partition in line["partitions"]:
                    ends.pop(partition, None)
            elif line["kind"] == "sought":
                ends.clear()
            elif line["kind"] == "read":
                end = ends.get(line["partition"])
                if end is not None and line["first"] < end:
                    found.reordered.append(f"{member}: partition {line['partition']} at {line['first']} after {end}")
                ends[line["partition"]] = line["next"]


def _judge_commits(found: GroupFindings, reads: list[tuple[float, str, dict[str, Any]]], seen: Sequence[Seen]) -> None:
    highest: dict[int, int] = defaultdict(int)
    committed: dict[int, int] = {}
    at_read = 0
    for look in seen:
        while at_read < len(reads) and reads[at_read][0] <= look.at:
            line = reads[at_read][2]
            highest[line["partition"]] = max(highest[line["partition"]], line["next"])
            at_read += 1
        for partition, offset in look.offsets.items():
            if offset < committed.get(partition, 0):
                found.moved_back.append(f"partition {partition}: {offset} after {committed[partition]}")
            if offset > highest[partition]:
                found.beyond.append(f"partition {partition}: {offset} where {highest[partition]} were given out")
            committed[partition] = offset
