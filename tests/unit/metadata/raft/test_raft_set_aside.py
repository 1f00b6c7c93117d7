"""A voter whose files are damaged begins anew where others hold its entries."""

# Rules: R77.

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.raft.journal import Journal
from metadata.raft.journal_mark import JournalMark, mark_path
from metadata.raft.set_aside import MAX_KEPT, open_or_set_aside, set_aside
from metadata.raft.types import RaftConfig, RaftDamage, RaftStorageError
from tests.unit.metadata.raft.recorder import end
from wire.security.cluster_secrets import public_secrets


def config(directory: Path, *peers: str) -> RaftConfig:
    directory.mkdir(exist_ok=True)
    return RaftConfig(address="127.0.0.1:7001", peers=peers, directory=directory, secrets=public_secrets())


def open_journal(directory: Path) -> Journal:
    return Journal(directory / "journal", snapshot=None, exit_process=end)


def damaged(directory: Path) -> bytes:
    journal = open_journal(directory)
    journal.mark_joined()
    for index in range(1, 5):
        journal.add(b"command", index, 1)
        journal.sync()
    content = bytearray((directory / "journal").read_bytes())
    content[40] ^= 1
    (directory / "journal").write_bytes(content)
    (directory / "snapshot").write_bytes(b"a snapshot")
    return bytes(content)


def test_with_peers_the_files_are_set_aside(tmp_path: Path) -> None:
    settings = config(tmp_path / "raft", "127.0.0.1:7002", "127.0.0.1:7003")
    content = damaged(settings.directory)
    journal = open_or_set_aside(settings, lambda: open_journal(settings.directory))
    assert len(journal) == 0
    assert not journal.joined, "it may have forgotten a vote"
    folder = settings.directory / "damaged"
    assert (folder / "1-journal").read_bytes() == content
    assert (folder / "1-snapshot").read_bytes() == b"a snapshot"
    assert "damaged at byte" in (folder / "1-reason.txt").read_text()


def test_an_older_copy_is_set_aside_and_keeps_the_voter_from_voting(tmp_path: Path) -> None:
    settings = config(tmp_path / "raft", "127.0.0.1:7002", "127.0.0.1:7003")

    def opened() -> Journal:
        mark = JournalMark(mark_path(settings.directory))
        return Journal(settings.directory / "journal", snapshot=None, exit_process=end, mark=mark)

    journal = opened()
    journal.mark_joined()
    journal.setCurrentTerm(38, None)
    older = (settings.directory / "journal").read_bytes()
    journal.setCurrentTerm(39, "127.0.0.1:7001")
    (settings.directory / "journal").write_bytes(older)
    again = open_or_set_aside(settings, opened)
    assert not again.joined, "it could be elected in term 39 once more"
    assert (settings.directory / "damaged/1-journal").read_bytes() == older
    again.setCurrentTerm(40, None)
    assert open_or_set_aside(settings, opened).getCurrentTerm() == 40


def test_the_only_copy_is_refused_and_left_alone(tmp_path: Path) -> None:
    settings = config(tmp_path / "raft")
    content = damaged(settings.directory)
    with pytest.raises(RaftStorageError, match="only copy of the cluster's metadata") as refused:
        open_or_set_aside(settings, lambda: open_journal(settings.directory))
    assert not isinstance(refused.value, RaftDamage)
    assert (settings.directory / "journal").read_bytes() == content


def test_the_newest_are_kept(tmp_path: Path) -> None:
    for number in range(1, 6):
        (tmp_path / "journal").write_text(f"{number}")
        set_aside(tmp_path, "why")
    kept = sorted(path.name for path in (tmp_path / "damaged").glob("*-journal"))
    assert kept == [f"{number}-journal" for number in range(6 - MAX_KEPT, 6)]
