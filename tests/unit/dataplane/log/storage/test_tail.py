"""The tails of many logs are bounded together; records outside of them are read from disk."""

from __future__ import annotations

from dataplane.log.storage.tail import Tail, TailMemory


def filled(memory: TailMemory, batches: int) -> Tail:
    tail = Tail(1 << 20, memory)
    for number in range(batches):
        tail.add(number, number + 1, 10, [bytes(10)])
    return tail


def test_the_tail_that_was_appended_to_the_longest_ago_is_emptied_for_the_others() -> None:
    memory = TailMemory(100)
    old, newer = filled(memory, 4), filled(memory, 4)
    old.add(4, 5, 10, [bytes(10)])
    assert memory.bytes == 90
    newest = filled(memory, 2)
    assert newer.read(3, 100, 4) is None
    assert old.read(4, 100, 5) == ([bytes(10)], 5)
    assert newest.read(0, 100, 2) == ([bytes(10)] * 2, 2)
    assert memory.bytes == 70


def test_one_tail_alone_keeps_its_full_size() -> None:
    memory = TailMemory(5)
    tail = filled(memory, 3)
    assert tail.read(0, 100, 3) == ([bytes(10)] * 3, 3)
    assert filled(memory, 1).read(0, 100, 1) == ([bytes(10)], 1)
    assert tail.read(2, 100, 3) is None


def test_an_emptied_tail_goes_on_with_the_next_batch() -> None:
    memory = TailMemory(15)
    tail = filled(memory, 1)
    filled(memory, 1)
    tail.add(1, 2, 10, [bytes(10)])
    assert tail.read(0, 100, 2) is None
    assert tail.read(1, 100, 2) == ([bytes(10)], 2)


def test_a_tail_out_of_use_takes_no_room() -> None:
    memory = TailMemory(100)
    tail = filled(memory, 9)
    memory.forget(tail)
    assert memory.bytes == 0
    memory.forget(tail)
    assert memory.bytes == 0
