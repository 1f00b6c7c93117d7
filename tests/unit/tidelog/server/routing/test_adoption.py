"""Sessions of clients: the minimum of what they have applied, and the bounds on what strangers can leave behind."""

from __future__ import annotations

import pytest

from tidelog.server.routing import client_sessions
from tidelog.server.routing.client_sessions import AdoptionSessions, LabelsWithAdoption
from wire.error_details import LIMIT
from wire.errors import Code, TidelogError
from wire.operations.adoption_report import ADOPTION_LABEL, MAX_STREAMS, SESSION_TTL_S, AdoptionReport


def report(sessions: AdoptionSessions, client: str, now: float = 0.0, *, origin: str = "", **streams: int) -> None:
    sessions.report(AdoptionReport(client_id=client, streams=streams), origin or f"_INBOX.{client}", now)


def refusal(sessions: AdoptionSessions, client: str, origin: str = "", **streams: int) -> TidelogError:
    with pytest.raises(TidelogError) as refused:
        report(sessions, client, origin=origin, **streams)
    return refused.value


def test_the_minimum_is_of_the_sessions_that_name_the_stream() -> None:
    sessions = AdoptionSessions()
    report(sessions, "a", orders=7, flights=3)
    report(sessions, "b", orders=5)
    assert sessions.minimum(["orders", "flights", "payments"], 0.0) == {"orders": 5, "flights": 3}
    report(sessions, "b", orders=9)
    assert sessions.minimum(["orders"], 0.0) == {"orders": 7}, "a report replaces the one before"
    report(sessions, "a", flights=4)
    assert sessions.minimum(["orders"], 0.0) == {"orders": 9}, "also where it leaves a stream out"


def test_a_silent_session_is_forgotten() -> None:
    sessions = AdoptionSessions()
    report(sessions, "a", 0.0, orders=5)
    report(sessions, "b", 1.0, orders=7)
    report(sessions, "a", 2.0, orders=5)
    assert sessions.minimum(["orders"], 1.0 + SESSION_TTL_S) == {"orders": 5}
    assert sessions.minimum(["orders"], 2.0 + SESSION_TTL_S) == {"orders": 5}
    assert sessions.minimum(["orders"], 2.1 + SESSION_TTL_S) == {}
    assert (len(sessions), sessions._of_origin, sessions._bytes) == (0, {}, 0)


def test_sessions_of_one_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_sessions, "MAX_SESSIONS_OF_CLIENT", 3)
    sessions = AdoptionSessions()
    for number in range(3):
        report(sessions, f"forged-{number}", origin="_INBOX.x", orders=1)
    refused = refusal(sessions, "forged-3", origin="_INBOX.x", orders=1)
    assert (refused.code, refused.detail(LIMIT)) == (Code.BACKPRESSURE, "adoption_sessions_of_client")
    report(sessions, "forged-2", origin="_INBOX.x", orders=2)
    report(sessions, "honest", origin="_INBOX.y", orders=2)
    assert (len(sessions), sessions.refused) == (4, 1)


def test_sessions_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_sessions, "MAX_SESSIONS", 3)
    sessions = AdoptionSessions()
    for number in range(3):
        report(sessions, f"c{number}", orders=number)
    assert refusal(sessions, "c3", orders=1).detail(LIMIT) == "adoption_sessions"
    report(sessions, "c0", orders=8)
    report(sessions, "c3", SESSION_TTL_S + 0.1, orders=3)
    assert len(sessions) == 1, "those that have ended make room"


def test_bytes_of_all_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = AdoptionSessions()
    report(sessions, "a", orders=1)
    monkeypatch.setattr(client_sessions, "MAX_BYTES", 2 * sessions._bytes)
    report(sessions, "b", orders=1)
    assert refusal(sessions, "c", orders=1).detail(LIMIT) == "adoption_bytes"
    assert refusal(sessions, "b", orders=1, flights=1).detail(LIMIT) == "adoption_bytes"
    assert sessions.minimum(["orders", "flights"], 0.0) == {"orders": 1}, "the session that is known stays"
    report(sessions, "b")
    report(sessions, "a", orders=1, f=1)


@pytest.mark.parametrize(
    ("client", "streams"),
    [
        ("", {}),
        ("c" * 65, {}),
        ("c", {f"s{number}": 1 for number in range(MAX_STREAMS + 1)}),
        ("c", {"orders": -1}),
    ],
)
def test_a_report_that_no_client_sends_is_refused(client: str, streams: dict[str, int]) -> None:
    sessions = AdoptionSessions()
    assert refusal(sessions, client, "_INBOX.x", **streams).code is Code.BAD_REQUEST
    assert (len(sessions), sessions.refused) == (0, 1)


def test_labels_have_the_adoption_as_long_as_there_is_one() -> None:
    own = {"rack": "a"}
    minimum: dict[str, int] = {}
    labels = LabelsWithAdoption(own, lambda: minimum)
    assert (dict(labels), len(labels), labels.get(ADOPTION_LABEL)) == ({"rack": "a"}, 1, None)
    minimum["orders"] = 7
    own["disk"] = "1"
    assert dict(labels) == {"rack": "a", "disk": "1", ADOPTION_LABEL: "orders=7"}
