"""What the options become of: the connection of the client, and the requests of a task."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from spark_connector.reads.batch_reader import TidelogBatchReader
from spark_connector.reads.client_log import ClientLog, Isolation
from spark_connector.reads.log_port import OffsetRange
from spark_connector.reads.read_options import SourceOptions
from spark_connector.shared.arrow_rows import spark_schema
from spark_connector.shared.connections import Address
from spark_connector.source import TidelogDataSource, open_client_log
from tests.unit.spark_connector.reads.fake_log import FakeLogs, FakeStream
from wire.batch import RecordBatch
from wire.errors import Code, TidelogError

SERVERS = "nats://a:1"


def opened(**options: str) -> ClientLog:
    log = open_client_log(SourceOptions.parse({"subscribe": "flights", "servers": SERVERS} | options))
    assert isinstance(log, ClientLog)
    return log


def test_where_and_as_whom_it_connects() -> None:
    log = opened(
        context="prod", namespace="blue", inboxPrefix="_INBOX.job",
        **{"nats.user": "job", "nats.password_file": "/run/pw", "nats.tls_first": "true"},
    )  # fmt: skip
    login = (("context", "prod"), ("password_file", "/run/pw"), ("tls_first", True), ("user", "job"))
    assert log.cluster.address == Address((SERVERS,), "blue", "_INBOX.job", login)
    assert "/run/pw" not in repr(log.cluster.address)


def test_credentials_as_text_become_a_file() -> None:
    text = "-----BEGIN NATS USER JWT-----\nsecret-word\n"
    log = opened(**{"nats.creds": text})
    ((name, path),) = log.cluster.address.login
    assert (name, Path(path).read_text()) == ("creds", text)


def test_which_records_of_which_replicas() -> None:
    assert opened().isolation == Isolation(False, "leader", None)
    near = opened(isolationLevel="read_uncommitted", readFrom="nearest", rack="eu-1a")
    assert near.isolation == Isolation(True, "nearest", "eu-1a", in_key_order=False)
    assert opened(order="key").isolation == Isolation(in_key_order=True)
    assert opened(**{"retry.timeout": "7s"}).cluster.retry.timeout == 7


@dataclass
class Fetched(FakeLogs):
    sizes: list[int] = field(default_factory=list)

    def fetch(self, wanted: OffsetRange, max_bytes: int) -> Generator[RecordBatch, None, None]:
        self.sizes.append(max_bytes)
        yield from ()


def batch_reader(log: FakeLogs, **options: str) -> TidelogBatchReader:
    given = {"servers": SERVERS} | options
    return TidelogBatchReader(
        SourceOptions.parse(given).for_batch(), spark_schema(include_headers=False), lambda _: log
    )


def test_the_bytes_of_an_answer() -> None:
    log = Fetched({"flights": FakeStream({0: (0, 10)})})
    reader = batch_reader(log, subscribe="flights", fetchMaxBytes="2048")
    (task,) = reader.partitions()
    assert list(reader.read(task)) == []
    assert log.sizes == [2048]


def test_tasks_of_a_batch_have_at_most_so_many_records() -> None:
    log = FakeLogs({"flights": FakeStream(dict.fromkeys(range(40), (0, 10)))})
    for most, least in (("25", 16), ("4", 100)):
        tasks = batch_reader(log, subscribe="flights", maxRecordsPerPartition=most).partitions()
        sizes = [sum(len(each) for each in task.value) for task in tasks]
        assert max(sizes) <= int(most)
        assert sum(sizes) == 400
        assert len(sizes) >= least


def test_a_pattern_without_a_stream_is_refused_in_a_batch() -> None:
    log = FakeLogs({"flights": FakeStream({0: (0, 10)})})
    assert len(batch_reader(log, subscribePattern="fl.*").partitions()) == 1
    with pytest.raises(TidelogError, match="no stream has a name that subscribePattern='light' matches") as caught:
        batch_reader(log, subscribePattern="light").partitions()
    assert caught.value.code is Code.UNKNOWN_STREAM
    with pytest.raises(TidelogError, match="startingOffsets speaks of other, and the query reads flights"):
        batch_reader(log, subscribePattern="fl.*", startingOffsets='{"other": {"0": 1}}').partitions()
    with pytest.raises(TidelogError, match="startingOffsetsByTimestamp speaks of partitions 1 of stream 'flights'"):
        batch_reader(log, subscribe="flights", startingOffsetsByTimestamp='{"flights": {"1": 1}}').partitions()


def test_the_schema_has_the_columns_that_are_named() -> None:
    options = {"servers": SERVERS, "subscribe": "flights", "columns": "value,timestampType"}
    assert TidelogDataSource(options).schema().names == ["value", "timestampType"]
    TidelogDataSource(options).reader(TidelogDataSource(options).schema())
    with pytest.raises(TidelogError, match="columns names value, timestampType, and the schema has key, value,"):
        TidelogDataSource(options).reader(spark_schema(include_headers=False))
    with pytest.raises(TidelogError, match="columns names column 'carrier'"):
        TidelogDataSource(options | {"columns": "carrier"}).schema()


def test_a_start_behind_the_last_record_is_refused_unless_it_may_be_the_end() -> None:
    log = FakeLogs({"flights": FakeStream({0: (0, 10), 1: (0, 4)})})
    for late in ({"startingTimestamp": "7"}, {"startingOffsetsByTimestamp": '{"flights": {"0": 7, "1": 7}}'}):
        with pytest.raises(TidelogError, match="no record of flights/1 is at or after the time") as caught:
            batch_reader(log, subscribe="flights", **late).partitions()
        assert caught.value.code is Code.BAD_CONFIG
        lenient = batch_reader(log, subscribe="flights", startingOffsetsByTimestampStrategy="latest", **late)
        assert [[(part.partition, part.start, part.end) for part in task.value] for task in lenient.partitions()] == [
            [(0, 7, 10)]
        ]
    # An end at a time that lies ahead is the present end.
    ahead = batch_reader(log, subscribe="flights", endingTimestamp="7").partitions()
    assert sum(len(part) for task in ahead for part in task.value) == 7 + 4
