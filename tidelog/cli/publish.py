"""`tidelog publish`: one record from the command line, or many from a file."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, cast

import click

from tidelog.cli.session import cluster_options, counted, fail, print_json, run
from wire.echo import one_line

if TYPE_CHECKING:
    import asyncio

    from tidelog.client.connection import Client
    from tidelog.client.producer import Producer
    from tidelog.client.records import BatchReceipt, Receipt
    from wire.errors import TidelogError

    _Outcomes = list[tuple[Sequence[int], BatchReceipt | Receipt | TidelogError]]
    """What became of the lines at these places of a chunk."""

CHUNK_RECORDS = 10_000
MOST_RANGES = 5
"""Of lines that an error names."""
CHUNK_BYTES = 4 << 20
"""Read and sent as one; the next is read once this one is acknowledged."""
SILENCE = 1.0
"""Seconds that records wait for a leader that refuses them, or is not there, before stderr says so."""
PAUSE = 0.01
"""Seconds. Lines of a pipe that pauses for so long are sent, whether they fill a chunk or not."""


@click.command()
@click.argument("stream")
@click.argument("value", required=False)
@click.option("--key", help="Key of every record that brings none of its own; equal keys share a partition.")
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
@click.option("--file", "file", type=click.File("rb"), help="Publish the lines of a file; - is stdin.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["lines", "jsonl"]),
    default="lines",
    show_default=True,
    help="lines: each line is a value. jsonl: each is an object with value, key, headers, timestamp.",
)
@click.option(
    "--compression",
    type=click.Choice(["none", "lz4", "zstd"]),
    help="Compression of sent and stored records; lz4 is fast, zstd dense.  [default: the stream's setting]",
)
@click.option("--partition", type=click.IntRange(min=0), help="Publish to this partition, whatever the key.")
@cluster_options
def publish(
    stream: str,
    value: str | None,
    key: str | None,
    acks: str,
    durability: str | None,
    confirm_timeout: float | None,
    file: BinaryIO | None,
    form: str,
    compression: str | None,
    partition: int | None,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Append VALUE, or the lines of a file, to STREAM.

    `--format jsonl` takes the output of `tidelog subscribe --json`: a JSON object on each line. "value" is text, null
    (deletes the key in a compacted stream), or an object or list, which is stored as compact JSON; "key" is text, and
    so is each of "headers"; "timestamp" is ISO-8601 or ns since 1970. All but "value" may be left out.

    \b
    Examples:
      tidelog publish flights hello --key AA
      tidelog publish flights --file lines.txt
      tail -f app.log | tidelog publish flights --file -
    """
    if value is None and file is None:
        raise click.UsageError("give VALUE, or --file FILE; --file - publishes the lines of standard input")
    if value is not None and file is not None:
        raise click.UsageError("give VALUE or --file, not both")
    level = cast("Literal['all', 'leader', 'none']", acks)
    codec = cast("Literal['none', 'lz4', 'zstd'] | None", compression)
    key_bytes = None if key is None else _bytes(key)

    async def work(client: Client) -> None:
        async with client.producer(
            stream, acks=level, durability=durability, confirm_timeout=confirm_timeout, compression=codec
        ) as producer:
            async with _delays_told(producer):
                if file is not None:
                    await _publish_file(
                        producer, file, form, key_bytes, partition, acknowledged=acks != "none", as_json=as_json
                    )
                    return
                receipt = await producer.send(_bytes(value or ""), key=key_bytes, partition=partition)
            offset = None if receipt.offset < 0 else receipt.offset
            if as_json:
                print_json({"stream": stream, "partition": receipt.partition, "offset": offset})
            elif offset is None:
                click.echo(f"{stream}/{receipt.partition} sent, not acknowledged")
            else:
                click.echo(f"{stream}/{receipt.partition} offset {offset}")

    run(server, namespace, work)


@asynccontextmanager
async def _delays_told(producer: Producer) -> AsyncIterator[None]:
    """Meanwhile stderr has a line for each thing that keeps records waiting for longer than SILENCE."""
    import asyncio

    async def watch() -> None:
        told: set[str] = set()
        while True:
            await asyncio.sleep(SILENCE / 4)
            delay = producer.delay()
            if delay is not None and delay[0] >= SILENCE and delay[1] not in told:
                told.add(delay[1])
                click.echo(f"waiting: {one_line(delay[1])}", err=True)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()


async def _publish_file(
    producer: Producer,
    file: BinaryIO,
    form: str,
    key: bytes | None,
    partition: int | None,
    *,
    acknowledged: bool,
    as_json: bool,
) -> None:
    """`acknowledged`: the receipts are the brokers'."""
    from tidelog.client.errors import BadRequest
    from wire.errors import TidelogError

    await producer.start()
    began = time.monotonic()
    per_partition: Counter[int] = Counter()
    size = line_number = 0
    state = "acknowledged" if acknowledged else "sent"
    with _progress(file) as progress:
        async for chunk, chunk_size in _chunks(file):
            try:
                if form == "lines":
                    values = [line.removesuffix(b"\r") for line in chunk]
                    keys = None if key is None else [key] * len(values)
                    outcomes: _Outcomes = list(await producer.outcomes(values, keys=keys, partition=partition))
                else:
                    outcomes = await _publish_json(producer, chunk, line_number, key, partition, state)
            except TidelogError as error:
                if isinstance(error, BadRequest) and not line_number:
                    raise  # a wrong argument: nothing was sent
                fail(_not_given(error, line_number, chunk, state))
            if failure := next((one for _, one in outcomes if isinstance(one, TidelogError)), None):
                fail(_given_up(failure, line_number, outcomes, state))
            for indices, receipt in outcomes:
                if not isinstance(receipt, TidelogError):
                    per_partition[receipt.partition] += len(indices)
            line_number += len(chunk)
            size += chunk_size
            if progress is not None:
                progress.advance(progress.task_ids[0], chunk_size)
    seconds = time.monotonic() - began
    records = per_partition.total()
    if as_json:
        print_json(
            {
                "stream": producer.stream,
                "records": records,
                "bytes": size,
                "seconds": round(seconds, 3),
                "partitions": {str(p): n for p, n in sorted(per_partition.items())},
            }
        )
    else:
        done = "published" if acknowledged else "sent, without acknowledgements,"
        click.echo(
            f"{done} {counted(records, 'record')}, {counted(size, 'byte')}, to {producer.stream} in {seconds:.1f} s"
        )


