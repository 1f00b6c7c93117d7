"""The metadata of a committed batch, by which the batch is recognised when its number comes again. Pure.

A query commits each micro-batch under its id with the number of the micro-batch, and writes nothing under a number that
is committed. But id and numbers stand in the checkpoint, so each copy of it has them too: a second query that runs with
a copy, or with one that was put back from a backup, comes to numbers that are committed and has other rows.

- Numbers count for the id and the stream that the query writes to, in its present incarnation: `family_of_query`.
  Copies that write to other streams do not meet.
- A number that is met again is the same batch if it was planned as one: Spark writes down the offsets of a micro-batch,
  with the time, before it runs it (the entry of the checkpoint's offset log). Where that cannot be read, it is the same
  batch if it has the same rows in the same streams.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote, urlsplit
from zlib import crc32

from spark_connector.writes.sink_rows import Records
from wire.types import Incarnation, StreamName

MAX_WRITER: Final = 200
"""Characters of the text that names a writer; the rest is cut off."""
_DIGEST_BYTES: Final = 16


class Rows(NamedTuple):
    """Keys and values of some rows, whatever their order."""

    number: int
    checksums: int
    """The sum of the checksums of all rows."""


NO_ROWS: Final = Rows(0, 0)


def rows_of(records: Records) -> Rows:
    sums = map(crc32, [value or b"" for value in records.values])
    if records.keys is not None:
        sums = map(crc32, [key or b"" for key in records.keys], sums)
    return Rows(len(records.values), sum(sums))


def added(each: Iterable[Mapping[StreamName, Rows]]) -> dict[StreamName, Rows]:
    total: dict[StreamName, Rows] = {}
    for rows in each:
        for stream, more in rows.items():
            known = total.get(stream, NO_ROWS)
            total[stream] = Rows(known.number + more.number, known.checksums + more.checksums)
    return total


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    rows: int
    digest: str
    """Digest of the rows and of the incarnations of the streams that they were written to."""
    planned: str
    """Digest of the offset log's entry; empty: not known."""
    writer: str

    @classmethod
    def of(
        cls,
        rows: Mapping[StreamName, Rows],
        incarnations: Mapping[StreamName, Incarnation],
        *,
        planned: str,
        writer: str,
    ) -> CommittedBatch:
        lines = sorted(
            f"{stream} {incarnations[stream]} {each.number} {each.checksums}" for stream, each in rows.items()
        )
        count = sum(each.number for each in rows.values())
        return cls(count, _digest("\n".join(lines).encode()), planned, writer[:MAX_WRITER])

    def is_same(self, other: CommittedBatch) -> bool:
        if self.planned and other.planned:
            return self.planned == other.planned
        return (self.rows, self.digest) == (other.rows, other.digest)

    def to_metadata(self) -> str:
        return json.dumps({"v": 1, **asdict(self)}, ensure_ascii=False)

    @classmethod
    def of_metadata(cls, text: str) -> CommittedBatch | None:
        """Returns the batch; None: the text is not by this connector, or by an earlier version."""
        try:
            found = json.loads(text)
            return cls(int(found["rows"]), str(found["digest"]), str(found["planned"]), str(found["writer"]))
        except (ValueError, KeyError, TypeError):
            return None


def family_of_query(query: str, stream: StreamName, incarnation: Incarnation) -> str:
    """Returns the family under which a query commits its writes to that incarnation of the stream."""
    return f"{query}-{_digest(f'{stream} {incarnation}'.encode())[:16]}"


def planned_as(checkpoint: str | None, number: int) -> str:
    """Returns a digest of the offset log's entry of a micro-batch. Empty: it cannot be read here; the
    checkpoint lies in another file system, or the query does not name it."""
    if checkpoint is None:
        return ""
    parts = urlsplit(checkpoint)
    if parts.scheme not in ("", "file"):
        return ""
    folder = unquote(parts.path) if parts.scheme else checkpoint
    try:
        return _digest(Path(folder, "offsets", str(number)).read_bytes())
    except (OSError, ValueError):
        return ""


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).hexdigest()
