"""Message ids of a partition: each is known for the window, and no longer; bounded; cut with the log."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from dataplane.replica.derived.dedup_window import (
    LONG,
    MOST,
    NO_IDS,
    SPACING,
    IdMarks,
    MessageIds,
    decode_marks,
    encode_marks,
    kept_form,
)
from wire.types import Offset

WINDOW_MS = 2048
WINDOW = WINDOW_MS * 1_000_000
TICK = WINDOW // 1024


def test_an_id_is_known_for_the_window_and_a_tick_at_most() -> None:
    ids = MessageIds(WINDOW_MS, 100)
    ids.add(b"a", Offset(5), 1000)
    assert ids.find(b"a", 1000) == 5
    assert ids.find(b"b", 1000) is None
    assert ids.find(b"a", 1000 + WINDOW - 1) == 5
    assert ids.find(b"a", 1000 + WINDOW) is None
    assert ids.count == 0


def test_a_clock_that_goes_back_forgets_nothing_and_keeps_nothing_longer() -> None:
    ids = MessageIds(WINDOW_MS, 100)
    ids.add(b"a", Offset(1), 5 * WINDOW)
    ids.add(b"b", Offset(2), WINDOW)
    assert ids.find(b"b", 0) == 2
    assert ids.find(b"b", 6 * WINDOW - 1) == 2
    assert ids.find(b"b", 6 * WINDOW) is None


def test_ids_that_came_before_the_log_had_a_time_count_from_its_first_one() -> None:
    ids = MessageIds(WINDOW_MS, 100)
    ids.add(b"a", Offset(1), 0)
    assert ids.find(b"a", 0) == 1
    assert ids.find(b"a", 100 * WINDOW) == 1
    ids.add(b"b", Offset(2), 100 * WINDOW + WINDOW // 2)
    assert ids.find(b"a", 101 * WINDOW - 1) == 1
    assert ids.find(b"a", 101 * WINDOW) is None
    assert ids.find(b"b", 101 * WINDOW) == 2
    ids.validate()


def test_an_id_that_was_stored_again_after_its_window_counts_anew() -> None:
    ids = MessageIds(WINDOW_MS, 100)
    ids.add(b"a", Offset(1), WINDOW)
    ids.add(b"other", Offset(2), 3 * WINDOW // 2)
    assert ids.find(b"a", 2 * WINDOW) is None
    ids.add(b"a", Offset(3), 2 * WINDOW)
    assert ids.find(b"a", 2 * WINDOW) == 3
    assert ids.find(b"a", 3 * WINDOW - 1) == 3


def test_a_cut_that_leaves_only_ids_of_before_the_window_leaves_none() -> None:
    ids = MessageIds(WINDOW_MS, 100)
    ids.add(b"old", Offset(0), TICK)
    ids.add(b"kept", Offset(1), 4 * TICK)
    ids.add(b"cut", Offset(2), WINDOW + 2 * TICK)
    ids.cut(Offset(1))
    assert (ids.find(b"old", 0), ids.find(b"kept", 0), ids.count) == (None, None, 0)
    ids.validate()


def test_without_a_window_only_the_last_id_is_known() -> None:
    ids = MessageIds(0, 100)
    ids.add(b"a", Offset(4), 0)
    assert not ids.is_on
    assert ids.find(b"a", 0) is None
    assert (ids.last_id(Offset(5)), ids.last_id(Offset(6)), ids.count) == (b"a", None, 0)


def test_the_last_id_is_that_of_the_last_record() -> None:
    ids = MessageIds(WINDOW_MS, 100)
    assert ids.last_id(Offset(0)) is None
    ids.add(b"a", Offset(0), 0)
    assert ids.last_id(Offset(1)) == b"a"
    assert ids.last_id(Offset(2)) is None, "a record without an id came after it"
    ids.cut(Offset(0))
    assert ids.last_id(Offset(1)) is None


def test_a_log_that_is_read_again_is_learned_once() -> None:
    ids = MessageIds(WINDOW_MS, 100)
    ids.learn(b"a", Offset(0), 0)
    ids.learn(b"b", Offset(1), 0)
    ids.learn(b"a", Offset(0), 0)
    assert (ids.find(b"a", 0), ids.count) == (0, 2)
    ids.validate()


def test_ids_have_bounds() -> None:
    ids = MessageIds(WINDOW_MS, 16)
    for number in range(16):
        assert ids.has_room()
        ids.add(b"%d" % number, Offset(number), number)
    assert not ids.has_room()
    ids.go_on_to(WINDOW + 8 * TICK)
    assert ids.has_room()


def test_long_ids_are_kept_as_hashes_that_are_no_id_of_another() -> None:
    short, long = b"x" * LONG, b"x" * (LONG + 1)
    assert kept_form(short) == short
    assert len(kept_form(long)) == 65
    assert kept_form(kept_form(long)) != kept_form(long)
    assert kept_form(long) != kept_form(long + b"x")


class Ids(RuleBasedStateMachine):
    """Against a list of all that was ever stored."""

    def __init__(self) -> None:
        super().__init__()
        self.ids = MessageIds(WINDOW_MS, 10_000)
        self.log: list[tuple[bytes, int]] = []
        """(id, time) by offset."""
        self.time = 1

    def expected(self, message_id: bytes, age: int) -> int | None:
        """The newest record with the id that is not older than that."""
        found = [o for o, (each, time) in enumerate(self.log) if each == message_id and self.time - time < age]
        return found[-1] if found else None

    @rule(wait=st.sampled_from([0, 1, TICK, TICK * 3, WINDOW // 9, WINDOW // 3, WINDOW - 1, WINDOW]))
    def passes(self, wait: int) -> None:
        self.time += wait

    @rule(number=st.integers(0, 30))
    def publish(self, number: int) -> None:
        message_id = b"%d" % number
        found = self.ids.find(message_id, self.time)
        assert found in (self.expected(message_id, WINDOW), self.expected(message_id, WINDOW + 2 * TICK))
        if found is None:
            self.ids.add(message_id, Offset(len(self.log)), self.time)
            self.log.append((message_id, self.time))

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        end = data.draw(st.integers(0, len(self.log)))
        self.ids.cut(Offset(end))
        del self.log[end:]

    @invariant()
    def sound(self) -> None:
        self.ids.validate()


TestIds = Ids.TestCase
TestIds.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


# ---- marks


def test_no_marks_no_ids() -> None:
    assert NO_IDS.begin(0) is None
    assert decode_marks(encode_marks(NO_IDS)) == NO_IDS


@given(st.lists(st.integers(0, 3 * SPACING), min_size=1, max_size=400), st.data())
def test_marks_begin_before_every_batch_of_the_window(gaps: list[int], data: st.DataObject) -> None:
    marks, time, batches = NO_IDS, 0, []
    for offset, gap in enumerate(gaps):
        time += gap
        batches.append((time, offset))
        marks = marks.with_batch(time, offset)
    assert len(marks.marks) <= MOST
    assert decode_marks(encode_marks(marks)) == marks
    cutoff = data.draw(st.integers(0, time + SPACING))
    wanted = [offset for at, offset in batches if at >= cutoff]
    begin = marks.begin(cutoff)
    if wanted:
        assert begin is not None
        assert begin <= wanted[0]
    else:
        assert begin is None


def test_marks_of_the_newest_batches_are_close() -> None:
    marks = IdMarks()
    for number in range(10_000):
        marks = marks.with_batch(number * SPACING, number)
    begin = marks.begin(9_990 * SPACING)
    assert begin is not None
    assert 9_980 <= begin <= 9_990
