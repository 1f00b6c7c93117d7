"""`tidelog subscribe`: print committed records of a stream, or as a member of a consumer group."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import termios
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import click

from tidelog.cli.records.record_formats import RecordFormat, record_format
from tidelog.cli.terminal.delays import delays_reported
from tidelog.cli.terminal.name_completion import group_names, stream_names
from tidelog.cli.terminal.points_in_time import FORMS, position, shown_time, time_zone_option
from tidelog.cli.terminal.session import Work, cluster_command
from tidelog.cli.terminal.shown import cleaner, raw_option
from wire.errors import TidelogError

if TYPE_CHECKING:
    from datetime import tzinfo

    from tidelog.cli.records.positions_file import Position, PositionsFile
    from tidelog.client.base.records import Record
    from tidelog.client.client import Client
    from tidelog.client.consumer.consumer import Consumer
    from tidelog.client.group.group_consumer import GroupConsumer

_LONGEST_PAUSE = 0.05
"""Seconds between two looks at a pipe whose reader is slow."""


class StandardOutput:
    """Standard output. A pipe or a socket is written to in pieces that it has room for. It stays in blocking mode,
    because its other users, such as the shell, share the mode. Terminals and files are written to directly."""

    def __init__(self) -> None:
        self.written = 0
        """Bytes that have left this process, if this is a pipe or a socket."""
        self._out = sys.stdout.buffer
        try:
            self._descriptor = self._out.fileno()
            mode = os.fstat(self._descriptor).st_mode
        except (OSError, ValueError):  # stdout is no file
            mode = 0
        self.is_pipe = stat.S_ISFIFO(mode)
        self._may_be_full = self.is_pipe or stat.S_ISSOCK(mode)

    async def write(self, data: bytes) -> None:
        """Writes the data. Raises OSError; BrokenPipeError where a pipe or a socket has no reader."""
        if not self._may_be_full:
            self._out.write(data)
            self._out.flush()
            return
        rest = memoryview(data)
        while rest:
            if not _events(self._descriptor, select.POLLOUT):
                await self._room()
            count = os.write(self._descriptor, rest[: select.PIPE_BUF])  # does not block where POLLOUT was seen
            self.written += count
            rest = rest[count:]

    async def _room(self) -> None:
        """Returns when the pipe has room, or no reader."""
        import asyncio

        loop, is_ready = asyncio.get_running_loop(), asyncio.Event()
        loop.add_writer(self._descriptor, is_ready.set)
        try:
            await is_ready.wait()
        finally:
            loop.remove_writer(self._descriptor)

    async def until_read(self) -> None:
        """Returns when the pipe is empty. Raises BrokenPipeError where it has no reader before."""
        import asyncio

        pause = 0.001
        while self.unread():
            if _events(self._descriptor, 0):
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))
            await asyncio.sleep(pause)  # there is no event when a reader reads
            pause = min(2 * pause, _LONGEST_PAUSE)

    def unread(self) -> int:
        """Returns the bytes in the pipe. Their number is final only after the last reader was seen to have gone."""
        return int.from_bytes(fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)), sys.byteorder)


def _events(descriptor: int, wanted: int) -> list[tuple[int, int]]:
    """Returns the events that have occurred; POLLERR, of a pipe without a reader, is always included."""
    poll = select.poll()
    poll.register(descriptor, wanted)
    return poll.poll(0)


KEPT_EVERY = 1.0
"""Seconds between two writes of the file of `--resume`."""

_AT_ONCE = 1000
"""Records of a group's member that are printed, and then finished, together."""
_GROUP_STARTS = ("earliest", "latest", "new")
_POSITION = "[{words}|OFFSET|TIME]"


