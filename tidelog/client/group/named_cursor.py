"""A cursor: a named value in the cluster, written with compare-and-set if it is to be."""

from __future__ import annotations

from typing import NamedTuple

from tidelog.client.base.arguments import bad, check_whole, shown
from tidelog.client.base.exceptions import CursorChanged, typed
from tidelog.client.cluster.coordinator_link import Attempts, CoordinatorLink
from wire.errors import Code, TidelogError
from wire.internal_records.group_records import CURSOR, check_cursor_name
from wire.protobuf.groups_pb2 import CursorRequest, CursorResponse

MAX_VALUE_BYTES = 4096
_TIMEOUT = 15.0
"""Seconds for one call, with all its repetitions."""
_MAX_VERSION = (1 << 64) - 1


class CursorValue(NamedTuple):
    value: bytes
    version: int
    """Larger with each write, and never used again."""


class Cursor:
    """A named value of at most 4 KiB. Make it with `Client.cursor`; nothing is written before `set`.

    Each write is answered when the in-sync replicas have it. With `expected_version`, it is written only if the cursor
    has that version (0: it does not exist), and raises CursorChanged otherwise, which tells the present `version`.
    Where an answer was lost, so that the other version may be that of this very write, it raises DeliveryTimeout with
    `outcome_unknown`: read the cursor then. NoServer: no coordinator answered in time, and a write may have been done.
    """

    def __init__(self, link: CoordinatorLink, name: str) -> None:
        try:
            self._name = check_cursor_name(name)
        except TidelogError as error:
            raise typed(error) from None
        self._link = link

    @property
    def name(self) -> str:
        """As it was given."""
        return self._name

    async def get(self) -> CursorValue | None:
        """(value, version); None: it does not exist."""
        answer = await self._ask(CursorRequest(), Attempts())
        return CursorValue(answer.value, answer.version) if answer.version else None

    async def set(self, value: bytes, expected_version: int | None = None) -> int:
        """Its new version."""
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise bad(f"value={shown(value)} is no bytes; give bytes, such as text.encode()")
        written = bytes(value)
        if len(written) > MAX_VALUE_BYTES:
            raise bad(f"a cursor's value is at most {MAX_VALUE_BYTES} bytes, and this one has {len(written)}")
        attempts = Attempts()
        try:
            return (await self._write(CursorRequest(value=written), expected_version, attempts)).version
        except CursorChanged as error:
            if not attempts.repeated:
                raise
            raise typed(
                TidelogError(
                    Code.OUTCOME_UNKNOWN,
                    f"an answer was lost, and cursor {self.name!r} has version {error.version} now, which may be that"
                    " of this write; read it to find out",
                )
            ) from None

    async def delete(self, expected_version: int | None = None) -> None:
        """Forget the cursor, if it has `expected_version` (None: whatever it has). Raises CursorChanged, NoServer."""
        attempts = Attempts()
        try:
            await self._write(CursorRequest(deletes=True), expected_version, attempts)
        except CursorChanged as error:
            if not attempts.repeated or error.version != 0:
                raise

    async def _write(self, request: CursorRequest, expected_version: int | None, attempts: Attempts) -> CursorResponse:
        request.writes = True
        if expected_version is not None:
            check_whole("expected_version", expected_version, 0, _MAX_VERSION)
            request.expected_version = expected_version
        return await self._ask(request, attempts)

    async def _ask(self, request: CursorRequest, attempts: Attempts) -> CursorResponse:
        request.cursor = self.name
        request.cluster_id = await self._link.cluster_id()
        return await self._link.ask(CURSOR, self.name, request, CursorResponse, timeout=_TIMEOUT, attempts=attempts)
