"""A simulation asks every invariant, and an invariant states its purpose."""

from __future__ import annotations

import importlib
import pkgutil

import pytest

from tests.simulation import invariants
from tests.simulation.invariants.base import Invariant
from tests.simulation.invariants.checker import INVARIANTS

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
