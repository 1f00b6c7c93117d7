"""Places of accepted connections that have not proved anything yet."""

from __future__ import annotations

from metadata.raft.introductions import MAX_INTRODUCTIONS, Introductions

TIMEOUT = 2.0


def test_an_introduction_has_a_deadline() -> None:
    places: Introductions[str] = Introductions(TIMEOUT)
    places.begin("slow", "10.0.0.1", 0.0)
    places.begin("quick", "10.0.0.2", 1.0)
    assert places.overdue(2.0) == []
    assert places.overdue(2.1) == ["slow"]
    assert places.overdue(2.1) == [], "it is told once"
    places.end("quick")
    assert places.overdue(9.0) == []
    assert places.dropped == 1


def test_a_newcomer_takes_the_oldest_place_of_the_address_that_holds_most() -> None:
    places: Introductions[str] = Introductions(TIMEOUT)
    places.begin("voter", "10.0.0.2", 0.0)
    for number in range(1, MAX_INTRODUCTIONS):
        assert places.begin(f"drip {number}", "10.0.0.1", 0.1) is None
    assert places.begin("voter again", "10.0.0.2", 0.2) == "drip 1"
    assert places.begin("drip more", "10.0.0.1", 0.2) == "drip 2"
    assert places.dropped == 2
    places.end("drip 3")
    assert places.begin("one more", "10.0.0.1", 0.3) is None, "a place was free"


def test_from_one_address_the_newest_stay() -> None:
    places: Introductions[int] = Introductions(TIMEOUT)
    closed = [places.begin(number, "127.0.0.1", 0.0) for number in range(MAX_INTRODUCTIONS + 3)]
    assert closed[-3:] == [0, 1, 2]
    assert not any(closed[:-3])
