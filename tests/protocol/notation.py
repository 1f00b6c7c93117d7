"""How transcripts write down effects, messages and states.

Offsets are as in the code: every end is EXCLUSIVE, the high watermark (HW) too. `[2,5)` are the records 2, 3 and 4;
`e3` is LeaderEpoch 3; `p4` is partition epoch 4; `1:ab 3:c` is a log with two records of LeaderEpoch 1 and one of
LeaderEpoch 3; in `1:.b` the first was compacted away; `b#7` is the answer to request 7 of b; `epochs 1@0 3@2` is the
leader-epoch cache. `+` and `-` in a log are markers: the end of a transaction, committed or aborted; `open 1@3` is the
transaction of producer 1 that begins at 3, `ended 3..5` one whose marker at 5 is not known to be committed, `aborted
1@3..5` one with its marker, and LSO the last stable offset. A `repetition of ?` is one of a record whose offset is not
known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import assert_never

from dataplane.broker.following.follower_driver import FollowerDriver
from dataplane.broker.following.leader_answers import decode_snapshot_answer
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.roles.role_answers import each_reply
from dataplane.log.partition_log import PartitionLog
from dataplane.log.recovery.damage import Quarantine
from dataplane.replica.derived.epochs import EpochEntry
from dataplane.replica.derived.transaction_table import NO_TRANSACTIONS
from dataplane.replica.follower.follower import Follower
from dataplane.replica.follower.follower_states import (
    Diverged,
    Fetching,
    Idle,
    Installing,
    Leaderless,
    Reconciling,
    Syncing,
    Truncating,
)
from dataplane.replica.leader.isr import CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from dataplane.replica.leader.leader import Leader
from dataplane.replica.replica_effects import (
    AppendReplicated,
    CompleteDrain,
    CompleteProduce,
    InstallSnapshot,
    Notify,
    ProposeIsr,
    ProposePause,
    Refuse,
    RefuseConsumer,
    ReportCutover,
    ReportLeader,
    ReportLoss,
    RequestSync,
    Respond,
    SendFetch,
    SendOffsetRequest,
    SendSnapshot,
    SendSnapshotRequest,
    ServeConsumer,
    StartOver,
    Truncate,
    VerifyOwnCopy,
)
from dataplane.replica.replies import (
    AppendReply,
    BareReplies,
    EnvelopeReply,
    ExpectationReply,
    LocalReply,
    MarkReply,
    MoveRequest,
    ProduceToken,
    Reader,
)
from tests.protocol.running_broker import CLIENT, HOLE, Asked, Broker, DiskCall, Message, Told, records_of, versions_of
from wire.batch import iter_batches, verify_body
from wire.errors import CorruptData, TidelogError
from wire.messaging.transport import NO_RESPONDERS
from wire.messaging.transport import Message as NatsMessage
from wire.partition_messages.append import UNKNOWN_OFFSET
from wire.partition_messages.replication import HEADER_SIZE, LOG_START_HEADER, SYNC_HEADER, decode_header, offset_of
from wire.protobuf.tidelog_pb2 import (
    LeaderEpochOffsetRequest,
    LeaderEpochOffsetResponse,
    PartitionNotification,
    ReplicationRequest,
    SnapshotRequest,
)
from wire.types import (
    FIRST_TRANSACTIONAL_ID,
    BrokerId,
    CutoverReport,
    IsrChange,
    LeaderReport,
    LossReport,
    Offset,
    PartitionState,
    PartitionView,
    PauseChange,
    Withdrawal,
)


def error_shown(error: TidelogError) -> str:
    details = " ".join(f"{key}={value}" for key, value in sorted(error.details.items()))
    return f"{error.code.name} {details}".rstrip()


def asked_shown(asked: Asked | None) -> str:
    if asked is None:
        return "(nobody)"
    return (
        f"{asked.replica}#{asked.number}"
        if asked.kind == "replicate"
        else f"{asked.replica} .{asked.kind}#{asked.number}"
    )


def token_shown(token: ProduceToken | Reader | MoveRequest) -> str:
    match token:
        case AppendReply(inbox=inbox, response=response):
            duplicate = f" (a duplicate of what is at {response.base_offset})" if response.duplicate else ""
            places = zip(response.repeated_records, response.original_offsets, strict=True)
            repeated = "".join(
                f" (record {place} is a repetition of {'?' if offset == UNKNOWN_OFFSET else offset})"
                for place, offset in places
            )
            return inbox.removeprefix(CLIENT) + duplicate + repeated
        case Reader(inbox=inbox) | MarkReply(inbox=inbox):
            return inbox.removeprefix(CLIENT)
        case BareReplies(runs=runs) as token:
            replies = [reply.decode() for _, run in runs for reply in each_reply(run) if reply is not None]
            offsets = " ".join(str(offset) for offset, _ in runs)
            repeated = f" (a repetition of {offsets})" if token.is_repetition else ""
            return " ".join(reply.removeprefix(CLIENT) for reply in replies) + repeated
        case ExpectationReply(reply=reply):
            return reply.decode().removeprefix(CLIENT)
        case MoveRequest(move=move):
            return f"move to {move.target}"
        case EnvelopeReply() | LocalReply():
            raise TypeError(f"no transcript has {token!r}")
        case _:
            assert_never(token)


def members_shown(change: IsrChange) -> str:
    return " ".join(f"{member.broker}/{member.incarnation}" for member in change.new_isr)


def effect_shown(effect: Told, asked_on: Callable[[str], Asked | None]) -> str:
    def inbox_shown(inbox: str) -> str:
        return asked_shown(asked_on(inbox))

    match effect:
        case str():
            return effect
        case Respond(_, inbox, offset, max_bytes, high_watermark, sync_to):
            what = f"from {offset}" if max_bytes else "empty"
            return f"answer {inbox_shown(inbox)} {what} HW={high_watermark}{_sync_shown(sync_to)}"
        case Refuse(inbox, error):
            return f"refuse {inbox_shown(inbox)} {error_shown(error)}"
        case Notify(replica):
            return f"notify {replica}"
        case ProposeIsr(change):
            return f"propose ISR {members_shown(change)} at p{change.expected_epoch} ({change.reason})"
        case CompleteProduce(ExpectationReply() as token, None):
            return f"the place that {token_shown(token)} expected is committed"
        case ProposePause(change):
            return f"ask to {'pause' if change.paused else 'resume'} at p{change.expected_epoch}"
        case ReportCutover(report):
            return f"report that version {report.version} begins at {report.end_offset}"
        case CompleteProduce(token, error):
            return f"ack {token_shown(token)}" if error is None else f"end {token_shown(token)} {error_shown(error)}"
        case CompleteDrain(token, error):
            return (
                f"drained {token_shown(token)}"
                if error is None
                else f"end drain {token_shown(token)} {error_shown(error)}"
            )
        case ServeConsumer(token, offset, max_bytes, end):
            return f"serve {token_shown(token)} " + (f"[{offset},{end})" if max_bytes else f"empty HW={end}")
        case RefuseConsumer(token, error):
            return f"refuse {token_shown(token)} {error_shown(error)}"
        case VerifyOwnCopy(offset, reason):
            return f"verify own copy at {offset} ({reason})"
        case SendFetch(sequence, offset, durable_end, progress_only, refused_batch, no_space, disk_hangs):
            durable = "" if durable_end is None else f" durable={durable_end}"
            refused = f" refused={refused_batch}" if refused_batch else ""
            refused += (" without room" if no_space else "") + (" disk hangs" if disk_hangs else "")
            if progress_only:
                return f"report #{sequence} end={offset}{durable}{refused}"
            return f"fetch #{sequence} from {offset}{durable}{refused}"
        case SendOffsetRequest(asked_epoch, number):
            return f"ask .offset#{number} where e{asked_epoch} ends"
        case Truncate(offset, gives_up):
            return f"truncate to {offset}" + (", set aside what was committed" if gives_up else "")
        case StartOver():
            return "drop the log, begin at 0"
        case SendSnapshot(_, inbox, offset, position, _):
            return f"answer {inbox_shown(inbox)} the state at {offset}, from byte {position}"
        case SendSnapshotRequest(number, offset, position):
            where = "the log start" if offset is None else offset
            return f"ask .checkpoint#{number} for the state at {where}, from byte {position}"
        case InstallSnapshot(offset, _, deleted_end, gives_up):
            deleted = f", as a copy without what was deleted below {deleted_end}" if deleted_end else ""
            deleted += ", set aside what was committed" if gives_up else ""
            return f"drop the log, begin at {offset} with the leader's state{deleted}"
        case AppendReplicated(high_watermark):
            return f"append what came, HW={high_watermark}"
        case ReportLeader(report):
            return f"report leader {report.leader} e{report.leader_epoch} p{report.epoch}"
        case ReportLoss(loss):
            return f"report that {loss.leader} lacks committed records in e{loss.leader_epoch}"
        case RequestSync():
            return "sync"
        case _:
            assert_never(effect)


def _sync_shown(sync_to: Offset) -> str:
    return f" sync-to={sync_to}" if sync_to else ""


def message_shown(message: Message, outcome: str = "") -> str:
    """`outcome`: of a disk call that was made."""
    body = message.body
    match body:
        case NatsMessage():
            text = _nats_shown(body, message.asked)
        case DiskCall(label, _):
            text = outcome or label
        case IsrChange():
            text = f"ISR {members_shown(body)} at p{body.expected_epoch}"
        case LeaderReport():
            text = f"report of {body.leader} e{body.leader_epoch} p{body.epoch}"
        case PauseChange():
            text = f"{'pause' if body.paused else 'resume'} at p{body.expected_epoch}"
        case CutoverReport():
            text = f"cutover to version {body.version} at {body.end_offset} in e{body.leader_epoch}"
        case LossReport():
            text = f"loss in the log of {body.leader} in e{body.leader_epoch}: {body.reason}"
        case Withdrawal():
            text = f"withdrawal at p{body.expected_epoch}: {body.reason}"
        case PartitionView():
            text = f"view {view_shown(body)}"
        case _:
            assert_never(body)
    return f"{message.link} {text}"


def _nats_shown(message: NatsMessage, asked: Asked | None) -> str:
    data = message.data
    if message.status == NO_RESPONDERS:
        return "503"
    if ".notify." in message.subject:
        return f"notification e{PartitionNotification.FromString(data).leader_epoch}"
    if message.subject.endswith(".replicate"):
        return _fetch_shown(ReplicationRequest.FromString(data))
    assert asked is not None
    if message.subject.endswith(".offset"):
        looks = LeaderEpochOffsetRequest.FromString(data)
        return f".offset#{asked.number} e{looks.current_leader_epoch} asks for e{looks.leaderEpoch}"
    if message.subject.endswith(".checkpoint"):
        wants = SnapshotRequest.FromString(data)
        where = wants.offset if wants.HasField("offset") else "the log start"
        return f".checkpoint#{asked.number} e{wants.leader_epoch} the state at {where}, from byte {wants.position}"
    return _answer_shown(message, asked)


def _fetch_shown(fetch: ReplicationRequest) -> str:
    durable = f" durable={fetch.durable_offset}" if fetch.HasField("durable_offset") else ""
    kind = "progress" if fetch.progress_only else "fetch"
    room = (" without room" if fetch.no_space else "") + (" disk hangs" if fetch.disk_hangs else "")
    if fetch.deleted_end > fetch.offset:
        room += f" deleted={fetch.deleted_end}"
    if fetch.log_start_offset:
        room += f" start={fetch.log_start_offset}"
    return f"{kind} #{fetch.sequence} e{fetch.leaderEpoch} offset={fetch.offset}{durable}{room}"


def _answer_shown(message: NatsMessage, asked: Asked) -> str:
    error = TidelogError.from_headers(message.headers)
    if asked.kind == "offset":
        found = LeaderEpochOffsetResponse.FromString(message.data)
        epoch = found.current_leader_epoch if error is None else error.details.get("leader_epoch", "-")
        what = error_shown(error) if error else f"e{found.leader_epoch} ends at {found.endOffset}"
        return f".offset#{asked.number} e{epoch} {what}"
    if asked.kind == "checkpoint":
        answer = decode_snapshot_answer(asked.number, message)
        end = answer.position + len(answer.piece)
        what = f"the state at {answer.offset}, bytes [{answer.position},{end}) of {answer.size}"
        what = error_shown(error) if error else what
        return f".checkpoint#{asked.number} e{answer.leader_epoch} {what}"
    epoch, high_watermark = decode_header(message.data)
    what = error_shown(error) if error else _batches_shown(message.data[HEADER_SIZE:])
    told = _sync_shown(offset_of(message.headers, SYNC_HEADER))
    if start := offset_of(message.headers, LOG_START_HEADER):
        told += f" start={start}"
    return f"answer #{asked.number} e{epoch} HW={high_watermark}{told} {what}"


def _batches_shown(data: bytes) -> str:
    found = []
    try:
        for at, header in iter_batches(data):
            verify_body(data, at, header)
            found.append(header)
    except CorruptData:
        return "damaged"
    return f"[{found[0].base_offset},{found[-1].end_offset})" if found else "empty"


def brokers_shown(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(brokers) or "-"


def view_shown(view: PartitionView) -> str:
    eligible = f" eligible {brokers_shown(view.eligible)}" if view.eligible else ""
    readonly = (" paused" if view.paused else "") + (" readonly" if view.readonly else "")
    purged = f" purged to {view.purged_end}" if view.purged_end else ""
    purged += f" loss e{view.loss_epoch}" if view.loss_epoch else ""
    purged += f" back {','.join(member.broker for member in view.returned)}" if view.returned else ""
    return (
        f"p{view.epoch} e{view.leader_epoch} leader {view.leader or '-'} ISR {brokers_shown(view.isr)}{eligible}"
        f"{readonly}{purged}{_layout_shown(view)}"
    )


def _layout_shown(view: PartitionView) -> str:
    """Nothing in the stream's first layout."""
    version = f" version {view.partitioning_version}" if view.partitioning_version > 1 else ""
    if view.state is not PartitionState.ACTIVE:
        version += f" {view.state.value}"
    elif not view.is_routed:
        version += " made ready"
    if view.awaits_cutover:
        return version + " cutover awaited"
    return version + (" sources awaited" if view.awaits_sources else "")


