"""The file of `tidelog subscribe --resume FILE`: the position up to which a stream was printed.

    {"cluster": "9f6a…", "stream": "flights", "incarnation": 4, "positions": {"0": 1200, "1": 1187},
     "incarnations": {"0": 4, "1": 9}}

A position is the next offset to read in an incarnation of a partition: one that was removed, and made anew by a later
repartition, is read from its beginning. The file is replaced as a whole, so that it is never half written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tidelog.client.base.exceptions import BadRequest
from wire.errors import Code

if TYPE_CHECKING:
    from tidelog.client.cluster.metadata_cache import StreamMetadata


class Position(NamedTuple):
    offset: int
    """The next offset to read."""
    incarnation: int
    """The incarnation of the partition."""


class PositionsFile:
    def __init__(self, path: Path, stream: StreamMetadata) -> None:
        """Reads the file. Raises BadRequest for one that holds no positions of that stream, or cannot be read."""
        self._path = path
        self._partitions = stream.partitions
        self._order = stream.key_order
        self._of: dict[str, Any] = {
            "cluster": stream.cluster_id,
            "stream": stream.name,
            "incarnation": stream.incarnation,
        }
        self._positions: dict[int, Position] = {}
        """The positions in the file."""
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._bad(f"cannot be read: {error.strerror}") from error
        self._positions = self._parsed(text)

    def start(self, partitions: tuple[int, ...]) -> dict[int, int] | None:
        """Returns the start in each of `partitions`, () for all, but for those that a repartition has made, or made
        anew, since: they are read from their beginning. None where no record was read yet. Raises BadRequest."""
        if not self._positions:
            return None
        wanted = partitions or tuple(self._partitions)
        read = {number: kept.offset for number, kept in self._positions.items() if self._is_of_now(number, kept)}
        unread = [partition for partition in wanted if partition not in read]
        missing = [partition for partition in unread if not self._order.has_begun_later(partition)]
        if missing:
            there = " ".join(f"--partition {partition}" for partition in sorted(self._positions))
            raise self._bad(f"holds no position of partition {missing[0]}; name another file, or read {there}")
        return {partition: read[partition] for partition in wanted if partition in read}

    def _is_of_now(self, partition: int, kept: Position) -> bool:
        known = self._partitions.get(partition)
        return known is None or known.incarnation == kept.incarnation

    def write(self, positions: Mapping[int, Position]) -> None:
        """Writes positions; those of other partitions stay. Raises BadRequest where the file cannot be written."""
        merged = {**self._positions, **positions}
        if merged == self._positions:
            return
        beside = self._path.with_name(f".{self._path.name}.new")
        try:
            with beside.open("w", encoding="utf-8") as file:
                offsets = {partition: kept.offset for partition, kept in merged.items()}
                incarnations = {partition: kept.incarnation for partition, kept in merged.items()}
                json.dump({**self._of, "positions": offsets, "incarnations": incarnations}, file)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            beside.replace(self._path)
        except OSError as error:
            raise self._bad(f"cannot be written: {error.strerror}") from error
        self._positions = merged

    def _parsed(self, text: bytes) -> dict[int, Position]:
        """Parses the file. One of an earlier version names no incarnations: they are that of the stream."""
        try:
            found = json.loads(text)
            lives = found.get("incarnations", {})
            positions = {
                int(partition): Position(int(offset), int(lives.get(partition, found["incarnation"])))
                for partition, offset in found["positions"].items()
            }
            of = {name: found[name] for name in self._of}
        except (ValueError, OverflowError, TypeError, KeyError, AttributeError):
            raise self._bad("holds no positions of `tidelog subscribe --resume`; name another file") from None
        for name, ours in self._of.items():
            if of[name] == ours:
                continue
            if name == "incarnation":
                raise self._bad(
                    f"is of a stream {self._of['stream']} that was deleted; this one was created since. Remove the file"
                    " to read the new one from its beginning"
                )
            raise self._bad(f"is of {name} {of[name]!r}, not {ours!r}; name another file")
        return positions

    def _bad(self, what: str) -> BadRequest:
        return BadRequest(Code.BAD_REQUEST, f"--resume {self._path} {what}")
