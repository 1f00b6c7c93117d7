"""Entry point that Spark finds by itself: it registers the ``DefaultSource`` of any importable module named
``pyspark_*``."""

from __future__ import annotations

import pyspark

if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 2):
    # Spark reports that it does not find the source, and logs the reason only.
    raise ImportError(f"the data source tidelog needs Spark 4.2 or later, and this is {pyspark.__version__}")

from spark_connector.source import TidelogDataSource as DefaultSource

__all__ = ["DefaultSource"]
