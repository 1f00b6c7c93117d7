"""How far a group is: every partition of its streams is listed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.tidelog.client.group.members_world import members_world
from wire.errors import Code, TidelogError


def description(streams: list[str], committed: dict[tuple[str, int], int]) -> dict[str, Any]:
    """Of a group without members."""
    offsets = [
        {"stream": stream, "partition": partition, "offset": offset, "metadata": "", "committed_at_ns": 1}
        for (stream, partition), offset in committed.items()
    ]
    return {"details": [], "offsets": offsets, "streams": streams}


@pytest.mark.parametrize("is_reported", [True, False])
async def test_partitions_of_which_nothing_is_committed_are_listed(
    monkeypatch: pytest.MonkeyPatch, is_reported: bool
) -> None:
    """Of a stream of which something is committed, and of one that is subscribed to; also where no leader tells an end.
    Patterns, and streams that are not there, have none."""
    async with members_world() as world:
        client = world.client()
        await client.metadata("s")
        await client.metadata("t")

        async def describe(_: str) -> dict[str, Any]:
            return description(["gone", "s", "t", "t*"], {("s", 1): 10})

        async def no_leader(*_: object) -> dict[int, int]:
            raise TidelogError(Code.UNAVAILABLE, "no leader")

        monkeypatch.setattr(client._groups, "_describe", describe)
        if not is_reported:
            monkeypatch.setattr(client._groups, "_offsets", no_leader)
        progress = (await client.describe_group("g"))["progress"]
        end, lag = (10, 0) if is_reported else (None, None)
        assert [
            (entry["stream"], entry["partition"], entry["committed"], entry["end"], entry["lag"]) for entry in progress
        ] == [("s", 0, None, end, None), ("s", 1, 10, end, lag), ("t", 0, None, end, None), ("t", 1, None, end, None)]
