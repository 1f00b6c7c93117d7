"""A broker's process: the folder, the connections, the threads and the clocks that its `BrokerRuntime` stands on.

Order of a start:
    data folder locked and judged -> NATS connected -> not another cluster's folder -> logs opened and recovered ->
    Raft joined -> registered (with the proof of this restart) -> folder marked in use -> views arrive, replicas take
    their roles -> `ready` written
The start waits for NATS, and ends where NATS refuses the login or the URL.
Order of an end: after SIGTERM the leaderships are handed over; then, as at once after SIGINT, roles resign, logs are
closed with their checkpoints, the folder is marked clean, Raft leaves, the lock goes. Where the disk hangs the process
ends after the first of these, as by kill -9.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import resource
import signal
import socket
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from google.protobuf.message import DecodeError

from dataplane.broker.disk.space_watch import Reserve
from dataplane.broker.upkeep.hw_checkpoints import CHECKPOINTS_AT_ONCE
from dataplane.encryption.keyring import Keyring, keys_from_file
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.files import REAL_FILES, RealFiles
from dataplane.log.storage.group_commit import SyncScheduler
from dataplane.log.storage.log_errors import DataDirError
from metadata.controller.master_key_reports import MASTER_KEYS_LABEL, warn_of_missing_keys
from metadata.raft import RaftConfig, RaftError, RaftNode, RaftStatus, StateMachine
from metadata.raft.node import end_process
from tidelog.nats.login import split_url
from tidelog.nats.nats_connection import NatsConnection
from tidelog.nats.nats_errors import NatsRefused, NatsUnavailable
from tidelog.process.allocator import collect_only_what_comes, keep_freed_memory
from tidelog.process.loopback import free_addresses
from tidelog.process.private_files import PRIVATE_UMASK, warn_of_open
from tidelog.server.audit.log_limit import LogFormat, LogLimit
from tidelog.server.broker_runtime import BrokerDependencies, BrokerRuntime
from tidelog.server.config import ServerConfig
from tidelog.server.liftbridge.port_settings import ADDRESS_LABEL
from tidelog.server.own_secret import FILE, keep_own_secret
from tidelog.server.peers.peer_link import MAX_SHOWN, PeerLink, Refusals
from tidelog.server.secret_file import SecretWatch
from wire.errors import Code, TidelogError
from wire.messaging.transport import REFUSAL_GRACE, Message, Subscription
from wire.notation import RACK_LABEL
from wire.protobuf import metadata_pb2 as pb
from wire.retry import Retry
from wire.subjects import Subjects
from wire.types import BrokerId

if TYPE_CHECKING:
    from tidelog.server.liftbridge.port import LiftbridgePort

_log = logging.getLogger(__name__)

MOST = 1 << 20
"""Files that this process asks for where the system has no limit."""
FEW = 1024


def raise_limit() -> int:
    """Raises the soft limit of open files to the hard one. Returns the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError) as error:  # the kernel has a maximum of its own
            _log.info("this process may open %d files, and no more: %s", soft, error)
    allowed = MOST if soft == resource.RLIM_INFINITY else soft
    if allowed < FEW:
        _log.warning(
            "this process may open %d files only; with many partitions publishes will be refused for a while now and"
            " then: raise the limit (ulimit -n)", allowed,
        )  # fmt: skip
    return allowed


LOG_THREADS = 4
"""Threads for blocking work on logs (recovery, truncation, a leader's first sync)."""
READ_THREADS = 4
"""Threads for cold reads, so that changes of role do not stand behind them."""
SYNC_THREADS = 8
"""Threads that sync logs: a file system makes several logs durable with one commit of its own."""
CLUSTER_CHECK_TIMEOUT = 1.0
"""Seconds to wait for another broker's claim of its cluster."""
CLUSTER_CHECK_INTERVAL = 1.0
NATS_RETRY = 0.2
"""Seconds between attempts to connect to NATS at start."""
NATS_WAIT_LOG_INTERVAL = 5.0
"""Seconds between log lines while the start waits for NATS."""
REGISTRATION_TIMEOUT = 60.0
"""Seconds. Without a Raft majority no broker can register; an error is better than an endless wait."""