def _given_up(error: TidelogError, before: int, outcomes: _Outcomes, state: str) -> str:
    """Says which lines are in the stream: the lines up to `before` are, and those after them have these outcomes."""
    from tidelog.client.errors import may_be_written
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
            parts.append(f"{'line' if count == 1 else 'lines'} {_listed(ranges)} {one if count == 1 else many}")
    return "; ".join(parts)


def _listed(ranges: list[range]) -> str:
    shown = [str(each.start) if len(each) == 1 else f"{each.start} to {each.stop - 1}" for each in ranges[:MOST_RANGES]]
    more = sum(map(len, ranges[MOST_RANGES:]))
    return ", ".join(shown) + (f" and {more} more" if more else "")


def _not_given(error: TidelogError, before: int, chunk: list[bytes], state: str) -> str:
    """Of lines that no producer takes: those up to `before` are in the stream; of `chunk` it is not known.

    All of them have the same key, so that a record that is too large is the longest line.
    """
    from tidelog.client.errors import RecordTooLarge

    parts = [error.message]
    others = "some"
    if isinstance(error, RecordTooLarge):
        longest = max(range(len(chunk)), key=lambda at: len(chunk[at]))
        parts = [f"line {before + 1 + longest} cannot be published: {error.message}"]
        others = "the others"
    if before:
        parts.append(f"lines 1 to {before} are {state}")
    if len(chunk) > 1:
        parts.append(f"of lines {before + 1} to {before + len(chunk)} {others} may be in the stream")
    elif others == "some":
        parts.append(f"line {before + 1} may be in the stream")
    return "; ".join(parts)


async def _publish_json(
    producer: Producer, chunk: list[bytes], first_line: int, key: bytes | None, partition: int | None, state: str
) -> _Outcomes:
    import asyncio

    from tidelog.cli.records_json import from_json
    from tidelog.client.errors import BadRequest, RecordTooLarge
    from wire.errors import TidelogError

    places: list[int] = []
    futures: list[asyncio.Future[Receipt]] = []
    for number, line in enumerate(chunk, first_line + 1):
        if not line.strip():
            continue
        try:
            parsed = from_json(line)
            future = producer.send_nowait(
                parsed.value,
                key=key if parsed.key is None else parsed.key,
                headers=parsed.headers,
                partition=partition,
                timestamp=parsed.timestamp,
            )
        except (ValueError, BadRequest, RecordTooLarge) as error:
            await asyncio.gather(*futures)
            before = f"; the lines before it are {state}" if number > 1 else ""
            fail(f"line {number} cannot be published: {error}{before}")
        futures.append(future)
        places.append(number - first_line - 1)
    outcomes: _Outcomes = []
    for place, outcome in zip(places, await asyncio.gather(*futures, return_exceptions=True), strict=True):
        if isinstance(outcome, BaseException) and not isinstance(outcome, TidelogError):
            raise outcome
        outcomes.append((range(place, place + 1), outcome))
    return outcomes


async def _chunks(file: BinaryIO) -> AsyncIterator[tuple[list[bytes], int]]:
    """The lines as they come, without their ends, and the number of bytes that they took."""
    lines: list[bytes] = []
    begun: list[bytes] = []
    """Pieces of the line that is not complete yet."""
    size = 0
    """Of `lines`."""
    at_end = False
    while not at_end:
        data = await _read(file, PAUSE if lines else None)
        at_end = data == b""
        size += len(data or b"")
        if data and b"\n" in data:
            first, *rest = data.split(b"\n")
            lines += (b"".join([*begun, first]), *rest[:-1])
            begun = rest[-1:]
        elif data:
            begun.append(data)
        if data and len(lines) < CHUNK_RECORDS and size < CHUNK_BYTES:
            continue
        for at in range(0, len(lines), CHUNK_RECORDS):
            chunk = lines[at : at + CHUNK_RECORDS]
            yield chunk, sum(map(len, chunk)) + len(chunk)
        lines, size = [], 0
    if last := b"".join(begun):
        yield [last], len(last)


async def _read(file: BinaryIO, patience: float | None) -> bytes | None:
    """Some bytes, b"" at the end. None: a pipe or terminal gave none within `patience` seconds; others do not wait."""
    import asyncio
    import os

    try:
        descriptor = file.fileno()
    except OSError:
        return file.read(CHUNK_BYTES)
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    try:
        loop.add_reader(descriptor, readable.set)
    except PermissionError:  # a regular file can always be read, and epoll does not take it
        return os.read(descriptor, CHUNK_BYTES)
    try:
        async with asyncio.timeout(patience):
            await readable.wait()
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(descriptor)
    return os.read(descriptor, CHUNK_BYTES)


def _progress(file: BinaryIO) -> Any:
    """A progress bar on a terminal's stderr, else nothing."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    progress = Progress(
        TextColumn("publishing"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    progress.add_task("publishing", total=_file_size(file))
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
    """As typed: bytes of the command line that are no UTF-8 come back as they were."""
    return text.encode("utf-8", "surrogateescape")
