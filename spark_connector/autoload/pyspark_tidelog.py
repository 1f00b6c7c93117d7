"""What Spark finds by itself: any importable module named ``pyspark_*`` that exports ``DefaultSource`` is registered."""

from __future__ import annotations

from spark_connector.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
