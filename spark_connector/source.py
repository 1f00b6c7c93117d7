"""The data source `tidelog`, as Spark finds it (`pyspark_tidelog`) or as `spark.dataSource.register` takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from pyspark.sql.datasource import DataSource

from spark_connector.batch_reader import TidelogBatchReader
from spark_connector.columns import check_schema, spark_schema
from spark_connector.options import SourceOptions
from spark_connector.plain_errors import plain_errors
from spark_connector.retrying import Retry
from spark_connector.stream_reader import TidelogStreamReader
from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from spark_connector.log_port import CommittedLog, OpenLog


def open_client_log(options: SourceOptions) -> CommittedLog:
    """Connects to the cluster that the options name."""
    # Spark makes a data source in many short-lived processes that never connect.
    from spark_connector.client_log import ClientLog, Isolation
    from spark_connector.connections import Address
    from spark_connector.inline_files import with_paths

    login = tuple(sorted(with_paths(options.login).items()))
    address = Address(options.servers, options.namespace, options.inbox_prefix, login)
    isolation = Isolation(options.read_uncommitted, options.read_from, options.rack)
    return ClientLog(address, Retry(options.retry_seconds), isolation)


@plain_errors
class TidelogDataSource(DataSource):
    """Committed records of streams. Bad options are refused by load(), with one sentence that names the option."""

    open_log: OpenLog = staticmethod(open_client_log)

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> StructType:
        options = self._parsed()
        return spark_schema(include_headers=options.include_headers, columns=options.columns)

    def reader(self, schema: StructType) -> TidelogBatchReader:
        return TidelogBatchReader(self._checked(schema).for_batch(), schema, self.open_log)

    def streamReader(self, schema: StructType) -> TidelogStreamReader:  # noqa: N802 - Spark's name
        return TidelogStreamReader(self._checked(schema).for_stream(), schema, self.open_log)

    def writer(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002 - Spark's arguments
        _refuse_to_write()

    def streamWriter(self, schema: StructType, overwrite: bool) -> NoReturn:  # noqa: ARG002, N802 - Spark's
        _refuse_to_write()

    def _parsed(self) -> SourceOptions:
        return SourceOptions.parse(self.options)

    def _checked(self, schema: StructType) -> SourceOptions:
        options = self._parsed()
        check_schema(schema, include_headers=options.include_headers)
        return options


def _refuse_to_write() -> NoReturn:
    raise TidelogError(
        Code.BAD_REQUEST,
        "the tidelog data source reads streams and does not write to them: publish with a producer of "
        "tidelog.connect(...), from foreachPartition or foreachBatch for instance",
    )
