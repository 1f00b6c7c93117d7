"""Free ports of the loopback interface."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tidelog.process import loopback
from wire.errors import Code, TidelogError


@pytest.fixture(autouse=True)
def no_range_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(loopback.PORTS_VARIABLE, raising=False)


def test_ports_are_different_and_can_be_listened_on() -> None:
    ports = loopback.free_ports(20)
    assert len(set(ports)) == 20
    for port in ports:
        socket.create_server((loopback.HOST, port)).close()


def test_no_port_is_one_that_an_outgoing_connection_may_get(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = tmp_path / "ip_local_port_range"
    told.write_text("10300\t60999\n")
    monkeypatch.setattr(loopback, "_EPHEMERAL_RANGE", told)
    assert all(port < 10_300 for port in loopback.free_ports(10))


@pytest.mark.parametrize("text", [None, "", "many\n", "1024\t65535\n"])
def test_a_range_that_is_not_told_or_leaves_no_room_is_presumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    told = tmp_path / "ip_local_port_range"
    if text is not None:
        told.write_text(text)
    monkeypatch.setattr(loopback, "_EPHEMERAL_RANGE", told)
    assert all(port < 32_768 for port in loopback.free_ports(10))


def test_ports_are_of_the_range_that_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(loopback.PORTS_VARIABLE, "9100-9109")
    first = loopback.free_ports(1)[0]
    assert 9_100 <= first <= 9_109
    monkeypatch.setenv(loopback.PORTS_VARIABLE, f"{first}-{first}")
    with socket.create_server((loopback.HOST, first)), pytest.raises(TidelogError, match=r"no port of .* give a wider"):
        loopback.free_ports(1)


@pytest.mark.parametrize("text", ["9100", "9100-", "-9109", "9109-9100", "0-10", "9100-65536", "a-b", "9100-9109-9110"])
def test_a_range_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(loopback.PORTS_VARIABLE, text)
    with pytest.raises(TidelogError, match=f"TIDELOG_LOOPBACK_PORTS is '{text}'; give FIRST-LAST") as refused:
        loopback.free_ports(1)
    assert refused.value.code is Code.BAD_CONFIG
