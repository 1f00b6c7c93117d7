"""Message ids: the header by which a publisher that sends a record again says that it is the same one.

It is header `Nats-Msg-Id` of the record, as JetStream knows it: in a raw NATS block, or binary as `encode_headers`
writes it. The first one of a record counts, and an empty one counts as none. A batch whose records may have some says
so in its header (`BatchHeader.has_message_ids`), so that no other batch is looked into.
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
"""Records of a client's batch that says it has message ids: they are looked at one by one."""

_BINARY: Final = b"\x01"
_FIRST: Final = _BINARY + struct.pack("<H", len(NAME)) + NAME
"""How the binary headers of a producer of Tidelog begin."""
_SIZE = struct.Struct("<I")
_FROM: Final = len(_FIRST) + _SIZE.size
_IN_NATS_BLOCK: Final = re.compile(rb"\r\nNats-Msg-Id: *(.*?)(?=\r\n|\Z)", re.DOTALL)


def with_message_id(headers: bytes, message_id: bytes) -> bytes:
    """Binary headers (or none) with a message id in front of the others."""
    return b"".join((_FIRST, _SIZE.pack(len(message_id)), message_id, headers[len(_BINARY) :]))


def message_id_of(element: bytes) -> bytes | None:
    """The message id in the headers of one record. None: it has none, or headers that are none."""
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
    """(place in the batch, message id) of the records that have one."""
    if column is None:
        return []
    elements = enumerate(column.to_list(0, count))
    return [(place, found) for place, element in elements if element and (found := message_id_of(element)) is not None]
