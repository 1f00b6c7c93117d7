from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from wire.layouts import NOT_REPORTED, KeyOrder, Layout, end_of_life, sources, takes_in_place


@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1 << 32))
def test_a_key_comes_from_one_of_the_sources_of_its_partition(before: int, after: int, key_hash: int) -> None:
    assert key_hash % before in sources(key_hash % after, before, after)


@given(st.integers(1, 20), st.integers(1, 20))
def test_each_source_has_keys_that_go_there(before: int, after: int) -> None:
    reached = defaultdict(set)
    for key_hash in range(before * after):
        reached[key_hash % after].add(key_hash % before)
    assert {p: set(sources(p, before, after)) for p in range(after)} == reached


def test_a_multiple_waits_for_one_partition_only() -> None:
    assert list(sources(4, 3, 6)) == [1]
    order = KeyOrder(
        [Layout(version=1, partitions=3), Layout(version=2, partitions=6, generation=9, starts=(5, 6, 7))],
        {0: 1, 1: 1, 2: 1, 3: 8, 4: 8, 5: 8},
    )
    read = {0: 5, 1: 5, 2: 7}
    assert order.waits_for(4, lambda q: read.get(q, 0)) == (0, {1: 6})
    assert order.waits_for(3, lambda q: read.get(q, 0)) is None
    assert order.waits_for(1, lambda _: 0) is None  # what it has of before comes first in its own log
    assert order.has_begun_later(4)
    assert not order.has_begun_later(1)
    assert order.ends(1) == [6]
    assert order.ends(4) == []


def test_a_partition_that_some_layout_has_had_has_another_one_in_its_place() -> None:
    layouts = [Layout(version=2, partitions=6), Layout(version=3, partitions=4)]
    assert [takes_in_place(layouts, number) for number in range(-1, 7)] == [None, 0, 1, 2, 3, 0, 1, None]


def test_fewer_partitions_wait_for_all_from_which_keys_come() -> None:
    order = KeyOrder(
        [Layout(version=1, partitions=4), Layout(version=2, partitions=2, generation=9, starts=(3, 3, 5, 0))],
        {0: 1, 1: 1, 2: 1, 3: 1},
    )
    assert order.waits_for(0, lambda _: 4) == (3, {2: 5})
    assert order.waits_for(1, lambda _: 0) is None  # partition 3 had nothing
    assert order.ends(2) == [5]


def test_what_is_not_told_yet_is_waited_for() -> None:
    order = KeyOrder(
        [Layout(version=1, partitions=2), Layout(version=2, partitions=3, generation=9, starts=(4, NOT_REPORTED))],
        {0: 1, 1: 1, 2: 8},
    )
    assert order.known_version(0) == 2
    assert order.known_version(1) == 1
    assert order.waits_for(0, lambda _: 100) == (4, {1: NOT_REPORTED})
    assert order.waits_for(1, lambda _: 100) is None  # its batches of version 2 wait for newer metadata


def test_a_partition_that_is_gone_or_new_has_nothing_of_before() -> None:
    layouts = [Layout(version=1, partitions=2), Layout(version=2, partitions=1, generation=9, starts=(4, 7))]
    assert KeyOrder(layouts, {0: 1, 1: 1}).waits_for(0, lambda _: 0) == (4, {1: 7})
    assert KeyOrder(layouts, {0: 1}).waits_for(0, lambda _: 0) is None
    assert KeyOrder(layouts, {0: 1, 1: 20}).waits_for(0, lambda _: 0) is None


def test_layouts_from_before_this_life_of_a_partition_do_not_hold_it_up() -> None:
    layouts = [
        Layout(version=1, partitions=1),
        Layout(version=2, partitions=2, generation=9, starts=(4,)),
        Layout(version=3, partitions=1, generation=19, starts=(5, 100)),
        Layout(version=4, partitions=2, generation=29, starts=(6,)),
    ]
    order = KeyOrder(layouts, {0: 1, 1: 28})
    assert order.waits_for(1, {0: 5}.__getitem__) == (0, {0: 6})
    assert order.waits_for(1, {0: 6}.__getitem__) is None
    assert order.ends(1) == []


