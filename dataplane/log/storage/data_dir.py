"""The data folder of one broker: whose it is, that nobody else uses it, and what it proves after a restart.

    <data>/lock                                        held while the broker runs; names its process
    <data>/broker.json                                 the identity below, with its CRC-32C
    <data>/broker.json.copy                            the same once more, written first: it is read where the other one
                                                       is damaged
    <data>/manifest, manifest.copy                     the logs that must be here: see `dataplane.log.storage.manifest`
    <data>/<stream>-<incarnation>/<partition>-<partition incarnation>/    one log each

What the identity is for. Records that this broker reported are still there after a restart if the folder is the one it
had (`folder_same`: it holds an incarnation, or the id of a life, which the metadata compares with the last one
registered), and, for records that were reported before they were synced, if the page cache was not lost in between
(`page_cache_survived`): either the folder was left in order, with everything synced, or the operating system is still
in the same boot. The clean marker is removed, durably, before the first append of a life.

That is a proof of the folder as a whole. Of each log in it the manifest has one.
"""

from __future__ import annotations

import json
import logging
import os
import re
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from dataplane.log.storage.checkpoints import OffsetCheckpoint, read_file, read_offsets, replace_file, write_offsets
from dataplane.log.storage.files import REAL_FILES, is_no_space
from dataplane.log.storage.log_errors import DataDirError, NoSpace
from dataplane.log.storage.manifest import MANIFEST_FILE, Manifest, ManifestEntry
from dataplane.log.storage.pool import LogPool
from wire.errors import InvariantViolation
from wire.types import BrokerId, Incarnation, PartitionKey, StreamName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from dataplane.log.storage.files import FileSystem

_log = logging.getLogger(__name__)

LOCK_FILE = "lock"
IDENTITY_FILE = "broker.json"
COPY_FILE = "broker.json.copy"
_REMOVED_SUFFIX = ".removed"
"""Ends the name of a partition's folder that is being removed; one found at start is removed for good."""
SET_ASIDE_SUFFIX = ".lost"
"""Ends the name of one that no broker opens any more, and that only an operator removes. A number follows where there
is one of that name."""
TAKEN_BACK_FILE = "taken-back"
"""In a partition's folder: the log was set aside and taken back, and has not counted as a copy of the partition since
then. It may be the only one."""
_VERSION = 1
MAX_LIVES = 64
"""A broker that was killed more often than that in a row while it registered comes back without its proof."""
_STREAM_NAME = re.compile(r"(.+)-(\d+)")
_PARTITION_NAME = re.compile(r"(\d+)-(\d+)")


