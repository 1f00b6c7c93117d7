"""Are the files of a Raft node sound? Asked by an operator while no node uses them; nothing is written."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

from metadata.raft.engine import JOURNAL_FILE, SNAPSHOT_FILE
from metadata.raft.journal import Journal, SnapshotHead
from metadata.raft.journal_mark import JournalMark, mark_path
from metadata.raft.snapshot import decode_snapshot
from metadata.raft.types import RaftStorageError


def verify_files(directory: Path, *, boot_id: str) -> list[str]:
    """A sentence for each file that this node could not start with. A missing file is sound. `boot_id` of the
    operating system as it runs now: in the boot that wrote it a journal's last batch is whole. Raises OSError."""
    wrong: list[str] = []
    journal, snapshot = directory / JOURNAL_FILE, directory / SNAPSHOT_FILE
    head: SnapshotHead | None = None
    try:
        if snapshot.exists():
            head = decode_snapshot(snapshot.read_bytes(), snapshot)[0]
    except RaftStorageError as error:
        wrong.append(str(error))
    if journal.exists():
        # Opening a journal cuts its torn end: so a copy is opened.
        with TemporaryDirectory(prefix="tidelog-verify-") as folder:
            copy = Path(folder) / JOURNAL_FILE
            shutil.copyfile(journal, copy)
            try:
                mark = JournalMark(_copied(mark_path(directory), Path(folder)))
                Journal(copy, snapshot=head, exit_process=_fail, boot_id=boot_id, mark=mark)._destroy()
            except RaftStorageError as error:
                wrong.append(str(error).replace(str(copy), str(journal)))
    return wrong


def _copied(path: Path, folder: Path) -> Path:
    """A copy there, if there is such a file."""
    copy = folder / path.name
    if path.exists():
        shutil.copyfile(path, copy)
    return copy


def _fail(sentence: str) -> NoReturn:
    raise RaftStorageError(sentence)
