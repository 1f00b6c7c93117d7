"""Runs one scenario of faults, and gives it the cluster's state and the faults to choose from.

A scenario is a generator. It yields the time to wait: seconds, or a condition with a limit. Every fault that it causes
is mended when the calm begins, at any step of the scenario.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.upkeep.compaction_job import Compaction
from dataplane.log.storage.checkpoints import CompactionPoint
from tests.simulation.machines.broker import SimBroker
from wire.internal_streams import GROUPS
from wire.layouts import NOT_REPORTED
from wire.operations.api_operations import METADATA
from wire.protobuf import metadata_pb2 as pb
from wire.types import PartitionKey, StreamName

if TYPE_CHECKING:
    from metadata.cluster.model import Partition, Stream
    from tests.simulation.run import Cluster
    from tests.simulation.users.keyed import KeyedProducer
    from tests.simulation.users.members import SimMember

POLL = 0.002
"""Seconds between two looks at a condition."""
LONG = 1000.0


class Until(NamedTuple):
    condition: Callable[[], object]
    limit: float = 4.0
    """Seconds; when they are over the scenario is given up."""


Steps: TypeAlias = Generator[float | Until, None, None]
Scenario: TypeAlias = "Callable[[ScenarioRun], Steps]"


class ScenarioRun:
    """State that a scenario observes, and faults that it can cause, in the first partition of stream s."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.rng: Random = cluster.world.rng

    def begin(self, scenario: Scenario, on_end: Callable[[bool], object]) -> None:
        """`on_end`: called when it is over; True when it ran to its last step."""
        self._on_end = on_end
        self._go_on(scenario(self))

    def _go_on(self, steps: Steps) -> None:
        world = self.cluster.world
        if self.cluster.is_calm:
            return
        wait = next(steps, None)
        if wait is None:
            world.say("the scenario has ended")
            self._on_end(True)
        elif isinstance(wait, Until):
            self._wait(steps, wait.condition, world.now + wait.limit)
        else:
            world.after(wait, lambda: self._go_on(steps) if self.partition is not None else self._give_up())

    def _give_up(self) -> None:
        """The condition was not met in time, or the partition was deleted."""
        self.cluster.world.say("the scenario is given up")
        self._on_end(False)

    def _wait(self, steps: Steps, condition: Callable[[], object], deadline: float) -> None:
        world = self.cluster.world
        if condition():
            self._go_on(steps)
        elif world.now >= deadline:
            self._give_up()
        elif not self.cluster.is_calm:
            world.after(POLL, lambda: self._wait(steps, condition, deadline))

    # ---- state

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
    def min_isr(self) -> int:
        """Of the stream; 0 where there is none."""
        key = self.key
        return self.cluster.raft.truth.streams[key.stream].min_isr if key is not None else 0

    @property
    def leader(self) -> str | None:
        return self.partition.leader if self.partition is not None else None

    def in_sync(self) -> Generator[Until, None, str]:
        """A step: wait for an ISR of three. Returns its leader."""
        yield Until(lambda: self.leader and len(self.isr) == 3)
        leader = self.leader
        assert leader is not None
        return leader

    def others(self, *names: str | None) -> list[str]:
        return [name for name in self.replicas if name not in names]

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

    def high_watermark(self, name: str) -> int:
        """As that replica knows it; -1 where there is none that works."""
        role = self.role(name)
        return role.high_watermark if role is not None and not role.ended else -1

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

    def election_rank(self, name: str) -> tuple[int, int]:
        """The replica with the lowest rank is elected: it leads the fewest partitions, or is the first of equals."""
        led = sum(partition.leader == name for _, partition in self.cluster.raft.truth.partitions())
        return led, self.replicas.index(name)

    @property
    def committed(self) -> int:
        """Exclusive end of the records that some leader has committed."""
        key = self.key
        history = self.cluster.invariants.history.of.get(key) if key is not None else None
        return history.end if history is not None else 0

    @property
    def stream(self) -> Stream:
        """The stream, which no run with these scenarios deletes."""
        return self.cluster.raft.truth.streams[StreamName("s")]

    @property
    def is_reassigned(self) -> bool:
        """Its replicas are those that were asked for, or its former ones again."""
        return self.partition is not None and self.partition.reassignment is None

    @property
    def goes_back(self) -> bool:
        """A reassignment was cancelled, and is not over."""
        moving = self.partition.reassignment if self.partition is not None else None
        return moving is not None and moving.is_cancelled

    @property
    def are_in_sync(self) -> bool:
        """All partitions of the stream have all their replicas in the ISR."""
        return all(
            partition.leader is not None and len(partition.isr) == len(partition.replicas)
            for partition in self.stream.partitions.values()
        )

    def leader_of(self, partition: int) -> str | None:
        return self.stream.partitions[partition].leader

    def start_of(self, partition: int) -> int:
        """Where the log of that partition begins, as its leader has it; -1 where it has none."""
        found = self.stream.partitions.get(partition)
        leader = self.broker(found.leader).broker if found is not None and found.leader is not None else None
        replica = leader._replicas.get(self.stream.key(partition)) if leader is not None else None
        if found is None or replica is None or replica._log is None:
            return -1
        return max(replica._log.log_start_offset, found.purged_end)

    def acked_end(self, partition: int) -> int:
        """End of what was acknowledged with acks=all."""
        clients = self.cluster.clients
        return self.cluster.invariants.acked_end(clients.stream, clients.incarnation, partition)

    def untold(self) -> list[int]:
        """Partitions whose leaders have not reported where the layout before the newest ends."""
        return [number for number, start in enumerate(self.stream.layouts[-1].starts) if start == NOT_REPORTED]

    @property
    def is_alone(self) -> bool:
        """Nothing else happens in this run."""
        return len(self.cluster.schedule) == 1

    # ---- faults

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

    def stop(self, name: str) -> None:
        """As SIGTERM does."""
        broker = self.broker(name)
        broker.stop()
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

    def lose_connection(self, name: str, *, which: slice = slice(None)) -> None:
        """Its connections to NATS break off; what is on its way to it there is lost. `which`: as for `cut`."""
        for connection in self.broker(name).connections[which]:
            self.cluster.nats.cut_off(connection)

    def hold_requests(self, name: str) -> Callable[[], object]:
        """What it sends on its control connection arrives when the returned function is called, and not before."""
        nats = self.cluster.nats
        control = list(self.broker(name).connections[CONTROL])
        for connection in control:
            nats.block(connection, up=True, down=False)

        def release() -> None:
            nats.unblock(*control)

        self.cluster.lift(LONG, release)
        return release

    def fetch_is_held(self, name: str) -> bool:
        key, cluster = self.key, self.cluster
        if key is None:
            return False
        subject = cluster.subjects.replicate(key.stream, key.partition)
        return any(cluster.nats.is_held(connection, subject) for connection in self.broker(name).connections[CONTROL])

    def keep_from_leaders(self, name: str) -> Callable[[], object]:
        """What it asks leaders of the partition for as a follower is lost until the returned function is called."""
        key, cluster = self.key, self.cluster
        assert key is not None
        subjects = cluster.subjects
        asked = subjects.replicate(key.stream, key.partition), subjects.offset(key.stream, key.partition)
        ends = [cluster.nats.mute(connection, *asked) for connection in self.broker(name).connections]

        def over() -> None:
            for end in ends:
                end()

        cluster.lift(LONG, over)
        return over

    def cut_off_clients(self) -> Callable[[], object]:
        mend = self.cluster.clients.cut_off()
        self.cluster.lift(LONG, mend)
        return mend

    def keep_from_routes(self, producer: KeyedProducer) -> Callable[[], object]:
        """It hears no pushes, and its questions about the stream's metadata are lost, until the returned function is
        called."""
        nats, connection, stream = self.cluster.nats, producer.connection, self.stream.name
        subjects = self.cluster.subjects
        hears = nats.deafen(connection, subjects.push(stream))
        speaks = nats.mute(connection, subjects.api(METADATA.name, stream), subjects.topology(stream))

        def over() -> None:
            hears()
            speaks()

        self.cluster.lift(LONG, over)
        return over

    def keep_ends_from_groups(self) -> Callable[[], object]:
        """What brokers tell the coordinator of groups of ended transactions is lost until the returned function is
        called."""
        nats, subject = self.cluster.nats, self.cluster.subjects.coordinate(StreamName(GROUPS.name), 0)
        connections = [each for broker in self.cluster.brokers.values() for each in broker.connections]
        ends = [nats.mute(connection, subject) for connection in connections]

        def over() -> None:
            for end in ends:
                end()

        self.cluster.lift(LONG, over)
        return over

    def restart_member(self, number: int) -> None:
        """It leaves, and soon begins anew."""
        group = self.cluster.group
        assert group is not None
        group.members[number].leave()
        self.cluster.lift(0.05 + self.rng.random() * 0.2, lambda: group.restart(number))

    def stop_member(self, member: SimMember) -> Callable[[], object]:
        """As SIGSTOP does; how to let it go on."""
        member.process.pause()
        self.cluster.lift(LONG, member.process.resume)
        return member.process.resume

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
        """Stops the process of that broker as SIGSTOP does, where it runs. Returns the function that lets it go on."""
        process = self.broker(name).process
        if process is None:  # another fault has killed it meanwhile
            return lambda: None
        process.pause()
        self.cluster.raft.check()
        self.cluster.lift(LONG, process.resume)
        return process.resume

    def move_leader(self, target: str) -> None:
        """As an operator asks for it."""
        self.cluster.clients.ask_to_move_leader(0, target)

    def reassign(self, target: Sequence[str]) -> None:
        """Asks for these replicas of the first partition, as an operator does."""
        self.cluster.reassigner.ask_for(self.cluster.clients, {0: [*target]})

    def cancel_reassignment(self) -> None:
        """As an operator asks for it."""
        self.cluster.reassigner.ask_to_cancel(self.cluster.clients)

    def delete_records(self, partition: int, before: int) -> None:
        """As an operator asks for it."""
        self.cluster.operator.delete_below(partition, before)

    def alter_min_isr(self, min_isr: int) -> None:
        """As an operator asks for it."""
        self.cluster.lowest_min_isr = min(self.cluster.lowest_min_isr, min_isr)
        self.cluster.clients.ask_for_min_isr(min_isr)

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


def adds(name: str) -> Callable[[pb.Command], bool]:
    """Is it an AlterIsr that adds that broker? (Shrinks never name more than the ISR.)"""

    def judge(command: pb.Command) -> bool:
        return command.WhichOneof("body") == "alter_isr" and any(
            name in (member.broker for member in item.new_isr) for item in command.alter_isr.items
        )

    return judge
