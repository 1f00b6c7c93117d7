"""Message ids: the header by which a publisher marks a record that it sends again as the same one.

It is header `Nats-Msg-Id` of the record, as JetStream knows it: in a raw NATS block, or binary as `encode_headers`
writes it. The first one of a record counts, and an empty one counts as none. The header of a batch states whether
its records may have some (`BatchHeader.has_message_ids`), so that no other batch is looked into.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final

from wire.batch.record_headers import decode_headers, header_items

if TYPE_CHECKING:
    from wire.batch.columns import BytesColumn

NAME: Final = b"Nats-Msg-Id"
MAX_MESSAGE_IDS: Final = 4096
"""Limit of the records of a client's batch with message ids: they are looked at one by one."""

_BINARY: Final = b"\x01"
_FIRST: Final = _BINARY + struct.pack("<H", len(NAME)) + NAME
"""The beginning of the binary headers of a producer of Tidelog."""
_SIZE = struct.Struct("<I")
_FROM: Final = len(_FIRST) + _SIZE.size
_IN_NATS_BLOCK: Final = re.compile(rb"\r\nNats-Msg-Id: *(.*?)(?=\r\n|\Z)", re.DOTALL)


def with_message_id(headers: bytes, message_id: bytes) -> bytes:
    """Returns binary headers with a message id in front of those given, which are binary or none."""
    return b"".join((_FIRST, _SIZE.pack(len(message_id)), message_id, headers[len(_BINARY) :]))


def message_id_of(element: bytes) -> bytes | None:
    """Returns the message id in the headers of one record. None: there is none, or the headers are malformed."""
    if element.startswith(_FIRST):
        size = int.from_bytes(element[_FROM - _SIZE.size : _FROM], "little")
        return element[_FROM : _FROM + size] or None
    if element.startswith(b"NATS/1.0"):
        found = _IN_NATS_BLOCK.search(element)
        return (found[1] or None) if found is not None else None
    if NAME not in element:
        return None
    items = header_items(decode_headers(element))
    return next((value or None for name, value in items if name == NAME.decode()), None)


def message_ids_of(column: BytesColumn | None, count: int) -> list[tuple[int, bytes]]:
    """Returns (place in the batch, message id) of the records that have one."""
    if column is None:
        return []
    elements = enumerate(column.to_list(0, count))
    return [(place, found) for place, element in elements if element and (found := message_id_of(element)) is not None]
