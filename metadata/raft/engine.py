"""PySyncObj's Raft, corrected. Journal, snapshots and poller are ours (`metadata.raft.pysyncobj_internals` puts them
in, and has all names of PySyncObj's private parts). The rest are overrides of the methods that the tick calls:

* `tick` reads the sockets first when it comes late (a paused process must hear its leader before it asks for votes).
* Commands are sent to the followers when they are added, not with the next heartbeat; a commit goes out when it
  happens.
* A leader applies, and answers, nothing that its own journal has not synced.
* A tick applies as much as is done in a moment. The state machine prepares a command that takes longer
  (`StateMachine.prepare`), a turn in each tick. So the node hears and sends heartbeats meanwhile; what is committed
  behind that command waits for it.
* Nothing but regular commands is executed (stock unpickles and runs membership and version commands from the log); an
  `apply` or a callback that raises neither stops the log nor applies an entry twice.
* Before an election a majority must grant a pre-vote: it knows of no leader and lacks no entry that this node has not.
  So a node that was paused or cut off cannot depose the leader. The question carries the term of the voter that asks;
  one that hears no leader takes over a later term from it.
* A leader that is silent on open connections is waited for: most often its process waits for its turn on a busy
  machine, and an election would take work from all. When its connection closes, the followers ask for votes at once,
  in the order of their addresses, FAILOVER_STEP_S apart, so that they do not split the vote.
* A leader that gives way (`hand_over`) says so to each voter, after all entries that it has sent. They run at once as
  well, the one that has acknowledged most first. The connections stay: what was forwarded to the leader gets its
  answer, and the leader votes. A voter of an earlier version, which does not know the message, closes the connection,
  and runs for that reason.
* A voter that starts with an empty disk may have forgotten a vote, and what it has confirmed. Until it has
  synchronised it votes only where the whole group is new: each of the other voters is connected, and has said in its
  questions for pre-votes that its disk is empty as well. So a group is founded by all of its voters. A majority with
  empty disks waits for the others, whose entries it would make them forget. A voter that has set damaged files aside is
  not new.
* Such a voter hears no leader before LISTENS_AFTER connection timeouts. A leader that was deposed by a vote, or by an
  acknowledgement, that the voter has forgotten would go on with its answers, and what it commits with them takes the
  place of what its successor has committed. A leader that still leads after that time has a majority without this
  voter. In a new group, as all of its voters say when they connect, there is nothing to forget.
* A node whose journal has no room (`Journal.stalled`) stands still like a paused process: from the failed write on
  nothing leaves it, a leader applies nothing, and no tick runs until everything pending is durable. What a message
  began when the disk was full is finished in memory first: an exception in the middle of PySyncObj could leave a leader
  in a term that it was not elected for.

Times are seconds of the node's monotonic clock (`metadata.raft.ports`).
"""

# ruff: noqa: N802, N803 - the names are PySyncObj's

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from pysyncobj import FAIL_REASON, SyncObjConf
from pysyncobj.node import Node

from metadata.raft.journal import Entry, Journal
from metadata.raft.journal_mark import JournalMark, mark_path
from metadata.raft.ports import RaftPorts
from metadata.raft.pysyncobj_internals import CommandCallback, SyncObjInternals
from metadata.raft.set_aside import has_set_aside
from metadata.raft.snapshot import CHUNK_BYTES, SnapshotStore
from metadata.raft.tls import RaftTls
from metadata.raft.transport import HardenedTransport
from metadata.raft.types import (
    MAX_PENDING_COMMANDS,
    REGULAR,
    ExitProcess,
    RaftConfig,
    RaftRole,
    RaftStatus,
    StateMachine,
)

_log = logging.getLogger(__name__)

BATCH_BYTES = 4 << 20
"""Commands of one append_entries message. Far above MAX_COMMAND_BYTES: stock breaks on a command that fills a batch."""

MAX_QUEUED_COMMANDS = 4 * MAX_PENDING_COMMANDS
"""Commands, forwarded ones included, that wait for the next tick. One more is refused."""

APPLIED_PER_TICK = 100
"""Entries; more wait for the next tick."""

COMPACTION_BYTES = 64 << 20
"""A log with more bytes of commands is compacted, however few entries it has."""

HAND_OVER_PATIENCE = 4
"""A node that gave the leadership up does not run again before this many longest election timeouts."""
FAILOVER_DELAY_S = 0.002
FAILOVER_STEP_S = 0.03

LEADERLESS_SHARE = 1 / 3
"""Part of an election timeout for which a node waits that hears no leader. The others ask it for pre-votes, and it
asks them, so that no two of them run against each other for long."""

PRE_VOTE_ROUND_S = 0.03
"""A round of pre-votes lasts so long and up to as much again; then the next begins."""

LEADERLESS_INTERVAL_S = 5.0
"""A voter without a leader says so often why, and at once when the reason is another."""
LEADERLESS_PATIENCE_S = 2.0
"""Before that, after its start, it says nothing."""

LISTENS_AFTER = 2
"""Connection timeouts after its start for which a voter that may have forgotten something hears no leader. By then the
connections of its earlier life are closed, and a leader that only they kept has stepped down (leaderFallbackTimeout).
"""

STALLED_RETRY_S = 0.1
"""A journal that found no room is tried again so often."""

TIMER_SLACK_S = 0.0005
"""Added to a deadline so that the tick finds it passed."""

JOURNAL_FILE = "journal"
SNAPSHOT_FILE = "snapshot"


@dataclass(frozen=True, slots=True)
class ApplyFailure:
    """The value that a proposer's callback gets when `apply` raised."""

    error: Exception


@dataclass(slots=True)
class _PreVoteRound:
    term: int
    ends_at: float
    granted_by: set[Node]


class _HarmlessTruncation(logging.Filter):
    """Drops PySyncObj's alarm about truncating applied entries: the journal ignores that request (see
    Journal.deleteEntriesFrom).
    """

    def filter(self, record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("truncating already-applied log entries")


_HARMLESS_TRUNCATION = _HarmlessTruncation()


class RaftEngine(SyncObjInternals):
    """One node of the group, without an event loop: the owner calls `tick` at `next_deadline` and whenever the poller
    is readable.

    The class has more than thirty methods because PySyncObj has one class for the node, whose methods it overrides.
    """

    def __init__(
        self,
        config: RaftConfig,
        state_machine: StateMachine,
        *,
        bind_host: str | None,
        resolve: Callable[[str], str | None],
        on_peer_lost: Callable[[str], None],
        exit_process: ExitProcess,
        ports: RaftPorts,
    ) -> None:
        """Opens the files and binds the address. The directory must exist and be locked by the caller.

        Raises RaftStorageError, RaftAddressError, RaftConfigurationError.
        """
        logging.getLogger("pysyncobj.syncobj").addFilter(_HARMLESS_TRUNCATION)
        self._state_machine = state_machine
        self._rng = ports.rng
        self._leader_heard_at = float("-inf")
        self._pre_vote: _PreVoteRound | None = None
        self._new_peers: dict[Node, bool] = {}
        """Whether their disks are empty: the voters that are connected and have asked for pre-votes."""
        self._group = config.group
        self._warn_leaderless_at = ports.monotonic() + LEADERLESS_INTERVAL_S + LEADERLESS_PATIENCE_S
        self._said = ""
        """Last, of the reasons for which no leader is elected."""
        self._started_at = self._last_tick = ports.monotonic()
        self._is_applying = False
        """Committed entries, or what the last one left to do, wait for the next tick."""
        self._said_commit_index = 0
        """What the followers were told when this node led last."""
        self._has_set_aside = has_set_aside(config.directory, ports.files)
        snapshots = SnapshotStore(
            config.directory / SNAPSHOT_FILE,
            state_machine,
            exit_process=exit_process,
            may_send=self._may_send,
            ports=ports,
        )
        journal = Journal(
            config.directory / JOURNAL_FILE,
            snapshot=snapshots.head(),
            exit_process=exit_process,
            boot_id=config.boot_id,
            mark=JournalMark(mark_path(config.directory), ports.files),
            files=ports.files,
        )
        poller = ports.make_poller()
        make_transport = partial(
            HardenedTransport,
            secrets=config.secrets,
            tls=None if config.certificates is None else RaftTls(config.certificates),
            group=config.group,
            bind_host=bind_host,
            make_socket=ports.make_socket,
            resolve=resolve,
            on_peer_lost=on_peer_lost,
        )
        try:
            super().__init__(
                config.address,
                config.peers,
                configuration=_pysyncobj_configuration(config),
                journal=journal,
                snapshots=snapshots,
                poller=poller,
                monotonic=ports.monotonic,
                make_transport=make_transport,
            )
        except BaseException:
            journal._destroy()
            poller.close()
            raise
        self._loads_snapshot = True
        """At the first tick."""
        if not config.peers:
            # Alone: no vote can be forgotten, and there is no peer to wait for.
            self.journal.mark_joined()
            self.election_deadline = 0.0

    # ---------------------------------------------------------------------------- status

    @property
    def leadership(self) -> tuple[RaftRole, str | None, bool]:
        """Role, address of the leader, and whether this node is connected to a majority: the part of `status` that is
        asked for after every tick."""
        leader = self.leader
        return self.role, None if leader is None else str(leader.id), bool(self.hasQuorum) and not self.journal.stalled

    def status(self) -> RaftStatus:
        role, leader, has_quorum = self.leadership
        return RaftStatus(
            role=role,
            leader=leader,
            term=self.term,
            commit_index=self.commit_index,
            applied_index=self.applied_index,
            has_quorum=has_quorum,
            voters=len(self.voters) + (self.own_node is not None),
            connected=tuple(sorted(node.address for node in self.voters if self.isNodeConnected(node))),
            dropped_introductions=self.transport.dropped_introductions,
            unverified=tuple(sorted(self.transport.unverified.items())),
            has_lost_files=not (self.journal.joined or self.is_new),
            is_new=self.is_new,
            not_connected=tuple(sorted(node.address for node in self.voters if not self.isNodeConnected(node))),
            new_peers=tuple(sorted(node.address for node, is_new in self._new_peers.items() if is_new)),
            old_peers=tuple(sorted(node.address for node, is_new in self._new_peers.items() if not is_new)),
        )

    # ---------------------------------------------------------------------------- ticking

    def tick(self) -> None:
        """Do all that is due and handle the bytes that the sockets have. Never waits for the network.

        Nothing at all while the journal finds no room: a stalled node is a paused process to the others.
        """
        if self.journal.stalled:
            self.journal.sync()
            if self.journal.stalled:
                return
        self.doTick(0.0)

    def _onTick(self, timeToWait: float = 0.0) -> None:
        now = self.monotonic()
        if now - self._last_tick > LEADERLESS_SHARE * self.conf.raftMinTimeout / 2:
            self.poller.poll(0.0)
        if self.journal.entry_bytes > COMPACTION_BYTES and not self.snapshots.takes_turns:
            self.forceLogCompaction()
        if self._loads_snapshot:
            self._loads_snapshot = False
            if self.snapshots.exists():
                self.load_snapshot()
                self._commit_what_a_snapshot_covers()
        super()._onTick(timeToWait)
        self._last_tick = self.monotonic()

    @property
    def takes_turns(self) -> bool:
        """The next tick has a turn of work to do that may be as long as anything may hold the loop."""
        return self._is_applying or self.snapshots.takes_turns

    @property
    def wants_tick(self) -> bool:
        """The last tick left something to do now."""
        if self.journal.stalled:
            return False
        alone = not self.voters and self.is_leader
        return self.takes_turns or self.poller.handled > 0 or (alone and self.commit_index < self.journal.last.index)

    def next_deadline(self) -> float:
        """The time at which `tick` must be called next, even without events of the poller."""
        now: float = self.monotonic()
        if self.journal.stalled:
            return now + STALLED_RETRY_S
        latest: float = now + float(self.conf.appendEntriesPeriod)
        if self.is_leader:
            return min(latest, self.append_entries_time + TIMER_SLACK_S)
        if self.election_deadline > now:
            return min(latest, self.election_deadline + TIMER_SLACK_S)
        if self._pre_vote is not None:
            return min(latest, self._pre_vote.ends_at + TIMER_SLACK_S)
        return latest

    def _checkCommandsToApply(self) -> None:
        before = self.journal.last.index
        super()._checkCommandsToApply()
        if self.is_leader and self.journal.last.index != before:
            self.send_append_entries()

    def apply_committed(self) -> bool:
        """True asks the leader's tick to send the commit index at once."""
        self._is_applying = False
        if self.is_leader:
            if self.journal.holds(self.commit_index, self.term):
                # A majority stored an entry of this node's own term. Without the mark the first leader of a group would
                # never vote again after a restart: it never hears a leader before.
                self.journal.mark_joined()
            self.journal.sync()
            if self.journal.stalled:
                return False
        self._is_applying = not self._apply_some()
        # Also where nothing could be applied yet: the followers prepare the same entry meanwhile.
        is_news = self.commit_index != self._said_commit_index
        self._said_commit_index = self.commit_index
        return is_news

    def _apply_some(self) -> bool:
        """False: something is left for the next tick."""
        if not self.snapshots.restored():
            return False
        for _ in range(APPLIED_PER_TICK):
            index = self.applied_index + 1
            committed = self.entries(index, 1) if index <= self.commit_index else []
            entry = Entry(*committed[0]) if committed else None
            if not self._is_prepared(None if entry is None else entry.command):
                return False
            if entry is None:
                return True
            callbacks = self.commands_waiting.pop(index, [])
            result = self.execute(entry.command)
            for term, callback in callbacks:
                if term == entry.term:
                    callback(result, FAIL_REASON.SUCCESS)
                else:
                    callback(None, FAIL_REASON.DISCARDED)
            self.applied_index = index
        return False

    def _is_prepared(self, entry: bytes | None) -> bool:
        if entry is not None and entry[0] != REGULAR:
            entry = None
        try:
            return self._state_machine.prepare(None if entry is None else entry[1:])
        except Exception:  # noqa: BLE001 - logged; `apply` does without
            _log.exception("The state machine raised while it prepared a committed command; it is applied at once")
            return True

    def send_soon(self) -> None:
        """The leader sends to its followers in the next tick."""
        self.append_entries_time = 0.0

    # ---------------------------------------------------------------------------- commands

    def submit(self, kind: int, command: bytes, callback: CommandCallback) -> None:
        """Queue a command for the leader, here or elsewhere. The callback may never come."""

        def guarded(result: object, reason: int) -> None:
            # Stock applies the entry a second time when a callback raises.
            try:
                callback(result, reason)
            except Exception:  # noqa: BLE001 - logged; other callbacks must not suffer from it
                _log.exception("The callback of a Raft command raised")

        self._applyCommand(command, guarded, kind)

    def _applyCommand(self, command: bytes, callback: Any, commandType: int | None = None) -> None:
        super()._applyCommand(command, callback, commandType)
        self.poller.wake()

    def election_timeout(self) -> float:
        shortest, longest = float(self.conf.raftMinTimeout), float(self.conf.raftMaxTimeout)
        drawn = shortest + (longest - shortest) * self._rng.random()
        return drawn if self._hears_leader() else drawn * LEADERLESS_SHARE

    def execute(self, command: bytes) -> object:
        if command[0] != REGULAR:
            return None
        try:
            return self._state_machine.apply(command[1:])
        except Exception as error:  # noqa: BLE001 - every error ends in a sentence
            _log.exception("The state machine raised on a committed command; it must be total")
            return ApplyFailure(error)

    # ---------------------------------------------------------------------------- elections

    def leader_heard(self) -> None:
        self._leader_heard_at = self.monotonic()

    # Keeps R77.
    def may_follow(self) -> bool:
        """False: this voter may have forgotten something, and whoever speaks as leader may lead no more."""
        listens = self.monotonic() - self._started_at > LISTENS_AFTER * self.conf.connectionTimeout
        return listens or self.own_node is None or self.may_vote()

    # R70: A cluster is founded by all of its voters. A voter is new while its journal has never synchronised, holds no
    # command and was never set aside, and its folder names no cluster. A new voter votes, and grants a pre-vote, only
    # while each other voter is connected and says that it is new as well; otherwise it joins as a follower before it
    # votes.
    # Hazard: Two of three voters that start with wrong folders found another cluster, which takes writes.
    # Not covered: Folders of all voters that are empty at once are a new cluster, unless an observer or a broker of
    # the old cluster answers (R41).
    def may_vote(self) -> bool:
        """False while this node may have forgotten a vote, or entries that it confirmed."""
        return self.journal.joined or (self.is_new and all(self._new_peers.get(node, False) for node in self.voters))

    @property
    def is_new(self) -> bool:
        """Nothing says that this voter belongs to a group that has ever committed a command."""
        return not (self.journal.joined or self._has_set_aside or self._group or self.journal.has_commands)

    def peer_told(self, node: Node, term: int, *, is_new: bool) -> None:
        """A voter that looks for a leader told its term, and whether its disk is empty. In a later term it grants no
        pre-vote to this node, which may be the only one that it would vote for."""
        self._new_peers[node] = is_new
        if term > self.term and self._looks_for_leader():
            self.step_down(term)

    def synchronised_up_to(self, leader_commit_index: int, leader: str) -> None:
        """A leader was heard. When all it has committed is here, this node may vote from the next term on."""
        if self.journal.joined or self.journal.last.index < leader_commit_index:
            return
        if self.own_node is not None and self.voted_for is None:
            self.set_term(self.term, leader)
        self.journal.mark_joined()

    def may_begin_election(self) -> bool:
        """Stock asks this when the election deadline has passed: True begins the election."""
        if not self.voters:
            return True
        now, majority = self.monotonic(), (len(self.voters) + 1) // 2 + 1
        running = self._pre_vote
        if running is not None and running.term == self.term and now < running.ends_at:
            if len(running.granted_by) + 1 < majority:
                return False
            self._pre_vote = None
            return True
        self._pre_vote = _PreVoteRound(self.term, now + PRE_VOTE_ROUND_S * (1 + self._rng.random()), set())
        self._say_why_leaderless(now)
        for node in self.voters:
            self._ask_for_pre_vote(node)
        return False

    def _ask_for_pre_vote(self, node: Node) -> None:
        last = self.journal.last
        question = {
            "type": "pre_vote",
            "term": self.term,
            "last_log_index": last.index,
            "last_log_term": last.term,
            "is_new": self.is_new,
        }
        self.transport.send(node, question)

    def _say_why_leaderless(self, now: float) -> None:
        words = self.status().why_no_leader()
        if words and now >= self._warn_leaderless_at - LEADERLESS_INTERVAL_S * (words != self._said):
            self._warn_leaderless_at, self._said = now + LEADERLESS_INTERVAL_S, words
            _log.warning("No Raft leader is elected yet: %s.", words)

    # Keeps R70.
    def grants_pre_vote(self, term: int, last_log_term: int, last_log_index: int) -> bool:
        """Whether this node would vote for such a candidate now: it hears no leader and has nothing that the
        candidate lacks.
        """
        last = self.journal.last
        up_to_date = (last_log_term, last_log_index) >= (last.term, last.index)
        return term >= self.term and up_to_date and self._looks_for_leader()

    def _looks_for_leader(self) -> bool:
        """It may vote, and nobody is heard to lead."""
        return self.own_node is not None and not self.is_leader and not self._hears_leader() and self.may_vote()

    def _hears_leader(self) -> bool:
        never = self._leader_heard_at == float("-inf")  # so it is in `__init__`, where there is no clock yet
        return not never and self.monotonic() - self._leader_heard_at < self.conf.raftMinTimeout

    def on_pre_vote_granted(self, node: Node, term: int) -> None:
        if self._pre_vote is not None and self._pre_vote.term == term:
            self._pre_vote.granted_by.add(node)

    def step_down(self, term: int) -> None:
        """Another node knows of a later term."""
        self.set_term(term, None)
        self.become_follower()

    def hand_over(self) -> bool:
        """Stop leading, and let the others elect one of themselves now. False: this node does not lead, or nobody
        else could.
        """
        if not self.is_leader or not self.hasQuorum or not self.voters:
            return False
        furthest_first = sorted(self.voters, key=lambda node: (-self.match_index[node], node.id))
        for rank, node in enumerate(furthest_first):
            self.transport.send(node, {"type": "leader_gives_way", "term": self.term, "rank": rank})
        self.become_follower()
        self.fail_forwarded_commands()
        # Where that is lost, the others notice that heartbeats end.
        self.election_deadline = self.monotonic() + HAND_OVER_PATIENCE * self.conf.raftMaxTimeout
        return True

    # ---------------------------------------------------------------------------- peers

    def peer_connected(self, node: Node) -> None:
        """A peer's acknowledgement of an earlier life counts again only when the peer repeats it: its disk may have
        been emptied. A new voter says at once that it is: a follower of a new group knows that all are before it hears
        the group's first leader.
        """
        if node in self.match_index:
            self.match_index[node] = 0
        self.send_soon()
        if self.is_new and self.own_node is not None:
            self._ask_for_pre_vote(node)

    def peer_disconnected(self, node: Node) -> None:
        """When it was the leader: fail the commands that were forwarded to it and run for leader soon."""
        self._new_peers.pop(node, None)
        if node != self.leader:
            return
        self.fail_forwarded_commands()
        own = self.own_node
        self._lose_leader(0 if own is None else sum(other.id < own.id for other in self.voters if other != node))

    def leader_gives_way(self, node: Node, term: int, rank: int) -> None:
        """A voter that led in that term leads no more. `rank`: this node's among those that run for leader, from 0."""
        if node == self.leader and term == self.term:
            self._lose_leader(rank)

    def _lose_leader(self, rank: int) -> None:
        self.forget_leader()
        self._leader_heard_at = float("-inf")
        if self.own_node is not None:
            early = self.monotonic() + FAILOVER_DELAY_S + FAILOVER_STEP_S * rank
            self.election_deadline = min(self.election_deadline, early)

    def _may_send(self, node: object) -> bool:
        return self.transport.may_send(node)

    def snapshot_received(self) -> None:
        """After the last chunk: all that the installed snapshot covers is committed, and proposers will not be told
        how."""
        self._commit_what_a_snapshot_covers()
        skipped = [index for index in self.commands_waiting if index <= self.applied_index]
        for index in skipped:
            for _, callback in self.commands_waiting.pop(index):
                callback(None, FAIL_REASON.UNKNOWN_OUTCOME)

    def _commit_what_a_snapshot_covers(self) -> None:
        """The journal's hint of the commit index may be older than the snapshot that was loaded, and lie before the
        first entry of the log."""
        self.commit_index = max(self.commit_index, self.applied_index)
        self.journal.setRaftCommitIndex(self.commit_index)

    def close(self) -> None:
        """Sync the journal and give up sockets and files."""
        self.destroy()
        self.snapshots.close()
        self.poller.close()


def _pysyncobj_configuration(config: RaftConfig) -> SyncObjConf:
    return SyncObjConf(
        autoTick=False,
        appendEntriesUseBatch=True,
        appendEntriesPeriod=config.heartbeat_s,
        appendEntriesBatchSizeBytes=BATCH_BYTES,
        raftMinTimeout=config.election_min_s,
        raftMaxTimeout=config.election_max_s,
        leaderFallbackTimeout=config.election_max_s,
        connectionTimeout=config.connection_timeout_s,
        connectionRetryTime=config.connection_retry_s,
        commandsQueueSize=MAX_QUEUED_COMMANDS,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        fullDumpFile=None,
        journalFile=None,
        useFork=False,
        logCompactionBatchSize=CHUNK_BYTES,
        logCompactionMinEntries=_staggered(config),
        logCompactionMinTime=365 * 86400,
    )


def _staggered(config: RaftConfig) -> int:
    """The log length to compact at: an eighth more for each voter that sorts before this one. Observers come last."""
    before = sum(1 for peer in config.peers if config.address is None or peer < config.address)
    return config.compaction_min_entries * (8 + before) // 8
