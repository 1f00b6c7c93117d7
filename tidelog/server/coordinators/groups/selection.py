"""The streams that the subscriptions of a coordinator's groups select.

Members of a group mostly have one subscription, and groups ask again at each of their steps: the matches of a pattern,
and the streams of a subscription, are found once, and kept until streams come or go. A pattern looks at each name once.

Names are numbered as they come, and a set of them is a whole number with one bit for each: 10,000 streams take 1.25 kB,
so that the sets kept of all patterns are bounded by their number alone, and those of one group always fit. A name that
goes keeps its number, for it may come back; when most numbers are of names that are gone, all begins anew.

Finding them takes a bounded amount of work at a time (`prepare`): a coordinator shares its event loop with the
leaders of its broker. A pattern goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from typing import Final, NamedTuple

from tidelog.server.coordinators.known_streams import StreamsView, compiled

MOST_KEPT: Final = 4096
"""Patterns, and subscriptions, whose streams are remembered; the one that was used longest ago goes first. More than a
than a group has of either (`MAX_SUBSCRIPTIONS` times `MAX_PATTERNS`), or those of one group would never all fit."""
_COMPILING: Final = 500
"""Looks that compiling a pattern takes as long as."""
_FEW: Final = 1024
"""So many names that are gone are kept with their numbers, however few are there."""
_BITS: Final = bytes.maketrans(b"01", b"\0\1")
_ONE: Final = ord("1")


class Subscribed(NamedTuple):
    """Names of streams, and patterns of names."""

    streams: frozenset[str]
    patterns: frozenset[str]

    @property
    def bytes(self) -> int:
        """Bytes in a record of a member that has this subscription."""
        return sum(map(len, self.streams)) + sum(map(len, self.patterns)) + 3 * (len(self.streams) + len(self.patterns))


class _Pattern:
    __slots__ = ("cost", "fullmatch", "matched", "seen")

    def __init__(self, pattern: str) -> None:
        self.fullmatch: Final = compiled(pattern).fullmatch
        self.cost: Final = 1 + pattern.count("*")
        """Work of comparing one name, in looks."""
        self.matched = 0
        """Names that match, of those already compared."""
        self.seen = 0
        """Names with a lower number have been compared."""


class Selection:
    def __init__(self) -> None:
        self._present: frozenset[str] = frozenset()
        """Names of the existing streams."""
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._there = 0
        """Names of the existing streams, as bits."""
        self._patterns: dict[str, _Pattern] = {}
        self._selected: dict[Subscribed, int] = {}
        self.looks = 0
        """Names that were compared with patterns, or looked up for a subscription."""

    def on_streams(self, view: StreamsView) -> None:
        names = frozenset(view.streams)
        new, gone = names - self._present, self._present - names
        if not new and not gone:
            return
        self._present = names
        self._selected.clear()
        if len(self._names) + len(new) > 2 * len(names) + _FEW:
            self._names, self._numbers, self._there = [], {}, 0
            self._patterns.clear()
            new, gone = names, frozenset()
        unseen = [name for name in new if name not in self._numbers]
        self._numbers.update(zip(unseen, range(len(self._names), len(self._names) + len(unseen)), strict=True))
        self._names += unseen
        self._there = self._there & ~self._set_of(gone) | self._set_of(new)

    def prepare(self, wanted: Iterable[Subscribed], most: int) -> bool:
        """Finds the streams of these subscriptions, within `most` looks. False: some are not found yet."""
        end = self.looks + most
        for each in wanted:
            if each in self._selected:
                self._selected[each] = self._selected.pop(each)
                continue
            for pattern in each.patterns:
                if self.looks >= end or not self._match(pattern, end - self.looks):
                    return False
            if self.looks >= end:
                return False
            self._select(each)
        return True

    def of(self, subscribed: Subscribed) -> int:
        """Returns the existing streams that are named, or match a pattern: a bit for each."""
        found = self._selected.get(subscribed)
        return self._select(subscribed) if found is None else found

    def names(self, streams: int) -> list[str]:
        """Returns the names of these bits."""
        return list(compress(self._names, f"{streams:b}"[::-1].encode().translate(_BITS))) if streams else []

    def bits(self, names: Iterable[str]) -> int:
        """Returns the bits of the names that exist."""
        return self._set_of(filter(self._numbers.__contains__, names)) & self._there

    def _set_of(self, names: Iterable[str]) -> int:
        """Returns the bits of `names`, which must have numbers. The work grows linearly with all names."""
        marks = bytearray(b"0" * len(self._names))
        found = False
        for name in names:
            marks[self._numbers[name]] = _ONE
            found = True
        return int(marks[::-1], 2) if found else 0

    def _select(self, subscribed: Subscribed) -> int:
        selected = self.bits(subscribed.streams) if subscribed.streams else 0
        self.looks += len(subscribed.streams) + len(subscribed.patterns)
        for pattern in subscribed.patterns:
            self._match(pattern, None)
            selected |= self._patterns[pattern].matched & self._there
        if len(self._selected) >= MOST_KEPT:
            del self._selected[next(iter(self._selected))]
        self._selected[subscribed] = selected
        return selected

    def _match(self, pattern: str, most: int | None) -> bool:
        """Compares the pattern with the names that it has not seen, for `most` looks or somewhat more; None: with all.
        False: some are left."""
        known = self._patterns.pop(pattern, None)
        if known is None:
            known = _Pattern(pattern)
            self.looks += _COMPILING
            if len(self._patterns) >= MOST_KEPT:
                del self._patterns[next(iter(self._patterns))]
        self._patterns[pattern] = known
        end = len(self._names)
        if most is not None:
            end = min(end, known.seen + 1 + most // known.cost)
        if known.seen < end:
            names = self._names[known.seen : end]
            marks = "".join("1" if known.fullmatch(name) else "0" for name in reversed(names))
            known.matched |= int(marks, 2) << known.seen
            self.looks += len(names) * known.cost
            known.seen = end
        return end == len(self._names)
