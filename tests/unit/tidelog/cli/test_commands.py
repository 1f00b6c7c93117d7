"""Input, output and exit status of commands without a cluster."""

from __future__ import annotations

import errno
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tests.unit.tidelog.client.fake_broker import blank
from tidelog.cli import _ROOM_OF, main
from tidelog.cli.streams import stream
from tidelog.cli.terminal import session
from wire.cluster_config import CLUSTER_SETTINGS
from wire.operations.api_operations import StreamDescription
from wire.stream_config import SETTINGS

NOWHERE = "nats://127.0.0.1:1"


def invoke(*arguments: str, **environment: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, list(arguments), env=environment)
    return result.exit_code, result.stdout, result.stderr


def every_command() -> Iterator[tuple[str, ...]]:
    """Groups, too."""

    def below(path: tuple[str, ...], command: click.Command | None) -> Iterator[tuple[str, ...]]:
        yield path
        if isinstance(command, click.Group):
            for name, each in command.commands.items():
                yield from below((*path, name), each)

    for name in _ROOM_OF:
        yield from below((name,), main.get_command(click.Context(main), name))


EVERY_GROUP = {command[:-1] for command in every_command()} - {()}
GROUPS = {command[0] for command in EVERY_GROUP}
OF_A_CLUSTER = [
    command
    for command in every_command()
    if command[0] not in ("up", "server", "log", "security", "context", "completion") and command not in EVERY_GROUP
    if command != ("cluster", "recover")  # it works on a folder, and asks no cluster
]


@pytest.mark.parametrize("command", [(), *every_command()])
def test_every_command_has_help(command: tuple[str, ...]) -> None:
    status, out, _ = invoke(*command, "--help")
    assert status == 0
    assert "Usage: " in out


@pytest.mark.parametrize("command", OF_A_CLUSTER)
def test_every_command_of_a_cluster_takes_server_and_json(command: tuple[str, ...]) -> None:
    _, out, _ = invoke(*command, "--help")
    assert "--server URL" in out
    assert "--json" in out


def test_the_help_names_every_subcommand() -> None:
    _, out, _ = invoke("--help")
    text = " ".join(out.split())
    assert (
        "stream Streams and their settings: create, list, describe, alter, reassign, repartition, copy, delete, "
        in text
    )
    assert "subscribe Print the committed records of STREAM." in text
    for group in GROUPS:
        command = main.get_command(click.Context(main), group)
        assert isinstance(command, click.Group)
        names = f": {', '.join(command.commands)}."
        assert "".join(names.split()) in "".join(text.split()), "lines are broken at a hyphen, too"


def test_help_loads_neither_a_client_nor_a_broker() -> None:
    code = (
        "import sys; from tidelog.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'google.protobuf', 'nats', 'rich', 'pysyncobj', 'asyncio'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        ["stream", "list"],
        ["stream", "delete", "s", "--yes"],
        ["publish", "s", "v"],
        ["subscribe", "s"],
        ["cluster", "status"],
    ],
)
@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_no_nats_server_is_one_sentence_on_stderr(command: list[str], extra: list[str]) -> None:
    status, out, err = invoke(*command, "--server", NOWHERE, *extra)
    assert status == 1
    assert out == ""
    assert len(err.splitlines()) == 1
    assert NOWHERE in err
    assert "tidelog up" in err


@pytest.mark.parametrize(("error", "text"), [(errno.ENOSPC, "No space left on device"), (errno.EIO, "Input/output")])
def test_output_that_cannot_be_written_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: int, text: str) -> None:
    async def connected(*_: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(session, "_connected", connected)
    status, _, err = invoke("stream", "list")
    assert status == 1
    assert err.startswith(f"tidelog: the output cannot be written, or the input cannot be read: {text}")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("command", [("security", "nats-config", "--role", "admin"), ("stream", "--help"), ("--help",)])
def test_a_reader_of_the_output_that_has_gone_is_no_error(command: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    arguments = [sys.executable, "-m", "tidelog", *command]
    with os.fdopen(writing, "wb") as out:
        done = subprocess.run(arguments, stdout=out, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_another_pipe_that_broke_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connected(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))

    monkeypatch.setattr(session, "_connected", connected)
    assert invoke("stream", "list") == (1, "", "")


def test_the_server_comes_from_the_environment_unless_it_is_given() -> None:
    assert "127.0.0.1:2" in invoke("stream", "list", TIDELOG_SERVER="nats://127.0.0.1:2")[2]
    assert "127.0.0.1:1" in invoke("stream", "list", "--server", NOWHERE, TIDELOG_SERVER="nats://127.0.0.1:2")[2]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["publish", "s", "v", "--header", "x"], "'x' is no NAME=VALUE"),
        (["publish", "s", "v", "--file", "-"], "VALUE or --file, not both"),
        (["publish", "s", "v", "--acks", "some"], "'some' is not one of"),
        (["publish", "s", "v", "--confirm-timeout", "0"], "--confirm-timeout"),
        (["stream", "create", "s", "--config", "x"], "'x' is not KEY=VALUE"),
        (["stream", "alter", "s", "--config", "x"], "'x' is not KEY=VALUE"),
        (["stream", "create", "s", "--partitions", "0"], "--partitions"),
        (["stream", "create", "s", "--replication-factor", "17"], "--replication-factor"),
    ],
)
def test_a_wrong_command_line_ends_with_status_2(arguments: list[str], text: str) -> None:
    status, _, err = invoke(*arguments)
    assert status == 2
    assert text in err


