"""Counts of what a broker has done, dropped and refused. Each feature declares its own, beside the code that counts.

Dropped and refused messages are logged as well, rate limited. The table of counters in docs/reference.md is made of the
declarations.
"""

from __future__ import annotations

from dataclasses import Field, field, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from dataplane.broker.roles.broker_context import BrokerContext


def counter(unit: str, meaning: str) -> Any:
    """A field of a subclass of `Counters`. `meaning`: Markdown, one line."""
    return field(default=0, metadata={"unit": unit, "meaning": meaning})


class Counters:
    """The counters of one feature of a broker: a dataclass of `counter` fields."""

    @classmethod
    def of_broker(cls, _context: BrokerContext) -> Self:
        return cls()

    def add(self, name: str, amount: int) -> None:
        setattr(self, name, getattr(self, name) + amount)


def counts(context: BrokerContext) -> dict[str, int]:
    """All counters of a broker, by name."""
    return {name: getattr(context.the(kind), name) for name, (kind, _) in _declared().items()}


def declared_counters() -> list[tuple[str, str, str]]:
    """(name, unit, meaning) of all counters of the modules that are imported, in the order of their names."""
    return [
        (name, declared.metadata["unit"], declared.metadata["meaning"]) for name, (_, declared) in _declared().items()
    ]


def _declared() -> dict[str, tuple[type[Counters], Field[int]]]:
    found = {
        declared.name: (kind, declared)
        for kind in Counters.__subclasses__()
        for declared in fields(kind)  # type: ignore[arg-type]
    }
    return dict(sorted(found.items()))
