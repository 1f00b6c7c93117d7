"""`tidelog subscribe`: print a stream's committed records."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from tidelog.cli.record_formats import RecordFormat, record_format
from tidelog.cli.session import cluster_options, run
from tidelog.cli.times import FORMS, position, shown_time, time_zone_option

if TYPE_CHECKING:
    from datetime import tzinfo

    from tidelog.cli.positions_file import PositionsFile
    from tidelog.client.connection import Client
    from tidelog.client.consumer import Consumer

KEPT_EVERY = 1.0
"""Seconds between two writes of the file of `--resume`."""

_POSITION = "[{words}|OFFSET|TIME]"


@click.command()
@click.argument("stream")
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    metavar=_POSITION.format(words="earliest|latest|new"),
    help="earliest: the oldest record; latest: the newest; new: only records from now on; digits: that offset, in "
    "every partition; a time: the first record at or after it. Times are in " + FORMS + ".",
)
@click.option(
    "--stop",
    metavar=_POSITION.format(words="latest"),
    help="Position to end before; latest: the end of the committed log now.  [default: go on for ever]",
)
@time_zone_option
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Read only this one; repeatable."
)
@click.option(
    "--read-from",
    type=click.Choice(["leader", "follower", "nearest"]),
    default="leader",
    show_default=True,
    help="follower: in-sync followers, which takes load off the leader; nearest: the replica in sync in the rack of"
    " --rack; the leader while none serves.",
)
@click.option(
    "--rack",
    envvar="TIDELOG_RACK",
    metavar="NAME",
    help="Where this command runs, as brokers are told with their --rack; also from $TIDELOG_RACK.",
)
@click.option(
    "--on-gap",
    type=click.Choice(["raise", "skip"]),
    help="When records were removed (retention) before they were read: end with an error, or go on where the log "
    "begins now.  [default: raise with --start OFFSET, else skip]",
)
@click.option(
    "--on-out-of-range",
    type=click.Choice(["earliest", "latest", "fail"]),
    help="Where to start in place of a --start OFFSET that is outside of the committed log; fail: end with an error."
    "  [default: below it as --on-gap says, above it wait for the log to grow]",
)
@click.option("--limit", type=click.IntRange(min=1), help="End after so many records.")
@click.option(
    "--format",
    "form",
    metavar="text|json|raw|lengths|TEMPLATE",
    help="text: PARTITION:OFFSET, time, key and value, with tabs between them; json: an object, as with --json; raw: "
    "the value; lengths: 4 bytes with the value's length, big-endian, and the value; or a text with {stream}, "
    "{partition}, {offset}, {time}, {timestamp} (ns), {key}, {value}, {headers}, {header:NAME}, \\t, \\n and \\0, such "
    "as '{offset} {value}'.  [default: text]",
)
@click.option(
    "--resume",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Go on behind what was printed with this FILE before; where it is not there yet, begin at --start. Positions "
    "are kept in it every second and at the end; after a crash, up to a second is printed again.",
)
@cluster_options
def subscribe(
    stream: str,
    start: str,
    stop: str | None,
    zone: tzinfo | None,
    partitions: tuple[int, ...],
    read_from: Literal["leader", "follower", "nearest"],
    rack: str | None,
    on_gap: Literal["raise", "skip"] | None,
    on_out_of_range: Literal["earliest", "latest", "fail"] | None,
    limit: int | None,
    form: str | None,
    resume: Path | None,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Print the committed records of STREAM.

    Each is a line: PARTITION:OFFSET, time, key and value, with tabs between them, or what --format says. Records of a
    partition come in order, partitions as they answer.

    \b
    What is new since the last time        tidelog subscribe STREAM --stop latest --resume FILE
    The values of one partition, to a pipe tidelog subscribe STREAM --partition 0 --format raw | ...
    """
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form!r} ask for different things; give one of them")
    if read_from == "nearest" and rack is None:
        raise click.UsageError("--read-from nearest needs --rack NAME")
    show = record_format("json" if as_json else form or "text", shown_time(zone))
    begin = position("--start", start, zone)
    end = None if stop is None else position("--stop", stop, zone)

    async def work(client: Client) -> None:
        from tidelog.cli.positions_file import PositionsFile

        file = None if resume is None else PositionsFile(resume, await client.metadata(stream))
        kept = None if file is None else file.start(partitions)
        async with client.consume(
            stream,
            start=begin if kept is None else kept,
            stop=end,
            partitions=partitions or None,
            read_from=read_from,
            rack=rack if read_from == "nearest" else None,
            on_gap=on_gap,
            on_out_of_range=on_out_of_range,
        ) as consumer:
            if file is None:
                await _print(consumer, show, limit, {})
            else:
                await _print_and_keep(consumer, show, limit, file)

    run(server, namespace, work)


async def _print(consumer: Consumer, show: RecordFormat, limit: int | None, printed: dict[int, int]) -> None:
    """`printed`: up to where, per partition; moves once the records have left this process."""
    out = sys.stdout.buffer
    left = sys.maxsize if limit is None else limit
    async for batch in consumer.batches():
        count = min(len(batch), left)
        for record in islice(batch.records(), count):
            out.write(show(record))
        out.flush()
        printed.update(consumer.positions)
        if count < len(batch):
            printed[batch.partition] = int(batch.offsets[count])
        left -= count
        if not left:
            return


async def _print_and_keep(consumer: Consumer, show: RecordFormat, limit: int | None, file: PositionsFile) -> None:
    import asyncio

    await consumer.start()
    printed = {**consumer.positions}
    file.write(printed)

    async def keep() -> None:
        while True:
            await asyncio.sleep(KEPT_EVERY)
            file.write(printed)

    try:
        async with asyncio.TaskGroup() as tasks:
            keeping = tasks.create_task(keep())
            await _print(consumer, show, limit, printed)
            keeping.cancel()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        file.write(printed)
