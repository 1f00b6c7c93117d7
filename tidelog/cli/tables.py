"""Tables that fit the terminal and cut nothing short.

Names, ids and times are typed again into other commands, so that a cell is shown whole. Where a table is wider than the
terminal,

1. columns that may fold break within their cells,
2. columns of less weight are left out, and a line below names them,
3. and where that does not suffice each row becomes a block, a line for each column.

In a pipe or a file a line has any length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import click

from tidelog.cli.session import console

FOLDED = 12
"""Columns of the terminal that a column keeps when it folds."""


class Rows:
    """`folds`: columns that may fold. `drops`: columns that may be left out, the first one first."""

    def __init__(self, *columns: str, folds: Collection[str] = (), drops: Sequence[str] = ()) -> None:
        self._columns = columns
        self._folds = folds
        self._drops = drops
        self._rows: list[tuple[str, ...]] = []

    def add(self, *cells: str) -> None:
        """Cells are in rich's markup."""
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
        """By the number of the column; None: they do not fit."""
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
