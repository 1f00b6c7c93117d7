"""`tidelog stream`: create, list, describe, alter, delete, and changes of some of its partitions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from tidelog.cli.streams.reassign import reassign
from tidelog.cli.streams.repartition import alter_partitions, in_words, repartition, show_layouts, state_of
from tidelog.cli.streams.replica_plan import alter_factor
from tidelog.cli.streams.stream_copy import copy
from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.session import (
    Work,
    cluster_command,
    cluster_options,
    confirm,
    console,
    counted,
    print_answer,
    print_json,
    run,
    yes_option,
)
from tidelog.cli.terminal.setting_options import SettingsCommand, alteration_options, config_of, config_option
from tidelog.cli.terminal.shown import shown
from tidelog.cli.terminal.tables import Rows, rates, size, sizes
from tidelog.cli.terminal.tables import in_words as traffic_in_words
from wire.durability import DEFAULT_REPLICAS, MAX_REPLICAS
from wire.layouts import DEFAULT_PARTITIONER, MAX_PARTITIONS, PARTITIONERS

if TYPE_CHECKING:
    from tidelog.client.client import Client
    from wire.operations.api_operations import PartitionDescription, ReplicaProgress, StreamDescription, StreamSummary
    from wire.operations.partition_operations import ChangedPartition, RepartitionStatus


ENDS = ("committed end", "log end")
"""Names of two exclusive ends: the offset behind the HW, and the LEO."""


@click.group()
def stream() -> None:
    """Streams and their settings."""


def _check_before(_ctx: click.Context, _parameter: click.Parameter, given: str) -> int | None:
    """Returns the offset; None: latest."""
    if given == "latest":
        return None
    if not (given.isascii() and given.isdigit()) or int(given) >= 1 << 63:
        raise click.BadParameter(f"{given!r} is neither an offset, such as 120000, nor 'latest'")
    return int(given)


@stream.command(cls=SettingsCommand)
@click.argument("name")
@click.option("--subject", help="NATS subject to capture; partition i listens on SUBJECT.i.  [default: NAME]")
@click.option("--partitions", type=click.IntRange(min=1, max=MAX_PARTITIONS), default=1, show_default=True)
@click.option(
    "--replication-factor",
    type=click.IntRange(min=1, max=MAX_REPLICAS),
    help="Replicas of each partition.  [default: the brokers of placement=pinned:…, else the cluster's"
    f" default_replication_factor, {DEFAULT_REPLICAS}, or all brokers of a smaller cluster]",
)
@click.option(
    "--partitioner",
    type=click.Choice(PARTITIONERS),
    help="The hash that gives a key its partition, for producers that choose none; murmur2 as in Kafka's Java clients."
    f" It cannot be altered.  [default: {DEFAULT_PARTITIONER}]",
)
@click.option(
    "--if-not-exists", is_flag=True, help="Leave a stream that is there as it is, if it is what these options say."
)
@config_option
@partial(cluster_command, waits_for_start=True)
def create(name: str, if_not_exists: bool, settings: tuple[str, ...], as_json: bool, **options: Any) -> Work:
    """Create a stream. A cluster that is still starting is waited for.

    A setting that --config does not name has the cluster's default (`tidelog cluster alter`), else the one below.

    Replicas are spread over brokers and zones as evenly as can be. docs/placement.md says how that is changed.

    \b
    Examples:
      tidelog stream create orders --partitions 12
      tidelog stream create canary --config placement=pinned:b1,b2,b3 --config leader_pin=b1
      tidelog stream create hot --config require_tags=ssd --config prefer_tags=region=eu
      tidelog stream create invoices --partitions 12 --config colocate_with=orders
    """
    config = config_of(settings)

    async def work(client: Client) -> None:
        create = client.ensure_stream if if_not_exists else client.create_stream
        made = await create(name, config=config, **options)
        if as_json:
            print_json(made)
        else:
            done = "created" if made.get("created", True) else "there already is"
            click.echo(
                f"{done} stream {name}: subject {options['subject'] or name}, "
                f"{counted(options['partitions'], 'partition')}, "
                f"replication factor {made['replication_factor']}"
            )
        for note in made.get("notes", []):
            click.echo(f"tidelog: {note}", err=True)

    return work


@stream.command(name="list")
@click.option("--internal", is_flag=True, help="With Tidelog's own streams.")
@cluster_command
async def list_(client: Client, internal: bool, as_json: bool) -> None:
    """List the streams, with the bytes that their replicas have on disks, and what clients send and are sent.

    The rates are those of the last minute; `tidelog stream describe` tells more.
    """
    found = await client.streams_with_usage(internal=internal)
    streams = sorted(found["streams"], key=lambda summary: summary["name"])
    if as_json:
        print_json(streams)
    elif streams:
        _show_list(streams)
    else:
        click.echo("no streams; make one with `tidelog stream create NAME`")
    if streams and (missing := found["unanswered"]):
        click.echo(
            f"tidelog: what {', '.join(missing)} has of them is missing in bytes on disk and traffic: no answer",
            err=True,
        )


@stream.command()
@click.argument("name", shell_complete=stream_names)
@cluster_command
async def describe(client: Client, name: str, as_json: bool) -> None:
    """Show a stream's partitions: leaders, in-sync replicas, offsets, bytes on disk; and the traffic of its clients.

    Traffic is counted by each broker since it was started. Bytes are those of the segments, of each replica.
    """
    print_answer(await client.describe(name), _show_description, as_json)


@stream.command(cls=SettingsCommand)
@click.argument("name", shell_complete=stream_names)
@click.option(
    "--partitions",
    metavar="N",
    type=click.IntRange(min=1, max=MAX_PARTITIONS),
    help="Spread keys over N partitions from now on. What was written stays where it is.",
)
@click.option(
    "--replication-factor",
    "factor",
    metavar="N",
    type=click.IntRange(min=1, max=MAX_REPLICAS),
    help="Let each partition have N replicas from now on.",
)
@click.option(
    "--dry-run", "only_plan", is_flag=True, help="Only show what --partitions or --replication-factor would do."
)
@click.option("--no-wait", is_flag=True, help="Do not wait until the change of --partitions is finished.")
@yes_option
@alteration_options
@cluster_options
def alter(
    name: str,
    partitions: int | None,
    factor: int | None,
    only_plan: bool,
    no_wait: bool,
    yes: bool,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Change settings of a stream, or its number of partitions or replicas, while it is used.

    All settings that are given are changed, or none.

    --partitions shows what it will do, asks for the stream's name (elsewhere than on a terminal it needs --yes), and
    waits until it is finished: some milliseconds, or half a minute where no client reports that it has heard of it, or
    one does not. Producers go on meanwhile, and the records of a key stay in their order for consumers that read by
    key, as groups do.

    --replication-factor shows what will be copied, asks likewise, and returns when that has begun; `tidelog cluster
    moves --stream NAME --watch` waits for the end. Replicas that are added copy within the replication budget; those
    that are taken away go with their files. A min_isr that was given stays; a derived one grows when all partitions
    have their replicas, and shrinks at once. `tidelog cluster moves --cancel` leaves the replicas as they were, and the
    same command again goes on.

    \b
    Examples:
      tidelog stream alter orders --config retention_max_age_ms=7d --unset max_record_bytes
      tidelog stream alter orders --partitions 6 --dry-run
      tidelog stream alter orders --partitions 6
      tidelog stream alter orders --replication-factor 3
    """
    config = config_of(settings)
    if factor is not None:
        if config or unset or partitions is not None or no_wait:
            raise click.UsageError(
                "--replication-factor stands alone, with --dry-run or --yes; make other changes apart"
            )
        alter_factor(name, factor, only_plan=only_plan, yes=yes, server=server, namespace=namespace, as_json=as_json)
        return
    if partitions is not None:
        if config or unset:
            raise click.UsageError("--partitions stands alone; change settings before it, or after it")
        alter_partitions(
            name,
            partitions,
            only_plan=only_plan,
            yes=yes,
            waits=not no_wait,
            server=server,
            namespace=namespace,
            as_json=as_json,
        )
        return
    if only_plan or no_wait:
        raise click.UsageError(f"{'--dry-run' if only_plan else '--no-wait'} is about --partitions; add --partitions N")
    if not config and not unset:
        raise click.UsageError(
            "give what is to change: --config KEY=VALUE, --unset KEY, --partitions N, or --replication-factor N"
        )

    async def work(client: Client) -> None:
        print_answer(await client.alter_stream(name, config=config, unset=unset), _show_description, as_json)

    run(server, namespace, work)


