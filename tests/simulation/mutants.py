"""Defects made on purpose, one or more per hazard of the protocol, to show that the simulation finds them.

A mutant is caught when an invariant is broken in one of the seeds. The module is one long table, so that a mutant is
found by its name.
"""

from __future__ import annotations

from typing import Any

from dataplane.broker import broker
from dataplane.broker.broker import Broker
from dataplane.broker.following.follower_driver import FollowerDriver, _SettingAside
from dataplane.broker.following.leader_answers import install_snapshot
from dataplane.broker.leading.append_requests import AppendRequests
from dataplane.broker.leading.appending import Appending
from dataplane.broker.leading.leader_driver import LeaderDriver
from dataplane.broker.leading.transaction_marks import TransactionMarks
from dataplane.broker.leading.waiting_answers import WaitingAnswers
from dataplane.broker.reading.id_learning import IdLearning
from dataplane.broker.replica import Replica
from dataplane.broker.roles.id_keeper import IdKeeper
from dataplane.broker.roles.request_prologue import Requests
from dataplane.broker.roles.role import SyncRequests
from dataplane.broker.upkeep.housekeeping import Housekeeping
from dataplane.log.compacted_segments import CompactedSegments
from dataplane.log.compaction.compaction_pass import CompactionPass
from dataplane.log.derived import derived_state, log_snapshot
from dataplane.log.derived.derived_state import RecentStates
from dataplane.log.log_state import LogState
from dataplane.log.log_sync import LogSync
from dataplane.log.log_writer import LogWriter
from dataplane.log.recovery.log_recovery import Recovery
from dataplane.log.segments import retention_limits
from dataplane.log.segments.segment import Segment
from dataplane.log.storage.checkpoints import CompactionPoint
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.tail import Tail
from dataplane.log.truncation import Truncation
from dataplane.replica import replica_state_machine
from dataplane.replica.consumers import Consumers, Readable
from dataplane.replica.derived.epochs import LeaderEpochCache
from dataplane.replica.derived.producer_table import ProducerTable
from dataplane.replica.derived.transaction_table import AbortedBatches, TransactionTable
from dataplane.replica.follower.follower import Fetcher, Follower
from dataplane.replica.follower.follower_reads import FollowerReads
from dataplane.replica.follower.followership import Followership
from dataplane.replica.follower.reconciliation import Reconciler
from dataplane.replica.leader import partitioning
from dataplane.replica.leader.ack_levels import PendingAcks
from dataplane.replica.leader.admission import Admission
from dataplane.replica.leader.append_rules import AppendRules
from dataplane.replica.leader.catch_up_budget import CatchUpBudget
from dataplane.replica.leader.commits import Commits
from dataplane.replica.leader.data_waiters import DataWaiters
from dataplane.replica.leader.draining import Draining
from dataplane.replica.leader.isr_keeper import IsrKeeper
from dataplane.replica.leader.leader import Cutover, Leader, Pausing
from dataplane.replica.leader.leadership import FollowerProgress, Leadership
from dataplane.replica.leader.quota import Quota
from dataplane.replica.leader.repetitions import Repetitions
from dataplane.replica.leader.settled_start import SettledStart
from dataplane.replica.replica_refusals import answer_without_epoch
from metadata.cluster import election, reassignment
from metadata.cluster.model import Stream
from metadata.commands import (
    broker_commands,
    broker_removal,
    partition_commands,
    reassignment_targets,
    repartition_commands,
    stream_commands,
)
from metadata.commands.cluster_state import ClusterState
from metadata.commands.ledger import Ledger
from metadata.controller.admin_requests import AdminRequests
from metadata.controller.bootstrap import Bootstrap
from metadata.controller.controller import ControllerCore
from metadata.controller.failover import Failover
from metadata.controller.leader_rebalancing import LeaderRebalancing
from metadata.controller.lease import Lease
from metadata.controller.liveness import Liveness
from metadata.controller.reassignments import Reassigning
from metadata.controller.repartitions import Repartitioning
from metadata.runtime.broker_clock import BrokerClock
from metadata.runtime.controller_driver import ControllerDriver
from metadata.runtime.hand_over import HandOver
from metadata.runtime.metadata_service import MetadataService
from metadata.runtime.registration import Registrar
from tests.simulation.mutation import Edit, Mutant
from tests.simulation.raft import raft_mutants
from tidelog.client.consumer.subscription_state import SubscriptionState
from tidelog.client.group import group_partitions
from tidelog.client.group.group_gate import GroupGate
from tidelog.client.group.membership import Membership
from tidelog.client.producer.accumulator import PartitionAccumulator
from tidelog.client.producer.layout_routes import Routes
from tidelog.client.producer.producer import Producer
from tidelog.server.coordinators.driver.coordinator import Coordinator
from tidelog.server.coordinators.groups.consumer_group import Group
from tidelog.server.coordinators.groups.group_shard import GroupShard
from tidelog.server.coordinators.groups.pending_offsets import PendingOffsets
from tidelog.server.coordinators.record_times import Times
from tidelog.server.coordinators.transactions.decisions import Decisions
from tidelog.server.coordinators.transactions.families import Families
from tidelog.server.coordinators.transactions.transaction_shard import TransactionShard, _place
from tidelog.server.peers import peer_tags
from tidelog.server.peers.peer_link import PeerLink
from tidelog.server.peers.peer_tags import Verifier
from wire import subjects
from wire.batch import CompactableBatch
from wire.layouts import KeyOrder
from wire.security.batch_proofs import check_batch_proof
from wire.types import PartitionView


def _mutant(
    name: str,
    *edits: tuple[Any, str, str],
    rules: tuple[str, ...],
    scenario: str | None = None,
    in_transactions: bool = False,
    in_repartitions: bool = False,
    in_reassignments: bool = False,
) -> Mutant:
    """`edits`: (function, text in its source, text in place of it). `rules`: those that it breaks."""
    found = tuple(Edit(*edit) for edit in edits)
    return Mutant(name, found, rules, scenario, in_transactions, in_repartitions, in_reassignments)


MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "the old replicas are dropped before the new ones are in the ISR",
        (reassignment.why_not_complete, "len(moving.target))", "1)"),
        rules=("R84",),
        in_reassignments=True,
    ),
    _mutant(
        "replicas are removed within a LeaderEpoch",
        (reassignment._with_replicas, "if is_cut else moved", "if False else moved"),
        rules=("R84",),
        in_reassignments=True,
    ),
    _mutant(
        "a learner counts for min ISR",
        (Commits.advance, "members = len(state.isr.members)", "members = len(state.view.replicas)"),
        rules=("R14", "R84"),
        in_reassignments=True,
    ),
    _mutant(
        "a learner is elected",
        (election.candidates, "(partition.isr, partition.eligible)", "(partition.replicas,)"),
        (election.chosen_leader, "(partition.isr, partition.eligible)", "(partition.replicas,)"),
        rules=("R21", "R84"),
        scenario="leader dies beside a learner",
    ),
    _mutant(
        "a cancelled move drops members of the ISR that others are not enough without",
        (reassignment.why_not_complete, "(min_isr if moving.is_cancelled else", "(1 if moving.is_cancelled else"),
        rules=("R85",),
        scenario="cancelled when the added are needed",
    ),
    _mutant(
        "a replica that is removed leaves its log",
        (Broker._leave, "self._leaving[key] = task", "task.cancel()\n    self._leaving[key] = task"),
        rules=("R86",),
        in_reassignments=True,
    ),
    _mutant(
        "a replica that comes back does not wait for the removal of its log",
        (Broker._reconcile, "view.key in self._leaving", "False"),
        rules=("R86",),
        scenario="back before its log is removed",
    ),
    _mutant(
        "the controller forgets reassignments of the controller before it",
        (Reassigning.begin, "partition.reassignment is not None", "False"),
        rules=("R84",),
        scenario="reassigned under two controllers",
    ),
    _mutant(
        "a follower truncates to the HW without asking the leader",
        (
            Follower._reconcile,
            "    asked =",
            "    self._replica.state = Truncating()\n    return [Truncate(self.high_watermark)]\n    asked =",
        ),
        rules=("R7",),
    ),
    _mutant(
        "a follower does not truncate at a new LeaderEpoch",
        (Follower.start, "else self._reconcile(now)", "else self._fetcher.fetch(now)"),
        rules=("R7",),
    ),
    _mutant(
        "a follower asks for the end of one LeaderEpoch only (KIP-279)",
        (Reconciler._judge, "return AskNext(mine.epoch, cut)", "cut = min(state.cut, answer.end)"),
        rules=("R7",),
        scenario="see saw",
    ),
    _mutant(
        "a leader serves fetches of an earlier LeaderEpoch (KIP-320)",
        (Leader.on_fetch, "if fetch.leader_epoch < self.leader_epoch:", "if False:"),
        rules=("R1",),
        scenario="stale follower",
    ),
    _mutant(
        "a deposed leader serves followers of a later LeaderEpoch, and they take its answers (KIP-320)",
        (Leader.on_fetch, "if fetch.leader_epoch > self.leader_epoch:", "if False:"),
        (Follower.on_answer, "if answer.leader_epoch < self.leader_epoch:", "if False:"),
        rules=("R1",),
        scenario="long zombie",
    ),
    _mutant(
        "a restarted leader keeps its LeaderEpoch",
        (
            election.after_registration,
            "    if partition.leader == broker or",
            "    if partition.leader == broker:\n        return kept\n    if partition.leader == broker or",
        ),
        rules=("R2",),
    ),
    _mutant(
        "the epoch entry is synced before the tail in front of it",
        (LogSync.assign_epoch, "self.sync_locked()\n", "pass\n"),
        (
            LogSync.assign_epoch,
            "epochs.assign(epoch, start_offset)",
            "epochs.assign(epoch, start_offset); write_epochs(state.files, state.directory, state.epochs.entries)",
        ),
        rules=("R3",),
        scenario="power at takeover",
    ),
    _mutant(
        "a leader adds a follower below the HW to the ISR",
        (IsrKeeper.maybe_expand, "if state.acknowledged(replica) < state.high_watermark:", "if False:"),
        rules=("R18",),
    ),
    _mutant(
        "the broker lives in AlterIsr are not checked (KIP-903)",
        (partition_commands._alter_one_isr, "if not (seen or unseen_yet) or not ledger.is_alive(member)", "if False"),
        rules=("R19",),
        scenario="late expansion",
    ),
    _mutant(
        "the HW follows the committed ISR instead of the maximal one",
        (Leadership.acknowledged_by_all, "for member in self.isr.maximal:", "for member in self.isr.members:"),
        rules=("R13",),
        scenario="unheard expansion",
    ),
    _mutant(
        "an ISR change without an answer counts as refused",
        (IsrKeeper.tick, "PendingExpandIsr(isr.members, isr.added, isr.change, now)", "CommittedIsr(isr.members)"),
        rules=("R13",),
        scenario="unheard expansion",
    ),
    _mutant(
        "AlterIsr does not compare the PartitionEpoch",
        (partition_commands._alter_one_isr, "if item.expected_epoch != partition.epoch:", "if False:"),
        (
            partition_commands._alter_one_isr,
            "if partition.leader != leader or item.leader_epoch != partition.leader_epoch:",
            "if False:",
        ),
        rules=("R19",),
    ),
    _mutant(
        "a log of which nothing is left counts as one that never held anything",
        (
            Recovery._too_short,
            "self.expected is not None and self.filed is None and not self.segments",
            "False",
        ),
        (Recovery.run, "if self.expected is not None:", "if False:"),
        (Recovery._checkpoint, "if expected is None or expected.recovery_point is None:", "if True:"),
        rules=("R22",),
        scenario="lost files",
    ),
    _mutant(
        "a log that ends before what was committed here counts as sound",
        (Recovery.run, "if self.expected is not None:", "if False:"),
        (Recovery._checkpoint, "if expected is None or expected.recovery_point is None:", "if True:"),
        rules=("R22",),
        scenario="lost files",
    ),
    _mutant(
        "logs that were lost with the manifest count as logs that were never here",
        (broker._replica, "if data_dir.manifest.is_lost:", "if False:"),
        (Registrar._not_held, "key not in known.held", "False"),
        rules=("R22",),
        scenario="lost files",
    ),
    _mutant(
        "every restart counts as one that lost nothing",
        (DataDir.proof, "return self._proof", "return Proof(True, True)"),
        (
            broker_commands._proves,
            'command.last_incarnation == incarnation != 0 or (life_id != "" and life_id in command.earlier_lives)',
            "True",
        ),
        rules=("R22",),
        scenario="first back without its page cache",
    ),
    _mutant(
        "a leader commits below min ISR",
        (Commits.advance, "if members < state.view.config.min_isr:", "if False:"),
        rules=("R14",),
    ),
    _mutant(
        "no replica becomes eligible (KIP-966)",
        (election.with_isr, "if len(isr) < min_isr:", "if False:"),
        rules=("R20",),
        scenario="last standing",
    ),
    _mutant(
        "a replica becomes eligible at any ISR size",
        (election.with_isr, "if len(isr) < min_isr:", "if True:"),
        rules=("R20",),
    ),
    _mutant(
        "replicas outside the ISR stay eligible when min ISR is lowered",
        (election.with_min_isr, "return with_isr(partition, partition.isr, min_isr=min_isr)", "return partition"),
        rules=("R14",),
        scenario="lowered min isr",
    ),
    _mutant(
        "the progress of an earlier broker life counts",
        (Leader.on_fetch, "if fetch.incarnation > follower.incarnation:", "if False:"),
        rules=("R10",),
    ),
    _mutant(
        "a follower takes answers to older requests",
        (Follower.on_answer, "or answer.sequence != state.sequence", ""),
        (Follower.on_answer, "if state.offset != replica.log_end_offset:", "if False:"),
        (Follower.on_answer, "answer.first_offset < replica.log_end_offset", "False"),
        (FollowerDriver._send_fetch, "peers.on_inbox(self._fetch_inbox, None)", "pass"),
        rules=("R9",),
    ),
    _mutant(
        "a broker elects leaders without being the controller",
        (Ledger.not_controller, "if epoch == self.controller_epoch and epoch:", "if True:"),
        rules=("R28",),
        scenario="two controllers",
    ),
    _mutant(
        "what was worked out for a command before a snapshot was taken up is applied after it",
        (ClusterState._become, "self._prepared: _Prepared | None = None", "self.__dict__.setdefault('_prepared')"),
        (ClusterState.prepare, "self._prepared.command != command", "False"),
        (ClusterState.apply, "prepared.command != command", "False"),
        rules=("R28",),
    ),
    _mutant(
        "the latest offset is told before the HW has reached the start of the LeaderEpoch",
        (Leader.latest, "if state.high_watermark < state.epoch_start:", "if False:"),
        rules=("R15",),
        scenario="slow news",
    ),
    _mutant(
        "a notification that crosses a fetch is forgotten, and none is repeated",
        (Follower.on_notification, "replica.was_notified = True", "pass"),
        (DataWaiters.tick, "out.append(Notify(replica))", "pass"),
        (
            DataWaiters._fire,
            "if state.settings.push_to_waiters:",
            "if True:\n        return\n    if state.settings.push_to_waiters:",
        ),
        rules=("R32",),
    ),
    _mutant(
        "the producer table survives a truncation",
        (Truncation.truncate, "self._capturing.restore_producers()\n        return", "return"),
        rules=("R33",),
        scenario="rolled back producer",
    ),
    _mutant(
        "a truncation goes back to a state of the producers above the cut",
        (RecentStates.back_to, "while states and states[-1].offset > end:", "while False:"),
        rules=("R33",),
        scenario="rolled back producer",
    ),
    _mutant(
        "a duplicate is acknowledged before the original is committed",
        (
            AppendRequests._answer,
            "self._run(self._await(batch, answer.end, response, self._context.now()))",
            "self._role.answers.append(AppendReply(batch.inbox, response, False))",
        ),
        rules=("R33",),
    ),
    _mutant(
        "a record is stored again under its message id",
        (Repetitions.find, "if not self.are_sought:", "if True:"),
        rules=("R45",),
    ),
    _mutant(
        "a new leader does not know the message ids of its log",
        (IdLearning.learn, "if role.ids.is_current(role.log):", "if True:"),
        rules=("R45",),
    ),
    _mutant(
        "a repetition is acknowledged before the original is committed",
        (
            WaitingAnswers.wait,
            "if (full",
            "if isinstance(token, BareReplies):\n        return self._role.answers.bare(token)\n    if (full",
        ),
        rules=("R45",),
    ),
    _mutant(
        "duplicates are appended again",
        (ProducerTable.check, "if producer_id == NO_PRODUCER:", "if True:"),
        rules=("R33",),
    ),
    _mutant(
        "a forgotten producer is taken for a producer that never wrote",
        (ProducerTable.check, "producer_id <= self._credible and", "False and"),
        rules=("R33",),
    ),
    _mutant(
        "the set of forgotten producers is lost when a log is opened",
        (log_snapshot._understood, "times = section.payload", "pass"),
        rules=("R33",),
    ),
    _mutant(
        "a forgotten producer sends batches that may be stored again under a new id",
        (PartitionAccumulator._forgotten, "not batch.uncertain", "True"),
        rules=("R33",),
    ),
    _mutant(
        "a batch is stored at another offset than the one that it expects",
        (AppendRules.decide_admitted, "expected_end != end", "False"),
        rules=("R33",),
    ),
    _mutant(
        "records behind one that expects an offset are sent before its answer",
        (PartitionAccumulator._may_begin, "_goes_alone(self._window[-1], self.gathering)", "False"),
        rules=("R33",),
    ),
    _mutant(
        "a leader acknowledges before the commit",
        (Leader.await_ack, "if end <= commits.reached(level):", "if True:"),
        rules=("R16",),
    ),
    _mutant(
        "a durable publish on an accepted stream is acknowledged from page caches",
        (
            Commits.advance,
            "state.end_of(member, is_synced=not state.is_durable)",
            "state.end_of(member, is_synced=False)",
        ),
        rules=("R12a",),
    ),
    _mutant(
        "an accepted publish on a durable stream is acknowledged by the leader alone",
        (Commits.advance, "for member in state.isr.maximal)", "for member in [state.broker])"),
        rules=("R12a",),
    ),
    _mutant(
        "a leader of an accepted stream adds a follower that has not synced the start of its LeaderEpoch",
        (
            IsrKeeper.maybe_expand,
            "if follower.durable_end < state.epoch_start:",
            "if state.acknowledged(replica) < state.epoch_start:",
        ),
        rules=("R18",),
    ),
    _mutant(
        "the replica count that a publish asks for is not compared when it is acknowledged",
        (PendingAcks.commit, "if pending.floor <= members:", "if True:"),
        (Commits.reached, "if len(state.isr.members) < level.floor:", "if False:"),
        (Admission._refuse_append, "max(view.config.min_isr, level.floor)", "view.config.min_isr"),
        rules=("R12a",),
    ),
    _mutant(
        "the leader-epoch file is written once and later LeaderEpochs are not",
        (LogSync.save_epochs, "if entries != state.saved_epochs:", "if not state.saved_epochs:"),
        rules=("R4",),
    ),
    _mutant(
        "fsync is skipped",
        (LogSync.sync_locked, "state.files.sync_data(segment.handle)", "pass"),
        rules=("R12",),
    ),
    _mutant(
        "a follower reports records as synced before they are synced",
        (
            Followership.reported_end,
            "self.durable_end if self.is_durable or self.sync_to else None",
            "self.log_end_offset",
        ),
        rules=("R12",),
    ),
    _mutant(
        "an immediate sync reports the log end and syncs nothing",
        (LogSync.sync_small, "self.sync_locked()", "state.durable_end = state.log_end_offset"),
        rules=("R12",),
    ),
    _mutant(
        "a log that is synced together with others takes no notice of its own error",
        (LogSync.end_sync, "if error is not None:", "if False:"),
        rules=("R12", "R23"),
        scenario="sync fails then power",
    ),
    _mutant(
        "a sync together with others counts what was appended while it ran",
        (
            LogSync.end_sync,
            "self._begun = self._begun, None",
            "self._begun = self._begun, None\n    end = state.log_end_offset",
        ),
        rules=("R12",),
    ),
    _mutant(
        "a follower takes appended records for synced at once",
        (FollowerDriver._append, "durable_end=durable_end,", "durable_end=self.log.log_end_offset,"),
        rules=("R12",),
    ),
    _mutant(
        "the leader counts its own copy before it is synced",
        (Leadership.end_of, "self.durable_end if is_synced else self.log_end_offset", "self.log_end_offset"),
        rules=("R12",),
    ),
    _mutant(
        "consumers are served beyond the HW",
        (Consumers.on_fetch, "end = log.end_for(fetch)", "end = log.log_end_offset"),
        rules=("R34",),
    ),
    _mutant(
        "requests to a deleted stream are taken for requests to its successor",
        (Requests.is_same_incarnation, "return stream_incarnation ==", "return True or stream_incarnation =="),
        rules=("R6",),
        scenario="recreated unheard",
    ),
    _mutant(
        "a failed fsync is forgotten",
        (SyncRequests._done, 'self._fail(f"fdatasync failed: {result}")', "pass"),
        (LogState.failed, "self.failure =", "_ ="),
        rules=("R23",),
        scenario="sync fails then power",
    ),
    _mutant(
        "after a restart, page cache content left by a failed fsync counts as synced",
        (Segment.rewrite_doubtful, "if self.doubtful_from is None:", "if True:"),
        rules=("R24",),
        scenario="sync fails then power",
    ),
    _mutant(
        "a replica that is opened again takes its LEO for the HW",
        (
            Replica._take_log,
            "self._high_watermark = partition_log.high_watermark",
            "self._high_watermark = partition_log.log_end_offset",
        ),
        rules=("R15",),
    ),
    _mutant(
        "a broker acts before its own registration is applied",
        (Broker.on_partitions, "if not self.context.incarnation:", "if False:"),
        (MetadataService._deliver_applied, "if self._delivers:", "if True:"),
        rules=("R5",),
    ),
    _mutant(
        "any live replica may lead (unclean election)",
        (
            election.chosen_leader,
            "for group in (partition.isr, partition.eligible)",
            "for group in (partition.isr, partition.eligible, partition.replicas)",
        ),
        (election.elect, "and not awaited(partition, alive)", ""),
        rules=("R21",),
        scenario="outsider",
    ),
    _mutant(
        "witnesses are never cleared",
        (Failover.on_applied, "if suspicion is not None and (", "if suspicion is not None and False and ("),
        (
            Failover.count_witnesses,
            "if partition is None or partition.leader_epoch != suspicion.leader_epoch or not fresh:",
            "if partition is None or not fresh:",
        ),
        rules=("R27",),
        scenario="witnesses",
    ),
    _mutant(
        "one witness is enough",
        (
            Failover.count_witnesses,
            "2 * len(fresh.keys() - suspicion.refused) > len(partition.isr) - 1",
            "True",
        ),
        rules=("R27",),
        scenario="witnesses",
    ),
    _mutant(
        "a restart of NATS is taken for the death of all brokers",
        (
            Liveness.is_trusted,
            "return (",
            "return True or (",
        ),
        (Liveness._fallen, "broker == self._self or broker in self._raft_peers", "broker == self._self"),
        (Liveness._most_stand, "return 2 * len(heard) >=", "return True or 2 * len(heard) >="),
        (Liveness.is_gone, "return unanswered >=", "return True or unanswered >="),
        rules=("R25",),
        scenario="nats restarts",
    ),
    _mutant(
        "a controller that has just started declares brokers dead without a witness",
        (Liveness.is_trusted, "(self._vouched or", "(True or"),
        (Liveness._fallen, "broker == self._self or broker in self._raft_peers", "broker == self._self"),
        (Liveness._most_stand, "return 2 * len(heard) >=", "return True or 2 * len(heard) >="),
        rules=("R25",),
        scenario="nats restarts and the controller too",
    ),
    _mutant(
        "a broker vouches for a NATS server with which it has connected just now",
        (
            ControllerDriver._probe,
            "and told.connected_ms >= context.settings.liveness_grace_s * 1000",
            "and told.connected_ms >= 0",
        ),
        (Liveness._fallen, "broker == self._self or broker in self._raft_peers", "broker == self._self"),
        (Liveness._most_stand, "return 2 * len(heard) >=", "return True or 2 * len(heard) >="),
        rules=("R25",),
        scenario="nats restarts and the controller too",
    ),
    _mutant(
        "the folder of a deleted stream stays",
        (DataDir.remove_partition, "self.files.remove_tree(removed)", "pass"),
        rules=("R6",),
    ),
    _mutant(
        "a restart keeps the folders of streams that were deleted meanwhile",
        (Broker.on_all_partitions, "sorted(self._unknown)", "[]"),
        rules=("R6",),
    ),
    _mutant(
        "the leader-epoch file is not truncated with the log",
        (LeaderEpochCache.truncate_from, "self._entries = kept", "pass"),
        (LeaderEpochCache.assign, "entries = tuple(entry for entry in entries if entry.start < end)", "pass"),
        rules=("R4",),
    ),
    _mutant(
        "the lease never ends",
        (Lease.is_valid, "return now - self._since <=", "return True or now - self._since <="),
        rules=("R29",),
        scenario="long zombie",
    ),
    _mutant(
        "probes of a controller that knows more extend the lease",
        (Lease._prove, "if needed <= generation:", "if True:"),
        rules=("R29",),
        scenario="stale follower",
    ),
    _mutant(
        "a deposed leader says that nothing was stored",
        (
            answer_without_epoch,
            "    return TidelogError(",
            "    return error\n    return TidelogError(",
        ),
        rules=("R35",),
        scenario="stale drain",
    ),
    _mutant(
        "an answer leaves out a first batch that is larger than max_bytes",
        (Tail.read, "(found and size > max_bytes)", "size > max_bytes"),
        rules=("R11",),
    ),
    _mutant(
        "a stream may store internal subjects of the cluster",
        (subjects._subject_fault, "if not subject:", "return None\n    if not subject:"),
        rules=("R37",),
    ),
    _mutant(
        "the scrubber finds damage and ignores it",
        (Housekeeping._fail, "replica.on_damage(", "str("),
        rules=("R23",),
        scenario="silent damage",
    ),
    _mutant(
        "a damaged replica is cut while it is in the ISR",
        (
            replica_state_machine.repair_mode,
            "if view.leader is None or broker in view.isr or broker in view.eligible:",
            "if True:\n        return RepairMode.COPY\n    if False:",
        ),
        rules=("R23",),
        scenario="silent damage",
    ),
    _mutant(
        "a damaged replica repairs itself without reporting the damage",
        (
            broker._is_sound,
            'leaves the ISR: %s", key, report.damaged)\n        return False',
            'leaves the ISR: %s", key, report.damaged)\n        return True',
        ),
        (
            replica_state_machine.repair_mode,
            "if view.leader == broker:",
            "if True:\n        return RepairMode.COPY\n    if False:",
        ),
        rules=("R23",),
        scenario="damage",
    ),
    _mutant(
        "retention goes past the HW",
        (retention_limits.expired, "following.base_offset > high_watermark", "following.base_offset > log_end_offset"),
        rules=("R8",),
    ),
    _mutant(
        "old segments are removed before the checkpoint says so",
        (
            Truncation.remove_before,
            "self._syncing.replace_checkpoint(OffsetCheckpoint(state.high_watermark, state.durable_end, start))",
            "pass",
        ),
        rules=("R8",),
    ),
    _mutant(
        "a follower begins at the log start without the producers",
        (
            install_snapshot,
            "    partition_log.install(snapshot,",
            "    partition_log.install(type(snapshot)(snapshot.offset, snapshot.epochs, carried=snapshot.carried),",
        ),
        rules=("R8",),
        scenario="below the log start",
    ),
    _mutant(
        "a follower begins at the log start without the leader epochs",
        (
            install_snapshot,
            "    partition_log.install(snapshot,",
            "    from dataclasses import replace\n    partition_log.install(replace(snapshot, epochs=()),",
        ),
        rules=("R8",),
        scenario="below the log start",
    ),
    _mutant(
        "records that a full disk refused count as written",
        (LogWriter.append, "raise self._not_written(segment, error) from error", "pass"),
        rules=("R38",),
        scenario="full disks",
    ),
    _mutant(
        "a replica that had no room once has none for ever",
        (
            Follower.on_space,
            "self._fetcher.no_space = no_space",
            "self._fetcher.no_space = self._fetcher.no_space or no_space",
        ),
        rules=("R38",),
        scenario="full disks",
    ),
    _mutant(
        "a leader whose disk hangs keeps its leadership",
        (LeaderRebalancing._is_to_move, "or leader in self._hanging", ""),
        rules=("R40",),
        scenario="hung leader",
    ),
    _mutant(
        "the drain of a leader whose disk hangs waits for records that cannot be committed",
        (Draining.look, "state.high_watermark == end or state.disk_hangs", "state.high_watermark == end"),
        rules=("R40",),
        scenario="hung leader",
    ),
    _mutant(
        "a replica whose disk hangs is not relieved at once",
        (LeaderRebalancing._moves, "disk_hangs=partition.leader in self._hanging", "disk_hangs=False"),
        (IsrKeeper._drop_hanging, "if follower.disk_hangs", "if False"),
        rules=("R40",),
        scenario="hung leader",
    ),
    _mutant(
        "compaction goes past the HW",
        (CompactedSegments.finished_below, "end = min(end, self._state.durable_end)", "end = self._state.durable_end"),
        rules=("R57",),
    ),
    _mutant(
        "compaction removes the newest record of a key",
        (CompactionPass._judge, "<= content.offsets[keyed]", "< content.offsets[keyed]"),
        rules=("R57",),
    ),
    _mutant(
        "compaction removes batches by which a repetition is recognised",
        (ProducerTable.remembers, "return known is not None and", "return False and"),
        rules=("R33", "R57"),
    ),
    _mutant(
        "compaction keeps the batches that are remembered at the LEO",
        (CompactionPass.steps, "self._producers_at(self._segments[-1][1])", "self._log.producers"),
        rules=("R33",),
        scenario="compacted below a tail that is cut",
    ),
    _mutant(
        "a copy keeps its deleted_end when another leader is elected",
        (CompactionPoint.in_role, "if self.copied_in == leader_epoch or", "if True or"),
        rules=("R39",),
        scenario="copy under two leaders",
    ),
    _mutant(
        "a full disk is taken for a broken disk",
        (FollowerDriver._append, "self.context.the(RoleCounters).refused_no_space += 1", 'self.fail("full")'),
        rules=("R38",),
        scenario="full disks",
    ),
    _mutant(
        "a broker takes messages whose tag does not verify",
        (Verifier.fault, "if not sender.verifies(", "if False and not sender.verifies("),
        rules=("R42",),
    ),
    _mutant(
        "a broker takes messages that were sent to another subject",
        (peer_tags.covered, 'b" ", subject, b" "', 'b" "'),
        rules=("R42",),
    ),
    _mutant(
        "a broker takes a message as often as it comes",
        (Verifier.fault, "return None if window.take(", "return None if True or window.take("),
        rules=("R42",),
    ),
    _mutant(
        "a frame of a pack goes to the broker's newest inbox",
        (
            PeerLink._dispatch,
            "self._inboxes.get(subject)",
            "self._inboxes[next(reversed(self._inboxes))] if subject in self._inboxes else None",
        ),
        rules=("R42",),
    ),
    _mutant(
        "a leader of a read-only partition takes records",
        (Admission.refuse, "if view.readonly:", "if False:"),
        rules=("R43",),
    ),
    _mutant(
        "a leader that takes no more records appends those of its open batch later",
        (LeaderDriver.on_view, "if view.readonly or ", "if "),
        rules=("R43",),
    ),
    _mutant(
        "deleted records are served while their segment is there",
        (PartitionView.first_record, "max(log_start_offset, self.purged_end)", "log_start_offset"),
        rules=("R44",),
    ),
    _mutant(
        "records are deleted that are not committed",
        (AdminRequests.delete_records, "if asked > end:", "if False:"),
        rules=("R44",),
    ),
    _mutant(
        "a deletion of fewer records takes an earlier one back",
        (
            stream_commands.delete_records,
            "max(ends.get(item.partition, before), Offset(item.end))",
            "Offset(item.end)",
        ),
        rules=("R44",),
    ),
    _mutant(
        "a segment goes when its first record was deleted",
        (retention_limits.expired, "if following.base_offset <= purged_end", "if segment.base_offset < purged_end"),
        (retention_limits.expired, "segments[1].base_offset > purged_end", "segments[0].base_offset >= purged_end"),
        rules=("R44",),
    ),
    _mutant(
        "a partition is assigned before its holder has given it up",
        (Group._reconcile, "member.revoking |= over", "pass"),
        rules=("R51",),
    ),
    _mutant(
        "a coordinator answers before its records are committed",
        (
            Coordinator._append,
            "self._is_appending = True",
            "self._is_appending = True\n    self._send(settled)\n    settled.answers, settled.unasked = [], []",
        ),
        rules=("R52",),
    ),
    _mutant(
        "a coordinator forgets its members",
        (
            GroupShard.begin,
            "self._view, self._is_view_new",
            "for group in self.groups.values():\n        group.members.clear()\n    self._view, self._is_view_new",
        ),
        rules=("R52",),
    ),
    _mutant(
        "a coordinator begins before all of its log is committed",
        (
            Coordinator._read_log,
            "while led.high_watermark < end:",
            "end = led.high_watermark\n    while False:",
        ),
        rules=("R52",),
    ),
    _mutant(
        "a partition whose replicas are all stopped keeps the last of them in its ISR",
        (election.after_death, "if all_stop(", "if False and all_stop("),
        rules=("R88",),
        scenario="stopped together",
    ),
    _mutant(
        "a broker leaves before it can know who else is stopping",
        (HandOver._leave, "earliest - context.monotonic()", "0.0"),
        rules=("R88",),
        scenario="stopped together",
    ),
    _mutant(
        "a member takes an assignment that comes after the session of its heartbeat",
        (Membership.on_answer, "if is_late and self.state", "if False and self.state"),
        rules=("R53",),
        scenario="stopped while it joins",
    ),
    _mutant(
        "a new coordinator has no patience",
        (Group.begin, "(member.session_timeout + patience)", "0.2"),
        rules=("R53",),
    ),
    _mutant(
        "the end of a transaction is answered before its marker is committed, also where it was written before",
        (TransactionMarks._mark, "AckLevel(is_local=False, is_synced=view.config.is_durable)", "AckLevel(True, False)"),
        (
            TransactionMarks._mark,
            "self._core.await_ack(level, self._core.log_end_offset,",
            "self._core.await_ack(level, 0,",
        ),
        rules=("R49",),
        in_transactions=True,
    ),
    _mutant(
        "a batch is taken behind the marker of its transaction",
        (ProducerTable._record_transactional, "Producer(header.producer_epoch, 0,", "Producer(0, 0,"),
        rules=("R48",),
        in_transactions=True,
    ),
    _mutant(
        "a leader takes batches under a producer id of whoever sends them",
        (AppendRules._opened, "if header.producer_id != NO_PRODUCER:", "if False:"),
        rules=("R76",),
    ),
    _mutant(
        "a leader takes the body that a stranger has put behind the header of another sender",
        (check_batch_proof, "if not hmac.compare_digest(", "if False and not hmac.compare_digest("),
        rules=("R76",),
    ),
    _mutant(
        "tickets hold by the clock of one broker",
        (BrokerClock.common_ns, "self._agreed.common_ns(self._monotonic(), self._wall())", "self._wall()"),
        rules=("R73",),
        in_transactions=True,
    ),
    _mutant(
        "consumers are served a transaction whose marker is not committed",
        (TransactionTable.last_stable, "if ended.marker >= high_watermark:", "if False:"),
        rules=("R50",),
        in_transactions=True,
    ),
    _mutant(
        "consumers are served transactions that are open",
        (Readable.end_for, "if fetch.read_uncommitted", "if True"),
        rules=("R50",),
        in_transactions=True,
    ),
    _mutant(
        "consumers are served the records of aborted transactions",
        (AbortedBatches.has, "if ranges is None:", "if True:"),
        rules=("R50",),
        in_transactions=True,
    ),
    _mutant(
        "a decision is told before it is committed",
        (
            Coordinator._settle,
            "self._append(settled)",
            "self._deliveries.add(settled.deliveries)\n        self._append(settled)",
        ),
        rules=("R78",),
        in_transactions=True,
    ),
    _mutant(
        "a new producer of a transactional id has the epoch of the one before",
        (
            TransactionShard._init,
            "self._decisions.become_idle(known, Outcome.NONE, times, records)",
            "if known.epoch < 0:\n        self._decisions.become_idle(known, Outcome.NONE, times, records)",
        ),
        rules=("R78",),
        in_transactions=True,
    ),
    _mutant(
        "offsets that a transaction has committed are not told before its end is",
        (GroupShard._offsets, "self.pending.check_none(", "str(("),
        (GroupShard._offsets, "request.partitions else None)", "request.partitions else None))"),
        rules=("R80",),
        scenario="ends that groups hear late",
    ),
    _mutant(
        "a log forgets at a restart, and where it is cut, which transactions were aborted",
        (TransactionTable.restore, "self._aborted = list(known.aborted)", "self._aborted = []"),
        rules=("R48",),
        in_transactions=True,
    ),
    _mutant(
        "a coordinator does not go on with what was decided before it began",
        (Decisions.resume, "self._tell(transaction)", "pass"),
        rules=("R78",),
        in_transactions=True,
    ),
    _mutant(
        "a part of the prepared transactions is committed",
        (
            Families.commit,
            "for member in end.members:\n        transaction =",
            "for member in end.members[:1]:\n        transaction =",
        ),
        rules=("R79",),
        in_transactions=True,
    ),
    _mutant(
        "a sequence of a family is committed twice",
        (
            Families.commit,
            "if family is not None and end.sequence <= family.sequence:",
            "if False and family is not None:",
        ),
        rules=("R79",),
        in_transactions=True,
    ),
    _mutant(
        "a commit of a family behind later ones is told as not committed",
        (Families._was_committed, "return True", "return False"),
        rules=("R81",),
        in_transactions=True,
    ),
    _mutant(
        "a losing attempt of a family is committed with the others",
        (Families.commit, "Outcome.NONE", "Outcome.COMMITTED"),
        rules=("R79",),
        in_transactions=True,
    ),
    _mutant(
        "prepared transactions are committed without one that has ended",
        (
            Families.commit,
            "for member in end.members:\n        if (why := self._not_open(member)) is not None:",
            (
                "end = end._replace(members=tuple(m for m in end.members if self._not_open(m) is None))\n"
                "    for member in ():\n        if why := None:"
            ),
        ),
        rules=("R79",),
        in_transactions=True,
    ),
    _mutant(
        "a leader takes batches of an older partitioning version",
        (partitioning.judge, "if 0 < version < view.partitioning_version:", "if False:"),
        rules=("R61",),
        in_repartitions=True,
    ),
    _mutant(
        "a leader judges the partitioning version before it looks for a repetition",
        (AppendRules._by_producer, " and not may_be_stored(verdict)", ""),
        rules=("R61",),
        in_repartitions=True,
    ),
    _mutant(
        "a leader takes batches of the newest partitioning version before it knows the cutover",
        (partitioning.judge, "return VersionAwaited.AWAITED if version and _awaits(view) else None", "return None"),
        rules=("R61",),
        in_repartitions=True,
    ),
    _mutant(
        "a leader denies batches of an older version that another replica may hold",
        (partitioning.judge, "if view.awaits_cutover and not can_deny:", "if False:"),
        rules=("R61",),
        scenario="tail behind the cutover",
    ),
    _mutant(
        "a leader reports a cutover that is not committed",
        (Cutover.look, "state.high_watermark < self._end or ", ""),
        rules=("R62",),
        scenario="tail behind the cutover",
    ),
    _mutant(
        "a leader reports a cutover before all that may lead have cut to its log",
        (Cutover.look, " or not state.have_cut_to_this_log()", ""),
        rules=("R62",),
        scenario="tail behind the cutover",
    ),
    _mutant(
        "a repartition is finished before all cutovers are known",
        (Repartitioning._next_step, "if watched.told_at == inf:", "if False:"),
        (repartition_commands.finish, " or not stream.layouts[-1].is_reported", ""),
        rules=("R60",),
        in_repartitions=True,
    ),
    _mutant(
        "the adoption generation of a repartition is that of the last report",
        (
            repartition_commands._tell,
            "layouts=(*stream",
            (
                "repartition=stream.repartition and replace(stream.repartition,"
                " adoption_generation=ledger.next_generation()), layouts=(*stream"
            ),
        ),
        rules=("R60",),
        in_repartitions=True,
    ),
    _mutant(
        "a producer sends by the new layout before its batches of the old one are resolved",
        (Routes.for_key, "if target is not None:", "if False:"),
        rules=("R67",),
        in_repartitions=True,
    ),
    _mutant(
        "a client tells that it has adopted routes that its producer does not go by",
        (Producer._on_routes, "self._adopt(layout)", "pass"),
        (
            Producer._note_applied,
            "self._watch is not None and (is_newest or self._barred is not None)",
            "self._watch is not None",
        ),
        rules=("R60",),
        in_repartitions=True,
    ),
    _mutant(
        "a group reads beyond a cutover before it has read the partitions that the keys come from",
        (KeyOrder.waits_for, "if missing:", "if False:"),
        rules=("R66",),
        in_repartitions=True,
    ),
    _mutant(
        "a group counts a partition as read that was handed out and not committed",
        (SubscriptionState._read_to, "if stream.is_shared:", "if False:"),
        rules=("R66",),
        in_repartitions=True,
    ),
    _mutant(
        "a group reads a partition that a repartition has made from its end",
        (group_partitions._first_start, "if start is Anchor.EARLIEST or not", "if True or not"),
        rules=("R65",),
        in_repartitions=True,
    ),
    _mutant(
        "a group waits for records that are deleted",
        (GroupGate._ask_log_starts, "stream.on_group_committed(number, incarnation, start.settled)", "pass"),
        rules=("R66",),
        scenario="repartitioned while records go",
    ),
    _mutant(
        "a log start is settled before all followers know it",
        (SettledStart.at, "follower.log_start_offset >= start", "True"),
        rules=("R82",),
        scenario="repartitioned while records go",
    ),
    _mutant(
        "a follower serves what it knows that its leader has removed",
        (FollowerReads._readable, "replica.first_record", "replica.view.first_record(replica.log_start_offset)"),
        rules=("R82",),
        scenario="repartitioned while records go",
    ),
    _mutant(
        "the newest version is taken before all sources have told",
        (Stream.awaits_sources, "number % self._step in self._unreported", "False"),
        rules=("R59",),
        scenario="late source",
    ),
    _mutant(
        "a leader takes batches of the newest partitioning version before all sources of their keys have told",
        (partitioning._awaits, "return view.awaits_cutover or view.awaits_sources", "return view.awaits_cutover"),
        rules=("R61",),
        scenario="late source",
    ),
    *raft_mutants.RAFT_MUTANTS,
)

