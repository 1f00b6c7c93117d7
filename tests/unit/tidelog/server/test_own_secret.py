"""The secret of a broker that stands alone lasts as long as its data."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from dataplane.log.storage.files import RealFiles
from tidelog.server.own_secret import FILE, keep_own_secret
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets


def kept(folder: Path) -> ClusterSecret:
    secrets = ClusterSecrets([ClusterSecret(b"x" * 32)], are_shared=False)
    keep_own_secret(secrets, RealFiles(), folder)
    return secrets.first


def test_it_is_made_once(tmp_path: Path) -> None:
    made = kept(tmp_path)
    assert made != ClusterSecret(b"x" * 32)
    assert kept(tmp_path) == made
    (tmp_path / "other").mkdir()
    assert kept(tmp_path / "other") != made


def test_a_damaged_one_is_replaced_and_the_log_says_what_follows(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = kept(tmp_path)
    (tmp_path / FILE).write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        again = kept(tmp_path)
    assert again != made
    assert "producers go on under new ids" in caplog.text
    assert kept(tmp_path) == again
