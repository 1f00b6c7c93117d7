"""One node of the metadata group on an asyncio event loop: no thread, no polling.

The engine's epoll descriptor is watched by the loop; a timer covers the next heartbeat or election. Each wake-up ticks
until nothing is left to do, at most MAX_TICKS_PER_WAKE times and only once with a turn of long work, then lets the
loop's other work have a turn. The longest a tick blocks is one journal sync, or the sync of a snapshot that was
received.

    new --start--> running --close--> closed

A proposal waits for a leader, is queued once, and ends in exactly one of: its result; RaftUnavailable, when it was
certainly never added to a log (no leader, a full queue); RaftOutcomeUnknown in every other case.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import random
from typing import Any, NoReturn, TypeVar

from pysyncobj import FAIL_REASON

from metadata.raft.engine import ApplyFailure, RaftEngine
from metadata.raft.ports import RaftPorts
from metadata.raft.set_aside import open_or_set_aside
from metadata.raft.types import (
    MAX_COMMAND_BYTES,
    MAX_PENDING_COMMANDS,
    NO_OP,
    REGULAR,
    CommandTooLarge,
    ExitProcess,
    RaftApplyFailed,
    RaftConfig,
    RaftConfigurationError,
    RaftOutcomeUnknown,
    RaftStatus,
    RaftStorageError,
    RaftUnavailable,
    StateMachine,
)
from wire.retry import Retry

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

MAX_TICKS_PER_WAKE = 8
LOCK_FILE = "lock"
EXIT_STATUS = 70
"""The status of a process that ended itself because it could not go on safely (EX_SOFTWARE)."""

RETRY_PAUSE_S = 0.01
"""Before a command that a node refused for not being the leader is offered to the leader of that time."""

RESOLVED_FOR_S = 30.0
"""A peer's host name is looked up again when the answer is older."""

_REASONS = {
    FAIL_REASON.DISCARDED: "another leader's entry took its place in the log",
    FAIL_REASON.LEADER_CHANGED: "the leader changed",
    FAIL_REASON.UNKNOWN_OUTCOME: "its place in the log was covered by a snapshot",
    FAIL_REASON.REQUEST_DENIED: "the leader denied it",
}
_NEVER_QUEUED = (FAIL_REASON.MISSING_LEADER, FAIL_REASON.NOT_LEADER)


def end_process(reason: str) -> NoReturn:
    """The default way to end: say why, then leave without running anything that could write."""
    _log.critical("%s", reason)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(EXIT_STATUS)


