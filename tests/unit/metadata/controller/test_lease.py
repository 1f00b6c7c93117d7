"""When a broker knows that the controller counts on it, and how old a request of that controller can be."""

from __future__ import annotations

from math import inf

import pytest

from metadata.controller.lease import MAX_ANSWERS, Lease
from metadata.controller.metadata_settings import MetadataSettings
from wire.protobuf import metadata_pb2 as pb

SETTINGS = MetadataSettings()
LEASE = SETTINGS.leader_lease_s
GENERATION = 10


class Broker:
    """A lease, and the applied state of its broker."""

    def __init__(self) -> None:
        self.lease = Lease(SETTINGS)
        self.epoch = 3
        self.generation = GENERATION
        self.now = 1000.0

    def probe(self, number: int, answered: int = 0, *, epoch: int = 3, generation: int = GENERATION) -> bool:
        probe = pb.Probe(
            controller="c", controller_epoch=epoch, number=number, answered=answered, generation=generation
        )
        return self.lease.on_probe(probe, controller_epoch=self.epoch, generation=self.generation, now=self.now)

    def is_valid(self) -> bool:
        return self.lease.is_valid(self.now)


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_a_lease_runs_from_an_answer_that_the_controller_has_received(broker: Broker) -> None:
    assert not broker.is_valid()
    broker.probe(1)
    assert not broker.is_valid(), "a probe alone proves nothing"
    broker.now += 1.0
    broker.probe(2, answered=1)
    assert broker.is_valid()
    broker.now += LEASE - 1.0
    assert broker.is_valid()
    broker.now += 0.01
    assert not broker.is_valid(), "it runs from the answer, not from the probe that tells of it"


def test_probes_that_lay_unread_while_the_process_stood_still_do_not_extend_the_lease(broker: Broker) -> None:
    broker.probe(1)
    broker.now += 10 * LEASE
    for number in range(2, 20):
        broker.probe(number, answered=1)
    assert not broker.is_valid()
    broker.probe(20, answered=19)
    assert broker.is_valid()


def test_only_the_present_controller_extends_the_lease(broker: Broker) -> None:
    assert broker.probe(1, epoch=2), "a deposed one is known"
    broker.probe(2, 1, epoch=2)
    assert not broker.is_valid()
    broker.probe(3)
    broker.epoch = 4
    broker.probe(4, 3, epoch=3)
    assert not broker.is_valid(), "it has been deposed since it sent the first probe"
    broker.probe(5, epoch=4)
    broker.probe(6, 5, epoch=4)
    assert broker.is_valid()


def test_a_controller_epoch_that_is_not_applied_is_ignored(broker: Broker) -> None:
    """Anybody can invent one; no probe of the real controller would be newer, and the lease would end for good."""
    broker.probe(1)
    assert not broker.probe(1 << 63, epoch=1 << 63)
    broker.probe(2, answered=1)
    assert broker.is_valid()
    assert broker.lease.age_of(3, 2, broker.now) == 0.0
    assert broker.lease.age_of(1 << 63, 1 << 63, broker.now) == inf


@pytest.mark.parametrize("later", ["the probe", "the one that tells of its answer"])
def test_the_lease_is_not_extended_by_a_controller_that_knows_more_than_is_applied_here(
    broker: Broker, later: str
) -> None:
    """It may know of another leader: also where it learned that after it sent the probe, which lay unread here."""
    known = (GENERATION + 1, GENERATION) if later == "the probe" else (GENERATION, GENERATION + 1)
    broker.probe(1, generation=known[0])
    broker.probe(2, answered=1, generation=known[1])
    assert not broker.is_valid()
    broker.now += LEASE - 0.1
    broker.generation += 1
    assert not broker.is_valid(), "it is applied, but the roles need not have heard of it"
    broker.probe(3, generation=GENERATION + 1)
    assert broker.is_valid(), "the lease runs from the answer"
    broker.now += 0.2
    assert not broker.is_valid()


def test_a_request_is_as_old_as_the_answer_that_it_names_at_most(broker: Broker) -> None:
    broker.probe(1)
    broker.now += 0.1
    broker.probe(2, answered=1)
    broker.now += 3.0
    assert broker.lease.age_of(3, 1, broker.now) == pytest.approx(3.1)
    assert broker.lease.age_of(3, 2, broker.now) == pytest.approx(3.0)
    assert broker.lease.age_of(3, 0, broker.now) == inf, "it names no answer"
    assert broker.lease.age_of(2, 2, broker.now) == inf, "of a deposed controller"
    broker.epoch = 4
    broker.probe(3, epoch=4)
    assert broker.lease.age_of(3, 2, broker.now) == inf


def test_the_memory_is_bounded(broker: Broker) -> None:
    broker.probe(1)
    for number in range(2, 1000):
        broker.probe(number, answered=number - 1, generation=GENERATION + number)
    assert broker.lease.age_of(3, 999, broker.now) == 0.0
    assert broker.lease.age_of(3, 999 - MAX_ANSWERS, broker.now) == inf
    assert not broker.is_valid()
    broker.generation += 999
    broker.probe(1000)
    assert broker.is_valid()
