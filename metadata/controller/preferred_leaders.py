"""Leaderships that go back to the preferred leaders of partitions. Events in, moves out.

The preferred leader of a partition is `leader_pin` of its stream, where that broker holds a replica, else the first
replica. When a broker dies or stops, others lead in its place; when it is back it follows, and without this module it
would lead nothing until others die.

    away        another replica leads
    in question the preferred leader is a member of the ISR that its leader has seen in sync since it came back, takes
                records, and has been able to lead for `leader_rebalance_delay_ms` without interruption
    on its way  a planned move (`metadata.runtime.moves`), of which few are under way at a time

A leadership that is lost again within THRASH_WINDOW_S of its return is counted as thrash, and the partition is left
where it is for a time that doubles with each such loss. An operator's request (`tidelog cluster rebalance
--leaders-only`) waits neither for the delay nor for that time. Where `auto_leader_rebalance` is false, only such
requests move anything.

Nothing of this enters Raft. A new controller waits the whole delay anew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from metadata.cluster.cluster_view import PIECE
from metadata.cluster.model import Partition
from metadata.commands.cluster_state import ClusterState
from wire.retry import Retry
from wire.stream_config import StreamConfig
from wire.turns import LOOKS, Steps, pieces
from wire.types import BrokerId, Incarnation, LeaderMove, PartitionKey

DECISION_INTERVAL_S: Final = 0.25
"""Answers to probes come more often than there is something to decide."""
MAX_RETURNS: Final = 4
"""Limit of the moves under way at a time."""
LOOK_INTERVAL_S: Final = 2.0
"""A walk through all partitions begins this often, as the one before has ended."""
THRASH_WINDOW_S: Final = 30.0
LONGEST_HOLD_S: Final = 3600.0
SHORTEST_PAUSE_S: Final = 5.0
LONGEST_PAUSE_S: Final = 300.0
_PLAIN: Final = StreamConfig()
_LOOKS: Final = LOOKS // 2
"""Limit of the looks of one decision: some 500 partitions."""
_OF_PIECE: Final = PIECE
_OF_AWAY: Final = 4
"""Cost of a partition that is led elsewhere, in looks."""


@dataclass(slots=True)
class _Returned:
    """A leadership that went back."""

    at: float
    hold_s: float = 0.0
    until: float = -inf
    """It stays where it is until then."""


@dataclass(slots=True)
class _Failed:
    retry: Retry
    again_at: float = 0.0


@dataclass(frozen=True, slots=True)
class AwayPartition:
    """A partition that its preferred leader does not lead."""

    key: PartitionKey
    leader: BrokerId | None
    preferred: BrokerId
    obstacle: str
    """Why the leadership cannot go back now; empty: it can."""


def preferred_leader(partition: Partition, settings: StreamConfig) -> BrokerId:
    pin = BrokerId(settings.leader_pin)
    return pin if pin in partition.replicas else partition.replicas[0]


class PreferredLeaders:
    """Chooses the leaderships that go back. `state` is read only. `why_not(broker, settings)`: why that broker should
    lead nothing of such a stream, by its newest report; empty: it may. `is_moving(key)`: whether another move of the
    partition is under way."""

    def __init__(
        self,
        state: ClusterState,
        *,
        why_not: Callable[[BrokerId, StreamConfig], str],
        is_moving: Callable[[PartitionKey], bool],
    ) -> None:
        self._state = state
        self._why_not = why_not
        self._is_moving = is_moving
        self._able_since: dict[BrokerId, tuple[Incarnation, float]] = {}
        self._under_way: dict[PartitionKey, LeaderMove] = {}
        self._failed: dict[PartitionKey, _Failed] = {}
        self._returned: dict[PartitionKey, _Returned] = {}
        """Partitions that went back a short time ago, or thrash."""
        self._asked: dict[PartitionKey, None] = {}
        """Partitions whose leaders an operator has asked for."""
        self._walk: Iterator[list[PartitionKey]] | None = None
        self._walk_at = -inf
        self._due_at = -inf
        self.thrash_total = 0
        """Leaderships that were lost again within THRASH_WINDOW_S of their return, in the time of this process."""

    def clear(self) -> None:
        """The controller epoch is over."""
        self._able_since.clear()
        self._failed.clear()
        self._returned.clear()
        self._asked.clear()
        self._walk = None

    def ask(self, keys: Sequence[PartitionKey]) -> None:
        """An operator wants the preferred leaders of these partitions to lead, now."""
        self._asked.update(dict.fromkeys(keys))

    def away(self) -> Steps[list[AwayPartition]]:
        """Returns the partitions that their preferred leaders do not lead, by key."""
        found: list[AwayPartition] = []
        for keys in self._walk_away():
            for key in keys:
                partition = self._state.partition(key)
                if partition is None:
                    continue
                settings = self._state.streams[key.stream].settings
                preferred = preferred_leader(partition, settings)
                found.append(AwayPartition(key, partition.leader, preferred, self._obstacle(key, partition)))
            yield _OF_PIECE + _OF_AWAY * len(keys)
        return found

    # Keeps R30, R71.
    def due(self, now: float) -> list[LeaderMove]:
        """Returns the moves to begin now; report the end of each to `on_ended`. They are planned moves: the old leader
        stays in the ISR, and the new one is a member of it that the leader has seen in sync in its present incarnation.
        """
        if now < self._due_at and not self._asked:
            return []
        self._due_at = now + DECISION_INTERVAL_S
        cluster = self._state.cluster_settings
        delay_s = cluster.leader_rebalance_delay_ms / 1000
        self._note_able(now)
        out: list[LeaderMove] = []
        for key in [*self._asked][: MAX_RETURNS + 1]:
            if len(self._under_way) >= MAX_RETURNS:
                return out
            del self._asked[key]
            out += self._move(key)
        if not cluster.auto_leader_rebalance:
            self._walk = None
            return out
        if self._walk is None and now >= self._walk_at:
            self._walk, self._walk_at = self._walk_away(), now + LOOK_INTERVAL_S
        looks = 0
        while self._walk is not None and looks < _LOOKS and len(self._under_way) < MAX_RETURNS:
            keys = next(self._walk, None)
            if keys is None:
                self._walk = None
                break
            looks += _OF_PIECE + _OF_AWAY * len(keys)
            for key in keys:
                if len(self._under_way) < MAX_RETURNS and self._is_time(key, now, delay_s):
                    out += self._move(key)
        return out

    def on_ended(self, move: LeaderMove, moved: bool, now: float) -> bool:
        """Returns whether the move is one of this module's."""
        if self._under_way.get(move.key) is not move:
            return False
        del self._under_way[move.key]
        if moved:
            self._failed.pop(move.key, None)
            known = self._returned.get(move.key)
            self._returned[move.key] = _Returned(now, 0.0 if known is None else known.hold_s)
        else:
            failed = self._failed.setdefault(move.key, _Failed(Retry(SHORTEST_PAUSE_S, LONGEST_PAUSE_S, chance=None)))
            failed.again_at = now + failed.retry.failed()
        return True

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _walk_away(self) -> Iterator[list[PartitionKey]]:
        """Yields keys of partitions that are led elsewhere, in pieces; goes on while the state changes."""
        for name in sorted(self._state.streams):
            stream = self._state.streams.get(name)
            if stream is None:
                continue
            settings = stream.settings
            for piece in pieces([*stream.partitions.items()], PIECE):
                yield [
                    PartitionKey(name, stream.incarnation, number, partition.incarnation)
                    for number, partition in piece
                    if partition.leader != preferred_leader(partition, settings)
                ]

    def _note_able(self, now: float) -> None:
        for broker, known in self._state.brokers.items():
            if not known.alive or self._why_not(broker, _PLAIN):
                self._able_since.pop(broker, None)
                continue
            since = self._able_since.get(broker)
            if since is None or since[0] != known.incarnation:
                self._able_since[broker] = (known.incarnation, now)

    def _is_time(self, key: PartitionKey, now: float, delay_s: float) -> bool:
        partition = self._state.partition(key)
        if partition is None:
            return False
        preferred = preferred_leader(partition, self._state.streams[key.stream].settings)
        since = self._able_since.get(preferred)
        failed = self._failed.get(key)
        if since is None or now < since[1] + delay_s or (failed is not None and now < failed.again_at):
            return False
        returned = self._returned.get(key)
        if returned is None:
            return True
        if returned.at > -inf:
            # It went back, and is led elsewhere again.
            is_thrash = now - returned.at <= THRASH_WINDOW_S + LOOK_INTERVAL_S
            if is_thrash:
                self.thrash_total += 1
                returned.hold_s = min(max(2 * returned.hold_s, 2 * THRASH_WINDOW_S), LONGEST_HOLD_S)
                returned.until = now + returned.hold_s
            else:
                returned.hold_s = 0.0
            returned.at = -inf
        return now >= returned.until

    def _move(self, key: PartitionKey) -> Iterator[LeaderMove]:
        partition = self._state.partition(key)
        if partition is None or key in self._under_way or self._obstacle(key, partition):
            return
        preferred = preferred_leader(partition, self._state.streams[key.stream].settings)
        if partition.leader is None or partition.leader == preferred:
            return
        move = LeaderMove(
            key=key, leader=partition.leader, leader_epoch=partition.leader_epoch, target=preferred, disk_hangs=False
        )
        self._under_way[key] = move
        yield move

    def _obstacle(self, key: PartitionKey, partition: Partition) -> str:
        """Returns why the preferred leader cannot lead now; empty: it can."""
        settings = self._state.streams[key.stream].settings
        broker = preferred_leader(partition, settings)
        if not self._state.is_alive(broker):
            return f"{broker} is dead"
        if partition.leader is None:
            return "nobody leads it"
        if partition.reassignment is not None:
            return "its replicas are being moved"
        if broker not in partition.isr:
            return f"{broker} is not in the ISR yet"
        if partition.is_withdrawn(broker):
            return f"the replica on {broker} is unsound"
        if any(entry.replica == broker for entry in partition.returned):
            return f"{broker} has just come back"
        if self._is_moving(key):
            return "its leadership is moving"
        return self._why_not(broker, settings)
