"""The demo's Spark job: flights and mean departure delay per carrier, from the committed records of the stream.

    python -m scripts.demo_spark nats://127.0.0.1:4222 flights [nats.user=spark …]

Further arguments are options of the source, as for a login; no secret should be among them, for `ps` shows arguments.
Prints one line of JSON: {"AA": [flights, mean], ...}. A process of its own, so that the stderr of Spark goes to a
file, and so that Spark and its Java can be ended at any time.
"""

from __future__ import annotations

import json
import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from spark_connector.java import ensure_java


def main(servers: str, stream: str, *options: str) -> None:
    ensure_java()
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("tidelog-demo")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        # One short query: the JVM must start and compile quickly, not well.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1")
        .getOrCreate()
    )
    records = (
        spark.read.format("tidelog")
        .option("servers", servers)
        .option("subscribe", stream)
        .option("startingOffsets", "earliest")
        .option("endingOffsets", "latest")
        .options(**dict(option.split("=", 1) for option in options))
        .load()
    )
    flight = f.from_json(f.col("value").cast("string"), "carrier string, dep_delay int").alias("flight")
    per_carrier = (
        # A record of a bare NATS client has no key, and is no flight.
        records.where("key IS NOT NULL")
        .select(flight)
        .groupBy("flight.carrier")
        .agg(f.count("*").alias("flights"), f.avg("flight.dep_delay").alias("delay"))
    )
    print(json.dumps({row["carrier"]: [row["flights"], row["delay"]] for row in per_carrier.collect()}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
