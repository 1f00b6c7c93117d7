"""A few hundred of them, drawn from a seed. `scripts/flip-bits` tries as many as one likes."""

from __future__ import annotations

import time
from itertools import islice
from pathlib import Path

from tests.bit_flips.flips import Bench, Tally

POSITIONS = 300
SECONDS = 60.0


def test_no_flipped_bit_is_served_forgotten_or_taken_for_sound(tmp_path: Path) -> None:
    bench, tally = Bench(tmp_path), Tally()
    until = time.monotonic() + SECONDS
    for flip in islice(bench.flips(seed=5), POSITIONS):
        bench.try_flip(flip, tally)
        if time.monotonic() > until:
            break
    outcomes = {outcome for _, outcome in tally.counted}
    assert {"damage seen at the open", "damage met by a reader", "nothing lost"} <= outcomes
