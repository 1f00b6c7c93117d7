"""Flights with the weather at their airport in the hour of their departure: a join of two streams.

    flights ─┐
             ├─> same airport, same hour ─> Parquet, appended
    weather ─┘

Both sides have a watermark on their records' timestamps, and the condition binds the times together, so that Spark can
tell when no partner will come any more: it then drops the state of a flight, and writes it without weather (a left
outer join). Flights of the last hours are still waiting when the query ends.

The rows are compared with a merge in pandas: each flight with weather once, with the right weather; and of those
without, every one that is old enough, once, and no flight that has weather.
"""

from __future__ import annotations

import sys

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from examples.flights import FLIGHT, WEATHER, events, flights, weather
from examples.stage import Mismatch, Stage, run

LATEST = pd.Timedelta(days=2, hours=1)
"""A flight without weather is written when the newest record of the slower stream is so much later: by the watermark's
delay, and the hour, and a day more for the batch in between."""


def job(stage: Stage) -> str:
    table = flights(stage.rows)
    observations = weather(until=table["timestamp"].max())
    stage.publish("flights", events(table.reset_index(names="row"), key="tailnum"))
    stage.publish("weather", events(observations, key="origin"))
    query = (
        with_weather(read(stage, "flights", len(table)), read(stage, "weather", len(observations)))
        .writeStream.format("parquet")
        .option("path", str(stage.folder / "enriched"))
        .option("checkpointLocation", str(stage.folder / "enriched-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    batches = query.recentProgress
    late = sum(int(state.numRowsDroppedByWatermark) for batch in batches for state in batch.stateOperators)
    if late:
        raise Mismatch(f"{late} records came later than the watermark allows")
    kept = max(int(state.numRowsTotal) for batch in batches for state in batch.stateOperators)
    found = pd.read_parquet(stage.folder / "enriched")
    compare(found, expected(table, observations), observations["timestamp"].max() - LATEST)
    return (
        f"{len(found):,} of {len(table):,} flights, {int(found['temp'].isna().sum())} without weather, "
        f"in {len(batches)} batches with at most {kept:,} rows of state"
    )


def read(stage: Stage, stream: str, records: int) -> DataFrame:
    return (
        stage.spark.readStream.format("tidelog")
        .option("servers", stage.servers)
        .option("subscribe", stream)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(200, records // 4))
        .load()
    )


def with_weather(flights: DataFrame, weather: DataFrame) -> DataFrame:
    flight = (
        flights.select(
            f.from_json(f.col("value").cast("string"), f"row int, {FLIGHT}").alias("flight"),
            f.col("timestamp").alias("departs"),
        )
        .select("flight.*", "departs")
        .withWatermark("departs", "1 day")
    )
    observation = (
        weather.select(f.from_json(f.col("value").cast("string"), WEATHER).alias("weather"), "timestamp")
        .select("weather.*", f.col("timestamp").alias("observed"))
        .withColumnRenamed("origin", "airport")
        .withWatermark("observed", "1 day")
    )
    near = (
        (f.col("origin") == f.col("airport"))
        & (f.col("departs") >= f.col("observed"))
        & (f.col("departs") < f.col("observed") + f.expr("interval 1 hour"))
    )
    return flight.join(observation, near, "leftOuter").select("row", "departs", "origin", "temp", "wind_speed")


def expected(table: pd.DataFrame, observations: pd.DataFrame) -> pd.DataFrame:
    """Every flight, with `temp` and `wind_speed` where there is an observation of its hour."""
    departures = table[["timestamp", "origin"]].assign(hour=table["timestamp"].dt.floor("h")).reset_index(names="row")
    hours = observations[["timestamp", "origin", "temp", "wind_speed"]].rename(columns={"timestamp": "hour"})
    return departures.merge(hours, on=["origin", "hour"], how="left", indicator=True)


def compare(found: pd.DataFrame, wanted: pd.DataFrame, old: pd.Timestamp) -> None:
    """`old`: flights before that time are there, with or without weather."""
    if found["row"].duplicated().any():
        raise Mismatch(f"{int(found['row'].duplicated().sum())} flights are there more than once")
    both = wanted.merge(found, on="row", how="left", suffixes=("", "_found"), indicator="there")
    is_there = both["there"] == "both"
    must = (both["_merge"] == "both") | (both["timestamp"] < old)
    if not is_there[must].all():
        raise Mismatch(
            f"{int((~is_there[must]).sum())} flights are missing, the first {both[must & ~is_there].iloc[0]}"
        )
    for column in ("temp", "wind_speed"):
        # Published with two decimals.
        wrong = both[is_there & ~is_same(both[column], both[f"{column}_found"])]
        if not wrong.empty:
            raise Mismatch(f"{len(wrong)} flights have another {column}, the first {wrong.iloc[0].to_dict()}")


def is_same(one: pd.Series[float], other: pd.Series[float]) -> pd.Series[bool]:
    return ((one - other).abs() < 0.006) | (one.isna() & other.isna())


if __name__ == "__main__":
    sys.exit(run(job))
