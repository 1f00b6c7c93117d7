"""Reads the activity stream: what happened in the cluster."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Literal, cast

from tidelog.client.errors import UnknownStream
from wire.errors import Code
from wire.internal_records.activity_events import ActivityEvent, EventFilter
from wire.internal_streams import ACTIVITY, is_internal
from wire.subjects import Subjects

if TYPE_CHECKING:
    from tidelog.client.connection import Client
    from tidelog.client.positions import Start

NOT_RECORDED = (
    "no event of this cluster is recorded: `activity_stream = true` below [metadata] in the configurations of all"
    " brokers has them recorded from then on"
)


async def read_activity(client: Client, subjects: Subjects, start: Start, follow: bool) -> AsyncIterator[ActivityEvent]:
    try:
        subject = (await client.metadata(ACTIVITY.name)).subject
    except UnknownStream as error:
        raise UnknownStream(Code.UNKNOWN_STREAM, NOT_RECORDED, error.details) from None
    if not is_internal(ACTIVITY.name, subject, subjects):
        raise UnknownStream(
            Code.UNKNOWN_STREAM,
            f"stream {ACTIVITY.name}, on subject {subject!r}, is a user's, made under an earlier version of Tidelog:"
            " events are not recorded until it is deleted",
        )
    events = EventFilter()
    stop: Literal["latest"] | None = None if follow else "latest"
    async with client.consume(ACTIVITY.name, start=start, stop=stop, on_gap="skip") as consumer:
        async for record in consumer:
            event = json.loads(record.value or b"{}")
            if events.takes(event):
                yield cast("ActivityEvent", event)
