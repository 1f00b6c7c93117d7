from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_connector.reads.checkpoint_positions import Position, Positions, StreamPosition, from_json, to_json
from spark_connector.reads.log_port import OffsetRange, PartitionExtent, StreamExtent
from spark_connector.reads.plans import (
    Extents,
    carried_on,
    common,
    in_key_order,
    limited,
    offsets_behind,
    only_grows,
    positions_at,
    positions_of,
    ranges_between,
    reachable_ends,
    split,
    waiting_records,
    within_logs,
)
from spark_connector.reads.read_options import Edge
from wire.errors import Code, TidelogError
from wire.layouts import NOT_REPORTED, Layout
from wire.types import Incarnation, Offset, StreamName

FLIGHTS = StreamName("flights")
LIFE = Incarnation(7)


def extents(*held: tuple[int, int], incarnation: int = LIFE, log_end: int | None = None) -> Extents:
    life = Incarnation(incarnation)
    partitions = {
        i: PartitionExtent(life, Offset(start), Offset(end), Offset(log_end or end))
        for i, (start, end) in enumerate(held)
    }
    return {FLIGHTS: StreamExtent(FLIGHTS, life, partitions)}


def at(*offsets: int) -> Positions:
    return {FLIGHTS: StreamPosition(LIFE, {i: Position(LIFE, Offset(offset)) for i, offset in enumerate(offsets)})}


def offsets(positions: Positions) -> list[int]:
    return [position.offset for _, position in sorted(positions[FLIGHTS].partitions.items())]


def spans(ranges: list[OffsetRange]) -> list[tuple[int, int, int]]:
    return [(part.partition, part.start, part.end) for part in ranges]


class TestPositions:
    def test_the_form_in_the_checkpoint(self) -> None:
        position = {FLIGHTS: StreamPosition(LIFE, {0: Position(LIFE, Offset(123))})}
        partitions = {"0": {"incarnation": 7, "offset": 123}}
        form = {"v": 1, "streams": {"flights": {"incarnation": 7, "partitions": partitions}}}
        assert to_json(position) == form
        assert from_json(form) == position

    def test_equal_positions_are_written_alike(self) -> None:
        one, two = Position(LIFE, Offset(1)), Position(LIFE, Offset(2))
        a = {StreamName(n): StreamPosition(LIFE, {10: one, 9: two}) for n in ("b", "a")}
        b = {StreamName(n): StreamPosition(LIFE, {9: two, 10: one}) for n in ("a", "b")}
        assert str(to_json(a)) == str(to_json(b))

    def test_another_version_is_refused(self) -> None:
        with pytest.raises(TidelogError, match="version 2"):
            from_json({"v": 2, "streams": {}})

    def test_damage_is_refused(self) -> None:
        with pytest.raises(TidelogError, match="damaged"):
            from_json({"v": 1, "streams": {"flights": {"incarnation": 7}}})


