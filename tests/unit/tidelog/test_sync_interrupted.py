"""Calls of the blocking client that a signal handler ends by an exception: what was not returned is given again.

An exception is raised wherever the interpreter looks for signals while a call is in `tidelog.sync`: where a function
begins or goes on, where a loop goes back, and behind a call. Here a trace function raises it, at the n-th such point,
for all n; before that, the client's loop does what it has to do: the work of the call is done though its caller goes.
"""

from __future__ import annotations

import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import pytest

import tidelog
from tests.unit.tidelog.client.fake_broker import FakeBroker, make
from tests.unit.tidelog.client.fake_coordinator import FakeCoordinator
from tests.unit.tidelog.client.fake_transactions import FakeTransactions
from tidelog import facade, loop_thread, sync
from tidelog.loop_thread import LoopThread
from wire.operations.api_operations import GROUP_COORDINATOR

pytestmark = pytest.mark.filterwarnings(
    "ignore:coroutine .* was never awaited:RuntimeWarning",
    "ignore:Exception ignored in:pytest.PytestUnraisableExceptionWarning",  # an alarm within a finalizer
)

HERE = {facade.__file__, loop_thread.__file__, sync.__file__}
COUNT = 30


class Interrupted(BaseException):
    pass


@dataclass
class World:
    client: sync.Client
    broker: FakeBroker
    groups: FakeCoordinator
    thread: LoopThread

    @property
    def committed(self) -> int:
        return max((offset.offset for offset in self.groups.group("g").offsets.values()), default=0)

    def drain(self) -> None:
        """The loop does what it has to do."""
        for _ in range(5):
            done = threading.Event()
            self.thread._loop.call_soon_threadsafe(done.set)
            done.wait(30)


@pytest.fixture
def world() -> Iterator[World]:
    """With a stream `s` of one partition and thirty records, in batches of seven."""
    thread = LoopThread("test")

    def begin() -> tuple[FakeBroker, FakeCoordinator, Any]:
        transport, broker, inner = make()
        broker._api[GROUP_COORDINATOR.name] = lambda _: {"partition": 0}
        subject = broker.subjects.api(GROUP_COORDINATOR.name)
        transport.listen(subject, lambda message: broker._on_api(GROUP_COORDINATOR.name, message))
        broker.create("s")
        broker.create("out")
        for first in range(0, COUNT, 7):
            broker.seed("s", 0, [b"%d" % offset for offset in range(first, min(first + 7, COUNT))])
        FakeTransactions(transport, broker)
        streams = {name: (made["incarnation"], len(made["partitions"])) for name, made in broker.streams.items()}
        return broker, FakeCoordinator(transport, streams), inner

    broker, groups, inner = thread.call(begin)
    client = sync.Client(inner, thread)
    yield World(client, broker, groups, thread)
    client.close()


class Raising:
    """Raises at the n-th point, and once more `again` points later."""

    def __init__(self, world: World, nth: int, again: int | None = None) -> None:
        self._world = world
        self._at = [nth] if again is None else [nth, nth + again]
        self._seen = 0
        self.has_raised = False
        self._before: dict[FrameType, str] = {}

    @contextmanager
    def on(self) -> Iterator[None]:
        sys.settrace(self._trace)
        try:
            yield
        except Interrupted:
            pass
        finally:
            sys.settrace(None)
            self._before.clear()

    def _trace(self, frame: FrameType, event: str, _: object) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in HERE:
            return None
        if event == "call":
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            self._point()
        elif event == "opcode":
            name = opcodes(frame.f_code)[frame.f_lasti]
            before, self._before[frame] = self._before.get(frame, ""), name
            if name.startswith("JUMP_BACKWARD") or before.startswith("CALL"):
                self._point()
        elif event == "return" and frame.f_back is not None:
            self._before[frame.f_back] = ""  # behind a call of a function in Python nothing is looked for
        return self._trace

    def _point(self) -> None:
        self._seen += 1
        if self._seen in self._at:
            self.has_raised = True
            self._world.drain()
            raise Interrupted


_OPCODES: dict[CodeType, dict[int, str]] = {}


