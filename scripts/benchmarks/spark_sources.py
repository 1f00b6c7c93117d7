"""Sources to compare the connector's with: rows from memory, as Arrow batches and as tuples. Spark imports them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import BinaryType, StructField, StructType

if TYPE_CHECKING:
    from collections.abc import Sequence

BATCH_ROWS = 16_384
VALUE = bytes(range(128))


class _Pipe(DataSourceReader):
    def __init__(self, rows: int, partitions: int) -> None:
        self._rows = rows
        self._partitions = partitions

    def partitions(self) -> Sequence[InputPartition]:
        return [InputPartition(self._rows // self._partitions) for _ in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        batch = pa.record_batch({"value": pa.array([VALUE] * BATCH_ROWS, pa.binary())})
        rows = partition.value
        while rows > 0:
            yield batch.slice(0, min(rows, BATCH_ROWS))
            rows -= BATCH_ROWS


class _Tuples(_Pipe):
    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        return ((VALUE,) for _ in range(partition.value))


class _FromMemory(DataSource):
    made_by: type[_Pipe] = _Pipe

    def schema(self) -> StructType:
        return StructType([StructField("value", BinaryType())])

    def reader(self, schema: StructType) -> _Pipe:  # noqa: ARG002 - Spark's
        return self.made_by(int(self.options["rows"]), int(self.options["partitions"]))


class ArrowPipe(_FromMemory):
    @classmethod
    def name(cls) -> str:
        return "bench_arrow"


class Tuples(_FromMemory):
    made_by = _Tuples

    @classmethod
    def name(cls) -> str:
        return "bench_tuples"


class _Counting(DataSourceStreamReader):
    """Fifteen lines: each micro-batch is one row in each partition."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions
        self._end = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's names
        return {"at": 0}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: ARG002, N802
        self._end += 1
        return {"at": self._end}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:  # noqa: ARG002
        return [InputPartition(number) for number in range(self._partitions)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002
        yield pa.record_batch({"value": pa.array([VALUE], pa.binary())})


class Counting(_FromMemory):
    @classmethod
    def name(cls) -> str:
        return "bench_counting"

    def streamReader(self, schema: StructType) -> _Counting:  # noqa: ARG002, N802 - Spark's
        return _Counting(int(self.options["partitions"]))
