"""One role of a replica on a loop whose time is set by hand."""

from __future__ import annotations

import pytest

from tests.unit.dataplane.broker.role_bench import Bench, Loop
from tests.unit.dataplane.log.conftest import Batches


@pytest.fixture
def batches() -> Batches:
    return Batches()


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def bench(loop: Loop) -> Bench:
    return Bench(loop)
