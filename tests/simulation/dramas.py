"""Plots: sequences of faults, each timed by what has come of the one before, that lead to where one rule of the
protocol alone holds the line. Chance comes there once in ten thousand runs; a drama comes there in every few.

A drama is a generator. It yields how long to wait: seconds, or a condition with a limit. What it breaks is mended when
the calm begins, whatever act it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dataplane.broker.compaction import Compaction
from dataplane.broker.follower_driver import FollowerDriver
from dataplane.broker.leader_driver import LeaderDriver
from dataplane.log.checkpoints import CompactionPoint
from tests.simulation.broker import SimBroker
from tests.simulation.disk import AMPLE, damageable_files, is_nothing_torn, vouched_places
from wire import metadata_pb2 as pb
from wire.types import PartitionKey

if TYPE_CHECKING:
    from metadata.model import Partition
    from tests.simulation.scenario import Cluster

POLL = 0.002
"""Seconds between two looks at a condition."""
LONG = 1000.0


class Until(NamedTuple):
    condition: Callable[[], object]
    limit: float = 4.0
    """Seconds; when they are over the drama is given up."""


Drama: TypeAlias = "Callable[[Stage], Iterator[float | Until]]"


class Stage:
    """What a drama sees and does. Its scene is the first partition."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rng: Random = cluster.world.rng

    def play(self, drama: Drama, on_end: Callable[[bool], object]) -> None:
        """`on_end`: called when it is over; True when all acts have been played."""
        self._on_end = on_end
        self._go_on(drama(self))

    def _go_on(self, acts: Iterator[float | Until]) -> None:
        world = self.cluster.world
        if self.cluster.is_calm:
            return
        wait = next(acts, None)
        if wait is None:
            world.say("the drama has ended")
            self._on_end(True)
        elif isinstance(wait, Until):
            self._wait(acts, wait.condition, world.now + wait.limit)
        else:
            world.after(wait, lambda: self._go_on(acts) if self.partition is not None else self._give_up())

    def _give_up(self) -> None:
        """What it waits for does not come, or somebody has deleted the scene."""
        self.cluster.world.say("the drama is given up")
        self._on_end(False)

    def _wait(self, acts: Iterator[float | Until], condition: Callable[[], object], deadline: float) -> None:
        world = self.cluster.world
        if condition():
            self._go_on(acts)
        elif world.now >= deadline:
            self._give_up()
        elif not self.cluster.is_calm:
            world.after(POLL, lambda: self._wait(acts, condition, deadline))

    # ---- what is to be seen

    @property
    def key(self) -> PartitionKey | None:
        return next((key for key, _ in self.cluster.raft.truth.partitions() if key.stream == "s"), None)

    @property
    def partition(self) -> Partition | None:
        key = self.key
        return self.cluster.raft.truth.partition(key) if key is not None else None

    @property
    def isr(self) -> tuple[str, ...]:
        return self.partition.isr if self.partition is not None else ()

    @property
    def replicas(self) -> tuple[str, ...]:
        return self.partition.replicas if self.partition is not None else ()

    @property
    def leader(self) -> str | None:
        return self.partition.leader if self.partition is not None else None

    def broker(self, name: str) -> SimBroker:
        return self.cluster.brokers[name]

    def role(self, name: str) -> Any:
        broker, key = self.broker(name).broker, self.key
        replica = broker._replicas.get(key) if broker is not None and key is not None else None
        return replica.role if replica is not None else None

    def end(self, name: str) -> int:
        """Its LEO; -1 where there is no replica that works."""
        role = self.role(name)
        return role.log.log_end_offset if role is not None and not role.ended else -1

    def log_start(self, name: str) -> int:
        """-1 where there is no replica that works."""
        role = self.role(name)
        return role.log.log_start_offset if role is not None and not role.ended else -1

    def compaction_point(self, name: str) -> CompactionPoint:
        """That of an empty log where there is no replica that works."""
        role = self.role(name)
        point: CompactionPoint = role.log.compaction_point if role is not None and not role.ended else CompactionPoint()
        return point

    def leads(self, name: str) -> bool:
        """As it believes itself, and as is true."""
        role = self.role(name)
        return name == self.leader and isinstance(role, LeaderDriver) and not role.ended

    def follows(self, name: str) -> bool:
        role, partition = self.role(name), self.partition
        return (
            isinstance(role, FollowerDriver) and partition is not None and role.leader_epoch == partition.leader_epoch
        )

    def lives(self, name: str) -> bool:
        """The present life of its process is registered."""
        broker = self.broker(name)
        known = self.cluster.raft.truth.brokers.get(broker.id)
        return known is not None and known.alive and known.life_id == f"{broker.id}-{broker.lives}"

    @property
    def committed(self) -> int:
        """Exclusive end of what some leader has committed."""
        key = self.key
        history = self.cluster.invariants.history.of.get(key) if key is not None else None
        return history.end if history is not None else 0

    @property
    def is_alone(self) -> bool:
        """Nothing else happens in this run."""
        return len(self.cluster.schedule) == 1

    # ---- what can be done

    def hang(self, name: str) -> Callable[[], object]:
        """Its disk, reads from the page cache or not; how to make it answer."""
        broker = self.broker(name)
        broker.hang(reads=self.rng.random() < 0.3)
        self.cluster.lift(LONG, broker.answer)
        return broker.answer

    def kill(self, name: str) -> None:
        broker = self.broker(name)
        broker.kill()
        self.cluster.start_later(broker, LONG)

    def power_off(self, name: str) -> bool:
        broker = self.broker(name)
        if not self.cluster.may_lose_power(broker):
            return False
        broker.lose_power("nothing")
        self.cluster.start_later(broker, LONG)
        return True

    def wipe(self, name: str) -> bool:
        broker = self.broker(name)
        if not self.cluster.may_lose_disk(broker):
            return False
        self.cluster.wipe(broker)
        self.cluster.start_later(broker, LONG)
        return True

    def start(self, name: str) -> None:
        self.broker(name).start()

    def cut(self, name: str, *, which: slice = slice(None)) -> Callable[[], object]:
        """Its connections to NATS; how to mend them. `which`: the first is ingest, the second control."""
        nats = self.cluster.nats
        connections = list(self.broker(name).connections[which])
        for connection in connections:
            nats.block(connection, up=True, down=True)

        def mend() -> None:
            nats.unblock(*connections)

        self.cluster.lift(LONG, mend)
        return mend

    def cut_off_clients(self) -> Callable[[], object]:
        mend = self.cluster.clients.cut_off()
        self.cluster.lift(LONG, mend)
        return mend

    def slow_applies(self, name: str, slowness: float) -> Callable[[], object]:
        member = self.cluster.raft.nodes.get(self.broker(name).raft_address)

        def over() -> None:
            if member is not None:
                member.slowness = 1.0

        if member is not None:
            member.slowness = slowness
            self.cluster.lift(LONG, over)
        return over

    def hold_commands(self, which: Callable[[pb.Command], bool]) -> Callable[[], object]:
        """Raft commands of that kind lie about until the returned function is called; then they are committed."""
        raft = self.cluster.raft
        raft.holds = lambda command: which(pb.Command.FromString(command))

        def release() -> None:
            raft.holds = None
            raft.release_held()

        self.cluster.lift(LONG, release)
        return release

    def pause(self, name: str) -> Callable[[], object]:
        """Its process stands still; how it goes on."""
        process = self.broker(name).process
        assert process is not None
        process.pause()
        self.cluster.raft.check()
        self.cluster.lift(LONG, process.resume)
        return process.resume

    def move_leader(self, target: str) -> None:
        """As an operator asks for it."""
        self.cluster.clients.ask_to_move_leader(0, target)

    def hold_compaction(self, name: str) -> Callable[[], object]:
        """It compacts nothing in this life until the returned function is called."""
        broker = self.broker(name).broker
        all_jobs = broker._housekeeping._jobs if broker is not None else ()
        jobs = [job for job in all_jobs if isinstance(job, Compaction)]
        for job in jobs:
            job.is_due = lambda visit: False  # type: ignore[method-assign]  # noqa: ARG005

        def release() -> None:
            for job in jobs:
                job.__dict__.pop("is_due", None)

        self.cluster.lift(LONG, release)
        return release

    def flood(self, seconds: float) -> None:
        """More is written than usually."""
        self.cluster.clients.burst_until = self.cluster.world.now + seconds


