"""What loads the event loop of a broker: for each operation of the API, the requests that look at most, at the bounds
of docs/reference.md. An operation that is not in `LOADS` makes `tests/unit/tidelog/server/test_loop_watchdog.py` fail.

To add an operation: an entry here. What it does for each of many streams, partitions, groups or transactions is done in
turns (`wire.turns`), which that test asserts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias, cast
from unittest.mock import patch

from dataplane.broker.broker import Broker
from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver, begin_leader_epoch
from dataplane.broker.replica import Replica
from dataplane.broker.roles.role import RoleTimer
from dataplane.log.partition_log import LogConfig
from dataplane.log.storage.manifest import Manifest
from metadata.cluster.model import NOTHING, Outcome
from metadata.commands.cluster_state import ClusterState
from metadata.controller.controller import ControllerCore
from metadata.controller.failover import Failover
from metadata.runtime import admin_answers
from metadata.runtime.applied_state import AppliedState, AppliedWaits
from metadata.runtime.views import ViewDelivery
from tests.fake_nats import delivered
from tests.loop_steps import Longest, Measure, steps_measured
from tests.simulation.machines.disk import SimDisk
from tests.unit.dataplane.broker.role_bench import Bench, view
from tests.unit.metadata.brokers import SUBJECTS, World, running
from tests.views import KEY, A, B
from tidelog.server.audit.activity_stream import ActivityStream
from tidelog.server.liftbridge.gateway import Gateway
from tidelog.server.liftbridge.metadata_calls import MetadataCalls
from tidelog.server.routing.topology_pages import TopologyPages
from wire.errors import Code, TidelogError
from wire.internal_records import group_records, transaction_records
from wire.internal_streams import GROUPS
from wire.messaging.transport import Message
from wire.operations.api_operations import OPERATIONS
from wire.operations.json_codec import encoding
from wire.operations.reports import total_traffic
from wire.protobuf import metadata_pb2 as pb
from wire.protobuf.liftbridge_pb2 import FetchMetadataRequest
from wire.turns import Steps, in_turns
from wire.types import BrokerId, Room, StreamName

LARGE = "large"
"""A stream with all the partitions that it may have."""
SMALL = "s00001"
"""One of many streams."""
NEW = "new"
DEAD = "z"
"""A broker that has died."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests to the API of the controller, one after the other. ALL stands for the partitions of a large stream."""

    requests: tuple[Mapping[str, Any], ...] = ({},)


@dataclass(frozen=True, slots=True)
class AtCoordinator:
    """`row`: of `scripts/bench bounds`, which loads the coordinator that carries it out."""

    row: str


Load: TypeAlias = Asked | AtCoordinator


class All:
    """In place of a number of partitions, or of an object with an entry for each of them."""


ALL = All()

OF_LARGE = Asked(({"name": LARGE},))
OF_PARTITION = {"stream": LARGE, "partition": 0}
OF_OFFSETS = "group of 25000 offsets"
OF_FAMILY = "a family with 100000 participants, and as many that are passed over"
OF_PARTICIPANTS = "a transaction of 1000 participants"

