"""The file with the secrets of a cluster, and how one secret takes the place of another without a stop.

    # comments                       `# new: FINGERPRINT` says which of two secrets is the new one
    SECRET                           used for signing; one per line
    SECRET                           accepted too

    step     the files of all brokers hold    it may be done when each live broker
    add      old              -> old, new     holds the old one, and nothing else
    use      old, new         -> new, old     holds both: messages signed with the new one are accepted
    remove   new, old         -> new          sends with the new one

Brokers look at their file every second, and after SIGHUP.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple

from wire.errors import Code, TidelogError
from wire.security.cluster_secrets import ClusterSecret, ClusterSecrets, parse_secrets

_log = logging.getLogger(__name__)

LOOK_INTERVAL_S = 1.0
_NEW = "# new: "


class Step(Enum):
    ADD = "add"
    USE = "use"
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class SecretFile:
    """The content of the file with the secrets."""

    secrets: tuple[ClusterSecret, ...]
    new: str | None
    """Fingerprint of the new one of two secrets, where the file names it."""

    @classmethod
    def read(cls, path: Path) -> SecretFile:
        """Reads the file. Raises TidelogError(BAD_CONFIG)."""
        try:
            text = path.read_bytes()
        except OSError as e:
            raise _bad(f"raft_secret_file {path} cannot be read: {e.strerror}") from e
        secrets = parse_secrets(text, f"raft_secret_file {path}")
        marks = [
            line[len(_NEW) :].strip() for line in text.decode(errors="replace").splitlines() if line.startswith(_NEW)
        ]
        return cls(secrets, marks[0] if marks else None)

    def write(self, path: Path) -> None:
        """Writes the file durably and atomically; readable by its owner alone. Raises TidelogError(BAD_CONFIG)."""
        lines = [secret.text.decode() for secret in self.secrets]
        if self.new is not None:
            lines.insert(0, f"{_NEW}{self.new}")
        beside = path.with_name(f".{path.name}.new")
        try:
            beside.unlink(missing_ok=True)
            descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(descriptor, "w", encoding="utf-8") as file:  # noqa: PTH123 - `descriptor` is no path
                status = path.stat()
                if os.geteuid() == 0:
                    os.fchown(descriptor, status.st_uid, status.st_gid)
                file.write("\n".join(lines) + "\n")
                file.flush()
                os.fsync(descriptor)
            beside.replace(path)
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)  # without this a power loss may bring the earlier secrets back
            finally:
                os.close(folder)
        except OSError as e:
            raise _bad(f"raft_secret_file {path} cannot be written: {e.strerror}") from e

    @property
    def fingerprints(self) -> list[str]:
        return [secret.fingerprint.hex() for secret in self.secrets]

    def next_step(self) -> Step:
        """Returns the next step. Raises TidelogError(BAD_CONFIG) where the file does not say which secret is new."""
        if len(self.secrets) == 1:
            return Step.ADD
        if self.new not in self.fingerprints:
            first, second = self.fingerprints
            raise _bad(
                f"the file holds two secrets, {first} and {second}, and does not say which is the new one: write"
                f" `{_NEW}{second}`, or the other, as its first line"
            )
        return Step.REMOVE if self.fingerprints[0] == self.new else Step.USE

    def after(self, step: Step) -> SecretFile:
        match step:
            case Step.ADD:
                new = ClusterSecret(token_hex(32).encode())
                return SecretFile((*self.secrets, new), new.fingerprint.hex())
            case Step.USE:
                return SecretFile(self.secrets[::-1], self.new)
            case Step.REMOVE:
                return SecretFile(self.secrets[:1], None)


class Obstacles(NamedTuple):
    """Reasons why a step cannot be done."""

    fault: str
    """A fault of the file that waiting does not mend; empty: none."""
    waits: list[str]
    """One sentence for each live broker that is not ready yet."""


def obstacles(held: SecretFile, step: Step, brokers: Mapping[str, Sequence[str] | None]) -> Obstacles:
    """`brokers`: fingerprints that each live one holds, the one in use first; None: it does not report them."""
    first = held.fingerprints[0]
    known = sorted({each for fingerprints in brokers.values() for each in fingerprints or ()})
    if known and not set(known) & set(held.fingerprints):
        wrong = (
            f"the file is not of this cluster: it holds {_named(held.fingerprints)}, and the brokers {_named(known)}"
        )
        return Obstacles(f"{wrong}; name the file of these brokers, or the file's own cluster with --server", [])
    if step is Step.ADD:
        behind = sorted(broker for broker, told in brokers.items() if told and first in told and told[0] != first)
        if behind:
            return Obstacles(
                f"the file is newer than the secrets of {', '.join(behind)}: it holds {first} alone, and"
                f" {_named((brokers[behind[0]] or ())[:1])} is in use there; copy the file that {behind[0]} reads over"
                " this one, and call this again",
                [],
            )
    found = []
    for broker, fingerprints in sorted(brokers.items()):
        if fingerprints is None:
            found.append(f"{broker} does not tell which secrets it holds")
        elif step is Step.ADD and list(fingerprints) != [first]:
            rest = ", unless the step remove is still to be done on its machine" if first in fingerprints else ""
            found.append(f"{broker} holds {_named(fingerprints)} already: copy its file to this machine{rest}")
        elif step is Step.USE and held.new not in fingerprints:
            found.append(
                f"{broker} holds {_named(fingerprints)} and not yet the new one, {held.new}: copy this file to the one"
                " that it reads (raft_secret_file)"
            )
        elif step is Step.REMOVE and fingerprints[0] != held.new:
            found.append(f"{broker} still uses {fingerprints[0]}: do this step on its machine first")
    return Obstacles("", found)


def _named(fingerprints: Sequence[str]) -> str:
    return " and ".join(fingerprints)


class SecretWatch:
    """Reads the file again when it has changed, in a thread of its own: a disk may hang. `secrets` are replaced on
    `loop`; a file that cannot be used changes nothing."""

    def __init__(
        self,
        path: Path,
        secrets: ClusterSecrets,
        owner: str,
        loop: asyncio.AbstractEventLoop,
        interval: float = LOOK_INTERVAL_S,
    ) -> None:
        self._path = path
        self._secrets = secrets
        self._owner = owner
        self._loop = loop
        self._interval = interval
        self._ended = threading.Event()
        self._look = threading.Event()
        self._seen = _state(path)
        threading.Thread(target=self._watch, name="secrets", daemon=True).start()

    def look(self) -> None:
        """Reads the file now, whether it has changed or not."""
        self._seen = None
        self._look.set()

    def close(self) -> None:
        self._ended.set()
        self._look.set()

    def _watch(self) -> None:
        obstacle = ""
        while True:
            if self._look.wait(self._interval):
                obstacle = ""
            self._look.clear()
            if self._ended.is_set():
                return
            state = _state(self._path)
            if state == self._seen:
                continue
            try:
                found = SecretFile.read(self._path)
            except TidelogError as e:  # read again: a `chmod` does not show in `state`
                if obstacle != (obstacle := str(e)):
                    _log.error("%s goes on with the secrets it has: %s", self._owner, e)
                continue
            self._seen, obstacle = state, ""
            self._on_loop(lambda found=found: self._take(found))  # type: ignore[misc]

    def _on_loop(self, call: Callable[[], None]) -> None:
        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError:  # the loop is closed, so the watch ends
            self._ended.set()

    def _take(self, found: SecretFile) -> None:
        if found.fingerprints != self._secrets.fingerprints:
            _log.info(
                "%s holds the secrets %s now; the first one is in use", self._owner, ", ".join(found.fingerprints)
            )
        self._secrets.replace(found.secrets)


def _state(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)