class Proof(NamedTuple):
    """What the folder proves about the broker's earlier life, as it was found at the start. See the module's text."""

    folder_same: bool
    page_cache_survived: bool


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of `broker.json`."""

    version: int
    broker_id: BrokerId
    cluster_id: str | None = None
    last_incarnation: Incarnation | None = None
    """The last one that was registered from this folder."""
    lives: tuple[str, ...] = ()
    """Ids of the lives that began on this folder from the last recorded registration on, oldest first: one of them may
    have been registered, and killed before it knew of that. It wrote nothing."""
    boot_id: str = ""
    clean: bool = False
    manifest: bool = False
    """The folder has one. False: an earlier version wrote this, and a manifest that is there may be out of date."""
    settled: Incarnation = Incarnation(0)
    """The last incarnation that is known to have had no log here but those that the metadata gave it; 0: none."""


class DataDir:
    """An open, locked data folder. Blocking; used by one thread at a time."""

    def __init__(
        self,
        path: Path,
        files: FileSystem,
        lock: int,
        identity: Identity,
        proof: Proof,
        manifest: Manifest,
        pool: LogPool,
    ) -> None:
        """Use `open`."""
        self.path = path
        self.files = files
        self.pool = pool
        """Shared by all logs in the folder."""
        self.manifest = manifest
        self._lock = lock
        self._identity = identity
        self._proof = proof
        self._left_in_order = identity.clean
        self._recorded = False
        """Whether this life's registration is applied and recorded."""

    @classmethod
    def open(
        cls, path: Path, broker_id: BrokerId, *, files: FileSystem = REAL_FILES, open_files: int = 1024
    ) -> DataDir:
        """Makes the folder where it is missing and locks it. `open_files`: the process's limit of open files. Raises
        DataDirError when the folder is in use, belongs to another broker, or is unusable."""
        try:
            files.make_directory(path)
            lock = files.lock(path / LOCK_FILE)
        except OSError as error:
            raise DataDirError(
                f"data folder {path} cannot be written ({error.strerror or error}): "
                "give the broker's user the right to, or choose another with --data-dir"
            ) from error
        if lock is None:
            owner = (read_file(files, path / LOCK_FILE) or b"").decode("ascii", "replace").strip() or "unknown"
            raise DataDirError(
                f"data folder {path} is in use by process {owner}: stop that broker, or choose another with --data-dir"
            )
        try:
            return cls._locked(path, broker_id, files, lock, LogPool.within(files, open_files))
        except (OSError, NoSpace) as error:
            files.close(lock)
            reason = error.strerror if isinstance(error, OSError) else None
            raise DataDirError(
                f"data folder {path} cannot be used ({reason or error}): "
                "check its rights and the disk, or choose another with --data-dir"
            ) from error
        except DataDirError:
            files.close(lock)
            raise

    @classmethod
    def _locked(cls, path: Path, broker_id: BrokerId, files: FileSystem, lock: int, pool: LogPool) -> DataDir:
        files.truncate(lock, 0)
        try:
            files.write(lock, [f"{os.getpid()}\n".encode("ascii")], 0)
        except OSError as error:
            if not is_no_space(error):  # the pid only serves the error message of a second process on this folder
                raise
        found = _read_identity(files, path)
        if found is not None and found.broker_id != broker_id:
            raise DataDirError(
                f"data folder {path} belongs to broker {found.broker_id!r}, not to {broker_id!r}: "
                "give each broker a folder of its own with --data-dir, or start it with its own --id"
            )
        boot_id = files.boot_id()
        proof = Proof(folder_same=False, page_cache_survived=False)
        if found is not None:
            same_boot = found.boot_id != "" and found.boot_id == boot_id
            proof = Proof(found.last_incarnation is not None or found.lives != (), found.clean or same_boot)
        manifest = _find_manifest(files, path, is_expected=found is not None and found.manifest)
        data_dir = cls(path, files, lock, found or Identity(_VERSION, broker_id), proof, manifest, pool)
        if found is None:
            data_dir._write(data_dir._identity)
        data_dir._finish_removals()
        return data_dir

    @property
    def cluster_id(self) -> str | None:
        """None before the broker first registered."""
        return self._identity.cluster_id

    @property
    def last_incarnation(self) -> Incarnation | None:
        """The incarnation of the last recorded registration."""
        return self._identity.last_incarnation

    @property
    def lives(self) -> tuple[str, ...]:
        """Ids of the lives of which one may be the last registered."""
        return self._identity.lives

    @property
    def settled(self) -> Incarnation:
        """The last incarnation that is known to have had no log here but those that the metadata gave it; 0: none. Logs
        that were made since then were given by later metadata."""
        return self._identity.settled

    def settle(self) -> None:
        """The incarnation that was recorded last has no log here but those that the metadata give it. Blocking. Raises
        DataDirError, NoSpace."""
        self._write(replace(self._identity, settled=self._identity.last_incarnation or Incarnation(0)))

    @property
    def left_in_order(self) -> bool:
        """The folder was left in order: everything in it was synced."""
        return self._left_in_order

    def begin_life(self, life_id: str) -> None:
        """Records the life's id; called before this life asks to be registered. Raises DataDirError, NoSpace."""
        self._write(replace(self._identity, lives=(*self._identity.lives, life_id)[-MAX_LIVES:]))

    # Keeps R22.
    def proof(self) -> Proof:
        """The proof of the folder as it was found at the start."""
        return self._proof

    def record(self, cluster_id: str, incarnation: Incarnation) -> None:
        """Records durably that this broker was registered. Raises NoSpace, and DataDirError when the folder belongs to
        another cluster."""
        self.check_cluster(cluster_id)
        lives = self._identity.lives[-1:]  # it may be declared dead, and register once more
        self._write(replace(self._identity, cluster_id=cluster_id, last_incarnation=incarnation, lives=lives))
        self._recorded = True

    def check_cluster(self, cluster_id: str) -> None:
        """Raises DataDirError when the folder belongs to another cluster."""
        own = self._identity.cluster_id
        if own is not None and own != cluster_id:
            raise DataDirError(
                f"data folder {self.path} belongs to cluster {own}, but this is cluster {cluster_id}: "
                "keep it, for it may hold records that nobody else has, and start the broker with the raft_peers and "
                "the namespace of its own cluster, or give it another folder here with --data-dir"
            )

    def mark_dirty(self) -> None:
        """Removes the clean marker; called before the first append of a life. From now on a loss of power may lose
        records that were not synced. Where there was no manifest, there is one.

        This replaces the basis of the proof, so the registration that carried the proof must have been applied and
        recorded before: otherwise a crash in between would turn a lost page cache into one that survived. Raises
        InvariantViolation, DataDirError, NoSpace.
        """
        if not self._recorded:
            raise InvariantViolation(f"{self.path}: marked dirty before this life's registration was recorded")
        self.write_manifest()
        self._write(replace(self._identity, clean=False, boot_id=self.files.boot_id(), manifest=True))

    def mark_clean(self) -> None:
        """Writes the clean marker; called after all logs were synced and closed. Raises DataDirError, NoSpace."""
        self.write_manifest()
        self._write(replace(self._identity, clean=True))

    def _write(self, identity: Identity) -> None:
        if identity == self._identity and _is_written(self.files, self.path, identity):
            return
        content = _encode(identity)
        try:
            # The copy is written first: if the two differ, the copy is the newer one.
            replace_file(self.files, self.path / COPY_FILE, content)
            replace_file(self.files, self.path / IDENTITY_FILE, content)
        except OSError as error:
            raise self._not_written(IDENTITY_FILE, error) from error
        self._identity = identity

    def _not_written(self, name: str, error: OSError) -> NoSpace | DataDirError:
        if is_no_space(error):
            return NoSpace(f"{self.path / name} cannot be written ({error})")
        return DataDirError(
            f"{self.path / name} cannot be written ({error.strerror or error}): check its rights and the disk"
        )

    def write_manifest(self) -> None:
        """Makes durable what has changed in the manifest. Raises DataDirError, NoSpace."""
        try:
            self.manifest.write()
        except OSError as error:
            raise self._not_written(MANIFEST_FILE, error) from error

    # ---- partitions

    def partition_directory(self, key: PartitionKey) -> Path:
        """Where the log of that life of that partition lies; it need not exist."""
        return partition_directory(self.path, key)

    def list_partitions(self) -> list[PartitionKey]:
        """The partitions that have a folder, sorted."""
        return list_partitions(self.files, self.path)

    def known_partitions(self) -> list[PartitionKey]:
        """The partitions that have a folder, or must have one, sorted."""
        named = (partition_of(self.path / name) for name in self.manifest.names)
        return sorted({*self.list_partitions(), *(key for key in named if key is not None)})

    def manifest_entry(self, key: PartitionKey) -> ManifestEntry:
        """That of the partition's log; it need not exist."""
        return self.manifest.entry(str(partition_directory(Path(), key)))

    def remove_partition(self, key: PartitionKey, *, sets_aside: bool = False) -> Path | None:
        """Removes the partition's folder durably, and that of its stream with the last one; its log must be closed. A
        crash leaves the whole folder or none of it listed; the next start removes the rest. `sets_aside`: it is kept
        under another name, which is returned. Raises DataDirError."""
        directory = self.partition_directory(key)
        is_there = self.files.is_directory(directory)
        removed = self._free_name(directory) if sets_aside else directory.with_name(directory.name + _REMOVED_SUFFIX)
        try:
            if not sets_aside and self.files.is_directory(removed):
                self.files.remove_tree(removed)  # the rest of a removal that failed
            if is_there:
                self.files.rename(directory, removed)
                self.files.sync_directory(directory.parent)
            if sets_aside:
                return removed if is_there else None
            self.files.remove_tree(removed)
            # Another partition of the stream may begin at this moment: the folder goes only while it holds nothing.
            self.files.remove_empty_directory(directory.parent)
        except OSError as error:
            raise DataDirError(
                f"{directory} cannot be removed ({error.strerror or error}): check its rights"
            ) from error
        return None

    def file_checkpoint(self, key: PartitionKey) -> None:
        """Writes into the partition's folder what the manifest says of its log, which is to be set aside. So it stays
        known how far it was committed. Blocking; the log must be closed. Raises DataDirError."""
        directory, committed = self.partition_directory(key), self.manifest_entry(key).committed
        if committed is None or committed.recovery_point is None or not self.files.is_directory(directory):
            return
        filed = read_offsets(self.files, directory)
        start = committed.log_start_offset if filed is None else filed.log_start_offset
        ends = [(committed.high_watermark, committed.recovery_point), *([] if filed is None else [filed[:2]])]
        high_watermark, recovery_point = map(max, zip(*ends, strict=True))
        try:
            write_offsets(self.files, directory, OffsetCheckpoint(high_watermark, recovery_point, start))
        except OSError as error:
            raise DataDirError(
                f"{directory} cannot be written ({error.strerror or error}): check its rights and the disk"
            ) from error

    def take_back(self, key: PartitionKey) -> Path | None:
        """Where the partition has no log, the one that was set aside last is its log again, durably, and
        `is_taken_back`. Returns the name that this one had; None: there is none, or the partition has a log. Blocking.
        Raises DataDirError, NoSpace."""
        directory = self.partition_directory(key)
        if self.files.is_directory(directory) or not self.files.is_directory(directory.parent):
            return None
        set_aside = re.compile(re.escape(directory.name + SET_ASIDE_SUFFIX) + r"(?:-(\d+))?")
        found = filter(None, map(set_aside.fullmatch, self.files.names(directory.parent)))
        newest = max(found, key=lambda name: int(name[1] or 1), default=None)
        if newest is None:
            return None
        last = directory.with_name(newest[0])
        try:  # whatever a crash leaves, the log has no other name without the file
            replace_file(self.files, last / TAKEN_BACK_FILE, f"{last.name}\n".encode())
        except OSError as error:
            raise self._not_written(str((last / TAKEN_BACK_FILE).relative_to(self.path)), error) from error
        try:
            self.files.rename(last, directory)
            self.files.sync_directory(directory.parent)
        except OSError as error:
            raise DataDirError(f"{last} cannot be renamed ({error.strerror or error}): check its rights") from error
        return last

    def is_taken_back(self, key: PartitionKey) -> bool:
        """Whether the partition's log was taken back, and `count` was not called for it since then. Blocking. Raises
        OSError."""
        return read_file(self.files, self.partition_directory(key) / TAKEN_BACK_FILE) is not None

    def count(self, key: PartitionKey) -> None:
        """The log that was taken back counts as a copy of the partition, durably. Blocking. Raises OSError."""
        directory = self.partition_directory(key)
        if self.is_taken_back(key):
            self.files.remove(directory / TAKEN_BACK_FILE)
            self.files.sync_directory(directory)

    def _free_name(self, directory: Path) -> Path:
        """Returns the name under which it is set aside: `0-1.lost`, and `0-1.lost-2` where that is taken."""
        taken = {*self.files.names(directory.parent)} if self.files.is_directory(directory.parent) else set()
        first = directory.name + SET_ASIDE_SUFFIX
        names = chain([first], (f"{first}-{number}" for number in count(2)))
        return directory.with_name(next(name for name in names if name not in taken))

    def _finish_removals(self) -> None:
        """A process may have died at any step of `remove_partition`, or before the first partition of a stream had a
        folder. Called before any log is opened."""
        for stream in self.files.names(self.path):
            if _STREAM_NAME.fullmatch(stream) and self.files.is_directory(self.path / stream):
                for name in self.files.names(self.path / stream):
                    if name.endswith(_REMOVED_SUFFIX):
                        self.files.remove_tree(self.path / stream / name)
                with suppress(OSError):  # an empty folder that stays does no harm
                    self.files.remove_empty_directory(self.path / stream)

    def close(self) -> None:
        """Lets go of the lock."""
        self.pool.reading.close()
        self.files.close(self._lock)


