"""Reassignments of partitions in use, as the controller drives them: which of them copy, and when each is over. Events
in, effects out.

    waiting      started when each broker that takes part has fewer than `moves_per_broker` partitions that copy to it
                 or from it; those that were begun first come first
    copying      followers catch up, and join the ISR by their leader's proposals
    in sync      the whole target is in the ISR. Where another replica leads, the leadership moves to one of the target,
                 the first that can lead, as an operator would move it (`metadata.runtime.moves`)
    complete     proposed when nothing is missing any more (`metadata.cluster.reassignment.why_not_complete`)

A cancelled one goes the same way back, and waits for less. Everything that is decided is in the applied state, so a new
controller goes on where the last one was. A command that is refused or lost is proposed anew, at the latest
`DECISION_RETRY_S` later, and a move that failed is tried again after a pause that doubles.

A broker that is dead takes up no room: its partitions copy on when it is back, and others start meanwhile. What was
a replica before need not be alive when a reassignment starts, so new replicas are copied while an old one is dead; it
is over when the old one, too, is in sync.

The controller asks for what is due some hundred times a second. So one that is started is looked at when its partition
has changed, or when it is to be tried again; and some of those that wait are when a broker has less to copy than
before, and else every LOOK_INTERVAL_S.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import chain, islice
from math import inf
from typing import Any, Final

from metadata.cluster.model import Changes, Partition
from metadata.cluster.reassignment import in_sync, needs_move, why_not_complete
from metadata.cluster.references import ref_of
from metadata.commands.cluster_state import ClusterState
from metadata.controller.controller_effects import Effect, MoveLeader, Note, Propose
from metadata.controller.failover import DECISION_RETRY_S
from metadata.controller.metadata_settings import MetadataSettings
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry
from wire.turns import LOOKS
from wire.types import BrokerId, Generation, LeaderMove, PartitionKey

MAX_MOVES: Final = 16
"""Limit of the leaderships that move at a time."""
MAX_ITEMS: Final = 200
"""Limit of the partitions of one command."""
LOOKED_AT: Final = 500
"""Waiting reassignments that one decision looks at; the next one looks at others."""
MOST_STARTED: Final = 500
"""Limit of the partitions that copy, or wait for a leader of their target, at a time. Those that wait for nothing but
dead brokers do not count."""
SHORTEST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
LOOK_INTERVAL_S: Final = 0.25
"""Waiting ones, and those whose leadership cannot move for now, are looked at this often, whatever happens."""
MOST_NAMED: Final = 5


@dataclass(slots=True)
class _Watched:
    begun: Generation
    is_cancelled: bool
    retry_at: float = -inf
    """A proposed command is waited for until then, or the next move of the leader begins then."""
    wakes_at: float = inf
    """It is looked at again then, whatever happens."""
    busy: tuple[BrokerId, ...] = ()
    """Brokers at which it counts as one that copies."""
    failed: Retry = field(default_factory=lambda: Retry(SHORTEST_PAUSE_S, LONGEST_PAUSE_S, chance=None))


class Reassigning:
    """Proposes the steps of reassignments. `state` is read only. `may_lead(broker, key)`: whether its disk and its keys
    allow it; `propose` makes the effect that proposes a command; `epoch()`: the controller epoch of this broker, 0
    while it is not the controller."""

    def __init__(
        self,
        state: ClusterState,
        settings: MetadataSettings,
        *,
        may_lead: Callable[[BrokerId, PartitionKey], bool],
        propose: Callable[[pb.Command], Propose],
        epoch: Callable[[], int],
    ) -> None:
        self._state = state
        self._most_at_broker = settings.moves_per_broker
        self._may_lead = may_lead
        self._propose = propose
        self._epoch = epoch
        self._waiting: dict[PartitionKey, _Watched] = {}
        """Those that were begun first come first, once it is sorted."""
        self._is_sorted = True
        self._position = 0
        """How many of the waiting ones, from the first on, were looked at since the last one that was left."""
        self._started: dict[PartitionKey, _Watched] = {}
        self._held_up: set[PartitionKey] = set()
        """Started ones that wait for nothing but dead brokers."""
        self._moving: dict[PartitionKey, LeaderMove] = {}
        self._busy: Counter[BrokerId] = Counter()
        """How many copy to or from a broker. Those that were proposed to be started count, too."""
        self._proposed: set[PartitionKey] = set()
        """Waiting ones that were proposed to be started."""
        self._changed: dict[PartitionKey, None] = {}
        """Started ones that are to be looked at."""
        self._to_look_at: dict[PartitionKey, None] = {}
        """Started ones that are to be looked at because a broker has died or is back; some with each call."""
        self._again: list[PartitionKey] = []
        """Waiting ones whose command had no effect in time."""
        self._wakes: list[tuple[float, PartitionKey]] = []
        """A heap of `_Watched.wakes_at`; those that have been replaced are in it, too."""
        self._has_room = False
        """A broker may have less to copy than when waiting ones were looked at."""
        self._look_at_waiting_at = -inf
        self._walk: Iterator[list[PartitionKey]] | None = None
        """The rest of a walk through all partitions, at the beginning of a controller epoch."""

    @property
    def has_more(self) -> bool:
        """Whether the last call left some partitions that were not looked at."""
        return self._walk is not None or bool(self._to_look_at)

    def begin(self) -> None:
        """A controller epoch of this broker begins."""
        self.end()
        self._walk = self._state.walk(lambda partition: partition.reassignment is not None)

    def end(self) -> None:
        """The controller epoch of this broker is over; moves of leaders end by themselves."""
        for each in (self._waiting, self._started, self._busy, self._proposed, self._changed, self._again, self._wakes):
            each.clear()
        self._held_up.clear()
        self._to_look_at.clear()
        self._walk = None

    def on_applied(self, changes: Changes) -> None:
        for key in (*changes.partitions, *changes.gone):
            self._look_at(key)
        if changes.brokers:
            self._to_look_at.update(dict.fromkeys(self._started))
            self._has_room = True

    def on_move_ended(self, move: LeaderMove, moved: bool, now: float) -> bool:
        """Returns whether it was a move of this one's."""
        if self._moving.get(move.key) is not move:
            return False
        del self._moving[move.key]
        watched = self._started.get(move.key)
        if watched is not None:
            if not moved:
                watched.retry_at = now + watched.failed.failed()
            self._changed[move.key] = None
        return True

    # Keeps R84, R85.
    def due(self, now: float) -> list[Effect]:
        """Returns the effects that are due now. A call looks at some reassignments, and the next one at others."""
        self._go_on_with_walk()
        for key in [*islice(self._to_look_at, LOOKED_AT)]:
            del self._to_look_at[key]
            self._look_at(key)
        self._wake(now)
        complete: list[PartitionKey] = []
        effects: list[Effect] = []
        changed, self._changed = self._changed, {}
        for key in changed:
            watched, partition, min_isr = self._started.get(key), self._state.partition(key), self._min_isr(key)
            if watched is None or partition is None or partition.reassignment is None:
                continue  # it is over, or the state is ahead of the changes that `on_applied` has received
            if now < watched.retry_at:
                self._wake_at(key, watched, watched.retry_at)
            elif why_not_complete(partition, min_isr) is None:
                if len(complete) >= MAX_ITEMS:
                    self._changed[key] = None
                    continue
                watched.retry_at = now + DECISION_RETRY_S
                self._wake_at(key, watched, watched.retry_at)
                complete.append(key)
            elif key not in self._moving and needs_move(partition, min_isr):
                move = self._move(key, partition)
                if move is None:
                    self._wake_at(key, watched, now + LOOK_INTERVAL_S)
                else:
                    self._moving[key] = move
                    effects.append(MoveLeader(move))
        if complete:
            effects += self._step(
                "complete_reassignments", pb.CompleteReassignments, complete, "are left by their former replicas"
            )
        start = self._to_start(now)
        if start:
            effects += self._step("start_reassignments", pb.StartReassignments, start, "begin to copy to other brokers")
        return effects

    def _to_start(self, now: float) -> list[PartitionKey]:
        """Returns waiting reassignments that may start beside those that copy."""
        if not self._waiting or (not self._has_room and now < self._look_at_waiting_at):
            return []
        self._has_room, self._look_at_waiting_at = False, now + LOOK_INTERVAL_S
        if not self._is_sorted:
            order = sorted(self._waiting.items(), key=lambda found: (found[1].begun, found[0]))
            self._waiting, self._is_sorted, self._position = dict(order), True, 0
        if self._position >= len(self._waiting):
            self._position = 0
        start: list[PartitionKey] = []
        again, self._again = self._again, []
        looked_at = [*islice(self._waiting, self._position, self._position + LOOKED_AT)]
        for number, key in enumerate(chain(again, looked_at), 1 - len(again)):
            if len(self._proposed) + len(self._started) - len(self._held_up) >= MOST_STARTED:
                break
            if len(start) >= MAX_ITEMS:
                self._has_room = True
                break
            self._position += number > 0
            watched = self._waiting.get(key)
            if watched is None or now < watched.retry_at:
                continue
            partition = self._state.partition(key)
            if partition is None or partition.reassignment is None:
                continue
            copying = self._would_copy(partition)
            if any(
                not self._state.is_alive(broker) or self._busy[broker] >= self._most_at_broker for broker in copying
            ):
                continue
            self._count(watched, copying)
            self._proposed.add(key)
            watched.retry_at = now + DECISION_RETRY_S
            self._wake_at(key, watched, watched.retry_at)
            start.append(key)
        return start

    def _count(self, watched: _Watched, busy: Iterable[BrokerId]) -> None:
        """It copies to or from these brokers, and from now on to no others."""
        before, watched.busy = watched.busy, tuple(busy)
        self._busy.update(watched.busy)
        self._busy.subtract(before)
        self._has_room = self._has_room or not {*before} <= {*watched.busy}

    def _wake_at(self, key: PartitionKey, watched: _Watched, at: float) -> None:
        """Looks at it again then, at the latest."""
        if at < watched.wakes_at:
            watched.wakes_at = at
            heappush(self._wakes, (at, key))

    def _wake(self, now: float) -> None:
        while self._wakes and self._wakes[0][0] <= now:
            at, key = heappop(self._wakes)
            watched = self._started.get(key) or self._waiting.get(key)
            if watched is None or watched.wakes_at != at:
                continue
            watched.wakes_at = inf
            if key in self._started:
                self._changed[key] = None
                continue
            self._proposed.discard(key)
            self._count(watched, ())
            self._again.append(key)
            self._has_room = True

    def _would_copy(self, partition: Partition) -> list[BrokerId]:
        """Returns the brokers that take part when the waiting reassignment starts: those that copy, and the one that
        they copy from. A dead one that is a replica already does not: it is waited for at the end only."""
        moving = partition.reassignment
        assert moving is not None
        added = [
            broker
            for broker in moving.target
            if broker not in partition.isr and (broker not in partition.replicas or self._state.is_alive(broker))
        ]
        return [*added, partition.leader] if added and partition.leader is not None else added

    def _busy_with(self, partition: Partition) -> list[BrokerId]:
        """Returns the live brokers that take part in the copying."""
        moving = partition.reassignment
        if moving is None or moving.is_cancelled:
            return []
        copying = [broker for broker in self._would_copy(partition) if self._state.is_alive(broker)]
        return copying if any(broker != partition.leader for broker in copying) else []

    def _waits_for_the_dead_only(self, partition: Partition) -> bool:
        moving = partition.reassignment
        missing = [] if moving is None else [broker for broker in moving.target if broker not in partition.isr]
        return bool(missing) and not any(self._state.is_alive(broker) for broker in missing)

    def _move(self, key: PartitionKey, partition: Partition) -> LeaderMove | None:
        """Returns the move of the leadership that the reassignment waits for, if it can begin."""
        if partition.leader is None or len(self._moving) >= MAX_MOVES:
            return None
        able = (broker for broker in in_sync(partition) if self._may_begin(key, broker))
        target = next(able, None)
        if target is None:
            return None
        return LeaderMove(key=key, leader=partition.leader, leader_epoch=partition.leader_epoch, target=target)

    def _may_begin(self, key: PartitionKey, broker: BrokerId) -> bool:
        return self._state.is_alive(broker) and self._may_lead(broker, key)

    def _step(
        self,
        kind: str,
        make: type[pb.StartReassignments | pb.CompleteReassignments],
        keys: list[PartitionKey],
        what: str,
    ) -> Iterable[Effect]:
        items = [
            pb.ReassignmentStep(partition=ref_of(key), expected_epoch=partition.epoch)
            for key in keys
            if (partition := self._state.partition(key)) is not None
        ]
        names = ", ".join(f"{key.stream}/{key.partition}" for key in keys[:MOST_NAMED])
        yield Note(f"{len(keys)} partitions {what}: {names}{', …' if len(keys) > MOST_NAMED else ''}")
        body: Any = {kind: make(controller_epoch=self._epoch(), items=items)}
        yield self._propose(pb.Command(**body))

    def _min_isr(self, key: PartitionKey) -> int:
        stream = self._state.streams.get(key.stream)
        return 1 if stream is None else stream.min_isr

    def _go_on_with_walk(self) -> None:
        looks = 0
        while self._walk is not None and looks < LOOKS:
            keys = next(self._walk, None)
            if keys is None:
                self._walk = None
                return
            looks += 1 + len(keys)
            for key in keys:
                self._look_at(key)

    def _look_at(self, key: PartitionKey) -> None:
        partition = self._state.partition(key)
        moving = partition.reassignment if partition is not None else None
        is_started = moving is not None and moving.is_started
        there = self._waiting if is_started else self._started
        self._forget(there, key)
        if moving is None or partition is None:
            self._forget(self._waiting, key)
            return
        here = self._started if is_started else self._waiting
        known = here.get(key)
        if known is None or known.begun != moving.begun or known.is_cancelled != moving.is_cancelled:
            self._forget(here, key)
            known = here[key] = _Watched(moving.begun, moving.is_cancelled)
            self._is_sorted = is_started and self._is_sorted
            self._has_room = self._has_room or not is_started
        if is_started:
            self._count(known, self._busy_with(partition))
            self._changed[key] = None
            if self._waits_for_the_dead_only(partition):
                self._has_room = self._has_room or key not in self._held_up
                self._held_up.add(key)
            else:
                self._held_up.discard(key)

    def _forget(self, watched: dict[PartitionKey, _Watched], key: PartitionKey) -> None:
        gone = watched.pop(key, None)
        if gone is not None:
            self._count(gone, ())
            if watched is self._started:
                self._held_up.discard(key)
            if watched is self._waiting:
                self._proposed.discard(key)
