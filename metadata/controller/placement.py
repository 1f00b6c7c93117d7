"""Brokers for the replicas of new partitions, and their leaders, by the policy of the stream (`wire.placement`).

Which brokers may hold a replica: alive ones with all tags of `require_tags`; of `pinned` the named ones, of
`colocation_strict` those that hold the same partition of the other stream. Brokers that lack room, or whose disks hang,
are left out while enough others remain (`LeaderRebalancing.with_room`).

Of these, each partition takes one after the other, by a score. What stands first decides:

1. the zone in which the partition has the fewest replicas yet. Brokers without a zone count as one zone
2. brokers that hold the same partition of the stream named by `colocate_with`
3. the most tags of `prefer_tags`
4. the zone whose brokers hold the fewest replicas of this stream, on average; then the broker that does
5. the same, of all streams
6. chance, so that partitions which share a leader do not share all followers too

The leader is `leader_pin` if that broker is among them, else the one with the fewest leaderships, of this stream first
and of all streams second; in the end they are evened out (`leader_spread`). It stands first among the replicas: the
preferred leader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from metadata.cluster.model import Partition
from metadata.commands.cluster_state import ClusterState
from metadata.controller.leader_spread import even_leaders
from wire.errors import Code, TidelogError
from wire.placement import Strategy
from wire.stream_config import StreamConfig
from wire.turns import Steps
from wire.types import BrokerId, StreamName

_PIECE: Final = 50
"""So many partitions are placed before other tasks of the event loop have their turn."""


class Chance(Protocol):
    """The part of a seeded `random.Random` that placement uses."""

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...


@dataclass(frozen=True, slots=True)
class Placement:
    replicas: tuple[BrokerId, ...]
    """Brokers, the leader first."""

    @property
    def leader(self) -> BrokerId:
        return self.replicas[0]


@dataclass(slots=True)
class _Load:
    zone: str
    preferred_tags: int
    """How many tags of `prefer_tags` the broker has."""
    replicas_here: int = 0
    leads_here: int = 0
    replicas_everywhere: int = 0
    leads_everywhere: int = 0


class _Zone:
    """Replicas of all candidates in a zone."""

    __slots__ = ("brokers", "everywhere", "here")

    def __init__(self) -> None:
        self.brokers = 0
        self.here = 0
        self.everywhere = 0


def place(
    state: ClusterState,
    live: Sequence[BrokerId],
    *,
    numbers: Sequence[int],
    replication_factor: int,
    settings: StreamConfig,
    chance: Chance,
    beside: Iterable[Partition] = (),
) -> Steps[list[Placement]]:
    """Placements of new partitions with these numbers on brokers that `candidates` has returned, of which there are at
    least `replication_factor`. `beside`: partitions that their stream has already.

    Raises TidelogError where `colocation_strict` finds too few brokers for a partition (NOT_ENOUGH_BROKERS), or nothing
    to follow (BAD_CONFIG).
    """
    loads = {
        broker: _Load(
            zone=state.brokers[broker].zone,
            preferred_tags=len({*settings.prefer_tags}.intersection(state.brokers[broker].tags)),
            replicas_everywhere=state.held_by(broker),
            leads_everywhere=state.led_by(broker),
        )
        for broker in live
    }
    for partition in beside:
        for replica in partition.replicas:
            if replica in loads:
                loads[replica].replicas_here += 1
        if partition.leader in loads:
            loads[partition.leader].leads_here += 1
    zones = _zones(loads)
    is_strict = settings.placement.strategy is Strategy.COLOCATION_STRICT
    followed = state.streams.get(StreamName(settings.placement.stream if is_strict else settings.colocate_with))
    order = sorted(live)
    placed: list[tuple[BrokerId, ...]] = []
    for done, number in enumerate(numbers):
        if done % _PIECE == 0:
            yield _PIECE * (3 + len(live))
        beside_which = followed.partitions.get(number) if followed is not None else None
        holders: Collection[BrokerId] = beside_which.replicas if beside_which is not None else ()
        if is_strict and beside_which is None:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"placement={settings.placement}: stream {settings.placement.stream} has no partition {number}; give"
                " the stream as many partitions at most, or use colocate_with",
            )
        if is_strict:
            able = [broker for broker in live if broker in holders]
            if len(able) < replication_factor:
                raise _too_few_holders(settings.placement.stream, number, live, able, replication_factor)
            order = able
        chance.shuffle(order)
        replicas = _chosen(order, replication_factor, loads, zones, holders, settings.leader_pin)
        leader = min(
            replicas,
            key=lambda b: (b != settings.leader_pin, loads[b].leads_here, loads[b].leads_everywhere),
        )
        replicas.remove(leader)
        for broker in (leader, *replicas):
            load = loads[broker]
            load.replicas_here += 1
            load.replicas_everywhere += 1
            zones[load.zone].here += 1
            zones[load.zone].everywhere += 1
        loads[leader].leads_here += 1
        loads[leader].leads_everywhere += 1
        placed.append((leader, *replicas))
    if settings.leader_pin not in loads:
        yield from even_leaders(placed, {broker: load.leads_here for broker, load in loads.items()})
    return [Placement(replicas) for replicas in placed]


def candidates(state: ClusterState, live: Sequence[BrokerId], settings: StreamConfig, factor: int) -> list[BrokerId]:
    """Returns the live brokers on which the policy lets replicas be placed, `factor` of them at least.

    Raises TidelogError: BAD_CONFIG where the policy names what does not exist, or contradicts itself;
    NOT_ENOUGH_BROKERS where brokers that it needs are not alive.
    """
    policy = settings.placement
    check_brokers(state, settings)
    wanted = [BrokerId(name) for name in policy.brokers] or sorted(state.brokers)
    required = {*settings.require_tags}
    lacking = [broker for broker in wanted if not required.issubset(state.brokers[broker].tags)]
    if policy.brokers and lacking:
        raise TidelogError(
            Code.BAD_CONFIG,
            f"placement={policy} names {', '.join(lacking)}, without the tags of"
            f" require_tags={','.join(settings.require_tags)}; name brokers that have them, or ask for other tags",
        )
    fit = [broker for broker in wanted if broker not in lacking]
    able = [broker for broker in fit if broker in live]
    if len(able) >= factor:
        return able
    gone = [broker for broker in fit if broker not in live]
    draining = [broker for broker in gone if state.is_draining(broker)]
    dead = [broker for broker in gone if broker not in draining]
    because = f"placement={policy}" if policy.brokers else f"require_tags={','.join(settings.require_tags)}"
    remedies = [remedy_of_draining(draining)] if draining else []
    text = f"{because} leaves {len(able)} live broker{'' if len(able) == 1 else 's'} ({', '.join(able) or 'none'})"
    if draining:
        text += f", for {', '.join(draining)} {'is' if len(draining) == 1 else 'are'} draining,"
    if len(able) + len(dead) >= factor:
        raise TidelogError(
            Code.NOT_ENOUGH_BROKERS,
            f"{text} for replication_factor={factor}: {', '.join(dead)} {'is' if len(dead) == 1 else 'are'} dead; start"
            f" {'it' if len(dead) == 1 else 'them'}, or change the policy",
        )
    if policy.brokers:
        remedies.append("name another broker")
    else:
        remedies.append("give more brokers these tags (`tags` in their configuration)")
    if able:
        remedies.append(f"ask for {len(able)} at most")
    raise TidelogError(Code.BAD_REPLICATION_FACTOR, f"{text} for replication_factor={factor}; {', or '.join(remedies)}")


def remedy_of_draining(draining: Sequence[BrokerId]) -> str:
    """Returns what lets draining brokers take replicas again, for sentences."""
    return " and ".join(f"`tidelog broker drain {broker} --cancel`" for broker in draining)


def check_followed(state: ClusterState, name: str, settings: StreamConfig) -> None:
    """Checks the streams that the policy of stream `name` follows. Raises TidelogError(BAD_CONFIG)."""
    for key, other in (("colocate_with", settings.colocate_with), ("placement", settings.placement.stream)):
        if other and (other == name or StreamName(other) not in state.streams):
            what = "the stream itself" if other == name else "no stream"
            raise TidelogError(
                Code.BAD_CONFIG,
                f"{key}={settings.placement if key == 'placement' else other} names {what}; name another stream,"
                " `tidelog stream list` shows them",
            )
    seen = {name}
    other = settings.placement.stream
    while other:
        if other in seen:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"placement={settings.placement} of {name} goes round: {other} is placed by it already; leave one of"
                " them standard",
            )
        seen.add(other)
        known = state.streams.get(StreamName(other))
        other = known.settings.placement.stream if known is not None else ""


def check_brokers(state: ClusterState, settings: StreamConfig) -> None:
    """Checks the brokers that a policy names. Raises TidelogError(BAD_CONFIG)."""
    named = [("placement", broker) for broker in settings.placement.brokers]
    for key, broker in [*named, ("leader_pin", settings.leader_pin)]:
        if broker and BrokerId(broker) not in state.brokers:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"{key} names broker {broker}, which has never registered; known are"
                f" {', '.join(sorted(state.brokers)) or 'none'}",
            )


def _too_few_holders(
    stream: str, number: int, live: Sequence[BrokerId], able: Sequence[BrokerId], factor: int
) -> TidelogError:
    lacking = [broker for broker in live if broker not in able]
    return TidelogError(
        Code.NOT_ENOUGH_BROKERS,
        f"placement=colocation_strict:{stream} finds {len(able)} of {factor} replicas for a partition among the live"
        f" holders of {stream}/{number} ({', '.join(able) or 'none'}); without it are {', '.join(lacking) or 'none'}."
        f" Ask for {max(1, len(able))} at most, start brokers that hold it, or use colocate_with",
    )


def _zones(loads: Mapping[BrokerId, _Load]) -> dict[str, _Zone]:
    zones: dict[str, _Zone] = {}
    for load in loads.values():
        zone = zones.setdefault(load.zone, _Zone())
        zone.brokers += 1
        zone.here += load.replicas_here
        zone.everywhere += load.replicas_everywhere
    return zones


def _chosen(
    order: Sequence[BrokerId],
    factor: int,
    loads: Mapping[BrokerId, _Load],
    zones: Mapping[str, _Zone],
    holders: Collection[BrokerId],
    pin: str,
) -> list[BrokerId]:
    def score(broker: BrokerId) -> tuple[Any, ...]:
        load = loads[broker]
        zone = zones[load.zone]
        return (
            broker not in holders,
            -load.preferred_tags,
            zone.here / zone.brokers,
            load.replicas_here,
            zone.everywhere / zone.brokers,
            load.replicas_everywhere,
        )

    ranked = sorted(order, key=score)
    chosen: list[BrokerId] = [BrokerId(pin)] if pin in ranked else []
    used = {loads[broker].zone: 1 for broker in chosen}
    level = 0
    while len(chosen) < factor:
        for broker in ranked:
            zone = loads[broker].zone
            if used.get(zone, 0) <= level and broker not in chosen:
                chosen.append(broker)
                used[zone] = used.get(zone, 0) + 1
                if len(chosen) == factor:
                    break
        level += 1
    return chosen
