"""The message ids that a replica reads from its log: once, as far as the window reaches; what is cut is forgotten."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from dataplane.broker.roles.id_keeper import IdKeeper
from dataplane.encryption.bodies import BatchCipher
from dataplane.encryption.keyring import Keyring, MasterKey, MasterKeys
from dataplane.log.partition_log import LogConfig, PartitionLog
from tests.simulation.machines.disk import SimDisk
from tests.views import KEY
from wire.batch import BatchBuilder, Compression, with_message_id
from wire.types import LeaderEpoch, Offset

HOME = Path("/data/s-1/0-1")
SECOND = 1_000_000_000
WINDOW_MS = 60_000


class Replica:
    def __init__(self, *, segment_bytes: int = 1 << 20) -> None:
        self.disk = SimDisk()
        self.disk.make_directory(HOME)
        self.config = LogConfig(segment_bytes=segment_bytes)
        self.log, _ = PartitionLog.open(HOME, self.config, files=self.disk)
        self.cipher = BatchCipher(Keyring(), KEY)
        self.keeper = IdKeeper()
        self.keeper.configure(WINDOW_MS, 1000)
        self.now = SECOND

    def append(
        self, *ids: str | None, compression: Compression = Compression.NONE, cipher: BatchCipher | None = None
    ) -> None:
        builder = BatchBuilder()
        builder.has_message_ids = any(ids)
        for each in ids:
            builder.add_record(b"v" * 100, headers=b"" if each is None else with_message_id(b"", each.encode()))
        batch = builder.build(self.now, compression=compression)
        parts, header = batch.stamp(self.log.log_end_offset, LeaderEpoch(1), self.now)
        if cipher is not None:
            parts, header = cipher.encrypt(header, batch.parts)
        self.log.append(parts, [header])

    def restart(self) -> None:
        self.log.close()
        self.log, _ = PartitionLog.open(HOME, self.config, files=self.disk)
        self.keeper = IdKeeper()
        self.keeper.configure(WINDOW_MS, 1000)

    def lacks_key(self) -> bool:
        return self.keeper.lacks is not None

    def learn(self) -> None:
        self.keeper.catch_up(self.log, self.cipher.decrypted)

    def found(self, *ids: str) -> Sequence[Offset | None]:
        self.keeper.table.validate()
        return [self.keeper.table.find(each.encode(), self.now) for each in ids]


@pytest.mark.parametrize("compression", Compression)
def test_ids_are_read_once_and_again_after_a_restart(compression: Compression) -> None:
    replica = Replica(segment_bytes=4096)
    assert replica.keeper.is_current(replica.log), "no batch has ids"
    for number in range(100):
        replica.append(f"a{number}", None, f"b{number}", compression=compression)
        replica.append(None, None)
    assert not replica.keeper.is_current(replica.log)
    replica.learn()
    assert replica.keeper.is_current(replica.log)
    assert replica.found("a0", "b0", "a99", "b99", "c") == [0, 2, 495, 497, None]
    replica.append("later")
    replica.learn()
    assert replica.found("later", "a99") == [500, 495]
    assert replica.keeper.table.count == 201
    replica.restart()
    replica.learn()
    assert replica.found("a0", "later") == [0, 500]
    assert replica.keeper.table.last_id(Offset(501)) == b"later"


def test_ids_beyond_the_window_are_not_read_but_for_the_last() -> None:
    replica = Replica()
    for number in range(20):
        replica.append(f"old{number}")
        replica.now += 10 * SECOND
    replica.restart()
    replica.learn()
    assert replica.found("old13", "old14", "old19") == [None, None, 19]
    assert replica.keeper.table.count < 10, "most of the log is not looked into"
    replica.now += 100 * SECOND
    replica.restart()
    replica.learn()
    assert replica.found("old19") == [None]
    assert replica.keeper.table.last_id(Offset(20)) == b"old19"


def test_what_is_cut_is_forgotten_and_what_takes_its_place_is_read() -> None:
    replica = Replica()
    replica.append("a")
    replica.append("b")
    replica.learn()
    assert replica.keeper.cutting(replica.log, lambda: replica.log.truncate(Offset(1))) == 1
    assert replica.found("a", "b") == [0, None]
    replica.append("c")
    replica.learn()
    assert replica.found("a", "b", "c") == [0, None, 1]
    replica.keeper.cutting(replica.log, lambda: replica.log.drop_all(Offset(0)), begins_anew=True)
    assert replica.found("a", "c") == [None, None]


def test_ids_that_retention_took_meanwhile_are_not_known() -> None:
    replica = Replica(segment_bytes=4096)
    for number in range(100):
        replica.append(f"a{number}")
    replica.log.sync()
    replica.log.checkpoint_high_watermark(replica.log.log_end_offset)
    replica.log.remove_before(Offset(replica.log.segments[2].base_offset))
    replica.learn()
    start = replica.log.log_start_offset
    assert start > 0
    assert replica.found("a0", f"a{start - 1}", f"a{start}", "a99") == [None, None, start, 99]


def test_encrypted_ids_need_the_key() -> None:
    replica = Replica()
    keys = Keyring(MasterKeys((MasterKey("2026-11", b"k" * 32),)))
    replica.append("a", cipher=BatchCipher(keys, KEY))
    replica.learn()
    assert replica.lacks_key()
    assert replica.found("a") == [None]
    replica.cipher = BatchCipher(keys, KEY)
    assert not replica.keeper.is_current(replica.log)
    replica.learn()
    assert not replica.lacks_key()
    assert replica.found("a") == [0]


def test_without_a_window_nothing_but_the_last_id_is_read() -> None:
    replica = Replica()
    replica.keeper.configure(0, 1000)
    replica.append("a")
    replica.append("b")
    replica.learn()
    assert (replica.keeper.table.count, replica.keeper.table.last_id(Offset(2))) == (0, b"b")
    replica.keeper.configure(WINDOW_MS, 1000)
    replica.learn()
    assert replica.found("a", "b") == [0, 1], "the stream has a window now"
