"""Records of a file or a pipe: each once, whatever the sizes of reads are, and what is said of input that is none."""

from __future__ import annotations

import struct
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.tidelog.client.fake_broker import make
from tidelog.cli.records import record_input
from tidelog.cli.records.publish import _Given, _publish_file
from tidelog.cli.records.record_formats import record_format
from tidelog.cli.records.record_input import MOST_BYTES, InputFault, Lengths, Lines, chunks
from tidelog.cli.terminal.session import Failure
from tidelog.client.base.read_positions import timestamp_to_text


def framed(*records: bytes) -> bytes:
    return b"".join(struct.pack(">I", len(record)) + record for record in records)


@given(st.lists(st.binary(max_size=20), max_size=30), st.integers(1, 50))
def test_lengths_in_pieces_of_any_size(records: list[bytes], piece: int) -> None:
    data = framed(*records)
    splitter = Lengths()
    found = [record for at in range(0, len(data), piece) for record in splitter.split(data[at : at + piece])]
    assert found == records
    assert splitter.end() == []
    assert splitter.fault is None


@pytest.mark.parametrize("size", [1, 7, 4096])
async def test_lengths_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, size: int) -> None:
    monkeypatch.setattr(record_input, "CHUNK_BYTES", size)
    monkeypatch.setattr(record_input, "CHUNK_RECORDS", 3)
    records = [b"one\n", b"", b"\r", b"x" * 300, b"\0\0\0\5", *[b"y"] * 9]
    data = framed(*records)
    path = tmp_path / "records"
    path.write_bytes(data)
    for file in (BytesIO(data), path.open("rb")):
        with file:
            found = [chunk async for chunk in chunks(file, "lengths")]
        assert [record for chunk, _ in found for record in chunk] == records
        assert sum(taken for _, taken in found) == len(data)
        assert max(len(chunk) for chunk, _ in found) <= 3


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (framed(b"a", b"b") + b"\0\0", "record 3 is cut off: 2 bytes are there of 4, with the four of its length"),
        (framed(b"a") + b"\0\0\0\5abc", "record 2 is cut off: 7 bytes are there of 9, with the four of its length"),
        (
            framed(b"a") + b"text",
            "record 2 has 1,952,807,028 bytes by its length, more than 67,108,864: is each record",
        ),
    ],
)
async def test_input_that_has_other_bytes(data: bytes, said: str) -> None:
    found: list[bytes] = []
    with pytest.raises(InputFault) as fault:
        found.extend([record async for chunk, _ in chunks(BytesIO(data), "lengths") for record in chunk])
    assert str(fault.value).startswith(said)


async def test_the_records_before_a_fault_are_published() -> None:
    _, broker, client = make()
    broker.create("s", 1)
    async with client.producer("s") as producer:
        for data, said in ((framed(b"a", b"b") + b"\0", "; records 1 to 2 are acknow"), (b"\0", "; nothing was")):
            with pytest.raises(Failure) as failed:
                await _publish_file(producer, BytesIO(data), "lengths", _Given(), acknowledged=True, as_json=False)
            assert said in failed.value.message
    assert broker.logs["s", 0].values() == [b"a", b"b"]


async def test_what_subscribe_prints_is_what_publish_takes() -> None:
    _, broker, client = make()
    broker.create("s", 1)
    broker.create("t", 1)
    values = [b"a\nb", b"", b"\xff\0", b"x" * 1000]
    broker.seed("s", 0, values)
    show = record_format("lengths", timestamp_to_text)
    data = b"".join([show(record) async for record in client.consume("s", stop="latest")])
    assert data == framed(*values)
    async with client.producer("t") as producer:
        await _publish_file(producer, BytesIO(data), "lengths", _Given(), acknowledged=True, as_json=False)
    assert broker.logs["t", 0].values() == values


def test_a_line_without_end_is_not_gathered_for_ever() -> None:
    splitter = Lines()
    assert splitter.split(b"a\nb") == [b"a"]
    piece = b"x" * (1 << 20)
    for _ in range(MOST_BYTES >> 20):
        splitter.split(piece)
    assert splitter.fault == "line 2 is longer than 67,108,864 bytes"