def opcodes(code: CodeType) -> dict[int, str]:
    if code not in _OPCODES:
        _OPCODES[code] = {found.offset: found.opname for found in dis.get_instructions(code)}
    return _OPCODES[code]


def each_point(
    world: World, try_once: Callable[[Raising], None], *, least: int, twice: tuple[int, ...] = (1, 4)
) -> None:
    """`least`: so many points there are at least, for a test that tests something. `twice`: how many points later
    another exception comes."""
    for again in (None, *twice):
        nth = 0
        while True:
            raising = Raising(world, nth := nth + 1, again)
            try_once(raising)
            if not raising.has_raised:
                break
        assert nth > least
    world.drain()


def taken(consumer: Any, how: str, raising: Raising) -> list[int]:
    """What an interrupted way to take records has given."""
    given: list[int] = []
    source: Any = iter(consumer) if how == "records" else consumer.batches()
    with raising.on():
        if how == "getone":
            for _ in range(3):
                record = consumer.getone()
                given.append(record.offset)
        elif how == "getmany":
            for _ in range(2):
                records = consumer.getmany(9)
                given += [record.offset for record in records]
        elif how == "records":
            for record in source:
                given.append(record.offset)
                if len(given) == 9:
                    break
        else:
            for batch in source:
                given += batch.offsets.tolist()
                if len(given) > 9:
                    break
    source.close()
    return given


@pytest.mark.parametrize("how", ["getone", "getmany"])
def test_an_interrupted_call_of_a_consumer_has_given_nothing(world: World, how: str) -> None:
    def try_once(raising: Raising) -> None:
        with world.client.consume("s", stop="latest") as consumer:
            given = taken(consumer, how, raising)
            assert given == [*range(len(given))]
            assert consumer.positions == {0: len(given)}, "as the program has it"
            rest = consumer.getmany(4)
            assert [record.offset for record in rest] == [*range(len(given), len(given) + len(rest))]
            assert len(rest) > 0
            found = [record.offset for record in consumer]
            assert given + [record.offset for record in rest] + found == [*range(COUNT)]

    each_point(world, try_once, least=20)


@pytest.mark.parametrize("how", ["records", "batches"])
def test_an_interrupted_iteration_leaves_the_position_behind_what_it_gave(world: World, how: str) -> None:
    def try_once(raising: Raising) -> None:
        consumer = world.client.consume("s", stop="latest")
        consumer.start()
        given = taken(consumer, how, raising)
        assert given == [*range(len(given))]
        assert consumer.positions == {0: len(given)}

    each_point(world, try_once, least=20)


@pytest.mark.parametrize("how", ["getone", "getmany", "records", "batches"])
def test_a_group_commits_nothing_that_an_interrupted_call_has_not_given(world: World, how: str) -> None:
    def try_once(raising: Raising) -> None:
        world.groups.group("g").offsets.clear()
        with world.client.subscribe("s", group="g", auto_commit_interval=60) as consumer:
            consumer.commit()
            given = taken(consumer, how, raising)
            assert given == [*range(len(given))]
            consumer.commit()
            assert world.committed == len(given)
            while len(given) < COUNT:
                given += [record.offset for record in consumer.getmany(4, timeout=30)]
            assert given == [*range(COUNT)]

    each_point(world, try_once, least=20)


def test_a_block_of_a_transaction_that_was_not_entered_has_begun_nothing(world: World) -> None:
    producer = world.client.producer(transactional_id="t", streams="out")
    producer.start()

    def try_once(raising: Raising) -> None:
        has_entered = False
        block = producer.transaction()
        with raising.on():
            block.__enter__()
            has_entered = True
        if has_entered:
            block.__exit__(None, None, None)
        world.drain()
        assert not producer.in_transaction
        with producer.transaction():
            pass

    each_point(world, try_once, least=3)
    producer.close()


