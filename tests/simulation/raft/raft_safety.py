"""The safety properties of Raft, checked on shipped nodes after every step, and on every message that leaves one.

    ElectionSafety          a term has one leader at most
    OneVotePerTerm          a voter gives one vote a term, whatever it has forgotten meanwhile
    ElectionsAreAsked       a voter runs for leader when a majority has granted it a pre-vote, and nobody grants one
                            while it hears a leader
    PersistBeforeSend       what a vote, a request for votes or an acknowledgement promises is on its disk before
    TermsGrow               a voter's term never goes back, except with its disk
    AcknowledgedStays       what a voter has confirmed to a leader it holds as long as that leader's term lasts
    RestartKeepsTheLog      what was on a voter's disk before it starts is in its log afterwards
    SnapshotsGrow           no snapshot takes the place of one that covers more, and no state that of a later one
    LogMatching             two logs with the same entry (index and term) are the same up to it
    LeaderCompleteness      a leader has every entry that was committed
    CommittedStays          two voters never know different entries of an index as committed
    CoveredIsCommitted      what a voter has applied, by entries or by a snapshot, and the first entry of its log, it
                            knows as committed
    CommitsAreDurable       what is known as committed is on the disks of a majority
    StateMachineSafety      all state machines apply the same commands in the same order, each once
    NoAcknowledgedCommandLost, ResultsAreTrue, RealTimeOrder, NeverQueuedIsNeverApplied    to proposers

The names are those of Ongaro's dissertation where it has one. Indexes are Raft's, from 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from metadata.raft.files import OperatingSystemFiles
from metadata.raft.journal import Journal
from metadata.raft.snapshot import decode_snapshot
from metadata.raft.types import RaftStorageError
from tests.simulation.raft.raft_node import DIRECTORY

if TYPE_CHECKING:
    from metadata.raft.engine import RaftEngine
    from tests.simulation.machines.disk import SimDisk
    from tests.simulation.world import World

JOURNAL = DIRECTORY / "journal"
SNAPSHOT = DIRECTORY / "snapshot"


@dataclass(slots=True)
class _Seen:
    """A voter, when it was looked at last."""

    log: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Index of its first entry, length, index and term of its last."""
    commit_index: int = 1
    """All logs begin with the same entry."""
    acknowledged: tuple[int, int] = (0, 0)
    """Term, and index of the last entry that it has confirmed to the leader of that term."""
    snapshot: bytearray | None = None
    covered: int = 0
    """The snapshot on its disk, and the last entry that this one covers."""
    before: dict[int, int] | None = None
    """Index -> term of the entries on its disk when it started; None: they were looked for."""
    term: int = 0
    led: int = 0
    """The last term that it was seen to lead."""
    lost: bool = False
    """Its disk has forgotten: its term may go back once."""


