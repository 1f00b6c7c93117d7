"""`connect` finds the servers and the login, connects to NATS, and makes the client: one NATS connection, and all
requests over it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import count
from pathlib import Path
from random import random
from ssl import SSLContext
from types import NoneType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar, Unpack, cast, overload, runtime_checkable

from tidelog.client.admin.copied_stream import CopiedStream, CopyRequest, copy_stream
from tidelog.client.admin.stream_admin import Admin, EnsuredStream, check_offsets, partition_numbers, replica_targets
from tidelog.client.base.arguments import (
    bad,
    check_flag,
    check_number,
    check_optional_paths,
    check_optional_texts,
    check_text,
    check_whole,
    partition_count,
    shown,
)
from tidelog.client.base.exceptions import Closed, NoServer, UnknownStream, WrongIncarnation, typed
from tidelog.client.base.options import takes
from tidelog.client.base.read_positions import Anchor, AtOffset, AtTime, Moment, Start, Stop, timestamp_ns
from tidelog.client.base.records import K, V
from tidelog.client.cluster.controller_api import Api
from tidelog.client.cluster.coordinator_link import OF_TRANSACTIONS, CoordinatorLink
from tidelog.client.cluster.lifetime import Closing, HomeLoop, Started, close_all
from tidelog.client.cluster.metadata_cache import MetadataCache, StreamMetadata, stream_name
from tidelog.client.consumer.consumer import Consumer
from tidelog.client.consumer.consumer_config import ConsumerConfig, ConsumerOptions
from tidelog.client.consumer.follower_sources import FollowerSources
from tidelog.client.consumer.offset_lookup import OffsetLookup, Span, StreamExtents
from tidelog.client.consumer.stream_reading import ANSWER_OVERHEAD, set_sources
from tidelog.client.group.group_admin import DescribedGroup, GroupAdmin, OffsetChange
from tidelog.client.group.group_consumer import GroupConsumer
from tidelog.client.group.named_cursor import Cursor
from tidelog.client.group.subscription import GroupConfig, GroupOptions, Name, member_settings
from tidelog.client.producer.producer import Producer
from tidelog.client.producer.producer_config import (
    DEFAULT_TIMEOUT_S,
    ProducerConfig,
    ProducerOptions,
    TransactionConfig,
    TransactionOptions,
)
from tidelog.client.producer.send_buffer import SendBuffer
from tidelog.client.producer.upkeep import TransactionPolicy
from tidelog.client.transaction.prepared_transactions import FamilyCommit, PreparedTransaction, end_family, last_commit
from tidelog.client.transaction.transaction_work import TransactionWriter
from tidelog.client.transaction.transactional_producer import TransactionalProducer
from wire.batch import RecordBatch
from wire.error_details import REPEATED
from wire.errors import Code, TidelogError
from wire.internal_records.activity_events import ActivityEvent, EventFilter
from wire.internal_records.transaction_records import MAX_METADATA, MAX_SEQUENCE, check_family, check_transactional_id
from wire.internal_streams import ACTIVITY, is_internal
from wire.messaging.transport import Transport
from wire.operations import api_operations as op
from wire.operations.broker_operations import (
    BROKER_DRAIN,
    BROKER_LIST,
    BROKER_REMOVE,
    BrokerDrain,
    BrokerRemoval,
    ListedBroker,
)
from wire.operations.partition_operations import (
    LATEST,
    STREAM_DELETE_RECORDS,
    STREAM_PAUSE,
    STREAM_REPARTITION,
    STREAM_REPARTITION_CANCEL,
    STREAM_REPARTITION_STATUS,
    STREAM_RESUME,
    STREAM_SET_READONLY,
    ChangedPartition,
    Repartitioned,
    RepartitionStatus,
)
from wire.operations.reassignment_operations import (
    CLUSTER_MOVES,
    CLUSTER_REBALANCE,
    STREAM_ALTER_FACTOR,
    STREAM_REASSIGN,
    STREAM_REASSIGN_CANCEL,
    AlteredFactor,
    Moves,
    Reassigned,
    ReplicaPlan,
)
from wire.operations.replica_operations import CLUSTER_RESTART_ORDER, ReplicaList, RestartVerdict
from wire.operations.transaction_operations import (
    TRANSACTION_ABORT,
    TRANSACTION_DESCRIBE,
    TRANSACTION_LIST,
    TransactionDescription,
    TransactionList,
)
from wire.retry import Retry
from wire.subjects import DEFAULT_INBOX_PREFIX, DEFAULT_NAMESPACE, Subjects, check_inbox_prefix
from wire.types import StreamName

if TYPE_CHECKING:
    from tidelog.client.base.read_positions import Start

NOT_RECORDED = (
    "no event of this cluster is recorded: `activity_stream = true` below [metadata] in the configurations of all"
    " brokers has them recorded from then on"
)


async def read_activity(client: Client, subjects: Subjects, start: Start, follow: bool) -> AsyncIterator[ActivityEvent]:
    """Reads the activity stream: the changes of the cluster, as the controller has written them."""
    try:
        subject = (await client.metadata(ACTIVITY.name)).subject
    except UnknownStream as error:
        raise UnknownStream(Code.UNKNOWN_STREAM, NOT_RECORDED, error.details) from None
    if not is_internal(ACTIVITY.name, subject, subjects):
        raise UnknownStream(
            Code.UNKNOWN_STREAM,
            f"stream {ACTIVITY.name}, on subject {subject!r}, is a user's, made under an earlier version of Tidelog:"
            " events are not recorded until it is deleted",
        )
    events = EventFilter()
    stop: Literal["latest"] | None = None if follow else "latest"
    async with client.consume(ACTIVITY.name, start=start, stop=stop, on_gap="skip") as consumer:
        async for record in consumer:
            event = json.loads(record.value or b"{}")
            if events.takes(event):
                yield cast("ActivityEvent", event)


_MAX_OFFSET = (1 << 63) - 1
_END_TIMEOUT = 120.0
"""Seconds that a coordinator of transactions has to answer, with all repetitions."""


@runtime_checkable
class ClosableTransport(Transport, Protocol):
    async def close(self) -> None: ...


class Client:
    """A connection to a cluster. Make it with `connect`; use it with `async with`, or `await close()` it."""

    def __init__(
        self, transport: ClosableTransport, subjects: Subjects, *, server: str, name: str, api_timeout: float = 5.0
    ) -> None:
        self._transport: ClosableTransport = transport
        self._subjects = subjects
        self._name = name
        self._api = Api(transport, subjects, server=server, timeout=api_timeout)
        self._metadata = MetadataCache(self._api, transport, subjects)
        self._admin = Admin(self._api, self._metadata, subjects)
        self._link = CoordinatorLink(transport, subjects, self._api)
        self._transactions_link = CoordinatorLink(transport, subjects, self._api, OF_TRANSACTIONS)
        self._groups = GroupAdmin(self._api, self._metadata, self._link, self.offsets)
        self._producers = Started[Producer[Any, Any] | TransactionalProducer[Any, Any]](self._check_open)
        self._consumers = Started[Consumer[Any, Any] | GroupConsumer[Any, Any]](self._check_open)
        self._numbers = count(time.time_ns() % 1021)
        self._lookup = OffsetLookup(transport, subjects, self._metadata)
        self._closed = False
        """It takes no calls any more."""
        self._closing = Closing("a client", self._close)
        self._home = HomeLoop("this client")
        transport.on_connection_change(self._on_connection_change)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection. Open producers give up their unacknowledged records: close them first. Transactions
        that are open are aborted. Everything is closed, then the first error is raised, such as one of `on_revoked`.
        Safe to call twice. Goes on when the caller is cancelled; another call waits for it."""
        if self._closing.is_over:
            return
        self._home.check()
        for consumer in self._consumers:
            if isinstance(consumer, GroupConsumer):
                consumer._check_closable()
        self._closed = True
        await self._closing.run()

    @property
    def is_connected(self) -> bool:
        """To NATS, at this moment. A lost connection comes back by itself."""
        return self._transport.is_connected

    # Streams

    def delay(self) -> tuple[float, str] | None:
        """Returns for how many seconds a request to the controller is being repeated because it is not answered, or is
        refused for the time being, and why, in a sentence; the longest time of all requests. None: none is."""
        return self._api.delay()

    async def create_stream(
        self,
        name: str,
        *,
        subject: str | None = None,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str | int | bool] | None = None,
        partitioner: Literal["crc32c", "murmur2"] | None = None,
    ) -> op.StreamDescription:
        """Create a stream that captures `subject` (default: its name). `replication_factor` None: 3, or all brokers of
        a smaller cluster. `partitioner`: how producers that choose none spread keys over partitions, as long as the
        stream lives; "murmur2" is as Kafka's Java clients do it, None is "crc32c". Returns the answer of `describe`,
        which tells the replication factor and all settings.

        Raises StreamExists, SubjectTaken, BadName, BadSubject, BadConfig, BadReplicationFactor, NoServer.
        """
        self._check_open()
        return await self._admin.create_stream(
            name,
            subject=subject,
            partitions=partitions,
            replication_factor=replication_factor,
            config={} if config is None else config,
            partitioner=partitioner,
        )

    async def ensure_stream(
        self,
        name: str,
        *,
        subject: str | None = None,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, str | int | bool] | None = None,
        partitioner: Literal["crc32c", "murmur2"] | None = None,
    ) -> EnsuredStream:
        """As `create_stream`; a stream of that name that is there already is left as it is, if its subject, its
        partitions, and the replication factor, partitioner and settings that are given are the same. Returns the
        answer of `describe`, and whether it was `created` now.

        Raises StreamExists, which tells what differs, and otherwise as `create_stream`.
        """
        self._check_open()
        return await self._admin.ensure_stream(
            name,
            subject=subject,
            partitions=partitions,
            replication_factor=replication_factor,
            config={} if config is None else config,
            partitioner=partitioner,
        )

    async def alter_stream(
        self, name: str, *, config: Mapping[str, str | int | bool] | None = None, unset: Iterable[str] = ()
    ) -> op.StreamDescription:
        """Change settings of a living stream; the ones in `unset` go back to their defaults. All of it is done, or
        nothing. Returns the answer of `describe`.

        Raises UnknownStream, BadConfig (a setting that does not exist, that cannot be changed while the stream lives,
        or that does not go with the others), BadRequest, NoServer.
        """
        self._check_open()
        return await self._admin.alter_stream(name, config={} if config is None else config, unset=unset)

    async def alter_replication_factor(
        self, stream: str, replication_factor: int, *, dry_run: bool = False, plan: str = ""
    ) -> AlteredFactor:
        """Give a living stream another number of replicas. Returns when all partitions have begun to move; `moves`
        tells how far they are. A larger min ISR that follows from it counts when all have their replicas, a smaller one
        at once. With `dry_run` nothing is changed: `plan` of the answer tells what would be copied. `plan`: the
        `digest` of a plan that was shown; if it is another one now nothing is begun (BadRequest).

        Raises BadRequest, UnknownStream, BadConfig (a pinned or strictly colocated stream; a `min_isr` that was given
        and is above it), BadReplicationFactor, NotEnoughBrokers, Unavailable (something changed meanwhile; ask again),
        NoServer.
        """
        self._check_open()
        check_flag("dry_run", dry_run)
        return await self._api.call(
            STREAM_ALTER_FACTOR,
            name=stream_name(stream),
            replication_factor=replication_factor,
            dry_run=dry_run,
            plan=plan,
        )

    async def delete_stream(self, name: str) -> None:
        """Delete a stream with all its records. Raises UnknownStream."""
        self._check_open()
        await self._admin.delete_stream(name)

    async def streams(self, *, internal: bool = False) -> list[op.StreamSummary]:
        """Name, subject and numbers of each stream; `internal`: with Tidelog's own. Raises NoServer."""
        self._check_open()
        return (await self._admin.list_streams(internal=internal))["streams"]

    async def streams_with_usage(self, *, internal: bool = False) -> op.StreamList:
        """As `streams`, with `bytes_on_disk` and `traffic` of each, for which all brokers are asked; and the brokers
        that did not answer, whose replicas are missing in that. Raises NoServer."""
        self._check_open()
        return await self._admin.list_streams(internal=internal, usage=True)

    async def describe(self, name: str) -> op.StreamDescription:
        """Leaders, ISRs and offsets of a stream's partitions. Raises UnknownStream."""
        self._check_open()
        return await self._admin.describe(name)

    async def move_leader(self, stream: str, partition: int, broker: str) -> op.PartitionDescription:
        """Let `broker`, a live in-sync replica, lead that partition in place of its present leader, which stays in
        sync. Nothing acknowledged is lost; producers wait for some ms. Returns when the new leader serves.

        Raises UnknownStream, BadRequest (it cannot lead, or leads already), LeaderNotMoved (the old leader goes on, or
        another one was elected meanwhile), NoServer.
        """
        self._check_open()
        return await self._admin.move_leader(stream, partition, broker)

    async def elect_unclean(
        self, stream: str, partition: int, broker: str, *, accept_loss: bool = False
    ) -> op.UncleanElection:
        """Tell the loss if `broker` leads a partition that no broker can lead safely, though its replica may lack
        committed records; with `accept_loss` it leads from now on. For when the replicas that hold them are gone for
        good.

        Raises UnknownStream, BadRequest (the partition has a leader, or `broker` is no live replica), NoServer.
        """
        self._check_open()
        return await self._api.call(
            op.PARTITION_UNCLEAN_ELECT, stream_name(stream), partition, broker, accept_loss=accept_loss
        )

    async def partition_history(self, stream: str, partition: int) -> op.PartitionHistory:
        """The last events of each replica of a partition, for finding out what happened to it. Raises UnknownStream,
        BadRequest (no such partition), NoServer."""
        self._check_open()
        return await self._api.call(op.PARTITION_HISTORY, stream_name(stream), partition)

    async def cluster_status(self) -> op.ClusterStatus:
        """Brokers, controller, streams in numbers, partitions that are offline or lack replicas. Raises NoServer."""
        self._check_open()
        return await self._api.call(op.CLUSTER_STATUS)

    async def restart_order(self, broker: str | None = None) -> list[RestartVerdict]:
        """Which brokers may be stopped now, why the others may not, and what the restart of each costs; in the order in
        which to restart them. `broker`: only this one. Raises BadRequest when it has never registered, NoServer."""
        self._check_open()
        return (await self._api.call(CLUSTER_RESTART_ORDER, broker=broker or ""))["brokers"]

    async def replicas(
        self,
        *,
        stream: str | None = None,
        partition: int | None = None,
        broker: str | None = None,
        internal: bool = False,
    ) -> ReplicaList:
        """State, ends and lag of each replica: of all streams or one, of one partition, of one broker. `internal`: with
        those of Tidelog's own streams. Asks for a page of partitions at a time.

        Raises BadRequest (no such stream, partition or broker), NoServer.
        """
        self._check_open()
        return await self._admin.replicas(stream=stream, partition=partition, broker=broker, internal=internal)

    async def brokers(self) -> list[ListedBroker]:
        """All registered brokers, by id: whether they live, since when they are dead, and what they hold. Raises
        NoServer."""
        self._check_open()
        return (await self._api.call(BROKER_LIST))["brokers"]

    async def drain_broker(
        self, broker: str, *, dry_run: bool = False, cancel: bool = False, plan: str = ""
    ) -> BrokerDrain:
        """Give all replicas and leaderships of a broker, alive or dead, to others, and no new ones to it, until
        `cancel`. Returns when that has begun; `moves` and `brokers` tell how far it is. To ask again does no harm.
        `dry_run`: only the plan is wanted. `cancel`: partitions that are about to leave the broker keep it. `plan`: the
        `digest` of a plan that was shown.

        Raises BadRequest (it is not registered, partitions cannot live without it, or the plan is another one now: the
        sentence says which),
        Unavailable, NoServer.
        """
        self._check_open()
        return await self._api.call(BROKER_DRAIN, broker=broker, dry_run=dry_run, cancel=cancel, plan=plan)

    async def remove_broker(self, broker: str, *, dry_run: bool = False) -> BrokerRemoval:
        """Take a dead broker out of the cluster. It can come back under its id, as a new broker. `dry_run`: only check
        that it can be removed.

        Raises BadRequest (it is alive, votes in the metadata group, or something needs it: the sentence says what, and
        what to do), WrongIncarnation (it has just registered again), NoServer.
        """
        self._check_open()
        return await self._api.call(BROKER_REMOVE, broker=broker, dry_run=dry_run)

    async def describe_broker(self, broker: str) -> op.BrokerDescription:
        """A broker as `cluster_status` has it, and each replica that it holds. Raises BadRequest when no broker of that
        id has ever registered."""
        self._check_open()
        return await self._api.call(op.BROKER_DESCRIBE, broker)

    async def alter_cluster(
        self, *, config: Mapping[str, str | int | bool] | None = None, unset: Iterable[str] = ()
    ) -> dict[str, str]:
        """Change settings of the cluster, and those that new streams get where they bring none of their own. Returns
        all of them. Streams that exist keep theirs. Raises BadConfig, BadRequest, NoServer."""
        self._check_open()
        return await self._admin.alter_cluster(config={} if config is None else config, unset=unset)

    async def rebalance_leaders(self, *, dry_run: bool = False) -> op.RebalancedLeaders:
        """Let the preferred leader of each partition lead, where it can: the stream's `leader_pin`, else the first
        replica. Returns what moves and what stays, with the reason, before the moves have ended. `dry_run`: nothing
        moves. Raises NoServer."""
        self._check_open()
        return await self._api.call(op.CLUSTER_REBALANCE_LEADERS, dry_run=dry_run)

    async def rebalance(self, *, dry_run: bool = False, plan: str = "") -> ReplicaPlan:
        """Move replicas of all streams, with the fewest copies, so that brokers hold equally many, in different zones,
        as the streams' policies say. Returns the plan when its moves are begun; `moves` tells how far they are. With
        `dry_run` nothing is changed. `plan`: the `digest` of a plan that was shown; if it is another one now nothing is
        begun. To ask again does no harm: what is under way is counted as done. Raises BadRequest (the plan is another
        one now), Unavailable, NoServer."""
        self._check_open()
        check_flag("dry_run", dry_run)
        return await self._api.call(CLUSTER_REBALANCE, dry_run=dry_run, plan=plan)

    async def metadata(self, stream: str) -> StreamMetadata:
        """Partitions, incarnations and leaders as the controller knows them now. Raises UnknownStream."""
        self._check_open()
        return await self._metadata.refresh(stream, of_controller=True)

    async def set_readonly(
        self, stream: str, readonly: bool = True, partitions: Iterable[int] | None = None
    ) -> list[ChangedPartition]:
        """Let partitions (None: all) take no records, or with `readonly=False` take them again. A publish to one that
        takes none fails with ReadOnly; consumers read on. Returns the partitions when all live replicas know it, or
        after 3 s: `not_yet` names those that do not.

        Raises UnknownStream, BadRequest (no such partition, one of Tidelog's own streams), NoServer.
        """
        self._check_open()
        check_flag("readonly", readonly)
        name = stream_name(stream)
        numbers = [] if partitions is None else partition_numbers(partitions)
        answer = await self._api.call(STREAM_SET_READONLY, name=name, readonly=readonly, partitions=numbers)
        return answer["partitions"]

    async def pause(
        self, stream: str, partitions: Iterable[int] | None = None, resume_all: bool = False
    ) -> list[ChangedPartition]:
        """Pause partitions (None: all) to which nothing is published for long: their followers sleep, and cost next to
        nothing. A publish of any kind ends the pause of its partition by itself, and is stored and acknowledged as
        ever; with `resume_all` it ends the pause of the whole stream. Paused partitions can be read. Returns the
        partitions as `set_readonly` does.

        Raises UnknownStream, BadRequest (no such partition, one of Tidelog's own streams), NoServer.
        """
        self._check_open()
        check_flag("resume_all", resume_all)
        name = stream_name(stream)
        numbers = [] if partitions is None else partition_numbers(partitions)
        answer = await self._api.call(STREAM_PAUSE, name=name, partitions=numbers, resume_all=resume_all)
        return answer["partitions"]

    async def resume(self, stream: str, partitions: Iterable[int] | None = None) -> list[ChangedPartition]:
        """End the pause of partitions (None: all). Returns and raises as `pause`."""
        self._check_open()
        name = stream_name(stream)
        numbers = [] if partitions is None else partition_numbers(partitions)
        answer = await self._api.call(STREAM_RESUME, name=name, partitions=numbers)
        return answer["partitions"]

    async def repartition(self, stream: str, partitions: int, dry_run: bool = False) -> Repartitioned:
        """Spread the keys of a living stream over another number of partitions. With `dry_run` nothing is changed: the
        answer's `plan` tells what would be. Returns when new records go to the new layout, or after 3 s: `status` tells
        how far it is, as `repartition_status` does.

        Raises UnknownStream, BadRequest (another repartition is under way, it has so many partitions already, one of
        Tidelog's own streams, a compacted stream), BadConfig, LimitReached, BadReplicationFactor (too few live
        brokers), NoServer.
        """
        self._check_open()
        check_flag("dry_run", dry_run)
        wanted, name = partition_count(partitions), stream_name(stream)
        planned = await self._api.call(STREAM_REPARTITION, name=name, partitions=wanted, dry_run=True)
        if dry_run:
            return planned
        try:
            return await self._api.call(STREAM_REPARTITION, name=name, partitions=wanted, dry_run=False)
        except TidelogError as error:
            if not error.detail(REPEATED):
                raise
            # The answer was lost on the way, or takes longer than one attempt: what is under way may be ours.
            status = await self.repartition_status(name)
            begun = status["repartition"]
            if wanted != (status["partitions"] if begun is None else begun["partitions"]):
                raise
            return {"plan": planned["plan"], "status": status}

    async def repartition_status(self, stream: str) -> RepartitionStatus:
        """How far the repartition of a stream is; its field `repartition` is None while none is under way. Raises
        UnknownStream, NoServer."""
        self._check_open()
        return await self._api.call(STREAM_REPARTITION_STATUS, stream_name(stream))

    async def cancel_repartition(self, stream: str) -> RepartitionStatus:
        """Give up a repartition. That can be done until new records go to the new layout.

        Raises UnknownStream, BadRequest (none is under way, or it is too late), NoServer.
        """
        self._check_open()
        return await self._api.call(STREAM_REPARTITION_CANCEL, stream_name(stream))

    async def reassign(self, stream: str, replicas: Mapping[int, Sequence[str]], dry_run: bool = False) -> Reassigned:
        """Give partitions of a living stream other replicas: by partition, the ids of the brokers, the preferred leader
        first. Brokers that are added copy the log; when all are in sync the former ones go. With `dry_run` nothing is
        changed: the answer's `plan` tells what would be copied. Returns when the reassignments are begun; `moves` tells
        how far they are. To repeat it does no harm.

        Raises UnknownStream, BadRequest (a broker that is not known or not alive, or is named twice; another number of
        brokers than the stream has replicas), Unavailable (a partition changed meanwhile; ask again), NoServer.
        """
        self._check_open()
        check_flag("dry_run", dry_run)
        targets = replica_targets(replicas)
        return await self._api.call(STREAM_REASSIGN, name=stream_name(stream), targets=targets, dry_run=dry_run)

    async def cancel_reassignment(self, stream: str, partitions: Iterable[int] | None = None) -> Moves:
        """Give up the reassignments of partitions (None: all that are under way): they go back to the replicas that
        they had, and what was added goes as soon as nothing that is committed is on it alone. Raises UnknownStream,
        BadRequest (no such partition), Unavailable, NoServer."""
        self._check_open()
        numbers = [] if partitions is None else partition_numbers(partitions)
        return await self._api.call(STREAM_REASSIGN_CANCEL, name=stream_name(stream), partitions=numbers)

    async def moves(self, stream: str | None = None) -> Moves:
        """The partitions that get other replicas (of one stream, or of all), and how far they are. Raises
        BadRequest (no such stream), NoServer."""
        self._check_open()
        return await self._api.call(CLUSTER_MOVES, of_stream="" if stream is None else stream_name(stream))

    async def delete_records(
        self, stream: str, before: Mapping[int, int | Literal["latest"]]
    ) -> list[ChangedPartition]:
        """Delete the records below an offset, by partition; "latest": all that are committed, up to what `offsets`
        calls the end, which is in front of a transaction that is open. They are served no more,
        whatever happens to brokers; their bytes go with the segments that hold nothing else. An offset below the first
        record changes nothing. Returns the partitions, with their `log_start_offset`, when all live replicas know it,
        or after 3 s: `not_yet` names those that do not. A partition that a repartition has left over may be removed
        with its last records, and is not among them then.

        Raises UnknownStream, BadRequest, OffsetOutOfRange (above the committed log: nothing was deleted), NoServer.
        """
        self._check_open()
        check_offsets(before)
        offsets = {str(number): LATEST if offset == "latest" else offset for number, offset in before.items()}
        answer = await self._api.call(STREAM_DELETE_RECORDS, stream_name(stream), offsets)
        return answer["partitions"]

    # Records

    @takes(ConsumerConfig)
    def consume(
        self,
        stream: str,
        *,
        start: Start = "earliest",
        stop: Stop = None,
        partitions: Iterable[int] | None = None,
        **options: Unpack[ConsumerOptions[K, V]],
    ) -> Consumer[K, V]:
        """A consumer of committed records: `async for record in …`, or `async for batch in ….batches()`.

        `start` and `stop` (exclusive; None = go on for ever) are spelled as `tidelog.client.base.read_positions` says:
        "earliest", "latest" (as a start the newest record, as a stop the end of the committed records now), "new", an
        offset, {partition: offset} for every partition read (as `Consumer.positions`, which goes on where another
        consumer stopped), a datetime or AtTime(ns). Records of a partition come in offset order; partitions come as
        they answer. Where all partitions are read, and not to the end that they have now, those that a repartition
        makes are read, too, each from its beginning.
        """
        self._check_open()
        config: ConsumerConfig[K, V] = ConsumerConfig(**options)
        if isinstance(partitions, (str, bytes)) or not isinstance(partitions, (Iterable, NoneType)):
            raise bad(f"partitions={partitions!r} is no list of partitions, such as [0, 2]")
        return Consumer(
            self._transport,
            self._subjects,
            self._metadata,
            self._lookup,
            stream_name(stream),
            config,
            start=start,
            stop=stop,
            partitions=partitions,
            spread=next(self._numbers),
            started=self._consumers,
        )

    @overload
    def producer(self, stream: str, **options: Unpack[ProducerOptions[K, V]]) -> Producer[K, V]: ...

    @overload
    def producer(
        self, *, transactional_id: str, **options: Unpack[TransactionOptions[K, V]]
    ) -> TransactionalProducer[K, V]: ...

    @takes(TransactionConfig)
    def producer(
        self, stream: str | None = None, *, transactional_id: str | None = None, **options: Any
    ) -> Producer[K, V] | TransactionalProducer[K, V]:
        """A producer for a stream; or, with `transactional_id` in place of a stream, one that writes to any streams in
        transactions.

        `transactional_id`: a name that the producer keeps when its program is started anew, and that no other has at
        the same time: a newer producer of that name fences the older one. `acks`, `durability`, `confirm_timeout` and
        `dedup` are not for it: each of its records is committed as its stream asks before the transaction is.
        """
        self._check_open()
        if transactional_id is not None:
            transaction_config: TransactionConfig[K, V] = TransactionConfig(**options)
            if stream is not None:
                raise bad(
                    f"a transactional producer writes to any streams: name {stream!r} in its send(), or in"
                    " streams=[...]"
                )
            return self._of_transactions(transactional_id, transaction_config)
        if (
            options.pop("streams", ()) != ()
            or options.pop("transaction_timeout", DEFAULT_TIMEOUT_S) != DEFAULT_TIMEOUT_S
        ):
            raise bad("streams and transaction_timeout are of transactional producers; give a transactional_id")
        config: ProducerConfig[K, V] = ProducerConfig(**options)
        if stream is None:
            raise bad("stream name None is no name: give the producer a stream, or a transactional_id")
        return Producer(
            self._transport,
            self._subjects,
            self._api,
            self._metadata,
            stream_name(stream),
            config,
            buffer=SendBuffer(config.buffer_bytes, timeout=config.delivery_timeout, of=repr(stream)),
            spread=next(self._numbers),
            started=self._producers,
        )

    def _of_transactions(self, transactional_id: str, config: TransactionConfig[K, V]) -> TransactionalProducer[K, V]:
        check_text("transactional_id", transactional_id, "billing-1")
        try:
            name = check_transactional_id(transactional_id)
        except TidelogError as error:
            raise typed(error) from None
        buffer = SendBuffer(config.buffer_bytes, timeout=config.delivery_timeout, of=f"transactions of {name!r}")

        def make_writer(stream: StreamName, transactions: TransactionPolicy) -> TransactionWriter[K, V]:
            return TransactionWriter(
                self._transport,
                self._subjects,
                self._api,
                self._metadata,
                stream,
                config,
                buffer=buffer,
                spread=next(self._numbers),
                started=Started(self._check_open),
                transactions=transactions,
            )

        return TransactionalProducer(
            self._transactions_link,
            self._groups,
            name,
            config,
            client=self._name,
            make_writer=make_writer,
            started=self._producers,
        )

    # Positions, for callers that plan their reads themselves

    async def offsets(
        self,
        stream: str,
        which: Literal["earliest", "latest"] | Moment,
        *,
        partitions: Iterable[int] | None = None,
        read_uncommitted: bool = False,
    ) -> dict[int, int]:
        """One offset per partition (None: of all): "earliest" = of the oldest record there is; "latest" = the end of
        the committed log (exclusive: the next record's; in front of the first transaction that is open, or, with
        `read_uncommitted`, behind it); a time (as the `timestamp` of `Producer.send`) = of the first
        record at or after it, the end when there is none. "latest" never goes back. `Consumer` has the same as
        `beginning_offsets`, `end_offsets` and `offsets_for_times`.

        Raises UnknownStream, BadRequest, NoServer.
        """
        self._check_open()
        position = _looked_up(which)
        check_flag("read_uncommitted", read_uncommitted)
        if position is Anchor.EARLIEST:
            return await self._lookup.beginnings(stream, partitions)
        if position is Anchor.NEW:
            return await self._lookup.ends(stream, partitions, read_uncommitted=read_uncommitted)
        return await self._lookup.at(stream, position, partitions, read_uncommitted=read_uncommitted)

    async def extents(
        self, stream: str, *, read_uncommitted: bool = False, knows_layouts: bool = False
    ) -> StreamExtents:
        """Where the log of each partition begins and ends, as its leader tells it now, and of which life of stream and
        partition that is: for callers that keep positions, to tell a log that was cut or made anew. Each end is told as
        the leader knows it, and may be an earlier one than `offsets` has told. `knows_layouts`: no record in front of
        these ends is of a later layout than those that are told.

        Raises UnknownStream, NoServer.
        """
        self._check_open()
        check_flag("read_uncommitted", read_uncommitted)
        check_flag("knows_layouts", knows_layouts)
        return await self._lookup.extents(stream, read_uncommitted=read_uncommitted, knows_layouts=knows_layouts)

    async def spans(
        self, stream: str, wanted: Mapping[int, tuple[int, int]], *, read_uncommitted: bool = False
    ) -> dict[int, Span]:
        """For callers that read by size: `wanted` has an offset and a number of bytes for each partition, and the
        answer tells where about so many bytes from there on end, and how many there are to the end of the committed
        log. Sizes are those on the brokers' disks.

        Raises UnknownStream, BadRequest, NoServer.
        """
        self._check_open()
        check_flag("read_uncommitted", read_uncommitted)
        for partition, (offset, size) in wanted.items():
            check_whole(f"the offset of partition {partition}", offset, 0, _MAX_OFFSET)
            check_whole(f"the bytes of partition {partition}", size, 1, _MAX_OFFSET)
        return await self._lookup.spans(stream, wanted, read_uncommitted=read_uncommitted)

    async def fetch_batches(
        self,
        stream: str,
        partition: int,
        start_offset: int,
        end_offset: int,
        *,
        max_bytes: int = 1 << 20,
        read_uncommitted: bool = False,
        read_from: Literal["leader", "follower", "nearest"] = "leader",
        rack: str | None = None,
        stream_incarnation: int | None = None,
        partition_incarnation: int | None = None,
        on_position: Callable[[int], object] | None = None,
    ) -> AsyncIterator[RecordBatch]:
        """The committed records [start_offset, end_offset) of a partition, as batches in order; waits for records that
        are not committed yet. `read_uncommitted`, `read_from` and `rack` as those of `consume`. With incarnations
        given, raises WrongIncarnation when the stream has been created anew since. `on_position` is called with the
        next offset that is wanted, after each answer that moves it, with records or without.
        """
        self._check_open()
        for name, value in (("partition", partition), ("start_offset", start_offset), ("end_offset", end_offset)):
            check_whole(name, value, 0, _MAX_OFFSET)
        config: ConsumerConfig[Any, Any] = ConsumerConfig(
            max_bytes=max_bytes, read_uncommitted=read_uncommitted, read_from=read_from, rack=rack
        )
        layout = await self._metadata.get(stream)
        if not _is_same_life(layout, partition, stream_incarnation, partition_incarnation):
            layout = await self._metadata.refresh(stream)
        if partition not in layout.partitions:
            raise bad(f"there is no partition {partition} in stream {stream!r}")
        if not _is_same_life(layout, partition, stream_incarnation, partition_incarnation):
            raise WrongIncarnation(
                Code.WRONG_INCARNATION,
                f"stream {stream!r} was deleted and created again since its offsets were noted; begin anew",
            )
        config = replace(config, max_bytes=max(min(max_bytes, self._transport.max_payload - ANSWER_OVERHEAD), 1))
        start, end = AtOffset(start_offset), AtOffset(end_offset)
        reader = self._lookup.reader(layout, partition, start, end, config)
        if read_from != "leader":
            sources = reader.fetcher.followers = FollowerSources((), next(self._numbers))
            set_sources(sources, rack, layout, layout.partitions[partition])
        while answer := await reader.read():
            if on_position is not None:
                on_position(answer.end)
            for batch in answer.batches:
                yield batch

    async def copy_stream(
        self,
        source: str,
        target: str,
        *,
        partitions: int | None = None,
        start: Start = "earliest",
        stop: Stop = "latest",
        subject: str | None = None,
        replication_factor: int | None = None,
        config: Mapping[str, str | int | bool] | None = None,
        resume: bool = False,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> CopiedStream:
        """Make the stream `target` as `source` is, but for what is given otherwise (its `subject` is its name), and
        copy the committed records between `start` and `stop` into it: keys, values, headers and timestamps, in the
        order of each partition. With another number of `partitions`, and where `source` was repartitioned, records with
        a key go where producers put that key: their order is kept per key. `config`: settings that differ;
        `delete_protection` is not copied.

        A copy that ended early stays as it is; with `resume` and the same arguments it is gone on with, where both have
        as many partitions and neither was repartitioned. `on_progress(done, total)` is called now and then, in offsets.

        Raises StreamExists, UnknownStream, BadRequest, and what `create_stream`, a consumer and a producer raise.
        """
        self._check_open()
        return await copy_stream(
            self,
            CopyRequest(
                source,
                target,
                partitions,
                start,
                stop,
                subject,
                replication_factor,
                {} if config is None else config,
                resume,
                on_progress or (lambda _done, _total: None),
            ),
        )

    async def activity(self, *, start: Start = "earliest", follow: bool = True) -> AsyncIterator[ActivityEvent]:
        """What happened in the cluster: streams created, altered and deleted, leaders and ISRs changed, brokers that
        joined or died, and so on, each event once, in the order in which the metadata group applied them. `start`:
        as that of `consume`; a time is the one at which events were written. Without `follow` it ends at the last one.

        Raises UnknownStream where nothing is recorded: brokers record events where their `[metadata] activity_stream`
        is true.
        """
        self._check_open()
        async for event in read_activity(self, self._subjects, start, follow):
            yield event

    # Groups

    @takes(GroupConfig)
    def subscribe(
        self,
        streams: str | Iterable[str] = (),
        *,
        group: str,
        patterns: str | Iterable[str] = (),
        instance_id: str | None = None,
        **options: Unpack[GroupOptions[K, V]],
    ) -> GroupConsumer[K, V]:
        """A member of a consumer group, which shares the partitions of these streams with the group's other members.

        `patterns`: also streams whose names match, with `*` for any characters and `?` for one; new ones are found.
        `instance_id`: a name that this member keeps when it is started anew; then its partitions wait for it until its
        session ends, and nothing is moved.
        """
        self._check_open()
        config: GroupConfig[K, V] = GroupConfig(**options)
        settings = member_settings(
            config, group=group, streams=streams, patterns=patterns, instance_id=instance_id, client=self._name
        )
        return GroupConsumer(
            self._transport,
            self._subjects,
            self._metadata,
            self._link,
            self._lookup,
            settings,
            config,
            spread=next(self._numbers),
            started=self._consumers,
        )

    async def groups(self) -> op.GroupList:
        """All consumer groups, by name; `unanswered` are partitions of `__groups` whose coordinators did not answer,
        so that their groups are missing. Raises NoServer."""
        self._check_open()
        return await self._api.call(op.GROUP_LIST)

    async def describe_group(self, group: str) -> DescribedGroup:
        """A group's members and their partitions, what is committed, and as `progress` how far it is behind in each
        partition. Raises UnknownGroup, NoServer."""
        self._check_open()
        return await self._groups.describe(group)

    async def reset_group(
        self,
        group: str,
        *,
        to: str | int | datetime | AtTime | Mapping[Name, int] | None = None,
        shift: int | None = None,
        streams: str | Iterable[str] | None = None,
        partitions: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> list[OffsetChange]:
        """Commit other offsets for a group without members; returns what was committed before and is now, by stream and
        partition. `dry_run`: what would be, and nothing is changed.

        `to`: "earliest", "latest" (the end of the committed log), an offset, a datetime, AtTime or ISO-8601 text (the
        first record at or after it), or {(stream, partition): offset}. `shift`: so many offsets on, or back, from what
        is committed. An offset outside of the log becomes its start or end. `streams`: None = all of which something is
        committed; `partitions`: None = all.

        Raises GroupNotEmpty, UnknownGroup (without `streams`), UnknownStream, BadRequest, NoServer.
        """
        self._check_open()
        return await self._groups.reset(group, to, shift, streams, partitions, dry_run)

    async def delete_group(self, group: str) -> None:
        """Forget a group without members, and what it has committed. Raises GroupNotEmpty, UnknownGroup, NoServer."""
        self._check_open()
        await self._groups.delete(group)

    async def commit_offsets(self, group: str, offsets: Mapping[Name, int], metadata: str = "") -> None:
        """Commit {(stream, partition): the next offset to read} for a group without members, as programs do that choose
        their partitions themselves; `describe_group` tells them. Returns when the in-sync replicas have it. A call that
        failed with NoServer may still take effect later, and then takes a later one back.

        Raises GroupNotEmpty, UnknownStream, BadRequest, NoServer.
        """
        self._check_open()
        await self._groups.commit(group, offsets, metadata)

    def cursor(self, name: str) -> Cursor:
        """A named value in the cluster. Raises BadName."""
        self._check_open()
        return Cursor(self._link, name)

    # Transactions

    async def transactions(self, *, idle: bool = False, stream: str = "", group: str = "") -> TransactionList:
        """The transactions that are open or end, the oldest first, as many as an answer holds (`left_out` is the number
        of the others); with `idle` also the transactional ids without one. `stream`, `group`: only those in which it
        takes part. `unanswered` are partitions of `__transactions` whose coordinators did not answer. Raises NoServer,
        BadRequest."""
        self._check_open()
        return await self._api.call(TRANSACTION_LIST, idle, stream, group)

    async def describe_transaction(self, transactional_id: str) -> TransactionDescription:
        """What is known of a transactional id, and for which partitions and groups its transaction waits. Raises
        UnknownTransaction, BadName, NoServer."""
        self._check_open()
        return await self._api.call(TRANSACTION_DESCRIBE, _checked(transactional_id))

    async def abort_transaction(self, transactional_id: str) -> TransactionDescription:
        """Abort the open transaction of a producer that hangs, and fence that producer: it hears ProducerFenced.
        Returns when that is decided, and who is still to be told of it. Raises UnknownTransaction, NotInTransaction
        (no transaction is open, or it is being committed already), BadName, NoServer."""
        self._check_open()
        return await self._api.call(TRANSACTION_ABORT, _checked(transactional_id))

    # Prepared transactions

    async def commit_prepared(
        self,
        family: str,
        transactions: Iterable[PreparedTransaction],
        *,
        sequence: int,
        abort_others: bool = True,
        once: bool = False,
        metadata: str = "",
        timeout: float = _END_TIMEOUT,
    ) -> bool:
        """Commit transactions that producers of a family have prepared (`TransactionalProducer.prepare`), all of them
        or none, once for each `sequence`, a number that grows from commit to commit. True: they are committed, now or
        by an earlier call with the same ones. False: others were committed with this sequence before, and these are
        aborted. `abort_others`: whatever else is open under the family is aborted, such as attempts that were given up.
        `once`: the family was made for this commit, and is forgotten after two hours with its transactional ids; others
        are kept for 30 days. `metadata`: up to 512 characters that are kept with the commit, such as a digest of what
        was written; `last_commit` returns them.

        Raises TransactionAborted where one of them is not open any more (its timeout is over, say): nothing is
        committed, and all are aborted. Raises StaleCommit where the family has committed a later sequence, and these
        were not committed before; with its `outcome_unknown` they may have been, by an earlier call, whatever the
        sequence, and the coordinator does not know it any more (it knows the last nine commits, and others until their
        transactional ids are used again; a family that is forgotten may have committed them as well). Raises BadRequest
        where one of them was committed by another commit than this one: do not write it again. Raises DeliveryTimeout
        where the coordinator was asked and did not answer for `timeout` seconds: they may be committed, and another
        call with the same ones tells. Raises NoServer, NotPermitted, BadName, and BadRequest for arguments.
        """
        self._check_open()
        check_whole("sequence", sequence, 0, MAX_SEQUENCE)
        check_text("metadata", metadata, "")
        if len(metadata) > MAX_METADATA:
            raise bad(
                f"metadata has {len(metadata)} characters, and {MAX_METADATA} are kept at most: give a digest of it"
            )
        return await end_family(
            self._transactions_link,
            _family(family),
            transactions,
            commits=True,
            sequence=sequence,
            others=abort_others,
            once=once,
            metadata=metadata,
            timeout=timeout,
        )

    async def abort_prepared(
        self,
        family: str,
        transactions: Iterable[PreparedTransaction] = (),
        *,
        abort_others: bool = False,
        timeout: float = _END_TIMEOUT,
    ) -> bool:
        """Abort transactions that producers of a family have prepared; with `abort_others` all that are open under it.
        Afterwards none of them is open. True: none of `transactions` was committed. False: one of them may have been
        committed before, by `commit_prepared`, and the coordinator does not know it any more, for newer producers have
        begun under its transactional id, or the id is forgotten: do not write its records again before you have looked.

        Raises BadRequest where one is known to be committed; the others are aborted. Raises NoServer (they may be
        aborted, and another call tells), NotPermitted, BadName."""
        self._check_open()
        return await end_family(
            self._transactions_link,
            _family(family),
            transactions,
            commits=False,
            sequence=0,
            others=abort_others,
            timeout=timeout,
        )

    async def committed_sequence(self, family: str, *, timeout: float = _END_TIMEOUT) -> int | None:
        """The sequence of the last commit of prepared transactions of a family. None: there was none, or the family has
        committed nothing for 30 days. Raises NoServer, NotPermitted, BadName."""
        last = await self.last_commit(family, timeout=timeout)
        return None if last is None else last.sequence

    async def last_commit(self, family: str, *, timeout: float = _END_TIMEOUT) -> FamilyCommit | None:
        """The last commit of prepared transactions of a family: its sequence, and the metadata that was given with it.
        None and errors as of `committed_sequence`."""
        self._check_open()
        return await last_commit(self._transactions_link, _family(family), timeout)

    async def _close(self) -> None:
        gone = Closed(Code.UNAVAILABLE, "the client was closed before this was acknowledged; close the producer first")
        producers = (
            producer.close if isinstance(producer, TransactionalProducer) else partial(producer._abort, gone)
            for producer in self._producers
        )
        consumers = (consumer.aclose for consumer in self._consumers)
        await close_all((*producers, *consumers, self._metadata.close, self._transport.close))

    def _on_connection_change(self, connected: bool) -> None:
        for producer in self._producers:
            producer._on_connection_change(connected)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(Code.BAD_REQUEST, "this client is closed; connect again")
        self._home.check()


def _family(name: str) -> str:
    """Raises BadName."""
    try:
        return check_family(name)
    except TidelogError as error:
        raise typed(error) from None


def _checked(transactional_id: str) -> str:
    """Raises BadName."""
    try:
        return check_transactional_id(transactional_id)
    except TidelogError as error:
        raise typed(error) from None


def _looked_up(which: str | Moment) -> Literal[Anchor.EARLIEST, Anchor.NEW] | AtTime:
    if which == "earliest":
        return Anchor.EARLIEST
    if which == "latest":
        return Anchor.NEW
    if isinstance(which, str):
        raise bad(f"which={which!r} is none of 'earliest', 'latest' and a time")
    return AtTime(timestamp_ns(which, "which"))


def _is_same_life(
    layout: StreamMetadata, partition: int, stream_incarnation: int | None, partition_incarnation: int | None
) -> bool:
    if partition not in layout.partitions:
        return False
    return stream_incarnation in (None, layout.incarnation) and partition_incarnation in (
        None,
        layout.partitions[partition].incarnation,
    )


_Connection = TypeVar("_Connection", bound=ClosableTransport)

_START_RETRY = 0.1
_MAX_TIME = 86_400


async def connect(
    servers: str | Sequence[str] | None = None,
    *,
    namespace: str | None = None,
    name: str | None = None,
    user: str | None = None,
    password: str | None = None,
    password_file: str | Path | None = None,
    token: str | None = None,
    token_file: str | Path | None = None,
    nkey: str | Path | None = None,
    creds: str | Path | None = None,
    ca: str | Path | None = None,
    cert: str | Path | None = None,
    key: str | Path | None = None,
    tls: SSLContext | bool = False,
    tls_first: bool = False,
    tls_hostname: str | None = None,
    context: str | None = None,
    inbox_prefix: str | None = None,
    connect_timeout: float = 2.0,
    api_timeout: float = 5.0,
    start_wait: float = 0.0,
) -> Client:
    """Connect to NATS: a URL, several separated by commas, or a list; None: $TIDELOG_SERVER, or 127.0.0.1:4222. Times
    are in seconds.

    `connect_timeout` is for one attempt, `api_timeout` for a request to the controller with all its repetitions,
    `start_wait` for a server that does not listen yet because it is only starting.

    The login is one of `user` and `password`, `token`, `nkey` (file of a seed), `creds` (file); `ca`, `cert` and `key`
    are PEM files. `tls`: the server must offer TLS; or a context in place of those files. `tls_first`: TLS before its
    first line. `context`: one of `tidelog context` or of the `nats` CLI, by name. What is not given is taken from the
    environment (TIDELOG_NATS_USER, …), the file that $TIDELOG_NATS_LOGIN names, or a context; files are read again when
    a connection is made anew (see docs/security.md).

    `inbox_prefix`: answers come to subjects below it; None: $TIDELOG_INBOX_PREFIX, that of the context, or `_INBOX`.
    Give each user its own, `_INBOX.alice`, and permission for that one alone, so that nobody reads the answers of
    others.

    `namespace` is the cluster's; None: that of the context, or "tidelog". Raises NoServer, which names the URL, when no
    NATS server answers, or it refuses; BadConfig for a login that cannot be one; NotPermitted when NATS does not let it
    subscribe to its inboxes. Whether a Tidelog cluster is behind NATS shows with the first call.
    """
    # The one adapter between the client and NATS; imported when there is something to connect to.
    from tidelog.nats.login_sources import LoginSources, shown_urls, urls
    from tidelog.nats.nats_connection import NatsConnection
    from tidelog.nats.nats_errors import NatsNotListening, NatsRefused, NatsUnavailable
    from tidelog.process.allocator import learn_from_a_large_buffer
    from tidelog.process.private_files import warn_of_open
    from tidelog.process.threads import in_thread

    learn_from_a_large_buffer()
    given = {"user": user, "password": password, "token": token, "tls_hostname": tls_hostname}
    check_optional_texts(name=name, context=context, **given)
    files = {"password_file": password_file, "token_file": token_file, "nkey": nkey, "creds": creds}
    check_optional_paths(**(files := files | {"ca": ca, "cert": cert, "key": key}))
    if not isinstance(tls, (SSLContext, bool)):
        raise bad(f"tls={shown(tls)} is no ssl.SSLContext; give one, as ssl.create_default_context() makes it, or True")
    given_tls = {"tls_first": tls_first is True, "tls" if isinstance(tls, bool) else "tls_context": tls}
    if namespace is not None:
        _subjects(namespace)
    check_number("connect_timeout", connect_timeout, 0.001, _MAX_TIME)
    check_number("api_timeout", api_timeout, 0.001, _MAX_TIME)
    check_number("start_wait", start_wait, 0, _MAX_TIME)
    try:
        sources = LoginSources(
            environment=os.environ,
            server_variable="TIDELOG_SERVER",
            servers=None if servers is None else urls(servers, "servers"),
            options={**given, **files, **given_tls},
            context=context,
        )
        found = await in_thread(sources.find)
    except TidelogError as error:
        raise typed(error) from None
    inboxes = inbox_prefix or os.environ.get("TIDELOG_INBOX_PREFIX") or found.inbox_prefix or DEFAULT_INBOX_PREFIX
    subjects = _subjects(namespace or found.namespace or DEFAULT_NAMESPACE)
    _check_inbox_prefix(inboxes, subjects.namespace)
    await in_thread(lambda: warn_of_open(found.secret_files))
    label = name or f"tidelog-client@{socket.gethostname()}:{os.getpid()}"
    retry = Retry(_START_RETRY, chance=random, deadline=time.monotonic() + start_wait)
    while True:
        try:
            transport = await _connected(
                NatsConnection.connect(
                    found.servers,
                    name=label,
                    login=sources.login,
                    inbox_prefix=inboxes,
                    connect_timeout=connect_timeout,
                )
            )
        except NatsUnavailable as error:
            if not isinstance(error, NatsNotListening) or not retry.left_s(time.monotonic()):
                no_server = NoServer(Code.UNAVAILABLE, str(error))
                no_server.is_refusal = isinstance(error, NatsRefused)
                raise no_server from error
            await asyncio.sleep(retry.failed(time.monotonic()))
            continue
        try:
            transport.violations.check_answers_arrive()
        except TidelogError as error:
            await transport.close()
            raise typed(error) from None
        return Client(transport, subjects, server=shown_urls(found.servers), name=label, api_timeout=api_timeout)


async def _connected(connecting: Coroutine[Any, Any, _Connection]) -> _Connection:
    """Awaits it, and is cancelled when it is told to. nats-py waits with `asyncio.wait_for`, which in Python 3.11
    returns where it is cancelled in the moment in which it has what it waited for."""
    task = asyncio.create_task(connecting)
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait((task,))
        if not task.cancelled() and task.exception() is None:
            await task.result().close()
        raise
    return task.result()


def _subjects(namespace: str) -> Subjects:
    try:
        return Subjects(namespace)
    except TidelogError as error:
        raise typed(error) from None


def _check_inbox_prefix(prefix: str, namespace: str) -> None:
    try:
        check_inbox_prefix(prefix, namespace)
    except TidelogError as error:
        raise typed(error) from None
