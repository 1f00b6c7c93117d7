from __future__ import annotations

import os
from pathlib import Path

import pytest

from spark_connector.shared.inline_files import with_paths
from wire.errors import TidelogError

PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
CREDS = "-----BEGIN NATS USER JWT-----\neyJ0\n------END NATS USER JWT------\n"
SEED = "SU" + "A" * 56


def test_texts_become_files_that_can_be_opened_again_and_again() -> None:
    given = {"ca": PEM, "creds": CREDS, "nkey": SEED}
    paths = with_paths(given)
    for name, text in given.items():
        for _ in range(2):
            assert Path(paths[name]).read_text() == text
        assert Path(paths[name]).stat().st_mode & 0o777 == 0o600
    assert with_paths(given) == paths, "one file for each text"


def test_a_fork_reads_them() -> None:
    path = with_paths({"key": PEM})["key"]
    child = os.fork()
    if not child:
        os._exit(0 if Path(path).read_text() == PEM else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_paths_and_other_options_stay_as_they_are() -> None:
    given = {"creds": "/run/secrets/job.creds", "nkey": "SU.seed", "user": SEED, "password": PEM}
    assert with_paths(given) == given


def test_where_the_system_cannot_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(TidelogError, match=r"nats\.cert holds text, which needs Linux: give the path"):
        with_paths({"cert": PEM + "other"})
