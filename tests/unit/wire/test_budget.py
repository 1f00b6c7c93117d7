from __future__ import annotations

from types import SimpleNamespace

from wire.budget import Bound, Budget
from wire.error_details import LIMIT, RETRY_AFTER_MS
from wire.errors import Code

BOUND = Bound(
    on="letters that wait",
    name="letters",
    per="a box",
    items=3,
    bytes=100,
    bytes_of_all=150,
    limit="an hour each",
    answer="BACKPRESSURE",
    counter="dropped_letters",
    retry_after_ms=50,
)


def test_it_is_bounded_in_items() -> None:
    budget = Budget(BOUND, "box 1")
    assert [budget.admit() for _ in range(3)] == [None] * 3
    refused = budget.admit()
    assert refused is not None
    assert refused.code is Code.BACKPRESSURE
    assert refused.message == "box 1 has 3 letters that wait, 0 bytes, already; try again"
    assert (refused.detail(LIMIT), refused.detail(RETRY_AFTER_MS)) == ("letters", 50)
    budget.release()
    assert budget.admit() is None


def test_it_is_bounded_in_bytes() -> None:
    budget = Budget(BOUND, "box 1")
    assert budget.admit(60) is None
    assert budget.full(41)
    assert budget.admit(41) is not None
    assert budget.bytes == 60, "what was refused does not count"
    assert budget.admit(40) is None
    budget.release(100, 2)
    assert (budget.items, budget.bytes) == (0, 0)


def test_a_parent_counts_all_and_refuses_for_all() -> None:
    of_all = Budget(BOUND, "broker b", of_all=True)
    boxes = [Budget(BOUND, f"box {number}", parent=of_all) for number in range(2)]
    assert boxes[0].admit(100) is None
    refused = boxes[1].admit(60)
    assert refused is not None
    assert refused.message == "broker b has letters that wait, 100 bytes, already; try again"
    assert boxes[1].admit(50) is None
    assert (of_all.items, of_all.bytes, boxes[1].bytes) == (2, 150, 50)
    boxes[0].release(100)
    assert (of_all.items, of_all.bytes) == (1, 50)


def test_refusals_are_counted() -> None:
    counters = SimpleNamespace(dropped_letters=0)
    of_all = Budget(BOUND, "broker b", of_all=True)
    budget = Budget(BOUND, "box 1", parent=of_all, counters=counters)
    for _ in range(5):
        budget.admit()
    assert counters.dropped_letters == 2
    of_all.take(150)
    budget.release()
    budget.admit(1)
    assert counters.dropped_letters == 3, "by the one that was asked"


def test_it_documents_itself() -> None:
    assert BOUND.what == "letters that wait, of a box, `letters`"
    assert BOUND.limits == "3, and 100 bytes; 150 bytes of all of a broker; an hour each"
