"""Which streams the subscriptions of a coordinator's groups select.

Members of a group mostly have one subscription, and groups ask again at each of their steps: what a pattern matches,
and what a subscription selects, is found once, and kept until streams come or go. A pattern looks at each name once: a
new stream is shown to the patterns that are known.

What is to be found takes a bounded amount of work at a time (`prepare`): a coordinator shares its event loop with the
leaders of its broker.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from tidelog.coordination.streams import StreamsView, compiled

MOST_KEPT: Final = 4096
"""Patterns, and subscriptions, whose streams are remembered, as"""
MOST_NAMES: Final = 1_000_000
"""names of these streams, of either; beyond that all begin anew."""
_COMPILING: Final = 500
"""Looks that compiling a pattern takes as long as."""


class Subscribed(NamedTuple):
    """Names of streams, and patterns of names."""

    streams: frozenset[str]
    patterns: frozenset[str]

    @property
    def bytes(self) -> int:
        """In a record of a member that has it."""
        return sum(map(len, self.streams)) + sum(map(len, self.patterns)) + 3 * (len(self.streams) + len(self.patterns))


class Selection:
    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._patterns: dict[str, tuple[re.Pattern[str], set[str]]] = {}
        """Compiled, and the names that match."""
        self._selected: dict[Subscribed, frozenset[str]] = {}
        self._matched_names = self._selected_names = 0
        self.looks = 0
        """Names that were compared with patterns, or taken into a subscription's."""

    def on_streams(self, view: StreamsView) -> None:
        names = frozenset(view.streams)
        new, gone = names - self._names, self._names - names
        if not new and not gone:
            return
        self._names = names
        self._selected.clear()
        self._selected_names = 0
        for matcher, found in self._patterns.values():
            found.difference_update(gone)
            found.update(filter(matcher.fullmatch, new))
        self.looks += len(new) * len(self._patterns)

    def prepare(self, wanted: Iterable[Subscribed], most: int) -> bool:
        """Finds what these select, until that has taken `most` looks. False: more is to be found."""
        end = self.looks + most
        for each in wanted:
            if each in self._selected:
                continue
            for pattern in each.patterns:
                if self.looks >= end:
                    return False
                self._match(pattern)
            if self.looks >= end:
                return False
            self._select(each)
        return True

    def of(self, subscribed: Subscribed) -> frozenset[str]:
        """The streams that exist of those that are named, or match a pattern."""
        found = self._selected.get(subscribed)
        return self._select(subscribed) if found is None else found

    def _select(self, subscribed: Subscribed) -> frozenset[str]:
        selected = (subscribed.streams & self._names).union(*map(self._match, subscribed.patterns))
        self.looks += len(selected) + len(subscribed.streams)
        self._selected_names += len(selected)
        if len(self._selected) >= MOST_KEPT or self._selected_names > MOST_NAMES:
            self._selected.clear()
            self._selected_names = len(selected)
        self._selected[subscribed] = selected
        return selected

    def _match(self, pattern: str) -> set[str]:
        known = self._patterns.get(pattern)
        if known is None:
            matcher = compiled(pattern)
            known = matcher, set(filter(matcher.fullmatch, self._names))
            self.looks += len(self._names) * (1 + pattern.count("*")) + _COMPILING
            self._matched_names += len(known[1])
            if len(self._patterns) >= MOST_KEPT or self._matched_names > MOST_NAMES:
                self._patterns.clear()
                self._matched_names = len(known[1])
            self._patterns[pattern] = known
        return known[1]
