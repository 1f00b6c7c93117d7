"""A stream becomes encrypted only where every live broker has a master key."""

from __future__ import annotations

import pytest

from metadata.master_keys import MASTER_KEYS_LABEL, check_encryption
from wire.errors import Code, TidelogError
from wire.types import BrokerId

A, B, C = (BrokerId(name) for name in "abc")


def test_brokers_without_a_key_are_named() -> None:
    with pytest.raises(TidelogError) as caught:
        check_encryption({C: {MASTER_KEYS_LABEL: ""}, A: {MASTER_KEYS_LABEL: ""}, B: {MASTER_KEYS_LABEL: "k2,k1"}})
    assert caught.value.code is Code.BAD_CONFIG
    assert "every broker, and a, c have none" in caught.value.message
    with pytest.raises(TidelogError, match="and c has none"):
        check_encryption({C: {MASTER_KEYS_LABEL: ""}, B: {MASTER_KEYS_LABEL: "k1"}})


def test_brokers_with_keys_and_unheard_ones_prevent_nothing() -> None:
    check_encryption({A: {MASTER_KEYS_LABEL: "k1"}, B: {}})