CONTROL = slice(1, 2)
INGEST = slice(0, 1)


def adds(name: str) -> Callable[[pb.Command], bool]:
    """Is it an AlterIsr that adds that broker? (Shrinks never name more than the ISR.)"""

    def judge(command: pb.Command) -> bool:
        return command.WhichOneof("body") == "alter_isr" and any(
            name in (member.broker for member in item.new_isr) for item in command.alter_isr.items
        )

    return judge


def see_saw(stage: Stage) -> Iterator[float | Until]:
    """KIP-279. Two replicas lead in turn, neither ever following the other: each ends with epochs that the other does
    not know."""
    rng = stage.rng
    yield Until(lambda: stage.leader)
    a = stage.leader
    assert a is not None
    b, c = rng.sample([name for name in stage.replicas if name != a], 2)
    stage.kill(c)
    yield Until(lambda: c not in stage.isr)
    stage.kill(b)
    yield Until(lambda: b not in stage.isr)
    up, down = a, b
    for _ in range(rng.choice((2, 3, 4))):
        yield Until(lambda: stage.leads(up))  # noqa: B023 - looked at before the loop goes on
        stage.flood(1.0)
        end = stage.end(up)
        yield Until(lambda: stage.end(up) > end, 3.0)  # noqa: B023
        yield rng.random() * 0.1
        stage.kill(up)
        stage.start(down)
        up, down = down, up
    yield Until(lambda: stage.leads(up))
    yield rng.random() * 0.3
    stage.start(down)
    yield rng.random() * 0.2
    stage.start(c)


