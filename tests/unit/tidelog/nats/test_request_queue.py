"""Requests that wait for an endpoint, and share its answers."""

from __future__ import annotations

import asyncio

from tidelog.nats.pace import Pace
from tidelog.nats.request_queue import MAX_WAITING_ALIKE, WAITING_REQUESTS, Asked, RequestQueue
from wire.messaging.transport import Message


class Work:
    """`begun`: what each round answered; a round ends when it is let go."""

    def __init__(self) -> None:
        self.begun: list[tuple[bytes, int]] = []
        self.go = asyncio.Semaphore(0)

    async def __call__(self, asked: Asked) -> None:
        self.begun.append((asked.first.data, asked.requests))
        await self.go.acquire()

    def queue(self, *, at_once: int = 4) -> RequestQueue:
        pace = Pace(lambda: 0.0)
        return RequestQueue(pace, lambda message: message.data, self, at_once=at_once)


def request(data: bytes = b"", reply: str | None = "_INBOX.a") -> Message:
    return Message("api", data, reply)


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_round_answers_all_that_asked_before_it_began_and_no_other() -> None:
    work = Work()
    queue = work.queue()
    for _ in range(100):
        assert queue.add(request(b"q"))
    await turns()
    for _ in range(50):
        assert queue.add(request(b"q"))
    await turns()
    assert work.begun == [(b"q", 100)], "the second round waits for the end of the first"
    work.go.release()
    await turns()
    assert work.begun == [(b"q", 100), (b"q", 50)]
    await queue.close()


async def test_other_questions_do_not_wait_until_too_many_are_in_work() -> None:
    work = Work()
    queue = work.queue(at_once=2)
    for data in (b"a", b"a", b"b", b"c"):
        assert queue.add(request(data))
    await turns()
    assert queue.add(request(b"a"))
    await turns()
    assert work.begun == [(b"a", 2), (b"b", 1)]
    work.go.release()
    await turns()
    assert work.begun[2:] == [(b"c", 1)]
    work.go.release()
    work.go.release()
    await turns()
    assert work.begun[3:] == [(b"a", 1)]
    await queue.close()


async def test_a_question_that_comes_while_another_waits_for_its_second_round_begins_at_once() -> None:
    """A flood of one question, each round of which takes seconds, does not hold up the others."""
    work = Work()
    queue = work.queue()
    for data in (b"a", b"a"):
        assert queue.add(request(data))
        await turns()
    assert queue.add(request(b"b"))
    await turns()
    assert work.begun == [(b"a", 1), (b"b", 1)]
    await queue.close()


async def test_so_many_requests_wait_and_no_more() -> None:
    work = Work()
    queue = work.queue()
    many = [b"%d" % number for number in range(WAITING_REQUESTS.items + 2)]
    assert [queue.add(request(data)) for data in many] == [True] * WAITING_REQUESTS.items + [False] * 2
    await turns()
    assert [queue.add(request(b"x%d" % number)) for number in range(5)] == [True] * 4 + [False]
    work.go.release()
    await turns()
    assert queue.add(request(b"q")), "those that are in work do not wait any more"
    await queue.close()


async def test_so_many_requests_that_ask_the_same_wait_and_no_more() -> None:
    """Others have room beside them."""
    work = Work()
    queue = work.queue()
    most = [True] * MAX_WAITING_ALIKE + [False] * 2
    assert [queue.add(request(b"q")) for _ in most] == most
    await turns()
    assert [queue.add(request(b"q")) for _ in most] == most
    assert queue.add(request(b"another"))
    work.go.release()
    await turns()
    assert queue.add(request(b"q")), "those that are in work do not wait any more"
    await queue.close()


async def test_so_many_bytes_wait_and_no_more() -> None:
    work = Work()
    queue = work.queue()
    large = bytes(WAITING_REQUESTS.bytes)
    assert queue.add(request(large + b"alone"))
    assert not queue.add(request(b"another"))
    assert queue.add(request(large + b"alone")), "it shares the question that waits"
    await turns()
    half = bytes(WAITING_REQUESTS.bytes // 2)
    assert [queue.add(request(half + end)) for end in (b"", b"more")] == [True, False], "what is in work does not count"
    work.go.release()
    await turns()
    assert queue.add(request(b"a"))
    assert queue.add(request(b"b"))
    await queue.close()


async def test_a_request_without_a_reply_is_carried_out() -> None:
    work = Work()
    queue = work.queue()
    assert queue.add(request(b"q", reply=None))
    await turns()
    assert work.begun == [(b"q", 1)]
    await queue.close()


async def test_what_waits_at_the_end_is_not_begun() -> None:
    work = Work()
    queue = work.queue()
    queue.add(request(b"a"))
    await turns()
    queue.add(request(b"a"))
    queue.add(request(b"b"))
    await queue.close()
    await turns()
    assert work.begun == [(b"a", 1)]
    assert not asyncio.all_tasks() - {asyncio.current_task()}


async def test_a_request_that_finds_the_queue_full_is_not_decoded() -> None:
    looked_at: list[bytes] = []

    def question(message: Message) -> bytes:
        looked_at.append(message.data)
        return message.data

    queue = RequestQueue(Pace(lambda: 0.0), question, Work(), at_once=1)
    for number in range(WAITING_REQUESTS.items):
        assert queue.add(request(b"%d" % number))
    looked_at.clear()
    assert not queue.add(request(b"one more"))
    assert not looked_at
    await queue.close()
