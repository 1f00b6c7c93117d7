"""Which time the brokers agree on, and when one of them may forget by it: each row of the table in docs/protocol.md."""

# Rules: R72.

from __future__ import annotations

import pytest

from metadata.controller.agreed_time import AgreedClock, ClockState, ClockSurvey, Survey
from metadata.controller.metadata_settings import MetadataSettings
from wire.types import BrokerId

S = 1_000_000_000
HOUR = 3600 * S
DAY = 24 * HOUR
START = 1_700_000_000 * S
A, B, C = BrokerId("a"), BrokerId("b"), BrokerId("c")
SETTINGS = MetadataSettings(max_clock_difference_s=5.0, clock_settle_s=30.0, leader_lease_s=5.0)
JUMPS = [HOUR, -HOUR, 8 * DAY, -8 * DAY]


def surveyed(*ahead: int | None, live: int | None = None, took: float = 0.0) -> Survey:
    """Clocks that are so far ahead; None: that broker has not answered."""
    survey = ClockSurvey(SETTINGS)
    brokers = [BrokerId(f"b{number}") for number in range(len(ahead) if live is None else live)]
    for broker, by in zip(brokers, ahead, strict=False):
        if by is not None:
            survey.on_answer(broker, START + 100 * S + by, 100.0 - took / 2, 100.0 + took / 2)
    return survey.survey(brokers, 100.0)


class OneBroker:
    """An agreed clock that is told of a time at each step of a tenth of a second."""

    def __init__(self) -> None:
        self.clock = AgreedClock(SETTINGS)
        self.now = 0.0
        self.agreed = START
        """The time on which most agree, at `now` = 0."""
        self.wall = START
        """This broker's own clock, at `now` = 0."""

    def passes(self, seconds: float, *, told: bool = True, is_apart: bool = False) -> ClockState:
        for _ in range(round(10 * seconds)):
            self.now += 0.1
            if told:
                agreed = 0 if is_apart else self.agreed + self.elapsed
                self.clock.on_probe(agreed, is_apart=is_apart, age=0.1, now=self.now)
        return self.state

    @property
    def elapsed(self) -> int:
        return int(self.now * S)

    @property
    def state(self) -> ClockState:
        return self.clock.state(self.now, self.wall + self.elapsed)

    @property
    def time(self) -> int | None:
        return self.clock.time_ns(self.now, self.wall + self.elapsed)

    @property
    def stamp(self) -> int:
        return self.clock.stamp_ns(self.now, self.wall + self.elapsed)

    @property
    def common(self) -> int:
        return self.clock.common_ns(self.now, self.wall + self.elapsed)


# ---- the survey


@pytest.mark.parametrize("jump", JUMPS)
def test_one_clock_of_three_changes_nothing(jump: int) -> None:
    assert surveyed(0, jump, S) in (Survey(START + 100 * S), Survey(START + 101 * S))


@pytest.mark.parametrize("jump", JUMPS)
def test_two_brokers_of_which_one_is_off_agree_on_nothing(jump: int) -> None:
    assert surveyed(0, jump) == Survey(None, is_apart=True)


def test_one_broker_is_its_own_majority() -> None:
    assert surveyed(HOUR) == Survey(START + 100 * S + HOUR)


def test_half_is_no_majority() -> None:
    assert surveyed(0, 0, HOUR, HOUR) == Survey(None, is_apart=True)
    assert surveyed(0, 0, 0, HOUR, -HOUR) == Survey(START + 100 * S)


def test_those_that_have_not_answered_count_against_it() -> None:
    assert surveyed(0, None, None) == Survey(None)
    assert surveyed(0, HOUR, None) == Survey(None), "the third may agree with either"
    assert surveyed(0, S, None) == Survey(START + 100 * S)


def test_an_answer_that_took_long_says_too_little() -> None:
    assert surveyed(0, took=5.5) == Survey(None)


def test_an_old_answer_counts_no_more_and_a_dead_broker_neither() -> None:
    survey = ClockSurvey(SETTINGS)
    for broker in (A, B, C):
        survey.on_answer(broker, START, 0.0, 0.0)
    assert survey.survey([A, B, C], 5.0).agreed_ns == START + 5 * S
    assert survey.survey([A, B, C], 5.1) == Survey(None)
    survey.on_answer(A, START + 6 * S, 6.0, 6.0)
    assert survey.survey([A, B, C], 6.0) == Survey(None)
    assert survey.survey([A], 6.0).agreed_ns == START + 6 * S


