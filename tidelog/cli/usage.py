"""Bytes on disks and traffic of clients, as tables and lines show them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from wire.notation import bytes_in_words

if TYPE_CHECKING:
    from wire.operations.api_operations import Traffic


def size(count: int | None) -> str:
    """None: not known."""
    return "?" if count is None else bytes_in_words(count)


def sizes(by_replica: Iterable[tuple[str, int | None]]) -> str:
    """Those of the replicas of a partition: "3 x 1.2 MB" where they look the same, else a line for each."""
    told = [(replica, size(count)) for replica, count in by_replica]
    if len({text for _, text in told}) == 1:
        return told[0][1] if len(told) == 1 else f"{len(told)} x {told[0][1]}"
    return "\n".join(f"{replica} {text}" for replica, text in told)


def rates(traffic: Traffic | None) -> tuple[str, str]:
    """Bytes in and bytes out per second, of the last minute."""
    if traffic is None:
        return "?", "?"
    return _rate(traffic["bytes_in_per_s"]), _rate(traffic["bytes_out_per_s"])


def in_words(traffic: Traffic | None) -> list[str]:
    """A line for each way; none where it is not known."""
    if traffic is None:
        return []
    return [
        _line("in", traffic["records_in"], traffic["bytes_in"], traffic["records_in_per_s"], traffic["bytes_in_per_s"]),
        _line(
            "out",
            traffic["records_out"],
            traffic["bytes_out"],
            traffic["records_out_per_s"],
            traffic["bytes_out_per_s"],
        ),
    ]


def _line(way: str, records: int, size: int, records_per_s: float, bytes_per_s: float) -> str:
    return (
        f"{way}: {records:,} records, {bytes_in_words(size)} since the start;"
        f" in the last minute {records_per_s:,.1f} records/s, {_rate(bytes_per_s)}"
    )


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_in_words(round(bytes_per_s))}/s"
