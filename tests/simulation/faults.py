"""Faults, with their times and durations: drawn from the seed before the run begins, so that a schedule can be
printed, replayed and made smaller.

A fault that would go beyond what the stream's durability promises to survive is not carried out: two disks lost before
the first one's replica is back, or, on a stream that acknowledges from the page cache, the power of two machines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING

from tests.simulation.machines.disk import AMPLE, SURVIVALS, Survival, damageable_files, is_nothing_torn, vouched_places
from tests.simulation.machines.lost_files import HARMS, PARTS, lose_files
from tests.simulation.machines.messaging import Weather
from tests.simulation.scenarios.catalog import ASKED_SCENARIOS, LATER_SCENARIOS, SCENARIOS
from tests.simulation.scenarios.running import ScenarioRun
from tests.simulation.users.forger import Forger
from tests.simulation.users.keyed import READERS
from tests.simulation.users.members import MEMBERS
from tests.simulation.users.reassignments import CHANGES as MOVES
from tests.simulation.users.repartitions import CHANGES
from tests.simulation.users.transactors import TRANSACTORS

if TYPE_CHECKING:
    from tests.simulation.run import Cluster


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    at: float
    """Seconds after the faults begin."""
    kind: str
    broker: str = ""
    lasts: float = 0.0
    detail: str = ""
    number: int = 0

    def __str__(self) -> str:
        parts = [f"at {self.at:.3f}", self.kind, self.broker, self.detail]
        if self.lasts:
            parts.append(f"for {self.lasts:.3f} s")
        if self.number:
            parts.append(f"({self.number})")
        return " ".join(part for part in parts if part)


LEADER = "leader"
"""In place of a broker: the leader of the first partition at the time of the fault."""

WEIGHTS: dict[str, float] = {
    "kill": 10,
    "power": 8,
    "stop": 3,
    "crash in a call": 8,
    "pause": 6,
    "cut nats": 7,
    "cut raft": 5,
    "isolate": 6,
    "lose connection": 5,
    "nats restart": 4,
    "raft election": 6,
    "raft stalls": 4,
    "bad weather": 6,
    "slow disk": 4,
    "hung disk": 4,
    "slow link": 4,
    "late applies": 5,
    "clock jump": 5,
    "wipe": 2,
    "failing fsync": 2,
    "full disk": 6,
    "bit flip": 4,
    "zombie": 6,
    "relay": 4,
    "kill all": 2,
    "power all": 3,
    "recreate": 2,
    "move leader": 5,
    "alter": 4,
}


FORGER_SHARE = 0.5
OPERATOR_SHARE = 0.4
LOST_FILES_SHARE = 0.15
OLDER_BY = 3.0
"""Seconds between a copy of files and their return: the manifest has been written since."""

CLOCK_JUMPS_NS = tuple(hours * 3600 * 1_000_000_000 for hours in (1, -1, 8 * 24, -8 * 24))
"""The wall clock of one broker at a time is off by one of them, or by none."""
SCENARIO_SHARE = 0.5
LATER_SCENARIO_SHARE = 0.08
"""Of the other half."""
ALONE_SHARE = 0.6
"""Share of the runs with a scenario in which nothing else happens."""


def draw_scenario(rng: Random) -> str | None:
    return rng.choice(sorted(SCENARIOS)) if rng.random() < SCENARIO_SHARE else None


def draw_later_scenario(rng: Random) -> str | None:
    """For the runs that have none of the others; from a source of its own, so that these stay as they are."""
    return rng.choice(sorted(LATER_SCENARIOS)) if rng.random() < LATER_SCENARIO_SHARE else None


def draw_around(rng: Random, scenario: str, schedule: list[Fault]) -> list[Fault]:
    """The schedule of a run with a scenario of `draw_later_scenario`."""
    first = Fault(at=rng.random() * 0.5, kind="scenario", detail=scenario)
    return [first] if rng.random() < ALONE_SHARE else [first, *(f for f in schedule if f.kind != "recreate")]


def draw(rng: Random, brokers: tuple[str, ...], duration: float, scenario: str | None) -> list[Fault]:
    """A schedule: some kinds of fault only, so that runs differ in character."""
    first = []
    if scenario is not None:
        first.append(Fault(at=rng.random() * 0.5, kind="scenario", detail=scenario))
        if rng.random() < ALONE_SHARE:
            return first
    kinds = [kind for kind in WEIGHTS if WEIGHTS[kind] and rng.random() < 0.5] or ["kill"]
    weights = [WEIGHTS[kind] for kind in kinds]
    pause = rng.choice((0.15, 0.4, 1.0, 2.5))
    schedule = []
    at = rng.random() * 0.3
    while at < duration:
        kind = rng.choices(kinds, weights)[0]
        schedule.append(
            Fault(
                at=at,
                kind=kind,
                broker=rng.choice((*brokers, LEADER, LEADER)),
                lasts=rng.choice((0.02, 0.3, 1.0, 3.0)) * (0.5 + rng.random()),
                detail=rng.choice(SURVIVALS) if kind.startswith("power") else "",
                number=rng.randrange(1, 60) if kind in ("crash in a call", "bit flip") else rng.randrange(1, 4),
            )
        )
        at += rng.expovariate(1.0) * pause
    return [*first, *schedule]


def draw_forger(rng: Random, duration: float) -> list[Fault]:
    """For a share of the runs; from a source of its own, so that the others stay as they are."""
    if rng.random() >= FORGER_SHARE:
        return []
    return [Fault(at=rng.random() * duration / 2, kind="forger", lasts=0.5 + rng.random() * duration / 2)]


def draw_operator(rng: Random, duration: float) -> list[Fault]:
    """As `draw_forger`."""
    if rng.random() >= OPERATOR_SHARE:
        return []
    kinds = rng.choice(
        (("delete records",), ("readonly",), ("pause partitions",), ("delete records", "readonly", "pause partitions"))
    )
    return [
        Fault(at=rng.random() * duration, kind=rng.choice(kinds), lasts=rng.choice((0.05, 0.3, 1.0)))
        for _ in range(rng.randrange(1, 5))
    ]


def draw_lost_files(rng: Random, brokers: tuple[str, ...], duration: float) -> list[Fault]:
    """As `draw_forger`."""
    if rng.random() >= LOST_FILES_SHARE:
        return []
    return [
        Fault(
            at=rng.random() * duration,
            kind="lost files",
            broker=rng.choice((*brokers, LEADER)),
            lasts=rng.choice((0.02, 0.3, 1.0)) * (0.5 + rng.random()),
            detail=f"{rng.choice(PARTS)}, {rng.choice(HARMS)}",
            number=rng.randrange(1, 5),
        )
        for _ in range(rng.randrange(1, 3))
    ]


def with_repartitions(schedule: list[Fault], rng: Random, duration: float) -> list[Fault]:
    """Repartitions, and what happens to the readers of keys; the rest is thinned, as below."""
    schedule = schedule[:: rng.choice((1, 2, 4, 8))]
    changes = [
        Fault(at=rng.random() * duration, kind="repartition", detail=rng.choice(CHANGES))
        for _ in range(rng.randrange(1, 5))
    ]
    readers = [
        Fault(
            at=rng.random() * duration,
            kind="reader",
            detail=rng.choice(("kill", "pause", "cut")),
            lasts=rng.choice((0.1, 0.5, 1.5)) * (0.5 + rng.random()),
            number=rng.randrange(READERS),
        )
        for _ in range(rng.randrange(4))
    ]
    return [*schedule, *changes, *readers]


def with_reassignments(schedule: list[Fault], rng: Random, duration: float) -> list[Fault]:
    """Partitions get other replicas, in the middle of everything else, which is thinned in some runs."""
    moves = [
        Fault(at=rng.random() * duration, kind="reassign", detail=rng.choice(MOVES)) for _ in range(rng.randrange(1, 5))
    ]
    return [*schedule[:: rng.choice((1, 1, 2, 4))], *moves]


MEMBER_FAULTS = ("pause", "pause", "kill", "kill", "leave", "slow", "cut", "cut", "move")
TRANSACTOR_FAULTS = ("kill", "kill", "pause", "stop", "twin", "zombie", "cut", "move", "abort")


def with_programs(
    schedule: list[Fault], rng: Random, brokers: tuple[str, ...], duration: float, kind: str
) -> list[Fault]:
    """What happens to the members of a group (`kind` "member") or to programs with transactions ("transactor"), and to
    their coordinator; the rest is thinned, because they come to nothing in a cluster without a quiet moment."""
    all_kinds, programs, thinnings = (
        (MEMBER_FAULTS, MEMBERS, (1, 3, 8)) if kind == "member" else (TRANSACTOR_FAULTS, TRANSACTORS, (1, 2, 5))
    )
    schedule = schedule[:: rng.choice(thinnings)]
    kinds = [each for each in all_kinds if rng.random() < 0.6] or ["kill"]
    return schedule + [
        Fault(
            at=rng.random() * duration,
            kind=kind,
            broker=rng.choice(brokers),
            detail=rng.choice(kinds),
            lasts=rng.choice((0.1, 0.5, 1.5, 3.0)) * (0.5 + rng.random()),
            number=rng.randrange(programs),
        )
        for _ in range(rng.randrange(2, 3 + int(2 * duration)))
    ]


def carry_out(fault: Fault, cluster: Cluster) -> None:
    """Does nothing where it cannot apply."""
    if fault.broker == LEADER:
        fault = replace(fault, broker=cluster.leader())
    cluster.world.say(f"FAULT {fault}")
    if _DO[fault.kind](fault, cluster):
        kind = f"{fault.kind} {fault.detail}" if fault.kind == "scenario" else fault.kind
        cluster.faults[kind] = cluster.faults.get(kind, 0) + 1


def _kill(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    if not broker.is_running:
        return False
    broker.kill()
    cluster.start_later(broker, fault.lasts)
    return True


def _power(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    if not cluster.may_lose_power(broker):
        return False
    broker.lose_power(_survival(fault.detail))
    cluster.start_later(broker, fault.lasts)
    return True


def _survival(text: str) -> Survival:
    return next(how for how in SURVIVALS if how == text)


def _stop(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    if not broker.is_running:
        return False
    broker.restart_after = fault.lasts
    broker.stop()
    return True


def _crash(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    if not broker.is_running:
        return False
    broker.disk.crash_in(fault.number)
    broker.restart_after = fault.lasts
    broker.power_goes_with_it = fault.lasts > 1.0
    return True


def _pause(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    process = broker.process
    if process is None or process.paused:
        return False
    process.pause()
    cluster.raft.check()
    cluster.lift(fault.lasts, process.resume)
    return True


def _cut_nats(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    up, down = fault.number != 2, fault.number != 3
    which = broker.connections if fault.lasts > 0.3 else broker.connections[fault.number % 2 :][:1]
    for connection in which:
        cluster.nats.block(connection, up=up, down=down)
    connections = list(which)
    cluster.lift(fault.lasts * 2, lambda: cluster.nats.unblock(*connections))
    return bool(connections)


def _cut_raft(fault: Fault, cluster: Cluster) -> bool:
    address = cluster.brokers[fault.broker].raft_address
    if address in cluster.raft.cut:
        return False
    cluster.raft.cut_off(address)
    cluster.lift(fault.lasts * 2, lambda: cluster.raft.rejoin(address))
    return True


def _isolate(fault: Fault, cluster: Cluster) -> bool:
    return _cut_nats(fault, cluster) | _cut_raft(fault, cluster)


def _lose_connection(fault: Fault, cluster: Cluster) -> bool:
    for connection in cluster.brokers[fault.broker].connections[fault.number % 2 :]:
        cluster.nats.cut_off(connection)
    return True


def _nats_restart(fault: Fault, cluster: Cluster) -> bool:
    cluster.nats.restart(fault.lasts)
    return True


def _election(_: Fault, cluster: Cluster) -> bool:
    cluster.raft.depose()
    return True


def _raft_stalls(fault: Fault, cluster: Cluster) -> bool:
    raft = cluster.raft
    raft.commit_delay = 0.2
    raft.lose_outcomes = 0.3

    def over() -> None:
        raft.commit_delay, raft.lose_outcomes = 0.0015, 0.0

    cluster.lift(fault.lasts, over)
    return True


def _weather(fault: Fault, cluster: Cluster) -> bool:
    rng = cluster.world.rng
    cluster.nats.weather = Weather(
        latency=rng.choice((0.0001, 0.001, 0.02)),
        loss=rng.choice((0.0, 0.01, 0.2)),
        duplication=rng.choice((0.0, 0.05, 0.3)),
        in_order=rng.random() < 0.5,
        any_order=rng.random() < 0.4,
    )

    def over() -> None:
        cluster.nats.weather = cluster.usual_weather()

    cluster.lift(fault.lasts * 2, over)
    return True


def _slow_disk(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    delay = (0.005, 0.05, 0.3)[fault.number - 1]

    def now(delay: float) -> None:
        broker.disk_delay = delay
        if broker.process is not None:
            broker.process.disk_delay = delay

    now(delay)
    cluster.lift(fault.lasts, lambda: now(cluster.plan.disk_delay))
    return True


def _hung_disk(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    cluster.world.say(f"the disk of {broker.id} hangs")
    broker.hang(reads=fault.number == 1)
    cluster.lift(fault.lasts * 2, broker.answer)
    return True


def _slow_link(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    slowness = (10.0, 100.0, 1000.0)[fault.number - 1]

    def now(slowness: float) -> None:
        broker.link_slowness = slowness
        broker.link_changed_at = cluster.world.now
        for connection in broker.connections:
            connection.slowness = slowness

    now(slowness)
    cluster.lift(fault.lasts, lambda: now(1.0))
    return True


def _late_applies(fault: Fault, cluster: Cluster) -> bool:
    member = cluster.raft.nodes.get(cluster.brokers[fault.broker].raft_address)
    if member is None:
        return False
    member.slowness = (50.0, 500.0, 2000.0)[fault.number - 1]
    cluster.raft.snapshot_share = 0.5

    def over() -> None:
        member.slowness = 1.0

    cluster.lift(fault.lasts, over)
    return True


def _clock_jump(fault: Fault, cluster: Cluster) -> bool:
    """Sometimes back to where it was."""
    skew = CLOCK_JUMPS_NS[int(fault.at * 1000) % len(CLOCK_JUMPS_NS)] if fault.number > 1 else 0
    for broker in cluster.brokers.values():
        broker.wall_skew_ns = skew if broker.id == fault.broker else 0
        if broker.process is not None:
            broker.process.wall_skew_ns = broker.wall_skew_ns
    return True


def _wipe(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    if not cluster.may_lose_disk(broker):
        return False
    cluster.wipe(broker)
    cluster.start_later(broker, fault.lasts)
    return True


def _lost_files(fault: Fault, cluster: Cluster) -> bool:
    """While the broker is down, alone or with all others. `number`: who goes down, and who is back first."""
    broker = cluster.brokers[fault.broker]
    part, harm = fault.detail.split(", ")
    older = broker.disk.copy() if harm == "older" else None

    def strike() -> None:
        was_sound = broker.id not in cluster.fragile
        if cluster.is_calm or not cluster.may_lose_disk(broker):
            return
        others = [other for other in cluster.brokers.values() if other is not broker] if fault.number > 1 else []
        for each in (broker, *others):
            each.kill()
        done = lose_files(broker.disk, cluster.data, part, older, cluster.world.rng, emptied=harm == "emptied")
        broker.replaces_folder |= done and part == "identity" and harm != "older"
        cluster.world.say(f"{broker.id} {'has lost' if done else 'keeps'} its files: {fault.detail}")
        if not done and was_sound:
            cluster.disk_is_sound(broker)
        for number, each in enumerate([*others, broker] if fault.number == 2 else [broker, *others]):
            cluster.start_later(each, fault.lasts * (1 + number))

    if older is None:
        strike()
    else:
        cluster.world.after(OLDER_BY, strike)
    return True


def _failing_fsync(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    if not broker.is_running or not cluster.may_lose_disk(broker):
        return False
    broker.disk.failing_syncs = 1
    cluster.lift(fault.lasts + 3, lambda: cluster.restart_if_failed(broker))
    return True


def _full_disk(fault: Fault, cluster: Cluster) -> bool:
    broker = cluster.brokers[fault.broker]
    if not broker.is_running:
        return False
    broker.disk.capacity = broker.disk.used + 700 * fault.number

    def over() -> None:
        broker.disk.capacity = AMPLE

    cluster.lift(fault.lasts, over)
    return True


def _bit_flip(fault: Fault, cluster: Cluster) -> bool:
    """In any file of a partition, while the broker runs or while it is down."""
    broker, rng = cluster.brokers[fault.broker], cluster.world.rng
    was_sound = broker.id not in cluster.fragile
    if not cluster.may_lose_disk(broker):
        return False
    files = damageable_files(broker.disk, cluster.data)
    logs = [(path, size) for path, size in files if path.suffix == ".log"]
    if files and is_nothing_torn(broker.disk, cluster.data):
        path, size = rng.choice(logs if logs and fault.number % 3 else files)
        start, end = 0, size
    else:
        places = vouched_places(broker.disk, cluster.data)
        if not places:
            if was_sound:  # else an earlier fault has harmed it
                cluster.disk_is_sound(broker)
            return False
        path, start, end = places[fault.number % len(places)]
    broker.power_goes_with_it = False  # as in `Cluster.may_lose_power`
    if fault.lasts > 0.3 and broker.is_running:
        broker.kill()
        cluster.start_later(broker, fault.lasts)
    broker.disk.flip_bit(path, rng.randrange(start, end), fault.number % 8)
    return True


def _zombie(fault: Fault, cluster: Cluster) -> bool:
    """It sleeps, is deposed, wakes, and does not hear of it: NATS reaches it, Raft does not."""
    broker = cluster.brokers[fault.broker]
    process = broker.process
    if process is None or process.paused or broker.raft_address in cluster.raft.cut:
        return False
    cluster.raft.cut_off(broker.raft_address)
    process.pause()
    sleeps = 0.4 + fault.lasts / 3
    cluster.lift(sleeps, process.resume)
    cluster.lift(sleeps + 0.3 + fault.lasts, lambda: cluster.raft.rejoin(broker.raft_address))
    return True


def _relay(fault: Fault, cluster: Cluster) -> bool:
    """One leader after the other dies, each soon back."""
    for number in range(2 + fault.number):

        def next_one() -> None:
            leader = cluster.brokers[cluster.leader()]
            if leader.is_running and not cluster.is_calm:
                leader.kill()
                cluster.start_later(leader, 0.02 + fault.lasts / 4)

        cluster.world.after(number * (0.05 + fault.lasts / 6), next_one)
    return True


def _all(do: Callable[[Fault, Cluster], bool]) -> Callable[[Fault, Cluster], bool]:
    def each(fault: Fault, cluster: Cluster) -> bool:
        done = False
        for number, name in enumerate(cluster.brokers):
            done |= do(
                Fault(at=fault.at, kind=fault.kind, broker=name, lasts=fault.lasts + number * 0.1, detail=fault.detail),
                cluster,
            )
        return done

    return each


def _scenario(fault: Fault, cluster: Cluster) -> bool:
    name = f"scenario {fault.detail}, to its end"

    def ended(to_its_end: bool) -> None:
        cluster.scenario_is_over = True
        if to_its_end:
            cluster.faults[name] = cluster.faults.get(name, 0) + 1

    ScenarioRun(cluster).begin((SCENARIOS | LATER_SCENARIOS | ASKED_SCENARIOS)[fault.detail], ended)
    return True


def _recreate(_: Fault, cluster: Cluster) -> bool:
    return cluster.recreate()


def _move_leader(_: Fault, cluster: Cluster) -> bool:
    """As an operator asks for it; it may come to nothing."""
    return cluster.clients.move_leader()


def _alter(_: Fault, cluster: Cluster) -> bool:
    """Another min ISR, never so low that a disk that is lost elsewhere takes records with it."""
    return cluster.clients.alter(min(cluster.plan.min_isr, 2))


def _delete_records(_: Fault, cluster: Cluster) -> bool:
    return cluster.operator.delete_records()


def _readonly(fault: Fault, cluster: Cluster) -> bool:
    if not cluster.operator.set_readonly(True):
        return False
    cluster.lift(fault.lasts, lambda: cluster.operator.set_readonly(False))
    return True


def _pause_partitions(_: Fault, cluster: Cluster) -> bool:
    return cluster.operator.pause()


def _forger(fault: Fault, cluster: Cluster) -> bool:
    if cluster.nats.believed is None:
        return False
    forger = Forger(cluster.nats, cluster.subjects)
    forger.begin()
    cluster.lift(fault.lasts, forger.end)
    return True


def _member(fault: Fault, cluster: Cluster) -> bool:
    group, number = cluster.group, fault.number
    if group is None:
        return False
    member = group.members[number]
    if fault.detail == "move":
        group.move_coordinator(fault.broker)
        return True
    if not member.process.alive or member.process.paused:
        return False
    match fault.detail:
        case "pause":
            member.process.pause()
            cluster.lift(fault.lasts * 2, member.process.resume)
        case "kill":
            member.die()
            cluster.lift(fault.lasts, lambda: group.restart(number))
        case "leave":
            member.leave()
            cluster.lift(fault.lasts, lambda: group.restart(number))
        case "slow":
            member.is_slow = True
            cluster.lift(fault.lasts * 2, lambda: setattr(member, "is_slow", False))
        case _:
            cluster.nats.block(member.connection, up=fault.lasts < 1.0, down=fault.lasts > 0.3)
            cluster.lift(fault.lasts * 2, lambda: cluster.nats.unblock(member.connection))
    return True


def _repartition(fault: Fault, cluster: Cluster) -> bool:
    return cluster.repartitioner.change(fault.detail)


def _reassign(fault: Fault, cluster: Cluster) -> bool:
    return cluster.reassigner.change(fault.detail)


def _reader(fault: Fault, cluster: Cluster) -> bool:
    readers, number = cluster.readers, fault.number
    if readers is None:
        return False
    member = readers.members[number]
    if not member.process.alive or member.process.paused:
        return False
    match fault.detail:
        case "pause":
            member.process.pause()
            cluster.lift(fault.lasts * 2, member.process.resume)
        case "kill":
            member.die()
            cluster.lift(fault.lasts, lambda: readers.restart(number))
        case _:
            cluster.nats.block(member.connection, up=fault.lasts < 1.0, down=fault.lasts > 0.3)
            cluster.lift(fault.lasts * 2, lambda: cluster.nats.unblock(member.connection))
    return True


def _transactor(fault: Fault, cluster: Cluster) -> bool:
    them, number = cluster.transactors, fault.number
    if them is None:
        return False
    one = them.newest[number]
    match fault.detail:
        case "move":
            them.move_coordinator(fault.broker)
            return True
        case "abort":
            them.abort(number)
            return True
        case _ if not one.process.alive or one.process.paused:
            return False
        case "pause":
            one.process.pause()
            cluster.lift(fault.lasts * 2, one.process.resume)
        case "kill":
            one.die()
            cluster.lift(fault.lasts / 3, lambda: them.restart(number))
        case "stop":
            one.stop(lambda: cluster.lift(fault.lasts / 3, lambda: them.restart(number)))
        case "twin":
            them.restart(number)
        case "zombie":
            one.process.pause()
            cluster.lift(fault.lasts / 3, lambda: them.restart(number))
            cluster.lift(fault.lasts, one.process.resume)
        case _:
            cluster.nats.block(one.connection, up=fault.lasts < 1.0, down=fault.lasts > 0.3)
            cluster.lift(fault.lasts * 2, lambda: cluster.nats.unblock(one.connection))
    return True


_DO: dict[str, Callable[[Fault, Cluster], bool]] = {
    "kill": _kill,
    "power": _power,
    "stop": _stop,
    "crash in a call": _crash,
    "pause": _pause,
    "cut nats": _cut_nats,
    "cut raft": _cut_raft,
    "isolate": _isolate,
    "lose connection": _lose_connection,
    "nats restart": _nats_restart,
    "raft election": _election,
    "raft stalls": _raft_stalls,
    "bad weather": _weather,
    "slow disk": _slow_disk,
    "hung disk": _hung_disk,
    "slow link": _slow_link,
    "late applies": _late_applies,
    "clock jump": _clock_jump,
    "wipe": _wipe,
    "lost files": _lost_files,
    "failing fsync": _failing_fsync,
    "full disk": _full_disk,
    "bit flip": _bit_flip,
    "zombie": _zombie,
    "relay": _relay,
    "kill all": _all(_kill),
    "power all": _all(_power),
    "recreate": _recreate,
    "move leader": _move_leader,
    "alter": _alter,
    "delete records": _delete_records,
    "readonly": _readonly,
    "pause partitions": _pause_partitions,
    "forger": _forger,
    "scenario": _scenario,
    "member": _member,
    "transactor": _transactor,
    "repartition": _repartition,
    "reassign": _reassign,
    "reader": _reader,
}
