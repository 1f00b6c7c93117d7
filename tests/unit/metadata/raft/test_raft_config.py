"""Configurations that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from metadata.raft import RaftConfig, RaftConfigurationError
from wire.security.cluster_secrets import public_secrets

VALID: dict[str, Any] = {
    "address": "127.0.0.1:7001",
    "peers": ("127.0.0.1:7002", "127.0.0.1:7003"),
    "directory": Path("raft"),
    "secrets": public_secrets(),
}


def test_the_valid_one_is_valid() -> None:
    RaftConfig(**VALID)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"address": "localhost"}, "'localhost' is not host:port"),
        ({"peers": ("127.0.0.1:port",)}, "'127.0.0.1:port' is not host:port"),
        ({"peers": ("127.0.0.1:70020",)}, "from 1 to 65535"),
        ({"peers": ("127.0.0.1:7²",)}, "'127.0.0.1:7²' is not host:port"),
        ({"address": "127.0.0.1:" + "7" * 5000}, "is not host:port"),
        ({"address": "127.0.0.1:0000070020"}, "from 1 to 65535"),
        ({"peers": ("127.0.0.1:7002", "127.0.0.1:7002")}, "name one voter twice"),
        ({"peers": ("127.0.0.1:7001",)}, "own address 127.0.0.1:7001"),
        ({"address": None, "peers": ()}, "An observer needs"),
        ({"heartbeat_s": 0.4}, "3 x heartbeat_s"),
        ({"connection_timeout_s": 0.5}, "connection_timeout_s 0.5 is below"),
        ({"compaction_min_entries": 1}, "keeps at least 2 entries"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(RaftConfigurationError, match=sentence):
        RaftConfig(**(VALID | change))
