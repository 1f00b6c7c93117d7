"""The Raft files of one voter as the beginning of a new history."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from metadata.raft.engine import RaftEngine
from metadata.raft.new_beginning import INDEX_STEP, TERM_STEP, begin_anew, read
from metadata.raft.ports import RaftPorts
from metadata.raft.types import RaftConfig, RaftDamage, RaftStorageError
from tests.unit.metadata.raft.recorder import Recorder, end
from wire.security.cluster_secrets import public_secrets
from wire.turns import Turns

ADDRESSES = ("127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003")


def opened(directory: Path, machine: Recorder) -> RaftEngine:
    directory.mkdir(exist_ok=True)
    config = RaftConfig(address=None, peers=ADDRESSES, directory=directory, secrets=public_secrets())
    return RaftEngine(
        config,
        machine,
        bind_host=None,
        resolve=lambda _: None,
        on_peer_lost=lambda _: None,
        exit_process=end,
        ports=RaftPorts(rng=Random(1)),
    )


def journal_of(directory: Path, *commands: bytes, committed: int) -> None:
    engine = opened(directory, Recorder())
    for index, command in enumerate(commands, 2):
        engine.journal.add(b"\0" + command, index, 3)
    engine.journal.setRaftCommitIndex(committed)
    engine.journal.setCurrentTerm(5, ADDRESSES[1])
    engine.close()


def test_a_voter_begins_anew_with_all_that_its_files_hold(tmp_path: Path) -> None:
    raft = tmp_path / "raft"
    journal_of(raft, b"one", b"two", b"three", committed=3)
    files = {path.name: path.read_bytes() for path in raft.iterdir()}
    machine = Recorder()
    beginning = read(raft, machine.restore, machine.apply)
    assert (beginning.index, beginning.term, beginning.uncommitted) == (4, 5, 1)
    assert machine.commands == [b"one", b"two", b"three"]
    assert {path.name: path.read_bytes() for path in raft.iterdir()} == files, "it only reads"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["raft", "raft.synced"]

    kept = begin_anew(raft, beginning, Turns(machine.snapshot()).finish())
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == files
    again = Recorder()
    engine = opened(raft, again)
    engine.tick()
    assert again.commands == machine.commands
    assert engine.journal.joined
    assert engine.journal.last.index > INDEX_STEP
    assert (engine.term, engine.journal.last.term) == (5 + TERM_STEP, 5 + TERM_STEP)
    engine.close()

    # And once more: from the snapshot that it has now.
    third = Recorder()
    beginning = read(raft, lambda state: Turns(third.restore(state)).finish(), third.apply)
    assert third.commands == machine.commands
    assert begin_anew(raft, beginning, Turns(third.snapshot()).finish()).name == "raft.before-recovery-2"


def test_damage_and_folders_without_a_journal_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RaftStorageError, match="holds no Raft journal"):
        read(tmp_path / "raft", Recorder().restore, Recorder().apply)
    raft = tmp_path / "raft"
    journal_of(raft, b"one", committed=2)
    (raft / "snapshot").write_bytes(b"no snapshot")
    with pytest.raises(RaftDamage):
        read(raft, Recorder().restore, Recorder().apply)
