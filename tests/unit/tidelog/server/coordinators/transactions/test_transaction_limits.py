"""What a coordinator of transactions keeps is bounded, for one transaction, for one family, and in all."""

from __future__ import annotations

import pytest

from tests.unit.tidelog.server.coordinators.transactions.transactions_world import ID, World, code, init_request
from tidelog.server.coordinators.transactions import transaction_shard as module
from wire.errors import Code, TidelogError


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    producer, other = world.init(), world.init("other")
    monkeypatch.setattr(module, "MAX_PARTICIPANTS", 3)
    producer.add(0, 1)
    assert producer.refused(producer.add_request(1, 2, groups=("g",))) is Code.LIMIT_REACHED
    producer.add(1, 2)
    monkeypatch.setattr(module, "MAX_PARTICIPANTS_OF_ALL", 4)
    assert producer.refused(other.add_request(0, 1)) is Code.LIMIT_REACHED
    other.add(0)
    monkeypatch.setattr(module, "MAX_IDS", 2)
    assert code(world.ask(init_request("third"))) is Code.LIMIT_REACHED
    other.end()
    world.now += 1
    world.time_ns += (module.KEPT_WHEN_FULL_S + 1) * 10**9
    world.init("third")
    assert sorted(world.shard.transactions) == [ID, "third"], "one that is idle for long makes room, and no open one"


def test_one_family_leaves_ids_and_participants_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_IDS_OF_FAMILY", 2)
    monkeypatch.setattr(module, "MAX_PARTICIPANTS_OF_FAMILY", 4)
    world = World()
    a, b = world.init("f~a"), world.init("f~b")
    for name in ("f~c", "f"):
        answer = world.ask(init_request(name))
        assert isinstance(answer, TidelogError)
        assert answer.code is Code.LIMIT_REACHED
        assert all(text in answer.message for text in ("'f'", "2 transactional ids", "use the same ids", "120 minutes"))
    a.add(0, 1, 2)
    answer = world.ask(b.add_request(0, 1))
    assert isinstance(answer, TidelogError)
    assert answer.code is Code.LIMIT_REACHED
    assert all(text in answer.message for text in ("'f'", "3 partitions and groups", "4 may", "commit more often"))
    other = world.init("g~a")
    assert len(other.add(0, 1, 2, groups=("g",))) == 4
    b.add(3)
    world.fail_over()
    assert b.refused(b.add_request(0)) is Code.LIMIT_REACHED, "a new coordinator counts them, too"
    world.confirms = False
    world.send(a.end_request())
    assert b.refused(b.add_request(0)) is Code.LIMIT_REACHED, "until they are told"
    world.confirm()
    assert len(b.add(0, 1)) == 2
