from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from wire.retry import Retry


def pauses(retry: Retry, count: int) -> list[float]:
    return [retry.failed() for _ in range(count)]


def test_pauses_grow_up_to_the_longest() -> None:
    assert pauses(Retry(0.5, 3.0, chance=None), 5) == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pauses(Retry(0.5, 3.0, factor=1.5, chance=None), 3) == [0.5, 0.75, 1.125]


def test_without_a_longest_one_all_pauses_are_alike() -> None:
    assert pauses(Retry(0.5, chance=None), 3) == [0.5] * 3


def test_a_success_begins_anew() -> None:
    retry = Retry(0.5, 3.0, chance=None)
    pauses(retry, 4)
    retry.succeeded()
    assert retry.failures == 0
    assert retry.failed() == 0.5


def test_the_first_repetition_may_be_at_once() -> None:
    assert pauses(Retry(0.5, 3.0, at_once=True, chance=None), 4) == [0.0, 0.5, 1.0, 2.0]


def test_a_look_at_the_next_pause_does_not_count() -> None:
    retry = Retry(0.5, 3.0, chance=None)
    assert [retry.pause_s(), retry.pause_s(), retry.failed(), retry.pause_s()] == [0.5, 0.5, 0.5, 1.0]


def test_chance_takes_up_to_half_away_and_no_more() -> None:
    drawn = pauses(Retry(1.0, chance=Random(7).random), 1000)
    assert 0.5 <= min(drawn) < 0.51
    assert 0.99 < max(drawn) <= 1.0


def test_the_same_source_gives_the_same_pauses() -> None:
    first, second = (pauses(Retry(0.1, 10.0, chance=Random(3).random), 20) for _ in range(2))
    assert first == second
    assert len(set(first)) == len(first)


def test_a_refusal_that_names_a_pause_gets_it() -> None:
    retry = Retry(0.1, 1.0, chance=Random(1).random)
    assert retry.failed(at_least_s=5.0) == 5.0
    assert retry.failed() <= 0.2


def test_no_pause_ends_after_the_deadline() -> None:
    retry = Retry(1.0, 8.0, chance=None, deadline=10.0)
    now, at = 0.0, [0.0]
    while retry.left_s(now):
        now += retry.failed(now)
        at.append(now)
    assert at == [0.0, 1.0, 3.0, 7.0, 10.0]
    assert retry.failed(11.0, at_least_s=3.0) == 0.0


def test_thousands_of_failures_are_no_overflow() -> None:
    drawn = pauses(Retry(0.1, 1.0, chance=None), 5000)
    assert all(earlier <= later for earlier, later in pairwise(drawn))
    assert drawn[-1] == pytest.approx(1.0)
