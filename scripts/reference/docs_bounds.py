"""Bounds on what a stranger can send, for the table in docs/reference.md; limits are those of the code."""

from __future__ import annotations

from dataclasses import dataclass

from dataplane.broker.leading.append_requests import (
    HOLD_S,
    MAX_HELD_BYTES,
    MAX_HELD_BYTES_OF_ALL,
    MAX_QUEUED_BATCHES,
    MAX_QUEUED_BYTES,
    MAX_QUEUED_BYTES_OF_ALL,
)
from dataplane.broker.leading.append_requests import MAX_HELD as MAX_HELD_APPENDS
from dataplane.broker.leading.transaction_marks import MAX_WAITING as MAX_WAITING_MARKS
from dataplane.broker.leading.waiting_answers import MAX_WAITING as MAX_WAITING_ANSWERS
from dataplane.broker.reading.readable_role import ANSWER_COST, MAX_COLD_READS
from dataplane.broker.reading.readable_role import MAX_SERVED_BYTES as MAX_SERVED
from dataplane.replica.derived.dedup_window import LONG as LONG_ID
from dataplane.replica.derived.producer_table import MAX_TRANSACTIONAL, TRANSACTIONAL_MS
from dataplane.replica.derived.transaction_table import MAX_ABORTED
from dataplane.replica.replica_settings import ReplicaSettings
from metadata.controller.metadata_settings import MetadataSettings
from metadata.raft.framing import MAX_FIRST_FRAME_BYTES
from metadata.raft.introductions import MAX_INTRODUCTIONS
from metadata.raft.transport import INTRODUCTION_TIMEOUTS, MAX_OBSERVERS
from metadata.raft.types import CONNECTION_TIMEOUT_S
from metadata.runtime.broker_answers import MAX_STATUS_REQUESTS
from metadata.runtime.driver_context import MAX_MESSAGE_BYTES
from metadata.runtime.foreign_subjects import MAX_ANSWER_BYTES, MAX_ANSWERS, MAX_ENDPOINTS, SERVICES_WAIT_S
from metadata.runtime.foreign_subjects import MAX_BYTES_OF_ALL as MAX_BYTES_OF_SERVICES
from metadata.runtime.namespace import (
    FLOOD,
    MAX_CLAIM_BYTES,
    MAX_CLAIMS,
    MAX_CLUSTERS,
    MAX_PRESENCE_ANSWERS,
    MAX_QUESTIONS,
    SHARED_ANSWER_S,
)
from tidelog.nats.delivery import MAX_HEADER_BYTES
from tidelog.nats.micro import MAX_QUESTIONS_IN_WORK
from tidelog.nats.pace import ANSWER_BYTES_PER_S, REST
from tidelog.nats.request_queue import MAX_WAITING, MAX_WAITING_ALIKE, MAX_WAITING_BYTES
from tidelog.server.audit.log_limit import MAX_ARGUMENT, MAX_BYTES, MAX_BYTES_OF_ALL, MAX_LINES
from tidelog.server.coordinators.driver.coordinator import MAX_REQUEST_BYTES as COORDINATOR_REQUEST
from tidelog.server.coordinators.driver.coordinator import MAX_WAITING as COORDINATOR_REQUESTS
from tidelog.server.coordinators.driver.coordinator import MAX_WAITING_BYTES as COORDINATOR_BYTES
from tidelog.server.coordinators.driver.deliveries import MOST_OF_ALL, MOST_OF_FAILING, MOST_OF_LANE
from tidelog.server.coordinators.groups.consumer_group import (
    MAX_MEMBER_BYTES,
    MAX_MEMBERS,
    MAX_METADATA,
    MAX_METADATA_BYTES,
    MAX_TARGET_BYTES,
    TURN,
)
from tidelog.server.coordinators.groups.consumer_group import MAX_OFFSETS as MAX_GROUP_OFFSETS
from tidelog.server.coordinators.groups.consumer_group import MAX_PARTITIONS as MAX_GROUP_PARTITIONS
from tidelog.server.coordinators.groups.consumer_group import MAX_SUBSCRIPTIONS as MAX_GROUP_SUBSCRIPTIONS
from tidelog.server.coordinators.groups.cursor_values import MAX_CURSORS, MAX_VALUE
from tidelog.server.coordinators.groups.group_member import MAX_PATTERNS, MAX_STARS, MAX_SUBSCRIPTION
from tidelog.server.coordinators.groups.group_shard import (
    MAX_ASKED,
    MAX_FORGOTTEN,
    MAX_GROUPS,
    MAX_OF_ALL,
    MAX_REQUESTS,
    MAX_WORK,
)
from tidelog.server.coordinators.groups.pending_offsets import MAX_PENDING, MAX_PENDING_BYTES
from tidelog.server.coordinators.transactions.families import MAX_FAMILIES, MAX_TOLD
from tidelog.server.coordinators.transactions.transaction_shard import MAX_ASKED as MAX_PARTICIPANTS_ASKED
from tidelog.server.coordinators.transactions.transaction_shard import (
    MAX_HELD,
    MAX_IDS,
    MAX_IDS_OF_FAMILY,
    MAX_PARTICIPANTS_OF_ALL,
    MAX_PARTICIPANTS_OF_FAMILY,
)
from tidelog.server.coordinators.transactions.transaction_shard import MAX_REQUESTS as MAX_TRANSACTION_REQUESTS
from tidelog.server.liftbridge.gateway_producers import BUFFER_BYTES, MAX_PRODUCERS
from tidelog.server.liftbridge.port import HANDSHAKE_S, IDLE_S, MAX_CALLS, MAX_CALLS_OF_CONNECTION, MAX_CONNECTIONS
from tidelog.server.liftbridge.port import MAX_MESSAGE_BYTES as MAX_CALL_BYTES
from tidelog.server.liftbridge.publish_calls import MAX_IN_FLIGHT
from tidelog.server.liftbridge.subscribe_calls import MAX_SUBSCRIPTIONS, PREFETCH_BYTES
from tidelog.server.peers.peer_tags import MAX_SENDERS, UNHEARD_PER_S
from tidelog.server.peers.replay_window import WINDOW
from tidelog.server.routing.client_sessions import MAX_BYTES as ADOPTION_BYTES
from tidelog.server.routing.client_sessions import MAX_SESSIONS, MAX_SESSIONS_OF_CLIENT
from wire.batch.columns import MAX_EXPANSION
from wire.batch.encoded import FREE_BYTES, FREE_RECORDS, HEAVY_BYTES, HEAVY_HEADER_BYTES, MAX_RECORDS_PER_BYTE
from wire.batch.header import MAX_RECORDS
from wire.batch.message_ids import MAX_MESSAGE_IDS
from wire.batch.record_headers import MAX_RECORD_HEADERS
from wire.echo import MOST_ECHOED
from wire.internal_records.group_records import MAX_COMMITTED
from wire.internal_records.transaction_records import MAX_ADDED, MAX_PARTICIPANTS
from wire.internal_records.transaction_records import MAX_MEMBERS as MAX_FAMILY_MEMBERS
from wire.layouts import MAX_PARTITIONS
from wire.messaging.reply_subjects import MAX_VERDICTS
from wire.operations.adoption_report import MAX_REPORT_BYTES, MAX_STREAMS, SESSION_TTL_S
from wire.operations.json_codec import MAX_BITS, MAX_DEPTH
from wire.operations.operation import MAX_READING_REQUEST_BYTES, MAX_REQUEST_BYTES
from wire.operations.stream_routes import MAX_PAGE, MAX_STREAMS_ASKED, MAX_TOPOLOGY_REQUEST_BYTES
from wire.stream_config import MAX_CONFIRM_TIMEOUT_MS
from wire.turns import LOOKS


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    on: str
    """What is bounded."""
    limit: str
    where: str
    """The module that keeps it."""
    answer: str = "nothing"
    """What the sender hears: the code of an error, where there is one."""
    counter: str = ""
    """Of a broker in `cluster status --json`; empty: none."""


