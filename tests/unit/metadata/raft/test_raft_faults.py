"""Each known fault of stock PySyncObj 0.3.17, driven message by message against one real engine whose sockets are
replaced by lists.

The letters are the ones of metadata.raft.transport. Every test fails when the override it is about is taken out.
"""

# Rules: R28, R70.

from __future__ import annotations

import errno
import logging
import os
import pickle
import shutil
from collections.abc import Iterator
from itertools import combinations_with_replacement
from math import inf
from pathlib import Path
from random import Random
from typing import Any, NoReturn

import pytest
from pysyncobj import FAIL_REASON
from pysyncobj.monotonic import monotonic
from pysyncobj.node import Node, TCPNode

from metadata.raft import MAX_COMMAND_BYTES, RaftConfig, RaftRole
from metadata.raft.connection import CONNECTED
from metadata.raft.engine import (
    APPLIED_PER_TICK,
    BATCH_BYTES,
    FAILOVER_STEP_S,
    LISTENS_AFTER,
    ApplyFailure,
    RaftEngine,
)
from metadata.raft.ports import RaftPorts
from metadata.raft.set_aside import set_aside
from metadata.raft.snapshot import decode_snapshot
from metadata.raft.transport import well_formed
from metadata.raft.types import REGULAR, InvariantViolation
from tests.unit.metadata.raft.recorder import ProcessEnded, Recorder, end
from tidelog.process.loopback import free_addresses
from wire.security.cluster_secrets import public_secrets
from wire.turns import Turns

SELF, PEER, OTHER = sorted(free_addresses(3))
Message = dict[str, Any]


class Wire:
    """Stands for a connection: sent messages stay here."""

    state = CONNECTED
    established = False
    unsent_bytes = 0

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.last_received = monotonic() + 1e6
        self.closed = False

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def disconnect(self) -> None:
        self.closed = True

    def of(self, kind: str) -> list[Message]:
        return [message for message in self.sent if message["type"] == kind]


class Bench:
    """An engine and its two peers' ends of the wires."""

    def __init__(self, directory: Path, *, joined: bool = True, group: str = "") -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.machine = Recorder()
        self.lost_peers: list[str] = []
        config = RaftConfig(
            address=SELF, peers=(PEER, OTHER), directory=directory, secrets=public_secrets(), group=group
        )
        self.engine = RaftEngine(
            config,
            self.machine,
            bind_host="127.0.0.1",
            resolve=lambda _host: None,
            on_peer_lost=self.lost_peers.append,
            exit_process=end,
            ports=RaftPorts(rng=Random(1)),
        )
        self.engine._started_at = -inf
        if joined:
            self.engine.journal.mark_joined()
        self.peer, self.other = TCPNode(PEER), TCPNode(OTHER)
        self.wires: dict[Node, Wire] = {self.peer: Wire(), self.other: Wire()}
        for node in self.wires:
            self.engine.transport._connections[node] = self.wires[node]
            self.engine.transport._onNodeConnected(node)

    def close(self) -> None:
        self.engine.close()

    def receive(self, node: Node, message: Message) -> None:
        self.engine.transport._onMessageReceived(node, message)

    def entries(
        self, node: Node, *, term: int, previous: int, previous_term: int, commands: list[bytes], commit: int
    ) -> None:
        listed = [[b"\0" + command, index, term] for index, command in enumerate(commands, previous + 1)]
        self.receive(
            node,
            {
                "type": "append_entries",
                "term": term,
                "commit_index": commit,
                "entries": listed,
                "prevLogIdx": previous,
                "prevLogTerm": previous_term,
            },
        )

    def numbered(self, first: int, last: int, *, commit: int, previous_term: int = 1) -> None:
        """Entries first..last of term 1 from the peer, named after their index."""
        commands = [f"e{index}".encode() for index in range(first, last + 1)]
        self.entries(
            self.peer, term=1, previous=first - 1, previous_term=previous_term, commands=commands, commit=commit
        )

    def acknowledge(self, node: Node, next_index: int, *, term: int, reset: bool = False) -> None:
        message = {"next_node_idx": next_index, "reset": reset, "success": not reset, "term": term}
        self.receive(node, {"type": "next_node_idx", **message})

    def compact(self) -> None:
        """Take a snapshot, and let the log be trimmed."""
        self.engine.forceLogCompaction()
        self.engine.tick()
        while self.engine.snapshots._head is not None:
            if self.engine.snapshots._writing is not None:
                self.engine.snapshots._writing.join()
            self.engine.tick()

    def lead(self) -> None:
        """Run for leader, be granted everything, and have the first entry committed."""
        self.engine.election_deadline = 0.0
        self.engine.tick()
        assert self.engine._pre_vote is not None
        self.engine._pre_vote.ends_at = inf  # however long this machine stands still meanwhile
        self.receive(self.peer, {"type": "pre_vote_granted", "term": self.engine.term})
        self.engine.tick()
        self.receive(self.peer, {"type": "response_vote", "term": self.engine.term})
        self.engine.tick()
        assert self.engine.is_leader
        self.acknowledge(self.peer, self.last_index + 1, term=self.engine.term)
        self.engine.tick()

    @property
    def last_index(self) -> int:
        return self.engine.journal.last.index


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path / "raft")
    yield made
    made.close()


# ---------------------------------------------------------------------------- a, b: the log


def test_a_late_duplicate_does_not_truncate_later_entries(bench: Bench) -> None:
    bench.numbered(2, 20, commit=20, previous_term=0)
    bench.engine.tick()
    bench.numbered(11, 11, commit=20)
    assert bench.last_index == 20
    bench.entries(bench.peer, term=1, previous=5, previous_term=1, commands=[], commit=20)
    assert bench.last_index == 20
    assert bench.engine.commit_index == 20


def test_a_conflicting_entry_replaces_later_entries(bench: Bench) -> None:
    bench.numbered(2, 8, commit=1, previous_term=0)
    bench.entries(bench.other, term=2, previous=4, previous_term=1, commands=[b"new"], commit=1)
    assert [(entry.index, entry.term) for entry in bench.engine.journal[3:]] == [(4, 1), (5, 2)]


def test_a_pipelined_acknowledgement_does_not_move_next_index_back(bench: Bench) -> None:
    bench.lead()
    first = bench.last_index + 1
    for command in (b"1", b"2", b"3"):
        bench.engine.submit(REGULAR, command, lambda *_: None)
    bench.engine.tick()
    assert bench.engine.next_index[bench.peer] == first + 3
    bench.acknowledge(bench.peer, first + 1, term=bench.engine.term)
    assert bench.engine.next_index[bench.peer] == first + 3
    assert bench.engine.match_index[bench.peer] == first


