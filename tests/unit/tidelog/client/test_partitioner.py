"""Keys keep their partition; records without one are spread."""

from __future__ import annotations

from collections import Counter

from crc32c import crc32c

from tidelog.client.partitioner import Partitioner


def test_a_key_goes_where_any_client_would_put_it() -> None:
    partitioner = Partitioner(range(7))
    for i in range(20_000):
        key = b"key-%d" % i
        assert partitioner.for_key(key) == crc32c(key) % 7
    assert crc32c(b"123456789") == 0xE3069283, "CRC-32C, not another CRC"


def test_keys_are_spread() -> None:
    partitioner = Partitioner(range(4))
    counts = Counter(partitioner.for_key(b"%d" % i) for i in range(8000))
    assert min(counts.values()) > 1700


def test_records_without_a_key_stay_and_then_move_on_round() -> None:
    partitioner = Partitioner(range(3), start=1)
    seen = []
    for _ in range(4):
        seen.append(partitioner.sticky)
        partitioner.move_on(lambda _: True)
    assert seen == [1, 2, 0, 1]


def test_partitions_without_a_leader_are_passed_over_unless_all_are() -> None:
    partitioner = Partitioner(range(3))
    partitioner.move_on(lambda p: p != 1)
    assert partitioner.sticky == 2
    partitioner.move_on(lambda _: False)
    assert partitioner.sticky == 0
