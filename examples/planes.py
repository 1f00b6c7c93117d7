"""Where each plane is: the changes of a compacted stream, upserted into a table of Parquet files.

    planes (compacted; key: a plane's number) ─> newest change of each key ─> the table, without it ─> the next table

A value is the plane's newest flight; no value, a tombstone, takes the plane out of the table (here: a flight of it was
cancelled). `foreachBatch` writes the table anew in a folder of its own and then replaces a symbolic link, so a reader
of `current` sees the table as of one micro-batch, whole. The folder has the batch's number: a batch that Spark runs
again, because the query ended before Spark knew of it, changes nothing.

The table is compared with pandas: the planes whose newest flight was not cancelled, each once, with that flight.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from examples.flights import Event, events, flights
from examples.stage import Mismatch, Stage, run

PLANE = "flight int, carrier string, origin string, dest string, dep_time int"
"""Columns of the table beside `tailnum`."""


def job(stage: Stage) -> str:
    table = flights(stage.rows)
    table = table[table["tailnum"] != ""]
    stage.publish("planes", changes(table), compact="true")
    snapshots = Snapshots(stage.folder / "planes")
    query = (
        stage.spark.readStream.format("tidelog")
        .option("servers", stage.servers)
        .option("subscribe", "planes")
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", max(1_000, len(table) // 4))
        .load()
        .writeStream.foreachBatch(snapshots.upsert)
        .option("checkpointLocation", str(stage.folder / "planes-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = pd.read_parquet(snapshots.current.resolve())
    compare(found, expected(table))
    return f"{len(found):,} planes after {len(table):,} changes in {snapshots.number() + 1} batches"


def changes(table: pd.DataFrame) -> Iterator[Event]:
    for event, is_cancelled in zip(events(table, key="tailnum"), table["dep_time"].isna(), strict=True):
        yield event._replace(value=None) if is_cancelled else event


class Snapshots:
    """`<folder>/<number of the batch>`: the table after that batch. `<folder>/current`: a link to the newest one."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.current = folder / "current"

    def number(self) -> int:
        """The newest batch that is in the table, -1 before the first."""
        return int(self.current.resolve().name) if self.current.is_symlink() else -1

    def upsert(self, records: DataFrame, number: int) -> None:
        """For `foreachBatch`. All records of a key are in one partition, so their offsets tell which is the newest."""
        before = self.number()
        if number <= before:
            return  # done, and the query ended before Spark knew
        newest = (
            records.groupBy(f.col("key").cast("string").alias("tailnum"))
            .agg(f.max_by("value", "offset").alias("value"))
            .persist()
        )
        after = (
            newest.where("value IS NOT NULL")
            .withColumn("plane", f.from_json(f.col("value").cast("string"), PLANE))
            .select("tailnum", "plane.*")
        )
        if before >= 0:
            unchanged = records.sparkSession.read.parquet(str(self._folder / f"{before}"))
            after = after.unionByName(unchanged.join(newest, "tailnum", "left_anti"))
        # A folder of this number that is there already was not finished.
        after.write.mode("overwrite").parquet(str(self._folder / f"{number}"))
        newest.unpersist()
        self._replace(number, before)

    def _replace(self, number: int, before: int) -> None:
        link = self._folder / "next"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{number}")
        link.replace(self.current)
        for entry in self._folder.iterdir():  # the one before stays, for those who are reading it
            if entry.name.isdecimal() and int(entry.name) < before:
                shutil.rmtree(entry)


def expected(table: pd.DataFrame) -> pd.DataFrame:
    newest = table.groupby("tailnum").tail(1)
    return newest[newest["dep_time"].notna()]


def compare(found: pd.DataFrame, wanted: pd.DataFrame) -> None:
    columns = ["tailnum", *(member.split()[0] for member in PLANE.split(", "))]
    tables = [set(frame[columns].itertuples(index=False, name=None)) for frame in (found, wanted)]
    if tables[0] != tables[1] or len(found) != len(wanted):
        raise Mismatch(
            f"{len(found)} planes where pandas has {len(wanted)}; missing: {sorted(tables[1] - tables[0])[:3]}, "
            f"foreign: {sorted(tables[0] - tables[1])[:3]}"
        )


if __name__ == "__main__":
    sys.exit(run(job))
