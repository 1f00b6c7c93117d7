"""Results of a comparison of the two systems: samples of every figure, and their description."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from rich.console import Console
from rich.table import Table

NOT_SYNCED = "JetStream: at its default, nothing synced"
"""A note of figures where Tidelog is `durable`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Something that is measured of both systems, or of Tidelog alone."""

    key: str
    """For programs: `plain/128`."""
    what: str
    """For the eye: "128 B, 1 partition"."""
    unit: str
    statistic: Literal["median", "max"] = "median"
    """Of the samples; "max" where the worst counts."""
    ratio_at_least: float | None = None
    """Target: Tidelog's over JetStream's."""
    ratio_at_most: float | None = None
    at_least: float | None = None
    """Target: Tidelog's value, in `unit`."""
    at_most: float | None = None
    less_is_better: bool = False
    drawn_as: str = ""
    """Its name in the picture, which has no tables around it. Empty: it is not drawn."""
    note: str = ""
    """Explanation that is needed to read it."""

    @property
    def workload(self) -> str:
        return self.key.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure with its samples. None where a system was not measured."""

    figure: Figure
    tidelog: Sequence[float]
    jetstream: Sequence[float]

    @property
    def value(self) -> float | None:
        return self._of(self.tidelog)

    @property
    def reference(self) -> float | None:
        return self._of(self.jetstream)

    @property
    def ratio(self) -> float | None:
        return self.value / self.reference if self.value is not None and self.reference else None

    @property
    def times_better(self) -> float | None:
        """Above 1: Tidelog is ahead."""
        if not self.figure.less_is_better or not self.ratio:
            return self.ratio
        return 1 / self.ratio

    @property
    def ok(self) -> bool | None:
        """Whether the targets are met; None where there are none, or nothing was measured."""
        f, value, ratio = self.figure, self.value, self.ratio
        judged = [
            *(value >= f.at_least for _ in "x" if value is not None and f.at_least is not None),
            *(value <= f.at_most for _ in "x" if value is not None and f.at_most is not None),
            *(ratio >= f.ratio_at_least for _ in "x" if ratio is not None and f.ratio_at_least is not None),
            *(ratio <= f.ratio_at_most for _ in "x" if ratio is not None and f.ratio_at_most is not None),
        ]
        return all(judged) if judged else None

    @property
    def target(self) -> str:
        f = self.figure
        parts = [
            f"≥ {f.ratio_at_least:g} x" if f.ratio_at_least is not None else "",
            f"≤ {f.ratio_at_most:g} x" if f.ratio_at_most is not None else "",
            f"≥ {shown(f.at_least)} {f.unit}" if f.at_least is not None else "",
            f"≤ {shown(f.at_most)} {f.unit}" if f.at_most is not None else "",
        ]
        return ", ".join(part for part in parts if part)

    def as_dict(self) -> dict[str, Any]:
        return {
            **asdict(self.figure),
            "tidelog": {"value": self.value, "samples": list(self.tidelog)},
            "jetstream": {"value": self.reference, "samples": list(self.jetstream)},
            "ratio": self.ratio,
            "ok": self.ok,
        }

    def _of(self, samples: Sequence[float]) -> float | None:
        if not samples:
            return None
        return max(samples) if self.figure.statistic == "max" else statistics.median(samples)


@dataclass(slots=True)
class Comparison:
    """Collects samples. `about`: of the machine, the versions and the run."""

    about: dict[str, Any] = field(default_factory=dict)
    _figures: dict[str, Figure] = field(default_factory=dict)
    _samples: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def expect(self, figures: Iterable[Figure]) -> None:
        """Figures appear in this order."""
        self._figures.update((figure.key, figure) for figure in figures)

    def unit(self, key: str) -> str:
        return self._figures[key].unit

    def add(self, key: str, system: str, *samples: float) -> None:
        if key not in self._figures:
            raise KeyError(f"no figure {key!r} is declared")
        self._samples.setdefault((key, system), []).extend(samples)

    @property
    def findings(self) -> list[Finding]:
        """Of the figures that were measured."""
        return [
            Finding(figure, self._samples.get((key, "tidelog"), ()), self._samples.get((key, "jetstream"), ()))
            for key, figure in self._figures.items()
            if (key, "tidelog") in self._samples or (key, "jetstream") in self._samples
        ]

    @property
    def ok(self) -> bool:
        return all(finding.ok is not False for finding in self.findings)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "about": self.about, "figures": [finding.as_dict() for finding in self.findings]}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Self:
        """The inverse of `as_dict`."""
        comparison = cls(document["about"])
        names = {field.name for field in fields(Figure)}
        for entry in document["figures"]:
            figure = Figure(**{name: value for name, value in entry.items() if name in names})
            comparison.expect([figure])
            for system in ("tidelog", "jetstream"):
                if entry[system]["samples"]:
                    comparison.add(figure.key, system, *entry[system]["samples"])
        return comparison

    def markdown(self) -> str:
        """The table for a page."""
        lines = [
            "| workload | figure | unit | Tidelog | JetStream | ratio | target |",
            "|---|---|---|--:|--:|--:|--:|",
        ]
        for finding in self.findings:
            figure = finding.figure
            cells = [
                figure.workload,
                figure.what,
                figure.unit,
                *(
                    f"{shown(value)} ({_spread(samples)})" if len(samples) > 1 else shown(value)
                    for value, samples in ((finding.value, finding.tidelog), (finding.reference, finding.jetstream))
                ),
                "" if finding.ratio is None else f"{finding.ratio:.2f}",
                finding.target + (" **missed**" if finding.ok is False else ""),
            ]
            lines.append(f"| {' | '.join(cells)} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "unit"):
            table.add_column(heading)
        for heading in ("Tidelog", "min … max", "JetStream", "min … max", "ratio", "target"):
            table.add_column(heading, justify="right")
        table.add_column("")
        workload = ""
        for finding in self.findings:
            if finding.figure.workload != workload:
                workload = finding.figure.workload
                table.add_row(f"[bold]{workload}[/bold]")
            verdict = {True: "", False: "[red]MISSED[/red]", None: ""}[finding.ok]
            table.add_row(
                f"  {finding.figure.what}",
                finding.figure.unit,
                shown(finding.value),
                _spread(finding.tidelog),
                shown(finding.reference),
                _spread(finding.jetstream),
                "" if finding.ratio is None else f"{finding.ratio:.2f}",
                finding.target,
                " ".join(part for part in (verdict, finding.figure.note) if part),
            )
        console = Console(width=200, no_color=True)
        with console.capture() as captured:
            console.print(table)
        about = [f"{name}: {_told(value)}" for name, value in self.about.items()]
        return "\n".join((*about, "", captured.get().rstrip()))


def shown(number: float | None) -> str:
    """With three digits that mean something."""
    if number is None:
        return ""
    if number == 0:
        return "0"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _spread(samples: Sequence[float]) -> str:
    return f"{shown(min(samples))} … {shown(max(samples))}" if len(samples) > 1 else ""


def _told(value: object) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
