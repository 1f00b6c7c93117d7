"""`tidelog subscribe` on a broker in memory: what it prints, and where it goes on."""

from __future__ import annotations

import asyncio
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Awaitable, Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from tests.unit.tidelog.client.fake_broker import make
from tidelog.cli import main
from tidelog.cli.records import subscribe
from tidelog.cli.records.positions_file import Position
from tidelog.cli.records.record_formats import record_format
from tidelog.cli.records.subscribe import StandardOutput
from tidelog.cli.terminal import delays, session
from tidelog.client.base.read_positions import timestamp_to_text
from tidelog.client.base.records import Record
from wire.batch import decode_headers, encode_headers

HEADERS = decode_headers(encode_headers({"h": [b"1", b"2"], "only": b"\xff"}))
RECORD = Record("s", 3, 7, 1_700_000_000_123_456_789, b"k", "v\N{LATIN SMALL LETTER E WITH ACUTE}".encode(), HEADERS)
LIMIT = 30.0
"""Seconds that a test waits for anything."""
TIME = "2023-11-14T22:13:20.123456789Z"


class World:
    """A stream with two partitions, on a broker that each command finds anew."""

    def __init__(self) -> None:
        self.values: dict[int, list[bytes]] = {0: [], 1: []}
        self.incarnation: int | None = None
        self.later: dict[int, list[bytes]] = {}
        """Of partitions that a repartition has made after all of `values`."""
        self.made_anew: int | None = None
        """The partition of `values` that was removed, and that a repartition has made again."""

    async def connected(self, _server: object, _namespace: object, work: Any, *_: object) -> None:
        _transport, broker, client = make()
        broker.create("s", len(self.values))
        if self.incarnation is not None:
            broker.streams["s"]["incarnation"] = self.incarnation
        for partition, values in self.values.items():
            if values:
                broker.seed("s", partition, values)
        if self.later:
            broker.repartition("s", len(self.values) + len(self.later))
        if self.made_anew is not None:
            broker.repartition("s", len(self.values))
            stream = broker.streams["s"]
            stream["partitions"][self.made_anew]["incarnation"] = stream["layouts"][-1]["generation"] + 1
        for partition, values in self.later.items():
            broker.seed("s", partition, values)
        async with client:
            await work(client)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(session, "_connected", found.connected)
    return found


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["subscribe", "s", *arguments])


def printed(*arguments: str) -> list[str]:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.stderr
    return sorted(result.stdout.splitlines())


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("text", f"3:7\t{TIME}\tk\tvé\n"),
        ("raw", "vé\n"),
        ("{partition}:{offset} {value}", "3:7 vé\n"),
        ("{stream} {time} {timestamp}", f"s {TIME} 1700000000123456789\n"),
        ("{{{key}}}", "{k}\n"),
        ("{header:h} {header:none}.", "1,2 .\n"),
        ("{headers}", '{"h": ["1", "2"], "only": "\\\\xff"}\n'),
        (r"{key}\t{value}\n", "k\tvé\n"),
        (r"{key}\0", "k\0"),
        (r"é\\{key}", "é\\k\n"),
    ],
)
def test_forms(form: str, line: str) -> None:
    assert record_format(form, timestamp_to_text)(RECORD) == line.encode()


def test_a_null_is_empty() -> None:
    assert record_format("[{key}|{value}]", timestamp_to_text)(RECORD._replace(key=None, value=None)) == b"[|]\n"


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("yaml", "neither text, json, raw, lengths nor a template"),
        ("{nosuch}", "there is no field {nosuch}; there are {stream}"),
        ("{value!r}", "no field {value!r}"),
        ("{value:>10}", "no field {value:>10}"),
        ("{header}", "no field {header}"),
        ("{value", "written twice"),
        (r"{value}\x", r"there is no '\\x'"),
    ],
)
def test_a_form_that_cannot_be_is_named(form: str, text: str) -> None:
    with pytest.raises(click.BadParameter) as refused:
        record_format(form, timestamp_to_text)
    assert text in refused.value.message


def test_two_forms_at_once_are_refused(world: World) -> None:
    result = invoke("--json", "--format", "raw")
    assert result.exit_code == 2
    assert "--json and --format 'raw'" in result.stderr


