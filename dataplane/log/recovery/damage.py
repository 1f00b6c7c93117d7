"""Damage: bytes of a log that were written and synced here, and have changed since.

The facts about it (`Damage`), and the mark that outlives the process. The file `damaged` is written, durably, as soon
as damage is met, by its finder: a reader, the scrubber, a follower that refuses a batch, an open. While it is
there the log opens for reading only, nothing of it is cut, and the replica counts as unsound: a restart forgets
nothing. It goes when the damage has been cut out, which needs the replica to be out of the ISR (or an operator's word).

Only that the mark exists counts. Its text is for the eyes of an operator, so damage to the mark itself changes nothing.

## Quarantine

What was cut out of a log because of damage, and a report for each time. Nothing is ever served from here.

    <partition>/quarantine/
        000001.json                                        the report of the first event
        000001-00000000000000004096.log.from-1234          that segment's bytes from 1234 on
        000001-00000000000000008192.log                    a segment that lay behind the damage

A report is JSON: `event`, `when` (UTC), `reason`, `file` and `first_byte` (where the damage begins), `sound_end` (the
log was cut to this offset), `known_end` (records up to there were durable or committed), `lost` (true: an operator
accepted the loss; false: the records come from the leader), `kept` [{`file`, `bytes`}], `dropped_bytes`.

The quarantine is bounded. When other replicas hold the records, the bytes kept for one partition stay below
`MAX_BYTES`: of an event as much as fits is kept, in the order of the log (`dropped_bytes` counts the rest), and the
bytes of the oldest events are removed to make room, while their reports stay. The newest `MAX_EVENTS` reports are kept.
Records that an operator gave up (`lost`) may exist nowhere else: all of them are kept, and only the operator removes
them.

The report is written, durably, before anything is moved.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from dataplane.log.storage.checkpoints import read_file, replace_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dataplane.log.storage.files import FileSystem
    from wire.types import Offset

MARK_FILE = "damaged"


@dataclass(frozen=True, slots=True, kw_only=True)
class Damage:
    """Where a log stops being as it was written. `sound_end` <= `known_end`."""

    file: str
    """Name of the segment in which the sound part ends; "" where the log has no segment."""
    first_byte: int
    """Everything before it in that file was read and checked."""
    sound_end: Offset
    """Exclusive: every record below it is sound, up to the log's start."""
    known_end: Offset
    """Exclusive: records were durable or committed here up to there, as far as is known."""
    reason: str
    """One sentence."""


def set_mark(files: FileSystem, directory: Path, reason: str) -> None:
    """Durable on return. An earlier mark stays: the first damage is the one that is reported. Raises OSError."""
    path = directory / MARK_FILE
    if read_file(files, path) is None:
        replace_file(files, path, f"{reason}\n".encode())


def read_mark(files: FileSystem, directory: Path) -> str | None:
    """Why the log counts as damaged; None: it does not. Raises OSError."""
    content = read_file(files, directory / MARK_FILE)
    if content is None:
        return None
    return content.decode("utf-8", "replace").strip() or "it was marked as damaged in an earlier life of the process"


def remove_mark(files: FileSystem, directory: Path) -> None:
    """Durably. Raises OSError."""
    files.remove(directory / MARK_FILE)
    files.sync_directory(directory)


QUARANTINE = "quarantine"
MAX_EVENTS = 16
MAX_BYTES = 64 << 20