def outsider(stage: Stage) -> Iterator[float | Until]:
    """Only a replica that is not in sync is left."""
    rng = stage.rng
    yield Until(lambda: len(stage.isr) == 3)
    out = rng.choice([name for name in stage.replicas if name != stage.leader])
    mend = stage.cut(out)
    yield Until(lambda: out not in stage.isr, 6.0)
    stage.flood(0.5)
    yield 0.2 + rng.random() * 0.3
    for name in stage.isr:
        stage.kill(name)
    mend()
    yield 0.5 + rng.random() * 2.0
    for name in stage.replicas:
        stage.start(name)


def last_standing(stage: Stage) -> Iterator[float | Until]:
    """The last member of the ISR loses its disk: whoever left the ISR below min ISR holds all that was committed."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    last = stage.leader
    assert last is not None
    others = [name for name in stage.replicas if name != last]
    for name in others:
        stage.kill(name)
    yield Until(lambda: stage.isr == (last,))
    yield rng.random() * 0.5
    if not stage.wipe(last):
        return
    yield rng.random() * 0.2
    order = [last, *others] if rng.random() < 0.5 else [*others, last]
    for name in order:
        stage.start(name)
        yield rng.random() * 0.3


def stale_follower(stage: Stage) -> Iterator[float | Until]:
    """KIP-320. A follower that has not heard of the new LeaderEpoch, and holds what the new leader does not, goes on
    fetching in the old one."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    old = stage.leader
    assert old is not None
    # Of two that lead equally many the first replica is elected.
    behind, ahead = [name for name in stage.replicas if name != old]
    stage.slow_applies(ahead, 4000.0)
    mend = stage.cut(behind, which=CONTROL)
    stage.flood(2.0)
    yield Until(lambda: stage.end(ahead) > stage.end(behind) >= 0, 0.5)
    stage.kill(old)
    mend()
    yield Until(lambda: stage.leader not in (None, old))
    yield 1.0 + rng.random()
    stage.start(old)


