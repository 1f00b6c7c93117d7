"""`tidelog publish`: one record from the command line, or many from a file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from tidelog.cli.records.record_input import CHUNK_RECORDS, InputFault, chunks
from tidelog.cli.terminal.delays import delays_reported
from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.session import Work, cluster_command, counted, fail, print_json
from wire.layouts import PARTITIONERS

if TYPE_CHECKING:
    import asyncio

    from tidelog.client.base.read_positions import AtTime
    from tidelog.client.base.records import BatchReceipt, Receipt
    from tidelog.client.client import Client
    from tidelog.client.producer.producer import Producer
    from wire.errors import TidelogError

    _Outcomes = list[tuple[Sequence[int], BatchReceipt | Receipt | TidelogError]]
    """Outcomes of the lines at these places of a chunk."""

MOST_RANGES = 5
"""Ranges of lines that an error names."""
GRACE = 1.0
"""Seconds that Ctrl-C leaves the brokers to acknowledge lines that were sent already; a second Ctrl-C ends at once."""


@dataclass(frozen=True)
class _Given:
    """The options of the command line for every record."""

    key: bytes | None = None
    headers: dict[str, list[bytes]] = field(default_factory=dict)
    partition: int | None = None


def _parsed_headers(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, list[bytes]]:
    headers: dict[str, list[bytes]] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{each!r} is no NAME=VALUE")
        headers.setdefault(name, []).append(_bytes(value))
    return headers


@click.command()
@click.argument("stream", shell_complete=stream_names)
@click.argument("value", required=False)
@click.option("--key", help="Key of every record that brings none of its own; equal keys share a partition.")
@click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_parsed_headers,
    help="Header of every record that brings none of that name; also several times, with one name or others.",
)
@click.option(
    "--acks",
    type=click.Choice(["none", "leader", "all"]),
    default="all",
    show_default=True,
    help="The replicas that must have a record before it counts as published.",
)
@click.option(
    "--durability",
    metavar="LEVEL",
    help="In place of the stream's: durable, accepted, replica_durable:N, replica_accepted:N, majority_durable or"
    " local_durable.",
)
@click.option(
    "--confirm-timeout",
    type=click.FloatRange(min=0.001, max=3600),
    metavar="SECONDS",
    help="How long the leader waits for the level, in place of the stream's time; and how long it is asked again while"
    " it refuses the records (a quota, too few replicas), in place of 30 s.",
)
@click.option("--file", "file", type=click.File("rb"), help="Publish the lines of a file; - is standard input.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "jsonl", "lengths"]),
    default="lines",
    show_default=True,
    help="lines: each line is a value. jsonl: each is an object with value, key, headers, timestamp. lengths: each"
    " value is behind four bytes with its length, big-endian, as `subscribe --format lengths` prints them.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd"]),
    help="Compression of sent and stored records; lz4 is fast, zstd dense.  [default: the stream's setting]",
)
@click.option(
    "--partitioner",
    type=click.Choice(PARTITIONERS),
    help="The hash that gives a key its partition; murmur2 as in Kafka's Java clients.  [default: the stream's]",
)
@click.option("--partition", type=click.IntRange(min=0), help="Publish to this partition, whatever the key.")
@click.option(
    "--msg-id",
    metavar="ID",
    help="Of VALUE: where a record with this id was stored in the same partition within the stream's dedup_window_ms,"
    " nothing is written.",
)
@click.option(
    "--dedup/--no-dedup",
    default=True,
    help="--no-dedup also writes records whose message id the stream knows, as a copy of a stream asks.",
)
@cluster_command
def publish(
    stream: str,
    value: str | None,
    key: str | None,
    headers: dict[str, list[bytes]],
    file: BinaryIO | None,
    form: str,
    partition: int | None,
    msg_id: str | None,
    as_json: bool,
    **options: Any,
) -> Work:
    """Append VALUE, or the lines of a file or of standard input (no VALUE, or -), to STREAM.

    `--format jsonl` takes the output of `tidelog subscribe --json`: a JSON object on each line. "value" is text, null
    (deletes the key in a compacted stream), or an object or list, which is stored as compact JSON; "key" is text, and
    so is each of "headers"; "timestamp" is ISO-8601 or ns since 1970; "msg_id" is as --msg-id. All but "value" may be
    left out; a field that is none of those of `subscribe --json` is refused.

    \b
    Examples:
      tidelog publish flights hello --key AA
      tidelog publish flights --file lines.txt --header source=lines.txt
      tail -f app.log | tidelog publish flights

    Lines of a pipe are published as they come. Ctrl-C says how many were.
    """
    if value is not None and file is not None:
        raise click.UsageError("give VALUE or --file, not both")
    if value in (None, "-") and file is None:
        file = sys.stdin.buffer
        if file.isatty():
            click.echo("reading lines from the terminal; Ctrl-D ends them", err=True)
    if msg_id is not None and file is not None:
        raise click.UsageError('--msg-id is the id of one VALUE; lines of `--format jsonl` have a "msg_id" each')
    given = _Given(None if key is None else _bytes(key), headers, partition)

    async def work(client: Client) -> None:
        async with client.producer(stream, **options) as producer:
            async with delays_reported(producer):
                if file is not None:
                    acknowledged = options["acks"] != "none"
                    await _publish_file(producer, file, form, given, acknowledged=acknowledged, as_json=as_json)
                    return
                receipt = await producer.send(
                    _bytes(value or ""),
                    key=given.key,
                    headers=given.headers,
                    partition=partition,
                    msg_id=None if msg_id is None else _bytes(msg_id),
                )
            offset = None if receipt.offset < 0 else receipt.offset
            if as_json:
                told = {"stream": stream, "partition": receipt.partition, "offset": offset}
                print_json({**told, "duplicate": True} if receipt.duplicate else told)
            elif offset is None:
                how = "was there already; its offset is not known any more"
                click.echo(f"{stream}/{receipt.partition} {how if receipt.duplicate else 'sent, not acknowledged'}")
            else:
                again = " was there already" if receipt.duplicate else ""
                click.echo(f"{stream}/{receipt.partition} offset {offset}{again}")

    return work


async def _publish_file(
    producer: Producer, file: BinaryIO, form: str, given: _Given, *, acknowledged: bool, as_json: bool
) -> None:
    """`acknowledged`: the receipts come from brokers."""
    import asyncio

    await producer.start()
    published = _Published("acknowledged" if acknowledged else "sent", "record" if form == "lengths" else "line")
    try:
        with _progress(file) as progress:
            steps = _Steps()
            async for chunk, size in chunks(file, form):  # the next chunk is read once this one is acknowledged
                if progress is None:
                    await _with_grace(published.publish(producer, chunk, form, given))
                    continue
                at = 0
                while at < len(chunk):
                    part, began = chunk[at : at + steps.records], time.monotonic()
                    await _with_grace(published.publish(producer, part, form, given))
                    steps.took(time.monotonic() - began)
                    at += len(part)
                    advance = size * len(part) / len(chunk)
                    progress.update(progress.task_ids[0], advance=advance, records=published.records)
    except InputFault as fault:
        fail(f"{fault}; {published.before()}")
    except asyncio.CancelledError:  # Ctrl-C interrupts
        if sys.stderr.isatty():
            click.echo(err=True)  # the terminal has printed ^C into the line
        published.tell(producer.stream, as_json=as_json, interrupted=True)
        raise
    published.tell(producer.stream, as_json=as_json)


class _Steps:
    """The number of records published between two moves of a progress bar: it moves some times a second, and does not
    hold up a fast cluster."""

    LEAST = 500
    SHORT, LONG = 0.1, 0.4
    """Seconds: after a step that took less the next is twice as large, after one that took more half."""

    def __init__(self) -> None:
        self.records = self.LEAST

    def took(self, seconds: float) -> None:
        if seconds < self.SHORT:
            self.records = min(2 * self.records, CHUNK_RECORDS)
        elif seconds > self.LONG:
            self.records = max(self.records // 2, self.LEAST)


async def _with_grace(publishing: Coroutine[Any, Any, None]) -> None:
    """Waits up to GRACE seconds for the outcome when cancelled meanwhile, by Ctrl-C, so that a record is not
    reported as a line in doubt only because its receipt was on the way."""
    import asyncio

    under_way = asyncio.create_task(publishing)
    try:
        await asyncio.shield(under_way)
    except asyncio.CancelledError:
        await asyncio.wait([under_way], timeout=GRACE)
        if under_way.done():
            under_way.result()
        else:
            under_way.cancel()
        raise


class _Published:
    """Counts the outcomes of the lines of a file. `state`: of records with a receipt. `unit`: "line", or the name of
    the parts of the file."""

    def __init__(self, state: str, unit: str) -> None:
        self.state = state
        self.unit = unit
        self.lines = 0
        """Lines with a known and good outcome."""
        self.bytes = 0
        """Bytes of the values of those lines, without newlines or other text around a value."""
        self.duplicates = 0
        """Records that existed already, by their message ids; the others were written."""
        self._began = time.monotonic()
        self._per_partition: Counter[int] = Counter()
        self._under_way = 0
        """Lines that are being published."""

    @property
    def records(self) -> int:
        return self._per_partition.total()

    def before(self) -> str:
        """Describes the outcome of the lines so far, for a sentence about the next one."""
        if not self.lines:
            return "nothing was published"
        return f"{self.unit}s 1 to {self.lines} are {self.state}"

    async def publish(self, producer: Producer, chunk: list[bytes], form: str, given: _Given) -> None:
        from tidelog.client.base.exceptions import BadRequest
        from wire.errors import TidelogError

        self._under_way = len(chunk)
        try:
            if form == "jsonl":
                outcomes, size = await _publish_json(producer, chunk, self.lines, given, self.state)
            else:
                values = chunk if form == "lengths" else [line.removesuffix(b"\r") for line in chunk]
                outcomes, size = await _publish_lines(producer, values, given), sum(map(len, values))
        except TidelogError as error:
            if isinstance(error, BadRequest) and not self.lines:
                raise  # an argument is wrong, and no record was sent
            fail(_not_given(error, self.lines, chunk, self.state, self.unit))
        if failure := next((one for _, one in outcomes if isinstance(one, TidelogError)), None):
            fail(_given_up(failure, self.lines, outcomes, self.state, self.unit))
        self.count(outcomes)
        self.lines += len(chunk)
        self.bytes += size
        self._under_way = 0

    def count(self, outcomes: _Outcomes) -> None:
        from tidelog.client.base.records import Receipt
        from wire.errors import TidelogError

        for indices, receipt in outcomes:
            if not isinstance(receipt, TidelogError):
                self._per_partition[receipt.partition] += len(indices)
                self.duplicates += receipt.duplicate if isinstance(receipt, Receipt) else len(receipt.duplicates)

    def tell(self, stream: str, *, as_json: bool, interrupted: bool = False) -> None:
        seconds = time.monotonic() - self._began
        records = self.records
        if as_json:
            outcome: dict[str, object] = {
                "stream": stream,
                "records": records,
                "bytes": self.bytes,
                "seconds": round(seconds, 3),
                "partitions": {str(p): n for p, n in sorted(self._per_partition.items())},
                "duplicates": self.duplicates,
            }
            print_json({**outcome, "interrupted": True, "in_doubt": self._under_way} if interrupted else outcome)
            return
        done = "published" if self.state == "acknowledged" else "sent, without acknowledgements,"
        told = (
            f"{done} {counted(records, 'record')}, {counted(self.bytes, 'byte')} of values, to {stream} in"
            f" {seconds:.1f} s"
            f" ({records / max(seconds, 0.001):,.0f} records/s)"
        )
        if self.duplicates:
            told += f"; {self.duplicates:,} of them {'was' if self.duplicates == 1 else 'were'} there already"
        if interrupted:
            told = f"interrupted: {told}"
            if self._under_way:
                told += f"; of {counted(self._under_way, self.unit)} after them some may be in the stream"
        click.echo(told, err=interrupted)


def _given_up(error: TidelogError, before: int, outcomes: _Outcomes, state: str, unit: str) -> str:
    """Returns which lines are in the stream: the lines up to `before` are, and those after them have these outcomes."""
    from tidelog.client.base.exceptions import may_be_written
    from wire.errors import TidelogError

    there = [range(1, before + 1)] if before else []
    absent: list[range] = []
    doubtful: list[range] = []
    for indices, outcome in outcomes:
        into = there
        if isinstance(outcome, TidelogError):
            into = doubtful if may_be_written(outcome) else absent
        for index in [indices] if isinstance(indices, range) else [range(each, each + 1) for each in indices]:
            lines = range(before + 1 + index.start, before + 1 + index.stop)
            if into and into[-1].stop == lines.start:
                lines = range(into.pop().start, lines.stop)
            into.append(lines)
    parts = [error.message]
    for ranges, one, many in (
        (there, f"is {state}", f"are {state}"),
        (absent, "was not written", "were not written"),
        (doubtful, "may be in the stream", "may be in the stream"),
    ):
        if ranges:
            count = sum(map(len, ranges))
            parts.append(f"{unit}{'' if count == 1 else 's'} {_listed(ranges)} {one if count == 1 else many}")
    return "; ".join(parts)


def _listed(ranges: list[range]) -> str:
    shown = [str(each.start) if len(each) == 1 else f"{each.start} to {each.stop - 1}" for each in ranges[:MOST_RANGES]]
    more = sum(map(len, ranges[MOST_RANGES:]))
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _not_given(error: TidelogError, before: int, chunk: list[bytes], state: str, unit: str) -> str:
    """Returns a sentence on lines that no producer takes: those up to `before` are in the stream; of `chunk` it is not
    known, unless it is one line and the error says that it was not written.

    All of them have the same key, so that a record that is too large is the longest line.
    """
    from tidelog.client.base.exceptions import RecordTooLarge
    from wire.error_details import OUTCOME

    parts = [error.message]
    others = "some"
    if isinstance(error, RecordTooLarge):
        longest = max(range(len(chunk)), key=lambda at: len(chunk[at]))
        parts = [f"{unit} {before + 1 + longest} cannot be published: {error.message}"]
        others = "the others"
    if before:
        parts.append(f"{unit}s 1 to {before} are {state}")
    if len(chunk) > 1:
        parts.append(f"of {unit}s {before + 1} to {before + len(chunk)} {others} may be in the stream")
    elif others == "some" and error.detail(OUTCOME) != "not_written":
        parts.append(f"{unit} {before + 1} may be in the stream")
    return "; ".join(parts)


async def _publish_lines(producer: Producer, values: list[bytes], given: _Given) -> _Outcomes:
    if not given.headers:
        keys = None if given.key is None else [given.key] * len(values)
        return list(await producer.outcomes(values, keys=keys, partition=given.partition))
    one_by_one = _OneByOne(producer, given)
    try:
        for at, value in enumerate(values):
            await one_by_one.send(at, value, given.key, given.headers)
    finally:
        outcomes = await one_by_one.outcomes()
    return outcomes


async def _publish_json(
    producer: Producer, chunk: list[bytes], first_line: int, given: _Given, state: str
) -> tuple[_Outcomes, int]:
    """Publishes lines of JSON. Returns the outcomes, and the number of bytes of the values."""
    from tidelog.cli.records.records_json import from_json
    from tidelog.client.base.exceptions import BadRequest, RecordTooLarge
    from wire.errors import TidelogError

    one_by_one = _OneByOne(producer, given)
    size = 0
    for at, line in enumerate(chunk):
        if not line.strip():
            continue
        try:
            parsed = from_json(line)
            key = given.key if parsed.key is None else parsed.key
            headers = {**given.headers, **parsed.headers}
            await one_by_one.send(at, parsed.value, key, headers, parsed.timestamp, parsed.msg_id)
            size += len(parsed.value or b"")
        except (ValueError, BadRequest, RecordTooLarge) as error:
            for _, outcome in await one_by_one.outcomes():
                if isinstance(outcome, TidelogError):
                    raise outcome from None
            number = first_line + 1 + at
            before = f"; the lines before it are {state}" if number > 1 else ""
            fail(f"line {number} cannot be published: {error}{before}")
    return await one_by_one.outcomes(), size


class _OneByOne:
    """Records that are given to the producer one by one, each with the place of its line in the chunk."""

    def __init__(self, producer: Producer, given: _Given) -> None:
        self._producer = producer
        self._partition = given.partition
        self._futures: list[tuple[int, asyncio.Future[Receipt]]] = []

    async def send(
        self,
        place: int,
        value: bytes | None,
        key: bytes | None,
        headers: Mapping[str, bytes | list[bytes]],
        timestamp: int | AtTime | None = None,
        msg_id: bytes | None = None,
    ) -> None:
        """Sends a record; waits while the producer's buffer is full. Raises BadRequest, RecordTooLarge."""
        from tidelog.client.base.exceptions import BufferFull

        given = partial(
            self._producer.send_nowait,
            value,
            key=key,
            headers=headers,
            partition=self._partition,
            timestamp=timestamp,
            msg_id=msg_id,
        )
        try:
            future = given()
        except BufferFull:
            await self.outcomes()
            future = given()
        self._futures.append((place, future))

    async def outcomes(self) -> _Outcomes:
        import asyncio

        from wire.errors import TidelogError

        outcomes: _Outcomes = []
        results = await asyncio.gather(*(future for _, future in self._futures), return_exceptions=True)
        for (place, _), result in zip(self._futures, results, strict=True):
            if isinstance(result, BaseException) and not isinstance(result, TidelogError):
                raise result
            outcomes.append((range(place, place + 1), result))
        return outcomes


def _progress(file: BinaryIO) -> Any:
    """Returns a progress bar on a terminal's stderr, else an empty context."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    total = _file_size(file)
    left = [] if total is None else [TextColumn("ready in"), TimeRemainingColumn()]
    progress = Progress(
        TextColumn("publishing"),
        BarColumn(),
        TextColumn("{task.fields[records]:,} records"),
        DownloadColumn(),
        TransferSpeedColumn(),
        *left,
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task("publishing", total=total, records=0)
    return progress


def _file_size(file: BinaryIO) -> int | None:
    import os
    import stat

    try:
        status = os.fstat(file.fileno())
    except OSError:
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def _bytes(text: str) -> bytes:
    """Returns the typed bytes: those of the command line that are no UTF-8 come back as they were."""
    return text.encode("utf-8", "surrogateescape")
