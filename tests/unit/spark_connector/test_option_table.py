"""The tables of options in docs/spark.md have a row for each option, and each option has tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from spark_connector.reads.read_options import KNOWN_OPTIONS

ROOT = Path(__file__).resolve().parents[3]
_TABLE = re.compile(r"<!-- options: .*? -->\n(.*?)<!-- end of options -->", re.DOTALL)

BATCH = "tests/integration/spark/test_spark_source.py::TestBatch::"
STREAM = "tests/integration/spark/test_spark_source.py::TestStream::"
CLUSTER = "tests/integration/spark/test_spark_options.py::"
UNIT = "tests/unit/spark_connector/"
READER = UNIT + "reads/test_stream_reader.py::"
SOURCE = UNIT + "test_source.py::"

TESTS = {
    "subscribe": BATCH + "test_offsets_split_and_several_streams",
    "subscribePattern": CLUSTER + "test_a_query_of_a_pattern_that_commits_for_a_group",
    "assign": BATCH + "test_assigned_partitions_are_read_and_no_others",
    "startingTimestamp": CLUSTER + "test_starts_and_ends_by_time_and_their_precedence",
    "startingOffsetsByTimestamp": CLUSTER + "test_starts_and_ends_by_time_and_their_precedence",
    "startingOffsetsByTimestampStrategy": BATCH + "test_offsets_split_and_several_streams",
    "startingOffsets": BATCH + "test_offsets_split_and_several_streams",
    "endingTimestamp": BATCH + "test_a_read_ends_at_a_timestamp",
    "endingOffsetsByTimestamp": CLUSTER + "test_starts_and_ends_by_time_and_their_precedence",
    "endingOffsets": BATCH + "test_offsets_split_and_several_streams",
    "isolationLevel": CLUSTER + "test_records_of_open_transactions_are_read_where_that_is_asked_for",
    "order": READER + "test_with_order_key_records_behind_a_cutover_come_in_a_later_micro_batch",
    "failOnDataLoss": STREAM + "test_records_lost_while_it_was_down",
    "includeHeaders": BATCH + "test_every_committed_record_once_with_all_columns",
    "columns": CLUSTER + "test_what_is_shipped_and_in_how_many_tasks",
    "minPartitions": BATCH + "test_offsets_split_and_several_streams",
    "maxRecordsPerPartition": CLUSTER + "test_what_is_shipped_and_in_how_many_tasks",
    "fetchMaxBytes": SOURCE + "test_the_bytes_of_an_answer",
    "readFrom": CLUSTER + "test_what_is_shipped_and_in_how_many_tasks",
    "rack": SOURCE + "test_which_records_of_which_replicas",
    "gc.freeze": UNIT + "reads/test_freezing.py::test_a_worker_freezes_once_and_behind_its_first_task",
    "retry.timeout": "tests/integration/spark/test_spark_outage.py::test_brokers_and_nats_stand_still_in_mid_query",
    "maxOffsetsPerTrigger": STREAM + "test_a_limit_per_trigger",
    "minOffsetsPerTrigger": CLUSTER + "test_a_micro_batch_waits_for_the_least",
    "maxTriggerDelay": READER + "TestLimits::test_the_least_that_makes_a_micro_batch",
    "maxBytesPerTrigger": CLUSTER + "test_micro_batches_of_at_most_so_many_bytes",
    "groupId": CLUSTER + "test_a_query_of_a_pattern_that_commits_for_a_group",
    "servers": "tests/integration/spark/test_spark_cluster.py::test_a_batch_query_reads_committed_records",
    "context": SOURCE + "test_where_and_as_whom_it_connects",
    "namespace": SOURCE + "test_where_and_as_whom_it_connects",
    "inboxPrefix": "tests/integration/security/test_permissions.py::test_a_spark_job_reads_its_streams",
}


def rows() -> list[str]:
    """The options of all rows of the tables in docs/spark.md."""
    tables = _TABLE.findall((ROOT / "docs" / "spark.md").read_text())
    first = [line.split("|")[1] for table in tables for line in table.splitlines()[2:]]
    return [name for cell in first for name in re.findall(r"`([^`]+)`", cell)]


def test_each_option_has_one_row() -> None:
    assert sorted(rows()) == sorted(KNOWN_OPTIONS)


def test_each_option_has_a_test() -> None:
    assert sorted(TESTS) == sorted(name for name in KNOWN_OPTIONS if not name.startswith("nats."))


@pytest.mark.parametrize("option", TESTS)
def test_the_test_of_an_option_is_there(option: str) -> None:
    file, *names = TESTS[option].split("::")
    body = ast.parse((ROOT / file).read_text()).body
    for name in names:
        (found,) = [
            each for each in body if isinstance(each, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
            and each.name == name
        ]  # fmt: skip
        body = found.body