def test_an_earlier_version_tells_no_clock() -> None:
    survey = ClockSurvey(SETTINGS)
    survey.on_answer(A, 0, 0.0, 0.0)
    assert survey.survey([A], 0.0) == Survey(None)


# ---- one broker


def test_a_new_process_forgets_once_the_time_has_gone_on_for_a_while() -> None:
    one = OneBroker()
    assert one.state is ClockState.UNKNOWN
    assert one.passes(29) is ClockState.SETTLING
    assert one.time is None
    assert one.passes(2) is ClockState.AGREED
    assert one.time == pytest.approx(START + 31 * S, abs=S)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_broker_whose_own_clock_jumps_forgets_nothing_from_that_moment_on(jump: int) -> None:
    one = OneBroker()
    one.passes(40)
    one.wall += jump
    assert (one.state, one.time) == (ClockState.OFF, None), "before the next probe"
    assert one.passes(100) is ClockState.OFF
    assert one.stamp == pytest.approx(START + 140 * S, abs=S), "what it dates has the agreed time"
    one.wall -= jump
    assert one.time is not None, "the agreed time went on meanwhile"


@pytest.mark.parametrize("jump", JUMPS)
def test_a_jump_of_the_agreed_time_has_to_last(jump: int) -> None:
    """All clocks are set at once, or that of a broker which is alone."""
    one = OneBroker()
    one.passes(40)
    one.agreed, one.wall = START + jump, START + jump
    assert one.passes(5) is ClockState.SETTLING
    one.agreed, one.wall = START, START
    assert one.passes(29) is ClockState.SETTLING, "back again: it begins anew"
    assert one.passes(2) is ClockState.AGREED
    one.agreed, one.wall = START + jump, START + jump
    assert one.passes(31) is ClockState.AGREED
    assert one.time == pytest.approx(START + jump + one.elapsed, abs=S)
    assert one.clock.jumps == 3


def test_a_host_that_slept_waits_as_after_a_jump() -> None:
    """Its monotonic clock stood still."""
    one = OneBroker()
    one.passes(40)
    one.agreed, one.wall = START + 8 * HOUR, START + 8 * HOUR
    assert one.state is ClockState.OFF, "before the first probe its own clock is all that has moved"
    assert one.passes(1) is ClockState.SETTLING


def test_clocks_that_drift_apart_slowly_are_no_jump_before_the_bound() -> None:
    one = OneBroker()
    one.passes(40)
    for _ in range(4):
        one.agreed += S
        assert one.passes(1) is ClockState.AGREED
    one.agreed += 2 * S
    one.wall = one.agreed
    assert one.passes(1) is ClockState.SETTLING


def test_without_a_majority_nothing_is_forgotten() -> None:
    one = OneBroker()
    one.passes(40)
    assert one.passes(1, is_apart=True) is ClockState.APART
    assert one.time is None
    assert one.passes(1) is ClockState.AGREED


def test_without_a_controller_nothing_is_forgotten() -> None:
    one = OneBroker()
    one.passes(40)
    assert one.passes(4.5, told=False) is ClockState.AGREED
    assert one.passes(1, told=False) is ClockState.UNKNOWN
    assert one.time is None
    assert one.stamp == START + one.elapsed


@pytest.mark.parametrize("jump", JUMPS)
def test_what_others_judge_is_dated_by_the_agreed_time_in_every_state(jump: int) -> None:
    one = OneBroker()
    one.wall += jump
    assert one.common == one.wall, "no time was told yet"
    for state, found in (
        (ClockState.OFF, one.passes(40)),
        (ClockState.APART, one.passes(20, is_apart=True)),
        (ClockState.OFF, one.passes(20)),
        (ClockState.UNKNOWN, one.passes(20, told=False)),
    ):
        assert found is state
        assert one.common == pytest.approx(START + one.elapsed, abs=S)


def test_a_probe_that_lay_unread_says_nothing() -> None:
    one = OneBroker()
    one.passes(40)
    one.clock.on_probe(START + one.elapsed - HOUR, is_apart=True, age=3.0, now=one.now)
    assert one.state is ClockState.AGREED
