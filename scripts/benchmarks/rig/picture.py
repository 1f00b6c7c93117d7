"""The drawn figures of a comparison as an SVG: for each, two bars, of Tidelog and of its strongest peer, and how many
times better Tidelog is. Figures where it is behind come first. Machine and date of the run stand below.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from scripts.benchmarks.rig.comparison import OURS, Comparison, Finding, shown, spelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, ROW, MARGIN = 9.4, 0.58, 1.5
"""Inches: of the picture, of a figure's height, and of what stands above and below the figures."""
TIDELOG, PEER, GREY = "#0b7285", "#adb5bd", "#666666"
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tidelog",  # the same run gives the same file
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8,
}


def svg(comparison: Comparison) -> str:
    # Only the picture needs the library, which takes a second to import.
    import matplotlib as mpl
    from matplotlib.figure import Figure as Picture

    drawn = [f for f in comparison.findings if f.figure.drawn_as and f.times_better is not None]
    drawn.sort(key=lambda finding: finding.times_better is not None and finding.times_better >= 1)
    about = comparison.about
    versions = about["versions"]
    height = ROW * len(drawn) + MARGIN
    with mpl.rc_context(SETTINGS):
        picture = Picture(figsize=(WIDTH, height))
        axes = picture.add_axes((0.36, 0.65 / height, 0.5, ROW * max(1, len(drawn)) / height))
        axes.set_ylim(len(drawn) - 0.4, -0.6)
        axes.set_xlim(0, 1.2)
        axes.axis("off")
        for row, finding in enumerate(drawn):
            _draw(axes, row, finding)
        picture.text(
            0.02, 1 - 0.3 / height, "Tidelog and its strongest peer on the same machine", size=13, weight="bold"
        )
        picture.text(
            0.02,
            1 - 0.55 / height,
            "three replicas; Tidelog syncs every record on all of them, except where it is only 'accepted'",
            color=GREY,
        )
        picture.text(0.02, 0.3 / height, f"{about['machine']}. {about['date']}.", size=7, color=GREY)
        picture.text(
            0.02,
            0.13 / height,
            f"Medians of {about['rounds']} alternating rounds on fresh clusters: scripts/bench. nats-server"
            f" {versions['nats-server']}, nats-py {versions['nats-py']}, Python {versions['python']}.",
            size=7,
            color=GREY,
        )
        written = io.StringIO()
        picture.savefig(written, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def _draw(axes: Axes, row: int, finding: Finding) -> None:
    figure, value, strongest = finding.figure, finding.value, finding.strongest
    assert value is not None
    assert strongest is not None
    most = max(value, strongest.value)
    bars = ((row - 0.16, spelled(OURS), value, TIDELOG), (row + 0.16, str(strongest), strongest.value, PEER))
    for y, name, number, colour in bars:
        axes.barh(y, number / most, height=0.3, color=colour)
        axes.text(number / most + 0.01, y, f"{shown(number)}  {name}", va="center", size=7)
    unit = f"{figure.unit}, less is better" if figure.less_is_better else figure.unit
    axes.text(-0.815, row - 0.16, figure.drawn_as, va="center")
    axes.text(-0.815, row + 0.16, "; ".join(filter(None, (unit, figure.note))), va="center", size=6.5, color=GREY)
    axes.text(1.5, row, f"{shown(finding.times_better)} ×", va="center", ha="right", size=12, weight="bold")  # noqa: RUF001
