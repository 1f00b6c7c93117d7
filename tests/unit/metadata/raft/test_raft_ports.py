"""The operating system's side of the ports, and PySyncObj's own reads of the clock and of chance."""

from __future__ import annotations

import os
import random
from pathlib import Path
from random import Random

import pytest
from pysyncobj import syncobj
from pysyncobj.monotonic import monotonic

from metadata.raft import RaftConfig
from metadata.raft.engine import RaftEngine
from metadata.raft.files import OS_FILES, open_emptied, read_file, write_synced
from metadata.raft.ports import RaftPorts
from tests.unit.metadata.raft.recorder import Recorder, end, recording
from wire.security.cluster_secrets import public_secrets


def test_a_new_folder_is_synced_into_each_of_its_parents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(type(OS_FILES), "sync_directory", lambda _, path: synced.append(path))
    OS_FILES.make_directory(tmp_path / "data" / "raft")
    assert synced == [tmp_path, tmp_path / "data"]
    OS_FILES.make_directory(tmp_path / "data" / "raft")
    assert len(synced) == 2


def test_a_file_is_written_anew_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(os, "pwrite", recording(steps, "write", os.pwrite))
    monkeypatch.setattr(os, "fsync", recording(steps, "sync", os.fsync))
    assert read_file(OS_FILES, tmp_path / "file") is None
    write_synced(OS_FILES, tmp_path / "file", b"a longer text")
    write_synced(OS_FILES, tmp_path / "file", b"short")
    assert steps == ["write", "sync"] * 2
    assert read_file(OS_FILES, tmp_path / "file") == b"short"
    handle = open_emptied(OS_FILES, tmp_path / "file")
    assert OS_FILES.size(handle) == 0
    OS_FILES.close(handle)


def test_a_lock_is_held_until_it_is_closed(tmp_path: Path) -> None:
    held = OS_FILES.lock(tmp_path / "lock")
    assert held is not None
    assert OS_FILES.lock(tmp_path / "lock") is None
    OS_FILES.close(held)
    again = OS_FILES.lock(tmp_path / "lock")
    assert again is not None
    OS_FILES.close(again)


def test_an_engine_lives_by_the_clock_and_the_chance_that_it_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone, it is elected and commits at once; nothing reads another clock or draws from another source."""

    def refused() -> float:
        raise AssertionError("another clock, or another source of chance")

    monkeypatch.setattr(syncobj, "monotonicTime", refused)
    monkeypatch.setattr(random, "random", refused)
    now = 1e6
    engine = RaftEngine(
        RaftConfig(address="127.0.0.1:1", peers=("127.0.0.1:2",), directory=tmp_path, secrets=public_secrets()),
        Recorder(),
        bind_host="127.0.0.1",
        resolve=lambda _: None,
        on_peer_lost=lambda _: None,
        exit_process=end,
        ports=RaftPorts(monotonic=lambda: now, rng=Random(1), make_socket=_Listener),  # type: ignore[arg-type]
    )
    assert now + 0.4 <= engine.election_deadline <= now + 0.8
    now += 0.4
    engine.tick()
    assert now <= engine.next_deadline() < now + 1
    now += 1.0
    engine.tick()
    assert syncobj.monotonicTime is refused
    monkeypatch.setattr(syncobj, "monotonicTime", monotonic)
    engine.close()


class _Listener:
    def __init__(self, *_: int) -> None:
        self._number = os.eventfd(0)

    def fileno(self) -> int:
        return self._number

    def close(self) -> None:
        os.close(self._number)

    def __getattr__(self, name: str) -> object:
        return lambda *_: None
