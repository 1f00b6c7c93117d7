"""`tidelog log`: a stopped broker's data folder, shown, verified, indexed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring, MasterKey, MasterKeys
from dataplane.log.partition_log import LogConfig, PartitionLog
from dataplane.log.storage.data_dir import DataDir
from tests.unit.dataplane.log.compacting import append, end
from tidelog.cli import main
from wire.batch import HEADER_SIZE, BatchBuilder, Compression, Marker, control_batch
from wire.types import FIRST_TRANSACTIONAL_ID, BrokerId, Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

FLIGHTS = PartitionKey(StreamName("flights"), Incarnation(4), 1, Incarnation(5))
VAULT = PartitionKey(StreamName("vault"), Incarnation(6), 0, Incarnation(6))
MASTER = MasterKey("2026", b"k" * 32)
NS = 1_000_000_000


def run(*arguments: str | Path, **environment: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(main, ["log", *map(str, arguments)], env=environment)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def run_json(*arguments: str | Path, **environment: str) -> list[dict[str, Any]]:
    status, out, err = run(*arguments, "--json", **environment)
    assert status in (0, 1), err
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """Two partitions, closed in order: one with three segments, one that is encrypted."""
    folder = DataDir.open(tmp_path / "b1", BrokerId("b1"))
    log, _ = PartitionLog.open(folder.partition_directory(FLIGHTS), LogConfig(segment_bytes=600))
    for n in range(6):
        builder = BatchBuilder()
        for i in range(3):
            builder.add_record(b"value %d" % (3 * n + i), b"key", timestamp=(3 * n + i) * NS)
        compression = Compression.ZSTD if n == 1 else Compression.NONE
        batch = builder.build(0, producer_id=7, producer_epoch=1, base_sequence=3 * n, compression=compression)
        parts, header = batch.stamp(Offset(3 * n), LeaderEpoch(2))
        log.append(parts, [header])
    parts, header = control_batch(1, 1, b"x").stamp(Offset(18), LeaderEpoch(2))
    log.append(parts, [header])
    log.sync()
    log.checkpoint_high_watermark(Offset(19))
    log.close()
    log, _ = PartitionLog.open(folder.partition_directory(VAULT), LogConfig())
    cipher = BatchCipher(Keyring(MasterKeys((MASTER,))), VAULT)
    for n in range(2):
        builder = BatchBuilder()
        builder.add_record(b"secret %d" % n, timestamp=n * NS)
        parts, header = builder.build(0).stamp(Offset(n), LeaderEpoch(1))
        parts, header = cipher.encrypt(header, parts[1:])
        log.append(parts, [header])
    log.sync()
    log.checkpoint_high_watermark(Offset(2))
    log.close()
    folder.close()
    return tmp_path / "b1"


@pytest.fixture
def flights(data_dir: Path) -> Path:
    return data_dir / "flights-4" / "1-5"


@pytest.fixture
def vault(data_dir: Path) -> Path:
    return data_dir / "vault-6" / "0-6"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"{MASTER.id} {MASTER.secret.hex()}\n")
    return file


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


class TestDump:
    def test_every_batch_of_a_partition_in_order(self, flights: Path) -> None:
        lines = run_json("dump", flights)
        assert [(line["base_offset"], line["end_offset"], line["records"]) for line in lines] == [
            *((3 * n, 3 * n + 3, 3) for n in range(6)),
            (18, 19, 0),
        ]
        assert len({line["file"] for line in lines}) == 3
        first = lines[0]
        assert first == {
            "file": "00000000000000000000.log",
            "position": 0,
            "size": first["size"],
            "base_offset": 0,
            "end_offset": 3,
            "leader_epoch": 2,
            "records": 3,
            "control": False,
            "transactional": False,
            "marker": None,
            "first_timestamp": "1970-01-01T00:00:00.000000000Z",
            "last_timestamp": "1970-01-01T00:00:02.000000000Z",
            "producer": {"id": 7, "epoch": 1, "sequence": 0},
            "compression": "none",
            "encrypted": False,
            "master_key": None,
            "crc": "ok",
        }
        assert lines[1]["position"] == first["size"]
        assert lines[1]["compression"] in ("zstd", "none")
        assert lines[6]["control"]
        assert lines[6]["producer"] is None

    def test_transactions_and_their_ends(self, tmp_path: Path) -> None:
        log, _ = PartitionLog.open(tmp_path, LogConfig())
        append(log, [(b"k", b"v")], transaction=(1, 4, 0))
        end(log, 1, 4, Marker.COMMIT)
        end(log, 1, 5, Marker.ABORT)
        log.close()
        producer = FIRST_TRANSACTIONAL_ID + 1
        facts = [(line["records"], line["transactional"], line["marker"]) for line in run_json("dump", tmp_path)]
        assert facts == [(1, True, None), (0, True, "commit"), (0, True, "abort")]
        _, *lines = [" ".join(line.split()) for line in run("dump", tmp_path)[1].splitlines() if line[:1] == " "]
        assert f"producer {producer}/4 from 0 on, in a transaction, CRC ok" in lines[0]
        assert "1 commit 1970" in lines[1]
        assert f"ends the transaction of producer {producer}, whose next epoch is 5" in lines[1]
        assert "1 abort 1970" in lines[2]

    def test_from_an_offset_on_up_to_a_limit(self, flights: Path) -> None:
        lines = run_json("dump", flights, "--offset", "7", "--limit", "2")
        assert [line["base_offset"] for line in lines] == [6, 9]
        assert run_json("dump", flights, "--offset", "19") == []

    def test_one_segment_and_the_text_of_it(self, flights: Path) -> None:
        segment = sorted(flights.glob("*.log"))[1]
        status, out, _ = run("dump", segment)
        assert status == 0
        name, titles, *rows = out.splitlines()
        assert name == segment.name
        assert titles.split() == ["position", "bytes", "offsets", "epoch", "records", "first", "timestamp", "stored"]
        assert rows[0].split()[2] == f"{int(segment.stem)}..{int(segment.stem) + 2}"
        assert rows[0].endswith(f"producer 7/1 from {int(segment.stem)} on, CRC ok")

    def test_records_as_subscribe_shows_them(self, flights: Path) -> None:
        lines = run_json("dump", flights, "--records", "--offset", "4", "--limit", "3")
        assert [line["offset"] for line in lines] == [4, 5, 6]
        assert lines[0] == {
            "stream": "flights",
            "partition": 1,
            "offset": 4,
            "timestamp": "1970-01-01T00:00:04.000000000Z",
            "key": "key",
            "value": "value 4",
            "headers": {},
        }
        _, out, _ = run("dump", flights, "--records", "--offset", "17")
        assert out == "1:17\t1970-01-01T00:00:17.000000000Z\tkey\tvalue 17\n"

    def test_encrypted_batches_are_listed_without_a_key_and_their_records_with_it(
        self, vault: Path, keys: Path
    ) -> None:
        assert [(line["encrypted"], line["master_key"]) for line in run_json("dump", vault)] == [(True, "2026")] * 2
        status, out, err = run("dump", vault, "--records")
        assert (status, out) == (1, "")
        assert "this command does not have the master key '2026'" in err
        assert "--master-key-file" in err
        by_file = run_json("dump", vault, "--records", "--master-key-file", keys)
        by_environment = run_json("dump", vault, "--records", TIDELOG_MASTER_KEY=f"2026:{MASTER.secret.hex()}")
        assert [line["value"] for line in by_file] == ["secret 0", "secret 1"] == [r["value"] for r in by_environment]

    def test_damage_is_shown_and_the_batches_behind_it_too(self, flights: Path) -> None:
        segment = min(flights.glob("*.log"))
        flip(segment, HEADER_SIZE + 3)
        lines = run_json("dump", flights)
        assert [line.get("crc") for line in lines] == ["wrong", *["ok"] * 6]
        assert "body has CRC" in lines[0]["damage"]
        flip(segment, 3)
        lines = run_json("dump", flights)
        assert "base_offset" not in lines[0]
        assert [line["base_offset"] for line in lines[1:]] == [3, 6, 9, 12, 15, 18]
        status, out, _ = run("dump", flights)
        assert status == 1
        assert "DAMAGED: no batch begins there" in out
        status, out, _ = run("dump", flights, "--records", "--limit", "2")
        assert status == 1
        assert out.splitlines()[0].startswith(f"damaged at byte 0 of {segment.name}: no batch begins there")
        assert out.splitlines()[1].startswith("1:3\t")

    def test_another_folder_is_a_slip_that_names_the_right_ones(self, data_dir: Path, flights: Path) -> None:
        status, _, err = run("dump", data_dir)
        assert status == 2
        assert "holds no segment of a log" in err
        assert str(flights) in "".join(err.split()) or "flights-4" in err


class TestVerify:
    def test_a_sound_folder(self, data_dir: Path) -> None:
        (found,) = run_json("verify", data_dir)
        assert found["clean"]
        assert [(p["stream"], p["partition"], p["log_end_offset"]) for p in found["partitions"]] == [
            ("flights", 1, 19),
            ("vault", 0, 2),
        ]
        assert found["partitions"][1]["master_keys"] == {"2026": 2}
        status, out, _ = run("verify", data_dir)
        assert status == 0
        assert out.splitlines()[-1] == "clean"

    def test_damage_is_listed_and_told_by_the_exit_status(self, data_dir: Path, flights: Path) -> None:
        segment = sorted(flights.glob("*.log"))[1]
        flip(segment, HEADER_SIZE + 9)
        status, out, _ = run("verify", data_dir)
        assert status == 1
        assert f"damage: {segment}, byte 0" in out.replace("\n", "")
        assert out.splitlines()[-1] == "not clean"
        (found,) = run_json("verify", data_dir)
        assert not found["clean"]
        assert [p["clean"] for p in found["partitions"]] == [False, True]
        (finding,) = found["partitions"][0]["findings"]
        assert (finding["kind"], finding["file"], finding["position"]) == ("damage", segment.name, 0)

    def test_with_master_keys_it_decrypts(self, data_dir: Path, tmp_path: Path, keys: Path) -> None:
        assert run_json("verify", data_dir, "--master-key-file", keys)[0]["clean"]
        wrong = tmp_path / "wrong"
        wrong.write_text(f"2026 {'00' * 32}\n")
        (found,) = run_json("verify", data_dir, "--master-key-file", wrong)
        assert "is not the one of that id" in found["partitions"][1]["findings"][0]["message"]
        status, _, err = run("verify", data_dir, TIDELOG_MASTER_KEY="short")
        assert status == 2
        assert "is not 32 bytes" in err
        assert "short" not in err

    def test_a_damaged_raft_journal(self, data_dir: Path) -> None:
        (data_dir / "raft").mkdir()
        (data_dir / "raft" / "journal").write_bytes(b"rubbish of more than eight bytes")
        (data_dir / "raft" / "snapshot").write_bytes(b"rubbish")
        (found,) = run_json("verify", data_dir)
        assert not found["clean"]
        assert sorted(
            name
            for name in ("journal", "snapshot")
            for said in found["metadata"]
            if str(data_dir / "raft" / name) in said
        ) == ["journal", "snapshot"]
        assert (data_dir / "raft" / "journal").read_bytes() == b"rubbish of more than eight bytes"

    def test_while_a_broker_runs_it_is_refused_unless_forced(self, data_dir: Path) -> None:
        broker = DataDir.open(data_dir, BrokerId("b1"))
        try:
            status, out, err = run("verify", data_dir)
            assert (status, out) == (2, "")
            assert "is in use by process" in err
            assert "--force" in err
            assert run("verify", data_dir, "--force")[0] == 0
        finally:
            broker.close()
        assert run("verify", data_dir)[0] == 0

    def test_a_folder_that_is_no_brokers_is_a_slip(self, tmp_path: Path, flights: Path) -> None:
        for path in (tmp_path, flights):
            status, _, err = run("verify", path)
            assert status == 2
            assert "holds no broker.json" in " ".join(err.split())

    def test_nothing_is_written(self, data_dir: Path) -> None:
        def content() -> dict[Path, bytes]:
            return {file: file.read_bytes() for file in data_dir.rglob("*") if file.is_file()}

        before = content()
        assert run("verify", data_dir)[0] == 0
        assert content() == before


class TestIndex:
    def test_it_shows_how_far_each_index_reaches(self, flights: Path) -> None:
        rows = run_json("index", flights)
        assert [row["segment"] for row in rows] == [file.name for file in sorted(flights.glob("*.log"))]
        assert all(row["position"] == row["segment_bytes"] and not row["damaged"] for row in rows)
        assert rows[-1]["offset"] == 19
        assert run("index", flights)[0] == 0

    def test_it_makes_them_anew(self, data_dir: Path, flights: Path) -> None:
        before = run_json("index", flights)
        for file in flights.glob("*.index"):
            file.write_bytes(b"rubbish")
        assert all(row["damaged"] for row in run_json("index", flights))
        assert run_json("index", flights, "--rebuild") == before
        assert run_json("verify", data_dir)[0]["clean"]

    def test_not_while_a_broker_runs(self, data_dir: Path, flights: Path) -> None:
        broker = DataDir.open(data_dir, BrokerId("b1"))
        try:
            status, _, err = run("index", flights, "--rebuild")
            assert status == 2
            assert "is in use by process" in err
            assert run("index", flights)[0] == 0
        finally:
            broker.close()

    def test_not_where_the_index_is_the_proof_of_damage(self, flights: Path) -> None:
        flip(min(flights.glob("*.log")), HEADER_SIZE + 1)
        status, _, err = run("index", flights, "--rebuild")
        assert status == 1
        assert "start the broker" in err
