"""Tables at the width of a terminal: nothing is cut short."""

from __future__ import annotations

import re
from typing import Any

import pytest
from rich.console import Console

from tests.unit.tidelog.client.fake_broker import blank
from tidelog.cli.administration import audit
from tidelog.cli.streams import group, stream, transaction
from tidelog.cli.terminal import tables
from tidelog.cli.terminal.tables import Rows
from wire.operations.api_operations import StreamDescription

TIME_NS = 1_769_860_800_123_456_789
TIME = "2026-01-31T12:00:00.123456789Z"
MEMBER = "worker@ip-10-0-11-17.eu-central-1:41234-5f2c0d9a71e84b3c"


@pytest.fixture
def at(monkeypatch: pytest.MonkeyPatch) -> Any:
    def with_width(width: int) -> None:
        monkeypatch.setattr(tables, "console", lambda: Console(width=width))

    with_width(80)
    return with_width


def assert_within(out: str, width: int) -> None:
    assert all(len(line) <= width for line in out.splitlines() if line[:1] in "│┃┏└┡")
    assert "…" not in out


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_transactions_show_ids_and_times_whole(at: Any, capsys: pytest.CaptureFixture[str], width: int) -> None:
    at(width)
    each: dict[str, Any] = {
        "transactional_id": "spark-orders-7f3e21-part-00017", "state": "open", "producer_id": (1 << 62) - 1,
        "producer_epoch": 3, "opened_at_ns": TIME_NS, "timeout_ms": 60_000, "partitions": 12, "groups": 1,
    }  # fmt: skip
    found: Any = {"transactions": [each], "left_out": 0, "unanswered": []}
    transaction._show_list(found, idle=False)
    out = capsys.readouterr()
    assert_within(out.out, width)
    assert each["transactional_id"] in out.out
    assert TIME in out.out
    dropped = {60: None, 80: "groups, partitions, epoch, producer, timeout", 100: "groups, partitions, epoch, producer"}
    if width == 60:
        assert re.search(r"^transactional id +spark-orders", out.out, re.MULTILINE), "a block of lines"
    elif width in dropped:
        assert out.err == f"not shown, for want of width: {dropped[width]} (--json has all)\n"
    else:
        assert out.err == ""


@pytest.mark.parametrize("width", [80, 132])
def test_groups_show_members_whole(at: Any, capsys: pytest.CaptureFixture[str], width: int) -> None:
    at(width)
    progress = {
        "stream": "orders", "partition": 2, "committed": 4, "end": 7, "lag": 3, "member": "m-1", "metadata": "x" * 300,
        "committed_at_ns": TIME_NS, "waits_for": {},
    }  # fmt: skip
    unknown = progress | {"partition": 3, "committed": None, "lag": None, "committed_at_ns": 0}
    member = {
        "id": MEMBER, "client": "client-" + "c" * 60, "instance": "", "parted": False, "subscription": ["orders"],
        "assigned": {"orders": [2]}, "revoking": {},
    }  # fmt: skip
    found: Any = {
        "name": "billing", "state": "stable", "generation": 3, "coordinator": "b1", "partition": 0,
        "details": [member], "offsets": [], "pending": [], "left_out": 0, "progress": [progress, unknown],
    }  # fmt: skip
    group._show_description(found)
    out = capsys.readouterr().out
    assert_within(out, width)
    assert MEMBER in out
    assert (TIME in out) == (width == 132)
    assert out.endswith("lag in all: 3 in 2 partitions; it is not known of 1\n")


@pytest.mark.parametrize("width", [80, 110])
def test_the_audit_shows_times_streams_and_requests(at: Any, capsys: pytest.CaptureFixture[str], width: int) -> None:
    at(width)
    record = {
        "time": "2026-01-31T12:00:00.123+00:00", "operation": "partition.unclean_elect", "stream": "flights",
        "outcome": "refused", "code": "FENCED_LEADER_EPOCH", "request": {"partition": 3, "broker": "b1"},
        "nats": {"account": "OPS", "user": "alice", "host": "10.0.0.1"},
    }  # fmt: skip
    printer = audit.TrailPrinter(audit._COLUMNS, audit._FOLDS, follow=False, as_json=False)
    for _ in range(2):
        printer.add(record, lambda: audit._row(record, None))
    printer.end()
    out = capsys.readouterr().out
    assert_within(out, width)
    assert out.count("2026-01-31T12:00:00.123Z") == out.count("flights") == 2
    if width == 80:
        assert out.count('\nrequest  {"partition": 3, "broker": "b1"}\n') == 2, "a block of lines for each act"


def test_a_cell_with_several_lines_is_as_wide_as_its_longest(at: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = Rows("partition", "on disk", folds=("on disk",))
    rows.add("0", "b1 1.2 MB\nb2 0 B")
    rows.show()
    assert [line.split("│")[2] for line in capsys.readouterr().out.splitlines() if line[:1] == "│"] == [
        " b1 1.2 MB ", " b2 0 B    ",
    ]  # fmt: skip


def test_a_stream_is_a_table_at_80_columns(
    at: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stream, "console", lambda: Console(width=80))
    replicas = ["b1", "b2", "b3"]
    partition = {
        "partition": 0, "leader": "b1", "leader_epoch": 17, "replicas": replicas, "isr": replicas,
        "high_watermark": 50_000, "last_stable_offset": None, "log_start_offset": 0, "log_end_offset": 50_001,
        "replicas_progress": {
            each: {"bytes_on_disk": 451_000, "damage": None, "quarantined": None} for each in replicas
        },
    }  # fmt: skip
    found: Any = blank(StreamDescription, name="s", subject="s", partitions=[partition])
    stream._show_description(found)
    out = capsys.readouterr().out
    assert_within(out, 80)
    (row,) = [line for line in out.splitlines() if line[:1] == "│"]
    cells = [cell.strip() for cell in row.split("│")[1:-1]]
    assert (cells[:3], cells[-1]) == (["0", "b1", "b1 b2 b3"], "3 x 451 kB")