def test_a_late_reset_goes_back_to_the_acknowledged_entries_at_most(bench: Bench) -> None:
    bench.lead()
    acknowledged = bench.last_index
    bench.engine.submit(REGULAR, b"sent", lambda *_: None)
    bench.engine.tick()
    bench.acknowledge(bench.peer, acknowledged - 1, term=bench.engine.term, reset=True)
    assert bench.engine.next_index[bench.peer] == acknowledged + 1


def test_a_a_peer_whose_disk_was_emptied_can_reset_after_it_connects_again(bench: Bench) -> None:
    bench.lead()
    bench.engine.transport._onNodeConnected(bench.peer)
    bench.acknowledge(bench.peer, 2, term=bench.engine.term, reset=True)
    assert bench.engine.next_index[bench.peer] == 2


def test_a_the_harmless_alarm_about_applied_entries_is_not_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.numbered(2, 9, commit=9, previous_term=0)
    bench.engine.tick()
    with caplog.at_level(logging.CRITICAL):
        bench.numbered(5, 5, commit=9)
    assert not caplog.records


def test_b_an_unverified_tail_is_not_committed(bench: Bench) -> None:
    bench.numbered(2, 8, commit=1, previous_term=0)
    bench.entries(bench.other, term=2, previous=4, previous_term=1, commands=[], commit=8)
    bench.engine.tick()
    assert bench.engine.commit_index == 4
    assert bench.machine.commands == [b"e2", b"e3", b"e4"]


def test_o_a_follower_whose_log_differs_asks_for_what_follows_its_commit_index(bench: Bench) -> None:
    """However many messages were on their way: the last answer is the one that its leader goes by."""
    bench.numbered(2, 20, commit=5, previous_term=0)
    bench.engine.tick()
    bench.wires[bench.other].sent.clear()
    for previous in (20, 23, 26):
        bench.entries(bench.other, term=3, previous=previous, previous_term=2, commands=[b"1", b"2", b"3"], commit=28)
    assert answers(bench, bench.other) == [(6, True, False)] * 3


def answers(bench: Bench, node: Node) -> list[tuple[int, bool, bool]]:
    """Since the last call."""
    bench.engine.tick()
    found = bench.wires[node].of("next_node_idx")
    bench.wires[node].sent.clear()
    return [(answer["next_node_idx"], answer["reset"], answer["success"]) for answer in found]


def test_o_a_follower_that_only_lacks_entries_asks_for_what_follows_its_log(bench: Bench) -> None:
    """Its leader may have compacted what follows the commit index, and would send a snapshot."""
    bench.numbered(2, 20, commit=5, previous_term=0)
    answers(bench, bench.peer)
    bench.numbered(24, 25, commit=25)
    bench.numbered(26, 26, commit=26)
    assert answers(bench, bench.peer) == [(21, True, False)] * 2
    bench.numbered(21, 26, commit=26)
    assert answers(bench, bench.peer) == [(27, False, True)]


def test_o_a_follower_whose_log_differs_does_not_ask_for_its_end_again(bench: Bench) -> None:
    """Messages that its leader sent before it heard the answer would put it forward again."""
    bench.numbered(2, 20, commit=5, previous_term=0)
    for previous in (23, 20, 26):
        bench.entries(bench.other, term=3, previous=previous, previous_term=2, commands=[b"1", b"2", b"3"], commit=5)
    assert answers(bench, bench.other) == [(21, True, False), (6, True, False), (6, True, False)]
    bench.entries(bench.other, term=3, previous=5, previous_term=1, commands=[b"6"], commit=5)
    bench.entries(bench.other, term=3, previous=26, previous_term=2, commands=[], commit=5)
    assert answers(bench, bench.other) == [(7, False, True), (7, True, False)], "its log ends with the leader's entry"


def test_o_a_follower_whose_log_differed_from_an_earlier_leaders_asks_the_next_one_for_what_follows_it(
    bench: Bench,
) -> None:
    bench.numbered(2, 20, commit=5, previous_term=0)
    bench.entries(bench.other, term=3, previous=20, previous_term=2, commands=[], commit=5)
    bench.entries(bench.peer, term=4, previous=23, previous_term=2, commands=[], commit=5)
    assert answers(bench, bench.other) == [(6, True, False)]
    assert answers(bench, bench.peer)[-1] == (21, True, False)


def catches_up(bench: Bench, previous: int, last: int) -> None:
    """With a leader of term 2 that has the entries up to `last`, of term 1, and sends first what follows `previous`."""
    for _ in range(3):
        commands = [f"e{index}".encode() for index in range(previous + 1, last + 1)]
        bench.entries(bench.peer, term=2, previous=previous, previous_term=1, commands=commands, commit=last)
        wanted, _, success = answers(bench, bench.peer)[-1]
        previous = wanted - 1
        if success:
            break
    assert bench.engine.applied_index == bench.last_index == last
    assert bench.machine.commands == [f"e{index}".encode() for index in range(2, last + 1)]


