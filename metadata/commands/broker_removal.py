"""The removal of a broker from the cluster, and what stands against it."""

from __future__ import annotations

from metadata.cluster.cluster_view import Cluster
from metadata.cluster.model import Changes, Outcome, Partition
from metadata.cluster.named_partitions import NamedPartitions
from metadata.commands.ledger import Ledger
from wire.errors import Code
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Steps
from wire.types import BrokerId


# R92: A broker is removed from the cluster by an operator's command alone, which names the incarnation that died. It is
# refused while that broker is alive or the controller, while any partition has it as a replica, or has it among the
# target or the original replicas of a reassignment, and while the policy of a stream names it; and, where it has not
# registered since the cluster began anew, while nobody leads a partition of before, which a lost decision may have
# moved to it. So no removal takes a replica out of a partition, and none can lose a record: replicas go from a broker
# by reassignments (R84). A process that comes back under the id registers as a new broker, in an incarnation above all
# earlier ones, and removes the logs that are not its any more (R86); one that lived all the time registers again, as
# after its death (R26).
# Hazard: A last copy that is forgotten with its broker; a folder that comes back and counts by what it once held.
def remove_broker(ledger: Ledger, command: pb.RemoveBroker) -> Steps[Outcome]:
    refused = ledger.not_controller(command.controller_epoch)
    if refused is not None:
        return refused
    broker = BrokerId(command.broker.broker)
    known = ledger.contents.brokers.get(broker)
    if known is not None and known.incarnation != command.broker.incarnation:
        return ledger.refuse(Code.WRONG_INCARNATION, f"broker {broker} has registered again meanwhile; look again")
    wrong = yield from why_not_removed(ledger, broker)
    if wrong is not None:
        return ledger.refuse(Code.BAD_REQUEST, wrong)
    del ledger.contents.brokers[broker]
    return ledger.changed(Changes(brokers=(broker,)))


# Keeps R92.
def why_not_removed(cluster: Cluster, broker: BrokerId) -> Steps[str | None]:
    """Returns why the broker cannot be removed from the cluster, with the remedy; None: it can."""
    known = cluster.brokers.get(broker)
    if known is None:
        return f"broker {broker} is not registered; `tidelog broker list` shows those that are"
    if known.alive or cluster.controller == broker:
        return (
            f"broker {broker} is alive: give its replicas to others (`tidelog broker drain {broker}`), stop it, and"
            " remove it then"
        )
    held, alone, unheard = NamedPartitions(), NamedPartitions(), NamedPartitions()
    recovered_at = cluster.recovered_at
    for key, partition in cluster.partitions():
        yield 1
        if {*partition.isr, *partition.eligible} == {broker}:
            alone.add(key)
        elif _is_concerned(partition, broker):
            held.add(key)
        elif partition.leader is None and max(known.incarnation, key.partition_incarnation) <= recovered_at:
            unheard.add(key)
    naming: list[tuple[str, str]] = []
    for name, stream in sorted(cluster.streams.items()):
        yield 1
        settings = stream.settings
        naming += [
            (key, name)
            for key, brokers in (("placement", settings.placement.brokers), ("leader_pin", (settings.leader_pin,)))
            if broker in brokers
        ]
    reasons: list[str] = []
    if held.count:
        reasons.append(
            f"It is a replica of {held}, or is to be one: `tidelog broker drain {broker}` gives them to other brokers,"
            " and `tidelog cluster moves` shows how far that is"
        )
    if alone.count:
        reasons.append(
            f"Nothing else is known to hold all records of {alone}: start it with its data folder. Where that is lost"
            " for good see operations.md, Electing a leader at a loss. Where some of it is left copy it before the"
            " broker is started again"
        )
    if unheard.count:
        reasons.append(
            "It has not registered since the cluster began anew (`tidelog cluster recover`), and a decision that was"
            f" lost then may have moved {unheard} to it, which nobody leads: start it once with its data folder. See"
            " operations.md, A lost majority"
        )
    if naming:
        named = ", ".join(f"{setting} of stream {name}" for setting, name in naming)
        setting, of_stream = naming[0]
        reasons.append(f"It is named by {named}: `tidelog stream alter {of_stream} --unset {setting}` changes that")
    return f"broker {broker} is needed, and stays. {'. '.join(reasons)}" if reasons else None


def _is_concerned(partition: Partition, broker: BrokerId) -> bool:
    moving = partition.reassignment
    return broker in partition.replicas or (
        moving is not None and (broker in moving.target or broker in moving.original)
    )