def _find_manifest(files: FileSystem, path: Path, *, is_expected: bool) -> Manifest:
    if not is_expected:
        return Manifest(files, path, {})
    manifest = Manifest.found(files, path)
    if manifest.is_lost:
        _log.error(
            "%s and its copy are missing or damaged: the logs that are here count as whole, as far as they say so"
            " themselves, and those that are missing as lost; the manifest is written anew",
            path / MANIFEST_FILE,
        )
    return manifest


def _encode(identity: Identity) -> bytes:
    values = asdict(identity)
    return (json.dumps({**values, "crc32c": _crc(values)}, indent=2) + "\n").encode()


def _crc(values: Mapping[str, object]) -> str:
    return f"{crc32c(json.dumps(values, sort_keys=True).encode()):08x}"


def _is_written(files: FileSystem, path: Path, identity: Identity) -> bool:
    content = _encode(identity)
    return all(read_file(files, path / name) == content for name in (IDENTITY_FILE, COPY_FILE))


def _read_identity(files: FileSystem, path: Path) -> Identity | None:
    """None: there is none. Raises DataDirError."""
    content, copy = (read_file(files, path / name) for name in (IDENTITY_FILE, COPY_FILE))
    if content is None and copy is None:
        return None
    try:
        return _decode(content or b"", path / IDENTITY_FILE)
    except (ValueError, KeyError, TypeError) as error:
        try:
            return _decode(copy or b"", path / COPY_FILE)
        except (ValueError, KeyError, TypeError):
            raise DataDirError(
                f"{path / IDENTITY_FILE} is damaged ({error}), and so is its copy: restore it from a backup; without "
                "one move the folder aside, keep it, and start this broker with an empty one and --replace"
            ) from error