stream.add_command(reassign)
stream.add_command(repartition)
stream.add_command(copy)


@stream.command()
@click.argument("name", shell_complete=stream_names)
@yes_option
@cluster_command
def delete(name: str, yes: bool, as_json: bool) -> Work:
    """Delete a stream with all its records.

    On a terminal it asks for the stream's name; elsewhere it needs --yes.
    """
    confirm(f"deletes stream {name} with all its records", name, yes=yes)

    async def work(client: Client) -> None:
        await client.delete_stream(name)
        print_answer({"deleted": name}, f"deleted stream {name}", as_json)

    return work


partitions_option = click.option(
    "--partition",
    "partitions",
    type=click.IntRange(min=0),
    multiple=True,
    help="Only this partition; may be given several times.  [default: all]",
)


@stream.command(name="set-readonly")
@click.argument("name", shell_complete=stream_names)
@partitions_option
@click.option("--off", is_flag=True, help="Let them take records again.")
@cluster_command
async def set_readonly(client: Client, name: str, partitions: tuple[int, ...], off: bool, as_json: bool) -> None:
    """Let a stream, or some of its partitions, take no records.

    Publishes are refused (READONLY); whoever reads reads on, and so do retention and compaction. The stream stays as it
    is said here, whatever happens to brokers, until it is turned off.

    \b
    Example, before a stream is copied elsewhere for good:
      tidelog stream set-readonly flights
      tidelog stream set-readonly flights --partition 2 --off
    """
    changed = await client.set_readonly(name, not off, partitions or None)
    if as_json:
        print_json(changed)
        return
    numbers = [part["partition"] for part in changed]
    click.echo(f"{_partitions_of(name, numbers)} {_takes(numbers)} {'records again' if off else 'no records'}")
    _warn_of_late(changed)