def test_json_is_a_form(world: World) -> None:
    world.values[1] = [b"a"]
    assert printed("--stop", "latest", "--json") == printed("--stop", "latest", "--format", "json")
    assert json.loads(printed("--stop", "latest", "--json")[0])["value"] == "a"


def test_it_goes_on_behind_what_was_printed(world: World, tmp_path: Path) -> None:
    arguments = ("--stop", "latest", "--format", "{partition}:{value}", "--resume", str(tmp_path / "positions"))
    world.values = {0: [b"a", b"b"], 1: [b"c"]}
    assert printed(*arguments) == ["0:a", "0:b", "1:c"]
    assert printed(*arguments) == []
    world.values[0].append(b"d")
    assert printed(*arguments) == ["0:d"]
    assert list(tmp_path.iterdir()) == [tmp_path / "positions"]


def test_a_limit_keeps_the_position_within_a_batch(world: World, tmp_path: Path) -> None:
    arguments = ("--stop", "latest", "--format", "raw", "--resume", str(tmp_path / "positions"))
    world.values = {0: [b"a", b"b", b"c"], 1: []}
    assert printed(*arguments, "--limit", "2") == ["a", "b"]
    assert printed(*arguments, "--limit", "1") == ["c"]
    assert printed(*arguments, "--limit", "1") == []


def test_where_a_start_of_new_began_is_kept(world: World, tmp_path: Path) -> None:
    """Else the records that come between two runs would be passed over."""
    arguments = ("--stop", "latest", "--format", "raw", "--resume", str(tmp_path / "positions"))
    world.values[0] = [b"old"]
    assert printed(*arguments, "--start", "new") == []
    world.values[0].append(b"between")
    assert printed(*arguments, "--start", "new") == ["between"]


def test_each_partition_has_its_own_position(world: World, tmp_path: Path) -> None:
    arguments = ("--stop", "latest", "--format", "raw", "--resume", str(tmp_path / "positions"))
    world.values = {0: [b"a"], 1: [b"b"]}
    assert printed(*arguments) == ["a", "b"]
    world.values = {0: [b"a", b"c"], 1: [b"b", b"d"]}
    assert printed(*arguments, "--partition", "1") == ["d"]
    assert printed(*arguments) == ["c"]


def test_partitions_that_were_made_since_are_read_from_their_beginning(world: World, tmp_path: Path) -> None:
    arguments = ("--stop", "latest", "--format", "raw", "--resume", str(tmp_path / "positions"))
    world.values = {0: [b"a"], 1: [b"b"]}
    assert printed(*arguments) == ["a", "b"]
    world.values[0].append(b"c")
    world.later = {2: [b"d"], 3: [b"e"]}
    result = invoke(*arguments, "--order", "key")
    lines = result.stdout.splitlines()
    assert sorted(lines) == ["c", "d", "e"]
    assert lines.index("c") < lines.index("d")
    world.later[3].append(b"f")
    assert printed(*arguments) == ["f"]


def test_a_partition_that_was_made_anew_is_read_from_its_beginning(world: World, tmp_path: Path) -> None:
    arguments = ("--stop", "latest", "--format", "raw", "--resume", str(tmp_path / "positions"))
    world.values = {0: [b"a"], 1: [b"b", b"c"]}
    assert printed(*arguments) == ["a", "b", "c"]
    world.values[1] = [b"d", b"e", b"f"]
    world.made_anew = 1
    assert printed(*arguments) == ["d", "e", "f"]
    assert printed(*arguments) == []


