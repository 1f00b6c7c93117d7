"""Entry point that Spark finds by itself: it registers the ``DefaultSource`` of any importable module named
``pyspark_*``."""

from __future__ import annotations

from spark_connector.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