@click.command()
@click.argument("streams", nargs=-1, metavar="STREAM...", shell_complete=stream_names)
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
    "--order",
    type=click.Choice(["partition", "key"]),
    help="What is in order besides the records of each partition; key: the records of each key, also where a change of"
    " the number of partitions has taken them to another one.  [default: key with --group, else partition]",
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
@click.option(
    "--read-uncommitted",
    is_flag=True,
    help="Print the records of transactions that are open or were aborted, too, and wait for none.",
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
@raw_option
@click.option(
    "--resume",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Go on behind what was printed with this FILE before; where it is not there yet, begin at --start. Positions "
    "are kept in it every second and at the end; after a crash, up to a second is printed again.",
)
@click.option(
    "--group",
    metavar="NAME",
    shell_complete=group_names,
    help="Read as a member of this consumer group: its members share the partitions, and go on behind what it has "
    "committed; --start is for partitions of which it has committed nothing.",
)
@click.option(
    "--pattern",
    "patterns",
    multiple=True,
    metavar="TEXT",
    help="With --group, also streams whose names match, with * for any characters and ? for one; repeatable.",
)
@click.option(
    "--instance-id",
    metavar="NAME",
    help="With --group, a name that this member keeps when it is started again: its partitions wait for it meanwhile.",
)
@cluster_command
def subscribe(
    streams: tuple[str, ...],
    start: str,
    stop: str | None,
    zone: tzinfo | None,
    partitions: tuple[int, ...],
    order: Literal["partition", "key"] | None,
    rack: str | None,
    limit: int | None,
    form: str | None,
    raw: bool,
    resume: Path | None,
    group: str | None,
    patterns: tuple[str, ...],
    instance_id: str | None,
    as_json: bool,
    **options: Any,
) -> Work:
    """Print the committed records of STREAM. With --group there may be several.

    Each is a line: PARTITION:OFFSET, time, key and value, with tabs between them, or what --format says. Records of a
    partition come in order, partitions as they answer.

    \b
    What is new since the last time        tidelog subscribe STREAM --stop latest --resume FILE
    The values of one partition, to a pipe tidelog subscribe STREAM --partition 0 --format raw | ...
    Share the work with others             tidelog subscribe STREAM STREAM --group NAME

    Records that a member of a group has printed are committed once they have left the process, and those in a pipe
    once they were read: every second, when a partition goes to another member, and at the end, also after Ctrl-C, and
    where the reader of the pipe ends. After a crash, those of up to a second are printed again.
    """
    if as_json and form not in (None, "json"):
        raise click.UsageError(f"--json and --format {form!r} ask for different things; give one of them")
    if options["read_from"] == "nearest" and rack is None:
        raise click.UsageError("--read-from nearest needs --rack NAME")
    show = record_format("json" if as_json else form or "text", shown_time(zone), cleaner(raw=raw))
    if group is not None:
        refused = {"--stop": stop, "--partition": partitions, "--resume": resume}
        for option, given in refused.items():
            if given:
                raise click.UsageError(f"{option} is not for a member of a group; leave it or --group out")
        if start not in _GROUP_STARTS:
            raise click.UsageError(f"--start {start}: with --group it is one of {', '.join(_GROUP_STARTS)}")

        async def take_part(client: Client) -> None:
            async with (
                client.subscribe(
                    streams,
                    group=group,
                    patterns=patterns,
                    instance_id=instance_id,
                    start=cast("Literal['earliest', 'latest', 'new']", start),
                    order=order or "key",
                    auto_commit_interval=KEPT_EVERY,
                    rack=rack if options["read_from"] == "nearest" else None,
                    **options
                    | {
                        "on_gap": options["on_gap"] or "skip",
                        "on_out_of_range": options["on_out_of_range"] or "earliest",
                    },
                ) as member,
                delays_reported(member),
            ):
                await _print_shared(member, show, limit)

        return take_part
    if patterns or instance_id is not None:
        raise click.UsageError("--pattern and --instance-id are for members of a group; name it with --group")
    if len(streams) != 1:
        raise click.UsageError("name one stream; several are for the members of a group (--group)")
    (stream,) = streams
    begin = position("--start", start, zone)
    end = None if stop is None else position("--stop", stop, zone)

    async def work(client: Client) -> None:
        from tidelog.cli.records.positions_file import PositionsFile

        file = None if resume is None else PositionsFile(resume, await client.metadata(stream))
        kept = None if file is None else file.start(partitions)
        async with (
            client.consume(
                stream,
                start=begin if kept is None else kept,
                stop=end,
                partitions=partitions or None,
                order=order or "partition",
                rack=rack if options["read_from"] == "nearest" else None,
                **options,
            ) as consumer,
            delays_reported(consumer),
        ):
            if file is None:
                await _print(consumer, show, limit, {})
            else:
                await _print_and_keep(consumer, show, limit, file)

    return work


async def _print_shared(member: GroupConsumer, show: RecordFormat, limit: int | None) -> None:
    """Prints records of a group. The next call for records finishes those that have left this process, or were read
    from the pipe."""
    out = StandardOutput()
    left = sys.maxsize if limit is None else limit
    while left:
        records = await member.getmany(min(left, _AT_ONCE))
        lines = [show(record) for record in records]
        if out.is_pipe:
            await _pass_on(out, lines, records, member)
        else:
            await out.write(b"".join(lines))
        left -= len(records)


async def _pass_on(pipe: StandardOutput, lines: list[bytes], records: list[Record], member: GroupConsumer) -> None:
    """Returns when all lines were read. Where the reader has gone before, or this is interrupted, the records that were
    read whole are finished, and BrokenPipeError or CancelledError is raised."""
    import asyncio

    begin = pipe.written
    try:
        await pipe.write(b"".join(lines))
        await pipe.until_read()
    except (BrokenPipeError, asyncio.CancelledError):
        first = bisect_right([*accumulate(map(len, lines))], pipe.written - pipe.unread() - begin)
        with suppress(TidelogError):  # the partition has gone, with its unfinished records
            if first == len(records):
                await member.commit()
            else:
                await member.seek(records[first].stream, records[first].partition, records[first].offset)
        raise


async def _print(consumer: Consumer, show: RecordFormat, limit: int | None, printed: dict[int, Position]) -> None:
    """`printed`: the next positions, per partition; moves once the records of a batch have left this process."""
    out = StandardOutput()
    left = sys.maxsize if limit is None else limit
    async for batch in consumer.batches():
        count = min(len(batch), left)
        await out.write(b"".join(map(show, islice(batch.records(), count))))
        printed.update(_positions(consumer))
        if count < len(batch):
            printed[batch.partition] = printed[batch.partition]._replace(offset=int(batch.offsets[count]))
        left -= count
        if not left:
            return


def _positions(consumer: Consumer) -> dict[int, Position]:
    from tidelog.cli.records.positions_file import Position

    lives = consumer.incarnations
    return {partition: Position(offset, lives[partition]) for partition, offset in consumer.positions.items()}


async def _print_and_keep(consumer: Consumer, show: RecordFormat, limit: int | None, file: PositionsFile) -> None:
    import asyncio

    await consumer.start()
    printed = _positions(consumer)
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