def entries_shown(entries: Sequence[EpochEntry]) -> str:
    return " ".join(f"{entry.epoch}@{entry.start}" for entry in entries)


def log_shown(log: PartitionLog) -> str:
    runs: list[list[str]] = []
    end = log.log_start_offset
    for offset, epoch, value in records_of(log):
        if not runs or runs[-1][0] != str(epoch):
            runs.append([str(epoch), ""])
        runs[-1][1] += HOLE * (offset - end) + value
        end = Offset(offset + 1)
    start = f"({log.log_start_offset}..) " if log.log_start_offset else ""
    return start + (" ".join(":".join(run) for run in runs) or "empty")


def transactions_shown(log: PartitionLog, high_watermark: Offset) -> str:
    known = log.transactions.known
    if known == NO_TRANSACTIONS:
        return ""
    found = [f"open {_producer_shown(identity)}@{opened.first}" for identity, opened in known.open.items()]
    found += [f"ended {ended.first}..{ended.marker}" for ended in known.ended]
    found += [f"aborted {_producer_shown(each.producer_id)}@{each.first}..{each.marker}" for each in known.aborted]
    return f" | LSO {log.last_stable(high_watermark)} {', '.join(found)}"


def _producer_shown(producer_id: int) -> int:
    return producer_id - FIRST_TRANSACTIONAL_ID


