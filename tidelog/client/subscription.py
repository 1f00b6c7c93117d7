"""The arguments of a subscription, checked before anything is sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.client.arguments import bad, check_number, check_text, check_texts, check_whole, shown, whole
from tidelog.client.errors import typed
from tidelog.client.membership import MemberSettings
from tidelog.client.metadata import stream_name
from tidelog.client.positions import Anchor
from wire.errors import TidelogError
from wire.internal_records.group_records import check_group_name
from wire.subjects import check_name

Name: TypeAlias = tuple[str, int]
"""A stream and a partition, as programs name them."""
Listener: TypeAlias = Callable[[set[Name]], Awaitable[object] | object]

_MAX_PATTERN = 128
_MAX_OFFSET = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Listeners:
    """The program's functions."""

    on_assigned: Listener | None = None
    on_revoked: Listener | None = None
    on_lost: Listener | None = None


def checked_name(name: Name) -> Name:
    """Raises BadRequest."""
    match name:
        case (str(stream), partition) if (number := whole(partition)) is not None:
            return stream, number
        case _:
            pass
    raise bad(f"{shown(name)} names no partition; give a stream and a number, such as ('orders', 0)")


def checked_names(offsets: Mapping[Name, int]) -> dict[Name, int]:
    """Raises BadRequest."""
    if not isinstance(offsets, Mapping):
        raise bad(f"offsets={shown(offsets)} is no mapping; give one such as {{('orders', 0): 17}}")
    checked = {}
    for name, offset in offsets.items():
        check_whole(f"the offset of {name}", offset, 0, _MAX_OFFSET)
        checked[checked_name(name)] = whole(offset) or 0
    return checked


def checked_listeners(**given: Listener | None) -> Listeners:
    for name, listener in given.items():
        if listener is not None and not callable(listener):
            raise bad(f"{name}={shown(listener)} is no function; give one that takes a set of (stream, partition)")
    return Listeners(**given)


def member_settings(
    *,
    group: str,
    streams: str | Iterable[str],
    patterns: str | Iterable[str],
    instance_id: str | None,
    client: str,
    session_timeout: float,
    rebalance_timeout: float,
    max_poll_interval: float,
) -> MemberSettings:
    """Raises BadName, BadRequest."""
    names = tuple(dict.fromkeys(stream_name(name) for name in _texts("streams", streams, "['orders']")))
    masks = tuple(dict.fromkeys(_texts("patterns", patterns, "['orders-*']")))
    for mask in masks:
        if not 0 < len(mask) <= _MAX_PATTERN or not mask.isprintable():
            raise bad(f"the pattern {mask!r:.200} is not 1 to {_MAX_PATTERN} printable characters, such as 'orders-*'")
    if not names and not masks:
        raise bad("no stream to subscribe to was given; name streams or patterns")
    check_number("session_timeout", session_timeout, 1, 3600)
    check_number("rebalance_timeout", rebalance_timeout, 1, 3600)
    check_number("max_poll_interval", max_poll_interval, 0.1, 7 * 24 * 3600)
    try:
        name = check_group_name(group)
        instance = "" if instance_id is None else check_name(instance_id, "instance id")
    except TidelogError as error:
        raise typed(error) from None
    return MemberSettings(
        group=name,
        streams=names,
        patterns=masks,
        instance=instance,
        client=client,
        session_timeout=float(session_timeout),
        rebalance_timeout=float(rebalance_timeout),
        max_poll_interval=float(max_poll_interval),
    )


def group_start(text: str) -> Anchor:
    """Where a partition begins of which nothing is committed. Raises BadRequest."""
    try:
        return Anchor(text)
    except ValueError:
        raise bad(f"start={text!r} is none of 'earliest', 'latest' and 'new'") from None


def _texts(name: str, given: str | Iterable[str], example: str) -> list[str]:
    if isinstance(given, str):
        return [given]
    check_texts(name, given, example)
    texts = [*given]
    for text in texts:
        check_text(f"one of {name}", text, "orders")
    return texts
