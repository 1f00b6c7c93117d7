"""The data folder of one broker, made by production code, in the three states that a start may find it in; and what it
must hold: the truth."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NoReturn

from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.files import RealFiles
from metadata.raft.journal import Entry, Journal, SnapshotHead
from metadata.raft.snapshot import encode_snapshot
from wire.batch import BatchBuilder, BatchHeader, iter_batches
from wire.types import BrokerId, Buffer, Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

BROKER = BrokerId("b1")
KEY = PartitionKey(StreamName("s"), Incarnation(3), 0, Incarnation(3))
CONFIG = LogConfig(segment_bytes=2500, index_interval_bytes=500, tail_bytes=0)
RECORDS = 150
CHECKPOINTED = 130
EPOCHS = {0: 1, 40: 2, 90: 5}
"""First offset -> LeaderEpoch."""
ENTRIES = 40
SNAPSHOT_STATE = b"the state of the cluster" * 20


class State(Enum):
    CLOSED = "closed in order"
    KILLED = "the process was killed"
    POWER_LOST = "power was lost"


class Boot(RealFiles):
    """The operating system in its `number`-th boot."""

    def __init__(self, number: int) -> None:
        self.number = number

    def boot_id(self) -> str:
        return f"boot-{self.number}"


def files_of_next_life(state: State) -> Boot:
    return Boot(2 if state is State.POWER_LOST else 1)


def end_process(reason: str) -> NoReturn:
    raise AssertionError(reason)


@dataclass(slots=True)
class Truth:
    batches: dict[int, bytes] = field(default_factory=dict)
    """By base offset, as stamped."""
    headers: list[BatchHeader] = field(default_factory=list)
    epochs: tuple[tuple[int, int], ...] = ()
    log: bytes = b""
    journal: list[Entry] = field(default_factory=list)


def append_all(log: PartitionLog, truth: Truth, start: int, end: int, each: int) -> None:
    """The batches between two offsets, `each` records in one."""
    while log.log_end_offset < end:
        base = log.log_end_offset
        epoch = EPOCHS[max(first for first in EPOCHS if first <= base)]
        builder = BatchBuilder()
        following = min((first for first in (*EPOCHS, end) if first > base), default=end)
        for number in range(base, min(base + each, following)):
            builder.add_record(b"value %d " % number + b"." * 60, key=b"k%d" % (number % 7), timestamp=1000 * number)
        parts, header = builder.build(1).stamp(base, LeaderEpoch(epoch))
        log.append(parts, [header])
        truth.batches[base] = b"".join(parts)
        truth.headers.append(header)


def make_folder(path: Path, state: State) -> Truth:
    """Of a broker that ran, replicated a partition, and ended as `state` says."""
    files, truth = Boot(1), Truth()
    data = DataDir.open(path, BROKER, files=files)
    data.begin_life("life-1")
    data.record("cluster-1", Incarnation(7))
    data.mark_dirty()
    log, _ = PartitionLog.open(data.partition_directory(KEY), CONFIG, files=files)
    append_all(log, truth, 0, CHECKPOINTED, 3)
    log.sync()
    log.checkpoint_high_watermark(Offset(CHECKPOINTED - 3))
    append_all(log, truth, CHECKPOINTED, RECORDS, 3)
    log.sync()  # reported as durable, and not in the checkpoint yet
    truth.log = b"".join(truth.batches[base] for base in sorted(truth.batches))
    truth.epochs = tuple((entry.epoch, entry.start) for entry in log.epochs.entries)
    truth.journal = make_raft(path / "raft")
    if state is State.CLOSED:
        log.checkpoint_high_watermark(Offset(RECORDS))
        log.close()
        data.mark_clean()
    data.close()
    return truth


def make_raft(directory: Path) -> list[Entry]:
    directory.mkdir()
    journal = Journal(directory / "journal", snapshot=None, exit_process=end_process, boot_id="boot-1")
    journal.setCurrentTerm(3, "127.0.0.1:7002")
    journal.mark_joined()
    for index in range(1, ENTRIES + 1):
        journal.add(b"command %d" % index, index, 1 + index // 20)
        journal.setRaftCommitIndex(index - 1)
        journal.sync()
    head = SnapshotHead(journal[10], journal[9])
    (directory / "snapshot").write_bytes(encode_snapshot(head, SNAPSHOT_STATE))
    journal.deleteEntriesTo(9)
    for index in range(ENTRIES + 1, ENTRIES + 11):
        journal.add(b"command %d" % index, index, 3)
        journal.sync()
    entries = journal[0 : len(journal)]
    journal._destroy()
    return entries


def copy_folder(source: Path, target: Path) -> None:
    if target.exists():
        shutil.rmtree(target)
    shutil.copytree(source, target)


def content(log: PartitionLog) -> bytes:
    """All of it, from the files."""
    return b"".join(segment.path.read_bytes()[: segment.size] for segment in log.segments)


def batches_in(data: Buffer) -> dict[int, bytes]:
    return {header.base_offset: bytes(data[at : at + header.size]) for at, header in iter_batches(data)}
