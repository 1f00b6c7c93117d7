"""How transcripts write down effects, messages and states.

Offsets are as in the code: every end is EXCLUSIVE, the high watermark (HW) too. `[2,5)` are the records 2, 3 and 4;
`e3` is LeaderEpoch 3; `p4` is partition epoch 4; `1:ab 3:c` is a log with two records of LeaderEpoch 1 and one of
LeaderEpoch 3; in `1:.b` the first was compacted away; `b#7` is the answer to request 7 of b; `epochs 1@0 3@2` is the
leader-epoch cache.
"""

from __future__ import annotations

from typing import assert_never

from dataplane.replica.effects import (
    AppendReplicated,
    CompleteDrain,
    CompleteProduce,
    InstallCheckpoint,
    Notify,
    ProposeIsr,
    Refuse,
    RefuseConsumer,
    ReportLeader,
    RequestSync,
    Respond,
    SendCheckpoint,
    SendCheckpointRequest,
    SendFetch,
    SendOffsetRequest,
    ServeConsumer,
    StartOver,
    Truncate,
    VerifyOwnCopy,
)
from dataplane.replica.follower import Follower
from dataplane.replica.follower_states import (
    CheckpointAnswer,
    Fetching,
    Idle,
    Installing,
    Leaderless,
    OffsetAnswer,
    Reconciling,
    Syncing,
    Truncating,
)
from dataplane.replica.isr import CommittedIsr, PendingExpandIsr, PendingShrinkIsr
from dataplane.replica.leader import Leader
from dataplane.replica.requests import CheckpointFetch, FollowerFetch
from tests.protocol.memory_log import Batch, MemoryLog, entries_shown
from tests.protocol.partition import (
    Answer,
    Broker,
    CutDone,
    Message,
    NoResponders,
    Notification,
    OffsetRequest,
    Synced,
    Told,
)
from wire.errors import TidelogError
from wire.types import BrokerId, IsrChange, LeaderReport, Offset, PartitionView


def error_shown(error: TidelogError) -> str:
    details = " ".join(f"{key}={value}" for key, value in sorted(error.details.items()))
    return f"{error.code.name} {details}".rstrip()


def inbox_shown(inbox: str) -> str:
    if inbox.startswith("checkpoint#"):
        _, replica, number, _ = inbox.split("#")
        return f"{replica} .checkpoint#{number}"
    return "#".join(inbox.split("#")[:2]) or "(nobody)"


def members_shown(change: IsrChange) -> str:
    return " ".join(f"{member.broker}/{member.incarnation}" for member in change.new_isr)


def effect_shown(effect: Told) -> str:
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
        case CompleteProduce(token, error):
            return f"ack {token}" if error is None else f"end {token} {error_shown(error)}"
        case CompleteDrain(token, error):
            return f"drained {token}" if error is None else f"end drain {token} {error_shown(error)}"
        case ServeConsumer(token, offset, max_bytes, high_watermark):
            return f"serve {token} " + (f"[{offset},{high_watermark})" if max_bytes else f"empty HW={high_watermark}")
        case RefuseConsumer(token, error):
            return f"refuse {token} {error_shown(error)}"
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
        case Truncate(offset):
            return f"truncate to {offset}"
        case StartOver():
            return "drop the log, begin at 0"
        case SendCheckpoint(_, inbox, offset, position, _):
            return f"answer {inbox_shown(inbox)} the state at {offset}, from byte {position}"
        case SendCheckpointRequest(number, offset, position):
            where = "the log start" if offset is None else offset
            return f"ask .checkpoint#{number} for the state at {where}, from byte {position}"
        case InstallCheckpoint(offset, _, deleted_end):
            deleted = f", as a copy without what was deleted below {deleted_end}" if deleted_end else ""
            return f"drop the log, begin at {offset} with the leader's state{deleted}"
        case AppendReplicated(high_watermark):
            return f"append what came, HW={high_watermark}"
        case ReportLeader(report):
            return f"report leader {report.leader} e{report.leader_epoch} p{report.epoch}"
        case RequestSync():
            return "sync"
        case _:
            assert_never(effect)


def _sync_shown(sync_to: Offset) -> str:
    return f" sync-to={sync_to}" if sync_to else ""