LOADS: Mapping[str, Load] = {
    "broker.remove": Asked(({"broker": DEAD, "dry_run": True}, {"broker": DEAD})),
    "stream.create": Asked(({"name": NEW, "partitions": ALL, "replication_factor": 1},)),
    "stream.describe": OF_LARGE,
    "stream.list": Asked(({}, {"usage": True})),
    "metadata": Asked(({"stream": LARGE},)),
    "stream.alter": Asked(({"name": LARGE, "config": {"retention_max_age_ms": "60000"}},)),
    "stream.set_readonly": Asked(({"name": LARGE}, {"name": LARGE, "readonly": False})),
    "stream.pause": OF_LARGE,
    "stream.resume": OF_LARGE,
    "stream.delete_records": Asked(({"name": LARGE, "before": ALL},)),
    "stream.repartition": Asked(
        ({"name": SMALL, "partitions": ALL, "dry_run": True}, {"name": SMALL, "partitions": ALL})
    ),
    "stream.repartition_status": Asked(({"name": SMALL},)),
    "stream.repartition_cancel": Asked(({"name": SMALL},)),
    "stream.reassign": Asked(
        ({"name": LARGE, "targets": {"0": ["b"]}, "dry_run": True}, {"name": LARGE, "targets": {"0": ["b"]}})
    ),
    "stream.alter_factor": Asked(
        (
            {"name": LARGE, "replication_factor": 2, "dry_run": True},
            {"name": LARGE, "replication_factor": 2},
            {"name": LARGE, "replication_factor": 1},
        )
    ),
    "cluster.rebalance": Asked(({"dry_run": True}, {})),
    "cluster.moves": Asked(({}, {"of_stream": LARGE})),
    "stream.reassign_cancel": OF_LARGE,
    "stream.delete": Asked(({"name": NEW},)),
    "producer.init": Asked(),
    "partition.move_leader": Asked(({**OF_PARTITION, "broker": "a"},)),
    "partition.history": Asked((OF_PARTITION,)),
    "partition.unclean_elect": Asked(({**OF_PARTITION, "broker": "a"},)),
    "cluster.id": Asked(),
    "cluster.status": Asked(),
    "cluster.alter": Asked(({"config": {"retention_max_age_ms": "60000"}},)),
    "cluster.rebalance_leaders": Asked(({"dry_run": True}, {})),
    "broker.describe": Asked(({"broker": "a"},)),
    "broker.list": Asked(),
    "broker.drain": Asked(({"broker": "a", "dry_run": True}, {"broker": "a", "cancel": True})),
    "replica.list": Asked(({}, {"broker": "a"}, {"of_stream": LARGE})),
    "cluster.restart_order": Asked(),
    "group.coordinator": Asked(({"group": "g"},)),
    "transaction.coordinator": Asked(({"transactional_id": "t"},)),
    "group.list": AtCoordinator("5000 groups of 20 offsets: they are listed"),
    "group.describe": AtCoordinator(f"{OF_OFFSETS}: it is described"),
    "group.reset": AtCoordinator(f"{OF_OFFSETS}: offsets are reset"),
    "group.delete": AtCoordinator(f"{OF_OFFSETS}: it is deleted"),
    "transaction.list": AtCoordinator("transactions, 20000 ids: they are listed"),
    "transaction.describe": AtCoordinator(f"{OF_PARTICIPANTS}: it is described"),
    "transaction.abort": AtCoordinator(f"{OF_PARTICIPANTS}: it is aborted"),
}
"""By operation, in the order in which they are asked."""

OF_COORDINATORS: Mapping[str, str] = {
    group_records.HEARTBEAT: "group, one stream of 20000 partitions, 1,000 members: the others join",
    group_records.DISCOVER: ("group, 20000 streams, 200 members, 64 subscriptions by pattern: the others join"),
    group_records.COMMIT: f"{OF_OFFSETS}: they are committed",
    group_records.OFFSETS: f"{OF_OFFSETS}: they are asked for",
    group_records.CURSOR: "10000 cursors are set",
    transaction_records.INIT: "transactions, 20000 ids: producers begin",
    **dict.fromkeys(transaction_records.ADDS, "transactions, 20000 ids: each adds 20 partitions"),
    transaction_records.END: "transactions, 20000 ids: half of them end",
    transaction_records.END_FAMILY: f"{OF_FAMILY}: it is committed",
    transaction_records.FAMILY: f"{OF_FAMILY}: it is committed",
}
"""By the kind of a client's request to a coordinator, the row of `scripts/bench bounds` that loads it most."""

ONE = "one of many: a role, a request, a connection, a retry"
OF_CONTROLLER = "the timers of a controller"