_COPY_BLOCK = 4 << 20
_REPORT_SUFFIX = ".json"


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a file that goes: [start, end), bytes. `whole`: the file is moved, else it is copied."""

    path: Path
    start: int
    end: int
    whole: bool


class Quarantine:
    """The folder of one partition's. Blocking; raises OSError. One thread at a time."""

    def __init__(self, files: FileSystem, partition: Path) -> None:
        self._files = files
        self._partition = partition
        self.path = partition / QUARANTINE

    def take(self, damage: Damage, pieces: Sequence[Piece], *, when_ns: int, lost: bool) -> dict[str, Any]:
        """Puts the pieces here as one event, durably. A whole file is gone from its place when it was kept; what is
        not kept stays where it is, for the caller to remove. The report."""
        self._files.make_directory(self.path)
        reports = self.reports()
        number = max((report["event"] for report in reports), default=0) + 1
        room = None if lost else MAX_BYTES
        plan: list[tuple[Piece, str, int]] = []
        dropped = 0
        for piece in pieces:
            size = piece.end - piece.start
            kept = size if room is None else min(size, room) if not piece.whole else size if size <= room else 0
            if kept:
                name = f"{number:06d}-{piece.path.name}" + ("" if piece.whole else f".from-{piece.start}")
                plan.append((piece, name, kept))
                room = None if room is None else room - kept
            elif room is not None and size:
                room = 0  # what is kept is the beginning, without a hole
            dropped += size - kept
        if room is not None:
            self._make_room(reports, MAX_BYTES - room)
        report = {
            "event": number,
            "when": datetime.fromtimestamp(when_ns / 1e9, UTC).isoformat(timespec="milliseconds"),
            **asdict(damage),
            "lost": lost,
            "kept": [{"file": name, "bytes": kept} for _, name, kept in plan],
            "dropped_bytes": dropped,
        }
        replace_file(self._files, self._report(number), (json.dumps(report, indent=2) + "\n").encode())
        try:
            for piece, name, kept in plan:
                if not piece.whole:
                    self._copy(piece.path, piece.start, piece.start + kept, self.path / name)
        except OSError:
            with suppress(OSError):  # nothing was moved yet, and half a copy would take the room that is lacking
                self._forget(number, report_too=True)
            raise
        for piece, name, _ in plan:
            if piece.whole:
                self._files.rename(piece.path, self.path / name)
        self._files.sync_directory(self.path)
        self._files.sync_directory(self._partition)
        return report

    def reports(self) -> list[dict[str, Any]]:
        """Oldest first. One that cannot be read any more is left out."""
        found = []
        for name in self._files.names(self.path):
            if name.endswith(_REPORT_SUFFIX):
                try:
                    report = json.loads(read_file(self._files, self.path / name) or b"")
                    if f"{report['event']:06d}{_REPORT_SUFFIX}" == name and isinstance(report["kept"], list):
                        found.append(report)
                except (ValueError, KeyError, TypeError):
                    continue
        return found

    def _report(self, number: int) -> Path:
        return self.path / f"{number:06d}{_REPORT_SUFFIX}"

    def _make_room(self, reports: list[dict[str, Any]], wanted: int) -> None:
        """Room for `wanted` bytes and one more event."""
        held = {report["event"]: self._bytes(report) for report in reports if not report.get("lost")}
        too_many = len(held) + 1 - MAX_EVENTS
        for place, (number, size) in enumerate(held.items()):
            goes = place < too_many
            if goes or (size and sum(held.values()) + wanted > MAX_BYTES):
                self._forget(number, report_too=goes)
                held[number] = 0
        self._files.sync_directory(self.path)

    def _bytes(self, report: dict[str, Any]) -> int:
        names = set(self._files.names(self.path))
        return sum(int(piece["bytes"]) for piece in report["kept"] if piece["file"] in names)

    def _forget(self, number: int, *, report_too: bool) -> None:
        for name in self._files.names(self.path):
            if name.startswith(f"{number:06d}-"):
                self._files.remove(self.path / name)
        if report_too:
            self._files.remove(self._report(number))

    def _copy(self, source: Path, start: int, end: int, target: Path) -> None:
        reading = self._files.open(source)
        try:
            writing = self._files.open(target, write=True, create=True)
            try:
                for at in range(start, end, _COPY_BLOCK):
                    block = self._files.read(reading, min(_COPY_BLOCK, end - at), at)
                    self._files.write(writing, [block], at - start)
                self._files.sync_all(writing)
            finally:
                self._files.close(writing)
        finally:
            self._files.close(reading)
