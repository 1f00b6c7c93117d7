"""Encrypted batches: they decrypt to the original, hide its content, and every changed one is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dataplane.encryption import bodies, keyring
from dataplane.encryption.bodies import OVERHEAD, BatchCipher, key_id_of
from dataplane.encryption.keyring import Keyring, MasterKey, MasterKeys
from wire.batch import (
    HEADER_SIZE,
    BatchBuilder,
    BatchHeader,
    Compression,
    EncodedBatch,
    RecordBatch,
    control_batch,
    holds_encrypted,
    iter_batches,
    parse_header,
    verify_body,
)
from wire.batch.header import ENCRYPTED_BIT, encode_header
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError
from wire.types import Buffer, Incarnation, LeaderEpoch, Offset, PartitionKey, StreamName

PARTITION = PartitionKey(StreamName("s"), Incarnation(7), 2, Incarnation(9))
OLD = MasterKey("2026-05", b"\x05" * 32)
NEW = MasterKey("2026-11", b"\x11" * 32)
SECRET_TEXT = b"the crown jewels"


def ring(*keys: MasterKey) -> Keyring:
    return Keyring(MasterKeys(keys), owner="broker b1")


def built(*values: bytes | None, key: bytes | None = None, compression: Compression = Compression.NONE) -> EncodedBatch:
    builder = BatchBuilder()
    for value in values:
        builder.add_record(value, key, timestamp=5)
    return builder.build(1, compression=compression)


def encrypted(cipher: BatchCipher, batch: EncodedBatch, base: int = 40, epoch: int = 3) -> bytes:
    parts, header = batch.stamp(Offset(base), LeaderEpoch(epoch))
    parts, header = cipher.encrypt(header, parts[1:])
    whole = b"".join(parts)
    assert len(whole) == header.size == parse_header(whole).size
    return whole


def plain(batch: EncodedBatch, base: int = 40, epoch: int = 3) -> bytes:
    return b"".join(batch.stamp(Offset(base), LeaderEpoch(epoch))[0])


def rebuilt(batch: bytes, header: BatchHeader, body: bytes) -> bytes:
    """A forged batch with correct CRCs."""
    from crc32c import crc32c

    return encode_header(header._replace(length=len(body), body_crc=crc32c(body))) + body


class TestRoundTrip:
    @given(
        values=st.lists(st.one_of(st.none(), st.binary(max_size=50)), min_size=1, max_size=20),
        key=st.one_of(st.none(), st.binary(max_size=9)),
        base=st.integers(0, 1 << 60),
        epoch=st.integers(1, 1 << 60),
        compression=st.sampled_from(Compression),
    )
    def test_decryption_gives_the_original_byte_for_byte(
        self, values: Sequence[bytes | None], key: bytes | None, base: int, epoch: int, compression: Compression
    ) -> None:
        batch = built(*values, key=key, compression=compression)
        cipher = BatchCipher(ring(OLD), PARTITION)
        stored = encrypted(cipher, batch, base, epoch)
        assert len(stored) == batch.size + OVERHEAD
        assert len(stored) % 8 == 0
        assert b"".join(BatchCipher(ring(OLD), PARTITION).plain([stored])) == plain(batch, base, epoch)

    def test_the_header_stays_in_the_clear_and_the_body_does_not(self) -> None:
        batch = built(SECRET_TEXT, SECRET_TEXT, key=SECRET_TEXT)
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), batch)
        assert SECRET_TEXT in plain(batch)
        assert SECRET_TEXT not in stored
        header = parse_header(stored)
        verify_body(stored, 0, header)  # a follower without any key finds damage
        wanted = parse_header(plain(batch))
        assert header.is_encrypted
        assert header == wanted._replace(
            attributes=wanted.attributes | ENCRYPTED_BIT, length=header.length, body_crc=header.body_crc
        )

    def test_batches_in_the_clear_pass_between_encrypted_ones(self) -> None:
        cipher = BatchCipher(ring(OLD), PARTITION)
        first, second, third, fourth = (built(b"%d" % n) for n in range(4))
        mixed = plain(first, 0) + encrypted(cipher, second, 1) + plain(third, 2) + encrypted(cipher, fourth, 3)
        assert holds_encrypted(mixed)
        assert not holds_encrypted(plain(first, 0) + plain(third, 2))
        assert not holds_encrypted(b"")
        # Split anywhere: parts of a socket or of a tail.
        parts: list[Buffer] = [mixed[:50], memoryview(mixed)[50:333], mixed[333:]]
        given_out = b"".join(cipher.plain(parts))
        assert given_out == b"".join(plain(batch, n) for n, batch in enumerate((first, second, third, fourth)))

    def test_a_reader_without_a_partition_opens_every_partition(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"))
        assert RecordBatch.decode(BatchCipher(ring(OLD), None).decrypted(stored)).values == [b"v"]
        with pytest.raises(InvariantViolation):
            encrypted(BatchCipher(ring(OLD), None), built(b"v"))

    def test_control_batches_are_for_replicas_and_never_encrypted(self) -> None:
        with pytest.raises(InvariantViolation):
            encrypted(BatchCipher(ring(OLD), PARTITION), control_batch(1, 1, b"x"))


class TestNonces:
    def test_none_is_used_twice_with_a_data_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bodies, "MAX_BATCHES_OF_A_KEY", 10)
        cipher = BatchCipher(ring(OLD), PARTITION)
        seen = [encrypted(cipher, built(b"same"))[HEADER_SIZE + 40 : HEADER_SIZE + 92] for _ in range(35)]
        assert len(set(seen)) == 35
        assert len({wrapped_and_nonce[:40] for wrapped_and_nonce in seen}) == 4

    def test_a_data_key_ends_after_so_many_bytes(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bodies, "MAX_BYTES_OF_A_KEY", 1000)
        cipher = BatchCipher(ring(OLD), PARTITION)
        stored = [encrypted(cipher, built(bytes(600))) for _ in range(4)]
        assert len({batch[HEADER_SIZE + 40 : HEADER_SIZE + 80] for batch in stored}) == 2

    def test_each_cipher_has_data_keys_of_its_own(self) -> None:
        keys = ring(OLD)
        a, b = (encrypted(BatchCipher(keys, PARTITION), built(b"same")) for _ in range(2))
        assert a[HEADER_SIZE + 40 : HEADER_SIZE + 80] != b[HEADER_SIZE + 40 : HEADER_SIZE + 80]


class TestRefused:
    def test_any_flipped_bit_is_damage(self) -> None:
        cipher = BatchCipher(ring(OLD), PARTITION)
        stored = encrypted(cipher, built(b"value"))
        for at in range(len(stored)):
            flipped = bytearray(stored)
            flipped[at] ^= 1 << at % 8
            with pytest.raises(CorruptData):
                cipher.decrypted(flipped)

    @pytest.mark.parametrize("at", [0, 4, 8, 16, 80, 92, 95, 96, 103, -1])
    def test_a_body_changed_together_with_its_crc_is_not_believed(self, at: int) -> None:
        cipher = BatchCipher(ring(OLD), PARTITION)
        stored = encrypted(cipher, built(b"value"))
        body = bytearray(stored[HEADER_SIZE:])
        body[at] ^= 1
        with pytest.raises(TidelogError) as caught:
            cipher.decrypted(rebuilt(stored, parse_header(stored), bytes(body)))
        assert caught.value.code is Code.CORRUPT_BATCH

    @pytest.mark.parametrize(
        "change",
        [
            {"base_offset": 41},
            {"leader_epoch": 4},
            {"attributes": ENCRYPTED_BIT | 1},
            {"columns": 3},
            {"record_count": 2},
            {"offset_span": 9},
            {"first_timestamp": 4},
            {"last_timestamp": 6},
            {"producer_id": 2},
            {"producer_epoch": 2},
            {"base_sequence": 2},
        ],
    )
    def test_a_header_changed_together_with_its_crc_is_not_believed(self, change: dict[str, Any]) -> None:
        cipher = BatchCipher(ring(OLD), PARTITION)
        builder = BatchBuilder()
        builder.add_values([b"value"])
        stored = encrypted(cipher, builder.build(5, producer_id=1, producer_epoch=1, base_sequence=1))
        changed = encode_header(parse_header(stored)._replace(**change)) + stored[HEADER_SIZE:]
        with pytest.raises(TidelogError, match="not what was encrypted"):
            cipher.decrypted(changed)

    def test_a_batch_of_another_partition_is_refused(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"))
        other = PartitionKey(StreamName("s"), Incarnation(7), 3, Incarnation(9))
        with pytest.raises(TidelogError, match="another partition than s/3"):
            BatchCipher(ring(OLD), other).decrypted(stored)

    def test_a_version_of_the_future_is_named(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"))
        future = rebuilt(stored, parse_header(stored), b"\x02\0\0\0" + stored[HEADER_SIZE + 4 :])
        with pytest.raises(TidelogError, match="version 2, unknown here; upgrade"):
            BatchCipher(ring(OLD), PARTITION).decrypted(future)

    def test_a_body_too_short_for_its_preamble_is_refused(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"))
        with pytest.raises(TidelogError, match="at least 112"):
            BatchCipher(ring(OLD), PARTITION).decrypted(rebuilt(stored, parse_header(stored), bytes(104)))

    def test_readers_that_meet_an_encrypted_body_say_so(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"))
        with pytest.raises(CorruptData, match="is encrypted: only a broker"):
            RecordBatch.decode(stored)

    def test_a_client_may_not_send_encrypted_batches(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"), base=0, epoch=0)
        with pytest.raises(CorruptData, match="a client may not write encrypted batches"):
            EncodedBatch.from_bytes(stored)


class TestKeys:
    def test_without_the_master_key_it_is_named(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"))
        with pytest.raises(TidelogError) as caught:
            BatchCipher(ring(NEW), PARTITION).decrypted(stored)
        assert caught.value.code is Code.NO_KEY
        assert caught.value.message == (
            "batch of offsets 40 to 40 is encrypted: broker b1 does not have the master key '2026-05', with which this "
            "was encrypted (it has '2026-11'); give it that key"
        )

    def test_batches_before_one_without_its_key_are_served(self) -> None:
        ours, theirs = built(b"ours"), built(b"theirs")
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), ours, 0) + plain(ours, 1)
        locked = encrypted(BatchCipher(ring(NEW), PARTITION), theirs, 2)
        reader = BatchCipher(ring(OLD), PARTITION)
        assert reader.decrypted(stored + locked + stored) == plain(ours, 0) + plain(ours, 1)
        with pytest.raises(TidelogError, match="'2026-11'"):
            reader.decrypted(locked + stored)

    def test_another_key_under_the_same_id_is_noticed(self) -> None:
        stored = encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v"))
        with pytest.raises(TidelogError, match="the master key '2026-05' of broker b1 is not the one of that id"):
            BatchCipher(ring(MasterKey("2026-05", b"\x06" * 32)), PARTITION).decrypted(stored)

    def test_damage_comes_before_a_missing_key(self) -> None:
        stored = bytearray(encrypted(BatchCipher(ring(OLD), PARTITION), built(b"v")))
        stored[HEADER_SIZE + 24] ^= 1  # of the id
        with pytest.raises(CorruptData, match="has CRC"):
            BatchCipher(ring(OLD), PARTITION).decrypted(stored)

    def test_without_any_key_nothing_is_encrypted(self) -> None:
        cipher = BatchCipher(ring(), PARTITION)
        assert not cipher.can_encrypt
        with pytest.raises(TidelogError, match="broker b1 has no master key") as caught:
            encrypted(cipher, built(b"v"))
        assert caught.value.code is Code.NO_KEY

    def test_keys_are_exchanged_while_it_runs(self) -> None:
        keys = ring(OLD)
        cipher = BatchCipher(keys, PARTITION)
        before = encrypted(cipher, built(b"before"))
        keys.replace(MasterKeys((NEW, OLD)))
        after = encrypted(cipher, built(b"after"))
        assert [key_id_of(batch[HEADER_SIZE:]) for batch in (before, after)] == ["2026-05", "2026-11"]
        assert [RecordBatch.decode(cipher.decrypted(batch)).values for batch in (before, after)] == [
            [b"before"],
            [b"after"],
        ]
        keys.replace(MasterKeys((NEW,)))  # the data keys that it unwrapped are forgotten with it
        with pytest.raises(TidelogError, match="2026-05"):
            cipher.decrypted(before)
        assert RecordBatch.decode(cipher.decrypted(after)).values == [b"after"]

    def test_unwrapped_data_keys_in_memory_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keyring, "DATA_KEYS_KEPT", 3)
        keys = ring(OLD)
        stored = [encrypted(BatchCipher(keys, PARTITION), built(b"%d" % n)) for n in range(5)]
        reader = BatchCipher(keys, PARTITION)
        for _ in range(2):
            assert [RecordBatch.decode(reader.decrypted(batch)).values for batch in stored] == [
                [b"%d" % n] for n in range(5)
            ]
        assert len(keys._unwrapped) == 3

    def test_one_call_of_the_cipher_for_a_batch_of_many_records(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cipher = BatchCipher(ring(OLD), PARTITION)
        stored = encrypted(cipher, built(*[b"v"] * 10_000))
        assert len([*iter_batches(stored)]) == 1
        assert cipher._batches == 1
