from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest

from spark_connector.shared import connections
from spark_connector.shared.connections import MAX_KEPT, Address, KeptConnections
from wire.errors import Code, TidelogError


class Client:
    """One that does nothing but close."""

    closed = False
    hangs = False

    async def close(self) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        self.closed = True


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[KeptConnections]:
    async def connect(*_: object, **__: object) -> Client:
        return Client()

    monkeypatch.setattr("tidelog.connect", connect)
    kept = KeptConnections()
    yield kept
    kept.close()


def address(name: str = "a", **login: str) -> Address:
    return Address((f"nats://{name}:1",), "tidelog", None, tuple(login.items()))


def test_one_for_each_cluster_and_login(pool: KeptConnections) -> None:
    first = pool.lease(address())
    assert pool.lease(address()) is first
    others = [pool.lease(address("b")), pool.lease(address(user="u")), pool.lease(address(user="v"))]
    assert len({id(each) for each in [first, *others]}) == 4


def test_no_more_than_so_many_are_kept(pool: KeptConnections) -> None:
    held = [pool.lease(address(str(number))) for number in range(MAX_KEPT)]
    pool.lease(address("0"))
    pool.lease(address("one more"))
    assert [each.is_broken for each in held] == [False, True, *[False] * (MAX_KEPT - 2)]


def test_a_discarded_one_is_closed_and_not_leased_again(pool: KeptConnections) -> None:
    first = pool.lease(address())
    pool.discard(first)
    pool.discard(first)
    assert first.client.closed  # type: ignore[attr-defined]
    assert pool.lease(address()) is not first


def test_a_call_that_hangs_costs_the_connection(pool: KeptConnections) -> None:
    first = pool.lease(address())
    with pytest.raises(TidelogError, match=r"has not ended within 0\.01 s") as caught:
        first.run(asyncio.Event().wait(), timeout=0.01)
    assert caught.value.code is Code.UNAVAILABLE
    assert pool.lease(address()) is not first


def test_closing_has_an_end(pool: KeptConnections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "CLOSE_SECONDS", 0.01)
    first = pool.lease(address())
    first.client.hangs = True  # type: ignore[attr-defined]
    pool.close()
    with pytest.raises(TidelogError, match="closed"):
        first.run(asyncio.sleep(0))


def test_a_forked_child_has_none_and_leaves_its_parents_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: object, **__: object) -> Client:
        return Client()

    monkeypatch.setattr("tidelog.connect", connect)
    kept = connections.kept
    mine = kept.lease(address())
    try:
        child = os.fork()
        if child == 0:
            # No exit handlers and no test runner in the child.
            is_good = False
            try:
                other = kept.lease(address())
                is_good = other is not mine and other.run(asyncio.sleep(0, "answered")) == "answered"
                kept.close()
            finally:
                os._exit(0 if is_good else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert kept.lease(address()) is mine
        assert mine.run(asyncio.sleep(0, "answered")) == "answered"
    finally:
        kept.close()


def test_a_secret_is_in_no_text_of_an_address() -> None:
    assert "known" not in repr(address("known", password="known"))
