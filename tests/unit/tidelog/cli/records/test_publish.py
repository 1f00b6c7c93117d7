"""`tidelog publish --file` against a broker in memory: what it counts, and what it says of a file that fails midway."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import nullcontext, suppress
from io import BytesIO
from pathlib import Path
from typing import Literal

import pytest
from click.testing import CliRunner
from rich.progress import TimeRemainingColumn

from tests.unit.tidelog.client.fake_broker import make
from tidelog.cli import main
from tidelog.cli.records import publish, record_input
from tidelog.cli.records.publish import _Given, _publish_file, _Published
from tidelog.cli.terminal import delays
from tidelog.cli.terminal.session import Failure
from tidelog.client.base.records import BatchReceipt, Receipt
from wire.batch import RecordBatch
from wire.error_details import RETRY_AFTER_MS
from wire.errors import Code, TidelogError

READONLY = TidelogError(Code.READONLY, "the stream takes no records")


async def published(
    data: bytes,
    form: str = "lines",
    *,
    acks: Literal["all", "none"] = "all",
    refused: bool = False,
    compact: str = "false",
) -> None:
    _, broker, client = make()
    broker.create("s", 1, compact=compact)
    broker.refusals = [READONLY] if refused else []
    async with client.producer("s", acks=acks) as producer:
        await _publish_file(producer, BytesIO(data), form, _Given(), acknowledged=acks == "all", as_json=False)


@pytest.mark.parametrize(
    ("data", "form", "acks", "said"),
    [
        (b"a\n", "lines", "all", "published 1 record, 1 byte of values, to s"),
        (b"a\nb", "lines", "all", "published 2 records, 2 bytes of values, to s"),
        (b"a\nb\n", "lines", "none", "sent, without acknowledgements, 2 records, 2 bytes of values, to s"),
        (b"hello\r\n", "lines", "all", "published 1 record, 5 bytes of values, to s"),
        (b"\0\0\0\5hello", "lengths", "all", "published 1 record, 5 bytes of values, to s"),
        (b'{"value": "a"}\n\n{"value": {"x": [1]}}\n', "jsonl", "all", "published 2 records, 10 bytes of values, to s"),
        (b'{"value": null, "key": "k"}\n', "jsonl", "all", "published 1 record, 0 bytes of values, to s"),
    ],
)
async def test_records_are_counted(
    capsys: pytest.CaptureFixture[str], data: bytes, form: str, acks: Literal["all", "none"], said: str
) -> None:
    await published(data, form, acks=acks)
    assert capsys.readouterr().out.startswith(said)


async def test_ids_of_lines_are_their_message_ids(capsys: pytest.CaptureFixture[str]) -> None:
    _, broker, client = make()
    broker.create("s", 1)
    lines = (
        b'{"value": "a", "msg_id": "1"}\n{"value": "b"}\n{"value": "Yg==", "msg_id": "/w==", "encoding": "base64"}\n'
    )
    async with client.producer("s") as producer:
        await _publish_file(producer, BytesIO(lines), "jsonl", _Given(), acknowledged=True, as_json=True)
    assert json.loads(capsys.readouterr().out)["duplicates"] == 0
    (batch,) = [RecordBatch.decode(data) for _, data in broker.logs["s", 0].batches]
    assert batch.headers == [{"Nats-Msg-Id": b"1"}, {}, {"Nats-Msg-Id": b"\xff"}]


def test_records_that_were_there_already_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    told = _Published("acknowledged", "line")
    told.count([(range(2), BatchReceipt(0, 5, 0, range(2), {1: 3})), (range(1), Receipt(1, 7, 0, duplicate=True))])
    told.tell("s", as_json=False)
    assert "published 3 records" in (said := capsys.readouterr().out)
    assert said.endswith("; 2 of them were there already\n")


def test_an_id_is_of_one_value() -> None:
    told = CliRunner().invoke(main, ["publish", "s", "--file", "-", "--msg-id", "1"], input="a\nb\n")
    assert told.exit_code == 2
    assert "--msg-id is the id of one VALUE" in told.stderr


@pytest.mark.parametrize(
    ("data", "form", "said"),
    [
        (b"a\nb\nc\n", "lines", "takes no records; lines 1 to 2 were not written"),
        (b'{"value": "a"}\n{"value": "b"}\n', "jsonl", "takes no records; lines 1 to 2 were not written"),
        (b"a\n", "lines", "takes no records; line 1 was not written"),
        (
            b'{"value": "a", "header": {"h": "1"}}\n',
            "jsonl",
            'line 1 cannot be published: "header" is no field (did you mean "headers"?); the fields are value, key, ',
        ),
        (b'{"value": 5}\n', "jsonl", 'line 1 cannot be published: "value" is 5, which is no text'),
    ],
)
async def test_a_file_that_fails_at_its_beginning(
    monkeypatch: pytest.MonkeyPatch, data: bytes, form: str, said: str
) -> None:
    monkeypatch.setattr(record_input, "CHUNK_RECORDS", 2)
    with pytest.raises(Failure) as failed:
        await published(data, form, refused=True)
    assert said in failed.value.message
    assert "acknowledged" not in failed.value.message


@pytest.mark.parametrize(
    "refusal", [READONLY, TidelogError(Code.BAD_REQUEST, READONLY.message)], ids=lambda error: error.code.name
)
async def test_a_file_that_fails_midway(monkeypatch: pytest.MonkeyPatch, refusal: TidelogError) -> None:
    monkeypatch.setattr(record_input, "CHUNK_RECORDS", 2)
    _, broker, client = make()
    broker.create("s", 1)

    async def chunks(_file: object, _form: str) -> AsyncIterator[tuple[list[bytes], int]]:
        yield [b"a", b"b"], 4
        broker.refusals.append(refusal)
        yield [b"c", b"d"], 4

    monkeypatch.setattr(publish, "chunks", chunks)
    async with client.producer("s") as producer:
        with pytest.raises(Failure) as failed:
            await _publish_file(producer, BytesIO(), "lines", _Given(), acknowledged=True, as_json=False)
    assert failed.value.message == (
        "the stream takes no records; lines 1 to 2 are acknowledged; lines 3 to 4 were not written"
    )
    assert broker.logs["s", 0].values() == [b"a", b"b"]


@pytest.mark.parametrize("form", ["lines", "jsonl"])
async def test_a_quota_is_told_while_it_delays_and_at_the_end_with_what_is_written(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    """The first chunk is taken; of the second each batch is refused."""
    monkeypatch.setattr(record_input, "CHUNK_RECORDS", 2)
    monkeypatch.setattr(delays, "SILENCE", 0.1)
    _, broker, client = make()
    broker.create("s", 1)
    refusal = TidelogError(
        Code.BACKPRESSURE, "s/0 takes 1 byte a second; raise producer_byte_rate", [RETRY_AFTER_MS.of(900_000)]
    )

    async def chunks(_file: object, _form: str) -> AsyncIterator[tuple[list[bytes], int]]:
        for values in ([b'{"value": "a"}'] * 2, [b'{"value": "c"}'] * 2):
            yield values, 30
            broker.refusals = [refusal] * 100

    monkeypatch.setattr(publish, "chunks", chunks)
    began = asyncio.get_running_loop().time()
    async with client.producer("s", confirm_timeout=2.0) as producer:
        with pytest.raises(Failure) as failed:
            async with delays.delays_reported(producer):
                await _publish_file(producer, BytesIO(), form, _Given(), acknowledged=True, as_json=False)
    assert asyncio.get_running_loop().time() - began < 60, "the broker has asked for a pause of 900 s"
    assert failed.value.message == (
        f"{refusal.message}; given up after 2 s, not written; lines 1 to 2 are acknowledged; lines"
        " 3 to 4 were not written"
    )
    assert capsys.readouterr().err == f"waiting: {refusal.message}\n"


async def test_lines_that_may_be_in_the_stream_are_told_from_those_that_are_not() -> None:
    _, broker, client = make()
    broker.create("s", 1)
    broker.refusals = [TidelogError(Code.OUTCOME_UNKNOWN, "not known"), READONLY]
    data = b"a\nbbbbb\ncc\ndd\n"
    async with client.producer("s", batch_bytes=180, max_in_flight=1) as producer:
        with pytest.raises(Failure) as failed:
            await _publish_file(producer, BytesIO(data * 4), "lines", _Given(), acknowledged=True, as_json=False)
    assert failed.value.message.endswith(
        "refused: the stream takes no records; lines 7 to 16 are acknowledged; lines 1 to 6 may be in the stream"
    )


@pytest.mark.parametrize(
    ("data", "form", "said"),
    [
        (b"a\n" + b"x" * 101 + b"\nb\n", "lines", "; of lines 1 to 3 the others may be in the stream"),
        (b'{"value": "a"}\n{"value": "%s"}\n' % (b"x" * 101), "jsonl", "; the lines before it are acknowledged"),
    ],
)
async def test_a_line_that_is_too_large_is_named(data: bytes, form: str, said: str) -> None:
    _, broker, client = make()
    broker.create("s", 1, max_record_bytes="100")
    async with client.producer("s") as producer:
        with pytest.raises(Failure) as failed:
            await _publish_file(producer, BytesIO(data), form, _Given(), acknowledged=True, as_json=False)
    assert failed.value.message.startswith("line 2 cannot be published: a record of 101 bytes")
    assert failed.value.message.endswith(said)


async def test_a_file_of_one_line_that_is_too_large_is_not_in_the_stream() -> None:
    _, broker, client = make()
    broker.create("s", 1, max_record_bytes="100")
    async with client.producer("s") as producer:
        with pytest.raises(Failure, match=r"raise max_record_bytes$"):
            await _publish_file(producer, BytesIO(b"x" * 101), "lines", _Given(), acknowledged=True, as_json=False)
    assert broker.logs["s", 0].values() == []


async def test_a_line_for_a_partition_that_takes_no_records_is_not_in_the_stream() -> None:
    _, broker, client = make()
    broker.create("s", 2)
    broker.repartition("s", 1)
    async with client.producer("s") as producer:
        given = _Given(partition=1)
        with pytest.raises(Failure) as failed:
            await _publish_file(producer, BytesIO(b"a"), "lines", given, acknowledged=True, as_json=False)
    assert failed.value.message == (
        "partition 1 of stream 's' takes no records since the stream has 1 partition: nothing was written; leave"
        " partition= out, or give one below that"
    )


async def test_lines_of_a_pipe_are_published_while_it_is_open() -> None:
    """As those of `tail -f`."""
    _, broker, client = make()
    broker.create("s", 1)
    reading, writing = os.pipe()
    async with client.producer("s") as producer:
        with os.fdopen(reading, "rb") as file:
            publishing = asyncio.create_task(
                _publish_file(producer, file, "lines", _Given(), acknowledged=True, as_json=False)
            )
            for number, text in enumerate([b"a\nb\nsome", b"thing\r\n", b"\n"], 1):
                os.write(writing, text)
                while len(broker.appends) < number:  # noqa: ASYNC110 - the broker has no event for it
                    await asyncio.sleep(0)
            assert broker.logs["s", 0].values() == [b"a", b"b", b"something", b""]
            os.write(writing, b"the last one")
            os.close(writing)
            await publishing
    assert broker.logs["s", 0].values()[4:] == [b"the last one"]


def test_a_bar_says_when_it_is_ready_where_the_size_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    (tmp_path / "lines").write_bytes(b"a\n" * 100)
    with (tmp_path / "lines").open("rb") as file:
        progress = publish._progress(file)
    (task,) = progress.tasks
    progress.update(task.id, advance=100)
    assert (task.total, any(isinstance(column, TimeRemainingColumn) for column in progress.columns)) == (200, True)
    piped = publish._progress(BytesIO(b"a\n"))
    assert not any(isinstance(column, TimeRemainingColumn) for column in piped.columns)


async def test_a_bar_moves_in_steps(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    class Bar:
        task_ids = (0,)

        def __init__(self) -> None:
            self.moves: list[tuple[float, int]] = []

        def update(self, _: int, *, advance: float, records: int) -> None:
            self.moves.append((advance, records))

    bar = Bar()
    monkeypatch.setattr(publish, "_progress", lambda _: nullcontext(bar))
    await published(b"a\n" * 1200)
    assert (bar.moves[0], bar.moves[-1][1]) == ((1000, 500), 1200)
    assert sum(advance for advance, _ in bar.moves) == 2400
    assert capsys.readouterr().out.startswith("published 1200 records, 1200 bytes of values, to s")


def test_steps_grow_where_the_cluster_is_fast_and_shrink_where_it_is_slow() -> None:
    steps = publish._Steps()
    grown = []
    for _ in range(6):
        steps.took(0.05)
        grown.append(steps.records)
    assert grown == [1000, 2000, 4000, 8000, 10_000, 10_000]
    steps.took(0.2)
    assert steps.records == 10_000
    steps.took(3.0)
    assert steps.records == 5000
    for _ in range(9):
        steps.took(3.0)
    assert steps.records == 500


@pytest.mark.parametrize("on_terminal", [False, True])
@pytest.mark.parametrize("as_json", [False, True])
async def test_a_pipe_that_is_left_tells_what_was_published(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], as_json: bool, on_terminal: bool
) -> None:
    """By Ctrl-C, which cancels the task."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: on_terminal)
    monkeypatch.setattr(publish, "_progress", lambda _: nullcontext())
    _, broker, client = make()
    broker.create("s", 1)
    reading, writing = os.pipe()
    async with client.producer("s") as producer:
        with os.fdopen(reading, "rb") as file:
            publishing = asyncio.create_task(
                _publish_file(producer, file, "lines", _Given(), acknowledged=True, as_json=as_json)
            )
            os.write(writing, b"a\nb\n")
            while len(broker.appends) < 1:  # noqa: ASYNC110 - the broker has no event for it
                await asyncio.sleep(0)
            publishing.cancel()  # the receipts are on their way
            with pytest.raises(asyncio.CancelledError):
                await publishing
    os.close(writing)
    out, err = capsys.readouterr()
    if as_json:
        found = json.loads(out)
        assert (found["records"], found["interrupted"], found["in_doubt"]) == (2, True, 0)
    else:
        begin = "\n" if on_terminal else ""
        assert err.startswith(f"{begin}interrupted: published 2 records, 2 bytes of values, to s in "), "not behind ^C"
        assert out == ""