class RaftNode:
    """See the module. All methods must be called on the loop that `start` ran on."""

    def __init__(
        self,
        config: RaftConfig,
        state_machine: StateMachine,
        *,
        on_status: Callable[[RaftStatus], None],
        on_peer_lost: Callable[[str], None],
        exit_process: ExitProcess = end_process,
        on_no_space: Callable[[], None] = lambda: None,
        ports: RaftPorts | None = None,
    ) -> None:
        """`on_status`: called when role, leader or quorum changed. `on_peer_lost(address)`: the connection with that
        voter has closed, which a killed process's does within milliseconds. Both are called on the loop, between ticks,
        and must not block. `on_no_space`: the journal has no room; called until it has, to give it some. `ports`: the
        operating system's, unless given.
        """
        self._config = config
        self._state_machine = state_machine
        self._on_status = on_status
        self._on_peer_lost = on_peer_lost
        self._exit_process = exit_process
        self._on_no_space = on_no_space
        self._ports = RaftPorts() if ports is None else ports
        self._listens = False
        self._engine: RaftEngine | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lock_handle: int | None = None
        self._resolver: _Resolver | None = None
        self._timer: asyncio.Handle | None = None
        self._reported: tuple[object, ...] | None = None
        self._lost: list[str] = []
        self._leader_known = asyncio.Event()
        self._waiting: set[asyncio.Future[tuple[object, int]]] = set()
        self._proposals = 0

    # ---------------------------------------------------------------------------- life

    async def start(self) -> None:
        """Open the files, listen, and take part. Returns at once; `on_status` tells when there is a leader.

        Raises RaftConfigurationError, RaftStorageError, RaftAddressError.
        """
        if self._engine is not None:
            raise RaftConfigurationError("This RaftNode was started already; make a new one.")
        loop = asyncio.get_running_loop()
        bind_host = await self._check_addresses(loop)
        resolver = _Resolver(loop)
        make_engine = partial(
            RaftEngine,
            self._config,
            self._state_machine,
            bind_host=bind_host,
            resolve=resolver.lookup,
            on_peer_lost=self._lost.append,
            exit_process=self._exit_process,
            ports=self._ports,
        )
        try:
            engine = self._open(make_engine)
        except OSError as error:
            raise RaftStorageError(
                f"The Raft files in {self._config.directory} cannot be opened ({error}); repair the disk, or give this"
                " process access to them."
            ) from error
        self._loop, self._engine, self._resolver = loop, engine, resolver
        loop.add_reader(engine.poller.fileno(), self._wake)
        self._listens = True
        loop.call_soon(self._wake)

    def _open(self, make_engine: Callable[[], RaftEngine]) -> RaftEngine:
        self._ports.files.make_directory(self._config.directory)
        self._lock()
        try:
            return open_or_set_aside(self._config, make_engine, self._ports.files)
        except BaseException:
            self._unlock()
            raise

    async def close(self) -> None:
        """Leave the group: journal synced, sockets closed. Open proposals end with RaftOutcomeUnknown."""
        loop, engine, resolver = self._loop, self._engine, self._resolver
        if loop is None or engine is None or resolver is None:
            return
        self._loop = None
        loop.remove_reader(engine.poller.fileno())
        if self._timer is not None:
            self._timer.cancel()
        resolver.close()
        engine.close()
        self._unlock()
        for future in self._waiting:
            if not future.done():
                future.set_exception(RaftOutcomeUnknown("This node was closed before the command's outcome was known."))
        self._leader_known.set()

    def _lock(self) -> None:
        path = self._config.directory / LOCK_FILE
        self._lock_handle = self._ports.files.lock(path)
        if self._lock_handle is None:
            raise RaftStorageError(
                f"The Raft directory {self._config.directory} is in use by another process; stop it or configure "
                "another directory."
            )

    def _unlock(self) -> None:
        if self._lock_handle is not None:
            self._ports.files.close(self._lock_handle)
            self._lock_handle = None

    async def _check_addresses(self, loop: asyncio.AbstractEventLoop) -> str | None:
        """Resolve the own address.

        Without a secret every address must be a loopback one. Returns the IP address to bind.
        """
        own = self._config.address
        bind_host = None if own is None else await _resolve(loop, own)
        if self._config.secrets.are_public:
            for address in (*self._config.peers, *(() if own is None else (own,))):
                if not ipaddress.ip_address(await _resolve(loop, address)).is_loopback:
                    raise RaftConfigurationError(
                        f"Raft address {address} can be reached from other machines, and no Raft secret is configured; "
                        "configure the "
                        f"same secret on all brokers, or use loopback addresses."
                    )
        return bind_host

    # ---------------------------------------------------------------------------- ticking

    def _wake(self) -> None:
        if self._loop is None or self._engine is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        engine, is_left = self._engine, False
        try:
            for _ in range(MAX_TICKS_PER_WAKE):
                engine.tick()
                is_left = engine.wants_tick
                if not is_left or engine.takes_turns:
                    break
        except Exception as error:  # noqa: BLE001 - every error ends in a sentence
            _log.exception("The Raft engine failed")
            self._exit_process(f"The Raft engine failed ({error!r}); its state is unknown now, so this process ends.")
        self._listen(engine)
        if is_left:
            self._timer = self._loop.call_soon(self._wake)
        else:
            self._timer = self._loop.call_later(max(0.0, engine.next_deadline() - engine.monotonic()), self._wake)
        self._report(engine)

    def _listen(self, engine: RaftEngine) -> None:
        """Not while the journal has no room: bytes in the sockets are not read, and would wake this node for ever."""
        assert self._loop is not None
        if engine.journal.stalled:
            self._on_no_space()
        if engine.journal.stalled is self._listens:
            self._listens = not self._listens
            if self._listens:
                self._loop.add_reader(engine.poller.fileno(), self._wake)
            else:
                self._loop.remove_reader(engine.poller.fileno())

    def _report(self, engine: RaftEngine) -> None:
        """Report the changes since the last report."""
        seen = engine.leadership
        if seen[1] is not None:
            self._leader_known.set()
        else:
            self._leader_known.clear()
        if seen != self._reported:
            self._reported = seen
            _guarded(self._on_status, engine.status())
        # A callback may close this node or lose more peers; the changes to report are taken first.
        lost = self._lost.copy()
        self._lost.clear()
        for address in lost:
            _guarded(self._on_peer_lost, address)

    def status(self) -> RaftStatus:
        """The belief of this node now. After `close` nothing is known of a leader."""
        if self._engine is None:
            raise RaftUnavailable("This Raft node was not started; await start() first.")
        status = self._engine.status()
        return status if self._loop is not None else replace(status, leader=None, has_quorum=False)

    def hand_over(self) -> bool:
        """Give the leadership up to the voter that the others elect; uncommitted proposals of this node have an unknown
        outcome. False: this node does not lead, or no other voter could.
        """
        handed = self._loop is not None and self._engine is not None and self._engine.hand_over()
        if handed:
            self._wake()
        return handed

    # ---------------------------------------------------------------------------- proposing

    async def propose(self, command: bytes, *, timeout: float) -> object:
        """Commit a command; returns the result of `apply` on this node. `timeout`: seconds.

        Raises RaftUnavailable, RaftOutcomeUnknown, CommandTooLarge, RaftApplyFailed.
        """
        if len(command) > MAX_COMMAND_BYTES:
            raise CommandTooLarge(
                f"A Raft command of {len(command)} bytes is above the limit of {MAX_COMMAND_BYTES}; split it into "
                "several."
            )
        result = await self._commit(REGULAR, command, timeout)
        if isinstance(result, ApplyFailure):
            raise RaftApplyFailed(
                f"The state machine raised on a committed command: {result.error!r}."
            ) from result.error
        return result

    async def barrier(self, *, timeout: float) -> None:
        """Commit an entry that does nothing: on return, all that was committed before the call is applied here.
        Errors as `propose`.
        """
        await self._commit(NO_OP, b"", timeout)

    async def _commit(self, kind: int, command: bytes, timeout: float) -> object:
        if self._proposals >= MAX_PENDING_COMMANDS:
            raise RaftUnavailable(
                f"{self._proposals} Raft commands of this node are open, which is the limit; propose again when some "
                "have ended."
            )
        self._proposals += 1
        try:
            return await self._offer(kind, command, timeout)
        finally:
            self._proposals -= 1

    async def _offer(self, kind: int, command: bytes, timeout: float) -> object:
        deadline = asyncio.get_running_loop().time() + timeout
        retry = Retry(RETRY_PAUSE_S, chance=random)
        while True:
            await self._await_leader(deadline, timeout)
            result, reason = await self._submit(kind, command, deadline, timeout)
            if reason == FAIL_REASON.SUCCESS:
                return result
            if reason == FAIL_REASON.QUEUE_FULL:
                raise RaftUnavailable("The leader's queue of Raft commands is full; propose again later.")
            if reason not in _NEVER_QUEUED:
                raise RaftOutcomeUnknown(
                    f"The outcome of a Raft command is unknown: {_REASONS.get(reason, f'reason {reason}')}. Read the "
                    "applied state."
                )
            await asyncio.sleep(retry.failed())

    async def _await_leader(self, deadline: float, timeout: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                await self._leader_known.wait()
        except TimeoutError:
            raise RaftUnavailable(
                f"No Raft leader was known within {timeout:g} s; a majority of the voters must run and reach each "
                f"other{self._refusals()}."
            ) from None
        if asyncio.get_running_loop().time() > deadline:
            raise RaftUnavailable(f"No Raft leader took the command within {timeout:g} s.")
        if self._loop is None:
            raise RaftUnavailable("This Raft node is closed.")

    def _refusals(self) -> str:
        """The rest of a sentence."""
        words = "" if self._engine is None else self._engine.status().why_no_leader()
        return f"; {words}" if words else ""

    async def _submit(self, kind: int, command: bytes, deadline: float, timeout: float) -> tuple[object, int]:
        assert self._engine is not None
        future: asyncio.Future[tuple[object, int]] = asyncio.get_running_loop().create_future()

        def ended(result: object, reason: int) -> None:
            if not future.done():
                future.set_result((result, reason))

        self._waiting.add(future)
        try:
            self._engine.submit(kind, command, ended)
            async with asyncio.timeout_at(deadline):
                return await future
        except TimeoutError:
            raise RaftOutcomeUnknown(
                f"A Raft command was not seen applied within {timeout:g} s; it may be applied later. Read the applied "
                "state."
            ) from None
        finally:
            self._waiting.discard(future)


def _guarded(callback: Callable[[_T], None], argument: _T) -> None:
    try:
        callback(argument)
    except Exception:  # noqa: BLE001 - logged; other callbacks must not suffer from it
        _log.exception("A callback of the Raft node raised")


_AddressInfo = tuple[Any, ...]
"""An element of what getaddrinfo returns: family first, socket address last."""


async def _resolve(loop: asyncio.AbstractEventLoop, address: str) -> str:
    """`host:port` -> the host's IP address, an IPv4 one if it has any."""
    host = address.rpartition(":")[0]
    try:
        return _preferred(await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError as error:
        raise RaftConfigurationError(
            f"The host of Raft address {address} cannot be resolved ({error}); check the name."
        ) from error


def _preferred(found: Sequence[_AddressInfo]) -> str:
    return str(min(found, key=lambda info: info[0] != socket.AF_INET)[-1][0])


class _Resolver:
    """Peers' host names, looked up in the background: a slow name server must not stop the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._known: dict[str, tuple[str, float]] = {}
        self._running: dict[str, asyncio.Task[None]] = {}

    def lookup(self, host: str) -> str | None:
        """The IP address of `host`; None until it was found. An old answer is used while a new one is looked up."""
        try:
            return str(ipaddress.ip_address(host))
        except ValueError:
            pass
        address, found_at = self._known.get(host, (None, float("-inf")))
        if self._loop.time() - found_at > RESOLVED_FOR_S and host not in self._running:
            self._running[host] = self._loop.create_task(self._find(host))
        return address

    async def _find(self, host: str) -> None:
        try:
            found = await self._loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            self._known[host] = (_preferred(found), self._loop.time())
        except OSError as error:
            _log.warning("Raft peer %s cannot be resolved (%s).", host, error)
            await asyncio.sleep(1.0)
        finally:
            del self._running[host]

    def close(self) -> None:
        for task in self._running.values():
            task.cancel()