def broker_shown(broker: Broker) -> str:
    role = broker.role
    log = broker.log
    epochs = entries_shown(log.epochs.entries)
    ends = f"log {log_shown(log)} | LEO {log.log_end_offset}"
    point = log.compaction_point
    if point.deleted_end:
        ends += f" (tombstones gone below {point.deletions_end}, what they delete below {point.deleted_end})"
    versions = [f"{version}@{offset}" for offset, version in versions_of(log)]
    if versions:
        ends += f" of versions {' '.join(versions)}"
    if log.durable_end != log.log_end_offset:
        ends += f" synced {log.durable_end}"
    for report in Quarantine(broker.disk, log.directory).reports():
        if report["lost"]:
            ends += f" (set aside from {report['sound_end']}, committed to {report['known_end']})"
    tail = ""
    match role:
        case None:
            kind = "no role" if broker.running else "down"
            return f"{broker.name}  {kind} | {ends} | epochs {epochs}{transactions_shown(log, broker.high_watermark)}"
        case LeaderDriver(core=core):
            kind, tail = "leads", f" | ISR {isr_shown(core)}"
        case FollowerDriver(core=core):
            kind = state_shown(core)
        case _:
            assert_never(role)
    tail += transactions_shown(log, broker.high_watermark)
    return f"{broker.name}  {kind} e{role.leader_epoch} | {ends} HW {role.high_watermark} | epochs {epochs}{tail}"


def state_shown(follower: Follower) -> str:
    state = follower.state
    match state:
        case Reconciling():
            return f"reconciling (asked for e{state.asked}, cut {state.cut})"
        case Truncating():
            return "truncating"
        case Installing():
            return f"installing (has {state.position} bytes)"
        case Fetching():
            return f"fetching #{state.sequence}"
        case Idle():
            return f"idle #{state.sequence}"
        case Syncing():
            return "syncing"
        case Leaderless():
            return "leaderless"
        case Diverged():
            return "diverged"
        case _:
            assert_never(state)


def isr_shown(leader: Leader) -> str:
    state = leader.isr
    members = ",".join(sorted(state.members))
    match state:
        case CommittedIsr():
            return members
        case PendingExpandIsr(added=added):
            return f"{members} (+{added} proposed)"
        case PendingShrinkIsr(change=change):
            proposed = {member.broker for member in change.new_isr}
            return f"{members} (-{','.join(sorted(state.members - proposed))} proposed)"
        case _:
            assert_never(state)
