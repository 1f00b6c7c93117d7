"""A cluster state with a method for each event of a test. Every command is checked against the invariants after it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from metadata.cluster.command_rules import RULES
from metadata.cluster.model import Outcome, Partition
from metadata.cluster.references import log_ends_to_pb, logs_to_pb, ref_of
from metadata.commands.cluster_state import ClusterState
from wire.protobuf import metadata_pb2 as pb
from wire.turns import Turns
from wire.types import BrokerId, CutoverReport, LeaderEpoch, LogEnd, Offset, PartitionKey, PauseChange, StreamName

CLUSTER_ID = "c1"


class _Step(TypedDict):
    controller_epoch: int
    name: str
    incarnation: int
    version: int


class Cluster:
    """Brokers register in the order given; the first is the controller, in controller epoch 1."""

    def __init__(self, *brokers: str) -> None:
        self.state = ClusterState()
        self.lives: dict[str, int] = {}
        if brokers:
            self.begin_controller_epoch(brokers[0])
        for broker in brokers:
            self.register(broker)

    def apply(self, command: pb.Command) -> Outcome:
        outcome = self.state.apply(command.SerializeToString(deterministic=True))
        self.state.check()
        return outcome

    def begin_controller_epoch(self, controller: str, expected: int | None = None) -> Outcome:
        return self.apply(
            pb.Command(
                begin_controller_epoch=pb.BeginControllerEpoch(
                    controller=controller,
                    life_id=f"{controller}-life",
                    expected_controller_epoch=self.state.controller_epoch if expected is None else expected,
                    cluster_id=CLUSTER_ID,
                    rules=RULES,
                )
            )
        )

    def incarnation(self, broker: str) -> int:
        return self.state.brokers[BrokerId(broker)].incarnation

    def register(
        self,
        broker: str,
        *,
        folder_same: bool = True,
        page_cache_survived: bool = True,
        unsound: Sequence[PartitionKey] = (),
        last_incarnation: int | None = None,
        earlier_lives: Sequence[str] = (),
        life_id: str = "",
        cluster_id: str = CLUSTER_ID,
        same_life: bool = False,
        replace: bool | None = None,
        silent_life: str = "",
        logs: Mapping[PartitionKey, LogEnd] | None = None,
        missing: Sequence[PartitionKey] = (),
        recovered_at: int | None = None,
        zone: str = "",
        tags: Sequence[str] = (),
    ) -> Outcome:
        """A new life of `broker`, unless `same_life`. The facts of its folder are right unless told otherwise.
        `replace`, `recovered_at`: None: of a version that did not have it."""
        if not same_life:
            self.lives[broker] = self.lives.get(broker, 0) + 1
        known = self.state.brokers.get(BrokerId(broker))
        if last_incarnation is None:
            last_incarnation = known.incarnation if known else 0
        return self.apply(
            pb.Command(
                register_broker=pb.RegisterBroker(
                    broker=broker,
                    life_id=life_id or f"{broker}-{self.lives[broker]}",
                    cluster_id=cluster_id,
                    last_incarnation=last_incarnation,
                    earlier_lives=earlier_lives,
                    folder_same=folder_same,
                    page_cache_survived=page_cache_survived,
                    unsound_logs=Turns(logs_to_pb(unsound)).finish(),
                    logs=Turns(log_ends_to_pb(logs or {})).finish(),
                    missing_logs=Turns(logs_to_pb(missing)).finish(),
                    recovered_at=recovered_at,
                    raft_address=f"{broker}:1",
                    replace=replace,
                    silent_life=silent_life,
                    zone=zone,
                    tags=tags,
                )
            )
        )

    def die(
        self,
        *brokers: str,
        epoch: int | None = None,
        incarnation: int | None = None,
        stopping: Iterable[str] = (),
    ) -> Outcome:
        return self.apply(
            pb.Command(
                brokers_dead=pb.BrokersDead(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    brokers=[
                        pb.BrokerLife(
                            broker=broker, incarnation=self.incarnation(broker) if incarnation is None else incarnation
                        )
                        for broker in brokers
                    ],
                    stopping=stopping,
                )
            )
        )

    def remove(self, broker: str, *, epoch: int | None = None, incarnation: int | None = None) -> Outcome:
        """Takes it out of the cluster."""
        known = self.state.brokers.get(BrokerId(broker))
        life = pb.BrokerLife(
            broker=broker, incarnation=incarnation if incarnation is not None else known.incarnation if known else 0
        )
        controller_epoch = self.state.controller_epoch if epoch is None else epoch
        return self.apply(pb.Command(remove_broker=pb.RemoveBroker(controller_epoch=controller_epoch, broker=life)))

    def drain(self, broker: str, *, draining: bool = True, epoch: int | None = None) -> Outcome:
        controller_epoch = self.state.controller_epoch if epoch is None else epoch
        mark = pb.SetDraining(controller_epoch=controller_epoch, broker=broker, draining=draining)
        return self.apply(pb.Command(set_draining=mark))

    def create(
        self,
        name: str = "s",
        assignments: Sequence[str] = ("a b c",),
        *,
        subject: str | None = None,
        config: Mapping[str, str] | None = None,
        factor: int | None = None,
        epoch: int | None = None,
        client: str = "",
        sequence: int = 0,
    ) -> Outcome:
        """One assignment per partition: replicas with blanks between them, the leader first."""
        brokers = sorted({broker for assignment in assignments for broker in assignment.split()})
        return self.apply(
            pb.Command(
                client=client,
                sequence=sequence,
                create_stream=pb.CreateStream(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    name=name,
                    subject=name if subject is None else subject,
                    config=dict(config or {}),
                    replication_factor=len(assignments[0].split()) if factor is None else factor,
                    brokers=brokers,
                    assignments=[
                        pb.Assignment(
                            replicas=[brokers.index(broker) for broker in assignment.split()],
                            leader=brokers.index(assignment.split()[0]),
                        )
                        for assignment in assignments
                    ],
                ),
            )
        )

    def alter_stream(
        self,
        name: str = "s",
        *,
        config: Mapping[str, str] | None = None,
        unset: Sequence[str] = (),
        incarnation: int | None = None,
        epoch: int | None = None,
    ) -> Outcome:
        stream = self.state.streams.get(StreamName(name))
        return self.apply(
            pb.Command(
                alter_stream=pb.AlterStream(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    name=name,
                    incarnation=incarnation if incarnation is not None else stream.incarnation if stream else 0,
                    set=dict(config or {}),
                    unset=unset,
                )
            )
        )

    def alter_cluster(
        self, *, config: Mapping[str, str] | None = None, unset: Sequence[str] = (), epoch: int | None = None
    ) -> Outcome:
        return self.apply(
            pb.Command(
                alter_cluster=pb.AlterCluster(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    set=dict(config or {}),
                    unset=unset,
                )
            )
        )

    def set_readonly(
        self,
        name: str = "s",
        *partitions: int,
        readonly: bool = True,
        incarnation: int | None = None,
        epoch: int | None = None,
    ) -> Outcome:
        stream = self.state.streams.get(StreamName(name))
        return self.apply(
            pb.Command(
                set_readonly=pb.SetReadonly(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    name=name,
                    incarnation=incarnation if incarnation is not None else stream.incarnation if stream else 0,
                    partitions=partitions,
                    readonly=readonly,
                )
            )
        )

    def set_paused(
        self, name: str = "s", *partitions: int, paused: bool = True, resume_all: bool = False, epoch: int | None = None
    ) -> Outcome:
        stream = self.state.streams.get(StreamName(name))
        return self.apply(
            pb.Command(
                set_paused=pb.SetPaused(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    name=name,
                    incarnation=stream.incarnation if stream else 0,
                    partitions=partitions,
                    paused=paused,
                    resume_all=resume_all,
                )
            )
        )

    def alter_paused(self, *changes: PauseChange) -> Outcome:
        items = [
            pb.PauseAlteration(
                partition=ref_of(change.key),
                leader=change.leader,
                leader_epoch=change.leader_epoch,
                expected_epoch=change.expected_epoch,
                paused=change.paused,
            )
            for change in changes
        ]
        return self.apply(pb.Command(alter_paused=pb.AlterPaused(items=items)))

    def prepare(
        self,
        partitions: int,
        assignments: Sequence[str] = (),
        *,
        name: str = "s",
        version: int | None = None,
        epoch: int | None = None,
    ) -> Outcome:
        """Of a repartition. One assignment per partition that is missing; `version`: the expected one."""
        stream = self.state.streams.get(StreamName(name))
        brokers = sorted({broker for assignment in assignments for broker in assignment.split()})
        return self.apply(
            pb.Command(
                prepare_repartition=pb.PrepareRepartition(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    name=name,
                    incarnation=stream.incarnation if stream else 0,
                    expected_version=version if version is not None else stream.partitioning_version if stream else 0,
                    partitions=partitions,
                    brokers=brokers,
                    assignments=[
                        pb.Assignment(
                            replicas=[brokers.index(broker) for broker in assignment.split()],
                            leader=brokers.index(assignment.split()[0]),
                        )
                        for assignment in assignments
                    ],
                )
            )
        )

    def cancel(self, name: str = "s", *, version: int | None = None, epoch: int | None = None) -> Outcome:
        return self.apply(pb.Command(cancel_repartition=pb.CancelRepartition(**self._step(name, version, epoch))))

    def cut_over(self, name: str = "s", *, version: int | None = None, epoch: int | None = None) -> Outcome:
        return self.apply(pb.Command(cutover=pb.Cutover(**self._step(name, version, epoch))))

    def finish(self, name: str = "s", *, version: int | None = None, epoch: int | None = None) -> Outcome:
        return self.apply(pb.Command(finish_repartition=pb.FinishRepartition(**self._step(name, version, epoch))))

    def _step(self, name: str, version: int | None, epoch: int | None) -> _Step:
        stream = self.state.streams.get(StreamName(name))
        marker = stream.repartition if stream is not None else None
        return {
            "controller_epoch": self.state.controller_epoch if epoch is None else epoch,
            "name": name,
            "incarnation": stream.incarnation if stream is not None else 0,
            "version": version if version is not None else marker.version if marker is not None else 0,
        }

    def report_cutover(self, *reports: CutoverReport) -> Outcome:
        items = [
            pb.CutoverReport(
                partition=ref_of(report.key),
                leader=report.leader,
                leader_epoch=report.leader_epoch,
                version=report.version,
                end_offset=report.end_offset,
            )
            for report in reports
        ]
        return self.apply(pb.Command(report_cutover=pb.ReportCutover(items=items)))

    def remove_retired(
        self, *numbers: int, name: str = "s", leader_epoch: int | None = None, expected_epoch: int | None = None
    ) -> Outcome:
        items = []
        for number in numbers:
            partition = self.partition(number, name)
            items.append(
                pb.RetiredPartition(
                    partition=ref_of(self.key(number, name)),
                    leader=partition.leader or "",
                    leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
                    expected_epoch=partition.epoch if expected_epoch is None else expected_epoch,
                )
            )
        return self.apply(pb.Command(remove_retired=pb.RemoveRetired(items=items)))

    def cutover_at(
        self, number: int, end: int, *, name: str = "s", leader_epoch: int | None = None, version: int | None = None
    ) -> CutoverReport:
        """The report of that partition's leader."""
        partition, stream = self.partition(number, name), self.state.streams[StreamName(name)]
        return CutoverReport(
            key=stream.key(number),
            leader=partition.leader or BrokerId(""),
            leader_epoch=partition.leader_epoch if leader_epoch is None else LeaderEpoch(leader_epoch),
            version=stream.partitioning_version if version is None else version,
            end_offset=Offset(end),
        )

    def delete_records(
        self,
        ends: Mapping[int, int],
        *,
        name: str = "s",
        leader_epoch: int | None = None,
        incarnation: int | None = None,
        epoch: int | None = None,
    ) -> Outcome:
        """`ends`: by partition."""
        stream = self.state.streams.get(StreamName(name))

        def epoch_of(number: int) -> int:
            known = stream.partitions.get(number) if stream is not None else None
            return known.leader_epoch if leader_epoch is None and known is not None else leader_epoch or 0

        return self.apply(
            pb.Command(
                delete_records=pb.DeleteRecords(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    name=name,
                    incarnation=incarnation if incarnation is not None else stream.incarnation if stream else 0,
                    items=[
                        pb.PurgePoint(partition=number, end=end, leader_epoch=epoch_of(number))
                        for number, end in ends.items()
                    ],
                )
            )
        )

    def reassign(
        self,
        targets: Mapping[int, str],
        *,
        name: str = "s",
        expected_epoch: int | None = None,
        epoch: int | None = None,
    ) -> Outcome:
        """`targets`: by partition, the replicas that it is to have, with blanks between them."""
        brokers = sorted({broker for target in targets.values() for broker in target.split()})
        items = [
            pb.ReassignmentTarget(
                partition=ref_of(self.key(number, name)),
                expected_epoch=self.partition(number, name).epoch if expected_epoch is None else expected_epoch,
                replicas=[brokers.index(broker) for broker in target.split()],
            )
            for number, target in targets.items()
        ]
        controller_epoch = self.state.controller_epoch if epoch is None else epoch
        begin = pb.BeginReassignments(controller_epoch=controller_epoch, brokers=brokers, items=items)
        return self.apply(pb.Command(begin_reassignments=begin))

    def alter_factor(
        self, factor: int, targets: Mapping[int, str], *, name: str = "s", epoch: int | None = None
    ) -> Outcome:
        """`targets`: as for `reassign`."""
        brokers = sorted({broker for target in targets.values() for broker in target.split()})
        stream = self.state.streams.get(StreamName(name))
        items = [
            pb.FactorTarget(partition=number, replicas=[brokers.index(broker) for broker in target.split()])
            for number, target in targets.items()
        ]
        altered = pb.AlterReplicationFactor(
            controller_epoch=self.state.controller_epoch if epoch is None else epoch,
            name=name,
            incarnation=stream.incarnation if stream else 0,
            replication_factor=factor,
            brokers=brokers,
            items=items,
        )
        return self.apply(pb.Command(alter_replication_factor=altered))

    def start(self, *numbers: int, **how: Any) -> Outcome:
        """Of reassignments, as `complete` and `cancel_reassignment`."""
        return self.apply(pb.Command(start_reassignments=pb.StartReassignments(**self._steps(*numbers, **how))))

    def complete(self, *numbers: int, **how: Any) -> Outcome:
        return self.apply(pb.Command(complete_reassignments=pb.CompleteReassignments(**self._steps(*numbers, **how))))

    def cancel_reassignment(self, *numbers: int, **how: Any) -> Outcome:
        return self.apply(pb.Command(cancel_reassignments=pb.CancelReassignments(**self._steps(*numbers, **how))))

    def _steps(
        self, *numbers: int, name: str = "s", expected_epoch: int | None = None, epoch: int | None = None
    ) -> dict[str, Any]:
        return {
            "controller_epoch": self.state.controller_epoch if epoch is None else epoch,
            "items": [
                pb.ReassignmentStep(
                    partition=ref_of(self.key(number, name)),
                    expected_epoch=self.partition(number, name).epoch if expected_epoch is None else expected_epoch,
                )
                for number in numbers
            ],
        }

    def delete(self, name: str = "s", incarnation: int | None = None) -> Outcome:
        stream = self.state.streams.get(StreamName(name))
        return self.apply(
            pb.Command(
                delete_stream=pb.DeleteStream(
                    controller_epoch=self.state.controller_epoch,
                    name=name,
                    incarnation=incarnation if incarnation is not None else stream.incarnation if stream else 0,
                )
            )
        )

    def key(self, number: int = 0, name: str = "s") -> PartitionKey:
        return self.state.streams[StreamName(name)].key(number)

    def partition(self, number: int = 0, name: str = "s") -> Partition:
        return self.state.streams[StreamName(name)].partitions[number]

    def alteration(
        self,
        isr: str,
        *,
        number: int = 0,
        leader: str | None = None,
        leader_epoch: int | None = None,
        expected_epoch: int | None = None,
        incarnations: Mapping[str, int] | None = None,
    ) -> pb.IsrAlteration:
        partition = self.partition(number)
        return pb.IsrAlteration(
            partition=ref_of(self.key(number)),
            leader=leader or partition.leader or "",
            leader_epoch=partition.leader_epoch if leader_epoch is None else leader_epoch,
            expected_epoch=partition.epoch if expected_epoch is None else expected_epoch,
            new_isr=[
                pb.BrokerLife(broker=broker, incarnation=(incarnations or {}).get(broker, self.incarnation(broker)))
                for broker in isr.split()
            ],
        )

    def alter(self, *items: pb.IsrAlteration) -> Outcome:
        return self.apply(pb.Command(alter_isr=pb.AlterIsr(items=items)))

    def elect(
        self,
        number: int = 0,
        *,
        target: str = "",
        planned: bool = False,
        leader_epoch: int | None = None,
        epoch: int | None = None,
    ) -> Outcome:
        return self.apply(
            pb.Command(
                elect_leaders=pb.ElectLeaders(
                    controller_epoch=self.state.controller_epoch if epoch is None else epoch,
                    items=[
                        pb.Election(
                            partition=ref_of(self.key(number)),
                            leader_epoch=self.partition(number).leader_epoch if leader_epoch is None else leader_epoch,
                            target=target,
                            planned=planned,
                        )
                    ],
                )
            )
        )

    def withdraw(
        self,
        broker: str,
        *,
        number: int = 0,
        expected_epoch: int | None = None,
        incarnation: int | None = None,
        reported_by: str = "",
    ) -> Outcome:
        return self.apply(
            pb.Command(
                withdraw=pb.Withdraw(
                    items=[
                        pb.WithdrawReplica(
                            partition=ref_of(self.key(number)),
                            broker=broker,
                            incarnation=self.incarnation(broker) if incarnation is None else incarnation,
                            expected_epoch=self.partition(number).epoch if expected_epoch is None else expected_epoch,
                            reason="bad CRC",
                            reported_by=pb.BrokerLife(broker=reported_by, incarnation=self.incarnation(reported_by))
                            if reported_by
                            else None,
                        )
                    ]
                )
            )
        )

    def unclean(self, broker: str, number: int = 0) -> Outcome:
        return self.apply(
            pb.Command(
                unclean_elect=pb.UncleanElect(
                    controller_epoch=self.state.controller_epoch,
                    partition=ref_of(self.key(number)),
                    leader_epoch=self.partition(number).leader_epoch,
                    broker=broker,
                )
            )
        )

    def shown(self, number: int = 0) -> str:
        """leader | ISR | eligible | withdrawn @ LeaderEpoch, in one line: `a | a b | c | @2`."""
        partition = self.partition(number)
        return " | ".join(
            (
                partition.leader or "-",
                " ".join(partition.isr),
                " ".join(partition.eligible),
                f"{' '.join(entry.replica for entry in partition.withdrawn)}@{partition.leader_epoch}",
            )
        )
