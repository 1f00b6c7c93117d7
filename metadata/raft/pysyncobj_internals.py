"""The private parts of PySyncObj 0.3.17 that this package uses, under plain names. No other module has one of the names
that PySyncObj mangles (`_SyncObj__*`); a test sees to that.

Three kinds of part, and each says here what of PySyncObj it relies on:

    replaced    `SyncObj.__init__` creates it and offers no option for it: the journal, the snapshot serializer, the
                poller. A property of the same name gives ours, and its setter ignores what stock assigns
    overridden  stock calls the method by its mangled name on `self`, so a method of that name in a subclass is called
                in its place. It calls a method with a plain name, which `metadata.raft.engine` defines
    used        attributes that are read or set, and methods that are called

Stock reads the time by a function of its module, one for all nodes of the process. While a node's own code runs it is
that node's clock (`_time_of`): stock reads it in `__init__`, in the tick, and in what the tick calls, the handlers of
received messages among it.

`metadata.raft.assumptions` compares the text of PySyncObj with the one that these sentences were written against, and
the names with the ones that are there. Line numbers are those of `pysyncobj/syncobj.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from pysyncobj import SyncObj, SyncObjConf, syncobj
from pysyncobj.node import Node

from metadata.raft import assumptions
from metadata.raft.types import RaftRole

if TYPE_CHECKING:
    from metadata.raft.journal import Entry, Journal
    from metadata.raft.ports import Poller
    from metadata.raft.snapshot import SnapshotStore
    from metadata.raft.transport import HardenedTransport

CommandCallback = Callable[[object, int], None]
"""Called once, or never, with the result of `apply` and a FAIL_REASON."""

_FOLLOWER: Final = 0
_CANDIDATE: Final = 1
_LEADER: Final = 2
_ROLES = {_FOLLOWER: RaftRole.FOLLOWER, _CANDIDATE: RaftRole.CANDIDATE, _LEADER: RaftRole.LEADER}

OVERRIDDEN_METHODS = (
    "_SyncObj__applyLogEntries",
    "_SyncObj__connectedToAnyone",
    "_SyncObj__doApplyCommand",
    "_SyncObj__generateRaftTimeout",
    "_SyncObj__sendAppendEntries",
    "_applyCommand",
    "_checkCommandsToApply",
    "_onTick",
    "doTick",
)
"""Methods of SyncObj that this module or `metadata.raft.engine` overrides. They must exist there, or the override is
never called."""

CALLED_METHODS = (
    "_SyncObj__getEntries",
    "_SyncObj__loadDumpFile",
    "_SyncObj__onLeaderChanged",
    "_SyncObj__setCurrentTerm",
    "_SyncObj__setState",
)
"""Methods of SyncObj that are called here."""

ATTRIBUTES = (
    "_SyncObj__commandsWaitingCommit",
    "_SyncObj__needLoadDumpFile",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__otherNodes",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftCurrentTerm",
    "_SyncObj__raftElectionDeadline",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftLeader",
    "_SyncObj__raftLog",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftNextIndex",
    "_SyncObj__raftState",
    "_SyncObj__selfNode",
    "_SyncObj__serializer",
    "_SyncObj__transport",
    "_SyncObj__votedForNodeId",
    "_poller",
)
"""Attributes that SyncObj.__init__ sets and that are read, set or replaced here."""


@contextmanager
def _time_of(monotonic: Callable[[], float]) -> Iterator[None]:
    """Inside, stock reads this clock."""
    before, syncobj.monotonicTime = syncobj.monotonicTime, monotonic
    try:
        yield
    finally:
        syncobj.monotonicTime = before


class SyncObjInternals(SyncObj):  # type: ignore[misc] # PySyncObj ships no types
    """SyncObj with plain names for its private parts. `metadata.raft.engine` is its only subclass.

    It has more than thirty methods because each private part has one of its own here.
    """

    _SyncObj__commandsWaitingCommit: dict[int, list[tuple[int, CommandCallback]]]
    _SyncObj__needLoadDumpFile: bool
    _SyncObj__newAppendEntriesTime: float
    _SyncObj__otherNodes: set[Node]
    _SyncObj__raftCommitIndex: int
    _SyncObj__raftCurrentTerm: int
    _SyncObj__raftElectionDeadline: float
    _SyncObj__raftLastApplied: int
    _SyncObj__raftLeader: Node | None
    _SyncObj__raftMatchIndex: dict[Node, int]
    _SyncObj__raftNextIndex: dict[Node, int]
    _SyncObj__raftState: int
    _SyncObj__selfNode: Node | None
    _SyncObj__transport: HardenedTransport
    _SyncObj__votedForNodeId: str | None

    def __init__(
        self,
        address: str | None,
        peers: tuple[str, ...],
        *,
        configuration: SyncObjConf,
        journal: Journal,
        snapshots: SnapshotStore,
        poller: Poller,
        monotonic: Callable[[], float],
        make_transport: Callable[..., HardenedTransport],
    ) -> None:
        """`make_transport(self, own node, other nodes)`.

        Raises RaftConfigurationError when this is not the PySyncObj that was hardened, and what `make_transport`
        raises.
        """
        assumptions.verify(OVERRIDDEN_METHODS, CALLED_METHODS)
        self.journal = journal
        self.snapshots = snapshots
        self.poller = poller
        self.monotonic = monotonic
        self._waiting_for_chunks: dict[Node, int] = {}
        """Peers that get a snapshot, and whose next chunk has to wait, with their next index."""
        # Line 226 of stock reads every attribute of the class, these properties too, before it sets what they read.
        self._SyncObj__commandsWaitingCommit = {}
        self._SyncObj__newAppendEntriesTime = 0.0
        with _time_of(monotonic):
            super().__init__(address, peers, conf=configuration, transportClass=make_transport)
        assumptions.verify_instance(self, ATTRIBUTES)
        # The first tick of stock (line 624) loads the file that its configuration names; ours is loaded by the engine.
        self._SyncObj__needLoadDumpFile = False

    # ---------------------------------------------------------------------------- replaced parts

    @property
    def _SyncObj__raftLog(self) -> Journal:  # noqa: N802
        """All code of stock reaches its log by this attribute, and by the methods of `Journal` that have its names.
        Line 166 creates one that is not durable."""
        return self.journal

    @_SyncObj__raftLog.setter
    def _SyncObj__raftLog(self, _stock: object) -> None:  # noqa: N802
        pass

    @property
    def _SyncObj__serializer(self) -> SnapshotStore:  # noqa: N802
        """Stock takes, sends, receives and loads snapshots by it only. Line 198 creates one that forks and pickles."""
        return self.snapshots

    @_SyncObj__serializer.setter
    def _SyncObj__serializer(self, _stock: object) -> None:  # noqa: N802
        pass

    @property
    def _poller(self) -> Poller:
        """The tick ends with its `poll`. Line 205 creates one that cannot be woken. Stock opens no socket itself."""
        return self.poller

    @_poller.setter
    def _poller(self, _stock: object) -> None:
        pass

    # ---------------------------------------------------------------------------- overridden methods

    def _SyncObj__applyLogEntries(self) -> bool:  # noqa: N802
        """The tick calls it once, after a leader has moved its commit index; where it is True a leader sends
        append_entries at once (line 691)."""
        return self.apply_committed()

    def apply_committed(self) -> bool:
        """Apply committed entries; True: the followers should learn the commit index now."""
        raise NotImplementedError

    def _SyncObj__connectedToAnyone(self) -> bool:  # noqa: N802
        """The tick of a voter that does not lead calls it when the election deadline has passed; where it is True the
        voter begins an election (line 635). Nothing else calls it."""
        return self.may_begin_election()

    def may_begin_election(self) -> bool:
        raise NotImplementedError

    def _SyncObj__doApplyCommand(self, command: bytes) -> object:  # noqa: N802
        """Called for a committed entry, by `__applyLogEntries` only, which is overridden: so no text of stock unpickles
        a command, or executes one that changes the members or the version."""
        return self.execute(command)

    def execute(self, command: bytes) -> object:
        """The result of a committed command, for its proposer."""
        raise NotImplementedError

    def _SyncObj__generateRaftTimeout(self) -> float:  # noqa: N802
        """Called wherever stock moves the election deadline: at the start, when an append_entries is accepted or a vote
        is given, and when an election begins. Stock draws from the process's source of chance."""
        return self.election_timeout()

    def election_timeout(self) -> float:
        """Seconds, anew for each call. Called by `__init__`, too."""
        raise NotImplementedError

    def doTick(self, timeToWait: float = 0.0) -> None:  # noqa: N802, N803
        """The one call in which stock does anything by itself; it calls `_onTick` and nothing else."""
        with _time_of(self.monotonic):
            super().doTick(timeToWait)

    # ---------------------------------------------------------------------------- state of Raft

    @property
    def term(self) -> int:
        """Equals the journal's: stock sets it in `__setCurrentTerm` only, which calls `Journal.setCurrentTerm` before
        any message leaves."""
        return self._SyncObj__raftCurrentTerm

    @property
    def voted_for(self) -> str | None:
        """Address of the voter that was voted for in this term; set as `term` is."""
        return self._SyncObj__votedForNodeId

    def set_term(self, term: int, vote: str | None) -> None:
        """`__setCurrentTerm` sets term and vote, here and in the journal, and nothing else."""
        self._SyncObj__setCurrentTerm(term, vote)

    @property
    def role(self) -> RaftRole:
        """`__raftState` is 0 for a follower, 1 for a candidate, 2 for a leader; an observer, which has no `__selfNode`,
        stays a follower (line 634)."""
        if self._SyncObj__selfNode is None:
            return RaftRole.OBSERVER
        return _ROLES[self._SyncObj__raftState]

    @property
    def is_leader(self) -> bool:
        return self._SyncObj__raftState == _LEADER

    def become_follower(self) -> None:
        """`__setState` sets `__raftState`, and calls a callback that the configuration does not have. The leader's own
        bookkeeping may stay: `__onBecomeLeader` begins it anew."""
        self._SyncObj__setState(_FOLLOWER)
        self._SyncObj__raftLeader = None

    @property
    def leader(self) -> Node | None:
        """Sender of the last accepted append_entries, or this node; None: unknown."""
        return self._SyncObj__raftLeader

    def forget_leader(self) -> None:
        """Then `_checkCommandsToApply` refuses commands with MISSING_LEADER instead of forwarding them."""
        self._SyncObj__raftLeader = None

    def fail_forwarded_commands(self) -> None:
        """`__onLeaderChanged` ends every command that was forwarded and not answered with LEADER_CHANGED. Stock calls
        it when another leader is heard or an election begins, but not when a connection closes."""
        self._SyncObj__onLeaderChanged()

    @property
    def own_node(self) -> Node | None:
        """None: an observer."""
        return self._SyncObj__selfNode

    @property
    def voters(self) -> set[Node]:
        """The other voters. Never changes: dynamicMembershipChange is off, and no command changes it."""
        return self._SyncObj__otherNodes

    @property
    def next_index(self) -> dict[Node, int]:
        """By voter and observer, where this node leads: the next entry to send."""
        return self._SyncObj__raftNextIndex

    @property
    def match_index(self) -> dict[Node, int]:
        """By voter and observer, where this node leads: the last entry known to be stored there. Commits are counted
        from it (line 662), and it is set by acknowledgements only (line 1080)."""
        return self._SyncObj__raftMatchIndex

    @property
    def commit_index(self) -> int:
        """Inclusive. A leader's tick moves it over entries of its own term that a majority has (line 672); a follower
        takes over the leader's (line 1033)."""
        return self._SyncObj__raftCommitIndex

    @commit_index.setter
    def commit_index(self, index: int) -> None:
        self._SyncObj__raftCommitIndex = index

    @property
    def applied_index(self) -> int:
        """Inclusive. Stock sets it when it loads a snapshot (line 1497), and in `__applyLogEntries`, which is
        overridden."""
        return self._SyncObj__raftLastApplied

    @applied_index.setter
    def applied_index(self, index: int) -> None:
        self._SyncObj__raftLastApplied = index

    def entries(self, index: int, count: int) -> list[Entry]:
        """Those of the log from `index` on; `__getEntries` gives none before its begin, and fewer at its end."""
        found: list[Entry] = self._SyncObj__getEntries(index, count)
        return found

    def load_snapshot(self) -> None:
        """`__loadDumpFile` calls `SnapshotStore.deserialize`, sets the applied index to the snapshot's, and keeps a log
        whose first two entries are the snapshot's last two; it throws away another one (lines 1489-1497)."""
        self._SyncObj__loadDumpFile(clearJournal=False)

    # ---------------------------------------------------------------------------- timers and commands

    @property
    def election_deadline(self) -> float:
        """When the tick of a voter asks `__connectedToAnyone`. Stock puts it off with every append_entries that it
        accepts and every vote that it gives."""
        return self._SyncObj__raftElectionDeadline

    @election_deadline.setter
    def election_deadline(self, deadline: float) -> None:
        self._SyncObj__raftElectionDeadline = deadline

    @property
    def append_entries_time(self) -> float:
        """When the tick of a leader sends append_entries next (line 691)."""
        return self._SyncObj__newAppendEntriesTime

    @append_entries_time.setter
    def append_entries_time(self, time: float) -> None:
        self._SyncObj__newAppendEntriesTime = time

    def _SyncObj__sendAppendEntries(self) -> None:  # noqa: N802
        """Called when append_entries are due, and by a new leader. For a peer that is to get a snapshot it asks for
        chunk after chunk (line 1310). Where there is none to send now, it sends a message without one and asks again,
        for the time of a heartbeat, unless the peer's next index is behind the log meanwhile: see `no_chunk_for`."""
        super()._SyncObj__sendAppendEntries()
        waiting, self._waiting_for_chunks = self._waiting_for_chunks, {}
        for node, index in waiting.items():
            if node in self.next_index:
                self.next_index[node] = index

    def send_append_entries(self) -> None:
        """To every connected peer: a heartbeat, or all that it lacks, up to a heartbeat's time of sending; moves
        `append_entries_time`."""
        self._SyncObj__sendAppendEntries()

    def no_chunk_for(self, node: Node) -> None:
        """The message that is being sent to that peer has no chunk of a snapshot: ends the loop of
        `__sendAppendEntries` for it."""
        self._waiting_for_chunks[node] = self.next_index[node]
        self.next_index[node] = self.journal.last.index + 1

    @property
    def transport(self) -> HardenedTransport:
        """Made by `make_transport` (line 210). Stock sends by its `send` only."""
        return self._SyncObj__transport

    @property
    def commands_waiting(self) -> dict[int, list[tuple[int, Any]]]:
        """Index -> (term, callback) of the commands that were proposed here and are in a log: added by
        `_checkCommandsToApply` of a leader, and by the leader's answer to a forwarded one (line 1061)."""
        return self._SyncObj__commandsWaitingCommit
