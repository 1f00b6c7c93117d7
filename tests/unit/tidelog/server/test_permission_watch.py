"""What a broker says of permissions that its login lacks."""

from __future__ import annotations

import pytest

from tests.fake_nats import FakeTransport
from tidelog.server.broker_connection import LOG_INTERVAL_S, MAX_SHOWN, REMEMBERED_S, PermissionWatch
from wire.messaging.violation import Act, Violation


class Bench:
    def __init__(self) -> None:
        self.now = 1000.0
        self.transports = FakeTransport(), FakeTransport()
        self.watch = PermissionWatch("b1", "tidelog", self.transports, lambda: self.now)

    def refuse(self, act: Act, *subjects: str) -> None:
        for subject in subjects:
            self.transports[0].violations.tell(Violation(act=act, subject=subject))


def test_a_refused_subscription_is_logged_once_until_it_is_permitted(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.refuse(Act.SUBSCRIBE, "a", "a", "b")
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert "broker b1: NATS does not let this login subscribe to 'a'" in caplog.text
    assert bench.watch.status() == {"subscriptions": 2, "subscribe": ["a", "b"], "publish": []}
    bench.transports[0].violations.forget("a")
    assert bench.watch.status()["subscribe"] == ["b"]
    bench.refuse(Act.SUBSCRIBE, "a")
    assert len(caplog.records) == 3


def test_refused_messages_are_logged_now_and_then_and_the_newest_subjects_are_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bench = Bench()
    bench.refuse(Act.PUBLISH, *(f"inbox.{number}" for number in range(1000)))
    assert len(caplog.records) == 1
    assert bench.watch.status()["publish"] == [f"inbox.{number}" for number in range(1000 - MAX_SHOWN, 1000)]
    bench.now += LOG_INTERVAL_S
    bench.refuse(Act.PUBLISH, "inbox.\x1b" + "x" * 5000)
    assert len(caplog.records) == 2
    assert "1000 answers to clients since" in caplog.text
    assert all(len(subject) < 300 and subject.isprintable() for subject in bench.watch.status()["publish"])
    bench.now += REMEMBERED_S + 1
    assert bench.watch.status()["publish"] == []


def test_answers_where_a_stranger_wants_them_hide_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    flood = [f"elsewhere.{number}" for number in range(1000)]
    bench.refuse(Act.PUBLISH, *flood, "tidelog.notify.b2", "$SRV.INFO", *flood)
    assert bench.watch.status()["publish"] == ["tidelog.notify.b2", "$SRV.INFO", *flood[-MAX_SHOWN:]]
    assert len(caplog.records) == 2
    assert "publish to 'tidelog.notify.b2'; 1 messages since" in caplog.text


def test_many_refused_subscriptions_are_counted_and_some_are_named() -> None:
    bench = Bench()
    bench.refuse(Act.SUBSCRIBE, *(f"s.{number:04}" for number in range(500)))
    status = bench.watch.status()
    assert status["subscriptions"] == 500
    assert status["subscribe"] == [f"s.{number:04}" for number in range(MAX_SHOWN)]
