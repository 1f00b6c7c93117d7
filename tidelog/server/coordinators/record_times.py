"""The times that a coordinator writes into its records and forgets by (R72)."""

from __future__ import annotations

from typing import Final, NamedTuple

UNDATED: Final = 1 << 62
"""In place of a date, ns since 1970: written while this broker's time was not agreed. It lies in the future, so that
no record is forgotten because of it, by no version."""
_NS: Final = 1_000_000_000


class Times(NamedTuple):
    wall: int
    """The broker's own clock, ns since 1970; only to be shown."""
    agreed: int | None
    """The time by which this broker may forget, ns since 1970; None: it may not now."""

    @property
    def date(self) -> int:
        """Returns the date to write into a record that is forgotten some time after now."""
        return UNDATED if self.agreed is None else self.agreed

    @property
    def shown(self) -> int:
        """Returns the date to write into a record that people read."""
        return self.wall if self.agreed is None else self.agreed

    def dated(self, date: int) -> int:
        """Returns `date`, or now where it cannot be true: it was not known, or came from a clock that was ahead."""
        return date if self.agreed is None or date <= self.agreed else self.agreed

    # Keeps R72.
    def is_over(self, date: int, kept_s: float) -> bool:
        """Returns whether `kept_s` have passed since `date`."""
        return self.agreed is not None and date < self.agreed - int(kept_s * _NS)