def test_o_a_kill_between_a_received_snapshot_and_the_journal_keeps_no_older_commit_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next leader would be asked, for ever, for what follows the older one: entries that do not fit this log."""
    donor = Bench(tmp_path / "donor")
    snapshot = compacted(donor, 100)
    donor.close()
    bench = Bench(tmp_path / "raft")
    bench.numbered(2, 20, commit=20, previous_term=0)
    bench.engine.tick()
    bench.numbered(21, 22, commit=22)
    bench.engine.tick()
    install = bench.engine.snapshots._install

    def killed(temporary: Path) -> None:
        install(temporary)
        shutil.copytree(tmp_path / "raft", tmp_path / "killed")

    monkeypatch.setattr(bench.engine.snapshots, "_install", killed)
    for chunk in ([snapshot, True, False], [b"", False, True]):
        bench.receive(bench.peer, {"type": "append_entries", "term": 1, "commit_index": 100, "serialized": chunk})
    bench.close()

    again = Bench(tmp_path / "killed")
    again.engine.tick()
    assert [entry.index for entry in again.engine.journal[:]] == [99, 100]
    assert again.engine.commit_index == again.engine.journal.getRaftCommitIndex() == 100
    catches_up(again, previous=22, last=105)
    again.close()


def test_o_a_kill_between_the_own_snapshot_and_the_journal_keeps_no_older_commit_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path / "raft")
    bench.numbered(2, 45, commit=40, previous_term=0)
    bench.engine.tick()
    bench.numbered(46, 60, commit=45)
    bench.engine.tick()
    bench.entries(bench.peer, term=1, previous=60, previous_term=1, commands=[], commit=60)
    bench.engine.tick()
    monkeypatch.setattr(bench.engine.journal, "deleteEntriesTo", lambda _: None)
    bench.compact()
    shutil.copytree(tmp_path / "raft", tmp_path / "killed")
    bench.close()

    again = Bench(tmp_path / "killed")
    assert again.engine.commit_index < 59, "the hint of the commit index lags"
    again.engine.tick()
    assert [entry.index for entry in again.engine.journal[:]] == [59, 60]
    assert again.engine.commit_index == again.engine.journal.getRaftCommitIndex() == 60
    catches_up(again, previous=45, last=105)
    again.close()


def test_o_a_follower_asks_for_nothing_before_its_log(bench: Bench) -> None:
    compacted(bench, 30)
    bench.numbered(31, 40, commit=30)
    bench.engine.commit_index = 10
    bench.entries(bench.other, term=3, previous=40, previous_term=2, commands=[], commit=30)
    assert answers(bench, bench.other) == [(30, True, False)]


# ---------------------------------------------------------------------------- p: logs that contradict what is committed


def test_p_a_leader_with_another_entry_in_the_place_of_a_committed_one_ends_the_process(bench: Bench) -> None:
    bench.numbered(2, 25, commit=20, previous_term=0)
    bench.entries(bench.other, term=5, previous=21, previous_term=3, commands=[b"22"], commit=20)
    assert answers(bench, bench.other) == [(21, True, False)], "what differs is not committed"
    with pytest.raises(InvariantViolation, match="entry 20 of term 3 contradicts the committed one of term 1"):
        bench.entries(bench.other, term=5, previous=20, previous_term=3, commands=[b"21", b"22"], commit=20)


def test_p_a_leader_whose_log_ends_before_a_committed_entry_ends_the_process(bench: Bench) -> None:
    compacted(bench, 30)
    bench.entries(bench.other, term=5, previous=9, previous_term=3, commands=[b"10"], commit=9)
    assert answers(bench, bench.other)[-1] == (31, True, False), "its log may be longer than that message"
    with pytest.raises(InvariantViolation, match="log ends at 10, which contradicts the committed entry 30 of term 1"):
        bench.entries(bench.other, term=5, previous=10, previous_term=5, commands=[], commit=9)


def test_p_a_message_of_an_older_term_or_one_that_is_late_ends_nothing(bench: Bench) -> None:
    bench.numbered(2, 20, commit=20, previous_term=0)
    bench.numbered(11, 10, commit=10)
    assert answers(bench, bench.peer)[-1] == (21, False, True), "sent before entries 11 to 20 were added"
    bench.entries(bench.peer, term=4, previous=20, previous_term=1, commands=[], commit=20)
    bench.entries(bench.other, term=3, previous=15, previous_term=2, commands=[], commit=20)
    assert answers(bench, bench.other) == [(0, False, False)]
    assert bench.engine.commit_index == 20


# ---------------------------------------------------------------------------- c, d, e, f, g, j: snapshots


def test_c_a_snapshot_chunk_commits_nothing_of_the_own_log(bench: Bench) -> None:
    bench.lead()
    outcomes: list[tuple[object, int]] = []
    bench.engine.submit(REGULAR, b"lost", lambda result, reason: outcomes.append((result, reason)))
    bench.engine.tick()
    commit = bench.engine.commit_index
    chunk = {"serialized": [b"x" * 64, True, False], "commit_index": 100, "term": bench.engine.term + 1}
    bench.receive(bench.other, {"type": "append_entries", **chunk})
    bench.engine.tick()
    assert bench.engine.commit_index == commit
    assert outcomes == []
    assert bench.machine.commands == []


def test_c_chunks_are_answered_so_that_the_leader_does_not_think_us_dead(bench: Bench) -> None:
    chunk = {"serialized": [b"x" * 64, True, False], "commit_index": 100, "term": 1}
    bench.receive(bench.peer, {"type": "append_entries", **chunk})
    bench.engine.tick()
    assert [message["success"] for message in bench.wires[bench.peer].of("next_node_idx")] == [False]


def compacted(bench: Bench, last: int) -> bytes:
    """Apply up to `last`, take a snapshot, let the log be trimmed; the snapshot file."""
    bench.numbered(2, last, commit=last, previous_term=0)
    bench.engine.tick()
    bench.compact()
    return (bench.directory / "snapshot").read_bytes()


def test_d_a_kill_between_snapshot_and_trimming_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(tmp_path / "raft")
    bench.numbered(2, 50, commit=50, previous_term=0)
    bench.engine.tick()
    monkeypatch.setattr(bench.engine.journal, "deleteEntriesTo", lambda _: None)
    bench.compact()
    assert len(bench.engine.journal) == 50
    bench.numbered(51, 100, commit=100)
    bench.engine.transport.flush()
    shutil.copytree(tmp_path / "raft", tmp_path / "killed")
    bench.close()

    again = Bench(tmp_path / "killed")
    again.engine.tick()
    assert again.last_index == 100
    assert again.engine.journal[0].index == 49
    assert again.machine.commands[:49] == [f"e{index}".encode() for index in range(2, 51)]
    again.close()


def test_f_compaction_never_empties_the_log(bench: Bench) -> None:
    compacted(bench, 30)
    assert [entry.index for entry in bench.engine.journal[:]] == [29, 30]
    bench.engine.journal.deleteEntriesTo(2)
    assert len(bench.engine.journal) == 2


def test_g_a_repeated_snapshot_does_not_roll_back(bench: Bench) -> None:
    snapshot = compacted(bench, 30)
    bench.numbered(31, 60, commit=60)
    bench.engine.tick()
    bench.wires[bench.peer].sent.clear()
    for chunk in ([snapshot, True, False], [b"", False, True]):
        bench.receive(bench.peer, {"type": "append_entries", "term": 1, "commit_index": 60, "serialized": chunk})
    bench.engine.tick()
    assert bench.last_index == 60
    assert len(bench.machine.commands) == 59
    assert bench.wires[bench.peer].of("next_node_idx")[-1]["next_node_idx"] == 61


def test_g_a_snapshot_that_the_log_overtook_is_not_installed(tmp_path: Path) -> None:
    donor = Bench(tmp_path / "donor")
    snapshot = compacted(donor, 30)
    donor.close()
    bench = Bench(tmp_path / "raft")
    bench.receive(
        bench.peer,
        {"type": "append_entries", "term": 1, "commit_index": 30, "serialized": [snapshot, True, False]},
    )
    bench.numbered(2, 40, commit=10, previous_term=0)
    bench.receive(
        bench.peer, {"type": "append_entries", "term": 1, "commit_index": 30, "serialized": [b"", False, True]}
    )
    bench.engine.tick()
    assert bench.last_index == 40, "entries 31..40 were acknowledged"
    assert bench.wires[bench.peer].of("next_node_idx")[-1]["next_node_idx"] >= 31
    bench.close()


def test_a_new_snapshot_is_installed_durably_and_acknowledged(tmp_path: Path) -> None:
    donor = Bench(tmp_path / "donor")
    snapshot = compacted(donor, 30)
    donor.close()
    receiver = Bench(tmp_path / "receiver")
    for chunk in ([snapshot, True, False], [b"", False, True]):
        receiver.receive(receiver.peer, {"type": "append_entries", "term": 1, "commit_index": 30, "serialized": chunk})
    receiver.engine.tick()
    assert receiver.machine.commands == [f"e{index}".encode() for index in range(2, 31)]
    assert receiver.engine.commit_index == 30
    last = receiver.wires[receiver.peer].of("next_node_idx")[-1]
    assert (last["next_node_idx"], last["success"]) == (31, True)
    receiver.close()
    again = Bench(tmp_path / "receiver")
    again.engine.tick()
    assert len(again.machine.commands) == 29
    again.close()


def test_j_a_snapshot_that_cannot_be_loaded_ends_the_process(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons: list[str] = []

    def note(reason: str) -> NoReturn:
        reasons.append(reason)
        raise ProcessEnded

    snapshot = compacted(bench, 30)
    (bench.directory / "snapshot").write_bytes(snapshot[:-1] + b"?")
    monkeypatch.setattr(bench.engine.snapshots, "_exit_process", note)
    bench.engine.load_snapshot()
    assert "cannot be loaded" in reasons[0]


# ---------------------------------------------------------------------------- h: terms


def test_h_an_acknowledgement_of_an_earlier_term_commits_nothing(bench: Bench) -> None:
    bench.lead()
    outcomes: list[int] = []
    bench.engine.submit(REGULAR, b"alone", lambda _result, reason: outcomes.append(reason))
    bench.engine.tick()
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term - 1)
    bench.engine.tick()
    assert outcomes == []
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term)
    bench.engine.tick()
    assert outcomes == [FAIL_REASON.SUCCESS]


def test_h_an_acknowledgement_beyond_the_log_does_not_count_for_commands_to_come(bench: Bench) -> None:
    bench.lead()
    bench.acknowledge(bench.peer, bench.last_index + 10, term=bench.engine.term)
    outcomes: list[int] = []
    bench.engine.submit(REGULAR, b"alone", lambda _result, reason: outcomes.append(reason))
    for _ in range(3):
        bench.engine.tick()
    assert outcomes == []


def test_h_a_leader_steps_down_for_a_later_term(bench: Bench) -> None:
    bench.lead()
    bench.acknowledge(bench.peer, 0, term=bench.engine.term + 3, reset=True)
    assert bench.engine.status().role is RaftRole.FOLLOWER
    assert bench.engine.term == 4


def test_h_an_old_leader_is_told_of_the_new_term(bench: Bench) -> None:
    bench.entries(bench.other, term=5, previous=1, previous_term=0, commands=[], commit=1)
    bench.entries(bench.peer, term=2, previous=1, previous_term=0, commands=[], commit=1)
    bench.engine.tick()
    assert [message["term"] for message in bench.wires[bench.peer].of("next_node_idx")] == [5]


# ---------------------------------------------------------------------------- i, k: executing


def test_i_a_raising_apply_does_not_stop_the_log(bench: Bench) -> None:
    bench.lead()
    outcomes: list[tuple[object, int]] = []
    bench.engine.submit(REGULAR, b"boom", lambda result, reason: outcomes.append((result, reason)))
    bench.engine.submit(REGULAR, b"next", lambda *_: None)
    bench.engine.tick()
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term)
    bench.engine.tick()
    assert bench.machine.commands == [b"next"]
    assert isinstance(outcomes[0][0], ApplyFailure)


def test_i_a_raising_callback_does_not_apply_twice(bench: Bench) -> None:
    bench.lead()

    def fail(_result: object, _reason: int) -> None:
        raise RuntimeError("loop closed")

    bench.engine.submit(REGULAR, b"once", fail)
    bench.engine.tick()
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term)
    bench.engine.tick()
    bench.engine.tick()
    assert bench.machine.commands == [b"once"]


@pytest.mark.parametrize("kind", [2, 3])
def test_k_membership_and_version_commands_of_the_log_are_not_executed(bench: Bench, kind: int) -> None:
    request = pickle.dumps(["rem", OTHER, TCPNode(OTHER)] if kind == 2 else 7, 2)
    entry = [bytes([kind]) + request, 2, 1]
    message = {"term": 1, "commit_index": 2, "entries": [entry], "prevLogIdx": 1, "prevLogTerm": 0}
    bench.receive(bench.peer, {"type": "append_entries", **message})
    bench.engine.tick()
    assert bench.engine.status().applied_index == 2
    assert sorted(node.id for node in bench.engine.voters) == [PEER, OTHER]


# ---------------------------------------------------------------------------- l: elections


def test_l_no_election_without_a_majority_of_pre_votes(bench: Bench) -> None:
    bench.engine.election_deadline = 0.0
    bench.engine.tick()
    assert bench.engine.term == 0
    assert bench.wires[bench.peer].of("pre_vote")
    assert not bench.wires[bench.peer].of("request_vote")
    bench.receive(bench.peer, {"type": "pre_vote_granted", "term": 0})
    bench.engine.tick()
    assert bench.wires[bench.peer].of("request_vote")


def pre_vote(bench: Bench, *, term: int, last_index: int, last_term: int) -> bool:
    wire = bench.wires[bench.other]
    wire.sent.clear()
    question = {
        "type": "pre_vote",
        "term": term,
        "last_log_index": last_index,
        "last_log_term": last_term,
        "is_new": False,
    }
    bench.receive(bench.other, question)
    return bool(wire.of("pre_vote_granted"))


def test_l_a_pre_vote_is_refused_while_a_leader_is_heard(bench: Bench) -> None:
    assert pre_vote(bench, term=1, last_index=1, last_term=0)
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[], commit=1)
    assert not pre_vote(bench, term=1, last_index=1, last_term=0)


def test_l_a_pre_vote_is_refused_to_a_candidate_that_lacks_entries(bench: Bench) -> None:
    bench.numbered(2, 9, commit=1, previous_term=0)
    bench.engine._leader_heard_at = 0.0
    assert not pre_vote(bench, term=1, last_index=8, last_term=1)
    assert pre_vote(bench, term=1, last_index=9, last_term=1)


def test_l_a_voter_that_hears_no_leader_learns_of_a_later_term_from_a_question_for_a_pre_vote(bench: Bench) -> None:
    """The one that asks has run for leader in vain, lacks entries, and would grant this node nothing in its own term:
    where the third voter is gone, nobody could be elected."""
    bench.numbered(2, 9, commit=1, previous_term=0)
    assert not pre_vote(bench, term=7, last_index=8, last_term=1)
    assert bench.engine.term == 1, "it hears a leader"
    bench.engine._leader_heard_at = -inf
    assert not pre_vote(bench, term=7, last_index=8, last_term=1)
    assert bench.engine.term == 7
    bench.engine.election_deadline = 0.0
    bench.engine.tick()
    assert bench.wires[bench.other].of("pre_vote")[-1]["term"] == 7


def test_l_a_late_tick_hears_its_leader_before_it_runs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def leader_speaks(_timeout: float) -> None:
        bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[], commit=1)

    monkeypatch.setattr(bench.engine.poller, "poll", leader_speaks)
    bench.engine._last_tick -= 10
    bench.engine.election_deadline = 0.0
    bench.engine.tick()
    assert not bench.wires[bench.other].of("pre_vote")


def test_a_closed_connection_of_the_leader_brings_the_election_forward(bench: Bench) -> None:
    before = monotonic()
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[], commit=1)
    assert bench.engine.election_deadline - before > 0.3
    bench.engine.transport._onNodeDisconnected(bench.peer)
    assert bench.engine.election_deadline - monotonic() < 0.05
    assert bench.engine.status().leader is None
    assert bench.lost_peers == [PEER]


def gives_way(bench: Bench, node: Node, *, term: int = 1, rank: int = 0) -> bool:
    """Whether the election begins soon after the leader has said so."""
    bench.receive(node, {"type": "leader_gives_way", "term": term, "rank": rank})
    return bool(bench.engine.election_deadline - monotonic() < 0.05)


def test_a_leader_that_gives_way_brings_the_election_forward(bench: Bench) -> None:
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[], commit=1)
    assert not pre_vote(bench, term=1, last_index=1, last_term=0)
    assert not gives_way(bench, bench.other), "it does not lead"
    assert not gives_way(bench, bench.peer, term=0), "of an earlier term"
    assert gives_way(bench, bench.peer)
    assert bench.engine.status().leader is None
    assert pre_vote(bench, term=1, last_index=1, last_term=0)
    assert not bench.lost_peers, "it is connected, and votes"


def test_voters_run_one_after_the_other_when_their_leader_gives_way(bench: Bench) -> None:
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[], commit=1)
    assert not gives_way(bench, bench.peer, rank=3)
    assert bench.engine.election_deadline - monotonic() < 4 * FAILOVER_STEP_S


def test_a_command_forwarded_to_a_leader_that_gives_way_gets_its_answer(bench: Bench) -> None:
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[], commit=1)
    outcomes: list[int] = []
    bench.engine.submit(REGULAR, b"forwarded", lambda _result, reason: outcomes.append(reason))
    bench.engine.tick()
    (forwarded,) = bench.wires[bench.peer].of("apply_command")
    assert gives_way(bench, bench.peer)
    assert not outcomes
    answer = {"request_id": forwarded["request_id"], "error": FAIL_REASON.NOT_LEADER}
    bench.receive(bench.peer, {"type": "apply_command_response", **answer})
    assert outcomes == [FAIL_REASON.NOT_LEADER]


def test_a_leader_that_gives_way_tells_each_voter_and_lets_the_one_with_most_run_first(bench: Bench) -> None:
    bench.lead()
    term = bench.engine.term
    bench.engine.submit(REGULAR, b"begun", lambda *_: None)
    bench.engine.tick()
    bench.acknowledge(bench.other, bench.last_index + 1, term=term)
    assert bench.engine.hand_over()
    told = {node: wire.of("leader_gives_way") for node, wire in bench.wires.items()}
    assert told == {
        bench.other: [{"type": "leader_gives_way", "term": term, "rank": 0}],
        bench.peer: [{"type": "leader_gives_way", "term": term, "rank": 1}],
    }
    for wire in bench.wires.values():
        assert [entry[0] for message in wire.of("append_entries") for entry in message["entries"]][-1] == b"\0begun"
        assert wire.sent[-1]["type"] == "leader_gives_way", "after the entries"
        assert not wire.closed
    assert bench.engine.role is RaftRole.FOLLOWER
    assert not pre_vote(bench, term=term, last_index=bench.last_index - 1, last_term=term), "it lacks an entry"
    assert pre_vote(bench, term=term, last_index=bench.last_index, last_term=term)
    assert not bench.engine.hand_over()


def test_a_command_forwarded_to_a_lost_leader_ends_as_unknown(bench: Bench) -> None:
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[], commit=1)
    outcomes: list[int] = []
    bench.engine.submit(REGULAR, b"forwarded", lambda _result, reason: outcomes.append(reason))
    bench.engine.tick()
    bench.engine.transport._onNodeDisconnected(bench.peer)
    assert outcomes == [FAIL_REASON.LEADER_CHANGED]


def vote(bench: Bench, *, term: int, last_index: int) -> bool:
    wire = bench.wires[bench.other]
    wire.sent.clear()
    question = {"type": "request_vote", "term": term, "last_log_index": last_index, "last_log_term": 9}
    bench.receive(bench.other, question)
    return bool(wire.of("response_vote"))


def test_a_voter_with_an_emptied_disk_votes_only_after_it_has_synchronised(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "raft", joined=False)
    assert not vote(bench, term=1, last_index=30)
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[b"1"], commit=3)
    assert not vote(bench, term=2, last_index=30)
    bench.entries(bench.peer, term=2, previous=2, previous_term=1, commands=[b"2"], commit=3)
    assert not vote(bench, term=2, last_index=30), "this term's vote may have gone to the leader in the forgotten life"
    assert vote(bench, term=3, last_index=30)
    bench.close()
    again = Bench(tmp_path / "raft", joined=False)
    assert vote(again, term=4, last_index=30)
    again.close()


def test_a_voter_with_an_emptied_disk_hears_no_leader_at_first(tmp_path: Path) -> None:
    """One that was deposed by a vote that it has forgotten would go on with its answers, and commit in the place of
    what its successor has committed."""
    bench = Bench(tmp_path / "raft", joined=False)
    bench.engine._started_at = monotonic()
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[b"1"], commit=1)
    bench.engine.tick()
    assert bench.wires[bench.peer].of("next_node_idx") == []
    assert (bench.engine.term, bench.last_index) == (0, 1)
    bench.engine._started_at -= LISTENS_AFTER * bench.engine.conf.connectionTimeout
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[b"1"], commit=1)
    bench.engine.tick()
    assert bench.wires[bench.peer].of("next_node_idx")[-1]["next_node_idx"] == 3
    bench.close()


def test_a_voter_of_a_new_group_hears_its_leader_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "raft", joined=False)
    bench.engine._started_at = monotonic()
    for node in (bench.peer, bench.other):
        tells(bench, node, is_new=True)
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[b"1"], commit=1)
    assert bench.last_index == 2
    bench.close()


def tells(bench: Bench, node: Node, *, is_new: bool) -> None:
    """It looks for a leader."""
    question = {"type": "pre_vote", "term": 0, "last_log_index": 1, "last_log_term": 0, "is_new": is_new}
    bench.receive(node, question)


def test_a_new_group_elects_once_each_of_its_voters_has_said_that_it_is_new(tmp_path: Path) -> None:
    """A majority of empty disks may be what is left of a group whose third voter has its commands."""
    bench = Bench(tmp_path / "raft", joined=False)
    assert not vote(bench, term=1, last_index=1)
    tells(bench, bench.other, is_new=True)
    assert not vote(bench, term=1, last_index=1)
    tells(bench, bench.peer, is_new=True)
    assert vote(bench, term=1, last_index=1)
    tells(bench, bench.peer, is_new=False)
    assert not vote(bench, term=2, last_index=1)
    bench.close()


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("others", [*combinations_with_replacement((None, False, True), 2)])
def test_a_voter_votes_if_it_has_synchronised_or_if_all_are_new(
    tmp_path: Path, joined: bool, others: tuple[bool | None, bool | None]
) -> None:
    """Whoever starts first: `others` are absent (None), or told that they are new."""
    bench = Bench(tmp_path / "raft", joined=joined)
    for node, is_new in zip((bench.peer, bench.other), others, strict=True):
        if is_new is not None:
            tells(bench, node, is_new=is_new)
    may = joined or others == (True, True)
    assert vote(bench, term=1, last_index=1) is may
    assert pre_vote(bench, term=2, last_index=1, last_term=9) is joined, "it tells that it is not new"
    bench.close()


def test_a_voter_that_was_new_may_come_back_with_another_disk(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "raft", joined=False)
    for node in (bench.peer, bench.other):
        tells(bench, node, is_new=True)
    bench.engine.transport._onNodeDisconnected(bench.peer)
    assert not vote(bench, term=1, last_index=1)
    bench.close()


@pytest.mark.parametrize("group", ["", "0a1b"])
def test_a_disk_is_new_while_it_holds_no_command_and_belongs_to_no_cluster(tmp_path: Path, group: str) -> None:
    bench = Bench(tmp_path / "raft", joined=False, group=group)
    assert bench.engine.is_new is (group == "")
    bench.engine.journal.add(b"\1", 2, 1)
    assert bench.engine.is_new is (group == ""), "an election that came to nothing"
    bench.engine.journal.add(b"\0command", 3, 1)
    assert not bench.engine.is_new
    bench.close()


def test_a_voter_says_which_folders_keep_a_leader_from_being_elected(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "raft", joined=False)
    assert bench.engine.status().why_no_leader() == "", "the others are connected, and may not have started to look"
    tells(bench, bench.peer, is_new=False)
    words = bench.engine.status().why_no_leader()
    assert f"data folder is empty, and {PEER} has one of a cluster" in words
    assert "tidelog cluster recover" in words
    tells(bench, bench.other, is_new=False)
    both = " and ".join(sorted((PEER, OTHER)))
    assert f"data folder is empty, and {both} have those of a cluster" in bench.engine.status().why_no_leader()
    bench.engine.transport._onNodeDisconnected(bench.other)
    bench.engine.transport._onNodeConnected(bench.other)
    bench.engine.transport._onNodeDisconnected(bench.peer)
    assert f"by all of its voters, with empty data folders, and {PEER} cannot" in bench.engine.status().why_no_leader()
    bench.engine.journal.mark_joined()
    assert bench.engine.status().why_no_leader() == ""
    tells(bench, bench.other, is_new=True)
    words = bench.engine.status().why_no_leader()
    assert f"{OTHER} started with empty data folders, and may not vote" in words
    assert "tidelog cluster recover" in words
    bench.close()


def test_a_voter_of_a_known_cluster_says_that_its_raft_files_are_missing(tmp_path: Path) -> None:
    """Only the Raft directory was lost. If it is lost on a majority all of them wait, connected, and for good."""
    bench = Bench(tmp_path / "raft", joined=False, group="0a1b")
    tells(bench, bench.peer, is_new=False)
    words = bench.engine.status().why_no_leader()
    assert "Raft files of this voter are missing, or were set aside" in words
    assert "tidelog cluster recover" in words
    bench.engine.journal.mark_joined()
    assert bench.engine.status().why_no_leader() == ""
    bench.close()


def test_a_voter_says_which_others_a_majority_lacks(tmp_path: Path) -> None:
    bench = Bench(tmp_path / "raft", joined=True)
    bench.engine.transport._onNodeDisconnected(bench.peer)
    assert bench.engine.status().why_no_leader() == "", "the other one and this voter are two of three"
    bench.engine.transport._onNodeDisconnected(bench.other)
    words = bench.engine.status().why_no_leader()
    assert f"{PEER} and {OTHER} cannot be reached, and a leader needs a majority of the 3" in words
    bench.close()


def test_a_voter_that_set_its_files_aside_is_of_no_new_group(tmp_path: Path) -> None:
    """Two of three would elect each other, and the third's commands, which were committed, would be forgotten."""
    directory = tmp_path / "raft"
    Bench(directory).close()
    set_aside(directory, "a flipped bit")
    bench = Bench(directory, joined=False)
    assert not vote(bench, term=1, last_index=1)
    bench.entries(bench.peer, term=1, previous=1, previous_term=0, commands=[b"1", b"2"], commit=3)
    assert vote(bench, term=2, last_index=30)
    bench.close()