TIMERS: Mapping[str, str] = {
    "dataplane/broker/disk/disk_watch.py": "threads of the broker, which are few",
    "dataplane/broker/following/follower_driver.py": ONE,
    "dataplane/broker/leading/append_requests.py": ONE,
    "dataplane/broker/upkeep/housekeeping.py": "all replicas, each of them a step of the loop",
    "dataplane/broker/upkeep/hw_checkpoints.py": "the look for checkpoints",
    "dataplane/broker/parked_fetches.py": "all replicas, a few numbers of each that follows",
    "dataplane/broker/reading/id_learning.py": ONE,
    "dataplane/broker/leading/waiting_answers.py": "publishes of a partition that wait, 10,000 at most",
    "dataplane/broker/replica.py": ONE,
    "dataplane/broker/disk/space_watch.py": ONE,
    "dataplane/broker/roles/role.py": ONE,
    "metadata/raft/node.py": ONE,
    "metadata/runtime/admin_answers.py": ONE,
    "metadata/runtime/controller_driver.py": OF_CONTROLLER,
    "metadata/runtime/drains.py": OF_CONTROLLER,
    "metadata/runtime/moves.py": OF_CONTROLLER,
    "metadata/runtime/namespace.py": ONE,
    "metadata/runtime/outbound.py": (
        "requests of a broker to the controller: `tests/unit/metadata/runtime/test_outbound.py`"
    ),
    "metadata/runtime/proposals.py": ONE,
    "metadata/runtime/registration.py": ONE,
    "metadata/runtime/metadata_service.py": ONE,
    "metadata/runtime/foreign_subjects.py": ONE,
    "metadata/runtime/controller_subscriptions.py": ONE,
    "tidelog/nats/nats_py.py": ONE,
    "tidelog/nats/pace.py": ONE,
    "tidelog/nats/nats_subscriptions.py": ONE,
    "tidelog/nats/nats_connection.py": ONE,
    "tidelog/server/audit/activity_stream.py": ONE,
    "tidelog/server/audit/audit_stream.py": ONE,
    "tidelog/server/coordinators/driver/coordinator.py": (
        "a settlement: the rows of coordinators in `scripts/bench bounds`"
    ),
    "tidelog/server/coordinators/driver/deliveries.py": ONE,
    "tidelog/server/broker_process.py": ONE,
    "tidelog/server/peers/peer_link.py": ONE,
    "metadata/runtime/hand_over.py": "the leaderships of the broker while it stops, in turns",
    "tidelog/server/routing/pushes.py": "the routes of a stream: the topology of a large stream",
}
"""By module of a broker that waits for a time, what it looks at when that has come."""


@dataclass(frozen=True, slots=True)
class Bounds:
    partitions: int
    """Those of a stream."""
    streams: int
    """Besides that one, of one partition each."""


LEFT_OUT = (
    (AppliedState, "apply"),
    (ViewDelivery, "deliver"),
    (ControllerCore, "on_applied"),
    (Failover, "_elect"),
)
"""Commands of the metadata group, and what follows from them, have rows of their own in `scripts/bench bounds`. The
count of lines makes the loop so slow that a broker may be behind: its elections are counted in
`tests/unit/metadata/controller/test_failover_of_many.py`."""
TIMEOUT_S = 600.0
TIMERS_S = 1.0
"""More than any interval of a controller that does something for all streams, partitions or brokers."""


async def longest_steps(measure: Measure, bounds: Bounds) -> dict[str, Longest]:
    """The longest step of the loop for each operation that the controller carries out, and for what else a broker is
    asked, by its name."""
    with patch.object(admin_answers, "STATUS_TIMEOUT_S", TIMEOUT_S):
        async with running("a") as world:
            broker = world.brokers["a"]
            broker.transport.max_payload = world.client.max_payload = 64 << 20
            _fill(world, bounds)
            await delivered()
            found = {
                name: await _asked(world, measure, name, load.requests, bounds)
                for name, load in LOADS.items()
                if isinstance(load, Asked)
            }
            found |= await _of_routes(measure, broker.service.state)
            found |= await _of_groups(world, measure, bounds)
            found |= await _of_applied(measure, broker.service.state)
            with steps_measured(measure, LEFT_OUT) as longest:
                await asyncio.sleep(TIMERS_S)
            found["the timers of a controller"] = longest
    return found | await _of_replicas(measure, bounds)


