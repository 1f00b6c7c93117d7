"""`tidelog log`: the content of a broker's data folder, for an operator while that broker is stopped.

No cluster is asked and, but for `index --rebuild`, nothing is written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from tidelog.cli.terminal.session import Failure, console, fail, print_json
from tidelog.process.shadowing import check_not_hidden

if TYPE_CHECKING:
    from dataplane.encryption.keyring import Keyring
    from dataplane.log.offline.inspection import Piece, StoredBatch
    from dataplane.log.offline.log_verification import PartitionReport
    from tidelog.client.base.records import Record
    from wire.types import PartitionKey

REFUSED = 2
"""Exit status where no log was read: the command line is wrong, or a broker uses the folder."""


class _Refused(Failure):
    exit_code = REFUSED


_master_key_file = click.option(
    "--master-key-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Keys of encrypted batches, as of `tidelog server`; also one key in $TIDELOG_MASTER_KEY.",
)
_as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def log() -> None:
    """The data folder of a stopped broker.

    \b
    A data folder holds a folder for each partition, and that one file for each segment of the log:
      DATA/STREAM-INCARNATION/PARTITION-INCARNATION/00000000000000000000.log
      (flights-4/0-4: the stream flights, made by the cluster's 4th change, and its partition 0)

    \b
    Is everything sound?             tidelog log verify DATA
    Batches around offset 5000       tidelog log dump DATA/flights-4/0-4 --offset 5000 --limit 3
    And which records are that?      tidelog log dump DATA/flights-4/0-4 --offset 5000 --limit 3 --records
    """
    check_not_hidden("dataplane")


# ---------------------------------------------------------------------------- dump


@log.command()
@click.argument("path", metavar="PARTITION_DIR|SEGMENT", type=click.Path(path_type=Path, exists=True))
@click.option("--offset", type=click.IntRange(min=0), help="Begin with the batch that holds this offset.")
@click.option("--limit", type=click.IntRange(min=1), help="End after so many batches (with --records: records).")
@click.option("--records", is_flag=True, help="Show the records, as `tidelog subscribe` does, not the batches.")
@_master_key_file
@_as_json
def dump(
    path: Path, offset: int | None, limit: int | None, records: bool, master_key_file: Path | None, as_json: bool
) -> None:
    """Show the batches of a partition's folder, or of one segment file, in the order in which they lie there.

    \b
    position  byte in the file          offsets   first and last that the batch covers
    epoch     leader epoch              records   how many; "commit" or "abort" for the end of a transaction; "control"
                                                  for a batch of the replicas' own
    stored    compression, the master key of an encrypted body, id/epoch and sequence of its producer, whether it is
              part of a transaction, its CRC

    Records of transactions are shown whatever became of these.

    Damage is shown where it lies and does not end the listing: batches behind it are shown as well. Exit status 1 when
    there was any. With --json each line is an object.
    """
    keyring = _keyring(master_key_file)
    key = _partition_of(path)
    shown = _dumped_records(path, offset, key, keyring) if records else _dumped_batches(path, offset)
    damaged = False
    file = ""
    for number, found in enumerate(shown):
        if number == limit:
            break
        damaged = damaged or "damage" in found.facts
        if as_json:
            print_json(found.facts)
            continue
        if not records and found.facts["file"] != file:
            file = found.facts["file"]
            click.echo(f"{file}\n{_TITLES}")
        sys.stdout.buffer.write(found.line + b"\n")
        sys.stdout.flush()
    if damaged:
        sys.exit(1)


class _Shown:
    """A line of a dump."""

    def __init__(self, facts: dict[str, Any], line: bytes) -> None:
        self.facts = facts
        self.line = line


_TITLES = f"{'position':>10} {'bytes':>9}  {'offsets':<21} {'epoch':>5} {'records':>8}  {'first timestamp':<30}  stored"


def _batch_line(facts: dict[str, Any]) -> bytes:
    start = f"{facts['position']:>10} {facts['size']:>9}  "
    if "base_offset" not in facts:
        return f"{start}DAMAGED: {facts['damage']}".encode()
    stored = [facts["compression"]] if facts["compression"] != "none" else []
    if facts["master_key"] is not None:
        stored.append(f"encrypted with {facts['master_key']!r}")
    producer = facts["producer"]
    if facts["marker"] is not None:
        stored.append(f"ends the transaction of producer {producer['id']}, whose next epoch is {producer['epoch']}")
    elif producer is not None:
        stored.append(f"producer {producer['id']}/{producer['epoch']} from {producer['sequence']} on")
        if facts["transactional"]:
            stored.append("in a transaction")
    stored.append(f"DAMAGED: {facts['damage']}" if "damage" in facts else "CRC ok")
    offsets = f"{facts['base_offset']}..{facts['end_offset'] - 1}"
    records = facts["marker"] or ("control" if facts["control"] else facts["records"])
    return (
        f"{start}{offsets:<21} {facts['leader_epoch']:>5} {records:>8}  {facts['first_timestamp']:<30}  "
        f"{', '.join(stored)}"
    ).encode()


def _pieces(path: Path, offset: int | None) -> Iterator[tuple[Path, Piece]]:
    """Yields pieces of each segment, from the one on that holds `offset`."""
    from dataplane.log.offline.inspection import StoredBatch, read_segment
    from dataplane.log.storage.files import REAL_FILES

    for file in _segment_files(path, offset):
        handle = REAL_FILES.open(file)
        try:
            for piece in read_segment(REAL_FILES, handle, 0, REAL_FILES.size(handle)):
                if isinstance(piece, StoredBatch):
                    if offset is None or piece.header.end_offset > offset:
                        yield file, piece
                elif not piece.zeros:
                    yield file, piece
        finally:
            REAL_FILES.close(handle)


def _segment_files(path: Path, offset: int | None) -> list[Path]:
    if path.is_file():
        return [path]
    files = sorted(file for file in path.glob("*.log") if file.stem.isdigit())
    if not files:
        inside = sorted(
            {str(file.parent) for file in path.glob("*/*/*.log")} | {str(f.parent) for f in path.glob("*/*.log")}
        )
        hint = f"; folders of partitions in it: {', '.join(inside[:5])}" if inside else ""
        raise click.UsageError(f"{path} holds no segment of a log (digits.log){hint}")
    first = 0
    if offset is not None:
        first = max(0, sum(int(file.stem) <= offset for file in files) - 1)
    return files[first:]


def _dumped_batches(path: Path, offset: int | None) -> Iterator[_Shown]:
    from dataplane.log.offline.inspection import StoredBatch

    for file, piece in _pieces(path, offset):
        facts: dict[str, Any] = {"file": file.name, "position": piece.position}
        if isinstance(piece, StoredBatch):
            facts |= _batch_facts(piece)
        else:
            facts |= {"size": piece.size, "damage": piece.reason}
        yield _Shown(facts, _batch_line(facts))


def _batch_facts(batch: StoredBatch) -> dict[str, Any]:
    from dataplane.encryption.bodies import key_id_of
    from tidelog.client.base.read_positions import timestamp_to_text
    from wire.batch import HEADER_SIZE
    from wire.errors import CorruptData
    from wire.types import NO_PRODUCER

    header = batch.header
    try:
        compression = header.compression.name.lower()
    except CorruptData:
        compression = "unknown"
    facts: dict[str, Any] = {
        "size": header.size,
        "base_offset": header.base_offset,
        "end_offset": header.end_offset,
        "leader_epoch": header.leader_epoch,
        "records": 0 if header.is_control else header.record_count,
        "control": header.is_control,
        "transactional": header.is_transactional,
        "marker": header.marker.name.lower() if header.marker is not None else None,
        "first_timestamp": timestamp_to_text(header.first_timestamp),
        "last_timestamp": timestamp_to_text(header.last_timestamp),
        "producer": None
        if header.producer_id == NO_PRODUCER
        else {"id": header.producer_id, "epoch": header.producer_epoch, "sequence": header.base_sequence},
        "compression": compression,
        "encrypted": header.is_encrypted,
        "master_key": key_id_of(batch.data[HEADER_SIZE:]) if header.is_encrypted else None,
        "crc": "ok" if batch.fault is None else "wrong",
    }
    return facts if batch.fault is None else facts | {"damage": batch.fault}


def _dumped_records(path: Path, offset: int | None, key: PartitionKey | None, keyring: Keyring) -> Iterator[_Shown]:
    import json

    from dataplane.encryption.bodies import BatchCipher
    from dataplane.log.offline.inspection import StoredBatch
    from tidelog.cli.records.records_json import to_json
    from wire.errors import Code, CorruptData, TidelogError

    cipher = BatchCipher(keyring, None)
    for file, piece in _pieces(path, offset):
        damage = piece.fault if isinstance(piece, StoredBatch) else piece.reason
        if damage is None and isinstance(piece, StoredBatch):
            try:
                for record in _records(piece, key, cipher.decrypted):
                    if offset is None or record.offset >= offset:
                        yield _Shown(json.loads(to_json(record)), _line(record))
                continue
            except (CorruptData, TidelogError) as error:
                if isinstance(error, TidelogError) and error.code is Code.NO_KEY:
                    fail(f"{error.message} (--master-key-file)")
                damage = str(error)
        yield _Shown(
            {"file": file.name, "position": piece.position, "damage": damage},
            f"damaged at byte {piece.position} of {file.name}: {damage}".encode(),
        )


def _records(batch: StoredBatch, key: PartitionKey | None, decrypted: Callable[[bytes], bytes]) -> Iterator[Record]:
    from tidelog.client.base.records import Record
    from wire.batch import RecordBatch

    data = decrypted(batch.data) if batch.header.is_encrypted else batch.data
    decoded = RecordBatch.decode(data, verify=False)
    stream, partition = (key.stream, key.partition) if key is not None else ("", 0)
    for row in zip(
        decoded.offsets.tolist(),
        decoded.timestamps.tolist(),
        decoded.keys,
        decoded.values,
        decoded.headers,
        strict=True,
    ):
        yield Record(stream, partition, *row)


def _line(record: Record) -> bytes:
    from tidelog.client.base.read_positions import timestamp_to_text

    place = f"{record.partition}:{record.offset}\t{timestamp_to_text(record.timestamp)}\t"
    return place.encode() + (record.key or b"") + b"\t" + (record.value or b"")


# ---------------------------------------------------------------------------- verify


@log.command()
@click.argument("data_dir", metavar="DATA_DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--force", is_flag=True, help="Also while a broker uses the folder; a record that is being written then looks torn."
)
@_master_key_file
@_as_json
def verify(data_dir: Path, force: bool, master_key_file: Path | None, as_json: bool) -> None:
    """Verify everything in a broker's data folder, and write nothing.

    \b
    Of every partition: both CRCs of every batch, that offsets and leader epochs continue from batch to batch and from
    segment to segment, that nothing is missing that was synced or committed here, and that indexes, checkpoints and
    the leader-epoch file agree with the batches. Of the metadata: the Raft journal and its snapshot.
    With master keys, that encrypted batches decrypt.

    \b
    Exit status 0   clean (the remains of a last write that was not synced before a crash are noted)
                1   damage, or a small file that contradicts the batches: both are listed
                2   nothing was verified: wrong arguments, or a broker is running on the folder

    A broker repairs by itself: small files from the batches, batches from the other replicas.
    """
    from contextlib import nullcontext

    from dataplane.log.offline.log_verification import verify_partition
    from dataplane.log.storage.data_dir import IDENTITY_FILE, kept_from_brokers, list_partitions, partition_directory
    from dataplane.log.storage.files import REAL_FILES
    from dataplane.log.storage.log_errors import DataDirError

    keyring = _keyring(master_key_file)
    if not (data_dir / IDENTITY_FILE).exists():
        raise click.UsageError(
            f"{data_dir} is no broker's data folder: it holds no {IDENTITY_FILE}; give the broker's data_dir"
        )
    try:
        with nullcontext() if force else kept_from_brokers(data_dir):
            reports: dict[PartitionKey, PartitionReport] = {}
            directories = {key: partition_directory(data_dir, key) for key in list_partitions(REAL_FILES, data_dir)}
            with _progress(sum(_bytes_of(directory) for directory in directories.values())) as on_bytes:
                for key, directory in directories.items():
                    reports[key] = verify_partition(REAL_FILES, directory, keyring=keyring, on_bytes=on_bytes)
            metadata = _verify_metadata(data_dir)
    except DataDirError as error:
        _refuse(f"{error}, or look at it as it is with --force")
    except OSError as error:
        fail(f"{error.filename or data_dir} cannot be read: {error.strerror}")
    clean = not metadata and all(report.is_clean for report in reports.values())
    if as_json:
        print_json(
            {"clean": clean, "partitions": [_report_json(k, r) for k, r in reports.items()], "metadata": metadata}
        )
    else:
        _show_reports(reports, metadata, clean)
    sys.exit(0 if clean else 1)


def _report_json(key: PartitionKey, report: PartitionReport) -> dict[str, Any]:
    return {
        "stream": key.stream,
        "partition": key.partition,
        "directory": str(report.directory),
        "clean": report.is_clean,
        "segments": report.segments,
        "batches": report.batches,
        "records": report.records,
        "bytes": report.bytes,
        "log_start_offset": report.log_start_offset,
        "log_end_offset": report.log_end_offset,
        "master_keys": report.master_keys,
        "findings": [
            {"kind": f.kind.value, "file": f.file, "position": f.position, "size": f.size, "message": f.message}
            for f in report.findings
        ],
        "findings_left_out": report.findings_left_out,
    }


def _show_reports(reports: dict[PartitionKey, PartitionReport], metadata: list[str], clean: bool) -> None:
    from rich.table import Table

    table = Table()
    for title in ("partition", "segments", "batches", "records", "bytes", "offsets", "master keys", ""):
        table.add_column(title, overflow="fold")
    for key, report in reports.items():
        table.add_row(
            str(key),
            f"{report.segments:,}",
            f"{report.batches:,}",
            f"{report.records:,}",
            f"{report.bytes:,}",
            f"{report.log_start_offset}..{report.log_end_offset}",
            "  ".join(f"{key_id}: {count:,}" for key_id, count in report.master_keys.items()),
            "clean" if report.is_clean else "[red]not clean[/]",
        )
    console().print(table)
    for report in reports.values():
        for finding in report.findings:
            where = "" if finding.position is None else f", byte {finding.position}"
            where += "" if finding.size is None else f" ({finding.size} bytes)"
            console().print(
                f"{finding.kind.value}: {report.directory / finding.file}{where}: {finding.message}",
                highlight=False,
                markup=False,
            )
        if report.findings_left_out:
            console().print(f"{report.directory}: {report.findings_left_out} findings more", highlight=False)
    for message in metadata:
        console().print(f"damage: {message}", highlight=False, markup=False)
    console().print("clean" if clean else "[red]not clean[/]")


def _verify_metadata(data_dir: Path) -> list[str]:
    """Returns damage of the Raft files; an observer has none but the snapshots that it was sent."""
    from dataplane.log.storage.files import REAL_FILES
    from metadata.raft.verification import verify_files

    return verify_files(data_dir / "raft", boot_id=REAL_FILES.boot_id())


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """Shows a progress bar on stderr, where that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda size: progress.advance(task, size)


def _bytes_of(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("*.log"))


# ---------------------------------------------------------------------------- index


@log.command()
@click.argument("directory", metavar="PARTITION_DIR", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--rebuild", is_flag=True, help="Make every index anew from the headers of the batches.")
@_as_json
def index(directory: Path, rebuild: bool, as_json: bool) -> None:
    """Show the sparse indexes of a partition's folder: where in a segment to begin looking for an offset or a time.

    A broker makes a missing or damaged index anew by itself when it needs it. --rebuild does it now, for all segments,
    up to the last sound batch; it is refused while a broker uses the folder.
    """
    from contextlib import nullcontext

    from dataplane.log.offline.inspection import rebuild_index, show_index
    from dataplane.log.storage.data_dir import kept_from_brokers
    from dataplane.log.storage.files import REAL_FILES
    from dataplane.log.storage.log_errors import DataDirError, LogDamaged
    from tidelog.client.base.read_positions import timestamp_to_text

    segments = _segment_files(directory, None)
    data_dir = directory.absolute().parent.parent
    try:
        with kept_from_brokers(data_dir) if rebuild else nullcontext():
            for file in segments if rebuild else ():
                rebuild_index(REAL_FILES, file)
    except DataDirError as error:
        _refuse(str(error))
    except LogDamaged as error:
        fail(str(error))
    except OSError as error:
        fail(f"{error.filename or directory} cannot be written: {error.strerror}")
    rows = [show_index(REAL_FILES, file) for file in segments]
    if as_json:
        for row in rows:
            print_json(row._asdict())
        return
    from rich.table import Table

    table = Table()
    for title in ("segment", "bytes", "entries", "reaches offset", "at byte", "newest timestamp", ""):
        table.add_column(title, overflow="fold")
    for row in rows:
        newest = "" if row.max_timestamp is None else timestamp_to_text(row.max_timestamp)
        state = (
            "[red]damaged[/]" if row.damaged else "whole" if row.position == row.segment_bytes else "to be completed"
        )
        table.add_row(
            row.segment, str(row.segment_bytes), str(row.entries), str(row.offset), str(row.position), newest, state
        )
    console().print(table)


# ---------------------------------------------------------------------------- shared


def _keyring(file: Path | None) -> Keyring:
    import os

    from dataplane.encryption.keyring import ENVIRONMENT_VARIABLE, Keyring, MasterKeys, keys_from_file, keys_from_text
    from wire.errors import TidelogError

    text = os.environ.get(ENVIRONMENT_VARIABLE, "")
    try:
        keys = keys_from_file(file) if file is not None else keys_from_text(text) if text else MasterKeys()
    except TidelogError as error:
        raise click.UsageError(error.message) from None
    return Keyring(keys, owner="this command")


def _partition_of(path: Path) -> PartitionKey | None:
    from dataplane.log.storage.data_dir import SET_ASIDE_SUFFIX, partition_of

    path = path.absolute()
    folder = path if path.is_dir() else path.parent
    return partition_of(folder.with_name(folder.name.removesuffix(SET_ASIDE_SUFFIX)))


def _refuse(message: str) -> NoReturn:
    raise _Refused(" ".join(message.split()))
