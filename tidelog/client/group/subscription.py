"""A subscription: its arguments, checked before anything is sent, and the program's functions that it calls."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

from tidelog.client.base.arguments import (
    bad,
    check_choice,
    check_flag,
    check_number,
    check_text,
    check_texts,
    check_whole,
    shown,
    whole,
)
from tidelog.client.base.exceptions import typed
from tidelog.client.base.options import option
from tidelog.client.base.records import K, V
from tidelog.client.cluster.metadata_cache import stream_name
from tidelog.client.consumer.consumer_config import ConsumerConfig, ConsumerOptions, Order
from tidelog.client.group.membership import MemberSettings
from wire.errors import TidelogError
from wire.internal_records.group_records import StreamPartition, check_group_name
from wire.names import check_name

Name: TypeAlias = tuple[str, int]
"""A stream and a partition, as programs name them."""
Listener: TypeAlias = Callable[[set[Name]], Awaitable[object] | object]

_MAX_PATTERN = 128
_MAX_OFFSET = (1 << 63) - 1


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


def _check_listener(name: str, listener: object) -> None:
    if not callable(listener):
        raise bad(f"{name}={shown(listener)} is no function; give one that takes a set of (stream, partition)")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfig(ConsumerConfig[K, V]):
    """Options of a member of a consumer group. Those that are not in this list are as those of a consumer.

    - `order`: with "key", the records of each key come in the order in which they were written, over all members, also
      where a repartition has taken the key to another partition: that one is read on when the group has committed the
      first one to its end (`GroupConsumer.waiting`). "partition": such partitions are read beside the others.
    - `on_gap`: the reaction when retention has removed the next records: "skip" them, which the log tells, or "raise"
      OffsetOutOfRange.
    - `on_out_of_range`: where to go on in place of a committed offset that lies outside of the log, which the log
      tells; or "fail" with OffsetOutOfRange.
    - `start`: where a partition begins of which the group has committed nothing, spelled as in `consume`; one that a
      repartition has made begins with its first record where the group has committed something in those that its keys
      come from.
    - `auto_commit`: what is finished is committed every `auto_commit_interval` seconds, when partitions go, and at the
      end; else by `commit` alone.
    - `auto_commit_interval`: seconds between two automatic commits.
    - `session_timeout`: seconds after which a member that is not heard is removed. It hands out nothing for longer
      without hearing from the coordinator, so no two members have a partition, even where one was stopped.
    - `rebalance_timeout`: seconds that a member has to finish the records that it holds of a partition that goes to
      another one.
    - `max_poll_interval`: seconds between two calls for records. A member that takes longer leaves, and its next call
      raises UnknownMember; the call after that joins anew.
    - `on_assigned`: a function or coroutine function that gets a set of (stream, partition) before these are read;
      `seek` there says where.
    - `on_revoked`: the same when partitions go, after their last records and with a last chance to commit.
    - `on_lost`: the same when others may have them already.
    """

    order: Order = option("key", partial(check_choice, choices=get_args(Order)))
    on_gap: Literal["raise", "skip"] | None = option("skip", partial(check_choice, choices=(None, "raise", "skip")))
    on_out_of_range: Literal["earliest", "latest", "fail"] | None = option(
        "earliest", partial(check_choice, choices=(None, "earliest", "latest", "fail"))
    )
    start: Literal["earliest", "latest", "new"] = option(
        "earliest", partial(check_choice, choices=("earliest", "latest", "new"))
    )
    auto_commit: bool = option(default=True, check=check_flag)
    auto_commit_interval: float = option(5.0, partial(check_number, low=0.01, high=3600))
    session_timeout: float = option(45.0, partial(check_number, low=1, high=3600))
    rebalance_timeout: float = option(60.0, partial(check_number, low=1, high=3600))
    max_poll_interval: float = option(300.0, partial(check_number, low=0.1, high=7 * 24 * 3600))
    on_assigned: Listener | None = option(None, _check_listener)
    on_revoked: Listener | None = option(None, _check_listener)
    on_lost: Listener | None = option(None, _check_listener)


class GroupOptions(ConsumerOptions[K, V], total=False):
    """The keywords of `Client.subscribe` besides those that say of which group it is a member, and of which streams."""

    start: Literal["earliest", "latest", "new"]
    auto_commit: bool
    auto_commit_interval: float
    session_timeout: float
    rebalance_timeout: float
    max_poll_interval: float
    on_assigned: Listener | None
    on_revoked: Listener | None
    on_lost: Listener | None


def member_settings(
    config: GroupConfig[Any, Any],
    *,
    group: str,
    streams: str | Iterable[str],
    patterns: str | Iterable[str],
    instance_id: str | None,
    client: str,
) -> MemberSettings:
    """Raises BadName, BadRequest."""
    names = tuple(dict.fromkeys(stream_name(name) for name in _texts("streams", streams, "['orders']")))
    masks = tuple(dict.fromkeys(_texts("patterns", patterns, "['orders-*']")))
    for mask in masks:
        if not 0 < len(mask) <= _MAX_PATTERN or not mask.isprintable():
            raise bad(f"the pattern {mask!r:.200} is not 1 to {_MAX_PATTERN} printable characters, such as 'orders-*'")
    if not names and not masks:
        raise bad("no stream to subscribe to was given; name streams or patterns")
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
        session_timeout=float(config.session_timeout),
        rebalance_timeout=float(config.rebalance_timeout),
        max_poll_interval=float(config.max_poll_interval),
    )


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

    def __init__(self, config: GroupConfig[Any, Any], on_raised: Callable[[], object]) -> None:
        self._config = config
        self._on_raised = on_raised
        self.one_at_a_time = asyncio.Lock()
        """The caller of one of the three holds it."""
        self.in_threads = False
        """Functions that are no coroutine functions are called in threads of their own."""
        self._is_calling = False
        self._raised: BaseException | None = None

    async def assigned(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._config.on_assigned, partitions)

    async def revoked(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._config.on_revoked, partitions)

    async def lost(self, partitions: Iterable[StreamPartition]) -> None:
        await self._call(self._config.on_lost, partitions)

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
            if self.in_threads and not inspect.iscoroutinefunction(listener):
                result = await asyncio.to_thread(listener, names)
            else:
                result = listener(names)
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 - it is the program's, which hears of it
            self.raise_later(error)
        finally:
            self._is_calling = False
            _within.reset(before)
