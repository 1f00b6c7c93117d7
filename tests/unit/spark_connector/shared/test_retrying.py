from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from spark_connector.shared.retrying import REFUSAL_SECONDS, WARN_SECONDS, Patience, WaitedOut
from tidelog.client.base.exceptions import NoServer
from wire.errors import Code, TidelogError


@dataclass
class World:
    """A clock that pauses alone move, and an attempt that fails until a time."""

    now: float = 1000.0
    attempts: int = 0
    pauses: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds

    def retry(self, timeout: float) -> Patience:
        return Patience(timeout, now=lambda: self.now, sleep=self.sleep)

    def failing_until(self, time: float, error: TidelogError) -> Callable[[], str]:
        def attempt() -> str:
            self.attempts += 1
            if self.now < time:
                raise error
            return "done"

        return attempt


UNAVAILABLE = TidelogError(Code.UNAVAILABLE, "the controller did not answer")


def test_what_passes_is_waited_for_and_told_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    assert world.retry(120).run("read flights/0", world.failing_until(1060, UNAVAILABLE)) == "done"
    assert 1060 <= world.now < 1063
    assert len(caplog.records) == 60 / WARN_SECONDS
    first = caplog.records[0].getMessage()
    assert "cannot read flights/0 yet, and goes on trying for 120 s (retry.timeout): the controller did not" in first


def test_the_error_says_how_long_it_was_tried() -> None:
    world = World()
    with pytest.raises(TidelogError, match=r"the controller did not answer \(tried for 30 s; option retry") as caught:
        world.retry(30).run("read", world.failing_until(1060, UNAVAILABLE))
    assert world.now == 1030
    assert caught.value.code is Code.UNAVAILABLE


@pytest.mark.parametrize(
    ("timeout", "error"),
    [
        (0.0, UNAVAILABLE),
        (120.0, TidelogError(Code.UNKNOWN_STREAM, "there is no stream")),
        (120.0, WaitedOut(Code.UNAVAILABLE, "nothing came")),
    ],
)
def test_what_is_final_is_raised_at_once(timeout: float, error: TidelogError) -> None:
    world = World()
    with pytest.raises(TidelogError) as caught:
        world.retry(timeout).run("read", world.failing_until(1060, error))
    assert caught.value is error
    assert (world.attempts, world.now) == (1, 1000)


def test_a_refused_login_is_tried_for_a_short_time_only() -> None:
    world = World()
    refused = NoServer(Code.UNAVAILABLE, "the NATS server refuses these credentials")
    refused.is_refusal = True
    with pytest.raises(NoServer, match="refuses these credentials"):
        world.retry(120).run("read", world.failing_until(1060, refused))
    assert world.now == 1000 + REFUSAL_SECONDS


def test_a_wait_that_the_cluster_asks_for_is_kept() -> None:
    world = World()
    asked = TidelogError(Code.BACKPRESSURE, "later", {"retry_after_ms": "5000"})
    world.retry(120).run("read", world.failing_until(1001, asked))
    assert world.pauses == [5.0]
