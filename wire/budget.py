"""Bounds on what others can make a process keep or do, and the counts that keep them.

What is counted goes through a `Budget`, which refuses what does not fit. Its `Bound` is a row of the table of bounds in
docs/reference.md:

    admit(size) ── room here and in all parents ──> counted in each of them until `release(size)`
         └──────── none ──> BACKPRESSURE, with the name of the bound; the bound's counter grows
"""

from __future__ import annotations

from dataclasses import dataclass
from sys import maxsize
from typing import Any

from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code, TidelogError


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One row of the table. 0: not bounded in that unit."""

    on: str
    """What is bounded; of what is counted, in the plural."""
    name: str = ""
    """The limit as refusals name it."""
    per: str = ""
    """What has so many; empty: a broker."""
    items: int = 0
    bytes: int = 0
    items_of_all: int = 0
    """Items of all that have so many, at one broker."""
    bytes_of_all: int = 0
    limit: str = ""
    """The limit, or what else is to be said of it, in words."""
    answer: str = "nothing"
    """What the sender gets: the code of an error, where there is one."""
    counter: str = ""
    """Counter of a broker in `cluster status --json`; empty: none."""
    retry_after_ms: int = 100

    @property
    def what(self) -> str:
        """The first cell of the row."""
        return self.on + (f", of {self.per}" if self.per else "") + (f", `{self.name}`" if self.name else "")

    @property
    def limits(self) -> str:
        """The second cell of the row."""
        here = [str(self.items)] * bool(self.items) + [f"{self.bytes} bytes"] * bool(self.bytes)
        of_all = [str(self.items_of_all)] * bool(self.items_of_all)
        of_all += [f"{self.bytes_of_all} bytes"] * bool(self.bytes_of_all)
        told = [", and ".join(here), ", and ".join(of_all) + " of all of a broker" if of_all else "", self.limit]
        return "; ".join(filter(None, told))


class Budget:
    """Counts what is admitted under `bound`. `holder`: what has it, for sentences. `parent`: counts it, too.
    `counters`: has the attribute `bound.counter`."""

    __slots__ = ("_counters", "_holder", "_most_bytes", "_most_items", "bound", "bytes", "items", "parent")

    def __init__(
        self, bound: Bound, holder: object, *, parent: Budget | None = None, counters: Any = None, of_all: bool = False
    ) -> None:
        """`of_all`: this one is the parent of all others of the bound."""
        self.bound = bound
        self.parent = parent
        self.items = 0
        self.bytes = 0
        self._holder = holder
        self._counters = counters
        self._most_items = (bound.items_of_all if of_all else bound.items) or maxsize
        self._most_bytes = (bound.bytes_of_all if of_all else bound.bytes) or maxsize

    def admit(self, size: int = 0) -> TidelogError | None:
        """Counts an item of `size` bytes, here and in the parents. An error: there is no room, and nothing counts."""
        if self.items >= self._most_items or self.bytes + size > self._most_bytes:
            return self.refuse()
        if self.parent is not None and (error := self.parent.admit(size)) is not None:
            self._count_refusal()
            return error
        self.items += 1
        self.bytes += size
        return None

    def full(self, size: int = 0) -> bool:
        """Whether there is no room for an item of `size` bytes, here or in a parent."""
        if self.items >= self._most_items or self.bytes + size > self._most_bytes:
            return True
        return self.parent is not None and self.parent.full(size)

    def take(self, size: int = 0) -> None:
        """Counts an item whether or not there is room."""
        self.items += 1
        self.bytes += size
        if self.parent is not None:
            self.parent.take(size)

    def release(self, size: int = 0, items: int = 1) -> None:
        """Ends the count of `items` items of `size` bytes together."""
        self.items -= items
        self.bytes -= size
        if self.parent is not None:
            self.parent.release(size, items)

    def refuse(self) -> TidelogError:
        """Counts a refusal, and returns it."""
        self._count_refusal()
        bound = self.bound
        count = "" if self._most_items == maxsize else f"{self.items} "
        size = "" if self._most_bytes == maxsize else f", {self.bytes} bytes,"
        return TidelogError(
            Code.BACKPRESSURE,
            f"{self._holder} has {count}{bound.on}{size} already; try again",
            [RETRY_AFTER_MS.of(bound.retry_after_ms), LIMIT.of(bound.name)],
        )

    def _count_refusal(self) -> None:
        if self._counters is not None:
            setattr(self._counters, self.bound.counter, getattr(self._counters, self.bound.counter) + 1)
