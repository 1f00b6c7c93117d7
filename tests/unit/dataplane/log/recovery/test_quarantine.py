"""Reports of damage, the files kept with them, and the bounds of both."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.recovery import damage
from dataplane.log.recovery.damage import Damage, Piece, Quarantine
from dataplane.log.storage.files import REAL_FILES, RealFiles
from dataplane.log.storage.log_errors import NoSpace
from wire.types import Offset

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.unit.dataplane.log.conftest import Batches
    from wire.types import Buffer

WHAT = Damage(file="1.log", first_byte=10, sound_end=Offset(5), known_end=Offset(9), reason="a bit was flipped")


class Folder:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.quarantine = Quarantine(REAL_FILES, path)

    def event(self, *, first: int, behind: tuple[int, ...] = (), lost: bool = False) -> dict[str, object]:
        """`first` bytes of the damaged segment, and whole segments of so many."""
        pieces = [self._piece("1.log", first + 10, start=10)]
        pieces += [self._piece(f"{number}.log", size) for number, size in enumerate(behind, 2)]
        return self.quarantine.take(WHAT, pieces, when_ns=0, lost=lost)

    def _piece(self, name: str, size: int, start: int = 0) -> Piece:
        (self.path / name).write_bytes(bytes(n % 251 for n in range(size)))
        return Piece(self.path / name, start, size, whole=not start)

    @property
    def held(self) -> dict[str, int]:
        return {
            path.name: path.stat().st_size
            for path in sorted((self.path / "quarantine").iterdir())
            if path.suffix != ".json"
        }


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(damage, "MAX_BYTES", 1000)
    monkeypatch.setattr(damage, "MAX_EVENTS", 3)
    return Folder(tmp_path)


def test_a_report_names_damage_place_and_time(folder: Folder) -> None:
    report = folder.event(first=90, behind=(200,))
    assert report == {
        "event": 1,
        "when": "1970-01-01T00:00:00.000+00:00",
        "file": "1.log",
        "first_byte": 10,
        "sound_end": 5,
        "known_end": 9,
        "reason": "a bit was flipped",
        "lost": False,
        "kept": [{"file": "000001-1.log.from-10", "bytes": 90}, {"file": "000001-2.log", "bytes": 200}],
        "dropped_bytes": 0,
    }
    assert folder.quarantine.reports() == [report]
    assert folder.held == {"000001-1.log.from-10": 90, "000001-2.log": 200}
    assert (folder.path / "quarantine" / "000001-1.log.from-10").read_bytes() == bytes(n % 251 for n in range(10, 100))
    assert not (folder.path / "2.log").exists()


def test_of_one_event_the_beginning_is_kept_without_a_hole(folder: Folder) -> None:
    report = folder.event(first=400, behind=(500, 200, 50))
    assert folder.held == {"000001-1.log.from-10": 400, "000001-2.log": 500}
    assert report["dropped_bytes"] == 250
    assert folder.event(first=3000)["dropped_bytes"] == 2000


def test_the_bytes_of_the_oldest_events_make_room_and_their_reports_stay(folder: Folder) -> None:
    for _ in range(3):
        folder.event(first=400)
    assert sorted(folder.held) == ["000002-1.log.from-10", "000003-1.log.from-10"]
    assert [report["event"] for report in folder.quarantine.reports()] == [1, 2, 3]


def test_the_newest_reports_are_kept(folder: Folder) -> None:
    for _ in range(5):
        folder.event(first=10)
    assert [report["event"] for report in folder.quarantine.reports()] == [3, 4, 5]
    assert len(folder.held) == 3


def test_files_that_an_operator_gave_up_are_kept_whole_and_for_good(folder: Folder) -> None:
    folder.event(first=3000, behind=(4000,), lost=True)
    for _ in range(5):
        folder.event(first=900)
    assert folder.held == {
        "000001-1.log.from-10": 3000,
        "000001-2.log": 4000,
        "000006-1.log.from-10": 900,
    }


def test_a_copy_without_room_leaves_nothing_behind(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each new try would take more of the room that is lacking, and the ones that an operator gave up are kept."""
    write = RealFiles.write

    def refuse(files: RealFiles, handle: int, parts: Sequence[Buffer], position: int) -> None:
        if sum(map(len, parts)) == 3000:
            write(files, handle, [parts[0][:1000]], position)
            raise OSError(errno.ENOSPC, "No space left on device")
        write(files, handle, parts, position)

    monkeypatch.setattr(RealFiles, "write", refuse)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            folder.event(first=3000, behind=(200,), lost=True)
        assert (folder.held, folder.quarantine.reports()) == ({}, [])
        assert (folder.path / "2.log").exists()
    monkeypatch.undo()
    assert folder.event(first=3000, behind=(200,), lost=True)["event"] == 1
    assert folder.held == {"000001-1.log.from-10": 3000, "000001-2.log": 200}


def test_a_report_that_cannot_be_read_is_left_out(folder: Folder) -> None:
    folder.event(first=10)
    folder.event(first=10)
    (folder.path / "quarantine" / "000001.json").write_bytes(b"\xff{")
    assert [report["event"] for report in folder.quarantine.reports()] == [2]
    folder.event(first=10)


@pytest.mark.parametrize("cut", [0, 30, 31, 99])
def test_what_goes_with_a_known_loss_is_copied_and_stays(tmp_path: Path, batches: Batches, cut: int) -> None:
    log, _ = PartitionLog.open(tmp_path, LogConfig(segment_bytes=4096, index_interval_bytes=512))
    batches.fill(log, 100, each=2)
    log.sync()
    stored = batches.stored(log)
    report = log.checking.set_aside(Offset(cut), Offset(90), "an operator gave it up", when_ns=0)
    assert batches.stored(log) == stored, "a crash before the cut loses nothing"
    assert report["lost"], "only an operator removes it"
    assert (report["known_end"], report["dropped_bytes"]) == (90, 0)
    end = log.truncate(Offset(cut))
    assert report["sound_end"] == end
    kept = b"".join((tmp_path / "quarantine" / piece["file"]).read_bytes() for piece in report["kept"])
    assert batches.stored(log) + kept == stored
    log.close()


def test_a_full_disk_keeps_what_would_be_copied(tmp_path: Path, batches: Batches) -> None:
    class Full(RealFiles):
        is_full = False

        def write(self, handle: int, parts: Sequence[Buffer], position: int) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "no room")
            super().write(handle, parts, position)

    files = Full()
    log, _ = PartitionLog.open(tmp_path, LogConfig(), files=files)
    batches.fill(log, 10)
    log.sync()
    stored = batches.stored(log)
    files.is_full = True
    with pytest.raises(NoSpace):
        log.checking.set_aside(Offset(3), Offset(9), "an operator gave it up", when_ns=0)
    files.is_full = False
    assert batches.stored(log) == stored
    assert log.checking.set_aside(Offset(3), Offset(9), "an operator gave it up", when_ns=0)["event"] == 1
    log.close()
