"""Commands about brokers: which one is the controller, which are registered, which are dead."""

from __future__ import annotations

from dataclasses import replace

from metadata import election
from metadata.commands.ledger import Ledger
from metadata.model import Broker, Changes, Outcome
from metadata.references import key_of
from wire import metadata_pb2 as pb
from wire.errors import Code
from wire.types import BrokerId, Incarnation

MAX_EARLIER_LIVES = 64
"""Ids of lives that are over, kept per broker."""


def begin_controller_epoch(ledger: Ledger, command: pb.BeginControllerEpoch) -> Outcome:
    if command.expected_controller_epoch != ledger.controller_epoch:
        return ledger.refuse(
            Code.NOT_CONTROLLER,
            f"{command.controller} expected controller epoch {command.expected_controller_epoch}, the present one is"
            f" {ledger.controller_epoch}",
        )
    if not command.controller or not (ledger.cluster_id or command.cluster_id):
        return ledger.refuse(Code.BAD_REQUEST, "a controller epoch needs a controller, the first one a cluster id too")
    contents = ledger.contents
    contents.cluster_id = contents.cluster_id or command.cluster_id
    contents.controller_epoch += 1
    contents.controller = BrokerId(command.controller)
    contents.controller_life_id = command.life_id
    return ledger.changed(Changes(controller=True), value=contents.controller_epoch)


def register_broker(ledger: Ledger, command: pb.RegisterBroker) -> Outcome:
    broker = BrokerId(command.broker)
    if not ledger.cluster_id:
        return ledger.refuse(Code.UNAVAILABLE, "there is no controller yet; register again in a moment")
    if not broker or not command.life_id:
        return ledger.refuse(Code.BAD_REQUEST, "a registration needs a broker id and a life id")
    if command.cluster_id and command.cluster_id != ledger.cluster_id:
        return ledger.refuse(
            Code.BAD_CONFIG,
            f"the data folder of {broker} belongs to cluster {command.cluster_id}, this is {ledger.cluster_id};"
            " give the broker the folder of this cluster, or an empty one",
        )
    known = ledger.contents.brokers.get(broker)
    if known is not None and known.alive and known.life_id == command.life_id:
        return ledger.unchanged(value=known.incarnation)
    if known is not None and command.life_id in known.earlier_lives:
        return ledger.refuse(
            Code.WRONG_INCARNATION,
            f"this life of broker {broker} is over: a later one has registered; start the broker again",
        )
    # A folder that does not know of the last registered life is a copy of an earlier time.
    folder_same = (
        command.folder_same
        and known is not None
        and (command.last_incarnation == known.incarnation or known.life_id in command.earlier_lives)
    )
    cache_survived = folder_same and command.page_cache_survived
    unsound = {key_of(ref): "the replica's log is unsound" for ref in command.unsound}
    # Then it lacks committed records: were it to lead as the last member, the others would be cut to its log.
    other_folder = None if folder_same else f"the data folder of {broker} is not the one of its last life"
    incarnation = Incarnation(ledger.next_generation())
    ledger.contents.brokers[broker] = Broker(
        id=broker,
        life_id=command.life_id,
        incarnation=incarnation,
        alive=True,
        raft_address=command.raft_address,
        earlier_lives=_lives_before(command, known),
    )
    changed = ledger.sweep(
        lambda key, partition, stream: (
            election.after_registration(
                partition,
                broker,
                alive=ledger.is_alive,
                led=ledger.leaderships,
                min_isr=stream.min_isr,
                proven=folder_same if stream.durable else cache_survived,
                unsound=unsound.get(key, other_folder),
            )
            if broker in partition.replicas
            else partition
        )
    )
    return ledger.changed(Changes(partitions=changed, brokers=(broker,)), value=incarnation)


def _lives_before(command: pb.RegisterBroker, known: Broker | None) -> tuple[str, ...]:
    """Ids of the lives that are over when this one has begun."""
    over = [*command.earlier_lives] if known is None else [*known.earlier_lives, known.life_id, *command.earlier_lives]
    return tuple(life for life in dict.fromkeys(over) if life != command.life_id)[-MAX_EARLIER_LIVES:]


def brokers_dead(ledger: Ledger, command: pb.BrokersDead) -> Outcome:
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    dead: list[BrokerId] = []
    items: list[Code | None] = []
    for life in command.brokers:
        known = ledger.contents.brokers.get(BrokerId(life.broker))
        if known is None or not known.alive or known.incarnation != life.incarnation:
            items.append(Code.WRONG_INCARNATION)
            continue
        ledger.contents.brokers[known.id] = replace(known, alive=False)
        dead.append(known.id)
        items.append(None)
    if not dead:
        return ledger.unchanged(items=tuple(items))
    gone = tuple(sorted(dead))
    changed = ledger.sweep(
        lambda _, partition, stream: election.after_death(
            partition, gone, alive=ledger.is_alive, led=ledger.leaderships, min_isr=stream.min_isr
        )
    )
    return ledger.changed(Changes(partitions=changed, brokers=gone), items=tuple(items))
