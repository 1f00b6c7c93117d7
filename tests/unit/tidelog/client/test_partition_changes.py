"""What callers give for changes of partitions is looked at before it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.errors import BadRequest


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"readonly": "yes"}, "readonly='yes' \\(str\\) is neither True nor False"),
        ({"partitions": []}, "partitions is empty; name one, or leave it out for all"),
        ({"partitions": 0}, "partitions=0 \\(int\\) is no list of numbers"),
        ({"partitions": "01"}, "is no list of numbers"),
        ({"partitions": [0, -1]}, "partition=-1 is outside"),
        ({"partitions": [True]}, "is not a whole number"),
    ],
)
async def test_partitions_are_numbers(cluster: Cluster, arguments: dict[str, Any], sentence: str) -> None:
    _, _, client = cluster
    with pytest.raises(BadRequest, match=sentence):
        await client.set_readonly("s", **arguments)


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        ({}, "is no mapping of partitions to offsets"),
        ([3], "is no mapping of partitions to offsets"),
        ({0: -1}, "the offset of partition 0=-1 is outside 0 to"),
        ({0: "earliest"}, "the offset of partition 0='earliest' \\(str\\) is not a whole number"),
        ({"0": 1}, "partition='0' \\(str\\) is not a whole number"),
    ],
)
async def test_deleted_records_are_named_by_partition_and_offset(cluster: Cluster, before: Any, sentence: str) -> None:
    _, _, client = cluster
    with pytest.raises(BadRequest, match=sentence):
        await client.delete_records("s", before)
