"""The demo's Spark jobs: flights and mean departure delay per carrier, from the committed records of the stream, in
batch and in streaming.

    python -m scripts.demos.demo_spark nats://127.0.0.1:4222 flights FOLDER [nats.user=spark …]

FOLDER is for the checkpoint of the query. Further arguments are options of the source, as for a login; no secret
should be among them, for `ps` shows arguments. A line on stdin names a job, `batch` or `streaming`; the answer on
stdout is one line of JSON: {"AA": [flights, mean], ...}. The end of stdin ends it. A process of its own, so that Spark
starts while records are published, its stderr goes to a file, and it and its Java can be ended at any time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_connector.java import ensure_java


def main(servers: str, stream: str, folder: str, *options: str) -> None:
    ensure_java()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("tidelog-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # Short queries: the JVM must start and compile quickly, not well.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    given = {
        "servers": servers,
        "subscribe": stream,
        "startingOffsets": "earliest",
        **dict(option.split("=", 1) for option in options),
    }
    # While records are published: the JVM loads its classes, and Spark starts the Python processes that it keeps.
    spark.read.format("tidelog").options(**given).load().limit(1).collect()
    jobs = {"batch": batch, "streaming": streaming}
    for line in sys.stdin:
        per_carrier = jobs[line.strip()](spark, given, Path(folder))
        figures = {row["carrier"]: [row["flights"], row["delay"]] for row in per_carrier.collect()}
        print(json.dumps(figures), flush=True)
    spark.stop()


def batch(spark: SparkSession, options: dict[str, str], _: Path) -> DataFrame:
    return by_carrier(spark.read.format("tidelog").options(**options, endingOffsets="latest").load())


def streaming(spark: SparkSession, options: dict[str, str], folder: Path) -> DataFrame:
    """Two micro-batches at least, whose counts are kept as state, and written anew by each of them."""
    records = spark.readStream.format("tidelog").options(**options, maxOffsetsPerTrigger="200000").load()
    query = (
        by_carrier(records)
        .writeStream.format("memory")
        .queryName("per_carrier")
        .outputMode("complete")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return spark.table("per_carrier")


def by_carrier(records: DataFrame) -> DataFrame:
    flight = f.from_json(f.col("value").cast("string"), "carrier string, dep_delay int").alias("flight")
    return (
        # A record of a bare NATS client has no key, and is no flight.
        records.where("key IS NOT NULL")
        .select(flight)
        .groupBy("flight.carrier")
        .agg(f.count("*").alias("flights"), f.avg("flight.dep_delay").alias("delay"))
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
