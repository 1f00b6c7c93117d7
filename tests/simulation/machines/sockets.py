"""TCP between simulated processes: `metadata.raft.ports.StreamSocket` and `Poller` over a world's clock and chance.

Of each direction of a connection the bytes arrive in order, whole or not at all, cut into pieces anywhere; different
connections overtake each other. At most WINDOW bytes are on their way or unread, then a sender has to wait.

    a link that is cut     its bytes wait with their sender, and arrive late when it is whole again, unless the
                           connection was closed meanwhile; each direction is cut by itself
    a process that dies    its system ends its connections: the peers read what is on its way, then the end
    a machine that dies    is silent; later bytes for it are answered with a reset once it is up again
    a paused process       its system goes on to receive
"""

from __future__ import annotations

import errno
import socket
from collections import deque
from collections.abc import Callable
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from metadata.raft.poller import ERROR, READ, WRITE

if TYPE_CHECKING:
    from metadata.raft.poller import EventCallback
    from tests.simulation.world import Process, World

WINDOW = 64 << 10
PARTIAL_SHARE = 0.05
"""Of the calls that send or receive only a part of what they could."""
RETRANSMISSION = 0.2
"""At most, in seconds: so long after a link is whole again its bytes go out."""
SYN_RETRY = 0.5


class _Segment(NamedTuple):
    """`data`; empty: the end of the stream. None: a reset."""

    data: bytes | None


