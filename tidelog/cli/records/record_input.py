"""Records of a file, a pipe or a terminal, as they come.

    lines, jsonl   each ends with a newline, which the last one may lack
    lengths        four bytes that say how long the record is, big-endian, and the record

Records of a pipe that pauses are handed on; those of a file, in large chunks. At most a chunk and one record more are
in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import BinaryIO, Protocol

CHUNK_RECORDS = 10_000
CHUNK_BYTES = 4 << 20
"""Bytes that are read at once."""
MOST_BYTES = 64 << 20
"""Bytes of a record: no nats-server takes more in one message."""
PAUSE = 0.01
"""Seconds. Records of a pipe that pauses for so long are handed on, whether they fill a chunk or not."""


class InputFault(Exception):
    """A fault of the input, in a sentence. The records before it have been handed on."""


class Splitter(Protocol):
    overhead: int
    """Bytes of the input that a record takes besides its own."""

    def split(self, data: bytes) -> list[bytes]:
        """Returns the records that `data` completes. `fault` may be set afterwards: no more can be read then."""

    def end(self) -> list[bytes]:
        """Returns the records that the end of the input completes; they took no bytes besides their own."""

    @property
    def fault(self) -> str | None: ...


class Lines:
    overhead = 1

    def __init__(self) -> None:
        self.fault: str | None = None
        self._begun: list[bytes] = []
        """Pieces of the line that is not complete yet."""
        self._size = 0
        """Bytes of the pieces in `_begun`."""
        self._count = 0

    def split(self, data: bytes) -> list[bytes]:
        lines: list[bytes] = []
        if b"\n" in data:
            first, *rest = data.split(b"\n")
            lines = [b"".join([*self._begun, first]), *rest[:-1]]
            self._begun, self._size = rest[-1:], len(rest[-1])
            self._count += len(lines)
        else:
            self._begun.append(data)
            self._size += len(data)
        if self._size > MOST_BYTES:
            self.fault = f"line {self._count + 1} is longer than {MOST_BYTES:,} bytes"
        return lines

    def end(self) -> list[bytes]:
        return [last] if (last := b"".join(self._begun)) else []


class Lengths:
    overhead = 4

    def __init__(self) -> None:
        self.fault: str | None = None
        self._rest = b""
        """The rest of the input, from the beginning of a record on."""
        self._wanted = 0
        """Bytes that `_rest` needs to have, as far as is known, for a record to be complete."""
        self._pieces: list[bytes] = []
        """The input behind `_rest`."""
        self._size = 0
        """Bytes of `_rest` and `_pieces`."""
        self._count = 0

    def split(self, data: bytes) -> list[bytes]:
        self._pieces.append(data)
        self._size += len(data)
        if self._size < self._wanted:
            return []
        data = b"".join([self._rest, *self._pieces])
        records: list[bytes] = []
        at = 0
        while len(data) >= (begin := at + self.overhead):
            length = int.from_bytes(data[at:begin], "big")
            if length > MOST_BYTES:
                self.fault = (
                    f"record {self._count + len(records) + 1} has {length:,} bytes by its length, more than"
                    f" {MOST_BYTES:,}: is each record behind four bytes with its length, big-endian?"
                )
                break
            if len(data) < begin + length:
                break
            records.append(data[begin : begin + length])
            at = begin + length
        self._rest, self._pieces, self._size = data[at:], [], len(data) - at
        has_length = self._size >= self.overhead
        self._wanted = self.overhead + (int.from_bytes(self._rest[: self.overhead], "big") if has_length else 0)
        self._count += len(records)
        return records

    def end(self) -> list[bytes]:
        if self._size:
            self.fault = (
                f"record {self._count + 1} is cut off: {self._size:,} bytes are there of {self._wanted:,}, with"
                " the four of its length"
            )
        return []


def splitter(form: str) -> Splitter:
    """Returns the splitter of a format. `form`: as --format of `tidelog publish`."""
    return Lengths() if form == "lengths" else Lines()


async def chunks(file: BinaryIO, form: str) -> AsyncIterator[tuple[list[bytes], int]]:
    """Yields records, and the number of bytes that they took in the file. Raises InputFault."""
    parts = splitter(form)
    records: list[bytes] = []
    size = 0
    """Bytes of the input since the last chunk."""
    at_end = False
    while not at_end and parts.fault is None:
        data = await _read(file, PAUSE if records else None)
        at_end = data == b""
        size += len(data or b"")
        if data:
            records += parts.split(data)
        if data and len(records) < CHUNK_RECORDS and size < CHUNK_BYTES and parts.fault is None:
            continue
        for at in range(0, len(records), CHUNK_RECORDS):
            chunk = records[at : at + CHUNK_RECORDS]
            yield chunk, sum(map(len, chunk)) + parts.overhead * len(chunk)
        records, size = [], 0
    if parts.fault is None and (last := parts.end()):
        yield last, sum(map(len, last))
    if parts.fault is not None:
        raise InputFault(parts.fault)


async def _read(file: BinaryIO, patience: float | None) -> bytes | None:
    """Reads some bytes, b"" at the end. None: a pipe or terminal gave none within `patience` seconds; others block."""
    import asyncio
    import os

    try:
        descriptor = file.fileno()
    except OSError:
        return file.read(CHUNK_BYTES)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:  # epoll refuses a regular file, which can always be read
        return os.read(descriptor, CHUNK_BYTES)
    try:
        async with asyncio.timeout(patience):
            await readable.wait()
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)
