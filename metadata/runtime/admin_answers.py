"""The controller's answers to clients and operators: handlers of the operations in `wire.operations.api_operations`.

Decisions are the core's and the state's; here they are committed, waited for and described. Each handler takes an
operation's request, gives its answer, and raises TidelogError where it refuses. To add an operation: a method here,
marked with `@handles`.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from random import random
from types import MappingProxyType
from typing import Any, Final, TypeVar

from metadata.cluster.model import Outcome, Stream
from metadata.cluster.stream_settings import with_defaults
from metadata.controller.admin_requests import partition_numbers, unknown_stream
from metadata.controller.descriptions import (
    MAX_NAMED,
    away_form,
    broker_description,
    by_partition,
    changed_form,
    cluster_form,
    committed_ends,
    defaults_form,
    describe_form,
    find_partition,
    find_stream,
    list_form,
    listed_names,
    loss_form,
    metadata_form,
    partition_form,
    plan_form,
    replica_state,
    report_of_leader,
    status_form,
)
from metadata.controller.master_key_reports import check_encryption
from metadata.controller.replica_forms import asked_partitions, replica_forms
from metadata.controller.restart_order import restart_order
from metadata.runtime.drains import Drains
from metadata.runtime.driver_context import MetadataContext
from metadata.runtime.foreign_subjects import check_subject_uncaptured, check_subject_unserved
from metadata.runtime.membership_answers import MembershipAdmin
from metadata.runtime.moves import LeaderMoves
from metadata.runtime.reassignment_answers import ReassignmentAdmin
from metadata.runtime.replica_plans import ReplicaPlans
from metadata.runtime.rounds import Rounds
from wire.errors import Code, TidelogError
from wire.internal_streams import InternalStream
from wire.operations import api_operations as op
from wire.operations.json_codec import decoding
from wire.operations.operation import handles
from wire.operations.partition_operations import (
    STREAM_DELETE_RECORDS,
    STREAM_PAUSE,
    STREAM_REPARTITION,
    STREAM_REPARTITION_CANCEL,
    STREAM_REPARTITION_STATUS,
    STREAM_RESUME,
    STREAM_SET_READONLY,
    ChangedPartitions,
    DeleteRecordsRequest,
    PauseRequest,
    Repartitioned,
    RepartitionRef,
    RepartitionRequest,
    RepartitionStatus,
    ResumeRequest,
    SetReadonlyRequest,
)
from wire.operations.replica_operations import (
    CLUSTER_RESTART_ORDER,
    PARTITIONS_OF_PAGE,
    REPLICA_LIST,
    ListReplicasRequest,
    ReplicaForm,
    ReplicaList,
    RestartOrder,
    RestartOrderRequest,
)
from wire.operations.reports import BrokerReport, ReplicaReport, StreamReport, UsageReport
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry
from wire.stream_config import StreamConfig
from wire.subjects import ingest_subject
from wire.turns import in_turns, pieces
from wire.types import BrokerId, LeaderEpoch, StreamName

CUTOVER_WAIT_S = 3.0
"""The answer waits for the cutover so long; the cutover comes either way."""


class RepartitionAdmin:
    """Handlers of repartitions. `commit` raises TidelogError when a command's outcome cannot be had; `voters`: of the
    metadata group; `check_new_partitions(stream, partitions)` raises TidelogError if a stream cannot have so many."""

    def __init__(
        self,
        context: MetadataContext,
        *,
        commit: Callable[[pb.Command], Awaitable[Outcome]],
        voters: Callable[[], int],
        check_new_partitions: Callable[[Stream, int], Awaitable[None]],
    ) -> None:
        self._context = context
        self._commit = commit
        self._voters = voters
        self._check_new_partitions = check_new_partitions

    @handles(STREAM_REPARTITION)
    async def repartition(self, request: RepartitionRequest) -> Repartitioned:
        """Answers when new records go to the new layout, or after CUTOVER_WAIT_S."""
        requests, voters = self._context.core.requests, self._voters()
        command = await in_turns(requests.prepare_repartition(request.name, request.partitions, voters=voters))
        stream = find_stream(self._context.state, request.name)
        plan = plan_form(stream, request.partitions)
        if request.partitions > stream.partition_count:
            await self._check_new_partitions(stream, request.partitions)
        if not request.dry_run:
            outcome = await self._commit(command)
            outcome.raise_for_refusal()
            await self._until_cut_over(request.name, outcome.value)
        return {"plan": plan, "status": self.status(request.name)}

    async def _until_cut_over(self, name: str, version: int) -> None:
        """The controller proposes the cutover: see `metadata.controller.repartitions`."""

        def is_over() -> bool:
            stream = find_stream(self._context.state, name)
            return stream.partitioning_version >= version or stream.repartition is None

        await self._context.applied.until(is_over, CUTOVER_WAIT_S)

    @handles(STREAM_REPARTITION_STATUS)
    async def repartition_status(self, request: RepartitionRef) -> RepartitionStatus:
        return self.status(request.name)

    @handles(STREAM_REPARTITION_CANCEL)
    async def cancel_repartition(self, request: RepartitionRef) -> RepartitionStatus:
        (await self._commit(self._context.core.requests.cancel_repartition(request.name))).raise_for_refusal()
        return self.status(request.name)

    def status(self, name: str) -> RepartitionStatus:
        """Raises TidelogError(UNKNOWN_STREAM)."""
        stream = find_stream(self._context.state, name)
        return status_form(stream, self._context.core.repartitioning, self._context.monotonic())


_Report = TypeVar("_Report", StreamReport, BrokerReport, UsageReport)

_Form = TypeVar("_Form")

_log = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = 1000
"""Producer ids taken from the group at once; the rest of a block is lost with the controller epoch."""
STATUS_TIMEOUT_S = 0.5
"""A broker that has not reported the progress of its partitions by then is left out of a description."""
MAX_ASKED = 250
"""Partitions of a stream that one request to a broker names: the answer fits into a message, and is read at once."""
ALL_STREAMS: Final[Mapping[str, str]] = MappingProxyType({})
READY_TIMEOUT_S = 3.0
FIRST_LOOK_S = 0.01
LONGEST_LOOK_S = 0.2
"""Looks at the replicas are that far apart in the end: each asks all of them."""
"""The answer waits for a new stream's leaders so long; the stream exists either way."""


