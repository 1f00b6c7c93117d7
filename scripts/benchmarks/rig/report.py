"""Results of a benchmark, as text and as JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from scripts.benchmarks.rig.progress import tell


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    value: float
    unit: str
    reference: float | None = None
    """Figure of another system for the same work, in the same unit."""
    at_least: float | None = None
    """Target: `value` / `reference`, or `value` where there is no reference."""
    at_most: float | None = None
    """Target for `value`."""
    note: str = ""

    @property
    def ratio(self) -> float | None:
        return None if self.reference is None else self.value / self.reference

    @property
    def ok(self) -> bool:
        judged = self.value if self.ratio is None else self.ratio
        return (self.at_least is None or judged >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )


@dataclass(slots=True)
class Report:
    figures: list[Figure] = field(default_factory=list)
    about: dict[str, Any] = field(default_factory=dict)
    """Of the machine and of the run."""

    def add(self, figure: Figure) -> None:
        """Shows it at once: a run may take minutes."""
        tell(f"  {figure.what}: {figure.value:,.1f} {figure.unit}")
        self.figures.append(figure)

    @property
    def ok(self) -> bool:
        return all(figure.ok for figure in self.figures)

    def as_dict(self) -> dict[str, Any]:
        figures = [{**asdict(figure), "ratio": figure.ratio, "ok": figure.ok} for figure in self.figures]
        return {"ok": self.ok, "about": self.about, "figures": figures}

    def __str__(self) -> str:
        width = max(len(figure.what) for figure in self.figures)
        lines = [f"{name}: {value}" for name, value in self.about.items()]
        for figure in self.figures:
            line = f"{figure.what:<{width}}  {figure.value:9.1f} {figure.unit:<5}"
            if figure.ratio is not None:
                line += f"  dd {figure.reference:9.1f} {figure.unit:<5} {figure.ratio:6.0%}"
            if not figure.ok:
                line += "  BELOW TARGET" if figure.at_least is not None else "  ABOVE TARGET"
            if figure.note:
                line += f"  ({figure.note})"
            lines.append(line)
        return "\n".join(lines)