@stream.command()
@click.argument("name", shell_complete=stream_names)
@partitions_option
@click.option("--resume-all", is_flag=True, help="A publish to one of them resumes all partitions of the stream.")
@cluster_command
async def pause(client: Client, name: str, partitions: tuple[int, ...], resume_all: bool, as_json: bool) -> None:
    """Pause a stream, or some of its partitions, to which nothing is published for long.

    Followers of a paused partition sleep: they neither ask their leader for records nor watch it. A publish of any kind
    ends the pause of its partition by itself, and is stored and acknowledged as ever; consumers read on. With the
    setting auto_pause_time_ms partitions are paused by themselves.
    """
    changed = await client.pause(name, partitions or None, resume_all)
    _show_changed(name, changed, "paused", as_json)


@stream.command()
@click.argument("name", shell_complete=stream_names)
@partitions_option
@cluster_command
async def resume(client: Client, name: str, partitions: tuple[int, ...], as_json: bool) -> None:
    """End the pause of a stream, or of some of its partitions."""
    _show_changed(name, await client.resume(name, partitions or None), "not paused", as_json)


def _show_changed(name: str, changed: list[ChangedPartition], how: str, as_json: bool) -> None:
    if as_json:
        print_json(changed)
        return
    numbers = [part["partition"] for part in changed]
    click.echo(f"{_partitions_of(name, numbers)} {'is' if len(numbers) == 1 else 'are'} {how}")
    _warn_of_late(changed)


