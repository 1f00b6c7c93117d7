"""One run: a cluster, its clients, a schedule of faults, then calm, in which everything must come right.

start     brokers register, the stream is made
faults    for some seconds, while producers write and consumers read
calm      all is healed and restarted, producers stop; until all replicas are in the ISR, everything sent is
          answered and everything committed is read, within CALM_LIMIT simulated seconds
last      a few more records, acknowledged at once; then every log is compared with the committed batches
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from unittest.mock import patch

from dataplane.broker.disk.storage_settings import StorageSettings
from dataplane.log.derived import derived_state
from dataplane.log.storage.data_dir import partition_directory
from dataplane.replica.derived.producer_table import DEFAULT_LIMITS
from dataplane.replica.replica_settings import ReplicaSettings
from metadata.controller.metadata_settings import MetadataSettings
from tests.simulation.cpu_limit import CPU_LIMIT, OutOfCpuTime, cpu_limit
from tests.simulation.faults import (
    Fault,
    carry_out,
    draw,
    draw_around,
    draw_forger,
    draw_later_scenario,
    draw_lost_files,
    draw_operator,
    draw_scenario,
    with_programs,
    with_reassignments,
    with_repartitions,
)
from tests.simulation.invariants import Invariants
from tests.simulation.invariants.messages import OnlyBrokersAreBelieved
from tests.simulation.machines.broker import DATA, SimBroker
from tests.simulation.machines.disk import AMPLE
from tests.simulation.machines.messaging import Nats, Weather
from tests.simulation.machines.turns import short_turns
from tests.simulation.plan import WINDOW_MS, RunPlan, draw_transactions
from tests.simulation.raft.group_model import RaftGroup
from tests.simulation.raft.raft_node import ordered_sets
from tests.simulation.raft.shipped_group import ShippedGroup, small_snapshots
from tests.simulation.scenarios.catalog import ASKED_SCENARIOS, LATER_SCENARIOS
from tests.simulation.users.clients import Workload
from tests.simulation.users.keyed import DEAF_SHARE, KeyedProducer, KeyReaders
from tests.simulation.users.members import SimGroup, small_groups
from tests.simulation.users.operators import Operator
from tests.simulation.users.reassignments import Reassigner
from tests.simulation.users.repartitions import Repartitioner
from tests.simulation.users.transactors import SimTransactors, small_transactions
from tests.simulation.world import InvariantBroken, Process, World, inhabited
from wire.subjects import Subjects
from wire.types import PartitionKey

_LATER = LATER_SCENARIOS | ASKED_SCENARIOS
START_LIMIT = 30.0
CALM_LIMIT = 60.0
STATE_INTERVAL = 2
"""In place of the log's own: these logs are short, and a truncation shall find states in memory here too."""
PROMPT = 0.5
"""Seconds that an acknowledgement may take when nothing goes wrong: less than a follower sleeps."""

QUICK = ReplicaSettings(
    replica_max_idle_wait=0.3,
    replica_max_leader_timeout=0.9,
    replica_max_lag_time=1.2,
    replica_fetch_timeout=0.15,
    liveness_grace=0.2,
    offset_retry=0.1,
    alter_isr_retry=0.2,
    late_tick=0.3,
)
USUAL_METADATA = MetadataSettings(bootstrap_wait_s=0.5, clock_settle_s=0.5)
QUICK_METADATA = replace(
    USUAL_METADATA, broker_silence_timeout_s=0.5, liveness_grace_s=0.2, witness_window_s=1.5, leader_lease_s=2.1
)
"""The lease ends before a controller that falls silent is replaced (`SHORTEST_LEASE_S`): leaders refuse meanwhile."""


@dataclass(slots=True)
class Result:
    seed: int
    broken: InvariantBroken | None = None
    trace: list[str] = field(default_factory=list)
    schedule: list[Fault] = field(default_factory=list)
    faults: dict[str, int] = field(default_factory=dict)
    simulated: float = 0.0
    steps: int = 0
    sent: int = 0
    acknowledged: int = 0
    refused: int = 0
    """Of those that expect an offset."""
    committed_batches: int = 0
    removed_records: int = 0
    """By retention."""
    passed_committed: int = 0
    """Times at which a log start passed what the group that reads keys had committed."""
    passed_cutovers: int = 0
    """Times at which it passed the end of a layout that this group had not read to."""
    seconds: float = 0.0


def _rng_of_plan(seed: int) -> Random:
    return Random(f"shape of {seed}")


