"""The judge of `scripts/chaos --transactions` finds each kind of damage to the output."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.transactions.transaction_journals import Place, TransactionFindings, judge_transactions

STORED = {(0, 0), (0, 1), (1, 0)}


def journal(outcome: str = "committed") -> list[dict[str, Any]]:
    return [
        {"kind": "writes", "transaction": "a", "inputs": [[0, 0, 2]]},
        {"kind": outcome, "transaction": "a"},
        {"kind": "writes", "transaction": "b", "inputs": [[1, 0, 1]]},
        {"kind": "committed", "transaction": "b"},
    ]


def judge(
    output: dict[Place, bytes], *, outcome: str = "committed", looks: tuple[dict[Place, bytes], ...] = ()
) -> TransactionFindings:
    return judge_transactions(STORED, output, {"w": journal(outcome)}, {0: 2, 1: 1}, looks)


GOOD: dict[Place, bytes] = {(0, 0): b"0:0:a", (0, 2): b"0:1:a", (1, 0): b"1:0:b"}


def test_each_record_once_and_in_order_is_good() -> None:
    found = judge(GOOD, looks=({(0, 0): b"0:0:a"},))
    assert found.ok
    assert (found.inputs, found.outputs, found.committed) == (3, 3, 2)


def test_a_transaction_without_a_known_outcome_is_there_or_not() -> None:
    lines = journal()[:1]
    assert judge_transactions({(0, 0), (0, 1)}, {p: v for p, v in GOOD.items() if p[0] == 0}, {"w": lines}, {0: 2}).ok
    assert judge_transactions(set(), {}, {"w": lines}, {}).ok


@pytest.mark.parametrize(
    ("kind", "output"),
    [
        ("missing", {(0, 0): b"0:0:a", (0, 2): b"0:1:a"}),
        ("twice", {**GOOD, (1, 7): b"1:0:c"}),
        ("phantom", {**GOOD, (1, 7): b"1:1:c"}),
        ("reordered", {**GOOD, (0, 0): b"0:1:a", (0, 2): b"0:0:a"}),
        ("torn", {(0, 0): b"0:0:a", (1, 0): b"1:0:b"}),
        ("torn", {(0, 0): b"0:0:a", (0, 2): b"0:1:a"}),
        ("offsets", {(0, 0): b"0:0:a", (1, 0): b"1:0:b"}),
    ],
)
def test_damage_is_found(kind: str, output: dict[Place, bytes]) -> None:
    assert getattr(judge(output), kind)
    assert not judge(output).ok


def test_records_of_an_aborted_transaction_are_found() -> None:
    assert judge(GOOD, outcome="aborted").aborted == ["2 records of a"]


def test_what_was_seen_and_is_not_there_is_found() -> None:
    assert judge(GOOD, looks=({(0, 1): b"0:0:z"},)).unsteady
    assert judge(GOOD, looks=({(0, 0): b"0:0:z"},)).unsteady