DESTRUCTIVE = [
    (["stream", "delete", "s"], "deletes stream s with all its records"),
    (["partition", "elect-unclean", "s", "0", "b", "--accept-loss"], "gives up records of s/0"),
]


@pytest.mark.parametrize(("arguments", "act"), DESTRUCTIVE)
def test_what_destroys_records_needs_yes_where_no_terminal_is_there_to_ask_on(arguments: list[str], act: str) -> None:
    status, out, err = invoke(*arguments, "--server", NOWHERE)
    assert (status, out) == (2, "")
    assert act in err
    assert "--yes" in err
    status, _, err = invoke(*arguments, "--server", NOWHERE, "--yes")
    assert (status, NOWHERE in err) == (1, True)


@pytest.mark.parametrize(("arguments", "act"), DESTRUCTIVE)
@pytest.mark.parametrize(("typed", "goes_on"), [("s", True), ("y", False), ("", False)])
def test_what_destroys_records_asks_on_a_terminal(arguments: list[str], act: str, typed: str, goes_on: bool) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "tidelog", *arguments, "--server", NOWHERE],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.write(ours, f"{typed}\n".encode())
        out, err = process.communicate(timeout=60)
    os.close(ours)
    os.close(theirs)
    assert (process.returncode, out) == (1, "")
    assert act in err
    assert (NOWHERE in err) == goes_on
    assert ("nothing was changed" in err) != goes_on


@pytest.mark.parametrize("command", [("stream", "create"), ("stream", "alter"), ("cluster", "alter")])
def test_help_and_completion_know_every_setting(command: tuple[str, str]) -> None:
    _, out, _ = invoke(*command, "--help")
    assert all(re.search(rf"\n  {name}\s", out) for name in SETTINGS)
    words = f"tidelog {' '.join(command)} --config"
    _, keys, _ = invoke(COMP_WORDS=f"{words} ", COMP_CWORD="4", _MAIN_COMPLETE="bash_complete")
    wanted = {*SETTINGS, *CLUSTER_SETTINGS} if command == ("cluster", "alter") else {*SETTINGS}
    assert {line.removeprefix("plain,").partition("=")[0] for line in keys.splitlines()} == wanted
    _, values, _ = invoke(COMP_WORDS=f"{words} compr", COMP_CWORD="4", _MAIN_COMPLETE="bash_complete")
    assert values.split() == ["plain,compression=none", "plain,compression=lz4", "plain,compression=zstd"]


def test_the_cluster_status_shows_the_names_of_partitions_in_trouble(capsys: pytest.CaptureFixture[str]) -> None:
    from tidelog.cli.administration.cluster import _show

    found: Any = {
        "cluster_id": "c", "controller": None, "generation": 1, "config": {}, "brokers": [], "streams": 2,
        "partitions": 9, "unclean_elections": 0, "offline_partitions": 4,
        "offline": [{"partition": "s/0", "waits_for": ["b1", "b2"]}, {"partition": "t/3", "waits_for": []}],
        "under_replicated": 2, "under_replicated_partitions": ["s/0", "s/1"],
    }  # fmt: skip
    _show(found)
    out = capsys.readouterr().out
    assert "2 streams, 9 partitions: 4 offline, 2 under-replicated, 0 unclean elections so far" in out
    assert "offline: s/0, waits for b1 or b2\n" in out
    assert "offline: t/3, no sound replica is left, see `tidelog partition elect-unclean --help`\n" in out
    assert "2 more are offline\n" in out
    assert "under-replicated: s/0, s/1\n" in out


def test_the_cluster_status_counts_one_thing_in_the_singular(capsys: pytest.CaptureFixture[str]) -> None:
    from tidelog.cli.administration.cluster import _show

    found: Any = {
        "cluster_id": "c", "controller": None, "generation": 1, "config": {}, "brokers": [], "streams": 1,
        "partitions": 1, "unclean_elections": 1, "offline_partitions": 0, "under_replicated": 0,
    }  # fmt: skip
    _show(found)
    assert "1 stream, 1 partition: 0 offline, 0 under-replicated, 1 unclean election so far" in capsys.readouterr().out


