"""The writers that Spark calls: of `df.write` and `df.writeStream`.

Spark makes a writer on the driver and sends it to the tasks, whose `write` returns a message; the driver hands the
messages to `commit` or `abort`, of the same writer for a batch, and of a new one for a micro-batch. Neither may come:
an uncommitted transaction is aborted then after its timeout, or by the next commit of its family.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from spark_connector.shared.plain_errors import plain_errors
from spark_connector.writes.committed_batch import CommittedBatch, added, family_of_query, planned_as
from spark_connector.writes.sink_options import SinkOptions
from wire.errors import Code, TidelogError
from wire.internal_records.transaction_records import MAX_MEMBERS

if TYPE_CHECKING:
    import pyarrow as pa

    from spark_connector.shared.connections import Cluster
    from spark_connector.writes.sink_delivery import Place, Sent
    from tidelog.client.client import Client
    from tidelog.client.transaction.prepared_transactions import PreparedTransaction
    from wire.types import StreamName

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a streaming query's task: names within Spark."""

_log = logging.getLogger(__name__)


@plain_errors
class TidelogBatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._family = options.transactional_id or f"spark-{uuid.uuid4()}"
        self._sequence = options.sequence or 0

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        from spark_connector.writes.sink_delivery import send_rows  # only tasks connect

        place = _place(self._family, self._sequence, None) if self._options.exactly_once else None
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
        from spark_connector.writes.sink_delivery import send_rows

        place = _place_in_query(self._options.stream) if self._options.exactly_once else None
        return send_rows(self._options, iterator, place)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        for each in _sent(messages):
            if each.family is not None and each.sequence != batchId:
                raise TidelogError(
                    Code.INTERNAL,
                    f"a task has written micro-batch {each.sequence}, and {batchId} is to be committed: this version of"
                    " Spark numbers them otherwise; use guarantee=at_least_once",
                )
        _commit(self._options, messages, once=False, planned=planned_as(self._options.checkpoint, batchId))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002, N803 - as above
        family = next((each.family for each in _sent(messages) if each.family is not None), None)
        if family is not None:
            _abort(self._options, family, messages)


def _place(name: str, sequence: int, stream: StreamName | None) -> Place:
    from spark_connector.writes.sink_delivery import Place

    context = _context()
    child = f"{context.partitionId()}-{context.attemptNumber()}"
    application, host = (context.getLocalProperty(f"spark.{each}") for each in ("app.name", "driver.host"))
    return Place(name, stream, sequence, child, f"application {application!r}, driver on {host}")


def _place_in_query(stream: StreamName | None) -> Place:
    query, batch = _context().getLocalProperty(QUERY_ID), _context().getLocalProperty(BATCH_ID)
    if not query or not batch or not batch.isdecimal():
        raise TidelogError(
            Code.BAD_CONFIG,
            "this version of Spark does not tell a task which query and micro-batch it belongs to, which"
            " guarantee=exactly_once needs: use foreachBatch and the options transactionalId and sequence, or"
            " guarantee=at_least_once",
        )
    return _place(query, int(batch), stream)


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise TidelogError(Code.INTERNAL, "a write was begun outside of a task of Spark")
    return context


def _sent(messages: Sequence[WriterCommitMessage | None]) -> list[Sent]:
    from spark_connector.writes.sink_delivery import Sent

    return [each for each in messages if isinstance(each, Sent)]


def _commit(
    options: SinkOptions, messages: Sequence[WriterCommitMessage | None], *, once: bool, planned: str = ""
) -> None:
    """Commits the tasks' transactions. `once`: nothing else is committed under the name. `planned`: as in
    CommittedBatch."""
    from spark_connector.shared.connections import Cluster
    from spark_connector.writes.sink_delivery import ANSWER_SECONDS, last_commit

    if len(_sent(messages)) < len(messages):
        raise TidelogError(
            Code.INTERNAL, f"Spark commits {len(messages)} tasks and hands over what {len(_sent(messages))} have sent"
        )
    in_family = [each for each in _sent(messages) if each.family is not None]
    if not in_family:
        return
    family, sequence = in_family[0].family, in_family[0].sequence
    assert family is not None
    cluster = Cluster.of(options)
    batch = _batch(cluster, options, in_family, planned)
    sent = [each for each in in_family if not each.was_committed]
    if not sent:
        _check_same(cluster, options, in_family[0], batch)
        return
    transactions = [each.transaction for each in sent if each.transaction is not None]
    if len(transactions) > MAX_MEMBERS:
        _abort(options, family, messages)
        raise TidelogError(
            Code.LIMIT_REACHED,
            f"{len(transactions)} tasks have written, and {MAX_MEMBERS} can be committed as one, so nothing is"
            f" committed: coalesce({MAX_MEMBERS}) the rows before they are written, or use guarantee=at_least_once",
        )
    try:
        is_committed = cluster.ask(
            f"commit number {sequence} of {family}",
            lambda client: client.commit_prepared(
                family, transactions, sequence=sequence, once=once, metadata=batch.to_metadata(), timeout=ANSWER_SECONDS
            ),
        )
    except TidelogError as refused:
        last = last_commit(cluster, family) if refused.code is Code.STALE_COMMIT else None
        if last is None or last.sequence != sequence:
            raise
        is_committed = False  # the number is committed, and its metadata say whether that was this batch
    if not is_committed:
        _check_same(cluster, options, in_family[0], batch)


