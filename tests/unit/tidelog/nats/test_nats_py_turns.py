"""Which of two connections is read how far in a turn of the loop."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tidelog.nats.nats_parser import MIN_READ
from tidelog.nats.nats_py import BEHIND, GIVING_WAY, ChunkedClient, Link


class Socket:
    """A transport that is never written to."""

    def get_extra_info(self, name: str) -> Any:
        return object() if name == "sslcontext" else None


def client() -> tuple[ChunkedClient, Link]:
    made = ChunkedClient(
        on_down=lambda _: None,
        on_server_error=lambda _: None,
        write_marks=(4, 1),
    )
    return made, Link(made, cast(Any, Socket()), cast(Any, None))


def read(link: Link, size: int) -> None:
    """So many bytes, a multiple of 5, that mean nothing."""
    room = link.get_buffer(-1)
    room[:size] = b"+OK\r\n" * (size // 5)
    link.buffer_updated(size)


@pytest.fixture
def pair() -> tuple[Link, Link]:
    """The second gives way to the first."""
    first, link = client()
    second, other = client()
    second.precedes = first
    return link, other


def test_the_preceding_connection_has_room_to_show_a_backlog(pair: tuple[Link, Link]) -> None:
    assert len(pair[0].get_buffer(-1)) >= BEHIND
    assert GIVING_WAY <= MIN_READ


def test_little_is_read_once_for_each_large_read_of_the_preceding_connection(pair: tuple[Link, Link]) -> None:
    first, second = pair
    whole = len(second.get_buffer(-1))
    assert whole > GIVING_WAY
    large = BEHIND + 5 - BEHIND % 5
    for _ in range(3):
        read(first, large)
        assert len(second.get_buffer(-1)) == GIVING_WAY
        assert len(second.get_buffer(-1)) == whole
    read(first, large)
    read(first, 5)
    assert len(second.get_buffer(-1)) == whole, "the backlog is gone"
    read(first, BEHIND - BEHIND % 5 - 5)
    assert len(second.get_buffer(-1)) == whole


def test_one_that_always_gives_way_reads_little_in_each_turn() -> None:
    made, link = client()
    made.always_gives_way = True
    for _ in range(3):
        assert len(link.get_buffer(-1)) == GIVING_WAY
        read(link, GIVING_WAY - GIVING_WAY % 5)


def test_the_preceding_connection_does_not_give_way(pair: tuple[Link, Link]) -> None:
    first, second = pair
    whole = len(first.get_buffer(-1))
    read(second, BEHIND + 5 - BEHIND % 5)
    assert len(first.get_buffer(-1)) == whole