# ---------------------------------------------------------------------------- m and the barrier


def test_m_commands_of_the_largest_size_travel_whole(bench: Bench) -> None:
    bench.lead()
    sent_before = len(bench.wires[bench.peer].sent)
    for _ in range(BATCH_BYTES // MAX_COMMAND_BYTES + 1):
        bench.engine.submit(REGULAR, b"x" * MAX_COMMAND_BYTES, lambda *_: None)
    bench.engine.tick()
    sent = bench.wires[bench.peer].sent[sent_before:]
    assert not [message for message in sent if "transmission" in message]
    assert sum(len(message.get("entries", ())) for message in sent) == BATCH_BYTES // MAX_COMMAND_BYTES + 1


ENTRIES = {"type": "append_entries", "term": 1, "commit_index": 1, "prevLogIdx": 1, "prevLogTerm": 0}


@pytest.mark.parametrize(
    "message",
    [
        ["status"],
        {"type": "timeout_now", "term": 1},
        {"type": "leader_gives_way", "term": 1},
        {"type": "apply_command", "command": b"\2membership", "request_id": 1},
        {"type": "apply_command", "command": b"\0" + b"x" * (MAX_COMMAND_BYTES + 1), "request_id": 1},
        {"type": "request_vote", "term": "1", "last_log_index": 1, "last_log_term": 0},
        ENTRIES | {"transmission": "finish", "data": b"", "entries": []},
        ENTRIES | {"entries": [[b"\0", 7, 1]]},
        ENTRIES | {"prevLogTerm": None, "entries": []},
        {"type": "append_entries", "term": 1, "commit_index": 1, "serialized": [b"", 1]},
        {"type": "append_entries", "term": 1, "commit_index": 1},
    ],
)
def test_malformed_messages_close_the_connection_and_reach_no_handler(bench: Bench, message: Any) -> None:
    assert not well_formed(message)
    bench.receive(bench.peer, message)
    assert bench.wires[bench.peer].closed
    assert bench.engine.term == 0


def test_an_observer_cannot_speak_raft(bench: Bench) -> None:
    observer = Node("0")
    bench.wires[observer] = Wire()
    bench.engine.transport._connections[observer] = bench.wires[observer]
    bench.entries(observer, term=9, previous=1, previous_term=0, commands=[b"evil"], commit=2)
    assert bench.engine.term == 0
    assert bench.wires[observer].closed


def test_an_acknowledgement_waits_for_the_journal(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    sync = bench.engine.journal.sync

    def noted_sync() -> None:
        order.append("sync")
        sync()

    monkeypatch.setattr(bench.engine.journal, "sync", noted_sync)
    wire = bench.wires[bench.peer]
    monkeypatch.setattr(wire, "send", lambda message: order.append(message["type"]))
    bench.numbered(2, 5, commit=1, previous_term=0)
    bench.numbered(6, 9, commit=1)
    assert "next_node_idx" not in order
    bench.engine.tick()
    assert order.index("sync") < order.index("next_node_idx")
    assert order.count("next_node_idx") == 1, "one acknowledgement for all that one sync covers"


def test_a_vote_is_durable_before_it_leaves(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    dirty: list[bool] = []
    wire = bench.wires[bench.other]
    monkeypatch.setattr(wire, "send", lambda _message: dirty.append(bench.engine.journal.dirty))
    bench.receive(bench.other, {"type": "request_vote", "term": 1, "last_log_index": 1, "last_log_term": 0})
    assert dirty == [False]


def test_a_leader_applies_nothing_that_it_has_not_synced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.lead()
    dirty: list[bool] = []
    monkeypatch.setattr(bench.machine, "apply", lambda _command: dirty.append(bench.engine.journal.dirty))
    # Both peers answer before the leader's own sync: the entry is added behind the tick's back.
    bench.engine.journal.add(b"\0quick", bench.last_index + 1, bench.engine.term)
    for node in (bench.peer, bench.other):
        bench.acknowledge(node, bench.last_index + 1, term=bench.engine.term)
    bench.engine.tick()
    assert dirty == [False]


def test_entries_for_a_peer_that_does_not_read_are_held_back(bench: Bench) -> None:
    bench.lead()
    wire = bench.wires[bench.other]
    wire.unsent_bytes = 1 << 30
    wire.sent.clear()
    bench.engine.submit(REGULAR, b"command", lambda *_: None)
    bench.engine.tick()
    assert not [message for message in wire.sent if message.get("entries")]


def test_a_peer_that_waits_for_a_chunk_of_a_snapshot_gets_one_heartbeat(bench: Bench) -> None:
    """Stock asks for the chunk again and again, and sends a message each time, for as long as a heartbeat."""
    bench.lead()
    bench.compact()
    bench.engine.submit(REGULAR, b"command", lambda *_: None)
    bench.engine.next_index[bench.other] = 1
    bench.wires[bench.other].unsent_bytes = 1 << 30
    bench.wires[bench.other].sent.clear()
    bench.engine.send_soon()
    bench.engine.tick()
    sent = bench.wires[bench.other].of("append_entries")
    assert 1 <= len(sent) <= 2, "when the heartbeat is due, and with the command"
    assert [message["serialized"] for message in sent] == [None] * len(sent)
    assert bench.engine.next_index[bench.other] == 1
    assert [message for message in bench.wires[bench.peer].of("append_entries") if message["entries"]]


def test_a_commit_is_told_to_the_followers_at_once(bench: Bench) -> None:
    bench.lead()
    bench.engine.submit(REGULAR, b"command", lambda *_: None)
    bench.engine.tick()
    wire = bench.wires[bench.other]
    assert wire.of("append_entries")[-1]["entries"], "sent in the tick that took it, not with the next heartbeat"
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term)
    bench.engine.tick()
    assert wire.of("append_entries")[-1]["commit_index"] == bench.last_index


# ---------------------------------------------------------------------------- applying in turns


def test_a_follower_hears_its_leader_while_it_prepares_a_command(bench: Bench) -> None:
    bench.machine.turns[b"e3"] = 3
    bench.numbered(2, 5, commit=5, previous_term=0)
    wire = bench.wires[bench.peer]
    for turn in range(3):
        bench.engine.tick()
        assert bench.engine.wants_tick
        assert bench.machine.commands == [b"e2"], "what is behind the command waits for it"
        assert wire.of("next_node_idx")[-1]["next_node_idx"] == 6 + turn, "it acknowledges what comes meanwhile"
        deadline = bench.engine.election_deadline
        bench.numbered(6 + turn, 6 + turn, commit=6 + turn)
        assert bench.engine.election_deadline != deadline
    bench.engine.tick()
    assert bench.machine.commands == [b"e2", b"e3", b"e4", b"e5", b"e6", b"e7", b"e8"]
    assert not bench.engine.takes_turns


def test_a_leader_sends_heartbeats_and_the_commit_while_it_prepares_a_command(bench: Bench) -> None:
    bench.lead()
    bench.machine.turns[b"slow"] = 3
    outcomes: list[object] = []
    for command in (b"slow", b"next"):
        bench.engine.submit(REGULAR, command, lambda result, _: outcomes.append(result))
    bench.engine.tick()
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term)
    wire = bench.wires[bench.other]
    for _ in range(3):
        wire.sent.clear()
        bench.engine.append_entries_time = 0.0  # a heartbeat is due
        bench.engine.tick()
        assert [message["commit_index"] for message in wire.of("append_entries")] == [bench.last_index]
        assert bench.engine.wants_tick
        assert (bench.machine.commands, outcomes) == ([], [])
    bench.engine.tick()
    assert (bench.machine.commands, outcomes) == ([b"slow", b"next"], [1, 2])


def test_a_commit_is_told_before_it_is_applied(bench: Bench) -> None:
    bench.lead()
    bench.machine.turns[b"slow"] = 3
    bench.engine.submit(REGULAR, b"slow", lambda *_: None)
    bench.engine.tick()
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term)
    bench.engine.append_entries_time = inf  # no heartbeat is due
    bench.engine.tick()
    assert bench.wires[bench.other].of("append_entries")[-1]["commit_index"] == bench.last_index
    assert bench.machine.commands == []


