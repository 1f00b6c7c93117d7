"""`tidelog stream alter --partitions` and `tidelog stream repartition` with a client that answers from a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.streams import repartition
from tidelog.cli.terminal import session
from wire.operations.partition_operations import RepartitionPlan, RepartitionState, RepartitionStatus

PLAN: RepartitionPlan = {
    "stream": "s",
    "partitioning_version": 1,
    "partitions": 2,
    "to_version": 2,
    "to_partitions": 40,
    "made": [*range(3, 40)],
    "used_again": [2],
    "left": [],
    "moved_keys": 0.95,
    "sources": [{"partition": number, "waits_for": [number % 2]} for number in range(2, 40)],
    "effects": ["producers learn of it", "groups read partition 2 later"],
}


def state(**changes: Any) -> RepartitionState:
    known: RepartitionState = {
        "version": 2,
        "partitions": 40,
        "phase": "cutover",
        "adoption_generation": 20,
        "done": 2,
        "of": 2,
        "waiting": [],
        "adopted": None,
        "done_for_s": 0.5,
        "adoption_timeout_s": 30.0,
    }
    return {**known, **changes}  # type: ignore[typeddict-item] # fields of it


def status(begun: RepartitionState | None = None) -> RepartitionStatus:
    return {"stream": "s", "partitioning_version": 2, "partitions": 40, "repartition": begun}


class FakeClient:
    """Each question for the status gets the next of `statuses`."""

    def __init__(self, *statuses: RepartitionStatus) -> None:
        self.statuses = [*statuses]
        self.did: list[str] = []

    async def repartition(self, name: str, partitions: int, dry_run: bool = False) -> dict[str, Any]:
        self.did.append(f"{'plan' if dry_run else 'begin'} {name} {partitions}")
        return {"plan": PLAN, "status": self.statuses.pop(0) if not dry_run else status()}

    async def repartition_status(self, name: str) -> RepartitionStatus:
        assert name == "s"
        return self.statuses.pop(0)

    async def cancel_repartition(self, name: str) -> RepartitionStatus:
        self.did.append(f"cancel {name}")
        return self.statuses.pop(0)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeClient]:
    def begin(*statuses: RepartitionStatus) -> FakeClient:
        client = FakeClient(*statuses)

        def run(_server: str | None, _namespace: str, work: Callable[[Any], Awaitable[None]], **_: bool) -> None:
            asyncio.run(work(client))  # type: ignore[arg-type] # a coroutine

        for module in (repartition, session):
            monkeypatch.setattr(module, "run", run)
        monkeypatch.setattr(repartition, "POLL_S", 0.0)
        return client

    return begin


def invoke(*arguments: str) -> tuple[int, str, str]:
    session.console.cache_clear()
    result = CliRunner().invoke(main, ["stream", *arguments])
    return result.exit_code, result.stdout, result.stderr


def test_a_dry_run_shows_the_plan_and_changes_nothing(answering: Callable[..., FakeClient]) -> None:
    client = answering()
    exit_status, out, _ = invoke("alter", "s", "--partitions", "40", "--dry-run")
    assert (exit_status, client.did) == (0, ["plan s 40"])
    words = " ".join(out.split())
    assert "│ partitions │ 2 │ 40 │" in words
    assert "│ partitioning version │ 1 │ 2 │" in words
    assert "│ made │ │ 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, … │" in words
    assert "│ used again │ │ 2 │" in words
    assert "left" not in words
    assert "│ keys that move to another partition │ │ 95 % │" in words
    assert "│ 3 │ 1 │" in words
    assert out.endswith("- producers learn of it\n- groups read partition 2 later\n")
    exit_status, out, _ = invoke("alter", "s", "--partitions", "40", "--dry-run", "--json")
    assert (exit_status, json.loads(out)) == (0, PLAN)


def test_one_that_another_operator_cancels_meanwhile_is_no_success(answering: Callable[..., FakeClient]) -> None:
    before: RepartitionStatus = {**status(), "partitions": 2}
    answering(status(state(phase="prepared")), before)
    exit_status, out, err = invoke("alter", "s", "--partitions", "40", "--yes")
    assert (exit_status, "finished" in out) == (1, False)
    assert "the repartition of stream s to 40 partitions is gone, and keys are spread over 2 partitions" in err
    answering(status(state(phase="prepared")), before)
    exit_status, out, err = invoke("alter", "s", "--partitions", "40", "--yes", "--json")
    assert (exit_status, json.loads(out), "is gone" in err) == (1, before, True)


def test_one_that_has_made_way_for_another_is_no_success_either(answering: Callable[..., FakeClient]) -> None:
    """Nothing is waited for: what is under way is looked at once."""
    answering({**status(state(partitions=7)), "partitions": 2})
    exit_status, out, err = invoke("alter", "s", "--partitions", "40", "--yes", "--no-wait")
    assert (exit_status, "under way" in out) == (1, False)
    assert "the repartition of stream s to 40 partitions is gone" in err


def test_it_is_asked_for_and_waited_for(answering: Callable[..., FakeClient]) -> None:
    client = answering(status(state()), status(state(adopted=20)), status())
    exit_status, out, err = invoke("alter", "s", "--partitions", "40")
    assert (exit_status, client.did) == (2, ["plan s 40"])
    assert "this spreads the keys of stream s over 40 partitions in place of 2 partitions" in err
    assert "--yes" in err
    exit_status, out, _ = invoke("alter", "s", "--partitions", "40", "--yes")
    assert (exit_status, client.did[1:]) == (0, ["plan s 40", "begin s 40"])
    assert out.splitlines()[-1] == (
        "stream s spreads keys over 40 partitions (partitioning version 2); the repartition is finished"
    )
    assert client.statuses == []
    answering(status(state()), status())
    exit_status, out, _ = invoke("alter", "s", "--partitions", "40", "--yes", "--json")
    assert (exit_status, json.loads(out)) == (0, status())


def test_it_need_not_be_waited_for(answering: Callable[..., FakeClient]) -> None:
    client = answering(status(state(done=0, waiting=[0, 1])))
    exit_status, out, _ = invoke("alter", "s", "--partitions", "40", "--yes", "--no-wait")
    assert (exit_status, client.statuses) == (0, [])
    assert out.endswith("0 of 2 partitions have reported where their old records end, 0, 1 not yet\n")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--partitions", "3", "--config", "compact=true"], "--partitions stands alone"),
        (["--partitions", "3", "--unset", "compact"], "--partitions stands alone"),
        (["--partitions", "0"], "0 is not in the range 1<=x<=10000"),
        (["--partitions", "10001"], "10001 is not in the range 1<=x<=10000"),
        (["--partitions", "six"], "'six' is not a valid integer range"),
        (["--dry-run"], "--dry-run is about --partitions"),
        ([], "give what is to change: --config KEY=VALUE, --unset KEY, --partitions N, or --replication"),
        (["--config", "compact=true", "--no-wait"], "--no-wait is about --partitions"),
    ],
)
def test_options_that_cannot_be_or_do_not_go_together(arguments: list[str], words: str) -> None:
    exit_status, _, err = invoke("alter", "s", *arguments)
    assert exit_status == 2
    assert words in err


def test_the_command_that_begins_one_is_told_where_it_is_looked_for() -> None:
    exit_status, _, err = invoke("repartition", "orders", "6")
    assert exit_status == 2
    assert "No such command 'orders'. A repartition begins with `tidelog stream alter NAME --partitions N`." in err
    assert "Did you mean 'status'" in invoke("repartition", "stats", "orders")[2].replace("\n", " ")


@pytest.mark.parametrize("named", ["create", "alter", "copy"])
def test_the_help_says_how_many_partitions_a_stream_can_have(named: str) -> None:
    exit_status, out, _ = invoke(named, "--help")
    assert exit_status == 0
    assert "1<=x<=10000" in "".join(out.split())


@pytest.mark.parametrize(
    ("begun", "words"),
    [
        (None, "no repartition is under way"),
        (
            state(phase="prepared", done=1, of=3, waiting=[1, 2]),
            "to 40 partitions (version 2) is under way: the leaders of 1 of 3 partitions are ready, 1, 2 not yet",
        ),
        (
            state(done=0, of=20, waiting=[*range(20)]),
            "20 partitions have reported where their old records end, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, … not yet",
        ),
        (state(), "clients hear of it; no client reports that it knows; it is finished in 30 s at the latest"),
        (
            state(adopted=17, done_for_s=6.2),
            "a client still has the routes of generation 17, before 20; it is finished in 24 s at the latest",
        ),
    ],
)
def test_the_status_says_what_is_waited_for(
    answering: Callable[..., FakeClient], begun: RepartitionState | None, words: str
) -> None:
    answering(status(begun), status(begun))
    exit_status, out, _ = invoke("repartition", "status", "s")
    assert exit_status == 0
    assert out.startswith("stream s spreads keys over 40 partitions (partitioning version 2); ")
    assert out.endswith(f"{words}\n")
    exit_status, out, _ = invoke("repartition", "status", "s", "--json")
    assert (exit_status, json.loads(out)) == (0, status(begun))


def test_watching_ends_when_it_is_finished(answering: Callable[..., FakeClient]) -> None:
    client = answering(status(state(phase="prepared", done=0)), *[status(state())] * 5, status())
    exit_status, out, _ = invoke("repartition", "watch", "s")
    assert (exit_status, client.statuses) == (0, [])
    assert out.endswith("no repartition is under way\n")


async def test_whoever_stops_to_wait_is_told_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    client: Any = FakeClient(*[status(state())] * 5)
    waiting = asyncio.create_task(repartition.wait_finished(client, "s"))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert "the repartition goes on; `tidelog stream repartition watch s` shows it" in capsys.readouterr().err


def test_cancelling(answering: Callable[..., FakeClient]) -> None:
    client = answering(status())
    exit_status, out, _ = invoke("repartition", "cancel", "s")
    assert (exit_status, client.did) == (0, ["cancel s"])
    assert out.startswith("cancelled; stream s spreads keys over 40 partitions")


async def test_the_progress_bar_follows_the_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[tuple[str, float, float]] = []

    class Bar:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def add_task(self, _: str, total: None) -> int:
            assert total is None
            return 1

        def update(self, _: int, *, description: str, completed: float, total: float) -> None:
            shown.append((description, completed, total))

    monkeypatch.setattr(repartition, "_progress", Bar)
    monkeypatch.setattr(repartition, "POLL_S", 0.0)
    client: Any = FakeClient(
        status(state(phase="prepared", done=1, of=3)), status(state(done=1)), status(state()), status()
    )
    await repartition.wait_finished(client, "s")
    assert shown == [
        ("new partitions get ready", 1, 3),
        ("old partitions end", 1, 2),
        ("clients hear of it, 30 s at most", 0.5, 30.0),
    ]


def test_layouts_and_states_are_shown_where_there_was_a_repartition(capsys: pytest.CaptureFixture[str]) -> None:
    from tidelog.cli.streams.stream import _show_description

    def partition(number: int, of_state: str) -> dict[str, Any]:
        return {
            "partition": number, "state": of_state, "leader": "b1", "leader_epoch": 1, "isr": ["b1"],
            "replicas": ["b1"], "replicas_progress": {}, "high_watermark": 3, "log_start_offset": 0,
            "log_end_offset": 4, "last_stable_offset": None,
        }  # fmt: skip

    found: Any = {
        "name": "s", "subject": "s", "config": {}, "partitioner": "crc32c", "partitioning_version": 2,
        "repartition": None, "bytes_on_disk": None, "traffic": None,
        "partitions": [partition(0, "active"), partition(1, "draining"), partition(2, "retired")],
        "layouts": [{"version": 1, "partitions": 2, "generation": 0, "starts": []}],
    }  # fmt: skip
    session.console.cache_clear()
    _show_description(found)
    assert "active" not in (out := capsys.readouterr().out)
    assert "partitioning version" not in out
    found["layouts"].append({"version": 2, "partitions": 1, "generation": 9, "starts": [17, -1]})
    _show_description(found)
    words = " ".join(capsys.readouterr().out.split())
    for expected in ("│ 0 │ active │ b1", "│ 1 │ draining │ b1", "│ 2 │ retired │ b1", "│ 2 │ 1 │ 0: 17 1: ? │"):
        assert expected in words
    assert "is under way" not in words
    found.update(repartition=state(), partitions=[partition(0, "active"), partition(1, "active")])
    _show_description(found)
    words = " ".join(capsys.readouterr().out.split())
    assert "│ 1 │ prepared │ b1" in words
    assert "a repartition to 40 partitions (version 2) is under way: clients hear of it" in words
