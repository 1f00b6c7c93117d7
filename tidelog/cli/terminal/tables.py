"""Tables that fit the terminal and cut nothing short.

Names, ids and times are typed again into other commands, so that a cell is shown whole. Where a table is wider than the
terminal,

1. columns that may fold break within their cells,
2. columns of less weight are left out, and a line below names them,
3. and where that does not suffice each row becomes a block, a line for each column.

In a pipe or a file a line has any length.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import click

from tidelog.cli.terminal.session import console
from wire.notation import bytes_in_words

if TYPE_CHECKING:
    from wire.operations.api_operations import Traffic


def size(count: int | None) -> str:
    """Returns the size in words; None: not known."""
    return "?" if count is None else bytes_in_words(count)


def sizes(by_replica: Iterable[tuple[str, int | None]]) -> str:
    """Returns the sizes of a partition's replicas: "3 x 1.2 MB" where they look the same, else a line for each."""
    told = [(replica, size(count)) for replica, count in by_replica]
    if len({text for _, text in told}) == 1:
        return told[0][1] if len(told) == 1 else f"{len(told)} x {told[0][1]}"
    return "\n".join(f"{replica} {text}" for replica, text in told)


def rates(traffic: Traffic | None) -> tuple[str, str]:
    """Returns bytes in and bytes out per second, of the last minute."""
    if traffic is None:
        return "?", "?"
    return _rate(traffic["bytes_in_per_s"]), _rate(traffic["bytes_out_per_s"])


def in_words(traffic: Traffic | None) -> list[str]:
    """Returns a line for each direction; none where it is not known."""
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


FOLDED = 12
"""Columns of the terminal that a column keeps when it folds."""


class Rows:
    """Rows of a table. `folds`: columns that may fold. `drops`: columns that may be left out, the first one first."""

    def __init__(self, *columns: str, folds: Collection[str] = (), drops: Sequence[str] = ()) -> None:
        self._columns = columns
        self._folds = folds
        self._drops = drops
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        """Adds a row, with cells in rich's markup."""
        self._rows.append(cells)

    def show(self) -> None:
        kept = [*range(len(self._columns))]
        left_out: list[str] = []
        while (widths := self._widths(kept)) is None and len(left_out) < len(self._drops):
            left_out.append(self._drops[len(left_out)])
            kept = [at for at, title in enumerate(self._columns) if title not in left_out]
        if widths is None:
            self._show_blocks()
            return
        from rich.table import Table

        table = Table()
        for at in kept:
            table.add_column(self._columns[at], width=widths[at], overflow="fold")
        for row in self._rows:
            table.add_row(*(row[at] for at in kept))
        console().print(table)
        if left_out:
            click.echo(f"not shown, for want of width: {', '.join(left_out)} (--json has all)", err=True)

    def _widths(self, kept: Sequence[int]) -> dict[int, int] | None:
        """Returns the widths by the number of the column; None: they do not fit."""
        from rich.text import Text

        natural: dict[int, int] = {}
        least: dict[int, int] = {}
        for at in kept:
            title = self._columns[at]
            cells = [Text.from_markup(row[at]) for row in self._rows]
            content = max((line.cell_len for cell in cells for line in cell.split("\n")), default=0)
            word = max(map(len, title.split()), default=1)
            natural[at] = max(content, len(title), 1)
            least[at] = max(min(content, FOLDED) if title in self._folds else content, word)
        spare = console().width - (3 * len(kept) + 1) - sum(least.values())
        if spare < 0:
            return None
        for at in sorted(kept, key=lambda at: self._columns[at] not in self._folds):
            more = min(spare, natural[at] - least[at])
            least[at] += more
            spare -= more
        return least

    def _show_blocks(self) -> None:
        width = max(map(len, self._columns))
        for number, row in enumerate(self._rows):
            if number:
                click.echo()
            for title, cell in zip(self._columns, row, strict=True):
                console().print(f"{title:<{width}}  {cell}", soft_wrap=True, highlight=False)
