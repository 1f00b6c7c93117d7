"""The times that a coordinator writes into its records and forgets by (R72)."""

from __future__ import annotations

from typing import Final, NamedTuple

UNDATED: Final = 1 << 62
"""In place of a date, ns since 1970: written while this broker's time was not agreed. It lies in the future, so that
nothing is forgotten for it, also by an earlier version."""
_NS: Final = 1_000_000_000


class Times(NamedTuple):
    wall: int
    """The broker's own clock, ns since 1970: to be shown, and nothing else."""
    agreed: int | None
    """The time by which this broker may forget, ns since 1970; None: it may not now."""

    @property
    def date(self) -> int:
        """To be written where something is forgotten later, counted from now."""
        return UNDATED if self.agreed is None else self.agreed

    @property
    def shown(self) -> int:
        """To be written where people read it."""
        return self.wall if self.agreed is None else self.agreed

    def dated(self, date: int) -> int:
        """A date that cannot be true counts from now: it was not known, or the clock that gave it was ahead."""
        return date if self.agreed is None or date <= self.agreed else self.agreed

    # Keeps R72.
    def is_over(self, date: int, kept_s: float) -> bool:
        """`kept_s` have passed since then."""
        return self.agreed is not None and date < self.agreed - int(kept_s * _NS)