def late_expansion(stage: Stage) -> Iterator[float | Until]:
    """KIP-903. The expansion of the ISR is applied after the replica that it names has lost its disk."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    other = rng.choice([name for name in stage.replicas if name != stage.leader])
    stage.kill(other)
    yield Until(lambda: other not in stage.isr)
    stage.flood(0.3)
    yield 0.3
    release = stage.hold_commands(adds(other))
    stage.start(other)
    yield Until(lambda: stage.cluster.raft.held)
    if not stage.wipe(other):
        release()
        return
    cut = stage.cut if rng.random() < 0.5 else None
    stage.start(other)
    yield Until(lambda: stage.lives(other))
    release()
    if cut is not None:
        mend = cut(other)
        yield rng.random() * 0.5
        leader = stage.leader
        if leader is not None:
            stage.kill(leader)
        mend()
        yield 0.5
        if leader is not None:
            stage.start(leader)


def unheard_expansion(stage: Stage) -> Iterator[float | Until]:
    """The ISR has grown and its leader does not know: the new member counts already."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    leader = stage.leader
    assert leader is not None
    other = rng.choice([name for name in stage.replicas if name != leader])
    stage.kill(other)
    yield Until(lambda: other not in stage.isr)
    release = stage.hold_commands(adds(other))
    stage.start(other)
    yield Until(lambda: stage.cluster.raft.held)
    mend = stage.cut(other)
    if rng.random() < 0.7:
        stage.slow_applies(leader, 4000.0)
        release()
    else:
        yield rng.random() * 1.0  # longer than a proposal waits
        release()
    stage.flood(0.5)
    yield 0.3 + rng.random() * 0.7
    if rng.random() < 0.5:
        stage.kill(leader)
        mend()
        yield 0.5
        stage.start(leader)
    else:
        mend()


def two_offices(stage: Stage) -> Iterator[float | Until]:
    """What a deposed controller decided is committed in its successor's office."""
    rng, raft = stage.rng, stage.cluster.raft
    yield Until(lambda: stage.leader and raft.truth.controller)
    controller = raft.truth.controller
    victim = rng.choice([name for name in stage.cluster.brokers if name != controller])
    release = stage.hold_commands(lambda command: command.WhichOneof("body") in ("brokers_dead", "elect_leaders"))
    stage.kill(victim)
    yield Until(lambda: raft.held)
    office = raft.truth.office
    raft.depose()
    yield Until(lambda: raft.truth.office > office)
    release()
    yield rng.random()
    stage.start(victim)


def rolled_back_producer(stage: Stage) -> Iterator[float | Until]:
    """A leader that cannot reach its followers appends, is deposed, follows, truncates, and leads again: what its
    producers sent is not in its log any more."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    old = stage.leader
    assert old is not None
    others = [name for name in stage.replicas if name != old]
    mend = stage.cut(old, which=CONTROL)
    stage.flood(0.3)
    yield Until(lambda: stage.end(old) > 1 + max(stage.end(name) for name in others), 1.0)
    back = stage.cut_off_clients()
    yield Until(lambda: stage.leader not in (None, old))
    mend()
    new = stage.leader
    assert new is not None
    yield Until(lambda: stage.follows(old) and stage.end(old) <= stage.end(new))
    yield rng.random() * 0.1
    stage.kill(new)
    yield Until(lambda: stage.leader not in (None, new))
    if stage.leader != old and stage.leader is not None:
        stage.kill(stage.leader)
        yield Until(lambda: stage.leader == old)
    back()
    yield 1.0
    for name in others:
        stage.start(name)


def recreated_unheard(stage: Stage) -> Iterator[float | Until]:
    """A stream is deleted and made again under its name, and one replica does not hear of it: it goes on fetching,
    under the same subjects and in the same LeaderEpoch."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    yield Until(lambda: stage.end(stage.leader or "") >= 1)
    unheard = rng.choice([name for name in stage.replicas if name != stage.leader])
    stage.slow_applies(unheard, 3000.0)
    before = stage.key
    if not stage.cluster.recreate():
        return
    yield Until(lambda: stage.key is not None and stage.key != before)
    stage.flood(1.5)
    yield 1.5