def batches_shown(batches: tuple[Batch, ...]) -> str:
    return f"[{batches[0].base},{batches[-1].end})" if batches else "empty"


def message_shown(message: Message) -> str:
    body = message.body
    match body:
        case FollowerFetch():
            durable = "" if body.durable_end is None else f" durable={body.durable_end}"
            kind = "progress" if body.progress_only else "fetch"
            room = (" without room" if body.no_space else "") + (" disk hangs" if body.disk_hangs else "")
            if body.deleted_end > body.offset:
                room += f" deleted={body.deleted_end}"
            text = f"{kind} #{body.sequence} e{body.leader_epoch} offset={body.offset}{durable}{room}"
        case Answer(answer, batches, damaged):
            what = error_shown(answer.error) if answer.error else "damaged" if damaged else batches_shown(batches)
            told = f"HW={answer.high_watermark}{_sync_shown(answer.sync_to)}"
            text = f"answer #{answer.sequence} e{answer.leader_epoch} {told} {what}"
        case OffsetRequest(_, asked, current, number, _):
            text = f".offset#{number} e{current} asks for e{asked}"
        case OffsetAnswer():
            what = error_shown(body.error) if body.error else f"e{body.epoch} ends at {body.end}"
            text = f".offset#{body.number} e{body.leader_epoch} {what}"
        case CheckpointFetch():
            what = f"the state at {'the log start' if body.offset is None else body.offset}, from byte {body.position}"
            text = f".checkpoint#{body.inbox.split('#')[2]} e{body.leader_epoch} {what}"
        case CheckpointAnswer():
            end = body.position + len(body.piece)
            what = f"the state at {body.offset}, bytes [{body.position},{end}) of {body.size}"
            what = error_shown(body.error) if body.error else what
            text = f".checkpoint#{body.number} e{body.leader_epoch} {what}"
        case Notification(leader_epoch):
            text = f"notification e{leader_epoch}"
        case NoResponders():
            text = "503"
        case Synced(end, _):
            text = f"synced to {end}"
        case CutDone():
            text = "cut done"
        case IsrChange():
            text = f"ISR {members_shown(body)} at p{body.expected_epoch}"
        case LeaderReport():
            text = f"report of {body.leader} e{body.leader_epoch} p{body.epoch}"
        case PartitionView():
            text = f"view {view_shown(body)}"
        case _:
            assert_never(body)
    link = message.target if message.source == message.target else message.link
    return f"{link} {text}"


def brokers_shown(brokers: tuple[BrokerId, ...]) -> str:
    return ",".join(brokers) or "-"


def view_shown(view: PartitionView) -> str:
    eligible = f" eligible {brokers_shown(view.eligible)}" if view.eligible else ""
    return f"p{view.epoch} e{view.leader_epoch} leader {view.leader or '-'} ISR {brokers_shown(view.isr)}{eligible}"


def log_shown(log: MemoryLog) -> str:
    runs: list[list[str]] = []
    for batch in log.batches:
        if runs and runs[-1][0] == str(batch.epoch):
            runs[-1][1] += batch.values
        else:
            runs.append([str(batch.epoch), batch.values])
    start = f"({log.start}..) " if log.start else ""
    return start + (" ".join(":".join(run) for run in runs) or "empty")


def broker_shown(broker: Broker) -> str:
    role = broker.role
    log = broker.log
    epochs = entries_shown(log.epochs.entries)
    ends = f"log {log_shown(log)} | LEO {log.end}"
    point = log.compaction_point
    if point.deleted_end:
        ends += f" (tombstones gone below {point.deletions_end}, what they delete below {point.deleted_end})"
    if log.durable_end != log.end:
        ends += f" synced {log.durable_end}"
    match role:
        case None:
            kind = "no role" if broker.running else "down"
            return f"{broker.name}  {kind} | {ends} | epochs {epochs}"
        case Leader():
            kind = f"leads e{role.leader_epoch}"
            high_watermark = role.high_watermark
        case Follower():
            kind = f"{state_shown(role)} e{role.leader_epoch}"
            high_watermark = role.high_watermark
        case _:
            assert_never(role)
    shown = f"{broker.name}  {kind} | {ends} HW {high_watermark} | epochs {epochs}"
    return shown + (f" | ISR {isr_shown(role)}" if isinstance(role, Leader) else "")


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
