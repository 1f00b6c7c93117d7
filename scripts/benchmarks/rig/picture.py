"""The drawn figures of a comparison as an SVG: two bars for each, as long as their values, and how many times better
Tidelog is. Machine and date of the run stand below.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from scripts.benchmarks.rig.comparison import Comparison, Finding, shown

WIDTH = 900
LEFT, BAR, RIGHT = 310, 400, 876
"""Where bars begin, how long the longer of two is, and where ratios end, in pixels."""
TOP, ROW, BOTTOM = 84, 60, 58
TIDELOG, JETSTREAM = "#0b7285", "#adb5bd"
_FONT = "font-family='-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"


def svg(comparison: Comparison) -> str:
    drawn = [f for f in comparison.findings if f.figure.drawn_as and f.value is not None and f.reference is not None]
    height = TOP + ROW * len(drawn) + BOTTOM
    about = comparison.about
    versions = about["versions"]
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' {_FONT}>",
        f"<rect width='{WIDTH}' height='{height}' rx='8' fill='#ffffff'/>",
        _text(24, 34, "Tidelog and JetStream on the same machine", size=19, weight="bold"),
        _text(
            24,
            58,
            "three replicas; Tidelog syncs every record on all of them, except where it is only 'accepted'",
            size=12,
            colour="#666",
        ),
        *_key(),
        *(part for number, finding in enumerate(drawn) for part in _row(TOP + ROW * number, finding)),
        _text(24, height - 32, f"{about['machine']}. {about['date']}.", size=11, colour="#666"),
        _text(
            24,
            height - 16,
            f"Medians of {about['rounds']} alternating rounds on fresh clusters: scripts/bench. nats-server"
            f" {versions['nats-server']}, nats-py {versions['nats-py']}, Python {versions['python']}.",
            size=11,
            colour="#666",
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _key() -> Iterator[str]:
    for x, name, colour in ((690, "Tidelog", TIDELOG), (784, "JetStream", JETSTREAM)):
        yield f"<rect x='{x}' y='47' width='12' height='12' fill='{colour}'/>"
        yield _text(x + 18, 58, name, size=12)


def _row(top: int, finding: Finding) -> Iterator[str]:
    figure, value, reference = finding.figure, finding.value, finding.reference
    assert value is not None
    assert reference is not None
    most = max(value, reference)
    yield _text(24, top + 18, figure.drawn_as, size=13)
    unit = f"{figure.unit}, less is better" if figure.less_is_better else figure.unit
    yield _text(24, top + 33, unit, size=11, colour="#666")
    yield _text(24, top + 46, figure.note, size=10, colour="#666")
    for y, number, colour in ((top + 5, value, TIDELOG), (top + 23, reference, JETSTREAM)):
        length = max(1.0, BAR * number / most if most else 1.0)
        yield f"<rect x='{LEFT}' y='{y}' width='{length:.1f}' height='15' fill='{colour}'/>"
        yield _text(LEFT + length + 6, y + 12, shown(number), size=11)
    if better := finding.times_better:
        yield _text(RIGHT, top + 28, f"{shown(better)} ×", size=18, weight="bold", anchor="end")  # noqa: RUF001


def _text(
    x: float, y: float, text: str, *, size: int, weight: str = "normal", colour: str = "#212529", anchor: str = "start"
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y}' font-size='{size}' font-weight='{weight}' fill='{colour}' text-anchor='{anchor}'>"
        f"{escape(text)}</text>"
    )