def test_a_tick_applies_so_many_entries(bench: Bench) -> None:
    bench.numbered(2, 2 * APPLIED_PER_TICK, commit=2 * APPLIED_PER_TICK, previous_term=0)
    bench.engine.tick()
    assert len(bench.machine.commands) == APPLIED_PER_TICK
    assert bench.engine.wants_tick
    bench.engine.tick()
    assert len(bench.machine.commands) == 2 * APPLIED_PER_TICK - 1


def test_what_a_command_left_to_do_is_done_without_another_command(bench: Bench) -> None:
    bench.machine.turns[None] = 2
    bench.numbered(2, 2, commit=2, previous_term=0)
    bench.engine.tick()
    assert bench.engine.wants_tick
    bench.engine.tick()
    assert bench.engine.wants_tick
    bench.engine.tick()
    assert not bench.engine.takes_turns


def test_a_command_is_applied_although_preparing_it_raises(bench: Bench) -> None:
    bench.machine.turns[b"e2"] = -1
    bench.numbered(2, 3, commit=3, previous_term=0)
    bench.engine.tick()
    assert bench.machine.commands == [b"e2", b"e3"]


def test_a_snapshot_is_made_while_commands_are_applied(bench: Bench) -> None:
    bench.machine.snapshot_turns = 3
    bench.numbered(2, 30, commit=30, previous_term=0)
    bench.engine.tick()
    bench.engine.forceLogCompaction()
    bench.engine.tick()
    bench.numbered(31, 40, commit=40)
    for _ in range(3):
        bench.engine.tick()
        assert bench.engine.wants_tick
        assert not (bench.directory / "snapshot").exists()
    assert len(bench.machine.commands) == 39
    bench.compact()
    assert [entry.index for entry in bench.engine.journal[:2]] == [29, 30]
    again = Recorder()
    _, state = decode_snapshot((bench.directory / "snapshot").read_bytes(), bench.directory)
    Turns(again.restore(state)).finish()
    assert again.commands == bench.machine.commands[:29]


