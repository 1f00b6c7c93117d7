"""One flipped bit in one file of a broker's data folder, and the next start of the broker.

Invariants for any bit: - a batch that is read is the one that was written, or the reading fails and says so; - the
replica claims to be sound only while it holds everything that it reported as durable; - the missing records then come
back from the leader, through the repair and the follower of production code, and the next
  start finds nothing wrong: no crash loop;
- the metadata group's files return the written bytes, or are refused (RaftDamage, set aside where there are others).

One thing cannot be known: after a loss of power, data synced since the last checkpoint looks like a torn write when
it is damaged. There, and there alone, a shorter log that claims to be sound is allowed (`State.POWER_LOST`).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from dataplane.broker.reading.readable_role import read_checked
from dataplane.broker.replica import Replica, mark, repair
from dataplane.log.partition_log import PartitionLog
from dataplane.log.recovery.damage import read_mark
from dataplane.log.storage.data_dir import DataDir
from dataplane.log.storage.log_errors import DataDirError
from dataplane.replica.replica_state_machine import RepairMode
from metadata.raft.journal import Journal
from metadata.raft.snapshot import decode_snapshot
from metadata.raft.types import RaftDamage, RaftStorageError
from tests.bit_flips.copying import copy_from
from tests.bit_flips.folder import (
    BROKER,
    CHECKPOINTED,
    CONFIG,
    KEY,
    RECORDS,
    SNAPSHOT_STATE,
    Boot,
    State,
    Truth,
    append_all,
    batches_in,
    content,
    copy_folder,
    end_process,
    files_of_next_life,
    make_folder,
)
from wire.errors import CorruptData
from wire.types import Offset


class Broken(AssertionError):
    """A promise was not kept."""


@dataclass(frozen=True, slots=True)
class Flip:
    state: State
    file: str
    """Relative to the data folder."""
    byte: int
    bit: int

    def __str__(self) -> str:
        return f"bit {self.bit} of byte {self.byte} of {self.file}, {self.state.value}"


@dataclass(slots=True)
class Tally:
    """(kind of file, outcome) -> number of flips."""

    counted: Counter[tuple[str, str]] = field(default_factory=Counter)

    def __str__(self) -> str:
        return "\n".join(f"{kind:<30} {outcome:<55} {n:>6}" for (kind, outcome), n in sorted(self.counted.items()))


class Bench:
    """Folders in each state, a leader's log, and room to work in."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.truth: dict[State, Truth] = {}
        self.sizes: dict[State, list[tuple[str, int]]] = {}
        for state in State:
            folder = room / state.name
            self.truth[state] = make_folder(folder, state)
            files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
            self.sizes[state] = [(str(path.relative_to(folder)), path.stat().st_size) for path in files]
        self.leader, _ = PartitionLog.open(room / "leader", CONFIG)
        append_all(self.leader, Truth(), 0, CHECKPOINTED, 3)
        append_all(self.leader, Truth(), CHECKPOINTED, RECORDS, 3)
        self.leader.sync()

    def flips(self, seed: int) -> Iterator[Flip]:
        """Without end. Half of them fall on a byte of the folder, half on a file of it: there are many more bytes of
        segments than of anything else."""
        rng = Random(seed)
        while True:
            state = rng.choice(list(State))
            files = [(name, size) for name, size in self.sizes[state] if size]
            if rng.random() < 0.5:
                ((name, size),) = rng.choices(files, [size for _, size in files])
            else:
                name, size = rng.choice(files)
            yield Flip(state, name, rng.randrange(size), rng.randrange(8))

    def try_flip(self, flip: Flip, tally: Tally) -> None:
        """Raises Broken."""
        folder = self.room / "work"
        copy_folder(self.room / flip.state.name, folder)
        path = folder / flip.file
        data = bytearray(path.read_bytes())
        data[flip.byte] ^= 1 << flip.bit
        path.write_bytes(data)
        kind = "segment" if path.suffix == ".log" else "index" if path.suffix == ".index" else path.name
        if path.suffix == ".snapshot":
            kind = "derived state"
        try:
            outcome = self._raft(flip, folder) if flip.file.startswith("raft/") else self._partition(flip, folder)
        except Broken:
            raise
        except Exception as error:
            raise Broken(f"{flip}: {error!r}") from error
        tally.counted[kind, outcome] += 1

    # ---- the log

    def _partition(self, flip: Flip, folder: Path) -> str:
        files, truth = files_of_next_life(flip.state), self.truth[flip.state]
        try:
            data_dir = DataDir.open(folder, BROKER, files=files)
        except DataDirError as error:
            if str(folder) not in str(error):
                raise Broken(f"{flip}: refused without a name: {error}") from error
            return "refused with a sentence"
        try:
            proof = data_dir.proof()
            if not proof.folder_same or proof.page_cache_survived != (flip.state is not State.POWER_LOST):
                raise Broken(f"{flip}: the folder proves {proof}")
            replica = Replica(KEY, data_dir.partition_directory(KEY), CONFIG, files=files)
            report = replica.open(page_cache_survived=proof.page_cache_survived)
            log = replica.log
            assert log is not None
            found = report.damaged
            met = self._read_everything(flip, log, truth)
            outcome = "damage seen at the open" if found else "damage met by a reader" if met else "nothing lost"
            if found is None and met is None:
                outcome = self._claims_soundness(flip, log) or outcome
            if flip.file.endswith(".log") and found is None and met is None and "torn" not in outcome:
                raise Broken(f"{flip}: nobody noticed")
            if flip.file.endswith(".log") and found is None and met is not None:
                self._scrub(flip, log)
            if found or met:
                mark(replica._files, replica.directory, found or met or "", replica.key)
                log.close()
                again = Replica(KEY, data_dir.partition_directory(KEY), CONFIG, files=files)
                if again.open(page_cache_survived=True).damaged is None:
                    raise Broken(f"{flip}: the next start has forgotten it")
                assert again.log is not None
                log = again.log
                repair(log, KEY, RepairMode.COPY, time_ns=0)
            self._comes_back(flip, log, truth, files)
        finally:
            data_dir.close()
        return outcome

    def _read_everything(self, flip: Flip, log: PartitionLog, truth: Truth) -> str | None:
        """As consumers and followers do, from many places; returns the error of the first reader that met damage."""
        met = None
        end = log.log_end_offset
        for start in range(log.log_start_offset, end, 7):
            offset = Offset(start)
            while offset < end:
                try:
                    data, _ = read_checked(log, offset, 900, end)
                except CorruptData as error:
                    met = met or str(error)
                    break
                for base, batch in batches_in(data).items():
                    if truth.batches.get(base) != batch:
                        raise Broken(f"{flip}: a wrong batch at offset {base} was served")
                    offset = Offset(base + 1)
                if not data:
                    raise Broken(f"{flip}: offset {offset} below {end} is not there")
                offset = Offset(max(header.end_offset for header in truth.headers if header.base_offset < offset))
                if start:
                    break  # one answer from each place, all of it from the beginning
        for number in range(0, RECORDS, 11):
            try:
                at = log.offset_for_timestamp(1000 * number, end)
            except CorruptData as error:
                met = met or str(error)
                continue
            if at != (number if number < end else None):
                raise Broken(f"{flip}: time {1000 * number} was looked up as offset {at}")
        return met

    def _claims_soundness(self, flip: Flip, log: PartitionLog) -> str | None:
        if log.log_end_offset == RECORDS:
            return None
        if flip.state is State.POWER_LOST and log.log_end_offset >= CHECKPOINTED and flip.file.endswith(".log"):
            return "taken for a torn write (power was lost)"
        raise Broken(f"{flip}: it claims to be sound and ends at {log.log_end_offset}, reported was {RECORDS}")

    @staticmethod
    def _scrub(flip: Flip, log: PartitionLog) -> None:
        try:
            for segment in log.segments:
                log.checking.check(segment.base_offset, 0, 1 << 30, threading.Event())
        except CorruptData:
            return
        raise Broken(f"{flip}: the scrubber did not find it")

    def _comes_back(self, flip: Flip, log: PartitionLog, truth: Truth, files: Boot) -> None:
        copy_from(self.leader, log, log.high_watermark)
        if content(log) != truth.log:
            raise Broken(f"{flip}: the repaired log differs")
        if tuple((entry.epoch, entry.start) for entry in log.epochs.entries) != truth.epochs:
            raise Broken(f"{flip}: the repaired log has the epochs {log.epochs.entries}")
        if read_mark(files, log.directory) is not None:
            raise Broken(f"{flip}: the mark stays")
        log.close()
        again, report = PartitionLog.open(log.directory, CONFIG, files=files, page_cache_survived=True)
        if report.damaged is not None or again.log_end_offset != RECORDS:
            raise Broken(f"{flip}: after the repair: {report}")
        again.close()

    # ---- the metadata group

    def _raft(self, flip: Flip, folder: Path) -> str:
        truth, boot = self.truth[flip.state], files_of_next_life(flip.state).boot_id()
        directory = folder / "raft"
        try:
            head, state = decode_snapshot((directory / "snapshot").read_bytes(), directory / "snapshot")
            journal = Journal(directory / "journal", snapshot=head, exit_process=end_process, boot_id=boot)
        except RaftDamage:
            return "set aside, synchronises from the others"
        except RaftStorageError as error:
            if str(directory) not in str(error):
                raise Broken(f"{flip}: refused without a name: {error}") from error
            return "refused with a sentence"
        entries = journal[0 : len(journal)]
        known = (journal.getCurrentTerm(), journal.getVotedForNodeId(), journal.joined)
        journal._destroy()
        if state != SNAPSHOT_STATE:
            raise Broken(f"{flip}: another state was restored")
        if entries == truth.journal and known == (3, "127.0.0.1:7002", True):
            return "nothing lost"
        if flip.state is State.POWER_LOST and entries == truth.journal[: len(entries)]:
            return "taken for a torn write (power was lost)"
        raise Broken(f"{flip}: the journal gave {len(entries)} entries, {known}")