TOLD: tuple[tuple[Mutant, str], ...] = (
    (
        _mutant(
            "a broker that stops keeps its leaderships",
            (LeaderRebalancing.due, "self._hanging | self._stopping", "self._hanging"),
            rules=("R88",),
        ),
        "metadata/a_broker_that_stops_hands_over",
    ),
    (
        _mutant(
            "leaderships move to a broker that is about to stop",
            (LeaderRebalancing._target, "and broker not in self._stopping", ""),
            rules=("R88",),
        ),
        "metadata/a_broker_that_stops_hands_over",
    ),
    (
        _mutant(
            "a broker that leaves is waited for until it is silent",
            (ControllerCore.on_condition, "if leaves is not None", "if False"),
            rules=("R88",),
        ),
        "metadata/a_broker_that_stops_hands_over",
    ),
    (
        _mutant(
            "brokers that are all told to stop count as dead one after the other",
            (ControllerCore._spared, "return stopping if", "return stopping if False and"),
            rules=("R88",),
        ),
        "metadata/a_broker_that_stops_hands_over",
    ),
    (
        _mutant(
            "a member that is about to stop is elected when it does not end at once",
            (Failover._elect, "and election.all_stop(", "and False and election.all_stop("),
            rules=("R88",),
        ),
        "metadata/members_that_stop_are_not_elected",
    ),
    (
        _mutant(
            "the controller does not say who is stopping when one of them has ended",
            (Failover.declare_dead, "stopping=self._stopping(),", ""),
            rules=("R88",),
        ),
        "metadata/members_that_stop_are_not_elected",
    ),
    (
        _mutant(
            "a broker that has come back counts as stopping",
            (ControllerCore.on_applied, "self._rebalancing.on_stopping(broker, False)", "pass"),
            rules=("R88",),
        ),
        "metadata/members_that_stop_are_not_elected",
    ),
    (
        _mutant(
            "a partition goes offline when one replica is stopped and an eligible one stays",
            (
                election.all_stop,
                "in partition.replicas if",
                "in partition.replicas if broker not in partition.eligible and",
            ),
            rules=("R88",),
        ),
        "metadata/all_replicas_of_a_partition_are_stopped",
    ),
    (
        _mutant(
            "a partition goes offline while a replica that stays is catching up",
            (election.all_stop, "in partition.replicas if", "in (*partition.isr, *partition.eligible) if"),
            rules=("R88",),
        ),
        "metadata/all_replicas_of_a_partition_are_stopped",
    ),
    (
        _mutant(
            "a replica outside the ISR catches up as fast as it asks",
            (Leader._wait_of, "return self._budget.wait_s(now, self.settings.fetch_max_bytes)", "return 0.0"),
            rules=("R89",),
        ),
        "replication/a_replica_outside_the_isr_catches_up_within_the_budget",
    ),
    (
        _mutant(
            "what is sent to replicas outside the ISR is not charged",
            (CatchUpBudget.charge, "self._bucket.level -= size", "pass"),
            rules=("R89",),
        ),
        "replication/a_replica_outside_the_isr_catches_up_within_the_budget",
    ),
    (
        _mutant(
            "what is appended while a replica fetches is charged",
            (Leader.on_sent, "max(0, size - credit)", "size"),
            rules=("R89",),
        ),
        "replication/a_replica_outside_the_isr_catches_up_within_the_budget",
    ),
    (
        _mutant(
            "replicas that are refused come back all at once",
            (CatchUpBudget.wait_s, "max(self._next_ask + 1 / ASKS_PER_S, soonest)", "soonest"),
            rules=("R89",),
        ),
        "replication/a_replica_outside_the_isr_catches_up_within_the_budget",
    ),
    (
        _mutant(
            "a leader holds a fetch whose waiter has fired",
            (Leader.on_parked, "follower.waiter_inbox is None or ", ""),
            rules=("R83",),
        ),
        "replication/an_empty_answer_that_is_lost_is_not_held",
    ),
    (
        _mutant(
            "a leader holds fetches after its time",
            (LeaderDriver.holds, "self.ended or ", ""),
            rules=("R83",),
        ),
        "replication/a_leader_that_cannot_end_holds_no_fetch",
    ),
    (
        _mutant(
            "a leader holds the fetch of a follower whose report it lacks",
            (FollowerProgress.on_parked, "acknowledged < leader_end or self.durable_end < to_sync", "False"),
            rules=("R83",),
        ),
        "replication/a_lost_report_is_not_held",
    ),
    (
        _mutant(
            "a leader holds a fetch that does not wait there",
            (Leader.on_parked, "sequence != follower.waiter_sequence", "False"),
            rules=("R83",),
        ),
        "replication/fetches_that_wait_are_held",
    ),
    (
        _mutant(
            "a leader holds the fetch of a follower that does not know its start",
            (Leader.on_parked, "follower.log_start_offset < state.first_record", "False"),
            rules=("R82", "R83"),
        ),
        "replication/a_fetch_is_not_held_while_the_start_is_to_be_told",
    ),
    (
        _mutant(
            "a leader holds a fetch of another LeaderEpoch",
            (Leader.on_parked, "leader_epoch != self.leader_epoch", "False"),
            rules=("R1", "R83"),
        ),
        "replication/fetches_of_another_epoch_or_life_are_not_held",
    ),
    (
        _mutant(
            "a leader holds a fetch of another life of its follower",
            (Leader.on_parked, "incarnation != follower.incarnation", "False"),
            rules=("R10", "R83"),
        ),
        "replication/fetches_of_another_epoch_or_life_are_not_held",
    ),
    (
        _mutant(
            "a follower takes what its leader says of an earlier fetch",
            (Follower.on_parked_answer, "state.sequence != sequence", "False"),
            rules=("R83",),
        ),
        "replication/fetches_that_wait_are_held",
    ),
    (
        _mutant(
            "a follower goes on waiting although its leader does not hold its fetch",
            (Follower.on_parked_answer, "if not is_held:", "if False:"),
            rules=("R83",),
        ),
        "replication/a_lost_report_is_not_held",
    ),
    (
        _mutant(
            "a leader adds a follower that lacks the start of its LeaderEpoch to the ISR",
            (IsrKeeper.maybe_expand, "if follower.durable_end < state.epoch_start:", "if False:"),
            rules=("R18",),
        ),
        "replication/expansion_waits_for_the_epochs_start",
    ),
    (
        _mutant(
            "message ids above a cut are remembered",
            (IdKeeper.cutting, "self.table.cut(kept)", "pass"),
            rules=("R45",),
        ),
        "replication/a_message_id_that_was_cut",
    ),
    (
        _mutant(
            "a leader adds a follower below the secondary watermark to the ISR",
            (
                IsrKeeper.maybe_expand,
                "if state.end_of(replica, is_synced=not state.is_durable) < state.secondary_watermark:",
                "if False:",
            ),
            rules=("R12a",),
        ),
        "replication/joining_what_was_acknowledged_otherwise",
    ),
    (
        _mutant(
            "the first member that comes back leads, whoever may hold more",
            (election.elect, "and not awaited(partition, alive)", ""),
            rules=("R71",),
        ),
        "metadata/the_log_that_reaches_furthest_leads",
    ),
    (
        _mutant(
            "of the members that are back any one leads, however far its log reaches",
            (election.chosen_leader, "-returned[b].leader_epoch, -returned[b].offset, ", "0, "),
            rules=("R71",),
        ),
        "metadata/the_log_that_reaches_furthest_leads",
    ),
    (
        _mutant(
            "a LeaderEpoch counts for less than the length of a log",
            (
                election.chosen_leader,
                "-returned[b].leader_epoch, -returned[b].offset",
                "-returned[b].offset, -returned[b].leader_epoch",
            ),
            rules=("R71",),
        ),
        "metadata/the_log_that_reaches_furthest_leads",
    ),
    (
        _mutant(
            "members on their way are waited for in vain",
            (Failover.end_waits, "if not over:", "if True:"),
            rules=("R71",),
        ),
        "metadata/members_on_their_way_are_waited_for",
    ),
    (
        _mutant(
            "a leader confirms members that have come back before they have its records",
            (
                IsrKeeper._is_back_in_sync,
                "state.acknowledged(member.broker) >=",
                "True or state.acknowledged(member.broker) >=",
            ),
            rules=("R71",),
        ),
        "replication/members_that_come_back_are_confirmed",
    ),
    (
        _mutant(
            "an earlier life of a member is confirmed in the place of the one that is back",
            (IsrKeeper._is_back_in_sync, "follower.incarnation >= member.incarnation", "True"),
            rules=("R71",),
        ),
        "replication/members_that_come_back_are_confirmed",
    ),
    (
        _mutant(
            "a follower cuts what it knows as committed for a leader that lost its log",
            (Reconciler._unless_committed, "return LeaderLacksCommitted(agreed)", "return step"),
            rules=("R74",),
        ),
        "replication/a_leader_that_lost_its_log",
    ),
    (
        _mutant(
            "an emptied log is dropped for a leader that ends below it",
            (Follower._on_error, "if replica.high_watermark and not", "if False and not"),
            rules=("R74",),
        ),
        "replication/a_leader_that_lost_its_log",
    ),
    (
        _mutant(
            "records of a later LeaderEpoch than the known loss are cut, too",
            (Followership.may_cut_committed, "self.view.loss_epoch > (newest or 0)", "self.view.loss_epoch > 0"),
            rules=("R74",),
        ),
        "replication/a_loss_explains_no_later_one",
    ),
    (
        _mutant(
            "what is cut for a known loss is not kept",
            (_SettingAside.__call__, "if not self._is_due:", "if True:"),
            rules=("R74",),
        ),
        "replication/a_follower_outside_the_isr_knows_more",
    ),
    (
        _mutant(
            "the last member that lost its page cache leads as if it had lost nothing",
            (election.after_registration, "if has_lost_cache and elected", "if False and elected"),
            rules=("R74",),
        ),
        "replication/a_lost_page_cache_is_a_known_loss",
    ),
    (
        _mutant(
            "another than the one that holds more leads after a report of a loss",
            (election.after_withdrawal, "reported_by in candidates(left, alive)", "False"),
            rules=("R74",),
        ),
        "metadata/followers_hold_what_their_leader_lacks",
    ),
    (
        _mutant(
            "a report of an earlier leader deposes the present one",
            (partition_commands._withdraw_one, "if partition.leader != broker:", "if False:"),
            rules=("R74",),
        ),
        "metadata/followers_hold_what_their_leader_lacks",
    ),
    # No whole run reaches it: the forger's batches fail at their proof (R76) before, producers show their own tickets.
    (
        _mutant(
            "a transaction is opened without a ticket",
            (AppendRules._transactional_level, "self._tickets.check(ticket,", "str((ticket,"),
            (
                AppendRules._transactional_level,
                "sent.producer_epoch, self._target)",
                "sent.producer_epoch, self._target))",
            ),
            rules=("R48",),
        ),
        "replication/a_ticket_that_does_not_hold",
    ),
    (
        _mutant(
            "a transactional batch is acknowledged before it is committed",
            (
                AppendRules._transactional_level,
                "is_local=False, is_synced=level.is_synced or view.config.is_durable",
                "is_local=level.is_local, is_synced=level.is_synced",
            ),
            rules=("R48",),
        ),
        "replication/a_transactional_batch_is_acknowledged_when_it_is_committed",
    ),
    (
        _mutant(
            "a transactional batch is admitted for the level that it asks for",
            (AppendRules.admit, "if batch.level != asked:", "if False:"),
            rules=("R14", "R48"),
        ),
        "replication/a_transactional_batch_is_acknowledged_when_it_is_committed",
    ),
    (
        _mutant(
            "a late batch of an ended transaction begins another one",
            (ProducerTable._record_transactional, "Producer(header.producer_epoch, 0,", "Producer(0, 0,"),
            rules=("R48",),
        ),
        "replication/a_late_batch_of_an_ended_transaction",
    ),
    (
        _mutant(
            "the end of a transaction is answered before its marker is committed",
            (
                TransactionMarks._mark,
                "AckLevel(is_local=False, is_synced=view.config.is_durable)",
                "AckLevel(True, False)",
            ),
            rules=("R49",),
        ),
        "replication/a_marker_is_answered_when_it_is_committed",
    ),
    (
        _mutant(
            "a repeated end of a transaction is answered though its marker is not committed",
            (
                TransactionMarks._mark,
                "self._core.await_ack(level, self._core.log_end_offset,",
                "self._core.await_ack(level, 0,",
            ),
            rules=("R49",),
        ),
        "replication/a_marker_is_answered_when_it_is_committed",
    ),
    (
        _mutant(
            "a transaction is stable whose marker is not committed",
            (TransactionTable.last_stable, "if ended.marker >= high_watermark:", "if False:"),
            rules=("R49",),
        ),
        "replication/a_marker_is_answered_when_it_is_committed",
    ),
    (
        _mutant(
            "an open transaction is stable behind a later one",
            (TransactionTable._note_first, "if self._open else _NONE_OPEN", "if len(self._open) == 1 else _NONE_OPEN"),
            rules=("R48",),
        ),
        "replication/an_open_transaction_survives_restarts",
    ),
    (
        _mutant(
            "a truncation leaves a transaction ended whose marker it takes",
            (ProducerTable.restore, "self.transactions.restore(known.transactions)", "pass"),
            rules=("R49",),
        ),
        "replication/a_marker_is_lost_with_its_leader",
    ),
    (
        _mutant(
            "a follower begins at the log start without the transactions",
            (log_snapshot.encode_snapshot, "*_transactions(snapshot),", ""),
            rules=("R48",),
        ),
        "replication/snapshot_install_keeps_transactions",
    ),
    (
        _mutant(
            "an aborted transaction is taken for a committed one",
            (TransactionTable._end, "if marker is Marker.ABORT and", "if False and"),
            rules=("R48",),
        ),
        "replication/a_transaction_aborts",
    ),
    (
        _mutant(
            "a read-only stream takes no end of a transaction",
            (
                TransactionMarks._mark,
                "self._core.admission.refuse_marker(now)",
                "self._core.admission.refuse(level, lease_valid=True, now=now)",
            ),
            rules=("R49",),
        ),
        "replication/a_marker_is_taken_where_records_are_not",
    ),
    (
        _mutant(
            "consumers get the records of aborted transactions",
            (AbortedBatches.has, "return number >= 0 and", "return False and"),
            rules=("R50",),
        ),
        "replication/consumers_get_nothing_of_an_aborted_transaction",
    ),
    (
        _mutant(
            "consumers get the records of open transactions",
            (Readable.end_for, "else self.last_stable_offset", "else self.high_watermark"),
            rules=("R50",),
        ),
        "replication/consumers_wait_behind_an_open_transaction",
    ),
    (
        _mutant(
            "latest lies behind an open transaction",
            (Leader.latest, "if read_uncommitted:", "if True:"),
            rules=("R50",),
        ),
        "replication/consumers_wait_behind_an_open_transaction",
    ),
    (
        _mutant(
            "a follower takes a marker that it has for committed",
            (Followership.last_stable_offset, "(self.high_watermark)", "(self.log_end_offset)"),
            rules=("R50",),
        ),
        "replication/a_follower_serves_by_its_own_transactions",
    ),
    (
        _mutant(
            "compaction counts the records of aborted transactions",
            (
                CompactedSegments.decided_below,
                "AbortedBatches(transactions.aborted(state.log_start_offset, end))",
                "AbortedBatches()",
            ),
            rules=("R57",),
        ),
        "replication/compaction_counts_what_is_committed",
    ),
    (
        _mutant(
            "compaction does not wait for the end of a transaction",
            (CompactedSegments.decided_below, "transactions.last_stable(high_watermark)", "high_watermark"),
            rules=("R57",),
        ),
        "replication/compaction_counts_what_is_committed",
    ),
    (
        _mutant(
            "compaction does not look into transactional batches",
            (CompactableBatch.decode, "not in _READABLE", "not in (0, 1, 2)"),
            rules=("R57",),
        ),
        "replication/compaction_counts_what_is_committed",
    ),
    (
        _mutant(
            "a leader denies at once what its successor may have stored",
            (AppendRules._not_the_end, "expected < 0 or len(view.replicas) == 1", "True"),
            rules=("R46",),
        ),
        "replication/what_a_bare_publish_expects",
    ),
    (
        _mutant(
            "a leader denies at once that its last record has the message id which its successor's may have",
            (AppendRules._by_last_record, "if len(view.replicas) == 1", "if True"),
            rules=("R46",),
        ),
        "replication/what_a_bare_publish_expects",
    ),
    (
        _mutant(
            "a follower of a paused partition sleeps outside of the ISR",
            (Followership.may_sleep, "and self.broker in view.isr", ""),
            rules=("R47",),
        ),
        "replication/a_paused_replica_outside_the_isr_is_awake",
    ),
    (
        _mutant(
            "a leader takes the sleep of its followers for lag",
            (Pausing.excuse_sleepers, "if not state.view.paused:", "if True:"),
            rules=("R47",),
        ),
        "replication/a_paused_partition_sleeps_and_wakes",
    ),
    (
        _mutant(
            "a record leaves its partition paused", (Pausing.on_append, "self._ask(False, out)", "pass"), rules=("R47",)
        ),
        "replication/a_paused_partition_sleeps_and_wakes",
    ),
    (
        _mutant(
            "a follower that wakes takes its own sleep for the leader's silence",
            (Fetcher.fetch, "if replica.is_asleep:", "if False:"),
            rules=("R47",),
        ),
        "replication/the_record_that_wakes_a_paused_partition_is_lost",
    ),
    (
        _mutant(
            "a sleeping follower to which a record was pushed in vain is left alone",
            (DataWaiters.tick, "max(follower.last_fetch_at, follower.fired_at)", "follower.last_fetch_at"),
            rules=("R47",),
        ),
        "replication/the_record_that_wakes_a_paused_partition_is_lost",
    ),
    (
        _mutant(
            "an empty folder is taken in the place of another",
            (broker_commands._refused_folder, "if not command.last_incarnation and not command.replace:", "if False:"),
            rules=("R22",),
        ),
        "metadata/an_empty_folder_is_not_taken_for_the_one_of_a_broker",
    ),
    (
        _mutant(
            "a process with another folder takes the id of a living one",
            (broker_commands._refused_folder, "if known.alive and", "if False and"),
            rules=("R69",),
        ),
        "metadata/an_id_has_one_living_process",
    ),
    (
        _mutant(
            "any folder brings back what another one holds",
            (election.after_registration, "and proves(found)", ""),
            rules=("R22",),
        ),
        "metadata/the_right_folder_comes_back",
    ),
    (
        _mutant(
            "the right folder brings nothing back",
            (election.after_registration, "found is not None and proves(found)", "False"),
            rules=("R22",),
        ),
        "metadata/the_right_folder_comes_back",
    ),
    (
        _mutant(
            "a leader's word on a pause is taken in another partition epoch",
            (partition_commands._alter_one_paused, "item.expected_epoch != partition.epoch", "False"),
            rules=("R47",),
        ),
        "metadata/partitions_are_paused",
    ),
    (
        _mutant(
            "the adoption generation is stamped when all have told",
            (Repartitioning._next_step, "adopted >= marker.adoption_generation", "adopted >= self._state.generation"),
            rules=("R58",),
        ),
        "metadata/adoption_is_stamped_at_the_cutover",
    ),
    (
        _mutant(
            "a cutover does not wait for its leaders",
            (Repartitioning._next_step, "if self.not_ready(stream):", "if False:"),
            rules=("R58",),
        ),
        "metadata/a_repartition_waits_for_leaders",
    ),
    (
        _mutant(
            "a cutover does not wait for min ISR members",
            (Repartitioning.not_ready, "len(stream.partitions[number].isr) < stream.min_isr", "False"),
            rules=("R58",),
        ),
        "metadata/a_repartition_waits_for_min_isr",
    ),
    (
        _mutant(
            "a cutover is cancelled",
            (repartition_commands.why_not_cancelled, "marker.phase is not RepartitionPhase.PREPARED", "False"),
            rules=("R58",),
        ),
        "metadata/a_repartition_is_cancelled",
    ),
    (
        _mutant(
            "a layout follows one that is not told",
            (repartition_commands.cut_over, "if not stream.layouts[-1].is_reported:", "if False:"),
            rules=("R58",),
        ),
        "metadata/a_cutover_is_told_anew_after_a_loss",
    ),
    (
        _mutant(
            "a cutover is told by a leader of another LeaderEpoch",
            (repartition_commands._why_not_reported, "item.leader_epoch != partition.leader_epoch", "False"),
            rules=("R59",),
        ),
        "metadata/cutovers_are_told_by_leaders",
    ),
    (
        _mutant(
            "a cutover is told twice",
            (
                repartition_commands._why_not_reported,
                "stream.layouts[-1].start(item.partition.partition) != NOT_REPORTED",
                "item.partition.partition >= len(stream.layouts[-1].starts)",
            ),
            rules=("R59",),
        ),
        "metadata/cutovers_are_told_by_leaders",
    ),
    (
        _mutant(
            "an old report counts for a later cutover",
            (repartition_commands._why_not_reported, "item.version != stream.partitioning_version", "False"),
            rules=("R59",),
        ),
        "metadata/cutovers_are_told_by_leaders",
    ),
    (
        _mutant(
            "after an unclean election the old cutover stays",
            (repartition_commands.forget_reports, "if _last_start(stream, key.partition) <= 0:", "if True:"),
            rules=("R59",),
        ),
        "metadata/a_cutover_is_told_anew_after_a_loss",
    ),
    (
        _mutant(
            "a reassignment makes a draining broker a replica",
            (reassignment_targets.why_not_target, "    if draining:", "    if False:"),
            rules=("R93",),
        ),
        "metadata/a_broker_is_drained",
    ),
    (
        _mutant(
            "a restart ends a drain",
            (broker_commands.register_broker, "draining=known is not None and known.draining", "draining=False"),
            rules=("R93",),
        ),
        "metadata/a_broker_is_drained",
    ),
    (
        _mutant(
            "a broker is removed that is a replica",
            (broker_removal.why_not_removed, "    if held.count:", "    if False:"),
            rules=("R92",),
        ),
        "metadata/a_dead_broker_is_removed",
    ),
    (
        _mutant(
            "a broker is removed that a reassignment is about to make a replica",
            (broker_removal._is_concerned, "broker in moving.target or broker in moving.original", "False"),
            rules=("R92",),
        ),
        "metadata/a_dead_broker_is_removed",
    ),
    (
        _mutant(
            "a broker is removed that may hold what a lost decision moved to it",
            (broker_removal.why_not_removed, "    if unheard.count:", "    if False:"),
            rules=("R92",),
        ),
        "metadata/a_broker_that_may_hold_what_a_lost_decision_moved",
    ),
    (
        _mutant(
            "a broker is removed that holds the last copy",
            (broker_removal.why_not_removed, "    if alone.count:", "    if False:"),
            rules=("R92",),
        ),
        "metadata/a_dead_broker_is_removed",
    ),
    (
        _mutant(
            "the label of a dead broker counts",
            (
                Repartitioning.adopted,
                "for broker in self._live() if broker in self._adoption",
                "for broker in self._adoption",
            ),
            rules=("R60",),
        ),
        "metadata/adoption_counts_live_brokers",
    ),
    (
        _mutant(
            "no label is taken for adoption",
            (Repartitioning._next_step, "adopted is not None and adopted >=", "adopted is None or adopted >="),
            rules=("R60",),
        ),
        "metadata/a_stream_shrinks",
    ),
    (
        _mutant(
            "a repartition is finished before all have told",
            (repartition_commands.finish, "or not stream.layouts[-1].is_reported", ""),
            rules=("R60",),
        ),
        "metadata/cutovers_are_told_by_leaders",
    ),
    (
        _mutant(
            "a retired partition goes that a repartition uses again",
            (repartition_commands._may_go, "and stream.repartition is None ", ""),
            rules=("R60",),
        ),
        "metadata/retired_partitions_without_records_go",
    ),
    (
        _mutant(
            "commits of members that were removed are taken",
            (Group.check_commit, "member = self._known(member_id)", "member = self.members.get(member_id)"),
            (Group.check_commit, "if generation !=", "if member is None:\n        return\n    if generation !="),
            rules=("R55",),
        ),
        "groups/a_member_that_dies",
    ),
    (
        _mutant(
            "commits of another generation are taken",
            (Group.check_commit, "if generation != member.generation:", "if False:"),
            rules=("R55",),
        ),
        "groups/a_fenced_commit",
    ),
    (
        _mutant(
            "a commit of a member that comes late takes a later one back",
            (Group.check_commit, "if 0 < number < member.newest_commit:", "if False:"),
            rules=("R55",),
        ),
        "groups/a_commit_that_comes_late",
    ),
    (
        _mutant(
            "a new coordinator does not know the numbers of commits",
            (Group.begin, "self._numbers.get(member.id, 0)", "0"),
            rules=("R55",),
        ),
        "groups/a_commit_that_comes_late",
    ),
    (
        _mutant(
            "commits of partitions that are others' are taken",
            (Group.check_commit, "others = sorted(set(offsets) - member.held)", "others: list[StreamPartition] = []"),
            rules=("R55",),
        ),
        "groups/a_fenced_commit",
    ),
    (
        _mutant(
            "offsets are reset while a group has members",
            (GroupShard._administrate, "if group.members:", "if False:"),
            rules=("R55",),
        ),
        "groups/a_reset_is_refused",
    ),
    (
        _mutant(
            "a deposed coordinator inside its lease tells what was committed",
            (GroupShard.settle, "if not records and any(", "if False and any("),
            rules=("R52",),
        ),
        "groups/a_reset_is_refused",
    ),
    (
        _mutant(
            "a member that has not given up in time loses its partitions at once",
            (Group.on_time, "late = [", "dead += [m for m in self.members.values() if m.revoke_by]\n    late = ["),
            rules=("R53",),
        ),
        "groups/a_member_that_does_not_give_up",
    ),
    (
        _mutant(
            "sessions end at the coordinator as early as by a member's slower clock",
            (Group.heartbeat, "member.session_timeout * CLOCK_SLACK", "member.session_timeout"),
            rules=("R53",),
        ),
        "groups/a_member_that_dies",
    ),
    (
        _mutant(
            "another batch under a sequence that is taken is told as stored",
            (ProducerTable.check, "if sent_crc and body_crc and sent_crc != body_crc:", "if False:"),
            rules=("R75",),
        ),
        "replication/another_batch_under_a_sequence_is_no_repetition",
    ),
    (
        _mutant(
            "a record that was left out of a batch is told where it would have been",
            (Repetitions.left_out, "originals[place] = UNKNOWN_OFFSET", "pass"),
            rules=("R45",),
        ),
        "replication/a_repetition_whose_ids_are_forgotten",
    ),
    (
        _mutant(
            "a later record is told as the original of one that was left out",
            (Repetitions.left_out, "found is None or found >= end", "found is None"),
            rules=("R45",),
        ),
        "replication/a_repetition_whose_ids_are_forgotten",
    ),
    (
        _mutant(
            "the windows of a log end by its leader's own clock",
            (Appending.__init__, "context.metadata.agreed_time_ns)", "context.time_ns)"),
            rules=("R73",),
        ),
        "replication/a_message_id_and_clocks_that_are_off",
    ),
    (
        _mutant(
            "a coordinator forgets groups by its own clock",
            (Times.is_over, "return self.agreed is not None and date < self.agreed", "return date < self.wall"),
            rules=("R73",),
        ),
        "groups/a_coordinator_whose_clock_is_off",
    ),
    (
        _mutant(
            "a coordinator whose clock is off dates by it",
            (Times.date, "return UNDATED if self.agreed is None else self.agreed", "return self.wall"),
            rules=("R73",),
        ),
        "groups/a_coordinator_whose_clock_is_off",
    ),
    (
        _mutant(
            "a coordinator that slept removes members that live",
            (GroupShard._look_at_clock, "if seen is not None and", "if False and"),
            rules=("R54",),
        ),
        "groups/a_coordinator_that_slept",
    ),
    (
        _mutant(
            "one step frees a partition and assigns it",
            (Group._reconcile, "held = self._freed.union(", "held: set[StreamPartition] = set().union("),
            rules=("R51",),
        ),
        "groups/a_second_member",
    ),
    (
        _mutant(
            "a process that takes the instance of another one does not fence it",
            (Group._join, "self._remember_replaced(before.id)", "pass"),
            rules=("R56",),
        ),
        "groups/a_static_member_restarts",
    ),
    (
        _mutant(
            "records are deleted by the word of a leader of another LeaderEpoch",
            (stream_commands.delete_records, "item.leader_epoch != known.leader_epoch", "False"),
            rules=("R44",),
        ),
        "metadata/records_are_deleted",
    ),
    (
        _mutant(
            "a leader that holds only deleted records goes on below them",
            (Replica._prepare, "partition_log.log_end_offset < view.purged_end", "False"),
            rules=("R44",),
        ),
        "replication/an_unclean_leader_that_holds_only_deleted_records",
    ),
    (
        _mutant(
            "a leader denies a batch that a member of the ISR may hold",
            (Admission.refusal_of, " or self._state.isr_has_cut_to_this_log()", " or True"),
            rules=("R33",),
        ),
        "replication/a_leader_that_cannot_deny_a_sequence",
    ),
    (
        _mutant(
            "an epoch without a record stays where the next record begins above the log's end",
            (LeaderEpochCache.assign, "if entry.start < end)", "if entry.start < start)"),
            rules=("R7",),
        ),
        "replication/leader_epoch_without_a_record",
    ),
    (
        _mutant(
            "a replica of the ISR asks again at once when it is refused",
            (
                Follower._on_error,
                "or ours, may be moving.\n",
                "or ours, may be moving.\n                return self._reconcile(now)\n",
            ),
            rules=("R39",),
        ),
        "replication/a_follower_that_is_relied_on_is_refused",
    ),
    (
        _mutant(
            "a follower whose log was emptied does not ask for the end of its LeaderEpoch",
            (
                Reconciler.begin,
                "not self._replica.log_end_offset",
                "self._replica.log_end_offset == self._replica.log_start_offset",
            ),
            rules=("R7",),
        ),
        "replication/empty_log_that_knows_its_last_epoch",
    ),
    (
        _mutant(
            "a log that diverges from the leader's below its own log start is only emptied",
            (
                Reconciler._cut_to,
                "return CutTo(cut) if replica.is_relied_on else BeginAnew()",
                "return CutTo(cut)",
            ),
            rules=("R7",),
        ),
        "replication/empty_log_that_knows_its_last_epoch",
    ),
    (
        _mutant(
            "a member of the ISR truncates to its log start when the leader has no LeaderEpoch so old",
            (
                Reconciler._nothing_so_old,
                "min(cut, max(leaders_start, replica.log_start_offset))",
                "replica.log_start_offset",
            ),
            rules=("R8",),
        ),
        "replication/retention_left_no_epoch_in_common",
    ),
    (
        _mutant(
            "a log without the state at its start knows all its producers",
            (derived_state.without_past, "is_partial=start > 0", "is_partial=False"),
            rules=("R33",),
        ),
        "replication/log_start_without_its_snapshot",
    ),
    (
        _mutant(
            "a snapshot does not say that its producers are partial",
            (log_snapshot.encode_snapshot, "if snapshot.producers.is_partial", "if False"),
            rules=("R33",),
        ),
        "replication/log_start_without_its_snapshot",
    ),
    (
        _mutant(
            "a controller that hears a majority again goes on in its controller epoch",
            (ControllerCore.on_raft, "effects += [*self._stand_by(), *self._start_epoch(now)]", "pass"),
            rules=("R28",),
        ),
        "metadata/without_a_raft_majority_it_does_not_probe",
    ),
    (
        _mutant(
            "keys go to a leader that has not been told that it leads",
            (Liveness.begun_generation, "watch.begun if", "watch.generation if"),
            rules=("R58",),
        ),
        "metadata/a_repartition_waits_for_leaders",
    ),
    (
        _mutant(
            "a controller that clients cannot ask keeps its controller epoch",
            (ControllerCore._decide, "now - self._unheard_since >= self._unheard_patience", "False"),
            rules=("R28",),
        ),
        "metadata/a_controller_that_clients_cannot_ask_hands_over",
    ),
    (
        _mutant(
            "voters that clients cannot ask hand over to each other without a pause",
            (ControllerCore._decide, "min(2 * self._unheard_patience, MOST_UNHEARD_PATIENCE_S)", "5.0"),
            rules=("R28",),
        ),
        "metadata/a_controller_that_clients_cannot_ask_hands_over",
    ),
    (
        _mutant(
            "a replica believes old metadata that the others rely on it",
            (Reconciler._metadata_is_older, "answer.partition_epoch > self._replica.view.epoch", "False"),
            rules=("R8",),
        ),
        "replication/retention_left_no_epoch_in_common",
    ),
    (
        _mutant(
            "the driver of a leader that was without NATS does not announce it",
            (LeaderDriver.on_connection, "self._run(self.core.announce())", "pass"),
            rules=("R32",),
        ),
        "replication/leaders_connection_loss_and_lag_clocks",
    ),
    (
        _mutant(
            "the driver of a follower leaves out that its disk hangs",
            (FollowerDriver._send_fetch, "request.disk_hangs = effect.disk_hangs", "pass"),
            rules=("R40",),
        ),
        "replication/a_member_whose_disk_hangs_is_not_waited_for",
    ),
    (
        _mutant(
            "the driver of a follower begins its numbers anew in each role",
            (Replica._end_role, "self._sequence = role.sequence", "pass"),
            rules=("R9",),
        ),
        "replication/leader_failover_truncates_by_epoch",
    ),
    (
        _mutant(
            "a leader whose disk hangs leaves an ISR that is too small without it",
            (AdminRequests.carry_out, "move.disk_hangs and self._can_do_without_leader(move)", "move.disk_hangs"),
            rules=("R40",),
        ),
        "metadata/a_member_dies_while_a_hung_leader_drains",
    ),
    (
        _mutant(
            "a founder counts its questions whether they come back or not",
            (Bootstrap.tick, "self._out += 1", "self._came_back += 1"),
            rules=("R41",),
        ),
        "metadata/a_founder_that_nats_does_not_serve",
    ),
    (
        _mutant(
            "questions that come back all at once count one by one",
            (Bootstrap.on_own_question, "if self._out:", "if True:"),
            rules=("R41",),
        ),
        "metadata/a_founder_whose_questions_come_late",
    ),
    (
        _mutant(
            "a founder relies on silence in a flood",
            (Bootstrap.on_flood, "if not self.is_over:", "if False:"),
            rules=("R41",),
        ),
        "metadata/a_founder_in_a_flood",
    ),
    (
        _mutant(
            "a replica whose log a lost decision may have moved counts as one that was always empty",
            (broker_commands.register_broker, "unsound[key] = missing", "pass"),
            rules=("R90",),
        ),
        "metadata/logs_that_a_lost_decision_moved",
    ),
    (
        _mutant(
            "a broker that has the metadata of before the cluster began anew is registered",
            (broker_commands.register_broker, "command.recovered_at < ledger.recovered_at", "False"),
            rules=("R90",),
        ),
        "metadata/logs_that_a_lost_decision_moved",
    ),
    (
        _mutant(
            "a founder that slept relies on the silence of that time",
            (Bootstrap.tick, "if -inf < self._due < now - self._late_s:", "if False:"),
            rules=("R41",),
        ),
        "metadata/a_founder_that_slept",
    ),
    (
        _mutant(
            "a founder whose BeginControllerEpoch was lost proposes the next one without asking",
            (ControllerCore.on_outcome, "if outcome is None and self._bootstrap is not None:", "if False:"),
            rules=("R41",),
        ),
        "metadata/a_founder_whose_first_epoch_is_lost",
    ),
    (
        _mutant(
            "a founder whose BeginControllerEpoch may be committed still gives way to one that only asks",
            (ControllerCore.on_outcome, "is_proposed=self._bootstrap.is_proposed", "is_proposed=False"),
            rules=("R41",),
        ),
        "metadata/a_founder_whose_first_epoch_may_be_committed",
    ),
    (
        _mutant("of two founders both go on", (Bootstrap.on_claim, "self._begin_anew()", "pass"), rules=("R41",)),
        "metadata/founders_that_ask_at_once",
    ),
    (
        _mutant(
            "a cluster is founded beside a living one",
            (Bootstrap.on_claim, "self.taken_by = self.taken_by or claim", "pass"),
            rules=("R41",),
        ),
        "metadata/nobody_founds_beside_a_living_cluster",
    ),
    (
        _mutant(
            "a leader appends publishes above the quota of their stream",
            (Quota.refuse, "if not self.is_set:", "if True:"),
            rules=("R36",),
        ),
        "replication/quota_refuses_until_the_next_second",
    ),
    (
        _mutant(
            "what is appended is not counted against the quota",
            (Quota.take, "if self.is_set:", "if False:"),
            rules=("R36",),
        ),
        "replication/quota_refuses_until_the_next_second",
    ),
    (
        _mutant(
            "a leader keeps the quota that it began with",
            (Leader.on_view, "self.quota.configure(view.config, now)", "pass"),
            rules=("R36",),
        ),
        "replication/quota_refuses_until_the_next_second",
    ),
    (
        _mutant(
            "a controller believes a 503 of which nothing else tells",
            (Liveness.is_gone, "if broker in self._raft_lost_at:", "if True:"),
            rules=("R42",),
        ),
        "metadata/a_503_alone_proves_nothing",
    ),
    (
        _mutant(
            "a controller that stood still counts time in which it did not ask",
            (Liveness.is_gone, "max(watch.asked_at, watch.since,", "max(watch.heard_at, watch.since,"),
            rules=("R25",),
        ),
        "metadata/a_controller_that_stood_still_believes_no_503",
    ),
    (
        _mutant(
            "a controller that stood still does not wait for its own probe",
            (Liveness.is_gone, " and self._own_sent_heard >= watch.refused_at", ""),
            rules=("R25",),
        ),
        "metadata/a_controller_that_stood_still_believes_no_503",
    ),
    (
        _mutant(
            "a leader is deposed while its broker opens thousands of others",
            (
                Failover.count_witnesses,
                "not self._may_be_opening(suspicion, now)",
                "True",
            ),
            rules=("R27",),
        ),
        "metadata/a_leader_that_opens_is_waited_for",
    ),
    (
        _mutant(
            "a leader that hangs is waited for while its broker opens others",
            (Failover._may_be_opening, "ended < at_most", "True"),
            rules=("R27",),
        ),
        "metadata/a_leader_that_hangs_beside_others_is_replaced",
    ),
    (
        _mutant(
            "a leader that opens is waited for without limit",
            (Failover._may_be_opening, " and now - suspicion.waited_since < OPENING_LIMIT_S", ""),
            rules=("R27",),
        ),
        "metadata/a_leader_that_opens_is_waited_for_no_longer_than_30_s",
    ),
    (
        _mutant(
            "the log does not say that a leader is waited for",
            (Failover.count_witnesses, "elif not suspicion.is_noted", "elif False"),
            rules=("R27",),
        ),
        "metadata/a_leader_that_opens_is_waited_for_no_longer_than_30_s",
    ),
    (
        _mutant(
            "a broker that takes up no roles any more is waited for",
            (Liveness.takes_up_roles, " and now - watch.roles_went_on_at < ROLES_PATIENCE_S", ""),
            rules=("R27",),
        ),
        "metadata/a_leader_that_opens_is_waited_for",
    ),
    (
        _mutant(
            "followers that heard a 503 are witnesses",
            (Failover.count_witnesses, "fresh.keys() - suspicion.refused", "fresh"),
            rules=("R42",),
        ),
        "metadata/a_503_alone_proves_nothing",
    ),
    (
        _mutant(
            "a newer producer does not fence the older one",
            (
                TransactionShard._init,
                "self._decisions.decide(known, Outcome.NONE",
                "self._decisions.decide(known, Outcome.ABORTED",
            ),
            rules=("R78",),
        ),
        "transactions/a_new_producer",
    ),
    (
        _mutant(
            "an init that waits hides how the transaction before ended",
            (TransactionShard._release, "held.sort(", "[*held].sort("),
            rules=("R78",),
        ),
        "transactions/a_new_producer",
    ),
    (
        _mutant(
            "a new coordinator does not tell of what was decided",
            (Decisions.resume, "self._tell(transaction)", "pass"),
            rules=("R78",),
        ),
        "transactions/a_coordinator_that_dies_after_its_decision",
    ),
    (
        _mutant(
            "a new coordinator aborts at once what it finds open",
            (Decisions.resume, "max(left, patience)", "left"),
            rules=("R78",),
        ),
        "transactions/a_timeout",
    ),
    (
        _mutant(
            "an end of nothing leaves its epoch to the next transaction",
            (TransactionShard._end, "become_idle(transaction, Outcome.ABORTED, times, records)", "validate(())"),
            rules=("R78",),
        ),
        "transactions/a_transaction",
    ),
    (
        _mutant(
            "a deleted stream holds up a transaction for ever",
            (Decisions.drop_gone, "each.is_gone(view)", "False"),
            rules=("R78",),
        ),
        "transactions/a_partition_that_is_not_reached",
    ),
    (
        _mutant(
            "the next transaction begins before the one before is known everywhere",
            (
                TransactionShard._add,
                "return self._hold(transaction.transactional_id, since, token, request, now)",
                "return AddResponse()",
            ),
            rules=("R78",),
        ),
        "transactions/a_partition_that_is_not_reached",
    ),
    (
        _mutant(
            "the record of a family decides nothing by itself",
            (Families.begin, "self._decisions.imply(transaction, since=0.0)", "continue"),
            rules=("R79",),
        ),
        "transactions/a_family_whose_coordinator_dies",
    ),
    (
        _mutant(
            "the records of members come in front of that of their family",
            (_place, "return 1", "return 3"),
            rules=("R79",),
        ),
        "transactions/a_family",
    ),
    (
        _mutant(
            "a commit that is sent again is taken for another one",
            (Families._was_committed, "if any(each.digest == digest and", "if any(False and"),
            (Families._was_committed, "return self._are_committed(end.members)", "return False"),
            rules=("R79",),
        ),
        "transactions/a_family",
    ),
    (
        _mutant(
            "a new leader serves what its own leader had removed",
            (Leader.__init__, "withheld_below=withheld_below", "withheld_below=Offset(0)"),
            rules=("R82",),
        ),
        "replication/a_follower_holds_what_its_leader_has_removed",
    ),
    (
        _mutant(
            "what an earlier leader had removed is withheld from the log that an unclean election leaves",
            (Follower.on_truncated, "min(replica.withheld_below, log_end)", "replica.withheld_below"),
            rules=("R82",),
        ),
        "replication/a_follower_holds_what_its_leader_has_removed",
    ),
    (
        _mutant(
            "a follower serves consumers by an old answer that it takes late",
            (Follower.on_answer, "self._fetcher.sent_at", "now"),
            rules=("R34", "R82"),
        ),
        "replication/a_stopped_follower_holds_an_old_answer",
    ),
    (
        _mutant(
            "a leader waits for ever until a silent follower knows its log start",
            (SettledStart.at, "self._rising > self.settled and", "False and"),
            rules=("R82",),
        ),
        "replication/a_follower_holds_what_its_leader_has_removed",
    ),
    (
        _mutant(
            "a commit of which nothing is known any more is told as not committed",
            (Families._are_committed, "None if None in commits else True", "None not in commits"),
            rules=("R81",),
        ),
        "transactions/a_commit_behind_later_ones",
    ),
    (
        _mutant(
            "an abort of which nothing is known any more is told as of what was not committed",
            (Families.abort, "return None not in commits", "return True"),
            rules=("R81",),
        ),
        "transactions/a_commit_behind_later_ones",
    ),
    (
        _mutant(
            "a commit of a family is known by its number, not by its transactions",
            (
                Families._was_committed,
                "(end.members or each.sequence == end.sequence)",
                "each.sequence == end.sequence",
            ),
            rules=("R81",),
        ),
        "transactions/a_commit_behind_later_ones",
    ),
    (
        _mutant(
            "what a family has committed is told as not committed under a larger number",
            (Families._not_open_refusal, "if was_committed or committed is not None:", "if False:"),
            rules=("R81",),
        ),
        "transactions/a_commit_behind_later_ones",
    ),
    (
        _mutant(
            "a commit of a family that may be forgotten is told as not committed",
            (Families._not_open_refusal, "if was_committed is None:", "if False:"),
            rules=("R81",),
        ),
        "transactions/a_commit_behind_later_ones",
    ),
    (
        _mutant(
            "a commit before the last one is forgotten",
            (Families.commit, "family.kept()[-EARLIER_KEPT:]", "()"),
            rules=("R81",),
        ),
        "transactions/a_commit_behind_later_ones",
    ),
    (
        _mutant(
            "the attempts that a commit has passed over stay open",
            (Families.commit, "if end.others:", "if False:"),
            rules=("R79",),
        ),
        "transactions/a_family",
    ),
    (
        _mutant(
            "an operator aborts what is decided to be committed",
            (TransactionShard._administrate, "if not outcome.commits:", "if True:"),
            rules=("R78",),
        ),
        "transactions/an_operator_aborts",
    ),
    (
        _mutant(
            "an offset is told while a transaction commits another one",
            (PendingOffsets.check_none, "if not found:", "if True:"),
            rules=("R80",),
        ),
        "groups/offsets_of_a_transaction",
    ),
    (
        _mutant(
            "offsets are pending after the end of their transaction",
            (PendingOffsets.commit, "present.producer_epoch > producer_epoch", "False"),
            rules=("R80",),
        ),
        "groups/offsets_of_a_transaction",
    ),
    (
        _mutant(
            "offsets of an aborted transaction are committed",
            (GroupShard._end_transaction, "if request.commits and left:", "if left:"),
            rules=("R80",),
        ),
        "groups/offsets_of_a_transaction",
    ),
)
"""Mutants of states that no run of the simulation reaches (an unclean election, files of an earlier version), and of
drivers that lose what only makes a cluster slower, each with the name of the transcript that fails."""

SEEN_BY_CLIENTS: tuple[tuple[Mutant, str], ...] = (
    # A run shows it only if a group looks in the moment between a log start and its settling, and another member still
    # reads below it from a follower.
    (
        _mutant(
            "a group goes on past records that followers still serve",
            (GroupGate._ask_log_starts, "start.settled)", "start.first)"),
            rules=("R82",),
        ),
        "some replica may serve them still",
    ),
)
"""Mutants that runs of the simulation reach too seldom, each with the case of the client's unit test that fails
(`tests/unit/tidelog/client/group/test_repartitioned_groups.py`)."""