@stream.command(name="delete-records")
@click.argument("name", shell_complete=stream_names)
@click.option(
    "--before",
    metavar="OFFSET|latest",
    required=True,
    callback=_check_before,
    help="Records below this offset go; latest: all that are committed.",
)
@partitions_option
@yes_option
@cluster_command
def delete_records(name: str, before: int | None, partitions: tuple[int, ...], yes: bool, as_json: bool) -> Work:
    """Delete the records at the beginning of partitions, for good.

    They are served no more when the command returns, and stay deleted whatever happens to brokers. Their bytes leave
    the disks with the segments that hold nothing else (some seconds). An offset is one of one partition: name that
    partition where the stream has several.

    On a terminal it asks for the stream's name; elsewhere it needs --yes.

    \b
    Examples:
      tidelog stream delete-records flights --before latest
      tidelog stream delete-records flights --before 120000 --partition 2
    """
    which = f"partition {', '.join(map(str, sorted({*partitions})))}" if partitions else "all partitions"
    what = "all records" if before is None else f"the records below offset {before}"
    confirm(f"deletes {what} of {which} of stream {name}", name, yes=yes)

    async def work(client: Client) -> None:
        numbers = sorted({*partitions}) or sorted((await client.metadata(name)).partitions)
        if before is not None and len(numbers) > 1:
            raise click.UsageError(
                f"offset {before} is one of one partition, and stream {name} has {len(numbers)}: add --partition N, or"
                " use --before latest"
            )
        offset: int | Literal["latest"] = "latest" if before is None else before
        changed = await client.delete_records(name, dict.fromkeys(numbers, offset))
        if as_json:
            print_json(changed)
            return
        for part in changed:
            click.echo(f"{name}/{part['partition']} starts at offset {part['log_start_offset']}")
        _warn_of_late(changed)

    return work


def _partitions_of(name: str, numbers: list[int]) -> str:
    listed = ", ".join(map(str, numbers[:20])) + (", …" if len(numbers) > 20 else "")
    return f"{'partition' if len(numbers) == 1 else 'partitions'} {listed} of stream {name}"


def _takes(numbers: list[int]) -> str:
    return "takes" if len(numbers) == 1 else "take"


def _warn_of_late(changed: list[ChangedPartition]) -> None:
    late = sorted({broker for part in changed for broker in part["not_yet"]})
    if late:
        click.echo(f"not known yet by {', '.join(late)}: those follow when they hear of it", err=True)


def _show_list(streams: list[StreamSummary]) -> None:
    table = Rows(
        "stream",
        "subject",
        "partitions",
        "replication factor",
        "on disk",
        "in",
        "out",
        drops=("subject", "replication factor", "partitions"),
    )
    for summary in streams:
        table.add(
            shown(summary["name"]),
            shown(summary["subject"]),
            str(summary["partitions"]),
            str(summary["replication_factor"]),
            size(summary.get("bytes_on_disk")),
            *rates(summary.get("traffic")),
        )
    table.show()