def _rng_of_later_scenario(seed: int) -> Random:
    return Random(f"later scenario of {seed}")


def scenario_of(seed: int, asked: str | None = None) -> str | None:
    """`asked`: in place of the one that the seed gives, as in all of these; of `LATER_SCENARIOS` or
    `ASKED_SCENARIOS`."""
    return asked or draw_scenario(_rng_of_plan(seed)) or draw_later_scenario(_rng_of_later_scenario(seed))


def _rng_of_transactions(seed: int) -> Random:
    return Random(f"transactions of {seed}")


def has_transactions(seed: int) -> bool:
    return draw_transactions(_rng_of_transactions(seed), scenario_of(seed))


def plan_of(seed: int, asked: str | None = None) -> RunPlan:
    return _drawn(seed, _rng_of_plan(seed), asked)


def _drawn(seed: int, rng: Random, asked: str | None) -> RunPlan:
    """`rng`: of the plan, from its beginning; afterwards the schedule may be drawn of it."""
    first, scenario = draw_scenario(rng), scenario_of(seed, asked)
    plan = RunPlan.drawn(rng, None if asked else first).keeping_less(Random(f"retention of {seed}"))
    plan = plan.compacting(Random(f"compaction of {seed}"))
    plan = plan.forgetting(Random(f"producers of {seed}"))
    plan = plan.identifying(Random(f"message ids of {seed}"))
    plan = plan.pausing(Random(f"pause of {seed}"))
    plan = plan.grouping(Random(f"group of {seed}"), scenario)
    plan = plan.transacting(_rng_of_transactions(seed), scenario)
    plan = plan.repartitioning(Random(f"repartitions of {seed}"), scenario)
    plan = plan.reassigning(Random(f"reassignments of {seed}"), scenario)
    plan = plan.shipping(Random(f"Raft of {seed}"), scenario)
    return plan.of_later_scenario(scenario) if scenario in _LATER else plan