def _fill(world: World, bounds: Bounds) -> None:
    sizes = {LARGE: bounds.partitions} | {f"s{number:05}": 1 for number in range(bounds.streams)}
    for name, partitions in sizes.items():
        made = pb.CreateStream(
            controller_epoch=world.brokers["a"].service.controller_epoch,
            name=name,
            subject=name,
            replication_factor=1,
            brokers=["a"],
            assignments=[pb.Assignment(replicas=[0])] * partitions,
        )
        outcome = world.group.commit(pb.Command(create_stream=made).SerializeToString(), world.group.members[0])
        assert isinstance(outcome, Outcome)
        outcome.raise_for_refusal()
    member = world.group.members[0]
    registration = pb.RegisterBroker(broker=DEAD, life_id="1")
    registered = world.group.commit(pb.Command(register_broker=registration).SerializeToString(), member)
    assert isinstance(registered, Outcome)
    epoch = world.brokers["a"].service.controller_epoch
    life = pb.BrokerLife(broker=DEAD, incarnation=registered.value)
    dead = pb.BrokersDead(controller_epoch=epoch, brokers=[life])
    world.group.commit(pb.Command(brokers_dead=dead).SerializeToString(), member)
    nothing = total_traffic([])  # of as many streams as a message has room for
    world.brokers["a"].usage = {
        "streams": {
            name: {"bytes_on_disk": {str(number): 10**9 for number in range(partitions)}, "traffic": nothing}
            for name, partitions in [*sizes.items()][: bounds.streams // 3]
        }
    }


async def _asked(
    world: World, measure: Measure, name: str, requests: tuple[Mapping[str, Any], ...], bounds: Bounds
) -> Longest:
    """Refusals are answers, too."""
    operation = OPERATIONS[name]
    asked = []
    for request in requests:
        body = {
            key: _in_place_of_all(key, bounds.partitions) if value is ALL else value for key, value in request.items()
        }
        asked.append((SUBJECTS.api(name, body.get(operation.named)), json.dumps(body).encode()))
    with steps_measured(measure, LEFT_OUT) as longest:
        for subject, data in asked:
            await world.client.request(subject, data, timeout=TIMEOUT_S)
    return longest


def _in_place_of_all(key: str, partitions: int) -> Any:
    return {str(number): 5 for number in range(partitions)} if key == "before" else partitions


async def _of_routes(measure: Measure, state: ClusterState) -> dict[str, Longest]:
    pages = TopologyPages(state, "a", SUBJECTS, lambda: 1, 64 << 20)
    questions = {
        "a page of the topology": {"after": LARGE},
        "the topology of a large stream": {"streams": [LARGE]},
    }
    found = {}
    for what, question in questions.items():
        with steps_measured(measure) as longest:
            await asyncio.create_task(pages.page(json.dumps(question).encode()))
        found[what] = longest
    return found


async def _of_applied(measure: Measure, state: ClusterState) -> dict[str, Longest]:
    """What looks at all that is applied."""
    client = SimpleNamespace(cluster_status=_no_brokers, describe=_no_stream)
    address = "127.0.0.1:9292"
    gateway = Gateway(
        BrokerId("a"), cast(Any, client), cast(Any, None), SUBJECTS, lambda: state, address, AppliedWaits().until
    )
    liftbridge = MetadataCalls(gateway, cast(Any, SimpleNamespace(metadata=_no_groups)))
    activity = ActivityStream(
        cast(Any, None), cast(Any, None), epoch=lambda: 0, time_ns=lambda: 1, is_live=lambda: True
    )
    works: dict[str, Callable[[], Coroutine[Any, Any, Any]]] = {
        "FetchMetadata of Liftbridge": lambda: liftbridge.fetch(FetchMetadataRequest()),
        "a snapshot, for the activity stream": lambda: in_turns(activity.observe(state, NOTHING, from_snapshot=True)),
    }
    found = {}
    for what, work in works.items():
        with steps_measured(measure) as longest:
            await asyncio.create_task(work())
        found[what] = longest
    return found


async def _no_brokers() -> Any:
    return {"brokers": []}


async def _no_stream(name: str) -> Any:
    raise TidelogError(Code.UNKNOWN_STREAM, name)


async def _no_groups(groups: list[str]) -> list[Any]:
    return groups


async def _of_groups(world: World, measure: Measure, bounds: Bounds) -> dict[str, Longest]:
    """The controller puts the groups of all coordinators together."""
    form = {"state": "empty", "generation": 1, "members": 0, "streams": ["s"]}
    groups = [{"name": f"group{number:05}", **form} for number in range(bounds.partitions // 2)]
    answer = json.dumps({"groups": groups, "unanswered": []}).encode()
    transport = world.brokers["a"].transport

    def answering(message: Message) -> None:
        assert message.reply is not None
        transport.publish(message.reply, [answer])

    for partition in range(GROUPS.partitions):
        await transport.subscribe(SUBJECTS.coordinate(StreamName(GROUPS.name), partition), answering)
    return {"group.list, of all coordinators": await _asked(world, measure, "group.list", ({},), bounds)}


async def _told(broker: Broker, change: Callable[[], None]) -> None:
    change()
    notifying = broker._news._notifying
    assert notifying is not None
    await notifying


async def _of_replicas(measure: Measure, bounds: Bounds) -> dict[str, Longest]:
    """A broker with two times the partitions of a large stream: it leads half of them."""
    bench = Bench(asyncio.get_running_loop())
    context = bench.context
    context.disk = cast(Any, SimpleNamespace(status=dict, hangs=False))
    # The count of lines takes long: no follower is to lag meanwhile, for a leader asks for nothing else then.
    began = context.now()
    context.now = lambda: began
    keys = [replace(KEY, stream=StreamName(f"s{n % 2}"), partition=n // 2) for n in range(2 * bounds.partitions)]
    replicas = [Replica(key, Path("/data"), LogConfig()) for key in keys]
    await begin_leader_epoch(context, view(A, B), bench.log)
    for number, replica in enumerate(replicas):
        replica.traffic.on_in(1, 100, context.now())
        if number % 2:
            replica.role = LeaderDriver(bench.setup(view(A, B, key=replica.key)))
        else:
            replica.role = FollowerDriver(bench.setup(view(A, B, leader=B, key=replica.key)), first_sequence=0)
    data_dir = SimpleNamespace(manifest=Manifest(SimDisk(), Path("/"), {}))
    context.space = cast(Any, SimpleNamespace(status=dict))
    context.checkpoints = cast(Any, SimpleNamespace(request=lambda *_: None))
    broker = Broker(context, cast(Any, data_dir), replicas)

    def encoded(report: Callable[[], Steps[Any]]) -> Steps[bytes]:
        form = yield from report()
        return (yield from encoding(form))

    found = {}
    for what, steps in {
        "the report on a broker": encoded(broker.status),
        "the report on what takes up the disk": encoded(broker.usage),
        "the report on a large stream": encoded(lambda: broker.stream_status(StreamName("s0"))),
        "the look for checkpoints": broker._hw_checkpoints._look(),
    }.items():
        with steps_measured(measure) as longest:
            await asyncio.create_task(in_turns(steps))
        found[what] = longest
    for what, change in {
        "the connection to NATS is lost": lambda: broker._on_connection(False),
        "the connection to NATS is back": lambda: broker._on_connection(True),
        "the disk is full": lambda: broker._on_room(Room.FULL),
        "the disk has room": lambda: broker._on_room(Room.AMPLE),
        "the disk hangs": lambda: broker._on_disk(True),
        "the disk answers": lambda: broker._on_disk(False),
    }.items():
        # Timers of roles are steps of their own; those of so many would leave a loop that is counted no time.
        with patch.object(RoleTimer, "schedule", lambda _: None), steps_measured(measure) as longest:
            await asyncio.create_task(_told(broker, change))
        found[what] = longest
        await asyncio.sleep(0)  # what follows is no part of it
        bench.control.sent.clear()
    return found
