"""The data source `tidelog`, as Spark finds it (`pyspark_tidelog`) or as `spark.dataSource.register` takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from spark_connector.reads.batch_reader import TidelogBatchReader
from spark_connector.reads.read_options import SourceOptions
from spark_connector.reads.stream_reader import RefusedStreamReader, TidelogStreamReader
from spark_connector.shared.arrow_rows import check_schema, spark_schema
from spark_connector.shared.plain_errors import plain_errors
from spark_connector.writes.sink_options import SinkOptions
from spark_connector.writes.sink_rows import check_written_schema
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType

    from spark_connector.reads.log_port import CommittedLog, OpenLog


def open_client_log(options: SourceOptions) -> CommittedLog:
    """Connects to the cluster that the options name."""
    # Spark makes a data source in many short-lived processes that never connect.
    from spark_connector.reads.client_log import ClientLog, Isolation
    from spark_connector.shared.connections import Cluster

    isolation = Isolation(options.read_uncommitted, options.read_from, options.rack, options.in_key_order)
    return ClientLog(Cluster.of(options), isolation)


@plain_errors
class TidelogDataSource(DataSource):
    """Committed records of streams, and rows that are written to streams. Bad options are refused by load(), or by
    save() and start(), with one sentence that names the option."""

    open_log: OpenLog = staticmethod(open_client_log)

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        options = self._parsed()
        return spark_schema(include_headers=options.include_headers, columns=options.columns)

    def reader(self, schema: StructType) -> TidelogBatchReader:
        return TidelogBatchReader(self._checked(schema).for_batch(), schema, self.open_log)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        try:
            options = self._checked(schema).for_stream()
        except TidelogError as error:
            return RefusedStreamReader(error)
        return TidelogStreamReader(options, schema, self.open_log)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_connector.writes.sinks import TidelogBatchWriter

        options = SinkOptions.parse(self.options).for_batch()
        _check_written(schema, options, overwrite)
        return TidelogBatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        from spark_connector.writes.sinks import TidelogStreamWriter

        options = SinkOptions.parse(self.options).for_stream()
        _check_written(schema, options, overwrite)
        return TidelogStreamWriter(options)

    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(self.options)

    def _checked(self, schema: StructType) -> SourceOptions:
        options = self._parsed()
        check_schema(schema, include_headers=options.include_headers)
        if options.columns is not None and options.columns != tuple(schema.names):
            raise TidelogError(
                Code.BAD_CONFIG,
                f"columns names {', '.join(options.columns)}, and the schema has {', '.join(schema.names)}: leave one "
                "of them out",
            )
        return options


def _check_written(schema: StructType, options: SinkOptions, overwrite: bool) -> None:
    if overwrite:
        raise TidelogError(
            Code.BAD_REQUEST,
            "records are appended to a stream, and nothing overwrites it: use mode append (outputMode append), or"
            " create another stream",
        )
    check_written_schema(schema, options.stream)