def with_a_received_snapshot(tmp_path: Path) -> Bench:
    """A snapshot of 30 entries takes three turns to be taken up."""
    donor = Bench(tmp_path / "donor")
    snapshot = compacted(donor, 30)
    donor.close()
    bench = Bench(tmp_path / "receiver")
    bench.engine.tick()
    bench.machine.restore_turns = 3
    for chunk in ([snapshot, True, False], [b"", False, True]):
        bench.receive(bench.peer, {"type": "append_entries", "term": 1, "commit_index": 30, "serialized": chunk})
    return bench


def test_nothing_is_applied_before_a_received_snapshot_is_taken_up(tmp_path: Path) -> None:
    bench = with_a_received_snapshot(tmp_path)
    bench.numbered(31, 35, commit=35)
    for _ in range(2):
        bench.engine.tick()
        assert bench.engine.wants_tick
        assert bench.machine.commands == []
        assert bench.wires[bench.peer].of("next_node_idx")[-1]["next_node_idx"] == 36
    bench.engine.tick()
    assert bench.machine.commands == [f"e{index}".encode() for index in range(2, 36)]
    bench.close()


def test_a_received_snapshot_that_cannot_be_taken_up_ends_the_process(tmp_path: Path) -> None:
    bench = with_a_received_snapshot(tmp_path)

    def fails(_looks: int) -> bool:
        raise ValueError("a bug")

    bench.engine.snapshots._restoring.turn = fails  # type: ignore[method-assign, union-attr]
    with pytest.raises(ProcessEnded, match="a bug"):
        bench.engine.tick()
    bench.close()


