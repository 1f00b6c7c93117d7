"""The keys of one broker while it runs: master keys, which may be exchanged, and data keys unwrapped so far.

Thread-safe: the event loop, readers and housekeeping share one.

## Master keys

Master keys: 32 bytes with a name, that wrap data keys.

From the environment variable `TIDELOG_MASTER_KEY`, one key, `KEY` or `ID:KEY` (without an id it is "default"); or from
a file with a key in each line:

    # the first one wraps, all of them unwrap
    2026-11  kGm3…=
    2026-05  9f86d081884c7d65…

A key is 32 bytes, as 64 hexadecimal digits or in base64. The id is written into each batch that the key's data keys
encrypt: 1 to 16 of letters, digits, dot, underscore and hyphen. Nothing here ever puts a key into a sentence.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from wire.errors import Code, TidelogError

if TYPE_CHECKING:
    from pathlib import Path

KEY_BYTES: Final = 32
MAX_ID_BYTES: Final = 16
MAX_FILE_BYTES: Final = 1 << 20
ENVIRONMENT_VARIABLE: Final = "TIDELOG_MASTER_KEY"
DEFAULT_ID: Final = "default"
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{MAX_ID_BYTES}}}")
_HEX = re.compile(rf"[0-9A-Fa-f]{{{2 * KEY_BYTES}}}")
_FORM = "write 32 bytes as 64 hexadecimal digits or in base64 (openssl rand -base64 32 makes one)"


@dataclass(frozen=True, slots=True)
class MasterKey:
    id: str
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class MasterKeys:
    """The keys that a broker was given; none at all is allowed."""

    keys: tuple[MasterKey, ...] = ()
    """The first one wraps, each of them unwraps."""

    @property
    def wrapping(self) -> MasterKey | None:
        return self.keys[0] if self.keys else None

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(key.id for key in self.keys)

    def find(self, key_id: str) -> MasterKey | None:
        return next((key for key in self.keys if key.id == key_id), None)


def keys_from_text(text: str) -> MasterKeys:
    """The one key of the environment. Raises TidelogError(BAD_CONFIG)."""
    key_id, colon, secret = text.strip().partition(":")
    if not colon:
        key_id, secret = DEFAULT_ID, key_id
    return MasterKeys((_key(key_id, secret, ENVIRONMENT_VARIABLE),))


def keys_from_file(path: Path) -> MasterKeys:
    """Raises TidelogError(BAD_CONFIG) that names the line: unreadable, no key, no good key, an id twice."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES)
    except OSError as error:
        raise _bad(f"the master key file {path} cannot be read: {error.strerror}") from None
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise _bad(f"the master key file {path} is no text; write lines of ID KEY") from None
    keys: dict[str, MasterKey] = {}
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"{path}, line {number}"
        if len(words) != 2:
            raise _bad(f"{place} is not of the form ID KEY")
        key = _key(words[0], words[1], place)
        if key.id in keys:
            raise _bad(f"{place}: the id {key.id!r} was given before; each key needs its own")
        keys[key.id] = key
    if not keys:
        raise _bad(f"the master key file {path} has no key; write a line of the form ID KEY")
    return MasterKeys(tuple(keys.values()))


def _key(key_id: str, text: str, place: str) -> MasterKey:
    # The text that was given may be a key, or nearly one: no sentence shows any of it.
    if _ID.fullmatch(key_id) is None:
        raise _bad(
            f"{place}: a key's id has 1 to {MAX_ID_BYTES} letters, digits, '.', '_' or '-', this one has not; "
            "write ID and KEY"
        )
    if _HEX.fullmatch(text):
        return MasterKey(key_id, bytes.fromhex(text))
    try:
        secret = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        secret = b""
    if len(secret) != KEY_BYTES:
        raise _bad(f"{place}: the master key {key_id!r} is not 32 bytes; {_FORM}") from None
    return MasterKey(key_id, secret)


def _bad(sentence: str) -> TidelogError:
    return TidelogError(Code.BAD_CONFIG, sentence)


WRAPPED_BYTES: Final = KEY_BYTES + 8
"""RFC 3394 adds 8 bytes, by which it knows a key that it did not wrap. It needs no nonce, so keys are never used up."""
DATA_KEYS_KEPT: Final = 1024
"""Unwrapped data keys in memory; unwrapping one again costs microseconds."""


@dataclass(frozen=True, slots=True)
class DataKey:
    """A new one, to encrypt with."""

    master: MasterKey
    wrapped: bytes
    cipher: AESGCM = field(repr=False)


class Keyring:
    def __init__(
        self,
        keys: MasterKeys | None = None,
        *,
        owner: str = "this broker",
    ) -> None:
        """`owner` is the holder of the keys, as error messages name it."""
        self._keys = keys or MasterKeys()
        self._owner = owner
        self._lock = threading.Lock()
        self._unwrapped: OrderedDict[tuple[str, bytes], AESGCM] = OrderedDict()
        """By id of the master key and wrapped key; the one used last at the end."""

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the master keys; the first wraps."""
        return self._keys.ids

    @property
    def wrapping(self) -> MasterKey | None:
        """The master key that new data keys are wrapped with."""
        return self._keys.wrapping

    def replace(self, keys: MasterKeys) -> None:
        """Use these from now on, and no others: data keys that a removed key has unwrapped are forgotten."""
        with self._lock:
            self._keys = keys
            self._unwrapped.clear()

    def new_data_key(self) -> DataKey:
        """Raises TidelogError(NO_KEY)."""
        master = self.wrapping
        if master is None:
            raise self.lacks_a_key("encrypts nothing")
        secret = os.urandom(KEY_BYTES)
        return DataKey(master, aes_key_wrap(master.secret, secret), AESGCM(secret))

    def unwrap(self, key_id: str, wrapped: bytes) -> AESGCM:
        """Raises TidelogError(NO_KEY) that names the master key: it is not here, or another one has its id."""
        entry = (key_id, wrapped)
        with self._lock:
            known = self._unwrapped.get(entry)
            if known is not None:
                self._unwrapped.move_to_end(entry)
                return known
            keys = self._keys
        master = keys.find(key_id)
        if master is None:
            raise TidelogError(
                Code.NO_KEY,
                f"{self._owner} does not have the master key {key_id!r}, with which this was encrypted (it has "
                f"{', '.join(map(repr, keys.ids)) or 'none'}); give it that key",
            )
        try:
            cipher = AESGCM(aes_key_unwrap(master.secret, wrapped))
        except (InvalidUnwrap, ValueError):
            raise TidelogError(
                Code.NO_KEY,
                f"the master key {key_id!r} of {self._owner} is not the one of that id with which this was encrypted; "
                "give it that key",
            ) from None
        with self._lock:
            if self._keys is keys:
                self._unwrapped[entry] = cipher
                while len(self._unwrapped) > DATA_KEYS_KEPT:
                    self._unwrapped.popitem(last=False)
        return cipher

    def lacks_a_key(self, consequence: str) -> TidelogError:
        """The refusal where there is no master key at all."""
        return TidelogError(
            Code.NO_KEY,
            f"{self._owner} has no master key and {consequence}; give it one with --master-key-file, "
            "master_key_file or TIDELOG_MASTER_KEY",
        )
