"""Files that are synced side by side have outcomes of their own, with the system's call for that and without it."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from dataplane.log.storage import side_by_side
from dataplane.log.storage.side_by_side import MOST_AT_ONCE, SideBySide, sync_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(params=["side by side", "one after the other"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "one after the other":
        monkeypatch.setattr(side_by_side, "_orders", lambda: None)
        return
    try:
        SideBySide()
    except OSError as error:
        pytest.skip(f"the system syncs no files side by side: {error}")


@pytest.fixture
def handles(tmp_path: Path) -> Iterator[list[int]]:
    made = [os.open(tmp_path / f"{n}", os.O_RDWR | os.O_CREAT) for n in range(MOST_AT_ONCE + 3)]
    yield made
    for handle in made:
        os.close(handle)


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("count", [0, 1, 2, MOST_AT_ONCE, MOST_AT_ONCE + 3])
def test_each_file_has_an_outcome(handles: list[int], count: int) -> None:
    for handle in handles:
        os.write(handle, b"written")
    for _ in range(3):
        assert sync_each(handles[:count]) == [None] * count


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("place", [0, 1, 3])
def test_an_error_is_that_of_its_file_alone(handles: list[int], place: int) -> None:
    pipe, other = os.pipe()
    asked = handles[:4]
    asked[place] = pipe  # nothing of it can be synced
    outcomes = sync_each(asked)
    os.close(pipe)
    os.close(other)
    assert [None if each is None else each.errno for each in outcomes] == [
        errno.EINVAL if n == place else None for n in range(4)
    ]


@pytest.mark.usefixtures("_way")
def test_a_handle_that_is_closed_is_an_error(handles: list[int]) -> None:
    closed = os.dup(handles[0])
    os.close(closed)
    outcomes = sync_each([handles[0], closed, handles[1]])
    assert [None if each is None else each.errno for each in outcomes] == [None, errno.EBADF, None]


@pytest.mark.usefixtures("_way")
def test_threads_do_not_share_their_orders(handles: list[int]) -> None:
    with ThreadPoolExecutor(4) as pool:
        outcomes = list(pool.map(lambda n: sync_each(handles[n % 10 :][:5]), range(40)))
    assert outcomes == [[None] * 5] * 40


def test_an_error_of_the_disk_comes_as_that_of_its_file(handles: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system puts it down: the negative number of the error."""
    orders = SideBySide()
    wait = orders._syscall

    def failing(number: object, *arguments: object) -> int:
        got: int = wait(number, *arguments)
        if getattr(number, "value", None) == orders._numbers.getevents:
            for outcome in orders._outcomes[:got]:
                if outcome.data % (1 << side_by_side._PLACE_BITS) == 1:
                    outcome.result = -errno.EIO
        return got

    monkeypatch.setattr(orders, "_syscall", failing)
    assert [None if each is None else each.errno for each in orders.sync(handles[:3])] == [None, errno.EIO, None]


