"""The body of an encrypted batch (attribute bit 4), and how it is written and read.

All numbers are little-endian.

     0  u32 version = 1
     4  u32 partition
     8  u64 stream incarnation
    16  u64 partition incarnation
    24  16 bytes             id of the master key, ASCII, filled up with zeros
    40  40 bytes             the data key, wrapped by it (RFC 3394)
    80  12 bytes             nonce: a counter of the data key, never twice the same
    92  u32 0
    96  ciphertext, as long as the body was, and 16 bytes tag

Version and partition are authenticated, and so are the header fields that describe the records: offset, leader epoch,
attributes, columns, counts, timestamps, producer. The leader knows its base offset and its leader epoch when it
encrypts, and they do not change afterwards: a batch that is moved to another place of the log, or to another log, does
not decrypt. Not authenticated are `length` and the CRCs, which follow from the rest, and the master key's id and the
wrapped key: if they are wrong there is no key that fits the tag, and they can be exchanged without the records.

The body is encrypted after compression, and `body_crc` covers the stored bytes, so that a broker without a key finds
damage as in any other batch. Control batches are never encrypted: they are for the replicas.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Final

from crc32c import crc32c
from cryptography.exceptions import InvalidTag

from dataplane.encryption.keyring import WRAPPED_BYTES
from wire.batch import BatchHeader, iter_batches
from wire.batch.header import ENCRYPTED_BIT, body_of, encode_header
from wire.errors import Code, CorruptData, InvariantViolation, TidelogError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dataplane.encryption.keyring import DataKey, Keyring
    from wire.types import Buffer, PartitionKey

_PREAMBLE = struct.Struct("<IIQQ16s40s12sI")
_NONCE = struct.Struct("<Q4x")
_AUTHENTICATED = struct.Struct("<IIQQqQHIIIqqqii")
_VERSION: Final = 1
_TAG_BYTES: Final = 16
OVERHEAD: Final = _PREAMBLE.size + _TAG_BYTES
"""Bytes by which encryption makes a batch larger; a multiple of 8."""
MAX_BATCHES_OF_A_KEY: Final = 1 << 20
MAX_BYTES_OF_A_KEY: Final = 16 << 30
"""After so many a new data key begins: far below the limit of AES-GCM, and one key opens a bounded number of batches.
"""

assert OVERHEAD % 8 == 0
assert WRAPPED_BYTES == 40


class BatchCipher:
    """Encrypts and decrypts the batches of one partition, with data keys of its own. Thread-safe."""

    def __init__(self, keyring: Keyring, key: PartitionKey | None) -> None:
        """`key` None: for reading only, batches of any partition."""
        self.keyring = keyring
        self._partition = key
        self._lock = threading.Lock()
        self._data_key: DataKey | None = None
        self._batches = 0
        """Encrypted with the present data key: the next nonce."""
        self._bytes = 0

    @property
    def can_encrypt(self) -> bool:
        return self.keyring.wrapping is not None

    def encrypt(self, header: BatchHeader, body: Sequence[Buffer]) -> tuple[list[Buffer], BatchHeader]:
        """The parts of the batch with its body encrypted, the first of them its header; and that header.

        `header` is that of the plaintext batch, stamped. Raises TidelogError(NO_KEY).
        """
        key = self._partition
        if key is None or header.is_encrypted or header.is_control:
            raise InvariantViolation(f"{header} of {key}: not a batch to encrypt")
        plaintext = body[0] if len(body) == 1 else b"".join(body)
        data_key, count = self._next(len(plaintext))
        place = (_VERSION, key.partition, key.stream_incarnation, key.partition_incarnation)
        nonce = _NONCE.pack(count)
        preamble = _PREAMBLE.pack(*place, data_key.master.id.encode(), data_key.wrapped, nonce, 0)
        header = header._replace(attributes=header.attributes | ENCRYPTED_BIT)
        ciphertext = data_key.cipher.encrypt(nonce, plaintext, _authenticated(place, header))
        header = header._replace(length=len(preamble) + len(ciphertext), body_crc=crc32c(ciphertext, crc32c(preamble)))
        return [encode_header(header), preamble, ciphertext], header

    def _next(self, size: int) -> tuple[DataKey, int]:
        """The data key to use now, and a nonce of it that is used only once."""
        with self._lock:
            if (
                self._data_key is None
                or self._data_key.master is not self.keyring.wrapping
                or self._batches >= MAX_BATCHES_OF_A_KEY
                or self._bytes >= MAX_BYTES_OF_A_KEY
            ):
                self._data_key = self.keyring.new_data_key()
                self._batches = self._bytes = 0
            count = self._batches
            self._batches += 1
            self._bytes += size
            return self._data_key, count

    def decrypt(self, header: BatchHeader, body: Buffer) -> list[Buffer]:
        """The parts of the plaintext batch, the first of them its header, as it was before `encrypt`.

        Raises CorruptData for damage: the body's CRC is wrong. Where it is right the bytes were written so, and other
        replicas probably have the same: TidelogError(NO_KEY) for a master key that is not here,
        TidelogError(CORRUPT_BATCH) for a body or a header that was changed after the encryption.
        """
        try:
            plaintext = self._decrypt(header, memoryview(body))
        except TidelogError:
            computed = crc32c(body)
            if computed != header.body_crc:  # damage comes first
                raise CorruptData(
                    f"{header}: encrypted body has CRC {computed:#010x}, the header says {header.body_crc:#010x}"
                ) from None
            raise
        header = header._replace(
            attributes=header.attributes & ~ENCRYPTED_BIT, length=len(plaintext), body_crc=crc32c(plaintext)
        )
        return [encode_header(header), plaintext]

    def _decrypt(self, header: BatchHeader, body: memoryview) -> bytes:
        if len(body) < OVERHEAD:
            raise _refused(f"{header}: encrypted body of {len(body)} bytes, at least {OVERHEAD} are needed")
        *place, padded_id, wrapped, nonce, zero = _PREAMBLE.unpack_from(body)
        if place[0] != _VERSION or zero:
            raise _refused(f"{header}: encrypted in version {place[0]}, unknown here; upgrade to read this batch")
        key = self._partition
        if key is not None and (key.partition, key.stream_incarnation, key.partition_incarnation) != (*place[1:],):
            raise _refused(f"{header}: was encrypted for another partition than {key}")
        key_id = key_id_of(body)
        if not key_id.isascii() or not key_id.isprintable() or not padded_id.startswith(key_id.encode()):
            raise _refused(f"{header}: the id of its master key is no text")
        try:
            cipher = self.keyring.unwrap(key_id, wrapped)
        except TidelogError as error:
            raise TidelogError(error.code, f"{header} is encrypted: {error.message}", error.details) from None
        try:
            return cipher.decrypt(nonce, body[_PREAMBLE.size :], _authenticated(place, header))
        except InvalidTag:
            raise _refused(f"{header}: does not decrypt: body or header are not what was encrypted") from None

    def plain(self, batches: Sequence[Buffer]) -> list[Buffer]:
        """Whole batches for consumers, in parts split anywhere, with all bodies in the clear.

        They end before the first one that does not decrypt. When that is the first of all, raises as `decrypt`.
        """
        data = memoryview(batches[0] if len(batches) == 1 else b"".join(batches))
        parts: list[Buffer] = []
        done = 0
        for at, header in iter_batches(data):
            if header.is_encrypted:
                if done < at:
                    parts.append(data[done:at])
                try:
                    parts += self.decrypt(header, body_of(data, at, header))
                except (CorruptData, TidelogError):
                    if parts:
                        return parts
                    raise
                done = at + header.size
        if done < len(data):
            parts.append(data[done:])
        return parts

    def decrypted(self, batches: Buffer) -> bytes:
        """As `plain`, in one piece."""
        return b"".join(self.plain([batches]))


def _refused(sentence: str) -> TidelogError:
    return TidelogError(Code.CORRUPT_BATCH, sentence)


def key_id_of(body: Buffer) -> str:
    """The id of the master key that an encrypted body needs."""
    padded_id = bytes(memoryview(body)[24:40])
    return padded_id.rstrip(b"\0").decode("latin-1")


def _authenticated(place: Sequence[int], header: BatchHeader) -> bytes:
    return _AUTHENTICATED.pack(
        *place,
        header.base_offset,
        header.leader_epoch,
        header.attributes,
        header.columns,
        header.record_count,
        header.offset_span,
        header.first_timestamp,
        header.last_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )
