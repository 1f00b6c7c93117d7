"""Defects in the shipped Raft, made on purpose: each correction of PySyncObj, and each rule of journal, snapshot and
transport, broken once. They are hunted in runs of the metadata group alone.

The letters are those of `metadata.raft.transport`; `tests/unit/metadata/raft/test_raft_faults.py` has a test for each,
also for those that no run shows: they cost only time (a), or need what these runs do not have (i, k, m, p: state
machines that raise, other members, commands beyond a batch, a majority that has lost its disks). No run shows either
that a voter which has forgotten its vote does not vote in the term of the leader that it has synchronised from: another
candidate of that term would need pre-votes of a majority, after that leader was elected by one.

Nor does one show that an acknowledgement of an earlier term counts for nothing (h). Of three voters that keep their
files the leader and the follower that sent it are a majority: every later leader has what it acknowledges. Of five,
three others must elect a leader that overwrites both logs, and the former leader must lead again, all while the
acknowledgement is on its way.
"""

from __future__ import annotations

from typing import Any

from metadata.raft.connection import FramedConnection
from metadata.raft.engine import RaftEngine
from metadata.raft.journal import Journal
from metadata.raft.node import RaftNode
from metadata.raft.snapshot import SnapshotStore
from metadata.raft.transport import HardenedTransport
from tests.simulation.mutation import Edit, Mutant
from tests.simulation.runs import RAFT_ALONE, RAFT_FORGETFUL


def _mutant(name: str, *edits: tuple[Any, str, str], scenario: str = RAFT_ALONE) -> Mutant:
    """`edits`: (function, text in its source, text in place of it). What Raft itself demands has no rule of its own."""
    return Mutant(f"Raft: {name}", tuple(Edit(*edit) for edit in edits), (), scenario)


RAFT_MUTANTS: tuple[Mutant, ...] = (
    _mutant(
        "(a) every append_entries deletes what follows it",
        (
            Journal.deleteEntriesFrom,
            '    then.\n    """',
            (
                '    then.\n    """\n'
                "    index = self._entries[entryFrom].index\n"
                "    self._forget_from(index)\n"
                '    self._pending.append(_record(b"D", _INDEX.pack(index)))\n'
            ),
        ),
        (HardenedTransport._on_acknowledgement, "max(previous, engine.next_index[node])", "engine.next_index[node]"),
    ),
    _mutant(
        "(a) an entry that is there already takes its place again",
        (Journal.add, "if self._entries[position].term == term:", "if False:"),
        (Journal.add, "self.check_committed(idx, term)", "pass"),
        (HardenedTransport._on_acknowledgement, "max(previous, engine.next_index[node])", "engine.next_index[node]"),
    ),
    _mutant(
        "(b) a follower commits a tail that the message did not verify",
        (
            HardenedTransport._on_append_entries,
            'min(leader_commit_index, message["prevLogIdx"] + len(message["entries"]))',
            "leader_commit_index",
        ),
    ),
    _mutant(
        "(c) a chunk of a snapshot commits the own log",
        (HardenedTransport._on_append_entries, "min(leader_commit_index, engine.commit_index)", "leader_commit_index"),
    ),
    _mutant(
        "(d) a kill between snapshot and compaction throws the journal away",
        (Journal._align, "self.deleteEntriesTo(position)", "return"),
    ),
    _mutant(
        "(e) compaction writes the journal in place",
        (Journal.deleteEntriesTo, 'self._path.with_suffix(".new")', "self._path"),
    ),
    _mutant(
        "(e) the new journal's name is not synced",
        (Journal.deleteEntriesTo, "self._files.sync_directory(self._path.parent)", "pass"),
    ),
    _mutant(
        "(f) a snapshot that was begun before one was received takes its place",
        (SnapshotStore.setTransmissionData, "self._head = self._encoding = None", "pass"),
    ),
    _mutant(
        "(f) compaction empties the log",
        (Journal.deleteEntriesTo, "len(self._entries) - KEPT_ENTRIES", "len(self._entries)"),
        (Journal.deleteEntriesTo, "entryTo,", "entryTo + 2,"),
    ),
    _mutant(
        "(g) a snapshot that brings nothing new is installed",
        (
            HardenedTransport._on_snapshot_chunk,
            "if index <= self._engine.commit_index or self._engine.journal.holds(index, term):",
            "if False:",
        ),
    ),
    _mutant(
        "(h) an acknowledgement of a later term deposes nobody",
        (HardenedTransport._on_acknowledgement, 'engine.step_down(message["term"])', "pass"),
    ),
    _mutant(
        "(l) elections begin without pre-votes",
        (RaftEngine.may_begin_election, "if not self.voters:", "if True:"),
    ),
    _mutant(
        "(l) a pre-vote is granted under a leader",
        (RaftEngine._looks_for_leader, "and not self._hears_leader() ", ""),
    ),
    _mutant(
        "(l) a question for a pre-vote tells nobody of a later term",
        (RaftEngine.peer_told, "self.step_down(term)", "pass"),
    ),
    _mutant(
        "(n) what a socket did not take at once is not sent later",
        (FramedConnection._flush, "READ | (WRITE if self._unsent else 0)", "READ"),
    ),
    _mutant(
        "(o) a follower whose log differs goes back by one entry, or to its end",
        (HardenedTransport.send, 'answer["next_node_idx"] = self._wanted(message["next_node_idx"])', "pass"),
    ),
    _mutant(
        "(o) a voter does not know as committed what the snapshot covers that it starts with",
        (
            RaftEngine._onTick,
            "self.load_snapshot()\n            self._commit_what_a_snapshot_covers()",
            "self.load_snapshot()",
        ),
    ),
    _mutant(
        "a vote leaves before it is on disk",
        (Journal.setCurrentTerm, "    self.sync()\n", ""),
        (HardenedTransport.send, "self._engine.journal.sync()", "pass"),
    ),
    _mutant(
        "an acknowledgement leaves before its entries are on disk",
        (HardenedTransport.flush, "self._engine.journal.sync()\n", "pass\n"),
    ),
    _mutant(
        "a leader applies what is not on its own disk",
        (RaftEngine.apply_committed, "        self.journal.sync()\n", "        pass\n"),
    ),
    _mutant(
        "the journal is written and never synced",
        (Journal.sync, "self._files.sync_data(self._handle)", "pass"),
    ),
    _mutant(
        "a batch whose sync failed is relied on in the next life",
        (Journal._load, "self._write_again(data[last:position], last)", "pass"),
    ),
    _mutant(
        "the name that a killed compaction left is relied on in the next life",
        (
            Journal._load,
            "    self._files.sync_all(self._handle)\n    self._files.sync_directory(self._path.parent)\n    self._size",
            "    self._files.sync_all(self._handle)\n    self._size",
        ),
    ),
    _mutant(
        "a snapshot's name is not synced",
        (SnapshotStore._install, "self._files.sync_directory(self._path.parent)", "pass"),
    ),
    _mutant(
        "a voter with an emptied disk votes at once",
        (RaftEngine.may_vote, "return self.journal.joined or", "return True or"),
    ),
    _mutant(
        "a voter with an emptied disk hears any leader",
        (RaftEngine.may_follow, "return listens or", "return True or"),
        scenario=RAFT_FORGETFUL,
    ),
    _mutant(
        "a voter has synchronised with the first message of a leader",
        (RaftEngine.synchronised_up_to, "or self.journal.last.index < leader_commit_index", ""),
        scenario=RAFT_FORGETFUL,
    ),
    _mutant(
        "what a voter has confirmed in an earlier life counts",
        (RaftEngine.peer_connected, "self.match_index[node] = 0", "pass"),
    ),
    _mutant(
        "an older copy of the journal is taken for the newest",
        (Journal._load, "if self._sequence < self._marked:", "if False:"),
    ),
    _mutant(
        "a node whose journal has no room goes on sending",
        (HardenedTransport._send_now, "if self._engine.journal.stalled:", "if False:"),
        (HardenedTransport.flush, "if self._engine.journal.stalled:", "if False:"),
    ),
    _mutant(
        "commands are applied before a received snapshot is taken up",
        (RaftEngine._apply_some, "if not self.snapshots.restored():", "if not self.snapshots.restored() and False:"),
    ),
    _mutant(
        "a command that another one replaced counts as applied",
        (RaftEngine._apply_some, "if term == entry.term:", "if True:"),
    ),
    _mutant(
        "a command of unknown outcome is offered again",
        (RaftNode._offer, "if reason not in _NEVER_QUEUED:", "if False:"),
    ),
    _mutant(
        "a peer that waits for a chunk of a snapshot keeps its leader busy",
        (HardenedTransport.send, "self._engine.no_chunk_for(node)", "pass"),
    ),
)