class TestContinue:
    def test_a_recreated_stream_is_refused_or_joins_where_its_log_begins(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        again = extents((2, 9), incarnation=8)
        with pytest.raises(TidelogError, match="stream 'flights' was deleted and created again") as caught:
            carried_on(at(5), again, fail_on_data_loss=True)
        assert caught.value.code is Code.WRONG_INCARNATION
        begin = carried_on(at(5), again, fail_on_data_loss=False)
        assert "reads the new one from its beginning" in caplog.text
        joined = reachable_ends(begin, again, None)
        assert offsets(joined) == [2]
        assert ranges_between(at(5), joined) == []
        assert spans(ranges_between(joined, positions_at(again, Edge.LATEST))) == [(0, 2, 9)]

    def test_a_stream_of_which_an_earlier_life_is_told_is_refused_whatever_the_option_says(self) -> None:
        for strict in (True, False):
            with pytest.raises(TidelogError, match="of an earlier stream"):
                carried_on(at(5), extents((0, 9), incarnation=6), fail_on_data_loss=strict)

    def test_positions_of_two_lives_of_a_stream_are_no_range(self) -> None:
        """Also where the partitions have the same incarnation."""
        other = {FLIGHTS: replace(at(9)[FLIGHTS], incarnation=Incarnation(8))}
        assert ranges_between(at(5), other) == []

    def test_a_partition_of_which_an_earlier_life_is_told_is_refused_whatever_the_option_says(self) -> None:
        newer = {FLIGHTS: StreamPosition(LIFE, {0: Position(Incarnation(8), Offset(5))})}
        for strict in (True, False):
            with pytest.raises(TidelogError, match=r"flights/0 has incarnation 7, and the checkpoint .* later one, 8"):
                carried_on(newer, extents((0, 9)), fail_on_data_loss=strict)

    def test_lost_records_are_refused_unless_told(self) -> None:
        with pytest.raises(TidelogError, match="begins at 6") as caught:
            carried_on(at(5), extents((6, 9)), fail_on_data_loss=True)
        assert caught.value.code is Code.OFFSET_BEFORE_LOG
        assert carried_on(at(5), extents((6, 9)), fail_on_data_loss=False) == at(5)

    def test_a_log_that_was_cut_is_told_or_gone_on_with_at_its_end(self, caplog: pytest.LogCaptureFixture) -> None:
        cut = extents((0, 7), log_end=9)
        with pytest.raises(TidelogError, match="read up to 10 but its log ends at 9") as caught:
            carried_on(at(10), cut, fail_on_data_loss=True)
        assert caught.value.code is Code.LOG_TRUNCATED
        begin = carried_on(at(10), cut, fail_on_data_loss=False)
        assert "its log ends at 9" in caplog.text
        ends = reachable_ends(begin, cut, None)
        # Offsets 7 and 8 were read: they are committed sooner or later, and not read again.
        assert offsets(ends) == [9]
        assert waiting_records(begin, ends, cut) == {(FLIGHTS, 0): 0}
        assert ranges_between(begin, ends) == []

    def test_a_new_leader_that_has_not_committed_everything_yet_is_no_loss(self) -> None:
        late = extents((0, 7), log_end=10)
        assert offsets(reachable_ends(carried_on(at(10), late, fail_on_data_loss=True), late, None)) == [10]

    def test_a_stream_that_is_not_read_any_more_is_refused_or_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        both = {StreamName("other"): at(1)[FLIGHTS], **at(5)}
        with pytest.raises(TidelogError, match="stream 'other', which the checkpoint reads") as caught:
            carried_on(both, extents((0, 9)), fail_on_data_loss=True)
        assert caught.value.code is Code.UNKNOWN_STREAM
        assert carried_on(both, extents((0, 9)), fail_on_data_loss=False) == at(5)
        assert "stream 'other', which the checkpoint reads" in caplog.text

    def test_a_partition_that_is_not_read_any_more_is_refused_or_left_out(self) -> None:
        with pytest.raises(TidelogError, match="partition flights/1, which the checkpoint reads") as caught:
            carried_on(at(5, 6), extents((0, 9)), fail_on_data_loss=True)
        assert caught.value.code is Code.PARTITION_RETIRED
        assert carried_on(at(5, 6), extents((0, 9)), fail_on_data_loss=False) == at(5)


TWO = Layout(version=1, partitions=2)
ONE = Layout(version=2, partitions=1, generation=20, starts=(4, 6))
TWO_AGAIN = Layout(version=3, partitions=2, generation=30, starts=(5,))
NEXT_LIFE = Incarnation(29)


def left_over(*layouts: Layout, anew: tuple[int, int] | None = None) -> Extents:
    """Partition 0, and 1 made anew where it has a log start and an end."""
    extent = extents((0, 9))[FLIGHTS]
    partitions = dict(extent.partitions)
    if anew is not None:
        partitions[1] = PartitionExtent(NEXT_LIFE, Offset(anew[0]), Offset(anew[1]), Offset(anew[1]))
    return {FLIGHTS: replace(extent, partitions=partitions, layouts=layouts)}


class TestPartitionsThatWereLeftOver:
    @pytest.mark.parametrize("strict", [True, False])
    @pytest.mark.parametrize("offset", [6, 7])
    @pytest.mark.parametrize(
        "now",
        [
            left_over(TWO, ONE),
            left_over(TWO, ONE, TWO_AGAIN, anew=(0, 3)),
            left_over(TWO, ONE, TWO_AGAIN, replace(ONE, version=4, generation=40, starts=(8, 99))),
        ],
        ids=["gone", "made anew", "gone, as its next life"],
    )
    def test_one_that_was_read_to_its_cutover_is_finished(
        self, now: Extents, offset: int, strict: bool, caplog: pytest.LogCaptureFixture
    ) -> None:
        assert carried_on(at(5, offset), now, fail_on_data_loss=strict) == at(5)
        assert not caplog.records

    def test_one_that_is_gone_before_it_was_read_is_refused_or_left_out(self, caplog: pytest.LogCaptureFixture) -> None:
        with pytest.raises(TidelogError, match="partition flights/1, which the checkpoint reads") as caught:
            carried_on(at(5, 5), left_over(TWO, ONE), fail_on_data_loss=True)
        assert caught.value.code is Code.PARTITION_RETIRED
        assert carried_on(at(5, 5), left_over(TWO, ONE), fail_on_data_loss=False) == at(5)
        assert "partition flights/1, which the checkpoint reads" in caplog.text

    def test_one_that_is_made_anew_before_it_was_read_is_refused_or_begun_anew(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        now = left_over(TWO, ONE, TWO_AGAIN, anew=(0, 3))
        with pytest.raises(TidelogError, match=r"flights/1 was removed and made anew .* behind offset 5") as caught:
            carried_on(at(5, 5), now, fail_on_data_loss=True)
        assert caught.value.code is Code.WRONG_INCARNATION
        begin = carried_on(at(5, 5), now, fail_on_data_loss=False)
        assert begin == at(5)
        assert "flights/1 was removed and made anew" in caplog.text
        assert reachable_ends(begin, now, None)[FLIGHTS].partitions[1] == Position(NEXT_LIFE, Offset(0))

    def test_one_that_was_used_again_is_finished_at_its_last_cutover(self) -> None:
        used = replace(TWO_AGAIN, starts=(5, 7))
        now = left_over(TWO, ONE, used, replace(ONE, version=4, generation=40, starts=(8, 99)))
        with pytest.raises(TidelogError, match="partition flights/1"):
            carried_on(at(5, 98), now, fail_on_data_loss=True)
        assert carried_on(at(5, 99), now, fail_on_data_loss=True) == at(5)

    def test_one_whose_end_is_not_known_is_refused_or_left_out(self) -> None:
        for layouts in ((), (TWO,), (ONE,), (TWO, replace(ONE, starts=(4, NOT_REPORTED)))):
            with pytest.raises(TidelogError, match="partition flights/1"):
                carried_on(at(5, 100), left_over(*layouts), fail_on_data_loss=True)
            assert carried_on(at(5, 100), left_over(*layouts), fail_on_data_loss=False) == at(5)

    def test_it_does_not_end_below_what_is_planned(self) -> None:
        """Records without a version may have come behind the cutover."""
        with pytest.raises(TidelogError, match="partition flights/1"):
            carried_on(at(5, 6), left_over(TWO, ONE), fail_on_data_loss=True, planned=at(5, 7))
        assert carried_on(at(5, 7), left_over(TWO, ONE), fail_on_data_loss=True, planned=at(5, 7)) == at(5)

    def test_positions_of_two_lives_are_not_compared(self) -> None:
        anew = left_over(TWO, ONE, TWO_AGAIN, anew=(8, 12))
        ends = reachable_ends(at(9), anew, None)
        assert ends[FLIGHTS].partitions[1] == Position(NEXT_LIFE, Offset(8))
        assert ranges_between(at(9, 6), ends) == []
        assert waiting_records(at(9, 6), ends, anew) == {(FLIGHTS, 0): 0}
        assert common(at(9, 6), ends) == at(9)
        assert offsets_behind(at(9, 6), ends)["maxOffsetsBehindLatest"] == 8
        assert within_logs(at(9, 60), anew, fail_on_data_loss=True) == at(9, 60)
        began = {FLIGHTS: StreamPosition(LIFE, {**at(9)[FLIGHTS].partitions, 1: Position(NEXT_LIFE, Offset(8))})}
        assert offsets(reachable_ends(began, anew, at(9, 10))) == [9, 8], "10 is where an earlier life was to end"


class TestExplicitOffsets:
    def test_checked_against_the_log(self) -> None:
        found = positions_of(
            extents((2, 9), (0, 4)),
            {FLIGHTS: {0: Edge.EARLIEST, 1: Offset(4)}},
            "startingOffsets",
            fail_on_data_loss=True,
        )
        assert offsets(found) == [2, 4]

    @pytest.mark.parametrize(
        ("explicit", "says"),
        [
            ({0: Offset(3)}, "partitions 0 of stream 'flights', and the query reads partitions 0, 1"),
            ({0: Offset(10), 1: Offset(0)}, "flights/0 is 10, beyond the committed log, which ends at 9"),
            ({0: Offset(1), 1: Offset(0)}, "flights/0 is 1, but the log begins at 2"),
        ],
    )
    def test_refusals(self, explicit: dict[int, Offset | Edge], says: str) -> None:
        with pytest.raises(TidelogError, match=says):
            positions_of(extents((2, 9), (0, 4)), {FLIGHTS: explicit}, "startingOffsets", fail_on_data_loss=True)


def next_end(start: Positions, logs: Extents, *, target: Positions | None = None, most: int | None = None) -> Positions:
    ends = reachable_ends(start, logs, target)
    return ends if most is None else limited(ends, waiting_records(start, ends, logs), most)


class TestNextEnd:
    def test_everything_when_there_is_no_limit(self) -> None:
        assert offsets(next_end(at(0, 3), extents((0, 10), (0, 4)))) == [10, 4]

    def test_a_limit_is_shared_in_proportion_and_used_up(self) -> None:
        assert offsets(next_end(at(0, 0), extents((0, 90), (0, 10)), most=10)) == [9, 1]
        assert offsets(next_end(at(0, 0, 0), extents((0, 5), (0, 5), (0, 5)), most=4)) == [2, 1, 1]

    def test_small_partitions_are_not_starved(self) -> None:
        logs = extents((0, 20_000), (0, 3), (0, 0))
        assert offsets(next_end(at(0, 0, 0), logs, most=1000)) == [999, 1, 0]
        assert offsets(next_end(at(0, 0, 0), logs, most=1)) == [1, 1, 0], "one of each, though that is more"

    def test_a_limit_is_shared_as_by_the_source_of_kafka(self) -> None:
        """Spark's own test of it (KafkaMicroBatchSourceSuite, "maxOffsetsPerTrigger") has 101, 11 and 1 records, and
        expects with a limit of 10: 100 to 107, 10, and 1; then 108 to 116 and 11; then 117 to 125 and 12."""
        logs = extents((0, 101), (0, 11), (0, 1))
        first = next_end(at(0, 0, 0), logs, most=10)
        second = next_end(first, logs, most=10)
        assert [offsets(each) for each in (first, second, next_end(second, logs, most=10))] == [
            [8, 1, 1],
            [17, 2, 1],
            [26, 3, 1],
        ]

    def test_never_past_the_target(self) -> None:
        assert offsets(next_end(at(0, 0), extents((0, 10), (0, 10)), target=at(4, 5))) == [4, 5]

    def test_a_start_past_the_target_has_nothing_to_read(self) -> None:
        assert offsets(next_end(at(6), extents((0, 10)), target=at(4))) == [6]

    def test_what_is_new_joins_where_its_log_begins_before_it_is_read(self) -> None:
        logs = extents((0, 10), (3, 8))
        joined = next_end(at(4), logs)
        assert offsets(joined) == [10, 3]
        assert spans(ranges_between(at(4), joined)) == [(0, 4, 10)]
        assert spans(ranges_between(joined, next_end(joined, logs))) == [(1, 3, 8)]
        assert next_end({}, logs) == positions_at(logs, Edge.EARLIEST)

    def test_what_is_new_after_the_target_is_left_out(self) -> None:
        assert offsets(next_end(at(4), extents((0, 10), (0, 8)), target=at(10))) == [10]
        assert next_end({}, extents((0, 10)), target={}) == {}
        # A partition that came back to the query after the target was taken stays where it is.
        assert offsets(next_end(at(4, 2), extents((0, 10), (0, 8)), target=at(10))) == [10, 2]

    def test_only_growth_can_wait(self) -> None:
        assert only_grows(at(1, 2), at(1, 3))
        assert not only_grows(at(1, 2), at(1, 1))
        assert not only_grows(at(1), at(1, 0))
        assert not only_grows(at(1), {})

    @given(
        held=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=5),
        limit=st.integers(1, 60),
    )
    def test_limited_steps_reach_the_end_without_gap_or_repeat(self, held: list[tuple[int, int]], limit: int) -> None:
        logs = extents(*((start, start + size) for start, size in held))
        position = positions_at(logs, Edge.EARLIEST)
        steps = 0
        while (end := next_end(position, logs, most=limit)) != position:
            granted = sum(b - a for a, b in zip(offsets(position), offsets(end), strict=True))
            waiting = sum(
                a < b for a, b in zip(offsets(position), offsets(positions_at(logs, Edge.LATEST)), strict=True)
            )
            assert 0 < granted <= max(limit, waiting)
            assert sum(a < b for a, b in zip(offsets(position), offsets(end), strict=True)) == waiting, "none starves"
            assert all(b >= a for a, b in zip(offsets(position), offsets(end), strict=True))
            position = end
            steps += 1
            assert steps <= 250
        assert position == positions_at(logs, Edge.LATEST)
        assert steps <= -(-sum(size for _, size in held) // limit)


class TestRanges:
    def test_empty_ones_are_left_out(self) -> None:
        assert spans(ranges_between(at(0, 4), at(10, 4))) == [(0, 0, 10)]

    def test_a_partition_that_is_not_in_the_start_joins_without_records(self) -> None:
        assert spans(ranges_between(at(3), at(5, 2))) == [(0, 3, 5)]
        assert ranges_between({}, at(5, 2)) == []

    def test_what_both_positions_have(self) -> None:
        assert common(at(3, 4), at(9)) == at(3)
        assert common(at(3), {}) == {}

    def test_ranges_are_cut_to_the_most_and_then_to_the_minimum(self) -> None:
        whole = ranges_between(at(0, 0), at(100, 10))
        assert spans(split(whole, 1, 40)) == [(0, 0, 33), (0, 33, 66), (0, 66, 100), (1, 0, 10)]
        assert len(split(whole, 9, 40)) >= 9
        assert all(len(part) <= 40 for part in split(whole, 9, 40))

    @given(sizes=st.lists(st.integers(1, 100), min_size=1, max_size=6), minimum=st.integers(1, 40))
    def test_split_covers_each_range_once(self, sizes: list[int], minimum: int) -> None:
        whole = ranges_between(at(*(0 for _ in sizes)), at(*sizes))
        parts = split(whole, minimum)
        assert len(parts) >= min(minimum, sum(sizes))
        assert all(len(part) for part in parts)
        for one in whole:
            mine = [part for part in parts if part.partition == one.partition]
            assert mine[0].start == one.start
            assert mine[-1].end == one.end
            assert all(a.end == b.start for a, b in pairwise(mine))


def test_how_far_a_query_is_behind() -> None:
    assert offsets_behind(at(4, 10), at(10, 10)) == {
        "minOffsetsBehindLatest": 0,
        "maxOffsetsBehindLatest": 6,
        "avgOffsetsBehindLatest": 3.0,
    }
    assert offsets_behind({}, {})["maxOffsetsBehindLatest"] == 0


class Repartitioned:
    """A stream whose keys are numbers, and whose cutovers are told at once. Each partition's log has (key, number)."""

    def __init__(self, partitions: int) -> None:
        self.layouts = [Layout(version=1, partitions=partitions)]
        self.logs: dict[int, list[tuple[int, int]]] = {number: [] for number in range(partitions)}
        self.lives = dict.fromkeys(range(partitions), 7)
        self.count = 0

    def append(self, key: int) -> None:
        self.count += 1
        self.logs[key % self.layouts[-1].partitions].append((key, self.count))

    def repartition(self, partitions: int) -> None:
        if partitions == self.layouts[-1].partitions:
            return
        version = self.layouts[-1].version + 1
        existing = max(self.logs) + 1
        for number in range(existing, partitions):
            self.logs[number], self.lives[number] = [], 10 * version
        starts = tuple(len(self.logs[number]) for number in range(existing))
        self.layouts.append(Layout(version=version, partitions=partitions, generation=10 * version + 5, starts=starts))

    def extents(self, ends: dict[int, int]) -> Extents:
        partitions = {
            number: PartitionExtent(
                Incarnation(self.lives[number]), Offset(0), Offset(end), Offset(len(self.logs[number]))
            )
            for number, end in ends.items()
        }
        return {FLIGHTS: StreamExtent(FLIGHTS, LIFE, partitions, tuple(self.layouts))}


@settings(max_examples=300, deadline=None)
@given(
    first=st.integers(1, 4),
    history=st.lists(st.one_of(st.integers(0, 11), st.integers(-6, -1)), max_size=60),
    data=st.data(),
)
def test_the_records_of_a_key_come_in_their_order_whatever_happened_to_the_layout(
    first: int, history: list[int], data: st.DataObject
) -> None:
    """A number from 0 on is the key of a record, one below 0 another number of partitions."""
    stream = Repartitioned(first)
    for step in history:
        if step >= 0:
            stream.append(step)
        else:
            stream.repartition(-step)
    position: Positions = {FLIGHTS: StreamPosition(LIFE, {})}
    newest: dict[int, int] = {}
    read = 0
    for turn in range(200):
        ends = {
            number: len(log) if turn >= 30 else data.draw(st.integers(0, len(log)))
            for number, log in stream.logs.items()
        }
        known = stream.extents(ends)
        planned = in_key_order(position, reachable_ends(position, known, None), known)
        if turn > 30 and planned == position:
            break
        of_key: dict[int, list[int]] = {}
        came_from: dict[int, set[int]] = {}
        for part in ranges_between(position, planned):
            for key, number in stream.logs[part.partition][part.start : part.end]:
                of_key.setdefault(key, []).append(number)
                came_from.setdefault(key, set()).add(part.partition)
                read += 1
        assert all(len(partitions) == 1 for partitions in came_from.values()), "between them there is no order"
        for key, numbers in of_key.items():
            assert min(numbers) > newest.get(key, 0)
            newest[key] = max(numbers)
        position = planned
    assert read == stream.count, "nothing waits for ever"