class Cluster:
    def __init__(self, world: World, schedule: list[Fault] | None = None, asked: str | None = None) -> None:
        rng = _rng_of_plan(world.seed)
        self.plan = _drawn(world.seed, rng, asked)
        names = tuple(f"b{number + 1}" for number in range(self.plan.brokers))
        if schedule is None:
            scenario = scenario_of(world.seed, asked)
            schedule = draw(rng, names, self.plan.duration, scenario if scenario not in _LATER else None)
            if scenario in _LATER:
                if scenario in ASKED_SCENARIOS:
                    schedule = schedule[::4]  # they are long
                schedule = draw_around(_rng_of_later_scenario(world.seed), scenario, schedule)
            if len(schedule) > 1:
                schedule += draw_forger(Random(f"forger of {world.seed}"), self.plan.duration)
                if self.plan.has_group:
                    chance = Random(f"members of {world.seed}")
                    schedule = with_programs(schedule, chance, names, self.plan.duration, "member")
                if self.plan.has_transactions:
                    chance = Random(f"transactors of {world.seed}")
                    schedule = with_programs(schedule, chance, names, self.plan.duration, "transactor")
                schedule += draw_operator(Random(f"operator of {world.seed}"), self.plan.duration)
                schedule += draw_lost_files(Random(f"lost files of {world.seed}"), names, self.plan.duration)
            if self.plan.has_repartitions and scenario is None:
                schedule = with_repartitions(schedule, Random(f"changes of {world.seed}"), self.plan.duration)
            if self.plan.has_reassignments and scenario is None:
                schedule = with_reassignments(schedule, Random(f"moves of {world.seed}"), self.plan.duration)
        self.schedule = schedule
        self.data = DATA
        self.world = world
        self.nats = Nats(self.world)
        # A copy that arrives when the producer is forgotten is refused, and its client takes that for the answer to the
        # only attempt (R33).
        self.nats.repeats_appends = self.plan.producers == DEFAULT_LIMITS
        self.nats.weather = self.usual_weather()
        if any(fault.kind == "forger" for fault in self.schedule):
            self.nats.believed = OnlyBrokersAreBelieved(self.world)
        self.subjects = Subjects()
        voters = tuple(f"{name}:7400" for name in names)
        self.raft = ShippedGroup(world, voters) if self.plan.ships_raft else RaftGroup(world, voters)
        self.brokers = {name: SimBroker(self.world, self.nats, self.raft, name, self.subjects) for name in names}
        self.invariants = Invariants(self.world, self.raft, self.brokers)
        self.raft.on_commit = self.invariants.committing
        self.world.after_step = self._after_turn
        self.faults: dict[str, int] = {}
        self.is_calm = False
        self.scenario_is_over = False
        self.fragile: set[str] = set()
        """Brokers with a loss that their stream does not promise to survive twice, and that are not back yet."""
        self.lowest_min_isr = self.plan.min_isr
        """That any stream had, or was to have: it decides which losses are survived."""
        self._processes: dict[str, SimBroker] = dict(self.brokers)
        for broker in self.brokers.values():
            broker.on_died = self._died
            broker.on_report = self.invariants.reported
            broker.on_crash = self.invariants.after_turn
            broker.disk_delay = self.plan.disk_delay
            usual = QUICK if self.plan.quick else ReplicaSettings()
            broker.replica_settings = replace(
                usual,
                push_to_waiters=self.plan.push_to_waiters,
                fetch_max_bytes=self.plan.fetch_max_bytes,
                gather_from=self.plan.gather_from,
            )
            broker.storage_settings = StorageSettings(
                housekeeping_interval=self.plan.housekeeping_interval,
                compaction_min_dirty_ratio=self.plan.min_dirty_ratio,
                compaction_memory=1 << 20,
                compaction_bytes_per_second=0,
                scrub_interval=1.0,
                producer_id_expiration_ms=self.plan.producers.expiration_ms,
                max_producers_per_partition=self.plan.producers.max_producers,
            )
            if self.plan.quick:
                broker.metadata_settings = QUICK_METADATA
            if self.plan.has_repartitions:
                broker.metadata_settings = replace(
                    broker.metadata_settings, repartition_adoption_timeout_s=self.plan.adoption_timeout_s
                )
        self.workloads = [
            Workload(
                self.world,
                self.nats,
                self.invariants,
                self.subjects,
                name,
                rate=self.plan.rate,
                keys=self.plan.keys,
                identifies=self.plan.identifies,
            )
            for name in ("c", "d")[: self.plan.streams]
        ]
        self.invariants.history.sessions = lambda key: [
            session for clients in self.workloads for session in clients.sessions(key)
        ]
        self.clients = self.workloads[0]
        """Of the stream that is made first."""
        settings = Random(f"group settings of {world.seed}")
        self.group = SimGroup(self.clients, self.subjects, settings) if self.plan.has_group else None
        settings = Random(f"transaction settings of {world.seed}")
        self.transactors = (
            SimTransactors(self.workloads, self.subjects, settings) if self.plan.has_transactions else None
        )
        settings = Random(f"settings of the readers of {world.seed}")
        self.readers = KeyReaders(self.clients, self.subjects, settings) if self.plan.has_repartitions else None
        self.key_producers: list[KeyedProducer] = []
        self.repartitioner = Repartitioner(self.clients)
        self.reassigner = Reassigner(self.workloads, names)
        metadata_settings = QUICK_METADATA if self.plan.quick else USUAL_METADATA
        self.operator = Operator(self.clients, metadata_settings.leader_lease_s)
        self._lifts: list[Callable[[], object]] = []

    def _after_turn(self, process: Process) -> None:
        broker = self._processes.get(process.name)
        if broker is not None and broker.process is process:
            self.invariants.after_turn(broker)

    def _died(self, broker: SimBroker) -> None:
        if broker.restart_after is not None:
            if broker.power_goes_with_it and self.may_lose_power(broker, dead=True):
                broker.disk.lose_power("random", self.world.rng)
            self.start_later(broker, broker.restart_after)
        broker.restart_after = None
        broker.power_goes_with_it = False

    def usual_weather(self) -> Weather:
        return Weather(latency=self.plan.latency)

    # ---- used by faults

    def lift(self, after: float, action: Callable[[], object]) -> None:
        """When a fault is over: then, or when the calm begins."""
        done = False

        def once() -> None:
            nonlocal done
            if not done:
                done = True
                action()

        self._lifts.append(once)
        self.world.after(after, once)

    def start_later(self, broker: SimBroker, after: float) -> None:
        self.lift(after, broker.start)

    def may_lose_disk(self, broker: SimBroker) -> bool:
        """One at a time: the one before must be back in every ISR."""
        if self.lowest_min_isr == 1:
            return False
        self._refresh_fragile()
        if self.fragile - {broker.id}:
            return False
        self.fragile.add(broker.id)
        return True

    def wipe(self, broker: SimBroker) -> None:
        broker.kill()
        broker.disk.wipe()
        broker.replaces_folder = True
        self.invariants.wiped(broker)

    def may_lose_power(self, broker: SimBroker, *, dead: bool = False) -> bool:
        if not dead and not broker.is_running:
            return False
        if broker.disk.flipped_below(self.data):
            return False  # in bytes synced since the last checkpoint it would look like a torn write
        return self.plan.durability.is_synced or self.may_lose_disk(broker)

    def disk_is_sound(self, broker: SimBroker) -> None:
        self.fragile.discard(broker.id)

    def _refresh_fragile(self) -> None:
        for name in [*self.fragile]:
            if self._is_back(self.brokers[name]):
                self.fragile.discard(name)

    def _is_back(self, broker: SimBroker) -> bool:
        if broker.broker is None or broker.broker.has_failed_replicas or broker.disk.failing_syncs:
            return False
        if any(path.suffix != ".index" for path in broker.disk.flipped_below(self.data)):
            return False
        known = self.raft.truth.brokers.get(broker.id)
        if known is None or known.life_id != f"{broker.id}-{broker.lives}" or not known.alive:
            return False
        return all(
            broker.id in partition.isr and not partition.is_withdrawn(broker.id)
            for _, partition in self.raft.truth.partitions()
            if broker.id in partition.replicas
        )

    def restart_if_failed(self, broker: SimBroker) -> None:
        """As an operator does after the report of a failed replica."""
        broker.disk.failing_syncs = 0
        if broker.broker is not None and broker.broker.has_failed_replicas:
            broker.kill()
        if not broker.is_running:
            broker.start()

    def leader(self) -> str:
        """Of the first partition; any broker where there is none."""
        for _, partition in self.raft.truth.partitions():
            if partition.leader is not None:
                return partition.leader
        return self.world.rng.choice(sorted(self.brokers))

    def recreate(self) -> bool:
        return self.clients.recreate()

    # ---- the run

    def run(self) -> None:
        world, plan, clients = self.world, self.plan, self.clients
        world.say(f"seed {world.seed}: {plan}")
        for fault in self.schedule:
            world.say(f"will be: {fault}")
        for broker in self.brokers.values():
            broker.start()
        config = {"durability": str(plan.durability), "segment_bytes": str(plan.segment_bytes)}
        config["min_isr"] = str(plan.min_isr)
        config.update({key: str(value) for key, value in plan.retention})
        if plan.identifies:
            config["dedup_window_ms"] = str(WINDOW_MS)
        if plan.auto_pause_time_ms:
            config["auto_pause_time_ms"] = str(plan.auto_pause_time_ms)
        if plan.keys:
            config |= {"compact": "true", "tombstone_retention_ms": str(plan.tombstone_retention_ms)}
        self._create("s", clients, config)
        clients.spawn(clients.feed_back)
        for acks in ("all", "all", "leader", "none"):
            clients.spawn(lambda acks=acks: clients.produce(acks))  # type: ignore[misc]
        clients.spawn(lambda: clients.produce("all", plan.asked))
        clients.spawn(clients.publish)
        clients.spawn(clients.consume)
        clients.spawn(clients.ask_for_the_end)
        if self.group is not None:
            self.group.begin(START_LIMIT)
        if self.readers is not None:
            self.readers.begin(START_LIMIT)
            clients.spawn(clients.follow_partitions)
            is_one_deaf = Random(f"deaf producer of {world.seed}").random() < DEAF_SHARE
            self.key_producers = [
                KeyedProducer(clients, self.subjects, number, is_deaf=is_one_deaf and number == 1) for number in (0, 1)
            ]
        for other in self.workloads[1:]:
            self._create("t", other, config)
            other.spawn(lambda other=other: other.produce("all"))  # type: ignore[misc]
            other.spawn(other.consume)
        if self.transactors is not None:
            kept = {name: config[name] for name in ("durability", "segment_bytes", "min_isr")}
            self.transactors.begin(START_LIMIT, kept, plan.replication_factor)
        for fault in self.schedule:
            world.after(0.3 + fault.at, lambda fault=fault: self._strike(fault))
        is_all = len(self.schedule) == 1
        if world.run_until(world.now + 0.3 + plan.duration, lambda: is_all and self.scenario_is_over):
            world.run_until(world.now + 0.3)
        self._heal()
        self._settle("after the faults")
        self._write_more()
        self._settle("after the last records")
        if self.group is not None:
            self.group.ask_at_the_end()
        if self.transactors is not None:
            self.transactors.ask_at_the_end()
        if self.group is not None or self.transactors is not None:
            self._settle("after the last question")
        self._compare()

    def _create(self, name: str, clients: Workload, config: dict[str, str]) -> None:
        plan = self.plan
        clients.spawn(
            lambda: clients.create(
                name, partitions=plan.partitions, replication_factor=plan.replication_factor, config=config
            )
        )
        if not self.world.run_until(self.world.now + START_LIMIT, lambda: clients.incarnation != 0):
            self.world.broken("Liveness", f"no stream after {START_LIMIT} s")

    def _strike(self, fault: Fault) -> None:
        if not self.is_calm:
            carry_out(fault, self)

    def _heal(self) -> None:
        world = self.world
        self.is_calm = True
        world.say("CALM")
        for clients in self.workloads:
            clients.stopped = True
        for broker in self.brokers.values():
            broker.disk.crash_at = -1
            broker.disk.capacity = AMPLE
            broker.disk.failing_syncs = 0
        lifts, self._lifts = self._lifts, []
        for lift in lifts:
            lift()
        self.raft.snapshot_share = 0.1
        self.nats.weather = self.usual_weather()
        self.nats.cut_off_crawling()
        for broker in self.brokers.values():
            self.lift(0, lambda broker=broker: self.restart_if_failed(broker))  # type: ignore[misc]

    def _settle(self, when: str) -> None:
        world = self.world
        deadline = world.now + CALM_LIMIT
        restart_at = world.now + 10
        while world.now < deadline:
            world.run_until(world.now + 0.25)
            if self.unsettled() is None:
                return
            if world.now >= restart_at:
                restart_at = world.now + 10
                if any(partition.readonly for _, partition in self.raft.truth.partitions()):
                    self.operator.set_readonly(False)
                for broker in self.brokers.values():
                    self.restart_if_failed(broker)
        world.broken("Liveness", f"{when}, {CALM_LIMIT:.0f} s later: {self.unsettled()}")

    def unsettled(self) -> str | None:
        """The first condition of a calm cluster that does not hold, or None."""
        truth = self.raft.truth
        if not all(clients.incarnation for clients in self.workloads):
            return "the stream is not created anew"
        for broker in self.brokers.values():
            if broker.broker is None:
                return f"{broker.id} does not run ({broker.fatal})"
            if broker.is_stopping:
                return f"{broker.id} is stopping"
            if not truth.is_alive(broker.id):
                return f"{broker.id} is not registered"
            if broker.broker.context.space.is_full:
                return f"{broker.id} has not found yet that its disk has room"
            if not self.raft.has_applied_all(broker.raft_address):
                return f"{broker.id} has not applied all that the metadata group has committed"
            for path in broker.disk.flipped_below(self.data):
                if path.suffix == ".log":
                    return f"{path} on {broker.id} is damaged, and nobody notices"
            if left := self._left_folders(broker):
                return f"{broker.id} keeps {left[0]}, where it has no partition any more"
        for key, partition in truth.partitions():
            if partition.leader is None:
                return f"{key} has no leader: {partition}"
            if len(partition.isr) < len(partition.replicas):
                return f"{key} has ISR {partition.isr}: {partition}"
            ends = set()
            for name in partition.replicas:
                running = self.brokers[name].broker
                replica = running._replicas.get(key) if running is not None else None
                if replica is None:
                    return f"{key} is not on {name}"
                ends |= {replica.high_watermark, replica.log_end_offset}
            if len(ends) > 1:
                return f"{key} has ends {sorted(ends)}"
            if partition.readonly:
                return f"{key} is read-only"
        for operator in (self.operator, self.repartitioner, self.reassigner):
            if (unsettled := operator.unsettled()) is not None:
                return unsettled
        waiting = sum(clients.open for clients in self.workloads)
        if waiting:
            return f"{waiting} records have no answer"
        consumed = {clients.stream: clients.consumed for clients in self.workloads}
        for key, history in self.invariants.history.of.items():
            if truth.partition(key) is not None and key.stream in consumed:
                read = consumed[key.stream].get((key.stream_incarnation, key.partition), 0)
                read = max(read, history.removed_to)
                if read < history.end and not self._is_empty(key) and not history.holds_nothing(read, history.end):
                    return f"the consumer of {key} is at {read}, committed is {history.end}"
        for programs in (self.transactors, self.readers):
            if programs is not None and (unsettled := programs.unsettled()) is not None:
                return unsettled
        return self.group.unsettled() if self.group is not None else None

    def _left_folders(self, broker: SimBroker) -> list[Path]:
        """Folders of partitions and of streams that belong to no partition of the broker."""
        logs = [
            partition_directory(self.data, key)
            for key, partition in self.raft.truth.partitions()
            if broker.id in partition.replicas
        ]
        wanted = {*logs, *(log.parent for log in logs)}
        disk = broker.disk
        streams = [self.data / name for name in disk.names(self.data)]
        found = [*streams, *(stream / name for stream in streams for name in disk.names(stream))]
        return [path for path in found if disk.is_directory(path) and path not in wanted]

    def _is_empty(self, key: PartitionKey) -> bool:
        """Its leader has no record any more: nothing is left to be read."""
        partition = self.raft.truth.partition(key)
        broker = self.brokers[partition.leader].broker if partition is not None and partition.leader else None
        replica = broker._replicas.get(key) if broker is not None else None
        if replica is None or replica._log is None or partition is None:
            return False
        return max(replica._log.log_start_offset, partition.purged_end) == replica.log_end_offset

    def _write_more(self) -> None:
        clients, world = self.clients, self.world
        world.say("the last records")
        clients.stopped = False
        clients.slowest = 0.0
        clients.spawn(lambda: clients.produce("all"))
        before = clients.acknowledged
        world.run_until(world.now + 20, lambda: clients.acknowledged >= before + 5)
        if clients.acknowledged < before + 5:
            world.broken("Liveness", f"only {clients.acknowledged - before} of the last records were acknowledged")
        if clients.slowest > PROMPT and self.plan.latency < 0.01:
            world.broken("Promptness", f"one of the last records took {clients.slowest:.3f} s to be acknowledged")
        clients.stopped = True

    def _compare(self) -> None:
        truth = self.raft.truth.snapshot()
        for name, broker in self.brokers.items():
            assert broker.metadata is not None
            if self.raft.has_applied_all(broker.raft_address) and broker.metadata.state.snapshot() != truth:
                self.world.broken("OneMetadataState", f"{name} has come to another state by the same commands")
        for key, partition in self.raft.truth.partitions():
            for name in partition.replicas:
                broker = self.brokers[name]
                assert broker.broker is not None
                replica = broker.broker._replicas[key]
                self.invariants.history.check_prefix(broker, replica, "ReplicasAgree", "at the end")
                derived = "DerivedStateFollowsFromTheLog"
                self.invariants.history.check_derived_state(broker, replica, derived, "at the end")
        self.invariants.at_the_end()


