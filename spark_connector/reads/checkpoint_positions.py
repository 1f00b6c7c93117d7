"""Offsets as Spark keeps them in a checkpoint.

    {"v": 1, "streams": {"flights": {"incarnation": 7, "partitions": {"0": {"incarnation": 7, "offset": 123}}}}}

`offset` is the next one to read. The incarnations say which stream and partition of these names it is of: a stream that
was deleted and created again starts over at 0, and going on at 123 there would skip records without a word.

Spark compares offsets as text, so equal positions are written in one way: streams and partitions in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wire.errors import Code, TidelogError
from wire.types import Incarnation, Offset, StreamName

VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """The next record to read of one incarnation of one partition."""

    incarnation: Incarnation
    offset: Offset


@dataclass(frozen=True, slots=True)
class StreamPosition:
    incarnation: Incarnation
    partitions: Mapping[int, Position]


Positions = Mapping[StreamName, StreamPosition]


def to_json(positions: Positions) -> dict[str, Any]:
    return {
        "v": VERSION,
        "streams": {
            stream: {
                "incarnation": at.incarnation,
                "partitions": {
                    str(partition): {"incarnation": position.incarnation, "offset": position.offset}
                    for partition, position in sorted(at.partitions.items())
                },
            }
            for stream, at in sorted(positions.items())
        },
    }


def from_json(value: Mapping[str, Any]) -> Positions:
    """Returns the positions. Raises TidelogError(BAD_CONFIG) on anything but version 1 of the form above."""
    version = value.get("v")
    if version != VERSION:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"the checkpoint holds offsets of version {version!r} and this connector reads version {VERSION}: "
            "use the connector that wrote it, or start with a new checkpointLocation",
        )
    try:
        return {
            StreamName(stream): StreamPosition(
                Incarnation(int(at["incarnation"])),
                {
                    int(partition): Position(Incarnation(int(position["incarnation"])), Offset(int(position["offset"])))
                    for partition, position in at["partitions"].items()
                },
            )
            for stream, at in value["streams"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"the checkpoint's offsets are damaged ({type(error).__name__}: {error}): "
            "start with a new checkpointLocation",
        ) from error
