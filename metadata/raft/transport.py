"""Between PySyncObj's Raft and the network: the records that must be durable before a message leaves, and the
corrections of received messages.

Persist before send. `append_entries` leaves at once (the leader syncs while the followers do). Acknowledgements are
held back and leave in `flush`, after the journal was synced: all messages that one poll brought in share one sync.
Votes and requests for votes are preceded by a sync.

Received messages are checked for shape, then corrected before the stock code sees them. The letters are those of the
tests:

    a  a pipelined acknowledgement never moves a follower's next index back; a late request to reset it goes back
       no further than to what the follower has confirmed
    b  a commit index never covers more than the message itself verified
    c  while a snapshot is being received the commit index stays
    g  a snapshot that covers nothing new is not installed
    h  acknowledgements carry their term; others are dropped, a higher one deposes the leader, and an
       old leader is told of the new term
    l  a question for a pre-vote tells a voter that hears no leader of a later term: the one with the newest log
       could never ask a voter of a later term for its pre-vote
    m  oversized entries, which stock would pickle, are refused
    o  a follower that lacks the entry before a message asks for what follows its log. Once its log differs from the
       leader's, it asks for all that follows its commit index, which every leader has, until its log ends with another
       entry, or another term begins. Stock goes back by one entry for each answer, and forward again to the end
       of the follower's log when the leader has sent a second message meanwhile: under load a follower whose log
       differs never gets an entry
    p  a leader that lacks an entry which is committed here ends this process, as the journal does where entries differ:
       the answers of (o) would never reach an entry that both have
    -  only voters speak Raft to voters; observers may acknowledge and submit, nothing else; PySyncObj's remote
       administration verbs are not registered

The transport also notices a lost leader from its closed connection, and keeps idle connections alive with pings, so
that a silent connection is a dead one.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from pysyncobj.node import Node, TCPNode
from pysyncobj.transport import TCPTransport

from metadata.raft.connection import (
    CONNECTED,
    DISCONNECTED,
    WARNING_INTERVAL_S,
    FramedConnection,
    FrameServer,
)
from metadata.raft.introductions import Introductions
from metadata.raft.journal import Journal
from metadata.raft.ports import Poller, StreamSocket
from metadata.raft.snapshot import offered_entry
from metadata.raft.tls import RaftTls
from metadata.raft.types import ACCEPTED, MAX_COMMAND_BYTES, RaftAddressError
from wire.security.cluster_secrets import ClusterSecrets

_log = logging.getLogger(__name__)

MAX_IN_FLIGHT_BYTES = 8 << 20
"""With more unsent to a peer, entries and snapshot chunks for it are held back; Raft asks for them again."""

INTRODUCTION_TIMEOUTS = 2
"""Connection timeouts that an accepted connection has to identify itself, however often it sends a byte."""

MAX_OBSERVERS = 1024
"""Observers connected to one voter. The next one is closed."""

Message = dict[str, Any]

_INT: tuple[type, ...] = (int,)
_OPTIONAL_INT: tuple[type, ...] = (int, type(None))
_SHAPES: dict[str, dict[str, tuple[type, ...]]] = {
    "append_entries": {"term": _INT, "commit_index": _INT},
    "next_node_idx": {"term": _INT, "next_node_idx": _INT, "reset": (bool,), "success": (bool,)},
    "request_vote": {"term": _INT, "last_log_index": _INT, "last_log_term": _INT},
    "response_vote": {"term": _INT},
    "pre_vote": {"term": _INT, "last_log_index": _INT, "last_log_term": _INT, "is_new": (bool,)},
    "pre_vote_granted": {"term": _INT},
    "leader_gives_way": {"term": _INT, "rank": _INT},
    "apply_command": {"command": (bytes,)},
    "apply_command_response": {"request_id": _INT},
    "ping": {},
}
"""The messages there are, with the fields that every one of a kind has."""

FROM_OBSERVERS = frozenset({"next_node_idx", "apply_command", "ping"})
COMMAND_KINDS = (b"\0", b"\1")
"""First byte of a command: regular, or nothing but a place in the log."""


def _has(message: Message, shape: dict[str, tuple[type, ...]]) -> bool:
    return all(isinstance(message.get(name), types) for name, types in shape.items())


def well_formed(message: object) -> bool:
    """Whether the stock code can take the message without raising or breaking an invariant."""
    if not isinstance(message, dict) or not isinstance(kind := message.get("type"), str):
        return False
    if kind not in _SHAPES or not _has(message, _SHAPES[kind]):
        return False
    match kind:
        case "append_entries" if "prevLogIdx" in message:
            return _well_formed_entries(message)
        case "append_entries":
            chunk = message.get("serialized", 0)
            return chunk is None or (isinstance(chunk, list) and [type(part) for part in chunk] == [bytes, bool, bool])
        case "apply_command":
            command = message["command"]
            # The kind byte, and at most MAX_COMMAND_BYTES after it.
            known = command[:1] in COMMAND_KINDS and len(command) <= MAX_COMMAND_BYTES + 1
            return known and _has(message, {"request_id": _INT})
        case "apply_command_response":
            return _has(message, {"error": _INT}) or _has(message, {"log_idx": _INT, "log_term": _INT})
        case _:
            return True


def _well_formed_entries(message: Message) -> bool:
    if "transmission" in message or not _has(message, {"prevLogIdx": _OPTIONAL_INT, "prevLogTerm": _OPTIONAL_INT}):
        return False
    previous, entries = message["prevLogIdx"], message.get("entries")
    if not isinstance(entries, list):
        return False
    if previous is None or message["prevLogTerm"] is None:
        return previous is None and not entries
    for index, entry in enumerate(entries, previous + 1):
        if not isinstance(entry, list) or [type(part) for part in entry] != [bytes, int, int] or entry[1] != index:
            return False
    return True


class RaftPort(Protocol):
    """The part of a Raft node that its transport uses (`metadata.raft.engine.RaftEngine`)."""

    conf: Any
    """PySyncObj's SyncObjConf."""
    journal: Journal
    poller: Poller
    monotonic: Callable[[], float]

    @property
    def term(self) -> int: ...

    @property
    def commit_index(self) -> int: ...

    @property
    def is_leader(self) -> bool: ...

    @property
    def voters(self) -> set[Node]: ...

    @property
    def next_index(self) -> dict[Node, int]: ...

    @property
    def match_index(self) -> dict[Node, int]: ...

    def addOnTickCallback(self, callback: Callable[[], None]) -> None: ...  # noqa: N802

    def isNodeConnected(self, node: Node) -> bool: ...  # noqa: N802

    def leader_heard(self) -> None: ...

    def may_vote(self) -> bool: ...

    def may_follow(self) -> bool: ...

    def peer_told(self, node: Node, term: int, *, is_new: bool) -> None: ...

    def synchronised_up_to(self, leader_commit_index: int, leader: str) -> None: ...

    def grants_pre_vote(self, term: int, last_log_term: int, last_log_index: int) -> bool: ...

    def on_pre_vote_granted(self, node: Node, term: int) -> None: ...

    def leader_gives_way(self, node: Node, term: int, rank: int) -> None: ...

    def step_down(self, term: int) -> None: ...

    def send_soon(self) -> None: ...

    def no_chunk_for(self, node: Node) -> None: ...

    def peer_connected(self, node: Node) -> None: ...

    def peer_disconnected(self, node: Node) -> None: ...

    def snapshot_received(self) -> None: ...


