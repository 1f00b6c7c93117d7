"""The writers that Spark calls: of `df.write` and `df.writeStream`.

Spark makes a writer on the driver and sends it to the tasks, whose `write` returns a message; the driver hands the
messages to `commit` or `abort`, of the same writer for a batch, and of a new one for a micro-batch. Neither may come:
what is not committed then is aborted after its timeout, or by the next commit of its family.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_connector.plain_errors import plain_errors
from spark_connector.sink_options import SinkOptions
from wire.errors import Code, TidelogError
from wire.transactions import MAX_MEMBERS

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_connector.sink_delivery import Place, Sent
    from tidelog.client.connection import Client
    from tidelog.client.prepared import PreparedTransaction

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a task of a streaming query: names within Spark."""

_log = logging.getLogger(__name__)


@plain_errors
class TidelogBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._family = options.transactional_id or f"spark-{uuid.uuid4()}"
        self._sequence = options.sequence or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from spark_connector.sink_delivery import send_rows  # tasks alone connect

        place = _place(self._family, self._sequence) if self._options.exactly_once else None
        return send_rows(self._options, iterator, place)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _commit(self._options, messages, once=self._options.transactional_id is None)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self._options.exactly_once:
            _abort(self._options, self._family, messages)


@plain_errors
class TidelogStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from spark_connector.sink_delivery import send_rows

        return send_rows(self._options, iterator, _place_in_query() if self._options.exactly_once else None)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        for each in _sent(messages):
            if each.family is not None and each.sequence != batchId:
                raise TidelogError(
                    Code.INTERNAL,
                    f"a task has written micro-batch {each.sequence}, and {batchId} is to be committed: this version of"
                    " Spark numbers them otherwise; use guarantee=at_least_once",
                )
        _commit(self._options, messages, once=False)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as above
        family = next((each.family for each in _sent(messages) if each.family is not None), None)
        if family is not None:
            _abort(self._options, family, messages)


def _place(family: str, sequence: int) -> Place:
    from spark_connector.sink_delivery import Place

    context = _context()
    return Place(family, sequence, f"{context.partitionId()}-{context.attemptNumber()}")


def _place_in_query() -> Place:
    query, batch = _context().getLocalProperty(QUERY_ID), _context().getLocalProperty(BATCH_ID)
    if not query or not batch or not batch.isdecimal():
        raise TidelogError(
            Code.BAD_CONFIG,
            "this version of Spark does not tell a task which query and micro-batch it belongs to, which"
            " guarantee=exactly_once needs: use foreachBatch and the options transactionalId and sequence, or"
            " guarantee=at_least_once",
        )
    return _place(query, int(batch))


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise TidelogError(Code.INTERNAL, "a write was begun outside of a task of Spark")
    return context


def _sent(messages: Sequence[WriterCommitMessage | None]) -> list[Sent]:
    from spark_connector.sink_delivery import Sent

    return [each for each in messages if isinstance(each, Sent)]


def _commit(options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, once: bool) -> None:
    """`once`: nothing else is committed under the name."""
    from spark_connector.cluster import Cluster
    from spark_connector.sink_delivery import ANSWER_SECONDS

    if len(_sent(messages)) < len(messages):
        raise TidelogError(
            Code.INTERNAL, f"Spark commits {len(messages)} tasks and hands over what {len(_sent(messages))} have sent"
        )
    in_family = [each for each in _sent(messages) if each.family is not None]
    if not in_family:
        return
    family, sequence = in_family[0].family, in_family[0].sequence
    assert family is not None
    sent = [each for each in in_family if not each.was_committed]
    if not sent:
        _log.warning("tidelog: number %d of %s was committed before, and nothing is written again", sequence, family)
        return
    transactions = [each.transaction for each in sent if each.transaction is not None]
    if len(transactions) > MAX_MEMBERS:
        _abort(options, family, messages)
        raise TidelogError(
            Code.LIMIT_REACHED,
            f"{len(transactions)} tasks have written, and {MAX_MEMBERS} can be committed as one, so nothing is"
            f" committed: coalesce({MAX_MEMBERS}) the rows before they are written, or use guarantee=at_least_once",
        )
    is_committed = Cluster.of(options).ask(
        f"commit number {sequence} of {family}",
        lambda client: client.commit_prepared(
            family, transactions, sequence=sequence, once=once, timeout=ANSWER_SECONDS
        ),
    )
    if not is_committed:
        _log.warning(
            "tidelog: number %d of %s was committed by an earlier attempt, and is left as it is", sequence, family
        )


def _abort(options: SinkOptions, family: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """As far as the cluster answers; it aborts the rest after the timeout."""
    from spark_connector.cluster import Cluster
    from spark_connector.sink_delivery import ANSWER_SECONDS

    transactions = [each.transaction for each in _sent(messages) if each.transaction is not None]
    try:
        cluster = Cluster.of(options)
        for first in range(0, max(1, len(transactions)), MAX_MEMBERS):
            some = transactions[first : first + MAX_MEMBERS]
            abort = partial(_abort_some, family=family, transactions=some, timeout=ANSWER_SECONDS)
            cluster.ask(f"abort what was written for {family}", abort)
    except TidelogError as error:
        _log.warning(
            "tidelog: what was written for %s is not known to be aborted (%s), and is after transaction.timeout",
            family, error.message,
        )  # fmt: skip


async def _abort_some(
    client: Client, *, family: str, transactions: Sequence[PreparedTransaction], timeout: float
) -> None:
    await client.abort_prepared(family, transactions, abort_others=True, timeout=timeout)
