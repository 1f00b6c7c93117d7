"""The log port answered by a cluster, through the client.

The client is asyncio and Spark's callbacks block, so each `ClientLog` has a thread with an event loop. That also keeps the
connection alive between the callbacks of a streaming query, and lets a task fetch ahead while Spark takes what it has:
at most one chunk waits while another is being filled, each of `CHUNK_BYTES` and what the last answer adds.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import tidelog
from spark_connector.log_port import OffsetRange, PartitionExtent, StreamExtent
from wire.types import Offset, StreamName

if TYPE_CHECKING:
    from spark_connector.options import SourceOptions
    from wire.batch import RecordBatch

CHUNK_BYTES = 4 << 20

_T = TypeVar("_T")


class ClientLog:
    """Connects when it is made. Not for use by several threads at once."""

    def __init__(self, servers: tuple[str, ...], namespace: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tidelog-spark", daemon=True)
        self._thread.start()
        try:
            self._client = self._run(tidelog.connect(",".join(servers), namespace=namespace))
        except BaseException:
            self._stop_loop()
            raise
