"""Every file of `tests/testdata` tells what the protocol does in one situation, and is carried out here.

`pytest tests/protocol --rewrite` writes down what is printed now. Read the difference against DESIGN.md: a transcript
that records a bug is worse than none.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from tests import datadriven
from tests.protocol.groups_script import GroupsScript
from tests.protocol.life_script import LifeScript
from tests.protocol.metadata_script import MetadataScript
from tests.protocol.replication_script import ReplicationScript
from tests.protocol.subscription_script import SubscriptionScript
from tests.protocol.transactions_script import TransactionsScript
from tests.simulation.mutants import TOLD
from tests.simulation.mutation import Mutant
from tests.simulation.world import InvariantBroken
from wire.errors import InvariantViolation

TESTDATA = Path(__file__).parent.parent / "testdata"
AREAS: dict[str, Callable[[], AbstractContextManager[datadriven.Handler]]] = {
    "metadata": lambda: nullcontext(MetadataScript()),
    "replication": ReplicationScript,
    "replica_life": lambda: nullcontext(LifeScript()),
    "groups": lambda: nullcontext(GroupsScript()),
    "subscription": lambda: nullcontext(SubscriptionScript()),
    "transactions": lambda: nullcontext(TransactionsScript()),
}


def _transcripts() -> list[Path]:
    return sorted(path.relative_to(TESTDATA) for path in TESTDATA.rglob("*.txt"))


@pytest.mark.parametrize("name", _transcripts(), ids=str)
def test_transcript(name: Path, request: pytest.FixtureRequest) -> None:
    with AREAS[name.parts[0]]() as handle:
        datadriven.run(TESTDATA / name, handle, rewrite=bool(request.config.getoption("--rewrite")))


@pytest.mark.parametrize(("mutant", "name"), TOLD, ids=[mutant.name for mutant, _ in TOLD])
def test_a_transcript_falls_with_its_rule(mutant: Mutant, name: str) -> None:
    path = Path(f"{name}.txt")
    broken = (AssertionError, datadriven.ScriptError, InvariantViolation, InvariantBroken)
    with mutant.applied(), pytest.raises(broken), AREAS[path.parts[0]]() as handle:
        datadriven.run(TESTDATA / path, handle, rewrite=False)
