"""A simulation asks every invariant, and an invariant states its purpose."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from dataplane.replica.derived.producer_table import Producer, RememberedBatch, packed_batches
from tests.simulation import invariants
from tests.simulation.invariants.base import Invariant
from tests.simulation.invariants.checker import INVARIANTS
from tests.simulation.invariants.history import Session, as_kept

B1, B2, B3, B4, B5, B6 = [RememberedBatch(number * 10, number * 100, 10) for number in range(1, 7)]


def knows(*batches: RememberedBatch, written: int = 7) -> Producer:
    return Producer(0, batches[-1].base_sequence + batches[-1].span, packed_batches(batches), written)


@pytest.mark.parametrize(
    "held", [knows(B6), knows(B1, B6), knows(B2, B6), knows(B1, B4, B6), knows(B2, B3, B4, B5, B6)]
)
def test_a_compacted_log_may_lack_a_batch_while_no_producer_waits_for_it(held: Producer) -> None:
    truth = knows(B2, B3, B4, B5, B6, written=9)
    assert as_kept(held, truth, None) == held
    assert as_kept(held, truth, Session(5, 1000, [B1[0]])) == held
    for sequence, *_ in set(truth.batches) - set(held.batches):
        assert as_kept(held, truth, Session(5, 1000, [sequence])) != held


def test_a_producer_that_has_sent_nothing_since_has_all_its_batches_known() -> None:
    truth = knows(B2, B3, B4, B5, B6)
    session = Session(5, truth.next_sequence, [])
    assert as_kept(knows(B2, B3, B4, B5, B6, written=3), truth, session).batches == truth.batches
    assert as_kept(knows(B2, B6), truth, session) == truth


@pytest.mark.parametrize(
    "held", [knows(B5), knows(B2, B3, B4, B5), knows(B3, B2, B6), knows(B2, RememberedBatch(35, 350, 5), B6)]
)
def test_a_log_that_lacks_the_newest_batch_or_has_others_is_wrong(held: Producer) -> None:
    assert as_kept(held, knows(B2, B3, B4, B5, B6), None) != held


HOOKS = {name for name in vars(Invariant) if name.startswith("on_")} | {"at_the_end"}


def test_every_class_of_an_invariant_is_asked_once() -> None:
    for module in pkgutil.iter_modules(invariants.__path__):
        importlib.import_module(f"{invariants.__name__}.{module.name}")
    assert sorted(INVARIANTS, key=lambda one: one.__name__) == sorted(
        Invariant.__subclasses__(), key=lambda one: one.__name__
    )


@pytest.mark.parametrize("invariant", INVARIANTS)
def test_an_invariant_names_its_promise_and_has_a_hook(invariant: type[Invariant]) -> None:
    assert (invariant.__doc__ or "").startswith("To ")
    own = {name for name in vars(invariant) if not name.startswith("_")}
    assert own, "it looks at nothing"
    assert own <= HOOKS, "a hook that nobody calls"
