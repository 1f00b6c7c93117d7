"""Cursors: named values with a version, which compare-and-set compares."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from google.protobuf.message import Message as ProtoMessage

from tidelog.server.coordinators.record_times import Times
from wire.error_details import CURSOR_VERSION, LIMIT
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import CursorKey, RecordKey, check_cursor_name
from wire.protobuf.groups_pb2 import CursorRecord, CursorRequest, CursorResponse

MAX_CURSORS: Final = 100_000
"""Most cursors of one coordinator."""
MAX_VALUE: Final = 4096
"""Bytes."""


@dataclass(slots=True)
class Cursors:
    """A version is the time of the write in ns, or one more than the last: a cursor that was deleted and made again has
    a version that it never had. No decision depends on that time."""

    known: dict[str, CursorRecord] = field(default_factory=dict)

    def carry_out(
        self, request: CursorRequest, times: Times
    ) -> tuple[CursorResponse, dict[RecordKey, ProtoMessage | None]]:
        """Returns the answer, and the records to write. Raises TidelogError."""
        name = check_cursor_name(request.cursor)
        present = self.known.get(name)
        version = 0 if present is None else present.version
        if not request.writes:
            return CursorResponse(version=version, value=present.value if present else b""), {}
        if request.HasField("expected_version") and request.expected_version != version:
            raise TidelogError(
                Code.CURSOR_CHANGED,
                f"cursor {name!r} has version {version}, not {request.expected_version} (0: it does not exist); read"
                " it, and decide again",
                [CURSOR_VERSION.of(version)],
            )
        if request.deletes:
            if self.known.pop(name, None) is None:
                return CursorResponse(), {}
            return CursorResponse(), {CursorKey(name): None}
        if len(request.value) > MAX_VALUE:
            raise TidelogError(
                Code.BAD_REQUEST, f"a value of {len(request.value)} bytes; a cursor has {MAX_VALUE} at most"
            )
        if present is None and len(self.known) >= MAX_CURSORS:
            raise TidelogError(
                Code.LIMIT_REACHED,
                f"{MAX_CURSORS} cursors are kept where {name!r} belongs; delete some",
                [LIMIT.of("cursors")],
            )
        record = self.known[name] = CursorRecord(version=max(version + 1, times.shown), value=request.value)
        return CursorResponse(version=record.version), {CursorKey(name): record}