_replica, _metadata = ReplicaSettings(), MetadataSettings()

BOUNDS = (
    Bound(
        on="controller epoch of a probe",
        limit="the one that is applied at the broker; a later one is ignored for the lease",
        where="metadata/controller/lease.py",
        answer="the usual answer",
        counter="dropped_probes_of_unknown_epoch",
    ),
    Bound(
        on="time for which a drain stops the sequencing of a partition",
        limit=f"`drain_timeout_s` ({_metadata.drain_timeout_s:g} s), whatever the request says, and as long again when"
        " it is done",
        where="metadata/runtime/broker_answers.py",
        answer="LEADER_NOT_MOVED",
    ),
    Bound(
        on="bytes of a message between brokers and controllers",
        limit=str(MAX_MESSAGE_BYTES),
        where="metadata/runtime/driver_context.py",
        counter="dropped_metadata_messages",
    ),
    Bound(
        on="headers of a message, other than a plain publish to a stream",
        limit=f"{MAX_HEADER_BYTES} bytes",
        where="tidelog/nats/delivery.py",
        counter="dropped_headers",
    ),
    Bound(
        on="reply subjects",
        limit=f"those that can be [inboxes](security.md#inboxes); verdicts on {MAX_VERDICTS} prefixes are kept",
        where="wire/messaging/reply_subjects.py",
        counter="refused_replies",
    ),
    Bound(
        on="services that are asked for before a stream is created",
        limit=f"{MAX_ANSWERS} answers of {MAX_ANSWER_BYTES} bytes, {MAX_BYTES_OF_SERVICES} bytes of all, within"
        f" {SERVICES_WAIT_S:g} s; {MAX_ENDPOINTS} endpoints; streams that are created at a time share a question",
        where="metadata/runtime/foreign_subjects.py",
    ),
    Bound(
        on="questions to other brokers, for `cluster.status` and descriptions",
        limit="one that is under way and one that waits, of each broker, kind, stream and partitions; requests share"
        f" them; a broker answers {MAX_STATUS_REQUESTS} at a time",
        where="metadata/runtime/rounds.py",
        answer="the usual answer",
    ),
    Bound(
        on="questions which brokers are connected, `<ns>.api.presence`",
        limit=f"{MAX_PRESENCE_ANSWERS} are answered in a second, by each broker",
        where="metadata/runtime/namespace.py",
        counter="dropped_presence_questions",
    ),
    Bound(
        on="claims without a reply, `<ns>.metadata.cluster`",
        limit=f"{MAX_CLAIMS} are looked into in a second, by each broker that founds no cluster",
        where="metadata/runtime/namespace.py",
        counter="dropped_claims",
    ),
    Bound(
        on="questions of founders, `<ns>.metadata.cluster`",
        limit=f"{MAX_QUESTIONS} are answered one by one in a second, by each broker that founds no cluster",
        where="metadata/runtime/namespace.py",
        answer=f"one for all others on that subject, within {SHARED_ANSWER_S * 1000:g} ms",
        counter="dropped_claims",
    ),
    Bound(
        on="claims and questions that a founder hears",
        limit=f"beyond {FLOOD} in a second it founds no cluster, and says so in its log",
        where="metadata/runtime/namespace.py",
    ),
    Bound(
        on="bytes of a claim",
        limit=str(MAX_CLAIM_BYTES),
        where="metadata/runtime/namespace.py",
        counter="dropped_metadata_messages",
    ),
    Bound(
        on="messages between brokers that name a life that was not heard before",
        limit=f"the keys of {UNHEARD_PER_S} are derived in a second",
        where="tidelog/server/peers/peer_tags.py",
        counter="refused_messages",
    ),
    Bound(
        on="other clusters that are told of",
        limit=f"{MAX_CLUSTERS} at a time, each logged once in a minute",
        where="metadata/runtime/namespace.py",
        counter="dropped_of_other_clusters",
    ),
    Bound(
        on="lives of brokers whose messages are told from copies",
        limit=f"{MAX_SENDERS}, of each the last {WINDOW} numbers; the lives that brokers have registered last are"
        " forgotten after all others",
        where="tidelog/server/peers/peer_tags.py",
        answer="nothing",
    ),
    Bound(
        on="time of an introduction on the Raft port",
        limit=f"{INTRODUCTION_TIMEOUTS * CONNECTION_TIMEOUT_S:g} s from the accepted connection to its first"
        " frame that verifies; no byte puts it off",
        where="metadata/raft/introductions.py",
        answer="the connection ends",
        counter="dropped_raft_introductions",
    ),
    Bound(
        on="introductions on the Raft port at a time",
        limit=f"{MAX_INTRODUCTIONS}; a newcomer takes the oldest place of the address that holds most",
        where="metadata/raft/introductions.py",
        answer="the connection ends",
        counter="dropped_raft_introductions",
    ),
    Bound(
        on="bytes of a frame on the Raft port before the sender has proved that it knows the secret",
        limit=str(MAX_FIRST_FRAME_BYTES),
        where="metadata/raft/framing.py",
        answer="the connection ends",
    ),
    Bound(
        on="observers of one voter",
        limit=str(MAX_OBSERVERS),
        where="metadata/raft/transport.py",
        answer="the connection ends",
    ),
    Bound(
        on="bytes of a request to the API",
        limit=f"{MAX_REQUEST_BYTES}; {MAX_READING_REQUEST_BYTES} of one that reads",
        where="wire/operations/operation.py",
        answer="BAD_REQUEST",
        counter="refused_api_requests",
    ),
    Bound(
        on="streams of a cluster, `max_streams`",
        limit=str(_metadata.max_streams),
        where="metadata/controller/admin_requests.py",
        answer="LIMIT_REACHED",
        counter="refused_api_requests",
    ),
    Bound(
        on="partitions of a cluster, `max_partitions`",
        limit=f"{_metadata.max_partitions}, and {MAX_PARTITIONS} of a stream (BAD_CONFIG)",
        where="metadata/controller/admin_requests.py",
        answer="LIMIT_REACHED",
        counter="refused_api_requests",
    ),
    Bound(
        on="requests to the API, and questions of `$SRV.PING`, `$SRV.INFO` and `$SRV.STATS`, that wait, `api_requests`",
        limit=f"{MAX_WAITING} of each operation, and {MAX_WAITING_BYTES} bytes; those that read and ask the same,"
        f" {MAX_WAITING_ALIKE} at most, wait for one answer, and {MAX_QUESTIONS_IN_WORK} different ones of an"
        " operation are in work",
        where="tidelog/nats/request_queue.py",
        answer="BACKPRESSURE",
        counter="dropped_api_requests",
    ),
    Bound(
        on="time of the event loop for requests to the API",
        limit=f"everything else has its turn for at least {REST:g} times as long, and after {LOOKS} looks of a request"
        f" at streams, partitions, replicas or groups; {ANSWER_BYTES_PER_S} bytes of answers a second",
        where="tidelog/nats/pace.py",
        answer="the usual answer, later",
    ),
    Bound(
        on="questions for the topology and reports of adoption that wait, at each broker",
        limit=f"as requests to the API, in queues of their own, with such a share of the loop's time of their own;"
        f" {MAX_TOPOLOGY_REQUEST_BYTES} bytes of a question, {MAX_REPORT_BYTES} of a report",
        where="tidelog/server/routing/routing_service.py",
        answer="BACKPRESSURE; BAD_REQUEST for one that is too large",
        counter="dropped_routing_requests",
    ),
    Bound(
        on="a page of the topology",
        limit=f"{MAX_PAGE} streams, and what NATS carries in a message; {MAX_STREAMS_ASKED} names in a question",
        where="tidelog/server/routing/topology_pages.py",
        answer="the first of them, and where to go on",
    ),
    Bound(
        on="sessions of adoption, `adoption_sessions`, `adoption_sessions_of_client`, `adoption_bytes`",
        limit=f"{MAX_SESSIONS} of a broker, {MAX_SESSIONS_OF_CLIENT} of one connection, known by its inboxes;"
        f" {MAX_STREAMS} streams of each; {ADOPTION_BYTES} bytes of all; forgotten {SESSION_TTL_S:g} s after the last"
        " report",
        where="tidelog/server/routing/client_sessions.py",
        answer="BACKPRESSURE",
        counter="refused_adoption_reports",
    ),
    Bound(
        on="bytes of a record",
        limit="`max_record_bytes` of the stream, and what NATS carries in a message",
        where="wire/batch/encoded.py",
        answer="RECORD_TOO_LARGE",
        counter="dropped_too_large",
    ),
    Bound(
        on="decompressed bytes of a batch",
        limit="what NATS carries in a message",
        where="wire/batch/columns.py",
        answer="CORRUPT_BATCH",
        counter="dropped_corrupt_batch",
    ),
    Bound(
        on="decompressed bytes of a batch for each byte of it, `batch_expansion`",
        limit=f"{MAX_EXPANSION}, but {FREE_BYTES} bytes are always allowed",
        where="wire/batch/encoded.py",
        answer="LIMIT_REACHED",
        counter="dropped_too_dense",
    ),
    Bound(
        on="records of a batch for each byte of it, `batch_records`",
        limit=f"{MAX_RECORDS_PER_BYTE}, but {FREE_RECORDS} are always allowed, and never more than {MAX_RECORDS}",
        where="wire/batch/encoded.py",
        answer="LIMIT_REACHED",
        counter="dropped_too_dense",
    ),
    Bound(
        on="time that a batch is decoded on the event loop",
        limit=f"batches of more than {HEAVY_BYTES} bytes when decompressed, or {HEAVY_HEADER_BYTES} and headers, are"
        " decoded by one thread of the broker; what comes behind them keeps its order",
        where="dataplane/broker/leading/append_requests.py",
        answer="no error",
    ),
    Bound(
        on="headers of a record, `record_headers`",
        limit=f"{MAX_RECORD_HEADERS}, of a batch, an envelope or a plain publish",
        where="wire/batch/record_headers.py",
        answer="LIMIT_REACHED; of an envelope at its ack inbox",
        counter="dropped_too_dense",
    ),
    Bound(
        on="batches of a partition that wait to be decoded, `decode_queue`",
        limit=f"{MAX_QUEUED_BATCHES}, and {MAX_QUEUED_BYTES} bytes; {MAX_QUEUED_BYTES_OF_ALL} bytes of all partitions"
        " of a broker",
        where="dataplane/broker/leading/append_requests.py",
        answer="BACKPRESSURE",
        counter="dropped_decode_queue",
    ),
    Bound(
        on="batches of a partition that wait until their partitioning version is applied, `held_appends`",
        limit=f"{MAX_HELD_APPENDS}, and {MAX_HELD_BYTES} bytes; {MAX_HELD_BYTES_OF_ALL} bytes of all partitions of"
        f" a broker; {HOLD_S:g} s each",
        where="dataplane/broker/leading/append_requests.py",
        answer="BACKPRESSURE; UNAVAILABLE after that time",
    ),
    Bound(
        on="producers of a partition that are remembered for their transactions, `transactional_producers`",
        limit=f"{MAX_TRANSACTIONAL}; a new one is taken when the one that wrote longest ago did so"
        f" {TRANSACTIONAL_MS // 3_600_000} h ago",
        where="dataplane/replica/derived/producer_table.py",
        answer="LIMIT_REACHED",
    ),
    Bound(
        on="aborted transactions of a partition whose records are in the log, `aborted_transactions`",
        limit=str(MAX_ABORTED),
        where="dataplane/replica/derived/transaction_table.py",
        answer="LIMIT_REACHED",
    ),
    Bound(
        on="ends of transactions in a partition that wait for their commit, `waiting_marks`",
        limit=str(MAX_WAITING_MARKS),
        where="dataplane/broker/leading/transaction_marks.py",
        answer="BACKPRESSURE",
    ),
    Bound(
        on="message ids that are remembered, `message_ids`",
        limit=(
            f"{ReplicaSettings().max_message_ids} of a partition, {ReplicaSettings().max_message_ids_of_all} of all"
            f" that a broker leads; those above {LONG_ID} bytes as hashes"
        ),
        where="dataplane/replica/leader/repetitions.py",
        answer="BACKPRESSURE, to records with new ids",
        counter="dropped_refused",
    ),
    Bound(
        on="records of a client's batch that says they have message ids, `batch_message_ids`",
        limit=str(MAX_MESSAGE_IDS),
        where="wire/batch/encoded.py",
        answer="LIMIT_REACHED",
        counter="dropped_too_dense",
    ),
    Bound(
        on="bare publishes that were repetitions, or not as they expect, and wait for their answers, `waiting_answers`",
        limit=f"{MAX_WAITING_ANSWERS} of a partition, of either kind",
        where="dataplane/broker/leading/waiting_answers.py",
        answer="BACKPRESSURE",
    ),
    Bound(
        on="bytes that are appended and not committed",
        limit="`max_uncommitted_bytes` of a partition, `max_uncommitted_bytes_of_all` of a broker",
        where="dataplane/replica/leader/admission.py",
        answer="BACKPRESSURE",
        counter="dropped_refused",
    ),
    Bound(
        on="bytes and records a second of a partition",
        limit="`producer_byte_rate` and `producer_record_rate` of the stream, see [Quotas](security.md#quotas)",
        where="dataplane/replica/leader/quota.py",
        answer="BACKPRESSURE",
        counter="dropped_over_quota",
    ),
    Bound(
        on="time that an acknowledged publish waits",
        limit=f"`confirm_timeout_ms` of the request, {MAX_CONFIRM_TIMEOUT_MS // 1000} s at most",
        where="dataplane/broker/leading/appending.py",
        answer="CONFIRM_TIMEOUT",
    ),
    Bound(
        on="time that a consumer waits for records",
        limit=f"`max_wait_ms` of the request, `max_fetch_wait` ({_replica.max_fetch_wait:g} s) at most",
        where="dataplane/replica/consumers.py",
        answer="an answer without records",
    ),
    Bound(
        on="consumers that wait for records of a partition, `max_waiting_fetches`",
        limit=str(_replica.max_waiting_fetches),
        where="dataplane/replica/consumers.py",
        answer="BACKPRESSURE",
        counter="dropped_waiting_fetches",
    ),
    Bound(
        on="those of one client, known by its inboxes, `max_waiting_fetches_per_client`",
        limit=str(_replica.max_waiting_fetches_per_client),
        where="dataplane/replica/consumers.py",
        answer="BACKPRESSURE",
        counter="dropped_waiting_fetches",
    ),
    Bound(
        on="bytes that consumers are sent from memory before anything else has its turn, `hot_reads`",
        limit=f"{MAX_SERVED} of all partitions of a broker, each answer counted with {ANSWER_COST} more",
        where="dataplane/broker/reading/readable_role.py",
        answer="BACKPRESSURE",
        counter="dropped_hot_reads",
    ),
    Bound(
        on="consumers of a partition that wait for the disk, `cold_reads`",
        limit=str(MAX_COLD_READS),
        where="dataplane/broker/reading/readable_role.py",
        answer="BACKPRESSURE",
        counter="dropped_cold_reads",
    ),
    Bound(
        on="requests that wait for a coordinator, `group_requests`, `transaction_requests`",
        limit=f"{COORDINATOR_REQUESTS}, or {COORDINATOR_BYTES >> 20} MiB of them; {COORDINATOR_REQUEST >> 10} KiB each;"
        f" {MAX_HELD} for the end of one transaction",
        where="tidelog/server/coordinators/driver/coordinator.py",
        answer="BACKPRESSURE; BAD_REQUEST for one that is too large",
        counter="refused_coordinator_requests",
    ),
    Bound(
        on="what a coordinator of transactions keeps: `transactional_ids`, `transactional_families`,"
        " `transaction_participants`; of one family `family_ids`, `family_participants`",
        limit=f"{MAX_IDS} ids, {MAX_IDS_OF_FAMILY} of one family, {MAX_FAMILIES} families with their last commits,"
        f" {MAX_PARTICIPANTS_OF_ALL} partitions and groups that take part, {MAX_PARTICIPANTS_OF_FAMILY} of one family;"
        f" {MAX_PARTICIPANTS} of one transaction, {MAX_ADDED} added at once, {MAX_FAMILY_MEMBERS} transactions of a"
        f" family committed together, in {MAX_TOLD} partitions and groups",
        where="tidelog/server/coordinators/transactions/transaction_shard.py",
        answer="LIMIT_REACHED; BAD_REQUEST for a request with more",
        counter="refused_coordinator_limits",
    ),
    Bound(
        on="requests of a coordinator of transactions to other brokers that are under way",
        limit=f"{MOST_OF_ALL}, {MOST_OF_LANE} of them to one partition; {MOST_OF_FAILING} to those that do not answer",
        where="tidelog/server/coordinators/driver/deliveries.py",
        answer="nobody is asking; the transactions end later",
    ),
    Bound(
        on="offsets of transactions that have not ended, `pending_offsets`",
        limit=f"of {MAX_PENDING} producers in groups of one coordinator; {MAX_PENDING_BYTES >> 10} KiB of one producer"
        " in one group",
        where="tidelog/server/coordinators/groups/pending_offsets.py",
        answer="LIMIT_REACHED",
        counter="refused_coordinator_limits",
    ),
    Bound(
        on="what a coordinator keeps: `groups`, `group_members`, `group_offsets`, `cursors`",
        limit=f"{MAX_GROUPS}, {MAX_OF_ALL.members} ({MAX_MEMBERS} of a group), {MAX_OF_ALL.offsets}"
        f" ({MAX_GROUP_OFFSETS} of a group), {MAX_CURSORS}",
        where="tidelog/server/coordinators/groups/group_shard.py",
        answer="LIMIT_REACHED",
        counter="refused_coordinator_limits",
    ),
    Bound(
        on="bytes that a coordinator keeps: of members' ids and subscriptions, `group_member_bytes`; of the metadata of"
        " offsets, `group_metadata_bytes`",
        limit=f"{MAX_MEMBER_BYTES >> 20} MiB of a group, {MAX_OF_ALL.member_bytes >> 20} MiB of all;"
        f" {MAX_METADATA_BYTES >> 20} MiB of a group, {MAX_OF_ALL.metadata_bytes >> 20} MiB of all",
        where="tidelog/server/coordinators/groups/consumer_group.py",
        answer="LIMIT_REACHED",
        counter="refused_coordinator_limits",
    ),
    Bound(
        on="patterns of a member, `member_patterns`; stars of one, `pattern_stars`; different subscriptions of the"
        " members of a group, `group_subscriptions`",
        limit=f"{MAX_PATTERNS}; {MAX_STARS}; {MAX_GROUP_SUBSCRIPTIONS}",
        where="tidelog/server/coordinators/groups/group_member.py",
        answer="LIMIT_REACHED",
        counter="refused_coordinator_limits",
    ),
    Bound(
        on="work of a coordinator of groups before others have their turn on the event loop",
        limit=f"{MAX_REQUESTS} requests, that look at {MAX_ASKED} members and offsets, or one; {MAX_WORK} names,"
        f" partitions and offsets that groups look at, or the step of one group; {TURN} partitions, members and names"
        f" in computing its targets; {MAX_FORGOTTEN} records of a group that is forgotten",
        where="tidelog/server/coordinators/groups/group_shard.py",
        answer="no error",
    ),
    Bound(
        on="work of a coordinator of transactions before others have their turn on the event loop",
        limit=f"{MAX_TRANSACTION_REQUESTS} requests; {MAX_PARTICIPANTS_ASKED} participants and transactional ids, or"
        " one request",
        where="tidelog/server/coordinators/transactions/transaction_shard.py",
        answer="no error",
    ),
    Bound(
        on="what a member asks for, commits, and gets",
        limit=f"{MAX_SUBSCRIPTION} streams and patterns; {MAX_COMMITTED} offsets at once, with {MAX_METADATA}"
        f" characters each",
        where="tidelog/server/coordinators/groups/group_member.py",
        answer="BAD_REQUEST",
    ),
    Bound(
        on="partitions of a group",
        limit=f"{MAX_GROUP_PARTITIONS}, {MAX_TARGET_BYTES >> 10} KiB in the record of a member; the first by name",
        where="tidelog/server/coordinators/groups/consumer_group.py",
        answer="those beyond are assigned to nobody: members and the coordinator say it in their logs, and"
        " `tidelog group describe`",
        counter="group_partitions_left_out",
    ),
    Bound(
        on="a cursor's value",
        limit=f"{MAX_VALUE} bytes",
        where="tidelog/server/coordinators/groups/cursor_values.py",
        answer="BAD_REQUEST",
    ),
    Bound(
        on="positions in a follower's request",
        limit="an offset above the LEO is refused and changes nothing, a durable offset counts up to the offset",
        where="dataplane/replica/leader/leader.py",
        answer="OFFSET_AHEAD",
    ),
    Bound(
        on="producers that a partition remembers",
        limit="`max_producers_per_partition`; the one that has been silent for longest is forgotten",
        where="dataplane/replica/derived/producer_table.py",
        answer="UNKNOWN_PRODUCER_ID, the one that was forgotten",
    ),
    Bound(
        on="producers that a broker remembers, of all its partitions, `producers`",
        limit="`max_producers_of_all`, but for what comes to its followers; those that are known go on",
        where="dataplane/broker/leading/bounds_of_all.py",
        answer="BACKPRESSURE, to those that are new in a partition",
    ),
    Bound(
        on="depth and numbers of JSON",
        limit=f"{MAX_DEPTH} objects and lists inside one another; {MAX_BITS} bits",
        where="wire/operations/json_codec.py",
        answer="BAD_REQUEST",
        counter="refused_api_requests",
    ),
    Bound(
        on="values that errors and the log repeat",
        limit=f"quoted, and cut after {MOST_ECHOED} characters; no argument of a log line has control characters, or"
        f" more than {MAX_ARGUMENT} characters; a failed command shows no control characters",
        where="wire/echo.py",
        answer="its value, so far",
    ),
    Bound(
        on="lines of the log",
        limit=f"{MAX_LINES} lines and {MAX_BYTES} bytes of a kind in a second, {MAX_BYTES_OF_ALL} bytes of all; the"
        " next line says how many were left out",
        where="tidelog/server/audit/log_limit.py",
    ),
    Bound(
        on="LeaderEpoch and offset of an answer to a client",
        limit="an acknowledgement of a later LeaderEpoch than the request named, or of an offset outside 63 bits, is"
        " left alone; where no leader knows a LeaderEpoch that an answer told, the metadata's counts",
        where="tidelog/client/producer/accumulator.py",
    ),
    Bound(
        on="calls on the port for [Liftbridge's clients](liftbridge.md)",
        limit=f"{MAX_CALLS} at once, {MAX_CALLS_OF_CONNECTION} of one connection; requests of {MAX_CALL_BYTES} bytes",
        where="tidelog/server/liftbridge/port.py",
        answer="gRPC's `resource exhausted`; a connection with too many waits",
    ),
    Bound(
        on="connections to that port",
        limit=f"{MAX_CONNECTIONS}; {HANDSHAKE_S} s to greet, {IDLE_S} s without a call",
        where="tidelog/server/liftbridge/port.py",
        answer="it is closed by gRPC, which counts nothing",
    ),
    Bound(
        on="subscriptions on that port",
        limit=f"{MAX_SUBSCRIPTIONS}, each with {PREFETCH_BYTES} bytes that its client has not taken",
        where="tidelog/server/liftbridge/subscribe_calls.py",
        answer="UNAVAILABLE of gRPC; a client that does not read is sent nothing",
    ),
    Bound(
        on="publishes on that port that are not acknowledged",
        limit=f"of {MAX_PRODUCERS} streams and levels, {BUFFER_BYTES} bytes each; {MAX_IN_FLIGHT} of one PublishAsync,"
        " those whose answers were not read counted",
        where="tidelog/server/liftbridge/publish_calls.py",
        answer="UNAVAILABLE of gRPC; a PublishAsync is read no more",
    ),
)