def _decode(content: bytes, path: Path) -> Identity:
    """Raises ValueError, KeyError, TypeError when it is damaged, DataDirError when it is of another version."""
    values = json.loads(content)
    crc = values.pop("crc32c", None)
    if crc is not None and crc != _crc(values):  # folders of earlier versions have no CRC
        raise ValueError(f"its CRC-32C is {_crc(values)}, not {crc}")
    if values["version"] != _VERSION:
        raise DataDirError(
            f"{path} has version {values['version']}, this Tidelog reads version {_VERSION}: "
            "start the version that wrote it"
        )
    values["lives"] = tuple(values.get("lives", ()))  # folders of earlier versions have none
    values["manifest"] = values.get("manifest", False)
    values["settled"] = values.get("settled", 0)
    return Identity(**{field.name: values[field.name] for field in fields(Identity)})


def partition_directory(path: Path, key: PartitionKey) -> Path:
    """In the data folder `path`."""
    return path / f"{key.stream}-{key.stream_incarnation}" / f"{key.partition}-{key.partition_incarnation}"


def partition_of(directory: Path) -> PartitionKey | None:
    """Which partition's folder that is, by its name."""
    stream = _STREAM_NAME.fullmatch(directory.parent.name)
    partition = _PARTITION_NAME.fullmatch(directory.name)
    if stream is None or partition is None:
        return None
    return PartitionKey(
        StreamName(stream[1]), Incarnation(int(stream[2])), int(partition[1]), Incarnation(int(partition[2]))
    )


def list_partitions(files: FileSystem, path: Path) -> list[PartitionKey]:
    """The partitions that have a folder in the data folder `path`, sorted."""
    found = []
    for stream in files.names(path):
        if _STREAM_NAME.fullmatch(stream) and files.is_directory(path / stream):
            found += [partition_of(path / stream / name) for name in files.names(path / stream)]
    return sorted(key for key in found if key is not None)


@contextmanager
def kept_from_brokers(path: Path) -> Iterator[None]:
    """Keeps brokers from starting on the data folder `path` while a tool works in it. A folder that never belonged to a
    broker, or that cannot be written, needs no lock. Raises DataDirError when a broker is running on it."""
    if not {IDENTITY_FILE, COPY_FILE}.intersection(REAL_FILES.names(path)):
        yield
        return
    try:
        lock = REAL_FILES.lock(path / LOCK_FILE)
    except OSError:
        yield
        return
    if lock is None:
        owner = (read_file(REAL_FILES, path / LOCK_FILE) or b"").decode("ascii", "replace").strip() or "unknown"
        raise DataDirError(f"data folder {path} is in use by process {owner}: stop that broker first")
    try:
        yield
    finally:
        REAL_FILES.close(lock)