def test_another_partition_is_no_reason_to_begin_anew(world: World, tmp_path: Path) -> None:
    arguments = ("--stop", "latest", "--format", "raw", "--resume", str(tmp_path / "positions"))
    world.values = {0: [b"a"], 1: [b"b"]}
    assert printed(*arguments, "--partition", "1") == ["b"]
    for more in (("--partition", "0"), ()):
        result = invoke(*arguments, *more)
        assert result.exit_code == 1
        assert "holds no position of partition 0; name another file, or read --partition 1" in result.stderr


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "holds no positions"),
        ("[1]", "holds no positions"),
        ('{"positions": {"0": 1}}', "holds no positions"),
        ('{"cluster": "c1", "stream": "s", "incarnation": 1, "positions": {"0": 1e999}}', "holds no positions"),
        ('{"cluster": "c1", "stream": "t", "incarnation": 1, "positions": {"0": 1}}', "is of stream 't', not 's'"),
        ('{"cluster": "c2", "stream": "s", "incarnation": 1, "positions": {"0": 1}}', "is of cluster 'c2', not 'c1'"),
    ],
)
def test_a_file_of_something_else_is_left_alone(world: World, tmp_path: Path, content: str, text: str) -> None:
    path = tmp_path / "positions"
    path.write_text(content)
    result = invoke("--stop", "latest", "--resume", str(path))
    assert result.exit_code == 1
    assert text in result.stderr
    assert str(path) in result.stderr
    assert path.read_text() == content


def test_the_positions_of_a_deleted_stream_are_not_those_of_its_successor(world: World, tmp_path: Path) -> None:
    arguments = ("--stop", "latest", "--resume", str(tmp_path / "positions"))
    world.values[0] = [b"a"]
    assert printed(*arguments)
    world.incarnation = 99
    result = invoke(*arguments)
    assert result.exit_code == 1
    assert "was deleted" in result.stderr


def test_a_file_that_cannot_be_written_ends_it(world: World, tmp_path: Path) -> None:
    world.values[0] = [b"a"]
    result = invoke("--stop", "latest", "--resume", str(tmp_path / "nowhere" / "positions"))
    assert result.exit_code == 1
    assert "cannot be written: No such file or directory" in result.stderr
    assert result.stdout == "", "nothing is printed that would be printed again"


