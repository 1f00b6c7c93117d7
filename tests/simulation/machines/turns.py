"""Turns of the metadata plane that are over after two partitions: these clusters have few of them, and what is worked
out in several turns shall be interrupted here too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from metadata.commands import cluster_state
from metadata.commands.ledger import PARTITION
from metadata.runtime import applied_state, views

LOOKS = 2 * PARTITION


@contextmanager
def short_turns() -> Iterator[None]:
    with (
        patch.object(cluster_state, "LOOKS", LOOKS),
        patch.object(applied_state, "LOOKS", LOOKS),
        patch.object(views, "LOOKS", LOOKS),
    ):
        yield
