"""Walking over the batches of a segment file, one header after the other.

Two ways to walk: reading headers only (the next header lies `size` bytes further on), and verifying, which also reads
every body and checks its CRC. What does not continue the chain ends the walk with `ChainBroken`; what that means (the
end of what was written before a crash, or damage) is for the caller to judge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wire.batch import HEADER_SIZE, BatchHeader, parse_header, verify_body
from wire.errors import CorruptData

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dataplane.log.storage.files import FileSystem

_HEADER_BLOCK = 16 << 10
"""Bytes read at a time when only headers are wanted: many small batches at once, little in vain between large ones."""
_VERIFY_BLOCK = 4 << 20


class ChainBroken(CorruptData):
    """No sound batch begins at byte `position` of the file although the file goes on."""

    def __init__(self, position: int, reason: str) -> None:
        super().__init__(f"at byte {position}: {reason}")
        self.position = position


def walk(
    files: FileSystem,
    handle: int,
    position: int,
    end: int,
    previous_end: int,
    *,
    verify: bool,
    epoch: int = 0,
) -> Iterator[tuple[int, BatchHeader]]:
    """(byte position, header) of each batch from `position` to `end` (exclusive, bytes), in order.

    `previous_end` is the exclusive end offset of the log before `position`: no batch may begin below it, nor may a
    leader epoch be below that of the batch before it, at first `epoch`. Raises ChainBroken, OSError.
    """
    block = b""
    block_at = position
    while position < end:
        wanted = HEADER_SIZE
        header: BatchHeader | None = None
        while True:  # at most twice: for the header, then for the body
            at = position - block_at
            if at + wanted > len(block):
                size = max(wanted, _VERIFY_BLOCK if verify else _HEADER_BLOCK)
                block = files.read(handle, min(size, end - position), position)
                block_at, at = position, 0
                if len(block) < wanted:
                    raise ChainBroken(position, f"{len(block)} bytes are left of a batch of at least {wanted}")
            if header is not None:
                break
            header = _next_header(block, at, position, end, previous_end, epoch)
            if not verify:
                break
            wanted = header.size
        if verify:
            try:
                verify_body(block, at, header)
            except CorruptData as error:
                raise ChainBroken(position, str(error)) from error
        yield position, header
        previous_end = header.end_offset
        epoch = header.leader_epoch
        position += header.size


def _next_header(block: bytes, at: int, position: int, end: int, previous_end: int, epoch: int) -> BatchHeader:
    try:
        header = parse_header(block, at)
    except CorruptData as error:
        raise ChainBroken(position, str(error)) from error
    if position + header.size > end:
        raise ChainBroken(position, f"a batch of {header.size} bytes begins, the file ends after {end - position}")
    if header.base_offset < previous_end:
        raise ChainBroken(
            position, f"a batch begins at offset {header.base_offset}, below {previous_end}, the end so far"
        )
    if header.leader_epoch < epoch:
        raise ChainBroken(position, f"a batch of leader epoch {header.leader_epoch} follows one of {epoch}")
    return header


def only_zeros(files: FileSystem, handle: int, position: int, end: int) -> bool:
    """Whether the file holds nothing but zeros from `position` to `end`: room reserved, never written."""
    while position < end:
        block = files.read(handle, min(_VERIFY_BLOCK, end - position), position)
        if block.count(0) != len(block):
            return False
        if not block:
            break
        position += len(block)
    return True