class Admin:
    """Handlers of all other operations. `commit` raises TidelogError when a command's outcome cannot be had; `labels`:
    of all brokers that have answered a probe, and of this one; `voters`: of the metadata group; `raft_peers`: the
    addresses of the other ones; `other_clusters`: seen in the namespace."""

    def __init__(
        self,
        context: MetadataContext,
        *,
        moves: LeaderMoves,
        commit: Callable[[pb.Command], Awaitable[Outcome]],
        labels: Callable[[], Mapping[BrokerId, Mapping[str, str]]],
        voters: Callable[[], int],
        raft_peers: Callable[[], Collection[str]],
        other_clusters: Callable[[], Sequence[op.OtherCluster]],
    ) -> None:
        self._context = context
        self._moves = moves
        self._commit = commit
        self._labels = labels
        self._voters = voters
        self._other_clusters = other_clusters
        self._rounds = Rounds()
        """Shared requests to brokers and services."""
        self._producer_ids: list[int] = []
        """The rest of the newest block of ids, the next one at the end."""
        self._producer_ids_epoch = 0
        """The controller epoch in which that block was requested."""
        self._producer_lock = asyncio.Lock()
        self.repartitions = RepartitionAdmin(
            context, commit=commit, voters=voters, check_new_partitions=self._check_new_partitions
        )
        self.reassignments = ReassignmentAdmin(context, commit=commit, ask=self._ask_replicas, voters=voters)
        plans = ReplicaPlans(context, commit=commit, ask=self._ask_replicas)
        self.drains = Drains(context, plans, commit)
        self.membership = MembershipAdmin(
            context, self.drains, plans, commit=commit, ask=self._ask_broker, raft_peers=raft_peers
        )
        """All three hold further handlers."""

    # ---- streams ---------------------------------------------------------------------------------------------------

    @handles(op.STREAM_CREATE)
    async def create_stream(self, request: op.CreateStreamRequest) -> op.StreamDescription:
        """Answers after the leaders serve, or READY_TIMEOUT_S."""
        deciding = self._context.core.requests.create_stream(
            request.name,
            request.name if request.subject is None else request.subject,
            request.partitions,
            request.replication_factor,
            request.config,
            partitioner=request.partitioner,
            voters=self._voters(),
        )
        command = await in_turns(deciding)
        settings = with_defaults(request.config, self._context.state.defaults)
        self._check_encryption(settings)
        await self._check_heard(command.create_stream.subject, request.partitions)
        if StreamConfig.from_strings(settings).reply_acks:
            transport, subject = self._context.transport, command.create_stream.subject
            await check_subject_unserved(self._rounds, transport, subject)
            await check_subject_uncaptured(self._rounds, transport, subject, request.partitions)
        notes = self._context.core.requests.notes(request.replication_factor, command.create_stream)
        (await self._commit(command)).raise_for_refusal()
        retry = self._readiness()
        made = await self._until(
            lambda: self._describe(request.name, limit=op.PAGE),
            lambda form: all(partition["log_end_offset"] is not None for partition in form["partitions"]),
            retry,
        )
        # Leaders begin in the order of the partitions, so each look finds most of those that it asks about.
        others = [] if "next" not in made else sorted(find_stream(self._context.state, request.name).partitions)
        for numbers in pieces(others[op.PAGE :], MAX_ASKED):
            await self._until(partial(self._not_served, request.name, numbers), lambda waiting: not waiting, retry)
        if notes:
            made["notes"] = notes
        return made

    async def _not_served(self, name: str, numbers: Sequence[int]) -> list[int]:
        """Returns those of these partitions whose leaders do not serve yet."""
        stream = find_stream(self._context.state, name)
        there = {number: stream.partitions[number] for number in numbers if number in stream.partitions}
        leaders = sorted({known.leader for known in there.values() if known.leader is not None})
        said = await self._ask_replicas(stream, leaders, partitions=numbers)
        return [number for number, known in there.items() if not report_of_leader(known, said.get(number, {}))]

    def _readiness(self) -> Retry:
        """Paces looks at replicas, until READY_TIMEOUT_S."""
        deadline = self._context.monotonic() + READY_TIMEOUT_S
        return Retry(FIRST_LOOK_S, LONGEST_LOOK_S, chance=random, deadline=deadline)

    async def _check_heard(self, subject: str, partitions: int) -> None:
        """Raises TidelogError when NATS does not let this broker subscribe to the subjects of the first or the last
        partition: publishes to the stream would arrive nowhere. Other brokers' logins are taken to be like its own."""
        for partition in sorted({0, partitions - 1}):
            asked = ingest_subject(subject, partition)
            if not await self._context.transport.may_subscribe(asked):
                broker = self._context.broker_id
                raise TidelogError(
                    Code.BAD_SUBJECT,
                    f"NATS does not let broker {broker} subscribe to {asked!r}, so that nothing published there would"
                    f" arrive: add `--subject {subject}` to the options with which `tidelog security nats-config"
                    f" --role broker` prints the permissions of each broker, or choose another subject",
                )

    async def _check_new_partitions(self, stream: Stream, partitions: int) -> None:
        """Raises TidelogError where an existing stream cannot have so many partitions, as for a new one."""
        self._check_encryption(stream.config)
        await self._check_heard(stream.subject, partitions)
        if stream.settings.reply_acks:
            await check_subject_uncaptured(self._rounds, self._context.transport, stream.subject, partitions)

    async def create_internal(self, stream: InternalStream) -> None:
        """Creates the stream unless it exists. Raises TidelogError."""
        if StreamName(stream.name) not in self._context.state.streams:
            command = await in_turns(self._context.core.requests.create_internal(stream, voters=self._voters()))
            self._check_encryption(with_defaults(stream.config, self._context.state.defaults))
            outcome = await self._commit(command)
            if outcome.code is not Code.STREAM_EXISTS:
                outcome.raise_for_refusal()

    @handles(op.STREAM_ALTER)
    async def alter_stream(self, request: op.AlterStreamRequest) -> op.StreamDescription:
        """All of the changes are made, or none."""
        command = self._context.core.requests.alter_stream(request.name, request.config, request.unset)
        (await self._commit(command)).raise_for_refusal()
        return await self._describe(request.name, limit=op.PAGE)

    @handles(STREAM_SET_READONLY)
    async def set_readonly(self, request: SetReadonlyRequest) -> ChangedPartitions:
        command = self._context.core.requests.set_readonly(request.name, request.readonly, request.partitions)
        (await self._commit(command)).raise_for_refusal()
        return await self._changed_partitions(request.name, request.partitions)

    @handles(STREAM_PAUSE)
    async def pause(self, request: PauseRequest) -> ChangedPartitions:
        command = self._context.core.requests.set_paused(
            request.name, True, request.partitions, resume_all=request.resume_all
        )
        (await self._commit(command)).raise_for_refusal()
        return await self._changed_partitions(request.name, request.partitions)

    @handles(STREAM_RESUME)
    async def resume(self, request: ResumeRequest) -> ChangedPartitions:
        command = self._context.core.requests.set_paused(request.name, False, request.partitions)
        (await self._commit(command)).raise_for_refusal()
        return await self._changed_partitions(request.name, request.partitions)

    @handles(STREAM_DELETE_RECORDS)
    async def delete_records(self, request: DeleteRecordsRequest) -> ChangedPartitions:
        before = partition_numbers(request.before)
        retry = self._readiness()
        while True:
            committed = await self._committed_ends(request.name, before)
            try:
                command = await in_turns(self._context.core.requests.delete_records(request.name, before, committed))
                (await self._commit(command)).raise_for_refusal()
                return await self._changed_partitions(request.name, before)
            except TidelogError as error:  # a change of leader: nothing was deleted
                if error.code not in (Code.UNAVAILABLE, Code.FENCED_LEADER_EPOCH):
                    raise
                if not retry.left_s(self._context.monotonic()):
                    raise
            await asyncio.sleep(retry.failed(self._context.monotonic()))

    async def _committed_ends(self, name: str, numbers: Collection[int]) -> dict[int, tuple[LeaderEpoch, int]]:
        """Returns (LeaderEpoch, end of the committed log) of the partitions whose leaders report it."""
        stream = find_stream(self._context.state, name)
        asked = [stream.partitions[number] for number in numbers if number in stream.partitions]
        leaders = sorted({partition.leader for partition in asked if partition.leader is not None})
        return await in_turns(committed_ends(stream, await self._ask_replicas(stream, leaders, partitions=numbers)))

    async def _changed_partitions(self, name: str, numbers: Collection[int]) -> ChangedPartitions:
        """Returns when all live replicas act by the metadata that is applied here, or after READY_TIMEOUT_S. No
        numbers: all partitions."""

        async def look() -> ChangedPartitions:
            stream = find_stream(self._context.state, name)
            wanted = sorted({*numbers} & stream.partitions.keys() if numbers else stream.partitions)
            brokers = sorted({broker for number in wanted for broker in stream.partitions[number].replicas})
            said = await self._ask_replicas(stream, brokers, partitions=numbers)
            return await in_turns(changed_form(stream, wanted, said, self._context.state.is_alive))

        return await self._until(look, lambda form: not any(changed["not_yet"] for changed in form["partitions"]))

    async def _until(
        self, look: Callable[[], Awaitable[_Form]], is_done: Callable[[_Form], bool], retry: Retry | None = None
    ) -> _Form:
        """Returns the form that is done, or the one after the time of `retry`; None: READY_TIMEOUT_S."""
        retry, monotonic = retry or self._readiness(), self._context.monotonic
        while not is_done(form := await look()) and retry.left_s(monotonic()):  # noqa: ASYNC110 - of other brokers
            await asyncio.sleep(retry.failed(monotonic()))
        return form

    @handles(op.STREAM_DELETE)
    async def delete_stream(self, request: op.StreamRef) -> op.Done:
        (await self._commit(self._context.core.requests.delete_stream(request.name))).raise_for_refusal()
        return {}

    @handles(op.STREAM_LIST)
    async def list_streams(self, request: op.ListStreamsRequest) -> op.StreamList:
        """Lists streams; with `usage` it names brokers that do not answer in STATUS_TIMEOUT_S."""
        state = self._context.state
        names, is_last = listed_names(
            state,
            self._context.subjects,
            internal=request.internal,
            after=request.after,
            limit=request.limit,
        )
        if not request.usage or not names:
            return await in_turns(list_form(state, names, is_last=is_last))
        brokers = sorted(state.brokers)
        of_page = {"after": request.after, "upto": names[-1]} if request.limit > 0 else {}
        answers = await asyncio.gather(*(self._ask_usage(broker, of_page) for broker in brokers))
        usage = {broker: told for broker, told in zip(brokers, answers, strict=True) if told is not None}
        return await in_turns(list_form(state, names, is_last=is_last, usage=usage))

    @handles(op.STREAM_DESCRIBE)
    async def describe_stream(self, request: op.DescribeStreamRequest) -> op.StreamDescription:
        """Leaders that do not answer in STATUS_TIMEOUT_S leave nulls."""
        return await self._describe(request.name, request.first, request.limit)

    @handles(op.METADATA)
    async def stream_metadata(self, request: op.MetadataRequest) -> op.Topology:
        state = self._context.state
        stream = find_stream(state, request.stream)
        return await in_turns(metadata_form(state, self._context.broker_id, stream, self._labels()))

    @handles(op.PRODUCER_INIT)
    async def init_producer(self, _: op.Nothing) -> op.ProducerIdentity:
        """Ids ascend. A block of an earlier controller epoch is not used any more, even if it was committed after that
        epoch: the controllers since then may have handed out higher ids, and leaders that have forgotten those refuse
        all lower ones."""
        async with self._producer_lock:
            epoch = self._context.state.controller_epoch
            if not self._producer_ids or epoch != self._producer_ids_epoch:
                command = pb.Command(allocate_producer_ids=pb.AllocateProducerIds(count=PRODUCER_ID_BLOCK))
                outcome = await self._commit(command)
                outcome.raise_for_refusal()
                if epoch != self._context.state.controller_epoch:
                    raise TidelogError(
                        Code.UNAVAILABLE, "another controller took over while producer ids were taken; ask again"
                    )
                self._producer_ids = [*range(outcome.value + PRODUCER_ID_BLOCK - 1, outcome.value - 1, -1)]
                self._producer_ids_epoch = epoch
            number = self._producer_ids.pop()
            return {
                "producer_id": number,
                "producer_epoch": 0,
                "key": self._context.producer_keys.key_of(number).hex(),
            }

    # ---- partitions ------------------------------------------------------------------------------------------------

    @handles(op.PARTITION_MOVE_LEADER)
    async def move_leader(self, request: op.MoveLeaderRequest) -> op.MovedPartition:
        """The old leader stays in the ISR. Answers after the new one serves, or READY_TIMEOUT_S."""
        await self._moves.move(request.stream, request.partition, BrokerId(request.broker))
        retry = self._readiness()
        number = request.partition
        while True:
            stream = find_stream(self._context.state, request.stream)
            replicas = find_partition(stream, number).replicas
            said = (await self._ask_replicas(stream, replicas, partitions=[number])).get(number, {})
            is_late = not retry.left_s(self._context.monotonic())
            if report_of_leader(find_partition(stream, number), said) or is_late:
                return partition_form(stream, number, said)
            await asyncio.sleep(retry.failed(self._context.monotonic()))

    @handles(op.PARTITION_HISTORY)
    async def partition_history(self, request: op.PartitionRef) -> op.PartitionHistory:
        """The events of the partition's replicas; brokers that do not answer in STATUS_TIMEOUT_S have none in it."""
        number = request.partition
        stream = find_stream(self._context.state, request.stream)
        partition = find_partition(stream, number)
        said = await self._ask_replicas(stream, partition.replicas, partitions=[number], history_of=number)
        told = said.get(number, {})
        replicas: list[op.ReplicaHistory] = [
            {
                "broker": broker,
                "leads": partition.leader == broker,
                "state": replica_state(partition, broker),
                "events": told.get(broker, {}).get("history"),
            }
            for broker in partition.replicas
        ]
        return {"stream": stream.name, "partition": number, "replicas": replicas}

    @handles(op.PARTITION_UNCLEAN_ELECT)
    async def elect_unclean(self, request: op.UncleanElectionRequest) -> op.UncleanElection:
        """Elects only with `accept_loss`; always describes the loss."""
        number, chosen = request.partition, BrokerId(request.broker)
        command = self._context.core.requests.elect_unclean(request.stream, number, chosen)
        stream = find_stream(self._context.state, request.stream)
        key, known = stream.key(number), stream.partitions[number]
        held = (await self._ask_replicas(stream, known.replicas, partitions=[number])).get(number, {})
        form = loss_form(self._context.state, key, known, chosen, held)
        if request.accept_loss:
            _log.warning("an operator lets broker %s lead %s: %s", chosen, key, form["loss"])
            (await self._commit(command)).raise_for_refusal()
        return {**form, "elected": request.accept_loss}

    # ---- the cluster -----------------------------------------------------------------------------------------------

    @handles(op.CLUSTER_ID)
    async def cluster_id(self, _: op.Nothing) -> op.ClusterId:
        return {"cluster_id": self._context.state.cluster_id}

    @handles(op.CLUSTER_STATUS)
    async def cluster_status(self, _: op.Nothing) -> op.ClusterStatus:
        """Brokers that do not answer in STATUS_TIMEOUT_S have no counters in it."""
        alive = [broker.id for _, broker in sorted(self._context.state.brokers.items()) if broker.alive]
        answers = await asyncio.gather(*(self._ask_broker(broker) for broker in alive))
        told = dict(zip(alive, answers, strict=True))
        state = self._context.state
        under_way = [name for name, stream in sorted(state.streams.items()) if stream.repartition is not None]
        repartitions = [self.repartitions.status(name) for name in under_way[:MAX_NAMED]]
        subjects, labels = self._context.subjects, self._labels()
        thrash = self._context.core.preferred.thrash_total
        others = self._other_clusters()
        return await in_turns(cluster_form(state, subjects, labels, told, others, repartitions, leader_thrash=thrash))

    @handles(CLUSTER_RESTART_ORDER)
    async def restart_order(self, request: RestartOrderRequest) -> RestartOrder:
        if request.broker:
            self._check_registered(BrokerId(request.broker))
        core = self._context.core
        wanted = [BrokerId(request.broker)] if request.broker else []
        return await in_turns(restart_order(self._context.state, core.stopping_brokers(), self._voters(), wanted))

    @handles(REPLICA_LIST)
    async def list_replicas(self, request: ListReplicasRequest) -> ReplicaList:
        """Brokers that do not answer in STATUS_TIMEOUT_S leave nulls, and are named."""
        state = self._context.state
        if request.broker:
            self._check_registered(BrokerId(request.broker))
        if request.of_stream:
            stream = state.streams.get(StreamName(request.of_stream))
            if stream is None:
                raise TidelogError(Code.BAD_REQUEST, unknown_stream(request.of_stream).message)
            if request.partition >= 0:
                find_partition(stream, request.partition)
        limit = min(max(1, request.limit), PARTITIONS_OF_PAGE)
        page, has_more = await in_turns(asked_partitions(state, self._context.subjects, request, limit))
        of_streams = await asyncio.gather(*(self._replica_forms(*each, request.broker) for each in page))
        found: ReplicaList = {
            "replicas": [form for forms in of_streams for form in forms],
            "unanswered": sorted(
                {form["broker"] for forms in of_streams for form in forms if form["state"] == "unknown"}
            ),
        }
        if has_more:
            name, numbers = page[-1]
            found["next"] = {"stream": name, "partition": numbers[-1]}
        return found

    async def _replica_forms(self, name: StreamName, numbers: Sequence[int], broker: str) -> list[ReplicaForm]:
        """Empty: the stream was deleted meanwhile."""
        state = self._context.state
        stream = state.streams.get(name)
        if stream is None:
            return []
        there = [stream.partitions[number] for number in numbers if number in stream.partitions]
        asked = {BrokerId(broker)} if broker else {replica for known in there for replica in known.replicas}
        asked.update(known.leader for known in there if known.leader is not None)
        said = await self._ask_replicas(stream, sorted(asked), partitions=numbers)
        return await in_turns(replica_forms(state, stream, numbers, said, broker))

    def _check_registered(self, broker: BrokerId) -> None:
        """Raises TidelogError(BAD_REQUEST)."""
        if broker not in self._context.state.brokers:
            known = ", ".join(sorted(self._context.state.brokers))
            raise TidelogError(Code.BAD_REQUEST, f"broker {broker!r} is not registered; those that are: {known}")

    @handles(op.BROKER_DESCRIBE)
    async def describe_broker(self, request: op.BrokerRef) -> op.BrokerDescription:
        broker = BrokerId(request.broker)
        self._check_registered(broker)
        totals, usage = (
            await asyncio.gather(self._ask_broker(broker), self._ask_usage(broker))
            if self._context.state.is_alive(broker)
            else ({}, None)
        )
        labels = self._labels().get(broker, {})
        described = broker_description(self._context.state, self._context.subjects, broker, labels, totals, usage)
        return await in_turns(described)

    @handles(op.CLUSTER_ALTER)
    async def alter_cluster(self, request: op.AlterClusterRequest) -> op.ClusterDefaults:
        command = self._context.core.requests.alter_cluster(request.config, request.unset)
        self._check_encryption(request.config)
        (await self._commit(command)).raise_for_refusal()
        return defaults_form(self._context.state)

    @handles(op.CLUSTER_REBALANCE_LEADERS)
    async def rebalance_leaders(self, request: op.RebalanceLeadersRequest) -> op.RebalancedLeaders:
        core = self._context.core
        core.requests.require_controller()
        away = await in_turns(core.preferred.away())
        able = [each for each in away if not each.obstacle]
        if not request.dry_run:
            core.requests.require_controller()
            core.preferred.ask([each.key for each in able])
        return away_form(able, [each for each in away if each.obstacle])

    # ---- inside ----------------------------------------------------------------------------------------------------

    def _check_encryption(self, config: Mapping[str, str]) -> None:
        """Raises TidelogError(BAD_CONFIG) if these settings enable encryption and a live broker has no master key."""
        if StreamConfig.from_strings({key: text for key, text in config.items() if key == "encryption"}).encryption:
            own, is_alive = self._context.broker_id, self._context.state.is_alive
            check_encryption({id_: told for id_, told in self._labels().items() if id_ == own or is_alive(id_)})

    async def _describe(self, name: str, first: int = 0, limit: int = 0) -> op.StreamDescription:
        """Describes at most `limit` partitions of the stream, from `first` on; with `limit` 0 all of them."""
        stream = find_stream(self._context.state, name)
        numbers = sorted(number for number in stream.partitions if number >= first)
        size = min(limit, op.PAGE) if limit > 0 else len(numbers)
        following = numbers[size] if size < len(numbers) else None
        numbers = numbers[:size]
        replicas = sorted({replica for number in numbers for replica in stream.partitions[number].replicas})
        refusals: dict[BrokerId, TidelogError] = {}
        said = await self._ask_replicas(stream, replicas, refusals, partitions=numbers) if numbers else {}
        repartition = self.repartitions.status(name)["repartition"]
        form = describe_form(stream, said, refusals, repartition, numbers=numbers, following=following)
        return await in_turns(form)

    async def _ask_replicas(
        self,
        stream: Stream,
        brokers: Sequence[BrokerId],
        refusals: dict[BrokerId, TidelogError] | None = None,
        *,
        partitions: Collection[int] = (),
        history_of: int | None = None,
    ) -> dict[int, dict[BrokerId, ReplicaReport]]:
        """Returns reports of the live brokers that answer, by partition and broker. `refusals` receives the errors of
        brokers that could not answer. `partitions`: only these; empty: all. `history_of`: the partition whose last
        events the reports include."""
        live = [broker for broker in brokers if self._context.state.is_alive(broker)]
        wanted = sorted({*partitions} & stream.partitions.keys() if partitions else stream.partitions)
        answers = await asyncio.gather(*(self._ask_status(broker, stream, wanted, history_of) for broker in live))
        told: dict[BrokerId, Sequence[ReplicaReport]] = {}
        for broker, answer in zip(live, answers, strict=True):
            if not isinstance(answer, TidelogError):
                told[broker] = answer
            elif refusals is not None:
                refusals[broker] = answer
        return await in_turns(by_partition(stream, told))

    async def _ask_status(
        self, broker: BrokerId, stream: Stream, wanted: Sequence[int], history_of: int | None
    ) -> Sequence[ReplicaReport] | TidelogError:
        """`wanted`: partitions, of which the broker is asked about those that it holds, MAX_ASKED at a time. A retired
        partition may have been removed since they were listed."""
        there = [(number, stream.partitions[number]) for number in wanted if number in stream.partitions]
        held = [number for number, partition in there if broker in partition.replicas]
        reports = await asyncio.gather(
            *(self._ask_about(broker, stream.name, numbers, history_of) for numbers in pieces(held, MAX_ASKED))
        )
        found: list[ReplicaReport] = []
        for report in reports:
            if isinstance(report, TidelogError):
                return report
            found += report
        return found

    async def _ask_about(
        self, broker: BrokerId, stream: StreamName, partitions: Sequence[int], history_of: int | None
    ) -> Sequence[ReplicaReport] | TidelogError:
        request: dict[str, Any] = {"stream": stream, "partitions": partitions}
        if history_of is not None:
            request["history_of"] = history_of
        report = await self._ask(broker, request, StreamReport)
        if isinstance(report, TidelogError):
            return report
        return report["partitions"] if report is not None else ()

    async def _ask_broker(self, broker: BrokerId) -> BrokerReport | TidelogError:
        """Returns {} when the broker does not answer."""
        return await self._ask(broker, {}, BrokerReport) or {}

    async def _ask_usage(self, broker: BrokerId, streams: Mapping[str, str] = ALL_STREAMS) -> UsageReport | None:
        """Returns None when the broker is dead, does not answer, or refuses. `streams`: only those after the name
        `after`, up to `upto`; empty: all."""
        if not self._context.state.is_alive(broker):
            return None
        report = await self._ask(broker, {"usage": True, **streams}, UsageReport)
        return None if isinstance(report, TidelogError) else report

    async def _ask(
        self, broker: BrokerId, request: Mapping[str, Any], kind: type[_Report]
    ) -> _Report | TidelogError | None:
        """Returns None without a valid answer of the broker; an error when its answer is one."""
        question = broker, json.dumps(request, sort_keys=True)
        return await self._rounds.join(question, lambda: self._ask_now(broker, request, kind))

    async def _ask_now(
        self, broker: BrokerId, request: Mapping[str, Any], kind: type[_Report]
    ) -> _Report | TidelogError | None:
        subject = self._context.subjects.broker_status(broker)
        payload = json.dumps({**request, "cluster_id": self._context.state.cluster_id}).encode()
        try:
            answer = await self._context.transport.request(subject, payload, timeout=STATUS_TIMEOUT_S)
            refusal = TidelogError.from_headers(answer.headers)
            if refusal is not None:
                _log.warning("broker %s does not tell its status: %s", broker, refusal.message)
                return refusal
            return await in_turns(decoding(kind, answer.data, "the report")) if answer.status is None else None
        except TimeoutError:
            return None
        except ValueError as error:
            _log.warning("dropped a report of broker %s: %s", broker, error)
            return None
