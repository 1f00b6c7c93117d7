"""Flights that left more than an hour late, from one stream to another: read, transform, write, each record once.

    flights ─> dep_delay > 60 ─> delayed

Each micro-batch is written as one, under a name and its number: readers see all of its records or none, and one that is
run again finds that its number is committed, and writes nothing. Here the first run ends after it has written a batch
and before Spark knows of it. That is why it uses `foreachBatch`; `writeStream.format("tidelog")` writes the same way.

The target is compared with pandas: each delayed flight once, and each plane's flights in their order.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import tidelog.sync
from examples.flights import FLIGHT, events, flights
from examples.stage import PARTITIONS, Mismatch, Stage, run


class _Interrupted(Exception):
    """In place of a driver that is killed."""


def job(stage: Stage) -> str:
    table = flights(stage.rows).reset_index(names="row")
    stage.publish("all", events(table, key="tailnum"))
    with tidelog.sync.connect(stage.servers) as client:
        client.ensure_stream("delayed", partitions=PARTITIONS)
    try:
        start(stage, len(table), fails_after=1)
        raise Mismatch("the first run was to be interrupted")
    except StreamingQueryException as error:
        if _Interrupted.__name__ not in str(error):
            raise
    start(stage, len(table))
    with tidelog.sync.connect(stage.servers) as client:
        found = [json.loads(record.value or b"") for record in client.consume("delayed", stop="latest")]
    compare(found, table[table["dep_delay"] > 60])
    return f"{len(found):,} delayed flights of {len(table):,}, after an interruption behind the second batch"


def start(stage: Stage, records: int, fails_after: int | None = None) -> None:
    """Runs the query to its end. `fails_after`: number of the batch that is written, and then fails."""
    servers = stage.servers

    def write(batch: DataFrame, number: int) -> None:
        batch.write.format("tidelog").mode("append").options(
            servers=servers, stream="delayed", transactionalId="delayed-flights", sequence=number
        ).save()
        if number == fails_after:
            raise _Interrupted

    query = (
        delayed(
            stage.spark.readStream.format("tidelog")
            .option("servers", servers)
            .option("subscribe", "all")
            .option("startingOffsets", "earliest")
            .option("maxOffsetsPerTrigger", max(1_000, records // 4))
            .load()
        )
        .writeStream.foreachBatch(write)
        .option("checkpointLocation", str(stage.folder / "delayed-checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def delayed(records: DataFrame) -> DataFrame:
    flight = f.from_json(f.col("value").cast("string"), f"row int, {FLIGHT}")
    return (
        records.withColumn("flight", flight)
        .where("flight.dep_delay > 60")
        .select(
            "key",
            f.to_json(
                f.struct("flight.row", "flight.carrier", "flight.flight", "flight.tailnum", "flight.dep_delay")
            ).alias("value"),
        )
    )


def compare(found: list[dict[str, int]], wanted: pd.DataFrame) -> None:
    """`found`: the JSON of each record, in the order of its partition."""
    rows = [flight["row"] for flight in found]
    missing, foreign = set(wanted["row"]) - set(rows), set(rows) - set(wanted["row"])
    if missing or foreign or len(rows) != len(wanted):
        raise Mismatch(
            f"{len(rows)} records where pandas has {len(wanted)} flights: "
            f"missing {sorted(missing)[:3]}, foreign {sorted(foreign)[:3]}"
        )
    delays = dict(zip(wanted["row"], wanted["dep_delay"], strict=True))
    newest: dict[object, int] = defaultdict(lambda: -1)
    for flight in found:
        if flight["dep_delay"] != delays[flight["row"]]:
            raise Mismatch(f"{flight} has a delay of {delays[flight['row']]} in the table")
        if flight["row"] < newest[flight["tailnum"]]:
            raise Mismatch(f"{flight} comes after row {newest[flight['tailnum']]} of the same plane")
        newest[flight["tailnum"]] = flight["row"]


if __name__ == "__main__":
    sys.exit(run(job))
