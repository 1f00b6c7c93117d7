"""Commands about brokers: which one is the controller, which are registered, which are dead."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

from metadata.cluster import election
from metadata.cluster.command_rules import FURTHEST_LOG_LEADS, RETURNED_SHARE
from metadata.cluster.model import Broker, Changes, Outcome, Returned, Withdrawn
from metadata.cluster.references import key_of, log_ends_of, logs_of
from metadata.commands.ledger import Ledger
from wire.errors import Code
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps
from wire.types import BrokerId, Incarnation, LeaderEpoch, LogEnd, Offset, PartitionKey

MAX_PRODUCER_IDS = 100_000
"""Limit of the producer ids that one command hands out."""


def allocate_producer_ids(ledger: Ledger, command: pb.AllocateProducerIds) -> Outcome:
    """`value`: the first of `count` ids that no other producer has."""
    if not 1 <= command.count <= MAX_PRODUCER_IDS:
        return ledger.refuse(
            Code.BAD_REQUEST, f"{command.count} producer ids at once are outside 1 to {MAX_PRODUCER_IDS}"
        )
    first = ledger.contents.next_producer_id
    ledger.contents.next_producer_id += command.count
    return ledger.changed(value=first)


MAX_EARLIER_LIVES = 64
"""Limit of the ids of earlier processes that are kept per broker."""

NOTHING_KNOWN = LogEnd(LeaderEpoch(0), Offset(0))
"""Stands for the end of a log that a registration does not name: an earlier version sent it, or there were too many."""


# R28: A new Raft leader commits BeginControllerEpoch, a compare-and-set on the controller epoch before, and decides
# nothing until that is applied. Every decision carries its controller epoch and is refused after a later one. A
# controller that hears a majority again after it did not begins a new epoch. BeginControllerEpoch names the rules by
# which commands are applied from there on, so that all voters come to the same state.
# Hazard: Commands that lie queued on a deposed leader; voters that apply one journal by different rules.
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
    contents.rules = max(contents.rules, command.rules)
    return ledger.changed(Changes(controller=True), value=contents.controller_epoch)


def register_broker(ledger: Ledger, command: pb.RegisterBroker) -> Steps[Outcome]:
    broker = BrokerId(command.broker)
    if not ledger.cluster_id:
        return ledger.refuse(Code.UNAVAILABLE, "there is no controller yet; register again in a moment")
    if not broker or not command.life_id:
        return ledger.refuse(Code.BAD_REQUEST, "a registration needs a broker id and a life id")
    if command.cluster_id and command.cluster_id != ledger.cluster_id:
        return ledger.refuse(
            Code.BAD_CONFIG,
            f"the data folder of {broker} belongs to cluster {command.cluster_id}, this is {ledger.cluster_id};"
            " keep that folder for its own cluster, and give the broker another one here",
        )
    known = ledger.contents.brokers.get(broker)
    if known is not None and known.alive and known.life_id == command.life_id:
        return ledger.unchanged(value=known.incarnation)
    if known is not None and command.life_id in known.earlier_lives:
        return ledger.refuse(
            Code.WRONG_INCARNATION,
            f"this life of broker {broker} is over: a later one has registered; start the broker again",
        )
    # A folder whose last incarnation is not the registered one is a copy of an earlier time.
    folder_same = known is not None and (
        _proves(command, known.incarnation, known.life_id) or _was_registered_unheard(ledger, command, known)
    )
    refused = (yield from _refused_folder(ledger, command, known)) if known is not None and not folder_same else None
    if refused is not None:
        return refused
    # Keeps R90.
    if command.HasField("recovered_at") and command.recovered_at < ledger.recovered_at >= command.last_incarnation:
        return ledger.refuse(
            Code.UNAVAILABLE,
            f"{broker} does not know yet that the cluster began anew, and which logs it lacks; register again in a"
            " moment",
        )
    cache_survived = folder_same and command.page_cache_survived
    logs: dict[PartitionKey, LogEnd] = {}
    for key, end in chain.from_iterable(map(log_ends_of, command.logs)):
        yield 1
        logs[key] = end
    unsound: dict[PartitionKey, Withdrawn] = {}
    for key in chain(map(key_of, command.unsound), chain.from_iterable(map(logs_of, command.unsound_logs))):
        yield 1
        unsound[key] = Withdrawn(broker, "the replica's log is unsound")
    if folder_same:
        missing = Withdrawn(broker, _why_missing(ledger, broker))
        for key in chain.from_iterable(map(logs_of, command.missing_logs)):
            yield 1
            unsound[key] = missing
    # The first registrations after an upgrade may come before the first controller epoch of this version.
    knows_ends = ledger.rules >= FURTHEST_LOG_LEADS or command.HasField("replace")
    other_folder = None
    if known is not None and not folder_same:
        # It lacks committed records: were it to lead as the last member, the others would be cut to its log.
        reason = f"the data folder of {broker} is not the one of its last life"
        other_folder = Withdrawn(broker, reason)
        if knows_ends:
            reason = f"{reason}; started with that one it leads again"
            other_folder = Withdrawn(broker, reason, known.incarnation, known.life_id)
    incarnation = Incarnation(ledger.next_generation())
    ledger.contents.brokers[broker] = Broker(
        id=broker,
        life_id=command.life_id,
        incarnation=incarnation,
        alive=True,
        raft_address=command.raft_address,
        earlier_lives=_lives_before(command, known),
        zone=command.zone,
        tags=tuple(command.tags),
        draining=known is not None and known.draining,
    )
    changed = yield from ledger.sweep(
        lambda key, partition, stream: (
            election.after_registration(
                partition,
                broker,
                alive=ledger.is_alive,
                led=ledger.leaderships,
                min_isr=stream.min_isr,
                proven=folder_same if stream.durable else cache_survived,
                unsound=unsound.get(key, other_folder),
                proves=lambda entry: _proves(command, entry.sound_incarnation, entry.sound_life),
                back=Returned(broker, incarnation, logs.get(key, NOTHING_KNOWN)) if knows_ends else None,
                returned_share=ledger.rules >= RETURNED_SHARE,
            )
            if broker in partition.replicas
            else partition
        )
    )
    return ledger.changed(Changes(partitions=changed, brokers=(broker,)), value=incarnation)


# R22: A registration says what the data folder proves: that it is the folder of the last incarnation (enough for
# `durable` streams), and that the page cache survived (needed for `accepted` ones). A replica without proof leaves the
# ISR if another member stays; the very last one stays, withdrawn if the folder is another one. An empty folder in the
# place of one with partitions is refused (EMPTY_FOLDER) unless the operator says `--replace`. Of each log the manifest
# holds how far it was committed.
# Hazard: A lost page cache; an emptied, restored or foreign folder, of a broker or of one log; a folder that was away
# for a while.
# Not covered: A voter on an empty folder takes part in the Raft group until its registration is refused; a command
# that it confirmed there is lost if the only other voter that has it dies before the right folder has caught up.
def _proves(command: pb.RegisterBroker, incarnation: Incarnation, life_id: str) -> bool:
    """Whether the folder is the one of that incarnation or process."""
    return command.folder_same and (
        command.last_incarnation == incarnation != 0 or (life_id != "" and life_id in command.earlier_lives)
    )


def _was_registered_unheard(ledger: Ledger, command: pb.RegisterBroker, known: Broker) -> bool:
    """Whether a decision that was lost when the cluster began anew registered it, and none did since."""
    last = Incarnation(command.last_incarnation)
    return command.folder_same and known.incarnation < last and ledger.is_lost(last)


# R90: A partition whose replicas were moved by a decision that was lost begins empty nowhere. The first registration
# with a folder after the cluster began anew (`tidelog cluster recover`) names the partitions of before of which the
# metadata make the broker a replica and of which the folder has no log. That replica counts as unsound (R23): it leaves
# the ISR, and the last one is withdrawn until an operator elects a leader. A registration by a state of before that is
# refused until the broker knows the new one. With a manifest that is lost each registration names them (R22).
# Hazard: Replicas that have removed their logs, because the partition was moved, lead it with empty ones, and the new
# replicas are none by the metadata.
# Not covered: A replica that was removed and added again by lost decisions has a log, and counts as it did before.
def _why_missing(ledger: Ledger, broker: BrokerId) -> str:
    """Why a replica without a log cannot lead."""
    if not ledger.recovered_at:
        return f"{broker} has lost its log, or has none yet"
    return (
        f"{broker} has no log of it: a decision that was lost when the cluster began anew may have moved it to other"
        " brokers, whose logs are kept (operations.md, A lost majority)"
    )


def _refused_folder(ledger: Ledger, command: pb.RegisterBroker, known: Broker) -> Steps[Outcome | None]:
    """Returns the refusal of a registration whose folder is not the last process's; None: it is accepted."""
    if not command.HasField("replace"):
        return None  # committed by a version without this check
    if not command.last_incarnation and not command.replace:
        hosted = alone = 0
        for _, partition in ledger.partitions():
            yield 1
            if known.id in partition.replicas:
                hosted += 1
                alone += {*partition.isr, *partition.eligible} == {known.id}
        if hosted:
            return ledger.refuse(
                Code.EMPTY_FOLDER,
                f"the data folder of {known.id} is empty, and the cluster expects partitions in it ({hosted}, of"
                f" which {alone} in sync nowhere else): mount its disk, or give the right --data-dir; if the folder is"
                " lost for good, start the broker with --replace",
            )
    if known.alive and known.life_id != command.silent_life:
        return ledger.refuse(
            Code.ID_IN_USE,
            f"broker {known.id} is registered and alive with another data folder (incarnation {known.incarnation}):"
            " give each broker an id and a data folder of its own",
        )
    return None


