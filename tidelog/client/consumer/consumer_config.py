"""The options of consumers: a field of the configuration and a key of the keywords that programs give each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, Literal, TypeAlias, TypedDict, get_args

from tidelog.client.base.arguments import bad, check_choice, check_flag, check_function, check_whole
from tidelog.client.base.options import check_options, option
from tidelog.client.base.records import K, V
from wire.errors import TidelogError
from wire.notation import check_rack

Order: TypeAlias = Literal["partition", "key"]
"""Which records are handed out in order, besides those of each partition."""
_ReadFrom: TypeAlias = Literal["leader", "follower", "nearest"]
_OnGap: TypeAlias = Literal["raise", "skip"]
_OnOutOfRange: TypeAlias = Literal["earliest", "latest", "fail"]


def _check_rack(_: str, rack: str) -> None:
    try:
        check_rack(rack)
    except TidelogError as error:
        raise bad(error.message) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(Generic[K, V]):
    """Options of a consumer. Raises BadRequest for one that is wrong.

    - `order`: with "key", the records of each key come in the order in which they were written, also where a
      repartition has taken the key to another partition: that one is read on when the first one was read to its end
      (`Consumer.waiting`). "partition": partitions that a repartition has made are read beside the others.
    - `max_bytes`: most bytes of one answer, which holds at least one whole batch.
    - `prefetch_bytes`: bytes fetched ahead of the caller.
    - `read_from`: "leader", or "follower" = from an in-sync follower, which takes load off the leader and may be some
      milliseconds behind it; while none serves, from the leader; or "nearest" = from the leader or an in-sync follower
      in the same `rack`, from the leader while none serves there. The records are the same, and positions are always
      looked up at the leader.
    - `rack`: for "nearest", a name that brokers are given, too, such as that of a zone.
    - `on_gap`: the reaction when retention has removed the next record before it was read. "raise" OffsetOutOfRange, or
      "skip" the removed records: that is told in the log and counted in `Consumer.missed`. None: raise where reading
      starts at an offset, which asks for exactly these records, skip where it starts at a word or a time.
    - `on_out_of_range`: where to start in place of an offset below the start or above the end of the committed log,
      which the log tells; or "fail" with OffsetOutOfRange. None: below it is a gap, above it waits for the log to grow
      (but is refused with the stop "latest").
    - `read_uncommitted`: hand out the records of transactions that are open or were aborted, too, and none waits for a
      transaction.
    - `key_deserializer`: called with the bytes of each key that is not None, for `Record.key`; `batches()` gives bytes.
      What it raises is raised where the record is taken, as DeserializationFailed, which names the record; the position
      stays at it.
    - `value_deserializer`: the same for values, for `Record.value`.
    """

    order: Order = option("partition", partial(check_choice, choices=get_args(Order)))
    max_bytes: int = option(1 << 20, partial(check_whole, low=1, high=1 << 30))
    prefetch_bytes: int = option(16 << 20, partial(check_whole, low=1, high=1 << 40))
    read_from: _ReadFrom = option("leader", partial(check_choice, choices=get_args(_ReadFrom)))
    rack: str | None = option(None, _check_rack)
    on_gap: _OnGap | None = option(None, partial(check_choice, choices=get_args(_OnGap)))
    on_out_of_range: _OnOutOfRange | None = option(None, partial(check_choice, choices=get_args(_OnOutOfRange)))
    read_uncommitted: bool = option(default=False, check=check_flag)
    key_deserializer: Callable[[bytes], K] | None = option(None, check_function)
    value_deserializer: Callable[[bytes], V] | None = option(None, check_function)

    def __post_init__(self) -> None:
        check_options(self)
        if (self.rack is None) is (self.read_from == "nearest"):
            raise bad(
                f"read_from={self.read_from!r} with rack={self.rack!r}: 'nearest' needs a rack, and the others need"
                " none"
            )


class ConsumerOptions(TypedDict, Generic[K, V], total=False):
    """The keywords of `Client.consume` besides those that say which records are read."""

    order: Order
    max_bytes: int
    prefetch_bytes: int
    read_from: _ReadFrom
    rack: str | None
    on_gap: _OnGap | None
    on_out_of_range: _OnOutOfRange | None
    read_uncommitted: bool
    key_deserializer: Callable[[bytes], K] | None
    value_deserializer: Callable[[bytes], V] | None