class HardenedTransport(TCPTransport):  # type: ignore[misc] # PySyncObj ships no types
    """PySyncObj's transport with framed connections, the durability barrier and the corrections above."""

    def __init__(
        self,
        engine: RaftPort,
        self_node: TCPNode | None,
        other_nodes: set[TCPNode],
        *,
        secrets: ClusterSecrets,
        tls: RaftTls | None,
        group: str,
        bind_host: str | None,
        make_socket: Callable[[int, int], StreamSocket],
        resolve: Callable[[str], str | None],
        on_peer_lost: Callable[[str], None],
    ) -> None:
        """`bind_host`: IP address to listen on; None for an observer. `resolve`: host -> IP address, None while
        unknown.

        Raises RaftAddressError when the port is taken.
        """
        self._engine = engine
        self._secrets = secrets
        self._tls = tls
        self._group = group
        self._bind_host = bind_host
        self._make_socket = make_socket
        self._resolve = resolve
        self._on_peer_lost = on_peer_lost
        self._held: list[tuple[Node, Message]] = []
        self._offered_entry = (0, 0)
        self._differs = (-1, -1, -1)
        """Term of the leader that has another log than this node, and index and term of this node's last entry then."""
        self._next_sweep = 0.0
        self._introductions: Introductions[FramedConnection] = Introductions(
            INTRODUCTION_TIMEOUTS * engine.conf.connectionTimeout
        )
        self.unverified: Counter[str] = Counter()
        """See RaftStatus."""
        self._next_warning = 0.0
        """When the next warning of accepted connections that do not verify may be written."""
        super().__init__(engine, self_node, other_nodes)
        engine.addOnTickCallback(self.flush)
        secrets.on_change(self._close_refused)

    # ---------------------------------------------------------------------------- sending

    def setOnUtilityMessageCallback(self, message: str, callback: object) -> None:  # noqa: N802
        """None of PySyncObj's remote verbs (status, add, remove, set_version, transfer) is registered."""

    def send(self, node: Node, message: Message) -> bool:
        match message["type"]:
            case "next_node_idx":
                answer = {**message, "term": self._engine.term}
                if message["reset"]:
                    answer["next_node_idx"] = self._wanted(message["next_node_idx"])
                self._held.append((node, answer))
                return True
            case "request_vote" | "response_vote":
                self._engine.journal.sync()
            case "append_entries" if message.get("entries") and not self.may_send(node):
                return False
            case "append_entries" if message.get("serialized", self) is None:
                self._engine.no_chunk_for(node)
        return self._send_now(node, message)

    def _wanted(self, asked: int) -> int:
        """The first entry that this node asks its leader for. `asked`: by stock, an entry of the log where it differs
        from the leader's, or the one after the log."""
        engine, last = self._engine, self._engine.journal.last
        end = engine.term, last.index, last.term
        if asked <= last.index:
            self._differs = end
        if self._differs != end:
            return last.index + 1
        return max(engine.commit_index, engine.journal[0].index) + 1

    def _send_now(self, node: Node, message: Message) -> bool:
        if self._engine.journal.stalled:
            return False  # this node's term or vote is not on its disk: lost on the way, as far as the others can tell
        sent: bool = super().send(node, message)
        return sent

    def may_send(self, node: object) -> bool:
        """Whether the peer takes what it is sent quickly enough for more."""
        connection = self._connections.get(node)
        return connection is not None and connection.unsent_bytes < MAX_IN_FLIGHT_BYTES

    def flush(self) -> None:
        """Sync the journal, then send the acknowledgements that were waiting for it: of successes only the furthest
        per peer.
        """
        self._engine.journal.sync()
        if self._engine.journal.stalled:
            return
        held, self._held = self._held, []
        furthest: dict[tuple[Node, int], int] = {}
        for node, message in held:
            if message["success"]:
                key = (node, message["term"])
                furthest[key] = max(furthest.get(key, 0), message["next_node_idx"])
        for node, message in held:
            if message["success"]:
                key = (node, message["term"])
                if furthest.get(key) != message["next_node_idx"]:
                    continue
                del furthest[key]
            self._send_now(node, message)

    # ---------------------------------------------------------------------------- receiving

    def _onMessageReceived(self, node: Node, message: object) -> None:  # noqa: N802
        if not well_formed(message):
            _log.warning(
                "Raft node %s sent a message that this version does not know; its connection is closed.", node.id
            )
            self._connections[node].disconnect()
            return
        assert isinstance(message, dict)
        kind = message["type"]
        if node not in self._engine.voters and kind not in FROM_OBSERVERS:
            _log.warning("Observer %s sent %s, which only voters may send; its connection is closed.", node.id, kind)
            self._connections[node].disconnect()
            return
        match kind:
            case "ping":
                pass
            case "append_entries":
                self._on_append_entries(node, message)
            case "next_node_idx":
                self._on_acknowledgement(node, message)
            case "request_vote":
                if self._engine.may_vote():
                    super()._onMessageReceived(node, message)
            case "pre_vote":
                self._engine.peer_told(node, message["term"], is_new=message["is_new"])
                if self._engine.grants_pre_vote(message["term"], message["last_log_term"], message["last_log_index"]):
                    self._send_now(node, {"type": "pre_vote_granted", "term": message["term"]})
            case "pre_vote_granted":
                self._engine.on_pre_vote_granted(node, message["term"])
            case "leader_gives_way":
                self._engine.leader_gives_way(node, message["term"], message["rank"])
            case _:
                super()._onMessageReceived(node, message)

    def _on_append_entries(self, node: Node, message: Message) -> None:
        engine = self._engine
        if message["term"] < engine.term:
            self._acknowledge(node, next_index=0, success=False)
            return
        if not engine.may_follow():
            return
        engine.leader_heard()
        if message.get("prevLogIdx", 0) is None:
            return  # The leader has nothing before the entries that it wants to send; it will notice.
        leader_commit_index = message["commit_index"]
        installs = False
        if "prevLogIdx" in message:
            engine.journal.check_committed(message["prevLogIdx"], message["prevLogTerm"])
            if not message["entries"]:
                engine.journal.check_end(message["prevLogIdx"], message["term"])
            message["commit_index"] = min(leader_commit_index, message["prevLogIdx"] + len(message["entries"]))
        else:
            message["commit_index"] = min(leader_commit_index, engine.commit_index)
            installs = self._on_snapshot_chunk(node, message)
        super()._onMessageReceived(node, message)
        if installs:
            engine.snapshot_received()
        engine.synchronised_up_to(leader_commit_index, node.id)

    def _on_snapshot_chunk(self, node: Node, message: Message) -> bool:
        """Drop a chunk of a snapshot that brings nothing new. True when the message may complete one that does."""
        if message["serialized"] is None:
            return False
        data, first, last = message["serialized"]
        if first:
            self._offered_entry = offered_entry(data)
        index, term = self._offered_entry
        # Asked again at every chunk: entries that the snapshot covers may have arrived meanwhile. Installing it would
        # forget acknowledged entries that follow.
        if index <= self._engine.commit_index or self._engine.journal.holds(index, term):
            message["serialized"] = None
            if last:
                self._acknowledge(node, next_index=max(index, self._engine.commit_index) + 1, success=True)
            return False
        # The stock receiver is silent until the last chunk, and its leader would think it dead.
        self._acknowledge(node, next_index=0, success=False)
        return bool(last)

    def _acknowledge(self, node: Node, *, next_index: int, success: bool) -> None:
        self.send(node, {"type": "next_node_idx", "next_node_idx": next_index, "reset": False, "success": success})

    def _on_acknowledgement(self, node: Node, message: Message) -> None:
        engine = self._engine
        if message["term"] > engine.term:
            engine.step_down(message["term"])
            return
        if message["term"] < engine.term or not engine.is_leader or node not in engine.next_index:
            return
        previous = engine.next_index[node]
        if message["reset"]:
            wanted = min(message["next_node_idx"], engine.journal.last.index + 1)
            message["next_node_idx"] = max(wanted, engine.match_index[node] + 1)
            engine.send_soon()
        elif message["success"]:
            # More than the log holds cannot have been acknowledged; stock would count it towards commits to come.
            message["next_node_idx"] = min(message["next_node_idx"], engine.journal.last.index + 1)
        super()._onMessageReceived(node, message)
        if message["success"]:
            engine.next_index[node] = max(previous, engine.next_index[node])

    # ---------------------------------------------------------------------------- connections

    def _createServer(self) -> None:  # noqa: N802
        assert self._selfNode is not None
        assert self._bind_host is not None
        listener = self._make_socket(socket.AF_INET6 if ":" in self._bind_host else socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._bind_host, self._selfNode.port))
            self._server = FrameServer(
                self._engine.poller, listener, on_accepted=self._accept, monotonic=self._engine.monotonic
            )
        except OSError as error:
            listener.close()
            raise RaftAddressError(
                f"The Raft address {self._selfNode.address} cannot be bound ({error.strerror or error}); stop the "
                "process that uses it or "
                f"configure another address for this voter on all brokers."
            ) from error
        self._ready = True

    @property
    def dropped_introductions(self) -> int:
        """Accepted connections that were closed before they had proved anything, since the start."""
        return self._introductions.dropped

    def _accept(self, accepted: StreamSocket, host: str) -> None:
        connection = FramedConnection(
            self._engine.poller,
            secrets=self._secrets,
            acceptor_address=self._selfNode.address,
            make_socket=self._make_socket,
            monotonic=self._engine.monotonic,
            group=self._group,
            tls=self._tls,
            accepted=accepted,
            on_unverified=partial(self._on_unverified, host),
        )
        victim = self._introductions.begin(connection, host, self._engine.monotonic())
        if victim is not None:
            victim.disconnect()
        self._onNewIncomingConnection(connection)

    def _on_unverified(self, host: str) -> None:
        self.unverified[ACCEPTED] += 1
        now = self._engine.monotonic()
        if now >= self._next_warning:
            self._next_warning = now + WARNING_INTERVAL_S
            _log.warning(
                "Raft connections from %s are closed: their first frame does not verify; another secret, or another"
                " address for this voter",
                host,
            )

    def _onDisconnected(self, conn: FramedConnection) -> None:  # noqa: N802
        self._introductions.end(conn)
        super()._onDisconnected(conn)

    def addNode(self, node: TCPNode) -> None:  # noqa: N802
        self._nodes.add(node)
        self._nodeAddrToNode[node.address] = node
        if self._shouldConnect(node):
            connection = FramedConnection(
                self._engine.poller,
                secrets=self._secrets,
                acceptor_address=node.address,
                make_socket=self._make_socket,
                monotonic=self._engine.monotonic,
                group=self._group,
                tls=self._tls,
                on_unverified=partial(self.unverified.update, (node.address,)),
            )
            connection.setOnConnectedCallback(partial(self._onOutgoingConnected, connection))
            connection.setOnMessageReceivedCallback(partial(self._onMessageReceived, node))
            connection.setOnDisconnectedCallback(partial(self._onDisconnected, connection))
            self._connections[node] = connection

    def _connectIfNecessarySingle(self, node: TCPNode) -> bool:  # noqa: N802
        connection = self._connections.get(node)
        if connection is not None and connection.state != DISCONNECTED:
            return True
        if connection is None or not self._shouldConnect(node):
            return False
        now = self._engine.monotonic()
        if now - self._lastConnectAttempt.get(node, float("-inf")) < self._engine.conf.connectionRetryTime:
            return False
        host = self._resolve(node.host)
        if host is None:
            return False
        self._lastConnectAttempt[node] = now
        connected: bool = connection.connect(host, node.port)
        return connected

    def _onIncomingMessageReceived(self, conn: FramedConnection, message: object) -> None:  # noqa: N802
        """The first message of an accepted connection identifies the peer: a voter that connects to this one, or an
        observer.
        """
        self._introductions.end(conn)
        if not isinstance(message, str):
            conn.disconnect()
            return
        node = self._nodeAddrToNode.get(message)
        if node is None and (message != "readonly" or len(self._readonlyNodes) >= MAX_OBSERVERS):
            _log.warning(
                "A Raft connection of %r is refused: it is no voter of this group, or there are too many observers.",
                message[:64],
            )
            conn.disconnect()
            return
        if node is not None and self._shouldConnect(node):
            _log.warning(
                "Raft voter %s connected, although this voter connects to it; the connection is refused.", node.address
            )
            conn.disconnect()
            return
        replaced = self._connections.get(node)
        super()._onIncomingMessageReceived(conn, message)
        if replaced is not None and replaced is not conn:
            replaced.disconnect()

    def _onNodeConnected(self, node: Node) -> None:  # noqa: N802
        self._engine.peer_connected(node)
        super()._onNodeConnected(node)

    def _onNodeDisconnected(self, node: Node) -> None:  # noqa: N802
        was_connected = self._engine.isNodeConnected(node)
        super()._onNodeDisconnected(node)
        self._engine.peer_disconnected(node)
        if was_connected:
            self._on_peer_lost(node.id)

    def _onTick(self) -> None:  # noqa: N802
        super()._onTick()
        now = self._engine.monotonic()
        if now >= self._next_sweep:
            self._next_sweep = now + self._engine.conf.connectionTimeout / 6
            self._sweep(now)

    def _close_refused(self) -> None:
        """Close the connections that rest on a secret that is accepted no longer."""
        for connection in [*self._unknownConnections, *self._connections.values()]:
            if connection.secret is not None and connection.secret not in self._secrets.accepted:
                connection.disconnect()

    def _sweep(self, now: float) -> None:
        """Close connections that are silent for the connection timeout; ping the ones that are quiet for a third of
        it. Close those that take too long to identify themselves."""
        for late in self._introductions.overdue(now):
            late.disconnect()
        timeout = self._engine.conf.connectionTimeout
        for connection in [*self._unknownConnections, *self._connections.values()]:
            if connection.state == DISCONNECTED:
                continue
            if now - connection.last_received > timeout:
                connection.disconnect()
            elif connection.established and connection.state == CONNECTED and now - connection.last_sent > timeout / 3:
                connection.send({"type": "ping"})
        if self._server is not None:
            self._server.resume()