async def test_lines_that_are_under_way_when_it_is_left_are_in_doubt(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidelog.cli.records.publish.GRACE", 0.05)
    _, broker, client = make()
    broker.create("s", 1)
    refusal = TidelogError(Code.BACKPRESSURE, "later", [RETRY_AFTER_MS.of(900_000)])
    broker.refusals = [refusal] * 100
    async with client.producer("s", confirm_timeout=2.0) as producer:
        publishing = asyncio.create_task(
            _publish_file(producer, BytesIO(b"a\nb\n"), "lines", _Given(), acknowledged=True, as_json=False)
        )
        while producer.delay() is None:  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0.01)
        publishing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await publishing
        with suppress(TidelogError):
            await producer.flush()
    assert capsys.readouterr().err.endswith("; of 2 lines after them some may be in the stream\n")


@pytest.mark.parametrize(
    ("form", "data"), [("lines", b"a\nb\n"), ("jsonl", b'{"value":"a"}\n{"value":"b","headers":{"own":"2"}}\n')]
)
async def test_every_line_gets_the_headers_that_are_given(form: str, data: bytes) -> None:
    _, broker, client = make()
    broker.create("s", 1)
    given = _Given(b"key", {"own": [b"1"], "from": [b"x", b"y"]})
    async with client.producer("s") as producer:
        await _publish_file(producer, BytesIO(data), form, given, acknowledged=True, as_json=False)
    records = [record async for record in client.consume("s", stop="latest")]
    assert [record.key for record in records] == [b"key", b"key"]
    assert [record.value for record in records] == [b"a", b"b"]
    own = [(name, value) for name, value in records[0].header_items]
    assert own == [("own", b"1"), ("from", b"x"), ("from", b"y")]
    assert dict(records[1].headers)["own"] == (b"2" if form == "jsonl" else b"1")


