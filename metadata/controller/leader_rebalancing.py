"""Brokers that cannot do a leader's work, because they are about to stop or are drained, because their disks run full
or hang or because they lack the master key of encrypted streams, are relieved of their leaderships: which ones, when,
and to whom. Events in, moves out.

Whether a broker is stopping, how much room it has, whether its disk hangs, and whether it has a key, rides on its probe
answers, the newest counts; it never enters Raft, for it changes by the second. A leadership moves as an operator would
move it (`metadata.runtime.moves`): drained, a compare-and-set, so nothing is lost and nothing depends on reports that
have become old. The old leader stays in the ISR, unless its disk hangs.

    SHORT     leaderships go to an ISR member with AMPLE room; but not of streams that evict, for which the broker makes
              room
    FULL      all go, to AMPLE room, else to a broker that is SHORT, which still takes records
    nowhere   the leader stays, serves reads, and refuses publishes once it is FULL
    hangs     all go to a member whose disk answers and that takes records; the leader leaves the ISR with that if
              min ISR members remain then, for commits would wait for its disk
    no key    leaderships of encrypted streams go to an ISR member with a key, whether it has room or not; and none of
              them goes to a broker without one
    stopping  all go, to any member that is not stopping, whether it has room or not
    draining  the same; a draining member gets them only from one that is stopping

No leadership goes to a broker whose disk hangs, or that is stopping. A move that fails is tried again after a pause
that doubles; a few are under way at a time. `preferred_leaders` gives leaderships back to a broker that was relieved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from metadata.cluster.model import Partition
from metadata.commands.cluster_state import ClusterState
from wire.retry import Retry
from wire.stream_config import OnUnderCapacity, StreamConfig
from wire.turns import LOOKS
from wire.types import BrokerId, LeaderMove, PartitionKey, Room

MAX_MOVES = 16
"""Limit of the moves under way at a time."""
MAX_MOVES_OF_STOPPING = 48
"""The same while a broker is stopping: it waits for them."""
SHORTEST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 15.0
LOOK_INTERVAL_S = 0.2
"""While some broker is in need a walk through all partitions begins this often, as the one before has ended. Each
answer to a probe, and each end of a move, carries it on. It waits where it is while as many moves as may be are under
way."""
OF_LED: Final = 2
"""Cost of a partition that a broker in need leads, in looks."""

_RANK: Final[Mapping[Room, int]] = {Room.AMPLE: 0, Room.SHORT: 1, Room.FULL: 2}


@dataclass(slots=True)
class _Failed:
    retry: Retry
    again_at: float = 0.0


class LeaderRebalancing:
    """Chooses the leaderships to move, and their targets. `state` is read only."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._rooms: dict[BrokerId, Room] = {}
        self._hanging: set[BrokerId] = set()
        self._without_key: set[BrokerId] = set()
        self._stopping: set[BrokerId] = set()
        self._under_way: dict[PartitionKey, LeaderMove] = {}
        self._failed: dict[PartitionKey, _Failed] = {}
        self._in_need: set[BrokerId] = set()
        self._walk: Iterator[list[PartitionKey]] | None = None
        """The rest of a walk through the partitions that brokers in need lead."""
        self._found: deque[PartitionKey] = deque()
        """Partitions that the walk has found and that are not looked at yet."""
        self._walk_at = -inf

    def clear(self) -> None:
        """The controller epoch is over: reports of brokers are forgotten, and moves end by themselves."""
        self._rooms.clear()
        self._hanging.clear()
        self._without_key.clear()
        self._stopping.clear()
        self._failed.clear()
        self._end_walk()

    # Keeps R38.
    def on_room(self, broker: BrokerId, room: Room) -> None:
        self._rooms[broker] = room

    # Keeps R40.
    def on_disk(self, broker: BrokerId, hangs: bool) -> None:
        if hangs:
            self._hanging.add(broker)
        else:
            self._hanging.discard(broker)

    def on_master_key(self, broker: BrokerId, has_one: bool) -> None:
        if has_one:
            self._without_key.discard(broker)
        else:
            self._without_key.add(broker)

    # R88: A broker that is told to stop (SIGTERM) says so in its probe answers. The controller moves its leaderships to
    # members of the ISR that are not stopping, by planned moves (R30), and gives it no leadership and, where enough
    # others are there, no replica of a new partition. It goes on when it leads nothing that can move, after
    # `hand_over_timeout_s`, where no majority of the metadata group is there, or at a second signal. A controller gives
    # way to another voter. Then the broker says that it leaves; the controller declares this incarnation dead, so that
    # no ISR waits for it, and it stops. While every live broker is stopping none of them is declared dead or
    # replaced: the ISRs stay as they are, for whichever returns. Where others stay, BrokersDead names the brokers that
    # are stopping, and a partition of which a member has ended and all other live replicas are stopping is offline from
    # then on, with its ISR as it was: nothing more is committed, so each member holds all that is. A replica that stays
    # and is catching up needs a leader, so then the members lead on until they end.
    # Hazard: A restart of one broker after the other stalls every partition as often as so many crashes do; a broker
    # that never stops, because nobody can take over; a stop of all that leaves one member in each ISR.
    # Not covered: Plain publishes that arrive between two leaders are stored by neither.
    def on_stopping(self, broker: BrokerId, is_stopping: bool) -> None:
        if is_stopping:
            self._stopping.add(broker)
        else:
            self._stopping.discard(broker)

    @property
    def stopping(self) -> list[BrokerId]:
        """Brokers that live and are about to stop, sorted."""
        return sorted(broker for broker in self._stopping if self._state.is_alive(broker))

    def why_not(self, broker: BrokerId, settings: StreamConfig) -> str:
        """Returns why the broker should lead no partition of a stream with these settings; empty: it may."""
        if broker in self._stopping:
            return f"{broker} is stopping"
        if self._state.is_draining(broker):
            return f"{broker} is draining"
        if broker in self._hanging:
            return f"the disk of {broker} hangs"
        if self._lacks_key(broker, settings):
            return f"{broker} has no master key"
        room = self._rooms.get(broker)
        if room is None:
            return f"{broker} has not reported its room yet"
        return "" if room is Room.AMPLE else f"the disk of {broker} runs full"

    def is_moving(self, key: PartitionKey) -> bool:
        """Whether a move of the partition's leadership is under way."""
        return key in self._under_way

    def may_lead(self, broker: BrokerId, key: PartitionKey) -> bool:
        """Whether its disk and its keys allow it to do a leader's work, as far as is known."""
        stream = self._state.streams.get(key.stream)
        is_fit = broker not in self._hanging and broker not in self._stopping and not self._state.is_draining(broker)
        lacks_key = stream is not None and self._lacks_key(broker, stream.settings)
        return is_fit and not lacks_key and self._rooms.get(broker) is not Room.FULL

    def is_known_to_stay(self, broker: BrokerId) -> bool:
        """Whether it has reported in this controller epoch, and is not about to stop."""
        return broker in self._rooms and broker not in self._stopping

    def with_room(self, brokers: Sequence[BrokerId], enough: int) -> list[BrokerId]:
        """Returns the brokers for new replicas: those not known to lack room, to hang, to be stopping or draining, if
        there are `enough`; else those that are neither stopping nor draining, if these are enough; else all."""
        staying = [broker for broker in brokers if broker not in self._stopping and not self._state.is_draining(broker)]
        roomy = [
            broker
            for broker in staying
            if self._rooms.get(broker, Room.AMPLE) is Room.AMPLE and broker not in self._hanging
        ]
        return next((some for some in (roomy, staying) if len(some) >= enough), list(brokers))

    def due(self, now: float) -> list[LeaderMove]:
        """Returns the moves to begin now; report the end of each to `on_ended`."""
        short = {broker for broker, room in self._rooms.items() if room is not Room.AMPLE}
        keyless = self._without_key if self._without_key and self._is_any_encrypted() else set()
        draining = {broker for broker, known in self._state.brokers.items() if known.draining}
        in_need = short | keyless | self._hanging | self._stopping | draining
        self._in_need = {broker for broker in in_need if self._state.is_alive(broker)}
        if not self._in_need:
            self._failed.clear()
            self._end_walk()
            return []
        if self._walk is None and now >= self._walk_at:
            self._walk, self._walk_at = self._state.walk(self._is_led_in_need), now + LOOK_INTERVAL_S
        out: list[LeaderMove] = []
        looks = 0
        while self._walk is not None and looks < LOOKS and len(self._under_way) < self._most_moves:
            if not self._found:
                keys = next(self._walk, None)
                if keys is None:
                    self._walk = None
                    break
                self._found.extend(keys)
            looks += 1 + OF_LED * len(self._found)
            out += self._moves(now)
        return out

    def _end_walk(self) -> None:
        self._walk = None
        self._found.clear()

    def _moves(self, now: float) -> Iterator[LeaderMove]:
        while self._found and len(self._under_way) < self._most_moves:
            key = self._found.popleft()
            partition = self._state.partition(key)
            if partition is None or not self._is_to_move(key, partition):
                continue
            target = self._target(key, partition)
            if target is None or key in self._under_way or not self._is_due(key, now):
                continue
            assert partition.leader is not None
            move = LeaderMove(
                key=key,
                leader=partition.leader,
                leader_epoch=partition.leader_epoch,
                target=target,
                disk_hangs=partition.leader in self._hanging,
            )
            self._under_way[key] = move
            yield move

    @property
    def _most_moves(self) -> int:
        return MAX_MOVES_OF_STOPPING if self._in_need & self._stopping else MAX_MOVES

    def on_ended(self, move: LeaderMove, moved: bool, now: float) -> None:
        self._under_way.pop(move.key, None)
        if moved:
            self._failed.pop(move.key, None)
        else:
            failed = self._failed.setdefault(move.key, _Failed(Retry(SHORTEST_PAUSE_S, LONGEST_PAUSE_S, chance=None)))
            failed.again_at = now + failed.retry.failed()

    def _is_due(self, key: PartitionKey, now: float) -> bool:
        failed = self._failed.get(key)
        return failed is None or now >= failed.again_at

    def _is_led_in_need(self, partition: Partition) -> bool:
        return partition.leader in self._in_need

    def _is_to_move(self, key: PartitionKey, partition: Partition) -> bool:
        """Whether the partition's leader is a broker that should not lead it."""
        leader, settings = partition.leader, self._state.streams[key.stream].settings
        if leader is None or leader not in self._in_need:
            return False
        room = self._rooms.get(leader, Room.AMPLE)
        return (
            leader in self._stopping
            or self._state.is_draining(leader)
            or self._lacks_key(leader, settings)
            or leader in self._hanging
            or room is Room.FULL
            or (room is Room.SHORT and settings.on_under_capacity is OnUnderCapacity.WITHDRAW)
        )

    def _is_any_encrypted(self) -> bool:
        return any(stream.settings.encryption for stream in self._state.streams.values())

    def _lacks_key(self, broker: BrokerId, settings: StreamConfig) -> bool:
        return settings.encryption and broker in self._without_key

    def _target(self, key: PartitionKey, partition: Partition) -> BrokerId | None:
        """Returns a live member of the ISR with more room than the leader (or another reason to lead in its place),
        that can take records; most room first, then the fewest leaderships, with those of moves under way."""
        leader = partition.leader
        assert leader is not None
        settings = self._state.streams[key.stream].settings
        is_stopping = leader in self._stopping
        if is_stopping or self._state.is_draining(leader) or self._lacks_key(leader, settings):
            worst = len(_RANK)
        elif leader in self._hanging:
            worst = _RANK[Room.FULL]
        else:
            worst = _RANK[self._rooms.get(leader, Room.AMPLE)]
        able = [
            broker
            for broker in partition.isr
            if broker != leader
            and self._state.is_alive(broker)
            and not partition.is_withdrawn(broker)
            and broker in self._rooms
            and broker not in self._hanging
            and broker not in self._stopping
            and (is_stopping or not self._state.is_draining(broker))
            and not self._lacks_key(broker, settings)
            and _RANK[self._rooms[broker]] < worst
        ]
        order = partition.replicas.index
        is_draining = self._state.is_draining
        return min(
            able, key=lambda b: (is_draining(b), _RANK[self._rooms[b]], self._will_lead(b), order(b)), default=None
        )

    def _will_lead(self, broker: BrokerId) -> int:
        coming = sum(move.target == broker for move in self._under_way.values())
        return self._state.led_by(broker) + coming