def test_a_broker_is_shown_with_the_partitions_that_cannot_do_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    from tidelog.cli.administration.broker import _show

    def held(partition: int, state: str, isr: str, min_isr: int) -> dict[str, Any]:
        return {
            "stream": "s", "partition": partition, "leads": partition == 0, "state": state, "isr": isr.split(),
            "min_isr": min_isr, "bytes_on_disk": 1000 * partition if partition < 4 else None,
        }  # fmt: skip

    found: Any = {
        "id": "b1", "alive": True, "voter": False, "leaders": 1, "replicas": 5, "bytes_on_disk": 35_100_000,
        "traffic": {
            "records_in": 45_000, "bytes_in": 12_300_000, "records_out": 7, "bytes_out": 900,
            "records_in_per_s": 1234.56, "bytes_in_per_s": 1.2e6, "records_out_per_s": 0.0, "bytes_out_per_s": 0.0,
        },
        "held": [
            held(0, "isr", "b1 b2", 2), held(1, "isr", "b1 b2 b3", 2), held(2, "isr", "b1", 1),
            held(3, "isr", "b1 b2", 1), held(4, "eligible", "b2", 2),
        ],
    }  # fmt: skip
    _show(found)
    out = capsys.readouterr().out
    assert "broker b1  alive, observer, leads 1 of 5 partitions, on disk 35.1 MB\n" in out
    assert (
        "in: 45,000 records, 12.3 MB since the start; in the last minute 1,234.6 records/s, 1.2 MB/s\n"
        "out: 7 records, 900 B since the start; in the last minute 0.0 records/s, 0 B/s\n" in out
    )
    assert [row.split("│")[6].strip() for row in out.splitlines() if row[:1] == "│"] == [
        "0 B", "1.0 kB", "2.0 kB", "3.0 kB", "?",
    ]  # fmt: skip
    assert "without b1 acknowledged publishes to s/0, s/2 are refused" in out
    _show(found | {"internal_leaders": 1, "internal_replicas": 2})
    assert "leads 1 of 5 partitions, and 1 of 2 internal ones, on disk 35.1 MB\n" in capsys.readouterr().out
    found["alive"] = False
    _show(found)
    assert "without b1" not in capsys.readouterr().out


def test_a_table_in_a_pipe_breaks_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    from tidelog.cli.streams.stream import _show_list

    name, subject = "n" * 64, ".".join(["s" * 40] * 3)
    streams: Any = [{"name": name, "subject": subject, "partitions": 1, "replication_factor": 3}]
    _show_list(streams)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if name in line]
    assert subject in line


def test_the_ends_of_a_partition_are_exclusive(capsys: pytest.CaptureFixture[str]) -> None:
    """The API tells the offset of the last committed record, and -1 where there is none."""
    partition = {
        "partition": 0,
        "leader": "b1",
        "leader_epoch": 1,
        "replicas": ["b1"],
        "isr": ["b1"],
        "last_stable_offset": None,
        "log_start_offset": 3,
        "log_end_offset": 9,
        "replicas_progress": {},
    }
    for high_watermark, shown in ((-1, "0"), (7, "8"), (None, "?")):
        found: Any = blank(StreamDescription, partitions=[{**partition, "high_watermark": high_watermark}])
        stream._show_description(found)
        (row,) = [line for line in capsys.readouterr().out.splitlines() if " b1 " in line]
        assert [cell.strip() for cell in row.split("│")][-5:-2] == ["3", shown, "9"]


def test_an_open_transaction_that_holds_consumers_back_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    partition = {
        "partition": 0,
        "leader": "b1",
        "leader_epoch": 1,
        "replicas": ["b1"],
        "isr": ["b1"],
        "high_watermark": 7,
        "log_start_offset": 3,
        "log_end_offset": 9,
        "replicas_progress": {},
    }
    for stable, lines in ((8, ["8"]), (5, ["8", "stable 5"])):
        found: Any = blank(StreamDescription, partitions=[{**partition, "last_stable_offset": stable}])
        stream._show_description(found)
        rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.count("│") > 5]
        assert [row[-4].strip() for row in rows if row[-4].strip()] == lines


def test_a_failure_shows_no_control_characters_of_a_stranger(capsys: pytest.CaptureFixture[str]) -> None:
    """Where NATS lets everybody answer in place of a broker."""
    session.Failure("only b\x1b[2J\x1b]0;mine\x07 is connected").show()
    assert capsys.readouterr().err == "tidelog: only b\\x1b[2J\\x1b]0;mine\\x07 is connected\n"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["strem", "list"], "stream"), (["stream", "lst"], "list"), (["subscribe", "s", "--jsn"], "--json")],
)
def test_what_is_mistyped_is_guessed(typed: list[str], meant: str) -> None:
    status, _, err = invoke(*typed)
    assert status == 2
    assert f"{meant!r}" in err or meant in err.rpartition("Did you mean")[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_the_script_of_a_shell(shell: str) -> None:
    status, out, err = invoke("completion", shell)
    assert (status, err) == (0, "")
    assert f"_TIDELOG_COMPLETE={shell}_complete" in out


def test_bash_completes_by_the_script() -> None:
    """The script is read by a bash, which then completes a line as at its prompt."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash")
    script = (
        'eval "$(tidelog completion bash)"; COMP_WORDS=(tidelog stream de); COMP_CWORD=2; _tidelog_completion tidelog;'
        ' echo "${COMPREPLY[@]}"'
    )
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "--norc", "-c", script], capture_output=True, text=True, timeout=60, env=environment, check=False
    )
    assert (done.returncode, done.stdout.split()) == (0, ["delete", "delete-records", "describe"]), done.stderr
