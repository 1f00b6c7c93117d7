"""Streams as tables of Spark SQL, which Spark does not let a source in Python be: as temporary views.

from spark_connector.sql import register

register(spark, servers="nats://127.0.0.1:4222")
spark.sql("SELECT count(*) FROM flights")
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING

from spark_connector.reads.read_options import SourceOptions
from spark_connector.source import open_client_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(
    spark: SparkSession, *, streams: Iterable[str] | None = None, prefix: str = "", **options: str
) -> list[str]:
    """Make a temporary view of each stream, with the stream's name behind `prefix`, and return the names of the views.
    Views of that name are replaced.

    A view reads records committed when it was made: call it again to see more. `streams`: only these; None: all that
    the login may list. `options`: of `spark.read.format("tidelog")`, such as `servers`, without those that name any.
    A name with a dash needs backticks in SQL.

    Raises TidelogError where an option is wrong, or the cluster does not answer.
    """
    if streams is None:
        with closing(open_client_log(SourceOptions.parse({**options, "subscribePattern": ".*"}))) as log:
            streams = sorted(log.streams())
    views = []
    for stream in streams:
        view = f"{prefix}{stream}"
        spark.read.format("tidelog").options(subscribe=stream, **options).load().createOrReplaceTempView(f"`{view}`")
        views.append(view)
    return views