def run(config: ServerConfig) -> int:
    """Runs until SIGTERM, which hands the leaderships over first, or SIGINT, which does not. A second signal ends the
    handing over. Returns the exit status. Raises TidelogError when it cannot start."""
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormat())
    handler.addFilter(LogLimit())
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    os.umask(PRIVATE_UMASK)
    warn_of_open((config.data_dir, *config.secret_files))
    keep_freed_memory()
    return asyncio.run(_run(config))


async def _run(config: ServerConfig) -> int:
    loop = asyncio.get_running_loop()
    # It is the clock of asyncio's loops, without the method around it: both planes and the loop ask for the time some
    # thirty times in each commit.
    loop.time = time.monotonic  # type: ignore[method-assign]
    stop, stop_at_once = asyncio.Event(), asyncio.Event()

    def on_signal(*, hands_over: bool) -> None:
        if stop.is_set() or not hands_over:
            stop_at_once.set()
        stop.set()

    loop.add_signal_handler(signal.SIGINT, partial(on_signal, hands_over=False))
    loop.add_signal_handler(signal.SIGTERM, partial(on_signal, hands_over=True))
    node = Node(config)
    loop.add_signal_handler(signal.SIGHUP, node.read_secrets)
    starting: asyncio.Future[None] = loop.create_task(node.start())
    stopping: asyncio.Future[bool] = loop.create_task(stop.wait())
    hurrying: asyncio.Future[bool] = loop.create_task(stop_at_once.wait())
    handing_over: asyncio.Future[None] | None = None
    try:
        await asyncio.wait(_any_of(starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            await asyncio.wait(_any_of(stopping, node.fatal), return_when=asyncio.FIRST_COMPLETED)
            if node.fatal.done():
                node.fatal.result()
            handing_over = loop.create_task(node.hand_over())
            await asyncio.wait(_any_of(handing_over, hurrying, node.fatal), return_when=asyncio.FIRST_COMPLETED)
            if node.fatal.done():
                node.fatal.result()
        _log.info("%s is stopping", config.broker)
    finally:
        for future in (stopping, hurrying, starting, *(() if handing_over is None else (handing_over,))):
            future.cancel()
        with contextlib.suppress(asyncio.CancelledError, TidelogError, RaftError):
            await starting
        if handing_over is not None:
            (ended,) = await asyncio.gather(handing_over, return_exceptions=True)
            if isinstance(ended, Exception):
                _log.error("%s could not hand its leaderships over", config.broker, exc_info=ended)
        await node.close()
    return 0


class FoundCluster(NamedTuple):
    cluster_id: str
    """Id of the cluster; empty: no broker answered."""
    is_proved: bool
    """A broker that holds a secret of this cluster has made the claim, and not anybody."""
    has_own_id: bool = False
    """The broker that answered has the id of this broker."""


async def _ask_for_cluster(
    broker: BrokerId, data_dir: DataDir, peers: PeerLink, subjects: Subjects, life_id: str
) -> FoundCluster:
    """Returns the cluster of the first other broker that answers and can prove its membership; else an unproven claim.
    Overloaded brokers answer on the subject of the question, where anybody can replay an old claim of a broker: there
    only proof for this cluster counts."""
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()
    said = FoundCluster("", False)

    def take(payload: bytes, is_proved: Callable[[], bool], *, is_to_all: bool) -> None:
        nonlocal said
        with contextlib.suppress(DecodeError):
            claim = pb.ClusterClaim.FromString(payload)
            if claim.life_id != life_id and (claim.cluster_id or claim.candidate):
                proved = is_proved()
                if is_to_all and (not proved or claim.cluster_id != data_dir.cluster_id):
                    return
                if proved or not said.cluster_id:
                    said = FoundCluster(claim.cluster_id, proved, claim.broker == broker)
                if proved:
                    answered.set()

    def on_answer(message: Message, is_proved: bool) -> None:
        if message.status is not None:
            loop.call_later(REFUSAL_GRACE, answered.set)
        else:
            take(message.data, lambda: is_proved, is_to_all=False)

    def on_claim(payload: bytes, reply: str | None, is_proved: Callable[[], bool]) -> None:
        if reply is None and not answered.is_set():
            take(payload, is_proved, is_to_all=True)

    question = pb.ClusterClaim(broker=broker, life_id=life_id, cluster_id=data_dir.cluster_id or "")
    inbox = peers.new_inbox()
    peers.on_claim_inbox(inbox, on_answer)
    shared: Subscription | None = None
    try:
        async with asyncio.timeout(CLUSTER_CHECK_TIMEOUT):  # without NATS, subscribing would never end
            peers.publish_claim(subjects.cluster(), question.SerializeToString(), reply=inbox)
            # After the question: a subscription of this broker would keep NATS from saying that nobody else has one.
            shared = await peers.subscribe_claims(subjects.cluster(), on_claim)
            await answered.wait()
    except TimeoutError:
        pass
    finally:
        peers.on_claim_inbox(inbox, None)
        if shared is not None:
            await shared.unsubscribe()
    return said


async def _all_return(calls: Sequence[Callable[[], None]], patience: float) -> bool:
    """Runs each call in a thread of its own, which does not hold up the end of the process. False: some go on."""
    loop = asyncio.get_running_loop()
    returned = [loop.create_future() for _ in calls]

    def run(call: Callable[[], None], future: asyncio.Future[None]) -> None:
        call()
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(future.set_result, None)

    for call, future in zip(calls, returned, strict=True):
        threading.Thread(target=run, args=(call, future), daemon=True).start()
    _, waiting = await asyncio.wait(returned, timeout=patience)
    return not waiting


def _any_of(*futures: asyncio.Future[Any]) -> list[asyncio.Future[Any]]:
    return [*futures]


class Node:
    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when this broker cannot go on: another cluster's folder, or another process under its id."""
        self._keyring = Keyring(config.master_keys, owner=f"broker {config.broker}")
        self._labels = {"host": socket.gethostname(), "pid": str(os.getpid())}
        if config.zone:
            self._labels[RACK_LABEL] = config.zone
        self._tell_master_keys()
        self._stack = contextlib.AsyncExitStack()
        self._raft_address = config.raft_address
        self._secret_watch: SecretWatch | None = None
        self._runtime: BrokerRuntime | None = None
        self._disk_hangs = False
        """The disk was found to hang while the logs were closed."""

    async def start(self) -> None:
        """Returns when this broker serves. Raises TidelogError with one sentence that names the obstacle."""
        config, stack = self.config, self._stack
        if config.secrets.are_public:
            _log.warning(
                "%s has no raft_secret_file: brokers do not authenticate one another, and every process of this machine"
                " can speak for one",
                config.broker,
            )
        loop = asyncio.get_running_loop()
        try:
            files = RealFiles(config.boot_id_file)
            data_dir = DataDir.open(config.data_dir, config.broker, files=files, open_files=raise_limit())
        except DataDirError as e:
            raise TidelogError(Code.BAD_CONFIG, str(e)) from e
        stack.callback(data_dir.close)
        if not config.secrets.are_shared:
            try:
                keep_own_secret(config.secrets, data_dir.files, config.data_dir)
            except OSError as e:
                raise TidelogError(
                    Code.BAD_CONFIG, f"{config.data_dir / FILE} cannot be read or written: {e.strerror}"
                ) from e
        if config.raft_secret_file is not None:
            self._secret_watch = SecretWatch(config.raft_secret_file, config.secrets, config.broker, loop)
            stack.callback(self._secret_watch.close)
        liftbridge = self._bind_liftbridge()
        ready = config.data_dir / "ready"
        ready.unlink(missing_ok=True)
        stack.callback(ready.unlink, missing_ok=True)
        if self._raft_address is None and not config.raft_peers:
            self._raft_address = self._standalone_address()

        try:
            ingest = await self._connect("ingest")
            stack.push_async_callback(ingest.close)
            control = await self._connect("control")
            stack.push_async_callback(control.close)
            ingest.give_way_to(control)
            public = await self._connect("public")
            stack.push_async_callback(public.close)
            public.always_give_way()
        except NatsRefused as e:
            raise TidelogError(Code.UNAVAILABLE, str(e)) from e

        executor = ThreadPoolExecutor(LOG_THREADS, "log")
        readers = ThreadPoolExecutor(READ_THREADS, "read")
        decoders = ThreadPoolExecutor(1, "decode")
        housekeeping = ThreadPoolExecutor(1, "housekeeping")
        syncer = SyncScheduler(
            post=loop.call_soon_threadsafe,
            threads=SYNC_THREADS,
            quick_below=config.storage.quick_sync_below,
            together=data_dir.files,
        )
        checkpoints = SyncScheduler(post=loop.call_soon_threadsafe, threads=CHECKPOINTS_AT_ONCE, name="checkpoint")
        pools = (executor, decoders, readers, housekeeping)
        threads = [*(pool.shutdown for pool in pools), checkpoints.close, syncer.close]
        stack.push_async_callback(self._end_threads, threads, [ingest, control, public])
        subjects = Subjects(config.namespace)
        life_id = uuid.uuid4().hex
        # It is not the link of the runtime, because each signs under a key of its own.
        asking = PeerLink(public, config.secrets, f"{life_id} at its start", Refusals(config.broker, time.monotonic))
        check_cluster = partial(self._check_cluster, data_dir, asking, subjects, life_id)
        await check_cluster()

        dependencies = BrokerDependencies(
            broker=config.broker,
            life_id=life_id,
            data_dir=data_dir,
            ingest=ingest,
            control=control,
            public=public,
            secrets=config.secrets,
            make_raft=partial(self._make_raft, data_dir.cluster_id or "", data_dir.files.boot_id()),
            raft_address=self._raft_address or "",
            syncer=syncer,
            executor=executor,
            checkpoints=checkpoints,
            decoders=decoders,
            readers=readers,
            housekeeping=housekeeping,
            loop=loop,
            time_ns=time.time_ns,
            rng=random.Random(),
            subjects=subjects,
            metadata_settings=config.metadata,
            replica_settings=config.replica,
            storage_settings=config.storage,
            replace=config.replace,
            zone=config.zone,
            tags=config.tags,
            labels=self._labels,
            keyring=self._keyring,
        )
        runtime = self._runtime = await BrokerRuntime.open(dependencies, self._on_fatal)
        stack.push_async_callback(self._close_runtime, runtime)
        # With thousands of logs it takes part of a second: nobody waits for this broker yet.
        collect_only_what_comes()
        try:
            await runtime.start()
        except RaftError as e:
            raise TidelogError(Code.BAD_CONFIG, str(e)) from e
        registered = loop.create_task(runtime.metadata.wait_registered())
        # Nodes of two clusters do not talk over Raft; running brokers report over NATS which cluster this is.
        checking = loop.create_task(self._check_cluster_for_ever(check_cluster))
        await asyncio.wait(
            _any_of(registered, self.fatal), timeout=REGISTRATION_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
        )
        checking.cancel()
        if runtime.metadata.incarnation is not None:  # it only waits for room in the data folder
            await asyncio.wait(_any_of(registered, self.fatal), return_when=asyncio.FIRST_COMPLETED)
        if self.fatal.done():
            self.fatal.result()
        if not registered.done():
            registered.cancel()
            if obstacle := runtime.metadata.namespace.bootstrap_obstacle:
                raise TidelogError(
                    Code.UNAVAILABLE,
                    f"{config.broker} could not found a cluster within {REGISTRATION_TIMEOUT:.0f} s: {obstacle}",
                )
            others = ", ".join(config.raft_peers.values())
            found = await _ask_for_cluster(config.broker, data_dir, asking, subjects, life_id)
            remedy = runtime.metadata.why_no_leader() or "start the other voters"
            raise TidelogError(
                Code.UNAVAILABLE,
                f"{config.broker} could not register within {REGISTRATION_TIMEOUT:.0f} s: no Raft majority of"
                f" {self._raft_address or 'an observer'} and {others or 'no other broker'}; {remedy}"
                + (
                    f" (cluster {found.cluster_id[:MAX_SHOWN]!r} lives in namespace {config.namespace!r})"
                    if found.cluster_id
                    else ""
                ),
            )
        if liftbridge is not None:
            connection = await self._connect_liftbridge()
            stack.push_async_callback(liftbridge.close)
            await liftbridge.serve(config.broker, connection, subjects, runtime.metadata, runtime.reply_subjects)
        try:
            ready.write_text(f"{os.getpid()}\n")
        except OSError as e:  # only processes that wait for the start read it
            _log.warning("%s cannot be written: %s", ready, e)
        warn_of_missing_keys(config.broker, self._keyring.ids, runtime.metadata.state)
        _log.info("%s serves: incarnation %d, data in %s", config.broker, runtime.incarnation, config.data_dir)

    async def _connect(self, purpose: str) -> NatsConnection:
        """Waits for a NATS server, as a connection that is lost later does. Raises NatsRefused for a login, certificate
        or URL that stays wrong; TidelogError for a login without the broker's inboxes."""
        name = f"tidelog {self.config.broker} {purpose}"
        inboxes = Subjects(self.config.namespace).broker_inbox(self.config.broker)
        next_log = 0.0
        retry = Retry(NATS_RETRY, chance=random.random)
        while True:
            try:
                connection = await NatsConnection.connect(
                    self.config.nats, name=name, login=self.config.login, inbox_prefix=inboxes
                )
            except NatsRefused:
                raise
            except NatsUnavailable as e:
                now = time.monotonic()
                if now >= next_log:
                    next_log = now + NATS_WAIT_LOG_INTERVAL
                    _log.warning("%s waits for NATS: %s", self.config.broker, e)
                await asyncio.sleep(retry.failed())
                continue
            if (refused := connection.violations.of_inboxes) is not None:
                await connection.close()
                broker = self.config.broker
                raise TidelogError(
                    Code.NOT_PERMITTED,
                    f"{refused.sentence}, where the answers to {broker} come: give it the login whose permissions"
                    f" `tidelog security nats-config --role broker --broker {broker} --subject SUBJECT` prints",
                )
            return connection

    def _bind_liftbridge(self) -> LiftbridgePort | None:
        """Binds the Liftbridge port if it is configured. Raises TidelogError(BAD_CONFIG)."""
        settings = self.config.liftbridge
        if settings is None:
            return None
        try:
            from tidelog.server.liftbridge.port import LiftbridgePort  # grpc is installed with the extra only
        except ImportError as error:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"liftbridge_port needs grpcio, which cannot be imported ({error}); install it with"
                " `pip install 'tidelog[liftbridge]'`, or leave liftbridge_port out",
            ) from error
        self.config.liftbridge_login()  # a wrong file is reported now
        self._labels[ADDRESS_LABEL] = settings.advertised
        return LiftbridgePort.bind(settings)

    async def _connect_liftbridge(self) -> NatsConnection:
        """Connects with the login of the port's clients. Raises TidelogError where NATS refuses it."""
        config = self.config
        login, inboxes = config.liftbridge_login()
        try:
            connection = await NatsConnection.connect(
                [split_url(url)[0] for url in config.nats],  # a login in a URL is the broker's
                name=f"tidelog {config.broker} liftbridge",
                login=login,
                inbox_prefix=inboxes,
            )
        except NatsUnavailable as error:
            raise TidelogError(Code.UNAVAILABLE, f"liftbridge_login: {error}") from error
        try:
            connection.violations.check_answers_arrive()
        except TidelogError as error:
            await connection.close()
            raise TidelogError(
                error.code,
                f"the login to NATS of the Liftbridge port: {error.message}; give it a login of a client with"
                " liftbridge_login",
            ) from error
        return connection

    async def _check_cluster_for_ever(self, check_cluster: Callable[[], Awaitable[None]]) -> None:
        try:
            while True:
                await asyncio.sleep(CLUSTER_CHECK_INTERVAL)
                await check_cluster()
        except TidelogError as e:
            self._on_fatal(e)

    async def _check_cluster(self, data_dir: DataDir, peers: PeerLink, subjects: Subjects, life_id: str) -> None:
        """Runs before this folder's Raft journal meets voters of another cluster: logs of two groups can look alike.
        While no other broker runs, the cluster is not known."""
        if data_dir.cluster_id is None:
            return
        found = await _ask_for_cluster(self.config.broker, data_dir, peers, subjects, life_id)
        if not found.cluster_id:
            return
        try:
            data_dir.check_cluster(found.cluster_id)
        except DataDirError as e:
            if found.is_proved or not self.config.secrets.are_shared:  # an own secret leaves no way to prove
                raise TidelogError(Code.BAD_CONFIG, str(e)) from e
            # Its voters have another secret, so that Raft keeps the two clusters apart; or the claim is a lie.
            _log.warning("somebody without a secret of this cluster says: %s", str(e)[:500])
            return
        # Brokers that share a secret are asked for their id when they register. One that stands alone has a secret of
        # its own, so the one that has a copy of its folder cannot prove who it is.
        if found.has_own_id and not self.config.secrets.are_shared:
            raise TidelogError(
                Code.ID_IN_USE,
                f"another process is broker {self.config.broker} of cluster {found.cluster_id}, and {data_dir.path} is"
                " a copy of its data folder; stop that one first, or start this one with an id and a folder of its own",
            )

    def _on_fatal(self, error: TidelogError) -> None:
        if not self.fatal.done():
            self.fatal.set_exception(error)

    def _make_raft(
        self,
        cluster_id: str,
        boot_id: str,
        state_machine: StateMachine,
        on_status: Callable[[RaftStatus], None],
        on_peer_lost: Callable[[str], None],
    ) -> RaftNode:
        config = RaftConfig(
            address=self._raft_address,
            peers=tuple(self.config.raft_peers.values()),
            directory=self.config.data_dir / "raft",
            secrets=self.config.secrets,
            certificates=self.config.raft_certificates,
            group=cluster_id,
            boot_id=boot_id,
        )
        return RaftNode(
            config,
            state_machine,
            on_status=on_status,
            on_peer_lost=on_peer_lost,
            on_no_space=Reserve(REAL_FILES, self.config.data_dir).release,
        )

    def _standalone_address(self) -> str:
        """An address that no peer connects to: it is this voter's name, chosen once and kept."""
        file = self.config.data_dir / "raft-address"
        if not file.exists():
            file.write_text(free_addresses(1)[0])
        return file.read_text().strip()

    def read_secrets(self) -> None:
        """Reads the files with the master keys and the cluster's secrets again."""
        if self._secret_watch is not None:
            self._secret_watch.look()
        if self.config.master_key_file is not None or self._secret_watch is None:
            self.read_master_keys()

    def read_master_keys(self) -> None:
        """Reads the file again, while the broker runs: its keys replace the earlier ones. A file that cannot be used
        changes nothing."""
        file = self.config.master_key_file
        if file is None:
            _log.warning("%s has no master key file to read again", self.config.broker)
            return
        try:
            self._keyring.replace(keys_from_file(file))
        except TidelogError as e:
            _log.error("%s goes on with the master keys it has: %s", self.config.broker, e)
            return
        self._tell_master_keys()

    def _tell_master_keys(self) -> None:
        """Publishes and logs the ids of the master keys."""
        ids = self._keyring.ids
        self._labels[MASTER_KEYS_LABEL] = ",".join(ids)
        if ids:
            _log.info("%s has the master keys %s; the first one is in use", self.config.broker, ", ".join(ids))

    async def _close_runtime(self, runtime: BrokerRuntime) -> None:
        self._disk_hangs = not await runtime.close()

    async def _end_threads(self, ends: Sequence[Callable[[], None]], connections: Sequence[NatsConnection]) -> None:
        """`ends`: each ends some threads, and returns when they have ended. Ends the process where they wait for a disk
        that hangs: Python would wait for them."""
        patience = self.config.replica.replica_max_lag_time
        if not self._disk_hangs and await _all_return(ends, patience):
            return
        for connection in connections:
            await connection.close()
        end_process(f"{self.config.broker} ends at once, for its threads wait for a disk that hangs")

    async def hand_over(self) -> None:
        """Hands the leaderships over before the end. May be cancelled."""
        if self._runtime is not None:
            await self._runtime.hand_over()

    async def close(self) -> None:
        await self._stack.aclose()
