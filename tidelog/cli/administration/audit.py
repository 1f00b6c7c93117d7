"""`tidelog audit`: the administrative acts that the brokers have recorded."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.terminal.name_completion import stream_names
from tidelog.cli.terminal.points_in_time import FORMS, point_in_time, time_zone_option, told_time
from tidelog.cli.terminal.session import cluster_options, run
from tidelog.cli.terminal.shown import plain, shown
from tidelog.cli.terminal.tables import Rows
from wire.internal_streams import AUDIT, is_internal
from wire.subjects import Subjects

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import tzinfo

    from tidelog.client.base.read_positions import AtTime
    from tidelog.client.client import Client

_COLUMNS = ("time", "act", "stream", "outcome", "client", "request")
_FOLDS = ("act", "outcome", "client", "request")
_REMEMBERED = 10_000
"""Ids of records that were shown: one that was written twice is shown once."""


def _check_stream(_ctx: click.Context, _parameter: click.Parameter, given: str | None) -> str | None:
    from wire.errors import TidelogError
    from wire.subjects import check_stream_name

    try:
        return None if given is None else check_stream_name(given)
    except TidelogError as error:
        raise click.BadParameter(error.message) from None


def trail_options(since: str, stream: str, follow: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns what adds --since, --time-zone, --stream and --follow, with their help; parameters of these names, and
    `zone`."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option("--follow", is_flag=True, help=follow)(command)
        command = click.option("--stream", callback=_check_stream, shell_complete=stream_names, help=stream)(command)
        return click.option("--since", metavar="TIMESTAMP", help=f"{since}  [default: all that are kept]")(
            time_zone_option(command)
        )

    return add


class TrailPrinter:
    """Prints acts or events: each as it comes, as JSON or while they are followed; else all as a table, by `end`."""

    def __init__(self, columns: Sequence[str], folds: Collection[str], *, follow: bool, as_json: bool) -> None:
        self._table = Rows(*columns, folds=folds)
        self._follow = follow
        self._as_json = as_json

    def add(self, one: Mapping[str, Any], row: Callable[[], list[str]]) -> None:
        if self._as_json:
            click.echo(json.dumps(one))
            sys.stdout.flush()
        elif self._follow:
            click.echo(plain("  ".join(row())))
        else:
            self._table.add(*map(shown, row()))

    def end(self) -> None:
        if not self._as_json and not self._follow:
            self._table.show()


@click.command()
@trail_options(
    f"Only acts from then on: {FORMS}; also a date, and times without a zone, which are UTC here as those of the"
    " trail are.",
    "Only acts on this stream.",
    "Go on with acts as they come.",
)
@cluster_options
def audit(
    since: str | None,
    zone: tzinfo | None,
    stream: str | None,
    follow: bool,
    server: str | None,
    namespace: str,
    as_json: bool,
) -> None:
    """Show who changed what: each request that was to change something, and its outcome.

    With --json a line for each act, as docs/security.md describes it; reads are not recorded. An act appears some
    milliseconds after it was answered. The client is what NATS says of it where NATS says anything, else what the
    client says of itself, with a question mark.

    \b
    Example, who deleted a stream in the last days:
      tidelog audit --since 3d --stream flights
    """
    start = "earliest" if since is None else point_in_time("--since", since, zone or UTC)

    async def work(client: Client) -> None:
        printer = TrailPrinter(_COLUMNS, _FOLDS, follow=follow, as_json=as_json)
        seen = told = 0
        async for record in _records(client, Subjects(namespace), start, follow=follow):
            seen += 1
            if stream is not None and record.get("stream") != stream:
                continue
            told += 1
            printer.add(record, partial(_row, record, zone))
        if seen and not told:
            since_then = f" since {since}" if since else ""
            click.echo(f"no act on a stream {stream!r} is among the {seen} that are recorded{since_then}", err=True)
        else:
            printer.end()

    run(server, namespace, work)


async def _records(
    client: Client, subjects: Subjects, start: str | AtTime, *, follow: bool
) -> AsyncIterator[dict[str, Any]]:
    """Yields each record once; none where there has been no act since the bootstrap: the stream does not exist."""
    from tidelog.client.base.exceptions import UnknownStream

    known: dict[str, None] = {}
    try:
        subject = (await client.metadata(AUDIT.name)).subject
        if not is_internal(AUDIT.name, subject, subjects):
            raise click.ClickException(
                f"stream {AUDIT.name}, on subject {subject!r}, is a user's, made under an earlier version of Tidelog:"
                " acts are in the brokers' logs only until it is deleted"
            )
        async with client.consume(
            AUDIT.name, start=start, stop=None if follow else "latest", on_gap="skip"
        ) as consumer:
            async for found in consumer:
                record = json.loads(found.value or b"{}")
                if record.get("id") in known:
                    continue
                known[record.get("id")] = None
                if len(known) > _REMEMBERED:
                    del known[next(iter(known))]
                yield record
    except UnknownStream:
        click.echo("no act is recorded yet: the first one makes the record", err=True)


def _row(record: dict[str, Any], zone: tzinfo | None) -> list[str]:
    request = {key: value for key, value in (record.get("request") or {}).items() if value not in (None, {}, [])}
    outcome = record.get("outcome", "?")
    return [
        told_time(record.get("time", "?"), zone),
        str(record.get("operation", "?")),
        str(record.get("stream") or "-"),
        str(outcome) if record.get("code") is None else f"{outcome}: {record['code']}",
        _client(record),
        json.dumps(request),
    ]


def _client(record: dict[str, Any]) -> str:
    nats = record.get("nats")
    if nats:
        user = nats.get("user")
        host = f" from {nats['host']}" if nats.get("host") else ""
        return f"{nats.get('account', '?')}{f'/{user}' if user else ''}{host}"
    return f"{record['claimed']}?" if record.get("claimed") else "?"