def test_orders_whose_outcomes_cannot_be_had_have_failed_and_no_others_are_given(
    handles: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders = SideBySide()
    syscall = orders._syscall
    monkeypatch.setattr(
        orders,
        "_syscall",
        lambda number, *arguments: -1 if number.value == orders._numbers.getevents else syscall(number, *arguments),
    )
    assert [None if each is None else each.errno for each in orders.sync(handles[:2])] == [errno.EIO, errno.EIO]
    assert orders.refusal is not None


@pytest.fixture
def _own_orders() -> Iterator[None]:
    """Those of this thread, as they are before its first call, and again afterwards."""
    side_by_side._of_thread = side_by_side._OfThread()
    yield
    side_by_side._of_thread = side_by_side._OfThread()


def _orders_of_this_thread() -> SideBySide:
    orders = side_by_side._orders()
    if orders is None:
        pytest.skip("the system syncs no files side by side")
    return orders


@pytest.mark.usefixtures("_own_orders")
def test_a_call_that_is_interrupted_leaves_no_outcomes_to_later_ones(
    handles: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The outcomes of its orders are there, and prove nothing of what is written afterwards."""
    orders = _orders_of_this_thread()

    def interrupted(_taken: int) -> list[OSError | None]:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(orders, "_wait", interrupted)
        with pytest.raises(MemoryError):
            sync_each(handles[:4])
    monkeypatch.setattr(orders, "sync", lambda _: pytest.fail("more orders were given"))
    closed = os.dup(handles[0])
    os.close(closed)
    for _ in range(2):
        outcomes = sync_each([handles[0], closed])
        assert [None if each is None else each.errno for each in outcomes] == [None, errno.EBADF]
    assert side_by_side.most_at_once() == 1
    assert len(caplog.records) == 1, "it is logged once"


@pytest.mark.usefixtures("_own_orders")
@pytest.mark.parametrize("foreign", ["of an earlier call", "of no order", "twice"])
def test_a_foreign_outcome_makes_all_of_that_call_unknown(
    handles: list[int], monkeypatch: pytest.MonkeyPatch, foreign: str
) -> None:
    orders = _orders_of_this_thread()
    assert orders.sync(handles[:3]) == [None] * 3
    syscall = orders._syscall

    def disturbed(number: object, *arguments: object) -> int:
        got: int = syscall(number, *arguments)
        if getattr(number, "value", None) == orders._numbers.getevents:
            of_first = orders._outcomes[0]
            if foreign == "of an earlier call":
                of_first.data -= 1 << side_by_side._PLACE_BITS
            elif foreign == "of no order":
                of_first.data += 100
            else:
                orders._outcomes[1].data = of_first.data
                return max(2, got)
        return got

    monkeypatch.setattr(orders, "_syscall", disturbed)
    assert [None if each is None else each.errno for each in sync_each(handles[:3])] == [errno.EIO] * 3
    assert side_by_side.most_at_once() == 1


@pytest.mark.usefixtures("_own_orders")
@pytest.mark.parametrize(
    ("call", "number", "remedy"),
    [
        ("setup", errno.EAGAIN, "fs.aio-max-nr"),
        ("setup", errno.EPERM, "sandbox"),
        ("getevents", errno.EPERM, "sandbox"),
        ("submit", errno.EINVAL, "Linux 4.18"),
    ],
)
def test_a_thread_that_the_system_refuses_says_so_once_and_syncs_one_file_at_a_time(
    handles: list[int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    call: str,
    number: int,
    remedy: str,
) -> None:
    def _refusing(orders: SideBySide, syscall: Any) -> Callable[..., int]:
        def called(asked: ctypes.c_long, *arguments: object) -> int:
            if asked.value == getattr(orders._numbers, call):
                ctypes.set_errno(number)
                return -1
            done: int = syscall(asked, *arguments)
            return done

        return called

    class Refusing(SideBySide):
        def __setattr__(self, name: str, value: object) -> None:
            if name == "_syscall":
                value = _refusing(self, value)
            super().__setattr__(name, value)

    _orders_of_this_thread()
    side_by_side._of_thread = side_by_side._OfThread()
    monkeypatch.setattr(side_by_side, "SideBySide", Refusing)
    for _ in range(3):
        assert sync_each(handles[:3]) == [None] * 3
    assert side_by_side.most_at_once() == 1
    (record,) = caplog.records
    assert threading.current_thread().name in record.getMessage()
    assert remedy in record.getMessage()


@pytest.mark.usefixtures("_own_orders")
def test_a_file_that_is_refused_says_nothing_of_others(handles: list[int]) -> None:
    _orders_of_this_thread()
    closed = os.dup(handles[0])
    os.close(closed)
    assert sync_each([closed, handles[0]])[1] is None
    assert side_by_side.most_at_once() == MOST_AT_ONCE