def test_the_origins_of_a_partition_are_those_of_its_sources_too() -> None:
    layouts = [
        Layout(version=1, partitions=3),
        Layout(version=2, partitions=6, generation=9, starts=(5, 6, 7)),
        Layout(version=3, partitions=12, generation=19, starts=(8, 8, 8, 8, 8, 8)),
    ]
    order = KeyOrder(
        layouts, dict.fromkeys(range(3), 1) | dict.fromkeys(range(3, 6), 8) | dict.fromkeys(range(6, 12), 18)
    )
    assert order.origins(10) == {4, 1}
    assert order.origins(4) == {1}
    assert order.origins(1) == set()


def test_after_an_unclean_election_no_layout_ends_behind_a_later_one() -> None:
    layouts = [
        Layout(version=1, partitions=2),
        Layout(version=2, partitions=3, generation=9, starts=(40, 70)),
        Layout(version=3, partitions=6, generation=19, starts=(30, 90, 8)),
    ]
    order = KeyOrder(layouts, dict.fromkeys(range(6), 1) | {2: 8, 3: 18, 4: 18, 5: 18})
    assert order.ends(0) == [30, 30]
    assert order.waits_for(2, lambda _: 30) == (0, {1: 70})
    assert order.waits_for(3, lambda _: 30) == (0, {1: 70}), "keys of partition 1 come through partition 0"
    assert order.waits_for(3, lambda _: 70) is None


def test_a_partition_through_which_keys_went_without_a_record_hides_nothing() -> None:
    order = KeyOrder(
        [
            Layout(version=1, partitions=5),
            Layout(version=2, partitions=1, generation=9, starts=(0, 0, 0, 0, 1)),
            Layout(version=3, partitions=3, generation=19, starts=(0,)),
        ],
        dict.fromkeys(range(5), 1),
    )
    assert order.waits_for(1, lambda _: 0) == (0, {4: 1})
    assert order.waits_for(1, lambda _: 1) is None


@given(st.data())
def test_reading_as_allowed_keeps_the_order_of_each_key_through_any_repartitions(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=5))
    logs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    layouts = [Layout(version=1, partitions=counts[0])]
    sent: dict[int, int] = defaultdict(int)
    exists = counts[0]
    for version, count in enumerate(counts, 1):
        if version > 1:
            starts = tuple(len(logs[p]) for p in range(exists))
            layouts.append(Layout(version=version, partitions=count, generation=10 * version, starts=starts))
            exists = max(exists, count)
        for key in data.draw(st.lists(st.integers(0, 20), max_size=15)):
            logs[key % count].append((key, sent[key]))
            sent[key] += 1
    order = KeyOrder(layouts, dict.fromkeys(range(exists), 1))
    read = dict.fromkeys(range(exists), 0)
    seen: dict[int, int] = defaultdict(int)
    while any(read[p] < len(logs[p]) for p in read):
        ready = []
        for p in read:
            limit = order.waits_for(p, read.__getitem__)
            if read[p] < len(logs[p]) and (limit is None or read[p] < limit[0]):
                ready.append(p)
        p = data.draw(st.sampled_from(ready))
        key, number = logs[p][read[p]]
        assert number == seen[key]
        seen[key] += 1
        read[p] += 1


LEFT_OUT = [
    Layout(version=1, partitions=2),
    Layout(version=2, partitions=1, generation=9, starts=(4, 7)),
]


def test_a_life_ends_at_the_cutover_of_the_layout_that_leaves_it_out() -> None:
    assert end_of_life(LEFT_OUT, 1, 1) == 7
    assert end_of_life(LEFT_OUT, 0, 1) is None, "the newest layout has it"
    assert end_of_life(LEFT_OUT[:1], 1, 1) is None
    untold = [LEFT_OUT[0], Layout(version=2, partitions=1, generation=9, starts=(4, NOT_REPORTED))]
    assert end_of_life(untold, 1, 1) is None
    again = [*LEFT_OUT, Layout(version=3, partitions=1, generation=19, starts=(5,))]
    assert end_of_life(again, 1, 1) == 7, "a second layout without it tells nothing of it"


