"""What callers give for changes of partitions is looked at before it is sent."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tidelog.client.fake_broker import Cluster
from tidelog.client.base.exceptions import BadConfig, BadRequest
from wire.errors import TidelogError
from wire.layouts import MAX_PARTITIONS, check_partition_count


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"readonly": "yes"}, "readonly='yes' \\(str\\) is neither True nor False"),
        ({"partitions": []}, "partitions is empty; name one, or leave it out for all"),
        ({"partitions": 0}, "partitions=0 \\(int\\) is no list of numbers"),
        ({"partitions": "01"}, "is no list of numbers"),
        ({"partitions": [0, -1]}, "partition=-1 is outside 0 to 9999"),
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


@pytest.mark.parametrize("call", ["repartition", "create_stream", "ensure_stream"])
@pytest.mark.parametrize("partitions", ["6", 6.0, True, None, [6], 1 << 2000])
async def test_a_number_of_partitions_is_whole(cluster: Cluster, call: str, partitions: Any) -> None:
    _, _, client = cluster
    with pytest.raises(BadRequest, match=r"^partitions=.*is not a whole number; give one from 1 to 10000$"):
        await getattr(client, call)("s", partitions=partitions)


@pytest.mark.parametrize("call", ["repartition", "create_stream", "ensure_stream"])
@pytest.mark.parametrize("partitions", [-1, 0, MAX_PARTITIONS + 1, 1 << 31])
async def test_how_many_partitions_a_stream_can_have_is_said_as_brokers_say_it(
    cluster: Cluster, call: str, partitions: int
) -> None:
    _, _, client = cluster
    with pytest.raises(TidelogError) as decided:
        check_partition_count(partitions)
    with pytest.raises(BadConfig) as refused:
        await getattr(client, call)("s", partitions=partitions)
    assert refused.value.message == decided.value.message
    assert f"partitions={partitions} is outside 1 to 10000" in refused.value.message
