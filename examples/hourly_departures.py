"""Flights and cancellations by airport and hour: windowed counts with a watermark on the records' event time.

    flights ─> window of an hour on `timestamp` ─> count by airport ─> Parquet, appended

The column `timestamp` is the event time that the publisher gave its records, here the scheduled departure. A watermark
of a day lets the partitions of the stream be a day apart; a window is written once, when the watermark has passed its
end, and its state is dropped. The last day is therefore not there until later records come.

The windows are compared with pandas: all that the watermark has passed, no other, each count.
"""

from __future__ import annotations

import sys

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from examples.flights import FLIGHT, events, flights
from examples.stage import Mismatch, Stage, run


def job(stage: Stage) -> str:
    table = flights(stage.rows)
    stage.publish("departures", events(table, key="tailnum"))
    records = (
        stage.spark.readStream.format("tidelog")
        .option("servers", stage.servers)
        .option("subscribe", "departures")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(2_000, len(table) // 4))
        .load()
    )
    query = (
        hourly(records)
        .writeStream.format("parquet")
        .option("path", str(stage.folder / "hourly"))
        .option("checkpointLocation", str(stage.folder / "hourly-checkpoint"))
        .outputMode("append")
        .trigger(availableNow=True)  # what is there now; without it the query goes on for ever
        .start()
    )
    query.awaitTermination()
    batches = query.recentProgress
    late = sum(int(state.numRowsDroppedByWatermark) for batch in batches for state in batch.stateOperators)
    if late:
        raise Mismatch(f"{late} flights came later than the watermark allows")
    watermark = pd.Timestamp(batches[-1].eventTime["watermark"])
    found = pd.read_parquet(stage.folder / "hourly").sort_values(["hour", "origin"], ignore_index=True)
    compare(found, expected(table, watermark))
    return f"{len(found):,} windows of {len(table):,} flights in {len(batches)} batches, up to {watermark}"


def hourly(records: DataFrame) -> DataFrame:
    flight = f.from_json(f.col("value").cast("string"), FLIGHT)
    return (
        records.withColumn("flight", flight)
        .withWatermark("timestamp", "1 day")
        .groupBy(f.window("timestamp", "1 hour"), "flight.origin")
        .agg(f.count("*").alias("flights"), f.count_if(f.col("flight.dep_time").isNull()).alias("cancelled"))
        .select(f.col("window.start").alias("hour"), "origin", "flights", "cancelled")
    )


def expected(table: pd.DataFrame, watermark: pd.Timestamp) -> pd.DataFrame:
    hours = table["timestamp"].dt.floor("h").rename("hour")
    counts = (
        table.groupby([hours, "origin"], sort=True)
        .agg(flights=("flight", "size"), cancelled=("dep_time", lambda times: int(times.isna().sum())))
        .reset_index()
    )
    return counts[counts["hour"] + pd.Timedelta(hours=1) <= watermark]


def compare(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    """Both in the same order."""
    if found.empty:
        raise Mismatch("no window was closed")
    there, right = (set(frame.itertuples(index=False, name=None)) for frame in (found, wanted))
    missing, foreign = right - there, there - right
    if missing or foreign or len(found) != len(wanted):
        raise Mismatch(
            f"{len(missing)} windows are missing and {len(foreign)} are not those of pandas, "
            f"the first {min(missing | foreign, default=None)}; {len(found)} rows where pandas has {len(wanted)}"
        )


if __name__ == "__main__":
    sys.exit(run(job))