async def test_lines_with_headers_wait_for_room_in_the_buffer() -> None:
    _, broker, client = make()
    broker.create("s", 1)
    given = _Given(headers={"h": [b"x" * 1000]})
    async with client.producer("s", buffer_bytes=20_000) as producer:
        await _publish_file(producer, BytesIO(b"a\n" * 100), "lines", given, acknowledged=True, as_json=False)
    assert len(broker.logs["s", 0].values()) == 100


@pytest.mark.parametrize("records", [1, 3, 10_000])
@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_every_line_of_a_file_comes_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, records: int, size: int
) -> None:
    """Whatever the sizes of chunks and of reads are."""
    monkeypatch.setattr(record_input, "CHUNK_RECORDS", records)
    monkeypatch.setattr(record_input, "CHUNK_BYTES", size)
    data = b"one\n\ntwo\r\n" + b"x" * 20 + b"\n" * 5 + b"end"
    path = tmp_path / "lines"
    path.write_bytes(data)
    for file in (BytesIO(data), path.open("rb")):
        with file:
            chunks = [found async for found in record_input.chunks(file, "lines")]
        assert [line for chunk, _ in chunks for line in chunk] == data.split(b"\n")
        assert sum(taken for _, taken in chunks) == len(data)
        assert max(len(chunk) for chunk, _ in chunks) <= records


async def test_a_line_that_is_no_record_ends_the_file_after_the_lines_before_it() -> None:
    with pytest.raises(Failure) as failed:
        await published(b'{"value": "a"}\n{"value": 5}\n{"value": "c"}\n', "jsonl")
    assert failed.value.message.startswith('line 2 cannot be published: "value" is 5')
    assert failed.value.message.endswith("; the lines before it are acknowledged")


async def test_a_compacted_stream_takes_lines_with_a_key_only() -> None:
    with pytest.raises(TidelogError, match=r"give it a key$"):
        await published(b"a\n", compact="true")
    with pytest.raises(Failure, match=r"line 1 cannot be published: .* give it a key$"):
        await published(b'{"value": "a"}\n', "jsonl", compact="true")
