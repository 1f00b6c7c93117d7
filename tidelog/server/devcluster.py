"""A development cluster on this machine: a real nats-server and N brokers, each a process of its own.

    DIR/cluster.json     once all brokers serve, until it stops: nats_url, and each broker's id, pid, data_dir, raft
                         address, config file; rewritten when a pid changes
    DIR/raft-secret      made at the first start
    DIR/b1.toml b1.log   configuration and log of broker b1
    DIR/b1/              its data
    DIR/nats/            nats-server's

Ports of Raft are chosen at the first start and kept in the configuration files, so that a second start on the same
folder finds the same group. A broker that dies stays dead, unless its operator says otherwise; a nats-server that dies
is started again (`NatsKeeper`), and the brokers and clients connect to it by themselves.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

from metadata.controller.metadata_settings import MetadataSettings
from tidelog.nats.login_sources import PREFIX
from tidelog.nats.nats_server import MAX_PAYLOAD, EmbeddedNatsServer, NatsPortTaken, NatsServerFailed, ends_with_us
from tidelog.process.loopback import HOST, free_addresses
from tidelog.server.config import VOTER_COUNTS
from wire.errors import Code, TidelogError
from wire.notation import MOST_PORT
from wire.retry import Retry

MAX_NODES = 16
LOCK_FILE = "up.lock"
NATS_PAUSE = 0.5
"""Seconds before the second start in a row of a nats-server that does not stay; doubled with each further one."""
NATS_MAX_PAUSE = 10.0
NATS_STEADY = 30.0
"""A nats-server that has run for so many seconds is started again at once when it ends."""
NATS_GIVE_UP = 15.0
"""Seconds for which nats-server may refuse to start before the cluster ends."""
BOOTSTRAP_WAIT_S = 0.5
"""`bootstrap_wait_s` of the brokers: no busy cluster is on a nats-server that has just begun."""
STOP_TIMEOUT = 15.0
"""Seconds that a broker has to end by itself before it is killed."""


class DevCluster:
    """Starts, kills and restarts brokers. Not thread-safe. `with DevCluster(...) as cluster:` starts and stops it."""

    def __init__(
        self,
        data_dir: Path,
        *,
        nodes: int = 3,
        port: int = 4222,
        settings: dict[str, dict[str, Any]] | None = None,
        server_command: Sequence[str] | None = None,
        master_key_file: Path | None = None,
        liftbridge_port: int | None = None,
        max_payload: int = MAX_PAYLOAD,
        nats_config: str = "",
        settings_of: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """`port` 0: any free one. `settings`: sections of the brokers' configuration (`replica`, `metadata`).
        `server_command`: arguments of this Python that run one broker, in place of `-m tidelog server`.
        `master_key_file`: of all brokers. `liftbridge_port`: of the first broker; the next one has the next port.
        `max_payload`: of nats-server, bytes. `nats_config`: further configuration of nats-server. `settings_of`: by
        broker id, further configuration: values at the top (`raft_ca`), and mappings as sections
        (`login`)."""
        if liftbridge_port is not None and liftbridge_port + nodes - 1 > MOST_PORT:
            raise TidelogError(
                Code.BAD_CONFIG,
                f"liftbridge_port={liftbridge_port} leaves no ports for {_nodes(nodes)}; give a lower one",
            )
        if not 1 <= nodes <= MAX_NODES:
            raise TidelogError(Code.BAD_CONFIG, f"{nodes} nodes asked for; a development cluster has 1 to {MAX_NODES}")
        self.data_dir = data_dir.absolute()
        self.broker_ids = [f"b{i}" for i in range(1, nodes + 1)]
        self._settings = settings or {}
        self._server_command = [*(server_command or ("-m", "tidelog", "server"))]
        self._master_key_file = master_key_file.absolute() if master_key_file is not None else None
        self._port = port
        self._liftbridge_port = liftbridge_port
        self._max_payload = max_payload
        self._nats_config = nats_config
        self._settings_of = settings_of or {}
        self._lock: IO[str] | None = None
        self._nats: EmbeddedNatsServer | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # ------------------------------------------------------------------ start and stop
    def start(self) -> None:
        """Starts nats-server, then all brokers. Returns when the processes run; `wait_ready` waits until they serve.

        Raises TidelogError: the folder is in use, it was made for another number of nodes, a port is taken."""
        made = self._missing_folder()
        try:
            self.data_dir.mkdir(parents=True, exist_ok=True)
            self._take_lock()
            if any(path.name != LOCK_FILE for path in self.data_dir.iterdir()):
                made = None  # another cluster has filled it since
        except OSError as e:
            raise TidelogError(Code.BAD_CONFIG, f"the data folder {self.data_dir} cannot be used: {e.strerror}") from e
        try:
            self._check_node_count()
            self._cluster_file().unlink(missing_ok=True)
            self._start_nats()
            self._write_configs()
            for broker in self.broker_ids:
                self._spawn(broker)
        except BaseException as error:
            if made is not None and isinstance(error, TidelogError) and error.code is Code.BAD_CONFIG:
                self._remove_what_was_made(made)  # the lock is still held
            self.stop()
            raise

    def stop(self) -> None:
        """Stops the brokers first, all at once, then nats-server."""
        running = [p for p in self._processes.values() if p.poll() is None]
        for process in running:
            process.send_signal(signal.SIGINT)  # nobody is left to take leaderships over
        deadline = time.monotonic() + STOP_TIMEOUT
        for process in running:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes.clear()
        if self._nats is not None:
            self._nats.stop()
            self._nats = None
        if self._lock is not None:
            self._cluster_file().unlink(missing_ok=True)
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ brokers
    @property
    def nats_url(self) -> str:
        return self.nats.url

    @property
    def nats(self) -> EmbeddedNatsServer:
        if self._nats is None:
            raise TidelogError(Code.UNAVAILABLE, "the development cluster is not running; start it first")
        return self._nats

    @property
    def nats_pid(self) -> int | None:
        return None if self._nats is None else self._nats.pid

    def pid(self, broker: str) -> int | None:
        """Returns the process id of the broker; None when it does not run."""
        process = self._processes.get(broker)
        return process.pid if process is not None and process.poll() is None else None

    def exit_status(self, broker: str) -> int | None:
        process = self._processes.get(broker)
        return process.poll() if process is not None else None

    def config_file(self, broker: str) -> Path:
        return self.data_dir / f"{broker}.toml"

    def liftbridge_address(self, broker: str) -> str | None:
        """Returns the address of the broker's port for Liftbridge's clients; None: there is none."""
        if self._liftbridge_port is None:
            return None
        return f"{HOST}:{self._liftbridge_port + self.broker_ids.index(broker)}"

    def log_file(self, broker: str) -> Path:
        return self.data_dir / f"{broker}.log"

    def broker_dir(self, broker: str) -> Path:
        return self.data_dir / broker

    @property
    def data_dirs(self) -> dict[str, Path]:
        """Returns the data folders of all brokers."""
        return {broker: self.broker_dir(broker) for broker in self.broker_ids}

    def kill(self, broker: str, sig: int = signal.SIGKILL) -> None:
        """Sends a signal; for SIGKILL and SIGTERM, waits for the end."""
        process = self._processes[broker]
        process.send_signal(sig)
        if sig in (signal.SIGKILL, signal.SIGTERM):
            hands_over = MetadataSettings().hand_over_timeout_s if sig == signal.SIGTERM else 0.0
            process.wait(STOP_TIMEOUT + hands_over)

    def start_broker(self, broker: str, *, replace: bool = False) -> None:
        """Starts a broker that does not run. `replace`: its data folder is lost for good."""
        if self.pid(broker) is None:
            self._spawn(broker, *(("--replace",) if replace else ()))
            self._write_cluster_file()

    def wait_ready(self, timeout: float = 30.0, on_wait: Callable[[], None] | None = None) -> None:
        """Waits until every broker serves (its ready file names its pid). Raises TidelogError with the end of the log
        of one that does not."""
        deadline = time.monotonic() + timeout
        waiting = list(self.broker_ids)
        while waiting:
            for broker in list(waiting):
                status = self.exit_status(broker)
                if status is not None:
                    raise TidelogError(
                        Code.UNAVAILABLE, f"broker {broker} {how_it_ended(status)}: {self._last_words(broker)}"
                    )
                if self.is_ready(broker):
                    waiting.remove(broker)
            if waiting and time.monotonic() > deadline:
                raise TidelogError(
                    Code.UNAVAILABLE,
                    f"broker {waiting[0]} does not serve after {timeout:.0f} s: {self._last_words(waiting[0])}",
                )
            if waiting:
                if on_wait is not None:
                    on_wait()
                time.sleep(0.02)
        self._write_cluster_file()  # a process that waits for the file may begin

    def is_ready(self, broker: str) -> bool:
        try:
            return (self.broker_dir(broker) / "ready").read_text().strip() == str(self.pid(broker))
        except OSError:
            return False

    # ------------------------------------------------------------------ parts
    def _missing_folder(self) -> Path | None:
        """Returns the topmost folder that has to be made; None when the data folder exists."""
        missing = [folder for folder in (self.data_dir, *self.data_dir.parents) if not folder.exists()]
        return missing[-1] if missing else None

    def _remove_what_was_made(self, topmost: Path) -> None:
        """Removes the data folder, and the empty folders above it up to `topmost`: other clusters may have begun in the
        others."""
        shutil.rmtree(self.data_dir, ignore_errors=True)
        with suppress(OSError):
            for folder in self.data_dir.parents:
                if folder.is_relative_to(topmost):
                    folder.rmdir()

    def _take_lock(self) -> None:
        lock = (self.data_dir / LOCK_FILE).open("a+")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            owner = lock.read().strip() or "another process"
            lock.close()
            raise TidelogError(
                Code.BAD_CONFIG,
                f"the data folder {self.data_dir} is in use by process {owner}; stop it or choose another folder",
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        self._lock = lock

    def _spawn(self, broker: str, *flags: str) -> None:
        with self.log_file(broker).open("ab") as log:
            self._processes[broker] = subprocess.Popen(
                [sys.executable, *self._server_command, "--config", str(self.config_file(broker)), *flags],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                # The brokers get no login from the environment: that of this nats-server is in their configuration.
                env={name: value for name, value in os.environ.items() if not name.startswith(PREFIX)},
                preexec_fn=ends_with_us(),  # noqa: PLW1509 - see there
            )

    def _check_node_count(self) -> None:
        present = len(list(self.data_dir.glob("b[0-9]*.toml")))
        if present not in (0, len(self.broker_ids)):
            raise TidelogError(
                Code.BAD_CONFIG,
                f"the data folder {self.data_dir} has the configurations of {_nodes(present)} (b1.toml, …), not"
                f" {len(self.broker_ids)}; give --nodes {present} or another folder",
            )

    def _start_nats(self) -> None:
        self._nats = EmbeddedNatsServer(
            port=self._port,
            store_dir=self.data_dir / "nats",
            max_payload=self._max_payload,
            config=self._nats_config,
        )
        try:
            self._nats.start()
        except NatsPortTaken as e:
            raise TidelogError(Code.BAD_CONFIG, str(e)) from e
        except NatsServerFailed as e:
            raise TidelogError(Code.UNAVAILABLE, str(e)) from e

    def _write_configs(self) -> None:
        """Writes the configuration files. Raft ports are taken from existing files; the rest is written anew."""
        secret = self.data_dir / "raft-secret"
        if not secret.exists():
            secret.touch(mode=0o600)
            secret.write_text(secrets.token_hex(32))
        # Voters are fixed when the cluster is founded; brokers that were added since are observers.
        voters = [broker for broker in self.broker_ids if self._known_address(broker) is not None]
        if len(voters) not in VOTER_COUNTS:
            voters = self.broker_ids[: max(n for n in VOTER_COUNTS if n <= len(self.broker_ids))]
        addresses = {broker: self._known_address(broker) for broker in voters}
        new = [broker for broker, address in addresses.items() if address is None]
        addresses.update(zip(new, free_addresses(len(new)), strict=True))
        for at, broker in enumerate(self.broker_ids):
            peers = ", ".join(f'{v} = "{addresses[v]}"' for v in voters if v != broker)
            lines = [
                f'id = "{broker}"',
                f'nats = "{self.nats_url}"',
                *([f'raft_address = "{addresses[broker]}"'] if broker in addresses else []),
                f"raft_peers = {{ {peers} }}",
                'raft_secret_file = "raft-secret"',
                f'data_dir = "{broker}"',
                *([f"liftbridge_port = {self._liftbridge_port + at}"] if self._liftbridge_port is not None else []),
                *([f"master_key_file = {json.dumps(str(self._master_key_file))}"] if self._master_key_file else []),
            ]
            own = self._settings_of.get(broker, {})
            sections = {key: value for key, value in own.items() if isinstance(value, Mapping)}
            lines += _assignments({key: value for key, value in own.items() if key not in sections})
            sections = {**self._settings, **sections}
            sections["metadata"] = {"bootstrap_wait_s": BOOTSTRAP_WAIT_S, **sections.get("metadata", {})}
            for section, values in sections.items():
                lines += [f"[{section}]", *_assignments(values)]
            self.config_file(broker).write_text("\n".join(lines) + "\n")

    def _known_address(self, broker: str) -> str | None:
        try:
            address = tomllib.loads(self.config_file(broker).read_text()).get("raft_address")
        except (OSError, tomllib.TOMLDecodeError):
            return None
        return str(address) if address else None

    def _cluster_file(self) -> Path:
        return self.data_dir / "cluster.json"

    def _write_cluster_file(self) -> None:
        document = {
            "nats_url": self.nats_url,
            "brokers": [
                {
                    "id": broker,
                    "pid": self._processes[broker].pid,
                    "data_dir": str(self.broker_dir(broker)),
                    "raft": self._known_address(broker),
                    "config": str(self.config_file(broker)),
                    **({"liftbridge": address} if (address := self.liftbridge_address(broker)) else {}),
                }
                for broker in self.broker_ids
            ],
        }
        temporary = self.data_dir / "cluster.json.new"
        temporary.write_text(json.dumps(document, indent=2) + "\n")
        temporary.rename(self._cluster_file())

    def _last_words(self, broker: str) -> str:
        try:
            lines = self.log_file(broker).read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it has logged nothing"


def how_it_ended(status: int | None) -> str:
    """Describes the exit `status` of a child process in words."""
    return f"was killed by signal {-status}" if status is not None and status < 0 else f"ended with status {status}"


class NatsKeeper:
    """Starts a nats-server again whenever it has ended. Call `look` every now and then; it blocks while the server
    starts, some 30 ms.

        RUNS ── it ended ──> WAITS (0 s, then NATS_PAUSE, doubled each time, up to NATS_MAX_PAUSE) ── start ──> RUNS
                               ^──── the start failed ────┘     failing for NATS_GIVE_UP: TidelogError

    A server that has run for NATS_STEADY begins with no pause again.
    """

    def __init__(
        self, nats: EmbeddedNatsServer, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._nats = nats
        self._say = say
        self._clock = clock
        self._started_at = clock()
        self._start_at: float | None = None
        """Time of the next start; None while the server runs."""
        self._retry = Retry(NATS_PAUSE, NATS_MAX_PAUSE, chance=None, at_once=True)
        self._failing_since: float | None = None

    def look(self) -> None:
        """Starts the server if it has ended and its pause is over. Raises TidelogError when it cannot be started."""
        if self._nats.is_running:
            return
        now = self._clock()
        if self._start_at is None:
            if now - self._started_at >= NATS_STEADY:
                self._retry.succeeded()
            pause_s = self._retry.pause_s()
            self._start_at = now + pause_s
            when = f"in {pause_s:g} s" if pause_s else "now"
            self._say(
                f"nats-server {how_it_ended(self._nats.exit_status)}: the cluster stands still. Starting it again"
                f" {when}, on port {self._nats.port}; its output is in {self._nats.log_path}"
            )
        if now < self._start_at:
            return
        self._retry.failed()
        try:
            self._nats.start()
        except NatsServerFailed as error:
            self._on_failed(error)
        else:
            self._started_at, self._start_at, self._failing_since = self._clock(), None, None
            self._say(f"nats-server runs again at {self._nats.url}; brokers and clients connect by themselves")

    def _on_failed(self, error: NatsServerFailed) -> None:
        now = self._clock()
        if self._failing_since is None:
            self._failing_since = now
        if now - self._failing_since >= NATS_GIVE_UP:
            raise TidelogError(
                Code.UNAVAILABLE, f"nats-server ended and cannot be started again, so the cluster stops: {error}"
            ) from error
        pause_s = self._retry.pause_s()
        self._start_at = now + pause_s
        self._say(f"nats-server does not start, trying again in {pause_s:g} s: {error}")


def _assignments(values: Mapping[str, Any]) -> list[str]:
    """Returns lines of TOML for texts, numbers and truth values."""
    return [f"{key} = {json.dumps(value)}" for key, value in values.items()]


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