class RaftSafety:
    """Voters are told apart by their addresses."""

    def __init__(self, world: World, disks: dict[str, SimDisk]) -> None:
        self.world = world
        self.disks = disks
        self._durable = {voter: DurableLog(disk) for voter, disk in disks.items()}
        self.leaders: dict[int, str] = {}
        self.votes: dict[tuple[str, int], str] = {}
        self._asked: dict[int, set[str]] = {}
        """Term -> who has run for leader in it."""
        self._granted: dict[str, set[str]] = {voter: set() for voter in disks}
        """Who has granted a pre-vote since the voter ran for leader last."""
        self.entries: dict[tuple[int, int], tuple[bytes, int]] = {}
        """(index, term) -> command, and term of the entry before."""
        self.committed: dict[int, tuple[int, bytes]] = {}
        """Index -> term and command."""
        self.applied: list[bytes] = []
        """By whoever was first."""
        self.acknowledged: dict[bytes, int] = {}
        """Command -> how many were applied with it."""
        self.never_queued: set[bytes] = set()
        self.forgetful: set[str] = set()
        """Voters that have lost files, and have not synchronised since: they may have confirmed what they lack."""
        self._seen: dict[str, _Seen] = {voter: _Seen() for voter in disks}
        self._position: dict[bytes, int] = {}
        """Command -> its place in `applied`."""

    # ---- voters

    def lost_disk(self, voter: str) -> None:
        self.forgetful.add(voter)
        self._seen[voter] = _Seen(lost=True)

    def may_vote(self, voter: str) -> bool:
        """Whether it has synchronised, as its disk says."""
        return voter not in self.forgetful and self._durable[voter].joined()

    def started(self, voter: str) -> None:
        """Another life of it."""
        seen = self._seen[voter]
        log = self._durable[voter]
        log.holds(0, 0)
        before = None if self.disks[voter].flipped_below(DIRECTORY) else dict(log.entries)
        self._seen[voter] = _Seen(term=seen.term, led=seen.led, lost=seen.lost, covered=seen.covered, before=before)

    def look(self, voter: str, engine: RaftEngine) -> None:
        """After a step of that voter's process."""
        seen, journal = self._seen[voter], engine.journal
        if voter in self.forgetful and journal.joined and not self.disks[voter].flipped_below(DIRECTORY):
            self.forgetful.discard(voter)
        if engine.term != seen.term and not journal.stalled:
            self._on_term(voter, seen, engine)
        first, last = journal[0], journal.last
        log = first.index, len(journal), last.index, last.term
        if log != seen.log:
            seen.log = log
            self._match(voter, journal)
            term, index = seen.acknowledged
            if term == engine.term and index > last.index:
                self.world.broken("AcknowledgedStays", f"{voter} ends at {last.index}, and has confirmed {index}")
        if seen.before is not None and not engine._loads_snapshot:
            self._on_loaded(voter, seen.before, journal)
            seen.before = None
        if not engine._loads_snapshot and engine.commit_index < max(engine.applied_index, first.index):
            self.world.broken(
                "CoveredIsCommitted",
                f"{voter} has {engine.commit_index} as its commit index, has applied entries up to"
                f" {engine.applied_index}, and its log begins at {first.index}",
            )
        if (found := self.disks[voter].durable(SNAPSHOT)) is not seen.snapshot:
            self._on_snapshot(voter, seen, found)
        if engine.is_leader and engine.term != seen.led:
            seen.led = engine.term
            self._on_leader(voter, engine)
        if engine.commit_index != seen.commit_index and not journal.stalled:
            self._on_commit(voter, journal, seen.commit_index, engine.commit_index)
            seen.commit_index = engine.commit_index

    def _on_term(self, voter: str, seen: _Seen, engine: RaftEngine) -> None:
        if engine.term < seen.term and not seen.lost:
            self.world.broken("TermsGrow", f"{voter} goes from term {seen.term} back to {engine.term}")
        seen.term = engine.term

    def _on_loaded(self, voter: str, before: dict[int, int], journal: Journal) -> None:
        if voter in self.forgetful:
            return
        for index, term in before.items():
            if index >= journal[0].index and not journal.holds(index, term):
                self.world.broken("RestartKeepsTheLog", f"{voter} has lost entry {index} of term {term} in a restart")

    def _on_snapshot(self, voter: str, seen: _Seen, found: bytearray | None) -> None:
        seen.snapshot = found
        if found is None or voter in self.forgetful:
            return
        covered = decode_snapshot(bytes(found), SNAPSHOT)[0].last.index
        if covered < seen.covered:
            self.world.broken("SnapshotsGrow", f"{voter} has a snapshot up to {covered}, and had one to {seen.covered}")
        seen.covered = covered

    def _on_leader(self, voter: str, engine: RaftEngine) -> None:
        before = self.leaders.setdefault(engine.term, voter)
        if before != voter:
            self.world.broken("ElectionSafety", f"{voter} leads term {engine.term}, which {before} led")
        journal = engine.journal
        for index, (term, _) in self.committed.items():
            if term < engine.term and index >= journal[0].index and not journal.holds(index, term):
                self.world.broken(
                    "LeaderCompleteness", f"{voter} leads term {engine.term} without entry {index} of term {term}"
                )
        self.world.say(f"leads term {engine.term}, log {journal[0].index}..{journal.last.index}")

    def _match(self, voter: str, journal: Journal) -> None:
        before = None
        for entry in journal[:]:
            place = entry.index, entry.term
            known = self.entries.get(place)
            term_before = -1 if before is None else before.term
            if known is None:
                self.entries[place] = entry.command, term_before
            else:
                command, term = known
                if command != entry.command or (-1 not in (term, term_before) and term != term_before):
                    self.world.broken(
                        "LogMatching", f"{voter} has another entry {entry.index} of term {entry.term}, or before it"
                    )
                if term == -1 and term_before != -1:
                    self.entries[place] = command, term_before
            before = entry

    def _on_commit(self, voter: str, journal: Journal, before: int, index: int) -> None:
        first = journal[0].index
        fresh = False
        for at in range(max(before + 1, first), index + 1):
            entry = journal[at - first]
            known = self.committed.get(at)
            if known is None:
                fresh = True
                self.committed[at] = entry.term, entry.command
            elif known != (entry.term, entry.command):
                self.world.broken(
                    "CommittedStays",
                    f"{voter} has entry {at} of term {entry.term} as committed, which was of term {known[0]}",
                )
        if fresh:
            self._check_majority(voter, index)

    def _check_majority(self, voter: str, index: int) -> None:
        term = self.committed[index][0]
        holders = [each for each, log in self._durable.items() if each in self.forgetful or log.holds(index, term)]
        if 2 * len(holders) <= len(self.disks):
            self.world.broken(
                "CommitsAreDurable",
                f"{voter} has entry {index} of term {term} as committed, and it is on the disks of {holders} only",
            )

    # ---- messages

    def sends(self, voter: str, engine: RaftEngine, to: str, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind in ("request_vote", "response_vote"):
            term, vote = message["term"], voter if kind == "request_vote" else to
            before = self.votes.setdefault((voter, term), vote)
            if kind == "request_vote" and vote not in self._asked.get(term, set()):
                self._asked.setdefault(term, set()).add(vote)
                granted, self._granted[voter] = self._granted[voter], set()
                if 2 * (len(granted) + 1) <= len(self.disks):
                    self.world.broken("ElectionsAreAsked", f"{voter} runs in term {term}, granted by {granted} only")
            if before != vote:
                self.world.broken("OneVotePerTerm", f"{voter} votes for {vote} in term {term}, and did for {before}")
        elif kind == "pre_vote_granted":
            self._granted[to].add(voter)
            if engine.monotonic() - engine._leader_heard_at < engine.conf.raftMinTimeout:
                self.world.broken("ElectionsAreAsked", f"{voter} grants {to} a pre-vote, and hears a leader")
        elif kind == "append_entries" and not engine.is_leader:
            self.world.broken("OnlyLeadersAppend", f"{voter} sends entries, and does not lead")
        if kind in ("request_vote", "response_vote") or (kind == "next_node_idx" and message["success"]):
            self._check_synced(voter, engine, kind)
        if kind == "next_node_idx" and message["success"]:
            seen, index = self._seen[voter], message["next_node_idx"] - 1
            term, confirmed = seen.acknowledged
            seen.acknowledged = message["term"], max(index, confirmed) if term == message["term"] else index

    def _check_synced(self, voter: str, engine: RaftEngine, kind: str) -> None:
        disk = self.disks[voter]
        if engine.journal.dirty or not disk.is_synced(JOURNAL):
            self.world.broken("PersistBeforeSend", f"{voter} sends {kind}, and its journal is not on its disk")

    # ---- state machines

    def apply(self, voter: str, place: int, command: bytes) -> None:
        """`place`: how many commands the machine has applied before this one."""
        if place == len(self.applied):
            self.applied.append(command)
            if command in self._position:
                self.world.broken("StateMachineSafety", f"{command[:40]!r} is applied a second time")
            if command in self.never_queued:
                self.world.broken("NeverQueuedIsNeverApplied", f"{command[:40]!r} is applied")
            self._position[command] = place
        elif place > len(self.applied) or self.applied[place] != command:
            self.world.broken("StateMachineSafety", f"{voter} applies another command {place}: {command[:40]!r}")

    def restored(self, voter: str, commands: list[bytes], before: int) -> None:
        """`before`: how many commands the machine had applied."""
        if len(commands) < before:
            self.world.broken("SnapshotsGrow", f"{voter} goes from {before} commands back to {len(commands)}")
        if commands != self.applied[: len(commands)]:
            self.world.broken("StateMachineSafety", f"{voter} restores a state that no history leads to")

    # ---- proposers

    @property
    def newest_acknowledged(self) -> int:
        return max(self.acknowledged.values(), default=0)

    def acknowledge(self, command: bytes, result: object, before: int) -> None:
        """`before`: `newest_acknowledged` at the time of the proposal."""
        place = self._position.get(command)
        if place is None or result != place + 1:
            self.world.broken("ResultsAreTrue", f"{command[:40]!r} ends with {result!r}, and was applied at {place}")
        if place < before:
            self.world.broken("RealTimeOrder", f"{command[:40]!r} comes before one acknowledged before its proposal")
        self.acknowledged[command] = place + 1

    def refused(self, command: bytes) -> None:
        """Certainly never queued."""
        self.never_queued.add(command)
        if command in self._position:
            self.world.broken("NeverQueuedIsNeverApplied", f"{command[:40]!r} was refused, and is applied")

    def at_the_end(self, machines: Iterable[tuple[str, list[bytes]]]) -> None:
        for voter, commands in machines:
            if commands != self.applied:
                self.world.broken("StateMachineSafety", f"{voter} has {len(commands)} of {len(self.applied)} commands")
            present = set(commands)
            for command in self.acknowledged:
                if command not in present:
                    self.world.broken("NoAcknowledgedCommandLost", f"{voter} lacks {command[:40]!r}")


def _fail(reason: str) -> Any:
    raise RaftStorageError(reason)


class _Durable(OperatingSystemFiles):
    """A journal's synced content, to be read only."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        return 0

    def close(self, handle: int) -> None:
        pass

    def size(self, handle: int) -> int:
        return len(self._content)

    def read(self, handle: int, size: int, position: int) -> bytes:
        return self._content

    def write(self, handle: int, parts: Sequence[bytes], position: int) -> None:
        pass

    def truncate(self, handle: int, size: int) -> None:
        pass

    def sync_all(self, handle: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class DurableLog:
    """What a voter would have after a loss of power in which nothing survives that was not synced."""

    def __init__(self, disk: SimDisk) -> None:
        self._disk = disk
        self._journal: bytearray | None = None
        self._length = 0
        self._snapshot: bytearray | None = None
        """The content that was read last: files are only appended to, or replaced."""
        self.entries: dict[int, int] = {}
        """Index -> term."""
        self._covered = 0
        self._joined = False

    def joined(self) -> bool:
        self._look()
        return self._joined

    def holds(self, index: int, term: int) -> bool:
        self._look()
        return index <= self._covered or self.entries.get(index) == term

    def _look(self) -> None:
        journal, snapshot = self._disk.durable(JOURNAL), self._disk.durable(SNAPSHOT)
        length = len(journal or b"")
        if journal is not self._journal or length != self._length or snapshot is not self._snapshot:
            self._journal, self._length, self._snapshot = journal, length, snapshot
            self._load(bytes(journal or b""), None if snapshot is None else bytes(snapshot))

    def _load(self, journal: bytes, snapshot: bytes | None) -> None:
        self.entries, self._covered, self._joined = {}, 0, False
        try:
            if snapshot is not None:
                self._covered = decode_snapshot(snapshot, SNAPSHOT)[0].last.index
            found = Journal(JOURNAL, snapshot=None, exit_process=_fail, files=_Durable(journal))
        except RaftStorageError:
            return
        self.entries = {entry.index: entry.term for entry in found[:]}
        self._joined = found.joined
