"""Master keys: 32 bytes with a name, that wrap data keys.

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
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

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
