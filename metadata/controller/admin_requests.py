"""Requests of operators and clients, as the controller decides them: each becomes a command, or a refusal.

Those that grow with the number of partitions are decided in turns (`wire.turns`). The state may change meanwhile, as it
may before the command is applied.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from metadata.cluster import stream_settings
from metadata.cluster.model import Partition, Stream
from metadata.cluster.reassignment import in_sync, needs_move
from metadata.cluster.references import ref_of
from metadata.commands.broker_removal import why_not_removed
from metadata.commands.cluster_state import ClusterState
from metadata.commands.partition_commands import why_not_unclean
from metadata.commands.reassignment_targets import wanted_replicas, why_not_target
from metadata.commands.repartition_commands import missing_partitions, why_not_cancelled, why_not_repartition
from metadata.commands.replication_factor import check_factor
from metadata.commands.stream_commands import why_not_compacted, why_not_min_isr
from metadata.controller.leader_rebalancing import LeaderRebalancing
from metadata.controller.metadata_settings import MetadataSettings
from metadata.controller.placement import Chance, candidates, check_brokers, check_followed, place, remedy_of_draining
from metadata.controller.replica_planning import Change
from wire.cluster_config import plain
from wire.echo import echo
from wire.error_details import END
from wire.errors import Code, TidelogError, limit_reached
from wire.internal_streams import PREFIX, InternalStream, is_internal, is_reserved
from wire.layouts import check_partition_count, check_partitioner
from wire.operations.partition_operations import LATEST
from wire.operations.reassignment_operations import MAX_REASSIGNED
from wire.placement import Strategy
from wire.protobuf import metadata_pb2 as pb
from wire.stream_config import StreamConfig
from wire.subjects import Subjects, check_stream_name
from wire.turns import Steps, pieces
from wire.types import BrokerId, LeaderEpoch, LeaderMove, PartitionKey, StreamName

MANY_REPLICAS: Final = 8
"""More replicas of a partition are noted to whoever asks for them."""

_PIECE: Final = 100
"""Partitions that are looked at before `Steps` yield."""


class AdminRequests:
    """Makes commands of requests. `epoch()`: the controller epoch of this broker; 0 while it is not the controller.
    `live_brokers()`: alive by the state, and not refused by the last probes."""

    def __init__(
        self,
        broker_id: BrokerId,
        state: ClusterState,
        rebalancing: LeaderRebalancing,
        chance: Chance,
        settings: MetadataSettings,
        *,
        namespace: str,
        epoch: Callable[[], int],
        live_brokers: Callable[[], list[BrokerId]],
    ) -> None:
        self._id = broker_id
        self._state = state
        self._rebalancing = rebalancing
        self._chance = chance
        self._settings = settings
        self._subjects = Subjects(namespace)
        self._epoch = epoch
        self._live_brokers = live_brokers

    def create_stream(
        self,
        name: str,
        subject: str,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str],
        *,
        partitioner: str | None = None,
        voters: int = 1,
    ) -> Steps[pb.Command]:
        """Returns the command that creates it. `replication_factor` None: the default, or all brokers of a smaller
        cluster: brokers that have ever registered, and at least as many as the metadata group has `voters`, some of
        which may not have registered yet. `partitioner` None: the default one.

        Raises TidelogError: NOT_CONTROLLER, BAD_NAME, BAD_SUBJECT, BAD_CONFIG, BAD_REPLICATION_FACTOR, LIMIT_REACHED;
        NOT_ENOUGH_BROKERS while some of the cluster's brokers are not alive.
        """
        self.require_controller()
        check_stream_name(name)
        if is_reserved(name):
            raise TidelogError(
                Code.BAD_NAME, f"stream name {name!r} begins with {PREFIX!r}, as Tidelog's own do; choose another one"
            )
        if name.startswith("-"):
            raise TidelogError(
                Code.BAD_NAME,
                f"stream name {name!r} begins with '-', as the options of commands do; choose another one",
            )
        self._subjects.check_subject(subject)
        if partitioner is not None:
            check_partitioner(partitioner)
        self._check_limits(partitions)
        return (yield from self._create(name, subject, partitions, replication_factor, config, partitioner, voters))

    def create_internal(self, stream: InternalStream, *, voters: int = 1) -> Steps[pb.Command]:
        """Raises TidelogError, as `create_stream`."""
        self.require_controller()
        subject = self._subjects.internal(stream.name)
        return (yield from self._create(stream.name, subject, stream.partitions, None, stream.config, None, voters))

    def _create(
        self,
        name: str,
        subject: str,
        partitions: int,
        replication_factor: int | None,
        config: Mapping[str, str],
        partitioner: str | None,
        voters: int,
    ) -> Steps[pb.Command]:
        check_partition_count(partitions)
        given = StreamConfig.plain(config)
        settings = StreamConfig.from_strings(stream_settings.with_defaults(given, self._state.defaults))
        check_followed(self._state, name, settings)
        factor = self._factor(replication_factor, settings, voters)
        settings.check(factor)
        live, assignments = yield from self._assignments(range(partitions), factor, settings, voters)
        return pb.Command(
            create_stream=pb.CreateStream(
                controller_epoch=self._epoch(),
                name=name,
                subject=subject,
                config=given,
                replication_factor=factor,
                partitioner=partitioner or "",
                brokers=live,
                assignments=assignments,
            )
        )

    def _factor(self, given: int | None, settings: StreamConfig, voters: int) -> int:
        """Returns the replication factor of a new stream. None was given: that of its policy, else the cluster's
        default, or all brokers of a smaller cluster. Raises TidelogError(BAD_REPLICATION_FACTOR)."""
        cluster, policy = self._state.cluster_settings, settings.placement
        followed = self._state.streams.get(StreamName(policy.stream))
        factor = given
        if factor is None and policy.brokers:
            factor = len(policy.brokers)
        elif factor is None and followed is not None:
            factor = followed.replication_factor
        elif factor is None:
            staying = sum(not known.draining for known in self._state.brokers.values())
            brokers = staying + self._unregistered(voters)
            factor = min(cluster.default_replication_factor, brokers)
        self._check_bounds(factor)
        return factor

    def _check_bounds(self, factor: int) -> None:
        """Raises TidelogError(BAD_REPLICATION_FACTOR)."""
        most = self._state.cluster_settings.max_replication_factor
        if not 1 <= factor <= most:
            raise TidelogError(
                Code.BAD_REPLICATION_FACTOR,
                f"replication_factor={factor} is outside 1 to {most}, the cluster's max_replication_factor (16 at most;"
                " `tidelog cluster alter` changes it)",
            )

    def notes(self, asked: int | None, command: pb.CreateStream) -> list[str]:
        """Returns sentences for the operator who creates a stream, and `asked` for so many replicas."""
        notes, factor = [], command.replication_factor
        wanted = self._state.cluster_settings.default_replication_factor
        settings = StreamConfig.from_strings(stream_settings.with_defaults(command.config, self._state.defaults))
        if asked is None and settings.placement.strategy is Strategy.STANDARD and factor < wanted:
            notes.append(
                f"replication_factor={factor}: the cluster has {factor} broker{'' if factor == 1 else 's'}, fewer than"
                f" default_replication_factor={wanted}"
            )
        if factor > MANY_REPLICAS:
            notes.append(
                f"replication_factor={factor} is above {MANY_REPLICAS}: the leader sends each record to {factor - 1}"
                " followers, and the ISR changes whenever one of them falls behind"
            )
        return notes

    # Keeps R93.
    def _assignments(
        self,
        numbers: Sequence[int],
        factor: int,
        settings: StreamConfig,
        voters: int,
        *,
        beside: Iterable[Partition] = (),
    ) -> Steps[tuple[list[BrokerId], list[pb.Assignment]]]:
        """Returns the brokers that may hold new partitions with these numbers of a stream whose others are `beside`,
        and which of them do."""
        live = self._takers()
        self._check_enough(factor, live, voters)
        live = self._rebalancing.with_room(candidates(self._state, live, settings, factor), factor)
        placements = yield from place(
            self._state,
            live,
            numbers=numbers,
            replication_factor=factor,
            settings=settings,
            chance=self._chance,
            beside=beside,
        )
        index = {broker: place_of for place_of, broker in enumerate(live)}
        assignments: list[pb.Assignment] = []
        for piece in pieces(placements, _PIECE):
            assignments += [
                pb.Assignment(
                    replicas=[index[replica] for replica in placement.replicas], leader=index[placement.leader]
                )
                for placement in piece
            ]
            yield 2 * len(piece)
        return live, assignments

    def _check_limits(self, partitions: int, *, streams: int = 1) -> None:
        """Raises TidelogError(LIMIT_REACHED) when so many more streams and partitions exceed the limits."""
        known, there = self._state.streams, self._state.partition_total
        for limit, most, count, what in (
            ("max_streams", self._settings.max_streams, len(known) + streams, "streams"),
            ("max_partitions", self._settings.max_partitions, there + partitions, "partitions"),
        ):
            if count > most:
                raise limit_reached(
                    limit,
                    f"the cluster would have {count} {what}, and {limit} is {most}; delete streams, or raise {limit} on"
                    " all brokers",
                )

    def _unregistered(self, voters: int) -> int:
        """Returns how many of the metadata group's `voters` have never registered, and may still do so."""
        return max(0, voters - sum(bool(broker.raft_address) for broker in self._state.brokers.values()))

    def _takers(self) -> list[BrokerId]:
        """Returns the live brokers that may get replicas: no draining ones."""
        return [broker for broker in self._live_brokers() if not self._state.is_draining(broker)]

    def _check_enough(self, factor: int, live: Sequence[BrokerId], voters: int) -> None:
        """Raises TidelogError without `factor` live brokers: NOT_ENOUGH_BROKERS when missing ones may still come.
        `live`: those that are not draining."""
        if factor <= len(live):
            return
        text = (
            f"replication_factor={factor} is above the number of live brokers, {len(live)}"
            f" ({', '.join(live) or 'none'})"
        )
        draining = sorted(broker for broker, known in self._state.brokers.items() if known.draining)
        dead = sorted({*self._state.brokers}.difference(live, draining))
        unregistered = self._unregistered(voters)
        remedy = ""
        if draining:
            text += f", for {', '.join(draining)} {'is' if len(draining) == 1 else 'are'} draining"
            remedy = f"{remedy_of_draining(draining)}, "
        if factor > len(live) + len(dead) + unregistered:
            raise TidelogError(
                Code.BAD_REPLICATION_FACTOR, f"{text}; {remedy}start more brokers or ask for {len(live)} at most"
            )
        missing = [f"{', '.join(dead)} {'is' if len(dead) == 1 else 'are'} dead"] if dead else []
        if unregistered:
            missing.append(
                f"{unregistered} of {voters} voters {'has' if unregistered == 1 else 'have'} not started yet"
            )
        raise TidelogError(
            Code.NOT_ENOUGH_BROKERS,
            f"{text}: {' and '.join(missing)}; {remedy}start what is missing, or ask for {len(live)} at most",
        )

    def delete_stream(self, name: str) -> pb.Command:
        """Raises TidelogError: NOT_CONTROLLER, BAD_REQUEST, UNKNOWN_STREAM."""
        stream = self._changeable(name)
        return self._command("delete_stream", stream)

    def alter_stream(self, name: str, changes: Mapping[str, str], unset: Sequence[str]) -> pb.Command:
        """Returns the command that changes settings of a stream. Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM,
        BAD_REQUEST, BAD_CONFIG."""
        stream = self._changeable(name)
        if not changes and not unset:
            raise TidelogError(Code.BAD_REQUEST, f"nothing is to be changed of stream {name}; name a setting")
        wanted = StreamConfig.plain(changes)
        config = stream_settings.altered(
            stream.config,
            changes=wanted,
            unset=unset,
            defaults=self._state.defaults,
            replication_factor=stream.replication_factor,
        )
        self._check_policy(stream, StreamConfig.from_strings(config))
        wrong = why_not_compacted(stream, config) or why_not_min_isr(stream, config)
        if wrong is not None:
            raise TidelogError(Code.BAD_CONFIG, wrong)
        return self._command("alter_stream", stream, set=wanted, unset=unset)

    def _check_policy(self, stream: Stream, after: StreamConfig) -> None:
        """Checks names of brokers and streams in a policy that is changed. Raises TidelogError(BAD_CONFIG)."""
        before = stream.settings
        if (after.placement, after.colocate_with) != (before.placement, before.colocate_with):
            check_followed(self._state, stream.name, after)
        if (after.placement, after.leader_pin) != (before.placement, before.leader_pin):
            check_brokers(self._state, after)

    def prepare_repartition(self, name: str, partitions: int, *, voters: int = 1) -> Steps[pb.Command]:
        """Returns the command that begins a repartition to so many partitions. `voters`: as for `create_stream`.

        Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST, BAD_CONFIG, LIMIT_REACHED;
        BAD_REPLICATION_FACTOR and NOT_ENOUGH_BROKERS where brokers for new partitions are missing.
        """
        stream = self._changeable(name)
        wrong = why_not_repartition(stream, partitions)
        if wrong is not None:
            raise TidelogError(*wrong)
        missing = missing_partitions(stream, partitions)
        live: list[BrokerId] = []
        assignments: list[pb.Assignment] = []
        if missing:
            self._check_limits(len(missing), streams=0)
            live, assignments = yield from self._assignments(
                missing, stream.replication_factor, stream.settings, voters, beside=[*stream.partitions.values()]
            )
        version = stream.partitioning_version
        return self._command(
            "prepare_repartition",
            stream,
            expected_version=version,
            partitions=partitions,
            brokers=live,
            assignments=assignments,
        )

    def cancel_repartition(self, name: str) -> pb.Command:
        """Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        stream = self._changeable(name)
        wrong = why_not_cancelled(stream)
        if wrong is not None or stream.repartition is None:
            raise TidelogError(Code.BAD_REQUEST, wrong or "")
        return self._command("cancel_repartition", stream, version=stream.repartition.version)

    def set_readonly(self, name: str, readonly: bool, partitions: Sequence[int]) -> pb.Command:
        """No partitions: all of them. Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        return self._of_partitions("set_readonly", name, partitions, readonly=readonly)

    def set_paused(self, name: str, paused: bool, partitions: Sequence[int], *, resume_all: bool = False) -> pb.Command:
        """No partitions: all of them. Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        return self._of_partitions("set_paused", name, partitions, paused=paused, resume_all=resume_all)

    def _of_partitions(self, kind: str, name: str, partitions: Sequence[int], **fields: bool) -> pb.Command:
        stream = self._changeable(name)
        for number in partitions:
            self._find(name, number)
        return self._command(kind, stream, partitions=sorted({*partitions}), **fields)

    def _command(self, kind: str, stream: Stream, **fields: object) -> pb.Command:
        """Returns the command of that kind: its message names the controller epoch, the stream and its incarnation."""
        of = {"controller_epoch": self._epoch(), "name": stream.name, "incarnation": stream.incarnation}
        body: Any = {kind: {**of, **fields}}
        return pb.Command(**body)

    def delete_records(
        self, name: str, before: Mapping[int, int], committed: Mapping[int, tuple[LeaderEpoch, int]]
    ) -> Steps[pb.Command]:
        """`before`: by partition, its new first offset; LATEST: the end of its committed log. `committed`: the
        LeaderEpoch of the leader that reported that end, and the end. All partitions are changed, or none.

        Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST, OFFSET_AHEAD; UNAVAILABLE where a leader has
        not reported its end."""
        stream = self._changeable(name)
        if not before:
            raise TidelogError(Code.BAD_REQUEST, f"no records of stream {name} are to be deleted; name a partition")
        items = []
        for number, asked in sorted(before.items()):
            yield 3
            key, _ = self._find(name, number)
            if asked < LATEST:
                raise TidelogError(
                    Code.BAD_REQUEST, f"partition {key} has no offset {asked}; give one from 0 up, or {LATEST} for all"
                )
            if number not in committed:
                raise TidelogError(
                    Code.UNAVAILABLE,
                    f"the leader of {key} does not tell now what is committed; nothing was deleted, try again",
                )
            leader_epoch, end = committed[number]
            if asked > end:
                raise TidelogError(
                    Code.OFFSET_AHEAD,
                    f"{key} is committed up to offset {end}, or has a transaction open there, and only that can be"
                    f" deleted, not up to {asked}; nothing was deleted",
                    [END.of(end)],
                )
            items.append(
                pb.PurgePoint(partition=number, end=end if asked == LATEST else asked, leader_epoch=leader_epoch)
            )
        return self._command("delete_records", stream, items=items)

    def alter_cluster(self, changes: Mapping[str, str], unset: Sequence[str]) -> pb.Command:
        """Other settings of the cluster, and defaults for new streams. Raises TidelogError: NOT_CONTROLLER,
        BAD_REQUEST, BAD_CONFIG."""
        self.require_controller()
        if not changes and not unset:
            raise TidelogError(Code.BAD_REQUEST, "nothing is to be changed of the cluster's defaults; name a setting")
        wanted = plain(changes)
        stream_settings.altered_defaults(self._state.cluster_config, changes=wanted, unset=unset)
        return pb.Command(alter_cluster=pb.AlterCluster(controller_epoch=self._epoch(), set=wanted, unset=unset))

    def remove_broker(self, broker: BrokerId, voters: Collection[str]) -> Steps[pb.Command]:
        """Returns the command that takes a dead broker out of the cluster. `voters`: Raft addresses of the other voters
        of the metadata group. Raises TidelogError: NOT_CONTROLLER, BAD_REQUEST."""
        self.require_controller()
        wrong = yield from why_not_removed(self._state, broker)
        self.require_controller()
        known = self._state.brokers.get(broker)
        if known is not None and self.votes(broker, voters):
            # This comes before all that can be mended, for a voter is never removed.
            address = f" ({known.raft_address})" if known.raft_address else ""
            wrong = (
                f"broker {broker} votes in the metadata group{address}, which would go on to count it, and is not"
                " removed, alive or dead: start it again under its id when it is dead, with an empty data folder and"
                " --replace where its own is lost"
            )
        if wrong is not None or known is None:
            raise TidelogError(Code.BAD_REQUEST, wrong or f"broker {broker} is not registered any more")
        life = pb.BrokerLife(broker=broker, incarnation=known.incarnation)
        return pb.Command(remove_broker=pb.RemoveBroker(controller_epoch=self._epoch(), broker=life))

    def votes(self, broker: BrokerId, voters: Collection[str]) -> bool:
        """Returns whether it is a voter of the metadata group, as the controller always is. `voters`: Raft addresses of
        the others."""
        known = self._state.brokers.get(broker)
        return self._state.controller == broker or (known is not None and known.raft_address in voters)

    def set_draining(self, broker: BrokerId, draining: bool) -> pb.Command:
        """Raises TidelogError(NOT_CONTROLLER)."""
        self.require_controller()
        mark = pb.SetDraining(controller_epoch=self._epoch(), broker=broker, draining=draining)
        return pb.Command(set_draining=mark)

    def give_back(self, keys: Iterable[PartitionKey]) -> pb.Command:
        """Returns the command that cancels the reassignments of these partitions. Raises
        TidelogError(NOT_CONTROLLER)."""
        self.require_controller()
        items = [
            pb.ReassignmentStep(partition=ref_of(key), expected_epoch=known.epoch)
            for key in keys
            if (known := self._state.partition(key)) is not None
            and known.reassignment is not None
            and not known.reassignment.is_cancelled
        ]
        return pb.Command(cancel_reassignments=pb.CancelReassignments(controller_epoch=self._epoch(), items=items))

    def plan_move(self, name: str, partition: int, target: BrokerId) -> LeaderMove:
        """Returns the move to ask of the leader, so that `target` can lead in its place.

        Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST.
        """
        key, known = self._find(name, partition)
        if target not in known.replicas:
            wrong = f"{target} holds no replica of {key}; its replicas are {', '.join(known.replicas)}"
        elif known.leader is None:
            wrong = f"nobody leads {key}: start a broker of its ISR, {', '.join(known.isr)}"
        elif known.leader == target:
            wrong = f"{target} leads {key} already"
        elif target not in self._live_brokers():
            wrong = f"{target} is not alive; start it, and let it catch up"
        elif target not in known.isr:
            wrong = f"{target} is not in the ISR of {key}, {', '.join(known.isr)}; wait until it has caught up"
        elif known.is_withdrawn(target):
            wrong = f"the replica of {key} on {target} is unsound; repair its disk and restart it"
        else:
            return LeaderMove(key=key, leader=known.leader, leader_epoch=known.leader_epoch, target=target)
        raise TidelogError(Code.BAD_REQUEST, wrong)

    def reassign(self, name: str, targets: Mapping[int, Sequence[BrokerId]]) -> pb.Command:
        """Returns the command that gives partitions other replicas; without those that have them, or are to get them,
        already. All of them are possible, or none is begun.

        Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST.
        """
        if not 1 <= len(targets) <= MAX_REASSIGNED:
            raise TidelogError(
                Code.BAD_REQUEST, f"{len(targets)} partitions are named; name 1 to {MAX_REASSIGNED} of them at once"
            )
        brokers = sorted({broker for target in targets.values() for broker in target})
        index = {broker: number for number, broker in enumerate(brokers)}
        items = []
        for number, target in sorted(targets.items()):
            key, known = self._find(name, number)
            wrong = why_not_target(self._state, known, target, self._state.streams[key.stream].replication_factor)
            if wrong is not None:
                raise TidelogError(Code.BAD_REQUEST, f"partition {key} cannot get other replicas: {wrong}")
            if tuple(target) != wanted_replicas(known):
                items.append(
                    pb.ReassignmentTarget(
                        partition=ref_of(key),
                        expected_epoch=known.epoch,
                        replicas=[index[broker] for broker in target],
                    )
                )
        begin = pb.BeginReassignments(controller_epoch=self._epoch(), brokers=brokers, items=items)
        return pb.Command(begin_reassignments=begin)

    def begin_changes(self, changes: Sequence[Change]) -> tuple[pb.Command, list[Change]]:
        """Returns the command that carries out a part of a plan, and the changes that it makes: without those whose
        partitions are not as they were when it was made, or whose new brokers have died. Raises
        TidelogError(NOT_CONTROLLER)."""
        self.require_controller()
        brokers = sorted({broker for change in changes for broker in change.target})
        index = {broker: number for number, broker in enumerate(brokers)}
        items, made = [], []
        for change in changes:
            known, stream = self._state.partition(change.key), self._state.streams.get(change.key.stream)
            if known is None or stream is None or wanted_replicas(known) != change.before:
                continue
            if why_not_target(self._state, known, change.target, stream.replication_factor) is not None:
                continue
            made.append(change)
            items.append(
                pb.ReassignmentTarget(
                    partition=ref_of(change.key),
                    expected_epoch=known.epoch,
                    replicas=[index[broker] for broker in change.target],
                )
            )
        begin = pb.BeginReassignments(controller_epoch=self._epoch(), brokers=brokers, items=items)
        return pb.Command(begin_reassignments=begin), made

    def check_factor(self, name: str, factor: int, voters: int) -> Stream:
        """Returns the stream, which may have so many replicas, one of Tidelog's own, too. `voters`: as for
        `create_stream`.

        Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_CONFIG, BAD_REPLICATION_FACTOR, NOT_ENOUGH_BROKERS.
        """
        self.require_controller()
        stream = self._state.streams.get(StreamName(name))
        if stream is None:
            raise unknown_stream(name)
        self._check_bounds(factor)
        check_factor(stream, factor)
        beside = sorted(
            other.name for other in self._state.streams.values() if other.settings.placement.stream == stream.name
        )
        if beside and factor < stream.replication_factor:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"stream {beside[0]} has placement=colocation_strict:{name}, and would lose brokers that it needs; let"
                f" it be beside {name} less strictly first (`tidelog stream alter {beside[0]} --config"
                f" placement=standard --config colocate_with={name}`)",
            )
        if factor > stream.replication_factor:
            live = self._takers()
            self._check_enough(factor, live, voters)
            candidates(self._state, live, stream.settings, factor)
        return stream

    def alter_factor(self, stream: Stream, factor: int, changes: Sequence[Change]) -> pb.Command:
        """Returns the command that gives a stream so many replicas. Raises TidelogError(NOT_CONTROLLER)."""
        self.require_controller()
        brokers = sorted({broker for change in changes for broker in change.target})
        index = {broker: number for number, broker in enumerate(brokers)}
        items = [
            pb.FactorTarget(partition=change.key.partition, replicas=[index[broker] for broker in change.target])
            for change in changes
        ]
        return self._command(
            "alter_replication_factor", stream, replication_factor=factor, brokers=brokers, items=items
        )

    def without_room(self) -> list[BrokerId]:
        """Returns the brokers that lack room, are stopping, or whose disks hang: they get no replica while another one
        can."""
        known = sorted(self._state.brokers)
        return sorted({*known}.difference(self._rebalancing.with_room(known, 0)))

    def cancel_reassignments(self, name: str, partitions: Sequence[int]) -> Steps[list[pb.Command]]:
        """Returns commands for MAX_REASSIGNED partitions each. No partitions: all of the stream that get other
        replicas; of named ones those that do. Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        self.require_controller()
        stream = self._state.streams.get(StreamName(name))
        if stream is None:
            raise unknown_stream(name)
        items: list[pb.ReassignmentStep] = []
        for piece in pieces(sorted({*partitions} or stream.partitions), _PIECE):
            yield 4 * len(piece)
            items += [
                pb.ReassignmentStep(partition=ref_of(key), expected_epoch=known.epoch)
                for key, known in (self._find(name, number) for number in piece)
                if known.reassignment is not None and not known.reassignment.is_cancelled
            ]
        epoch = self._epoch()
        return [
            pb.Command(cancel_reassignments=pb.CancelReassignments(controller_epoch=epoch, items=some))
            for some in pieces(items, MAX_REASSIGNED)
        ]

    def why_no_new_leader(self, key: PartitionKey, partition: Partition) -> str:
        """Returns why no replica of the target may take the leadership that a reassignment waits for; empty: one may,
        or it waits for something else."""
        stream = self._state.streams.get(key.stream)
        if stream is None or not needs_move(partition, stream.min_isr):
            return ""
        reasons = []
        for broker in in_sync(partition):
            if not self._state.is_alive(broker):
                reasons.append(f"{broker} is dead")
            elif self._rebalancing.may_lead(broker, key):
                return ""
            else:
                reasons.append(self._rebalancing.why_not(broker, stream.settings))
        return "; ".join(reasons)

    def carry_out(self, move: LeaderMove) -> pb.Command:
        """Returns the election that makes the target of a move the leader. Whether the ISR can do without the old
        leader is judged now: members may have left it since the move began. Raises TidelogError: NOT_CONTROLLER."""
        self.require_controller()
        item = pb.Election(partition=ref_of(move.key), leader_epoch=move.leader_epoch, target=move.target)
        item.planned = not (move.disk_hangs and self._can_do_without_leader(move))
        return pb.Command(elect_leaders=pb.ElectLeaders(controller_epoch=self._epoch(), items=[item]))

    def elect_unclean(self, name: str, partition: int, broker: BrokerId) -> pb.Command:
        """Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        key, known = self._find(name, partition)
        wrong = why_not_unclean(self._state, key, known, broker)
        if wrong is not None:
            raise TidelogError(Code.BAD_REQUEST, wrong)
        return pb.Command(
            unclean_elect=pb.UncleanElect(
                controller_epoch=self._epoch(), partition=ref_of(key), leader_epoch=known.leader_epoch, broker=broker
            )
        )

    def _can_do_without_leader(self, move: LeaderMove) -> bool:
        partition = self._state.partition(move.key)
        if partition is None:
            return False
        others = sum(self._state.is_alive(broker) for broker in partition.isr if broker != move.leader)
        return others >= self._state.streams[move.key.stream].min_isr

    def _find(self, name: str, number: int) -> tuple[PartitionKey, Partition]:
        """Returns the partition of a request. Raises TidelogError: NOT_CONTROLLER, UNKNOWN_STREAM, BAD_REQUEST."""
        self.require_controller()
        stream = self._state.streams.get(StreamName(name))
        if stream is None:
            raise unknown_stream(name)
        partition = stream.partitions.get(number)
        if partition is None:
            raise TidelogError(
                Code.BAD_REQUEST, f"stream {name} has partitions {stream.partitions_in_words}, not {number}"
            )
        return stream.key(number), partition

    def _changeable(self, name: str) -> Stream:
        """Returns a stream that operators may alter and delete. Raises TidelogError: NOT_CONTROLLER, BAD_REQUEST,
        UNKNOWN_STREAM."""
        self.require_controller()
        stream = self._state.streams.get(StreamName(name))
        if stream is None:
            raise unknown_stream(name)
        if is_internal(stream.name, stream.subject, self._subjects):
            raise TidelogError(
                Code.BAD_REQUEST, f"stream {name} is Tidelog's own, and is neither altered nor deleted by hand"
            )
        return stream

    def require_controller(self) -> None:
        """Raises TidelogError(NOT_CONTROLLER)."""
        if not self._epoch():
            raise TidelogError(Code.NOT_CONTROLLER, f"broker {self._id} is not the controller now; ask again")


def unknown_stream(name: str) -> TidelogError:
    return TidelogError(
        Code.UNKNOWN_STREAM, f"stream {echo(name)} does not exist; `tidelog stream list` shows those that do"
    )


def partition_targets(asked: Mapping[str, Sequence[str]]) -> dict[int, list[BrokerId]]:
    """Returns a request's brokers by partition. Raises TidelogError(BAD_REQUEST)."""
    found: dict[int, list[BrokerId]] = {}
    for text, brokers in asked.items():
        (number,) = partition_numbers({text: 0})
        found[number] = [*map(BrokerId, brokers)]
    return found


def partition_numbers(before: Mapping[str, int]) -> dict[int, int]:
    """Returns a request's offsets by partition. Raises TidelogError(BAD_REQUEST)."""
    found: dict[int, int] = {}
    for text, offset in before.items():
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            raise TidelogError(Code.BAD_REQUEST, f"{echo(text)} is no partition; give its number, such as '0'")
        found[int(text)] = offset
    return found
