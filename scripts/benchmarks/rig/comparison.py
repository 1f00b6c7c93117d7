"""Results of a comparison of Tidelog with its peers: samples of every figure, and their description.

A peer is a system in one of its ways: "jetstream" (the way that the workload describes), "jetstream, fast batches",
"kafka". A figure is judged against the strongest peer that was measured.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, Self

from rich.console import Console
from rich.table import Table

NOT_SYNCED = "JetStream: at its default, nothing synced"
"""A note of figures where Tidelog is `durable`."""
OURS = "tidelog"
_SPELLED = {"tidelog": "Tidelog", "jetstream": "JetStream", "kafka": "Kafka"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Something that is measured of Tidelog and its peers, or of Tidelog alone."""

    key: str
    """For programs: `plain/128`."""
    what: str
    """For the eye: "128 B, 1 partition"."""
    unit: str
    statistic: Literal["median", "max"] = "median"
    """Of the samples; "max" where the worst counts."""
    ratio_at_least: float | None = None
    """Target: Tidelog's over that of its strongest peer."""
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
class Peer:
    """One peer's samples of a figure, and their statistic."""

    name: str
    samples: Sequence[float]
    value: float

    def __str__(self) -> str:
        """Returns the name as reports show it."""
        return spelled(self.name)


@dataclass(frozen=True, slots=True)
class Finding:
    """A figure with its samples, by system. A system that was not measured has none."""

    figure: Figure
    samples: Mapping[str, Sequence[float]]

    @property
    def value(self) -> float | None:
        """Statistic of Tidelog's samples; None: it was not measured."""
        return self._of(self.samples[OURS]) if OURS in self.samples else None

    @property
    def peers(self) -> list[Peer]:
        """The other systems that were measured, the strongest first."""
        peers = [Peer(name, samples, self._of(samples)) for name, samples in self.samples.items() if name != OURS]
        return sorted(peers, key=lambda peer: peer.value, reverse=not self.figure.less_is_better)

    @property
    def strongest(self) -> Peer | None:
        return self.peers[0] if self.peers else None

    @property
    def ratio(self) -> float | None:
        """Tidelog's value over that of its strongest peer."""
        return (
            self.value / self.strongest.value
            if self.value is not None and self.strongest and self.strongest.value
            else None
        )

    @property
    def times_better(self) -> float | None:
        """Above 1: Tidelog is ahead. None: nothing to compare, or both are 0."""
        if self.value is None or self.strongest is None:
            return None
        better, worse = self.value, self.strongest.value
        if self.figure.less_is_better:
            better, worse = worse, better
        if worse == 0:
            return math.inf if better else None
        return better / worse

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
            "samples": {name: list(samples) for name, samples in self.samples.items()},
            "value": self.value,
            "strongest": {"name": self.strongest.name, "value": self.strongest.value} if self.strongest else None,
            "ratio": self.ratio,
            "ok": self.ok,
        }

    def _of(self, samples: Sequence[float]) -> float:
        return max(samples) if self.figure.statistic == "max" else statistics.median(samples)