def long_zombie(stage: Stage) -> Iterator[float | Until]:
    """A leader that Raft does not reach, and NATS does, beyond its lease."""
    rng = stage.rng
    yield Until(lambda: stage.leader)
    old = stage.leader
    assert old is not None
    address = stage.broker(old).raft_address
    raft = stage.cluster.raft
    raft.cut_off(address)
    stage.cluster.lift(LONG, lambda: raft.rejoin(address))
    lease = stage.broker(old).metadata_settings.leader_lease_s
    if rng.random() < 0.5:
        yield lease * (0.5 + rng.random() * 1.5)
    else:
        # What it does not hear of, and is deposed for; then it leads beyond its lease.
        stage.cluster.clients.alter(min(stage.cluster.shape.min_isr, 2))
        yield Until(lambda: stage.leader != old, 2 * lease)
        yield lease * (1.0 + rng.random() * 0.5)
    stage.flood(0.5)
    yield 0.5 + rng.random()
    raft.rejoin(address)


def stale_drain(stage: Stage) -> Iterator[float | Until]:
    """A leader stands still with publishes in its socket, and behind them a request to hand over. Another is elected.
    The woken one has an uncommitted tail, hears late of its successor, and reads what that one stores."""
    rng, raft = stage.rng, stage.cluster.raft
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    old = stage.leader
    assert old is not None
    target = rng.choice([name for name in stage.replicas if name != old])
    stage.slow_applies(old, 4000.0)
    resume = stage.pause(old)
    stage.flood(5.0)
    yield Until(lambda: raft.truth.controller not in (None, old))
    yield 0.1 + rng.random() * 0.2
    stage.move_leader(target)
    yield Until(lambda: stage.leader not in (None, old))
    yield rng.random() * 0.3
    resume()
    yield 1.0 + rng.random()


def power_at_takeover(stage: Stage) -> Iterator[float | Until]:
    """Power goes at a new leader just as its LeaderEpoch has begun, its tail written and not synced."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    old = stage.leader
    assert old is not None
    others = [name for name in stage.replicas if name != old]
    for name in others:
        process = stage.broker(name).process
        if process is not None:
            process.disk_delay = 0.05
    stage.flood(1.0)
    yield 0.1 + rng.random() * 0.2
    stage.kill(old)
    yield Until(lambda: any(stage.leads(name) for name in others))
    yield rng.random() * 0.05
    new = next((name for name in others if stage.leads(name)), None)
    if new is None or not stage.power_off(new):
        return
    yield rng.random() * 0.3
    stage.start(new)
    stage.start(old)


def slow_news(stage: Stage) -> Iterator[float | Until]:
    """Leaders change while followers know only an old HW, and readers ask for the end."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    for _ in range(3):
        leader = stage.leader
        if leader is None:
            return
        stage.flood(0.5)
        yield 0.1 + rng.random() * 0.3
        stage.kill(leader)
        yield Until(lambda: stage.leader not in (None, leader))  # noqa: B023 - looked at before the loop goes on
        yield rng.random() * 0.2
        stage.start(leader)
        yield Until(lambda: len(stage.isr) == 3)


