"""`tidelog offsets`: the first and the end offsets of the partitions of a stream, and the offsets of a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.points_in_time import FORMS, point_in_time, shown_time, time_zone_option
from tidelog.cli.terminal.session import Work, cluster_command, print_json
from tidelog.cli.terminal.tables import Rows

if TYPE_CHECKING:
    from datetime import tzinfo

    from tidelog.client.client import Client


@click.command()
@click.argument("stream", shell_complete=stream_names)
@click.option("--time", "at", metavar="TIME", help=f"Also the first offset at or after a time: {FORMS}.")
@click.option("--partition", "partitions", type=click.IntRange(min=0), multiple=True, help="Only this one; repeatable.")
@time_zone_option
@cluster_command
def offsets(stream: str, at: str | None, partitions: tuple[int, ...], zone: tzinfo | None, as_json: bool) -> Work:
    """Show where the partitions of STREAM begin and end.

    Ends are exclusive: the committed end is the offset that the next record gets once all before it is committed, and
    the number to give as a stop. `tidelog stream describe` shows as well how far the logs of the leaders go.

    \b
    Example, the offsets of the last hour:
      tidelog offsets flights --time 1h
    """
    moment = None if at is None else point_in_time("--time", at, zone)

    async def work(client: Client) -> None:
        consumer = client.consume(stream, partitions=partitions or None)
        starts = await consumer.beginning_offsets()
        ends = await consumer.end_offsets()
        times = None if moment is None else await consumer.offsets_for_times(dict.fromkeys(ends, moment))
        rows: list[dict[str, Any]] = [
            {"partition": partition, "log_start_offset": start, "committed_end": ends[partition]}
            for partition, start in starts.items()
        ]
        if times is None:
            _show(stream, rows, None, as_json=as_json)
            return
        for row in rows:
            row["offset_at_time"] = times[row["partition"]]
        assert moment is not None
        _show(stream, rows, shown_time(zone)(moment.timestamp_ns), as_json=as_json)

    return work


def _show(stream: str, rows: list[dict[str, Any]], time: str | None, *, as_json: bool) -> None:
    if as_json:
        print_json({"stream": stream, **({} if time is None else {"time": time}), "partitions": rows})
        return
    table = Rows("partition", "log start", "committed end", "offsets", *([] if time is None else [f"at {time}"]))
    for row in rows:
        start, end = row["log_start_offset"], row["committed_end"]
        cells = [row["partition"], start, end, end - start]
        if time is not None:
            found = row["offset_at_time"]
            cells.append("none yet" if found is None else found)
        table.add(*map(str, cells))
    table.show()