@dataclass(slots=True)
class Comparison:
    """Collects samples. `about`: of the machine, the versions and the run."""

    about: dict[str, Any] = field(default_factory=dict)
    _figures: dict[str, Figure] = field(default_factory=dict)
    _samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Key of the figure -> name of the system -> samples."""

    def expect(self, figures: Iterable[Figure]) -> None:
        """Figures appear in this order."""
        self._figures.update((figure.key, figure) for figure in figures)

    def unit(self, key: str) -> str:
        return self._figures[key].unit

    def add(self, key: str, system: str, *samples: float) -> None:
        if key not in self._figures:
            raise KeyError(f"no figure {key!r} is declared")
        self._samples.setdefault(key, {}).setdefault(system, []).extend(samples)

    def record(self, figure: Figure, *samples: float, **peers: Sequence[float]) -> None:
        """Declares a figure and adds Tidelog's samples and those of peers. Shows them at once: a run takes minutes."""
        self.expect([figure])
        self.add(figure.key, OURS, *samples)
        for peer, of_peer in peers.items():
            self.add(figure.key, peer, *of_peer)
        finding = Finding(figure, self._samples[figure.key])
        beside = [f"{peer} {shown(peer.value)}" for peer in finding.peers]
        noted = [figure.note] if figure.note else []
        tell(f"  {figure.what}: {', '.join((f'{shown(finding.value)} {figure.unit}', *beside, *noted))}")

    @property
    def findings(self) -> list[Finding]:
        """Of the figures that were measured."""
        found = [(figure, self._samples.get(key)) for key, figure in self._figures.items()]
        return [Finding(figure, samples) for figure, samples in found if samples]

    @property
    def behind(self) -> list[Finding]:
        """Where Tidelog's strongest peer is ahead of it, the worst first."""
        found = [(finding.times_better, finding) for finding in self.findings]
        return [
            finding
            for _, finding in sorted(
                ((times, f) for times, f in found if times is not None and times < 1), key=lambda each: each[0]
            )
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
            for system, samples in entry["samples"].items():
                comparison.add(figure.key, system, *samples)
        return comparison

    def markdown(self, findings: Iterable[Finding] | None = None) -> str:
        """Returns the table for a page: of all findings, or of those."""
        lines = [
            "| workload | figure | unit | Tidelog | strongest peer | its figure | ratio | other peers | target |",
            "|---|---|---|--:|---|--:|--:|---|---|",
        ]
        for finding in self.findings if findings is None else findings:
            figure, strongest = finding.figure, finding.strongest
            cells = [
                figure.workload,
                figure.what,
                figure.unit,
                _with_spread(finding.value, finding.samples.get(OURS, ())),
                str(strongest or ""),
                _with_spread(strongest.value, strongest.samples) if strongest else "",
                "" if finding.ratio is None else f"{finding.ratio:.2f}",
                ", ".join(f"{peer} {shown(peer.value)}" for peer in finding.peers[1:]),
                finding.target + (" **missed**" if finding.ok is False else ""),
            ]
            lines.append(f"| {' | '.join(cell or '-' for cell in cells)} |")
        return "\n".join(lines)

    def __str__(self) -> str:
        table = Table(box=None, pad_edge=False)
        for heading in ("", "unit"):
            table.add_column(heading)
        for heading in ("Tidelog", "min … max"):
            table.add_column(heading, justify="right")
        table.add_column("strongest peer")
        for heading in ("", "min … max", "ratio", "target"):
            table.add_column(heading, justify="right")
        table.add_column("")
        workload = ""
        for finding in self.findings:
            if finding.figure.workload != workload:
                workload = finding.figure.workload
                table.add_row(f"[bold]{workload}[/bold]")
            verdict = {True: "", False: "[red]MISSED[/red]", None: ""}[finding.ok]
            others = ", ".join(f"{peer} {shown(peer.value)}" for peer in finding.peers[1:])
            strongest = finding.strongest
            table.add_row(
                f"  {finding.figure.what}",
                finding.figure.unit,
                shown(finding.value),
                _spread(finding.samples.get(OURS, ())),
                str(strongest or ""),
                shown(strongest.value) if strongest else "",
                _spread(strongest.samples) if strongest else "",
                "" if finding.ratio is None else f"{finding.ratio:.2f}",
                finding.target,
                "; ".join(part for part in (verdict, others, finding.figure.note) if part),
            )
        console = Console(width=220, no_color=True)
        with console.capture() as captured:
            console.print(table)
        about = [f"{name}: {_listed(value)}" for name, value in self.about.items()]
        return "\n".join((*about, "", captured.get().rstrip()))


def spelled(system: str) -> str:
    """Returns a system's name, with its way if it has one, as it is written."""
    name, comma, way = system.partition(",")
    return f"{_SPELLED.get(name, name)}{comma}{way}"


def shown(number: float | None) -> str:
    """With three digits that mean something."""
    if number is None:
        return ""
    if number == 0:
        return "0"
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def _spread(samples: Sequence[float]) -> str:
    return f"{shown(min(samples))} … {shown(max(samples))}" if len(samples) > 1 else ""


def tell(text: str) -> None:
    """Shows progress on stderr: results alone go to stdout."""
    print(text, file=sys.stderr, flush=True)


def percentile(samples: Sequence[float], percent: float) -> float:
    """Returns the value below which `percent` of the samples lie, interpolated; at least one sample."""
    if len(samples) == 1:
        return samples[0]
    return statistics.quantiles(samples, n=1000, method="inclusive")[round(10 * percent) - 1]


def _with_spread(value: float | None, samples: Sequence[float]) -> str:
    return f"{shown(value)} ({_spread(samples)})" if len(samples) > 1 else shown(value)


def _listed(value: object) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, Mapping) else str(value)