def sync_fails_then_power(stage: Stage) -> Iterator[float | Until]:
    """An fsync fails, which drops what it should have written; then power goes."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    replicas = stage.replicas
    name = rng.choice(replicas)
    other = rng.choice([other for other in replicas if other not in (name, stage.leader)])
    broker = stage.broker(name)
    if not stage.cluster.may_lose_disk(broker):
        return
    broker.disk.failing_syncs = 1
    stage.flood(1.0)
    yield Until(lambda: not broker.disk.failing_syncs, 2.0)
    if rng.random() < 0.6:
        # It is back before what it failed to sync is committed: that waits for another follower.
        mend = stage.cut(other, which=CONTROL)
        broker.kill()
        broker.start()
        yield Until(lambda: stage.lives(name))
        yield Until(lambda: name in stage.isr, 6.0)
        mend()
        stage.flood(0.3)
    yield rng.random() * 0.3
    broker.lose_power("nothing")
    stage.cluster.start_later(broker, 0.1)
    for other in replicas:
        if other != name and rng.random() < 0.3:
            stage.kill(other)
            yield 0.3
            stage.start(other)


def damage(stage: Stage) -> Iterator[float | Until]:
    """A disk gives back something else than what it was given."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    replicas, key = stage.replicas, stage.key
    victim = rng.choice(replicas)
    broker = stage.broker(victim)
    stage.flood(1.0)
    yield 1.2 + rng.random()
    broker.kill()
    stage.cluster.start_later(broker, LONG)
    places = [place for place in vouched_places(broker.disk, stage.cluster.data) if key and key.stream in str(place[0])]
    if places and stage.cluster.may_lose_disk(broker):
        path, start, end = rng.choice(places)
        broker.disk.flip_bit(path, rng.randrange(start, end), rng.randrange(8))
    yield rng.random() * 0.2
    others = [name for name in replicas if name != victim]
    if rng.random() < 0.5:
        stage.kill(others[0])
    stage.start(victim)
    yield 0.5 + rng.random()
    for name in others:
        stage.start(name)


def full_disks(stage: Stage) -> Iterator[float | Until]:
    """One disk after the other runs full in the middle of a flood, then all at once; each is killed, or loses power,
    full or just freed, and what it then finds on its disk must be what it wrote."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    replicas = stage.replicas

    def fill(*names: str) -> None:
        for name in names:
            disk = stage.broker(name).disk
            disk.capacity = disk.used + rng.choice((0, 300, 1200, 2500))
            stage.cluster.lift(LONG, lambda disk=disk: setattr(disk, "capacity", AMPLE))  # type: ignore[misc]

    def make_room(*names: str) -> None:
        for name in names:
            stage.broker(name).disk.capacity = AMPLE

    for _ in range(5):
        victim = stage.leader if rng.random() < 0.4 and stage.leader else rng.choice(replicas)
        stage.flood(1.0)
        yield rng.random() * 0.3
        fill(victim)
        yield 0.1 + rng.random() * 0.4
        stage.flood(0.3)
        freed_first = rng.random() < 0.6
        if freed_first:
            make_room(victim)
            yield rng.random() * 0.3
        if rng.random() < 0.6 or not stage.power_off(victim):
            stage.kill(victim)
        stage.start(victim)
        yield rng.random() * 0.2
        make_room(victim)
        yield Until(lambda: len(stage.isr) == 3, 8.0)
    stage.flood(1.0)
    fill(*replicas)
    yield 0.3 + rng.random()
    make_room(*replicas)
    yield Until(lambda: len(stage.isr) == 3, 8.0)


def silent_damage(stage: Stage) -> Iterator[float | Until]:
    """Bits flip in the logs of a broker that runs, where nobody may look; then its replicas are relied on."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    stage.flood(2.0)
    yield 1.5 + rng.random()
    victim = rng.choice(stage.replicas)
    broker = stage.broker(victim)
    if not broker.is_running or not stage.cluster.may_lose_disk(broker):
        return
    for _ in range(rng.randrange(1, 4)):
        logs = [
            (path, size) for path, size in damageable_files(broker.disk, stage.cluster.data) if path.suffix == ".log"
        ]
        if logs and is_nothing_torn(broker.disk, stage.cluster.data):
            path, size = rng.choice(logs)
            broker.disk.flip_bit(path, rng.randrange(size), rng.randrange(8))
        yield rng.random() * 0.3
    if rng.random() < 0.5:
        stage.kill(victim)
        yield rng.random() * 0.5
        stage.start(victim)
    yield 0.5 + rng.random()
    leader = stage.leader
    if leader is not None and leader != victim:
        stage.kill(leader)
        yield 0.5
        stage.start(leader)


