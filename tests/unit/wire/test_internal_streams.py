"""Tidelog's own streams: their names, subjects and settings."""

from __future__ import annotations

import pytest

from wire.errors import TidelogError
from wire.internal_streams import AUDIT, INTERNAL_STREAMS, InternalStream, is_internal, is_of_internal, is_reserved
from wire.stream_config import StreamConfig
from wire.subjects import Subjects, check_stream_name
from wire.types import Incarnation, PartitionKey, StreamName


def test_their_names_are_reserved_names_of_streams() -> None:
    assert all(is_reserved(check_stream_name(name)) for name in INTERNAL_STREAMS)
    assert not any(map(is_reserved, ("audit", "_audit", "a__", "-_x")))


def test_a_users_stream_of_an_earlier_version_is_not_internal_whatever_its_name() -> None:
    subjects = Subjects("ns")
    assert is_internal("__audit", "ns.__audit", subjects)
    for name, subject in (
        ("__audit", "__audit"),
        ("__audit", "other.__audit"),
        ("__x", "ns.__x"),
        ("__x", "__x"),
        ("x", "ns.__audit"),
    ):
        assert not is_internal(name, subject, subjects)


def test_every_partition_of_an_internal_stream_is_internal_by_its_own_subject() -> None:
    subjects = Subjects("ns")

    def key(stream: str, partition: int) -> PartitionKey:
        return PartitionKey(StreamName(stream), Incarnation(1), partition, Incarnation(1))

    assert is_of_internal(key("__groups", 0), "ns.__groups", subjects)
    assert is_of_internal(key("__groups", 3), "ns.__groups.3", subjects)
    assert not is_of_internal(key("__groups", 3), "ns.__groups", subjects)
    assert not is_of_internal(key("__groups", 3), "__groups.3", subjects)
    assert not is_of_internal(key("orders", 3), "ns.__groups.3", subjects)


@pytest.mark.parametrize("stream", INTERNAL_STREAMS.values(), ids=lambda stream: stream.name)
def test_their_settings_stand_for_themselves(stream: InternalStream) -> None:
    """Whatever the cluster's defaults are, but for encryption."""
    config = stream.config
    assert config.keys() == StreamConfig().to_strings().keys() - {"encryption"}
    made = StreamConfig.from_strings(config)
    for replicas in (1, 2, 3, 5):
        made.resolved(replicas).check(replicas)
    assert (made.producer_byte_rate, made.producer_record_rate) == (0, 0)


def test_their_subject_is_one_that_no_other_stream_can_have() -> None:
    subjects = Subjects("ns")
    subject = subjects.internal(AUDIT.name)
    assert subject == "ns.__audit"
    with pytest.raises(TidelogError, match="inside the cluster's own namespace"):
        subjects.check_subject(subject)
    assert subjects.is_between_brokers(subjects.write(StreamName(AUDIT.name), 0))
    assert not subjects.is_between_brokers(subjects.append(StreamName(AUDIT.name), 0))
