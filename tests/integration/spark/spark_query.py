"""A streaming query from one stream to another, as a process that can be killed:

    python -m tests.integration.spark.spark_query SERVERS SOURCE TARGET FOLDER GUARANTEE [MASTER]

It runs until SIGTERM. The checkpoint is in the folder. The file `pids` there has the process ids of this program and of
Spark's JVM. Where the file `die` is there, both are killed between the sink's commit and Spark's. The master
local-cluster[2,1,1024] gives it two executors, which are processes of their own.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql.datasource import WriterCommitMessage

from spark_connector.source import TidelogDataSource
from spark_connector.writes.sinks import TidelogStreamWriter
from tests.integration.spark.spark_session import local_spark

FOLDER = "TIDELOG_TEST_QUERY"
"""Environment variable with the folder."""


class Mortal(TidelogStreamWriter):
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        super().commit(messages, batchId)
        folder = Path(os.environ[FOLDER])
        with suppress(FileNotFoundError):
            (folder / "die").unlink()
            kill(folder)


class MortalSource(TidelogDataSource):
    @classmethod
    def name(cls) -> str:
        return "tidelog-mortal"

    def streamWriter(self, schema: Any, overwrite: bool) -> Mortal:  # noqa: N802 - Spark's name
        writer = super().streamWriter(schema, overwrite)
        assert isinstance(writer, TidelogStreamWriter)
        return Mortal(writer._options)


def kill(folder: Path) -> None:
    """-9, the program and its JVM."""
    for pid in map(int, (folder / "pids").read_text().split()):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def main(servers: str, source: str, target: str, where: str, guarantee: str, master: str = "local[2]") -> None:
    folder = Path(where)
    os.environ[FOLDER] = where
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)  # for executors
    with local_spark("spark_query", spark__master=master) as spark:
        jvm = spark.sparkContext._jvm
        assert jvm is not None
        (folder / "pids").write_text(f"{os.getpid()} {jvm.java.lang.ProcessHandle.current().pid()}")
        spark.dataSource.register(MortalSource)
        query = (
            spark.readStream.format("tidelog")
            .options(servers=servers, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger="20000")
            .load()
            .select("key", "value")
            .writeStream.format(MortalSource.name())
            .options(servers=servers, stream=target, guarantee=guarantee, checkpointLocation=str(folder / "checkpoint"))
            .start()
        )
        while query.isActive and not ended.wait(0.2):
            pass
        if not ended.is_set():
            query.awaitTermination()  # raises why it has ended
        query.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
