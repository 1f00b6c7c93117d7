"""Operations about the brokers of a cluster: which there are, and what becomes of them. See
`wire.operations.api_operations`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypedDict

from wire.errors import Code
from wire.operations.operation import Operation
from wire.operations.reassignment_operations import ReplicaPlan


class ListedBroker(TypedDict):
    id: str
    state: str
    """"alive", "stopping" (it hands its leaderships over before it stops) or "dead"."""
    dead_for_s: float | None
    """Seconds since its death was applied at the controller, at least: it may have been dead when the controller's
    process began. None: it is alive."""
    draining: bool
    """It gets no replicas, and those that it has go to others."""
    zone: str
    tags: list[str]
    replicas: int
    """With those of Tidelog's own streams; of the partitions that get other replicas, the ones that it keeps, too."""
    leaders: int
    bytes_on_disk: int | None
    """Bytes of the segments of its logs; None: it does not answer."""
    voter: bool
    """It has registered as a member of the metadata group."""
    is_controller: bool


class BrokerList(TypedDict):
    brokers: list[ListedBroker]
    """By id: all that are registered."""


@dataclass(frozen=True, slots=True)
class ListBrokersRequest:
    pass


BROKER_LIST = Operation(
    name="broker.list",
    request=ListBrokersRequest,
    answer=BrokerList,
    help="all registered brokers: whether they live, since when they are dead, and what they hold",
    writes=False,
)


class BrokerRemoval(TypedDict):
    broker: str
    removed: bool
    """False: only asked for, and nothing stands against it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveBrokerRequest:
    broker: str
    dry_run: bool = False
    """Only say whether it can be removed."""


BROKER_REMOVE = Operation(
    name="broker.remove",
    request=RemoveBrokerRequest,
    answer=BrokerRemoval,
    help="take a dead broker out of the cluster; refused while anything needs it",
    writes=True,
    refusals=(Code.WRONG_INCARNATION,),
    time_s=10.0,
)


class BrokerDrain(TypedDict):
    broker: str
    draining: bool
    """It gets no replicas, and those that it has go to others."""
    replicas: int
    """As many as it has now, with those of Tidelog's own streams."""
    leaders: int
    plan: ReplicaPlan
    """What is copied, from where to where, beside the moves that are under way."""
    refusal: str
    """In a sentence why the drain of this plan would be refused; empty: it would not."""
    voter: bool
    """It votes in the metadata group: it can be drained, but not removed."""
    was_draining: bool
    """Before this request."""
    given_up: int
    """Moves that were about to take partitions from the broker, and that `cancel` has given up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBrokerRequest:
    broker: str
    dry_run: bool = False
    """Only the plan is wanted."""
    cancel: bool = False
    """The drain is given up: partitions that are about to leave the broker keep it."""
    plan: str = ""
    """Digest of the plan that was shown: BAD_REQUEST if it is another one now. Empty: whatever it is."""


BROKER_DRAIN = Operation(
    name="broker.drain",
    request=DrainBrokerRequest,
    answer=BrokerDrain,
    help="give all replicas and leaderships of a broker to others; answered when that has begun; with `dry_run` only"
    " the plan, with `cancel` it is given up",
    writes=True,
    refusals=(Code.UNAVAILABLE,),
    time_s=60.0,
)
