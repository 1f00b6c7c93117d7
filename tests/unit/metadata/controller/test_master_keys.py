"""A stream becomes encrypted only where every live broker has a master key."""

from __future__ import annotations

import pytest

from metadata.controller.master_key_reports import MASTER_KEYS_LABEL, check_encryption, warn_of_missing_keys
from tests.unit.metadata.cluster_bench import Cluster
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


@pytest.mark.parametrize(
    ("ids", "config", "defaults", "words"),
    [
        ([], {"encryption": "true"}, {}, "a has no master key, and the cluster encrypts s: "),
        ([], {}, {"encryption": "true"}, "the cluster encrypts new streams by default: "),
        ([], {}, {}, ""),
        (["k1"], {"encryption": "true"}, {"encryption": "true"}, ""),
    ],
)
def test_a_broker_without_a_key_in_a_cluster_that_encrypts_says_so(
    caplog: pytest.LogCaptureFixture, ids: list[str], config: dict[str, str], defaults: dict[str, str], words: str
) -> None:
    cluster = Cluster("a")
    cluster.create("s", ["a"], config=config)
    cluster.alter_cluster(config=defaults)
    warn_of_missing_keys(A, ids, cluster.state)
    assert [record.levelname for record in caplog.records] == (["WARNING"] if words else [])
    assert words in caplog.text
    assert ("--master-key-file" in caplog.text) == bool(words)