# ---------------------------------------------------------------------------- a full disk


@pytest.fixture
def disk(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    bench.engine.journal.sync()
    return FullDisk(monkeypatch)


class FullDisk:
    """The journal's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        write = os.pwrite

        def refusing(descriptor: int, data: bytes, position: int) -> int:
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return write(descriptor, data, position)

        monkeypatch.setattr(os, "pwrite", refusing)


def _sent(bench: Bench) -> int:
    return sum(len(wire.sent) for wire in bench.wires.values())


def test_full_a_follower_acknowledges_nothing_until_there_is_room(bench: Bench, disk: FullDisk) -> None:
    disk.is_full = True
    before = _sent(bench)
    bench.numbered(2, 5, commit=1, previous_term=0)
    bench.engine.tick()
    bench.engine.tick()
    assert bench.engine.journal.stalled
    assert _sent(bench) == before
    assert not bench.engine.status().has_quorum
    disk.is_full = False
    bench.engine.tick()
    assert [message["next_node_idx"] for message in bench.wires[bench.peer].of("next_node_idx")][-1] == 6


def test_full_a_vote_is_not_told(bench: Bench, disk: FullDisk) -> None:
    disk.is_full = True
    request = {"type": "request_vote", "term": 9, "last_log_index": 50, "last_log_term": 8}
    bench.receive(bench.peer, request)
    bench.engine.tick()
    assert not bench.wires[bench.peer].of("response_vote")
    disk.is_full = False
    bench.engine.tick()
    assert not bench.wires[bench.peer].of("response_vote")  # lost on the way; the peer asks in another term
    bench.receive(bench.other, request)
    bench.engine.tick()
    assert not bench.wires[bench.other].of("response_vote")  # one vote a term


def test_full_a_leader_applies_and_tells_nothing_and_steps_down_when_it_hears_of_another_term(
    bench: Bench, disk: FullDisk
) -> None:
    bench.lead()
    applied = len(bench.machine.commands)
    ended: list[object] = []
    disk.is_full = True
    bench.engine.submit(REGULAR, b"x", lambda *outcome: ended.append(outcome))
    bench.engine.tick()
    before = _sent(bench)
    bench.acknowledge(bench.peer, bench.last_index + 1, term=bench.engine.term)
    bench.acknowledge(bench.other, bench.last_index + 1, term=bench.engine.term)
    bench.engine.tick()
    assert (len(bench.machine.commands), ended, _sent(bench)) == (applied, [], before)
    bench.entries(bench.other, term=bench.engine.term + 1, previous=2, previous_term=1, commands=[], commit=1)
    assert not bench.engine.is_leader
    disk.is_full = False
    bench.engine.tick()
    assert not bench.engine.is_leader
    assert not bench.engine.journal.stalled


def test_full_nothing_is_ticked_until_there_is_room(bench: Bench, disk: FullDisk) -> None:
    disk.is_full = True
    bench.numbered(2, 3, commit=1, previous_term=0)
    bench.engine.tick()
    bench.engine.election_deadline = 0.0
    term = bench.engine.term
    bench.engine.tick()
    assert not bench.engine.wants_tick
    assert bench.engine.term == term
    assert not bench.wires[bench.peer].of("pre_vote")