class SimNetwork:
    """Machines are told apart by their IP addresses."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.latency = 0.0002
        """Mean, in seconds."""
        self.slowness: dict[str, float] = {}
        """Factor on the latency, by machine."""
        self.sockets: dict[int, SimSocket] = {}
        """Open ones, by descriptor."""
        self.silent: set[str] = set()
        """Machines without power."""
        self._cut: dict[tuple[str, str], int] = {}
        """(from, to) -> how many faults cut it."""
        self._listening: dict[tuple[str, int], SimSocket] = {}
        self._numbers = count(1000)

    def number(self) -> int:
        return next(self._numbers)

    # ---- faults

    def cut(self, source: str, target: str) -> None:
        self._cut[source, target] = self._cut.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        self._cut[source, target] -= 1
        if self._cut[source, target] == 0:
            del self._cut[source, target]
            for each in [*self.sockets.values()]:
                if each.host == source and each.peer is not None and each.peer.host == target:
                    self.world.after(self.world.rng.random() * RETRANSMISSION, each.retransmit)

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cut

    def process_died(self, host: str, *, with_machine: bool = False) -> None:
        """`with_machine`: nothing is sent any more, by its system either."""
        if with_machine:
            self.silent.add(host)
        for each in [each for each in self.sockets.values() if each.host == host]:
            if with_machine:
                each.vanish()
            else:
                each.close()

    def machine_is_up(self, host: str) -> None:
        self.silent.discard(host)

    # ---- between sockets

    def delay(self, source: str, target: str) -> float:
        slowness = max(self.slowness.get(source, 1.0), self.slowness.get(target, 1.0))
        return 0.00005 + self.world.chance_delay(self.latency) * slowness

    def listener(self, host: str, port: int) -> SimSocket | None:
        return self._listening.get((host, port))

    def listens(self, at: SimSocket, port: int) -> None:
        if (at.host, port) in self._listening:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._listening[at.host, port] = at

    def forget(self, one: SimSocket) -> None:
        self.sockets.pop(one.number, None)
        self._listening = {place: at for place, at in self._listening.items() if at is not one}


class SimSocket:
    """One end of a connection, or a listening socket. `host`: IP address of its machine."""

    def __init__(self, network: SimNetwork, host: str) -> None:
        self.network = network
        self.host = host
        self.number = network.number()
        network.sockets[self.number] = self
        self.peer: SimSocket | None = None
        self.on_change: Callable[[], None] = lambda: None
        """Called when it may have become ready."""
        self._is_open = True
        self._is_connected = False
        self._error = 0
        self._incoming = bytearray()
        self._has_ended = False
        """The peer sends nothing more."""
        self._outstanding = 0
        """Bytes that were sent, and not read yet as far as this end knows."""
        self._arrives_at = 0.0
        """When the segment sent last arrives."""
        self._held: deque[_Segment] = deque()
        self._backlog: deque[SimSocket] | None = None
        self._port = 0

    def ready(self) -> int:
        if self._backlog is not None:
            return READ if self._backlog else 0
        if self._error:
            return READ | WRITE | ERROR
        if not self._is_connected:
            return 0
        readable = READ if self._incoming or self._has_ended else 0
        return readable | (WRITE if self._outstanding < WINDOW else 0)

    # ---- the interface of a socket

    def fileno(self) -> int:
        return self.number if self._is_open else -1

    def setblocking(self, flag: bool, /) -> None:
        assert not flag

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        pass

    def getsockopt(self, level: int, option: int, /) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self._error

    def bind(self, address: tuple[str, int], /) -> None:
        assert address[0] == self.host
        self.network.listens(self, address[1])

    def listen(self, backlog: int, /) -> None:
        self._backlog = deque(maxlen=backlog)

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self._backlog:
            raise BlockingIOError
        accepted = self._backlog.popleft()
        assert accepted.peer is not None
        return accepted, (accepted.peer.host, accepted.peer.number)

    def connect_ex(self, address: tuple[str, int], /) -> int:
        self.network.world.after(self.network.delay(self.host, address[0]), self._syn, *address)
        return errno.EINPROGRESS

    def send(self, data: bytearray, /) -> int:
        if self._error:
            raise OSError(self._error, "reset")
        rng, room = self.network.world.rng, WINDOW - self._outstanding
        if room <= 0:
            raise BlockingIOError
        size = min(room, len(data))
        if rng.random() < PARTIAL_SHARE:
            size = rng.randint(1, size)
        self._outstanding += size
        self._transmit(_Segment(bytes(data[:size])))
        return size

    def recv(self, size: int, /) -> bytes:
        if self._incoming:
            rng = self.network.world.rng
            size = min(size, len(self._incoming))
            if rng.random() < PARTIAL_SHARE:
                size = rng.randint(1, size)
            data = bytes(self._incoming[:size])
            del self._incoming[:size]
            if self.peer is not None:
                self._acknowledge(self.peer, size)
            return data
        if self._error:
            raise OSError(self._error, "reset")
        if self._has_ended:
            return b""
        raise BlockingIOError

    def close(self) -> None:
        if not self._is_open:
            return
        for waiting in self._backlog or ():
            waiting.close()
        if self.peer is not None and not self._error:
            self._transmit(_Segment(None if self._incoming else b""))
        self.vanish()

    # ---- the system behind it

    def vanish(self) -> None:
        self._is_open = self._is_connected = False
        self.network.forget(self)

    def is_reset(self) -> None:
        """By something on the way."""
        self._fail(errno.ECONNRESET)

    def _syn(self, host: str, port: int) -> None:
        network, world = self.network, self.network.world
        if not self._is_open:
            return
        if network.is_cut(self.host, host) or network.is_cut(host, self.host) or host in network.silent:
            world.after(SYN_RETRY * (1 + world.rng.random()), self._syn, host, port)
            return
        listener = network.listener(host, port)
        if listener is None:
            world.after(network.delay(host, self.host), self._fail, errno.ECONNREFUSED)
            return
        assert listener._backlog is not None
        accepted = SimSocket(network, host)
        accepted.peer, self.peer = self, accepted
        accepted._is_connected = True
        listener._backlog.append(accepted)
        listener.on_change()
        world.after(network.delay(host, self.host), self._connected)

    def _connected(self) -> None:
        if self._is_open and not self._error:
            self._is_connected = True
            self.on_change()

    def _fail(self, error: int) -> None:
        if self._is_open:
            self._error = error
            self.on_change()

    def _transmit(self, segment: _Segment) -> None:
        assert self.peer is not None
        if self._held or self.network.is_cut(self.host, self.peer.host):
            self._held.append(segment)
            return
        world = self.network.world
        self._arrives_at = max(self._arrives_at, world.now + self.network.delay(self.host, self.peer.host))
        world.at(self._arrives_at, self.peer._arrive, segment)

    def retransmit(self) -> None:
        """A link of this end is whole again."""
        if self.peer is None or self.network.is_cut(self.host, self.peer.host):
            return
        held, self._held = self._held, deque()
        for segment in held:
            self._transmit(segment)

    def _arrive(self, segment: _Segment) -> None:
        network = self.network
        assert self.peer is not None
        if self.host in network.silent:
            return
        if not self._is_open:
            if segment.data:
                network.world.after(network.delay(self.host, self.peer.host), self.peer._reset_by, self.host)
            return
        if segment.data is None:
            self._error = errno.ECONNRESET
        elif segment.data:
            self._incoming += segment.data
        else:
            self._has_ended = True
        self.on_change()

    def _reset_by(self, host: str) -> None:
        if not self.network.is_cut(host, self.host):
            self._fail(errno.ECONNRESET)

    def _acknowledge(self, sender: SimSocket, size: int) -> None:
        self.network.world.after(self.network.delay(self.host, sender.host), sender._acknowledged, self.host, size)

    def _acknowledged(self, by: str, size: int) -> None:
        if self.network.is_cut(by, self.host):
            self.network.world.after(RETRANSMISSION, self._acknowledged, by, size)
            return
        self._outstanding -= size
        self.on_change()


class SimPoller:
    """`metadata.raft.poller.EpollPoller` of a simulated process."""

    def __init__(self, network: SimNetwork, process: Process) -> None:
        self._network = network
        self._process = process
        self._number = network.number()
        self._subscribed: dict[int, tuple[SimSocket, EventCallback, int]] = {}
        self._is_woken = False
        self.handled = 0
        process.descriptors[self._number] = self._is_ready

    def fileno(self) -> int:
        return self._number

    def wake(self) -> None:
        self._is_woken = True
        self._process.descriptor_is_ready(self._number)

    def subscribe(self, descr: int, callback: EventCallback, eventMask: int) -> None:  # noqa: N803
        one = self._network.sockets[descr]
        self._subscribed[descr] = one, callback, eventMask | ERROR
        one.on_change = self._changed
        self._changed()

    def unsubscribe(self, descr: int) -> None:
        self._subscribed.pop(descr, None)

    def _is_ready(self) -> bool:
        return self._is_woken or any(one.ready() & mask for one, _, mask in self._subscribed.values())

    def _changed(self) -> None:
        if self._process.alive and self._is_ready():
            self._process.descriptor_is_ready(self._number)

    def poll(self, timeout: float) -> None:
        assert timeout == 0
        ready = [
            (descr, one.ready() & mask, callback)
            for descr, (one, callback, mask) in self._subscribed.items()
            if one.ready() & mask
        ]
        self.handled = int(self._is_woken)
        self._is_woken = False
        for descr, events, callback in ready:
            if descr in self._subscribed and self._subscribed[descr][1] == callback:
                callback(descr, events)
                self.handled += 1

    def close(self) -> None:
        self._subscribed.clear()
