"""`tidelog stream reassign` and `tidelog cluster moves` with a client that answers from a list."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from tidelog.cli import main
from tidelog.cli.administration import cluster
from tidelog.cli.streams import reassign, replica_plan
from tidelog.cli.terminal import session
from wire.errors import Code, TidelogError
from wire.operations.reassignment_operations import AlteredFactor, Move, Moves, PlannedMove, ReplicaPlan

PLAN: list[PlannedMove] = [
    {
        "stream": "s",
        "partition": 0,
        "replicas": ["b1", "b2", "b3"],
        "target": ["b2", "b3", "b4"],
        "added": ["b4"],
        "removed": ["b1"],
        "leader": "b1",
        "bytes_to_copy": 5_000_000,
    }
]


def move(state: str, behind: int | None = 10) -> Move:
    return {
        "stream": "s",
        "partition": 0,
        "state": state,
        "original": ["b1", "b2", "b3"],
        "target": ["b2", "b3", "b4"],
        "leader": "b1",
        "waits_for": "not in sync yet: b4",
        "copies": [
            {"broker": "b4", "in_sync": False, "log_end_offset": 5, "offsets_behind": behind, "bytes_behind": 2_000_000}
        ],
    }


def plan_of(moves: list[PlannedMove]) -> ReplicaPlan:
    return {
        "partitions": len(moves),
        "copies": len(moves),
        "plan": moves,
        "sources": [{"source": "b1", "target": "b4", "copies": 1, "bytes": 5_000_000}] if moves else [],
        "bytes_to_copy": 5_000_000 * len(moves),
        "sizes_unknown": 0,
        "budget_bytes_per_s": 1_000_000,
        "least_s": 5.0 * len(moves),
        "stuck": [{"partition": "t/0", "why": "placement=pinned:b1 leaves no other broker for it beside b1"}],
        "stuck_total": 1,
        "digest": "5f",
        "begun": 0,
    }


class FakeClient:
    def __init__(self, plan: list[PlannedMove], answers: Sequence[list[Move]]) -> None:
        self.plan = plan
        self.answers = [*answers]
        self.did: list[str] = []
        self.refusals: list[TidelogError] = []

    async def reassign(self, name: str, wanted: Mapping[int, list[str]], dry_run: bool = False) -> dict[str, Any]:
        self.did.append(f"{'plan' if dry_run else 'begin'} {name} {json.dumps(wanted)}")
        return {"plan": self.plan, "moves": []}

    async def rebalance(self, dry_run: bool = False, plan: str = "") -> ReplicaPlan:
        self.did.append("plan a rebalance" if dry_run else f"rebalance by {plan}")
        made = plan_of(self.plan)
        made["begun"] = 0 if dry_run else made["partitions"]
        return made

    async def alter_replication_factor(
        self, name: str, factor: int, dry_run: bool = False, plan: str = ""
    ) -> AlteredFactor:
        self.did.append(f"plan {factor} of {name}" if dry_run else f"begin {factor} of {name} by {plan}")
        made = plan_of(self.plan)
        made["begun"] = 0 if dry_run else made["partitions"]
        return {"replication_factor": factor, "min_isr": 1, "min_isr_then": 2, "plan": made}

    async def cancel_reassignment(self, name: str) -> Moves:
        self.did.append(f"cancel {name}")
        if self.refusals:
            raise self.refusals.pop()
        return {"moves": [], "total": 0}

    async def moves(self, name: str | None = None) -> Moves:
        self.did.append(f"moves of {name or 'all'}")
        found = self.answers.pop(0)
        return {"moves": found, "total": len(found)}


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeClient]:
    def begin(*answers: list[Move], plan: list[PlannedMove] = PLAN) -> FakeClient:
        client = FakeClient(plan, answers)

        def run(_server: str | None, _namespace: str, work: Callable[[Any], Awaitable[None]], **_: bool) -> None:
            asyncio.run(work(client))  # type: ignore[arg-type] # a coroutine

        for module in (cluster, reassign, replica_plan, session):
            monkeypatch.setattr(module, "run", run)
        monkeypatch.setattr(reassign, "POLL_S", 0.0)
        return client

    return begin


def invoke(*arguments: str) -> tuple[int, str, str]:
    session.console.cache_clear()
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.stdout, result.stderr


ASKED = ("stream", "reassign", "s", "--partition", "0", "--replicas", "b2,b3,b4")


def test_the_plan_is_shown_and_nothing_is_moved_without_a_yes(answering: Callable[..., FakeClient]) -> None:
    client = answering()
    exit_status, out, err = invoke(*ASKED)
    assert (exit_status, client.did) == (2, ['plan s {"0": ["b2", "b3", "b4"]}'])
    assert "│ 0 │ b1, b2, b3 │ b2, b3, b4 │ b4 │ b1 │" in " ".join(out.split())
    assert "this gives 1 partition of stream s other replicas" in err
    assert "--yes" in err
    exit_status, out, _ = invoke(*ASKED, "--dry-run", "--json")
    assert (exit_status, json.loads(out)) == (0, PLAN)


def test_it_is_begun(answering: Callable[..., FakeClient]) -> None:
    client = answering()
    exit_status, out, _ = invoke(*ASKED, "--yes")
    assert (exit_status, client.did[-1]) == (0, 'begin s {"0": ["b2", "b3", "b4"]}')
    assert out.endswith("begun; `tidelog cluster moves` shows how far it is\n")
    exit_status, out, _ = invoke(*ASKED, "--yes", "--json")
    assert json.loads(out) == {"plan": PLAN, "moves": []}


def test_where_only_the_order_changes_the_leadership_follows(answering: Callable[..., FakeClient]) -> None:
    reordered: PlannedMove = {**PLAN[0], "target": ["b2", "b3", "b1"], "added": [], "removed": []}
    answering(plan=[reordered])
    assert invoke(*ASKED, "--yes")[1].endswith(
        "; the leadership follows after leader_rebalance_delay_ms, or at once by"
        " `tidelog cluster rebalance --leaders-only`\n"
    )
    answering(plan=[{**reordered, "leader": "b2"}])
    assert invoke(*ASKED, "--yes")[1].endswith("begun; `tidelog cluster moves` shows how far it is\n")


def test_partitions_that_are_there_already_need_no_yes(answering: Callable[..., FakeClient]) -> None:
    answering(plan=[])
    exit_status, out, _ = invoke(*ASKED)
    assert (exit_status, out.endswith("nothing is to be moved\n")) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--partition", "0"), "Missing option '--replicas'"),
        (("--partition", "0", "--replicas", "b1", "--replicas", "b2"), "give them in pairs"),
        (("--partition", "0", "--partition", "0", "--replicas", "b1", "--replicas", "b2"), "named twice"),
        (("--partition", "0", "--replicas", "b1,,b2"), "is no list of brokers"),
    ],
)
def test_wrong_pairs_are_refused(arguments: tuple[str, ...], told: str) -> None:
    exit_status, _, err = invoke("stream", "reassign", "s", *arguments)
    assert (exit_status, told in err) == (2, True)


def test_moves_are_listed_with_what_they_wait_for(answering: Callable[..., FakeClient]) -> None:
    answering([move("copying")], [])
    exit_status, out, _ = invoke("cluster", "moves")
    words = " ".join(out.split())
    assert exit_status == 0
    assert "s/0 │ copying │ b1, b2, b3 │ b2, b3, b4 │ b1 │ b4: 10 offsets," in words
    assert "not in sync yet: b4" in words
    assert invoke("cluster", "moves")[1] == "no partition gets other replicas\n"


def test_moves_are_watched_until_all_are_over(answering: Callable[..., FakeClient]) -> None:
    client = answering([move("copying")], [move("copying")], [move("in sync")], [])
    exit_status, out, _ = invoke("cluster", "moves", "--watch", "--stream", "s")
    assert (exit_status, client.did) == (0, ["moves of s"] * 4)
    first, second, last = out.splitlines()
    assert first.startswith("1 partition: 1 copying; ")
    assert second.startswith("1 partition: 1 in sync; ")
    assert last == "the move is over"
    answering([move("copying"), move("waiting")], [move("copying")], [])
    assert invoke("cluster", "moves", "--watch")[1].splitlines()[-1] == "all 2 moves are over"
    answering([])
    assert invoke("cluster", "moves", "--watch")[1] == "no partition gets other replicas\n"


def test_moves_are_given_up(answering: Callable[..., FakeClient]) -> None:
    client = answering([move("copying")], [move("going back")])
    assert invoke("cluster", "moves", "--cancel")[0] == 2
    assert client.did == []
    exit_status, out, _ = invoke("cluster", "moves", "--cancel", "--yes")
    assert (exit_status, client.did) == (0, ["moves of all", "cancel s", "moves of all"])
    assert "going back" in out


def test_partitions_that_have_changed_meanwhile_are_given_up_as_well(answering: Callable[..., FakeClient]) -> None:
    client = answering([move("copying")], [move("copying")], [move("going back")])
    client.refusals = [TidelogError(Code.STALE_EPOCH, "1 of 2 partitions of s have changed meanwhile")]
    exit_status, out, _ = invoke("cluster", "moves", "--cancel", "--yes")
    assert (exit_status, client.did) == (0, ["moves of all", "cancel s", "moves of all", "cancel s", "moves of all"])
    assert "going back" in out


def test_another_refusal_ends_the_command(answering: Callable[..., FakeClient]) -> None:
    client = answering([move("copying")])
    client.refusals = [TidelogError(Code.UNAVAILABLE, "no controller")]
    assert invoke("cluster", "moves", "--cancel", "--yes")[0] != 0
    assert client.did == ["moves of all", "cancel s"]


def test_a_rebalance_is_shown_and_waits_for_a_yes(answering: Callable[..., FakeClient]) -> None:
    client = answering()
    exit_status, out, err = invoke("cluster", "rebalance")
    assert (exit_status, client.did) == (2, ["plan a rebalance"])
    words = " ".join(out.split())
    assert "│ s/0 │ b1, b2, b3 │ b2, b3, b4 │ b4 │ b1 │ 5.0 MB │" in words
    assert "│ b1 │ b4 │ 1 │ 5.0 MB │" in words
    assert "stays: t/0, placement=pinned:b1 leaves no other broker for it beside b1" in words
    assert (
        "1 partition, 1 copy: 5.0 MB; 5 s at least, at the budget of 1.0 MB/s for each broker that is copied" in words
    )
    assert "this moves replicas of 1 partition" in err
    exit_status, out, _ = invoke("cluster", "rebalance", "--dry-run", "--json")
    assert (exit_status, json.loads(out)) == (0, plan_of(PLAN))


def test_a_rebalance_is_begun_and_watched(answering: Callable[..., FakeClient]) -> None:
    client = answering([move("copying")], [move("in sync")], [])
    exit_status, out, _ = invoke("cluster", "rebalance", "--yes", "--watch")
    assert exit_status == 0
    assert client.did == ["plan a rebalance", "rebalance by 5f", *["moves of all"] * 3]
    assert "1 partition begun; `tidelog cluster moves` shows how far it is" in out
    assert "1 partition: 1 in sync" in out
    assert out.endswith("the move is over\n")
    exit_status, out, _ = invoke("cluster", "rebalance", "--yes", "--json")
    assert json.loads(out) == {**plan_of(PLAN), "begun": 1}


def test_a_rebalance_of_an_even_cluster_does_nothing(answering: Callable[..., FakeClient]) -> None:
    answering(plan=[])
    exit_status, out, _ = invoke("cluster", "rebalance")
    assert (exit_status, out.endswith("nothing is to be moved\n")) == (0, True)
    assert invoke("cluster", "rebalance", "--leaders-only", "--watch")[0] == 2


FACTOR = ("stream", "alter", "s", "--replication-factor", "3")


def test_another_replication_factor_is_shown_and_begun(answering: Callable[..., FakeClient]) -> None:
    client = answering()
    exit_status, out, err = invoke(*FACTOR)
    assert (exit_status, client.did) == (2, ["plan 3 of s"])
    assert "1 partition, 1 copy: 5.0 MB" in out
    assert "min_isr is 1, and 2 once all partitions have their replicas" in out
    assert "this gives stream s 3 replicas of each partition" in err
    exit_status, out, _ = invoke(*FACTOR, "--yes")
    assert (exit_status, client.did[-2:]) == (0, ["plan 3 of s", "begin 3 of s by 5f"])
    assert out.endswith("begun; `tidelog cluster moves --stream s` shows how far it is\n")
    exit_status, out, _ = invoke(*FACTOR, "--dry-run", "--json")
    assert (exit_status, json.loads(out)["min_isr_then"], client.did[-1]) == (0, 2, "plan 3 of s")


def test_a_replication_factor_stands_alone(answering: Callable[..., FakeClient]) -> None:
    client = answering()
    for more in (("--partitions", "4"), ("--config", "min_isr=2"), ("--no-wait",)):
        exit_status, _, err = invoke(*FACTOR, *more)
        assert (exit_status, "--replication-factor stands alone" in err) == (2, True)
    assert client.did == []
