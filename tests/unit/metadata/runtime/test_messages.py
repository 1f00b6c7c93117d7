"""Messages between brokers and controllers that do not decode."""

from __future__ import annotations

import logging

import pytest

from metadata.runtime.driver_context import LOG_INTERVAL_S, MAX_LOGGED, Messages
from tests.fake_nats import FakeTransport
from wire.messaging.transport import Message
from wire.protobuf import metadata_pb2 as pb
from wire.types import BrokerId


def test_what_does_not_decode_is_counted_each_time_and_logged_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    messages = Messages(BrokerId("a"), FakeTransport(), lambda: now)
    with caplog.at_level(logging.WARNING):
        for _ in range(1000):
            assert messages.decode(pb.ClusterClaim, Message("claims", b"\xff")) is None
        assert messages.decode(pb.ClusterClaim, Message("others", b"\xff")) is None
        now = LOG_INTERVAL_S
        assert messages.decode(pb.ClusterClaim, Message("claims", b"\xff")) is None
    assert messages.dropped == 1002
    assert [record.getMessage().rpartition(" on ")[2].partition(":")[0] for record in caplog.records] == [
        "claims",
        "others",
        "claims",
    ]
    for number in range(3 * MAX_LOGGED):
        messages.decode(pb.ClusterClaim, Message(f"claims.{number}", b"\xff"))
    assert len(messages._logged) <= MAX_LOGGED