async def test_positions_are_kept_while_nothing_comes(
    monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    monkeypatch.setattr(subscribe, "KEPT_EVERY", 0.01)
    written: list[dict[int, int]] = []

    class File:
        def write(self, positions: dict[int, Position]) -> None:
            written.append({partition: kept.offset for partition, kept in positions.items()})

    _, broker, client = make()
    broker.create("s", 1)
    broker.seed("s", 0, [b"a", b"b"])
    async with client.consume("s") as consumer:
        form = record_format("raw", timestamp_to_text)
        reading = asyncio.create_task(
            subscribe._print_and_keep(consumer, form, None, File())  # type: ignore[arg-type]
        )
        async with asyncio.timeout(30):
            while not written or written[-1] != {0: 2}:  # noqa: ASYNC110 - a list is no event
                await asyncio.sleep(0.01)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    assert written[0] == {0: 0}
    assert capsysbinary.readouterr().out == b"a\nb\n"


Piped = tuple[FileIO, StandardOutput]


class Member:
    """Of a group; with the offset from which on nothing is finished."""

    unfinished: int | None = None

    async def commit(self) -> None:
        self.unfinished = len(LINES)

    async def seek(self, _stream: str, _partition: int, offset: int) -> None:
        self.unfinished = offset


LINES = [b"%04d\n" % number for number in range(100_000)]
RECORDS = [RECORD._replace(offset=offset) for offset in range(len(LINES))]


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Piped]:
    """A pipe's end, and the pipe as standard output."""
    end, pipe = os.pipe()
    with FileIO(end) as reading, os.fdopen(pipe, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        yield reading, StandardOutput()


def pass_on(out: StandardOutput, member: Member, lines: list[bytes]) -> Awaitable[None]:
    return subscribe._pass_on(out, lines, RECORDS[: len(lines)], member)  # type: ignore[arg-type]


async def until_full(out: StandardOutput) -> None:
    async with asyncio.timeout(LIMIT):
        while subscribe._events(out._descriptor, select.POLLOUT):  # noqa: ASYNC110 - a full pipe is no event
            await asyncio.sleep(0)


async def test_the_event_loop_goes_on_while_a_pipe_is_full(piped: Piped) -> None:
    (reading, out), member, is_full = piped, Member(), threading.Event()
    text = b"".join(LINES)

    def read() -> tuple[bool, bytes]:
        was_told = is_full.wait(LIMIT)
        data = b""
        while len(data) < len(text):
            data += reading.read(len(text))
        return was_told, data

    async with asyncio.TaskGroup() as tasks:
        taken = tasks.create_task(asyncio.to_thread(read))
        passing = tasks.create_task(asyncio.wait_for(pass_on(out, member, LINES), 2 * LIMIT))
        await until_full(out)
        assert not passing.done()
        is_full.set()
        await passing
    assert taken.result() == (True, text)
    assert member.unfinished is None, "it goes on"


@pytest.mark.parametrize(("read", "whole"), [(0, 0), (12, 2), (15, 3)])
@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_full_pipe_that_ends_finishes_what_was_read_whole(
    piped: Piped, read: int, whole: int, is_gone: bool
) -> None:
    (reading, out), member = piped, Member()
    passing = asyncio.ensure_future(pass_on(out, member, LINES))
    await until_full(out)
    assert len(reading.read(read)) == read
    if is_gone:
        reading.close()
    else:
        passing.cancel()
    with pytest.raises(BrokenPipeError if is_gone else asyncio.CancelledError):
        await asyncio.wait_for(passing, LIMIT)
    assert member.unfinished == whole


async def test_a_member_that_is_interrupted_once_all_was_read_commits_all(piped: Piped) -> None:
    (reading, out), member = piped, Member()
    passing = asyncio.ensure_future(pass_on(out, member, LINES[:2]))
    while not out.unread():  # noqa: ASYNC110 - bytes in a pipe are no event here
        await asyncio.sleep(0)
    assert reading.read(100) == b"".join(LINES[:2])
    passing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await passing
    assert member.unfinished == len(LINES)


async def test_a_reader_that_reads_and_goes_between_two_looks_at_the_pipe_has_read(
    piped: Piped, monkeypatch: pytest.MonkeyPatch
) -> None:
    (reading, out), member = piped, Member()
    events = subscribe._events

    def end_first(descriptor: int, wanted: int) -> list[tuple[int, int]]:
        if not wanted and not reading.closed:
            assert len(reading.read(12)) == 12
            reading.close()
        return events(descriptor, wanted)

    monkeypatch.setattr(subscribe, "_events", end_first)
    with pytest.raises(BrokenPipeError):
        await pass_on(out, member, LINES[:10])
    assert member.unfinished == 2


async def test_a_socket_that_is_full_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("w") as opened:
        monkeypatch.setattr(sys, "stdout", opened)
        out, text = StandardOutput(), b"".join(LINES)
        assert not out.is_pipe
        writing = asyncio.ensure_future(out.write(text))
        await until_full(out)
        assert not writing.done()
        left = len(text)
        while left:
            await asyncio.sleep(0)
            with suppress(BlockingIOError):
                left -= len(ours.recv(65536, socket.MSG_DONTWAIT))
        await asyncio.wait_for(writing, LIMIT)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "name one stream"),
        (["a", "b"], "several are for the members of a group (--group)"),
        (["a", "--pattern", "b*"], "--pattern and --instance-id are for members of a group"),
        (["a", "--group", "g", "--stop", "latest"], "--stop is not for a member of a group"),
        (["a", "--group", "g", "--partition", "0"], "--partition is not for a member of a group"),
        (["a", "--group", "g", "--resume", "f"], "--resume is not for a member of a group"),
        (["a", "--group", "g", "--start", "7"], "--start 7: with --group it is one of earliest, latest, new"),
    ],
)
def test_options_of_members_and_of_others(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(main, ["subscribe", *arguments])
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


async def test_a_reader_without_a_leader_says_so_once_in_a_while(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(delays, "SILENCE", 0.04)

    class Consumer:
        def delay(self) -> tuple[float, str] | None:
            return 2.0, "s/0 has no leader"

    async with delays.delays_reported(Consumer()):
        await asyncio.sleep(0.5)
    assert capsys.readouterr().err == "waiting: s/0 has no leader\n"
    monkeypatch.setattr(delays, "AGAIN", 0.0)
    async with asyncio.timeout(LIMIT), delays.delays_reported(Consumer()):
        shown = ""
        while shown.count("waiting: s/0 has no leader\n") < 2:
            await asyncio.sleep(0.01)
            shown += capsys.readouterr().err