def hung_leader(stage: Stage) -> Iterator[float | Until]:
    """The disk of a leader hangs, while its loop and its connections work. Another one leads, and commits, before the
    old one would be dropped for its lag, and long before the disk answers."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    old = stage.leader
    assert old is not None
    world, limit = stage.cluster.world, stage.broker(old).replica_settings.replica_max_lag_time
    answer = stage.hang(old)
    stage.flood(0.3)
    yield limit + 2
    new, committed = stage.leader, stage.committed
    stage.flood(0.3)
    yield 2.0
    if stage.is_alone and old in (new, stage.leader):
        world.broken("Promptness", f"{old} leads, and its disk has been hanging for {limit + 4:.1f} s")
    if stage.is_alone and stage.committed == committed:
        world.broken("Promptness", f"nothing is committed while the disk of {old} hangs, which does not lead")
    if rng.random() < 0.3 and stage.power_off(old):
        stage.start(old)
    answer()
    yield Until(lambda: old in stage.isr, 6.0)


def nats_restarts(stage: Stage) -> Iterator[float | Until]:
    """Everybody is silent for as long as it takes to be called dead, and nobody is."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    for _ in range(2):
        broker = next(iter(stage.cluster.brokers.values()))
        stage.cluster.nats.restart(broker.metadata_settings.broker_silence_timeout_s * 1.5)
        yield 1.0 + rng.random() * 3


def nats_restarts_and_the_controller_too(stage: Stage) -> Iterator[float | Until]:
    """The controller begins anew with a NATS server that has just been started: the others come back to that server
    later than it asks for them, and nobody is called dead."""
    rng, raft = stage.rng, stage.cluster.raft
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    for _ in range(2):
        controller = raft.truth.controller
        if controller is None:
            return
        stage.kill(controller)
        stage.cluster.nats.restart(0.05)
        mends = [stage.cut(name) for name in stage.cluster.brokers if name != controller]
        yield 0.1
        stage.start(controller)
        yield Until(lambda: raft.elect(stage.broker(controller).raft_address))  # noqa: B023 - looked at before the loop goes on
        yield Until(lambda: raft.truth.controller_life_id.startswith(f"{controller}-"), 1.0)  # noqa: B023
        yield 0.05 + rng.random() * 0.3
        for mend in mends:
            mend()
            yield rng.random() * 0.1
        yield Until(lambda: len(stage.isr) == 3, 8.0)
        yield rng.random()


def witnesses(stage: Stage) -> Iterator[float | Until]:
    """A leader that lives and answers the controller, but not its followers."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    for _ in range(2):
        leader = stage.leader
        if leader is None:
            return
        role = stage.role(leader)
        if not isinstance(role, LeaderDriver):
            return
        quiet = stage.cluster.nats.deafen(stage.broker(leader).connections[1], ".replicate", ".offset", ".checkpoint")
        stage.cluster.lift(LONG, quiet)
        yield Until(lambda: stage.leader not in (None, leader), 8.0)  # noqa: B023 - looked at before the loop goes on
        quiet()
        yield Until(lambda: len(stage.isr) == 3, 8.0)
        yield rng.random()


def below_the_log_start(stage: Stage) -> Iterator[float | Until]:
    """A follower is away while retention removes what it lacks. It begins at the leader's log start, and then it leads:
    of those who wrote before, its log holds no record."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    away = rng.choice([name for name in stage.replicas if name != stage.leader])
    end = stage.end(away)
    stage.kill(away)
    yield Until(lambda: away not in stage.isr)
    stage.flood(2.0)
    yield Until(lambda: stage.leader is not None and stage.log_start(stage.leader) > end + 20, 6.0)
    stage.start(away)
    if rng.random() < 0.5:
        stage.flood(1.0)  # the log start moves on while it begins there
    yield Until(lambda: away in stage.isr, 6.0)
    back = stage.cut_off_clients()
    yield rng.random() * 0.2
    fallen = []
    while stage.leader not in (None, away):
        fallen.append(stage.leader)
        stage.kill(stage.leader)
        yield Until(lambda: stage.leader not in (None, *fallen))
    back()
    stage.flood(0.5)
    yield 0.5 + rng.random()
    for name in fallen:
        stage.start(name)


