"""Errors of a producer for records that it does not take, such as those without a key or a partition."""

from __future__ import annotations

from tidelog.client.arguments import bad
from tidelog.client.errors import BadRequest, Closed
from wire.durability import Durability
from wire.errors import Code, TidelogError
from wire.types import StreamName


def closed(stream: StreamName) -> TidelogError:
    return Closed(Code.BAD_REQUEST, f"this producer for {stream!r} is closed; make a new one")


def check_level(durability: Durability | None, stream: StreamName, replicas: int) -> None:
    """Raises BadRequest: no partition has so many replicas."""
    if durability is not None and durability.in_sync_floor(replicas) > replicas:
        raise bad(
            f"durability={durability} needs more replicas than the {replicas} of stream {stream!r}; ask for"
            f" {replicas} at most"
        )


def no_key(stream: StreamName) -> BadRequest:
    """The error of a record without a key: a compacted stream would keep it for ever, beside all of its successors."""
    return bad(
        f"stream {stream!r} is compacted (compact=true): it keeps the newest record of each key, and would keep this"
        " record, which has no key, for ever; give it a key"
    )


def no_partition(stream: StreamName, offset: int) -> BadRequest:
    return bad(
        f"expected_offset={offset} is of one partition, and {stream!r} has several; give the record a partition, or a"
        " key"
    )
