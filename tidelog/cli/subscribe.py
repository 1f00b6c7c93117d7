"""`tidelog subscribe`: read a stream's committed records, a line each."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Literal

import click

from tidelog.cli.session import cluster_options, run

if TYPE_CHECKING:
    from collections.abc import Callable

    from tidelog.client.connection import Client
    from tidelog.client.records import Record

_POSITION = "[{words}|OFFSET|TIMESTAMP]"


@click.command()
@click.argument("stream")
@click.option(
    "--start",
    default="earliest",
    show_default=True,
    metavar=_POSITION.format(words="earliest|latest|new"),
    help="earliest: the oldest record; latest: the newest; new: only records from now on; digits: that offset, in "
    "every partition; ISO-8601: the first record at or after that time.",
)
@click.option(
    "--stop",
    metavar=_POSITION.format(words="latest"),
    help="Position to end before; latest: the end of the committed log now.  [default: go on for ever]",
)
@click.option(
    "--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Read only this one; repeatable."
)
@click.option(
    "--read-from",
    type=click.Choice(["leader", "follower"]),
    default="leader",
    show_default=True,
    help="follower: in-sync followers, which takes load off the leader; the leader while none serves.",
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
@cluster_options
def subscribe(
    stream: str,
    start: str,
    stop: str | None,
    partitions: tuple[int, ...],
    read_from: Literal["leader", "follower"],
    on_gap: Literal["raise", "skip"] | None,
    on_out_of_range: Literal["earliest", "latest", "fail"] | None,
    limit: int | None,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Print the committed records of STREAM.

    A line is PARTITION:OFFSET, time, key and value, with tabs between them; with --json an object. Records of a
    partition come in order, partitions as they answer.
    """

    async def work(client: Client) -> None:
        from tidelog.cli.records_json import to_json
        from tidelog.client.positions import timestamp_to_text

        def show(record: Record) -> bytes:
            return to_json(record).encode() if as_json else _line(record, timestamp_to_text)

        left = limit
        out = sys.stdout.buffer
        async with client.consume(
            stream,
            start=start,
            stop=stop,
            partitions=partitions or None,
            read_from=read_from,
            on_gap=on_gap,
            on_out_of_range=on_out_of_range,
        ) as consumer:
            async for batch in consumer.batches():
                for record in batch.records():
                    out.write(show(record) + b"\n")
                    if left is not None:
                        left -= 1
                        if left == 0:
                            break
                out.flush()
                if left == 0:
                    return

    run(server, namespace, work)


def _line(record: Record, timestamp_to_text: Callable[[int], str]) -> bytes:
    place = f"{record.partition}:{record.offset}\t{timestamp_to_text(record.timestamp)}\t"
    return place.encode() + (record.key or b"") + b"\t" + (record.value or b"")
