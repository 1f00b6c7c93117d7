"""`tidelog stream` against a cluster in memory."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from tests.unit.tidelog.client.fake_broker import blank
from tidelog.cli import main
from tidelog.cli.streams.stream import _show_damage
from tidelog.cli.terminal import session
from tidelog.client.base.exceptions import StreamExists
from wire.errors import Code
from wire.operations.api_operations import ReplicaProgress, StreamDescription


class _Client:
    """Creates one stream."""

    def __init__(self) -> None:
        self.is_there = False

    async def create_stream(self, name: str, **_: object) -> Any:
        if self.is_there:
            raise StreamExists(Code.STREAM_EXISTS, f"stream {name} exists")
        self.is_there = True
        return blank(StreamDescription, replication_factor=3)

    async def ensure_stream(self, name: str, **asked: object) -> Any:
        created = not self.is_there
        found = await self.create_stream(name, **asked) if created else blank(StreamDescription, replication_factor=3)
        return {**found, "created": created}


def test_a_stream_that_was_made_is_told_from_one_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    client = _Client()

    async def connected(_server: object, _namespace: object, work: Any, *_: object) -> None:
        await work(client)

    monkeypatch.setattr(session, "_connected", connected)
    create = ["stream", "create", "flights", "--partitions", "2"]
    said = "stream flights: subject flights, 2 partitions, replication factor 3\n"
    assert CliRunner().invoke(main, [*create, "--if-not-exists"]).stdout == f"created {said}"
    assert CliRunner().invoke(main, [*create, "--if-not-exists"]).stdout == f"there already is {said}"
    refused = CliRunner().invoke(main, create)
    assert (refused.exit_code, refused.stderr) == (1, "tidelog: stream flights exists\n")


@pytest.mark.parametrize(
    ("file", "end"), [("1.log", "at offset 0 (1.log, byte 10)"), ("", "at offset 0: the folder is missing or empty")]
)
def test_damage_that_was_cut_out_is_told_with_its_file_or_its_reason(
    capsys: pytest.CaptureFixture[str], file: str, end: str
) -> None:
    latest = {
        "when": "2026-01-31T12:00:00Z", "sound_end": 0, "file": file, "first_byte": 10,
        "reason": "the folder is missing or empty",
    }  # fmt: skip
    progress: Any = blank(ReplicaProgress, damage=None, quarantined={"events": 1, "latest": latest})
    session.console.cache_clear()
    _show_damage(0, "b3", progress)
    words = " ".join(capsys.readouterr().out.split())
    assert words == f"b3 cut damage out of partition 0 1 time, the last 2026-01-31T12:00:00Z {end}"
