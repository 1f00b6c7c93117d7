"""Names of streams and groups are completed; whatever goes wrong is silent, and takes a second at most."""

from __future__ import annotations

from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.unit.tidelog.client.fake_broker import make
from tidelog.cli import main
from tidelog.cli.terminal import name_completion

NOWHERE = "nats://127.0.0.1:1"


def completed(line: str) -> list[str]:
    words = line.split(" ")
    told = CliRunner().invoke(
        main,
        [],
        env={"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1), "_MAIN_COMPLETE": "bash_complete"},
    )
    assert (told.exit_code, told.stderr) == (0, "")
    return [each.removeprefix("plain,") for each in told.stdout.split()]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """With the streams flights and orders; what commands give to connect."""
    asked: list[dict[str, Any]] = []

    async def connected(context: click.Context, _timeout: float) -> Any:
        asked.append({**context.params})
        _, broker, client = make()
        for name in ("orders", "flights", "flights-eu"):
            broker.create(name, 1)

        async def groups() -> Any:
            return {"groups": [{"name": "billing"}, {"name": "books"}], "unanswered": []}

        monkeypatch.setattr(client, "groups", groups)
        return client

    monkeypatch.setattr(name_completion, "connected_for_completion", connected)
    return asked


@pytest.mark.parametrize(
    "line",
    [
        "tidelog publish fl", "tidelog subscribe orders fl", "tidelog stream describe fl", "tidelog stream delete fl",
        "tidelog offsets fl", "tidelog partition history fl", "tidelog stream copy fl", "tidelog audit --stream fl",
        "tidelog group reset billing --stream fl", "tidelog transaction list --stream fl", "tidelog stream pause fl",
        "tidelog stream repartition status fl", "tidelog activity --stream fl",
    ],
)  # fmt: skip
def test_streams(cluster: list[dict[str, Any]], line: str) -> None:
    assert completed(line) == ["flights", "flights-eu"]


@pytest.mark.parametrize(
    "line",
    [
        "tidelog group describe b", "tidelog group delete b", "tidelog group reset b",
        "tidelog subscribe orders --group b", "tidelog transaction list --group b",
    ],
)  # fmt: skip
def test_groups(cluster: list[dict[str, Any]], line: str) -> None:
    assert completed(line) == ["billing", "books"]


def test_the_cluster_of_the_line_is_asked(cluster: list[dict[str, Any]]) -> None:
    assert completed(f"tidelog publish --server {NOWHERE} ord") == ["orders"]
    assert cluster[0]["server"] == NOWHERE


def test_a_new_stream_has_a_name_of_its_own(cluster: list[dict[str, Any]]) -> None:
    assert completed("tidelog stream create fl") == []


def test_a_cluster_that_is_not_there_is_silent() -> None:
    assert completed(f"tidelog publish --server {NOWHERE} fl") == []
    assert completed(f"tidelog group describe --server {NOWHERE} --context missing fl") == []