def _batch(cluster: Cluster, options: SinkOptions, sent: Sequence[Sent], planned: str) -> CommittedBatch:
    """Returns the batch that these tasks have sent. Raises TidelogError for several incarnations of a stream."""
    from spark_connector.writes.sink_delivery import incarnation_of

    first = sent[0]
    rows = added(each.rows for each in sent)
    streams = {*rows} if options.stream is None else {options.stream, *rows}
    lives = {stream: incarnation_of(cluster, stream) for stream in streams}
    families = {each.family for each in sent}
    if options.stream is not None and first.family != first.name:
        families.add(family_of_query(first.name, options.stream, lives[options.stream]))
    if len(families) > 1:
        raise TidelogError(
            Code.WRONG_INCARNATION,
            f"stream {options.stream!r} was deleted and created again while number {first.sequence} of {first.name} was"
            " written to it, so nothing of it is committed: start the query again",
        )
    return CommittedBatch.of(rows, lives, planned=planned, writer=first.writer)


def _check_same(cluster: Cluster, options: SinkOptions, sent: Sent, batch: CommittedBatch) -> None:
    """Raises TidelogError unless the committed number is this batch's, for else its rows would be lost."""
    from spark_connector.writes.sink_delivery import last_commit

    assert sent.family is not None
    last = last_commit(cluster, sent.family)
    known = None if last is None or last.sequence != sent.sequence else CommittedBatch.of_metadata(last.metadata)
    if options.skips_committed or (known is not None and known.is_same(batch)):
        _log.warning(
            "tidelog: number %d of %s was committed before, and nothing is written again", sent.sequence, sent.name
        )
        return
    what = (
        f"number {sent.sequence} of {sent.name!r} is committed already, and"
        if last is None or last.sequence == sent.sequence
        else f"{sent.name!r} has committed number {last.sequence} while {sent.sequence} was written, and"
    )
    if known is None:
        raise TidelogError(
            Code.STALE_COMMIT,
            f"{what} nothing is kept that tells whether it was this batch: it was written by an earlier version of the"
            " connector, or is overtaken. Nothing is written. If this query was stopped while it wrote that number, set"
            f" ifCommitted=skip for one run. If another one writes as {sent.name!r} too, such as with a copy of the"
            " checkpoint, give each a checkpoint, or a transactionalId, of its own",
        )
    raise TidelogError(
        Code.STALE_COMMIT,
        f"{what} with another batch: {known.rows} rows were written by {known.writer}, and this batch, of"
        f" {batch.writer}, has {batch.rows}. Nothing is written. If two queries write as {sent.name!r}, as with a copy"
        " of a checkpoint, or with an older one that was put back, give each a checkpoint of its own (startingOffsets"
        " says where it goes on), or each write a transactionalId of its own. If it is the same batch, whose rows come"
        " out otherwise each time (rand(), uuid(), sums of doubles), set ifCommitted=skip for one run",
    )


def _abort(options: SinkOptions, family: str, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Aborts as far as the cluster answers; it aborts the rest after the timeout."""
    from spark_connector.shared.connections import Cluster
    from spark_connector.writes.sink_delivery import ANSWER_SECONDS

    transactions = [each.transaction for each in _sent(messages) if each.transaction is not None]
    try:
        cluster = Cluster.of(options)
        for first in range(0, max(1, len(transactions)), MAX_MEMBERS):
            some = transactions[first : first + MAX_MEMBERS]
            abort = partial(_abort_some, family=family, transactions=some, timeout=ANSWER_SECONDS)
            if not cluster.ask(f"abort what was written for {family}", abort):
                _log.warning(
                    "tidelog: what was written for %s is not open, and whether it was committed before is not known any"
                    " more; look before it is written again",
                    family,
                )
    except TidelogError as error:
        _log.warning(
            "tidelog: what was written for %s is not known to be aborted (%s), and is after transaction.timeout",
            family, error.message,
        )  # fmt: skip


async def _abort_some(
    client: Client, *, family: str, transactions: Sequence[PreparedTransaction], timeout: float
) -> bool:
    return await client.abort_prepared(family, transactions, abort_others=True, timeout=timeout)
