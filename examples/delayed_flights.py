"""Flights that left more than an hour late, from one stream to another: read, transform, write, each record once.

    flights ─> dep_delay > 60 ─> delayed

Each task of a micro-batch writes with a producer of its own. A micro-batch that failed on the way is run again, and its
tasks then write records that may be there already. Each record therefore has a message id, made of its place in the
stream that was read: what was written within the stream's `dedup_window_ms` is not written again. Here the first
run ends after it has written a batch and before Spark knows of it.

The target is compared with pandas: each delayed flight once, and each plane's flights in their order.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator

import pandas as pd
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

import tidelog.sync
from examples.flights import FLIGHT, events, flights
from examples.stage import PARTITIONS, Mismatch, Stage, run

CHUNK = 10_000


class _Interrupted(Exception):
    """In place of a driver that is killed."""


def job(stage: Stage) -> str:
    table = flights(stage.rows).reset_index(names="row")
    stage.publish("all", events(table, key="tailnum"))
    with tidelog.sync.connect(stage.servers) as client:
        client.ensure_stream("delayed", partitions=PARTITIONS, config={"dedup_window_ms": 3_600_000})
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
        batch.foreachPartition(lambda rows: publish(servers, rows))
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
            f.to_json(f.struct("flight.row", "flight.carrier", "flight.flight", "flight.tailnum", "flight.dep_delay"))
            .cast("binary")
            .alias("value"),
            f.concat_ws("/", "stream", "partition", "offset").alias("id"),
        )
    )


def publish(servers: str, rows: Iterator[Row]) -> None:
    """In a task: `rows` are those of one partition of the batch."""
    with tidelog.sync.connect(servers) as client, client.producer("delayed") as producer:
        chunk: list[Row] = []
        for row in rows:
            chunk.append(row)
            if len(chunk) == CHUNK:
                _send(producer, chunk)
                chunk = []
        _send(producer, chunk)


def _send(producer: tidelog.sync.Producer[bytes, bytes], rows: list[Row]) -> None:
    producer.send_many(
        [bytes(row.value) for row in rows], keys=[bytes(row.key) for row in rows], msg_ids=[row.id for row in rows]
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