def copy_under_two_leaders(stage: Stage) -> Iterator[float | Until]:
    """A follower was away while tombstones were compacted away, and begins anew as a copy of its leader's log. In the
    middle of that another leads, who still holds what was deleted; it compacts when the copy has some of it."""
    rng = stage.rng
    yield Until(lambda: stage.leader and len(stage.isr) == 3)
    first = stage.leader
    assert first is not None
    second, away = rng.sample([name for name in stage.replicas if name != first], 2)
    release = stage.hold_compaction(second)
    stage.flood(0.5)
    yield 0.3
    end = stage.end(away)
    stage.kill(away)
    yield Until(lambda: away not in stage.isr, 6.0)
    stage.flood(1.0)
    yield Until(lambda: stage.compaction_point(first).deletions_end > end + 40, 6.0)
    back = stage.cut_off_clients()
    yield Until(lambda: stage.end(second) == stage.end(first))
    yield 0.3
    stage.start(away)
    yield Until(lambda: 0 <= stage.end(away) < stage.compaction_point(away).deleted_end, 6.0)
    yield rng.random() * 0.05
    stage.kill(first)
    yield Until(lambda: stage.leads(second) and stage.follows(away))
    copied = stage.end(away) + rng.randrange(10, 40)
    yield Until(lambda: stage.end(away) >= copied)
    mend = stage.cut(away)
    release()
    yield Until(lambda: stage.compaction_point(second).deletions_end > copied, 6.0)
    mend()
    yield Until(lambda: away in stage.isr, 8.0)
    stage.start(first)
    back()


DRAMAS: dict[str, Drama] = {
    drama.__name__.replace("_", " "): drama
    for drama in (
        see_saw,
        outsider,
        last_standing,
        stale_follower,
        late_expansion,
        unheard_expansion,
        two_offices,
        rolled_back_producer,
        recreated_unheard,
        long_zombie,
        stale_drain,
        power_at_takeover,
        slow_news,
        sync_fails_then_power,
        damage,
        full_disks,
        silent_damage,
        hung_leader,
        nats_restarts,
        nats_restarts_and_the_controller_too,
        witnesses,
        below_the_log_start,
        copy_under_two_leaders,
    )
}

CASTS: dict[str, dict[str, Any]] = {
    "see saw": {"brokers": 5, "min_isr": 2},
    "outsider": {"brokers": 5},
    "last standing": {"brokers": 5, "min_isr": 2},
    "late expansion": {"min_isr": 2},
    "unheard expansion": {"min_isr": 2},
    "rolled back producer": {"brokers": 5},
    "hung leader": {"min_isr": 2, "quick": False, "duration": 14.0},
    "recreated unheard": {"partitions": 1},
    "long zombie": {"duration": 18.0},
    "below the log start": {
        "min_isr": 2,
        "partitions": 1,
        "segment_bytes": 4096,
        "retention": (("retention_max_bytes", 1),),
        "housekeeping_interval": 0.05,
    },
    "copy under two leaders": {
        "streams": 1,
        "partitions": 1,
        "min_isr": 2,
        "segment_bytes": 4096,
        "keys": 60,
        "tombstone_retention_ms": 0,
        "min_dirty_ratio": 0.01,
        "housekeeping_interval": 0.05,
        "fetch_max_bytes": 256,
        "latency": 0.002,
    },
}
"""What of a run's shape a drama must have."""
