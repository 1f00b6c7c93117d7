"""The simulator against calm, and its mutants against the code of today. scripts/simulate runs thousands of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.scenario import run


def test_without_faults_everything_is_acknowledged() -> None:
    result = run(2, schedule=[])
    assert result.broken is None
    assert result.sent > 50
    assert result.acknowledged == result.sent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_still_applies(mutant: Mutant) -> None:
    """Its texts are found in the code of today, and are there again afterwards."""
    with mutant.applied():
        pass
    with mutant.applied():
        pass