def test_begin_and_the_outcome_of_a_commit_are_given_again(world: World) -> None:
    producer = world.client.producer(transactional_id="t", streams="out")
    producer.start()

    def begin(raising: Raising) -> None:
        has_begun = False
        with raising.on():
            producer.begin()
            has_begun = True
        world.drain()
        assert producer.in_transaction == has_begun
        producer.abort()

    def commit(raising: Raising) -> None:
        producer.begin()
        has_ended = False
        with raising.on():
            producer.commit()
            has_ended = True
        world.drain()
        if not has_ended:
            producer.commit()
        assert not producer.in_transaction

    each_point(world, begin, least=3)
    each_point(world, commit, least=3)
    producer.close()


def test_what_was_made_and_is_nobodys_is_closed(world: World) -> None:
    def used() -> int:
        world.drain()
        return len(world.client._inner._consumers) + len(world.client._inner._producers)

    def make_and_enter(raising: Raising) -> None:
        for making in (
            lambda: world.client.consume("s"),
            lambda: world.client.subscribe("s", group="g"),
            lambda: world.client.producer("s"),
            lambda: world.client.producer(transactional_id="t"),
        ):
            made: Any = None
            entered = None
            with raising.on():
                made = making()
                entered = made.__enter__()
            if made is None or entered is not None:
                assert used() == (made is not None)
            if made is not None:
                made.close()
            assert used() == 0

    each_point(world, make_and_enter, least=20, twice=())
    assert not world.groups.group("g").members


def test_an_error_that_is_told_once_is_told_to_the_caller(world: World) -> None:
    class Mine(Exception):
        pass

    def try_once(raising: Raising) -> None:
        def fail(_: object) -> None:
            raise Mine

        with suppress(Mine), world.client.subscribe("s", group="g", on_assigned=fail) as consumer:
            has_told = False
            with raising.on():
                try:
                    consumer.getone(timeout=30)
                except Mine:
                    has_told = True
            if not has_told:
                with pytest.raises(Mine):
                    consumer.getmany(4, timeout=30)

    each_point(world, try_once, least=5)


def test_a_connection_that_nobody_has_is_closed(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    made: list[Any] = []

    async def connect() -> Any:
        _, _, inner = make()
        made.append(inner)
        return inner

    call = sync._connecting(connect)
    before = threading.active_count()
    nth = 0
    while True:
        client = None
        raising = Raising(world, nth := nth + 1)
        with raising.on():
            client = call()
        if client is not None:
            client.close()
        assert all(inner._closed for inner in made)
        if not raising.has_raised:
            break
    assert nth > 5
    assert threading.active_count() <= before + nth, "of calls that were interrupted before there was a thread to end"


def test_calls_that_wait_when_the_client_is_closed_end(world: World) -> None:
    found: list[Exception] = []

    def wait() -> None:
        try:
            world.thread.run(threading_forever())
        except tidelog.Closed as error:
            found.append(error)

    async def threading_forever() -> None:
        import asyncio

        begun.set()
        await asyncio.Event().wait()

    begun = threading.Event()
    thread = threading.Thread(target=wait)
    thread.start()
    begun.wait(30)
    world.client.close()
    thread.join(30)
    assert len(found) == 1


class Flag:
    is_up = False


def test_alarms_lose_and_repeat_no_record(world: World) -> None:
    """Real signals, at times that nobody has chosen."""
    flag = Flag()

    def ring(*_: object) -> None:
        if flag.is_up:
            flag.is_up = False
            raise Interrupted

    before = signal.signal(signal.SIGALRM, ring)
    interrupted = 0
    try:
        for round_ in range(25):
            world.groups.group("g").offsets.clear()
            with world.client.subscribe("s", group="g", auto_commit_interval=60) as consumer:
                seen: list[int] = []
                left = 4
                while len(seen) < COUNT:
                    if left:
                        signal.setitimer(signal.ITIMER_REAL, (50 + 37 * (round_ + len(seen)) % 700) / 1e6)
                    try:
                        flag.is_up = True
                        records = consumer.getmany(3, timeout=30)
                        flag.is_up = False
                    except Interrupted:
                        interrupted, left = interrupted + 1, left - 1
                        continue
                    seen += [record.offset for record in records]
                consumer.commit()
            assert seen == [*range(COUNT)]
            assert world.committed == COUNT
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted > 0