def _lives_before(command: pb.RegisterBroker, known: Broker | None) -> tuple[str, ...]:
    """Returns the ids of the processes that are over when this one is registered."""
    over = [*command.earlier_lives] if known is None else [*known.earlier_lives, known.life_id, *command.earlier_lives]
    return tuple(life for life in dict.fromkeys(over) if life != command.life_id)[-MAX_EARLIER_LIVES:]


# R26: A death is one command. BrokersDead names the incarnations that died, moves all their leaderships and takes them
# out of every ISR. A broker that finds itself declared dead registers again under a new incarnation.
# Hazard: Partitions that move one by one while their brokers are dead.
def brokers_dead(ledger: Ledger, command: pb.BrokersDead) -> Steps[Outcome]:
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
    stopping = frozenset(map(BrokerId, command.stopping))  # none in commands of earlier versions
    changed = yield from ledger.sweep(
        lambda _, partition, stream: election.after_death(
            partition,
            gone,
            alive=ledger.is_alive,
            led=ledger.leaderships,
            min_isr=stream.min_isr,
            stopping=stopping,
            leave_offline=ledger.rules < FURTHEST_LOG_LEADS,
        )
    )
    return ledger.changed(Changes(partitions=changed, brokers=gone), items=tuple(items))


# R93: A broker is drained by an operator: a mark in the cluster state, which outlives its restarts and every change of
# controller. It gets no replica of a new partition, no reassignment makes it a replica, and no planned move gives it a
# leadership, except one of a broker that stops. The controller moves its leaderships to other members of the ISR, and
# begins reassignments (R84) of all partitions that have it, or are to have it, as a replica, for as long as the mark is
# there. None is begun where a partition finds no other broker.
# Hazard: A broker that fills again while it is emptied; a drain that ends with its controller.
def set_draining(ledger: Ledger, command: pb.SetDraining) -> Outcome:
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    broker = BrokerId(command.broker)
    known = ledger.contents.brokers.get(broker)
    if known is None:
        return ledger.refuse(
            Code.BAD_REQUEST, f"broker {broker} is not registered; `tidelog broker list` shows which are"
        )
    if known.draining == command.draining:
        return ledger.unchanged()
    ledger.contents.brokers[broker] = replace(known, draining=command.draining)
    return ledger.changed()
