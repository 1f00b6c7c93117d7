from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.log.compaction.compaction_pass import NONE, NewestOffsets


def hashes(*keys: int) -> np.ndarray:
    """Keys of one hundred share their slot, and some of them the first half of their hash."""
    return np.array([(key % 100, key) for key in keys], np.uint64).reshape(-1, 2)


@given(st.lists(st.lists(st.integers(0, 400), max_size=30), max_size=8))
def test_it_is_a_map_to_the_last_offset(blocks: list[list[int]]) -> None:
    newest, model, offset = NewestOffsets(0), dict[int, int](), 0
    for keys in blocks:
        offsets = np.arange(offset, offset + len(keys))
        assert newest.add(hashes(*keys), offsets) == len(keys)
        model.update(zip(keys, offsets.tolist(), strict=True))
        offset += len(keys)
    assert len(newest) == len(model)
    assert newest.find(hashes(*range(500))).tolist() == [model.get(key, NONE) for key in range(500)]


def test_when_it_is_full_it_says_how_far_it_came() -> None:
    newest = NewestOffsets(0)
    rng = np.random.default_rng(1)
    many = rng.integers(0, 1 << 63, (100_000, 2), np.int64).astype(np.uint64)
    taken = newest.add(many, np.arange(100_000))
    assert 4096 <= taken < 16384
    assert len(newest) == taken
    assert newest.find(many[:taken]).tolist() == list(range(taken))
    assert (newest.find(many[taken:]) == NONE).all()
    assert newest.add(many[taken:], np.arange(taken, 100_000)) == 0


@pytest.mark.slow
def test_the_same_keys_again_take_no_room() -> None:
    newest = NewestOffsets(0)
    keys = hashes(*range(3000))
    for round_ in range(20):
        assert newest.add(keys, np.arange(3000) + 3000 * round_) == 3000
    assert newest.find(keys)[0] == 57_000