def test_a_life_that_is_used_again_ends_when_it_is_left_out_again() -> None:
    used = [*LEFT_OUT, Layout(version=3, partitions=2, generation=19, starts=(5, 8))]
    assert end_of_life(used, 1, 1) is None
    assert end_of_life([*used, Layout(version=4, partitions=1, generation=29, starts=(6, 30))], 1, 1) == 30
    empty = [
        LEFT_OUT[0],
        Layout(version=2, partitions=1, generation=9, starts=(4, 0)),
        Layout(version=3, partitions=2, generation=19, starts=(5, 0)),
        Layout(version=4, partitions=1, generation=29, starts=(6, 30)),
    ]
    assert end_of_life(empty, 1, 1) == 30, "it had no record when it was used again"


def test_each_life_of_a_partition_has_its_own_end() -> None:
    layouts = [
        *LEFT_OUT,
        Layout(version=3, partitions=2, generation=19, starts=(5,)),
        Layout(version=4, partitions=1, generation=29, starts=(6, 30)),
    ]
    assert end_of_life(layouts, 1, 1, 18) == 7
    assert end_of_life(layouts, 1, 1) == 7
    assert end_of_life(layouts, 1, 18) == 30
    assert end_of_life(layouts, 1, 18, 38) == 30
    assert end_of_life(layouts, 1, 38) is None
    assert end_of_life(layouts, 1, 18, 1) is None
    between = [*LEFT_OUT, Layout(version=3, partitions=3, generation=19, starts=(5, 0, 3))]
    assert end_of_life(between, 1, 1) == 7, "a partition beyond it was used again, it was not"


def test_an_end_is_not_known_when_layouts_since_the_life_began_are_forgotten() -> None:
    layouts = [
        Layout(version=3, partitions=1, generation=19, starts=(5,)),
        Layout(version=4, partitions=2, generation=29, starts=(6,)),
        Layout(version=5, partitions=1, generation=39, starts=(9, 30)),
    ]
    assert end_of_life(layouts, 1, 1) is None, "30 is the end of a later life"
    assert end_of_life(layouts, 1, 28) == 30
    assert end_of_life(layouts[1:], 1, 28) is None
    assert end_of_life(layouts[2:], 1, 1) is None
    assert end_of_life([], 1, 1) is None


@given(st.data())
def test_a_reader_of_less_than_a_life_is_never_taken_for_finished(data: st.DataObject) -> None:
    """Partitions are left out, used again, removed, and made anew, as by
    `metadata/commands/repartition_commands.py`."""
    generation = 1
    count = data.draw(st.integers(1, 4))
    layouts = [Layout(version=1, partitions=count)]
    lives, logs = dict.fromkeys(range(count), 1), dict.fromkeys(range(count), 0)
    ended: list[tuple[int, int, int]] = []
    """(partition, incarnation, cutover) of lives that are over."""
    cutovers: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 8))):
        for number in range(count):
            logs[number] += data.draw(st.integers(0, 3))
        after = data.draw(st.integers(1, 4).filter(lambda number: number != count))  # noqa: B023
        existed = set(logs)
        generation += 2
        for number in range(after):
            if number not in logs:
                lives[number], logs[number] = generation - 1, 0
        told = max([count, *(number + 1 for number in existed if number < after)])
        starts = tuple(logs[number] if number in existed else 0 for number in range(told))
        layouts.append(Layout(version=layouts[-1].version + 1, partitions=after, generation=generation, starts=starts))
        cutovers |= {number: logs[number] for number in range(after, count)}
        count = after
        for number in [number for number in logs if number >= count and data.draw(st.booleans())]:
            del logs[number]
            ended.append((number, lives.pop(number), cutovers[number]))
    known = layouts[-data.draw(st.integers(1, len(layouts))) :]
    for number, incarnation, cutover in ended:
        end = end_of_life(known, number, incarnation, lives.get(number))
        assert end is None or end >= cutover
        if known == layouts and lives.get(number, 0) > incarnation and incarnation == _last_before(ended, number):
            assert end == cutover
    for number, incarnation in lives.items():
        if number < count:
            assert end_of_life(known, number, incarnation) is None


def _last_before(ended: list[tuple[int, int, int]], partition: int) -> int:
    return max(incarnation for number, incarnation, _ in ended if number == partition)
