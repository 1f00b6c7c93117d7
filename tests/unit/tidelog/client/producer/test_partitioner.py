"""Keys keep their partition; records without one are spread."""

from __future__ import annotations

from collections import Counter

import pytest
from crc32c import crc32c

from tidelog.client.producer.partitioner import KEY_HASHES, KeyHash, Partitioner, murmur2
from wire.layouts import DEFAULT_PARTITIONER, PARTITIONERS


def test_a_key_goes_where_any_client_would_put_it() -> None:
    partitioner = Partitioner(range(7))
    for i in range(20_000):
        key = b"key-%d" % i
        assert partitioner.for_key(key) == crc32c(key) % 7
    assert crc32c(b"123456789") == 0xE3069283, "CRC-32C, not another CRC"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        # of the unit test of the Java client, UtilsTest.testMurmur2
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
        # of librdkafka's, rdmurmur2.c
        (b"kafka", 0xD067CF64),
        (b"giberish123456789", 0x8F552B0C),
        (b"1234", 0x9FC97B14),
        (b"234", 0xE7C009CA),
        (b"34", 0x873930DA),
        (b"4", 0x5A4B5CA1),
        (b"PreAmbleWillBeRemoved,ThePrePartThatIs", 0x78424F1C),
        (b"reAmbleWillBeRemoved,ThePrePartThatIs", 0x4A62B377),
        (b"eAmbleWillBeRemoved,ThePrePartThatIs", 0xE0E4E09E),
        (b"AmbleWillBeRemoved,ThePrePartThatIs", 0x62B8B43F),
        (b"", 0x106E08D9),
    ],
)
def test_murmur2_puts_a_key_where_clients_of_kafka_do(key: bytes, expected: int) -> None:
    assert murmur2(key) == expected & 0x7FFFFFFF
    partitioner = Partitioner(range(7), key_hash=murmur2)
    assert partitioner.for_key(key) == (expected & 0x7FFFFFFF) % 7


@pytest.mark.parametrize(
    ("key", "partition"),
    [(b"", 681), (b"a", 524), (b"ab", 434), (b"abc", 107), (b"123456789", 566), (b"\x00 ", 742)],
)
def test_murmur2_puts_a_key_where_kafka_python_does(key: bytes, partition: int) -> None:
    """Of its test_partitioner.py, test_murmur2_java_compatibility."""
    assert Partitioner(range(1000), key_hash=murmur2).for_key(key) == partition


@pytest.mark.parametrize("key_hash", KEY_HASHES.values(), ids=KEY_HASHES.keys())
def test_keys_are_spread(key_hash: KeyHash) -> None:
    partitioner = Partitioner(range(4), key_hash=key_hash)
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


def test_each_partitioner_that_a_stream_can_have_is_known() -> None:
    assert tuple(KEY_HASHES) == PARTITIONERS
    assert KEY_HASHES[DEFAULT_PARTITIONER] is crc32c
