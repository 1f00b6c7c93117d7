"""`tidelog activity`: events of the cluster, where its brokers record them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tidelog.cli.administration.audit import TrailPrinter, trail_options
from tidelog.cli.terminal.points_in_time import FORMS, point_in_time, told_time
from tidelog.cli.terminal.session import Work, cluster_command, fail

if TYPE_CHECKING:
    from datetime import tzinfo

    from tidelog.client.client import Client
    from wire.internal_records.activity_events import ActivityEvent

_COLUMNS = ("time", "event", "of", "what")
_SHOWN_APART = frozenset({"id", "generation", "index", "time", "event", "stream", "stream_incarnation", "partition"})


@click.command()
@trail_options(f"Only events from then on: {FORMS}.", "Only events of this stream.", "Go on with events as they come.")
@cluster_command
def activity(since: str | None, zone: tzinfo | None, stream: str | None, follow: bool, as_json: bool) -> Work:
    """Show what happened in the cluster: streams made, altered and deleted, leaders and ISRs changed, brokers died.

    Brokers record it where `activity_stream = true` stands below [metadata] in their configurations. Each event is
    shown once, in the order in which the metadata group applied them. With --json a line for each, with all fields;
    docs/operations.md has them.

    \b
    Example, to watch the leaders and ISRs of a stream:
      tidelog activity --follow --stream flights
    """
    start = "earliest" if since is None else point_in_time("--since", since, zone)

    async def work(client: Client) -> None:
        from tidelog.client.base.exceptions import UnknownStream

        printer = TrailPrinter(_COLUMNS, _COLUMNS[-1:], follow=follow, as_json=as_json)
        try:
            async for event in client.activity(start=start, follow=follow):
                if stream is not None and event.get("stream") != stream:
                    continue
                printer.add(event, partial(_row, event, zone))
        except UnknownStream as error:
            fail(error.message)
        printer.end()

    return work


def _row(event: ActivityEvent, zone: tzinfo | None) -> list[str]:
    fields: dict[str, Any] = {**event}
    about = fields.get("stream") or fields.get("broker") or fields.get("controller") or "-"
    if "partition" in fields:
        about = f"{about}/{fields['partition']}"
    told = {key: value for key, value in fields.items() if key not in _SHOWN_APART and value not in ({}, [], about)}
    what = " ".join(f"{key}={_shown(value)}" for key, value in told.items())
    time = told_time(fields["time"], zone) if fields.get("time") else "earlier"
    return [time, str(fields.get("event", "?")), str(about), what]


def _shown(value: object) -> str:
    match value:
        case list():
            return ",".join(map(str, value))
        case dict():
            return ",".join(f"{key}={text}" for key, text in value.items())
        case None:
            return "-"
        case _:
            return str(value)
