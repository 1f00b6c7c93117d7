"""A job as users submit it: reads a stream in batch and in streaming, and prints how many records each has found.

deployed_job.py SERVERS STREAM FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.sql import SparkSession


def main(servers: str, stream: str, folder: str) -> None:
    spark = SparkSession.builder.appName("deployed").getOrCreate()
    options = {"servers": servers, "subscribe": stream, "startingOffsets": "earliest"}
    print("batch", spark.read.format("tidelog").options(**options).load().select("value").distinct().count())
    query = (
        spark.readStream.format("tidelog")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("path", str(Path(folder, "out")))
        .option("checkpointLocation", str(Path(folder, "checkpoint")))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("stream", spark.read.parquet(str(Path(folder, "out"))).select("value").distinct().count())
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
