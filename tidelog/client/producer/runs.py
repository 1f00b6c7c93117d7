"""Lists of records cut into runs, each of one batch of one target, which stands for a partition.

The generators are lazy: a run is cut when the one before it has been taken, so that it fits into the room that its
batch has by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar, cast

import numpy as np

from tidelog.client.base.arguments import bad, check_list
from tidelog.client.producer.encoding import BYTES_OR_NONE, RECORD_OVERHEAD, not_bytes, size_of
from wire.batch import MAX_MESSAGE_IDS

Values = Sequence[bytes | None]
"""A column with an entry for each record: values, keys, or encoded headers."""


_T = TypeVar("_T")


class Run(NamedTuple, Generic[_T]):
    target: _T
    values: Values
    keys: Values | None
    headers: Values | None
    """Headers with message ids; then there are at most MAX_MESSAGE_IDS records."""
    size: int
    """Upper bound of the encoded size of the records, in bytes."""
    indices: Sequence[int]
    """Positions of the records in the caller's list."""
    is_pinned: bool = False
    """The program has chosen the partition."""


class BatchSpace(NamedTuple, Generic[_T]):
    """The producer's targets as the runs need them. All sizes in bytes."""

    room_for: Callable[[_T, int], int]
    """(target, size of the next record) -> bytes that the record's batch still takes."""
    check_size: Callable[[int], None]
    """Raises RecordTooLarge."""


def check_lists(values: Sequence[object], **others: Sequence[object] | None) -> None:
    """Raises BadRequest unless these are lists of one length. `others`: by name; None: not given."""
    check_list("values", values, "[b'a', b'b']")
    for name, given in others.items():
        if given is None:
            continue
        check_list(name, given, "[b'a', b'b']")
        if len(given) != len(values):
            raise bad(f"{len(given)} {name} were given for {len(values)} values")


def check_bytes(values: Values, keys: Values | None) -> None:
    """Raises BadRequest for items that are neither bytes nor None."""
    lists: dict[str, Values] = {"values": values} if keys is None else {"values": values, "keys": keys}
    for name, given in lists.items():
        if not BYTES_OR_NONE.issuperset(map(type, given)):
            place, wrong = next((i, one) for i, one in enumerate(given) if type(one) not in BYTES_OR_NONE)
            raise not_bytes(f"{name}[{place}]", wrong)


def unkeyed_runs(
    values: Values,
    target: Callable[[], _T],
    space: BatchSpace[_T],
    headers: Values | None = None,
    *,
    is_pinned: bool = False,
) -> Iterator[Run[_T]]:
    """Yields runs that fill batch after batch; `target` gives the target of the next one."""
    filled = [value or b"" for value in values] if None in values else cast("Sequence[bytes]", values)
    sizes = np.fromiter(map(len, filled), np.int64, len(values)) + RECORD_OVERHEAD
    most = len(values)
    if headers is not None:
        sizes += np.fromiter((len(each or b"") for each in headers), np.int64, len(values))
        most = MAX_MESSAGE_IDS
    if len(values):
        space.check_size(int(sizes.max()))
    ends = np.cumsum(sizes)
    at = before = 0
    """The first `at` values are taken, `before` bytes of records."""
    while at < len(values):
        goal = target()
        room = space.room_for(goal, int(sizes[at]))
        end = max(min(int(np.searchsorted(ends, before + room, "right")), at + most), at + 1)
        size = int(ends[end - 1]) - before
        yield Run(goal, values[at:end], None, headers and headers[at:end], size, range(at, end), is_pinned)
        at, before = end, before + size


def keyed_runs(
    values: Values,
    keys: Values,
    target: Callable[[bytes | None], _T],
    space: BatchSpace[_T],
    headers: Values | None = None,
    *,
    is_pinned: bool = False,
) -> Iterator[Run[_T]]:
    """Yields the records grouped by target, in order; `target` gives the target of a key."""
    groups: dict[_T, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(target(key), []).append(index)
    most = len(values) if headers is None else MAX_MESSAGE_IDS

    def cut(indices: list[int], size: int) -> Run[_T]:
        chosen = None if headers is None else [headers[i] for i in indices]
        return Run(goal, [values[i] for i in indices], [keys[i] for i in indices], chosen, size, indices, is_pinned)

    for goal, indices in groups.items():
        run: list[int] = []
        size = 0
        room = 0
        for index in indices:
            each = size_of(values[index], keys[index], None if headers is None else headers[index])
            space.check_size(each)
            if run and (size + each > room or len(run) >= most):
                yield cut(run, size)
                run, size = [], 0
            if not run:
                room = space.room_for(goal, each)
            run.append(index)
            size += each
        yield cut(run, size)