def run(
    seed: int,
    *,
    traced: bool = False,
    schedule: list[Fault] | None = None,
    scenario: str | None = None,
    cpu_seconds: float = CPU_LIMIT,
) -> Result:
    """One seed, from beginning to end. `schedule`, `scenario`: in place of those that the seed gives. A run that takes
    more CPU time than `cpu_seconds` has failed."""
    began = time.perf_counter()
    world = World(seed, traced=traced)
    with (
        inhabited(world),
        patch.object(derived_state, "STATE_INTERVAL", STATE_INTERVAL),
        short_turns(),
        ordered_sets(),
        small_snapshots(),
        small_groups(),
        small_transactions(),
    ):
        cluster = Cluster(world, schedule, scenario)
        broken: InvariantBroken | None = None
        try:
            with cpu_limit(cpu_seconds):
                cluster.run()
        except InvariantBroken as error:
            broken = error
        except OutOfCpuTime as error:
            broken = InvariantBroken("NoProgress", str(error))
            world.say(f"BROKEN {broken}")
        except Exception as error:  # noqa: BLE001 - a bug of the simulator: the seed is to be named, and others go on
            where = traceback.extract_tb(error.__traceback__)[-1]
            broken = InvariantBroken("Simulator", f"{error!r} in {where.filename}:{where.lineno}")
    return Result(
        seed=seed,
        broken=broken,
        trace=world.trace,
        schedule=cluster.schedule,
        faults=cluster.faults,
        simulated=world.now,
        steps=world.steps,
        sent=sum(clients.sent for clients in cluster.workloads),
        acknowledged=sum(clients.acknowledged for clients in cluster.workloads),
        refused=sum(clients.refused for clients in cluster.workloads),
        removed_records=sum(history.removed_to for history in cluster.invariants.history.of.values()),
        passed_committed=cluster.invariants.committed_reading.passed_committed,
        passed_cutovers=cluster.invariants.committed_reading.passed_cutovers,
        committed_batches=cluster.invariants.history.batches,
        seconds=time.perf_counter() - began,
    )
