"""A small Spark for tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_connector.java import ensure_java

ROOT = Path(__file__).parents[3]


@contextmanager
def local_spark(name: str, **settings: str) -> Iterator[SparkSession]:
    """Spark with two local tasks. `settings` are Spark's, with `__` for a dot."""
    ensure_java()
    # Where Spark's Python processes find the packages when they are not installed.
    folders = [str(ROOT), str(ROOT / "spark_connector" / "autoload"), os.environ.get("PYTHONPATH", "")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(folder for folder in folders if folder))
        builder = (
            SparkSession.builder.master("local[2]")
            .appName(name)
            .config("spark.ui.enabled", "false")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.adaptive.enabled", "false")
            .config("spark.sql.session.timeZone", "UTC")
            .config("spark.sql.streaming.stopTimeout", "300s")  # for ever, else
        )
        for key, value in settings.items():
            builder = builder.config(key.replace("__", "."), value)
        session = builder.getOrCreate()
        try:
            yield session
        finally:
            session.stop()
