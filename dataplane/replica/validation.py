"""How the state machines say which of their invariants does not hold."""

from __future__ import annotations

from wire.errors import InvariantViolation


def require(holds: bool, invariant: str, found: object) -> None:
    """Raises InvariantViolation, with `invariant` and the facts found, unless it holds."""
    if not holds:
        raise InvariantViolation(f"{invariant}: {found}")
