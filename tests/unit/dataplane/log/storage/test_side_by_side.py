"""Files that are synced side by side have outcomes of their own, with the system's call for that and without it."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from dataplane.log.storage import side_by_side
from dataplane.log.storage.side_by_side import MOST_AT_ONCE, SideBySide, sync_each

if TYPE_CHECKING:
    from collections.abc import Iterator
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
        outcomes = list(pool.map(lambda n: sync_each(handles[n : n + 5]), range(40)))
    assert outcomes == [[None] * 5] * 40


def test_an_error_of_the_disk_comes_as_that_of_its_file(handles: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the system puts it down: the negative number of the error."""
    orders = SideBySide()
    wait = orders._syscall

    def failing(number: object, *arguments: object) -> int:
        got: int = wait(number, *arguments)
        if getattr(number, "value", None) == orders._numbers.getevents:
            for outcome in orders._outcomes[:got]:
                if outcome.data == 1:
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
    assert orders.is_lost
