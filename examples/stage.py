"""What a job runs on: three brokers and a Spark session of its own, in a temporary folder.

`run(job)` is the main function of a job. It prints what the job says, then `PASS`, or `FAIL` and the reason; the exit
status is 0 or 1.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

import tidelog
from examples.flights import Event
from spark_connector.java import ensure_java
from tidelog.server.devcluster import DevCluster

PARTITIONS = 3
TURN = 256
"""Records given to the producer before the event loop comes round."""


class Mismatch(Exception):
    """The result is not the one that pandas has; the text says in what."""


@dataclass(frozen=True, slots=True)
class Stage:
    """`servers`: where the cluster is. `folder`: for checkpoints and results, empty at first. `rows`: how many flights
    are used, None for all.
    """

    spark: SparkSession
    servers: str
    folder: Path
    rows: int | None = None

    def publish(self, stream: str, events: Iterable[Event], **config: str) -> int:
        """Creates the stream with these settings, publishes, and returns the number of records once all are
        committed.
        """
        return asyncio.run(self._publish(stream, events, config))

    async def _publish(self, stream: str, events: Iterable[Event], config: dict[str, str]) -> int:
        count = 0
        async with await tidelog.connect(self.servers) as client:
            await client.ensure_stream(stream, partitions=PARTITIONS, replication_factor=3, config=config)
            async with client.producer(stream, compression="zstd", linger_ms=5) as producer:
                for count, event in enumerate(events, 1):
                    producer.send_nowait(event.value, key=event.key, timestamp=event.timestamp_ns)
                    if count % TURN == 0:
                        await asyncio.sleep(0)
                    if count % (64 * TURN) == 0:  # so that the buffer does not run full
                        await producer.flush()
                await producer.flush()
        return count


Job = Callable[[Stage], str]
"""Raises Mismatch; returns a sentence on what was compared."""


def spark_session(name: str) -> SparkSession:
    ensure_java()
    return (
        SparkSession.builder.master("local[2]")
        .appName(name)
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")  # which say that they are UTC
        .getOrCreate()
    )


def run(job: Job) -> int:
    """Returns the exit status."""
    parser = argparse.ArgumentParser(
        description=(inspect.getdoc(inspect.getmodule(job)) or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument("--rows", type=int, help="use only so many flights, the first of the year")
    parser.add_argument("--keep", action="store_true", help="keep the folder with the results, and say where")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="tidelog-example-"))
    began = time.monotonic()
    status, verdict = 0, "PASS"
    try:
        with DevCluster(folder / "cluster", nodes=3, port=0) as cluster:
            spark = spark_session(job.__module__)  # while the brokers start
            with closing(_Stopping(spark)):
                cluster.wait_ready()
                (folder / "job").mkdir()
                print(job(Stage(spark, cluster.nats_url, folder / "job", options.rows)))
    except KeyboardInterrupt:
        status, verdict = 130, "FAIL: interrupted"
    except Mismatch as error:
        status, verdict = 1, f"FAIL: {error}"
    except Exception:  # noqa: BLE001 - after any error the job has failed
        status, verdict = 1, "FAIL: see above"
        traceback.print_exc()
    if options.keep:
        print(f"results: {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"{verdict} ({time.monotonic() - began:.0f} s)")
    return status


@dataclass(frozen=True, slots=True)
class _Stopping:
    spark: SparkSession

    def close(self) -> None:
        self.spark.stop()
