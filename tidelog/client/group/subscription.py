"""A subscription: its arguments, checked before anything is sent, and the program's functions that it calls."""

from __future__ import annotations

import inspect
from asyncio import Lock
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from tidelog.client.base.arguments import bad, check_number, check_text, check_texts, check_whole, shown, whole
from tidelog.client.base.exceptions import typed
from tidelog.client.base.read_positions import Anchor
from tidelog.client.cluster.metadata_cache import stream_name
from tidelog.client.group.membership import MemberSettings
from wire.errors import TidelogError
from wire.internal_records.group_records import StreamPartition, check_group_name
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


_within: ContextVar[frozenset[GroupListeners]] = ContextVar("_within", default=frozenset())
"""Whose function the present task is in, or was in when it, or the one that began it, was begun."""


class GroupListeners:
    """Calls the program's functions: on_assigned, on_revoked, on_lost. One runs at a time, in the order in which they
    are due. What one raises, the program's next call raises. `on_raised` is called when there is something to raise."""

    def __init__(self, listeners: Listeners, on_raised: Callable[[], object]) -> None:
        self._listeners = listeners
        self._on_raised = on_raised
        self.one_at_a_time = Lock()
        """The caller of one of the three holds it."""
        self._is_calling = False
        self._raised: BaseException | None = None

    async def assigned(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._listeners.on_assigned, partitions)

    async def revoked(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._listeners.on_revoked, partitions)

    async def lost(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._listeners.on_lost, partitions)

    def check_not_calling(self) -> None:
        """Raises BadRequest where the program's function is what calls, or a task or thread that it has begun, for
        which it may wait."""
        if self._is_calling and self in _within.get():
            raise bad("a consumer cannot be closed by its own on_assigned, on_revoked or on_lost; close it afterwards")

    def raise_later(self, error: BaseException) -> None:
        self._raised = self._raised or error
        self._on_raised()

    def raise_raised(self) -> None:
        """What was raised, once."""
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised from None

    async def _call(self, listener: Listener | None, partitions: Iterable[StreamPartition]) -> None:
        names = {(of.stream, of.partition) for of in partitions}
        if listener is None or not names:
            return
        self._is_calling = True
        before = _within.set(_within.get() | {self})
        try:
            result = listener(names)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - it is the program's, which hears of it
            self.raise_later(error)
        finally:
            self._is_calling = False
            _within.reset(before)