def _show_description(found: StreamDescription) -> None:
    settings = "  ".join(shown(f"{key}={value}") for key, value in sorted(found["config"].items()))
    console().print(
        f"stream [bold]{found['name']}[/]  subject {shown(found['subject'])}  partitioner"
        f" {shown(found['partitioner'])}  on disk {size(found['bytes_on_disk'])}\n{settings}",
        highlight=False,
    )
    for line in traffic_in_words(found["traffic"]):
        console().print(line, highlight=False)
    layouts, begun = found["layouts"], found["repartition"]
    has_states = len(layouts) > 1 or begun is not None
    states = ("state",) if has_states else ()
    table = Rows(
        "partition",
        *states,
        "leader",
        "leader epoch",
        "in sync",
        "behind or away",
        "log start",
        *ENDS,
        "on disk",
        folds=("in sync", "behind or away", "on disk"),
        drops=("leader epoch", "log start"),
    )
    for partition in found["partitions"]:
        last, stable = partition["high_watermark"], partition["last_stable_offset"]
        committed = None if last is None else last + 1
        waits = committed is not None and stable is not None and stable < committed
        table.add(
            str(partition["partition"]),
            *([state_of(partition, layouts)] if has_states else []),
            partition["leader"] or "[red]none[/]",
            str(partition["leader_epoch"]),
            " ".join(partition["isr"]),
            _behind(partition),
            _number(partition["log_start_offset"]),
            _number(committed) + (f"\nstable {_number(stable)}" if waits else ""),
            _number(partition["log_end_offset"]),
            sizes((name, each["bytes_on_disk"]) for name, each in partition["replicas_progress"].items()),
        )
    table.show()
    show_layouts(layouts)
    if begun is not None:
        status: RepartitionStatus = {
            "stream": found["name"],
            "partitioning_version": found["partitioning_version"],
            "partitions": layouts[-1]["partitions"],
            "repartition": begun,
        }
        click.echo(in_words(status))
    readonly = [partition["partition"] for partition in found["partitions"] if partition.get("readonly")]
    if readonly:
        click.echo(f"{_partitions_of(found['name'], readonly)} {_takes(readonly)} no records (read-only)")
    paused = [partition["partition"] for partition in found["partitions"] if partition.get("paused")]
    if paused:
        click.echo(f"{_partitions_of(found['name'], paused)} {'is' if len(paused) == 1 else 'are'} paused")
    for partition in found["partitions"]:
        for broker, subjects in (partition.get("not_heard") or {}).items():
            console().print(
                f"[red]{broker}[/] does not hear partition {partition['partition']}: NATS does not let it subscribe to"
                f" {', '.join(map(shown, subjects))}; see `tidelog security nats-config --role broker`",
                highlight=False,
            )
        for replica, progress in partition["replicas_progress"].items():
            _show_damage(partition["partition"], replica, progress)
            if progress.get("stopped"):
                number = partition["partition"]
                console().print(f"[red]{replica}[/] cannot copy partition {number}: {shown(progress['stopped'])}")
    for broker, refusal in (found.get("refusals") or {}).items():
        console().print(f"[red]{broker}[/] does not tell what it holds: {shown(refusal)}")


def _show_damage(partition: int, replica: str, progress: ReplicaProgress) -> None:
    damage, quarantined = progress["damage"], progress["quarantined"]
    if damage is not None:
        console().print(f"[red]{replica}[/] holds a damaged log of partition {partition}: {shown(damage['reason'])}")
    elif quarantined is not None and (latest := quarantined["latest"]) is not None:
        file = latest["file"]  # it is empty where the log's folder or its first files were missing
        where = f" ({file}, byte {latest['first_byte']})" if file else f": {shown(latest['reason'])}"
        console().print(
            f"[yellow]{replica}[/] cut damage out of partition {partition} {counted(quarantined['events'], 'time')},"
            f" the last {latest['when']} at offset {latest['sound_end']}{where}"
        )


def _behind(partition: PartitionDescription) -> str:
    """Returns the replicas outside the ISR, with their LEO where it is known."""
    parts = []
    for replica in partition["replicas"]:
        if replica in partition["isr"]:
            continue
        progress = partition["replicas_progress"].get(replica)
        end = progress["log_end_offset"] if progress is not None else None
        parts.append(f"[yellow]{replica}[/]" if end is None else f"[yellow]{replica}[/] at {end}")
    return " ".join(parts)


def _number(value: int | None) -> str:
    return "?" if value is None else str(value)
